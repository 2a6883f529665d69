"""Pipelines of asynchronous copies: a ring of stages, and a block GEMM on tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

import graphene as gr
from graphene import _core


def commit(atom: Any) -> None:
    _core.record_sync("commit", None, atom.name, {})


def wait(atom: Any, pending: int) -> None:
    _core.record_sync("wait", None, atom.name, {"pending": pending})


def ring(stages: int = 3, tiles: int | None = None, reverse: bool = True) -> gr.Kernel:
    """B = A, row by row, through a ring of shared-memory stages; each thread reads what another one copied.

    `reverse`: the thread that reads is another one, else a thread reads its own copy (and needs no barrier).
    """
    cp = gr.atom("cp.async.ca.8")
    with gr.Kernel("ring") as kernel:
        rows = gr.sym("R", min=1, max=64) if tiles is None else tiles
        a, b = gr.input("A", [rows, 128], gr.fp16, align_bytes=16), gr.output("B", [rows, 128], gr.fp16, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.alloc("s", [128], gr.fp16, gr.SH, stages=stages)
        r = gr.alloc("r", [4], gr.fp16, gr.RF)

        def load(k: Any) -> None:
            with gr.if_(k < rows):
                gr.move(s[k % stages].tile([4])[t], a[k, :].tile([4])[t], atom=cp)
            commit(cp)

        for k in range(stages - 1):
            load(k)
        with gr.loop("k", rows) as k:
            wait(cp, stages - 2)
            gr.barrier()
            load(k + stages - 1)  # into the stage that was read one step before
            at = 31 - t if reverse else t
            gr.move(r, s[k % stages].tile([4])[at])
            gr.move(b[k, :].tile([4])[at], r)
    return kernel


def ring_arguments(rows: int = 9) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    return [rng.standard_normal((rows, 128)).astype(np.float16), np.zeros((rows, 128), np.float16)]


def gemm(bm: int = 128, bn: int = 128, bk: int = 32, stages: int = 3, fault: str = "") -> gr.Kernel:
    """C = A @ B.T, fp16 with fp32 accumulation: copies `stages - 1` k-tiles ahead, ldmatrix and mma on 2x4 warps."""
    m, n, k = gr.sym("M"), gr.sym("N"), gr.sym("K", multiple_of=8)
    cp, ldsm, mma = gr.atom("cp.async.cg.16"), gr.atom("ldmatrix.x4"), gr.atom("mma.m16n8k16.f32.f16")
    wm_size, wn_size, slices = bm // 2, bn // 4, bk // 16
    with gr.Kernel("pipelined_gemm") as kernel:
        a = gr.input("A", gr.row_major(m, k), gr.fp16, align_bytes=16)
        b = gr.input("B", gr.row_major(n, k), gr.fp16, align_bytes=16)
        c = gr.output("C", gr.row_major(m, n), gr.fp32, align_bytes=16)
        blocks, threads = gr.blocks(gr.ceil_div(m, bm), gr.ceil_div(n, bn)), gr.threads(256)
        warps = threads.tile(32).reshape(0, gr.Layout((2, 4)))
        (pm, pn), ((wm, wn), _) = blocks.indices(), warps.indices()
        warp = warps[wm, wn]
        ga, gb = a.tile([bm, None])[pm, 0], b.tile([bn, None])[pn, 0]
        ka, kb = ga.tile([None, bk])[0, :], gb.tile([None, bk])[0, :]
        sa = gr.alloc("sA", [bm, bk], gr.fp16, gr.SH, stages=stages, swizzle=gr.swizzle(bk, gr.fp16))
        sb = gr.alloc("sB", [bn, bk], gr.fp16, gr.SH, stages=stages, swizzle=gr.swizzle(bk, gr.fp16))
        ra = gr.fragment("ra", [wm_size, 16], gr.fp16, mma.a, on=warp)
        rb = gr.fragment("rb", [wn_size, 16], gr.fp16, mma.b, on=warp)
        acc = gr.fragment("acc", [bm, bn], gr.fp32, mma.c, on=warps)

        def load(i: Any) -> None:
            gr.move(sa[i % stages], ka[i], on=threads, atom=cp)
            gr.move(sb[i % stages], kb[i], on=threads, atom=cp)
            commit(cp)

        gr.init(acc, 0)
        with gr.matmul(acc, ga, gb.T):
            for i in range(stages - 1):
                load(i)
            for i in gr.loop("k", gr.ceil_div(k, bk)):
                wait(cp, stages - 2)
                gr.barrier()
                load(i + stages - 1)
                for j in range(slices):
                    column = j if fault != "a slice twice" else 0
                    gr.move(ra, sa[i % stages].tile([wm_size, 16])[wm, column], atom=ldsm)
                    gr.move(rb, sb[i % stages].tile([wn_size, 16])[wn, column], atom=ldsm)
                    gr.matmul(acc[wm, wn], ra, rb.T, atom=mma)
            wait(cp, 0)
        gr.move(c.tile([bm, bn])[pm, pn], acc, atom=gr.atom("st.global.b32"))
    return kernel
