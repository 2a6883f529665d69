"""Sizes around every tile size, sizes of 1 and of 0: each class of remainders, along one dimension at a time."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from test_kernels import attention_case, gemm_case, layernorm_case, mlp_case

import graphene as gr
from graphene.kernels import flash_fwd, fused_mlp, gemm_sm80, layernorm

gemm = functools.cache(lambda: gemm_sm80(64, 64, 32, 3))
attention = functools.cache(lambda causal: flash_fwd(64, 32, 16, 2, causal))
mlp = functools.cache(lambda: fused_mlp(2, 64, 64))

# Of 8 rows in an ldmatrix, 16 in an mma, 32 in a warp's tile, 64 in a block's: one less, exactly, one more; several.
ROWS = [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129]


def run_gemm(rng: np.random.Generator, m: int, n: int, k: int) -> None:
    inputs, want, c = gemm_case(rng, m, n, k)
    gemm().simulate(*inputs, c)
    np.testing.assert_allclose(c, want, atol=2e-3 * np.sqrt(max(k, 1)), rtol=2e-3)


@pytest.mark.parametrize("m", ROWS)
def test_rows_of_a_product(m: int, rng) -> None:
    run_gemm(rng, m, 24, 40)


@pytest.mark.parametrize("n", range(0, 137, 8))
def test_columns_of_a_product(n: int, rng) -> None:
    run_gemm(rng, 17, n, 40)


@pytest.mark.parametrize("k", range(0, 137, 8))
def test_steps_of_a_product(k: int, rng) -> None:
    """Fewer k-tiles than stages, as many, more; a ragged last one; none: the bias alone."""
    run_gemm(rng, 17, 24, k)


def run_attention(rng: np.random.Generator, causal: bool, *sizes: int) -> None:
    inputs, want, o, scale = attention_case(rng, *sizes, causal)
    attention(causal).simulate(*inputs, o, scale)
    np.testing.assert_allclose(o, want, atol=3e-3, rtol=3e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sq", [0, 1, 15, 16, 17, 31, 32, 33, 65])
def test_queries(sq: int, causal: bool, rng) -> None:
    run_attention(rng, causal, 1, sq, 21, 1, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sk", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_keys(sk: int, causal: bool, rng) -> None:
    run_attention(rng, causal, 1, 19, sk, 1, 1)


@pytest.mark.parametrize("causal", [False, True])
def test_no_key_at_all_gives_zeros(causal: bool) -> None:
    q, kv = np.ones((1, 19, 1, 64), np.float16), np.zeros((1, 0, 1, 64), np.float16)
    o = np.full_like(q, np.nan)
    attention(causal).simulate(q, kv, kv, o, 0.2)
    assert not o.any()


@pytest.mark.parametrize(("batch", "heads", "kv_heads"), [(0, 2, 1), (1, 1, 1), (3, 4, 2), (1, 0, 0)])
def test_batches_and_heads(batch: int, heads: int, kv_heads: int, rng) -> None:
    q, kv = np.zeros((batch, 5, heads, 64), np.float16), np.zeros((batch, 9, kv_heads, 64), np.float16)
    if batch and heads:
        run_attention(rng, True, batch, 5, 9, heads, kv_heads)
    else:
        attention(True)(q, kv, kv, q, 0.2)


@pytest.mark.parametrize("n", [8, 16, 1016, 1024, 1032, 2048])
def test_columns_of_a_normalisation(n: int, rng) -> None:
    inputs, want, y = layernorm_case(rng, 2, n)
    layernorm(n).simulate(*inputs, y)
    np.testing.assert_allclose(y, want, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("m", ROWS)
def test_rows_of_a_perceptron(m: int, rng) -> None:
    inputs, want, y = mlp_case(rng, m, 2, 64)
    mlp().simulate(*inputs, y)
    np.testing.assert_allclose(y, want, atol=1e-2, rtol=1e-2)


def test_an_output_that_an_empty_grid_leaves_unwritten() -> None:
    with gr.Kernel("k") as kernel:
        n = gr.sym("n")
        gr.input("x", [n], gr.fp32)
        y = gr.output("y", [1], gr.fp32)
        gr.blocks(n)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.init(r, 1)
        gr.move(y[0], r)
    with pytest.raises(gr.SimulationError, match="SIM_OUTPUT_UNWRITTEN"):
        kernel(np.zeros(0, np.float32), np.zeros(1, np.float32))
