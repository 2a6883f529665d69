"""Attention forward for sm_90a: a TMA producer, and consumers of 64 queries each that take turns at the tensor cores.

A block goes through (batch, head, tile of queries). A consumer starts the scores of a tile of keys and, behind them,
the values of the tile before; hands its turn on; and computes its exponentials beside the products of the others. The
order of waits is that of FlashAttention-3 (Shah et al., 2024).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.kernels.attention.key_tiles import WORD, KeyBits, list_elems
from graphene.kernels.attention.online_softmax import OnlineSoftmax
from graphene.kernels.attention.problem import (
    MOST,
    UP_FP8,
    AttentionArguments,
    Scores,
    Seen,
    SequenceView,
)  # fmt: skip
from graphene.kernels.attention.reference import forward
from graphene.kernels.attention.reference_fp8 import forward_fp8
from graphene.kernels.attention.rings import (
    LongestMembers,
    Notes,
    Order,
    OwnCopies,
    PackedTiles,
    TileRing,
    UnevenOrder,
    heads_together,
    staged,
    stand_by,
)
from graphene.kernels.attention.sinks import Sink
from graphene.kernels.attention.sm90_config import ForwardSm90
from graphene.kernels.attention.sm90_scores import ScoresOfTiles
from graphene.kernels.attention.usual_arguments import arguments
from graphene.kernels.tma import MOST_TILES, wgmma, wgmma_fp8

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ForwardSm90", "attention_forward_sm90"]


def attention_forward_sm90(c: ForwardSm90) -> gr.Kernel:
    """O = softmax(scale * Q K^T) V over the keys that each query sees; a query that sees none gives zeros.

    The arguments are those of ``attention_forward_kernel`` for the same problem: scale_log2 is above 0 unless it is
    `scaled`. There is at least one key.
    """
    a, means = c.what, functools.partial(forward if c.what.fp8 is None else forward_fp8, c.what, c.lse, c.training)
    with gr.Kernel("attention_sm90", means, None, arguments(a, c.BN, c.BM, far=True)) as kernel:
        _Hopper(c).run()
    return kernel


class _Hopper(ScoresOfTiles):
    """One kernel in the making."""

    def __init__(self, c: ForwardSm90) -> None:
        self.c, self.a = c, (a := c.what)
        args = AttentionArguments(a, fewest_keys=1)
        self.args = args
        self.Q = args.tensor(gr.input, "Q", args.sq, args.heads)
        self.K = args.tensor(gr.input, "K", args.sk, args.kv_heads)
        values = args.tensor(gr.input, "V", args.sk, args.kv_heads) if a.fp8 is None else None
        self.V = args.transposed_values(gr.input) if values is None else values
        self.scales = None if a.fp8 is None else args.scales()
        places = gr.Layout(args.batch + 1)
        self.starts = [gr.input(n, places, gr.i32) for n in ("starts_q", "starts_k")] if a.varlen else []
        self.M, self.B = args.extra("M", a.mask), args.extra("B", a.bias)
        if self.M is not None:
            row_tiles = gr.ceil_div(args.sq, c.BM) if self.c.differ else 1
            shape = (args.batch, args.heads, row_tiles, list_elems(args.sk, c.BN, c.bits))
            self.T = gr.input("T", gr.Layout(shape, (*gr.sym("Tb Th Tm"), 1)), gr.i32)
        self.sinks = gr.input("sinks", gr.Layout(args.heads), gr.fp32) if a.sinks else None
        self.O = args.tensor(gr.output, "O", args.sq, args.heads)
        self.LSE = self.wide = self.rest = None
        front = () if a.varlen else (args.batch,)
        if c.lse:
            self.LSE = gr.output("LSE", gr.row_major(*front, args.heads, args.sq), gr.fp32)
        if c.training:
            self.wide = gr.output("wide", gr.row_major(*front, args.sq, args.heads, a.D), gr.fp32, align_bytes=16)
            if a.bias is not None:
                self.rest = gr.output("rest", gr.row_major(*front, args.heads, args.sq), gr.fp32)
        self.plain = Scores(a)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.longest = gr.max(gr.min(gr.param("longest", gr.i32), MOST), 1) if a.varlen else args.sq

    def window(self) -> None:
        """The bounds of the window, within what 32 bits add."""
        bounds = {"left": self.left, "right": self.right}
        left, right = (
            None if x is None else gr.scalar(f"{n}_", gr.max(-MOST, gr.min(x, MOST)), min=-MOST, max=MOST).value
            for n, x in bounds.items()
        )
        self.seen = Seen(self.args.sq, self.args.sk, left, right)

    def run(self) -> None:
        """The kernel."""
        c, a, args = self.c, self.a, self.args
        together = heads_together(args.sk, a.depth) if self.right is not None and not a.varlen else None
        if c.uneven:
            self.order: Order = UnevenOrder(args.sq, c.consumers, args.heads, args.batch)
        else:
            self.order = Order(self.longest, c.BM, args.heads, args.batch, together, c.persistent)
        if self.starts:
            self.packed = PackedTiles(args, self.starts, c.BM, c.longest_first)
            self.packed.blocks()
        else:
            self.order.blocks()
        if c.persistent:
            threads = gr.threads(128 * (1 + c.consumers))
            producer: gr.ThreadTensor | None = threads[0:128]
            consumers = threads[128 : 128 * (1 + c.consumers)].tile(128)
        else:
            threads = gr.threads(128 * c.consumers + 32 * c.copier)
            producer = threads[128 * c.consumers : threads.size] if c.copier else None
            consumers = threads[0 : 128 * c.consumers].tile(128)
        self.q = TileRing(a, "Q", c.BM, c.queries, c.consumers, not c.copier)
        self.k, self.v = (TileRing(a, n, c.BN, c.stages, c.consumers, not c.copier) for n in "KV")
        self.sO = staged(a, "sO", c.BM) if c.apart else None
        for ring in (self.q, self.k, self.v):
            ring.barriers()
        takes_turns = c.turns and c.consumers > 1 and c.persistent
        self.turn = gr.named_barrier("turn", stages=c.consumers, threads=256) if takes_turns else None
        tiles = MOST // c.BN + 1
        limits = {"hi": (1, tiles), "count": (1, tiles), "behind" if self.M is None else "whole": (0, tiles)}
        limits |= {"before": (-1, tiles)} if a.left and self.M is None else {}
        limits |= {"active": (0, c.consumers)} if c.uneven else {}
        limits |= {"rounds": (0, MOST_TILES)} if c.few_registers else {}
        limits |= {"m": (0, MOST // (64 if c.uneven else c.BM) + 1), "h": (0, MOST_BLOCKS_YZ), "b": (0, MOST_BLOCKS_YZ)}
        self.notes = Notes(limits, c.noted, used=c.persistent)
        self.zeroed = gr.named_barrier("zeroed", stages=1, threads=128 * c.consumers) if a.varlen else None
        gr.start_kernels()  # the next kernel's blocks may start as soon as there is room
        if not c.longest_first and not a.varlen:
            gr.barrier()  # the barriers are initialised
            gr.wait_kernels()
        else:
            gr.wait_kernels()
            if a.varlen:
                self.packed.find(threads)
            else:
                self.members = LongestMembers(self.T, args.batch, self.order, threads)
            gr.barrier()
        if not c.persistent:
            self.choose(threads)
        if producer is not None:
            with gr.only(producer):
                if c.moves_registers:
                    gr.setmaxnreg(c.registers[0])
                with gr.only(producer.elect()):
                    self.produce()
        with gr.only(consumers):
            if c.moves_registers:
                gr.setmaxnreg(c.registers[1])
            self.consume(consumers)

    def choose(self, threads: gr.ThreadTensor) -> None:
        """Chooses the only tile of this block."""
        self.window()
        if self.starts:
            m, h, b = self.packed.place()
            place, (due, share) = self.sequence(b), self.packed.of_last()
            place.fill_rest(False, self.rows_around(h), share, threads, due)
            gr.exit_if(m * self.c.BM >= place.sq)
        else:
            ((_, m, h, b),) = self.order.places("tile")
            b = self.members.place() if self.c.longest_first else b
            place = self.sequence(b)
        self.tile = 0, m, h, b, place

    def steps(self, m: Any, h: Any, b: Any) -> dict[str, Any]:
        """The tiles of keys that queries m see, at least one, from the last to the first: the number behind the last,
        how many there are, how many come behind those that are seen whole, and the number of the last one of those.
        Of a list, whose first entries are seen whole: how many entries it has, and how many of those there are.
        """

        def scalar(name: str, value: Any) -> Any:
            least, most = self.notes.limits[name]
            return gr.scalar(name, gr.max(gr.min(value, most), least), min=least, max=most).value

        if self.M is not None:
            row = self.listed(m, h, b)
            whole, some = (gr.index(row[i], 0, MOST) for i in (0, 1))
            hi = scalar("hi", some)
            return {"hi": hi, "count": hi, "whole": scalar("whole", whole)}
        lo, hi, whole_lo, whole_hi = self.seen.key_tiles(m * self.c.BM, self.c.BM, self.c.BN)
        hi = scalar("hi", hi)
        count = scalar("count", hi - gr.min(lo, hi - 1))
        made = {"hi": hi, "count": count, "behind": scalar("behind", hi - whole_hi)}
        return made if self.left is None else made | {"before": scalar("before", hi - 1 - whole_lo)}

    def entry(self, hi: Any, i: Any) -> Any:
        """What says which tile of keys step i takes: its number, or where the list names it."""
        return i if self.M is not None else hi - 1 - i

    def produce(self) -> None:
        """Loads the tiles of queries, keys and values, as far ahead as there is room."""
        c, a = self.c, self.a
        if c.persistent:
            self.window()
        rings = self.q, self.k, self.v
        for ring in rings:
            ring.producer()
        self.notes.begin("write")
        for r, m, h, b, place in self.places("load"):
            steps = self.steps(m, h, b)
            if c.few_registers:
                steps["rounds"] = self.order.due.value
            hi, count = steps["hi"], steps["count"]
            gQ = self.lines(self.Q, h, place, False)
            if isinstance(self.order, UnevenOrder):
                steps["active"] = self.order.active(m)
                first = gr.min(m * 64, self.args.sq)
                gQ = gQ.window(first, self.args.sq - first).tile([c.BM, a.depth])[0, 0]
            else:
                gQ = gQ.tile([c.BM, a.depth])[m, 0]
            gK, gV = self.tiles_of_keys(h // a.group, place, b)
            self.q.load(gQ, functools.partial(self.notes.write, r, {**steps, "m": m, "h": h, "b": b}))
            for i in gr.loop("i", count):
                n = self.number(self.entry(hi, i), m, h, b)
                self.k.load(gK[n])
                self.v.load(gV[n])

    def places(self, name: str) -> Iterator[tuple[Any, Any, Any, Any, SequenceView]]:
        """The tiles of this block: the number, the tile of rows, the head, the member of the batch, the sequence."""
        if not self.c.persistent:
            yield self.tile
            return
        for r, m, h, b in self.order.places(name):
            yield r, m, h, b, self.sequence(b)

    def sequence(self, b: Any) -> SequenceView:
        """A sequence, and what is seen of it."""
        place = SequenceView(self.args, b, self.starts)
        if self.starts:
            place.sq, place.sk = (
                gr.scalar(n, gr.min(x, MOST), max=MOST).value for n, x in (("sq", place.sq), ("sk", place.sk))
            )
            self.seen = Seen(place.sq, place.sk, self.seen.left, self.seen.right)
        return place

    def lines(self, t: gr.Tensor, head: Any, place: SequenceView, of_keys: bool) -> gr.Tensor:
        """(seq, D) of a tensor. Boxes of a packed sequence's last rows have those of the next ones, too."""
        if not self.starts:
            return place.keys(t, head) if of_keys else place.queries(t, head)
        start = place.k_start if of_keys else place.q_start
        start = gr.min(start, t.shape[0])
        return t[:, head, :].window(start, t.shape[0] - start)

    def tiles_of_keys(self, head: Any, place: SequenceView, b: Any) -> list[Any]:
        """The tiles of keys and of values of a head."""
        c, depth = self.c, self.a.depth
        made = [self.lines(t, head, place, True) for t in ((self.K, self.V) if self.scales is None else (self.K,))]
        tiles = [t.tile([c.BN, depth])[:, 0] for t in made]
        return tiles if self.scales is None else [*tiles, self.V[b, head, :, :].tile([depth, c.BN])[0, :]]

    def consume(self, consumers: Any) -> None:
        """Computes 64 queries of each tile."""
        c = self.c
        if c.persistent:
            self.window()
        self.w, _ = consumers.indices()
        self.mine = consumers[self.w]
        for ring in (self.k,) if c.few_registers else (self.q, self.k, self.v):
            ring.consumer(self.mine)
        if c.few_registers:
            self.v.behind(self.k)
        self.allocate()
        if self.turn is not None:
            with gr.if_(self.w == c.consumers - 1):
                self.turn[0].arrive()
        self.notes.begin("read")
        if not c.persistent:
            _, m, h, b, place = self.tile
            self.m_tile, self.h, self.b, self.place = m, h, b, place
            self.compute(0, self.steps(m, h, b))
        else:
            for r in gr.loop("tile", self.order.rounds("tile")[0]):
                if c.few_registers:
                    self.q.tile_of_round(r, self.mine)
                self.compute(r, None)
                if c.few_registers:  # the number takes none in the meantime
                    self.order.due.set(next(self.notes.read(r, "rounds")))
        gr.wait(gr.atom("tma.store"), pending=0)

    def rows_around(self, h: Any) -> list[gr.Tensor]:
        """A head's rows of the results."""
        rows = [t[:, h, :] for t in (self.O, self.wide) if t is not None]
        return rows if self.LSE is None else [*rows, self.LSE[h, :]]

    def compute(self, r: Any, steps: dict[str, Any] | None) -> None:
        """Computes 64 queries of a tile; r: its number among the block's; steps: where they are not noted."""
        if self.c.uneven:
            self.q.wait()
            (active,) = self.notes.read(r, "active")
            with gr.if_(self.w < active):
                self.attend(r, steps)
            with gr.else_():
                known = self.c.few_registers and self.M is None
                count = self.steps(0, 0, 0)["count"] if known else next(self.notes.read(r, "count"))
                stand_by((self.q, self.k, self.v), count, self.turn, self.w)
        else:
            self.attend(r, steps)

    def attend(self, r: Any, steps: dict[str, Any] | None) -> None:
        """Computes 64 queries of a tile."""
        c = self.c
        gr.init(self.acc, 0)
        self.online.begin()
        if not c.uneven and c.copier:
            self.q.wait()
        if steps is None:
            names = [n for n in ("hi", "count", "behind", "whole", "before") if n in self.notes.limits]
            if c.differ or self.M is not None or not c.few_registers:
                steps = dict(zip(names, self.notes.read(r, *names), strict=True))
            else:
                steps = self.steps(0, 0, 0)  # those of all rows, which take less registers than what is read
            if self.c.differ:
                (self.m_tile,) = self.notes.read(r, "m")
        if c.q_in_registers:
            gr.move(self.queries, self.q.tile().tile([64, None])[self.w, 0], atom=gr.atom("ldmatrix.x4"))
        hi, before = steps["hi"], steps.get("before")

        def outside(i: Any) -> Any:  # of the tiles that are seen whole
            if self.M is not None:
                return i >= steps["whole"]
            behind = steps["behind"]
            return i < behind if before is None else (i < behind) + (i > before) > 0

        if self.scales is not None:
            self.scale_of(r)
        if not c.copier:
            self.begin_copies(hi, steps["count"])
        self.bring_mask(r, 0, outside(0))
        self.k.wait()
        gr.fence(self.qk)
        self.scores()
        gr.wait(self.qk, pending=0)
        self.release(self.k, 0, beside=False)
        if self.starts:
            self.clear_values(hi)
        self.change(r, self.entry(hi, 0))
        self.hide(r, self.entry(hi, 0), outside(0))
        self.softmax(first=True)
        self.narrow()
        for i in gr.loop("i", steps["count"], start=1):
            self.step(r, i, self.entry(hi, i), outside(i))
        if c.copier and (c.apart or not c.persistent):
            self.q.release()  # the last scores are done
        gr.fence(self.pv)
        self.values()
        if self.notes.used:
            self.m_tile, self.h, b = self.notes.read(r, "m", "h", "b")
            self.place = self.sequence(b)
        self.finish()

    def begin_copies(self, hi: Any, count: Any) -> None:
        """Starts the first copies, where the block has no producer."""
        depth, place = self.a.depth, self.place
        queries = self.lines(self.Q, self.h, place, False).tile([self.c.BM, depth])[self.m_tile, 0]
        of_keys = self.tiles_of_keys(self.h // self.a.group, place, self.b)
        at = self.m_tile, self.h, self.b
        self.copies = OwnCopies(
            (self.k, self.v), of_keys, count, lambda i: self.number(gr.max(self.entry(hi, i), 0), *at)
        )
        self.copies.begin(self.q, queries, self.w == 0)

    def release(self, ring: TileRing, i: Any, beside: bool = True) -> None:
        """Gives back the place of step i's tile of keys or values. `beside`: values' products are or were under way."""
        if self.c.copier:
            ring.release()
        else:
            self.copies.release(ring, i, beside)

    def clear_values(self, hi: Any) -> None:
        """Replaces the values behind a packed sequence's last key by zeros: whatever lies there, its weight is 0."""
        c, vectors = self.c, self.a.depth // 8
        first = self.place.sk - (hi - 1) * c.BN
        assert self.zeroed is not None
        with gr.if_(first < c.BN):
            self.v.wait()
            zeros = gr.alloc("zeros", [8], self.a.dtype, gr.RF)
            gr.init(zeros, 0)
            lines, (t,) = self.v.tile().tile([1, 8]), self.mine.indices()
            start = gr.max(first, 0) * vectors + self.w * 128 + t
            for i in gr.loop("cleared", c.BN * vectors, start=start, step=128 * c.consumers):
                gr.move(lines[i // vectors, i % vectors][0, :], zeros, atom=gr.atom("st.shared.v4.b32"))
            gr.fence("async.shared")  # what threads stored becomes visible to the products
            self.zeroed[0].sync()

    def allocate(self) -> None:
        """Registers."""
        c, a, mine = self.c, self.a, self.mine
        if a.fp8 is None:
            self.qk, self.pv = wgmma(a.dtype, c.BN), wgmma(a.dtype, a.depth)
        else:
            self.qk, self.pv = wgmma_fp8(a.fp8[0], a.fp8[1], c.BN), wgmma_fp8(gr.fp8e4m3, a.fp8[2], a.depth)
            self.factors = [gr.alloc(n, [], gr.fp32, gr.RF) for n in ("factor", "of_values", "brought")]
        self.S = gr.fragment("S", [64, c.BN], gr.fp32, self.qk.c, on=mine)
        self.P = gr.fragment("P", [64, c.BN], a.dtype if a.fp8 is None else gr.fp8e4m3, self.pv.a, on=mine)
        self.acc = gr.fragment("acc", [64, a.depth], gr.fp32, self.pv.c, on=mine)
        if c.q_in_registers:
            self.queries = gr.fragment("q", [64, a.depth], a.dtype, self.qk.a, on=mine)
        self.allowed: list[gr.Tensor] = []
        if a.mask is not None and not (a.mask.rows or c.persistent or c.bits):  # a large tile leaves no registers
            piece = gr.fragment("mask", [64, 16], gr.u8, wgmma(a.dtype, 16).c, on=mine)
            self.allowed = [piece.reduced(0, f"mask_keys_{j}", gr.u8) for j in range(c.BN // 16)]
        self.bits = KeyBits(self.args.sk, c.BN, wgmma(a.dtype, WORD).c, mine) if c.bits else None
        self.online = OnlineSoftmax(self.plain, self.S, c.lazy, c.training, UP_FP8 if a.fp8 else 0)
        self.grows = gr.alloc("grows", [], gr.i32, gr.RF)
        warps = mine.tile(32)
        self.warp_at = warps.indices()[0]
        self.warp = warps[self.warp_at]

    def narrow(self) -> None:
        """P = S, C layout to A layout: the same owners, so only a conversion.

        Of fp8 a thread has four neighbours of a row in A, and two of them in C. So P has keys in another order: of 16
        keys those at 8 b + 2 c + l stand at 4 c + 2 b + l. The values come in the same order.
        """
        if self.scales is None:
            self.P[:] = self.S
        else:
            sizes, steps = (2, 2, 4, self.c.BN // 16), (64, 64 * 8, 64 * 2, 64 * 16)
            self.P[:] = self.S.reshape(1, gr.Layout((64, sizes), (1, steps)))

    def scale_of(self, r: Any) -> None:
        """Loads the scales of the tile's head: that of scores, with those of queries and keys, and that of values."""
        assert self.scales is not None
        _, h, b = self.whereabouts(r)
        (factor, of_values, brought), (q, k, v) = self.factors, self.scales
        gr.move(factor, q[b, h])
        gr.move(brought, k[b, h // self.a.group])
        gr.move(of_values, v[b, h // self.a.group])
        factor[:] = self.plain.given * (factor * brought)
        self.plain.scale = factor

    def scores(self) -> None:
        """Starts S = Q K^T of the tile of keys that is read next."""
        q = self.queries if self.c.q_in_registers else self.q.tile().tile([64, None])[self.w, 0]
        gr.matmul(self.S, q, self.k.tile().T, on=self.mine, atom=self.qk, accumulate=False)
        gr.commit(self.qk)

    def values(self) -> None:
        """Starts acc += P V of the tile of values that is read next."""
        self.v.wait()
        values = self.v.tile() if self.scales is None else self.v.tile().T  # of fp8 lines run along the keys
        gr.matmul(self.acc, self.P, values, on=self.mine, atom=self.pv)
        gr.commit(self.pv)

    def step(self, tile: Any, i: Any, n: Any, outside: Any) -> None:
        """Scores of a tile beside the values of the tile before; then exponentials beside the others' products.

        `i`: the step's number; `n`: the entry of its tile.
        """
        self.bring_mask(tile, n, outside)
        self.k.wait()
        if self.turn is not None:
            self.turn[self.w].sync()
        gr.fence(self.qk)
        self.scores()
        self.values()
        if self.turn is not None:
            self.turn[(self.w + 1) % self.c.consumers].arrive()
        gr.wait(self.qk, pending=1)  # S is there, acc is not
        self.release(self.k, i)
        self.change(tile, n)
        if self.c.differ or self.M is not None:  # else only the last tile has keys that are not there
            self.hide(tile, n, outside)
        self.softmax()
        if self.c.late:
            # The compiler would wait before the exponentials. It cannot, since they decide where it waits.
            with gr.if_(gr.index(self.grows, 0, 1) > 0):
                gr.wait(self.pv, pending=0)
                self.acc[:] = self.acc * self.online.alpha
            with gr.else_():
                gr.wait(self.pv, pending=0)
        else:
            gr.wait(self.pv, pending=0)
        self.release(self.v, i - 1)
        self.narrow()
        if self.c.lazy and not self.c.late:
            with gr.if_(gr.index(self.grows, 0, 1) > 0):
                self.acc[:] = self.acc * self.online.alpha
        elif not self.c.lazy:
            self.acc[:] = self.acc * self.online.alpha

    def softmax(self, first: bool = False) -> None:
        """S = exp2(S - m), where m is each row's maximum so far; `grows` says whether the accumulator is to shrink."""
        online = self.online
        online.weigh(self.S, first)
        if self.c.lazy and not first:
            if self.c.late:
                online.over[:] = gr.where(online.l.values[0] + online.l.values[1] >= 0, online.over, 1)
            gr.reduce("max", self.grows, online.over, axis=0, on=self.warp)  # warps branch as one beside products

    def finish(self) -> None:
        """O = acc / l, and LSE."""
        c, a, store, w = self.c, self.a, gr.atom("tma.store"), self.w
        total = self.S.reduced(1, "total")
        gr.reduce("add", total, self.online.l, axis=1)
        rows = self.online if self.sinks is None else Sink(self.online, self.S, self.sinks[self.h])
        if self.LSE is not None:
            lse = self.S.reduced(1, "lse")
            lse[:] = rows.lse(total)
            self.store_rows(self.place.per_query(self.LSE, self.h), lse)
            if self.rest is not None:  # the gradient's kernels begin with the same sum, which is exact where it matters
                lse[:] = rows.rest(total, lse)
                self.store_rows(self.place.per_query(self.rest, self.h), lse)
        if c.training:
            total[:] = self.online.multiplied(self.S, total)
        if isinstance(rows, Sink):
            total[:] = total + rows.share()
        gr.wait(self.pv, pending=0)
        if c.copier:
            self.v.release()
        out = gr.fragment("out", [64, a.depth], a.dtype, self.pv.c, on=self.mine)
        if self.wide is None:
            scale = gr.where(total == 0, 0, gr.rcp(total))
            out[:] = self.acc * (scale if self.scales is None else scale * self.factors[1])
        else:
            self.acc[:] = self.acc * gr.where(total == 0, 0, gr.rcp(total))
            gr.move(self.rows(self.wide), self.acc, atom=gr.atom("st.global.v2.b32"))
            out[:] = self.acc
        place = (self.q.tile() if self.sO is None else self.sO).tile([64, None])[w, 0]
        if self.sO is not None:
            gr.wait(store, pending=0)  # the tile before has left
        # Of several blocks on a multiprocessor, none may have all of its barriers with a number.
        by, each = (self.mine, 64) if c.persistent else (self.warp, 16)
        gr.barrier(on=by)
        gr.move(place, out, atom=gr.atom("stmatrix.x4"))
        gr.fence("async.shared")  # what threads stored becomes visible to the copy
        gr.barrier(on=by)
        if not c.persistent:
            place = place.tile([16, None])[self.warp_at, 0]
        if self.starts:
            self.store_packed(place, by, each)
            return
        with gr.only(by.elect()):
            gr.move(self.rows(self.O, each), place, atom=store)
            gr.commit(store)
            if self.sO is None and c.persistent:
                gr.wait(store, pending=0)
        if self.sO is None and c.persistent:
            self.q.release()

    def at(self, each: int) -> Any:
        """The number of the consumer's rows, or, of 16 rows, of the warp's."""
        at = self.unit(self.m_tile)
        return at if each == 64 else at * 4 + self.warp_at

    def rows(self, t: gr.Tensor, each: int = 64) -> gr.Tensor:
        """The consumer's rows of a tensor like Q, or 16 of them, the warp's."""
        return self.place.queries(t, self.h).tile([each, self.a.depth])[self.at(each), 0]

    def store_packed(self, held: gr.Tensor, by: Any, each: int) -> None:
        """Stores rows of a packed sequence; by threads, where the box would reach into the next one."""
        store, a, at = gr.atom("tma.store"), self.a, self.at(each)
        with gr.if_(at * each + each <= self.place.sq):
            with gr.only(by.elect()):
                gr.move(self.lines(self.O, self.h, self.place, False).tile([each, a.depth])[at, 0], held, atom=store)
                gr.commit(store)
        with gr.else_():
            by_threads = gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")
            gr.move(self.rows(self.O, each), held, on=by, atom=by_threads)

    def store_rows(self, rows: gr.Tensor, x: gr.Tensor) -> None:
        """Stores a number of each of the consumer's rows."""
        rows = rows.tile([64])[self.at(64)]
        gr.move(rows.reshape(0, gr.Layout((64, 1))), x, atom=gr.atom("st.global.b32"))
