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


def gemm_sm90(
    bn: int = 256, bk: int = 64, stages: int = 4, epilogue: Any = lambda x, b: gr.max(x + b, 0), group: int = 8
) -> gr.Kernel:
    """C = epilogue(A @ B.T, bias): a producer, two consumers, tiles of B shared by clusters of two blocks."""
    bm, dtype = 128, gr.fp16  # two consumers of 64 rows
    m, n, k = gr.sym("M"), gr.sym("N", multiple_of=8), gr.sym("K", multiple_of=8, min=8)
    tma, store, stsm = gr.atom("tma.load"), gr.atom("tma.store"), gr.atom("stmatrix.x4")
    wgmma, narrow = gr.atom(f"wgmma.m64n{bn}k16.f32.f16"), gr.atom("wgmma.m64n64k16.f32.f16")
    with gr.Kernel("gemm_sm90") as kernel:
        a = gr.input("A", gr.row_major(m, k), dtype, align_bytes=16)
        b = gr.input("B", gr.row_major(n, k), dtype, align_bytes=16)
        bias = gr.input("bias", gr.Layout(n), dtype, align_bytes=16)
        out_c = gr.output("C", gr.row_major(m, n), dtype, align_bytes=16)
        pairs, tn, kt = gr.ceil_div(m, 2 * bm), gr.ceil_div(n, bn), gr.ceil_div(k, bk)
        clusters = gr.max(1, gr.min(gr.sm_count() // 2, pairs * tn))
        blocks, wgs = gr.blocks(2 * clusters, cluster=2), gr.threads(384).tile(128)
        c, r = blocks.indices()
        cluster, producer, consumers = blocks[c], wgs[0], wgs[1:3]

        sa = gr.alloc("sA", [bm, bk], dtype, gr.SH, stages=stages, swizzle=gr.swizzle(bk, dtype))
        sb = gr.alloc("sB", [bn, bk], dtype, gr.SH, stages=stages, swizzle=gr.swizzle(bk, dtype))
        sc = gr.alloc("sC", [bm, 64], dtype, gr.SH, stages=2, swizzle=gr.swizzle(64, dtype))
        full = gr.mbarrier("full", stages, arrivals=1)
        empty = gr.mbarrier("empty", stages, arrivals=4)  # two consumers in each of two blocks
        gr.barrier(on=cluster)

        def tiles() -> Any:  # both roles go through the same tiles
            return gr.loop("tile", pairs * tn, start=c, step=clusters)

        def place(t: Any) -> tuple[Any, Any]:  # `group` rows of tiles side by side share A and B in the L2 cache
            first = t // (group * tn) * group
            rows = gr.min(group, pairs - first)
            return first + t % (group * tn) % rows, t % (group * tn) // rows

        with gr.only(producer):
            gr.setmaxnreg(40)
            with gr.only(producer.elect()):
                put = gr.ring("put", stages, phase=1)  # 1: the ring starts empty
                for t in tiles():
                    tm, tc = place(t)
                    ga, gb = a.tile([bm, bk])[2 * tm + r, :], b.tile([bn // 2, bk])[2 * tc + r, :]
                    for step in gr.loop("k", kt):
                        i = put.index
                        empty[i].wait(put.phase)
                        full[i].arrive(expect=[sa[i], sb[i]])
                        gr.move(sa[i], ga[step], atom=tma, done=full[i])
                        gr.move(sb[i].tile([bn // 2, None])[r, 0], gb[step], atom=tma, done=full[i], to=cluster)
                        put.advance()

        with gr.only(consumers):
            gr.setmaxnreg(232)
            w, _ = consumers.indices()
            mine, get, free = consumers[w], gr.ring("get", stages), gr.ring("free", stages)
            acc = gr.fragment("acc", [64, bn], gr.fp32, wgmma.c, on=mine)
            out = gr.fragment("out", [64, 64], dtype, narrow.c, on=mine)
            rbias = out.reduced(0, "rbias")  # [1,64]

            def release() -> None:  # in both blocks of the cluster: this block's tiles came from both
                with gr.only(mine.elect()):
                    empty[free.index].arrive(at=cluster)
                free.advance()

            for t in tiles():
                tm, tc = place(t)
                row = 2 * (2 * tm + r) + w  # of tiles of 64
                with gr.matmul(acc, a.tile([64, None])[row, 0], b.tile([bn, None])[tc, 0].T, on=mine, accumulate=False):
                    for step in gr.loop("k", kt):
                        x, y = sa[get.index].tile([64, None])[w, 0], sb[get.index]
                        full[get.index].wait(get.phase)
                        gr.fence(wgmma)
                        gr.matmul(acc, x, y.T, on=mine, atom=wgmma, accumulate=step > 0)
                        gr.commit(wgmma)
                        get.advance()
                        gr.wait(wgmma, pending=1)  # the step before has read its stage
                        with gr.if_(step > 0):
                            release()
                    gr.wait(wgmma, pending=0)
                    release()
                gc, gbias = out_c.tile([64, 64])[row, :], bias.tile([64])  # the producer is loading the next tile
                for j in range(bn // 64):
                    piece, column = sc[j % 2].tile([64, None])[w, 0], tc * (bn // 64) + j
                    gr.move(rbias, gbias[column].reshape(0, [1, 64]), atom=gr.atom("ld.global.b32"))
                    out[:] = epilogue(acc.tile([None, 64])[0, j], rbias)
                    gr.wait(store, pending=1 if j or bn % 128 == 0 else 0)  # the last store from here has read it
                    gr.barrier(on=mine)
                    gr.move(piece, out, atom=stsm)
                    gr.fence("async.shared")  # what threads stored becomes visible to the copy
                    gr.barrier(on=mine)
                    with gr.only(mine.elect()):
                        gr.move(gc[column], piece, atom=store)
                        gr.commit(store)
            gr.wait(store, pending=0)
        gr.barrier(on=cluster)  # nobody leaves while the other block may still arrive here
    return kernel
