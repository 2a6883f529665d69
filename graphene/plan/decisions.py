"""Decisions: each with a path, its value, the reason, its cost and what else there was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Decision", "Decisions", "refuse_pin"]


def refuse_pin(path: str, value: Any, *why: str) -> Any:
    """Raises SelectError PLAN_PIN."""
    _core.fail("PLAN_PIN", f"{path} cannot be pinned to {value!r}", list(why))


@dataclass
class Decision:
    """``alternatives``: pairs of a value and its cost in the decision's unit, or the reason why it was refused."""

    path: str
    value: Any
    why: str
    cost: float | None = None
    unit: str = ""
    alternatives: list[tuple[Any, float | str]] = field(default_factory=list)
    pinned: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        cost = None if self.cost is None or math.isinf(self.cost) else round(self.cost, 4)
        other = [
            {"value": v, **({"refused": c} if isinstance(c, str) else {"cost": round(c, 4)})}
            for v, c in self.alternatives
        ]
        return {"value": self.value, "why": self.why, "cost": cost, "unit": self.unit, "alternatives": other,
                "pinned": self.pinned}  # fmt: skip

    def __str__(self) -> str:
        cost = "" if self.cost is None else f"  [{_short(self.cost)} {self.unit}]"
        lines = [f"{self.path} = {self.value}{' (pinned)' if self.pinned else ''}: {self.why}{cost}"]
        for v, c in self.alternatives:
            lines.append(f"  {v}: {c if isinstance(c, str) else f'{_short(c)} {self.unit}'}")
        return "\n".join(lines)


def _short(x: float) -> str:
    return f"{x:.4g}" if abs(x) < 10_000 else f"{x:,.0f}"


class Decisions:
    """The decisions of a plan by path, and the pins that they must respect."""

    def __init__(self, pins: Mapping[str, Any]) -> None:
        self.pins = dict(pins)
        self.made: dict[str, Decision] = {}

    def put(
        self, path: str, value: Any, why: str, cost: float | None = None, unit: str = "",
        alternatives: Sequence[tuple[Any, float | str]] = (),
    ) -> Any:  # fmt: skip
        """Records a decision. Raises SelectError PLAN_PIN if it is pinned to another value."""
        pinned = path in self.pins
        if pinned and self.pins[path] != value:
            refused = next((c for v, c in alternatives if v == self.pins[path]), None)
            why_not = [f"refused: {refused}"] if isinstance(refused, str) else [f"it follows: {value!r}, {why}"]
            refuse_pin(path, self.pins[path], *why_not)
        self.made[path] = Decision(path, value, why, cost, unit, list(alternatives), pinned)
        return value

    def take(self, path: str, options: Mapping[Any, float | str], why: Callable[[Any], str], unit: str = "") -> Any:
        """The option of least cost, the first of equals; texts are reasons for refusing one. A pin is the only option.

        Raises SelectError PLAN_PIN, PLAN_NONE.
        """
        if path in self.pins:
            value = self.pins[path]
            cost = options.get(value, "it is none of the values") if _hashable(value) else "it is none of the values"
            if isinstance(cost, str):
                refuse_pin(
                    path,
                    value,
                    f"refused: {cost}",
                    f"want: one of {[v for v, c in options.items() if not isinstance(c, str)]}",
                )
            found = value
        else:
            allowed = {v: c for v, c in options.items() if not isinstance(c, str)}
            if not allowed:
                _core.fail("PLAN_NONE", f"nothing is left for {path}", [f"{v}: {c}" for v, c in options.items()])
            found = min(allowed, key=lambda v: allowed[v])
        cost = options[found]
        return self.put(path, found, why(found), None if isinstance(cost, str) else cost, unit,
                        [(v, c) for v, c in options.items() if v != found])  # fmt: skip

    def overlaps(self) -> bool:
        """Whether the kernel starts beside the end of the one before it."""
        found = self.made.get("launch.overlap")
        return found is not None and bool(found.value)

    def through(self) -> str:
        """The load of what is read once: memory that a kernel before may still write has no non-coherent one."""
        return "ld.global" if self.overlaps() else "ld.global.nc"

    def unknown(self) -> list[str]:
        """Pins of what was never decided."""
        return [p for p in self.pins if p not in self.made]


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
