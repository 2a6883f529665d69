"""CuTe's layout algebra: layouts are functions from coordinates to integers, written shape:stride.

Coordinates are colexicographic (the leftmost mode is fastest). Wherever a Layout is expected, its text or a bare shape
(column-major) will do. Sizes and strides are ints or symbolic integers. The algebra takes its knowledge about a symbol
from the symbol's facts.

Every function raises LayoutError: LAYOUT_DIVISIBILITY, LAYOUT_INJECTIVE or LAYOUT_COMPOSE if the result is not defined,
LAYOUT_FACT if the facts of the symbols leave that open, LAYOUT_PARSE for malformed text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from graphene import _core
from graphene._core import AccessCount, ComposedLayout, InverseLayout, Layout, Swizzle

if TYPE_CHECKING:
    from graphene._core import IntLike, IntTupleLike, LayoutLike, ModeTilerLike, ProfileLike

__all__ = [
    "AccessCount",
    "ComposedLayout",
    "InverseLayout",
    "Layout",
    "Swizzle",
    "blocked_product",
    "coalesce",
    "col_major",
    "complement",
    "composition",
    "count_access",
    "crd2idx",
    "equal_as_functions",
    "filter",
    "idx2crd",
    "is_injective",
    "left_inverse",
    "logical_divide",
    "logical_product",
    "make_layout",
    "panels",
    "raked_product",
    "right_inverse",
    "row_major",
    "swizzle",
    "tiled_divide",
    "tiled_product",
    "tv",
    "zipped_divide",
    "zipped_product",
]


def row_major(*shape: IntTupleLike) -> Layout:
    """A compact layout with the last mode fastest: ``row_major(4, 8)`` is ``(4,8):(8,1)``. CuTe: LayoutRight."""
    return _core.row_major(*shape)


def col_major(*shape: IntTupleLike) -> Layout:
    """A compact layout with the first mode fastest: ``col_major(4, 8)`` is ``(4,8):(1,4)``. CuTe: LayoutLeft."""
    return _core.col_major(*shape)


def make_layout(*modes: LayoutLike) -> Layout:
    """The layout with these layouts as its modes. CuTe: make_layout."""
    return _core.make_layout(*modes)


def tv(thread: LayoutLike, value: LayoutLike) -> Layout:
    """A thread-value layout: two modes, (thread, value) -> element number of a tile. CuTe: TV layouts of atoms.

    Each mode has at least one thread or value. A fragment's TV layout gives every element one place, which is a value
    of a thread; threads along a mode of stride 0 hold copies of each other. Raises LayoutError LAYOUT_TV if a mode is
    empty.
    """
    return _core.tv(thread, value)


def crd2idx(coord: IntTupleLike, shape: IntTupleLike, stride: IntTupleLike | None = None) -> IntLike:
    """Offset of a coordinate, given to any level of the hierarchy; column-major without strides. CuTe: crd2idx.

    Raises LayoutError: LAYOUT_COORD (hierarchy does not fit), LAYOUT_BOUNDS (outside of the shape).
    """
    return _core.crd2idx(coord, shape, stride)


def idx2crd(index: IntTupleLike, shape: IntTupleLike, stride: IntTupleLike | None = None) -> IntTupleLike:
    """Natural coordinate of a colexicographic index in a shape. CuTe: idx2crd.

    A tuple has one index for each mode, to any level, and each becomes a coordinate of its own. With strides the index
    is an offset, and the coordinate is ``(index // stride) % shape`` at every leaf (0 where the stride is 0). That is
    the inverse of crd2idx if the strides nest.
    Raises LayoutError: LAYOUT_COORD (hierarchy does not fit), LAYOUT_BOUNDS (outside of the shape, of the offsets).
    """
    return _core.idx2crd(index, shape, stride)


def coalesce(layout: LayoutLike, profile: ProfileLike = None) -> Layout:
    """The same function of linear indices with the fewest modes. CuTe: coalesce.

    With a tuple as profile, each mode that stands at one of its leaves is coalesced by itself, and modes beyond the
    tuple are kept: ``coalesce(layout, (1, 1))`` has rank 2. The values of the leaves do not matter. Raises LayoutError
    LAYOUT_RANK.
    """
    return _core.coalesce(layout, profile)


def filter(layout: LayoutLike, profile: ProfileLike = None) -> Layout:
    """The coalesced layout without modes of stride 0 or size 1. CuTe: filter. The profile is as in coalesce."""
    return _core.filter(layout, profile)


@overload
def composition(left: Swizzle | ComposedLayout, right: LayoutLike) -> ComposedLayout: ...
@overload
def composition(left: InverseLayout, right: ComposedLayout) -> Layout: ...
@overload
def composition(left: LayoutLike, right: Swizzle) -> InverseLayout: ...
@overload
def composition(left: LayoutLike, right: ModeTilerLike) -> Layout: ...
def composition(left: Any, right: Any) -> Any:
    """The function ``i -> left(right(i))``, in the hierarchy of `right`. CuTe: composition.

    `left` is a Layout, a Swizzle or a ComposedLayout. A tuple on the right composes by mode, to any depth; None keeps a
    mode, and modes beyond the tuple are dropped. A Layout of a Swizzle is an InverseLayout, which composes with a
    ComposedLayout of the same swizzle and the opposite offset: both cancel out.
    Indices past the size of `left` continue along its last mode. So do indices below 0, which come from negative
    strides of `right`; if all strides are negative, ``left(-x)`` is ``-left(x)``, as in CuTe.
    Raises LayoutError: LAYOUT_DIVISIBILITY (CuTe's stride and shape divisibility conditions), LAYOUT_COMPOSE (not a
    layout: the modes of `right` carry into each other or borrow, a swizzle inside of a layout), LAYOUT_RANK.
    """
    return _core.composition(left, right)


def complement(layout: LayoutLike, cotarget: IntTupleLike | None = None) -> Layout:
    """The layout of the repetitions of `layout` that fill `cotarget` (default: its cosize). CuTe: complement.

    Its offsets increase and are disjoint from those of `layout`, except 0. Raises LayoutError LAYOUT_INJECTIVE unless
    the modes of `layout` nest.
    """
    return _core.complement(layout, cotarget)


@overload
def right_inverse(layout: Swizzle) -> Swizzle: ...
@overload
def right_inverse(layout: ComposedLayout) -> InverseLayout: ...
@overload
def right_inverse(layout: InverseLayout) -> ComposedLayout: ...
@overload
def right_inverse(layout: LayoutLike) -> Layout: ...
def right_inverse(layout: Any) -> Any:
    """The largest compact R with ``layout(R(i)) == i`` for every i < R.size. CuTe: right_inverse.

    A Swizzle is its own inverse. That of a ComposedLayout is an InverseLayout, whose size counts whole blocks of the
    swizzle; it is 0 where the offset is positive, for then no index has offset 0.
    """
    return _core.right_inverse(layout)


@overload
def left_inverse(layout: Swizzle) -> Swizzle: ...
@overload
def left_inverse(layout: ComposedLayout) -> InverseLayout: ...
@overload
def left_inverse(layout: InverseLayout) -> ComposedLayout: ...
@overload
def left_inverse(layout: LayoutLike) -> Layout: ...
def left_inverse(layout: Any) -> Any:
    """An R with ``R(layout(i)) == i`` for every i < layout.size. CuTe: left_inverse.

    Along modes of stride 0 many indices share an offset. R leads to that with coordinate 0 in these modes, so that
    ``layout(R(layout(i))) == layout(i)``. A Swizzle is its own inverse; that of a ComposedLayout is an InverseLayout.
    Raises LayoutError: LAYOUT_INJECTIVE or LAYOUT_DIVISIBILITY where no layout inverts it.
    """
    return _core.left_inverse(layout)


def logical_divide(layout: LayoutLike, tiler: ModeTilerLike) -> Layout:
    """Splits into (tile, rest): ``layout o (tiler, complement of tiler)``; with a tuple, each mode.

    CuTe: logical_divide. A tile that does not divide rounds the number of tiles up. None leaves a mode unchanged; a
    tuple in the tuple divides a mode's own modes.
    Raises LayoutError: LAYOUT_DIVISIBILITY, LAYOUT_INJECTIVE (copies of the tile cannot cover the layout), LAYOUT_RANK.
    """
    return _core.logical_divide(layout, tiler)


def zipped_divide(layout: LayoutLike, tiler: ModeTilerLike) -> Layout:
    """logical_divide with the parts gathered: ((tiles), (rest)). CuTe: zipped_divide.

    For None the tile is 1:0, and the whole mode is rest.
    """
    return _core.zipped_divide(layout, tiler)


def tiled_divide(layout: LayoutLike, tiler: ModeTilerLike) -> Layout:
    """zipped_divide with the rest unpacked: ((tiles), rest, ...). CuTe: tiled_divide."""
    return _core.tiled_divide(layout, tiler)


def logical_product(layout: LayoutLike, tiler: ModeTilerLike) -> Layout:
    """(layout, its repetitions in the order of `tiler`); with a tuple, each mode. CuTe: logical_product."""
    return _core.logical_product(layout, tiler)


def zipped_product(layout: LayoutLike, tiler: ModeTilerLike) -> Layout:
    """logical_product with the parts gathered: ((blocks), (repetitions)). CuTe: zipped_product."""
    return _core.zipped_product(layout, tiler)


def tiled_product(layout: LayoutLike, tiler: ModeTilerLike) -> Layout:
    """zipped_product with the repetitions unpacked: ((blocks), repetition, ...). CuTe: tiled_product."""
    return _core.tiled_product(layout, tiler)


def blocked_product(layout: LayoutLike, tiler: LayoutLike) -> Layout:
    """Each element of `tiler` becomes a block `layout`: mode i is (layout's, tiler's). CuTe: blocked_product."""
    return _core.blocked_product(layout, tiler)


def raked_product(layout: LayoutLike, tiler: LayoutLike) -> Layout:
    """As blocked_product with the blocks interleaved: mode i is (tiler's, layout's). CuTe: raked_product."""
    return _core.raked_product(layout, tiler)


def is_injective(layout: LayoutLike) -> bool:
    """Whether no two coordinates share an offset.

    Raises LayoutError: LAYOUT_FACT (symbolic and not proven), LAYOUT_LIMIT (more than 2^24 interleaved elements).
    """
    return _core.is_injective(layout)


def equal_as_functions(a: LayoutLike, b: LayoutLike) -> bool:
    """Whether both have the same size and the same offset at every linear index, for any values of symbols."""
    return _core.equal_as_functions(a, b)


def panels(rows: int, cols: int, dtype: Any) -> Layout:
    """A shared-memory tile of `rows` x `cols` elements whose rows are cut into lines of 128 bytes, panel after panel.

    ``(rows,(w,cols/w)):(w,(1,rows*w))`` with lines of `w` elements: 128 bytes, or 64 or 32 if 128 do not divide the
    row. TMA and wgmma address this layout if a row is longer than a line, with ``swizzle=gr.swizzle(w, dtype)``. Raises
    LayoutError LAYOUT_DIVISIBILITY unless `rows` is a multiple of 8 and a row has whole lines.
    """
    bits = getattr(dtype, "bits", dtype)
    if not isinstance(bits, int):
        raise TypeError(f"a dtype, or a number of bits, is needed, got {dtype!r}")
    if not isinstance(rows, int) or not isinstance(cols, int):
        raise TypeError(f"a tile has an integer number of rows and columns, got {rows!r} and {cols!r}")
    line = next((n for n in (128, 64, 32) if cols > 0 and cols * bits % (8 * n) == 0), 0)
    if rows < 8 or rows % 8 != 0 or line == 0:
        got = f"got: {rows} rows of {cols * bits / 8:g} bytes"
        _core.fail("LAYOUT_DIVISIBILITY", "rows that are not cut into lines of 128, 64 or 32 bytes",
                   ["want: a multiple of 8 rows, each a multiple of 32 bytes", got],
                   "choose a larger tile")  # fmt: skip
    w = line * 8 // bits
    return Layout((rows, (w, cols // w)), (w, (1, rows * w)))


def swizzle(row_elems: int, dtype: Any) -> Swizzle:
    """The swizzle for a row-major shared-memory tile with rows of `row_elems` `dtype` elements (or a number of bits).

    Eight consecutive rows, starting at a multiple of eight, can then be read at one 16-byte column without a bank
    conflict, as ldmatrix does. If 2^k is the largest power of two that divides the 16-byte chunks of a row, it is
    ``Swizzle(min(k, 3), log2(elements of a chunk), max(k, 3))``.
    Raises LayoutError LAYOUT_SWIZZLE unless rows are whole 16-byte chunks.
    """
    bits = getattr(dtype, "bits", dtype)
    if not isinstance(bits, int):
        raise TypeError(f"a dtype, or a number of bits, is needed, got {dtype!r}")
    if not isinstance(row_elems, int):
        raise TypeError(f"a row has an integer number of elements, got {row_elems!r}")
    return _core.row_swizzle(row_elems, bits)


def count_access(tile: Any, tv: Layout, dtype: Any, swizzle: Swizzle | None = None) -> AccessCount:
    """Counts wavefronts and sectors of one access: thread t moves the elements ``tv(t, 0), tv(t, 1), ...`` of a tile.

    `tile`: the tile's layout (gr.Layout, its text, or a list of sizes, which is row-major), element -> offset in
    elements of `dtype`; the tile starts at a multiple of 128 bytes. `tv`: gr.tv(thread, value), of colexicographic
    elements. Values that are neighbours in memory for every thread are one vector of up to 16 bytes. `swizzle` permutes
    the offsets. Raises LayoutError LAYOUT_TV, LAYOUT_FACT, LAYOUT_SIZE, LAYOUT_BOUNDS.
    """
    if isinstance(tile, (list, tuple)):
        tile = _core.row_major(*tile)
    elif isinstance(tile, str):
        tile = Layout(tile)
    if not isinstance(tile, Layout) or not isinstance(tv, Layout):
        raise TypeError(f"a layout and a thread-value layout are needed, got {tile!r} and {tv!r}")
    bits = getattr(dtype, "bits", dtype)
    if not isinstance(bits, int):
        raise TypeError(f"a dtype, or a number of bits, is needed, got {dtype!r}")
    if not (swizzle is None or isinstance(swizzle, Swizzle)):
        raise TypeError(f"swizzle= takes a gr.Swizzle, got {swizzle!r}")
    if not 0 < bits <= 128:
        _core.fail("LAYOUT_SIZE", "an element has 1 to 128 bits", [f"got: {bits}"], "")
    return _core.count_access(tile, tv, bits, swizzle or Swizzle(0, 0, 0))
