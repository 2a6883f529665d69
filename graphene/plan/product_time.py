"""The choice of a product's tile: the expected time of each that can be used, and the least of them."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.plan.form import none
from graphene.plan.product_tiles import (
    SLICE,
    ProductTile,
    columns_of,
    copies_of,
    factors_of,
    refused,
    registers,
    shape_of,
    size_of,
    stage_bytes,
)
from graphene.report import occupancy
from graphene.select.model import BESIDE, FEW_WARPS, FILL_CLOCKS, LATENCY_CLOCKS, LAUNCH_US, STEP_CLOCKS, in_waves
from graphene.select.tiles import REGISTERS, up

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.form import ProductForm
    from graphene.plan.graph import Axis
    from graphene.select.device import Device

__all__ = ["choose_tile", "estimate", "least_us", "moved", "moved_bytes", "result_clocks"]

ROWS = (16, 32, 64, 128, 256)
COLUMNS = (16, 32, 64, 96, 128, 192, 256)
STEPS = (32, 64, 128)
LONG_STEP, LONG = (
    256,
    4096,
)  # a step of one product of few rows, from a sum of this length on: 2 to 4% faster on an H200
STAGES = (2, 3, 4, 5)  # one stage may be pinned: its copies are never ahead
WARPS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (8, 1))
FURTHER_WARPS = ((1, 3), (3, 1), (1, 6), (2, 3), (3, 2), (6, 1))  # for tiles of 48 and 96, which are not measured

# Of what limits a kernel, the shorter hides behind the longest, but not all of it: the sum of powers, and its root.
# These were fitted to 29 products, fused and plain, on an H200 (benchmarks/results/plan_h200.json).
HIDDEN, HIDDEN_MEMORY = 3.5, 8.0
LINE_BYTES = 128
NEAR = 0.04  # a difference of times of kernels bound by memory that the model does not see
INSTRUCTIONS = {"gelu": 26.0, "erf": 24.0, "gelu_tanh": 16.0, "silu": 10.0, "tanh": 10.0, "exp": 6.0}  # others: 1
# Clocks of a warp, however fast its multiprocessor is: from product to product of the same sums, of a copy, an element
# of an operand or a statistic that is computed, and a step's wait. One warp took 560 of a step of 128 on an H200.
CHAIN_CLOCKS, COPY_CLOCKS, ELEMENT_CLOCKS, WAIT_CLOCKS = 34, 8, 4, 100
GATHERED = 4  # times the clocks of other writes of shared memory that those of gathered windows take, on an H200
LONG_US, SLOWED = 50.0, 1.16  # tensor cores that are busy for so long run at a lower clock


def together(times: tuple[float, ...], hidden: float = HIDDEN) -> float:
    """The time of what runs beside each other: at least the longest, and more where others are about as long."""
    longest = max(times)
    return longest * float(sum((t / longest) ** hidden for t in times)) ** (1 / hidden) if longest else 0.0


def _line_bytes(shape: tuple[int, int]) -> float:
    """Bytes of a staged tile, and what cut lines cost: one of 1.5 lines takes as long as one of two."""
    width = shape[1] * 2
    cut = up(width, LINE_BYTES) * LINE_BYTES / width if width > LINE_BYTES // 2 else 1.0
    return math.prod(shape) * 2 * cut


def result_clocks(form: ProductForm, tile: ProductTile) -> float:
    """What a block computes of its sums, while nothing is multiplied."""
    return tile.m * tile.n * _of_a_result(form) / 128


@functools.lru_cache(64)
def _of_a_result(form: ProductForm) -> float:
    """Instructions of an element of the result, behind its products."""
    known = form.known()
    seen: dict[int, float] = {}

    def visit(v: Any) -> None:
        if v.number not in seen and v.number not in known and v.op not in ("input", "number"):
            seen[v.number] = INSTRUCTIONS.get(v.op, 1.0)
            for a in v.args:
                visit(a)

    visit(form.result)
    return sum(seen.values())


def warp_clocks(form: ProductForm, tile: ProductTile) -> float:
    """What a step takes a warp that nothing else keeps waiting."""
    each = tile.m // tile.warps[0] * tile.k / 32
    elements = _computed(form) * each * ELEMENT_CLOCKS
    copies = copies_of(form, tile.m, tile.n, tile.k) / tile.threads
    return tile.k / SLICE * CHAIN_CLOCKS + copies * COPY_CLOCKS + elements + WAIT_CLOCKS


@functools.lru_cache(64)
def _computed(form: ProductForm) -> float:
    """Elements that are computed of each one of the left operand: operands, statistics, and half for each factor."""
    computed = len({d.left.number for d in form.dots if d.left.op != "input"})
    return computed + sum(s.side == "left" for s in form.statistics) + len(factors_of(form)) / 2


def estimate(
    form: ProductForm, tile: ProductTile, sizes: dict[str, int], device: Device, once: int
) -> tuple[float, str]:
    """The expected time in microseconds, and what limits it: the library's model of a product, of several streams.

    `once`: bytes that cross the memory at least once.

    A step costs as much as the slowest of its products, its reads and writes of shared memory and its loads, and a part
    of the others; so do all steps, and what memory takes.
    """
    rows, columns, k = (size_of(a, sizes) for a in (form.rows, form.columns, form.k))
    batch = math.prod(size_of(a, sizes) for a in form.batch)
    (down, across), e = tile.warps, 2
    blocks = up(rows, tile.m) * up(columns, tile.n) * batch
    steps = up(k, tile.k)
    shapes = [(s, shape_of(form, s, tile)) for s in form.staged]
    loads = sum(a * b for _, (a, b) in shapes) * e
    reads = sum((across if s.side == "left" else down if s.across is form.columns else down * across) * a * b
                for s, (a, b) in shapes) * e  # fmt: skip
    wide = [tile.n if d.columns is form.columns else across * columns_of(form, d.columns, tile) for d in form.dots]
    flops = 2 * tile.m * tile.k * sum(wide)
    products = flops / device.flops_per_clock
    gathered = sum(math.prod(shape_of(form, s, tile)) for s in form.inputs("left")) * e if form.gather else 0
    on_chip = (reads + loads + (GATHERED - 1) * gathered) / 128
    filled = min(1.0, rows / tile.m)  # of a tile's rows; what lies behind them is not read
    from_l2 = sum(_line_bytes(shape) * (filled if s.side == "left" else 1.0) for s, shape in shapes)
    from_l2 /= device.l2_bytes
    found = occupancy(
        device.arch, tile.threads, stage_bytes(form, tile) * tile.stages, min(registers(form, tile), REGISTERS)
    )
    most = max(1, found.blocks_per_sm) if found is not None else 1
    store = tile.m * tile.n * form.output.dtype.bits / 8 / (2 * device.dram_bytes) + result_clocks(form, tile)
    warps, alone = tile.threads // 32, warp_clocks(form, tile)

    def clocks(resident: int) -> float:
        issue = min(1.0, 1 - FEW_WARPS + FEW_WARPS * resident * warps / 8)
        cores = min(issue, resident * warps / 4)  # a warp uses one of a multiprocessor's four tensor cores
        work = together((products / cores, on_chip / issue, from_l2))
        step = resident * work + STEP_CLOCKS / resident / math.sqrt(resident)
        step = max(step, alone)
        step = max(step, LATENCY_CLOCKS / (tile.stages - 1)) if tile.stages > 1 else step + LATENCY_CLOCKS
        return float(steps * step + (FILL_CLOCKS + store) * (1 if resident == 1 else BESIDE * resident))

    total = in_waves(blocks, device.sm_count, most, clocks)
    names = {"tensor cores": products, "shared memory": on_chip, "L2 cache": from_l2}
    bound = max(names, key=names.__getitem__)
    busy_us = blocks * steps * products / device.sm_count / device.clock_ghz / 1e3
    if busy_us > LONG_US:
        total *= SLOWED
    memory = once / device.dram_bytes / device.sm_count
    if memory > total:
        bound = "memory"
    return together((total, memory), HIDDEN_MEMORY) / device.clock_ghz / 1e3 + LAUNCH_US, bound


def least_us(form: ProductForm, sizes: dict[str, int], device: Device) -> float:
    """What no tile takes less than: the time of products at the device's rate, or of memory."""
    of = [size_of(a, sizes) for a in (*form.batch, form.rows, form.columns, form.k)]
    clocks = 2 * math.prod(of) * len(form.dots) / device.flops_per_clock
    clocks = max(clocks, moved_bytes(form, sizes) / device.dram_bytes) / device.sm_count
    return clocks / device.clock_ghz / 1e3 + LAUNCH_US


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
    if rows <= ROWS[0] and k >= LONG and len(form.dots) == 1 and form.gather is None:
        of["k"].append(LONG_STEP)
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


def _rank(form: ProductForm, t: ProductTile, sizes: dict[str, int], device: Device) -> tuple[Any, ...]:
    """Orders tiles that memory bounds, of which none is expected to be faster, as measured with few rows on an H200.

    Long steps come first, then a wave of as many blocks as may be, or as few as may be in more waves, then more warps,
    then four stages.
    """
    rows, columns = size_of(form.rows, sizes), size_of(form.columns, sizes)
    blocks = up(rows, t.m) * up(columns, t.n) * math.prod(size_of(a, sizes) for a in form.batch)
    return (
        -t.k,
        blocks > device.sm_count,
        blocks if blocks > device.sm_count else -blocks,
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
    us, bound, tile = min(admitted, key=lambda x: (round(x[0], 2), x[2].stages, stage_bytes(form, x[2])))
    if bound == "memory":
        near = [x for x in admitted if x[0] - LAUNCH_US <= (us - LAUNCH_US) * (1 + NEAR)]
        us, bound, tile = min(near, key=lambda x: _rank(form, x[2], sizes, device))
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
