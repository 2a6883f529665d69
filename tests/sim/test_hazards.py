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


MESSAGES = {
    "race_across_warps": (
        "hazards.py:30: a write over a value that an unordered thread reads: s[32]   [SIM_RACE]\n"
        "    %8:[].fp32.SH <- Move<<<#3:[1].block, [].thread>>>(%6:[].fp32.RF)\n"
        "    %6:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%9:[].fp32.SH)\n"
        "  write by thread 32 (warp 1, lane 0) of block (0), hazards.py:30\n"
        "  read by thread 31 (warp 0, lane 31) of block (0), hazards.py:33\n"
        "  fix: put a barrier that both threads take part in between the two"
    ),
    "race_on_reuse": (
        "hazards.py:50: a read of a value that an unordered thread writes: s[63]   [SIM_RACE]\n"
        "    %6:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%9:[].fp32.SH)\n"
        "    %8:[].fp32.SH <- Move<<<#3:[1].block, [].thread>>>(%6:[].fp32.RF)\n"
        "  read by thread 0 (warp 0, lane 0) of block (0), hazards.py:50\n"
        "  write by thread 63 (warp 1, lane 31) of block (0), hazards.py:48\n"
        "  fix: put a barrier that both threads take part in between the two"
    ),
    "race_between_lanes": (
        "hazards.py:69: a read of a value that an unordered thread writes: s[31]   [SIM_RACE]\n"
        "    %6:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%9:[].fp32.SH)\n"
        "    %8:[].fp32.SH <- Move<<<#3:[1].block, [].thread>>>(%6:[].fp32.RF)\n"
        "  read by thread 0 (warp 0, lane 0) of block (0), hazards.py:69\n"
        "  write by thread 31 (warp 0, lane 31) of block (0), hazards.py:66\n"
        "  fix: lanes of a warp are not ordered by themselves: put a barrier on their warp between the two"
    ),
    "race_between_blocks": (
        "hazards.py:81: a read of a value that an unordered thread writes: C[0, 0]   [SIM_RACE]\n"
        "    %6:[].fp32.GL <- MatMul<<<[].block, [].thread>>>(%7:[].fp32.GL, %8:[].fp32.GL)\n"
        "  read by thread 0 (warp 0, lane 0) of block (1), hazards.py:81\n"
        "  write by thread 0 (warp 0, lane 0) of block (0), hazards.py:81\n"
        "  fix: blocks run in any order: let each block write its own elements, and no other block read them"
    ),
    "write_conflict": (
        "hazards.py:92: two threads of one instruction write different values to B[0]   [SIM_WRITE_CONFLICT]\n"
        "    %7:[].fp32.GL <- Move<<<#3:[1].block, [].thread>>>(%5:[].fp32.RF)\n"
        "  0 by thread 0 (warp 0, lane 0) of block (0)\n"
        "  1 by thread 1 (warp 0, lane 1) of block (0)\n"
        "  fix: let one of them write, or give each its own element"
    ),
    "undefined_shared": (
        "hazards.py:110: a value that was never written is stored to B[32]   [SIM_UNDEFINED]\n"
        "    %10:[].fp32.GL <- Move<<<#3:[1].block, [].thread>>>(%6:[].fp32.RF)\n"
        "    %6:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%9:[].fp32.SH)\n"
        "  by thread 32 (warp 1, lane 0) of block (0)\n"
        "  it comes from a read of s at hazards.py:109\n"
        "  fix: write it before: gr.init, or a copy that covers the whole tile"
    ),
    "undefined_register": (
        "hazards.py:124: a value that was never written is stored to B[0]   [SIM_UNDEFINED]\n"
        "    %8:[].fp32.GL <- Move<<<#3:[1].block, [].thread>>>(%6:[].fp32.RF)\n"
        "  by thread 0 (warp 0, lane 0) of block (0)\n"
        "  it comes from a register that nothing has written\n"
        "  fix: write it before: gr.init, or a copy that covers the whole tile"
    ),
    "reused_bytes": (
        "hazards.py:144: a value that was never written is stored to B[0]   [SIM_UNDEFINED]\n"
        "    %11:[].fp32.GL <- Move<<<#3:[1].block, [].thread>>>(%7:[].fp32.RF)\n"
        "    %7:[].fp32.RF <- Move<<<#3:[1].block, [].thread>>>(%10:[].fp32.SH)\n"
        "  by thread 0 (warp 0, lane 0) of block (0)\n"
        "  it comes from a read of again at hazards.py:143\n"
        "  fix: write it before: gr.init, or a copy that covers the whole tile"
    ),
    "unwritten_output": (
        "hazards.py:150: output B is not written completely   [SIM_OUTPUT_UNWRITTEN]\n"
        "  unwritten: 32 of 64 elements\n"
        "  the first: B[32]\n"
        "  fix: check the grid and the tiles that cover it, or declare it gr.inout"
    ),
}


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
