"""Accesses that are ordered, and wrong all the same: caches that never learn of a write, atomics of too small a scope.

Or atomics of two kinds. And what is not a hazard: an undefined value that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr


def kernel_of(body: Callable[..., None], blocks: int = 1, dtype: gr.DType = gr.i32) -> gr.Kernel:
    """64 threads a block: ``body(x, v, t, b)`` with an inout x of 64 elements, a register, thread and block."""
    with gr.Kernel("accesses") as kernel:
        x = gr.inout("x", [64], dtype)
        grid, threads = gr.blocks(blocks), gr.threads(64)
        (b,), (t,) = grid.indices(), threads.indices()
        v = gr.alloc("v", [], dtype, gr.RF)
        gr.init(v, 1)
        body(x, v, t, b)
    return kernel


def run(kernel: gr.Kernel, seed: int = 0) -> np.ndarray:
    x = np.arange(64, dtype=np.int32)
    kernel.simulate(x, seed=seed)
    return x


def refused(kernel: gr.Kernel) -> list[str]:
    """The error's lines, in several orders of threads."""
    texts = []
    for seed in range(4):
        with pytest.raises(gr.SimulationError) as error:
            run(kernel, seed)
        assert error.value.code == "SIM_RACE"
        texts.append(str(error.value))
    return texts[0].splitlines()


def both_lines(lines: list[str]) -> set[str]:
    return {part for line in lines if " by thread " in line for part in line.split() if "test_memory" in part}


# ---- the non-coherent cache

LOADS = ["ld.global.nc.b32", "ld.global.nc.no_allocate.b32"]


@pytest.mark.parametrize("load", LOADS)
def test_what_the_kernel_has_written_is_not_read_through_the_noncoherent_cache(load: str) -> None:
    def body(x: Any, v: Any, t: Any, b: Any, load: str = load) -> None:
        gr.move(x[t], v)
        gr.barrier()
        gr.move(v, x[63 - t], atom=load)
        gr.barrier()

    lines = refused(kernel_of(body))
    assert "a read through the non-coherent cache of what the kernel has written: x[" in lines[0]
    assert len(both_lines(lines)) == 2
    run(kernel_of(lambda x, v, t, b: body(x, v, t, b, "ld.global.b32")))


@pytest.mark.parametrize("own", [False, True])
def test_what_that_cache_has_read_is_not_written(own: bool) -> None:
    """Not even by the thread that has read it, nor behind a barrier."""

    def body(x: Any, v: Any, t: Any, b: Any, load: str = LOADS[0]) -> None:
        gr.move(v, x[t], atom=load)
        gr.barrier()
        gr.move(x[t if own else 63 - t], v)

    lines = refused(kernel_of(body))
    assert "a write over a value that the non-coherent cache has read: x[" in lines[0]
    assert len(both_lines(lines)) == 2
    assert np.array_equal(np.sort(run(kernel_of(lambda *a: body(*a, "ld.global.b32")))), np.arange(64))


def test_atomic_updates_count_as_writes() -> None:
    def before(x: Any, v: Any, t: Any, b: Any) -> None:
        gr.move(x[t], v, combine="add", atomic="relaxed.gpu")
        gr.move(v, x[t], atom=LOADS[0])

    def after(x: Any, v: Any, t: Any, b: Any) -> None:
        gr.move(v, x[t], atom=LOADS[0])
        gr.move(x[t], v, combine="add", atomic="relaxed.gpu")

    for body in (before, after):
        refused(kernel_of(body))


def test_other_elements_of_the_array_may_be_written() -> None:
    def body(x: Any, v: Any, t: Any, b: Any) -> None:
        with gr.if_(t < 32):
            gr.move(v, x[t], atom=LOADS[0])
            gr.move(x[t + 32], v)

    assert np.array_equal(run(kernel_of(body)), np.tile(np.arange(32), 2))


@pytest.mark.parametrize("waits", [True, False])
def test_a_kernel_that_waits_for_others_does_not_read_through_that_cache(waits: bool) -> None:
    with gr.Kernel("copy") as kernel:
        a, b = gr.input("A", [32], gr.fp32), gr.output("B", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        if waits:
            gr.wait_kernels()
        v = gr.alloc("v", [], gr.fp32, gr.RF)
        gr.move(v, a[t], atom=LOADS[0])
        gr.move(b[t], v)
    args = [np.ones(32, np.float32), np.zeros(32, np.float32)]
    if not waits:
        kernel.simulate(*args)
        return
    with pytest.raises(gr.VerifyError, match=r"may have written.*VERIFY_WAIT") as error:
        kernel.cuda_source("sm_90a")
    assert error.value.diagnostics[0]["line"] > 0
    assert "waits for them: test_memory_model.py:" in str(error.value)
    assert "argument: A" in str(error.value)


# ---- atomics


@pytest.mark.parametrize("scopes", [("cta", "cta"), ("cta", "gpu"), ("gpu", "cta"), ("gpu", "gpu"), ("sys", "gpu")])
def test_several_blocks_need_atomics_of_the_device(scopes: tuple[str, str]) -> None:
    def body(x: Any, v: Any, t: Any, b: Any) -> None:
        with gr.if_(b < 1):
            gr.move(x[t // 2], v, combine="add", atomic=f"relaxed.{scopes[0]}")
        with gr.if_(b > 0):
            gr.move(x[t // 2], v, combine="add", atomic=f"relaxed.{scopes[1]}")

    kernel = kernel_of(body, blocks=2)
    if "cta" not in scopes:
        assert np.array_equal(run(kernel)[:32], np.arange(32) + 4)
        return
    lines = refused(kernel)
    assert len(both_lines(lines)) == 2
    assert "relaxed.gpu" in lines[-1]
    own = kernel_of(lambda x, v, t, b: gr.move(x[t % 2 * 32 + b], v, combine="add", atomic="relaxed.cta"), blocks=2)
    assert run(own)[0] == 32  # each block has its own elements


def kinds(first: str, second: str, between: bool, dtype: gr.DType = gr.i32) -> gr.Kernel:
    def body(x: Any, v: Any, t: Any, b: Any) -> None:
        gr.move(x[t % 4], v, combine=first, atomic="relaxed.gpu")
        if between:
            gr.barrier()
        gr.move(x[t % 4], v, combine=second, atomic="relaxed.gpu")

    return kernel_of(body, dtype=dtype)


@pytest.mark.parametrize(("first", "second"), [("add", "max"), ("and", "or"), ("min", "add")])
def test_two_kinds_of_atomics_need_an_order(first: str, second: str) -> None:
    lines = refused(kinds(first, second, between=False))
    assert len(both_lines(lines)) == 2
    assert "barrier" in lines[-1]
    run(kinds(first, second, between=True))
    run(kinds(first, first, between=False))


def test_two_kinds_of_atomics_by_several_blocks_have_no_order() -> None:
    def body(x: Any, v: Any, t: Any, b: Any) -> None:
        with gr.if_(b < 1):
            gr.move(x[t], v, combine="add", atomic="relaxed.gpu")
        with gr.if_(b > 0):
            gr.move(x[t], v, combine="max", atomic="relaxed.gpu")

    assert "in two kernels" in refused(kernel_of(body, blocks=2))[-1]


def test_a_third_update_is_compared_with_every_earlier_one() -> None:
    """Thread 0 adds, then takes a maximum; another adds: unordered with the maximum, though not with the sum."""

    def body(x: Any, v: Any, t: Any, b: Any) -> None:
        with gr.if_(t < 1):
            gr.move(x[0], v, combine="add", atomic="relaxed.gpu")
            gr.move(x[0], v, combine="max", atomic="relaxed.gpu")
        with gr.if_(t > 62):
            gr.move(x[0], v, combine="add", atomic="relaxed.gpu")

    refused(kernel_of(body))


# ---- undefined values that are not looked at


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("selected", [False, True])
def test_where_looks_at_one_side(side: int, selected: bool) -> None:
    with gr.Kernel("select") as kernel:
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        p, d, u, r = (
            gr.alloc(n, [], x, gr.RF) for n, x in zip("pdur", (gr.pred, gr.fp32, gr.fp32, gr.fp32), strict=True)
        )
        gr.init(d, 2)
        n = gr.alloc("n", [], gr.i32, gr.RF)
        n[:] = t
        with gr.if_(t < 7):
            gr.init(u, 3)
        gr.binary("lt", p, n, 8 if selected else 7)
        if side:
            gr.unary("not", p, p)
        gr.ternary("where", r, p, *((d, u) if side else (u, d)))
        gr.move(y[t], r)
    out = np.zeros(32, np.float32)
    if not selected:
        kernel.simulate(out)
        assert np.array_equal(out, np.where(np.arange(32) < 7, 3, 2))
        return
    with pytest.raises(gr.SimulationError, match=r"y\[7\].*SIM_UNDEFINED"):
        kernel.simulate(out)


def test_where_needs_its_condition() -> None:
    with gr.Kernel("select") as kernel:
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        p, r = gr.alloc("p", [], gr.pred, gr.RF), gr.alloc("r", [], gr.fp32, gr.RF)
        gr.ternary("where", r, p, 1, 2)
        gr.move(y[t], r)
    with pytest.raises(gr.SimulationError, match="SIM_UNDEFINED"):
        kernel.simulate(np.zeros(32, np.float32))
