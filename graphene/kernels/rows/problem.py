"""The problems of kernels of rows, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphene import dtypes
from graphene.kernels.arguments import FLOATS, align, choice, size

__all__ = ["KINDS", "RowProblem"]

KINDS = ("layernorm", "rmsnorm", "softmax")


@dataclass(frozen=True)
class RowProblem:
    """Rows of `width` elements that are normalised.

    ``kind``: "layernorm", "rmsnorm" or "softmax". ``dtype``: "fp16", "bf16" or "fp32". ``align_bytes``: divides
    addresses and row strides. ``dense_bytes``: divides addresses if rows have no gaps, else 0. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    kind: str
    rows: int
    width: int
    dtype: str = "fp16"
    align_bytes: int = 16
    dense_bytes: int = 0

    def __post_init__(self) -> None:
        n = "RowProblem"
        choice(n, "kind", self.kind, KINDS)
        choice(n, "dtype", self.dtype, FLOATS)
        size(n, "rows", self.rows, least=0)
        size(n, "width", self.width)
        elem_bytes = int(getattr(dtypes, self.dtype).bits) // 8
        align(n, "align_bytes", self.align_bytes, elem_bytes)
        if self.dense_bytes != 0:
            align(n, "dense_bytes", self.dense_bytes, elem_bytes)

    @property
    def vector(self) -> int:
        """Elements of the widest vectors that begin every row."""
        return math.gcd(self.row_bytes, self.align_bytes, 16) * self.width // self.row_bytes

    @property
    def dense(self) -> int:
        """Elements of vectors if rows begin anywhere; 0 if they begin with whole vectors, or may have gaps."""
        size = self.row_bytes // self.width
        dense = math.gcd(self.dense_bytes, 16) // size if self.dense_bytes else 0
        return dense if dense > self.vector and self.width >= 256 else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * int(getattr(dtypes, self.dtype).bits) // 8

    def __str__(self) -> str:
        return f"{self.kind} {self.rows}x{self.width} {self.dtype}"
