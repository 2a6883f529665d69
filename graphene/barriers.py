"""Barriers with stages: mbarriers, at which threads and copies arrive, and named barriers, for whole warps.

Both are declared with a number of stages and used one stage at a time: ``full[ring.index].wait(ring.phase)``. No thread
waits unless the kernel says so. Errors: VerifyError KERNEL_NONE, KERNEL_SCOPE, KERNEL_FOREIGN, VERIFY_BARRIER. Source:
PTX ISA, parallel synchronization and communication instructions: mbarrier, barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.atoms import name_of_atom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphene._core import IntLike, Tensor, ThreadTensor

__all__ = ["Mbarrier", "Mbarriers", "NamedBarrier", "NamedBarriers", "mbarrier", "named_barrier"]


class Mbarrier:
    """One mbarrier in shared memory. Its phase ends when all arrivals, and the bytes that they expect, have come."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def arrive(
        self,
        expect: Tensor | Sequence[Tensor] | IntLike | None = None,
        at: ThreadTensor | None = None,
        after: Any = None,
        release: bool = False,
    ) -> None:
        """Records one arrival of each executing thread.

        `expect`: tensors in shared memory that copies fill in this phase, or a number of bytes. All bytes of a tensor
        count, even where a copy's source is outside of its tensor. `at`: blocks of the cluster; the arrival is at the
        same barrier of each of them; what this thread stored is visible there only with `release` (and a wait with
        `acquire`), which costs a fence of all memory: leave it out where stages that have been read are given back.
        `after`: an atom; the arrival happens when this thread's copies by it have landed
        (PTX cp.async.mbarrier.arrive.noinc). Raises VerifyError VERIFY_BARRIER.
        """
        tensors: Sequence[Any] = ()
        count: Any = 0
        if isinstance(expect, _core.Tensor):
            tensors = (expect,)
        elif isinstance(expect, (list, tuple)):
            tensors = expect
        elif expect is not None:
            count = expect
        name = "" if after is None else name_of_atom(after)
        _core.record_barrier_op("arrive", self.tensor, None, tensors, count, at, name, release)

    def wait(self, phase: IntLike, acquire: bool = False) -> None:
        """Waits until the phase of this parity, 0 or 1, is over; a ring gives it as ``ring.phase``.

        For a fresh barrier the phase of parity 1 counts as over, so a ring that starts empty has ``phase=1``. After the
        wait, what threads wrote before their arrivals and what copies wrote in that phase is visible; with `acquire`
        also what threads of other blocks of the cluster wrote before arrivals with `release`. Raises VerifyError
        VERIFY_BARRIER.
        """
        _core.record_barrier_op("wait_phase", self.tensor, phase, (), 0, None, "", acquire)


class NamedBarrier:
    """One of the block's 16 hardware barriers, for whole warps. A warp may arrive at it and wait elsewhere."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def arrive(self) -> None:
        """Arrives without waiting (PTX barrier.arrive)."""
        _core.record_barrier_op("arrive", self.tensor, None, (), 0, None, "", False)

    def sync(self) -> None:
        """Arrives, and waits until as many threads have arrived as the barrier was declared for (PTX barrier.sync)."""
        _core.record_barrier_op("sync", self.tensor, None, (), 0, None, "", False)


class Mbarriers:
    """The mbarriers of a ring's stages: ``full[i]`` is the one of stage `i`."""

    __slots__ = ("stages", "tensor")

    def __init__(self, tensor: Tensor, stages: int) -> None:
        self.tensor, self.stages = tensor, stages

    def __getitem__(self, index: IntLike) -> Mbarrier:
        """The barrier of a stage. Raises LayoutError TENSOR_INDEX for a stage that does not exist."""
        return Mbarrier(self.tensor[index])

    __iter__ = None


class NamedBarriers:
    """The named barriers of a number of stages, one of the block's 16 each: ``turn[i]``."""

    __slots__ = ("stages", "tensor")

    def __init__(self, tensor: Tensor, stages: int) -> None:
        self.tensor, self.stages = tensor, stages

    def __getitem__(self, index: IntLike) -> NamedBarrier:
        """The barrier of a stage. Raises LayoutError TENSOR_INDEX for a stage that does not exist."""
        return NamedBarrier(self.tensor[index])

    __iter__ = None


def mbarrier(name: str, stages: int, arrivals: int) -> Mbarriers:
    """Barriers in shared memory, 8 bytes each, initialised where they are declared, before a barrier of the block.

    `stages`: the number of barriers. `arrivals`: how many a phase of one barrier waits for, 1 to 2^20 - 1. Raises
    VerifyError VERIFY_BARRIER, KERNEL_NAME, KERNEL_NONE.
    """
    return Mbarriers(_core.record_barriers("mbar", name, stages, arrivals), stages)


def named_barrier(name: str, stages: int, threads: int) -> NamedBarriers:
    """Hardware barriers of the block, one of its 16 for each stage.

    `threads`: how many arrive or wait in a round, a multiple of 32. Raises VerifyError VERIFY_BARRIER, KERNEL_NAME,
    KERNEL_NONE; LOWER_BARRIERS where the block needs more barriers than it has.
    """
    return NamedBarriers(_core.record_barriers("bar", name, stages, threads), stages)
