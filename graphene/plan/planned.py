"""A plan: decisions that compute a graph on a device, and the Python source of the kernel that they make."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.archive import write_atomically
from graphene.errors import SelectError
from graphene.kernel import Kernel
from graphene.launches import Launch, Launches, check_launches
from graphene.plan import (
    heads,
    products,
    rows,
    stream_warpgroups,
    streams,
    warpgroups,
    windows,
    write_heads,
    write_heads_mma,
    write_products,
    write_rows,
    write_stream_warpgroups,
    write_streams,
    write_warpgroups,
    write_windows,
)
from graphene.plan.decisions import Decision, Decisions, refuse_pin
from graphene.plan.form import along_one_axis, none, product_form
from graphene.plan.graph import PLANNERS, Graph, refuse
from graphene.plan.product_time import least_us
from graphene.plan.rewrite import once, reciprocals, scale_past_dot
from graphene.select.device import Device, of_arch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Checked", "Plan", "make"]

VERSION = 1


@dataclass
class Checked:
    """What ``plan.check()`` found.

    ``kernel``: the result of ``kernel.check()`` at small sizes; ``meaning``: how far the kernel's promise is from the
    graph's own meaning on random data, relative to the largest value; ``conflicts``: bank conflicts at those sizes;
    ``sizes``: those.
    """

    kernel: Any
    meaning: float
    conflicts: int
    sizes: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether the kernel keeps its promise, and the promise is the graph's meaning."""
        return bool(self.kernel.ok and self.meaning <= 1e-9)

    def __str__(self) -> str:
        rest = f"{self.meaning:.1e} from the graph's; conflicts: {self.conflicts}; sizes: {self.sizes}"
        return f"{self.kernel}\nmeaning: {rest}"


class Plan:
    """Decisions for a graph. ``source()`` is the kernel's Python text; ``kernel()`` is what that text makes.

    ``decisions``: by path. ``expected_us``, ``bound``: of the model, for a single call with its launch. ``plan_ms``:
    how long planning took.
    """

    def __init__(
        self, graph: Graph, rewritten: Graph, device: Device, sizes: Mapping[str, int], d: Decisions, kind: Any
    ) -> None:
        self.graph, self.rewritten, self.device, self.sizes = graph, rewritten, device, dict(sizes)
        self._made, self._of = d, kind
        self.expected_us: float = kind.expected_us
        self.bound: str = kind.bound
        self.plan_ms = 0.0
        self._kernel: Kernel | None = None
        self._launches: Launches | None = None

    @property
    def decisions(self) -> dict[str, Decision]:
        """Every decision by its path."""
        return dict(self._made.made)

    def __str__(self) -> str:
        sizes = " ".join(f"{n}={s}" for n, s in self.sizes.items())
        lines = [
            f"{self.graph.name}  {self.device.arch} {sizes}".rstrip()
            + f"  expected {self.expected_us:.1f} us, bound: {self.bound}"
        ]
        wide = max(len(p) for p in self._made.made)
        lines += [
            f" {p:{wide}}  {d.value}{' (pinned)' if d.pinned else ''}  {d.why}" for p, d in self._made.made.items()
        ]
        return "\n".join(lines)

    def why(self, path: str) -> str:
        """A decision with its reason, cost and alternatives. Raises VerifyError PLAN_GRAPH for an unknown path."""
        if not isinstance(path, str) or path not in self._made.made:
            refuse(f"a plan without the decision {path!r}", f"want: one of {', '.join(self._made.made)}")
        return str(self._made.made[path])

    def places(self) -> list[tuple[str, int, int, int, int]]:
        """Tensors in shared memory: name, first byte, bytes, and the slots in which it is alive, of three.

        The slots are: before the loop over steps, in it, behind it.
        """
        shared, at = getattr(self._of, "shared", {}), getattr(self._of, "at", {})
        alive = {True: (2, 3), False: (0, 2)}
        return [(n, at[n], shared[n].bytes, *alive[n == "sResult"]) for n in sorted(shared, key=lambda n: int(at[n]))]

    def svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """A picture: the graph, shared memory over time with each tensor's layout, the decisions; notebooks show it.

        It is SVG text, which is also written to `path` if that is given.
        """
        from graphene.plan.picture import draw_plan

        text = draw_plan(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_svg_(self) -> str:
        return self.svg()

    def source(self) -> str:
        """The kernel as Python: ordinary source on public names, which is what runs."""
        us = f"{self.expected_us:.1f} us for a single call, launch included"
        title = f"{self.graph.name}: planned for {self.device.arch}, expected {us}."
        write: Any = write_products.write
        if isinstance(self._of, rows.RowForm):
            write = write_rows.write
        elif isinstance(self._of, stream_warpgroups.WarpgroupStream):
            write = write_stream_warpgroups.write
        elif isinstance(self._of, streams.StreamForm):
            write = write_streams.write
        elif isinstance(self._of, heads.HeadWarps):
            write = write_heads_mma.write
        elif isinstance(self._of, heads.Head):
            write = write_heads.write
        elif isinstance(self._of, (windows.WindowedTiled, windows.WindowedWarpgroups)):
            write = write_windows.write
        elif isinstance(self._of, warpgroups.WarpgroupTiled):
            write = write_warpgroups.write
        text: str = write(self._of, self._made, title, self.graph.name)
        return text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the source to a file, which needs nothing of the plan."""
        Path(path).write_text(self.source(), encoding="utf-8")

    def module(self) -> Any:
        """The source as an imported module, from a file of the cache, so that errors and reports point at its lines."""
        text = self.source()
        cache = _core.cache_dir()
        folder = (
            Path(cache) / "planned" if cache is not None else Path(tempfile.gettempdir()) / f"graphene_{os.getuid()}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.graph.name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        path = folder / f"{name}.py"
        if not path.exists():
            write_atomically(path, text.encode())  # threads may plan the same graph at once
        spec = importlib.util.spec_from_file_location(f"graphene_plans_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def kernel(self, **sizes: int) -> Kernel:
        """The kernel that the source makes; `sizes` replace those of axes whose sizes are known, by their symbols.

        Raises VerifyError PLAN_GRAPH where the source makes several kernels, which `launches` gives.
        """
        if isinstance(self._of, heads.Head):
            refuse("a plan of two kernels, and not of one", fix="plan.launches() gives them with their arguments")
        if sizes:
            made: Kernel = getattr(self.module(), self.graph.name)(**sizes)
            return made
        if self._kernel is None:
            self._kernel = getattr(self.module(), self.graph.name)()
        return self._kernel

    def kernel_inputs(self) -> list[Any]:
        """The graph's inputs in the order of the kernel's arguments, which end with the outputs."""
        inputs: list[Any] = self._of.inputs()
        return inputs

    def launches(self, **sizes: int) -> Launches:
        """The kernels that the source makes, in their order, with the names of their arguments; `sizes` as of `kernel`.

        ``launches().workspaces(sizes)`` says shapes and types of what is handed from one to the next, by name, of sizes
        by their symbols.
        """
        if isinstance(self._of, heads.Head):
            if sizes or self._launches is None:
                made: Launches = self.module().launches(**sizes)
                if sizes:
                    return made
                self._launches = made
            return self._launches
        names = (*(v.name for v in self.kernel_inputs()), *(o.name for o in self.graph.outputs))
        return Launches([Launch(self.kernel(**sizes), names)])

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Runs the kernel: inputs, then outputs, in the order of the graph; on a GPU, or on the simulator.

        A plan of two kernels allocates what lies between them beside its first argument, and takes no other names.
        Raises VerifyError PLAN_GRAPH for another number of arguments of such a plan.
        """
        if isinstance(self._of, heads.Head):
            return heads.run(self._of, self.launches(), self.graph, args, named)
        return self.kernel()(*args, **named)

    def check(self) -> Checked:
        """Holds the kernel to its promise on the simulator, at about two tiles, and the promise to the graph."""
        fixed, free = self._of.small_sizes(self.sizes)
        if isinstance(self._of, heads.Head):
            launches = self.launches(**fixed, **self._of.fewer())
            result = check_launches(launches, **free)
            conflicts = sum(x.kernel.report(**free).conflicts for x in launches)
        else:
            kernel = self.kernel(**fixed)
            result = kernel.check(**free)
            conflicts = kernel.report(**free).conflicts
        return Checked(result, self._distance({**fixed, **free}), conflicts, {**fixed, **free})

    def _distance(self, sizes: Mapping[str, int]) -> float:
        """How far the promise's function, and the rewritten graph, are from the graph on random numbers."""
        import numpy as np

        rng = np.random.default_rng(0)
        arrays = {}
        for v in self.graph.inputs:
            shape = [sizes.get(a.symbol, a.size) for a in v.more["stored"]]
            if str(v.more["dtype"]) == "i32":
                arrays[v.name] = rng.integers(0, 8, shape)  # indices
                continue
            arrays[v.name] = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
        with np.errstate(all="ignore"):
            want = self.graph.evaluate(arrays, rounded=False)
            got = self.module().means(**{v.name: arrays[v.name] for v in self._of.inputs()})
            rewritten = self.rewritten.evaluate(arrays, rounded=False)
        worst = 0.0
        for name, x in want.items():
            scale = max(float(np.max(np.abs(x))), 1e-30)
            worst = max(worst, *(float(np.max(np.abs(y[name] - x))) / scale for y in (got, rewritten)))
        return worst

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data: graph, device, sizes and every decision."""
        return {
            "version": VERSION, "graph": self.graph.to_json(), "arch": self.device.arch, "sizes": self.sizes,
            "expected_us": round(self.expected_us, 3),
            "decisions": {p: d.to_json() for p, d in self._made.made.items()},
        }  # fmt: skip

    def json(self) -> str:
        """`to_json` as text."""
        return json.dumps(self.to_json(), indent=1)

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_json, (self.to_json(),)

    @staticmethod
    def from_json(data: Any) -> Plan:
        """Makes the plan again with every decision pinned; what cannot hold any more is PLAN_PIN. Raises PLAN_GRAPH."""
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except (ValueError, RecursionError) as e:
                refuse("a plan's JSON that is malformed", f"got: {e}")
        if not isinstance(data, dict) or data.get("version") != VERSION:
            refuse("JSON of no plan, or of another version", f"want: version {VERSION}")
        try:
            pins = {p: x["value"] for p, x in data["decisions"].items()}
            graph, arch, sizes = data["graph"], data["arch"], dict(data["sizes"])
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            refuse("JSON of something else than a plan", f"got: {type(e).__name__}: {e}")
            raise
        again: Plan = Graph.from_json(graph).plan(arch, pin=pins, **sizes)
        return again


def make(given_graph: Graph, arch: Any, pins: dict[str, Any], sizes: dict[str, int]) -> Plan:
    """Plans a graph. See Graph.plan."""
    start = time.perf_counter()
    if not given_graph.outputs:
        refuse("a graph without outputs")
    device = arch if isinstance(arch, Device) else of_arch(arch)
    given = _sizes(given_graph, sizes)
    d = Decisions(pins)
    kind: Any
    options: dict[Any, float | str]
    g = once(given_graph)
    if heads.is_head(g):
        rewritten, kind = g, heads.decide(d, g, given, device)
    elif found := [v for o in g.outputs for v in o.value.walk() if v.op in ("at", "argmax")]:
        none(f"{found[0].line}: {found[0].op} of something else than a product's rows")
    elif windows.is_windowed(g):
        rewritten, kind = g, windows.decide(d, g, given, device)
    elif not any(v.op == "dot" for o in g.outputs for v in o.value.walk()):
        rewritten, changed = reciprocals(g)
        if changed:
            options = {True: 0.0, False: 1.0}
            why = "; ".join(dict.fromkeys(changed))
            said = {True: f"one reciprocal a row: {why}", False: f"as written: {why}"}
            on = d.take("rewrite.reciprocals", options, lambda v: said[v], "relative")
            rewritten = rewritten if on else g
        kind = rows.decide(d, rewritten, given, device)
    else:
        along_one_axis(g)
        rewritten, moved = scale_past_dot(g)
        if moved:
            options = {True: 0.0, False: 1.0}
            why = "; ".join(moved)
            on = d.take("rewrite.scale_past_dot", options, lambda v: why if v else "factors stay inside", "relative")
            rewritten = rewritten if on else g
        if streams.is_stream(rewritten):
            kind = _streams(d, rewritten, given, device)
        else:
            form = product_form(rewritten)
            kind = _products(d, form, given, device)
    _overlap(d, kind, device)
    if unknown := d.unknown():
        refuse_pin(unknown[0], d.pins[unknown[0]], f"want: one of {', '.join(d.made)}")
    p = Plan(given_graph, rewritten, device, given, d, kind)
    p.plan_ms = 1e3 * (time.perf_counter() - start)
    return p


def _overlap(d: Decisions, kind: Any, device: Device) -> None:
    """Whether a kernel starts beside the end of the one before it, where devices have that."""
    if isinstance(kind, heads.Head) or int(device.family.removeprefix("sm_") or 0) < 90:
        return
    said = {True: "blocks start beside the end of the kernel before, and wait for what it wrote",
            False: "blocks start when the kernel before has ended"}  # fmt: skip
    # On an H200 these were faster by 1 to 5%, and kernels of few rows slower.
    alone = isinstance(kind, (windows.WindowedWarpgroups, stream_warpgroups.WarpgroupStream))
    d.take("launch.overlap", {False: 0.5, True: 0.0 if alone else 1.0}, said.__getitem__, "relative")


def _products(d: Decisions, form: Any, sizes: dict[str, int], device: Device) -> Any:
    """The kernel of products: on sm_90a, of the instruction with which the expected time is less."""
    if device.arch != "sm_90a":
        return products.decide(d, form, sizes, device)
    pinned = d.pins.get("instruction")
    found: dict[str, tuple[Decisions, Any]] = {}
    options: dict[Any, float | str] = {"mma.sync": math.inf, "wgmma": warpgroups.why_not(form, device) or math.inf}
    failed: list[SelectError] = []
    for name, decide in (("wgmma", warpgroups.decide), ("mma.sync", products.decide)):
        if isinstance(options[name], str) or pinned not in (None, name):
            continue
        if found and found["wgmma"][1].expected_us <= (least := least_us(form, sizes, device)):
            options[name] = f"no tile takes less than {least:.1f} us"
            continue
        own = Decisions(d.pins)
        try:
            found[name] = own, decide(own, form, sizes, device)
        except SelectError as e:
            failed.append(e)
            options[name] = str(e).splitlines()[0]
        else:
            options[name] = found[name][1].expected_us
    if failed and not found:
        raise failed[-1]
    reasons = {"mma.sync": "operands pass through registers", "wgmma": "operands are read where TMA puts them"}
    name = d.take("instruction", options, lambda v: f"{reasons[v]}; least expected time", "us")
    own, kind = found[name]
    d.made.update(own.made)
    return kind


def _streams(d: Decisions, g: Graph, sizes: dict[str, int], device: Device) -> Any:
    """The kernel of attention's form: on sm_90a, of the instruction with which the expected time is less."""
    if device.arch != "sm_90a":
        return streams.decide(d, streams.read(g), sizes, device)
    pinned = d.pins.get("instruction")
    found: dict[str, tuple[Decisions, Any]] = {}
    options: dict[Any, float | str] = {}
    failed: list[SelectError] = []
    for name, decide in (("mma.sync", streams.decide), ("wgmma", stream_warpgroups.decide)):
        if pinned not in (None, name):
            options[name] = math.inf
            continue
        form = streams.read(g)
        if name == "wgmma" and (why := stream_warpgroups.why_not(form, device)):
            options[name] = why
            continue
        own = Decisions(d.pins)
        try:
            found[name] = own, decide(own, form, sizes, device)
            options[name] = found[name][1].expected_us
        except SelectError as e:
            failed.append(e)
            options[name] = str(e).splitlines()[0]
    if failed and not found:
        raise failed[0]
    said = {"mma.sync": "operands pass through registers", "wgmma": "weights are its operand in registers"}
    name = d.take("instruction", options, lambda v: f"{said[v]}; least expected time", "us")
    own, kind = found[name]
    d.made.update(own.made)
    return kind


def _sizes(g: Graph, sizes: dict[str, int]) -> dict[str, int]:
    """Sizes of axes that are known at a launch only, by symbol; given by the axis' name or symbol."""
    out: dict[str, int] = {}
    for a in g.axes():
        if a.size is not None:
            continue
        got = sizes.get(a.name, sizes.get(a.symbol))
        if got is None:
            refuse(f"the size of axis {a.name} is known at a launch only; a plan is for one size",
                   fix=f"pass {a.name}=..., a typical size")  # fmt: skip
        if not isinstance(got, int) or isinstance(got, bool) or got < 1:
            refuse(f"the size of axis {a.name} is a positive integer", f"got: {got!r}")
        out[a.symbol] = int(got or 0)
    known = {x for a in g.axes() if a.size is None for x in (a.name, a.symbol)}
    if wrong := [n for n in sizes if n not in known]:
        refuse("a size of an axis that is none of the graph's, or has one already", f"got: {', '.join(wrong)}")
    return out


PLANNERS.append(make)
