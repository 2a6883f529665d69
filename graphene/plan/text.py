"""Python text: expressions of a graph over named registers or arrays, and lines of a source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphene.plan.graph import ACTIVATIONS, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphene.plan.decisions import Decisions

__all__ = ["IN_RANGE", "Lines", "activations", "body", "exact", "formula", "literal", "reduced"]

WIDTH = 116
_OPERATORS = {
    "add": ("+", 1),
    "sub": ("-", 1),
    "mul": ("*", 2),
    "div": ("/", 2),
    "lt": ("<", 0),
    "le": ("<=", 0),
    "eq": ("==", 0),
}
_CALLS = {"max": "gr.max", "min": "gr.min", "where": "gr.where", "abs": "gr.abs", "exp": "gr.exp", "exp2": "gr.exp2",
          "log": "gr.log", "log2": "gr.log2", "sqrt": "gr.sqrt", "rsqrt": "gr.rsqrt", "rcp": "gr.rcp", "erf": "gr.erf",
          **{a: a for a in ACTIVATIONS}}  # fmt: skip
ATOM = 9
IN_RANGE = 'IN_RANGE = gr.Arguments(kinds=("normal", "positive", "constant", "tiny"))'  # of exponentials as given


def literal(x: float) -> str:
    """A number as Python writes it, infinities as the language does."""
    if math.isinf(x):
        return "gr.inf" if x > 0 else "-gr.inf"
    return str(int(x)) if x == int(x) and abs(x) < 2**31 else repr(x)


def activations(*values: Value) -> list[str]:
    """The names of activations that occur."""
    return sorted({v.op for x in values for v in x.walk() if v.op in ACTIVATIONS})


def _text(v: Value, names: Mapping[int, str]) -> tuple[str, int]:
    if v.number in names:
        return names[v.number], ATOM
    if v.op == "number":
        text = literal(v.more["value"])
        return text, 3 if text.startswith("-") else ATOM
    if v.op in _OPERATORS and len(v.args) == 2:
        sign, level = _OPERATORS[v.op]
        (x, px), (y, py) = (_text(a, names) for a in v.args)
        left = x if px >= level else f"({x})"
        right = y if py > level else f"({y})"
        return f"{left} {sign} {right}", level
    if v.op == "neg":
        x, p = _text(v.args[0], names)
        return f"-{x if p > 3 else f'({x})'}", 3
    return f"{_CALLS[v.op]}({', '.join(_text(a, names)[0] for a in v.args)})", ATOM


def formula(v: Value, names: Mapping[int, str]) -> str:
    """The text of an expression; `names` says what stands for a value by its number."""
    return _text(v, names)[0]


def body(v: Value, names: Mapping[int, str], indent: str = "    ") -> list[str]:
    """Lines that end by returning the expression. Parts that occur twice, or are long, get names."""
    used: dict[int, int] = {}
    stack, seen = [v], set()
    while stack:
        x = stack.pop()
        if x.number in seen:
            continue
        seen.add(x.number)
        if x.number not in names:
            for a in x.args:
                used[a.number] = used.get(a.number, 0) + 1
                stack.append(a)
    known, lines, made = dict(names), [], 0
    for x in _inner(v, names):
        if x.op == "number" or not x.args:
            continue
        if used.get(x.number, 0) > 1 or len(formula(x, known)) > WIDTH - 40:
            made += 1
            lines.append(f"{indent}t{made} = {formula(x, known)}")
            known[x.number] = f"t{made}"
    return [*lines, f"{indent}return {formula(v, known)}"]


def _inner(v: Value, names: Mapping[int, str]) -> list[Value]:
    """The values between `v` and what has a name, operands first, without `v`."""
    out: list[Value] = []
    seen: set[int] = set()

    def visit(x: Value) -> None:
        if x.number in names or x.number in seen:
            return
        seen.add(x.number)
        for a in x.args:
            visit(a)
        out.append(x)

    visit(v)
    return out[:-1]


class Lines:
    """The lines of a source, indented by blocks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def __call__(self, text: str = "", why: str = "") -> None:
        """A line with a comment behind it, or above it where it would be too long."""
        line = "    " * self.depth + text if text else ""
        if len(line) > WIDTH and text.endswith(")"):
            if why:
                self.comment(why)
            self.broken(text)
            return
        if why:
            comment = f"# {why}"
            if len(line) + 2 + len(comment) > WIDTH:
                self.lines += ["    " * self.depth + c for c in wrapped(comment, WIDTH - 4 * self.depth)]
            else:
                line += f"  {comment}"
        self.lines.append(line)

    def overlapped(self, d: Decisions) -> None:
        """Where a plan says so, lets the kernel start beside the end of the one before it in the stream."""
        if d.overlaps():
            self("gr.start_kernels()", "the next kernel's blocks may start as soon as there is room")
            self("gr.wait_kernels()", "what the kernels before this one wrote is there")

    def beginning(self, title: str, *computed: Value) -> None:
        """What a source begins with: its docstring, and imports of what the values are computed with."""
        self(f'"""{title}')
        self()
        self("Written by graphene.plan, and yours to edit: it uses public names of graphene alone.")
        self('"""')
        self()
        self("import graphene as gr")
        if used := activations(*computed):
            self(f"from graphene.kernels.epilogues import {', '.join(used)}")
        self()

    def broken(self, text: str) -> None:
        """A call in several lines: what it calls, its arguments, the closing bracket."""
        i = text.index("(") + 1
        inner, margin, depth, start = text[i:-1], "    " * (self.depth + 1), 0, 0
        parts = []
        for at, c in enumerate(inner):
            depth += (c in "([{") - (c in ")]}")
            if c == "," and depth == 0:
                parts.append(inner[start:at].strip())
                start = at + 1
        parts.append(inner[start:].strip())
        lines = [margin]
        for p in parts:
            if len(lines[-1]) + len(p) + 2 > WIDTH and lines[-1] != margin:
                lines.append(margin)
            lines[-1] += ("" if lines[-1] == margin else " ") + p + ","
        self.lines += ["    " * self.depth + text[:i], *lines, "    " * self.depth + ")"]

    def comment(self, text: str) -> None:
        """A comment of its own."""
        self.lines += ["    " * self.depth + c for c in wrapped(f"# {text}", WIDTH - 4 * self.depth)]

    def block(self, text: str, why: str = "") -> Lines:
        """A line that opens a block; use it with ``with``."""
        self(text, why)
        return self

    def __enter__(self) -> Lines:
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def text(self) -> str:
        """The whole, with a last line end."""
        return "\n".join(self.lines) + "\n"


def wrapped(comment: str, width: int) -> list[str]:
    """A comment in lines of at most `width` columns."""
    words, lines = comment.removeprefix("# ").split(" "), ["#"]
    for w in words:
        if len(lines[-1]) + 1 + len(w) > width:
            lines.append("#")
        lines[-1] += f" {w}"
    return lines


def exact(v: Value) -> bool:
    """Whether elements of a type of 16 bits are computed without rounding: choices among inputs, and their signs."""
    return v.op == "input" or (v.op in ("relu", "neg", "abs", "max", "min") and all(exact(a) for a in v.args))


def reduced(array: str, op: str) -> str:
    """A reduction of an array along its last axis. A row's largest or least is a number if it has one, as on a GPU."""
    if op in ("max", "min"):
        return f"np.nan{op}({array}, -1, keepdims=True)"
    return f"{array}.{op}(-1, keepdims=True)"
