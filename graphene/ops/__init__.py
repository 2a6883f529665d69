"""Operators on PyTorch's tensors, for models to call. docs/operators.md says what runs where.

Each function is also an operator of PyTorch (``torch.ops.graphene.*``), so ``torch.compile``, autograd, CUDA graphs and
``torch.func`` see one node. On a GPU the first call of a configuration builds its kernel. Later calls go from Python to
the launch without PyTorch's dispatcher, unless something is tracing, dispatching or differentiating.

For CPU tensors the simulator computes small problems and PyTorch's operators the others; ``explain`` says which, and a
``CpuWarning`` says so once.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from graphene import _lazily
from graphene.ops.core.namespace import find_by

if TYPE_CHECKING:
    from graphene.ops.attention.forward import attention, attention_varlen
    from graphene.ops.attention.paged import attention_paged
    from graphene.ops.core.define import CpuWarning, explain
    from graphene.ops.cross_entropy import cross_entropy
    from graphene.ops.fused_mlp import fused_mlp
    from graphene.ops.gated import gated
    from graphene.ops.group_norm import group_norm
    from graphene.ops.grouped_matmul import grouped_matmul
    from graphene.ops.matmul import matmul
    from graphene.ops.norms import layer_norm, rms_norm
    from graphene.ops.packing import pack_awq, pack_gptq, pack_weights, unpack_weights
    from graphene.ops.quantized_linear import quantized_linear
    from graphene.ops.recurrent import lstm_cell, rnn_cell
    from graphene.ops.rotary import rotary
    from graphene.ops.scaled_matmul import scaled_matmul
    from graphene.ops.softmax import log_softmax, softmax

__all__ = [
    "CpuWarning",
    "attention",
    "attention_paged",
    "attention_varlen",
    "cross_entropy",
    "explain",
    "fused_mlp",
    "gated",
    "group_norm",
    "grouped_matmul",
    "layer_norm",
    "log_softmax",
    "lstm_cell",
    "matmul",
    "pack_awq",
    "pack_gptq",
    "pack_weights",
    "quantized_linear",
    "rms_norm",
    "rnn_cell",
    "rotary",
    "scaled_matmul",
    "softmax",
    "unpack_weights",
]


def __getattr__(name: str) -> Any:
    return _lazily.attribute(__name__, name)


def __dir__() -> list[str]:
    return [*__all__, "register"]


def register() -> None:
    """Registers all operators with PyTorch at once, as a program that AOTInductor compiled ahead of time needs it.

    An operator is otherwise registered when PyTorch needs it or its name in ``torch.ops.graphene`` is first asked for.
    """
    from graphene.ops.core.define import defined

    for module in sorted({*_lazily.homes(__name__).values(), "graphene.ops.planned"}):
        importlib.import_module(module)
    for op in list(defined.values()):
        op.register()


def _register_named(name: str) -> None:
    from graphene.ops.core.define import register_named

    if not register_named(name):
        register()


sys.modules[__name__].__class__ = _lazily.Hiding
find_by(_register_named)
