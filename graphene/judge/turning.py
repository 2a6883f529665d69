"""Finds calls that show that a division is off by one: calls in which the expression around it changes.

A kernel's bounds are minima and maxima of quotients: min(sk // 16, (right + sk + 1) // 16) says how many tiles need no
mask. If its second dividend is one too large, this shows only where the second quotient is the smaller one, and where
its dividend is the last one of the quotient. So each expression of the text is evaluated again with each of its
dividends one larger and one smaller, at many candidate calls at once. A call covers the dividends that decide it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphene.judge.numbers import FUNCTIONS, extents_of, plain, strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Turning", "turning"]

_MOST = 400  # characters of an expression that is looked at, by division
_PLACES = range(8)  # turns 0 to 3 of loops, each in blocks and threads 0 and 1


@dataclass
class _Root:
    text: str
    names: frozenset[str]
    code: Any
    divisions: int
    loops: tuple[_Loop, ...]
    condition: bool = False


class _Shifted(ast.NodeTransformer):
    """Adds a number of its own to each dividend; equal divisions share one."""

    def __init__(self) -> None:
        self.found: dict[int, int] = {}
        self._numbers: dict[Any, int] = {}  # of subtrees by operator and by their parts' numbers
        self._known: dict[int, int] = {}  # of subtrees by identity

    def number(self, node: ast.AST) -> int:
        """The same of equal subtrees."""
        found = self._known.get(id(node))
        if found is None:
            parts: list[Any] = [type(node)]
            for _, value in ast.iter_fields(node):
                if isinstance(value, ast.AST):
                    parts.append(self.number(value))
                elif isinstance(value, list):
                    parts.append(tuple(self.number(x) for x in value))
                else:
                    parts.append((type(value), value))
            found = self._known[id(node)] = self._numbers.setdefault(tuple(parts), len(self._numbers))
        return found

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        divides = isinstance(node.op, ast.FloorDiv | ast.Mod) and isinstance(node.right, ast.Constant)
        key = self.number(node) if divides else 0
        node = ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))
        if divides:
            name = ast.Name(f"_shift{self.found.setdefault(key, len(self.found))}", ast.Load())
            node = ast.BinOp(ast.BinOp(node.left, ast.Add(), name), node.op, node.right)
        return node


@dataclass(frozen=True)
class _Loop:
    var: str
    start: Any
    stop: Any
    step: int


def _code(text: object) -> Any:
    return compile(ast.parse(plain(str(text)), mode="eval"), "<expression>", "eval")


def _expressions(block: Iterable[Any], loops: tuple[_Loop, ...]) -> Iterable[tuple[str, tuple[_Loop, ...]]]:
    """The expressions of a block of the JSON, each with the loops around it."""
    for s in block:
        inner = loops
        if s["stmt"] == "for" and isinstance(s["step"], int):
            inner = (*loops, _Loop(s["var"], _code(s["start"]), _code(s["stop"]), s["step"]))
        for value in s.values():
            if isinstance(value, list) and value and isinstance(value[0], dict) and "stmt" in value[0]:
                yield from _expressions(value, inner)
            else:
                yield from ((text, loops) for text in strings(value))


def turning(data: Mapping[str, Any], known: set[str]) -> Turning:
    """The divisions of a kernel's JSON, whose sizes and parameters are the names in `known`."""
    roots: dict[str, _Root] = {}
    seen: set[str] = set()
    for text, loops in _expressions(data.get("body", ()), ()):
        said = plain(text)
        if said in seen or not any(c in said for c in ("min(", "max(", "<", ">", "==")):
            continue
        seen.add(said)
        try:
            tree = ast.parse(said, mode="eval")
        except SyntaxError:
            continue
        for part in _deciding(tree.body):
            own = ast.unparse(part)
            if own in roots:
                continue
            names = _names(part)
            shifted = _Shifted()
            changed = ast.fix_missing_locations(ast.Expression(shifted.visit(part)))
            n = len(shifted.found)
            condition = isinstance(part, ast.Compare)
            if not (n or condition) or not names & known or len(own) > _MOST * max(n, 1):
                continue
            roots[own] = _Root(own, frozenset(names), compile(changed, "<expression>", "eval"), n, loops, condition)
    return Turning(list(roots.values()), known, _extents(data, known))


def _extents(data: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """For each coordinate of a block, how many tiles the grid divides a size into."""
    found = {}
    for name, extent in extents_of(data).items():
        if "//" in str(extent) and _names(ast.parse(plain(extent), mode="eval")) <= known:
            found[name] = _code(extent)
    return found


def _deciding(node: ast.AST) -> Iterable[ast.expr]:
    """The outermost minima, maxima and comparisons of an expression: what is added to them decides nothing more."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.Call):
        yield node
        return
    for part in ast.iter_child_nodes(node):
        yield from _deciding(part)


def _names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - set(FUNCTIONS)


class Turning:
    """What ``turning`` finds."""

    def __init__(self, roots: Sequence[_Root], known: set[str], extents: Mapping[str, Any]) -> None:
        self._roots, self._known, self._extents = list(roots), known, extents

    def features(self, candidates: Sequence[Mapping[str, Any]]) -> list[set[Any]]:
        """For each of the candidate calls: the dividends that decide an expression in it, by expression, division,
        direction and place; and which conditions hold, by condition, truth and place. A place is a block, the first,
        the second, or one within, and a loop's first turn or a later one.
        """
        out: list[set[Any]] = [set() for _ in candidates]
        if not candidates:
            return out
        tiles = {n: [self._tiles(code, d) for d in candidates] for n, code in self._extents.items()}
        for r, root in enumerate(self._roots):
            counts = [tiles[n] for n in root.names if n in tiles]
            for c, feature in self._of(root, candidates):
                later, second = feature[-1] >= 2, feature[-1] % 2
                least = min((n[c] for n in counts), default=3)
                if second and least < 2:
                    continue
                out[c].add((r, *feature[:-1], 2 * second + later))
                if second and least > 2:  # no edge cuts that block, counted from either end
                    out[c].add((r, *feature[:-1], 4 + later))
        return out

    def _tiles(self, code: Any, d: Mapping[str, Any]) -> int:
        try:
            return int(eval(code, {"min": min, "max": max}, dict(d)))
        except (NameError, ZeroDivisionError):
            return 2

    def _of(self, root: _Root, candidates: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, Any]]:
        values: dict[str, Any] = {}
        places = np.array(_PLACES, np.int64)[:, None]
        for n in self._known:
            if all(n in d for d in candidates):
                values[n] = np.array([[[d[n]]] for d in candidates], np.int64)
        called = {"__builtins__": {}, **FUNCTIONS}
        names = {*root.names, *(n for x in root.loops for c in (x.start, x.stop) for n in c.co_names)} - set(FUNCTIONS)
        variables = {x.var for x in root.loops}
        for n in names - values.keys() - variables:
            if n in self._known:  # a stride, say
                return
            values[n] = places % 2
        inside: Any = np.ones((len(candidates), len(_PLACES), 1), bool)
        shifts = np.zeros((root.divisions, 1, 1, 2 * root.divisions + 1), np.int64)
        for k in range(root.divisions):
            shifts[k, ..., 2 * k + 1], shifts[k, ..., 2 * k + 2] = 1, -1
        values |= {f"_shift{k}": shifts[k] for k in range(root.divisions)}
        try:
            with np.errstate(all="ignore"):
                for x in root.loops:
                    start, stop = (eval(c, called, values) for c in (x.start, x.stop))
                    turns = (stop - start + x.step - 1) // x.step
                    turn = places // 2
                    turn = turn % max(turns, 1) if isinstance(turns, int) else turn
                    values[x.var] = start + turn * x.step
                    inside = inside & (turn < turns)
                got = np.asarray(eval(root.code, called, values))
        except (NameError, TypeError, ValueError, OverflowError, SyntaxError):
            return
        got = np.broadcast_to(got, (len(candidates), len(_PLACES), 2 * root.divisions + 1))
        for c, at, shift in zip(*np.nonzero((got[..., 1:] != got[..., :1]) & inside), strict=True):
            yield int(c), (int(shift) // 2, 1 - 2 * (int(shift) % 2), int(at))
        if root.condition:
            for c, at in zip(*np.nonzero(np.broadcast_to(inside[..., 0], got.shape[:2])), strict=True):
                yield int(c), (bool(got[c, at, 0]), int(at))
