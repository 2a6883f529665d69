"""PyTorch's scaled dot product attention, and which models of transformers take it."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from transformers import PreTrainedModel

__all__ = ["has_sdpa", "plain"]


def plain(query: Any, key: Any, value: Any, causal: bool, scale: float | None, dropout: float = 0.0) -> Any:
    """(batch, queries, heads, dim) of (batch, heads, seq, dim) tensors; if causal, of as many keys as queries."""
    grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, None, dropout, causal, scale=scale, **grouped
    )
    return out.transpose(1, 2).contiguous()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_sdpa(cls: type) -> bool:
    """Whether models of the file in which a class of modules is defined take "sdpa"; True if there are none.

    A compiler calls it and uses its result, because it could not trace the search of a file.
    """
    return _has_sdpa(cls)


@functools.cache
def _has_sdpa(cls: type) -> bool:
    for base in cls.__mro__:
        found = [m for m in vars(sys.modules[base.__module__]).values() if _is_model_of(m, base.__module__)]
        if found:
            return any(m._supports_sdpa for m in found)
    return True


def _is_model_of(cls: Any, module: str) -> bool:
    return isinstance(cls, type) and issubclass(cls, PreTrainedModel) and cls.__module__ == module
