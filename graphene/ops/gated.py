"""graphene.ops.gated: a gate's activation times another tensor, as in gated MLPs, in one pass."""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING, Any

from graphene import _core, dtypes
from graphene.ops.core.activations import ACTIVATIONS, activate, slope
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, same_shape, shape_text
from graphene.ops.core.define import Arg, Defined, Definition, is_compiling, public
from graphene.ops.core.kernels import DTYPES, MATMUL_DTYPES, MOST, TOO_WIDE
from graphene.ops.core.torch import Tensor, fail, torch
from graphene.ops.core.views import ONE, divides, lies_in_rows, output, own, view

if TYPE_CHECKING:
    from graphene.kernels.elementwise import ElementwiseConfig


def results(gate: Tensor, up: Tensor | None, activation: str | None) -> list[tuple[Any, Any]]:
    """Shape and dtype of the result, all arguments checked."""
    check_dtypes("gated", {"gate": gate, "up": up}, FLOATS)
    check_devices("gated", {"gate": gate, "up": up})
    if up is not None and not same_shape(gate.shape, up.shape):
        fail("OP_SHAPE", "gated: the shapes of 'gate' and 'up' differ",
             [f"want: {shape_text(gate.shape)}, as 'gate'", f"got:  {shape_text(up.shape)}"],
             "give both one shape: nothing is broadcast")  # fmt: skip
    if activation is not None and activation not in ACTIVATIONS:
        fail("OP_ARGUMENT", f'gated: no activation is called "{activation}"',
             ["known: None, " + ", ".join(f'"{x}"' for x in ACTIVATIONS)], "pass one of them")  # fmt: skip
    return [(gate.shape, gate.dtype)]


@functools.cache
def _gated(activation: str | None, config: ElementwiseConfig) -> Any:
    from graphene.kernels import epilogues
    from graphene.kernels.elementwise import elementwise_kernel

    act = epilogues.ACTIVATIONS[activation]
    return elementwise_kernel((lambda gate, up: act(gate) * up) if len(config.dtypes) > 1 else act, config)


def gated_kernel(width: int, dtype: str, activation: str | None, align: int, count: int) -> Any:
    """The kernel of act(gate) * up, or act(gate) if `count` is 1, over rows of ``width``.

    Its arguments are gate, up, result of shape (1, rows, width).
    """
    from graphene.select.elements import select_elementwise

    t = getattr(dtypes, DTYPES[dtype])
    return _gated(activation, select_elementwise(width, (t,) * count, t, align_bytes=align))


def configure(gate: Arg, up: Arg | None, activation: str | None) -> Any:
    """The recipe of a configuration."""
    rank = len(gate.shape)
    if rank == 0 or gate.dtype not in MATMUL_DTYPES:
        return _core.Recipe.torch(f"no kernel for {gate.dtype} tensors of {rank} dimensions")
    outputs = [output(DTYPES[gate.dtype], *([(0, d)] for d in range(rank)))]
    if 0 in gate.shape:
        return _core.Recipe(outputs, 1, [])
    if gate.shape[-1] > MOST:
        return _core.Recipe.torch(TOO_WIDE)
    given = [(i, t) for i, t in enumerate((gate, up)) if t is not None]
    copies = sum(1 << i for i, t in given if not lies_in_rows(t, 1))
    if copies:
        return _core.Recipe.copy(copies, "the elements of a row, or the rows, do not lie one after the other")
    # If all elements lie one after the other, they are one row.
    one_row = prod(gate.shape) <= MOST and all(lies_in_rows(t, rank) for _, t in given)
    first = 0 if one_row else rank - 1
    width, align = prod(gate.shape[first:]), 16
    for _, t in given:
        starts = [t.strides[d] * t.item_bytes for d in range(first) if t.shape[d] != 1]
        align = divides(min(align, t.align), width * t.item_bytes, *starts)
    kernel = gated_kernel(width, gate.dtype, activation, align, len(given))
    names = [*(i for i, _ in given), 2]
    return _core.Recipe(
        outputs, 1, [(kernel, [view(i, ONE, own(i, *range(first)), own(i, *range(first, rank))) for i in names])]
    )


def reference(gate: Tensor, up: Tensor | None, activation: str | None) -> Tensor:
    """The same by PyTorch's operators, in fp32 (fp64 for fp64), rounded once."""
    wide = gate.dtype if gate.dtype == torch.float64 else torch.float32
    y = activate(gate.to(wide), activation)
    return (y if up is None else y * up.to(wide)).to(gate.dtype, copy=y is gate)


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Saves the arguments for the gradient."""
    gate, up, activation = inputs
    ctx.save_for_backward(gate, up)
    ctx.activation = activation


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """The gradient by PyTorch's operators, in fp32."""
    gate, up = ctx.saved_tensors
    wide = gate.dtype if gate.dtype == torch.float64 else torch.float32
    g, a = g.to(wide), gate.to(wide)
    inner = g if up is None else g * up.to(wide)
    if ctx.activation is not None:
        inner = slope(a, ctx.activation, inner)
    outer = None if up is None else (g * activate(a, ctx.activation)).to(gate.dtype)
    return inner.to(gate.dtype), outer, None


def cost(gate: Tensor, *_: Any) -> int:
    """The number of elements."""
    return int(gate.numel())


GATED = Defined(
    Definition("gated", "(Tensor gate, Tensor? up=None, str? activation=None) -> Tensor", configure, results, reference,
               cost, save, backward, choices={"activation": ACTIVATIONS}, exact={"gate": 1})
)  # fmt: skip


@public
def gated(gate: Tensor, up: Tensor | None = None, activation: str | None = None) -> Tensor:
    """``act(gate) * up``, element by element, in fp32, rounded once: SwiGLU with "silu", GeGLU with "gelu".

    With ``up`` None it is ``act(gate)``. Both have one shape and dtype; ``activation`` is as in ``matmul``. Kernels
    compute fp16 and bf16 if rows lie one after the other (halves of one tensor do; other tensors are copied once).
    PyTorch's operators compute the rest.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    return (GATED.dispatched if is_compiling() else GATED.core)(gate, up, activation)
