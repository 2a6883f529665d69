"""Attention in one kernel: scores never leave the chip. This needs no GPU.

docs/attention.md says how the accumulator of the first product becomes the operand of the second. On a GPU the same
kernel is ``graphene.ops.attention(q, k, v)``, and autograd gives its gradient.
"""

from __future__ import annotations

import math

import numpy as np

from graphene.kernels import (
    Attention,
    BackwardConfig,
    ForwardConfig,
    attention_forward_kernel,
    attention_keys_gradient_kernel,
)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """The same in float64, causal: the last query sees all keys, and each query before it one key less."""
    sq, sk = q.shape[1], k.shape[1]
    k, v = (np.repeat(t.astype(np.float64), q.shape[2] // t.shape[2], axis=2) for t in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    scores = np.where(np.arange(sk) <= np.arange(sq)[:, None] + sk - sq, scores, -np.inf)
    weights = np.exp(scores - scores.max(3, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(3, keepdims=True), v)


def main() -> None:
    # Heads have 64 elements, two heads share keys and values, and no query sees a key after it.
    what = Attention(64, group=2, right=True)
    kernel = attention_forward_kernel(ForwardConfig(what, BM=32, BN=32, WARPS=2))

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, s, h, 64)).astype(np.float16) for s, h in ((70, 4), (100, 2), (100, 2)))
    o = np.zeros_like(q)
    scale = 1 / math.sqrt(64)
    kernel(q, k, v, o, scale * math.log2(math.e), 0)  # scores are in units of log2(e); a query sees 0 keys to its right
    print("largest error:", np.abs(o - reference(q, k, v, scale)).max())

    print(kernel.check(q[:1, :40], k[:1, :50], v[:1, :50], o[:1, :40], 1.0, 0))  # checks the kernel against the formula
    gradient = attention_keys_gradient_kernel(BackwardConfig(what, own=32, other=16, WARPS=2))
    print(len(gradient.syncs()), "synchronisation statements in the gradient of keys and values")


if __name__ == "__main__":
    main()
