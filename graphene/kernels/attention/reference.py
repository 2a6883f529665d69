"""The meanings of attention's kernels, from their arguments by name: NumPy from the definition.

Scores are in units of log2(e), because of ``scale_log2``. A function works on one sequence (seq, heads, D) after the
other, whether they are a batch or packed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import graphene as gr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphene.kernels.attention.problem import Attention


LOG2E = 1 / math.log(2)  # its own, not that of the kernels


def visible(sq: int, sk: int, left: int | None = None, right: int | None = None) -> Any:
    """Which keys a query sees by its place, (sq, sk)."""
    import numpy as np

    query, key = np.arange(sq)[:, None] + sk - sq, np.arange(sk)[None]
    seen = np.ones((sq, sk), bool)
    if left is not None:
        seen &= key >= query - left
    if right is not None:
        seen &= key <= query + right
    return seen


def places(t: Any, starts_q: Any = None, starts_k: Any = None) -> list[tuple[Any, Any, Any]]:
    """For each sequence, where its queries, its keys, and its numbers of each head and query lie."""
    if starts_q is None:
        return [((b, slice(None)), (b, slice(None)), (b,)) for b in range(len(t))]
    parts = [[slice(*pair) for pair in pairwise(s)] for s in (starts_q, starts_k)]
    return [((q,), (k,), (slice(None), q)) for q, k in zip(*parts, strict=True)]


def outside(parts: list[slice], rows: int) -> Any:
    """The rows that belong to no packed sequence."""
    import numpy as np

    return np.delete(np.arange(rows), np.arange(parts[0].start, parts[-1].stop))


def in_pages(t: Any, i: int, given: dict[str, Any]) -> Any:
    """Keys or values of sequence i, in the order of its pages; a page that does not exist holds zeros."""
    import numpy as np

    length = int(min(given["lengths"][i], given["table"].shape[1] * t.shape[1]))
    named = given["table"][i, : -(-length // t.shape[1])]
    there = (named >= 0) & (named < len(t))
    held = np.where(there[:, None, None, None], t[np.where(there, named, 0)], 0) if len(t) else t
    return held.reshape(-1, *t.shape[2:])[:length]


def of_heads(t: Any, heads: int) -> Any:
    """Keys or values (sk, kv_heads, D) as the heads of the queries read them."""
    import numpy as np

    return t[:, np.arange(heads) * t.shape[1] // max(heads, 1)]


def scores(a: Attention, q: Any, k: Any, i: int, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The scores (heads, sq, sk) of sequence i, -inf for keys that are not seen; which are seen; the cap's slope."""
    import numpy as np

    return changed(a, np.einsum("qhd,khd->hqk", q, of_heads(k, q.shape[1])) * given["scale_log2"], i, given)


def changed(a: Attention, s: Any, i: int, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The same from scaled products of queries and keys."""
    import numpy as np

    (sq, sk), slope = s.shape[1:], 1.0
    if a.softcap:
        error = {"relative": 2.0**-19} if a.wide else {"absolute": 2.0**-21}
        t = gr.approximately(np.tanh, **error)(s / given["cap_log2"])
        s, slope = t * given["cap_log2"], 1 - t * t
    if a.score is not None:
        s = a.score(s / LOG2E, np.arange(sq)[:, None] + sk - sq, np.arange(sk)[None]) * LOG2E
    if a.bias is not None:
        s = s + given["B"][i] * LOG2E
    seen = visible(sq, sk, given.get("left"), given.get("right"))
    seen = seen if a.mask is None else seen & (given["M"][i] != 0)
    return np.where(seen, s, -np.inf), seen, slope


def normalized(x: Any, axis: int) -> tuple[Any, Any, Any]:
    """Exponentials of scores relative to the largest, their sum, and log2 of the sum without that shift."""
    import numpy as np

    top = np.max(getattr(x, "values", x), axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    p = np.exp2(x - top)
    total = p.sum(axis, keepdims=True)
    return p, np.where(total == 0, 1, total), (np.log2(total) + top).squeeze(axis)


def forward(a: Attention, lse: bool, training: bool = False, **given: Any) -> dict[str, Any]:
    """O and, with `lse`, LSE; zeros and -inf for a query that sees no key, whose LSE is the sink if there are sinks.

    `training`: also O before its rounding and, with a bias, what the LSE's rounding cut off, which is 0 here.
    """
    import numpy as np

    Q, K, V = (given[n] for n in "QKV")
    O, LSE = np.zeros_like(Q), np.full_like(Q[..., 0].swapaxes(-1, -2), -np.inf)
    rest = np.zeros_like(LSE)
    for i, (q, k, rows) in enumerate(places(Q, given.get("starts_q"), given.get("starts_k"))):
        keys, values = (t[k] if "table" not in given else in_pages(t, i, given) for t in (K, V))
        x = scores(a, Q[q], keys, i, given)[0]
        if a.sinks:  # a column more
            x = np.concatenate([x, np.broadcast_to(given["sinks"][:, None, None] * LOG2E, (*x.shape[:2], 1))], 2)
        p, total, log2_sum = normalized(x, 2)
        LSE[rows] = log2_sum * math.log(2)
        none = np.isinf(log2_sum)
        rest[rows] = np.where(none, 0, log2_sum) - np.where(none, 0, LSE[rows]) * LOG2E
        v = of_heads(values, Q.shape[-2])
        # The kernel's are relative to the maximum of the keys so far.
        exact, p = p, gr.rounded("P", p[..., : keys.shape[0]], by=None)
        o = np.einsum("hqk,khd->hqd", p, v) / total
        if training and len(v):
            unrounded = np.einsum("hqk,khd->hqd", exact[..., : keys.shape[0]], v) / total
            o = beside_largest(o, unrounded, exact, p, v, total)
        O[q] = o.swapaxes(0, 1)
    made = {"O": O, "LSE": LSE, "wide": O, "rest": rest}
    names = ["O"] + ["LSE"] * lse + ["wide"] * training + ["rest"] * (training and a.bias is not None)
    return {n: made[n] for n in names}


def beside_largest(o: Any, unrounded: Any, exact: Any, p: Any, v: Any, total: Any) -> Any:
    """The same result `o`, sum(p v) / total, of a sum that has the largest probability as it was rounded, too.

    What rounding changes in the largest cancels in the quotient where it is next to 1: its value v0 counts by what the
    others leave of 1. So the result is v0 + (sum of the others' p v - v0 times the sum of the others) / total.
    `exact`: before rounding, with a column behind the keys for a sink, which has no value. `unrounded`: its result,
    whose error is that of sums and of the quotient.
    """
    import numpy as np

    keys, heads = v.shape[:2]
    largest = np.asarray(getattr(exact, "values", exact))[..., :keys].argmax(2)
    other = np.arange(exact.shape[2]) != largest[..., None]
    top = np.where(other, 0, exact).sum(2, keepdims=True)
    v0 = v.swapaxes(0, 1)[np.arange(heads)[:, None], largest]
    others = np.where(other, exact, 0).sum(2, keepdims=True)
    with_rounded = total - top + gr.rounded("P", top, by=None)
    v0 = v0 + (unrounded - getattr(unrounded, "values", unrounded))
    made = v0 + (np.einsum("hqk,khd->hqd", np.where(other[..., :keys], p, 0), v) - others * v0) / with_rounded
    there = np.any(np.asarray(getattr(exact, "values", exact))[..., :keys], axis=2, keepdims=True)
    return np.where(there & np.isfinite(np.asarray(getattr(made, "values", made))), made, o)


def together(group: int, O: Any, top: Any, LSE: Any) -> dict[str, Any]:
    """O and LSE of parts (splits, batch, kv_heads, sq * group, D), of what their exponentials are relative to, and of
    the logarithms of their sums, in units of log2(e).
    """
    import numpy as np

    base = np.max(getattr(top, "values", top), axis=0, initial=-np.inf)
    base = np.where(np.isinf(base), 0, base)
    p, total, lse = normalized(top - base + LSE, 0)
    lse = lse + base
    out = np.einsum("sbhr,sbhrd->bhrd", p, O) / total[0][..., None]
    b, heads, rows, d = out.shape
    shape = b, heads, rows // group, group
    out = out.reshape(*shape, d).transpose(0, 2, 1, 3, 4).reshape(b, rows // group, heads * group, d)
    return {"O": out, "LSE": by_heads(lse * math.log(2), group)}


def by_heads(x: Any, group: int) -> Any:
    """(batch, heads, sq) from a number for each row (batch, kv_heads, sq * group)."""
    b, heads, rows = x.shape
    return x.reshape(b, heads, rows // group, group).transpose(0, 1, 3, 2).reshape(b, heads * group, rows // group)


BEYOND = "logarithm of a part's sum beyond 64"


def parts(a: Attention, **given: Any) -> dict[str, Any]:
    """What ``parts_read`` reads of the parts of ``forward``."""
    import numpy as np

    made = forward(a, True, **given)
    return made | {BEYOND: np.zeros_like(made["LSE"])}


def parts_read(group: int, O: Any, top: Any, LSE: Any) -> dict[str, Any]:
    """What parts are together, and how far the logarithms of their sums are beyond those of as many exponentials as
    there may be keys. The kernel that puts parts together takes exp2 of them as they are, relative to `top` alone.
    """
    import numpy as np

    beyond = np.where(np.isinf(LSE), 0, np.maximum(np.abs(LSE) - 64, 0)).max(0)
    return together(group, O, top, LSE) | {BEYOND: by_heads(beyond, group)}


def combined(group: int, lse: bool, P: Any, top: Any, L: Any) -> Any:
    """The same as ``together``, from the arguments of the kernel that puts parts together."""
    made = together(group, P, top, L)
    return made if lse else made["O"]


def delta(G: Any, wide: Any, gL: Any = 0) -> Any:
    """The number that the gradient needs for each row, from O before its rounding."""
    return (G * wide).sum(-1).swapaxes(-1, -2) - gL


def gradients(a: Attention, passed: str | None = None, narrow: str = "P", **given: Any) -> Iterator[tuple[Any, ...]]:
    """For each sequence its places, and the gradients of queries, keys, values, scores.

    `passed`: the tensor that passes probabilities, 2^12 times larger, to the warps that compute scores' gradients.
    `narrow`: the tensor of scores' gradients in 16 bits.
    """
    import numpy as np

    G, Q, K, V = (given[n] for n in "GQKV")

    def together(x: Any) -> Any:
        keys, heads, d = x.shape
        return x.reshape(keys, heads // a.group, a.group, d).sum(2)

    for i, (q, k, rows) in enumerate(places(Q, given.get("starts_q"), given.get("starts_k"))):
        s, seen, slope = scores(a, Q[q], K[k], i, given)
        lse, less = (given[n][rows][..., None] for n in ("LSE", "delta"))
        rest = given["rest"][rows][..., None] if "rest" in given else 0
        p = np.where(seen & (lse != -np.inf), np.exp2(s - lse * LOG2E - rest), 0)
        dp = np.einsum("qhd,khd->hqk", G[q], of_heads(V[k], Q.shape[-2]))
        known = p if passed is None else gr.rounded(passed, p, by=2.0**12)
        ds = gr.rounded(narrow, known * (dp - less) * slope)
        p = gr.rounded("P", p, by=1.0 if passed is None else 2.0**12)
        dq = np.einsum("hqk,khd->qhd", ds, of_heads(K[k], Q.shape[-2])) * given["scale"]
        dk = together(np.einsum("hqk,qhd->khd", ds, Q[q])) * given["scale"]
        yield (q, k), dq, dk, together(np.einsum("hqk,qhd->khd", p, G[q])), ds


def queries_gradient(a: Attention, **given: Any) -> dict[str, Any]:
    """The gradient dQ, zeros outside of packed sequences."""
    import numpy as np

    dQ = np.zeros_like(given["Q"])
    for (q, _), dq, *_ in gradients(a, **given):
        dQ[q] = dq
    return {"dQ": dQ}


def keys_gradient(a: Attention, passed: str | None, **given: Any) -> dict[str, Any]:
    """The gradients dK and dV, zeros outside of packed sequences."""
    import numpy as np

    dK, dV = np.zeros_like(given["K"]), np.zeros_like(given["V"])
    for (_, k), _, dk, dv, _ in gradients(a, passed, **given):
        dK[k], dV[k] = dk, dv
    return {"dK": dK, "dV": dV}


def tiles(a: Attention, BM: int, BN: int, bits: bool, M: Any, T: Any, left: Any = None, right: Any = None) -> Any:
    """For each BM queries the tiles of BN keys that all of them see whole, then those that some see in part; the first
    tile, where they see none. `bits`: behind the tiles, numbers whose 16 bits say which keys are seen.
    """
    import numpy as np

    made, (sq, sk) = T.copy(), M.shape[2:]
    allowed = (M != 0) & visible(sq, sk, left, right)
    for b, head, m in np.ndindex(*T.shape[:3]):
        parts = [allowed[b, head, m * BM : (m + 1) * BM, n : n + BN] for n in range(0, sk, BN)]
        whole = [n for n, t in enumerate(parts) if t.all() and t.shape[1] == BN]
        some = [n for n, t in enumerate(parts) if t.any() and n not in whole]
        named = [*whole, *some] or [0]
        made[b, head, m, : 2 + len(named)] = [len(whole), len(whole) + len(some), *named]
        if bits:
            keys = np.zeros(len(parts) * BN, np.int64)
            keys[:sk] = allowed[b, head, m * BM]
            made[b, head, m, len(parts) + 2 :] = keys.reshape(-1, 16) @ (1 << np.arange(16))
    return made
