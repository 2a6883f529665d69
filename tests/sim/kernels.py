"""Kernels that the simulator's tests share."""

from __future__ import annotations

import graphene as gr


def fig8(m: int, n: int, k: int) -> gr.Kernel:
    """Paper Fig. 8: C += A @ B, one fused multiply-add per thread and step."""
    with gr.Kernel("simple_gemm") as kernel:
        a = gr.input("A", gr.col_major(m, k), gr.fp16)
        b = gr.input("B", gr.col_major(k, n), gr.fp16)
        c = gr.inout("C", gr.col_major(m, n), gr.fp16)
        blocks, threads = gr.blocks(m // 128, n // 128), gr.threads(16, 16)
        with gr.spec(c, [a, b], on=(blocks, threads)):
            bm, bn = blocks.indices()
            tm, tn = threads.indices()
            with gr.loop("k", k) as kk, gr.loop("m", 8) as i, gr.loop("n", 8) as j:
                x = a.tile([128, None])[bm, 0].tile([8, None])[tm, 0][i, kk]
                y = b.tile([None, 128])[0, bn].tile([None, 8])[0, tn][kk, j]
                z = c.tile([128, 128])[bm, bn].tile([8, 8])[tm, tn][i, j]
                gr.matmul(z, x, y, on=(blocks.scalar(), threads.scalar()))
    return kernel


def vector_copy(dtype: gr.DType, width: int, threads: int = 64, through_shared: bool = False) -> gr.Kernel:
    """Copies a whole number of tiles, `width` elements a thread at once."""
    with gr.Kernel("vector_copy") as kernel:
        n = gr.sym("N", multiple_of=threads * width)
        src = gr.input("S", [n], dtype, align_bytes=16)
        dst = gr.output("D", [n], dtype, align_bytes=16)
        blocks, group = gr.blocks(n // (threads * width)), gr.threads(threads)
        (b,), (t,) = blocks.indices(), group.indices()
        r = gr.alloc("r", [width], dtype, gr.RF)
        gr.move(r, src.tile([threads * width])[b].tile([width])[t])
        if through_shared:  # through the neighbour's place
            s = gr.alloc("s", [threads * width], dtype, gr.SH)
            gr.move(s.tile([width])[t], r)
            gr.move(r, s.tile([width])[t])
        gr.move(dst.tile([threads * width])[b].tile([width])[t], r)
    return kernel


def transpose(swizzled: bool = False, barrier: bool = True) -> gr.Kernel:
    """B = A.T by 32x32 tiles through shared memory."""
    with gr.Kernel("transpose") as kernel:
        m, n = (gr.sym(s, multiple_of=32, min=32) for s in "MN")
        a = gr.input("A", [m, n], gr.fp32)
        b = gr.output("B", [n, m], gr.fp32)
        blocks, threads = gr.blocks(m // 32, n // 32), gr.threads(32, 8)
        (bm, bn), (x, y) = blocks.indices(), threads.indices()
        s = gr.alloc("s", [32, 32], gr.fp32, gr.SH, swizzle=gr.Swizzle(5, 0, 5) if swizzled else None)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        for i in range(4):
            gr.move(r, a.tile([32, 32])[bm, bn][y + 8 * i, x])
            gr.move(s[y + 8 * i, x], r)
        if barrier:
            gr.barrier()
        for i in range(4):
            gr.move(r, s[x, y + 8 * i])
            gr.move(b.tile([32, 32])[bn, bm][y + 8 * i, x], r)
    return kernel


def mma_tile(accumulator: gr.DType = gr.fp32, dtype: gr.DType = gr.fp16) -> gr.Kernel:
    """One warp: D = A @ B.T of a 16x16 and an 8x16 tile, through ldmatrix and mma.m16n8k16."""
    names = {gr.fp16: "f16", gr.bf16: "bf16", gr.fp32: "f32"}
    mma = gr.atom(f"mma.m16n8k16.{names[accumulator]}.{names[dtype]}")
    with gr.Kernel("mma_tile") as kernel:
        a = gr.input("A", [16, 16], dtype, align_bytes=16)
        b = gr.input("B", [8, 16], dtype, align_bytes=16)
        d = gr.output("D", [16, 8], accumulator)
        gr.blocks(1)
        warp = gr.threads(32)
        (lane,) = warp.indices()
        sa = gr.alloc("sA", [16, 16], dtype, gr.SH)
        sb = gr.alloc("sB", [8, 16], dtype, gr.SH)
        v = gr.alloc("v", [8], dtype, gr.RF)
        gr.move(v, a.tile([1, 8])[lane % 16, lane // 16].reshape(0, [8]))
        gr.move(sa.tile([1, 8])[lane % 16, lane // 16].reshape(0, [8]), v)
        with gr.if_(lane < 16):
            gr.move(v, b.tile([1, 8])[lane % 8, lane // 8].reshape(0, [8]))
            gr.move(sb.tile([1, 8])[lane % 8, lane // 8].reshape(0, [8]), v)
        gr.barrier()
        ra = gr.fragment("ra", [16, 16], dtype, mma.a, on=warp)
        rb = gr.fragment("rb", [8, 16], dtype, mma.b, on=warp)
        acc = gr.fragment("acc", [16, 8], accumulator, mma.c, on=warp)
        for i in range(4):
            gr.init(acc.values[i], 0)
        group, pair = lane // 4, lane % 4
        for i in range(4):
            for j in range(2):
                gr.move(ra.values[2 * i + j], sa[group + 8 * (i % 2), 2 * pair + j + 8 * (i // 2)])
        for i in range(2):
            for j in range(2):
                gr.move(rb.values[2 * i + j], sb[group, 2 * pair + j + 8 * i])
        gr.matmul(acc, ra, rb.T, on=warp)
        for i in range(2):
            for j in range(2):
                gr.move(d[group + 8 * i, 2 * pair + j], acc.values[2 * i + j])
    return kernel
