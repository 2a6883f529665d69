"""Running kernels without a GPU: values as the device computes them, every memory access checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from graphene import _core
from graphene._core import Rounding, Sync
from graphene.viz.timeline import Trace, TraceEvent

if TYPE_CHECKING:
    from graphene.recorded import Recorded

__all__ = ["Rounding", "SimulationStats", "Sync", "Trace", "TraceEvent", "relaxation", "simulate", "syncs"]


MEMORY_BYTES = 8 << 30  # the most that a run may hold beside the arguments


class SimulationStats(NamedTuple):
    """Counts of a simulation.

    ``lane_ops``: how often a thread executed an atomic spec. ``accesses``: how many elements were read or written in
    memory; each access was checked. ``arch``: the architecture whose atoms ran. If they were asked for, ``trace`` is
    what the first block did, and ``roundings`` are the places where values became narrower on their way to a result
    (sorted, each once).
    """

    lane_ops: int
    accesses: int
    arch: str
    trace: Trace | None = None
    roundings: tuple[Rounding, ...] | None = None


def check_seed(seed: object) -> None:
    """Raises ValueError unless it is an integer, 0 or more."""
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be an integer, 0 or more and below 2**64, got {seed!r}")


def check_memory(memory_bytes: object) -> None:
    """Raises ValueError unless it is a positive number of bytes."""
    if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int) or not 0 < memory_bytes < 2**62:
        raise ValueError(f"memory_bytes must be a number of bytes, more than 0 and below 2**62, got {memory_bytes!r}")


def check_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes. Raises TypeError unless they are integers."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"the size {name} must be an integer, got {value!r}")
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"the size {name} must fit 64 bits, got {value}")
    return sizes


def _ids(name: str, ids: object) -> list[int]:
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise TypeError(f"{name}= takes a list of ids from kernel.syncs(), got {ids!r}")
    return list(ids)


def relaxation(sync: Sync) -> str | None:
    """The weaker form that ``relax=`` gives the statement; None if it has none."""
    if sync.op == "arrive":
        if sync.releases:
            return "without release"
        return "half of the bytes expected" if sync.expects else None
    return {"wait": "one more group in flight", "wait_phase": "for the other phase"}.get(sync.op)


def simulate(
    kernel: Recorded,
    args: tuple[object, ...],
    named: dict[str, object],
    arch: str | None = None,
    seed: int = 0,
    skip: Iterable[int] = (),
    relax: Iterable[int] = (),
    trace: bool = False,
    roundings: bool = False,
    memory_bytes: int = MEMORY_BYTES,
) -> SimulationStats:
    """Runs a kernel on NumPy arrays or CPU tensors, in place.

    ``arch``: the architecture whose atoms run; None means the lowest from sm_80 up that has every named atom.
    ``seed``: decides the order of blocks and warps, 0 runs them in order; hazards are found in any order. ``skip``: ids
    of synchronisation statements (``syncs``) to leave out. ``relax``: ids of statements made weaker: a wait leaves one
    more group in flight, a wait for a phase waits for the other one, an arrival expects half of its bytes. ``trace``:
    record what the first block does. ``roundings``: find where values become narrower than fp32 and are then computed
    with. ``memory_bytes``: how much memory the run may hold beside the arguments.

    Raises SimulationError: SIM_RACE, SIM_OUT_OF_BOUNDS, SIM_UNDEFINED, SIM_DIVERGENT_COLLECTIVE, SIM_DEADLOCK,
    SIM_MISALIGNED, SIM_WRITE_CONFLICT, SIM_OUTPUT_UNWRITTEN, SIM_UNFINISHED_COPY, SIM_MEMORY; LaunchError for
    arguments that the kernel cannot take; VerifyError and SelectError as lowering does.
    """
    check_seed(seed)
    check_memory(memory_bytes)
    listed = syncs(kernel)
    skipped, relaxed = _ids("skip", skip), _ids("relax", relax)
    known = {s.id for s in listed}
    if unknown := [i for i in skipped if i not in known]:
        raise ValueError(f"skip={unknown}: no such synchronisation statement; kernel.syncs() lists them")
    weaker = {s.id for s in listed if relaxation(s)}
    if unknown := [i for i in relaxed if i not in weaker]:
        raise ValueError(f"relax={unknown}: no such wait; kernel.syncs() lists them")
    program = kernel.lowered(arch)
    done = _core.simulate(
        program, args, named, seed, skipped, relaxed, trace=trace, roundings=roundings, memory_bytes=memory_bytes
    )
    recorded = Trace(kernel.name, done.events) if trace else None
    return SimulationStats(done.lane_ops, done.accesses, program.arch, recorded, done.roundings if roundings else None)


def syncs(kernel: Recorded) -> list[Sync]:
    """The synchronisation statements of a kernel in textual order."""
    return _core.sync_statements(kernel.ir)
