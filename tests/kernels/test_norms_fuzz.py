"""On the simulator against float64: random widths, layouts and values, by the tiles that are chosen for the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene.kernels import layernorm_kernel, rmsnorm_kernel, softmax_kernel
from graphene.select import select_norm, select_softmax

KERNELS = {"layernorm": layernorm_kernel, "rmsnorm": rmsnorm_kernel}
TYPES = {np.float16: (gr.fp16, 2e-3), np.float32: (gr.fp32, 4e-6)}


def rows_of(rng: np.random.Generator, rows: int, width: int, dtype: type, gap: int, values: str) -> np.ndarray:
    x = rng.standard_normal((rows, width + gap))
    x = x * 1e-2 + 1e4 if values == "far" and dtype is np.float32 else x
    x = x.astype(dtype)[:, :width]
    if values == "outlier":
        x[:, rng.integers(width)] = 3e4
    if values == "equal":
        x[:] = x[:, :1]
    if values == "not finite":
        for bad in (np.inf, -np.inf, np.nan):
            x[rng.integers(rows), rng.integers(width)] = bad
        x[rng.integers(rows)] = -np.inf
    return x


def close(got: np.ndarray, want: np.ndarray, tolerance: float, floor: float = 1e-3) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    got, want = (np.nan_to_num(a.astype(np.float64), nan=0) for a in (got, want))
    scale = np.abs(want) + np.sqrt((want**2).mean(1, keepdims=True)) + floor
    assert (np.abs(got - want) / scale).max() < tolerance


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm", "softmax"])
@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 9),
    st.one_of(st.integers(1, 300), st.integers(256, 1300), st.sampled_from([3075, 3080, 4097])),
    st.sampled_from([0, 0, 1, 8]),
    st.sampled_from(["normal", "far", "outlier", "equal", "not finite"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_rows(kind, dtype, rows, width, gap, values, residual, beta, seed) -> None:
    rng = np.random.default_rng(seed)
    (ours, tolerance), size = TYPES[dtype], np.dtype(dtype).itemsize
    x = rows_of(rng, rows, width, dtype, gap, values)
    y = np.full((rows, width), np.nan, dtype)
    align = next(a for a in (16, 8, 4, 2) if width * size % a == 0 and gap * size % a == 0)
    dense = 0 if gap else 16
    if kind == "softmax":
        config = select_softmax(rows, width, ours, align_bytes=align, dense_bytes=dense)
        softmax_kernel(config).simulate(x, y)
        with np.errstate(all="ignore"):
            e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
            close(y, e / e.sum(1, keepdims=True), tolerance, 1e-30)
        return
    options = {"residual": residual, "beta": beta, "eps": 1e-5}
    config = select_norm(rows, width, ours, align_bytes=align, dense_bytes=dense, **options)
    r = rng.standard_normal((rows, width + gap)).astype(dtype)[:, :width]
    gamma, b = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    KERNELS[kind](config).simulate(x, *([r] if residual else []), gamma, *([b] if beta else []), y)
    with np.errstate(all="ignore"):
        h = x.astype(np.float64) + (r if residual else 0)
        mean = h.mean(1, keepdims=True) if kind == "layernorm" else np.zeros((rows, 1))
        want = (h - mean) / np.sqrt(((h - mean) ** 2).mean(1, keepdims=True) + 1e-5) * gamma + (b if beta else 0)
    if values == "far" and residual and dtype is np.float32:
        tolerance = 0.2  # the sum of two numbers of fp32 is rounded, to 1e-3 where values differ by 1e-2
    close(y, want, tolerance)
