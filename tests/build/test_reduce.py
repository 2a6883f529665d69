"""Reductions of registers: own values, lanes, warps; and fragments re-laid out into each other. Against NumPy."""

import itertools

import numpy as np
import pytest

import graphene as gr

MMA = "mma.m16n8k16.f32.f16"
REDUCE = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


@pytest.mark.parametrize(
    ("op", "axis", "grid", "accumulate"),
    [
        *itertools.product(["add", "max"], [0, 1], [(1, 1), (2, 1), (1, 2), (2, 2)], [False, True]),
        ("mul", 1, (1, 2), True),
    ],
)
def test_rows_and_columns_across_lanes_and_warps(op, axis, grid, accumulate):
    M, N = 32 * grid[0], 16 * grid[1]
    kept = (1, N) if axis == 0 else (M, 1)
    with gr.Kernel("k") as kernel:
        X, S, Y = (
            gr.input("X", [M, N], gr.fp32),
            gr.input("S", list(kept), gr.fp32),
            gr.output("Y", list(kept), gr.fp32),
        )
        gr.blocks(1)
        warps = gr.threads(32 * grid[0] * grid[1]).tile(32).reshape(0, gr.Layout(grid))
        x = gr.fragment("x", [M, N], gr.fp32, gr.atom(MMA).c, on=warps)
        y = x.reduced(axis, "y")
        gr.move(x, X, atom="ld.global.b32")
        gr.move(y, S, atom="ld.global.b32")
        gr.reduce(op, y, x, axis=axis, accumulate=accumulate)
        gr.move(Y, y, atom="st.global.b32")
    assert gr.parse(str(kernel)) == kernel
    rng = np.random.default_rng(1)
    x = rng.integers(1, 3, (M, N)).astype(np.float32) if op == "mul" else rng.integers(-9, 9, (M, N)).astype(np.float32)
    s, y = rng.integers(-9, 9, kept).astype(np.float32), np.zeros(kept, np.float32)
    kernel.simulate(x, s, y)
    want = REDUCE[op].reduce(x, axis=axis, keepdims=True)
    np.testing.assert_array_equal(y, REDUCE[op](s, want) if accumulate else want)
    assert kernel.check().ok


def test_partial_sums_per_lane_do_not_exchange():
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", [16, 32], gr.fp32), gr.output("Y", [16, 1], gr.fp32)
        on = gr.threads(32)
        x = gr.fragment("x", [16, 32], gr.fp32, gr.atom(MMA).c, on=on)
        part, total = x.reduced(1, "part", lanes=True), x.reduced(1, "total")
        assert part.shape == (16, 4)
        gr.move(x, X, atom="ld.global.b32")
        gr.init(part, 1)
        gr.reduce("add", part, x, axis=1, accumulate=True)
        gr.reduce("add", total, part, axis=1)
        gr.move(Y, total, atom="st.global.b32")
    x, y = np.arange(16 * 32, dtype=np.float32).reshape(16, 32), np.zeros((16, 1), np.float32)
    kernel.simulate(x, y)
    np.testing.assert_array_equal(y, x.sum(1, keepdims=True) + 4)
    assert kernel.cuda_source("sm_80").count("shfl.sync") == 4  # two rows a thread, two exchanges each, once


@pytest.mark.parametrize("threads", [2, 4, 8, 16, 32, 64, 256])
@pytest.mark.parametrize("op", ["add", "max"])
def test_allreduce(threads, op):
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", [256], gr.fp32), gr.output("Y", [256], gr.fp32)
        everyone = gr.threads(256)
        (t,) = everyone.indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, X[t])
        groups = everyone.tile(threads)
        gr.allreduce(op, r, on=groups[groups.indices()[0]] if threads < 256 else everyone)
        gr.move(Y[t], r)
    x, y = np.random.default_rng(2).integers(-99, 99, 256).astype(np.float32), np.zeros(256, np.float32)
    kernel.simulate(x, y)
    want = REDUCE[op].reduce(x.reshape(-1, threads), axis=1, keepdims=True)
    np.testing.assert_array_equal(y.reshape(-1, threads), np.broadcast_to(want, (256 // threads, threads)))


@pytest.mark.parametrize("op", ["add", "max"])
@pytest.mark.parametrize(
    ("threads", "rows"), [(64, 1), (96, 1), (128, 3), (160, 2), (256, 1), (256, 2), (512, 1), (1024, 1)]
)
def test_rows_over_any_number_of_warps(threads, rows, op):
    width = 2 * threads + 5  # ragged
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", [rows, width], gr.fp32), gr.output("Y", [rows, 1], gr.fp32)
        everyone = gr.threads(threads * rows)
        tv = gr.tv(gr.Layout((threads, rows), (rows, 1)), gr.Layout(3, threads * rows))
        x = gr.fragment("x", [rows, width], gr.fp32, tv, on=everyone)
        y = x.reduced(1, "y")
        gr.move(x, X, atom="ld.global.b32")
        x[:] = gr.where(x.valid(), x, 0 if op == "add" else -gr.inf)
        gr.reduce(op, y, x, axis=1)
        gr.move(Y, y, atom="st.global.b32")
    x = np.random.default_rng(4).integers(-99, -9, (rows, width)).astype(np.float32)
    y = np.zeros((rows, 1), np.float32)
    kernel.simulate(x, y)
    np.testing.assert_array_equal(y, REDUCE[op].reduce(x, axis=1, keepdims=True))
    assert kernel.check().ok
    source = kernel.cuda_source("sm_80")
    parts = threads // 32
    many = parts > 4 and parts & (parts - 1) == 0  # read one by each lane and exchanged
    assert source.count("shfl.sync") == 5 + (parts.bit_length() - 1 if many else 0)
    assert source.count("__syncthreads") == 1  # nothing is written behind it


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("threads", [64, 256])
def test_parts_in_a_loop_are_written_when_all_have_read_them(threads, registers):
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", [3, threads], gr.fp32), gr.output("Y", [3], gr.fp32)
        everyone = gr.threads(threads)
        (t,) = everyone.indices()
        x = gr.fragment("x", [threads], gr.fp32, gr.tv(gr.Layout(threads), gr.Layout(1, 0)), on=everyone)
        y = x.reduced(0, "y")
        for i in gr.loop("i", 3):
            gr.move(x, X.tile([1, None])[i, 0][0, :], atom="ld.global.b32")
            if registers:
                gr.move(y.values[0], x.values[0])
                gr.allreduce("add", y.values, on=everyone)
            else:
                gr.reduce("add", y, x, axis=0)
            with gr.if_(t == 0):
                gr.move(Y.tile([1])[i][0], y.values[0])
    x, y = np.random.default_rng(5).integers(-9, 9, (3, threads)).astype(np.float32), np.zeros(3, np.float32)
    for seed in range(4):
        kernel.simulate(x, y, seed=seed)
        np.testing.assert_array_equal(y, x.sum(1))
    barriers = [s for s in kernel.syncs() if "barrier" in s.text]
    assert len(barriers) == 2
    for s in barriers:
        with pytest.raises(gr.SimulationError, match="SIM_RACE"):
            kernel.simulate(x, y, skip=[s.id])


def test_private_registers():
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", [3, 4, 5], gr.fp32), gr.output("Y", [3, 5], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, y = gr.alloc("x", [3, 4, 5], gr.fp32, gr.RF), gr.alloc("y", [3, 5], gr.fp32, gr.RF)
        for i in itertools.product(range(3), range(4), range(5)):
            gr.move(x[i], X[i])
        gr.reduce("max", y, x, axis=1)
        for i in itertools.product(range(3), range(5)):
            gr.move(Y[i], y[i])
    x, y = np.random.default_rng(3).standard_normal((3, 4, 5)).astype(np.float32), np.zeros((3, 5), np.float32)
    kernel.simulate(x, y)
    np.testing.assert_array_equal(y, x.max(1))


def test_a_reduction_can_be_decomposed_by_hand():
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", [4], gr.fp32), gr.output("Y", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, s = gr.alloc("x", [4], gr.fp32, gr.RF), gr.alloc("s", [], gr.fp32, gr.RF)
        for i in range(4):
            gr.move(x[i], X[i])
        with gr.reduce("add", s, x, axis=0):
            gr.init(s, 0)
            for i in (3, 1, 0):  # an element is missing
                gr.binary("add", s, s, x[i])
        gr.move(Y[0], s)
    result = kernel.check()
    assert not result.ok
    assert "CHECK_PROMISE" in str(result.errors[0])


# ---- re-layouts


def relaid(source, target, dtype=gr.fp32, on_threads=32):
    shape = [32, 16]
    bits = 16 if dtype == gr.fp16 else 32
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", shape, dtype), gr.output("Y", shape, dtype)
        gr.blocks(1)
        on = gr.threads(on_threads)
        on = on if on_threads == 32 else on.tile(32).reshape(0, gr.Layout((2, 1)))
        a, b = gr.fragment("a", shape, dtype, source, on=on), gr.fragment("b", shape, dtype, target, on=on)
        gr.move(a, X, atom=f"ld.global.b{bits}")
        gr.move(b, a)
        gr.move(Y, b, atom=f"st.global.b{bits}")
    x = np.arange(512).reshape(32, 16).astype(np.float16 if bits == 16 else np.float32)
    y = np.zeros_like(x)
    assert gr.parse(str(kernel)) == kernel
    kernel.simulate(x, y)
    np.testing.assert_array_equal(y, x)
    assert kernel.check().ok
    return kernel.cuda_source("sm_80")


def test_same_owners_move_registers_only():
    c = gr.atom(MMA).c
    source = relaid(c, c)
    assert "shfl" not in source
    assert "__shared__" not in source


def test_owners_in_one_warp_exchange_lanes():
    rows = gr.tv(gr.Layout(32, 1), gr.Layout(16, 32))  # a row a lane
    shifted = gr.tv(gr.Layout((16, 2), (2, 1)), gr.Layout(16, 32))  # the rows in another order
    source = relaid(rows, shifted)
    assert "shfl.sync.idx" in source
    assert "__shared__" not in source


@pytest.mark.parametrize("dtype", [gr.fp16, gr.fp32])
def test_the_rest_goes_through_shared_memory(dtype):
    rows, columns = gr.tv(gr.Layout(32, 1), gr.Layout(16, 32)), gr.tv(gr.Layout((16, 2), (32, 16)), gr.Layout(16, 1))
    assert "__shared__" in relaid(rows, columns, dtype)


def test_warps_meet_in_shared_memory():
    split = gr.tv(gr.Layout(64, 1), gr.Layout(8, 64))
    assert "__shared__" in relaid(gr.atom(MMA).c, split, on_threads=64)


def test_refusals():
    with gr.Kernel("k"):
        on = gr.threads(32)
        x = gr.fragment("x", [16, 16], gr.fp32, gr.atom(MMA).c, on=on)
        other = gr.fragment("other", [16, 16], gr.fp16, gr.atom(MMA).c, on=on)
        private = gr.alloc("private", [16], gr.fp32, gr.RF)
        with pytest.raises(gr.LayoutError, match="REDUCE_FRAGMENT"):
            x.reduced(2, "r")
        with pytest.raises(gr.LayoutError, match="REDUCE_FRAGMENT"):
            private.reduced(0, "r")
        with pytest.raises(gr.LayoutError, match="REDUCE_FRAGMENT"):
            gr.reduce("add", private, x, axis=1)
        with pytest.raises(gr.LayoutError, match="RELAYOUT"):
            gr.move(x, other)
        with pytest.raises(gr.LayoutError, match="REDUCE_FRAGMENT"):
            gr.allreduce("add", x, on=on)
        with pytest.raises(gr.VerifyError, match=r"VERIFY_OPERATION[^!]*want: add, mul, max, min[^!]*got: sub"):
            gr.allreduce("sub", gr.alloc("r", [], gr.fp32, gr.RF), on=on)
        with pytest.raises(gr.LayoutError, match=r"not tiled together[^!]*want: tiles of at least 32 threads"):
            gr.allreduce("add", gr.alloc("s", [], gr.fp32, gr.RF), on=on.tile(4))
        gr.init(x, 0)
