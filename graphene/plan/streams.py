"""Products of products along a long axis: attention. The first product's elements stay in registers, tile by tile."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import arrange
from graphene.plan.form import Statistic, none
from graphene.plan.graph import REDUCTIONS, Axis, Graph, Output, Value, binary
from graphene.plan.product_tiles import SLICE, ProductTile, size_of, vector_bytes
from graphene.plan.product_time import moved
from graphene.plan.products import (
    MATRIX_ATOMS,
    Placed,
    accesses_of,
    lay_out,
)
from graphene.report import occupancy
from graphene.select.model import FILL_CLOCKS, LATENCY_CLOCKS, LAUNCH_US, STEP_CLOCKS, in_waves
from graphene.select.tiles import REGISTERS, up

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.select.device import Device

__all__ = ["StreamForm", "decide", "is_stream", "keys_factors", "read"]

MOST_DEPTH = 256


@dataclass(eq=False)
class StreamForm(Placed):
    """``p = f(dot(Q, K, d))`` over (rows, s), then ``dot(p, V, s)`` and ``sum(p, s)``, then a pointwise result.

    ``score``: what p is a function of, ``top``: its maximum along s where p is ``exp(score - top)``, else None.
    ``left``: the first operand, Q or an expression of it and of vectors along d. ``statistics``: reductions of Q or K
    along d that the score is a function of, too.
    """

    output: Output
    batch: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    stream: Axis
    depth: Axis
    first: Value
    second: Value
    p: Value
    score: Value
    top: Value | None
    total: Value | None
    q: Value
    k: Value
    v: Value
    left: Value
    dtype: Any = None
    statistics: list[Statistic] = field(default_factory=list)
    tile: ProductTile = field(default_factory=lambda: ProductTile(16, 16, 16, 2, (1, 1)))
    ahead: int = field(default=1, kw_only=True)
    moved: list[str] = field(default_factory=list, kw_only=True)  # factors of keys that queries are multiplied by

    def inputs(self) -> list[Value]:
        """The inputs, in the order of the graph."""
        return sorted((self.q, self.k, self.v, *self.factors()), key=lambda v: v.number)

    def factors(self) -> list[Value]:
        """Vectors along d that the first operand is computed with."""
        found = {v.number: v for v in self.left.walk() if v.op == "input" and v is not self.q}
        return list(found.values())

    def on(self, side: str) -> list[Statistic]:
        """The statistics of Q, "left", or of K, "right"."""
        return [s for s in self.statistics if s.side == side]

    def small_sizes(self, sizes: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Two tiles of rows, and three of the stream with the same rest; one member of each batch axis, or two."""
        fixed: dict[str, int] = {}
        free: dict[str, int] = {}
        del sizes
        for a in (*self.batch, self.rows, self.stream):
            t = {self.rows.number: self.tile.m, self.stream.number: self.tile.n}.get(a.number)
            if a.size is None:
                free[a.symbol] = 2 if t is None else t + 5 if a is self.rows else 2 * t + 8
            elif t is None:
                fixed[a.symbol] = min(a.size, 2)
            else:
                whole = t if a is self.rows else 2 * t
                fixed[a.symbol] = a.size if a.size <= whole + t else whole + (a.size % t or t)
        return fixed, free


def is_stream(g: Graph) -> bool:
    """Whether a product's operand is made of another product, along an axis that is its columns."""
    for o in g.outputs:
        for v in o.value.walk():
            if v.op == "dot" and any(x.op == "dot" and v.more["axis"] in x.axes for a in v.args for x in a.walk()):
                axis = v.more["axis"]
                inner = [x for a in v.args for x in a.walk() if x.op == "dot" and axis in x.axes]
                if any(u.op != "round" and u not in inner for a in v.args for u in _between(a, inner)):
                    return True
    return False


def _between(v: Value, stop: list[Value]) -> list[Value]:
    if v in stop or not any(x in stop for x in v.walk()):
        return []
    return [v, *(u for a in v.args for u in _between(a, stop))]


def _names(axes: Any) -> str:
    return ", ".join(a.name for a in axes)


def read(g: Graph) -> StreamForm:
    """Reads such a graph. Raises SelectError PLAN_NONE where it is not one."""
    if len(g.outputs) != 1 or len(g.outputs[0].axes) < 2:
        none("a product of products stores one matrix", f"got: {_names(o for o in g.outputs)}")
    (out,) = g.outputs
    dots = [v for v in out.value.walk() if v.op == "dot"]
    if len(dots) != 2:
        none("two products, one of the other's elements, are planned in a row", f"got: {len(dots)} products")
    first, second = dots
    *batch, rows, columns = out.axes
    stream, depth = second.more["axis"], first.more["axis"]
    p, v = second.args
    if first not in list(p.walk()):
        p, v = v, p
    left, k = first.args
    if rows not in left.axes:
        left, k = k, left
    k, factors = _factors_of_keys(k, stream, depth)
    for x in factors:
        left = binary("mul", left, x)
    q = _first_operand(left, rows, depth)
    for value, of, own in (
        (q, "the first", (rows, depth)),
        (k, "the second", (stream, depth)),
        (v, "the last", (stream, columns)),
    ):
        if value.op != "input" or {a for a in value.axes if a not in batch} != set(own):
            none(f"{of} operand is an input over ({_names(own)})", f"got: {value!r}")
        if set(value.more["stored"][-2:]) != set(own):
            none(f"input {value.name} stores its batch axes behind others", f"got: {_names(value.more['stored'])}")
    if q.more["stored"][-1] is not depth or v.more["stored"][-1] is not columns:
        none("the first operand lies along the first sum, and the last one along the columns")
    for a in (depth, columns):
        if a.size is None or a.size % 16 or a.size > MOST_DEPTH:
            none(f"axis {a.name} has a known size, a multiple of 16 and at most {MOST_DEPTH}", f"got: {a!r}")
    sums = [x for x in out.value.walk() if x.op in REDUCTIONS and "axis" in x.more]
    tops = [x for x in sums if x.op == "max" and x.more["axis"] is stream]
    totals = [x for x in sums if x.op == "sum" and x.more["axis"] is stream and x.args[0] is p]
    statistics = [_statistic(x, q, k) for x in sums if x.more["axis"] is depth]
    if len(sums) != len(tops) + len(totals) + len(statistics) or len(tops) > 1 or len(totals) > 1:
        none("statistics of a product's elements are their maximum and the sum of what is multiplied again")
    top = tops[0] if tops else None
    score = p
    if top is not None:
        minus = p.args[0] if p.op == "exp" else None
        if minus is None or minus.op != "sub" or minus.args[1] is not top or minus.args[0] is not top.args[0]:
            none(f"{top.line}: a maximum is followed along a stream in exp(x - max(x)) only")
        score = top.args[0]
    known = {first.number, second.number, *(t.number for t in totals), *(x.value.number for x in statistics)}
    _pointwise(score, known)
    if top is None:
        _pointwise(p, known)
    elif any(x is top for x in _reached(out.value, {second.number, *(t.number for t in totals)})):
        none(f"{top.line}: the maximum itself is not kept")
    _pointwise(out.value, {second.number, *(t.number for t in totals)})
    types = {str(x.more["dtype"]) for x in (q, k, v)}
    if len(types) != 1 or not types <= set(MATRIX_ATOMS):
        none("operands of products have one type, fp16 or bf16", f"got: {', '.join(sorted(types))}")
    if out.dtype.bits != 16:
        none(f"the result of a product of products has the operands' type, got {out.dtype}")
    total = totals[0] if totals else None
    return StreamForm(out, tuple(batch), rows, columns, stream, depth, first, second, p, score, top, total, q, k, v,
                      left, q.more["dtype"], statistics, moved=[x.name for x in factors])  # fmt: skip


def _factors_of_keys(k: Value, stream: Axis, depth: Axis) -> tuple[Value, list[Value]]:
    """The second operand without factors along the sum: these may as well be multiplied into the first operand."""
    if k.op != "mul":
        return k, []
    found: list[Value] = []
    rest: list[Value] = []
    stack = [k]
    while stack:
        x = stack.pop()
        if x.op == "mul":
            stack.extend(x.args)
        else:
            (rest if stream in x.axes else found).append(x)
    if len(rest) != 1 or any(x.op != "input" or x.axes != (depth,) for x in found):
        return k, []
    return rest[0], found


def _first_operand(left: Value, rows: Axis, depth: Axis) -> Value:
    """The input over rows of an expression of it and of vectors along the sum."""
    inputs = {x.number: x for x in left.walk() if x.op == "input"}
    over = [x for x in inputs.values() if rows in x.axes]
    if len(over) != 1:
        none(f"{left.line}: the first operand is an expression of one input over rows {rows.name}")
    for x in inputs.values():
        if x is not over[0] and x.more["stored"] != (depth,):
            none(f"{left.line}: the first operand is an expression of an input and of vectors along {depth.name}",
                 f"got: {x.name} over ({_names(x.axes)})")  # fmt: skip
    if left.op != "input":
        _pointwise(left, set(inputs))
    return over[0]


def _statistic(x: Value, q: Value, k: Value) -> Statistic:
    """A reduction along the first product's sum: of elements of Q, or of K."""
    inputs = {y.number for y in x.args[0].walk() if y.op == "input"}
    if inputs not in ({q.number}, {k.number}):
        none(f"{x.line}: a statistic along {x.more['axis'].name} of something else than {q.name} or {k.name}")
    _pointwise(x.args[0], inputs)
    return Statistic(x, "left" if inputs == {q.number} else "right")


def _reached(v: Value, stop: set[int]) -> list[Value]:
    out: list[Value] = []

    def visit(x: Value) -> None:
        if x.number in stop or any(x is y for y in out):
            return
        out.append(x)
        for a in x.args:
            visit(a)

    visit(v)
    return out


def _pointwise(v: Value, known: set[int]) -> None:
    for x in _reached(v, known):
        if x.op in ("dot", "round", "input") or "axis" in x.more:
            none(f"{x.line}: {x.op} between the products, or behind them, is not planned")


def registers(f: StreamForm, t: ProductTile) -> int:
    """About the registers without which a thread spills: scores, sums, weights and queries, a slice of the others."""
    rows, depth, columns = t.m // t.warps[0], f.depth.size or 0, f.columns.size or 0
    words = rows * (t.n + columns) + (rows * (t.n + depth) + SLICE * max(t.n, columns)) // 2
    norms = len(f.on("right")) * 3 * t.n // 8 + len(f.on("left")) * rows // 8
    return words // 32 + norms + 44


def decide(d: Decisions, f: StreamForm, sizes: dict[str, int], device: Device) -> StreamForm:
    """Makes every decision. Raises SelectError PLAN_NONE, PLAN_PIN."""
    if int(device.family.removeprefix("sm_") or 0) < 80:
        none(f"products are planned for sm_80 and later, not for {device.arch}")
    depth, columns = f.depth.size or 0, f.columns.size or 0
    rows, stream = size_of(f.rows, sizes), size_of(f.stream, sizes)
    batch = math.prod(size_of(a, sizes) for a in f.batch)
    options: dict[Any, float | str] = {}
    tiles: dict[Any, ProductTile] = {}
    for m, n, stages, w in (
        (m, n, s, w) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128) for s in (2, 3) for w in (1, 2, 4, 8)
    ):
        if m % (16 * w) or (m > 16 and m >= 2 * rows):
            continue
        t = ProductTile(m, n, depth, stages, (w, 1))
        key = f"{m}x{n} by {w} warps, {stages} stages"
        tiles[key] = t
        need = 2 * (max(m * depth, m * columns) + stages * n * (depth + columns)) + 4096
        if need > device.shared_bytes:
            options[key] = f"{need} bytes of shared memory, at most {device.shared_bytes}"
        elif (regs := registers(f, t)) > REGISTERS:
            options[key] = f"about {regs} registers a thread, at most {REGISTERS}: it would spill"
        else:
            options[key] = _us(f, t, rows, stream, batch, need, regs, device)
    key = d.take("tile", options, lambda _: "rows by elements of the stream; the least expected time", "us")
    d.made["tile"].alternatives = sorted(
        (a for a in d.made["tile"].alternatives if not isinstance(a[1], str)), key=lambda a: a[1])[:6]  # fmt: skip
    f.tile, f.expected_us = tiles[key], float(d.made["tile"].cost or 0)
    t = f.tile
    if f.top is not None:
        d.put("rewrite.running_maximum", True, "sums so far shrink when the maximum grows: one pass over the stream")
    else:
        d.put("p.range", "as given", "without a maximum, elements that are multiplied again may leave the type's range")
    for i, x in enumerate(f.statistics):
        if x.side == "left":
            d.put(f"s{i}.where", "registers", f"once, of {f.q.name}'s fragments, whose rows are those of the sums")
        else:
            d.put(f"s{i}.where", "lanes exchange it", f"each step, rows of {f.k.name}'s fragments become columns")
    keys_factors(d, f)
    if f.left.op != "input":
        d.put("queries.where", "registers", f"computed once of {f.q.name} and {_names(f.factors())}, rounded once")
    d.put("p.where", "registers", "the sums of one product have the owners of the other's operand; rounded once")
    f.store_bytes = vector_bytes(f.columns, 2)
    mma = gr.atom(MATRIX_ATOMS[str(f.dtype)])
    along = f.k.more["stored"][-1] is f.depth
    width = vector_bytes(f.k.more["stored"][-1], 2)
    if width < 4:
        none(f"lines of {f.k.name} of {f.k.more['stored'][-1]!r} elements, which no copy of 4 bytes divides")
    shapes = {"sQ": (t.m, depth), "sK": (t.n, depth) if along else (depth, t.n), "sV": (t.n, columns)}
    for name, shape in shapes.items():
        bytes_ = width if name == "sK" else 16
        f.shared[name] = lay_out(
            d, name, shape, f.dtype, accesses_of(shape, f.dtype, t, bytes_), 0 if name == "sQ" else t.stages
        )
        f.shared[name].copy_bytes = bytes_
    accesses = [arrange.fragments(t.m, columns, mma.c.tv, (16, 8), 2, name="stores of accumulators"),
                arrange.vectors(t.m, columns, f.dtype, t.threads, f.store_bytes)]  # fmt: skip
    f.shared["sResult"] = lay_out(d, "sResult", (t.m, columns), f.dtype, accesses, 0)
    edges = [("copy K", "scores", 1, 0), ("copy V", "sums", 1, 0), ("scores", "copy K", 1, t.stages),
             ("sums", "copy V", 1, t.stages), ("scores", "sums", 0, 0), ("sums", "scores", 0, 1)]  # fmt: skip
    slots = arrange.fewest_barriers(["copy K", "copy V", "scores", "sums"], edges, early=["copy K", "copy V"])
    f.ahead = slots.ahead("copy V", "sums")
    d.put(
        "slots.barriers",
        slots.barriers,
        f"a step, with {t.stages} stages and weights in registers",
        float(slots.barriers),
        "barriers",
    )
    d.put("slots.ahead", f.ahead, "steps that copies run ahead of products")
    alive: dict[Any, arrange.Alive] = {}
    for name, tensor in f.shared.items():
        first, end = (1, 2) if name == "sResult" else (0, 1)
        alive[name] = arrange.Alive(tensor.bytes, first, end, tensor.align)
    packed = arrange.pack(alive)
    f.at = {str(n): at for n, at in packed.at.items()}
    f.over = {str(n): [str(o) for o in packed.over(n, alive)] for n in alive}
    d.put(
        "memory.bytes",
        packed.bytes,
        "of shared memory; the result lies over what is dead",
        float(packed.bytes),
        "bytes",
    )
    for name in alive:
        d.put(f"{name}.at", packed.at[name], "alive behind the loop" if name == "sResult" else "alive through the loop")
    return f


def keys_factors(d: Decisions, f: StreamForm) -> None:
    """Says which factors of keys are multiplied into queries, if some are."""
    if f.moved:
        d.put("rewrite.factors_of_keys", True, f"{', '.join(f.moved)} along {f.depth.name}: multiplied into {f.q.name}")


def _us(
    f: StreamForm, t: ProductTile, rows: int, stream: int, batch: int, need: int, regs: int, device: Device
) -> float:
    """The expected time: products, copies and exponentials of a step, in waves of blocks."""
    depth, columns = f.depth.size or 0, f.columns.size or 0
    blocks, steps, warps = up(rows, t.m) * batch, up(stream, t.n), t.warps[0]
    products = 2 * t.m * t.n * (depth + columns) / device.flops_per_clock
    loads = 2 * t.n * (depth + columns)
    on_chip = (loads + warps * loads) / 128
    special = t.m * t.n / 16  # exponentials: 16 a clock
    special += len(f.on("right")) * warps * t.n * depth / 64  # every warp has its own copy of the keys' statistics
    found = occupancy(device.arch, t.threads, need, regs)
    most = max(1, found.blocks_per_sm) if found is not None else 1

    def clocks(resident: int) -> float:
        work = max(products / min(1.0, resident * warps / 4), on_chip, loads / device.l2_bytes) + special
        return float(steps * max(resident * work + STEP_CLOCKS, LATENCY_CLOCKS / (t.stages - 1)) + FILL_CLOCKS)

    total = in_waves(blocks, device.sm_count, most, clocks)
    tensors = [(v.axes, v.more["dtype"]) for v in f.inputs()] + [(f.output.axes, f.output.dtype)]
    memory = moved(
        tensors, {a.symbol: s for a, s in ((f.rows, rows), (f.stream, stream))} | {a.symbol: 1 for a in f.batch}
    ) / (device.dram_bytes * device.sm_count)
    f.bound = "products and exponentials" if total > memory else "memory"
    return float(max(total, memory) / device.clock_ghz / 1e3 + LAUNCH_US)
