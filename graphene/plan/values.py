"""Values of a graph: operators on tensors whose axes have names.

An axis is a name and a size. A value has a set of axes; operators broadcast by name, and reductions and products name
the axis that they take away.
"""

from __future__ import annotations

import itertools
import keyword
import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene._core import IntExpr

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphene.dtypes import DType

__all__ = [
    "ACTIVATIONS", "BINARY", "MOST", "REDUCTIONS", "UNARY", "Axis", "Value", "argmax", "as_value", "at", "axes",
    "binary", "checked_dtype", "dot", "identifier", "number", "ordered", "reduce", "refuse", "unary", "where", "window",
]  # fmt: skip

_NUMBERS = itertools.count()
MOST = 1 << 31  # no axis is as long

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


def identifier(name: Any, what: str) -> str:
    """A name that Python takes. Raises VerifyError PLAN_GRAPH."""
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
        identifier(name, "an axis")
        if isinstance(size, bool) or (isinstance(size, int) and not 0 < size < MOST):
            refuse("the size of an axis is positive, and less than 2^31", f"axis: {name}", f"got: {size!r}")
        if isinstance(size, int):
            made.append(Axis(name, size, name.upper()))
        elif isinstance(size, (IntExpr, str)) and str(size).isidentifier():
            made.append(Axis(name, None, str(size)))
        else:
            refuse("the size of an axis is an integer or a symbol", f"axis: {name}", f"got: {size!r}")
    return made[0] if len(made) == 1 else tuple(made)


def ordered(*of: Sequence[Axis]) -> tuple[Axis, ...]:
    """Axes, each once, in the order in which they were made."""
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
        return Value("round", [self], self.axes, dtype=checked_dtype(dtype))

    def __bool__(self) -> bool:
        refuse("a value of a graph has no truth value in Python", fix="use plan.where to choose elements")
        return False

    @property
    def name(self) -> str:
        """The name of an input."""
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


def checked_dtype(dtype: Any) -> Any:
    """A dtype. Raises TypeError for anything else."""
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
    return Value(op, [x, y], ordered(x.axes, y.axes))


def where(condition: Any, x: Any, y: Any) -> Value:
    """The value x where the condition (a comparison of values) holds, else y."""
    args = [as_value(v) for v in (condition, x, y)]
    if args[0].op not in ("lt", "le", "eq"):
        refuse("a condition is a comparison of values", f"got: {args[0]!r}")
    return Value("where", args, ordered(*(a.axes for a in args)))


def reduce(op: str, x: Any, axis: Axis) -> Value:
    """A reduction of a value along one of its axes."""
    x = as_value(x)
    if not isinstance(axis, Axis) or axis not in x.axes:
        refuse("a reduction along an axis that the value does not have",
               f"want: one of {', '.join(a.name for a in x.axes)}", f"got: {axis!r}")  # fmt: skip
    return Value(op, [x], tuple(a for a in x.axes if a is not axis), axis=axis)


def argmax(x: Any, axis: Axis) -> Value:
    """The index of the largest element along an axis, the least one of equals."""
    return reduce("argmax", x, axis)


def at(x: Any, axis: Axis, index: Any) -> Value:
    """The element along an axis at an index, which is an input of integers without that axis.

    It is not a number where the index lies outside. Raises VerifyError PLAN_GRAPH.
    """
    x, index = as_value(x), as_value(index)
    if not isinstance(axis, Axis) or axis not in x.axes or axis in index.axes:
        known = ", ".join(a.name for a in x.axes if a not in index.axes)
        refuse("an element along an axis that the value lacks, or the index has", f"want: {known}", f"got: {axis!r}")
    if index.op != "input" or str(index.more["dtype"]) != "i32":
        refuse("an index is an input of gr.i32", f"got: {index!r}")
    return Value("at", [x, index], tuple(a for a in ordered(x.axes, index.axes) if a is not axis), axis=axis)


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
    return Value("dot", [x, y], tuple(a for a in ordered(x.axes, y.axes) if a not in along), axis=along[-1], **more)


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
    axes = ordered(tuple(a for a in x.axes if a is not along), (to, over))
    return Value("window", [x], axes, along=along, to=to, over=over, stride=stride, padding=padding)
