"""Which calls tell most: values of symbols, kinds of data and values of scalars, chosen by covering."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphene.judge.numbers import Divided

__all__ = ["Covering"]

_TRIES = 60  # random candidates, of which the best is taken
_STEEPNESS = 0.3  # how much a costly call must tell more


class Covering:
    """Chooses calls one by one: each covers as many new pairs of values and features of what is divided as can be.

    ``domains``: candidate values by name. ``cost``: of the values of a call. ``valid`` may change the values in place,
    and says whether they fit.
    """

    def __init__(
        self,
        domains: Mapping[str, Sequence[Any]],
        divided: Sequence[Divided],
        steps: Mapping[str, int],
        cost: Callable[[dict[str, Any]], float],
        valid: Callable[[dict[str, Any]], bool],
        rng: Any,
    ) -> None:
        self._domains = {n: list(v) for n, v in domains.items()}
        self._steps = dict(steps)
        self._cost, self._valid, self._rng = cost, valid, rng
        self._left: set[Any] = {(a, x, b, y) for a, b in itertools.combinations(self._domains, 2)
                      for x in self._domains[a] for y in self._domains[b]}  # fmt: skip
        self._left |= {(a, x) for a in self._domains for x in self._domains[a]}
        self._divided = [d for d in divided if d.names & set(domains)]
        self._seen: set[Any] = set()
        self._offered: set[Any] = set()

    def _pairs(self, d: dict[str, Any]) -> set[Any]:
        names = list(self._domains)
        return {(a, d[a], b, d[b]) for a, b in itertools.combinations(names, 2)} | {(a, d[a]) for a in names}

    def _features(self, d: dict[str, Any]) -> set[Any]:
        values = {n: v for n, v in d.items() if isinstance(v, int)}
        return {f for e in self._divided for f in e.features(values)}

    def count(self, d: dict[str, Any]) -> None:
        """A call that was made anyway covers what it covers."""
        if all(n in d for n in self._domains):
            self._left -= self._pairs(d)
        self._seen |= self._features(d)

    def next(self) -> dict[str, Any] | None:
        """The values of the next call; None if none that was tried tells anything new."""
        best: tuple[float, dict[str, Any]] | None = None
        names = list(self._domains)
        wide = [n for n in self._steps if len(self._domains.get(n, ())) > 2]
        for _ in range(_TRIES if names else 0):
            d = {n: v[int(self._rng.integers(len(v)))] for n, v in self._domains.items()}
            if wide and self._divided and self._rng.integers(2):  # any size between, for residues of differences
                n = wide[int(self._rng.integers(len(wide)))]
                m = self._steps[n]
                d[n] = int(self._rng.integers(1, max(max(self._domains[n]) // m, 1) + 1)) * m
            if not self._valid(d):
                continue
            features = self._features(d)
            self._offered |= features
            gain = len(self._pairs(d) & self._left) + 3 * len(features - self._seen)
            worth = gain / max(self._cost(d), 1.0) ** _STEEPNESS
            if gain and (best is None or worth > best[0]):
                best = worth, d
        if best is None:
            return None
        self.count(best[1])
        return best[1]

    @property
    def covered(self) -> set[Any]:
        """The features of what is divided that calls had."""
        return self._seen

    @property
    def offered(self) -> set[Any]:
        """Those that a call could have had."""
        return self._offered
