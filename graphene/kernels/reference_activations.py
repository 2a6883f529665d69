"""The meanings of activations and of linear layers' ends: NumPy from the definitions, with kernels' errors.

Kernels compute with the functions of `graphene.kernels.epilogues`, of which nothing here knows: neither the table of
their names, nor constants, nor the order of their steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import graphene as gr

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMULAS", "activated", "ended"]

SUBNORMAL = 2.0**-126  # smaller results become zero


def _exp(x: Any) -> Any:
    import numpy as np

    return np.exp(x)


def _tanh(x: Any) -> Any:
    import numpy as np

    return np.tanh(x)


def _size(x: Any) -> Any:
    import numpy as np

    return np.abs(x)


def _relu(x: Any) -> Any:
    import numpy as np

    return np.where(x < 0, 0, x)


def _gelu(x: Any) -> Any:
    import numpy as np

    from graphene.judge.functions import erfc

    finite = np.where(x == -np.inf, 0, x)  # not -inf * 0
    return finite / 2 * erfc(x / -math.sqrt(2))  # 1 + erf would lose the digits of what is small


def _two_u(x: Any) -> Any:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


# Activations of arrays.
FORMULAS: dict[Any, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": lambda x: x / (1 + _exp(-_two_u(x))),
    "silu": lambda x: x / (1 + _exp(-x)),
    "tanh": _tanh,
    "sigmoid": lambda x: 1 / (1 + _exp(-x)),
}

# The same with their errors: each is a function of arrays, and the decorator of the function that a kernel computes.
relu = gr.approximately(FORMULAS["relu"])
sigmoid = gr.approximately(FORMULAS["sigmoid"], absolute=SUBNORMAL, relative=lambda x: 2.0**-20 * (1 + _size(x)))
silu = gr.approximately(
    FORMULAS["silu"], absolute=lambda x: SUBNORMAL * _size(x), relative=lambda x: 2.0**-20 * (1 + _size(x))
)
gelu = gr.approximately(FORMULAS["gelu"], absolute=lambda x: 2.0**-22 * _size(x))
gelu_of_16_bits = gr.approximately(FORMULAS["gelu"], absolute=lambda x: 2.0**-29 * _size(x), relative=2.0**-13.5)
gelu_tanh = gr.approximately(
    FORMULAS["gelu_tanh"], absolute=lambda x: SUBNORMAL * _size(x), relative=lambda x: 2.0**-20 * (1 + _size(_two_u(x)))
)
tanh = gr.approximately(FORMULAS["tanh"], absolute=SUBNORMAL, relative=2.0**-20)
sigmoid_tanh = gr.approximately(
    lambda x, y: FORMULAS["sigmoid"](x) * FORMULAS["tanh"](y),
    absolute=SUBNORMAL,
    relative=lambda x, _: 2.0**-20 * (2 + _size(x)),
)


def activated(name: str | Callable[[Any], Any] | None, x: Any, bits: int = 32) -> Any:
    """The activation of this name of an array, for results of `bits` bits; a function is the activation itself."""
    if callable(name):
        return name(x)
    if name == "gelu" and bits <= 16:
        return gelu_of_16_bits(x)
    of = {None: FORMULAS[None], "relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu, "tanh": tanh,
          "sigmoid": sigmoid}  # fmt: skip
    return of[name](x)


def ended(act: str | Callable[[Any], Any] | None, bits: int, x: Any, bias: Any = None, residual: Any = None) -> Any:
    """How a linear layer ends, on arrays: ``act(x + bias) + residual``, for results of `bits` bits."""
    y = activated(act, x if bias is None else x + bias, bits)
    return y if residual is None else y + residual
