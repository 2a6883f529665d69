"""Softmax over rows; each element is read once where a row fits on chip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels._rows import Rows, RowTile, declare_rows, select_tile

if TYPE_CHECKING:
    from graphene.kernels._rows import Part

__all__ = ["SoftmaxConfig", "select_softmax", "softmax_kernel"]


@dataclass(frozen=True)
class SoftmaxConfig:
    """The tile it works on, the types of X and of Y (None: that of X)."""

    tile: RowTile
    dtype: gr.DType = gr.fp16
    out_dtype: gr.DType | None = None


def select_softmax(
    rows: int, width: int, dtype: gr.DType = gr.fp16, *, align_bytes: int = 16, shared_bytes: int = 99 * 1024
) -> SoftmaxConfig:
    """The configuration for `rows` rows of `width` elements. Arguments as of ``select_norm``."""
    return SoftmaxConfig(select_tile(rows, width, dtype, 1, 0, align_bytes, shared_bytes), dtype)


def softmax_kernel(config: SoftmaxConfig) -> gr.Kernel:
    """Y = exp(X - max) / sum(exp(X - max)) over rows; fp32 inside, rounded once.

    Arguments: X (M, width), Y (M, width). Any M; rows may have any stride that the vectors divide. As in PyTorch a row
    with a NaN, with +inf, or of nothing but -inf gives NaN.
    """
    tile = config.tile
    with gr.Kernel("softmax") as kernel:
        M = gr.sym("M", max=2**31 - 1)
        X = declare_rows(gr.input, "X", M, tile, config.dtype)
        Y = declare_rows(gr.output, "Y", M, tile, config.out_dtype or config.dtype)
        rows = Rows(tile, M)
        (x,) = rows.keep(X)
        offset, rcp = rows.per_row("offset"), rows.per_row("rcp")

        def power(part: Part) -> Any:  # e^(x - max), as 2^(x * log2(e) - max * log2(e))
            return gr.exp2(gr.fma(part.take(x), math.log2(math.e), offset), ftz=True)

        offset[:] = rows.reduce("max", lambda part: part.inside(part.take(x), -gr.inf)) * -math.log2(math.e)
        rcp[:] = gr.rcp(rows.reduce("add", lambda part: part.inside(power(part))))
        for part in rows.parts():
            part.store(Y, power(part) * rcp)
    return kernel
