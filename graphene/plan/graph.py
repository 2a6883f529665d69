"""What a plan computes: operators on tensors whose axes have names. Nothing here decides how.

An axis is a name and a size. A value has a set of axes; operators broadcast by name, and reductions and products name
the axis that they take away. The graph's own meaning (`evaluate`) is NumPy in float64.
"""

from __future__ import annotations

import itertools
import json
import keyword
import math
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene import dtypes as _dtypes
from graphene._core import IntExpr
from graphene.plan.decisions import refuse_pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from graphene.dtypes import DType

__all__ = ["ACTIVATIONS", "Axis", "Graph", "Value", "axes", "binary", "graph", "number", "reduce", "refuse", "unary"]

_NUMBERS = itertools.count()
PLANNERS: list[Callable[[Graph, Any, dict[str, Any], dict[str, int]], Any]] = []  # graphene.plan.planned enters itself
MOST = 1 << 31  # no axis is as long
_GRAPH: ContextVar[Graph | None] = ContextVar("graph", default=None)

# Functions of one number, which graphene.kernels.epilogues has under these names.
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "sigmoid", "silu", "tanh")
UNARY = ("neg", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "rcp", "erf", *ACTIVATIONS)
BINARY = ("add", "sub", "mul", "div", "max", "min", "lt", "le", "eq")
REDUCTIONS = ("sum", "mean", "max", "min")


def refuse(message: str, *details: str, fix: str = "") -> Any:
    """Raises VerifyError PLAN_GRAPH."""
    _core.fail("PLAN_GRAPH", message, list(details), fix)


def line_of_user() -> str:
    """Where the Python that calls graphene.plan stands: "model.py:12"."""
    frame = sys._getframe(1)
    while frame is not None and "graphene/plan/" in frame.f_code.co_filename.replace("\\", "/"):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


@dataclass(frozen=True, eq=False)
class Axis:
    """A name and a size; with None the size is known at a launch, under the name `symbol`."""

    name: str
    size: int | None
    symbol: str
    number: int = field(default_factory=lambda: next(_NUMBERS))

    def __repr__(self) -> str:
        return f"{self.name}={self.symbol if self.size is None else self.size}"


def _identifier(name: Any, what: str) -> str:
    plain = isinstance(name, str) and name.isidentifier() and name.isascii() and not name.startswith("_")
    if not plain or keyword.iskeyword(name) or name in ("gr", "means", "result"):
        refuse(f"{what} needs a name that Python takes", f"got: {name!r}")
    return str(name)


def axes(**sizes: Any) -> Any:
    """Axes by name, ``m, k = plan.axes(m=gr.sym("M"), k=4096)``: a single one, or a tuple of them in this order.

    A size is a positive integer, gr.sym("M") or the text "M" for one that is known at a launch. Raises VerifyError
    PLAN_GRAPH.
    """
    made = []
    for name, size in sizes.items():
        _identifier(name, "an axis")
        if isinstance(size, bool) or (isinstance(size, int) and not 0 < size < MOST):
            refuse("the size of an axis is positive, and less than 2^31", f"axis: {name}", f"got: {size!r}")
        if isinstance(size, int):
            made.append(Axis(name, size, name.upper()))
        elif isinstance(size, (IntExpr, str)) and str(size).isidentifier():
            made.append(Axis(name, None, str(size)))
        else:
            refuse("the size of an axis is an integer or a symbol", f"axis: {name}", f"got: {size!r}")
    return made[0] if len(made) == 1 else tuple(made)


def _ordered(*of: Sequence[Axis]) -> tuple[Axis, ...]:
    found = {a for part in of for a in part}
    return tuple(sorted(found, key=lambda a: a.number))


class Value:
    """A tensor of a graph. ``axes``: in the order in which they were made. Operators build larger expressions."""

    def __init__(self, op: str, args: Sequence[Value], axes: Sequence[Axis], **more: Any) -> None:
        self.op, self.args, self.axes, self.more = op, tuple(args), tuple(axes), more
        self.line = line_of_user()
        self.number = next(_NUMBERS)

    def __add__(self, other: Any) -> Value:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return binary("div", other, self)

    def __neg__(self) -> Value:
        return unary("neg", self)

    def __lt__(self, other: Any) -> Value:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return binary("le", self, other)

    def round(self, dtype: DType) -> Value:
        """The value rounded to a type, as if it had been stored."""
        return Value("round", [self], self.axes, dtype=_dtype(dtype))

    def __bool__(self) -> bool:
        refuse("a value of a graph has no truth value in Python", fix="use plan.where to choose elements")
        return False

    @property
    def name(self) -> str:
        """Of an input."""
        return str(self.more["name"])

    def walk(self) -> Iterator[Value]:
        """Every value that it is made of, operands first, each once."""
        seen: set[int] = set()
        stack: list[tuple[Value, bool]] = [(self, False)]
        while stack:
            v, done = stack.pop()
            if done:
                yield v
            elif v.number not in seen:
                seen.add(v.number)
                stack.append((v, True))
                stack.extend((a, False) for a in reversed(v.args))

    def __repr__(self) -> str:
        return f"{self.op}[{', '.join(a.name for a in self.axes)}]"


def _dtype(dtype: Any) -> Any:
    if not isinstance(dtype, _core.DType):
        raise TypeError(f"a dtype such as gr.fp16 is needed, got {dtype!r}")
    return dtype


def number(value: float) -> Value:
    """A constant."""
    if math.isnan(value):
        refuse("a constant that is not a number")
    return Value("number", [], [], value=float(value))


def as_value(x: Any) -> Value:
    """A value, or a Python number as one. Raises TypeError for anything else."""
    if isinstance(x, Value):
        return x
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        try:
            return number(x)
        except OverflowError:
            refuse("a constant that fp64 cannot hold", f"got: an integer of {int(x).bit_length()} bits")
    raise TypeError(f"a value of a graph or a number is needed, got {x!r}")


def unary(op: str, x: Any) -> Value:
    """A pointwise function of one value."""
    x = as_value(x)
    return Value(op, [x], x.axes)


def binary(op: str, x: Any, y: Any) -> Value:
    """A pointwise function of two values, which broadcast by the names of their axes."""
    x, y = as_value(x), as_value(y)
    return Value(op, [x, y], _ordered(x.axes, y.axes))


def where(condition: Any, x: Any, y: Any) -> Value:
    """X where the condition (a comparison of values) holds, else y."""
    args = [as_value(v) for v in (condition, x, y)]
    if args[0].op not in ("lt", "le", "eq"):
        refuse("a condition is a comparison of values", f"got: {args[0]!r}")
    return Value("where", args, _ordered(*(a.axes for a in args)))


def reduce(op: str, x: Any, axis: Axis) -> Value:
    """A reduction of a value along one of its axes."""
    x = as_value(x)
    if not isinstance(axis, Axis) or axis not in x.axes:
        refuse("a reduction along an axis that the value does not have",
               f"want: one of {', '.join(a.name for a in x.axes)}", f"got: {axis!r}")  # fmt: skip
    return Value(op, [x], tuple(a for a in x.axes if a is not axis), axis=axis)


def dot(x: Any, y: Any, axis: Axis | Sequence[Axis]) -> Value:
    """The sum of ``x * y`` along an axis that both have, or several: a matrix product over their other axes.

    Raises VerifyError PLAN_GRAPH.
    """
    x, y = as_value(x), as_value(y)
    along = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    for a in along or (axis,):
        for v in (x, y):
            if not isinstance(a, Axis) or a not in v.axes:
                refuse("a product along an axis that one of the operands lacks", f"operand: {v!r}", f"got: {a!r}")
    more = {"also": along[:-1]} if len(along) > 1 else {}
    return Value("dot", [x, y], tuple(a for a in _ordered(x.axes, y.axes) if a not in along), axis=along[-1], **more)


def window(x: Any, along: Axis, to: Axis, over: Axis, stride: int = 1, padding: int = 0) -> Value:
    """The value in windows of an axis, ``out[to, over] = x[to * stride + over - padding]``, with zeros outside of it.

    `along`: an axis of the value, of a known size; `over`: the places of a window; `to`: the windows, of which there
    are ``(along + 2 * padding - over) // stride + 1``, as in PyTorch. Raises VerifyError PLAN_GRAPH.
    """
    x = as_value(x)
    if not isinstance(along, Axis) or along not in x.axes:
        refuse("windows of an axis that the value does not have",
               f"want: one of {', '.join(a.name for a in x.axes)}", f"got: {along!r}")  # fmt: skip
    for name, n, least in (("stride", stride, 1), ("padding", padding, 0)):
        if not isinstance(n, int) or isinstance(n, bool) or not least <= n < MOST:
            refuse(f"the {name} of windows is an integer from {least} on", f"got: {n!r}")
    for a in (to, over):
        if not isinstance(a, Axis) or a in x.axes or to is over:
            refuse("windows need two new axes, which count them and their places", f"got: {a!r}")
    if along.size is None or to.size is None or over.size is None:
        refuse("windows are of axes with known sizes", f"got: {along!r}, {to!r}, {over!r}")
    length, places = along.size or 0, over.size or 0
    if padding >= places:
        refuse(f"windows of {places} places with a padding of {padding} at each end: some would see zeros alone",
               f"want: at most {places - 1}", f"got: {padding}", fix="pad the input itself")  # fmt: skip
    if places > length + 2 * padding:
        refuse(f"windows of {places} places are longer than {along!r} with a padding of {padding} at each end",
               f"want: at most {length + 2 * padding} places", f"got: {places}")  # fmt: skip
    count = (length + 2 * padding - places) // stride + 1
    if to.size != count:
        formula = f"({length} + 2 * {padding} - {places}) // {stride} + 1"
        refuse(f"axis {to.name} does not count the windows of {along!r}",
               f"want: {formula} = {count}", f"got: {to.size}", fix=f"plan.axes({to.name}={count})")  # fmt: skip
    axes = _ordered(tuple(a for a in x.axes if a is not along), (to, over))
    return Value("window", [x], axes, along=along, to=to, over=over, stride=stride, padding=padding)


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
        self.name = _identifier(name, "a graph")
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
        _identifier(name, what)
        if name in (*(i.name for i in self.inputs), *(o.name for o in self.outputs)):
            refuse("two tensors of a graph have one name", f"got: {name!r}")
        return name

    def input(self, name: str, axes: Sequence[Axis] | Axis, dtype: DType) -> Value:
        """A tensor that is read, row-major over its axes in this order. Raises VerifyError PLAN_GRAPH."""
        stored = _stored(axes)
        value = Value("input", [], _ordered(stored), name=self._new_name(name, "an input"), stored=stored,
                      dtype=_dtype(dtype))  # fmt: skip
        self.inputs.append(value)
        return value

    def output(self, name: str, value: Any, axes: Sequence[Axis] | Axis, dtype: DType) -> None:
        """A value that is stored, row-major over its axes in this order. Raises VerifyError PLAN_GRAPH."""
        stored, value = _stored(axes), as_value(value)
        if set(stored) != set(value.axes):
            refuse(f"the axes of output {name} are not those of its value",
                   f"want: {', '.join(a.name for a in value.axes)}",
                   f"got: {', '.join(a.name for a in stored)}")  # fmt: skip
        self.outputs.append(Output(self._new_name(name, "an output"), value, stored, _dtype(dtype)))

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
        return _ordered(*(v.axes for o in self.outputs for v in o.value.walk()), *(i.axes for i in self.inputs))

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
            _check_array(v, arrays, sizes)
        results: dict[int, Any] = {}
        for o in self.outputs:
            for v in o.value.walk():
                if v.number not in results:
                    results[v.number] = _evaluate(v, [(results[a.number], a.axes) for a in v.args], arrays, rounded)
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
            _identifier(size, "a size")
        by_name[a["name"]] = axes(**{_identifier(a["name"], "an axis"): size})
    values: list[Value] = []
    for n in data["nodes"]:
        op, args = n["op"], [values[i] for i in n["args"]]
        if op == "input":
            dtype = _known_dtype(n["dtype"])
            values.append(g.input(n["name"], [by_name[a] for a in n["stored"]], dtype))
            if "of" in n:  # an input that is read in several ways
                values[-1].more["of"] = _identifier(n["of"], "an input")
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
        elif "axis" in n and op in REDUCTIONS:
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


# NumPy


def _erf(x: Any) -> Any:
    import numpy as np

    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _formulas() -> dict[str, Callable[..., Any]]:
    import numpy as np

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def gelu_tanh(x: Any) -> Any:
        return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))

    return {
        "neg": np.negative, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2,
        "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: 1 / x, "tanh": np.tanh, "erf": _erf,
        "relu": lambda x: np.maximum(x, 0), "sigmoid": sigmoid, "silu": lambda x: x * sigmoid(x),
        "gelu": lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))), "gelu_tanh": gelu_tanh,
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
        "lt": np.less, "le": np.less_equal, "eq": np.equal,
    }  # fmt: skip


def _spread(x: Any, of: tuple[Axis, ...], to: tuple[Axis, ...]) -> Any:
    """The array with an axis of extent 1 where it lacks one of `to`."""
    return x.reshape([x.shape[of.index(a)] if a in of else 1 for a in to])


def _windows(v: Value, x: Any, of: tuple[Axis, ...]) -> Any:
    """The windows of an array, whose own size decides how many there are."""
    import numpy as np

    m, at = v.more, of.index(v.more["along"])
    size, places = x.shape[at], m["over"].size
    count = (size + 2 * m["padding"] - places) // m["stride"] + 1
    index = np.arange(count)[:, None] * m["stride"] + np.arange(places) - m["padding"]
    inside = (index >= 0) & (index < size)
    taken = np.take(x, np.where(inside, index, 0), axis=at)
    taken = np.where(inside.reshape([1] * at + list(inside.shape) + [1] * (x.ndim - at - 1)), taken, 0.0)
    now = [*of[:at], m["to"], m["over"], *of[at + 1 :]]
    return np.transpose(taken, [now.index(a) for a in v.axes])


def _check_array(v: Value, arrays: Mapping[str, Any], sizes: dict[Axis, int]) -> None:
    """Refuses other things than an array of an input. `sizes`: those that arrays gave to axes, which must agree."""
    import numpy as np

    name, stored = v.more.get("of", v.name), v.more["stored"]
    if name not in arrays:
        refuse("an input without an array", f"want: {name}", f"got: {', '.join(map(str, arrays))}")
    try:
        shape = np.asarray(arrays[name], np.float64).shape
    except (TypeError, ValueError, OverflowError) as e:
        raise TypeError(f"the array of input {name} must be of numbers: {e}") from None
    known = [a.size for a in stored]
    if None not in known and len(shape) != len(stored):
        fits = math.prod(shape) == math.prod(n or 1 for n in known)  # imported: dimensions as digits
    else:
        pairs = zip(stored, shape, strict=False)
        fits = len(shape) == len(stored) and all(n == sizes.setdefault(a, n) for a, n in pairs)
    if not fits:
        want = ", ".join(f"{a.name} = {sizes.get(a, a.symbol if a.size is None else a.size)}" for a in stored)
        refuse(f"the array of input {name} has another shape", f"want: {want}", f"got: {list(shape)}")


def _evaluate(v: Value, args: list[tuple[Any, tuple[Axis, ...]]], arrays: Mapping[str, Any], rounded: bool) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):
        if v.op == "input":
            x = np.asarray(arrays[v.more.get("of", v.name)], np.float64)
            if all(a.size is not None for a in v.axes) and x.ndim != len(v.axes):  # imported: dimensions as digits
                x = x.reshape([a.size or 1 for a in v.more["stored"]])
            return np.transpose(x, [v.more["stored"].index(a) for a in v.axes])
        if v.op == "number":
            return np.float64(v.more["value"])
        if v.op == "round":
            if not rounded:
                return args[0][0]
            from graphene.judge.formats import nearest

            return nearest(args[0][0], str(v.more["dtype"]))
        if v.op == "dot":
            every = _ordered(*(a for _, a in args))
            letters = {a: chr(97 + i) for i, a in enumerate(every)}
            ins = ",".join("".join(letters[a] for a in of) for _, of in args)
            out = "".join(letters[a] for a in v.axes)
            return np.einsum(f"{ins}->{out}", *(x for x, _ in args), optimize=True)
        if v.op == "window":
            ((x, of),) = args
            return _windows(v, x, of)
        if "axis" in v.more:
            ((x, of),) = args
            name = {"max": "nanmax", "min": "nanmin"}.get(v.op, v.op)  # a number, where there is one, as on a GPU
            return getattr(np, name)(x, axis=of.index(v.more["axis"]))
        spread = [_spread(x, of, v.axes) for x, of in args]
        return np.where(*spread) if v.op == "where" else _formulas()[v.op](*spread)
