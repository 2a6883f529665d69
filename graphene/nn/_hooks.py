"""Whether a call of a module does more than its class's forward, so that nothing else may replace it."""

from __future__ import annotations

from typing import Any

from graphene.ops.core.torch import torch


def globally_hooked() -> bool:
    """Whether a global hook must see every call of a module."""
    of = torch.nn.modules.module
    return bool(
        of._global_forward_hooks or of._global_forward_pre_hooks or of._global_backward_hooks
        or of._global_backward_pre_hooks
    )  # fmt: skip


def _has_hooks(module: Any) -> bool:
    own = module.__dict__
    return bool(
        own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
    )


def altered(*modules: Any) -> bool:
    """Whether a call of one of them does more than its class's forward, by hooks or by a forward of its own."""
    return globally_hooked() or any("forward" in m.__dict__ or _has_hooks(m) for m in modules)


def unlike(module: Any) -> str | None:
    """Why a call of this module does more than its class's forward; None if it does not."""
    if "forward" in module.__dict__:
        return "a module with a forward of its own"
    hooks = _has_hooks(module) or globally_hooked()
    return "a module with hooks, which may change what it computes" if hooks else None
