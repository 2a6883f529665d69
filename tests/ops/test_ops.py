"""graphene.ops on CPU tensors: the simulator, PyTorch's operators, fake tensors, gradients, compiled graphs."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402

ns = torch.ops.graphene
F = torch.nn.functional
ACTIVATIONS = {
    None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.CpuWarning)
        torch.manual_seed(1)
        yield


def r(*shape: int, dtype: Any = torch.float16, grad: bool = False) -> Any:
    return torch.randn(*shape, dtype=torch.float32).to(dtype).requires_grad_(grad)


def want(a: Any, b: Any, bias: Any = None, activation: str | None = None, residual: Any = None) -> Any:
    z = a.double() @ b.double()
    z = z if bias is None else z + bias.double()
    z = ACTIVATIONS[activation](z)
    return z if residual is None else z + residual.double()


def close(got: Any, ref: Any) -> None:
    assert got.shape == ref.shape
    ulp = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[got.dtype]
    error = (got.double() - ref).abs()
    assert (error <= 0.51 * ulp * ref.abs() + 1e-4).all(), error.max().item()


def simulated(f: Callable[..., Any], *args: Any, **named: Any) -> bool:
    return "the simulator runs" in ops.explain(f, *args, **named)


# Values


@pytest.mark.parametrize(
    ("a", "b"),
    [(r(20, 40), r(40, 24)), (r(40, 20).T, r(40, 24)), (r(20, 40), r(24, 40).T), (r(40, 20).T, r(24, 40).T),
     (r(5, 7), r(7, 3)), (r(9, 48)[:, 8:], r(40, 24)), (r(9, 49)[:, 1:41], r(40, 24)), (r(20, 40)[::2], r(40, 9)),
     (r(1, 40), r(40, 24)), (r(20, 1), r(1, 24)), (r(20, 40), r(40, 1)), (r(40), r(40, 24)), (r(20, 40), r(40)),
     (r(40), r(40)), (r(2, 3, 20, 16), r(16, 24)), (r(2, 20, 16), r(2, 16, 24)), (r(20, 16), r(2, 16, 24)),
     (r(2, 1, 20, 16), r(3, 16, 24)), (r(20, 2, 16).transpose(0, 1), r(2, 16, 8)), (r(2, 20, 16), r(1, 16, 24)),
     (r(2, 5, 16)[:, :, 8:], r(8, 24)), (r(20, 40, dtype=torch.bfloat16), r(40, 24, dtype=torch.bfloat16))],
)  # fmt: skip
def test_matmul_reads_views_as_they_lie(a: Any, b: Any) -> None:
    close(ops.matmul(a, b), want(a, b))
    said = ops.explain(ops.matmul, a, b)
    assert "the simulator runs" in said or "repeat over different batch" in said
    assert "copied" not in said


@pytest.mark.parametrize("a", [r(20, 80)[:, ::2], r(20, 1).expand(20, 40), r(1, 40).expand(20, 40)])
def test_matmul_copies_what_no_kernel_reads(a: Any) -> None:
    b = r(40, 24)
    close(ops.matmul(a, b), want(a, b))
    assert "a is copied first, row-major" in ops.explain(ops.matmul, a, b)
    heads, keys = r(3, 20, 2, 16).transpose(1, 2), r(3, 2, 16, 8)  # the batch is no one dimension
    close(ops.matmul(heads, keys), want(heads, keys))
    assert "a is copied first, row-major" in ops.explain(ops.matmul, heads, keys)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_matmul_epilogues(activation: str | None) -> None:
    a, b, bias, residual = r(20, 40), r(40, 24), r(24), r(20, 24)
    assert simulated(ops.matmul, a, b, bias, activation, residual)
    close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))
    close(ops.matmul(a, b, activation=activation), want(a, b, activation=activation))
    a, b, bias, residual = r(2, 20, 11), r(11, 7), r(7), r(20, 7).expand(2, 20, 7)
    close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))


@pytest.mark.parametrize(
    ("activation", "pad", "split"),
    [("tanh", (True, False), 1), ("silu", (False, True), 1), ("relu", (True, True), 1), ("gelu", (False, False), 3),
     ("sigmoid", (True, True), 2)],
)  # fmt: skip
def test_matmul_with_workspaces(monkeypatch: Any, activation: str, pad: tuple[bool, bool], split: int) -> None:
    """Padded copies of operands, parts of k: what is chosen on a GPU for odd and for deep products."""
    from graphene.kernels.gemm import GemmConfig
    from graphene.ops import _kernels

    def config(p: Any) -> Any:
        return GemmConfig(
            (32, 32, 32), 2, (2, 2), order=p.order, dtype=_kernels.DTYPES[p.dtype], align=p.align, pad=pad,
            batched=p.batched, bias=p.bias, residual=p.residual, activation=p.activation, split_k=split,
        )  # fmt: skip

    monkeypatch.setattr(_kernels, "_gemm_config", config)
    bias, residual = r(19), r(21, 19)
    for a in (r(21, 70), r(70, 21).T):
        for b in (r(70, 19), r(19, 70).T):
            said = ops.explain(ops.matmul, a, b, bias, activation, residual)
            assert said.count("\n  kernel ") == 1 + any(pad) + (split > 1)
            close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))
    a, b, residual = r(2, 21, 70), r(2, 70, 19), r(2, 21, 19)
    close(ops.matmul(a, b, bias, activation, residual), want(a, b, bias, activation, residual))
    a, residual = r(3, 7, 70), r(3, 7, 19)  # the batch is rows
    close(ops.matmul(a, b[0], bias, activation, residual), want(a, b[0], bias, activation, residual))
    out = torch.empty(21, 19).half()
    close(ops.matmul(a.view(21, 70), b[0], bias, activation, out=out), want(a.view(21, 70), b[0], bias, activation))


def test_matmul_out() -> None:
    a, b = r(20, 40), r(40, 24)
    for out in (torch.empty(20, 24).half(), r(20, 48)[:, 8:32], r(24, 20).T):
        assert ops.matmul(a, b, out=out) is out
        close(out, want(a, b))
    nothing = r(4, 3)
    assert ops.matmul(r(4, 0), r(0, 3), r(3) * 0 + 2, out=nothing) is nothing
    assert (nothing == 2).all()


@pytest.mark.parametrize("n", [8, 80])  # on the simulator, and by PyTorch's operators
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_out_lies_apart_from_itself_and_from_arguments(n: int, dtype: Any) -> None:
    """By one rule wherever it runs: blocks run in any order, and read while others write."""
    both = r(n, 3 * n, dtype=dtype)
    a, b, beside = both[:, :n], r(n, n, dtype=dtype), both[:, n : 2 * n]
    before, flat = a.clone(), r(2 * n * n, dtype=dtype)
    assert ops.matmul(a, b, out=beside) is beside  # interleaved, not shared
    torch.testing.assert_close(beside.double(), want(before, b), rtol=2e-3, atol=2e-2)
    cases = {
        "a": (a, b, None, a), "b": (a, b, None, b), "residual": (a, b, b, b), "bias": (a, b, None, a),
        "part": (a, b, None, both[:, n - 1 : 2 * n - 1]),
    }  # fmt: skip
    for name, (x, y, residual, out) in cases.items():
        if name == "residual":
            x, y = r(n, n, dtype=dtype), r(n, n, dtype=dtype)
        bias = a[0] if name == "bias" else None
        kept = out.clone()
        with pytest.raises(gr.LaunchError) as e:
            ops.matmul(x, y, bias, residual=residual, out=out)
        assert e.value.code == "OP_OUT"
        other = "a" if name in ("part", "bias") else name
        assert f"matmul: arguments 'out' and '{other}' share memory   [OP_OUT]\n  out: [{n},{n}:" in str(e.value)
        assert torch.equal(out, kept)
    row, strides = r(1, n, dtype=dtype), ((n - 1, 1), (1, 1), (0, 1))
    for out in (row.expand(n, n), row.mT.expand(n, n), *(flat.as_strided((n, n), s) for s in strides)):
        with pytest.raises(gr.LaunchError) as e:
            ops.matmul(a, b, out=out)
        assert str(e.value) == (
            f"matmul: argument 'out' has several elements at one address   [OP_OUT]\n"
            f"  out: [{n},{n}:{out.stride(0)},{out.stride(1)}]\n"
            "  fix: pass a tensor whose elements lie apart, or leave out= out"
        )


def test_without_elements() -> None:
    for sa, sb in (((0, 8), (8, 4)), ((4, 8), (8, 0)), ((0, 4, 8), (8, 4)), ((3, 0), (0, 4)), ((2, 3, 0), (0, 4))):
        got = ops.matmul(r(*sa), r(*sb), r(sb[-1]), "relu")
        assert got.shape == (r(*sa) @ r(*sb)).shape
    bias = r(4)
    assert torch.equal(ops.matmul(r(3, 0), r(0, 4), bias), bias.expand(3, 4))
    assert ops.layer_norm(r(0, 8), 8).shape == (0, 8)
    assert ops.rms_norm(r(3, 0, 8), (8,)).shape == (3, 0, 8)
    assert ops.softmax(r(0, 8), -1).shape == (0, 8)
    assert ops.softmax(r(3, 0), -1).shape == (3, 0)


@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 40), (3, 33), (4, 1), (1, 520)])
def test_norms(shape: tuple[int, ...]) -> None:
    x, e, w, b = r(*shape), r(*shape), r(shape[-1]), r(shape[-1])
    n, s = shape[-1:], x.double() + e.double()
    near = {"rtol": 2e-3, "atol": 2e-3}
    for weight, bias in ((w, b), (w, None), (None, None)):
        dw, db = (t if t is None else t.double() for t in (weight, bias))
        got = ops.layer_norm(x, n, weight, bias)
        torch.testing.assert_close(got.double(), F.layer_norm(x.double(), n, dw, db), **near)
        y, total = ops.layer_norm(x, n, weight, bias, residual=e, return_sum=True)
        torch.testing.assert_close(y.double(), F.layer_norm(s, n, dw, db), **near)
        torch.testing.assert_close(total, x + e)
    y, total = ops.rms_norm(x, n, w, residual=e, return_sum=True)
    torch.testing.assert_close(y.double(), F.rms_norm(s, n, w.double(), 2.0**-23), **near)
    torch.testing.assert_close(ops.rms_norm(x, n, w, 0.5).double(), F.rms_norm(x.double(), n, w.double(), 0.5), **near)
    assert ops.layer_norm(x, n, return_sum=True)[1] is x


def test_norms_of_views() -> None:
    x, w = r(6, 128), r(64)
    for v in (x[:, :64], x[1::2, 64:], r(64, 6).T, r(2, 3, 64).transpose(0, 1), x[:, ::2]):
        torch.testing.assert_close(ops.layer_norm(v, 64, w, w), F.layer_norm(v, (64,), w, w), rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(ops.softmax(v, -1), torch.softmax(v, -1), rtol=2e-3, atol=1e-4)
        torch.testing.assert_close(ops.softmax(v, 0), torch.softmax(v, 0), rtol=2e-3, atol=1e-4)
    two, w2 = r(3, 4, 16), r(4, 16)
    got = ops.layer_norm(two, (4, 16), w2, w2)
    torch.testing.assert_close(got, F.layer_norm(two, (4, 16), w2, w2), rtol=2e-3, atol=2e-3)
    assert ops.softmax(x, -1, torch.float32).dtype == torch.float32
    torch.testing.assert_close(ops.softmax(torch.arange(6), 0, torch.float32), torch.softmax(torch.arange(6.0), 0))


# Autocast


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
def test_autocast_converts_as_for_pytorchs_functions(to: Any) -> None:
    h, f, d = torch.float16, torch.float32, torch.float64
    a, b, x, w = r(8, 16), r(16, 24, dtype=f), r(8, 16, dtype=to), r(16, dtype=f)
    with torch.autocast("cpu", dtype=to):
        for p, q in ((a, a.T), (a.float(), b), (a, b), (a.bfloat16(), b)):
            got = ops.matmul(p, q, activation="relu")
            assert got.dtype == torch.matmul(p, q).dtype == to
            close(got, want(p.to(to), q.to(to), activation="relu"))
        assert ops.matmul(a, b, r(24, dtype=f), residual=r(8, 24, dtype=h)).dtype == to
        assert ops.matmul(a.to(d), b.to(d)).dtype == d  # fp64 is left alone
        with pytest.raises(gr.LaunchError):
            ops.matmul(a.to(d), b)
        out = torch.empty(8, 24)
        assert ops.matmul(a.float(), b, out=out) is out  # and so is everything where there is an out
        assert torch.equal(out, a.float() @ b)
        # What PyTorch does on a GPU, in fp32; on a CPU it leaves these as they are.
        y, s = ops.layer_norm(x, 16, w, w, residual=x, return_sum=True)
        assert (y.dtype, s.dtype, ops.rms_norm(x, 16, w).dtype, ops.softmax(x, 0).dtype) == (f, f, f, f)
        torch.testing.assert_close(y, F.layer_norm(2 * x.float(), (16,), w, w), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ops.softmax(x, -1), torch.softmax(x.float(), -1), rtol=1e-4, atol=1e-5)
        assert ops.softmax(x, -1, h).dtype == h
        assert ops.softmax(x.double(), -1).dtype == d
        leaf = x.clone().requires_grad_()
        ops.layer_norm(ops.matmul(leaf, b), 24).sum().backward()
        assert leaf.grad.dtype == to
    with pytest.raises(gr.LaunchError):
        ops.layer_norm(x, 16, w, w)


# What it says


def test_explain_and_warn() -> None:
    assert ops.explain(ops.matmul, r(20, 32), r(24, 32).T, r(24)) == (
        "matmul: the simulator runs\n  kernel gemm_sm80\n    a as [20,32:32,1]\n    b as [32,24:1,32]\n"
        "    bias as [24:1]\n    result 0 as [20,24:24,1]"
    )
    assert ops.explain(ops.matmul, r(4, 4, dtype=torch.float32), r(4, 4, dtype=torch.float32)) == (
        "matmul: PyTorch's operators (no kernel multiplies float32 at full precision)"
    )
    assert ops.explain(ops.matmul, r(200, 300), r(300, 200)).startswith(
        "matmul: PyTorch's operators (too large for the simulator); on a GPU:\n  kernel gemm_sm80"
    )
    code = "import torch, graphene.ops as o; x = torch.ones(8, 8).half(); o.matmul(x, x); o.matmul(x, x)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("CpuWarning: graphene.ops.matmul on CPU tensors: run by the simulator") == 1


ERRORS = [
    (lambda: ops.matmul(r(8, 16), r(16, 24, dtype=torch.float32)), "OP_DTYPE",
     "matmul: argument 'b' has another dtype; nothing is promoted   [OP_DTYPE]\n  want: torch.float16, as 'a'\n"
     "  got:  torch.float32\n  fix: convert one of them: b.to(torch.float16)"),
    (lambda: ops.matmul(torch.ones(3, 3).long(), torch.ones(3, 3).long()), "OP_DTYPE",
     "matmul: argument 'a' has a dtype that it does not take   [OP_DTYPE]\n"
     "  want: torch.float16, torch.bfloat16, torch.float32, torch.float64\n  got:  torch.int64\n  fix: convert it"),
    (lambda: ops.matmul(r(8, 15), r(16, 24)), "OP_SHAPE",
     "matmul: a's columns are not as many as b's rows   [OP_SHAPE]\n  a: [8,15]\n  b: [16,24]\n"
     "  fix: transpose an operand, or pass another one"),
    (lambda: ops.matmul(r(2, 8, 16), r(3, 16, 24)), "OP_SHAPE", "matmul: the batch dimensions do not broadcast"),
    (lambda: ops.matmul(r(1)[0], r(3)), "OP_SHAPE", "matmul: an operand has no dimensions"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), r(23)), "OP_SHAPE",
     "matmul: argument 'bias' has the wrong shape   [OP_SHAPE]\n  want: [24], one for each column of the result\n"
     "  got:  [23]\n  fix: pass a vector"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), residual=r(24)), "OP_SHAPE",
     "matmul: argument 'residual' has the wrong shape   [OP_SHAPE]\n  want: [8,24], as the result\n  got:  [24]\n"
     "  fix: pass residual.expand(...), which copies nothing"),
    (lambda: ops.matmul(r(8, 16), r(16, 24).to("meta")), "OP_DEVICE",
     "matmul: argument 'b' is on another device   [OP_DEVICE]\n  want: cpu, as 'a'\n  got:  meta\n"
     "  fix: move all arguments to one device"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), activation="swish"), "OP_ARGUMENT",
     'matmul: no activation is called "swish"   [OP_ARGUMENT]\n'
     '  known: None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"\n  fix: pass one of them'),
    (lambda: ops.matmul(r(8, 16), 3), "OP_ARGUMENT",
     "matmul: argument 'b' is not a torch.Tensor   [OP_ARGUMENT]\n  got:  int\n  fix: pass a torch.Tensor"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=r(8, 23)), "OP_OUT",
     "matmul: argument 'out' is not as the result   [OP_OUT]\n  want: [8,24] torch.float16\n"
     "  got:  [8,23] torch.float16\n  fix: pass a tensor of that shape and dtype, or leave out= out"),
    (lambda: ops.matmul(r(8, 16, grad=True), r(16, 24), out=r(8, 24)), "OP_OUT",
     "matmul: there is no gradient through out=   [OP_OUT]\n  fix: leave out= out, or call it under torch.no_grad()"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=torch.empty(8, 24)), "OP_OUT", "  got:  [8,24] torch.float32\n"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=r(8, 24).to("meta")), "OP_DEVICE",
     "matmul: argument 'out' is on another device"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), out=torch.view_as_complex(r(8, 24, 2)).conj().imag), "OP_OUT",
     "matmul: argument 'out' is a view that PyTorch negates when it is read   [OP_OUT]\n"
     "  fix: pass out.resolve_neg(), or leave out= out"),
    (lambda: torch.vmap(lambda x: ops.matmul(x, x, out=torch.empty(8, 8)))(r(2, 8, 8, dtype=torch.float32)), "OP_OUT",
     "matmul: there is no out= under torch.vmap and torch.func   [OP_OUT]\n  fix: leave out= out"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), activation=torch.relu), "OP_ARGUMENT",
     "matmul: argument 'activation' is not a string or None   [OP_ARGUMENT]\n  got:  builtin_function_or_method\n"
     "  fix: pass a string or None"),
    (lambda: ops.matmul(r(8, 16).to_sparse(), r(16, 24)), "OP_ARGUMENT",
     "matmul: argument 'a' is no dense tensor   [OP_ARGUMENT]\n  got:  torch.sparse_coo\n"
     "  fix: pass a dense one; to_dense() and to_padded_tensor() make one"),
    (lambda: ops.matmul(r(8, 16), r(16, 24), r(24).to_sparse()), "OP_ARGUMENT",
     "matmul: argument 'bias' is no dense tensor"),
    (lambda: ops.softmax(r(8, 16, dtype=torch.float32).to_mkldnn(), 0), "OP_ARGUMENT", "  got:  torch._mkldnn\n"),
    (lambda: ops.layer_norm(torch.nested.nested_tensor([r(8, 16), r(9, 16)]), 16), "OP_ARGUMENT",
     "layer_norm: argument 'input' is no dense tensor   [OP_ARGUMENT]\n  got:  a nested tensor\n"),
    (lambda: ops.softmax(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), 0), "OP_DTYPE", "torch.qint8"),
    (lambda: ops.matmul(torch.ones(8, 8, dtype=torch.int8), torch.ones(8, 8, dtype=torch.int8)), "OP_DTYPE",
     "  want: torch.float16, torch.bfloat16, torch.float32, torch.float64\n  got:  torch.int8\n"),
    (lambda: ops.layer_norm(r(8, 16), 16.0), "OP_ARGUMENT",
     "layer_norm: argument 'normalized_shape' is not an integer or a sequence of them   [OP_ARGUMENT]\n  got:  float\n"
     "  fix: pass an integer or a sequence of them"),
    (lambda: ops.rms_norm(r(8, 16), None), "OP_ARGUMENT", "rms_norm: argument 'normalized_shape' is not an integer"),
    (lambda: ops.rms_norm(r(8, 16), (8, "16")), "OP_ARGUMENT", "rms_norm: argument 'normalized_shape' is not an int"),
    (lambda: ops.layer_norm(r(8, 16), ()), "OP_SHAPE", "  normalized_shape: []\n"),
    (lambda: ops.layer_norm(r(8, 16), -16), "OP_SHAPE", "  normalized_shape: [-16]\n"),
    (lambda: ops.layer_norm(r(8, 16), 16, eps=None), "OP_ARGUMENT",
     "layer_norm: argument 'eps' is not a number   [OP_ARGUMENT]\n  got:  NoneType\n  fix: pass a number"),
    (lambda: ops.rms_norm(r(8, 16), 16, eps="1"), "OP_ARGUMENT", "rms_norm: argument 'eps' is not a number"),
    (lambda: ops.softmax(r(8, 16), None), "OP_ARGUMENT",
     "softmax: argument 'dim' is not an integer   [OP_ARGUMENT]\n  got:  NoneType\n  fix: pass an integer"),
    (lambda: ops.softmax(r(8, 16), 1.0), "OP_ARGUMENT", "softmax: argument 'dim' is not an integer"),
    (lambda: ops.softmax(r(8, 16), 0, "float32"), "OP_DTYPE", "softmax: argument 'dtype' is no floating-point type"),
    (lambda: ops.layer_norm([1.0], 1), "OP_ARGUMENT", "layer_norm: argument 'input' is not a torch.Tensor"),
    (lambda: ops.layer_norm(r(8, 16), (15,)), "OP_SHAPE",
     "layer_norm: the last extents of 'input' are not normalized_shape   [OP_SHAPE]\n  normalized_shape: [15]\n"
     "  input: [8,16]\n  fix: pass input.shape[-1:], or of as many dimensions as are normalised together"),
    (lambda: ops.rms_norm(r(8, 16), 16, r(15)), "OP_SHAPE", "rms_norm: argument 'weight' has the wrong shape"),
    (lambda: ops.layer_norm(r(8, 16), 16, residual=r(16)), "OP_SHAPE", "pass residual.expand_as(input)"),
    (lambda: ops.layer_norm(r(8, 16), 16, r(16, dtype=torch.float32)), "OP_DTYPE", "nothing is promoted"),
    (lambda: ops.softmax(r(8, 16), 2), "OP_ARGUMENT",
     "softmax: argument 'dim' is no dimension of 'input'   [OP_ARGUMENT]\n  want: -2 to 1\n  got:  2\n"
     "  fix: pass one of its dimensions"),
    (lambda: ops.softmax(r(8, 16), 1, torch.int32), "OP_DTYPE", "softmax: argument 'dtype' is no floating-point type"),
    (lambda: ops.softmax(torch.ones(3).long(), 0), "OP_DTYPE", "softmax: argument 'input' has a dtype"),
    (lambda: ops.explain(len), "OP_ARGUMENT", "explain takes a function of graphene.ops"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "text"), ERRORS, ids=[f"{i}-{e[1]}" for i, e in enumerate(ERRORS)])
def test_errors(call: Callable[[], Any], code: str, text: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        call()
    assert e.value.code == code
    assert text in str(e.value)


def test_without_pytorch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport graphene as gr\n"
        "try: gr.ops\nexcept gr.LaunchError as e: print(e.code, str(e).splitlines()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "OP_TORCH graphene.ops needs PyTorch   [OP_TORCH]\n"


# PyTorch's machinery


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool) -> None:
    g = {"grad": grad}
    torch.library.opcheck(ns.matmul.default, (r(8, 16, **g), r(16, 24, **g), r(24, **g), "gelu", r(8, 24, **g)))
    torch.library.opcheck(ns.matmul.default, (r(2, 8, 16, **g), r(16, 24, **g)))
    torch.library.opcheck(ns.layer_norm.default, (r(8, 16, **g), [16], r(16, **g), r(16, **g)))
    torch.library.opcheck(ns.add_layer_norm.default, (r(8, 16, **g), [16], r(8, 16, **g), r(16, **g), r(16, **g)))
    torch.library.opcheck(ns.rms_norm.default, (r(8, 16, **g), [16], r(16, **g)))
    torch.library.opcheck(ns.add_rms_norm.default, (r(8, 16, **g), [16], r(8, 16, **g), r(16, **g)))
    torch.library.opcheck(ns.softmax.default, (r(8, 16, **g), -1), {"dtype": torch.float32})
    if not grad:
        torch.library.opcheck(ns.matmul_forward.default, (r(8, 16), r(16, 24)))
        torch.library.opcheck(ns.matmul_out.default, (r(8, 16), r(16, 24), None, None, None, r(8, 24)))


D = torch.float64


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_matmul(activation: str | None) -> None:
    g = {"dtype": D, "grad": True}
    args = (r(2, 3, 4, **g), r(4, 5, **g), r(5, **g), r(2, 3, 5, **g))
    assert torch.autograd.gradcheck(lambda a, b, c, e: ops.matmul(a, b, c, activation, e), args)
    assert torch.autograd.gradgradcheck(lambda a, b: ops.matmul(a, b, None, activation), (r(3, 4, **g), r(4, 2, **g)))


def test_gradients_of_vectors_batches_norms() -> None:
    g = {"dtype": D, "grad": True}
    check = torch.autograd.gradcheck
    for sa, sb in (((4,), (2, 4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5))):
        assert check(lambda a, b: ops.matmul(a, b, None, "silu"), (r(*sa, **g), r(*sb, **g)))
    x, e, w, b = r(2, 3, 4, **g), r(2, 3, 4, **g), r(3, 4, **g), r(3, 4, **g)
    assert check(lambda x, w, b, e: ops.layer_norm(x, (3, 4), w, b, residual=e, return_sum=True), (x, w, b, e))
    assert check(lambda x, w, e: ops.rms_norm(x, (3, 4), w, 1e-6, residual=e, return_sum=True), (x, w, e))
    assert check(lambda x: ops.layer_norm(x, (4,)), (x,))
    assert check(lambda x, w: ops.rms_norm(x, (3, 4), w), (x, w))
    assert check(lambda x: ops.softmax(x, 1), (x,))


@pytest.mark.parametrize("activation", [x for x in ACTIVATIONS if x])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_where_sums_are_large(activation: str, dtype: Any) -> None:
    """What the activation took is not rounded: a sum past float16's 65504 has slopes, and a bias may bring it back."""
    sums = torch.tensor([0.0, 1, -1, 3, -8, 60000, -60000, 65504, -65504, 66000, -66000, 1e5, -1e5, 5e6, -5e6])
    if dtype == torch.bfloat16:
        sums = torch.cat([sums, torch.tensor([1e18, -1e18, 1e20, -1e20, 1e37, -1e37])])
    scale = 2.0 ** (sums.abs().clamp(min=1).log2().ceil() // 2)
    for shift in (0.0, -60000.0):
        a = torch.stack([sums / scale, torch.ones_like(sums)], 1).to(dtype).requires_grad_()
        b = torch.stack([scale, torch.zeros_like(sums)], 0).to(dtype).requires_grad_()
        bias = torch.full((len(sums),), shift, dtype=dtype, requires_grad=True)
        up = torch.eye(len(sums)).to(dtype)  # looks at a[i] @ b[:, i]
        args = (a, b, bias)
        got = torch.autograd.grad(ops.matmul(a, b, bias, activation), args, up)
        wide = [t.detach().double().requires_grad_() for t in args]
        z = (wide[0] @ wide[1] + wide[2]).clamp(-1e4, 1e4)  # PyTorch's own formulas overflow, and are flat beyond
        z = z + (wide[0] @ wide[1] + wide[2] - z).detach()
        slope = torch.autograd.grad(ACTIVATIONS[activation](z.clamp(-1e4, 1e4)).sum(), z)[0].to(dtype).double()
        dz = up.double() * torch.where(z > 1e4, 1 if activation not in ("tanh", "sigmoid") else 0,
                                       torch.where(z < -1e4, 0, slope))  # fmt: skip
        near = {"rtol": 4e-3 if dtype == torch.float16 else 2e-2, "atol": 1e-5}
        for p, q in zip(got, (dz @ wide[1].T, wide[0].T @ dz, dz.sum(0)), strict=True):
            assert p.isfinite().all()
            torch.testing.assert_close(p.double(), q, **near)


def test_gradients_of_broadcast_operands_are_summed_unrounded() -> None:
    """A part of the sum may lie past float16's largest number though the sum does not."""
    a = torch.full((4, 1, 8), 200.0).half() * torch.tensor([1, -1, 1, -1]).view(4, 1, 1)
    b = torch.ones(8, 3).half().requires_grad_()
    up = torch.full((4, 1, 3), 400.0).half()
    up[3] = 399
    (got,) = torch.autograd.grad(ops.matmul(a, b), b, up)
    assert (got == 200).all()
    a, b = r(2, 1, 3, 4, dtype=D, grad=True), r(5, 4, 2, dtype=D, grad=True)
    assert torch.autograd.gradcheck(lambda a, b: ops.matmul(a, b), (a, b))


def test_gradients_take_sums_with_a_residual_unrounded() -> None:
    """Near 256 float16 lies 1/4 apart, which is more than the residual adds."""
    x, e = (256 + r(4, 64, dtype=torch.float32) / 8).half(), (r(4, 64, dtype=torch.float32) / 16).half()
    g, w = r(4, 64), r(64)
    for mine, theirs in ((ops.layer_norm, F.layer_norm), (ops.rms_norm, F.rms_norm)):
        for both in (False, True):
            leaves = [t.clone().requires_grad_() for t in (x, e, w)]
            y = mine(leaves[0], (64,), leaves[2], residual=leaves[1], return_sum=both)
            got = torch.autograd.grad(y, leaves, (g, g) if both else g)
            wide = [t.double().requires_grad_() for t in (x, e, w)]
            total = wide[0] + wide[1]
            y = theirs(total, (64,), wide[2])
            ref = torch.autograd.grad((y, total) if both else y, wide, (g.double(), g.double()) if both else g.double())
            for p, q in zip(got, ref, strict=True):
                torch.testing.assert_close(p.double(), q, rtol=4e-3, atol=4e-3)
    large = torch.full((2, 64), 60000.0).half()
    leaf = (large * torch.linspace(0.5, 1, 64).half()).requires_grad_()  # the sum is past float16's largest number
    (got,) = torch.autograd.grad(ops.layer_norm(leaf, 64, residual=large), leaf, g[:2] * 1000)
    assert got.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_as_wide_as_shared_memory(dtype: Any) -> None:
    """The kernel that is chosen for CPU tensors fits what the simulator lowers for."""
    limit = 163 * 1024 // r(1, dtype=dtype).element_size()
    for width, terms in ((limit // 2 - 300, 2), (limit // 2 + 9, 2), (limit - 600, 1), (limit - 8, 1)):
        x, e = r(1, width, dtype=dtype), r(1, width, dtype=dtype) if terms == 2 else None
        total = x.double() if e is None else x.double() + e.double()
        assert simulated(ops.rms_norm, x, (width,), residual=e)
        y = ops.rms_norm(x, (width,), residual=e)
        torch.testing.assert_close(y.double(), F.rms_norm(total, (width,)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 40), (5, 33), (70, 8), (1, 16), (16,)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_of_norms_by_kernels(shape: tuple[int, ...], dtype: Any) -> None:
    g = {"dtype": dtype, "grad": True}
    near = {"rtol": 4e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"rtol": 6e-3, "atol": 6e-3}
    n = shape[-1:]
    x, e, w, b = r(*shape, **g), r(*shape, **g), r(*n, **g), r(*n, **g)
    up, up_total = r(*shape, dtype=dtype), r(*shape, dtype=dtype)
    calls: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (lambda x, w, b: ops.layer_norm(x, n, w, b), lambda x, w, b: F.layer_norm(x, n, w, b), (x, w, b)),
        (lambda x, w: ops.rms_norm(x, n, w, 1e-6), lambda x, w: F.rms_norm(x, n, w, 1e-6), (x, w)),
        (lambda x: ops.layer_norm(x, n), lambda x: F.layer_norm(x, n), (x,)),
        (lambda x, e, w, b: ops.layer_norm(x, n, w, b, residual=e, return_sum=True),
         lambda x, e, w, b: (F.layer_norm(x + e, n, w, b), x + e), (x, e, w, b)),
        (lambda x, e, w: ops.rms_norm(x, n, w, 1e-6, residual=e, return_sum=True),
         lambda x, e, w: (F.rms_norm(x + e, n, w, 1e-6), x + e), (x, e, w)),
    ]  # fmt: skip
    for ours, theirs, args in calls:
        wide = [t.detach().double().requires_grad_() for t in args]
        y, z = ours(*args), theirs(*wide)
        two = isinstance(y, tuple)
        got = torch.autograd.grad(y, args, (up, up_total) if two else up)
        ref = torch.autograd.grad(z, wide, (up.double(), up_total.double()) if two else up.double())
        for p, q in zip(got, ref, strict=True):
            assert p.dtype == dtype
            torch.testing.assert_close(p.double(), q, **near)
    of_b = torch.autograd.grad(ops.layer_norm(x, n, w, b).sum(), b)[0]  # its gradient is broadcast
    assert (of_b == x.numel() // n[0]).all()


def test_gradients_of_norms_run_kernels() -> None:
    args = (r(6, 64), None, r(6, 64), [64], r(64), None, 1e-5, True)
    said = ops._norm_gradients.layer_gradients.defined.explain(*args)
    assert said.count("\n  kernel ") == 4
    torch.library.opcheck(ns.layer_norm_backward.default, args)
    torch.library.opcheck(
        ns.rms_norm_backward.default, (r(6, 64), r(6, 64), r(6, 64), [64], None, r(6, 64), 1e-5, False)
    )


def model(x: Any, w: Any, bias: Any, g: Any) -> Any:
    h = ops.matmul(x, w.T, bias, "gelu")
    y, s = ops.layer_norm(h, g.shape, g, g, residual=x, return_sum=True)
    return ops.softmax(y, -1) + ops.rms_norm(s, g.shape, g)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_breaks(backend: str, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (8, 12):
        args = [r(rows, 16, grad=True), r(16, 16, grad=True), r(16, grad=True), r(16, grad=True)]
        got, ref = compiled(*args), model(*args)
        assert torch.equal(got, ref)
        up = torch.ones_like(ref)
        for p, q in zip(torch.autograd.grad(got, args, up), torch.autograd.grad(ref, args, up), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-2)
        with torch.no_grad():
            assert torch.equal(compiled(*args), ref)


def test_graphs_without_gradients_hold_the_lean_operator() -> None:
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return graph

    a, b = r(8, 16), r(16, 24)
    torch.compile(lambda a, b: ops.matmul(a, b), backend=backend, fullgraph=True)(a, b)
    assert "graphene.matmul_forward" in graphs[0]
    out = torch.empty(8, 24).half()
    compiled = torch.compile(lambda a, b, out: ops.matmul(a, b, out=out), backend="aot_eager", fullgraph=True)
    assert compiled(a, b, out) is out
    close(out, want(a, b))


def test_kernels_registered_through_python() -> None:
    """What a PyTorch without the C interface gets: the same kernels."""
    a, b, bias = r(20, 40), r(40, 24), r(24)
    close(ops._matmul._matmul._on_cuda(a, b, bias, "relu"), want(a, b, bias, "relu"))
    x = r(20, 80)[:, ::2]
    close(ops._matmul._matmul._on_cuda(x, b), want(x, b))
    wide = r(8, 8, dtype=torch.float32)
    assert torch.equal(ops._matmul._matmul._on_cuda(wide, wide), wide @ wide)
    out = torch.empty(20, 24).half()
    assert ops._matmul._matmul_out._on_cuda(a, b, None, None, None, out) is None
    close(out, want(a, b))


def test_what_must_see_operators_is_noticed() -> None:
    """By PyTorch's own functions, without Python: a version that lacks one is asked in Python instead."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode

    from graphene import _core

    def state() -> tuple[bool, bool]:
        return _core.torch_state()[1:]

    assert _core.torch_state() == (True, False, True)
    with torch.no_grad():
        assert state() == (False, False)
    with torch.inference_mode():
        assert state() == (False, False)
    with FakeTensorMode():
        assert state() == (True, True)
    with TorchFunctionMode():
        assert state() == (True, True)
    with torch.device("cpu"):  # a function mode that says where new tensors go: nothing to us
        assert state() == (False, True)
        with TorchFunctionMode():
            assert state() == (True, True)
    with forward_ad.dual_level():
        assert state() == (True, True)
    with torch.autocast("cpu"):
        assert state() == (False, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no GPU here
        torch.set_autocast_enabled("cuda", True)
        assert state() == (True, True)
        torch.set_autocast_enabled("cuda", False)
    seen: list[tuple[bool, bool]] = []

    def traced(x: Any) -> Any:
        seen.append(state())
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(traced, r(3), check_trace=False)
    torch.fx.experimental.proxy_tensor.make_fx(traced)(r(3))
    assert seen == [(True, True), (True, True)]
    assert state() == (False, True)


def test_fake_meta_and_transformed_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = ops.matmul(torch.empty(3, 8, 16, dtype=torch.half), torch.empty(16, 24, dtype=torch.half))
        assert (y.shape, y.dtype, y.stride()) == ((3, 8, 24), torch.half, (192, 24, 1))
        with pytest.raises(gr.LaunchError):
            ops.matmul(torch.empty(8, 16), torch.empty(15, 24))
    meta = ops.layer_norm(torch.empty(3, 8, device="meta"), 8)
    assert meta.is_meta
    assert meta.shape == (3, 8)
    a, b = r(3, 8, 16), r(16, 24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap says that it loops
        close(torch.vmap(lambda x: ops.matmul(x, b))(a), want(a, b))
    got = torch.func.grad(lambda x: ops.matmul(x, b, None, "silu").float().sum())(a)
    x = a.detach().requires_grad_()
    ops.matmul(x, b, None, "silu").float().sum().backward()
    assert torch.equal(got, x.grad)
    from torch.autograd import forward_ad

    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        ops.softmax(forward_ad.make_dual(r(8, 16), r(8, 16)), -1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.matmul(r(8, 16, dtype=torch.float32), r(16, 24)).dtype == torch.bfloat16

    class Sub(torch.Tensor):
        pass

    assert isinstance(ops.matmul(r(8, 16).as_subclass(Sub), b), Sub)
