"""A list of the tiles of keys that a mask lets the queries of a block see, so that no other tile is loaded."""

from __future__ import annotations

import functools
from typing import Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.kernels.attention.problem import MOST, Attention, Extra, Seen
from graphene.kernels.attention.reference import tiles as tiles_of
from graphene.kernels.attention.usual_arguments import arguments

CAPACITY = 4096  # the most tiles of keys


WORD = 16  # keys whose bits stand in one number of a list


def list_elems(sk: Any, BN: int, bits: bool) -> Any:
    """Integers of a list: two counts, the tiles' numbers, and with `bits` those that say which keys are seen."""
    tiles = gr.ceil_div(sk, BN)
    return tiles + 2 + (tiles * (BN // WORD) if bits else 0)


class KeyBits:
    """Which keys of a tile of BN are seen, in registers, from the bits of a list. `held_as`: as 16 scores are."""

    def __init__(self, sk: Any, BN: int, held_as: Any, mine: gr.ThreadTensor) -> None:
        self.tiles = gr.ceil_div(sk, BN)
        self.words = [gr.alloc(f"word_{j}", [], gr.i32, gr.RF) for j in range(BN // WORD)]
        self.key = gr.fragment("key_of_word", [64, WORD], gr.i32, held_as, on=mine)

    def bring(self, row: gr.Tensor, n: Any) -> None:
        """Loads the bits of tile n from a list."""
        for j, word in enumerate(self.words):
            gr.move(word, row[self.tiles + 2 + n * len(self.words) + j])

    def hide(self, S: gr.Tensor) -> None:
        """Rules out the scores of the keys that are not seen."""
        self.key[:] = self.key.coords()[1]
        for j, word in enumerate(self.words):
            part = S.tile([None, WORD])[0, j]
            part[:] = gr.where((word >> self.key) & 1 != 0, part, -gr.inf)


def attention_tiles_kernel(what: Attention, BM: int, BN: int, bits: bool = False) -> gr.Kernel:
    """T[b, h, m] = whole, seen, tiles...: of the BM queries m the tiles of BN keys that some of them see.

    The list begins with the `whole` tiles that all queries see whole. The others follow, `seen` tiles in all. Without
    any, the list names the first tile, so that a kernel may read the first entry without a condition. Arguments: M, the
    mask of ``attention_forward_kernel``, but with batch and heads of its own; T (batch, heads, tiles of queries,
    tiles of keys + 2); left, right. A warp works on one tile at a time. `bits`, for masks of keys without a window
    and BN a multiple of ``WORD``: behind the tiles T has a number for each 16 keys, whose bits say which are seen.
    """
    e, warps = what.mask or Extra(), 16
    if bits and (e.rows or what.left or what.right or BN % WORD):
        got = ["want: a mask of keys without a window", f"got: bits=True, BN={BN}"]
        _core.fail("KERNEL_ARGUMENT", "attention_tiles_kernel: keys have no bits", got, "take bits=False")
    means = functools.partial(tiles_of, what, BM, BN, bits)
    with gr.Kernel("attention_tiles", means, None, arguments(what)) as kernel:
        batch, heads = gr.sym("batch heads", max=MOST_BLOCKS_YZ)
        sq, sk = gr.sym("sq", max=MOST), gr.sym("sk", max=CAPACITY * BN)
        M = gr.input("M", gr.Layout((batch, heads, sq, sk), tuple(gr.sym("Mb Mh Mq Mk"))), gr.u8)
        row_tiles, tiles = gr.ceil_div(sq, BM), gr.ceil_div(sk, BN)
        T = gr.inout("T", gr.row_major(batch, heads, row_tiles, list_elems(sk, BN, bits)), gr.i32)
        left = gr.param("left", gr.i32) if what.left else None
        right = gr.param("right", gr.i32) if what.right else None
        blocks, threads = gr.blocks(row_tiles, heads, batch), gr.threads(32 * warps)
        (m, h, b) = blocks.indices()
        (w, lane) = threads.tile(32).indices()
        flags = gr.alloc("flags", [CAPACITY], gr.i32, gr.SH)
        x = gr.alloc("x", [], gr.u8, gr.RF)
        some, every, flag = (gr.alloc(n, [], gr.i32, gr.RF) for n in ("some", "every", "flag"))
        seen = Seen(sq, sk, left, right)
        gr.start_kernels()  # attention's blocks may start as soon as there is room
        gr.wait_kernels()

        windowed, first = what.left or what.right, m * BM
        last = gr.min(first + BM, sq) - 1

        def look(row: Any, key: Any, top: Any, bottom: Any) -> None:
            """Adds one number of the mask, which the queries from `top` to `bottom` share."""
            gr.move(x, M[b, h, row, key])
            here = all_here = gr.where(x != 0, 1, 0)
            if windowed:
                here = gr.where(seen.some(top, bottom, key), here, 0)
                all_here = gr.where(seen.some(bottom, top, key), all_here, 0)
            some[:] = gr.max(some, here)
            every[:] = gr.min(every, all_here)

        def store_bits(n: Any, i: int, there: Any) -> None:
            """Stores which keys of tile n are seen, for the i-th 32 of them, one a lane, in numbers of 16 bits."""
            flag[:] = gr.where(there, gr.where(x != 0, 1, 0), 0)
            votes = gr.ballot(flag > 0, on=threads.tile(32)[w])
            for j in range(2 * i, min(2 * i + 2, BN // WORD)):
                word = votes & 0xFFFF if j == 2 * i else votes >> WORD
                with gr.if_(lane == 0):
                    flag[:] = gr.cast(word, gr.i32)
                    gr.move(T[b, h, m, tiles + 2 + n * (BN // WORD) + j], flag)

        given = [M, *(x for x in (left, right) if x is not None), T]
        with gr.spec(T, given, on=(blocks, threads)):
            for n in gr.loop("n", tiles, start=w, step=warps):
                gr.init(some, 0)
                gr.init(every, 1)
                for i in range(-(-BN // 32)):
                    key = n * BN + i * 32 + lane
                    with gr.if_(key < gr.min(sk, n * BN + BN)):
                        if e.rows:
                            for row in gr.loop("row", last + 1, start=first, unroll=8):  # eight loads at a time
                                look(row, key, row, row)
                        else:
                            look(first, key, first, last)
                    if bits:
                        store_bits(n, i, key < gr.min(sk, n * BN + BN))
                with gr.if_(n * BN + BN > sk):
                    gr.init(every, 0)
                gr.allreduce("max", some, on=threads.tile(32)[w])
                gr.allreduce("min", every, on=threads.tile(32)[w])
                with gr.if_(lane == 0):
                    flag[:] = some + every
                    gr.move(flags[n], flag)
            gr.barrier()
            with gr.if_((w == 0) * (lane == 0)):
                flag[:] = 0
                gr.move(T[b, h, m, 2], flag)
                count = gr.scalar("count", 0)
                for wanted in (2, 1):
                    for n in gr.loop(f"n{wanted}", tiles):
                        with gr.if_(gr.index(flags[n], 0, 2) == wanted):
                            flag[:] = n
                            gr.move(T[b, h, m, count.value + 2], flag)
                            count.set(count.value + 1)
                    flag[:] = count.value
                    gr.move(T[b, h, m, 2 - wanted], flag)
    return kernel
