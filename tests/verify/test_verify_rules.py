"""Every rule has a kernel that breaks it; the message is part of the interface."""

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


def private(name: str, shape: object = (), dtype: object = gr.fp32) -> gr.Tensor:
    return gr.alloc(name, list(shape) if isinstance(shape, tuple) else shape, dtype, gr.RF)


@breaks("""
""")
def too_many_rows_of_blocks() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        x = gr.output("x", [1], gr.fp32)
        gr.blocks(1, 70000)
        gr.threads(1)
        gr.init(private("r"), 0)
        r = private("s")
        gr.init(r, 0)
        gr.move(x[0], r)
    return kernel


@breaks("""
""")
def a_size_that_no_argument_tells() -> gr.Kernel:
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        x = gr.output("x", [1], gr.fp32)
        gr.blocks(n)
        gr.threads(1)
        r = private("r")
        gr.init(r, 0)
        gr.move(x[0], r)
    return kernel


@breaks("""
""")
def an_output_that_nothing_writes() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        gr.output("x", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
    return kernel


@breaks("""
""")
def a_written_input() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = private("r")
        gr.init(r, 0)
        gr.move(x[0], r)
    return kernel


@breaks("""
""")
def a_generic_spec_as_a_leaf() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        x = gr.inout("x", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        gr.spec(x, [])
    return kernel


@breaks("""
""")
def matrices_that_do_not_multiply() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [4, 8], gr.fp32), gr.input("b", [2, 8], gr.fp32)
        c = gr.inout("c", [4, 2], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        with gr.matmul(c, a, b):
            gr.matmul(c[0, 0], a[0, 0], b[0, 0])
    return kernel


@breaks("""
""")
def a_move_between_shapes() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [4, 8], gr.fp32), gr.output("b", [8, 4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = private("r")
        with gr.move(b, a):
            gr.move(r, a[0, 0])
            gr.move(b[0, 0], r)
    return kernel


@breaks("""
""")
def a_move_that_would_convert() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [4], gr.fp32), gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r, s = private("r", (), gr.fp16), private("s")
        gr.move(r, a[0])
        gr.init(s, 0)
        gr.move(b[0], s)
    return kernel


@breaks("""
""")
def operands_that_do_not_broadcast() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, y, z = private("x", (4,)), private("y", (3,)), private("z", (4,))
        with gr.binary("add", z, x, y):
            for i in range(4):
                gr.binary("add", z[i], x[i], y[min(i, 2)])
        gr.move(b[0], z[0])
    return kernel


@breaks("""
""")
def an_axis_that_does_not_exist() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, z = private("x", (4,)), private("z")
        with gr.reduce("add", z, x, axis=1):
            gr.binary("add", z, x[0], x[1])
        gr.move(b[0], z)
    return kernel


@breaks("""
""")
def a_reduction_of_the_wrong_shape() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        x, z = private("x", (4, 8)), private("z", (8,))
        with gr.reduce("add", z, x, axis=1):
            gr.binary("add", z[0], x[0, 0], x[0, 1])
        gr.move(b[0], z[0])
    return kernel


@breaks("""
""")
def an_exchange_through_memory() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(32)
        s, z = gr.alloc("s", [1], gr.fp32, gr.SH), private("z")
        gr.shfl(z, s[0], "bfly", 1)
        gr.move(b[0], z)
    return kernel


@breaks("""
""")
def a_subset_outside_of_only() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        warps = gr.threads(64).tile(32)
        z = private("z")
        gr.init(z, 0)
        gr.barrier(on=warps[0])
        gr.move(b[0], z)
    return kernel


@breaks("""
""")
def a_barrier_in_a_branch() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        (t,) = (threads := gr.threads(64)).indices()
        z = private("z")
        gr.init(z, 0)
        with gr.if_(t < 32):
            gr.barrier()
            gr.barrier(on=threads.tile(32)[t // 32])
        gr.move(b[0], z)
    return kernel


@breaks("""
""")
def a_barrier_in_a_loop_of_threads() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        z = private("z")
        gr.init(z, 0)
        with gr.loop("i", t):
            gr.barrier()
        gr.move(b[0], z)
    return kernel


@breaks("""
""")
def a_collective_in_a_branch() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        threads = gr.threads(64)
        w, lane = (warps := threads.tile(32)).indices()
        s = gr.alloc("s", [16, 16], gr.fp16, gr.SH)
        r, z = private("r", (2, 4), gr.fp16), private("z")
        gr.init(z, 0)
        row = s.tile([1, 8])[lane // 2, lane % 2]
        with gr.only(warps[0]):  # whole warps: fine
            gr.move(r.tile([1, 2]), row, on=warps[w])
        with gr.if_(lane < 16):
            gr.move(r.tile([1, 2]), row, on=warps[w])
        gr.move(b[0], z)
    return kernel


@breaks("""
""")
def an_exit_of_some_threads() -> gr.Kernel:
    with gr.Kernel("k") as kernel:
        b = gr.output("b", [4], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        z = private("z")
        gr.init(z, 0)
        gr.exit_if(t < 3)
        gr.move(b[0], z)
    return kernel


@pytest.mark.parametrize(("build", "expected"), CASES, ids=[b.__name__ for b, _ in CASES])
def test_message(build: Callable[[], gr.Kernel], expected: str) -> None:
    assert message(build()) == expected


def test_every_problem_is_reported_at_once() -> None:
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [4], gr.fp32)
        gr.output("y", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r, h = private("r"), private("h", (), gr.fp16)
        gr.move(h, x[0])
        gr.move(x[1], r)
    with pytest.raises(gr.VerifyError) as caught:
        _core.verify(kernel.ir)
    codes = [d["code"] for d in caught.value.diagnostics]
    assert codes == ["VERIFY_OUTPUT", "VERIFY_MOVE_DTYPE", "VERIFY_READ_ONLY"]
    assert all(d["file"] == __file__ for d in caught.value.diagnostics)


def test_the_rules_have_names_and_docs() -> None:
    rules = _core.verify_rules()
    assert len({name for name, _ in rules}) == len(rules)
    assert all(doc.endswith(".") for _, doc in rules)
