"""graphene.ops.cross_entropy: the loss of logits, in fp32, without a second copy of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, check_tensors, same_shape, shape_text
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MOST, ROW_DTYPES, TOO_WIDE, target_device
from graphene.ops.core.torch import Tensor, fail, torch, wide_dtype
from graphene.ops.core.views import contiguous, divides, merge, one_far, output, own, recipe, view

if TYPE_CHECKING:
    from graphene.kernels.rows.cross_entropy import CrossEntropyConfig

OPTIONS = "int ignore_index, float label_smoothing, float z_loss"


def results(input: Tensor, target: Tensor, ignore_index: int, smoothing: float, *_: Any) -> list[tuple[Any, Any]]:
    """Shapes and dtypes of losses and logarithms, all arguments checked."""
    check_dtypes("cross_entropy", {"input": input}, FLOATS)
    check_dtypes("cross_entropy", {"target": target}, (torch.int64,))
    check_devices("cross_entropy", {"input": input, "target": target})
    if len(input.shape) == 0 or not same_shape(input.shape[:-1], target.shape):
        fail("OP_SHAPE", "cross_entropy: argument 'target' has the wrong shape",
             [f"want: {shape_text(input.shape[:-1])}, as 'input' without its last dimension, the classes",
              f"got:  {shape_text(target.shape)}"], "pass the number of a class for each row of logits")  # fmt: skip
    if input.shape[-1] == 0 and 0 not in target.shape:
        fail("OP_SHAPE", "cross_entropy: argument 'input' has no classes",
             ["want: one class or more in its last dimension", f"got:  {shape_text(input.shape)}"],
             "pass a logit for each class")  # fmt: skip
    if not 0 <= smoothing <= 1:
        fail("OP_ARGUMENT", "cross_entropy: argument 'label_smoothing' does not fit",
             ["want: a number from 0 to 1", f"got:  {smoothing}"], "pass a part of the weight")  # fmt: skip
    made = (target.shape, wide_dtype(input.dtype))
    return [made, made]


def reference(input: Tensor, target: Tensor, ignore_index: int, smoothing: float, z: float) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's operators, in fp32 (fp64 for fp64)."""
    wide, classes = input.to(wide_dtype(input.dtype)), input.shape[-1]
    lse = torch.logsumexp(wide, -1)
    loss = torch.nn.functional.cross_entropy(
        wide.reshape(-1, classes), target.reshape(-1), ignore_index=ignore_index, reduction="none",
        label_smoothing=smoothing,
    ).reshape(target.shape)  # fmt: skip
    return (loss + torch.where(target == ignore_index, 0, z * lse * lse) if z else loss), lse


def cost(input: Tensor, *_: Any) -> int:
    """The elements, or what the blocks of short rows cost if that is more."""
    rows = int(input.numel()) // max(int(input.shape[-1]), 1)
    return max(2 * int(input.numel()), 200 * rows)


@functools.cache
def _kernel(config: CrossEntropyConfig, gradient: bool) -> Any:
    from graphene.kernels.rows.cross_entropy import cross_entropy_backward_kernel, cross_entropy_kernel

    return (cross_entropy_backward_kernel if gradient else cross_entropy_kernel)(config)


def _chosen(input: Arg, place: int, smoothing: float, z: float) -> CrossEntropyConfig | Any:
    """The configuration, or the recipe of a call that has none; `place`: the logits' argument, 1 of the gradient."""
    from graphene.select.rows import select_cross_entropy

    rank, bytes_ = len(input.shape), input.item_bytes
    if input.dtype not in ROW_DTYPES:
        return _core.Recipe.torch(f"no kernel for logits of {input.dtype}")
    if input.shape[-1] > MOST:
        return _core.Recipe.torch(TOO_WIDE)
    rows, width = list(range(rank - 1)), input.shape[-1]
    if not (contiguous(input, [rank - 1]) and merge(input, rows)) or one_far(input, rows):
        return _core.Recipe.copy(1 << place, "the logits of a row, or the rows, do not lie one after the other")
    starts = [input.strides[d] * bytes_ for d in rows if input.shape[d] != 1]
    align = divides(min(16, input.align), width * bytes_, *starts)
    dense = min(16, input.align) if starts[-1:] in ([], [width * bytes_]) else 0
    count = 1
    for d in rows:
        count *= input.shape[d]
    shared = target_device(input.device).shared_bytes
    return select_cross_entropy(
        count, width, getattr(dtypes, DTYPES[input.dtype]), smoothing=smoothing != 0, z=z != 0, align_bytes=align,
        dense_bytes=dense, shared_bytes=shared, gradient=place == 1,
    )  # fmt: skip


def configure(input: Arg, target: Arg, ignore_index: int, smoothing: float, z: float) -> Any:
    """The recipe of a configuration."""
    from graphene.kernels.rows.cross_entropy import CrossEntropyConfig

    rank = len(input.shape)
    made = output(dtypes.fp32.name, *([(0, d)] for d in range(rank - 1)))
    if 0 in input.shape[:-1] and input.dtype in ROW_DTYPES:
        return _core.Recipe([made, made], 2, [])
    if input.shape[-1] == 0:
        return _core.Recipe.torch("there are no classes")
    config = _chosen(input, 0, smoothing, z)
    if not isinstance(config, CrossEntropyConfig):
        return config
    rows = list(range(rank - 1))
    if not contiguous(target, rows):
        return _core.Recipe.copy(2, "the targets do not lie one after the other")
    views = {"x": view(0, own(0, *rows), own(0, rank - 1))}
    views |= {name: view(i, own(i, *rows)) for name, i in (("target", 1), ("loss", 2), ("lse", 3))}
    names: list[Any] = ["x", "target", "loss", "lse"]
    names += [smoothing] * config.smoothing + [z] * config.z + [ignore_index]
    return recipe([made, made], 2, [(_kernel(config, False), names)], views)


def gradient_results(grad: Tensor, input: Tensor, target: Tensor, lse: Tensor, *rest: Any) -> list[tuple[Any, Any]]:
    """The gradient of the logits, all arguments checked."""
    results(input, target, *rest)
    for name, t in (("grad", grad), ("lse", lse)):
        check_dtypes("cross_entropy_backward", {name: t}, (wide_dtype(input.dtype),))
        check_devices("cross_entropy_backward", {"input": input, name: t})
        if not same_shape(t.shape, target.shape):
            fail("OP_SHAPE", f"cross_entropy_backward: argument '{name}' has the wrong shape",
                 [f"want: {shape_text(target.shape)}, as 'target'", f"got:  {shape_text(t.shape)}"],
                 "pass one number for each row")  # fmt: skip
    return [(input.shape, input.dtype)]


def gradient_formula(
    grad: Tensor, input: Tensor, target: Tensor, lse: Tensor, ignore_index: int, smoothing: float, z: float
) -> Tensor:
    """The gradient of the logits, by PyTorch's operators, in fp32 (fp64 for fp64)."""
    wide, classes = wide_dtype(input.dtype), input.shape[-1]
    x, ignored = input.to(wide), target == ignore_index
    p = torch.exp(x - lse.unsqueeze(-1)) * (1 + 2 * z * lse).unsqueeze(-1)
    one = target.clamp(0, max(classes - 1, 0)).unsqueeze(-1) == torch.arange(classes, device=input.device)
    made = grad.unsqueeze(-1) * (p - smoothing / max(classes, 1) - (1 - smoothing) * one.to(wide))
    return torch.where(ignored.unsqueeze(-1), 0, made).to(input.dtype)


def configure_gradient(
    grad: Arg, input: Arg, target: Arg, lse: Arg, ignore_index: int, smoothing: float, z: float
) -> Any:
    """The recipe of the gradient."""
    from graphene.kernels.rows.cross_entropy import CrossEntropyConfig

    rank = len(input.shape)
    rows = list(range(rank - 1))
    made = output(DTYPES.get(input.dtype, "fp32"), *([(1, d)] for d in range(rank)))
    if 0 in input.shape and input.dtype in ROW_DTYPES:
        return _core.Recipe([made], 1, [])
    config = _chosen(input, 1, smoothing, z)
    if not isinstance(config, CrossEntropyConfig):
        return config
    copies = sum(1 << i for i, t in ((0, grad), (2, target), (3, lse)) if not contiguous(t, rows))
    if copies:
        return _core.Recipe.copy(copies, "the numbers of rows do not lie one after the other")
    views = {"x": view(1, own(1, *rows), own(1, rank - 1)), "dx": view(4, own(4, *rows), own(4, rank - 1))}
    views |= {name: view(i, own(i, *rows)) for name, i in (("target", 2), ("lse", 3), ("g", 0))}
    names: list[Any] = ["x", "target", "lse", "g", "dx"]
    names += [smoothing] * config.smoothing + [z] * config.z + [ignore_index]
    return recipe([made], 1, [(_kernel(config, True), names)], views)


GRADIENT = Defined(
    Definition("cross_entropy_backward", f"(Tensor grad, Tensor input, Tensor target, Tensor lse, {OPTIONS}) -> Tensor",
               configure_gradient, gradient_results, gradient_formula, lambda g, x, *_: cost(x),
               part_of="cross_entropy")
)  # fmt: skip


def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Saves logits, targets and the logarithm of each row."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.options = inputs[2:]


def backward(ctx: Any, g: Tensor | None, g_lse: Tensor | None) -> tuple[Any, ...]:
    """The gradient by a kernel, or by PyTorch's operators if it is differentiated itself."""
    input, target, lse = ctx.saved_tensors
    g = torch.zeros_like(lse) if g is None else g
    if torch.is_grad_enabled():
        lse = torch.logsumexp(input.to(lse.dtype), -1)
        made = gradient_formula(g, input, target, lse, *ctx.options)
    else:
        made = GRADIENT(g, input, target, lse, *ctx.options)
    if g_lse is not None:
        p = torch.exp(input.to(lse.dtype) - lse.unsqueeze(-1))
        made = (made.to(lse.dtype) + p * g_lse.unsqueeze(-1)).to(input.dtype)
    return made, None, None, None, None


CROSS_ENTROPY = Defined(
    Definition("cross_entropy", f"(Tensor input, Tensor target, {OPTIONS}) -> (Tensor, Tensor)", configure, results,
               reference, cost, save, backward)
)  # fmt: skip


@public
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    z_loss: float = 0.0,
) -> Tensor:
    """``log(sum(exp(x))) - x[target]`` of each row of logits, in fp32, or its mean or sum over rows.

    ``input`` is (..., classes) and ``target`` (...) of int64; of matrices this is torch.nn.functional.cross_entropy. A
    row whose target is ``ignore_index`` is 0 and does not count in the mean. ``label_smoothing`` spreads a part of the
    target's weight over all classes; ``z_loss`` times the square of log(sum(exp(x))) is added. ``reduction`` is "mean",
    "sum" or "none". The result is fp32 (fp64 for fp64), and the logits are not converted: the forward pass reads them
    once and keeps a number for each row, the backward pass reads them once and writes their gradient. On a GPU a target
    that is neither a class nor ignored makes the row's loss and gradient NaN. PyTorch's operators compute fp64.

    ``weight`` (classes,) multiplies the loss of each row by the weight of its target, and the mean is of rows so
    weighted. With label smoothing, too, it weighs the classes that share it, and PyTorch's operators compute the loss.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    if not isinstance(reduction, str) or reduction not in ("mean", "sum", "none"):
        fail("OP_ARGUMENT", "cross_entropy: argument 'reduction' is not known",
             ['want: "mean", "sum" or "none"', f"got:  {reduction!r}"], "pass one of them")  # fmt: skip
    if weight is not None:
        check_weight(input, weight)
    if weight is not None and label_smoothing:
        losses = smoothed_by_class(input, target, weight, ignore_index, label_smoothing, z_loss)
    else:
        losses, _ = (CROSS_ENTROPY.dispatched if is_compiling() else CROSS_ENTROPY.core)(
            input, target, ignore_index, label_smoothing, z_loss
        )
        if weight is not None:
            losses = losses * of_targets(weight, target, ignore_index, losses.dtype)
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "sum":
        return total
    if weight is None:
        return total / (target != ignore_index).sum()
    return total / of_targets(weight, target, ignore_index, losses.dtype).sum()


def check_weight(input: Tensor, weight: Tensor) -> None:
    """Raises OP_DTYPE, OP_DEVICE, OP_SHAPE unless there is a weight for each class."""
    check_tensors("cross_entropy", {"input": input, "weight": weight})
    check_dtypes("cross_entropy", {"weight": weight}, FLOATS)
    check_devices("cross_entropy", {"input": input, "weight": weight})
    if not same_shape(weight.shape, input.shape[-1:]):
        fail("OP_SHAPE", "cross_entropy: argument 'weight' has the wrong shape",
             [f"want: {shape_text(input.shape[-1:])}, one for each class", f"got:  {shape_text(weight.shape)}"],
             "pass a vector")  # fmt: skip


def of_targets(weight: Tensor, target: Tensor, ignore_index: int, dtype: Any) -> Tensor:
    """The weight of each row's target; 0 where it is ignored, and that of some class where it is none."""
    classes = weight.shape[0]
    return torch.where(target == ignore_index, 0, weight.to(dtype)[target.clamp(0, max(classes - 1, 0))])


def smoothed_by_class(
    input: Tensor, target: Tensor, weight: Tensor, ignore_index: int, smoothing: float, z: float
) -> Tensor:
    """The losses of rows with weights of classes and label smoothing, by PyTorch's operators, in fp32."""
    results(input, target, ignore_index, smoothing)
    wide = input.to(wide_dtype(input.dtype))
    loss = torch.nn.functional.cross_entropy(
        wide.reshape(-1, wide.shape[-1]), target.reshape(-1), weight.to(wide.dtype), ignore_index=ignore_index,
        reduction="none", label_smoothing=smoothing,
    ).reshape(target.shape)  # fmt: skip
    if not z:
        return loss
    return loss + of_targets(weight, target, ignore_index, wide.dtype) * z * torch.logsumexp(wide, -1) ** 2
