"""What a module does besides its forward: whether something of ours may stand for it."""

from __future__ import annotations

from typing import Any

from graphene.ops._torch import torch


def hooked(*modules: Any) -> bool:
    """Whether something wants to see these modules called."""
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in modules)


def unlike(module: Any) -> str | None:
    """Why a call of this module is more than its class's forward; None if it is not."""
    if hooked(module):
        return "a module with hooks, which may change what it computes"
    if "forward" in module.__dict__:
        return "a module with a forward of its own"
    if torch.nn.modules.module._has_any_global_hook():
        return "a hook of all modules"
    return None
