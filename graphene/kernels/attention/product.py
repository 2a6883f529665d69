"""The gradient of queries from the gradients of scores that ``attention_keys_gradient_kernel`` has saved."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene.kernels.arguments import size
from graphene.kernels.attention.problem import Attention, AttentionArguments, Seen, SequenceView
from graphene.kernels.attention.reference_saved import product
from graphene.kernels.attention.usual_arguments import arguments
from graphene.kernels.attention.workspace import PANEL, ROWS, saved_scores, saving_blocks, saving_place


@dataclass(frozen=True)
class ProductConfig:
    """Blocks of ``ROWS`` queries go through BN keys at a time; `parts` warps share the columns of a panel.

    BN divides the size of the blocks that saved dS, where keys past the last are zeros up to the end of the block.

    Raises VerifyError KERNEL_ARGUMENT.
    """

    what: Attention
    BN: int = 64
    stages: int = 3
    piece: int = 64
    parts: int = 1

    def __post_init__(self) -> None:
        size("ProductConfig", "parts", self.parts, most=8)
        size("ProductConfig", "the head size", self.what.depth, multiple_of=16 * self.parts, most=256)
        size("ProductConfig", "BN", self.BN, multiple_of=16, most=64)
        size("ProductConfig", "stages", self.stages, least=2)


def attention_queries_product_kernel(c: ProductConfig) -> gr.Kernel:
    """The gradient dQ = scale * dS K.

    Arguments: K, the saved dS, for packed sequences the places where they begin and end, dQ, scale, left, right, the
    number of the first head of keys that is saved, and for packed sequences the longest one's queries. A warp owns a
    panel of queries, in the panel's order.
    """
    means = functools.partial(product, c.what, c.BN)
    with gr.Kernel("attention_queries_product", means, None, arguments(c.what, c.BN, saves=True)) as kernel:
        _Product(c).run()
    return kernel


class _Product:
    """The kernel in the making."""

    def __init__(self, c: ProductConfig) -> None:
        a = c.what
        self.c, self.a = c, a
        args = self.args = AttentionArguments(a)
        self.K = args.tensor(gr.input, "K", args.sk, args.kv_heads)
        self.saved = saved_scores(a, gr.input)
        places = gr.Layout(args.batch + 1)
        self.starts = [gr.input(n, places, gr.i32) for n in ("starts_q", "starts_k")] if a.varlen else []
        self.dQ = args.tensor(gr.inout, "dQ", args.sq, args.heads)
        self.scale = gr.param("scale", gr.fp32)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.first = gr.param("first", gr.u32)
        self.longest = gr.param("longest", gr.i32) if a.varlen else args.sq
        self.threads = gr.threads(32 * (ROWS // PANEL) * c.parts)
        (w, _) = self.threads.tile(32).indices()
        self.warp, self.panel, self.column = self.threads.tile(32)[w], w // c.parts, w % c.parts
        self.mma, self.cp = a.atom("mma"), gr.atom("cp.async.cg.16")

    def run(self) -> None:
        """The kernel."""
        a = self.a
        self.tiles = gr.ceil_div(self.longest, ROWS)
        self.heads = self.saved.levels[0].shape[0] * a.group
        blocks = saving_blocks(self.tiles, self.heads, a)
        numbers = [x for x in (self.scale, self.left, self.right, self.first) if x is not None]
        with gr.spec(self.dQ, [self.K, self.saved, *self.starts, *numbers, self.dQ], on=(blocks, self.threads)):
            self.choose(blocks)
            self.body()

    def choose(self, blocks: Any) -> None:
        """Chooses the queries, the head and the sequence that this block works on."""
        at, head = saving_place(blocks, self.a)
        self.part, self.member = head // self.a.group, head % self.a.group
        pair = self.first + self.part
        gr.exit_if(gr.max(head - self.heads, pair - self.args.batch * self.args.kv_heads) >= 0)
        self.kh, b = pair % self.args.kv_heads, pair // self.args.kv_heads
        self.at = at if self.right is None else self.tiles - 1 - at  # the longest rows first
        self.place = SequenceView(self.args, b, self.starts)
        if self.a.varlen:
            rows = [self.dQ[:, self.kh * self.a.group + self.member, :]]
            self.place.fill_rest(False, rows, (self.at, self.tiles), self.threads)
            gr.exit_if(self.at * ROWS >= self.place.sq)
        seen = Seen(self.place.sq, self.place.sk, self.left, self.right)
        self.lo, self.hi, *_ = seen.key_tiles(self.at * ROWS, ROWS, self.c.BN)

    def body(self) -> None:
        """What a block does."""
        a, c, warp = self.a, self.c, self.warp
        columns = a.depth // c.parts
        piece = math.gcd(columns, c.piece)
        panels = gr.Layout((ROWS // PANEL, c.BN, PANEL), (c.BN * PANEL, PANEL, 1))
        self.sS = gr.alloc("sS", panels, a.dtype, gr.SH, stages=c.stages, swizzle=gr.Swizzle(2, 3, 3))
        self.sK = a.shared("sK", c.BN, c.stages)
        ra = gr.fragment("ra", [PANEL, 16], a.dtype, self.mma.a, on=warp)
        rb = gr.fragment("rb", [piece, 16], a.dtype, self.mma.b, on=warp)
        acc = gr.fragment("acc", [PANEL, columns], gr.fp32, self.mma.c, on=warp)
        transposed = gr.atom("ldmatrix.x4.trans")
        gr.init(acc, 0)
        for i in range(c.stages - 1):
            self.load(self.lo + i)
        for n in gr.loop("n", self.hi, start=self.lo):
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()  # every warp sees the tile, and has read the one before, whose stage is loaded now
            self.load(n + c.stages - 1)
            mine, keys = self.sS[n % c.stages][self.panel, :, :], self.sK[n % c.stages]
            for k in range(c.BN // 16):
                gr.move(ra, mine.tile([16, PANEL])[k, 0].T, atom=transposed)
                for p in range(columns // piece):
                    rows = keys.tile([16, columns])[k, self.column].tile([None, piece])[0, p]
                    gr.move(rb, rows.T, atom=transposed)
                    gr.matmul(acc.tile([None, piece])[0, p], ra, rb.T, atom=self.mma)
        gr.barrier()
        self.store(acc)

    def store(self, acc: gr.Tensor) -> None:
        """Rounds the result and stores it through shared memory, which restores the order of queries."""
        a, h, columns = self.a, self.kh * self.a.group + self.member, self.a.depth // self.c.parts
        r = gr.fragment("r", [PANEL, columns], a.dtype, self.mma.c, on=self.warp)
        r[:] = acc * self.scale
        mine = a.shared("sO", ROWS, over=[self.sK]).tile([PANEL, columns])[self.panel, self.column]
        gr.move(mine.tile([gr.Layout((2, 4, 4), (1, 8, 2)), None])[0, 0], r, atom=gr.atom("st.shared.b32"))
        gr.barrier(on=self.warp)
        to = self.place.queries(self.dQ, h).tile([ROWS, a.depth])[self.at, 0].tile([PANEL, columns])
        to = to[self.panel, self.column]
        gr.move(to, mine, on=self.warp, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))

    def load(self, n: Any) -> None:
        """Starts the copies of a tile of saved gradients and of keys."""
        c, stage = self.c, n % self.c.stages
        per, panels = ROWS // PANEL, self.saved[self.part, self.member, :, :, :]
        with gr.if_(n < self.hi):
            saved = panels.tile([per, c.BN, PANEL])[self.at, n, 0]
            gr.move(self.sS[stage], saved, on=self.threads, atom=self.cp)
            keys = self.place.keys(self.K, self.kh).tile([c.BN, self.a.depth])[n, 0]
            gr.move(self.sK[stage], keys, on=self.threads, atom=self.cp)
        gr.commit(self.cp)
