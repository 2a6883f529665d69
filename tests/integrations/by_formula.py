"""Operators by their formulas, in PyTorch and in any precision: what is tested is the integration that calls them."""

from __future__ import annotations

import attention_reference
import torch
import torch.nn.functional as F  # noqa: N812

from graphene import ops
from graphene.integrations.transformers import _fused
from graphene.integrations.transformers._fused import ACTIVATIONS
from graphene.ops.rotary import other


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, *, residual=None, return_sum=False):
    total = input if residual is None else input + residual
    out = F.layer_norm(total, tuple(normalized_shape), weight, bias, eps)
    return (out, total) if return_sum else out


def rms_norm(input, normalized_shape, weight=None, eps=None, *, residual=None, return_sum=False, weight_offset=0.0):
    total = input if residual is None else input + residual
    out = F.rms_norm(total, tuple(normalized_shape), None if weight is None else weight + weight_offset, eps)
    return (out, total) if return_sum else out


def matmul(a, b, bias=None, activation=None, residual=None):
    out = a @ b if bias is None else a @ b + bias
    out = out if activation is None else ACTIVATIONS[activation](out)
    return out if residual is None else out + residual


def gated(gate, up=None, activation=None):
    out = gate if activation is None else ACTIVATIONS[activation](gate)
    return out if up is None else out * up


def rotary(q, k, cos, sin, q_weight=None, k_weight=None, eps=1e-6, weight_offset=0.0, interleaved=False):
    found = []
    for x, w in ((q, q_weight), (k, k_weight)):
        x = x if w is None else rms_norm(x, x.shape[-1:], w, eps, weight_offset=weight_offset)
        found.append(x * cos.unsqueeze(2) + other(x, interleaved) * sin.unsqueeze(2))
    return tuple(found)


BY_FORMULA = (layer_norm, rms_norm, matmul, gated, rotary, attention_reference.attention,
              attention_reference.attention_varlen)  # fmt: skip


def use(patch) -> None:
    """Puts them in the operators' places, for fp32, too."""
    for f in BY_FORMULA:
        patch.setattr(ops, f.__name__, f)
    patch.setattr(_fused, "HALF", (torch.float16, torch.bfloat16, torch.float32))
