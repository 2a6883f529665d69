"""A block GEMM with a promise at every level, and what can go wrong at each."""

from __future__ import annotations

import graphene as gr

FAULTS = {  # fault: the code, and the line marker in gemm() of the statement that is to blame
    "the load of A misses a row": "load A",
    "the load of B swaps two columns": "load B",
    "the inner product leaves out the last k": "inner",
    "the inner product counts one k twice": "inner",
    "the product overwrites instead of adding": "inner",
    "the k-tile loads the tile before": "k tile",
    "the k-tile multiplies twice": "k tile",
    "the last k-tile is missing": "root",
    "a column of blocks does nothing": "root",
}


def gemm(fault: str | None = None, mnk: tuple[int, int, int] | None = None) -> gr.Kernel:
    """C += A @ B by 16x16 tiles through shared memory, 64 threads with 2x2 elements each."""
    tile, bk = 16, 8
    with gr.Kernel("promising_gemm") as kernel:
        if mnk is None:
            m, n, k = (gr.sym(s, multiple_of=16, min=16) for s in "MNK")
        else:
            m, n, k = mnk
        a, b = gr.input("A", [m, k], gr.fp32), gr.input("B", [k, n], gr.fp32)
        c = gr.inout("C", [m, n], gr.fp32)
        blocks, threads = gr.blocks(m // tile, n // tile), gr.threads(64)
        (bm, bn), (t,) = blocks.indices(), threads.indices()
        sa = gr.alloc("sA", [tile, bk], gr.fp32, gr.SH)
        sb = gr.alloc("sB", [bk, tile], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        tx, ty = t % 8, t // 8
        with gr.matmul(c, a, b, on=(blocks, threads)):  # root
            ca, cb = a.tile([tile, bk])[bm, :], b.tile([bk, tile])[:, bn]
            cc = c.tile([tile, tile])[bm, bn]
            steps = k // bk - (1 if fault == "the last k-tile is missing" else 0)
            if fault == "a column of blocks does nothing":
                gr.exit_if(bn == n // tile - 1)
            with gr.loop("k", steps) as kk:
                with gr.matmul(cc, ca[kk], cb[kk], on=threads):  # k tile
                    behind = fault == "the k-tile loads the tile before"
                    source = ca[gr.max(kk - 1, 0)] if behind else ca[kk]
                    with gr.move(sa, source, on=threads):  # load A
                        for i in range(2):
                            row = ty + 8 * i
                            from_row = row
                            if fault == "the load of A misses a row":
                                from_row = gr.min(row, 14)
                            gr.move(r, source[from_row, tx])
                            gr.move(sa[row, tx], r)
                    with gr.move(sb, cb[kk], on=threads):  # load B
                        for i in range(2):
                            col = ty + 8 * i
                            to = col ^ 1 if fault == "the load of B swaps two columns" and i == 0 else col
                            gr.move(r, cb[kk][tx, col])
                            gr.move(sb[tx, to], r)
                    gr.barrier()
                    for _ in range(2 if fault == "the k-tile multiplies twice" else 1):
                        with gr.matmul(cc, sa, sb, on=threads):  # inner
                            last = 1 if fault == "the inner product leaves out the last k" else 0
                            for i in range(2):
                                for j in range(2):
                                    out = cc[tx * 2 + i, ty * 2 + j]
                                    first = fault == "the product overwrites instead of adding"
                                    ks = list(range(bk - last))
                                    if fault == "the inner product counts one k twice":
                                        ks.append(3)
                                    for z in ks:
                                        keep = not (first and z == 0)
                                        gr.matmul(out, sa[tx * 2 + i, z], sb[z, ty * 2 + j], accumulate=keep)
                    gr.barrier()
    return kernel


def line_of(marker: str) -> int:
    """The line of this file whose comment is the marker."""
    with open(__file__, encoding="utf-8") as f:
        return next(i for i, line in enumerate(f, 1) if line.rstrip().endswith(f"# {marker}"))


def writes_beside(correct: bool) -> gr.Kernel:
    """A Move that also writes another argument."""
    with gr.Kernel("writes_beside") as kernel:
        a, b, other = gr.input("A", [32], gr.fp32), gr.output("B", [32], gr.fp32), gr.inout("other", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        with gr.move(b, a, on=warp):  # frame
            gr.move(r, a[t])
            gr.move(b[t], r)
            if not correct:
                gr.move(other[t], r)
    return kernel


def operand_changes(correct: bool) -> gr.Kernel:
    """A product whose operand is overwritten half-way."""
    with gr.Kernel("operand_changes") as kernel:
        a, b = gr.input("A", [32], gr.fp32), gr.inout("B", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, a[t])
        gr.move(s[t], r)
        with gr.matmul(b, s, a, on=warp):  # product
            gr.move(r, s[t])
            if not correct:
                gr.init(s[t], 2)
                gr.move(r, s[t])
            gr.matmul(b[t], r, a[t])
    return kernel


def quads_by_hand(fault: str | None = None) -> gr.Kernel:
    """A tile spread over the private registers of a warp, in an order that nobody declared, two times."""
    with gr.Kernel("quads_by_hand") as kernel:
        a, d = gr.input("A", [2, 8, 8], gr.fp16, align_bytes=16), gr.output("D", [2, 8, 8], gr.fp16)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        regs = gr.alloc("regs", [2], gr.fp16, gr.RF)
        with gr.loop("i", 2) as i:
            with gr.move(regs, a[i, :, :], on=warp):  # spread
                for j in range(2):
                    row, col = t // 4, 2 * (t % 4) + j
                    if fault == "another order the second time":
                        row, col = row * (1 - i) + t % 8 * i, col * (1 - i) + (2 * (t // 8) + j) * i
                    if fault == "one half read twice" and j == 1:
                        col = col - 1
                    gr.move(regs[j], a[i, row, col])
            for j in range(2):
                gr.move(d[i, t // 4, 2 * (t % 4) + j], regs[j])
    return kernel


PIPELINE_FAULTS = {
    "the prefetch is one tile off": "tile",
    "a load misses a row": "prefetch",
}


def pipelined(fault: str | None = None) -> gr.Kernel:
    """C += A @ B with two stages: tile i+1 is loaded while tile i is multiplied, outside of the promise for i+1."""
    bk = 8
    with gr.Kernel("pipelined") as kernel:
        k = gr.sym("K", multiple_of=bk, min=bk)
        a, b = gr.input("A", [16, k], gr.fp32), gr.input("B", [k, 16], gr.fp32)
        c = gr.inout("C", [16, 16], gr.fp32)
        gr.blocks(1)
        threads = gr.threads(64)
        (t,) = threads.indices()
        sa = gr.alloc("sA", [16, bk], gr.fp32, gr.SH, stages=2)
        sb = gr.alloc("sB", [bk, 16], gr.fp32, gr.SH, stages=2)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        tx, ty = t % 8, t // 8
        ka, kb = a.tile([16, bk])[0, :], b.tile([bk, 16])[:, 0]

        def load(i: object, source: object) -> None:
            with gr.move(sa[i % 2], ka[source], on=threads):  # prefetch
                for j in range(2):
                    row = ty + 8 * j
                    gr.move(r, ka[source][gr.min(row, 14) if fault == "a load misses a row" else row, tx])
                    gr.move(sa[i % 2][row, tx], r)
            with gr.move(sb[i % 2], kb[source], on=threads):
                for j in range(2):
                    gr.move(r, kb[source][tx, ty + 8 * j])
                    gr.move(sb[i % 2][tx, ty + 8 * j], r)

        load(0, 0)
        with gr.loop("i", k // bk) as i:
            with gr.matmul(c, ka[i], kb[i], on=threads):  # tile
                gr.barrier()
                with gr.if_(i + 1 < k // bk):
                    load(i + 1, i if fault == "the prefetch is one tile off" else i + 1)
                stage = i % 2
                for x in range(2):
                    for y in range(2):
                        for z in range(bk):
                            gr.matmul(c[tx * 2 + x, ty * 2 + y], sa[stage][tx * 2 + x, z], sb[stage][z, ty * 2 + y])
    return kernel
