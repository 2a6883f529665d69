"""Several kernels as one, with common sizes. They run in order on one set of arrays, each held to its promise.

Plans and verdicts use a ``Sequence`` like a kernel: it has arguments, symbols and numbers, of all texts together.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from graphene import _core, promise
from graphene.errors import LaunchError, SimulationError
from graphene.judge.calls import Call, CallPlan, Drawn, Made, element_strides
from graphene.judge.data import Laid, given_of, laid_as
from graphene.judge.formats import as_scalar, decode, is_float, range_of
from graphene.judge.memory import SMALL_BYTES, left
from graphene.judge.numbers import Divided, Numbers
from graphene.judge.runs import JudgedCall, Runner
from graphene.judge.signature import Argument, Facts, Parameter, Signature
from graphene.judge.verdict import as_double, expect, judge_outputs
from graphene.launch_views import viewed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphene.recorded import Launched

__all__ = ["Sequence", "SequencePlan", "SequenceRunner"]

_WORD = re.compile(r"(?<![\w@.])[A-Za-z_]\w*")
_NO_INDEX = 0x3FFF_FFF1  # stands in integers that no kernel has written; it is not a valid index
_ALIGN_BYTES = 256  # of workspaces, as allocators give them
Symbol = tuple[int, str]  # of a launch; -1: of the shapes that were given


def _refuse(what: str, *details: str) -> NoReturn:
    _core.fail("KERNEL_ARGUMENT", f"check_launches: {what}", list(details))
    raise AssertionError


def _viewed(dims: tuple[Any, ...], view: str) -> tuple[Any, ...]:
    """A tensor's dimensions from those of a view of it; None if they do not follow."""
    if view == "T":
        return (*dims[:-2], dims[-1], dims[-2])
    return (*dims[:-1], None) if view == "C" else dims


@dataclass(frozen=True)
class Use:
    """An argument of a launch: which tensor, by which view ("", "T", "C", or a function)."""

    launch: int
    argument: Argument
    tensor: str
    view: Any


@dataclass
class _Classes:
    """Which symbols of the kernels are one."""

    parent: dict[Symbol, Symbol] = field(default_factory=dict)

    def of(self, x: Symbol) -> Symbol:
        while (y := self.parent.setdefault(x, x)) != x:
            x = y
        return x

    def join(self, x: Symbol, y: Symbol) -> None:
        a, b = self.of(x), self.of(y)
        self.parent[max(a, b)] = min(a, b)  # the earliest gives its name


class Sequence:
    """Launches, and what they promise together."""

    def __init__(
        self,
        launches: list[Launched],
        means: Callable[..., Any] | None,
        shapes: Mapping[str, tuple[str | int, ...]] | None,
        workspaces: Callable[[dict[str, int]], Mapping[str, Any]] | None,
        arguments: Any,
    ) -> None:
        shapes = shapes or {}
        if not launches:
            _refuse("there is nothing to launch")
        self.launches, self.workspaces = launches, workspaces
        self.name = "the sequence of " + ", ".join(x.kernel.name for x in launches)
        self.signatures = [Signature.of(x.kernel) for x in launches]
        self.uses: list[Use] = []
        self.numbers_of: list[dict[str, str | float]] = []  # of each launch's scalars: a name, or the number
        for i, (launch, s) in enumerate(zip(launches, self.signatures, strict=True)):
            numbers: dict[str, str | float] = {}
            for a, x in zip(s.arguments, launch.arguments, strict=True):
                if isinstance(a, Parameter):
                    if not isinstance(x, (str, int, float)):
                        _refuse(f"{launch.kernel.name} takes a number as {a.name}", f"got: {x!r}")
                    numbers[a.name] = x
                    continue
                tensor, view = x if isinstance(x, tuple) else (str(x).partition(".")[::2])
                if (
                    a.count is not None
                    or not isinstance(x, (str, tuple))
                    or not (callable(view) or view in ("", "T", "C"))
                ):
                    _refuse(f"{launch.kernel.name} takes a tensor as {a.name}", f"got: {x!r}")
                self.uses.append(Use(i, a, tensor, view))
            self.numbers_of.append(numbers)
        self.free = set() if workspaces is None else set(workspaces(defaultdict(lambda: 1)))
        for n in shapes:
            if all(u.tensor != n for u in self.uses):
                _refuse(f"no kernel takes {n}, whose shape is given")
        self._join(shapes)
        self.__dict__["_signature"] = self._signature(shapes)
        self.promise = promise.Promise(means or promise._nothing, None, self._arguments(arguments))
        self.whole = means is not None

    def _join(self, shapes: Mapping[str, tuple[str | int, ...]]) -> None:
        """Brings symbols together that are sizes or strides of one tensor."""
        self.classes = _Classes()
        fixed: list[tuple[Symbol, int]] = []
        self.declared = {n for dims in shapes.values() for n in dims if isinstance(n, str)}
        known: dict[str, list[list[tuple[int, Any]]]] = {}
        for name, shape in shapes.items():
            known[name] = [[(-1, d)] for d in shape]
        strides: dict[str, list[list[tuple[int, Any]]]] = {}
        for u in self.uses:
            if callable(u.view) or u.tensor in self.free:
                continue
            for all_of, dims in ((known, u.argument.sizes), (strides, u.argument.strides)):
                seen = all_of.setdefault(u.tensor, [[] for _ in dims])
                if len(seen) != len(dims):
                    _refuse(f"{u.tensor} has other modes elsewhere", f"in: {self.launches[u.launch].kernel.name}",
                            f"want: {len(seen)}", f"got: {len(dims)}")  # fmt: skip
                cut = u.view if all_of is known or u.view == "T" else ""
                for one, d in zip(seen, _viewed(dims, cut), strict=True):
                    one.append((u.launch, d))
        for all_of in (known, strides):
            for every in all_of.values():
                for one in every:
                    first: dict[str, Symbol] = {}
                    for i, d in one:  # "M" and "K" are one size, "M*3" and "K*3", too
                        names = set(_WORD.findall(d)) if isinstance(d, str) else set()
                        if len(names) == 1:
                            (n,) = names
                            x = first.setdefault(_WORD.sub("_", d), (i, n))
                            self.classes.join(x, (i, n))
                    symbols = [(i, d) for i, d in one if isinstance(d, str) and d.isidentifier()]
                    for x in symbols if all_of is known else ():
                        fixed += [(x, d) for _, d in one if isinstance(d, int)]
        self.fixed = {self.classes.of(x): d for x, d in fixed}

    def symbol(self, launch: int, name: str) -> str:
        """The sequence's name for a kernel's symbol."""
        i, n = self.classes.of((launch, name))
        return n if i < 0 or (n not in self.declared and self._first.setdefault(n, i) == i) else f"{n}_{i + 1}"

    def _names(self, launch: int) -> dict[str, str]:
        """The sequence's names for a kernel's symbols and for those of its scalars that have one."""
        names = {n: self.symbol(launch, n) for n in self.signatures[launch].symbols}
        return names | {n: x for n, x in self.numbers_of[launch].items() if isinstance(x, str)}

    def _renamed(self, launch: int, expression: Any) -> Any:
        if not isinstance(expression, str):
            return expression
        mine = self.signatures[launch].symbols
        return _WORD.sub(lambda m: self.symbol(launch, m[0]) if m[0] in mine else m[0], expression)

    def _signature(self, shapes: Mapping[str, tuple[str | int, ...]]) -> Signature:
        self._first: dict[str, int] = {}
        facts: dict[str, Facts] = {n: Facts() for n in sorted(self.declared)}
        arguments: dict[str, Argument | Parameter] = {}
        for i, (launch, s) in enumerate(zip(self.launches, self.signatures, strict=True)):
            for a, x in zip(s.arguments, launch.arguments, strict=True):
                if isinstance(a, Parameter) and isinstance(x, str):
                    arguments.setdefault(x, Parameter(x, a.dtype))
            for u in (u for u in self.uses if u.launch == i and u.tensor not in self.free):
                known = arguments.get(u.tensor)
                if isinstance(known, Argument):
                    wide = max(known.align_bytes, u.argument.align_bytes)
                    role = "inout" if known.role == "input" != u.argument.role else known.role
                    arguments[u.tensor] = replace(known, align_bytes=wide, role=role)
                    continue
                sizes, strides = self._laid_out(u.tensor, shapes)
                arguments[u.tensor] = Argument(u.tensor, u.argument.role, u.argument.dtype, sizes, strides, None,
                                               u.argument.align_bytes)  # fmt: skip
            for n, f in s.symbols.items():
                c = self.symbol(i, n)
                g = facts.get(c, Facts())
                facts[c] = Facts(max(f.least, g.least), min(f.most, g.most), math.lcm(f.multiple_of, g.multiple_of))
                if (one := self.fixed.get(self.classes.of((i, n)))) is not None:
                    facts[c] = Facts(one, one)
        text = " ".join(str(d) for a in arguments.values() if isinstance(a, Argument) for d in (*a.sizes, *a.strides))
        used = set(_WORD.findall(text))
        types = {u.tensor: u.argument.dtype for u in self.uses}
        for s in self.signatures:  # what a meaning says is rounded is mostly inside of a kernel
            types |= {n: t for n, t in s.types.items() if all(n != a.name for a in s.tensors)}
        symbols = {n: f for n, f in facts.items() if n in used}
        return Signature(symbols, tuple(arguments.values()), types, {})

    def _laid_out(
        self, tensor: str, shapes: Mapping[str, tuple[str | int, ...]]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Sizes and strides of a tensor: the given ones, else those of the first kernel that takes it whole."""
        for u in self.uses:
            if u.tensor == tensor and u.view in ("", "T"):
                dims = (u.argument.sizes, u.argument.strides)
                sizes, strides = (tuple(self._renamed(u.launch, x) for x in _viewed(d, u.view)) for d in dims)
                return tuple(shapes.get(tensor, sizes)), strides
        if tensor not in shapes:
            _refuse(
                f"{tensor} needs a shape", "why: no kernel takes it whole", 'fix: shapes={"' + tensor + '": ("M", "N")}'
            )
        return tuple(shapes[tensor]), _row_major(tuple(shapes[tensor]))

    def numbers(self) -> Numbers:
        """The numbers of all texts, of the sequence's symbols and parameters."""
        divisors: dict[str, set[int]] = {}
        divided: dict[tuple[str, int], Divided] = {}
        indices: list[Facts] = []
        for i, s in enumerate(self.signatures):
            mine = Numbers.of(s)
            indices += mine.indices
            rename = self._names(i)
            for n, by in mine.divisors.items():
                divisors.setdefault(rename.get(n, n), set()).update(by)
            for d in mine.divided:
                text = _WORD.sub(lambda m, r=rename: r.get(m[0], m[0]), d.text)  # type: ignore[misc]
                names = frozenset(rename.get(n, n) for n in d.names)
                divided[text, d.by] = Divided(text, d.by, names, compile(text, "<expression>", "eval"))
        return Numbers(divisors, tuple(divided.values()), tuple(indices))

    # Sensible arguments are made by the kernels' own functions, or by the caller's.

    def _arguments(self, given: Any) -> promise.Arguments:
        if given is not None:
            return given if isinstance(given, promise.Arguments) else promise.Arguments(given)
        wishes = [p.arguments if (p := x.kernel.promise) is not None else promise.Arguments() for x in self.launches]
        values: dict[str, Any] = {}
        kinds: list[str] | None = None
        for i, wish in enumerate(wishes):
            for n, few in wish.values.items():
                name = self.symbol(i, n) if n in self.signatures[i].symbols else self.numbers_of[i].get(n)
                if isinstance(name, str):
                    both = [x for x in few if x in values.get(name, few)]
                    values[name] = both or values[name]
            if wish.kinds is not None:
                kinds = [k for k in kinds if k in wish.kinds] if kinds is not None else list(wish.kinds)

        def sizes(s: dict[str, int]) -> None:
            for i, wish in enumerate(wishes):
                if wish.sizes is None:
                    continue
                names = self._names(i)
                own = {n: s[c] for n, c in names.items() if c in s}
                with contextlib.suppress(KeyError):  # of a workspace, which the caller of the launches sizes
                    wish.sizes(own)
                s.update((names[n], v) for n, v in own.items() if n in names)

        def prepare(args: Any, rng: Any) -> None:
            for i, wish in enumerate(wishes):
                if wish.prepare is None:
                    continue
                own = Drawn(args.kind, args.sizes, args.draw)
                made = {u.tensor for u in self.uses if u.launch < i and u.argument.role != "input"}
                uses = [u for u in self.uses if u.launch == i and u.tensor in args and u.tensor not in made]
                own |= {u.argument.name: _view(args[u.tensor], u, self.columns(args)) for u in uses}
                own |= {n: args.get(x, x) for n, x in self.numbers_of[i].items()}
                with contextlib.suppress(KeyError):  # of a workspace, which a kernel before this one writes
                    wish.prepare(own, rng)
                args.update((x, own[n]) for n, x in self.numbers_of[i].items() if isinstance(x, str))

        return promise.Arguments(prepare, sizes, values, kinds)

    def columns(self, tensors: Mapping[str, Any]) -> int:
        """The columns of C, whose number a view by ".C" has."""
        t = tensors.get("C")
        return 0 if t is None else int((t.view if isinstance(t, Laid) else t).shape[-1])

    def of_arrays(self, arrays: Mapping[str, Any]) -> tuple[Call, Made]:
        """A caller's arrays and numbers as a call: copies with the same strides."""
        laid: dict[str, Any] = {}
        values: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        for use in self.uses:
            if use.tensor in laid:
                continue
            if use.tensor not in arrays:
                _refuse(f"there is no array {use.tensor}", f"got: {', '.join(arrays)}")
            x, a = arrays[use.tensor], use.argument
            y = as_double(x, a.dtype)
            strides = element_strides(x, y, a.dtype)
            t = laid[use.tensor] = laid_as(a.dtype)(y.shape, strides, replace(a, align_bytes=_ALIGN_BYTES), False)
            t.put(y) if a.role != "output" else _unwritten(t)
            values[use.tensor] = decode(t.view, a.dtype)
        for mine, s in zip(self.numbers_of, self.signatures, strict=True):
            for p in s.scalars:
                x = mine[p.name]
                if isinstance(x, str):
                    if x not in arrays:
                        _refuse(f"there is no number {x}", f"got: {', '.join(arrays)}")
                    numbers[x] = as_scalar(arrays[x], p.dtype)
        before = {n: t.memory.copy() for n, t in laid.items()}
        floats = {n: x for n, x in numbers.items() if isinstance(x, float)}
        shapes = {n: v for n, v in numbers.items() if n not in floats}
        return Call(shapes, "given", floats, False, 0, 0), Made(laid, numbers, values | numbers, before)


def _row_major(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    out: list[Any] = [1]
    for n in reversed(sizes[1:]):
        out.append(f"({n})*({out[-1]})")
    return tuple(reversed(out))


def _view(t: Any, use: Use, columns: int) -> Any:
    return use.view(t) if callable(use.view) else viewed(t, use.view, columns)


def _unwritten(t: Laid) -> None:
    if is_float(t.dtype):
        t.put(np.full(t.view.shape, math.nan))
    else:
        most = 1 if t.dtype == "pred" else min(_NO_INDEX, range_of(t.dtype)[1])
        t.put(np.full(t.view.shape, most, np.int64))


class SequencePlan(CallPlan):
    """Calls of a sequence: its tensors, and the workspaces that its caller would allocate."""

    def __init__(self, together: Sequence, seed: int, fixed: Mapping[str, Any]) -> None:
        super().__init__(together, seed, fixed, together.numbers())  # type: ignore[arg-type]
        self.together = together

    def make(self, call: Call) -> Made:
        """The arguments of a call, and workspaces."""
        made = super().make(call)
        for a in self.signature.outputs:
            if a.role == "output":
                _unwritten(made.laid[a.name])
                made.before[a.name] = made.laid[a.name].memory.copy()
        together = self.together
        if together.workspaces is not None:
            spaces = together.workspaces(dict(call.sizes))
            types = {u.tensor: u.argument for u in together.uses}
            for n, (shape, dtype) in spaces.items():
                if n not in types:
                    continue
                strides = np.cumprod([1, *reversed(shape[1:])])[::-1]
                argument = replace(types[n], dtype=dtype, align_bytes=_ALIGN_BYTES)
                t = made.laid[n] = Laid(tuple(shape), tuple(int(s) for s in strides), argument, False)
                _unwritten(t)
                made.before[n] = t.memory.copy()
        return made


class SequenceRunner(Runner):
    """Runs calls of a sequence."""

    def __init__(self, together: Sequence, arch: str | None, seed: int, plan: SequencePlan) -> None:
        super().__init__(together, arch, seed, plan)  # type: ignore[arg-type]
        self.together = together

    def run_made(self, call: Call, made: Made) -> JudgedCall:
        """Runs a call whose arguments are made."""
        run = JudgedCall(call, 0)
        together = self.together
        missed: dict[int, str] = {}
        columns = together.columns(made.laid)
        for i, launch in enumerate(together.launches):
            run.launch = i
            kernel, signature = launch.kernel, together.signatures[i]
            views: dict[str, Any] = {}
            for u in (u for u in together.uses if u.launch == i):
                if u.tensor not in made.laid:
                    _refuse(f"nobody says how large {u.tensor} is", f"in: {kernel.name}")
                views[u.argument.name] = _view(made.laid[u.tensor].view, u, columns)
            numbers: dict[str, Any] = {}
            for p in signature.scalars:
                x = together.numbers_of[i][p.name]
                v = made.numbers[x] if isinstance(x, str) else x
                numbers[p.name] = as_scalar(v, p.dtype)
            types = {a.name: a.dtype for a in signature.tensors}
            before = {n: decode(v, types[n]) for n, v in views.items()} | numbers
            given = {n: given_of(v, types[n]) for n, v in views.items()} | numbers
            try:
                room = max(left(), SMALL_BYTES)
                done = _core.run_call(kernel.lowered(self.arch), given, self.seed, room)
            except (SimulationError, LaunchError) as e:
                if e.code == "SIM_MEMORY" or (isinstance(e, LaunchError) and call.wider):
                    raise
                run.hazard = e
                return run
            run.lane_ops += done.lane_ops
            run.reached |= {i << 32 | n for n in done.reached}
            missed |= {i << 32 | u.id: f"{u.where}: {u.text}" for u in done.unreached}
            if kernel.promise is None:
                continue
            results = {a.name: decode(views[a.name], a.dtype) for a in signature.outputs}
            wanted = expect(kernel, before)
            run.compared |= bool(wanted.values)
            run.broken, worst, place = judge_outputs(kernel, wanted, before, results)
            if worst > run.worst:
                run.worst, run.place = worst, f"{kernel.name}'s {place}"
            if run.broken:
                return run
        run.launch = None
        self.outcome.count_missed(missed)
        if together.whole:
            wanted = expect(together, made.values, partial=True)  # type: ignore[arg-type]
            run.compared |= bool(wanted.values)
            run.broken, worst, place = judge_outputs(together, wanted, made.values, made.results())  # type: ignore[arg-type]
            if worst > run.worst:
                run.worst, run.place = worst, place
        return run

    def _leave_dead_out(self) -> None:
        """The texts of several kernels number their statements alike."""
