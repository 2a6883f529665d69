"""Hazards that verified kernels do not have: kernels that are lowered without the verifier's rules, or run without the
predicates of their partial tiles. The simulator does not rely on either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernels import vector_copy

import graphene as gr
from graphene import _core

Body = Callable[[Any, Any], None]
SEEDS = range(8)


def build(body: Body, threads: int = 64) -> gr.Kernel:
    with gr.Kernel("control") as kernel:
        d = gr.inout("D", [threads], gr.fp32)
        gr.blocks(1)
        body(gr.threads(threads), d)
    return kernel


def run(kernel: gr.Kernel, args: list[np.ndarray], seed: int = 0, **options: Any) -> None:
    program = _core.lower_unverified(kernel.ir, "sm_80")
    _core.simulate(program, tuple(args), {}, seed, **options)


def found(kernel: gr.Kernel, args: list[np.ndarray], code: str, **options: Any) -> str:
    """The message of the hazard that every order of threads finds."""
    texts = []
    for seed in SEEDS:
        with pytest.raises(gr.SimulationError) as error:
            run(kernel, args, seed, **options)
        assert error.value.code == code
        texts.append(str(error.value))
    return texts[0]


def control(body: Body, code: str) -> str:
    return found(build(body), [np.zeros(64, np.float32)], code)


def half_a_warp(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    with gr.if_(t < 16):
        gr.barrier()


def every_second_lane(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    with gr.if_(t % 2 == 0):
        gr.barrier()


def one_warp_alone(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    with gr.if_(t < 32):
        gr.barrier()


def a_part_exits(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    gr.exit_if(t < 8)


def a_warp_exits_before_a_barrier(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    gr.exit_if(t < 32)
    gr.barrier()


def half_a_shuffle(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    r = gr.alloc("r", [], gr.fp32, gr.RF)
    gr.init(r, 1)
    with gr.if_(t % 32 < 16):
        gr.shfl(r, r, "bfly", 1, on=threads.tile(32)[t // 32])


def different_numbers_of_barriers(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    with gr.loop("i", t // 32 + 1):
        gr.barrier()


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        (half_a_warp, "SIM_DIVERGENT_COLLECTIVE", "missing lanes: 16-31"),
        (every_second_lane, "SIM_DIVERGENT_COLLECTIVE", "missing lanes: 1, 3, 5, 7"),
        (a_part_exits, "SIM_DIVERGENT_COLLECTIVE", "exit_if holds for a part of the block"),
        (half_a_shuffle, "SIM_DIVERGENT_COLLECTIVE", "missing lanes: 16-31"),
        (one_warp_alone, "SIM_DEADLOCK", "warp 1: has ended"),
        (a_warp_exits_before_a_barrier, "SIM_DEADLOCK", "warp 0: has ended"),
        (different_numbers_of_barriers, "SIM_DEADLOCK", "warp 1: waits at the barrier of the block, test_control.py:"),
    ],
)
def test_control_hazards(body: Body, code: str, part: str) -> None:
    assert part in control(body, code)
    with pytest.raises(gr.VerifyError):
        build(body).lowered()  # the verifier says so before


def exchange(threads: Any, d: Any) -> None:
    """Each half of a warp writes, waits for the other half in a branch of its own, and reads what that one wrote."""
    (t,) = threads.indices()
    warp = threads.tile(32)[t // 32]
    s = gr.alloc("s", [64], gr.fp32, gr.SH)
    r = gr.alloc("r", [], gr.fp32, gr.RF)
    gr.move(r, d[t])
    gr.move(s[t], r)
    with gr.if_(t % 32 < 16):
        gr.barrier(on=warp)
        gr.move(r, s[t + 16])
    with gr.else_():
        gr.barrier(on=warp)
        gr.move(r, s[t - 16])
    gr.move(d[t], r)


def nested(threads: Any, d: Any) -> None:
    """Quarters of a warp wait in four places, inside of a loop."""
    (t,) = threads.indices()
    warp = threads.tile(32)[t // 32]
    s = gr.alloc("s", [64], gr.fp32, gr.SH)
    r = gr.alloc("r", [], gr.fp32, gr.RF)

    def step() -> None:
        gr.barrier(on=warp)

    with gr.loop("i", 3):
        gr.move(r, d[t])
        gr.move(s[t], r)
        with gr.if_(t % 32 < 16):
            with gr.if_(t % 16 < 8):
                step()
            with gr.else_():
                step()
        with gr.else_(), gr.if_(t % 16 < 8):
            step()
        with gr.if_(t % 32 >= 24):
            step()
        gr.barrier(on=warp)
        gr.move(r, s[t ^ 31])
        gr.move(d[t], r)
        gr.barrier(on=warp)


def loops_of_different_length(threads: Any, d: Any) -> None:
    """Lane t waits t % 2 + 1 times in a loop; the even lanes' second time is behind it."""
    (t,) = threads.indices()
    warp = threads.tile(32)[t // 32]
    with gr.loop("i", t % 2 + 1):
        gr.barrier(on=warp)
    with gr.if_(t % 2 == 0):
        gr.barrier(on=warp)
    gr.init(d[t], 7)


def test_lanes_that_wait_in_different_branches_meet() -> None:
    for seed in SEEDS:
        d = np.arange(64, dtype=np.float32)
        run(build(exchange), [d], seed)
        assert np.array_equal(d, np.arange(64) ^ 16)
        d = np.arange(64, dtype=np.float32)
        run(build(nested), [d], seed)
        assert np.array_equal(d, np.arange(64) ^ 31)
        d = np.arange(64, dtype=np.float32)
        run(build(loops_of_different_length), [d], seed)
        assert (d == 7).all()


def test_each_of_the_barriers_is_needed() -> None:
    kernel = build(exchange)
    first, second = (s.id for s in kernel.syncs())
    for skip in ([first], [second], [first, second]):
        found(kernel, [np.zeros(64, np.float32)], "SIM_RACE", skip=skip)


def lanes_that_never_come(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    with gr.if_(t % 32 < 16):
        gr.barrier(on=threads.tile(32)[t // 32])


def half_waits_twice(threads: Any, d: Any) -> None:
    (t,) = threads.indices()
    warp = threads.tile(32)[t // 32]
    with gr.if_(t % 32 < 16):
        gr.barrier(on=warp)
        gr.barrier(on=warp)
    with gr.else_():
        gr.barrier(on=warp)


def test_a_deadlock_names_what_each_piece_of_a_warp_waits_for() -> None:
    line = lanes_that_never_come.__code__.co_firstlineno + 3
    assert control(lanes_that_never_come, "SIM_DEADLOCK").splitlines()[2:] == [
        "  block: (0)",
        f"  warp 0, lanes 0-15: waits at the barrier of its lanes 0-31, test_control.py:{line}",
        f"  warp 1, lanes 0-15: waits at the barrier of its lanes 0-31, test_control.py:{line}",
        "  warp 0, lanes 16-31: has ended",
        "  warp 1, lanes 16-31: has ended",
        "  fix: every warp must arrive: a barrier stands in a branch or loop that some warps leave out",
    ]
    line = half_waits_twice.__code__.co_firstlineno + 5
    text = control(half_waits_twice, "SIM_DEADLOCK")
    assert f"warp 0, lanes 0-15: waits at the barrier of its lanes 0-31, test_control.py:{line}" in text
    assert "warp 0, lanes 16-31: has ended" in text


def ragged(width: int = 1) -> gr.Kernel:
    """Copies N elements by tiles of 64; the last tile may be a part."""
    with gr.Kernel("ragged") as kernel:
        n = gr.sym("N", multiple_of=width)
        a = gr.input("A", [n], gr.fp32, align_bytes=16)
        b = gr.output("B", [n], gr.fp32, align_bytes=16)
        (bm,) = gr.blocks(gr.ceil_div(n, 64 * width)).indices()
        (t,) = gr.threads(64).indices()
        r = gr.alloc("r", [width], gr.fp32, gr.RF)
        gr.move(r, a.tile([64 * width])[bm].tile([width])[t])
        gr.move(b.tile([64 * width])[bm].tile([width])[t], r)
    return kernel


@pytest.mark.parametrize("width", [1, 4])
def test_without_its_predicates_a_partial_tile_is_out_of_bounds(width: int) -> None:
    a, b = np.ones(100 * width, np.float32), np.zeros(100 * width, np.float32)
    run(ragged(width), [a, b])
    assert (b == 1).all()
    text = found(ragged(width), [a, b], "SIM_OUT_OF_BOUNDS", unguarded=True).splitlines()
    assert "an access outside A" in text[0]
    assert text[2:] == [
        f"  want: an element number from 0 to {100 * width - 1}",
        f"  got: {100 * width}",
        "  by thread 36 (warp 1, lane 4) of block (1)",
        "  fix: check the tile sizes and indices of this access",
    ]


def test_without_the_byte_count_a_cut_copy_is_out_of_bounds() -> None:
    from pipelines import gemm

    kernel = gemm(bm=64, bn=64)
    args = [np.ones((64, 40), np.float16), np.ones((64, 40), np.float16), np.zeros((64, 64), np.float32)]
    kernel.simulate(*args)
    assert (args[2] == 40).all()
    found(kernel, args, "SIM_OUT_OF_BOUNDS", unguarded=True)


def test_vectors_off_their_alignment() -> None:
    """A size that breaks the facts which a launch checks is found by check()."""
    with gr.Kernel("rows") as kernel:
        m, pitch = gr.sym("M", min=1), gr.sym("pitch", min=4)
        a = gr.input("A", gr.Layout((m, 4), (pitch, 1)), gr.fp32, align_bytes=16)
        b = gr.output("B", gr.row_major(m, 4), gr.fp32, align_bytes=16)
        (bm,) = gr.blocks(m).indices()
        gr.threads(1)
        r = gr.alloc("r", [4], gr.fp32, gr.RF)
        gr.move(r, a[bm, :])
        gr.move(b[bm, :], r)
    assert kernel.check(M=3, pitch=8).ok
    (error,) = kernel.check(M=3, pitch=6).errors
    assert error.code == "LAUNCH_FACT"
    assert "align(src) % 16 == 0 of ld.global.v4.b32" in error.details[0]
    assert vector_copy(gr.fp32, 4).check().ok


def test_an_index_may_be_an_expression() -> None:
    with gr.Kernel("clamped", means=lambda x, i: x[np.maximum(i, 0)]) as kernel:
        x, i = gr.input("x", [16], gr.fp32), gr.input("i", [32], gr.i32)
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        y[t] = gr.load(x[gr.index(gr.max(gr.load(i[t]), 0), 0, 15)])
    x, i = np.arange(16, dtype=np.float32), np.arange(-16, 16, dtype=np.int32)
    y = np.zeros(32, np.float32)
    kernel(x, i, y)
    np.testing.assert_array_equal(y, np.maximum(i, 0))
