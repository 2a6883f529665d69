"""Scalar types and memories: each type has ``.name`` and ``.bits`` (of one element in memory)."""

from __future__ import annotations

from graphene._core import DType, Memory, dtype, memory

__all__ = [
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
    "u8",
    "u16",
    "u32",
    "u64",
]

fp16, bf16, fp32, tf32, fp64 = (dtype(n) for n in ("fp16", "bf16", "fp32", "tf32", "fp64"))
fp8e4m3, fp8e5m2 = (dtype(n) for n in ("fp8e4m3", "fp8e5m2"))
i8, u8, i16, u16 = (dtype(n) for n in ("i8", "u8", "i16", "u16"))
i32, u32, i64, u64 = (dtype(n) for n in ("i32", "u32", "i64", "u64"))
pred = dtype("pred")

GL, SH, RF = (memory(n) for n in ("GL", "SH", "RF"))
