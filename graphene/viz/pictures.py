"""Pictures of each kind of object: layouts, swizzles, thread-value layouts, tilings, thread groups, fragments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphene import _core
from graphene._core import ComposedLayout, Layout, Swizzle
from graphene._refused import refuse
from graphene.errors import LayoutError
from graphene.viz.grid import Cell, draw_grid, ramp, shade
from graphene.viz.nest import draw_kernel
from graphene.viz.timeline import Trace

__all__ = ["draw_layout", "draw_levels", "draw_swizzle", "draw_tiling", "draw_tv", "svg"]

_MAX_CELLS = 1 << 16


def _refuse(message: str) -> LayoutError:
    row: dict[str, Any] = {
        "code": "LAYOUT_PICTURE",
        "file": None,
        "line": 0,
        "message": message,
        "ir": [],
        "details": [],
        "fix": "",
    }
    return LayoutError(f"{message}   [LAYOUT_PICTURE]", [row])


def _leaves(shape: Any) -> list[int]:
    return [x for m in shape for x in _leaves(m)] if isinstance(shape, tuple) else [shape]


def _static(layout: Layout | ComposedLayout) -> None:
    inner = layout.layout if isinstance(layout, ComposedLayout) else layout
    offset = layout.offset if isinstance(layout, ComposedLayout) else 0
    if not inner.is_static or not isinstance(offset, int):
        raise _refuse(f"a picture needs plain integers, got {layout}")
    if not 0 < inner.size <= _MAX_CELLS:
        raise _refuse(f"a picture shows 1 to {_MAX_CELLS} elements, {layout} has {inner.size}")


def _blocks(shape: Any) -> list[int]:
    """Sizes after which a hierarchical mode starts a new block, innermost first: (2,(3,4)) -> [2, 6]."""
    sizes = _leaves(shape)
    return [p for p in itertools.accumulate(sizes[:-1], lambda a, b: a * b) if p > 1]


def _block_of(index: int, blocks: Sequence[int]) -> tuple[int, ...]:
    return tuple(index // b for b in reversed(blocks))


def _interleave(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[object, ...]:
    return tuple(itertools.zip_longest(a, b))


def draw_layout(layout: Layout | ComposedLayout, title: str = "") -> str:
    """Offsets of a layout: mode 0 down, the other modes across, coloured in the order of memory.

    Boundaries follow the hierarchy of the modes. Under a swizzle the colours are the chunks that stay together, modulo
    eight (16-byte chunks: the groups of four banks).
    """
    _static(layout)
    swizzled = isinstance(layout, ComposedLayout) and layout.swizzle.bits > 0
    inner = layout.layout if isinstance(layout, ComposedLayout) else layout
    if inner.rank >= 2:
        rows = inner[0].size
        row_blocks, col_blocks = _blocks(inner[0].shape), _blocks(tuple(m.shape for m in list(inner)[1:]))
    else:
        rows, row_blocks, col_blocks = 1, [], _blocks(inner.shape)
    cols = inner.size // rows
    lowest = min(layout(i) for i in range(inner.size))
    span = max(layout(i) for i in range(inner.size)) - lowest or 1
    base = layout.swizzle.base if isinstance(layout, ComposedLayout) else 0

    def cell(r: int, c: int) -> Cell:
        i = r + rows * c
        offset = layout(i)
        fill = shade((offset >> base) % 8) if swizzled else ramp((offset - lowest) / span)
        group = offset >> base if swizzled else _interleave(_block_of(r, row_blocks), _block_of(c, col_blocks))
        return Cell(str(offset), fill, group, f"{_coord(layout.coord(i))} -> {offset}")

    return draw_grid(
        rows,
        cols,
        cell,
        title=title or str(layout),
        row_labels=[""] if inner.rank < 2 else None,
        caption=f"colour: chunk of {1 << base} elements, modulo 8" if swizzled else "",
    )


def _coord(coord: Any) -> str:
    return "(" + ",".join(_coord(c) for c in coord) + ")" if isinstance(coord, tuple) else str(coord)


def draw_swizzle(swizzle: Swizzle) -> str:
    """The places of the chunks of each line; the number is the chunk's column before the swizzle."""
    shift = abs(swizzle.shift)
    rows, cols, chunk = 1 << swizzle.bits, 1 << shift, 1 << swizzle.base
    if rows * cols > _MAX_CELLS:
        raise _refuse(f"a picture shows at most {_MAX_CELLS} chunks, {swizzle} permutes {rows * cols}")

    def cell(r: int, c: int) -> Cell:
        before = swizzle((r * cols + c) * chunk) // chunk  # its own inverse
        from_row = before // cols
        text = str(before % cols) if from_row == r else f"{from_row},{before % cols}"
        return Cell(text, shade(before % cols % 8), None, f"holds chunk {before} of the layout")

    return draw_grid(
        rows,
        cols,
        cell,
        title=f"{swizzle}: each cell is a chunk of {chunk} element{'s' if chunk > 1 else ''}",
        row_axis="line",
        col_axis="chunk after the swizzle",
        caption="number and colour: the chunk's column before the swizzle",
    )


def draw_tv(tv: Layout, shape: Sequence[int], title: str = "", axes: Sequence[str] = ()) -> str:
    """A tile whose cells name the thread and the value (register) that hold them: "T3" over "V1".

    tv: a thread-value layout onto the colexicographic elements of `shape` (one or two axes; more are put side by side).
    Colours are those of the threads (modulo a warp); boundaries separate warps and groups of values.
    Raises LayoutError: LAYOUT_TV if tv leaves the tile, LAYOUT_PICTURE.
    """
    _static(tv)
    elements = math.prod(shape)
    if not 0 < elements <= _MAX_CELLS:
        raise _refuse(f"a picture shows 1 to {_MAX_CELLS} elements, the tile has {elements}")
    table = _core.TvTable(tv, elements)
    rows = shape[0] if len(shape) > 1 else 1
    across = shape[1] if len(shape) > 1 else elements
    together = _leaves(tv[1].shape)[0] if tv[1].size > 1 else 1

    def cell(r: int, c: int) -> Cell:
        holders = table.holders(r + rows * c)
        if not holders:
            return Cell("", "#f4f5f7", None, "held by no thread")
        thread, value = holders[0]
        more = f"+{len(holders) - 1}" if len(holders) > 1 else ""
        quads = table.threads >= 8
        fill = shade(thread // 4 % 8, thread % 4, 4) if quads else shade(thread)
        names = ", ".join(f"T{t} V{v}" for t, v in holders[:64])
        group = (*([c // across] if len(shape) > 2 else []), *([thread // 32] if table.threads > 32 else []))
        return Cell(f"T{thread}{more}\nV{value}", fill, (*group, value // together), f"element {r + rows * c}: {names}")

    return draw_grid(
        rows,
        elements // rows,
        cell,
        title=title or f"{tv}",
        row_labels=[""] if rows == 1 else None,
        row_axis=axes[0] if len(axes) > 1 else "",
        col_axis=",".join(axes[1:]) if len(axes) > 1 else "".join(axes),
        caption=f"{table.threads} threads x {table.values} values",
    )


def _grid_of(levels: Sequence[Layout]) -> tuple[int, int, Callable[[int, int], list[int]]]:
    """Rows, columns and the linear coordinate in each level of a nested drawing, outermost level first.

    In a level of rank 2 or more, mode 0 goes down and the others across. Levels of rank 1 go across; if all levels have
    rank 1, the outer one goes down.
    """
    flat = all(level.rank == 1 for level in levels)
    sizes: list[tuple[int, int]] = []
    for i, level in enumerate(levels):
        down = level[0].size if level.rank > 1 else level.size if flat and len(levels) > 1 and i == 0 else 1
        sizes.append((down, level.size // down))

    def coords(r: int, c: int) -> list[int]:
        out = []
        for down, across in reversed(sizes):
            out.append(r % down + down * (c % across))
            r, c = r // down, c // across
        return out[::-1]

    return math.prod(d for d, _ in sizes), math.prod(a for _, a in sizes), coords


def draw_levels(
    levels: Sequence[Layout], offset: int = 0, title: str = "", text: Callable[[int], str] = str, caption: str = ""
) -> str:
    """A tiled tensor or thread tensor, tile by tile: each outer coordinate is a block of the level inside of it.

    levels: outermost first. text(offset) names an element (an offset, a thread). Colours are those of the outermost
    coordinate, boundaries those of all outer levels.
    """
    for level in levels:
        _static(level)
    if math.prod(level.size for level in levels) > _MAX_CELLS:
        raise _refuse(f"a picture shows at most {_MAX_CELLS} elements, {title} has more")
    rows, cols, coords = _grid_of(levels)

    def cell(r: int, c: int) -> Cell:
        at = coords(r, c)
        value = offset + sum(level(i) for level, i in zip(levels, at, strict=True))
        where = " ".join(_coord(level.coord(i)) for level, i in zip(levels, at, strict=True))
        fill = shade(at[0]) if len(at) > 1 else ramp(at[0] / max(levels[0].size - 1, 1) if levels else 0)
        return Cell(text(value), fill, tuple(at[:-1]), f"{where}: {value}")

    one_row = rows == 1
    return draw_grid(rows, cols, cell, title=title, caption=caption, row_labels=[""] if one_row else None)


def draw_tiling(parent: Layout, levels: Sequence[Layout], offset: int = 0, title: str = "") -> str:
    """A tiling on the tensor that it came from: elements keep their places, and colours show tiles.

    parent: the layout of the whole tensor, one mode per dimension. levels: those of the tiled view, outermost first.
    Elements outside of the view are grey.
    """
    _static(parent)
    for level in levels:
        _static(level)
    rows = parent[0].size if parent.rank > 1 else 1
    tile_of: dict[int, tuple[int, int]] = {}
    inner = math.prod(level.size for level in levels[1:])
    for outer, rest in itertools.product(range(levels[0].size if levels else 1), range(inner)):
        at, i = offset + (levels[0](outer) if levels else 0), rest
        for level in levels[1:]:
            at += level(i % level.size)
            i //= level.size
        tile_of.setdefault(at, (outer, rest))

    def cell(r: int, c: int) -> Cell:
        at = parent(r + rows * c)
        if at not in tile_of:
            return Cell(str(at), "#f4f5f7", None, f"offset {at}: outside of the view")
        outer, rest = tile_of[at]
        return Cell(str(at), shade(outer), outer, f"offset {at}: tile {outer}, element {rest}")

    return draw_grid(rows, parent.size // rows, cell, title=title, row_labels=[""] if rows == 1 else None)


def _tile_axes(tile: Any) -> tuple[list[str], list[int]]:
    """Names and sizes of the axes of a tile, from "m16,k16", or from a sequence of sizes, which have no names."""
    if not isinstance(tile, str):
        return [], [int(x) for x in tile]
    names, sizes = [], []
    for axis in filter(None, tile.split(",")):
        name = axis.rstrip("0123456789")
        if name == axis or not name:
            raise _refuse(f'a tile is given as in "m16,k16" or (16, 16), got "{tile}"')
        names.append(name)
        sizes.append(int(axis[len(name) :]))
    return names, sizes


def _draw_tensor(obj: Any, of: Any) -> str:
    levels = tuple(obj.levels) or (Layout(1, 0),)
    if not isinstance(obj.offset, int):
        raise _refuse(f"a picture needs plain integers, {obj} starts at {obj.offset}")
    parent = of if of is None or isinstance(of, Layout) else next(iter(of.levels))
    if parent is None and len(levels) > 1:
        # Of a tensor with stages this is the layout of one of them: not what the view came from.
        base = getattr(obj, "base_layout", None)
        whole = base is not None and base.is_static and max(obj.size, 1) <= base.size <= 4096
        parent = base if whole else None
    if parent is not None and parent.rank <= 2:
        return draw_tiling(parent, levels, obj.offset, title=str(obj))
    letter = {"thread": "T", "block": "B"}.get(str(getattr(obj, "unit", "")), "")
    return draw_levels(levels, obj.offset, title=str(obj), text=lambda at: f"{letter}{at}")


def _draw_fragment(view: Any) -> str:
    """The whole fragment as one tile; a part of it level by level, with the threads that hold it."""
    elements = math.prod(view.fragment_shape)
    first = view.offset if isinstance(view.offset, int) else _core.sym_bounds(view.offset)[0]
    if first is None:
        raise _refuse(f"a picture needs plain integers, {view} starts at {view.offset}")
    if view.size == elements and first == 0:
        return draw_tv(view.tv, view.fragment_shape, title=str(view))
    table = _core.TvTable(view.tv, elements)

    def holder(element: int) -> str:
        stage, at = divmod(element, elements)
        held = table.holders(at)
        return f"T{held[0][0]}\nV{held[0][1] + stage * table.values}" if held else ""

    caption = "" if isinstance(view.offset, int) else f"of the first thread that has one: {view.offset} = {first}"
    return draw_levels(view.levels, first, title=str(view), text=holder, caption=caption)


def _draw(obj: Any, tile: Any, of: Any) -> str:
    if isinstance(obj, str):
        obj = Layout(obj)
    if isinstance(obj, Layout) and tile is not None:
        axes, shape = _tile_axes(tile)
        return draw_tv(obj, shape, axes=axes)
    if isinstance(obj, (Layout, ComposedLayout)):
        return draw_layout(obj)
    if isinstance(obj, Swizzle):
        return draw_swizzle(obj)
    if isinstance(getattr(obj, "tv", None), Layout):
        if hasattr(obj, "axes"):  # an operand of an atomic spec
            return draw_tv(obj.tv, list(obj.extents) or [1], title=f"{obj.name}  {obj.tv}", axes=obj.axes)
        return _draw_fragment(obj)
    if hasattr(obj, "levels") and hasattr(obj, "offset"):
        return _draw_tensor(obj, of)
    if isinstance(obj, Trace):
        return obj.timeline()
    if isinstance(ir := getattr(obj, "ir", None), _core.KernelIR):
        return draw_kernel(ir)
    own = getattr(obj, "svg", None)  # of a plan, of a graph of operators, of what a thread did
    if callable(own) and not isinstance(obj, type):
        return str(own())
    refuse("LAYOUT_PICTURE", f"nothing draws this {type(obj).__name__}", [f"got: {obj!r:.80}"],
           "gr.svg takes a layout, a swizzle, a tensor, threads, a fragment, a kernel, a trace, steps, a plan, or an "
           "operand of an atom, as in gr.svg(gr.atom(name).c)")  # fmt: skip


def svg(obj: Any, path: str | Path | None = None, *, tile: Any = None, of: Any = None) -> str:
    """A picture as standalone SVG text, which is also written to `path` if that is given.

    obj: a Layout (or its text), a ComposedLayout, a Swizzle, a tensor, a thread tensor, a fragment, an operand of an
    atom, a kernel (its statements, nested), a trace (its timeline), the result of ``kernel.steps`` or ``kernel.watch``
    (rows of text) or a plan. tile: draw a Layout as a thread-value layout of a
    tile of this shape, such as (16, 8) or "m16,n8". of: draw a tiled tensor on the tensor (or layout) it came from.
    Raises LayoutError LAYOUT_PICTURE for sizes that are symbolic or too large, and for anything else.
    """
    text = _draw(obj, tile, of)
    if path is not None:
        Path(path).write_text(text + "\n", encoding="utf-8")
    return text


def _repr_svg_(self: Any) -> str | None:
    """The picture that notebooks show; None, so that they show the text, if it would not be legible."""
    try:
        size = getattr(self, "size", 1)
        most = 1024 if getattr(self, "tv", None) is not None else 4096  # two lines of text a cell
        return svg(self) if isinstance(size, int) and size <= most else None
    except (LayoutError, TypeError):
        return None


for _name in ("Layout", "ComposedLayout", "Swizzle", "Tensor", "ThreadTensor", "AtomOperand"):
    if hasattr(_core, _name):
        getattr(_core, _name)._repr_svg_ = _repr_svg_
