"""The time of a product by ``gemm_sm90``: which of its tiles fit, and how long they take.

Blocks are persistent, one on a multiprocessor, and go through tiles in rounds. A step of k costs what tensor cores need
for it, or what the L2 cache needs to bring its operands. The constants are chosen by the times of 60 products on H200s,
cool ones and hot ones; docs/tuning.md says how far off they are, by `benchmarks/results/hopper_h200.json`.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING

from graphene.kernels.gemm.frame import Product
from graphene.kernels.gemm.problem import FP8, TYPES, GemmProblem, GemmTile
from graphene.kernels.gemm.sm90_tile import PIECE, SUMS, Hopper, refusal
from graphene.kernels.tma import LINE_BYTES, MOST_TILES, clusters_at_once
from graphene.select import model
from graphene.select.device import H200, Device
from graphene.select.tiles import up

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["alone", "candidates", "has_wgmma", "impossible", "product_us", "refused", "serves", "staged", "tiles_for",
           "with_terms_in_stages"]  # fmt: skip

LINE_BITS = 1024  # a step takes a line of 128 bytes along k
EIGHT = 8  # the number of columns of an instruction is a multiple of this
FEW_COLUMNS = 8  # with so few columns of tiles, all tiles of a row follow one another
FEW = 512  # with at most this many rows or columns, tiles reach past their end no farther than they must
LEAST = 16 * 64  # results of the smallest tile
STAGES = 12  # more were not faster

# Tensor cores. TENSOR_NS is the time of one k of a tile of 128x128 whose operands have 16 bits, while tensor cores are
# always busy; operands of bytes take half of it. The other numbers are factors of that time where nothing else is said.
TENSOR_NS = 5.83
SWAPPED = 1.002  # the operands have changed places, and two consumers share a tile
SWAPPED_ALONE = 0.998  # the operands have changed places, and one consumer multiplies
COOL = 0.75  # tensor cores are mostly idle, so that the clock is higher
WORK_PER_US = 650e6  # operations of all tensor cores in a microsecond, for the time of a product's work
HALF_WARM_US = 37.9  # at this time of a product's work the clock is halfway between cool and warm
LINES = 0.421  # added for a tile that needs twice as many lines of operands for each result as one of 128x128
NARROW = 39.6  # columns: an instruction with fewer takes as long as one with these
NARROW_SHARED = 15.2  # the same, if two consumers share a tile
INSTRUCTION = 0.0575  # added for instructions of 128 columns instead of 256, which read less shared memory
ONE_CONSUMER = 1.039  # a block has one consumer
SHARED_TILE = 1.048  # two consumers share a tile
NARROW_IN_TURNS = 0.03  # added for up to 128 columns of consumers that take turns, in long runs, limited by power
LONG_US = 100  # at this time of a product's work half of NARROW_IN_TURNS counts
UNEVEN = 0.99  # widths above 128 that are not multiples of 64
UNEVEN_NARROW = 1.008  # widths between 64 and 128
# The operand that gives the instruction its columns lies across k, in lines of 64, 32 or 16 elements.
ACROSS_64, ACROSS_32, ACROSS_16 = 1.0, 1.06, 1.5
SHARED_OF_BYTES = 1.06  # two consumers share tiles of bytes in several rounds: nothing is multiplied between tiles
PROMOTED = 1.1  # sums of fp8 are added up in fp32 while the other consumer multiplies
PROMOTED_ALONE = 1.6  # sums of fp8 are added up in fp32 while nothing is multiplied
CLUSTERS = 1.06  # blocks of a cluster wait for each other
CLUSTERS_OF_LARGE = 0.992  # the same, with operands of LARGE_BYTES, many times what the L2 cache holds
LARGE_BYTES = 250e6
CLUSTER_US = 0.666  # the time to launch clusters
STEP_US = 0.15  # the least time of a step

# The L2 cache and memory.
L2 = 1.64  # what TMA reads, as a multiple of Device.l2_bytes
NARROW_BOXES = 1.27  # boxes whose lines are n times narrower than 128 bytes take n to this power as long
STRADDLING = 1.73  # added to the time of lines that begin in the middle of the cache's lines
THROUGH_L2 = 0.39  # the share of memory's time for which reading again from the L2 cache waits
READS = 0.0756  # the share of the L2 cache's time that does not run beside the products
MEMORY = 1.06  # what is read from memory, as a multiple of Device.memory_rate
ALONE = 0.125  # of memory's time and the rest's, the share of the shorter one that does not run beside the other
LINE_NS = 0.842  # the time in which a multiprocessor loads a line of a box, up to 128 bytes, from the L2 cache
OUTSIDE_PER_NS = 17.5  # lines of 128 bytes outside of a matrix that TMA fills with zeros, on the whole device
LAST_ROUND = 0.201  # added to memory's time, times the share of blocks that are missing in the last round
BESIDE_ZEROS = 0.493  # as ALONE, of the time in which TMA fills with zeros

# Before, between and after the loops over k.
LAUNCH_US = 1.3  # the kernel before lets this one start early
TURNS_US = 0.235  # until a second consumer begins
TAIL = 1.3  # factor of memory's time for the results of the last round
TILE_US = 0.0723  # until a tile begins
SHARED_NARROW_US = 0.618  # added if two consumers share a tile of up to 64 columns of the instruction
STORE_US = 0.29  # the store of a tile of 128x128 by two consumers, through shared memory and TMA; factors of it follow
BY_THREADS = 2.65  # threads store, because lines of C begin anywhere, or its elements have 32 bits
ODD_LINES = 3.57  # pieces have uneven widths, and lines of C begin in the middle of the caches' lines
SWAPPED_DIRECT = 1.71  # operands have changed places, so that neighbouring elements of 32 bits are of several threads
COMPUTED = 0.5  # added for an activation, for a residual, and for C itself
NARROW_STORE_US = 0.0429  # added for pieces that are half as wide as a line of the caches
WIDE_PIECE, WIDE_PIECE_US = 80, 0.341  # pieces of more columns cost this more for a tile
JOIN_US = 0.784  # blocks of a cluster that cuts k begin, and wait for each other's sums
JOIN_SHARED_US = 2.49  # the same, if two consumers share a tile
JOINED_US = 2.67  # the sums of a tile of 128x128 of one more block
PARTS = 0.626  # the time of memory in which parts are added up, as a share of that of gemm_sm80's parts
SPLIT_US = 1.59  # the kernel that adds parts, which starts while the kernel before it ends


def has_wgmma(device: Device) -> bool:
    """Whether a device runs gemm_sm90: only sm_90a has wgmma, and no later architecture."""
    return device.arch == "sm_90a"


def serves(p: GemmProblem, device: Device) -> bool:
    """Whether gemm_sm90 computes such products on a device."""
    return has_wgmma(device) and (TYPES[p.dtype].bits == 16 or p.order == "TN")  # other types lie along k


def alone(p: GemmProblem) -> bool:
    """Whether no kernel but gemm_sm90 computes such products."""
    return p.dtype in FP8 or p.scales is not None


@functools.lru_cache(1024)
def _hopper(c: GemmTile, form: GemmProblem) -> Hopper:
    """What the kernel says of a tile."""
    return Hopper(Product(form, c))


@functools.lru_cache(64)
def _form(p: GemmProblem, pad: tuple[bool, bool]) -> GemmProblem:
    """The problem as far as a tile's kernel and its shared memory depend on it, of copies where lines are padded."""
    a, b = (16 if padded else x for padded, x in zip(pad, p.align, strict=False))
    return GemmProblem(
        0, 0, 0, None, p.dtype, p.order, (a, b, p.align[2]), p.bias, p.residual, out=p.out, beta=p.beta,
        b_dtype=p.b_dtype, scales=p.scales, promote=p.promote,
    )  # fmt: skip


def _of(c: GemmTile, p: GemmProblem) -> Hopper:
    """What the kernel says of a tile for a problem."""
    return _hopper(c, _form(p, c.pad))


def impossible(c: GemmTile, p: GemmProblem, device: Device) -> str | None:
    """Why a tile cannot be used on a device, for products of any sizes, in words; None if it can be."""
    if not serves(p, device):
        return f"gemm_sm90 has no product of {p.dtype} in order {p.order} on {device.arch}"
    reason = refusal(_of(c, p).product, device.shared_bytes)
    return None if reason is None else str(reason)


def refused(c: GemmTile, p: GemmProblem, device: Device) -> str | None:
    """Why a tile cannot be used or is not worth a try for a product, in words; None if it is worth one."""
    return impossible(c, p, device) or covers(c, p) or spills(c, p)


def spills(c: GemmTile, p: GemmProblem) -> str | None:
    """Why a tile's sums leave too few registers for the rest, in words; None if they leave enough."""
    s = _of(c, p)
    held = s.rows * s.columns // 128  # of promoted sums, too: only one set is left when they are stored
    batched, by_threads = p.batch is not None, p.align[2] < 16
    most = 128 if by_threads and (batched or p.residual or p.beta) else 160 if by_threads or batched else SUMS
    unchanged = p.out_dtype == p.sums and not p.computes  # all sums of a thread are stored at once
    if (s.block_rows > 128 and (p.computes or p.order == "NT")) or unchanged:
        most = min(most, 160)
    if unchanged and s.rows > 64 and not batched:
        most = min(most, 96)
    return f"{held} sums a thread, of which {most} leave room for such results" if held > most else None


def covers(c: GemmTile, p: GemmProblem) -> str | None:
    """Why a tile is too large for a problem, in words; None if it is not."""
    if min(p.m, p.n, p.k) < 1 or max(p.m, p.n, p.k) > MOST_TILES:
        return f"sizes from 1 to {MOST_TILES} are multiplied"
    if up(p.m, c.tile[0]) * up(p.n, c.tile[1]) * c.split_k * (1 if p.batch is None else p.batch) > MOST_TILES:
        return "the tiles are too many to be counted with 32 bits"
    for name, covered, extent in (("rows", c.tile[0], p.m), ("columns", c.tile[1], p.n)):
        if covered > 16 and covered >= 2 * extent and not (alone(p) and c.tile[0] * c.tile[1] == LEAST):
            return f"{covered} {name} of which {covered - extent} are always outside"
    return None


def product_us(
    c: GemmTile, p: GemmProblem, device: Device, split_k: int | None = None, pad: tuple[bool, bool] | None = None
) -> tuple[float, str]:
    """About how long a product takes, in microseconds, without kernels before and after it; and what limits it.

    ``split_k``, ``pad``: instead of the tile's own.
    """
    split_k, pad = split_k or c.split_k, pad or c.pad
    s, item, count = _of(c, p), TYPES[p.dtype].bits // 8, 1 if p.batch is None else p.batch
    m, n = (p.n, p.m) if s.swapped else (p.m, p.n)
    cluster = s.blocks
    clusters = up(m, s.block_rows * s.down) * up(n, s.columns * s.across) * count * split_k
    rounds = up(clusters, max(clusters_at_once(device.sm_count, cluster), 1))
    k = up(up(p.k, c.tile[2]), split_k * s.cuts) * c.tile[2]

    area = s.block_rows * s.columns / 128**2
    lines = (s.block_rows + s.columns) / area / 256  # for each result, relative to a tile of 128x128
    narrowest = NARROW_SHARED if max(c.warps) == 8 else NARROW
    wide = s.block_rows * max(s.columns, narrowest) / 128**2 * (1 + LINES * max(0.0, lines - 1))
    busy = p.m * p.n * p.k * item * count / WORK_PER_US
    warm = COOL + (1 - COOL) * busy / (busy + HALF_WARM_US)
    tensor_ns = TENSOR_NS / 2 * item * wide * warm * (H200.tensor_rate / device.tensor_rate)
    if item == 1 and max(c.warps) == 8 and rounds > 1 and not p.promote:
        tensor_ns *= SHARED_OF_BYTES
    if p.promote:
        tensor_ns *= PROMOTED if max(c.warps) == 8 else PROMOTED_ALONE
    if s.columns % 64 and s.columns > 64:
        tensor_ns *= UNEVEN if s.columns > 128 else UNEVEN_NARROW
    if not (p.order[0] == "T" if s.swapped else p.order[1] == "N"):
        tensor_ns *= ACROSS_64 if s.columns % 64 == 0 else ACROSS_32 if s.columns % 32 == 0 else ACROSS_16
    tensor_ns *= SHARED_TILE if max(c.warps) == 8 else 1.0 if c.turns and rounds > 1 else ONE_CONSUMER
    tensor_ns *= 1 + INSTRUCTION * (256 / max(s.columns, narrowest) - 1)
    if s.swapped:
        tensor_ns *= SWAPPED if max(c.warps) == 8 else SWAPPED_ALONE
    if c.turns and s.columns <= 128:
        tensor_ns *= 1 + NARROW_IN_TURNS * busy / (busy + LONG_US)
    if cluster > s.cuts:
        operands = count * (p.m + p.n) * p.k * item
        tensor_ns *= CLUSTERS if operands < LARGE_BYTES else CLUSTERS_OF_LARGE
    of_left, of_right = _lines(s, p, pad)
    loads = (s.block_rows / s.across * of_left + s.columns / s.down * of_right) * item
    share = max(0.8, min(1.0, clusters * cluster / device.sm_count))  # of multiprocessors that load
    l2_ns = loads * share * warm / (L2 * device.l2_bytes * device.clock_ghz)
    memory = memory_us(p, device) - LAUNCH_US
    l2_us = k * l2_ns * 1e-3 + THROUGH_L2 * memory / rounds
    step_us = max(STEP_US, _box_lines(s) * LINE_NS * 1e-3)
    steps_us = max(k * tensor_ns * 1e-3, l2_us, k / c.tile[2] * step_us) + READS * l2_us

    direct = p.align[2] < 16 or split_k > 1 or TYPES[p.out_dtype].bits != 16
    store_us = STORE_US * area * (BY_THREADS if direct else 1.0) * (1 if max(c.warps) == 8 else 2)
    store_us *= ODD_LINES if p.n * TYPES[p.out_dtype].bits % 1024 and s.columns % 64 and not s.swapped else 1.0
    store_us *= SWAPPED_DIRECT if s.swapped and (split_k > 1 or not s.in_pieces) else 1.0
    store_us *= 1 + COMPUTED * ((p.activation is not None) + p.residual + p.beta) * (split_k == 1)
    if not s.swapped and s.columns < PIECE and split_k == 1:  # parts of the caches' lines are stored
        store_us += NARROW_STORE_US * (PIECE / s.columns - 1) * clusters * cluster / device.sm_count
    wide_pieces = s.by_boxes and s.width > WIDE_PIECE and not s.swapped and split_k == 1
    store_us += WIDE_PIECE_US if wide_pieces else 0.0
    total = rounds * max(steps_us, store_us) + store_us if c.turns else rounds * (steps_us + store_us)
    total += rounds * TILE_US + (SHARED_NARROW_US if max(c.warps) == 8 and s.columns <= 64 else 0.0)
    bound = "tensor cores" if steps_us > l2_us else "L2 cache"

    (down, along), edges = (up(m, s.block_rows), up(n, s.columns)), count * split_k
    outside = edges * (
        along * _outside(s.left.along_k, s.block_rows, down * s.block_rows - m, c.tile[2])
        + down * _outside(s.right.along_k, s.columns, along * s.columns - n, c.tile[2])
    )
    if memory > total and clusters * cluster > device.sm_count:  # the last round does not read at full speed
        memory *= 1 + LAST_ROUND * (rounds * clusters_at_once(device.sm_count, cluster) / clusters - 1)
    for other, name in ((outside * k / (c.tile[2] * OUTSIDE_PER_NS * 1e3), "zeros"), (memory, "memory")):
        if other > total:
            total, other, bound = other, total, name
        total += (BESIDE_ZEROS if name == "zeros" else ALONE) * other
    if not c.turns:  # nothing is multiplied while a result is stored
        total += ALONE * (memory_us(p, device, result_alone=True) - LAUNCH_US) * (rounds - 1) / rounds
    total += CLUSTER_US if cluster > s.cuts else 0.0
    total += TURNS_US if c.turns else 0.0
    total += TAIL * (memory_us(p, device, result_alone=True) - LAUNCH_US) / rounds  # after the last products
    if s.cuts > 1:
        total += (JOIN_US if max(c.warps) == 4 else JOIN_SHARED_US) + (s.cuts - 1) * JOINED_US * area
    return (
        LAUNCH_US + total,
        f"{clusters / max(clusters_at_once(device.sm_count, cluster), 1):.2f} rounds, bound by {bound}",
    )


def split_us(p: GemmProblem, split_k: int, device: Device) -> float:
    """The time of the kernel that adds up parts of k; 0 for one part."""
    count = 1 if p.batch is None else p.batch
    return SPLIT_US + PARTS * model.parts_us(count * p.m * p.n, split_k, device) if split_k > 1 else 0.0


def grouped(c: GemmTile, p: GemmProblem) -> GemmTile:
    """The tile with the number of rows of tiles that go together; the expected time does not depend on it.

    Blocks side by side share what they load from memory. With few columns of tiles, all tiles of a row follow one
    another, and share the rows of the one operand. Otherwise eight rows of tiles share the columns of the other one:
    19.2 instead of 22.5 us for 20000x256x1024 by 152x128, of which each operand's rows are read twice (H200).
    """
    s = _of(c, p)
    columns = up(p.m if s.swapped else p.n, s.columns * s.across)
    return replace(c, group=1 if columns <= FEW_COLUMNS else 8)


def _outside(along_k: bool, extent: int, outside: int, step: int) -> int:
    """Lines of boxes that reach out of a matrix in a step of k, by how many rows or columns of tiles are outside.

    Rows along k are outside as a whole. Of a line along rows or columns a part may be inside: it takes as long.
    """
    if along_k:
        return outside
    width = next(n for n in (64, 32, 16, 8, 1) if extent % n == 0)
    return up(outside, width) * step


def _box_lines(h: Hopper) -> float:
    """How many lines of boxes a block loads for a step of k. An operand that lies across k has narrower lines."""
    lines = 0.0
    for operand, extent, shares in ((h.left, h.block_rows, h.across), (h.right, h.columns, h.down)):
        boxes = 0.0 if operand.along_k else extent / next(n for n in (64, 32, 16) if extent % n == 0)
        lines += (extent if operand.along_k else boxes * h.product.tile.tile[2]) / shares
    return lines


def memory_us(p: GemmProblem, device: Device, result_alone: bool = False) -> float:
    """The time in which memory is read and written once, or only the result's, and that of a launch."""
    out = TYPES[p.out_dtype].bits // 8 * (1 + p.residual + p.beta)
    operands = 0 if result_alone else (p.m + p.n) * p.k * TYPES[p.dtype].bits // 8
    moved = (p.batch or 1) * (operands + p.m * p.n * out)
    return LAUNCH_US + moved / (MEMORY * device.memory_rate * 1e3)


def _forms(
    few_rows: int, few_columns: int, steps: tuple[int, int], swap: bool
) -> Iterator[tuple[tuple[int, int], tuple[int, int], bool]]:
    """Yields a tile, its warps and whether consumers take turns; among equally fast ones the first is taken.

    Few rows or columns are cut into as few tiles as cover them; the tiles' sizes are multiples of ``steps``. ``swap``:
    uneven widths are rows of A, which lies along k, rather than columns of B, which does not.
    """
    cut_rows, cut_columns = _cuts(few_rows, steps[0]), _cuts(few_columns, steps[1])
    yield from (((n, 64), (1, 4), False) for n in dict.fromkeys((*cut_rows, 128)))
    yield from (((64, n), (4, 1), False) for n in dict.fromkeys((64, 128, 32, 16, *cut_columns)))
    yield from (((64, n), (4, 1), True) for n in (128, 64, 256, 192))
    yield from (((128, n), (4, 1), True) for n in (128, 192, 160))
    yield from (((128, n), (8, 1), False) for n in dict.fromkeys((128, 256, 192, 64, *cut_columns)))
    for n in (144, 96, 112, 160, 176, 208, 224):
        yield ((n, 128), (1, 8), False) if swap else ((128, n), (8, 1), False)
    yield from (((n, 128), (1, 8), False) for n in cut_rows)
    yield from (((256, n), (8, 1), False) for n in (128, 192))


def _cuts(extent: int, step: int) -> list[int]:
    """Widths of an instruction into which few rows or columns are cut, one or more; none for many."""
    widths = [max(16, up(up(extent, parts), step) * step) for parts in (1, 2, 3, 4)] if extent <= FEW else []
    return list(dict.fromkeys(n for n in widths if n <= 256))


def _steps(p: GemmProblem) -> tuple[int, int]:
    """What divides the widths of an instruction that takes rows of A, or columns of B, as its columns."""
    rows, columns = (EIGHT if along_k and p.dtype != "i8" else 2 * EIGHT for along_k in
                     (p.order[0] == "T", p.order[1] == "N"))  # fmt: skip
    return rows, columns


def _filling(p: GemmProblem, device: Device, line: int) -> Iterator[GemmTile]:
    """Tiles whose widths make the last of a few rounds of blocks as full as possible."""
    count, uneven, steps = 1 if p.batch is None else p.batch, any(straddling(p)), _steps(p)
    for swapped in (False, True):
        whole, cut = (p.n, p.m) if swapped else (p.m, p.n)
        for rows, consumers in ((128, 8), (64, 4)):
            for rounds in (1, 2, 3, 4) if consumers == 8 else (1, 2):
                of_a_row = rounds * device.sm_count // (up(whole, rows) * count)
                step = steps[0 if swapped else 1]
                width = up(up(cut, of_a_row), step) * step if of_a_row else 0
                if not 48 <= width <= 256:
                    continue
                tile, warps = ((width, rows), (1, consumers)) if swapped else ((rows, width), (consumers, 1))
                shared = (1, 2, 1) if swapped else (2, 1, 1)
                for cluster in ((1, 1, 1), shared) if uneven else ((1, 1, 1),):
                    group = 1 if swapped else 8
                    yield GemmTile((*tile, line), warps, 2, group, kernel="gemm_sm90", cluster=cluster)


def _lines(s: Hopper, p: GemmProblem, pad: tuple[bool, bool]) -> tuple[float, float]:
    """For both operands, by what factor loading a tile takes longer than if its lines were the caches' lines."""
    lengths = (p.k if p.order[0] == "T" else p.m, p.k if p.order[1] == "N" else p.n)
    item, out = TYPES[p.dtype].bits // 8, []
    for operand, rows in ((s.left, s.block_rows), (s.right, s.columns)):
        i = "AB".index(operand.name)
        width = LINE_BYTES
        if not operand.along_k:
            width = next(n for n in (64, 32, 16) if rows % n == 0) * item
        begins = LINE_BYTES if pad[i] else gcd(lengths[i] * item, LINE_BYTES)
        further = (width - min(width, begins)) / LINE_BYTES  # what a line has in the cache's second line
        out.append((LINE_BYTES / width) ** NARROW_BOXES * (1 + STRADDLING * further))
    return out[0], out[1]


def straddling(p: GemmProblem, pad: tuple[bool, bool] = (False, False)) -> tuple[bool, bool]:
    """Whether lines of A, and of B, begin in the middle of the caches' lines."""
    lengths = (p.k if p.order[0] == "T" else p.m, p.k if p.order[1] == "N" else p.n)
    item = TYPES[p.dtype].bits // 8
    a, b = (x * item % LINE_BYTES > 0 and not padded for x, padded in zip(lengths, pad, strict=True))
    return a, b


@functools.lru_cache(256)
def tiles_for(rows: int, columns: int, steps: tuple[int, int], swap: bool, line: int) -> tuple[GemmTile, ...]:
    """Tiles of one part of k, with two stages; `rows`, `columns`: of C, if they are few; `line`: k of a step.

    `steps`: what divides the widths of an instruction into which rows and columns are cut.
    """
    out = []
    if (rows, line) == (128, 64):
        # Two blocks of a cluster load the columns once: 47.3 instead of 54.0 us for 128x8872x9792 (H200).
        for n in (144, 96, 112, 160, 176, 192):
            out.append(GemmTile((64, n, line), (4, 1), 2, 8, kernel="gemm_sm90", cluster=(2, 1, 1)))
    for tile, warps, turns in dict.fromkeys(_forms(rows, columns, steps, swap)):
        clusters = [(1, 1, 1)]
        if not turns:
            clusters.append((1, 1, 2))  # more parts of k were slower
        if min(tile) >= 64:
            clusters += [(2, 1, 1), (1, 2, 1)]
        group = 8 if warps[1] == 1 else 1
        out += [GemmTile((*tile, line), warps, 2, group, kernel="gemm_sm90", cluster=c, turns=turns) for c in clusters]
    return tuple(out)


def staged(c: GemmTile, p: GemmProblem, device: Device) -> GemmTile:
    """The tile with as many stages as a block has room for, two or more."""
    h = _of(replace(c, stages=2, split_k=min(c.split_k, 2)), p)
    room = device.shared_bytes - (1 + h.more_pieces) * h.piece_bytes - h.beside_bytes
    return replace(c, stages=max(2, min(STAGES, room // h.stage_bytes)))


def with_terms_in_stages(c: GemmTile, p: GemmProblem, device: Device) -> GemmTile | None:
    """The tile whose terms come through the stages, if that is another kernel; its time is not known to the model."""
    other = replace(c, terms_in_stages=True)
    if impossible(replace(other, stages=2), p, device) is not None or not _of(other, p).in_stages:
        return None
    return staged(other, p, device)


def candidates(p: GemmProblem, device: Device) -> Iterator[GemmTile]:
    """The tiles that may serve a problem, of two stages, one part of k and without padded copies.

    There are none if there is no kernel.
    """
    if not serves(p, device) or min(p.m, p.n, p.k) < 1:
        return
    few = (up(min(n, FEW + 1), EIGHT) * EIGHT for n in (p.m, p.n))  # so that neighbours share what is remembered
    steps, line = _steps(p), LINE_BITS // TYPES[p.dtype].bits
    tiles = dict.fromkeys((*tiles_for(*few, steps, p.order == "TT", line), *_filling(p, device, line)))
    if any(straddling(p)):  # four blocks load half of either operand
        tiles |= dict.fromkeys(replace(c, cluster=(2, 2, 1)) for c in list(tiles) if _square(c))
    for c in tiles:
        if p.promote and 3 * c.tile[0] * c.tile[1] * 4 // max(c.warps) > 128 * SUMS:
            continue  # no room for sums and those of two steps
        if covers(c, p) is not None or spills(c, p) is not None or not (c.cluster[2] == 1 or _may_cut(c, p, device)):
            continue
        if max(c.cluster) == 1 or impossible(replace(c, pad=(True, True)), p, device) is None:
            yield c


def _square(c: GemmTile) -> bool:
    """Whether clusters of two by two blocks may have such tiles."""
    return max(c.cluster) == 1 and min(c.tile[:2]) >= 128 and c.tile[0] * c.tile[1] <= 160 * 128


def _may_cut(c: GemmTile, p: GemmProblem, device: Device) -> bool:
    """Whether blocks of a cluster may cut k: few rounds of tiles, and a block has room for the others' sums."""
    rows, columns, _ = c.tile
    clusters = up(p.m, rows) * up(p.n, columns) * (1 if p.batch is None else p.batch)
    few = clusters <= 3 * clusters_at_once(device.sm_count, c.cluster[2])
    return few and _of(replace(c, stages=4), p).shared_bytes <= device.shared_bytes
