"""Checks of the arguments of this folder's functions, before anything is built, so that an error names the argument."""

from __future__ import annotations

import inspect
import operator
from typing import Any

from graphene import _core
from graphene.dtypes import DType

__all__ = [
    "FLOATS",
    "MOST_BLOCKS_YZ",
    "align",
    "choice",
    "element",
    "flags",
    "function",
    "instance",
    "number",
    "size",
    "sizes",
    "small_weights",
    "strides_elems",
    "vectors",
]

FLOATS = ("fp16", "bf16", "fp32")  # the types that kernels which work in fp32 read and write
MOST_BLOCKS_YZ = 65535  # along a grid's second and third dimension


def size(kernel: str, name: str, value: object, multiple_of: int = 1, least: int = 1, most: int | None = None) -> int:
    """The integer. Raises VerifyError KERNEL_ARGUMENT unless it is an integer within the limits."""
    least = max(least, multiple_of) if multiple_of > 1 else least
    want = f"an integer from {least} to {most}" if most is not None else f"an integer, {least} or more"
    if multiple_of > 1:
        want += f", a multiple of {multiple_of}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} is not an integer", [f"want: {want}", f"got: {value!r}"])
    if number < least or (most is not None and number > most) or number % multiple_of:
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} does not fit", [f"want: {want}", f"got: {value}"])
    return number


def number(kernel: str, name: str, value: object, positive: bool = False) -> float:
    """The number. Raises VerifyError KERNEL_ARGUMENT unless it is a finite number, 0 or more (or `positive`)."""
    fits = not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < float("inf")
    if not fits or (positive and not value):
        want = f"want: a number, {'more than 0' if positive else '0 or more'}"
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} does not fit", [want, f"got: {value!r}"])
    return value  # type: ignore[return-value]


_EPILOGUE = "of the accumulators and the bias, such as lambda x, b: gr.max(x + b, 0)"


def function(kernel: str, name: str, value: Any, given: list[str] | None = None, of: str = _EPILOGUE) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless it can be called with `given`; `of` says in words what it must be."""
    if not callable(value):
        want = f"want: a function {of}"
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} cannot be called", [want, f"got: {value!r}"])
    try:
        if given is not None:
            inspect.signature(value).bind(*given)
    except TypeError as e:
        details = [f"given: {', '.join(given or [])}", f"but: {e}"]
        _core.fail(
            "KERNEL_ARGUMENT", f"{kernel}: the {name} takes other arguments", details, "pass a function of these"
        )
    except ValueError:  # its signature is not known
        pass


def sizes(kernel: str, name: str, value: Any, count: int, least: int = 1, most: int | None = None) -> tuple[int, ...]:
    """The integers, as a tuple. Raises VerifyError KERNEL_ARGUMENT unless there are `count`, each within the limits."""
    if not isinstance(value, (tuple, list)) or len(value) != count:
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} does not fit", [f"want: {count} integers", f"got: {value!r}"])
    return tuple(size(kernel, f"{name}[{i}]", x, least=least, most=most) for i, x in enumerate(value))


def element(kernel: str, name: str, value: object, known: tuple[str, ...]) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless it is one of the known types, such as gr.fp16."""
    if not isinstance(value, DType):
        want = "want: one of " + ", ".join("gr." + k for k in known)
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} is not a type", [want, f"got: {value!r}"])
    choice(kernel, name, str(value), known)


def flags(kernel: str, name: str, value: Any, count: int) -> tuple[bool, ...]:
    """The booleans, as a tuple. Raises VerifyError KERNEL_ARGUMENT unless there are `count`."""
    if not isinstance(value, (tuple, list)) or len(value) != count or any(not isinstance(x, bool) for x in value):
        want = f"want: {count} booleans" if count > 1 else "want: True or False"
        got = value[0] if count == 1 and isinstance(value, (tuple, list)) and len(value) == 1 else value
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} does not fit", [want, f"got: {got!r}"])
    return tuple(value)


def instance(kernel: str, name: str, value: object, kind: type) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless the value is of this class."""
    if not isinstance(value, kind):
        wanted = f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}"
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} is not {wanted}", [f"want: {wanted}", f"got: {value!r}"])


def align(kernel: str, name: str, value: object, elem_bytes: int) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless it is a multiple of an element's bytes."""
    size(kernel, name, value, multiple_of=elem_bytes)


def vectors(kernel: str, name: str, elems: int, *dtypes: DType) -> None:
    """Raises VerifyError KERNEL_ARGUMENT if `elems` elements of one of the types are more than 16 bytes."""
    widest = max(dtypes, key=lambda t: t.bits)
    if elems * widest.bits > 128:
        want = f"want: at most {128 // widest.bits} elements of {widest}, 16 bytes"
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} is more than one instruction moves", [want, f"got: {elems}"])


def choice(kernel: str, name: str, value: object, known: tuple[str, ...] | tuple[int, ...]) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless it is one of the known values."""
    if value not in known or type(value) is not type(known[0]):
        want = "want: one of " + ", ".join(f'"{k}"' if isinstance(k, str) else str(k) for k in known)
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {name} does not fit", [want, f"got: {value!r}"])


def strides_elems(t: Any) -> tuple[int, ...] | None:
    """Strides in elements of NumPy's arrays and PyTorch's tensors; None for an object that does not give them."""
    if callable(getattr(t, "stride", None)):
        return tuple(t.stride())
    if hasattr(t, "strides") and hasattr(t, "itemsize"):
        return None if t.strides is None else tuple(s // t.itemsize for s in t.strides)
    return None


def small_weights(args: Any, _: Any) -> None:
    """For a check: weights W and U so small that 16 bits hold the results of the layers."""
    for name, given in args.items():
        for w in (given if isinstance(given, list) else [given]) if name[0] in "WU" else []:
            w /= 4 if abs(w).max(initial=0) < 10 else 40
