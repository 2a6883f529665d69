"""What attention's kernels for sm_90a share: tiles in shared memory, rings that TMA fills, the order of tiles."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.kernels.attention.problem import MOST
from graphene.kernels.tma import MOST_TILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels.attention.problem import Attention

__all__ = [
    "Notes",
    "Order",
    "OwnCopies",
    "Shares",
    "TileRing",
    "UnevenOrder",
    "heads_together",
    "line_elems",
    "staged",
]  # fmt: skip

LEAST_HEADS = 32  # that are mixed: four blocks or more work on a head at once
L2_ELEMS = 1 << 24  # elements of keys and values that blocks which run together read: 32 MiB


def line_elems(depth: int) -> int:
    """Elements of a line of shared memory: 128 bytes, or 64 or 32 if a row of `depth` elements has no whole lines."""
    return next(n for n in (64, 32, 16) if depth % n == 0)


def staged(a: Attention, name: str, rows: int, stages: int | None = None) -> gr.Tensor:
    """Tiles [rows, depth] in shared memory: panels of lines that TMA writes and the matrix instructions read."""
    swizzle = gr.swizzle(line_elems(a.depth), a.dtype)
    return gr.alloc(name, gr.panels(rows, a.depth, a.dtype), a.dtype, gr.SH, stages=stages, swizzle=swizzle)


class TileRing:
    """Tiles in shared memory, filled by TMA. `full[i]` says that one has come, `empty[i]` that all have read it.

    `alone`: readers fill them themselves, and a single one needs no `empty`.
    """

    def __init__(self, a: Attention, name: str, rows: int, stages: int, readers: int, alone: bool = False) -> None:
        self.name, self.stages, self.alone = name, stages, alone
        self.tiles, self.readers = staged(a, f"s{name}", rows, stages), readers

    def barriers(self) -> None:
        """Declares them; behind all tiles, whose places have more zeros at their end."""
        self.full = gr.mbarrier(f"{self.name}_full", self.stages, arrivals=1)
        if not self.alone or self.readers > 1:
            self.empty = gr.mbarrier(f"{self.name}_empty", self.stages, arrivals=self.readers)

    def producer(self) -> None:
        """Declares the position of the thread that fills it."""
        self.put = gr.ring(f"{self.name}_put", self.stages, phase=1)  # 1: the ring starts empty

    def load(self, source: gr.Tensor, beside: Callable[[], None] | None = None) -> None:
        """Starts the copy of the next tile, when its place is free. What `beside` stores before has come with it."""
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

    def tile(self) -> gr.Tensor:
        """The tile that is read next."""
        return self.tiles[self.get.index]

    def wait(self) -> None:
        """Waits until it has come."""
        self.full[self.get.index].wait(self.get.phase)

    def release(self) -> None:
        """Gives it back. One thread speaks for all of `mine`, who must have waited for their products together."""
        with gr.only(self.mine.elect()):
            self.empty[self.get.index].arrive()
        self.get.advance()

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

    `rings`: those of keys and of values. `sources`: their tiles. `steps`: the number behind the last tile, and how many
    there are, which come from the last to the first. `number(name, n)`: the tile that has a place in the order of work.
    """

    def __init__(
        self, rings: tuple[TileRing, TileRing], sources: list[Any], steps: tuple[Any, Any], number: Callable[..., Any]
    ) -> None:
        self.rings, self.sources, self.number = rings, sources, number
        self.hi, self.count = steps

    def begin(self, q: TileRing, queries: gr.Tensor, first: Any) -> None:
        """Starts those of the queries and of as many tiles as there are places, and waits for the queries."""
        self.first = first
        with gr.if_(first), gr.only(q.mine.elect()):
            q.fill(0, queries)
            for stage in range(self.rings[0].stages):
                with gr.if_(self.count > stage):
                    n = self.number(f"n{stage}", self.hi - 1 - stage)
                    for ring, source in zip(self.rings, self.sources, strict=True):
                        ring.fill(stage, source[n])
        q.wait()

    def release(self, ring: TileRing, n: Any, beside: bool) -> None:
        """Fills the place of tile n, which all of the consumer's products have read, and goes on to the next one.

        Several consumers wait for each other once a tile: for the places of both tiles, when the product of values is
        there. Beside it (`beside`), the place of keys is left alone.
        """
        keys, values = self.rings
        due, several = [(ring, n)], ring.readers > 1
        if several and beside:
            if ring is keys:
                return
            due.append((keys, n - 1))
        if several:
            ring.together()
        with gr.if_(self.first), gr.only(ring.mine.elect()):
            for each, tile in due:
                later = tile - each.stages
                with gr.if_(later >= self.hi - self.count):
                    source = self.sources[each is values]
                    each.fill(each.get.index, source[self.number("later", gr.max(later, 0))])
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
        self, rows: Any, each: int, heads: Any, batch: Any, together: Any = None, persistent: bool = True
    ) -> None:
        self.persistent = persistent
        self.most, row_tiles = MOST // each + 1, gr.ceil_div(rows, each)
        self.row_tiles, self.heads, self.batch, self.together = row_tiles, heads, batch, together
        self.all_heads = gr.min(prod([batch, heads], start=1), MOST_TILES // 2)
        self.tiles = gr.min(prod([batch, heads, row_tiles], start=1), MOST_TILES)
        self.workers = gr.max(1, gr.min(gr.sm_count(), self.tiles))
        self.each = prod([batch, heads, row_tiles], start=1)

    def blocks(self) -> Any:
        """Declares them. Where a block has one tile and heads are not mixed, the grid says which, without divisions."""
        self.given = None
        if not self.persistent and self.together is None:
            made = gr.blocks(self.row_tiles, self.heads, self.batch)
            self.given = made.indices()
            return made
        made = gr.blocks(self.workers if self.persistent else self.each)
        (self.block,) = made.indices()
        return made

    def rounds(self, name: str) -> tuple[Any, Any]:
        """How many tiles this block has; and which it has in a round."""
        tiles, workers = (
            gr.scalar(f"{name}_{n}", value, max=MOST_TILES).value
            for n, value in (("count", self.tiles), ("step", self.workers))
        )
        whole = tiles // gr.max(workers, 1)  # rounds in which each block has a tile

        def place(r: Any) -> Any:
            return gr.max(gr.min(r * workers + self.block + r % 2 * (workers - 1 - 2 * self.block), MOST_TILES), 0)

        return gr.scalar(f"{name}_rounds", whole + (place(whole) < tiles), max=MOST_TILES).value, place

    def places(self, name: str) -> Any:
        """The tiles of this block: their number, the tile of rows, the head, and the member of the batch."""
        if not self.persistent:
            yield 0, *(self.place(self.block) if self.given is None else self.given)
            return
        rounds, place = self.rounds(name)
        for r in gr.loop(name, rounds):
            yield r, *self.place(gr.scalar("at", place(r), max=MOST_TILES).value)

    def place(self, tile: Any) -> tuple[Any, Any, Any]:
        """The same of one of them."""
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
    """Tiles of `most` or one less units of 64 rows: for each head a number that gives blocks about as many units each.

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


class Shares:
    """The tiles of packed sequences, of which each block has a run that costs about as much as the others'.

    A tile of rows costs the tiles of keys of its sequence, and one more. `lengths(b)`: the queries and keys of sequence
    b, up to MOST. `sizes`: those of a tile. `most`: no block without a tile is launched beyond that many.
    """

    def __init__(
        self, lengths: Callable[[Any], tuple[Any, Any]], sizes: tuple[int, int], heads: Any, batch: Any, most: Any
    ) -> None:
        self.lengths, self.sizes, self.heads, self.batch = lengths, sizes, heads, batch
        self.workers = gr.max(1, gr.min(gr.sm_count(), gr.min(most, MOST_TILES)))

    def blocks(self) -> None:
        """Declares them."""
        (self.block,) = gr.blocks(self.workers).indices()

    def cost(self, b: Any) -> tuple[Any, Any, Any]:
        """Tiles of rows of a head, tiles of all heads, and what one costs."""
        queries, keys = self.lengths(b)
        BM, BN = self.sizes
        rows = gr.scalar("row_tiles", gr.ceil_div(queries, BM), max=MOST // BM + 1).value
        cost = gr.scalar("cost", gr.ceil_div(keys, BN) + 1, min=1, max=MOST // BN + 2).value
        return rows, gr.scalar("of_heads", gr.min(rows * self.heads, MOST_TILES), max=MOST_TILES).value, cost

    def runs(self, name: str) -> Any:
        """The sequences: the number, tiles of rows of a head, this block's first tile and the one behind its last."""
        most = 2**62
        total = gr.scalar(f"{name}_total", 0, max=most)
        for b in gr.loop(f"{name}_counted", self.batch):
            _, tiles, cost = self.cost(b)
            total.set(gr.min(total.value + tiles * cost, most))
        sums = gr.min(total.value, 2**46)
        ends = [gr.scalar(f"{name}_{n}", x * sums // gr.max(self.workers, 1), max=most).value
                for n, x in (("from", self.block), ("to", self.block + 1))]  # fmt: skip
        done = gr.scalar(f"{name}_done", 0, max=most)
        for b in gr.loop(f"{name}_sequence", self.batch):
            rows, tiles, cost = self.cost(b)
            first, last = (
                gr.scalar(n, gr.max(gr.min(gr.ceil_div(end - done.value, cost), tiles), 0), max=MOST_TILES).value
                for n, end in zip(("first", "last"), ends, strict=True)
            )
            yield b, gr.max(rows, 1), first, last
            done.set(gr.min(done.value + tiles * cost, most))


class Notes:
    """Integers about a tile that the producer computes once, beside the tile, and consumers read when they need them.

    `slots`: one more than there are tiles on their way. `limits`: the least and the most of each. `used`: else
    consumers compute them themselves.
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
        """Writes those of a tile of the block, counted from 0."""
        for j, name in enumerate(self.limits if self.used else ()):
            self.held[:] = values[name]
            gr.move(self.places[tile % self.slots, j], self.held)

    def read(self, tile: Any, *names: str) -> Any:
        """Some of those of a tile."""
        for j, (name, (least, most)) in enumerate(self.limits.items()):
            if name in names:
                gr.move(self.held, self.places[tile % self.slots, j])
                yield gr.index(self.held, least, most)


def heads_together(sk: Any, depth: int) -> Any:
    """How many heads have their tiles mixed: as many as the cache holds keys and values of, and enough that the work
    of blocks evens out. The blocks that work on a head at once read the same keys at about the same time.
    """
    return gr.max(LEAST_HEADS, L2_ELEMS // (2 * depth) // sk)
