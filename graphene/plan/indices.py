"""Index algebra of imported graphs: dimensions as lists of digits, outermost first, which are split and identified.

A kernel that is described by parts of tensors (grids, loops, tiles) is read as an expression over digits: block and
iteration are digits of the dimensions that they cut. In the end neighbouring digits become whole axes again.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene.plan.graph import Value, axes, binary, dot, number, reduce, refuse, unary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphene.plan.graph import Axis, Graph

__all__ = ["Digit", "Node", "contracted", "fresh", "into_graph", "leaves", "same", "summed", "take_outer"]

_COUNT = itertools.count()


@dataclass(eq=False)
class Digit:
    """A digit of an index, `size` values. It may turn out to be another one, or to consist of several."""

    size: int
    parts: list[Digit] | None = None  # of one: the digit that it is
    number: int = field(default_factory=lambda: next(_COUNT))


def leaves(digits: Sequence[Digit]) -> list[Digit]:
    """The digits that these consist of by now, without those of one value."""
    out: list[Digit] = []
    for d in digits:
        if d.parts is not None:
            out += leaves(d.parts)
        elif d.size > 1:
            out.append(d)
    return out


def split(d: Digit, outer: int) -> tuple[Digit, Digit]:
    """A digit as two."""
    if d.size % outer:
        refuse("dimensions that are cut in ways that do not divide each other", f"got: {d.size} by {outer}")
    d.parts = [Digit(outer), Digit(d.size // outer)]
    return d.parts[0], d.parts[1]


def same(a: Sequence[Digit], b: Sequence[Digit]) -> None:
    """Identifies two indices, digit by digit from the innermost one."""
    x, y = leaves(a), leaves(b)
    while x and y:
        p, q = x.pop(), y.pop()
        if p.parts is not None or q.parts is not None:
            x, y = leaves([*x, p]), leaves([*y, q])
        elif p is q:
            continue
        elif p.size == q.size:
            q.parts = [p]
        elif p.size > q.size:
            split(p, p.size // q.size)
            x, y = leaves([*x, p]), [*y, q]
        else:
            split(q, q.size // p.size)
            x, y = [*x, p], leaves([*y, q])
    if x or y:
        refuse("dimensions of different sizes where they must be equal")


def take_outer(digits: Sequence[Digit], n: int) -> tuple[list[Digit], list[Digit]]:
    """An index as (part number of n, index in the part)."""
    rest, outer = leaves(digits), []
    while n > 1:
        if not rest:
            refuse("a dimension that is cut into more parts than it has elements")
        d = rest[0]
        if n % d.size == 0:
            outer.append(rest.pop(0))
            n //= d.size
        else:
            o, rest[0] = split(d, n)
            outer.append(o)
            n = 1
    return outer, rest


class Node:
    """An expression over digits. ``op``: "input", "number", "sum" over `digits`, or a pointwise function's name."""

    def __init__(
        self, op: str, args: Sequence[Node] = (), name: str = "", digits: Any = (), value: float = 0.0
    ) -> None:
        self.op, self.args, self.name, self.digits, self.value = op, tuple(args), name, digits, value

    def walk(self, seen: set[int] | None = None) -> Iterator[Node]:
        """Every node, operands first, each once."""
        seen = set() if seen is None else seen
        if id(self) in seen:
            return
        seen.add(id(self))
        for a in self.args:
            yield from a.walk(seen)
        yield self

    def free(self) -> set[Digit]:
        """The digits that its value depends on."""
        if self.op == "input":
            return {d for dim in self.digits for d in leaves(dim)}
        found: set[Digit] = set().union(*(a.free() for a in self.args))
        return found - set(leaves(self.digits)) if self.op == "sum" else found


def fresh(node: Node, dims: list[list[Digit]]) -> tuple[Node, list[list[Digit]]]:
    """A copy over digits of its own: another use of the same tensor."""
    new: dict[Digit, Digit] = {}

    def digit(d: Digit) -> Digit:
        return new.setdefault(d, Digit(d.size))

    made: dict[int, Node] = {}
    for n in node.walk():
        digits = n.digits
        if n.op == "input":
            digits = [[digit(d) for d in leaves(dim)] for dim in n.digits]
        elif n.op == "sum":
            digits = [digit(d) for d in leaves(n.digits)]
        made[id(n)] = Node(n.op, [made[id(a)] for a in n.args], n.name, digits, n.value)
    return made[id(node)], [[digit(d) for d in leaves(dim)] for dim in dims]


def summed(node: Node, digits: Sequence[Digit]) -> Node:
    """The sum over digits; what does not depend on one is multiplied by its size."""
    inside = [d for d in leaves(digits) if d in node.free()]
    times = 1
    for d in leaves(digits):
        times *= 1 if d in inside else d.size
    if inside:
        node = Node("sum", [node], digits=inside)
    return node if times == 1 else Node("mul", [node, Node("number", value=float(times))])


def contracted(a: Node, b: Node, digits: Sequence[Digit]) -> Node:
    """The sum of products over digits."""
    return summed(Node("mul", [a, b]), digits)


def _flat(node: Node, made: dict[int, Node]) -> Node:
    """Sums of sums as one, and each sum as far inside as it goes."""
    if id(node) not in made:
        args = [_flat(a, made) for a in node.args]
        if node.op == "sum":
            made[id(node)] = _pushed(args[0], leaves(node.digits))
        else:
            made[id(node)] = Node(node.op, args, node.name, node.digits, node.value)
    return made[id(node)]


def _pushed(node: Node, digits: list[Digit]) -> Node:
    """The sum of a node over digits: of terms one by one, and of the factors that depend on them."""
    free = node.free()
    inside = [d for d in digits if d in free]
    if len(inside) < len(digits):
        times = math.prod(d.size for d in digits if d not in free)
        return Node("mul", [_pushed(node, inside), Node("number", value=float(times))])
    if not digits:
        return node
    if node.op == "sum":
        return _pushed(node.args[0], [*digits, *leaves(node.digits)])
    if node.op in ("add", "sub"):
        return Node(node.op, [_pushed(a, digits) for a in node.args])
    if node.op in ("mul", "div"):
        x, y = node.args
        has_x, has_y = x.free(), y.free()
        of_x = [d for d in digits if d not in has_y]
        of_y = [d for d in digits if d not in has_x] if node.op == "mul" else []
        if of_x or of_y:
            rest = [d for d in digits if d not in of_x and d not in of_y]
            product = Node(node.op, [_pushed(x, of_x) if of_x else x, _pushed(y, of_y) if of_y else y])
            return _pushed(product, rest)
    return Node("sum", [node], digits=digits)


def _rename_sums(node: Node) -> None:
    """Uses the same digits where an input is summed in several places, or in one and is read in another.

    A sum's digits are its own, so they may be called what stands outside of it. No value may depend on both.
    """
    sums = [n for n in node.walk() if n.op == "sum"]
    reached = [n.free() for n in node.walk()]
    bound = {d for n in sums for d in leaves(n.digits)}
    first: dict[str, list[list[Digit]]] = {}
    for n in node.walk():
        if n.op != "input":
            continue
        if n.name not in first:
            first[n.name] = n.digits
            continue
        for dim, other in zip(first[n.name], n.digits, strict=True):
            for d, e in zip(leaves(dim), leaves(other), strict=False):
                if d is e or d.size != e.size or not (d in bound or e in bound):
                    continue
                if any(d in free and e in free for free in reached):
                    continue
                apart = all(not (e in leaves(s.digits) and d in s.args[0].free()) and
                            not (d in leaves(s.digits) and e in s.args[0].free()) for s in sums)  # fmt: skip
                if apart:
                    e.parts = [d]
                    reached = [n.free() for n in node.walk()]


def _merge(lists: list[Any], sums: list[Node]) -> None:
    """Makes one digit of two that stand side by side wherever they stand."""
    while True:
        sequences = [leaves(dim) for dim in lists]
        sets = [set(leaves(s.digits)) for s in sums]
        for p, q in dict.fromkeys(pair for seq in sequences for pair in itertools.pairwise(seq)):
            beside = all((p not in s and q not in s) or (any(x is p and y is q for x, y in itertools.pairwise(s)) and
                         s.count(p) == s.count(q) == 1) for s in sequences)  # fmt: skip
            if p is not q and beside and all((p in s) == (q in s) for s in sets):
                whole = Digit(p.size * q.size)
                p.parts, q.parts = [whole], []
                break
        else:
            return


def into_graph(g: Graph, inputs: dict[str, tuple[list[int], Any]], outputs: list[tuple[str, Node, Any, Any]]) -> None:
    """Adds inputs (name: sizes, type) and outputs (name, expression, dims, type), over axes as whole as they may be."""
    made: dict[int, Node] = {}
    roots = [_flat(node, made) for _, node, _, _ in outputs]
    for r in roots:
        _rename_sums(r)
    every = [n for r in roots for n in r.walk()]
    reads = [n for n in every if n.op == "input"]
    lists = [dim for n in reads for dim in n.digits] + [dim for *_, dims, _ in outputs for dim in dims]
    sums = [n for n in every if n.op == "sum"]
    _merge(lists, sums)
    for r in roots:  # digits that were cut in different ways are whole now
        _rename_sums(r)
    _merge(lists, sums)
    reads.sort(key=lambda n: list(inputs).index(n.name))
    axis_of: dict[Digit, Axis] = {}
    for d in (d for dim in [*(dim for n in reads for dim in n.digits), *lists] for d in leaves(dim)):
        if d not in axis_of:
            axis_of[d] = axes(**{f"i{len(axis_of)}": d.size})
    row = _only_row(every, reads, outputs)
    values: dict[int, Value] = {}
    named: dict[tuple[str, tuple[Digit, ...]], Value] = {}
    for n in reads:
        key = n.name, tuple(d for dim in n.digits for d in leaves(dim))
        if key not in named:
            again = sum(name == n.name for name, _ in named)
            stored = [axis_of[d] for d in key[1]]
            if row is not None and _lacks_rows(n.digits):
                stored.insert(len(stored) - len(leaves(n.digits[-1])), row)
            if not stored:
                refuse(f"input {n.name} has one element")
            value = g.input(n.name if not again else f"{n.name}_{again}", stored, inputs[n.name][1])
            if again:
                value.more["of"] = n.name
            named[key] = value
        values[id(n)] = named[key]
    for r, (name, _, dims, dtype) in zip(roots, outputs, strict=True):
        for n in r.walk():
            if id(n) not in values:
                values[id(n)] = _value(n, values, axis_of)
        stored = [axis_of[d] for dim in dims for d in leaves(dim)]
        if row is not None and _lacks_rows(dims):
            stored.insert(len(stored) - len(leaves(dims[-1])), row)
        g.output(name, values[id(r)], stored, dtype)


def _lacks_rows(dims: list[Any]) -> bool:
    """Whether a tensor has one row, whose dimension is left out."""
    return len(dims) > 1 and not leaves(dims[-2]) and bool(leaves(dims[-1]))


def _only_row(every: list[Node], reads: list[Node], outputs: list[tuple[str, Node, Any, Any]]) -> Axis | None:
    """An axis for the rows of products whose results have one: the planner's products have rows and columns."""
    multiplied = any(
        n.op == "sum" and n.args[0].op == "mul" and n.args[0].args[0] is not n.args[0].args[1] for n in every
    )
    if not multiplied or not all(_lacks_rows(dims) for *_, dims, _ in outputs):
        return None
    if not any(_lacks_rows(n.digits) for n in reads):
        return None
    made: Axis = axes(row=1)
    return made


def _value(n: Node, values: dict[int, Value], axis_of: dict[Digit, Axis]) -> Value:
    if n.op == "number":
        return number(n.value)
    if n.op == "sum":
        return _sum(n.args[0], [axis_of[d] for d in leaves(n.digits)], values)
    args = [values[id(a)] for a in n.args]
    return unary(n.op, args[0]) if len(args) == 1 else binary(n.op, *args)


def _sum(of: Node, along: list[Axis], values: dict[int, Value]) -> Value:
    """A sum; of a product it is a matrix product over the axes that both factors have."""
    value = values[id(of)]
    if of.op == "mul" and len(of.args) == 2:
        x, y = (values[id(a)] for a in of.args)
        both = [a for a in along if a in x.axes and a in y.axes]
        if both and of.args[0] is not of.args[1]:
            for a in along:
                if a not in both:
                    x, y = (reduce("sum", v, a) if a in v.axes else v for v in (x, y))
            value = dot(x, y, both[-1])
            for a in both[:-1]:
                value = reduce("sum", value, a)
            return value
    for a in along:
        value = reduce("sum", value, a)
    return value
