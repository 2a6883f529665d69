"""Kernels written in the IR with the public builder, each readable enough to teach from."""

from graphene.kernels.flash_attention import flash_fwd
from graphene.kernels.fused_mlp import fused_mlp
from graphene.kernels.gemm_sm80 import gemm_sm80
from graphene.kernels.layernorm import layernorm

__all__ = ["flash_fwd", "fused_mlp", "gemm_sm80", "layernorm"]
