"""Some of the mistakes planted by hand in kernels for Hopper, and all of what synchronises some of these kernels."""

from __future__ import annotations

import pytest
from hopper_mistakes import BUILD, MISTAKES, UNNEEDED, silent_synchronisation
from product_mistakes import Mistake, path_of, told

from graphene import kernels


@pytest.mark.parametrize("mistake", MISTAKES[4::9], ids=str)
def test_a_planted_mistake_is_told(mistake: Mistake) -> None:
    assert told(mistake, BUILD)


@pytest.mark.parametrize(
    ("kernel", "after"), [("mlp, boxes", "pending=buffers"), ("mlp, one piece", "pending=buffers - 1")]
)
def test_a_block_gets_a_second_tile(kernel: str, after: str) -> None:
    """It needs more tiles than there are multiprocessors."""
    (mistake,) = (m for m in MISTAKES if (m.kernel, m.after) == (kernel, after))
    assert told(mistake, BUILD) == "SIM_RACE"


def test_columns_that_fill_up_a_tile_are_told() -> None:
    """0 * infinity in them is not a number; it shows where the input alone has infinities, which a sigmoid ends."""
    (mistake,) = (m for m in MISTAKES if m.kernel == "mlp, filled up")
    assert told(mistake, BUILD)


@pytest.mark.parametrize("kernel", ["turns", "shared rows, cluster", "bias", "lstm", "mlp"])
def test_all_that_synchronises_is_needed(kernel: str) -> None:
    silent = [m for m in silent_synchronisation(kernel) if not m.startswith(UNNEEDED)]
    # Of a product's two fences, the loop's is the assembler's: registers are ordered before it.
    assert [m.partition("(")[0] for m in silent] == ["fence"] * (kernel in ("turns", "shared rows, cluster", "bias"))


def test_without_a_mistake_there_is_no_alarm() -> None:
    result = BUILD["few rows"](kernels).check()
    assert result.ok, str(result)


def test_mistakes_are_planted_in_every_file_and_kernel() -> None:
    assert len(MISTAKES) >= 80
    assert {m.kernel for m in MISTAKES} | {"mlp, deep"} == set(BUILD)
    for m in MISTAKES:
        assert path_of(m.file).read_text().count(m.before) == 1, str(m)
