"""Rows held by threads, for all kernels that work row by row.

A row is read once and kept while its passes run, in registers or in shared memory. A row that fits in neither is read
again by every pass. The kernels are written for all three at once: ``for part in rows.parts()`` runs its body once over
whole rows in registers, else as a loop over the parts of one row.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.access import vector_access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from graphene.kernels.rows.tile import RowTile

__all__ = ["Edge", "First", "Part", "Rows", "declare_rows", "typical"]


def declare_rows(declare: Callable[..., gr.Tensor], name: str, M: Any, tile: RowTile, dtype: gr.DType) -> gr.Tensor:
    """An argument (M, tile.width). Its rows lie any number of vectors apart; rows that are written lie side by side."""
    if tile.dense:
        align = min(16, tile.dense * dtype.bits // 8)
        return declare(name, gr.row_major(M, tile.width), dtype, align_bytes=align)
    least = 0 if declare is gr.input else tile.width
    stride = gr.sym(f"ld{name}", multiple_of=tile.vector, min=least, max=2**31 - 1)
    return declare(name, gr.Layout((M, tile.width), (stride, 1)), dtype, align_bytes=tile.vector * dtype.bits // 8)


@dataclass(frozen=True)
class Kept:
    """The place of rows: (rows, width) in memory or registers, or (n, 1) with the elements of dense rows from `base`
    on.

    For rows in registers, `source` is where they came from, and `edge` holds the elements at both ends of a dense row
    that no vector holds.
    """

    x: gr.Tensor
    base: Any = 0
    edge: gr.Tensor | None = None
    source: gr.Tensor | None = None


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
            self.first = gr.ceil_div(self.start, tile.vector) * tile.vector  # where the first vector begins
            self.head = self.first - self.start  # elements before vectors
            self.body = (tile.body - self.head) // tile.vector * tile.vector  # elements of vectors
            self.shift = 0  # equals `head` inside of a branch that knows it
            self.edge = self.single("edge", gr.fp32)

    def single(self, name: str, dtype: gr.DType) -> gr.Tensor:
        """Registers for one element a thread."""
        threads = self.tile.threads
        return gr.fragment(name, [1, threads], dtype, gr.tv(gr.Layout(threads), gr.Layout(1)), on=self.threads)

    def fragment(self, name: str, rows: int, dtype: gr.DType, wide: int = 0) -> gr.Tensor:
        """Registers for one part of each row, (rows, columns): threads side by side along a row, vector by vector.

        Every row of threads holds a copy of a single row. `wide`: the number of columns, 0 for those of a part.
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
        """Stores one fp32 value a row to memory (M,)."""
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
        return vector_access(operation, self.tile.vector, dtype)

    def row(self, x: gr.Tensor) -> Kept:
        """The block's rows of a matrix (M, width), or a vector (width,), the same for every row."""
        if self.tile.dense:
            flat = x.T if len(x.shape) == 2 else x
            return Kept(flat.reshape(0, gr.Layout((flat.size, 1))), 0 if len(x.shape) == 2 else self.start)
        return Kept(self.of(x) if len(x.shape) == 2 else x.reshape(0, gr.row_major(1, self.tile.width)))

    def keep(self, *tensors: gr.Tensor) -> list[Kept]:
        """Reads the block's rows of matrices (M, width) to where they stay; ``part.take`` reads them there."""
        self._unroll = max(1, self._unroll // len(tensors))  # registers limit how many loads are under way
        if self.tile.keep == "memory":
            return [self.row(x) for x in tensors]
        if self.tile.keep == "shared":
            return self._share(tensors)
        kept = [Part(self, 0).load(x, self.load_once(x.dtype)) for x in tensors]
        edges = [Edge(self).load(x) if self.tile.dense else None for x in tensors]
        return [Kept(r, edge=edge, source=x) for r, edge, x in zip(kept, edges, tensors, strict=True)]

    def _share(self, tensors: tuple[gr.Tensor, ...]) -> list[Kept]:
        """Copies to shared memory. Each thread will read the elements that it copied itself, unless rows are dense."""
        kept, copy, t = [], None, self.tile
        for x in tensors:
            row, base, vector = self.row(x), 0, min(t.dense, 128 // x.dtype.bits) or t.vector
            source, shape = row.x, [1, t.width]
            if t.dense:  # whole vectors, including the elements in them before and after the row
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
        """A branch for each number of elements that may lie before a dense row's vectors, if `columns` are read.

        In it, vectors (width,), the same for every row, are read by whole vectors, two for one.
        """
        t = self.tile
        if not t.dense or not columns or t.vector == 1:
            yield
            return
        for self.shift in range(0, t.vector, math.gcd(t.width, t.vector)):
            with gr.if_(self.head == self.shift):
                yield

    def reduce(self, op: str, value: Callable[[Part], Any]) -> gr.Tensor:
        """Reduces the elements of each row by `op` (add, max, min) in fp32: one value a row, on all of its threads."""
        lanes, total = self.v.reduced(1, "lanes", lanes=True), self.v.reduced(1, "total")
        gr.init(lanes, {"add": 0.0, "max": -gr.inf, "min": gr.inf}[op])
        for part in self.parts():
            part.v[:] = value(part)
            gr.reduce(op, lanes, part.v, axis=1, accumulate=True)  # this thread's own values
        gr.reduce(op, total, lanes, axis=1)  # over the row's threads: shfl.bfly in a warp, shared memory between warps
        return total

    def sum_of_squares(self, value: Callable[[Part], Any]) -> gr.Tensor:
        """The same as ``reduce("add", value * value)``, by one fma an element."""
        lanes, total = self.v.reduced(1, "lanes", lanes=True), self.v.reduced(1, "total")
        gr.init(lanes, 0)
        for part in self.parts():
            part.v[:] = value(part)
            for e, x in self.values(part):
                gr.matmul(lanes.values[e], x, x)
        gr.reduce("add", total, lanes, axis=1)
        return total

    def values(self, part: Part) -> Iterator[tuple[int, gr.Tensor]]:
        """A part's own values in registers, and to which of a thread's rows each belongs."""
        V, each = min(self.tile.vector, part.v.values.size), self.tile.each
        for run, e in itertools.product(range(part.v.values.size // (V * each)), range(each)):
            for i in gr.loop("i", V, unroll=0):
                yield e, part.v.values[(run * each + e) * V + i]


class Part:
    """Some columns of the block's rows, as fragments (rows, columns): the first `wide`, or the next, and so on."""

    def __init__(self, rows: Rows, index: Any, wide: int = 0) -> None:
        self._rows, self.index, self._wide = rows, index, wide or rows.tile.part
        self.v = rows.v  # to compute with

    def _columns(self, x: Kept) -> gr.Tensor:
        r = self._rows
        if r.tile.dense:
            line = x.x.window(r.first - x.base, r.tile.body if self._alone(x) else r.body).T
        elif r.tile.keep == "registers":
            return x.x
        else:
            line = x.x
        return line.tile([None, self._wide])[0, self.index]

    def _alone(self, x: Kept) -> bool:
        """Whether the last part in shared memory may be one vector of a dense row or none, which is not a tile."""
        t = self._rows.tile
        last = not isinstance(self.index, int) and t.body % t.part == t.vector
        return bool(t.dense) and x.x.memory == gr.SH and last

    def take(self, kept: Kept) -> gr.Tensor:
        """These columns of rows that ``rows.keep`` returned; elements past the end of a row read as zeros."""
        if kept.x.memory == gr.RF:
            return kept.x
        x = self._rows.fragment("x", 1, kept.x.dtype, self._wide)
        load = self._rows.atom("ld.shared" if kept.x.memory == gr.SH else "ld.global.nc", kept.x.dtype)
        gr.move(x, self._columns(kept), atom=load)
        if self._alone(kept):
            x[:] = self.inside(x)
        return x

    def load(self, x: gr.Tensor, atom: Any = None) -> gr.Tensor:
        """These columns of the block's rows of a matrix (M, width) that is not kept."""
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
            gr.move(part, line.window(k * V, rows.body).T.tile([None, self._wide])[0, self.index], atom=load)
            if rows.shift:
                for i in range(part.values.size):
                    if (i % V + rows.shift) // V == k:
                        gr.move(r.values[i], part.values[i - i % V + (i % V + rows.shift) % V])
        return r

    def inside(self, value: Any, outside: float = 0.0) -> Any:
        """The value where an element is a column of the row, else `outside`."""
        tile, v = self._rows.tile, self._rows.v
        if tile.dense:
            return gr.where(self.index * tile.part + v.coords()[1] < self._rows.body, value, outside)
        if tile.keep == "registers":
            return gr.where(v.valid(), value, outside)
        if tile.width % tile.part == 0:
            return value
        return gr.where(self.index * tile.part + v.coords()[1] < tile.width, value, outside)

    def store(self, out: gr.Tensor, value: Any) -> None:
        """These columns of the block's rows of a matrix (M, width) take a value, rounded to its type."""
        y = self._rows.fragment("y", self._rows.tile.rows, out.dtype)
        y[:] = value
        gr.move(self._columns(self._rows.row(out)), y, atom=self._rows.atom("st.global", out.dtype))


class First(Part):
    """The first columns of the block's rows: three, or fewer in a short row. Every thread along a row has all of them.

    If rows begin with vectors of four or more elements, it has four, by one load.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, 0)
        t = rows.tile
        self._vector = 1 if t.dense else min(t.vector, 4)
        self.columns = 4 if self._vector == 4 else min(t.width, 3)
        self.v = self._fragment("firsts", gr.fp32)

    def _fragment(self, name: str, dtype: gr.DType) -> gr.Tensor:
        t = self._rows.tile
        below, several = t.rows // t.each, t.rows > 1
        thread = gr.Layout((t.threads, below), (0, 1 if several else 0))
        value = gr.Layout((self.columns, t.each if several else 1), (t.rows, below))
        return gr.fragment(name, [t.rows, self.columns], dtype, gr.tv(thread, value), on=self._rows.threads)

    def take(self, kept: Kept) -> gr.Tensor:
        """These columns of what ``rows.keep`` returned."""
        r = self._rows
        x = kept if kept.source is None else r.row(kept.source)
        values = self._fragment("first", x.x.dtype)
        line = x.x.window(r.start - x.base, self.columns).T if r.tile.dense else x.x.tile([None, self.columns])[0, 0]
        vector = self._vector if self._vector == 4 else 1
        gr.move(values, line, atom=vector_access("ld.global.nc", vector, x.x.dtype))
        return values

    def typical(self, row: int) -> Any:
        """The median of the first three columns, or the first, in the thread's row `row`; `v` must have values."""
        return typical([self.v.values[row * self.columns + i] for i in range(self.columns)])


def typical(values: Sequence[Any]) -> Any:
    """The median of the first three, or the first of fewer, so that one element far from the others is not taken."""
    if len(values) < 3:
        return values[0]
    a, b, c = values[:3]
    return gr.max(gr.min(a, b), gr.min(gr.max(a, b), c))


class Edge(Part):
    """The elements at both ends of a dense row that no vector holds, one a thread.

    Thread i has the i-th element before the vectors, and thread `vector` + i the i-th after them.
    """

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, 0)
        self.v = rows.edge
        (self._thread,) = rows.threads.indices()
        self._behind = rows.head + rows.body - rows.tile.vector  # plus the thread's number: its element
        self._end = rows.tile.width - self._behind

    def _each(self, do: Callable[[Any], object]) -> None:
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
        """These columns of what ``rows.keep`` returned."""
        return self._read(kept) if kept.edge is None else kept.edge

    def load(self, x: gr.Tensor, atom: Any = None) -> gr.Tensor:
        """These columns of the block's rows of a matrix that is not kept."""
        return self._read(self._rows.row(x))

    def column(self, x: gr.Tensor) -> gr.Tensor:
        """These columns of a vector, the same for every row."""
        return self._read(self._rows.row(x))

    def inside(self, value: Any, outside: float = 0.0) -> Any:
        """The value where an element is a column of the row, else `outside`."""
        behind = gr.where(self._thread < self._end, value, outside)
        return gr.where(
            self._thread < self._rows.head, value, gr.where(self._thread >= self._rows.tile.vector, behind, outside)
        )

    def store(self, out: gr.Tensor, value: Any) -> None:
        """These columns of the block's rows of a matrix take a value, rounded to its type."""
        y = self._rows.single("y", out.dtype)
        y[:] = value
        line = self._rows.row(out)
        self._each(lambda at: gr.move(line.x[self._rows.start + at - line.base, 0], y.values[0]))
