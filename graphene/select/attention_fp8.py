"""The choice of the tile of attention with fp8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.kernels.attention.sm90_config import ForwardSm90
from graphene.select.device import H200

if TYPE_CHECKING:
    from graphene.kernels.attention.problem import Attention
    from graphene.select.device import Device


def select_forward_fp8(
    what: Attention, batch: int, heads: int, sq: int, sk: int, *, lse: bool = False, device: Device = H200
) -> ForwardSm90:
    """The forward kernel for a problem of fp8, among the tiles that need no more registers than there are.

    `heads`: of queries. `sq`, `sk`: queries and keys.
    """
    tiles = batch * heads * -(-sq // 128)
    if what.depth <= 64 and tiles < device.sm_count:  # small blocks leave no multiprocessor idle
        return ForwardSm90(what, 64, 1, 2, 1, lse=lse, persistent=False, copier=False)
    if what.depth <= 64 and not (what.left or what.right or what.prescaled or lse):
        return ForwardSm90(what, 128, 3, 3)
    if what.depth <= 128:
        return ForwardSm90(what, 128, 2, 3 if what.depth <= 64 else 2, lse=lse)
    return ForwardSm90(what, 64, 2, 2, 1, lse=lse)
