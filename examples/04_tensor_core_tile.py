"""A tensor-core matrix product: ldmatrix and mma through fragments, one block, any M, N, K multiple of the tile.

    python examples/04_tensor_core_tile.py

Global tiles are copied to swizzled shared memory, `ldmatrix` fills the fragments, and `mma` accumulates in fp32. Each
level promises what it computes (`with gr.matmul(...)`), and `kernel.check()` holds it to that.
"""

import numpy as np

import graphene as gr


def tensor_core_tile(BM: int = 64, BN: int = 64, BK: int = 32) -> gr.Kernel:
    """C = A @ B.T with A (M,K), B (N,K) fp16 and C (M,N) fp32, all row-major, computed tile by tile by one block."""
    M, N, K = gr.sym("M", multiple_of=BM), gr.sym("N", multiple_of=BN), gr.sym("K", multiple_of=BK)
    ldsm, mma = gr.atom("ldmatrix.x4"), gr.atom("mma.m16n8k16.f32.f16")
    copy = (gr.atom("ld.global.v4.b32"), gr.atom("st.shared.v4.b32"))  # through registers
    with gr.Kernel("tensor_core_tile", means=lambda A, B: A @ B.T) as kernel:
        A = gr.input("A", gr.row_major(M, K), gr.fp16, align_bytes=16)
        B = gr.input("B", gr.row_major(N, K), gr.fp16, align_bytes=16)
        C = gr.output("C", gr.row_major(M, N), gr.fp32, align_bytes=16)
        _, threads = gr.blocks(1), gr.threads(128)
        warps = threads.tile(32).reshape(0, gr.Layout((2, 2)))  # [2,2].[32].thread
        (wm, wn), _ = warps.indices()
        warp = warps[wm, wn]

        sA = gr.alloc("sA", [BM, BK], gr.fp16, gr.SH, swizzle=gr.swizzle(BK, gr.fp16))
        sB = gr.alloc("sB", [BN, BK], gr.fp16, gr.SH, swizzle=gr.swizzle(BK, gr.fp16))
        ra = gr.fragment("ra", [BM // 2, 16], gr.fp16, mma.a, on=warp)
        rb = gr.fragment("rb", [BN // 2, 16], gr.fp16, mma.b, on=warp)
        acc = gr.fragment("acc", [BM, BN], gr.fp32, mma.c, on=warps)

        with gr.loop("m", M // BM) as m, gr.loop("n", N // BN) as n:
            gA, gB = A.tile([BM, None])[m, 0], B.tile([BN, None])[n, 0]  # [BM,K], [BN,K]
            gr.init(acc, 0)
            with gr.matmul(acc, gA, gB.T):
                with gr.loop("k", K // BK) as k:
                    gr.move(sA, gA.tile([None, BK])[0, k], on=threads, atom=copy)
                    gr.move(sB, gB.tile([None, BK])[0, k], on=threads, atom=copy)
                    gr.barrier()  # the tiles have arrived
                    with gr.matmul(acc, sA, sB.T):
                        for j in range(BK // 16):
                            gr.move(ra, sA.tile([BM // 2, 16])[wm, j], atom=ldsm)
                            gr.move(rb, sB.tile([BN // 2, 16])[wn, j], atom=ldsm)
                            gr.matmul(acc[wm, wn], ra, rb.T, atom=mma)
                    gr.barrier()  # every thread has read them
            gr.move(C.tile([BM, BN])[m, n], acc, atom=gr.atom("st.global.v2.b32"))
    return kernel


def main() -> None:
    kernel = tensor_core_tile()
    print(kernel)
    M, N, K = 128, 64, 96
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    c = np.full((M, N), np.nan, np.float32)
    kernel(a, b, c)  # the simulator runs it on NumPy arrays and checks every access
    want = a.astype(np.float64) @ b.astype(np.float64).T
    print("largest error against float64:", np.abs(c - want).max())
    assert np.allclose(c, want, rtol=1e-4, atol=1e-3)
    result = kernel.check(M=M, N=N, K=K)
    print(result)
    assert result.ok


if __name__ == "__main__":
    main()
