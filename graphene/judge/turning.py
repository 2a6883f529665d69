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

from graphene.judge.numbers import CONSTANTS, FUNCTIONS, extents_of, strings
from graphene.judge.trees import Trees

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Turning", "turning"]

_MOST = 100  # nodes of an expression that is looked at, by division
_PLACES = range(8)  # turns 0 to 3 of loops, each in blocks and threads 0 and 1


@dataclass(frozen=True)
class _CountedLoop:
    var: str
    start: ast.expr
    stop: ast.expr
    step: int


@dataclass
class _Root:
    tree: ast.expr
    names: frozenset[str]
    divisions: list[int]  # by ``id``
    loops: tuple[_CountedLoop, ...]
    condition: bool


def _expressions(
    block: Iterable[Any], loops: tuple[_CountedLoop, ...], trees: Trees
) -> Iterable[tuple[str, tuple[_CountedLoop, ...]]]:
    """The expressions of a block of the JSON, each with the loops around it."""
    for s in block:
        inner = loops
        if s["stmt"] == "for" and isinstance(s["step"], int):
            start, stop = (trees.tree(str(s[x])) for x in ("start", "stop"))
            if start is not None and stop is not None:
                inner = (*loops, _CountedLoop(s["var"], start, stop, s["step"]))
        for value in s.values():
            if isinstance(value, list) and value and isinstance(value[0], dict) and "stmt" in value[0]:
                yield from _expressions(value, inner, trees)
            else:
                yield from ((text, loops) for text in strings(value))


def turning(data: Mapping[str, Any], known: set[str], trees: Trees | None = None) -> Turning:
    """The divisions of a kernel's JSON, whose sizes and parameters are the names in `known`."""
    trees = trees or Trees()
    roots: dict[int, _Root | None] = {}
    seen: set[str] = set()
    for text, loops in _expressions(data.get("body", ()), (), trees):
        if text in seen or not any(c in text for c in ("min(", "max(", "<", ">", "==")):
            continue
        seen.add(text)
        tree = trees.tree(text)
        for part in _deciding(tree) if tree is not None else ():
            if id(part) not in roots:
                roots[id(part)] = _root(part, loops, known, trees)
    return Turning([r for r in roots.values() if r is not None], known, _extents(data, known, trees), trees)


def _root(part: ast.expr, loops: tuple[_CountedLoop, ...], known: set[str], trees: Trees) -> _Root | None:
    names = trees.names(part) - set(FUNCTIONS)
    if not names & known:
        return None
    divisions = [id(x) for x in trees.parts([part]) if isinstance(x, ast.BinOp)
                 and isinstance(x.op, ast.FloorDiv | ast.Mod) and isinstance(x.right, ast.Constant)]  # fmt: skip
    condition = isinstance(part, ast.Compare)
    if not (divisions or condition) or trees.length(part) > _MOST * max(len(divisions), 1):
        return None
    return _Root(part, names, divisions, loops, condition)


def _extents(data: Mapping[str, Any], known: set[str], trees: Trees) -> dict[str, ast.expr]:
    """For each coordinate of a block, how many tiles the grid divides a size into."""
    found = {}
    for name, extent in extents_of(data).items():
        tree = trees.tree(str(extent))
        if "//" in str(extent) and tree is not None and trees.names(tree) - {*FUNCTIONS, *CONSTANTS} <= known:
            found[name] = tree
    return found


def _deciding(node: ast.AST) -> Iterable[ast.expr]:
    """The outermost minima, maxima and comparisons of an expression: what is added to them decides nothing more."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.IfExp | ast.Call):
        yield node
        return
    for part in ast.iter_child_nodes(node):
        yield from _deciding(part)


class Turning:
    """What ``turning`` finds."""

    def __init__(self, roots: Sequence[_Root], known: set[str], extents: Mapping[str, ast.expr], trees: Trees) -> None:
        self._roots, self._known, self._extents, self._trees = list(roots), known, extents, trees

    def features(self, candidates: Sequence[Mapping[str, Any]]) -> list[set[Any]]:
        """For each of the candidate calls: the dividends that decide an expression in it, by expression, division,
        direction and place; and which conditions hold, by condition, truth and place. A place is a block, the first,
        the second, or one within, and a loop's first turn or a later one.
        """
        out: list[set[Any]] = [set() for _ in candidates]
        if not candidates:
            return out
        tiles = {n: [self._tiles(tree, d) for d in candidates] for n, tree in self._extents.items()}
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

    def _tiles(self, tree: ast.expr, d: Mapping[str, Any]) -> int:
        try:
            return int(self._trees.value(tree, {**CONSTANTS, **d}, FUNCTIONS, {}))
        except (NameError, ZeroDivisionError):
            return 2

    def _of(self, root: _Root, candidates: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, Any]]:
        values: dict[str, Any] = dict(CONSTANTS)
        places = np.array(_PLACES, np.int64)[:, None]
        for n in self._known:
            if all(n in d for d in candidates):
                values[n] = np.array([[[d[n]]] for d in candidates], np.int64)
        bounds = [c for x in root.loops for c in (x.start, x.stop)]
        names = root.names.union(*map(self._trees.names, bounds)) - set(FUNCTIONS)
        variables = {x.var for x in root.loops}
        for n in names - values.keys() - variables:
            if n in self._known:  # a stride, say
                return
            values[n] = places % 2
        inside: Any = np.ones((len(candidates), len(_PLACES), 1), bool)
        count = len(root.divisions)
        shifts = np.zeros((count, 1, 1, 2 * count + 1), np.int64)
        for k in range(count):
            shifts[k, ..., 2 * k + 1], shifts[k, ..., 2 * k + 2] = 1, -1
        try:
            with np.errstate(all="ignore"):
                for x in root.loops:
                    start, stop = (self._trees.value(c, values, FUNCTIONS, {}) for c in (x.start, x.stop))
                    turns = (stop - start + x.step - 1) // x.step
                    turn = places // 2
                    turn = turn % max(turns, 1) if isinstance(turns, int) else turn
                    values[x.var] = start + turn * x.step
                    inside = inside & (turn < turns)
                more = dict(zip(root.divisions, shifts, strict=True))
                got = np.asarray(self._trees.value(root.tree, values, FUNCTIONS, more))
        except (NameError, TypeError, ValueError, OverflowError):
            return
        got = np.broadcast_to(got, (len(candidates), len(_PLACES), 2 * count + 1))
        for c, at, shift in zip(*np.nonzero((got[..., 1:] != got[..., :1]) & inside), strict=True):
            yield int(c), (int(shift) // 2, 1 - 2 * (int(shift) % 2), int(at))
        if root.condition:
            for c, at in zip(*np.nonzero(np.broadcast_to(inside[..., 0], got.shape[:2])), strict=True):
                yield int(c), (bool(got[c, at, 0]), int(at))
