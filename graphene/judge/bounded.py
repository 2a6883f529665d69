"""Numbers that know their error, on which a kernel's meaning is evaluated (docs/simulator.md).

A `Bounded` is an array of doubles `x`, each with a bound `e` of how far a computation with roundings to `unit` may be
from it. NumPy dispatches to it, so that a meaning is plain NumPy. With u = 4 units, the error of x + y is
e_x + e_y + u|x + y|, that of x * y is |x|e_y + |y|e_x + u|xy|, and that of a function follows from its derivative. A
sum of n products has the sum of the errors plus u (2 + 2 sqrt n + n / 16) sum |xy|. An operation on exact numbers whose
result is a number of fp32 has no error, and neither has a sum of whole numbers below 2^24.
"""

from __future__ import annotations

import contextlib
import math
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from graphene import _core
from graphene.judge.memory import SMALL_BYTES, room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["FP32", "SLACK", "Bounded", "bounded", "rounding_unit", "unit"]

FP32 = 2.0**-24  # half a unit in the last place of 1, the most that rounding to nearest changes
SLACK = 4.0  # allows a kernel more operations than its definition has; the only chosen number
TINY = 2.0**-120  # fp32 may flush smaller numbers to zero
_HUGE = 1e300
_UNIT: ContextVar[tuple[float, float, float]] = ContextVar("unit", default=(FP32, TINY, 0.0))


@contextlib.contextmanager
def rounding_unit(value: float, tiny: float = TINY, normal: float = 0.0) -> Iterator[None]:
    """Within it, every operation rounds by this share of its result: 2^-24 for fp32, 2^-53 for fp64, 2^-11 for fp16.

    ``tiny``: how far any small result may be off, because subnormal numbers have few digits or become zero.
    ``normal``: the smallest normal number of what matrix instructions multiply. They align the terms of a sum as if
    smaller operands had its exponent, so sums of terms with such an operand are cut as those of larger terms are.
    """
    token = _UNIT.set((value, tiny, normal))
    try:
        yield
    finally:
        _UNIT.reset(token)


def unit() -> float:
    """How far an operation may be off, as a share of its result, slack included."""
    return SLACK * _UNIT.get()[0]


def tiny() -> float:
    """How far an operation may be off, however small its result is."""
    return _UNIT.get()[1]


def factor(x: Any) -> Any:
    """The size of an operand of a product, by which its sum is cut: 0, or at least the smallest normal number."""
    a, normal = size(x), _UNIT.get()[2]
    return np.where(a > 0, np.maximum(a, normal), 0.0) if normal else a


def finite(x: Any) -> Any:
    """The array with 0 in place of infinities and NaN."""
    known = np.isfinite(x)
    return x if known.all() else np.where(known, x, 0.0)


def size(x: Any) -> Any:
    """|x|, and 0 in place of infinities and NaN."""
    return np.abs(finite(x))


def terms(n: float) -> float:
    """Roundings of n terms: with large probability 2 sqrt n, and the tensor core cuts once for each step of 16."""
    return 2 + 2 * math.sqrt(n) + n / 16


class Truth(np.ndarray):
    """Truth values; `unsure` says where errors of the compared numbers may turn them."""

    unsure: Any = False

    def __array_finalize__(self, origin: Any) -> None:
        self.unsure = False

    def __getitem__(self, key: Any) -> Any:
        out = super().__getitem__(key)
        return truth(out, _wide(self.unsure, self.shape)[key])

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        if function is np.where and len(args) == 3 and isinstance(args[0], Truth):
            return Bounded._functions.where(*args)
        return super().__array_function__(function, types, args, named)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if any(isinstance(x, Bounded) for x in inputs):
            return NotImplemented
        plain = [x.view(np.ndarray) if isinstance(x, Truth) else x for x in inputs]
        if "out" in named:
            named["out"] = tuple(x.view(np.ndarray) if isinstance(x, Truth) else x for x in named["out"])
        got = getattr(ufunc, method)(*plain, **named)
        if method != "__call__" or ufunc.__name__ not in ("bitwise_and", "bitwise_or", "invert", "logical_and",
                                                          "logical_or", "logical_not", "bitwise_xor"):  # fmt: skip
            return got
        unsure: Any = False
        for x in inputs:
            unsure = np.logical_or(unsure, x.unsure if isinstance(x, Truth) else False)
        return truth(got, unsure)


def _wide(x: Any, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(np.asarray(x), shape)


def truth(values: Any, unsure: Any) -> Any:
    """Truth values that say where they are unsure."""
    values = np.asarray(values)
    if not np.any(unsure):
        return values
    out = values.view(Truth)
    out.unsure = _wide(unsure, values.shape)
    return out


def is_unsure(x: Any) -> Any:
    """Where truth values might be the other way round."""
    return x.unsure if isinstance(x, Truth) else False


class Functions(NamedTuple):
    """NumPy's methods, ufuncs, functions and `where` for numbers that know their error."""

    methods: Mapping[str, Callable[..., Any]]
    ufunc: Callable[..., Any]
    function: Callable[..., Any]
    where: Callable[..., Bounded]


class Bounded(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of doubles, each with a bound of its error. See the module."""

    _functions: ClassVar[Functions]  # set by graphene.judge.functions, which computes with these numbers

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("e", "moved", "v")

    def __init__(self, values: Any, error: Any = 0.0, moved: bool = False) -> None:
        self.v = np.asarray(values, np.float64)
        self.moved = moved  # elements of arguments and constants, with which nothing was computed
        if self.v.size > SMALL_BYTES:
            room(SMALL_BYTES, "an array in the kernel's meaning needs")
        e = np.asarray(error, np.float64)
        self.e = e if e.shape == self.v.shape else np.broadcast_to(e, self.v.shape)

    # The properties of an array.

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.v.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.v.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.v.size

    @property
    def dtype(self) -> Any:
        """float64."""
        return self.v.dtype

    @property
    def values(self) -> Any:
        """The doubles, without their errors."""
        return self.v

    @property
    def error(self) -> Any:
        """How far each may be off."""
        return self.e

    @property
    def T(self) -> Bounded:  # noqa: N802
        """The array with its dimensions in reverse."""
        return Bounded(self.v.T, self.e.T, self.moved)

    def __len__(self) -> int:
        return len(self.v)

    def __iter__(self) -> Iterator[Bounded]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Bounded({self.v!r}, error={self.e!r})"

    def __bool__(self) -> bool:
        return bool(self.v)

    def __float__(self) -> float:
        refuse("float", "keep it an array, or compute with its .values where no error matters")

    def __array__(self, *_: Any, **__: Any) -> Any:
        refuse("np.asarray", "begin with np.zeros_like(x), and take .values where no error matters")

    def __getitem__(self, key: Any) -> Bounded:
        return Bounded(self.v[key], self.e[key], self.moved)

    def __setitem__(self, key: Any, value: Any) -> None:
        value = bounded(value)
        if not self.v.flags.writeable:
            self.v = self.v.copy()
        if not self.e.flags.writeable:
            self.e = self.e.copy()
        self.v[key], self.e[key] = value.v, value.e
        self.moved = self.moved and value.moved

    def __getattr__(self, name: str) -> Any:
        function = Bounded._functions.methods.get(name)
        if function is None:
            raise AttributeError(f"numbers that know their error have no attribute {name!r}")
        return lambda *args, **named: function(self, *args, **named)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return Bounded._functions.ufunc(ufunc, method, inputs, named)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        return Bounded._functions.function(function, args, named)

    def __pow__(self, n: Any) -> Any:
        return np.power(self, n)


def refuse(what: str, fix: str) -> NoReturn:
    """Raises SimulationError CHECK_MEANS, because an operation of a meaning would lose the errors."""
    _core.fail("CHECK_MEANS", f"{what} of numbers that know their error", [], fix)


def bounded(x: Any) -> Bounded:
    """The number or array as one that knows its error; it counts as exact unless it knows it already."""
    if isinstance(x, Bounded):
        return x
    return Bounded(np.asarray(x).view(np.ndarray) if isinstance(x, np.ndarray) else x, moved=True)


def once(v: Any, e: Any) -> Bounded:
    """One operation. An exact result with as few digits as fp32 is not rounded."""
    v = np.asarray(v)
    with np.errstate(all="ignore"):
        whole = (np.asarray(e) == 0) & (np.abs(v) < 1e37) & (v.astype(np.float32) == v)
        half = _UNIT.get()[0]
        if half > FP32:  # has it as few digits as the type in which sums are kept?
            mantissa = np.frexp(finite(v))[0] / half
            whole &= (mantissa == np.rint(mantissa)) & (finite(v) % (2 * tiny()) == 0)
    return Bounded(v, np.where(whole, 0.0, np.minimum(e + unit() * size(v) + tiny(), _HUGE)))


def whole_numbers(*operands: Bounded) -> bool:
    """Whether all of them are exact integers, NaN or infinite."""
    return all(not x.e.any() and bool(np.all((x.v == np.rint(x.v)) | ~np.isfinite(x.v))) for x in operands)


def summed(v: Any, e: Any, magnitude: Any, n: float, operands: tuple[Bounded, ...]) -> Bounded:
    """A sum of n terms of the given magnitude, without error if they are whole and stay below 2^24."""
    error = e + unit() * terms(n) * magnitude + tiny() * n
    if whole_numbers(*operands):
        error = np.where(magnitude < 1 / max(_UNIT.get()[0], FP32), 0.0, error)
    return Bounded(v, np.minimum(error, _HUGE))


def monotone(function: Callable[[Any], Any], x: Bounded, relative: Any = 0.0, absolute: float = 0.0) -> Bounded:
    """A monotonic function: its values at the interval's ends, and its own error."""
    v = function(x.v)
    with np.errstate(all="ignore"):
        ends = [np.abs(finite(function(x.v + d)) - finite(v)) for d in (x.e, -x.e)]
    spread = np.where(x.e > 0, np.maximum(*ends), 0.0)
    return Bounded(v, np.minimum(spread + (unit() * (1 + relative)) * size(v) + absolute + TINY, _HUGE))
