"""What lowering refuses, with its messages verbatim."""

from __future__ import annotations

import re
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


@breaks("""
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
""")
def too_much_shared_memory() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        gr.alloc("a", [128, 256], gr.fp32, gr.SH)
        gr.alloc("b", [256, 128], gr.fp16, gr.SH)
    return kernel


@breaks("""
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
""")
def ldmatrix_of_a_partial_tile() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        (lane,) = warp.indices()
        s = gr.alloc("s", [20, 16], gr.fp16, gr.SH)
        r = gr.alloc("r", [2, 4], gr.fp16, gr.RF)
        gr.move(r.tile([1, 2]), s.tile([16, 16])[1, 0].tile([1, 8])[lane // 2, lane % 2], on=warp)
    return kernel


@breaks("""
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
""")
def a_pair_that_the_swizzle_tears() -> gr.Kernel:
    if "sum_of_pair" not in gr.atoms():
        gr.define_atom(
            name="sum_of_pair",
            kind="UnaryPointwise",
            arch="sm_75+",
            out=[{"name": "d", "pattern": "[].fp32.RF", "access": "write", "via": "lvalue"}],
            in_=[{"name": "a", "pattern": "[2:1].fp32.SH", "tile": "e2", "via": "lvalue"}],
            attrs={"op": ["neg"]},
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
        gr.unary("neg", r, s.tile([2])[t], atom="sum_of_pair")
    return kernel


@breaks("""
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
