"""The simulator, its hazards, promises and reports: csrc/sim."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from graphene._stub.base import _Record
from graphene._stub.ir import KernelIR
from graphene._stub.programs import Program

class TraceEvent(_Record):
    """One event of a trace. Time counts steps: the page on the simulator states the rule. It is not a device's time.

    ``kind``: of a warp "leaf", "barrier", "commit", "wait", "arrive", "fence"; "in flight": a group of a thread's
    copies from its first instruction until the wait that covers it (``landed``; else none did). Of an agent "copy"
    (TMA) and "product" (``wgmma``), from the issue to the completion; from ``begin`` to ``until`` the agent is at it.
    "phase": of an mbarrier or a named barrier. ``warp``, ``block``: in the cluster; of a copy the block that receives
    it, of a phase the barrier's (``warp`` is -1). ``domain``: of copies and products. ``start``, ``end``: steps
    [start, end). ``count``: executions of one leaf in a row, or instructions of a group. ``atom``, ``spec``: the atomic
    spec and its kind. ``op``: the operation of a synchronising statement. ``id``, ``text``, ``where``: the IR statement
    and its Python ``file:line``. ``bytes``: of a copy.
    ``flops``: of a product. ``barrier``, ``phase``: at which an arrival, a wait or a copy is. ``reads``, ``writes``:
    stages of shared memory.
    """

    kind: str
    warp: int
    domain: str
    start: int
    end: int
    count: int
    atom: str
    spec: str
    op: str
    id: int
    text: str
    where: str
    landed: bool
    block: int
    begin: int
    until: int
    bytes: int
    flops: int
    barrier: str
    phase: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]

class Rounding(_Record):
    """A value becomes narrower than fp32 and is then computed with.

    ``tensor``: the name of the tensor that takes the narrower value. ``source``: the widest type that the statement
    computes from. ``type``: the tensor's type. ``where``: Python ``file:line`` of the statement.
    """

    tensor: str
    source: str
    type: str
    where: str

class Simulation(_Record):
    """What a simulation did.

    ``lane_ops``: one thread executing one atomic spec each. ``accesses``: elements read or written in memory.
    ``events``: of the first block, ``roundings``: where values became narrower; both empty where they were not asked
    for.
    """

    lane_ops: int
    accesses: int
    events: tuple[TraceEvent, ...]
    roundings: tuple[Rounding, ...]

class Wrote(_Record):
    """What a register or an element in memory held after a statement that wrote it.

    ``step``: how many statements warps executed before. ``where``: Python ``file:line`` of the statement, ``statement``
    its text. ``block``, ``thread``: who wrote it. ``place``: "r[2]", "s[3,1]". ``value``: a number, or None where a
    register holds what was never written.
    """

    step: int
    where: str
    statement: str
    block: int
    thread: int
    place: str
    value: bool | int | float | None

class Unreached(_Record):
    """A statement that no thread executed, or a loop that none repeated.

    ``id``: the same number in every call of the kernel. ``statement``: the number of the statement in the kernel.
    ``text``: which of both, in words. ``where``: ``file:line``.
    """

    id: int
    statement: int
    text: str
    where: str

class CodeCache:
    """Code of calls that ran, for calls of equal sizes: compiling takes as long as a small call runs."""

    def __init__(self) -> None: ...

class CallRun(_Record):
    """What a call did, and what of the kernel it reached.

    ``reached``: numbers, as ``id`` of what is unreached. ``written``: of ``run_blocks``: by argument a byte for each
    element, 1 where it was written by no atomic update.
    """

    lane_ops: int
    unreached: tuple[Unreached, ...]
    roundings: tuple[Rounding, ...]
    reached: tuple[int, ...]
    written: dict[str, bytes]

class TellingBlocks(_Record):
    """Blocks of a grid such that whatever a block does, one of them does, too.

    ``blocks``: linear numbers. ``looked_at``: how many were compared, of ``grid_blocks``.
    """

    blocks: tuple[int, ...]
    looked_at: int
    grid_blocks: int

class Problem(_Record):
    """A hazard, or a spec that breaks its promise.

    ``code``: SIM_* or CHECK_*. ``where``: Python ``file:line`` of the statement. ``ir``: its IR text, and that of the
    other side of a race. ``text``: everything, as an exception would print it.
    """

    code: str
    message: str
    where: str
    ir: tuple[str, ...]
    details: tuple[str, ...]
    text: str

class CheckRun(_Record):
    """What looking for hazards and broken promises found.

    ``promises``: instances of specs that were held to theirs. ``sizes``: of the kernel's symbols. ``blocks``: that
    ran.
    """

    problems: tuple[Problem, ...]
    promises: int
    lane_ops: int
    accesses: int
    sizes: dict[str, int]
    blocks: int

class WidthLimit(_Record):
    """The reason why an access does not take 16 bytes a thread at once.

    ``what``: "contiguity", "tile" (the leaf is smaller), "alignment" (no larger one is proven), "swizzle", "bounds"
    (the end of the tensor may cut the access) or "atom" (the chosen atom takes less). ``text``: the same in words,
    with the reason and what to change.
    """

    what: str
    text: str

class Access(_Record):
    """One memory operand of one IR statement, over all blocks that ran."""

    where: str
    text: str
    atom: str
    buffer: str
    memory: str
    op: str
    vector_bytes: int
    requests: int
    lanes: int
    bytes: int
    wavefronts: int
    conflicts: int
    ways: int
    sectors: int
    ideal_sectors: int
    limits: tuple[WidthLimit, ...]

class AgentWork(_Record):
    """Copies or products of one IR statement, over all blocks that ran.

    ``what``: "load" and "store" (by TMA, to and from shared memory), "copy" (between shared memories) or "product"
    (``wgmma``). ``source``, ``target``: names of tensors; of a product the factors, and the sums. ``blocks``: that
    receive each copy; its bytes are counted once. ``count``: copies or instructions. ``bytes``: that are copied,
    without those outside of the tensor; of a product those that it reads from shared memory. ``flops``: of a product.
    """

    where: str
    text: str
    what: str
    atom: str
    source: str
    target: str
    blocks: int
    count: int
    bytes: int
    flops: int

class BarrierPhases(_Record):
    """An allocation of mbarriers, or a named barrier, over all blocks that ran.

    ``stages``: how many barriers it has. ``arrivals``: that a phase waits for; of a named barrier: threads.
    ``phases``: that were over, of all stages together.
    """

    name: str
    named: bool
    stages: int
    arrivals: int
    phases: int

class MemoryReport(_Record):
    """What the memory system makes of every access, and what agents do: ``rows`` and ``agents`` in textual order;
    ``blocks`` of ``grid_blocks`` ran.
    """

    rows: tuple[Access, ...]
    agents: tuple[AgentWork, ...]
    barriers: tuple[BarrierPhases, ...]
    sizes: dict[str, int]
    blocks: int
    grid_blocks: int

class Sync(_Record):
    """A synchronisation statement.

    ``id``: for ``skip=`` and ``relax=``. ``op``: "barrier", "commit", "wait", ... ``text``: its IR. ``where``: the
    Python ``file:line`` that built it. Of an arrival, ``releases``: it passes on what was written before, to a cluster;
    ``expects``: bytes of copies.
    """

    id: int
    op: str
    text: str
    where: str
    releases: bool
    expects: bool

def simulate(
    program: Program,
    args: tuple[Any, ...],
    named: dict[str, Any],
    seed: int = 0,
    skip: Sequence[int] = (),
    relax: Sequence[int] = (),
    unguarded: bool = False,
    trace: bool = False,
    roundings: bool = False,
    memory_bytes: int = ...,
) -> Simulation: ...
def watch(
    program: Program,
    args: tuple[Any, ...],
    named: dict[str, Any],
    seed: int,
    name: str,
    block: int,
    thread: int,
    limit: int,
    into: list[Wrote],
) -> int: ...
def run_call(
    program: Program,
    named: dict[str, Any],
    seed: int = 0,
    memory_bytes: int = ...,
    roundings: bool = True,
    codes: CodeCache | None = None,
) -> CallRun: ...
def run_blocks(
    program: Program, named: dict[str, Any], seed: int, blocks: Sequence[int], memory_bytes: int = ...
) -> CallRun: ...
def telling_blocks(program: Program, named: dict[str, Any], few: int) -> TellingBlocks: ...
def default_arch(kernel: KernelIR) -> str: ...
def argument_sizes(program: Program, args: tuple[object, ...]) -> dict[str, int]: ...
def launch_conditions(program: Program) -> list[str]: ...

_Reference: TypeAlias = Callable[[str, list[tuple[list[int], list[float]]], list[list[int]]], list[list[float]] | str]

def check(
    program: Program,
    sizes: dict[str, int],
    seed: int = 0,
    reference: _Reference | None = None,
    skip: Sequence[int] = (),
    relax: Sequence[int] = (),
    hazards_alone: bool = False,
    args: tuple[object, ...] = (),
    promises_alone: bool = False,
    blocks: Sequence[int] = (),
    memory_bytes: int = ...,
) -> CheckRun: ...
def report(
    program: Program, sizes: dict[str, int], all_blocks: bool = False, args: tuple[object, ...] = ()
) -> MemoryReport: ...
def sync_statements(kernel: KernelIR) -> list[Sync]: ...
