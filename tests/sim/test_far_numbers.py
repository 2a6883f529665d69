"""check() draws floats beyond what fp16 holds, for types that hold them, and zeros of both signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels.rows import softmax
from graphene.kernels.rows.softmax import SoftmaxColumnsConfig, softmax_columns_kernel


def copy(dtype: gr.DType, of: Callable[[Any], Any], means: Callable[[Any], Any] = lambda x: x) -> gr.Kernel:
    """y = of(x), which promises x unless it means something else."""
    n = gr.sym("n")
    with gr.Kernel("copy", means=means) as kernel:
        x, y = gr.input("x", [n], dtype), gr.output("y", [n], dtype)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        gr.move(y.tile([32])[b][t], of(gr.load(x.tile([32])[b][t])))
    return kernel


@pytest.mark.parametrize("dtype", [gr.fp32, gr.bf16, gr.fp64], ids=str)
@pytest.mark.parametrize("end", [70_000.0, -70_000.0, -1e9])
def test_numbers_that_fp16_lacks_are_drawn(dtype: gr.DType, end: float) -> None:
    def lost(x: Any) -> Any:
        beyond = (x > end) & (x < 1e30) if end > 0 else (x < end) & (x > -1e30)
        return gr.where(beyond, 0, x)

    assert copy(dtype, lambda x: x).check().ok
    assert not copy(dtype, lost).check().ok


@pytest.mark.parametrize("dtype", [gr.fp32, gr.bf16], ids=str)
def test_numbers_below_those_of_fp16_are_drawn(dtype: gr.DType) -> None:
    assert not copy(dtype, lambda x: gr.where(gr.abs(x) < 1e-10, 0, x) + 0).check().ok


@pytest.mark.parametrize("dtype", [gr.fp32, gr.fp16, gr.bf16], ids=str)
def test_a_zero_that_is_moved_keeps_its_sign(dtype: gr.DType) -> None:
    """Of one that is computed the sign is not promised."""
    assert "y[0] is 0, want: -0" in str(copy(dtype, lambda x: x + 0).check())
    assert copy(dtype, lambda x: x + 0, lambda x: x + 0).check().ok
    assert copy(dtype, lambda x: -x, lambda x: 0 - x).check().ok


def test_what_one_instruction_makes_of_a_tangent_is_stated() -> None:
    """The simulator computes it to the last digit, which the instruction does not."""
    rough, full = (
        copy(gr.fp32, lambda x, a=a: gr.tanh(x, accuracy=a), lambda x: np.tanh(x)) for a in ("default", "full")
    )
    assert full.check().ok
    assert "tanh.approx may be off by 2^-11 of its result" in str(rough.check())
    for kernel in (rough, full):
        assert kernel.with_promise(means=lambda x: gr.tanh(x)).check().ok


def test_a_row_below_all_numbers_of_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes a row of such numbers for one of minus infinity gives NaN or infinity there."""
    assert softmax_columns_kernel(SoftmaxColumnsConfig(gr.fp32)).check().ok
    where = gr.where

    class Careless:
        """The language, in which a maximum that is compared with minus infinity counts as such below -1e5."""

        def __getattr__(self, name: str) -> Any:
            return getattr(gr, name)

        @staticmethod
        def where(condition: Any, a: Any, b: Any) -> Any:
            return where(b < -1e5, a, b) if isinstance(b, gr.Tensor) else where(condition, a, b)

    monkeypatch.setattr(softmax, "gr", Careless())
    assert not softmax_columns_kernel(SoftmaxColumnsConfig(gr.fp32)).check().ok
