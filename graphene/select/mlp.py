"""The choice of a perceptron's tile, by its widths and the number of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphene.kernels.mlp import MlpConfig, up
from graphene.select.device import H200

if TYPE_CHECKING:
    from graphene.kernels.mlp import Activation
    from graphene.select.device import Device

__all__ = ["select_mlp"]


def select_mlp(
    rows: int,
    widths: tuple[int, ...],
    activations: tuple[Activation, ...],
    biases: tuple[bool, ...],
    *,
    dtype: str = "fp16",
    align: tuple[int, int] = (16, 16),
    device: Device = H200,
    simulated: bool = False,
) -> MlpConfig | None:
    """The configuration that was measured to be fast for this number of rows; None if it is a plain product.

    ``simulated``: the one with the least work for the simulator. The other arguments are those of MlpConfig.
    """
    depth = len(widths) - 1
    widest = max([*map(up, widths[1:-1]), min(up(widths[0]), 256) if depth > 1 else 16])
    per_sm, wide_input = rows / device.sm_count, widths[0] > 256
    few = min(4 if widest <= 128 else 8, 1 << (widest // 16).bit_length() - 1)  # warps that divide the columns
    # Rows of a warp, warps by rows and by columns, columns of a tile of weights, tiles.
    tiles: list[tuple[int, int, int, int, int]]
    if simulated:
        tiles = [(16, 2, 1, 32, 3)]
    elif per_sm <= 16:
        tiles = [(16, 1, few, 128 if widest <= 128 else 64, 5)]
    elif per_sm <= 32:
        tiles = [(32, 1, few, 128 if widest <= 128 else 64, 5)]
    elif widest <= 128:
        tiles = [(16, 4, 1, 128, 3) if per_sm <= 64 else (32, 2, 1, 128, 3) if per_sm <= 128 else (32, 4, 1, 128, 2)]
    elif per_sm <= 64:
        tiles = [(32, 2, 4, 64, 4)]
    else:
        tiles = [(16, 8, 1, 64, 3) if wide_input else (32, 4, 2, 64, 3), (32, 2, 4, 64, 3)]
    most = 16
    while most < max(map(up, widths[:-1])) and most < 128:
        most *= 2
    for m, warps, across, chunk, stages in [*tiles, (16, 4, 1, 64, 3), (16, 2, 1, 16, 3)]:
        columns = min(128 if widest <= 128 < up(widths[-1]) else 256, 4096 // m * across)
        tile = (m, warps, min(chunk, most), stages)
        c = MlpConfig(widths, activations, biases, dtype, *tile, columns, None, align, across)
        if c.depth == 1 and c.streams and up(widths[1]) > columns:
            return None
        fixed, stage = c.shared_bytes
        if (fits := (device.shared_bytes - 1024 - fixed) // stage) >= 2:
            return replace(c, stages=min(stages, fits))
    return None
