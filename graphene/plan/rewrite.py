"""Rewrites of graphs: equal in exact arithmetic, different in what is computed when. Each is a decision of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.plan.graph import Axis, Graph, Output, Value, binary, unary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["mapped", "once", "reciprocals", "scale_past_dot"]


def mapped(g: Graph, change: Callable[[Value], Value]) -> Graph:
    """The graph with every value changed, operands first. `change` gets a value whose operands are changed already."""
    new: dict[int, Value] = {}
    out = Graph(g.name)
    out.inputs = list(g.inputs)
    for o in g.outputs:
        for v in o.value.walk():
            args = tuple(new[a.number] for a in v.args)
            same = all(a is b for a, b in zip(args, v.args, strict=True))
            made = v if same else Value(v.op, args, v.axes, **v.more)
            made.line = v.line
            new[v.number] = change(made)
        out.outputs.append(Output(o.name, new[o.value.number], o.axes, o.dtype))
    return out


def once(g: Graph) -> Graph:
    """The graph in which equal expressions are one value."""
    known: dict[Any, Value] = {}

    def key(x: Any) -> Any:
        return x.number if isinstance(x, Axis) else tuple(map(key, x)) if isinstance(x, tuple) else str(x)

    def change(v: Value) -> Value:
        if v.op == "input":
            return v
        args = tuple(a.number for a in v.args)
        return known.setdefault((v.op, args, tuple((n, key(x)) for n, x in sorted(v.more.items()))), v)

    return mapped(g, change)


def _times(x: Value | None, y: Value | None, op: str = "mul") -> Value | None:
    if y is None:
        return x
    if x is None:
        return y if op == "mul" else binary("div", 1.0, y)
    return binary(op, x, y)


def split_factors(v: Value, k: Axis) -> tuple[Value | None, Value | None]:
    """A product as (factors that have the axis, factors that do not)."""
    if k not in v.axes:
        return None, v
    if v.op in ("mul", "div"):
        (xi, xo), (yi, yo) = (split_factors(a, k) for a in v.args)
        return _times(xi, yi, v.op), _times(xo, yo, v.op)
    return v, None


def scale_past_dot(g: Graph) -> tuple[Graph, list[str]]:
    """``dot(x * f, w, k)`` becomes ``dot(x, w, k) * f`` for every factor f without the axis k.

    The operand then is read once, and is not rounded again after it was scaled. Returns what was moved, in words.
    """
    moved: list[str] = []

    def change(v: Value) -> Value:
        if v.op != "dot" or "also" in v.more:
            return v
        k = v.more["axis"]
        (x, xo), (y, yo) = (split_factors(a, k) for a in v.args)
        out = _times(xo, yo)
        if x is None or y is None or out is None:
            return v
        moved.append(f"a factor over [{', '.join(a.name for a in out.axes)}] of the product along {k.name}")
        inner = Value("dot", [x, y], tuple(a for a in _axes(x, y) if a is not k), axis=k)
        inner.line = v.line
        return binary("mul", inner, out)

    return once(mapped(g, change)), moved


def reciprocals(g: Graph) -> tuple[Graph, list[str]]:
    """``x / s`` becomes ``x * rcp(s)`` for every s that has fewer axes than x, such as a row's sum.

    A division of each element becomes one reciprocal a row and a product; results may differ in their last bits.
    Returns what was changed, in words.
    """
    changed: list[str] = []

    def change(v: Value) -> Value:
        if v.op != "div" or not v.args[1].axes or not set(v.args[1].axes) < set(v.args[0].axes):
            return v
        x, y = v.args
        changed.append(f"quotients by a value over [{', '.join(a.name for a in y.axes)}]")
        inverse = unary("rcp", y)
        inverse.line = v.line
        return binary("mul", x, inverse)

    return mapped(g, change), changed


def _axes(x: Value, y: Value) -> tuple[Axis, ...]:
    return tuple(sorted({*x.axes, *y.axes}, key=lambda a: a.number))
