"""The matrix product: its problem, its kernels, the kernels before and after them, and how all are launched."""

from graphene.kernels.gemm.whole import GemmConfig, gemm_launches, gemm_workspaces, run_gemm

__all__ = ["GemmConfig", "gemm_launches", "gemm_workspaces", "run_gemm"]
