"""Attention backward for sm_80 and up: two kernels without atomics, so that equal calls give equal bits.

With P the probabilities, computed again from the log-sum-exp, dP = dO V^T and delta = rowsum(dO * O):

    dV = P^T dO,   dS = P * (dP - delta),   dK = scale * dS^T Q,   dQ = scale * dS K

``attention_keys_gradient_kernel``: a block owns keys and goes through the queries. It computes the transposed scores,
S^T = K Q^T, so that P^T and dS^T lie in registers as the next products want their left operand. A group's heads add up
in the same accumulators. ``attention_queries_gradient_kernel``: a block owns queries and goes through the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene.kernels._arguments import size
from graphene.kernels._attention import LOG2E, Arguments, Attention, Extra, Place, Scores, Seen
from graphene.kernels._attention_means import gradient_meaning


@dataclass(frozen=True)
class BackwardConfig:
    """What is computed, and how: blocks of `own` rows, WARPS warps, which go through `other` rows at a time.

    Raises VerifyError KERNEL_ARGUMENT.
    """

    what: Attention
    own: int = 64
    other: int = 64
    WARPS: int = 4
    stages: int = 2
    keep: bool = False
    piece: int = 64

    def __post_init__(self) -> None:
        size("BackwardConfig", "WARPS", self.WARPS, most=32)
        size("BackwardConfig", "own", self.own, multiple_of=16 * self.WARPS)
        size("BackwardConfig", "other", self.other, multiple_of=16)
        size("BackwardConfig", "stages", self.stages, least=2)


def attention_keys_gradient_kernel(c: BackwardConfig) -> gr.Kernel:
    """DK and dV.

    Arguments: G = dO as Q of ``attention_forward_kernel``, delta and LSE (batch, heads, sq) in fp32, Q, K, V and what
    follows them there, dK and dV as K, the numbers as there; of packed sequences the longest one's keys.
    """
    with gr.Kernel("attention_keys_gradient") as kernel:
        _KeysGradient(c).run()
    return kernel


def attention_queries_gradient_kernel(c: BackwardConfig) -> gr.Kernel:
    """dQ, as Q; the other arguments are those of ``attention_keys_gradient_kernel``."""
    with gr.Kernel("attention_queries_gradient") as kernel:
        _QueriesGradient(c).run()
    return kernel


class _Gradient:
    """What both kernels are made of."""

    name = ""
    results: tuple[str, ...] = ()
    of_keys = False

    def __init__(self, c: BackwardConfig) -> None:
        a = c.what
        self.c, self.a, self.W = c, a, c.own // c.WARPS
        args = self.args = Arguments(a)
        self.G = args.tensor(gr.input, "G", args.sq, args.heads)
        rows = (args.heads, args.sq) if a.varlen else (args.batch, args.heads, args.sq)
        self.delta, self.LSE = (gr.input(n, gr.row_major(*rows), gr.fp32) for n in ("delta", "LSE"))
        self.Q = args.tensor(gr.input, "Q", args.sq, args.heads)
        self.K, self.V = (args.tensor(gr.input, n, args.sk, args.kv_heads) for n in "KV")
        places = gr.Layout(args.batch + 1)
        self.starts = [gr.input(n, places, gr.i32) for n in ("starts_q", "starts_k")] if a.varlen else []
        self.extras = {"mask": args.extra("M", a.mask), "bias": args.extra("B", a.bias)}
        shape = (args.sk, args.kv_heads) if self.of_keys else (args.sq, args.heads)
        self.out = [args.tensor(gr.output, n, *shape) for n in self.results]
        self.scores = Scores(a)
        self.unscaled = gr.param("scale", gr.fp32)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.longest = gr.param("longest", gr.i32) if a.varlen else shape[0]
        self.threads = gr.threads(32 * c.WARPS)
        (self.w, _) = self.threads.tile(32).indices()
        self.warp = self.threads.tile(32)[self.w]
        self.mma, self.cp = a.atom("mma"), gr.atom("cp.async.cg.16")
        self.ldsm, self.ldsm_t = gr.atom("ldmatrix.x4"), gr.atom("ldmatrix.x4.trans")

    def run(self) -> None:
        """The kernel."""
        args, c = self.args, self.c
        self.tiles_of_own = gr.ceil_div(self.longest, c.own)
        blocks = gr.blocks(self.tiles_of_own, args.kv_heads if self.of_keys else args.heads, args.batch)
        given = [self.G, self.delta, self.LSE, self.Q, self.K, self.V]
        given += [t for t in self.extras.values() if t is not None]
        numbers = [self.scores.scale, self.scores.cap, self.unscaled, self.left, self.right]
        means = "" if self.a.varlen else gradient_meaning(self.a, self.of_keys)
        ins = [*given, *(x for x in numbers if x is not None)]
        with gr.spec(self.out, ins, on=(blocks, self.threads), means=means):
            self.choose(blocks)
            self.allocate()
            self.body()

    def body(self) -> None:
        """What a block does."""
        raise NotImplementedError

    def choose(self, blocks: Any) -> None:
        """Which rows, which head, which sequence this block works on."""
        c = self.c
        at, self.h, b = blocks.indices()
        late = self.right is not None and not self.of_keys  # where a block's work grows with its number
        self.at, self.b = (self.tiles_of_own - 1 - at if late else at), b
        self.place = Place(self.args, b, self.starts)
        if self.a.varlen:
            rows, share = [t[:, self.h, :] for t in self.out], (self.at, self.tiles_of_own)
            self.place.fill_rest(self.of_keys, rows, share, self.threads)
            gr.exit_if(self.at * c.own >= (self.place.sk if self.of_keys else self.place.sq))
        self.seen = Seen(self.place.sq, self.place.sk, self.left, self.right)

    def allocate(self) -> None:
        """Shared memory and registers."""
        a, c, warp = self.a, self.c, self.warp
        self.own = [a.shared(f"own{i}", c.own) for i in range(2)]
        self.other = [a.shared(f"other{i}", c.other, c.stages) for i in range(2)]
        width = a.depth if c.keep else 16
        self.ra = [gr.fragment(f"ra{i}", [self.W, width], a.dtype, self.mma.a, on=warp) for i in range(2)]
        self.piece_b, self.piece_t = (math.gcd(n, c.piece) for n in (c.other, a.depth))
        self.rb = gr.fragment("rb", [self.piece_b, 16], a.dtype, self.mma.b, on=warp)
        self.rt = gr.fragment("rt", [self.piece_t, 16], a.dtype, self.mma.b, on=warp)
        self.S, self.dP = (gr.fragment(n, [self.W, c.other], gr.fp32, self.mma.c, on=warp) for n in ("S", "dP"))
        self.P = gr.fragment("P", [self.W, c.other], a.dtype, self.mma.a, on=warp)
        self.acc = [gr.fragment(n, [self.W, a.depth], gr.fp32, self.mma.c, on=warp) for n in self.results]
        if a.softcap:
            self.slope = gr.fragment("slope", [self.W, c.other], gr.fp32, self.mma.c, on=warp)

    def load_own(self, *tensors: gr.Tensor) -> None:
        """Starts the copies of the block's rows."""
        for s, t in zip(self.own, tensors, strict=True):
            gr.move(s, t.tile([self.c.own, self.a.depth])[self.at, 0], on=self.threads, atom=self.cp)

    def multiply(self, out: gr.Tensor, mine: int, other: gr.Tensor) -> None:
        """Out = own rows times other rows, transposed."""
        gr.init(out, 0)
        for d in range(self.a.depth // 16):
            a = self.ra[mine]
            if self.c.keep:
                a = a.tile([None, 16])[0, d]
            else:
                gr.move(a, self.own[mine].tile([self.W, 16])[self.w, d], atom=self.ldsm)
            for p in range(self.c.other // self.piece_b):
                gr.move(self.rb, other.tile([self.piece_b, 16])[p, d], atom=self.ldsm)
                gr.matmul(out.tile([None, self.piece_b])[0, p], a, self.rb.T, atom=self.mma)

    def keep_own(self) -> None:
        """The warp's rows, in registers for good."""
        if self.c.keep:
            for r, s in zip(self.ra, self.own, strict=True):
                gr.move(r, s.tile([self.W, None])[self.w, 0], atom=self.ldsm)

    def accumulate(self, acc: gr.Tensor, other: gr.Tensor) -> None:
        """Acc += P times other rows."""
        for k in range(self.c.other // 16):
            for p in range(self.a.depth // self.piece_t):
                gr.move(self.rt, other.tile([16, self.piece_t])[k, p].T, atom=self.ldsm_t)
                part = acc.tile([None, self.piece_t])[0, p]
                gr.matmul(part, self.P.tile([None, 16])[0, k], self.rt.T, atom=self.mma)

    def adjust(self, n: Any, head: Any, edge: Any) -> None:
        """Scores from products: softcap, bias, masks; `n` counts tiles of other rows."""
        S, a, c = self.S, self.a, self.c
        if a.prescaled:
            S[:] = self.scores.capped(S)
        if a.softcap:
            self.slope[:] = S / self.scores.cap
            self.slope[:] = 1 - self.slope * self.slope
        for name, e in (("bias", a.bias), ("mask", a.mask)):
            if e is not None:
                self.apply(n, head, name, e)
        row, col = S.coords()
        row, col = self.at * c.own + self.w * self.W + row, n * c.other + col
        query, key = (col, row) if self.of_keys else (row, col)
        seen = self.seen.of(query, key)
        if self.of_keys and a.bias is not None:
            seen = gr.logical_and(seen, query < self.place.sq)
        with gr.if_(edge):
            S[:] = gr.where(seen, S, -gr.inf)

    def apply(self, n: Any, head: Any, name: str, e: Extra) -> None:
        """Adds a bias or lets a mask rule scores out."""
        tensor = self.extras[name]
        assert tensor is not None
        view, per16, mine = tensor[self.b, head, :, :], self.c.other // 16, self.at * self.c.WARPS + self.w
        x = gr.fragment(name, [self.W, 16], e.dtype, self.mma.c, on=self.warp)
        if self.of_keys:
            e = Extra(e.dtype, e.rows)
            view = view.tile([16 if e.rows else 1, self.W])
            x = x if e.rows else x.reduced(1, f"{name}_keys", e.dtype)
            self.scores.add(self.S, self.c.other, e, x, lambda j: view[n * per16 + j if e.rows else 0, mine].T)
        else:
            view = view.tile([self.W if e.rows else 1, 16])
            x = x if e.rows else x.reduced(0, f"{name}_keys", e.dtype)
            self.scores.add(self.S, self.c.other, e, x, lambda j: view[mine if e.rows else 0, n * per16 + j])

    def probabilities(self, offset: gr.Tensor) -> None:
        """P = exp2(S - LSE), with the negative LSE in units of log2(e); none where a query sees nothing."""
        S = self.S
        S[:] = gr.exp2(S + offset if self.a.prescaled else gr.fma(S, self.scores.factor, offset), ftz=True)

    def score_gradients(self, delta: gr.Tensor) -> None:
        """P becomes dS = P * (dP - delta), of capped scores times the cap's slope."""
        d = self.S * (self.dP - delta)
        self.P[:] = d * self.slope if self.a.softcap else d

    def store(self, out: gr.Tensor, acc: gr.Tensor, through: gr.Tensor, scale: Any) -> None:
        """Rounds a result and stores it through shared memory that the warp alone has read."""
        r = gr.fragment("r", [self.W, self.a.depth], self.a.dtype, self.mma.c, on=self.warp)
        r[:] = acc * scale if scale is not None else acc
        mine = through.tile([self.W, None])[self.w, 0]
        gr.move(mine, r, atom=gr.atom("st.shared.b32"))
        gr.barrier(on=self.warp)
        to = out.tile([self.c.own, self.a.depth])[self.at, 0].tile([self.W, None])[self.w, 0]
        gr.move(to, mine, on=self.warp, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))


def _negative(lse: Any) -> Any:
    return gr.where(lse == -gr.inf, -gr.inf, lse * -LOG2E)


class _KeysGradient(_Gradient):
    results, of_keys = ("dK", "dV"), True

    def body(self) -> None:
        """What a block does."""
        a, c = self.a, self.c
        self.sL, self.sD = (gr.alloc(n, [c.other], gr.fp32, gr.SH, stages=c.stages) for n in ("sL", "sD"))
        self.lse, self.dl = (self.S.reduced(0, n) for n in ("lse", "dl"))
        for t in self.acc:
            gr.init(t, 0)
        lo, hi, whole_lo, whole_hi = self.seen.query_tiles(self.at * c.own, c.own, c.other)
        if a.bias is not None:  # queries past the last: their LSE is 0, of which a bias would make numbers too large
            whole_hi = gr.min(whole_hi, self.place.sq // c.other)
        self.lo, self.tiles = lo, gr.max(hi - lo, 0)
        self.load_own(self.place.keys(self.K, self.h), self.place.keys(self.V, self.h))
        for i in range(c.stages - 1):
            self.load(i)
        if c.keep:
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()
            self.keep_own()
        dK, dV = self.acc
        for i in gr.loop("i", self.tiles * a.group):
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()  # the tile is everybody's; everybody is done with the one before, whose stage is loaded now
            self.load(i + c.stages - 1)
            n, head = self.number(i)
            sQ, sG = (s[i % c.stages] for s in self.other)
            self.multiply(self.S, 0, sQ)
            edge = gr.max(whole_lo - n, n - whole_hi + 1) > 0
            self.adjust(n, head, edge)
            row = gr.atom("ld.shared.v2.b32")
            gr.move(self.lse, self.sL[i % c.stages].reshape(0, gr.Layout((1, c.other))), atom=row)
            gr.move(self.dl, self.sD[i % c.stages].reshape(0, gr.Layout((1, c.other))), atom=row)
            self.lse[:] = _negative(self.lse)
            self.probabilities(self.lse)
            self.P[:] = self.S
            self.accumulate(dV, sG)
            self.multiply(self.dP, 1, sG)
            self.score_gradients(self.dl)
            self.accumulate(dK, sQ)
        gr.wait(self.cp, pending=0)
        gr.barrier()
        gK, gV = (self.place.keys(t, self.h) for t in self.out)
        self.store(gK, dK, self.own[0], self.unscaled)
        self.store(gV, dV, self.own[1], None)

    def number(self, i: Any) -> tuple[Any, Any]:
        """The tile of queries and the head of step i: the heads of the group one after the other."""
        g = self.a.group
        if g == 1:
            return self.lo + i, self.h
        return self.lo + i % gr.max(self.tiles, 1), self.h * g + gr.min(i // gr.max(self.tiles, 1), g - 1)

    def load(self, i: Any) -> None:
        """Starts the copies of a tile of queries, of the gradient's rows, of their numbers."""
        c, stage = self.c, i % self.c.stages
        n, head = self.number(i)
        with gr.if_(i < self.tiles * self.a.group):
            for s, t in zip(self.other, (self.Q, self.G), strict=True):
                rows = self.place.queries(t, head).tile([c.other, self.a.depth])[n, 0]
                gr.move(s[stage], rows, on=self.threads, atom=self.cp)
            for s, t in ((self.sL, self.LSE), (self.sD, self.delta)):
                numbers = self.place.per_query(t, head).tile([c.other])[n]
                gr.move(s[stage], numbers, on=self.threads, atom=gr.atom("cp.async.ca.4"))
        gr.commit(self.cp)


class _QueriesGradient(_Gradient):
    results, of_keys = ("dQ",), False

    def body(self) -> None:
        """What a block does."""
        c = self.c
        lse, delta = (self.S.reduced(1, n) for n in ("lse", "dl"))
        gr.init(self.acc[0], 0)
        self.kh = self.h // self.a.group
        lo, hi, whole_lo, whole_hi = self.seen.key_tiles(self.at * c.own, c.own, c.other)
        self.hi = hi
        self.load_own(self.place.queries(self.Q, self.h), self.place.queries(self.G, self.h))
        for i in range(c.stages - 1):
            self.load(lo + i)
        for r, t in ((lse, self.LSE), (delta, self.delta)):
            rows = self.place.per_query(t, self.h).tile([c.own])[self.at].tile([self.W])[self.w]
            gr.move(r, rows.reshape(0, gr.Layout((self.W, 1))), atom=gr.atom("ld.global.b32"))
        lse[:] = _negative(lse)
        if c.keep:
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()
            self.keep_own()
        for n in gr.loop("n", hi, start=lo):
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()  # the tile is everybody's; everybody is done with the one before, whose stage is loaded now
            self.load(n + c.stages - 1)
            sK, sV = (s[n % c.stages] for s in self.other)
            self.multiply(self.S, 0, sK)
            self.adjust(n, self.h, gr.max(whole_lo - n, n - whole_hi + 1) > 0)
            self.probabilities(lse)
            self.multiply(self.dP, 1, sV)
            self.score_gradients(delta)
            self.accumulate(self.acc[0], sK)
        gr.wait(self.cp, pending=0)
        gr.barrier()
        self.store(self.place.queries(self.out[0], self.h), self.acc[0], self.own[0], self.unscaled)

    def load(self, n: Any) -> None:
        """Starts the copies of a tile of keys and values."""
        with gr.if_(n < self.hi):
            for s, t in zip(self.other, (self.K, self.V), strict=True):
                rows = self.place.keys(t, self.kh).tile([self.c.other, self.a.depth])[n, 0]
                gr.move(s[n % self.c.stages], rows, on=self.threads, atom=self.cp)
        gr.commit(self.cp)
