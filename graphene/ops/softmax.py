"""graphene.ops.softmax and log_softmax, in fp32, rounded once."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.ops.core.checks import FLOATS, check_dtypes
from graphene.ops.core.define import SIMULATED, Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MOST, ROW_DTYPES, TOO_WIDE, KernelCalls, model_name, target_device
from graphene.ops.core.torch import NUMBERS, Tensor, fail, torch
from graphene.ops.core.views import contiguous, divides, merge, one_far, output, own, recipe, view

if TYPE_CHECKING:
    from graphene.kernels.rows.softmax import SoftmaxConfig

ALLOWED = (*FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
_NAMES = {number: str(dtype).removeprefix("torch.") for dtype, number in NUMBERS.items()}


def results(name: str, input: Tensor, dim: int, dtype: Any) -> list[tuple[Any, Any]]:
    """Shape and dtype of the result, all arguments checked."""
    check_dtypes(name, {"input": input}, FLOATS if dtype is None else ALLOWED)
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in FLOATS):
        fail("OP_DTYPE", f"{name}: argument 'dtype' is not a floating-point type",
             ["want: " + ", ".join(map(str, FLOATS)), f"got:  {dtype}"], "pass one of them")  # fmt: skip
    rank = max(input.dim(), 1)
    if not -rank <= dim < rank:
        fail("OP_ARGUMENT", f"{name}: argument 'dim' is not a dimension of 'input'",
             [f"want: {-rank} to {rank - 1}", f"got:  {dim}"], "pass one of its dimensions")  # fmt: skip
    return [(input.shape, input.dtype if dtype is None else dtype)]


@dataclass(frozen=True)
class Softmax:
    """A softmax, or with ``log`` its logarithm, over rows of ``width`` elements.

    ``columns``: how many columns lie side by side. If there are several, the softmax goes over columns of ``width``
    elements. ``align`` and ``dense`` are those of ``NormProblem`` in norms.py.
    """

    rows: int
    width: int
    columns: int
    dtype: str
    out: str
    align: int
    device: str
    log: bool
    dense: int = 0


@functools.cache
def _kernel(config: SoftmaxConfig, log: bool) -> Any:
    from graphene.kernels.rows.softmax import log_softmax_kernel, softmax_kernel

    return log_softmax_kernel(config) if log else softmax_kernel(config)


@functools.cache
def _columns_kernel(config: Any, log: bool) -> Any:
    from graphene.kernels.rows.softmax import log_softmax_columns_kernel, softmax_columns_kernel

    return log_softmax_columns_kernel(config) if log else softmax_columns_kernel(config)


def columns_config(width: int, columns: int, matrices: int, dtype: str = "float32", align: int = 4) -> Any:
    """The configuration for columns of ``width`` elements, `columns` of them side by side in each matrix."""
    from graphene.select.rows import select_softmax_columns

    t = getattr(dtypes, DTYPES[dtype])
    return select_softmax_columns(width, columns, t, align_bytes=align, batch=matrices)


def choose(p: Softmax) -> KernelCalls | str:
    """Softmax of rows or columns."""
    from graphene.kernels.rows.softmax import SoftmaxConfig
    from graphene.select.rows import select_softmax

    if p.dtype not in ROW_DTYPES or p.out not in ROW_DTYPES:
        return f"no kernel for a softmax of {p.dtype} in {p.out}"
    dtype, out = (getattr(dtypes, DTYPES[x]) for x in (p.dtype, p.out))
    if 1 < p.columns < 16 and p.width > 512 and p.device != "cpu":
        return "long columns, too few to read lines of them"
    if p.columns > 1:
        columns = columns_config(p.width, p.columns, p.rows, p.dtype, p.align)
        columns = replace(columns, out_dtype=None if out == dtype else out)
        return KernelCalls([(_columns_kernel(columns, p.log), ["input", "output"])])
    align, dense = (min(x, 16 * dtype.bits // out.bits) for x in (p.align, p.dense))  # 16 bytes are stored at once
    config = select_softmax(
        p.rows, p.width, dtype, align_bytes=align, dense_bytes=dense, shared_bytes=target_device(p.device).shared_bytes,
        device=model_name(p.device) if out == dtype else None,
    )  # fmt: skip
    config = SoftmaxConfig(config.tile, dtype, None if out == dtype else out)
    return KernelCalls([(_kernel(config, p.log), ["input", "output"])])


def configure(log: bool, input: Arg, dim: int, dtype: int | None) -> Any:
    """The recipe of a configuration."""
    rank = len(input.shape)
    to = input.dtype if dtype is None else _NAMES[dtype]
    if rank == 0 or input.dtype not in DTYPES or to not in DTYPES:
        return _core.Recipe.torch(f"no kernel computes a softmax of {input.dtype} in {to}")
    dim %= rank
    outputs = [output(DTYPES[to], *([(0, d)] for d in range(rank)))]
    if 0 in input.shape:
        return _core.Recipe(outputs, 1, [])
    if input.shape[dim] > MOST:
        return _core.Recipe.torch(TOO_WIDE)
    before, after = list(range(dim)), list(range(dim + 1, rank))
    columns = prod(input.shape[d] for d in after)
    rows = [*before, *after] if columns == 1 else before
    lies = contiguous(input, [dim] if columns == 1 else after) and merge(input, rows)
    if not lies or (columns == 1 and one_far(input, rows)):
        return _core.Recipe.copy(1, "the elements of a row, or the rows, do not lie one after the other")
    width, bytes_ = input.shape[dim], input.item_bytes
    count = prod(input.shape[d] for d in rows)
    if columns > 1 and count > MOST_BLOCKS_YZ:
        return _core.Recipe.torch("no kernel computes a softmax over the columns of that many matrices")
    starts = [input.strides[d] * bytes_ for d in ([*rows, dim] if columns > 1 else rows) if input.shape[d] != 1]
    align = divides(min(16, input.align), (width if columns == 1 else columns) * bytes_, *starts)
    dense = min(16, input.align) if columns == 1 and starts[-1:] in ([], [width * bytes_]) else 0
    launches = choose(Softmax(count, width, columns, input.dtype, to, align, input.device, log, dense))
    if isinstance(launches, str):
        return _core.Recipe.torch(launches)
    views = {
        name: view(i, own(i, *rows), own(i, dim), *([own(i, *after)] if columns > 1 else []))
        for i, name in enumerate(("input", "output"))
    }
    return recipe(outputs, 1, launches.kernels, views)


def reference(log: bool, input: Tensor, dim: int, dtype: Any) -> Tensor:
    """The same by PyTorch's operators, in fp32 (fp64 if one of the types is fp64), rounded once."""
    to = input.dtype if dtype is None else dtype
    wide = torch.float64 if torch.float64 in (input.dtype, to) else torch.float32
    return (torch.log_softmax if log else torch.softmax)(input.to(wide), dim).to(to)


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Saves the result for the gradient."""
    ctx.save_for_backward(output)
    ctx.dim, ctx.dtype = inputs[1], inputs[0].dtype


def backward(log: bool, ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """The gradient y * (g - sum(g * y)), of the logarithm g - exp(y) * sum(g), in fp32."""
    (y,) = ctx.saved_tensors
    wide = y.dtype if y.dtype == torch.float64 else torch.float32
    y, g = y.to(wide), g.to(wide)
    of_input = g - y.exp() * g.sum(ctx.dim, keepdim=True) if log else y * (g - (g * y).sum(ctx.dim, keepdim=True))
    return of_input.to(ctx.dtype), None, None


def cost(input: Tensor, dim: int, dtype: Any) -> int:
    """The elements, or the cost of blocks of columns if it is more: threads exchange sums in shared memory."""
    n = int(input.numel())
    if input.dim() == 0 or n == 0:
        return n
    dim %= input.dim()
    width, columns = input.shape[dim], prod(input.shape[dim + 1 :])
    if columns == 1 or n > SIMULATED:
        return n
    matrices = prod(input.shape[:dim])
    rows = int(columns_config(width, columns, matrices).rows)
    return max(n, int(matrices * -(-columns // 32) * (20 * rows**2 + 8 * rows * -(-width // rows))))


def as_fp32(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments under autocast: the result is fp32, and input is not rounded."""
    input, dim, dtype = args
    return input, dim, torch.float32 if dtype is None and input.dtype in FLOATS[:3] else dtype


def _defined(name: str, log: bool) -> Defined:
    return Defined(
        Definition(
            name, "(Tensor input, int dim, ScalarType? dtype=None) -> Tensor", lambda *a: configure(log, *a),
            lambda *a: results(name, *a), lambda *a: reference(log, *a), cost, save, lambda *a: backward(log, *a),
            exact={"input": "dim"}, autocast=as_fp32,
        )
    )  # fmt: skip


SOFTMAX, LOG_SOFTMAX = _defined("softmax", log=False), _defined("log_softmax", log=True)


@public
def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """``exp(x) / sum(exp(x))`` over a dimension, in fp32, rounded once.

    The arguments are those of torch.nn.functional.softmax. ``dtype`` is the result's; None is input's, under autocast
    fp32. Input is not rounded to a narrower dtype first. Kernels of this package compute fp16, bf16 and fp32 over any
    dimension. They need no copy if the dimensions before it form one dimension, and those after it another; otherwise
    input is copied once. PyTorch's operators compute fp64 and integers.

    Raises LaunchError: OP_DTYPE, OP_ARGUMENT.
    """
    return (SOFTMAX.dispatched if is_compiling() else SOFTMAX.core)(input, dim, dtype)


@public
def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """``x - log(sum(exp(x)))`` over a dimension, in fp32, rounded once.

    The arguments are those of torch.nn.functional.log_softmax, and everything else is as in ``softmax``. No rounding
    lies between the softmax and its logarithm, so it is finite where the softmax itself rounds to zero.

    Raises LaunchError: OP_DTYPE, OP_ARGUMENT.
    """
    return (LOG_SOFTMAX.dispatched if is_compiling() else LOG_SOFTMAX.core)(input, dim, dtype)
