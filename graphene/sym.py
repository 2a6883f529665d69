"""Symbolic integers: sizes known at launch, and the index arithmetic made of them."""

from __future__ import annotations

import builtins
import numbers
from typing import Any

from graphene._core import IntExpr, sym_max, sym_min
from graphene._core import ceil_div as _ceil_div
from graphene._core import sym as _sym

__all__ = ["IntExpr", "ceil_div", "max", "min", "sm_count", "sym"]


def _no_quotient(x: Any, y: Any) -> Any:
    if not isinstance(y, (int, float, IntExpr)):
        return NotImplemented  # registers divide by integers
    raise TypeError("sizes and coordinates are integers: write a // b, which rounds down, or gr.ceil_div(a, b)")


for _name in ("__truediv__", "__rtruediv__"):
    setattr(IntExpr, _name, _no_quotient)


def sym(names: str, *, multiple_of: int = 1, min: int = 0, max: int | None = None) -> Any:
    """Symbolic sizes: integers that become kernel parameters, read off the argument shapes at launch.

    `names` holds one or more names separated by spaces or commas; the result is one IntExpr for one name, else a tuple
    of them. The facts hold for every name and are checked at launch: the value is a multiple of `multiple_of` and lies
    from `min` to `max`, both inclusive (`max=None`: no limit). Two symbols of one name and equal facts are the same.

    >>> M, N = gr.sym("M N")
    >>> K = gr.sym("K", multiple_of=8, max=65536)

    Raises LayoutError SYM_FACTS for facts that no integer meets, for a malformed name, and for a name given twice.
    """
    made = _sym(names, multiple_of, min, max)
    return made[0] if len(made) == 1 else tuple(made)


def sm_count() -> Any:
    """The number of multiprocessors of the device that a kernel is launched on: a symbol that the launch fills in."""
    return sym("sm_count", min=1, max=1024)


def ceil_div(a: IntExpr | int, b: IntExpr | int) -> Any:
    """`a / b` rounded up: how many tiles of size `b` cover `a`. An int if it is known, else an IntExpr.

    Raises LayoutError SYM_DIV_ZERO if `b` is 0.
    """
    return _ceil_div(a, b)


def min(*values: Any) -> Any:
    """The smallest of some integers, any of them symbolic: an int if it is known, else an IntExpr.

    With no symbolic integer among them, Python's `min`.
    """
    if not any(isinstance(v, IntExpr) for v in values):
        if len(values) > 1 and not all(isinstance(v, numbers.Real) for v in values):
            raise TypeError(f"min: an operand must be an integer or a number, got {values!r}")
        return builtins.min(*values)
    result = values[0]
    for v in values[1:]:
        result = sym_min(result, v)
    return result


def max(*values: Any) -> Any:
    """The largest of some integers, any of them symbolic: an int if it is known, else an IntExpr.

    With no symbolic integer among them, Python's `max`.
    """
    if not any(isinstance(v, IntExpr) for v in values):
        if len(values) > 1 and not all(isinstance(v, numbers.Real) for v in values):
            raise TypeError(f"max: an operand must be an integer or a number, got {values!r}")
        return builtins.max(*values)
    result = values[0]
    for v in values[1:]:
        result = sym_max(result, v)
    return result
