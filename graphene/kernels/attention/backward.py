"""Attention backward for sm_80 and up. The kernels use no atomics, so equal calls give equal bits.

With P the probabilities, computed again from the log-sum-exp, dP = dO V^T and delta = rowsum(dO * O):

    dV = P^T dO,   dS = P * (dP - delta),   dK = scale * dS^T Q,   dQ = scale * dS K

In ``attention_keys_gradient_kernel`` a block owns keys and goes through the queries. It computes the transposed scores,
S^T = K Q^T, so that P^T and dS^T lie in registers like the left operands of the next products. A group's heads add up
in the same accumulators. The kernel can leave dS in a work space, from which `product.py` computes dQ: five products in
all. ``attention_queries_gradient_kernel`` needs no work space: a block owns queries, goes through the keys and computes
scores once more. That is seven products in all.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import choice, size
from graphene.kernels.attention.problem import (
    Attention,
    AttentionArguments,
    Extra,
    Scores,
    Seen,
    SequenceView,
    negative,
    refuse_sinks,
)
from graphene.kernels.attention.reference import keys_gradient, queries_gradient
from graphene.kernels.attention.reference_saved import saved_results, saving_gradient
from graphene.kernels.attention.usual_arguments import arguments
from graphene.kernels.attention.workspace import PANEL, ROWS, saved_scores, saving_blocks, saving_place

PASSED_BITS = 12  # warps pass probabilities on as fp16, times 2^12, so that small ones are not subnormal


@dataclass(frozen=True)
class BackwardConfig:
    """The problem, and how it is computed: blocks of `own` rows and WARPS warps go through `other` rows at a time.

    `keep`: a warp's own rows stay in registers. For the gradient of keys, `saves` makes dS a result, too, and `paired`
    takes two warps for the same keys: one with P and dV, the other, a tile later, with dS and dK. So each holds one
    accumulator, and twice as many keys share each fragment that ldmatrix loads. Raises VerifyError KERNEL_ARGUMENT.
    """

    what: Attention
    own: int = 64
    other: int = 64
    WARPS: int = 4
    stages: int = 2
    keep: bool = False
    piece: int = 64
    saves: bool = False
    paired: bool = False

    def __post_init__(self) -> None:
        size("BackwardConfig", "WARPS", self.WARPS, multiple_of=1 + self.paired, most=32)
        size("BackwardConfig", "own", self.own, multiple_of=16 * self.WARPS // (2 if self.paired else 1))
        size("BackwardConfig", "other", self.other, multiple_of=16)
        size("BackwardConfig", "stages", self.stages, least=2 + self.paired)
        if self.saves:
            choice("BackwardConfig", "other", self.other, (PANEL, 2 * PANEL, ROWS))
        refuse_sinks("BackwardConfig", self.what, "pass an LSE that has the sinks in it")
        if self.what.score is not None:
            _core.fail("KERNEL_ARGUMENT", "BackwardConfig: score does not fit", ["want: no function of scores"])
        if self.paired and self.what.softcap:
            _core.fail("KERNEL_ARGUMENT", "BackwardConfig: paired does not fit", ["want: scores without a softcap"])

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        rows = 2 * (self.own + self.stages * self.other)
        passed = 2 * self.own * self.other if self.paired else 0
        numbers = 4 * (2 if self.what.bias is None else 3)
        return 2 * (rows * self.what.depth + passed) + numbers * self.stages * self.other


def attention_keys_gradient_kernel(c: BackwardConfig) -> gr.Kernel:
    """The gradients dK and dV.

    Arguments: G = dO, which lies like Q of ``attention_forward_kernel``; delta, LSE and, with a bias, rest (batch,
    heads, sq) in fp32; Q, K, V and the arguments after them of that kernel; dK and dV, which lie like K; that kernel's
    numbers, with the keys
    of the longest packed sequence. With `saves`, the work space (``saved_scores``) stands before dK. It holds some of
    the heads of keys of all batches, and the number of the first of these stands after the other numbers.
    """
    means: Any = functools.partial(saving_gradient if c.saves else keys_gradient, c.what, "p" if c.paired else None)
    read = functools.partial(saved_results, c.own) if c.saves else None
    with gr.Kernel("attention_keys_gradient", means, read, arguments(c.what, saves=c.saves)) as kernel:
        (_PairedKeysGradient if c.paired else _KeysGradient)(c).run()
    return kernel


def attention_queries_gradient_kernel(c: BackwardConfig) -> gr.Kernel:
    """dQ, which lies like Q; the other arguments are those of ``attention_keys_gradient_kernel``."""
    means = functools.partial(queries_gradient, c.what)
    with gr.Kernel("attention_queries_gradient", means, None, arguments(c.what)) as kernel:
        _QueriesGradient(c).run()
    return kernel


class _Gradient:
    """The common parts of both kernels."""

    name = ""
    results: tuple[str, ...] = ()
    of_keys = False

    def __init__(self, c: BackwardConfig) -> None:
        a = c.what
        self.c, self.a, self.parts = c, a, c.WARPS // (2 if c.paired else 1)
        self.W = c.own // self.parts
        args = self.args = AttentionArguments(a)
        self.G = args.tensor(gr.input, "G", args.sq, args.heads)
        rows = (args.heads, args.sq) if a.varlen else (args.batch, args.heads, args.sq)
        names = ("delta", "LSE", "rest") if a.bias is not None else ("delta", "LSE")
        self.delta, self.LSE, *rest = (gr.input(n, gr.row_major(*rows), gr.fp32) for n in names)
        self.rest = rest[0] if rest else None
        self.stored = [self.LSE, self.delta, *rest]  # the numbers of a query
        self.Q = args.tensor(gr.input, "Q", args.sq, args.heads)
        self.K, self.V = (args.tensor(gr.input, n, args.sk, args.kv_heads) for n in "KV")
        places = gr.Layout(args.batch + 1)
        self.starts = [gr.input(n, places, gr.i32) for n in ("starts_q", "starts_k")] if a.varlen else []
        self.extras = {"mask": args.extra("M", a.mask), "bias": args.extra("B", a.bias)}
        shape = (args.sk, args.kv_heads) if self.of_keys else (args.sq, args.heads)
        self.saved = saved_scores(a) if c.saves else None
        made = gr.inout if c.saves else gr.output  # other launches write the other heads
        self.out = [args.tensor(made, n, *shape) for n in self.results]
        self.scores = Scores(a)
        self.unscaled = gr.param("scale", gr.fp32)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.first = gr.param("first", gr.u32) if c.saves else None
        self.longest = gr.param("longest", gr.i32) if a.varlen else shape[0]
        self.threads = gr.threads(32 * c.WARPS)
        gr.wait_kernels()  # a kernel before this one computes delta
        (w, _) = self.threads.tile(32).indices()
        self.warp, self.mine, self.role = self.threads.tile(32)[w], w % self.parts, w // self.parts
        self.mma, self.cp = a.atom("mma"), gr.atom("cp.async.cg.16")
        self.ldsm, self.ldsm_t = gr.atom("ldmatrix.x4"), gr.atom("ldmatrix.x4.trans")

    def run(self) -> None:
        """The kernel."""
        args, a, c = self.args, self.a, self.c
        self.tiles_of_own = gr.ceil_div(self.longest, c.own)
        heads = (args.kv_heads if self.of_keys else args.heads, args.batch)
        if self.saved is None:
            blocks = gr.blocks(self.tiles_of_own, *heads)
        else:
            blocks = saving_blocks(self.tiles_of_own, self.saved.levels[0].shape[0], a)
        given = [self.G, self.delta, self.LSE, *self.stored[2:], self.Q, self.K, self.V, *self.starts]
        given += [t for t in self.extras.values() if t is not None]
        numbers = [self.scores.scale, self.scores.cap, self.unscaled, self.left, self.right, self.first]
        ins = [*given, *(x for x in numbers if x is not None)]
        outs = self.out
        if self.saved is not None:
            outs = [*outs, self.saved]
            ins += outs
        with gr.spec(outs, ins, on=(blocks, self.threads)):
            self.choose(blocks)
            self.allocate()
            self.body()

    def body(self) -> None:
        """What a block does."""
        raise NotImplementedError

    def choose(self, blocks: Any) -> None:
        """Chooses the rows, the head and the sequence that this block works on."""
        c = self.c
        if self.saved is None:
            at, self.h, b = blocks.indices()
        else:
            at, self.part = saving_place(blocks, self.a)
            pair = self.first + self.part
            past = gr.max(self.part - self.saved.levels[0].shape[0], pair - self.args.batch * self.args.kv_heads)
            gr.exit_if(past >= 0)
            self.h, b = pair % self.args.kv_heads, pair // self.args.kv_heads
        late = self.right is not None and not self.of_keys  # a block's work grows with its number
        self.at, self.b = (self.tiles_of_own - 1 - at if late else at), b
        self.place = SequenceView(self.args, b, self.starts)
        if self.a.varlen:
            rows, share = [t[:, self.h, :] for t in self.out], (self.at, self.tiles_of_own)
            self.place.fill_rest(self.of_keys, rows, share, self.threads)
            gr.exit_if(self.at * c.own >= (self.place.sk if self.of_keys else self.place.sq))
        self.seen = Seen(self.place.sq, self.place.sk, self.left, self.right)

    def allocate(self) -> None:
        """Shared memory and registers."""
        a, c, warp = self.a, self.c, self.warp
        self.own: Any = [a.shared(f"own{i}", c.own) for i in range(2)]
        self.other: Any = [a.shared(f"other{i}", c.other, c.stages) for i in range(2)]
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
                gr.move(a, self.own[mine].tile([self.W, 16])[self.mine, d], atom=self.ldsm)
            for p in range(self.c.other // self.piece_b):
                gr.move(self.rb, other.tile([self.piece_b, 16])[p, d], atom=self.ldsm)
                gr.matmul(out.tile([None, self.piece_b])[0, p], a, self.rb.T, atom=self.mma)

    def keep_own(self) -> None:
        """The warp's rows, which stay in registers."""
        if self.c.keep:
            for r, s in zip(self.ra, self.own, strict=True):
                gr.move(r, s.tile([self.W, None])[self.mine, 0], atom=self.ldsm)

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
        row, col = self.at * c.own + self.mine * self.W + row, n * c.other + col
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
        view, per16, mine = tensor[self.b, head, :, :], self.c.other // 16, self.at * self.parts + self.mine
        x = gr.fragment(name, [self.W, 16], e.dtype, self.mma.c, on=self.warp)
        if self.of_keys:
            e = Extra(e.dtype, e.rows)
            view = view.tile([16 if e.rows else 1, self.W])
            x = x if e.rows else x.reduced(1, f"{name}_keys", e.dtype)
        else:
            view = view.tile([self.W if e.rows else 1, 16])
            x = x if e.rows else x.reduced(0, f"{name}_keys", e.dtype)

        def part(j: int) -> gr.Tensor:
            if self.of_keys:
                return view[n * per16 + j if e.rows else 0, mine].T
            return view[mine if e.rows else 0, n * per16 + j]

        self.scores.add(self.S, self.c.other, e, x, part, load="ld.global")

    def probabilities(self, offset: gr.Tensor, rest: gr.Tensor | None) -> None:
        """P = exp2(S - LSE), with the negative LSE in units of log2(e); 0 where a query sees no key.

        Huge biases leave an LSE no digits for the number of keys. What it lacks is subtracted after it: `rest`.
        """
        S = self.S
        less = S + offset if self.a.prescaled else gr.fma(S, self.scores.factor, offset)
        S[:] = gr.exp2(less if rest is None else less - rest, ftz=True)

    def score_gradients(self, delta: gr.Tensor) -> None:
        """P becomes dS = P * (dP - delta), of capped scores times the cap's slope."""
        d = self.S * (self.dP - delta)
        self.P[:] = d * self.slope if self.a.softcap else d

    def store(self, out: gr.Tensor, acc: gr.Tensor, through: gr.Tensor, scale: Any) -> None:
        """Rounds a result and stores it through shared memory that only this warp has read."""
        r = gr.fragment("r", [self.W, self.a.depth], self.a.dtype, self.mma.c, on=self.warp)
        r[:] = acc * scale if scale is not None else acc
        mine = through.tile([self.W, None])[self.mine, 0]
        gr.move(mine, r, atom=gr.atom("st.shared.b32"))
        gr.barrier(on=self.warp)
        to = out.tile([self.c.own, self.a.depth])[self.at, 0].tile([self.W, None])[self.mine, 0]
        gr.move(to, mine, on=self.warp, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))


class _KeysGradient(_Gradient):
    results, of_keys = ("dK", "dV"), True

    def body(self) -> None:
        """What a block does."""
        a, c = self.a, self.c
        self.numbers = [(t, gr.alloc(f"s_{t.name}", [c.other], gr.fp32, gr.SH, stages=c.stages)) for t in self.stored]
        rows = [self.S.reduced(0, n) for n in ("lse", "dl", "rs")[: len(self.stored)]]
        for t in self.acc:
            gr.init(t, 0)
        lo, hi, whole_lo, whole_hi = self.query_tiles()
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
            gr.barrier()  # every warp sees the tile, and has read the one before, whose stage is loaded now
            self.load(i + c.stages - 1)
            n, head = self.number(i)
            sQ, sG = (s[i % c.stages] for s in self.other)
            self.multiply(self.S, 0, sQ)
            self.adjust(n, head, self.edge(n, whole_lo, whole_hi) > 0)
            for row, (_, s) in zip(rows, self.numbers, strict=True):
                gr.move(row, s[i % c.stages].reshape(0, gr.Layout((1, c.other))), atom=gr.atom("ld.shared.v2.b32"))
            rows[0][:] = negative(rows[0])
            self.probabilities(rows[0], None if self.rest is None else rows[2])
            self.P[:] = self.S
            self.accumulate(dV, sG)
            self.multiply(self.dP, 1, sG)
            self.score_gradients(rows[1])
            self.save(n, head)
            self.accumulate(dK, sQ)
        gr.wait(self.cp, pending=0)
        gr.barrier()
        gK, gV = (self.place.keys(t, self.h) for t in self.out)
        self.store(gK, dK, self.own[0], self.unscaled)
        self.store(gV, dV, self.own[1], None)

    def query_tiles(self) -> tuple[Any, Any, Any, Any]:
        """The tiles of queries of this block, and those that see all of its keys."""
        c = self.c
        lo, hi, whole_lo, whole_hi = self.seen.query_tiles(self.at * c.own, c.own, c.other)
        if self.a.bias is not None:  # queries past the last have an LSE of 0, which with a bias gives too large numbers
            whole_hi = gr.min(whole_hi, self.place.sq // c.other)
        if self.saved is not None:  # whole groups, so that all that is read of the work space is written
            lo, hi = self.seen.query_tiles(self.at * c.own, c.own, ROWS)[:2]
            lo, hi = lo * (ROWS // c.other), gr.min(hi * (ROWS // c.other), gr.ceil_div(self.place.sq, c.other))
        return lo, hi, whole_lo, whole_hi

    def edge(self, n: Any, whole_lo: Any, whole_hi: Any) -> Any:
        """More than 0 where some of the queries of tile `n` do not see all keys."""
        edge = gr.max(whole_lo - n, n - whole_hi + 1)
        # If the gradients of keys past the last are read, these keys count as not seen.
        return edge if self.saved is None else gr.max(edge, (self.at + 1) * self.c.own - self.place.sk)

    def save(self, n: Any, head: Any) -> None:
        """Stores a tile of scores' gradients in the order of registers, 16 bytes of a thread side by side."""
        if self.saved is None:
            return
        W, panels = self.W, self.c.other // PANEL
        tv = gr.tv(gr.Layout((4, 8), (2 * W, 1)), gr.Layout((2, 4, panels, W // 8), (W, 8 * W, PANEL * W, 8)))
        r = gr.fragment("saved", [W, self.c.other], self.a.dtype, tv, on=self.warp)
        r[:] = self.P
        vectors, (lane,) = r.values.tile([8]), self.warp.indices()
        of_head = self.saved[self.part, head - self.h * self.a.group, :, :, :]
        for i in range(W // 8):
            for p in range(panels):
                rows = of_head.tile([None, self.W, None])[0, self.at * self.parts + self.mine, 0]
                row = rows[n * panels + p, 8 * i + lane // 4, :]
                gr.move(row.tile([8])[lane % 4], vectors[i * panels + p], atom=gr.atom("st.global.v4.b32"))

    def number(self, i: Any) -> tuple[Any, Any]:
        """The tile of queries and the head of step i; the heads of the group come one after the other."""
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
            for t, s in self.numbers:
                numbers = self.place.per_query(t, head).tile([c.other])[n]
                gr.move(s[stage], numbers, on=self.threads, atom=gr.atom("cp.async.ca.4"))
        gr.commit(self.cp)


class _PairedKeysGradient(_KeysGradient):
    """Both warps of a pair run the same code. Their role decides which rows they read and what they compute of scores.

    Role 0 multiplies K by Q and P by dO, role 1 multiplies V by dO and dS by Q.
    """

    def allocate(self) -> None:
        """Shared memory and registers."""
        a, c, warp = self.a, self.c, self.warp
        self.own = a.shared("own", c.own, 2)
        self.other = a.shared("other", c.other, 2 * c.stages)
        self.each = len(self.stored)
        self.per_query = gr.alloc("per_query", [c.other], gr.fp32, gr.SH, stages=self.each * c.stages)
        self.ra = [gr.fragment("ra", [self.W, 16], a.dtype, self.mma.a, on=warp)]
        self.piece_b, self.piece_t = (math.gcd(n, c.piece) for n in (c.other, a.depth))
        self.rb = gr.fragment("rb", [self.piece_b, 16], a.dtype, self.mma.b, on=warp)
        self.rt = gr.fragment("rt", [self.piece_t, 16], a.dtype, self.mma.b, on=warp)
        self.S = gr.fragment("S", [self.W, c.other], gr.fp32, self.mma.c, on=warp)
        self.P = gr.fragment("P", [self.W, c.other], a.dtype, self.mma.a, on=warp)
        self.p = gr.fragment("p", [self.W, c.other], gr.fp16, self.mma.c, on=warp)
        self.acc = [gr.fragment("acc", [self.W, a.depth], gr.fp32, self.mma.c, on=warp)]
        vectors = self.W * c.other // 256
        self.passed = gr.alloc("passed", [self.parts, vectors, 32, 8], gr.fp16, gr.SH, stages=2)
        self.row = self.S.reduced(0, "row")
        self.more = None if self.rest is None else self.S.reduced(0, "more")

    def body(self) -> None:
        """What a block does."""
        c, acc = self.c, self.acc[0]
        gr.init(acc, 0)
        lo, hi, whole_lo, whole_hi = self.query_tiles()
        self.lo, self.tiles = lo, gr.max(hi - lo, 0)
        for r, t in enumerate((self.K, self.V)):
            rows = self.place.keys(t, self.h).tile([c.own, self.a.depth])[self.at, 0]
            gr.move(self.own[r], rows, on=self.threads, atom=self.cp)
        for i in range(c.stages - 2):
            self.load(i)
        for i in gr.loop("i", self.tiles * self.a.group + 1):
            gr.wait(self.cp, pending=c.stages - 3)
            gr.barrier()  # every warp sees the tile, and the second warps have read the last but one: its stage is free
            self.load(i + c.stages - 2)
            j = i - self.role
            with gr.if_((j >= 0) * (j < self.tiles * self.a.group)):
                self.step(gr.max(j, 0), whole_lo, whole_hi)
        gr.barrier()
        gK, gV = (self.place.keys(t, self.h) for t in self.out)
        with gr.if_(self.role == 0):
            self.store(gV, acc, self.own[0], 2.0**-PASSED_BITS)
        with gr.else_():
            self.store(gK, acc, self.own[1], self.unscaled)

    def step(self, j: Any, whole_lo: Any, whole_hi: Any) -> None:
        """One tile of queries by one of the two warps."""
        a, c, S, p = self.a, self.c, self.S, self.p
        n, head = self.number(j)
        at = 2 * (j % c.stages)
        gr.init(S, 0)
        mine, other = self.own[self.role].tile([self.W, 16]), self.other[at + self.role].tile([self.piece_b, 16])
        for d in range(a.depth // 16):
            gr.move(self.ra[0], mine[self.mine, d], atom=self.ldsm)
            for q in range(c.other // self.piece_b):
                gr.move(self.rb, other[q, d], atom=self.ldsm)
                gr.matmul(S.tile([None, self.piece_b])[0, q], self.ra[0], self.rb.T, atom=self.mma)
        first = self.each * (j % c.stages)
        self.load_row(self.row, first + self.role)
        vectors, (lane,) = p.values.tile([8]), self.warp.indices()
        with gr.if_(self.role == 0):
            self.adjust(n, head, self.edge(n, whole_lo, whole_hi) > 0)
            if self.more is None:
                self.row[:] = negative(self.row) + PASSED_BITS
            else:
                self.load_row(self.more, first + 2)
                self.row[:] = negative(self.row)
                self.more[:] = self.more - PASSED_BITS
            self.probabilities(self.row, self.more)
            p[:] = S
            for v in range(self.W * c.other // 256):
                to = self.passed[j % 2][self.mine, v, lane, :]
                gr.move(to, vectors[v], atom=gr.atom("st.shared.v4.b32"))
            self.P[:] = S if a.dtype != gr.fp16 else p
        with gr.else_():
            for v in range(self.W * c.other // 256):
                gr.move(vectors[v], self.passed[j % 2][self.mine, v, lane, :], atom=gr.atom("ld.shared.v4.b32"))
            self.row[:] = self.row * -(2.0**-PASSED_BITS)
            self.P[:] = p * gr.fma(S, 2.0**-PASSED_BITS, self.row)
            self.save(n, head)
        self.accumulate(self.acc[0], self.other[at + 1 - self.role])

    def load(self, i: Any) -> None:
        """Starts the copies of a tile of queries, of the gradient's rows, of their numbers."""
        c, stage = self.c, i % self.c.stages
        n, head = self.number(i)
        with gr.if_(i < self.tiles * self.a.group):
            for r, t in enumerate((self.Q, self.G)):
                rows = self.place.queries(t, head).tile([c.other, self.a.depth])[n, 0]
                gr.move(self.other[2 * stage + r], rows, on=self.threads, atom=self.cp)
            for r, t in enumerate(self.stored):
                numbers = self.place.per_query(t, head).tile([c.other])[n]
                gr.move(self.per_query[self.each * stage + r], numbers, on=self.threads, atom=gr.atom("cp.async.ca.4"))
        gr.commit(self.cp)

    def load_row(self, row: gr.Tensor, stage: Any) -> None:
        """Loads a number of each query into registers."""
        numbers = self.per_query[stage].reshape(0, gr.Layout((1, self.c.other)))
        gr.move(row, numbers, atom=gr.atom("ld.shared.v2.b32"))


class _QueriesGradient(_Gradient):
    results, of_keys = ("dQ",), False

    def body(self) -> None:
        """What a block does."""
        c = self.c
        lse, delta, *rest = (self.S.reduced(1, n) for n in ("lse", "dl", "rs")[: len(self.stored)])
        gr.init(self.acc[0], 0)
        self.kh = self.h // self.a.group
        lo, hi, whole_lo, whole_hi = self.seen.key_tiles(self.at * c.own, c.own, c.other)
        self.hi = hi
        self.load_own(self.place.queries(self.Q, self.h), self.place.queries(self.G, self.h))
        for i in range(c.stages - 1):
            self.load(lo + i)
        for r, t in zip((lse, delta, *rest), self.stored, strict=True):
            rows = self.place.per_query(t, self.h).tile([c.own])[self.at].tile([self.W])[self.mine]
            gr.move(r, rows.reshape(0, gr.Layout((self.W, 1))), atom=gr.atom("ld.global.b32"))
        lse[:] = negative(lse)
        if c.keep:
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()
            self.keep_own()
        for n in gr.loop("n", hi, start=lo):
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()  # every warp sees the tile, and has read the one before, whose stage is loaded now
            self.load(n + c.stages - 1)
            sK, sV = (s[n % c.stages] for s in self.other)
            self.multiply(self.S, 0, sK)
            self.adjust(n, self.h, gr.max(whole_lo - n, n - whole_hi + 1) > 0)
            self.probabilities(lse, rest[0] if rest else None)
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
