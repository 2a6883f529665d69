"""gemm_sm70: promises, no bank conflicts, values on sizes around every tile."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import gemm_sm70

ORDERS = ("TN", "NN", "NT", "TT")
small = functools.cache(lambda order, align: gemm_sm70(32, 32, 32, warps=(2, 2), order=order, align=(align,) * 3))


def arrays(rng, order: str, M: int, N: int, K: int) -> list[np.ndarray]:
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((M, K), (N, K)))
    a = a if order[0] == "T" else np.asfortranarray(a)
    b = b if order[1] == "N" else np.asfortranarray(b)
    return [a, b, rng.standard_normal(N).astype(np.float16), np.full((M, N), np.nan, np.float16)]


def check_values(a, b, bias, c) -> None:
    want = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T + bias, 0)
    np.testing.assert_allclose(c, want, rtol=2.0**-10, atol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_keeps_its_promises_and_text(order: str) -> None:
    kernel = small(order, 16)
    assert gr.parse(str(kernel)) == kernel
    result = kernel.check(M=40, N=40, K=72)
    assert result.ok, str(result)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("order", ORDERS)
def test_compiles_without_spills(order: str, arch: str) -> None:
    assert gemm_sm70(order=order).compile(arch).spill_bytes == 0


@pytest.mark.parametrize(("order", "buffers"), [("TN", ("sA", "sB")), ("NN", ("sA", "sB")), ("NT", ("sA",))])
def test_the_loop_over_k_has_no_bank_conflicts(order: str, buffers: tuple[str, ...]) -> None:
    rows = [r for r in gemm_sm70(order=order).report(M=128, N=128, K=32).rows if r.buffer in buffers]
    assert {r.op for r in rows} == {"store", "load"}
    assert all(r.conflicts == 0 for r in rows)


# Of 4 k and 8 rows of an mma, 8 of a quad-pair, 16 of a warp, 32 of the tile: one less, exactly, one more; several.
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65])
def test_every_remainder(order: str, n: int, rng) -> None:
    for size in ((n, 19, 21), (17, n, 21), (17, 19, n)):
        x = arrays(rng, order, *size)
        small(order, 2).simulate(*x)
        check_values(*x)


@pytest.mark.parametrize(("align", "step"), [(16, 8), (8, 4), (4, 2)])
def test_aligned_sizes(align: int, step: int, rng) -> None:
    for order in ORDERS:
        x = arrays(rng, order, 5 * step, 7 * step, 9 * step)
        small(order, align).simulate(*x)
        check_values(*x)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
def test_on_the_gpu(order: str, rng) -> None:
    import torch

    for size, align in (((264, 392, 520), 16), ((65, 129, 97), 2)):
        x = arrays(rng, order, *size)
        up = [torch.from_numpy(v).cuda() for v in x]
        gemm_sm70(order=order, align=(align,) * 3)(*up)
        check_values(*x[:3], up[3].cpu().numpy())
