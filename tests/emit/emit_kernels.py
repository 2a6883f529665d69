"""The kernels whose generated text is golden."""

from __future__ import annotations

from typing import Any

import graphene as gr
from graphene import _core


def sync(op: str, atom: gr.Atom | gr.AtomFamily, **attrs: Any) -> None:
    _core.record_sync(op, None, atom.name, attrs)


def fig8(M: int = 1024, N: int = 1024, K: int = 1024) -> gr.Kernel:
    """Paper Fig. 8: C += A @ B, one __hfma per thread and k; column-major operands."""
    with gr.Kernel("simple_gemm") as kernel:
        A = gr.input("A", gr.col_major(M, K), gr.fp16)
        B = gr.input("B", gr.col_major(K, N), gr.fp16)
        C = gr.inout("C", gr.col_major(M, N), gr.fp16)
        blocks, threads = gr.blocks(M // 128, N // 128), gr.threads(16, 16)
        with gr.spec(C, [A, B], on=(blocks, threads)):
            bid_m, bid_n = blocks.indices()
            tid_m, tid_n = threads.indices()
            with gr.loop("k", K) as k, gr.loop("m", 8) as m, gr.loop("n", 8) as n:
                a = A.tile([128, None])[bid_m, 0].tile([8, None])[tid_m, 0][m, k]
                b = B.tile([None, 128])[0, bid_n].tile([None, 8])[0, tid_n][k, n]
                c = C.tile([128, 128])[bid_m, bid_n].tile([8, 8])[tid_m, tid_n][m, n]
                gr.matmul(c, a, b, on=(blocks.scalar(), threads.scalar()))
    return kernel


def fig1d() -> gr.Kernel:
    """Paper Fig. 1d between a copy into shared memory and a copy of the registers to the output."""
    with gr.Kernel("ldmatrix_tile") as kernel:
        src = gr.input("src", [16, 16], gr.fp16, align_bytes=16)
        out = gr.output("out", [32, 2, 4], gr.fp16, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        (lane,) = warp.indices()
        smem = gr.alloc("smem", [16, 16], gr.fp16, gr.SH)
        regs = gr.alloc("regs", [2, 4], gr.fp16, gr.RF)
        stage = gr.alloc("stage", [1, 8], gr.fp16, gr.RF)
        gr.move(stage, src.tile([1, 8])[lane // 2, lane % 2])
        gr.move(smem.tile([1, 8])[lane // 2, lane % 2], stage)
        gr.barrier()
        with gr.move(regs, smem, on=warp):
            (thr_grp_m, thr_grp_n), grp_local_idx = warp.tile([8]).reshape(0, gr.row_major(2, 2)).indices()
            row = smem.tile([8, 8])[thr_grp_m, thr_grp_n].tile([1, 8])[grp_local_idx, 0]
            gr.move(regs.tile([1, 2]), row, on=warp)
        for i in range(2):
            gr.move(out[lane, i, :], regs[i, :])
    return kernel


def guarded_scale() -> gr.Kernel:
    """y = 2 * x over rows of any length: partial tiles, 64-bit offsets, a scalar parameter's default absent."""
    N = gr.sym("N")
    with gr.Kernel("guarded_scale") as kernel:
        x = gr.input("x", [N], gr.fp32)
        y = gr.output("y", [N], gr.fp32)
        blocks, threads = gr.blocks(gr.ceil_div(N, 256)), gr.threads(256)
        (b,) = blocks.indices()
        (t,) = threads.indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x.tile([256])[b][t])
        gr.binary("mul", r, r, 2.0)
        gr.move(y.tile([256])[b][t], r)
    return kernel


def tensor_core_tile(BM: int = 64, BN: int = 64, BK: int = 32) -> gr.Kernel:
    """C = A @ B.T by one block: swizzled shared memory, ldmatrix, mma, fragments, symbolic sizes."""
    M, N, K = gr.sym("M", multiple_of=BM), gr.sym("N", multiple_of=BN), gr.sym("K", multiple_of=BK)
    ldsm, mma = gr.atom("ldmatrix.x4"), gr.atom("mma.m16n8k16.f32.f16")
    copy = (gr.atom("ld.global.v4.b32"), gr.atom("st.shared.v4.b32"))
    with gr.Kernel("tensor_core_tile") as kernel:
        A = gr.input("A", gr.row_major(M, K), gr.fp16, align_bytes=16)
        B = gr.input("B", gr.row_major(N, K), gr.fp16, align_bytes=16)
        C = gr.output("C", gr.row_major(M, N), gr.fp32, align_bytes=16)
        gr.blocks(1)
        threads = gr.threads(128)
        warps = threads.tile(32).reshape(0, gr.Layout((2, 2)))
        (wm, wn), _ = warps.indices()
        warp = warps[wm, wn]
        sA = gr.alloc("sA", [BM, BK], gr.fp16, gr.SH, swizzle=gr.swizzle(BK, gr.fp16))
        sB = gr.alloc("sB", [BN, BK], gr.fp16, gr.SH, swizzle=gr.swizzle(BK, gr.fp16))
        ra = gr.fragment("ra", [BM // 2, 16], gr.fp16, mma.a, on=warp)
        rb = gr.fragment("rb", [BN // 2, 16], gr.fp16, mma.b, on=warp)
        acc = gr.fragment("acc", [BM, BN], gr.fp32, mma.c, on=warps)
        with gr.loop("m", M // BM) as m, gr.loop("n", N // BN) as n:
            gA, gB = A.tile([BM, None])[m, 0], B.tile([BN, None])[n, 0]
            gr.init(acc, 0)
            with gr.matmul(acc, gA, gB.T):
                with gr.loop("k", K // BK) as k:
                    gr.move(sA, gA.tile([None, BK])[0, k], on=threads, atom=copy)
                    gr.move(sB, gB.tile([None, BK])[0, k], on=threads, atom=copy)
                    gr.barrier()
                    with gr.matmul(acc, sA, sB.T):
                        for j in range(BK // 16):
                            gr.move(ra, sA.tile([BM // 2, 16])[wm, j], atom=ldsm)
                            gr.move(rb, sB.tile([BN // 2, 16])[wn, j], atom=ldsm)
                            gr.matmul(acc[wm, wn], ra, rb.T, atom=mma)
                    gr.barrier()
            gr.move(C.tile([BM, BN])[m, n], acc, atom=gr.atom("st.global.v2.b32"))
    return kernel


def warp_roles() -> gr.Kernel:
    """Two warps of four sum their lanes; branches uniform for a warp, a barrier of a part of the block."""
    with gr.Kernel("warp_roles") as kernel:
        x = gr.input("x", [4, 32], gr.fp32)
        y = gr.output("y", [4], gr.fp32)
        gr.blocks(1)
        threads = gr.threads(128)
        warps = threads.tile(32)
        w, lane = warps.indices()
        v = gr.alloc("v", [], gr.fp32, gr.RF)
        o = gr.alloc("o", [], gr.fp32, gr.RF)
        part = gr.alloc("part", [4], gr.fp32, gr.SH)
        gr.move(v, x[w, lane])
        for step in (16, 8, 4, 2, 1):
            gr.shfl(o, v, "bfly", step, on=warps[w])
            gr.binary("add", v, v, o)
        with gr.only(warps[w][0]):
            gr.move(part[w], v)
        gr.barrier()
        with gr.only(warps[0]):
            gr.barrier(on=warps[0])
            with gr.if_(lane < 4):
                gr.move(v, part[lane])
                gr.move(y[lane], v)
    return kernel


def async_copy(**facts: int) -> gr.Kernel:
    """Rows of any length, in pieces of 16 bytes that the end of a row may cut, through two stages of shared memory."""
    M, K = gr.sym("M", **facts), gr.sym("K", max=1 << 20, **facts)
    pitch = gr.sym("pitch", multiple_of=8, max=1 << 20)
    cp = gr.atom("cp.async.cg.16")
    with gr.Kernel("async_copy") as kernel:
        A = gr.input("A", gr.Layout((M, K), (pitch, 1)), gr.fp16, align_bytes=16)
        C = gr.output("C", gr.row_major(M, gr.ceil_div(K, 64)), gr.fp16)
        blocks, threads = gr.blocks(gr.ceil_div(M, 16)), gr.threads(128)
        (bm,), (t,) = blocks.indices(), threads.indices()
        s = gr.alloc("s", [16, 64], gr.fp16, gr.SH, stages=2)
        v = gr.alloc("v", [], gr.fp16, gr.RF)
        with gr.loop("k", gr.ceil_div(K, 64)) as k:
            gr.move(s[k % 2], A.tile([16, 64])[bm, k], on=threads, atom=cp)
            sync("commit", cp)
            sync("wait", cp, pending=0)
            gr.barrier()
            with gr.if_(t < 16):
                gr.move(v, s[k % 2][t, 0])
                gr.move(C.tile([16, None])[bm, 0][t, k], v)
    return kernel


def ragged_fragment() -> gr.Kernel:
    """ldmatrix of rows past the end of a tensor: those lanes read a row of the fill, all 32 together."""
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel("ragged_fragment") as kernel:
        x = gr.input("x", [20, 16], gr.fp16, align_bytes=16)
        y = gr.output("y", [32, 16], gr.fp16, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        s = gr.alloc("s", [20, 16], gr.fp16, gr.SH)
        r = gr.fragment("r", [32, 16], gr.fp16, mma.a, on=warp)
        gr.move(s, x, on=warp, atom=("ld.global.v4.b32", "st.shared.v4.b32"))
        gr.barrier()
        gr.move(r, s.tile([32, 16])[0, 0], atom="ldmatrix.x4")
        gr.move(y, r, atom="st.global.b32")
    return kernel


ALL = {f.__name__: f for f in (fig8, fig1d, guarded_scale, tensor_core_tile, warp_roles, async_copy, ragged_fragment)}
ARCHS = {
    "fig8": "sm_75",
    "fig1d": "sm_75",
    "guarded_scale": "sm_75",
    "tensor_core_tile": "sm_80",
    "warp_roles": "sm_75",
    "async_copy": "sm_80",
    "ragged_fragment": "sm_75",
}
