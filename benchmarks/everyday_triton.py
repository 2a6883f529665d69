"""The kernels of examples/14_everyday.py in Triton, to compare lines and times; written in the manner of its tutorials.

Each function takes and returns what the example's kernel does. It needs Triton and a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


# lines: rotary
@triton.jit
def _rotary(x, y, cos, sin, H, half, BLOCK: tl.constexpr):
    s, h = tl.program_id(0), tl.program_id(1)
    t = tl.arange(0, BLOCK)
    inside = t < half
    base = (s * H + h) * 2 * half + t
    a = tl.load(x + base, inside).to(tl.float32)
    b = tl.load(x + base + half, inside).to(tl.float32)
    c, d = tl.load(cos + s * half + t, inside), tl.load(sin + s * half + t, inside)
    tl.store(y + base, (a * c - b * d).to(tl.float16), inside)
    tl.store(y + base + half, (b * c + a * d).to(tl.float16), inside)


def rotary(x, cos, sin):
    S, H, D = x.shape
    y = torch.empty_like(x)
    _rotary[(S, H)](x, y, cos, sin, H, D // 2, BLOCK=triton.next_power_of_2(D // 2))
    return y


# lines: histogram
@triton.jit
def _histogram(x, counts, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(x + i, i < n, other=0)
    own = tl.histogram(r, BINS)
    bins = tl.arange(0, BINS)
    outside = tl.sum((i >= n).to(tl.int32))
    own = tl.where(bins == 0, own - outside, own)
    tl.atomic_add(counts + bins, own)


def histogram(x, bins=256):
    counts = torch.zeros(bins, dtype=torch.int32, device=x.device)
    n = x.numel()
    BLOCK = 1024
    _histogram[(triton.cdiv(n, BLOCK),)](x, counts, n, BINS=bins, BLOCK=BLOCK)
    return counts


# lines: row_scan
@triton.jit
def _row_scan(x, y, N, BLOCK: tl.constexpr):
    m = tl.program_id(0)
    before = 0.0
    for k in range(0, N, BLOCK):
        n = k + tl.arange(0, BLOCK)
        r = tl.load(x + m * N + n, n < N, other=0.0)
        tl.store(y + m * N + n, tl.cumsum(r, 0) + before, n < N)
        before += tl.sum(r)


def row_scan(x):
    M, N = x.shape
    y = torch.empty_like(x)
    BLOCK = 1024
    _row_scan[(M,)](x, y, N, BLOCK=BLOCK)
    return y


# lines: int4_product
@triton.jit
def _int4_product(x, y, w, scales, N, K, G: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, BN), tl.float32)
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)
        inside = (n < N)[:, None] & (at < K)[None]
        word = tl.load(w + n[:, None] * (K // 8) + (at // 8)[None], inside, other=0)
        q = ((word >> ((at % 8) * 4)[None]) & 15).to(tl.float32) - 8
        scale = tl.load(scales + n[:, None] * (K // G) + (at // G)[None], inside, other=0).to(tl.float32)
        q = q * scale
        for m in tl.static_range(ROWS):
            xs = tl.load(x + m * K + at, at < K, other=0).to(tl.float32)
            part = tl.sum(q * xs[None], 1)
            sums += tl.where((rows == m)[:, None], part[None], 0.0)
    place = y + rows[:, None] * N + n[None]
    tl.store(place, sums.to(tl.float16), (n < N)[None])


def int4_product(x, w, scales):
    M, K = x.shape
    N = w.shape[0]
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    BN, BK = 4, 512
    grid = (triton.cdiv(N, BN),)
    _int4_product[grid](x, y, w, scales, N, K, G=K // scales.shape[1], ROWS=M, BN=BN, BK=BK)
    return y


# lines: convolution
@triton.jit
def _convolution(x, w, y, H, W, BLOCK: tl.constexpr):
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h, c = tl.program_id(1), tl.program_id(2)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            row, column = h + i - 1, v + j - 1
            inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
            r = tl.load(x + (c * H + row) * W + column, inside, other=0.0)
            total += r * tl.load(w + c * 9 + i * 3 + j)
    tl.store(y + (c * H + h) * W + v, total, v < W)


def convolution(x, w):
    C, H, W = x.shape
    y = torch.empty_like(x)
    BLOCK = 128
    _convolution[(triton.cdiv(W, BLOCK), H, C)](x, w, y, H, W, BLOCK=BLOCK)
    return y


# lines: cross_entropy
@triton.jit
def _cross_entropy(x, target, loss, N, BLOCK: tl.constexpr):
    m = tl.program_id(0)
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, BLOCK):
        n = k + tl.arange(0, BLOCK)
        r = tl.load(x + m * N + n, n < N, other=-float("inf"))
        higher = tl.maximum(top, r)
        total = total * tl.exp(top - higher) + tl.exp(r - higher)
        top = higher
    most = tl.max(top, 0)
    everything = tl.sum(total * tl.exp(top - most), 0)
    own = tl.load(x + m * N + tl.load(target + m))
    tl.store(loss + m, tl.log(everything) + most - own)


def cross_entropy(x, target):
    M, N = x.shape
    loss = torch.empty(M, dtype=torch.float32, device=x.device)
    BLOCK = 2048
    _cross_entropy[(M,)](x, target, loss, N, BLOCK=BLOCK)
    return loss


# lines: top_k
@triton.jit
def _top_k(x, values, columns, N, k, BLOCK: tl.constexpr):
    m = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    own = tl.load(x + m * N + n, n < N, other=-float("inf"))
    for j in range(k):
        best, at = tl.max(own, 0, return_indices=True)
        tl.store(values + m * k + j, best)
        tl.store(columns + m * k + j, at)
        own = tl.where(n == at, -float("inf"), own)


def top_k(x, k=8):
    M, N = x.shape
    values = torch.empty((M, k), dtype=x.dtype, device=x.device)
    columns = torch.empty((M, k), dtype=torch.int32, device=x.device)
    BLOCK = triton.next_power_of_2(N)
    _top_k[(M,)](x, values, columns, N, k, BLOCK=BLOCK)
    return values, columns


# lines: transpose
@triton.jit
def _transpose(x, y, M, N, SIDE: tl.constexpr):
    m = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    n = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    base = tl.program_id(2) * M * N
    inside = (m < M)[:, None] & (n < N)[None]
    r = tl.load(x + base + m[:, None] * N + n[None], inside)
    other = (n < N)[:, None] & (m < M)[None]
    tl.store(y + base + n[:, None] * M + m[None], tl.trans(r), other)


def transpose(x):
    B, M, N = x.shape
    y = torch.empty((B, N, M), dtype=x.dtype, device=x.device)
    SIDE = 32
    _transpose[(triton.cdiv(M, SIDE), triton.cdiv(N, SIDE), B)](x, y, M, N, SIDE=SIDE)
    return y
