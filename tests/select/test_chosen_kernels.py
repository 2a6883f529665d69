"""Kernels that are chosen can be built: they lower for their device, whatever terms and alignments a problem has."""

from __future__ import annotations

import random
from typing import Any

import pytest

from graphene.kernels import GemmProblem, gemm_launches
from graphene.select.device import H200
from graphene.select.gemm import choose

SIZES = (1, 7, 16, 40, 64, 96, 100, 128, 200, 384, 768, 1000, 1536, 2304, 4096, 8192)
SEEDS = 40  # 2,000 of them passed


def problem(draw: random.Random) -> GemmProblem:
    """A problem whose alignments its sizes allow."""
    m, n, k = (draw.choice(SIZES) for _ in range(3))
    order = draw.choice(("TN", "NN", "NT", "TT"))
    lines = k if order[0] == "T" else m, k if order[1] == "N" else n, n
    align: Any = tuple(next(a for a in (16, 8, 4, 2) if 2 * x % a == 0) for x in lines)
    terms = {t: draw.random() < 0.4 for t in ("bias", "residual", "alpha", "beta")}
    activation = draw.choice((None, None, "relu", "gelu", "silu"))
    out = draw.choice((None, None, None, "fp32"))
    if out == "fp32":
        align = (*align[:2], next(a for a in (16, 8, 4) if 4 * n % a == 0))
    batch = draw.choice((None, None, 1, 12))
    dtype = draw.choice(("fp16", "bf16"))
    return GemmProblem(m, n, k, batch, dtype, order, align, activation=activation, out=out, **terms)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_kernels_that_are_chosen_lower(seed: int) -> None:
    p = problem(random.Random(seed))
    tile = choose(p, H200)
    for launch in gemm_launches(p, tile):
        launch.kernel.lowered(H200.arch)


@pytest.mark.parametrize("seed", range(3, 2 * SEEDS, 11))
def test_kernels_that_are_chosen_do_not_spill(seed: int) -> None:
    """Nor does the compiler serialise their products, which it would say in a remark."""
    p = problem(random.Random(seed))
    for launch in gemm_launches(p, choose(p, H200)):
        binary = launch.kernel.compile(H200.arch)
        assert binary.spill_bytes == 0, f"{p}: {choose(p, H200)}"
        assert "serialized" not in binary.log, binary.log
