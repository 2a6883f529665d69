"""Kernels written in the IR with the public builder, each readable enough to teach from."""

from graphene.kernels._norms import NormConfig, select_norm
from graphene.kernels._rows import RowTile
from graphene.kernels.flash_attention import flash_fwd
from graphene.kernels.fused_mlp import fused_mlp
from graphene.kernels.gemm_sm80 import gemm_sm80
from graphene.kernels.layernorm import layernorm, layernorm_kernel
from graphene.kernels.rmsnorm import rmsnorm_kernel
from graphene.kernels.softmax import SoftmaxConfig, select_softmax, softmax_kernel

__all__ = [
    "NormConfig",
    "RowTile",
    "SoftmaxConfig",
    "flash_fwd",
    "fused_mlp",
    "gemm_sm80",
    "layernorm",
    "layernorm_kernel",
    "rmsnorm_kernel",
    "select_norm",
    "select_softmax",
    "softmax_kernel",
]
