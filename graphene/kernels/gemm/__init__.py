"""The matrix product: what is computed, its kernels, those that run before and after them, how all are launched."""

from graphene.kernels.gemm.launches import GemmConfig, gemm_launches, gemm_workspaces, run_gemm

__all__ = ["GemmConfig", "gemm_launches", "gemm_workspaces", "run_gemm"]
