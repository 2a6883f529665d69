"""Order among threads: sorting by keys, the k first, both by networks of exchanges that the kernel's text shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene._core import Tensor, ThreadTensor
from graphene.combined import LANES, Group, flag
from graphene.control import barrier, if_
from graphene.declare import alloc
from graphene.dtypes import RF, SH, pred
from graphene.expressions import where
from graphene.registers import let
from graphene.specs import move, shfl

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["sort", "top_k"]


class _Records:
    """Keys and what goes with them, in registers of the executing thread: the first of `tensors` is the key."""

    def __init__(self, tensors: Sequence[Tensor], last_first: bool) -> None:
        self.tensors, self.last_first = list(tensors), last_first

    @property
    def count(self) -> int:
        return int(self.tensors[0].shape[0]) if self.tensors[0].levels else 1

    def at(self, i: int) -> _Records:
        """Those of number i alone."""
        if not self.tensors[0].levels:
            return self
        return _Records([t[i] for t in self.tensors], self.last_first)

    def new(self, name: str) -> _Records:
        """Registers for one record."""
        made = [alloc(_core.unique_name(f"{t.name}_{name}"), [], t.dtype, RF) for t in self.tensors]
        return _Records(made, self.last_first)

    def copied(self, name: str) -> _Records:
        """One record in registers of its own."""
        made = [let(_core.unique_name(f"{t.name}_{name}"), t) for t in self.tensors]
        return _Records(made, self.last_first)

    def comes_before(self, other: _Records) -> Any:
        """Whether this record comes before the other one; a NaN comes behind all numbers."""
        a, b = self.tensors[0], other.tensors[0]
        less = (a > b) if self.last_first else (a < b)
        return less | ((a == a) & (b != b)) if a.dtype.name.startswith(("fp", "bf")) else less

    def take(self, condition: Any, other: _Records) -> None:
        """Becomes the other one where the condition holds."""
        taken = let(_core.unique_name("taken"), condition, pred)
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine[...] = where(taken, theirs, mine)

    def exchange(self, other: _Records) -> None:
        """Puts the first of two records of one thread into this one."""
        swapped = let(_core.unique_name("swapped"), other.comes_before(self), pred)
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            first = let(_core.unique_name(f"{mine.name}_first"), where(swapped, theirs, mine))
            theirs[...] = where(swapped, mine, theirs)
            mine[...] = first


class _Network:
    """Compares and exchanges among the threads of a group."""

    def __init__(self, on: ThreadTensor, call: str) -> None:
        self.on, self.group = on, Group(on, call)
        many = self.group.warps > 1
        self.thread = self.group.warp * LANES + self.group.lane if many else self.group.lane

    def cross(self, all_: _Records, mask: int, room: list[Tensor]) -> None:
        """Of two records whose numbers differ in the bits of `mask` the lower number gets the first one.

        Thread t has the numbers from t * count on.
        """
        each = all_.count
        threads, low = mask // each, mask % each
        if threads == 0:
            for i in range(each):
                if i < i ^ low:
                    all_.at(i).exchange(all_.at(i ^ low))
            return
        top = 1 << (threads.bit_length() - 1)
        lower = let(_core.unique_name("lower"), self.thread // top % 2 == 0, pred)
        if threads >= LANES:
            self._store(all_, room)
        for i in range(each):
            if i > i ^ low:
                continue
            pair = sorted({i, i ^ low})
            met = [all_.at(n).new("met") for n in pair]
            for n, theirs in zip(pair, met, strict=True):
                self._read(all_, n ^ low, theirs, threads, room)
            for n, theirs in zip(pair, met, strict=True):
                mine = all_.at(n)
                wrong = (lower & theirs.comes_before(mine)) | (~lower & mine.comes_before(theirs))
                mine.take(wrong, theirs)
        if threads >= LANES:
            barrier(on=self.on)

    def _store(self, all_: _Records, room: list[Tensor]) -> None:
        for i in range(all_.count):
            for a, s in zip(all_.at(i).tensors, room, strict=True):
                move(s[i, self.thread], a)
        barrier(on=self.on)

    def _read(self, all_: _Records, number: int, to: _Records, threads: int, room: list[Tensor]) -> None:
        """Record `number` of the thread whose number differs in the bits `threads`."""
        if threads < LANES:
            for a, b in zip(all_.at(number).tensors, to.tensors, strict=True):
                shfl(b, a, "bfly", threads, on=self.group.on)
            return
        for b, s in zip(to.tensors, room, strict=True):
            move(b, s[number, self.thread ^ threads])

    def room(self, like: _Records, columns: int) -> list[Tensor]:
        """Shared memory for the records of all threads, or of some."""
        shape = [like.count, columns]
        return [alloc(_core.unique_name(f"{t.name}_met"), shape, t.dtype, SH) for t in like.tensors]


def _powers(call: str, count: int, what: str) -> None:
    if count & (count - 1):
        _core.fail("SPEC_GROUP", f"gr.{call} takes a power of two of {what}", [f"got: {count}"],
                   "take a larger power of two, and fill up with keys that come last")  # fmt: skip


def _records(call: str, keys: Tensor, values: Sequence[Tensor], last_first: bool) -> _Records:
    flag(call, "descending", last_first)
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{call}: values is a list of registers, got {values!r}")
    for t in (keys, *values):
        if not isinstance(t, Tensor):
            raise TypeError(f"{call} takes registers of each thread, got {t!r}")
        if t.memory != RF or t.is_fragment or len(t.levels) > 1 or (t.levels and len(t.shape) != 1):
            _core.fail("REDUCE_FRAGMENT", f"gr.{call} takes registers of each thread, one or a row of them",
                       [f"got: {t}"], "index registers down to one mode")  # fmt: skip
        if (list(t.shape) if t.levels else []) != (list(keys.shape) if keys.levels else []):
            _core.fail("POINTWISE_SHAPE", f"gr.{call} takes as many values as keys",
                       [f"keys: {keys}", f"values: {t}"], "")  # fmt: skip
    if keys.dtype.name == "pred":
        _core.fail("POINTWISE_TYPE", f"gr.{call} orders numbers", [f"got: {keys}"], "choose 1 or 0 with gr.where")
    return _Records((keys, *values), last_first)


def sort(keys: Tensor, on: ThreadTensor, values: Sequence[Tensor] = (), descending: bool = False) -> None:
    """Sorts the keys of the group's threads, and moves the values along.

    keys: one private register of each thread, or a row of m; thread t gets the keys numbered from t m on. values:
    registers of any types with the shape of `keys`, such as indices. Equal keys keep no order; a NaN comes behind all
    numbers. on: a power of two of threads: a warp, a part of one, or several whole warps, which meet in shared memory.
    m is a power of two, too.

    The decomposition is Batcher's bitonic network, of log(n) (log(n) + 1) / 2 steps for n keys. Raises VerifyError
    SPEC_GROUP; LayoutError REDUCE_FRAGMENT, POINTWISE_SHAPE.
    """
    all_ = _records("sort", keys, values, descending)
    network = _Network(on, "sort")
    _powers("sort", network.group.threads, "threads")
    _powers("sort", all_.count, "keys of a thread")
    n = network.group.threads * all_.count
    room = network.room(all_, network.group.threads) if network.group.warps > 1 else []
    size = 2
    while size <= n:
        network.cross(all_, size - 1, room)  # each with its mirror image
        distance = size // 4
        while distance > 0:
            network.cross(all_, distance, room)
            distance //= 2
        size *= 2


def top_k(
    keys: Tensor, k: int, on: ThreadTensor, values: Sequence[Tensor] = (), largest: bool = True
) -> tuple[Tensor, ...]:
    """The k largest keys of the group's threads (the smallest where `largest` is False), and the values beside them.

    The result is one new register for the keys and one for each of the values: those of thread i, counted in the group,
    belong to the key of rank i, for i < k. What other threads find in them means nothing. keys: one private register of
    each thread, or a row of them; values: registers of any types with the same shape, such as indices. Of equal keys
    any may come first; a NaN comes behind all numbers. on is as in gr.sort but for several warps, which may be any
    number; k is at most 32, and at most the number of threads.

    Each warp keeps its 32 first in order and merges more into them; then the warps' are merged, two and two, in shared
    memory. Raises VerifyError SPEC_GROUP, VERIFY_OPERANDS; LayoutError REDUCE_FRAGMENT, POINTWISE_SHAPE.
    """
    all_ = _records("top_k", keys, values, largest)
    network = _Network(on, "top_k")
    group = network.group
    width = min(group.threads, LANES)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= width:
        _core.fail("VERIFY_OPERANDS", f"gr.top_k gives each of the first threads one key: 1 to {width}",
                   [f"got: {k!r}"], "take the first of a sorted row: gr.sort")  # fmt: skip
    in_warp = _Network(group.on, "top_k")
    best = all_.at(0).copied("best")
    _sorted(in_warp, best, width)
    for i in range(1, all_.count):
        more = all_.at(i).copied("more")
        _sorted(in_warp, more, width)
        _merge(in_warp, best, more, width)
    if group.warps > 1:
        room = network.room(best, group.warps * LANES)
        for s, a in zip(room, best.tensors, strict=True):
            move(s[0, network.thread], a)
        apart = 1
        while apart < group.warps:
            barrier(on=on)
            with if_((group.warp % (2 * apart) == 0) & (group.warp + apart < group.warps)):
                more = best.new("more")
                for b, s in zip(more.tensors, room, strict=True):
                    move(b, s[0, network.thread + apart * LANES])
                _merge(in_warp, best, more, width)
                for s, a in zip(room, best.tensors, strict=True):
                    move(s[0, network.thread], a)
            apart *= 2
        barrier(on=on)
    return tuple(best.tensors)


def _sorted(network: _Network, row: _Records, width: int) -> None:
    size = 2
    while size <= width:
        network.cross(row, size - 1, [])
        _clean(network, row, size // 4)
        size *= 2


def _clean(network: _Network, row: _Records, distance: int) -> None:
    while distance > 0:
        network.cross(row, distance, [])
        distance //= 2


def _merge(network: _Network, best: _Records, more: _Records, width: int) -> None:
    """The first of two sorted rows, one record in each lane: of each and the other's mirror image the better one."""
    mirrored = more.new("mirrored")
    for a, b in zip(more.tensors, mirrored.tensors, strict=True):
        if width > 1:
            shfl(b, a, "bfly", width - 1, on=network.group.on)
        else:
            move(b, a)
    best.take(mirrored.comes_before(best), mirrored)
    _clean(network, best, width // 2)
