"""Softmax and its logarithm: over rows, read once if a row fits on the chip, else twice; over columns, read twice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.access import access
from graphene.kernels.arguments import FLOATS, MOST_BLOCKS_YZ, choice, element, instance, size, vectors
from graphene.kernels.rows.block import Rows, declare_rows
from graphene.kernels.rows.tile import RowTile
from graphene.promise import compensated

if TYPE_CHECKING:
    from graphene.kernels.rows.block import Kept, Part

PART = 8  # powers of a column that a thread adds one by one

__all__ = [
    "SoftmaxColumnsConfig",
    "SoftmaxConfig",
    "log_softmax_columns_kernel",
    "log_softmax_kernel",
    "softmax_columns_kernel",
    "softmax_kernel",
]


@dataclass(frozen=True)
class SoftmaxConfig:
    """The tile, and the types of X and of Y (None means that of X). Raises VerifyError KERNEL_ARGUMENT."""

    tile: RowTile
    dtype: gr.DType = gr.fp16
    out_dtype: gr.DType | None = None

    def __post_init__(self) -> None:
        instance("SoftmaxConfig", "tile", self.tile, RowTile)
        _check_types("SoftmaxConfig", "tile.vector", self.tile.vector, self.dtype, self.out_dtype)


def _check_types(name: str, what: str, vector: int, dtype: gr.DType, out_dtype: gr.DType | None) -> None:
    element(name, "dtype", dtype, FLOATS)
    if out_dtype is not None:
        element(name, "out_dtype", out_dtype, FLOATS)
    vectors(name, what, vector, dtype, out_dtype or dtype)


def _softmax(x: Any, axis: int, log: bool, rows: int = 0) -> Any:
    """`rows`: of threads that add up parts of each sum and compensate for roundings, if there are any."""
    import numpy as np

    distance = x - x.max(axis, keepdims=True, initial=-np.inf)
    p = np.exp(distance)
    total = compensated(p, axis, _maxima(x, rows)) if rows else p.sum(axis, keepdims=True)
    return distance - np.log(total) if log else p / total


def _maxima(x: Any, rows: int) -> Any:
    """How often the maximum of a column (B, M, N) grows in one of every `rows` rows, at most: sums shrink then."""
    import numpy as np

    x = getattr(x, "values", x)
    more = -x.shape[1] % rows
    x = np.pad(x, ((0, 0), (0, more), (0, 0)), constant_values=-np.inf).reshape(len(x), -1, rows, x.shape[2])
    highest = np.fmax.accumulate(x, axis=1)
    return 1 + (highest[:, 1:] > highest[:, :-1]).sum(1).max(1)[:, None]


def softmax_kernel(config: SoftmaxConfig) -> gr.Kernel:
    """Y = exp(X - max) / sum(exp(X - max)) over rows; fp32 inside, rounded once.

    The arguments are X (M, width), Y (M, width). M is any; rows may have any stride that the vectors divide. As in
    PyTorch, a row with a NaN, with +inf, or with nothing but -inf gives NaN.
    """
    return _of_rows("softmax", config, log=False)


def log_softmax_kernel(config: SoftmaxConfig) -> gr.Kernel:
    """Y = X - max - log(sum(exp(X - max))) over rows; arguments, and what is not finite, as in ``softmax_kernel``."""
    return _of_rows("log_softmax", config, log=True)


def _of_rows(name: str, config: SoftmaxConfig, log: bool) -> gr.Kernel:
    instance(f"{name}_kernel", "config", config, SoftmaxConfig)
    tile = config.tile
    with gr.Kernel(name, means=lambda X: {"Y": _softmax(X, -1, log)}) as kernel:
        M = gr.sym("M", max=2**31 - 1)
        X = declare_rows(gr.input, "X", M, tile, config.dtype)
        Y = declare_rows(gr.output, "Y", M, tile, config.out_dtype or config.dtype)
        rows = Rows(tile, M)
        (x,) = rows.keep(X)
        most, rest = rows.per_row("most"), rows.per_row("log_total" if log else "rcp")

        def power(part: Part) -> Any:  # x * log2(e) - max * log2(e) would round products of large numbers
            return gr.exp2((part.take(x) - most) * math.log2(math.e), ftz=True)

        finish = gr.log if log else gr.rcp
        if tile.keep == "memory":  # reads a row twice, not three times
            rest[:] = finish(_online(rows, x, most))
        else:
            most[:] = rows.reduce("max", lambda part: part.inside(part.take(x), -gr.inf))
            rest[:] = finish(rows.reduce("add", lambda part: part.inside(power(part))))
        for part in rows.parts():
            part.store(Y, part.take(x) - most - rest if log else power(part) * rest)
    return kernel


def _power(distance: Any) -> Any:
    return gr.exp2(distance * math.log2(math.e), ftz=True)


def _finite(m: gr.Tensor) -> Any:
    """The maximum, or 0 where there is nothing but -inf so far."""
    return gr.where(m == -gr.inf, 0, m)


def _online(rows: Rows, x: Kept, most: gr.Tensor) -> gr.Tensor:
    """The sum of exp(x - most) of each row, in one pass, which also writes its maximum to `most`.

    Each thread keeps the maximum of what it has seen and the sum of powers relative to it (online softmax).
    """
    seen, more, base, lanes = (rows.v.reduced(1, n, lanes=True) for n in ("seen", "more", "base", "lanes"))
    total = rows.per_row("total")
    gr.init(seen, -gr.inf)
    gr.init(lanes, 0)
    for part in rows.parts():
        part.v[:] = part.inside(part.take(x), outside=-gr.inf)
        more[:] = seen
        gr.reduce("max", more, part.v, axis=1, accumulate=True)
        base[:] = _finite(more)
        lanes[:] = lanes * _power(seen - base)
        for e, v in rows.values(part):
            lanes.values[e][...] = lanes.values[e] + _power(v - base.values[e])
        seen[:] = more
    gr.reduce("max", most, seen, axis=1)
    lanes.values[0][...] = lanes.values[0] * _power(seen.values[0] - _finite(most.values[0]))  # a block has one row
    gr.reduce("add", total, lanes, axis=1)
    return total


@dataclass(frozen=True)
class SoftmaxColumnsConfig:
    """The types of X and of Y (None means that of X), and the block.

    It has 32 threads side by side, each with `vector` neighbouring columns, and `rows` such rows of threads. Raises
    VerifyError KERNEL_ARGUMENT.
    """

    dtype: gr.DType = gr.fp16
    out_dtype: gr.DType | None = None
    vector: int = 2
    rows: int = 8

    def __post_init__(self) -> None:
        size("SoftmaxColumnsConfig", "rows", self.rows, most=32)
        choice("SoftmaxColumnsConfig", "vector", self.vector, (1, 2, 4))
        _check_types("SoftmaxColumnsConfig", "vector", self.vector, self.dtype, self.out_dtype)


def softmax_columns_kernel(config: SoftmaxColumnsConfig) -> gr.Kernel:
    """Y[b, :, n] = softmax(X[b, :, n]); fp32 inside, rounded once.

    The arguments are X (B, M, N), Y (B, M, N), contiguous along N, of any sizes. A first pass keeps each column's
    maximum so far and the sum of powers relative to it (online softmax); a second pass writes. What rounding takes
    from the sum does not grow with M. Values that are not finite give the results of ``softmax_kernel``.
    """
    return _of_columns("softmax_columns", config, log=False)


def log_softmax_columns_kernel(config: SoftmaxColumnsConfig) -> gr.Kernel:
    """Y[b, :, n] = log(softmax(X[b, :, n])) without rounding between; arguments as in ``softmax_columns_kernel``."""
    return _of_columns("log_softmax_columns", config, log=True)


def _of_columns(name: str, config: SoftmaxColumnsConfig, log: bool) -> gr.Kernel:
    instance(f"{name}_kernel", "config", config, SoftmaxColumnsConfig)
    c = config
    wide = 32 * c.vector

    def meaning(X: Any) -> dict[str, Any]:
        return {"Y": _softmax(X, -2, log, c.rows)}

    with gr.Kernel(name, means=meaning) as kernel:
        B, M = gr.sym("B", max=MOST_BLOCKS_YZ), gr.sym("M", max=2**31 - 1)
        N = gr.sym("N", multiple_of=c.vector, max=2**31 - 1)
        out = c.out_dtype or c.dtype
        strides = gr.sym("bsX ldX", multiple_of=c.vector)
        align = c.vector * c.dtype.bits // 8, c.vector * out.bits // 8
        X = gr.input("X", gr.Layout((B, M, N), (*strides, 1)), c.dtype, align_bytes=align[0])
        Y = gr.output("Y", gr.row_major(B, M, N), out, align_bytes=align[1])
        blocks, threads = gr.blocks(gr.ceil_div(N, wide), B), gr.threads(32 * c.rows)
        strip, b = blocks.indices()
        tv = gr.tv(gr.Layout((32, c.rows), (c.vector * c.rows, 1)), gr.Layout(c.vector, c.rows))
        x = gr.fragment("x", [c.rows, wide], c.dtype, tv, on=threads)
        y = gr.fragment("y", [c.rows, wide], out, tv, on=threads)
        v, most, more, before, part, total, added, excess = (
            gr.fragment(n, [c.rows, wide], gr.fp32, tv, on=threads)
            for n in ("v", "most", "more", "before", "part", "total", "added", "excess")
        )
        column_most, column_total, rest = (v.reduced(0, n) for n in ("m", "t", "log_total" if log else "rcp"))
        parts, results = (t[b, :, :].tile([c.rows, wide])[:, strip] for t in (X, Y))
        load, store = access("ld.global.nc", align[0]), access("st.global", align[1])
        row, _ = v.coords()

        gr.init(most, -gr.inf)
        gr.init(total, 0)
        gr.init(excess, 0)
        steps = gr.ceil_div(M, c.rows)
        for q in gr.loop("q", gr.ceil_div(steps, PART)):
            before[:] = most
            gr.init(part, 0)
            for i in gr.loop("i", gr.min(PART, steps - q * PART), unroll=4):
                p = q * PART + i
                gr.move(x, parts[p], atom=load)
                v[:] = gr.where(p * c.rows + row < M, x, -gr.inf)
                more[:] = gr.max(most, v)
                part[:] = gr.fma(part, _power(most - _finite(more)), _power(v - _finite(more)))
                most[:] = more
            more[:] = _power(before - _finite(most))
            total[:] = total * more
            part[:] = part - excess * more
            added[:] = total + part
            excess[:] = (added - total) - part  # by what rounding made the sum larger (Kahan)
            total[:] = added
        gr.reduce("max", column_most, most, axis=0)
        total[:] = total * _power(most - column_most)
        gr.reduce("add", column_total, total, axis=0)
        rest[:] = gr.log(column_total) if log else gr.rcp(column_total)
        for p in gr.loop("p", steps, unroll=4):
            gr.move(x, parts[p], atom=load)
            y[:] = x - column_most - rest if log else _power(x - column_most) * rest
            gr.move(results[p], y, atom=store)
    return kernel
