"""What tests of graphene.ops on CPU tensors share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graphene import ops

ns = torch.ops.graphene
F = torch.nn.functional
ACTIVATIONS = {
    None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.CpuWarning)
        torch.manual_seed(1)
        yield


def r(*shape: int, dtype: Any = torch.float16, grad: bool = False) -> Any:
    return torch.randn(shape, dtype=torch.float32).to(dtype).requires_grad_(grad)


def want(a: Any, b: Any, bias: Any = None, activation: str | None = None, residual: Any = None) -> Any:
    z = a.double() @ b.double()
    z = z if bias is None else z + bias.double()
    z = ACTIVATIONS[activation](z)
    return z if residual is None else z + residual.double()


def close(got: Any, ref: Any) -> None:
    assert got.shape == ref.shape
    ulp = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[got.dtype]
    error = (got.double() - ref).abs()
    assert (error <= 0.51 * ulp * ref.abs() + 1e-4).all(), error.max().item()


def simulated(f: Callable[..., Any], *args: Any, **named: Any) -> bool:
    return "the simulator runs" in ops.explain(f, *args, **named)
