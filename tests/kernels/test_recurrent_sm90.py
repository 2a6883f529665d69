"""Steps of recurrent networks for Hopper, simulated against float64, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spills import spilled

import graphene as gr
from graphene.kernels.epilogues import FORMULAS
from graphene.kernels.recurrent import meaning
from graphene.kernels.recurrent_sm90 import CellSm90Config, cell_sm90
from graphene.select import select_cell
from graphene.select.device import H200, PORTABLE, Device


def run(c: CellSm90Config, m: int, n: int, i: int, j: int, **options: Any) -> None:
    """Simulates m rows, n hidden units, i inputs, j states, and compares."""
    g, rng = c.gates, np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float16)

    inputs = [normal(m, i), normal(m, j)] + ([normal(m, n)] if g == 4 else [])
    weights = [normal(g * n, k, scale=1 / np.sqrt(i + j)) for k in (i, j)]
    biases = [normal(g * n) for _ in range(c.biases)]
    out = [np.full((m, n), np.nan, np.float16) for _ in range(2 if g == 4 else 1)]
    cell_sm90(c).simulate(*inputs, *weights, *biases, *out, **options)
    given = [t.astype(np.float64) for t in (*inputs, *weights, *biases)]
    if g == 4:
        x, h, cell, w, u, *b = given
        made = meaning(c, x, h, w, u, cell, *b)
        wanted = (made["H_new"], made["C_new"])
    else:
        x, h, w, u, *b = given
        wanted = (FORMULAS[c.activation](x @ w.T + h @ u.T + sum(b)),)
    for got, want in zip(out, wanted, strict=True):
        assert (np.abs(got - want) <= 0.51 * 2**-10 * np.abs(want) + 3e-5).all()


LSTM: dict[str, Any] = {"gates": 4, "biases": 2}
DIVIDED: dict[str, Any] = {"turns": False}
ALONE: dict[str, Any] = {"turns": False, "consumers": 1}


@pytest.mark.parametrize("way", [{}, DIVIDED, ALONE])
@pytest.mark.parametrize(("kind", "units"), [({"biases": 0}, 64), (LSTM, 16), (LSTM, 32)])
def test_cells(kind: dict[str, Any], units: int, way: dict[str, Any]) -> None:
    """Products of different lengths, a ragged last row of tiles, several tiles a block, few stages."""
    run(CellSm90Config(tile=(128 if way == DIVIDED else 64, units), stages=2, group=2, **kind, **way), 330, 96, 136, 40)


def test_units_that_fill_no_tile() -> None:
    run(CellSm90Config(1, "tanh", tile=(64, 128), stages=3), 70, 136, 8, 72)


@pytest.mark.parametrize(
    "options",
    [
        {"tile": (128, 128), "stages": 6},
        {"tile": (256, 128), "stages": 4, "turns": False},
        {"tile": (128, 32), "stages": 5, **LSTM},
        {"tile": (128, 64), "stages": 3, "turns": False, **LSTM},
        {"tile": (64, 32), "stages": 6, **ALONE, **LSTM},
    ],
)
def test_it_compiles_without_spills(options: dict[str, Any]) -> None:
    """Nor are the products serialised, which is an error."""
    c = CellSm90Config(**options)
    kernel = cell_sm90(c)
    assert spilled(kernel, "sm_90a", before_13_5=8) == 0
    assert kernel.lowered("sm_90a").shared_bytes <= c.shared_bytes <= kernel.lowered("sm_90a").shared_bytes + 1024


def test_it_is_held_to_its_formula() -> None:
    kernel = cell_sm90(CellSm90Config(tile=(64, 16), stages=2, **ALONE, **LSTM))
    assert kernel.check(M=70, N=16, I=72, J=8).ok


@pytest.mark.parametrize(("options", "units"), [({"tile": (64, 64)}, 64), ({"tile": (64, 16), **LSTM}, 16)])
def test_every_synchronisation_left_out_is_reported(options: dict[str, Any], units: int) -> None:
    """But for those that say how many registers a thread has, and when the next kernel may start."""
    mutants = cell_sm90(CellSm90Config(stages=2, **options)).mutants(M=64 * 9, N=units, I=72, J=8)
    assert len(mutants) > 30
    missed = {str(m).split(": ")[1].split("(")[0] for m in mutants if m.hazard is None}
    assert missed == {"setmaxnreg", "start_kernels"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gates": 3}, "gates does not fit"),
        ({"dtype": "fp32"}, "dtype does not fit"),
        ({"biases": 3}, "biases does not fit"),
        ({"tile": (32, 64)}, "tile[0] does not fit"),
        ({"tile": (64, 64), "turns": False}, "tile[0] does not fit"),
        ({"tile": (64, 32)}, "gates * tile[1] does not fit"),
        ({"tile": (256, 64)}, "rows of a consumer does not fit"),
        ({"tile": (128, 256)}, "rows of a consumer * gates * tile[1] does not fit"),
        ({"consumers": 1}, "turns, with one consumer, does not fit"),
        ({"stages": 1}, "stages does not fit"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        cell_sm90(CellSm90Config(**options))
    assert f"cell_sm90: {message}" in str(e.value)


def test_it_is_chosen_on_hopper_for_many_rows() -> None:
    """A second consumer only where there are more tiles than multiprocessors."""

    def chosen(m: int, n: int, gates: int, device: Device = H200, **options: Any) -> Any:
        c = select_cell(m, n, gates=gates, biases=gates // 2, device=device, **options)
        return (c.tile, c.consumers, c.turns) if isinstance(c, CellSm90Config) else None

    assert chosen(2048, 2048, 1) == ((256, 128), 2, False)
    assert chosen(2048, 1024, 1) == ((128, 128), 2, False)
    assert chosen(512, 4096, 1) == ((128, 128), 2, False)
    assert chosen(2048, 1024, 4) == ((128, 32), 2, True)
    assert chosen(256, 1024, 4) == ((64, 32), 1, False)
    assert chosen(63, 512, 4) is None
    assert chosen(2048, 1000, 4) is None  # the units fill no tiles
    assert chosen(2048, 2048, 1, PORTABLE) is None
    assert chosen(2048, 2048, 1, align=(16, 16, 8, 16, 16)) is None
    assert chosen(2048, 2048, 1, simulated=True) is None
