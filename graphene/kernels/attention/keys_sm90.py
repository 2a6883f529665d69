"""The gradients of attention's keys and values for sm_90a, by TMA and wgmma.

With P the probabilities, computed again from the log-sum-exp, dP = dO V^T and delta = rowsum(dO * O):

    dV = P^T dO,   dS = P * (dP - delta),   dK = scale * dS^T Q,   dQ = scale * dS K

A block goes through tiles of keys, and with each through the queries that see it. Two consumers have 64 keys each, and
nothing in common but the tiles of queries. They compute the transposed scores S^T = K Q^T, so that P^T and dS^T lie in
registers like the left operands of the next products. dS^T also leaves for a work space, from which
``attention_queries_product_sm90`` computes dQ. Nothing is added up between blocks: equal calls give equal bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, choice, flags, instance, size
from graphene.kernels.attention.problem import (
    MOST,
    Attention,
    AttentionArguments,
    Scores,
    Seen,
    SequenceView,
    refuse_sinks,
)
from graphene.kernels.attention.reference_tiles import TILE, read_scores, tiled_gradient
from graphene.kernels.attention.rings import Notes, Order, heads_together
from graphene.kernels.attention.usual_arguments import arguments
from graphene.kernels.tma import SHARED_BYTES, wgmma

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KEYS", "KeysSm90", "attention_keys_gradient_sm90", "saved_tiles"]

KEYS = 128  # keys of a tile, 64 of each consumer
REGISTERS = (40, 232)  # of a thread of the producer, and of a consumer
MORE_REGISTERS = (24, 240)  # the same where consumers need all registers
PIECE = 16  # queries whose numbers are in registers at once, and whose dS is stored at once


@dataclass(frozen=True)
class KeysSm90:
    """The problem, and how it is computed.

    `keys`: stages of the ring of tiles of keys and values; `stages`: of the ring of queries and dO. `held`: how many of
    values and keys are operands in registers, which spares shared memory half of what the scores read. `direct`: dK
    takes dS from registers, too. `turns`: consumers take
    turns at starting products. Raises VerifyError KERNEL_ARGUMENT.
    """

    what: Attention
    keys: int = 1
    stages: int = 3
    held: int = 0
    direct: bool = True
    turns: bool = False

    def __post_init__(self) -> None:
        a = self.what
        instance("KeysSm90", "what", a, Attention)
        for name in ("direct", "turns"):
            flags("KeysSm90", name, (getattr(self, name),), 1)
        size("KeysSm90", "keys", self.keys)
        size("KeysSm90", "stages", self.stages, least=2)
        choice("KeysSm90", "held", self.held, (0, 1, 2))
        size("KeysSm90", "the head size", a.D, multiple_of=8, most=128)
        refuse_sinks("KeysSm90", a, "pass an LSE that has the sinks in it")
        if a.mask is not None or a.prescaled or a.varlen:
            want = "want: no mask, bias, softcap or score, a positive scale, no packed sequences"
            _core.fail("KERNEL_ARGUMENT", "KeysSm90: no kernel of this problem", [want], "take BackwardConfig")
        if self.shared_bytes > SHARED_BYTES:
            got = [f"want: at most {SHARED_BYTES} bytes", f"got: {self.shared_bytes} bytes"]
            _core.fail("KERNEL_ARGUMENT", "KeysSm90: tiles do not fit into shared memory", got, "take fewer stages")

    @property
    def depth(self) -> int:
        """The head size in shared memory: whole lines of 128 bytes."""
        return -(-self.what.D // 64) * 64

    @property
    def registers(self) -> tuple[int, int]:
        """Those of the producer's threads and of the consumers'."""
        return MORE_REGISTERS if self.depth > 64 else REGISTERS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        step = 4 * TILE * self.depth + 2 * KEYS * TILE + 8 * TILE + 16
        return self.keys * (4 * KEYS * self.depth + 16) + self.stages * step + 32 * (self.keys + 1)


def saved_tiles(a: Attention, args: AttentionArguments, kind: Any) -> gr.Tensor:
    """The work space of scores' gradients: (heads of queries, tiles of queries, keys, 64 queries of a tile).

    It holds heads side by side, and the keys are rounded up to ``KEYS``.
    """
    shape = (gr.sym("saved_heads", multiple_of=a.group, max=MOST_BLOCKS_YZ), gr.ceil_div(args.sq, TILE))
    layout = gr.row_major(*shape, gr.ceil_div(args.sk, KEYS) * KEYS, TILE)
    made: gr.Tensor = kind("saved", layout, a.dtype, align_bytes=16)
    return made


def attention_keys_gradient_sm90(c: KeysSm90) -> gr.Kernel:
    """The gradients dK and dV of some heads of keys, and dS of their queries in the work space; others are left alone.

    Arguments: G = dO, which lies like Q of ``attention_forward_kernel``; rows (batch, heads, tiles of queries, 2 x 64)
    in fp32, which ``attention_rows_kernel`` makes; Q, K, V of that kernel; saved (``saved_tiles``); dK and dV, which
    lie like K; scale_log2, scale, with windows left and right, and the number of the first head of keys that is saved,
    counted over all sequences. There is at least one query and one key.
    """
    a = c.what
    means, read = functools.partial(tiled_gradient, a), functools.partial(read_scores, a)
    with gr.Kernel("attention_keys_gradient_sm90", means, read, arguments(a)) as kernel:
        _Keys(c).run()
    return kernel


class _Keys:
    """The kernel in the making."""

    def __init__(self, c: KeysSm90) -> None:
        a = c.what
        self.c, self.a, self.depth = c, a, c.depth
        args = self.args = AttentionArguments(a, fewest_keys=1)
        self.G = args.tensor(gr.input, "G", args.sq, args.heads)
        shape = (args.batch, args.heads, gr.ceil_div(args.sq, TILE), 2 * TILE)
        self.rows = gr.input("rows", gr.row_major(*shape), gr.fp32, align_bytes=16)
        self.Q = args.tensor(gr.input, "Q", args.sq, args.heads)
        self.K, self.V = (args.tensor(gr.input, n, args.sk, args.kv_heads) for n in "KV")
        self.saved = saved_tiles(a, args, gr.inout)
        self.out = [args.tensor(gr.inout, n, args.sk, args.kv_heads) for n in ("dK", "dV")]
        self.scale = Scores(a).scale
        self.unscaled = gr.param("scale", gr.fp32)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.first = gr.param("first", gr.u32)
        self.load, self.store = gr.atom("tma.load"), gr.atom("tma.store")

    def run(self) -> None:
        """The kernel."""
        args, a = self.args, self.a
        heads = self.saved.levels[0].shape[0] // a.group
        longest_last = self.right is not None and self.left is None
        together = heads_together(args.sq, self.depth) if longest_last else None
        grid = Order(args.sk, KEYS, heads, 1, together)
        grid.blocks()
        there = gr.max(args.batch * args.kv_heads - self.first, 0)
        self.order = Order(args.sk, KEYS, gr.min(heads, there), 1, together)
        self.order.block, self.order.workers = grid.block, grid.workers
        wgs = gr.threads(384).tile(128)
        producer, consumers = wgs[0], wgs[1:3]
        self.allocate()
        gr.barrier()  # the barriers are initialised
        gr.start_kernels()
        gr.wait_kernels()
        with gr.only(producer):
            gr.setmaxnreg(self.c.registers[0])
            with gr.only(producer.elect()):
                self.produce()
        with gr.only(consumers):
            gr.setmaxnreg(self.c.registers[1])
            self.consume(consumers)

    def allocate(self) -> None:
        """Shared memory and barriers."""
        c, a = self.c, self.a

        def tiles(name: str, layout: Any, stages: int) -> gr.Tensor:
            return gr.alloc(name, layout, a.dtype, gr.SH, stages=stages, swizzle=gr.swizzle(64, a.dtype))

        of_keys, of_queries = (gr.panels(n, self.depth, a.dtype) for n in (KEYS, TILE))
        self.sK, self.sV = (tiles(n, of_keys, c.keys) for n in ("sK", "sV"))
        self.sQ, self.sG = (tiles(n, of_queries, c.stages) for n in ("sQ", "sG"))
        self.sS = tiles("sS", [KEYS, TILE], c.stages)
        self.sR = gr.alloc("sR", [2 * TILE], gr.fp32, gr.SH, stages=c.stages)
        most, grid = MOST // TILE + 1, MOST_BLOCKS_YZ
        limits = {"n": (0, MOST // KEYS + 1), "pair": (0, grid), "head": (0, grid), "batch": (0, grid)}
        limits |= {"lo": (0, most), "each": (1, most), "whole_lo": (0, most), "whole_hi": (0, most)}
        self.notes = Notes(limits, c.keys + 1)
        self.full, self.empty = {}, {}
        for name, stages in (("keys", c.keys), ("steps", c.stages)):
            self.full[name] = gr.mbarrier(f"{name}_full", stages, arrivals=1)
            self.empty[name] = gr.mbarrier(f"{name}_empty", stages, arrivals=2)
        self.stages = {"keys": c.keys, "steps": c.stages}
        self.turn = gr.named_barrier("turn", stages=2, threads=256) if c.turns else None

    def ring(self, of: str, role: str, phase: int = 0) -> Any:
        """A role's position in a ring."""
        return gr.ring(f"{of}_{role}", self.stages[of], phase=phase)

    def window(self) -> Seen:
        """Which keys queries see, with the bounds within what 32 bits add."""
        left, right = (
            None if x is None else gr.scalar(f"{n}_", gr.max(-MOST, gr.min(x, MOST)), min=-MOST, max=MOST).value
            for n, x in (("left", self.left), ("right", self.right))
        )
        return Seen(self.args.sq, self.args.sk, left, right)

    def numbers_of(self, seen: Seen, m: Any, pair: Any) -> dict[str, Any]:
        """The numbers of a tile of keys: `n` of head `head` of sequence `batch`, which is `pair` in the work space.

        `lo`, `each`: the first tile of queries that see it, and how many there are for each head of the group.
        `whole_lo`, `whole_hi`: the first of those that see all of its keys, and the one behind the last.
        """
        args, made = self.args, {"pair": pair}

        def scalar(name: str, value: Any) -> Any:
            least, most = self.notes.limits[name]
            made[name] = gr.scalar(name, gr.max(gr.min(value, most), least), min=least, max=most).value
            return made[name]

        heads = gr.max(args.kv_heads, 1)
        scalar("head", (self.first + pair) % heads)
        scalar("batch", (self.first + pair) // heads)
        n = scalar("n", m if self.order.together is None else self.order.row_tiles - 1 - m)
        lo, hi, whole_lo, whole_hi = seen.query_tiles(n * KEYS, KEYS, TILE)
        hi = gr.max(hi, 1)
        lo = 0 if self.right is None else scalar("lo", gr.min(lo, hi - 1))
        scalar("each", hi - lo)
        scalar("whole_lo", whole_lo)
        scalar("whole_hi", whole_hi * ((n + 1) * KEYS <= args.sk))  # none, if not all keys are there
        return {"lo": 0, **made}

    def produce(self) -> None:
        """Loads tiles of keys and values, and of queries, dO and their numbers, as far ahead as there is room."""
        keys, steps = self.ring("keys", "put", 1), self.ring("steps", "put", 1)
        seen = self.window()
        self.notes.begin("write")

        def copies(name: str, ring: Any, *pairs: Any, beside: Any = None) -> None:
            i = ring.index
            self.empty[name][i].wait(ring.phase)
            if beside is not None:
                beside()
            self.full[name][i].arrive(expect=[s[i] for s, _ in pairs])
            for s, source in pairs:
                gr.move(s[i], source, atom=self.load, done=self.full[name][i])
            ring.advance()

        for r, row, pair, _ in self.order.places("load"):
            at = self.numbers_of(seen, row, pair)
            place, kh = SequenceView(self.args, at["batch"], []), at["head"]
            K, V = (place.keys(t, kh).tile([KEYS, self.depth])[at["n"], 0] for t in (self.K, self.V))
            copies("keys", keys, (self.sK, K), (self.sV, V), beside=functools.partial(self.notes.write, r, at))
            for g in self.heads("load"):
                h = kh * self.a.group + g
                for j in gr.loop("load_step", at["each"]):
                    m = at["lo"] + j
                    Q, G = (place.queries(t, h).tile([TILE, self.depth])[m, 0] for t in (self.Q, self.G))
                    rows = self.rows[at["batch"], h, m, :]
                    copies("steps", steps, (self.sQ, Q), (self.sR, rows), (self.sG, G))

    def heads(self, role: str) -> Any:
        """The heads of the group."""
        return gr.loop(f"{role}_group", self.a.group) if self.a.group > 1 else [0]

    def consume(self, consumers: Any) -> None:
        """Computes the gradients of 64 of a tile's keys."""
        a, depth = self.a, self.depth
        self.w, _ = consumers.indices()
        mine = self.mine = consumers[self.w]
        self.keys, self.get = self.ring("keys", "get"), self.ring("steps", "get")
        self.qk, self.kd = wgmma(a.dtype, TILE), wgmma(a.dtype, depth)
        self.S, self.dP = (gr.fragment(n, [64, TILE], gr.fp32, self.qk.c, on=mine) for n in ("S", "dP"))
        self.P = gr.fragment("P", [64, TILE], a.dtype, self.kd.a, on=mine)
        narrow = wgmma(a.dtype, PIECE)
        direct = self.c.direct
        of = [64, TILE if direct else PIECE], a.dtype, self.kd.a if direct else narrow.c
        self.dS = gr.fragment("dS", *of, on=mine)
        self.dK, self.dV = (gr.fragment(n, [64, depth], gr.fp32, self.kd.c, on=mine) for n in ("dK", "dV"))
        names = ("rV", "rK")[: self.c.held]
        self.held = [gr.fragment(n, [64, depth], a.dtype, self.qk.a, on=mine) for n in names]
        self.done = gr.scalar("done", 0, max=1)
        self.number = gr.fragment("piece", [64, PIECE], gr.fp32, narrow.c, on=mine).reduced(0, "number")
        if self.turn is not None:
            with gr.if_(self.w == 1):
                self.turn[0].arrive()
        self.seen = self.window()
        self.notes.begin("read")
        for r in gr.loop("own", self.order.rounds("own")[0]):
            self.own(r)
        gr.wait(self.store, pending=0)

    def own(self, r: Any) -> None:
        """Tile r of the block's tiles of keys, and all queries that see it."""
        mine, keys = self.mine, self.keys
        self.own_K, self.own_V = (s[keys.index].tile([64, None])[self.w, 0] for s in (self.sK, self.sV))
        gr.init(self.dK, 0)
        gr.init(self.dV, 0)
        self.full["keys"][keys.index].wait(keys.phase)
        at = _Tile(self, r)
        for held, t in zip(self.held, (self.own_V, self.own_K), strict=False):
            gr.move(held, t, on=mine, atom=gr.atom("ldmatrix.x4"))
        self.products(0)
        self.weigh(at)
        if self.c.keys > 1:
            self.release_keys()
        for g in self.heads("own"):
            for j in gr.loop("own_step", at.each, start=0 + (g < 1)):
                self.multiply(at, True)
                at.go(g, j)
                self.weigh(at)
        self.multiply(at, False)
        for own, acc, scale in ((self.own_K, self.dK, self.unscaled), (self.own_V, self.dV, None)):
            out = gr.fragment("out", [64, self.depth], self.a.dtype, self.kd.c, on=mine)
            out[:] = acc if scale is None else acc * scale
            gr.move(own, out, on=mine, atom=gr.atom("stmatrix.x4"))
        gr.fence("async.shared")
        gr.barrier(on=mine)
        with gr.only(mine.elect()):
            n, kh, b = at.read("n", "head", "batch")
            place = SequenceView(self.args, b, [])
            for own, t in ((self.own_K, self.out[0]), (self.own_V, self.out[1])):
                gr.move(place.keys(t, kh).tile([64, self.depth])[2 * n + self.w, 0], own, atom=self.store)
            gr.commit(self.store)
        keys.advance()
        self.done.set(1)
        if self.c.keys == 1:
            self.release_keys()

    def release_keys(self) -> None:
        """Gives back the place of the tile of keys before this one, once its gradients have left."""
        with gr.if_(self.done.value > 0):
            with gr.only(self.mine.elect()):
                gr.wait(self.store, pending=0)
                self.empty["keys"][(self.keys.index + (self.c.keys - 1)) % self.c.keys].arrive()

    def stage(self, ahead: Any) -> Any:
        """The stage that is read this number of steps after this one."""
        return (self.get.index + ahead) % self.c.stages

    def products(self, ahead: int) -> None:
        """Waits for a step's queries and dO, and starts S^T = K Q^T and dP^T = V dO^T."""
        i = self.stage(ahead)
        self.full["steps"][i].wait(self.get.phase ^ (self.get.index + ahead) // self.c.stages)
        gr.fence(self.qk)
        own = [*self.held, *(self.own_V, self.own_K)[len(self.held) :]][::-1]
        for x, left, s in zip((self.S, self.dP), own, (self.sQ, self.sG), strict=True):
            gr.matmul(x, left, s[i].T, on=self.mine, atom=self.qk, accumulate=False)
            gr.commit(self.qk)

    def weigh(self, at: _Tile) -> None:
        """P, dV += P^T dO, and dS, from the products of a step. At its end none is under way."""
        mine, qk, kd, S, dP, here = self.mine, self.qk, self.kd, self.S, self.dP, self.get.index
        numbers = self.numbers(here, 0)
        lse = next(numbers)
        gr.wait(qk, pending=1)  # S is there, dP is not
        with gr.if_(at.outside()):
            row, col = S.coords()
            (n,) = at.read("n")
            seen = self.seen.of(at.m * TILE + col, n * KEYS + self.w * 64 + row)
            S[:] = gr.where(seen, S, -gr.inf)
        for i in range(TILE // PIECE):
            x = S.tile([None, PIECE])[0, i]
            x[:] = gr.exp2(gr.fma(x, self.scale, lse), ftz=True)
            lse = next(numbers, lse)
        self.P[:] = S  # C layout to A layout: the same owners
        gr.fence(kd)
        gr.matmul(self.dV, self.P, self.sG[here], on=mine, atom=kd)
        gr.commit(kd)
        numbers = self.numbers(here, 1)
        delta = next(numbers)
        gr.wait(qk, pending=1)  # dP is there, dV is not
        tile = self.sS[here].tile([64, PIECE])
        for i in range(TILE // PIECE):
            x = dP.tile([None, PIECE])[0, i]
            x[:] = S.tile([None, PIECE])[0, i] * (x - delta)
            delta = next(numbers, delta)
            dS = self.dS.tile([None, PIECE])[0, i] if self.c.direct else self.dS
            dS[:] = x
            gr.move(tile[self.w, i], dS, on=mine, atom=gr.atom("stmatrix.x4"))
        gr.wait(kd, pending=0)

    def start(self, dS: gr.Tensor, more: bool) -> None:
        """Starts dK += dS^T Q and, if there are more queries, their first products."""
        if self.turn is not None:
            self.turn[self.w].sync()
        gr.fence(self.kd)
        gr.matmul(self.dK, dS, self.sQ[self.get.index], on=self.mine, atom=self.kd)
        gr.commit(self.kd)
        if more:
            self.products(1)
        if self.turn is not None:
            self.turn[1 - self.w].arrive()

    def multiply(self, at: _Tile, more: bool) -> None:
        """Starts the products by dS, and those of the next queries, if there are more. Meanwhile dS leaves."""
        mine, kd, here = self.mine, self.kd, self.get.index
        tile = self.sS[here].tile([64, None])[self.w, 0]
        if self.c.direct:
            self.start(self.dS, more)
        gr.fence("async.shared")
        gr.wait(self.store, pending=0)  # the tile of the step before has left, so its place is free for the next one
        gr.barrier(on=mine)
        if not self.c.direct:
            self.start(tile, more)
        with gr.only(mine.elect()):
            n, pair = at.read("n", "pair")
            to = self.saved[pair * self.a.group + at.g, at.m, :, :].tile([64, TILE])[2 * n + self.w, 0]
            gr.move(to, tile, atom=self.store)
            gr.commit(self.store)
        gr.wait(kd, pending=2 * more)  # dK is there
        with gr.only(mine.elect()):
            self.empty["steps"][here].arrive()
        self.get.advance()

    def numbers(self, stage: Any, which: int) -> Iterator[gr.Tensor]:
        """A number of a few queries at a time."""
        numbers = self.sR[stage].tile([TILE])[which]
        for i in range(TILE // PIECE):
            row = numbers.tile([PIECE])[i].reshape(0, gr.Layout((1, PIECE)))
            gr.move(self.number, row, on=self.mine, atom=gr.atom("ld.shared.v2.b32"))
            yield self.number


class _Tile:
    """Where a consumer is: tile r of keys, about which the producer has written, and the queries of the step."""

    def __init__(self, of: _Keys, r: Any) -> None:
        self.of, self.r, most = of, r, MOST // TILE + 1
        self.each, self.whole_hi = self.read("each", "whole_hi")
        self.lo: Any = 0
        self.whole_lo: Any = None
        if of.right is not None:
            self.lo, self.whole_lo = self.read("lo", "whole_lo")
        self.row = gr.scalar("row", self.lo, max=most)
        self.member = gr.scalar("member", 0, max=of.a.group - 1) if of.a.group > 1 else None

    def read(self, *names: str) -> Any:
        """Yields some of the numbers of the tile."""
        return tuple(self.of.notes.read(self.r, *names))

    def go(self, g: Any, j: Any) -> None:
        """Goes on to step j of head g."""
        self.row.set(gr.min(self.lo + j, MOST // TILE + 1))
        if self.member is not None:
            self.member.set(g)

    @property
    def m(self) -> Any:
        """The tile of queries of the step."""
        return self.row.value

    @property
    def g(self) -> Any:
        """The head of the group of the step."""
        return 0 if self.member is None else self.member.value

    def outside(self) -> Any:
        """Whether some of the queries do not see all keys."""
        behind = self.m >= self.whole_hi
        return behind if self.whole_lo is None else behind + (self.m < self.whole_lo) > 0
