"""Puts together the partial results of attention whose keys were shared among blocks."""

from __future__ import annotations

import functools
import math

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.kernels.attention.problem import Attention, AttentionArguments
from graphene.kernels.attention.reference import combined
from graphene.kernels.attention.usual_arguments import arguments


def attention_combine_kernel(what: Attention, lse: bool = False) -> gr.Kernel:
    """O from the partial results of ``ForwardConfig(split=True)``, each weighted by its share of the exponentials.

    Arguments: parts (splits, batch, kv_heads, sq * group, D), the numbers that their exponentials are relative to and
    the logarithms of their sums (.., sq * group), O (batch, sq, heads, D), and with `lse` LSE (batch, heads, sq). A
    warp works on one row. The two numbers of a part are compared one by one: their sum would lose digits beside a huge
    bias.
    """
    a, warps = what, 4
    with gr.Kernel("attention_combine", functools.partial(combined, a.group, lse), arguments=arguments(a)) as kernel:
        args = AttentionArguments(a)
        splits = gr.sym("splits", max=MOST_BLOCKS_YZ)
        parts = (splits, args.batch, args.kv_heads, args.sq * a.group)
        P = gr.input("P", gr.row_major(*parts, a.D), gr.fp32, align_bytes=16)
        top, L = (gr.input(n, gr.row_major(*parts), gr.fp32) for n in ("top", "L"))
        O = args.tensor(gr.output, "O", args.sq, args.heads)
        LSE = gr.output("LSE", gr.row_major(args.batch, args.heads, args.sq), gr.fp32) if lse else None
        blocks, threads = (
            gr.blocks(gr.ceil_div(args.sq * a.group, warps), args.kv_heads, args.batch),
            gr.threads(32 * warps),
        )
        gr.wait_kernels()  # the kernel before this one writes the parts
        (tile, kh, b), (w, lane) = blocks.indices(), threads.tile(32).indices()
        outs = [O] if LSE is None else [O, LSE]
        with gr.spec(outs, [P, top, L], on=(blocks, threads)):
            row = tile * warps + w
            with gr.if_(row < args.sq * a.group):
                query, head = row // a.group, kh * a.group + row % a.group
                tops, logs = top[:, b, kh, row], L[:, b, kh, row]
                m, x, y, weight, total = (gr.alloc(n, [], gr.fp32, gr.RF) for n in ("m", "x", "y", "weight", "total"))
                gr.init(m, -gr.inf)
                for s in gr.loop("s", splits, start=lane, step=32):
                    gr.move(x, tops[s])
                    m[:] = gr.max(m, x)
                gr.allreduce("max", m, on=threads.tile(32)[w])
                for column in range(-(-a.D // 128)):
                    at = column * 32 + lane
                    acc, v, r = (
                        gr.alloc(n, [4], t, gr.RF) for n, t in (("acc", gr.fp32), ("v", gr.fp32), ("r", a.dtype))
                    )
                    gr.init(acc, 0)
                    gr.init(total, 0)
                    for s in gr.loop("t", splits, unroll=8):
                        gr.move(x, tops[s])
                        gr.move(y, logs[s])
                        gr.move(v, P[s, b, kh, row, :].tile([4])[at])
                        weight[:] = gr.exp2(x - gr.where(m == -gr.inf, 0, m) + y, ftz=True)
                        total[:] = total + weight
                        acc[:] = gr.fma(v, weight, acc)
                    r[:] = acc * gr.where(total == 0, 0, gr.rcp(total))
                    gr.move(O[b, query, head, :].tile([4])[at], r)
                if LSE is not None:
                    with gr.if_(lane == 0):
                        x[:] = gr.where(total == 0, -gr.inf, (m + gr.log2(total)) * math.log(2))
                        gr.move(LSE[b, head, query], x)
    return kernel
