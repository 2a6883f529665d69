"""A NaN among the products reaches the result of the default epilogue, as of the activation by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import gemm_sm70, gemm_sm80
from graphene.kernels.epilogues import gelu_of_16_bits, linear


@pytest.mark.parametrize(
    ("kernel", "kept"),
    [
        (gemm_sm80(32, 32, 32, 2, warps=(2, 2)), True),
        (gemm_sm80(32, 32, 32, 2, linear("relu", bias=True), warps=(2, 2)), True),
        (gemm_sm80(32, 32, 32, 2, lambda x, b: gr.max(x + b, 0), warps=(2, 2)), False),
        (gemm_sm70(32, 32, 32, warps=(2, 2)), True),
    ],
    ids=["sm80", "by name", "max", "sm70"],
)
def test_relu_of_nan(kernel: gr.Kernel, kept: bool, rng: Any) -> None:
    a, b, bias = (rng.standard_normal(s).astype(np.float16) for s in ((8, 16), (8, 16), 8))
    a[2, 3] = np.nan
    c = np.ones((8, 8), np.float16)
    kernel.simulate(a, b, bias, c)
    assert np.isnan(c[2]).all() == kept
    assert not np.isnan(np.delete(c, 2, 0)).any()
    if not kept:
        assert (c[2] == 0).all()


def test_gelu_of_what_is_not_finite() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 60000.0, -60000.0])
    np.testing.assert_array_equal(gelu_of_16_bits(x), [np.inf, 0, np.nan, 60000, 0])
