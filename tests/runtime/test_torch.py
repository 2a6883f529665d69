"""Torch tensors on the CPU, read through the exchange table that torch publishes."""

from __future__ import annotations

from typing import Any

import pytest

import graphene as gr
from graphene import _core

torch = pytest.importorskip("torch", reason="torch is not installed")


def code_of(check: Any, *args: Any) -> tuple[str, str]:
    with pytest.raises(gr.LaunchError) as e:
        check(*args)
    return e.value.code, str(e.value)


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"),
    [
        ("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32), ("tf32", torch.float32),
        ("fp64", torch.float64), ("fp8e4m3", torch.float8_e4m3fn), ("fp8e5m2", torch.float8_e5m2), ("i8", torch.int8),
        ("u8", torch.uint8), ("i16", torch.int16), ("i32", torch.int32), ("i64", torch.int64), ("pred", torch.bool),
    ],
)  # fmt: skip
def test_dtypes(make, check, dtype: str, torch_dtype: Any) -> None:
    m = make(A=make.tensor(dtype, "3 4", "4 1"))
    assert check(m, torch.empty(3, 4, dtype=torch_dtype))
    other = torch.uint16 if torch_dtype != torch.uint16 else torch.int8
    assert code_of(check, m, torch.empty(3, 4, dtype=other))[0] == "LAUNCH_DTYPE"


def test_strides_offsets_and_subclasses(make, check) -> None:
    m = make(A=make.tensor("fp32", "M N", "1 M", align=16), symbols=["M", "N"])
    x = torch.empty(8, 12)
    assert check(m, x.T)["symbols"] == {"M": 12, "N": 8}
    assert check(m, torch.nn.Parameter(x).T)
    assert check(m, x.as_subclass(type("Sub", (torch.Tensor,), {})).T)
    code, text = code_of(check, m, x)
    assert code == "LAUNCH_STRIDE"
    assert "want: [1,M] = [1,8]\n  got:  [12,1]" in text
    assert code_of(check, m, torch.empty(97)[1:].view(8, 12).T)[0] == "LAUNCH_ALIGN"


def test_tensors_without_storage(make, check) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    m = make(A=make.tensor("fp32", "4", "1", "readwrite"))
    with FakeTensorMode():
        fake = torch.empty(4)
    for t in (fake, torch.empty(4, device="meta"), torch.empty(4).to_sparse()):
        code, text = code_of(check, m, t)
        assert code == "LAUNCH_STORAGE", text
        assert "argument 'A' is a tensor without storage; nothing was launched" in text
        assert "fix: call the kernel on real tensors" in text
    freed = torch.empty(4)
    freed.untyped_storage().resize_(0)
    assert code_of(check, m, freed)[0] == "LAUNCH_STORAGE"


def test_views_that_are_negated_or_conjugated_lazily(make, check) -> None:
    """Their memory holds other numbers than they show; the exchange table does not say so."""
    m = make(A=make.tensor("fp32", "4", "2"))
    imaginary = torch.complex(torch.ones(4), torch.ones(4)).conj().imag
    assert imaginary.is_neg()
    odd = imaginary.as_strided((4,), (1,))  # real and imaginary parts in turn, with an odd stride
    assert odd.is_neg()
    assert code_of(check, make(A=make.tensor("fp32", "4", "1")), odd)[0] == "LAUNCH_STORAGE"
    for t in (imaginary, imaginary.as_subclass(type("Sub", (torch.Tensor,), {}))):
        code, text = code_of(check, m, t)
        assert code == "LAUNCH_STORAGE"
        assert text == (
            "k: argument 'A' is negated lazily: its memory holds the numbers with the other sign; nothing was launched"
            "   [LAUNCH_STORAGE]\n  fix: pass A.resolve_neg()"
        )
    assert check(m, torch.complex(torch.ones(4), torch.ones(4)).imag)
    assert check(make(A=make.tensor("fp32", "4", "1")), imaginary.resolve_neg())
    assert code_of(check, m, torch.ones(4, dtype=torch.complex64).conj())[0] == "LAUNCH_DTYPE"


def test_inside_transformations(make, check) -> None:
    m = make(A=make.tensor("fp32", "4", "1"))
    codes = []

    def inside(t: Any) -> Any:
        codes.append(code_of(check, m, t)[0])
        return t.sum()

    x = torch.ones(3, 4)
    torch.vmap(inside)(x)
    torch.func.grad(inside)(x[0])
    torch.func.functionalize(inside)(x[0])
    assert codes == ["LAUNCH_STORAGE"] * 3


def test_empty_tensors_are_fine(make, check) -> None:
    m = make(A=make.tensor("fp32", "n 4", "4 1", align=16), symbols=["n"])
    assert check(m, torch.empty(0, 4))["symbols"] == {"n": 0}


def test_overlap_of_torch_and_numpy_views(make, check) -> None:
    m = make(A=make.tensor("fp32", "8", "1"), B=make.tensor("fp32", "8", "1", "write"))
    x = torch.zeros(16)
    assert check(m, x[:8], x[8:])
    assert code_of(check, m, x[:8], x.numpy()[7:15])[0] == "LAUNCH_OVERLAP"


def test_a_tensor_is_no_number(make, check) -> None:
    m = make(x=make.scalar("fp32"))
    code, text = code_of(check, m, torch.tensor(1.0))
    assert code == "LAUNCH_TYPE"
    assert "pass a number; of a tensor, tensor.item()" in text


def test_a_call_on_cpu_tensors_goes_to_the_host(make) -> None:
    class Kernel(_core.Launcher):
        def _call_host(self, *args: Any, **named: Any) -> None:
            self.got = args, named

    k = Kernel()
    x = torch.zeros(3)
    assert k(x, alpha=2) is None
    assert k.got[0][0] is x
    assert k.got[1] == {"alpha": 2}


def test_importing_graphene_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, graphene; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
