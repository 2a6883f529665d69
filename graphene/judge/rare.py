"""Repeats calls whose data alone led to some place in a kernel, so that chance has more than one try there.

A branch that data decide (scores so large that they are computed in another way, say) is reached by few calls. A
mistake in it, or in what decides it, shows only where some rows take it and others do not, in an order that matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FAR", "Rare"]

FAR = 2.0**10  # scalars from here on take rare paths
_TIMES = 14  # calls that are to reach such a place
_KINDS = ("uneven", "uneven", "large")  # of such calls, in turn: rows that differ, rows that may overflow


class Rare:
    """Says which data may lead again to what no call of ``usual`` data reached.

    ``kinds``: the kinds of data that the kernel's promise covers. ``farthest``: of scalars that take rare paths, the
    value that loses most where a path is not taken; a power of two would lose nothing.
    """

    def __init__(self, usual: frozenset[int], kinds: Sequence[str], farthest: Mapping[str, float]) -> None:
        self._usual, self._farthest = usual, dict(farthest)
        self._kinds = [k for k in _KINDS if k in kinds]
        self._times: dict[int, int] = {}
        self._tried: list[tuple[frozenset[int], Mapping[str, Any]]] = []
        self._number = 0

    def count(self, data: Mapping[str, Any], reached: frozenset[int]) -> None:
        """Counts a call that ran: its kind of data and scalars, and what it reached."""
        found = reached - self._usual
        if not found <= self._times.keys():
            self._tried.append((found, dict(data)))
        for place in found:
            self._times[place] = self._times.get(place, 0) + 1

    def next(self) -> dict[str, Any] | None:
        """The kind of data and scalars of a call that may reach places which few calls did."""
        wanted = [sum(max(_TIMES - self._times[place], 0) for place in found) for found, _ in self._tried]
        if not self._kinds or not any(wanted):
            return None
        _, data = self._tried[wanted.index(max(wanted))]
        self._number += 1
        far = {n: v for n, v in self._farthest.items() if FAR <= abs(data[n]) < v}
        return {**data, **far, "": self._kinds[self._number % len(self._kinds)]}
