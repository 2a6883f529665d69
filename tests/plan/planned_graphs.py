"""Graphs of products that the tests plan, each small."""

from __future__ import annotations

from typing import Any

import graphene as gr
from graphene import plan

__all__ = ["GRAPHS", "SMALL", "rms_linear"]


def rms_linear(m: Any = "M", k: int = 4096, n: int = 6144) -> plan.Graph:
    m, k, n = plan.axes(m=m, k=k, n=n)
    with plan.graph("rms_linear") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        r = plan.rsqrt(plan.mean(x * x, k) + 1e-5)
        g.output("O", plan.dot(x * r, w, k), [m, n], gr.fp16)
    return g


def gemm_chain() -> plan.Graph:
    """Every kind of input beside a product."""
    m, k, n = plan.axes(m="M", k=64, n=40)
    with plan.graph("gemm_chain") as g:
        a, b = g.input("A", [m, k], gr.fp16), g.input("B", [n, k], gr.fp16)
        bias, residual = g.input("bias", [n], gr.fp16), g.input("residual", [m, n], gr.fp16)
        scale = g.input("scale", [m], gr.fp32)
        g.output("C", plan.gelu(plan.dot(a, b, k) * scale + bias) + residual, [m, n], gr.fp16)
    return g


def swiglu() -> plan.Graph:
    m, k, f = plan.axes(m="M", k=96, f=48)
    with plan.graph("swiglu") as g:
        x = g.input("X", [m, k], gr.bf16)
        w1, w2 = g.input("W1", [k, f], gr.bf16), g.input("W2", [k, f], gr.bf16)
        g.output("H", plan.silu(plan.dot(x, w1, k)) * plan.dot(x, w2, k), [m, f], gr.bf16)
    return g


def lora() -> plan.Graph:
    m, k, n, r = plan.axes(m=16, k=64, n=96, r=16)
    with plan.graph("lora") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        a, b = g.input("A", [k, r], gr.fp16), g.input("B", [r, n], gr.fp16)
        low = plan.dot(x, a, k).round(gr.fp16)
        g.output("O", plan.dot(x, w, k) + plan.dot(low, b, r), [m, n], gr.fp16)
    return g


def rms_gamma() -> plan.Graph:
    """A factor along k is multiplied into fragments; rows of 200 are no multiple of a step."""
    m, k, n = plan.axes(m="M", k=200, n=24)
    with plan.graph("rms_gamma") as g:
        x, w, gamma = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16), g.input("gamma", [k], gr.fp16)
        r = plan.rsqrt(plan.mean(x * x, k) + 1e-5)
        g.output("O", plan.dot(x * r * gamma, w, k), [m, n], gr.fp32)
    return g


def scores() -> plan.Graph:
    """Normed queries and keys: a statistic of each side, and two axes of a batch."""
    b, h, q, s, d = plan.axes(b=2, h=2, q=24, s=40, d=32)
    with plan.graph("scores") as g:
        Q, K = g.input("Q", [b, h, q, d], gr.fp16), g.input("K", [b, h, s, d], gr.fp16)
        queries, keys = (t * plan.rsqrt(plan.mean(t * t, d) + 1e-6) for t in (Q, K))
        g.output("S", plan.dot(queries, keys, d) * 0.125, [b, h, q, s], gr.fp16)
    return g


def transposed() -> plan.Graph:
    """Both operands lie across k, and the product is written the other way round."""
    m, k, n = plan.axes(m=40, k=96, n=48)
    with plan.graph("transposed") as g:
        a, b = g.input("A", [k, m], gr.fp16), g.input("B", [k, n], gr.fp16)
        g.output("C", plan.relu(plan.dot(b, a, k)), [m, n], gr.fp16)
    return g


def narrow() -> plan.Graph:
    """Lines that only copies of 8 and 4 bytes divide."""
    m, k, n = plan.axes(m=20, k=36, n=46)
    with plan.graph("narrow") as g:
        a, b = g.input("A", [m, k], gr.fp16), g.input("B", [k, n], gr.fp16)
        g.output("C", plan.dot(a, b, k), [m, n], gr.fp16)
    return g


def tiny() -> plan.Graph:
    """One row, one step, and columns that fill half of the least tile."""
    m, k, n = plan.axes(m=1, k=16, n=8)
    with plan.graph("tiny") as g:
        a, b = g.input("A", [m, k], gr.fp16), g.input("B", [k, n], gr.fp16)
        g.output("C", plan.dot(a, b, k) + plan.max(a, k), [m, n], gr.fp32)
    return g


SMALL = {"tile.m": 16, "tile.n": 32, "loop.k": 32, "stages": 3, "warps": "1x2"}
# A graph, the size that it is planned for, pins.
GRAPHS: dict[str, tuple[Any, dict[str, int], dict[str, Any]]] = {
    "rms_linear": (lambda: rms_linear(k=128, n=64), {"m": 16}, {}),
    "gemm_chain": (gemm_chain, {"m": 40}, {"tile.m": 32, "tile.n": 32, "warps": "2x2"}),
    "swiglu": (swiglu, {"m": 8}, {}),
    "lora": (lora, {}, {}),
    "rms_gamma": (rms_gamma, {"m": 33}, SMALL),
    "scores": (scores, {}, SMALL),
    "transposed": (transposed, {}, {"stages": 1}),
    "narrow": (narrow, {}, {}),
    "tiny": (tiny, {}, {"loop.k": 16}),
}
