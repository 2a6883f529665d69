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


@triton.jit
def _grouped(a, b, offsets, c, T, N, K, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile, n = tl.program_id(1), tl.program_id(0) * BN + tl.arange(0, BN)
    g = tl.arange(0, E)
    ends = tl.load(offsets + g)
    begins = tl.load(offsets + g - 1, g > 0, other=0)
    tiles = tl.cdiv(ends - begins, BM)
    before = tl.cumsum(tiles, 0) - tiles
    mine = (before <= tile) & (tile < before + tiles)
    if tl.sum(mine.to(tl.int32), 0) == 0:
        return
    e = tl.sum(tl.where(mine, g, 0), 0)
    m = tl.sum(tl.where(mine, begins + (tile - before) * BM, 0), 0) + tl.arange(0, BM)
    end = tl.sum(tl.where(mine, ends, 0), 0)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + at[None], (m < end)[:, None], other=0)
        w = tl.load(b + e.to(tl.int64) * K * N + at[:, None] * N + n[None], (n < N)[None], other=0)
        total = tl.dot(x, w, total)
    tl.store(
        c + m.to(tl.int64)[:, None] * N + n[None], total.to(c.dtype.element_ty), (m < end)[:, None] & (n < N)[None]
    )


def grouped(a, b, offsets):
    """Rows of a (T,K), sorted by group, times b (E,K,N); offsets (E,): where groups end. E is a power of two."""
    (T, K), (E, _, N) = a.shape, b.shape
    c = torch.empty((T, N), dtype=a.dtype, device=a.device)
    BM, BN, BK = 128, 128, 64
    grid = (triton.cdiv(N, BN), T // BM + E)
    _grouped[grid](a, b, offsets, c, T, N, K, E=E, BM=BM, BN=BN, BK=BK, num_warps=8, num_stages=3)
    return c
