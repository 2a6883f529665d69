"""The end of a product: the epilogue on the accumulators in registers, and their way to global memory."""

from __future__ import annotations

import math
from copy import copy
from itertools import product
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.epilogues import pointwise
from graphene.kernels.gemm.operand import COPIES, access, matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = [
    "Result",
    "add_scaled",
    "combined",
    "nearest_tf32",
    "of_fp8",
    "parts_added",
    "scale_arguments",
    "undefined_where_unused",
]

PROMOTED = 128  # k of fp8, whose sums are added up in fp32
UNROLLED_BYTES = 32  # bytes of a thread on their way between shared and global memory, if vectors are narrow


def copy_lines(to: Any, tile: Any, threads: Any, align_bytes: int, atoms: Any, unrolled: int = 0) -> None:
    """Copies a tile [rows,columns] by vectors of `align_bytes`, one a thread in each step of a loop over rows.

    It is a loop, because with straight-line code the compiler would keep addresses and predicates in registers from one
    copy to the next of the same shape.
    """
    (rows, columns), vector = to.shape, align_bytes * 8 // to.dtype.bits
    step = max(threads.size * vector // columns, 1)
    while rows % step:
        step //= 2
    for i in gr.loop("i", rows // step, unroll=unrolled or max(4, UNROLLED_BYTES // align_bytes)):
        gr.move(to.tile([step, None])[i, 0], tile.tile([step, None])[i, 0], on=threads, atom=atoms)


def load_lines(to: Any, tile: Any, threads: Any, align_bytes: int) -> None:
    """Starts copying a tile to shared memory; `arrived` waits for it."""
    wide = align_bytes in COPIES
    atoms = COPIES[align_bytes] if wide else (access("ld.global", align_bytes), access("st.shared", align_bytes))
    copy_lines(to, tile, threads, align_bytes, atoms)


def arrived(align_bytes: int) -> None:
    """Waits for the copies that `load_lines` of all threads started."""
    if align_bytes in COPIES:
        gr.commit(COPIES[align_bytes])
        gr.wait(COPIES[align_bytes], pending=0)
    gr.barrier()


def nearest_tf32(x: Any) -> Any:
    """For promises, numbers of fp32 as TMA rounds them to tf32: to nearest, of two to the even one."""
    import numpy as np

    from graphene.judge.bounded import Bounded

    v = np.asarray(x.v if isinstance(x, Bounded) else x)
    with np.errstate(all="ignore"):
        bits = v.astype(np.float32).view(np.uint32).astype(np.uint64)
        held = ((bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint64(0x1FFF)).astype(np.uint32).view(np.float32)
    held = np.where(np.isnan(v), v, held.astype(np.float64))
    return Bounded(held, x.e) if isinstance(x, Bounded) else held


def of_fp8(a: Any, b: Any, promote: bool) -> Any:
    """For promises, A @ B of fp8 on arrays, with the error of `wgmma`, which keeps 14 bits of a sum.

    Of each of its terms it keeps 13 bits below the leading one of the largest; all are cut toward zero. A sum of whole
    numbers below 2^13 is exact. ``promote``: sums of 128 k are added up in fp32.
    """
    import numpy as np

    n = min(a.shape[-1], PROMOTED) if promote else a.shape[-1]
    each = 2.0**-13 * (2 + 2 * math.sqrt(n) + n / 4)  # as cuts scatter, and n/4 if all terms have one sign

    def error(x: Any, y: Any) -> Any:
        magnitude = np.abs(x) @ np.abs(y)
        whole = all(bool(np.all(z == np.rint(z))) for z in (x, y))
        return np.where(whole & (magnitude < 2.0**13), 0.0, each * magnitude)

    return gr.approximately(lambda x, y: x @ y, absolute=error)(a, b)


def combined(
    x: Any,
    epilogue: Callable[..., Any] | None,
    C: Any,
    bias: Any,
    residual: Any,
    alpha: Any,
    beta: Any,
    scale_a: Any = None,
    scale_b: Any = None,
) -> Any:
    """For promises, what `Result.store` does to sums: epilogue(alpha * x + beta * C, bias, residual) on arrays.

    Before that, sums are multiplied by the scales of their rows and columns.
    """
    if scale_a is not None:
        x = x * scale_a[:, None] * scale_b
    if alpha is not None:
        x = alpha * x
    if beta is not None and beta != 0:
        x = x + beta * C
    return x if epilogue is None else pointwise(epilogue, x, *(t for t in (bias, residual) if t is not None))


def parts_added(W: Any) -> dict[str, Any]:
    """How the parts of sums over k are read."""
    return {"C": W.sum(0)}


def undefined_where_unused(args: Any, rng: Any = None) -> None:
    """Arguments of a product: with beta 0 the values of C do not matter."""
    if args.get("beta") == 0:
        args["C"][...] = math.nan


def scale_arguments(scales: str | None, size: tuple[Any, Any]) -> list[Any]:
    """Declares scale_a and scale_b, if the product has them."""
    if scales is None:
        return []
    sizes, align = (size, 16) if scales == "rows" else ((1, 1), 4)
    names = ("scale_a", "scale_b")
    return [gr.input(n, gr.Layout(s), gr.fp32, align_bytes=align) for n, s in zip(names, sizes, strict=True)]


def add_scaled(x: Any, old: Any, beta: Any) -> Any:
    """X + beta * old, but x if beta is 0, because `old` may never have been written and may hold NaN."""
    return gr.fma(gr.where(beta == 0, 0, old), beta, x)


class Result:
    """C (M,N) and its terms: C = epilogue(alpha * acc + beta * C, bias, residual), rounded once.

    Declares those of the arguments scale_a, scale_b (fp32; (M,) and (N,), or (1,) both), bias (N,), residual (M,N), C,
    alpha, beta that the problem has. With `parts` there is W instead of C, with the unchanged accumulators, one matrix
    for each part of k.
    """

    def __init__(
        self,
        size: tuple[Any, Any],
        batch: list[Any],
        parts: list[Any],
        dtype: DType,
        align_bytes: int,
        has: set[str],
        result: str = "C",
        scales: str | None = None,
    ) -> None:
        self.dtype, self.batch, self.parts = dtype, batch, parts
        self.align_bytes = self.vector(dtype, align_bytes) * dtype.bits // 8
        self.matrices: dict[str, Any] = {}
        self.scalars: dict[str, Any] = {}
        self.vectors: list[Any] = []  # the biases: one element for each column
        self.scales, self.by_rows = scale_arguments(scales, size), scales == "rows"
        if "bias" in has:
            self.vectors.append(gr.input("bias", gr.Layout(size[1]), dtype, align_bytes=self.align_bytes))
        if "residual" in has:
            self.matrices["residual"] = matrix(gr.input, "residual", size, batch, dtype, self.align_bytes)
        name, declare = "W" if parts else result, gr.inout if "beta" in has else gr.output
        self.matrices["C"] = matrix(declare, name, size, parts + batch, dtype, self.align_bytes)
        for factor in ("alpha", "beta"):
            if factor in has:
                self.scalars[factor] = gr.param(factor, gr.fp32)

    @staticmethod
    def vector(dtype: DType, align_bytes: int) -> int:
        """How many elements are stored at once."""
        return max(min(align_bytes, 16 if dtype.bits <= 16 else dtype.bits // 4) * 8 // dtype.bits, 1)

    @property
    def through_shared_memory(self) -> bool:
        """Whether `store` takes the memory of `over`."""
        return self.dtype.bits <= 16

    def tile(self, part: Any, z: Any, at: tuple[Any, Any], sizes: list[int]) -> Result:
        """The tile of a part of k, in a member of the batch, at (bm, bn)."""
        tile = copy(self)
        tile.matrices = {}
        for name, t in self.matrices.items():
            if self.parts:
                t = t[part, :, :, :] if self.batch else t[part, :, :]
            tile.matrices[name] = (t[z, :, :] if self.batch else t).tile(sizes)[at]
        tile.vectors = [t.tile([sizes[1]])[at[1]].reshape(0, [1, sizes[1]]) for t in self.vectors]
        shapes = [sizes[0], 1], [1, sizes[1]]
        parts = (t.tile([n])[i] for t, n, i in zip(self.scales, sizes, at, strict=False)) if self.by_rows else ()
        tile.scales = [t.reshape(0, shape) for t, shape in zip(parts, shapes, strict=False)] or self.scales
        return tile

    def store(
        self,
        acc: Any,
        epilogue: Callable[..., Any] | None,
        tv: Any,
        groups: Any,
        threads: Any,
        over: list[Any],
        piece_rows: int = 16,
    ) -> None:
        """Stores the accumulators that `groups` (warps, or quad-pairs of warps) hold by `tv`, in pieces.

        A piece is `piece_rows` rows and up to 32 columns of a group's part. Results of up to 16 bits meet in shared
        memory (that of `over` is free), so that whole lines are stored. With wider results four lanes store a whole
        sector. Without an epilogue results have the accumulators' type.
        """
        *at, _ = groups.indices()  # the group's place at each level
        (BM, BN), C, mine_of_acc, owner = acc.shape, self.matrices["C"], acc, groups
        cuts, rows, columns = [], BM, BN
        for level, place in enumerate(at):
            rows, columns = (n // groups.levels[level][i].size for i, n in enumerate((rows, columns)))
            cuts.append(([rows, columns], place))
            mine_of_acc = mine_of_acc[place]
            if level + 1 < len(at) or groups.levels[level].size > 1:  # a single group is all threads
                owner = owner[place]
        width = 32 if columns % 32 == 0 else 16 if columns % 16 == 0 else 8
        pair_bytes = 2 * self.dtype.bits // 8  # a lane holds two neighbours
        load = load_bias = access("ld.global", min(pair_bytes, self.align_bytes))
        store = access("st.global", min(pair_bytes, self.align_bytes))
        warp = groups[at[0]]

        def part(t: Any) -> Any:  # the part that belongs to the group
            for size, place in cuts:
                t = t.tile(size)[place]
            return t

        def mine(t: Any, i: int, j: int) -> Any:
            return part(t).tile([piece_rows, width])[i, j]

        def piece(name: str) -> Any:
            return gr.fragment(name, [piece_rows, width], self.dtype, tv, on=owner)

        pieces = range(rows // piece_rows), range(columns // width)
        if epilogue is None:
            for i, j in product(*pieces):
                gr.move(mine(C, i, j), mine_of_acc.tile([piece_rows, width])[i, j], on=owner, atom=store)
            return
        out, terms, loaded, to = piece("out"), [], {}, C
        for name in ("rbias", "rbias2")[: len(self.vectors)]:
            terms.append(out.reduced(0, name, self.dtype))  # the columns this thread owns
        if "residual" in self.matrices:
            terms.append(piece("rresidual"))
            loaded["residual"] = terms[-1]
        if "beta" in self.scalars:
            loaded["C"] = piece("rC")
        sources = {n: self.matrices[n] for n in loaded}
        if self.through_shared_memory:  # whole lines of these meet in shared memory too; the result replaces the first
            swizzle, stages = gr.swizzle(BN, self.dtype), max(len(loaded), 1)
            shared = gr.alloc("sC", [BM, BN], self.dtype, gr.SH, stages=stages, swizzle=swizzle, over=over)
            for stage, (name, t) in enumerate(sources.items()):
                load_lines(shared[stage], t, threads, self.align_bytes)
                sources[name] = shared[stage]
            if loaded:
                arrived(self.align_bytes)
            to, load = shared[0], access("ld.shared", pair_bytes) if loaded else load
        for j, i in product(*reversed(pieces)):
            for term, vector in zip(terms, self.vectors if i == 0 else (), strict=False):
                for (_, size), (_, place) in cuts:
                    vector = vector.tile([1, size])[0, place]
                gr.move(term, vector.tile([1, width])[0, j], atom=load_bias)
            for name, registers in loaded.items():
                gr.move(registers, mine(sources[name], i, j), atom=load)
            x = mine_of_acc.tile([piece_rows, width])[i, j]
            x = gr.cast(x, gr.fp32) if acc.dtype == gr.i32 != self.dtype else x
            if "alpha" in self.scalars:
                x = x * self.scalars["alpha"]
            if "beta" in self.scalars:
                x = add_scaled(x, loaded["C"], self.scalars["beta"])
            out[:] = pointwise(epilogue, x, *terms)
            gr.barrier(warp)  # keeps the compiler from starting another piece, for which there are no registers
            gr.move(mine(to, i, j), out, atom=store if to is C else access("st.shared", pair_bytes))
        if to is not C:
            gr.barrier()
            atoms = access("ld.shared", self.align_bytes), access("st.global", self.align_bytes)
            copy_lines(C, to, threads, self.align_bytes, atoms)
