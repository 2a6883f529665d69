"""FlashAttention-2 forward for sm_80 and up: online softmax in registers, P re-laid out from C to A layout for free."""

from __future__ import annotations

import functools
from typing import Any

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ, size
from graphene.kernels.attention.problem import Attention
from graphene.kernels.attention.reference import forward
from graphene.kernels.attention.usual_arguments import arguments


def flash_fwd(D: int = 128, BM: int = 128, BN: int = 64, WARPS: int = 8, causal: bool = True) -> gr.Kernel:
    """O = softmax(scale * Q K^T) V on (batch, seq, heads, D) fp16 tensors; grouped-query heads.

    The arguments are Q (batch, sq, heads, D), K and V (batch, sk, kv_heads, D), O like Q, scale_log2 = scale * log2(e).
    sq and sk are at most 2^24. `causal` is aligned at the bottom right; rows that see no key give zeros. D % 16 == 0,
    BM % (16 * WARPS) == 0, BN % 16 == 0. Raises VerifyError KERNEL_ARGUMENT.
    """
    size("flash_fwd", "WARPS", WARPS, most=32)
    for name, tile, step in (("D", D, 16), ("BM", BM, 16 * WARPS), ("BN", BN, 16)):
        size("flash_fwd", name, tile, multiple_of=step)
    (b_, h_, hk), (sq, sk) = gr.sym("batch heads kv_heads", max=MOST_BLOCKS_YZ), gr.sym("sq sk", max=1 << 24)
    cp, mma = gr.atom("cp.async.cg.16"), gr.atom("mma.m16n8k16.f32.f16")
    ldsm, ldsm_t = gr.atom("ldmatrix.x4"), gr.atom("ldmatrix.x4.trans")
    WM, sw = BM // WARPS, gr.swizzle(D, gr.fp16)
    what = Attention(16, right=causal)  # of any head size
    means = functools.partial(forward, what, False, False, **({"right": 0} if causal else {}))
    with gr.Kernel("flash_fwd", means, None, arguments(what)) as kernel:
        Q = gr.input("Q", gr.row_major(b_, sq, h_, D), gr.fp16, align_bytes=16)
        K = gr.input("K", gr.row_major(b_, sk, hk, D), gr.fp16, align_bytes=16)
        V = gr.input("V", gr.row_major(b_, sk, hk, D), gr.fp16, align_bytes=16)
        O = gr.output("O", gr.row_major(b_, sq, h_, D), gr.fp16, align_bytes=16)
        scale = gr.param("scale_log2", gr.fp32)  # scale * log2(e)
        blocks, threads = gr.blocks(gr.ceil_div(sq, BM), h_, b_), gr.threads(32 * WARPS)
        warps = threads.tile(32)
        (bm, h, b), (w, _) = blocks.indices(), warps.indices()
        warp = warps[w]

        gQ = Q[b, :, h, :].tile([BM, None])[bm, 0]  # [BM,D]
        gK = K[b, :, h * hk // h_, :].tile([BN, None])[:, 0]  # [n].[BN,D]
        gV = V[b, :, h * hk // h_, :].tile([BN, None])[:, 0]
        sQ = gr.alloc("sQ", [BM, D], gr.fp16, gr.SH, swizzle=sw)
        sK = gr.alloc("sK", [BN, D], gr.fp16, gr.SH, stages=2, swizzle=sw)
        sV = gr.alloc("sV", [BN, D], gr.fp16, gr.SH, stages=2, swizzle=sw)
        q = gr.fragment("q", [WM, D], gr.fp16, mma.a, on=warp)  # Q stays in registers
        rk = gr.fragment("rk", [BN, 16], gr.fp16, mma.b, on=warp)
        rv = gr.fragment("rv", [D, 16], gr.fp16, mma.b, on=warp)
        S = gr.fragment("S", [WM, BN], gr.fp32, mma.c, on=warp)
        P = gr.fragment("P", [WM, BN], gr.fp16, mma.a, on=warp)
        acc = gr.fragment("acc", [WM, D], gr.fp32, mma.c, on=warp)
        m, m_old, alpha, mb = (S.reduced(1, n) for n in ("m", "m_old", "alpha", "mb"))  # [WM,1], on the row's 4 lanes
        l = S.reduced(1, "l", lanes=True)  # [WM,4]: each lane's share of the row sum

        q0, shift = bm * BM + w * WM, sk - sq  # first row of this warp; bottom-right alignment
        n_hi = gr.ceil_div(sk, BN)  # key tiles that some row of the block sees
        n_full = sk // BN  # ... that all of its rows see whole
        if causal:
            n_hi = gr.max(gr.min(n_hi, gr.ceil_div((bm + 1) * BM + shift, BN)), 0)
            n_full = gr.max(gr.min(n_full, (bm * BM + shift + 1) // BN), 0)

        def load(dst: gr.Tensor, src: gr.Tensor, n: Any) -> None:
            with gr.if_(n < n_hi):
                gr.move(dst[n % 2], src[n], on=threads, atom=cp)
            gr.commit(cp)

        def landed() -> None:  # all but the newest copy are there, for all warps
            gr.wait(cp, pending=1)
            gr.barrier()

        def online_softmax(n: Any, masked: bool) -> None:
            if masked:  # a Python bool: two versions of the body
                row, col = S.coords()  # of this thread's elements
                last = gr.min(q0 + shift + row, sk - 1) if causal else sk - 1
                S[:] = gr.where(n * BN + col <= last, S, -gr.inf)
            m_old[:] = m
            gr.reduce("max", m, S, axis=1, accumulate=True)  # own values, then shfl.bfly over the row's 4 lanes
            mb[:] = -scale * (gr.where(m == -gr.inf, 0, m) if masked else m)  # a row that sees no key gives 0, not NaN
            alpha[:] = gr.exp2(gr.fma(m_old, scale, mb), ftz=True)
            S[:] = gr.exp2(gr.fma(S, scale, mb), ftz=True)
            l[:] = l * alpha
            gr.reduce("add", l, S, axis=1, accumulate=True)  # own values only: l keeps the lanes apart
            acc[:] = acc * alpha
            P[:] = S  # C layout to A layout: same owners, so cvt.f16x2 only

        def kv_tile(n: Any, masked: bool) -> None:
            landed()  # K[n]; and stage (n+1) % 2 is free
            gr.init(S, 0)
            with gr.matmul(S, q, sK[n % 2].T):
                for d in range(D // 16):
                    gr.move(rk, sK[n % 2].tile([None, 16])[0, d], atom=ldsm)
                    gr.matmul(S, q.tile([None, 16])[0, d], rk.T, atom=mma)
            load(sK, gK, n + 1)
            online_softmax(n, masked)
            landed()  # V[n]
            with gr.matmul(acc, P, sV[n % 2]):
                for j in range(BN // 16):
                    gr.move(rv, sV[n % 2].tile([16, None])[j, 0].T, atom=ldsm_t)
                    gr.matmul(acc, P.tile([None, 16])[0, j], rv.T, atom=mma)
            load(sV, gV, n + 1)

        for t, v in ((acc, 0), (l, 0), (m, -gr.inf)):
            gr.init(t, v)
        gr.move(sQ, gQ, on=threads, atom=cp)
        load(sK, gK, 0)
        load(sV, gV, 0)
        landed()
        gr.move(q, sQ.tile([WM, None])[w, 0], atom=ldsm)
        for n in gr.loop("n", n_full):
            kv_tile(n, masked=False)
        for n in gr.loop("n", n_hi, start=n_full):  # only the diagonal and the ragged edge pay for masks
            kv_tile(n, masked=True)

        total = S.reduced(1, "total")
        gr.reduce("add", total, l, axis=1)  # shfl.bfly, once
        rO = gr.fragment("rO", [WM, D], gr.fp16, mma.c, on=warp)
        rO[:] = acc * gr.where(total == 0, 0, gr.rcp(total))
        gr.wait(cp, pending=0)
        gr.barrier(on=warp)  # these rows of sQ are this warp's alone
        sO = gr.alloc("sO", [BM, D], gr.fp16, gr.SH, swizzle=sw, over=[sQ])
        gr.move(sO.tile([WM, None])[w, 0], rO, atom=gr.atom("st.shared.b32"))
        gr.barrier(on=warp)
        gO = O[b, :, h, :].tile([BM, None])[bm, 0].tile([WM, None])[w, 0]
        gr.move(gO, sO.tile([WM, None])[w, 0], on=warp, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))
    return kernel
