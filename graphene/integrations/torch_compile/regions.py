"""Regions of an FX graph that one planned kernel may compute: which nodes, and the plan.

A region grows from a product: backwards over what computes its operand, forwards over what is computed from its result,
and over other products that meet it. Of its nodes only the last one is read by others.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from graphene.errors import GrapheneError
from graphene.integrations.torch_compile.reading import (
    CONVERSIONS,
    LONGEST_LATER,
    POINTWISE,
    PRODUCTS,
    REDUCTIONS,
    VIEWS,
    Node,
    Reader,
    UnfitError,
    extent,
    is_dense,
    is_read,
    rows_of,
    tensor,
)
from graphene.ops.core.torch import torch
from graphene.plan.graph import Graph
from graphene.plan.planned import Plan
from graphene.select.device import Device

pytree = torch.utils._pytree
FARTHEST = 24  # operators behind a product that are looked at
TRIES = 16
CHEAP = ("input", "number", "mul", "add", "sub", "neg", "round")  # of an operand's elements, beside reading them


class PlannedRegion:
    """A region that can be planned. ``nodes``: all that the kernel computes, in order; ``products``: of these."""

    def __init__(self, reader: Reader, plan: Plan, order: dict[Node, int]) -> None:
        self.out, self.plan, self.leaves = reader.out, plan, reader.leaves
        self.nodes = sorted(reader.inside, key=order.__getitem__)
        self.products = set(reader.products)
        self.name = reader.graph.name


def text_of(plan: Plan) -> str:
    """The plan as JSON without what it was chosen from: an operator's argument."""
    data = plan.to_json()
    data["decisions"] = {path: {"value": d["value"]} for path, d in data["decisions"].items()}
    del data["expected_us"]
    return json.dumps(data, separators=(",", ":"))


@functools.lru_cache(1024)
def _plan(graph: str, sizes: tuple[tuple[str, int], ...], device: Device) -> Plan | str:
    """The plan of a graph, or why there is none. Equal layers of a model share it."""
    try:
        p: Plan = Graph.from_json(graph).plan(device, None, **dict(sizes))
    except GrapheneError as e:
        return _first_line(e)
    form = getattr(p._of, "form", None)
    dots = [] if form is None else form.dots
    if any(v.op not in CHEAP for d in dots for v in d.left.walk()):
        return "elements of an operand that would be computed again for each tile of columns"
    if form is not None and str(form.dtype) == "fp16" and any(d.left.op != "input" for d in dots):
        return "elements of an operand that are computed before their row is normalised may leave the range of fp16"
    return p


def _first_line(error: GrapheneError) -> str:
    """An error's message, without the line of Python that made the graph."""
    return re.sub(r"^\S+\.py:\d+: ", "", str(error).splitlines()[0])


def planned(graph: Graph, sizes: dict[str, int], device: Device) -> Plan | str:
    """The plan of a graph for a device, or the reason why there is none."""
    return _plan(json.dumps(graph.to_json()), tuple(sorted(sizes.items())), device)


class Growing:
    """Grows regions in one FX graph."""

    def __init__(self, graph: Any, device: Device) -> None:
        self.device = device
        self.nodes = list(graph.nodes)
        self.order = {n: i for i, n in enumerate(self.nodes)}

    def products(self) -> list[Node]:
        """The products that regions may grow from."""
        return [n for n in self.nodes if n.op == "call_function" and n.target in PRODUCTS]

    def siblings(self, product: Node) -> tuple[Node, set[Node]]:
        """A product's left operand without views, and every product of it; these are empty if others read it, too."""
        x = _left(product)
        while x.op == "call_function" and x.target in VIEWS:
            x = x.args[0]
        found: set[Node] = set()
        stack = list(x.users)
        while stack:
            n = stack.pop()
            if n.op == "call_function" and n.target in VIEWS:
                stack += n.users
            elif n.op == "call_function" and n.target in PRODUCTS and _reads(_left(n), x):
                found.add(n)
            else:
                return x, set()
        return x, found

    def grow(self, product: Node, absorb: bool) -> PlannedRegion | str:
        """The largest region of a product that a plan computes, or why there is none.

        `absorb`: with what computes the left operand, such as a normalisation, which products beside it also compute.
        """
        x, beside = self.siblings(product) if absorb else (None, set())
        if absorb and (not beside or not is_read(x)):
            return "nothing before the product that only products read"
        why = "nothing but a product, which the vendor's library computes as well" + _returned(product)
        for out in self._ends(product):
            for join in (True, False):
                inside = self._inside(out, product, beside, join)
                if inside is None or (absorb and x not in inside):
                    continue
                found = self._read(out, product, inside, beside, join)
                if isinstance(found, PlannedRegion) and absorb and x not in found.nodes:
                    continue
                if isinstance(found, PlannedRegion):
                    return found
                if found:
                    why = found
        return why

    def _read(self, out: Node, product: Node, inside: set[Node], beside: set[Node], join: bool) -> PlannedRegion | str:
        """Reads the nodes and plans them. An operator that cannot be read becomes an input, where that is possible."""
        why = ""
        for _ in range(TRIES):
            try:
                reader = Reader(out, inside)
                graph = reader.read()
            except UnfitError as e:
                why = f"{e.node.name}: {e}"
                if e.node is out or e.node not in inside or e.node is product:
                    return why
                left = self._inside(out, product, beside, join, inside - {e.node})
                if left is None:
                    return why
                inside = left
                continue
            except GrapheneError as e:
                return _first_line(e)
            reader.inside = inside
            if not _is_worth(inside, reader):
                return ""
            x = tensor(out)
            if x.dtype not in (reader.dtype, torch.float32) or not is_dense(x):
                return f"the result is {x.dtype}, and not row-major" if not is_dense(x) else f"the result is {x.dtype}"
            if sum(not isinstance(d, int) for d in x.shape) > 1:
                return "a result with several symbolic sizes"
            if reader.sizes and any(v.more["stored"][-1] is reader.m for v in graph.inputs):
                return "lines along rows whose number is not known: kernels want a multiple of 8"
            if mutating := self._mutates(inside):
                return f"{mutating} writes a tensor between the region's operators"
            p = planned(graph, reader.sizes, self.device)
            return p if isinstance(p, str) else PlannedRegion(reader, p, self.order)
        return why

    def _mutates(self, inside: Iterable[Node]) -> str:
        """An operator between the first and the last node that writes one of its arguments, or nothing."""
        at = sorted(self.order[n] for n in inside)
        for n in self.nodes[at[0] : at[-1]]:
            schema = getattr(n.target, "_schema", None)
            if n.op == "call_function" and schema is not None and schema.is_mutable:
                return str(n.target)
        return ""

    def _ends(self, product: Node) -> list[Node]:
        """Nodes that a region of the product may end with, the last one first."""
        seen = {product}
        waiting = [product]
        while waiting and len(seen) < FARTHEST:
            waiting.sort(key=self.order.__getitem__)
            for user in waiting.pop(0).users:
                later = user.target in PRODUCTS and _is_later(user, seen)
                if user not in seen and is_read(user) and user.target not in REDUCTIONS:
                    if user.target in PRODUCTS and not later:
                        continue
                    seen.add(user)
                    waiting.append(user)
        rows, dtype = rows_of(tensor(product).shape), tensor(product).dtype
        ends = [n for n in seen if rows_of(tensor(n).shape) == rows and tensor(n).dtype == dtype]
        return sorted(ends, key=self.order.__getitem__, reverse=True)

    def _inside(
        self, out: Node, product: Node, beside: set[Node], join: bool, among: set[Node] | None = None
    ) -> set[Node] | None:
        """What the result is computed from and nothing else reads; None if the product is not among it.

        `beside`: products that compute their operand again. `join`: whether other products may be inside.
        """
        allowed = set(among) if among is not None else self._closure(out, product, bool(beside), join)
        while True:
            reached = _reached(out, allowed)
            outside = [
                n for n in reached if n is not out and not all(self._within(u, reached, beside) for u in n.users)
            ]
            if not outside:
                return reached if product in reached else None
            allowed = reached - set(outside)

    def _within(self, user: Node, reached: set[Node], beside: set[Node]) -> bool:
        if user in reached or user in beside:
            return True
        views = user.op == "call_function" and user.target in VIEWS and bool(beside)
        return views and all(self._within(u, reached, beside) for u in user.users)

    def _closure(self, out: Node, product: Node, absorb: bool, join: bool) -> set[Node]:
        found: set[Node] = set()
        stack = [(out, False)]
        while stack:
            n, before = stack.pop()  # before: it computes an operand of a product
            if n in found or not is_read(n):
                continue
            if n.target in PRODUCTS:
                if n is not product and not join:
                    continue
                if before and not _is_short(n):
                    continue
                found.add(n)
                if absorb or _follows_product(n):
                    stack.append((_left(n), True))
                stack += [(a, before) for a in n.args[:-2] if isinstance(a, torch.fx.Node)]
                continue
            found.add(n)
            stack += [(a, before) for a in n.all_input_nodes]
        return found


def _left(product: Node) -> Node:
    return product.args[-2] if product.target is torch.ops.aten.mm.default else product.args[1]


def _returned(product: Node) -> str:
    """What the graph returns of a product's operand or result, so that it must be stored; nothing, else.

    Before a computed operand stands a norm or an activation, and behind the result what could be one.
    """
    said, x = list[tuple[str, str]](), _left(product)
    inputs = _outputs_of(x)
    while x.op == "call_function" and (x.target in VIEWS or x.target in CONVERSIONS):
        x = x.args[0]
        inputs += _outputs_of(x)
    computed = is_read(x) and x.target not in PRODUCTS
    used = any(u.op != "output" for u in product.users)
    for what, kinds in (("input", inputs * computed), ("result", _outputs_of(product) * used)):
        if kinds:
            backward = all("SavedForBackward" in kind for kind in kinds)
            said.append((what, "kept for the backward pass" if backward else "returned by the graph"))
    if len({how for _, how in said}) == 1 and len(said) > 1:
        return f"; its input and its result are {said[0][1]}"
    return "".join(f"; its {what} is {how}" for what, how in said)


def _outputs_of(node: Node) -> list[str]:
    """For each output of the graph that a node is: what kind of output PyTorch says it is, as the name of a class."""
    kinds = []
    for user in node.users:
        if user.op == "output":
            outputs = pytree.tree_leaves(user.args[0])
            described = user.meta.get("desc") or [None] * len(outputs)
            kinds += [type(d).__name__ for x, d in zip(outputs, described, strict=False) if x is node]
    return kinds


def _reads(node: Node, x: Node) -> bool:
    while node is not x and node.op == "call_function" and node.target in VIEWS:
        node = node.args[0]
    return node is x


def _is_short(product: Node) -> bool:
    """Whether the product's result is so narrow that it can be the operand of another one in the same kernel."""
    n, k = extent(tensor(product).shape[-1]), extent(tensor(_left(product)).shape[-1])
    return any(isinstance(s, int) and s <= LONGEST_LATER for s in (n, k))


def _follows_product(product: Node) -> bool:
    """Whether the left operand is another product's result, and short, as in LoRA."""
    left = _left(product)
    while left.op == "call_function" and (left.target in VIEWS or left.target in CONVERSIONS):
        left = left.args[0]
    return left.op == "call_function" and left.target in PRODUCTS and _is_short(left)


def _is_later(product: Node, seen: set[Node]) -> bool:
    """Whether the product's left operand is what another product gives, and short."""
    left = _left(product)
    k = extent(tensor(left).shape[-1]) if tensor(left) is not None else None
    return left in seen and isinstance(k, int) and k <= LONGEST_LATER


def _reached(out: Node, allowed: set[Node]) -> set[Node]:
    found: set[Node] = set()
    stack = [out]
    while stack:
        n = stack.pop()
        if n in allowed and n not in found:
            found.add(n)
            stack += n.all_input_nodes
    return found


def _is_worth(inside: set[Node], reader: Reader) -> bool:
    """Whether there is anything beside one product, which a library computes as well."""
    work = [n for n in inside if n.target in POINTWISE and n.target not in CONVERSIONS]
    return len(reader.products) > 1 or bool(work) or any(n.target in REDUCTIONS for n in inside)


def overlap(a: PlannedRegion, b: PlannedRegion) -> bool:
    """Whether two regions compute a product together, or one ends inside of the other."""
    return bool(a.products & b.products) or a.out is b.out or a.out in b.nodes or b.out in a.nodes


def taken(regions: Sequence[PlannedRegion]) -> set[Node]:
    """The products of regions."""
    return {n for r in regions for n in r.products}
