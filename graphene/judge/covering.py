"""Chooses calls by covering: values of symbols, kinds of data and values of scalars.

Sizes come first: pairs of values of two symbols, features of the text's divisions, and dividends that decide an
expression. Then comes data at those sizes. Everything that a call of some sizes reached in the kernel's text (a
statement, a second turn of a loop, a condition that does not hold) is to be reached with every kind of data, with every
value of a scalar, and with every pair of these.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from graphene.judge.numbers import Divided, Turns
    from graphene.judge.turning import Turning

__all__ = ["Covering", "DataCovering"]

_TRIES = 60  # random candidates, of which the best is taken
_TELLING = 8  # times as much as another pair
_STEEPNESS = 0.3  # how much a costly call must tell more


class Covering:
    """Chooses calls one by one. Each covers as many new things as possible.

    These are pairs of values, features of divisions, and dividends that decide an expression.

    ``domains``: candidate values by name. ``cost``: the cost of a call with some values. ``valid`` may change the
    values in place, and says whether they fit.
    """

    def __init__(
        self,
        domains: Mapping[str, Sequence[Any]],
        divided: Sequence[Divided],
        steps: Mapping[str, int],
        cost: Callable[[dict[str, Any]], float],
        valid: Callable[[dict[str, Any]], bool],
        rng: Any,
        turns: Sequence[Turns] = (),
        deciding: Turning | None = None,
    ) -> None:
        self._domains = {n: list(v) for n, v in domains.items()}
        self._turns, self._turned = turns, set[int]()  # that went round twice in the calls before `_made`
        self._made: list[dict[str, Any]] = []
        self._steps = dict(steps)
        self._cost, self._valid, self._rng = cost, valid, rng
        self._left: set[Any] = {(a, x, b, y) for a, b in itertools.combinations(self._domains, 2)
                      for x in self._domains[a] for y in self._domains[b]}  # fmt: skip
        self._left |= {(a, x) for a in self._domains for x in self._domains[a]}
        self._divided = [d for d in divided if d.names & set(domains)]
        self._deciding = deciding
        self._seen: set[Any] = set()
        self._offered: set[Any] = set()

    def _pairs(self, d: dict[str, Any]) -> set[Any]:
        names = list(self._domains)
        return {(a, d[a], b, d[b]) for a, b in itertools.combinations(names, 2)} | {(a, d[a]) for a in names}

    def _features(self, d: dict[str, Any]) -> set[Any]:
        values = {n: v for n, v in d.items() if isinstance(v, int)}
        return {f for e in self._divided for f in e.features(values)}

    def count(self, d: dict[str, Any]) -> None:
        """Counts what a call covers that was made anyway."""
        self._made.append(d)
        if all(n in d for n in self._domains):
            self._left -= self._pairs(d)
        self._seen |= self._features(d)
        if self._deciding is not None:
            self._deciding.count(self._deciding.features([d])[0])

    def next(self, most: float = math.inf) -> dict[str, Any] | None:
        """The values of the next call, at a cost of at most `most`; None if no candidate covers anything new."""
        best: tuple[float, dict[str, Any]] | None = None
        tried: list[tuple[dict[str, Any], float]] = []
        names = list(self._domains)
        wide = [n for n in self._steps if len(self._domains.get(n, ())) > 2]
        for _ in range(_TRIES if names else 0):
            d = {n: v[int(self._rng.integers(len(v)))] for n, v in self._domains.items()}
            if wide and self._divided and self._rng.integers(2):  # any size between, for residues of differences
                n = wide[int(self._rng.integers(len(wide)))]
                m = self._steps[n]
                d[n] = int(self._rng.integers(1, max(max(self._domains[n]) // m, 1) + 1)) * m
            if self._valid(d) and (cost := self._cost(d)) <= most:
                tried.append((d, cost))
        given = [d for d, _ in tried]
        decided = self._deciding.features(given) if self._deciding is not None else [set()] * len(given)
        for (d, cost), decides in zip(tried, decided, strict=True):
            features = self._features(d)
            self._offered |= features
            gain = len(self._pairs(d) & self._left) + 3 * len(features - self._seen) + 8 * len(decides)
            worth = gain / max(cost, 1.0) ** _STEEPNESS
            if gain and (best is None or worth > best[0]):
                best = worth, d
        if best is None:
            return None
        self.count(best[1])
        return best[1]

    def reach(self, most: float) -> dict[str, Any] | None:
        """Large values, at a cost of at most `most`, for which loops go round twice that did not in any call."""
        for d in self._made:
            self._turned |= self._turning(d)
        self._made.clear()
        best: tuple[tuple[int, float], dict[str, Any]] | None = None
        for _ in range(_TRIES):
            d = {n: v[int(self._rng.integers(len(v)))] for n, v in self._domains.items()}
            if self._valid(d) and self._cost(d) <= most:
                worth = len(self._turning(d) - self._turned), math.prod(float(d[n]) for n in self._steps)
                if best is None or worth > best[0]:
                    best = worth, d
        if best is None:
            return None
        self.count(best[1])
        return best[1]

    def _turning(self, d: Mapping[str, Any]) -> set[int]:
        return {i for i, t in enumerate(self._turns) if t.repeats(d)}

    @property
    def covered(self) -> set[Any]:
        """The features of divisions that calls had."""
        return self._seen

    @property
    def offered(self) -> set[Any]:
        """The features that a call could have had."""
        return self._offered


class DataCovering:
    """Chooses kinds of data and values of scalars for sizes that have run, of which it is known what they reach.

    ``domains``: candidate values by name. ``bases``: what each of the calls reached, in any terms, and its cost.
    ``telling``: pairs of names with values that show more than others, in the order of the domains.
    """

    def __init__(
        self,
        domains: Mapping[str, Sequence[Any]],
        bases: Sequence[tuple[Iterable[Hashable], float]],
        rng: Any,
        telling: Iterable[Hashable] = (),
    ) -> None:
        self._domains = {n: list(v) for n, v in domains.items()}
        self._rng, self._telling = rng, set(telling)
        bits: dict[Any, int] = {}
        self._bases = [(sum(1 << bits.setdefault(x, len(bits)) for x in set(reached)), cost) for reached, cost in bases]
        self._seen: dict[Any, int] = {}

    def _parts(self, d: Mapping[str, Any]) -> list[Any]:
        one = [(n, d[n]) for n in self._domains]
        return one + list(itertools.combinations(one, 2))

    def count(self, base: int, d: Mapping[str, Any]) -> None:
        """Counts what a call covers that was made."""
        for part in self._parts(d):
            self._seen[part] = self._seen.get(part, 0) | self._bases[base][0]

    def next(self, most: float = math.inf) -> tuple[int, dict[str, Any]] | None:
        """One of the bases, and the values by name; None if no candidate covers anything new."""
        best: tuple[float, int, dict[str, Any]] | None = None
        for _ in range(_TRIES):
            base = int(self._rng.integers(len(self._bases)))
            d = {n: v[int(self._rng.integers(len(v)))] for n, v in self._domains.items()}
            reached, cost = self._bases[base]
            if cost > most:
                continue
            gain = sum(
                (reached & ~self._seen.get(part, 0)).bit_count() * (_TELLING if part in self._telling else 1)
                for part in self._parts(d)
            )
            worth = gain / max(cost, 1.0) ** _STEEPNESS
            if gain and (best is None or worth > best[0]):
                best = worth, base, d
        if best is None:
            return None
        self.count(*best[1:])
        return best[1:]
