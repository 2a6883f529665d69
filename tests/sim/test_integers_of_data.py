"""check() draws integers that show mistakes: indices up to their ends, negative numbers, large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import ReductionConfig, reduction, reduction_kernel


def elementwise(means: Callable[[Any], Any], of: Callable[[Any], Any]) -> gr.Kernel:
    """y = of(x) on i32, which promises means(x)."""
    n = gr.sym("n")
    with gr.Kernel("elementwise", means=lambda x, y: {"y": means(x)}) as kernel:
        x, y = gr.input("x", [n], gr.i32), gr.output("y", [n], gr.i32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        of_x = of(gr.load(x.tile([32])[b][t]))
        gr.move(y.tile([32])[b][t], of_x)
    return kernel


def largest(first: int) -> gr.Kernel:
    n = gr.sym("n", min=1)
    with gr.Kernel("largest", means=lambda x, y: {"y": x.max(keepdims=True)}) as kernel:
        x, y = gr.input("x", [n], gr.i32), gr.output("y", [1], gr.i32)
        gr.blocks(1)
        threads = gr.threads(32)
        (t,) = threads.indices()
        most = gr.let("most", first, gr.i32)
        for i in gr.loop("i", gr.ceil_div(n, 32)):
            with gr.if_(i * 32 + t < n):
                most[...] = gr.max(most, gr.load(x[i * 32 + t]))
        gr.allreduce("max", most, on=threads)
        with gr.if_(t == 0):
            gr.move(y[0], most)
    return kernel


def two_tables(clip: int) -> gr.Kernel:
    """Elements of two tables: the indices into the longer one are drawn up to its end, whatever the other's length."""
    n, tokens = gr.sym("n tokens")
    with gr.Kernel(
        "two",
        means=lambda x, e, table, scale, y: {
            "y": np.where(x < len(table), table[np.minimum(x, len(table) - 1)] * scale[e], y)
        },
    ) as kernel:
        x, e = gr.input("x", [n], gr.i32), gr.input("e", [n], gr.i32)
        table, scale = gr.input("table", [tokens], gr.fp32), gr.input("scale", [4], gr.fp32)
        y = gr.inout("y", [n], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        of_e = gr.load(e.tile([32])[b][t])
        place = gr.index(gr.load(x.tile([32])[b][t]), min=0, max=2**31 - 1)
        with gr.if_(place < tokens):
            row = gr.load(table[gr.min(place, clip) if clip else place])
            gr.move(y.tile([32])[b][t], row * gr.load(scale[gr.index(of_e, min=0, max=3)]))
    return kernel


def counts(bins: int, flushed: int) -> gr.Kernel:
    n = gr.sym("n")
    with gr.Kernel("counts", means=lambda x, y: {"y": y + np.bincount(x, minlength=bins)}) as kernel:
        x, y = gr.input("x", [n], gr.i32), gr.inout("y", [bins], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        own = gr.alloc("own", [bins], gr.i32, gr.SH)
        for i in gr.loop("i", gr.ceil_div(bins, 64)):
            gr.move(own.tile([64])[i][t], 0)
        gr.barrier()
        for i in gr.loop("j", gr.ceil_div(n, 64)):
            with gr.if_(i * 64 + t < n):
                gr.atomic("add", own[gr.index(gr.load(x[i * 64 + t]), min=0, max=bins - 1)], 1, scope="cta")
        gr.barrier()
        for i in gr.loop("k", gr.ceil_div(flushed, 64)):
            gr.atomic("add", y.tile([64])[i][t], gr.load(own.tile([64])[i][t]))
    return kernel


LEAST = -(2**31)


def same(x: Any) -> Any:
    return x


def upper_bits(x: Any) -> Any:
    return (x >> 20) ^ (x >> 21)


def threefold(x: Any) -> Any:
    return x * 3


def without_least(x: Any) -> Any:
    return gr.where(x < LEAST // 2, 0, x)


KERNELS = {
    "negative numbers": (lambda: elementwise(np.abs, gr.abs), lambda: elementwise(np.abs, same)),
    "more than a byte": (lambda: elementwise(same, same), lambda: elementwise(lambda x: x & 255, same)),
    "a type's end": (
        lambda: elementwise(same, same),
        lambda: elementwise(same, lambda x: gr.where(x < LEAST // 2, 0, x)),
    ),
    "more than fp32 holds": (
        lambda: elementwise(same, same),
        lambda: elementwise(same, lambda x: gr.cast(gr.cast(x, gr.fp32), gr.i32)),
    ),
    "bits that are shifted": (
        lambda: elementwise(upper_bits, upper_bits),
        lambda: elementwise(upper_bits, lambda x: (x >> 20) ^ (x >> 20)),
    ),
    "results beyond the type": (
        lambda: elementwise(lambda x: x * 3, lambda x: x * 3),
        lambda: elementwise(lambda x: x * 3, lambda x: x * 2),
    ),
    "all negative": (lambda: largest(LEAST), lambda: largest(0)),
    "an extent that is a size": (lambda: two_tables(0), lambda: two_tables(64)),
    "bins": (lambda: counts(256, 256), lambda: counts(256, 192)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_mistake_is_told_and_the_kernel_without_it_is_right(name: str) -> None:
    right, wrong = KERNELS[name]
    assert right().check().ok
    assert not wrong().check().ok


def test_a_condition_on_data_says_nothing_about_the_data() -> None:
    """A branch on a register reads a condition as an index of at most 1; elements are not held to that."""

    def of(factor: int) -> Callable[[Any], Any]:
        def branch(r: Any) -> Any:
            out = gr.let("out", r * 1, gr.i32)
            with gr.if_(r > 1):
                out[...] = r * factor
            return out

        return branch

    def means(x: Any) -> Any:
        return np.where(x > 1, x * 3, x)

    assert elementwise(means, of(3)).check().ok
    assert not elementwise(means, of(4)).check().ok


def test_a_meaning_does_not_begin_with_what_the_kernel_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ReductionConfig(op="max", dtype=gr.i32, vector=4)
    assert reduction_kernel(config).check().ok
    monkeypatch.setitem(reduction._START_I32, "max", 0)
    assert not reduction_kernel(config).check().ok


def bounded_by_sizes() -> gr.Kernel:
    """Elements of the second half of x, as a table says."""
    with gr.Kernel("picked", means=lambda x, at, y: x[at]) as kernel:
        N, M = gr.sym("N", min=1), gr.sym("M")
        x, at = gr.input("x", [N], gr.fp32), gr.input("at", [M], gr.i32)
        y = gr.output("y", [M], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(M, 32)).indices(), gr.threads(32).indices()
        with gr.if_(b * 32 + t < M):
            y[b * 32 + t] = gr.load(x[gr.index(at[b * 32 + t], min=N // 2, max=N - 1)])
    return kernel


@pytest.mark.parametrize("dtype", ["u8", "i8", "u16", "i16", "u32", "i64"])
@pytest.mark.parametrize("most", [7, 1000, None])
def test_tables_of_narrow_integers_are_drawn_within_their_facts(dtype: str, most: int | None) -> None:
    with gr.Kernel("looked_up", means=lambda x, at, y: x[at]) as kernel:
        N, M = gr.sym("N", min=1 if most is None else most + 1), gr.sym("M")
        x, at = gr.input("x", [N], gr.fp32), gr.input("at", [M], getattr(gr, dtype))
        y = gr.output("y", [M], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(M, 32)).indices(), gr.threads(32).indices()
        with gr.if_(b * 32 + t < M):
            y[b * 32 + t] = gr.load(x[gr.index(at[b * 32 + t], min=0, max=N - 1 if most is None else most)])
    assert kernel.check().ok


def test_bytes_that_hold_two_indices_are_drawn_whole() -> None:
    def kernel(mistaken: bool) -> gr.Kernel:
        def meaning(x: Any, at: Any, y: Any) -> Any:
            return x[at & 15] + x[at >> 4]

        with gr.Kernel("two_a_byte", means=meaning) as kernel:
            x, at = gr.input("x", [16], gr.fp32), gr.input("at", [32], gr.u8)
            y = gr.output("y", [32], gr.fp32)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            both = gr.let("both", gr.cast(gr.load(at[t]), gr.i32))
            low = gr.index(both & 15, min=0, max=15)
            high = gr.index((both >> 4) & (7 if mistaken else 15), min=0, max=15)
            y[t] = gr.load(x[low]) + gr.load(x[high])
        return kernel

    assert kernel(False).check().ok
    assert not kernel(True).check().ok


def test_bounds_of_sizes() -> None:
    kernel = bounded_by_sizes()
    assert kernel.check().ok
    source = kernel.cuda_source("sm_90a")
    assert "x[gr_min(" in source
    assert gr.parse(str(kernel)).cuda_source("sm_90a") == source
    x, y = np.arange(12, dtype=np.float32), np.zeros(3, np.float32)
    kernel(x, np.array([6, 11, 9], np.int32), y)
    assert y.tolist() == [6, 11, 9]
    for wrong, scalar, want in (
        (12, "at_below_max", "index <= N - 1, which is 11"),
        (5, "at_above_min", "index >= N//2, which is 6"),
    ):
        with pytest.raises(gr.SimulationError, match="an index read from data breaks its facts") as e:
            kernel(x, np.array([6, wrong, 9], np.int32), y)
        assert e.value.code == "SIM_FACT"
        told = str(e.value)
        assert f"want: {want}\n  got: {wrong}\n  in: thread 1 " in told
        assert f"scalar {scalar}" in told
        assert __file__.rpartition("/")[2] in told
