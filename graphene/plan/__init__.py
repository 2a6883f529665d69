"""A planner: from a few lines of tensor operators to the Python source of an explicit kernel, with every reason.

``with plan.graph("name") as g:`` says what is computed; ``g.plan("sm_80", m=16)`` decides how, and gives the source of
an ordinary kernel on public names, which a person can take over (docs/planner.md). Choices by algorithm that a kernel
written by hand can use are `swizzle`, `slots`, `pack` and `layouts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.arrange import Alive, TileAccess, fragments, matrices, pack, vectors
from graphene.arrange import arrange as swizzle
from graphene.arrange import choose as layouts
from graphene.arrange import fewest_barriers as slots
from graphene.plan.decisions import Decision
from graphene.plan.graph import Axis, Graph, Value, argmax, at, axes, binary, dot, graph, reduce, unary, where, window
from graphene.plan.measure import PlanTimes, measure
from graphene.plan.planned import Checked, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Alive", "Axis", "Checked", "Decision", "Graph", "Plan", "PlanTimes", "TileAccess", "Value", "abs", "argmax", "at",
    "axes",
    "dot", "erf", "exp", "exp2", "fragments", "gelu", "gelu_tanh", "graph", "layouts", "log", "log2", "logsumexp",
    "matrices", "max", "maximum", "mean", "measure", "min", "minimum", "pack", "rcp", "relu", "rsqrt", "sigmoid",
    "silu", "slots", "softmax", "sqrt", "sum", "swizzle", "tanh", "vectors", "where", "window",
]  # fmt: skip


def _function(op: str, does: str) -> Callable[[Any], Value]:
    def function(x: Any) -> Value:
        return unary(op, x)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"{does}, of each element of a value."
    return function


abs = _function("abs", "The magnitude")
erf = _function("erf", "The error function")
exp = _function("exp", "e to its power")
exp2 = _function("exp2", "2 to its power")
gelu = _function("gelu", "x/2 * (1 + erf(x / sqrt 2))")
gelu_tanh = _function("gelu_tanh", "PyTorch's approximation of gelu by tanh")
log = _function("log", "The natural logarithm")
log2 = _function("log2", "The logarithm to the base 2")
rcp = _function("rcp", "The reciprocal")
relu = _function("relu", "The value where it is positive, else 0")
rsqrt = _function("rsqrt", "The reciprocal of the square root")
sigmoid = _function("sigmoid", "1 / (1 + e^-x)")
silu = _function("silu", "x * sigmoid(x)")
sqrt = _function("sqrt", "The square root")
tanh = _function("tanh", "The hyperbolic tangent")


def maximum(x: Any, y: Any) -> Value:
    """The larger of two values, element by element."""
    return binary("max", x, y)


def minimum(x: Any, y: Any) -> Value:
    """The smaller of two values, element by element."""
    return binary("min", x, y)


def sum(x: Any, axis: Axis) -> Value:
    """The sum along an axis."""
    return reduce("sum", x, axis)


def mean(x: Any, axis: Axis) -> Value:
    """The mean along an axis."""
    return reduce("mean", x, axis)


def max(x: Any, axis: Axis) -> Value:
    """The largest element along an axis."""
    return reduce("max", x, axis)


def min(x: Any, axis: Axis) -> Value:
    """The smallest element along an axis."""
    return reduce("min", x, axis)


def softmax(x: Value, axis: Axis) -> Value:
    """The exponentials of a value, less its maximum, divided by their sum along an axis."""
    e = exp(x - max(x, axis))
    return e / sum(e, axis)


def logsumexp(x: Value, axis: Axis) -> Value:
    """The logarithm of the sum of exponentials along an axis."""
    top = max(x, axis)
    return log(sum(exp(x - top), axis)) + top
