"""Numbers of a kernel's text: its divisors, and the values of sizes that they ask for."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from graphene.judge.signature import Argument, Facts
from graphene.judge.trees import Trees, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from graphene.judge.signature import Signature

__all__ = ["Divided", "Numbers", "names_of", "strings"]

_KEPT = 4096  # expressions whose names and code are kept
_VARIABLE = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_NO_VARIABLES = frozenset(("min", "max", "and", "or", "not", "if", "else"))
_LEAST, _MOST = 2, 4096  # the divisors that matter for edges
_LONGEST = 300  # characters of a dividend that is looked at
_FEW = (1, 2, 3, 5)
_FEW_BLOCKS = 16  # the most blocks that are wanted where their number modulo that, or compared with it, decides
_FEW_LANES = 64  # the most threads that count something, or number it is compared with, for which one more is tried
_SCALARS_DEEP, _SPELLED_OUT = 4, 4000  # scalars whose values name scalars, and characters of an expression
_NAME = re.compile(r"(?<![@\w])[A-Za-z_]\w*")
_PART_OF_BLOCKS = re.compile(r"\(?bid\.([xyz])(?://(\d+)\)?)?(?:%(\d+))?")
_PHASE = re.compile(r"(\w+) \^ \(\w+ \+ 1\)//(\d+)")  # a ring's next phase
_LARGEST = 400  # the largest value of a size that is divided, unless a tile is larger
_LARGEST_COUNT = 70  # the largest value of a size that is not divided


@functools.lru_cache(_KEPT)
def names_of(text: str) -> frozenset[str]:
    """The variables of an expression."""
    return frozenset(_VARIABLE.findall(plain(text))) - _NO_VARIABLES


@functools.lru_cache(_KEPT)
def code_of(text: str) -> Any:
    """The code of an expression of Python."""
    return compile(text, "<expression>", "eval")


@dataclass(frozen=True)
class Divided:
    """An expression that is divided by a number somewhere in the text: E // n, E % n, or a loop that goes on by n."""

    text: str
    by: int
    names: frozenset[str]
    code: Any = field(repr=False, compare=False)

    def value(self, values: Mapping[str, int], at: int) -> int:
        """The expression's, where coordinates are so much; 0 where it has none."""
        try:
            return int(
                eval(self.code, {"min": min, "max": max}, {**dict.fromkeys(self.names, at), **CONSTANTS, **values})
            )
        except (ZeroDivisionError, ValueError):
            return 0

    def features(self, values: Mapping[str, int]) -> Iterator[tuple[str, int, int, int, int]]:
        """The residue class (0, 1, -1, other) and the quotient (-1, 0, 1, more), for coordinates of 0 and of 1."""
        given = {n: np.array([[v]], np.int64) for n, v in values.items() if isinstance(v, int | np.integer)}
        return (f for _, f in self.all_features(given, 1))

    def all_features(self, values: Mapping[str, Any], n: int) -> Iterator[tuple[int, tuple[str, int, int, int, int]]]:
        """Those of n calls, each with the call's number; ``values`` are columns."""
        got = _all_values(self.code, self.names, values, n)
        if got is None:
            return
        residues, quotients = got % self.by, np.clip(got // self.by, -1, 2)
        kinds = np.select([residues == 0, residues == 1, residues == self.by - 1], [0, 1, -1], 2)
        for at in range(got.shape[1]):
            for c, (residue, quotient) in enumerate(zip(kinds[:, at].tolist(), quotients[:, at].tolist(), strict=True)):
                yield c, (self.text, self.by, at, residue, quotient)


def _all_values(code: Any, names: frozenset[str], values: Mapping[str, Any], n: int) -> Any:
    """An expression at n calls, with coordinates of 0 and 1 where it has some; None where it has no value."""
    coordinates = [x for x in names if x not in values and x not in CONSTANTS]
    places = np.array([[0, 1]], np.int64)
    try:
        with np.errstate(all="ignore"):
            got = eval(
                code, {"__builtins__": {}, **FUNCTIONS}, {**CONSTANTS, **values, **dict.fromkeys(coordinates, places)}
            )
    except (ZeroDivisionError, ValueError, TypeError):
        return None
    return np.broadcast_to(np.asarray(got, np.int64), (n, 2 if coordinates else 1))


def _extreme(function: Any) -> Any:
    return lambda *args: functools.reduce(function, args)


CONSTANTS = {"sm_count": 4}  # of the simulator's device
FUNCTIONS: dict[str, Any] = {"min": _extreme(np.minimum), "max": _extreme(np.maximum), "abs": np.abs}


@dataclass(frozen=True)
class Turns:
    """How often a loop goes round: an expression of symbols, coordinates and outer loops' counters."""

    names: frozenset[str]
    code: Any = field(repr=False, compare=False)
    least: int = 2  # turns that are wanted
    blocks: tuple[tuple[frozenset[str], Any], ...] = ()  # names, code: how many values coordinates that decide it have

    @property
    def all_names(self) -> frozenset[str]:
        """The names whose values must be known."""
        return self.names.union(*(names for names, _ in self.blocks))

    def repeats(self, values: Mapping[str, int]) -> bool:
        """Whether it goes round twice, for coordinates of 0 or of 1."""
        given = {n: np.array([[v]], np.int64) for n, v in values.items() if isinstance(v, int | np.integer)}
        return bool(self.all_repeats(given, 1))

    def all_repeats(self, values: Mapping[str, Any], n: int) -> list[int]:
        """Of n calls, those in which it does; ``values`` are columns."""
        got = _all_values(self.code, self.names, values, n)
        if got is None:
            return []
        found = got >= self.least
        for names, code in self.blocks:  # of the second block where there is one
            extent = _all_values(code, names, values, n)
            if extent is not None and got.shape[1] > 1:
                found = found & ((extent > 1) | np.array([[True, False]]))
        return np.flatnonzero(found.any(1)).tolist()


def turns_of(body: list[Any], extents: Mapping[str, Any] | None = None) -> tuple[Turns, ...]:
    """The turns of loops, if sizes and not data decide them; and of loops within loops, both of which go round again.

    In a loop that goes round a ring with a phase, a stage is used three times, so that its phase has both parities
    and the first one again. What is wrong in a loop's later turns may show only in a later turn of the loop around it:
    the second tile of a block begins with the stages and phases that the first one left.

    ``extents``: how many blocks there are, by coordinate.
    """
    read = {s["var"] for s in statements(body) if s["stmt"] == "index"}
    set_once = set_once_of(body)
    counts = {n: plain(str(x)) for n, x in (extents or {}).items()}
    blocks = {n: (names_of(x), code_of(x)) for n, x in counts.items()}
    out: dict[tuple[str, int], Turns] = {}

    def add(text: str, least: int) -> None:
        names = names_of(text)
        if (text, least) not in out and not names & read:
            out[text, least] = Turns(
                names, code_of(text), least, tuple(blocks[n] for n in sorted(names & blocks.keys()))
            )

    def see(block: Iterable[Any], around: list[str]) -> None:
        for s in block:
            inside = around
            if s["stmt"] == "for" and not all(isinstance(s[x], int) for x in ("start", "stop")):
                text = plain(_spelled_out(f"-(-(({s['stop']}) - ({s['start']})) // ({s['step']}))", set_once))
                wanted = {2, *(2 * n + 1 for n in _rings(s["body"]))}
                for least in sorted(wanted):
                    add(text, least)
                for outer in around:
                    add(f"(({outer}) >= 2) * (({text}) >= {max(wanted)})", 1)
                inside = [*around, text]
            for inner in s.values():
                if isinstance(inner, list) and inner and isinstance(inner[0], dict) and "stmt" in inner[0]:
                    see(inner, inside)

    see(body, [])
    return tuple(out.values())


def set_once_of(body: list[Any]) -> dict[str, str]:
    """The values of scalars that are never assigned to, by name."""
    every = statements(body)
    assigned = {s["var"] for s in every if s["stmt"] == "assign"}
    return {s["var"]: str(s["value"]) for s in every if s["stmt"] == "scalar" and s["var"] not in assigned}


def _spelled_out(text: str, values: Mapping[str, str]) -> str:
    """The expression with the values of scalars in place of their names, unless it becomes long."""
    for _ in range(_SCALARS_DEEP):
        longer = _NAME.sub(lambda m: f"({values[m[0]]})" if m[0] in values else m[0], text)
        if longer == text or len(longer) > _SPELLED_OUT:
            break
        text = longer
    return text


def _rings(body: list[Any]) -> Iterator[int]:
    """The stages of rings with a phase that each turn of a loop goes on in, not counting loops inside of it."""
    for s in body:
        if s["stmt"] == "assign" and (found := _PHASE.fullmatch(str(s["value"]))) and found[1] == s["var"]:
            yield int(found[2])
        for inner in s.values() if s["stmt"] != "for" else ():
            if isinstance(inner, list) and inner and isinstance(inner[0], dict) and "stmt" in inner[0]:
                yield from _rings(inner)


def blocks_of(data: Mapping[str, Any], residues: Iterable[tuple[Any, int]]) -> tuple[Turns, ...]:
    """The numbers of blocks along each dimension of a grid, as turns, so that a second block is covered.

    ``residues``: what ``residues_of_blocks`` finds.
    """
    shapes = [level["shape"] for level in (data.get("grid") or {"levels": ()})["levels"]]
    wanted = {(x, 2) for shape in shapes for x in _modes(shape)} | set(residues)
    wanted |= {(x, 2) for x in extents_of(data).values() if isinstance(x, str)}  # of clusters, too
    out = {}
    for extent, least in sorted(w for w in wanted if isinstance(w[0], str)):
        if names := names_of(extent):
            text = plain(extent)
            out[text, least] = Turns(names, code_of(text), least)
    return tuple(out.values())


def extents_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """How many values each coordinate of a block has, by its name in expressions of Python; in clusters, that of its
    cluster and its own in it.
    """
    grid = data.get("grid") or {"id": None, "levels": ()}
    extents = [x for level in grid["levels"] for x in _modes(level["shape"])]
    found: dict[str, Any] = {}
    for s in statements(data.get("body", ())):
        if s["stmt"] != "indices":
            continue
        every = [v for level in s["vars"] for v in level]
        if s["of"] == grid.get("id"):
            found |= {plain(f"@{v['name']}"): x for v, x in zip(every, extents, strict=False)}
            continue
        for v in every:
            if (part := _PART_OF_BLOCKS.fullmatch(str(v.get("value")))) and "xyz".index(part[1]) < len(extents):
                found[plain(f"@{v['name']}")] = _extent_of_part(extents["xyz".index(part[1])], part)
    return found


def _extent_of_part(extent: Any, part: re.Match[str]) -> Any:
    """How many values bid // n, bid % n or bid // n % m has, of as many blocks."""
    if part[3]:
        return int(part[3])
    if not part[2]:
        return extent
    n = int(part[2])
    return -(-extent // n) if isinstance(extent, int) else f"({extent} + {n - 1})//{n}"


def threads_of(data: Mapping[str, Any]) -> int:
    """How many threads a block has; symbols count as one."""
    levels = (data.get("block") or {"levels": ()})["levels"]
    return math.prod(x for level in levels for x in _modes(level["shape"]) if isinstance(x, int))


def residues_of_blocks(data: Mapping[str, Any], trees: Trees, every: Iterable[str]) -> Iterator[tuple[Any, int]]:
    """Extents of the grid whose coordinate alone is divided by a few, or compared with it: that number of blocks,
    or two more, are wanted along it.

    ``every``: the expressions of the text.
    """
    extents = extents_of(data)
    texts = sorted({t for t in every if "@" in t and any(c in t for c in ("%", "min(", "max(", "<", ">", "=="))})
    for node in trees.parts(filter(None, map(trees.tree, texts))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            pairs, more = [(node.left, node.right)], 0
        else:
            pairs, more = [(x, c) for x, c in _compared(node) if isinstance(x, ast.Name)], 2
        for x, c in pairs:
            names, by = trees.names(x), c.value if isinstance(c, ast.Constant) and isinstance(c.value, int) else 0
            if len(names) == 1 and names <= extents.keys() and 2 < by + more * (by > 0) <= _FEW_BLOCKS:
                yield extents[min(names)], by + more


def _compared(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Both orders of two expressions that a comparison, a minimum or a maximum compares."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from itertools.permutations((node.left, node.comparators[0]))
    elif isinstance(node, ast.Call):
        yield from itertools.permutations(node.args, 2)


def counted_by_lanes(data: Mapping[str, Any], trees: Trees, every: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Symbols that threads of a group count: each compares its own number, or more, with the symbol. And symbols that
    are compared with a number that is not much larger.

    With every symbol comes the number of threads of the group, or the other number. Where there are more to count than
    that, a kernel does something else. If a block's coordinate is added, there are more blocks instead.
    """
    symbols, of_blocks = {x["name"] for x in data.get("symbols", ())}, extents_of(data).keys()
    lanes = lanes_of(data)
    texts = sorted({t for t in every if any(c in t for c in ("min(", "max(", "<", ">", "=="))})
    for node in trees.parts(filter(None, map(trees.tree, texts))):
        for x, c in _compared(node):
            if not isinstance(c, ast.Name) or c.id not in symbols:
                continue
            names, mine = trees.names(x), []
            if isinstance(x, ast.Constant) and isinstance(x.value, int):
                mine = [x.value]
            elif isinstance(node, ast.Compare) and not names & of_blocks:
                mine = [lanes[n] for n in names & lanes.keys()]
            yield from ((c.id, n) for n in mine if 1 < n <= _FEW_LANES)


def lanes_of(data: Mapping[str, Any]) -> dict[str, int]:
    """How many values each coordinate of threads has, by its name in expressions of Python."""
    every = statements(data.get("body", ()))
    levels = {s["id"]: s["levels"] for s in every if s["stmt"] == "threads"}
    block = data.get("block") or {"id": None, "levels": ()}
    levels[block["id"]] = block["levels"]
    found: dict[str, int] = {}
    for s in every:
        if s["stmt"] == "indices" and s["of"] in levels:
            extents = [x for level in levels[s["of"]] for x in _modes(level["shape"])]
            names = [v["name"] for level in s["vars"] for v in level]
            found |= {plain(f"@{n}"): x for n, x in zip(names, extents, strict=False) if isinstance(x, int)}
    return found


_NO_EXPRESSIONS = frozenset(("name", "stmt", "atom", "means", "loc", "kind"))


def strings(x: Any) -> dict[str, None]:
    """The expressions within a part of the kernel's JSON, each once, in order."""
    out: dict[str, None] = {}

    def see(x: Any) -> None:
        if type(x) is str:
            out[x] = None
        elif type(x) is dict:
            for key, y in x.items():
                if type(y) is not int and key not in _NO_EXPRESSIONS:
                    see(y)
        elif type(x) is list:
            for y in x:
                see(y)

    see(x)
    return out


_LAST: list[Any] = [None, []]  # the block whose statements were asked for last, and these


def statements(block: Iterable[Any]) -> list[dict[str, Any]]:
    """All statements of a block of the JSON, outer ones first."""
    last, found = _LAST
    if block is last and last is not None:
        return list(found)
    out: list[dict[str, Any]] = []

    def see(block: Iterable[Any]) -> None:
        for s in block:
            out.append(s)
            for inner in s.values():
                if type(inner) is list and inner and type(inner[0]) is dict and "stmt" in inner[0]:
                    see(inner)

    see(block)
    _LAST[:] = block, out
    return list(out)


def _modes(shape: Any) -> list[Any]:
    return shape if isinstance(shape, list) else [shape]


def extents_by_id(signature: Signature, body: list[Any]) -> dict[int, list[Any]]:
    """For each tensor of a kernel, by its id: the extents of its outermost level."""
    tensors = [a for a in signature.data["args"] if "type" in a]
    tensors += [s for s in statements(body) if "id" in s and "type" in s]
    return {t["id"]: _modes(t["type"]["levels"][0]["shape"]) if t["type"]["levels"] else [] for t in tensors}


def lengths_of_parts(signature: Signature, body: list[Any]) -> dict[str, set[str]]:
    """For each integer read from data, and each symbol, the symbols in the extents of tensors that it cuts windows
    from.

    A divisor of a part's length (a packed sequence's by a tile, that of longer lines) is also a number of the whole's
    length. Integers that are read from data also count for the tensors that they index.
    """
    shapes = extents_by_id(signature, body)
    read = {s["var"] for s in statements(body) if s["stmt"] == "index"}
    found: dict[str, set[str]] = {n: set() for n in read.union(signature.symbols)}
    for s in statements(body):
        if s["stmt"] != "view":
            continue
        extents = shapes.get(s["of"], [])
        cut = s.get("window")
        used = [(0, f"{cut['start']} + {cut['size']}")] if cut else list(enumerate(s.get("index", ())))
        for at, text in used:
            if not isinstance(text, str) or at >= len(extents) or not isinstance(extents[at], str):
                continue
            if not cut and not any(n in text for n in read):
                continue
            names = names_of(extents[at])
            symbols = names & set(signature.symbols)
            for n in names & read:
                symbols |= found[n]
            for n in names_of(text) & (found.keys() if cut else read):
                found[n] |= symbols
    return found


@dataclass(frozen=True)
class Numbers:
    """The numbers that ``Numbers.of`` finds."""

    divisors: dict[str, set[int]]  # by symbol and integer parameter
    divided: tuple[Divided, ...]
    indices: tuple[Facts, ...]  # of integers that are read from data
    turns: tuple[Turns, ...] = ()
    counts: dict[str, set[int]] = field(default_factory=dict)  # by symbol: what its values modulo that decide
    lanes: dict[str, set[int]] = field(default_factory=dict)  # by symbol: how many threads count it, or a number beside
    counting: frozenset[str] = frozenset()  # symbols of which more blocks are made than a number that is told apart

    def features(self, values: Mapping[str, int]) -> set[tuple[str, int, int, int, int]]:
        """The numbers of all dividends."""
        return {f for e in self.divided for f in e.features(values)}

    @staticmethod
    def of(signature: Signature) -> Numbers:
        """The numbers of a kernel's arguments, grid and statements."""
        known = {*signature.symbols, *(p.name for p in signature.scalars)}
        body, trees = signature.data["body"], signature.trees
        of_parts = lengths_of_parts(signature, body)
        divisors: dict[str, set[int]] = {}
        divided: dict[tuple[str, int], Divided] = {}

        def add(node: ast.expr, by: int) -> None:
            if not _LEAST <= by <= _MOST:
                return
            names = trees.names(node) - {"min", "max"}
            mine = names & known
            for n in mine.union(*(of_parts[i] for i in names & of_parts.keys())):
                divisors.setdefault(n, set()).add(by)
            if not mine or trees.length(node) >= _LONGEST:
                return
            text = trees.text(node)
            if len(text) < _LONGEST and (text, by) not in divided:
                divided[text, by] = Divided(text, by, names, code_of(text))

        beyond: dict[tuple[str, int], Turns] = {}

        def add_beyond(node: ast.expr, most: int) -> None:
            """Wants a count of tiles that is larger than what it is compared with."""
            names = trees.names(node) - {"min", "max"}
            if 1 < most <= _FEW_BLOCKS and names and names <= known and trees.length(node) < _LONGEST:
                text = trees.text(node)
                if "//" in text and (text, most) not in beyond:
                    beyond[text, most] = Turns(names, code_of(text), most + 1)

        def see(node: ast.AST) -> None:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                for c in trees.parts([node.right]):
                    if isinstance(c, ast.Constant) and isinstance(c.value, int):
                        add(node.left, c.value)
            elif isinstance(node, ast.Call):  # min and max: where they turn
                for c in node.args:
                    if isinstance(c, ast.Constant) and isinstance(c.value, int):
                        for other in node.args:
                            if other is not c:
                                add(other, c.value)
                                add_beyond(other, c.value)
            elif isinstance(node, ast.Compare) and len(node.ops) == 1:
                for x, c in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                    if isinstance(c, ast.Constant) and isinstance(c.value, int):
                        add(x, c.value)

        every = strings([signature.data["args"], signature.data.get("grid"), body])
        texts = {t for t in every if any(c in t for c in ("//", "%", "min(", "max(", "<", ">", "=="))}
        for node in trees.parts(filter(None, map(trees.tree, sorted(texts)))):
            see(node)
        counts: dict[str, set[int]] = {}
        residues = set(residues_of_blocks(signature.data, trees, every))
        for extent, by in residues:
            if extent in known:
                counts.setdefault(extent, set()).add(by)
        counting = frozenset().union(*(names_of(str(extent)) for extent, _ in residues))
        of_lanes = set(counted_by_lanes(signature.data, trees, every))
        residues |= {(n, by + 1) for n, by in of_lanes}
        indices = []
        for s in statements(body):
            if s["stmt"] == "for" and isinstance(s["step"], int):
                stop = trees.tree(str(s["stop"]))
                if stop is not None:
                    add(stop, s["step"])
            if s["stmt"] == "index":
                indices.append(Facts(s.get("min", 0), s.get("max", 2**63 - 1), s.get("multiple_of", 1)))
        return Numbers(
            divisors,
            tuple(divided.values()),
            tuple(indices),
            turns_of(body, extents_of(signature.data)) + blocks_of(signature.data, residues) + tuple(beyond.values()),
            counts,
            {n: {by for m, by in of_lanes if m == n} for n, _ in of_lanes},
            counting,
        )

    def candidates(self, name: str, facts: Facts, given: Iterable[float] | None, size: bool) -> list[int]:
        """Values of a symbol, or of an integer parameter, that its numbers ask for; a few if it has no numbers."""
        m = facts.multiple_of
        found = sorted(self.divisors.get(name, ()))
        most = _LARGEST_COUNT
        if given is not None:
            return [int(x) for x in given]
        if not found:
            wanted = list(_FEW) if size else [0, 1, -1, 3]
            wanted += [n + 1 for n in sorted(self.counts.get(name, ()))]
        else:
            s, t = found[0], found[-1]
            wanted = [m, s - m, s + m, t - m, t, t + m, 2 * t, 2 * t + s - m, 2 * t + s + m, 3 * t + m, 5 * t - m]
            if not size:
                wanted += [0, -1, 1, -s, s, 1 - t]
            most = max(_LARGEST, 2 * t + s + m)
        out: list[int] = []
        for x in wanted:
            y = -(-(max(x, 1) if size else x) // m) * m
            y = max(y, -(-facts.least // m) * m)
            if y <= min(facts.most, most) and y not in out:
                out.append(y)
        return out or [max(m if size else 0, -(-facts.least // m) * m)]

    def usual(self, name: str, facts: Facts, candidates: list[int]) -> int:
        """Two tiles and a ragged part, if the facts allow it."""
        small = [n for n in self.divisors.get(name, ()) if n <= 64] or sorted(self.divisors.get(name, ()))[:1]
        if not small:
            return candidates[min(2, len(candidates) - 1)]
        n, m = max(small), facts.multiple_of
        x = -(-(2 * n + max(n // 4, 1) + 1) // m) * m
        return x if facts.allow(x) else candidates[-1]


def sizes_of(signature: Signature) -> list[str]:
    """The symbols that some argument's extents mention: others are strides, which follow."""
    mentioned: set[str] = set()
    for a in signature.arguments:
        if isinstance(a, Argument):
            for s in a.sizes:
                if isinstance(s, str):
                    mentioned |= names_of(s)
    return [n for n in signature.symbols if n in mentioned]
