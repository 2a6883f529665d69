"""Trials of a kernel of rows for tuning: arguments of the launch, and a comparison with PyTorch's result."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphene.dtypes import torch_type
from graphene.select.device import require_cuda

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphene.kernels.rows.problem import RowProblem

__all__ = ["arguments", "reference", "verify"]

COLUMNS = {"softmax": 0, "rmsnorm": 1, "layernorm": 2}  # vectors of factors and addends
EPS = 1e-5
PART_ELEMENTS = 1 << 26


def arguments(p: RowProblem, where: str = "cuda") -> Sequence[Any]:
    """Random rows; the result is filled with values that no kernel leaves there."""
    torch: Any = require_cuda("tuning rows") if where == "cuda" else importlib.import_module("torch")
    dtype = torch_type(p.dtype)
    x = torch.randn(p.rows, p.width, device=where).to(dtype)
    columns = [torch.randn(p.width, device=where).to(dtype) for _ in range(COLUMNS[p.kind])]
    return [x, *columns, torch.full_like(x, float("nan")), *([EPS] if columns else [])]


def _parts(p: RowProblem) -> Iterator[slice]:
    """All rows, some at a time, since fp64 of all rows at once may not fit."""
    step = max(1, PART_ELEMENTS // p.width)
    return (slice(i, i + step) for i in range(0, p.rows, step))


def reference(p: RowProblem, arguments: Sequence[Any]) -> Any:
    """All rows of the result, by PyTorch in fp64, rounded to fp32."""
    import torch

    functional = torch.nn.functional
    g, b = (arguments[i].double() if i < len(arguments) - 2 else None for i in (1, 2))
    want = torch.empty_like(arguments[0], dtype=torch.float32)
    for rows in _parts(p):
        x = arguments[0][rows].double()
        if p.kind == "softmax":
            want[rows] = torch.softmax(x, -1)
        elif p.kind == "rmsnorm":
            want[rows] = functional.rms_norm(x, (p.width,), g, EPS)
        else:
            want[rows] = functional.layer_norm(x, (p.width,), g, b, EPS)
    return want


def verify(p: RowProblem, arguments: Sequence[Any], want: Any = None) -> str | None:
    """Compares each row with that of ``want``, the reference; a NaN is wrong."""
    want = reference(p, arguments) if want is None else want
    y = arguments[-1] if p.kind == "softmax" else arguments[-2]
    bound = {"fp16": 2e-3, "bf16": 1.6e-2, "fp32": 2e-5}[p.dtype]
    lengths = want.norm(dim=-1)
    lengths = lengths.clamp_min(0.5 * float(lengths.mean()))  # tiny rows are held to the others' error
    for rows in _parts(p):
        error = float(((y[rows].float() - want[rows]).norm(dim=-1) / lengths[rows]).max())
        if not error <= bound:
            return f"relative error {error:.1e} of a row, at most {bound:.1e}"
    return None
