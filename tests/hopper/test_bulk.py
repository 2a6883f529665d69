"""Copies and reductions of neighbouring bytes by an agent, without a tensor map: values, mistakes, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr


def row_copy(n: int, dtype: gr.DType = gr.fp16, stages: int = 2) -> gr.Kernel:
    """y = x, row by row through shared memory; one thread issues all copies, in and out."""
    m = gr.sym("M")
    with gr.Kernel("row_copy", means=lambda x: x) as kernel:
        x = gr.input("x", gr.row_major(m, n), dtype, align_bytes=16)
        y = gr.output("y", gr.row_major(m, n), dtype, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        s = gr.alloc("s", [n], dtype, gr.SH, stages=stages)
        full = gr.mbarrier("full", stages, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            put, get = gr.ring("put", stages), gr.ring("get", stages)

            def start(i: Any) -> None:
                with gr.if_(i < m):
                    full[put.index].arrive(expect=[s[put.index]])
                    gr.move(s[put.index], x[i, :], atom="bulk.load", done=full[put.index])
                    put.advance()

            for i in range(stages - 1):
                start(i)
            for i in gr.loop("i", m):
                full[get.index].wait(get.phase)
                gr.move(y[i, :], s[get.index], atom="bulk.store")
                gr.commit("bulk.store")
                get.advance()
                gr.wait("bulk.store", pending=1)  # the store before has read its stage, which is filled next
                start(i + stages - 1)
            gr.wait("bulk.store", pending=0)
    return kernel


@pytest.mark.parametrize(("n", "dtype"), [(8, gr.fp16), (1000, gr.fp16), (48, gr.i8), (6, gr.fp64)], ids=str)
def test_rows_are_copied(n: int, dtype: gr.DType) -> None:
    kernel = row_copy(n, dtype)
    x = np.random.default_rng(0).integers(-100, 100, (7, n)).astype(dtype.array_name)
    y = np.zeros_like(x)
    for seed in range(2):
        kernel.simulate(x, y, seed=seed)
        assert np.array_equal(x, y)
    assert kernel.compile("sm_90a").spill_bytes == 0
    assert f"[%0], [%1], {n * dtype.bits // 8}, [%2];" in kernel.cuda_source("sm_90a")


def test_it_keeps_its_promise_and_needs_its_synchronisation() -> None:
    kernel = row_copy(64)
    assert kernel.check().ok
    assert [str(m) for m in kernel.mutants(M=7) if m.hazard is None] == []


def row_sums(combine: str, dtype: gr.DType, fence: bool = True) -> gr.Kernel:
    """y combined with each of 8 rows of x: every block stores its row to shared memory and lets an agent add it."""
    with gr.Kernel("row_sums") as kernel:
        x = gr.input("x", gr.row_major(8, 64), dtype, align_bytes=16)
        y = gr.inout("y", [64], dtype, align_bytes=16)
        blocks, warp = gr.blocks(8), gr.threads(32)
        (b,), (t,) = blocks.indices(), warp.indices()
        s, a = gr.alloc("s", [64], dtype, gr.SH), gr.alloc("a", [2], dtype, gr.RF)
        gr.move(a, x[b, :].tile([2])[t])
        gr.move(s.tile([2])[t], a)
        if fence:
            gr.fence("async.shared")
        gr.barrier()
        with gr.only(warp.elect()):
            gr.move(y, s, atom="bulk.store", combine=combine)
            gr.commit("bulk.store")
            gr.wait("bulk.store", pending=0)
    return kernel


@pytest.mark.parametrize(
    ("combine", "dtype"),
    [("add", gr.fp16), ("add", gr.fp32), ("max", gr.fp16), ("min", gr.i32), ("add", gr.u64), ("xor", gr.u32)],
    ids=str,
)
def test_blocks_combine_with_global_memory(combine: str, dtype: gr.DType) -> None:
    kernel = row_sums(combine, dtype)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 50, shape).astype(dtype.array_name) for shape in ((8, 64), 64))
    ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum, "xor": np.bitwise_xor}[combine]
    want = ufunc(ufunc.reduce(x, axis=0), y).astype(y.dtype)
    kernel.simulate(x, y, seed=1)
    assert np.array_equal(y, want)
    assert kernel.compile("sm_90a").spill_bytes == 0


def test_boxes_combine_too() -> None:
    with gr.Kernel("boxes") as kernel:
        x = gr.input("x", gr.row_major(4, 64), gr.fp32, align_bytes=16)
        y = gr.inout("y", gr.row_major(4, 64), gr.fp32, align_bytes=16)
        blocks, warp = gr.blocks(3), gr.threads(32)
        s = gr.alloc("s", [4, 64], gr.fp32, gr.SH)
        gr.move(s, x, on=warp, atom=("ld.global.v4.b32", "st.shared.v4.b32"))
        gr.fence("async.shared")
        gr.barrier()
        with gr.only(warp.elect()):
            gr.move(y, s, atom="tma.store", combine="add")
            gr.commit("tma.store")
            gr.wait("tma.store", pending=0)
        assert blocks.size == 3
    x, y = np.arange(256, dtype=np.float32).reshape(4, 64), np.ones((4, 64), np.float32)
    kernel.simulate(x, y)
    assert np.array_equal(y, 3 * x + 1)


def test_a_move_that_combines_and_is_cut_into_several_boxes_keeps_its_promise() -> None:
    for op, dtype, means in (("add", gr.fp32, lambda x, y: y + x), ("max", gr.i32, lambda x, y: np.maximum(x, y))):
        with gr.Kernel("long", means=means) as kernel:
            x = gr.input("x", gr.row_major(512, 8), dtype, align_bytes=16)
            y = gr.inout("y", gr.row_major(512, 8), dtype, align_bytes=16)
            blocks, warp = gr.blocks(1), gr.threads(32)
            s = gr.alloc("s", [512, 8], dtype, gr.SH)
            gr.move(s, x, on=warp, atom=("ld.global.v4.b32", "st.shared.v4.b32"))
            gr.fence("async.shared")
            gr.barrier()
            with gr.only(warp.elect()):
                gr.move(y, s, atom="tma.store", combine=op)
                gr.commit("tma.store")
                gr.wait("tma.store", pending=0)
            assert blocks.size == 1
        result = kernel.check()
        assert result.ok, str(result)


def plainly_written(kernel: str) -> gr.Kernel:
    with gr.Kernel(kernel) as k:
        y = gr.inout("y", [64], gr.fp32, align_bytes=16)
        blocks, warp = gr.blocks(2), gr.threads(32)
        (b,), (t,) = blocks.indices(), warp.indices()
        s, a = gr.alloc("s", [64], gr.fp32, gr.SH), gr.alloc("a", [2], gr.fp32, gr.RF)
        gr.init(a[0], 1)
        gr.init(a[1], 2)
        gr.move(s.tile([2])[t], a)
        gr.fence("async.shared")
        gr.barrier()
        with gr.only(warp.elect()):
            with gr.if_(b == 0):
                gr.move(y, s, atom="bulk.store")
            with gr.else_():
                gr.move(y, s, atom="bulk.store", combine="add")
            gr.commit("bulk.store")
            gr.wait("bulk.store", pending=0)
    return k


MISTAKES: list[tuple[Callable[[], gr.Kernel], str]] = [
    (lambda: row_sums("add", gr.fp32, fence=False), "SIM_PROXY"),
    (lambda: plainly_written("one_block_adds_where_another_writes"), "SIM_RACE"),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_has_its_code(number: int) -> None:
    make, code = MISTAKES[number]
    args = [np.ones(64, np.float32)] if number else [np.ones((8, 64), np.float32), np.ones(64, np.float32)]
    with pytest.raises(gr.SimulationError) as caught:
        make().simulate(*args)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("n", "swizzle", "message"),
    [
        (12, False, "dst bytes: want a multiple of 16, got 24"),
        (512, True, "a copy of neighbours that the swizzle moves apart"),
    ],
)
def test_refused(n: int, swizzle: bool, message: str) -> None:
    with gr.Kernel("refused") as kernel:
        x = gr.input("x", [n], gr.fp16, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        s = gr.alloc("s", [n], gr.fp16, gr.SH, swizzle=gr.swizzle(64, gr.fp16) if swizzle else None)
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s])
            gr.move(s, x, atom="bulk.load", done=full[0])
            full[0].wait(0)
    with pytest.raises(gr.GrapheneError, match=message):
        kernel.lowered("sm_90a")
