"""Scalar types and memories: each type has ``.name`` and ``.bits`` (of one element in memory)."""

from __future__ import annotations

from typing import Any

from graphene._core import DType, Memory, dtype, memory

__all__ = [
    "DSM",
    "GL",
    "RF",
    "SH",
    "DType",
    "Memory",
    "bf16",
    "fp8e4m3",
    "fp8e5m2",
    "fp16",
    "fp32",
    "fp64",
    "i8",
    "i16",
    "i32",
    "i64",
    "pred",
    "tf32",
    "torch_type",
    "u8",
    "u16",
    "u32",
    "u64",
]

fp16 = dtype("fp16")
"""IEEE half precision: 11 significant bits, greatest number 65504."""
bf16 = dtype("bf16")
"""8 significant bits with the exponents of fp32."""
fp32 = dtype("fp32")
"""IEEE single precision."""
tf32 = dtype("tf32")
"""fp32 in memory; matrix instructions read 11 of its significant bits."""
fp64 = dtype("fp64")
"""IEEE double precision."""
fp8e4m3 = dtype("fp8e4m3")
"""8 bits: 4 significant ones, greatest number 448, no infinity."""
fp8e5m2 = dtype("fp8e5m2")
"""8 bits: 3 significant ones with the exponents of fp16."""
i8 = dtype("i8")
"""Signed integer of 8 bits."""
u8 = dtype("u8")
"""Unsigned integer of 8 bits."""
i16 = dtype("i16")
"""Signed integer of 16 bits."""
u16 = dtype("u16")
"""Unsigned integer of 16 bits."""
i32 = dtype("i32")
"""Signed integer of 32 bits."""
u32 = dtype("u32")
"""Unsigned integer of 32 bits."""
i64 = dtype("i64")
"""Signed integer of 64 bits."""
u64 = dtype("u64")
"""Unsigned integer of 64 bits."""
pred = dtype("pred")
"""A predicate register."""


def torch_type(t: DType | str) -> Any:
    """PyTorch's type of tensors with elements of a type, which may be given by its name; a tf32 is stored as fp32."""
    import torch

    return getattr(torch, (dtype(t) if isinstance(t, str) else t).array_name)


GL = memory("GL")
"""Global memory."""
SH = memory("SH")
"""Shared memory, one copy for each block."""
DSM = memory("DSM")
"""Shared memory of another block of the cluster, which ``t.of(rank)`` views."""
RF = memory("RF")
"""Registers."""
