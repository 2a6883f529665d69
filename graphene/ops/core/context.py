"""PyTorch's state while an operator is called: transforms, gradients, autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from graphene.ops.core.torch import torch


def transforming() -> bool:
    """Whether torch.func transforms the call. While PyTorch compiles the call, it transforms the graph instead."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def wants_gradient(tensors: Sequence[Any]) -> bool:
    """Whether one of the tensors (None for an absent one) needs a gradient."""
    return any(t is not None and t.requires_grad for t in tensors)


def has_tangent(tensors: Sequence[Any]) -> bool:
    """Whether forward differentiation goes through one of the tensors."""
    from torch.autograd import forward_ad

    if getattr(forward_ad, "_current_level", -1) < 0:
        return False
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def written(out: Any) -> Any:
    """The tensor itself. From now on a gradient that would need the tensor's former values is an error."""
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(out)
    return out


def autocasts(tensor: Any) -> bool:
    """Whether autocast is enabled on a tensor's device, so that torch.nn.functional's functions convert arguments."""
    device = tensor.device.type
    return device in ("cpu", "cuda") and bool(torch.is_autocast_enabled(device))


def no_autocast(tensor: Any) -> Any:
    """A context without autocast, in which PyTorch's operators take arguments that have been converted already."""
    return torch.autocast(tensor.device.type, enabled=False) if autocasts(tensor) else contextlib.nullcontext()


def cast(to: Any, *tensors: Any) -> list[Any]:
    """The arguments after autocast, which converts all floating-point tensors except fp64."""
    narrow = (torch.float16, torch.bfloat16, torch.float32)
    return [t.to(to) if t is not None and t.dtype in narrow else t for t in tensors]


def _converted(to: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    def one(a: Any) -> Any:
        if isinstance(a, (list, tuple)):
            return [one(x) for x in a]
        return cast(to, a)[0] if isinstance(a, torch.Tensor) else a

    return tuple(map(one, args))


def lower(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as torch.matmul converts them under autocast: to its narrower type."""
    return _converted(torch.get_autocast_dtype(args[0].device.type), args)


def to_fp32(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as a norm converts them under autocast."""
    return _converted(torch.float32, args)
