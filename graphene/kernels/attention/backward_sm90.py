"""Attention's gradients for sm_90a: one kernel over tiles of keys, by TMA and wgmma. Equal calls give equal bits.

With P the probabilities, computed again from the log-sum-exp, dP = dO V^T and delta = rowsum(dO * O):

    dV = P^T dO,   dS = P * (dP - delta),   dK = scale * dS^T Q,   dQ = scale * dS K

A block goes through tiles of keys, and with each through the queries that see it. Two consumers have 64 keys each.
They compute the transposed scores S^T = K Q^T, so that P^T lies in registers like the left operand of the next product.
dS^T goes through shared memory, because for dQ both need all keys of the tile; each computes half of dQ's columns.

A tile's share of dQ is added to fp32 sums in global memory by the copy engine. Several blocks may share the keys of a
head, each with sums of its own, so the order of the sums is always the same.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, instance, size
from graphene.kernels.attention.problem import (
    MOST,
    Attention,
    AttentionArguments,
    Scores,
    Seen,
    SequenceView,
    refuse_sinks,
)
from graphene.kernels.attention.reference_sums import read_sums, sums_gradient
from graphene.kernels.attention.usual_arguments import arguments
from graphene.kernels.tma import MOST_TILES, SHARED_BYTES, wgmma

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["QUERIES", "GradientSm90", "attention_gradient_sm90"]

QUERIES, KEYS = 64, 128  # queries of a step, and keys of a tile
REGISTERS = {64: (40, 232), 128: (24, 240)}  # of the producer's threads and of the consumers', by the head size
LINE = 256  # fp32 elements that a copy has side by side
PIECE = 16  # queries whose numbers are in registers at once


@dataclass(frozen=True)
class GradientSm90:
    """The problem, and how it is computed.

    `keys`: stages of the ring of tiles of keys and values; `stages`: of the rings of queries, dO, dS and shares of dQ,
    which go round together. `parts` blocks share the keys of a head, with sums of their own. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    what: Attention
    keys: int = 1
    stages: int = 2
    parts: int = 1

    def __post_init__(self) -> None:
        a = self.what
        instance("GradientSm90", "what", a, Attention)
        size("GradientSm90", "keys", self.keys)
        size("GradientSm90", "the head size", a.D, multiple_of=8, most=128)
        size("GradientSm90", "stages", self.stages, least=2)
        size("GradientSm90", "parts", self.parts, most=16)
        refuse_sinks("GradientSm90", a, "pass an LSE that has the sinks in it")
        if a.mask is not None or a.prescaled or a.varlen or a.left:
            want = "want: no mask, bias, softcap, score or left window, a positive scale, no packed sequences"
            _core.fail("KERNEL_ARGUMENT", "GradientSm90: no kernel of this problem", [want], "take BackwardConfig")
        if self.shared_bytes > SHARED_BYTES:
            got = [f"want: at most {SHARED_BYTES} bytes", f"got: {self.shared_bytes}"]
            _core.fail("KERNEL_ARGUMENT", "GradientSm90: tiles do not fit into shared memory", got, "take fewer stages")

    @property
    def depth(self) -> int:
        """The head size in shared memory: whole lines of 128 bytes."""
        return -(-self.what.D // 64) * 64

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        step = 8 * QUERIES * self.depth + 2 * KEYS * QUERIES + 8 * QUERIES + 48
        return self.keys * (4 * KEYS * self.depth + 24) + self.stages * step + 64


def attention_gradient_sm90(c: GradientSm90) -> gr.Kernel:
    """The gradients dK, dV, and dQ / scale as parts of `sums`, which may hold anything before.

    Arguments: G = dO, which lies like Q of ``attention_forward_kernel``; rows (batch, heads, tiles of queries,
    2 ``QUERIES``) in fp32, which ``attention_rows_kernel`` makes; Q, K, V of that kernel; dK and dV, which lie like K;
    sums (``attention_rows_kernel``); scale_log2, scale and, with a window, right. There is at least one query and one
    key.
    """
    means = functools.partial(sums_gradient, c.what)
    read = functools.partial(read_sums, c.parts)
    with gr.Kernel("attention_gradient_sm90", means, read, arguments(c.what)) as kernel:
        _GradientSm90(c).run()
    return kernel


class _GradientSm90:
    """The kernel in the making."""

    def __init__(self, c: GradientSm90) -> None:
        a = c.what
        self.c, self.a, self.depth = c, a, c.depth
        args = self.args = AttentionArguments(a, fewest_keys=1)
        self.G = args.tensor(gr.input, "G", args.sq, args.heads)
        shape = (args.batch, args.heads, gr.ceil_div(args.sq, QUERIES), 2 * QUERIES)
        self.rows = gr.input("rows", gr.row_major(*shape), gr.fp32, align_bytes=16)
        self.Q = args.tensor(gr.input, "Q", args.sq, args.heads)
        self.K, self.V = (args.tensor(gr.input, n, args.sk, args.kv_heads) for n in "KV")
        self.out = [args.tensor(gr.output, n, args.sk, args.kv_heads) for n in ("dK", "dV")]
        self.tiles = shape[2]
        tiles = gr.row_major(*shape[:2], c.parts * self.tiles, self.depth * QUERIES // LINE, LINE)
        self.sums = gr.inout("sums", tiles, gr.fp32, align_bytes=16)
        self.scale = Scores(a).scale
        self.unscaled = gr.param("scale", gr.fp32)
        self.right = gr.param("right", gr.i32) if a.right else None
        self.load, self.store = gr.atom("tma.load"), gr.atom("tma.store")

    def run(self) -> None:
        """The kernel."""
        c, args = self.c, self.args
        self.units = gr.min(args.batch * args.kv_heads * c.parts, MOST_TILES)
        self.workers = gr.max(1, gr.min(gr.sm_count(), self.units))
        (self.block,) = gr.blocks(self.workers).indices()
        self.threads = gr.threads(384)
        wgs = self.threads.tile(128)
        producer, consumers = wgs[0], wgs[1:3]
        self.allocate()
        (t,) = self.threads.indices()
        written = gr.alloc("written", [], gr.i32, gr.RF)
        with gr.if_(t < 2):  # consumers read their numbers anew each step, so no addresses of keys stay in registers
            written[...] = t
            gr.move(self.consumer_numbers[t], written)
        gr.barrier()  # the barriers are initialised
        gr.start_kernels()
        gr.wait_kernels()
        with gr.only(producer):
            gr.setmaxnreg(REGISTERS[self.depth][0])
            warps = producer.tile(32)
            with gr.only(warps[0].elect()):
                self.produce()
            with gr.only(warps[1].elect()):
                self.add()
        with gr.only(consumers):
            gr.setmaxnreg(REGISTERS[self.depth][1])
            self.consume(consumers)

    def allocate(self) -> None:
        """Shared memory and barriers."""
        c, a = self.c, self.a

        def tiles(name: str, layout: Any, dtype: Any, stages: int, line: int) -> gr.Tensor:
            return gr.alloc(name, layout, dtype, gr.SH, stages=stages, swizzle=gr.swizzle(line, dtype))

        of_keys, of_queries = (gr.panels(n, self.depth, a.dtype) for n in (KEYS, QUERIES))
        line = self.depth // 2  # each consumer multiplies by its lines of K
        lines = gr.Layout((KEYS, (line, 2)), (line, (1, KEYS * line)))
        self.sK = tiles("sK", lines, a.dtype, c.keys, line)
        self.sV = tiles("sV", of_keys, a.dtype, c.keys, 64)
        self.sQ = tiles("sQ", of_queries, a.dtype, c.stages, 64)
        self.sG = tiles("sG", of_queries, a.dtype, c.stages, 64)
        self.sS = tiles("sS", [KEYS, QUERIES], a.dtype, c.stages, 64)
        self.sD = gr.alloc("sD", [QUERIES * self.depth], gr.fp32, gr.SH, stages=c.stages)
        self.consumer_numbers = gr.alloc("consumer_numbers", [2], gr.i32, gr.SH)
        self.sR = gr.alloc("sR", [2 * QUERIES], gr.fp32, gr.SH, stages=c.stages)
        self.full, self.empty = {}, {}
        for name, stages, full, empty in (
            ("keys", c.keys, 1, 1), ("queries", c.stages, 1, 2), ("grads", c.stages, 1, 2), ("sums", c.stages, 2, 1),
        ):  # fmt: skip
            self.full[name] = gr.mbarrier(f"{name}_full", stages, arrivals=full)
            self.empty[name] = gr.mbarrier(f"{name}_empty", stages, arrivals=empty)
        self.made = gr.mbarrier("made", c.keys, arrivals=2)  # dK and dV lie where K and V were
        self.stages = {"keys": c.keys, "steps": c.stages}

    def ring(self, of: str, role: str, phase: int = 0) -> Any:
        """A role's position in a ring."""
        return gr.ring(f"{of}_{role}", self.stages[of], phase=phase)

    def window(self) -> Seen:
        """Which keys queries see, with the bound within what 32 bits add."""
        right = self.right
        if right is not None:
            right = gr.scalar("right_", gr.max(-MOST, gr.min(right, MOST)), min=-MOST, max=MOST).value
        return Seen(self.args.sq, self.args.sk, None, right)

    def passes(self, role: str) -> Any:
        """For each unit and tile of keys of this block: what `Pass` says; the tile may be beyond the last one."""
        c, args = self.c, self.args
        seen, count = self.window(), gr.ceil_div(args.sk, KEYS)
        for unit in gr.loop(f"{role}_unit", self.units, start=self.block, step=self.workers):
            part, head = (0, unit) if c.parts == 1 else (unit % c.parts, unit // c.parts)
            kh = gr.scalar(f"{role}_head", head % args.kv_heads, max=MOST_BLOCKS_YZ).value
            b = gr.scalar(f"{role}_batch", gr.min(head // args.kv_heads, MOST_BLOCKS_YZ), max=MOST_BLOCKS_YZ).value
            for p in gr.loop(f"{role}_pass", gr.max(1, gr.ceil_div(count, c.parts))):
                yield Pass(self, role, seen, b, kh, part, p, count)

    def produce(self) -> None:
        """Loads tiles of keys and values, of queries, their numbers and dO, as far ahead as there is room."""
        keys, steps = self.ring("keys", "put", 1), self.ring("steps", "put", 1)

        def copies(name: str, ring: Any, *pairs: Any) -> None:
            i = ring.index
            self.empty[name][i].wait(ring.phase)
            self.full[name][i].arrive(expect=[s[i] for s, _ in pairs])
            for s, source in pairs:
                gr.move(s[i], source, atom=self.load, done=self.full[name][i])

        for at in self.passes("load"):
            with at.exists():
                K, V = (at.place.keys(t, at.kh).tile([KEYS, self.depth])[at.n, 0] for t in (self.K, self.V))
                copies("keys", keys, (self.sK, K), (self.sV, V))
                keys.advance()
                for j in gr.loop("load_step", at.steps):
                    h, m = at.step(j)
                    Q, G = (at.place.queries(t, h).tile([QUERIES, self.depth])[m, 0] for t in (self.Q, self.G))
                    rows = self.rows[at.b, h, m, :]
                    copies("grads", steps, (self.sG, G))  # its place is free first
                    copies("queries", steps, (self.sQ, Q), (self.sR, rows))
                    steps.advance()

    def add(self) -> None:
        """Adds the consumers' shares of dQ up, and stores dK and dV."""
        sums, made, store = self.ring("steps", "add"), self.ring("keys", "made"), self.store

        def share(at: Pass, h: Any, m: Any, first: Any) -> None:
            i = sums.index
            self.full["sums"][i].wait(sums.phase)
            lines = self.sD[i].reshape(0, gr.row_major(QUERIES * self.depth // LINE, LINE))
            to = self.sums[at.b, h, at.part * self.tiles + m, :, :]
            with gr.if_(first > 0):
                gr.move(to, lines, atom=store)
            with gr.else_():
                gr.move(to, lines, atom=store, combine="add")
            gr.commit(store)
            gr.wait(store, pending=0)
            self.empty["sums"][i].arrive()
            sums.advance()

        def gradients(at: Pass) -> None:
            i = made.index
            self.made[i].wait(made.phase)
            for s, t in zip((self.sK, self.sV), self.out, strict=True):
                gr.move(at.place.keys(t, at.kh).tile([KEYS, self.depth])[at.n, 0], s[i], atom=store)
            gr.commit(store)
            gr.wait(store, pending=0, written=True)  # the next pass adds to the same rows
            self.empty["keys"][i].arrive()
            made.advance()

        for at in self.passes("add"):
            with at.exists():
                for j in gr.loop("add_step", at.steps):
                    h, m = at.step(j)
                    share(at, h, m, at.first)
                gradients(at)

    def consume(self, consumers: Any) -> None:
        """Computes the gradients of 64 of a tile's keys, and half of the columns of its share of dQ."""
        a, depth = self.a, self.depth
        self.consumers = consumers
        self.w, _ = consumers.indices()
        mine = self.mine = consumers[self.w]
        self.keys, self.get = self.ring("keys", "get"), self.ring("steps", "get")
        self.qk, self.kd, self.half = (wgmma(a.dtype, n) for n in (QUERIES, depth, depth // 2))
        self.S, self.dP = (gr.fragment(n, [64, QUERIES], gr.fp32, self.qk.c, on=mine) for n in ("S", "dP"))
        self.P = gr.fragment("P", [64, QUERIES], a.dtype, self.kd.a, on=mine)
        self.dK, self.dV = (gr.fragment(n, [64, depth], gr.fp32, self.kd.c, on=mine) for n in ("dK", "dV"))
        self.dQ = gr.fragment("dQ", [64, depth // 2], gr.fp32, self.half.c, on=mine)
        narrow = wgmma(a.dtype, PIECE)
        self.dS = gr.fragment("dS", [64, PIECE], a.dtype, narrow.c, on=mine)
        self.number = gr.fragment("piece", [64, PIECE], gr.fp32, narrow.c, on=mine).reduced(0, "number")
        self.w_anew = gr.scalar("w_anew", self.w, max=1)
        for at in self.passes("own"):
            with at.exists():
                self.own(at)

    def stage(self, ahead: int = 0) -> tuple[Any, Any]:
        """The stage and the phase of this step, or of the one after it."""
        at, n = self.get.index + ahead, self.c.stages
        return at % n, self.get.phase ^ at // n

    def wait(self, name: str, ahead: int) -> Any:
        """Waits for a tile of a step and returns its stage."""
        stage, phase = self.stage(ahead)
        self.full[name][stage].wait(phase)
        return stage

    def give_back(self, name: str, index: Any) -> None:
        """Gives back a stage that all threads of this consumer have read. One thread arrives for them."""
        with gr.only(self.mine.elect()):
            self.empty[name][index].arrive()

    def scores(self, ahead: int) -> None:
        """Starts S^T = K Q^T with the queries of this step, or of the one after it."""
        i = self.wait("queries", ahead)
        gr.fence(self.qk)
        gr.matmul(self.S, self.own_K.tile([64, None])[self.w_anew.value, 0], self.sQ[i].T, on=self.mine, atom=self.qk,
                  accumulate=False)  # fmt: skip
        gr.commit(self.qk)

    def products(self, ahead: int) -> None:
        """Starts dP^T = V dO^T with the rows of dO."""
        i = self.wait("grads", ahead)
        gr.fence(self.qk)
        gr.matmul(self.dP, self.own_V.tile([64, None])[self.w_anew.value, 0], self.sG[i].T, on=self.mine, atom=self.qk,
                  accumulate=False)  # fmt: skip
        gr.commit(self.qk)

    def own(self, at: Pass) -> None:
        """Computes the gradients of a tile of keys from all queries that see it."""
        mine, keys = self.mine, self.keys
        self.own_K, self.own_V = self.sK[keys.index], self.sV[keys.index]
        gr.init(self.dK, 0)
        gr.init(self.dV, 0)
        self.full["keys"][keys.index].wait(keys.phase)
        self.scores(0)
        self.products(0)
        self.weigh(at, at.row(0), True)
        for head in gr.loop("own_group", self.a.group) if self.a.group > 1 else [0]:
            for j in gr.loop("own_edge", at.edge, start=0 + (head < 1)):
                self.multiply(True)
                self.weigh(at, at.row(j), True)
            for j in gr.loop("own_whole", at.each, start=at.edge):
                self.multiply(True)
                self.weigh(at, at.row(j), False)
        self.multiply(False)
        gr.barrier(on=self.consumers)  # the other one has read these keys, too
        for s, acc, scale in ((self.own_K, self.dK, self.unscaled), (self.own_V, self.dV, None)):
            out = gr.fragment("out", [64, self.depth], self.a.dtype, self.kd.c, on=mine)
            out[:] = acc if scale is None else acc * scale
            gr.move(s.tile([64, None])[self.w_anew.value, 0], out, on=mine, atom=gr.atom("stmatrix.x4"))
        gr.fence("async.shared")
        gr.barrier(on=mine)
        with gr.only(mine.elect()):
            self.made[keys.index].arrive()
        keys.advance()

    def weigh(self, at: Pass, m: Any, edge: bool) -> None:
        """P, dV += P^T dO, and dS, from the scores of queries m. At its end no product is under way.

        `edge`: not all of the queries see all keys.
        """
        mine, qk, S, here = self.mine, self.qk, self.S, self.get.index
        gr.wait(qk, pending=1)  # S is there, dP is not
        if edge:
            self.hide(at, m)
        for x, lse in self.pieces(S, here, 0):
            x[:] = gr.exp2(gr.fma(x, self.scale, lse), ftz=True)
        self.P[:] = S  # C layout to A layout: the same owners
        gr.fence(self.kd)
        gr.matmul(self.dV, self.P, self.sG[here], on=mine, atom=self.kd)
        gr.commit(self.kd)
        gr.wait(qk, pending=1)  # dP is there, dV is not
        for i, (x, delta) in enumerate(self.pieces(S, here, 1)):
            self.dS[:] = x * (self.dP.tile([None, PIECE])[0, i] - delta)
            to = self.sS[here].tile([64, PIECE])[self.w_anew.value, i]
            gr.move(to, self.dS, on=mine, atom=gr.atom("stmatrix.x4"))
        gr.fence("async.shared")
        gr.wait(self.kd, pending=0)
        self.give_back("grads", here)

    def multiply(self, more: bool) -> None:
        """The share of dQ, and dK += dS^T Q; behind them start S and dP of the next queries, if there are `more`."""
        mine, here = self.mine, self.get.index
        self.w_anew.set(gr.index(self.consumer_numbers[self.w], 0, 1))
        gr.barrier(on=self.consumers)  # dS of all keys is there
        gr.fence(self.half)
        columns = self.own_K.tile([None, self.depth // 2])[0, self.w_anew.value]
        gr.matmul(self.dQ, self.sS[here].T, columns, on=mine, atom=self.half, accumulate=False)
        gr.commit(self.half)
        mine_of_S = self.sS[here].tile([64, None])[self.w_anew.value, 0]
        gr.matmul(self.dK, mine_of_S, self.sQ[here], on=mine, atom=self.kd)
        gr.commit(self.kd)
        if more:
            self.scores(1)
        gr.wait(self.half, pending=1 + more)  # dQ is there, dK and the next S are not
        self.pass_on()
        if more:
            self.products(1)
        gr.wait(self.kd, pending=2 * more)  # dK is there
        self.give_back("queries", here)
        self.get.advance()

    def pieces(self, S: gr.Tensor, stage: Any, which: int) -> Iterator[tuple[gr.Tensor, gr.Tensor]]:
        """A few queries of scores at a time, and a number of each of them."""
        numbers = self.sR[stage].tile([QUERIES])[which]
        for i in range(QUERIES // PIECE):
            part = S.tile([None, PIECE])[0, i]
            row = numbers.tile([PIECE])[i].reshape(0, gr.Layout((1, PIECE)))
            gr.move(self.number, row, on=self.mine, atom=gr.atom("ld.shared.v2.b32"))
            yield part, self.number

    def hide(self, at: Pass, m: Any) -> None:
        """Rules out the scores of keys that a query does not see. Queries past the last have a log-sum-exp of inf."""
        row, col = self.S.coords()
        key, query = at.n * KEYS + self.w * 64 + row, m * QUERIES + col
        self.S[:] = gr.where(at.seen.of(query, key), self.S, -gr.inf)

    def pass_on(self) -> None:
        """Leaves this consumer's columns of dQ to be added up."""
        i, half = self.get.index, self.depth // 2
        self.empty["sums"][i].wait(self.get.phase ^ 1)
        rows = gr.Layout((8, 2, 4), (8, 256, 64))  # neighbours, then threads, then a thread's registers
        columns = gr.Layout((2, 4, half // 8), (1, 2, 512))
        place = gr.Layout((rows.shape, columns.shape), (rows.stride, columns.stride))
        to = self.sD[i].tile([QUERIES * half])[self.w].reshape(0, place)
        gr.move(to, self.dQ, on=self.mine, atom=gr.atom("st.shared.v2.b32"))
        gr.fence("async.shared")
        gr.barrier(on=self.mine)
        with gr.only(self.mine.elect()):
            self.full["sums"][i].arrive()


class Pass:
    """A tile of keys of a head of them, and the tiles of queries that see it.

    `n`, `count`: its number and how many there are. `lo`, `each`: the first tile of queries, and how many there are for
    each head of the group. `edge`: how many steps of a head have queries that do not see all keys. `steps`: those of
    all heads.
    """

    def __init__(
        self, of: _GradientSm90, role: str, seen: Seen, b: Any, kh: Any, part: Any, p: Any, count: Any
    ) -> None:
        self.of, self.seen, self.b, self.kh, self.count = of, seen, b, kh, count
        self.part, parts = part, of.c.parts
        n = self.n = p * parts + part
        # The first tile of a part begins its sums, and so goes with all queries, also if there is no such tile.
        begins = p < 1
        self.here = gr.max(n < count, begins)
        self.alone = parts == 1
        most, group = MOST // QUERIES + 1, of.a.group
        lo, hi, whole, _ = seen.query_tiles(n * KEYS, KEYS, QUERIES)

        def scalar(name: str, value: Any, most: int) -> Any:
            return gr.scalar(f"{role}_{name}", gr.max(gr.min(value, most), 0), max=most).value

        hi = scalar("hi", hi, most)
        self.first = begins
        self.lo = 0
        if of.right is not None:
            self.lo = scalar("lo", gr.min(lo, hi - 1) * (1 - begins), most)
        self.each = gr.scalar(f"{role}_each", gr.max(gr.min(hi - self.lo, most), 1), min=1, max=most).value
        self.steps = self.each * group
        if role == "own":
            first = 1 if of.right is None else gr.max(gr.min(whole - self.lo, self.each), 1)
            every = (n + 1) * KEYS > of.args.sk
            self.edge = scalar("edge", first + (self.each - first) * every, most)
        self.place = SequenceView(of.args, b, [])

    def row(self, j: Any) -> Any:
        """The tile of queries of a head's step j."""
        return self.lo + j

    def step(self, j: Any) -> tuple[Any, Any]:
        """The head and the tile of queries of step j."""
        group = self.of.a.group
        if group == 1:
            return self.kh, self.row(j)
        return self.kh * group + gr.min(j // self.each, group - 1), self.row(j % self.each)

    def exists(self) -> Any:
        """Whether the tile exists, or lies beyond the last one."""
        return nullcontext() if self.alone else gr.if_(self.here > 0)
