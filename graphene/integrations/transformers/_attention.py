"""The attention function that transformers calls for ``attn_implementation="graphene"``."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import output_capturing
from transformers.utils.import_utils import is_tracing

from graphene import _core
from graphene import ops as _ops
from graphene.integrations.transformers import _masks, _sdpa
from graphene.integrations.transformers._fused import HALF
from graphene.integrations.transformers._sdpa import has_sdpa

ops: Any = _ops

WIDEST = 256  # elements of a head, of which kernels take multiples of 8


def attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: Any = None,
    s_aux: Any = None,
    indices: Any = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **rest: Any,
) -> tuple[Any, Any]:
    """Attention of query (batch, heads, queries, dim) over key and value (batch, kv_heads, keys, dim), in any strides.

    ``attention_mask``: a mask from ``mask``, or a tensor that broadcasts to (batch, heads, queries, keys) and is added.
    ``cu_seq_lens_*``, ``max_length_*``: the batch is one row of packed sequences, (1, heads, total, dim). Returns
    (batch, queries, heads, dim) and the weights, which exist only if ``output_attentions`` asks for them.

    ``s_aux`` (heads,): attention sinks, a score for each head that takes part in the softmax and has no value.
    ``indices`` (batch, queries, n): the only keys that a query may see; numbers below 0 stand for no key.

    Raises LaunchError OP_ARGUMENT for dropout, weights or chosen keys of packed sequences. Under torch.jit.trace
    PyTorch's attention runs, and arguments that it does not take raise the same error.
    """
    causal = _is_causal(module) if is_causal is None else bool(is_causal)
    if torch.jit.is_tracing():
        if cu_seq_lens_q is not None or softcap is not None or s_aux is not None:
            what = "packed sequences, soft cap or sinks in torch.jit.trace"
            _core.fail("OP_ARGUMENT", f"graphene's attention takes no {what}", [],
                       "trace with torch.export, or load the model with attn_implementation=\"eager\"")  # fmt: skip
        _say_once("torch.jit.trace: run by scaled_dot_product_attention")
        traced = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, causal, position_bias=position_bias
        )
        return traced[0], None
    wants_weights = rest.get("output_attentions") or _weights_are_collected()
    if cu_seq_lens_q is not None:
        if indices is not None:
            _core.fail("OP_ARGUMENT", "graphene's attention takes no indices of keys of packed sequences", [],
                       "pass the sequences as a padded batch")  # fmt: skip
        if wants_weights:
            _core.fail("OP_ARGUMENT", "graphene's attention cannot give the weights of packed sequences", [],
                       "leave out output_attentions, or pass the sequences as a padded batch")  # fmt: skip
        if dropout:
            _core.fail("OP_ARGUMENT", "graphene's attention takes no dropout on packed sequences", [f"got:  {dropout}"],
                       "set the attention's dropout in the model's configuration to 0")  # fmt: skip
        window = None if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
        q, k, v = (x.transpose(1, 2).squeeze(0) for x in (query, key, value))
        packed: Any = ops.attention_varlen(
            q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k,
            causal=causal, window=window, scale=scaling, softcap=softcap, return_lse=s_aux is not None,
        )  # fmt: skip
        packed = packed if s_aux is None else sunk(packed[0], packed[1], s_aux)
        return packed.unsqueeze(0), None
    key, value, mask, bias, causal, window = _resolve(query, key, value, attention_mask, causal)
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]  # a static cache has keys that no query sees
    if indices is not None:
        chosen = _chosen(indices, key.shape[2])
        mask = chosen if mask is None else mask & chosen
    why = _why_not(query, key, value, (bias, position_bias), dropout)
    if why is not None:
        _say_once(f"{why}: run by PyTorch's operators")
    if wants_weights or (why is not None and (softcap is not None or s_aux is not None)):
        extra = (bias, position_bias, s_aux)
        out, weights = written_out(query, key, value, mask, extra, causal, window, scaling, softcap, dropout)
        return out, weights if wants_weights else None
    if why is not None:
        given = (mask, causal, window, (bias, position_bias))
        way = _way(module, query, key, causal)
        return _by_pytorch(query, key, value, *given, dropout, scaling, way), None
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    named = {"causal": causal, "window": window, "bias": bias, "scale": scaling, "softcap": softcap}
    named["return_lse"] = s_aux is not None
    if all(x is None for x in (mask, bias, window, softcap, s_aux)) and _way(module, query, key, causal) == "torch":
        out = _sdpa.plain(query, key, value, causal, scaling)
    else:
        result: Any = ops.attention(q, k, v, mask=mask, **named)
        out = result if s_aux is None else sunk(result[0], result[1], s_aux)
    if mask is None and bias is None and not torch.compiler.is_compiling() and _masks.dropped:
        _load_masked(q, k, v, named)
    return out, None


def sunk(out: Any, lse: Any, sinks: Any) -> Any:
    """The result with a sink in the softmax, which adds the sink's exponential to the sum, so that weights shrink."""
    share = torch.sigmoid(lse - sinks.to(lse.dtype).view(-1, 1))
    return out * share.mT.unsqueeze(-1).to(out.dtype)


WAYS = "_graphene_attention"  # of a module whose attention was measured: problem, half precision -> ways by queries
BORDERS = (2, 256, 1024)  # numbers of queries: below, between and above them attention has a way of its own


def problem(heads: int, kv_heads: int, dim: int, causal: bool, gradient: bool) -> tuple[Any, ...]:
    """The key under which attention without a mask is measured."""
    return ("attention", heads, kv_heads, dim, causal, gradient)


def _way(module: Any, query: Any, key: Any, causal: bool) -> str | None:
    """The way that was measured to be the fastest for attention without a mask; None where nothing was measured."""
    measured: dict[Any, tuple[str, ...]] | None = getattr(module, WAYS, None)
    if measured is None or (causal and query.shape[2] != key.shape[2]):
        return None
    wants = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    asked = problem(query.shape[1], key.shape[1], query.shape[3], causal, wants), query.dtype in HALF
    ways = measured.get(asked)
    if ways is None:
        return None
    if torch.compiler.is_compiling():  # which would be told a bound of a length that may vary
        return ways[1] if len(set(ways[1:])) == 1 else None
    at = sum(bool(query.shape[2] >= border) for border in BORDERS)
    return ways[at]


_loaded: set[tuple[Any, ...]] = set()


def _load_masked(q: Any, k: Any, v: Any, named: dict[str, Any]) -> None:
    """If a mask was left out, loads the kernel with a mask, too.

    In the capture of a CUDA graph no mask is left out, and nothing can be loaded.
    """
    wants = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    form = (q.shape[2:], k.shape[2], k.shape[1] % 2, *(named[n] for n in ("causal", "softcap", "return_lse")))
    key = (q.device, q.dtype, form, named["window"] is None, wants)
    if key in _loaded or str(q.device) not in _masks.dropped or is_tracing(q):
        return
    if torch._C._are_functorch_transforms_active():  # torch.func, which has no hooks of saved tensors
        return
    _loaded.add(key)
    keys = k.shape[1] if k.shape[1] < 66 else 64 + k.shape[1] % 2  # pairs of a mask's elements are read where they are
    mask = torch.ones((1, 1, 1, keys), dtype=torch.bool, device=q.device)
    parts = (x.detach()[:1, :n].requires_grad_(wants) for x, n in ((q, 64), (k, keys), (v, keys)))
    # Hooks of whoever computes the call again for its gradient would see a launch that does not come again.
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        ops.attention(*parts, mask=mask, **named)


def _weights_are_collected() -> bool:
    """Whether transformers wants attention's weights of this forward: not every module passes on that it does."""
    at = output_capturing._active_collector
    wanted = getattr(at, "global_var", None) if torch.compiler.is_compiling() else at.get()
    return any("attentions" in key for key in wanted or ())


def _is_causal(module: Any) -> bool:
    """Whether a module without a mask is causal. A configuration that says it is not is right.

    Only "sdpa" and later implementations ask the module. Eager does not, so in a model that has only eager, no mask
    means that no key is hidden.
    """
    if getattr(getattr(module, "config", None), "is_causal", None) is False:
        return False
    return bool(getattr(module, "is_causal", True)) and has_sdpa(module.__class__)


def _resolve(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> tuple[Any, ...]:
    """Arguments for ops.attention: cut keys and values, mask (batch, 1, 1 or queries, keys), bias, causal, window.

    ``causal``: whether the module is causal without a mask.
    """
    queries, window = query.shape[2], None
    facts = _masks.facts_of(mask)
    if mask is None:
        causal = causal and queries > 1
        keys = queries if causal else key.shape[2]
    elif facts is not None and facts.seen is not None:
        return key, value, facts.seen[..., : key.shape[2]], None, False, None
    elif facts is None or not _holds(facts, mask, queries, key.shape[2]):
        mask = mask.plain() if isinstance(mask, _masks.Mask) else mask
        mask = mask[..., : key.shape[2]]
        given = (mask, None) if mask.dtype == torch.bool else (None, mask)
        return (key, value, *given, False, None)
    else:
        keys, causal, window = facts.keys, facts.causal, None
        if facts.window is not None:
            size = facts.window
            rules_out = torch.compiler.is_compiling() or size < keys
            window = (size, size) if not causal else (size - 1, 0) if rules_out else None
        mask = None if facts.padding is None else facts.padding[:, None, None]
    if keys < key.shape[2]:
        key, value = key[:, :, :keys], value[:, :, :keys]
    return key, value, mask, None, causal and queries > 1, window


def _holds(facts: _masks.MaskFacts, mask: Any, queries: int, keys: int) -> bool:
    """Whether a mask's facts fit these numbers of queries and keys. Without order, any number of queries fits."""
    in_order = facts.causal or facts.window is not None
    return bool(facts.keys <= keys and (mask.shape[2] == queries or not in_order))


def _chosen(indices: Any, keys: int) -> Any:
    """(batch, 1, queries, keys) bool: True for the keys of these numbers."""
    none = indices < 0
    seen = indices.new_zeros((*indices.shape[:2], keys + 1), dtype=torch.bool)
    return seen.scatter(-1, indices.masked_fill(none, keys).long(), True)[:, None, :, :keys]


def _why_not(query: Any, key: Any, value: Any, biases: tuple[Any, Any], dropout: float) -> str | None:
    """Why PyTorch's operators must run; None if Graphene's can."""
    if torch.is_grad_enabled() and any(b is not None and b.requires_grad for b in biases):
        return "a gradient of a mask or a position bias"
    if value.shape[-1] != key.shape[-1]:
        return "values of another width than keys"
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return "one batch of keys for several of queries"
    missing = kernel(query)
    if missing is not None:
        return missing
    return "dropout in attention" if dropout else None


def kernel(query: Any) -> str | None:
    """Why no kernel takes queries of this type and these heads, on a GPU; None if one does."""
    if query.is_cuda and (query.dtype not in HALF or query.shape[-1] % 8 or query.shape[-1] > WIDEST):
        return f"no kernel for attention of {query.dtype} with heads of {query.shape[-1]} elements"
    return None


def _by_pytorch(
    query: Any, key: Any, value: Any, mask: Any, causal: bool, window: tuple[int, int] | None,
    biases: tuple[Any, Any], dropout: float, scale: float | None, way: str | None = None,
) -> Any:  # fmt: skip
    """(batch, queries, heads, dim) by scaled_dot_product_attention, or the way that was measured without a mask."""
    only_order = all(x is None for x in (mask, window, *biases))
    if only_order and (not causal or query.shape[2] == key.shape[2]):
        wants = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if way == "scores" and not (wants or dropout) and _sdpa.fits(query, key.shape[2]):
            return _sdpa.with_scores(query, key, value, causal, scale)
        repeat = query.is_cuda and query.dtype not in HALF if way is None else way != "torch"
        return _sdpa.plain(query, key, value, causal, scale, dropout, repeat)
    seen = _full_mask(query, key, mask, causal, window)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    given = [b for b in biases if b is not None]
    mask = functools.reduce(torch.add, given).to(query.dtype) if given else seen
    if given and seen is not None:
        mask = torch.where(seen, mask, float("-inf"))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale)
    return out.transpose(1, 2).contiguous()


def _full_mask(query: Any, key: Any, mask: Any, causal: bool, window: tuple[int, int] | None) -> Any:
    """One boolean mask that says which keys are seen; None: all."""
    queries, keys = query.shape[2], key.shape[2]
    if causal or window is not None:
        row = torch.arange(queries, device=query.device)[:, None] + (keys - queries)
        column = torch.arange(keys, device=query.device)[None, :]
        left, right = window if window is not None else (keys, 0)
        seen = (column >= row - left) & (column <= row + right)
        mask = seen[None, None] if mask is None else mask & seen
    return mask


def written_out(
    query: Any, key: Any, value: Any, mask: Any, extra: tuple[Any, Any, Any], causal: bool, window: Any,
    scale: float | None, softcap: float | None, dropout: float,
) -> tuple[Any, Any]:  # fmt: skip
    """The same with its weights, which no kernel keeps, by PyTorch's operators with the softmax in fp32."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    *biases, sinks = extra
    for bias in biases:
        scores = scores if bias is None else scores + bias
    full = _full_mask(query, key, mask, causal, window)
    if full is not None:
        scores = scores.masked_fill(~full, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    # A row that sees no key gives zeros, and a gradient of zeros.
    nothing = scores.isneginf().all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(nothing, 0), -1, dtype=torch.float32).masked_fill(nothing, 0)
    weights = torch.nn.functional.dropout(weights.to(query.dtype)[..., : key.shape[2]], dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


_said: set[str] = set()


def _say_once(what: str) -> None:
    if torch.compiler.is_compiling() or what in _said:
        return
    _said.add(what)
    warnings.warn(f"graphene.integrations.transformers: {what}", UserWarning, stacklevel=4)
