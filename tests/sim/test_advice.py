"""What messages say to those who write their first kernels: the fix that is meant, and each mistake once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr


def launched(body: Callable[..., None], role: Any) -> None:
    """Lowers and simulates a kernel of x and y, which have 512 fp16."""
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [512], gr.fp16, align_bytes=16), role("y", [512], gr.fp16, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        body(x, y, t)
    kernel.cuda_source("sm_90a")
    kernel(np.zeros(512, np.float16), np.zeros(512, np.float16))


def fails(body: Callable[..., None], role: Any = gr.output) -> str:
    """What is said of it."""
    with pytest.raises(gr.GrapheneError) as e:
        launched(body, role)
    return str(e.value)


def test_a_block_that_lacks_a_barrier_is_told_of_the_blocks() -> None:
    def body(x: Any, y: Any, t: Any) -> None:
        s = gr.alloc("s", [64], gr.fp16, gr.SH)
        s[t] = gr.load(x[t])
        y[t] = gr.load(s[(t + 1) % 64])

    assert "put a barrier on their warp between the two, or gr.barrier() where other warps" in fails(body, gr.inout)


def test_an_atomic_update_of_an_output() -> None:
    def body(x: Any, y: Any, t: Any) -> None:
        gr.atomic("add", y[0], gr.load(x[t]))

    text = fails(body)
    assert "SIM_UNDEFINED" in text
    assert "declare y with gr.inout" in text


def test_more_than_a_thread_loads_at_once() -> None:
    def body(x: Any, y: Any, t: Any) -> None:
        y.tile([16])[t] = gr.load(x.tile([16])[t])

    assert "a thread moves at most 16 bytes at once, 8 of fp16: cut both into tiles" in fails(body)


def test_a_copy_larger_than_its_tile() -> None:
    def body(x: Any, y: Any, t: Any) -> None:
        s = gr.alloc("s", [512], gr.fp16, gr.SH)
        gr.move(s.tile([4])[t], x.tile([4])[t], atom="cp.async.cg.16")

    text = fails(body)
    assert "a tile smaller than what cp.async.cg.16 copies at once   [COLLECTIVE_VECTOR]" in text
    assert "want: 8 elements, 16 bytes\n  got: [4].fp16.GL, 8 bytes" in text


def test_from_memory_to_memory() -> None:
    def body(x: Any, y: Any, t: Any) -> None:
        for i in range(20):  # one line of Python, so one message
            gr.move(y[t + i], x[t + i])

    text = fails(body)
    assert text.count("[NO_ATOM]") == 1
    assert text.count("the same of: ") == 5
    assert "no thread moves from memory to memory: go through registers, r = gr.load(source)" in text


def test_which_side_of_a_move_has_which_type() -> None:
    def body(x: Any, y: Any, t: Any) -> None:
        gr.move(y[t], gr.let("r", 1.0, gr.fp32))

    assert "destination: fp16, 16 bits\n  source: fp32, 32 bits\n" in fails(body)


def test_three_neighbours_are_not_one_access() -> None:
    def body(x: gr.Tensor, y: gr.Tensor, t: gr.IntExpr) -> None:
        gr.move(y.tile([3])[t], gr.load(x.tile([3])[t]))

    assert "a thread moves 1, 2, 4, ... neighbours at once, up to 16 bytes: cut both into such tiles" in fails(body)
