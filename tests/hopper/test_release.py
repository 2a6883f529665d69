"""Arrivals that publish what threads stored to other blocks of a cluster, and those that need not."""

from __future__ import annotations

import numpy as np
import pytest

import graphene as gr


def handed_over(release: bool = True, acquire: bool = True, back: bool = True) -> gr.Kernel:
    """Block 0 hands rows of x to block 1 through its own shared memory: told of by arrivals, given back by others."""
    n = gr.sym("N")
    with gr.Kernel("handed_over") as kernel:
        x, y = (f(name, [n, 32], gr.fp32) for f, name in ((gr.input, "x"), (gr.output, "y")))
        blocks, warp = gr.blocks(2, cluster=2), gr.threads(32)
        (c, rank), (t,) = blocks.indices(), warp.indices()
        s, a = gr.alloc("s", [32], gr.fp32, gr.SH), gr.alloc("a", [], gr.fp32, gr.RF)
        full, empty = gr.mbarrier("full", 1, arrivals=32), gr.mbarrier("empty", 1, arrivals=32)
        gr.barrier(on=blocks[c])
        for i in gr.loop("i", n):
            with gr.if_(rank == 0):
                if back:
                    empty[0].wait(1 - i % 2)
                gr.move(a, x[i, t])
                gr.move(s[t], a)
                full[0].arrive(at=blocks[c][1], release=release)
            with gr.else_():
                full[0].wait(i % 2, acquire=acquire)
                gr.move(a, s.of(0)[31 - t])
                empty[0].arrive(at=blocks[c][0])
                gr.move(y[i, t], a)
        gr.barrier(on=blocks[c])
    return kernel


def test_arrivals_publish_what_threads_stored() -> None:
    kernel = handed_over()
    x, y = np.arange(5 * 32, dtype=np.float32).reshape(5, 32), np.zeros((5, 32), np.float32)
    for seed in range(3):
        kernel.simulate(x, y, seed=seed)
        assert np.array_equal(y, x[:, ::-1])
    assert gr.parse(str(kernel)) == kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel
    text = kernel.cuda_source("sm_90a")
    assert text.count("mbarrier.arrive.release.cluster.shared::cluster.b64") == 1
    assert text.count("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64") == 1
    assert text.count("mbarrier.arrive.shared::cluster.b64") == 1
    kernel.compile("sm_90a")
    assert [str(m) for m in kernel.mutants(N=4) if m.hazard is None] == []


@pytest.mark.parametrize("wrong", ["release", "acquire", "back"])
def test_plain_arrivals_publish_nothing(wrong: str) -> None:
    x, y = np.ones((4, 32), np.float32), np.zeros((4, 32), np.float32)
    with pytest.raises(gr.SimulationError) as caught:
        handed_over(**{wrong: False}).simulate(x, y)
    if wrong == "back":
        assert caught.value.code in ("SIM_RACE", "SIM_PHASE", "SIM_TRANSACTION")
        return
    assert "a read of a value that an unordered thread writes: s[31] of block (0)   [SIM_RACE]" in str(caught.value)
    assert "an arrival with release=True that a wait with acquire=True waits for" in str(caught.value)


def test_release_and_acquire_are_for_other_blocks() -> None:
    with gr.Kernel("k"):
        blocks = gr.blocks(2, cluster=2)
        gr.threads(32)
        full = gr.mbarrier("full", 1, arrivals=32)
        turn = gr.named_barrier("turn", 1, threads=32)
        with pytest.raises(gr.VerifyError, match="is for other blocks of the cluster, and there are none"):
            full[0].arrive(release=True)
        assert blocks.size == 2
        assert turn.stages == 1
    with gr.Kernel("k"):
        gr.blocks(2)
        full = gr.mbarrier("full", 1, arrivals=32)
        with pytest.raises(gr.VerifyError, match="is for other blocks of the cluster, and there are none"):
            full[0].wait(0, acquire=True)
