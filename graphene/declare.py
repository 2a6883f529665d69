"""Declarations of a kernel: arguments, allocations, fragments, blocks and threads.

A layout is a Layout or its text, which are taken unchanged, or a list of sizes, which is row-major. Sizes of arguments
may be symbols (gr.sym); those of a kernel's own tensors must be integers. Strides count elements.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from graphene import _core, dtypes
from graphene._core import Layout, Swizzle, Tensor, ThreadTensor
from graphene._refused import refuse
from graphene.dtypes import GL, DType, Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphene._core import IntLike, LayoutLike

__all__ = ["alloc", "blocks", "fragment", "inout", "input", "inputs", "output", "param", "tensor", "threads"]

_Declared = TypeVar("_Declared")


class FormDeclarations:
    """The optional arguments that a recording of ``gr.forms`` declared, and those that its form lacks."""

    def __init__(self, absent: frozenset[str]) -> None:
        self.absent = absent
        self.optional: list[str] = []


FORM_DECLARATIONS: ContextVar[FormDeclarations | None] = ContextVar("FORM_DECLARATIONS", default=None)


def _is_absent(name: str, optional: bool) -> bool:
    if not isinstance(optional, bool):
        raise TypeError(f"optional= must be True or False, got {optional!r}")
    if not optional:
        return False
    declared = FORM_DECLARATIONS.get()
    if declared is None:
        _core.fail("KERNEL_SCOPE", f"an optional argument, {name}, of a kernel that has one form", [],
                   "record the kernel in a function under @gr.forms")  # fmt: skip
    declared.optional.append(name)
    return name in declared.absent


def _type_of(other: Any) -> str:
    """How Graphene calls the type of elements that a text, NumPy or PyTorch means, or an example."""
    text = other if isinstance(other, str) else other.__name__ if isinstance(other, type) else ""
    if type(other).__module__.split(".")[0] in ("numpy", "torch"):
        text = str(other).removeprefix("torch.")
    known = (t for t in vars(dtypes).values() if isinstance(t, DType) and t.bits >= 8)
    return next((f"write gr.{t.name}" for t in known if text in (t.name, t.array_name)), "write gr.fp32, for example")


def _declared(declare: Callable[..., _Declared], name: Any, layout: Any, dtype: Any, *rest: Any) -> _Declared:
    """What a call of the core declares. A layout or type that is none raises LayoutError TENSOR_TYPE."""
    try:
        return declare(name, layout, dtype, *rest)
    except TypeError as error:
        if not isinstance(name, str):
            raise
        if not isinstance(dtype, DType):
            refuse("TENSOR_TYPE", f"{name} is declared with something else than a type", [str(error)], _type_of(dtype))
        if "want an int or an IntExpr" not in str(error):  # of another argument
            raise
        refuse("TENSOR_TYPE", f"{name} is declared with something else than a layout", [str(error)],
               "write its sizes, such as [64]; those of arguments may be symbols")  # fmt: skip


@overload
def input(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, optional: Literal[False] = False
) -> Tensor: ...
@overload
def input(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, *, optional: bool
) -> Tensor | None: ...
def input(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, optional: bool = False
) -> Tensor | None:
    """An argument that the kernel only reads.

    `align_bytes`: a power of two that divides its address (by default the size of one element); a launch checks it.
    `optional`: under ``@gr.forms``, a call may leave it out; it is None in a form without it. Raises VerifyError
    KERNEL_NONE outside of a kernel, KERNEL_NAME, KERNEL_SCOPE; LayoutError TENSOR_TYPE, TENSOR_SIZE. Paper section 3.1.
    """
    if _is_absent(name, optional):
        return None
    return _declared(partial(_core.record_arg, "input"), name, layout, dtype, align_bytes, 0)


@overload
def output(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, optional: Literal[False] = False
) -> Tensor: ...
@overload
def output(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, *, optional: bool
) -> Tensor | None: ...
def output(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, optional: bool = False
) -> Tensor | None:
    """An argument that the kernel writes whole and never reads, which the simulator checks. The rest is as in input."""
    if _is_absent(name, optional):
        return None
    return _declared(partial(_core.record_arg, "output"), name, layout, dtype, align_bytes, 0)


@overload
def inout(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, optional: Literal[False] = False
) -> Tensor: ...
@overload
def inout(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, *, optional: bool
) -> Tensor | None: ...
def inout(
    name: str, layout: LayoutLike, dtype: DType, align_bytes: int | None = None, optional: bool = False
) -> Tensor | None:
    """An argument that the kernel reads and writes in place. The rest is as in input."""
    if _is_absent(name, optional):
        return None
    return _declared(partial(_core.record_arg, "inout"), name, layout, dtype, align_bytes, 0)


def inputs(name: str, n: int, layout: LayoutLike, dtype: DType, align_bytes: int | None = None) -> Tensor:
    """A list of `n` arguments of one type that the kernel only reads; the caller passes a list of tensors.

    ``W[i]`` is one of them, where `i` is an integer or an expression known at run time. The list has no other use. It
    has at most 1024 members. Raises as input, and LayoutError INPUTS_INDEX for a list that is used as a tensor.
    """
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"inputs needs an integer number of tensors, got n={n!r}")
    if n < 1:
        raise ValueError(f"inputs needs at least one tensor, got n={n}")
    return _declared(partial(_core.record_arg, "input"), name, layout, dtype, align_bytes, n)


def param(name: str, dtype: DType, optional: bool = False) -> Any:
    """A scalar argument: for an integer type a symbolic integer with the type's bounds, else a private scalar tensor.

    `optional` as in input. Raises VerifyError KERNEL_NAME, KERNEL_SCOPE; LayoutError TENSOR_TYPE.
    """
    if _is_absent(name, optional):
        return None
    return _declared(lambda n, _, t: _core.record_param(n, t), name, None, dtype)


def tensor(name: str, layout: LayoutLike, dtype: DType, memory: Memory = GL) -> Tensor:
    """A tensor outside of any kernel, to explore views: ``gr.tensor("A", gr.Layout((4, 8), (1, 4)), gr.fp32)``.

    It cannot be an operand of a kernel's specs. Paper section 3.
    """
    return _declared(_core.tensor, name, layout, dtype, memory)


def alloc(
    name: str,
    layout: LayoutLike,
    dtype: DType,
    memory: Memory,
    stages: int | None = None,
    swizzle: Swizzle | None = None,
    over: Sequence[Tensor] | None = None,
    align_bytes: int | None = None,
    at: int | None = None,
) -> Tensor:
    """A tensor of the kernel's own: in shared memory (gr.SH), or private to each thread in registers (gr.RF).

    `stages` adds an outer level of that many copies: ``t[i]`` is stage i. `swizzle` permutes the offsets of a stage.
    `over` reuses the bytes of other shared tensors. The alignment is 16 bytes, 1024 if swizzled, or `align_bytes`.
    `at` is the number of bytes from the start of the block's shared memory to the tensor, a multiple of its alignment.
    Tensors without `at` and without such a tensor in `over` lie behind all of those. Tensors share bytes only where one
    names the other in `over`.
    Raises LayoutError TENSOR_TYPE, TENSOR_SIZE; VerifyError KERNEL_NAME, and LOWER_OVER when the kernel is lowered. The
    paper's Allocate.
    """
    return _declared(_core.record_alloc, name, layout, dtype, memory, stages, swizzle, over, align_bytes, at)


def fragment(
    name: str, shape: Sequence[int], dtype: DType, tv: Any, on: ThreadTensor, stages: int | None = None
) -> Tensor:
    """One logical tile that the threads `on` hold together in registers.

    `tv` says which thread holds which element. It is an operand of an atom (``mma.c``), whose tile is repeated over
    registers and over the outer levels of `on`, or gr.tv(thread, value) over the whole shape. The type prints as
    ``[warps].[registers].[atom]``.
    Raises LayoutError FRAGMENT_SHAPE (the sizes do not divide), FRAGMENT_GROUP (the threads do not fit), TENSOR_SIZE.
    """
    if not isinstance(shape, (int, list, tuple)):
        raise TypeError(f"shape must be an integer or a list of them, got {shape!r}")
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if isinstance(tv, Layout):
        return _core.record_fragment(name, sizes, dtype, tv, [], "tv", on, stages)
    if not (isinstance(getattr(tv, "tv", None), Layout) and isinstance(getattr(tv, "tile", None), str)):
        raise TypeError(f"tv= takes an operand of an atom such as mma.c, or gr.tv(thread, value), got {tv!r}")
    extents = [int(n) for n in re.findall(r"\d+", tv.tile)]
    return _core.record_fragment(name, sizes, dtype, tv.tv, extents, tv.label, on, stages)


def blocks(*sizes: IntLike, cluster: int = 1) -> ThreadTensor:
    """The launch grid, ``gr.blocks(M // 128, N // 128)``.

    Up to three sizes are blockIdx.x, .y, .z; more sizes share one index. Inside a kernel the call declares the kernel's
    grid, once; outside it is for exploring. Sizes may be symbols. `cluster`, 1 to 8, is a number of blocks, neighbours
    along the first size, that are launched together. The result is then tiled into clusters, ``[n:2].[2].block``, and
    ``blocks[c]`` is the executing block's cluster.
    Raises LayoutError THREAD_SHAPE; VerifyError KERNEL_LAUNCH when declared twice, VERIFY_CLUSTER for sizes that do not
    divide into clusters. Paper section 4.
    """
    return _core.blocks(*sizes, cluster=cluster)


def threads(*sizes: int) -> ThreadTensor:
    """The threads of a block, ``gr.threads(16, 16)``: at most 1024, linearised with the first size fastest.

    Inside a kernel the call declares the kernel's block, once; outside it is for exploring.
    Raises LayoutError THREAD_SHAPE; VerifyError KERNEL_LAUNCH when declared twice. Paper section 4.
    """
    return _core.threads(*sizes)
