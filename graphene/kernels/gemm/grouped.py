"""Products of groups of rows, or of groups along k, whose sizes stand in memory: mixtures of experts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ, element, flags
from graphene.kernels.gemm.frame import BlockWork, Product
from graphene.kernels.gemm.operand import matrix
from graphene.kernels.gemm.problem import GemmProblem, GemmTile
from graphene.kernels.gemm.result import Result
from graphene.kernels.gemm.sm80 import product_sm80

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = ["GroupedConfig", "grouped_kernel"]

MOST = 2**31 - 1


@dataclass(frozen=True)
class GroupedConfig:
    """The types, how the matrices lie, and the tile.

    `along_k`: groups are parts of k, and each has a result; else groups are rows, and each has a matrix B. `b_as_nk`:
    B lies along k, for groups of rows. `align`: bytes that divide the addresses of lines of A, B and C, and their
    lengths. `tile`, `warps`, `stages`: as in gemm_sm80. Raises VerifyError KERNEL_ARGUMENT.
    """

    dtype: DType = gr.fp16
    along_k: bool = False
    b_as_nk: bool = False
    align: tuple[int, int, int] = (16, 16, 16)
    tile: tuple[int, int, int] = (128, 128, 32)
    warps: tuple[int, int] = (2, 2)
    stages: int = 4

    def __post_init__(self) -> None:
        element("GroupedConfig", "dtype", self.dtype, ("fp16", "bf16"))
        flags("GroupedConfig", "along_k, b_as_nk", (self.along_k, self.b_as_nk), 2)
        object.__setattr__(self, "product", self._product())

    def _product(self) -> GroupedProduct:
        order = "NT" if self.along_k else "TN" if self.b_as_nk else "TT"
        problem = GemmProblem(0, 0, 0, 0, str(self.dtype), order, self.align)
        return GroupedProduct(problem, GemmTile(self.tile, self.warps, self.stages), along_k=self.along_k)


def grouped_kernel(c: GroupedConfig) -> gr.Kernel:
    """C[rows of group e] = A[rows of group e] @ B[e], or C[e] = A[:, group e of k] @ B[group e of k].

    Arguments: A (T,K), B (E,K,N), `offsets` (E,) of i32, C (T,N), where group e has the rows from offsets[e - 1], for
    the first from 0, to offsets[e]; they ascend. Rows behind the last group are 0. With `along_k` A is (M,T) with
    contiguous columns, B (T,N), C (E,M,N), and a group without k has a result of 0. Sums are fp32, rounded once.

    The blocks find their groups themselves, so the offsets are never read on the host: a grid has as many blocks as
    there may be tiles, and a scan of the groups' numbers of tiles says which of them a block computes, if any.
    """
    return product_sm80(c.product)  # type: ignore[attr-defined]


def _unchanged(x: Any) -> Any:
    return x


@dataclass(frozen=True)
class GroupedProduct(Product):
    """The product as gemm_sm80 sees it: another beginning and another meaning."""

    along_k: bool = False

    @property
    def name(self) -> str:
        """The kernel's name."""
        return "grouped"

    @property
    def epilogue(self) -> Callable[..., Any]:
        """The sums are only rounded."""
        return _unchanged

    def promise(self) -> dict[str, Any]:
        """The kernel's meaning: NumPy on its arguments."""
        along_k = self.along_k

        def product(A: Any, B: Any, offsets: Any, C: Any) -> dict[str, Any]:
            import numpy as np

            ends = [0, *np.asarray(offsets, np.int64).tolist()]
            parts = []
            for e, (begin, end) in enumerate(itertools.pairwise(ends)):
                parts.append(A[:, begin:end] @ B[begin:end] if along_k else A[begin:end] @ B[e])
            if along_k:
                return {"C": np.stack(parts)}
            rest = A[ends[-1] :, :1] * 0 @ B[0, :1] * 0
            return {"C": np.concatenate([*parts, np.where(np.isnan(rest), 0, rest)])}

        def prepare(args: Any, rng: Any) -> None:
            rows, offsets = args["A"].shape[along_k], args["offsets"]
            ends = rng.integers(0, rows + 1, offsets.shape)
            ends.sort()
            if rng.integers(0, 2):
                ends[-1:] = rows
            offsets[...] = ends

        size = self.tile.tile[2 if along_k else 0]
        # Groups have several tiles or none, and there may be more of them than threads.
        some = {"T": (2 * size + 3, 3 * size, size, 1, 0), "E": (3, 1, 2, 5, self.threads + 3)}
        return {"means": product, "arguments": gr.Arguments(prepare, values=some)}

    def begin(self) -> BlockWork:
        """Declares the kernel's arguments, blocks and threads, and finds what a block computes."""
        return self._along_k() if self.along_k else self._rows()

    def _rows(self) -> BlockWork:
        (BM, BN, BK), a, b, p = self.tile.tile, self.a, self.b, self.problem
        T, E = gr.sym("T"), gr.sym("E", min=1)
        N = gr.sym("N", multiple_of=max(b.fact(k=False), Result.vector(self.c_type, p.align[2])))
        K = gr.sym("K", multiple_of=max(a.fact(k=True), b.fact(k=True)))
        A = a.argument(T, K, [], False, b.fact(k=True))
        B = matrix(gr.input, "B", (K, N), [E], b.dtype, b.align_bytes, not b.along_k)
        offsets = gr.input("offsets", [E], gr.i32)
        result = Result((T, N), [], [], self.c_type, p.align[2], set())
        blocks = gr.blocks(gr.ceil_div(N, BN), T // BM + E + 1)
        threads = gr.threads(self.threads)
        bn, number = blocks.indices()
        e, first, stored, multiplied = self._find(offsets, E, T, number, threads)
        gA = A.window(first, multiplied).tile([BM, None])[0, 0]
        gB = B[e, :, :].T.tile([BN, None])[bn, 0]
        steps = gr.min(multiplied, 1) * gr.ceil_div(K, BK)
        for name, C in result.matrices.items():
            result.matrices[name] = C.window(first, stored)
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]
        return BlockWork(threads, gA, gB, kA, kB, steps, result.tile(0, 0, (0, bn), [BM, BN]))

    def _find(self, offsets: Any, E: Any, T: Any, number: Any, threads: Any) -> tuple[Any, ...]:
        """The group of the block's rows, the first one, how many are left in it, and how many of these are multiplied.

        That is none of the rows behind the last group, which have one, too.
        """
        BM, count = self.tile.tile[0], self.threads
        (t,) = threads.indices()
        found = gr.alloc("found", [4], gr.i32, gr.SH)
        last = gr.alloc("last_tiles", [1], gr.i32, gr.SH)
        before = gr.let("before", 0, gr.i32)
        with gr.if_(t == 0):
            found[0] = -1
        for part in gr.loop("part", gr.ceil_div(E + 1, count)):
            g = part * count + t
            begin = gr.load(offsets[gr.max(gr.min(g, E) - 1, 0)])
            begin[...] = gr.where(g == 0, 0, begin)
            end = gr.load(offsets[gr.min(g, E - 1)])
            end[...] = gr.where(g < E, end, gr.where(g == E, T, begin))
            tiles = gr.let("tiles", gr.max(end - begin + (BM - 1), 0) // BM, gr.i32)
            own = gr.let("own", tiles)
            gr.scan("add", tiles, on=threads)
            tiles += before
            with gr.if_(tiles - own <= number), gr.if_(tiles > number):
                first = gr.let("first", begin + (number - (tiles - own)) * BM, gr.i32)
                found[0] = gr.min(g, E - 1)
                found[1], found[2] = first, end - first
                found[3] = gr.where(g < E, end - first, 0)
            with gr.if_(t == count - 1):
                last[0] = tiles
            gr.barrier()
            before[...] = last[0]
        gr.exit_if(gr.index(found[0], -1, MOST) < 0)
        return tuple(gr.index(found[i], 0, MOST) for i in range(4))

    def _along_k(self) -> BlockWork:
        (BM, BN, BK), a, b, p = self.tile.tile, self.a, self.b, self.problem
        T, E = gr.sym("T"), gr.sym("E", min=1, max=MOST_BLOCKS_YZ)
        M = gr.sym("M", multiple_of=a.fact(k=False))
        N = gr.sym("N", multiple_of=max(b.fact(k=False), Result.vector(self.c_type, p.align[2])))
        A, B = a.argument(M, T, [], False, 1), b.argument(N, T, [], True, 1)
        offsets = gr.input("offsets", [E], gr.i32)
        result = Result((M, N), [E], [], self.c_type, p.align[2], set())
        blocks = gr.blocks(gr.ceil_div(M, BM), gr.ceil_div(N, BN), E)
        threads = gr.threads(self.threads)
        bm, bn, e = blocks.indices()
        begin = gr.min(e, 1) * gr.index(offsets[gr.max(e - 1, 0)], 0, MOST)
        length = gr.max(gr.index(offsets[e], 0, MOST) - begin, 0)
        gA, gB = A.tile([BM, None])[bm, 0], B.T.tile([BN, None])[bn, 0]
        gA, gB = (g.T.window(begin, length).T for g in (gA, gB))
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]
        return BlockWork(threads, gA, gB, kA, kB, gr.ceil_div(length, BK), result.tile(0, e, (bm, bn), [BM, BN]))
