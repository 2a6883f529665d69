"""How much work a call is: its blocks, and how often a block's loops go round, read off the kernel's text.

Counted are statements, each as often as the loops around it go round, of the first block and of the last one. That all
branches are taken makes no difference to which of two calls is the larger one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene.judge.numbers import CONSTANTS, names_of, statements
from graphene.judge.trees import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Work"]

_GLOBALS: dict[str, Any] = {"__builtins__": {}}
_FUNCTIONS: dict[str, Any] = {"min": min, "max": max, **CONSTANTS}


class _Values(dict[str, Any]):
    """Names of a call; what else is named is a coordinate, the same for all."""

    at, asked = 0, False

    def __missing__(self, _: str) -> int:
        self.asked = True
        return self.at


def _code(x: Any) -> Any:
    return x if isinstance(x, int) else compile(plain(str(x)), "<expression>", "eval")


def _number(x: Any, values: _Values) -> int:
    return x if isinstance(x, int) else int(eval(x, _GLOBALS, values))


@dataclass
class _LoopWork:
    """A part of the text: how many statements stand in it, and the loops within it whose turns sizes decide."""

    var: str
    start: Any
    stop: Any
    step: Any
    leaves: float = 0.0
    inner: list[_LoopWork] = field(default_factory=list)
    weight: int = 1  # turns of the loops around that have a number of them

    def work(self, values: _Values) -> float:
        start, stop, step = (_number(x, values) for x in (self.start, self.stop, self.step))
        turns = max(-(-(stop - start) // max(step, 1)), 0)
        if not turns:
            return 0.0
        values[self.var] = start
        return self.weight * turns * (1 + self.leaves + sum(x.work(values) for x in self.inner))


def _see(block: Iterable[Any], into: _LoopWork, weight: int) -> None:
    for s in block:
        inner = [x for x in s.values() if isinstance(x, list) and x and isinstance(x[0], dict) and "stmt" in x[0]]
        if s["stmt"] == "for":
            given = [s["start"], s["stop"], s["step"]]
            if all(isinstance(x, int) for x in given):
                turns = max(-(-(given[1] - given[0]) // max(given[2], 1)), 0)
                for x in inner:
                    _see(x, into, weight * turns)
                continue
            start, stop, step = map(_code, given)
            loop = _LoopWork(s["var"], start, stop, step, weight=weight)
            into.inner.append(loop)
            for x in inner:
                _see(x, loop, 1)
        elif inner:
            for x in inner:
                _see(x, into, weight)
        elif s["stmt"] in ("spec", "sync"):
            into.leaves += weight


class Work:
    """The work of calls of a kernel: ``work(sizes)``; ``known`` is false where data say how often loops go round."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        levels = (data.get("grid") or {"levels": ()})["levels"]
        shapes = [level["shape"] for level in levels]
        self._extents = [_code(x) for shape in shapes for x in (shape if isinstance(shape, list) else [shape])]
        self._body = _LoopWork("", 0, 1, 1)
        _see(data["body"], self._body, 1)
        read = {s["var"] for s in statements(data["body"]) if s["stmt"] in ("index", "scalar")}
        bounds = {n for s in statements(data["body"]) if s["stmt"] == "for"
                  for x in ("start", "stop", "step") for n in names_of(str(s[x]))}  # fmt: skip
        self.known = not bounds & read

    def __call__(self, sizes: Mapping[str, int]) -> float:
        """Statements that all blocks execute together."""
        values = _Values(sizes, **_FUNCTIONS)
        blocks, most = 1, 0
        for x in self._extents:
            n = max(_number(x, values), 0)
            blocks, most = blocks * n, max(most, n - 1)
        values = _Values(sizes, **_FUNCTIONS)
        first = last = self._body.work(values)
        if most and values.asked:  # else the blocks are alike
            values = _Values(sizes, **_FUNCTIONS)
            values.at = most
            last = self._body.work(values)
        return blocks * (first + last) / 2
