"""What a graph computes, by NumPy in float64: the meaning that plans are held to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphene.plan.values import Axis, Value, ordered, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["check_array", "evaluate"]


def _erf(x: Any) -> Any:
    import numpy as np

    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _formulas() -> dict[str, Callable[..., Any]]:
    import numpy as np

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def gelu_tanh(x: Any) -> Any:
        return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))

    return {
        "neg": np.negative, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2,
        "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: 1 / x, "tanh": np.tanh, "erf": _erf,
        "relu": lambda x: np.maximum(x, 0), "sigmoid": sigmoid, "silu": lambda x: x * sigmoid(x),
        "gelu": lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))), "gelu_tanh": gelu_tanh,
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
        "lt": np.less, "le": np.less_equal, "eq": np.equal,
    }  # fmt: skip


def _spread(x: Any, of: tuple[Axis, ...], to: tuple[Axis, ...]) -> Any:
    """The array with an axis of extent 1 where it lacks one of `to`."""
    return x.reshape([x.shape[of.index(a)] if a in of else 1 for a in to])


def _windows(v: Value, x: Any, of: tuple[Axis, ...]) -> Any:
    """The windows of an array, whose own size decides how many there are."""
    import numpy as np

    m, at = v.more, of.index(v.more["along"])
    size, places = x.shape[at], m["over"].size
    count = (size + 2 * m["padding"] - places) // m["stride"] + 1
    index = np.arange(count)[:, None] * m["stride"] + np.arange(places) - m["padding"]
    inside = (index >= 0) & (index < size)
    taken = np.take(x, np.where(inside, index, 0), axis=at)
    taken = np.where(inside.reshape([1] * at + list(inside.shape) + [1] * (x.ndim - at - 1)), taken, 0.0)
    now = [*of[:at], m["to"], m["over"], *of[at + 1 :]]
    return np.transpose(taken, [now.index(a) for a in v.axes])


def _at(v: Value, element: tuple[Any, tuple[Axis, ...]], index: tuple[Any, tuple[Axis, ...]]) -> Any:
    """Elements along an axis by their indices; not a number where an index lies outside."""
    import numpy as np

    axis, (x, of), (i, of_index) = v.more["axis"], element, index
    n = x.shape[of.index(axis)]
    lines = _spread(
        np.moveaxis(x, of.index(axis), -1), tuple([*(a for a in of if a is not axis), axis]), (*v.axes, axis)
    )
    places = _spread(i, of_index, v.axes)
    inside = (places >= 0) & (places < n)
    shape = np.broadcast_shapes(lines.shape[:-1], places.shape)
    taken = np.broadcast_to(np.where(inside, places, 0).astype(np.int64), shape)[..., None]
    found = np.take_along_axis(np.broadcast_to(lines, (*shape, n)), taken, -1)[..., 0]
    return np.where(inside, found, np.nan)


def check_array(v: Value, arrays: Mapping[str, Any], sizes: dict[Axis, int]) -> None:
    """Refuses other things than an array of an input. `sizes`: those that arrays gave to axes, which must agree."""
    import numpy as np

    name, stored = v.more.get("of", v.name), v.more["stored"]
    if name not in arrays:
        refuse("an input without an array", f"want: {name}", f"got: {', '.join(map(str, arrays))}")
    try:
        shape = np.asarray(arrays[name], np.float64).shape
    except (TypeError, ValueError, OverflowError) as e:
        raise TypeError(f"the array of input {name} must be of numbers: {e}") from None
    known = [a.size for a in stored]
    if None not in known and len(shape) != len(stored):
        fits = math.prod(shape) == math.prod(n or 1 for n in known)  # imported: dimensions as digits
    else:
        pairs = zip(stored, shape, strict=False)
        fits = len(shape) == len(stored) and all(n == sizes.setdefault(a, n) for a, n in pairs)
    if not fits:
        want = ", ".join(f"{a.name} = {sizes.get(a, a.symbol if a.size is None else a.size)}" for a in stored)
        refuse(f"the array of input {name} has another shape", f"want: {want}", f"got: {list(shape)}")


def evaluate(v: Value, args: list[tuple[Any, tuple[Axis, ...]]], arrays: Mapping[str, Any], rounded: bool) -> Any:
    """A value, of its arguments with their axes."""
    import numpy as np

    with np.errstate(all="ignore"):
        if v.op == "input":
            x = np.asarray(arrays[v.more.get("of", v.name)], np.float64)
            if all(a.size is not None for a in v.axes) and x.ndim != len(v.axes):  # imported: dimensions as digits
                x = x.reshape([a.size or 1 for a in v.more["stored"]])
            return np.transpose(x, [v.more["stored"].index(a) for a in v.axes])
        if v.op == "number":
            return np.float64(v.more["value"])
        if v.op == "round":
            if not rounded:
                return args[0][0]
            from graphene.judge.formats import nearest

            return nearest(args[0][0], str(v.more["dtype"]))
        if v.op == "dot":
            every = ordered(*(a for _, a in args))
            letters = {a: chr(97 + i) for i, a in enumerate(every)}
            ins = ",".join("".join(letters[a] for a in of) for _, of in args)
            out = "".join(letters[a] for a in v.axes)
            return np.einsum(f"{ins}->{out}", *(x for x, _ in args), optimize=True)
        if v.op == "window":
            ((x, of),) = args
            return _windows(v, x, of)
        if v.op == "at":
            return _at(v, *args)
        if "axis" in v.more:
            ((x, of),) = args
            if v.op == "argmax":
                return np.argmax(np.where(np.isnan(x), -np.inf, x), axis=of.index(v.more["axis"]))
            name = {"max": "nanmax", "min": "nanmin"}.get(v.op, v.op)  # a number, where there is one, as on a GPU
            return getattr(np, name)(x, axis=of.index(v.more["axis"]))
        spread = [_spread(x, of, v.axes) for x, of in args]
        return np.where(*spread) if v.op == "where" else _formulas()[v.op](*spread)
