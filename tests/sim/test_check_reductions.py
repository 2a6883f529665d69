"""What check() holds reductions of fragments to: accumulating ones, and each lane's share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.testing.mutate import judge, mutants


def rows(op: str, lanes: bool, accumulate: bool) -> gr.Kernel:
    """y[i] = op over row i of x (and a start value); `lanes`: first each lane's share, then over the lanes."""
    mma = gr.atom("mma.m16n8k16.f32.f16")

    def means(x: Any) -> Any:
        if op == "max":  # of a NaN and a number, the number
            y = np.where(np.isnan(x), -np.inf, x).max(1)
            return np.maximum(y, 0.5) if accumulate else np.where(np.isnan(x).all(1), np.nan, y)
        return x.sum(1) + 0.5 * accumulate * (4 if lanes else 1)  # four lanes share a row

    with gr.Kernel("rows", means=means) as kernel:
        x, y = gr.input("x", [16, 16], gr.fp32, align_bytes=8), gr.output("y", [16], gr.fp32)
        warp = gr.threads(32)
        s = gr.fragment("s", [16, 16], gr.fp32, mma.c, on=warp)
        m = s.reduced(1, "m", lanes=lanes)
        gr.move(s, x, atom=gr.atom("ld.global.v2.b32"))
        if accumulate:
            gr.init(m, 0.5)
        gr.reduce(op, m, s, axis=1, accumulate=accumulate)
        if lanes:
            total = s.reduced(1, "total")
            gr.reduce(op, total, m, axis=1)
            m = total
        (lane,) = warp.indices()
        for i in range(2):
            gr.move(y[lane // 4 + 8 * i], m.values[i])
    return kernel


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("op", ["add", "max"])
def test_every_mutant_of_a_reduction_is_told(op: str, lanes: bool, accumulate: bool) -> None:
    kernel = rows(op, lanes, accumulate)
    result = kernel.check()
    assert result.ok
    assert result.promises == 2 + lanes + accumulate
    x = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    found = [judge(kernel, m, [lambda: [x, np.zeros(16, np.float32)]]) for m in mutants(kernel)]
    assert [str(v.mutant) for v in found if v.kind in ("missed", "equal") and "value=" not in v.mutant.before] == []
    assert sum(v.kind == "promise" for v in found) > 5


def powers(neutral: bool) -> gr.Kernel:
    """Y[i] = sum of e^x over row i of X (8, 6): of the four lanes of a row, the last one has columns past its end."""
    covered = gr.Arguments(kinds=("normal", "rising"))
    with gr.Kernel("powers", means=lambda X: np.exp(X).sum(1), arguments=covered) as kernel:
        X, Y = gr.input("X", [8, 6], gr.fp32, align_bytes=8), gr.output("Y", [8], gr.fp32)
        threads = gr.threads(32)
        tv = gr.tv(gr.Layout((4, 8), (16, 1)), gr.Layout(2, 8))
        v = gr.fragment("v", [8, 6], gr.fp32, tv, on=threads)
        total = v.reduced(1, "total")
        gr.init(total, 0)
        gr.move(v, X, atom=gr.atom("ld.global.v2.b32"))
        for i in range(2):
            v.values[i] = gr.exp(v.values[i])
        _, column = v.coords()
        if neutral:
            v[:] = gr.where(column < 6, v, 0)
        gr.reduce("add", total, v, axis=1, accumulate=True)
        (t,) = threads.indices()
        with gr.if_(t % 4 == 0):
            gr.move(Y[t // 4], total.values[0])
    return kernel


def test_registers_past_the_width_of_a_fragment_count_in_a_reduction() -> None:
    """They were rewritten one by one, so what they hold is added: nothing only if it was made the neutral element."""
    assert powers(neutral=True).check()
    result = powers(neutral=False).check()
    assert {e.code for e in result.errors} == {"CHECK_PROMISE"}
