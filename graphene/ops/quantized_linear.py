"""graphene.ops.quantized_linear: a linear layer whose weights have 4 or 8 bits, and activations 16."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.ops.core.checks import check_devices, check_dtypes, readable, same_shape, shape_text
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, target_device
from graphene.ops.core.torch import Tensor, fail, torch
from graphene.ops.core.views import broadcast, contiguous, divides, merge, output, own, recipe, view
from graphene.ops.packing import check_packed, unpack_weights

if TYPE_CHECKING:
    from graphene.kernels.gemm.weights import WeightsConfig

GROUPS = (32, 64, 128)  # that kernels scale
X, W, SCALE, ZERO, BIAS, Y = range(6)  # the tensors of a call; the last is the result


def results(
    input: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None
) -> list[tuple[Any, Any]]:
    """The result's shape and dtype, all arguments checked."""
    from graphene.kernels.gemm.weights import CHUNK, PACKED_ROWS

    n = "quantized_linear"
    check_devices(n, {"input": input, "weight": weight, "scale": scale, "zero": zero, "bias": bias})
    check_dtypes(n, {"input": input, "scale": scale, "bias": bias}, (torch.float16, torch.bfloat16))
    check_packed(n, weight)
    rows, k = weight.shape[0] * PACKED_ROWS, weight.shape[1] * CHUNK

    def wrong(name: str, want: str, got: Any, fix: str) -> None:
        fail("OP_SHAPE", f"{n}: argument '{name}' has the wrong shape", [f"want: {want}", f"got:  {got}"], fix)

    if input.dim() == 0 or input.shape[-1] != k:
        wrong("input", f"[..,{k}], as many as the weight has columns", shape_text(input.shape), "pass another one")
    groups = scale.shape[0] if scale.dim() == 2 else 1
    if not same_shape(scale.shape[-1:], [rows]) or scale.dim() > 2 or groups == 0 or k % groups:
        wrong("scale", f"[{rows}], or [K / group,{rows}] of K = {k}", shape_text(scale.shape), "one for each group")
    if zero is not None:
        if zero.dtype != torch.uint8:
            fail("OP_DTYPE", f"{n}: argument 'zero' has a dtype that it does not take",
                 ["want: torch.uint8", f"got:  {zero.dtype}"],
                 "convert it: zero.to(torch.uint8)")  # fmt: skip
        if not same_shape(zero.shape, scale.shape):
            wrong("zero", f"{shape_text(scale.shape)}, as 'scale'", shape_text(zero.shape), "pass one a scale")
        if weight.shape[2] != 128:
            fail("OP_ARGUMENT", f"{n}: argument 'zero' is for integers", ["got:  a weight of fp8"], "leave it out")
    if bias is not None and not same_shape(bias.shape, [rows]):
        wrong("bias", f"[{rows}], one for each column of the result", shape_text(bias.shape), "pass a vector")
    return [([*input.shape[:-1], rows], input.dtype)]


def seven_bits(input: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> None:
    """Raises OP_ARGUMENT for a zero of more than seven bits. Only CPU tensors are looked at."""
    if zero is not None and readable(zero) and zero.numel() and int(zero.max()) > 127:
        fail("OP_ARGUMENT", "quantized_linear: argument 'zero' has numbers of more than seven bits",
             ["want: 0 to 127", f"got:  {int(zero.max())}"], "pass the weights that stand for zero")  # fmt: skip


def dequantized(weight: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """The weights (N,K) in fp32."""
    numbers = unpack_weights(weight)
    whole = weight.shape[2] == 128
    lines, groups = numbers.shape[0], scale.shape[0] if scale.dim() == 2 else 1
    parts = numbers.to(torch.float32).reshape(lines, groups, -1)
    if whole:
        less = 8.0 if zero is None else (zero & 127).reshape(groups, lines).T.unsqueeze(-1).to(torch.float32)
        parts = parts - less
    return (parts * scale.reshape(groups, lines).T.unsqueeze(-1).to(torch.float32)).reshape(lines, -1)


def reference(input: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """The same by PyTorch's operators, in fp32, rounded once."""
    y = input.to(torch.float32) @ dequantized(weight, scale, zero).T
    return (y if bias is None else y + bias.to(torch.float32)).to(input.dtype)


def cost(input: Tensor, weight: Tensor, *_: Any) -> int:
    """The multiply-adds, or the time of simulating whole blocks if it is more."""
    from graphene.kernels.gemm.weights import CHUNK, PACKED_ROWS

    rows, k = weight.shape[0] * PACKED_ROWS, weight.shape[1] * CHUNK
    tokens = int(input.numel()) // max(int(input.shape[-1]), 1)
    return int(max(tokens * rows * k, -(-tokens // 64) * -(-rows // 32) * -(-k // 256) * 4000))


@functools.cache
def _kernel(config: WeightsConfig) -> Any:
    from graphene.kernels.gemm.weights import weights_kernel

    return weights_kernel(config)


def configure(input: Arg, weight: Arg, scale: Arg, zero: Arg | None, bias: Arg | None) -> Any:
    """The recipe of a configuration."""
    from graphene.kernels.gemm.weights import CHUNK, PACKED_ROWS, WeightsConfig
    from graphene.select.weight_tiles import select_weights

    rank, bits = len(input.shape), 4 if weight.shape[2] == 128 else 8
    rows, k = weight.shape[0] * PACKED_ROWS, weight.shape[1] * CHUNK
    tokens = list(range(rank - 1))
    dtype = getattr(dtypes, DTYPES[input.dtype])
    outputs = [output(dtype.name, *([(X, d)] for d in tokens), [(W, 0), (-1, PACKED_ROWS)])]
    if 0 in (*input.shape[:-1], rows):
        return _core.Recipe(outputs, 1, [])
    if k == 0:
        return _core.Recipe.torch("there is nothing to sum: K is 0")
    by_column = len(scale.shape) == 1
    group = 64 if by_column else k // scale.shape[0]
    if group not in GROUPS or (by_column and zero is not None):
        return _core.Recipe.torch(f"no kernel has groups of {k if by_column else group} with zero points or scales")
    device = target_device(input.device)
    if bits == 8 and input.device != "cpu" and int(device.family.removeprefix("sm_")) < 89:
        return _core.Recipe.torch("fp8 needs instructions that there are since sm_89")
    copies = 0
    starts = [input.strides[d] * input.item_bytes for d in tokens if input.shape[d] != 1]
    if not (contiguous(input, [rank - 1]) and merge(input, tokens)) or divides(16, input.align, *starts) < 16:
        copies |= 1 << X
    for i, t in ((W, weight), (SCALE, scale), (ZERO, zero), (BIAS, bias)):
        if t is not None and (not contiguous(t, list(range(len(t.shape)))) or t.align < 16):
            copies |= 1 << i
    if copies:
        return _core.Recipe.copy(copies, "an argument does not lie in whole lines of 16 bytes")
    count = 1
    for d in tokens:
        count *= input.shape[d]
    given: dict[str, Any] = {"bits": bits, "group": group, "zeros": zero is not None, "bias": bias is not None}
    if input.device == "cpu":  # the simulator computes whole blocks
        config = WeightsConfig(dtype, tokens=min(-(-count // 8), 8), tiles=1, warps=(2, 2), stages=2, **given)
    else:
        config = select_weights(count, rows, k, dtype, device=device, **given)
    names = ["X", "weight", "scale", *["zero"] * config.zeros, *["bias"] * config.bias, "Y"]
    lines = broadcast([(W, 1)]) if by_column else own(SCALE, 0)
    views = {
        "X": view(X, own(X, *tokens), own(X, rank - 1)),
        "weight": view(W, own(W, 0), own(W, 1), own(W, 2)),
        "scale": view(SCALE, lines, own(SCALE, len(scale.shape) - 1)),
        "zero": view(ZERO, own(ZERO, 0), own(ZERO, 1)),
        "bias": view(BIAS, own(BIAS, 0)),
        "Y": view(Y, own(Y, *tokens), own(Y, rank - 1)),
    }
    return recipe(outputs, 1, [(_kernel(config), names)], views)


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Saves weights, scales and zero points."""
    _, weight, scale, zero, bias = inputs
    ctx.save_for_backward(weight, scale, zero)
    ctx.bias = bias is not None


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """The gradients of input and bias, by PyTorch's operators; of input in its dtype."""
    weight, scale, zero = ctx.saved_tensors
    of_input = g @ dequantized(weight, scale, zero).to(g.dtype)
    of_bias = g.flatten(0, -2).to(torch.float32).sum(0).to(g.dtype) if ctx.bias else None
    return of_input, None, None, None, of_bias


def flops(input: Any, weight: Any, *_: Any, **__: Any) -> int:
    """Two operations for each multiply-add."""
    from graphene.kernels.gemm.weights import CHUNK, PACKED_ROWS

    tokens = 1
    for n in input.shape[:-1]:
        tokens *= n
    return int(2 * tokens * weight.shape[0] * PACKED_ROWS * weight.shape[1] * CHUNK)


QUANTIZED_LINEAR = Defined(
    Definition(
        "quantized_linear",
        "(Tensor input, Tensor weight, Tensor scale, Tensor? zero=None, Tensor? bias=None) -> Tensor",
        configure, results, reference, cost, save, backward, exact={"weight": 1},
        without_gradient=("weight", "scale", "zero"), values=seven_bits, flops=flops,
    )
)  # fmt: skip


@public
def quantized_linear(
    input: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """``input @ (scale * (weight - zero)).T + bias`` with weights of 4 or 8 bits, in fp32, rounded once.

    ``input`` is (..., K) of fp16 or bf16. ``weight`` is what ``pack_weights``, ``pack_gptq`` or ``pack_awq`` made of
    (N,K): integers from 0 to 15, or float8_e4m3fn. ``scale`` is (K / group, N), or (N,) for all of k, of input's dtype.
    ``zero`` is uint8 of scale's shape, of which seven bits count; without it integers are less 8. ``bias`` is (N,).
    The weights are unpacked in registers, exactly, and the sum of each group is scaled.

    Kernels (sm_80, for fp8 sm_89) have groups of 32, 64 and 128, and scales of columns without zero points. PyTorch's
    operators compute other calls, from weights in fp32. The gradients are those of input and bias.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    return (QUANTIZED_LINEAR.dispatched if is_compiling() else QUANTIZED_LINEAR.core)(input, weight, scale, zero, bias)
