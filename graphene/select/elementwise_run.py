"""A pointwise function of tensors of any shapes that broadcast: their strides, and the launches that cover them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, strides_elems
from graphene.kernels.elementwise import elementwise_kernel
from graphene.select.elements import select_elementwise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["run_elementwise"]

_NAME = "run_elementwise"
_FLOATS = (gr.fp16, gr.bf16, gr.fp32, gr.fp8e4m3, gr.fp8e5m2)
_TYPES = {t.array_name: t for t in (*_FLOATS, gr.i8, gr.u8, gr.i16, gr.u16, gr.i32, gr.u32)}


class _Lying(NamedTuple):
    """A tensor, its type, and its strides in elements along the result's dimensions, with 0 where it repeats."""

    tensor: Any
    dtype: gr.DType
    strides: tuple[int, ...]

    def view(self, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
        """Other sizes and strides, from an element on."""
        if hasattr(self.tensor, "as_strided"):
            return self.tensor.as_strided(sizes, strides, self.tensor.storage_offset() + offset)
        import numpy as np

        item = self.tensor.itemsize
        base = np.lib.stride_tricks.as_strided(self.tensor, (offset + 1,), (item,))[offset:]
        return np.lib.stride_tricks.as_strided(base, sizes, tuple(s * item for s in strides))

    @property
    def address(self) -> int:
        """The address of the first element."""
        t = self.tensor
        return int(t.data_ptr() if hasattr(t, "data_ptr") else t.__array_interface__["data"][0])


def _refuse(what: str, want: str, got: str, fix: str) -> None:
    _core.fail("KERNEL_ARGUMENT", f"{_NAME}: {what}", [f"want: {want}", f"got: {got}"], fix)


def _lying(name: str, t: Any, shape: tuple[int, ...] | None) -> _Lying:
    """The strides of a tensor along the dimensions of a shape, by default its own."""
    if not hasattr(t, "shape") or not hasattr(t, "dtype"):
        _refuse(f"{name} is not a tensor", "an array of NumPy or a tensor of PyTorch", type(t).__name__,
                "pass one of the result's shape" if shape is None else "a number belongs into the function: "
                "lambda x: 2 * x")  # fmt: skip
    kind = str(t.dtype).removeprefix("torch.")
    if kind not in _TYPES:
        _refuse(f"the type of {name} does not fit", "one of " + ", ".join(_TYPES), kind, "convert it")
    sizes = tuple(int(n) for n in t.shape)
    strides_bytes = getattr(t, "strides", ())  # NumPy's: of a structured array's field perhaps no whole elements
    if any(s % t.itemsize for n, s in zip(sizes, strides_bytes, strict=False) if n > 1):
        _refuse(f"{name} does not fit", f"strides of whole elements of {t.itemsize} bytes",
                f"strides of {strides_bytes} bytes", "copy it: np.ascontiguousarray(x)")  # fmt: skip
    strides = strides_elems(t)
    shape = sizes if shape is None else shape
    more = len(shape) - len(sizes)
    fits = more >= 0 and all(n in (1, shape[more + i]) for i, n in enumerate(sizes))
    if not fits:
        _refuse(f"the shape of {name} does not broadcast to that of out", f"sizes of {shape}, or 1", str(sizes),
                "as in NumPy, dimensions are counted from the last")  # fmt: skip
    along = [0] * more + [0 if n == 1 else int(s) for n, s in zip(sizes, strides or (), strict=True)]
    return _Lying(t, _TYPES[kind], tuple(along))


def _merged(shape: tuple[int, ...], tensors: list[_Lying]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The same elements in as few dimensions as all tensors allow, and their strides there."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in tensors]
    for d, n in enumerate(shape):
        if n == 1:
            continue
        here = [t.strides[d] for t in tensors]
        if sizes and all(s[-1] == x * n for s, x in zip(strides, here, strict=True)):
            sizes[-1] *= n
            for s, x in zip(strides, here, strict=True):
                s[-1] = x
        else:
            sizes.append(n)
            for s, x in zip(strides, here, strict=True):
                s.append(x)
    return tuple(sizes), [tuple(s) for s in strides]


def _launches(sizes: tuple[int, ...], strides: list[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Sizes (B, M, N) of each launch, and the elements of the tensors that it begins with."""
    *outer, B, M, N = sizes
    for at in range(math.prod(outer)):
        offsets, rest = [0] * len(strides), at
        for d in reversed(range(len(outer))):
            rest, i = divmod(rest, outer[d])
            offsets = [o + i * s[d] for o, s in zip(offsets, strides, strict=True)]
        for b in range(0, B, MOST_BLOCKS_YZ):
            first = [o + b * s[-3] for o, s in zip(offsets, strides, strict=True)]
            yield (min(MOST_BLOCKS_YZ, B - b), M, N), first


def run_elementwise(function: Callable[..., Any], *inputs: Any, out: Any) -> None:
    """Computes ``out = function(*inputs)`` element by element, rounded once; inputs broadcast to out as NumPy's do.

    The simulator computes NumPy arrays and CPU tensors, the GPU CUDA tensors. `function` is as in elementwise_kernel,
    ``lambda x, y: gr.max(x + y, 0)``. There may be any number of dimensions. Along the last one, elements of an input
    lie side by side or repeat; along others they have any strides of 0 or more. out is contiguous and not an input. A
    launch takes at most three dimensions that cannot be joined; with more there is a launch for each index of the first
    ones. Integers are computed as i32 and can only be stored as integers, unless the function converts them by
    ``gr.cast(x, gr.fp32)``. The kernel is recorded anew at every call, because a function may change with its
    variables, and compiled once. For many calls keep the kernel of elementwise_kernel. Raises VerifyError
    KERNEL_ARGUMENT, and what a launch raises.
    """
    result = _lying("out", out, None)
    shape: tuple[int, ...] = tuple(int(n) for n in out.shape)
    tensors = [*(_lying(f"input {i}", x, shape) for i, x in enumerate(inputs)), result]
    count: int = math.prod(shape)
    dense = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    if count and any(n > 1 and s != w for n, s, w in zip(shape, result.strides, dense, strict=True)):
        _refuse("out is not contiguous", f"strides {tuple(dense)}", str(result.strides), "pass one that is")
    for i, t in enumerate(tensors[:-1]):
        if shape and shape[-1] > 1 and t.strides[-1] not in (0, 1):
            _refuse(f"input {i} does not fit", "elements side by side along the last dimension, or one of them",
                    f"stride {t.strides[-1]}", "copy it")  # fmt: skip
        if min(t.strides, default=0) < 0:
            _refuse(f"input {i} does not fit", "strides of 0 or more", str(t.strides), "copy it")
    sizes, strides = _merged(shape, tensors)
    if not sizes or any(s[-1] not in (0, 1) for s in strides):  # rows of one element
        sizes, strides = (*sizes, 1), [(*s, int(t is result)) for s, t in zip(strides, tensors, strict=True)]
    ones = max(0, 3 - len(sizes))
    sizes, strides = (1,) * ones + sizes, [(0,) * ones + s for s in strides]
    spread = tuple(s[-1] == 0 for s in strides[:-1])
    whole = [t for t, one in zip(tensors, (*spread, False), strict=True) if not one]
    widest = max(t.dtype.bits // 8 for t in whole)
    fit = 16 // widest
    for t, s in zip(tensors, strides, strict=True):
        if s[-1]:
            item = t.dtype.bits // 8
            fit = math.gcd(fit, math.gcd(t.address, *(x * item for x in s[:-1]), 16) // item)
    config = select_elementwise(
        sizes[-1], [t.dtype for t in tensors[:-1]], result.dtype, spread, align_bytes=max(fit, 1) * widest
    )
    kernel = elementwise_kernel(function, config)
    if count == 0:
        return
    for part, offsets in _launches(sizes, strides):
        views = []
        for t, s, offset, one in zip(tensors, strides, offsets, (*spread, False), strict=True):
            views.append(t.view(part[:2], s[-3:-1], offset) if one else t.view(part, s[-3:], offset))
        kernel(*views)
