"""Attention's form for Hopper: ``wgmma`` and copies by TMA as further values of a plan's decisions.

Blocks go through tiles of rows. One thread starts all copies. Each of one to three warpgroups multiplies 64 rows: the
scores of a tile of the stream, and behind them the values of the tile before, beside which exponentials are computed.
Weights are an operand in registers. Where keys have statistics, two warps read each tile of keys, and hand over one
number for each key.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import arrange
from graphene.plan.graph import Value, binary
from graphene.plan.product_tiles import ProductTile, size_of
from graphene.plan.product_time import moved
from graphene.plan.products import Shared
from graphene.plan.streams import StreamForm, keys_factors
from graphene.select.model import LAUNCH_US, in_waves
from graphene.select.tiles import up

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.select.device import Device

__all__ = ["Scored", "WarpgroupStream", "decide", "scored", "why_not"]

GROUP_ROWS = 64  # of one instruction, and so of a warpgroup
READERS = 64  # threads that compute statistics of keys
LOG2E = 1.4426950408889634
KEPT = 28  # registers of a thread for addresses, rows and loops
# Clocks on an H200, where the products of a step and its exponentials follow each other, and tiles of 64 of the stream
# and numbers of keys take some more. Eleven of twelve kernels were within 8%.
FLOPS_PER_CLOCK, EXPONENTIALS_PER_CLOCK, TILE_CLOCKS = 4096.0, 13.3, 1200.0
OF_WARPGROUPS = {1: 1.42, 2: 1.0, 3: 0.92}  # more of them hide more of each other's exponentials
NARROW, COLUMN_CLOCKS = 1.08, 4 / 128
POSITIVE = ("exp", "exp2", "rsqrt", "sigmoid")


@dataclass(eq=False)
class Scored:
    """How elements are computed of products, rows and columns.

    ``element``: of what is left to be computed of each product; ``factor``: what the exponent is multiplied by, with
    the maximum taken before. ``rows``, ``columns``: what is computed once of a row's statistics, or of a key's.
    """

    element: Value
    factor: Value | None
    rows: list[Value] = field(default_factory=list)
    columns: list[Value] = field(default_factory=list)


@dataclass(eq=False)
class WarpgroupStream(StreamForm):
    """What the text of such a kernel needs: ``tile.warps`` are those that multiply."""

    how: Scored = field(kw_only=True)
    workers: int = field(kw_only=True, default=1)
    queries: int = field(kw_only=True, default=1)
    lazy: bool = field(kw_only=True, default=False)
    turns: bool = field(kw_only=True, default=False)

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.tile.m // GROUP_ROWS

    @property
    def registers(self) -> tuple[int, int] | None:
        """Of a thread that copies, and of one that multiplies; None where all have the most."""
        return registers(self, self.consumers)

    def small_sizes(self, sizes: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """As of other streams; and few blocks, so that each has several tiles."""
        fixed, free = super().small_sizes(sizes)
        return {**fixed, "workers": 3}, free


def registers(f: StreamForm, consumers: int) -> tuple[int, int] | None:
    """Of a thread that copies, and of one that multiplies; None where all have the most."""
    if f.on("right"):
        return {1: None, 2: (56, 224), 3: (56, 152)}[consumers]
    return {1: None, 2: (40, 232), 3: (32, 160)}[consumers]


def kinds(v: Value, f: StreamForm) -> set[str]:
    """What a value is computed of: the first product, statistics of rows, of columns."""
    if v is f.first:
        return {"product"}
    for x in f.statistics:
        if x.value is v:
            return {"row" if x.side == "left" else "column"}
    return {k for a in v.args for k in kinds(a, f)}


def positive(v: Value) -> bool:
    """Whether the value is above zero wherever it is a number."""
    if v.op == "number":
        return bool(v.more["value"] > 0)
    if v.op in ("mul", "div", "add", "max"):
        return all(positive(a) for a in v.args)
    return v.op in POSITIVE or (v.op in ("rcp", "sqrt") and positive(v.args[0]))


def factors(v: Value, inverse: bool = False) -> list[tuple[Value, bool]]:
    """A product's factors, and whether each divides."""
    if v.op not in ("mul", "div"):
        return [(v, inverse)]
    x, y = v.args
    return factors(x, inverse) + factors(y, inverse != (v.op == "div"))


def product(of: list[tuple[Value, bool]]) -> Value:
    """The product of factors, the first of which do not divide."""
    ordered = sorted(of, key=lambda x: x[1])
    out = binary("div", 1.0, ordered[0][0]) if ordered[0][1] else ordered[0][0]
    for v, inverse in ordered[1:]:
        out = binary("div" if inverse else "mul", out, v)
    return out


def peeled(v: Value, f: StreamForm) -> tuple[Value, Value | None]:
    """A score as (what is computed of each product, a positive factor of the whole row)."""
    every = factors(v)
    out = [(y, i) for y, i in every if kinds(y, f) <= {"row"} and positive(y)]
    rest = [x for x in every if x not in out]
    return (product(rest), product(out)) if out and rest else (v, None)


@functools.lru_cache(32)
def scored(f: StreamForm) -> Scored:
    """How the elements of a stream are computed."""
    element, factor = peeled(f.score, f) if f.top is not None else (f.score, None)
    how = Scored(element, factor)

    def visit(v: Value) -> None:
        found = kinds(v, f)
        for kind, into in (("row", how.rows), ("column", how.columns)):
            if found == {kind}:
                if not any(v is x for x in into):
                    into.append(v)
                return
        for a in v.args if v is not f.first else ():
            visit(a)

    visit(element)
    return how


def degree(v: Value, f: StreamForm) -> int | None:
    """How often the value doubles where all weights do; None where that is not known."""
    if v is f.second or v is f.total:
        return 1
    if v.op == "number":
        return 0
    found = [degree(a, f) for a in v.args]
    if any(x is None for x in found):
        return None
    if v.op == "mul":
        return sum(x for x in found if x is not None)
    if v.op == "div":
        return (found[0] or 0) - (found[1] or 0)
    if v.op == "rcp":
        return -(found[0] or 0)
    if v.op in ("neg", "abs"):
        return found[0]
    return 0 if all(x == 0 for x in found) else None


def why_not(f: StreamForm, device: Device) -> str:
    """Why a graph cannot be computed so; empty if it can."""
    if device.arch != "sm_90a":
        return f"instructions of sm_90a, not of {device.arch}"
    if f.k.more["stored"][-1] is not f.depth:
        return f"{f.k.name} does not lie along {f.depth.name}"
    return ""


def refused(f: StreamForm, t: ProductTile, queries: int, device: Device) -> str:
    """Why a tile cannot be used; empty if it can."""
    depth, columns, consumers = f.depth.size or 0, f.columns.size or 0, t.m // GROUP_ROWS
    need = sum(s.bytes for s in tensors(f, t, queries).values()) + 2048
    if need > device.shared_bytes:
        return f"{need} bytes of shared memory, at most {device.shared_bytes}"
    held = t.n * 3 // 4 + columns // 2 + (depth // 4 if f.left.op != "input" else 0) + KEPT
    most = (registers(f, consumers) or (0, 255))[1]
    if held > most:
        return f"about {held} registers a thread, at most {most}: it would spill"
    return ""


def tensors(f: StreamForm, t: ProductTile, queries: int) -> dict[str, Shared]:
    """Shared memory: tiles of lines that TMA and wgmma know, and what is handed over of keys."""
    depth, columns = f.depth.size or 0, f.columns.size or 0
    out: dict[str, Shared] = {}
    for name, rows, width, stages in (
        ("sQ", t.m, depth, queries), ("sK", t.n, depth, t.stages), ("sV", t.n, columns, t.stages),
        ("sResult", t.m, columns, 0),
    ):  # fmt: skip
        line = next(n for n in (64, 32, 16) if width % n == 0)
        out[name] = Shared(
            name, (rows, width), gr.swizzle(line, f.dtype), rows * width * 2 * max(stages, 1), 1024, stages
        )
    for i, _ in enumerate(scored(f).columns):
        out[f"sc{i}"] = Shared(f"sc{i}", (1, t.n), None, 4 * t.n * t.stages, 16, t.stages)
    return out


def decide(d: Decisions, f: StreamForm, sizes: dict[str, int], device: Device) -> WarpgroupStream:
    """Makes every decision. Raises SelectError PLAN_NONE, PLAN_PIN."""
    depth = f.depth.size or 0
    rows, stream = size_of(f.rows, sizes), size_of(f.stream, sizes)
    batch = math.prod(size_of(a, sizes) for a in f.batch)
    options: dict[Any, float | str] = {}
    tiles: dict[Any, tuple[ProductTile, int]] = {}
    for consumers, n, stages in ((c, n, s) for c in (2, 3, 1) for n in (128, 64) for s in (3, 2, 4)):
        t = ProductTile(GROUP_ROWS * consumers, n, depth, stages, (4 * consumers, 1))
        key = f"{t.m}x{n} by {consumers} warpgroups, {stages} stages"
        queries = next((q for q in (2, 1) if not refused(f, t, q, device)), 1)
        tiles[key] = t, queries
        options[key] = refused(f, t, queries, device) or _us(f, t, (rows, stream, batch), sizes, device)
    key = d.take("tile", options, lambda _: "rows by elements of the stream; the least expected time", "us")
    d.made["tile"].alternatives = sorted(
        (a for a in d.made["tile"].alternatives if not isinstance(a[1], str)), key=lambda a: a[1])[:6]  # fmt: skip
    tile, queries = tiles[key]
    how = scored(f)
    made = WarpgroupStream(**{n: getattr(f, n) for n in f.__dataclass_fields__}, how=how, queries=queries)
    made.tile, made.expected_us = tile, float(d.made["tile"].cost or 0)
    made.bound = "products and exponentials"
    _rewrites(d, made)
    made.shared = tensors(f, tile, queries)
    tma = {"sQ": f.q, "sK": f.k, "sV": f.v}
    for name, s in made.shared.items():
        if s.swizzle is not None:
            d.put(f"{name}.swizzle", str(s.swizzle), "lines as TMA and wgmma know them: 0 conflicts")
        if name in tma:
            d.put(f"{name}.copy", "TMA", f"boxes of {tma[name].name}, by one thread")
    registers_ = f.left.op != "input"
    d.put("sQ.load", "ldmatrix.x4" if registers_ else "wgmma",
          "an operand in registers" if registers_ else "the instruction reads shared memory")  # fmt: skip
    made.ahead = tile.stages - 1
    d.put("slots.barriers", 0, "a step; mbarriers hand stages over: full by the copies' bytes, empty by each reader")
    d.put("slots.ahead", made.ahead, "steps that copies run ahead of products")
    several = made.consumers > 1
    made.turns = d.take("turns", {True: 0.0 if several else "a single warpgroup", False: 1.0}, {
        True: "warpgroups take turns at the tensor cores: one multiplies while others compute exponentials",
        False: "warpgroups multiply when they can",
    }.__getitem__, "relative")  # fmt: skip
    made.workers = d.put("workers", device.sm_count, "blocks, one on each multiprocessor, each with several tiles")
    alive: dict[Any, arrange.Alive] = {n: arrange.Alive(x.bytes, 0, 2, x.align) for n, x in made.shared.items()}
    packed = arrange.pack(alive)
    made.at = {str(n): at for n, at in packed.at.items()}
    d.put("memory.bytes", packed.bytes, "of shared memory; tiles overlap in time", float(packed.bytes), "bytes")
    for name in alive:
        d.put(f"{name}.at", packed.at[name], "alive in all tiles of a block")
    return made


def _rewrites(d: Decisions, f: WarpgroupStream) -> None:
    """What is computed where."""
    if f.top is not None:
        d.put("rewrite.running_maximum", True, "sums so far shrink when the maximum grows: one pass over the stream")
        can = degree(f.output.value, f) == 0
        # On an H200 by 2 to 3% faster beside factors of keys, and by 5% slower without them.
        late = (0.0 if f.how.columns else 1.0) if can else "weights themselves are asked for"
        f.lazy = d.take("rewrite.shrink_late", {True: late, False: 0.5}, {
            True: "sums shrink where a maximum grew by more than 2^8: weights are relative to the same one",
            False: "sums shrink by every step's maximum",
        }.__getitem__, "relative")  # fmt: skip
        said = "numbers and rows' factors" if f.how.factor is not None else "nothing"
        d.put("rewrite.exponents", f.how.factor is not None,
              f"{said} behind the maximum: exp(x * f - max(x * f)) is exp2((x - max(x)) * f / log(2))")  # fmt: skip
    else:
        d.put("p.range", "as given", "without a maximum, elements that are multiplied again may leave the type's range")
    for i, x in enumerate(f.statistics):
        if x.side == "left":
            d.put(f"s{i}.where", "registers", f"once a tile, of {f.q.name}'s fragments: the rows of the sums")
        else:
            d.put(f"s{i}.where", "beside", f"two warps read each tile of {f.k.name} while others multiply")
    keys_factors(d, f)
    if f.left.op != "input":
        names = ", ".join(v.name for v in (f.q, *f.factors()))
        d.put("queries.where", "registers", f"computed once of {names}, rounded once")
    d.put("p.where", "registers", "the sums of one product have the owners of the other's operand; rounded once")


def _us(f: StreamForm, t: ProductTile, of: tuple[int, int, int], sizes: dict[str, int], device: Device) -> float:
    """The expected time: rounds of tiles, each with the products and the exponentials of all steps."""
    rows, stream, batch = of
    depth, columns, consumers = f.depth.size or 0, f.columns.size or 0, t.m // GROUP_ROWS
    products = 2 * t.m * t.n * (depth + columns) / FLOPS_PER_CLOCK
    special = t.m * t.n / EXPONENTIALS_PER_CLOCK
    loads = 2 * t.n * (depth + columns) / device.l2_bytes
    work = max((products + special) * OF_WARPGROUPS[consumers] * (NARROW if t.n < 128 else 1.0), loads)
    work += t.m * t.n * COLUMN_CLOCKS * len(scored(f).columns)
    steps = up(stream, t.n)
    total = in_waves(up(rows, t.m) * batch, device.sm_count, 1, lambda _: steps * work + TILE_CLOCKS)
    tensors = [(v.axes, v.more["dtype"]) for v in f.inputs()] + [(f.output.axes, f.output.dtype)]
    memory = moved(tensors, {a.symbol: size_of(a, sizes) for axes, _ in tensors for a in axes})
    total = max(total, memory / device.dram_bytes / device.sm_count)
    return float(total / device.clock_ghz / 1e3 + LAUNCH_US)
