"""Asynchronous copies: values land when waited for, and every missing or weaker synchronisation is a hazard."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines import commit, gemm, ring, ring_arguments, wait

import graphene as gr

SEEDS = range(8)
COUNTER = itertools.count()


def code_of(kernel: gr.Kernel, args: list[np.ndarray], **options: Any) -> str:
    """The hazard that every order of threads finds, "" for none."""
    found = set()
    for seed in SEEDS:
        try:
            kernel.simulate(*(a.copy() for a in args), seed=seed, **options)
            found.add("")
        except gr.SimulationError as error:
            found.add(error.code)
    (code,) = found
    return str(code)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("reverse", [True, False])
def test_a_ring_copies(stages: int, rows: int, reverse: bool) -> None:
    kernel = ring(stages, reverse=reverse)
    for seed in SEEDS:
        a, b = ring_arguments(rows)
        kernel.simulate(a, b, seed=seed)
        assert np.array_equal(a, b)


@pytest.mark.parametrize("stages", [2, 3])
def test_every_synchronisation_of_a_ring_is_needed(stages: int) -> None:
    kernel = ring(stages)
    args = ring_arguments(2 * stages + 1)
    ops = [s.op for s in kernel.syncs()]
    assert ops == ["commit"] * (stages - 1) + ["wait", "barrier", "commit"]
    for sync in kernel.syncs():
        assert code_of(kernel, args, skip=[sync.id]) == "SIM_RACE", sync
        if sync.op == "wait":
            assert code_of(kernel, args, relax=[sync.id]) == "SIM_RACE", sync


def test_a_thread_that_reads_its_own_copies_needs_no_barrier() -> None:
    kernel = ring(3, reverse=False)
    args = ring_arguments(7)
    for sync in kernel.syncs():
        needed = sync.op != "barrier"
        assert code_of(kernel, args, skip=[sync.id]) == ("SIM_RACE" if needed else ""), sync


def test_relax_names_waits_alone() -> None:
    kernel = ring(2)
    barrier = next(s for s in kernel.syncs() if s.op == "barrier")
    with pytest.raises(ValueError, match="no such wait"):
        kernel.simulate(*ring_arguments(), relax=[barrier.id])


Body = Callable[[Any, Any, Any, Any, Any], None]


def one_stage(body: Body, threads: int = 64) -> tuple[gr.Kernel, list[np.ndarray]]:
    """A (inout) -> s -> B with what `body` does between; the copy itself is `body`'s."""
    with gr.Kernel("one_stage") as kernel:
        a = gr.inout("A", [threads, 4], gr.fp16, align_bytes=8)
        b = gr.output("B", [threads, 4], gr.fp16, align_bytes=8)
        gr.blocks(1)
        (t,) = gr.threads(threads).indices()
        s = gr.alloc("s", [threads, 4], gr.fp16, gr.SH)
        body(a, b, s, t, gr.atom("cp.async.ca.8"))
    rng = np.random.default_rng(0)
    return kernel, [rng.standard_normal((threads, 4)).astype(np.float16), np.zeros((threads, 4), np.float16)]


def through(s: Any, b: Any, read: Any, write: Any) -> None:
    r = gr.alloc("r", [4], gr.fp16, gr.RF)
    gr.move(r, s[read, :])
    gr.move(b[write, :], r)


def complete(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    wait(cp, 0)
    gr.barrier()
    through(s, b, 63 - t, t)


def not_committed(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    wait(cp, 0)
    through(s, b, t, t)


def not_waited(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    gr.barrier()
    through(s, b, t, t)


def waited_by_others(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    with gr.if_(t < 32):
        gr.move(s[t, :], a[t, :], atom=cp)
        gr.move(s[t + 32, :], a[t + 32, :], atom=cp)
    commit(cp)
    with gr.if_(t >= 32):
        wait(cp, 0)
    gr.barrier()
    through(s, b, t, t)


def no_barrier(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    wait(cp, 0)
    through(s, b, 63 - t, t)


def barrier_before_the_wait(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    gr.barrier()
    wait(cp, 0)
    through(s, b, 63 - t, t)


def source_overwritten(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    gr.init(a[t, 0], 1)
    wait(cp, 0)
    through(s, b, t, t)


def two_copies_to_one_place(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    gr.move(s[t, :], a[63 - t, :], atom=cp)
    commit(cp)
    wait(cp, 0)
    through(s, b, t, t)


def copied_over_what_is_read(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    wait(cp, 0)
    gr.barrier()
    through(s, b, 63 - t, t)
    gr.move(s[t, :], a[t, :], atom=cp)


def own_read_before_the_copy(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    r = gr.alloc("q", [4], gr.fp16, gr.RF)
    gr.init(r[0], 0)
    gr.move(s[t, 0], r[0])
    gr.move(r[0], s[t, 0])
    gr.move(s[t, :], a[t, :], atom=cp)
    commit(cp)
    wait(cp, 0)
    through(s, b, t, t)


def in_flight_at_the_end(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    complete(a, b, s, t, cp)
    gr.barrier()
    gr.move(s[t, :], a[t, :], atom=cp)


def wait_without_a_number(a: Any, b: Any, s: Any, t: Any, cp: Any) -> None:
    from graphene import _core

    gr.move(s[t, :], a[t, :], atom=cp)
    _core.record_sync("wait", None, cp.name, {})
    through(s, b, t, t)


@pytest.mark.parametrize("body", [complete, own_read_before_the_copy, in_flight_at_the_end, wait_without_a_number])
def test_correct_copies(body: Body) -> None:
    kernel, args = one_stage(body)
    assert code_of(kernel, args) == ""
    kernel.simulate(*args)
    reverse = body in (complete, in_flight_at_the_end)
    assert np.array_equal(args[1], args[0][::-1] if reverse else args[0])


@pytest.mark.parametrize(
    "body",
    [
        not_committed,
        not_waited,
        waited_by_others,
        no_barrier,
        barrier_before_the_wait,
        source_overwritten,
        two_copies_to_one_place,
        copied_over_what_is_read,
    ],
)
def test_hazards_of_copies(body: Body) -> None:
    kernel, args = one_stage(body)
    assert code_of(kernel, args) == "SIM_RACE"


def message(body: Body) -> list[str]:
    kernel, args = one_stage(body)
    with pytest.raises(gr.SimulationError) as error:
        kernel.simulate(*args)
    return [line for line in str(error.value).splitlines() if not line.startswith("    ")]


def test_the_text_says_what_is_missing() -> None:
    copy_line = not_waited.__code__.co_firstlineno + 1
    read_line = through.__code__.co_firstlineno + 2
    assert message(not_waited) == [
        f"test_async.py:{read_line}: a read of a value that a copy in flight writes: s[32, 0]   [SIM_RACE]",
        f"  read by thread 32 (warp 1, lane 0) of block (0), test_async.py:{read_line}",
        f"  write by a copy of thread 32 (warp 1, lane 0) of block (0), test_async.py:{copy_line}",
        "  fix: let thread 32 commit and wait for its cp_async copies first",
    ]
    copy_line = no_barrier.__code__.co_firstlineno + 1
    assert message(no_barrier) == [
        f"test_async.py:{copy_line}: a write over a value that an unordered thread reads: s[32, 0]   [SIM_RACE]",
        f"  write by a copy of thread 32 (warp 1, lane 0) of block (0), test_async.py:{copy_line}",
        f"  read by thread 31 (warp 0, lane 31) of block (0), test_async.py:{read_line}",
        "  fix: put a barrier that both threads take part in between the two",
    ]
    assert message(waited_by_others)[-1] == (
        "  fix: let thread 0 commit and wait for its cp_async copies first, then put a barrier in between: a wait "
        "covers the waiting thread's own copies"
    )
    kernel = ring()
    barrier = next(s for s in kernel.syncs() if s.text == "barrier()")
    with pytest.raises(gr.SimulationError, match="the copy has been waited for by its own thread alone: put a barrier"):
        kernel.simulate(*ring_arguments(), skip=[barrier.id])


def test_a_block_must_not_end_while_a_copy_reads_its_shared_memory() -> None:
    """An instruction from shared to global memory, in a domain of its own: nothing knows it but its entry."""
    n = next(COUNTER)
    for op, attrs in (("commit", {}), ("wait", {"pending": ["*const"]})):
        gr.define_atom(
            name=f"test.async.{op}{n}",
            kind="Sync",
            arch="sm_80+",
            attrs={"op": [op], "scope": [f"test{n}"], **attrs},
            ptx="test.sync;",
            doc="Synchronises.",
            source="a test",
        )
    (store,) = gr.define_atom(
        name=f"test.async.store{n}/b16",
        kind="Move",
        arch="sm_80+",
        out=[{"name": "dst", "pattern": "[4:1].b16.GL", "tile": "e4", "access": "write"}],
        in_=[{"name": "src", "pattern": "[4:1].b16.SH", "tile": "e4"}],
        ptx="test.store [$dst], [$src];",
        done=f"group:test{n}",
        is_default=False,
        doc="Stores 8 bytes later.",
        source="a test",
    )

    def kernel(finish: bool) -> gr.Kernel:
        with gr.Kernel("store") as k:
            b = gr.output("B", [32, 4], gr.fp16, align_bytes=8)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            s = gr.alloc("s", [32, 4], gr.fp16, gr.SH)
            for i in range(4):
                gr.init(s[t, i], i)
            gr.move(b[t, :], s[t, :], atom=store)
            commit(store)
            if finish:
                wait(store, 0)
        return k

    b = np.zeros((32, 4), np.float16)
    kernel(True).simulate(b)
    assert np.array_equal(b, np.tile(np.arange(4, dtype=np.float16), (32, 1)))
    assert code_of(kernel(False), [b]) == "SIM_UNFINISHED_COPY"
    with pytest.raises(gr.SimulationError) as error:
        kernel(False).simulate(b)
    assert str(error.value).splitlines()[-2:] == [
        "  copy of thread 0 (warp 0, lane 0) of block (0)",
        f"  fix: commit and wait for the test{n} copies before the end",
    ]


@pytest.mark.parametrize("size", [(128, 128, 288), (100, 70, 40), (1, 1, 8), (130, 257, 104)])
def test_a_pipelined_gemm(size: tuple[int, int, int]) -> None:
    m, n, k = size
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 8, s).astype(np.float16) for s in ((m, k), (n, k)))
    kernel = gemm(bm=64, bn=64, bk=32)
    for seed in range(3):
        c = np.zeros((m, n), np.float32)
        kernel.simulate(a, b, c, seed=seed)
        assert np.array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))


def test_every_synchronisation_of_a_pipelined_gemm_is_needed() -> None:
    stages, bk = 3, 32
    kernel = gemm(bm=64, bn=64, bk=bk, stages=stages)
    k = bk * (2 * stages + 1)
    args = [np.ones((64, k), np.float16), np.ones((64, k), np.float16), np.zeros((64, 64), np.float32)]
    *needed, last = kernel.syncs()
    for sync in needed:
        assert code_of(kernel, args, skip=[sync.id]) == "SIM_RACE", sync
        if sync.op == "wait":
            assert code_of(kernel, args, relax=[sync.id]) == "SIM_RACE", sync
    assert last.op == "wait"  # what it waits for is of no use any more
    assert code_of(kernel, args, skip=[last.id]) == ""


def test_mutants_of_a_pipelined_gemm() -> None:
    stages, bk = 3, 32
    kernel = gemm(bm=64, bn=64, bk=bk, stages=stages)
    mutants = kernel.mutants(M=64, N=64, K=bk * (2 * stages + 1))
    assert [m.sync.id for m in mutants if m.change == "left out"] == [s.id for s in kernel.syncs()]
    redundant = [m for m in mutants if m.hazard is None]
    assert {m.sync for m in redundant} == {kernel.syncs()[-1]}  # the last wait
    assert [m.change for m in redundant] == ["left out", "one more group in flight"]
    assert {m.hazard for m in mutants} == {"SIM_RACE", None}
    assert str(mutants[0]).endswith('commit("cp.async.cg.16") left out: SIM_RACE')
    short = kernel.mutants(M=64, N=64, K=bk)
    assert len([m for m in short if m.hazard is None]) > 2  # too few steps hide removals


def test_a_tile_with_nine_steps_is_checked_within_seconds() -> None:
    kernel = gemm()
    args = [np.ones((128, 288), np.float16), np.ones((128, 288), np.float16), np.zeros((128, 128), np.float32)]
    start = time.process_time()
    assert kernel.check(M=128, N=128, K=288).ok
    kernel.simulate(*args)
    assert time.process_time() - start < 5
    assert (args[2] == 288).all()


def test_a_pipelined_gemm_keeps_its_promises_and_a_wrong_one_does_not() -> None:
    result = gemm(bm=64, bn=64).check(M=64, N=64, K=9 * 32)
    assert result.ok, str(result)
    wrong = gemm(bm=64, bn=64, fault="a slice twice").check(M=64, N=64, K=64)
    assert [e.code for e in wrong.errors] == ["CHECK_PROMISE"], str(wrong)


@pytest.mark.parametrize(("m", "k"), [(3, 47), (1, 9), (17, 65)])
def test_warps_that_lie_wholly_outside_of_a_partial_copy_read_nothing(m: int, k: int) -> None:
    text = (Path(__file__).resolve().parents[1] / "native" / "kernels" / "async_copy.gir").read_text()
    kernel = gr.parse(text)
    a = np.arange(m * 72, dtype=np.float16).reshape(m, 72)[:, :k]
    for seed in range(4):
        c = np.zeros((m, -(-k // 64)), np.float16)
        kernel.simulate(a, c, seed=seed)
        np.testing.assert_array_equal(c, a[:, ::64])
