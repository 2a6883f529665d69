"""How a block holds rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from graphene import _core
from graphene.kernels.arguments import choice, size

__all__ = ["RowTile"]

_PART_ELEMS = 8  # elements of a thread in a part of a row


@dataclass(frozen=True)
class RowTile:
    """How a block holds rows of `width` elements.

    `threads`: threads side by side along one row, a power of two up to 32 or whole warps. `rows`: rows of a block.
    `vector`: neighbouring elements that a thread reads by one instruction; it divides the width and every row's stride.
    `keep`: where a row stays between passes: "registers", "shared" or "memory" (it is read again). A block has one row
    unless that is "registers". `evict`: a hint to the L2 cache about copies to shared memory; "evict_last" makes room
    for the reads of a large matrix by writing results early. With "registers" it may be "no_allocate", which leaves the
    SM's own cache to factors and addends. `each`: the number of rows of which a thread has a part; it reads factors and
    addends once for all of them. `unroll`: parts of a long row that are worked on together. `dense`: for rows without
    gaps between them, the number of elements that divides the tensors' addresses; 0 for other rows. Dense rows begin
    anywhere: vectors are cut where addresses are multiples of the vector's size, and the rest at both ends of a row is
    read element by element. Raises VerifyError KERNEL_ARGUMENT for values that do not fit.
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
        """How many such parts a row has."""
        return math.ceil(self.body / self.part)

    @property
    def body(self) -> int:
        """Elements of a row that lie in vectors; in some dense rows it is one vector less."""
        return self.width // self.vector * self.vector
