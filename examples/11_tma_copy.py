"""A copy by agents beside the threads, Hopper's TMA, run and judged without a GPU. docs/hopper.md goes on from here."""

from __future__ import annotations

import numpy as np

import graphene as gr


def tma_copy(BM: int = 64, BN: int = 64, STAGES: int = 3) -> gr.Kernel:
    """y = x, tile by tile through shared memory; one thread of a block issues all copies, in and out."""
    M, N = gr.sym("M"), gr.sym("N", multiple_of=8)
    load, store = gr.atom("tma.load"), gr.atom("tma.store")
    with gr.Kernel("tma_copy", means=lambda x: x) as kernel:
        x = gr.input("x", gr.row_major(M, N), gr.fp16, align_bytes=16)
        y = gr.output("y", gr.row_major(M, N), gr.fp16, align_bytes=16)
        blocks, warp = gr.blocks(gr.ceil_div(M, BM)), gr.threads(32)
        (b,) = blocks.indices()
        gx, gy = x.tile([BM, BN])[b, :], y.tile([BM, BN])[b, :]  # [n].[BM,BN]; the last ones may be partial
        tiles = gr.ceil_div(N, BN)
        s = gr.alloc("s", [BM, BN], gr.fp16, gr.SH, stages=STAGES, swizzle=gr.swizzle(BN, gr.fp16))
        full = gr.mbarrier("full", STAGES, arrivals=1)
        gr.barrier()  # the barriers are initialised

        with gr.only(warp.elect()):
            put, get = gr.ring("put", STAGES), gr.ring("get", STAGES)

            def start(n: gr.IntExpr | int) -> None:
                with gr.if_(n < tiles):
                    full[put.index].arrive(expect=[s[put.index]])  # one arrival, and the bytes to come
                    gr.move(s[put.index], gx[n], atom=load, done=full[put.index])
                    put.advance()

            for n in range(STAGES - 1):
                start(n)
            for n in gr.loop("n", tiles):
                full[get.index].wait(get.phase)
                gr.move(gy[n], s[get.index], atom=store)
                gr.commit(store)
                get.advance()
                gr.wait(store, pending=1)  # the store before has read its stage, which is filled next
                start(n + STAGES - 1)
            gr.wait(store, pending=0)
    return kernel


def main() -> None:
    kernel = tma_copy()
    x = np.random.default_rng(0).standard_normal((100, 456)).astype(np.float16)  # the last tiles are partial
    y = np.zeros_like(x)
    kernel(x, y)
    print("equal bits:", np.array_equal(x, y))
    for mutant in kernel.mutants(M=64, N=7 * 64):  # 2 x 3 stages + 1 tiles: each removal shows
        print(mutant)
    print(kernel.check())


if __name__ == "__main__":
    main()
