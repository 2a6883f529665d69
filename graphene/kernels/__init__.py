"""Kernels that are written in the IR with the public builder, and meant to be read.

Each is a function of a problem (what is computed) and a tile (how). `graphene.select` chooses the tile for a problem
and a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene import _lazily

if TYPE_CHECKING:
    from graphene.kernels.attention.backward import (
        BackwardConfig,
        attention_keys_gradient_kernel,
        attention_queries_gradient_kernel,
    )
    from graphene.kernels.attention.combine import attention_combine_kernel
    from graphene.kernels.attention.decode import DecodeConfig, attention_decode_kernel
    from graphene.kernels.attention.delta import attention_delta_kernel
    from graphene.kernels.attention.forward import ForwardConfig, attention_forward_kernel
    from graphene.kernels.attention.key_tiles import attention_tiles_kernel
    from graphene.kernels.attention.paged import attention_paged_kernel
    from graphene.kernels.attention.problem import Attention, Extra
    from graphene.kernels.attention.product import ProductConfig, attention_queries_product_kernel
    from graphene.kernels.attention.sm90 import ForwardSm90, attention_forward_sm90
    from graphene.kernels.elementwise import ElementwiseConfig, elementwise_kernel
    from graphene.kernels.gemm.pad import gemm_pad
    from graphene.kernels.gemm.problem import GemmConfig, GemmProblem, GemmTile
    from graphene.kernels.gemm.reduce import gemm_reduce
    from graphene.kernels.gemm.sm70 import gemm_sm70
    from graphene.kernels.gemm.sm80 import gemm_sm80
    from graphene.kernels.gemm.sm90 import gemm_sm90
    from graphene.kernels.gemm.whole import gemm_launches, gemm_workspaces, run_gemm
    from graphene.kernels.reduction import ReductionConfig, reduction_kernel
    from graphene.kernels.rotary import RotaryConfig, rotary_kernel
    from graphene.kernels.rows.layernorm import layernorm, layernorm_kernel
    from graphene.kernels.rows.norm import NormConfig
    from graphene.kernels.rows.norm_backward import (
        NormColumnsConfig,
        layernorm_backward_kernel,
        norm_columns_kernel,
        rmsnorm_backward_kernel,
    )
    from graphene.kernels.rows.rmsnorm import rmsnorm_kernel
    from graphene.kernels.rows.softmax import (
        SoftmaxColumnsConfig,
        SoftmaxConfig,
        softmax_columns_kernel,
        softmax_kernel,
    )
    from graphene.kernels.rows.tile import RowTile
    from graphene.kernels.transpose import TransposeConfig, transpose_kernel
    from graphene.kernels.tutorial.flash_attention import flash_fwd
    from graphene.kernels.tutorial.fused_mlp import fused_mlp
    from graphene.select import run_elementwise as run_elementwise
    from graphene.select import select_backward as select_backward
    from graphene.select import select_backward_saving as select_backward_saving
    from graphene.select import select_elementwise as select_elementwise
    from graphene.select import select_forward as select_forward
    from graphene.select import select_gemm as select_gemm
    from graphene.select import select_norm as select_norm
    from graphene.select import select_norm_backward as select_norm_backward
    from graphene.select import select_norm_columns as select_norm_columns
    from graphene.select import select_reduction as select_reduction
    from graphene.select import select_short as select_short
    from graphene.select import select_softmax as select_softmax
    from graphene.select import select_softmax_columns as select_softmax_columns
    from graphene.select import select_transpose as select_transpose

__all__ = [
    "Attention",
    "BackwardConfig",
    "DecodeConfig",
    "ElementwiseConfig",
    "Extra",
    "ForwardConfig",
    "ForwardSm90",
    "GemmConfig",
    "GemmProblem",
    "GemmTile",
    "NormColumnsConfig",
    "NormConfig",
    "ProductConfig",
    "ReductionConfig",
    "RotaryConfig",
    "RowTile",
    "SoftmaxColumnsConfig",
    "SoftmaxConfig",
    "TransposeConfig",
    "attention_combine_kernel",
    "attention_decode_kernel",
    "attention_delta_kernel",
    "attention_forward_kernel",
    "attention_forward_sm90",
    "attention_keys_gradient_kernel",
    "attention_paged_kernel",
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
    "gemm_sm90",
    "gemm_workspaces",
    "layernorm",
    "layernorm_backward_kernel",
    "layernorm_kernel",
    "norm_columns_kernel",
    "reduction_kernel",
    "rmsnorm_backward_kernel",
    "rmsnorm_kernel",
    "rotary_kernel",
    "run_gemm",
    "softmax_columns_kernel",
    "softmax_kernel",
    "transpose_kernel",
]


def __getattr__(name: str) -> Any:
    return _lazily.attribute(__name__, name)


def __dir__() -> list[str]:
    return list(__all__)
