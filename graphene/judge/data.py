"""Data that show mistakes: kinds of values, and arrays with the strides and alignments that arguments may have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graphene import _core
from graphene.judge.formats import encode, is_float, is_packed, join, range_of, split, storage
from graphene.judge.signature import Argument, Signature, evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KINDS", "Laid", "draw", "draw_integers", "given_of", "laid_as", "lay", "strides_of"]

KINDS = ("normal", "positive", "rising", "falling", "constant", "whole", "tiny", "large", "spike", "cold", "peak",
         "pit", "uneven", "infinite", "undefined")  # fmt: skip
_LOW = ("normal", "constant", "whole", "tiny")  # kinds in which integers are often equal
_HIGH = ("large", "peak", "spike")  # in which they are large
_NEGATIVE = ("falling", "cold", "pit")  # in which they are negative, or of either sign
_COLDEST = -2.0e9  # of elements of wide types: below -1e9, which masks hold
_FAR = -1500.0  # of fp16, which then has whole numbers alone
_HIGHEST = 1.0e6  # beyond all of fp16, and small enough for products of several


def draw(kind: str, shape: tuple[int, ...], rng: Any, wide: bool = False) -> Any:
    """Doubles of a kind; its rows run along the last dimension. ``wide``: for a type that fp32's exponents fit."""
    x = rng.standard_normal(shape)
    n = shape[-1] if shape else 1
    if not x.size:
        return x
    rows = x.reshape(-1, n)
    r: Any = np.arange(len(rows))
    turn = int(rng.integers(6))
    if kind == "positive":
        return np.abs(x) * 0.5 + 0.25
    if kind in ("rising", "falling"):
        x = x * 0.3 + (6 if kind == "rising" else -6) * (np.linspace(-1, 1, n) if n > 1 else np.zeros(n))
        others = shape[:-1]
        if others and max(others) > 1:  # row by row, too: maxima over rows grow again and again, from either end
            longest = others.index(max(others))
            later = np.linspace(0.25, 2, max(others))
            later = later if kind == "rising" else later[::-1]
            x = x * later.reshape([-1 if i == longest else 1 for i in range(len(shape))])
        return x
    if kind == "constant":
        return np.broadcast_to(np.round(x[..., :1] * 8) / 8, shape).copy() if shape else np.round(x * 8) / 8
    if kind == "whole":  # zeros of both signs
        return np.copysign(rng.integers(-2, 3, shape), x)
    if kind == "tiny":  # and of wide types so small that fp16 has no such number; squares are still numbers of fp32
        sizes = np.choose((r + turn) % 3, [2.0**-9, *((2.0**-40, 2.0**-54) if wide else (2.0**-9, 2.0**-13))])
        return (rows * sizes[:, None]).reshape(shape)
    if kind == "large":
        return x * 20
    if kind == "uneven":  # one row has little to do with the next
        small: Any = rng.integers(2, size=len(rows)) if len(rows) > 8 else (r + turn) % 2  # of few rows each second one
        others = shape[:-1]
        if turn > 3 and others and max(others) > 1:  # all rows up to some place are small, or all after it
            at = others.index(max(others))
            place = np.indices(others)[at].reshape(-1) < rng.integers(1, max(others))
            small = place if turn == 4 else ~place
        sizes = np.where(small, rng.choice([0.0, 2.0**-14, 0.125], len(rows)), 8.0)
        return (rows * sizes[:, None]).reshape(shape)
    if kind == "spike":
        rows[r, (r * 7) % n] = 30
    elif kind == "cold":  # and some below what may stand for minus infinity by mistake, in fp16 or in a wider type
        which = (r + turn) % 3
        low, apart = -62000.0, 200.0
        if turn % 2:  # few digits are left between such elements, or they are next to fp16's least number
            low, apart = (low, 1.0) if wide else (-65440.0, 20.0)
        # Of narrow types some rows lie far from zero, and yet close to each other: multiplied by anything but a power
        # of two, their elements lose digits of their distances.
        deep, spread = (np.choose(which, [x, y, z])[:, None]
                        for x, y, z in ((-200.0, _COLDEST if wide else _FAR, low),
                                        (1.0, -_COLDEST / 10 if wide else 3.0, apart)))  # fmt: skip
        rows[...] = rows * spread + deep
    elif kind in ("peak", "pit"):  # one element a row, at an edge or anywhere
        at = np.choose((r + turn) % 3, [np.zeros_like(r), np.full_like(r, n - 1), ((r + turn) * 5) % n])
        rows[r, at] = np.where(wide & ((r + turn) % 2 == 1), _HIGHEST, 300.0) * (1 if kind == "peak" else -1)
    elif kind == "undefined":  # one element a row is not a number, so that nothing else hides that it was forgotten
        rows[r, np.choose((r + turn) % 3, [0, n - 1, n // 2])] = np.nan
    elif kind == "infinite":
        what, place = (r + turn) % 6, int(rng.integers(3))
        at = np.choose((r // 2 + r // 6 + place) % 3, [0, n - 1, n // 2])  # each of them at each place
        rows[what == 2] = -np.inf
        rows[what == 4] -= 200
        rows[what == 5] = np.where(np.arange(n) // max(n // 8, 1) == place * 3, rows[what == 5] - 200, -np.inf)  # a few
        for i, value in enumerate((-np.inf, np.nan, None, np.inf)):
            if value is not None:
                rows[what == i, at[what == i]] = value
        if len(rows) == 1 and what[0] > 3:  # a vector has something of it in every call
            rows[0, [0, n // 2, n - 1]] = np.inf, np.nan, -np.inf
    return rows.reshape(shape)


def draw_integers(
    dtype: str,
    shape: tuple[int, ...],
    rng: Any,
    kind: str,
    allowed: tuple[int, int, int] | None,
    bits: bool = False,
    added: bool = False,
) -> Any:
    """Integers of a kind.

    ``allowed``: the least and the largest element and what all are multiples of, if the kernel makes indices of them;
    kinds reach the lower end, where they are often equal, the upper end, or all between. Others are small, negative,
    or so large that half of the type's bits are not enough, or, in 32 bits, ones that fp32 does not hold: at the
    ends of the type, or if elements are ``added`` or multiplied, some of which sums still fit. Of 8 bits they are any,
    and of up to 32 bits if the kernel shifts ``bits``.
    """
    if dtype == "pred":
        return rng.integers(0, 2, shape)
    width, (low, high) = _core.dtype(dtype).bits, range_of(dtype)
    if allowed is not None:
        least, most, step = allowed
        first = -(-max(least, low) // step)
        last = max(min(most, high) // step, first)
        if kind in _LOW:
            last = min(last, first + 63)
        elif kind in _HIGH:
            first = max(first, last - 63)
        x = rng.integers(first, last + 1, shape)
        if x.size > 1 and kind not in _LOW:
            x.reshape(-1)[rng.integers(x.size)] = last
        return x * step
    if width <= 8 and kind != "whole":
        return rng.integers(low, high + 1, shape)
    if bits and kind != "whole" and width <= 32:
        return rng.integers(low, high + 1, shape)
    if kind in _HIGH:  # sums and products of some still fit
        half = 2 ** (width // 2 - 1 if width < 64 else 35)
        x = rng.integers(max(low, -half), half + 1, shape)
        if kind == "peak" and width == 32:
            odd = 2**24 + 1
            ends = np.array([odd, max(low, -odd)] if added else [low, low + 1, odd, high - 6, high])
            x = np.where(x % 2 == 0, ends[x // 2 % len(ends)], x)
        return x
    if kind == "rising":
        return rng.integers(0, min(high, 999) + 1, shape)
    if kind in _NEGATIVE and low < 0:
        return rng.integers(-9, 0, shape) if kind == "cold" else rng.integers(-8, 9, shape)
    return rng.integers(0, 9, shape)


class Laid:
    """A tensor in memory: its bytes, and the argument, a view of them. NaN lies between its lines."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], argument: Argument, odd: bool) -> None:
        self.dtype = argument.dtype
        self._shape, self._steps = shape, strides  # in elements
        kind = storage(argument.dtype)
        shape, strides = self._of_array()
        elements = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True)) if math.prod(shape) else 1
        align = max(argument.align_bytes, kind.itemsize)
        raw = np.zeros(elements * kind.itemsize + 3 * align, np.uint8)
        start = -raw.ctypes.data % (2 * align) + (align if odd else 0)  # aligned as declared, and no more than that
        self.memory = raw[start : start + elements * kind.itemsize].view(kind)
        self.memory[...] = encode(math.nan, self.dtype) if is_float(self.dtype) else 0
        self._array = np.lib.stride_tricks.as_strided(self.memory, shape, [s * kind.itemsize for s in strides])

    def _of_array(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The array's shape and strides."""
        return self._shape, self._steps

    @property
    def view(self) -> Any:
        """The tensor's elements as an array of their bits."""
        return self._array

    def copy(self) -> Laid:
        """The same tensor in memory of its own."""
        out = type(self).__new__(type(self))
        out.__dict__.update(self.__dict__, memory=self.memory.copy())
        out._array = np.lib.stride_tricks.as_strided(out.memory, self._array.shape, self._array.strides)
        return out

    def part(self, mask: bytes) -> Any:
        """The tensor's part of an array with a byte for each element in memory."""
        flat = np.frombuffer(mask, np.uint8)
        if not self._array.size:
            return np.zeros(self._shape, bool)
        return np.lib.stride_tricks.as_strided(flat, self._shape, self._steps) != 0

    def put(self, values: Any) -> None:
        """Writes doubles or integers, rounded to the type."""
        self._array[...] = encode(values, self.dtype)

    @property
    def given(self) -> Any:
        """The argument that is passed to the kernel."""
        return given_of(self._array, self.dtype)

    def between(self, before: Any) -> bool:
        """Whether the bytes between the lines are unchanged since ``before``."""
        if self._array.size == self.memory.size and self._array.flags.forc:
            return True  # nothing is between them
        now, (shape, strides) = self.memory.copy(), (self._array.shape, self._array.strides)
        np.lib.stride_tricks.as_strided(now, shape, strides)[...] = np.lib.stride_tricks.as_strided(
            before, shape, strides)  # fmt: skip
        return bool((now.view(np.uint8) == before.view(np.uint8)).all())


class LaidPairs(Laid):
    """A tensor whose elements share bytes: `memory` holds the bytes, and `view` is a copy of the elements' bits.

    The mode of stride 1 has an even size, and all other strides are even.
    """

    @property
    def _axis(self) -> int:
        lines = [i for i, (n, s) in enumerate(zip(self._shape, self._steps, strict=True)) if s == 1 and n > 1]
        return lines[0] if lines else len(self._shape) - 1

    def _of_array(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (tuple(n // 2 if i == self._axis else n for i, n in enumerate(self._shape)),
                tuple(s if i == self._axis else s // 2 for i, s in enumerate(self._steps)))  # fmt: skip

    @property
    def view(self) -> Any:
        """The tensor's elements as an array of their bits."""
        return split(self._array, self._axis)

    def put(self, values: Any) -> None:
        """Writes doubles or integers, rounded to the type."""
        self._array[...] = join(encode(values, self.dtype), self._axis)


def laid_as(dtype: str) -> type[Laid]:
    """The class of tensors with elements of a type."""
    return LaidPairs if is_packed(dtype) else Laid


def given_of(view: Any, dtype: str) -> Any:
    """The argument for a kernel, from an array that holds a type's bits."""
    t = _core.dtype(dtype)
    return view if t.in_numpy else Typed(view, t.array_name)


class Typed:
    """An array of a type that NumPy lacks: its bits, under the type's name, as ml_dtypes describes its own."""

    class _Type:
        def __init__(self, name: str) -> None:
            self.name = name

    def __init__(self, bits: Any, name: str) -> None:
        self._bits, self.dtype = bits, Typed._Type(name)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's protocol."""
        return {**self._bits.__array_interface__, "typestr": f"<V{self._bits.itemsize}", "descr": []}


def strides_of(
    signature: Signature, sizes: dict[str, int], wider: bool, multiples: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Values for the symbols that are strides: the smallest with which nothing overlaps, or one step wider.

    ``multiples``: what a symbol's values are multiples of, if more than its facts say.
    """
    known = dict(sizes)
    missing = [n for n in signature.symbols if n not in known]
    while missing:
        wanted: dict[str, int] = {}
        for a in signature.tensors:
            inside, innermost = 1, None
            for n, s in zip(a.sizes, a.strides, strict=True):
                if isinstance(s, str) and s in missing:
                    innermost = s
                    continue
                try:
                    inside += max(evaluate(n, known) - 1, 0) * evaluate(s, known)
                except NameError:
                    continue
            if innermost is not None:
                wanted[innermost] = max(wanted.get(innermost, 0), inside)
        name = next((n for n in missing if n in wanted), missing[0])
        facts = signature.symbols[name]
        m = (multiples or {}).get(name, facts.multiple_of)
        value = -(-max(wanted.get(name, 1), facts.least) // m) * m
        known[name] = value + m if wider and value + m <= facts.most else value
        missing.remove(name)
    return known


def lay(signature: Signature, argument: Argument, sizes: Mapping[str, int], odd: bool) -> Laid | list[Laid]:
    """An argument's memory at some sizes and strides."""
    shape = signature.shape(argument, sizes)
    strides = tuple(evaluate(s, sizes) for s in argument.strides)
    of = laid_as(argument.dtype)
    if argument.count is None:
        return of(shape, strides, argument, odd)
    return [of(shape, strides, argument, odd) for _ in range(argument.count)]
