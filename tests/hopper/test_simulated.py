"""Agents on the simulator: results of a copy and of a product, and every way to get their synchronisation wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_listings import gemm_sm90, tma_copy

import graphene as gr


def copied(kernel: gr.Kernel, m: int, n: int, **options: object) -> bool:
    x = (np.arange(m * n).reshape(m, n) % 2039).astype(np.float16)
    y = np.full((m, n), np.nan, np.float16)
    kernel.simulate(x, y, **options)
    return bool((x == y).all())


@pytest.mark.parametrize(("m", "n"), [(64, 64), (100, 72), (130, 648), (1, 8), (65, 1000)])
def test_copies_of_sizes_that_are_no_multiple_of_the_box(m: int, n: int) -> None:
    assert all(copied(tma_copy(), m, n, seed=seed) for seed in (0, 7))


def test_every_mutant_of_the_copy_is_reported() -> None:
    kernel = tma_copy(BM=16).with_promise(means=lambda x: x)
    result = kernel.check(M=40)
    assert result.ok, result.errors
    mutants = kernel.mutants(M=40, N=64 * 7 + 8)
    assert len(mutants) == 14
    assert [str(m) for m in mutants if m.hazard is None] == []


def message(**options: object) -> list[str]:
    with pytest.raises(gr.SimulationError) as caught:
        copied(tma_copy(BM=16), 40, 64 * 7 + 8, **options)
    return str(caught.value).splitlines()


def sync(op: str, which: int = 0) -> int:
    return [s for s in tma_copy(BM=16).syncs() if s.op == op][which].id


def test_a_read_before_its_phase_names_both_lines_and_the_barrier() -> None:
    first, store, load, read, write, fix = message(skip=[sync("wait_phase")])
    assert first.endswith("a read of a value that a copy in flight writes: s[0, 0, 0]   [SIM_RACE]")
    assert 'atom="tma.store"' in store
    assert 'atom="tma.load"' in load
    assert read.startswith("  read by a copy of thread 0 (warp 0, lane 0) of block (0), ")
    assert write.startswith("  write by a copy that completes on full[0], ")
    assert fix == "  fix: let the thread wait for the phase of full[0] that the copy completes, or learn of it"


def test_a_deadlock_says_what_each_barrier_lacks() -> None:
    text = message(skip=[sync("arrive")])
    assert text[0].endswith("the block makes no progress   [SIM_DEADLOCK]")
    assert "  full[0] is in phase 0: 0 of 1 arrivals, 2048 of 0 bytes" in text


def test_bytes_that_no_arrival_expects() -> None:
    text = message(relax=[sync("arrive")])
    assert text[0].endswith("more bytes than the phase expects: full[0]   [SIM_TRANSACTION]")
    assert text[2:5] == ["  phase: 0", "  want: 1024 bytes", "  got: 2048"]


def test_a_barrier_that_may_not_be_initialised() -> None:
    text = message(skip=[sync("barrier")])
    assert text[0].endswith("an arrival at full[0], which may not be initialised yet   [SIM_PHASE]")
    assert text[-1] == "  fix: put a barrier of all threads behind its declaration: gr.barrier()"


def test_what_threads_write_needs_a_fence_before_an_agent_reads_it() -> None:
    def kernel(fence: bool) -> gr.Kernel:
        with gr.Kernel("threads_to_agent") as k:
            y = gr.output("y", gr.row_major(8, 64), gr.fp16, align_bytes=16)
            gr.blocks(1)
            warp = gr.threads(32)
            s = gr.alloc("s", [8, 64], gr.fp16, gr.SH)
            (lane,) = warp.indices()
            for row in range(8):
                for half in range(2):
                    gr.init(s[row, half * 32 + lane], row + half)
            if fence:
                gr.fence("async.shared")
            gr.barrier()
            with gr.only(warp.elect()):
                store = gr.atom("tma.store")
                gr.move(y, s, atom=store)
                gr.commit(store)
                gr.wait(store, pending=0)
        return k

    y = np.zeros((8, 64), np.float16)
    kernel(True).simulate(y)
    assert (y == np.arange(8)[:, None] + np.repeat([0, 1], 32)).all()
    with pytest.raises(gr.SimulationError) as caught:
        kernel(False).simulate(y)
    first, *_, fix = str(caught.value).splitlines()
    assert first.endswith("a copy of what threads wrote, without a proxy fence: s[0, 0]   [SIM_PROXY]")
    assert fix == '  fix: let the threads fence before they tell of it: gr.fence("async.shared")'


def product(BN: int = 64, BK: int = 64, STAGES: int = 2) -> gr.Kernel:
    """C = A @ B.T: a producer, and one consumer of 64 rows."""
    M, N, K = gr.sym("M"), gr.sym("N", multiple_of=8), gr.sym("K", multiple_of=8, min=8)
    tma, wgmma = gr.atom("tma.load"), gr.atom(f"wgmma.m64n{BN}k16.f32.f16")
    with gr.Kernel("product", means=lambda A, B: A @ B.T) as kernel:
        a = gr.input("A", gr.row_major(M, K), gr.fp16, align_bytes=16)
        b = gr.input("B", gr.row_major(N, K), gr.fp16, align_bytes=16)
        c = gr.output("C", gr.row_major(M, N), gr.fp32, align_bytes=16)
        kt = gr.ceil_div(K, BK)
        blocks, groups = gr.blocks(gr.ceil_div(M, 64), gr.ceil_div(N, BN)), gr.threads(256).tile(128)
        (m, n), producer, mine = blocks.indices(), groups[0], groups[1]
        s_a = gr.alloc("sA", [64, BK], gr.fp16, gr.SH, stages=STAGES, swizzle=gr.swizzle(BK, gr.fp16))
        s_b = gr.alloc("sB", [BN, BK], gr.fp16, gr.SH, stages=STAGES, swizzle=gr.swizzle(BK, gr.fp16))
        full, empty = (gr.mbarrier(name, STAGES, arrivals=1) for name in ("full", "empty"))
        gr.barrier()
        with gr.only(producer.elect()):
            put = gr.ring("put", STAGES, phase=1)
            for k in gr.loop("k", kt):
                i = put.index
                empty[i].wait(put.phase)
                full[i].arrive(expect=[s_a[i], s_b[i]])
                gr.move(s_a[i], a.tile([64, BK])[m, k], atom=tma, done=full[i])
                gr.move(s_b[i], b.tile([BN, BK])[n, k], atom=tma, done=full[i])
                put.advance()
        with gr.only(mine):
            get, free = gr.ring("get", STAGES), gr.ring("free", STAGES)
            acc = gr.fragment("acc", [64, BN], gr.fp32, wgmma.c, on=mine)
            rows, columns = a.tile([64, None])[m, 0], b.tile([BN, None])[n, 0]
            with gr.matmul(acc, rows, columns.T, on=mine, accumulate=False):
                for k in gr.loop("k", kt):
                    full[get.index].wait(get.phase)
                    gr.fence(wgmma)
                    gr.matmul(acc, s_a[get.index], s_b[get.index].T, on=mine, atom=wgmma, accumulate=k > 0)
                    gr.commit(wgmma)
                    get.advance()
                    gr.wait(wgmma, pending=1)
                    with gr.if_(k > 0):
                        with gr.only(mine.elect()):
                            empty[free.index].arrive()
                        free.advance()
                gr.wait(wgmma, pending=0)
            gr.move(c.tile([64, BN])[m, n], acc, atom=gr.atom("st.global.v2.b32"))
    return kernel


def test_a_product_of_a_warpgroup() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((100, 200), (72, 200)))
    c = np.full((100, 72), np.nan, np.float32)
    product().simulate(a, b, c, seed=3)
    assert np.abs(c - a.astype(np.float32) @ b.astype(np.float32).T).max() < 1e-4


def test_every_mutant_of_the_product_is_reported() -> None:
    mutants = product().mutants(M=64, N=64, K=64 * 5)
    assert [str(m) for m in mutants if m.hazard is None] == []
    assert {"SIM_PHASE", "SIM_DEADLOCK", "SIM_TRANSACTION", "SIM_RACE", "SIM_IN_FLIGHT"} <= {m.hazard for m in mutants}


def test_the_specialised_product_of_clusters() -> None:
    kernel = gemm_sm90(BN=128)
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((512, 576), (256, 576), 256))
    c = np.empty((512, 256), np.float16)

    def hazard(**options: object) -> str | None:
        c.fill(np.nan)
        try:
            kernel.simulate(a, b, bias, c, **options)
        except gr.SimulationError as error:
            return error.code
        return None

    assert hazard(seed=1) is None
    want = np.maximum(a.astype(np.float32) @ b.astype(np.float32).T + bias, 0)
    assert np.abs(c - want).max() <= np.abs(want).max() * 2**-10
    found = {(s.text.split("(")[0], hazard(skip=[s.id])) for s in kernel.syncs()}
    assert {op for op, code in found if code is None} == {"setmaxnreg"}  # which says how many registers a thread has
    assert {code for _, code in found} >= {"SIM_PHASE", "SIM_PROXY", "SIM_IN_FLIGHT", "SIM_UNFINISHED_COPY"}


def test_named_barriers_hand_over_and_back() -> None:
    rounds = 3
    with gr.Kernel("hand_over") as kernel:
        x, y = gr.input("x", gr.Layout(32 * rounds), gr.fp32), gr.output("y", gr.Layout(32 * rounds), gr.fp32)
        gr.blocks(1)
        warps = gr.threads(64).tile(32)
        _, lane = warps.indices()
        s, r = gr.alloc("s", [32], gr.fp32, gr.SH), gr.alloc("r", [], gr.fp32, gr.RF)
        filled, taken = (gr.named_barrier(name, 1, threads=64)[0] for name in ("filled", "taken"))
        with gr.only(warps[0]):
            for n in gr.loop("n", rounds):
                gr.move(r, x[n * 32 + lane])
                with gr.if_(n > 0):
                    taken.sync()
                gr.move(s[lane], r)
                filled.arrive()
        with gr.only(warps[1]):
            for n in gr.loop("n", rounds):
                filled.sync()
                gr.move(r, s[31 - lane])
                gr.move(y[n * 32 + lane], r)
                with gr.if_(n < rounds - 1):
                    taken.arrive()
    given, got = np.arange(96, dtype=np.float32), np.empty(96, np.float32)
    kernel.simulate(given, got, seed=2)
    assert (got.reshape(3, 32) == given.reshape(3, 32)[:, ::-1]).all()
    found = []
    for statement in kernel.syncs():
        with pytest.raises(gr.SimulationError) as caught:
            kernel.simulate(given, got, skip=[statement.id])
        found.append(caught.value.code)
    assert found == ["SIM_PHASE", "SIM_DEADLOCK", "SIM_RACE", "SIM_DEADLOCK"]
