"""Reductions, pointwise functions and transposition against NumPy: sizes of 0 and 1, ragged ones, text, compilation."""

from __future__ import annotations

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import (
    ElementwiseConfig,
    ReductionConfig,
    TransposeConfig,
    elementwise_kernel,
    reduction_kernel,
    transpose_kernel,
)
from graphene.select import select_elementwise, select_reduction, select_transpose

NUMPY = {gr.fp16: np.float16, gr.fp32: np.float32, gr.i8: np.int8}
REDUCE = {"add": np.sum, "max": np.max, "min": np.min}
START = {"add": 0, "max": -np.inf, "min": np.inf}


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("M", "N", "S"),
    [(5, 40, 1), (3, 1000, 2), (70, 70, 3), (1, 1, 1), (4, 2, 1), (0, 8, 1), (5, 0, 1), (33, 1025, 2), (9, 2056, 2)],
)
def test_reductions(op, axis, M, N, S, rng):
    config = select_reduction(M, N, axis, op, out_dtype=gr.fp32, scale=op == "add")
    x = rng.standard_normal((M, N)).astype(np.float16)
    parts = np.full((M, S) if axis else (S, N), np.nan, np.float32)
    reduction_kernel(config).simulate(x, parts, *([0.25] if op == "add" else []))
    want = REDUCE[op](x.astype(np.float64), axis=axis, initial=START[op]) * (0.25 if op == "add" else 1)
    np.testing.assert_allclose(REDUCE[op](parts, axis=axis, initial=START[op]), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("config", [ReductionConfig(1, "max"), ReductionConfig(0, "min", threads=32, rows=4, vector=2)])
def test_reductions_keep_their_promises(config):
    kernel = reduction_kernel(config)
    assert gr.parse(str(kernel)) == kernel
    result = kernel.check()
    assert result.ok, result.errors


def test_rows_of_a_reduction_may_lie_apart(rng):
    wide = rng.standard_normal((5, 64)).astype(np.float32)
    y = np.zeros((5, 1), np.float32)
    reduction_kernel(select_reduction(5, 24, 1, dtype=gr.fp32)).simulate(wide[:, 8:32], y)
    np.testing.assert_allclose(y[:, 0], wide[:, 8:32].sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(5, 40), (70, 33), (3, 1000)])
def test_a_nan_makes_a_maximum_and_a_minimum_nan(op, axis, shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    x[0, 0] = x[-1, -1] = x[shape[0] // 2, 1] = np.nan
    x[1, 5], x[2, 6], x[:, 7] = np.inf, -np.inf, -np.inf if op == "max" else np.inf
    parts = np.zeros((shape[0], 2) if axis else (2, shape[1]), np.float32)
    reduction_kernel(select_reduction(*shape, axis, op, gr.fp32)).simulate(x, parts)
    np.testing.assert_array_equal(REDUCE[op](parts, axis=axis), REDUCE[op](x, axis=axis))


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(5, 40), (70, 33), (0, 8), (5, 0)])
def test_integers_stay_exact(op, axis, shape, rng):
    x = rng.integers(-(2**31), 2**31, shape, np.int32) >> (7 if op == "add" else 0)  # no fp32 holds them or their sums
    x[0:2, 0:2] = 2**24 + 1
    y = np.zeros((shape[0], 1) if axis else (1, shape[1]), np.int32)
    reduction_kernel(select_reduction(*shape, axis, op, gr.i32)).simulate(x, y)
    start = {"add": 0, "max": -(2**31), "min": 2**31 - 1}[op]
    np.testing.assert_array_equal(y.ravel(), REDUCE[op](x.astype(np.int64), axis=axis, initial=start))


def test_a_mean_of_integers_is_a_float():
    y = np.zeros((1, 1), np.float32)
    config = select_reduction(1, 4, 1, dtype=gr.i32, out_dtype=gr.fp32, scale=True)
    reduction_kernel(config).simulate(np.array([[1, 2, 3, 5]], np.int32), y, 0.25)
    assert y[0, 0] == 2.75


SHAPES = [(1, 1, 1), (1, 1, 5000), (2, 3, 64), (1, 5, 7), (1, 0, 3), (1, 3, 0), (2, 17, 4), (1, 2, 2049)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("function", "on_arrays", "dtypes", "out", "spread"),
    [
        (lambda x: gr.max(x, 0), lambda x: np.maximum(x, 0), (gr.fp16,), gr.fp16, None),
        (lambda x, y: gr.fma(x, y, 1.0), lambda x, y: x * y + 1, (gr.fp16, gr.fp32), gr.fp32, None),
        (lambda x, y: gr.exp(x) - y, lambda x, y: np.exp(x) - y, (gr.fp32, gr.fp16), gr.fp16, (False, True)),
        (lambda x, y: x + y, lambda x, y: x + y, (gr.fp16, gr.fp16), gr.fp32, (True, True)),
    ],
    ids=["relu", "fma", "spread", "all spread"],
)
def test_elementwise(shape, function, on_arrays, dtypes, out, spread, rng):
    config = select_elementwise(shape[-1], dtypes, out, spread)
    xs = [
        rng.standard_normal(shape[:2] if s else shape).astype(NUMPY[d])
        for d, s in zip(dtypes, config.spread, strict=True)
    ]
    y = np.full(shape, np.nan, NUMPY[out])
    elementwise_kernel(function, config).simulate(*xs, y)
    wide = [
        x.astype(np.float64)[..., None] if s else x.astype(np.float64) for x, s in zip(xs, config.spread, strict=True)
    ]
    np.testing.assert_allclose(y, np.broadcast_to(on_arrays(*wide), shape), rtol=2e-3, atol=2e-3)


def test_elementwise_repeats_along_strides_of_zero(rng):
    x = np.broadcast_to(rng.standard_normal((3, 1, 64)).astype(np.float16), (3, 5, 64))
    z = np.broadcast_to(rng.standard_normal((5, 64)).astype(np.float16), (3, 5, 64))
    y = np.zeros((3, 5, 64), np.float16)
    kernel = elementwise_kernel(lambda x, z: x - z, select_elementwise(64, (gr.fp16, gr.fp16), gr.fp16))
    kernel.simulate(x, z, y)
    np.testing.assert_array_equal(y, x - z)
    assert gr.parse(str(kernel)) == kernel
    assert kernel.check().ok


@pytest.mark.parametrize("dtype", [gr.fp16, gr.fp32, gr.i8])
@pytest.mark.parametrize(
    ("B", "M", "N"),
    [(1, 64, 64), (2, 72, 136), (1, 1, 1), (1, 7, 130), (3, 33, 65), (1, 0, 5), (1, 5, 0), (0, 4, 4), (1, 100, 8)],
)
def test_transpose(dtype, B, M, N, rng):
    x = (30 * rng.standard_normal((B, M, N))).astype(NUMPY[dtype])
    y = np.zeros((B, N, M), x.dtype)
    transpose_kernel(select_transpose(M, N, dtype)).simulate(x, y)
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1))


@pytest.mark.parametrize("dtype", [gr.fp16, gr.fp32, gr.i8])
def test_transpose_meets_no_bank_twice(dtype):
    kernel = transpose_kernel(select_transpose(128, 128, dtype))
    assert gr.parse(str(kernel)) == kernel
    assert kernel.check().ok
    report = kernel.report(B=1, M=128, N=128)
    shared = [a for a in report.lines if a.buffer == "s"]
    assert len(shared) == 2
    assert all(a.conflicts == 0 for a in shared)
    for barrier in kernel.syncs():
        x = np.zeros((1, 128, 128), NUMPY[dtype])
        with pytest.raises(gr.SimulationError, match="SIM_"):
            kernel.simulate(x, x.copy(), skip=[barrier.id])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReductionConfig(2),
        lambda: ReductionConfig(op="mul"),
        lambda: ReductionConfig(threads=3),
        lambda: ReductionConfig(vector=3),
        lambda: TransposeConfig(gr.fp64),
        lambda: TransposeConfig(gr.fp32, 8),
        lambda: ElementwiseConfig((gr.fp16,), gr.fp16, ()),
        lambda: ElementwiseConfig((gr.fp16,), gr.fp16, (False,), vector=5),
    ],
)
def test_configurations_that_do_not_fit(make):
    with pytest.raises(gr.VerifyError) as e:
        make()
    assert e.value.code == "KERNEL_ARGUMENT"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_compiles_without_spills(arch):
    kernels = [
        *(reduction_kernel(select_reduction(1000, n, axis)) for axis in (0, 1) for n in (8, 1000, 1001)),
        *(transpose_kernel(select_transpose(n, n, t)) for t in (gr.fp16, gr.fp32) for n in (64, 33)),
        *(elementwise_kernel(lambda x: gr.tanh(x) * 2, select_elementwise(n, (gr.bf16,), gr.fp32)) for n in (7, 4096)),
    ]
    assert [k.compile(arch).spill_bytes for k in kernels] == [0] * len(kernels)
