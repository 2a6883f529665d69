"""Kernels of agents on a Hopper card: the simulator's values, at odd sizes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import hopper_listings
import numpy as np
import pytest
import test_bulk
import test_cluster_memory
import test_parts_of_clusters
import test_release

import graphene as gr
from graphene.kernels import GemmConfig, gemm_launches

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

WAYS: dict[str, dict[str, Any]] = {
    "ping-pong": {},
    "64 rows": {"BM": 64, "STAGES": 7},
    "clusters": {"BN": 192, "STAGES": 4, "share": True},
    "half a tile each": {"BN": 256, "STAGES": 4, "turns": False, "buffers": 2},
    "bf16": {"dtype": gr.bf16},
}


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper card")


def gemm_sm90(**options: Any) -> gr.Kernel:
    path = Path(__file__).parents[2] / "examples" / "12_gemm_sm90.py"
    spec = importlib.util.spec_from_file_location("gemm_sm90_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: gr.Kernel = module.gemm_sm90(**options)
    return kernel


@pytest.mark.parametrize("shape", [(64, 64), (100, 456), (65, 8), (1, 200), (1000, 4104)])
def test_a_copy(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device="cuda").half()
    y = torch.full_like(x, float("nan"))
    hopper_listings.tma_copy()(x, y)
    assert torch.equal(x, y)


@pytest.mark.parametrize("way", list(WAYS))
def test_products_are_rounded_once(way: str) -> None:
    kernel, dtype = gemm_sm90(**WAYS[way]), torch.bfloat16 if way == "bf16" else torch.float16
    for m, n, k in ((1, 8, 8), (200, 136, 72), (129, 520, 1000), (1000, 1000, 1000), (4096, 1024, 512)):
        a, b = (torch.randn(rows, k, device="cuda").to(dtype) for rows in (m, n))
        c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
        kernel(a, b, c)
        exact = a.double() @ b.double().T
        ulp = 2.0 ** (-8 if way == "bf16" else -11)
        assert ((c.double() - exact).abs() <= 1.01 * ulp * exact.abs() + k / 16 * 2**-23 * 6 * k**0.5).all(), (m, n, k)


def test_a_product_has_the_bits_of_the_simulator() -> None:
    kernel = gemm_sm90(BM=64, BN=64, STAGES=3)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 200)).astype(np.float16) for rows in (150, 136))
    c = np.zeros((150, 136), np.float16)
    kernel.simulate(a, b, c)
    on_gpu = torch.empty(150, 136, device="cuda", dtype=torch.float16)
    kernel(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda(), on_gpu)
    assert np.array_equal(on_gpu.cpu().numpy().view(np.uint16), c.view(np.uint16))


@pytest.mark.parametrize("act", [test_cluster_memory.loads, test_cluster_memory.stores], ids=lambda a: a.__name__)
def test_blocks_of_a_cluster_exchange_vectors(act: Any) -> None:
    x = torch.arange(256, device="cuda", dtype=torch.float32)
    y = torch.zeros_like(x)
    test_cluster_memory.exchange(act)(x, y)
    assert torch.equal(y.reshape(2, 32, 4), x.reshape(2, 32, 4).flip(0, 1))


def test_arrivals_publish_what_threads_stored() -> None:
    x = torch.randn(5000, 32, device="cuda")
    y = torch.zeros_like(x)
    test_release.handed_over()(x, y)
    assert torch.equal(y, x.flip(1))


@pytest.mark.parametrize("way", ["row", "column"])
def test_a_part_of_a_cluster_receives(way: str) -> None:
    x = torch.arange(256, device="cuda").half().reshape(2, 2, 64)
    y = torch.zeros(4, 2, 64, device="cuda", dtype=torch.float16)
    test_parts_of_clusters.shared_rows(way)(x, y)
    for block in range(4):
        assert torch.equal(y[block], x[block % 2 if way == "row" else block // 2])


def test_rows_are_copied_and_added() -> None:
    x = torch.randn(1000, 1000, device="cuda").half()
    y = torch.zeros_like(x)
    test_bulk.row_copy(1000)(x, y)
    assert torch.equal(x, y)
    x, y = torch.randint(0, 9, (8, 64), device="cuda").float(), torch.ones(64, device="cuda")
    test_bulk.row_sums("add", gr.fp32)(x, y)
    assert torch.equal(y, x.sum(0) + 1)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_product_whose_k_is_cut_over_a_cluster(parts: int) -> None:
    for m, n, k in ((16, 64, 8), (70, 136, 1000), (128, 1024, 4096)):
        a, b = (torch.randint(-2, 3, (rows, k), device="cuda").half() for rows in (m, n))
        c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
        hopper_listings.gemm_split_sm90(parts=parts)(a, b, c)
        assert torch.equal(c, (a.float() @ b.float().T).half())


@pytest.mark.parametrize("order", ["TN", "NT", "TT"])
def test_a_librarys_product_whose_k_is_cut_over_a_cluster(order: str) -> None:
    """Operands of several panels along their rows too: their descriptors hold a distance beside an address."""
    config = GemmConfig(
        tile=(64, 96, 64), warps=(4, 1), stages=4, kernel="gemm_sm90", group=8, cluster=(1, 1, 2), order=order
    )
    [launch] = gemm_launches(config)
    m, n, k = 200, 264, 328
    a, b = (torch.randint(-2, 3, (rows, k), device="cuda").half() for rows in (m, n))
    b = b.T if order[1] == "N" else b.T.contiguous()
    a = a if order[0] == "T" else a.T.contiguous().T
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    launch.kernel(a, b, c)
    assert torch.equal(c, (a.float() @ b.float()).half())
