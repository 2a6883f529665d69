"""kernel.check(): every planted fault is reported at the level that is wrong, and nothing else is."""

from __future__ import annotations

import pytest
from hazards import race_across_warps
from kernels import fig8, transpose
from promises import FAULTS, gemm, line_of

import graphene as gr


@pytest.mark.parametrize("seed", range(6))
def test_a_correct_kernel_raises_no_alarm(seed: int) -> None:
    result = gemm().check(seed=seed)
    assert result.ok, str(result)
    assert result.promises == 4 * 2 * 4 + 1  # blocks, k-tiles, specs in a k-tile; the root
    assert result.sizes == {"M": 32, "N": 32, "K": 16}


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fault_is_reported_at_its_level(fault: str, seed: int) -> None:
    result = gemm(fault).check(seed=seed, M=32, N=32, K=32)
    assert not result.ok
    assert [e.code for e in result.errors] == ["CHECK_PROMISE"], str(result)
    assert result.errors[0].where == f"promises.py:{line_of(FAULTS[fault])}", str(result)


def test_hazards_come_first() -> None:
    kernel, _ = race_across_warps(False)
    result = kernel.check()
    assert [e.code for e in result.errors] == ["SIM_RACE"]


def test_sizes_cover_two_tiles_and_follow_the_facts() -> None:
    assert transpose().check().sizes == {"M": 64, "N": 64}
    assert transpose().check(M=32, N=96).sizes == {"M": 32, "N": 96}
    with pytest.raises(gr.SimulationError, match="breaks the symbol's facts"):
        transpose().check(M=33)
    with pytest.raises(gr.SimulationError, match="has no size Q"):
        transpose().check(Q=1)


def test_fig8_passes() -> None:
    result = fig8(256, 256, 8).check()
    assert result.ok
    assert result.blocks == 4
