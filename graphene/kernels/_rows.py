"""Rows held by threads: what the kernels that work row by row share.

A row is read once and kept while its passes run: in registers, or in shared memory; a row that fits in neither is read
again by every pass. The kernels are written for all three at once: ``for part in rows.parts()`` runs its body once over
whole rows in registers, else as a loop over the parts of one row.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import graphene as gr
from graphene import _core
from graphene.kernels._arguments import choice, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Part", "RowTile", "Rows", "declare_rows", "select_tile"]

_VECTORS = {16: "v4.b32", 8: "v2.b32", 4: "b32", 2: "b16"}
_PART_ELEMS = 8  # of a thread, in a part of a row


@dataclass(frozen=True)
class RowTile:
    """How a block holds rows of `width` elements.

    `threads`: side by side along one row, a power of two up to 32 or whole warps. `rows`: of a block. `vector`:
    neighbouring elements that a thread reads by one instruction; it divides the width and every row's stride. `keep`:
    where a row stays between passes, "registers", "shared" or "memory" (it is read again); one row a block unless
    "registers". `evict`: what the L2 cache shall do with what is copied to shared memory; "evict_last" makes room for
    the reads of a large matrix by writing results early. In registers: "no_allocate" leaves the SM's own cache to
    factors and addends. `each`: rows that a thread has a part of, for which it reads factors and addends once.
    `unroll`: parts of a long row that are worked on together. `dense`: of rows without gaps between them,
    how many elements the tensors' addresses are a multiple of. They begin anywhere: vectors are cut where addresses are
    multiples of theirs, and what is left at both ends of a row is read one by one. 0: `vector` divides all. Raises VerifyError KERNEL_ARGUMENT for values that do not
    fit.
    """

    width: int
    threads: int
    rows: int = 1
    vector: int = 8
    keep: str = "registers"
    evict: str = "default"
    each: int = 1
    unroll: int = 4
    dense: int = 0

    def __post_init__(self) -> None:
        size("RowTile", "width", self.width)
        size("RowTile", "threads", self.threads, most=1024)
        size("RowTile", "rows", self.rows, most=1024)
        choice("RowTile", "keep", self.keep, ("registers", "shared", "memory"))
        evicts = ("no_allocate",) if self.keep == "registers" else ("evict_first", "evict_last", "evict_unchanged")
        choice("RowTile", "evict", self.evict, ("default", *evicts))
        whole = self.threads in (1, 2, 4, 8, 16) or self.threads % 32 == 0
        size("RowTile", "each", self.each, most=16)
        size("RowTile", "unroll", self.unroll, most=16)
        together = self.threads * self.rows // self.each
        if not whole or together > 1024 or (self.threads > 1 and together % 32):
            self._refuse("a row needs a power of two of threads or whole warps; a block has whole warps, at most 1024")
        if self.vector not in (1, 2, 4, 8) or (not self.dense and self.width % self.vector):
            self._refuse("vectors of 1, 2, 4 or 8 elements must divide the width")
        if self.dense not in (0, 2, 4, 8) or (self.dense and (self.dense % self.vector or self.threads % 32)):
            self._refuse("vectors must divide the 2, 4 or 8 elements of dense rows, which have whole warps")
        if self.dense and self.width < 4 * self.vector:
            self._refuse("dense rows have at least 4 vectors")
        if self.rows % self.each:
            self._refuse("the rows of a thread must divide those of a block")
        if (self.keep != "registers" or self.dense) and self.rows != 1:
            self._refuse("only registers keep several rows of a block, which are not dense")

    def _refuse(self, why: str) -> NoReturn:
        _core.fail("KERNEL_ARGUMENT", why, [str(self)])

    @property
    def part(self) -> int:
        """Elements of a row that are worked on at once."""
        if self.keep == "registers":
            return math.ceil(self.width / self.vector) * self.vector
        return self.threads * max(_PART_ELEMS, self.vector)

    @property
    def parts(self) -> int:
        """How many of them a row has."""
        return math.ceil(self.body / self.part)

    @property
    def body(self) -> int:
        """Elements of a row in vectors; in some dense rows it is a vector less."""
        return self.width // self.vector * self.vector


def select_tile(
    rows: int,
    width: int,
    dtype: gr.DType,
    tensors: int = 1,
    columns: int = 0,
    align_bytes: int = 16,
    shared_bytes: int = 99 * 1024,
    dense_bytes: int = 0,
) -> RowTile:
    """The tile for `rows` rows of `width` elements of `tensors` matrices and `columns` vectors of factors or addends.

    `align_bytes`: what addresses and row strides in bytes are multiples of. `shared_bytes`: what a block may have.
    `dense_bytes`: where no matrix has gaps between rows, what addresses are multiples of; else 0. The bounds are
    measured (benchmarks/norms_bench.py, H200).
    """
    elem_bytes = dtype.bits // 8
    vector = math.gcd(width * elem_bytes, align_bytes, 16) // elem_bytes
    dense = math.gcd(dense_bytes, 16) // elem_bytes if dense_bytes else 0
    if dense > vector and width >= 256:
        return _dense_tile(rows, width, elem_bytes, tensors, columns, dense, shared_bytes)
    vectors = width // vector
    row_kib = width * elem_bytes / 1024
    large = rows * row_kib > 64 * 1024  # more than the L2 cache holds
    if vectors <= 32:
        threads = 1 << (vectors - 1).bit_length()
        few = 1 << max(rows - 1, 0).bit_length()
        return RowTile(width, threads, max(32 // threads, min(128 // threads, few)), vector)
    if tensors * row_kib <= 6:
        held = 16 if row_kib <= 2 else 32  # bytes of a row that a thread has
        runs = max(1, held // tensors // (vector * elem_bytes))
        each = 2 if tensors == 1 and row_kib <= 2 and (columns == 0 or (columns == 2 and row_kib > 1.5)) else 1
        once = "no_allocate" if columns and row_kib <= 1.5 else "default"
        threads = _whole_warps(math.ceil(vectors / runs))
        return RowTile(width, min(1024, threads), each, vector, evict=once, each=each)
    kib = tensors * row_kib
    if 1024 * kib > shared_bytes - 1024:
        return RowTile(width, 512, 1, vector, "memory", unroll=8)
    evict = "evict_last" if large else "default"
    if kib <= 8 and not large:
        return RowTile(width, 128, 1, vector, "shared", evict, unroll=4 if columns > 1 else 2)
    if kib <= 16:
        return RowTile(width, 256, 1, vector, "shared", evict, unroll=2)
    if kib <= (96 if columns > 1 else 40):
        return RowTile(width, 512, 1, vector, "shared", evict, unroll=8)
    return RowTile(width, 1024, 1, vector, "shared", evict, unroll=2)


def _dense_tile(
    rows: int, width: int, elem_bytes: int, tensors: int, columns: int, dense: int, shared_bytes: int
) -> RowTile:
    kib = tensors * width * elem_bytes / 1024
    evict = "evict_last" if rows * width * elem_bytes > 64 << 20 else "default"
    vector = min(dense, 4) if columns else dense
    if kib <= 2.5:
        return RowTile(width, 64 if vector == 8 else 128, 1, vector, dense=dense)
    if kib <= 12:
        return RowTile(width, 256, 1, vector, dense=dense)
    if 1024 * kib > shared_bytes - 2048:
        return RowTile(width, 1024, 1, dense, "memory", unroll=2, dense=dense)
    return RowTile(width, 512, 1, vector, "shared", evict, dense=dense)


def _whole_warps(threads: int) -> int:
    return math.ceil(threads / 32) * 32


def declare_rows(declare: Callable[..., gr.Tensor], name: str, M: Any, tile: RowTile, dtype: gr.DType) -> gr.Tensor:
    """An argument (M, tile.width) whose rows lie any number of vectors apart, those that are written side by side."""
    if tile.dense:
        align = min(16, tile.dense * dtype.bits // 8)
        return declare(name, gr.row_major(M, tile.width), dtype, align_bytes=align)
    least = 0 if declare is gr.input else tile.width
    stride = gr.sym(f"ld{name}", multiple_of=tile.vector, min=least, max=2**31 - 1)
    return declare(name, gr.Layout((M, tile.width), (stride, 1)), dtype, align_bytes=tile.vector * dtype.bits // 8)


@dataclass(frozen=True)
class Kept:
    """Where rows are: (rows, width) in memory or registers; or (n, 1), which has elements from `base` on of dense rows.

    Of those in registers `source` is where they came from, `edge` what vectors leave at the ends of a dense row.
    """

    x: gr.Tensor
    base: Any = 0
    edge: gr.Tensor | None = None
    source: Kept | None = None


class Rows:
    """The rows of one block, in a kernel whose grid has ``ceil(M / tile.rows)`` blocks."""

    def __init__(self, tile: RowTile, M: Any) -> None:
        self.tile = tile
        (self.block,) = gr.blocks(gr.ceil_div(M, tile.rows)).indices()
        self.threads = gr.threads(tile.threads * (tile.rows // tile.each))
        self._unroll = tile.unroll
        self.v = self.fragment("v", tile.rows, gr.fp32)
        if tile.dense:
            self.start = self.block * tile.width
            self.first = gr.ceil_div(self.start, tile.vector) * tile.vector  # of a vector
            self.head = self.first - self.start  # elements before vectors
            self.body = (tile.body - self.head) // tile.vector * tile.vector  # elements of vectors
            self.shift = 0  # the same as `head`, where that is known
            self.edge = self.single("edge", gr.fp32)

    def single(self, name: str, dtype: gr.DType) -> gr.Tensor:
        """One element a thread."""
        threads = self.tile.threads
        return gr.fragment(name, [1, threads], dtype, gr.tv(gr.Layout(threads), gr.Layout(1)), on=self.threads)

    def fragment(self, name: str, rows: int, dtype: gr.DType, wide: int = 0) -> gr.Tensor:
        """Registers for one part of each row, (rows, columns): threads side by side along a row, vector by vector.

        Of a single row every thread row holds a copy. `wide`: how many columns, 0 for those of a part.
        """
        t = self.tile
        runs = gr.ceil_div(wide or t.part, t.threads * t.vector)
        below = t.rows // t.each  # rows of threads
        several = rows > 1
        thread = gr.Layout((t.threads, below), (t.vector * rows, 1 if several else 0))
        value = gr.Layout((t.vector, t.each if several else 1, runs), (rows, below, t.threads * t.vector * rows))
        return gr.fragment(name, [rows, wide or t.part], dtype, gr.tv(thread, value), on=self.threads)

    def per_row(self, name: str) -> gr.Tensor:
        """Registers for one fp32 value a row."""
        return self.v.reduced(1, name)

    def store(self, out: gr.Tensor, value: gr.Tensor) -> None:
        """One fp32 value a row to memory (M,)."""
        column = out.reshape(0, gr.Layout((out.shape[0], 1), (1, 0)))
        gr.move(self.of(column), value, atom=gr.atom("st.global.b32"))

    def of(self, x: gr.Tensor) -> gr.Tensor:
        """The block's rows of a matrix (M, width)."""
        return x.tile([self.tile.rows, None])[self.block, 0]

    def load_once(self, dtype: gr.DType) -> Any:
        """The load of a row's vector by one thread."""
        once = "ld.global.nc.no_allocate" if self.tile.evict == "no_allocate" else "ld.global.nc"
        return self.atom(once, dtype)

    def atom(self, operation: str, dtype: gr.DType) -> Any:
        """The load or store of one vector by one thread."""
        return _vector(operation, self.tile.vector, dtype)

    def row(self, x: gr.Tensor) -> Kept:
        """The block's rows of a matrix (M, width), or a vector (width,), the same for every row."""
        if self.tile.dense:
            flat = x.T if len(x.shape) == 2 else x
            return Kept(flat.reshape(0, gr.Layout((flat.size, 1))), 0 if len(x.shape) == 2 else self.start)
        return Kept(self.of(x) if len(x.shape) == 2 else x.reshape(0, gr.row_major(1, self.tile.width)))

    def keep(self, *tensors: gr.Tensor) -> list[Kept]:
        """Reads the block's rows of matrices (M, width) into where they stay: what ``part.take`` takes."""
        self._unroll = max(1, self._unroll // len(tensors))  # as many loads under way as registers allow
        if self.tile.keep == "memory":
            return [self.row(x) for x in tensors]
        if self.tile.keep == "shared":
            return self._share(tensors)
        kept = [Part(self, 0).load(x, self.load_once(x.dtype)) for x in tensors]
        edges = [Edge(self).load(x) if self.tile.dense else None for x in tensors]
        return [Kept(r, edge=edge, source=self.row(x)) for r, edge, x in zip(kept, edges, tensors, strict=True)]

    def _share(self, tensors: tuple[gr.Tensor, ...]) -> list[Kept]:
        """Copies to shared memory. Each thread will read what it copied itself, unless rows are dense."""
        kept, copy, t = [], None, self.tile
        for x in tensors:
            row, base, vector = self.row(x), 0, t.dense or t.vector
            source, shape = row.x, [1, t.width]
            if t.dense:  # whole vectors, with what lies in them before and behind the row
                shape = [math.ceil((t.width + vector + t.vector - 2) / vector) * vector, 1]
                base = self.start // vector * vector
                source = row.x.window(base, shape[0])
            kept.append(Kept(gr.alloc("row", shape, x.dtype, gr.SH), base))
            size = vector * x.dtype.bits // 8
            if size > 2:
                copy = gr.atom("cp.async.cg.16" if size == 16 else f"cp.async.ca.{size}")
                gr.move(kept[-1].x, source, on=self.threads, atom=copy, evict=t.evict)
            else:  # too narrow for an asynchronous copy
                through = self.atom("ld.global.nc", x.dtype), gr.atom("st.shared.b16")
                gr.move(kept[-1].x, source, on=self.threads, atom=through)
        if copy is not None:  # one group for all of them
            gr.commit(copy)
            gr.wait(copy, pending=0)
        if t.dense:
            gr.barrier()
        return kept

    def parts(self) -> Iterator[Part]:
        """The parts of the rows; the body is recorded once, and once more for the ends of dense rows."""
        if self.tile.parts == 1:
            yield Part(self, 0)
        else:
            for i in gr.loop("part", self.tile.parts, unroll=self._unroll):
                yield Part(self, i)
        if self.tile.dense and self.tile.vector > 1:
            yield Edge(self)

    def shifts(self, columns: bool) -> Iterator[None]:
        """Where `columns` are read, a branch for each number of elements that may lie before a dense row's vectors.

        There vectors (width,), the same for every row, are read by whole vectors, two for one.
        """
        t = self.tile
        if not t.dense or not columns or t.vector == 1:
            yield
            return
        for self.shift in range(0, t.vector, math.gcd(t.width, t.vector)):
            with gr.if_(self.head == self.shift):
                yield

    def reduce(self, op: str, value: Callable[[Part], Any]) -> gr.Tensor:
        """`op` (add, max, min) over the elements of each row, in fp32: one value a row, on all of the row's threads."""
        lanes, total = self.v.reduced(1, "lanes", lanes=True), self.v.reduced(1, "total")
        gr.init(lanes, {"add": 0.0, "max": -gr.inf, "min": gr.inf}[op])
        for part in self.parts():
            part.v[:] = value(part)
            gr.reduce(op, lanes, part.v, axis=1, accumulate=True)  # this thread's own values
        gr.reduce(op, total, lanes, axis=1)  # the row's threads: shfl.bfly in a warp, shared memory between warps
        return total

    def sum_of_squares(self, value: Callable[[Part], Any]) -> gr.Tensor:
        """As ``reduce("add", value * value)``, one fma an element."""
        lanes, total = self.v.reduced(1, "lanes", lanes=True), self.v.reduced(1, "total")
        gr.init(lanes, 0)
        for part in self.parts():
            part.v[:] = value(part)
            for e, x in self._values(part):
                gr.matmul(lanes.values[e], x, x)
        gr.reduce("add", total, lanes, axis=1)
        return total

    def _values(self, part: Part) -> Iterator[tuple[int, gr.Tensor]]:
        """A part's own values in registers, and which of a thread's rows each is of."""
        V, each = min(self.tile.vector, part.v.values.size), self.tile.each
        for run, e in itertools.product(range(part.v.values.size // (V * each)), range(each)):
            for i in gr.loop("i", V, unroll=0):
                yield e, part.v.values[(run * each + e) * V + i]

    def moments(self, value: Callable[[Part], Any], exact: bool) -> tuple[Callable[[Any], Any], gr.Tensor]:
        """The distance of a value from its row's mean, and the mean of its square: by one pass, where warps share a row.

        `exact`: the mean has more digits than an fp32 number, as values of fp32 far from zero need it. A warp adds up distances, and their squares, from the mean of its first lane's first vector, so a mean far from
        zero costs no digits: whatever the row, a shift by the mean of n of the N elements that are added up makes
        rounding errors at most 1 + N / n times larger. Then warps meet, once.
        """
        base, mean, square = (self.per_row(n) for n in ("base", "mean", "square"))
        t = self.tile

        def distance(x: Any) -> Any:
            return x - base - mean if exact else x - mean

        if t.keep == "registers" and exact:  # what lies past the end was read as zeros
            base[:] = self.reduce("add", value) * (1 / t.width)
            mean[:] = self.reduce("add", lambda part: part.inside(value(part) - base)) * (1 / t.width)
            square[:] = self.sum_of_squares(lambda part: part.inside(distance(value(part)))) * (1 / t.width)
            return distance, square
        if t.keep == "registers":
            base[:] = value(First(self))
            self._sum_both(mean, square, lambda part: part.inside(value(part) - base))
            square[:] = square * (1 / t.width) - mean * mean * (1 / t.width**2)
            mean[:] = base + mean * (1 / t.width)
            return distance, square
        (thread,) = self.threads.indices()
        warp = self.threads.tile(32)[thread // 32]
        shift, total, more = (gr.alloc(n, [], gr.fp32, gr.RF) for n in ("shift", "total", "more"))
        gr.init(total, 0)
        gr.init(more, 0)
        if t.parts > 1:
            wide = t.threads * t.vector
            start = self.fragment("start", t.rows, gr.fp32, wide)
            start[:] = value(Part(self, 0, wide))
            self._first(shift, start, warp)
        for part in self.parts():
            part.v[:] = value(part)
            if t.parts == 1 and part.v is self.v:
                self._first(shift, self.v, warp)
            part.v[:] = part.inside(part.v - shift)
            for _, x in self._values(part):
                total[:] = total + x
                gr.matmul(more, x, x)
        for sums in (total, more):
            gr.allreduce("add", sums, on=warp)
        met = gr.alloc("met", [3, t.rows, t.threads // 32], gr.fp32, gr.SH)
        row, place = thread // t.threads, thread % t.threads // 32
        for k, x in enumerate((shift, total, more)):
            gr.move(met[k, row, place], x)
        gr.barrier()
        gr.move(base.values[0], met[0, row, 0])
        meet = self._meet_each if t.threads <= 128 else self._meet_lanes
        meet(base.values[0], mean.values[0], square.values[0], met[:, row, :])
        if not exact:
            mean[:] = mean + base
        return distance, square

    def _meet_each(self, base: gr.Tensor, mean: gr.Tensor, square: gr.Tensor, met: gr.Tensor) -> None:
        """From what warps added up, the mean less `base`; every thread reads it all."""
        N, warps = self.tile.width, self.tile.threads // 32
        shifts, totals, squares, n, rcp = (gr.alloc(x, [warps], gr.fp32, gr.RF) for x in ("s", "t", "q", "n", "rcp"))
        for k, x in enumerate((shifts, totals, squares)):
            for w in range(warps):
                gr.move(x[w], met[k, w])
        gr.init(mean, 0)
        for w in range(warps):
            n[w], rcp[w] = self._count(lambda counts, w=w: counts[w]), self._count(lambda c, w=w: _rcp(c[w]))
            squares[w] = squares[w] - totals[w] * totals[w] * rcp[w]
            shifts[w] = shifts[w] - base + totals[w] * rcp[w]
            mean[:] = gr.fma(shifts[w], n[w] * (1 / N), mean)
        gr.init(square, 0)
        for w in range(warps):
            shifts[w] = shifts[w] - mean
            square[:] = square + (squares[w] + shifts[w] * shifts[w] * n[w]) * (1 / N)

    def _meet_lanes(self, base: gr.Tensor, mean: gr.Tensor, square: gr.Tensor, met: gr.Tensor) -> None:
        """The same by the lanes of each warp: one reads of one warp."""
        N, warps = self.tile.width, self.tile.threads // 32
        (thread,) = self.threads.indices()
        warp, lane = self.threads.tile(32)[thread // 32], thread % 32
        shift, total, squares, n, rcp = (gr.alloc(x, [], gr.fp32, gr.RF) for x in ("s", "t", "q", "n", "rcp"))
        for x in (shift, total, squares):
            gr.init(x, 0)
        with gr.if_(lane < warps) if warps < 32 else contextlib.nullcontext():
            for k, x in enumerate((shift, total, squares)):
                gr.move(x, met[k, lane])

        def of_lane(counts: list[int], f: Callable[[int], float]) -> Any:  # a few warps differ from the others
            value: Any = 0.0
            for w in reversed([w for w in range(warps) if w == 0 or counts[w] != counts[w - 1]]):
                last = max(v for v in range(w, warps) if counts[v] == counts[w])
                value = gr.where(lane <= last, f(counts[w]), value)
            return value

        n[:] = self._count(lambda counts: of_lane(counts, float))
        rcp[:] = self._count(lambda counts: of_lane(counts, _rcp))
        squares[:] = squares - total * total * rcp
        shift[:] = shift - base + total * rcp
        mean[:] = shift * n * (1 / N)
        gr.allreduce("add", mean, on=warp)
        shift[:] = shift - mean
        square[:] = (squares + shift * shift * n) * (1 / N)
        gr.allreduce("add", square, on=warp)

    def _sum_both(self, sums: gr.Tensor, squares: gr.Tensor, value: Callable[[Part], Any]) -> None:
        """Values and their squares, added up along rows by one meeting of warps."""
        t, below = self.tile, self.tile.rows // self.tile.each
        thread = gr.Layout((t.threads, below), (2 * t.rows, 1))
        tv = gr.tv(thread, gr.Layout((t.each, 2), (below, t.rows)))
        lanes = gr.fragment("both", [2 * t.rows, t.threads], gr.fp32, tv, on=self.threads)
        gr.init(lanes, 0)
        for part in self.parts():
            part.v[:] = value(part)
            for e, x in self._values(part):
                lanes.values[e] = lanes.values[e] + x
                gr.matmul(lanes.values[t.each + e], x, x)
        total = lanes.reduced(1, "total")
        gr.reduce("add", total, lanes, axis=1)
        for e in range(t.each):
            gr.move(sums.values[e], total.values[e])
            gr.move(squares.values[e], total.values[t.each + e])

    def _first(self, shift: gr.Tensor, start: gr.Tensor, warp: Any) -> None:
        """The mean of the first lane's first vector."""
        V = self.tile.vector
        own = gr.alloc("own", [], gr.fp32, gr.RF)
        own[:] = start.values[0]
        for j in range(1, V):
            own[:] = own + start.values[j]
        if V > 1:
            own[:] = own * (1 / V)
        gr.shfl(shift, own, "idx", 0, on=warp)

    def _count(self, of: Callable[[list[int]], Any]) -> Any:
        """A function of how many elements each warp has; a dense row has one vector more or less."""
        t = self.tile
        if not t.dense:
            return of(self._counts(t.width))
        return gr.where(self.body == t.body, of(self._counts(t.body)), of(self._counts(t.body - t.vector)))

    def _counts(self, body: int) -> list[int]:
        t, strip = self.tile, 32 * self.tile.vector
        full, rest = divmod(body, t.threads * t.vector)
        counts = [full * strip + min(max(rest - w * strip, 0), strip) for w in range(t.threads // 32)]
        counts[0] += t.width - body
        return counts


def _vector(operation: str, vector: int, dtype: gr.DType) -> Any:
    return gr.atom(f"{operation}.{_VECTORS[vector * dtype.bits // 8]}")


def _rcp(n: int) -> float:
    return 1 / n if n else 0.0


class Part:
    """Some columns of the block's rows, as fragments (rows, columns): the first `wide`, or the next, and so on."""

    def __init__(self, rows: Rows, index: Any, wide: int = 0) -> None:
        self._rows, self._index, self._wide = rows, index, wide or rows.tile.part
        self.v = rows.v  # to compute with

    def _columns(self, x: Kept) -> gr.Tensor:
        r = self._rows
        if r.tile.dense:
            line = x.x.window(r.first - x.base, r.tile.body if self._alone(x) else r.body).T
        elif r.tile.keep == "registers":
            return x.x
        else:
            line = x.x
        return line.tile([None, self._wide])[0, self._index]

    def _alone(self, x: Kept) -> bool:
        """Whether the last part, of shared memory, may be one vector of a dense row or none: no tile of these rows."""
        t = self._rows.tile
        last = not isinstance(self._index, int) and t.body % t.part == t.vector
        return bool(t.dense) and x.x.memory == gr.SH and last

    def take(self, kept: Kept) -> gr.Tensor:
        """These columns of what ``rows.keep`` returned; what lies past the end of a row reads as zeros."""
        if kept.x.memory == gr.RF:
            return kept.x
        x = self._rows.fragment("x", 1, kept.x.dtype, self._wide)
        load = self._rows.atom("ld.shared" if kept.x.memory == gr.SH else "ld.global.nc", kept.x.dtype)
        gr.move(x, self._columns(kept), atom=load)
        if self._alone(kept):
            x[:] = self.inside(x)
        return x

    def load(self, x: gr.Tensor, atom: Any = None) -> gr.Tensor:
        """These columns of the block's rows of a matrix (M, width) that nobody keeps."""
        r = self._rows.fragment("x", self._rows.tile.rows, x.dtype)
        gr.move(r, self._columns(self._rows.row(x)), atom=atom or self._rows.atom("ld.global.nc", x.dtype))
        return r

    def column(self, x: gr.Tensor) -> gr.Tensor:
        """These columns of a vector (width,), the same for every row."""
        rows, tile = self._rows, self._rows.tile
        r = rows.fragment("c", 1, x.dtype)
        load = rows.atom("ld.global.nc", x.dtype)
        if not tile.dense or tile.vector == 1:
            gr.move(r, self._columns(rows.row(x)), atom=load)
            return r
        line, V = x[0 : tile.body].reshape(0, gr.Layout((tile.body, 1))), tile.vector
        for k in range(2 if rows.shift else 1):  # the vectors in which the elements begin and end
            part = rows.fragment("part", 1, x.dtype) if rows.shift else r
            gr.move(part, line.window(k * V, rows.body).T.tile([None, self._wide])[0, self._index], atom=load)
            if rows.shift:
                for i in range(part.values.size):
                    if (i % V + rows.shift) // V == k:
                        gr.move(r.values[i], part.values[i - i % V + (i % V + rows.shift) % V])
        return r

    def inside(self, value: Any, outside: float = 0.0) -> Any:
        """The value where an element is a column of the row, else `outside`."""
        tile, v = self._rows.tile, self._rows.v
        if tile.dense:
            return gr.where(self._index * tile.part + v.coords()[1] < self._rows.body, value, outside)
        if tile.keep == "registers":
            return gr.where(v.valid(), value, outside)
        if tile.width % tile.part == 0:
            return value
        return gr.where(self._index * tile.part + v.coords()[1] < tile.width, value, outside)

    def store(self, out: gr.Tensor, value: Any) -> None:
        """These columns of the block's rows of a matrix (M, width) take a value, rounded to its type."""
        y = self._rows.fragment("y", self._rows.tile.rows, out.dtype)
        y[:] = value
        gr.move(self._columns(self._rows.row(out)), y, atom=self._rows.atom("st.global", out.dtype))


class First(Part):
    """The first column of the block's rows, one value a row."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, 0)

    def take(self, kept: Kept) -> gr.Tensor:
        r, x = self._rows, kept.source or kept
        value = r.v.reduced(1, "first", x.x.dtype)
        column = x.x.window(r.start - x.base, 1) if r.tile.dense else x.x.tile([None, 1])[0, 0]
        gr.move(value, column, atom=_vector("ld.global.nc", 1, x.x.dtype))
        return value


class Edge(Part):
    """What vectors leave at both ends of a dense row, one element a thread: thread i has the i-th before the vectors.

    Thread `vector` + i has the i-th behind them.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, 0)
        self.v = rows.edge
        (self._thread,) = rows.threads.indices()
        self._behind = rows.head + rows.body - rows.tile.vector  # less the thread: the element
        self._end = rows.tile.width - self._behind

    def _each(self, do: Callable[[Any], None]) -> None:
        with gr.if_(self._thread < self._rows.head):
            do(self._thread)
        with gr.if_(self._thread >= self._rows.tile.vector), gr.if_(self._thread < self._end):
            do(self._thread + self._behind)

    def _read(self, x: Kept) -> gr.Tensor:
        r = self._rows.single("e", x.x.dtype)
        gr.init(r.values[0], 0)
        self._each(lambda at: gr.move(r.values[0], x.x[self._rows.start + at - x.base, 0]))
        return r

    def take(self, kept: Kept) -> gr.Tensor:
        return self._read(kept) if kept.edge is None else kept.edge

    def load(self, x: gr.Tensor, atom: Any = None) -> gr.Tensor:
        return self._read(self._rows.row(x))

    def column(self, x: gr.Tensor) -> gr.Tensor:
        return self._read(self._rows.row(x))

    def inside(self, value: Any, outside: float = 0.0) -> Any:
        behind = gr.where(self._thread < self._end, value, outside)
        return gr.where(
            self._thread < self._rows.head, value, gr.where(self._thread >= self._rows.tile.vector, behind, outside)
        )

    def store(self, out: gr.Tensor, value: Any) -> None:
        y = self._rows.single("y", out.dtype)
        y[:] = value
        line = self._rows.row(out)
        self._each(lambda at: gr.move(line.x[self._rows.start + at - line.base, 0], y.values[0]))
