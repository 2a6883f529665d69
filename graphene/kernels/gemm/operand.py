"""The operands of a product, A and B, on their way from global memory to the fragments of tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core
from graphene.kernels.access import access

if TYPE_CHECKING:
    from graphene.dtypes import DType

__all__ = ["COPIES", "MATRIX_ATOMS", "Operand", "StagedOperand", "TileInRegisters", "access", "matrix"]

# By the type in memory: the matrix instruction, and how many k it takes. fp32 is rounded to tf32 in registers.
MATRIX_ATOMS = {
    "fp16": ("mma.m16n8k16.f32.f16", 16),
    "bf16": ("mma.m16n8k16.f32.bf16", 16),
    "fp32": ("mma.m16n8k8.f32.tf32", 8),
    "i8": ("mma.m16n8k32.s32.s8", 32),
}
COPIES = {16: "cp.async.cg.16", 8: "cp.async.ca.8", 4: "cp.async.ca.4"}


def matrix(
    declare: Any, name: str, shape: Any, batch: list[Any], dtype: DType, align_bytes: int, row_major: bool = True
) -> Any:
    """An argument of two modes, one of them contiguous, after those of `batch`; other strides are any."""
    vector = max(align_bytes * 8 // dtype.bits, 1)
    line = gr.sym(f"ld_{name}", multiple_of=vector)
    outer = [gr.sym(f"{size}_{name}", multiple_of=vector) for size in batch]
    layout = gr.Layout((*batch, *shape), (*outer, *((line, 1) if row_major else (1, line))))
    return declare(name, layout, dtype, align_bytes=align_bytes)


@dataclass(frozen=True)
class Operand:
    """A matrix of `rows` (m of A, n of B) by k in global memory.

    ``along_k``: k is its contiguous mode. ``align_bytes``: divides the addresses of its contiguous lines and their
    length. ``padded``: the length of its lines is a size of its own, at least what they hold; the rest is 0.
    """

    name: str
    dtype: DType
    along_k: bool
    align_bytes: int
    padded: bool = False

    @property
    def vector(self) -> int:
        """How many elements are copied at once; it divides lengths and strides."""
        return max(self.align_bytes * 8 // self.dtype.bits, 1)

    @property
    def longer_k(self) -> bool:
        """Whether its lines run along k, and may go on after the last k."""
        return self.padded and self.along_k

    def fact(self, k: bool) -> int:
        """The divisor that this operand needs of the size of k, or of the rows."""
        return self.vector if k == self.along_k and not self.padded else 1

    def multiple_along_k(self, of_other: int) -> int:
        """The divisor of the length of longer lines along k, if the other operand asks for a divisor of k."""
        return max(self.vector, of_other)

    def argument(self, rows: Any, ks: Any, batch: list[Any], transposed: bool, k_multiple: int, **facts: int) -> Any:
        """Declares it: (rows, k), or (k, rows) if transposed, after the batch.

        ``k_multiple``: the divisor of k that the other operand needs; lines with a length of their own have it, too.
        ``facts``: what else is known of such lengths.
        """
        if self.padded:
            multiple = self.multiple_along_k(k_multiple) if self.along_k else self.vector
            length = gr.sym(f"length_{self.name}", multiple_of=multiple, **facts)
            rows, ks = (rows, length) if self.along_k else (length, ks)
        shape, contiguous = ((ks, rows), not self.along_k) if transposed else ((rows, ks), self.along_k)
        return matrix(gr.input, self.name, shape, batch, self.dtype, self.align_bytes, contiguous)

    def staged(self, rows: int, ks: int, stages: int) -> Any:
        """Tiles [rows,ks] in shared memory, contiguous as in global memory. Fragments load without bank conflicts."""
        line = ks if self.along_k else rows
        layout = gr.Layout((rows, ks), (ks, 1) if self.along_k else (1, rows))
        swizzle = gr.swizzle(line, self.dtype)
        # A warp reads 8 rows at 4 k: swizzling puts them odd multiples of a power of two apart.
        if self.dtype.bits == 32 and not self.along_k:
            shift = (line & -line).bit_length() - 4
            swizzle = gr.Swizzle(min(2, shift), 3, shift)
        # A warp reads 8 rows at every fourth k: swizzling gives each of these a chunk of its own.
        if self.dtype.bits == 8 and not self.along_k:
            swizzle = gr.Swizzle(2, 4, (line & -line).bit_length() - 3)
        return gr.alloc(f"s{self.name}", layout, self.dtype, gr.SH, stages=stages, swizzle=swizzle)

    def share_out(self, kernel: str, rows: int, ks: int, threads: int) -> tuple[int, int]:
        """How threads share a tile [rows,ks] in registers: elements side by side, threads along a line.

        Vectors are as long as possible with equally many for each thread; then neighbours stay on a line. Raises
        VerifyError KERNEL_ARGUMENT if no such division covers the tile.
        """
        line, lines = (ks, rows) if self.along_k else (rows, ks)
        vectors = [n for n in (16, 8, 4, 2, 1) if self.dtype.bits <= 8 * n]
        for chunk in (8 * n // self.dtype.bits for n in vectors):
            for per_line in range(gcd(line // chunk, threads), 0, -1) if line % chunk == 0 else ():
                if (line // chunk) % per_line == 0 and threads % per_line == 0 and lines % (threads // per_line) == 0:
                    return chunk, per_line
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: {threads} threads cannot share a tile of {self.name} equally",
                   [f"tile: {lines} lines of {line} elements of {self.dtype}",
                    f"want: vectors of {', '.join(map(str, vectors))} bytes, equally many for each thread"],
                   "take a larger tile or fewer warps, powers of two")  # fmt: skip

    @property
    def asynchronous(self) -> bool:
        """Whether its vectors are wide enough for asynchronous copies."""
        return self.align_bytes in COPIES

    @property
    def fragment_atom(self) -> Any:
        """The atom that loads fragments from shared memory."""
        bits = self.dtype.bits
        if self.along_k:
            return gr.atom("ldmatrix.x4" if bits == 16 else f"ldmatrix.x4.b{bits}")
        return gr.atom("ldmatrix.x4.trans") if bits == 16 else access("ld.shared", bits // 8)


class TileInRegisters:
    """A tile [rows,ks] of an operand in registers, on its way from global to shared memory."""

    def __init__(self, operand: Operand, rows: int, ks: int, threads: Any) -> None:
        chunk, per_line = operand.share_out("gemm", rows, ks, threads.size)
        line, along, across, other = (ks, rows, 1, rows) if operand.along_k else (rows, 1, rows, ks)
        lines = threads.size // per_line
        thread = gr.Layout((per_line, lines), (chunk * along, across))
        value = gr.Layout(
            (chunk, line // (chunk * per_line), other // lines), (along, chunk * per_line * along, lines * across)
        )
        tv = gr.tv(thread, value)
        self.registers = gr.fragment(f"g{operand.name}", [rows, ks], operand.dtype, tv, on=threads)
        chunk_bytes = chunk * operand.dtype.bits // 8
        self.to_registers = access("ld.global", min(operand.align_bytes, chunk_bytes))
        self.to_shared = access("st.shared", chunk_bytes)

    def load(self, tile: Any) -> None:
        """Loads a tile of global memory."""
        gr.move(self.registers, tile, atom=self.to_registers)

    def store(self, shared: Any) -> None:
        """Stores it to shared memory."""
        gr.move(shared, self.registers, atom=self.to_shared)


class StagedOperand:
    """The tiles of one operand that a block multiplies: global memory -> shared memory -> fragments of a warp.

    Vectors of at least 4 bytes are copied asynchronously; narrower ones pass through registers, a tile at a time.
    Fragments of consecutive slices of k alternate between two sets of registers; fp32 is rounded to tf32 before use.
    """

    def __init__(self, operand: Operand, tiles: Any, rows: int, ks: int, stages: int, threads: Any) -> None:
        self.operand, self.tiles, self.threads = operand, tiles, threads
        self.shared = operand.staged(rows, ks, stages)
        self.held = None if operand.asynchronous else TileInRegisters(operand, rows, ks, threads)

    def fragments(self, part: Any, rows: int, ks: int, tv: Any, warp: Any) -> None:
        """Declares the fragments: `rows` of the tiles, those at `part`, and slices of `ks`."""
        o = self.operand
        self.part, self.slice = part, [rows, ks]
        self.loaded = gr.fragment(f"r{o.name}", [rows, ks], o.dtype, tv, on=warp, stages=2)
        self.rounded = gr.fragment(f"t{o.name}", [rows, ks], gr.tf32, tv, on=warp) if o.dtype == gr.fp32 else None

    def copy(self, k: Any, stage: Any) -> None:
        """Starts the copies of tile k; past the last tile there is an empty tile of zeros."""
        if self.held is None:
            gr.move(self.shared[stage], self.tiles[k], on=self.threads, atom=COPIES[self.operand.align_bytes])
        else:
            self.held.load(self.tiles[k])

    def arrive(self, stage: Any) -> None:
        """Stores the tile that was loaded to registers, before the barrier that makes it visible to all warps."""
        if self.held is not None:
            self.held.store(self.shared[stage])

    def load(self, stage: Any, j: int) -> None:
        """Slice j of a stage, to registers."""
        source = self.shared[stage].tile(self.slice)[self.part, j]
        gr.move(self.loaded[j % 2], source, atom=self.operand.fragment_atom)

    def ready(self, j: int) -> Any:
        """The fragment of slice j, as the matrix instruction takes it."""
        if self.rounded is None:
            return self.loaded[j % 2]
        self.rounded[:] = gr.cast(self.loaded[j % 2], gr.tf32)
        return self.rounded
