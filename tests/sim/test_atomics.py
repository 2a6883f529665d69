"""Atomic updates: sums over any sharing of elements, no races among themselves, races with the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr


def histogram(n: int, bins: int, barrier: bool = True, reader: str = "none", blocks: int = 1) -> gr.Kernel:
    """y[b] counts the threads t with t % bins == b; `reader` looks at it in the same kernel."""
    with gr.Kernel("histogram") as kernel:
        y = gr.inout("y", [bins], gr.i32)
        z = gr.output("z", [blocks], gr.i32)
        grid = gr.blocks(blocks)
        threads = gr.threads(n)
        (b,), (t,) = grid.indices(), threads.indices()
        one, v = gr.alloc("one", [], gr.i32, gr.RF), gr.alloc("v", [], gr.i32, gr.RF)
        shared = gr.alloc("shared", [bins], gr.i32, gr.SH)
        gr.init(one, 1)
        gr.init(v, 0)
        with gr.if_(t < bins):
            gr.move(shared[t], v)
        gr.barrier()
        gr.move(shared[t % bins], one, combine="add", atomic="relaxed.cta")
        if barrier:
            gr.barrier()
        with gr.if_(t < bins):
            gr.move(v, shared[t])
            gr.move(y[t], v, combine="add", atomic="relaxed.gpu")
        if reader == "plain":
            with gr.if_(t < 1):
                gr.move(v, y[0])
        if reader == "write":
            with gr.if_(t < 1):
                gr.move(y[1], one)
        with gr.if_(t < 1):
            gr.move(z[b], v)
    return kernel


def run(kernel: gr.Kernel, bins: int, blocks: int = 1, **options: Any) -> np.ndarray:
    y, z = np.zeros(bins, np.int32), np.zeros(blocks, np.int32)
    kernel.simulate(y, z, **options)
    return y


@pytest.mark.parametrize(("n", "bins"), [(32, 1), (128, 5), (96, 32), (256, 64)])
@pytest.mark.parametrize("seed", [0, 3])
def test_every_contribution_counts(n: int, bins: int, seed: int) -> None:
    want = np.bincount(np.arange(n) % bins, minlength=bins)
    assert np.array_equal(run(histogram(n, bins), bins, seed=seed), want)


@pytest.mark.parametrize("seed", [0, 1])
def test_blocks_update_one_element_without_a_race(seed: int) -> None:
    assert np.array_equal(run(histogram(64, 8, blocks=5), 8, 5, seed=seed), np.full(8, 40))


def test_a_plain_read_is_unordered_with_another_threads_updates() -> None:
    with pytest.raises(gr.SimulationError, match="a read of a value that an unordered thread writes: shared"):
        run(histogram(64, 8, barrier=False), 8)


@pytest.mark.parametrize("reader", ["plain", "write"])
def test_other_blocks_updates_race_with_plain_accesses(reader: str) -> None:
    with pytest.raises(gr.SimulationError, match=r"y\[[01]\].*SIM_RACE"):
        run(histogram(32, 8, reader=reader, blocks=2), 8, 2)


def test_floats_add_as_the_lanes_come() -> None:
    with gr.Kernel("total") as kernel:
        x = gr.input("x", [32], gr.fp32)
        y = gr.inout("y", [1], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        v = gr.alloc("v", [], gr.fp32, gr.RF)
        gr.move(v, x[t])
        gr.move(y[0], v, combine="add", atomic="relaxed.gpu")
    values = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    total = np.array([0.5], np.float32)
    want = total[0]
    for value in values:
        want = np.float32(want + value)
    kernel(values, total)
    assert total[0] == want
