"""The gradient of attention's queries for sm_90a, from the scores' gradients that the kernel of the keys has saved.

A block has some tiles of 64 queries of a head, one for each consumer, and goes through the keys that they see. One
thread copies tiles of dS^T and of keys by TMA. Tiles that a consumer's queries do not see come from behind the last
key, as zeros, and cost no traffic.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, flags, instance, size
from graphene.kernels.attention.keys_sm90 import saved_tiles
from graphene.kernels.attention.problem import MOST, Attention, AttentionArguments, Seen, SequenceView
from graphene.kernels.attention.reference_tiles import TILE, tiled_product
from graphene.kernels.attention.rings import Order, heads_together
from graphene.kernels.attention.usual_arguments import arguments
from graphene.kernels.tma import SHARED_BYTES, wgmma

__all__ = ["ProductSm90", "attention_queries_product_sm90"]


@dataclass(frozen=True)
class ProductSm90:
    """`consumers` with 64 queries each go through 64 keys a step; `stages` of the ring. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    what: Attention
    consumers: int = 4
    stages: int = 3
    persistent: bool = True

    def __post_init__(self) -> None:
        instance("ProductSm90", "what", self.what, Attention)
        flags("ProductSm90", "persistent", (self.persistent,), 1)
        size("ProductSm90", "consumers", self.consumers, most=6)
        size("ProductSm90", "stages", self.stages, least=2)
        size("ProductSm90", "the head size", self.what.D, multiple_of=8, most=128)
        if self.what.varlen:
            want = "want: no packed sequences"
            _core.fail("KERNEL_ARGUMENT", "ProductSm90: no kernel of this problem", [want], "take ProductConfig")
        if self.shared_bytes > SHARED_BYTES:
            got = [f"want: at most {SHARED_BYTES} bytes", f"got: {self.shared_bytes} bytes"]
            _core.fail("KERNEL_ARGUMENT", "ProductSm90: tiles do not fit into shared memory", got, "take fewer stages")

    @property
    def depth(self) -> int:
        """The head size in shared memory: whole lines of 128 bytes."""
        return -(-self.what.D // 64) * 64

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        step = 2 * TILE * (self.depth + self.consumers * TILE) + 16
        return self.stages * step + 2 * self.consumers * TILE * self.depth


def attention_queries_product_sm90(c: ProductSm90) -> gr.Kernel:
    """The gradient dQ = scale * dS K of the queries whose dS is saved; those of other heads are left alone.

    Arguments: K, saved (``saved_tiles``), dQ, scale, with windows left and right, and the number of the first head of
    keys that is saved.
    """
    means = functools.partial(tiled_product, c.what)
    with gr.Kernel("attention_queries_product_sm90", means, None, arguments(c.what)) as kernel:
        _ProductSm90(c).run()
    return kernel


class _ProductSm90:
    """The kernel in the making."""

    def __init__(self, c: ProductSm90) -> None:
        a = c.what
        self.c, self.a, self.depth = c, a, c.depth
        args = self.args = AttentionArguments(a, fewest_keys=1)
        self.K = args.tensor(gr.input, "K", args.sk, args.kv_heads)
        self.saved = saved_tiles(a, args, gr.input)
        self.dQ = args.tensor(gr.inout, "dQ", args.sq, args.heads)
        self.scale = gr.param("scale", gr.fp32)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.first = gr.param("first", gr.u32)
        self.load, self.store = gr.atom("tma.load"), gr.atom("tma.store")

    def run(self) -> None:
        """The kernel."""
        c, a, args = self.c, self.a, self.args
        longest_last = self.right is not None and self.left is None
        together = heads_together(args.sk, self.depth) if longest_last else None
        self.heads = self.saved.levels[0].shape[0]
        self.order = Order(args.sq, TILE * c.consumers, self.heads, 1, together, c.persistent)
        self.order.blocks()
        wgs = gr.threads(128 * (1 + c.consumers)).tile(128)
        producer, consumers = wgs[0], wgs[1 : 1 + c.consumers]
        swizzle = gr.swizzle(64, a.dtype)
        self.sS = gr.alloc("sS", [c.consumers * TILE, TILE], a.dtype, gr.SH, stages=c.stages, swizzle=swizzle)
        self.sK = gr.alloc("sK", gr.panels(TILE, self.depth, a.dtype), a.dtype, gr.SH, stages=c.stages, swizzle=swizzle)
        rows = gr.panels(c.consumers * TILE, self.depth, a.dtype)
        self.sO = gr.alloc("sO", rows, a.dtype, gr.SH, swizzle=swizzle)
        self.full = gr.mbarrier("full", c.stages, arrivals=1)
        self.empty = gr.mbarrier("empty", c.stages, arrivals=c.consumers)
        gr.barrier()  # the barriers are initialised
        gr.start_kernels()
        gr.wait_kernels()
        with gr.only(producer):
            with gr.only(producer.elect()):
                self.produce()
        with gr.only(consumers):
            self.consume(consumers)

    def tiles(self, role: str) -> Any:
        """The tiles of queries of this block: the number, the head, its number in the work space, the sequence."""
        args, most = self.args, 2**16 - 1
        for _, m, h, _ in self.order.places(role):
            # The last heads first: some of their dS is still in the L2 cache.
            h = gr.scalar(f"{role}_saved", gr.max(gr.min(self.heads - 1 - h, MOST_BLOCKS_YZ), 0), max=most).value
            pair = gr.min(self.first + h // self.a.group, 2**32 - 1)
            pair = gr.scalar(f"{role}_pair", pair, max=2**32 - 1).value
            with gr.if_(pair < args.batch * args.kv_heads):
                kh = gr.scalar(f"{role}_head", pair % args.kv_heads, max=most).value
                b = gr.scalar(f"{role}_batch", gr.min(pair // args.kv_heads, most), max=most).value
                yield m, kh, h, SequenceView(args, b, [])

    def steps(self, role: str, m: Any, rows: int) -> tuple[Any, Any]:
        """The tiles of 64 keys that some of `rows` queries see, from their tile m on: the first one and how many."""
        args, most = self.args, MOST // TILE + 1
        lo, hi, *_ = self.seen.key_tiles(m * rows, rows, TILE)
        hi = gr.scalar(f"{role}_hi", gr.max(gr.min(hi, most), 0), max=most).value
        if self.left is None:
            return 0, hi
        return gr.scalar(f"{role}_lo", gr.max(gr.min(lo, hi), 0), max=most).value, hi

    def window(self) -> None:
        """The bounds of the window, within what 32 bits add."""
        left, right = (
            None if x is None else gr.scalar(f"{n}_", gr.max(-MOST, gr.min(x, MOST)), min=-MOST, max=MOST).value
            for n, x in (("left", self.left), ("right", self.right))
        )
        self.seen = Seen(self.args.sq, self.args.sk, left, right)

    def produce(self) -> None:
        """Loads tiles of dS^T and of keys, as far ahead as there is room."""
        c = self.c
        self.window()
        put = gr.ring("put", c.stages, phase=1)  # 1: the ring starts empty
        tiles, behind = gr.ceil_div(self.args.sq, TILE), 2 * gr.ceil_div(self.args.sk, 2 * TILE)
        for m, kh, h, place in self.tiles("load"):
            lo, hi = self.steps("load", m, TILE * c.consumers)
            own = [self.steps(f"load{w}", m * c.consumers + w, TILE) for w in range(c.consumers)]
            keys = place.keys(self.K, kh).tile([TILE, self.depth])[:, 0]
            for n in gr.loop("load_step", hi, start=lo):
                i = put.index
                self.empty[i].wait(put.phase)
                self.full[i].arrive(expect=[self.sK[i], self.sS[i]])
                gr.move(self.sK[i], keys[n], atom=self.load, done=self.full[i])
                for w, (own_lo, own_hi) in enumerate(own):
                    saved = self.saved[h, gr.min(m * c.consumers + w, tiles - 1), :, :].tile([TILE, TILE])
                    seen = n < own_hi if self.left is None else (n < own_hi) * (n >= own_lo)
                    to = self.sS[i].tile([TILE, TILE])[w, 0]
                    gr.move(to, saved[gr.min(n + behind * (1 - seen), behind), 0], atom=self.load, done=self.full[i])
                put.advance()

    def consume(self, consumers: Any) -> None:
        """Computes 64 queries of each tile."""
        c, a = self.c, self.a
        self.window()
        w, _ = consumers.indices()
        mine, get = consumers[w], gr.ring("get", c.stages)
        free = gr.ring("free", c.stages)
        kd = wgmma(a.dtype, self.depth)
        acc = gr.fragment("acc", [TILE, self.depth], gr.fp32, kd.c, on=mine)
        out = gr.fragment("out", [TILE, self.depth], a.dtype, kd.c, on=mine)

        def release() -> None:
            with gr.only(mine.elect()):
                self.empty[free.index].arrive()
            free.advance()

        for m, kh, h, place in self.tiles("own"):
            lo, hi = self.steps("own", m, TILE * c.consumers)
            gr.init(acc, 0)
            for n in gr.loop("own_step", hi, start=lo):
                i = get.index
                self.full[i].wait(get.phase)
                gr.fence(kd)
                gr.matmul(acc, self.sS[i].tile([TILE, TILE])[w, 0].T, self.sK[i], on=mine, atom=kd)
                gr.commit(kd)
                get.advance()
                gr.wait(kd, pending=1)  # the step before has read its stage
                with gr.if_(n > lo):
                    release()
            gr.wait(kd, pending=0)
            with gr.if_(hi > lo):
                release()
            out[:] = acc * self.scale
            own = self.sO.tile([TILE, None])[w, 0]
            gr.wait(self.store, pending=0)  # the tile before has left
            gr.barrier(on=mine)
            gr.move(own, out, atom=gr.atom("stmatrix.x4"))
            gr.fence("async.shared")
            gr.barrier(on=mine)
            with gr.only(mine.elect()):
                head = kh * a.group + h % a.group
                to = place.queries(self.dQ, head).tile([TILE, self.depth])[m * c.consumers + w, 0]
                gr.move(to, own, atom=self.store)
                gr.commit(self.store)
        gr.wait(self.store, pending=0)
