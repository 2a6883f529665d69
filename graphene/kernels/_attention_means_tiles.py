"""What attention's kernels mean, as functions of arrays: ``kernel.check()`` holds them to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphene.kernels._attention_saved import PANEL, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels._attention import Attention


def _scores(a: Attention, q: Any, k: Any, extras: list[Any], numbers: list[Any]) -> tuple[Any, Any, Any]:
    """Scores in units of log2(e), -inf for what is not seen; the slope of the cap; the numbers that are left."""
    import numpy as np

    rest = [float(np.asarray(x).reshape(-1)[0]) for x in numbers]
    s = np.einsum("bqhd,bkhd->bhqk", q, np.repeat(k, a.group, axis=2)) * rest.pop(0)
    slope: Any = 1.0
    if a.softcap:
        cap = rest.pop(0)
        slope = 1 - np.tanh(s / cap) ** 2
        s = cap * np.tanh(s / cap)
    if a.score_means is not None:
        query, key = np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], np.arange(k.shape[1])[None]
        s = a.score_means(s / math.log2(math.e), query, key) * math.log2(math.e)
    given = list(extras)
    mask = given.pop(0) if a.mask is not None else None
    if a.bias is not None:
        s = s + given.pop(0) * math.log2(math.e)
    sq, sk = s.shape[2:]
    place, key = np.arange(sq)[:, None] + sk - sq, np.arange(sk)[None]
    unscaled = rest.pop(0) if len(rest) > a.left + a.right else 1.0
    seen = np.ones((sq, sk), dtype=bool)
    if a.left:
        seen &= key >= place - rest.pop(0)
    if a.right:
        seen &= key <= place + rest.pop(0)
    s = np.where(seen if mask is None else seen & (mask != 0), s, -np.inf)
    return s, slope, unscaled


def forward_meaning(a: Attention, lse: bool) -> Callable[..., Any]:
    """O and, with `lse`, LSE, of Q, K, V, mask and bias, the numbers."""

    def meaning(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        import numpy as np

        extras = (a.mask is not None) + (a.bias is not None)
        s, _, _ = _scores(a, q, k, list(rest[:extras]), list(rest[extras:]))
        top = np.max(s, axis=3, keepdims=True, initial=-np.inf)
        p = np.exp2(s - np.where(np.isinf(top), 0, top))
        total = p.sum(3, keepdims=True)
        p = p / np.where(total == 0, 1, total)
        out = np.einsum("bhqk,bkhd->bqhd", p, np.repeat(v, a.group, axis=2))
        return (out, (np.where(np.isinf(top), 0, top) + np.log2(total))[..., 0] * math.log(2)) if lse else out

    meaning.__name__ = _name("attention_lse" if lse else "attention", a)
    return meaning


def _ordered(panels: Any) -> Any:
    """Saved gradients of scores (heads, group, panels, keys, queries of a panel) as (heads, group, queries, keys)."""
    heads, group, count, keys, _ = panels.shape
    parts = panels.reshape(heads, group, count, keys, 4, 4, 2)  # queries of a panel: c, y, x
    return parts.transpose(0, 1, 2, 5, 4, 6, 3).reshape(heads, group, count * PANEL, keys)


def _panels(ds: Any) -> Any:
    """The other way."""
    heads, group, queries, keys = ds.shape
    parts = ds.reshape(heads, group, queries // PANEL, 4, 4, 2, keys)
    return parts.transpose(0, 1, 2, 6, 4, 3, 5).reshape(heads, group, queries // PANEL, keys, PANEL)


def product_meaning(a: Attention, BN: int) -> Callable[..., Any]:
    """DQ of K, the saved gradients, the numbers and dQ: of tiles of BN keys that some of ``ROWS`` queries see."""

    def meaning(k: Any, saved: Any, *rest: Any) -> Any:
        import numpy as np

        *numbers, out = rest
        scale, *bounds, first = (float(np.asarray(x).reshape(-1)[0]) for x in numbers)
        (b, sq, heads, d), (sk, kv_heads) = out.shape, k.shape[1:3]
        tile, top = np.arange(sk) // BN * BN, np.arange(sq)[:, None] // ROWS * ROWS + sk - sq
        seen = np.ones((sq, sk), dtype=bool)
        if a.left:
            seen &= tile + BN > top - bounds.pop(0)
        if a.right:
            seen &= tile < np.minimum(top + ROWS, sk) + bounds.pop(0)
        made = out.transpose(0, 2, 1, 3).reshape(b * kv_heads, a.group, sq, d).copy()
        mine = slice(int(first), int(first) + saved.shape[0])
        keys = k.transpose(0, 2, 1, 3).reshape(b * kv_heads, 1, sk, d)[mine]
        made[mine] = scale * np.where(seen, _ordered(saved)[: len(keys), :, :sq, :sk], 0) @ keys
        return made.reshape(b, heads, sq, d).transpose(0, 2, 1, 3)

    meaning.__name__ = _name(f"attention_queries_product_{BN}", a)
    return meaning


def gradient_meaning(a: Attention, of_keys: bool) -> Callable[..., Any]:
    """DK and dV, or dQ, of dO, delta, LSE, Q, K, V, mask and bias, the numbers."""

    def meaning(*args: Any) -> Any:
        dq, dk, dv, _ = _gradients(a, *args)
        return (dk, dv) if of_keys else dq

    meaning.__name__ = _name("attention_keys_gradient" if of_keys else "attention_queries_gradient", a)
    return meaning


def saving_meaning(a: Attention, own: int, other: int) -> Callable[..., Any]:
    """DK, dV and the scores' gradients of a part of the heads, of the arguments and of what the results were before."""

    def meaning(*args: Any) -> Any:
        import numpy as np

        *given, first, dk, dv, saved = args
        _, dk_all, dv_all, ds = _gradients(a, *given)
        (b, sk, kv_heads, d), sq = dk.shape, ds.shape[2]
        mine = slice(int(first), int(first) + saved.shape[0])
        out = []
        for before, made in ((dk, dk_all), (dv, dv_all)):
            of_heads = before.transpose(0, 2, 1, 3).reshape(b * kv_heads, sk, d).copy()
            of_heads[mine] = made.transpose(0, 2, 1, 3).reshape(b * kv_heads, sk, d)[mine]
            out.append(of_heads.reshape(b, kv_heads, sk, d).transpose(0, 2, 1, 3))
        bounds = [float(np.asarray(x).reshape(-1)[0]) for x in given[len(given) - a.left - a.right :]]
        kept = _ordered(saved).copy()
        wide = np.zeros((b * kv_heads, a.group, *kept.shape[2:]))
        wide[:, :, :sq, :sk] = ds.reshape(b * kv_heads, a.group, sq, sk)
        for key in range(0, sk, own):  # whole groups of queries, of which some see some of the block's keys
            shift, lo, hi = key - (sk - sq), 0, -(-sq // other) * other
            if a.right:
                lo = max(int((shift - bounds[-1]) // ROWS), 0) * ROWS
            if a.left:
                hi = min(hi, (int((shift + own - 1 + bounds[0]) // ROWS) + 1) * ROWS)
            part = wide[mine, :, lo : max(lo, hi), key : key + own]
            kept[: len(part), :, lo : max(lo, hi), key : key + own] = part
        return (*out, _panels(kept))

    meaning.__name__ = _name(f"attention_keys_gradient_saving_{own}_{other}", a)
    return meaning


def _gradients(a: Attention, g: Any, delta: Any, lse: Any, q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, ...]:
    """DQ, dK, dV and the gradients of scores."""
    import numpy as np

    extras = (a.mask is not None) + (a.bias is not None)
    s, slope, scale = _scores(a, q, k, list(rest[:extras]), list(rest[extras:]))
    p = np.exp2(s - lse[..., None] * math.log2(math.e))
    dp = np.einsum("bqhd,bkhd->bhqk", g, np.repeat(v, a.group, axis=2))
    ds = p * (dp - delta[..., None]) * slope

    def together(x: Any) -> Any:
        b, n, h, d = x.shape
        return x.reshape(b, n, h // a.group, a.group, d).sum(3)

    dq = np.einsum("bhqk,bkhd->bqhd", ds, np.repeat(k, a.group, axis=2)) * scale
    dk, dv = np.einsum("bhqk,bqhd->bkhd", ds, q) * scale, np.einsum("bhqk,bqhd->bkhd", p, g)
    return dq, together(dk), together(dv), ds


def _name(name: str, a: Attention) -> str:
    flags = {"left": a.left, "right": a.right, "mask": a.mask, "bias": a.bias, "softcap": a.softcap}
    score = [] if a.score_means is None else [a.score_means.__name__]
    return "_".join([name, *score, *(n for n, given in flags.items() if given), f"group{a.group}"])
