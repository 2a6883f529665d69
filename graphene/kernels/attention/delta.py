"""The numbers that attention's gradient needs for each row: sum(dO * O) minus the gradient of the log-sum-exp.

Scores' gradients are P * (dP - delta). Where a probability is close to one, that is a difference of nearly equal
numbers, in which a rounded O would leave its rounding. So O is fp32.
"""

from __future__ import annotations

import graphene as gr
from graphene.kernels.attention.problem import Attention, AttentionArguments
from graphene.kernels.attention.reference import delta as of_rows


def attention_delta_kernel(what: Attention, lse: bool = False) -> gr.Kernel:
    """The number delta = rowsum(G * wide) - gL, in fp32.

    Arguments: G, which lies like Q of ``attention_forward_kernel``; wide, that kernel's O in fp32; with `lse` gL
    (batch, heads, sq) in fp32; delta of the same shape, which is (heads, total) for packed sequences. A row has one
    lane for each vector of 16 bytes of G.
    """
    a, lanes = what, 1 << (what.D // 8 - 1).bit_length()
    with gr.Kernel("attention_delta", of_rows) as kernel:
        args = AttentionArguments(a)
        G = args.tensor(gr.input, "G", args.sq, args.heads)
        front = () if a.varlen else (args.batch,)
        wide = gr.input("wide", gr.row_major(*front, args.sq, args.heads, a.D), gr.fp32, align_bytes=16)
        shape = (args.heads, args.sq) if a.varlen else (args.batch, args.heads, args.sq)
        gL = gr.input("gL", gr.row_major(*shape), gr.fp32) if lse else None
        delta = gr.output("delta", gr.row_major(*shape), gr.fp32)
        threads = gr.threads(256)
        groups, rows = threads.tile(lanes), 256 // lanes
        grid = gr.blocks(gr.ceil_div(args.sq, rows), args.heads, *(() if a.varlen else (args.batch,)))
        tile, h, *b = grid.indices()
        (group, lane) = groups.indices()
        query = tile * rows + group
        x, y = (gr.alloc(n, [8], t, gr.RF) for n, t in (("x", a.dtype), ("y", gr.fp32)))
        products, total = gr.alloc("products", [8], gr.fp32, gr.RF), gr.alloc("total", [], gr.fp32, gr.RF)
        given = [G, wide] if gL is None else [G, wide, gL]
        with gr.spec(delta, given, on=(grid, threads)):
            rows_of = (*b, slice(None), h, slice(None))
            gr.move(x, G[rows_of].tile([1, 8])[query, lane][0, :])
            for i in range(2):
                gr.move(y.tile([4])[i], wide[rows_of].tile([1, 4])[query, 2 * lane + i][0, :])
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
