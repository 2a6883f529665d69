"""Expressions of a kernel's text as syntax trees in which equal parts are one object.

The indices of a large kernel repeat long parts of one another. What is found of a part is found once, and kept.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graphene._syntax import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Trees", "plain"]

_KEPT = 6000  # texts that kernels share
_COORDINATE = re.compile(r"@(\w+)|\b(bid|tid)(?:\.(\w))?")
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitXor: operator.xor,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


def plain(text: str) -> str:
    """An expression of the kernel's JSON as one of Python's."""
    return _COORDINATE.sub(lambda m: f"_at_{m[1]}" if m[1] else f"_at_{m[2]}_{m[3] or ''}", text)


class Trees:
    """Expressions of kernels. Nodes live as long as this object, and are told apart by ``id``."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], ast.AST] = {}
        self._names: dict[int, frozenset[str]] = {}
        self._sizes: dict[int, int] = {}
        self._of_texts: dict[str, ast.expr | None] = {}
        self._texts: dict[int, str] = {}

    _now: ClassVar[Trees | None] = None

    @staticmethod
    def shared() -> Trees:
        """Those of the kernels before this one, unless they are many by now."""
        now = Trees._now
        if now is None or len(now._of_texts) > _KEPT:
            now = Trees._now = Trees()
        return now

    def tree(self, text: str) -> ast.expr | None:
        """The tree of an expression of the JSON; None for any other text."""
        if text not in self._of_texts:
            try:
                whole = parsed(plain(text), "eval").body
            except SyntaxError:
                self._of_texts[text] = None
            else:
                self._of_texts[text] = self._one(whole)
        return self._of_texts[text]

    def _one(self, node: Any) -> Any:
        """The node that stands for all that are equal to this one."""
        key: list[Any] = [type(node)]
        parts: list[ast.AST] = []
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, found := [self._one(x) for x in value])
                parts += found
                key += [len(found), *map(id, found)]
            elif isinstance(value, ast.expr):
                setattr(node, name, one := self._one(value))
                parts.append(one)
                key.append(id(one))
            elif isinstance(value, ast.AST):  # an operator
                key.append(type(value))
            else:
                key += [type(value), value]
        known = self._known.get(tuple(key))
        if known is None:
            # This comes before the node can be found: by another thread, or after Ctrl-C has ended this one.
            mine = {node.id} if isinstance(node, ast.Name) else ()
            self._names[id(node)] = frozenset(mine).union(*(self._names[id(x)] for x in parts))
            self._sizes[id(node)] = 1 + sum(self._sizes[id(x)] for x in parts)
            known = self._known.setdefault(tuple(key), node)
        return known

    def names(self, node: ast.AST) -> frozenset[str]:
        """The names in a tree, those of functions too."""
        return self._names[id(node)]

    def length(self, node: ast.AST) -> int:
        """How many nodes it has, each as often as it stands there; its text has as many characters, or more."""
        return self._sizes[id(node)]

    def text(self, node: ast.expr) -> str:
        """The tree as an expression of Python's."""
        found = self._texts.get(id(node))
        if found is None:
            found = self._texts[id(node)] = ast.unparse(node)
        return found

    def parts(self, nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
        """The nodes of trees, each once, outer ones first."""
        seen: set[int] = set()
        left = list(nodes)
        for node in left:
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                left.extend(ast.iter_child_nodes(node))

    def value(
        self, node: ast.AST, values: Mapping[str, Any], functions: Mapping[str, Any], more: Mapping[int, Any]
    ) -> Any:
        """The value of a tree, where ``more`` is added to dividends, by their division's ``id``.

        Raises NameError, and TypeError where an operand is not a number.
        """
        done: dict[int, Any] = {}

        def of(x: Any) -> Any:
            found = done.get(id(x))
            if found is None:
                found = done[id(x)] = self._computed(x, of, values, functions, more)
            return found

        return of(node)

    def _computed(
        self,
        x: Any,
        of: Callable[[Any], Any],
        values: Mapping[str, Any],
        functions: Mapping[str, Any],
        more: Mapping[int, Any],
    ) -> Any:
        if isinstance(x, ast.Constant):
            return x.value
        if isinstance(x, ast.Name):
            if x.id not in values:
                raise NameError(x.id)
            return values[x.id]
        if isinstance(x, ast.BinOp) and type(x.op) in _BINARY:
            left = of(x.left)
            return _BINARY[type(x.op)](left + more[id(x)] if id(x) in more else left, of(x.right))
        if isinstance(x, ast.UnaryOp):
            return -of(x.operand) if isinstance(x.op, ast.USub) else np.logical_not(of(x.operand))
        if isinstance(x, ast.Compare) and len(x.ops) == 1:
            return _COMPARED[type(x.ops[0])](of(x.left), of(x.comparators[0]))
        if isinstance(x, ast.BoolOp):
            both = np.logical_and if isinstance(x.op, ast.And) else np.logical_or
            found = of(x.values[0])
            for y in x.values[1:]:
                found = both(found, of(y))
            return found
        if isinstance(x, ast.Call) and isinstance(x.func, ast.Name) and x.func.id in functions:
            return functions[x.func.id](*map(of, x.args))
        raise TypeError(type(x).__name__)
