"""Heads: what is kept of a product's rows, such as a loss or the index of the largest element, without the product.

A block computes tiles of one part of the columns, one after the other, and keeps statistics of its rows. A second
kernel puts the parts' statistics together, in the order of the parts, and computes the results. The workspaces between
both have one element for each row and part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.dtypes import torch_type
from graphene.plan import products
from graphene.plan.form import ProductForm, none, product_form
from graphene.plan.graph import Axis, Graph, Output, Value, refuse
from graphene.plan.product_tiles import ProductTile, size_of
from graphene.plan.product_time import moved, result_clocks
from graphene.plan.products import Tiled, place
from graphene.plan.warpgroups import (
    GROUP_ROWS,
    START_CLOCKS,
    ZEROS_PER_CLOCK,
    WarpgroupTiled,
    every_tile,
    hand_over,
    refused,
    stage,
    step_clocks,
    take_tile,
    why_not,
)
from graphene.select.model import LAUNCH_US
from graphene.select.tiles import up

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.select.device import Device

__all__ = ["HEAD_PIECE", "Head", "HeadTiled", "HeadWarps", "decide", "is_head", "run"]

HEAD_PIECE = 32  # columns of a tile of which something is computed at once
MOST_PARTS = 65535  # blocks of a grid's second axis
TILES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # of a part
ELEMENT_INSTRUCTIONS = {"top": 1.0, "total": 2.0, "best": 1.0, "own": 1.0, "added": 1.0}
EXPONENTIALS_PER_CLOCK = 16
ITEM_CLOCKS = 5500  # of what a part begins and ends with: 501 parts of 4096 rows took 195 us more than 4
TILE_CLOCKS = 2000  # of a tile's exchange between lanes, and of its first products
NEAR = 0.01  # of numbers of parts whose times differ by less than this, the least
LONG_US, SLOWED = 1000.0, 1.1  # tensor cores that are busy for so long run at a lower clock
MERGE_US = 2.2  # of a second kernel that begins when the first one ends


@dataclass(frozen=True)
class RowStatistic:
    """A statistic of a row's scores: "top", their maximum, "total", the sum of their exponentials relative to it,
    "added", their sum, "best", the index of the maximum, "own", the score at an index.
    """

    value: Value
    kind: str

    @property
    def index(self) -> Value:
        """The input that says which score is the row's own."""
        return self.value.args[1]


@dataclass
class Head(Tiled):
    """What the text of both kernels needs. ``form``: of the scores, which are not stored."""

    outputs: list[Output] = field(kw_only=True)
    score: Value = field(kw_only=True)
    kept: list[RowStatistic] = field(kw_only=True)

    def inputs(self) -> list[Value]:
        """The inputs, in the order of the graph."""
        found = {v.number: v for o in self.outputs for v in o.value.walk() if v.op == "input"}
        return [found[n] for n in sorted(found)]

    @property
    def kinds(self) -> set[str]:
        """The kinds of statistics that are computed: exponentials and indices need the maximum."""
        found = {k.kind for k in self.kept}
        return found | {"top"} if found & {"total", "best"} else found

    def small_sizes(self, sizes: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """About two tiles of rows and sums, three of columns."""
        fixed, free = super().small_sizes(sizes)
        n, columns = self.tile.n, self.form.columns
        assert columns.size is not None
        fixed[columns.symbol] = columns.size if columns.size <= 4 * n else 3 * n + (columns.size % n or n)
        return fixed, free

    def fewer(self) -> dict[str, int]:
        """Parameters of kernels at these sizes."""
        return {}


@dataclass
class HeadWarps(Head):
    """A head by ``mma.sync``: a block computes one tile, and each warp keeps statistics of its columns."""


@dataclass
class HeadTiled(Head, WarpgroupTiled):
    """A head by ``wgmma``. ``parts``: of the columns. ``workers``: blocks."""

    parts: int = field(kw_only=True, default=1)
    workers: int = field(kw_only=True, default=1)

    def fewer(self) -> dict[str, int]:
        """Some blocks compute several tiles."""
        return {"parts": min(2, self.parts), "workers": min(3, self.workers)}


def is_head(g: Graph) -> bool:
    """Whether rows of a product are reduced, and nothing is multiplied by what they give."""
    values = [v for o in g.outputs for v in o.value.walk()]
    dots = [v for v in values if v.op == "dot"]
    if any(x.op == "dot" for v in dots for a in v.args for x in a.walk()):
        return False
    reduced = [v.more["axis"] for v in values if "axis" in v.more and v.op != "dot" and _has_dot(v.args[0])]
    return any(a not in o.axes for o in g.outputs for a in reduced)


def _has_dot(v: Value) -> bool:
    return any(x.op == "dot" for x in v.walk())


def _names(axes: Any) -> str:
    return ", ".join(a.name for a in axes)


def _read_kept(values: list[Value]) -> list[RowStatistic]:
    """The statistics of scores among a graph's values."""
    tops = {v.number for v in values if v.op == "max" and "axis" in v.more}
    kept: list[RowStatistic] = []
    for v in values:
        if "axis" not in v.more or v.op == "dot" or not _has_dot(v.args[0]):
            continue
        element = v.args[0]
        relative = element.op == "exp" and element.args[0].op == "sub" and element.args[0].args[1].number in tops
        if v.op == "sum" and relative:
            minus = element.args[0]
            if minus.args[1].args[0] is not minus.args[0]:
                none(f"{v.line}: exponentials relative to another maximum than their own")
            kept.append(RowStatistic(v, "total"))
        elif v.op in ("max", "argmax", "at", "sum", "mean"):
            kinds = {"max": "top", "argmax": "best", "at": "own", "sum": "added", "mean": "added"}
            kept.append(RowStatistic(v, kinds[v.op]))
        else:
            none(f"{v.line}: {v.op} of a product's rows", "want: logsumexp, max, argmax, at, sum or mean")
    return kept


def score_of(k: RowStatistic) -> Value:
    """What a statistic is of."""
    element = k.value.args[0]
    return element.args[0].args[0] if k.kind == "total" else element


def read(g: Graph) -> tuple[ProductForm, Value, list[RowStatistic]]:
    """Reads a graph of a head: the form of its scores, the scores, their statistics. Raises SelectError PLAN_NONE."""
    kept = _read_kept(list({v.number: v for o in g.outputs for v in o.value.walk()}.values()))
    score, columns = score_of(kept[0]), kept[0].value.more["axis"]
    for k in kept:
        if score_of(k) is not score or k.value.more["axis"] is not columns:
            none(f"{k.value.line}: a statistic of other scores than {kept[0].value.line} has",
                 fix="make a graph for each")  # fmt: skip
    rows = [a for a in score.axes if a is not columns]
    if len(rows) != 1 or columns.size is None:
        none(f"{score.line}: scores of rows and of columns whose number is known", f"got: [{_names(score.axes)}]")
    for o in g.outputs:
        if o.axes != (rows[0],):
            none(f"output {o.name} is of other axes than a row's statistics", f"want: {_names(rows)}",
                 f"got: {_names(o.axes)}")  # fmt: skip
        _behind(o, {k.value.number: k for k in kept}, rows[0])
    for k in kept:
        if k.kind == "own" and k.index.more["stored"] != (rows[0],):
            none(f"{k.value.line}: an index for each row", f"want: ({_names(rows)})",
                 f"got: ({_names(k.index.more['stored'])})")  # fmt: skip
    flat = Graph(g.name)
    flat.inputs = [v for v in g.inputs if any(v is x for x in score.walk())]
    flat.outputs = [Output("scores", score, (rows[0], columns), gr.fp32)]
    form = product_form(flat)
    if form.statistics or any(v.op != "input" for x in form.dots for v in (x.left, x.right)):
        none(f"{score.line}: operands of a head's product are inputs", fix="store them first")
    if len(form.dots) != 1 or any(len(v.axes) == 2 for v in form.beside()):
        none(f"{score.line}: scores are one product, and what is computed of it and of vectors")
    return form, score, kept


def _behind(o: Output, kept: dict[int, RowStatistic], rows: Axis) -> None:
    """Refuses what is not computed of a row's statistics and of inputs over the rows."""

    def visit(v: Value) -> None:
        if v.number in kept:
            if kept[v.number].kind == "best" and v is not o.value:
                none(f"{v.line}: an index that is computed with; it is stored as it is found")
            return
        if v.op == "input" and (
            v.more["stored"] != (rows,) or v.more["dtype"].bits != 32 or str(v.more["dtype"]) == "i32"
        ):
            none(f"input {v.name} beside a row's statistics", f"want: ({rows.name}) of fp32",
                 f"got: ({_names(v.more['stored'])}) of {v.more['dtype']}")  # fmt: skip
        if v.op in ("dot", "round") or "axis" in v.more:
            none(f"{v.line}: {v.op} behind a row's statistics")
        for a in v.args:
            visit(a)

    visit(o.value)
    index = o.value.number in kept and kept[o.value.number].kind == "best"
    if (str(o.dtype) == "i32") != index or str(o.dtype) not in ("i32", "fp32", "fp16", "bf16"):
        none(f"output {o.name} is stored as {o.dtype}", f"want: {'i32' if index else 'fp32, fp16 or bf16'}")


def estimate(
    t: ProductTile, parts: int, form: ProductForm, kinds: set[str], sizes: dict[str, int], device: Device, once: int
) -> tuple[float, str]:
    """The expected time of both kernels, and what limits it. `once`: bytes that cross the memory at least once."""
    rows, columns, k = (size_of(a, sizes) for a in (form.rows, form.columns, form.k))
    work, bound = step_clocks(form, t, device)
    elements = t.m * t.n
    behind = elements * sum(ELEMENT_INSTRUCTIONS[kind] for kind in kinds) / 128 + result_clocks(form, t)
    behind += elements / EXPONENTIALS_PER_CLOCK if "total" in kinds else 0
    turns, tiles = up(up(rows, t.m) * parts, device.sm_count), up(up(columns, t.n), parts)
    total = START_CLOCKS + turns * (tiles * (up(k, t.k) * work + behind + TILE_CLOCKS) + ITEM_CLOCKS)
    outside = (up(rows, t.m) * t.m - rows) * up(columns, t.n) * k / ZEROS_PER_CLOCK / device.sm_count
    memory = (once + 8 * parts * rows * len(kinds)) / device.dram_bytes / device.sm_count
    if total / device.clock_ghz / 1e3 > LONG_US:
        total *= SLOWED
    if memory > total:
        total, bound = memory, "memory"
    return (total + outside) / device.clock_ghz / 1e3 + MERGE_US + LAUNCH_US, bound


def parts_of(tiles: int, row_tiles: int, device: Device) -> list[int]:
    """Numbers of parts that are looked at: of some tiles each, and those that give every multiprocessor a block."""
    found = {up(tiles, n) for n in TILES} | {
        min(tiles, max(1, waves * device.sm_count // row_tiles)) for waves in (1, 2, 3, 4)
    }
    return sorted(p for p in found if p <= MOST_PARTS)


def decide(d: Decisions, g: Graph, sizes: dict[str, int], device: Device) -> Head:
    """Makes every decision. Raises SelectError PLAN_NONE, PLAN_PIN."""
    form, score, kept = read(g)
    why = why_not(form, device, stored=False)
    if device.arch == "sm_90a":
        options: dict[Any, float | str] = {"wgmma": why or 0.0, "mma.sync": 1.0}
        d.take("instruction", options, lambda v: f"{why or 'its tensor cores are twice as fast'}", "relative")
    if why or d.pins.get("instruction") == "mma.sync":
        return _by_warps(d, g, form, score, kept, sizes, device)
    tile = ProductTile(GROUP_ROWS, 64, 64, 2, (4, 1))
    t = HeadTiled(form, tile, "", outputs=list(g.outputs), score=score, kept=kept)
    tensors = [(v.axes, v.more["dtype"]) for v in t.inputs()] + [(o.axes, o.dtype) for o in g.outputs]
    once, rows, columns = moved(tensors, sizes), size_of(form.rows, sizes), size_of(form.columns, sizes)
    pinned = d.pins.get("parts")
    times: dict[ProductTile, dict[Any, float | str]] = {}
    fewest: dict[ProductTile, Any] = {}
    bounds: dict[ProductTile, dict[Any, str]] = {}
    found: dict[ProductTile, str | tuple[float, str]] = {}
    for x in every_tile():
        if why := refused(form, x, device, stored=False):
            found[x] = why
            continue
        tiles = up(columns, x.n)
        numbers = parts_of(tiles, up(rows, x.m), device)
        if isinstance(pinned, int) and not isinstance(pinned, bool) and 0 < pinned <= MOST_PARTS:
            numbers = [*numbers, pinned]
        each = {p: estimate(x, p, form, t.kinds, sizes, device, once) for p in numbers}
        least = min(us for us, _ in each.values())
        best = pinned if pinned in each else min(p for p in each if each[p][0] <= (1 + NEAR) * least)
        fewest[x] = best
        times[x], bounds[x] = {p: us for p, (us, _) in each.items()}, {p: bound for p, (_, bound) in each.items()}
        found[x] = each[best]
    t.tile, _, _ = take_tile(d, found)
    t.mma = f"wgmma.m64n{t.tile.n}k16.f32.{'bf16' if str(form.dtype) == 'bf16' else 'f16'}"
    said = "of the columns: a block keeps statistics of the rows of one; the fewest of about the least time"
    others = sorted(((p, us) for p, us in times[t.tile].items() if p != fewest[t.tile]), key=lambda a: a[1])
    t.parts = d.put("parts", fewest[t.tile], said, float(times[t.tile][fewest[t.tile]]), "us", others[:6])
    t.expected_us, t.bound = float(times[t.tile][t.parts]), bounds[t.tile][t.parts]
    said = "blocks, at most one for each multiprocessor: each goes through tiles of rows with a part of the columns"
    t.workers = d.put("workers", min(device.sm_count, up(rows, t.tile.m) * t.parts), said)
    stage(d, t)
    for v in form.beside():
        d.put(f"{v.name}.where", "registers", "each thread reads the elements that its sums meet")
    for kind in sorted(t.kinds):
        d.put(f"{kind}.where", "registers", WHERE[kind])
    size = 4 * t.parts * rows * len(t.kinds)
    d.put("workspace.bytes", size, "an element for each statistic, part and row", float(size), "bytes")
    hand_over(d, t)
    place(d, t, device, apart=True)
    return t


def _by_warps(
    d: Decisions, g: Graph, form: ProductForm, score: Value, kept: list[RowStatistic], sizes: dict[str, int],
    device: Device,
) -> HeadWarps:  # fmt: skip
    """The decisions of a product whose result nobody stores."""
    tensors = {v.number: (v.axes, v.more["dtype"]) for o in g.outputs for v in o.value.walk() if v.op == "input"}
    form.moved = moved([*tensors.values(), *((o.axes, o.dtype) for o in g.outputs)], sizes)
    made = products.decide(d, form, sizes, device)
    given = {n: getattr(made, n) for n in made.__dataclass_fields__}
    t = HeadWarps(**given, outputs=list(g.outputs), score=score, kept=kept)
    t.expected_us += MERGE_US
    parts = up(size_of(form.columns, sizes), t.tile.n) * t.tile.warps[1]
    d.put("parts", parts, "of the columns: one for each warp along a tile's columns")
    size = 4 * parts * size_of(form.rows, sizes) * len(t.kinds)
    d.put("workspace.bytes", size, "an element for each statistic, part and row", float(size), "bytes")
    return t


WHERE = {
    "top": "lanes exchange the maximum of a tile, and each keeps the largest so far",
    "total": "each lane's sum of exponentials shrinks when the maximum grows; lanes exchange it behind the last tile",
    "added": "each lane's sum; lanes exchange it behind the last tile",
    "best": "looked for in tiles whose maximum is larger than any before",
    "own": "looked for in tiles that have a row's index",
}


def run(t: Head, launches: Any, g: Graph, args: Any, named: Any) -> None:
    """Launches both kernels, with workspaces beside the first argument. Raises VerifyError PLAN_GRAPH."""
    inputs = t.inputs()
    names = [*(v.name for v in inputs), *(o.name for o in g.outputs)]
    if named or len(args) != len(names):
        refuse("a plan of two kernels takes inputs, then outputs", f"want: {', '.join(names)}",
               f"got: {len(args)} arguments and the names {', '.join(named) or 'none'}")  # fmt: skip
    given = dict(zip(names, args, strict=True))
    sizes = {a.symbol: n for v in inputs for a, n in zip(v.more["stored"], given[v.name].shape, strict=False)}
    for name, (shape, dtype) in launches.workspaces(sizes).items():
        given[name] = _empty(args[0], shape, dtype)
    for kernel, of in launches:
        kernel(*(given[n] for n in of))


def _empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Memory that is not initialised, beside a tensor of PyTorch or NumPy."""
    if hasattr(like, "device") and hasattr(like, "new_empty"):
        return like.new_empty(shape, dtype=torch_type(dtype))
    import numpy as np

    return np.empty(shape, {"fp32": np.float32, "i32": np.int32}[dtype])
