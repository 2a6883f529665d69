"""graphene.ops.gated: the product of an activation and a gate, as gated MLPs have it, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from graphene import _core
from graphene.ops.core import kernels as _kernels
from graphene.ops.core.activations import ACTIVATIONS, activate, slope
from graphene.ops.core.checks import FLOATS, check_devices, check_dtypes, check_tensors, same_shape, shape_text
from graphene.ops.core.define import Arg, Defined, Definition
from graphene.ops.core.torch import Tensor, fail, torch
from graphene.ops.core.views import ONE, divides, lies_in_rows, output, own, view


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


def configure(gate: Arg, up: Arg | None, activation: str | None) -> Any:
    """The recipe of a configuration."""
    rank = len(gate.shape)
    if rank == 0 or gate.dtype not in _kernels.MATMUL_DTYPES:
        return _core.Recipe.torch(f"no kernel for {gate.dtype} tensors of {rank} dimensions")
    outputs = [output(_kernels.DTYPES[gate.dtype], *([(0, d)] for d in range(rank)))]
    if 0 in gate.shape:
        return _core.Recipe(outputs, 1, [])
    if gate.shape[-1] > _kernels.MOST:
        return _core.Recipe.torch(_kernels.TOO_WIDE)
    given = [(i, t) for i, t in enumerate((gate, up)) if t is not None]
    copies = sum(1 << i for i, t in given if not lies_in_rows(t, 1))
    if copies:
        return _core.Recipe.copy(copies, "the elements of a row, or the rows, do not lie one after the other")
    # One row where everything lies one after the other.
    one_row = prod(gate.shape) <= _kernels.MOST and all(lies_in_rows(t, rank) for _, t in given)
    first = 0 if one_row else rank - 1
    width, align = prod(gate.shape[first:]), 16
    for _, t in given:
        starts = [t.strides[d] * t.item_bytes for d in range(first) if t.shape[d] != 1]
        align = divides(min(align, t.align), width * t.item_bytes, *starts)
    kernel = _kernels.gated(width, gate.dtype, activation, align, len(given))
    names = [*(i for i, _ in given), 2]
    return _core.Recipe(
        outputs, 1, [(kernel, [view(i, ONE, own(i, *range(first)), own(i, *range(first, rank))) for i in names])]
    )


def reference(gate: Tensor, up: Tensor | None, activation: str | None) -> Tensor:
    """PyTorch's own, in fp32 (fp64 of fp64), rounded once."""
    wide = gate.dtype if gate.dtype == torch.float64 else torch.float32
    y = activate(gate.to(wide), activation)
    return (y if up is None else y * up.to(wide)).to(gate.dtype, copy=y is gate)


def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """For the gradient: the arguments."""
    gate, up, activation = (*inputs, None, None)[:3]
    ctx.save_for_backward(gate, up)
    ctx.activation = activation


def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """By PyTorch's operators, in fp32."""
    gate, up = ctx.saved_tensors
    wide = gate.dtype if gate.dtype == torch.float64 else torch.float32
    g, a = g.to(wide), gate.to(wide)
    inner = g if up is None else g * up.to(wide)
    if ctx.activation is not None:
        inner = slope(a, ctx.activation, inner)
    outer = None if up is None else (g * activate(a, ctx.activation)).to(gate.dtype)
    return inner.to(gate.dtype), outer, None


def cost(gate: Tensor, *_: Any) -> int:
    """Elements."""
    return int(gate.numel())


_gated = Defined(
    Definition("gated", "(Tensor gate, Tensor? up=None, str? activation=None) -> Tensor", configure, results, reference,
               cost, save, backward, choices={"activation": ACTIVATIONS}, exact={"gate": 1})
)  # fmt: skip
_fast = _gated.core
_is_compiling = torch.compiler.is_dynamo_compiling


def gated(gate: Tensor, up: Tensor | None = None, activation: str | None = None) -> Tensor:
    """``act(gate) * up``, element by element, in fp32, rounded once: SwiGLU with "silu", GeGLU with "gelu".

    ``up`` None: ``act(gate)``. Both of one shape and dtype; ``activation`` as of ``matmul``. Kernels of ours take fp16
    and bf16 where rows lie one after the other (halves of one tensor do; others are copied once), PyTorch's operators
    anything else.

    Raises LaunchError: OP_DTYPE, OP_SHAPE, OP_DEVICE, OP_ARGUMENT.
    """
    if not _is_compiling():
        y = _fast(gate, up, activation)
        if y is not NotImplemented:
            return y
    check_tensors("gated", {"gate": gate, "up": up}, ("up",))
    results(gate, up, activation)
    return _gated(gate, up, activation)


def _explained(gate: Tensor, up: Tensor | None = None, activation: str | None = None) -> tuple[Defined, Sequence[Any]]:
    check_tensors("gated", {"gate": gate, "up": up}, ("up",))
    return _gated, (gate, up, activation)


gated.explained = _explained  # type: ignore[attr-defined]
