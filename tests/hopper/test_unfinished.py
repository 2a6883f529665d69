"""What may still be under way: arrivals that follow a thread's copies, and blocks that end too early."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphene as gr


def page() -> dict[str, Any]:
    """The kernels of docs/hopper.md by name."""
    path = Path(__file__).resolve().parents[2] / "docs/hopper.md"
    text, names = path.read_text(), {"__name__": "hopper"}
    for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile("\n" * text[: block.start(1)].count("\n") + block[1], str(path), "exec"), names)
    return names


def by_threads(after: bool) -> gr.Kernel:
    """Warp 0 copies 32 pieces with cp.async and arrives for warp 1, which reads them the other way round."""
    cp = gr.atom("cp.async.ca.16")
    with gr.Kernel("by_threads") as kernel:
        x = gr.input("x", [32, 4], gr.fp32, align_bytes=16)
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        warps = gr.threads(64).tile(32)
        _, lane = warps.indices()
        s = gr.alloc("s", [32, 4], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        full = gr.mbarrier("full", 1, arrivals=32)
        gr.barrier()
        with gr.only(warps[0]):
            gr.move(s[lane, :], x[lane, :], atom=cp)
            full[0].arrive(after=cp if after else None)
        with gr.only(warps[1]):
            full[0].wait(0)
            gr.move(r, s[31 - lane, 0])
            gr.move(y[lane], r)
    return kernel


def test_an_arrival_behind_copies_of_its_thread_waits_for_them() -> None:
    x, y = np.arange(128, dtype=np.float32).reshape(32, 4), np.zeros(32, np.float32)
    for seed in range(3):
        by_threads(after=True).simulate(x, y, seed=seed)
        assert (y == x[::-1, 0]).all()
    with pytest.raises(gr.SimulationError) as caught:
        by_threads(after=False).simulate(x, y)
    assert caught.value.code == "SIM_RACE"
    assert "write by a copy" in str(caught.value)


def unfinished(kernel: gr.Kernel, shape: tuple[int, int, int], skip: Iterable[int]) -> list[str]:
    m, n, k = shape
    a, b, c = np.ones((m, k), np.float16), np.ones((n, k), np.float16), np.zeros((m, n), np.float32)
    with pytest.raises(gr.SimulationError) as caught:
        kernel.simulate(a, b, c, skip=list(skip))
    assert caught.value.code == "SIM_UNFINISHED_COPY"
    return str(caught.value).splitlines()


def test_no_block_of_a_cluster_ends_before_the_last_arrival_at_it() -> None:
    kernel = page()["gemm_clusters"](STAGES=2)
    last = [s.id for s in kernel.syncs() if s.op == "barrier"][-1]
    text = unfinished(kernel, (256, 128, 64), [last])
    assert re.search(r"a block may end before another one arrives at it: empty\[0\] of block \([01]\)", text[0])
    assert text[-1] == "  fix: let a thread of the block learn of it before the end: gr.barrier(on=cluster)"


def test_no_block_ends_before_a_copy_on_its_barrier() -> None:
    with gr.Kernel("unread") as kernel:
        x = gr.input("x", gr.row_major(8, 64), gr.fp16, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        s = gr.alloc("s", [8, 64], gr.fp16, gr.SH)
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s])
            gr.move(s, x, atom="tma.load", done=full[0])
    with pytest.raises(gr.SimulationError) as caught:
        kernel.simulate(np.ones((8, 64), np.float16))
    text = str(caught.value).splitlines()
    assert text[0].endswith("the block ends while a copy may still write its shared memory   [SIM_UNFINISHED_COPY]")
    assert "  completes on: full, phase 0" in text


def test_no_block_ends_while_a_product_reads() -> None:
    wgmma = gr.atom("wgmma.m64n8k16.f32.f16")
    with gr.Kernel("unwaited") as kernel:
        x = gr.input("x", gr.row_major(64, 16), gr.fp16, align_bytes=16)
        gr.blocks(1)
        wg = gr.threads(128)
        a = gr.alloc("a", [64, 16], gr.fp16, gr.SH, swizzle=gr.swizzle(16, gr.fp16))
        full = gr.mbarrier("full", 1, arrivals=1)
        acc = gr.fragment("acc", [64, 8], gr.fp32, wgmma.c, on=wg)
        gr.barrier()
        with gr.only(wg.elect()):
            full[0].arrive(expect=[a])
            gr.move(a, x, atom="tma.load", done=full[0])
        full[0].wait(0)
        gr.fence(wgmma)
        gr.matmul(acc, a, a.tile([8, None])[0, 0].T, on=wg, atom=wgmma, accumulate=False)
        gr.commit(wgmma)
    with pytest.raises(gr.SimulationError) as caught:
        kernel.simulate(np.ones((64, 16), np.float16))
    text = str(caught.value).splitlines()
    assert text[0].endswith("the block ends while a product still reads its shared memory   [SIM_UNFINISHED_COPY]")
    assert text[-1] == "  fix: commit and wait for its group before the end"


def without_products(barrier: bool) -> gr.Kernel:
    """Roles as in docs/hopper.md, but nothing brings a consumer's warps together before one thread releases."""
    with gr.Kernel("without_products") as kernel:
        gr.blocks(1)
        wgs = gr.threads(384).tile(128)
        producer, consumers = wgs[0], wgs[1:3]
        full, empty = gr.mbarrier("full", 2, arrivals=1), gr.mbarrier("empty", 2, arrivals=2)
        gr.barrier()
        with gr.only(producer.elect()):
            put = gr.ring("put", 2, phase=1)
            for _ in gr.loop("k", 7):
                empty[put.index].wait(put.phase)
                full[put.index].arrive()
                put.advance()
        with gr.only(consumers):
            w, _ = consumers.indices()
            get = gr.ring("get", 2)
            for _ in gr.loop("k", 7):
                full[get.index].wait(get.phase)
                if barrier:
                    gr.barrier(on=consumers[w])
                with gr.only(consumers[w].elect()):
                    empty[get.index].arrive()
                get.advance()
    return kernel


def test_one_thread_speaks_for_its_warpgroup_only_behind_what_brings_it_together() -> None:
    without_products(barrier=True).simulate()
    with pytest.raises(gr.SimulationError) as caught:
        without_products(barrier=False).simulate()
    assert caught.value.code == "SIM_PHASE"
    assert "a phase that may end before a thread has seen the one before: full[0]" in str(caught.value)


def test_a_move_that_only_an_agent_could_make_says_what_to_name() -> None:
    with gr.Kernel("across") as kernel:
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (lane,) = gr.threads(32).indices()
        s = gr.alloc("s", [32, 4], gr.fp32, gr.SH)
        gr.move(y[lane], s[lane, 0])
    with pytest.raises(gr.SelectError) as caught:
        kernel.lowered("sm_90")
    assert "fits, and is used where it is named" in str(caught.value)
    assert "fix: no thread moves from memory to memory: go through registers" in str(caught.value)
    assert 'then gr.move(destination, r); or name it: atom="tma.store"' in str(caught.value)


def test_threads_that_copy_between_memories_are_told_of_registers_on_every_architecture() -> None:
    """Not of another architecture, whose agents copy between them, too."""
    with gr.Kernel("reversed") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (lane,) = gr.threads(32).indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        s[lane] = x[lane]
        gr.barrier()
        y[lane] = s[31 - lane]
    for arch in ("sm_80", "sm_90a"):
        with pytest.raises(gr.SelectError) as caught:
            kernel.lowered(arch)
        assert "fix: no thread moves from memory to memory: go through registers" in str(caught.value)
        assert "compile for" not in str(caught.value)
        assert str(caught.value).count("<- Move<<<") == 2  # both lines are named
