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
    "fp4e2m1",
    "fp6e2m3",
    "fp6e3m2",
    "fp8e4m3",
    "fp8e5m2",
    "fp16",
    "fp32",
    "fp64",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "pred",
    "tf32",
    "torch_type",
    "u4",
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
i4 = dtype("i4")
"""Signed integer of 4 bits. In memory two share a byte, the first one in its low bits; arrays of it hold bytes."""
u4 = dtype("u4")
"""Unsigned integer of 4 bits, two in a byte as of i4."""
fp4e2m1 = dtype("fp4e2m1")
"""4 bits: 2 significant ones, 0 to 6, neither infinity nor NaN; two in a byte as of i4."""
fp6e2m3 = dtype("fp6e2m3")
"""6 bits, in the low ones of a byte: 4 significant ones, greatest number 7.5, neither infinity nor NaN."""
fp6e3m2 = dtype("fp6e3m2")
"""6 bits, in the low ones of a byte: 3 significant ones, greatest number 28, neither infinity nor NaN."""
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
