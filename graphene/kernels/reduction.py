"""Sums, maxima, minima along the rows or the columns of a matrix, in an order that depends on its sizes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.access import vector_access
from graphene.kernels.arguments import FLOATS, MOST_BLOCKS_YZ, choice, element, flags, instance, size, vectors

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ReductionConfig", "reduction_kernel"]

_START = {"add": 0.0, "max": -gr.inf, "min": gr.inf}
_START_I32 = {"add": 0, "max": -(2**31), "min": 2**31 - 1}
TYPES = (*FLOATS, "i32")


@dataclass(frozen=True)
class ReductionConfig:
    """The reduction, and the block that computes it.

    `axis`: 1 makes one value of each row, 0 of each column. `op`: "add", "max" or "min". A block has `rows` rows of
    `threads` threads side by side along a row, each with vectors of `vector` neighbours. With axis 1 `threads` is a
    power of two or whole warps, with axis 0 it is 32. `scale`: the results are multiplied by the last argument, for
    example for a mean. `dtype`: fp16, bf16 and fp32 are computed in fp32, and i32 stays exact. `out_dtype`: None means
    that of X; for i32 it may be any of these, for scaled i32 a float. `each`: vectors that a thread has under way.
    Raises VerifyError KERNEL_ARGUMENT.
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
        name = "ReductionConfig"
        element(name, "dtype", self.dtype, TYPES)
        flags(name, "scale", (self.scale,), 1)
        integers = self.dtype == gr.i32
        if self.out_dtype is not None or (integers and self.scale):
            known = FLOATS if self.scale or not integers else TYPES
            element(name, f"out_dtype, of {'scaled ' * self.scale}{self.dtype},", self.out_dtype or self.dtype, known)
        size(name, "each", self.each, most=16)
        choice(name, "op", self.op, tuple(_START))
        choice(name, "axis", self.axis, (0, 1))
        size(name, "threads", self.threads, most=1024)
        size(name, "rows", self.rows, most=1024)
        if self.threads not in (1, 2, 4, 8, 16):
            size(name, "threads, no power of two,", self.threads, multiple_of=32)
        size(name, "threads * rows", self.threads * self.rows, multiple_of=32, most=1024)
        choice(name, "vector", self.vector, (1, 2, 4, 8))
        vectors(name, "vector", self.vector, self.dtype)

    @property
    def inside(self) -> gr.DType:
        """The type that it computes in."""
        return gr.i32 if self.dtype == gr.i32 else gr.fp32

    @property
    def start(self) -> float:
        """The neutral element."""
        return (_START_I32 if self.dtype == gr.i32 else _START)[self.op]

    @property
    def drops_nan(self) -> bool:
        """Whether the operation prefers a number to a NaN, so that a NaN needs a sum of its own."""
        return self.op != "add" and self.dtype != gr.i32


def reduction_kernel(config: ReductionConfig) -> gr.Kernel:
    """Y = op over the rows (axis 1) or the columns (axis 0) of X, in fp32, rounded once; i32 stays i32.

    Arguments: X (M, N), Y (M, S) for axis 1, (S, N) for axis 0, and scale if the configuration has it. M and N are any;
    without elements the result is 0, -inf or +inf, for i32 its least and largest number. A NaN makes the result NaN;
    sums of i32 wrap. For few and long rows or columns, blocks of their own reduce S parts: part s has the vectors, or
    rows, of the blocks s, s + S, s + 2 S, ...; with S > 1 a second call reduces Y.
    """
    instance("reduction_kernel", "config", config, ReductionConfig)

    def reduced(X: Any, scale: Any = None) -> dict[str, Any]:
        y = _over(config, X)
        return {"Y": y if scale is None else y * scale}

    def prepare(args: Any, rng: Any) -> None:
        # A negative factor would make the largest number of a part the smallest.
        if config.scale and config.op != "add" and args.sizes["S"] > 1:
            args["scale"] = abs(args["scale"]) or 1.0

    sensible = gr.Arguments(prepare, values={"scale": (0.5, 1.0, 0.0, -1.25, 0.03)})
    name = f"reduce_{'rows' if config.axis else 'columns'}"
    with gr.Kernel(name, means=reduced, read=lambda Y: {"Y": _over(config, Y)}, arguments=sensible) as kernel:
        if config.axis == 1:
            _along_rows(config)
        else:
            _along_columns(config)
    return kernel


def _over(c: ReductionConfig, x: Any) -> Any:
    """The operation on arrays, or on parts of it: a NaN makes the result NaN; sums of i32 wrap."""
    if c.op != "add":
        ends = (-(2**31), 2**31 - 1) if c.inside == gr.i32 else (-math.inf, math.inf)
        return getattr(x, c.op)(c.axis, initial=ends[0 if c.op == "max" else 1])  # not what the kernel begins with
    y = x.sum(c.axis)
    return (y + 2**31) % 2**32 - 2**31 if c.inside == gr.i32 else y


def _declare(c: ReductionConfig, M: Any, N: Any, of: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any, Any, Any]:
    """X, Y, S and the factor."""
    S = gr.sym("S", min=1, max=MOST_BLOCKS_YZ)
    stride = gr.sym("ldX", multiple_of=c.vector)
    X = gr.input("X", gr.Layout((M, N), (stride, 1)), c.dtype, align_bytes=c.vector * c.dtype.bits // 8)
    Y = gr.output("Y", gr.row_major(*of(S)), c.out_dtype or c.dtype)
    return X, Y, S, gr.param("scale", gr.fp32) if c.scale else 1.0


class _Sums:
    """Each thread's own result, and the meeting of threads along an axis; a maximum has a sum beside it for NaN."""

    def __init__(self, c: ReductionConfig, v: gr.Tensor, axis: int) -> None:
        self.c, self.v, self.axis = c, v, axis
        self.own = v.reduced(axis, "own", lanes=True)
        gr.init(self.own, c.start)
        if c.drops_nan:
            self.wrong = v.reduced(axis, "wrong", lanes=True)
            gr.init(self.wrong, 0)

    def add(self) -> None:
        """Adds the thread's own values."""
        gr.reduce(self.c.op, self.own, self.v, axis=self.axis, accumulate=True)
        if self.c.drops_nan:
            self.v[:] = gr.where(self.v == self.v, 0, self.v)
            gr.reduce("add", self.wrong, self.v, axis=self.axis, accumulate=True)

    def result(self, scale: Any) -> gr.Tensor:
        """The result of all threads, in the type of Y."""
        total = self.v.reduced(self.axis, "total")
        gr.reduce(self.c.op, total, self.own, axis=self.axis)
        if self.c.drops_nan:
            wrong = self.v.reduced(self.axis, "all_wrong")
            gr.reduce("add", wrong, self.wrong, axis=self.axis)
            total[:] = gr.where(wrong == wrong, total, wrong)
        y = self.v.reduced(self.axis, "y", self.c.out_dtype or self.c.dtype)
        y[:] = gr.cast(total, gr.fp32) * scale if self.c.scale else total
        return y


def _along_rows(c: ReductionConfig) -> None:
    M, N = gr.sym("M", max=2**31 - 1), gr.sym("N", multiple_of=c.vector, max=2**31 - 1)
    X, Y, S, scale = _declare(c, M, N, lambda s: (M, s))
    part = c.threads * c.vector * c.each
    blocks, threads = gr.blocks(gr.ceil_div(M, c.rows), S), gr.threads(c.threads * c.rows)
    b, s = blocks.indices()
    thread = gr.Layout((c.threads, c.rows), (c.vector * c.rows, 1))
    tv = gr.tv(thread, gr.Layout((c.vector, c.each), (c.rows, c.threads * c.vector * c.rows)))
    x = gr.fragment("x", [c.rows, part], c.dtype, tv, on=threads)
    v = gr.fragment("v", [c.rows, part], c.inside, tv, on=threads)
    sums = _Sums(c, v, 1)
    parts = X.tile([c.rows, part])
    load = vector_access("ld.global.nc", c.vector, c.dtype)
    _, column = v.coords()
    for p in gr.loop("part", gr.ceil_div(N, part), start=s, step=S):
        gr.move(x, parts[b, p], atom=load)
        v[:] = x if c.op == "add" else gr.where(p * part + column < N, x, c.start)
        sums.add()
    y = sums.result(scale)
    gr.move(Y.tile([c.rows, 1])[b, s], y, atom=vector_access("st.global", 1, y.dtype))


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
    v = gr.fragment("v", [high, wide], c.inside, tv, on=threads)
    sums = _Sums(c, v, 0)
    parts = X.tile([high, wide])
    load = vector_access("ld.global.nc", c.vector, c.dtype)
    row, _ = v.coords()
    for p in gr.loop("part", gr.ceil_div(M, high), start=s, step=S):
        gr.move(x, parts[p, b], atom=load)
        v[:] = x if c.op == "add" else gr.where(p * high + row < M, x, c.start)
        sums.add()
    y = sums.result(scale)
    gr.move(Y.tile([1, wide])[s, b], y, atom=vector_access("st.global", 1, y.dtype))
