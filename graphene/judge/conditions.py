"""What a launch asks of sizes and strides beyond the facts of the kernel's symbols: lines whose bytes a tensor map can
describe, say. Calls that are chosen keep these conditions, and sizes become multiples of what they ask for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene.judge.numbers import names_of
from graphene.judge.trees import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from graphene.judge.signature import Facts

__all__ = ["Conditions"]

_POWERS = tuple(2**i for i in range(9))  # multiples that a condition may ask for
_VALUES = 8  # values of a symbol that are tried for each of them
_GLOBALS: dict[str, Any] = {"__builtins__": {}, "min": min, "max": max}


@dataclass(frozen=True)
class _Condition:
    names: frozenset[str]
    code: Any = field(repr=False, compare=False)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it holds; true where a name has no value, or where it divides by zero."""
        try:
            return bool(eval(self.code, _GLOBALS, dict(values)))
        except (NameError, ZeroDivisionError):
            return True


class Conditions:
    """The conditions of a launch, of which each is an expression of the kernel's symbols that must not be 0."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._all = [_Condition(frozenset(names_of(t)), compile(plain(t), "<condition>", "eval"))
                     for t in dict.fromkeys(texts)]  # fmt: skip
        self.names: frozenset[str] = frozenset().union(*(c.names for c in self._all))

    def hold(self, values: Mapping[str, int]) -> bool:
        """Whether all hold for a call's sizes and strides."""
        return all(c.holds(values) for c in self._all)

    def multiples(self, symbols: Mapping[str, Facts], known: Mapping[str, int]) -> dict[str, int]:
        """For each symbol the least number whose multiples keep the conditions, whatever usual values others have.

        Values of ``known`` symbols are given. Where no power of two helps, it is what the facts say.
        """
        out = {n: f.multiple_of for n, f in symbols.items()}
        for c in self._all:
            free = sorted(c.names & out.keys() - known.keys())
            for names in [*([n] for n in free), free]:  # what one symbol decides, else all of them together
                found = self._least(c, names, out, symbols, known)
                if found is not None:
                    out |= found
                    break
        return out

    def _least(
        self, c: _Condition, names: list[str], now: Mapping[str, int], symbols: Mapping[str, Facts],
        known: Mapping[str, int],
    ) -> dict[str, int] | None:  # fmt: skip
        """The least multiples of some symbols with which a condition holds."""
        others = {o: now[o] * (max(f.least // now[o], 2) | 1) for o, f in symbols.items()} | dict(known)
        for by in _POWERS:
            found = {n: math.lcm(now[n], by) for n in names}
            first = {n: max(symbols[n].least // m, 2) for n, m in found.items()}
            tried = (
                {n: m * (first[n] + i + i * at) for at, (n, m) in enumerate(found.items())} for i in range(_VALUES)
            )
            if all(c.holds({**others, **values}) for values in tried):
                return found
        return None
