"""Plans beside each other on a device: the expected best, and what its decisions had as alternatives."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphene.dtypes import torch_type
from graphene.errors import SelectError
from graphene.plan.graph import Graph
from graphene.select.measure import tune
from graphene.select.tunable import Selection, Tunable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphene.plan.planned import Plan

__all__ = ["PlanTimes", "measure"]

PATHS = (
    "instruction",
    "rewrite.reciprocals",
    "copies.when",
    "tile.m",
    "tile.n",
    "loop.k",
    "stages",
    "warps",
    "tile",
    "threads",
    "rows",
)
LARGEST_ERROR = 2e-2  # of plans among themselves, relative to the largest element


@dataclass(frozen=True)
class PlanTimes:
    """What `measure` found. ``best``: the fastest plan. ``rows``: plans, the fastest first, with microseconds, or why a
    plan has none.
    """

    best: Plan
    rows: tuple[tuple[Plan, float | str], ...]

    def __str__(self) -> str:
        out = []
        for p, us in self.rows:
            pins = ", ".join(f"{d.path} = {d.value}" for d in p.decisions.values() if d.pinned) or "as expected best"
            out.append(f"{us if isinstance(us, str) else f'{us:8.2f} us'}  expected {p.expected_us:.1f}  {pins}")
        return "\n".join(out)


@dataclass(frozen=True)
class Pins:
    """Pins of a plan, as JSON text."""

    text: str = "{}"


def short_list(g: Graph, arch: Any, pin: Mapping[str, Any], count: int, sizes: Mapping[str, int]) -> dict[Pins, Plan]:
    """The expected best plan, then the best ones in which a single decision differs, by their expected time."""
    best: Plan = g.plan(arch, pin=pin, **sizes)
    found: dict[Pins, Plan] = {}
    for path in PATHS:
        d = best.decisions.get(path)
        if d is None or path in pin:
            continue
        for value, cost in d.alternatives:
            if isinstance(cost, str):
                continue
            try:
                p: Plan = g.plan(arch, pin={**pin, path: value}, **sizes)
            except SelectError:  # a later decision refuses it
                continue
            found[Pins(json.dumps({path: value}))] = p
    others = sorted(found.items(), key=lambda x: x[1].expected_us)
    kept = {Pins(): best}
    texts = {best.source()}
    for pins, p in others:
        if len(kept) < count and (text := p.source()) not in texts:
            kept[pins] = p
            texts.add(text)
    return kept


def measure(
    g: Graph, arch: Any, pin: Mapping[str, Any] | None = None, count: int = 8, rounds: int = 5,
    timer: Callable[[Callable[[], object]], float] | None = None, **sizes: int,
) -> PlanTimes:  # fmt: skip
    """Times the expected best plan of a graph and its neighbours on the current device, with random arguments.

    `count`: the most plans. `rounds`, `timer`: as of ``graphene.select.tune``; the default needs a CUDA device. Without
    one, kernels run on the simulator, and `timer` says what their time is. A plan whose results differ from those of
    the expected best is not taken. Raises what ``g.plan`` raises, LaunchError OP_TORCH and LAUNCH_DRIVER without torch
    or a device, SelectError TUNE_FAILED if no plan could be measured.
    """
    if not isinstance(g, Graph):
        raise TypeError(f"measure takes a graph of graphene.plan, got {g!r}")
    plans = short_list(g, arch, dict(pin or {}), count, sizes)
    first = next(iter(plans.values()))
    inputs, outputs = first.kernel_inputs(), first.graph.outputs

    def arguments(_: str) -> list[Any]:
        torch: Any = importlib.import_module("torch")
        where = "cuda" if torch.cuda.is_available() else "cpu"
        shapes = [([first.sizes.get(a.symbol, a.size) for a in v.more["stored"]], v.more["dtype"]) for v in inputs]
        shapes += [([first.sizes.get(a.symbol, a.size) for a in o.axes], o.dtype) for o in outputs]
        made = [torch.randn(*shape).to(torch_type(str(dtype))).to(where) for shape, dtype in shapes]
        for x in made[len(inputs) :]:
            x.fill_(float("nan"))
        return made

    def reference(_: str, args: Any) -> Any:
        own = [a.clone() for a in args]
        first.kernel()(*own)
        return [x.double() for x in own[len(inputs) :]]

    def verify(_: str, args: Any, want: Any) -> str | None:
        for got, x in zip(args[len(inputs) :], want, strict=True):
            error = float((got.double() - x).abs().max() / x.abs().max().clamp_min(1e-30))
            if not error <= LARGEST_ERROR:
                return f"its results are {error:.1e} from those of the expected best"
        return None

    tunable: Tunable[str, Pins] = Tunable(
        name=f"plan of {g.name}", config=Pins, candidates=lambda *_: plans, arguments=arguments, verify=verify,
        predict=lambda c, *_: (plans[c].expected_us, plans[c].bound), build=lambda c, _: plans[c].kernel(),
        key=lambda _: ("", g.name), text=lambda c: c.text, reference=reference,
    )  # fmt: skip
    listed = tuple((c, p.expected_us, p.bound) for c, p in plans.items())
    chosen = Selection(tunable.name, listed, (), tunable.text)
    found = tune(tunable, g.name, first.device, count, rounds, timer, False, False, chosen)
    rows = tuple((plans[m.config], m.failure or m.us) for m in found.measured)
    return PlanTimes(plans[found.best], rows)
