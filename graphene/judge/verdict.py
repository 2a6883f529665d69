"""Evaluates a kernel's promise and compares the kernel's outputs with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from graphene import _core
from graphene import promise as _promise
from graphene.errors import GrapheneError
from graphene.judge.bounded import FP32, TINY, Bounded, bounded, finite, rounding_unit, size
from graphene.judge.formats import Format, as_scalar, decode, format_of, is_float, is_packed, nearest, range_of, split
from graphene.judge.signature import Argument, Signature
from graphene.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphene.promise import Promise
    from graphene.recorded import Recorded

__all__ = ["Broken", "Wanted", "compare", "doubles", "expect", "hold", "judge_outputs"]


_PART = 1 << 18  # the most elements that are compared at once


@dataclass(frozen=True)
class Broken:
    """The element of an output that is furthest outside of its interval.

    ``got`` is its value, ``low`` and ``high`` are the interval's ends, and ``elements`` of ``of`` elements are outside.
    """

    output: str
    element: tuple[int, ...]
    got: float
    low: float
    high: float
    elements: int
    of: int

    def __str__(self) -> str:
        at = ", ".join(map(str, self.element))
        one = self.low == self.high or self.low != self.low
        want = f"{self.low:.9g}" if one else f"{self.low:.9g} to {self.high:.9g}"
        return f"{self.output}[{at}] is {self.got:.9g}, want: {want} ({self.elements} of {self.of} elements are wrong)"


@dataclass(frozen=True)
class Wanted:
    """The right values of the outputs, as `read=` gives them, and the rounding points that the meaning stated."""

    values: dict[str, Bounded]
    stated: frozenset[str]


_MULTIPLIED = ("fp16", "fp8e4m3", "fp8e5m2")  # by matrix instructions; other types have fp32's exponents


def unit_of(kernel: Recorded, promise: Promise) -> tuple[float, float, float]:
    """The arguments of `rounding_unit` for the kernel, from the types of its sums and of what it multiplies."""
    signature = Signature.of(kernel)
    normal = max((2.0 ** format_of(t).least for t in _MULTIPLIED if t in signature.types.values()), default=0.0)
    if promise.sums is not None:
        sums = format_of(promise.sums)
        return sums.relative, max(sums.absolute, TINY), normal
    floats = [a.dtype for a in signature.outputs if is_float(a.dtype)]
    fp64 = floats and all(d == "fp64" for d in floats)
    return (format_of("fp64").relative if fp64 else FP32), TINY, normal


def _exact(value: Any) -> Any:
    if isinstance(value, list):
        return [_exact(x) for x in value]
    if isinstance(value, float):  # with it integers become numbers that are rounded
        return bounded(np.float64(value))
    return bounded(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


def _refuse(kernel: Recorded, what: str, details: list[str], fix: str = "") -> NoReturn:
    _core.fail("CHECK_MEANS", f"the meaning of {kernel.name} {what}", details, fix)


def _named(kernel: Recorded, result: Any, names: list[str], of: str) -> dict[str, Any]:
    if result is None:
        return {}
    if isinstance(result, dict):
        return result
    if len(names) != 1:
        parts = ", ".join(f'"{n}": ...' for n in names)
        _refuse(kernel, f"does not say what each {of} is", [f"want: a dict of {', '.join(names)}",
                                                            f"got: {type(result).__name__}"],
                f"return {{{parts}}}")  # fmt: skip
    return {names[0]: result}


def expect(kernel: Recorded, values: Mapping[str, Any], partial: bool = False) -> Wanted:
    """The right outputs of a kernel for some arguments, a dict by name of float64 and int64 arrays, and numbers.

    ``partial``: the meaning may leave outputs out. Raises SimulationError CHECK_MEANS for a meaning that does not fit,
    or that raises an error itself.
    """
    promise = kernel.promise
    if promise is None:
        _refuse(kernel, "is not known", [], "write gr.Kernel(name, means=...), or kernel.with_promise(means=...)")
    signature = Signature.of(kernel)
    outputs = [a.name for a in signature.outputs]
    judged = _promise.Judged(signature.types)
    available = {n: _exact(x) for n, x in values.items()}
    with rounding_unit(*unit_of(kernel, promise)), _promise.judged(judged), np.errstate(all="ignore"):
        try:
            result = _promise.call(promise.means, available, kernel.name)
        except GrapheneError:
            raise
        except Exception as e:  # an error of the author's function is reported as its own
            _refuse(kernel, f"raised {type(e).__name__}: {e}", [])
    wanted = _named(kernel, result, outputs, "output")
    whole = promise.read is None and promise.means is not _promise._nothing and not partial
    if whole and set(wanted) != set(outputs):
        _refuse(kernel, "must name every output", [f"want: {', '.join(outputs)}",
                                                     f"got: {', '.join(wanted) or 'nothing'}"],
                "give None for one of which nothing is promised")  # fmt: skip
    return Wanted({n: bounded(x) for n, x in wanted.items() if x is not None}, frozenset(judged.stated))


def compare(got: Any, want: Bounded, dtype: str) -> tuple[Any, Any, Any, Any]:
    """Which elements of an output are outside of their interval, their errors in units of the bound, and the interval's
    two ends.

    ``got``: float64, or int64 for an integer type. A result g of type T is right if and only if round_T(x - e) <= g <=
    round_T(x + e). If e is infinite, g must still be finite if x is. A zero that was only moved keeps its sign.
    """
    g = np.asarray(got, np.float64)
    v, e = want.v, want.e
    with np.errstate(all="ignore"):
        low, high = np.where(np.isfinite(v), v - e, v), np.where(np.isfinite(v), v + e, v)
        half: Any = 0.5
        center = v
        large: Any = False
        if dtype and not is_float(dtype):  # of a sum that no number of the type is, nothing is promised
            least, most = range_of(dtype)
            large = (v < least) | (v > most)
        if is_float(dtype):
            f: Format = format_of(dtype)
            low, center, high = (nearest(x, dtype) for x in (low, v, high))
            half = np.maximum(np.ldexp(f.relative, np.frexp(size(v))[1] - 1), f.absolute)
            # Beyond the largest number: it, or infinity, whichever way the conversion goes.
            large = (high >= f.most) & (g >= f.most) | (low <= -f.most) & (g <= -f.most)
        inside = (g >= low) & (g <= high)
        if want.moved:
            inside &= (np.signbit(g) == np.signbit(v)) | (g != 0)
        unsure = ~np.isfinite(e) | (e > 1e290)
        right = inside | large | (np.isnan(g) & np.isnan(v)) | (unsure & (np.isfinite(g) | ~np.isfinite(v)))
        gap = np.where(g > center, high - center, center - low)
        room = np.where(unsure | np.isinf(gap), 1e300, np.maximum(finite(gap), half))
        known = np.isfinite(g) & np.isfinite(center)
        off = np.where(known, np.abs(g - center), np.where(right, 0.0, np.inf)) / room
        # Of what is right, how far the nearest number is that rounds to it.
        least = np.maximum(np.abs(g - v) - half, 0.0) / np.maximum(e, 1e-300)
        off = np.where(right, np.where(known & ~unsure & (g != center), np.minimum(least, 1.0), 0.0), off)
    return ~right, off, low, high


def _read_ends(got: Bounded, want: Bounded, most: float) -> tuple[Any, Any, Any, Any]:
    """As ``compare``, for values read from outputs whose largest number is `most`: beyond it infinity is right."""
    with np.errstate(all="ignore"):
        room = got.e + want.e
        finite_both = np.isfinite(got.v) & np.isfinite(want.v)
        off = np.where(finite_both, np.abs(got.v - want.v), 0.0) / np.maximum(room, 1e-300)
        same = (got.v == want.v) | (np.isnan(got.v) & np.isnan(want.v))
        same |= np.isinf(got.v) & (np.abs(want.v + np.copysign(want.e, got.v)) >= most) & (got.v * want.v > 0)
        # Where nothing is known, any value is right, except NaN where a number is wanted.
        same |= (room > 1e290) & (np.isfinite(got.v) | ~np.isfinite(want.v))
        wrong = np.where(finite_both, np.abs(got.v - want.v) > room, ~same)
    return wrong, np.where(wrong & ~finite_both, np.inf, off), want.v - room, want.v + room


def judge_outputs(
    kernel: Recorded,
    wanted: Wanted,
    values: Mapping[str, Any],
    results: Mapping[str, Any],
    only: Mapping[str, Any] | None = None,
) -> tuple[list[Broken], float, str]:
    """Compares outputs with the right ones: the wrong outputs, the largest error in units of the bound, and its place.

    ``values``: the arguments before; ``results``: the outputs after, float64 and int64 by name. ``only``: the elements
    of each output that count, except for outputs with `read=`.
    """
    signature = Signature.of(kernel)
    promise = kernel.promise
    types: dict[str, str] = {a.name: a.dtype for a in signature.outputs}
    got: dict[str, Any] = {n: results[n] for n in types}
    read = promise.read if promise is not None else None
    if read is not None:
        available = {n: _exact(x) for n, x in values.items()}
        for n, x in got.items():
            if is_float(types[n]):
                f = format_of(types[n])
                available[n] = Bounded(x, f.relative * size(x) + f.absolute)
            else:
                available[n] = x
        with rounding_unit(FP32), np.errstate(all="ignore"):
            result = _promise.call(read, available, kernel.name)
        got = _named(kernel, result, list(wanted.values), "output")
    most = min((format_of(t).most for t in types.values() if is_float(t)), default=np.inf)
    out: list[Broken] = []
    worst, place = 0.0, ""
    for name, want in wanted.values.items():
        if name not in got:
            _refuse(kernel, f"names '{name}', which it does not write", [f"want: {', '.join(got)}"])
        x = got[name]
        if x.shape != want.shape:
            _refuse(kernel, f"gives '{name}' another shape", [f"want: {x.shape}", f"got: {want.shape}"])
        if not x.size:
            continue
        chosen = np.flatnonzero(only[name]) if only is not None and read is None else None
        if chosen is not None:
            if not chosen.size:
                continue
            x, want = np.reshape(x, -1)[chosen], want.reshape(-1)[chosen]
        shape = got[name].shape
        far = _furthest(x, want, types.get(name, ""), most if read is not None else None)
        at = far.at if chosen is None else int(chosen[far.at])
        element = tuple(int(i) for i in np.unravel_index(at, shape))
        if far.off > worst or far.wrong:
            worst, place = max(worst, far.off), f"{name}[{', '.join(map(str, element))}]"
        if far.wrong:
            out.append(Broken(name, element, far.got, far.low, far.high, far.wrong, x.size))
    return out, worst, place


class _Far(NamedTuple):
    """The element of an output with the largest error in units of the bound, and how many elements are wrong."""

    at: int
    off: float
    got: float
    low: float
    high: float
    wrong: int


def _furthest(got: Any, want: Bounded, dtype: str, most: float | None) -> _Far:
    """Compares a part at a time, because a comparison needs more memory than the outputs. ``most``: for outputs with
    `read=`, their type's largest number.
    """
    g = got if isinstance(got, Bounded) else None
    values, v, e = (np.reshape(a, -1) for a in (g.v if g is not None else got, want.v, want.e))
    errors = np.reshape(g.e, -1) if g is not None else None
    worst: _Far | None = None
    wrong_in_all = 0
    for i in range(0, len(v), _PART):
        part = slice(i, i + _PART)
        wanted = Bounded(v[part], e[part], want.moved)
        if most is None:
            wrong, off, low, high = compare(values[part], wanted, dtype)
        else:
            wrong, off, low, high = _read_ends(
                Bounded(values[part], errors[part] if errors is not None else 0.0), wanted, most
            )
        n = int(wrong.sum())
        wrong_in_all += n
        k = int(np.argmax(np.where(wrong, np.minimum(off, 1e299) + 1, 0.0) if n else off))
        if worst is None or (n and not worst.wrong) or (bool(n) == bool(worst.wrong) and off[k] > worst.off):
            worst = _Far(i + k, float(off[k]), float(values[i + k]), float(low[k]), float(high[k]), n)
    assert worst is not None
    return worst._replace(wrong=wrong_in_all)


def doubles(kernel: Recorded, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments for a meaning: float64 and int64 arrays of NumPy, and numbers rounded to their type."""
    out: dict[str, Any] = {}
    for a in Signature.of(kernel).arguments:
        x = arguments[a.name]
        if not isinstance(a, Argument):
            out[a.name] = as_scalar(x, a.dtype)
        elif a.count is not None:
            out[a.name] = [as_double(t, a.dtype) for t in x]
        else:
            out[a.name] = as_double(x, a.dtype)
    return out


def axis_of_bytes(x: Any) -> int:
    """The dimension of an array of bytes along which they lie next to each other; of several the last one."""
    strides = tuple(x.stride() if hasattr(x, "detach") else x.strides)
    lines = [i for i, s in enumerate(strides) if s == 1]
    return max(lines, key=lambda i: (x.shape[i] > 1, i), default=len(strides) - 1)


def as_double(x: Any, dtype: str) -> Any:
    """An array or CPU tensor as float64, or as int64 for an integer type; always a copy.

    Of elements that share bytes an array holds the bytes.
    """
    if is_packed(dtype):
        line = axis_of_bytes(x)
        return decode(split(x.detach().numpy() if hasattr(x, "detach") else x, line), dtype)
    if hasattr(x, "detach"):
        x = x.detach()
        x = (x.double() if is_float(dtype) else x.long()).numpy()
    return np.array(x, np.float64 if is_float(dtype) else np.int64)


def hold(kernel: Recorded, arguments: Mapping[str, Any], arch: str | None = None, seed: int = 0) -> list[Broken]:
    """Runs a call on copies of its arguments, holds the outputs to the kernel's promise, and returns what is wrong.

    ``arguments``: arrays, CPU tensors and numbers by name. Raises what ``simulate`` raises, and CHECK_MEANS.
    """
    copies = {n: _copy(x) for n, x in arguments.items()}
    before = doubles(kernel, arguments)
    simulate(kernel, (), copies, arch, seed)
    return judge_outputs(kernel, expect(kernel, before), before, doubles(kernel, copies))[0]


def _copy(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_copy(t) for t in x]
    if hasattr(x, "detach"):
        return x.detach().clone()
    return x.copy(order="K") if isinstance(x, np.ndarray) else x
