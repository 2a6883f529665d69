"""Attention over the pages of ``generate_batch``: sequences one after another, whose keys a cache keeps.

transformers gathers the keys of each step from their pages; the kernel reads them as packed sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from graphene import _core
from graphene.integrations.transformers import _attention
from graphene.integrations.transformers._attention import ops
from graphene.integrations.transformers._interface import NAME


def attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    cache: Any = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: Any = 0,
    **rest: Any,
) -> tuple[Any, None]:
    """What transformers calls for ``attn_implementation="paged|graphene"``.

    query (1, heads, total, dim), key and value (1, kv_heads, total, dim): those of a step, which ``cache`` keeps.
    ``cu_seq_lens_q``, ``cu_seq_lens_k`` (sequences + 1,): where each one's begin; the latter, and ``max_seqlen_k``,
    may be dictionaries by the kind of a layer. A query sees the keys of its sequence up to its own, and of these the
    last ``sliding_window``. Returns (1, total, heads, dim of value), and no weights.

    Raises LaunchError OP_ARGUMENT without a cache, or with one whose keys are not gathered.
    """
    if cache is None or rest.get("block_table") is not None:
        _core.fail("OP_ARGUMENT", 'attn_implementation="paged|graphene" takes what generate_batch makes',
                   ["got:  no cache" if cache is None else "got:  a table of blocks in place of gathered keys"],
                   f'call generate_batch, or model.set_attn_implementation("{NAME}") for other calls')  # fmt: skip
    window = sliding_window or getattr(module, "sliding_window", None) or None
    kind = "full_attention" if window is None else "sliding_attention"
    if isinstance(cu_seq_lens_k, dict):
        cu_seq_lens_k, max_seqlen_k = cu_seq_lens_k[kind], max_seqlen_k[kind]
    width = value.shape[-1]
    if width < query.shape[-1]:
        value = F.pad(value, (0, query.shape[-1] - width))
    key, value = cache.update(
        key_states=key, value_states=value, layer_idx=module.layer_idx, read_index=rest["read_index"],
        write_index=rest["write_index"],
    )  # fmt: skip
    starts = cu_seq_lens_q.int(), cu_seq_lens_k.int()
    if _attention.kernel(query) is not None:
        key, value = (t.transpose(0, 1)[None] for t in (key, value))
        seen = own_keys(*starts, query.shape[2], key.shape[2], window)
        out, _ = _attention.written_out(
            query, key, value, seen, (None, None, s_aux), False, None, scaling, softcap, dropout
        )
        return out[..., :width], None
    bounds = None if window is None else (window - 1, 0)
    made: Any = ops.attention_varlen(
        query.transpose(1, 2).squeeze(0), key, value, *starts, max_seqlen_q, max_seqlen_k,
        causal=True, window=bounds, scale=scaling, softcap=softcap, return_lse=s_aux is not None,
    )  # fmt: skip
    out = made if s_aux is None else _attention.sunk(made[0], made[1], s_aux)
    return out.unsqueeze(0)[..., :width], None


def own_keys(starts_q: Any, starts_k: Any, queries: int, keys: int, window: int | None) -> Any:
    """(1, 1, queries, keys) bool: the keys that each query of packed sequences sees, found without waiting for a GPU.

    The last query of a sequence is at its last key. Queries and keys behind the last sequence see nothing.
    """

    def places(starts: Any, count: int) -> tuple[Any, Any, Any]:
        at = torch.arange(count, device=starts.device)
        sequence = torch.searchsorted(starts[1:].contiguous(), at, right=True)
        end = starts[(sequence + 1).clamp(max=len(starts) - 1)]
        return sequence, end - at, sequence < len(starts) - 1

    (of_q, from_end_q, is_q), (of_k, from_end_k, is_k) = places(starts_q, queries), places(starts_k, keys)
    before = from_end_k[None] - from_end_q[:, None]  # how many places a key is before a query
    seen = (of_q[:, None] == of_k[None]) & (before >= 0) & is_q[:, None] & is_k[None]
    return (seen if window is None else seen & (before < window))[None, None]
