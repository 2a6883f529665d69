"""Convolutions as products: the rows are pixels of the result, and the sum is over windows of the input.

``plan.dot(plan.window(...), weights, [r, s, c])`` is the product of a matrix that nobody stores: row (n, p, q) holds
the window that output pixel (p, q) of image n sees. The form is planned as that product, with the decisions of
`products`. Copies to shared memory gather: each thread computes the pixels that its rows of a tile see, and what lies
outside of the image is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene.errors import SelectError
from graphene.plan import products, warpgroups
from graphene.plan.decisions import Decisions
from graphene.plan.form import Gather, none, product_form
from graphene.plan.graph import Axis, Graph, Output, Value, dot
from graphene.plan.product_tiles import SLICE, size_of
from graphene.plan.product_time import moved
from graphene.plan.products import Tiled
from graphene.plan.warpgroups import WarpgroupTiled

if TYPE_CHECKING:
    from graphene.plan.form import ProductForm
    from graphene.select.device import Device

__all__ = ["Windowed", "WindowedTiled", "WindowedWarpgroups", "decide", "is_windowed", "read"]


@dataclass(eq=False)
class Windowed:
    """A convolution: `product` is its graph as a plain product, over `pixels` and places of a `window`.

    ``images``: axes before those that windows are taken of. ``windows``: the graph's windows, the outer axis first.
    ``channels``: summed, contiguous. ``x``, ``weights``: the input and the weights, ``result``: what is stored.
    """

    output: Output
    images: tuple[Axis, ...]
    windows: tuple[Value, ...]
    channels: Axis
    x: Value
    weights: Value
    product: Graph
    pixels: Axis
    window: Axis

    @property
    def moved(self) -> list[tuple[tuple[Axis, ...], Any]]:
        """The tensors that are read or written, by their axes and types."""
        inputs = [v for v in self.output.value.walk() if v.op == "input"]
        return [*((v.axes, v.more["dtype"]) for v in inputs), (self.output.axes, self.output.dtype)]

    def axes(self) -> list[Axis]:
        """Every axis, in the order in which they were made."""
        found = {a.number: a for v in self.output.value.walk() for a in v.axes}
        return [found[n] for n in sorted(found)]


@dataclass
class WindowedTiled(Tiled):
    """What the text of a kernel needs, with the convolution that its product stands for."""

    of: Windowed = field(kw_only=True)

    def inputs(self) -> list[Value]:
        """The inputs, in the order of the graph."""
        found = [v for v in self.of.output.value.walk() if v.op == "input"]
        return sorted(found, key=lambda v: v.number)

    def small_sizes(self, sizes: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Two images of about two tiles, and channels of two steps, by symbol: known ones, and those of a launch."""
        del sizes
        fixed: dict[str, int] = {}
        free: dict[str, int] = {}
        for a in self.of.images:
            (free if a.size is None else fixed)[a.symbol] = 2 if a.size is None else min(a.size, 2)
        side = max(3, round((1.5 * self.tile.m / 2) ** (1 / len(self.of.windows))))
        for i, w in enumerate(self.of.windows):
            along, to, over = (w.more[n] for n in ("along", "to", "over"))
            count = min(to.size, side + i)  # sides differ, so that one is not taken for another
            fixed[to.symbol] = count
            fixed[along.symbol] = (
                min(along.size, (count - 1) * w.more["stride"] + over.size - 2 * w.more["padding"])
                if count < to.size
                else along.size
            )
        c, k = self.of.channels, self.form.columns
        assert c.size is not None
        fixed[c.symbol] = min(c.size, 2 * self.tile.k)
        assert k.size is not None
        fixed[k.symbol] = k.size if k.size <= 2 * self.tile.n else self.tile.n + (k.size % self.tile.n or self.tile.n)
        for w in self.of.windows:
            fixed[w.more["over"].symbol] = w.more["over"].size
        return fixed, free


@dataclass
class WindowedWarpgroups(WarpgroupTiled):
    """The same by ``wgmma``: a warpgroup gathers, and others multiply."""

    of: Windowed = field(kw_only=True)
    inputs = WindowedTiled.inputs
    small_sizes = WindowedTiled.small_sizes

    @property
    def registers(self) -> tuple[int, int]:
        """Those of a thread that gathers, and of one that multiplies, where several warpgroups do."""
        return {2: (88, 208), 3: (96, 136)}[self.consumers]


def is_windowed(g: Graph) -> bool:
    """Whether windows occur."""
    return any(v.op == "window" for o in g.outputs for v in o.value.walk())


def _names(axes: Any) -> str:
    return ", ".join(a.name for a in axes)


def read(g: Graph, sizes: dict[str, int]) -> Windowed:
    """Reads such a graph, of images of these sizes. Raises SelectError PLAN_NONE where it is not one."""
    if len(g.outputs) != 1:
        none("a convolution stores one result", f"got: {_names(g.outputs)}", fix="make a graph for each")
    (out,) = g.outputs
    dots = [v for v in out.value.walk() if v.op == "dot"]
    if len(dots) != 1:
        none(f"a convolution is the only product of its graph, of which there are {len(dots)}")
    (d,) = dots
    x, weights = d.args if any(v.op == "window" for v in d.args[0].walk()) else d.args[::-1]
    windows: list[Value] = []
    while x.op == "window":
        windows.insert(0, x)
        x = x.args[0]
    if x.op != "input" or weights.op != "input":
        none(f"{d.line}: a convolution is a product of windows of an input with an input",
             f"got: {x!r} and {weights!r}", fix="compute with the result instead")  # fmt: skip
    stored, count = x.more["stored"], len(windows)
    along = tuple(w.more["along"] for w in windows)
    images, channels = stored[: -count - 1], stored[-1]
    if stored[-count - 1 : -1] != along or not images:
        want = f"want: images, then {_names(along)}, then channels, which are contiguous"
        none(f"input {x.name} of windows is stored in another order", want, f"got: {_names(stored)}",
             fix="store it as NHWC, and take windows of the outer axis first")  # fmt: skip
    over = tuple(w.more["over"] for w in windows)
    summed = (*d.more.get("also", ()), d.more["axis"])
    if set(summed) != {*over, channels}:
        none(f"{d.line}: a convolution sums over the places of windows and over channels",
             f"want: {_names((*over, channels))}", f"got: {_names(summed)}")  # fmt: skip
    (columns, *more) = [a for a in weights.axes if a not in summed] or [channels]
    if more or columns is channels or weights.more["stored"] not in ((columns, *over, channels),
                                                                    (*over, channels, columns)):  # fmt: skip
        none(f"input {weights.name} holds weights in another order",
             f"want: (columns, {_names((*over, channels))}), or columns last",
             f"got: {_names(weights.more['stored'])}")  # fmt: skip
    rows = (*images, *(w.more["to"] for w in windows))
    if out.axes != (*rows, columns):
        none(f"output {out.name} is stored in another order", f"want: {_names((*rows, columns))}",
             f"got: {_names(out.axes)}")  # fmt: skip
    if columns.size is None or channels.size is None:
        none(f"columns {columns.name} and channels {channels.name} need known sizes")
    if (channels.size or 0) % SLICE:
        none(f"{channels!r} channels", f"want: a multiple of {SLICE}", fix="pad channels with zeros")
    return _as_product(g, Windowed(out, images, tuple(windows), channels, x, weights, g, rows[0], rows[0]), sizes)


def _as_product(g: Graph, of: Windowed, sizes: dict[str, int]) -> Windowed:
    """Fills in the plain product."""
    rows = (*of.images, *(w.more["to"] for w in of.windows))
    summed = (*(w.more["over"] for w in of.windows), of.channels)
    (columns,) = (a for a in of.output.axes if a not in rows)
    pixels, window = (
        Axis("_".join(a.name for a in some), math.prod(size_of(a, sizes) for a in some),
             "_".join(a.symbol for a in some))
        for some in (rows, summed)
    )  # fmt: skip
    flat = Graph(g.name)
    new: dict[int, Value] = {}
    for v in of.output.value.walk():
        if v.op == "window":
            continue
        if v.op == "input":
            new[v.number] = _flat_input(flat, v, of, (rows, columns, pixels, window))
        elif v.op == "dot":
            new[v.number] = dot(new[of.x.number], new[of.weights.number], window)
        elif "axis" in v.more:
            none(f"{v.line}: a reduction beside a convolution")
        else:
            args = [new[a.number] for a in v.args]
            every = {a for x in args for a in x.axes}
            new[v.number] = Value(v.op, args, sorted(every, key=lambda a: a.number), **v.more)
        new[v.number].line = v.line
    flat.outputs.append(Output(of.output.name, new[of.output.value.number], (pixels, columns), of.output.dtype))
    of.product, of.pixels, of.window = flat, pixels, window
    return of


def _flat_input(flat: Graph, v: Value, of: Windowed, axes: tuple[Any, ...]) -> Value:
    """An input of the product: a matrix or a vector."""
    rows, columns, pixels, window = axes
    stored = v.more["stored"]
    now: tuple[Axis, ...] = ()
    if v is of.x:
        now = (pixels, window)
    elif v is of.weights:
        now = (columns, window) if stored[0] is columns else (window, columns)
    elif stored == (columns,):
        now = (columns,)
    elif stored == (*rows, columns):
        now = (pixels, columns)
    else:
        none(f"input {v.name} beside a convolution is stored in another order",
             f"want: ({columns.name}) or ({_names((*rows, columns))})", f"got: ({_names(stored)})")  # fmt: skip
    return flat.input(v.name, now, v.more["dtype"])


def decide(d: Decisions, g: Graph, sizes: dict[str, int], device: Device) -> WindowedTiled | WindowedWarpgroups:
    """Makes every decision. Raises SelectError PLAN_NONE, PLAN_PIN."""
    of = read(g, sizes)
    form = product_form(of.product)
    form.moved = moved(of.moved, sizes)
    assert of.channels.size is not None
    form.gather = Gather(of.channels.size)
    if device.arch == "sm_90a":
        why = warpgroups.why_not(form, device)
        if of.channels.size % warpgroups.STEP:
            why = f"{of.channels!r} channels, of which steps take {warpgroups.STEP}"
        return _of_least_time(d, of, form, why, sizes, device)
    return _by_warps(d, of, form, sizes, device)


def _by_warps(
    d: Decisions, of: Windowed, form: ProductForm, sizes: dict[str, int], device: Device
) -> WindowedTiled:  # fmt: skip
    t = products.decide(d, form, sizes, device)
    return WindowedTiled(**{n: getattr(t, n) for n in t.__dataclass_fields__}, of=of)


def _of_least_time(
    d: Decisions, of: Windowed, form: ProductForm, why: str, sizes: dict[str, int], device: Device
) -> WindowedTiled | WindowedWarpgroups:
    """The plan by the instruction with the less expected time. `why`: why ``wgmma`` cannot be used, if it cannot."""
    pinned = d.pins.get("instruction")
    found: dict[str, tuple[Decisions, Any]] = {}
    options: dict[Any, float | str] = {"mma.sync": 0.0, "wgmma": why or 0.0}
    for name, decided in (("mma.sync", _by_warps), ("wgmma", _by_warpgroups)):
        if not isinstance(options[name], str) and pinned in (None, name):
            own = Decisions(d.pins)
            try:
                found[name] = own, decided(own, of, form, sizes, device)
                options[name] = found[name][1].expected_us
            except SelectError as e:
                if pinned == name or (name == "wgmma" and not found) or why:
                    raise
                options[name] = str(e).splitlines()[0]
    said = {"mma.sync": "operands pass through registers", "wgmma": "a warpgroup gathers windows, others multiply"}
    own, made = found[d.take("instruction", options, lambda v: f"{said[v]}; least expected time", "us")]
    d.made.update(own.made)
    return made  # type: ignore[no-any-return]


def _by_warpgroups(
    d: Decisions, of: Windowed, form: ProductForm, sizes: dict[str, int], device: Device
) -> WindowedWarpgroups:  # fmt: skip
    made = warpgroups.decide(d, form, sizes, device)
    return WindowedWarpgroups(**{n: getattr(made, n) for n in made.__dataclass_fields__}, of=of)
