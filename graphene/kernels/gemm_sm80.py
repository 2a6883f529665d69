"""GEMM for sm_80 and up: multi-stage cp.async, swizzled shared memory, ldmatrix, mma, fused epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels._arguments import function, size

if TYPE_CHECKING:
    from collections.abc import Callable


def gemm_sm80(
    BM: int = 128,
    BN: int = 128,
    BK: int = 32,
    STAGES: int = 4,
    epilogue: Callable[[Any, Any], Any] = lambda x, b: gr.max(x + b, 0),
) -> gr.Kernel:
    """C = epilogue(A @ B.T, bias): A (M,K), B (N,K), bias (N,), C (M,N) fp16 row-major, fp32 accumulation.

    Any M; N and K multiples of 8. Tiles: BM % 32 == 0, BN % 32 == 0, BK % 32 == 0, STAGES >= 2. `epilogue` is a
    pointwise function of the accumulators and the bias of their columns. Raises VerifyError KERNEL_ARGUMENT.
    """
    for name, tile in (("BM", BM), ("BN", BN), ("BK", BK)):
        size("gemm_sm80", name, tile, multiple_of=32)
    size("gemm_sm80", "STAGES", STAGES, least=2)
    function("gemm_sm80", "epilogue", epilogue)
    M, N, K = gr.sym("M"), gr.sym("N", multiple_of=8), gr.sym("K", multiple_of=8)
    cp, ldsm, mma = gr.atom("cp.async.cg.16"), gr.atom("ldmatrix.x4"), gr.atom("mma.m16n8k16.f32.f16")
    WM, WN, KB = BM // 2, BN // 4, BK // 16
    with gr.Kernel("gemm_sm80") as kernel:
        A = gr.input("A", gr.row_major(M, K), gr.fp16, align_bytes=16)
        B = gr.input("B", gr.row_major(N, K), gr.fp16, align_bytes=16)
        bias = gr.input("bias", gr.Layout(N), gr.fp16, align_bytes=4)
        C = gr.output("C", gr.row_major(M, N), gr.fp16, align_bytes=16)
        blocks, threads = gr.blocks(gr.ceil_div(M, BM), gr.ceil_div(N, BN)), gr.threads(256)
        warps = threads.tile(32).reshape(0, gr.Layout((2, 4)))  # [2,4].[32].thread
        (bm, bn), ((wm, wn), _) = blocks.indices(), warps.indices()
        warp = warps[wm, wn]  # indexed by its own coordinates: my warp, no branch

        gA, gB = A.tile([BM, None])[bm, 0], B.tile([BN, None])[bn, 0]  # [BM,K], [BN,K]
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]  # [k].[BM,BK], [k].[BN,BK]
        sA = gr.alloc("sA", [BM, BK], gr.fp16, gr.SH, stages=STAGES, swizzle=gr.swizzle(BK, gr.fp16))
        sB = gr.alloc("sB", [BN, BK], gr.fp16, gr.SH, stages=STAGES, swizzle=gr.swizzle(BK, gr.fp16))
        ra = gr.fragment("ra", [WM, 16], gr.fp16, mma.a, on=warp, stages=2)
        rb = gr.fragment("rb", [WN, 16], gr.fp16, mma.b, on=warp, stages=2)
        acc = gr.fragment("acc", [BM, BN], gr.fp32, mma.c, on=warps)  # [2,4].[4,4].[16,8]: warps . registers . atom
        rd, wr = gr.ring("rd", STAGES), gr.ring("wr", STAGES)

        def load(k: Any) -> None:  # past the last tile: an empty tile, zero-filled
            gr.move(sA[wr.index], kA[k], on=threads, atom=cp)
            gr.move(sB[wr.index], kB[k], on=threads, atom=cp)
            gr.commit(cp)
            wr.advance()

        def fragments(j: int) -> None:  # slice j of the stage being read, to registers
            gr.move(ra[j % 2], sA[rd.index].tile([WM, 16])[wm, j], atom=ldsm)
            gr.move(rb[j % 2], sB[rd.index].tile([WN, 16])[wn, j], atom=ldsm)

        def next_stage() -> None:
            gr.wait(cp, pending=STAGES - 2)
            gr.barrier()

        gr.init(acc, 0)
        with gr.matmul(acc, gA, gB.T):  # the promise: acc += gA @ gB.T
            for k in range(STAGES - 1):
                load(k)
            next_stage()
            fragments(0)
            for k in gr.loop("k", gr.ceil_div(K, BK)):
                load(k + STAGES - 1)  # into the stage that was read at k-1
                for j in range(KB):  # a Python loop: unrolled
                    if j == KB - 1:
                        rd.advance()
                        next_stage()
                    fragments((j + 1) % KB)
                    gr.matmul(acc[wm, wn], ra[j % 2], rb[j % 2].T, atom=mma)
            gr.wait(cp, pending=0)
            gr.barrier()

        rbias = acc.reduced(0, "rbias", gr.fp16)  # [1,BN]: the columns this thread owns
        gr.move(rbias, bias.tile([BN])[bn].reshape(0, [1, BN]), atom=gr.atom("ld.global.b32"))
        rC = gr.fragment("rC", [BM, BN], gr.fp16, mma.c, on=warps)
        rC[:] = epilogue(acc, rbias)
        sC = gr.alloc("sC", [BM, BN], gr.fp16, gr.SH, swizzle=gr.swizzle(BN, gr.fp16), over=[sA, sB])
        gr.move(sC, rC, atom=gr.atom("st.shared.b32"))
        gr.barrier()
        gr.move(
            C.tile([BM, BN])[bm, bn], sC, on=threads, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32"))
        )
    return kernel
