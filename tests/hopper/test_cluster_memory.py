"""Shared memory of another block of the cluster: what is recorded and refused, values, races, blocks that leave."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import hopper_listings
import numpy as np
import pytest

import graphene as gr

HERE = Path(__file__).name


@dataclass
class Parts:
    """Of a kernel of two blocks of a warp. Each thread has a vector `a` of its own, at `own(x)`, `own(y)`, `at(s)`."""

    x: gr.Tensor
    y: gr.Tensor
    s: gr.Tensor
    a: gr.Tensor
    cluster: gr.ThreadTensor
    rank: Any
    t: Any
    n: int

    def at(self, t: gr.Tensor, thread: Any) -> gr.Tensor:
        return t[thread] if self.n == 1 else t.tile([self.n])[thread]

    def own(self, t: gr.Tensor) -> gr.Tensor:
        return self.at(t, self.rank * 32 + self.t)

    def meet(self) -> None:
        gr.barrier(on=self.cluster)


def exchange(act: Callable[[Parts], None], dtype: gr.DType = gr.fp32, n: int = 4) -> gr.Kernel:
    with gr.Kernel("exchange") as kernel:
        x, y = (f(name, [64 * n], dtype, align_bytes=16) for f, name in ((gr.input, "x"), (gr.output, "y")))
        blocks, threads = gr.blocks(2, cluster=2), gr.threads(32)
        (c, rank), (t,) = blocks.indices(), threads.indices()
        s, a = gr.alloc("s", [32 * n], dtype, gr.SH), gr.alloc("a", [n], dtype, gr.RF)
        act(Parts(x, y, s, a[0] if n == 1 else a, blocks[c], rank, t, n))
    return kernel


def loads(p: Parts) -> None:
    gr.move(p.a, p.own(p.x))
    gr.move(p.at(p.s, p.t), p.a)
    p.meet()
    gr.move(p.a, p.at(p.s.of(1 - p.rank), 31 - p.t))
    p.meet()
    gr.move(p.own(p.y), p.a)


def stores(p: Parts) -> None:
    gr.move(p.a, p.own(p.x))
    p.meet()
    gr.move(p.at(p.s, 31 - p.t).of(1 - p.rank), p.a)
    p.meet()
    gr.move(p.a, p.at(p.s, p.t))
    gr.move(p.own(p.y), p.a)


def each_thread_another_block(p: Parts) -> None:
    gr.move(p.a, p.own(p.x))
    gr.move(p.at(p.s, p.t), p.a)
    p.meet()
    gr.move(p.a, p.at(p.s.of((p.t + p.rank + 1) % 2), 31 - p.t))
    p.meet()
    gr.move(p.own(p.y), p.a)


@pytest.mark.parametrize("act", [loads, stores, each_thread_another_block])
def test_blocks_exchange_vectors(act: Callable[[Parts], None]) -> None:
    kernel = exchange(act)
    x = np.arange(256, dtype=np.float32)
    rows = x.reshape(2, 32, 4)
    want = rows[::-1, ::-1].copy()
    if act is each_thread_another_block:
        want[:, 1::2] = rows[:, ::-1][:, 1::2]
    for seed in range(3):
        y = np.zeros_like(x)
        kernel.simulate(x, y, seed=seed)
        assert np.array_equal(y.reshape(2, 32, 4), want)
    assert kernel.check().ok


@pytest.mark.parametrize(
    ("dtype", "n"), [(gr.i8, 1), (gr.fp8e4m3, 16), (gr.fp16, 1), (gr.bf16, 8), (gr.fp64, 2)], ids=str
)
def test_it_prints_reads_back_and_compiles(dtype: gr.DType, n: int) -> None:
    def both(p: Parts) -> None:
        gr.move(p.a, p.own(p.x))
        p.meet()
        gr.move(p.at(p.s.of(1 - p.rank), 31 - p.t), p.a)
        p.meet()
        gr.move(p.a, p.at(p.s.of(1 - p.rank), 31 - p.t))
        p.meet()
        gr.move(p.own(p.y), p.a)

    kernel = exchange(both, dtype, n)
    assert kernel.compile("sm_90a").spill_bytes == 0
    assert len(re.findall(rf"%\d+:\[{32 * n}\]\.{dtype}\.DSM = %\d+\.of\(1 - @rank\)", str(kernel))) == 2
    assert gr.parse(str(kernel)) == kernel
    assert gr.parse(str(kernel).replace(".of(1 - @rank)", ".of(@rank)")) != kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel


def test_what_is_rounded_on_its_way_to_another_block_is_found() -> None:
    with gr.Kernel("rounded") as kernel:
        x, y = (f(name, [64], gr.fp32) for f, name in ((gr.input, "x"), (gr.output, "y")))
        blocks, threads = gr.blocks(2, cluster=2), gr.threads(32)
        (c, rank), (t,) = blocks.indices(), threads.indices()
        share = gr.alloc("share", [32], gr.fp16, gr.SH)
        wide, narrow = (gr.alloc(name, [], of, gr.RF) for name, of in (("wide", gr.fp32), ("narrow", gr.fp16)))
        gr.move(wide, x[rank * 32 + t])
        narrow[...] = wide
        gr.move(share[t], narrow)
        gr.barrier(on=blocks[c])
        with gr.if_(rank == 0):
            gr.move(narrow, share.of(1)[t])
            wide[...] = narrow * 3
        gr.barrier(on=blocks[c])
        gr.move(y[rank * 32 + t], wide)
    done = kernel.simulate(np.ones(64, np.float32), np.zeros(64, np.float32), roundings=True)
    assert [r.tensor for r in done.roundings] == ["narrow"]


def not_begun(p: Parts) -> None:
    gr.move(p.a, p.own(p.x))
    gr.move(p.at(p.s.of(1 - p.rank), p.t), p.a)
    p.meet()
    gr.move(p.a, p.at(p.s, p.t))
    gr.move(p.own(p.y), p.a)


def leaves_early(p: Parts) -> None:
    gr.move(p.a, p.own(p.x))
    gr.move(p.at(p.s, p.t), p.a)
    p.meet()
    gr.move(p.a, p.at(p.s.of(1 - p.rank), p.t))
    gr.move(p.own(p.y), p.a)


def a_barrier_of_the_block(p: Parts) -> None:
    gr.move(p.a, p.own(p.x))
    p.meet()
    gr.move(p.at(p.s, p.t), p.a)
    gr.barrier()
    gr.move(p.a, p.at(p.s.of(1 - p.rank), p.t))
    p.meet()
    gr.move(p.own(p.y), p.a)


def overwritten(p: Parts) -> None:
    b = gr.alloc("b", [4], gr.fp32, gr.RF)
    gr.move(p.a, p.own(p.x))
    gr.move(p.at(p.s, p.t), p.a)
    p.meet()
    gr.move(b, p.at(p.s.of(1 - p.rank), p.t))
    gr.move(p.at(p.s, p.t), p.a)
    p.meet()
    gr.move(p.own(p.y), b)


def two_writers(p: Parts) -> None:
    gr.move(p.a, p.own(p.x))
    p.meet()
    gr.move(p.at(p.s.of(0), p.t), p.a)
    p.meet()
    gr.move(p.a, p.at(p.s.of(0), p.t))
    p.meet()
    gr.move(p.own(p.y), p.a)


MISTAKES = [
    (not_begun, "an access to the shared memory of a block that may not have begun   [SIM_RACE]"),
    (leaves_early, "a block may end before another one accesses its shared memory   [SIM_UNFINISHED_COPY]"),
    (
        a_barrier_of_the_block,
        "a read of a value that an unordered thread writes: s[0] of block (1)   [SIM_RACE]"
        "|a write over a value that an unordered thread reads: s[0]   [SIM_RACE]"
        "|a read of a value that an unordered thread writes: s[0] of block (0)   [SIM_RACE]",
    ),
    (
        overwritten,
        "a write over a value that an unordered thread reads: s[0]   [SIM_RACE]"
        "|a read of a value that an unordered thread writes: s[0] of block (0)   [SIM_RACE]"
        "|a read of a value that an unordered thread writes: s[0] of block (1)   [SIM_RACE]",
    ),
    (two_writers, "two unordered writes of s[0] of block (0)   [SIM_RACE]"),
]


@pytest.mark.parametrize(("act", "want"), MISTAKES, ids=[act.__name__ for act, _ in MISTAKES])
def test_a_mistake_has_its_name(act: Callable[[Parts], None], want: str) -> None:
    kernel = exchange(act)
    for seed in range(3):
        with pytest.raises(gr.SimulationError) as caught:
            kernel.simulate(np.ones(256, np.float32), np.zeros(256, np.float32), seed=seed)
        first = str(caught.value).splitlines()[0].split(": ", 1)[1]
        assert first in want.split("|")


def test_both_lines_of_a_race_between_blocks() -> None:
    with pytest.raises(gr.SimulationError) as caught:
        exchange(two_writers).simulate(np.ones(256, np.float32), np.zeros(256, np.float32))
    assert re.sub(rf"{re.escape(HERE)}:\d+", "FILE:N", str(caught.value)).splitlines()[2:] == [
        "  write by thread 0 (warp 0, lane 0) of block (0), FILE:N",
        "  write by thread 0 (warp 0, lane 0) of block (1), FILE:N",
        "  fix: put a barrier of the cluster between the two, or an arrival with release=True that a wait with "
        "acquire=True waits for",
    ]


REFUSED: list[tuple[Callable[[Parts], object], str]] = [
    (
        lambda p: p.s.of(2),
        """
        FILE:N: a block that is not proven to be of the cluster   [VERIFY_CLUSTER]
          tensor: [128].fp32.DSM of s
          want: a rank from 0 to 1
          got: 2
          fix: count the blocks of a cluster from 0: r with c, r = blocks.indices(), or (r + 1) % 2
        """,
    ),
    (
        lambda p: p.s.of(p.t),
        """
        FILE:N: a block that is not proven to be of the cluster   [VERIFY_CLUSTER]
          tensor: [128].fp32.DSM of s
          want: a rank from 0 to 1
          got: @t
          fix: count the blocks of a cluster from 0: r with c, r = blocks.indices(), or (r + 1) % 2
        """,
    ),
    (
        lambda p: p.s.of(1).of(0),
        """
        FILE:N: only shared memory is reached in other blocks of the cluster   [TENSOR_TYPE]
          tensor: [128].fp32.DSM
          fix: it is another block's already: take .of(rank) of the block's own tensor
        """,
    ),
    (
        lambda p: p.a.of(0),
        """
        FILE:N: only shared memory is reached in other blocks of the cluster   [TENSOR_TYPE]
          tensor: [4].fp32.RF
          fix: allocate it in gr.SH
        """,
    ),
    (
        lambda p: gr.mbarrier("full", 1, 1)[0].tensor.of(1),
        """
        FILE:N: only shared memory is reached in other blocks of the cluster   [TENSOR_TYPE]
          tensor: [].mbar.SH
          fix: arrive at another block's barrier: full[i].arrive(at=cluster)
        """,
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number: int) -> None:
    act, want = REFUSED[number]
    with pytest.raises(gr.GrapheneError) as caught:
        exchange(lambda p: act(p))  # type: ignore[arg-type, return-value]
    assert re.sub(rf"{re.escape(HERE)}:\d+", "FILE:N", str(caught.value)) == dedent(want).strip()


def test_nothing_is_declared_in_another_block() -> None:
    with gr.Kernel("k"):
        blocks = gr.blocks(2)
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        for declare in (lambda: gr.alloc("q", [2], gr.fp32, gr.DSM), lambda: gr.tensor("q", [2], gr.fp32, gr.DSM)):
            with pytest.raises(gr.LayoutError, match=r"nothing is declared in another block's shared memory"):
                declare()
        with pytest.raises(gr.VerifyError, match="this kernel has no clusters"):
            s.of(0)
        assert blocks.size == 2
    text = 'kernel "k" format=1\n#1:[2].block cluster=2\n#2:[32].thread\n%3:[4].fp32.DSM <- Allocate(name="s")\n'
    with pytest.raises(gr.LayoutError, match="a kernel allocates its own block's shared memory"):
        gr.parse(text)


def test_instructions_of_the_own_block_do_not_reach_another() -> None:
    def agents(p: Parts) -> None:
        gr.move(p.a, p.at(p.s.of(1), p.t), atom="ld.shared.v4.b32")

    with pytest.raises(gr.SelectError, match=r"want: Move from a 32-bit type in SH(.|\n)*from DSM to RF"):
        exchange(agents).cuda_source("sm_90a")


@pytest.mark.parametrize("parts", [2, 4])
def test_a_product_whose_k_is_cut_over_the_blocks_of_a_cluster(parts: int) -> None:
    kernel = hopper_listings.gemm_split_sm90(parts=parts)
    assert gr.parse(str(kernel)) == kernel
    draw = np.random.default_rng(0)
    for m, n, k in ((16, 64, 520), (70, 72, 8)):
        a, b = (draw.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
        c = np.full((m, n), np.nan, np.float16)
        kernel.simulate(a, b, c, seed=1)
        assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    done = kernel.compile("sm_90a")
    assert (done.spill_bytes, done.registers <= 64) == (0, True)


def test_every_synchronisation_of_that_product_is_needed() -> None:
    mutants = hopper_listings.gemm_split_sm90(parts=2).mutants(M=16, N=64, K=64 * 2 * 7)
    assert [str(m) for m in mutants if m.hazard is None] == []
    assert [m.hazard for m in mutants[-2:]] == ["SIM_RACE", "SIM_UNFINISHED_COPY"]  # the cluster's barriers
