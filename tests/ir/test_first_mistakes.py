"""What a newcomer writes wrong first is refused with the line, what was got, and the call that is meant; verbatim."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr

HERE = re.compile(r"^test_first_mistakes\.py:(\d+): ")
VIEW = re.compile(r"[%#]\d+:")


def said(body: Callable[..., Any]) -> str:
    """The text of the error without its line, which the diagnostic has, too, and without the numbers of views."""
    with gr.Kernel("k"):
        gr.blocks(1)
        on = gr.threads(64)
        (t,) = on.indices()
        x, rows = gr.input("x", [64], gr.fp32), gr.input("rows", [64], gr.i32)
        box = gr.alloc("box", [8, 8], gr.fp32, gr.SH)
        with pytest.raises(gr.GrapheneError) as e:
            body(x, rows, box, t)
    text = str(e.value)
    line = HERE.match(text)
    assert line, text
    assert (e.value.diagnostics[0]["file"], e.value.diagnostics[0]["line"]) == (__file__, int(line[1]))
    return VIEW.sub("", text[line.end() :])


def added(x: Any, rows: Any, box: Any, t: Any) -> None:
    r = gr.let("r", 0, gr.fp32)
    r += box[0, 1]


REGISTERS = "pointwise expressions work on registers   [POINTWISE_TYPE]\n"
DATA = "a value of data is no index   [TENSOR_INDEX]\n"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (added, REGISTERS + "  got: [].fp32.SH of box\n  fix: load it first: gr.load(box[...])"),
        (
            lambda x, rows, box, t: gr.let("r", x[t] + 1),
            REGISTERS + "  got: [].fp32.GL of x\n  fix: load it first: gr.load(x[...])",
        ),
        (
            lambda x, rows, box, t: gr.let("r", box * 2),
            REGISTERS + "  got: [8,8:8,1].fp32.SH of box\n"
            "  fix: take an element, gr.load(box[...]), or move a tile to registers: gr.move",
        ),
        (
            lambda x, rows, box, t: x[gr.load(rows[t])],
            DATA + "  got: [].i32.RF of rows_value\n  of: [64].fp32.GL\n"
            "  fix: read it into an integer: gr.index(rows_value, min=0, max=...)",
        ),
        (
            lambda x, rows, box, t: box[0, rows[t]],
            DATA + "  got: [].i32.GL of rows\n  of: [8,8:8,1].fp32.SH\n"
            "  fix: read it into an integer: gr.index(rows[...], min=0, max=...)",
        ),
        (
            lambda x, rows, box, t: x[gr.load(rows[t]) & 1],
            DATA + "  got: and(rows_value, 1)\n  of: [64].fp32.GL\n"
            "  fix: read it into an integer: gr.index(..., min=0, max=...)",
        ),
        (
            lambda x, rows, box, t: x[0.5],
            "an index is an integer, a symbolic one or a slice   [TENSOR_INDEX]\n"
            "  want an int or an IntExpr, got float\n  of: [64].fp32.GL\n"
            "  fix: index by a number, a coordinate or gr.index(...)",
        ),
        (
            lambda x, rows, box, t: gr.index(3, min=0, max=7),
            "gr.index reads one element of an integer tensor, or an expression on registers   [TENSOR_TYPE]\n"
            "  got: int\n  fix: pass what it is to read: gr.index(rows[t], min=0, max=63)",
        ),
        (
            lambda x, rows, box, t: bool(gr.load(x[t]) > 0),
            "an expression on registers has no truth value in Python   [SYM_RUNTIME_BOOL]\n  got: gt(x_value, 0)\n"
            "  fix: use gr.where to choose elements, or `with gr.if_(...):` to branch",
        ),
        (
            lambda x, rows, box, t: bool(gr.load(rows[t])),
            "a tensor has no truth value in Python   [SYM_RUNTIME_BOOL]\n  got: [].i32.RF\n"
            "  fix: use gr.where to choose elements, `with gr.if_(x != 0):` to branch, or `is None` to ask whether "
            "there is a tensor",
        ),
        (
            lambda x, rows, box, t: gr.input("y", None, gr.fp32),  # type: ignore[call-overload]
            "y is declared with something else than a layout   [TENSOR_TYPE]\n"
            "  want an int or an IntExpr, got NoneType\n"
            "  fix: write its sizes, such as [64]; those of arguments may be symbols",
        ),
        (
            lambda x, rows, box, t: gr.let("y", 1.0, gr.fp32, 1.5),  # type: ignore[arg-type]
            "y is declared with something else than a layout   [TENSOR_TYPE]\n  want an int or an IntExpr, got float\n"
            "  fix: write its sizes, such as [64]; those of arguments may be symbols",
        ),
        (
            lambda x, rows, box, t: gr.input("y", [64], "fp32"),  # type: ignore[call-overload]
            "y is declared with something else than a type   [TENSOR_TYPE]\n"
            "  a dtype must be one of gr.fp16, gr.fp32, gr.i32, ..., got 'fp32'\n  fix: write gr.fp32",
        ),
        (
            lambda x, rows, box, t: gr.output("y", [64], np.int32),  # type: ignore[call-overload]
            "y is declared with something else than a type   [TENSOR_TYPE]\n"
            "  a dtype must be one of gr.fp16, gr.fp32, gr.i32, ..., got <class 'numpy.int32'>\n  fix: write gr.i32",
        ),
        (
            lambda x, rows, box, t: gr.param("y", 3),  # type: ignore[arg-type]
            "y is declared with something else than a type   [TENSOR_TYPE]\n"
            "  a dtype must be one of gr.fp16, gr.fp32, gr.i32, ..., got 3\n  fix: write gr.fp32, for example",
        ),
    ],
)
def test_the_message(body: Callable[..., Any], text: str) -> None:
    assert said(body) == text


def test_the_branch_that_the_fix_names() -> None:
    with gr.Kernel("positive") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.inout("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        with gr.if_(gr.load(x[t]) > 0):
            y[t] = gr.load(x[t])
    given, got = np.linspace(-1, 1, 32, dtype=np.float32), np.zeros(32, np.float32)
    kernel.simulate(given, got)
    assert np.array_equal(got, np.maximum(given, 0))


GROUPS: dict[str, Callable[..., Any]] = {
    "allreduce": lambda r, on: gr.allreduce("add", r, on=on),
    "scan": lambda r, on: gr.scan("add", r, on=on),
    "allarg": lambda r, on: gr.allarg("max", r, gr.let("at", 0, gr.i32), on=on),
    "sort": lambda r, on: gr.sort(r, on=on),
    "top_k": lambda r, on: gr.top_k(r, 2, on=on),
}


@pytest.mark.parametrize("call", GROUPS)
@pytest.mark.parametrize("threads", [16, 48])
def test_a_group_that_is_no_warps(call: str, threads: int) -> None:
    with gr.Kernel("k"):
        gr.blocks(1)
        on = gr.threads(threads)
        with pytest.raises(gr.VerifyError) as e:
            GROUPS[call](gr.let("r", 0, gr.fp32), on)
    assert VIEW.sub("", HERE.sub("", str(e.value))) == (
        f"gr.{call} exchanges registers in whole warps, and the block has 16 threads   [SPEC_GROUP]\n"
        "  got: [16].thread\n"
        "  fix: declare whole warps, gr.threads(32): the threads that are left over hold what changes nothing"
        if threads == 16
        else f"gr.{call} takes whole warps, or a part of one of 1, 2, 4, 8 or 16 threads   [SPEC_GROUP]\n"
        "  got: [48].thread\n"
        "  fix: pass a multiple of 32 threads, not tiled: those that are left over hold what changes nothing"
    )


@pytest.mark.parametrize("call", GROUPS)
def test_a_part_of_a_warp(call: str) -> None:
    with gr.Kernel("k"):
        gr.blocks(1)
        parts = gr.threads(64).tile(16)
        GROUPS[call](gr.let("r", 0, gr.fp32), parts[parts.indices()[0]])
