"""What Python and NumPy ask of registers as if their numbers were known: answered by registers, or refused."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

from graphene import expressions
from graphene._refused import refuse
from graphene.elsewhere import of_tensor
from graphene.expressions import Expression, plain
from graphene.promise import is_array

_KNOWN_LATER = "the numbers in registers are known only when the kernel runs"

# NumPy's names of Python's operators: a NumPy scalar on the left asks NumPy first.
_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow,
    "left_shift": operator.lshift, "right_shift": operator.rshift, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
_OTHER_NAMES = {"absolute": "abs", "maximum": "max", "minimum": "min", "rint": "round", "reciprocal": "rcp"}


def _number(self: Any) -> NoReturn:
    refuse("POINTWISE_TYPE", _KNOWN_LATER, [f"got: {self!r}"],
           "write Graphene's function instead of Python's, such as gr.exp for math.exp; gr.let(name, x, dtype) "
           "converts; gr.index reads an integer that is an index or a bound")  # fmt: skip


def _format(self: Any, form: str) -> str:
    if form:
        refuse("POINTWISE_TYPE", _KNOWN_LATER, [f"got: {self!r}, to be written as {form!r}"], "gr.print shows them")
    return str(self)


def _round(self: Any, digits: int | None = None) -> Any:
    if digits is not None:
        refuse("POINTWISE_TYPE", "registers are rounded to integers", [f"got: round({self!r}, {digits})"],
               "scale before and after: gr.round(x * 100) / 100")  # fmt: skip
    return expressions.round(self)


def _by_numpy(self: Any, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
    """An operator of a NumPy scalar and registers; NumPy's functions, and arrays, are refused."""
    name = str(ufunc.__name__)
    given = [x.item() if is_array(x) and getattr(x, "ndim", 1) == 0 else plain(x) for x in inputs]
    numbers = method == "__call__" and not named and not any(is_array(x) for x in given)
    if numbers and name in _OPERATORS:
        return _OPERATORS[name](*given)
    own = _OTHER_NAMES.get(name, name)
    fix = f"write gr.{own}" if numbers and own in expressions.__all__ else "an array is an argument of the kernel"
    refuse("POINTWISE_TYPE", f"NumPy's {name} takes no registers", [f"got: {given!r:.120}"], fix)


def _attribute(self: Any, name: str) -> NoReturn:
    raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}{of_tensor(name)}", name=name, obj=self)


_by_numpy.of_registers = True  # type: ignore[attr-defined]  # promise.is_array asks

METHODS: dict[str, Any] = {
    "__float__": _number, "__int__": _number, "__index__": _number, "__complex__": _number, "__format__": _format,
    "__round__": _round, "__floor__": lambda self: expressions.floor(self),
    "__ceil__": lambda self: expressions.ceil(self), "__trunc__": lambda self: expressions.trunc(self),
    "__array_ufunc__": _by_numpy, "__getattr__": _attribute,
}  # fmt: skip
for _name, _method in METHODS.items():
    setattr(Expression, _name, _method)
