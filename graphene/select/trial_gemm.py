"""Trials of a product for tuning: a call of its kernels, its arguments, and a comparison with PyTorch's result."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphene.dtypes import torch_type
from graphene.kernels.gemm.problem import FP8, SCALED
from graphene.kernels.gemm.whole import bound_launches, gemm_launches
from graphene.select.device import require_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from graphene._core import Binary
    from graphene.kernels.gemm.problem import GemmConfig, GemmProblem

__all__ = ["TrialRun", "arguments", "reference", "verify"]

UNWRITTEN = -0x5A5A5A5A  # instead of NaN, for integers
PART_ELEMENTS = 1 << 26


class TrialRun:
    """The kernels of a configuration behind one call; workspaces are allocated once."""

    def __init__(self, config: GemmConfig, p: GemmProblem) -> None:
        self._config, self._problem = config, p
        self._launches = gemm_launches(config)
        self._given: tuple[Any, ...] = ()
        self._bound: list[tuple[Any, tuple[Any, ...]]] = []

    def compile(self, arch: str) -> Binary:
        """Compiles all of them; returns the one with the most registers, the product."""
        return max((x.kernel.compile(arch) for x in self._launches), key=lambda b: b.registers)

    def __call__(self, a: Any, b: Any, c: Any, *terms: Any) -> None:
        """Launches them: operands, result, then bias, residual and both scales, as the problem has them.

        They are bound to the arguments of the call before if these are the same: a measured launch would wait for the
        host else.
        """
        given = (a, b, c, *terms)
        if len(given) != len(self._given) or any(x is not y for x, y in zip(given, self._given, strict=True)):
            rest = list(terms)
            bias = rest.pop(0) if self._problem.bias else None
            residual = rest.pop(0) if self._problem.residual else None
            scales = dict(zip(SCALED, rest, strict=True)) if self._problem.scales else {}
            self._bound, self._given = bound_launches(self._config, a, b, c, bias, residual, **scales), given
        for kernel, x in self._bound:
            kernel(*x)


def arguments(p: GemmProblem, where: str = "cuda") -> Sequence[Any]:
    """Random operands; the result is filled with values that no product leaves there."""
    torch: Any = require_cuda("tuning a product") if where == "cuda" else importlib.import_module("torch")
    front = [] if p.batch is None else [p.batch]

    def matrix(rows: int, columns: int, row_major: bool, dtype: str) -> Any:
        shape = [*front, rows, columns] if row_major else [*front, columns, rows]
        if dtype == "i8":
            t = torch.randint(-128, 128, shape, device=where, dtype=torch.int8)
        else:
            t = torch.randn(shape, device=where).to(torch_type(dtype))
        return t if row_major else t.transpose(-1, -2)

    a = matrix(p.m, p.k, p.order[0] == "T", p.dtype)
    b = matrix(p.k, p.n, p.order[1] == "T", p.b_dtype or p.dtype)
    out = torch_type(p.out_dtype)
    c = torch.full([*front, p.m, p.n], UNWRITTEN if p.out_dtype == "i32" else float("nan"), device=where, dtype=out)
    terms = []
    if p.bias:
        terms.append(torch.randn(p.n, device=where).to(out))
    if p.residual:
        terms.append(torch.randn(c.shape, device=where).to(out))
    if p.scales is not None:
        sizes = (p.m, p.n) if p.scales == "rows" else (1, 1)
        most = 128 if p.dtype == "i8" else 1  # products of such integers are as large as fp16 holds
        terms += [(torch.rand(n, device=where) + 0.5) / most for n in sizes]
    return [a, b, c, *terms]


def _rows(p: GemmProblem) -> Iterator[slice]:
    """All rows of C, a part at a time, since fp64 of all rows at once may not fit."""
    step = max(1, PART_ELEMENTS // max(p.n * (p.batch or 1), 1))
    return (slice(i, i + step) for i in range(0, p.m, step))


def _activated(torch: Any, name: str | Callable[[Any], Any] | None, x: Any) -> Any:
    """An activation by PyTorch; a function of registers by its value on arrays."""
    f = torch.nn.functional
    if callable(name):
        return torch.from_numpy(name(x.cpu().numpy())).to(x.device)
    if name == "gelu_tanh":
        return f.gelu(x, approximate="tanh")
    return x if name is None else getattr(torch if name in ("tanh", "sigmoid") else f, name)(x)


def reference(p: GemmProblem, arguments: Sequence[Any]) -> Any:
    """The whole result, epilogue included, by PyTorch in fp64, rounded to fp32; exact for integers."""
    import torch

    a, b, c = arguments[:3]
    terms = list(arguments[3:])
    bias = terms.pop(0) if p.bias else None
    residual = terms.pop(0) if p.residual else None
    whole = p.out_dtype == "i32"
    want = torch.empty(c.shape, device=c.device, dtype=torch.int32 if whole else torch.float32)
    wide = b.double()
    for rows in _rows(p):
        x = a[..., rows, :].double() @ wide
        if p.scales is not None:
            scale_a, scale_b = (t.double() for t in terms)
            x = x * (scale_a[rows] if p.scales == "rows" else scale_a)[:, None] * scale_b
        x = _activated(torch, p.activation, x if bias is None else x + bias.double())
        x = x if residual is None else x + residual[..., rows, :].double()
        want[..., rows, :] = x.to(torch.int64) if whole else x
    return want


def verify(p: GemmProblem, arguments: Sequence[Any], want: Any = None) -> str | None:
    """Compares the whole result with ``want``, the reference; a NaN is wrong."""
    want, c = reference(p, arguments) if want is None else want, arguments[2]
    if p.out_dtype == "i32":
        wrong = sum(int((c[..., rows, :] != want[..., rows, :]).sum()) for rows in _rows(p))
        return f"{wrong} of {c.numel()} integers are wrong" if wrong else None
    bounds = {"fp16": 2.0**-9, "bf16": 2.0**-6, "fp32": 2.0**-8, "fp8e4m3": 2.0**-3, "fp8e5m2": 2.0**-2}
    bound = bounds[p.out_dtype]
    bound = max(bound, 2.0**-7) if p.dtype in FP8 else bound  # sums have 14 bits
    scale = max(float(want.abs().max()), 1e-9) if want.numel() else 1.0
    for rows in _rows(p) if want.numel() else ():
        error = float((c[..., rows, :].float() - want[..., rows, :]).abs().max()) / scale
        if not error <= bound:
            return f"relative error {error:.1e}, at most {bound:.1e}"
    return None
