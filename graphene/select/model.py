"""The time of a product: blocks run in waves, and a block's time is measured, or computed from a device's rates.

Thirteen tiles of ``gemm_sm80`` were measured on an H200 (`TILES`). For other devices these times are scaled by the
rates of tensor cores and memory there. For any other tile the time is computed from what limits it (`estimate`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.kernels.gemm.reduce import IN_TURN
from graphene.report import occupancy
from graphene.select.device import H200, Device
from graphene.select.tiles import MatmulShape, Tile, checked, up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "SLOWER",
    "TILES",
    "Estimate",
    "MeasuredTile",
    "copies_spill",
    "estimate",
    "in_waves",
    "measured_us",
    "padding_us",
    "parts_us",
    "splits",
]


def in_waves(blocks: int, sm_count: int, per_sm: int, of_resident: Callable[[int], float]) -> float:
    """The time of all blocks: of full waves, with `per_sm` on each multiprocessor, and of a last one with fewer."""
    full, rest = divmod(blocks, sm_count * per_sm)
    return full * of_resident(per_sm) + (of_resident(up(rest, sm_count)) if rest else 0.0)


@dataclass(frozen=True)
class Estimate:
    """The model's expectation for a tile.

    ``us``: time. ``waves``: rounds in which the device runs its blocks. ``blocks_per_sm``: blocks of a multiprocessor.
    ``bound``: what limits a step ("tensor cores", "shared memory", "L2 cache", "memory"). ``busy``: the problem's work
    on tensor cores, as a share of the work that the device could do in ``us``.
    """

    us: float
    waves: float
    blocks_per_sm: int
    bound: str
    busy: float


# Chosen by times of gemm_sm80 on an H200. The results of benchmarks/tiles_bench.py, and docs/tuning.md, say how far off
# they are for the kernel of that benchmark.
STEP_CLOCKS = 87  # clocks of a step's wait and barrier; other blocks of the multiprocessor hide them
FEW_WARPS = 0.235  # a share of the tensor cores' speed; one block of four warps loses half of it
LATENCY_CLOCKS = 1720  # from asking for a tile to having it, when the device is busy
FILL_CLOCKS = 600  # from a block's start to its first product
BESIDE = 0.35  # the share of a block's start and end that remains for each of several blocks
LAUNCH_US = 5.1


def estimate(tile: Tile, shape: MatmulShape, device: Device | str) -> Estimate:
    """Time of a tile that ``judge`` admits. ``device``: a Device or an architecture.

    A step of a block costs as much as the slowest of three: its products, its reads of shared memory (every warp reads
    its rows of A and its columns of B), and its loads, one of which is on its way for each further stage. Blocks of a
    multiprocessor share these rates and hide each other's waits. Blocks run in waves, and the last wave may be partly
    empty. Raises VerifyError KERNEL_ARGUMENT.
    """
    device = checked("estimate", tile, shape, device)
    found = occupancy(device.arch, tile.threads, tile.shared_bytes(shape), tile.registers(shape))
    most = found.blocks_per_sm if found is not None else 1
    blocks = up(shape.m, tile.bm) * up(shape.n, tile.bn) * shape.batch * tile.split_k
    steps = up(up(shape.k, tile.bk), tile.split_k)
    e = shape.element_bytes
    loads = (tile.bm + tile.bn) * tile.bk * e
    reads = tile.warps * (tile.wm + tile.wn) * tile.bk * e
    products = 2 * tile.bm * tile.bn * tile.bk / (device.flops_per_clock * shape.rate)
    on_chip, from_l2 = (reads + loads) / 128, loads / device.l2_bytes
    store = tile.bm * tile.bn * (shape.out_bytes if tile.split_k == 1 else 8) / (2 * device.dram_bytes)

    def clocks(resident: int) -> float:
        """Time of one multiprocessor that runs this many blocks, from start to end."""
        issue = min(1.0, 1 - FEW_WARPS + FEW_WARPS * resident * tile.warps / 8)  # few warps leave gaps
        work = max(products / issue, on_chip, from_l2)
        step = resident * work + STEP_CLOCKS / resident / math.sqrt(resident)
        step = max(step, LATENCY_CLOCKS / max(tile.stages - 1, 0.5))  # stages - 1 tiles are on their way
        return steps * step + (FILL_CLOCKS + store) * (1 if resident == 1 else BESIDE * resident)

    total = in_waves(blocks, device.sm_count, most, clocks)
    names = {"tensor cores": products, "shared memory": on_chip, "L2 cache": from_l2}
    bound = max(names, key=names.__getitem__)
    moved = shape.batch * ((shape.m + shape.n) * shape.k * e + shape.m * shape.n * shape.out_bytes)
    if tile.split_k > 1:
        moved += shape.batch * shape.m * shape.n * 8 * tile.split_k
    memory = moved / device.dram_bytes / device.sm_count
    if memory > total:
        total, bound = memory, "memory"
    us = total / device.clock_ghz / 1e3 + LAUNCH_US * (1 if tile.split_k == 1 else 1.6)
    ideal = 2 * shape.batch * shape.m * shape.n * shape.k / (device.flops_per_clock * shape.rate * device.sm_count)
    return Estimate(us, blocks / (device.sm_count * most), most, bound, ideal / device.clock_ghz / 1e3 / us)


@dataclass(frozen=True)
class MeasuredTile:
    """A tile with 128 bytes of k a stage, and its measured times on an H200 with 16-bit operands.

    ``blocks_per_sm``: how many blocks run beside each other on a multiprocessor. ``ns_alone``: the time of a step of k
    in a block that is alone there. ``ns_beside``: the time that each of several blocks there adds to a step.
    ``us_once``: the time of a block before and after its loop over k.
    """

    rows: int
    columns: int
    stages: int
    warps: tuple[int, int]
    blocks_per_sm: int
    ns_alone: float
    ns_beside: float
    us_once: float

    @property
    def straddling(self) -> float:
        """The factor of the time if an operand's lines begin in the middle of the caches' lines."""
        return 1.6 if min(self.rows, self.columns) <= 64 else 1.15

    def block_us(self, k: int, slower: float) -> Callable[[int], float]:
        """The time of a multiprocessor for the blocks that it runs at once, of `k` steps, `slower` than measured."""
        return lambda resident: self.us_once + k * max(self.ns_alone, resident * self.ns_beside) * 1e-3 * slower


TILES = (
    MeasuredTile(256, 128, 3, (4, 2), 1, 16.0, 16.0, 3.2),
    MeasuredTile(128, 256, 3, (2, 4), 1, 16.4, 16.4, 3.4),
    MeasuredTile(192, 128, 3, (4, 2), 1, 13.1, 13.1, 3.0),
    MeasuredTile(128, 192, 3, (2, 4), 1, 13.5, 13.5, 3.0),
    MeasuredTile(96, 192, 3, (2, 4), 1, 11.5, 11.5, 2.8),
    MeasuredTile(192, 96, 3, (4, 2), 1, 12.1, 12.1, 2.8),
    MeasuredTile(128, 128, 3, (2, 2), 2, 9.9, 9.2, 2.6),
    MeasuredTile(96, 96, 4, (2, 3), 2, 7.7, 6.3, 2.4),
    MeasuredTile(128, 64, 3, (2, 2), 2, 7.4, 5.4, 2.2),
    MeasuredTile(64, 128, 3, (2, 2), 2, 7.5, 5.5, 2.2),
    MeasuredTile(64, 64, 4, (2, 2), 3, 5.2, 3.5, 2.0),
    MeasuredTile(64, 64, 3, (2, 2), 4, 5.5, 3.5, 2.0),
    MeasuredTile(32, 64, 4, (2, 2), 5, 4.6, 2.3, 2.0),
)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MEASURED_LAUNCH_US = 3.5  # time before the first block of a measured tile
PAD_LAUNCH_US = 0.44  # the kernel before the product that copies an operand, beside whose end the product begins
PAD_OTHER_US = 0.81  # more if it copies both
PAD_BYTES_PER_US = 3.23e6  # what it reads and writes, on an H200
SLOWER = {16: 1.0, 8: 1.35, 4: 1.55, 2: 4.0, 1: 8.0}  # by the bytes of a copy; below 4 it goes through registers
SPLIT_US = 2.7  # time of the kernel that adds up parts
PART_US = 0.05  # latency of one more part there
BYTES_PER_US = 2.5e6  # rate of the kernel that adds up parts, on an H200


def measured_us(
    tile: MeasuredTile, M: int, N: int, K: int, batch: int, split_k: int, slower: float, device: Device
) -> float:
    """About how long a product with a measured tile takes, in microseconds, without kernels before and after it."""
    blocks = up(M, tile.rows) * up(N, tile.columns) * batch * split_k
    slower = slower * (H200.tensor_rate / device.tensor_rate)
    block_us = tile.block_us(up(K, split_k), slower)
    return MEASURED_LAUNCH_US + in_waves(blocks, device.sm_count, tile.blocks_per_sm, block_us)


def _workspace_us(moved_bytes: int, bytes_per_us: float, device: Device) -> float:
    return moved_bytes / (bytes_per_us * (device.memory_rate / H200.memory_rate))


def padding_us(elements: Sequence[int], element_bytes: int, device: Device) -> float:
    """How long it takes to copy operands, given the elements of each, to longer lines, all in one launch.

    Of 110 products with such copies, of 26 sizes, on an H200 the whole times were 12% off in the root mean square.
    """
    if not elements:
        return 0.0
    launch_us = PAD_LAUNCH_US + PAD_OTHER_US * (len(elements) - 1)
    return launch_us + _workspace_us(sum(elements) * element_bytes * 2, PAD_BYTES_PER_US, device)


def parts_us(elements: int, split_k: int, device: Device) -> float:
    """How long it takes to add up the parts of a result, without the launch."""
    in_turn = split_k if split_k <= IN_TURN else -(-split_k // 8)
    return in_turn * PART_US + _workspace_us(elements * (8 * split_k + 2), BYTES_PER_US, device)


def copies_spill(rows: int, columns: int, line_bytes: int, warps: tuple[int, int], narrowest: int) -> bool:
    """Whether the copies that a thread makes, of `narrowest` bytes each, leave too few registers for its sums.

    Each copy has an address and a predicate. Of kernels compiled for sm_90a, one with 72 sums and 36 copies spills. One
    with 64 sums and 48 copies does not, and neither does one with 128 and 32.
    """
    threads = 32 * warps[0] * warps[1]
    return rows * columns >= 72 * threads and (rows + columns) * line_bytes >= 36 * narrowest * threads


def splits(M: int, N: int, K: int, batch: int, rows: int, columns: int, k_tile: int, sms: int) -> list[int]:
    """The numbers of parts in which k may be summed: up to 16, or more for few blocks; each has at least four steps."""
    blocks = -(-M // rows) * -(-N // columns) * batch
    most = max(1, min(K // (4 * k_tile), MOST_BLOCKS_YZ // max(batch, 1)))
    return [s for s in SPLITS if s <= most and (s <= 16 or blocks * s <= 2 * sms)]
