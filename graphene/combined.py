"""What threads compute together: atomic updates of memory, scans, the place of an extreme, votes of a warp.

Each call records the statements that one would write by hand, so the kernel's text shows every instruction.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene._core import Tensor, ThreadTensor
from graphene.control import barrier, if_
from graphene.declare import alloc
from graphene.dtypes import RF, SH, DType, i32, pred, u32
from graphene.expressions import where
from graphene.registers import let
from graphene.specs import _record, binary, check_group, move, shfl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["allarg", "atomic", "ballot", "match", "scan"]

LANES = 32


def _one_of(call: str, name: str, value: Any, known: Any) -> None:
    if isinstance(value, str) and value in known:
        return
    _core.fail("VERIFY_OPERATION", f"gr.{call} has no {name} {value!r}", [f"want: {', '.join(known)}"], "")


def flag(call: str, name: str, value: Any) -> None:
    """Raises TypeError unless a value is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{call}: {name} must be True or False, got {value!r}")


_COMBINES = ("add", "min", "max", "and", "or", "xor", "exchange", "cas")


def atomic(
    op: str, place: Tensor, value: Any, fetch: bool = False, expected: Any = None, scope: str = "gpu"
) -> Tensor | None:
    """Combines a number in memory with a value, in one step for all threads; with `fetch` it returns what was there.

    op: "add"; for integers "and", "or", "xor"; "min" and "max", of floats, too, by compare-and-swap, where a NaN loses
    to a number; "exchange", which writes the value; "cas", which writes it where memory holds the bits of `expected`.
    The last two return what was there anyway. place: one element in global or shared memory (of an add also a vector
    of some). value and expected: registers, an expression or a number. scope: the threads for which it is one step,
    those of the block ("cta"), of the device ("gpu") or of the system ("sys"). It orders no other accesses. Where the
    place is outside of a partial tile nothing happens, and the returned registers are not set.

    Raises VerifyError VERIFY_OPERATION, VERIFY_OPERANDS; lowering raises SelectError NO_ATOM. Source: PTX ISA, red and
    atom.
    """
    _one_of("atomic", "op", op, _COMBINES)
    _one_of("atomic", "scope", scope, ("cta", "gpu", "sys"))
    flag("atomic", "fetch", fetch)
    if not isinstance(place, Tensor):
        raise TypeError(f"atomic takes a place in memory, got {place!r}")
    if (expected is None) == (op == "cas"):
        _core.fail("VERIFY_OPERANDS", "expected= is for cas, which needs it", [f"op: {op}"],
                   'gr.atomic("cas", place, value, expected=old)')  # fmt: skip
    shape = list(place.shape) if place.levels else []
    ins = [_held(v, place.dtype, shape) for v in ([value] if expected is None else [value, expected])]
    attrs: dict[str, Any] = {"combine": op, "atomic": f"relaxed.{scope}", "fill": 0}
    outs = [place]
    if fetch or op in ("exchange", "cas"):
        name = _core.unique_name(f"{place.name}_before")
        outs.append(alloc(name, shape, place.dtype, RF))
    _record("Move", outs, ins, None, **attrs)
    return outs[1] if len(outs) > 1 else None


def _held(value: Any, dtype: DType, shape: list[int]) -> Tensor:
    if isinstance(value, Tensor) and value.dtype == dtype and value.memory == RF:
        return value
    return let(_core.unique_name("value"), value, dtype, shape)


def ballot(condition: Any, on: ThreadTensor) -> Tensor:
    """A u32 of which bit i says whether the condition holds for lane i of the warp `on`. PTX vote.sync.ballot."""
    held = condition if isinstance(condition, Tensor) else let(_core.unique_name("vote"), condition, pred)
    return _vote("ballot", held, on)


def match(x: Any, on: ThreadTensor) -> Tensor:
    """A u32 of which bit i says whether lane i of the warp `on` has the same integer. PTX match.any.sync."""
    return _vote("match", x if isinstance(x, Tensor) else let(_core.unique_name("matched"), x), on)


def _vote(op: str, x: Tensor, on: ThreadTensor) -> Tensor:
    out = alloc(_core.unique_name(op), [], u32, RF)
    _record("Reduction", out, (x,), on, op=op, axis=0)
    return out


class Group:
    """The warps of a group of threads, and the executing thread's number in it and in its warp."""

    def __init__(self, on: ThreadTensor, call: str) -> None:
        if not isinstance(on, ThreadTensor):
            raise TypeError(f"{call} needs the threads that take part: on=, got {on!r}")
        check_group(call, on)
        self.threads = int(on.size)
        if self.threads > LANES:
            warps = on.reshape(0, _core.Layout(self.threads)).tile(LANES)
            self.warp, self.lane = warps.indices()
            self.on = warps[self.warp]
        else:
            flat = on.reshape(0, _core.Layout(self.threads)) if on.levels[0].rank != 1 else on
            self.warp, self.on = 0, flat
            (self.lane,) = flat.indices()

    @property
    def warps(self) -> int:
        return -(-self.threads // LANES)


def _identity(op: str, t: DType) -> Any:
    """The number that changes nothing."""
    is_float, signed = t.name.startswith(("fp", "bf")), t.name.startswith("i")
    low = -(2 ** (t.bits - 1)) if signed else 0
    high = 2 ** (t.bits - signed) - 1
    known = {"add": 0, "mul": 1, "max": -math.inf if is_float else low, "min": math.inf if is_float else high}
    if not is_float:
        known |= {"and": -1 if signed else high, "or": 0, "xor": 0}
    _one_of("scan", "op", op, known)
    return known[op]


def _registers(x: Any, call: str, name: str = "value") -> Tensor:
    """One register of each thread: x itself, its only one, or a new one that an expression or an integer fills."""
    kind = i32 if isinstance(x, (int, _core.IntExpr)) else None
    held: Tensor = x if isinstance(x, Tensor) else let(_core.unique_name(name), x, kind)
    if held.memory == RF and not held.is_fragment and len(held.levels) == 1 and all(n == 1 for n in held.shape):
        return held[(0,) * len(held.shape)]
    if held.memory != RF or held.levels or held.is_fragment:
        _core.fail("REDUCE_FRAGMENT", f"gr.{call} takes one register of each thread", [f"got: {held}"],
                   'index registers down to one: gr.scan("add", r[0], on=warp)')  # fmt: skip
    return held


def _joining(op: Any) -> Callable[[Tensor, Tensor, Tensor], object]:
    """What writes to its first argument the second and the third, combined in this order."""

    def by_function(out: Tensor, a: Tensor, b: Tensor) -> None:
        out[...] = op(a, b)

    return by_function if callable(op) else lambda out, a, b: binary(op, out, a, b)


def _neutral(op: Any, x: Tensor, exclusive: bool, identity: Any) -> Any:
    """What the first thread of an exclusive scan has; of a function x itself, where nothing asks for it."""
    if callable(op):
        if exclusive and identity is None:
            _core.fail("VERIFY_OPERANDS", "an exclusive scan by a function needs what the first thread gets", [],
                       "gr.scan(f, x, on=warp, exclusive=True, identity=...)")  # fmt: skip
        return x if identity is None else identity
    if identity is not None:
        _core.fail("VERIFY_OPERANDS", "identity= is for scans by a function", [f"op: {op}"], "leave it out")
    return _identity(op, x.dtype)


class _Prefixes:
    """What a scan and a segmented one have in common: the way of records, each some registers, from thread to thread.

    ``below``: registers that take the record of a thread before; ``combine(*record)`` puts it in front of the record.
    """

    def __init__(self, group: Group, on: ThreadTensor, below: list[Tensor], combine: Callable[..., object]) -> None:
        self.group, self.on, self.below, self.combine = group, on, below, combine

    def in_warp(self, record: list[Tensor], width: int) -> None:
        """Each of `width` neighbouring lanes has its record behind those of the lanes before it."""
        n = 1
        while n < width:
            for b, r in zip(self.below, record, strict=True):
                shfl(b, r, "up", n, on=self.group.on)
            with if_(self.group.lane >= n):
                self.combine(*record)
            n *= 2

    def of_warps(self, record: list[Tensor], names: list[str], identities: list[Any]) -> None:
        """``below[0]`` becomes what the warps before this one have; in the first warp it has no meaning."""
        group = self.group
        totals = [
            alloc(_core.unique_name(f"{name}_totals"), [group.warps], r.dtype, SH)
            for r, name in zip(record, names, strict=True)
        ]
        with if_(group.lane == LANES - 1):
            for s, r in zip(totals, record, strict=True):
                move(s[group.warp], r)
        barrier(on=self.on)
        before = [
            let(_core.unique_name(f"{name}_before"), identity, r.dtype)
            for r, name, identity in zip(record, names, identities, strict=True)
        ]
        with if_(group.lane < group.warps):
            for b, s in zip(before, totals, strict=True):
                move(b, s[group.lane])
        self.in_warp(before, group.warps)
        shfl(self.below[0], before[0], "idx", (group.warp + LANES - 1) % LANES, on=group.on)
        barrier(on=self.on)


def scan(
    op: str | Callable[[Any, Any], Any], x: Any, on: ThreadTensor, exclusive: bool = False, starts: Any = None,
    identity: Any = None,
) -> Tensor:  # fmt: skip
    """``x = op over the x of the threads up to and including this one``, in the order of the group `on`; returns x.

    With `exclusive` without this one; the first thread then has the number that changes nothing, such as 0. Operations
    are add, mul, max, min, and for integers and, or, xor. op may also be an associative function of two registers, what
    is before and what is behind it, that returns an expression, as ``lambda a, b: gr.max(a, b)``; an exclusive scan by
    it needs `identity`, what the first thread gets. x: one private register of each thread, which changes, or an
    expression, which fills a new one. on: a warp, a part of one, or several whole warps, which meet in shared memory
    with two barriers. A scan of a row longer than the group adds what is before: the last thread's inclusive value.

    `starts`: a segmented scan. A condition of registers, or an integer register that is not 0, at each thread where a
    segment begins, in which nothing before it counts; the first thread begins one anyway.

    The decomposition is Hillis and Steele's, in warps and then over their totals. Raises VerifyError VERIFY_OPERATION,
    VERIFY_OPERANDS, SPEC_GROUP; LayoutError REDUCE_FRAGMENT.
    """
    r: Tensor = _registers(x, "scan")
    flag("scan", "exclusive", exclusive)
    identity = _neutral(op, r, exclusive, identity)
    if starts is not None:
        return _segmented(_joining(op), r, starts, on, exclusive, identity)
    join, group = _joining(op), Group(on, "scan")
    name = _core.unique_name(f"{r.name}_below")
    below = alloc(name, [], r.dtype, RF)
    own = let(_core.unique_name(f"{r.name}_own"), r) if exclusive else None

    way = _Prefixes(group, on, [below], lambda value: join(value, below, value))
    way.in_warp([r], min(group.threads, LANES))
    if group.warps > 1:
        way.of_warps([r], [r.name], [identity])
        with if_(group.warp > 0):
            join(r, below, r)
    if own is None:
        return r
    # What the thread before has; the first one of a warp takes the total of the warps before it.
    if group.warps > 1:
        first = let(_core.unique_name(f"{r.name}_first"), identity, r.dtype)
        with if_(group.warp > 0):
            move(first, below)
        shfl(below, r, "up", 1, on=group.on)
        r[...] = where(group.lane == 0, first, below)
    else:
        shfl(below, r, "up", 1, on=group.on)
        r[...] = where(group.lane == 0, identity, below)
    return r


def _segmented(
    join: Callable[[Tensor, Tensor, Tensor], object], x: Tensor, starts: Any, on: ThreadTensor, exclusive: bool,
    identity: Any,
) -> Tensor:  # fmt: skip
    """A scan of pairs: of a flag, whether a segment has begun, and what has been combined since."""
    group = Group(on, "scan")
    below, flag_below = (
        alloc(_core.unique_name(f"{x.name}_below"), [], x.dtype, RF),
        alloc(_core.unique_name("begun_below"), [], i32, RF),
    )
    flag = let(_core.unique_name("begun"), starts if isinstance(starts, Tensor) else where(starts, 1, 0), i32)
    own, first_of = let(_core.unique_name(f"{x.name}_own"), x), let(_core.unique_name("begins"), flag)

    def combine(value: Tensor, begun: Tensor) -> None:
        join(below, below, value)
        value[...] = where(begun != 0, value, below)
        begun[...] = begun | flag_below

    way = _Prefixes(group, on, [below, flag_below], combine)
    way.in_warp([x, flag], min(group.threads, LANES))
    if group.warps > 1:
        way.of_warps([x, flag], [x.name, "begun"], [identity, 0])
        with if_(group.warp > 0):
            join(own, below, x)
            x[...] = where(flag != 0, x, own)
    if not exclusive:
        return x
    first = let(_core.unique_name(f"{x.name}_first"), identity, x.dtype)
    if group.warps > 1:
        with if_(group.warp > 0):
            move(first, below)
    shfl(below, x, "up", 1, on=group.on)
    first[...] = where(group.lane == 0, first, below)
    x[...] = where(first_of != 0, identity, first)
    return x


def allarg(op: str, x: Any, index: Any, on: ThreadTensor) -> tuple[Tensor, Tensor]:
    """``x, index = the largest ("max") or smallest ("min") x of the group's threads and its index``; all get both.

    Returns both. Of equal ones the least index wins. A NaN loses to a number; of NaN alone x becomes the least (the
    largest) number.
    x: one private register of each thread; index: one integer register of each thread, which says what x stands for.
    Both change; an expression or a number fills a new register. on is as in gr.scan, and what it raises.
    """
    _one_of("allarg", "op", op, ("max", "min"))
    value: Tensor = _registers(x, "allarg")
    place: Tensor = _registers(index, "allarg", "index")
    group = Group(on, "allarg")
    worst = _identity(op, value.dtype)
    if value.dtype.name.startswith(("fp", "bf")):
        value[...] = where(value == value, value, worst)
    other, at = (alloc(_core.unique_name(f"{t.name}_other"), [], t.dtype, RF) for t in (value, place))

    def take_better() -> None:
        better = (other > value) if op == "max" else (other < value)
        taken = let(_core.unique_name("taken"), better | ((other == value) & (at < place)), pred)
        value[...] = where(taken, other, value)
        place[...] = where(taken, at, place)

    def in_warp(width: int) -> None:
        n = 1
        while n < width:
            shfl(other, value, "bfly", n, on=group.on)
            shfl(at, place, "bfly", n, on=group.on)
            take_better()
            n *= 2

    in_warp(min(group.threads, LANES))
    if group.warps == 1:
        return value, place
    values, places = (alloc(_core.unique_name(f"{t.name}_warps"), [group.warps], t.dtype, SH) for t in (value, place))
    with if_(group.lane == 0):
        move(values[group.warp], value)
        move(places[group.warp], place)
    barrier(on=on)
    for w in range(group.warps):
        move(other, values[w])
        move(at, places[w])
        take_better()
    barrier(on=on)
    return value, place
