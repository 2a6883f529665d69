"""Eight kernels that people write every day, each in a few lines. This needs no GPU.

benchmarks/everyday_triton.py has the same eight in Triton; tests/test_everyday_lines.py counts the lines of both, and
``python -m benchmarks everyday`` runs them beside each other.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import graphene as gr


def rotated(x: Any, cos: Any, sin: Any, **_: Any) -> dict[str, Any]:
    a, b = x[..., : cos.shape[1]], x[..., cos.shape[1] :]
    cos, sin = cos[:, None], sin[:, None]
    return {"y": np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)}


def rotary(half: int = 64) -> gr.Kernel:
    """Rotary position embedding of heads with ``2 * half`` elements; x: (S, H, 2 * half), cos and sin: (S, half)."""
    S, H = gr.sym("S H")
    with gr.Kernel("rotary", means=rotated) as kernel:
        x, y = gr.input("x", [S, H, 2 * half], gr.fp16), gr.output("y", [S, H, 2 * half], gr.fp16)
        cos, sin = gr.input("cos", [S, half], gr.fp32), gr.input("sin", [S, half], gr.fp32)
        (s, h), (t,) = gr.blocks(S, H).indices(), gr.threads(half).indices()
        a, b = gr.load(x[s, h, t], gr.fp32), gr.load(x[s, h, t + half], gr.fp32)
        c, d = gr.load(cos[s, t]), gr.load(sin[s, t])
        y[s, h, t] = a * c - b * d
        y[s, h, t + half] = b * c + a * d
    return kernel


def counted(x: Any, counts: Any) -> dict[str, Any]:
    return {"counts": counts + np.bincount(np.asarray(x, np.int64), minlength=len(counts))}


def histogram(bins: int = 256, threads: int = 256, per: int = 4) -> gr.Kernel:
    """Counts[i] += how many x are i; blocks count in shared memory first. x: (n,), from 0 to bins - 1."""
    n = gr.sym("n")
    with gr.Kernel("histogram", means=counted) as kernel:
        x, counts = gr.input("x", [n], gr.i32), gr.inout("counts", [bins], gr.i32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, threads * per)).indices(), gr.threads(threads).indices()
        own = gr.alloc("own", [bins], gr.i32, gr.SH)
        for i in range(0, bins, threads):
            own[i + t] = 0
        gr.barrier()
        for i in range(per):
            r = gr.load(x.tile([threads])[b * per + i][t], fill=-1)
            with gr.if_(r >= 0):
                gr.atomic("add", own[gr.index(r, min=0, max=bins - 1)], 1, scope="cta")
        gr.barrier()
        for i in range(0, bins, threads):
            gr.atomic("add", counts[i + t], gr.load(own[i + t]))
    return kernel


def row_scan(threads: int = 256) -> gr.Kernel:
    """Y[m, n] = the sum of x[m, :n + 1]; x: (M, N), N a multiple of 4. Blocks have several warps."""
    M, N = gr.sym("M"), gr.sym("N", multiple_of=4)
    with gr.Kernel("row_scan", means=lambda x, y: {"y": np.cumsum(x, axis=1)}) as kernel:
        x, y = (call(name, [M, N], gr.fp32, align_bytes=16) for call, name in ((gr.input, "x"), (gr.output, "y")))
        (m,), block = gr.blocks(M).indices(), gr.threads(threads)
        (t,) = block.indices()
        last, before = gr.alloc("last", [1], gr.fp32, gr.SH), gr.let("before", 0.0, gr.fp32)
        for k in gr.loop("k", gr.ceil_div(N, 4 * threads)):
            r = gr.load(x[m, :].tile([4])[k * threads + t])
            for i in range(1, 4):
                r[i] += r[i - 1]
            own = gr.let("own", r[3])
            gr.scan("add", own, on=block, exclusive=True)
            r += before + own
            y[m, :].tile([4])[k * threads + t] = r
            with gr.if_(t == threads - 1):
                last[0] = r[3]
            gr.barrier()
            before[...] = last[0]
    return kernel


# Kinds of data without infinities and NaN.
FINITE = ("normal", "positive", "rising", "falling", "constant", "whole", "tiny", "large", "spike", "uneven")


def dequantized(x: Any, w: Any, scales: Any, **_: Any) -> dict[str, Any]:
    nibbles = np.asarray(w, np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    q = (nibbles.astype(np.float64) - 8).reshape(len(w), scales.shape[1], -1) * scales[..., None]
    return {"y": x @ q.reshape(len(w), -1).T}


def int4_product(rows: int = 1, group: int = 128, warps: int = 4) -> gr.Kernel:
    """Y = x @ ((w - 8) * scales).T for few rows; w: eight numbers a word, (N, K / 8); finite scales, (N, K / group)."""
    N, K = gr.sym("N"), gr.sym("K", multiple_of=group, min=group)
    with gr.Kernel("int4_product", means=dequantized, arguments=gr.Arguments(kinds=FINITE)) as kernel:
        x, y = gr.input("x", [rows, K], gr.fp16, align_bytes=16), gr.output("y", [rows, N], gr.fp16)
        w, scales = gr.input("w", [N, K // 8], gr.u32, align_bytes=16), gr.input("scales", [N, K // group], gr.fp16)
        (b,), warp = gr.blocks(gr.ceil_div(N, warps)).indices(), gr.threads(32 * warps).tile(32)
        i, lane = warp.indices()
        n, sums = b * warps + i, gr.let("sums", 0.0, gr.fp32, [rows])
        with gr.if_(n < N), gr.loop("k", gr.ceil_div(K // 32, 32), unroll=4) as k:
            words, at = gr.load(w[n, :].tile([4])[k * 32 + lane]), k * 32 + lane
            with gr.if_(at < K // 32):
                scale = gr.load(scales[n, at * 32 // group], gr.fp32)
                pairs = [gr.bitcast(words[j // 4] >> 4 * (j % 4) & 0x000F000F | 0x64006400, gr.fp16) for j in range(16)]
                for m in range(rows):
                    total = gr.let(f"total{m}", 0.0, gr.fp32)
                    for j in range(4):
                        xs = gr.load(x[m, :].tile([8])[at * 4 + j])
                        for h in range(8):
                            total[...] = gr.fma(pairs[4 * j + h % 4][h // 4] - 1032, xs[h], total)
                    sums[m] += total * scale
        gr.allreduce("add", sums, on=warp[i])
        with gr.if_(lane == 0), gr.if_(n < N):
            for m in range(rows):
                y[m, n] = sums[m]
    return kernel


def convolved(x: Any, w: Any, **_: Any) -> dict[str, Any]:
    h, v = x.shape[1:]
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    parts = [wide[:, i : i + h, j : j + v] * w[:, i, j][:, None, None] for i in range(3) for j in range(3)]
    return {"y": sum(parts[1:], parts[0])}


def convolution(threads: int = 128, per: int = 8) -> gr.Kernel:
    """A 3 x 3 convolution of each channel by itself, with zeros around it; x: (C, H, W), w: (C, 3, 3)."""
    C, (H, W) = gr.sym("C"), gr.sym("H W", min=1, max=2**30)
    ends = gr.Arguments(values={"H": tuple(range(per + 1, 2 * per + 1))})  # what a check takes: each end of a block
    with gr.Kernel("convolution", means=convolved, arguments=ends) as kernel:
        x, y = gr.input("x", [C, H, W], gr.fp32), gr.output("y", [C, H, W], gr.fp32)
        w = gr.input("w", [C, 3, 3], gr.fp32)
        b, g, c = gr.blocks(gr.ceil_div(W, threads), gr.ceil_div(H, per), C).indices()
        (t,) = gr.threads(threads).indices()
        v, totals = b * threads + t, gr.let("totals", 0.0, gr.fp32, [per])
        factors = [[gr.load(w[c, i, j]) for j in range(3)] for i in range(3)]
        for i in range(per + 2):
            for j in range(3):
                row, column = g * per + (i - 1), v + (j - 1)
                r = gr.load(x[c, gr.min(gr.max(row, 0), H - 1), gr.min(gr.max(column, 0), W - 1)])
                for inside in (row >= 0, row < H, column >= 0, column < W):
                    r = gr.where(inside, r, 0)
                for k in range(max(0, i - 2), min(per, i + 1)):  # the sums in which it counts
                    totals[k][...] = gr.fma(r, factors[i - k][j], totals[k])
        for k in range(per):
            y[c, :, :].tile([per, threads])[g, b][k, t] = totals[k]
    return kernel


def entropy(x: Any, target: Any, **_: Any) -> dict[str, Any]:
    top = x.max(axis=1)
    own = np.take_along_axis(x, np.asarray(target, np.int64)[:, None], 1)[:, 0]
    return {"loss": np.log(np.exp(x - top[:, None]).sum(axis=1)) + top - own}


def targets(args: Any, rng: Any) -> None:
    args["target"][:] = rng.integers(0, args["x"].shape[1], len(args["target"]))


def cross_entropy(threads: int = 512) -> gr.Kernel:
    """Loss[m] = log(sum(exp(x[m]))) - x[m, target[m]], in one pass over x: (M, N), N a multiple of 4."""
    M, N = gr.sym("M"), gr.sym("N", multiple_of=4)
    with gr.Kernel("cross_entropy", means=entropy, arguments=targets) as kernel:
        x, target = gr.input("x", [M, N], gr.fp32, align_bytes=16), gr.input("target", [M], gr.i32)
        loss = gr.output("loss", [M], gr.fp32)
        (m,), block = gr.blocks(M).indices(), gr.threads(threads)
        (t,) = block.indices()
        top, total = gr.let("top", -1e30, gr.fp32), gr.let("total", 0.0, gr.fp32)
        for k in gr.loop("k", gr.ceil_div(N, 4 * threads), unroll=4):
            r = gr.load(x[m, :].tile([4])[k * threads + t], fill=-gr.inf)
            higher = gr.let("higher", gr.max(top, r[0], r[1], r[2], r[3]))
            total *= gr.exp(top - higher)
            for i in range(4):
                total += gr.exp(r[i] - higher)
            top[...] = higher
        most = gr.let("most", top)
        gr.allreduce("max", most, on=block)
        total *= gr.exp(top - most)
        gr.allreduce("add", total, on=block)
        with gr.if_(t == 0):
            own = gr.load(x[m, gr.index(target[m], min=0, max=2**31 - 1)])
            loss[m] = gr.log(total) + most - own
    return kernel


def top_of(x: Any, values: Any, **_: Any) -> dict[str, Any]:
    largest = np.argsort(-x, axis=1, kind="stable")[:, : values.shape[1]]  # of equal ones the first
    return {"values": np.take_along_axis(x, largest, 1), "columns": largest}


def top_k(k: int = 8, threads: int = 128, per: int = 8) -> gr.Kernel:
    """The k largest of each row, in order, and their columns; x: finite, (M, N), N from k to threads * per."""
    M, N = gr.sym("M"), gr.sym("N", min=k, max=threads * per)
    with gr.Kernel("top_k", means=top_of, arguments=gr.Arguments(kinds=FINITE)) as kernel:
        x = gr.input("x", [M, N], gr.fp32)
        values, columns = gr.output("values", [M, k], gr.fp32), gr.output("columns", [M, k], gr.i32)
        (m,), block = gr.blocks(M).indices(), gr.threads(threads)
        (t,) = block.indices()
        own = [gr.load(x[m, :].tile([threads])[i][t], fill=-gr.inf) for i in range(per)]
        for j in gr.loop("j", k):
            best, at = gr.let("best", own[0]), gr.let("at", t, gr.i32)
            for i in range(1, per):
                at[...] = gr.where(own[i] > best, t + i * threads, at)
                best[...] = gr.where(own[i] > best, own[i], best)
            gr.allarg("max", best, at, on=block)
            for i in range(per):
                own[i][...] = gr.where(at == t + i * threads, -gr.inf, own[i])
            with gr.if_(t == 0):
                values[m, j] = best
                columns[m, j] = at
    return kernel


def transpose(side: int = 128, per: int = 4) -> gr.Kernel:
    """Y[b] = x[b].T, through shared memory without bank conflicts; x: (B, M, N), M and N multiples of `per`."""
    B, (M, N) = gr.sym("B"), gr.sym("M N", multiple_of=per, max=2**31 - 8)
    with gr.Kernel("transpose", means=lambda x, y: {"y": np.swapaxes(x, 1, 2)}) as kernel:
        x = gr.input("x", [B, M, N], gr.fp16, align_bytes=2 * per)
        y = gr.output("y", [B, N, M], gr.fp16, align_bytes=2 * per)
        m, n, b = gr.blocks(gr.ceil_div(M, side), gr.ceil_div(N, side), B).indices()
        units, line = side // per, side + per  # line j of each unit comes behind all lines before j
        column, row = gr.threads(units, 8).indices()
        s = gr.alloc("s", gr.Layout(((per, units), side), ((units * line, line), 1)), gr.fp16, gr.SH)
        tile, turned = x[b, :, :].tile([side, side])[m, n], y[b, :, :].tile([side, side])[n, m]
        lines = [(row + k) * per for k in range(0, units, 8)]
        own = [[gr.load(tile[at + i, :].tile([per])[column]) for i in range(per)] for at in lines]
        for k, (square, j) in enumerate(itertools.product(own, range(per))):  # of per x per numbers
            r = gr.alloc(f"r{k}", [per], gr.fp16, gr.RF)
            for i in range(per):
                r[i] = square[i][j]
            gr.move(s[column * per + j, :].tile([per])[row + k // per * 8], r)
        gr.barrier()
        for at, j in itertools.product(lines, range(per)):
            gr.move(turned[at + j, :].tile([per])[column], gr.load(s[at + j, :].tile([per])[column]))
    return kernel


def calls() -> dict[str, tuple[gr.Kernel, list[np.ndarray]]]:
    """Each kernel by name, with small arguments; the results stand last, or are `loss`, `values` and `columns`."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
        return rng.integers(low, high, shape, dtype)

    half, single = np.float16, np.float32
    angles = normal(5, 32)
    return {
        "rotary": (rotary(32), [normal(5, 3, 64, dtype=half), np.zeros((5, 3, 64), half), np.cos(angles),
                   np.sin(angles)]),
        "histogram": (histogram(32, 32, 1), [integers(0, 32, 100), np.zeros(32, np.int32)]),
        "row_scan": (row_scan(64), [normal(3, 340), np.zeros((3, 340), single)]),
        "int4_product": (int4_product(2, 32, 2), [normal(2, 1600, dtype=half), np.zeros((2, 5), half),
                         integers(0, 2**32, 5, 200, dtype=np.uint32), normal(5, 50, dtype=half)]),
        "convolution": (convolution(32), [normal(2, 5, 40), np.zeros((2, 5, 40), single), normal(2, 3, 3)]),
        "cross_entropy": (cross_entropy(64), [normal(3, 600), integers(0, 600, 3), np.zeros(3, single)]),
        "top_k": (top_k(4, 32, 3), [normal(3, 90), np.zeros((3, 4), single), np.zeros((3, 4), np.int32)]),
        "transpose": (transpose(), [normal(2, 72, 92, dtype=half), np.zeros((2, 92, 72), half)]),
    }  # fmt: skip


def main() -> None:
    for name, (kernel, arguments) in calls().items():
        kernel(*arguments)  # values: on the simulator; the same call with CUDA tensors runs on the GPU
        print(f"{name}: {kernel.check(*arguments)}")


if __name__ == "__main__":
    main()
