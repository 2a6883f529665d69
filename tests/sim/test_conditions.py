"""A check that judged nothing is not ok, and chosen sizes keep what a launch asks of them beyond the symbols' facts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.judge.conditions import Conditions
from graphene.judge.signature import Facts


def copied(factor: float = 1.0, **facts: int) -> gr.Kernel:
    """y = x by tensor maps, whose lines must be multiples of 16 bytes apart: the symbols do not say so."""
    with gr.Kernel("copied", means=lambda x: x) as kernel:
        M, N = gr.sym("M"), gr.sym("N", **facts)
        x = gr.input("x", gr.row_major(M, N), gr.fp16, align_bytes=16)
        y = gr.output("y", gr.row_major(M, N), gr.fp16, align_bytes=16)
        i, j = gr.blocks(gr.ceil_div(M, 16), gr.ceil_div(N, 64)).indices()
        warp = gr.threads(32)
        (t,) = warp.indices()
        s = gr.alloc("s", [16, 64], gr.fp16, gr.SH, swizzle=gr.swizzle(64, gr.fp16))
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s])
            gr.move(s, x.tile([16, 64])[i, j], atom="tma.load", done=full[0])
        full[0].wait(0)
        r = gr.alloc("r", [8], gr.fp16, gr.RF)
        for c in range(4):
            mine = s.tile([1, 8])[t // 2, t % 2 * 4 + c][0, :]
            gr.move(r, mine)
            r[:] = r * factor
            gr.move(mine, r)
        gr.fence("async.shared")
        gr.barrier()
        with gr.only(warp.elect()):
            gr.move(y.tile([16, 64])[i, j], s, atom="tma.store")
            gr.commit("tma.store")
            gr.wait("tma.store", pending=0)
    return kernel


def test_sizes_keep_what_a_launch_asks_for() -> None:
    result = copied(min=1).check()
    assert result.ok, str(result)
    assert len(result.calls) > 10
    assert any("N=72," in c or "N=56," in c for c in result.calls), result.calls  # next to a tile, by what is asked
    assert any(c.startswith("M=1, N=") and int(c.split("N=")[1].split(",")[0]) % 8 for c in result.calls)  # one line
    assert {e.code for e in copied(2.0, min=1).check().errors} == {"CHECK_PROMISE"}


def test_a_size_that_a_launch_refuses_leaves_others() -> None:
    """Lines of 73 elements are allowed where there is one line."""
    result = copied(min=1).check(N=73)
    assert result.ok, str(result)
    assert all(c.startswith("M=1, N=73") for c in result.calls)
    assert not copied(2.0, min=1).check(N=73)


def test_calls_that_are_all_refused_are_not_ok() -> None:
    result = copied(min=1).check(M=70, N=73)
    assert not result
    assert result.calls == ()
    (error,) = result.errors
    assert error.code == "LAUNCH_FACT"
    assert error.message == "no call of copied could be judged"
    assert "want: M < 2 or N%8 == 0" in str(error)
    assert "in the call: M=70, N=73" in str(error)


def test_a_call_too_large_to_be_judged_is_judged_at_smaller_sizes() -> None:
    def summed(step: int) -> gr.Kernel:
        with gr.Kernel("summed", means=lambda X, Y: Y + X.sum(keepdims=True)) as kernel:
            n = gr.sym("n", multiple_of=64)
            x, y = gr.input("X", [n], gr.i32), gr.inout("Y", [1], gr.i32)
            (b,) = gr.blocks(n // 64).indices()
            (t,) = gr.threads(64).indices()
            r = gr.alloc("r", [], gr.i32, gr.RF)
            gr.move(r, x[b * 64 + t])
            with gr.loop("k", 200):
                gr.binary("add", r, r, step)
            gr.move(y[0], r, combine="add", atomic="relaxed.gpu")  # nobody can tell which block wrote what
        return kernel

    result = summed(0).check(n=64 * 8000)
    assert result.ok, str(result)
    assert result.uncovered[0] == "what summed promises was looked at in smaller calls alone"
    assert result.blocks < 100
    assert result.worst is not None
    assert {e.code for e in summed(1).check(n=64 * 8000).errors} == {"CHECK_PROMISE"}


def test_no_memory_for_any_call_is_not_ok() -> None:
    def means(X: Any) -> Any:
        np.multiply(X[:, None, None, None], np.ones((1, 256, 256, 64)))  # 32 MiB for each number
        return X

    with gr.Kernel("same", means=means) as kernel:
        n = gr.sym("n", min=1)
        x, y = gr.input("X", [n], gr.fp32), gr.output("Y", [n], gr.fp32)
        (b,) = gr.blocks(n).indices()
        gr.threads(1)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[b])
        gr.move(y[b], r)
    for result in (kernel.check(memory_bytes=8 << 20), kernel.check(n=3, memory_bytes=8 << 20)):
        (error,) = result.errors
        assert error.code == "SIM_MEMORY"
        assert "no call of same could be judged" in str(error)


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        (["M < 2 or K%8 == 0"], {"K": 8}),
        (["M < 2 or (K*2)%16 == 0", "(K + N)%4 == 0"], {"K": 8, "N": 4}),
        (["(K + N)%4 == 0"], {"K": 4, "N": 4}),
        (["ld%8 == 0"], {"ld": 8}),
        (["M*K%8 == 0"], {"K": 8}),
        (["M < 2"], {}),
    ],
)
def test_multiples_follow_from_conditions(texts: list[str], want: dict[str, int]) -> None:
    symbols = {"M": Facts(1), "K": Facts(1), "N": Facts(), "ld": Facts()}
    found = Conditions(texts).multiples(symbols, {})
    assert {n: m for n, m in found.items() if m > 1} == want
