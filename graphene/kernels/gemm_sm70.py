"""GEMM for sm_70: quad-pairs, mma.m8n8k4, shared memory double-buffered through registers, fused epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels._arguments import choice, function, size
from graphene.kernels.gemm_operand import Operand, access
from graphene.kernels.gemm_result import Result, copy_lines

if TYPE_CHECKING:
    from collections.abc import Callable


def gemm_sm70(
    BM: int = 128,
    BN: int = 128,
    BK: int = 16,
    epilogue: Callable[[Any, Any], Any] = lambda x, b: gr.max(x + b, 0),
    *,
    warps: tuple[int, int] = (2, 4),
    order: str = "TN",
    align: tuple[int, int, int] = (16, 16, 16),
) -> gr.Kernel:
    """C = epilogue(A @ B.T, bias): A (M,K), B (N,K), bias (N,), C (M,N) row-major, fp16, fp32 accumulation.

    A quad-pair is eight threads, lanes 4q to 4q+3 and 4q+16 to 4q+19, which multiply 8x4 by 4x8 together. Of a warp's
    part of C each of its four quad-pairs computes a quarter. While one tile of k is multiplied, the next one is on its
    way to registers, from where it is stored to the other half of shared memory.

    BM by BN of C by `warps` (rows, columns), each quad-pair's part a multiple of 8x8, BK of k at a time; `order` and
    `align` as of gemm_sm80. Runs on later architectures too, where the instruction is emulated.
    Raises VerifyError KERNEL_ARGUMENT.
    """
    choice("gemm_sm70", "order", order, ("TN", "NN", "NT", "TT"))
    size("gemm_sm70", "BM", BM, multiple_of=16 * warps[0])
    size("gemm_sm70", "BN", BN, multiple_of=16 * warps[1])
    size("gemm_sm70", "BK", BK, multiple_of=8)
    function("gemm_sm70", "epilogue", epilogue)
    a_is = Operand("A", gr.fp16, order[0] == "T", align[0])
    b_is = Operand("B", gr.fp16, order[1] == "N", align[1])
    mma = gr.atom(f"mma.m8n8k4.{'row' if a_is.along_k else 'col'}.{'col' if b_is.along_k else 'row'}.f32")
    M = gr.sym("M", multiple_of=a_is.fact(k=False))
    N = gr.sym("N", multiple_of=max(b_is.fact(k=False), Result.vector(gr.fp16, align[2])))
    K = gr.sym("K", multiple_of=max(a_is.fact(k=True), b_is.fact(k=True)))
    QM, QN = BM // warps[0] // 2, BN // warps[1] // 2  # a quad-pair's part

    with gr.Kernel("gemm_sm70") as kernel:
        A, B = a_is.argument(M, K, [], False), b_is.argument(N, K, [], False)
        result = Result((M, N), [], [], gr.fp16, align[2], {"bias"})
        blocks, threads = gr.blocks(gr.ceil_div(M, BM), gr.ceil_div(N, BN)), gr.threads(32 * warps[0] * warps[1])
        quads = threads.tile(32).tile([gr.Layout((4, 2), (1, 16))])  # [4].[4].[(4,2)].thread
        quads = quads.reshape(0, gr.Layout(warps)).reshape(1, gr.Layout((2, 2)))
        (bm, bn), ((wm, wn), (qm, qn), _) = blocks.indices(), quads.indices()
        mine = quads[wm, wn][qm, qn]
        result.tile(0, 0, (bm, bn), [BM, BN])
        gA, gB = A.tile([BM, None])[bm, 0], B.tile([BN, None])[bn, 0]  # [BM,K], [BN,K]
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]  # [k].[BM,BK], [k].[BN,BK]
        sA, sB = (shared(o, n, BK, q) for o, n, q in ((a_is, BM, QM), (b_is, BN, QN)))
        on_the_way = a_is.held(BM, BK, threads), b_is.held(BN, BK, threads)
        ra = gr.fragment("ra", [QM, 4], gr.fp16, mma.a, on=mine)
        rb = gr.fragment("rb", [QN, 4], gr.fp16, mma.b, on=mine)
        acc = gr.fragment("acc", [BM, BN], gr.fp32, mma.c, on=quads)  # warps . quad-pairs . registers . atom
        half = gr.ring("half", 2)

        def load(k: Any) -> None:  # past the last tile: an empty tile, zeros
            for o, tile, registers in zip((a_is, b_is), (kA[k], kB[k]), on_the_way, strict=True):
                gr.move(registers, tile, atom=access("ld.global", o.align_bytes))

        def store(stage: Any) -> None:
            for s, registers in zip((sA, sB), on_the_way, strict=True):
                gr.move(s[stage], registers, atom=access("st.shared", 16))
            gr.barrier()  # the tile is everybody's, and the other half is free

        def fragment(r: Any, s: Any, warp: Any, quad: Any, j: int) -> None:  # slice j of the half being read
            rows = r.shape[0]
            gr.move(r, s.tile([2 * rows, 4])[warp, j].tile([rows, 4])[quad, 0], atom=access("ld.shared", 8))

        gr.init(acc, 0)
        with gr.matmul(acc, gA, gB.T):  # the promise: acc += gA @ gB.T
            load(0)
            store(half.index)
            for k in gr.loop("k", gr.ceil_div(K, BK)):
                load(k + 1)
                for j in range(BK // 4):  # a Python loop: unrolled
                    fragment(ra, sA[half.index], wm, qm, j)
                    fragment(rb, sB[half.index], wn, qn, j)
                    gr.matmul(acc[wm, wn][qm, qn], ra, rb.T, atom=mma)
                half.advance()
                store(half.index)

        out = gr.fragment("out", [BM, BN], gr.fp16, mma.c, on=quads)
        rbias = out.reduced(0, "rbias", gr.fp16)  # [1,BN]: the columns this thread owns
        gr.move(rbias, result.bias, atom=access("ld.global", min(align[2], 4)))
        out[:] = epilogue(acc, rbias)
        sC = gr.alloc("sC", [BM, BN], gr.fp16, gr.SH, swizzle=gr.swizzle(BN, gr.fp16), over=[sA, sB])
        gr.move(sC, out, atom=access("st.shared", 4))
        gr.barrier()
        atoms = access("ld.shared", result.align_bytes), access("st.global", result.align_bytes)
        copy_lines(result.matrices["C"], sC, threads, result.align_bytes, atoms)
    return kernel


def shared(operand: Operand, rows: int, ks: int, quad_rows: int) -> Any:
    """Two tiles [rows,ks] in shared memory. A half-warp reads 8 bytes a lane: without bank conflicts from these."""
    layout = gr.Layout((rows, ks), (ks, 1) if operand.along_k else (1, rows))
    if operand.along_k:  # 4 rows of each of 2 quad-pairs: 4 lines of 32 bytes, the other ones 16 bytes further
        swizzle = gr.Swizzle(1, 3, (quad_rows * ks).bit_length() - 4)
    else:  # 4 k
        swizzle = gr.Swizzle(2, 3, (rows & -rows).bit_length() - 4)
    return gr.alloc(f"s{operand.name}", layout, gr.fp16, gr.SH, stages=2, swizzle=swizzle)
