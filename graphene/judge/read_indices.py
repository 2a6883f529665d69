"""Which integers of an argument become indices: the facts that its elements must keep, and how far they reach."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphene.judge.formats import is_float
from graphene.judge.numbers import extents_by_id, names_of, statements
from graphene.judge.signature import Argument, Facts, Signature, evaluate
from graphene.judge.trees import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Allowed", "of_tensors"]

LEAST_REACH = 64  # elements whose extent is smaller, or not known, reach as far
LARGEST = 2**20  # a bound of a fact beyond it is that of a type


@dataclass(frozen=True)
class Allowed:
    """What the elements of an integer tensor may be.

    ``places``: where they stand as indices: their name, the index's text, and the extent that it is an index into.
    ``limits``: scalars that are computed of them: their name, the scalar's value as a text, and its facts.
    ``copied``: whether they become indices by moves alone, so that the facts hold for them as they are in memory.
    Several indices may lie in the bits of another element.
    """

    facts: tuple[Facts, ...]
    places: tuple[tuple[str, str, Any], ...] = ()
    limits: tuple[tuple[str, str, Facts], ...] = ()
    copied: bool = False

    def range(self, values: Mapping[str, int]) -> tuple[int, int, int]:
        """The least and the largest element in a call of these sizes, and what the elements are multiples of."""
        step = math.lcm(*(f.multiple_of for f in self.facts))
        least = -(-max(f.least for f in self.facts) // step) * step
        most = least + LEAST_REACH - 1
        for name, text, extent in self.places:
            with contextlib.suppress(NameError):  # the extent depends on data, too
                most = max(most, _largest(name, text, evaluate(extent, values), values))
        told = min(f.most for f in self.facts)
        if not self.places and told < LARGEST:
            most = told
        for name, text, facts in self.limits:
            with contextlib.suppress(NameError):
                low, high = _within(name, text, facts, values)
                least, told = max(least, -(-low // step) * step), min(told, high)
        return least, max(min(max(most, least + LEAST_REACH - 1), told) // step * step, least), step


def _largest(name: str, text: str, extent: int, values: Mapping[str, int]) -> int:
    """An element, at most the extent's last, with which the index is inside where all coordinates are zero."""
    element = extent - 1
    others = dict.fromkeys(names_of(text), 0)
    while element > 0 and evaluate(plain(text), {**others, **values, name: element}) >= extent:
        element //= 2
    return element


def _within(name: str, text: str, facts: Facts, values: Mapping[str, int]) -> tuple[int, int]:
    """The least and the largest element with which a scalar keeps its facts, if its value is a line; else any."""
    others = dict.fromkeys(names_of(text), 0)
    at = [evaluate(plain(text), {**others, **values, name: element}) for element in range(3)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope:
        return -LARGEST, 2**63 - 1
    ends = facts.least - at[0], facts.most - at[0]  # of the element times the slope
    low, high = ends if slope > 0 else (-ends[1], -ends[0])
    return -(-low // abs(slope)), high // abs(slope)


def of_tensors(signature: Signature, body: list[Any]) -> dict[str, Allowed]:
    """By name, those integer arguments whose elements reach a ``gr.index``, also through registers and arithmetic.

    What is compared does not reach the comparison's result: a condition says nothing about the elements.
    """
    every = list(statements(body))
    base: dict[int, int] = {}
    known: dict[int, set[str]] = {}
    computed: dict[int, set[str]] = {}  # of these, those of which something was computed on the way
    shapes = extents_by_id(signature, body)
    conditions = {s["id"] for s in every if "id" in s and "type" in s and s["type"]["dtype"] == "pred"}
    names = {a.name for a in signature.arguments if isinstance(a, Argument) and not is_float(a.dtype)}
    for a in signature.data["args"]:
        if "type" in a and a["name"] in names:
            known[a["id"]] = {a["name"]}

    def root(i: int) -> int:
        while i in base:
            i = base[i]
        return i

    for s in every:
        if s["stmt"] == "view":
            base[s["id"]] = s["of"]
    grown = True
    while grown:  # loops: what is written later in the text may be read before
        grown = False
        for s in every:
            if s["stmt"] != "spec" or "body" in s:
                continue
            outs = [root(i) for i in s.get("outs", ()) if i not in conditions]
            given: set[str] = set()
            made: set[str] = set()
            for x in s.get("ins", ()):
                if isinstance(x, dict) and isinstance(x.get("tensor"), int):
                    given |= known.get(root(x["tensor"]), set())
                    made |= computed.get(root(x["tensor"]), set())
            if s["kind"] != "Move":
                made = given
            for i in outs:
                for found, new in ((known, given), (computed, made)):
                    if not new <= found.setdefault(i, set()):
                        found[i] |= new
                        grown = True
    facts: dict[str, list[Facts]] = {}
    variables: dict[str, set[str]] = {}
    changed: set[str] = set()
    for s in every:
        if s["stmt"] == "index" and isinstance(s.get("from"), int):
            changed |= computed.get(root(s["from"]), set())
            for name in known.get(root(s["from"]), ()):
                facts.setdefault(name, []).append(_facts_of(s))
                variables.setdefault(s["var"], set()).add(name)
    places: dict[str, dict[tuple[str, str, Any], None]] = {}
    for s in every:
        if s["stmt"] == "view" and "index" in s:
            for place, extent in zip(s["index"], shapes.get(s["of"], ()), strict=False):
                for variable in names_of(place) & variables.keys() if isinstance(place, str) else ():
                    for name in variables[variable]:
                        places.setdefault(name, {})[variable, place, extent] = None
    limits: dict[str, list[tuple[str, str, Facts]]] = {}
    for s in every:
        if s["stmt"] == "scalar" and isinstance(s.get("value"), str):
            for variable in names_of(s["value"]) & variables.keys():
                for name in variables[variable]:
                    limits.setdefault(name, []).append((variable, s["value"], _facts_of(s)))
    return {
        name: Allowed(
            tuple(dict.fromkeys(f)), tuple(places.get(name, ())), tuple(limits.get(name, ())), name not in changed
        )
        for name, f in facts.items()
    }


def _facts_of(statement: dict[str, Any]) -> Facts:
    return Facts(statement.get("min", 0), statement.get("max", 2**63 - 1), statement.get("multiple_of", 1))
