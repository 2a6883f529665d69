"""Attention by PyTorch's operators, in fp32 (fp64 for fp64), rounded once, for calls that no kernel takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphene.ops.core.torch import Tensor, torch, wide_dtype


def seen(sq: int, sk: int, causal: bool, left: int, right: int, device: Any) -> Tensor:
    """Which keys a query sees, (sq, sk), or None for all of them."""
    right = 0 if causal else right
    if left < 0 and right < 0:
        return None
    place = torch.arange(sq, device=device)[:, None] + sk - sq
    key = torch.arange(sk, device=device)[None]
    allowed = torch.ones(sq, sk, dtype=torch.bool, device=device)
    if right >= 0:
        allowed &= key <= place + right
    return allowed & (key >= place - left) if left >= 0 else allowed


class Problem:
    """One attention in wide precision, heads first, from which results and gradients are computed."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, numbers: tuple[Any, ...]) -> None:
        causal, left, right, scale, self.softcap = numbers
        wide = wide_dtype(q.dtype)
        self.group = max(q.shape[2] // max(k.shape[2], 1), 1)
        self.scale = scale
        self.q = q.transpose(1, 2).to(wide)
        self.k, self.v = (t.transpose(1, 2).to(wide).repeat_interleave(self.group, 1) for t in (k, v))
        s = self.q @ self.k.transpose(2, 3) * scale
        if self.softcap > 0:
            self.tanh = torch.tanh(s / self.softcap)
            s = self.softcap * self.tanh
        if bias is not None:
            s = s + bias
        allowed = seen(q.shape[1], k.shape[1], causal, left, right, q.device)
        if mask is not None:
            mask = mask[:, None, None] if mask.dim() == 2 else mask
            allowed = mask if allowed is None else allowed & mask
        self.scores = s if allowed is None else s.masked_fill(~allowed, -torch.inf)

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """O (batch, heads, sq, dim), LSE, and the rest of LSE * log2(e) after LSE was rounded to fp32.

        A row that sees no key gives zeros and -inf, without a rest.
        """
        lse = torch.logsumexp(self.scores, 3).float()
        sums = torch.exp(self.scores - lse[..., None]).sum(3)
        return self.p() @ self.v, lse, torch.where(lse.isneginf(), 0, torch.log2(sums)).float()

    def p(self) -> Tensor:
        """The probabilities. They are not computed from the LSE, whose digits a large score would take."""
        nothing = self.scores.isneginf().all(3, keepdim=True)
        return torch.softmax(self.scores.masked_fill(nothing, 0), 3).masked_fill(nothing, 0)

    def backward(self, g: Tensor, g_lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k, v in their own shapes, by operators that have gradients themselves.

        A row's sum of p * dp is computed from the same numbers that it is subtracted from, not from the rounded result,
        because the difference is tiny where a probability is close to one.
        """
        p, g = self.p(), g.transpose(1, 2).to(self.q.dtype)
        dp = g @ self.v.transpose(2, 3)
        dp = dp - (p * dp).sum(3, keepdim=True)
        ds = p * (dp if g_lse is None else dp + g_lse[..., None])
        if self.softcap > 0:
            ds = ds * (1 - self.tanh * self.tanh)
        ds = ds * self.scale

        def heads(t: Tensor) -> Tensor:
            b, h, s, d = t.shape
            return t.view(b, h // self.group, self.group, s, d).sum(2).transpose(1, 2)

        return (ds @ self.k).transpose(1, 2), heads(ds.transpose(2, 3) @ self.q), heads(p.transpose(2, 3) @ g)


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, *numbers: Any) -> tuple[Tensor, ...]:
    """The results of (batch, seq, heads, dim) tensors, and what the gradient's kernels read of them.

    That is empty where it is not read: the result before its rounding, and with a bias the rest of the LSE.
    """
    out, lse, rest = Problem(q, k, v, mask, bias, numbers).forward()
    out = out.transpose(1, 2)
    made, none = out.to(q.dtype).contiguous(), torch.empty(0, device=q.device)
    wide = none if out.dtype == made.dtype else out.contiguous()
    return made, lse, wide, none.clone() if bias is None else rest


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor, g_lse: Tensor, *numbers: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, from those of the result and of the LSE (or None)."""
    made = Problem(q, k, v, mask, bias, numbers).backward(g, g_lse)
    dq, dk, dv = (t.to(x.dtype) for t, x in zip(made, (q, k, v), strict=True))
    return dq, dk, dv


def sequences(cu_q: Tensor, cu_k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Where each packed sequence lies."""
    q, k = cu_q.tolist(), cu_k.tolist()
    for i in range(len(q) - 1):
        yield slice(q[i], max(q[i], q[i + 1])), slice(k[i], max(k[i], k[i + 1]))


def forward_varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *numbers: Any) -> tuple[Tensor, ...]:
    """The results of packed (total, heads, dim) tensors, and the same as in ``forward`` after them."""
    out, lse = torch.zeros_like(q), torch.full((q.shape[1], q.shape[0]), -torch.inf, device=q.device)
    rounded = q.dtype in (torch.float16, torch.bfloat16)
    wide = torch.zeros(q.shape if rounded else 0, device=q.device)
    for i, j in sequences(cu_q, cu_k):
        own, own_lse, own_wide, _ = forward(q[None, i], k[None, j], v[None, j], None, None, *numbers)
        out[i], lse[:, i] = own[0], own_lse[0]
        if rounded:
            wide[i] = own_wide[0]
    return out, lse, wide, torch.empty(0, device=q.device)


def backward_varlen(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, g_lse: Tensor, *numbers: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of packed q, k and v."""
    made = tuple(torch.zeros_like(t) for t in (q, k, v))
    for i, j in sequences(cu_q, cu_k):
        rows = None if g_lse is None else g_lse[None, :, i]
        parts = backward(g[None, i], q[None, i], k[None, j], v[None, j], None, None, rows, *numbers)
        for t, part, at in zip(made, parts, (i, j, j), strict=True):
            t[at] = part[0]
    return made
