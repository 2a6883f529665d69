"""Calls that are too large to run whole: the blocks that run do what any block does, and what they write is judged."""

from __future__ import annotations

from typing import Any

import numpy as np

import graphene as gr
from graphene import _core

SIZES = {"M": 1004, "N": 1000}  # 126 x 125 blocks; the first, middle and last ones are (0, 0), (63, 0) and (125, 124)


def counted(fault: str = "", atomic: bool = False) -> gr.Kernel:
    """Y = X + 100, one by one. Of the blocks of its linear grid those three to the right of the diagonal are apart."""
    with gr.Kernel("counted", means=lambda X: X + 100) as kernel:
        M, N = gr.sym("M"), gr.sym("N")
        x, y = gr.input("X", [M, N], gr.fp32), gr.output("Y", [M, N], gr.fp32)
        across = gr.ceil_div(N, 8)
        (b,) = gr.blocks(gr.ceil_div(M, 8) * across).indices()
        i, j = gr.threads(8, 8).indices()
        row, column = b // across, b % across
        mine = x.tile([8, 8])[row, column][i, j]
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, mine)
        with gr.loop("k", 100):
            gr.binary("add", r, r, 1)
        with gr.if_(column - row >= 3), gr.if_(column - row < 4):
            if fault == "value":
                gr.binary("add", r, r, 1)
            elif fault == "hazard":
                gr.move(r, x[row * 8 + i + 1000, 0])
            else:
                gr.binary("add", r, r, 0)
        if fault == "never":
            with gr.if_(row > 1000):
                gr.binary("add", r, r, 1)
        gr.move(y.tile([8, 8])[row, column][i, j], r)
    return kernel


def test_every_branch_runs_in_a_large_grid() -> None:
    result = counted().check(**SIZES)
    assert result.ok, str(result)
    assert 3 < result.blocks <= 48
    assert result.worst is not None
    assert result.uncovered[0].startswith(f"blocks: {result.blocks} of 15750 ran, which do what any of 512 ")
    assert not any("no thread executed" in u or "not looked at" in u for u in result.uncovered), result.uncovered


def test_what_they_write_is_judged() -> None:
    (error,) = counted("value").check(**SIZES).errors
    assert error.code == "CHECK_PROMISE"
    assert "counted does not compute what it promises" in str(error)
    row, column = map(int, str(error).partition("Y[")[2].partition("]")[0].split(", "))
    assert column // 8 - row // 8 == 3


def test_what_they_access_is_checked() -> None:
    (error,) = counted("hazard").check(**SIZES).errors
    assert error.code == "SIM_OUT_OF_BOUNDS"


def test_what_none_of_them_did_is_said() -> None:
    uncovered = counted("never").check(**SIZES).uncovered
    assert sum("no thread executed" in u for u in uncovered) == 1, uncovered


def summed() -> gr.Kernel:
    """Y += the sum of X, by atomic updates of all blocks; of integers, since their order shows in sums of others."""

    def means(X: Any, Y: Any) -> Any:
        return Y + X.sum(keepdims=True)

    with gr.Kernel("summed", means=means) as kernel:
        n = gr.sym("n", multiple_of=64)
        x, y = gr.input("X", [n], gr.i32), gr.inout("Y", [1], gr.i32)
        (b,) = gr.blocks(n // 64).indices()
        (t,) = gr.threads(64).indices()
        r = gr.alloc("r", [], gr.i32, gr.RF)
        gr.move(r, x[b * 64 + t])
        with gr.loop("k", 200):
            gr.binary("add", r, r, 0)
        gr.move(y[0], r, combine="add", atomic="relaxed.gpu")
    return kernel


def test_sums_of_all_blocks_are_not_those_of_some() -> None:
    kernel = summed()
    assert kernel.check().ok
    result = kernel.check(n=64 * 8000)
    assert result.ok, str(result)
    assert result.blocks < 100


def test_few_blocks_run_all() -> None:
    x, y = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    program = counted().lowered()
    assert _core.telling_blocks(program, {"X": x, "Y": y}, 8) == _core.TellingBlocks((0, 1, 2, 3), 4, 4)
    assert _core.telling_blocks(program, {"X": x, "Y": y}, 3).blocks == (0, 2, 3)
    x, y = np.zeros((8, 80), np.float32), np.zeros((8, 80), np.float32)
    assert 3 in _core.telling_blocks(program, {"X": x, "Y": y}, 3).blocks
