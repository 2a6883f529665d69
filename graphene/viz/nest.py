"""A kernel as a picture: its statements from top to bottom, in boxes for loops, branches and decomposed specs."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from graphene import _core
from graphene.viz.grid import shade

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphene._core import KernelIR, Statement
    from graphene.recorded import Recorded

__all__ = ["draw_kernel"]

_FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
_PRODUCT, _SPEC = "#dcebd8", "#f6f7f9"
_INK, _SOFT, _EDGE, _SYNC, _PLAIN = "#1f2430", "#7a8190", "#39404f", "#f2c14e", "#eef0f4"
_ROW, _GAP, _PAD, _CHAR = 20.0, 3.0, 9.0, 6.1
_MEMORIES = ("GL", "SH", "DSM", "RF")
_MOST = 400  # rows


@dataclass
class _Node:
    """A statement: what its row says, its whole text, its colour, and what stands in it."""

    text: str
    line: str
    fill: str
    body: list[_Node] = field(default_factory=list)
    spec: bool = False

    @property
    def rows(self) -> int:
        return 1 + sum(n.rows for n in self.body)


def _rows(statements: Sequence[Statement]) -> list[_Node]:
    """Views, allocations and names of coordinates are not shown: specs say what they name."""
    out: list[_Node] = []
    for s in statements:
        if s.kind in ("allocate", "view", "threads", "indices"):
            continue
        out.append(_spec(s) if s.kind == "spec" else _Node(_plain(s.named), s.text, _PLAIN, _rows(s.body)))
        if s.kind == "sync" and s.what not in ("print", "assert"):
            out[-1].fill = _SYNC
        if s.otherwise:
            out.append(_Node("else", "else", _PLAIN, _rows(s.otherwise)))
    return out


def _spec(s: Statement) -> _Node:
    told = ", ".join([f"{s.what} {s.op}" if s.op else s.what, *([s.atom] if s.atom else [])])
    text = f"{', '.join(t.name for t in s.outs)} <- {told} ({', '.join(s.operands)})"
    memories = [_MEMORIES.index(t.memory) for t in (*s.outs, *s.ins)] or [0]
    fill = {"Move": shade(memories[-1] * 4 + memories[0]), "MatMul": _PRODUCT}.get(s.what, _SPEC)
    return _Node(_plain(text), s.text, fill, _rows(s.body), spec=True)


def _plain(text: str) -> str:
    """Without the marks of coordinates."""
    return text.replace("@", "")


def _synchronises(node: _Node) -> bool:
    return node.fill == _SYNC or any(_synchronises(n) for n in node.body)


def _folded(nodes: list[_Node]) -> list[_Node]:
    """Without the bodies of specs in which threads do not meet: their heads say what they compute."""
    for n in nodes:
        if n.spec and not any(_synchronises(b) for b in n.body):
            n.body = []
        _folded(n.body)
    return nodes


def draw_kernel(kernel: Recorded | KernelIR | str) -> str:
    """The picture of a kernel, or of its text. Boxes nest as statements do; the pointer shows a statement's whole text.

    A Move is coloured by the memories that it leads from and to, and what synchronises is yellow. A decomposed spec is
    drawn with its statements only if some of them synchronise. Of a long kernel the first 400 rows are drawn.
    """
    if isinstance(kernel, str):
        kernel = _core.ir_parse(kernel)
    ir = kernel if isinstance(kernel, _core.KernelIR) else kernel.ir
    nodes = _folded(_rows(_core.ir_statements(ir)))
    out: list[str] = []
    widest = 40.0
    left = _MOST

    def draw(node: _Node, x: float, y: float, width: float) -> float:
        nonlocal widest, left
        if left <= 0:
            return y
        left -= 1
        shown = node.text if len(node.text) <= 100 else node.text[:99] + "…"
        widest = max(widest, 2 * x + len(shown) * _CHAR + 2 * _PAD)
        at = len(out)
        out.append("")
        label = (
            f'<text x="{x + _PAD:g}" y="{y + 14:g}" font-size="11.5" fill="{_INK}">{escape(shown)}</text>'
            f"<title>{escape(node.line)}</title></g>"
        )
        end = y + _ROW
        for n in node.body:
            end = draw(n, x + _PAD, end, width - 2 * _PAD) + _GAP
        height = end - y + (_GAP if node.body else 0)
        out[at] = (
            f'<g><rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{node.fill}" '
            f'stroke="{_EDGE if node.body else _SOFT}" stroke-width="{0.9 if node.body else 0.4}"/>{label}'
        )
        return y + height

    def all_of(width: float) -> float:
        nonlocal left
        out.clear()
        left = _MOST
        y = 30.0
        for n in nodes:
            y = draw(n, 8, y, width) + _GAP
        return y

    all_of(0)
    bottom = all_of(widest - 16)
    if left <= 0:
        out.append(f'<text x="8" y="{bottom + 12:g}" font-size="11" fill="{_SOFT}">and more</text>')
    title = f'<text x="8" y="19" font-size="13.5" font-weight="bold" fill="{_INK}">{escape(ir.name)}</text>'
    size = f'width="{widest:g}" height="{bottom + 20:g}" viewBox="0 0 {widest:g} {bottom + 20:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{title}\n' + "\n".join(out) + "\n</svg>"
    )
