"""Products for Hopper: ``wgmma`` and copies by TMA as further values of a plan's decisions.

A warpgroup starts the copies of a ring of stages; one or two others multiply what lies in shared memory, each 64 rows,
and compute the result. Stages are handed over by mbarriers. They are taken where
they are expected to be faster than ``mma.sync``; the model was held to times of an H200.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.plan import block_orders
from graphene.plan.block_orders import ALONG_K, TURNS, BlockOrder, BlockWay
from graphene.plan.product_tiles import ProductTile, shape_of, size_of
from graphene.plan.product_time import moved_bytes, result_clocks
from graphene.plan.products import Shared, Tiled, place, shared_name
from graphene.select.model import LATENCY_CLOCKS, LAUNCH_US, in_waves
from graphene.select.tiles import up

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.form import ProductForm
    from graphene.select.device import Device

__all__ = [
    "WarpgroupTiled", "decide", "every_tile", "hand_over", "refused", "stage", "step_clocks", "take_tile", "why_not",
]  # fmt: skip

GROUP_ROWS = 64  # of one instruction, and so of a warpgroup
STEP = 64  # of k: lines of 128 bytes, which the widest swizzle takes
PIECE = 64  # columns of the result that are stored at once
COLUMNS = (64, 128, 192, 256)
STAGES = (6, 5, 4, 3, 2)  # of equal times, the most
# Registers of a thread for sums, by the warpgroups that multiply: addresses and a piece of the result need the others.
SUMS = {1: 144, 2: 144, 3: 72}
PIECE_CLOCKS = 1000  # until a piece of a matrix beside the products has been read
ZEROS_PER_CLOCK = 2300  # elements outside of the rows, which all multiprocessors fill: products of 1 and 16 rows
START_CLOCKS = 1200  # from a block's start to its first product
# Windows on an H200: a warpgroup that does nothing else gathers in three times the clocks of other writes, and steps of
# three warpgroups take longer than those of fewer. Eight of nine tiles were within 7%.
GATHERED, OF_WARPGROUPS = 3, {1: 0.95, 2: 1.0, 3: 1.05}
FLOPS_PER_CLOCK = 3286.0  # of a multiprocessor, as cuBLAS reaches with 4096^3 on an H200


@dataclass
class WarpgroupTiled(Tiled):
    """What the text of such a kernel needs: ``tile.warps`` are those that multiply."""

    order: BlockOrder = field(default_factory=BlockOrder)

    @property
    def registers(self) -> tuple[int, int]:
        """Those of a thread that copies, and of one that multiplies, where several warpgroups do."""
        return {2: (40, 232), 3: (32, 160)}[self.consumers]

    @property
    def small_rows(self) -> int:
        """Whole tiles of rows of a small problem: each of the simulator's four blocks has several."""
        return 6 if self.order.persistent else 1

    @property
    def small_steps(self) -> int:
        """Steps of k of a small problem: of both blocks that cut k."""
        return (2 if self.order.cluster == ALONG_K else 1) * (self.ahead + 1)

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.order.turns else self.tile.m // GROUP_ROWS


def why_not(form: ProductForm, device: Device, stored: bool = True) -> str:
    """Why a graph's products cannot be computed so; empty if they can. `stored`: whether a matrix is the result."""
    if device.arch != "sm_90a":
        return f"instructions of sm_90a, not of {device.arch}"
    if form.statistics or any(x.op != "input" for d in form.dots for x in (d.left, d.right)):
        return "operands are read where TMA puts them: nothing is computed of them in registers"
    if form.later or form.batch:
        return "products of products, and batches, are planned for mma.sync"
    if not all(s.along_k(form.k) for s in form.staged):
        return f"operands that do not lie along {form.k.name}"
    if stored and form.output.dtype.bits != 16:
        return f"results of {form.output.dtype}: matrices are stored by pairs of 16 bits"
    lines = [s.value.more["stored"][-1] for s in form.staged] + [form.output.axes[-1]] * stored
    if any(a.size is None or a.size % 8 for a in lines):
        return "lines of other than whole 16 bytes, which TMA wants"
    if any(d.columns is not form.columns for d in form.dots):
        return "products of other columns"
    return ""


def step_clocks(form: ProductForm, tile: ProductTile, device: Device) -> tuple[float, str]:
    """What a step takes, and what limits it, of one block on a multiprocessor."""
    loads = sum(math.prod(shape_of(form, s, tile)) for s in form.staged) * 2
    products = 2 * tile.m * tile.n * tile.k * len(form.dots) / FLOPS_PER_CLOCK
    times = {"tensor cores": products, "L2 cache": loads / device.l2_bytes,
             "latency": LATENCY_CLOCKS / (tile.stages - 1)}  # fmt: skip
    if form.gather is not None:
        rows, columns = (2 * tile.k * n for n in (tile.m, tile.n))
        moved = (1 + GATHERED) * rows + (1 + tile.m // GROUP_ROWS) * columns  # each warpgroup reads all columns
        times["shared memory"] = moved / 128
        times = {name: t * OF_WARPGROUPS[tile.m // GROUP_ROWS] for name, t in times.items()}
    bound = max(times, key=times.__getitem__)
    return times[bound], bound


def estimate(form: ProductForm, tile: ProductTile, sizes: dict[str, int], device: Device) -> tuple[float, str]:
    """The expected time in microseconds, and what limits it, of one block on a multiprocessor."""
    rows, columns, k = (size_of(a, sizes) for a in (form.rows, form.columns, form.k))
    blocks, steps = up(rows, tile.m) * up(columns, tile.n), up(k, tile.k)
    work, bound = step_clocks(form, tile, device)
    ends = START_CLOCKS + tile.m * tile.n * 2 / device.dram_bytes + result_clocks(form, tile)
    read = sum(len(v.axes) == 2 for v in form.beside())  # matrices beside the products, piece by piece
    ends += read * tile.n / PIECE * PIECE_CLOCKS
    outside = (up(rows, tile.m) * tile.m - rows) * up(columns, tile.n) * k  # elements that TMA fills with zeros
    ends += outside / ZEROS_PER_CLOCK / up(blocks, device.sm_count)
    total = in_waves(blocks, device.sm_count, 1, lambda _: steps * work + ends)
    memory = moved_bytes(form, sizes) / device.dram_bytes / device.sm_count
    if memory > total:
        total, bound = memory + outside / ZEROS_PER_CLOCK, "memory"
    return total / device.clock_ghz / 1e3 + LAUNCH_US, bound


def shared_bytes(form: ProductForm, tile: ProductTile, stored: bool = True) -> int:
    """Bytes of all stages, and of a piece of a result that is stored."""
    ring = sum(math.prod(shape_of(form, s, tile)) for s in form.staged) * 2 * tile.stages
    return ring + tile.m * PIECE * 2 * stored


def refused(form: ProductForm, tile: ProductTile, device: Device, stored: bool = True, more_bytes: int = 0) -> str:
    """Why a tile cannot be used; empty if it can. ``more_bytes``: of shared memory, beside stages and a piece."""
    if (need := shared_bytes(form, tile, stored) + more_bytes + 1024) > device.shared_bytes:
        return f"{need} bytes of shared memory, at most {device.shared_bytes}"
    most = SUMS[tile.m // GROUP_ROWS]
    if (need := len(form.dots) * GROUP_ROWS * tile.n // 128) > most:
        return f"{need} sums a thread, at most {most}"
    return ""


def choose_tile(
    d: Decisions, form: ProductForm, sizes: dict[str, int], device: Device
) -> tuple[ProductTile, float, str]:
    """The tile of least expected time. Raises SelectError PLAN_NONE, PLAN_PIN."""
    # Three were faster for windows alone: of six products on an H200 they were slower by 4 to 45%.
    most = 3 if form.gather is not None or d.pins.get("tile.m") == 3 * GROUP_ROWS else 2
    return take_tile(d, {t: refused(form, t, device) or estimate(form, t, sizes, device) for t in every_tile(most)})


def every_tile(most: int = 2) -> list[ProductTile]:
    """Tiles that are looked at, for at most so many warpgroups that multiply."""
    rows = [GROUP_ROWS * (i + 1) for i in range(most)]
    return [ProductTile(m, n, STEP, stages, (m // 16, 1)) for m, n, stages in itertools.product(rows, COLUMNS, STAGES)]


def take_tile(d: Decisions, found: dict[ProductTile, str | tuple[float, str]]) -> tuple[ProductTile, float, str]:
    """The tile of least time, given the times of tiles or why they are refused. Raises PLAN_NONE, PLAN_PIN."""
    kept = dict(found)
    why = {"tile.m": "rows of a block, 64 for each warpgroup that multiplies", "tile.n": "columns of a block",
           "loop.k": "summed in a step: lines of 128 bytes", "stages": "steps in shared memory at once",
           "warps": "warps that multiply, down and across"}  # fmt: skip
    for path, said in why.items():
        options: dict[Any, float | str] = {}
        for t, cost in kept.items():
            value = t.values()[path]
            if isinstance(cost, str):
                options.setdefault(value, cost)
            elif isinstance(best := options.get(value, "none"), str) or cost[0] < best:
                options[value] = cost[0]
        taken = d.take(path, options, lambda _, said=said: f"{said}; least expected time", "us")  # type: ignore[misc]
        kept = {t: cost for t, cost in kept.items() if t.values()[path] == taken}
    ((tile, cost),) = kept.items()
    assert not isinstance(cost, str)
    return tile, *cost


def decide(d: Decisions, form: ProductForm, sizes: dict[str, int], device: Device) -> WarpgroupTiled:
    """Makes every decision. Raises SelectError PLAN_NONE, PLAN_PIN."""

    def fits(tile: ProductTile, way: BlockWay) -> str:
        more = block_orders.share_bytes(tile) if way.cluster == ALONG_K else 0
        more += GROUP_ROWS * PIECE * 2 if way.blocks == TURNS else 0  # a piece of the other warpgroup
        return refused(form, tile, device, more_bytes=more)

    order, found = block_orders.choose(d, form, sizes, device, fits)
    tile, us, bound = choose_tile(d, form, sizes, device) if order.alone else take_tile(d, found)
    order = block_orders.grouped(d, order, tile, form, sizes)
    kind = "bf16" if str(form.dtype) == "bf16" else "f16"
    t = WarpgroupTiled(form, tile, f"wgmma.m64n{tile.n}k16.f32.{kind}", expected_us=us, bound=bound, order=order)
    d.put("result.through", "shared", f"pieces of {PIECE} columns, which TMA stores")
    stage(d, t)
    swizzle = gr.swizzle(PIECE, form.output.dtype)
    d.put("sResult.swizzle", str(swizzle), "lines of 128 bytes as stmatrix and TMA know them: 0 conflicts")
    rows = GROUP_ROWS * t.consumers
    t.shared["sResult"] = Shared("sResult", (rows, PIECE), swizzle, rows * PIECE * 2, 1024)
    if order.cluster == ALONG_K:
        t.shared["share"] = Shared("share", (GROUP_ROWS, tile.n), None, block_orders.share_bytes(tile), 16)
        d.put("share.layout", "pairs in the order of threads", "what the other block stores, and this one adds")
    for v in form.beside():
        d.put(f"{v.name}.where", "registers", "each thread reads the elements that its sums meet")
    hand_over(d, t)
    place(d, t, device, apart=True)
    return t


def stage(d: Decisions, t: WarpgroupTiled) -> None:
    """How operands come to shared memory, and lie there."""
    form, tile = t.form, t.tile
    for s in form.staged:
        name, shape = shared_name(s), shape_of(form, s, tile)
        swizzle = gr.swizzle(STEP, form.dtype)
        d.put(f"{name}.swizzle", str(swizzle), "lines of 128 bytes as TMA and wgmma know them: 0 conflicts")
        if form.gather is not None and s.side == "left":
            d.put(
                f"{name}.copy", "cp.async of 16 bytes", f"windows of {s.name}, gathered by the threads of a warpgroup"
            )
        else:
            d.put(f"{name}.copy", "TMA", f"boxes of {s.name} along {form.k.name}, by one thread")
        d.put(f"{name}.load", "wgmma", "the instruction reads shared memory")
        t.shared[name] = Shared(name, shape, swizzle, math.prod(shape) * 2 * tile.stages, 1024, tile.stages)


def hand_over(d: Decisions, t: WarpgroupTiled) -> None:
    """How stages are handed from copies to products, and back."""
    t.barriers, t.ahead = 0, t.tile.stages - 1
    d.put("slots.barriers", 0, "a step; mbarriers hand stages over: full by the copies' bytes, empty by each reader")
    d.put("slots.ahead", t.ahead, "steps that copies run ahead of products")
