"""Which tile attention runs on: chosen from the head size and the problem's sizes."""

from __future__ import annotations

from dataclasses import replace

from graphene.kernels._attention import Attention
from graphene.kernels.attention_forward import ForwardConfig


def select_forward(what: Attention, *, lse: bool = False) -> ForwardConfig:
    """The forward kernel for a problem."""
    depth = what.depth
    if depth <= 64:
        c = ForwardConfig(what, 128, 64, 4)
    elif depth <= 128:
        c = ForwardConfig(what, 64, 64, 4)
    else:
        c = ForwardConfig(what, 64, 32, 4, q_in_registers=False)
    return replace(c, lse=lse)
