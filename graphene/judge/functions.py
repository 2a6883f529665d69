"""NumPy's functions of numbers that know their error (graphene/judge/bounded.py)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graphene.judge.bounded import (
    TINY,
    Bounded,
    Functions,
    bounded,
    factor,
    finite,
    is_unsure,
    monotone,
    once,
    refuse,
    size,
    summed,
    truth,
    unit,
)
from graphene.judge.memory import room
from graphene.promise import state

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["METHODS", "ON_ARRAYS", "apply_function", "apply_ufunc", "erf", "erfc"]

TANH_APPROX = 2.0**-11  # how far PTX tanh.approx may be off, as a share of its result
_LEAST = 1e-300
_HUGE = 1e300


def add(x: Bounded, y: Bounded) -> Bounded:
    return once(x.v + y.v, x.e + y.e)


def subtract(x: Bounded, y: Bounded) -> Bounded:
    return once(x.v - y.v, x.e + y.e)


def multiply(x: Bounded, y: Bounded) -> Bounded:
    e = size(x.v) * y.e + size(y.v) * x.e + x.e * y.e
    # An infinity times a number that may be zero may even be NaN: nothing is known.
    for a, b in ((x, y), (y, x)):
        if np.isinf(a.v).any():
            e = np.where(np.isinf(a.v) & _maybe_zero(b), _HUGE, e)
    return once(x.v * y.v, e)


def _maybe_zero(x: Bounded) -> Any:
    return (x.e > 0) & (np.abs(x.v) <= x.e)


def divide(x: Bounded, y: Bounded) -> Bounded:
    v = x.v / y.v
    least = np.maximum(size(y.v) - y.e, _LEAST)
    e = np.where((x.e > 0) | (y.e > 0), np.minimum((x.e + size(v) * y.e) / least, _HUGE), 0.0)
    # The divisor may be zero or not, so the quotient may even be infinite: nothing is known.
    e = np.where((y.v == 0) & (y.e > 0) & ~np.isnan(x.v), _HUGE, e)
    # A kernel may multiply by the reciprocal, which is exact of powers of two alone.
    scaled = np.abs(np.frexp(finite(y.v))[0]) == 0.5
    return once(v, np.where(scaled, e, e + unit() * size(v)))


def negative(x: Bounded) -> Bounded:
    return Bounded(-x.v, x.e)


def absolute(x: Bounded) -> Bounded:
    return Bounded(np.abs(x.v), x.e)


def _either(function: Callable[[Any, Any], Any]) -> Callable[[Bounded, Bounded], Bounded]:
    def choose(x: Bounded, y: Bounded) -> Bounded:
        v = function(x.v, y.v)
        xe, ye = np.broadcast_to(x.e, v.shape), np.broadcast_to(y.e, v.shape)
        clear = np.abs(x.v - y.v) > x.e + y.e  # which of them it is; of infinity there is no doubt
        first = v == x.v
        return Bounded(v, np.where(clear, np.where(first, xe, ye), np.maximum(xe, ye)))

    return choose


def exp(x: Bounded) -> Bounded:
    v = np.exp(x.v)
    e = size(v) * (np.expm1(np.minimum(x.e, 500)) + unit() * (1 + size(x.v))) + TINY
    return Bounded(v, np.where(x.v == -np.inf, 0.0, np.minimum(e, _HUGE)))


def exp2(x: Bounded) -> Bounded:
    v = np.exp2(x.v)
    e = size(v) * (np.expm1(np.minimum(x.e * math.log(2), 500)) + unit()) + TINY
    return Bounded(v, np.where(x.v == -np.inf, 0.0, np.minimum(e, _HUGE)))


def _logarithm(function: Callable[[Any], Any], scale: float) -> Callable[[Bounded], Bounded]:
    def log(x: Bounded) -> Bounded:
        v = function(x.v)
        spread = scale * x.e / np.maximum(size(x.v) - x.e, _LEAST)
        return Bounded(v, np.minimum(spread + unit() * (size(v) + 1), _HUGE))

    return log


def sqrt(x: Bounded) -> Bounded:
    v = np.sqrt(x.v)
    low = np.sqrt(np.maximum(finite(x.v) - x.e, 0))
    return once(v, np.where(x.e > 0, np.maximum(finite(v) - low, np.sqrt(finite(np.abs(x.v)) + x.e) - finite(v)), 0.0))


def power(x: Bounded, y: Bounded) -> Bounded:
    if y.size == 1 and not y.e.any():
        n = float(y.v.reshape(-1)[0])
        if n in (0.5, -0.5):
            root = sqrt(x)
            return root if n > 0 else divide(bounded(1.0), root)
        if n == round(n) and 0 < abs(n) <= 64:
            out = x
            for _ in range(int(abs(n)) - 1):
                out = multiply(out, x)
            return out if n > 0 else divide(bounded(1.0), out)
    return exp2(multiply(y, _logarithm(np.log2, 1 / math.log(2))(x)))


def tanh(x: Bounded) -> Bounded:
    return monotone(np.tanh, x, 3)


def tanh_approx(x: Any) -> Any:
    """The hyperbolic tangent by one instruction: of an array without its error, of others with it."""
    if not isinstance(x, Bounded):
        return np.tanh(x)
    state("tanh_approx")
    y = tanh(x)
    return Bounded(y.v, y.e + TANH_APPROX * size(y.v))


def _of_each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of math of an array, or of numbers that know their error."""
    of_objects = np.frompyfunc(function, 1, 1)

    def values(t: Any) -> Any:
        t = np.asarray(t)
        out = np.empty(t.shape, t.dtype if t.dtype.kind == "f" else np.float64)
        flat, to = t.reshape(-1), out.reshape(-1)
        for i in range(0, t.size, 1 << 16):  # signals are answered in between
            to[i : i + (1 << 16)] = of_objects(flat[i : i + (1 << 16)])
        return out

    return lambda x: monotone(values, x, 3) if isinstance(x, Bounded) else values(x)


erf = _of_each(math.erf)
erfc = _of_each(math.erfc)  # 1 - erf, with all of its digits where that is small


def _wave(function: Callable[[Any], Any]) -> Callable[[Bounded], Bounded]:
    def wave(x: Bounded) -> Bounded:
        return Bounded(function(x.v), np.minimum(x.e, 2) + unit() * (1 + size(x.v)))

    return wave


def _step(function: Callable[[Any], Any]) -> Callable[[Bounded], Bounded]:
    def step(x: Bounded) -> Bounded:
        v = function(x.v)
        return Bounded(v, np.where(x.e > 0, np.maximum(function(x.v + x.e) - v, v - function(x.v - x.e)), 0.0))

    return step


def sign(x: Bounded) -> Bounded:
    return Bounded(np.sign(x.v), np.where((x.e > 0) & (np.abs(x.v) <= x.e), 2.0, 0.0))


def logaddexp(x: Bounded, y: Bounded) -> Bounded:
    v = np.logaddexp(x.v, y.v)
    return Bounded(v, np.maximum(x.e, y.e) + unit() * (1 + size(v) + np.maximum(size(x.v), size(y.v))))


def _room(what: str, *shapes: tuple[int, ...]) -> None:
    """Asks for the memory of a function's result, of what it computes on the way, and of its operands' magnitudes."""
    room(64 * sum(math.prod(s) for s in shapes), f"{what} in the kernel's meaning needs")


def matmul(x: Bounded, y: Bounded) -> Bounded:
    if x.ndim > 1 and y.ndim > 1:
        rows = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        _room("np.matmul", rows, x.shape, y.shape)
    a, b = size(x.v), size(y.v)
    error: Any = (a + x.e) @ y.e if y.e.any() else 0.0
    if x.e.any():
        error = error + x.e @ b
    return summed(x.v @ y.v, error, factor(x.v) @ factor(y.v), x.v.shape[-1], (x, y))


UFUNCS: dict[str, Callable[..., Any]] = {
    "add": add, "subtract": subtract, "multiply": multiply, "divide": divide, "true_divide": divide,
    "negative": negative, "positive": lambda x: x, "absolute": absolute, "fabs": absolute,
    "maximum": _either(np.maximum), "minimum": _either(np.minimum), "fmax": _either(np.fmax),
    "fmin": _either(np.fmin), "exp": exp, "exp2": exp2, "expm1": lambda x: monotone(np.expm1, x, 1),
    "log": _logarithm(np.log, 1.0), "log2": _logarithm(np.log2, 1 / math.log(2)),
    "log10": _logarithm(np.log10, 1 / math.log(10)), "log1p": lambda x: monotone(np.log1p, x, 1),
    "sqrt": sqrt, "square": lambda x: multiply(x, x), "reciprocal": lambda x: divide(bounded(1.0), x),
    "power": power, "float_power": power, "tanh": tanh, "arctan": lambda x: monotone(np.arctan, x, 1),
    "sin": _wave(np.sin), "cos": _wave(np.cos), "floor": _step(np.floor), "ceil": _step(np.ceil),
    "trunc": _step(np.trunc), "rint": _step(np.rint), "sign": sign, "logaddexp": logaddexp, "matmul": matmul,
    "conjugate": lambda x: x,
}  # fmt: skip
_COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
_QUESTIONS = {"isnan", "isinf", "isfinite", "signbit", "logical_not", "logical_and", "logical_or"}
_REDUCTIONS: dict[str, str] = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod"}


def _doubted(result: Bounded, operands: list[Bounded]) -> Bounded:
    """Results of an infinity or NaN of which nothing is known are not known, either."""
    doubt: Any = False
    for x in operands:
        lost = x.e >= _HUGE
        if lost.any():
            doubt = doubt | (~np.isfinite(x.v) & lost)
    return Bounded(result.v, np.where(doubt, _HUGE, result.e)) if np.any(doubt) else result


def apply_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A ufunc of NumPy. Raises SimulationError CHECK_MEANS for one whose error is not known."""
    name = ufunc.__name__
    out = named.pop("out", None)
    if method == "reduce" and name in _REDUCTIONS:
        axis = named.get("axis", 0)
        return METHODS[_REDUCTIONS[name]](inputs[0], axis=axis, keepdims=named.get("keepdims", False))
    if method != "__call__":
        refuse(f"np.{name}.{method}", "write it with operators, np.sum, np.max or np.cumsum")
    with np.errstate(all="ignore"):
        if name in _COMPARISONS:
            x, y = (bounded(i) for i in inputs)
            return truth(ufunc(x.v, y.v), (np.abs(x.v - y.v) <= x.e + y.e) & ((x.e > 0) | (y.e > 0)))
        if name in _QUESTIONS:
            return ufunc(*(i.v if isinstance(i, Bounded) else i for i in inputs))
        function = UFUNCS.get(name)
        if function is None:
            refuse(f"np.{name}", "write it with functions whose error is known: those of docs/simulator.md")
        given = [bounded(i) for i in inputs]
        if name != "matmul":
            _room(f"np.{name}", np.broadcast_shapes(*(x.shape for x in given)))
        result = function(*given)
        if name != "matmul":
            result = _doubted(result, given)
    where = named.get("where", True)
    if out is None:
        return result if where is True else refuse(f"np.{name}(where=)", "use np.where")
    (target,) = out
    target[...] = result if where is True else choose(where, result, target)
    return target


# Functions of arrays.


def choose(condition: Any, x: Any, y: Any) -> Bounded:
    """np.where; where the condition is unsure, the result may be either side."""
    unsure = is_unsure(condition)
    condition = condition.v != 0 if isinstance(condition, Bounded) else np.asarray(condition)
    x, y = bounded(x), bounded(y)
    v, e = np.where(condition, x.v, y.v), np.where(condition, x.e, y.e)
    if np.any(unsure):
        other = np.where(condition, y.e, x.e) + size(np.where(condition, y.v, x.v) - v)
        e = np.where(unsure, np.maximum(e, other), e)
    return Bounded(v, e)


def _count(x: Any, axis: Any) -> int:
    shape = np.shape(x)
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else axis
    return math.prod(shape[a] for a in axes)


def sum_(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **named: Any) -> Any:
    x = bounded(x)
    if "where" in named:
        x = choose(named["where"], x, 0.0)
    how = {"axis": axis, "keepdims": keepdims}
    return summed(x.v.sum(**how), x.e.sum(**how), size(x.v).sum(**how), _count(x.v, axis), (x,))


def mean(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    x = bounded(x)
    count = _count(x.v, axis)
    if not count:
        return Bounded(x.v.mean(axis=axis, keepdims=keepdims))
    out = sum_(x, axis, keepdims=keepdims) / count
    # Of whole numbers, too: a kernel may add up their distances from one of them.
    moved = unit() * size(x.v).mean(axis=axis, keepdims=keepdims) if count > 1 else 0.0
    return Bounded(out.v, out.e + moved)


def var(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    d = x - mean(x, axis, keepdims=True)
    return sum_(d * d, axis, keepdims=keepdims) / (_count(x, axis) - ddof)


def prod(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    v = x.v.prod(axis=axis, keepdims=keepdims)
    grown = (size(x.v) + x.e).prod(axis=axis, keepdims=keepdims)
    return once(v, grown - size(v) + unit() * _count(x.v, axis) * size(v))


def _most(name: str) -> Callable[..., Any]:
    def most(x: Any, axis: Any = None, out: Any = None, keepdims: bool = False, **named: Any) -> Any:
        x = bounded(x)
        v = getattr(np, name)(x.v, axis=axis, keepdims=keepdims, **named)
        where = {"where": named["where"]} if "where" in named else {}
        return Bounded(v, x.e.max(axis=axis, keepdims=keepdims, initial=0.0, **where))

    return most


def _which(name: str) -> Callable[..., Any]:
    sign = 1.0 if name == "argmax" else -1.0

    def which(x: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The index of the largest or least; where errors may turn which that is, as far off as the others are."""
        x = bounded(x)
        found = getattr(np, name)(x.v, axis=axis, keepdims=keepdims)
        if not np.any(x.e) or not x.v.size:
            return found
        along, kept = (-1, x.v.reshape(-1)) if axis is None else (axis, x.v)
        v, e = sign * kept, np.broadcast_to(x.e, x.v.shape).reshape(kept.shape)
        first = np.expand_dims(getattr(np, name)(kept, axis=along), along)
        least = np.take_along_axis(v - e, first, along)  # of the one that was found
        places = np.moveaxis(np.broadcast_to(np.arange(v.shape[along]), np.moveaxis(v, along, -1).shape), -1, along)
        far = np.where(v + e < least, 0, np.abs(places - first)).max(axis=along)
        return Bounded(found, far.reshape(np.shape(found)).astype(np.float64)) if np.any(far) else found

    return which


def cumsum(x: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    if axis is None:
        x, axis = x.reshape(-1), 0
    magnitude = size(x.v).cumsum(axis)
    return summed(x.v.cumsum(axis), x.e.cumsum(axis), magnitude, x.shape[axis], (x,))


def sort(x: Any, axis: int = -1, **_: Any) -> Any:
    return Bounded(np.sort(x.v, axis), x.e.max(axis=axis, keepdims=True, initial=0.0))


def einsum(subscripts: str, *operands: Any, **named: Any) -> Any:
    if not isinstance(subscripts, str):
        refuse("np.einsum without a string", 'name the dimensions: np.einsum("ij,jk->ik", x, y)')
    xs = [bounded(x) for x in operands]
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    extent: dict[str, int] = {}
    for labels, x in zip(left.split(","), xs, strict=True):
        head, _, tail = labels.partition("...")
        extent.update(zip(head, x.shape, strict=False))
        if tail:
            extent.update(zip(tail, x.shape[-len(tail) :], strict=True))
    if not arrow:
        right = "".join(sorted(c for c in extent if left.count(c) == 1))
        right = ("..." if "..." in left else "") + right
    n = math.prod(extent[c] for c in extent if c not in right)
    sums: Callable[[list[Any]], Any] = lambda arrays: np.einsum(f"{left}->{right}", *arrays, optimize=len(arrays) > 2)  # noqa: E731
    _room("np.einsum", tuple(extent[c] for c in right if c in extent), *(x.shape for x in xs))
    sizes, grown = [size(x.v) for x in xs], [size(x.v) + x.e for x in xs]
    error: Any = 0.0
    for i, x in enumerate(xs):
        if x.e.any():
            error = error + sums([*sizes[:i], x.e, *grown[i + 1 :]])
    v = np.asarray(sums([x.v for x in xs]))
    if n == 1 and len(xs) == 1:
        return Bounded(v, error)
    magnitude = sums(sizes if len(xs) == 1 else [factor(x.v) for x in xs])
    return summed(v, error, np.asarray(magnitude), n, tuple(xs))


def _like(value: Any) -> Callable[..., Any]:
    def like(x: Any, *fill: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
        to = np.shape(x) if shape is None else shape
        return Bounded(np.full(to, fill[0] if value is None else value, np.float64), np.zeros(to), moved=True)

    return like


def _each(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def apply(x: Any, *args: Any, **named: Any) -> Any:
        x = bounded(x)
        return Bounded(function(x.v, *args, **named), function(x.e, *args, **named), x.moved)

    return apply


def _joined(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def apply(arrays: Any, *args: Any, **named: Any) -> Any:
        xs = [bounded(x) for x in arrays]
        v, e = (function(list(t), *args, **named) for t in zip(*((x.v, x.e) for x in xs), strict=True))
        return Bounded(v, e, all(x.moved for x in xs))

    return apply


def _parts(name: str) -> Callable[..., Any]:
    function = getattr(np, name)
    return lambda x, *args, **named: [
        Bounded(v, e, x.moved)
        for v, e in zip(function(x.v, *args, **named), function(x.e, *args, **named), strict=True)
    ]


def pad(x: Any, width: Any, mode: str = "constant", **named: Any) -> Any:
    v, e = np.pad(x.v, width, mode, **named), np.pad(x.e, width, mode)  # type: ignore[call-overload]
    return Bounded(v, e, x.moved)


def clip(x: Any, low: Any = None, high: Any = None, out: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    v = np.nan_to_num(x.v, nan=nan, posinf=posinf, neginf=neginf)
    return Bounded(v, np.where(np.isfinite(x.v), x.e, 0.0))


def tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    x, y = bounded(x), bounded(y)
    dot: Callable[[Any, Any], Any] = lambda p, q: np.tensordot(p, q, axes)  # noqa: E731
    n = _count(x.v, range(x.ndim - axes, x.ndim) if isinstance(axes, int) else axes[0])
    a, b = size(x.v), size(y.v)
    return summed(dot(x.v, y.v), dot(a + x.e, y.e) + dot(x.e, b), dot(factor(x.v), factor(y.v)), n, (x, y))


def dot(x: Any, y: Any, out: Any = None) -> Any:
    x, y = bounded(x), bounded(y)
    return x * y if not (x.ndim and y.ndim) else tensordot(x, y, (x.ndim - 1, max(y.ndim - 2, 0)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": choose, "sum": sum_, "nansum": lambda x, **n: sum_(choose(np.isnan(x.v), 0.0, x), **n), "mean": mean,
    "average": mean, "var": var, "std": lambda x, **n: sqrt(var(x, **n)), "prod": prod, "max": _most("max"),
    "amax": _most("max"), "min": _most("min"), "amin": _most("min"), "nanmax": _most("nanmax"),
    "nanmin": _most("nanmin"), "ptp": lambda x, **n: _most("max")(x, **n) - _most("min")(x, **n),
    "argmax": _which("argmax"), "argmin": _which("argmin"),
    "argsort": lambda x, axis=-1, **n: np.argsort(x.v, axis, **n),
    "nonzero": lambda x: np.nonzero(x.v), "count_nonzero": lambda x, **n: np.count_nonzero(x.v, **n),
    "any": lambda x, **n: np.any(x.v != 0, **n), "all": lambda x, **n: np.all(x.v != 0, **n),
    "isposinf": lambda x: np.isposinf(x.v), "isneginf": lambda x: np.isneginf(x.v),
    "cumsum": cumsum, "sort": sort, "einsum": einsum, "tensordot": tensordot, "dot": dot, "vdot": dot,
    "inner": lambda x, y: tensordot(x, y, (-1, -1)), "outer": lambda x, y: x.reshape(-1, 1) * bounded(y).reshape(1, -1),
    "clip": clip, "nan_to_num": nan_to_num, "pad": pad, "shape": lambda x: x.shape, "ndim": lambda x: x.ndim,
    "size": lambda x, axis=None: _count(x.v, axis), "zeros_like": _like(0.0), "ones_like": _like(1.0),
    "empty_like": _like(math.nan), "full_like": _like(None), "round": lambda x, decimals=0, out=None: _step(
        lambda t: np.round(t, decimals))(x),
    "array_equal": lambda x, y: np.array_equal(bounded(x).v, bounded(y).v),
    "real": lambda x: x,
    **{n: _each(n) for n in ("repeat", "tile", "transpose", "swapaxes", "moveaxis", "rollaxis", "reshape", "ravel",
                             "squeeze", "expand_dims", "broadcast_to", "flip", "fliplr", "flipud", "roll", "rot90",
                             "take", "take_along_axis", "tril", "triu", "diagonal", "diag", "copy", "delete",
                             "atleast_1d", "atleast_2d", "atleast_3d", "compress")},
    **{n: _joined(n) for n in ("stack", "concatenate", "vstack", "hstack", "dstack", "column_stack")},
    **{n: _parts(n) for n in ("split", "array_split", "vsplit", "hsplit", "dsplit")},
}  # fmt: skip


def apply_function(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A function of NumPy. Raises SimulationError CHECK_MEANS for one whose error is not known."""
    own = FUNCTIONS.get(function.__name__)
    if own is None:
        refuse(f"np.{function.__name__}", "write it with functions whose error is known: those of docs/simulator.md")
    with np.errstate(all="ignore"):
        return own(*args, **named)


def _shaped(x: Bounded, *shape: Any, order: Any = "C") -> Bounded:
    to = shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape
    return Bounded(np.reshape(x.v, to, order=order), np.reshape(x.e, to, order=order), x.moved)


def _turned(x: Bounded, *axes: Any) -> Bounded:
    return Bounded(x.v.transpose(*axes), x.e.transpose(*axes), x.moved)


def _as_type(x: Bounded, dtype: Any, **_: Any) -> Any:
    if np.dtype(dtype).kind != "f":
        return x.v.astype(dtype)
    return x  # the error says how exact it is, not the type


METHODS: dict[str, Callable[..., Any]] = {
    **{n: FUNCTIONS[n] for n in ("sum", "mean", "var", "std", "prod", "max", "min", "argmax", "argmin", "argsort",
                                 "cumsum", "clip", "repeat", "swapaxes", "squeeze", "take", "any", "all", "dot",
                                 "copy", "ravel", "diagonal", "nonzero", "round", "ptp")},
    "reshape": _shaped, "transpose": _turned, "flatten": FUNCTIONS["ravel"], "astype": _as_type,
    "item": lambda x, *key: float(x.v.item(*key)), "tolist": lambda x: x.v.tolist(),
    "fill": lambda x, value: x.__setitem__(Ellipsis, value),
}  # fmt: skip

# The functions of graphene.expressions, of arrays.
ON_ARRAYS: dict[str, Callable[..., Any]] = {
    **{n: getattr(np, n) for n in ("exp2", "exp", "log2", "log", "sqrt", "tanh", "sin", "cos", "floor", "ceil", "trunc",
                                   "abs", "where")},
    "round": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: 1 / x, "erf": erf,
    "tanh_approx": tanh_approx, "max": np.fmax, "min": np.fmin, "div": np.divide, "fmod": np.fmod, "pow": np.power,
}  # fmt: skip

Bounded._functions = Functions(METHODS, apply_ufunc, apply_function, choose)
