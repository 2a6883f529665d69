"""What lowering refuses, with its messages verbatim."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

import graphene as gr
from graphene import _core

HERE = Path(__file__).name
CASES: list[tuple[Callable[[], gr.Kernel], str]] = []


def breaks(expected: str) -> Callable[[Callable[[], gr.Kernel]], Callable[[], gr.Kernel]]:
    """The kernel must be refused with exactly this text; FILE:N stands for a line of this file."""

    def add(build: Callable[[], gr.Kernel]) -> Callable[[], gr.Kernel]:
        CASES.append((build, dedent(expected).strip("\n")))
        return build

    return add


def message(kernel: gr.Kernel, arch: str = "sm_80") -> str:
    with pytest.raises(gr.GrapheneError) as caught:
        _core.lower(kernel.ir, arch)
    return re.sub(rf"{re.escape(HERE)}:\d+", "FILE:N", str(caught.value))


@breaks("""
    FILE:N: registers indexed by the counter of a loop that is not unrolled   [LOWER_REGISTER_INDEX]
        %4:[].fp32.RF <- Init<<<#1:[1].block, [].thread>>>(value=0.0)
      index: i*8 of r
      loop: for(i=0; i < 4; i += 1)  at FILE:N
      fix: unroll the loop "i": unroll=0, or a Python range
""")
def registers_indexed_by_a_counter() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [4, 8], gr.fp32, gr.RF)
        with gr.loop("i", 4) as i, gr.loop("j", 8, unroll=0) as j:
            gr.init(r[i, j], 0)
    return kernel


@breaks("""
    FILE:N: a loop that must be unrolled has bounds that are not constant   [LOWER_UNROLL]
        for(i=0; i < n; i += 1) unroll=full
      got: 0 to n step 1
      fix: give the loop constant bounds, or unroll=1
""")
def an_unrolled_loop_of_unknown_length() -> gr.Kernel:
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        gr.input("x", [n], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.loop("i", n, unroll=0):
            gr.init(r, 0)
    return kernel


def unrolled(stop: int, start: int = 0, step: int = 1, inner: int = 0) -> gr.Kernel:
    """Unrolled loops with nothing in them."""
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        with gr.loop("i", stop, start, step, unroll=0):
            if inner:
                with gr.loop("j", inner, unroll=0):
                    pass
    return kernel


@pytest.mark.parametrize(
    "bounds",
    [
        (2**40,),
        (2**63 - 1,),
        (2**63 - 1, -(2**63)),
        (2**63 - 1, 0, 2**40),
        (1000, 0, 1, 100_000),
    ],
)
def test_empty_iterations_are_counted(bounds: tuple[int, ...]) -> None:
    """At once: a loop whose body lowers to nothing is no reason to go through it for ever."""
    with pytest.raises(gr.VerifyError, match="unrolling makes more than 1048576 statements") as e:
        _core.lower(unrolled(*bounds).ir, "sm_80")
    assert {d["code"] for d in e.value.diagnostics} == {"LOWER_UNROLL_SIZE"}


@pytest.mark.parametrize("bounds", [(2**63 - 1, 2**63 - 9, 4), (2**63 - 1, 0, 2**62), (5, 9, 1), (1000, 0, 1)])
def test_few_iterations_far_out(bounds: tuple[int, ...]) -> None:
    """The last counter plus the step may leave the 64-bit range: it is never computed."""
    _core.lower(unrolled(*bounds).ir, "sm_80")


def test_copies_of_statements_that_fail_are_not_looked_at_for_ever() -> None:
    """Each error costs as much as the last one: behind a thousand nothing new is said."""
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [2], gr.fp32, gr.RF)
        with gr.loop("i", 60_000, unroll=0) as i:
            gr.init(r[i % 4], 0)
    began = time.process_time()
    with pytest.raises(gr.LayoutError) as e:
        _core.lower(kernel.ir, "sm_80")
    assert time.process_time() - began < 1
    assert [d["code"] for d in e.value.diagnostics] == ["TENSOR_INDEX"]


def test_lowering_can_be_interrupted() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.loop("i", 60_000, unroll=0):
            gr.init(r, 0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            _core.lower(kernel.ir, "sm_80")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@breaks("""
    FILE:N: unrolling makes more than 65536 instructions   [LOWER_UNROLL_SIZE]
        %3:[].fp32.RF <- Init<<<#1:[1].block, [].thread>>>(value=0.0)
      innermost unrolled loop: for(j=0; j < 1000; j += 1) unroll=full
      fix: unroll less: a loop with unroll=1 prints as a loop
""")
def too_much_unrolling() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.loop("i", 1000, unroll=0), gr.loop("j", 1000, unroll=0):
            gr.init(r, 0)
    return kernel


@breaks("""
    FILE:N: more shared memory than a block of sm_80 may have   [LOWER_SHARED_LIMIT]
      a: 131072 bytes
      b: 65536 bytes
      want: at most 166912 bytes
      got: 196608
      fix: use smaller tiles or fewer stages, or reuse bytes with over=
""")
def too_much_shared_memory() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        gr.alloc("a", [128, 256], gr.fp32, gr.SH)
        gr.alloc("b", [256, 128], gr.fp16, gr.SH)
    return kernel


@breaks("""
    FILE:N: an allocation larger than the bytes it reuses   [LOWER_OVER]
        %6:[65].fp32.SH <- Allocate(name="long", over=(%3))
      want: at most 256 bytes
      got: 260, which reaches into b
      fix: name b in over=, too
""")
def an_allocation_over_a_smaller_one() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        a = gr.alloc("a", [64], gr.fp32, gr.SH)
        b = gr.alloc("b", [64], gr.fp32, gr.SH)
        gr.alloc("both", [128], gr.fp32, gr.SH, over=[a, b])
        gr.alloc("long", [65], gr.fp32, gr.SH, over=[a])
    return kernel


@breaks("""
    FILE:N: a partial tile that the instruction cannot take   [LOWER_PARTIAL]
        %4:[].fp32.RF <- Move<<<#1:[1].block, #2:[32].thread>>>(%7:[].fp32.SH) atom="first_lanes_value"
      atom: first_lanes_value, executed by 32 threads together
      inside only where: @lane < 20
      fix: use tiles that divide the tensor, declare its size with multiple_of=, or copy through an atom that takes partial tiles
""")
def a_collective_load_of_a_partial_tile() -> gr.Kernel:
    """Its lanes can neither diverge nor read elsewhere."""
    gr.define_atom(
        name="first_lanes_value", arch="sm_70+", threads="[32]", converge=32, guard="branch",
        out=[{"name": "d", "pattern": "[].fp32.RF", "tile": "l32", "tv": "32:1;1:0", "access": "write"}],
        in_=[{"name": "s", "pattern": "[].fp32.SH", "tile": "l32", "tv": "32:1;1:0"}],
        ptx="ld.shared.b32 $d, [$s];", is_default=False, doc="Loads together.", source="nowhere",
    )  # fmt: skip
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        (lane,) = warp.indices()
        s = gr.alloc("s", [20], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, s.tile([32])[0][lane], on=warp, atom="first_lanes_value")
    return kernel


@breaks("""
    FILE:N: a vector that the end of the tensor may cut   [LOWER_VECTOR_EDGE]
        %4:[8].fp16.RF <- Move<<<#2:[1].block, [].thread>>>(%6:[8].fp16.GL)
      atom: ld.global.v4.b32/b16, 8 values
      want: @t*8 and n multiples of 8
      got: multiples of 8 and 1
      fix: declare the size with multiple_of=8, or use a narrower atom
""")
def a_vector_over_the_end() -> gr.Kernel:
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [n], gr.fp16, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [8], gr.fp16, gr.RF)
        gr.move(r, x.tile([8])[t])
    return kernel


@breaks("""
    FILE:N: values of one access that the swizzle moves apart   [LOWER_SWIZZLE]
        %4:[].fp32.RF <- Reduction<+><<<#1:[1].block, [].thread>>>(%6:[2].fp32.SH, axis=0) atom="sum_of_pair"
      swizzle: Sw<3,0,3>
      offset: @t*2
      value 1: at a distance of (@t//4 ^ 1) - @t//4
      fix: access single elements
""")
def a_pair_that_the_swizzle_tears() -> gr.Kernel:
    if "sum_of_pair" not in gr.atoms():
        gr.define_atom(
            name="sum_of_pair",
            kind="Reduction",
            arch="sm_75+",
            out=[{"name": "d", "pattern": "[].fp32.RF", "access": "write", "via": "lvalue"}],
            in_=[{"name": "a", "pattern": "[2:1].fp32.SH", "tile": "e2", "via": "lvalue"}],
            attrs={"op": ["add"], "axis": ["*const"]},
            cxx="$d = $a[0] + $a[1];",
            is_default=False,
            doc="Adds two neighbours.",
            source="this test",
        )
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        (t,) = gr.threads(8).indices()
        s = gr.alloc("s", [64], gr.fp32, gr.SH, swizzle=gr.Swizzle(3, 0, 3))
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.reduce("add", r, s.tile([2])[t], axis=0, atom="sum_of_pair")
    return kernel


@breaks("""
    FILE:N: more barriers than a block has   [LOWER_BARRIERS]
        barrier(#4)
      want: at most 15 groups of threads besides the block
      got: 16
      fix: let groups share a barrier, or use whole warps: a barrier within a warp needs none
""")
def more_groups_than_barriers() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        groups = gr.threads(1024).tile(64)
        g, _ = groups.indices()
        gr.barrier(on=groups[g])
    return kernel


@pytest.mark.parametrize(("build", "expected"), CASES, ids=[b.__name__ for b, _ in CASES])
def test_message(build: Callable[[], gr.Kernel], expected: str) -> None:
    assert message(build()) == expected


def test_the_shared_memory_limit_is_the_architectures() -> None:
    kernel = too_much_shared_memory()
    assert _core.lower(kernel.ir, "sm_90a").shared_bytes == 128 * 256 * 4 + 256 * 128 * 2


def test_a_statement_in_an_unrolled_loop_is_reported_once() -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [8], gr.fp32, gr.RF)
        with gr.loop("k", 4) as k, gr.loop("i", 8, unroll=0):
            gr.init(r[k], 0)
            gr.init(r[k + 1], 0)
    with pytest.raises(gr.VerifyError) as caught:
        _core.lower(kernel.ir, "sm_80")
    assert [d["code"] for d in caught.value.diagnostics] == ["LOWER_REGISTER_INDEX"] * 2


def test_problems_of_verify_and_lower_come_together() -> None:
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [8], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [8], gr.fp32, gr.RF)
        gr.move(x[0], r[0])
        with gr.loop("i", 8) as i:
            gr.init(r[i], 0)
    with pytest.raises(gr.VerifyError) as caught:
        _core.lower(kernel.ir, "sm_80")
    assert [d["code"] for d in caught.value.diagnostics] == ["VERIFY_READ_ONLY", "LOWER_REGISTER_INDEX"]


@pytest.mark.parametrize(
    ("view", "got"),
    [
        (lambda r, i: r[0, i + 1], "want: at most 2\n  got: 3"),  # the next row's registers
        (lambda r, i: r[i * 2, 0], "want: at most 1\n  got: 2"),  # beyond the last register
        (lambda r, i: r.tile([2, 2])[0, 1][0, 1], "want: at most 2\n  got: 3"),  # the empty part of a partial tile
    ],
)
def test_registers_are_indexed_inside(view: Callable[[gr.Tensor, object], gr.Tensor], got: str) -> None:
    """An index that only the unrolled loop tells must not reach other registers, nor beyond the array."""
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [2, 3], gr.fp32, gr.RF)
        with gr.loop("i", 3, unroll=0) as i:
            gr.init(view(r, i), 0)
    text = message(kernel)
    assert text.startswith("FILE:N: an index that may be outside of the registers   [TENSOR_INDEX]\n")
    assert text.endswith(f"  {got}\n  fix: keep tiles and indices of registers inside")
