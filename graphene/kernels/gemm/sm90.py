"""GEMM for sm_90a: a TMA producer, wgmma consumers that share tiles or take turns, clusters, any epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import element
from graphene.kernels.epilogues import pointwise
from graphene.kernels.gemm.frame import Product, relu_of_bias
from graphene.kernels.gemm.operand import access
from graphene.kernels.gemm.result import Result, add_scaled, copy_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType
    from graphene.kernels.gemm.frame import Declared
    from graphene.kernels.gemm.operand import Operand

__all__ = ["gemm_sm90", "product_sm90"]

KINDS = {"fp16": "f32.f16", "bf16": "f32.bf16", "i8": "s32.s8"}
LINE_BYTES = 128  # of a tile in shared memory, which TMA swizzles
SHARED_BYTES = 227 * 1024
MOST_TILES = 2**31 - 2**16  # no sum of a tile and a grid is larger than 32 bits hold
PIECE = 64  # columns of C that are stored at once
REGISTERS = (24, 240)  # of the producer's threads, and of those of two consumers


def check_tile_sm90(product: Product) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless there is a kernel of that tile."""
    t, p = product.tile, product.problem

    def refuse(what: str, want: str, got: object, fix: str) -> None:
        _core.fail("KERNEL_ARGUMENT", f"gemm_sm90: {what}", [f"want: {want}", f"got: {got}"], fix)

    if p.dtype not in KINDS:
        refuse(f"no product of {p.dtype}", f"dtype {', '.join(KINDS)}", p.dtype, "take gemm_sm80")
    if p.dtype == "i8" and p.order != "TN":
        refuse("the instruction takes bytes along k", "order TN", p.order, "copy the operand, or take gemm_sm80")
    if t.warps not in ((4, 1), (8, 1), (1, 4), (1, 8)):
        refuse("warps do not fit", "(4, 1) or (8, 1), or (1, 4) or (1, 8)", t.warps, "take one or two warpgroups")
    if t.turns and max(t.warps) > 4:
        refuse(
            "turns need tiles of one warpgroup", "warps (4, 1) or (1, 4)", t.warps, "leave out turns, or halve warps"
        )
    for name, operand in (("A", product.a), ("B", product.b)):
        if operand.align_bytes < 16:
            refuse(f"TMA copies {name} by 16 bytes", f"lines of {name} that are multiples of 16 bytes",
                   operand.align_bytes, "pad it, or take gemm_sm80")  # fmt: skip
    h = Hopper(product)
    if h.rows % 64 or (h.swapped and h.rows != 64):
        want = "64 columns for each consumer" if h.swapped else "a multiple of 64 rows for each consumer"
        refuse("the tile does not fit its warps", want, f"tile {t.tile}, warps {t.warps}", "take another tile")
    line = LINE_BYTES * 8 // product.dtype.bits
    if t.tile[2] != line:
        refuse("a step of k is a line of shared memory", f"tile[2] = {line}", t.tile[2], f"take {line}")
    if h.columns > 256:
        refuse("the instruction has up to 256 columns", "256 or less", h.columns, "take a smaller tile")
    if (held := h.rows * h.columns // 128) > 208:
        refuse("sums do not fit into registers", "at most 208 for each thread", held, "take a smaller tile")
    if sum(n > 1 for n in t.cluster) > 1:
        refuse("clusters have one direction", "one number above 1", t.cluster, "take clusters along rows or columns")
    if t.cluster[2] > 1:
        refuse("k is not cut over clusters", "cluster[2] = 1", t.cluster, "take split_k")
    for what, operand, n, shares in (("A", h.left, h.block_rows, h.across), ("B", h.right, h.columns, h.down)):
        part = n // shares if n % shares == 0 else 0
        if shares > 1 and (part % 8 or (not operand.along_k and part % line)):
            refuse(f"blocks cannot share tiles of {what}", f"a multiple of {8 * shares} rows", n, "take another tile")
    if h.shared_bytes > SHARED_BYTES:
        refuse("tiles do not fit into shared memory", f"at most {SHARED_BYTES} bytes", h.shared_bytes,
               "take fewer stages or a smaller tile")  # fmt: skip


@dataclass(frozen=True)
class Hopper:
    """What the tile of a product says about its kernel.

    Rows and columns are those of the sums in registers, from `left` and `right`, A and B. If operands change places
    (`swapped`), rows are the columns of C, from B.
    """

    product: Product

    @property
    def swapped(self) -> bool:
        """Whether A and B have changed places: a few rows of C are then the columns of the instruction."""
        return self.product.tile.warps[1] > 1

    @property
    def left(self) -> Operand:
        """The operand whose rows are the rows of the sums."""
        return self.product.b if self.swapped else self.product.a

    @property
    def right(self) -> Operand:
        """The operand whose rows are the columns of the sums."""
        return self.product.a if self.swapped else self.product.b

    @property
    def block_rows(self) -> int:
        """Rows of a stage's tile of `left`."""
        return self.product.tile.tile[1 if self.swapped else 0]

    @property
    def columns(self) -> int:
        """Rows of a stage's tile of `right`."""
        return self.product.tile.tile[0 if self.swapped else 1]

    @property
    def rows(self) -> int:
        """Rows of a consumer."""
        return self.block_rows * 4 // max(self.product.tile.warps)

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.product.tile.turns else max(self.product.tile.warps) // 4

    @property
    def down(self) -> int:
        """Blocks of a cluster along the rows; they share tiles of `right`."""
        return self.product.tile.cluster[1 if self.swapped else 0]

    @property
    def across(self) -> int:
        """Blocks of a cluster along the columns; they share tiles of `left`."""
        return self.product.tile.cluster[0 if self.swapped else 1]

    @property
    def stage_bytes(self) -> int:
        """Shared memory of the tiles of a step of k."""
        return (self.block_rows + self.columns) * LINE_BYTES

    @property
    def staged(self) -> bool:
        """Whether the result passes through shared memory: pieces of 16-bit elements."""
        return self.product.c_type.bits == 16

    @property
    def width(self) -> int:
        """Columns of a piece of the sums that is rounded and stored at once."""
        return self.columns if self.columns % PIECE else PIECE

    @property
    def piece_bytes(self) -> int:
        """Shared memory of the pieces of all consumers."""
        return self.consumers * self.rows * self.width * 2 if self.staged else 0

    @property
    def loaded(self) -> list[str]:
        """The matrices that the epilogue reads: the residual, and with beta C."""
        p = self.product.problem
        return [] if self.product.splits else ["residual"] * p.residual + ["C"] * p.beta

    @property
    def by_boxes(self) -> bool:
        """Whether the result and what the epilogue reads are copied by TMA."""
        c = self.product.c_type
        return self.staged and Result.vector(c, self.product.problem.align[2]) * c.bits == 128

    @property
    def buffers(self) -> int:
        """Pieces of C that are on their way at once."""
        pieces, more = self.columns // self.width, self.more_pieces
        room = SHARED_BYTES - 2048 - self.product.tile.stages * (self.stage_bytes + 16)
        return 2 if pieces > 1 and self.piece_bytes and room >= 2 * (1 + more) * self.piece_bytes else 1

    @property
    def more_pieces(self) -> int:
        """Pieces beside that of the result, whose place the first loaded matrix has before it."""
        return max(len(self.loaded) - 1, 0) if self.by_boxes else 0

    @property
    def bias_elems(self) -> int:
        """Elements of the bias that a consumer keeps in shared memory."""
        has = self.by_boxes and self.product.problem.bias and not self.product.splits
        return (self.rows if self.swapped else self.columns) if has else 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        pieces = self.buffers * (1 + self.more_pieces) * self.piece_bytes
        return self.product.tile.stages * (self.stage_bytes + 16) + pieces + self.consumers * self.bias_elems * 2

    @cached_property
    def atom(self) -> Any:
        """The matrix instruction of all columns."""
        return self.atom_of(self.columns)

    def atom_of(self, columns: int) -> Any:
        """The matrix instruction of a number of columns."""
        depth = 256 // self.product.dtype.bits
        return gr.atom(f"wgmma.m64n{columns}k{depth}.{KINDS[self.product.problem.dtype]}")


def gemm_sm90(
    BM: int = 128,
    BN: int = 128,
    BK: int | None = None,
    STAGES: int = 4,
    epilogue: Callable[..., Any] | None = relu_of_bias,
    *,
    warps: tuple[int, int] | None = None,
    turns: bool | None = None,
    cluster: tuple[int, int, int] = (1, 1, 1),
    group: int = 8,
    dtype: DType = gr.fp16,
    order: str = "TN",
    out: DType | None = None,
    align: tuple[int, int, int] = (16, 16, 16),
    padded: tuple[bool, bool] = (False, False),
    b_as_kn: bool = False,
    batched: bool = False,
    bias: bool | None = None,
    residual: bool = False,
    alpha: bool = False,
    beta: bool = False,
    split_k: bool = False,
) -> gr.Kernel:
    """C = epilogue(A @ B.T, bias) for sm_90a, by TMA and wgmma; the arguments are those of gemm_sm80, and three more.

    - `warps`: (4,1) or (8,1), one or two consumers that share the BM rows of a tile; (1,4) or (1,8), one or two that
      share its BN columns. In the latter case A and B change places, which suits few rows: BM is any multiple of 16.
    - `turns`: two consumers compute a tile each, and one multiplies while the other stores (ping-pong). By default
      consumers take turns, unless `warps` says that two share a tile.
    - `cluster`: blocks of a cluster along the rows and columns of C, and k. Those along the rows load tiles of B
      together, those along the columns tiles of A. At most one of the numbers is above 1, and the last is 1.

    A and B are copied by TMA: `align` is 16 bytes for both. C has any alignment. `dtype` is fp16, bf16, or i8, whose
    operands are contiguous along k. BK is a line of 128 bytes. The rows of a consumer are multiples of 64. The tile
    that is an operand's columns of the instruction is up to 256 wide. Raises VerifyError KERNEL_ARGUMENT.
    """
    element("gemm_sm90", "dtype", dtype, tuple(KINDS))
    turns = warps is None if turns is None else turns
    return product_sm90(
        Product.of(
            "gemm_sm90", (BM, BN, LINE_BYTES * 8 // dtype.bits if BK is None else BK), STAGES, epilogue=epilogue,
            warps=(4, 1) if warps is None else warps, group=group, order=order, dtype=dtype, out=out, align=align,
            padded=padded, b_as_kn=b_as_kn, batched=batched, bias=bias, residual=residual, alpha=alpha, beta=beta,
            split_k=split_k, cluster=cluster, turns=turns,
        )
    )  # fmt: skip


def product_sm90(product: Product) -> gr.Kernel:
    """The kernel of a problem and a tile.

    One warpgroup is the producer: a thread of it fills a ring of stages by TMA. The others are consumers. They share
    the rows of a tile, or take turns with a tile each. Blocks are persistent: as many run as there is room for, and
    each goes through its tiles.
    """
    check_tile_sm90(product)
    h, t = Hopper(product), product.tile
    STAGES, BK, blocks_of = t.stages, t.tile[2], h.down * h.across
    load, wgmma = gr.atom("tma.load"), h.atom

    with gr.Kernel("gemm_sm90", **product.promise()) as kernel:
        of = product.declared()
        grid = Grid(h, of)
        block, everyone, cluster, rank = grid.blocks()
        wgs = gr.threads(128 * (1 + h.consumers)).tile(128)
        producer, consumers = wgs[0], wgs[1 : 1 + h.consumers]
        sX = staged(h.left, h.block_rows, BK, STAGES)
        sY = staged(h.right, h.columns, BK, STAGES)
        full = gr.mbarrier("full", STAGES, arrivals=1)
        empty = gr.mbarrier("empty", STAGES, arrivals=blocks_of * (1 if t.turns else h.consumers))
        turn = gr.named_barrier("turn", stages=2, threads=256) if t.turns else None
        store = Store(h, of.result)
        gr.barrier(on=everyone)  # the barriers are initialised
        gr.start_kernels()  # the next kernel's blocks may start as soon as there is room
        gr.wait_kernels()

        with gr.only(producer):
            if h.consumers > 1:
                gr.setmaxnreg(REGISTERS[0])
            with gr.only(producer.elect()):
                put = gr.ring("put", STAGES, phase=1)  # 1: the ring starts empty
                tiles = gr.scalar("tiles", grid.tiles, min=0, max=MOST_TILES)
                for tile in gr.loop("tile", tiles.value, start=block, step=grid.workers):
                    x, y, part, z = grid.place(tile, rank)
                    X, Y = matrices_of(h, product, of, z)
                    tX, tY = shared_part(X, h.block_rows, x, h.across, rank), shared_part(Y, h.columns, y, h.down, rank)
                    gX, gY = tX[0].tile([tX[1], BK])[tX[2], :], tY[0].tile([tY[1], BK])[tY[2], :]
                    for k in gr.loop("k", grid.steps):
                        i, at = put.index, part * grid.steps + k if grid.parts else k
                        empty[i].wait(put.phase)
                        full[i].arrive(expect=[sX[i], sY[i]])
                        for s, g, n, shares in ((sX[i], gX, tX[1], h.across), (sY[i], gY, tY[1], h.down)):
                            to = s.tile([n, None])[rank, 0] if shares > 1 else s
                            gr.move(to, g[at], atom=load, done=full[i], to=cluster if shares > 1 else None)
                        put.advance()

        with gr.only(consumers):
            if h.consumers > 1:
                gr.setmaxnreg(REGISTERS[1])
            w, _ = consumers.indices()
            mine, get = consumers[w], gr.ring("get", STAGES)
            acc = gr.fragment("acc", [h.rows, h.columns], product.sums, wgmma.c, on=mine)
            store.declare(mine, w)

            def release(back: int) -> None:  # a stage that was read so many steps ago
                with gr.only(mine.elect()):
                    empty[(get.index + (STAGES - back)) % STAGES].arrive(at=cluster)

            first, step = (block + w * grid.workers, gr.max(1, 2 * grid.workers)) if t.turns else (block, grid.workers)
            if turn is not None:
                get.advance(w * grid.steps)  # over the stages of a tile that is the other consumer's
                with gr.if_(w == 1):
                    turn[0].arrive()
            for tile in gr.loop("tile", grid.tiles, start=first, step=step):
                x, y, part, z = grid.place(tile, rank)
                row = x if t.turns or h.consumers == 1 else h.consumers * x + w
                X, Y = matrices_of(h, product, of, z)
                gX, gY = X.tile([h.rows, None])[row, 0], Y.tile([h.columns, None])[y, 0]
                if grid.parts or product.a.longer_k or product.b.longer_k:
                    ks = grid.steps * BK
                    gX, gY = (g.T.window(part * ks if grid.parts else 0, ks).T for g in (gX, gY))
                place = store.at(part, z, row, y)
                store.begin(place)
                with gr.matmul(acc, gX, gY.T, on=mine, accumulate=False):
                    if turn is not None:
                        turn[w].sync()
                    for k in gr.loop("k", grid.steps):
                        i = get.index
                        left = sX[i] if h.rows == h.block_rows else sX[i].tile([h.rows, None])[w, 0]
                        full[i].wait(get.phase)
                        gr.fence(wgmma)
                        gr.matmul(acc, left, sY[i].T, on=mine, atom=wgmma, accumulate=k > 0)
                        gr.commit(wgmma)
                        get.advance()
                        gr.wait(wgmma, pending=1)  # the step before has read its stage
                        with gr.if_(k > 0):
                            release(2)
                    if turn is not None:
                        turn[1 - w].arrive()
                    gr.wait(wgmma, pending=0)
                    release(1)
                if t.turns:
                    get.advance(grid.steps)
                store.store(acc, place)
            store.end()
        if blocks_of > 1:
            gr.barrier(on=everyone)  # nobody leaves while another block may still arrive here
    return kernel


def staged(operand: Operand, rows: int, ks: int, stages: int) -> Any:
    """Tiles [rows,ks] in shared memory, of lines that TMA writes and the instruction reads."""
    line, layout = ks, gr.row_major(rows, ks)
    if not operand.along_k:
        line = next(n for n in (64, 32, 16) if rows % n == 0)
        layout = gr.Layout(((line, rows // line), ks), ((1, ks * line), line))
    swizzle = gr.swizzle(line, operand.dtype)
    return gr.alloc(f"s{operand.name}", layout, operand.dtype, gr.SH, stages=stages, swizzle=swizzle)


def matrices_of(h: Hopper, product: Product, of: Declared, z: Any) -> tuple[Any, Any]:
    """Left and right (rows, k) of a member of the batch."""
    A, B = product.matrices(of, z)
    return (B, A) if h.swapped else (A, B)


def shared_part(t: Any, rows: int, at: Any, shares: int, rank: Any) -> tuple[Any, int, Any]:
    """The matrix, the rows that a block of a cluster loads, and which of them."""
    return t, rows // shares, (shares * at + rank if shares > 1 else at)


class Grid:
    """The tiles of all members of the batch and parts of k, and which of them a block computes."""

    def __init__(self, h: Hopper, of: Declared) -> None:
        self.h, self.of, self.parts = h, of, of.parts
        t, p = h.product.tile, h.product
        rows, columns = (of.N, of.M) if h.swapped else (of.M, of.N)
        self.rows, self.columns = gr.ceil_div(rows, h.down * h.block_rows), gr.ceil_div(columns, h.across * h.columns)
        # A matrix of more tiles has 4 TB at least: the bound tells that 32 bits count them.
        self.of_a_matrix = gr.min(self.rows * self.columns, MOST_TILES)
        self.tiles = gr.min(prod([self.rows, self.columns, *of.parts, *of.batch]), MOST_TILES)
        ks = of.A.shape[-1] if p.a.longer_k else of.B.shape[-2 if p.b_as_kn else -1]
        self.steps = gr.ceil_div(gr.ceil_div(ks, t.tile[2]), *of.parts) if of.parts else gr.ceil_div(ks, t.tile[2])
        self.workers = gr.min(gr.sm_count() // (h.down * h.across), self.tiles)

    def blocks(self) -> tuple[Any, Any, Any, Any]:
        """Declares them: the block or cluster, all blocks that wait for each other, the cluster, the block's rank."""
        if (n := self.h.down * self.h.across) == 1:
            (block,) = gr.blocks(self.workers).indices()
            return block, None, None, 0
        blocks = gr.blocks(n * self.workers, cluster=n)
        block, rank = blocks.indices()
        return block, blocks[block], blocks[block], rank

    def place(self, tile: Any, rank: Any) -> tuple[Any, Any, Any, Any]:
        """Row and column of a tile, the part of k, and the member of the batch."""
        h, rows, columns, group = self.h, self.rows, self.columns, self.h.product.tile.group
        z: Any = 0
        if self.parts or self.of.batch:
            z, tile = tile // self.of_a_matrix, tile % self.of_a_matrix
        part, z = (z // self.of.batch[0], z % self.of.batch[0]) if self.parts and self.of.batch else (z, z)
        # `group` rows of tiles side by side share A and B in the L2 cache. Minima and maxima change nothing: they tell
        # that 32 bits are enough, and that there is no quotient of negative numbers.
        of_group = gr.max(group, group * columns)
        first = gr.min(tile // of_group * group, rows)
        many = gr.max(1, gr.min(group, rows - first))
        x, y = first + tile % of_group % many, gr.min(tile % of_group // many, columns)
        return (h.down * x + rank if h.down > 1 else x), (h.across * y + rank if h.across > 1 else y), part, z


class Store:
    """The way of the sums to C: a piece of columns at a time, through shared memory if elements have 16 bits."""

    def __init__(self, h: Hopper, result: Result) -> None:
        self.h, self.result, self.dtype = h, result, result.dtype
        if h.staged:  # a consumer's piece has whole lines of C
            lines, line = (h.width, h.rows) if h.swapped else (h.rows, h.width)
            whole = line % PIECE != 0
            shape = [h.consumers * lines, line] if whole else gr.panels(h.consumers * lines, line, self.dtype)
            swizzle = None if whole else gr.swizzle(PIECE, self.dtype)
            names = ["sC", "sC2"][: 1 + h.more_pieces]
            self.shared = [gr.alloc(n, shape, self.dtype, gr.SH, stages=h.buffers, swizzle=swizzle) for n in names]
            self.lines = lines
        self.fetches = h.by_boxes and bool(h.loaded or h.bias_elems)
        if h.bias_elems:
            self.bias = gr.alloc("sBias", [h.consumers, h.bias_elems], self.dtype, gr.SH)
        if self.fetches:
            self.come = gr.mbarrier("come", h.consumers * self.ahead, arrivals=1)

    @property
    def ahead(self) -> int:
        """Pieces that are fetched before the sums are complete: as many as have buffers."""
        return self.h.buffers if self.h.loaded else 1

    def declare(self, mine: Any, w: Any) -> None:
        """Declares the registers of a consumer."""
        h, r = self.h, self.result
        self.mine, self.w = mine, w
        if h.product.epilogue is None:
            return
        # Beside sums that fill the registers there is room for a few columns of the terms.
        self.step = 16 if h.width % 16 == 0 and (h.loaded or r.vectors) else h.width
        tv = h.atom_of(self.step).c
        self.out = gr.fragment("out", [64, self.step], self.dtype, tv, on=mine)
        of = 1 if h.swapped else 0
        self.biases = [self.out.reduced(of, f"rbias{i or ''}", self.dtype) for i in range(len(r.vectors))]
        self.held = {n: gr.fragment(f"r{n}", [64, self.step], self.dtype, tv, on=mine) for n in h.loaded}
        if self.fetches:
            self.rounds = [gr.ring(f"round{i or ''}", 1) for i in range(self.ahead)]
            warps = mine.tile(32)
            self.warp = warps[warps.indices()[0]]

    def at(self, part: Any, z: Any, row: Any, column: Any) -> Place:
        """The consumer's tile of the result and its terms."""
        h = self.h
        place, sizes = ((column, row), [h.columns, h.rows]) if h.swapped else ((row, column), [h.rows, h.columns])
        r = self.result.tile(part, z, place, sizes)
        return Place({n: self.turned(t) for n, t in r.matrices.items()}, [self.turned(v) for v in r.vectors])

    def begin(self, tile: Place) -> None:
        """Starts copying what the epilogue needs first, before the products."""
        if self.fetches:
            with gr.only(self.mine.elect()):
                for j in range(min(self.ahead, self.h.columns // self.h.width)):
                    self.fetch(tile, j)

    def fetch(self, tile: Place, j: int) -> None:
        """Copies pieces of what the epilogue reads to shared memory, the first to where the result will be."""
        h, come, load = self.h, self.come[self.w * self.ahead + j % self.ahead], gr.atom("tma.load")
        copies = []
        if h.loaded:
            gr.wait(gr.atom("tma.store"), pending=0)  # the stores from these places have read them
            for name, place in self.places(j).items():
                copies.append((self.turned(place), self.turned(tile.piece(name, h.width, j))))
        if j == 0 and h.bias_elems:
            copies.append((self.bias[self.w, :], self.turned(tile.vectors[0])[0, :]))
        come.arrive(expect=[to for to, _ in copies])
        for to, source in copies:
            gr.move(to, source, atom=load, done=come)

    def places(self, j: int) -> dict[str, Any]:
        """Where pieces of the loaded matrices are in shared memory, [rows, columns] of the sums."""
        places = [s[j % self.h.buffers] for s in self.shared]
        return {n: self.mine_of(s) for n, s in zip(self.h.loaded, places, strict=True)}

    def store(self, acc: Any, tile: Place) -> None:
        """Stores the sums of a consumer's tile."""
        h, pieces = self.h, self.h.columns // self.h.width
        pair = 1 if h.swapped else 2  # neighbours that a lane holds
        width_bytes = min(pair * self.dtype.bits // 8, self.result.align_bytes)
        store = access("st.global", width_bytes)
        if h.product.epilogue is None:
            gr.move(tile.matrices["C"], acc, on=self.mine, atom=store)
            return
        if h.staged:
            store = gr.atom("stmatrix.x4.trans" if h.swapped else "stmatrix.x4")
        for j in range(pieces):
            if self.fetches and (j == 0 or h.loaded):
                ring = self.rounds[j % self.ahead]
                self.come[self.w * self.ahead + j % self.ahead].wait(ring.phase)
                ring.advance()
            to = self.opened(j) if h.staged else tile.piece("C", h.width, j)
            for i in range(h.width // self.step):
                self.load_biases(tile, j * (h.width // self.step) + i, width_bytes)
                for m in range(h.rows // 64):  # rows of an instruction: so few results are under way at once
                    self.load_terms(tile, j, i, m, width_bytes)
                    self.round(acc.tile([64, self.step])[m, j * (h.width // self.step) + i])
                    if h.loaded and h.by_boxes:
                        gr.barrier(self.warp)  # all its lanes have read what they replace
                    gr.move(to.tile([64, self.step])[m, i], self.out, on=self.mine, atom=store)
            if h.staged:
                self.close(tile.piece("C", h.width, j), to)
            if self.fetches and h.loaded and j + self.ahead < pieces:
                with gr.only(self.mine.elect()):
                    self.fetch(tile, j + self.ahead)

    def load_biases(self, tile: Place, at: int, width_bytes: int) -> None:
        """Loads the biases of a step of columns, or with `swapped` of each instruction's rows."""
        h = self.h
        for held, v in zip(self.biases, tile.vectors, strict=True):
            if h.bias_elems:
                row = self.bias.tile([1, None])[self.w, 0]
                v, load = self.turned(row), access("ld.shared", width_bytes)
            else:
                load = access("ld.global", width_bytes)
            if not h.swapped:
                gr.move(held, v.tile([None, self.step])[0, at], on=self.mine, atom=load)
            elif at == 0 and h.rows == 64:
                gr.move(held, v, on=self.mine, atom=load)

    def load_terms(self, tile: Place, j: int, i: int, m: int, width_bytes: int) -> None:
        """Loads a step of columns of the matrices that the epilogue reads."""
        h = self.h
        places = self.places(j) if h.loaded and h.by_boxes else {n: tile.piece(n, h.width, j) for n in h.loaded}
        load = access("ld.global", width_bytes)
        if h.by_boxes:
            load = gr.atom("ldmatrix.x4.trans" if h.swapped else "ldmatrix.x4")
        for name, held in self.held.items():
            gr.move(held, places[name].tile([64, self.step])[m, i], on=self.mine, atom=load)

    def round(self, x: Any) -> None:
        """Computes the results of a step of columns from the sums and the terms, and rounds them."""
        r = self.result
        x = gr.cast(x, gr.fp32) if x.dtype == gr.i32 != self.dtype else x
        x = x * r.scalars["alpha"] if "alpha" in r.scalars else x
        x = add_scaled(x, self.held["C"], r.scalars["beta"]) if "beta" in r.scalars else x
        residual = [self.held["residual"]] if "residual" in self.held else []
        epilogue = self.h.product.epilogue
        assert epilogue is not None  # sums without one are stored unchanged
        self.out[:] = pointwise(epilogue, x, *self.biases, *residual)

    def turned(self, t: Any) -> Any:
        """A tile of the sums as C has it, or the other way round."""
        return t.T if self.h.swapped else t

    def mine_of(self, pieces: Any) -> Any:
        """The consumer's piece."""
        return self.turned(pieces.tile([self.lines, None])[self.w, 0])

    def opened(self, j: int) -> Any:
        """The shared memory of a piece, [rows, columns] of the sums, once the piece before has left it."""
        if self.h.by_boxes and not self.h.loaded:  # else `fetch` has waited
            gr.wait(gr.atom("tma.store"), pending=self.h.buffers - 1)
        if not (self.h.by_boxes and self.h.loaded):
            gr.barrier(on=self.mine)
        return self.mine_of(self.shared[0][j % self.h.buffers])

    def close(self, to: Any, held: Any) -> None:
        """Stores a piece by TMA, or by the threads if lines of C begin anywhere."""
        store = gr.atom("tma.store")
        to, held = self.turned(to), self.turned(held)
        if self.h.by_boxes:
            gr.fence("async.shared")  # what threads stored becomes visible to the copy
            gr.barrier(on=self.mine)
            with gr.only(self.mine.elect()):
                gr.move(to, held, atom=store)
                gr.commit(store)
        else:
            gr.barrier(on=self.mine)
            width = self.result.align_bytes
            copy_lines(to, held, self.mine, width, (access("ld.shared", width), access("st.global", width)))

    def end(self) -> None:
        """Waits until nothing in shared memory is needed any more."""
        if self.h.by_boxes:
            gr.wait(gr.atom("tma.store"), pending=0)


class Place(NamedTuple):
    """A consumer's tile of the matrices, [rows, columns] of the sums, and of the biases."""

    matrices: dict[str, Any]
    vectors: list[Any]

    def piece(self, name: str, width: int, j: int) -> Any:
        """The columns of a piece."""
        return self.matrices[name].tile([None, width])[0, j]
