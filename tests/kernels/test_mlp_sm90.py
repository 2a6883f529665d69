"""Perceptrons for Hopper, simulated against float64 with results rounded behind every layer, and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels.epilogues import FORMULAS
from graphene.kernels.mlp import MlpConfig
from graphene.kernels.mlp_sm90 import MlpSm90Config, mlp_sm90
from graphene.select import select_mlp
from graphene.select.device import H200, PORTABLE, Device


def config(widths: tuple[int, ...], **options: Any) -> MlpSm90Config:
    depth = len(widths) - 1
    given = {"rows": 64, "stages": 4, "inputs": 1 if widths[0] <= 64 else 2} | options
    acts = given.pop("acts", ("relu",) * (depth - 1) + (None,))
    biases = given.pop("biases", (True,) * depth)
    return MlpSm90Config(widths, acts, biases, **given)


def run(c: MlpSm90Config, m: int, stride: int | None = None, **options: Any) -> None:
    """Simulates m rows, which start `stride` elements apart, and compares."""
    rng = np.random.default_rng(0)
    weights = [
        (rng.standard_normal((n, k)) * 1.4 / np.sqrt(k)).astype(np.float16)
        for k, n in zip(c.widths, c.widths[1:], strict=False)
    ]
    biases = [rng.standard_normal(n).astype(np.float16) for n in c.widths[1:]]
    x = rng.standard_normal((m, stride or c.widths[0])).astype(np.float16)[:, : c.widths[0]]
    y = np.full((m, c.widths[-1]), np.nan, np.float16)
    mlp_sm90(c).simulate(x, *c.operands(weights, biases), y, **options)
    want = x
    for w, b, has, act in zip(weights, biases, c.biases, c.activations, strict=True):
        sums = want.astype(np.float64) @ w.astype(np.float64).T + (b.astype(np.float64) if has else 0)
        want = FORMULAS[act](sums).astype(np.float16)
    # A sum in fp32 may round the other way, which the next layers see.
    assert np.abs(y.astype(np.float64) - want).max() <= 2**-9 * max(np.abs(want).max(), 0.1)


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("m", [1, 65, 300])
def test_rows(rows: int, m: int) -> None:
    run(config((64, 64, 64, 64, 64), rows=rows), m)


@pytest.mark.parametrize(
    "widths", [(8, 16, 8), (24, 72, 40, 10), (136, 136, 200), (72, 256, 128, 64), (16, 3), (128, 64)]
)
@pytest.mark.parametrize("consumers", [1, 3])
def test_widths(widths: tuple[int, ...], consumers: int) -> None:
    """No multiples of 16 or 64; results of any width, stored by threads or by boxes."""
    align = 16 if widths[-1] % 8 == 0 else 4 if widths[-1] % 2 == 0 else 2
    run(config(widths, consumers=consumers, stages=4, turns=consumers > 1, align=(16, align)), 70)


def test_a_wide_input_arrives_in_pieces() -> None:
    run(config((784, 64, 10), align=(16, 4)), 140)
    run(config((784, 64, 10), align=(16, 4), turns=False, inputs=2, rows=128), 140)


def test_layers_of_different_forms() -> None:
    acts = ("gelu", "tanh", "tanh", "sigmoid", "relu", None)
    run(config((40, 48, 48, 48, 48, 80, 64), acts=acts, biases=(True, False, False, True, True, False)), 70, stride=48)


def test_several_tiles_of_rows_a_block() -> None:
    """The simulator has four multiprocessors: the first block has three tiles here."""
    run(config((64, 32, 32, 64), stages=3), 128 * 8 + 40, seed=1)


@pytest.mark.parametrize(
    ("widths", "options"),
    [
        ((128,) * 21, {"rows": 128, "stages": 7, "inputs": 2}),
        ((128,) * 9, {"rows": 64, "stages": 8, "inputs": 2, "consumers": 1, "turns": False}),
        ((256,) * 5, {"rows": 64, "stages": 5}),
        ((784, 256, 128, 10), {"rows": 64, "stages": 6, "align": (16, 4), "turns": False}),
    ],
)
def test_it_compiles_without_spills(widths: tuple[int, ...], options: dict[str, Any]) -> None:
    """Nor are the products serialised, which is an error."""
    c = config(widths, **options)
    done = mlp_sm90(c).compile("sm_90a")
    assert done.spill_bytes == 0
    assert done.registers == 168 or c.consumers == 1


def test_shared_memory_is_what_is_said() -> None:
    for c in (config((128,) * 3, rows=128, stages=8, inputs=2), config((72, 136, 10), align=(16, 4))):
        used = mlp_sm90(c).lowered("sm_90a").shared_bytes
        assert used <= c.shared_bytes <= used + 1024


def test_it_is_held_to_its_formula() -> None:
    kernel = mlp_sm90(config((24, 32, 32, 64), acts=("relu", "tanh", None), turns=False))
    assert kernel.check(M=70).ok

    def something_else(X: Any, W0: Any, W1: Any, W2: Any, **_: Any) -> Any:
        return X @ W0.T @ W1.T @ W2.T

    error, *_ = kernel.with_promise(something_else).check(M=70).errors
    assert error.code == "CHECK_PROMISE"


def test_every_synchronisation_left_out_is_reported() -> None:
    """But for setmaxnreg, which says how many registers a thread has. A block has two tiles of rows."""
    kernel = mlp_sm90(config((24, 32, 32, 64), rows=128, stages=2))
    rng = np.random.default_rng(0)
    x, *weights = (rng.standard_normal(s).astype(np.float16) for s in ((1032, 24), (32, 24), (32, 32), (64, 32)))
    biases = [[rng.standard_normal(n).astype(np.float16)] for n in (32, 32, 64)]

    def told(sync: Any, m: int) -> bool:
        try:
            kernel.simulate(x[:m], *weights, *biases, np.zeros((m, 64), np.float16), skip=[sync.id])
        except gr.SimulationError:
            return True
        return False

    missed = {s.op for s in kernel.syncs() if not told(s, 200) and not told(s, 1032)}  # one tile, or two of a block
    assert missed == {"setmaxnreg"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (16,), "activations": (), "biases": ()}, "len(widths) does not fit"),
        ({"widths": (16,) * 28}, "len(widths) does not fit"),
        ({"widths": (16, 300, 16)}, "widths[1] does not fit"),
        ({"widths": (16, 200, 16), "rows": 128}, "widths[1] does not fit"),
        ({"widths": (20, 32, 16)}, "widths[0] does not fit"),
        ({"activations": ("relu",)}, "len(activations) does not fit"),
        ({"rows": 32}, "rows does not fit"),
        ({"rows": 128, "consumers": 3}, "rows * consumers does not fit"),
        ({"stages": 1}, "stages does not fit"),
        ({"widths": (72, 32, 16), "inputs": 1}, "inputs does not fit"),
        ({"consumers": 1}, "turns, with one consumer, does not fit"),
        ({"align": (8, 16)}, "align[0] does not fit"),
        (
            {"widths": (16, 256, 256, 16), "rows": 64, "stages": 3},
            "stages, if consumers take turns, does not fit",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    depth = len(options.get("widths", (16, 32, 16))) - 1
    given = {"widths": (16, 32, 16), "activations": ("relu",) * depth, "biases": (True,) * depth} | options
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        mlp_sm90(MlpSm90Config(**given))
    assert f"mlp_sm90: {message}" in str(e.value)


def chosen(rows: int, widths: tuple[int, ...], device: Device = H200, **options: Any) -> Any:
    depth = len(widths) - 1
    return select_mlp(rows, widths, ("relu",) * depth, (True,) * depth, device=device, **options)


def test_it_is_chosen_on_hopper_for_many_rows() -> None:
    many = chosen(65536, (128,) * 21)
    assert isinstance(many, MlpSm90Config)
    assert (many.rows, many.consumers, many.turns) == (128, 2, True)
    assert isinstance(chosen(65536, (784, 256, 128, 10), align=(16, 4)), MlpSm90Config)
    assert isinstance(chosen(128, (128,) * 21), MlpConfig)
    assert isinstance(chosen(65536, (128,) * 21, PORTABLE), MlpConfig)
    assert isinstance(chosen(65536, (128,) * 21, align=(8, 16)), MlpConfig)
    assert isinstance(chosen(65536, (128, 100, 128)), MlpConfig)
    assert isinstance(chosen(65536, (128,) * 21, simulated=True), MlpConfig)
    with_less = chosen(65536, (128,) * 21, replace(H200, shared_bytes=163 << 10))
    assert isinstance(with_less, MlpSm90Config)
    assert with_less.shared_bytes <= 163 << 10


def test_more_layers_than_a_kernel_takes_are_left_to_the_next_one() -> None:
    first = chosen(65536, (128,) * 60 + (10,), align=(16, 4))
    assert (first.depth, first.widths, first.align) == (26, (128,) * 27, (16, 16))
    mlp_sm90(replace(first, rows=64, stages=4, inputs=2)).lowered("sm_90a")
