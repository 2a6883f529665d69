"""An index outside of its view is an error in every order of threads; what tiles leave over is the fill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import graphene as gr

Body = Callable[[Any, gr.Tensor, gr.Tensor, gr.Tensor, gr.Tensor], None]


def build(body: Body, n: Any = 32) -> gr.Kernel:
    """``body(t, x, y, s, r)``: thread t of 32, x in and y out of n elements, s of 32 shared ones that holds 0 to 31."""
    with gr.Kernel("bounds") as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.inout("y", [n], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.init(r, 0)
        gr.move(s[t], r)
        gr.barrier()
        body(t, x, y, s, r)
    return kernel


def run(kernel: gr.Kernel, n: int = 32, seed: int = 0) -> np.ndarray:
    y = np.full(n, -1, np.float32)
    kernel.simulate(np.arange(1, n + 1, dtype=np.float32), y, seed=seed)
    return y


def outside(body: Body, n: int = 32, size: Any = 32) -> list[str]:
    """The lines of the error, which every order of threads finds."""
    kernel = build(body, size)
    texts = []
    for seed in range(4):
        with pytest.raises(gr.SimulationError) as error:
            run(kernel, n, seed)
        assert error.value.code == "SIM_OUT_OF_BOUNDS"
        assert error.value.diagnostics[0]["file"].endswith("test_bounds.py")
        texts.append(str(error.value))
    assert len(set(texts)) == 1
    return texts[0].splitlines()


def test_a_read_of_shared_memory_past_the_end() -> None:
    lines = outside(lambda t, x, y, s, r: gr.move(r, s[t + 1]))
    assert lines[0].startswith("test_bounds.py:")
    assert lines[0].endswith(": an index past the end of a view of s   [SIM_OUT_OF_BOUNDS]")
    assert lines[1] == "    %6:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%8:[].fp32.SH)"
    assert lines[2:] == [
        "  index: @t + 1",
        "  want: at most 31",
        "  got: 32",
        "  by thread 31 (warp 0, lane 31) of block (0)",
        "  fix: keep the index inside, or let only those threads access it whose index is inside: gr.if_(...)",
    ]


def test_a_write_of_shared_memory_past_the_end() -> None:
    assert "  got: 32" in outside(lambda t, x, y, s, r: gr.move(s[t + 1], r))


def test_before_the_start() -> None:
    lines = outside(lambda t, x, y, s, r: gr.move(r, s[t - 1]))
    assert "a negative index of a view of s" in lines[0]
    assert lines[2:6] == [
        "  index: @t - 1",
        "  want: at least 0",
        "  got: -1",
        "  by thread 0 (warp 0, lane 0) of block (0)",
    ]


ELEMENTS: dict[str, Body] = {
    "global, read": lambda t, x, y, s, r: gr.move(r, x[t + 1]),
    "global, written": lambda t, x, y, s, r: gr.move(y[t + 1], r),
    "a tile's element, of the next tile": lambda t, x, y, s, r: gr.move(r, x.tile([8])[1][t]),
    "of the only tile": lambda t, x, y, s, r: gr.move(r, x.tile([32])[0][t + 1]),
    "of a reshape": lambda t, x, y, s, r: gr.move(r, x.reshape(0, gr.row_major(4, 8))[t // 8 + 1, t % 8]),
    "a tile of shared memory": lambda t, x, y, s, r: gr.move(r, s.tile([4])[t // 4 + 1][t % 4]),
    "a partial tile of shared memory": lambda t, x, y, s, r: gr.move(r, s.tile([5])[t // 4][0]),
    "a tile before the first": lambda t, x, y, s, r: gr.move(r, x.tile([4])[t // 4 - 1][t % 4]),
    "a partial tile of shared memory, written": lambda t, x, y, s, r: gr.move(s.tile([5])[t // 4][0], r),
    "combined": lambda t, x, y, s, r: gr.move(s[t + 1], r, combine="add", atomic="relaxed.cta"),
}


@pytest.mark.parametrize("name", list(ELEMENTS))
def test_any_other_index(name: str) -> None:
    outside(ELEMENTS[name])


def test_an_index_of_a_symbolic_size() -> None:
    n = gr.sym("n", min=1)
    body: Body = lambda t, x, y, s, r: gr.move(r, x[t])  # noqa: E731
    lines = outside(body, 20, n)
    assert lines[2:5] == ["  index: @t", "  want: at most 19", "  got: 20"]
    run(build(body, n), 32)


def test_an_index_in_a_loop_and_of_a_stage() -> None:
    def body(t: Any, x: gr.Tensor, y: gr.Tensor, s: gr.Tensor, r: gr.Tensor) -> None:
        with gr.loop("i", x.levels[0].size) as i:
            gr.move(r, s[i])

    n = gr.sym("n", min=1)
    assert "  got: 32" in outside(body, 33, n)
    run(build(body, n), 32)


def test_an_index_read_from_data() -> None:
    def kernel() -> gr.Kernel:
        with gr.Kernel("chosen") as k:
            which, y = gr.input("which", [32], gr.i32), gr.output("y", [32], gr.fp32)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            s = gr.alloc("s", [32], gr.fp32, gr.SH)
            r = gr.alloc("r", [], gr.fp32, gr.RF)
            gr.init(r, 3)
            gr.move(s[t], r)
            gr.barrier()
            gr.move(r, s[gr.index(which[t], 0, 100)])
            gr.move(y[t], r)
        return k

    which, y = np.arange(32, dtype=np.int32), np.zeros(32, np.float32)
    kernel().simulate(which, y)
    assert (y == 3).all()
    which[5] = 32
    with pytest.raises(gr.SimulationError, match="by thread 5 ") as error:
        kernel().simulate(which, y)
    assert error.value.code == "SIM_OUT_OF_BOUNDS"


def test_a_member_of_a_list() -> None:
    def kernel(guarded: bool) -> gr.Kernel:
        with gr.Kernel("members") as k:
            w, y = gr.inputs("w", 2, [32], gr.fp32), gr.output("y", [32], gr.fp32)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            r = gr.alloc("r", [], gr.fp32, gr.RF)
            with gr.loop("i", 2) as i:
                gr.move(r, w[i][t])
                with gr.if_(i < 1) if guarded else nullcontext():
                    gr.move(r, w[i + 1][t])
            gr.move(y[t], r)
        return k

    args = [[np.zeros(32, np.float32), np.ones(32, np.float32)], np.zeros(32, np.float32)]
    kernel(True).simulate(*args)
    with pytest.raises(gr.SimulationError, match="an index past the end of a view of w") as error:
        kernel(False).simulate(*args)
    assert error.value.code == "SIM_OUT_OF_BOUNDS"


def test_threads_that_a_branch_leaves_out_claim_nothing() -> None:
    def body(t: Any, x: gr.Tensor, y: gr.Tensor, s: gr.Tensor, r: gr.Tensor) -> None:
        with gr.if_(t * 2 < 62):  # not in the words of the index
            gr.move(r, s[t + 1])
            gr.move(r, x[t + 1])
        with gr.if_(t >= 1):
            gr.move(y[t - 1], r)

    run(build(body))


def test_empty_and_partial_tiles_are_the_fill() -> None:
    def body(t: Any, x: gr.Tensor, y: gr.Tensor, s: gr.Tensor, r: gr.Tensor) -> None:
        with gr.loop("i", 5) as i:  # there are as many tiles as n needs
            gr.move(r, x.tile([8])[i][t % 8], fill=7)
            with gr.if_(t < 8):
                gr.move(y.tile([8])[i][t], r)
        gr.move(r, s.tile([5])[6][t % 5])  # two of its five elements

    n = gr.sym("n", min=1)
    y = run(build(body, n), 20)
    assert (y == np.arange(1, 21)).all()


def test_what_is_not_accessed_claims_nothing() -> None:
    """A thread whose output is outside of a partial tile does nothing, whatever its input's index is."""
    with gr.Kernel("unread") as kernel:
        n = gr.sym("n", min=1)
        x, y = gr.input("x", [n], gr.fp32), gr.inout("y", [n], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.init(r, 1)
        gr.matmul(y.tile([32])[0][t], r, x[t])
    for seed in range(4):
        run(kernel, 20, seed)


def test_lanes_whose_addresses_an_instruction_ignores_claim_nothing() -> None:
    with gr.Kernel("one_matrix") as kernel:
        x = gr.input("x", [8, 8], gr.fp16)
        y = gr.output("y", [8, 8], gr.fp16)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        s = gr.alloc("s", [8, 8], gr.fp16, gr.SH)
        r = gr.alloc("r", [1, 2], gr.fp16, gr.RF)
        for i in range(2):
            gr.move(r[0, i], x[t // 4, 2 * (t % 4) + i])
            gr.move(s[t // 4, 2 * (t % 4) + i], r[0, i])
        gr.barrier()
        gr.move(r.tile([1, 2]), s[t, :].reshape(0, gr.row_major(1, 8)), on=warp, atom=gr.atom("ldmatrix.x1"))
        for i in range(2):
            gr.move(y[t // 4, 2 * (t % 4) + i], r[0, i])
    x, y = np.arange(64, dtype=np.float16).reshape(8, 8), np.zeros((8, 8), np.float16)
    kernel.simulate(x, y)
    assert np.array_equal(x, y)


def test_the_code_makes_no_access_outside() -> None:
    code = build(lambda t, x, y, s, r: gr.move(r, x[t]), gr.sym("n", min=1)).cuda_source("sm_80")
    assert "t < n" in code


def refused(body: Body, n: Any = 32) -> list[str]:
    with pytest.raises(gr.LayoutError) as error:
        build(body, n).cuda_source("sm_80")
    assert error.value.code == "TENSOR_INDEX"
    return str(error.value).splitlines()


def test_code_that_is_certainly_outside_is_not_printed() -> None:
    """There the predicate would hide it, and nothing simulates."""
    lines = refused(lambda t, x, y, s, r: gr.move(r, s[t + 1]))
    assert lines[0].endswith(": an index past the end of a view of s   [TENSOR_INDEX]")
    assert lines[1] == "    %6:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%8:[].fp32.SH)"
    assert lines[2:] == [
        "  index: @t + 1",
        "  want: at most 31",
        "  got: 32 where tid = 31",
        "  fix: keep the index inside, or let only those threads access it whose index is inside: gr.if_(...)",
    ]
    assert "  got: -1 where tid = 0" in refused(lambda t, x, y, s, r: gr.move(s[t - 1], r))
    assert "  got: 32 where tid = 31" in refused(lambda t, x, y, s, r: gr.move(r, x[t + 1]))
    with pytest.raises(gr.LayoutError):
        build(lambda t, x, y, s, r: gr.move(r, s[t + 1])).compile("sm_80")


def test_in_the_last_turn_of_a_loop_and_in_a_branch() -> None:
    def body(t: Any, x: gr.Tensor, y: gr.Tensor, s: gr.Tensor, r: gr.Tensor) -> None:
        with gr.loop("i", 17, step=3) as i, gr.if_(t < 20):
            gr.move(r, s[t + i])

    assert "  got: 32 where tid = 17, i = 15" in refused(body)


@pytest.mark.parametrize("case", ["a size decides", "a branch", "an exit", "a loop that may not run", "data", "a tile"])
def test_what_may_be_inside_is_printed(case: str) -> None:
    n = gr.sym("n", min=1)

    def body(t: Any, x: gr.Tensor, y: gr.Tensor, s: gr.Tensor, r: gr.Tensor) -> None:
        if case == "a size decides":
            gr.move(r, x[t])
        elif case == "a branch":
            with gr.if_(t * 2 < 62), gr.loop("i", 2) as i:
                gr.move(r, s[t + i])
            with gr.if_(n > 5):
                gr.move(r, s[t + 1])
        elif case == "an exit":
            gr.exit_if(n < 5)
            gr.move(r, s[t + 1])
        elif case == "a loop that may not run":
            with gr.loop("i", n) as i:
                gr.move(r, s[t + i])
        elif case == "data":
            last = gr.scalar("last", 0, min=0, max=40)
            gr.move(r, s[last.value])
        else:
            gr.move(r, x.tile([8])[t][0])
            gr.move(r, s.tile([5])[6][t % 5])

    assert build(body, n).cuda_source("sm_80")
