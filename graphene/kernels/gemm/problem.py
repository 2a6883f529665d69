"""A product in words: what is computed (`GemmProblem`), and how (`GemmTile`). `GemmConfig` is both in one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, choice, flags, size, sizes
from graphene.kernels.epilogues import check_activation
from graphene.kernels.traced import as_data

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FP8",
    "RESULTS",
    "SCALED",
    "SCALES",
    "TERMS",
    "TYPES",
    "GemmConfig",
    "GemmProblem",
    "GemmTile",
    "check_align",
    "check_bytes",
    "check_hopper",
    "check_product",
    "check_scales",
    "default_out",
]

TYPES = {t.name: t for t in (gr.fp16, gr.bf16, gr.fp32, gr.i8, gr.i32, gr.fp8e4m3, gr.fp8e5m2)}
FP8 = ("fp8e4m3", "fp8e5m2")
# The type of A and B -> the types of C. The first is that of the sums.
RESULTS: dict[str, tuple[str, ...]] = {n: ("fp32", "fp16", "bf16") for n in ("fp16", "bf16", "fp32", *FP8)}
RESULTS |= {n: (*RESULTS[n], *FP8) for n in FP8}
RESULTS["i8"] = ("i32", "fp32", "fp16", "bf16")
TERMS = ("bias", "residual", "alpha", "beta")
SCALED = ("scale_a", "scale_b")  # arguments of products with scales
SCALES = ("tensor", "rows")  # one scale for each operand, or one for each row of A and each column of B
KERNELS = ("gemm_sm90", "gemm_sm80", "gemm_sm70")


def check_product(
    name: str, dtype: object, out: object, order: object, align: object, activation: object
) -> tuple[int, ...]:
    """The alignments. Raises VerifyError KERNEL_ARGUMENT unless there are products of that kind."""
    choice(name, "dtype", dtype, tuple(RESULTS))
    types = RESULTS[str(dtype)]
    if out is not None:
        choice(name, f"out of dtype {dtype}", out, types)
    choice(name, "order", order, ("TN", "NN", "NT", "TT"))
    result = str(out or default_out(str(dtype)))
    alignments = check_align(name, align, (TYPES[str(dtype)].bits, TYPES[str(dtype)].bits, TYPES[result].bits))
    check_activation(name, activation)
    if result == "i32" and isinstance(activation, str) and activation != "relu":
        _core.fail("KERNEL_ARGUMENT", f"{name}: {activation} is not a function of integers", ["got: out i32"],
                   "store another type")  # fmt: skip
    return alignments


def default_out(dtype: str) -> str:
    """The type of C if none is named: that of the operands, or of the sums if operands are bytes."""
    return RESULTS[dtype][0] if TYPES[dtype].bits == 8 else dtype


def check_bytes(
    name: str, kernel: str, dtype: str, b_dtype: object, scales: object, promote: object, batched: bool
) -> str | None:
    """The type of B if it is another one. Raises VerifyError KERNEL_ARGUMENT for what only products of bytes have."""
    if b_dtype is not None:
        choice(name, f"b_dtype, of dtype {dtype},", b_dtype, FP8 if dtype in FP8 else (dtype,))
    if scales is not None:
        choice(name, "scales", scales, SCALES)
    flags(name, "promote", (promote,), 1)

    def refuse(what: str, want: str, got: str, fix: str) -> None:
        _core.fail("KERNEL_ARGUMENT", f"{name}: {what}", [f"want: {want}", f"got: {got}"], fix)

    if scales is not None and TYPES[dtype].bits != 8:
        refuse("only operands of bytes are scaled", f"dtype {', '.join((*FP8, 'i8'))}", dtype, "take alpha")
    if promote and dtype not in FP8:
        refuse("only sums of fp8 are promoted", f"dtype {', '.join(FP8)}", dtype, "leave out promote")
    if scales is not None and batched:
        refuse("scales have no batch", "batched=False", "batched=True", "compute one product after the other")
    if kernel != "gemm_sm90" and (dtype in FP8 or scales is not None):
        refuse("products of fp8, and scaled ones, are gemm_sm90's", "kernel gemm_sm90", kernel, "take gemm_sm90")
    return None if b_dtype == dtype else b_dtype  # type: ignore[return-value]


def check_scales(name: str, out: object, scales: bool) -> None:
    """Raises VerifyError KERNEL_ARGUMENT if integers would be scaled."""
    if str(out) == "i32" and scales:
        _core.fail("KERNEL_ARGUMENT", f"{name}: integers are not scaled",
                   ["want: out fp32, fp16 or bf16", "got: out i32"],
                   "leave out scales, alpha and beta, or store another type")  # fmt: skip


def check_align(name: str, align: object, bits: tuple[int, int, int]) -> tuple[int, ...]:
    """The alignments. Raises VerifyError KERNEL_ARGUMENT unless elements of these bits can have them."""
    bytes_of = sizes(name, "align", align, 3)
    for i, (n, item) in enumerate(zip("ABC", bits, strict=True)):
        known = tuple(w for w in (16, 8, 4, 2, 1) if 8 * w >= item)
        choice(name, f"align[{i}], bytes of {n},", bytes_of[i], known)
    return bytes_of


def check_hopper(name: str, kernel: str, cluster: object, turns: object, in_stages: object) -> tuple[int, ...]:
    """The cluster. Raises VerifyError KERNEL_ARGUMENT if another kernel is asked for what only gemm_sm90 has.

    ``in_stages``: the field `terms_in_stages`.
    """
    blocks = sizes(name, "cluster", cluster, 3, 1, 8)
    flags(name, "turns", (turns,), 1)
    flags(name, "terms_in_stages", (in_stages,), 1)
    size(name, "cluster[0] * cluster[1] * cluster[2]", prod(blocks), most=8)
    if kernel != "gemm_sm90" and (max(blocks) > 1 or turns or in_stages):
        _core.fail("KERNEL_ARGUMENT", f"{name}: clusters, turns and terms_in_stages are gemm_sm90's",
                   ["want: cluster=(1, 1, 1), turns=False, terms_in_stages=False",
                    f"got: kernel {kernel}, {cluster=}, {turns=}, terms_in_stages={in_stages}"],
                   "leave them out, or take gemm_sm90")  # fmt: skip
    return blocks


def common(config: Any, kind: type) -> dict[str, Any]:
    """The fields of a configuration that another class of configurations has, too."""
    return {f.name: getattr(config, f.name) for f in fields(kind) if hasattr(config, f.name)}


@dataclass(frozen=True)
class GemmConfig:
    """C = act(alpha * A @ B + beta * C + bias) + residual: A (M,K), B (K,N), bias (N,), residual and C (M,N).

    It has the fields of `GemmProblem` without sizes, and those of `GemmTile`. ``pad``: whether A, B are first copied to
    lines of multiples of 128 bytes (`align` is the alignment before). ``split_k``: the number of parts in which k is
    summed; another kernel adds the parts. ``activation``: one of epilogues.ACTIVATIONS, or a function of a register,
    which is kept as an expression. ``kernel``: gemm_sm90, gemm_sm80 or gemm_sm70; the last is for fp16. ``stages``: 2
    or more, by default 3; gemm_sm70 has 2. Raises VerifyError KERNEL_ARGUMENT.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = None  # type: ignore[assignment]  # the kernel's own
    warps: tuple[int, int] = (2, 2)
    group: int = 1
    order: str = "TN"
    dtype: str = "fp16"
    out: str | None = None
    align: tuple[int, int, int] = (16, 16, 16)
    pad: tuple[bool, bool] = (False, False)
    batched: bool = False
    bias: bool = False
    residual: bool = False
    alpha: bool = False
    beta: bool = False
    activation: str | Callable[[Any], Any] | None = None
    split_k: int = 1
    kernel: str = "gemm_sm80"
    cluster: tuple[int, int, int] = (1, 1, 1)
    turns: bool = False
    b_dtype: str | None = None
    scales: str | None = None
    promote: bool = False
    terms_in_stages: bool = False

    def __post_init__(self) -> None:
        n = "GemmConfig"
        values: dict[str, Any] = {
            "align": check_product(n, self.dtype, self.out, self.order, self.align, self.activation),
            "tile": sizes(n, "tile", self.tile, 3),
            "warps": sizes(n, "warps", self.warps, 2),
            "pad": flags(n, "pad", self.pad, 2),
            "activation": as_data(self.activation),
        }
        check_scales(n, self.out or default_out(self.dtype), self.alpha or self.beta or self.scales is not None)
        for name in ("batched", *TERMS):
            flags(n, name, (getattr(self, name),), 1)
        choice(n, "kernel", self.kernel, KERNELS)
        old = self.kernel == "gemm_sm70"
        if self.stages is None:
            object.__setattr__(self, "stages", 2 if old else 3)
        values["b_dtype"] = check_bytes(
            n, self.kernel, self.dtype, self.b_dtype, self.scales, self.promote, self.batched
        )
        for name in ("group", "split_k"):
            values[name] = size(n, name, getattr(self, name))
        if old:
            choice(n, "dtype of gemm_sm70", self.dtype, ("fp16",))
            choice(n, "stages of gemm_sm70", self.stages, (2,))
        values["stages"] = size(n, "stages", self.stages, least=2)
        values["cluster"] = check_hopper(n, self.kernel, self.cluster, self.turns, self.terms_in_stages)
        for name, value in values.items():  # as they are hashed and stored: tuples and integers of Python
            object.__setattr__(self, name, value)

    @property
    def problem(self) -> GemmProblem:
        """The problem, without sizes."""
        return GemmProblem(0, 0, 0, 0 if self.batched else None, **common(self, GemmProblem))

    @property
    def how(self) -> GemmTile:
        """The tile."""
        return GemmTile(**common(self, GemmTile))

    @property
    def out_dtype(self) -> str:
        """The type of C, bias and residual."""
        return self.problem.out_dtype


@dataclass(frozen=True)
class GemmProblem:
    """One product C = act(alpha * A @ B + beta * C + bias) + residual, (M,K) by (K,N): what is computed.

    ``batch``: None for plain matrices. ``dtype``: the type of A and B. ``b_dtype``: that of B, if both are different
    types of fp8. ``scales``: "tensor" if A and B are each multiplied by a number, scale_a and scale_b in memory; "rows"
    if each row of A and each column of B has one. ``promote``: whether sums of fp8 are added up in fp32 every 128 k,
    because the instruction keeps 14 bits. ``out``: the type of the rest; None is the same type, or for operands of
    bytes that of the sums. ``order``, ``align``: how the matrices lie in memory, as in gemm_sm80. ``activation``: one
    of epilogues.ACTIVATIONS, or a function of a register, which is kept as an expression. ``epilogue``: instead of an
    activation, any function of the sums, the bias, the residual. ``workspaces``: whether the product may have
    workspaces. Raises VerifyError KERNEL_ARGUMENT.
    """

    m: int
    n: int
    k: int
    batch: int | None = None
    dtype: str = "fp16"
    order: str = "TN"
    align: tuple[int, int, int] = (16, 16, 16)
    bias: bool = False
    residual: bool = False
    activation: str | Callable[[Any], Any] | None = None
    workspaces: bool = True
    out: str | None = None
    alpha: bool = False
    beta: bool = False
    epilogue: Callable[..., Any] | None = None
    b_dtype: str | None = None
    scales: str | None = None
    promote: bool = False

    def __post_init__(self) -> None:
        n = "GemmProblem"
        align = check_product(n, self.dtype, self.out, self.order, self.align, self.activation)
        values: dict[str, Any] = {x: size(n, x, getattr(self, x), least=0) for x in ("m", "n", "k")}
        batch = None if self.batch is None else size(n, "batch", self.batch, least=0)
        values |= {"align": align, "batch": batch, "activation": as_data(self.activation)}
        values["b_dtype"] = check_bytes(
            n, "gemm_sm90", self.dtype, self.b_dtype, self.scales, self.promote, batch is not None
        )
        for name, value in values.items():  # as they are hashed and stored: tuples and integers of Python
            object.__setattr__(self, name, value)
        for name in (*TERMS, "workspaces"):
            flags(n, name, (getattr(self, name),), 1)
        check_scales(n, self.out_dtype, self.alpha or self.beta or self.scales is not None)

    @property
    def out_dtype(self) -> str:
        """The type of C, bias and residual."""
        return self.out or default_out(self.dtype)

    @property
    def computes(self) -> bool:
        """Whether anything but rounding happens to the sums."""
        return self.activation is not None or self.scales is not None or any(getattr(self, n) for n in TERMS)

    @property
    def sums(self) -> str:
        """The type of the accumulators and of the workspace of their parts."""
        return RESULTS[self.dtype][0]

    @property
    def form(self) -> GemmProblem:
        """The same problem without sizes, for which a kernel is built."""
        if (self.m, self.n, self.k) == (0, 0, 0) and not self.batch:
            return self
        return replace(self, m=0, n=0, k=0, batch=None if self.batch is None else 0)

    @property
    def plain(self) -> GemmProblem:
        """The product alone, without terms and activation."""
        return GemmProblem(self.m, self.n, self.k, self.batch, self.dtype, self.order, self.align,
                           workspaces=self.workspaces, out=self.out, b_dtype=self.b_dtype,
                           promote=self.promote)  # fmt: skip

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch is not None else ""
        act = f" {getattr(self.activation, '__name__', self.activation)}" if self.activation else ""
        kind = self.dtype + (f" {self.b_dtype}" if self.b_dtype else "") + " promoted" * self.promote
        return f"{batch}{self.m}x{self.n}x{self.k} {self.order} {kind}{act}"


def rows_of_warp(kernel: str, warps: int) -> int:
    """The number that divides the rows, or the columns, of a tile for each warp along them.

    No warps divide the columns of wgmma, which are multiples of eight.
    """
    return 8 if kernel == "gemm_sm90" and warps == 1 else 16


@dataclass(frozen=True)
class GemmTile:
    """How a product is computed: the choices that a tuning record keeps.

    ``tile``: rows and columns of C that a block computes, and k of a step. ``warps``: rows and columns of warps that
    divide the tile. ``stages``: tiles of k in shared memory. ``group``: rows of tiles that are computed at about the
    same time. ``pad``: which of A, B are first copied to lines of multiples of 128 bytes. ``split_k``: the number of
    parts in which k is summed; another kernel adds the parts. ``kernel``: gemm_sm90, gemm_sm80 or gemm_sm70.

    Of gemm_sm90 alone: ``warps`` are (4,1) or (8,1), one or two consumers of 64 rows or a multiple of it, or (1,4) or
    (1,8), by which A and B change places, for few rows. ``cluster``: blocks of a cluster along the rows, the columns
    and k; those along rows share tiles of B, those along columns tiles of A, and those along k the sums. ``turns``: a
    second consumer computes a tile of its own and stores it while the first multiplies (ping-pong).
    ``terms_in_stages``: a residual, or with beta C, comes through the stages after a tile's operands. It changes
    nothing for products with none of them or both, with lines of A along its rows, or with C of another type than A.

    Raises VerifyError KERNEL_ARGUMENT, since a record may have been written by hand.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    group: int = 1
    pad: tuple[bool, bool] = (False, False)
    split_k: int = 1
    kernel: str = "gemm_sm80"
    cluster: tuple[int, int, int] = (1, 1, 1)
    turns: bool = False
    terms_in_stages: bool = False

    def __post_init__(self) -> None:
        n = "GemmTile"
        choice(n, "kernel", self.kernel, KERNELS)
        values: dict[str, Any] = {
            "tile": sizes(n, "tile", self.tile, 3),
            "warps": sizes(n, "warps", self.warps, 2, 1, 32),
            "pad": flags(n, "pad", self.pad, 2),
            "stages": size(n, "stages", self.stages, least=2, most=1024),
            "group": size(n, "group", self.group),
            "split_k": size(n, "split_k", self.split_k, most=MOST_BLOCKS_YZ),
            "cluster": check_hopper(n, self.kernel, self.cluster, self.turns, self.terms_in_stages),
        }
        for name, value in values.items():  # JSON has lists, no tuples
            object.__setattr__(self, name, value)
        for i, rows in enumerate(("tile[0]", "tile[1]")):
            size(n, rows, self.tile[i], least=16, multiple_of=rows_of_warp(self.kernel, self.warps[i]) * self.warps[i])

    def config(self, p: GemmProblem) -> GemmConfig:
        """The configuration of a problem."""
        return GemmConfig(batched=p.batch is not None, **common(p, GemmConfig), **common(self, GemmConfig))

    def __str__(self) -> str:
        padded = "".join(n for n, p in zip("AB", self.pad, strict=True) if p)
        (bm, bn, bk), (down, across) = self.tile, self.warps
        split = f" /{self.split_k}" if self.split_k > 1 else ""
        text = f"{bm}x{bn}x{bk} by {bm // down}x{bn // across}, {self.stages} stages{split}"
        if self.kernel == "gemm_sm90":
            clusters = "x".join(map(str, self.cluster))
            text += " in turns" * self.turns + f", clusters of {clusters}" * (max(self.cluster) > 1)
            text += ", terms in stages" * self.terms_in_stages + ", sm_90a"
        return text + (f", {padded} padded" if padded else "")
