"""The choice of a recurrent cell's tile, by rows and hidden units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.kernels.recurrent import CellConfig
from graphene.select.device import H200

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.select.device import Device

__all__ = ["select_cell"]


def select_cell(
    M: int,
    N: int,
    *,
    gates: int = 1,
    activation: str | Callable[[Any], Any] | None = "relu",
    biases: int = 1,
    dtype: str = "fp16",
    align: tuple[int, int, int, int, int] = (16, 16, 16, 16, 16),
    device: Device = H200,
    simulated: bool = False,
) -> CellConfig:
    """The configuration that was measured to be fast for M rows and N hidden units.

    ``simulated``: the one with the least work for the simulator. The other arguments are those of CellConfig.
    """
    columns, big = N * gates, ((128, 256, 64), 3, (2, 4))  # of the product, a tile of it
    tiles, least = [big, ((128, 128, 64), 3, (2, 2)), ((64, 64, 128), 3, (2, 2))], ((32, 64, 128), 4, (1, 2))
    if gates == 4:
        tiles[2:] = [((64, 128, 64), 4, (2, 2)), ((64, 64, 64), 4, (4, 1))]
        least = ((32, 64, 128), 4, (2, 1))

    def stages_of(tile: tuple[int, int, int]) -> int:
        m, n, k = tile
        states = m * n // 4 * 2 if gates == 4 else 0  # bytes of C's tile
        return (device.shared_bytes - 1024 - states) // ((m + n) * k * 2)

    def serves(tile: tuple[int, int, int]) -> bool:
        return -(-M // tile[0]) * -(-columns // tile[1]) >= 0.75 * device.sm_count and stages_of(tile) >= 2

    if min(align[:4]) < 4:  # tiles pass through registers, which leaves no room for large ones
        tiles, least = [], ((64, 64, 32), 2, (4, 2) if gates == 1 else (4, 1))
    # The largest tile that fits and gives most of the device something to do.
    (m, n, k), stages, warps = next((t for t in tiles if serves(t[0])), least)
    if simulated:
        (m, n, k), stages, warps = (32, 32 * gates, 32), 2, (2, 1)
    stages = max(2, min(stages, stages_of((m, n, k))))
    group = 8 if gates == 1 and -(-M // m) >= 16 and -(-columns // n) >= 16 else 1  # four would spill
    return CellConfig(gates, activation, biases, dtype, (m, n // gates, k), stages, warps, group, align)
