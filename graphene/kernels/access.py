"""The atoms of plain loads and stores, by the number of bytes that one of them moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr

if TYPE_CHECKING:
    from graphene.dtypes import DType

__all__ = ["access", "vector_access"]

_WIDTHS = {16: "v4.b32", 8: "v2.b32", 4: "b32", 2: "b16", 1: "b8"}


def access(kind: str, width_bytes: int) -> Any:
    """The atom that moves `width_bytes` at once: ``access("ld.global", 8)`` is ld.global.v2.b32."""
    if width_bytes == 1:  # there is no ld.global.nc.b8
        kind = kind.removesuffix(".nc")
    return gr.atom(f"{kind}.{_WIDTHS[width_bytes]}")


def vector_access(kind: str, elems: int, dtype: DType) -> Any:
    """The atom that moves `elems` neighbouring elements of a type at once."""
    return access(kind, elems * dtype.bits // 8)
