"""A kernel's promise: a NumPy function of its arguments, and what else a judge needs to hold the kernel to it.

``gr.Kernel(name, means=, read=, arguments=, sums=)`` gives it (docs/simulator.md, "What a kernel promises"). Importing
this module needs no NumPy; the functions that compute import it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphene import _core

if TYPE_CHECKING:
    from graphene.dtypes import DType

__all__ = [
    "Arguments",
    "Judged",
    "Promise",
    "approximately",
    "call",
    "compensated",
    "is_array",
    "judged",
    "narrowed",
    "rounded",
    "state",
]


@dataclass(frozen=True)
class Arguments:
    """How to make sensible arguments of a kernel, if drawing each by itself does not.

    ``prepare(args, rng)`` changes drawn arguments in place. `args` is a dict of float64 and int64 arrays (lists of them
    for ``gr.inputs``) and numbers by name. ``args.draw(shape)`` gives data of the call's kind, ``args.kind`` its name,
    and ``args.sizes`` the sizes. ``sizes(s)`` changes drawn sizes and integer parameters, a dict by name, in place, for
    those that follow from others. ``values``: numbers to draw from, by the name of a symbol, a size, a scalar or a
    tensor of integers; sizes that threads count are also drawn one larger than the number of these threads. ``kinds``:
    the kinds of data that the promise covers, of ``graphene.judge.data.KINDS``; by default all.
    """

    prepare: Callable[[Any, Any], None] | None = None
    sizes: Callable[[dict[str, int]], None] | None = None
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    kinds: Sequence[str] | None = None


@dataclass(frozen=True)
class Promise:
    """The arguments ``means``, ``read``, ``arguments`` and ``sums`` of ``gr.Kernel``."""

    means: Callable[..., Any]
    read: Callable[..., Any] | None = None
    arguments: Arguments = Arguments()
    sums: DType | None = None


def make(means: Any, read: Any, arguments: Any, sums: Any) -> Promise | None:
    """The promise from ``gr.Kernel``'s arguments. Raises VerifyError KERNEL_ARGUMENT if they cannot be called."""

    def refuse(name: str, want: str, got: Any) -> None:
        _core.fail("KERNEL_ARGUMENT", f"gr.Kernel: {name} does not fit", [f"want: {want}", f"got: {got!r}"])

    for name, function in (("means", means), ("read", read)):
        if function is not None and not callable(function):
            refuse(name, "a function of the kernel's arguments", function)
    if arguments is not None and not callable(arguments) and not isinstance(arguments, Arguments):
        refuse("arguments", "prepare(args, rng) or gr.Arguments(...)", arguments)
    if sums is not None and not isinstance(sums, _core.DType):
        refuse("sums", "gr.fp16, gr.bf16, gr.fp32 or gr.fp64", sums)
    if means is None:
        if read is not None or sums is not None:
            refuse("means", "a function, which read= and sums= belong to", None)
        return None if arguments is None else Promise(_nothing, None, _arguments(arguments))
    return Promise(means, read, _arguments(arguments), sums)


def _arguments(given: Any) -> Arguments:
    if given is None:
        return Arguments()
    return given if isinstance(given, Arguments) else Arguments(given)


def _nothing(**_: Any) -> None:
    """The meaning of a kernel that only says how its arguments are made."""


def call(function: Callable[..., Any], available: Mapping[str, Any], kernel: str) -> Any:
    """Calls a function with the values that its parameters name; defaults stand for missing values.

    Raises SimulationError CHECK_MEANS for a parameter that has neither.
    """
    takes: dict[str, Any] = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            named = inspect.signature(function).parameters
            return function(**takes, **{n: x for n, x in available.items() if n not in named})
        if p.kind is p.VAR_POSITIONAL:
            continue
        if p.name in available:
            takes[p.name] = available[p.name]
        elif p.default is p.empty:
            _core.fail(
                "CHECK_MEANS",
                f"the meaning of {kernel} wants '{p.name}', which the kernel does not have",
                [f"want: one of {', '.join(available)}"],
                "give the parameter a default if a configuration may lack it",
            )
    return function(**takes)


# What a meaning states while it is evaluated: its rounding points.


@dataclass
class Judged:
    """The kernel whose meaning is evaluated: types of its tensors by name, and the rounding points that it states."""

    types: Mapping[str, str]
    stated: set[str] = field(default_factory=set)


def state(name: str) -> None:
    """States a rounding point, or an instruction whose error the meaning allows, of the kernel that is judged."""
    if (kernel := _JUDGED.get()) is not None:
        kernel.stated.add(name)


_JUDGED: ContextVar[Judged | None] = ContextVar("judged", default=None)


class judged:  # noqa: N801
    """Within it, ``gr.rounded`` knows the kernel's tensors."""

    def __init__(self, what: Judged) -> None:
        self._what = what

    def __enter__(self) -> Judged:
        self._token = _JUDGED.set(self._what)
        return self._what

    def __exit__(self, *_: object) -> None:
        _JUDGED.reset(self._token)


def is_array(x: Any) -> bool:
    """Whether it is an array or a number of NumPy's, or an array of numbers that know their error."""
    by_numpy = getattr(type(x), "__array_ufunc__", None)  # IntExpr sets it to None
    return by_numpy is not None and not hasattr(by_numpy, "of_registers")


def rounded(name: str, value: Any, by: Any = 1.0) -> Any:
    """The value as the kernel's tensor `name` holds it: states a rounding point in a meaning.

    A meaning must state a value that becomes narrower than fp32 and is then computed with. The type is the tensor's.
    `by`: the factor by which the value was multiplied before it was rounded; with None the factor is not known, and
    every value may be off by half a unit of its last place. Outside of a check the result is the value itself.
    """
    kernel = _JUDGED.get()
    if kernel is None:
        return value
    dtype = kernel.types.get(name)
    if dtype is None:  # reported when the stated points are compared with those found
        kernel.stated.add(name)
        return value
    from graphene.judge.formats import format_of, is_float

    if not is_float(dtype) or format_of(dtype).digits >= 24:
        return value
    kernel.stated.add(name)
    return narrowed(value, dtype, by)


def narrowed(value: Any, dtype: DType | str, by: Any = 1.0) -> Any:
    """The array rounded to a type, and its new error: the distance to the rounded ends of its interval."""
    import numpy as np

    from graphene.judge.bounded import Bounded, bounded, finite, size
    from graphene.judge.formats import format_of, is_float, nearest

    x = bounded(value)
    if not is_float(dtype):
        v = np.trunc(x)  # toward zero
        return v if isinstance(value, Bounded) else bounded(v).v
    f = format_of(dtype)
    with np.errstate(all="ignore"):
        if by is None:
            return Bounded(x.v, x.e + f.relative * (size(x.v) + x.e) + f.absolute)
        factor = by.v if isinstance(by, Bounded) else by
        v, e = x.v * factor, np.abs(x.e * factor)
        r = nearest(v, dtype)
        if not isinstance(value, Bounded):
            return r / factor
        low, high = nearest(v - e, dtype), nearest(v + e, dtype)
        spread = np.where(np.isinf(low) | np.isinf(high), 1e300, np.maximum(finite(high - r), finite(r - low)))
        return Bounded(r / factor, np.where(e > 0, np.minimum(spread / np.abs(factor), 1e300), 0.0))


def compensated(x: Any, axis: int, times: Any = 1) -> Any:
    """The sum along an axis, which stays, of a kernel that compensates for what rounding takes (Kahan).

    Its error does not grow with the number of terms. `times`: how often sums are multiplied on the way, for each sum.
    """
    from graphene.judge.bounded import Bounded, size, unit

    total = x.sum(axis, keepdims=True)
    if not isinstance(x, Bounded):
        return total
    roundings = unit() * (2 + 2 * times**0.5) * size(x.v).sum(axis, keepdims=True)
    return Bounded(total.v, x.e.sum(axis, keepdims=True) + roundings)


def approximately(formula: Callable[..., Any], *, absolute: Any = 0.0, relative: Any = 0.0) -> Callable[..., Any]:
    """A decorator that gives a function of registers its exact formula, and how far the function is from it.

    ``@gr.approximately(lambda x: 1 / (1 + np.exp(-x)), absolute=2**-20)`` stands above a function of registers. With
    arrays, the function then is the formula with that error. `absolute`, `relative`: numbers, or functions of the
    arguments' values.
    """

    def on_arrays(*xs: Any) -> Any:
        import numpy as np

        from graphene.judge.bounded import Bounded, bounded, finite, size

        y = formula(*xs)
        if not any(isinstance(x, Bounded) for x in xs):
            return y
        values = [bounded(x).v for x in xs]
        a, r = (f(*values) if callable(f) else f for f in (absolute, relative))
        y = bounded(y)
        return Bounded(y.v, np.minimum(y.e + finite(a) + finite(r) * size(y.v), 1e300))

    def decorate(*xs: Any) -> Any:
        if len(xs) == 1 and callable(xs[0]) and not is_array(xs[0]):
            function = xs[0]

            @functools.wraps(function)
            def either(*args: Any, **named: Any) -> Any:
                return on_arrays(*args) if any(map(is_array, args)) else function(*args, **named)

            return either
        return on_arrays(*xs)

    return decorate
