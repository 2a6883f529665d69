"""Around ``attention_gradient_sm90``: before it rows' numbers, after it queries' gradients from fp32 sums."""

from __future__ import annotations

import functools

import graphene as gr
from graphene.kernels.attention.problem import Attention, AttentionArguments, negative
from graphene.kernels.attention.reference_sums import rounded_sums
from graphene.kernels.attention.reference_tiles import TILE, tiled_rows

__all__ = ["attention_rows_kernel", "attention_sums_kernel"]

THREADS, LINE = 256, 256


def attention_rows_kernel(what: Attention) -> gr.Kernel:
    """The numbers of rows as ``attention_gradient_sm90`` reads them.

    Arguments: delta and LSE (batch, heads, sq) in fp32; rows (batch, heads, tiles, 2 x 64), for each tile of 64 queries
    the negative LSE in units of log2(e), -inf for queries that see no key or do not exist, then delta.
    """
    with gr.Kernel("attention_rows", tiled_rows) as kernel:
        args = AttentionArguments(what)
        delta, LSE = (gr.input(n, gr.row_major(args.batch, args.heads, args.sq), gr.fp32) for n in ("delta", "LSE"))
        tiles = gr.ceil_div(args.sq, TILE)
        rows = gr.output("rows", gr.row_major(args.batch, args.heads, tiles, 2 * TILE), gr.fp32)
        each = THREADS // TILE
        grid, threads = gr.blocks(gr.ceil_div(tiles, each), args.heads, args.batch), gr.threads(THREADS)
        (block, h, b), (t,) = grid.indices(), threads.indices()
        x, y = (gr.alloc(n, [], gr.fp32, gr.RF) for n in "xy")
        with gr.spec(rows, [delta, LSE], on=(grid, threads)):
            gr.start_kernels()
            gr.wait_kernels()
            tile, at = block * each + t // TILE, t % TILE
            query = tile * TILE + at
            gr.init(x, -gr.inf)
            gr.init(y, 0)
            with gr.if_(query < args.sq):
                gr.move(x, LSE[b, h, query])
                gr.move(y, delta[b, h, query])
            x[...] = negative(x)
            with gr.if_(tile < tiles):
                gr.move(rows[b, h, tile, at], x)
                gr.move(rows[b, h, tile, TILE + at], y)
    return kernel


def attention_sums_kernel(what: Attention, parts: int = 1) -> gr.Kernel:
    """The gradient dQ = scale * sums, rounded.

    Arguments: sums (batch, heads, parts x tiles, D / 4, 256) in fp32, in the order of registers (``in_tiles``); dQ,
    which lies like Q; scale. A thread has 8 neighbours of a row.
    """
    with gr.Kernel("attention_sums", functools.partial(rounded_sums, parts)) as kernel:
        args, lanes = AttentionArguments(what), what.D // 8
        tiles = gr.ceil_div(args.sq, TILE)
        shape = (args.batch, args.heads, parts * tiles, -(-what.D // 64) * 16, LINE)
        sums = gr.input("sums", gr.row_major(*shape), gr.fp32, align_bytes=16)
        dQ = args.tensor(gr.output, "dQ", args.sq, args.heads)
        scale = gr.param("scale", gr.fp32)
        grid, threads = gr.blocks(tiles, args.heads, args.batch), gr.threads(THREADS)
        (tile, h, b), (t,) = grid.indices(), threads.indices()
        x, more = (gr.alloc(n, [8], gr.fp32, gr.RF) for n in ("x", "more"))
        y = gr.alloc("y", [8], what.dtype, gr.RF)
        with gr.spec(dQ, [sums, scale], on=(grid, threads)):
            gr.wait_kernels()
            for i in gr.loop("i", TILE * lanes, start=t, step=THREADS):
                row, lane = i // lanes, i % lanes
                at = lane * TILE + row % 8 + row // 16 * 8 + row // 8 % 2 * 32
                for part in range(parts):
                    place = sums[b, h, part * tiles + tile, at // (LINE // 8), :].tile([4])
                    for j in range(2):
                        gr.move((more if part else x).tile([4])[j], place[at % (LINE // 8) * 2 + j])
                    if part:
                        x[:] = x + more
                y[:] = x * scale
                gr.move(dQ[b, :, h, :].tile([1, 8])[tile * TILE + row, lane][0, :], y)
    return kernel
