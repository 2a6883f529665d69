"""Meanings of generic specs: functions of arrays, known by name.

``gr.spec(out, ins, means=function)`` stores the function's name in the kernel. So the text names the meaning, and
``kernel.check()`` finds the function again, even after ``gr.parse``, once it has been registered in that process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["evaluate", "reference"]

Function = TypeVar("Function", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def reference(function: Function) -> Function:
    """Registers a reference function under its name, as a decorator or a call, and returns the function.

    The function takes a spec's inputs in order, as float64 arrays of their logical shapes (numbers unchanged), and
    returns the output, or a tuple of outputs. A spec that changes its output in place lists it among its inputs. A
    later function of the same name replaces the earlier one. Raises ValueError for a function without a name (a
    lambda).
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ValueError(f"a reference needs a name, got {name or function!r}: define it with def")
    _FUNCTIONS[name] = function
    return function


def name_of(means: str | Callable[..., Any]) -> str:
    """The text of a spec's meaning: a function is registered and named."""
    return means if isinstance(means, str) else reference(means).__name__


def evaluate(
    name: str, inputs: list[tuple[list[int], list[float]]], shapes: list[list[int]]
) -> list[list[float]] | str:
    """The outputs of a reference as flat lists, the first dimension fastest; or why there are none, in words."""
    import numpy as np

    function = _FUNCTIONS.get(name)
    if function is None:
        known = ", ".join(sorted(_FUNCTIONS)) or "none"
        return f"no reference has this name; there are: {known}"
    arrays = [np.array(values).reshape(shape, order="F") for shape, values in inputs]
    try:
        with np.errstate(all="ignore"):
            result = function(*arrays)
    except Exception as e:  # any error of the user's function is reported as its own
        return f"it raised {type(e).__name__}: {e}"
    outputs = result if isinstance(result, tuple) else (result,)
    if len(outputs) != len(shapes):
        return f"want: {len(shapes)} outputs, got: {len(outputs)}"
    flat = []
    for output, shape in zip(outputs, shapes, strict=True):
        array = np.asarray(output, dtype=np.float64)
        if array.shape != tuple(shape):
            return f"want: an output of shape {tuple(shape)}, got: {array.shape}"
        flat.append(array.reshape(-1, order="F").tolist())
    return flat
