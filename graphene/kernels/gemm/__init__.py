"""The matrix product: its problem, its kernels, the kernels before and after them, and how all are launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene import _lazily

if TYPE_CHECKING:
    from graphene.kernels.gemm.whole import GemmConfig, gemm_launches, gemm_workspaces, run_gemm

__all__ = ["GemmConfig", "gemm_launches", "gemm_workspaces", "run_gemm"]


def __getattr__(name: str) -> Any:
    return _lazily.attribute(__name__, name)
