"""Steps of recurrent networks in one kernel, simulated: against float64, rounded once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels.epilogues import FORMULAS
from graphene.kernels.recurrent import CellConfig, meaning, recurrent_cell
from graphene.select import select_cell
from graphene.select.device import PORTABLE


def run(c: CellConfig, m: int, n: int, i: int, j: int | None = None, seed: int = 0, large: float = 1) -> None:
    """Simulates m rows, n hidden units, i inputs (so large), j states (n by default), and compares."""
    g, j, rng = c.gates, n if j is None else j, np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float16)

    inputs = [normal(m, i, scale=large), normal(m, j)] + ([normal(m, n)] if g == 4 else [])
    weights = [normal(g * n, i, scale=1 / np.sqrt(i + j)), normal(g * n, j, scale=1 / np.sqrt(i + j))]
    biases = [normal(g * n) for _ in range(c.biases)]
    out = [np.full((m, n), np.nan, np.float16) for _ in range(2 if g == 4 else 1)]
    recurrent_cell(c).simulate(*inputs, *weights, *biases, *out)
    x, h, *rest = (t.astype(np.float64) for t in (*inputs, *weights, *biases))
    if g == 4:
        cell, w, u, *b = rest
        made = meaning(c, x, h, w, u, cell, *b)
        wanted = (made["H_new"], made["C_new"])
    else:
        w, u, *b = rest
        wanted = (FORMULAS[c.activation](x @ w.T + h @ u.T + sum(b)),)
    for got, want in zip(out, wanted, strict=True):
        assert (np.abs(got - want) <= 0.51 * 2**-10 * np.abs(want) + 1e-5).all()


CELL: dict[str, Any] = {"tile": (32, 32, 32), "warps": (2, 1), "activation": "tanh"}
LSTM: dict[str, Any] = {"gates": 4, "biases": 2, "tile": (16, 16, 32), "warps": (1, 1)}


@pytest.mark.parametrize("kind", [CELL, LSTM])
@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize(("i", "j"), [(8, 8), (32, 32), (40, 200), (200, 40), (72, 104)])
def test_products_of_any_length(kind: dict[str, Any], stages: int, i: int, j: int) -> None:
    """Fewer tiles of the first product than there are stages, as many, more."""
    run(CellConfig(stages=stages, **kind), 20, 24, i, j)


@pytest.mark.parametrize("kind", [CELL, LSTM])
@pytest.mark.parametrize("size", [1, 2, 7, 15, 16, 17, 31, 33, 65])
def test_sizes_around_tiles(kind: dict[str, Any], size: int) -> None:
    run(CellConfig(align=(16, 2, 16, 2, 2), **kind), 18, size, 16)  # hidden units
    run(CellConfig(align=(2, 16, 2, 16, 16), **kind), 18, 24, size)  # inputs
    run(CellConfig(**kind), size, 24, 16)  # batch


@pytest.mark.parametrize("kind", [CELL, LSTM])
@pytest.mark.parametrize("align", [(16,) * 5, (8,) * 5, (4,) * 5, (2,) * 5, (16, 8, 4, 2, 4), (2, 4, 16, 8, 2)])
def test_alignments(kind: dict[str, Any], align: tuple[int, int, int, int, int]) -> None:
    run(CellConfig(align=align, **kind), 35, 40, 72)


@pytest.mark.parametrize("activation", [None, "relu", "tanh", "sigmoid", "gelu"])
@pytest.mark.parametrize("biases", [0, 1, 2])
def test_simple_cells(activation: str | None, biases: int) -> None:
    run(CellConfig(**CELL | {"activation": activation, "biases": biases, "group": 2}), 70, 40, 24)


@pytest.mark.parametrize("large", [0, 1e-4, 1e-2, 0.3, 30, 1000, 10000])
def test_gates_of_any_size(large: float) -> None:
    """Where tanh is its series, where a sigmoid is 0, 1 or about to overflow."""
    with np.errstate(over="ignore"):
        run(CellConfig(**LSTM | {"biases": 0 if large < 1 else 2}), 18, 24, 16, large=large)


def test_without_biases_and_with_one() -> None:
    run(CellConfig(**LSTM | {"biases": 0}), 18, 24, 16)
    run(CellConfig(**LSTM | {"biases": 1, "group": 2, "tile": (32, 16, 32), "warps": (2, 1)}), 70, 40, 16)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_selected(seed: int) -> None:
    r = random.Random(seed)
    gates = r.choice([1, 4])
    c = select_cell(
        r.choice([1, 64, 300, 5000]),
        r.choice([64, 1024]),
        gates=gates,
        activation="relu",
        biases=1,
        align=(2,) * 5,
        device=replace(PORTABLE, shared_bytes=163 * 1024),
    )
    run(c, r.randint(1, 40), r.randint(1, 70), r.randint(1, 100))


@pytest.mark.parametrize("shared", [64, 99, 163, 227])
@pytest.mark.parametrize("gates", [1, 4])
def test_what_is_selected_fits_into_shared_memory(gates: int, shared: int) -> None:
    for m, n in ((1, 64), (64, 512), (256, 1024), (512, 1024), (4096, 1024)):
        c = select_cell(m, n, gates=gates, device=replace(PORTABLE, shared_bytes=shared * 1024), biases=2)
        assert recurrent_cell(c).lowered("sm_90a").shared_bytes <= shared * 1024


@pytest.mark.parametrize("gates", [1, 4])
def test_it_is_held_to_its_formula(gates: int) -> None:
    kind = CELL if gates == 1 else LSTM
    kernel = recurrent_cell(CellConfig(**kind))
    assert kernel.check(M=17, N=24, I=40, J=48).ok

    def another_cell(X: Any, H: Any, W: Any, U: Any, **rest: Any) -> Any:
        if gates == 1:
            return np.tanh(X @ W.T + H @ U.T)  # the bias is missing
        made = meaning(CellConfig(**kind), X, H, W, U, **{n: rest[n] for n in ("C", "b0", "b1")})
        return {"H_new": made["C_new"], "C_new": made["H_new"]}

    error, *_ = kernel.with_promise(another_cell).check(M=17, N=24, I=40, J=48).errors
    assert error.code == "CHECK_PROMISE"


def test_a_function_is_part_of_the_formula() -> None:
    kernel = recurrent_cell(CellConfig(**CELL | {"activation": lambda x: gr.where(x > 0, x, 0.25 * x)}))
    assert kernel.check(M=17, N=24, I=40, J=48).ok


def test_the_formula_is_what_pytorch_computes() -> None:
    torch = pytest.importorskip("torch")
    cell = torch.nn.LSTMCell(5, 7, dtype=torch.float64)
    x, h, c = (torch.randn(3, n, dtype=torch.float64) for n in (5, 7, 7))
    given = [t.detach().numpy() for t in (x, h, cell.weight_ih, cell.weight_hh, c, cell.bias_ih, cell.bias_hh)]
    made = meaning(CellConfig(**LSTM), *given)
    for got, want in zip((made["H_new"], made["C_new"]), cell(x, (h, c)), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gates": 3}, "gates does not fit"),
        ({"tile": (24, 32, 32)}, "tile[0] does not fit"),
        ({"tile": (32, 24, 32)}, "tile[1] does not fit"),
        ({"tile": (32, 32, 16)}, "tile[2] does not fit"),
        ({"stages": 1}, "stages does not fit"),
        ({"biases": 3}, "biases does not fit"),
        ({"dtype": "fp32"}, "dtype does not fit"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        recurrent_cell(CellConfig(**CELL | options))
    assert f"recurrent_cell: {message}" in str(e.value)
