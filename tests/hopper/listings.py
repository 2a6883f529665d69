"""Kernels in which copies and products run beside the threads, as people write them."""

from __future__ import annotations

from typing import Any

import graphene as gr


def tma_copy(bm: int = 64, bn: int = 64, stages: int = 3, dtype: Any = gr.fp16) -> gr.Kernel:
    """y = x, tile by tile through shared memory; one thread of a block issues all copies, in and out."""
    m, n = gr.sym("M"), gr.sym("N", multiple_of=16)
    load, store = gr.atom("tma.load"), gr.atom("tma.store")
    with gr.Kernel("tma_copy") as kernel:
        x = gr.input("x", gr.row_major(m, n), dtype, align_bytes=16)
        y = gr.output("y", gr.row_major(m, n), dtype, align_bytes=16)
        blocks, warp = gr.blocks(gr.ceil_div(m, bm)), gr.threads(32)
        (b,) = blocks.indices()
        gx, gy = x.tile([bm, bn])[b, :], y.tile([bm, bn])[b, :]  # [n].[bm,bn]; the last ones may be partial
        tiles = gr.ceil_div(n, bn)
        s = gr.alloc("s", [bm, bn], dtype, gr.SH, stages=stages, swizzle=gr.swizzle(bn, dtype))
        full = gr.mbarrier("full", stages, arrivals=1)
        gr.barrier()  # the barriers are initialised

        with gr.only(warp.elect()):
            put, get = gr.ring("put", stages), gr.ring("get", stages)

            def start(i: Any) -> None:
                with gr.if_(i < tiles):
                    full[put.index].arrive(expect=[s[put.index]])  # one arrival, and the bytes to come
                    gr.move(s[put.index], gx[i], atom=load, done=full[put.index])
                    put.advance()

            for i in range(stages - 1):
                start(i)
            for i in gr.loop("i", tiles):
                full[get.index].wait(get.phase)
                gr.move(gy[i], s[get.index], atom=store)
                gr.commit(store)
                get.advance()
                gr.wait(store, pending=1)  # the store before has read its stage, which is filled next
                start(i + stages - 1)
            gr.wait(store, pending=0)
    return kernel


def gemm_one_consumer(bm: int = 128, bn: int = 128, bk: int = 64, stages: int = 4, dtype: Any = gr.fp16) -> gr.Kernel:
    """C = A B^T by one warpgroup, one thread of which starts the copies; results are stored by threads."""
    m, n, k = gr.sym("M"), gr.sym("N", multiple_of=8), gr.sym("K", multiple_of=8, min=8)
    kind = {"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "fp8e4m3": "e4m3", "fp8e5m2": "e5m2", "i8": "s8"}[dtype.name]
    depth = 32 * 8 // dtype.bits
    total = gr.i32 if kind == "s8" else gr.fp32
    load = gr.atom("tma.load")
    wgmma = gr.atom(f"wgmma.m64n{bn}k{depth}.{'s32' if kind == 's8' else 'f32'}.{kind}")
    with gr.Kernel("gemm_one_consumer") as kernel:
        a = gr.input("A", gr.row_major(m, k), dtype, align_bytes=16)
        b = gr.input("B", gr.row_major(n, k), dtype, align_bytes=16)
        c = gr.output("C", gr.row_major(m, n), total, align_bytes=16)
        blocks, threads = gr.blocks(gr.ceil_div(m, bm), gr.ceil_div(n, bn)), gr.threads(128)
        bi, bj = blocks.indices()
        steps = gr.ceil_div(k, bk)
        sa = gr.alloc("sA", [bm, bk], dtype, gr.SH, stages=stages, swizzle=gr.swizzle(bk, dtype))
        sb = gr.alloc("sB", [bn, bk], dtype, gr.SH, stages=stages, swizzle=gr.swizzle(bk, dtype))
        full = gr.mbarrier("full", stages, arrivals=1)
        gr.barrier()
        ga, gb = a.tile([bm, bk])[bi, :], b.tile([bn, bk])[bj, :]
        acc = gr.fragment("acc", [bm, bn], total, wgmma.c, on=threads)
        put, get = gr.ring("put", stages), gr.ring("get", stages)

        def start(i: Any) -> None:
            with gr.if_(i < steps):
                with gr.only(threads.elect()):
                    full[put.index].arrive(expect=[sa[put.index], sb[put.index]])
                    gr.move(sa[put.index], ga[i], atom=load, done=full[put.index])
                    gr.move(sb[put.index], gb[i], atom=load, done=full[put.index])
                put.advance()

        for i in range(stages - 1):
            start(i)
        for i in gr.loop("k", steps):
            full[get.index].wait(get.phase)
            gr.fence(wgmma)
            gr.matmul(acc, sa[get.index], sb[get.index].T, on=threads, atom=wgmma, accumulate=i > 0)
            gr.commit(wgmma)
            get.advance()
            gr.wait(wgmma, pending=0)
            gr.barrier()  # all have read the stage that is filled next
            start(i + stages - 1)
        gr.move(c.tile([bm, bn])[bi, bj], acc, on=threads, atom=gr.atom("st.global.v2.b32"))
    return kernel
