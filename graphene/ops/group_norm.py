"""graphene.ops.group_norm: mean and variance of groups of channels, in fp32, rounded once."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

from graphene import _core, dtypes
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, same_shape, shape_text
from graphene.ops.core.context import to_fp32
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MOST, ROW_DTYPES, TOO_WIDE, target_device
from graphene.ops.core.torch import Tensor, fail, torch, wide_dtype
from graphene.ops.core.views import contiguous, divides, one_far, output, own, recipe, view

SCHEMA = "(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) -> Tensor"


def results(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> list[tuple[Any, Any]]:
    """Shape and dtype of the result, all arguments checked."""
    given = {"input": input, "weight": weight, "bias": bias}
    check_devices("group_norm", given)
    check_dtypes("group_norm", given, FLOATS)
    if len(input.shape) < 2:
        fail("OP_SHAPE", "group_norm: argument 'input' has no channels",
             ["want: (samples, channels, ...)", f"got:  {shape_text(input.shape)}"], "unsqueeze it")  # fmt: skip
    channels = input.shape[1]
    if num_groups < 1 or channels % num_groups != 0:
        fail("OP_ARGUMENT", "group_norm: argument 'num_groups' does not divide the channels of 'input'",
             [f"want: a divisor of {channels}", f"got:  {num_groups}"],
             "give every group as many channels as the others")  # fmt: skip
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and not same_shape(t.shape, [channels]):
            fail("OP_SHAPE", f"group_norm: argument '{name}' has the wrong shape",
                 [f"want: [{channels}], one for each channel", f"got:  {shape_text(t.shape)}"],
                 "pass a vector")  # fmt: skip
    return [(input.shape, input.dtype)]


def reference(input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The same by PyTorch's operators, in fp32 (fp64 for fp64), rounded once."""
    wide = wide_dtype(input.dtype)
    if input.numel() == 0:
        return torch.empty_like(input)
    weight, bias = (None if t is None else t.to(wide) for t in (weight, bias))
    return torch.group_norm(input.to(wide), num_groups, weight, bias, eps).to(input.dtype)


def cost(input: Tensor, num_groups: int, *_: Any) -> int:
    """The number of elements, or the cost of a block for each group if that is more."""
    return max(int(input.numel()), 30 * int(input.shape[0]) * num_groups)


@functools.cache
def _kernel(config: Any) -> Any:
    from graphene.kernels.rows.groupnorm import groupnorm_kernel

    return groupnorm_kernel(config)


def configure(input: Arg, num_groups: int, weight: Arg | None, bias: Arg | None, eps: float) -> Any:
    """The recipe of a configuration."""
    from graphene.select.rows import select_groupnorm

    samples, channels, size, bytes_ = *input.shape[:2], prod(input.shape[2:]), input.item_bytes
    inner = range(1, len(input.shape))
    if input.dtype not in ROW_DTYPES:
        return _core.Recipe.torch(f"no kernel for groups of {input.dtype}")
    outputs = [output(DTYPES[input.dtype], *([(0, d)] for d in range(len(input.shape))))]
    if 0 in input.shape:
        return _core.Recipe(outputs, 1, [])
    if channels * size > MOST:
        return _core.Recipe.torch(TOO_WIDE)
    copies = 0 if contiguous(input, inner) and not one_far(input, [0]) else 1
    for i, t in enumerate((weight, bias), 1):
        copies |= 0 if t is None or contiguous(t, [0]) else 1 << i
    if copies:
        return _core.Recipe.copy(copies, "the elements of a sample do not lie one after the other")
    start = input.strides[0] if samples > 1 else 0
    config = select_groupnorm(
        samples, num_groups, channels // num_groups, size, getattr(dtypes, DTYPES[input.dtype]),
        align_bytes=divides(min(16, input.align), start * bytes_, size * bytes_),
        shared_bytes=target_device(input.device).shared_bytes,
        gamma=weight is not None, beta=bias is not None,
    )  # fmt: skip
    views = {name: view(i, own(i, 0), own(i, *inner)) for name, i in (("input", 0), ("output", 3))}
    vectors = [(name, i) for name, i, t in (("weight", 1, weight), ("bias", 2, bias)) if t is not None]
    views |= {name: view(i, own(i, 0)) for name, i in vectors}
    return recipe(outputs, 1, [(_kernel(config), ["input", *(name for name, _ in vectors), "output", eps])], views)


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Saves the arguments for the gradient, which computes mean and deviation again."""
    input, ctx.groups, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(input, weight, bias)


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """The gradient by PyTorch's operators, in fp32."""
    input, weight, bias = ctx.saved_tensors
    if input.numel() == 0:
        nothing = [None if t is None else torch.zeros_like(t) for t in (input, weight, bias)]
        return nothing[0], None, *nothing[1:], None
    wide, (samples, channels) = wide_dtype(input.dtype), input.shape[:2]
    x, g = (t.to(wide).reshape(samples, ctx.groups, channels // ctx.groups, -1) for t in (input, g))
    n = x - x.mean((2, 3), keepdim=True)
    n = n - n.mean((2, 3), keepdim=True)  # the error that rounding left in the mean
    scale = torch.rsqrt((n * n).mean((2, 3), keepdim=True) + ctx.eps)
    n = n * scale
    gw = g if weight is None else g * weight.to(wide).reshape(1, ctx.groups, -1, 1)
    gx = gw - n * (gw * n).mean((2, 3), keepdim=True)
    gx = (gx - gw.mean((2, 3), keepdim=True)) * scale
    of_weight = None if weight is None else (g * n).sum((0, 3)).reshape(channels).to(weight.dtype)
    of_bias = None if bias is None else g.sum((0, 3)).reshape(channels).to(bias.dtype)
    return gx.reshape(input.shape).to(input.dtype), None, of_weight, of_bias, None


GROUP_NORM = Defined(
    Definition("group_norm", SCHEMA, configure, results, reference, cost, save, backward, exact={"input": 64},
               autocast=to_fp32)
)  # fmt: skip


@public
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over groups of channels, in fp32, rounded once.

    The arguments are those of torch.nn.functional.group_norm. input is (samples, channels, ...). Its channels are cut
    into `num_groups` groups of neighbours, and each group is normalised together with all elements of its channels.
    ``weight`` and ``bias`` are (channels,). All tensors have one dtype: fp16, bf16 or fp32 (PyTorch's operators compute
    fp64). Samples may lie anywhere. If the elements of a sample do not lie one after the other (channels_last), input
    is copied once. Autocast converts all tensors to fp32, as for torch.nn.functional. PyTorch's operators compute the
    gradient.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    return (GROUP_NORM.dispatched if is_compiling() else GROUP_NORM.core)(input, num_groups, weight, bias, eps)
