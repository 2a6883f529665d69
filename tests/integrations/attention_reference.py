"""Attention by its definition, in fp64, with the signature of graphene.ops.attention."""

from __future__ import annotations

import torch


def attention(q, k, v, *, causal=False, window=None, mask=None, bias=None, scale=None, softcap=None, return_lse=False):
    groups = q.shape[2] // k.shape[2]
    queries, keys = q.shape[1], k.shape[1]
    qd, kd, vd = (x.transpose(1, 2).double() for x in (q, k, v))
    kd, vd = kd.repeat_interleave(groups, 1), vd.repeat_interleave(groups, 1)
    s = qd @ kd.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.double()
    row, column = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        seen &= column <= row
    if window is not None:
        seen &= (column >= row - window[0]) & (column <= row + window[1])
    seen = seen[None, None] if mask is None else mask & seen
    s = s.masked_fill(~seen, float("-inf"))
    p = torch.softmax(s, -1).nan_to_num()
    out = (p @ vd).transpose(1, 2).to(q.dtype).contiguous()  # as the operator gives it
    return (out, torch.logsumexp(s, -1).float()) if return_lse else out


def attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **rest):
    """Rows of no sequence give zeros. No number is read, so that a recorded call is right for other lengths, too."""
    causal, window = rest.pop("causal", False), rest.pop("window", None)
    (at, row, held), (of, column, _) = place(q, cu_seqlens_q), place(k, cu_seqlens_k)
    more = (cu_seqlens_k.diff() - cu_seqlens_q.diff())[at.clamp(max=len(cu_seqlens_q) - 2)]
    inside = held[:, None] & (at[:, None] == of)
    off = (row + more)[:, None] - column
    if causal:
        inside = inside & (off >= 0)
    if window is not None:
        inside = inside & (off <= window[0]) & (off >= -window[1])
    out = attention(q[None], k[None], v[None], mask=inside[None, None], **rest)
    return (out[0][0], out[1][0]) if rest.get("return_lse") else out[0]


def place(x, ends):
    """Of each row its sequence, its place in it, and whether it is of any."""
    rows = torch.arange(len(x), device=x.device)
    at = torch.bucketize(rows, ends[1:], right=True)
    return at, rows - ends[at.clamp(max=len(ends) - 2)], at < len(ends) - 1
