"""The kernels that the design of Hopper's language was drawn up with: a copy, a product, attention."""

from __future__ import annotations

from typing import Any

import graphene as gr


def tma_copy(BM=64, BN=64, STAGES=3):
    """y = x, tile by tile through shared memory; one thread of a block issues all copies, in and out."""
    M, N = gr.sym("M"), gr.sym("N", multiple_of=8)
    load, store = gr.atom("tma.load"), gr.atom("tma.store")
    with gr.Kernel("tma_copy") as kernel:
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

            def start(n):
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


def gemm_sm90(BN=256, BK=64, STAGES=4, epilogue=lambda x, b: gr.max(x + b, 0), group=8, dtype=gr.fp16):
    """C = epilogue(A @ B.T, bias): a TMA producer, two wgmma consumers, tiles of B shared by clusters of two blocks."""
    BM, ab = 128, "bf16" if dtype == gr.bf16 else "f16"  # two consumers of 64 rows
    M, N, K = gr.sym("M"), gr.sym("N", multiple_of=8), gr.sym("K", multiple_of=8, min=8)
    tma, store, stsm = gr.atom("tma.load"), gr.atom("tma.store"), gr.atom("stmatrix.x4")
    wgmma, narrow = gr.atom(f"wgmma.m64n{BN}k16.f32.{ab}"), gr.atom(f"wgmma.m64n64k16.f32.{ab}")
    with gr.Kernel("gemm_sm90") as kernel:
        A = gr.input("A", gr.row_major(M, K), dtype, align_bytes=16)
        B = gr.input("B", gr.row_major(N, K), dtype, align_bytes=16)
        bias = gr.input("bias", gr.Layout(N), dtype, align_bytes=16)
        C = gr.output("C", gr.row_major(M, N), dtype, align_bytes=16)
        pairs, tn, kt = gr.ceil_div(M, 2 * BM), gr.ceil_div(N, BN), gr.ceil_div(K, BK)
        clusters = gr.max(1, gr.min(gr.sm_count() // 2, pairs * tn))
        blocks, wgs = (
            gr.blocks(2 * clusters, cluster=2),
            gr.threads(384).tile(128),
        )  # [clusters].[2].block, [3].[128].thread
        c, r = blocks.indices()
        cluster, producer, consumers = blocks[c], wgs[0], wgs[1:3]

        sA = gr.alloc("sA", [BM, BK], dtype, gr.SH, stages=STAGES, swizzle=gr.swizzle(BK, dtype))
        sB = gr.alloc("sB", [BN, BK], dtype, gr.SH, stages=STAGES, swizzle=gr.swizzle(BK, dtype))
        sC = gr.alloc("sC", [BM, 64], dtype, gr.SH, stages=2, swizzle=gr.swizzle(64, dtype))
        full = gr.mbarrier("full", STAGES, arrivals=1)
        empty = gr.mbarrier("empty", STAGES, arrivals=4)  # two consumers in each of two blocks
        gr.barrier(on=cluster)

        def tiles():  # both roles go through the same tiles
            return gr.loop("tile", pairs * tn, start=c, step=clusters)

        def place(t):  # `group` rows of tiles side by side: what runs at once shares A and B in the L2 cache
            first = t // (group * tn) * group
            rows = gr.min(group, pairs - first)
            return first + t % (group * tn) % rows, t % (group * tn) // rows

        with gr.only(producer):
            gr.setmaxnreg(40)
            with gr.only(producer.elect()):
                put = gr.ring("put", STAGES, phase=1)  # 1: the ring starts empty
                for t in tiles():
                    m, n = place(t)
                    gA, gB = A.tile([BM, BK])[2 * m + r, :], B.tile([BN // 2, BK])[2 * n + r, :]
                    for k in gr.loop("k", kt):
                        i = put.index
                        empty[i].wait(put.phase)
                        full[i].arrive(expect=[sA[i], sB[i]])
                        gr.move(sA[i], gA[k], atom=tma, done=full[i])
                        gr.move(sB[i].tile([BN // 2, None])[r, 0], gB[k], atom=tma, done=full[i], to=cluster)
                        put.advance()

        with gr.only(consumers):
            gr.setmaxnreg(232)
            w, _ = consumers.indices()
            mine, get, free = consumers[w], gr.ring("get", STAGES), gr.ring("free", STAGES)
            acc = gr.fragment("acc", [64, BN], gr.fp32, wgmma.c, on=mine)
            out = gr.fragment("out", [64, 64], dtype, narrow.c, on=mine)
            rbias = out.reduced(0, "rbias")  # [1,64]

            def release():  # in both blocks of the cluster: this block's tiles came from both
                with gr.only(mine.elect()):
                    empty[free.index].arrive(at=cluster)
                free.advance()

            for t in tiles():
                m, n = place(t)
                row = 2 * (2 * m + r) + w  # of tiles of 64
                with gr.matmul(acc, A.tile([64, None])[row, 0], B.tile([BN, None])[n, 0].T, on=mine, accumulate=False):
                    for k in gr.loop("k", kt):
                        a, b = sA[get.index].tile([64, None])[w, 0], sB[get.index]
                        full[get.index].wait(get.phase)
                        gr.fence(wgmma)
                        gr.matmul(acc, a, b.T, on=mine, atom=wgmma, accumulate=k > 0)
                        gr.commit(wgmma)
                        get.advance()
                        gr.wait(wgmma, pending=1)  # the step before has read its stage
                        with gr.if_(k > 0):
                            release()
                    gr.wait(wgmma, pending=0)
                    release()
                gC, gbias = C.tile([64, 64])[row, :], bias.tile([64])  # the producer is loading the next tile
                for j in range(BN // 64):
                    piece, column = sC[j % 2].tile([64, None])[w, 0], n * (BN // 64) + j
                    gr.move(rbias, gbias[column].reshape(0, [1, 64]), atom=gr.atom("ld.global.b32"))
                    out[:] = epilogue(acc.tile([None, 64])[0, j], rbias)
                    gr.wait(
                        store, pending=1 if j or BN % 128 == 0 else 0
                    )  # the last store from this half of sC has read it
                    gr.barrier(on=mine)
                    gr.move(piece, out, atom=stsm)
                    gr.fence("async.shared")  # what threads stored becomes visible to the copy
                    gr.barrier(on=mine)
                    with gr.only(mine.elect()):
                        gr.move(gC[column], piece, atom=store)
                        gr.commit(store)
            gr.wait(store, pending=0)
        gr.barrier(on=cluster)  # nobody leaves while the other block may still arrive here
    return kernel


def flash_fwd_sm90(D=128, BN=128, WG=2, STAGES=2, causal=True):
    """O = softmax(scale * Q K^T) V on (batch, seq, heads, D) fp16; WG consumers take turns."""
    BM, f16 = 64 * WG, gr.fp16
    (b_, h_), hk = gr.sym("batch heads", max=65535), gr.sym("kv_heads", min=1, max=65535)
    sq, sk = gr.sym("sq", max=1 << 24), gr.sym("sk", min=1, max=1 << 24)  # no keys: nothing to make a map of
    tma, store, stsm = gr.atom("tma.load"), gr.atom("tma.store"), gr.atom("stmatrix.x4")
    qk, pv = gr.atom(f"wgmma.m64n{BN}k16.f32.f16"), gr.atom(f"wgmma.m64n{D}k16.f32.f16")
    with gr.Kernel("flash_fwd_sm90") as kernel:
        Q = gr.input("Q", gr.row_major(b_, sq, h_, D), f16, align_bytes=16)
        K = gr.input("K", gr.row_major(b_, sk, hk, D), f16, align_bytes=16)
        V = gr.input("V", gr.row_major(b_, sk, hk, D), f16, align_bytes=16)
        o = gr.output("O", gr.row_major(b_, sq, h_, D), f16, align_bytes=16)
        scale = gr.param("scale_log2", gr.fp32)  # above 0: -inf * scale stays -inf
        tm = gr.ceil_div(sq, BM)
        blocks, wgs = gr.blocks(gr.max(1, gr.min(gr.sm_count(), tm * h_ * b_))), gr.threads(128 * (WG + 1)).tile(128)
        (bid,) = blocks.indices()
        producer, consumers = wgs[0], wgs[1 : WG + 1]

        def shared(name, rows, stages=None):  # rows of 128 bytes: D is cut into panels of 64 columns
            swizzle = gr.swizzle(64, f16)
            return gr.alloc(name, gr.panels(rows, D, f16), f16, gr.SH, stages=stages, swizzle=swizzle)

        sQ, sO, sK, sV = shared("sQ", BM, 2), shared("sO", BM), shared("sK", BN, STAGES), shared("sV", BN, STAGES)
        q_full, q_empty = gr.mbarrier("q_full", 2, arrivals=1), gr.mbarrier("q_empty", 2, arrivals=WG)
        k_full, k_empty = gr.mbarrier("k_full", STAGES, arrivals=1), gr.mbarrier("k_empty", STAGES, arrivals=WG)
        v_full, v_empty = gr.mbarrier("v_full", STAGES, arrivals=1), gr.mbarrier("v_empty", STAGES, arrivals=WG)
        turn = gr.named_barrier("turn", stages=WG, threads=256)
        gr.barrier()

        def tiles():
            return gr.loop("tile", tm * h_ * b_, start=bid, step=blocks.size)

        def place(t):  # the longest rows first; how many tiles of keys they see, at least one, and see whole
            h, b, m = t // tm % h_, t // (tm * h_), tm - 1 - t % tm
            hi, whole = gr.ceil_div(sk, BN), sk // BN
            if causal:
                hi, whole = (
                    gr.min(hi, gr.ceil_div((m + 1) * BM + sk - sq, BN)),
                    gr.min(whole, (m * BM + sk - sq + 1) // BN),
                )
            return b, h, m, gr.max(hi, 1), gr.max(whole, 0)

        with gr.only(producer):
            gr.setmaxnreg(24 if WG == 2 else 32)
            with gr.only(producer.elect()):
                q_put, k_put, v_put = (
                    gr.ring(n, s, phase=1) for n, s in (("q_put", 2), ("k_put", STAGES), ("v_put", STAGES))
                )

                def load(s, g, put, full, empty):
                    empty[put.index].wait(put.phase)
                    full[put.index].arrive(expect=[s])
                    gr.move(s, g, atom=tma, done=full[put.index])  # D / 64 boxes
                    put.advance()

                for t in tiles():
                    b, h, m, hi, _ = place(t)
                    gK, gV = (x[b, :, h * hk // h_, :].tile([BN, None])[:, 0] for x in (K, V))
                    load(sQ[q_put.index], Q[b, :, h, :].tile([BM, None])[m, 0], q_put, q_full, q_empty)
                    for i in gr.loop("i", hi):
                        load(sK[k_put.index], gK[hi - 1 - i], k_put, k_full, k_empty)
                        load(sV[v_put.index], gV[hi - 1 - i], v_put, v_full, v_empty)

        with gr.only(consumers):
            gr.setmaxnreg(240 if WG == 2 else 160)
            w, _ = consumers.indices()
            mine, one = consumers[w], consumers[w].elect()
            q_get, k_get, v_get = gr.ring("q_get", 2), gr.ring("k_get", STAGES), gr.ring("v_get", STAGES)
            S = gr.fragment("S", [64, BN], gr.fp32, qk.c, on=mine)
            P = gr.fragment("P", [64, BN], f16, pv.a, on=mine)
            acc = gr.fragment("acc", [64, D], gr.fp32, pv.c, on=mine)
            out = gr.fragment("out", [64, D], f16, pv.c, on=mine)
            m_, m_old, alpha, mb, total = (S.reduced(1, n) for n in ("m", "m_old", "alpha", "mb", "total"))
            total_lanes = S.reduced(1, "l", lanes=True)  # each lane's share of the row sum

            def scores():
                gr.matmul(
                    S, sQ[q_get.index].tile([64, None])[w, 0], sK[k_get.index].T, on=mine, atom=qk, accumulate=False
                )
                gr.commit(qk)

            def values(more):
                v_full[v_get.index].wait(v_get.phase)
                gr.matmul(acc, P, sV[v_get.index], on=mine, atom=pv, accumulate=more)
                gr.commit(pv)

            def release(get, empty):
                with gr.only(one):
                    empty[get.index].arrive()
                get.advance()

            def softmax(n, masked, m):
                if masked:
                    row, col = S.coords()
                    last = gr.min(m * BM + w * 64 + sk - sq + row, sk - 1) if causal else sk - 1
                    S[:] = gr.where(n * BN + col <= last, S, -gr.inf)
                m_old[:] = m_
                gr.reduce("max", m_, S, axis=1, accumulate=True)
                mb[:] = -scale * (gr.where(m_ == -gr.inf, 0, m_) if masked else m_)
                alpha[:] = gr.exp2(gr.fma(m_old, scale, mb), ftz=True)
                S[:] = gr.exp2(gr.fma(S, scale, mb), ftz=True)
                total_lanes[:] = total_lanes * alpha
                gr.reduce("add", total_lanes, S, axis=1, accumulate=True)

            def step(i, n, masked, m):  # scores of tile n beside values of the tile before; then softmax
                k_full[k_get.index].wait(k_get.phase)
                turn[w].sync()
                gr.fence(qk)
                scores()
                values(more=i > 1)
                turn[(w + 1) % WG].arrive()
                gr.wait(qk, pending=1)  # S is there, acc is not
                release(k_get, k_empty)
                softmax(n, masked, m)
                gr.wait(pv, pending=0)
                release(v_get, v_empty)
                P[:] = S  # C to A layout: the same owners
                acc[:] = acc * alpha

            with gr.if_(w == WG - 1):
                turn[0].arrive()
            for t in tiles():
                b, h, m, hi, whole = place(t)
                for f, v in ((total_lanes, 0), (m_, -gr.inf)):
                    gr.init(f, v)
                q_full[q_get.index].wait(q_get.phase)
                k_full[k_get.index].wait(k_get.phase)
                gr.fence(qk)
                scores()
                gr.wait(qk, pending=0)
                release(k_get, k_empty)
                softmax(hi - 1, True, m)
                P[:] = S
                masked = gr.max(hi - whole, 1)
                for i in gr.loop("i", masked, start=1):
                    step(i, hi - 1 - i, True, m)
                for i in gr.loop("i", hi, start=masked):
                    step(i, hi - 1 - i, False, m)
                release(q_get, q_empty)  # the last scores are done
                gr.fence(pv)
                values(more=hi > 1)
                gr.reduce("add", total, total_lanes, axis=1)
                gr.wait(pv, pending=0)
                release(v_get, v_empty)
                out[:] = acc * gr.where(total == 0, 0, gr.rcp(total))
                mine_O = sO.tile([64, None])[w, 0]
                gr.wait(store, pending=0)  # the tile before has left sO
                gr.barrier(on=mine)
                gr.move(mine_O, out, atom=stsm)
                gr.fence("async.shared")
                gr.barrier(on=mine)
                with gr.only(one):
                    gr.move(o[b, :, h, :].tile([64, None])[m * WG + w, 0], mine_O, atom=store)
                    gr.commit(store)
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


def gemm_split_sm90(bn: int = 64, bk: int = 64, stages: int = 3, parts: int = 4) -> gr.Kernel:
    """C = A B^T where few tiles would leave multiprocessors idle: the blocks of a cluster cut k, and add through their
    shared memory. Block r sums rows r * 64 / parts on of everyone's share."""
    m, n, k = gr.sym("M"), gr.sym("N", multiple_of=8), gr.sym("K", multiple_of=8, min=8)
    load, wgmma = gr.atom("tma.load"), gr.atom(f"wgmma.m64n{bn}k16.f32.f16")
    with gr.Kernel("gemm_split_sm90", means=lambda A, B: A @ B.T) as kernel:
        a = gr.input("A", gr.row_major(m, k), gr.fp16, align_bytes=16)
        b = gr.input("B", gr.row_major(n, k), gr.fp16, align_bytes=16)
        c = gr.output("C", gr.row_major(m, n), gr.fp16, align_bytes=16)
        tm, tn = gr.ceil_div(m, 64), gr.ceil_div(n, bn)
        blocks, threads = gr.blocks(parts * tm * tn, cluster=parts), gr.threads(128)
        tile, r = blocks.indices()
        cluster, bi, bj = blocks[tile], tile % tm, tile // tm
        steps = gr.ceil_div(gr.ceil_div(k, bk), parts)  # of each block; past the end of k the boxes are zeros
        sa = gr.alloc("sA", [64, bk], gr.fp16, gr.SH, stages=stages, swizzle=gr.swizzle(bk, gr.fp16))
        sb = gr.alloc("sB", [bn, bk], gr.fp16, gr.SH, stages=stages, swizzle=gr.swizzle(bk, gr.fp16))
        share = gr.alloc("share", gr.Layout((64, bn), (bn + 8, 1)), gr.fp32, gr.SH)  # padded: no bank conflicts
        full = gr.mbarrier("full", stages, arrivals=1)
        gr.barrier()
        ga, gb = a.tile([64, bk])[bi, :], b.tile([bn, bk])[bj, :]
        acc = gr.fragment("acc", [64, bn], gr.fp32, wgmma.c, on=threads)
        put, get = gr.ring("put", stages), gr.ring("get", stages)

        def start(i: Any) -> None:
            with gr.if_(i < steps):
                with gr.only(threads.elect()):
                    full[put.index].arrive(expect=[sa[put.index], sb[put.index]])
                    gr.move(sa[put.index], ga[r * steps + i], atom=load, done=full[put.index])
                    gr.move(sb[put.index], gb[r * steps + i], atom=load, done=full[put.index])
                put.advance()

        for i in range(stages - 1):
            start(i)
        for i in gr.loop("k", steps):
            full[get.index].wait(get.phase)
            gr.fence(wgmma)
            gr.matmul(acc, sa[get.index], sb[get.index].T, on=threads, atom=wgmma, accumulate=i > 0)
            gr.commit(wgmma)
            get.advance()
            gr.wait(wgmma, pending=1)  # the step before has read its stage, which is filled next
            start(i + stages - 1)
        gr.wait(wgmma, pending=0)
        gr.move(share, acc, atom=gr.atom("st.shared.v2.b32"))
        gr.barrier(on=cluster)

        rows, across = 64 // parts, bn // 4  # a thread sums four neighbours of a row, in every (128 / across)th row
        each = rows * across // 128
        tv = gr.tv(
            gr.Layout((across, 128 // across), (4 * rows, 1)),
            gr.Layout((4, each), (rows, 128 // across)),
        )
        piece, total = (gr.fragment(name, [rows, bn], gr.fp32, tv, on=threads) for name in ("piece", "total"))
        out = gr.fragment("out", [rows, bn], gr.fp16, tv, on=threads)
        for other in range(parts):
            theirs = share.of(other).tile([rows, None])[r, 0]
            gr.move(piece if other else total, theirs, atom=gr.atom("ld.shared::cluster.v4.b32"))
            if other:
                total[:] = total + piece
        gr.barrier(on=cluster)  # nobody ends while others read its share
        out[:] = total
        gr.move(c.tile([rows, bn])[bi * parts + r, bj], out, atom=gr.atom("st.global.v2.b32"))
    return kernel
