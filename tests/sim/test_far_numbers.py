"""check() draws floats beyond what fp16 holds, for types that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphene as gr
from graphene.kernels.rows import softmax
from graphene.kernels.rows.softmax import SoftmaxColumnsConfig, softmax_columns_kernel


def copy(dtype: gr.DType, of: Callable[[Any], Any]) -> gr.Kernel:
    """y = of(x), which promises x."""
    n = gr.sym("n")
    with gr.Kernel("copy", means=lambda x: x) as kernel:
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
