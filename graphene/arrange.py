"""Choices by algorithm, each a pure function: swizzles, barriers, places in shared memory, least sums of costs.

A kernel that is written by hand can use each alone (docs/planner.md). Their algorithms are those of ``csrc/plan``:
exact, deterministic, held to brute force by tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphene import _core
from graphene._core import Layout, Swizzle

__all__ = [
    "Alive",
    "Arrangement",
    "Choice",
    "Packing",
    "Slots",
    "TileAccess",
    "arrange",
    "choose",
    "fewest_barriers",
    "fragments",
    "matrices",
    "pack",
    "vectors",
]

WARP = 32
MOST_ELEMS = 1 << 20  # of a tile
MOST = 1 << 31  # of weights, distances, slots, bytes


def refuse(message: str, *details: str, fix: str = "") -> Any:
    """Raises VerifyError PLAN_GRAPH."""
    _core.fail("PLAN_GRAPH", message, list(details), fix)


def bits_of(dtype: Any) -> int:
    """The bits of a type, or the number itself. Raises TypeError for anything else."""
    bits = getattr(dtype, "bits", dtype)
    if not isinstance(bits, int) or isinstance(bits, bool):
        raise TypeError(f"a dtype, or a number of bits, is needed, got {dtype!r}")
    if not 0 < bits <= 128:
        refuse("an element has 1 to 128 bits", f"got: {bits}")
    return bits


# Swizzles


@dataclass(frozen=True)
class TileAccess:
    """How threads access a row-major tile: ``requests`` of warps, each a list of (lane, row, column) by ascending lane.

    A lane moves ``elems`` neighbours along its row. `matrices`, `vectors` and `fragments` make the usual ones.
    """

    elems: int
    requests: tuple[tuple[tuple[int, int, int], ...], ...]
    name: str = "access"


def _count(what: str, n: Any) -> int:
    """A number of 32 bits; the core says where it must not be negative."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"{what} is an integer, got {n!r}")
    if not -MOST <= n < MOST:
        refuse(f"{what} has more than 32 bits", f"got: {n}")
    return n


def _names(what: str, names: Any) -> list[Any]:
    """Names of anything that may be the key of a dict."""
    if not isinstance(names, (list, tuple, range, str, set, dict)):
        raise TypeError(f"{what} are a list of names, got {names!r}")
    out = list(names)
    if not all(isinstance(n, Hashable) for n in out):
        raise TypeError(f"{what} have names that can be keys of a dict, got {out!r}")
    return out


def _sizes(rows: int, columns: int, *more: int) -> None:
    for n in (rows, columns, *more):
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"sizes of tiles are integers, got {n!r}")
        if n < 1:
            refuse("sizes of tiles are positive", f"got: {n}")
    if rows * columns > MOST_ELEMS:
        refuse("a tile that shared memory cannot hold", f"got: {rows} x {columns} elements")


def matrices(rows: int, columns: int, dtype: Any) -> TileAccess:
    """The rows that ``ldmatrix`` reads, transposed or not: 8 rows of 16 bytes at one column are a request."""
    _sizes(rows, columns)
    elems = 128 // bits_of(dtype)
    requests = tuple(
        tuple((i, r + i, c) for i in range(min(8, rows - r)))
        for r in range(0, rows, 8)
        for c in range(0, columns - elems + 1, elems)
    )
    return TileAccess(elems, requests, "rows of matrices")


def vectors(rows: int, columns: int, dtype: Any, threads: int = 128, vector_bytes: int = 16) -> TileAccess:
    """Copies of whole rows: vector i belongs to thread ``i % threads``, as in gr.move between memories."""
    _sizes(rows, columns, threads, vector_bytes)
    elems = max(1, vector_bytes * 8 // bits_of(dtype))
    if columns % elems:
        refuse("vectors that the end of a row cuts", f"got: vectors of {elems} in rows of {columns}")
    per_row = columns // elems
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for i in range(rows * per_row):
        step, thread = divmod(i, threads)
        spot = (thread % WARP, i // per_row, i % per_row * elems)
        found.setdefault((step, thread // WARP), []).append(spot)
    return TileAccess(elems, tuple(map(tuple, found.values())), f"copies of {vector_bytes} bytes")


def fragments(rows: int, columns: int, tv: Layout, shape: tuple[int, int], elems: int = 1, across: bool = False,
              name: str = "fragments") -> TileAccess:  # fmt: skip
    """What threads hold by `tv` of tiles of `shape`, such as accumulators: each moves runs of `elems` of its values.

    The tiles stand at every place of the tile; with `across` they are transposed there. The first 32 threads of `tv`
    are a warp.
    """
    if not isinstance(across, bool):
        raise TypeError(f"across must be True or False, got {across!r}")
    if not (isinstance(tv, Layout) and tv.rank == 2) or not (isinstance(shape, (tuple, list)) and len(shape) == 2):
        raise TypeError(f"a thread-value layout, and rows and columns of its tile, are needed, got {tv!r}, {shape!r}")
    _sizes(rows, columns, *shape, elems)
    table = [[tv((t, v)) for v in range(tv.shape[1] if isinstance(tv.shape[1], int) else math.prod(_flat(tv.shape[1])))]
             for t in range(min(WARP, math.prod(_flat(tv.shape[0]))))]  # fmt: skip
    tall, wide = (shape[1], shape[0]) if across else shape
    runs = []  # of each request: the lane, and its element's row and column in the tile of `shape`
    for v in range(0, len(table[0]), elems):
        places = [divmod(values[v], shape[0]) for values in table]
        runs.append([(lane, *((j, i) if across else (i, j))) for lane, (j, i) in enumerate(places)])
    at = itertools.product(range(0, rows - tall + 1, tall), range(0, columns - wide + 1, wide))
    requests = [tuple([(lane, r + i, c + j) for lane, i, j in run]) for r, c in at for run in runs]
    return TileAccess(elems, tuple(requests), name)


def _flat(shape: Any) -> Iterable[int]:
    return (n for s in shape for n in _flat(s)) if isinstance(shape, tuple) else (shape,)


@dataclass(frozen=True)
class Arrangement:
    """A way to lay a tile out in shared memory: the swizzle (None: none), and elements from one row to the next."""

    swizzle: Swizzle | None
    row_elems: int
    bytes: int
    wavefronts: int
    conflicts: int


def arrange(
    rows: int, columns: int, dtype: Any, accesses: Sequence[TileAccess], most_padding: int = 8
) -> list[Arrangement]:
    """Ways to lay out a row-major tile of shared memory, the best for all accesses together first.

    Every swizzle ``Swizzle(bits, base, shift)`` that keeps the widest vector together and permutes the tile's elements
    among themselves is tried, and paddings of rows by one to `most_padding` such vectors. The best has the fewest bank
    conflicts, then the fewest bytes; no swizzle comes before one, and ``gr.swizzle`` before its equals. Raises
    VerifyError PLAN_GRAPH.
    """
    _sizes(rows, columns)
    if not (isinstance(accesses, (list, tuple)) and all(isinstance(a, TileAccess) for a in accesses)):
        raise TypeError(f"accesses= takes a list of TileAccess, got {accesses!r}")
    bits, padding = bits_of(dtype), max(0, min(_count("most_padding", most_padding), 64))
    try:
        found = _core.plan_swizzles(rows, columns, bits, [(a.elems, a.requests) for a in accesses], padding)
    except TypeError:
        raise TypeError(
            f"a TileAccess has a number of elements and requests of (lane, row, column), got {accesses!r}"
        ) from None
    return [
        Arrangement(a.swizzle if a.swizzle.bits else None, a.row_elems, a.bytes, a.wavefronts, a.conflicts)
        for a in found
    ]


# Barriers


@dataclass(frozen=True)
class Slots:
    """A schedule: ``barriers`` of an iteration, and the number of barriers before each operation's first turn."""

    barriers: int
    slot: dict[Hashable, int]

    def ahead(self, early: Hashable, of: Hashable) -> int:
        """How many iterations an operation runs ahead of another one: the depth of a prefetch."""
        return (self.slot[of] - self.slot[early]) // self.barriers if self.barriers else 0


def fewest_barriers(
    operations: Sequence[Hashable],
    edges: Iterable[tuple[Hashable, Hashable, int, int]],
    early: Iterable[Hashable] = (),
) -> Slots:
    """The schedule of a loop with the fewest barriers an iteration; without distances, of straight-line code.

    An edge ``(u, v, weight, distance)`` says that v, `distance` iterations later, comes after u: with `weight` 1 by a
    barrier, because threads exchange data through shared memory, with 0 in any order of threads, because each thread
    needs only its own. Writing to a buffer of S stages comes after reading it: ``(read, write, 1, S)``. Operations in
    `early` (copies) stand as many barriers ahead of the others as they can. Raises VerifyError PLAN_GRAPH where an
    operation must come before itself.
    """
    names = _names("operations", operations)
    number = {name: i for i, name in enumerate(names)}
    if len(number) != len(names):
        refuse("operations of a schedule have different names", f"got: {names}")
    if not isinstance(edges, Iterable) or isinstance(edges, (str, bytes)):
        raise TypeError(f"edges= takes a list of (before, after, weight, distance), got {edges!r}")
    given = []
    for edge in edges:
        if not (isinstance(edge, (tuple, list)) and len(edge) == 4):
            raise TypeError(f"a dependence is (before, after, weight, distance), got {edge!r}")
        u, v, weight, distance = edge
        for name in _names("dependences", (u, v)):
            if name not in number:
                refuse("a dependence of an operation that does not exist", f"want: one of {names}", f"got: {name!r}")
        given.append((number[u], number[v], _count("a weight", weight), _count("a distance", distance)))
    ahead = _names("early operations", early)
    if unknown := [e for e in ahead if e not in number]:
        refuse("an early operation that does not exist", f"want: one of {names}", f"got: {unknown[0]!r}")
    found = _core.plan_slots(len(names), given, [number[e] for e in ahead])
    return Slots(found.barriers, dict(zip(names, found.slot, strict=True)))


# Shared memory


@dataclass(frozen=True)
class Alive:
    """An object of ``bytes``, alive from slot ``first`` until before slot ``end``, at a multiple of ``align`` bytes."""

    bytes: int
    first: int
    end: int
    align: int = 16


@dataclass(frozen=True)
class Packing:
    """Where objects lie: ``at`` of each by name, and the ``bytes`` of all.

    ``bound`` bytes are alive at once, so no packing needs fewer; ``optimal`` says that `bytes` is proven to be least.
    """

    bytes: int
    bound: int
    at: dict[Hashable, int]
    optimal: bool

    def over(self, name: Hashable, objects: Mapping[Hashable, Alive]) -> list[Hashable]:
        """The objects before `name` that share bytes with it, for ``over=``."""
        mine, out = objects[name], []
        for other, o in objects.items():
            if other == name:
                break
            if self.at[other] < self.at[name] + mine.bytes and self.at[name] < self.at[other] + o.bytes:
                out.append(other)
        return out


def pack(objects: Mapping[Hashable, Alive], most_nodes: int = 200_000) -> Packing:
    """Places objects in shared memory: those that are alive in one slot share no bytes; all need the fewest.

    Branch and bound, exact unless it looks at more than `most_nodes` partial packings; the result says so. Raises
    VerifyError PLAN_GRAPH for an object without bytes or without a slot.
    """
    if not (isinstance(objects, Mapping) and all(isinstance(o, Alive) for o in objects.values())):
        raise TypeError(f"objects= takes gr.plan.Alive by name, got {objects!r}")
    parts = [(o.bytes, o.align, o.first, o.end) for o in objects.values()]
    given = [(_count("bytes", b), _count("align", a), _count("first", f), _count("end", e)) for b, a, f, e in parts]
    found = _core.plan_pack(given, _count("most_nodes", most_nodes))
    return Packing(found.bytes, found.bound, dict(zip(objects, found.at, strict=True)), found.optimal)


# Choices that depend on each other


@dataclass(frozen=True)
class Choice:
    """The values of the least cost, by name.

    ``alternatives``: for each variable, each value with the least cost that is left if it is taken (infinity: none).
    """

    cost: float
    values: dict[Hashable, Any]
    alternatives: dict[Hashable, list[tuple[Any, float]]]


def _pairs(costs: Any) -> list[Any]:
    pairs = list(costs) if isinstance(costs, Iterable) else [costs]
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and callable(pair[1])):
            raise TypeError(f"a cost is (variables, function of their values), got {pair!r}")
    return pairs


def _cost(found: Any) -> float:
    if not isinstance(found, (int, float)):
        raise TypeError(f"a cost is a number, got {found!r}")
    if not (found == math.inf or -1e300 < found < 1e300):
        refuse("a cost is a number of less than 1e300, or infinity", f"got: {found!r}")
    return float(found)


def choose(
    domains: Mapping[Hashable, Sequence[Any]],
    costs: Iterable[tuple[Sequence[Hashable], Callable[..., float]]],
    pin: Mapping[Hashable, Any] | None = None,
    most_entries: int = 4_000_000,
) -> Choice:
    """The values of the least total cost: exact, by elimination, and of equal ones always the same.

    `domains`: the values of each variable. `costs`: pairs of variables' names and a function of their values; infinity
    forbids a combination. `pin` fixes variables. Raises SelectError PLAN_NONE where every combination is forbidden,
    PLAN_PIN where a pinned value is not of its domain or leaves no combination; VerifyError PLAN_LIMIT where a table
    would have more than `most_entries`, PLAN_GRAPH for a cost of an unknown variable.
    """
    most = _count("most_entries", most_entries)
    if not (isinstance(domains, Mapping) and all(isinstance(v, (list, tuple, range, str)) for v in domains.values())):
        raise TypeError(f"domains= takes a list of values for each variable, got {domains!r}")
    if not (pin is None or isinstance(pin, Mapping)):
        raise TypeError(f"pin= takes a value for each pinned variable, got {pin!r}")
    names = list(domains)
    number = {name: i for i, name in enumerate(names)}
    values = {name: list(v) for name, v in domains.items()}
    factors = []
    for pair in _pairs(costs):
        scope, cost = _names("the variables of a cost", pair[0]), pair[1]
        for name in scope:
            if name not in number:
                refuse("a cost of a variable that does not exist", f"want: one of {names}", f"got: {name!r}")
        if (entries := math.prod(len(values[n]) for n in scope)) > most:
            _core.fail("PLAN_LIMIT", "a table of costs is too large", [f"want: at most {most} entries",
                       f"got: {entries} of {scope}"], "split the cost into some of fewer variables")  # fmt: skip
        table = [_cost(cost(*combination)) for combination in itertools.product(*(values[n] for n in scope))]
        factors.append(([number[n] for n in scope], table))
    sizes = [len(v) for v in values.values()]

    def least(fixed: Mapping[Hashable, int]) -> tuple[float, list[int]]:
        kept = [
            ([number[n]], [0.0 if i == at else math.inf for i in range(sizes[number[n]])]) for n, at in fixed.items()
        ]
        best = _core.plan_eliminate(sizes, [*factors, *kept], most_entries)
        return best.cost, best.values

    fixed = {}
    for name, value in (pin or {}).items():
        if name not in number or not any(v is value or (type(v) is type(value) and v == value) for v in values[name]):
            want = f"one of {values[name]}" if name in number else f"a name of {names}"
            _core.fail("PLAN_PIN", f"{name} cannot be pinned to {value!r}", [f"want: {want}"])
        fixed[name] = values[name].index(value)
    total, found = least(fixed)
    if math.isinf(total):
        if fixed and not math.isinf(least({})[0]):
            alone = [f"{n} = {values[n][at]!r}" for n, at in fixed.items() if math.isinf(least({n: at})[0])]
            why = [f"{a} leaves nothing by itself" for a in alone] or ["the pins contradict each other"]
            _core.fail("PLAN_PIN", "pinned values leave no combination", why)
        _core.fail("PLAN_NONE", "every combination of values is forbidden", [f"variables: {names}"])
    alternatives = {
        n: [
            (v, least({**fixed, n: i})[0] if n not in fixed or fixed[n] == i else math.inf)
            for i, v in enumerate(values[n])
        ]
        for n in names
    }
    return Choice(total, {n: values[n][i] for n, i in zip(names, found, strict=True)}, alternatives)
