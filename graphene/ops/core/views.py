"""Views of arguments in terms of their dimensions, for recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from graphene import _core
from graphene.ops.core.define import Arg

Extent: TypeAlias = tuple[int, int]  # (tensor, dimension), or (-1, number); a third number is a multiple to round up to
Dim: TypeAlias = tuple[tuple[Extent, ...], tuple[int, ...]]

ONE: Dim = (((-1, 1),), ())  # a dimension of one element


def own(tensor: int, *dims: int) -> Dim:
    """Dimensions of the tensor merged into one; without any the dimension has one element."""
    return (tuple((tensor, d) for d in dims), tuple(dims)) if dims else ONE


def broadcast(extents: Sequence[Extent]) -> Dim:
    """A dimension along which the same elements repeat."""
    return (tuple(extents), ())


def view(tensor: int, *dims: Dim) -> tuple[int, tuple[Dim, ...]]:
    """A view of a tensor: an argument of a recipe's kernel."""
    return tensor, dims


def merge(arg: Arg, dims: Sequence[int]) -> bool:
    """Whether the dimensions, from the outermost on, lie one after the other, in the sense of the core."""
    following = None
    for d in reversed(dims):
        if arg.shape[d] == 1:
            continue
        if following is not None and arg.strides[d] != following:
            return False
        following = arg.strides[d] * arg.shape[d]
    return True


def contiguous(arg: Arg, dims: Sequence[int]) -> bool:
    """Whether the dimensions form one dimension whose elements lie side by side."""
    last = [d for d in dims if arg.shape[d] != 1][-1:]
    return merge(arg, dims) and all(arg.strides[d] == 1 for d in last)


def one_far(arg: Arg, rows: Sequence[int]) -> bool:
    """Whether the dimensions form one dimension of rows whose distance is too large for kernels to count."""
    return any(arg.strides[d] >= 2**31 for d in [d for d in rows if arg.shape[d] != 1][-1:])


def lies_in_rows(arg: Arg, n: int) -> bool:
    """Whether the last `n` dimensions form a contiguous row, and the others one dimension of rows."""
    rank = len(arg.shape)
    rows = list(range(rank - n))
    return merge(arg, rows) and contiguous(arg, list(range(rank - n, rank))) and not one_far(arg, rows)


def output(dtype: str, *dims: Sequence[Any]) -> tuple[str, list[list[Any]]]:
    """A row-major tensor that a recipe makes, by the extents of each dimension."""
    return dtype, [list(d) for d in dims]


def recipe(outputs: Sequence[Any], returned: int, kernels: Sequence[Any], views: Mapping[str, Any]) -> Any:
    """A recipe of kernels with the names of their arguments, or numbers."""
    launches = [(kernel, [views[x] if isinstance(x, str) else x for x in names]) for kernel, names in kernels]
    return _core.Recipe(outputs, returned, launches)


def divides(limit: int, *sizes: int) -> int:
    """The largest power of two up to `limit` that divides all sizes, in bytes."""
    n = limit
    while any(s % n for s in sizes):
        n //= 2
    return n
