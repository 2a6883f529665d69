"""GEMM for sm_80 and up: multi-stage cp.async, swizzled shared memory, ldmatrix, mma, fused epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.gemm.frame import Product, relu_of_bias
from graphene.kernels.gemm.operand import MATRIX_ATOMS, StagedOperand

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

CP = "cp.async.cg.16"  # commit and wait may name any of the copies


def gemm_sm80(
    BM: int = 128,
    BN: int = 128,
    BK: int = 32,
    STAGES: int = 4,
    epilogue: Callable[..., Any] | None = relu_of_bias,
    *,
    warps: tuple[int, int] = (2, 4),
    group: int = 1,
    order: str = "TN",
    dtype: DType = gr.fp16,
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
    """C = epilogue(A @ B.T, bias): A (M,K), B (N,K), bias (N,), C (M,N) row-major, fp32 accumulation, rounded once.

    M and the row strides are any; N, K and the strides are multiples of 8, unless `align` says otherwise. `epilogue` is
    a pointwise function of the sums and, if the kernel has them, of the bias of their columns and the residual. By
    default it is relu(x + bias). With None, and by default if bias=False, C = A @ B.T. With another epilogue the
    default is a bias. The arguments of the kernel are A, B, `bias` (N,), `residual` (M,N), C (M,N), and the scalars
    `alpha` and `beta` of ``x = alpha * (A @ B.T) + beta * C``, which is the epilogue's argument. With beta 0 the values
    of C do not matter, not even NaN, as in BLAS.

    - Tiles: `warps` (rows, columns) hold BM by BN of C, and each of STAGES holds BK of k. Tiles of `group` rows of
      tiles are computed at about the same time, so that they find their parts of B in the L2 cache.
    - `order` of A and B, in BLAS' letters for column-major matrices: A is contiguous along k ("T") or m ("N"), B along
      k ("N") or n ("T"). With `b_as_kn` B is declared as (K,N), the shape of torch.matmul, over the same memory.
    - `dtype` of A and B: fp16, bf16, fp32 (rounded to tf32) or i8 (i32 accumulators). `out`: fp16, bf16, fp32, and for
      i8 also i32, which is computed without rounding. The default is `dtype`, or i32 for i8.
    - `align`: bytes that divide the addresses of the contiguous lines of A, B and C, and their lengths. With 16, 8 and
      4 copies are asynchronous; with less they pass through registers. bias and residual are aligned like C.
    - `padded`: whether the lines of A, of B have a length of their own, at least what they hold; the rest is zeros.
    - `batched`: A, B, residual and C have a batch mode in front, of any strides; 0 broadcasts. S * batch < 65536.
    - `split_k`: instead of C there is W (S,M,N), fp32 or i32. Part s of S parts of k is summed into W[s], and
      gemm_reduce adds them up. Then there is no epilogue. If batched, W is (S,batch,M,N).

    BM and BN are multiples of 16 for each warp, BK is a multiple of two k of the matrix instruction. Raises VerifyError
    KERNEL_ARGUMENT.
    """
    return product_sm80(
        Product.of(
            "gemm_sm80", (BM, BN, BK), STAGES, epilogue=epilogue, warps=warps, group=group, order=order, dtype=dtype,
            out=out, align=align, padded=padded, b_as_kn=b_as_kn, batched=batched, bias=bias, residual=residual,
            alpha=alpha, beta=beta, split_k=split_k,
        )
    )  # fmt: skip


def product_sm80(product: Product) -> gr.Kernel:
    """The kernel of a problem and a tile."""
    name, MK = MATRIX_ATOMS[str(product.dtype)]
    mma = gr.atom(name)
    (BM, BN, BK), warps, STAGES = product.tile.tile, product.tile.warps, product.tile.stages
    WM, WN, KB = BM // warps[0], BN // warps[1], BK // MK  # fragments are double-buffered by slice parity
    asynchronous = product.a.asynchronous or product.b.asynchronous

    with gr.Kernel(product.name, **product.promise()) as kernel:
        threads, gA, gB, kA, kB, steps, result = product.begin()
        my = threads.tile(32).reshape(0, gr.Layout(warps))  # [2,4].[32].thread
        (wm, wn), _ = my.indices()
        a, b = (
            StagedOperand(product.a, kA, BM, BK, STAGES, threads),
            StagedOperand(product.b, kB, BN, BK, STAGES, threads),
        )
        a.fragments(wm, WM, MK, mma.a, my[wm, wn])  # indexed by its own coordinates: my warp, no branch
        b.fragments(wn, WN, MK, mma.b, my[wm, wn])
        acc = gr.fragment("acc", [BM, BN], product.sums, mma.c, on=my)  # [2,4].[4,4].[16,8]: warps . registers . atom
        rd, wr = gr.ring("rd", STAGES), gr.ring("wr", STAGES)

        last = KB // 2 - 1 if a.held is None and b.held is None else 0  # tiles in registers are stored at the end
        first = 0 if BM * BN <= 192 * 128 else last  # the slices behind which copies of A and of B start, as measured

        def close() -> None:  # the copies of a tile
            if asynchronous:
                gr.commit(CP)

        def arrive() -> None:  # stores the tile last loaded, unless its copies are asynchronous
            a.arrive(wr.index)
            b.arrive(wr.index)
            wr.advance()

        def fragments(j: int) -> None:  # slice j of the stage being read, to registers
            a.load(rd.index, j)
            b.load(rd.index, j)

        def next_stage() -> None:
            if asynchronous:
                gr.wait(CP, pending=STAGES - 2)
            gr.barrier()

        gr.init(acc, 0)
        with gr.matmul(acc, gA, gB.T):  # acc += gA @ gB.T
            for k in range(STAGES - 1):  # past the last tile: an empty tile, zero-filled
                a.copy(k, wr.index)
                b.copy(k, wr.index)
                close()
                arrive()
            next_stage()
            fragments(0)
            for k in gr.loop("k", steps):
                for j in range(KB):  # a Python loop: unrolled
                    if j == KB - 1:
                        arrive()
                        rd.advance()
                        next_stage()
                    fragments((j + 1) % KB)
                    gr.matmul(acc[wm, wn], a.ready(j), b.ready(j).T, atom=mma)
                    if j == first:  # after products that are under way, into the stage that was read at k-1
                        a.copy(k + STAGES - 1, wr.index)
                    if j == last:
                        b.copy(k + STAGES - 1, wr.index)
                        close()
            if result.through_shared_memory:  # where the stages are
                if asynchronous:
                    gr.wait(CP, pending=0)
                gr.barrier()
        result.store(acc, product.epilogue, mma.c, my, threads, over=[a.shared, b.shared])
    return kernel
