"""Barriers, copies that complete on them, clusters: what Python records prints, parses back and is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

import graphene as gr

HERE = Path(__file__).name
Golden = Callable[[str, str], None]


def same(a: gr.Kernel, b: gr.Kernel) -> None:
    assert a == b
    assert str(a) == str(b)
    assert a.to_json() == b.to_json()


def every_form() -> gr.Kernel:
    """Each statement of Hopper's once; it is recorded, not run."""
    with gr.Kernel("every_form") as kernel:
        x = gr.input("x", gr.row_major(128, 64), gr.fp16, align_bytes=16)
        y = gr.output("y", gr.row_major(128, 64), gr.fp16, align_bytes=16)
        blocks, threads = gr.blocks(4, cluster=2), gr.threads(256)
        c, rank = blocks.indices()
        cluster = blocks[c]
        s = gr.alloc("s", [64, 64], gr.fp16, gr.SH, stages=3, swizzle=gr.swizzle(64, gr.fp16))
        full, empty = gr.mbarrier("full", 3, arrivals=1), gr.mbarrier("empty", 3, arrivals=4)
        turn = gr.named_barrier("turn", stages=2, threads=256)
        gr.barrier(on=cluster)
        put = gr.ring("put", 3, phase=1)
        empty[put.index].wait(put.phase)
        full[put.index].arrive(expect=[s[put.index], s[0].tile([32, None])[0, 0]])
        gr.move(s[put.index], x.tile([64, None])[0, 0], done=full[put.index])
        gr.move(s[0], x.tile([64, None])[1, 0], done=full[0], to=cluster)
        full[1].arrive(expect=8192)
        full[2].arrive(after="cp.async.ca.4")
        put.advance()
        put.advance(2)
        put.advance(7)
        empty[0].arrive()
        empty[put.index].arrive(at=cluster)
        empty[0].arrive(at=cluster[1], release=True)
        empty[1].wait(0, acquire=True)
        gr.move(s.of(1 - rank)[0][0, 0], gr.alloc("r", [], gr.fp16, gr.RF))
        turn[0].sync()
        turn[1].arrive()
        gr.fence("async.shared")
        gr.fence("async.global")
        gr.move(y.tile([64, None])[0, 0], s[0])
        gr.commit("store")
        gr.wait("store", pending=1)
        gr.wait("store", pending=0, written=True)
        with gr.only(threads.tile(128)[0]):
            gr.setmaxnreg(40)
        gr.barrier(on=cluster)
    return kernel


def test_every_form_prints_and_reads_back(golden: Golden) -> None:
    kernel = every_form()
    golden("hopper_forms.gir", str(kernel))
    same(gr.parse(str(kernel)), kernel)
    same(gr.Kernel.from_json(kernel.to_json()), kernel)
    same(gr.Kernel.from_json(kernel.to_json(locations=True)), kernel)


def test_every_part_of_a_form_makes_another_kernel() -> None:
    text = str(every_form())
    kernel = gr.parse(text)
    changes = [
        ("cluster=2", "cluster=4"),
        ('"full", arrivals=1', '"full", arrivals=2'),
        ('"turn", arrivals=256', '"turn", arrivals=128'),
        ("phase=put_phase", "phase=1"),
        ("expect_bytes=8192", "expect_bytes=4096"),
        ('"cp.async.ca.4"', '"cp.async.ca.8"'),
        ("registers=40", "registers=32"),
        (", written=true", ""),
        (', release="cluster"', ""),
        (', acquire="cluster"', ""),
        (".of(1 - @rank)", ".of(@rank)"),
    ]
    done = re.search(r" done=%\d+ to=#\d+", text)
    expect = re.search(r"expect=\((%\d+), (%\d+)\)", text)
    remote = re.search(r"arrive\((%\d+), to=#\d+\)", text)
    assert done
    assert expect
    assert remote
    changes += [
        (done[0], done[0].split(" to=")[0]),
        (done[0], ""),
        (expect[0], f"expect=({expect[2]}, {expect[1]})"),
        (expect[0], f"expect=({expect[1]})"),
        (remote[0], f"arrive({remote[1]})"),
    ]
    for old, new in changes:
        assert old in text, old
        other = gr.parse(text.replace(old, new))
        assert other != kernel, old
        same(gr.Kernel.from_json(other.to_json()), other)


def test_syncs_lists_them() -> None:
    kernel = every_form()
    ops = [re.split(r"\(", s.text)[0] for s in kernel.syncs()]
    assert ops == [
        *("barrier", "wait_phase", "arrive", "arrive", "arrive", "arrive", "arrive", "arrive", "wait_phase", "sync"),
        "arrive",
        *("fence", "fence", "commit", "wait", "wait", "setmaxnreg", "barrier"),
    ]
    assert all(HERE in s.where for s in kernel.syncs())


def test_a_ring_advances_by_any_number_of_steps() -> None:
    with gr.Kernel("k") as kernel:
        n = gr.param("n", gr.i32)
        ring = gr.ring("ring", 3)
        ring.advance(2)
        ring.advance(5)
        ring.advance(n)
        with gr.if_(ring.index + ring.phase == 0):
            pass
    assert [line for line in str(kernel).splitlines() if line.startswith("ring")] == [
        "ring_phase = ring_phase ^ (ring + 2)//3",
        "ring = (ring + 2)%3",
        "ring_phase = ring_phase ^ ((ring + 2)//3 + 1)%2",
        "ring = (ring + 2)%3",
        "ring_phase = ring_phase ^ ((n + ring)//3)%2",
        "ring = (n + ring)%3",
    ]


def test_a_loop_steps_by_the_size_of_the_grid() -> None:
    M = gr.sym("M")
    with gr.Kernel("k") as kernel:
        gr.input("x", [M], gr.fp32)
        blocks = gr.blocks(gr.ceil_div(M, 64))
        (b,) = blocks.indices()
        for t in gr.loop("t", 4 * M, start=b, step=blocks.size):
            gr.exit_if(t > M)
    same(gr.parse(str(kernel)), kernel)
    same(gr.Kernel.from_json(kernel.to_json()), kernel)
    with gr.Kernel("other"):
        gr.input("x", [M], gr.fp32)
        gr.blocks(gr.ceil_div(M, 64))
        loop = gr.loop("t", 4 * M, step=M)
        with pytest.raises(gr.VerifyError, match="LOOP_STEP"):
            loop.__enter__()


def test_the_number_of_multiprocessors_is_a_symbol_of_the_device() -> None:
    n = gr.max(1, gr.min(gr.sm_count() // 2, 100))
    assert str(n) == "max(min(sm_count//2, 100), 1)"


def test_panels_are_lines_of_128_bytes() -> None:
    assert gr.panels(64, 128, gr.fp16) == gr.Layout((64, (64, 2)), (64, (1, 4096)))
    assert gr.panels(8, 48, gr.fp16) == gr.Layout((8, (16, 3)), (16, (1, 128)))
    assert gr.panels(8, 32, gr.fp16) == gr.Layout((8, (32, 1)), (32, (1, 256)))
    with pytest.raises(gr.LayoutError) as caught:
        gr.panels(64, 20, gr.fp16)
    assert str(caught.value) == dedent("""\
        rows that are not cut into lines of 128, 64 or 32 bytes   [LAYOUT_DIVISIBILITY]
          want: a multiple of 8 rows, each a multiple of 32 bytes
          got: 64 rows of 40 bytes
          fix: choose a larger tile""")


# ---- errors


class Parts:
    """What the kernels below are made of."""

    def __init__(self) -> None:
        self.x = gr.input("x", gr.row_major(64, 64), gr.fp16)
        self.blocks = gr.blocks(4, cluster=2)
        self.threads = gr.threads(128)
        c, _ = self.blocks.indices()
        self.cluster = self.blocks[c]
        self.s = gr.alloc("s", [64, 64], gr.fp16, gr.SH)
        self.full = gr.mbarrier("full", 2, arrivals=1)
        self.turn = gr.named_barrier("turn", 2, threads=128)


ERRORS: list[tuple[Callable[[Parts], object], str]] = [
    (
        lambda p: gr.mbarrier("b", 0, 1),
        """
        a barrier has at least one stage   [VERIFY_BARRIER]
          barrier: b
          want: 1 stage or more
          got: 0
        """,
    ),
    (
        lambda p: gr.mbarrier("b", 1, 1 << 20),
        """
        a phase of an mbarrier waits for 1 to 1048575 arrivals   [VERIFY_BARRIER]
          barrier: b
          got: 1048576
        """,
    ),
    (
        lambda p: gr.named_barrier("b", 17, 64),
        """
        a block has 16 named barriers   [VERIFY_BARRIER]
          barrier: b
          want: 1 to 16 stages
          got: 17
        """,
    ),
    (
        lambda p: gr.named_barrier("b", 1, 48),
        """
        a named barrier is for whole warps   [VERIFY_BARRIER]
          barrier: b
          want: 32 to 1024 threads, a multiple of 32
          got: 48
        """,
    ),
    (
        lambda p: gr.alloc("b", [2], _mbar(), gr.SH),
        """
        a phase of an mbarrier waits for 1 to 1048575 arrivals   [VERIFY_BARRIER]
          barrier: b
          got: 0
        """,
    ),
    (
        lambda p: gr.alloc("b", [2, 2], _mbar(), gr.SH),
        """
        barriers are declared by the number of their stages   [VERIFY_BARRIER]
          tensor: b
          fix: gr.mbarrier(name, stages, arrivals), gr.named_barrier(name, stages, threads)
        """,
    ),
    (
        lambda p: gr.alloc("t", [8], gr.fp16, gr.SH, over=[p.full.tensor]),
        """
        over= takes tensors that gr.alloc made in shared memory   [TENSOR_TYPE]
          tensor: t
          got: [2].mbar.SH
        """,
    ),
    (
        lambda p: p.full[0].wait(2),
        """
        a phase is a parity, 0 or 1   [VERIFY_BARRIER]
          barrier: %9:[].mbar.SH of full
          got: 2
          fix: use the phase of a gr.ring, or a count of rounds % 2
        """,
    ),
    (
        lambda p: p.full[0].arrive(expect=[p.x]),
        """
        bytes are expected in a tensor in shared memory   [VERIFY_BARRIER]
          got: %1:[64,64:64,1].fp16.GL of x
          fix: name what the copies write: expect=[tile]
        """,
    ),
    (
        lambda p: p.full[0].arrive(expect=1 << 20),
        """
        more bytes than a phase can expect   [VERIFY_BARRIER]
          want: 0 to 1048575
          got: 1048576
          fix: let a stage be filled by fewer bytes, or give it two barriers
        """,
    ),
    (
        lambda p: p.full[0].arrive(expect=[p.s], after="cp.async.ca.4"),
        """
        an arrival that waits for this thread's copies expects no bytes   [VERIFY_BARRIER]
          barrier: %9:[].mbar.SH of full
          fix: use two arrivals
        """,
    ),
    (
        lambda p: p.full[0].arrive(at=p.threads),
        """
        an arrival is at blocks of the cluster   [VERIFY_BARRIER]
          got: [128].thread
          fix: at=blocks[c], my cluster
        """,
    ),
    (
        lambda p: gr.move(p.s, p.x, done=gr.Mbarrier(p.full.tensor)),
        """
        done= takes one barrier, not several   [VERIFY_BARRIER]
          got: %7:[2].mbar.SH of full
          fix: index it, as in full[ring.index]
        """,
    ),
    (
        lambda p: gr.move(p.s, p.x, done=gr.Mbarrier(p.turn.tensor[0])),
        """
        a copy completes on an mbarrier   [VERIFY_BARRIER]
          got: %9:[].bar.SH of turn
          fix: declare it with gr.mbarrier
        """,
    ),
    (
        lambda p: gr.move(p.s, p.x, done=gr.Mbarrier(p.s)),
        """
        done= names something that is not a barrier   [VERIFY_BARRIER]
          got: %6:[64,64:64,1].fp16.SH of s
          fix: declare it with gr.mbarrier(name, stages, arrivals) or gr.named_barrier(name, stages, threads)
        """,
    ),
    (
        lambda p: gr.move(p.s, p.x, to=p.cluster),
        """
        a copy to several blocks completes on a barrier of each   [VERIFY_BARRIER]
          to: [2].block
          fix: name it: gr.move(..., done=full[i], to=cluster)
        """,
    ),
    (
        lambda p: gr.move(p.full.tensor, p.x),
        """
        a barrier is not data   [VERIFY_BARRIER]
          operand: %7:[2].mbar.SH of full
          fix: use full[i].arrive(), full[i].wait(phase) and gr.move(..., done=full[i])
        """,
    ),
]


def _mbar() -> gr.DType:
    return gr._core.dtype("mbar")


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_refused_where_it_is_said(number: int) -> None:
    act, want = ERRORS[number]
    with gr.Kernel("k"), pytest.raises(gr.GrapheneError) as caught:
        act(Parts())
    first, _, rest = str(caught.value).partition(": ")
    assert HERE in first
    assert rest == dedent(want).strip()


def test_a_cluster_divides_the_grid() -> None:
    for size, cluster in ((9, 2), (16, 16), (16, 0)):
        with gr.Kernel("k"), pytest.raises(gr.VerifyError, match="VERIFY_CLUSTER"):
            gr.blocks(size, cluster=cluster)
    with pytest.raises(gr.VerifyError) as caught:
        gr.blocks(gr.sym("n"), 3, cluster=2)
    assert str(caught.value) == dedent("""\
        blocks that do not divide into clusters   [VERIFY_CLUSTER]
          grid: [n,3:1,n].block
          want: a multiple of 2 along the first dimension
          got: n
          fix: round the number of blocks up: gr.ceil_div(n, 2) * 2""")
    assert str(gr.blocks(6, 3, cluster=2)) == "[3,3:2,6].[2,1:1,6].block"


TEXT = """\
kernel "k" format=1
%1:[64].fp32.GL = output "y"
#2:[4].block cluster=2
#3:[128].thread
%4:[2].mbar.SH <- Allocate(name="full", arrivals=1)
%5:[2].bar.SH <- Allocate(name="turn", arrivals=128)
%6:[].mbar.SH = %4[0]
%7:[].bar.SH = %5[0]
"""


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("arrive()", "arrive() needs a barrier"),
        ("arrive(%1)", "arrive() names something that is not a barrier"),
        ("arrive(%4)", "arrive() takes one barrier, not several"),
        ("barrier(%6)", "barrier() takes no barrier"),
        ("arrive(%6, #3)", "arrive() of a barrier names neither threads nor attributes"),
        ("arrive(%6, pending=1)", "arrive() of a barrier names neither threads nor attributes"),
        ("wait_phase(%6)", "a wait names no phase"),
        ("wait_phase(%7, phase=0)", "a named barrier has no phase to wait for"),
        ("wait_phase(%6, phase=0, expect_bytes=4)", "wait_phase() expects nothing and is at this block's barrier"),
        ("sync(%6)", "an mbarrier is waited for by its phase"),
        ("arrive(%7, expect_bytes=4)", "an arrival at a named barrier expects nothing and is at this block's"),
        ("arrive(%6, expect_bytes=4, expect_bytes=4)", "a second 'expect_bytes'"),
        ("barrier(#3, phase=1, phase=1)", "a second 'phase'"),
    ],
)
def test_text_is_refused(line: str, want: str) -> None:
    assert gr.parse(TEXT)
    with pytest.raises(gr.VerifyError, match=re.escape(want)):
        gr.parse(TEXT + line + "\n")
