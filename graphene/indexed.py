"""Rows that an index tensor names, as a view: gather, scatter, and pages of a cache that a block table lists.

Nothing is copied. Each part that is taken reads its index and is a view of the tensor behind it, so that loads, stores
and asynchronous copies work as on any other tile.
"""

from __future__ import annotations

from typing import Any

from graphene import _core
from graphene._core import IntExpr, Tensor
from graphene.control import index as _index

__all__ = ["Gathered", "gathered", "paged"]

_MOST = 2**31 - 1


class Gathered:
    """What `gathered` and `paged` return: a tensor whose first mode is in the order that an index tensor says."""

    __slots__ = ("_page", "_table", "_tensor")

    def __init__(self, tensor: Tensor, table: Tensor, paged: bool) -> None:
        _check("paged" if paged else "gathered", tensor, table, 2 if paged else 1)
        page = tensor.shape[1] if paged else None
        if isinstance(page, IntExpr):
            _core.fail("TENSOR_INDEX", "the number of rows of a page must be constant", [f"got: {page}"],
                       "declare the pool with a number: [pages, 16, heads, width]")  # fmt: skip
        if page is not None and page < 1:
            raise TypeError(f"a page has a number of rows, got {page!r}")
        self._tensor, self._table, self._page = tensor, table, page

    @property
    def shape(self) -> tuple[Any, ...]:
        """Rows that can be named, then the other modes of the tensor."""
        rest = tuple(self._tensor.shape[1 if self._page is None else 2 :])
        return (self._table.shape[0] * (self._page or 1), *rest)

    def __repr__(self) -> str:
        how = "rows" if self._page is None else f"pages of {self._page} rows"
        return f"<{how} of {self._tensor} by {self._table}>"

    def page(self, number: Any) -> Tensor:
        """The page that entry `number` of the table names: a view, for copies of whole tiles. Of rows, the row."""
        entry = _index(self._table[number], 0, _MOST)
        return self._tensor[(entry, *[slice(None)] * (len(self._tensor.shape) - 1))]

    def __getitem__(self, key: Any) -> Tensor:
        """Row `i`, or a part of it: ``g[i]``, ``g[i, j]``, ``g[i, :]``, whose first index is one number."""
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, bool) or not isinstance(first, (int, IntExpr)):
            _core.fail("TENSOR_INDEX", "rows of an index tensor are taken one at a time", [f"got: {key!r}"],
                       "write a loop over rows, or take a whole page: p.page(j)")  # fmt: skip
        if self._page is None:
            entry: tuple[Any, ...] = (_index(self._table[first], 0, _MOST),)
        else:
            entry = (_index(self._table[first // self._page], 0, _MOST), first % self._page)
        others = len(self._tensor.shape) - len(entry)
        if len(rest) > others:
            _core.fail("TENSOR_INDEX", "more indices than the tensor has modes", [f"got: {key!r}", f"of: {self!r}"], "")
        keys = (*entry, *rest, *[slice(None)] * (others - len(rest)))
        return self._tensor[keys if len(keys) > 1 else keys[0]]


def _check(call: str, tensor: Any, table: Any, modes: int) -> None:
    for t in (tensor, table):
        if not isinstance(t, Tensor):
            raise TypeError(f"{call} takes two tensors, got {t!r}")
    if len(tensor.levels) != 1 or len(tensor.shape) < modes:
        _core.fail("TENSOR_RANK", f"gr.{call} takes a tensor of one level with {modes} modes or more",
                   [f"got: {tensor}"], "take it before it is tiled, and tile the rows")  # fmt: skip
    if len(table.levels) != 1 or len(table.shape) != 1 or table.dtype.name not in ("i32", "u32", "i64", "u64"):
        _core.fail("TENSOR_INDEX", f"gr.{call} takes one row of integers as its indices", [f"got: {table}"],
                   "index the table down to one mode: table[sequence, :]")  # fmt: skip


def gathered(x: Tensor, rows: Tensor) -> Gathered:
    """The tensor whose row i is ``x[rows[i]]``: a view, read for a gather, written for a scatter.

    ``g = gr.gathered(x, rows)``; then ``gr.load(g[i, j])``, ``gr.move(g[i, :].tile([8])[t], r)``. x has one level;
    rows is one row of integers in global or shared memory, or in registers. Each ``g[i]`` reads the index where it
    stands, so a row that is used often is taken once. An index outside of x is an error (SIM_OUT_OF_BOUNDS); on a GPU
    the access is not made. Rows that are written twice are a race, for which gr.atomic is. Raises LayoutError
    TENSOR_RANK, TENSOR_INDEX.
    """
    return Gathered(x, rows, paged=False)


def paged(pool: Tensor, table: Tensor) -> Gathered:
    """A sequence of rows that lies in pages: row i is ``pool[table[i // page], i % page]``, a view.

    pool: [pages, page, ...] of one level, with a constant number of rows in a page; table: one row of integers, the
    pages of a sequence in order, such as ``block_table[sequence, :]``. ``p[i, j]`` and ``p[i]`` are elements and rows,
    ``p.page(j)`` is page number j as a tile. Indices are as in gr.gathered. Raises LayoutError TENSOR_RANK,
    TENSOR_INDEX.
    """
    return Gathered(pool, table, paged=True)
