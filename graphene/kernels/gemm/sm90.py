"""GEMM for sm_90a: a TMA producer, wgmma consumers that share tiles or take turns, clusters, any epilogue."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import element
from graphene.kernels.gemm.frame import Product, relu_of_bias
from graphene.kernels.gemm.hopper_store import Store
from graphene.kernels.gemm.sm90_tile import KINDS, SUMS, Hopper, check_tile_sm90
from graphene.kernels.tma import LINE_BYTES, MOST_TILES, clusters_at_once, declare_clusters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphene.dtypes import DType
    from graphene.kernels.gemm.frame import Declared
    from graphene.kernels.gemm.operand import Operand

__all__ = ["gemm_sm90", "product_sm90"]

# Registers of the producer's threads and of those of two consumers, by the most sums of a thread that fit.
REGISTERS = {160: (40, 232), SUMS: (24, 240)}
AT_ONCE = 8  # steps of fp8 in a turn of the loop; promoted sums are added up beside the next step's products


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
    b_dtype: DType | None = None,
    scales: str | None = None,
    promote: bool = False,
    terms_in_stages: bool = False,
) -> gr.Kernel:
    """C = epilogue(A @ B.T, bias) for sm_90a, by TMA and wgmma; the arguments are those of gemm_sm80, and seven more.

    - `warps`: (4,1) or (8,1), one or two consumers that share the BM rows of a tile; (1,4) or (1,8), one or two that
      share its BN columns. In the latter case A and B change places, which suits few rows: BM is any multiple of 8.
    - `turns`: two consumers compute a tile each, and one multiplies while the other stores (ping-pong). By default
      consumers take turns, unless `warps` says that two share a tile.
    - `cluster`: blocks of a cluster along the rows and columns of C, and k. Those along the rows load tiles of B
      together, those along the columns tiles of A. Those along k sum a part of k each, which suits few tiles; then the
      other two numbers are 1.

    - `b_dtype`: the type of B, if both are different types of fp8.
    - `scales`: of i8 and fp8. With "tensor" there are scale_a and scale_b, a number each in memory (fp32), by which
      sums are multiplied before all else. With "rows" scale_a (M) is of A's rows, scale_b (N) of B's.
    - `promote`: of fp8, whose sums have 14 bits. Sums of 128 k are added up in fp32. A thread has those of two steps
      beside the sums, so the tile has a third of the size.
    - `terms_in_stages`: a residual, or with beta C, comes through the stages after a tile's operands, as soon as these
      leave room. Otherwise consumers fetch it to where the result will be, and one that is wider than two pieces of 64
      columns comes while they store. It is for consumers that share a tile's rows, or are alone, and for no clusters.

    A and B are copied by TMA: `align` is 16 bytes for both. C has any alignment. `dtype` is fp16, bf16, or i8, fp8e4m3,
    fp8e5m2, fp32, whose operands are contiguous along k; TMA rounds fp32 to tf32. BK is a line of 128 bytes. The rows
    of a consumer are multiples of 64. The tile that is an operand's columns of the instruction is up to 256 wide.
    Raises VerifyError KERNEL_ARGUMENT.
    """
    element("gemm_sm90", "dtype", dtype, tuple(KINDS))
    turns = warps is None if turns is None else turns
    return product_sm90(
        Product.of(
            "gemm_sm90", (BM, BN, LINE_BYTES * 8 // dtype.bits if BK is None else BK), STAGES, epilogue=epilogue,
            warps=(4, 1) if warps is None else warps, group=group, order=order, dtype=dtype, out=out, align=align,
            padded=padded, b_as_kn=b_as_kn, batched=batched, bias=bias, residual=residual, alpha=alpha, beta=beta,
            split_k=split_k, cluster=cluster, turns=turns, b_dtype=None if b_dtype is None else str(b_dtype),
            scales=scales, promote=promote, terms_in_stages=terms_in_stages,
        )
    )  # fmt: skip


def product_sm90(product: Product, tiles: Callable[[Hopper, Declared], Grid] | None = None) -> gr.Kernel:
    """The kernel of a problem and a tile; ``tiles`` says which tiles a block computes, if not all of a product's.

    One warpgroup is the producer: a thread of it fills a ring of stages by TMA. The others are consumers. They share
    the rows of a tile, or take turns with a tile each. Blocks are persistent: as many run as there is room for, and
    each goes through its tiles.
    """
    check_tile_sm90(product)
    h, t = Hopper(product), product.tile
    STAGES, BK = t.stages, t.tile[2]
    of_producer, of_consumers = next(n for most, n in REGISTERS.items() if h.held <= most)
    load, wgmma = gr.atom("tma.load"), h.atom

    with gr.Kernel(product.name, **product.promise()) as kernel:
        of = product.declared()
        grid = (tiles or Grid)(h, of)
        block, cluster, rank = declare_clusters(grid.workers, h.blocks)
        threads = gr.threads(128 * (1 + h.consumers))
        wgs = threads.tile(128)
        producer, consumers = wgs[0], wgs[1 : 1 + h.consumers]
        sX = tiles_in_stages(h.left, h.block_rows, BK, STAGES)
        sY = tiles_in_stages(h.right, h.columns, BK, STAGES)
        full = gr.mbarrier("full", STAGES, arrivals=1)
        mates = Mates(h, cluster, rank)
        empty = gr.mbarrier("empty", STAGES, arrivals=mates.arrivals * (1 if t.turns else h.consumers))
        turn = gr.named_barrier("turn", stages=2, threads=256) if t.turns else None
        store = Store(h, of.result)
        join = Join(h) if h.cuts > 1 else None
        gr.barrier(on=cluster)  # the barriers are initialised
        gr.start_kernels()  # the next kernel's blocks may start as soon as there is room
        gr.wait_kernels()
        grid.find(block, threads)

        with gr.only(producer):
            if h.consumers > 1:
                gr.setmaxnreg(of_producer)
            with gr.only(producer.elect()):
                put = gr.ring("put", STAGES, phase=1)  # 1: the ring starts empty
                grid.count("put")
                for tile in gr.loop("tile", grid.counted, start=block, step=grid.workers):
                    x, y, part, z = grid.place(tile, mates)
                    first_k = grid.first_step(part, rank)
                    X, Y = matrices_of(h, product, of, z)
                    tX = shared_part(X, h.block_rows, x, h.across, mates.column)
                    tY = shared_part(Y, h.columns, y, h.down, mates.row)
                    gX, gY = tX[0].tile([tX[1], BK])[tX[2], :], tY[0].tile([tY[1], BK])[tY[2], :]
                    for k in gr.loop("k", grid.steps):
                        i = put.index
                        empty[i].wait(put.phase)
                        full[i].arrive(expect=[sX[i], sY[i]])
                        for s, g, n, part_of, to in (
                            (sX[i], gX, tX[1], mates.column, mates.of_left),
                            (sY[i], gY, tY[1], mates.row, mates.of_right),
                        ):
                            mine_of = s if to is None else s.tile([n, None])[part_of, 0]
                            gr.move(mine_of, g[first_k + k], atom=load, done=full[i], to=to)
                        put.advance()
                    terms = of.result.tile(part, z, (x, y), [h.block_rows, h.columns]).matrices if h.in_stages else {}
                    for j in range(h.columns // h.width if terms else 0):
                        for name in h.in_stages:
                            empty[put.index].wait(put.phase)
                            full[put.index].arrive(expect=[sX[put.index]])
                            piece = terms[name].tile([None, h.width])[0, j]
                            gr.move(sX[put.index], piece, atom=load, done=full[put.index])
                            put.advance()  # as after a step

        with gr.only(consumers):
            if h.consumers > 1:
                gr.setmaxnreg(of_consumers)
            w, _ = consumers.indices()
            mine, get = consumers[w], gr.ring("get", STAGES)
            acc = gr.fragment("acc", [h.rows, h.columns], product.sums, wgmma.c, on=mine)
            promote = product.problem.promote
            names = ("even", "odd") if promote else ()
            newest = [gr.fragment(n, [h.rows, h.columns], product.sums, wgmma.c, on=mine) for n in names]
            store.declare(mine, w)
            if join is not None:
                join.declare(mine)

            def release(back: int) -> None:  # a stage that was read `back` steps ago
                with gr.only(mine.elect()):
                    for all_of in mates.told:
                        empty[(get.index + (STAGES - back)) % STAGES].arrive(at=all_of)

            def start(sums: Any, accumulate: bool) -> None:  # the products of a step
                i = get.index
                left = sX[i] if h.rows == h.block_rows else sX[i].tile([h.rows, None])[w, 0]
                full[i].wait(get.phase)
                gr.fence(wgmma)  # the assembler wants a fence even where earlier products have ordered the registers
                gr.matmul(sums, left, sY[i].T, on=mine, atom=wgmma, accumulate=accumulate)
                gr.commit(wgmma)
                get.advance()

            def finish() -> None:  # all products are over
                gr.wait(wgmma, pending=0)
                release(1)

            stages = Stages(sX, h.rows, w, full, get, release)
            first, step = (block + w * grid.workers, gr.max(1, 2 * grid.workers)) if t.turns else (block, grid.workers)
            if turn is not None:
                get.advance(w * grid.steps)  # over the stages of a tile that is the other consumer's
                with gr.if_(w == 1):
                    turn[0].arrive()
            grid.count("get")
            for tile in gr.loop("tile", grid.counted, start=first, step=step):
                x, y, part, z = grid.place(tile, mates)
                row = x if t.turns or h.consumers == 1 else h.consumers * x + w
                X, Y = matrices_of(h, product, of, z)
                gX, gY = X.tile([h.rows, None])[row, 0], Y.tile([h.columns, None])[y, 0]
                if grid.parts or join is not None or product.a.longer_k or product.b.longer_k:
                    ks = grid.steps * BK
                    gX, gY = (g.T.window(grid.first_step(part, rank) * BK, ks).T for g in (gX, gY))
                place = store.at(part, z, row, y)
                for pieces, on_owner in on_owners(h, rank):
                    with on_owner:
                        store.begin(place, pieces)
                with gr.matmul(acc, gX, gY.T, on=mine, accumulate=False):
                    if turn is not None:
                        turn[w].sync()
                    if promote:
                        promoted(acc, newest, grid, start, finish, release)
                    else:  # the first step reads no sums, whose registers are the epilogue's until then
                        start(acc, False)
                        for _ in gr.loop("k", grid.steps, start=1):
                            start(acc, True)
                            gr.wait(wgmma, pending=1)  # the step before has read its stage
                            release(2)
                    if turn is not None:
                        turn[1 - w].arrive()
                    if not promote:
                        finish()
                if t.turns:
                    get.advance(grid.steps)
                if join is not None:
                    join.add(acc, mine, w, rank, cluster)
                for pieces, on_owner in on_owners(h, rank):
                    with on_owner:
                        store.store(acc, place, pieces, stages)
            store.end()
        if cluster is not None:
            gr.barrier(on=cluster)  # nobody leaves while another block may still arrive here
    return kernel


def promoted(acc: Any, newest: list[Any], grid: Grid, start: Any, finish: Any, release: Any) -> None:
    """Sums of steps, each of which is added up while the next one is multiplied.

    The assembler takes only products that begin and end in the same turn of a loop, so a turn has several steps.
    """
    wgmma = grid.h.atom
    gr.init(acc, 0)

    def together(steps: int) -> None:
        start(newest[0], False)
        for k in range(1, steps):
            start(newest[k % 2], False)
            gr.wait(wgmma, pending=1)
            release(2)
            acc[:] = acc + newest[(k - 1) % 2]
        finish()
        acc[:] = acc + newest[(steps - 1) % 2]

    for _ in gr.loop("k", grid.steps // AT_ONCE):
        together(AT_ONCE)
    for _ in gr.loop("k", grid.steps % AT_ONCE // 2):
        together(2)


def tiles_in_stages(operand: Operand, rows: int, ks: int, stages: int) -> Any:
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


class Mates:
    """The blocks of a cluster that load tiles with a block, and its row and column among them.

    Blocks in a row of the cluster share tiles of the left operand, those in a column tiles of the right one. A stage is
    free when the consumers of all blocks for which this one loads have arrived, in both directions.
    """

    def __init__(self, h: Hopper, cluster: Any, rank: Any) -> None:
        self.row = self.column = rank
        if h.down > 1 and h.across > 1:
            square = cluster.reshape(0, [h.down, h.across])
            self.row, self.column = square.indices()
            self.of_left, self.of_right = square[self.row, :], square[:, self.column]
        else:
            self.of_left, self.of_right = cluster if h.across > 1 else None, cluster if h.down > 1 else None
        self.told = [x for x in (self.of_left, self.of_right) if x is not None] or [None]
        self.arrivals = sum(n for n in (h.down, h.across) if n > 1) or 1


def on_owners(h: Hopper, rank: Any) -> Iterator[tuple[list[int], AbstractContextManager[object]]]:
    """For each block of a cluster that cuts k: the pieces of a tile that it stores, in a branch of that block."""
    for r, pieces in enumerate(h.owned):
        if pieces:
            yield pieces, nullcontext() if h.cuts == 1 else gr.if_(rank == r)


class Join:
    """The sums of a tile whose k is cut over the blocks of a cluster: each block adds up those of its own pieces.

    The others store their registers to its shared memory, and arrive there. It arrives at their barriers when it has
    read them. With few pieces, or few blocks, some blocks have none of their own.
    """

    def __init__(self, h: Hopper) -> None:
        self.h, slots = h, (h.cuts - 1) * h.consumers
        self.owners = [rank for rank, pieces in enumerate(h.owned) if pieces]
        columns = max(len(pieces) for pieces in h.owned) * h.width
        n = columns // 8
        rows = gr.Layout((8, 2, 4, h.rows // 64), (8, 256, 64, 512 * n))  # pairs of neighbours in the order of threads
        across = gr.Layout((2, 4, n), (1, 2, 512))
        layout = gr.Layout((rows.shape, across.shape), (rows.stride, across.stride))
        self.sums = gr.alloc("share", layout, h.product.sums, gr.SH, stages=slots)
        self.come = gr.mbarrier("shared", h.consumers, arrivals=h.cuts - 1)
        self.read = gr.mbarrier("taken", h.consumers, arrivals=len(self.owners))

    def declare(self, mine: Any) -> None:
        """Declares the registers of a consumer."""
        self.step = 16 if self.h.width % 16 == 0 else 8
        tv = self.h.atom_of(self.step).c
        self.other = gr.fragment("other", [64, self.step], self.h.product.sums, tv, on=mine)
        self.ring, self.free = gr.ring("joined", 1), gr.ring("given", 1, phase=1)  # 1: nothing has been given yet

    def add(self, acc: Any, mine: Any, w: Any, rank: Any, cluster: Any) -> None:
        """Adds up the sums of all blocks, each piece in the block that owns it."""
        for r, pieces in enumerate(self.h.owned):
            with gr.if_(rank == r):
                if self.owners != [r]:
                    self.give(acc, mine, w, r, cluster)
                if pieces:
                    self.take(acc, pieces, mine, w, r, cluster)
        self.ring.advance()
        self.free.advance()

    def give(self, acc: Any, mine: Any, w: Any, rank: int, cluster: Any) -> None:
        """Stores the sums of the others' pieces to their shared memory."""
        h = self.h
        self.read[w].wait(self.free.phase)
        others = [owner for owner in self.owners if owner != rank]
        for owner in others:
            slot = rank if rank < owner else rank - 1
            to = self.sums[slot * h.consumers + w].of(owner)
            for i, j in enumerate(h.owned[owner]):
                of, at = (t.tile([None, h.width]) for t in (acc, to))
                gr.move(at[0, i], of[0, j], on=mine, atom=gr.atom("st.shared::cluster.v2.b32"))
        gr.barrier(on=mine)
        with gr.only(mine.elect()):
            for owner in others:
                self.come[w].arrive(at=cluster[owner], release=True)

    def take(self, acc: Any, pieces: list[int], mine: Any, w: Any, rank: int, cluster: Any) -> None:
        """Adds the sums of the others to those of the own pieces."""
        h, steps = self.h, self.h.width // self.step
        self.come[w].wait(self.ring.phase, acquire=True)
        for slot in range(h.cuts - 1):
            given = self.sums[slot * h.consumers + w]
            for m in range(h.rows // 64):
                for i, j in enumerate(pieces):
                    for n in range(steps):
                        mine_of_acc = acc.tile([64, self.step])[m, j * steps + n]
                        source = given.tile([64, self.step])[m, i * steps + n]
                        gr.move(self.other, source, on=mine, atom=gr.atom("ld.shared.v2.b32"))
                        mine_of_acc[:] = mine_of_acc + self.other
        gr.barrier(on=mine)  # all have read them
        with gr.only(mine.elect()):
            for other in range(h.cuts):
                if other != rank or self.owners != [rank]:  # a block that gives nothing never waits to give
                    self.read[w].arrive(at=cluster[other])


class Stages:
    """The way of what an epilogue reads through a tile's stages, after its operands."""

    def __init__(self, tiles: Any, rows: int, w: Any, full: Any, ring: Any, release: Callable[[int], None]) -> None:
        self.tiles, self.rows, self.w, self.full, self.ring, self.release = tiles, rows, w, full, ring, release

    def take(self) -> Any:
        """The consumer's rows of the next stage, once they have come."""
        self.full[self.ring.index].wait(self.ring.phase)
        return self.tiles[self.ring.index].tile([self.rows, None])[self.w, 0]

    def give(self) -> None:
        """Gives the stage back."""
        self.ring.advance()
        self.release(1)


class Grid:
    """The tiles of all members of the batch and parts of k, and which of them a block computes."""

    def __init__(self, h: Hopper, of: Declared) -> None:
        self.h, self.of, self.parts = h, of, of.parts
        t, p = h.product.tile, h.product
        rows, columns = (of.N, of.M) if h.swapped else (of.M, of.N)
        self.rows, self.columns = gr.ceil_div(rows, h.down * h.block_rows), gr.ceil_div(columns, h.across * h.columns)
        # A matrix of more tiles has 4 TB at least: the bound tells that 32 bits count them.
        self.of_a_matrix = gr.max(1, gr.min(self.rows * self.columns, MOST_TILES))
        self.tiles = gr.min(prod([self.rows, self.columns, *of.parts, *of.batch]), MOST_TILES)
        ks = of.A.shape[-1] if p.a.longer_k else of.B.shape[-2 if p.b_as_kn else -1]
        each = 2 if p.problem.promote else 1  # whose sums are added up in turns
        self.steps = each * gr.ceil_div(gr.ceil_div(ks, t.tile[2]), each * h.cuts * prod(of.parts))  # of a tile's block
        clusters = clusters_at_once(gr.sm_count(), h.blocks)
        self.workers = gr.min(clusters if h.blocks <= 2 else gr.max(1, clusters), self.tiles)

    def find(self, block: Any, threads: Any) -> None:
        """Looks in memory for what a block computes, where sizes alone do not say it."""

    def count(self, mark: str) -> None:
        """Declares the number of tiles for a role, in 32 bits: 64 would not fit into the registers of a producer."""
        self.counted = gr.scalar(f"{mark}_tiles", self.tiles, min=0, max=MOST_TILES).value

    def first_step(self, part: Any, rank: Any) -> Any:
        """The first step of k of a block, for a part."""
        cut = part * self.h.cuts + rank if self.h.cuts > 1 else part
        return cut * self.steps if self.parts or self.h.cuts > 1 else 0

    def place(self, tile: Any, mates: Mates) -> tuple[Any, Any, Any, Any]:
        """Row and column of a tile, the part of k, and the member of the batch."""
        h, rows, columns, group = self.h, self.rows, self.columns, self.h.product.tile.group
        z: Any = 0
        if self.parts or self.of.batch:
            z, tile = tile // self.of_a_matrix, tile % self.of_a_matrix
        part = z if self.parts else 0  # a batch alone has whole sums: its members are not parts of k
        if self.parts and self.of.batch:
            part, z = z // self.of.batch[0], z % self.of.batch[0]
        # `group` rows of tiles side by side share A and B in the L2 cache. Minima and maxima change nothing: they tell
        # that 32 bits are enough, and that there is no quotient of negative numbers.
        of_group = gr.max(group, group * columns)
        first = gr.min(tile // of_group * group, rows)
        many = gr.max(1, gr.min(group, rows - first))
        x, y = first + tile % of_group % many, gr.min(tile % of_group // many, columns)
        x, y = h.down * x + mates.row if h.down > 1 else x, h.across * y + mates.column if h.across > 1 else y
        return x, y, part, z
