"""The choice of a perceptron's tile, by its widths and the number of rows.

On a device with `wgmma` there are two kernels, and a model of each one's time says which is taken. A layer of both
costs its operations, and a time that does not depend on rows, in which warps wait for each other and for sums. The
constants fit times on an H200: by `wgmma` none of 14 is more than 17% from the model, by `mma.sync` none of 10 more
than 30%, in either direction.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from graphene.kernels.mlp import MlpConfig, up
from graphene.kernels.mlp_sm90 import CHUNK, DEEPEST, HELD, MlpSm90Config
from graphene.select.device import H200
from graphene.select.sm90_time import has_wgmma

if TYPE_CHECKING:
    from graphene.kernels.mlp import Activation
    from graphene.select.device import Device

__all__ = ["mma_us", "select_mlp", "wgmma_us"]

LAUNCH_US = 5.0  # before the first layer and behind the last one, where caches are cold
MMA_FLOPS = 2.9e6  # operations of a multiprocessor in a microsecond, with activations, by mma.sync
MMA_LAYER_US = 0.1
MMA_FIRST = 3  # factor of the first blocks' time of memory; that of others runs beside products
MMA_WEIGHTS = 0.6  # the share of the time to bring weights from the L2 cache that is not hidden
WGMMA_LAUNCH_US = 6.0  # with the maps that TMA reads, and the first boxes
WGMMA_FLOPS = 5.6e6  # the same by wgmma, of consumers that take turns
WGMMA_LAYER_US = 0.1  # between products and activation, and for turns
ACTIVATION_US = 0.1  # of CHUNK columns of 64 rows
STAGES = 10  # more were not faster
MEMORY = 0.957  # what is reached of Device.memory_rate


def _memory_us(rows: int, widths: tuple[int, ...], device: Device) -> float:
    return rows * (widths[0] + widths[-1]) * 2 / (MEMORY * device.memory_rate * 1e3)


def mma_us(rows: int, widths: tuple[int, ...], device: Device) -> float:
    """About how long `mlp_kernel` takes, in microseconds."""
    weights = sum(up(k) * up(n) for k, n in pairwise(widths))
    us = 2 * weights * max(16, rows / device.sm_count) / (MMA_FLOPS * device.tensor_rate / H200.tensor_rate)
    us += MMA_WEIGHTS * 2 * weights / (device.l2_bytes * device.clock_ghz * 1e3)
    us += LAUNCH_US + MMA_LAYER_US * (len(widths) - 1)
    return us + MMA_FIRST * _memory_us(min(rows, 128 * device.sm_count), widths, device)


def wgmma_us(c: MlpSm90Config, rows: int, device: Device) -> float:
    """About how long `mlp_sm90` takes, in microseconds."""
    rounds, us = -(-rows // (c.block_rows * device.sm_count)), 0.0
    for k, n in pairwise(c.widths):
        products = 2 * c.rows * up(k) * up(n) / (WGMMA_FLOPS * device.tensor_rate / H200.tensor_rate)
        between = WGMMA_LAYER_US + ACTIVATION_US * (c.rows // 64) * -(-n // CHUNK)
        us += rounds * (max(c.consumers * products, products + between) + WGMMA_LAYER_US * (c.consumers > 1))
    return WGMMA_LAUNCH_US + us + _memory_us(rows, c.widths, device)


def _by_wgmma(rows: int, c: MlpSm90Config, device: Device) -> tuple[float, MlpSm90Config] | None:
    """The best tile of `mlp_sm90` for a problem, or for its first layers if it has more than a kernel takes."""
    depth = min(c.depth, DEEPEST)
    widths = c.widths[: depth + 1]
    if not has_wgmma(device) or rows < 2 or c.align[0] < 16:  # the lines of one row may have any stride
        return None
    if any(n % 8 for n in widths[:-1]) or 64 * max(map(up, widths[1:])) > HELD or (depth < c.depth and widths[-1] % 8):
        return None
    c = replace(
        c, widths=widths, activations=c.activations[:depth], biases=c.biases[:depth],
        align=(16, 16 if depth < c.depth else c.align[1]),
    )  # fmt: skip
    found = []
    for m, consumers in ((64, 1), (64, 2), (128, 2)):
        if m * max(map(up, widths[1:])) > HELD:
            continue
        # Where most of the work is to read X in pieces, a consumer would keep its turn while it waits for them.
        inner = sum(k * n for k, n in pairwise(widths[1:]))
        turns = consumers > 1 and inner > widths[0] * widths[1]
        empty = replace(c, rows=m, consumers=consumers, turns=turns, stages=0)
        one = replace(empty, stages=1).shared_bytes - empty.shared_bytes
        stages = min(STAGES, (device.shared_bytes - empty.shared_bytes) // one)
        if stages >= max(2, -(-max(widths[1:]) // CHUNK)):
            tile = replace(empty, stages=stages)
            found.append((wgmma_us(tile, rows, device), tile))
    return min(found, key=lambda f: f[0], default=None)


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
) -> MlpConfig | MlpSm90Config | None:
    """The configuration that is fast for this number of rows; None if it is a plain product.

    That of Hopper's kernel takes only the first layers if there are more than it may have: its ``depth`` says how many.
    ``simulated``: the one with the least work for the simulator. The other arguments are those of MlpConfig.
    """
    depth = len(widths) - 1
    wanted = MlpSm90Config(widths, activations, biases, dtype, align=align)
    hopper = None if simulated else _by_wgmma(rows, wanted, device)
    if hopper is not None and hopper[0] < mma_us(rows, hopper[1].widths, device):
        return hopper[1]
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
