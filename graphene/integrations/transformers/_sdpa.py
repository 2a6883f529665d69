"""PyTorch's scaled dot product attention, and which models of transformers take it."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from transformers import PreTrainedModel

__all__ = ["fits", "has_sdpa", "plain", "with_scores"]

SCORES_BYTES = 2**28  # the most that scores may take that are written out


def plain(
    query: Any, key: Any, value: Any, causal: bool, scale: float | None, dropout: float = 0.0, repeat: bool = False
) -> Any:
    """(batch, queries, heads, dim) of (batch, heads, seq, dim) tensors; if causal, of as many keys as queries.

    ``repeat``: keys and values are copied for each head of queries. PyTorch's kernels that keep no scores take heads
    that share keys in half precision alone; in fp32 it writes all scores out.
    """
    if repeat and query.shape[1] != key.shape[1]:
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, None, dropout, causal, scale=scale, **grouped
    )
    return out.transpose(1, 2).contiguous()


def fits(query: Any, keys: int) -> bool:
    """Whether the scores of queries (batch, heads, queries, dim) with these keys are few enough to be written out."""
    return bool(query.shape[0] * query.shape[1] * query.shape[2] * keys * query.element_size() <= SCORES_BYTES)


def with_scores(query: Any, key: Any, value: Any, causal: bool, scale: float | None) -> Any:
    """The same by two products and a softmax, with no gradient; heads that share keys read them in place."""
    batch, heads, queries, dim = query.shape
    shared, keys = key.shape[1], key.shape[2]
    rows = (query * (dim**-0.5 if scale is None else scale)).reshape(batch, shared, heads // shared * queries, dim)
    scores = torch.matmul(rows, key.mT)
    if causal:
        later = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu(1)
        scores.view(batch, shared, heads // shared, queries, keys).masked_fill_(later, float("-inf"))
    out = torch.matmul(torch.softmax(scores, -1), value)
    return out.view(batch, heads, queries, dim).transpose(1, 2).contiguous()


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
