"""Activations and their gradients by PyTorch's operators; kernels have theirs in graphene.kernels.epilogues."""

from __future__ import annotations

from graphene.kernels import epilogues
from graphene.ops.core.torch import Tensor, torch

ACTIVATIONS = tuple(name for name in epilogues.ACTIVATIONS if name is not None)


def activate(z: Tensor, activation: str | None) -> Tensor:
    """The activation of a tensor, in its dtype."""
    f = torch.nn.functional
    return {
        None: lambda x: x, "relu": f.relu, "gelu": f.gelu, "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
        "silu": f.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    }[activation](z)  # fmt: skip


def slope(z: Tensor, activation: str, g: Tensor) -> Tensor:
    """The gradient through an activation, made of differentiable operators."""
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(g, z, 0)
    if activation == "tanh":
        return aten.tanh_backward(g, torch.tanh(z))
    if activation == "sigmoid":
        return aten.sigmoid_backward(g, torch.sigmoid(z))
    z = z.clamp(-1000, 1000)  # beyond, slopes are exactly 0 and 1, but squares in the formulas overflow
    if activation == "silu":
        s = torch.sigmoid(z)  # PyTorch's own operator has no derivative
        return g * s * (1 + z * (1 - s)) if torch.is_grad_enabled() else aten.silu_backward(g, z)
    return aten.gelu_backward(g, z, approximate="none" if activation == "gelu" else "tanh")
