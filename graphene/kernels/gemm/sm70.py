"""GEMM for sm_70: quad-pairs, mma.m8n8k4, shared memory double-buffered through registers, fused epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.gemm.frame import Product, relu_of_bias
from graphene.kernels.gemm.operand import Operand, TileInRegisters, access

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType


def gemm_sm70(
    BM: int = 128,
    BN: int = 128,
    BK: int = 16,
    epilogue: Callable[..., Any] | None = relu_of_bias,
    *,
    warps: tuple[int, int] = (2, 4),
    group: int = 1,
    order: str = "TN",
    out: DType | None = None,
    align: tuple[int, int, int] = (16, 16, 16),
    padded: tuple[bool, bool] = (False, False),
    b_as_kn: bool = False,
    batched: bool = False,
    bias: bool | None = None,
    residual: bool = False,
    alpha: bool = False,
    beta: bool = False,
    split_k: bool = False,
) -> gr.Kernel:
    """C = epilogue(A @ B.T, bias): A (M,K), B (N,K), bias (N,), C (M,N) row-major, fp16, fp32 accumulation.

    A quad-pair is eight threads, lanes 4q to 4q+3 and 4q+16 to 4q+19, which multiply 8x4 by 4x8 together. Each of the
    four quad-pairs of a warp computes a quarter of the warp's part of C. While one tile of k is multiplied, the next
    one is loaded to registers, and then stored to the other half of shared memory.

    `warps` (rows, columns) compute BM by BN of C, and each quad-pair's part is a multiple of 8x8. A step takes BK of k,
    a multiple of 8. The other options and the kernel's arguments are those of gemm_sm80, for fp16. The kernel also runs
    on later architectures, which emulate the instruction. Raises VerifyError KERNEL_ARGUMENT.
    """
    return product_sm70(
        Product.of(
            "gemm_sm70", (BM, BN, BK), 2, epilogue=epilogue, warps=warps, group=group, order=order, dtype=gr.fp16,
            out=out, align=align, padded=padded, b_as_kn=b_as_kn, batched=batched, bias=bias, residual=residual,
            alpha=alpha, beta=beta, split_k=split_k,
        )
    )  # fmt: skip


def product_sm70(product: Product) -> gr.Kernel:
    """The kernel of a problem and a tile."""
    (BM, BN, BK), warps = product.tile.tile, product.tile.warps
    a_is, b_is = product.a, product.b
    mma = gr.atom(f"mma.m8n8k4.{'row' if a_is.along_k else 'col'}.{'col' if b_is.along_k else 'row'}.f32")
    QM, QN = BM // warps[0] // 2, BN // warps[1] // 2  # a quad-pair's part

    with gr.Kernel("gemm_sm70", **product.promise()) as kernel:
        threads, gA, gB, kA, kB, steps, result = product.begin()
        quads = threads.tile(32).tile([gr.Layout((4, 2), (1, 16))])  # [4].[4].[(4,2)].thread
        quads = quads.reshape(0, gr.Layout(warps)).reshape(1, gr.Layout((2, 2)))
        (wm, wn), (qm, qn), _ = quads.indices()
        mine = quads[wm, wn][qm, qn]
        sA, sB = (shared(o, n, BK, q) for o, n, q in ((a_is, BM, QM), (b_is, BN, QN)))
        on_the_way = TileInRegisters(a_is, BM, BK, threads), TileInRegisters(b_is, BN, BK, threads)
        ra = gr.fragment("ra", [QM, 4], gr.fp16, mma.a, on=mine)
        rb = gr.fragment("rb", [QN, 4], gr.fp16, mma.b, on=mine)
        acc = gr.fragment("acc", [BM, BN], gr.fp32, mma.c, on=quads)  # warps . quad-pairs . registers . atom
        half = gr.ring("half", 2)

        def load(k: Any) -> None:  # past the last tile: an empty tile, zeros
            for held, tiles in zip(on_the_way, (kA, kB), strict=True):
                held.load(tiles[k])

        def store(stage: Any) -> None:
            for held, s in zip(on_the_way, (sA, sB), strict=True):
                held.store(s[stage])
            gr.barrier()  # all warps see the tile, and the other half is free

        def fragment(r: Any, s: Any, warp: Any, quad: Any, j: int) -> None:  # slice j of the half being read
            rows = r.shape[0]
            gr.move(r, s.tile([2 * rows, 4])[warp, j].tile([rows, 4])[quad, 0], atom=access("ld.shared", 8))

        gr.init(acc, 0)
        with gr.matmul(acc, gA, gB.T):  # acc += gA @ gB.T
            load(0)
            store(half.index)
            for k in gr.loop("k", steps):
                load(k + 1)
                for j in range(BK // 4):  # a Python loop: unrolled
                    fragment(ra, sA[half.index], wm, qm, j)
                    fragment(rb, sB[half.index], wn, qn, j)
                    gr.matmul(acc[wm, wn][qm, qn], ra, rb.T, atom=mma)
                half.advance()
                store(half.index)

        result.store(acc, product.epilogue, mma.c, quads, threads, over=[sA, sB], piece_rows=8)
    return kernel


def shared(operand: Operand, rows: int, ks: int, quad_rows: int) -> Any:
    """Two tiles [rows,ks] in shared memory, from which a half-warp reads 8 bytes a lane without bank conflicts."""
    layout = gr.Layout((rows, ks), (ks, 1) if operand.along_k else (1, rows))
    if operand.along_k:  # 2 quad-pairs read 4 rows each: 4 lines of 32 bytes, and the others 16 bytes further
        swizzle = gr.Swizzle(1, 3, (quad_rows * ks).bit_length() - 4)
    else:  # 4 k
        shift = (rows & -rows).bit_length() - 4
        swizzle = gr.Swizzle(min(2, shift), 3, shift)
    return gr.alloc(f"s{operand.name}", layout, gr.fp16, gr.SH, stages=2, swizzle=swizzle)
