"""Rules about barriers, clusters and roles: what is refused, word by word, and what stands near it and is not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

import graphene as gr
from graphene import _core
from graphene.kernels.gemm.sm90 import gemm_sm90

HERE = Path(__file__).name


class Parts:
    """A kernel of two warpgroups in clusters of two blocks."""

    def __init__(self) -> None:
        self.y = gr.output("y", [1], gr.fp32)
        self.blocks, self.threads = gr.blocks(4, cluster=2), gr.threads(256)
        self.c, self.r = self.blocks.indices()
        self.cluster, self.warpgroups = self.blocks[self.c], self.threads.tile(128)
        self.x = gr.alloc("x", [], gr.fp32, gr.RF)
        gr.init(self.x, 0)
        gr.move(self.y[0], self.x)
        self.s = gr.alloc("s", [64], gr.fp32, gr.SH)


def problems(kernel: gr.Kernel) -> str:
    try:
        _core.verify(kernel.ir)
    except gr.VerifyError as error:
        return re.sub(rf"{re.escape(HERE)}:\d+", "FILE:N", str(error))
    return ""


def refused(act: Callable[[Parts], object]) -> str:
    with gr.Kernel("k") as kernel:
        act(Parts())
    return problems(kernel)


def nested_declaration(p: Parts) -> None:
    with gr.loop("k", 3):
        gr.mbarrier("full", 1, 1)


def nothing_arrives(p: Parts) -> None:
    full = gr.mbarrier("full", 2, 3)
    full[0].wait(0)
    full[1].wait(0)


def elected_at_a_named_barrier(p: Parts) -> None:
    turn = gr.named_barrier("turn", 1, 64)
    with gr.only(p.warpgroups[0].elect()):
        turn[0].arrive()


def half_a_warp_at_a_named_barrier(p: Parts) -> None:
    turn = gr.named_barrier("turn", 1, 64)
    (t,) = p.threads.indices()
    with gr.if_(t % 2 == 0):
        turn[0].sync()


def others_cluster(p: Parts) -> None:
    full = gr.mbarrier("full", 1, 1)
    full[0].arrive(at=p.blocks[0])


def half_a_cluster(p: Parts) -> None:
    gr.barrier(on=p.cluster[p.r])


def one_block_of_a_cluster(p: Parts) -> None:
    with gr.if_(p.r == 0):
        gr.barrier(on=p.cluster)


def one_role_at_a_clusters_barrier(p: Parts) -> None:
    with gr.only(p.warpgroups[0]):
        gr.barrier(on=p.cluster)


def odd_registers(p: Parts) -> None:
    with gr.only(p.warpgroups[0]):
        gr.setmaxnreg(100)


def late_registers(p: Parts) -> None:
    with gr.only(p.warpgroups[0]):
        gr.init(p.x, 1)
        gr.setmaxnreg(40)


def half_a_warpgroup(p: Parts) -> None:
    with gr.only(p.threads.tile(64)[0]):
        gr.setmaxnreg(40)


def twice(p: Parts) -> None:
    with gr.only(p.warpgroups[0]):
        gr.setmaxnreg(40)
    with gr.only(p.warpgroups[0:2]):
        gr.setmaxnreg(40)


def one_role_says_nothing(p: Parts) -> None:
    with gr.only(p.warpgroups[0]):
        gr.setmaxnreg(40)


REFUSED: list[tuple[Callable[[Parts], None], str]] = [
    (
        nested_declaration,
        """
        FILE:N: an mbarrier is declared where every thread gets to, once   [VERIFY_BARRIER]
            %10:[1].mbar.SH <- Allocate(name="full", arrivals=1)
          barrier: full
          inside: for(k=0; k < 3; k += 1)  at FILE:N
          fix: declare it before the block of statements
        """,
    ),
    (
        nothing_arrives,
        """
        FILE:N: a phase that nothing arrives at does not end   [VERIFY_BARRIER]
            wait_phase(%11, phase=0)
          barrier: full
          want: 3 arrivals a phase
          fix: let who fills the stage arrive: full[i].arrive(expect=[tile]); a copy alone is not an arrival
        """,
    ),
    (
        elected_at_a_named_barrier,
        """
        FILE:N: whole warps are at a named barrier, not a part of one   [VERIFY_BARRIER]
            arrive(%12)
          barrier: %12:[].bar.SH of turn
          fix: move it out of gr.only(...elect()), or use gr.mbarrier
        """,
    ),
    (
        half_a_warp_at_a_named_barrier,
        """
        FILE:N: a named barrier that a part of a warp reaches   [VERIFY_BARRIER_DIVERGENT]
            sync(%11)
          barrier: %11:[].bar.SH of turn
          inside: if(@t%2 == 0)  at FILE:N
          fix: branch on something that is the same in the whole warp
        """,
    ),
    (
        others_cluster,
        """
        FILE:N: blocks that are not of the own cluster   [VERIFY_CLUSTER]
            arrive(%11, to=#12)
          blocks: #12:[2].block
          cluster: 2
          fix: name the own cluster: blocks[c] with c, r = blocks.indices()
        """,
    ),
    (
        half_a_cluster,
        """
        FILE:N: a barrier of blocks is one of the whole cluster   [VERIFY_CLUSTER]
            barrier(#10)
          blocks: #10:[].block
          cluster: 2
          fix: name the own cluster: blocks[c] with c, r = blocks.indices()
        """,
    ),
    (
        one_block_of_a_cluster,
        """
        FILE:N: a barrier that not all of its threads reach   [VERIFY_BARRIER_DIVERGENT]
            barrier(#5)
          barrier: of the cluster #5:[2].block
          inside: if(@b1 == 0)  at FILE:N
          fix: move it out of the branch
        """,
    ),
    (
        one_role_at_a_clusters_barrier,
        """
        FILE:N: a barrier that not all of its threads reach   [VERIFY_BARRIER_DIVERGENT]
            barrier(#5)
          barrier: of the cluster #5:[2].block
          inside: only(#10)  at FILE:N
          fix: move it out of the branch
        """,
    ),
    (
        odd_registers,
        """
        FILE:N: a thread has 24 to 256 registers, a multiple of 8   [VERIFY_REGISTERS]
            setmaxnreg(registers=100)
          got: 100
        """,
    ),
    (
        late_registers,
        """
        FILE:N: registers are given at the start of a role   [VERIFY_REGISTERS]
            setmaxnreg(registers=40)
          fix: let it be the first statement of `with gr.only(warpgroups[i]):`
        """,
    ),
    (
        half_a_warpgroup,
        """
        FILE:N: registers are given to whole warpgroups, 128 threads from a multiple of 128   [VERIFY_REGISTERS]
            setmaxnreg(registers=40)
          fix: tile the threads by 128 and name warpgroups in gr.only
        """,
    ),
    (
        twice,
        """
        FILE:N: registers given twice to the same threads   [VERIFY_REGISTERS]
            setmaxnreg(registers=40)
          thread: 0
        """,
    ),
    (
        one_role_says_nothing,
        """
        FILE:N: warpgroups that say nothing of their registers   [VERIFY_REGISTERS]
            setmaxnreg(registers=40)
          thread: 128
          fix: let every role begin with gr.setmaxnreg: what one gives up another may take
        """,
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[act.__name__ for act, _ in REFUSED])
def test_refused(number: int) -> None:
    act, want = REFUSED[number]
    assert refused(act) == dedent(want).strip()


def test_blocks_of_a_kernel_without_clusters() -> None:
    with gr.Kernel("k") as kernel:
        blocks = gr.blocks(4)
        gr.threads(32)
        (b,) = blocks.indices()
        full = gr.mbarrier("full", 1, 1)
        full[0].arrive(at=blocks.tile(2)[b // 2])
    assert "this kernel has none" in problems(kernel)


def test_more_registers_than_a_block_has() -> None:
    """32 and 240 sum to what an SM has, and to more than 168 for each of 384 threads."""

    def kernel(producer: int, consumer: int) -> gr.Kernel:
        with gr.Kernel("k") as k:
            gr.blocks(1)
            wgs = gr.threads(384).tile(128)
            with gr.only(wgs[0]):
                gr.setmaxnreg(producer)
            with gr.only(wgs[1:3]):
                gr.setmaxnreg(consumer)
        return k

    assert problems(kernel(40, 232)) == ""
    assert problems(kernel(24, 240)) == ""
    assert problems(kernel(32, 240)) == dedent("""\
        FILE:N: more registers than the block is launched with   [VERIFY_REGISTERS]
            setmaxnreg(registers=240)
          want: at most 64512, which is 168 for each of 384 threads
          got: 65536
          fix: ask for fewer registers: the role would wait for ever for registers that the block does not have""")


def test_what_differs_is_asked_of_the_barriers_threads() -> None:
    """A ring of a role is the same in the role; one that an elected thread turns is not."""

    def kernel(turns: str) -> gr.Kernel:
        with gr.Kernel("k") as k:
            gr.blocks(1)
            consumers = gr.threads(384).tile(128)[1:3]
            if turns == "outside":
                ring = gr.ring("get", 2)
            with gr.only(consumers):
                w, _ = consumers.indices()
                mine = consumers[w]
                if turns != "outside":
                    ring = gr.ring("get", 2)
                with gr.loop("k", 8 + w if turns == "own" else 8):
                    with gr.if_(ring.index == 0):
                        gr.barrier(on=mine)
                    if turns == "elected":
                        with gr.only(mine.elect()):
                            ring.advance()
                    else:
                        ring.advance()
                if turns == "both":
                    with gr.if_(ring.index == w):
                        gr.barrier(on=consumers)
        return k

    for turns in ("role", "outside", "own"):
        assert problems(kernel(turns)) == "", turns
    assert "VERIFY_BARRIER_DIVERGENT" in problems(kernel("elected"))
    assert "inside: if(get == 0)" in problems(kernel("elected"))
    assert "inside: if(get == @w)" in problems(kernel("both"))


def test_barriers_are_initialised_before_earlier_kernels_are_waited_for() -> None:
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        full = gr.mbarrier("full", 2, 32)
        gr.barrier()
        full[0].arrive()
        gr.wait_kernels()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[t])
        gr.move(y[t], r)
    assert problems(kernel) == ""


def test_the_executing_clusters_blocks_are_known() -> None:
    """Of one or several dimensions, and with numbers of clusters known at a launch only."""
    M = gr.sym("M")
    for size in ([8], [2 * gr.ceil_div(M, 64)], [8, 3], [2 * gr.max(1, gr.min(gr.sm_count() // 2, M))]):
        with gr.Kernel("k") as kernel:
            gr.input("x", [M], gr.fp32)
            blocks = gr.blocks(*size, cluster=2)
            gr.threads(32)
            levels = blocks.indices()
            outer = levels[0] if isinstance(levels[0], tuple) else (levels[0],)
            cluster = blocks[outer]
            full = gr.mbarrier("full", 1, 64)
            gr.barrier(on=cluster)
            full[0].arrive(at=cluster)
            full[0].arrive(at=cluster[(1,) * len(outer)] if len(outer) == 1 else cluster)
            full[0].wait(0)
        assert problems(kernel) == "", size


def test_rules_take_less_time_than_lowering() -> None:
    """Threads of a group are compared once for each value, however many statements and scalars ask for it."""
    kernel = gemm_sm90(128, 128, STAGES=3)

    def least(work: Callable[[], object]) -> float:
        times = []
        for _ in range(3):
            begin = time.process_time()
            work()
            times.append(time.process_time() - begin)
        return min(times)

    assert least(lambda: _core.verify(kernel.ir)) < 0.8 * least(lambda: _core.lower_unverified(kernel.ir, "sm_90a"))
