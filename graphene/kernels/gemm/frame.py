"""What the kernels of a product share around their loop over k: arguments, grid, a block's part, the result."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import choice, element, flags, function, size, sizes
from graphene.kernels.epilogues import relu
from graphene.kernels.gemm.operand import MATRIX_ATOMS, Operand
from graphene.kernels.gemm.problem import RESULTS, TERMS, check_align, check_scales
from graphene.kernels.gemm.result import Result, combined, parts_added, undefined_where_unused

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.dtypes import DType

__all__ = ["Part", "Product", "relu_of_bias"]


def relu_of_bias(x: Any, b: Any) -> Any:
    """relu(x + b): the epilogue of a product that is given none and has a bias."""
    return relu(x + b)


class Part(NamedTuple):
    """What a block computes: its parts of A [BM,K] and B [BN,K], both as tiles along k, how many, and where C goes."""

    threads: Any
    a: Any
    b: Any
    tiles_a: Any
    tiles_b: Any
    steps: Any
    result: Result


@dataclass(frozen=True)
class Product:
    """The options of gemm_sm80, checked. Raises VerifyError KERNEL_ARGUMENT."""

    kernel: str
    tile: tuple[int, int, int]
    warps: tuple[int, int]
    epilogue: Callable[..., Any] | None
    k_step: int  # what BK is a multiple of
    group: int
    order: str
    dtype: DType
    out: DType | None
    align: tuple[int, int, int]
    padded: tuple[bool, bool]
    b_as_kn: bool
    batched: bool
    bias: bool | None
    residual: bool
    alpha: bool
    beta: bool
    split_k: bool

    def __post_init__(self) -> None:
        name = self.kernel
        if self.bias is None:
            object.__setattr__(self, "bias", self.epilogue is not None)
        if self.split_k or (self.bias is False and self.epilogue is relu_of_bias):
            object.__setattr__(self, "epilogue", None)
        self.check_types(name, self.dtype, self.out)
        warps = sizes(name, "warps", self.warps, 2, 1, 32)
        size(name, "warps[0] * warps[1]", prod(warps), most=32)
        multiples = (16 * warps[0], 16 * warps[1], self.k_step)
        tile = [size(name, n, x, multiple_of=m)
                for n, x, m in zip(("BM", "BN", "BK"), self.tile, multiples, strict=True)]  # fmt: skip
        group = size(name, "group", self.group)
        choice(name, "order", self.order, ("TN", "NN", "NT", "TT"))
        align = check_align(name, self.align, (self.dtype.bits, self.dtype.bits, self.c_type.bits))
        padded = flags(name, "padded", self.padded, 2)
        for n, value in (
            ("tile", tuple(tile)),
            ("warps", warps),
            ("group", group),
            ("align", align),
            ("padded", padded),
        ):
            object.__setattr__(self, n, value)
        for n in ("b_as_kn", "batched", "split_k", *TERMS):
            flags(name, n, (getattr(self, n),), 1)
        self.check_epilogue(name)
        for operand, rows in zip((self.a, self.b), self.tile[:2], strict=True):
            if not operand.asynchronous or self.always_held:
                operand.share_out(name, rows, self.tile[2], 32 * prod(self.warps))

    @property
    def always_held(self) -> bool:
        """Whether tiles pass through registers however their lines are aligned."""
        return self.kernel == "gemm_sm70"

    @staticmethod
    def check_types(name: str, dtype: object, out: object) -> None:
        """Raises VerifyError KERNEL_ARGUMENT unless the types go together."""
        element(name, "dtype", dtype, tuple(MATRIX_ATOMS))
        if out is not None:
            element(name, f"out, of dtype {dtype},", out, RESULTS[str(dtype)])

    def check_epilogue(self, name: str) -> None:
        """Raises VerifyError KERNEL_ARGUMENT unless it can be applied, or is not needed."""
        terms = [n for n in TERMS if getattr(self, n)]
        if self.split_k:
            return
        if self.epilogue is None:
            if used := [t for t in terms if t in ("bias", "residual")]:
                _core.fail("KERNEL_ARGUMENT", f"{name}: without an epilogue nothing is added to the product",
                           ["want: neither bias nor residual", f"got: {', '.join(used)}"],
                           f"pass epilogue=lambda x, {', '.join(t[0] for t in used)}: ..., or neither")  # fmt: skip
            if self.c_type == self.sums and not terms:
                return  # stored as they are
            object.__setattr__(self, "epilogue", _product_itself)
        function(name, "epilogue", self.epilogue, ["x", *(n for n in TERMS[:2] if n in terms)])
        check_scales(name, self.c_type, self.alpha or self.beta)

    @property
    def sums(self) -> DType:
        """The accumulators' type."""
        return gr.i32 if self.dtype == gr.i8 else gr.fp32

    @property
    def c_type(self) -> DType:
        """The type of what is stored."""
        return self.sums if self.split_k else self.out or (gr.i32 if self.dtype == gr.i8 else self.dtype)

    @property
    def a(self) -> Operand:
        """A in global memory."""
        return Operand("A", self.dtype, self.order[0] == "T", self.align[0], self.padded[0])

    @property
    def b(self) -> Operand:
        """B in global memory."""
        return Operand("B", self.dtype, self.order[1] == "N", self.align[1], self.padded[1])

    def promise(self) -> dict[str, Any]:
        """What the kernel's result is, for gr.Kernel: NumPy on its arguments."""
        epilogue, as_kn, split, rounds = self.epilogue, self.b_as_kn, self.split_k, self.dtype == gr.fp32
        longer = [(n, -2 if as_kn and n == "B" else -1) for n, o in (("A", self.a), ("B", self.b)) if o.longer_k]

        def product(
            A: Any, B: Any, C: Any = None, W: Any = None, bias: Any = None, residual: Any = None,
            alpha: Any = None, beta: Any = None,
        ) -> dict[str, Any]:  # fmt: skip
            B = B if as_kn else B.swapaxes(-1, -2)
            (M, N), K = (W if split else C).shape[-2:], min(A.shape[-1], B.shape[-2])
            A, B = A[..., :M, :K], B[..., :K, :N]  # what lines have behind that is zero, or of no column of C
            if rounds:
                A, B = gr.rounded("tA", A), gr.rounded("tB", B)
            return {"C": combined(A @ B, epilogue, C, bias, residual, alpha, beta)}

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

    def begin(self) -> Part:
        """Declares the kernel's arguments, blocks and threads, and finds what a block computes."""
        (BM, BN, BK), group, a_is, b_is = self.tile, self.group, self.a, self.b
        has = set() if self.split_k else {n for n in TERMS if getattr(self, n)}
        M = gr.sym("M", multiple_of=a_is.fact(k=False))
        N = gr.sym("N", multiple_of=max(b_is.fact(k=False), Result.vector(self.c_type, self.align[2])))
        K = gr.sym("K", multiple_of=max(a_is.fact(k=True), b_is.fact(k=True)))
        batch, parts = [gr.sym("batch")] if self.batched else [], [gr.sym("S", min=1)] if self.split_k else []
        A = a_is.argument(M, K, batch, False, b_is.fact(k=True))
        B = b_is.argument(N, K, batch, self.b_as_kn, a_is.fact(k=True))
        result = Result((M, N), batch, parts, self.c_type, self.align[2], has)

        tiles_m, tiles_n = gr.ceil_div(M, BM), gr.ceil_div(N, BN)
        grid = (group * tiles_n, gr.ceil_div(tiles_m, group)) if group > 1 else (tiles_m, tiles_n)
        blocks = gr.blocks(*grid, prod(parts + batch))
        threads = gr.threads(32 * prod(self.warps))
        if any(self.padded):
            gr.wait_kernels()  # what was padded comes from the kernel before this one
        x, y, z = blocks.indices()
        bm, bn = (y * group + x % group, x // group) if group > 1 else (x, y)
        if group > 1:
            gr.exit_if(bm >= tiles_m)
        part, z = (z // batch[0], z % batch[0]) if batch and parts else (z, z)
        result.tile(part, z, (bm, bn), [BM, BN])
        A, B = (A[z, :, :], B[z, :, :]) if batch else (A, B)
        B = B.T if self.b_as_kn else B

        gA, gB = A.tile([BM, None])[bm, 0], B.tile([BN, None])[bn, 0]  # [BM,K], [BN,K]
        first, ks = 0, gA.shape[1] if a_is.longer_k else gB.shape[1]
        steps = gr.ceil_div(ks, BK)
        if parts:
            steps = gr.ceil_div(steps, parts[0])
            first, ks = part * steps * BK, steps * BK
        if parts or a_is.longer_k or b_is.longer_k:
            gA, gB = (g.T.window(first, ks).T for g in (gA, gB))  # the same part of k
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]  # [k].[BM,BK], [k].[BN,BK]
        return Part(threads, gA, gB, kA, kB, steps, result)


def _product_itself(x: Any) -> Any:
    return x
