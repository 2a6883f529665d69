"""Layer normalisation, one block a row: the row stays in registers between the two sums."""

from __future__ import annotations

import graphene as gr
from graphene.kernels._arguments import number, size


def layernorm(N: int = 1000, THREADS: int = 128, eps: float = 1e-5) -> gr.Kernel:
    """Y = (X - mean) * rsqrt(var + eps) * gamma + beta over rows: X, Y (M,N), gamma, beta (N,) fp16; fp32 inside.

    One block of THREADS threads a row; N % 8 == 0, the row stays in registers: about N / THREADS of fp32 each thread.
    THREADS % 32 == 0. Raises VerifyError KERNEL_ARGUMENT.
    """
    size("layernorm", "N", N, multiple_of=8)
    size("layernorm", "THREADS", THREADS, multiple_of=32, most=1024)
    number("layernorm", "eps", eps)
    M, VEC = gr.sym("M"), 8
    ld, st = gr.atom("ld.global.nc.v4.b32"), gr.atom("st.global.v4.b32")
    striped = gr.tv(gr.Layout(THREADS, VEC), gr.Layout((VEC, gr.ceil_div(N, THREADS * VEC)), (1, THREADS * VEC)))
    with gr.Kernel("layernorm") as kernel:
        X = gr.input("X", gr.row_major(M, N), gr.fp16, align_bytes=16)
        gamma = gr.input("gamma", gr.Layout(N), gr.fp16, align_bytes=16)
        beta = gr.input("beta", gr.Layout(N), gr.fp16, align_bytes=16)
        Y = gr.output("Y", gr.row_major(M, N), gr.fp16, align_bytes=16)
        blocks, threads = gr.blocks(M), gr.threads(THREADS)
        warps = threads.tile(32)
        (row,), (w, lane) = blocks.indices(), warps.indices()
        x, g, b, y = (gr.fragment(n, [N], gr.fp16, striped, on=threads) for n in "xgby")
        f, sq = (gr.fragment(n, [N], gr.fp32, striped, on=threads) for n in ("f", "sq"))
        scratch = gr.alloc("scratch", [THREADS // 32], gr.fp32, gr.SH, stages=2)

        def block_sum(v: gr.Tensor, stage: int) -> gr.Tensor:  # thread -> warp -> block; every thread gets it
            s = gr.alloc("s", [], gr.fp32, gr.RF)
            gr.reduce("add", s, v.values, axis=0)  # this thread's values
            gr.allreduce("add", s, on=warps[w])  # shfl.bfly 16, 8, 4, 2, 1
            with gr.only(warps[w][0]):
                gr.move(scratch[stage][w], s)
            gr.barrier()
            part = gr.alloc("part", [THREADS // 32], gr.fp32, gr.RF)
            for i in range(THREADS // 32):
                gr.move(part[i], scratch[stage][i])
            gr.reduce("add", s, part, axis=0)
            return s

        for r, src in ((x, X[row, :]), (g, gamma), (b, beta)):
            gr.move(r, src, atom=ld)
        f[:] = x
        mean = block_sum(f, 0)
        f[:] = gr.where(f.valid(), f - mean / N, 0)  # the ragged end was loaded as zeros
        sq[:] = f * f
        var = block_sum(sq, 1)
        y[:] = gr.fma(f * gr.rsqrt(var / N + eps), g, b)
        gr.move(Y[row, :], y, atom=st)
    return kernel
