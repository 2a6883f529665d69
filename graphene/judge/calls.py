"""Calls of a kernel that show its mistakes: sizes, data and scalars from its text, within a budget."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphene import _core
from graphene.judge.conditions import Conditions
from graphene.judge.covering import Covering, DataCovering
from graphene.judge.data import KINDS, Laid, draw, draw_integers, laid_as, lay, strides_of
from graphene.judge.formats import as_scalar, decode, format_of, is_float, is_packed, range_of
from graphene.judge.memory import room
from graphene.judge.numbers import Numbers, sizes_of, statements, threads_of
from graphene.judge.rare import FAR, Rare
from graphene.judge.read_indices import Allowed, of_tensors
from graphene.judge.signature import Argument, Facts, Parameter, Signature
from graphene.judge.turning import turning
from graphene.judge.verdict import as_double, axis_of_bytes
from graphene.judge.work import Work
from graphene.promise import Arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from graphene.recorded import Recorded

__all__ = ["Call", "CallPlan", "Drawn", "Made", "element_strides", "of_arguments"]

# One half, which shows exactness; one; zero; a negative number; a small number that is not a power of two; and numbers
# that take rare paths.
_SCALARS = (0.5, 1.0, 0.0, -1.25, 0.03, 2.0**16, 2.0**-20)
_USUAL = "normal"  # the data of tensors beside the one that has data of a call's kind
_FARTHEST = 256  # sizes become longer than integer parameters up to this one
_HIDING = ("infinite", "undefined")  # kinds that make every result so where all tensors have them
_LIVELY = ("rising", "large", "falling", "positive")  # kinds that show edges, too
_LEAST_SCALAR = 0.05  # of such calls
_FAR_KINDS, _ALONE = ("cold", "pit", "peak"), 3  # what tensors of a kernel have alone, and how many of them
_OTHERS = 3  # values of a size that keep a launch's conditions beside some values of others alone
_SHIFTS, _ARITHMETIC = {"shl", "shr"}, {"add", "sub", "mul", "fma"}
_WIDE = 1e30  # types that reach beyond have fp32's exponents
_RESULTS, _A_DOUBLING = 12, 10  # doublings of the number of results that count, each as this many statements
_MOST_BYTES = 1 << 26  # the most bytes of a call's arguments
_BYTES_AN_ELEMENT = 40  # for the kernel's argument, the meaning's, the former value, and drawing it


@dataclass(frozen=True)
class Call:
    """The description of a call: sizes and integer parameters, kind of data, scalars, wider lines or not, and seeds.

    ``seed`` is the seed of drawn data, and ``tables`` the seed of the data that ``gr.Arguments.prepare`` makes. Calls
    of equal sizes and tables take the same way through a kernel, whatever their data are. ``times``: how many calls
    had data of this kind before.
    """

    sizes: dict[str, int]
    kind: str
    scalars: dict[str, float]
    wider: bool
    seed: int
    tables: int
    times: int = 0

    def __str__(self) -> str:
        said = [f"{n}={v}" for n, v in self.sizes.items()]
        said += [f"{n}={v:.9g}" for n, v in self.scalars.items()]
        return ", ".join([*said, f"{self.kind} data"])


class Drawn(dict[str, Any]):
    """Drawn arguments by name, for ``gr.Arguments.prepare``."""

    def __init__(self, kind: str, sizes: dict[str, int], draw_more: Callable[[tuple[int, ...]], Any]) -> None:
        super().__init__()
        self.kind, self.sizes, self.draw = kind, sizes, draw_more


@dataclass
class Made:
    """A call's arguments in memory, and in the form for a meaning (before the kernel runs)."""

    laid: dict[str, Any]
    numbers: dict[str, Any]
    values: dict[str, Any]
    before: dict[str, Any] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """The kernel's arguments by name."""
        out = {n: [x.given for x in t] if isinstance(t, list) else t.given for n, t in self.laid.items()}
        return out | self.numbers

    def copy(self) -> Made:
        """The same arguments in memory of their own."""
        laid = {n: [x.copy() for x in t] if isinstance(t, list) else t.copy() for n, t in self.laid.items()}
        return Made(laid, self.numbers, self.values, self.before)

    def results(self) -> dict[str, Any]:
        """The present values of outputs as float64 and int64."""
        tensors = ((n, self.laid.get(n)) for n in self.before)
        return {n: decode(t.view, t.dtype) for n, t in tensors if isinstance(t, Laid)}


class CallPlan:
    """Chooses calls of a kernel and makes their arguments.

    ``fixed``: values of symbols, integer parameters and scalars in all calls. ``conditions``: what a launch asks of
    them, as ``_core.launch_conditions`` says it.
    """

    def __init__(
        self,
        kernel: Recorded,
        seed: int = 0,
        fixed: Mapping[str, Any] | None = None,
        numbers: Numbers | None = None,
        conditions: Iterable[str] = (),
    ) -> None:
        self.signature = Signature.of(kernel)
        self.numbers = numbers or Numbers.of(self.signature)
        promise = kernel.promise
        self.wish = promise.arguments if promise is not None else Arguments()
        self._narrow = promise is not None and promise.sums is not None  # sums that -62,000 makes infinite on the way
        self.fixed = dict(fixed or {})
        self._rng = np.random.default_rng([seed, *kernel.name.encode()])
        self._times: dict[str, int] = {}  # calls by their kind of data
        s = self.signature
        self._work = Work(s.data) if "body" in s.data else None  # a sequence of kernels has no text of its own
        sized = sizes_of(s)
        integers = [p.name for p in s.scalars if not is_float(p.dtype)]
        self.floats = [p.name for p in s.scalars if is_float(p.dtype)]
        self.names = [*(n for n in s.symbols if n in sized or n in self.fixed), *integers]
        self.counted = sized
        self._tiles = {n: max(self.numbers.divisors.get(n, ()), default=1) for n in sized}
        types = {p.name: p.dtype for p in s.scalars}
        self.facts = {n: s.symbols.get(n) or _facts_of(types[n]) for n in self.names}
        self._conditions = Conditions(conditions)
        self._multiples = self._conditions.multiples(s.symbols, self.fixed)
        self.domains: dict[str, list[Any]] = {}
        for n in self.names:
            given = [self.fixed[n]] if n in self.fixed else self.wish.values.get(n)
            found = self.numbers.candidates(n, self._usual_facts(n), given, n in s.symbols)
            if self._usual_facts(n) != self.facts[n]:  # some calls keep the conditions in another way
                others = self.numbers.candidates(n, self.facts[n], given, n in s.symbols)
                found += [x for x in others if x not in found][:_OTHERS]
            self.domains[n] = found
        self._usual = {n: v[-1 if len(v) > 3 else 0] for n, v in self.domains.items()}
        for n in sized:
            if n not in self.fixed and n not in self.wish.values:
                self._as_long_as_windows(n, integers)
            if n not in self.fixed:
                self._more_than_lanes(n)
        self.kinds = _kinds_of(self.wish, kernel.name)
        if "body" in s.data:
            self._read = of_tensors(s, s.data["body"])
        else:  # of a sequence of kernels, whose tensors have other names than theirs
            self._read = {a.name: Allowed(self.numbers.indices) for a in s.tensors if self.numbers.indices}
        operations = {str(x["attrs"].get("op")) for x in statements(s.data.get("body", ())) if x["stmt"] == "spec"}
        self._shifts, self._adds = bool(operations & _SHIFTS), "body" not in s.data or bool(operations & _ARITHMETIC)
        self._lively = [k for k in _LIVELY if k in self.kinds]
        self.scalars = {n: [self.fixed[n]] if n in self.fixed else list(self.wish.values.get(n, _SCALARS))
                        for n in self.floats}  # fmt: skip
        # The values are distinct, so that every call shows when one is taken for another.
        self.usual_scalars = {n: self.scalars[n][i % min(len(self.scalars[n]), 2)] for i, n in enumerate(self.floats)}

    def _as_long_as_windows(self, n: str, integers: Sequence[str]) -> None:
        """For a size that is divided together with integer parameters, a value beyond all of theirs."""
        together = {p for e in self.numbers.divided if n in e.names for p in integers if p in e.names}
        far = max((abs(int(v)) for p in together for v in self.domains[p]), default=0)
        tile, m = max(self.numbers.divisors.get(n, ()), default=1), self._usual_facts(n).multiple_of
        beyond = -(-(far + tile) // m) * m
        if tile < far <= _FARTHEST and beyond > max(self.domains[n]) and self.facts[n].allow(beyond):
            self.domains[n].append(beyond)

    def _more_than_lanes(self, n: str) -> None:
        """For a size that threads count, or that is compared with a number, values of one more than these, unless there
        are larger ones. A kernel with such a size does something else.
        """
        values = self.domains[n]
        for more in sorted({by + 1 for by in self.numbers.lanes.get(n, ()) if by >= max(values)}):
            if self.facts[n].allow(more):
                values.append(more)

    def _usual_facts(self, n: str) -> Facts:
        """A symbol's facts, and of what its values are multiples where a launch's conditions ask for it."""
        facts = self.facts[n]
        return replace(facts, multiple_of=self._multiples.get(n, facts.multiple_of))

    def cost(self, d: Mapping[str, Any]) -> float:
        """The cost of a call, up to a factor of the kernel, in which whole tiles count."""
        return float(math.prod(-(-max(int(d[n]), 1) // t) * t for n, t in self._tiles.items() if n in d))

    def usual(self) -> Call:
        """The first call: two tiles and a ragged part, normal data."""
        d: dict[str, Any] = {}
        for n in self.names:
            values = self.domains[n]
            if n in self.signature.symbols and n not in self.fixed and n not in self.wish.values:
                d[n] = self.numbers.usual(n, self._usual_facts(n), values)
            else:
                d[n] = self._usual[n]
        if not self._fits(d):
            d = {n: v[0] for n, v in self.domains.items()}
            self._fits(d)
        return self._call(d, self.kinds[0], self.usual_scalars, 0)

    def _fits(self, d: dict[str, Any]) -> bool:
        if self.wish.sizes is not None:
            self.wish.sizes(d)
        if any(not self.facts[n].allow(d[n]) for n in self.names if n not in self.fixed):
            return False
        for n, v in self.fixed.items():
            if n in d and d[n] != v:
                return False
        if not self._conditions.hold(self._with_strides(d)):
            return False
        return self.cost(d) < 1e6 or 4 * self._elements(d) <= _MOST_BYTES

    def _with_strides(self, d: dict[str, Any]) -> dict[str, Any]:
        """A call's values, and its strides where conditions name them."""
        if self._conditions.names <= d.keys():
            return d
        return strides_of(self.signature, d, False, self._multiples)

    def large(self, call: Call) -> bool:
        """Whether the arguments of a call take more memory than calls may."""
        return 4 * self._elements(call.sizes) > _MOST_BYTES

    def _elements(self, d: Mapping[str, Any]) -> int:
        try:
            return self.signature.elements(d)
        except NameError:
            return 0

    def _call(self, d: Mapping[str, Any], kind: str, scalars: dict[str, float], number: int) -> Call:
        return Call(self.sizes_of(d), kind, scalars, number % 2 == 1, number, number)

    def work(self, d: Mapping[str, Any]) -> float:
        """The cost of a call, up to a factor of the kernel, by the text, or by sizes if data decide, too.

        A sequence of kernels goes by sizes.
        """
        return self._work(d) if self._work is not None and self._work.known else self.cost(d)

    @property
    def threads(self) -> float:
        """About how many lane operations a statement is, in a call of known work: the threads of a block."""
        if self._work is None or not self._work.known:
            return 0.0
        return float(threads_of(self.signature.data))

    def covering(self) -> Covering:
        """The covering of sizes."""
        may = {n for n in self.counted if n not in self.wish.values or n in self.numbers.counting} - self.fixed.keys()
        steps = {n: self._usual_facts(n).multiple_of for n in self.counted if n in may and self.numbers.divisors.get(n)}
        deciding = turning(self.signature.data, set(self.names), self.signature.trees)
        return Covering(self.domains, self.numbers.divided, steps, self.work, self._fits, self._rng,
                        self.numbers.turns, deciding)  # fmt: skip

    def data_covering(self, bases: Sequence[tuple[Call, Iterable[Hashable], float]]) -> DataCovering:
        """The covering of data and scalars, at sizes of calls that have run: what each reached, and its cost."""
        domains: dict[str, list[Any]] = {"": self.kinds, **self.scalars}
        reached = [({*what, *c.sizes.items(), *self.numbers.features(c.sizes), *self._results(c)}, cost)
                   for c, what, cost in bases]  # fmt: skip
        # 0 * infinity is NaN, so a kernel must not multiply values that a factor of 0 leaves out.
        telling = [(("", "infinite"), (n, 0.0)) for n in self.floats]
        covering = DataCovering(domains, reached, self._rng, telling)
        for number, (call, _, _) in enumerate(bases):
            covering.count(number, {"": call.kind, **call.scalars})
        return covering

    def rare(self, bases: Iterable[frozenset[int]]) -> Rare:
        """What repeats calls that reached what none of the bases did."""
        farthest = {n: max(values) for n, values in self.scalars.items() if max(values, default=0) >= FAR}
        return Rare(frozenset().union(*bases), self.kinds, farthest)

    def _results(self, call: Call) -> Iterable[Hashable]:
        """A thing to reach for each doubling of the number of results, since more results show more."""
        s = self.signature
        sizes = strides_of(s, dict(call.sizes), call.wider, self._multiples)
        most = max((math.prod(s.shape(a, sizes)) for a in s.outputs), default=0)
        return [("results", i, j) for i in range(min(most.bit_length(), _RESULTS)) for j in range(_A_DOUBLING)]

    @property
    def decided(self) -> bool:
        """Whether sizes alone, and no integers that are read from data, decide which way a call takes."""
        return not self.numbers.indices

    def sizes_of(self, d: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of a call that a covering chose."""
        return {n: int(d[n]) for n in self.names}

    def call(self, d: Mapping[str, Any], number: int) -> Call:
        """The call of sizes that a covering chose. Every second one has other data and scalars than the first call."""
        if number % 2 == 0 or not self._lively:
            return self._call(d, self.kinds[0], self.usual_scalars, number)
        scalars = {}
        for i, n in enumerate(self.floats):
            near = [v for v in self.scalars[n] if _LEAST_SCALAR <= abs(v) < FAR] or [self.usual_scalars[n]]
            scalars[n] = near[(number // 2 + i) % len(near)]
        return self._call(d, self._lively[number // 2 % len(self._lively)], scalars, number)

    def with_data(self, call: Call, d: Mapping[str, Any], number: int) -> Call:
        """A call at the same sizes, with the data that a covering chose."""
        scalars, times = {n: float(d[n]) for n in self.floats}, self._times.get(d[""], 0)
        self._times[d[""]] = times + 1
        return Call(call.sizes, d[""], scalars, number % 2 == 1, number, call.tables, times)

    def alone(self) -> str | None:
        """The kind of data far from zero that fewest calls had, unless each tensor had all of them alone."""
        inputs = sum(is_float(a.dtype) and a.role != "output" for a in self.signature.tensors)
        turns = 2 * min(inputs, _ALONE) if inputs > 1 else 0
        far = [k for k in _FAR_KINDS if k in self.kinds and not (self._narrow and k == "cold")]
        kind = min((k for k in far if self._times.get(k, 0) < turns), key=lambda k: self._times.get(k, 0), default=None)
        if kind is not None:
            self._times[kind] = self._times.get(kind, 0) | 1  # in one tensor alone
        return kind

    def smaller(self, call: Call) -> list[Call]:
        """Calls that differ in one size, which is smaller."""
        out = []
        for n in self.counted:
            if n in self.fixed:
                continue
            for v in sorted(x for x in self.domains.get(n, ()) if x < call.sizes.get(n, 0)):
                d: dict[str, Any] = {**call.sizes, n: v}
                if self._fits(d) and self.cost(d) < self.cost(call.sizes):
                    out.append(replace(call, sizes={m: int(d[m]) for m in self.names}))
        return sorted(out, key=lambda c: self.cost(c.sizes))

    def make(self, call: Call) -> Made:
        """The arguments of a call; the same every time."""
        s = self.signature
        room(_BYTES_AN_ELEMENT * self._elements(call.sizes), "a call's arguments need")
        rng = np.random.default_rng(call.seed)
        sizes = strides_of(s, dict(call.sizes), call.wider, self._multiples)
        drawn = Drawn(call.kind, dict(call.sizes), lambda shape: draw(call.kind, tuple(shape), rng))
        kinds, turned = self._kinds_of(call)
        laid: dict[str, Any] = {}
        for a in s.arguments:
            if isinstance(a, Parameter):
                drawn[a.name] = as_scalar((call.scalars if is_float(a.dtype) else call.sizes)[a.name], a.dtype)
                continue
            laid[a.name] = lay(s, a, sizes, call.wider)
            may = self._read.get(a.name)
            # A narrow element of which more is computed is often several indices: any bits of it then mean something.
            told = may is not None and (may.copied or _core.dtype(a.dtype).bits >= 32)
            allowed = may.range(sizes) if may is not None and told else None
            for t in _all(laid[a.name]):
                self._fill(a, t, kinds.get(a.name, _USUAL), rng, turned, allowed)
        if self.wish.prepare is not None:
            for a in s.tensors:
                one = [decode(t.view, a.dtype) for t in _all(laid[a.name])]
                drawn[a.name] = one if a.count is not None else one[0]
            self.wish.prepare(drawn, np.random.default_rng([call.tables, 1]))
            for a in s.tensors:
                for t, x in zip(_all(laid[a.name]), _all(drawn[a.name]), strict=True):
                    t.put(x)
        values: dict[str, Any] = {}
        for a in s.arguments:
            if isinstance(a, Argument):
                read = [decode(t.view, a.dtype) for t in _all(laid[a.name])]
                values[a.name] = read if a.count is not None else read[0]
            else:
                values[a.name] = as_scalar(drawn[a.name], a.dtype)
        numbers = {p.name: values[p.name] for p in s.scalars}
        before = {a.name: laid[a.name].memory.copy() for a in s.outputs}
        return Made(laid, numbers, values, before)

    def _kinds_of(self, call: Call) -> tuple[dict[str, str], int | None]:
        """The kind of each tensor's data; and, if it lies along another dimension than the last, which one of the
        others, counted from the longest.

        In every second call of a kind one tensor alone has data of it. Infinities in each of them make every result
        infinite or NaN, and show nothing more, so that each has them in turn; beside usual data they show which results
        they reach. In every third
        call data lie along another dimension, over which a kernel may reduce: the longest one, and then others in turn.
        """
        names = [a.name for a in self.signature.tensors]
        floats = [a.name for a in self.signature.tensors if is_float(a.dtype) and a.role != "output"]
        if len(floats) > 1 and call.kind in _HIDING:  # each in turn: the first one, then from the last one, then all
            alone = [floats[0], *reversed(floats[1:]), None][call.times % (len(floats) + 1)]
            names = [n for n in names if n not in floats or alone is None or n == alone]
        elif len(floats) > 1 and call.times % 2 == 1 and call.kind != "whole":  # whole numbers are exact together
            turn = call.times // 2  # first, what is first; then others, of each kind beginning with another one
            alone = floats[1 + (turn + self.kinds.index(call.kind)) % (len(floats) - 1) if turn else 0]
            names = [n for n in names if n not in floats] + [alone]
        return dict.fromkeys(names, call.kind), call.times // 3 if call.times % 3 == 2 else None

    def _fill(
        self, a: Argument, t: Laid, kind: str, rng: Any, turned: int | None, allowed: tuple[int, int, int] | None
    ) -> None:
        shape = t.view.shape
        if is_float(a.dtype) and a.role != "output":
            others = sorted(range(len(shape) - 1), key=lambda i: -shape[i])
            wide = format_of(a.dtype).most > _WIDE
            if turned is None or not others:
                t.put(draw(kind, shape, rng, wide))
            else:
                at = others[turned % len(others)]
                t.put(np.moveaxis(draw(kind, (*shape[:at], *shape[at + 1 :], shape[at]), rng, wide), -1, at))
        elif is_float(a.dtype):
            t.put(np.full(shape, math.nan))
        elif a.role != "output" and a.name in self.wish.values:
            t.put(rng.choice(np.asarray(self.wish.values[a.name], np.int64), shape))
        elif a.role != "output":
            t.put(draw_integers(a.dtype, shape, rng, kind, allowed, self._shifts, self._adds))


def _kinds_of(wish: Arguments, kernel: str) -> list[str]:
    """The kinds of data that a promise covers. Raises VerifyError KERNEL_ARGUMENT for one that there is not."""
    kinds = list(KINDS if wish.kinds is None else wish.kinds)
    if wrong := [k for k in kinds if k not in KINDS]:
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: no kind of data is called {wrong[0]!r}",
                   ["known: " + ", ".join(KINDS)], "pass some of them as gr.Arguments(kinds=...)")  # fmt: skip
    if not kinds:
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: its promise covers no kind of data",
                   ["known: " + ", ".join(KINDS)], "leave kinds= out for all of them")  # fmt: skip
    return kinds


def of_arguments(kernel: Recorded, program: Any, args: tuple[Any, ...]) -> tuple[Made, Call]:
    """A caller's arguments, in order, as a call: copies with the same strides. Outputs are first filled with NaN.

    Raises LaunchError for arguments that the kernel cannot take.
    """
    s = Signature.of(kernel)
    sizes = dict(_core.argument_sizes(program, args))
    laid: dict[str, Any] = {}
    values: dict[str, Any] = {}
    with contextlib.suppress(NameError):  # a size that only an integer of the call gives
        room(_BYTES_AN_ELEMENT * s.elements(sizes), "the call's arguments need")
    for a, x in zip(s.arguments, args, strict=True):
        if isinstance(a, Parameter):
            values[a.name] = as_scalar(x, a.dtype)
            if not is_float(a.dtype):
                sizes[a.name] = values[a.name]
            continue
        tensors = []
        for t in x if a.count is not None else [x]:
            y = as_double(t, a.dtype)
            mine = laid_as(a.dtype)(y.shape, element_strides(t, y, a.dtype), a, False)
            if a.role == "output":
                y = np.full(y.shape, math.nan if is_float(a.dtype) else 0)
            mine.put(y)
            tensors.append(mine)
        laid[a.name] = tensors if a.count is not None else tensors[0]
        read = [decode(t.view, a.dtype) for t in tensors]
        values[a.name] = read if a.count is not None else read[0]
    scalars = {p.name: values[p.name] for p in s.scalars}
    before = {a.name: laid[a.name].memory.copy() for a in s.outputs}
    floats = {p.name: values[p.name] for p in s.scalars if is_float(p.dtype)}
    return Made(laid, scalars, values, before), Call(sizes, "given", floats, False, 0, 0)


def element_strides(x: Any, like: Any, dtype: str = "") -> tuple[int, ...]:
    """The strides of a caller's array, in elements; those of `like` if it does not give them."""
    strides = _array_strides(x, like)
    if not is_packed(dtype):
        return strides
    line = axis_of_bytes(x)
    return tuple(s if i == line else 2 * s for i, s in enumerate(strides))


def _array_strides(x: Any, like: Any) -> tuple[int, ...]:
    if hasattr(x, "detach"):
        return tuple(x.stride())
    strides = getattr(x, "strides", None)
    item = getattr(x, "itemsize", 0)
    if strides is None or not item or any(s < 0 or s % item for s in strides):
        return tuple(s // like.itemsize for s in like.strides)
    return tuple(s // item for s in strides)


def _all(x: Any) -> list[Any]:
    return x if isinstance(x, list) else [x]


def _facts_of(dtype: str) -> Facts:
    if is_float(dtype):
        _core.fail("SIM_ARGUMENT", "a size that is not an integer", [])
    return Facts(*range_of(dtype), 1)
