"""Statements other than specs: loops, branches, scalars, barriers. They are recorded; a Python ``range`` unrolls.

A loop or branch that is made and never entered records nothing. When its kernel ends, this raises VerifyError
BLOCK_NOT_ENTERED.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene import sym as _sym
from graphene._core import IntExpr, Tensor
from graphene._refused import refuse
from graphene.atoms import name_of_atom
from graphene.dtypes import RF
from graphene.expressions import Expression
from graphene.registers import condition as _condition
from graphene.registers import let, load

if TYPE_CHECKING:
    from graphene._core import Elected, IntLike, ThreadTensor
    from graphene.dtypes import DType

__all__ = [
    "Block",
    "Loop",
    "Ring",
    "Scalar",
    "While",
    "assert_",
    "barrier",
    "commit",
    "else_",
    "exit_if",
    "fence",
    "if_",
    "index",
    "loop",
    "only",
    "print",
    "ring",
    "scalar",
    "setmaxnreg",
    "start_kernels",
    "wait",
    "wait_kernels",
    "while_",
]


class _LoopIterator:
    """Yields the counter once. If it is dropped before it is exhausted, a `break` left the loop."""

    __slots__ = ("_depth", "_done", "_loop")

    def __init__(self, loop: Loop) -> None:
        self._loop, self._done = loop, False
        self._depth: tuple[int, int] | None = None

    def __iter__(self) -> _LoopIterator:
        return self

    def __next__(self) -> Any:
        if self._depth is None:
            self._depth, counter = self._loop._begin()
            return counter
        if not self._done:
            self._done = True
            _core.end_block(self._depth)
        raise StopIteration

    def __del__(self) -> None:
        depth: tuple[int, int] | None = getattr(self, "_depth", None)  # None if __init__ was not called
        if depth is not None and not self._done:
            _core.note_break(depth)
            _core.end_block(depth)


def _leave(open_blocks: list[tuple[int, int]], what: str) -> None:
    """Ends the block that was entered last. Raises KERNEL_CLOSED if no block is open."""
    if not open_blocks:
        _core.fail("KERNEL_CLOSED", f"{what} is left that was not entered", [], "use `with`, which enters and leaves")
    _core.end_block(open_blocks.pop())


class Loop:
    """A counted loop, for ``for`` or ``with``: both run the body once, with the counter as a symbolic integer."""

    __slots__ = ("_args", "_made", "_open")

    def __init__(self, name: str, start: IntLike, stop: IntLike, step: IntLike, unroll: int) -> None:
        self._args = (name, start, stop, step, unroll)
        self._open: list[tuple[int, int]] = []
        self._made = _core.announce_block(f'gr.loop("{name}", ...)')

    def _begin(self) -> tuple[tuple[int, int], Any]:
        for bound in self._args[1:4]:
            if isinstance(bound, (Tensor, Expression)):
                refuse("TENSOR_TYPE", "a loop counts to an integer, not to a value of data", [f"got: {bound!r}"],
                       "read it first: gr.index(x, min=0, max=...); gr.while_ ends by any condition")  # fmt: skip
        _core.block_entered(self._made)
        return _core.begin_loop(*self._args)

    def __iter__(self) -> _LoopIterator:
        return _LoopIterator(self)

    def __enter__(self) -> Any:
        depth, counter = self._begin()
        self._open.append(depth)
        return counter

    def __exit__(self, *exc: object) -> None:
        _leave(self._open, "a loop")


class Block:
    """A block of statements, for ``with``."""

    __slots__ = ("_args", "_begin", "_made", "_open")

    def __init__(self, what: str, begin: Any, *args: Any) -> None:
        self._begin, self._args = begin, args
        self._open: list[tuple[int, int]] = []
        self._made = _core.announce_block(what)

    def __enter__(self) -> None:
        _core.block_entered(self._made)
        self._open.append(self._begin(*self._args))

    def __exit__(self, *exc: object) -> None:
        _leave(self._open, "a block")


def loop(name: str, stop: IntLike, start: IntLike = 0, step: IntLike = 1, unroll: int = 1) -> Loop:
    """A counted loop, recorded once: ``for k in gr.loop("k", n)`` or ``with gr.loop("k", n) as k``.

    `stop` is exclusive; start, stop and step may be symbolic. `unroll`: 1 does not unroll, n unrolls by n, and 0
    unrolls fully when the kernel is lowered, so that the counter may index registers. Raises VerifyError LOOP_STEP,
    LOOP_BREAK (the loop was left early).
    """
    return Loop(name, start, stop, step, unroll)


def if_(condition: Any) -> Block:
    """``with gr.if_(k > 0):`` records a branch on a value known at run time.

    The condition compares integers such as coordinates and scalars, or one register of each thread: then it is read
    into an integer where the block is entered. Raises LayoutError POINTWISE_TYPE for registers that hold no condition.
    """
    return Block("gr.if_(...)", lambda c: _core.begin_if(_condition(c, "gr.if_")), condition)


def else_() -> Block:
    """``with gr.else_():`` stands directly after an ``if_`` block. Raises VerifyError ELSE_WITHOUT_IF."""
    return Block("gr.else_()", _core.begin_else)


def only(group: ThreadTensor | Elected) -> Block:
    """``with gr.only(warps[0]):`` records a branch for a part of the threads; all threads of the group take it.

    ``group.elect()`` is one thread of it.
    """
    return Block("gr.only(...)", _core.begin_only, group)


class While:
    """A loop that a condition ends, for ``with``: the body runs once, to record it, with the number of the turn."""

    __slots__ = ("_bound", "_condition", "_flag", "_made", "_name", "_open")

    def __init__(self, condition: Any, bound: IntLike, name: str) -> None:
        self._condition, self._bound, self._name = condition, bound, name
        self._flag: Any = None
        self._open: list[tuple[int, int]] = []
        self._made = _core.announce_block("gr.while_(...)")

    def _ask(self) -> Any:
        return _condition(self._condition(), "gr.while_")

    def __enter__(self) -> Any:
        _core.block_entered(self._made)
        lasts = self._condition
        if callable(lasts):
            lasts = self._ask()
            self._flag = _core.record_scalar(f"{self._name}_lasts", 0, 0, 1, 1, False)
            self._set(lasts)
            lasts = self._flag != 0
        depth, counter = _core.begin_loop(self._name, 0, self._bound, 1, 1, lasts)
        self._open.append(depth)
        return counter

    def _set(self, holds: Any) -> None:
        if isinstance(holds, (bool, int)) and not isinstance(holds, _core.IntExpr):
            _core.record_assign(self._flag, int(holds))
            return
        block = _core.begin_if(holds)
        _core.record_assign(self._flag, 1)
        _core.end_block(block)
        block = _core.begin_else()
        _core.record_assign(self._flag, 0)
        _core.end_block(block)

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None and self._flag is not None and self._open:
            self._set(self._ask())
        _leave(self._open, "a loop")


def while_(condition: Any, bound: IntLike, name: str = "turn") -> While:
    """``with gr.while_(lambda: r > 0, bound=64):`` repeats its block as long as the condition holds.

    condition: a comparison of mutable scalars, ``s.value < n``, or a function that compares registers; it is called
    twice, to record what it asks before the loop and at the end of the block. It is asked before each turn, the first
    one too, and threads may leave at different turns. bound: a number of turns after which it no longer holds. The
    simulator raises SimulationError SIM_ENDLESS_LOOP if it does; on a GPU the loop ends there. ``as k`` gives the
    number of the turn. Raises as gr.if_.
    """
    if not (callable(condition) or isinstance(condition, (_core.IntExpr, bool))):
        raise TypeError(
            "while_ takes a comparison of scalars, or a function that compares registers: gr.while_(lambda: r > 0, "
            f"bound=64); got {condition!r}"
        )
    return While(condition, bound, name)


def exit_if(condition: IntLike) -> None:
    """The whole block returns if the condition holds. The condition must be the same for every thread of the block."""
    _core.record_exit_if(condition)


def print(*values: Any) -> None:
    """Shows values of each thread that gets here: texts, registers, expressions, integers and elements in memory.

    ``gr.print("sum", r, lane)``. The simulator prints a line for each thread as it runs, with the place in Python, the
    block and the thread. On a GPU it is printf, whose lines appear when the host waits for the device.
    """
    _tell("print", None, values)


def assert_(condition: Any, *values: Any) -> None:
    """Stops the kernel where a condition does not hold for a thread, and shows values as gr.print does.

    The simulator raises SimulationError SIM_ASSERT; on a GPU the thread prints a line and traps, which the next call of
    the driver reports. condition: as in gr.if_.
    """
    _tell("assert", _condition(condition, "gr.assert_"), values)


def _tell(op: str, condition: Any, values: tuple[Any, ...]) -> None:
    texts, shown = [], []
    for v in values:
        if isinstance(v, str):
            if not v.isascii() and v.encode(errors="replace").decode() != v:
                raise TypeError(f"{op}: a text must be of Unicode's characters, got {v!r}")
            texts.append(v)
        elif isinstance(v, Expression):
            shown.append(let(_core.unique_name("shown"), v))
        elif isinstance(v, Tensor) and (v.memory != RF or v.is_fragment):
            if v.is_fragment:
                raise TypeError(f"{op}: a fragment's registers are shown one by one: {v.name}.values[0]")
            shown.append(load(v))
        else:
            shown.append(v)
    single: list[Any] = []
    for v in shown:
        whole = not isinstance(v, Tensor) or not v.levels
        single += [v] if whole else [v[i] for i in _places(v)]
    _core.record_tell(op, " ".join(texts), condition, single)


def _places(t: Tensor) -> list[Any]:
    if len(t.levels) > 1:
        raise TypeError(f"registers with tiles are shown one by one: {t.name}[0]")
    return list(itertools.product(*(range(int(n)) for n in t.shape)))


class Scalar:
    """A mutable integer of each thread: ``s.value`` in expressions, ``s.set(s.value + 1)`` to assign."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def set(self, value: IntLike) -> None:
        """Records an assignment."""
        _core.record_assign(self.value, value)


def scalar(name: str, value: IntLike, min: int | None = None, max: int | None = None, multiple_of: int = 1) -> Scalar:
    """A mutable integer. `min`, `max` and `multiple_of` are facts that every value of it must keep.

    By default `min` is 0, as for a symbol, and `max` is 2^63 - 1; a scalar that may be negative needs ``min=-1``, for
    example. Raises VerifyError SCALAR_FACTS if a value cannot keep the facts, LayoutError SYM_FACTS if they contradict
    each other. The simulator raises SimulationError SIM_FACT if a value breaks them.
    """
    return Scalar(_core.record_scalar(name, value, min, max, multiple_of, False))


def index(x: Tensor | Expression, min: IntLike, max: IntLike, multiple_of: int = 1) -> Any:
    """An integer that is read from data: the value of one element when this statement runs, as an index expression.

    x: one element of an integer tensor, in memory or in a register, or an expression on registers. The facts are
    promises about the data: `min` <= value <= `max`, and the value is a multiple of `multiple_of`. Bounds are numbers
    or expressions of sizes, such as ``max=N - 1``. The simulator checks them (SimulationError SIM_FACT). On a GPU a
    value beyond a bound of sizes becomes that bound; where other facts do not hold, nothing is promised.
    Packed sequences use it with ``T.window(start, size)``. Raises LayoutError TENSOR_TYPE, SYM_FACTS.
    """
    if not isinstance(x, (Tensor, Expression)):
        refuse("TENSOR_TYPE", "gr.index reads one element of an integer tensor, or an expression on registers",
               [f"got: {type(x).__name__}"], "pass what it is to read: gr.index(rows[t], min=0, max=63)")  # fmt: skip
    read = let(_core.unique_name("read"), x) if isinstance(x, Expression) else x
    if not (isinstance(min, IntExpr) or isinstance(max, IntExpr)):
        return _core.record_index(read, min, max, multiple_of)
    least, most = _numbers_of(read.dtype)
    found = _core.record_index(
        read, least if isinstance(min, IntExpr) else min, most if isinstance(max, IntExpr) else max, multiple_of
    )
    # A scalar whose fact is the bound, named after what is read. It costs nothing on a GPU, which does not use it.
    value, name = found, x.name or "read" if isinstance(x, Tensor) else "read"
    if isinstance(min, IntExpr):
        scalar(_core.unique_name(f"{name}_above_min"), value - min)
        found = _sym.max(found, min)
    if isinstance(max, IntExpr):
        scalar(_core.unique_name(f"{name}_below_max"), max - value)
        found = _sym.min(found, max)
    return found


def _numbers_of(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of a type of integers; of others, those of 64 bits."""
    bits = dtype.bits if dtype.name in ("u8", "u16", "u32", "i8", "i16", "i32") else 64
    return (0, 2**bits - 1) if dtype.name[0] == "u" and bits < 64 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def barrier(on: ThreadTensor | None = None) -> None:
    """A barrier: every thread of the group (by default the block) arrives before any goes on.

    It orders accesses of shared and global memory. `on` may be the blocks of a cluster, ``blocks[c]`` of ``blocks =
    gr.blocks(n, cluster=2)``: then every thread of these blocks arrives. Raises VerifyError SPEC_GROUP,
    VERIFY_BARRIER_DIVERGENT, VERIFY_CLUSTER.
    """
    _core.record_sync("barrier", on, "", {})


def commit(atom: Any) -> None:
    """Closes a group of this thread's asynchronous copies: those that `atom` issued since the last commit.

    PTX cp.async.commit_group. `atom`: an entry or family whose copies complete by groups, or its name. Raises
    SelectError ATOM_UNKNOWN. Lowering raises NO_ATOM for an atom that is complete when it has executed.
    """
    _core.record_sync("commit", None, name_of_atom(atom), {})


def wait(atom: Any, pending: int, written: bool = False) -> None:
    """Waits until at most the newest `pending` groups of this thread's copies by `atom` are under way.

    PTX cp.async.wait_group. It covers this thread's own copies: for other threads a barrier must follow. For stores
    that copy out of shared memory (PTX cp.async.bulk.wait_group.read) it waits until their sources have been read; with
    `written` it waits until what they wrote is visible. Raises as commit.
    """
    if pending is None:  # leaving the attribute out would be the wait for everything, which is another statement
        raise TypeError("pending must be an integer, got None")
    if not isinstance(written, bool):
        raise TypeError(f"written must be True or False, got {written!r}")
    attrs: dict[str, Any] = {"pending": pending}
    if written:
        attrs["written"] = True
    _core.record_sync("wait", None, name_of_atom(atom), attrs)


def wait_kernels() -> None:
    """Waits until the kernels before this one in its stream have ended and what they wrote is visible.

    PTX griddepcontrol.wait. A kernel with this statement may start while those before it are still running, so its
    launch, and the statements before this one, overlap their end. Before sm_90 every kernel starts when those before it
    have ended, and this does nothing. The statement stands before all accesses of global memory, outside of branches
    and loops. Do not load what those kernels wrote by ld.global.nc, which is for memory that nothing writes while the
    kernel runs, its early part included. Raises VerifyError VERIFY_WAIT when the kernel is lowered.
    """
    _core.record_sync("wait_kernels", None, "", {})


def start_kernels() -> None:
    """Lets the next kernel of the stream start once every block has come this far, if that kernel has `wait_kernels`.

    PTX griddepcontrol.launch_dependents. A kernel without it lets the next one start when its last blocks end. Results
    do not depend on it: the next kernel waits for the end of this one. Before sm_90 it does nothing.
    """
    _core.record_sync("start_kernels", None, "", {})


def fence(atom_or_proxy: Any) -> None:
    """Orders this thread's earlier accesses before the later asynchronous ones of an atom, or of a proxy.

    "async.shared" and "async.global" order what threads stored and read in that memory before what asynchronous copies
    and products do there (PTX fence.proxy.async). The atom's completion domain must have a fence among the entries.
    cp.async reads and writes as threads do and needs none. Raises SelectError NO_ATOM when the kernel is lowered.
    """
    _core.record_sync("fence", None, name_of_atom(atom_or_proxy), {})


def setmaxnreg(registers: int) -> None:
    """Gives each thread of the role that executes it that many registers (PTX setmaxnreg).

    It stands once at the start of a role of whole warpgroups, ``with gr.only(warpgroups[0]):``, and every warpgroup of
    the block has one. The number is a multiple of 8 from 24 to 256. The sum must not be larger than what the block owns
    at its launch: for each thread 65536 registers divided by the number of threads, rounded down to a multiple of 8.
    Raises VerifyError VERIFY_REGISTERS when the kernel is lowered.
    """
    _core.record_sync("setmaxnreg", None, "", {"registers": registers})


class Ring:
    """The position in a ring of buffers: ``.index`` of the stage, ``.phase`` flips on every round."""

    __slots__ = ("_index", "_phase", "stages")

    def __init__(self, name: str, stages: int, phase: int) -> None:
        self.stages = stages
        self._phase = _core.record_scalar(f"{name}_phase", phase, 0, 1, 1, True)
        self._index = _core.record_scalar(name, 0, 0, stages - 1, 1, False)

    @property
    def index(self) -> Any:
        """Number of the stage, 0 to stages - 1."""
        return self._index

    @property
    def phase(self) -> Any:
        """Parity of the round, which a wait on the stage's mbarrier takes."""
        return self._phase

    def advance(self, n: IntLike = 1) -> None:
        """Records `n` steps, 0 or more: 1 goes to the next stage, more skip stages that belong to others."""
        following = self._index + n
        rounds = following // self.stages
        if not (isinstance(n, int) and n <= self.stages):  # a greater n could end more than one round
            rounds = rounds % 2
        _core.record_assign(self._phase, self._phase ^ rounds)
        _core.record_assign(self._index, following % self.stages)


def ring(name: str, stages: int, phase: int = 0) -> Ring:
    """A position in a ring of `stages` buffers, starting at stage 0.

    `phase` is 1 for the producer of a ring that starts empty. Raises VerifyError RING_STAGES, KERNEL_NAME.
    """
    _core.check_ring(name, stages, phase)
    return Ring(name, stages, phase)
