"""Types of numbers as NumPy holds them: rounding of doubles to a type, bits of a type from doubles and back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphene import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = ["Format", "as_scalar", "decode", "encode", "format_of", "is_float", "is_packed", "join", "nearest",
           "range_of", "split", "storage"]  # fmt: skip


class Format(NamedTuple):
    """A floating-point type: digits (the hidden one counted), exponent of the smallest normal number, largest number.

    `saturates`: what is too large becomes the largest number instead of infinity. `ties_away`: of two nearest numbers
    the larger one is taken, as cvt.rna does, instead of the even one. `no_nan`: it has neither infinity nor NaN; the
    largest number stands for both.
    """

    digits: int
    least: int
    most: float
    saturates: bool = False
    ties_away: bool = False
    no_nan: bool = False

    @property
    def relative(self) -> float:
        """Half a unit in the last place of 1."""
        return float(2.0**-self.digits)

    @property
    def absolute(self) -> float:
        """Half of the smallest number above zero."""
        return float(2.0 ** (self.least - self.digits))


_FORMATS = {
    "fp16": Format(11, -14, 65504.0),
    "bf16": Format(8, -126, (2 - 2.0**-7) * 2.0**127),
    "tf32": Format(11, -126, (2 - 2.0**-10) * 2.0**127, ties_away=True),
    "fp32": Format(24, -126, (2 - 2.0**-23) * 2.0**127),
    "fp64": Format(53, -1022, float(np.finfo(np.float64).max)),
    "fp8e4m3": Format(4, -6, 448.0, True),
    "fp8e5m2": Format(3, -14, 57344.0, True),
    "fp6e2m3": Format(4, 0, 7.5, True, no_nan=True),
    "fp6e3m2": Format(3, -2, 28.0, True, no_nan=True),
    "fp4e2m1": Format(2, 0, 6.0, True, no_nan=True),
}
# Exponent and fraction bits of the types that NumPy lacks, and how many patterns of the largest exponent are NaN.
_BITS = {"bf16": (8, 7, None), "fp8e4m3": (4, 3, 1), "fp8e5m2": (5, 2, None),
         "fp6e2m3": (2, 3, 0), "fp6e3m2": (3, 2, 0), "fp4e2m1": (2, 1, 0)}  # fmt: skip
_PACKED = ("i4", "u4", "fp4e2m1")  # two share a byte


def _name(dtype: DType | str) -> str:
    return dtype if isinstance(dtype, str) else dtype.name


def is_float(dtype: DType | str) -> bool:
    """Whether it is a floating-point type."""
    return _name(dtype) in _FORMATS


def format_of(dtype: DType | str) -> Format:
    """A floating-point type's format."""
    return _FORMATS[_name(dtype)]


def is_packed(dtype: DType | str) -> bool:
    """Whether its elements share bytes, so that an array of it has half as many elements, all of type uint8."""
    return _name(dtype) in _PACKED


def range_of(dtype: DType | str) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    name = _name(dtype)
    if name in _PACKED:
        return (-8, 7) if name == "i4" else (0, 15)
    info = np.iinfo(storage(name))
    return int(info.min), int(info.max)


def join(codes: Any, axis: int = -1) -> Any:
    """Bytes of two elements, the first in the low bits, of elements' bits: half as many along an axis."""
    codes = np.moveaxis(np.asarray(codes, np.uint8), axis, -1)
    return np.moveaxis(codes[..., ::2] & 15 | codes[..., 1::2] << 4, -1, axis)


def split(packed: Any, axis: int = -1) -> Any:
    """The bits of elements, each in a byte of its own, of bytes that two share."""
    x = np.moveaxis(np.asarray(packed, np.uint8), axis, -1)
    return np.moveaxis(np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], 2 * x.shape[-1]), -1, axis)


def storage(dtype: DType | str) -> Any:
    """NumPy's type of its elements in memory: their bits, where NumPy lacks the type; bytes, if elements share them."""
    t = _core.dtype(_name(dtype))
    return np.dtype(t.array_name if t.in_numpy else f"u{t.bits // 8}")


def nearest(x: Any, dtype: DType | str) -> Any:
    """The type's numbers nearest to doubles, of two the even one, of tf32 the larger; of integer types truncated."""
    name = _name(dtype)
    x = np.asarray(x, np.float64)
    if name not in _FORMATS:
        return np.trunc(x)
    if name == "fp64":
        return x
    with np.errstate(all="ignore"):
        if name in ("fp16", "fp32"):
            return (_as_halves(x) if name == "fp16" else x.astype(np.float32)).astype(np.float64)
        f = _FORMATS[name]
        exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))[1]
        last = np.maximum(exponent - 1, f.least) - (f.digits - 1)
        scaled = np.ldexp(x, -last)
        whole = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled) if f.ties_away else np.rint(scaled)
        r = np.ldexp(whole, last)
        over = np.abs(r) > f.most
        if f.no_nan:
            r = np.where(np.isnan(x), f.most, r)
        if f.saturates:
            return np.where(over, np.copysign(f.most, x), r)
        return np.where(over, np.copysign(np.inf, x), np.where(np.isfinite(x), r, x))


def _as_halves(x: Any) -> Any:
    """As fp16. NumPy takes 70 ns for each subnormal number that it rounds, so these are rounded before."""
    small = np.abs(x) < 2.0**-14
    return (np.where(small, np.rint(x * 2.0**24) * 2.0**-24, x) if small.any() else x).astype(np.float16)


def _by_parts(function: Callable[[Any, str], Any]) -> Callable[[Any, DType | str], Any]:
    """A part at a time: what is computed on the way to an element takes many times the element's memory."""

    @functools.wraps(function)
    def whole(x: Any, dtype: DType | str) -> Any:
        x = np.asarray(x)
        if x.size <= _PART:
            return function(x, _name(dtype))
        flat = x.reshape(-1)
        parts = (function(flat[i : i + _PART], _name(dtype)) for i in range(0, x.size, _PART))
        first = next(parts)
        out = np.empty(x.size, first.dtype)
        out[:_PART] = first
        for i, part in enumerate(parts, 1):
            out[i * _PART : (i + 1) * _PART] = part
        return out.reshape(x.shape)

    return whole


_PART = 1 << 18


def as_scalar(x: Any, dtype: str) -> float | int:
    """A scalar argument as a kernel takes it: the nearest of its type, or an integer."""
    return float(nearest(float(x), dtype)) if is_float(dtype) else int(x)


@_by_parts
def encode(x: Any, name: str) -> Any:
    """The type's elements in memory, of doubles or integers."""
    with np.errstate(all="ignore"):
        if name == "fp16":
            return _as_halves(x)
        if name in ("i4", "u4"):
            return (x.astype(np.int64) & 15).astype(np.uint8)
        if name not in _BITS:
            return x.astype(storage(name))
        exponent_bits, fraction_bits, nans = _BITS[name]
        y = nearest(x, name)
        bias = (1 << (exponent_bits - 1)) - 1
        magnitude = np.abs(np.where(np.isfinite(y), y, 0.0))
        e = np.maximum(np.frexp(magnitude)[1] - 1, 1 - bias)
        scaled = np.ldexp(magnitude, fraction_bits - e).astype(np.int64)  # with the hidden digit
        hidden = 1 << fraction_bits
        bits = np.where(scaled >= hidden, ((e + bias) << fraction_bits) + scaled - hidden, scaled)
        top = ((1 << exponent_bits) - 1) << fraction_bits
        bits = np.where(np.isinf(y), top, bits)
        no_number = (1 << (exponent_bits + fraction_bits)) - 1 if nans == 1 else top | hidden >> 1
        bits = np.where(np.isnan(y), no_number, bits)
        return (bits | np.where(np.signbit(y), 1 << (exponent_bits + fraction_bits), 0)).astype(storage(name))


@_by_parts
def decode(x: Any, name: str) -> Any:
    """Doubles, of elements' bits; of integer types int64."""
    if name in ("i4", "u4"):
        return ((x.astype(np.int64) & 15) ^ 8) - 8 if name == "i4" else x.astype(np.int64) & 15
    if name not in _BITS:
        return x.astype(np.float64 if name in _FORMATS else np.int64)
    exponent_bits, fraction_bits, nans = _BITS[name]
    bits = x.astype(np.int64)
    fraction = bits & ((1 << fraction_bits) - 1)
    e = (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    hidden = np.where(e > 0, 1 << fraction_bits, 0)
    value = np.ldexp((fraction + hidden).astype(np.float64), np.maximum(e, 1) - bias - fraction_bits)
    if nans == 1:
        value = np.where((bits & 127) == 127, np.nan, value)
    elif nans is None:
        value = np.where(e == (1 << exponent_bits) - 1, np.where(fraction == 0, np.inf, np.nan), value)
    return np.where(bits >> (exponent_bits + fraction_bits) & 1, -value, value)
