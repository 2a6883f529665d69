"""Tiles of products that the compiler in use spills, which is known once they are compiled.

Selection takes no tile that is known to spill with the NVRTC that the tests are held to. Another one may do with fewer
registers or need more. An operator tells what its compiler has spilled, and asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.kernels.gemm.whole import product_of

if TYPE_CHECKING:
    from graphene.kernel import Kernel
    from graphene.kernels.gemm.problem import GemmProblem, GemmTile

__all__ = ["avoid", "forget", "slower"]

SPILLED = 2.0  # the factor of a spilling tile's expected time; no spilling tile of a benchmark was as slow

_spilled: set[tuple[object, ...]] = set()


def avoid(kernel: Kernel) -> bool:
    """Remembers that a product's kernel spills. False if that was known, or the kernel has no tile to avoid."""
    of = product_of(kernel)
    if of is None or (key := _key(*of, of[1].pad, of[1].split_k)) in _spilled:
        return False
    _spilled.add(key)
    return True


def forget() -> None:
    """Forgets what spills, as a new process."""
    _spilled.clear()


def slower(p: GemmProblem, t: GemmTile, pad: tuple[bool, bool], split_k: int) -> float:
    """The factor of a tile's expected time, with such padded copies and parts of k: 1, or more if it spills."""
    return SPILLED if _spilled and _key(p, t, pad, split_k) in _spilled else 1.0


def _key(p: GemmProblem, t: GemmTile, pad: tuple[bool, bool], split_k: int) -> tuple[object, ...]:
    """What a kernel's registers depend on, which excludes sizes, the number of stages and the order of tiles."""
    return p.form, t.kernel, t.tile, t.warps, t.cluster, t.turns, t.terms_in_stages, pad, split_k > 1
