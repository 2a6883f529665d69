"""Finds calls that show that a division is off by one: calls in which the expression around it changes.

A kernel's bounds are minima and maxima of quotients: min(sk // 16, (right + sk + 1) // 16) says how many tiles need no
mask. If its second dividend is one too large, this shows only where the second quotient is the smaller one, and where
its dividend is the last one of the quotient. So each expression of the text is evaluated again with each of its
dividends one larger and one smaller, at many candidate calls at once. A call covers the dividends that decide it.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphene.judge.numbers import plain, strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Turning", "turning"]

_PATIENCE = 5  # an expression that gave nothing new this many times is not asked again
_ROUNDS = 32  # nor is any after this many rounds
_TIMES = 2  # each dividend is covered in this many calls, since its effect may be masked, or lie past an edge
_MOST = 400  # the most characters of an expression, for each division, that is looked at
_PLACES = range(8)  # turns 0 to 3 of loops, each in blocks and threads 0 and 1


@dataclass
class _Root:
    text: str
    names: frozenset[str]
    code: Any
    divisions: int
    left: dict[tuple[int, int, int], int]  # by division, direction and place: calls that are still wanted
    loops: tuple[_Loop, ...]
    failures: int = 0
    rounds: int = 0


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


def _extreme(function: Any) -> Any:
    return lambda *args: functools.reduce(function, args)


_FUNCTIONS = {"min": _extreme(np.minimum), "max": _extreme(np.maximum), "abs": np.abs}


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
    for text, loops in _expressions(data.get("body", ()), ()):
        said = plain(text)
        if said in roots or ("//" not in said and "%" not in said):
            continue
        if not any(c in said for c in ("min(", "max(", "<", ">", "==")):
            continue
        try:
            tree = ast.parse(said, mode="eval")
        except SyntaxError:
            continue
        names = _names(tree)
        shifted = _Shifted()
        changed = ast.fix_missing_locations(ast.Expression(shifted.visit(tree.body)))
        n = len(shifted.found)
        if not n or not names & known or len(said) > _MOST * n:
            continue
        left = {(k, sign, at): _TIMES for k in range(n) for sign in (1, -1) for at in _PLACES}
        roots[said] = _Root(said, frozenset(names), compile(changed, "<expression>", "eval"), n, left, loops)
    several = []
    for level in (data.get("grid") or {"levels": ()})["levels"]:
        for extent in strings(level["shape"]):
            if "//" in extent and _names(ast.parse(plain(extent), mode="eval")) <= known:
                several.append(_code(extent))
    return Turning(list(roots.values()), known, several)


def _names(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - set(_FUNCTIONS)


class Turning:
    """The divisions that ``turning`` finds, and which calls have covered them."""

    def __init__(self, roots: Sequence[_Root], known: set[str], several: Sequence[Any]) -> None:
        self._roots, self._known, self._several = list(roots), known, several

    def features(self, candidates: Sequence[Mapping[str, Any]]) -> list[set[Any]]:
        """For each candidate call, the dividends that decide an expression in it, and in too few calls so far."""
        out: list[set[Any]] = [set() for _ in candidates]
        if not candidates:
            return out
        tiled = [self._has_second(d) for d in candidates]
        for r, root in enumerate(self._roots):
            if not root.left:
                continue
            found = False
            root.rounds += 1
            for c, feature in self._of(root, candidates):
                if feature in root.left and (feature[2] % 2 == 0 or tiled[c]):
                    found = True
                    out[c].add((r, *feature))
            root.failures = 0 if found else root.failures + 1
            if root.failures >= _PATIENCE or root.rounds >= _ROUNDS:
                root.left.clear()
        return out

    def _has_second(self, d: Mapping[str, Any]) -> bool:
        """Whether a grid that divides sizes has more than one tile along each of them."""
        try:
            return all(eval(code, {"min": min, "max": max}, dict(d)) > 1 for code in self._several)
        except (NameError, ZeroDivisionError):
            return True

    def _of(self, root: _Root, candidates: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, Any]]:
        values: dict[str, Any] = {}
        places = np.array(_PLACES, np.int64)[:, None]
        for n in self._known:
            if all(n in d for d in candidates):
                values[n] = np.array([[[d[n]]] for d in candidates], np.int64)
        called = {"__builtins__": {}, **_FUNCTIONS}
        names = {*root.names, *(n for x in root.loops for c in (x.start, x.stop) for n in c.co_names)} - set(_FUNCTIONS)
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
            root.left.clear()
            return
        got = np.broadcast_to(got, (len(candidates), len(_PLACES), 2 * root.divisions + 1))
        for c, at, shift in zip(*np.nonzero((got[..., 1:] != got[..., :1]) & inside), strict=True):
            yield int(c), (int(shift) // 2, 1 - 2 * (int(shift) % 2), int(at))

    def count(self, features: Iterable[tuple[int, int, int, int]]) -> None:
        """Counts the dividends that a call covers."""
        for r, k, sign, at in features:
            left = self._roots[r].left
            if (k, sign, at) in left:
                left[k, sign, at] -= 1
                if not left[k, sign, at]:
                    del left[k, sign, at]
