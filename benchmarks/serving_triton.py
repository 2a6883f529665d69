"""What serving_bench.py measures, in Triton, written in the manner of its tutorials. It needs a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _int4_linear(x, w, scales, y, M, N, K, G: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    k, part = tl.arange(0, BK), tl.program_id(1)
    each = tl.cdiv(K // BK, tl.num_programs(1)) * BK
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(part * each, min(part * each + each, K), BK):
        at = first + k
        word = tl.load(w + (at // 8)[:, None] * N + n[None], (n < N)[None], other=0)
        q = ((word >> ((at % 8) * 4)[:, None]) & 15) - 8
        scale = tl.load(scales + (first // G) * N + n, n < N, other=0)
        xs = tl.load(x + m[:, None] * K + at[None], (m < M)[:, None], other=0)
        total += tl.dot(xs, (q.to(tl.float16) * scale[None]))
    tl.atomic_add(y + m[:, None] * N + n[None], total, (m < M)[:, None] & (n < N)[None])


def int4_linear(x, w, scales):
    """X (M,K) times weights (N,K) of 4 bits, less 8; w (K / 8, N) as GPTQ stores it, scales (K / group, N)."""
    (M, K), N = x.shape, w.shape[1]
    y = torch.zeros((M, N), dtype=torch.float32, device=x.device)
    BN, BK, group = 64, 128, K // scales.shape[0]
    parts = max(1, min(K // (4 * BK), 264 * BN // N))
    _int4_linear[(triton.cdiv(N, BN), parts)](
        x, w, scales, y, M, N, K, G=group, BM=max(16, triton.next_power_of_2(M)), BN=BN, BK=min(BK, group), num_stages=4
    )
    return y.to(x.dtype)
