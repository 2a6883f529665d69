"""Attention forward for sm_80 and up: online softmax in registers, P re-laid out from C to A layout for free.

A block owns BM queries of one head; its warps own BM / WARPS of them each and share the tiles of BN keys and values,
which are copied `stages` - 1 steps ahead. Algorithm: FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene.kernels._arguments import size
from graphene.kernels._attention import Arguments, Attention, Extra, Scores, Seen


@dataclass(frozen=True)
class ForwardConfig:
    """What is computed, and how: BM queries a block, BN keys a step, WARPS warps.

    `lse`: the logarithm of each row's sum of exponentials is a result, too. `packed`: the queries of all heads that
    share keys are rows of one block, as short queries need. `split`: blocks share the keys of a row; their results are
    partial ones in fp32, for ``attention_combine_kernel``. Raises VerifyError KERNEL_ARGUMENT.
    """

    what: Attention
    BM: int = 64
    BN: int = 64
    WARPS: int = 4
    stages: int = 2
    q_in_registers: bool = True
    lse: bool = False
    packed: bool = False
    split: bool = False

    def __post_init__(self) -> None:
        size("ForwardConfig", "WARPS", self.WARPS, most=32)
        size("ForwardConfig", "BM", self.BM, multiple_of=16 * self.WARPS)
        size("ForwardConfig", "BN", self.BN, multiple_of=16)
        size("ForwardConfig", "stages", self.stages, least=2)


def attention_forward_kernel(c: ForwardConfig) -> gr.Kernel:
    """O = softmax(scale * Q K^T + bias) V over the keys that each query sees; a query that sees none gives zeros.

    Arguments: Q, K, V of (batch, seq, heads, D) and any strides along unit D, the mask and the bias of (batch, heads,
    sq or 1, sk) where there are any, O as Q, LSE (batch, heads, sq) in fp32, scale_log2 = scale * log2(e),
    cap_log2 = cap * log2(e), left, right. Packed sequences: Q (total, heads, D), the first and last places of the
    sequences of queries and of keys (batch + 1, i32), LSE (heads, total), the longest sequence's queries.
    """
    with gr.Kernel("attention") as kernel:
        _Forward(c).run()
    return kernel


class _Forward:
    """One kernel in the making."""

    def __init__(self, c: ForwardConfig) -> None:
        a = c.what
        self.c, self.a, self.WM = c, a, c.BM // c.WARPS
        args = Arguments(a)
        self.args = args
        self.Q = args.tensor(gr.input, "Q", args.sq, args.heads)
        self.K = args.tensor(gr.input, "K", args.sk, args.kv_heads)
        self.V = args.tensor(gr.input, "V", args.sk, args.kv_heads)
        places = gr.Layout(args.batch + 1)
        self.starts = [gr.input(n, places, gr.i32) for n in ("starts_q", "starts_k")] if a.varlen else []
        self.extras = {"mask": args.extra("M", a.mask), "bias": args.extra("B", a.bias)}
        rows = (args.heads, args.sq) if a.varlen else (args.batch, args.heads, args.sq)
        self.LSE: gr.Tensor | None = None
        if c.split:
            self.splits = gr.sym("splits", max=65535)
            self.O = gr.output("O", gr.row_major(self.splits, *rows, a.D), gr.fp32, align_bytes=16)
            self.LSE = gr.output("LSE", gr.row_major(self.splits, *rows), gr.fp32)
        else:
            self.O = args.tensor(gr.output, "O", args.sq, args.heads)
            if c.lse:
                self.LSE = gr.output("LSE", gr.row_major(*rows), gr.fp32)
        self.scores = Scores(a)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.longest = gr.param("longest", gr.i32) if a.varlen else args.sq
        self.threads = gr.threads(32 * c.WARPS)
        (self.w, _) = self.threads.tile(32).indices()
        self.warp = self.threads.tile(32)[self.w]
        self.mma, self.cp = a.atom("mma"), gr.atom("cp.async.cg.16")
        self.ldsm, self.ldsm_t = gr.atom("ldmatrix.x4"), gr.atom("ldmatrix.x4.trans")

    def place(self) -> None:
        """Which rows, which head, which sequence, which part of the keys this block works on."""
        a, c, args = self.a, self.c, self.args
        row_tiles = gr.ceil_div(self.longest * (a.group if c.packed else 1), c.BM)
        along = gr.blocks(
            row_tiles * self.splits if c.split else row_tiles,
            args.kv_heads if c.packed else args.heads,
            args.batch,
        )
        bm, h, b = along.indices()
        self.part = 0
        if c.split:
            self.part, bm = bm % self.splits, bm // self.splits
        elif self.right is not None:  # the longest rows first: no block is late
            bm = row_tiles - 1 - bm
        self.bm, self.b = bm, b
        self.kh = h if c.packed else h // a.group
        self.h = h
        if a.varlen:
            (q_start, q_end), (k_start, k_end) = (
                [gr.index(s[b + i], 0, 2**31 - 1) for i in (0, 1)] for s in self.starts
            )
            self.sq, self.sk = gr.max(q_end - q_start, 0), gr.max(k_end - k_start, 0)
            gr.exit_if(bm * c.BM >= self.sq)
            self.q_start = q_start
            self.gQ, self.gO = (t[:, h, :].window(q_start, self.sq) for t in (self.Q, self.O))
            self.gK, self.gV = (t[:, self.kh, :].window(k_start, self.sk) for t in (self.K, self.V))
        else:
            self.sq, self.sk = args.sq, args.sk
            self.gK, self.gV = (t[b, :, self.kh, :] for t in (self.K, self.V))
            if not c.packed:
                self.gQ = self.Q[b, :, h, :]
        self.gK, self.gV = (t.tile([c.BN, a.depth])[:, 0] for t in (self.gK, self.gV))
        self.seen = Seen(self.sq, self.sk, self.left, self.right)

    def allocate(self) -> None:
        """Shared memory and registers."""
        a, c, WM, warp = self.a, self.c, self.WM, self.warp
        self.sQ = a.shared("sQ", c.BM)
        self.sK, self.sV = a.shared("sK", c.BN, c.stages), a.shared("sV", c.BN, c.stages)
        self.q = gr.fragment("q", [WM, a.depth if c.q_in_registers else 16], a.dtype, self.mma.a, on=warp)
        self.rk = gr.fragment("rk", [c.BN, 16], a.dtype, self.mma.b, on=warp)
        self.rv = gr.fragment("rv", [a.depth, 16], a.dtype, self.mma.b, on=warp)
        self.S = gr.fragment("S", [WM, c.BN], gr.fp32, self.mma.c, on=warp)
        self.P = gr.fragment("P", [WM, c.BN], a.dtype, self.mma.a, on=warp)
        self.acc = gr.fragment("acc", [WM, a.depth], gr.fp32, self.mma.c, on=warp)
        self.m, self.m_old, self.alpha, self.mb = (self.S.reduced(1, n) for n in ("m", "m_old", "alpha", "mb"))
        self.l = self.S.reduced(1, "l", lanes=True)  # each lane's share of the row's sum

    def run(self) -> None:
        """The kernel."""
        c = self.c
        self.place()
        self.allocate()
        lo, hi, whole_lo, whole_hi = self.range()
        for t, v in ((self.acc, 0), (self.l, 0), (self.m, -gr.inf)):
            gr.init(t, v)
        self.load_queries()
        if c.q_in_registers:
            gr.commit(self.cp)
        for i in range(c.stages - 1):
            self.load(lo + i, hi)
        if c.q_in_registers:
            gr.wait(self.cp, pending=c.stages - 1)
            gr.barrier()
            gr.move(self.q, self.sQ.tile([self.WM, None])[self.w, 0], atom=self.ldsm)
        for n in gr.loop("n", hi, start=lo):
            gr.wait(self.cp, pending=c.stages - 2)
            gr.barrier()  # tile n is everybody's, and everybody is done with tile n - 1, whose stage is loaded now
            self.load(n + c.stages - 1, hi)
            self.multiply_queries(n)
            self.adjust(n, whole_lo, whole_hi)
            self.online_softmax()
            self.multiply_values(n)
        self.finish()

    def range(self) -> tuple[Any, Any, Any, Any]:
        """The tiles of keys of this block, and those that need no mask."""
        a, c = self.a, self.c
        if c.packed:
            first, rows = self.bm * c.BM // a.group, (c.BM - 1) // a.group + 2
        else:
            first, rows = self.bm * c.BM, c.BM
        lo, hi, whole_lo, whole_hi = self.seen.key_tiles(first, rows, c.BN)
        if c.split:
            each = gr.ceil_div(gr.max(hi - lo, 0), self.splits)
            lo = lo + self.part * each
            hi = gr.min(hi, lo + each)
        return lo, hi, whole_lo, whole_hi

    def copy_rows(self, inside: gr.Tensor, of: gr.Tensor, store: bool) -> None:
        """Copies the rows (query, head of the group) of Q or O, 16 bytes at a time, into or out of shared memory."""
        a, c, (t,) = self.a, self.c, self.threads.indices()
        columns, threads = a.depth // 8, 32 * c.WARPS
        outside = of[self.b, :, :, :].tile([1, 1, 8])
        for i in range(-(-c.BM * columns // threads)):
            row, column = (i * threads + t) // columns, (i * threads + t) % columns
            place = self.bm * c.BM + row
            there = outside[place // a.group, self.kh * a.group + place % a.group, column][0, 0, :]
            here = inside.tile([1, 8])[row, column][0, :]
            if store:
                gr.move(there, here, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))
            else:
                gr.move(here, there, atom=self.cp)

    def load_queries(self) -> None:
        """Starts the copy of the block's queries."""
        if self.c.packed:
            self.copy_rows(self.sQ, self.Q, store=False)
        else:
            gr.move(self.sQ, self.gQ.tile([self.c.BM, self.a.depth])[self.bm, 0], on=self.threads, atom=self.cp)

    def load(self, n: Any, hi: Any) -> None:
        """Starts the copy of a tile of keys and values."""
        with gr.if_(n < hi):
            gr.move(self.sK[n % self.c.stages], self.gK[n], on=self.threads, atom=self.cp)
            gr.move(self.sV[n % self.c.stages], self.gV[n], on=self.threads, atom=self.cp)
        gr.commit(self.cp)

    def multiply_queries(self, n: Any) -> None:
        """S = Q K^T."""
        sK = self.sK[n % self.c.stages]
        gr.init(self.S, 0)
        for d in range(self.a.depth // 16):
            if self.c.q_in_registers:
                q = self.q.tile([None, 16])[0, d]
            else:
                q = self.q
                gr.move(q, self.sQ.tile([self.WM, 16])[self.w, d], atom=self.ldsm)
            gr.move(self.rk, sK.tile([None, 16])[0, d], atom=self.ldsm)
            gr.matmul(self.S, q, self.rk.T, atom=self.mma)

    def adjust(self, n: Any, whole_lo: Any, whole_hi: Any) -> None:
        """Scores from products: softcap, bias, masks."""
        S, a = self.S, self.a
        if a.prescaled:
            S[:] = self.scores.capped(S)
        for name, e in (("bias", a.bias), ("mask", a.mask)):
            if e is not None:
                self.apply(n, name, e)
        row, col = S.coords()
        row = self.bm * self.c.BM + self.w * self.WM + row
        if self.c.packed:
            row = row // a.group
        with gr.if_(gr.max(whole_lo - n, n - whole_hi + 1) > 0):
            S[:] = gr.where(self.seen.of(row, n * self.c.BN + col), S, -gr.inf)

    def apply(self, n: Any, name: str, e: Extra) -> None:
        """Adds a bias or lets a mask rule scores out, 16 keys at a time."""
        bits = e.vector * e.dtype.bits
        width = {8: "b8", 64: "nc.v2.b32"}.get(bits, f"nc.b{bits}")
        atom = gr.atom(f"ld.global.{width}")
        tensor = self.extras[name]
        assert tensor is not None
        view = tensor[self.b, self.h * self.a.group if self.c.packed else self.h, :, :]
        tile = [self.WM if e.rows else 1, 16]
        first_row = self.bm * self.c.WARPS + self.w if e.rows else 0
        x = gr.fragment(name, [self.WM, 16], e.dtype, self.mma.c, on=self.warp)
        if not e.rows:
            x = x.reduced(0, f"{name}_keys", e.dtype)
        for j in range(self.c.BN // 16):
            part = self.S.tile([None, 16])[0, j]
            gr.move(x, view.tile(tile)[first_row, n * (self.c.BN // 16) + j], atom=atom)
            if e.dtype == gr.u8:
                part[:] = gr.where(x != 0, part, -gr.inf)
            else:
                part[:] = gr.fma(x, math.log2(math.e), part)

    def online_softmax(self) -> None:
        """P = exp2(S - m), where m is each row's maximum so far; what was summed for an older one shrinks."""
        S, m, factor = self.S, self.m, self.scores.factor
        self.m_old[:] = m
        gr.reduce("max", m, S, axis=1, accumulate=True)  # own values, then shfl.bfly over the row's four lanes
        self.mb[:] = -factor * gr.where(m == -gr.inf, 0, m)  # a row that sees nothing gives 0, not NaN
        self.alpha[:] = gr.exp2(self.less(self.m_old), ftz=True)
        S[:] = gr.exp2(self.less(S), ftz=True)
        self.l[:] = self.l * self.alpha
        gr.reduce("add", self.l, S, axis=1, accumulate=True)  # own values only: l keeps the lanes apart
        self.acc[:] = self.acc * self.alpha
        self.P[:] = S  # C layout to A layout: the same owners, so only a conversion

    def less(self, x: Any) -> Any:
        """Scores relative to the maximum."""
        return x + self.mb if self.a.prescaled else gr.fma(x, self.scores.factor, self.mb)

    def multiply_values(self, n: Any) -> None:
        """The accumulator += P V."""
        sV = self.sV[n % self.c.stages]
        for j in range(self.c.BN // 16):
            gr.move(self.rv, sV.tile([16, None])[j, 0].T, atom=self.ldsm_t)
            gr.matmul(self.acc, self.P.tile([None, 16])[0, j], self.rv.T, atom=self.mma)

    def finish(self) -> None:
        """O = acc / l, through shared memory for stores of 16 bytes; LSE."""
        a, c, WM, w = self.a, self.c, self.WM, self.w
        total = self.S.reduced(1, "total")
        gr.reduce("add", total, self.l, axis=1)
        self.finish_lse(total)
        r = gr.fragment("r", [WM, a.depth], a.dtype, self.mma.c, on=self.warp)
        r[:] = self.acc * gr.where(total == 0, 0, gr.rcp(total))
        gr.wait(self.cp, pending=0)
        gr.barrier(on=self.warp)  # these rows of sQ are this warp's alone
        sO = a.shared("sO", c.BM, over=[self.sQ])
        mine = sO.tile([WM, None])[w, 0]
        gr.move(mine, r, atom=gr.atom("st.shared.b32"))
        gr.barrier(on=self.warp)
        gO = self.gO if a.varlen else self.O[self.b, :, self.h, :]
        out = gO.tile([c.BM, a.depth])[self.bm, 0].tile([WM, None])[w, 0]
        gr.move(out, mine, on=self.warp, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))

    def finish_lse(self, total: gr.Tensor) -> None:
        """LSE = m + log(sum exp(s - m)); -inf for a query that sees nothing."""
        if self.LSE is None:
            return
        lse = self.S.reduced(1, "lse")
        lse[:] = gr.fma(self.m, self.scores.factor, gr.log2(total)) * math.log(2)
        lse[:] = gr.where(total == 0, -gr.inf, lse)
        rows = self.LSE[self.h, :].window(self.q_start, self.sq) if self.a.varlen else self.LSE[self.b, self.h, :]
        rows = rows.tile([self.c.BM])[self.bm].tile([self.WM])[self.w]
        gr.move(rows.reshape(0, gr.Layout((self.WM, 1))), lse, atom=gr.atom("st.global.b32"))
