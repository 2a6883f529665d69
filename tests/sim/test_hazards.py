"""Every hazard: a kernel that has it, its message, and a correct twin that no order of threads alarms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hazards import HAZARDS, Case
from kernels import transpose

import graphene as gr

ALL = [(code, case) for code, cases in HAZARDS.items() for case in cases]


@pytest.mark.parametrize(("code", "case"), ALL, ids=[case.__name__ for _, case in ALL])
def test_found_in_every_order_of_threads(code: str, case: Callable[[bool], Case]) -> None:
    for seed in range(12):
        kernel, args = case(False)
        with pytest.raises(gr.SimulationError) as error:
            kernel.simulate(*args, seed=seed)
        assert error.value.code == code
        assert error.value.diagnostics[0]["file"].endswith("hazards.py")


@pytest.mark.parametrize(("code", "case"), ALL, ids=[case.__name__ for _, case in ALL])
def test_the_correct_twin_raises_nothing(code: str, case: Callable[[bool], Case]) -> None:
    for seed in range(12):
        kernel, args = case(True)
        kernel.simulate(*args, seed=seed)


def message(case: Callable[[bool], Case]) -> str:
    kernel, args = case(False)
    with pytest.raises(gr.SimulationError) as error:
        kernel.simulate(*args)
    return str(error.value)


MESSAGES = {}


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_message(name: str) -> None:
    case = next(c for _, c in ALL if c.__name__ == name)
    assert message(case) == MESSAGES[name]


@pytest.mark.parametrize("swizzled", [False, True])
def test_a_skipped_barrier_is_a_race(swizzled: bool) -> None:
    import numpy as np

    kernel = transpose(swizzled)
    (sync,) = kernel.syncs()
    assert sync.text == "barrier()"
    assert sync.where.startswith("kernels.py:")
    for seed in range(8):
        x = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
        with pytest.raises(gr.SimulationError) as error:
            kernel.simulate(x, np.zeros((32, 64), np.float32), seed=seed, skip=[sync.id])
        assert error.value.code == "SIM_RACE"
    with pytest.raises(ValueError, match="no such synchronisation statement"):
        kernel.simulate(x, np.zeros((32, 64), np.float32), skip=[sync.id + 1])


def test_every_skipped_barrier_of_a_reused_buffer_is_a_race() -> None:
    kernel, args = next(c for _, c in ALL if c.__name__ == "race_on_reuse")(True)
    assert len(kernel.syncs()) == 2
    for sync in kernel.syncs():
        for seed in range(8):
            with pytest.raises(gr.SimulationError) as error:
                kernel.simulate(*args, seed=seed, skip=[sync.id])
            assert error.value.code == "SIM_RACE"
