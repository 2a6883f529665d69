"""Loops and branches that are made and never entered: what they were to hold is recorded elsewhere, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphene as gr

MADE: dict[str, Callable[[Any], object]] = {
    "gr.if_(...)": lambda t: gr.if_(t[0] < 3),
    "gr.else_()": lambda t: gr.else_(),
    "gr.only(...)": lambda t: gr.only(t[1][0]),
    'gr.loop("k", ...)': lambda t: gr.loop("k", 4),
    'gr.loop("j", ...)': lambda t: iter(gr.loop("j", 4)),
    'gr.loop("i", ...)': lambda t: list(zip([], gr.loop("i", 4), strict=False)),
}


@pytest.mark.parametrize("what", MADE)
def test_a_block_that_nobody_enters_is_told_when_the_kernel_ends(what: str) -> None:
    def build() -> None:
        with gr.Kernel("k"):
            threads = gr.threads(64)
            (t,) = threads.indices()
            x = gr.inout("x", [64], gr.fp32)
            kept = MADE[what]((t, threads.tile(32)))
            gr.move(x[t], x[t])
        del kept

    with pytest.raises(gr.VerifyError) as e:
        build()
    assert e.value.code == "BLOCK_NOT_ENTERED"
    (problem,) = e.value.diagnostics
    assert problem["message"] == f"{what} is never entered"
    assert problem["file"].endswith(("test_lost_blocks.py", "control.py"))
    assert f"`with {what}" in problem["fix"]


def test_where_it_was_made() -> None:
    def build() -> None:
        with gr.Kernel("k"):
            gr.threads(1)
            gr.if_(gr.sym("n") > 0)
            gr.loop("k", 3)

    with pytest.raises(gr.VerifyError) as e:
        build()
    first = build.__code__.co_firstlineno
    assert [(d["line"], d["code"]) for d in e.value.diagnostics] == [
        (first + 3, "BLOCK_NOT_ENTERED"),
        (first + 4, "BLOCK_NOT_ENTERED"),
    ]


def test_blocks_that_are_entered_late_or_twice_or_of_no_kernel() -> None:
    outside = gr.loop("o", 2)
    with gr.Kernel("k") as kernel:
        gr.threads(1)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        made = gr.if_(gr.sym("n") > 0)
        gr.init(r, 0)
        for _ in range(2):
            with made:
                gr.init(r, 1)
        for _ in outside:
            gr.init(r, 2)
    assert str(kernel).count("Init") == 4
    gr.if_(1)  # of no kernel: it is refused when it is entered


def test_another_error_is_not_hidden() -> None:
    def build() -> None:
        with gr.Kernel("k"):
            gr.loop("k", 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build()
