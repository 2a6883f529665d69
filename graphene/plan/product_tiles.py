"""Tiles of a product's kernel: shapes in shared memory, registers, and why a tile cannot be used."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphene.select.tiles import REGISTERS, up

if TYPE_CHECKING:
    from graphene.plan.form import ProductForm, StagedInput
    from graphene.plan.graph import Axis
    from graphene.select.device import Device

__all__ = ["SLICE", "LaterTile", "ProductTile", "columns_of", "later_tiles", "refused", "shape_of", "size_of",
           "vector_bytes"]  # fmt: skip

SLICE = 16  # k of one instruction
SWIZZLED_ALIGN = 1024
KEPT = 52  # registers of a thread for addresses and loops
# Registers for 16 rows of a warp of which elements, or a statistic, are computed; and for a vector of factors along 16
# of k. Of 17 tiles that were compiled for sm_90a, all five that spilled need more by this than there are.
COMPUTED, STATISTIC, FACTORS = 8, 12, 6
# Copies of a thread in a step beyond which it spills, whatever it sums, and beside many sums. Of 40 tiles that were
# compiled for sm_90a, three spilled of those with more, and none of those with fewer.
MOST_COPIES, MOST_BESIDE_SUMS, MANY_SUMS = 64, 36, 72


@dataclass(frozen=True)
class ProductTile:
    """What a block computes: `m` rows, `n` columns, `k` of each step, `stages` steps on their way, a grid of warps."""

    m: int
    n: int
    k: int
    stages: int
    warps: tuple[int, int]

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return 32 * self.warps[0] * self.warps[1]

    def values(self) -> dict[str, Any]:
        """The values by the paths of the decisions."""
        down, across = self.warps
        return {
            "tile.m": self.m,
            "tile.n": self.n,
            "loop.k": self.k,
            "stages": self.stages,
            "warps": f"{down}x{across}",
        }


def size_of(axis: Axis, sizes: dict[str, int]) -> int:
    """The size that the plan is for."""
    return axis.size if axis.size is not None else sizes[axis.symbol]


def columns_of(form: ProductForm, across: Axis, tile: ProductTile) -> int:
    """Columns that a block stages of a right operand: its tile's, or all of an inner product's."""
    if across is form.columns:
        return tile.n
    assert across.size is not None
    return up(across.size, 16) * 16


def shape_of(form: ProductForm, s: StagedInput, tile: ProductTile) -> tuple[int, int]:
    """The tile of a staged input, as stored."""
    across = tile.m if s.side == "left" else columns_of(form, s.across, tile)
    return (across, tile.k) if s.along_k(form.k) else (tile.k, across)


def vector_bytes(axis: Axis, element_bytes: int) -> int:
    """How many bytes at once lines along an axis can be copied; a size that is not known is a multiple of 16 bytes."""
    return 16 if axis.size is None else math.gcd(axis.size * element_bytes, 16)


def registers(form: ProductForm, tile: ProductTile) -> int:
    """About the registers without which a thread spills."""
    return _registers(form, tile.m, tile.n, tile.warps) + _computed_registers(form, tile)


def factors_of(form: ProductForm) -> set[int]:
    """Vectors along k with which rows are computed."""
    return {x.number for d in form.dots for x in d.left.walk() if x.op == "input" and x.axes == (form.k,)}


def _computed_registers(form: ProductForm, tile: ProductTile) -> int:
    """Registers for rows of which something is computed: elements, statistics, factors of all of a step."""
    of_rows, of_factors = _computed_of(form)
    return tile.m // tile.warps[0] // 16 * of_rows + of_factors * tile.k // SLICE


@functools.lru_cache(64)
def _computed_of(form: ProductForm) -> tuple[int, int]:
    """Registers for 16 rows of which something is computed, and for factors along 16 of k."""
    computed = {d.left.number for d in form.dots if d.left.op != "input"}
    statistics = sum(s.side == "left" for s in form.statistics)
    return COMPUTED * len(computed) + STATISTIC * statistics, FACTORS * len(factors_of(form))


@functools.lru_cache(8192)
def _registers(form: ProductForm, m: int, n: int, warps: tuple[int, int]) -> int:
    """The same for each step and number of stages."""
    tile = ProductTile(m, n, SLICE, 1, warps)
    (_down, across), rows = tile.warps, tile.m // tile.warps[0]
    sums = sum(
        rows * (tile.n // across if d.columns is form.columns else columns_of(form, d.columns, tile)) for d in form.dots
    )
    sums += sum(rows * tile.n // across for _ in form.later)
    beside = sum(rows * tile.n // across * v.more["dtype"].bits // 32 for v in form.beside() if len(v.axes) == 2)
    widest = max(
        tile.n // across,
        *(columns_of(form, s.across, tile) for s in form.inputs("right") if s.across is not form.columns),
        0,
    )
    fragments = (rows * len(form.inputs("left")) + widest) * SLICE * 2 // 4
    out = rows * tile.n // across * form.output.dtype.bits // 32
    return int(sums + max(fragments, out + beside)) // 32 + KEPT


@functools.lru_cache(8192)
def stage_bytes(form: ProductForm, tile: ProductTile) -> int:
    """Shared memory of one step."""
    return sum(up(math.prod(shape_of(form, s, tile)) * 2, SWIZZLED_ALIGN) * SWIZZLED_ALIGN for s in form.staged)


@functools.lru_cache(8192)
def copies_of(form: ProductForm, m: int, n: int, k: int) -> int:
    """The copies that a block starts in a step; one that gathers a window counts twice, as it has coordinates, too."""
    total = 0
    tile = ProductTile(m, n, k, 1, (1, 1))
    for s in form.staged:
        each = vector_bytes(s.value.more["stored"][-1], 2)
        twice = 2 if form.gather is not None and s.side == "left" else 1
        total += twice * math.prod(shape_of(form, s, tile)) * 2 // each
    return total


def refused(form: ProductForm, tile: ProductTile, sizes: dict[str, int], device: Device) -> str:
    """Why a tile cannot be used, or is not worth a try; empty if it can."""
    down, across = tile.warps
    if tile.m % (16 * down):
        return f"{tile.m} rows of {down} warps: a warp needs a multiple of 16"
    if tile.n % (16 * across):
        return f"{tile.n} columns of {across} warps: a warp needs a multiple of 16"
    if tile.k % SLICE:
        return f"{tile.k} is not a multiple of the instruction's {SLICE}"
    if form.gather is not None and (why := form.gather.refused(tile)):
        return why
    kept = sum(up(math.prod(d.right_shape) * 2, SWIZZLED_ALIGN) * SWIZZLED_ALIGN for d in later_tiles(form, tile))
    need = max(stage_bytes(form, tile) * tile.stages, tile.m * tile.n * form.output.dtype.bits // 8) + kept
    if need > device.shared_bytes:
        return f"{need} bytes of shared memory, at most {device.shared_bytes}"
    if (need := registers(form, tile)) > REGISTERS:
        return f"about {need} registers a thread, at most {REGISTERS}: it would spill"
    copies = copies_of(form, tile.m, tile.n, tile.k) / tile.threads
    sums = len(form.dots) * tile.m * tile.n / tile.threads
    if copies >= MOST_COPIES or (copies >= MOST_BESIDE_SUMS and sums >= MANY_SUMS):
        return f"{copies:g} copies of a thread in a step beside {sums:g} sums: their addresses would spill"
    k = size_of(form.k, sizes)
    if k % tile.k and any(
        not _zero_at_zero(s.value.args[0]) or s.value.op not in ("sum", "mean") for s in form.statistics
    ):
        return f"{tile.k} does not divide {k}, and what lies behind the end would change a statistic"
    return ""


@dataclass
class LaterTile:
    """A product of a product: its tile of the second operand, as stored."""

    dot: Any
    right_shape: tuple[int, int]


def later_tiles(form: ProductForm, tile: ProductTile) -> list[LaterTile]:
    """The second operands of products of products, whole along the sum."""
    out = []
    for d in form.later:
        axis = d.value.more["axis"]
        along = d.right.more["stored"][-1] is axis
        out.append(LaterTile(d, (tile.n, axis.size) if along else (axis.size, tile.n)))
    return out


def _zero_at_zero(v: Any) -> bool:
    """Whether the expression is zero where all inputs are."""
    if v.op == "input":
        return True
    if v.op == "number":
        return bool(v.more["value"] == 0)
    if v.op == "mul":
        return any(_zero_at_zero(a) for a in v.args)
    if v.op in ("add", "sub", "max", "min", "neg", "abs", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sqrt", "erf"):
        return all(_zero_at_zero(a) for a in v.args)
    return False
