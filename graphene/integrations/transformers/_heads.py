"""Measures the attention of a model's modules without a mask, and leaves it to PyTorch where that is faster.

In fp32, which no kernel takes, the ways are PyTorch's: its attention, the same with keys copied for each head, and two
products around a softmax where the scores are few.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from graphene.integrations.transformers import _measure
from graphene.integrations.transformers._attention import BORDERS, WAYS, problem
from graphene.integrations.transformers._fused import HALF

OURS = "graphene.ops.attention"
MEASURED = (*HALF, torch.float32)
_DIMS = ("head_dim", "attention_head_size", "key_value_proj_dim")
_HEADS = ("num_heads", "num_attention_heads", "n_heads")


def choose(modules: Iterable[Any], dtype: Any, device: Any) -> tuple[list[Any], str, str]:
    """Measures what each size of attention takes. Returns the modules that know it, what they do, and why, in words.

    The times are those of calls without a mask. Others, and sizes that a module does not tell, are Graphene's.
    """
    told: list[Any] = []
    now, why = OURS, ""
    known: dict[tuple[Any, ...], Any] = {}
    if dtype not in MEASURED:
        return told, now, why
    usual = "graphene" if dtype in HALF else "torch"
    for module in modules:
        sizes = sizes_of(module)
        if sizes is None:
            continue
        causal = bool(getattr(module, "is_causal", False))
        gradient = module.training and not torch.is_inference_mode_enabled()
        key = problem(*sizes, causal, gradient)
        if key not in known:
            known[key] = _measure.choose(key, dtype, device)
        times = known[key]
        if not times and dtype not in HALF:
            continue
        ways = tuple(_measure.best(times.get(n, {}), usual) for n in _measure.QUERIES)
        other = usual if dtype in HALF or sizes[0] == sizes[1] else "repeated"
        step = (ways[0], *[other] * len(BORDERS))  # a single query is not causal
        half = dtype in HALF
        object.__setattr__(module, WAYS, {(problem(*sizes, False, gradient), half): step, (key, half): ways})
        told.append(module)
        now = _in_words(ways)
        why = "; ".join(
            f"{n} queries: " + ", ".join(f"{w} {us:.1f}" for w, us in found.items()) + " us"
            for n, found in times.items()
        )
    return told, now, why


def forget(module: Any) -> None:
    """Undoes ``choose`` for a module."""
    module.__dict__.pop(WAYS, None)


def sizes_of(module: Any) -> tuple[int, int, int] | None:
    """Heads of queries, heads of keys, and elements of a head; None where a module does not say them."""
    config = layer_config(getattr(module, "config", None), getattr(module, "layer_idx", None))
    heads = _first(module, _HEADS) or _first(config, _HEADS)
    dim, width = _first(module, _DIMS) or _first(config, _DIMS[:1]), _first(config, ("hidden_size",))
    if heads is None or (dim is None and width is None):
        return None
    groups = _first(module, ("num_key_value_groups",)) or 1
    dim = dim or (width or 0) // heads
    return None if heads % groups or not dim or dim % 8 else (heads, heads // groups, dim)


def layer_config(config: Any, layer: int | None) -> Any:
    """A configuration that holds for a layer: some say sizes of each, and raise where asked for one of all."""
    if not getattr(config, "is_heterogeneous", False):
        return config
    return None if layer is None else config.per_layer_config[layer]


def _first(holder: Any, names: Iterable[str]) -> int | None:
    """The first attribute of these names that is a positive number."""
    values = (getattr(holder, n, None) for n in names)
    return next((v for v in values if type(v) is int and v > 0), None)


def _in_words(ways: tuple[str, ...]) -> str:
    """The ways for numbers of queries, in words."""
    words, said = {"torch": "left", "graphene": OURS, "repeated": "left, keys repeated", "scores": "two products"}, ""
    for way, following, border in zip(ways, ways[1:], BORDERS, strict=False):
        if way != following:
            said += f"{words[way]} below {border} queries, then "
    return said + words[ways[-1]]
