"""Kernels written in the IR with the public builder, each readable enough to teach from."""

from graphene.kernels._attention import Attention, Extra
from graphene.kernels._norms import NormConfig, select_norm
from graphene.kernels._row_tiles import RowTile
from graphene.kernels.attention_backward import (
    BackwardConfig,
    attention_keys_gradient_kernel,
    attention_queries_gradient_kernel,
)
from graphene.kernels.attention_combine import attention_combine_kernel
from graphene.kernels.attention_delta import attention_delta_kernel
from graphene.kernels.attention_forward import ForwardConfig, attention_forward_kernel
from graphene.kernels.attention_product import ProductConfig, attention_queries_product_kernel
from graphene.kernels.attention_select import select_backward, select_backward_saving, select_forward, select_short
from graphene.kernels.attention_tiles import attention_tiles_kernel
from graphene.kernels.elementwise import ElementwiseConfig, elementwise_kernel, select_elementwise
from graphene.kernels.elementwise_run import run_elementwise
from graphene.kernels.flash_attention import flash_fwd
from graphene.kernels.fused_mlp import fused_mlp
from graphene.kernels.gemm import GemmConfig, gemm_launches, gemm_workspaces, run_gemm
from graphene.kernels.gemm_helpers import gemm_pad, gemm_reduce
from graphene.kernels.gemm_select import select_gemm
from graphene.kernels.gemm_sm70 import gemm_sm70
from graphene.kernels.gemm_sm80 import gemm_sm80
from graphene.kernels.layernorm import layernorm, layernorm_kernel
from graphene.kernels.norm_backward import (
    NormColumnsConfig,
    layernorm_backward_kernel,
    norm_columns_kernel,
    rmsnorm_backward_kernel,
    select_norm_backward,
    select_norm_columns,
)
from graphene.kernels.reduction import ReductionConfig, reduction_kernel, select_reduction
from graphene.kernels.rmsnorm import rmsnorm_kernel
from graphene.kernels.softmax import (
    SoftmaxColumnsConfig,
    SoftmaxConfig,
    select_softmax,
    select_softmax_columns,
    softmax_columns_kernel,
    softmax_kernel,
)
from graphene.kernels.transpose import TransposeConfig, select_transpose, transpose_kernel

__all__ = [
    "Attention",
    "BackwardConfig",
    "ElementwiseConfig",
    "Extra",
    "ForwardConfig",
    "GemmConfig",
    "NormColumnsConfig",
    "NormConfig",
    "ProductConfig",
    "ReductionConfig",
    "RowTile",
    "SoftmaxColumnsConfig",
    "SoftmaxConfig",
    "TransposeConfig",
    "attention_combine_kernel",
    "attention_delta_kernel",
    "attention_forward_kernel",
    "attention_keys_gradient_kernel",
    "attention_queries_gradient_kernel",
    "attention_queries_product_kernel",
    "attention_tiles_kernel",
    "elementwise_kernel",
    "flash_fwd",
    "fused_mlp",
    "gemm_launches",
    "gemm_pad",
    "gemm_reduce",
    "gemm_sm70",
    "gemm_sm80",
    "gemm_workspaces",
    "layernorm",
    "layernorm_backward_kernel",
    "layernorm_kernel",
    "norm_columns_kernel",
    "reduction_kernel",
    "rmsnorm_backward_kernel",
    "rmsnorm_kernel",
    "run_elementwise",
    "run_gemm",
    "select_backward",
    "select_backward_saving",
    "select_elementwise",
    "select_forward",
    "select_gemm",
    "select_norm",
    "select_norm_backward",
    "select_norm_columns",
    "select_reduction",
    "select_short",
    "select_softmax",
    "select_softmax_columns",
    "select_transpose",
    "softmax_columns_kernel",
    "softmax_kernel",
    "transpose_kernel",
]
