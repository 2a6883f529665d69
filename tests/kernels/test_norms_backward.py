"""Gradients of normalisations against float64; they agree with differences of the forward reference."""

from __future__ import annotations

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import (
    NormColumnsConfig,
    NormConfig,
    ReductionConfig,
    RowTile,
    layernorm_backward_kernel,
    norm_columns_kernel,
    reduction_kernel,
    rmsnorm_backward_kernel,
)
from graphene.select import select_norm_backward, select_norm_columns

KERNELS = {"layernorm": layernorm_backward_kernel, "rmsnorm": rmsnorm_backward_kernel}
TILES = [
    RowTile(1, 1, 4, 1),
    RowTile(7, 8, 4, 1),
    RowTile(96, 4, 8),
    RowTile(1000, 96),
    RowTile(2048, 256),
    RowTile(65, 64, 1, 1, "shared"),
    RowTile(812, 64, 1, 4, "shared"),
    RowTile(1032, 64, 1, 8, "memory"),
]


def normal_and_rstd(name, x, eps=1e-5):
    mean = x.mean(1, keepdims=True) if name == "layernorm" else np.zeros((len(x), 1))
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + eps)
    return (x - mean) * rstd, mean, rstd


def gradients(name, x, dy, gamma):
    n, mean, rstd = normal_and_rstd(name, x)
    g = dy * gamma
    of_g = g.mean(1, keepdims=True) if name == "layernorm" else 0
    return rstd * (g - of_g - n * (g * n).mean(1, keepdims=True)), (dy * n).sum(0), dy.sum(0), mean[:, 0], rstd[:, 0]


@pytest.mark.parametrize("name", KERNELS)
def test_the_reference_is_the_derivative(name, rng):
    x, dy, gamma = rng.standard_normal((2, 5)), rng.standard_normal((2, 5)), rng.standard_normal(5)
    dx, dgamma, *_ = gradients(name, x, dy, gamma)
    loss = lambda x, gamma: (normal_and_rstd(name, x)[0] * gamma * dy).sum()  # noqa: E731
    for i in np.ndindex(2, 5):
        step = np.zeros((2, 5))
        step[i] = 1e-6
        assert np.isclose((loss(x + step, gamma) - loss(x - step, gamma)) / 2e-6, dx[i], atol=1e-6)
    step = np.array([0, 1e-6, 0, 0, 0])
    assert np.isclose((loss(x, gamma + step) - loss(x, gamma - step)) / 2e-6, dgamma[1], atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_gradient_of_the_input(name, tile, rng):
    kernel = KERNELS[name](NormConfig(tile))
    M = tile.rows + 2
    x, dy = rng.standard_normal((2, M, tile.width)).astype(np.float16)
    gamma = rng.standard_normal(tile.width).astype(np.float16)
    dx, mean, rstd = np.full_like(x, np.nan), np.zeros(M, np.float32), np.zeros(M, np.float32)
    kernel.simulate(x, dy, gamma, dx, *([mean] if name == "layernorm" else []), rstd, 1e-5)
    want, _, _, means, rstds = gradients(name, *(t.astype(np.float64) for t in (x, dy, gamma)))
    np.testing.assert_allclose(dx, want, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(rstd, rstds, rtol=1e-5)
    if name == "layernorm":
        np.testing.assert_allclose(mean, means, atol=1e-5)
    assert gr.parse(str(kernel)) == kernel
    assert kernel.check(M=2).ok


@pytest.mark.parametrize("name", KERNELS)
def test_without_a_factor_and_with_the_gradient_of_the_sum(name, rng):
    kernel = KERNELS[name](NormConfig(RowTile(104, 16, 2, 4), gr.fp32, gamma=False, write_sum=True, eps=1e-3))
    x, dy, ds = rng.standard_normal((3, 3, 104)).astype(np.float32)
    dx, stats = np.full_like(x, np.nan), np.zeros((3, 3), np.float32)
    kernel.simulate(x, dy, ds, dx, *stats[: 3 if name == "layernorm" else 1])
    n, _, rstd = normal_and_rstd(name, x.astype(np.float64), 1e-3)
    of_dy = dy.mean(1, keepdims=True) if name == "layernorm" else 0
    want = rstd * (dy - of_dy - n * (dy * n).mean(1, keepdims=True)) + ds
    np.testing.assert_allclose(dx, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tile", [TILES[1], TILES[3], *TILES[5:]], ids=str)
def test_the_sum_with_a_residual_is_not_rounded(name, tile, rng):
    """Near 256 float16 lies 1/4 apart: what R adds would be lost."""
    M, affine = tile.rows + 2, NormConfig(tile, residual=True)
    x, dy = (256 + rng.standard_normal((M, tile.width)) / 8).astype(np.float16), rng.standard_normal((M, tile.width))
    r, dy = (rng.standard_normal((M, tile.width)) / 16).astype(np.float16), dy.astype(np.float16)
    gamma = rng.standard_normal(tile.width).astype(np.float16)
    dx, stats = np.full_like(x, np.nan), np.zeros((2, M), np.float32)
    KERNELS[name](affine).simulate(x, r, dy, gamma, dx, *stats[: 2 if name == "layernorm" else 1], 1e-5)
    want, dgamma, dbeta, mean, rstd = gradients(name, x.astype(float) + r, dy.astype(float), gamma.astype(float))
    np.testing.assert_allclose(dx, want, rtol=1e-2, atol=1e-2)
    centred = name == "layernorm"
    config, S = select_norm_columns(M, tile.width, centred=centred, beta=centred, residual=True, align_bytes=2)
    parts = np.full((2, S, tile.width), np.nan, np.float32)
    means = [mean.astype(np.float32)] if centred else []
    norm_columns_kernel(config).simulate(x, r, dy, *means, rstd.astype(np.float32), *parts[: 1 + centred])
    np.testing.assert_allclose(parts[0].sum(0), dgamma, rtol=1e-2, atol=1e-2)
    if centred:
        np.testing.assert_allclose(parts[1].sum(0), dbeta, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("M", "N"), [(0, 4), (1, 1), (5, 7), (64, 64), (65, 66), (200, 130)])
def test_gradients_of_factor_and_addend_in_two_stages(name, M, N, rng):
    x, dy = rng.standard_normal((2, M, N)).astype(np.float16)
    _, dgamma, dbeta, mean, rstd = gradients(name, x.astype(np.float64), dy.astype(np.float64), 1)
    centred = name == "layernorm"
    config, S = select_norm_columns(M, N, centred=centred, beta=centred)
    parts = np.full((2, S, N), np.nan, np.float32)
    means = [mean.astype(np.float32)] if centred else []
    norm_columns_kernel(config).simulate(x, dy, *means, rstd.astype(np.float32), *parts[: 1 + centred])
    add = reduction_kernel(ReductionConfig(0, "add", gr.fp32, gr.fp16, threads=32, rows=4, vector=1))
    for part, want in list(zip(parts, (dgamma, dbeta), strict=True))[: 1 + centred]:
        got = np.full((1, N), np.nan, np.float16)
        add.simulate(part, got)
        np.testing.assert_allclose(got[0], want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "tile", [RowTile(96, 4, 8, 4), RowTile(65, 64, 1, 1, "shared"), RowTile(1032, 64, 1, 4, "memory")]
)
def test_the_mean_of_fp32_is_not_rounded(tile, rng):
    """Near 10^4 float32 lies 2^-10 apart: a mean of that type would cost the gradients their last ten digits."""
    kernel = layernorm_backward_kernel(NormConfig(tile, gr.fp32, eps=1e-5))
    x, dy = rng.standard_normal((2, 6, tile.width)).astype(np.float32)
    x, gamma = x + np.float32(1e4), rng.standard_normal(tile.width).astype(np.float32)
    dx, stats = np.full_like(x, np.nan), np.zeros((3, 6), np.float32)
    kernel.simulate(x, dy, gamma, dx, *stats)
    want, dgamma, _, mean, _ = gradients("layernorm", *(t.astype(np.float64) for t in (x, dy, gamma)))
    np.testing.assert_allclose(stats[0].astype(float) + stats[1], mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(dx, want, rtol=0, atol=1e-5)
    config, S = select_norm_columns(6, tile.width, gr.fp32, align_bytes=4)
    parts = np.full((2, S, tile.width), np.nan, np.float32)
    norm_columns_kernel(config).simulate(x, dy, *stats, *parts)
    np.testing.assert_allclose(parts[0].sum(0), dgamma, rtol=0, atol=1e-5)
    assert kernel.check(M=2).ok
    assert norm_columns_kernel(config).check().ok


@pytest.mark.parametrize("config", [NormColumnsConfig(), NormColumnsConfig(gr.bf16, False, False, True, 1, 4)], ids=str)
def test_columns_keep_their_promises(config):
    kernel = norm_columns_kernel(config)
    assert gr.parse(str(kernel)) == kernel
    result = kernel.check()
    assert result.ok, result.errors


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("width", [32, 768, 1023, 4096, 32768])
def test_compiles_without_spills(name, width, arch):
    for residual in (False, True):
        config = select_norm_backward(8192, width, residual=residual, write_sum=residual)
        assert KERNELS[name](config).compile(arch).spill_bytes == 0
        assert norm_columns_kernel(NormColumnsConfig(residual=residual)).compile(arch).spill_bytes == 0
