"""What attention's kernels mean where sequences are packed, keys shared among blocks, or tiles listed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphene.kernels._attention_means_tiles import (
    _name,
    _scores,
    forward_meaning,
    gradient_meaning,
    product_meaning,
    saving_meaning,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels._attention import Attention


def _sequences(starts_q: Any, starts_k: Any) -> list[tuple[slice, slice]]:
    q, k = starts_q.astype(int), starts_k.astype(int)
    return [(slice(q[i], max(q[i + 1], q[i])), slice(k[i], max(k[i + 1], k[i]))) for i in range(len(q) - 1)]


def packed_forward_meaning(a: Attention, lse: bool) -> Callable[..., Any]:
    """O and, with `lse`, LSE, of Q, K, V, both starts, the numbers; zeros and -inf for rows of no sequence."""
    of_one = forward_meaning(replace(a, varlen=False), True)

    def meaning(q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *numbers: Any) -> Any:
        import numpy as np

        out, logs = np.zeros_like(q), np.full((q.shape[1], q.shape[0]), -np.inf)
        for at, keys in _sequences(starts_q, starts_k):
            own, own_lse = of_one(q[None, at], k[None, keys], v[None, keys], *numbers)
            out[at], logs[:, at] = own[0], own_lse[0]
        return (out, logs) if lse else out

    meaning.__name__ = _name("attention_packed_lse" if lse else "attention_packed", a)
    return meaning


def packed_gradient_meaning(a: Attention, of_keys: bool) -> Callable[..., Any]:
    """DK and dV, or dQ, of dO, delta, LSE, Q, K, V, both starts, the numbers; zeros for rows of no sequence."""
    of_one = gradient_meaning(replace(a, varlen=False), of_keys)

    def meaning(
        g: Any, delta: Any, lse: Any, q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *numbers: Any
    ) -> Any:
        import numpy as np

        made = [np.zeros_like(t) for t in ((k, v) if of_keys else (q,))]
        for at, keys in _sequences(starts_q, starts_k):
            rows = (g[None, at], delta[None, :, at], lse[None, :, at], q[None, at], k[None, keys], v[None, keys])
            own = of_one(*rows, *numbers)
            for t, part in zip(made, own if of_keys else (own,), strict=True):
                t[keys if of_keys else at] = part[0]
        return tuple(made) if of_keys else made[0]

    meaning.__name__ = _name("attention_packed_keys_gradient" if of_keys else "attention_packed_queries_gradient", a)
    return meaning


def _shares(count: int, heads: int, first: Any, saved: Any) -> list[tuple[int, int, Any]]:
    """Of each of so many sequences: the first head and the number of those in the work space, and their part of it."""
    out = []
    for i in range(count):
        lo, hi = max(int(first), i * heads), min(int(first) + saved.shape[0], (i + 1) * heads)
        out.append((lo - i * heads, max(hi - lo, 0), slice(lo - int(first), max(hi, lo) - int(first))))
    return out


def _outside(rows: int, parts: list[slice]) -> Any:
    """Rows before the first part and behind the last."""
    import numpy as np

    place = np.arange(rows)
    return (place < parts[0].start) | (place >= parts[-1].stop)


def packed_saving_meaning(a: Attention, own: int, other: int) -> Callable[..., Any]:
    """As ``saving_meaning``, of both starts behind V: a work space's heads are those of all sequences, one by one."""
    of_one = saving_meaning(replace(a, varlen=False), own, other)

    def meaning(g: Any, delta: Any, lse: Any, q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *rest: Any) -> Any:
        *numbers, first, dk, dv, saved = rest
        dk, dv, saved = dk.copy(), dv.copy(), saved.copy()
        sequences = _sequences(starts_q, starts_k)
        shares = _shares(len(sequences), k.shape[1], first, saved)
        for (at, keys), (head, count, part) in zip(sequences, shares, strict=True):
            if count:
                rows = (g[None, at], delta[None, :, at], lse[None, :, at], q[None, at], k[None, keys], v[None, keys])
                own_dk, own_dv, saved[part] = of_one(*rows, *numbers, head, dk[None, keys], dv[None, keys], saved[part])
                dk[keys], dv[keys] = own_dk[0], own_dv[0]
        head, count, _ = shares[-1]
        for t in (dk, dv):
            t[_outside(len(t), [keys for _, keys in sequences]), head : head + count] = 0
        return dk, dv, saved

    meaning.__name__ = _name(f"attention_packed_keys_gradient_saving_{own}_{other}", a)
    return meaning


def packed_product_meaning(a: Attention, BN: int) -> Callable[..., Any]:
    """As ``product_meaning``, of both starts behind the work space."""
    of_one = product_meaning(replace(a, varlen=False), BN)

    def meaning(k: Any, saved: Any, starts_q: Any, starts_k: Any, *rest: Any) -> Any:
        *numbers, first, out = rest
        out = out.copy()
        sequences = _sequences(starts_q, starts_k)
        shares = _shares(len(sequences), k.shape[1], first, saved)
        for (at, keys), (head, count, part) in zip(sequences, shares, strict=True):
            if count:
                out[at] = of_one(k[None, keys], saved[part], *numbers, head, out[None, at])[0]
        head, count, _ = shares[-1]
        outside = _outside(len(out), [at for at, _ in sequences])
        out[outside, head * a.group : (head + count) * a.group] = 0
        return out

    meaning.__name__ = _name(f"attention_packed_queries_product_{BN}", a)
    return meaning


def _normalized(s: Any) -> tuple[Any, Any]:
    """Probabilities of scores in units of log2(e), and the logarithm of their sum in the same units."""
    import numpy as np

    top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    p = np.exp2(s - top)
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, 1, total), (top + np.log2(total))[..., 0]


def split_meaning(a: Attention, BM: int, BN: int) -> Callable[..., Any]:
    """The parts' O and logarithms: of the tiles of BN keys that a block of BM rows sees, each part has as many."""

    def meaning(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        import numpy as np

        *rest_, splits = rest
        count, extras = int(splits), (a.mask is not None) + (a.bias is not None)
        s, _, _ = _scores(a, q, k, rest_[:extras], rest_[extras:])
        bounds = [int(x) for x in rest_[len(rest_) - a.left - a.right :]]
        (b, h, sq, sk), shift = s.shape, k.shape[1] - q.shape[1]
        s = s.reshape(b, -1, a.group, sq, sk).transpose(0, 1, 3, 2, 4).reshape(b, -1, sq * a.group, sk)
        part_of = np.full((sq * a.group, sk), -1)  # of a row's keys
        for at in range(0, sq * a.group, BM):
            first, lo, hi = at // a.group + shift, 0, sk  # keys that are seen lie from lo to hi
            if a.left:
                lo = max(first - bounds[0], 0)
            if a.right:
                hi = min(min(first + (BM - 1) // a.group + 2, sk) + bounds[-1], sk)
            tiles = range(lo // BN, max(-(-hi // BN), lo // BN))
            for n, tile in enumerate(tiles):
                part_of[at : at + BM, tile * BN : (tile + 1) * BN] = n // -(-len(tiles) // count)
        values = np.repeat(v, a.group, axis=2).reshape(b, sk, -1, a.group, v.shape[3])[:, :, :, 0]
        parts = [_normalized(np.where(part_of == i, s, -np.inf)) for i in range(count)]
        return np.stack([np.einsum("bhrk,bkhd->bhrd", p, values) for p, _ in parts]), np.stack([x for _, x in parts])

    meaning.__name__ = _name(f"attention_parts_{BM}_{BN}", a)
    return meaning


def listed_meaning(a: Attention, BM: int, BN: int, lse: bool) -> Callable[..., Any]:
    """O and, with `lse`, LSE, of Q, K, V, mask and bias, the list, the numbers: of the keys in a block's list."""

    def meaning(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        import numpy as np

        extras = 1 + (a.bias is not None)
        s, _, _ = _scores(a, q, k, list(rest[:extras]), list(rest[extras + 1 :]))
        lists = rest[extras].astype(int)
        for b, head, row in np.ndindex(*s.shape[:3]):
            own = lists[b, head, row // BM if lists.shape[2] > 1 else 0]
            s[b, head, row, ~np.isin(np.arange(s.shape[3]) // BN, own[2 : 2 + own[1]])] = -np.inf
        p, logs = _normalized(s)
        out = np.einsum("bhqk,bkhd->bqhd", p, np.repeat(v, a.group, axis=2))
        return (out, logs * math.log(2)) if lse else out

    meaning.__name__ = _name(f"attention_listed_{BM}_{BN}{'_lse' if lse else ''}", a)
    return meaning


def tiles_meaning(a: Attention, BM: int, BN: int) -> Callable[..., Any]:
    """The lists of a mask, of the numbers and of what the lists were before."""

    def meaning(mask: Any, *rest: Any) -> Any:
        import numpy as np

        *bounds, lists = rest
        (sq, sk), made, given = mask.shape[2:], lists.copy(), [int(x) for x in bounds]
        place, key = np.arange(sq)[:, None] + sk - sq, np.arange(sk)[None]
        seen = np.ones((sq, sk), dtype=bool)
        if a.left:
            seen &= key >= place - given.pop(0)
        if a.right:
            seen &= key <= place + given.pop(0)
        allowed = (mask != 0) & seen
        for b, head, m in np.ndindex(*lists.shape[:3]):
            tiles = [allowed[b, head, m * BM : (m + 1) * BM, n : n + BN] for n in range(0, sk, BN)]
            whole = [n for n, t in enumerate(tiles) if t.all() and t.shape[1] == BN]
            some = [n for n, t in enumerate(tiles) if t.any() and n not in whole]
            made[b, head, m, : 2 + len(whole) + len(some)] = [len(whole), len(whole) + len(some), *whole, *some]
        return made

    meaning.__name__ = _name(f"attention_tiles_{BM}_{BN}", a)
    return meaning


def combine_meaning(a: Attention, lse: bool) -> Callable[..., Any]:
    """O and, with `lse`, LSE, of the parts and their logarithms."""

    def meaning(parts: Any, logs: Any) -> Any:
        import numpy as np

        _, b, kv_heads, rows, d = parts.shape
        weights, total = _normalized(np.moveaxis(logs, 0, -1))
        out = np.einsum("bhrs,sbhrd->bhrd", weights, parts)
        out = out.reshape(b, kv_heads, rows // a.group, a.group, d).transpose(0, 2, 1, 3, 4)
        total = total.reshape(b, kv_heads, rows // a.group, a.group).transpose(0, 1, 3, 2) * math.log(2)
        made = out.reshape(b, rows // a.group, kv_heads * a.group, d)
        return (made, total.reshape(b, kv_heads * a.group, rows // a.group)) if lse else made

    meaning.__name__ = _name("attention_combine_lse" if lse else "attention_combine", a)
    return meaning


def delta_meaning(a: Attention, lse: bool) -> Callable[..., Any]:
    """Delta of dO, O and, with `lse`, the gradient of the LSE."""

    def meaning(g: Any, o: Any, *less: Any) -> Any:
        delta = (g * o).sum(-1).swapaxes(-1, -2)
        return delta - less[0] if less else delta

    meaning.__name__ = _name("attention_delta_lse" if lse else "attention_delta", a)
    return meaning
