"""What the kernels of a product share around their loop over k: arguments, grid, a block's part, the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, choice, element, flags, function, size, sizes
from graphene.kernels.epilogues import linear, relu
from graphene.kernels.gemm.operand import MATRIX_ATOMS, Operand
from graphene.kernels.gemm.problem import (
    FP8,
    RESULTS,
    TERMS,
    TYPES,
    GemmProblem,
    GemmTile,
    check_align,
    check_bytes,
    check_hopper,
    check_scales,
    default_out,
    rows_of_warp,
)
from graphene.kernels.gemm.result import Result, combined, nearest_tf32, of_fp8, parts_added, undefined_where_unused

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = ["BlockWork", "Declared", "Product", "relu_of_bias"]

MOST_IN_BOXES = 2**31 - 2**16  # coordinates of a copy by TMA have 32 bits with a sign, also those of the last box


def relu_of_bias(x: Any, b: Any) -> Any:
    """relu(x + b): the default epilogue of a product with a bias."""
    return relu(x + b)


class BlockWork(NamedTuple):
    """A block's parts of A [BM,K] and B [BN,K], both as tiles along k, the number of tiles, and the place in C."""

    threads: Any
    a: Any
    b: Any
    tiles_a: Any
    tiles_b: Any
    steps: Any
    result: Result


class Declared(NamedTuple):
    """The arguments of a kernel: sizes, modes of the batch and of the parts of k (one or none), operands, result."""

    M: Any
    N: Any
    K: Any
    batch: list[Any]
    parts: list[Any]
    A: Any
    B: Any
    result: Result


@dataclass(frozen=True)
class Product:
    """A problem of any sizes and the tile that computes it, as kernels see them. Raises VerifyError KERNEL_ARGUMENT.

    ``b_as_kn``: B is declared as (K,N), not as (N,K). With ``split_k`` of more than one part the kernel leaves sums.
    """

    problem: GemmProblem
    tile: GemmTile
    b_as_kn: bool = True

    def __post_init__(self) -> None:
        p, t = self.problem, self.tile
        if t.kernel == "gemm_sm70":
            choice(t.kernel, "dtype", p.dtype, ("fp16",))
            choice(t.kernel, "stages", t.stages, (2,))
        check_bytes(t.kernel, t.kernel, p.dtype, p.b_dtype, p.scales, p.promote, p.batch is not None)
        check_tile(t.kernel, self.dtype, t.tile, t.warps, t.group)
        self.check_epilogue()
        object.__setattr__(self, "problem", p.form)
        for operand, rows in zip((self.a, self.b), t.tile[:2], strict=True):
            passes = t.kernel == "gemm_sm70" or (t.kernel == "gemm_sm80" and not operand.asynchronous)
            if passes:  # through registers
                operand.share_out(t.kernel, rows, t.tile[2], self.threads)

    @classmethod
    def of(
        cls,
        kernel: str,
        tile: tuple[int, int, int],
        stages: int,
        *,
        epilogue: Callable[..., Any] | None,
        dtype: DType,
        out: DType | None,
        bias: bool | None,
        split_k: bool,
        batched: bool,
        padded: tuple[bool, bool],
        b_as_kn: bool,
        cluster: tuple[int, int, int] = (1, 1, 1),
        turns: bool = False,
        terms_in_stages: bool = False,
        **more: Any,
    ) -> Product:
        """Makes it from the arguments of gemm_sm90, gemm_sm80 and gemm_sm70, which an error names.

        ``more``: warps and group of the tile; order, align, residual, alpha and beta of the problem, and what only
        bytes have.
        """
        element(kernel, "dtype", dtype, tuple(RESULTS if kernel == "gemm_sm90" else MATRIX_ATOMS))
        if out is not None:
            element(kernel, f"out, of dtype {dtype},", out, RESULTS[str(dtype)])
        bias = epilogue is not None if bias is None else bias
        if split_k or (bias is False and epilogue is relu_of_bias):
            epilogue = None
        how, warps, group = check_tile(kernel, dtype, tile, more.pop("warps"), more.pop("group"))
        check_hopper(kernel, kernel, cluster, turns, terms_in_stages)
        c_type = TYPES[RESULTS[str(dtype)][0] if split_k else str(out or default_out(str(dtype)))]
        choice(kernel, "order", more["order"], ("TN", "NN", "NT", "TT"))
        check_align(kernel, more["align"], (dtype.bits, dtype.bits, c_type.bits))
        flags(kernel, "padded", padded, 2)
        terms = {"bias": bias, **{n: more[n] for n in TERMS[1:]}}
        for n, on in {"b_as_kn": b_as_kn, "batched": batched, "split_k": split_k, **terms}.items():
            flags(kernel, n, (on,), 1)
        if split_k:
            terms = {**dict.fromkeys(TERMS, False), "scales": None}
        elif epilogue is None and (used := [n for n in TERMS[:2] if terms[n]]):
            _core.fail("KERNEL_ARGUMENT", f"{kernel}: without an epilogue nothing is added to the product",
                       ["want: neither bias nor residual", f"got: {', '.join(used)}"],
                       f"pass epilogue=lambda x, {', '.join(t[0] for t in used)}: ..., or neither")  # fmt: skip
        check_scales(kernel, c_type, bool(terms["alpha"] or terms["beta"] or (more | terms).get("scales")))
        stages = size(kernel, "STAGES", stages, least=2)
        problem = GemmProblem(
            0, 0, 0, 0 if batched else None, str(dtype), out=str(c_type), epilogue=epilogue,
            **(more | terms),
        )  # fmt: skip
        parts = 2 if split_k else 1
        hopper = (cluster, turns, terms_in_stages)
        return cls(problem, GemmTile(how, warps, stages, group, padded, parts, kernel, *hopper), b_as_kn)

    def check_epilogue(self) -> None:
        """Raises VerifyError KERNEL_ARGUMENT unless it can be applied, or is not needed."""
        p = self.problem
        if self.epilogue is not None:
            function(self.tile.kernel, "epilogue", self.epilogue, ["x", *(n for n in TERMS[:2] if getattr(p, n))])
            check_scales(self.tile.kernel, self.c_type, p.alpha or p.beta or p.scales is not None)

    @property
    def epilogue(self) -> Callable[..., Any] | None:
        """The function of the sums and the terms; None if sums are stored unchanged."""
        p = self.problem
        if self.splits or (p.epilogue is None and self.c_type == self.sums and not p.computes):
            return None
        return p.epilogue or linear(p.activation, p.bias, p.residual, self.c_type.bits)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.tile.kernel

    @property
    def ends_inside(self) -> bool:
        """Whether a tile may end inside of C, whose next rows are another's."""
        return False

    @property
    def tables_bytes(self) -> int:
        """Shared memory of what says which tiles there are."""
        return 0

    @property
    def splits(self) -> bool:
        """Whether parts of sums are stored, W instead of C."""
        return self.tile.split_k > 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * prod(self.tile.warps)

    @property
    def dtype(self) -> DType:
        """The type of A, and mostly of B."""
        return TYPES[self.problem.dtype]

    @property
    def sums(self) -> DType:
        """The accumulators' type."""
        return TYPES[self.problem.sums]

    @property
    def c_type(self) -> DType:
        """The type of the stored result."""
        return self.sums if self.splits else TYPES[self.problem.out_dtype]

    def in_memory(self, dtype: str) -> DType:
        """The type of an operand: gemm_sm90 calls fp32 tf32, to which TMA rounds it; others round in registers."""
        return gr.tf32 if dtype == "fp32" and self.tile.kernel == "gemm_sm90" else TYPES[dtype]

    @property
    def a(self) -> Operand:
        """A in global memory."""
        return Operand(
            "A",
            self.in_memory(self.problem.dtype),
            self.problem.order[0] == "T",
            self.problem.align[0],
            self.tile.pad[0],
        )

    @property
    def b(self) -> Operand:
        """B in global memory."""
        dtype = self.in_memory(self.problem.b_dtype or self.problem.dtype)
        return Operand("B", dtype, self.problem.order[1] == "N", self.problem.align[1], self.tile.pad[1])

    def promise(self) -> dict[str, Any]:
        """The kernel's meaning for gr.Kernel: NumPy on its arguments."""
        epilogue, as_kn, split, rounds = self.epilogue, self.b_as_kn, self.splits, self.a.dtype == gr.fp32
        coarse, promote = self.problem.dtype in FP8, self.problem.promote
        longer = [(n, -2 if as_kn and n == "B" else -1) for n, o in (("A", self.a), ("B", self.b)) if o.longer_k]

        def product(
            A: Any, B: Any, C: Any = None, W: Any = None, bias: Any = None, residual: Any = None,
            alpha: Any = None, beta: Any = None, scale_a: Any = None, scale_b: Any = None,
        ) -> dict[str, Any]:  # fmt: skip
            B = B if as_kn else B.swapaxes(-1, -2)
            (M, N), K = (W if split else C).shape[-2:], min(A.shape[-1], B.shape[-2])
            # Lines may be longer than what is multiplied: the rest is zero, or belongs to no column of C.
            A, B = A[..., :M, :K], B[..., :K, :N]
            if rounds:
                A, B = gr.rounded("tA", A), gr.rounded("tB", B)
            elif self.a.dtype == gr.tf32:
                A, B = nearest_tf32(A), nearest_tf32(B)
            sums = of_fp8(A, B, promote) if coarse else A @ B
            return {"C": combined(sums, epilogue, C, bias, residual, alpha, beta, scale_a, scale_b)}

        def prepare(args: Any, rng: Any) -> None:
            undefined_where_unused(args)
            K = min(args["A"].shape[-1], args["B"].shape[-2 if as_kn else -1])
            for name, axis in longer:
                args[name].swapaxes(axis, 0)[K:] = 0

        def long_enough(s: dict[str, int]) -> None:
            for n, o, other, rows in (("A", self.a, self.b, "M"), ("B", self.b, self.a, "N")):
                if o.padded:
                    held, multiple = (
                        (s.get("K", 0), o.multiple_along_k(other.fact(k=True))) if o.along_k else (s[rows], o.vector)
                    )
                    s[f"length_{n}"] = max(s[f"length_{n}"], -(-held // multiple) * multiple)

        arguments = gr.Arguments(prepare, long_enough)
        return {"means": product, "read": parts_added if split else None, "arguments": arguments}

    def declared(self) -> Declared:
        """Declares the kernel's arguments."""
        a_is, b_is, p = self.a, self.b, self.problem
        has = set() if self.splits else {n for n in TERMS if getattr(p, n)}
        most = {"max": MOST_IN_BOXES} if self.tile.kernel == "gemm_sm90" else {}
        M = gr.sym("M", multiple_of=a_is.fact(k=False), **most)
        N = gr.sym("N", multiple_of=max(b_is.fact(k=False), Result.vector(self.c_type, p.align[2])), **most)
        depth = max(a_is.fact(k=True), b_is.fact(k=True))
        K = gr.sym("K", multiple_of=depth, **(most | {"min": depth} if most else {}))
        batch = [gr.sym("batch", **most)] if p.batch is not None else []
        parts = [gr.sym("S", min=1, **(most and {"max": MOST_BLOCKS_YZ}))] if self.splits else []
        lengths = most | {"min": 1} if most else {}
        A = a_is.argument(M, K, batch, False, b_is.fact(k=True), **lengths)
        B = b_is.argument(N, K, batch, self.b_as_kn, a_is.fact(k=True), **lengths)
        scales = None if self.splits else p.scales
        result = Result((M, N), batch, parts, self.c_type, p.align[2], has, scales=scales)
        return Declared(M, N, K, batch, parts, A, B, result)

    def matrices(self, of: Declared, z: Any) -> tuple[Any, Any]:
        """A (M,K) and B (N,K) of a member of the batch."""
        A, B = (of.A[z, :, :], of.B[z, :, :]) if of.batch else (of.A, of.B)
        return A, B.T if self.b_as_kn else B

    def begin(self) -> BlockWork:
        """Declares the kernel's arguments, blocks and threads, and finds what a block computes."""
        (BM, BN, BK), group, a_is, b_is = self.tile.tile, self.tile.group, self.a, self.b
        of = self.declared()
        tiles_m, tiles_n = gr.ceil_div(of.M, BM), gr.ceil_div(of.N, BN)
        grid = (group * tiles_n, gr.ceil_div(tiles_m, group)) if group > 1 else (tiles_m, tiles_n)
        blocks = gr.blocks(*grid, prod(of.parts + of.batch))
        threads = gr.threads(self.threads)
        if any(self.tile.pad):
            gr.wait_kernels()  # the kernel before this one makes the padded copies
        x, y, z = blocks.indices()
        bm, bn = (y * group + x % group, x // group) if group > 1 else (x, y)
        if group > 1:
            gr.exit_if(bm >= tiles_m)
        part, z = (z // of.batch[0], z % of.batch[0]) if of.batch and of.parts else (z, z)
        A, B = self.matrices(of, z)

        gA, gB = A.tile([BM, None])[bm, 0], B.tile([BN, None])[bn, 0]  # [BM,K], [BN,K]
        first, ks = 0, gA.shape[1] if a_is.longer_k else gB.shape[1]
        steps = gr.ceil_div(ks, BK)
        if of.parts:
            steps = gr.ceil_div(steps, of.parts[0])
            first, ks = part * steps * BK, steps * BK
        if of.parts or a_is.longer_k or b_is.longer_k:
            gA, gB = (g.T.window(first, ks).T for g in (gA, gB))  # the same part of k
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]  # [k].[BM,BK], [k].[BN,BK]
        return BlockWork(threads, gA, gB, kA, kB, steps, of.result.tile(part, z, (bm, bn), [BM, BN]))


def check_tile(
    kernel: str, dtype: DType, tile: Any, warps: Any, group: Any
) -> tuple[tuple[int, int, int], tuple[int, int], int]:
    """Tile, warps and group. Raises VerifyError KERNEL_ARGUMENT unless the kernel's instruction covers such a tile."""
    down, across = sizes(kernel, "warps", warps, 2, 1, 32)
    size(kernel, "warps[0] * warps[1]", down * across, most=32)
    k_step = 8 if kernel == "gemm_sm70" else 2 * 256 // dtype.bits  # two steps of the instruction
    multiples = (rows_of_warp(kernel, down) * down, rows_of_warp(kernel, across) * across, k_step)
    BM, BN, BK = (
        size(kernel, n, x, least=least, multiple_of=m)
        for n, x, m, least in zip(("BM", "BN", "BK"), tile, multiples, (16, 16, 1), strict=True)
    )
    return (BM, BN, BK), (down, across), size(kernel, "group", group)
