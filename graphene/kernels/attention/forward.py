"""Attention forward for sm_80 and up: online softmax in registers, P re-laid out from C to A layout for free.

A block owns BM queries of one head. Each of its warps owns BM / WARPS of them, and all share the tiles of BN keys and
values, which are copied `stages` - 1 steps ahead. The algorithm is FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass
from typing import Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, size
from graphene.kernels.attention.online_softmax import OnlineSoftmax
from graphene.kernels.attention.problem import (
    MOST,
    Attention,
    AttentionArguments,
    Extra,
    Scores,
    Seen,
    SequenceView,
    negative,
    refuse_sinks,
)
from graphene.kernels.attention.reference import forward, parts, parts_read
from graphene.kernels.attention.usual_arguments import arguments


@dataclass(frozen=True)
class ForwardConfig:
    """The problem, and how it is computed: BM queries a block, BN keys a step, WARPS warps.

    `chunk`: the number of keys whose scores are in registers at a time; None means all BN. `lazy`: sums shrink only
    where a maximum has grown by more than 2^8. `lse`: the logarithm of each row's sum of exponentials is a result, too.
    `packed`: the queries of all heads that share keys are rows of one block, for few queries; they share masks and
    biases. `split`: several blocks share the keys of a row and store partial results in fp32, for
    ``attention_combine_kernel``. `listed`: a list from ``attention_tiles_kernel`` says which tiles of keys the mask
    lets a block see. `even`: each query sees all keys, and their number is a multiple of BN. Then no tile needs a
    mask: the step is printed once instead of twice, which saves much of the compiler's time. `one_loop`: the step is
    printed once for all problems, with its mask in an ``if``. `training`: what only a
    gradient needs is a result, too; `lse` belongs to it, and `packed` does not go with it. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    what: Attention
    BM: int = 64
    BN: int = 64
    WARPS: int = 4
    stages: int = 2
    chunk: int | None = None
    lazy: bool = True
    piece: int = 64
    q_in_registers: bool = True
    lse: bool = False
    packed: bool = False
    split: bool = False
    listed: bool = False
    even: bool = False
    one_loop: bool = False
    training: bool = False

    def __post_init__(self) -> None:
        size("ForwardConfig", "WARPS", self.WARPS, most=32)
        size("ForwardConfig", "BM", self.BM, multiple_of=16 * self.WARPS)
        size("ForwardConfig", "BN", self.BN, multiple_of=16)
        size("ForwardConfig", "stages", self.stages, least=2)
        size("ForwardConfig", "chunk", self.chunk or self.BN, multiple_of=16, most=self.BN)
        refuse_sinks("ForwardConfig", self.what, "take ForwardSm90, or multiply O by sigmoid(LSE - sink)")
        if self.even and not self.may_be_even:
            want = "want: no window, mask, bias, softcap or score, no packed sequences, no split of the keys"
            _core.fail(
                "KERNEL_ARGUMENT", "ForwardConfig: even needs a problem in which each query sees all keys", [want]
            )
        if self.training and (self.packed or self.split or not self.lse):
            got = ", ".join(f"{n}={getattr(self, n)}" for n in ("lse", "packed", "split"))
            want = "want: lse=True, packed=False, split=False"
            _core.fail("KERNEL_ARGUMENT", "ForwardConfig: training does not fit", [want, f"got: {got}"])

    @property
    def bits(self) -> bool:
        """Whether lists say which keys of a tile are seen; here threads load the mask."""
        return False

    @property
    def may_be_even(self) -> bool:
        """Whether each query sees all keys, and no score is changed by itself."""
        a = self.what
        return not (a.left or a.right or a.mask or a.prescaled or a.varlen or self.split)


def attention_forward_kernel(c: ForwardConfig) -> gr.Kernel:
    """O = softmax(scale * Q K^T + bias) V over the keys that each query sees; a query that sees none gives zeros.

    Arguments: Q, K, V (batch, seq, heads, D) with unit stride in D and any other strides; if there are any, the mask
    and the bias (batch, heads, sq or 1, sk); O like Q, LSE (batch, heads, sq) in fp32, scale_log2 = scale * log2(e),
    above 0 unless it is `scaled`, cap_log2 = cap * log2(e), left, right. Packed sequences have Q (total, heads, D), the
    places where the sequences of queries and of keys begin and end (batch + 1, i32), LSE (heads, total), and the
    longest sequence's queries. For a
    gradient, `training` adds after LSE: wide, O in fp32, row-major; and, with a bias, rest, which like LSE is what LSE
    lacks of log2(sum exp2(scores)) after its rounding: log2(sum) = LSE * log2(e) + rest. With `split`, O and LSE are
    parts in fp32, and LSE is two tensors (splits, batch, kv_heads, sq * group): the maximum that a part's exponentials
    are relative to, and log2 of their sum.
    """
    a, means, read = c.what, functools.partial(forward, c.what, c.lse, c.training), None
    if c.split:
        means, read = functools.partial(parts, a), functools.partial(parts_read, a.group)
    with gr.Kernel("attention", means, read, arguments(a, c.BN, c.BM, far=True, packed=c.packed)) as kernel:
        Forward(c).run()
    return kernel


@dataclass
class KeyTiles:
    """The tiles of keys of a block in the order of work: first the `whole` ones, which need no mask."""

    count: Any
    whole: Any
    first: Any
    first_whole: Any

    def number(self, i: Any) -> Any:
        """The tile that step i works on."""
        before = self.first_whole - self.first  # how many tiles come before the whole ones
        if isinstance(before, int) and before == 0:
            return self.first + i
        whole = self.whole
        return self.first + i + before * (i < whole) - whole * (whole <= i) * (i < whole + before)


class _Listed:
    """The tiles of keys of a block, from its list."""

    def __init__(self, row: gr.Tensor, adjusts: bool) -> None:
        self.row = row
        self.whole: Any = 0 if adjusts else gr.index(row[0], 0, MOST)
        self.count: Any = gr.index(row[1], 0, MOST)

    def number(self, i: Any) -> Any:
        """The tile that step i works on."""
        return gr.index(self.row[i + 2], 0, MOST)


class Forward:
    """One kernel in the making."""

    def __init__(self, c: ForwardConfig) -> None:
        a = c.what
        self.c, self.a, self.WM = c, a, c.BM // c.WARPS
        args = AttentionArguments(a, c.BN if c.even else 1)
        self.args = args
        self.Q = args.tensor(gr.input, "Q", args.sq, args.heads)
        self.K, self.V = self.declare_keys()
        places = gr.Layout(args.batch + 1)
        self.starts = [gr.input(n, places, gr.i32) for n in ("starts_q", "starts_k")] if a.varlen else []
        self.extras = {"mask": args.extra("M", a.mask), "bias": args.extra("B", a.bias)}
        self.listed = c.listed and a.mask is not None
        if c.listed and a.mask is not None:
            row_tiles = gr.ceil_div(args.sq, c.BM) if a.mask.rows or a.left or a.right else 1
            shape = (args.batch, args.heads, row_tiles, gr.ceil_div(args.sk, c.BN) + 2)
            self.T = gr.input("T", gr.Layout(shape, (*gr.sym("Tb Th Tm"), 1)), gr.i32)
        rows = (args.heads, args.sq) if a.varlen else (args.batch, args.heads, args.sq)
        self.LSE: gr.Tensor | None = None
        more: list[gr.Tensor] = []
        if c.split:
            self.splits = gr.sym("splits", max=MOST_BLOCKS_YZ)
            parts = (self.splits, args.batch, args.kv_heads, args.sq * a.group)
            self.O = gr.output("O", gr.row_major(*parts, a.D), gr.fp32, align_bytes=16)
            self.tops = gr.output("top", gr.row_major(*parts), gr.fp32)
            self.LSE = gr.output("LSE", gr.row_major(*parts), gr.fp32)
            more = [self.tops, self.LSE]
        else:
            self.O = args.tensor(gr.output, "O", args.sq, args.heads)
            if c.lse:
                self.LSE = gr.output("LSE", gr.row_major(*rows), gr.fp32)
                more = [self.LSE]
        self.wide: gr.Tensor | None = None
        self.rest: gr.Tensor | None = None
        if c.training:
            front = () if a.varlen else (args.batch,)
            self.wide = gr.output("wide", gr.row_major(*front, args.sq, args.heads, a.D), gr.fp32, align_bytes=16)
            more.append(self.wide)
            if a.bias is not None:
                self.rest = gr.output("rest", gr.row_major(*rows), gr.fp32)
                more.append(self.rest)
        self.extra_load = "ld.global.nc"
        self.made, self.block_rows, self.step_keys = [self.O, *more], c.BM, c.BN
        self.scores = Scores(a)
        self.left = gr.param("left", gr.i32) if a.left else None
        self.right = gr.param("right", gr.i32) if a.right else None
        self.numbers = [x for x in (self.scores.scale, self.scores.cap, self.left, self.right) if x is not None]
        self.longest = gr.param("longest", gr.i32) if a.varlen else args.sq
        self.declare_threads()
        self.mma, self.cp = a.atom("mma"), gr.atom("cp.async.cg.16")
        self.ldsm, self.ldsm_t = gr.atom("ldmatrix.x4"), gr.atom("ldmatrix.x4.trans")

    def declare_keys(self) -> tuple[gr.Tensor, gr.Tensor]:
        """Keys and values."""
        return (
            self.args.tensor(gr.input, "K", self.args.sk, self.args.kv_heads),
            self.args.tensor(gr.input, "V", self.args.sk, self.args.kv_heads),
        )

    def declare_threads(self) -> None:
        """The threads of a block, and which of its rows a warp has."""
        self.threads = gr.threads(32 * self.c.WARPS)
        (self.w, _) = self.threads.tile(32).indices()
        self.warp = self.threads.tile(32)[self.w]

    def blocks(self) -> Any:
        """The grid."""
        a, c, args = self.a, self.c, self.args
        row_tiles = gr.ceil_div(self.longest * (a.group if c.packed else 1), c.BM)
        self.row_tiles = row_tiles
        return gr.blocks(
            row_tiles * self.splits if c.split else row_tiles,
            args.kv_heads if c.packed else args.heads,
            args.batch,
        )

    def choose(self, blocks: Any) -> None:
        """Chooses the rows, the head, the sequence and the part of the keys that this block works on."""
        a, c, args = self.a, self.c, self.args
        bm, h, b = blocks.indices()
        self.part, self.share = 0, None
        if c.split:
            self.part, bm = bm % self.splits, bm // self.splits
            self.share = self.part, self.splits
        elif self.right is not None:  # the longest rows first, so that no block ends late
            bm = self.row_tiles - 1 - bm
        self.bm, self.b = bm, b
        self.kh = h if c.packed else h // a.group
        self.h = h
        self.place = SequenceView(args, b, self.starts)
        self.sq, self.sk = self.place.sq, self.place.sk
        if a.varlen:
            rows = [t[:, h, :] for t in (self.O, self.wide) if t is not None]
            rows += [] if self.LSE is None else [self.LSE[h, :]]
            self.place.fill_rest(False, rows, (bm, self.row_tiles), self.threads)
            gr.exit_if(bm * c.BM >= self.sq)
        self.gK, self.gV = (self.place.keys(t, self.kh) for t in (self.K, self.V))
        self.gK, self.gV = (t.tile([c.BN, a.depth])[:, 0] for t in (self.gK, self.gV))
        self.seen = Seen(self.sq, self.sk, self.left, self.right)

    def allocate(self) -> None:
        """Shared memory and registers."""
        a, c, WM, warp = self.a, self.c, self.WM, self.warp
        self.sQ = a.shared("sQ", c.BM)
        self.sK, self.sV = self.allocate_keys()
        self.q = gr.fragment("q", [WM, a.depth if c.q_in_registers else 16], a.dtype, self.mma.a, on=warp)
        self.chunk = c.chunk or c.BN
        self.piece_k, self.piece_v = (math.gcd(n, c.piece) for n in (self.chunk, a.depth))
        self.rk = gr.fragment("rk", [self.piece_k, 16], a.dtype, self.mma.b, on=warp)
        self.rv = gr.fragment("rv", [self.piece_v, 16], a.dtype, self.mma.b, on=warp)
        two = min(2, c.BN // self.chunk)
        self.S = [gr.fragment(f"S{i}", [WM, self.chunk], gr.fp32, self.mma.c, on=warp) for i in range(two)]
        self.P = gr.fragment("P", [WM, self.chunk], a.dtype, self.mma.a, on=warp)
        self.acc = gr.fragment("acc", [WM, a.depth], gr.fp32, self.mma.c, on=warp)
        self.online = OnlineSoftmax(self.scores, self.S[0], c.lazy, c.training)

    def allocate_keys(self) -> tuple[gr.Tensor, gr.Tensor]:
        """The tiles of keys and values."""
        return self.a.shared("sK", self.c.BN, self.c.stages), self.a.shared("sV", self.c.BN, self.c.stages)

    def tiles_of(self, i: Any) -> tuple[gr.Tensor, gr.Tensor]:
        """The keys and values of step i."""
        return self.sK[i % self.c.stages], self.sV[i % self.c.stages]

    def run(self) -> None:
        """The kernel."""
        blocks = self.blocks()
        with gr.spec(self.made, self.given(), on=(blocks, self.threads)):
            self.body(blocks)

    def given(self) -> list[Any]:
        """The arguments that the results depend on."""
        tensors = [self.Q, self.K, self.V, *self.starts, *(t for t in self.extras.values() if t is not None)]
        tensors += [self.T] if self.listed else []
        return [*tensors, *self.numbers, *([self.splits] if self.c.split else [])]

    def body(self, blocks: Any) -> None:
        """What a block does."""
        c = self.c
        self.choose(blocks)
        self.allocate()
        self.steps = self.range()
        gr.init(self.acc, 0)
        self.online.begin()
        self.load_queries()
        if c.q_in_registers:
            gr.commit(self.cp)
        for i in range(c.stages - 1):
            self.load(i)
        if c.q_in_registers:
            gr.wait(self.cp, pending=c.stages - 1)
            gr.barrier()
            gr.move(self.q, self.sQ.tile([self.WM, None])[self.w, 0], atom=self.ldsm)
        whole = self.steps.whole
        if c.one_loop and not c.even and not (isinstance(whole, int) and whole == 0):
            for i in gr.loop("i", self.steps.count):
                self.step(i, masked=None)
        else:
            for i in gr.loop("i", whole):
                self.step(i, masked=False)
            if not c.even:
                for i in gr.loop("i", self.steps.count, start=whole):
                    self.step(i, masked=True)
        self.finish()

    def step(self, i: Any, masked: bool | None) -> None:
        """One tile of keys and values, chunk by chunk; the next products run while exponentials are computed.

        `masked`: None where the step's number says whether it needs a mask.
        """
        c = self.c
        gr.wait(self.cp, pending=c.stages - 2)
        gr.barrier()  # every warp sees the tile, and has read the one before, whose stage is loaded now
        self.load(i + c.stages - 1)
        chunks = c.BN // self.chunk
        n = 0 if masked is False else self.steps.number(i)

        def scores(j: int) -> None:
            S = self.S[j % 2]
            self.multiply_queries(S, i, j)
            with gr.if_(i >= self.steps.whole) if masked is None else contextlib.nullcontext():
                if masked is not False:
                    self.adjust(S, n * chunks + j)

        scores(0)
        for j in range(chunks):
            if j + 1 < chunks:
                scores(j + 1)
            self.online_softmax(self.S[j % 2])
            self.multiply_values(i, j)

    def range(self) -> KeyTiles | _Listed:
        """The tiles of keys of this block; those that need no mask come first."""
        a, c = self.a, self.c
        if self.listed and a.mask is not None:
            return _Listed(self.T[self.b, self.h, self.bm if a.mask.rows or a.left or a.right else 0, :], a.prescaled)
        if c.packed:
            first, rows = self.bm * self.block_rows // a.group, (self.block_rows - 1) // a.group + 2
        else:
            first, rows = self.bm * c.BM, c.BM
        lo, hi, whole_lo, whole_hi = self.seen.key_tiles(first, rows, self.step_keys)
        if self.share is not None:
            part, parts = self.share
            each = gr.ceil_div(gr.max(hi - lo, 0), parts)
            lo = lo + part * each
            hi = gr.min(hi, lo + each)
        if a.mask is not None or a.prescaled:
            whole_lo = whole_hi = lo
        elif a.left:
            whole_lo = gr.min(gr.max(whole_lo, lo), gr.max(hi, lo))
            whole_hi = gr.min(gr.max(whole_hi, whole_lo), gr.max(hi, lo))
        else:
            whole_lo, whole_hi = lo, gr.min(gr.max(whole_hi, lo), gr.max(hi, lo))
        return KeyTiles(gr.max(hi - lo, 0), whole_hi - whole_lo, lo, whole_lo)

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
            gQ = self.place.queries(self.Q, self.h).tile([self.c.BM, self.a.depth])[self.bm, 0]
            gr.move(self.sQ, gQ, on=self.threads, atom=self.cp)

    def load(self, i: Any) -> None:
        """Starts the copies of a tile of keys and values."""
        stage = i % self.c.stages
        with gr.if_(i < self.steps.count):
            n = self.steps.number(i)
            gr.move(self.sK[stage], self.gK[n], on=self.threads, atom=self.cp)
            gr.move(self.sV[stage], self.gV[n], on=self.threads, atom=self.cp)
        gr.commit(self.cp)

    def multiply_queries(self, S: gr.Tensor, i: Any, j: int) -> None:
        """S = Q K^T of chunk j of a tile."""
        sK, pieces = self.tiles_of(i)[0].tile([self.piece_k, 16]), self.chunk // self.piece_k
        gr.init(S, 0)
        for d in range(self.a.depth // 16):
            if self.c.q_in_registers:
                q = self.q.tile([None, 16])[0, d]
            else:
                q = self.q
                gr.move(q, self.sQ.tile([self.WM, 16])[self.w, d], atom=self.ldsm)
            for p in range(pieces):
                gr.move(self.rk, sK[j * pieces + p, d], atom=self.ldsm)
                gr.matmul(S.tile([None, self.piece_k])[0, p], q, self.rk.T, atom=self.mma)

    def adjust(self, S: gr.Tensor, n: Any) -> None:
        """Scores from products: softcap, bias, masks; `n` counts chunks of keys."""
        a = self.a
        row, col = S.coords()
        row = self.bm * self.block_rows + self.w * self.WM + row
        if self.c.packed:
            row = row // a.group
        if a.prescaled:
            S[:] = self.scores.capped(S)
        self.scores.changed(S, row + (self.sk - self.sq), n * self.chunk + col)
        for name, e in (("bias", a.bias), ("mask", a.mask)):
            if e is not None:
                self.apply(S, n, name, e)
        S[:] = gr.where(self.seen.of(row, n * self.chunk + col), S, -gr.inf)

    def apply(self, S: gr.Tensor, n: Any, name: str, e: Extra) -> None:
        """Adds a bias or lets a mask rule scores out."""
        tensor = self.extras[name]
        assert tensor is not None
        view = tensor[self.b, self.h * self.a.group if self.c.packed else self.h, :, :]
        view = view.tile([self.WM if e.rows else 1, 16])[self.bm * self.c.WARPS + self.w if e.rows else 0, :]
        x = gr.fragment(name, [self.WM, 16], e.dtype, self.mma.c, on=self.warp)
        x = x if e.rows else x.reduced(0, f"{name}_keys", e.dtype)
        self.scores.add(S, self.chunk, e, x, lambda j: view[n * (self.chunk // 16) + j], self.extra_load)

    def online_softmax(self, S: gr.Tensor) -> None:
        """P = exp2(S - m), where m is each row's maximum so far; sums for an older maximum shrink."""
        self.online.weigh(S, shrink=self.shrink)
        self.P[:] = S  # C layout to A layout: the same owners, so only a conversion

    def shrink(self) -> None:
        """Makes the accumulator relative to a new maximum."""
        self.acc[:] = self.acc * self.online.alpha

    def multiply_values(self, i: Any, j: int) -> None:
        """The accumulator += P V of chunk j of a tile."""
        sV = self.tiles_of(i)[1].tile([16, self.piece_v])
        for k in range(self.chunk // 16):
            for p in range(self.a.depth // self.piece_v):
                gr.move(self.rv, sV[j * (self.chunk // 16) + k, p].T, atom=self.ldsm_t)
                self.clear(self.rv, j * (self.chunk // 16) + k)
                acc = self.acc.tile([None, self.piece_v])[0, p]
                gr.matmul(acc, self.P.tile([None, 16])[0, k], self.rv.T, atom=self.mma)

    def clear(self, rv: gr.Tensor, k: int) -> None:
        """Stores zeros where the 16 keys from 16 `k` on of a step have no values, since copies leave such places."""

    def finish(self) -> None:
        """O = acc / l and LSE."""
        a, c, WM, w = self.a, self.c, self.WM, self.w
        total = self.S[0].reduced(1, "total")
        gr.reduce("add", total, self.online.l, axis=1)
        self.finish_lse(total)
        r = gr.fragment("r", [WM, a.depth], gr.fp32 if c.split else a.dtype, self.mma.c, on=self.warp)
        if self.wide is None:
            r[:] = self.acc * gr.where(total == 0, 0, gr.rcp(total))
        else:
            total[:] = self.online.multiplied(self.S[0], total)
            self.acc[:] = self.acc * gr.where(total == 0, 0, gr.rcp(total))
            rows = self.place.queries(self.wide, self.h).tile([c.BM, a.depth])[self.bm, 0].tile([WM, None])[w, 0]
            gr.move(rows, self.acc, atom=gr.atom("st.global.v2.b32"))
            r[:] = self.acc
        if c.split:
            part = self.O[self.part, self.b, self.h, :, :].tile([c.BM, a.depth])[self.bm, 0]
            gr.move(part.tile([WM, None])[w, 0], r, atom=gr.atom("st.global.v2.b32"))
            return
        if not c.q_in_registers:
            gr.wait(self.cp, pending=0)  # without keys, no step has waited
        gr.barrier(on=self.warp if c.q_in_registers and not c.packed else None)  # sQ is free
        sO = a.shared("sO", c.BM, over=[self.sQ])
        mine = sO.tile([WM, None])[w, 0]
        gr.move(mine, r, atom=gr.atom("st.shared.b32"))  # so that stores have 16 bytes
        gr.barrier(on=None if c.packed else self.warp)
        if c.packed:
            self.copy_rows(sO, self.O, store=True)
            return
        out = self.place.queries(self.O, self.h).tile([c.BM, a.depth])[self.bm, 0].tile([WM, None])[w, 0]
        gr.move(out, mine, on=self.warp, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))

    def finish_lse(self, total: gr.Tensor) -> None:
        """LSE = m + log(sum exp(s - m)); -inf for a query that sees no key. Parts store m and log2 of the sum."""
        if self.LSE is None:
            return
        lse, c = self.S[0].reduced(1, "lse"), self.c
        if c.split:
            lse[:] = gr.log2(total)
            self.online.m[:] = self.online.m * self.scores.factor
            for t, x in ((self.tops, self.online.m), (self.LSE, lse)):
                self.store_rows(t[self.part, self.b, self.h, :], x)
            return
        lse[:] = gr.where(total == 0, -gr.inf, gr.fma(self.online.m, self.scores.factor, gr.log2(total)) * math.log(2))
        if c.packed:
            self.store_packed(lse)
            return
        self.store_rows(self.place.per_query(self.LSE, self.h), lse)
        if self.rest is not None:  # the gradient's kernels begin with the same sum, which is exact where it matters
            lse[:] = gr.where(total == 0, 0, self.online.m + negative(lse) + gr.log2(total))
            self.store_rows(self.place.per_query(self.rest, self.h), lse)

    def store_rows(self, rows: gr.Tensor, x: gr.Tensor) -> None:
        """Stores a number of each of the warp's rows."""
        rows = rows.tile([self.c.BM])[self.bm].tile([self.WM])[self.w]
        gr.move(rows.reshape(0, gr.Layout((self.WM, 1))), x, atom=gr.atom("st.global.b32"))

    def store_packed(self, lse: gr.Tensor) -> None:
        """The LSE of rows (query, head of the group)."""
        assert self.LSE is not None
        g, (lane,) = self.a.group, self.warp.indices()
        for i in range(self.WM // 8):  # rows of a C fragment lie eight apart, each on four lanes
            row = self.bm * self.c.BM + self.w * self.WM + lane // 4 + 8 * i
            with gr.if_((lane % 4 == 0) * (row < self.args.sq * g)):
                gr.move(self.LSE[self.b, self.kh * g + row % g, row // g], lse.values[i])
