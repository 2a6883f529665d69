"""Kernels of products on tensor cores (``mma.sync``): every decision, from tiles down to places in shared memory."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import arrange
from graphene.plan.form import ProductForm, StagedInput, none
from graphene.report import occupancy
from graphene.select.model import BESIDE, FEW_WARPS, FILL_CLOCKS, LATENCY_CLOCKS, LAUNCH_US, STEP_CLOCKS, in_waves
from graphene.select.tiles import REGISTERS, up

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis
    from graphene.select.device import Device

__all__ = ["Placed", "ProductTile", "Tiled", "decide"]

MATRIX_ATOMS = {"fp16": "mma.m16n8k16.f32.f16", "bf16": "mma.m16n8k16.f32.bf16"}
SLICE = 16  # k of one instruction
ROWS = (16, 32, 64, 128, 256)
COLUMNS = (16, 32, 64, 96, 128, 192, 256)
STEPS = (32, 64, 128)
STAGES = (2, 3, 4, 5)  # one stage may be pinned: its copies are never ahead
WARPS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (8, 1))
FURTHER_WARPS = ((1, 3), (3, 1), (1, 6), (2, 3), (3, 2), (6, 1))  # for tiles of 48 and 96, which are not measured
SWIZZLED_ALIGN, PLAIN_ALIGN = 1024, 16
KEPT = 52  # registers of a thread for addresses and loops
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
        """Of a block."""
        return 32 * self.warps[0] * self.warps[1]

    def values(self) -> dict[str, Any]:
        """By the paths of the decisions."""
        down, across = self.warps
        return {
            "tile.m": self.m,
            "tile.n": self.n,
            "loop.k": self.k,
            "stages": self.stages,
            "warps": f"{down}x{across}",
        }


@dataclass
class Shared:
    """A tensor in shared memory: its shape (rows, columns) as stored, its swizzle, its bytes with all stages."""

    name: str
    shape: tuple[int, int]
    swizzle: Any
    bytes: int
    align: int
    stages: int = 0
    copy_bytes: int = 16


@dataclass(eq=False, kw_only=True)
class Placed:
    """What is decided of every kernel with products, whatever its form.

    ``shared``: its tensors in shared memory, ``at``: where they begin in bytes, ``over``: those that each lies over.
    ``ahead``: how many steps copies run ahead. ``store_bytes``: of a vector of the result. ``expected_us``, ``bound``:
    the expected time, and what limits it.
    """

    shared: dict[str, Shared] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    over: dict[str, list[str]] = field(default_factory=dict)
    ahead: int = 0
    store_bytes: int = 16
    expected_us: float = 0.0
    bound: str = ""


@dataclass
class Tiled(Placed):
    """Everything that the text of a kernel needs."""

    form: ProductForm
    tile: ProductTile
    mma: str
    barriers: int = 1
    through_shared: bool = True
    shared_bytes: int = 0
    spread: bool = False  # copies of a step start between the products of its slices

    def inputs(self) -> list[Any]:
        """The inputs that the result depends on, in the order of the graph."""
        found = [v for v in self.form.result.walk() if v.op == "input"]
        return sorted(found, key=lambda v: int(v.number))

    def small_sizes(self, sizes: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Sizes of about two tiles, by symbol: of axes whose sizes the source has, and of the others.

        What a tile does not divide stays so, with the same rest.
        """
        f, t = self.form, self.tile
        tiles = {f.rows.number: t.m, f.columns.number: t.n, f.k.number: t.k}
        most = {f.rows.number: 1, f.columns.number: 1, f.k.number: self.ahead + 1}
        fixed: dict[str, int] = {}
        free: dict[str, int] = {}
        for a in {a.number: a for v in f.result.walk() for a in v.axes}.values():
            tile = tiles.get(a.number)
            if a.size is None:
                free[a.symbol] = (tile or 1) + (8 if self.contiguous(a) else 5) if tile else 2
            elif tile is not None:
                whole = most[a.number] * tile
                fixed[a.symbol] = a.size if a.size <= whole + tile else whole + (a.size % tile or tile)
            elif a in f.batch:
                fixed[a.symbol] = min(a.size, 2)
        return fixed, free

    def contiguous(self, axis: Axis) -> bool:
        """Whether lines of some tensor lie along the axis."""
        return self.form.output.axes[-1] is axis or any(v.more["stored"][-1] is axis for v in self.inputs())


def size_of(axis: Axis, sizes: dict[str, int]) -> int:
    """The size that the plan is for."""
    return axis.size if axis.size is not None else sizes[axis.symbol]


def shared_name(s: StagedInput) -> str:
    """The name of a staged input's tensor in shared memory."""
    return f"s{s.name}"


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
    return _registers(form, tile.m, tile.n, tile.warps)


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


def estimate(
    form: ProductForm, tile: ProductTile, sizes: dict[str, int], device: Device, once: int
) -> tuple[float, str]:
    """The expected time in microseconds, and what limits it: the library's model of a product, of several streams.

    `once`: bytes that cross the memory at least once.

    A step costs as much as the slowest of its products, its reads and writes of shared memory and its loads.
    """
    rows, columns, k = (size_of(a, sizes) for a in (form.rows, form.columns, form.k))
    batch = math.prod(size_of(a, sizes) for a in form.batch)
    (down, across), e = tile.warps, 2
    blocks = up(rows, tile.m) * up(columns, tile.n) * batch
    steps = up(k, tile.k)
    loads = sum(math.prod(shape_of(form, s, tile)) for s in form.staged) * e
    reads = sum((across if s.side == "left" else down if s.across is form.columns else down * across)
                * math.prod(shape_of(form, s, tile)) for s in form.staged) * e  # fmt: skip
    wide = [tile.n if d.columns is form.columns else across * columns_of(form, d.columns, tile) for d in form.dots]
    flops = 2 * tile.m * tile.k * sum(wide)
    products = flops / device.flops_per_clock
    on_chip, from_l2 = (reads + loads) / 128, loads / device.l2_bytes
    found = occupancy(
        device.arch, tile.threads, stage_bytes(form, tile) * tile.stages, min(registers(form, tile), REGISTERS)
    )
    most = max(1, found.blocks_per_sm) if found is not None else 1
    store = tile.m * tile.n * form.output.dtype.bits / 8 / (2 * device.dram_bytes)
    warps = tile.threads // 32

    def clocks(resident: int) -> float:
        issue = min(1.0, 1 - FEW_WARPS + FEW_WARPS * resident * warps / 8)
        work = max(products / issue, on_chip, from_l2)
        step = resident * work + STEP_CLOCKS / resident / math.sqrt(resident)
        step = max(step, LATENCY_CLOCKS / (tile.stages - 1)) if tile.stages > 1 else step + LATENCY_CLOCKS
        return float(steps * step + (FILL_CLOCKS + store) * (1 if resident == 1 else BESIDE * resident))

    total = in_waves(blocks, device.sm_count, most, clocks)
    names = {"tensor cores": products, "shared memory": on_chip, "L2 cache": from_l2}
    bound = max(names, key=names.__getitem__)
    memory = once / device.dram_bytes / device.sm_count
    if memory > total:
        total, bound = memory, "memory"
    return float(total / device.clock_ghz / 1e3 + LAUNCH_US), bound


def moved(tensors: list[tuple[tuple[Axis, ...], Any]], sizes: dict[str, int]) -> int:
    """Bytes of tensors, given their axes and types."""
    return sum(math.prod(size_of(a, sizes) for a in axes) * int(t.bits) // 8 for axes, t in tensors)


def moved_bytes(form: ProductForm, sizes: dict[str, int]) -> int:
    """Bytes that must cross the memory once: all inputs and the result."""
    if form.moved is not None:
        return form.moved
    tensors = {v.number: (v.axes, v.more["dtype"]) for v in form.result.walk() if v.op == "input"}
    return moved([*tensors.values(), (form.output.axes, form.output.dtype)], sizes)


def candidates(form: ProductForm, sizes: dict[str, int]) -> list[ProductTile]:
    """Tiles that are looked at."""
    rows, columns, k = (size_of(a, sizes) for a in (form.rows, form.columns, form.k))
    of = {
        "m": [m for m in ROWS if m == 16 or m < 2 * rows],
        "n": [n for n in COLUMNS if n == 16 or n < 2 * columns],
        "k": [s for s in STEPS if s == STEPS[0] or s < 2 * k],
    }
    if form.gather is not None:
        of["k"] = [s for s in of["k"] if form.gather.channels % s == 0] or [SLICE]
    every = itertools.product(of["m"], of["n"], of["k"], STAGES, WARPS)
    return [ProductTile(m, n, s, stages, w) for m, n, s, stages, w in every
            if (stages <= 2 or stages <= up(k, s) + 1) and m % (16 * w[0]) == 0 and n % (16 * w[1]) == 0]  # fmt: skip


def _pinned_tiles(d: Decisions, form: ProductForm, sizes: dict[str, int]) -> list[ProductTile]:
    """Candidates that respect the pins, which may name values that are not tried by default."""
    pins = d.pins
    for path, want in (("tile.m", 16), ("tile.n", 16), ("loop.k", SLICE), ("stages", 1)):
        if path in pins and (
            not isinstance(pins[path], int) or isinstance(pins[path], bool) or pins[path] < 1 or pins[path] % want
        ):
            from graphene.plan.decisions import refuse_pin

            refuse_pin(path, pins[path], f"want: a positive multiple of {want}")
    warps = {f"{a}x{b}": (a, b) for a, b in (*WARPS, *FURTHER_WARPS)}
    if "warps" in pins and pins["warps"] not in warps:
        from graphene.plan.decisions import refuse_pin

        refuse_pin("warps", pins["warps"], f"want: one of {', '.join(warps)}")
    found = candidates(form, sizes)
    if pins.get("stages") == 1:
        found += [replace(t, stages=1) for t in found if t.stages == STAGES[0]]
    if not {"tile.m", "tile.n", "loop.k", "stages", "warps"} & set(pins):
        return found
    of = [sorted({getattr(t, n) for t in found} | ({pins[p]} if p in pins else set()))
          for n, p in (("m", "tile.m"), ("n", "tile.n"), ("k", "loop.k"), ("stages", "stages"))]  # fmt: skip
    grids = (warps[pins["warps"]],) if "warps" in pins else WARPS
    tiles = [ProductTile(m, n, k, s, w) for m, n, k, s, w in itertools.product(*of, grids)]
    return [t for t in tiles if all(t.values()[p] == v for p, v in pins.items() if p in t.values())]


def _rank(form: ProductForm, us: float, t: ProductTile, sizes: dict[str, int], device: Device) -> tuple[Any, ...]:
    """Orders tiles by time; equal ones, which memory bounds, as they were measured on an H200 with few rows.

    Long steps come first, then a wave of as many blocks as may be, then more warps, then four stages.
    """
    rows, columns = size_of(form.rows, sizes), size_of(form.columns, sizes)
    blocks = up(rows, t.m) * up(columns, t.n) * math.prod(size_of(a, sizes) for a in form.batch)
    return (
        round(us, 2),
        -t.k,
        blocks > device.sm_count,
        -blocks,
        -t.threads,
        abs(t.stages - 4),
        stage_bytes(form, t),
        -t.m * t.n,
    )


def choose_tile(
    d: Decisions, form: ProductForm, sizes: dict[str, int], device: Device
) -> tuple[ProductTile, float, str]:
    """The tile of least expected time. Raises SelectError PLAN_NONE, PLAN_PIN."""
    reasons: dict[str, int] = {}
    admitted = []
    given, once = _pinned_tiles(d, form, sizes), moved_bytes(form, sizes)
    for t in given:
        if why := refused(form, t, sizes, device):
            reasons[why] = reasons.get(why, 0) + 1
        else:
            admitted.append((*estimate(form, t, sizes, device, once), t))
    if not admitted:
        some = sorted(reasons, key=lambda r: -reasons[r])[:6]
        pinned = {p: v for p, v in d.pins.items() if p in ("tile.m", "tile.n", "loop.k", "stages", "warps")}
        if pinned:
            gr._core.fail("PLAN_PIN", f"no tile with {', '.join(f'{p} = {v}' for p, v in pinned.items())}",
                          [f"refused: {r}" for r in some] or ["want: warps that divide the tile"])  # fmt: skip
        none("no tile computes the products on this device", *(f"refused: {r}" for r in some))
    us, bound, tile = min(admitted, key=lambda x: _rank(form, x[0], x[2], sizes, device))
    best = tile.values()
    for path, value in best.items():
        other: dict[Any, float | str] = {}
        for cost, _, t in admitted:
            v = t.values()[path]
            if v != value:
                other[v] = min(cost, other.get(v, math.inf))
        why = {
            "tile.m": "rows of a block", "tile.n": "columns of a block", "loop.k": "summed in a step",
            "stages": "steps in shared memory at once",
            "warps": "warps down and across; each reads its rows and columns",
        }[path]  # fmt: skip
        d.put(
            path,
            value,
            f"{why}; least expected time of {len(admitted)} tiles",
            us,
            "us",
            sorted(other.items(), key=lambda x: x[1]),
        )
    return tile, us, bound


def accesses_of(shape: tuple[int, int], dtype: Any, tile: ProductTile, copy_bytes: int) -> list[Any]:
    """How a staged tile is accessed: by copies of lines, and by rows of matrices."""
    rows, columns = shape
    return [arrange.matrices(rows, columns, dtype), arrange.vectors(rows, columns, dtype, tile.threads, copy_bytes)]


def lay_out(d: Decisions, name: str, shape: tuple[int, int], dtype: Any, accesses: list[Any], stages: int) -> Shared:
    """The swizzle of a tile in shared memory: the one of fewest wavefronts over all accesses."""
    found = arrange.arrange(*shape, dtype, accesses, most_padding=0)
    options: dict[Any, float | str] = {}
    for a in found:
        options.setdefault("none" if a.swizzle is None else str(a.swizzle), a.wavefronts)
    what = " and ".join(dict.fromkeys(a.name for a in accesses))
    by = {("none" if a.swizzle is None else str(a.swizzle)): a for a in found}
    path = f"{name}.swizzle"
    least = min(a.conflicts for a in found)
    best = found[0]
    first = {
        "none" if best.swizzle is None else str(best.swizzle): options[
            "none" if best.swizzle is None else str(best.swizzle)
        ]
    }
    kept = dict(itertools.islice(options.items(), 6))
    if path in d.pins and d.pins[path] in options:
        kept[d.pins[path]] = options[d.pins[path]]
    value = d.take(
        path, {**first, **kept}, lambda v: f"{by[v].conflicts} conflicts of {what}; the least is {least}", "wavefronts"
    )
    swizzle = by[value].swizzle
    align = PLAIN_ALIGN if swizzle is None else SWIZZLED_ALIGN
    bytes_ = math.prod(shape) * dtype.bits // 8
    if stages:
        bytes_ = up(bytes_, align) * align * (stages - 1) + bytes_
    return Shared(name, shape, swizzle, bytes_, align, stages)


def not_spread(form: ProductForm, tile: ProductTile) -> str:
    """Why copies cannot start in parts, one for each slice of a step; empty if they can."""
    parts = tile.k // SLICE
    if tile.stages == 1 or form.gather is not None:
        return "copies are waited for in their own step, or gathered"
    for s in form.staged:
        (lines, elements), each = shape_of(form, s, tile), vector_bytes(s.value.more["stored"][-1], 2)
        if lines % parts or lines // parts * elements * 2 // each % tile.threads:
            return f"{parts} parts of {lines} lines of {s.name} are not the same for each of {tile.threads} threads"
    return ""


def decide(d: Decisions, form: ProductForm, sizes: dict[str, int], device: Device) -> Tiled:
    """Makes every decision. Raises SelectError PLAN_NONE, PLAN_PIN."""
    family = int(device.family.removeprefix("sm_") or 0)
    if family < 80:
        none(f"products are planned for sm_80 and later, not for {device.arch}")
    k, out = form.k, form.output
    if any(s.value.op == "mean" for s in form.statistics) and k.size is None:
        none(f"a mean along {k.name} needs its size when the kernel is made")
    out_vector = vector_bytes(form.columns, out.dtype.bits // 8)
    if out_vector * 8 < 2 * out.dtype.bits:
        none(
            f"the result's lines of {form.columns!r} elements",
            f"want: a multiple of 2 elements along {form.columns.name}",
        )
    for s in form.staged:
        last = s.value.more["stored"][-1]
        if vector_bytes(last, 2) < 4:
            none(f"lines of {s.name} of {last!r} elements", f"want: a multiple of 2 elements along {last.name}")
    for dot in form.later:
        last = dot.right.more["stored"][-1]
        if vector_bytes(last, 2) < 4:
            none(f"lines of {dot.right.name} of {last!r} elements", f"want: a multiple of 2 elements along {last.name}")
    tile, us, bound = choose_tile(d, form, sizes, device)
    mma = gr.atom(MATRIX_ATOMS[str(form.dtype)])
    t = Tiled(form, tile, mma.name, store_bytes=out_vector, expected_us=us, bound=bound)
    t.spread = d.take("copies.when", {"at once": 0.0, "between slices": not_spread(form, tile) or 1.0}, {
        "at once": "before the products of a step", "between slices": "a part before the products of each slice",
    }.__getitem__, "relative") == "between slices"  # fmt: skip
    narrow = out.dtype.bits <= 16
    through: dict[Any, float | str] = {"shared": 1.0 if narrow else 2.0, "registers": 2.0 if narrow else 1.0}
    reasons = {"shared": "whole lines are stored", "registers": "four lanes store a whole sector"}
    t.through_shared = d.take("result.through", through, lambda v: reasons[v], "relative") == "shared"

    for s in form.staged:
        shape = shape_of(form, s, tile)
        width = vector_bytes(s.value.more["stored"][-1], 2)
        found = lay_out(d, shared_name(s), shape, form.dtype, accesses_of(shape, form.dtype, tile, width), tile.stages)
        found.copy_bytes = width
        d.put(
            f"{found.name}.copy",
            f"cp.async of {width} bytes",
            f"lines of {s.name} along {s.value.more['stored'][-1].name}",
        )
        d.put(f"{found.name}.load", "ldmatrix.x4" if s.along_k(k) else "ldmatrix.x4.trans",
              f"{k.name} is {'' if s.along_k(k) else 'not '}the contiguous axis of {s.name}")  # fmt: skip
        t.shared[found.name] = found
    for x in later_tiles(form, tile):
        axis = x.dot.value.more["axis"]
        width = vector_bytes(x.dot.right.more["stored"][-1], 2)
        accesses = accesses_of(x.right_shape, form.dtype, tile, width)
        name = f"s{x.dot.right.name}"
        found = lay_out(d, name, x.right_shape, form.dtype, accesses, 0)
        found.copy_bytes = width
        d.put(
            f"{name}.where",
            "shared, whole",
            f"{axis.name} has {axis.size} elements: it is copied once, beside the loop",
        )
        t.shared[name] = found
    if t.through_shared:
        pair = arrange.fragments(tile.m, tile.n, mma.c.tv, (16, 8), 2, name="stores of accumulators")
        accesses = [pair, arrange.vectors(tile.m, tile.n, out.dtype, tile.threads, out_vector)]
        t.shared["sResult"] = lay_out(d, "sResult", (tile.m, tile.n), out.dtype, accesses, 0)
    for i, statistic in enumerate(form.statistics):
        name, of = f"s{i}", ", ".join(y.name for y in form.inputs(statistic.side))
        if statistic.side == "left":
            d.put(
                f"{name}.where", "registers", f"the rows of {of}'s fragments have the same owners as rows of the sums"
            )
        else:
            d.put(f"{name}.where", "lanes exchange it", f"rows of {of}'s fragments become columns of the sums")
    for v in form.beside():
        d.put(f"{v.name}.where", "registers", "each thread reads the elements that its sums meet")
    schedule(d, t)
    place(d, t, device)
    return t


def schedule(d: Decisions, t: Tiled) -> None:
    """The fewest barriers of a step, and how far copies run ahead."""
    copies = [f"copy {s.name}" for s in t.form.staged]
    edges = [e for c in copies for e in ((c, "products", 1, 0), ("products", c, 1, t.tile.stages))]
    slots = arrange.fewest_barriers([*copies, "products"], edges, early=copies)
    t.barriers, t.ahead = slots.barriers, min(slots.ahead(c, "products") for c in copies)
    cycle = f"copy, read, copy again: 2 exchanges in {t.tile.stages} steps"
    d.put("slots.barriers", t.barriers, f"a step; {cycle}", float(t.barriers), "barriers")
    d.put("slots.ahead", t.ahead, "steps that copies run ahead of products at that number of barriers")


def place(d: Decisions, t: Tiled, device: Device, apart: bool = False) -> None:
    """Places in shared memory, by when each tensor is alive. `apart`: some threads still copy when others store."""
    alive: dict[Any, arrange.Alive] = {}
    for name, s in t.shared.items():
        first, end = (0, 1) if s.stages else (1, 2) if name == "sResult" else (0, 2 if t.form.later else 1)
        if not s.stages and name != "sResult":
            end = 1  # products of products read it before the barrier that the result waits for
        alive[name] = arrange.Alive(s.bytes, *((0, 2) if apart else (first, end)), s.align)
    packed = arrange.pack(alive)
    t.at = {str(n): at for n, at in packed.at.items()}
    t.over = {str(n): [str(o) for o in packed.over(n, alive)] for n in alive}
    t.shared_bytes = packed.bytes
    least = "the least that is possible" if packed.optimal else f"at least {packed.bound} are needed"
    d.put("memory.bytes", packed.bytes, f"of shared memory; {least}", float(packed.bytes), "bytes")
    for name in alive:
        what = (
            "the ring lives through the loop"
            if t.shared[str(name)].stages
            else "alive behind the loop"
            if name == "sResult"
            else "alive until the result is stored"
        )
        d.put(
            f"{name}.at",
            packed.at[name],
            what + (f"; over {', '.join(t.over[str(name)])}" if t.over[str(name)] else ""),
        )
    if packed.bytes > device.shared_bytes:
        none(f"{packed.bytes} bytes of shared memory", f"want: at most {device.shared_bytes}")
