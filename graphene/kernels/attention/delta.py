"""The numbers that attention's gradient needs for each row: sum(dO * O) minus the gradient of the log-sum-exp."""

from __future__ import annotations

import graphene as gr
from graphene.kernels.attention.problem import Attention, AttentionArguments
from graphene.kernels.attention.reference import delta as of_rows


def attention_delta_kernel(what: Attention, lse: bool = False) -> gr.Kernel:
    """Delta = rowsum(G * O) - gL, in fp32.

    Arguments: G and O, which lie like Q of ``attention_forward_kernel``; with `lse` gL (batch, heads, sq) in fp32;
    delta of the same shape, which is (heads, total) for packed sequences. A row has one lane for each vector of 16
    bytes.
    """
    a, lanes = what, 1 << (what.D // 8 - 1).bit_length()
    with gr.Kernel("attention_delta", of_rows) as kernel:
        args = AttentionArguments(a)
        G, O = (args.tensor(gr.input, n, args.sq, args.heads) for n in "GO")
        shape = (args.heads, args.sq) if a.varlen else (args.batch, args.heads, args.sq)
        gL = gr.input("gL", gr.row_major(*shape), gr.fp32) if lse else None
        delta = gr.output("delta", gr.row_major(*shape), gr.fp32)
        threads = gr.threads(256)
        groups, rows = threads.tile(lanes), 256 // lanes
        grid = gr.blocks(gr.ceil_div(args.sq, rows), args.heads, *(() if a.varlen else (args.batch,)))
        tile, h, *b = grid.indices()
        (group, lane) = groups.indices()
        query = tile * rows + group
        x, y = (gr.alloc(n, [8], a.dtype, gr.RF) for n in "xy")
        products, total = gr.alloc("products", [8], gr.fp32, gr.RF), gr.alloc("total", [], gr.fp32, gr.RF)
        given = [G, O] if gL is None else [G, O, gL]
        with gr.spec(delta, given, on=(grid, threads)):
            for r, t in ((x, G), (y, O)):
                tiles = t[(*b, slice(None), h, slice(None))].tile([1, 8])
                gr.move(r, tiles[query, lane][0, :])
            products[:] = x * y
            gr.reduce("add", total, products, axis=0)
            gr.allreduce("add", total, on=groups[group])
            with gr.if_((lane == 0) * (query < args.sq)):
                if gL is not None:
                    less = gr.alloc("less", [], gr.fp32, gr.RF)
                    gr.move(less, gL[(*b, h, query)])
                    total[:] = total - less
                gr.move(delta[(*b, h, query)], total)
    return kernel
