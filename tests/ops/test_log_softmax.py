"""graphene.ops.log_softmax against PyTorch's of fp64: dimensions, dtypes, special values; gradients; compiled."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from tests.ops.cpu_cases import F, quiet, r, simulated  # noqa: E402

__all__ = ["quiet"]

ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def cases() -> list[tuple[Any, ...]]:
    return [
        (r(5, 33), -1),
        (r(3, 7, 12, dtype=torch.float32), 1),
        (r(4, 10)[:, ::2], 0, torch.float32),
        (r(2, 9, dtype=torch.float64), 1),
        (r(0, 4), 1),
    ]


OPCHECK = {"log_softmax": cases}


def close(got: Any, x: Any, dim: int, dtype: Any = None) -> None:
    """Rounded once; before that a distance, which is at most the result, and the logarithm of the sum are, in fp32."""
    want = F.log_softmax(x.double(), dim)
    assert (got.shape, got.dtype) == (x.shape, dtype or x.dtype)
    error, bound = (got.double() - want).abs(), 1.01 * (ULP[got.dtype] + 2.0**-24) * want.abs() + 2.0**-21
    assert ((error <= bound) | (got == want) | (got.isnan() & want.isnan())).all(), error.max()


@pytest.mark.parametrize("dtype", list(ULP))
@pytest.mark.parametrize(("shape", "dim"), [((3, 7), -1), ((2, 1000), 1), ((40,), 0), ((2, 12, 5), 1), ((70, 33), 0)])
def test_values(shape: tuple[int, ...], dim: int, dtype: Any) -> None:
    x = (r(*shape, dtype=torch.float32) * 5).to(dtype)
    close(ops.log_softmax(x, dim), x, dim)
    assert simulated(ops.log_softmax, x, dim)
    close(ops.log_softmax(x, dim, torch.float32), x, dim, torch.float32)


@pytest.mark.parametrize("shape", [(4096, 32), (20000, 3)])
def test_rounding_does_not_grow_with_the_rows_of_a_column(shape: tuple[int, ...]) -> None:
    x = r(*shape, dtype=torch.float32) * 5
    close(ops.log_softmax(x, 0), x, 0)
    assert simulated(ops.log_softmax, x, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ULP))
@pytest.mark.parametrize(("shape", "dim"), [((64, 50257), -1), ((8, 128256), 1), ((4096, 1000), 0), ((3, 40, 64), 1)])
def test_values_on_a_gpu(shape: tuple[int, ...], dim: int, dtype: Any) -> None:
    torch.manual_seed(shape[-1])
    x = (torch.randn(shape, device="cuda") * 5).to(dtype)
    assert "kernel log_softmax" in ops.explain(ops.log_softmax, x, dim)
    close(ops.log_softmax(x, dim), x, dim)


def test_it_is_finite_where_the_softmax_is_zero_and_nan_where_pytorchs_is() -> None:
    x = torch.tensor([[0.0, -500.0], [30000.0, -30000.0]])
    assert ops.log_softmax(x, 1)[0].tolist() == [0, -500]
    close(ops.log_softmax(x, 1), x, 1)
    special = torch.tensor([[0.0, float("inf")], [float("nan"), 1], [float("-inf"), 2], [float("-inf")] * 2])
    for x, dim in ((special, 1), (special.T.contiguous(), 0)):
        torch.testing.assert_close(ops.log_softmax(x, dim), torch.log_softmax(x, dim), equal_nan=True)


def test_gradients() -> None:
    x = r(3, 5, dtype=torch.float64, grad=True)
    for dim in (0, 1):
        call = lambda t, dim=dim: ops.log_softmax(t, dim)  # noqa: E731
        assert torch.autograd.gradcheck(call, (x,))
        assert torch.autograd.gradgradcheck(call, (x,))
    half, g = r(4, 50, grad=True), r(4, 50)
    (got,) = torch.autograd.grad(ops.log_softmax(half, 1), half, g)
    wide = half.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(F.log_softmax(wide, 1), wide, g.double())
    assert got.dtype == torch.float16
    assert (got.double() - want).norm() <= 2e-3 * want.norm()


def test_compiled_mapped_and_under_autocast() -> None:
    x = r(3, 4, 20)
    want = ops.log_softmax(x, -1)
    compiled = torch.compile(lambda t: ops.log_softmax(t, -1) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), want * 2)
    assert torch.equal(torch.vmap(lambda t: ops.log_softmax(t, -1))(x), want)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.log_softmax(x, -1).dtype == torch.float32


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ((r(2, 3), 2), "OP_ARGUMENT", "log_softmax: argument 'dim' is not a dimension of 'input'   [OP_ARGUMENT]\n"
         "  want: -2 to 1\n  got:  2\n  fix: pass one of its dimensions"),
        ((r(2, 3), 0, torch.int32), "OP_DTYPE", "log_softmax: argument 'dtype' is not a floating-point type"),
        ((r(2, 3).int(), 0), "OP_DTYPE", "log_softmax: argument 'input' has a dtype that it does not take"),
        ((r(2, 3), "x"), "OP_ARGUMENT", "log_softmax: argument 'dim' is not an integer"),
        (([1.0], 0), "OP_ARGUMENT", "log_softmax: argument 'input' is not a torch.Tensor"),
    ],
)  # fmt: skip
def test_refusals(args: tuple[Any, ...], code: str, text: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        ops.log_softmax(*args)
    assert e.value.code == code
    assert text in str(e.value)
