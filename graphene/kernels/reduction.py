"""Sums, maxima, minima along the rows or the columns of a matrix, in an order that depends on its sizes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels._arguments import choice, size

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReductionConfig", "reduction_kernel", "select_reduction"]

_VECTORS = {16: "v4.b32", 8: "v2.b32", 4: "b32", 2: "b16"}
_START = {"add": 0.0, "max": -gr.inf, "min": gr.inf}


@dataclass(frozen=True)
class ReductionConfig:
    """What is reduced, and the block that does it.

    `axis`: 1 makes one value of each row, 0 of each column. `op`: "add", "max" or "min". `threads` side by side along a
    row, each with vectors of `vector` neighbours; `rows` of them one below the other. With axis 1 `threads` is a power
    of two or whole warps, with axis 0 it is 32. `scale`: the results are multiplied by the last argument, as a mean
    wants it. `out_dtype`: None for that of X. `each`: vectors that a thread has under way. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    axis: int = 1
    op: str = "add"
    dtype: gr.DType = gr.fp16
    out_dtype: gr.DType | None = None
    threads: int = 128
    rows: int = 1
    vector: int = 8
    scale: bool = False
    each: int = 1

    def __post_init__(self) -> None:
        size("ReductionConfig", "each", self.each, most=16)
        choice("ReductionConfig", "op", self.op, tuple(_START))
        choice("ReductionConfig", "axis", str(self.axis), ("0", "1"))
        size("ReductionConfig", "threads * rows", self.threads * self.rows, multiple_of=32, most=1024)
        choice("ReductionConfig", "vector", str(self.vector), ("1", "2", "4", "8"))


def select_reduction(
    rows: int,
    columns: int,
    axis: int,
    op: str = "add",
    dtype: gr.DType = gr.fp16,
    *,
    align_bytes: int = 16,
    **more: Any,
) -> ReductionConfig:
    """The configuration for a matrix. `align_bytes`: what its address and row stride in bytes are multiples of."""
    elem_bytes = dtype.bits // 8
    vector = math.gcd(columns * elem_bytes, align_bytes, 16) // elem_bytes
    if axis == 0:
        vector = min(vector, 4 if rows > 64 else 2)  # few columns a thread: more blocks
        return ReductionConfig(0, op, dtype, threads=32, rows=4, vector=vector, each=8 if rows > 64 else 1, **more)
    vectors = max(columns, 1) // vector
    threads = min(256, max(1, 1 << (math.ceil(vectors / (2 if vectors > 32 else 1)) - 1).bit_length()))
    each = max(8 // vector, min(2, math.ceil(vectors / threads)))
    return ReductionConfig(1, op, dtype, threads=threads, rows=max(1, 128 // threads), vector=vector, each=each, **more)


def reduction_kernel(config: ReductionConfig) -> gr.Kernel:
    """Y = op over the rows (axis 1) or the columns (axis 0) of X, in fp32, rounded once.

    Arguments: X (M, N), Y (M, S) for axis 1, (S, N) for axis 0, scale where the configuration has it. Any M and N; of
    nothing: 0, -inf, +inf. S parts are reduced by blocks of their own, for few and long rows or columns: part s has the
    vectors, or rows, of the blocks s, s + S, s + 2 S, ...; with S > 1 a second call reduces Y.
    """
    with gr.Kernel(f"reduce_{'rows' if config.axis else 'columns'}") as kernel:
        if config.axis == 1:
            _along_rows(config)
        else:
            _along_columns(config)
    return kernel


def _declare(c: ReductionConfig, M: Any, N: Any, of: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any, Any, Any]:
    """X, Y, S and the factor."""
    S = gr.sym("S", min=1, max=65535)
    stride = gr.sym("ldX", multiple_of=c.vector)
    X = gr.input("X", gr.Layout((M, N), (stride, 1)), c.dtype, align_bytes=c.vector * c.dtype.bits // 8)
    Y = gr.output("Y", gr.row_major(*of(S)), c.out_dtype or c.dtype)
    return X, Y, S, gr.param("scale", gr.fp32) if c.scale else 1.0


def _along_rows(c: ReductionConfig) -> None:
    M, N = gr.sym("M", max=2**31 - 1), gr.sym("N", multiple_of=c.vector, max=2**31 - 1)
    X, Y, S, scale = _declare(c, M, N, lambda s: (M, s))
    part = c.threads * c.vector * c.each
    blocks, threads = gr.blocks(gr.ceil_div(M, c.rows), S), gr.threads(c.threads * c.rows)
    b, s = blocks.indices()
    thread = gr.Layout((c.threads, c.rows), (c.vector * c.rows, 1))
    tv = gr.tv(thread, gr.Layout((c.vector, c.each), (c.rows, c.threads * c.vector * c.rows)))
    x = gr.fragment("x", [c.rows, part], c.dtype, tv, on=threads)
    v = gr.fragment("v", [c.rows, part], gr.fp32, tv, on=threads)
    lanes, total = v.reduced(1, "lanes", lanes=True), v.reduced(1, "total")
    gr.init(lanes, _START[c.op])
    parts = X.tile([c.rows, part])
    load = gr.atom(f"ld.global.nc.{_VECTORS[c.vector * c.dtype.bits // 8]}")
    _, column = v.coords()
    for p in gr.loop("part", gr.ceil_div(N, part), start=s, step=S):
        gr.move(x, parts[b, p], atom=load)
        v[:] = x if c.op == "add" else gr.where(p * part + column < N, x, _START[c.op])
        gr.reduce(c.op, lanes, v, axis=1, accumulate=True)
    gr.reduce(c.op, total, lanes, axis=1)
    y = v.reduced(1, "y", c.out_dtype or c.dtype)
    y[:] = total * scale if c.scale else total
    gr.move(Y.tile([c.rows, 1])[b, s], y, atom=gr.atom(f"st.global.{_VECTORS[y.dtype.bits // 8]}"))


def _along_columns(c: ReductionConfig) -> None:
    M, N = gr.sym("M", max=2**31 - 1), gr.sym("N", multiple_of=c.vector, max=2**31 - 1)
    X, Y, S, scale = _declare(c, M, N, lambda s: (s, N))
    wide = c.threads * c.vector
    blocks, threads = gr.blocks(gr.ceil_div(N, wide), S), gr.threads(c.threads * c.rows)
    b, s = blocks.indices()
    high = c.rows * c.each
    thread = gr.Layout((c.threads, c.rows), (c.vector * high, 1))
    tv = gr.tv(thread, gr.Layout((c.vector, c.each), (high, c.rows)))
    x = gr.fragment("x", [high, wide], c.dtype, tv, on=threads)
    v = gr.fragment("v", [high, wide], gr.fp32, tv, on=threads)
    own = v.reduced(0, "own", lanes=True)
    gr.init(own, _START[c.op])
    parts = X.tile([high, wide])
    load = gr.atom(f"ld.global.nc.{_VECTORS[c.vector * c.dtype.bits // 8]}")
    row, _ = v.coords()
    for p in gr.loop("part", gr.ceil_div(M, high), start=s, step=S):
        gr.move(x, parts[p, b], atom=load)
        v[:] = x if c.op == "add" else gr.where(p * high + row < M, x, _START[c.op])
        gr.reduce(c.op, own, v, axis=0, accumulate=True)  # this thread's own values
    total = v.reduced(0, "total")
    gr.reduce(c.op, total, own, axis=0)
    y = v.reduced(0, "y", c.out_dtype or c.dtype)
    y[:] = total * scale if c.scale else total
    gr.move(Y.tile([1, wide])[s, b], y, atom=gr.atom(f"st.global.{_VECTORS[y.dtype.bits // 8]}"))
