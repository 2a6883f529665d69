"""What attention's kernels mean, as functions of arrays: ``kernel.check()`` holds them to it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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


def gradient_meaning(a: Attention, of_keys: bool) -> Callable[..., Any]:
    """DK and dV, or dQ, of dO, delta, LSE, Q, K, V, mask and bias, the numbers."""

    def meaning(g: Any, delta: Any, lse: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        import numpy as np

        extras = (a.mask is not None) + (a.bias is not None)
        s, slope, scale = _scores(a, q, k, list(rest[:extras]), list(rest[extras:]))
        p = np.exp2(s - lse[..., None] * math.log2(math.e))
        dp = np.einsum("bqhd,bkhd->bhqk", g, np.repeat(v, a.group, axis=2))
        ds = p * (dp - delta[..., None]) * slope * scale
        if not of_keys:
            return np.einsum("bhqk,bkhd->bqhd", ds, np.repeat(k, a.group, axis=2))

        def together(x: Any) -> Any:
            b, n, h, d = x.shape
            return x.reshape(b, n, h // a.group, a.group, d).sum(3)

        return together(np.einsum("bhqk,bqhd->bkhd", ds, q)), together(np.einsum("bhqk,bqhd->bkhd", p, g))

    meaning.__name__ = _name("attention_keys_gradient" if of_keys else "attention_queries_gradient", a)
    return meaning


def _name(name: str, a: Attention) -> str:
    flags = {"left": a.left, "right": a.right, "mask": a.mask, "bias": a.bias, "softcap": a.softcap}
    return "_".join([name, *(n for n, given in flags.items() if given), f"group{a.group}"])
