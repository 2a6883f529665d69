"""Sorting, the k first, segmented scans and rows by an index tensor, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr

RNG = np.random.default_rng(3)


def recorded(kernel: gr.Kernel) -> gr.Kernel:
    """The kernel, which its text and its JSON give again."""
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())
    assert kernel.cuda_source("sm_80")
    return kernel


def registers(t: gr.Tensor) -> Any:
    """A thread's own row of a matrix, in registers."""
    r = gr.alloc(f"r{t.name}", [int(t.shape[0])], t.dtype, gr.RF)
    for i in range(int(t.shape[0])):
        gr.move(r[i], t[i])
    return r


def group_of(block: gr.ThreadTensor, threads: int) -> gr.ThreadTensor:
    """All threads of the block, or the executing thread's group of so many."""
    groups = block if threads >= 32 else block.tile(threads)
    return block if threads >= 32 else groups[groups.indices()[0]]


@pytest.mark.parametrize(("threads", "each", "descending"), [(32, 1, True), (8, 2, False), (64, 2, True)])
def test_sort(threads: int, each: int, descending: bool) -> None:
    block = max(threads, 32)
    with gr.Kernel("sorted") as kernel:
        x, y = gr.inout("x", [block, each], gr.fp32), gr.inout("y", [block, each], gr.i32)
        gr.blocks(1)
        group = gr.threads(block)
        (t,) = group.indices()
        keys, places = registers(x[t, :]), registers(y[t, :])
        gr.sort(keys, on=group_of(group, threads), values=[places], descending=descending)
        for i in range(each):
            gr.move(x[t, i], keys[i])
            gr.move(y[t, i], places[i])
    x = RNG.integers(-20, 20, block * each).astype(np.float32)
    x[1] = np.nan
    y = np.arange(block * each, dtype=np.int32)
    before = x.copy()
    recorded(kernel)(x.reshape(block, each), y.reshape(block, each))
    for i in range(0, x.size, threads * each):
        own = slice(i, i + threads * each)
        order = np.sort(-before[own] if descending else before[own])  # a NaN is last
        assert np.array_equal(x[own], -order if descending else order, equal_nan=True)
        assert sorted(y[own]) == list(range(own.start, own.stop))
    assert np.array_equal(before[y], x, equal_nan=True)


@pytest.mark.parametrize(("threads", "each", "k", "largest"), [(16, 1, 5, True), (96, 3, 32, False)])
def test_the_k_first(threads: int, each: int, k: int, largest: bool) -> None:
    block = max(threads, 32)
    with gr.Kernel("first") as kernel:
        x, y = gr.input("x", [block, each], gr.fp32), gr.inout("y", [block], gr.fp32)
        z = gr.inout("z", [block], gr.i32)
        gr.blocks(1)
        group = gr.threads(block)
        (t,) = group.indices()
        keys, places = registers(x[t, :]), gr.alloc("places", [each], gr.i32, gr.RF)
        for i in range(each):
            places[i] = t * each + i
        best, at = gr.top_k(keys, k, on=group_of(group, threads), values=[places], largest=largest)
        with gr.if_(t % threads < k):
            y[t], z[t] = best, at
    x = RNG.standard_normal((block, each)).astype(np.float32)
    y, z = np.zeros(block, np.float32), np.zeros(block, np.int32)
    recorded(kernel)(x, y, z)
    for i in range(0, block, threads):
        order = np.sort(x[i : i + threads].ravel())
        assert np.array_equal(y[i : i + k], (order[::-1] if largest else order)[:k])
        assert np.array_equal(x.ravel()[z[i : i + k]], y[i : i + k])


@pytest.mark.parametrize(("op", "threads", "exclusive"), [("add", 8, True), ("max", 64, False), ("add", 96, True)])
def test_segmented_scan(op: str, threads: int, exclusive: bool) -> None:
    block = max(threads, 32)
    with gr.Kernel("segments") as kernel:
        y, x = gr.inout("y", [block], gr.i32), gr.input("x", [block], gr.i32)
        gr.blocks(1)
        group = gr.threads(block)
        (t,) = group.indices()
        r, begins = gr.load(y[t]), gr.load(x[t])
        gr.scan(op, r, on=group_of(group, threads), exclusive=exclusive, starts=begins if exclusive else begins > 0)
        y[t] = r
    values, begins = RNG.integers(-9, 9, block).astype(np.int32), (RNG.random(block) < 0.15).astype(np.int32)
    got = values.copy()
    recorded(kernel)(got, begins)
    nothing = 0 if op == "add" else -(2**31)
    want, so_far = [], nothing
    for i, (v, b) in enumerate(zip(values.tolist(), begins.tolist(), strict=True)):
        so_far = nothing if b or i % threads == 0 else so_far
        after = so_far + v if op == "add" else max(so_far, v)
        want.append(so_far if exclusive else after)
        so_far = after
    assert got.tolist() == want


@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize(("threads", "exclusive"), [(8, True), (32, False), (96, True), (96, False)])
def test_scan_by_a_function_that_does_not_commute(threads: int, exclusive: bool, segmented: bool) -> None:
    """The last number that is not 0."""
    block = max(threads, 32)
    with gr.Kernel("filled") as kernel:
        y, x = gr.inout("y", [block], gr.i32), gr.input("x", [block], gr.i32)
        gr.blocks(1)
        group = gr.threads(block)
        (t,) = group.indices()
        given = gr.load(y[t])
        more = {"starts": gr.load(x[t])} if segmented else {}
        if exclusive:
            more["identity"] = -7
        r = gr.scan(lambda a, b: gr.where(b != 0, b, a), given + 0, on=group_of(group, threads),
                    exclusive=exclusive, **more)  # fmt: skip
        y[t] = r
    values, begins = RNG.integers(-2, 3, block).astype(np.int32), (RNG.random(block) < 0.15).astype(np.int32)
    got = values.copy()
    recorded(kernel)(got, begins)
    want, so_far = [], -7
    for i, (v, b) in enumerate(zip(values.tolist(), begins.tolist(), strict=True)):
        first = (segmented and b) or i % threads == 0
        so_far = -7 if first else so_far
        after = v if first else v or so_far
        want.append(so_far if exclusive else after)
        so_far = after
    assert got.tolist() == want


def test_scans_say_what_they_need() -> None:
    with gr.Kernel("k"):
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.let("r", t, gr.i32)
        with pytest.raises(gr.VerifyError, match="needs what the first thread gets") as e:
            gr.scan(lambda a, b: a + b, r, on=warp, exclusive=True)
        assert e.value.code == "VERIFY_OPERANDS"
        with pytest.raises(gr.VerifyError, match="identity= is for scans by a function"):
            gr.scan("add", r, on=warp, identity=0)
        value, place = gr.allarg("max", r * 2, t, on=warp)
        assert (value.dtype, place.dtype) == (gr.i32, gr.i32)
        for wrong in (lambda: (r * 2)[0], lambda: list(r + 1)):
            with pytest.raises(gr.LayoutError, match="an expression has no elements") as f:
                wrong()
            assert f.value.code == "POINTWISE_TYPE"


def test_barriers_of_a_sort_are_needed() -> None:
    with gr.Kernel("sorted") as kernel:
        x = gr.inout("x", [64], gr.i32)
        gr.blocks(1)
        group = gr.threads(64)
        (t,) = group.indices()
        r = gr.load(x[t])
        gr.sort(r, on=group)
        x[t] = r
    barriers = [s.id for s in kernel.syncs()]
    assert len(barriers) == 2
    with pytest.raises(gr.SimulationError) as caught:
        kernel.simulate(np.arange(64, dtype=np.int32)[::-1].copy(), skip=barriers[:1])
    assert caught.value.code in ("SIM_RACE", "SIM_UNDEFINED")


def sorted_rows(descending: bool) -> gr.Kernel:
    with gr.Kernel("sorted_rows", means=lambda x: np.sort(x, axis=1)) as kernel:
        rows = gr.sym("rows")
        x, y = gr.input("x", [rows, 64], gr.fp32), gr.output("y", [rows, 64], gr.fp32)
        (b,), group = gr.blocks(rows).indices(), gr.threads(64)
        (t,) = group.indices()
        r = gr.load(x[b, t])
        gr.sort(r, on=group, descending=descending)
        y[b, t] = r
    return kernel


def test_a_promise_of_order_is_judged() -> None:
    x = RNG.standard_normal((2, 64)).astype(np.float32)
    assert sorted_rows(descending=False).check(x, np.zeros_like(x)).ok
    assert not sorted_rows(descending=True).check(x, np.zeros_like(x)).ok
    assert next(m.hazard for m in sorted_rows(descending=False).mutants(rows=2)) == "SIM_RACE"


def test_rows_by_an_index_tensor() -> None:
    with gr.Kernel("moved") as kernel:
        n, many = gr.sym("n many")
        x, rows = gr.input("x", [n, 8], gr.fp32), gr.input("rows", [many], gr.i32)
        y, z = gr.output("y", [many, 8], gr.fp32), gr.inout("z", [n, 8], gr.fp32)
        (b,), (t,) = gr.blocks(many).indices(), gr.threads(8).indices()
        assert gr.gathered(x, rows).shape[1] == 8
        r = gr.load(gr.gathered(x, rows)[b, t])
        y[b, t] = r
        gr.move(gr.gathered(z, rows)[b][t], r)
    x, rows = RNG.standard_normal((9, 8)).astype(np.float32), RNG.permutation(9)[:5].astype(np.int32)
    y, z = np.zeros((5, 8), np.float32), np.zeros((9, 8), np.float32)
    recorded(kernel)(x, rows, y, z)
    assert np.array_equal(y, x[rows])
    assert np.array_equal(z[rows], x[rows])
    with pytest.raises(gr.SimulationError) as caught:
        kernel(x, np.asarray([0, 9, 2, 3, 4], np.int32), y, z)
    assert caught.value.code == "SIM_OUT_OF_BOUNDS"
    with pytest.raises(gr.SimulationError) as caught:  # two blocks write one row
        kernel(x, np.zeros(5, np.int32), y, z)
    assert caught.value.code == "SIM_RACE"


def test_pages() -> None:
    with gr.Kernel("unpaged") as kernel:
        pages, most, batch = gr.sym("pages most batch")
        pool = gr.input("pool", [pages, 16, 2, 64], gr.fp16, align_bytes=16)
        table = gr.input("table", [batch, most], gr.i32)
        y = gr.output("y", [batch, most * 16, 64], gr.fp16, align_bytes=16)
        z = gr.output("z", [batch, most, 64], gr.fp16, align_bytes=16)
        (b, j), threads = gr.blocks([batch, most]).indices(), gr.threads(128)
        (t,) = threads.indices()
        rows = gr.paged(pool[:, :, 1, :], table[b, :])
        assert "pages of 16 rows" in repr(rows)
        i = j * 16 + t // 8
        gr.move(y[b, i, :].tile([8])[t % 8], gr.load(rows[i, :].tile([8])[t % 8]))
        with gr.if_(t < 64):
            gr.move(z[b, j, t], gr.load(rows.page(j)[0, t]))
    pool, table = RNG.standard_normal((7, 16, 2, 64)).astype(np.float16), np.asarray([[5, 0], [2, 6]], np.int32)
    y, z = np.zeros((2, 32, 64), np.float16), np.zeros((2, 2, 64), np.float16)
    recorded(kernel)(pool, table, y, z)
    assert np.array_equal(y, pool[table][:, :, :, 1].reshape(2, 32, 64))
    assert np.array_equal(z, pool[table][:, :, 0, 1])


def test_what_they_refuse() -> None:
    def codes(body: Any) -> str:
        def record() -> None:
            with gr.Kernel("k"):
                x, rows = gr.input("x", [8, 8], gr.fp32), gr.input("rows", [8], gr.i32)
                gr.blocks(1)
                group = gr.threads(96)
                body(gr.alloc("r", [], gr.fp32, gr.RF), group, x, rows)

        with pytest.raises(gr.GrapheneError) as caught:
            record()
        return caught.value.code

    assert codes(lambda r, on, x, rows: gr.sort(r, on=on)) == "SPEC_GROUP"
    assert codes(lambda r, on, x, rows: gr.top_k(r, 33, on=on)) == "VERIFY_OPERANDS"
    assert codes(lambda r, on, x, rows: gr.sort(x, on=on)) == "REDUCE_FRAGMENT"
    two = lambda: gr.alloc("two", [2], gr.i32, gr.RF)  # noqa: E731
    assert codes(lambda r, on, x, rows: gr.top_k(r, 2, on=on, values=[two()])) == "POINTWISE_SHAPE"
    assert codes(lambda r, on, x, rows: gr.gathered(x, x[0, :])) == "TENSOR_INDEX"
    assert codes(lambda r, on, x, rows: gr.paged(rows, rows)) == "TENSOR_RANK"
    assert codes(lambda r, on, x, rows: gr.gathered(x, rows)[0:2]) == "TENSOR_INDEX"
    assert codes(lambda r, on, x, rows: gr.gathered(x, rows)[0, 1, 2]) == "TENSOR_INDEX"


def test_a_condition_of_integers_in_a_predicate_register() -> None:
    with gr.Kernel("odd") as kernel:
        y = gr.output("y", [32], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        y[t] = gr.where(gr.let("odd", t % 2 == 1, gr.pred), 1, 0)
    y = np.zeros(32, np.int32)
    recorded(kernel)(y)
    assert np.array_equal(y, np.arange(32) % 2)
