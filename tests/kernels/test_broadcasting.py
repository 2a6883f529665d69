"""Pointwise functions of tensors that broadcast, as NumPy does it: any dimensions, strides, types and alignments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.select import elementwise_run, run_elementwise


def relu(x: Any, y: Any) -> Any:
    return gr.max(x + y, 0)


def check(*xs: Any) -> None:
    out = np.full(np.broadcast_shapes(*(x.shape for x in xs)), np.nan, np.float16)
    run_elementwise(relu, *xs, out=out)
    want = np.maximum(xs[0].astype(np.float64) + xs[1], 0)
    np.testing.assert_allclose(out, want, rtol=2e-3, atol=1e-3)


SHAPES = [
    ((), ()), ((5,), ()), ((1,), (7,)), ((1030,), (1030,)), ((4, 8), (8,)), ((4, 1), (1, 8)), ((3, 4, 5), (4, 1)),
    ((2, 3, 4, 16), (3, 1, 16)), ((2, 1, 4, 1, 6), (3, 1, 5, 1)), ((2, 3, 4, 8), (2, 1, 4, 1)), ((3, 2, 1), (3, 2, 9)),
    ((0, 4), (4,)), ((3, 0), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_shapes_broadcast(shapes: tuple[tuple[int, ...], ...], first: int, rng) -> None:
    """`first`: where in memory a tensor begins, so that addresses are multiples of an element alone."""
    types = np.float16, np.float32
    check(*(rng.standard_normal(int(np.prod(s)) + first).astype(t)[first:].reshape(s)
            for s, t in zip(shapes, types, strict=True)))  # fmt: skip


@pytest.mark.parametrize("columns", [1, 7, 16, 34])
def test_bytes(columns: int, rng) -> None:
    x, y = (rng.integers(-60, 60, (3, columns)).astype(np.int8) for _ in range(2))
    out = np.zeros((3, columns), np.int8)
    run_elementwise(relu, x, y, out=out)
    np.testing.assert_array_equal(out, np.maximum(x.astype(np.int32) + y, 0))
    run_elementwise(relu, x, y[:, :1], out=out)  # one value for each row
    np.testing.assert_array_equal(out, np.maximum(x.astype(np.int32) + y[:, :1], 0))


def test_inputs_may_lie_apart_and_be_permuted(rng) -> None:
    x = rng.standard_normal((6, 10, 24)).astype(np.float32)
    for view in (x[:, ::2, 8:16], x.transpose(1, 0, 2)[:, :, :7], np.broadcast_to(x[:1], (3, 10, 24)), x[2:3, :, :1]):
        check(view, np.ones(view.shape[-1:], np.float16))


def test_a_batch_of_more_than_a_grid_holds(rng, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise_run, "MOST_BLOCKS_YZ", 2)
    check(rng.standard_normal((5, 3, 8)).astype(np.float16), rng.standard_normal((5, 1, 8)).astype(np.float32))


def test_a_function_means_what_it_means_when_it_is_called() -> None:
    x, y, factor = np.arange(8, dtype=np.float32), np.zeros(8, np.float32), 2

    def scaled(a: Any) -> Any:
        return a * factor

    run_elementwise(scaled, x, out=y)
    assert (y == 2 * x).all()
    factor = 3
    run_elementwise(scaled, x, out=y)
    assert (y == 3 * x).all()


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.randn(3, 1, 5, 8).to(torch.bfloat16), torch.randn(4, 1, 16)[:, :, 8:]
    out = torch.empty(3, 4, 5, 8, dtype=torch.float32)
    run_elementwise(relu, x, y, out=out)
    torch.testing.assert_close(out, torch.relu(x.float() + y))


ONES = np.ones((4, 8), np.float32)
REFUSED: list[tuple[tuple[Any, ...], Any, str]] = [
    ((3.0, ONES), ONES, "input 0 is not a tensor"),
    ((ONES, ONES), None, "out is not a tensor"),
    ((ONES.astype(np.float64), ONES), ONES, "the type of input 0 does not fit"),
    ((ONES, np.ones(7, np.float32)), ONES, "the shape of input 1 does not broadcast to that of out"),
    ((ONES, ONES), np.ones((8, 4), np.float32), "the shape of input 0 does not broadcast to that of out"),
    ((ONES, ONES), ONES[0], "the shape of input 0 does not broadcast to that of out"),
    ((ONES, ONES), np.ones((8, 4), np.float32).T, "out is not contiguous"),
    ((np.ones((8, 4), np.float32).T, ONES), ONES.copy(), "input 0 does not fit"),
    ((ONES[::-1], ONES), ONES.copy(), "input 0 does not fit"),
]


@pytest.mark.parametrize(("inputs", "out", "text"), REFUSED)
def test_what_is_refused(inputs: tuple[Any, ...], out: Any, text: str) -> None:
    with pytest.raises(gr.VerifyError) as e:
        run_elementwise(relu, *inputs, out=out)
    assert str(e.value).startswith(f"run_elementwise: {text}   [KERNEL_ARGUMENT]\n  want: ")
    with pytest.raises(gr.VerifyError, match="the function takes other arguments"):
        run_elementwise(relu, ONES, out=ONES.copy())


def test_a_field_of_a_structured_array_is_refused_where_it_lies_between_elements() -> None:
    rows, out = np.zeros(4, dtype=[("a", "<f4"), ("b", "<i2")]), np.zeros(4, np.float32)
    for given, result, name in ((rows["a"], out, "input 0"), (out, rows["a"], "out")):
        with pytest.raises(gr.VerifyError) as e:
            run_elementwise(lambda v: v, given, out=result)
        assert str(e.value).splitlines() == [
            f"run_elementwise: {name} does not fit   [KERNEL_ARGUMENT]",
            "  want: strides of whole elements of 4 bytes",
            "  got: strides of (6,) bytes",
            "  fix: copy it: np.ascontiguousarray(x)",
        ]
    even = np.zeros(4, dtype=[("a", "<f4"), ("b", "<f4")])
    even["a"] = [1, 2, 3, 4]
    run_elementwise(lambda v: 2 * v, np.ascontiguousarray(even["a"]), out=out)
    np.testing.assert_array_equal(out, [2, 4, 6, 8])


def test_integers_become_floats_where_the_function_says_so() -> None:
    out = np.zeros(4, np.float32)
    run_elementwise(lambda v: gr.cast(v, gr.fp32) * 0.5, np.arange(4, dtype=np.int8), out=out)
    np.testing.assert_array_equal(out, [0, 0.5, 1, 1.5])
