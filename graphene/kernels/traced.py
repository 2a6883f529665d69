"""Pointwise functions of registers as data: the expression that a function computes.

Kernels are kept by what they compute. A Python function cannot serve as a key: an equal function is another object, and
the same function computes something else after a variable changed. Its expression can.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core, dtypes
from graphene.expressions import Expression, _nodes
from graphene.promise import is_array, narrowed

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {1: "UnaryPointwise", 2: "BinaryPointwise", 3: "TernaryPointwise"}


@dataclass(frozen=True)
class Traced:
    """A function of one register. Equal objects compute the same.

    ``function``: the traced function, if it is known. It is called itself on arrays, for a kernel's meaning.

    ``text``: JSON, a list of steps, the last of which is the value. A step is "x", a number, or an operation and the
    steps that it takes: ``["x",0,["max",0,1]]``. A conversion names the type, "cast.fp16"; ".ftz", ".full" and
    ".approx" say how a function rounds.
    """

    text: str
    function: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Traced, (self.text,)

    @property
    def steps(self) -> tuple[Any, ...]:
        """The steps of the text. Raises ValueError for a text that is not valid."""
        return _steps(self.text)

    def __call__(self, x: Any) -> Any:
        """The expression of registers, or the number; for an array the values that registers would hold."""
        if is_array(x):
            return self.on_arrays(x) if self.function is None else _array_like(self.function(x), x)
        made: list[Any] = []
        for step in self.steps:
            if isinstance(step, list):
                op, *mode = step[0].split(".")
                to = getattr(dtypes, mode[0]) if op == "cast" else None
                args = tuple(made[i] for i in step[1:])
                made.append(Expression(KINDS[len(args)], op, args, to, _attrs(mode) if to is None else None))
            else:
                made.append(x if step == "x" else step)
        return made[-1]

    def on_arrays(self, x: Any) -> Any:
        """The same on an array, for a kernel's meaning, in which only conversions round."""
        made: list[Any] = []
        for step in self.steps:
            if isinstance(step, list):
                op, *mode = step[0].split(".")
                args = [made[i] for i in step[1:]]
                wide = op == "cast" and mode[0] not in ("fp32", "fp64")
                made.append(narrowed(args[0], mode[0]) if wide else _formulas()[_plain(step[0])](*args))
            else:
                made.append(x if step == "x" else step)
        return _array_like(made[-1], x)

    @property
    def has_formula(self) -> bool:
        """Whether `on_arrays` knows each step; it knows no conversions to narrow types, which round."""
        return all(_plain(s[0]) in _formulas() for s in self.steps if isinstance(s, list))


def _array_like(y: Any, x: Any) -> Any:
    """A function's value on an array as an array, even if it is one number."""
    import numpy as np

    return y if is_array(y) and getattr(y, "shape", ()) == x.shape else np.full_like(x, y)


@functools.lru_cache(maxsize=1024)
def _steps(text: str) -> tuple[Any, ...]:
    steps = json.loads(text)
    if not isinstance(steps, list) or not steps:
        raise ValueError(f"no steps: {text}")
    for at, step in enumerate(steps):
        if isinstance(step, list):
            op, *places = step
            known = isinstance(op, str) and (_plain(op) in _operations() or _is_cast(op))
            if not known or len(places) not in KINDS or any(type(i) is not int or not 0 <= i < at for i in places):
                raise ValueError(f"no step: {step}")
        elif step != "x" and not isinstance(step, int | float):
            raise ValueError(f"no step: {step}")
    return tuple(steps)


_MODES: dict[str, dict[str, Any]] = {
    "ftz": {"ftz": True},
    "full": {"accuracy": "full"},
    "approx": {"accuracy": "approx"},
}


def _attrs(modes: list[str]) -> dict[str, Any]:
    return {name: value for mode in modes for name, value in _MODES[mode].items()}


def _suffixes(attrs: dict[str, Any]) -> list[str]:
    return [mode for mode, means in _MODES.items() if means.items() <= attrs.items()]


def _plain(op: str) -> str:
    """The operation without what changes its rounding alone."""
    name, *modes = op.split(".")
    return name if all(m in _MODES for m in modes) else op


def _is_cast(op: str) -> bool:
    kind, _, name = op.partition(".")
    return kind == "cast" and isinstance(getattr(dtypes, name, None), _core.DType)


@functools.cache
def _operations() -> frozenset[str]:
    return frozenset(n for n in _formulas() if not n.startswith("cast."))


@functools.cache
def _formulas() -> dict[str, Callable[..., Any]]:
    import numpy as np

    from graphene.judge.functions import erf

    return {
        "neg": np.negative, "abs": np.abs, "not": np.logical_not, "exp2": np.exp2, "exp": np.exp, "log2": np.log2,
        "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: np.float64(1) / x,
        "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "erf": erf, "floor": np.floor, "ceil": np.ceil,
        "trunc": np.trunc, "round": np.rint, "pow": np.power, "fmod": np.fmod,
        "cast.fp32": lambda x: x, "cast.fp64": lambda x: x, "add": np.add, "sub": np.subtract,
        "mul": np.multiply, "div": np.divide, "and": np.logical_and, "or": np.logical_or, "lt": np.less,
        "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
        "max": np.fmax, "min": np.fmin, "fma": lambda x, y, z: x * y + z, "where": np.where,
    }  # fmt: skip


@functools.cache
def _register() -> Any:
    return gr.tensor("x", gr.Layout(1), gr.fp32, gr.RF)


def trace(function: Callable[[Any], Any]) -> Traced:
    """The expression that a function of one register computes now.

    Raises what the function raises, and TypeError for a function that takes or returns something else, such as more
    registers than the given one.
    """
    if isinstance(function, Traced):
        return function
    x = _register()
    got = function(x)
    if not isinstance(got, Expression | _core.Tensor | int | float):
        raise TypeError(f"it returned {type(got).__name__}, not registers or a number")
    steps: list[Any] = []
    for kind, *rest in _nodes(got):
        if kind in KINDS.values():
            op, args, to, attrs = rest
            steps.append([".".join([op, *([str(to)] if to is not None else _suffixes(attrs or {}))]), *args])
        elif kind == "tensor" and rest[0] is x:
            steps.append("x")
        elif kind != "tensor" and isinstance(rest[0], int | float):
            steps.append(rest[0])
        else:
            raise TypeError(f"it takes {rest[0]}, which is not its argument")
    return Traced(json.dumps(steps, separators=(",", ":")), function)


def as_data(activation: Any) -> Any:
    """A function of one register as data; any other object is returned unchanged."""
    if not callable(activation):
        return activation
    try:
        return trace(activation)
    except Exception:  # the kernel calls it, too, and reports the error then
        return activation
