"""One way to draw: a grid of cells with labels, colours and boundaries between groups, as standalone SVG text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Cell", "draw_grid", "ramp", "shade"]

_FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
_INK, _SOFT, _LINE, _EDGE = "#1f2430", "#7a8190", "#c9ced8", "#39404f"
_CHAR = 0.56  # average width of a character, in font sizes
_TEXT, _LABEL, _TITLE = 12.0, 10.5, 13.5
_WEIGHTS = (2.2, 1.2, 0.9)  # of boundaries, by how far out the groups differ


@dataclass(frozen=True)
class Cell:
    """The contents of one cell.

    text: up to three lines, separated by newlines; every line but the first is smaller. fill: an SVG colour. group:
    neighbours of different groups get a boundary between them; if groups are tuples, the first entry that differs
    decides its weight (the outermost is the thickest). title: browsers show it when the pointer rests on the cell.
    """

    text: str = ""
    fill: str = "#ffffff"
    group: object = None
    title: str = ""


def shade(index: int, sub: int = 0, subs: int = 1) -> str:
    """A light colour for group `index`; `sub` of `subs` varies its lightness. Neighbouring indices differ clearly."""
    hue = (index * 137.508 + 205) % 360  # golden angle: any prefix is spread around the circle
    saturation = 62 - 12 * ((index // 8) % 3)
    light = 88 - 4 * ((index // 12) % 3) - (11.0 * sub / max(subs - 1, 1) if subs > 1 else 0)
    return _hsl(hue, saturation, light)


def ramp(position: float) -> str:
    """A light colour for a position in 0..1: from blue over green and yellow to red, in the order of memory."""
    return _hsl(215 - 205 * min(max(position, 0.0), 1.0), 62, 86)


def _hsl(hue: float, saturation: float, light: float) -> str:
    mean = light / 100
    swing = saturation / 100 * min(mean, 1 - mean)

    def channel(n: int) -> int:
        k = (n + hue / 30) % 12
        return round(255 * (mean - swing * max(-1.0, min(k - 3, 9 - k, 1.0))))

    return f"#{channel(0):02x}{channel(8):02x}{channel(4):02x}"


def _text(x: float, y: float, size: float, text: str, fill: str, anchor: str = "middle", weight: str = "") -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{bold}>'
        f"{escape(text, quote=False)}</text>"
    )


def _cell_svg(cell: Cell, x: float, y: float, width: float, height: float) -> str:
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{cell.fill}"/>']
    lines = cell.text.split("\n") if cell.text else []
    sizes = [_TEXT if i == 0 else _TEXT - 2 for i in range(len(lines))]
    top = y + (height - sum(sizes) - 2.0 * max(len(lines) - 1, 0)) / 2
    for i, (line, size) in enumerate(zip(lines, sizes, strict=True)):
        top += size
        parts.append(_text(x + width / 2, top - 0.14 * size, size, line, _INK if i == 0 else "#444b5a"))
        top += 2.0
    body = "".join(parts)
    return f"<g><title>{escape(cell.title, quote=False)}</title>{body}</g>" if cell.title else body


def _difference(a: object, b: object) -> int | None:
    """The first entry in which two groups differ, 0 for the outermost; None if they are the same."""
    if a == b:
        return None
    if isinstance(a, tuple) and isinstance(b, tuple):
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    return 0


def _boundaries(cells: list[list[Cell]], x0: float, y0: float, w: float, h: float) -> list[str]:
    """Runs of equal weight between cells of different groups, each as one line."""
    rows, cols = len(cells), len(cells[0])
    segments: dict[int, list[str]] = {}

    def run(kind: str, fixed: int, length: int, weight_at: Callable[[int], int | None]) -> None:
        start, current = 0, None
        for i in range(length + 1):
            weight = weight_at(i) if i < length else None
            if weight == current and i < length:
                continue
            if current is not None:
                if kind == "v":
                    path = f"M{x0 + fixed * w:g} {y0 + start * h:g}V{y0 + i * h:g}"
                else:
                    path = f"M{x0 + start * w:g} {y0 + fixed * h:g}H{x0 + i * w:g}"
                segments.setdefault(min(current, len(_WEIGHTS) - 1), []).append(path)
            start, current = i, weight

    for c in range(1, cols):
        run("v", c, rows, lambda r, c=c: _difference(cells[r][c - 1].group, cells[r][c].group))  # type: ignore[misc]
    for r in range(1, rows):
        run("h", r, cols, lambda c, r=r: _difference(cells[r - 1][c].group, cells[r][c].group))  # type: ignore[misc]
    return [
        f'<path d="{"".join(paths)}" fill="none" stroke="{_EDGE}" stroke-width="{_WEIGHTS[i]}" '
        'stroke-linecap="square"/>'
        for i, paths in sorted(segments.items(), reverse=True)
    ]


def draw_grid(
    rows: int,
    cols: int,
    cell: Callable[[int, int], Cell],
    *,
    row_labels: Sequence[str] | None = None,
    col_labels: Sequence[str] | None = None,
    title: str = "",
    caption: str = "",
    row_axis: str = "",
    col_axis: str = "",
    max_rows: int = 64,
    max_cols: int = 128,
) -> str:
    """Draws rows x cols cells as standalone SVG text.

    cell(r, c) gives each cell. Labels default to 0, 1, ...; `row_axis` and `col_axis` name the axes. Rows beyond
    `max_rows` and columns beyond `max_cols` are cut off, and the caption says so.
    """
    shown_rows, shown_cols = min(rows, max_rows), min(cols, max_cols)
    if shown_rows < rows or shown_cols < cols:
        note = f"the first {shown_rows} x {shown_cols} of {rows} x {cols}"
        caption = f"{caption}  ({note})" if caption else note
    cells = [[cell(r, c) for c in range(shown_cols)] for r in range(shown_rows)]
    row_text = [str(r) for r in range(rows)] if row_labels is None else list(row_labels)
    col_text = [str(c) for c in range(cols)] if col_labels is None else list(col_labels)

    lines = max((len(c.text.split("\n")) for row in cells for c in row), default=1)
    longest = max(
        (
            len(t) * (_TEXT if i == 0 else _TEXT - 2)
            for row in cells
            for c in row
            for i, t in enumerate(c.text.split("\n"))
        ),
        default=0,
    )
    widest_label = max((len(t) for t in col_text[:shown_cols]), default=0)
    w = max(26.0, longest * _CHAR + 10, widest_label * _LABEL * _CHAR + 6)
    h = max(24.0, _TEXT + (lines - 1) * _TEXT + 10)

    left = 14 + max((len(t) for t in row_text[:shown_rows]), default=0) * _LABEL * _CHAR + (16 if row_axis else 0)
    head = 10 + (_TITLE + 10 if title else 0)
    top = head + (14 if col_axis else 0) + (_LABEL + 6 if any(col_text[:shown_cols]) else 0)
    text_width = max(len(title) * _TITLE * 0.6, len(caption) * _LABEL * _CHAR)
    width = max(left + shown_cols * w + 14, text_width + 28)
    height = top + shown_rows * h + 12 + (_LABEL + 8 if caption else 0)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="{_FONT}">',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
    ]
    if title:
        out.append(_text(14, 10 + _TITLE, _TITLE, title, _INK, "start", "600"))
    if col_axis:
        out.append(_text(left + shown_cols * w / 2, head + 10, _LABEL, col_axis, _SOFT))
    if row_axis:
        y = top + shown_rows * h / 2
        out.append(
            f'<text x="16" y="{y:g}" font-size="{_LABEL:g}" fill="{_SOFT}" text-anchor="middle" '
            f'transform="rotate(-90 16 {y:g})">{escape(row_axis, quote=False)}</text>'
        )
    for c in range(shown_cols):
        out.append(_text(left + (c + 0.5) * w, top - 5, _LABEL, col_text[c], _SOFT))
    for r in range(shown_rows):
        out.append(_text(left - 7, top + (r + 0.5) * h + 0.36 * _LABEL, _LABEL, row_text[r], _SOFT, "end"))
    for r, row in enumerate(cells):
        for c, item in enumerate(row):
            out.append(_cell_svg(item, left + c * w, top + r * h, w, h))
    if shown_rows and shown_cols:
        thin = [f"M{left + c * w:g} {top:g}v{shown_rows * h:g}" for c in range(1, shown_cols)]
        thin += [f"M{left:g} {top + r * h:g}h{shown_cols * w:g}" for r in range(1, shown_rows)]
        out.append(f'<path d="{"".join(thin)}" fill="none" stroke="{_LINE}" stroke-width="0.7"/>')
        out += _boundaries(cells, left, top, w, h)
    out.append(
        f'<rect x="{left:g}" y="{top:g}" width="{shown_cols * w:g}" height="{shown_rows * h:g}" fill="none" '
        f'stroke="{_EDGE}" stroke-width="{_WEIGHTS[0]}"/>'
    )
    if caption:
        out.append(_text(14, height - 10, _LABEL, caption, _SOFT, "start"))
    out.append("</svg>")
    return "\n".join(out)
