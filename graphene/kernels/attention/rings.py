"""What attention's kernels for sm_90a share: tiles in shared memory, rings that TMA fills, the order of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.kernels.attention.problem import MOST
from graphene.kernels.tma import MOST_TILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels.attention.problem import Attention, AttentionArguments

__all__ = [
    "LongestMembers",
    "Notes",
    "Order",
    "OwnCopies",
    "PackedTiles",
    "TileRing",
    "UnevenOrder",
    "heads_together",
    "line_elems",
    "staged",
    "stand_by",
]  # fmt: skip

LANES = 32
LEAST_HEADS = 32  # fewer heads are not mixed, so that four blocks or more work on a head at once
L2_ELEMS = 1 << 24  # of keys and values that all running blocks read, 32 MiB: the L2 cache holds them


def line_elems(columns: int, bits: int = 16) -> int:
    """Elements of a line of shared memory: 128 bytes, or 64 or 32 if a row of `columns` elements has no whole lines."""
    return next(n for n in (1024 // bits, 512 // bits, 256 // bits) if columns % n == 0)


def staged(
    a: Attention,
    name: str,
    rows: int,
    stages: int | None = None,
    columns: int | None = None,
    dtype: gr.DType | None = None,
) -> gr.Tensor:
    """Tiles [rows, columns] in shared memory: panels of lines that TMA writes and the matrix instructions read.

    Without `columns` there are as many as a head has; without `dtype` the type is the result's.
    """
    columns, dtype = columns or a.depth, dtype or a.dtype
    swizzle = gr.swizzle(line_elems(columns, dtype.bits), dtype)
    return gr.alloc(name, gr.panels(rows, columns, dtype), dtype, gr.SH, stages=stages, swizzle=swizzle)


@dataclass(frozen=True)
class Round:
    """A position in a ring that follows from a loop's counter."""

    index: Any
    phase: Any

    def advance(self) -> None:
        """Does nothing: the next position follows from the loop's next number."""


class Behind:
    """A position in a ring that is known by how far it is behind that of another ring of as many stages."""

    def __init__(self, ahead: TileRing) -> None:
        self.ahead, self.lag = ahead, 0

    @property
    def index(self) -> Any:
        """The stage."""
        index, stages = self.ahead.get.index, self.ahead.stages
        return (index + stages - self.lag) % stages if self.lag else index

    @property
    def phase(self) -> Any:
        """The parity of the round."""
        get = self.ahead.get
        return (get.phase + (get.index < self.lag)) % 2 if self.lag else get.phase

    def advance(self) -> None:
        """Goes on to the next one."""
        self.lag -= 1


class TileRing:
    """Tiles in shared memory, filled by TMA. `full[i]` says that one has come, `empty[i]` that all have read it.

    `alone`: readers fill them themselves, and a single one needs no `empty`.
    """

    def __init__(self, a: Attention, name: str, rows: int, stages: int, readers: int, alone: bool = False) -> None:
        self.name, self.stages, self.alone, self.readers = name, stages, alone, readers
        shape, dtype = (rows, a.depth), None
        if a.fp8 is not None:
            dtype = a.fp8["QKV".index(name)]
            shape = shape[::-1] if name == "V" else shape
        self.tiles = staged(a, f"s{name}", shape[0], stages, shape[1], dtype)
        self.follower: Behind | None = None
        self.get: Any = None

    def barriers(self) -> None:
        """Declares the barriers. It is called once all tiles are declared, which need more alignment."""
        self.full = gr.mbarrier(f"{self.name}_full", self.stages, arrivals=1)
        if not self.alone or self.readers > 1:
            self.empty = gr.mbarrier(f"{self.name}_empty", self.stages, arrivals=self.readers)

    def producer(self) -> None:
        """Declares the position of the thread that fills the ring."""
        self.put = gr.ring(f"{self.name}_put", self.stages, phase=1)  # 1: the ring starts empty

    def load(self, source: gr.Tensor, beside: Callable[[], None] | None = None) -> None:
        """Starts the copy of the next tile, when its place is free. `beside` stores before, for the same readers."""
        i = self.put.index
        self.empty[i].wait(self.put.phase)
        if beside is not None:
            beside()
        self.full[i].arrive(expect=[self.tiles[i]])
        gr.move(self.tiles[i], source, atom=gr.atom("tma.load"), done=self.full[i])
        self.put.advance()

    def fill(self, stage: Any, source: gr.Tensor) -> None:
        """Starts the copy of a tile to a stage that the caller, a thread of a reader, knows to be free."""
        self.full[stage].arrive(expect=[self.tiles[stage]])
        gr.move(self.tiles[stage], source, atom=gr.atom("tma.load"), done=self.full[stage])

    def consumer(self, mine: Any) -> None:
        """Declares the position of the threads `mine`, who read all tiles."""
        self.mine = mine
        self.get = gr.ring(f"{self.name}_get", self.stages)

    def tile_of_round(self, r: Any, mine: Any) -> None:
        """Declares the threads `mine`, who read tile `r` of the block, counted from 0. This needs no register."""
        self.mine, self.get = mine, Round(r % self.stages, r // self.stages % 2)

    def behind(self, ahead: TileRing) -> None:
        """Declares that the readers of the ring `ahead`, which are some stages further there, read this ring, too."""
        ahead.follower = Behind(ahead)
        self.mine, self.get = ahead.mine, ahead.follower

    def tile(self) -> gr.Tensor:
        """The tile that is read next."""
        return self.tiles[self.get.index]

    def wait(self) -> None:
        """Waits until it has come."""
        self.full[self.get.index].wait(self.get.phase)

    def release(self) -> None:
        """Gives the tile back. One thread arrives for all of `mine`, who have waited for their products together."""
        with gr.only(self.mine.elect()):
            self.empty[self.get.index].arrive()
        self.get.advance()
        if self.follower is not None:
            self.follower.lag += 1

    def together(self) -> None:
        """All readers wait until all of them are done with the tile that is read next.

        Only the one that fills its place needs to. But its thread alone would wait in a branch of its own, beside which
        the assembler runs no products.
        """
        with gr.only(self.mine.elect()):
            self.empty[self.get.index].arrive()
        self.empty[self.get.index].wait(self.get.phase)


class OwnCopies:
    """The copies of keys and values of a block without a producer. A thread of the first consumer starts them.

    `rings`: those of keys and of values. `sources`: their tiles. `count`: how many of them there are. `number(i)`: the
    tile of step i, counted from 0.
    """

    def __init__(
        self, rings: tuple[TileRing, TileRing], sources: list[Any], count: Any, number: Callable[..., Any]
    ) -> None:
        self.rings, self.sources, self.count, self.number = rings, sources, count, number

    def begin(self, q: TileRing, queries: gr.Tensor, first: Any) -> None:
        """Starts the copies of the queries and of as many tiles as there are places, and waits for the queries."""
        self.first = first
        with gr.if_(first), gr.only(q.mine.elect()):
            q.fill(0, queries)
            for stage in range(self.rings[0].stages):
                with gr.if_(self.count > stage):
                    n = self.number(stage)
                    for ring, source in zip(self.rings, self.sources, strict=True):
                        ring.fill(stage, source[n])
        q.wait()

    def release(self, ring: TileRing, i: Any, beside: bool) -> None:
        """Fills the place of step i's tile, which all products of the consumer have read, and goes on to the next.

        Several consumers wait for each other once a tile: for the places of both tiles, when the product of values is
        there. Beside it (`beside`), the place of keys is left alone.
        """
        keys, values = self.rings
        due, several = [(ring, i)], ring.readers > 1
        if several and beside:
            if ring is keys:
                return
            due.append((keys, i + 1))
        if several:
            ring.together()
        with gr.if_(self.first), gr.only(ring.mine.elect()):
            for each, step in due:
                later = step + each.stages
                with gr.if_(later < self.count):
                    source = self.sources[each is values]
                    each.fill(each.get.index, source[self.number(later)])
        for each, _ in due:
            each.get.advance()


class Order:
    """The tiles of rows of all heads and sequences, in the order in which persistent blocks go through them.

    Blocks take turns from the first to the last and back, so that with tiles in falling order of work each has its
    share. `rows`: of each head, `each` a tile. `heads`, `batch`: how many there are. `together`: how many heads have
    their tiles mixed, the last (longest) rows of all of them first; None is for rows of equal work, head after head.
    `persistent`: else there is a block for each tile.
    """

    def __init__(
        self,
        rows: Any,
        each: int,
        heads: Any,
        batch: Any,
        together: Any = None,
        persistent: bool = True,
    ) -> None:
        self.persistent = persistent
        self.most, row_tiles = MOST // each + 1, gr.ceil_div(rows, each)
        self.row_tiles, self.heads, self.batch, self.together = row_tiles, heads, batch, together
        self.all_heads = gr.min(prod([batch, heads], start=1), MOST_TILES // 2)
        self.tiles = gr.min(prod([batch, heads, row_tiles], start=1), MOST_TILES)
        self.workers = gr.max(1, gr.min(gr.sm_count(), self.tiles))
        self.each = prod([batch, heads, row_tiles], start=1)

    def blocks(self) -> Any:
        """Declares the grid. Where a block has one tile and heads are not mixed, the grid's indices say which one."""
        self.given = None
        if not self.persistent and self.together is None:
            made = gr.blocks(self.row_tiles, self.heads, self.batch)
            self.given = made.indices()
            return made
        made = gr.blocks(self.workers if self.persistent else self.each)
        (self.block,) = made.indices()
        return made

    def rounds(self, name: str) -> tuple[Any, Any]:
        """How many tiles this block has, also as the scalar `due`, and a function from a round to the tile's number."""
        tiles, workers = (
            gr.scalar(f"{name}_{n}", value, max=MOST_TILES).value
            for n, value in (("count", self.tiles), ("step", self.workers))
        )
        whole = tiles // gr.max(workers, 1)  # rounds in which each block has a tile

        def place(r: Any) -> Any:
            return gr.max(gr.min(r * workers + self.block + r % 2 * (workers - 1 - 2 * self.block), MOST_TILES), 0)

        self.due = gr.scalar(f"{name}_rounds", whole + (place(whole) < tiles), max=MOST_TILES)
        return self.due.value, place

    def places(self, name: str) -> Any:
        """The tiles of this block: their number, the tile of rows, the head, and the member of the batch."""
        if not self.persistent:
            yield 0, *(self.place(self.block) if self.given is None else self.given)
            return
        rounds, place = self.rounds(name)
        for r in gr.loop(name, rounds):
            yield r, *self.place(gr.scalar("at", place(r), max=MOST_TILES).value)

    def place(self, tile: Any) -> tuple[Any, Any, Any]:
        """The tile of rows, the head and the member of the batch that belong to a tile's number."""
        rows, z = self.row_tiles, tile
        if self.together is None:
            z, m = tile // rows, tile % rows
        else:
            of_section = gr.scalar("section", gr.min(self.together * rows, MOST_TILES), max=MOST_TILES).value
            of_section = gr.max(of_section, 1)
            first = gr.min(tile // of_section * self.together, self.all_heads)
            many = gr.scalar("many", gr.min(self.together, self.all_heads - first), max=MOST_TILES).value
            rest, many = tile % of_section, gr.max(many, 1)
            z, m = first + rest % many, rows - 1 - rest // many
        limits = (("m", m, self.most), ("h", z % self.heads, MOST_BLOCKS_YZ), ("b", z // self.heads, MOST_BLOCKS_YZ))
        m, h, b = (gr.scalar(n, gr.min(gr.max(x, 0), most), max=most).value for n, x, most in limits)
        return m, h, b


class UnevenOrder(Order):
    """Tiles of `most` units of 64 rows or of one less. Each head has as many tiles as give all blocks about equal work.

    Where tiles of one size leave most blocks without one in the last round, smaller ones do not. The larger ones of all
    heads come first. `place` gives the first unit of a tile in place of its number.
    """

    def __init__(self, rows: Any, most: int, heads: Any, batch: Any) -> None:
        super().__init__(rows, 64 * most, heads, batch)
        limit, of_heads = MOST // 64 + 1, gr.max(self.all_heads, 1)
        self.units_of_tile = most
        self.units = gr.scalar("units", gr.ceil_div(rows, 64), max=limit).value
        units = gr.min(prod([batch, heads, gr.ceil_div(rows, 64)], start=1), MOST_TILES)
        self.workers = gr.max(1, gr.min(gr.sm_count(), units))
        rounds = gr.ceil_div(self.tiles, self.workers)
        fewest = gr.scalar("fewest", gr.ceil_div(self.units, most), max=limit).value
        each = gr.min(rounds * self.workers // of_heads, self.units // (most - 1))
        self.row_tiles = gr.scalar("each", gr.max(gr.min(each, limit), fewest), max=limit).value
        self.larger = gr.scalar("larger", gr.max(self.units - (most - 1) * self.row_tiles, 0), max=limit).value
        self.tiles = gr.min(self.all_heads * self.row_tiles, MOST_TILES)

    def place(self, tile: Any) -> tuple[Any, Any, Any]:
        """The first unit, the head and the member of the batch of a tile."""
        first = gr.scalar("first_smaller", gr.min(self.all_heads * self.larger, MOST_TILES), max=MOST_TILES).value
        smaller = tile >= first
        each = gr.max(self.larger + (self.row_tiles - 2 * self.larger) * smaller, 1)
        rest = gr.max(tile - first * smaller, 0)
        z, m = rest // each, rest % each
        unit = m * (self.units_of_tile - smaller) + self.larger * self.units_of_tile * smaller
        most = MOST_BLOCKS_YZ
        limits = (("m", unit, MOST // 64 + 1), ("h", z % self.heads, most), ("b", z // self.heads, most))
        unit, h, b = (gr.scalar(n, gr.min(gr.max(x, 0), most), max=most).value for n, x, most in limits)
        return unit, h, b

    def active(self, unit: Any) -> Any:
        """How many units a tile has that begins at one."""
        most = self.units_of_tile
        return gr.min(most - (unit >= most * self.larger), self.units - unit)


class PackedTiles:
    """The tiles of `each` rows of packed sequences, a block for each tile and head; few blocks find themselves without.

    Before sequence b, which begins at row starts[b], come at most starts[b] // each + b tiles, since each sequence has
    at most one that is not full. So its first tile has that number, and the blocks need not know the longest sequence.
    `starts`: of queries, and of keys, of the kernel with `args`. `by_work`: of each 32 sequences, those with the most
    keys come first; of causal rows, then a sequence's last ones.
    """

    def __init__(self, args: AttentionArguments, starts: list[gr.Tensor], each: int, by_work: bool) -> None:
        self.all_starts, self.each, self.heads, self.batch = starts, each, args.heads, args.batch
        self.by_work, self.causal = by_work, args.a.right
        self.slots = args.sq // each + self.batch  # of a head

    def blocks(self) -> None:
        """Declares the grid. Blocks side by side have the heads of one tile, whose rows lie side by side, too."""
        (self.block,) = gr.blocks(self.slots * self.heads).indices()

    def first(self, b: Any) -> Any:
        """The number of the first tile of a sequence."""
        return gr.index(self.all_starts[0][b], 0, 2**31 - 1) // self.each + b

    def find(self, threads: gr.ThreadTensor) -> None:
        """Finds this block's sequence; the other threads know it behind the next barrier.

        Each lane of a warp looks where one sequence begins. Of many sequences they look at every n-th one first.
        """
        self.found = gr.alloc("found", [2], gr.i32, gr.SH)
        heads = gr.max(self.heads, 1)
        self.slot = gr.scalar("slot", gr.min(self.block // heads, MOST_TILES), max=MOST_TILES).value
        self.h = gr.scalar("h", gr.min(self.block % heads, MOST_BLOCKS_YZ), max=MOST_BLOCKS_YZ).value
        warp = threads[0:LANES]
        with gr.only(warp):
            (lane,) = warp.indices()
            before, found = gr.scalar("before", 0, max=MOST_BLOCKS_YZ), gr.scalar("begun", 0, max=LANES)

            def look(step: int) -> None:
                """Finds the last one of every `step`-th sequence that begins at this block's tile or before it."""
                at = before.value + lane * step
                begins = gr.logical_and(at < self.batch, self.first(gr.min(at, self.batch - 1)) <= self.slot)
                found.set(gr.index(gr.popc(gr.ballot(begins, on=warp)), 0, LANES))
                before.set(gr.min(before.value + gr.max(found.value - 1, 0) * step, MOST_BLOCKS_YZ))

            with gr.if_(self.batch > LANES):
                for step in (LANES * LANES * 2, LANES * 2, LANES if self.by_work else 2):
                    look(step)
            if self.by_work:
                self.rank(before.value, warp, lane)
                return
            look(1)
            held = gr.alloc("held", [], gr.i32, gr.RF)
            with gr.if_(lane == 0):
                for i, number in enumerate((before, found)):
                    held[:] = number.value
                    gr.move(self.found[i], held)

    def rank(self, before: Any, warp: gr.ThreadTensor, lane: Any) -> None:
        """Finds this block's sequence and tile among the 32 sequences from `before` on, those with more keys first.

        A lane counts the tiles that come before its own sequence's. If the block's tile is one of its own, it says so.
        """
        most, none = LANES * MOST, MOST // self.each + 1
        work, tiles = (gr.alloc(n, [], gr.i32, gr.RF) for n in ("work", "tiles"))
        there, b = before + lane < self.batch, gr.min(before + lane, self.batch - 1)
        ends = ([gr.index(t[b + i], 0, 2**31 - 1) for i in (0, 1)] for t in self.all_starts)
        rows, keys = (gr.max(end - start, 0) for start, end in ends)
        work[:] = gr.min(gr.ceil_div(keys, 64), MOST // 64) * LANES + (LANES - 1 - lane)  # no two have the same
        tiles[:] = gr.min(gr.ceil_div(rows, self.each), MOST) * there
        ahead = tiles_ahead(work, tiles, warp)
        at = gr.scalar("at", self.slot - self.first(gr.min(before, self.batch - 1)) - gr.index(ahead, 0, most),
                       min=-(2**31), max=MOST_TILES).value  # fmt: skip
        count = gr.index(tiles, 0, MOST)
        mine = gr.logical_and(at >= 0, at < count)
        nobody = gr.index(gr.popc(gr.ballot(mine, on=warp)), 0, LANES) == 0
        for says, sequence, m in (
            (mine, b, count - 1 - at if self.causal else at),
            (gr.logical_and(nobody, lane == 0), 0, none),
        ):
            with gr.if_(says):
                for i, number in enumerate((sequence, m)):
                    work[:] = number
                    gr.move(self.found[i], work)

    def place(self) -> tuple[Any, Any, Any]:
        """A block's tile of rows of a sequence, the head and the sequence. The tile may lie behind all rows.

        By work, a block without a tile has the first sequence; else one that comes before the first sequence's ends.
        """
        b, most = gr.index(self.found[0], 0, MOST_BLOCKS_YZ), MOST // self.each + 1
        if self.by_work:
            return gr.scalar("m", gr.index(self.found[1], 0, most), max=most).value, self.h, b
        gr.exit_if(gr.index(self.found[1], 0, LANES) == 0)
        m = gr.scalar("m", gr.max(gr.min(self.slot - self.first(b), most), 0), max=most).value
        return m, self.h, b

    def of_last(self) -> tuple[Any, tuple[Any, Any]]:
        """Whether this block belongs to the last sequence, its number among those blocks, and how many they are."""
        first = self.first(gr.max(self.batch, 1) - 1)
        return self.slot >= first, (gr.max(self.slot - first, 0), gr.max(self.slots - first, 1))


class LongestMembers:
    """The order of a batch by work: of each 32 members, those of which the lists `T` name the most tiles come first.

    `order`: says which one of that order a block has. Other threads know the member behind the next barrier.
    """

    def __init__(self, T: gr.Tensor, batch: Any, order: Order, threads: gr.ThreadTensor) -> None:
        assert order.given is not None
        at = order.given[2]
        self.found = gr.alloc("found", [1], gr.i32, gr.SH)
        warp = threads[0:LANES]
        with gr.only(warp):
            (lane,) = warp.indices()
            first = at // LANES * LANES
            there, b = first + lane < batch, gr.min(first + lane, batch - 1)
            work, one = (gr.alloc(n, [], gr.i32, gr.RF) for n in ("work", "one"))
            work[:] = gr.index(T[b, 0, 0, 1], 0, MOST) * LANES + (LANES - 1 - lane)  # no two are alike
            one[:] = gr.min(there, 1)
            ahead = gr.index(tiles_ahead(work, one, warp), 0, LANES)
            with gr.if_(gr.logical_and(there, ahead == at - first)):
                work[:] = b
                gr.move(self.found[0], work)

    def place(self) -> Any:
        """The member of the batch."""
        return gr.scalar("b", gr.index(self.found[0], 0, MOST_BLOCKS_YZ), max=MOST_BLOCKS_YZ).value


def tiles_ahead(work: gr.Tensor, tiles: gr.Tensor, warp: gr.ThreadTensor) -> gr.Tensor:
    """How many tiles the lanes with more work than a lane's own have together."""
    other_work, other_tiles, ahead = (gr.alloc(n, [], gr.i32, gr.RF) for n in ("other_work", "other_tiles", "ahead"))
    gr.init(ahead, 0)
    for i in range(LANES):
        gr.shfl(other_work, work, "idx", i, on=warp)
        gr.shfl(other_tiles, tiles, "idx", i, on=warp)
        ahead[:] = ahead + gr.where(other_work > work, other_tiles, 0)
    return ahead


class Notes:
    """Integers about a tile that the producer computes once, beside the tile, and consumers read when they need them.

    `slots`: one more than there are tiles on their way. `limits`: the least and the greatest value of each integer.
    `used`: whether the integers are passed on; if not, consumers compute them themselves.
    """

    def __init__(self, limits: dict[str, tuple[int, int]], slots: int, used: bool = True) -> None:
        self.limits, self.slots, self.used = limits, slots, used
        if used:
            self.places = gr.alloc("notes", [slots, len(limits)], gr.i32, gr.SH)

    def begin(self, name: str) -> None:
        """Declares the register of a role."""
        if self.used:
            self.held = gr.alloc(name, [], gr.i32, gr.RF)

    def write(self, tile: Any, values: dict[str, Any]) -> None:
        """Writes the integers of a tile of the block, counted from 0."""
        for j, name in enumerate(self.limits if self.used else ()):
            self.held[:] = values[name]
            gr.move(self.places[tile % self.slots, j], self.held)

    def read(self, tile: Any, *names: str) -> Any:
        """Yields the values of some integers of a tile."""
        for j, (name, (least, most)) in enumerate(self.limits.items()):
            if name in names:
                gr.move(self.held, self.places[tile % self.slots, j])
                yield gr.index(self.held, least, most)


def stand_by(rings: tuple[TileRing, TileRing, TileRing], count: Any, turn: Any, w: Any) -> None:
    """Gives back `count` tiles of keys and values, which are brought for the other consumers, and one of queries.

    `rings`: of queries, keys and values. `turn`: None, or the turns that consumer `w` takes and hands on.
    """
    q, k, v = rings
    for i in gr.loop("stand_by", count):
        k.wait()
        if turn is not None:
            with gr.if_(i > 0):
                turn[w].sync()
                turn[(w + 1) % k.readers].arrive()
        v.wait()
        gr.barrier(on=k.mine)  # all four warps have seen that they have come
        k.release()
        v.release()
    q.release()


def heads_together(sk: Any, depth: int) -> Any:
    """How many heads have their tiles mixed: as many as the cache holds keys and values of, and enough that the work
    of blocks evens out. The blocks that work on a head at once read the same keys at about the same time.
    """
    return gr.max(LEAST_HEADS, L2_ELEMS // (2 * depth) // sk)
