"""A picture of a plan: what is computed, shared memory over time with every tensor's layout, and the decisions."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from graphene.viz.grid import shade

if TYPE_CHECKING:
    from graphene.plan.graph import Graph

__all__ = ["draw_plan"]

FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
INK, SOFT, LINE = "#1f2430", "#7a8190", "#c9ced8"
ROW, BOX, GAP, CHAR = 18.0, 26.0, 18.0, 6.6
MEMORY, SLOT = 220.0, 150.0  # pixels of all shared memory, and of a slot
SLOTS = ("copies", "loop", "result")


def _text(x: float, y: float, text: str, fill: str = INK, size: float = 11.5, weight: str = "") -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"{bold}>{escape(text, quote=False)}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    body = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{LINE}"/>'
    return f"<g><title>{escape(title, quote=False)}</title>{body}</g>" if title else body


def _graph(g: Graph, top: float) -> tuple[list[str], float, float]:
    """Reductions, products, inputs and outputs, each behind what it needs; pointwise operators are their edges."""
    shown: dict[int, tuple[int, str]] = {}  # depth and label by number
    needs: dict[int, set[int]] = {}  # the nearest shown values below each value
    order: list[tuple[int, int, str, set[int]]] = []
    for o in g.outputs:
        for v in o.value.walk():
            if v.number in needs:
                continue
            below = set().union(*(needs[a.number] for a in v.args)) if v.args else set()
            if v.op == "input" or "axis" in v.more:
                axes = ", ".join(a.name for a in v.axes)
                label = f"{v.name} [{axes}]" if v.op == "input" else f"{v.op} along {v.more['axis'].name} [{axes}]"
                depth = 1 + max((shown[n][0] for n in below), default=-1)
                shown[v.number] = depth, label
                order.append((v.number, depth, label, below))
                below = {v.number}
            needs[v.number] = below
        depth = 1 + max((shown[n][0] for n in needs[o.value.number]), default=-1)
        order.append((-len(order) - 1, depth, f"{o.name} [{', '.join(a.name for a in o.axes)}]", needs[o.value.number]))
    out, place, right = [], {}, 0.0
    column = {d: max(len(x) for _, e, x, _ in order if e == d) * CHAR + 16 for d in sorted({d for _, d, _, _ in order})}
    count: dict[int, int] = {}
    boxes = []
    for number, depth, label, below in order:
        x = 14 + sum(column[d] + 2 * GAP for d in column if d < depth)
        y = top + count.get(depth, 0) * (BOX + 10)
        count[depth] = count.get(depth, 0) + 1
        place[number] = x, y, column[depth]
        right = max(right, x + column[depth])
        for n in sorted(below):
            a, b, w = place[n]
            out.append(f'<path d="M{a + w:g} {b + BOX / 2:g}L{x:g} {y + BOX / 2:g}" stroke="{SOFT}" fill="none"/>')
        boxes += [_rect(x, y, column[depth], BOX, shade(depth)), _text(x + 8, y + 17, label)]
    return [*out, *boxes], right, top + max(count.values()) * (BOX + 10)


def _memory(p: Any, top: float) -> tuple[list[str], float, float]:
    """A rectangle for each tensor in shared memory: bytes down, the time that it is alive across."""
    total = int(p.decisions["memory.bytes"].value)
    out = []
    for i, name in enumerate(SLOTS):
        out.append(_text(70 + i * SLOT + 6, top - 5, name, SOFT))
        out.append(f'<path d="M{70 + i * SLOT:g} {top:g}v{MEMORY:g}" stroke="{LINE}" stroke-dasharray="3,3"/>')
    for i, (name, at, bytes_, first, end) in enumerate(p.places()):
        x, y = 70 + first * SLOT, top + MEMORY * at / total
        width, height = (end - first) * SLOT, max(MEMORY * bytes_ / total, 2.0)
        layout = str(p.decisions[f"{name}.swizzle"].value)
        out.append(_rect(x, y, width, height, shade(i), f"{name}: {bytes_} bytes at {at}"))
        out.append(_text(x + 6, min(y + 14, top + MEMORY), f"{name}  {layout}  {bytes_} B"))
        out.append(_text(14, y + 11, str(at), SOFT, 10))
    out.append(_text(14, top + MEMORY + 12, str(total), SOFT, 10))
    return out, 70 + len(SLOTS) * SLOT, top + MEMORY + 24


def draw_plan(p: Any) -> str:
    """The picture of a `Plan` as standalone SVG text."""
    parts, width, y = _graph(p.graph, 46.0)
    if "memory.bytes" in p.decisions:
        parts.append(_text(14, y + 22, "shared memory, in bytes, by the time that each tensor is alive", weight="600"))
        memory, right, y = _memory(p, y + 48)
        parts, width = parts + memory, max(width, right)
    parts.append(_text(14, y + 22, "decisions", weight="600"))
    y += 26
    for path, d in p.decisions.items():
        y += ROW
        line = f"{d.value}{' (pinned)' if d.pinned else ''}: {d.why}"
        line = line if len(line) <= 130 else line[:127] + "..."
        parts += [_text(14, y, path, SOFT), _text(150, y, line)]
        width = max(width, 150 + len(line) * CHAR)
    title = f"{p.graph.name}, {p.device.arch}: {p.expected_us:.1f} us expected, bound: {p.bound}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 14:g}" height="{y + 16:g}" '
        f'viewBox="0 0 {width + 14:g} {y + 16:g}" font-family="{FONT}">'
    )
    ground = f'<rect width="{width + 14:g}" height="{y + 16:g}" fill="#ffffff"/>'
    return "\n".join([head, ground, _text(14, 24, title, size=13.5, weight="600"), *parts, "</svg>"])
