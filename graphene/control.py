"""Statements beside specs: loops, branches, scalars, barriers. They are recorded; a Python ``range`` unrolls.

A loop or branch that is made and never entered records nothing: VerifyError BLOCK_NOT_ENTERED when its kernel ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.atoms import name_of_atom

if TYPE_CHECKING:
    from graphene._core import Elected, IntLike, Tensor, ThreadTensor

__all__ = [
    "Block",
    "Loop",
    "Ring",
    "Scalar",
    "barrier",
    "commit",
    "else_",
    "exit_if",
    "fence",
    "if_",
    "index",
    "loop",
    "only",
    "ring",
    "scalar",
    "setmaxnreg",
    "start_kernels",
    "wait",
    "wait_kernels",
]


class _LoopIterator:
    """Yields the counter once. Dropped before it is exhausted, the loop was left by break."""

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
        depth: tuple[int, int] | None = getattr(self, "_depth", None)  # none where __init__ was not called
        if depth is not None and not self._done:
            _core.note_break(depth)
            _core.end_block(depth)


def _leave(open_blocks: list[tuple[int, int]], what: str) -> None:
    """Ends the block entered last; KERNEL_CLOSED where none is open."""
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

    `stop` is exclusive; start, stop and step may be symbolic. `unroll`: 1 not at all, n by n, 0 fully, when lowering
    (registers may then be indexed by the counter). Raises VerifyError LOOP_STEP, LOOP_BREAK (left early).
    """
    return Loop(name, start, stop, step, unroll)


def if_(condition: IntLike) -> Block:
    """``with gr.if_(k > 0):`` records a branch on a value known at run time."""
    return Block("gr.if_(...)", _core.begin_if, condition)


def else_() -> Block:
    """``with gr.else_():`` directly after an ``if_`` block. Raises VerifyError ELSE_WITHOUT_IF."""
    return Block("gr.else_()", _core.begin_else)


def only(group: ThreadTensor | Elected) -> Block:
    """``with gr.only(warps[0]):`` a branch for a subset of the threads, known to be uniform for that group.

    ``group.elect()`` is one thread of it.
    """
    return Block("gr.only(...)", _core.begin_only, group)


def exit_if(condition: IntLike) -> None:
    """The whole block returns where the condition holds, which must not depend on the thread."""
    _core.record_exit_if(condition)


class Scalar:
    """A mutable integer of each thread: ``s.value`` in expressions, ``s.set(s.value + 1)`` to assign."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def set(self, value: IntLike) -> None:
        """Records an assignment."""
        _core.record_assign(self.value, value)


def scalar(name: str, value: IntLike, min: int | None = None, max: int | None = None, multiple_of: int = 1) -> Scalar:
    """A mutable integer. `min`, `max` and `multiple_of` are facts that every value assigned to it has.

    None: `min` is 0, as of a symbol, and `max` is 2^63 - 1; a scalar that may be negative says so: ``min=-1``. Raises
    VerifyError SCALAR_FACTS where a value cannot keep them, LayoutError SYM_FACTS where they contradict each other;
    when run SimulationError SIM_FACT where a value does not.
    """
    return Scalar(_core.record_scalar(name, value, min, max, multiple_of, False))


def index(x: Tensor, min: int, max: int, multiple_of: int = 1) -> Any:
    """An integer that lives in data: the value of one element when this statement runs, as an index expression.

    x: one element of an integer tensor, in memory or in a register. The facts are promises that the data keeps:
    `min` <= value <= `max`, a multiple of `multiple_of`; the simulator checks them. For packed sequences, with
    ``T.window(start, size)``. Raises LayoutError TENSOR_TYPE, SYM_FACTS; when run SimulationError SIM_FACT.
    """
    return _core.record_index(x, min, max, multiple_of)


def barrier(on: ThreadTensor | None = None) -> None:
    """Every thread of the group (default: of the block) arrives before any goes on; orders shared and global memory.

    `on` may be the blocks of a cluster, ``blocks[c]`` of ``blocks = gr.blocks(n, cluster=2)``: every thread of these
    blocks arrives. Raises VerifyError SPEC_GROUP, VERIFY_BARRIER_DIVERGENT, VERIFY_CLUSTER.
    """
    _core.record_sync("barrier", on, "", {})


def commit(atom: Any) -> None:
    """Closes a group of this thread's asynchronous copies: those by `atom` since the last commit.

    PTX cp.async.commit_group. `atom`: an entry or family whose copies complete by groups, or its name. Raises
    SelectError ATOM_UNKNOWN; NO_ATOM when lowered, for an atom that is complete when it has executed.
    """
    _core.record_sync("commit", None, name_of_atom(atom), {})


def wait(atom: Any, pending: int, written: bool = False) -> None:
    """Waits until at most the newest `pending` groups of this thread's copies by `atom` are under way.

    PTX cp.async.wait_group. It covers this thread's own copies: other threads need a barrier behind it. Of stores that
    copy out of shared memory (PTX cp.async.bulk.wait_group.read) it waits until their sources have been read; with
    `written` until what they wrote is visible. Raises as commit.
    """
    if pending is None:  # an attribute that is None is one left out: the wait for everything, which is another one
        raise TypeError("pending must be an integer, got None")
    attrs: dict[str, Any] = {"pending": pending}
    if written:
        attrs["written"] = True
    _core.record_sync("wait", None, name_of_atom(atom), attrs)


def wait_kernels() -> None:
    """Waits until the kernels before this one in its stream have ended and what they wrote is visible.

    PTX griddepcontrol.wait. A kernel that says so itself is launched so that it may start while those are still
    running: what stands before it, and the launch, overlap their end. Before sm_90 every kernel starts when those
    before it have ended, and this does nothing. Stands before all accesses of global memory, outside of branches and
    loops. What those kernels wrote is not loaded by ld.global.nc: that is for memory that nobody writes while the
    kernel runs, its early part included. Raises VerifyError VERIFY_WAIT when the kernel is lowered.
    """
    _core.record_sync("wait_kernels", None, "", {})


def start_kernels() -> None:
    """Lets the next kernel of the stream start, if it waits by `wait_kernels`, once every block has come this far.

    PTX griddepcontrol.launch_dependents; a kernel that does not say it lets the next one start when its last blocks
    end. Results do not depend on it: the next kernel waits for the end of this one. Before sm_90 it does nothing.
    """
    _core.record_sync("start_kernels", None, "", {})


def fence(atom_or_proxy: Any) -> None:
    """Orders this thread's earlier accesses before the later asynchronous ones of an atom, or of a proxy.

    "async.shared", "async.global": what threads stored and read in that memory before what asynchronous copies and
    products do there (PTX fence.proxy.async). The atom's completion domain must have a fence among the entries:
    cp.async reads and writes as threads do and needs none. Raises SelectError NO_ATOM when the kernel is lowered.
    """
    _core.record_sync("fence", None, name_of_atom(atom_or_proxy), {})


def setmaxnreg(registers: int) -> None:
    """Gives each thread of the role that executes it so many registers (PTX setmaxnreg).

    At the start of a role of whole warpgroups, ``with gr.only(warpgroups[0]):``, once, and in every warpgroup of the
    block: a multiple of 8 from 24 to 256. The sum stays within what the block owns at its launch, which is 65536
    registers divided by its threads, rounded down to a multiple of 8, for each of them. Raises VerifyError
    VERIFY_REGISTERS when the kernel is lowered.
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
        """Parity of the round: what a wait on the stage's mbarrier takes."""
        return self._phase

    def advance(self, n: IntLike = 1) -> None:
        """Records `n` steps, 0 or more: one to the next stage, or over stages that are another's."""
        following = self._index + n
        rounds = following // self.stages
        if not (isinstance(n, int) and n <= self.stages):  # else at most one round is over
            rounds = rounds % 2
        _core.record_assign(self._phase, self._phase ^ rounds)
        _core.record_assign(self._index, following % self.stages)


def ring(name: str, stages: int, phase: int = 0) -> Ring:
    """A position in a ring of `stages` buffers, starting at stage 0.

    `phase`: 1 for a producer of a ring that starts empty. Raises VerifyError RING_STAGES, KERNEL_NAME.
    """
    _core.check_ring(name, stages, phase)
    return Ring(name, stages, phase)
