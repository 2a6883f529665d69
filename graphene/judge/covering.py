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

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from graphene.judge.numbers import Divided, Turns
    from graphene.judge.turning import Turning

__all__ = ["Covering", "DataCovering"]

_POOL = 800  # random calls from which sizes are chosen
_TRIES = 60  # random calls from which data are chosen, each time
_WORTH = {"pair": (1.0, 0.0), "divided": (3.0, 0.0), "turns": (80.0, 0.0), "decides": (8.0, 8.0, 4.0, 2.0, 0.0),
          "holds": (6.0, 0.0)}  # fmt: skip
_ALIKE = 1.5  # the work of two calls is about the same up to this factor
_LONGEST = 160  # quarters of a size's usual largest value
_TELLING = 8  # the weight of a telling pair; that of other pairs is 1
_STEEPNESS = 0.3  # what a call covers is divided by its cost to this power
_STEEPER = 0.5  # the same for sizes
_STEEPEST = 0.8  # the same where calls are repeated with other data


class Covering:
    """Chooses calls one by one from a pool of random calls. Each covers as many new things as possible.

    These are pairs of values, features of divisions, dividends that decide an expression, conditions that hold or do
    not, and loops that go round again. A dividend that decides something is wanted several times, because its effect
    may be masked, or lie past an edge.

    ``domains``: candidate values by name. ``divided``, ``turns``, ``deciding``: findings in the kernel's text.
    ``steps``: sizes that may have any multiple of a number, too. ``work``: the work of a call with some values.
    ``valid`` may change the values in place, and says whether they fit.
    """

    def __init__(
        self,
        domains: Mapping[str, Sequence[Any]],
        divided: Sequence[Divided],
        steps: Mapping[str, int],
        work: Callable[[dict[str, Any]], float],
        valid: Callable[[dict[str, Any]], bool],
        rng: Any,
        turns: Sequence[Turns] = (),
        deciding: Turning | None = None,
    ) -> None:
        self._domains = {n: list(v) for n, v in domains.items()}
        self._steps, self._turns, self._deciding = dict(steps), list(turns), deciding
        self._work, self._valid, self._rng = work, valid, rng
        self._divided = [d for d in divided if d.names & set(domains)]
        self._turned: set[int] = set()  # loops that went round twice in some call
        self._columns: dict[tuple[Any, ...], int] = {}
        self._pool, works = self._made_pool()
        rows = self._rows(self._pool)
        self._has = np.zeros((len(self._pool), len(self._columns)), np.float32)
        for i, row in enumerate(rows):
            self._has[i, row] = 1
        self._works = np.array(works, np.float64)
        self._left = [list(_WORTH[name[0]]) for name in self._columns]  # the worth of covering a column again
        self._worth = np.array([w[0] for w in self._left], np.float32)
        self._names: list[Any] = list(self._columns)
        self._covered: set[int] = set()
        self._decides = {c for c, name in enumerate(self._columns) if name[0] == "decides"}
        self._way = [c for c, name in enumerate(self._columns) if name[0] in ("holds", "turns")]

    def _made_pool(self) -> tuple[list[dict[str, Any]], list[float]]:
        """Calls, and the work of each."""
        names = list(self._domains)
        wide = [n for n in self._steps if len(self._domains.get(n, ())) > 2]
        out = []
        for _ in range(_POOL if names else 0):
            d = {n: v[int(self._rng.integers(len(v)))] for n, v in self._domains.items()}
            if wide and self._divided:  # any size between, for residues of differences
                for _ in range(int(self._rng.integers(3))):
                    n = wide[int(self._rng.integers(len(wide)))]
                    m = self._steps[n]
                    d[n] = int(self._rng.integers(1, max(max(self._domains[n]) // m, 1) + 1)) * m
            if self._valid(d):
                if wide and self._divided and self._rng.integers(2):
                    d = self._at_edge(d, wide)
                out.append(d)
        works = [self._work(d) for d in out]
        longer = self._longer(out, works)
        return out + longer, works + [self._work(d) for d in longer]

    def _at_edge(self, d: dict[str, Any], wide: Sequence[str]) -> dict[str, Any]:
        """The call with one size changed, so that some dividend is the first or the last one of a quotient."""
        e = self._divided[int(self._rng.integers(len(self._divided)))]
        at, edge = int(self._rng.integers(2)), -int(self._rng.integers(2))
        names = [n for n in wide if n in e.names]
        if not names:
            return d
        n = names[int(self._rng.integers(len(names)))]
        missing = (edge - e.value(d, at)) % e.by
        for x in (d[n] + missing - e.by, d[n] - missing, d[n] + missing, d[n] - missing + e.by):
            changed = {**d, n: x}
            fits = 0 < x <= max(self._domains[n]) and x % self._steps[n] == 0 and self._valid(changed)
            if fits and (edge - e.value(changed, at)) % e.by == 0:
                return changed
        return d

    def _longer(self, pool: list[dict[str, Any]], works: Sequence[float]) -> list[dict[str, Any]]:
        """Calls with one size so large that loops go round twice which do not in any call of the pool.

        Where two loops are to go round, the call that is long for one of them becomes long for the other, too.
        """
        out: list[dict[str, Any]] = []
        base = [pool[i] for i in sorted(range(len(pool)), key=works.__getitem__)[: _TRIES // 3]]
        values = _columns(pool)
        for turns in self._turns:
            if turns.all_repeats(values, len(pool)):
                continue
            sizes = {n: [k * max(self._domains[n]) // 4 // self._steps[n] * self._steps[n] for k in range(5, _LONGEST)]
                     for n in sorted(turns.names & self._steps.keys())}  # fmt: skip
            longer = [{**d, n: x} for d in (*base, *out) for n, xs in sizes.items() for x in xs]
            known = {n: v for n, v in _columns(longer).items() if n in turns.all_names}
            each = _LONGEST - 5
            first: dict[int, dict[str, Any]] = {}  # of each call and size, the smallest with which the loop repeats
            for i in turns.all_repeats(known, len(longer)):
                first.setdefault(i // each, longer[i])
            out += list(itertools.islice((d for d in first.values() if self._valid(d) and turns.repeats(d)), 1))
        return out

    def _rows(self, calls: Sequence[dict[str, Any]]) -> list[list[int]]:
        """The columns that each of the calls covers."""
        found: list[list[tuple[Any, ...]]] = [[] for _ in calls]
        names = [n for n in self._domains if all(n in d for d in calls)]
        for row, d in zip(found, calls, strict=True):
            one = [(n, d[n]) for n in names]
            row += [("pair", *x) for x in one if x[1] in self._domains[x[0]]]
            row += [("pair", *x, *y) for x, y in itertools.combinations(one, 2)
                    if x[1] in self._domains[x[0]] and y[1] in self._domains[y[0]]]  # fmt: skip
        if calls:
            values = {n: np.array([[d[n]] for d in calls], np.int64) for n in calls[0]
                      if all(isinstance(d.get(n), int | np.integer) for d in calls)}  # fmt: skip
            for e in self._divided:
                for c, feature in e.all_features(values, len(calls)):
                    found[c].append(("divided", *feature))
            for i, t in enumerate(self._turns):
                for c in t.all_repeats(values, len(calls)):
                    found[c].append(("turns", i))
            if self._deciding is not None:
                for row, features in zip(found, self._deciding.features(calls), strict=True):
                    row += [("decides" if len(f) == 4 else "holds", *f) for f in features]
        return [[self._columns.setdefault(x, len(self._columns)) for x in row] for row in found]

    def count(self, d: dict[str, Any]) -> None:
        """Counts what a call covers that was made anyway."""
        known = len(self._worth)
        (row,) = self._rows([d])
        self._cover([c for c in row if c < known])

    def _cover(self, columns: Iterable[int]) -> None:
        self._covered.update(columns)
        for c in columns:
            left = self._left[c]
            if len(left) > 1:
                left.pop(0)
                self._worth[c] = left[0]
            if self._names[c][0] == "turns":
                self._turned.add(self._names[c][1])

    def next(self, each: float = 0.0, rate: float = 1.0, most: float = math.inf) -> dict[str, Any] | None:
        """The values of the next call; None if no call covers anything new.

        A call costs ``each`` plus ``rate`` times its work, and at most ``most``.
        """
        if not self._pool:
            return None
        gain = self._has @ self._worth
        costs = each + rate * self._works
        worth = np.where((costs <= most) & (gain > 0), gain / np.maximum(costs, 1.0) ** _STEEPER, 0)
        best = int(np.argmax(worth))
        if not worth[best]:
            return None
        self._cover(np.flatnonzero(self._has[best]).tolist())
        self._has[best] = 0
        return dict(self._pool[best])

    def least(self) -> dict[str, Any] | None:
        """The values of the call with the least work."""
        if not self._pool:
            return None
        at = int(np.argmin(self._works))
        self._cover(np.flatnonzero(self._has[at]).tolist())
        self._has[at] = 0
        return dict(self._pool[at])

    def alike(self, d: dict[str, Any]) -> dict[str, Any]:
        """Other values of about the same work that, by the text, take the same way, and show more."""
        known = len(self._worth)
        (row,) = self._rows([d])
        mine = np.zeros(known, np.float32)
        mine[[c for c in row if c < known]] = 1
        work = self._work(d)
        if not self._pool:
            return d
        same = (self._has[:, self._way] == mine[self._way]).all(1)
        same &= (self._works <= _ALIKE * work) & (self._works * _ALIKE >= work)
        gain = np.where(same, self._has @ self._worth, 0)
        best = int(np.argmax(gain))
        if not gain[best]:
            return d
        self._cover(np.flatnonzero(self._has[best]).tolist())
        self._has[best] = 0
        return dict(self._pool[best])

    def reach(self, each: float, rate: float, most: float) -> dict[str, Any] | None:
        """Large values, at a cost as in ``next``, for which loops go round twice that did not in any call."""
        best: tuple[tuple[int, float], dict[str, Any]] | None = None
        for _ in range(_TRIES):
            d = {n: v[int(self._rng.integers(len(v)))] for n, v in self._domains.items()}
            if self._valid(d) and each + rate * self._work(d) <= most:
                again = {i for i, t in enumerate(self._turns) if i not in self._turned and t.repeats(d)}
                worth = len(again), math.prod(float(d[n]) for n in self._steps)
                if best is None or worth > best[0]:
                    best = worth, d
        if best is None:
            return None
        self.count(best[1])
        return best[1]

    @property
    def undecided(self) -> bool:
        """Whether some dividend decided nothing yet that does in some call of the pool."""
        return not self._decides <= self._covered

    @property
    def covered(self) -> set[Any]:
        """The features of divisions that calls had."""
        return {self._names[c][1:] for c in self._covered if self._names[c][0] == "divided"}

    @property
    def offered(self) -> set[Any]:
        """The features that a call could have had."""
        return {n[1:] for n in self._names if n[0] == "divided"}


def _columns(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The integers of calls as columns, by name."""
    names = [n for n, v in calls[0].items() if isinstance(v, int | np.integer)] if calls else []
    return {n: np.array([[d[n]] for d in calls], np.int64) for n in names}


class DataCovering:
    """Chooses kinds of data and values of scalars for sizes that have run, of which it is known what they reach.

    ``domains``: candidate values by name. ``bases``: what each of the calls reached, in any terms, and its cost.
    ``telling``: pairs of names with values that show more than others, in the order of the domains. Each is wanted
    twice at all that calls reached, because chance decides in which rows they show something.
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
        self._spread = 0  # what `spread` chose bases for
        self._again: dict[Any, int] = {}  # what was reached with a telling pair in two calls

    def _parts(self, d: Mapping[str, Any]) -> list[Any]:
        one = [(n, d[n]) for n in self._domains]
        return one + list(itertools.combinations(one, 2))

    def count(self, base: int, d: Mapping[str, Any]) -> None:
        """Counts what a call covers that was made."""
        for part in self._parts(d):
            seen, reached = self._seen.get(part, 0), self._bases[base][0]
            self._again[part] = self._again.get(part, 0) | (seen & reached)
            self._seen[part] = seen | reached

    def tells(self, d: Mapping[str, Any]) -> bool:
        """Whether values that were chosen have a telling pair."""
        return any(part in self._telling for part in self._parts(d))

    def next(self, most: float = math.inf, telling: bool = True) -> tuple[int, dict[str, Any]] | None:
        """One of the bases, and the values by name; None if no candidate covers anything new.

        Without ``telling``, telling pairs count as others do.
        """
        best: tuple[float, int, dict[str, Any]] | None = None
        for _ in range(_TRIES):
            base = int(self._rng.integers(len(self._bases)))
            d = {n: v[int(self._rng.integers(len(v)))] for n, v in self._domains.items()}
            reached, cost = self._bases[base]
            if cost > most:
                continue
            gain = 0
            for part in self._parts(d):
                new = (reached & ~self._seen.get(part, 0)).bit_count()
                if telling and part in self._telling:
                    new = _TELLING * new + _TELLING // 2 * (reached & ~self._again.get(part, 0)).bit_count()
                gain += new
            worth = gain / max(cost, 1.0) ** _STEEPNESS
            if gain and (best is None or worth > best[0]):
                best = worth, base, d
        if best is None:
            return None
        self.count(*best[1:])
        return best[1:]

    def spread(self, d: dict[str, Any], most: float) -> tuple[int, dict[str, Any]] | None:
        """Values by name at the base that reached most of what those before did not that this chose."""
        for _ in range(2):
            worth = [(reached & ~self._spread).bit_count() / max(cost, 1.0) ** _STEEPEST if cost <= most else 0.0
                     for reached, cost in self._bases]  # fmt: skip
            if any(worth):
                base = worth.index(max(worth))
                self._spread |= self._bases[base][0]
                self.count(base, d)
                return base, d
            self._spread = 0
        return None

    def again(self, d: dict[str, Any], most: float) -> tuple[int, dict[str, Any]] | None:
        """The base that reached most, of those that cost no more, for values by name; None if each costs more."""
        fitting = [i for i, (_, cost) in enumerate(self._bases) if cost <= most]
        if not fitting:
            return None
        return max(fitting, key=lambda i: (self._bases[i][0].bit_count(), -self._bases[i][1])), d
