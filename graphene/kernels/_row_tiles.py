"""How a block holds rows, and the choice of it by sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from graphene import _core
from graphene.kernels._arguments import FLOATS, align, choice, element, size

if TYPE_CHECKING:
    import graphene as gr

__all__ = ["RowTile", "select_tile"]

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
    `unroll`: parts of a long row that are worked on together. `dense`: of rows without gaps between them, how many
    elements the tensors' addresses are a multiple of, 0 for other rows. Dense rows begin anywhere: vectors are cut
    where addresses are multiples of theirs, and what is left at both ends of a row is read element by element. Raises
    VerifyError KERNEL_ARGUMENT for values that do not fit.
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
        if self.width == 1 and self.threads > 1 and self.keep == "registers":
            self._refuse("a row of one element in registers has one thread")
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
    gradient: bool = False,
) -> RowTile:
    """The tile for `rows` rows of `width` elements of `tensors` matrices and `columns` vectors of factors or addends.

    `align_bytes`: what addresses and row strides in bytes are multiples of. `shared_bytes`: what a block may have.
    `dense_bytes`: where no matrix has gaps between rows, what addresses are multiples of; else 0. `gradient`:
    of a kernel that computes a gradient, whose threads need more registers. The bounds are
    measured (benchmarks/norms_bench.py, H200). Raises VerifyError KERNEL_ARGUMENT.
    """
    size("select_tile", "rows", rows, least=0)
    size("select_tile", "width", width)
    element("select_tile", "dtype", dtype, FLOATS)
    elem_bytes = dtype.bits // 8
    align("select_tile", "align_bytes", align_bytes, elem_bytes)
    if dense_bytes != 0:
        align("select_tile", "dense_bytes", dense_bytes, elem_bytes)
    size("select_tile", "shared_bytes", shared_bytes, least=0)
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
    kib = tensors * row_kib
    if kib <= 6:
        runs = max(1, (16 if row_kib <= 2 else 32) // tensors // (vector * elem_bytes))  # vectors of a thread
        each = 2 if tensors == 1 and row_kib <= 2 and columns == 0 else 1
        once = "no_allocate" if columns and row_kib <= 2 else "default"
        threads = _whole_warps(math.ceil(vectors / runs))
        return RowTile(width, min(1024, threads), each, vector, evict=once, each=each)
    if 1024 * kib > shared_bytes - 1024:
        return RowTile(width, 512, 1, vector, "memory", unroll=8)
    if kib <= 8 and not large:
        threads, unroll = 128, 4 if columns > 1 else 2
    elif kib <= 12:
        threads, unroll = 256, 2
    elif kib <= 24:
        threads, unroll = 256, 4 if columns > 1 or kib > 16 else 2
    elif kib <= (96 if columns > 1 else 40):
        threads, unroll = 512, 8
    else:
        threads, unroll = 1024, 4 if columns > 1 and tensors == 1 else 2
    least, most = (672, 768) if gradient and threads == 1024 else (0, 1024)  # two of these have 40 registers a thread
    evict = "evict_last" if large else "default"
    return RowTile(width, _fitting(vectors, threads, unroll, least, most), 1, vector, "shared", evict, unroll=unroll)


def _dense_tile(
    rows: int, width: int, elem_bytes: int, tensors: int, columns: int, vector: int, shared_bytes: int
) -> RowTile:
    """For rows that begin anywhere, in vectors of 16 bytes or of what addresses are a multiple of."""
    kib, vectors = tensors * width * elem_bytes / 1024, width // vector
    if kib <= 2.5:
        return RowTile(width, max(32, min(64, _whole_warps(vectors // 2))), 1, vector, dense=vector)
    if kib <= 10:
        return RowTile(width, _fitting(vectors, 128 if columns else 256), 1, vector, dense=vector)
    if 1024 * kib > shared_bytes - 1024 - 32 * tensors:
        return RowTile(width, 512 if columns > 1 else 1024, 1, vector, "memory", dense=vector)
    threads, unroll = 512, 2 if columns else 4
    if columns and kib <= 80:
        threads = 256 if kib <= 24 else 384
    elif columns > 1:
        threads = 768
    evict = "evict_last" if rows * width * elem_bytes > 64 << 20 else "default"
    return RowTile(width, _fitting(vectors, threads, unroll), 1, vector, "shared", evict, unroll=unroll, dense=vector)


def _whole_warps(threads: int) -> int:
    return math.ceil(threads / 32) * 32


def _fitting(vectors: int, threads: int, unroll: int = 1, least: int = 0, most: int = 1024) -> int:
    """Whole warps near so many threads, within the limits.

    The last of `unroll` rounds over a row leaves few of them without a vector.
    """
    near = range(max(least, _whole_warps(math.ceil(threads * 0.6))), min(most, threads * 4 // 3) + 1, 32)

    def cost(t: int) -> tuple[int, bool, int]:
        rounds = math.ceil(vectors / t)
        return rounds * t, rounds % unroll != 0, abs(t - threads)

    return min(near, key=cost)
