"""Pointwise expressions on registers: ``rC[:] = gr.max(acc + rbias, 0)``.

Operators on tensors in registers (fragments and private tensors) build an expression; assigning it to a whole tensor,
``t[:] = ...``, or to a part, ``t[i] = ...``, records it as pointwise leaves. Broadcasting is NumPy's. Each
subexpression is evaluated once at its own shape, on the elements that each thread holds, so no value crosses lanes. 8-
and 16-bit floats widen to fp32, and the conversion back happens at the store. A Python number takes the other operand's
type. Comparisons give truth values for `where`. There is no implicit fma. An integer type takes integers of its range
only; lowering refuses other constants (SelectError CONSTANT_RANGE).

`/` is for floats. `//`, `%`, `<<`, `>>`, `&`, `|`, `^` and `~` are for integers and mean what they mean in Python: a
quotient is rounded down, and what is left of it has the divisor's sign. Where the divisor is 0 both are 0. A shift by
the width or more, or by a negative amount, shifts every bit out. Results wrap. Conversions round once, to nearest even
(toward zero to an integer): fp8, bf16 and fp16 go through fp32 where no instruction converts directly. Conversions that
would round twice (fp64 and 32- or 64-bit integers to bf16 or fp8), and floats to 8-bit integers, are written in two
steps.

On NumPy's arrays, and on numbers that know their error, the functions compute what registers would hold, so that a
function of registers is its own meaning: in `max` and `min` of arrays, too, a NaN loses to a number.

Errors: LayoutError POINTWISE_SHAPE, POINTWISE_OWNER, POINTWISE_TYPE; VerifyError KERNEL_SCOPE for an expression that is
made in a block, as in ``with gr.if_(...): x = x + 1``, and used behind it, where the block would decide nothing.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from graphene import _core
from graphene import sym as _sym
from graphene._core import IntExpr, Tensor
from graphene._refused import refuse
from graphene.dtypes import RF
from graphene.promise import is_array as _is_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = [
    "Expression",
    "abs",
    "cast",
    "ceil",
    "cos",
    "div",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fma",
    "fmod",
    "inf",
    "log",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "max",
    "min",
    "pow",
    "rcp",
    "round",
    "rsqrt",
    "sin",
    "sqrt",
    "tanh",
    "trunc",
    "where",
]

inf = math.inf

_UNARY = "UnaryPointwise"
_BINARY = "BinaryPointwise"
_TERNARY = "TernaryPointwise"


class Expression:
    """A pointwise expression that is assigned to registers: ``t[:] = expression``. It has no value in Python."""

    __slots__ = ("_args", "_attrs", "_block", "_kind", "_op", "_to")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, kind: str, op: str, args: tuple[Any, ...], to: DType | None = None, attrs: dict[str, Any] | None = None
    ) -> None:
        self._kind, self._op, self._args, self._to, self._attrs = kind, op, args, to, attrs or {}
        self._block = _core.block_here()

    def __bool__(self) -> bool:
        refuse(
            "SYM_RUNTIME_BOOL",
            "an expression on registers has no truth value in Python",
            [f"got: {self!r}"],
            "use gr.where to choose elements, or `with gr.if_(...):` to branch",
        )

    def __getitem__(self, at: Any) -> NoReturn:
        refuse("POINTWISE_TYPE", "an expression has no elements", [f"got: {self!r}[{at!r}]"],
               'give it registers first: r = gr.let("r", expression)')  # fmt: skip

    def __repr__(self) -> str:
        return f"{self._op}({', '.join(a.name if isinstance(a, Tensor) else repr(a) for a in self._args)})"

    def __add__(self, other: Any) -> Expression:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _binary("div", other, self)

    def __floordiv__(self, other: Any) -> Expression:
        return _binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return _binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Expression:
        return _binary("mod", self, other)

    def __rmod__(self, other: Any) -> Expression:
        return _binary("mod", other, self)

    def __divmod__(self, other: Any) -> tuple[Expression, Expression]:
        return _binary("floordiv", self, other), _binary("mod", self, other)

    def __rdivmod__(self, other: Any) -> tuple[Expression, Expression]:
        return _binary("floordiv", other, self), _binary("mod", other, self)

    def __pow__(self, other: Any) -> Any:
        return pow(self, other)

    def __rpow__(self, other: Any) -> Any:
        return pow(other, self)

    def __lshift__(self, other: Any) -> Expression:
        return _binary("shl", self, other)

    def __rlshift__(self, other: Any) -> Expression:
        return _binary("shl", other, self)

    def __rshift__(self, other: Any) -> Expression:
        return _binary("shr", self, other)

    def __rrshift__(self, other: Any) -> Expression:
        return _binary("shr", other, self)

    def __xor__(self, other: Any) -> Expression:
        return _binary("xor", self, other)

    def __rxor__(self, other: Any) -> Expression:
        return _binary("xor", other, self)

    def __and__(self, other: Any) -> Expression:
        return _binary("and", self, other)

    def __rand__(self, other: Any) -> Expression:
        return _binary("and", other, self)

    def __or__(self, other: Any) -> Expression:
        return _binary("or", self, other)

    def __ror__(self, other: Any) -> Expression:
        return _binary("or", other, self)

    def __neg__(self) -> Expression:
        return _unary("neg", self)

    def __abs__(self) -> Expression:
        return _unary("abs", self)

    def __invert__(self) -> Expression:
        return _unary("not", self)

    def __lt__(self, other: Any) -> Expression:
        return _binary("lt", self, other)

    def __le__(self, other: Any) -> Expression:
        return _binary("le", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _binary("gt", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _binary("ge", self, other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _binary("ne", self, other)


def _no_matmul(self: Any, other: Any) -> NoReturn:
    _core.fail("POINTWISE_TYPE", "registers have no operator @", [f"got: {self!r} @ {other!r}"], "write gr.matmul")


for _name in ("__matmul__", "__rmatmul__"):
    setattr(Expression, _name, _no_matmul)


def _is_operand(x: Any) -> bool:
    return isinstance(x, (Tensor, Expression))


def plain(x: Any) -> Any:
    """A NumPy scalar as the Python number that it is; anything else as it stands."""
    numpy = sys.modules.get("numpy")
    return x.item() if numpy is not None and isinstance(x, numpy.generic) else x


def _check(op: str, x: Any) -> Any:
    x = plain(x)
    if not (_is_operand(x) or isinstance(x, (IntExpr, int, float))):
        raise TypeError(f"{op}: an operand must be registers, an expression or a number, got {type(x).__name__}")
    return x


def _unary(op: str, x: Any) -> Expression:
    return Expression(_UNARY, op, (_check(op, x),))


def _binary(op: str, x: Any, y: Any) -> Expression:
    return Expression(_BINARY, op, (_check(op, x), _check(op, y)))


def _on_array(op: str, x: Any) -> Any:
    """The function on an array, for a kernel's meaning and for an epilogue's."""
    from graphene.judge.functions import ON_ARRAYS

    return ON_ARRAYS[op](x)


def _of_numbers(op: str, on_numbers: Callable[..., Any], *x: float) -> Any:
    """The function on numbers. Where Python raises, it gives infinity or NaN by IEEE 754, as the instructions do."""
    if any(isinstance(v, IntExpr) for v in x):
        raise TypeError(f"{op}: an operand must be registers or a number, got a symbolic integer")
    try:
        return on_numbers(*x)
    except (OverflowError, ValueError, ZeroDivisionError):
        try:
            values = [float(v) for v in x]
        except OverflowError:
            _core.fail("CONSTANT_RANGE", f"{op} of an integer that no floating-point type can hold", [], "pass gr.inf")
        import numpy as np

        from graphene.judge.functions import ON_ARRAYS

        with np.errstate(all="ignore"):
            return float(ON_ARRAYS[op](*(np.asarray(v) for v in values)))


def _function(op: str, on_number: Callable[[float], float]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        x = plain(x)
        if isinstance(x, (int, float)) and not isinstance(x, IntExpr):
            return _of_numbers(op, on_number, x)
        return _on_array(op, x) if _is_array(x) else _unary(op, x)

    call.__name__ = call.__qualname__ = op
    return call


def _modes(ftz: bool, accuracy: str) -> dict[str, Any]:
    if not isinstance(ftz, bool):
        raise TypeError(f"ftz must be True or False, got {ftz!r}")
    if not isinstance(accuracy, str) or accuracy not in ("default", "full", "approx"):
        _core.fail("ATOM_ATTR", 'accuracy is "default", "full" or "approx"', [f"got: {accuracy!r}"], "leave it out")
    return ({"ftz": True} if ftz else {}) | ({} if accuracy == "default" else {"accuracy": accuracy})


def _accurate(op: str, on_number: Callable[[float], float]) -> Callable[..., Any]:
    def call(x: Any, accuracy: str = "default") -> Any:
        x = plain(x)
        if isinstance(x, (int, float)) and not isinstance(x, IntExpr):
            return _of_numbers(op, on_number, x)
        modes = _modes(False, accuracy)
        if _is_array(x):
            return _on_array("tanh_approx" if op == "tanh" and accuracy != "full" else op, x)
        _check(op, x)
        return Expression(_UNARY, op, (x,), None, modes)

    call.__name__ = call.__qualname__ = op
    return call


def _approximation(op: str, on_number: Callable[[float], float]) -> Callable[..., Any]:
    def call(x: Any, ftz: bool = False, accuracy: str = "default") -> Any:
        x = plain(x)
        if isinstance(x, (int, float)) and not isinstance(x, IntExpr):
            return _of_numbers(op, on_number, x)
        if _is_array(x):
            return _on_array(op, x)
        _check(op, x)
        return Expression(_UNARY, op, (x,), None, _modes(ftz, accuracy))

    call.__name__ = call.__qualname__ = op
    return call


_FULL = ' accuracy="full" (fp32): within 2 ulp, in several instructions.'
_FTZ = " ftz: subnormal inputs and results become zero, which takes one instruction instead of several (fp32)." + _FULL
exp2 = _approximation("exp2", lambda x: 2.0**x)
exp2.__doc__ = "2 to the x, within a few ulp: PTX ex2.approx." + _FTZ
exp = _accurate("exp", math.exp)
exp.__doc__ = "e to the x, through the hardware's exp2." + _FULL
log2 = _approximation("log2", math.log2)
log2.__doc__ = "Logarithm of x to base 2: PTX lg2.approx." + _FTZ
log = _accurate("log", math.log)
log.__doc__ = "Natural logarithm of x, through the hardware's log2." + _FULL
sqrt = _approximation("sqrt", math.sqrt)
sqrt.__doc__ = 'Square root of x: PTX sqrt.approx; with accuracy="full" rounded once (sqrt.rn).' + _FTZ
rsqrt = _approximation("rsqrt", lambda x: 1.0 / math.sqrt(x))
rsqrt.__doc__ = "1 / sqrt(x): PTX rsqrt.approx." + _FTZ
rcp = _approximation("rcp", lambda x: 1.0 / x)
rcp.__doc__ = '1 / x: PTX rcp.approx; with accuracy="full" rounded once (rcp.rn).' + _FTZ
tanh = _accurate("tanh", math.tanh)
tanh.__doc__ = "Hyperbolic tangent of x, with an error of about 2^-11: PTX tanh.approx." + _FULL
sin = _accurate("sin", math.sin)
sin.__doc__ = "Sine of x in radians: PTX sin.approx." + _FULL
cos = _accurate("cos", math.cos)
cos.__doc__ = "Cosine of x in radians: PTX cos.approx." + _FULL
erf = _function("erf", math.erf)
erf.__doc__ = "Error function of x, within 2 ulp."
floor = _function("floor", math.floor)
floor.__doc__ = "Largest integer not above x."
ceil = _function("ceil", math.ceil)
ceil.__doc__ = "Smallest integer not below x."
trunc = _function("trunc", math.trunc)
trunc.__doc__ = "x without its fraction."
round = _function("round", lambda x: float(builtins.round(x)) if math.isfinite(x) else x)
round.__doc__ = "The nearest integer to x, of two the even one, as a float."


def div(x: Any, y: Any, accuracy: str = "default") -> Any:
    """The quotient x / y of floats, rounded once.

    accuracy="approx" (fp32): within 2 ulp for divisors up to 2^126, in two instructions.
    """
    if _is_array(x) or _is_array(y):
        return x / y
    x, y = _check("div", x), _check("div", y)
    if not (_is_operand(x) or _is_operand(y)):
        return _of_numbers("div", operator.truediv, x, y)
    return Expression(_BINARY, "div", (x, y), None, _modes(False, accuracy))


def pow(x: Any, y: Any) -> Any:
    """The power ``x ** y``. A small whole exponent makes products, of integers too; others are for floats (CUDA's
    pow, within 4 ulp).
    """
    if _is_array(x) or _is_array(y):
        return x**y
    x, y = _check("pow", x), _check("pow", y)
    if _is_operand(x) and isinstance(y, int) and not isinstance(y, (bool, IntExpr)) and 1 <= y <= 64:
        power, rest, base = None, y, x
        while rest:
            if rest & 1:
                power = base if power is None else power * base
            rest >>= 1
            base = base * base if rest else base
        return power
    if not (_is_operand(x) or _is_operand(y)):
        return _of_numbers("pow", _power, x, y)
    return _binary("pow", x, y)


def _power(x: float, y: float) -> Any:
    if isinstance(x, int) and isinstance(y, int) and y * x.bit_length() > 2**16:
        raise OverflowError  # Python would compute every digit
    if x < 0 and y != math.floor(y):
        raise ValueError  # Python's is complex
    return x**y


def fmod(x: Any, y: Any) -> Any:
    """The remainder x - y * trunc(x / y) of floats, exactly: it has the sign of x, as in C. CUDA's fmod."""
    if _is_array(x) or _is_array(y):
        import numpy as np

        try:
            if _is_operand(x) or _is_operand(y):
                raise TypeError
            return np.fmod(x, y)
        except (AttributeError, TypeError):
            raise TypeError(f"gr.fmod takes numbers, arrays of them or registers, got {x!r} and {y!r}") from None
    x, y = _check("fmod", x), _check("fmod", y)
    if not (_is_operand(x) or _is_operand(y)):
        return _of_numbers("fmod", math.fmod, x, y)
    return _binary("fmod", x, y)


def abs(x: Any) -> Any:
    """|x|."""
    if _is_array(x):
        return _on_array("abs", x)
    x = _check("abs", x)
    return _unary("abs", x) if _is_operand(x) else x.__abs__()


def cast(x: Any, dtype: DType) -> Any:
    """The value x in another type, rounded to nearest even; a float becomes an integer toward zero.

    In its own type it is x.
    """
    if not _is_array(x):
        x = _check("cast", x)
    if not isinstance(dtype, _core.DType):
        raise TypeError(f"a dtype must be one of gr.fp16, gr.fp32, gr.i32, ..., got {dtype!r}")
    if _is_array(x):
        from graphene.promise import narrowed

        return narrowed(x, dtype)
    return Expression(_UNARY, "cast", (x,), dtype)


def _extreme(op: str, integers: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    if not values:
        raise TypeError(f"gr.{op} needs at least one value")
    if any(_is_array(v) for v in values) and not any(_is_operand(v) for v in values):
        from graphene.judge.functions import ON_ARRAYS

        return functools.reduce(ON_ARRAYS[op], values)
    if not any(_is_operand(v) for v in values):
        return integers(*values)
    result = values[0]
    for v in values[1:]:
        result = _binary(op, result, v)
    return result


def max(*values: Any) -> Any:
    """The largest of some values: registers and expressions, element by element, or integers, any of them symbolic.

    Of registers a NaN loses to a number, as in PTX max. With no registers: an int if it is known, else an IntExpr; of
    plain Python values Python's `max`.
    """
    return _extreme("max", _sym.max, values)


def min(*values: Any) -> Any:
    """The smallest of some values: registers and expressions, element by element, or integers, any of them symbolic.

    Of registers a NaN loses to a number, as in PTX min. With no registers: an int if it is known, else an IntExpr; of
    plain Python values Python's `min`.
    """
    return _extreme("min", _sym.min, values)


def fma(x: Any, y: Any, z: Any) -> Any:
    """The sum x * y + z, rounded once."""
    if any(_is_array(v) for v in (x, y, z)):
        return x * y + z
    return Expression(_TERNARY, "fma", tuple(_check("fma", v) for v in (x, y, z)))


def where(condition: Any, x: Any, y: Any) -> Any:
    """The value x where the condition holds, else y. A condition that is known in Python chooses at once.

    The condition is a comparison of registers or of integers (``.coords()``), or ``.valid()``.
    """
    condition = plain(condition)
    if isinstance(condition, (bool, int)) and not isinstance(condition, IntExpr):
        return x if condition else y
    if _is_array(condition):
        from graphene.judge.functions import ON_ARRAYS

        return ON_ARRAYS["where"](condition, x, y)
    return Expression(_TERNARY, "where", tuple(_check("where", v) for v in (condition, x, y)))


def logical_and(x: Any, y: Any) -> Any:
    """Both of two conditions; ``x & y``. One that Python knows decides at once."""
    x, y = plain(x), plain(y)
    if isinstance(x, bool) or isinstance(y, bool):
        known, other = (x, y) if isinstance(x, bool) else (y, x)
        return other if known else False
    if _is_array(x) or _is_array(y):
        return x & y
    return _binary("and", x, y)


def logical_or(x: Any, y: Any) -> Any:
    """At least one of two conditions; ``x | y``. One that Python knows decides at once."""
    x, y = plain(x), plain(y)
    if isinstance(x, bool) or isinstance(y, bool):
        known, other = (x, y) if isinstance(x, bool) else (y, x)
        return True if known else other
    if _is_array(x) or _is_array(y):
        return x | y
    return _binary("or", x, y)


def logical_not(x: Any) -> Any:
    """The opposite of a condition; ``~x``."""
    if _is_array(x):
        return ~x
    return _unary("not", x)


def _left(x: Expression) -> NoReturn:
    refuse("KERNEL_SCOPE", "an expression used outside of the block that made it", [f"got: {x!r}"],
           'keep it in registers: r = gr.let("r", ...) before the block, r[...] = expression inside of it')  # fmt: skip


def _in_memory(x: Tensor) -> NoReturn:
    one = f"gr.load({x.name or 'x'}[...])"
    fix = f"take an element, {one}, or move a tile to registers: gr.move" if x.levels else f"load it first: {one}"
    refuse("POINTWISE_TYPE", "pointwise expressions work on registers", [f"got: {x} of {x.name}"], fix)


_MOST_DEEP = 2048


def _nodes(value: Any) -> list[tuple[Any, ...]]:
    """The nodes of the tree, operands first. An object that stands in several places is one node.

    A tree may be deeper than Python's stack. Raises VerifyError IR_DEPTH for one deeper than the core's.
    """
    nodes: list[tuple[Any, ...]] = []
    seen: dict[int, int] = {}
    made: list[Any] = []  # here, and kept until the end, so that no other object gets its id
    open_: list[tuple[Expression, list[int]]] = []  # from the outermost one, with the nodes of the operands so far

    def enter(x: Any) -> int | None:
        """The node of a leaf, or of what has one; None for an expression, which is open then."""
        if isinstance(x, int) and not isinstance(x, bool) and 2**63 <= x < 2**64 and int(float(x)) != x:
            u64 = _core.dtype("u64")  # in no signed integer, in no double
            x = cast(x >> 32, u64) << 32 | cast(x & 0xFFFFFFFF, u64)
            made.append(x)
        known = seen.get(id(x))
        if known is not None and not isinstance(x, (int, float)):
            return known
        if isinstance(x, Expression):
            if x._block is not None and not _core.block_open(x._block):
                _left(x)
            if len(open_) == _MOST_DEEP:
                refuse("IR_DEPTH", f"an expression of registers is nested deeper than {_MOST_DEEP} operations", [],
                       "keep a part of it in registers, part = gr.let('part', ...), and go on from these")  # fmt: skip
            open_.append((x, []))
            return None
        if isinstance(x, Tensor):
            if x.memory != RF:
                _in_memory(x)
            return close(x, ("tensor", x))
        return close(x, ("integer" if isinstance(x, (IntExpr, bool)) else "number", x))

    def close(x: Any, node: tuple[Any, ...]) -> int:
        nodes.append(node)
        seen[id(x)] = len(nodes) - 1
        return len(nodes) - 1

    done = enter(value)
    while open_:
        x, args = open_[-1]
        if done is not None:
            args.append(done)
            done = None
        if len(args) < len(x._args):
            done = enter(x._args[len(args)])
        else:
            open_.pop()
            done = close(x, (x._kind, x._op, args, x._to, x._attrs or False))
    return nodes


def _whole(key: Any) -> bool:
    keys = key if isinstance(key, tuple) else (key,)
    return all(k is Ellipsis or (isinstance(k, slice) and k == slice(None)) for k in keys)
