"""The kernel that is misused, and how a refusal is held to its code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import graphene as gr


def statements() -> None:
    gr.threads(32)
    x = gr.inout("x", [32], gr.fp32)
    gr.init(x, 1.0)


def finished() -> gr.Kernel:
    with gr.Kernel("k") as k:
        statements()
    return k


def refused(code: str, work: Callable[[], object]) -> None:
    with pytest.raises(gr.GrapheneError) as e:
        work()
    assert e.value.code == code
