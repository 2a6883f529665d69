"""graphene.ops.softmax, in fp32, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from graphene import _core
from graphene.ops.core import kernels as _kernels
from graphene.ops.core.checks import FLOATS, check_dtypes, check_tensors, integer
from graphene.ops.core.define import SIMULATED, Arg, Defined, Definition, autocasts
from graphene.ops.core.torch import NUMBERS, Tensor, fail, torch
from graphene.ops.core.views import contiguous, divides, merge, one_far, output, own, view

ALLOWED = (*FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
MOST_MATRICES = 65535  # blocks along a grid's second dimension
_NAMES = {number: str(dtype).removeprefix("torch.") for dtype, number in NUMBERS.items()}


def results(input: Tensor, dim: int, dtype: Any) -> list[tuple[Any, Any]]:
    """Shape and dtype of the result, all arguments checked."""
    check_dtypes("softmax", {"input": input}, FLOATS if dtype is None else ALLOWED)
    if dtype is not None and dtype not in FLOATS:
        fail("OP_DTYPE", "softmax: argument 'dtype' is no floating-point type",
             ["want: " + ", ".join(map(str, FLOATS)), f"got:  {dtype}"], "pass one of them")  # fmt: skip
    rank = max(input.dim(), 1)
    if not -rank <= dim < rank:
        fail("OP_ARGUMENT", "softmax: argument 'dim' is no dimension of 'input'",
             [f"want: {-rank} to {rank - 1}", f"got:  {dim}"], "pass one of its dimensions")  # fmt: skip
    return [(input.shape, input.dtype if dtype is None else dtype)]


def configure(input: Arg, dim: int, dtype: int | None) -> Any:
    """The recipe of a configuration."""
    rank = len(input.shape)
    to = input.dtype if dtype is None else _NAMES[dtype]
    if rank == 0 or input.dtype not in _kernels.DTYPES or to not in _kernels.DTYPES:
        return _core.Recipe.torch(f"no kernel computes a softmax of {input.dtype} in {to}")
    dim %= rank
    outputs = [output(_kernels.DTYPES[to], *([(0, d)] for d in range(rank)))]
    if 0 in input.shape:
        return _core.Recipe(outputs, 1, [])
    if input.shape[dim] > _kernels.MOST:
        return _core.Recipe.torch(_kernels.TOO_WIDE)
    before, after = list(range(dim)), list(range(dim + 1, rank))
    columns = prod(input.shape[d] for d in after)
    rows = [*before, *after] if columns == 1 else before
    lies = contiguous(input, [dim] if columns == 1 else after) and merge(input, rows)
    if not lies or (columns == 1 and one_far(input, rows)):
        return _core.Recipe.copy(1, "the elements of a row, or the rows, do not lie one after the other")
    width, bytes_ = input.shape[dim], input.item_bytes
    count = prod(input.shape[d] for d in rows)
    if columns > 1 and count > MOST_MATRICES:
        return _core.Recipe.torch("no kernel computes a softmax over the columns of that many matrices")
    starts = [input.strides[d] * bytes_ for d in ([*rows, dim] if columns > 1 else rows) if input.shape[d] != 1]
    align = divides(min(16, input.align), (width if columns == 1 else columns) * bytes_, *starts)
    dense = min(16, input.align) if columns == 1 and starts[-1:] in ([], [width * bytes_]) else 0
    launches = _kernels.softmax(_kernels.Softmax(count, width, columns, input.dtype, to, align, input.device, dense))
    if isinstance(launches, str):
        return _core.Recipe.torch(launches)
    views = {
        name: view(i, own(i, *rows), own(i, dim), *([own(i, *after)] if columns > 1 else []))
        for i, name in enumerate(("input", "output"))
    }
    return _core.Recipe(
        outputs, 1, [(k, [views[x] if isinstance(x, str) else x for x in xs]) for k, xs in launches.kernels]
    )


def reference(input: Tensor, dim: int, dtype: Any) -> Tensor:
    """PyTorch's, in fp32 (fp64 where one of the types is that), rounded once."""
    to = input.dtype if dtype is None else dtype
    wide = torch.float64 if torch.float64 in (input.dtype, to) else torch.float32
    return torch.softmax(input.to(wide), dim).to(to)


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """For the gradient: the result."""
    ctx.save_for_backward(output)
    ctx.dim, ctx.dtype = inputs[1], inputs[0].dtype


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """Y * (g - sum(g * y)), in fp32."""
    (y,) = ctx.saved_tensors
    wide = y.dtype if y.dtype == torch.float64 else torch.float32
    y, g = y.to(wide), g.to(wide)
    return (y * (g - (g * y).sum(ctx.dim, keepdim=True))).to(ctx.dtype), None, None


def cost(input: Tensor, dim: int, dtype: Any) -> int:
    """Elements, or what blocks of columns take: rows of threads exchange their sums in shared memory."""
    n = int(input.numel())
    if input.dim() == 0 or n == 0:
        return n
    dim %= input.dim()
    width, columns = input.shape[dim], prod(input.shape[dim + 1 :])
    if columns == 1 or n > SIMULATED:
        return n
    matrices = prod(input.shape[:dim])
    rows = int(_kernels.softmax_columns(width, columns, matrices).rows)
    return max(n, int(matrices * -(-columns // 32) * (20 * rows**2 + 8 * rows * -(-width // rows))))


_softmax = Defined(
    Definition("softmax", "(Tensor input, int dim, ScalarType? dtype=None) -> Tensor", configure, results, reference,
               cost, save, backward, exact={"input": "dim"})
)  # fmt: skip
_fast = _softmax.core
_is_compiling = torch.compiler.is_dynamo_compiling


def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """``exp(x) / sum(exp(x))`` over a dimension, in fp32, rounded once.

    torch.nn.functional.softmax's arguments. ``dtype``: the result's; None: input's, under autocast fp32. Input is not
    rounded to a narrower one first. Over any dimension of fp16, bf16 and fp32 kernels of ours run, without a copy
    where what lies before it and what lies behind it is one dimension each; otherwise input is copied once. fp64 and
    integers are PyTorch's.

    Raises LaunchError: OP_DTYPE, OP_ARGUMENT.
    """
    if not _is_compiling():
        y = _fast(input, dim, dtype)
        if y is not NotImplemented:
            return y
    dim = _check_types(input, dim)
    if dtype is None and autocasts(input) and input.dtype in FLOATS[:3]:
        dtype = torch.float32
    results(input, dim, dtype)
    return _softmax(input, dim, dtype)


def _check_types(input: Any, dim: Any) -> Any:
    """The dimension. Raises OP_ARGUMENT for anything but a tensor and an integer."""
    check_tensors("softmax", {"input": input})
    return integer("softmax", "dim", dim)


def _explained(input: Tensor, dim: int, dtype: Any = None) -> tuple[Defined, Sequence[Any]]:
    return _softmax, (input, _check_types(input, dim), dtype)


softmax.explained = _explained  # type: ignore[attr-defined]
