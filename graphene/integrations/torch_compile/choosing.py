"""Which regions of an FX graph become planned kernels, and their operators in place of the nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphene.integrations.torch_compile.expected import Expected, KernelTimes
from graphene.integrations.torch_compile.reading import VIEWS, Node, tensor
from graphene.integrations.torch_compile.regions import Growing, PlannedRegion, overlap, text_of
from graphene.ops.core.torch import torch
from graphene.ops.planned import PLANNED
from graphene.plan.planned import Plan

LEAST_GAIN = 0.08  # of the time of what is replaced; expected times are 6% off in the mean


@dataclasses.dataclass(frozen=True)
class Region:
    """A part of a graph that was looked at.

    ``nodes``: names of its operators; ``planned``: whether it became one kernel; ``why``: the reason; ``plan``: its
    plan, if there is one. ``inductor_us``, ``plan_us``: expected or (``measured``) measured microseconds, None where
    nothing could be planned; they count what the nodes near the region cost with and without it. They are times in a
    CUDA graph, where kernels follow one another at once; the plan's ``expected_us`` has the launch of a single call.
    """

    name: str
    nodes: tuple[str, ...]
    planned: bool
    why: str
    plan: Plan | None = None
    inductor_us: float | None = None
    plan_us: float | None = None
    measured: bool = False

    def source(self) -> str:
        """The kernel's Python text; empty where there is no plan."""
        return "" if self.plan is None else self.plan.source()

    def __str__(self) -> str:
        times = ""
        if self.inductor_us is not None and self.plan_us is not None:
            kind = "measured" if self.measured else "expected"
            times = f"{self.plan_us:.1f} us, Inductor {self.inductor_us:.1f} us, {kind} for a CUDA graph; "
        count = f"{len(self.nodes)} operator{'s' * (len(self.nodes) != 1)}"
        return f"{'planned ' if self.planned else 'Inductor'} {self.name} ({count}): {times}{self.why}"


class Plans(Sequence[Region]):
    """The regions that were looked at, by graph; it prints as a table. `sources`: those of planned kernels."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self.cached = 0  # graphs that PyTorch's cache had compiled already

    def add(self, regions: Sequence[Region]) -> None:
        """Adds those of one graph."""
        self._regions += regions

    def __getitem__(self, i: Any) -> Any:
        return self._regions[i]

    def __len__(self) -> int:
        return len(self._regions)

    def __iter__(self) -> Iterator[Region]:
        return iter(list(self._regions))

    @property
    def sources(self) -> dict[str, str]:
        """The Python text of each planned kernel, by the names of its region and its sizes; equal kernels are one."""
        found: dict[str, str] = {}
        for r in self:
            if r.planned and r.plan is not None and r.source() not in found.values():
                same = sum(name.split(" ")[0] == r.name for name in found)
                found[r.name if not same else f"{r.name} {same + 1}"] = r.source()
        return found

    def __str__(self) -> str:
        lines = list(map(str, self))
        if self.cached:
            lines.append(f"{self.cached} graphs came from PyTorch's cache, which does not keep what was looked at")
        return "\n".join(lines) or "no region was looked at"

    __repr__ = __str__


class Chooser:
    """Chooses the regions of one FX graph."""

    def __init__(self, graph: Any, times: KernelTimes, least_gain: float = LEAST_GAIN) -> None:
        self.graph, self.times, self.least_gain = graph, times, least_gain
        self.growing = Growing(graph, times.device)
        self.expected = Expected(self.growing.nodes, times)
        self.chosen: list[PlannedRegion] = []
        self.compared: dict[Node, tuple[PlannedRegion, float, float]] = {}  # by product: region, Inductor's us, its us
        self.refused: dict[Node, str] = {}
        self.failed: list[tuple[str, str]] = []  # names of regions that could not be put into the graph, and errors
        self._rows: dict[Any, Region] = {}  # by region, or by a product without one
        self._known: dict[tuple[Node, bool], PlannedRegion | str] = {}

    def choose(self) -> list[Region]:
        """Decides, and lists what was decided; the graph is not changed."""
        for _ in range(2):
            before = list(self.chosen)
            for move in self._moves():
                self._try(move)
            if before == self.chosen:
                break
        self._list()
        return self.listed()

    def replace(self) -> None:
        """Puts operators in the place of the chosen regions. One for which that fails stays Inductor's."""
        made: dict[Node, Node] = {}
        for region in sorted(self.chosen, key=lambda r: self.growing.order[r.out]):
            try:
                made[region.out] = replace(self.graph, region, made)
            except Exception as e:  # the nodes of this region are as they were
                self.failed.append((region.name, f"{type(e).__name__}: {e}"))
                why = f"not replaced, {self.failed[-1][1]}"
                self._rows[region] = dataclasses.replace(self._rows[region], planned=False, why=why)

    def listed(self) -> list[Region]:
        """The regions, as they were decided or, after `replace`, as they are."""
        return list(self._rows.values())

    def _moves(self) -> list[list[PlannedRegion]]:
        """Regions that are chosen together: alone, or as all readers of a norm, also with what computes its input."""
        moves: list[list[PlannedRegion]] = []
        alone: dict[Node, PlannedRegion] = {}
        seen: set[Node] = set()
        for product in self.growing.products():
            found = self._grown(product, False)
            if isinstance(found, PlannedRegion):
                alone[found.out] = found
                moves.append([found])
            else:
                self.refused[product] = found
            x, beside = self.growing.siblings(product)
            if x in seen or not beside:
                continue
            seen.add(x)
            group = [self._grown(p, True) for p in sorted(beside, key=self.growing.order.__getitem__)]
            if wrong := next((g for g in group if isinstance(g, str)), None):
                self.refused.setdefault(product, wrong)
                continue
            unique = list({g.out: g for g in group if isinstance(g, PlannedRegion)}.values())
            if any(overlap(a, b) for i, a in enumerate(unique) for b in unique[:i]):
                continue
            moves.append(unique)
            sources = {_source(leaf.node) for g in unique for leaf in g.leaves}
            producers = [alone[n] for n in alone if _source(n) in sources]
            if producers and not any(overlap(a, b) for a in unique for b in producers):
                moves.append([*unique, *producers])
        return moves

    def _grown(self, product: Node, absorb: bool) -> PlannedRegion | str:
        key = (product, absorb)
        if key not in self._known:
            self._known[key] = self.growing.grow(product, absorb)
        return self._known[key]

    def _try(self, move: list[PlannedRegion]) -> None:
        """Takes the regions if they are expected to be faster than what is there."""
        new = [m for m in move if m not in self.chosen]
        if not new:
            return
        others = [r for r in self.chosen if not any(overlap(r, m) for m in new)]
        after = others + new
        own = sum(self.times.planned_us(m) for m in new)
        was, now = self.expected.difference_us(others, after)
        gain = was - now  # beside Inductor
        if len(others) < len(self.chosen):
            now_chosen, now_after = self.expected.difference_us(self.chosen, after)
            better = now_after < now_chosen
        else:
            better = True
        for m in new:
            us = self.times.planned_us(m)
            row = (m, us + gain * us / own, us)
            for p in m.products:
                best = self.compared.get(p)
                if best is None or row[1] / row[2] > best[1] / best[2]:
                    self.compared[p] = row
        if better and gain > max(map(self._needed, new)) * (own + gain):
            self.chosen = after

    def _needed(self, region: PlannedRegion) -> float:
        return max(self.least_gain, self.times.needed_gain(region))

    def _list(self) -> None:
        self._rows.clear()
        done: set[Node] = set()
        by_product = {p: r for r in self.chosen for p in r.products}
        for product in self.growing.products():
            if product in done:
                continue
            chosen = by_product.get(product)
            found, inductor, own = self.compared.get(product, (None, None, None))
            measured = self.times.measured
            if chosen is not None:
                if found is not chosen:
                    own = self.times.planned_us(chosen)
                    inductor = own + self._gain_of(chosen)
                why = f"{chosen.plan.bound} bounds it"
                done |= chosen.products
                self._rows[chosen] = _region(chosen, True, why, inductor, own, measured)
            elif found is not None:
                done |= found.products
                why = f"less than {self._needed(found):.0%} faster" if (inductor or 0) > (own or 0) else "slower"
                self._rows[found] = _region(found, False, why, inductor, own, measured)
            else:
                why = self.refused.get(product, "nothing beside it")
                self._rows[product] = Region("linear", (product.name,), False, why)

    def _gain_of(self, region: PlannedRegion) -> float:
        was, now = self.expected.difference_us([r for r in self.chosen if r is not region], self.chosen)
        return was - now


def _region(
    r: PlannedRegion, planned: bool, why: str, inductor: float | None, own: float | None, measured: bool
) -> Region:
    return Region(r.name, tuple(n.name for n in r.nodes), planned, why, r.plan, inductor, own, measured)


def _source(node: Node) -> Node:
    while node.op == "call_function" and node.target in VIEWS:
        node = node.args[0]
    return node


def replace(graph: Any, region: PlannedRegion, made_of: Mapping[Node, Node]) -> Node:
    """Puts the operator of a region's plan in the place of its nodes. `made_of`: what stands for earlier results."""
    aten, out = torch.ops.aten, region.out
    x = tensor(out)
    new: list[Node] = []

    def call(target: Any, *args: Any) -> Node:
        node = graph.call_function(target, args)
        new.append(node)
        with x.fake_mode:
            node.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
        return node

    try:
        with graph.inserting_before(out):
            given = []
            for leaf in region.leaves:
                node = made_of.get(leaf.node, leaf.node)
                if leaf.way == "transposed":
                    node = call(aten.permute.default, node, [1, 0])
                elif leaf.way != "as is":
                    node = call(aten.reshape.default, node, leaf.way)
                given.append(node)
            made = call(PLANNED.forward, given[0], given[1:], [text_of(region.plan)])
            if x.dim() != 2:
                made = call(aten.reshape.default, made, [d if isinstance(d, int) else -1 for d in x.shape])
    except Exception:
        for node in reversed(new):
            graph.erase_node(node)
        raise
    made.meta = {**out.meta, "val": made.meta["val"]}
    out.replace_all_uses_with(made)
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)
    return made
