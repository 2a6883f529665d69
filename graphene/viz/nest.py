"""A kernel as a picture: its statements from top to bottom, in boxes for loops, branches and decomposed specs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

from graphene.viz.grid import shade

__all__ = ["draw_kernel"]

_FONT = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
_INK, _SOFT, _EDGE, _SYNC, _PLAIN = "#1f2430", "#7a8190", "#39404f", "#f2c14e", "#eef0f4"
_ROW, _GAP, _PAD, _CHAR = 20.0, 3.0, 9.0, 6.1
_MEMORIES = ("GL", "SH", "DSM", "RF")
_SPEC = re.compile(r"^(?:(.*) )?<- (\w+)(?:<([^<>]+|<<|>>|[<>]=?)>)?<<<.*?>>>\((.*?)\)((?: .*)?)$")
_ALLOCATION = re.compile(r'^%(\w+):(.*?) <- Allocate\(name="([^"]+)"')
_VIEW = re.compile(r"^[%#](\w+):(.*?) = (.*)$")
_MOST = 400  # rows


@dataclass
class _Node:
    """A statement: what its row says, its whole text, its colour, and what stands in it."""

    text: str
    line: str
    fill: str
    body: list[_Node] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return 1 + sum(n.rows for n in self.body)


class _Reader:
    """Reads the lines of a kernel's text. Views and allocations are not shown, but give names to what specs use."""

    def __init__(self, text: str) -> None:
        self._lines = [(len(x) - len(x.lstrip()), x.strip()) for x in text.splitlines()[1:] if x.strip()]
        self._at = 0
        self._names: dict[str, tuple[str, str]] = {}  # by number: name, memory

    def read(self, depth: int = 0) -> list[_Node]:
        out: list[_Node] = []
        while self._at < len(self._lines) and self._lines[self._at][0] >= depth:
            line = self._lines[self._at][1]
            self._at += 1
            if line == "}":
                continue
            node = self._statement(line.removeprefix("} ").removesuffix(" {"))
            if line.endswith("{"):
                node = node or _Node(line[:-2], line[:-2], _PLAIN)
                node.body = self.read(depth + 2)
            if node is not None:
                out.append(node)
        return out

    def _statement(self, line: str) -> _Node | None:
        made = _ALLOCATION.match(line)
        if made is not None:
            self._names[made[1]] = (made[3], _memory(made[2]))
            return None
        spec = _SPEC.match(line)
        if spec is not None:
            return self._spec(line, *spec.groups())
        view = _VIEW.match(line)
        if view is not None:
            self._name(*view.groups())
            return None
        if line.startswith(("symbol", "param", "(@", "cluster", "#")):
            return None
        sync = re.match(r"(barrier|commit|wait|arrive|sync|fence|setmaxnreg|start_kernels)\w*\(", line)
        return _Node(self._readable(line), line, _SYNC if sync else _PLAIN)

    def _name(self, number: str, kind: str, value: str) -> None:
        own = re.search(r'^(?:input|output|inout)s? "([^"]+)"', value)
        source = re.match(r"[%#](\w+)", value)
        name = own[1] if own else self._names.get(source[1], ("", ""))[0] if source else ""
        self._names[number] = (name, _memory(kind))

    def _spec(self, line: str, outs: str | None, kind: str, op: str | None, ins: str, rest: str) -> _Node:
        used = [self._names.get(n, ("", "")) for n in re.findall(r"%(\w+)", f"{outs or ''} {ins}")]
        memories = [m for _, m in used if m]
        atom = re.search(r'atom="([^"]+)"', rest)
        told = [kind if op is None else f"{kind} {op}", *([atom[1]] if atom else [])]
        text = f"{self._readable(outs or '')} <- {', '.join(told)} ({self._readable(ins)})"
        if kind == "Move":
            fill = shade(_MEMORIES.index(memories[-1]) * 4 + _MEMORIES.index(memories[0])) if memories else _PLAIN
        else:
            fill = "#dcebd8" if kind == "MatMul" else "#f6f7f9"
        return _Node(text, line, fill)

    def _readable(self, text: str) -> str:
        return re.sub(r"%(\w+)(?::\S+)?", lambda m: self._names.get(m[1], ("", ""))[0] or m[0], text).replace("@", "")


def _memory(kind: str) -> str:
    """Of a tensor's type."""
    return next((m for m in _MEMORIES if re.search(rf"\.{m}\b", kind)), "")


def _synchronises(node: _Node) -> bool:
    return node.fill == _SYNC or any(_synchronises(n) for n in node.body)


def _folded(nodes: list[_Node]) -> list[_Node]:
    """Without the bodies of specs in which threads do not meet: their heads say what they compute."""
    for n in nodes:
        if " <- " in n.text and not any(_synchronises(b) for b in n.body):
            n.body = []
        _folded(n.body)
    return nodes


def draw_kernel(text: str) -> str:
    """The picture of a kernel's text. Boxes nest as statements do; the pointer shows a statement's whole text.

    A Move is coloured by the memories that it leads from and to, and what synchronises is yellow. A decomposed spec is
    drawn with its statements only if some of them synchronise. Of a long kernel the first 400 rows are drawn.
    """
    head = re.match(r'kernel "([^"]+)"', text)
    nodes = _folded(_Reader(text).read())
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
    title = (
        f'<text x="8" y="19" font-size="13.5" font-weight="bold" fill="{_INK}">{escape(head[1] if head else "")}</text>'
    )
    size = f'width="{widest:g}" height="{bottom + 20:g}" viewBox="0 0 {widest:g} {bottom + 20:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{title}\n' + "\n".join(out) + "\n</svg>"
    )
