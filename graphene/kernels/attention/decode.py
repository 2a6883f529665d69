"""Attention of few queries for sm_90a: blocks of a cluster share the keys, and meet in their shared memory.

A warp of a block copies keys and values by TMA into a deep ring of stages. Each of the others has some of the keys of
a stage, and a result of its own. These results meet first in the block, then in the cluster (flash decoding, without
a work space and a second kernel).
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import flags, instance, size
from graphene.kernels.attention.forward import Forward, ForwardConfig, KeyTiles
from graphene.kernels.attention.problem import MOST, Attention, Seen, refuse_sinks
from graphene.kernels.attention.reference import forward, parts, parts_read
from graphene.kernels.attention.rings import staged
from graphene.kernels.attention.usual_arguments import arguments
from graphene.kernels.tma import SHARED_BYTES

MOST_CLUSTER = 8
ALIGNED_BYTES = 2048  # of the two gaps that align swizzled tiles


@dataclass(frozen=True)
class DecodeConfig:
    """The problem, and how it is computed.

    `BM`: rows of a block, which are the queries of all heads that share keys; 8, or a multiple of 16. `BN`: keys of a
    stage. `WARPS`: as many of them share the keys of a stage; each 16 rows have as many warps of their own. `stages`:
    of keys and values in shared memory. `cluster`: the blocks that share the keys of a row and put their results
    together. `lse`, `split`: as in ``ForwardConfig``; a part is then the result of a cluster. `page`: how many keys a
    page has, for ``attention_paged_kernel``. Raises VerifyError KERNEL_ARGUMENT.
    """

    what: Attention
    BM: int = 8
    BN: int = 64
    WARPS: int = 4
    stages: int = 6
    cluster: int = 1
    lse: bool = False
    split: bool = False
    page: int | None = None

    def __post_init__(self) -> None:
        instance("DecodeConfig", "what", self.what, Attention)
        for name in ("lse", "split"):
            flags("DecodeConfig", name, (getattr(self, name),), 1)
        if self.BM != 8 and (not isinstance(self.BM, int) or self.BM < 16 or self.BM % 16):
            want = "want: 8, or a multiple of 16"
            _core.fail("KERNEL_ARGUMENT", "DecodeConfig: BM does not fit", [want, f"got: {self.BM!r}"], "take 8 or 16")
        size("DecodeConfig", "WARPS", self.WARPS, most=31 // self.row_warps)
        size("DecodeConfig", "BN", self.BN, multiple_of=16 * self.WARPS, most=256)
        size("DecodeConfig", "stages", self.stages, least=2)
        size("DecodeConfig", "cluster", self.cluster, most=MOST_CLUSTER)
        refuse_sinks("DecodeConfig", self.what, "take ForwardSm90, or multiply O by sigmoid(LSE - sink)")
        if self.page is not None:
            size("DecodeConfig", "page", self.page, multiple_of=8)
        if self.shared_bytes > SHARED_BYTES:
            _core.fail("KERNEL_ARGUMENT", "DecodeConfig: stages do not fit into shared memory",
                       [f"want: at most {SHARED_BYTES} bytes", f"got: {self.shared_bytes}"],
                       "take fewer stages, keys or rows")  # fmt: skip
        if self.what.varlen:
            _core.fail("KERNEL_ARGUMENT", "DecodeConfig: no packed sequences", ["want: varlen=False"])

    @property
    def keys_of_page(self) -> int:
        """How many keys a page has, of a cache in pages."""
        assert self.page is not None
        return self.page

    @property
    def row_warps(self) -> int:
        """How many warps have rows of their own."""
        return max(self.BM // 16, 1)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: stages, or the sums of warps in their place, queries, and what is beside them."""
        depth, rows = self.what.depth, 16 * self.row_warps
        stages, sums = 4 * self.stages * self.BN * depth, 4 * self.WARPS * self.BM * (depth + 8)
        boxes = 0 if self.page is None else self.BN // math.gcd(self.page, self.BN)
        beside = 8 * self.WARPS * self.BM + 8 * self.BM + 16 * self.stages + 4 * (self.stages + 1) * boxes
        return max(stages, sums) + 2 * rows * depth + beside + ALIGNED_BYTES

    @property
    def of_a_warp(self) -> ForwardConfig:
        """What the warps that have the same keys of a stage do."""
        return ForwardConfig(
            self.what, 16 * self.row_warps, self.BN // self.WARPS, self.row_warps, q_in_registers=self.what.depth <= 64,
            lse=self.lse, packed=True, split=self.split,
        )  # fmt: skip


def attention_decode_kernel(c: DecodeConfig) -> gr.Kernel:
    """The same as ``attention_forward_kernel`` with `packed`, for sm_90a, of a key at least; so are the arguments.

    scale_log2 is above 0 unless `what` is ``scaled``.
    """
    instance("attention_decode_kernel", "c", c, DecodeConfig)
    if c.page is not None:
        _core.fail("KERNEL_ARGUMENT", "attention_decode_kernel: keys are not in pages", ["want: page=None",
                   f"got: page={c.page}"], "take attention_paged_kernel")  # fmt: skip
    a = c.what
    means, read = functools.partial(forward, a, c.lse, False), None
    if c.split:
        means, read = functools.partial(parts, a), functools.partial(parts_read, a.group)
    with gr.Kernel("attention_decode", means, read, arguments(a, c.BN, c.BM, far=True, packed=True)) as kernel:
        Decode(c).run()
    return kernel


class Decode(Forward):
    """One kernel in the making."""

    def __init__(self, d: DecodeConfig) -> None:
        self.d = d
        super().__init__(d.of_a_warp)
        self.extra_load = "ld.global"  # which waits for kernels before this one
        self.block_rows, self.step_keys, self.tma = d.BM, d.BN, gr.atom("tma.load")

    def declare_threads(self) -> None:
        """Warps that compute, and one that copies."""
        d = self.d
        self.computing = d.WARPS * d.row_warps
        self.threads = gr.threads(32 * (self.computing + 1))
        warps = self.threads.tile(32)
        self.consumers, self.producer = warps[0 : self.computing], warps[self.computing]

    def blocks(self) -> Any:
        """The grid: the blocks that share the keys of rows are neighbours."""
        c, d, args = self.c, self.d, self.args
        self.row_tiles = gr.ceil_div(args.sq * self.a.group, d.BM)
        clusters = self.row_tiles * self.splits if c.split else self.row_tiles
        if d.cluster == 1:
            return gr.blocks(clusters, args.kv_heads, args.batch)
        return gr.blocks(d.cluster * clusters, args.kv_heads, args.batch, cluster=d.cluster)

    def choose(self, blocks: Any) -> None:
        """Chooses the rows, the head, the sequence and the part of the keys that this block works on."""
        d, args = self.d, self.args
        self.cluster, self.rank = None, 0
        if d.cluster == 1:
            bm, h, b = blocks.indices()
        else:
            (bm, h, b), (self.rank, _, _) = blocks.indices()
            self.cluster = blocks[bm, h, b]
        self.part = 0
        if self.c.split:
            self.part, bm = bm % self.splits, bm // self.splits
        self.share = (self.part * d.cluster + self.rank, d.cluster * (self.splits if self.c.split else 1))
        self.bm, self.b, self.kh, self.h = bm, b, h, h

    def place_keys(self) -> None:
        """Keys and values of the block's sequence and head."""
        self.sq, self.sk = self.args.sq, self.args.sk
        self.gK, self.gV = (t[self.b, :, self.kh, :].tile([self.d.BN, self.a.depth])[:, 0] for t in (self.K, self.V))
        self.seen = Seen(self.sq, self.sk, self.left, self.right)

    def allocate_keys(self) -> tuple[gr.Tensor, gr.Tensor]:
        """Does nothing: `allocate_shared` has declared the ring of stages."""
        return self.sK, self.sV

    def allocate_shared(self) -> None:
        """The ring of stages, in lines that TMA writes, and where results of warps and blocks meet."""
        d, a = self.d, self.a
        self.sK, self.sV = (staged(a, n, d.BN, d.stages) for n in ("sK", "sV"))
        places = gr.Layout((d.WARPS, d.BM, a.depth), (d.BM * (a.depth + 8), a.depth + 8, 1))  # no bank conflicts
        self.sums = gr.alloc("sums", places, gr.fp32, gr.SH, over=[self.sK, self.sV])
        self.warp_tops, self.warp_totals = (gr.alloc(n, [d.WARPS, d.BM], gr.fp32, gr.SH) for n in ("tops", "totals"))
        if self.cluster is not None:
            self.share_tops, self.share_totals = (
                gr.alloc(n, [d.BM], gr.fp32, gr.SH) for n in ("share_tops", "share_totals")
            )

    def tiles_of(self, i: Any) -> tuple[gr.Tensor, gr.Tensor]:
        """The warp's own keys and values of the stage."""
        at = self.get.index
        sK, sV = (t[at].tile([self.chunk, None])[self.of_keys, 0] for t in (self.sK, self.sV))
        return sK, sV

    def run(self) -> None:
        """The kernel."""
        d, blocks = self.d, self.blocks()
        self.choose(blocks)
        self.full = gr.mbarrier("full", d.stages, arrivals=1)
        self.empty = gr.mbarrier("empty", d.stages, arrivals=self.computing)
        (t,) = self.threads.indices()
        self.allocate_shared()
        gr.barrier(on=self.cluster)
        gr.start_kernels()
        gr.wait_kernels()
        self.place_keys()
        self.steps = self.in_scalars(self.range())
        with gr.only(self.producer):
            self.run_producer()
        with gr.only(self.consumers):
            self.consume()
        gr.barrier()
        self.meet(t)

    def in_scalars(self, steps: Any) -> KeyTiles:
        """The same values as scalars, computed once: expressions of places in a table would grow too large."""

        def computed(name: str, value: Any) -> Any:
            return value if isinstance(value, int) else gr.scalar(name, value, min=0, max=2 * MOST).value

        names = ("count", "whole", "first", "first_whole")
        same = steps.first_whole is steps.first
        made = {n: computed(f"steps_{n}", getattr(steps, n)) for n in names[: 3 if same else 4]}
        return KeyTiles(*(made.get(n, made["first"]) for n in names))

    def run_producer(self) -> None:
        """Copies keys and values."""
        with gr.only(self.producer.elect()):
            self.produce()

    def produce(self) -> None:
        """What the thread that copies does."""
        put = gr.ring("put", self.d.stages, phase=1)  # 1: the ring starts empty
        for i in gr.loop("i", self.steps.count):
            s, n = put.index, self.steps.number(i)
            self.empty[s].wait(put.phase)
            self.full[s].arrive(expect=[self.sK[s], self.sV[s]])
            gr.move(self.sK[s], self.gK[n], atom=self.tma, done=self.full[s])
            gr.move(self.sV[s], self.gV[n], atom=self.tma, done=self.full[s])
            put.advance()

    def consume(self) -> None:
        """Goes through the keys of a warp, and leaves its results in shared memory."""
        d = self.d
        w, lane = self.consumers.indices()
        self.warp, self.w, self.of_keys = self.consumers[w], w % d.row_warps, w // d.row_warps
        self.allocate()
        gr.init(self.acc, 0)
        self.online.begin()
        self.copy_queries(w * 32 + lane)
        gr.barrier(on=self.consumers)
        if self.c.q_in_registers:
            gr.move(self.q, self.sQ.tile([self.WM, None])[self.w, 0], atom=self.ldsm)
        self.get = gr.ring("get", d.stages)
        for i in gr.loop("i", self.steps.count):
            self.step(i)
        self.leave()

    def copy_queries(self, t: Any) -> None:
        """Copies the rows (query, head of the group), 16 bytes at a time."""
        a, c = self.a, self.c
        columns, threads = a.depth // 8, 32 * self.computing
        outside = self.Q[self.b, :, :, :].tile([1, 1, 8])
        for i in range(-(-c.BM * columns // threads)):
            at = i * threads + t
            with gr.if_(at < c.BM * columns):
                row, column = at // columns, at % columns
                place = self.bm * self.d.BM + row
                there = outside[place // a.group, self.kh * a.group + place % a.group, column][0, 0, :]
                gr.move(self.sQ.tile([1, 8])[row, column][0, :], there, atom=self.cp)
        gr.commit(self.cp)
        gr.wait(self.cp, pending=0)

    def step(self, i: Any, masked: bool | None = None) -> None:
        """A warp's keys of one stage."""
        S, self.at = self.S[0], i
        self.full[self.get.index].wait(self.get.phase)
        self.multiply_queries(S, i, 0)
        with self.where_masked():
            self.adjust(S, self.steps.number(i) * self.d.WARPS + self.of_keys)
        self.online_softmax(S)
        self.multiply_values(i, 0)
        gr.fence("async.shared")
        gr.barrier(on=self.warp)  # all lanes have read the stage
        with gr.only(self.warp.elect()):
            self.empty[self.get.index].arrive()
        self.get.advance()

    def where_masked(self) -> AbstractContextManager[object]:
        """A branch that is taken for steps of which some query does not see all keys."""
        whole = self.steps.whole
        return nullcontext() if isinstance(whole, int) and whole == 0 else gr.if_(self.at >= whole)

    def leave(self) -> None:
        """Leaves a warp's result: sums, what they are relative to, and their total."""
        total = self.S[0].reduced(1, "total")
        gr.reduce("add", total, self.online.l, axis=1)
        self.online.m[:] = self.online.m * self.scores.factor
        gr.barrier(on=self.consumers)  # all have read the last stages
        mine = self.sums[self.of_keys, :, :].tile([self.WM, None])[self.w, 0]
        gr.move(mine, self.acc, atom=gr.atom("st.shared.v2.b32"))
        for t, x in ((self.warp_tops, self.online.m), (self.warp_totals, total)):
            rows = t[self.of_keys, :].tile([self.WM])[self.w]
            gr.move(rows.reshape(0, gr.Layout((self.WM, 1))), x, atom=gr.atom("st.shared.b32"))

    def meet(self, t: Any) -> None:
        """Puts the results of warps together, then those of the blocks of the cluster, four columns at a time."""
        d, a = self.d, self.a
        names = ("x", "y", "top", "weight", "sum")
        self.x, self.y, self.top, self.weight, self.sum = (gr.alloc(f"meeting_{n}", [], gr.fp32, gr.RF) for n in names)
        self.v, self.out = (gr.alloc(f"meeting_{n}", [4], gr.fp32, gr.RF) for n in ("v", "out"))
        columns = a.D // 4

        def each(count: int, first: Any, act: Any) -> None:
            for i in range(-(-count // self.threads.size)):
                at = i * self.threads.size + t
                with gr.if_(at < count):
                    with gr.if_((first + at) // columns < d.BM):
                        act((first + at) // columns, (first + at) % columns)

        def of_warps(row: Any, column: Any) -> None:
            self.add([(self.warp_tops[w, row], self.warp_totals[w, row], self.sums[w, row, :].tile([4])[column])
                      for w in range(d.WARPS)])  # fmt: skip
            if self.cluster is None:
                self.result(row, column)
                return
            gr.move(self.sums[0, row, :].tile([4])[column], self.out)  # to where no other thread reads
            with gr.if_(column == 0):
                gr.move(self.share_tops[row], self.top)
                gr.move(self.share_totals[row], self.sum)

        def of_blocks(row: Any, column: Any) -> None:
            shares = [[t.of(r) for t in (self.share_tops, self.share_totals, self.sums)] for r in range(d.cluster)]
            self.add([(top[row], total[row], sums[0, row, :].tile([4])[column]) for top, total, sums in shares])
            self.result(row, column)

        each(d.BM * columns, 0, of_warps)
        if self.cluster is not None:
            gr.barrier(on=self.cluster)
            of_a_block = -(-d.BM * columns // d.cluster)
            each(of_a_block, self.rank * of_a_block, of_blocks)
            gr.barrier(on=self.cluster)  # no block ends while others read its share

    def add(self, parts: list[tuple[gr.Tensor, gr.Tensor, gr.Tensor]]) -> None:
        """Adds up parts, each relative to a number of its own. A part without keys has -inf and a total of 0."""
        gr.init(self.top, -gr.inf)
        for top, _, _ in parts:
            gr.move(self.x, top)
            self.top[...] = gr.max(self.top, self.x)
        gr.init(self.out, 0)
        gr.init(self.sum, 0)
        for top, total, sums in parts:
            gr.move(self.x, top)
            gr.move(self.y, total)
            gr.move(self.v, sums)
            self.weight[...] = gr.exp2(self.x - gr.where(self.top == -gr.inf, 0, self.top), ftz=True)
            self.sum[...] = gr.fma(self.y, self.weight, self.sum)
            self.out[:] = gr.fma(self.v, self.weight, self.out)

    def result(self, row: Any, column: Any) -> None:
        """Stores four columns of a row, and with the first ones what else belongs to the row."""
        a, c, kh = self.a, self.c, self.kh
        place = self.bm * self.d.BM + row
        with gr.if_(place < self.args.sq * a.group):
            query, head = place // a.group, kh * a.group + place % a.group
            self.out[:] = self.out * gr.where(self.sum == 0, 0, gr.rcp(self.sum))
            if c.split:
                assert self.LSE is not None
                gr.move(self.O[self.part, self.b, kh, place, :].tile([4])[column], self.out)
                with gr.if_(column == 0):
                    gr.move(self.tops[self.part, self.b, kh, place], self.top)
                    self.x[...] = gr.log2(self.sum)
                    gr.move(self.LSE[self.part, self.b, kh, place], self.x)
                return
            r = gr.alloc("rounded", [4], a.dtype, gr.RF)
            r[:] = self.out
            gr.move(self.O[self.b, query, head, :].tile([4])[column], r)
            if self.LSE is not None:
                with gr.if_(column == 0):
                    self.x[...] = gr.where(self.sum == 0, -gr.inf, (self.top + gr.log2(self.sum)) * math.log(2))
                    gr.move(self.LSE[self.b, head, query], self.x)
