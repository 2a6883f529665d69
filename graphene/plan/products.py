"""Kernels of products on tensor cores (``mma.sync``): every decision, from tiles down to places in shared memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import arrange
from graphene.plan.form import ProductForm, StagedInput, none
from graphene.plan.product_tiles import SLICE, ProductTile, later_tiles, shape_of, vector_bytes
from graphene.plan.product_time import choose_tile
from graphene.select.tiles import up

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis
    from graphene.select.device import Device

__all__ = ["MATRIX_ATOMS", "Placed", "Shared", "Tiled", "accesses_of", "decide", "lay_out", "place", "shared_name"]

SWIZZLED_ALIGN, PLAIN_ALIGN = 1024, 16
MATRIX_ATOMS = {"fp16": "mma.m16n8k16.f32.f16", "bf16": "mma.m16n8k16.f32.bf16"}


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
    squares: set[int] = field(default_factory=set)  # statistics that products compute: sums of squares

    @property
    def small_rows(self) -> int:
        """Whole tiles of rows of a small problem."""
        return 1

    @property
    def small_steps(self) -> int:
        """Steps of k of a small problem, with which every stage is filled again."""
        return self.ahead + 1

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
        most = {f.rows.number: self.small_rows, f.columns.number: 1, f.k.number: self.small_steps}
        fixed: dict[str, int] = {}
        free: dict[str, int] = {}
        for a in {a.number: a for v in f.result.walk() for a in v.axes}.values():
            tile = tiles.get(a.number)
            if a.size is None:
                whole = self.small_rows if a is f.rows else 1
                free[a.symbol] = whole * tile + (8 if self.contiguous(a) else 5) if tile else 2
            elif tile is not None:
                whole = most[a.number] * tile
                fixed[a.symbol] = a.size if a.size <= whole + tile else whole + (a.size % tile or tile)
            elif a in f.batch:
                fixed[a.symbol] = min(a.size, 2)
        return fixed, free

    def contiguous(self, axis: Axis) -> bool:
        """Whether lines of some tensor lie along the axis."""
        return self.form.output.axes[-1] is axis or any(v.more["stored"][-1] is axis for v in self.inputs())


def shared_name(s: StagedInput) -> str:
    """The name of a staged input's tensor in shared memory."""
    return f"s{s.name}"


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


def not_squares(form: ProductForm, tile: ProductTile, statistic: Any) -> str:
    """Why products cannot compute a statistic of rows; empty if they can."""
    x = statistic.value.args[0]
    if statistic.value.op not in ("sum", "mean") or x.op != "mul" or x.args[0] is not x.args[1]:
        return "no sum of squares"
    if x.args[0].op != "input" or not form.at(x.args[0], "left").along_k(form.k):
        return f"squares of something else than an input that lies along {form.k.name}"
    return "" if tile.m == SLICE * tile.warps[0] else "a warp has more rows than an instruction"


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
        if statistic.side == "left" and not not_squares(form, tile, statistic):
            options: dict[Any, float | str] = {"elements": 0.0, "products": 1.0}
            said = {"elements": "squares of elements are added up",
                    "products": "the diagonal of a product of the rows with themselves"}  # fmt: skip
            if d.take(f"s{i}.how", options, said.__getitem__, "relative") == "products":
                t.squares.add(statistic.value.number)
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
