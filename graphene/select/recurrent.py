"""The choice of a recurrent cell's tile, by rows and hidden units."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphene.kernels.recurrent import CellConfig
from graphene.kernels.recurrent_sm90 import CellSm90Config
from graphene.select.device import H200
from graphene.select.sm90_time import has_wgmma

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.select.device import Device

__all__ = ["select_cell"]

# Rows, columns of the product, consumers, turns.
TILES = ((256, 128, 2, False), (128, 128, 2, True), (128, 128, 2, False), (64, 128, 1, False), (64, 64, 1, False))
STAGES = 10  # more were not faster
FEW_ROWS = 64  # with fewer, a tile is not full


def _by_wgmma(M: int, N: int, c: CellSm90Config, device: Device) -> CellSm90Config | None:
    """The tile of `cell_sm90` with the least work for the multiprocessor that has most; None if none serves."""
    if M < FEW_ROWS or N % 8:
        return None
    found = []
    for rows, columns, consumers, turns in TILES:
        units = columns // c.gates
        if c.gates == 4 and (N % units or rows > 128):  # the states of a cell of four gates take long, which turns hide
            continue
        tiles = -(-M // rows) * -(-N // units)
        rounds = -(-tiles // device.sm_count)
        if turns and rounds == 1:  # the second consumer would have nothing to do
            continue
        # Beside its products, each tile costs a start, and smaller tiles read their operands more often.
        work = rounds * (rows * columns + 2048 + 24 * (rows + columns))
        tile = replace(c, tile=(rows, units), consumers=consumers, turns=turns, stages=0)
        one = replace(tile, stages=1).shared_bytes - tile.shared_bytes
        stages = min(STAGES, (device.shared_bytes - tile.shared_bytes) // one)
        if stages >= 2:
            found.append((work, replace(tile, stages=stages)))
    return min(found, key=lambda f: f[0], default=(0, None))[1]


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
) -> CellConfig | CellSm90Config:
    """The configuration that was measured to be fast for M rows and N hidden units.

    ``simulated``: the one with the least work for the simulator. The other arguments are those of CellConfig.
    """
    if has_wgmma(device) and not simulated and min(align) >= 16:
        wanted = CellSm90Config(gates, activation, biases, dtype)
        if (hopper := _by_wgmma(M, N, wanted, device)) is not None:
            return hopper
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
