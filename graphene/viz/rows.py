"""Rows of text as a picture: what a run of the simulator wrote, statement by statement."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_FONT = "'DejaVu Sans Mono',Menlo,Consolas,monospace"
_INK, _SOFT, _BAND = "#1f2933", "#6b7785", "#f2f5f8"
_LINE, _CHAR, _GAP, _PAD = 17, 6.7, 16, 10  # pixels
_WIDEST = 60  # characters of a cell; the rest stands in its tooltip


def draw_rows(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A table as standalone SVG text, with lines of notes under it."""
    cut = [[c if len(c) <= _WIDEST else c[: _WIDEST - 3] + "..." for c in r] for r in (heads, *rows)]
    at = [float(_PAD)]
    for column in zip(*cut, strict=True):
        at.append(at[-1] + max(map(len, column)) * _CHAR + _GAP)
    width = max(at[-1], _PAD * 2 + 8.5 * len(title), *(_PAD * 2 + _CHAR * len(n) for n in notes), 120.0)
    out, y = [f'<text x="{_PAD}" y="20" font-size="13.5" font-weight="bold" fill="{_INK}">{escape(title)}</text>'], 28
    for number, (row, whole) in enumerate(zip(cut, (heads, *rows), strict=True)):
        if number % 2:
            out.append(f'<rect x="0" y="{y}" width="{width:g}" height="{_LINE}" fill="{_BAND}"/>')
        ink = _INK if number else _SOFT
        for x, cell, text in zip(at, row, whole, strict=False):
            more = f"<title>{escape(text, quote=False)}</title>" if cell != text else ""
            out.append(f'<text x="{x:g}" y="{y + 12}" font-size="11" fill="{ink}" xml:space="preserve">{more}'
                       f"{escape(cell, quote=False)}</text>")  # fmt: skip
        y += _LINE
    for note in notes:
        out.append(f'<text x="{_PAD}" y="{y + 12}" font-size="11" fill="{_SOFT}">{escape(note, quote=False)}</text>')
        y += _LINE
    size = f'width="{width:g}" height="{y + 6}" viewBox="0 0 {width:g} {y + 6}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(out) + "\n</svg>"
    )
