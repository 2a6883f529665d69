"""Products of groups of rows, or of groups along k, whose sizes stand in memory: mixtures of experts."""

from __future__ import annotations

import itertools
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ, choice, element, flags, size
from graphene.kernels.gemm.frame import MOST_IN_BOXES, BlockWork, Declared, Product
from graphene.kernels.gemm.operand import matrix
from graphene.kernels.gemm.problem import GemmProblem, GemmTile
from graphene.kernels.gemm.result import Result
from graphene.kernels.gemm.sm80 import product_sm80
from graphene.kernels.gemm.sm90 import Grid, product_sm90
from graphene.kernels.tma import MOST_TILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType
    from graphene.kernels.gemm.sm90 import Mates
    from graphene.kernels.gemm.sm90_tile import Hopper

__all__ = ["GroupedConfig", "grouped_kernel"]

MOST = 2**31 - 1
KERNELS = ("gemm_sm80", "gemm_sm90")
MOST_GROUPS = 512  # entries of the tables of gemm_sm90, which has two groups less


@dataclass(frozen=True)
class GroupedConfig:
    """The types, how the matrices lie, and the tile.

    `along_k`: groups are parts of k, and each has a result; else groups are rows, and each has a matrix B. `b_as_nk`:
    B lies along k, for groups of rows. `align`: bytes that divide the addresses of lines of A, B and C, and their
    lengths. `tile`, `warps`, `stages`: as `kernel` has them, gemm_sm80 or for groups of rows gemm_sm90. `panel`, for
    gemm_sm90: rows of tiles of a group that are computed side by side, so that they share B in the L2 cache. Raises
    VerifyError KERNEL_ARGUMENT.
    """

    dtype: DType = gr.fp16
    along_k: bool = False
    b_as_nk: bool = False
    align: tuple[int, int, int] = (16, 16, 16)
    tile: tuple[int, int, int] = (128, 128, 32)
    warps: tuple[int, int] = (2, 2)
    stages: int = 4
    kernel: str = "gemm_sm80"
    panel: int = 8

    def __post_init__(self) -> None:
        size("GroupedConfig", "panel", self.panel, most=64)
        element("GroupedConfig", "dtype", self.dtype, ("fp16", "bf16"))
        flags("GroupedConfig", "along_k, b_as_nk", (self.along_k, self.b_as_nk), 2)
        choice("GroupedConfig", "kernel", self.kernel, KERNELS[: 1 if self.along_k else 2])
        object.__setattr__(self, "product", self._product())

    def _product(self) -> GroupedProduct:
        order = "NT" if self.along_k else "TN" if self.b_as_nk else "TT"
        problem = GemmProblem(0, 0, 0, None, str(self.dtype), order, self.align)
        tile = GemmTile(self.tile, self.warps, self.stages, group=self.panel, kernel=self.kernel)
        return GroupedProduct(problem, tile, along_k=self.along_k)


def grouped_kernel(c: GroupedConfig) -> gr.Kernel:
    """C[rows of group e] = A[rows of group e] @ B[e], or C[e] = A[:, group e of k] @ B[group e of k].

    Arguments: A (T,K), B (E,K,N), `offsets` (E,) of i32, C (T,N), where group e has the rows from offsets[e - 1], for
    the first from 0, to offsets[e]; they ascend. Rows behind the last group are 0. With `along_k` A is (M,T) with
    contiguous columns, B (T,N), C (E,M,N), and a group without k has a result of 0. Sums are fp32, rounded once.

    The blocks find their groups themselves, so the offsets are never read on the host: a grid has as many blocks as
    there may be tiles, and a scan of the groups' numbers of tiles says which of them a block computes, if any.
    """
    product: GroupedProduct = c.product  # type: ignore[attr-defined]
    return product_sm80(product) if c.kernel == "gemm_sm80" else product_sm90(product, GroupTiles)


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
    def ends_inside(self) -> bool:
        """The next rows are another group's."""
        return True

    @property
    def tables_bytes(self) -> int:
        """The tables of groups."""
        return 8 * MOST_GROUPS if self.tile.kernel == "gemm_sm90" else 0

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
            kind = rng.integers(0, 4)
            if kind == 1:
                ends[-1:] = rows
            elif kind:  # as many tiles as there may be: each group has a row more than whole tiles
                ends = (rng.integers(0, 2, ends.shape) * size + 1).cumsum().clip(max=rows)
            offsets[...] = ends

        size = self.tile.tile[2 if along_k else 0]
        # Groups have several tiles or none, and there may be more of them than threads.
        T: tuple[int, ...] = (2 * size + 3, 3 * size, size, 1)
        E: tuple[int, ...] = (3, 1, 2, 5)
        if self.tile.kernel == "gemm_sm80":  # boxes need a row, and tables end
            T, E = (*T, 0), (*E, self.threads + 3)
        return {"means": product, "arguments": gr.Arguments(prepare, values={"T": T, "E": E})}

    def begin(self) -> BlockWork:
        """Declares the kernel's arguments, blocks and threads, and finds what a block computes."""
        return self._along_k() if self.along_k else self._rows()

    def declared(self) -> Declared:
        """Declares the arguments of a product of groups of rows."""
        a, b, p = self.a, self.b, self.problem
        most = {"max": MOST_IN_BOXES} if self.tile.kernel == "gemm_sm90" else {}
        depth = max(a.fact(k=True), b.fact(k=True))
        T = gr.sym("T", **most)
        E = gr.sym("E", min=1, max=MOST_GROUPS - 2) if most else gr.sym("E", min=1)
        N = gr.sym("N", multiple_of=max(b.fact(k=False), Result.vector(self.c_type, p.align[2])), **most)
        K = gr.sym("K", multiple_of=depth, **(most and most | {"min": depth}))
        A = a.argument(T, K, [], False, b.fact(k=True))
        B = matrix(gr.input, "B", (K, N), [E], b.dtype, b.align_bytes, not b.along_k)
        offsets = gr.input("offsets", [E], gr.i32)
        return Declared(T, N, K, [], [], A, B, RowsOfGroup((T, N), offsets, self.c_type, p.align[2]))

    def matrices(self, of: Declared, z: Any) -> tuple[Any, Any]:
        """The rows of A from a block's first one on, of which only the group's are stored, and B (N,K) of the group."""
        first = gr.min(z.read, of.M)  # which tells that it is inside
        B = of.B.tile([1, None, None])[z.group, 0, 0][0, :, :]
        return of.A.window(first, of.M - first), B.T

    def _rows(self) -> BlockWork:
        (BM, BN, BK), of = self.tile.tile, self.declared()
        columns, rows = tiles_of(of, BM, BN)
        bn, number = gr.blocks(columns, rows).indices()
        threads = gr.threads(self.threads)
        place = found_rows(of, BM, number, threads)
        gA, gB = self.matrices(of, place)
        gA, gB = gA.tile([BM, None])[0, 0], gB.tile([BN, None])[bn, 0]
        steps = gr.min(of.M - gr.min(place.read, of.M), 1) * gr.ceil_div(of.K, BK)
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]
        return BlockWork(threads, gA, gB, kA, kB, steps, of.result.tile(0, place, (0, bn), [BM, BN]))

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


def tiles_of(of: Declared, BM: int, BN: int) -> tuple[Any, Any]:
    """Tiles of columns, and the most tiles of rows that groups may have, with what is behind the last group."""
    return gr.ceil_div(of.N, BN), of.M // BM + of.B.shape[0] + 1


class GroupRows(NamedTuple):
    """A block's rows: their group, the first one, how many are left in the group, and from where on A is read.

    For rows in no group that is behind its last row, and the group is E, which B does not have: their sums are 0.
    """

    group: Any
    first: Any
    stored: Any
    read: Any


def group_of(of: Declared, g: Any, BM: int) -> tuple[Any, Any, Any]:
    """Where group g begins and ends, and its tiles of rows; group E is behind the last one, and then they are empty."""
    assert isinstance(of.result, RowsOfGroup)
    offsets, E, T = of.result.offsets, of.B.shape[0], of.M
    begin = gr.load(offsets[gr.max(gr.min(g, E) - 1, 0)])
    begin[...] = gr.where(g == 0, 0, begin)
    end = gr.load(offsets[gr.min(g, E - 1)])
    end[...] = gr.where(g < E, end, gr.where(g == E, T, begin))
    return begin, end, gr.let("tiles", gr.max(end - begin + (BM - 1), 0) // BM, gr.i32)


def found_rows(of: Declared, BM: int, number: Any, threads: Any) -> GroupRows:
    """The rows of tile `number` of all groups; a block without any ends."""
    (t,), E, count = threads.indices(), of.B.shape[0], threads.size
    found = gr.alloc("found", [4], gr.i32, gr.SH)
    last = gr.alloc("last_tiles", [1], gr.i32, gr.SH)
    before = gr.let("before", 0, gr.i32)
    with gr.if_(t == 0):
        found[0] = -1
    for part in gr.loop("part", gr.ceil_div(E + 1, count)):
        g = part * count + t
        begin, end, tiles = group_of(of, g, BM)
        own = gr.let("own", tiles)
        gr.scan("add", tiles, on=threads)
        tiles += before
        with gr.if_(tiles - own <= number), gr.if_(tiles > number):
            first = gr.let("first", begin + (number - (tiles - own)) * BM, gr.i32)
            found[0], found[1] = g, first
            found[2], found[3] = end - first, gr.where(g < E, first, of.M)
        with gr.if_(t == count - 1):
            last[0] = tiles
        gr.barrier()
        before[...] = last[0]
    gr.exit_if(gr.index(found[0], -1, MOST) < 0)
    return GroupRows(*(gr.index(found[i], 0, MOST) for i in range(4)))


class RowsOfGroup(Result):
    """C, of which a block stores rows of one group."""

    def __init__(self, size: tuple[Any, Any], offsets: Any, dtype: DType, align_bytes: int) -> None:
        super().__init__(size, [], [], dtype, align_bytes, set())
        self.offsets = offsets

    def tile(self, part: Any, z: Any, at: tuple[Any, Any], sizes: list[int]) -> Result:
        """The tile of a place's rows."""
        of_group = copy(self)
        of_group.matrices = {"C": self.matrices["C"].window(z.first, z.stored)}
        return Result.tile(of_group, part, 0, at, sizes)


class GroupTiles(Grid):
    """The tiles of all groups: tables in shared memory say which rows they have."""

    def __init__(self, h: Hopper, of: Declared) -> None:
        self.h, self.of, self.parts = h, of, []
        self.BM, BN, BK = h.product.tile.tile
        self.columns, rows = tiles_of(of, self.BM, BN)
        self.steps = gr.ceil_div(of.K, BK)
        self.tiles = gr.max(1, gr.min(self.columns * rows, MOST_TILES))
        self.workers = gr.min(gr.sm_count(), self.tiles)

    def find(self, block: Any, threads: Any) -> None:
        """Fills the tables: where groups begin, and how many tiles of rows groups up to each one have.

        Behind the groups stand the rest of the rows, and entries without rows.
        """
        of, E, (t,) = self.of, self.of.B.shape[0], threads.indices()
        self.begins, self.ends = (gr.alloc(n, [MOST_GROUPS], gr.i32, gr.SH) for n in ("begins", "tiles_up_to"))
        before = gr.let("before", 0, gr.i32)
        for part in range(-(-MOST_GROUPS // threads.size)):
            g = part * threads.size + t
            begin, _, tiles = group_of(of, g, self.BM)
            gr.scan("add", tiles, on=threads)
            tiles += before
            with gr.if_(g < MOST_GROUPS):
                self.begins[g], self.ends[g] = gr.where(g > E, of.M, begin), tiles
            gr.barrier()
            before[...] = self.ends[gr.min((part + 1) * threads.size, MOST_GROUPS) - 1]
        self.found = gr.min(gr.index(self.ends[MOST_GROUPS - 1], 0, MOST) * self.columns, MOST_TILES)

    def count(self, mark: str) -> None:
        """Declares the number of tiles for a role, in 32 bits."""
        self.counted = gr.scalar(f"{mark}_tiles", self.found, min=0, max=MOST_TILES).value

    def place(self, tile: Any, mates: Mates) -> tuple[Any, Any, Any, Any]:
        """The tile's rows, which are the first ones of a place, and its columns."""
        columns = gr.max(self.columns, 1)
        number, e = tile // columns, gr.let("group", 0, gr.i32)
        step = MOST_GROUPS // 2
        while step:  # the first group whose tiles go further
            up_to = gr.load(self.ends[gr.index(e, 0, MOST_GROUPS - 2 * step) + (step - 1)])
            e[...] = gr.where(up_to <= number, e + step, e)
            step //= 2
        group = gr.index(e, 0, MOST_GROUPS - 2)
        begin, end = (gr.index(self.begins[group + i], 0, MOST) for i in (0, 1))
        # As in a product of one matrix, some rows of tiles side by side share A and B in the L2 cache. In registers it
        # is computed once, and not at each use.
        panel = self.h.product.tile.group
        before = gr.load(self.ends[gr.max(group - 1, 0)], gr.u32)
        before[...] = gr.where(e == 0, 0, before)
        across = gr.let("across", columns, gr.u32)
        local = gr.let("local", tile, gr.u32)
        local -= before * across
        above = gr.let("above", local // (across * panel) * panel)
        local -= above * across
        beside = gr.let("beside", gr.min(gr.load(self.ends[group], gr.u32) - before - above, panel))
        column = gr.let("column", local // beside)
        row = gr.let("row", above + local - column * beside)
        first = begin + gr.index(row, 0, MOST_TILES) * self.BM
        behind = gr.max(0, gr.min(group - self.of.B.shape[0] + 1, 1))  # rows in no group
        place = GroupRows(group, first, gr.max(end - first, 0), gr.max(first, behind * self.of.M))
        return 0, gr.index(column, 0, MOST_TILES), 0, place
