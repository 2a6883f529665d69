"""Kernels with one hazard each, and their correct twins: ``name(correct)`` gives the kernel and its arguments.

Hazards that the verifier excludes (out of bounds, misaligned, divergent, deadlock)
are in test_control.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import graphene as gr

Case = tuple[gr.Kernel, list[Any]]


def f32(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def race_across_warps(correct: bool) -> Case:
    with gr.Kernel("race_across_warps") as kernel:
        a, b = gr.input("A", [64], gr.fp32), gr.output("B", [64], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        s = gr.alloc("s", [64], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, a[t])
        gr.move(s[t], r)
        if correct:
            gr.barrier()
        gr.move(r, s[63 - t])
        gr.move(b[t], r)
    return kernel, [f32(64), f32(64)]


def race_on_reuse(correct: bool) -> Case:
    """A shared buffer is overwritten while another warp may still read it."""
    with gr.Kernel("race_on_reuse") as kernel:
        a, b = gr.input("A", [4, 64], gr.fp32), gr.output("B", [4, 64], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        s = gr.alloc("s", [64], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.loop("i", 4) as i:
            gr.move(r, a[i, t])
            gr.move(s[t], r)
            gr.barrier()
            gr.move(r, s[63 - t])
            gr.move(b[i, t], r)
            if correct:
                gr.barrier()
    return kernel, [f32(4, 64), f32(4, 64)]


def race_between_lanes(correct: bool) -> Case:
    with gr.Kernel("race_between_lanes") as kernel:
        a, b = gr.input("A", [32], gr.fp32), gr.output("B", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, a[t])
        gr.move(s[t], r)
        if correct:
            gr.barrier(on=warp)
        gr.move(r, s[31 - t])
        gr.move(b[t], r)
    return kernel, [f32(32), f32(32)]


def race_between_blocks(correct: bool) -> Case:
    """Every block adds to the same elements."""
    with gr.Kernel("race_between_blocks") as kernel:
        a, c = gr.input("A", [4, 32], gr.fp32), gr.inout("C", [4, 32], gr.fp32)
        one = gr.input("one", [1], gr.fp32)
        (b,) = gr.blocks(4).indices()
        (t,) = gr.threads(32).indices()
        gr.matmul(c[b if correct else 0, t], a[b, t], one[0])
    return kernel, [f32(4, 32), f32(4, 32), np.ones(1, np.float32)]


def write_conflict(correct: bool) -> Case:
    with gr.Kernel("write_conflict") as kernel:
        a, b = gr.input("A", [32], gr.fp32), gr.output("B", [1], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, a[0 if correct else t])
        gr.move(b[0], r)
    return kernel, [f32(32), f32(1)]


def undefined_shared(correct: bool) -> Case:
    with gr.Kernel("undefined_shared") as kernel:
        a, b = gr.input("A", [32], gr.fp32), gr.output("B", [64], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        s = gr.alloc("s", [64], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.if_(t < 32):
            gr.move(r, a[t])
            gr.move(s[t], r)
            if correct:
                gr.move(s[t + 32], r)
        gr.barrier()
        gr.move(r, s[t])
        gr.move(b[t], r)
    return kernel, [f32(32), f32(64)]


def undefined_register(correct: bool) -> Case:
    with gr.Kernel("undefined_register") as kernel:
        a, b = gr.input("A", [32], gr.fp32), gr.output("B", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r, acc = gr.alloc("r", [], gr.fp32, gr.RF), gr.alloc("acc", [], gr.fp32, gr.RF)
        if correct:
            gr.init(acc, 0)
        gr.move(r, a[t])
        gr.matmul(acc, r, r)
        gr.move(b[t], acc)
    return kernel, [f32(32), f32(32)]


def reused_bytes(correct: bool) -> Case:
    """Bytes last written under another name read as undefined."""
    with gr.Kernel("reused_bytes") as kernel:
        a, b = gr.input("A", [32], gr.fp32), gr.output("B", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        again = gr.alloc("again", [32], gr.fp32, gr.SH, over=[s])
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, a[t])
        gr.move(s[t], r)
        gr.barrier()
        if correct:
            gr.move(again[t], r)
            gr.barrier()
        gr.move(r, again[31 - t])
        gr.move(b[t], r)
    return kernel, [f32(32), f32(32)]


def unwritten_output(correct: bool) -> Case:
    with gr.Kernel("unwritten_output") as kernel:
        a, b = gr.input("A", [64], gr.fp32), gr.output("B", [64], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        for i in range(2 if correct else 1):
            gr.move(r, a[t + 32 * i])
            gr.move(b[t + 32 * i], r)
    return kernel, [f32(64), f32(64)]


HAZARDS = {
    "SIM_RACE": [race_across_warps, race_on_reuse, race_between_lanes, race_between_blocks],
    "SIM_WRITE_CONFLICT": [write_conflict],
    "SIM_UNDEFINED": [undefined_shared, undefined_register, reused_bytes],
    "SIM_OUTPUT_UNWRITTEN": [unwritten_output],
}
