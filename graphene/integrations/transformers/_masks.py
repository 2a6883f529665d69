"""Masks as ``graphene.ops.attention`` takes them, made where transformers makes its own.

A mask function of transformers says which keys a query sees. Most are made of four parts: causal, a sliding window,
padding, nothing. Those are passed on as facts, which cost no memory and no time for what they rule out:

- ``None``: every key, or every key up to the query's where the attention module is causal.
- (batch, keys) bool: keys that are no padding.
- (batch, 1, window, 1, keys) bool: the same; and a query sees no key after its own, and ``window`` keys at most. The
  last query is at the last column: keys after that are seen by nobody. A view: the window's dimension has stride 0.
- (batch, 1, 1, window, 1, keys) bool: the same, and a query sees ``window`` keys on either side of its own.
- (batch, 1, queries, keys) bool: anything else, written out; it says everything there is to say.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import masking_utils as hf
from transformers.utils.import_utils import is_tracing

# Devices on which a mask that hides nothing was left out, as it cannot be where its values are not looked at.
dropped: set[str] = set()


# Of configurations, by id, while they live: whether the last mask made for them was causal.
_causal_of: dict[int, tuple[weakref.ref[Any], bool]] = {}


def _note_causal(config: Any, causal: bool) -> None:
    at = id(config)
    known = _causal_of.get(at)
    if known is None:
        _causal_of[at] = weakref.ref(config, lambda _: _causal_of.pop(at, None)), causal
    elif known[1] != causal:
        _causal_of[at] = known[0], causal


def causal_of(config: Any) -> bool:
    """Whether the last mask made for a configuration was causal; True if there was none."""
    known = _causal_of.get(id(config))
    return known is None or known[1]


class Tokens(NamedTuple):
    """How many keys of each sequence are no padding: (batch,) int32 on the device, and as numbers."""

    lengths: Any
    each: list[int]


def tokens(padding: Any) -> Tokens:
    """Counts a mask (batch, keys); waits for the device, unless it did for this mask."""
    known: Tokens | None = getattr(padding, "_graphene_tokens", None)
    if known is not None:
        return known
    lengths = padding.sum(-1, dtype=torch.int32)
    return Tokens(lengths, lengths.tolist())


class Pattern(NamedTuple):
    """Which keys a query sees, padding apart. ``window``: keys after q - window; if not causal |q - key| <= window."""

    causal: bool
    window: int | None


def pattern_of(mask_function: Callable[..., Any]) -> Pattern | None:
    """The pattern that a mask function of transformers is made of; None where it is anything else."""
    if mask_function is hf.causal_mask_function:
        return Pattern(True, None)
    if mask_function is hf.bidirectional_mask_function:
        return Pattern(False, None)
    if torch.compiler.is_compiling():  # which follows no closures
        return None
    parts = _parts(mask_function)
    causal = hf.causal_mask_function in parts
    rest = [p for p in parts if p not in (hf.causal_mask_function, hf.bidirectional_mask_function)]
    if len(rest) != 1:
        return None
    overlay = hf.sliding_window_overlay if causal else hf.sliding_window_bidirectional_overlay
    window = _closure(rest[0]).get("sliding_window")
    if not isinstance(window, int) or rest[0].__code__ is not overlay(window).__code__:
        return None
    return Pattern(causal, window)


def _parts(mask_function: Callable[..., Any]) -> list[Any]:
    """The functions of which this is the intersection."""
    if getattr(mask_function, "__code__", None) is not hf.and_masks().__code__:
        return [mask_function]
    return [p for inner in _closure(mask_function)["mask_functions"] for p in _parts(inner)]


def _closure(function: Any) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    return {} if code is None else {n: c.cell_contents for n, c in zip(code.co_freevars, cells, strict=True)}


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = hf.causal_mask_function,
    attention_mask: Any = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: Any = "cpu",
    **rest: Any,
) -> Any:
    """What transformers calls for ``attn_implementation="graphene"``: a mask of one of the four forms above.

    The arguments are those of ``transformers.masking_utils.sdpa_mask``; ``attention_mask`` (batch, keys) bool.
    """
    if attention_mask is not None and attention_mask.dim() > 4:  # made before, by generate()
        return attention_mask
    pattern = None if torch.jit.is_tracing() else pattern_of(mask_function)
    if pattern is not None and not torch.compiler.is_compiling() and (config := rest.get("config")) is not None:
        _note_causal(config, pattern.causal)
    if pattern is not None and (allow_is_causal_skip if pattern.causal else allow_is_bidirectional_skip):
        facts = _facts(pattern, q_length, kv_length, q_offset, kv_offset, attention_mask, device)
        if facts is not NotImplemented:
            return facts
    rest.pop("allow_torch_fix", None)
    return hf.sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False, device=device, **rest,
    )  # fmt: skip


def _facts(
    pattern: Pattern, q_length: int, kv_length: int, q_offset: Any, kv_offset: int, padding: Any, device: Any
) -> Any:
    """The mask without its queries, or NotImplemented."""
    causal, window = pattern
    padding = hf.prepare_padding_mask(padding, kv_length, kv_offset)
    tracing = is_tracing(padding)
    keys = kv_length
    if window is not None and window >= kv_length:
        window = None  # it rules nothing out
    if causal or window is not None:
        if isinstance(q_offset, torch.Tensor):  # of a static cache
            if tracing:
                return NotImplemented
            q_offset = int(q_offset)
        first = q_offset - kv_offset  # the first query's place among the keys
        if first < 0 or first + q_length > kv_length or (not causal and q_length != kv_length):
            return NotImplemented
        keys = first + q_length  # seen by nobody: those after the last query
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + keys]
        if not tracing:
            seen = tokens(padding)
            if sum(seen.each) == padding.numel():
                padding = None
                dropped.add(str(device))
            else:
                padding._graphene_tokens = seen  # packing asks again
    if padding is None:
        # Without a mask a causal module's first query is its first key, as in scaled_dot_product_attention.
        aligned = keys == (kv_length if q_length == 1 else q_length)
        if window is None and (aligned or not causal):
            return None
        padding = torch.ones((1, 1), dtype=torch.bool, device=device).expand(1, keys)
    if causal:
        return padding[:, None, None, None].expand(-1, 1, keys if window is None else window, 1, -1)
    return padding if window is None else padding[:, None, None, None, None].expand(-1, 1, 1, window, 1, -1)
