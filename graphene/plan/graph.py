"""What a plan computes: values between inputs and outputs. Nothing here decides how.

The graph's own meaning (`evaluate`) is NumPy in float64.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene import dtypes as _dtypes
from graphene.plan.decisions import refuse_pin
from graphene.plan.evaluate import check_array, evaluate
from graphene.plan.values import (
    ACTIVATIONS,
    BINARY,
    MOST,
    REDUCTIONS,
    UNARY,
    Axis,
    Value,
    argmax,
    as_value,
    at,
    axes,
    binary,
    checked_dtype,
    dot,
    identifier,
    number,
    ordered,
    reduce,
    refuse,
    unary,
    where,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphene.dtypes import DType

__all__ = [
    "ACTIVATIONS", "MOST", "REDUCTIONS", "Axis", "Graph", "Output", "Value", "argmax", "as_value", "at", "axes",
    "binary", "dot", "graph", "number", "ordered", "reduce", "refuse", "unary", "where", "window",
]  # fmt: skip

PLANNERS: list[Callable[[Graph, Any, dict[str, Any], dict[str, int]], Any]] = []  # graphene.plan.planned enters itself
_GRAPH: ContextVar[Graph | None] = ContextVar("graph", default=None)


@dataclass(frozen=True)
class Output:
    """A value that is stored, with its axes in the order of memory."""

    name: str
    value: Value
    axes: tuple[Axis, ...]
    dtype: Any


class Graph:
    """Inputs, outputs, and what lies between them. ``with plan.graph("name") as g:`` opens one."""

    def __init__(self, name: str) -> None:
        self.name = identifier(name, "a graph")
        self.inputs: list[Value] = []
        self.outputs: list[Output] = []

    def __enter__(self) -> Graph:
        if _GRAPH.get() is not None:
            refuse("a graph inside of another one")
        self._token = _GRAPH.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _GRAPH.reset(self._token)

    def __reduce__(self) -> tuple[Any, ...]:  # values have numbers of this process
        return Graph.from_json, (self.to_json(),)

    def _new_name(self, name: str, what: str) -> str:
        identifier(name, what)
        if name in (*(i.name for i in self.inputs), *(o.name for o in self.outputs)):
            refuse("two tensors of a graph have one name", f"got: {name!r}")
        return name

    def input(self, name: str, axes: Sequence[Axis] | Axis, dtype: DType) -> Value:
        """A tensor that is read, row-major over its axes in this order. Raises VerifyError PLAN_GRAPH."""
        stored = _stored(axes)
        value = Value("input", [], ordered(stored), name=self._new_name(name, "an input"), stored=stored,
                      dtype=checked_dtype(dtype))  # fmt: skip
        self.inputs.append(value)
        return value

    def output(self, name: str, value: Any, axes: Sequence[Axis] | Axis, dtype: DType) -> None:
        """A value that is stored, row-major over its axes in this order. Raises VerifyError PLAN_GRAPH."""
        stored, value = _stored(axes), as_value(value)
        if set(stored) != set(value.axes):
            refuse(f"the axes of output {name} are not those of its value",
                   f"want: {', '.join(a.name for a in value.axes)}",
                   f"got: {', '.join(a.name for a in stored)}")  # fmt: skip
        self.outputs.append(Output(self._new_name(name, "an output"), value, stored, checked_dtype(dtype)))

    def plan(self, arch: Any = "sm_80", pin: Mapping[str, Any] | None = None, **sizes: int) -> Any:
        """Decides how to compute the outputs on a device: a ``plan.Plan``.

        `arch`: an architecture, or a ``graphene.select.Device``. `sizes`: of the axes whose sizes are known at a launch
        only, those that the plan is for; it computes any others, too. `pin`: decisions by their path, such as
        ``{"tile.n": 64}``. Raises SelectError PLAN_NONE where no plan is known, PLAN_PIN where a pin cannot hold;
        VerifyError PLAN_GRAPH.
        """
        if pin is not None and not (isinstance(pin, Mapping) and all(isinstance(k, str) for k in pin)):
            raise TypeError(f'pin= takes decisions by their path, such as {{"tile.n": 64}}, got {pin!r}')
        for path, value in (pin or {}).items():
            if not isinstance(value, (str, Real)):
                refuse_pin(path, value, "want: a number, True, False or a text")
        for name, n in sizes.items():
            if not isinstance(n, int) or isinstance(n, bool) or not 0 < n < MOST:
                refuse("the size of an axis is an integer from 1 to 2^31 - 1", f"axis: {name}", f"got: {n!r}")
        return PLANNERS[-1](self, arch, dict(pin or {}), sizes)

    def axes(self) -> tuple[Axis, ...]:
        """All axes that occur."""
        return ordered(*(v.axes for o in self.outputs for v in o.value.walk()), *(i.axes for i in self.inputs))

    def evaluate(self, arrays: Mapping[str, Any], rounded: bool = True) -> dict[str, Any]:
        """The outputs as NumPy computes them in float64 from arrays by name: the meaning, before anything is decided.

        Types of inputs and outputs do not matter; ``.round`` does, unless `rounded` is False. Raises TypeError for
        other things than arrays; VerifyError PLAN_GRAPH for arrays that are missing or have other shapes.
        """
        import numpy as np

        if not isinstance(arrays, Mapping):
            raise TypeError(f"evaluate takes arrays by the names of inputs, got {arrays!r}")
        sizes: dict[Axis, int] = {}
        for v in self.inputs:
            check_array(v, arrays, sizes)
        results: dict[int, Any] = {}
        for o in self.outputs:
            for v in o.value.walk():
                if v.number not in results:
                    results[v.number] = evaluate(v, [(results[a.number], a.axes) for a in v.args], arrays, rounded)
        out = {}
        for o in self.outputs:
            order = [o.value.axes.index(a) for a in o.axes]
            out[o.name] = np.transpose(results[o.value.number], order)
        return out

    def to_json(self) -> dict[str, Any]:
        """The graph as plain data."""
        all_axes = self.axes()
        values: list[Value] = list(self.inputs)
        for o in self.outputs:
            values += [v for v in o.value.walk() if v.number not in {x.number for x in values}]
        at = {v.number: i for i, v in enumerate(values)}
        nodes = []
        for v in values:
            more = {k: (x.name if isinstance(x, Axis) else [a.name for a in x] if isinstance(x, tuple) else
                        str(x) if isinstance(x, _core.DType) else x) for k, x in v.more.items()}  # fmt: skip
            nodes.append({"op": v.op, "args": [at[a.number] for a in v.args], **more})
        return {
            "name": self.name,
            "axes": [{"name": a.name, "size": a.symbol if a.size is None else a.size} for a in all_axes],
            "nodes": nodes,
            "outputs": [{"name": o.name, "value": at[o.value.number], "axes": [a.name for a in o.axes],
                         "dtype": str(o.dtype)} for o in self.outputs],
        }  # fmt: skip

    @staticmethod
    def from_json(data: Any) -> Graph:
        """Reads what `to_json` made, from a dict or its text. Raises VerifyError PLAN_GRAPH."""
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except (ValueError, RecursionError) as e:
                refuse("a graph's JSON that is malformed", f"got: {e}")
        try:
            return _read(data)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError, OverflowError) as e:
            refuse("JSON of something else than a graph", f"got: {type(e).__name__}: {e}")
            raise


def graph(name: str) -> Graph:
    """A graph of this name, to be entered by ``with``."""
    return Graph(name)


def _stored(axes: Sequence[Axis] | Axis) -> tuple[Axis, ...]:
    if not isinstance(axes, (Axis, list, tuple)):
        raise TypeError(f"the axes of a tensor are a list of them, made by plan.axes, got {axes!r}")
    stored = (axes,) if isinstance(axes, Axis) else tuple(axes)
    for a in stored:
        if not isinstance(a, Axis):
            raise TypeError(f"axes are made by plan.axes, got {a!r}")
    if not stored or len(set(stored)) != len(stored) or len({a.name for a in stored}) != len(stored):
        refuse("a tensor needs axes, each once", f"got: {[a.name for a in stored]}")
    return stored


def _read(data: Any) -> Graph:
    g = Graph(data["name"])
    by_name = {}
    for a in data["axes"]:
        size = a["size"]
        if isinstance(size, str):
            identifier(size, "a size")
        by_name[a["name"]] = axes(**{identifier(a["name"], "an axis"): size})
    values: list[Value] = []
    for n in data["nodes"]:
        op, args = n["op"], [values[i] for i in n["args"]]
        if op == "input":
            dtype = _known_dtype(n["dtype"])
            values.append(g.input(n["name"], [by_name[a] for a in n["stored"]], dtype))
            if "of" in n:  # an input that is read in several ways
                values[-1].more["of"] = identifier(n["of"], "an input")
        elif op == "number":
            values.append(number(float(n["value"])))
        elif op == "round":
            values.append(args[0].round(_known_dtype(n["dtype"])))
        elif op == "where":
            values.append(where(*args))
        elif op == "dot":
            x, y = args
            values.append(dot(x, y, [by_name[a] for a in (*n.get("also", ()), n["axis"])]))
        elif op == "window":
            along, to, over = by_name[n["along"]], by_name[n["to"]], by_name[n["over"]]
            values.append(window(args[0], along, to, over, n["stride"], n["padding"]))
        elif op == "at":
            x, index = args
            values.append(at(x, by_name[n["axis"]], index))
        elif "axis" in n and op in (*REDUCTIONS, "argmax"):
            values.append(reduce(op, args[0], by_name[n["axis"]]))
        elif op in UNARY:
            values.append(unary(op, *args))
        elif op in BINARY:
            values.append(binary(op, *args))
        else:
            refuse("an operator that graphs do not have", f"got: {op!r}")
    for o in data["outputs"]:
        g.output(o["name"], values[o["value"]], [by_name[a] for a in o["axes"]], _known_dtype(o["dtype"]))
    return g


def _known_dtype(name: Any) -> Any:
    known = {n: getattr(_dtypes, n) for n in ("fp16", "bf16", "fp32", "fp64", "i32")}
    if name not in known:
        refuse("a type that graphs do not have", f"got: {name!r}")
    return known[name]
