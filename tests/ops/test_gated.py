"""graphene.ops.gated: act(gate) * up."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="pip install torch brings it")
import torch.nn.functional as F  # noqa: E402, N812

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")
ACTIVATIONS = {
    None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
}  # fmt: skip


def r(*shape: int, dtype: Any = torch.float16, grad: bool = False) -> Any:
    return torch.randn(*shape, dtype=torch.float32).to(dtype).requires_grad_(grad)


def close(got: Any, gate: Any, up: Any, activation: str | None) -> None:
    up = torch.ones_like(gate) if up is None else up
    want = ACTIVATIONS[activation](gate.double()) * up.double()
    ulp = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[got.dtype]
    assert got.shape == want.shape
    assert ((got.double() - want).abs() <= 0.51 * ulp * want.abs() + 1e-5 * up.double().abs() + 1e-7).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values(activation: str | None, dtype: Any) -> None:
    for shape in ((5, 64), (2, 3, 24), (7,), (4, 13)):
        gate, up = r(*shape, dtype=dtype), r(*shape, dtype=dtype)
        assert "the simulator runs" in ops.explain(ops.gated, gate, up, activation)
        close(ops.gated(gate, up, activation), gate, up, activation)
        close(ops.gated(gate, None, activation), gate, None, activation)
    gate = r(300, 16)  # more than one block
    close(ops.gated(gate, None, activation), gate, None, activation)


def test_views() -> None:
    """Halves of one product are read as they lie; what is not a row is copied."""
    both = r(6, 80)
    gate, up = both.chunk(2, -1)
    assert "copied" not in ops.explain(ops.gated, gate, up, "silu")
    close(ops.gated(gate, up, "silu"), gate, up, "silu")
    close(ops.gated(both[:, 1:41], both[:, 39:79], "silu"), both[:, 1:41], both[:, 39:79], "silu")
    turned = r(40, 6).T
    assert "gate is copied first" in ops.explain(ops.gated, turned, up, "silu")
    close(ops.gated(turned, up, "silu"), turned, up, "silu")
    assert ops.gated(r(0, 8), r(0, 8), "silu").shape == (0, 8)


def test_errors() -> None:
    for call, code, text in (
        (lambda: ops.gated(r(2, 8), r(8), "silu"), "OP_SHAPE", "want: [2,8], as 'gate'\n  got:  [8]\n"),
        (lambda: ops.gated(r(8), r(8), "swish"), "OP_ARGUMENT", 'no activation is called "swish"'),
        (lambda: ops.gated(r(8), r(8, dtype=torch.float32)), "OP_DTYPE", "nothing is promoted"),
        (lambda: ops.gated(r(8), r(8).to("meta")), "OP_DEVICE", "argument 'up' is on another device"),
        (lambda: ops.gated(r(8), 3), "OP_ARGUMENT", "argument 'up' is not a torch.Tensor"),
    ):
        with pytest.raises(gr.LaunchError) as e:
            call()
        assert e.value.code == code
        assert text in str(e.value)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(activation: str | None) -> None:
    g = {"dtype": torch.float64, "grad": True}
    assert torch.autograd.gradcheck(lambda a, b: ops.gated(a, b, activation), (r(3, 4, **g), r(3, 4, **g)))
    assert torch.autograd.gradcheck(lambda a: ops.gated(a, None, activation), (r(3, 4, **g),))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool) -> None:
    torch.library.opcheck(torch.ops.graphene.gated.default, (r(3, 16, grad=grad), r(3, 16, grad=grad), "silu"))
    torch.library.opcheck(torch.ops.graphene.gated.default, (r(3, 16, grad=grad), None, "silu"))
