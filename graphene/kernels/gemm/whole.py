"""A whole matrix product: its configuration, the kernels that compute it, and their workspaces.

    config = select_gemm(M, N, K, order="TT", dtype="fp16", align=(16, 16, 16), activation="gelu", bias=True)
    run_gemm(config, a, b, c, bias=bias)          # c = gelu(a @ b + bias)

A configuration is a value: equal configurations have the same kernels, for any sizes of the product.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import graphene as gr
from graphene import _core
from graphene.dtypes import torch_type
from graphene.kernels.arguments import instance, size, strides_elems
from graphene.kernels.epilogues import linear
from graphene.kernels.gemm.frame import Product
from graphene.kernels.gemm.pad import gemm_pad
from graphene.kernels.gemm.problem import FP8, SCALED, TERMS, TYPES, GemmConfig, GemmProblem, GemmTile
from graphene.kernels.gemm.reduce import IN_TURN, gemm_reduce
from graphene.kernels.gemm.result import combined, nearest_tf32, of_fp8
from graphene.kernels.gemm.sm70 import product_sm70
from graphene.kernels.gemm.sm80 import product_sm80
from graphene.kernels.gemm.sm90 import product_sm90
from graphene.kernels.reference_activations import ended
from graphene.launch_views import Size, viewed
from graphene.launches import Launch, Launches

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GemmConfig", "Launch", "gemm_launches", "gemm_workspaces", "run_gemm", "workspace_sizes"]

KEPT = 256  # the most kernels that are kept, since there may be any number of epilogues
PADDED_BYTES = 128  # whole lines of the caches; a multiple of 16 would do, but the product is a tenth slower


_of: WeakKeyDictionary[gr.Kernel, tuple[GemmProblem, GemmTile]] = WeakKeyDictionary()
BUILDERS = {"gemm_sm90": product_sm90, "gemm_sm80": product_sm80, "gemm_sm70": product_sm70}


@functools.lru_cache(KEPT)
def _product(p: GemmProblem, t: GemmTile) -> gr.Kernel:
    """The kernel of a product. The last ``KEPT`` ones are kept."""
    kernel = BUILDERS[t.kernel](Product(p, t))
    _of[kernel] = p, t
    return kernel


def product_of(kernel: gr.Kernel) -> tuple[GemmProblem, GemmTile] | None:
    """The problem, without sizes, and the tile whose sums a kernel computes; None for any other kernel."""
    return _of.get(kernel)


@functools.cache
def _pad(names: str, dtype: str, batched: bool) -> gr.Kernel:
    return gemm_pad(names, TYPES[dtype], batched)


@functools.lru_cache(KEPT)
def _reduce(p: GemmProblem, groups: int) -> gr.Kernel:
    """The kernel that adds the parts of a product whose k is split. The last ``KEPT`` ones are kept."""
    return gemm_reduce(
        linear(p.activation, p.bias, p.residual, TYPES[p.out_dtype].bits), sums=TYPES[p.sums], out=TYPES[p.out_dtype],
        align=p.align[2], batched=p.batch is not None, bias=p.bias, residual=p.residual, alpha=p.alpha, beta=p.beta,
        scales=p.scales, groups=groups,
    )  # fmt: skip


def _described(function: str, config: object, tile: object) -> tuple[GemmProblem, GemmTile]:
    """The problem, of any sizes, and the tile. Raises VerifyError KERNEL_ARGUMENT unless both are given."""
    if isinstance(config, GemmProblem):
        instance(function, "tile", tile, GemmTile)
        return config.form, tile  # type: ignore[return-value]
    instance(function, "config", config, GemmConfig)
    return config.problem, config.how  # type: ignore[attr-defined]


def gemm_launches(config: GemmConfig | GemmProblem, tile: GemmTile | None = None) -> Launches:
    """The kernels of a configuration, or of a problem and a tile, in order.

    Each is built once for all problems that need it; the last 256 are kept. Their arguments are named A, B, C and, if
    the problem has them, bias, residual, alpha and beta; workspaces are A_padded, B_padded and W. `gr.check_launches`
    holds all together to the product. Raises VerifyError KERNEL_ARGUMENT.
    """
    p, t = _described("gemm_launches", config, tile)
    batch = ("batch",) if p.batch is not None else ()
    shapes: dict[str, tuple[str, ...]] = {n: (*batch, *dims) for n, dims in (("A", "MK"), ("B", "KN"), ("C", "MN"))}
    if p.residual:
        shapes["residual"] = shapes["C"]
    if p.scales == "rows":
        shapes |= {"scale_a": ("M",), "scale_b": ("N",)}

    def workspaces(s: dict[str, int]) -> dict[str, tuple[Any, str]]:
        return _workspaces(p, t, s["M"], s["N"], s["K"], s.get("batch", 1))

    means = functools.partial(_means, p, t.kernel == "gemm_sm90")
    return Launches(_launches(p, t), means, shapes, workspaces if any(t.pad) or t.split_k > 1 else None)


def _means(
    p: GemmProblem, by_tma: bool, A: Any, B: Any, C: Any, bias: Any = None, residual: Any = None, alpha: Any = None,
    beta: Any = None, scale_a: Any = None, scale_b: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """The common meaning of the kernels of a problem."""
    if p.dtype == "fp32" and by_tma:
        A, B = nearest_tf32(A), nearest_tf32(B)
    elif p.dtype == "fp32":
        A, B = gr.rounded("tA", A), gr.rounded("tB", B)
    sums = of_fp8(A, B, p.promote) if p.dtype in FP8 else A @ B
    x = combined(sums, None, C, None, None, alpha, beta, scale_a, scale_b)
    return {"C": ended(p.activation, TYPES[p.out_dtype].bits, x, bias, residual)}


def _launches(p: GemmProblem, t: GemmTile) -> list[Launch]:
    launches, batched = [], p.batch is not None
    to_lines = {"A": "" if p.order[0] == "T" else ".T", "B": "" if p.order[1] == "T" else ".T"}
    padded = "".join(n for n, pad in zip("AB", t.pad, strict=True) if pad)
    if padded:
        arguments = [x for n in padded for x in (n + to_lines[n], n + "_padded")]
        pads = [padded] if p.b_dtype is None else list(padded)
        for names in pads:  # of one type each
            dtype = p.b_dtype or p.dtype if names == "B" else p.dtype
            of_names = tuple(x for x in arguments if x[0] in names)
            launches.append(Launch(_pad(names, dtype, batched), of_names))
    align_a, align_b = (16 if pad else a for pad, a in zip(t.pad, p.align, strict=False))
    operands = [n + "_padded" + to_lines[n] if n in padded else n for n in "AB"]
    terms = [n for n in ("bias", "residual") if getattr(p, n)] + ["C"] + [n for n in ("alpha", "beta") if getattr(p, n)]
    terms = [*SCALED, *terms] if p.scales else terms
    if t.split_k == 1:
        return [
            *launches,
            Launch(_product(replace(p, align=(align_a, align_b, p.align[2])), t), (*operands, *terms)),
        ]
    align_w = 8 if p.align[2] > TYPES[p.out_dtype].bits // 8 else 4  # N is even, or it may be odd
    parts = replace(p.plain, align=(align_a, align_b, align_w), out=p.sums)
    like = "i8" if p.dtype == "i8" else "fp8e4m3" if p.dtype in FP8 else "fp16"
    total = replace(p, dtype=like, b_dtype=None, promote=False, order="TN", align=(16, 16, p.align[2]),
                    out=p.out_dtype)  # fmt: skip
    summed = _product(parts, replace(t, split_k=2)), (*operands, "W.C")
    return [*launches, Launch(*summed), Launch(_reduce(total, 8 if t.split_k > IN_TURN else 1), ("W", *terms))]


def workspace_sizes(p: GemmProblem, t: GemmTile) -> dict[str, tuple[str, list[Size]]]:
    """Types and sizes of the workspaces of a product, by name: row-major, contiguous, 16-byte aligned."""
    front: list[Size] = [("batch", 1)] if p.batch is not None else []
    vector = PADDED_BYTES * 8 // TYPES[p.dtype].bits
    out: dict[str, tuple[str, list[Size]]] = {}
    for name, rows, along_k in (("A", "m", p.order[0] == "T"), ("B", "n", p.order[1] == "N")):
        if t.pad["AB".index(name)]:
            line: list[Size] = [(rows, 1), ("k", vector)] if along_k else [("k", 1), (rows, vector)]
            out[name + "_padded"] = (p.b_dtype or p.dtype if name == "B" else p.dtype, front + line)
    if t.split_k > 1:
        out["W"] = (p.sums, [(t.split_k, 1), *front, ("m", 1), ("n", 4)])
    return out


def gemm_workspaces(config: GemmConfig, M: int, N: int, K: int, batch: int = 1) -> dict[str, tuple[Any, str]]:
    """Shapes and types of the workspaces of one product: row-major, contiguous, 16-byte aligned.

    Raises VerifyError KERNEL_ARGUMENT.
    """
    instance("gemm_workspaces", "config", config, GemmConfig)
    M, N, K, batch = (
        size("gemm_workspaces", n, x, least=0) for n, x in (("M", M), ("N", N), ("K", K), ("batch", batch))
    )
    return _workspaces(config.problem, config.how, M, N, K, batch)


def _workspaces(p: GemmProblem, t: GemmTile, M: int, N: int, K: int, batch: int) -> dict[str, tuple[Any, str]]:
    known = {"m": M, "n": N, "k": K, "batch": batch}

    def extent(of: str | int, multiple: int) -> int:
        return -(-(known[of] if isinstance(of, str) else of) // multiple) * multiple

    return {name: (tuple(extent(*x) for x in dims), dtype) for name, (dtype, dims) in workspace_sizes(p, t).items()}


def run_gemm(
    config: GemmConfig,
    a: Any,
    b: Any,
    c: Any,
    bias: Any = None,
    residual: Any = None,
    alpha: float | None = None,
    beta: float | None = None,
    empty: Callable[[tuple[int, ...], str], Any] | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
) -> None:
    """Computes ``c`` with new workspaces, by the simulator for arrays on the CPU, on the GPU for CUDA tensors.

    a is (M,K), b (K,N), c and residual are (M,N), each after a batch mode if the configuration has one; bias is (N,).
    bias, residual, alpha and beta are given if the configuration has them, and only then; so are scale_a and scale_b,
    fp32, of one element each, or (M,) and (N,). With beta 0 the values of c do not matter. ``empty(shape, dtype)``
    allocates a workspace; by default NumPy does, or PyTorch beside its tensors.
    Raises VerifyError KERNEL_ARGUMENT, and what a launch raises.
    """
    for kernel, given in bound_launches(config, a, b, c, bias, residual, alpha, beta, empty, scale_a, scale_b):
        kernel(*given)


def bound_launches(
    config: GemmConfig,
    a: Any,
    b: Any,
    c: Any,
    bias: Any = None,
    residual: Any = None,
    alpha: float | None = None,
    beta: float | None = None,
    empty: Callable[[tuple[int, ...], str], Any] | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
) -> list[tuple[gr.Kernel, tuple[Any, ...]]]:
    """The kernels of `run_gemm` with their arguments: to launch them again takes no time to look them up."""
    instance("run_gemm", "config", config, GemmConfig)
    arguments = {"A": a, "B": b, "bias": bias, "residual": residual, "C": c, "alpha": alpha, "beta": beta}
    arguments |= dict(zip(SCALED, (scale_a, scale_b), strict=True))
    check_operands(config, arguments)
    *front, M, K = a.shape
    for name, (shape, dtype) in gemm_workspaces(config, M, b.shape[-1], K, *front).items():
        arguments[name] = (empty or _empty_like(a))(shape, dtype)
    columns = b.shape[-1]
    return [
        (kernel, tuple(argument(arguments, name, columns) for name in names)) for kernel, names in gemm_launches(config)
    ]


def check_operands(config: GemmConfig, arguments: dict[str, Any]) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless the configuration's tensors are given, in its order and alignment."""

    def refuse(name: str, want: str, got: str, fix: str) -> None:
        _core.fail("KERNEL_ARGUMENT", f"run_gemm: {name} does not fit", [f"want: {want}", f"got: {got}"], fix)

    for name in TERMS:
        if getattr(config, name) != (arguments[name] is not None):
            has, given = ("one", "none") if getattr(config, name) else ("none", "one")
            refuse(
                name,
                f"{has}: the configuration has {name}={getattr(config, name)}",
                given,
                f"{'pass it' if has == 'one' else 'leave it out'}, or take GemmConfig(..., {name}={given == 'one'})",
            )
    for name in SCALED:
        has, given = ("none" if x is None else "one" for x in (config.scales, arguments[name]))
        if has != given:
            refuse(name, f"{has}: the configuration has scales={config.scales}", given,
                   "pass it" if has == "one" else "leave it out, or take GemmConfig(..., scales=...)")  # fmt: skip
    front = 1 if config.batched else 0
    modes = {"A": "MK", "B": "KN", "C": "MN", "residual": "MN", "bias": "N"}
    lines = {"A": "K" if config.order[0] == "T" else "M", "B": "N" if config.order[1] == "T" else "K"}
    for name, letters in modes.items():
        if (t := arguments[name]) is None and name in TERMS:
            continue
        count = len(letters) + (front if name != "bias" else 0)
        if len(getattr(t, "shape", "")) != count:
            got = f"shape {tuple(t.shape)}" if hasattr(t, "shape") else type(t).__name__
            refuse(name, f"a tensor of {count} modes", got, "pass it in that shape")
        contiguous, strides = lines.get(name, "N"), strides_elems(t)
        mode = letters.index(contiguous) - len(letters)
        if strides is not None and min(t.shape) > 0 and t.shape[mode] > 1 and strides[mode] != 1:
            order = f", as order={config.order!r} says" if name in lines else ""
            refuse(name, f"stride 1 along {contiguous}{order}", f"shape {tuple(t.shape)}, strides {strides}",
                   "copy it, or take another order" if order else "copy it")  # fmt: skip


def argument(arguments: dict[str, Any], name: str, columns: int) -> Any:
    """The tensor that a name of a launch stands for; ".C" takes its first `columns`."""
    base, _, view = name.partition(".")
    return viewed(arguments[base], view, columns)


def _empty_like(a: Any) -> Callable[[tuple[int, ...], str], Any]:
    if hasattr(a, "new_empty"):
        return lambda shape, dtype: a.new_empty(shape, dtype=torch_type(dtype))
    import numpy as np

    return lambda shape, dtype: np.empty(shape, {"fp32": np.float32, "i32": np.int32}.get(dtype, a.dtype))
