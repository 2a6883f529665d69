"""Copies of boxes from Python to the simulator: values at odd sizes, and what each mistake is called."""

from __future__ import annotations

from collections.abc import Callable

import hopper_listings
import numpy as np
import pytest

import graphene as gr


@pytest.mark.parametrize(("m", "n"), [(64, 64), (100, 456), (65, 8), (1, 200)])
def test_it_copies_every_element(m: int, n: int) -> None:
    x = np.random.default_rng(0).standard_normal((m, n)).astype(np.float16)
    y = np.zeros_like(x)
    hopper_listings.tma_copy(64, 32).simulate(x, y)
    assert np.array_equal(x, y)


def test_every_synchronisation_is_needed() -> None:
    found = hopper_listings.tma_copy().mutants(M=64, N=7 * 64)
    arrival = [("arrive", "left out", "SIM_DEADLOCK"), ("arrive", "half of the bytes expected", "SIM_TRANSACTION")]
    assert [(m.sync.text.split("(")[0], m.change, m.hazard) for m in found] == [
        ("barrier", "left out", "SIM_PHASE"),  # the barriers' initialisation
        *arrival,
        *arrival,
        ("wait_phase", "left out", "SIM_RACE"),
        ("wait_phase", "for the other phase", "SIM_DEADLOCK"),
        ("commit", "left out", "SIM_RACE"),
        ("wait", "left out", "SIM_RACE"),
        ("wait", "one more group in flight", "SIM_RACE"),
        *arrival,
        ("wait", "left out", "SIM_UNFINISHED_COPY"),
        ("wait", "one more group in flight", "SIM_UNFINISHED_COPY"),
    ]


def copy(act: Callable[..., None]) -> gr.Kernel:
    """One tile in and out again; `act` says how it arrives: x, s, full, threads."""
    with gr.Kernel("copy") as kernel:
        x = gr.input("x", gr.row_major(64, 64), gr.fp16, align_bytes=16)
        y = gr.output("y", gr.row_major(64, 64), gr.fp16, align_bytes=16)
        gr.blocks(1)
        threads = gr.threads(64)
        s = gr.alloc("s", [64, 64], gr.fp16, gr.SH, swizzle=gr.swizzle(64, gr.fp16))
        full = gr.mbarrier("full", 2, arrivals=1)
        gr.barrier()
        act(x, s, full, threads)
        with gr.only(threads.elect()):
            gr.move(y, s, atom="tma.store")
            gr.commit("tma.store")
            gr.wait("tma.store", pending=0)
    return kernel


def load(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, bytes: object) -> None:
    full[0].arrive(expect=bytes)
    gr.move(s, x, atom="tma.load", done=full[0])


def right(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, threads: gr.ThreadTensor) -> None:
    with gr.only(threads.elect()):
        load(x, s, full, [s])
    full[0].wait(0)


def too_few_bytes(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, threads: gr.ThreadTensor) -> None:
    with gr.only(threads.elect()):
        load(x, s, full, 8192 - 16)
    full[0].wait(0)


def too_many_bytes(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, threads: gr.ThreadTensor) -> None:
    with gr.only(threads.elect()):
        load(x, s, full, 8192 + 16)
    full[0].wait(0)


def the_phase_before(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, threads: gr.ThreadTensor) -> None:
    with gr.only(threads.elect()):
        load(x, s, full, [s])
    full[0].wait(1)


def another_barrier(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, threads: gr.ThreadTensor) -> None:
    with gr.only(threads.elect()):
        load(x, s, full, [s])
        full[1].arrive()
    full[1].wait(0)


def stored_by_threads(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, threads: gr.ThreadTensor) -> None:
    gr.move(s, x, on=threads, atom=("ld.global.v4.b32", "st.shared.v4.b32"))
    gr.barrier()


def stored_and_fenced(x: gr.Tensor, s: gr.Tensor, full: gr.Mbarriers, threads: gr.ThreadTensor) -> None:
    gr.move(s, x, on=threads, atom=("ld.global.v4.b32", "st.shared.v4.b32"))
    gr.fence("async.shared")
    gr.barrier()


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (right, None),
        (too_few_bytes, "SIM_TRANSACTION"),
        (too_many_bytes, "SIM_DEADLOCK"),
        (the_phase_before, "SIM_PHASE SIM_RACE SIM_DEADLOCK"),  # which one depends on the schedule
        (another_barrier, "SIM_RACE"),
        (stored_by_threads, "SIM_PROXY"),
        (stored_and_fenced, None),
    ],
)
def test_a_mistake_has_its_code(act: Callable[..., None], code: str | None) -> None:
    kernel = copy(act)
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    for seed in range(3):
        y = np.zeros_like(x)
        if code is None:
            kernel.simulate(x, y, seed=seed)
            assert np.array_equal(x, y)
            continue
        with pytest.raises(gr.SimulationError) as caught:
            kernel.simulate(x, y, seed=seed)
        assert caught.value.code in code.split()
