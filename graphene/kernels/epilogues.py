"""Epilogues: pointwise functions in fp32 of a product's accumulators, before these are rounded once and stored.

An epilogue is any Python function of registers that returns an expression, ``lambda x: gr.max(x, 0)``. The activations
here have the names that `graphene.ops.matmul` takes. Their errors are relative, for results that are not subnormal,
unless their docstrings say otherwise. On arrays they are the formulas of `graphene.kernels.reference_activations`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import graphene as gr
from graphene import _core
from graphene._core import IntExpr, Tensor
from graphene.expressions import Expression
from graphene.kernels import reference_activations as reference
from graphene.kernels.arguments import function as check_function
from graphene.kernels.reference_activations import FORMULAS
from graphene.promise import is_array

if TYPE_CHECKING:
    from collections.abc import Callable

    Pointwise: TypeAlias = "Callable[..., Any]"

__all__ = [
    "ACTIVATIONS",
    "FORMULAS",
    "activation",
    "gelu",
    "gelu_of_16_bits",
    "gelu_tanh",
    "linear",
    "pointwise",
    "relu",
    "sigmoid",
    "sigmoid_tanh",
    "silu",
    "tanh",
]

LOG2_E = math.log2(math.e)
FAR_GELU = 64  # what gelu takes away from a number is nothing from here on


@reference.relu
def relu(x: Any) -> Any:
    """The value if it is positive or NaN, else 0."""
    return gr.where(x < 0, 0, x)


@reference.sigmoid
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), within 2^-20 * (1 + |x|): the argument of exp2 is rounded."""
    return gr.rcp(1 + gr.exp2(x * -LOG2_E, ftz=True), ftz=True)


@reference.silu
def silu(x: Any) -> Any:
    """The product x * sigmoid(x), the swish function, with the error of sigmoid."""
    return x * sigmoid(x)


# erfc(x / sqrt 2) / 2 = e^(-x^2/2) * (t * g0 + t^2 * g1 + ...) with t = 1 / (1 + G_POLE * x), for x >= 0: fitted so
# that its error stays below 2^-24 and the relative one below 2^-12.
G_POLE = 0.29
G_SERIES = (0.1169003319842918, 0.10027886533319771, 0.18125284059901978, -0.09604444153302182, 0.28705971314374606,
            -0.08944735622457421)  # fmt: skip


@reference.gelu
def gelu(x: Any) -> Any:
    """PyTorch's default, x/2 * (1 + erf(x / sqrt 2)) = max(x, 0) - |x| * erfc(|x| / sqrt 2) / 2, within 2^-22 * |x|."""
    a = gr.min(gr.abs(x), 16)  # beyond, the second term is 0
    t = gr.rcp(gr.fma(a, G_POLE, 1), ftz=True)
    series: Any = -G_SERIES[-1]
    for g in G_SERIES[-2::-1]:
        series = gr.fma(t, series, -g)
    return gr.fma(a * t * gr.exp2(a * a * (-LOG2_E / 2), ftz=True), series, relu(x))


# log2 of erfc(x / sqrt 2) / 2 for x from 0 to 5.6, by powers of x. 2 to the power of it is within 2^-13.5 of itself, or
# of 2^-16 where it is smaller, and it falls to zero beyond.
G_LOG2 = (-1.0001161098480225, -1.149237871170044, -0.46398892998695374, -0.04833396151661873, 0.005855770781636238,
          -0.0003234096511732787)  # fmt: skip


@reference.gelu_of_16_bits
def gelu_of_16_bits(x: Any) -> Any:
    """The function gelu within 2^-13.5 of itself or 2^-29 * |x|, for 16-bit results; half the instructions."""
    a = gr.abs(x)
    log2: Any = G_LOG2[-1]
    for g in G_LOG2[-2::-1]:
        log2 = gr.fma(log2, a, g)
    # The power of 2 is 0 far before FAR_GELU, and NaN of NaN. An infinity times 0 would be NaN, too.
    return gr.fma(-gr.min(a, FAR_GELU), gr.exp2(log2, ftz=True), gr.max(x, 0))


@reference.gelu_tanh
def gelu_tanh(x: Any) -> Any:
    """PyTorch's approximate="tanh": x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3), with sigmoid's error."""
    factor = -2 * LOG2_E * math.sqrt(2 / math.pi)
    return x * gr.rcp(1 + gr.exp2(x * gr.fma(x * x, factor * 0.044715, factor), ftz=True), ftz=True)


@reference.tanh
def tanh(x: Any) -> Any:
    """Hyperbolic tangent within 2^-20: (1 - t) / (1 + t) with t = e^-2|x|, and its series near zero.

    PTX tanh.approx (gr.tanh) is one instruction, but wrong in the eleventh bit, which a float16 result shows.
    """
    t = gr.exp2(gr.abs(x) * (-2 * LOG2_E), ftz=True)
    large = (1 - t) * gr.rcp(1 + t, ftz=True)
    near, small = _tanh_near(x)
    return gr.where(near, small, gr.where(x < 0, -large, large))


def _tanh_near(x: Any) -> tuple[Any, Any]:
    """Whether the argument is small, and the tanh of a small argument."""
    s = x * x
    # The series of (tanh x / x - 1) / x^2.
    series = gr.fma(gr.fma(gr.fma(s, 62 / 2835, -17 / 315), s, 2 / 15), s, -1 / 3)
    return s < 0.0625, gr.fma(series * s, x, x)


@reference.sigmoid_tanh
def sigmoid_tanh(x: Any, y: Any) -> Any:
    """``sigmoid(x) * tanh(y)`` with their errors and one division: (1 - t) / ((1 + t) * (1 + e^-x))."""
    e, t = gr.exp2(x * -LOG2_E, ftz=True), gr.exp2(gr.abs(y) * (-2 * LOG2_E), ftz=True)
    near, small = _tanh_near(y)
    above = gr.where(near, small, gr.where(y < 0, t - 1, 1 - t))
    below = gr.where(near, 1, 1 + t)
    return above * gr.rcp(gr.fma(below, e, below), ftz=True)


ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "tanh": tanh,
    "sigmoid": sigmoid,
}


OF_16_BITS = {"gelu": gelu_of_16_bits}  # shorter functions, whose errors such results do not show


def activation(name: str | Callable[[Any], Any] | None, bits: int = 32) -> Callable[[Any], Any]:
    """The activation of this name, or the given function, for results of `bits` bits.

    Raises VerifyError KERNEL_ARGUMENT for anything else.
    """
    if callable(name):
        return name
    check_activation("epilogues.activation", name)
    return OF_16_BITS[name] if bits <= 16 and name in OF_16_BITS else ACTIVATIONS[name]


def check_activation(kernel: str, value: object) -> None:
    """Raises VerifyError KERNEL_ARGUMENT unless it is the name of an activation, None, or a function of registers."""
    if callable(value):
        return check_function(kernel, "activation", value, ["x"])
    if not isinstance(value, str | None) or value not in ACTIVATIONS:
        known = ", ".join(repr(k) for k in ACTIVATIONS)
        _core.fail("KERNEL_ARGUMENT", f"{kernel}: activation does not fit",
                   [f"want: one of {known} or a function of registers", f"got: {value!r}"])  # fmt: skip
    return None


def pointwise(function: Callable[..., Any], *registers: Any) -> Any:
    """The function's result on registers, or on arrays.

    Raises VerifyError KERNEL_ARGUMENT unless that is one value for each element.
    """
    got = function(*registers)
    if not isinstance(got, Expression | Tensor | IntExpr | int | float) and not is_array(got):
        _core.fail("KERNEL_ARGUMENT", f"an epilogue returned {type(got).__name__}",
                   ["want: registers, an expression of them or a number", f"got: {got!r}"],
                   "return one value, as lambda x: gr.max(x, 0) does")  # fmt: skip
    return got


def linear(
    act: str | Callable[[Any], Any] | None = None, bias: bool = False, residual: bool = False, bits: int = 32
) -> Pointwise:
    """``act(x + bias) + residual``, a result of `bits` bits: the epilogue of a linear layer with those arguments.

    On arrays it is ``reference_activations.ended``, which knows nothing of these statements.
    """
    function = activation(act, bits)

    def meant(x: Any, *extras: Any) -> Any:
        named = [n for n, on in (("bias", bias), ("residual", residual)) if on]
        return reference.ended(act, bits, x, **dict(zip(named, extras, strict=True)))

    def epilogue(x: Any, *extras: Any) -> Any:
        rest = list(extras)
        if bias:
            x = x + rest.pop(0)
        x = pointwise(function, x)
        return x + rest.pop(0) if residual else x

    held: Pointwise = gr.approximately(meant)(epilogue)
    return held
