"""Checks of arguments that operators share. Their errors say which argument, what is wanted and what was given."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, NoReturn

from graphene.ops.core.torch import fail, torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def shape_text(shape: Sequence[Any]) -> str:
    """A shape in an error's words."""
    return "[" + ",".join(map(str, shape)) + "]"


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are equal; sizes may be symbolic."""
    return len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True))


def readable(*tensors: Any) -> bool:
    """Whether numbers in these tensors may be looked at: on a GPU that would wait for the device."""
    plain = all(type(t) is torch.Tensor and t.is_cpu for t in tensors)
    return plain and not torch._C._are_functorch_transforms_active()


def check_devices(name: str, tensors: dict[str, Any]) -> None:
    """Raises OP_DEVICE unless all tensors that are given are on one device."""
    given = {n: t for n, t in tensors.items() if t is not None}
    first, device = next((n, t.device) for n, t in given.items())
    for n, t in given.items():
        if t.device != device:
            fail("OP_DEVICE", f"{name}: argument '{n}' is on another device",
                 [f"want: {device}, as '{first}'", f"got:  {t.device}"],
                 "move all arguments to one device")  # fmt: skip


def check_dtypes(name: str, tensors: dict[str, Any], allowed: Sequence[Any]) -> None:
    """Raises OP_DTYPE unless all tensors that are given have one element type, which is among the allowed ones."""
    given = {n: t for n, t in tensors.items() if t is not None}
    first, dtype = next((n, t.dtype) for n, t in given.items())
    if dtype not in allowed:
        fail("OP_DTYPE", f"{name}: argument '{first}' has a dtype that it does not take",
             ["want: " + ", ".join(map(str, allowed)), f"got:  {dtype}"], "convert it")  # fmt: skip
    for n, t in given.items():
        if t.dtype != dtype:
            fail("OP_DTYPE", f"{name}: argument '{n}' has another dtype; nothing is promoted",
                 [f"want: {dtype}, as '{first}'", f"got:  {t.dtype}"],
                 f"convert one of them: {n}.to({dtype})")  # fmt: skip


def check_tensors(name: str, tensors: dict[str, Any], optional: Sequence[str] = ()) -> None:
    """Raises OP_ARGUMENT for anything but a tensor with strides."""
    for n, t in tensors.items():
        if isinstance(t, torch.Tensor):
            if t.layout != torch.strided or t.is_nested:
                fail("OP_ARGUMENT", f"{name}: argument '{n}' is not a dense tensor",
                     ["got:  a nested tensor" if t.is_nested else f"got:  {t.layout}"],
                     "pass a dense one; to_dense() and to_padded_tensor() make one")  # fmt: skip
            continue
        if t is None and n in optional:
            continue
        _wrong(name, n, "a torch.Tensor or None" if n in optional else "a torch.Tensor", t)


def _wrong(name: str, argument: str, want: str, got: Any) -> NoReturn:
    fail("OP_ARGUMENT", f"{name}: argument '{argument}' is not {want}", [f"got:  {type(got).__name__}"],
         f"pass {want}")  # fmt: skip


def check_numbers(name: str, numbers: dict[str, Any]) -> None:
    """Raises OP_ARGUMENT for anything but a number that 64 bits can hold."""
    for n, x in numbers.items():
        if isinstance(x, (float, torch.SymInt, torch.SymFloat)):
            continue
        if not isinstance(x, (int, Real)):
            _wrong(name, n, "a number", x)
        try:
            float(x)
        except OverflowError:
            _wrong(name, n, "a number of 64 bits", x)


def integer(name: str, argument: str, given: Any) -> Any:
    """The given integer, which may be one of NumPy's or a tensor without dimensions.

    Raises OP_ARGUMENT for anything else, and for an integer that 64 bits cannot hold.
    """
    if isinstance(given, torch.SymInt):
        return given
    value = given
    if type(given) is not int:
        if isinstance(given, torch.Tensor):
            fits = given.dim() == 0 and not given.is_floating_point() and given.dtype != torch.bool
        else:
            fits = hasattr(given, "__index__") and not isinstance(given, (bool, type))
        try:
            value = operator.index(given) if fits else None
        except TypeError:
            value = None
        if value is None:
            _wrong(name, argument, "an integer", given)
    if not -(2**63) <= value < 2**63:
        _wrong(name, argument, "an integer of 64 bits", given)
    return value


def sizes(name: str, argument: str, given: Any) -> list[Any]:
    """One or several sizes as a list. Raises OP_ARGUMENT."""
    items = list(given) if isinstance(given, (tuple, list)) else [given]
    for x in items:
        if not isinstance(x, (int, torch.SymInt)) and not isinstance(x, Integral):
            _wrong(name, argument, "an integer or a sequence of them", given)
        if isinstance(x, int) and not -(2**63) <= x < 2**63:
            _wrong(name, argument, "an integer of 64 bits or a sequence of them", given)
    return items


def check_scalar(name: str, argument: str, kind: str, given: Any) -> Any:
    """An argument of a schema's type other than a tensor; numbers of NumPy and PyTorch are converted.

    Raises OP_ARGUMENT.
    """
    if kind == "int":
        return integer(name, argument, given)
    if kind == "int[]":
        return sizes(name, argument, given)
    if kind.startswith("float") and not (given is None and kind.endswith("?")):
        check_numbers(name, {argument: given})
    if kind == "bool" and not isinstance(given, (bool, torch.SymBool)):
        fail("OP_ARGUMENT", f"{name}: argument '{argument}' is not a bool", [f"got:  {given!r}"], "pass True or False")
    if kind == "str?" and not (given is None or isinstance(given, str)):
        _wrong(name, argument, "a string or None", given)
    return given
