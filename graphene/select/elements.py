"""The choice of blocks for elementwise kernels, reductions and transpositions, by sizes and types."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import align, choice, element, flags, size
from graphene.kernels.elementwise import ElementwiseConfig, check_types
from graphene.kernels.reduction import TYPES as REDUCED
from graphene.kernels.reduction import ReductionConfig
from graphene.kernels.transpose import TYPES as TRANSPOSED
from graphene.kernels.transpose import TransposeConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["select_elementwise", "select_reduction", "select_transpose"]


def select_elementwise(
    columns: int,
    dtypes: Sequence[gr.DType],
    out_dtype: gr.DType,
    spread: Sequence[bool] | None = None,
    *,
    align_bytes: int = 16,
) -> ElementwiseConfig:
    """The configuration for a last dimension of `columns`.

    `align_bytes`: divides addresses and strides in bytes. `spread`: as in ElementwiseConfig, by default no input is.
    Raises VerifyError KERNEL_ARGUMENT.
    """
    size("select_elementwise", "columns", columns, least=0)
    check_types("select_elementwise", dtypes, out_dtype)
    spread = (False,) * len(dtypes) if spread is None else spread
    spread = flags("select_elementwise", "spread", spread, len(dtypes))
    sizes = [t.bits // 8 for t in (*(d for d, s in zip(dtypes, spread, strict=True) if not s), out_dtype)]
    align("select_elementwise", "align_bytes", align_bytes, max(sizes))
    fit = [math.gcd(columns * b, align_bytes, 16) // b for b in sizes]
    vector = max(1, min(16 // max(sizes), *fit))
    threads = min(128, max(1, 1 << (max(columns, 1) // vector - 1).bit_length()))
    return ElementwiseConfig(tuple(dtypes), out_dtype, spread, threads, 128 // threads, vector)


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
    """The configuration for a matrix. `align_bytes`: divides its address and row stride in bytes.

    `axis`: 1 or 0, as in ReductionConfig. `more`: its further fields. Raises VerifyError KERNEL_ARGUMENT.
    """
    name = "select_reduction"
    size(name, "rows", rows, least=0)
    size(name, "columns", columns, least=0)
    choice(name, "axis", axis, (0, 1))
    element(name, "dtype", dtype, REDUCED)
    align(name, "align_bytes", align_bytes, dtype.bits // 8)
    elem_bytes = dtype.bits // 8
    vector = math.gcd(columns * elem_bytes, align_bytes, 16) // elem_bytes
    if axis == 0:
        vector = min(vector, 4 if rows > 64 else 2)  # few columns a thread: more blocks
        return ReductionConfig(0, op, dtype, threads=32, rows=4, vector=vector, each=8 if rows > 64 else 1, **more)
    vectors = max(columns, 1) // vector
    threads = min(256, max(1, 1 << (math.ceil(vectors / (2 if vectors > 32 else 1)) - 1).bit_length()))
    each = max(8 // vector, min(2, math.ceil(vectors / threads)))
    return ReductionConfig(1, op, dtype, threads=threads, rows=max(1, 128 // threads), vector=vector, each=each, **more)


def select_transpose(M: int, N: int, dtype: gr.DType = gr.fp16, *, align_bytes: int = 16) -> TransposeConfig:
    """The widest vectors for a matrix (M, N). `align_bytes`: divides addresses and strides in bytes."""
    size("select_transpose", "M", M, least=0)
    size("select_transpose", "N", N, least=0)
    element("select_transpose", "dtype", dtype, TRANSPOSED)
    elem_bytes = dtype.bits // 8
    align("select_transpose", "align_bytes", align_bytes, elem_bytes)
    load, store = (max(1, math.gcd(n * elem_bytes, align_bytes, 16) // elem_bytes) for n in (N, M))
    return TransposeConfig(dtype, load, store)
