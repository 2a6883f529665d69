"""What becomes narrower than fp32 on the way to a result has to stand in the meaning, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels import fig8

import graphene as gr


def doubled(middle: gr.DType, means: Callable[..., Any]) -> gr.Kernel:
    """y = 2 (x + x) through a register `middle`."""
    n = gr.sym("n")
    with gr.Kernel("doubled", means=means) as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.output("y", [n], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        r, half = gr.alloc("r", [], gr.fp32, gr.RF), gr.alloc("half", [], middle, gr.RF)
        gr.move(r, x.tile([32])[b][t])
        half[:] = r + r
        r[:] = half + half
        gr.move(y.tile([32])[b][t], r)
    return kernel


def plain(x: Any) -> Any:
    return 2 * (x + x)


def stated(x: Any) -> Any:
    return 2 * gr.rounded("half", x + x)


def test_points_that_are_found_are_those_that_are_stated() -> None:
    assert doubled(gr.fp32, plain).check().ok
    good = doubled(gr.fp16, stated).check()
    assert good.ok, good
    assert good.roundings == {"half"}


def test_a_point_that_is_not_stated() -> None:
    def loose(x: Any) -> Any:  # a bound so wide that values do not tell
        return gr.approximately(plain, relative=0.1, absolute=1e3)(x)

    [error] = doubled(gr.bf16, loose).check().errors
    assert error.code == "CHECK_PROMISE"
    assert (
        "half takes fp32 values as bf16, and computes with them: the meaning must say gr.rounded('half', ...)"
        in str(error)
    )


def test_a_point_that_is_stated_and_not_there() -> None:
    def loose(x: Any) -> Any:
        return 2 * gr.rounded("quarter", x + x)

    [error] = doubled(gr.fp32, loose).check().errors
    assert "the meaning rounds 'quarter', in which no value becomes narrower" in str(error)


def test_sums_that_are_kept_in_a_narrow_type_are_stated_by_sums() -> None:
    """Nothing wider is narrowed, and the bound counts what fp16 loses: the tensor need not be stated, too."""
    kernel = fig8(128, 128, 3)
    result = kernel.with_promise(lambda A, B, C: C + A @ B, sums=gr.fp16).check()
    assert result.ok, str(result)
    assert not kernel.with_promise(lambda A, B, C: C + A @ B).check().ok
