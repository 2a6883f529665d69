"""Perceptrons in one kernel, simulated: against float64 with results rounded to fp16 behind every layer."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels.epilogues import FORMULAS
from graphene.kernels.mlp import MlpConfig, mlp_kernel, runs_of
from graphene.kernels.traced import trace
from graphene.select import select_mlp
from graphene.select.device import PORTABLE


def tensors(c: MlpConfig, seed: int) -> tuple[list[Any], list[Any]]:
    """Weights, and biases or None, of every layer."""
    rng = np.random.default_rng(seed)
    shapes = list(zip(c.widths[1:], c.widths, strict=False))
    weights = [(rng.standard_normal((n, k)) * 1.4 / np.sqrt(k)).astype(np.float16) for n, k in shapes]
    given = [rng.standard_normal(n).astype(np.float16) for n, _ in shapes]
    return weights, [b if has else None for b, has in zip(given, c.biases, strict=True)]


def run(c: MlpConfig, m: int, formulas: dict[Any, Any] | None = None, stride: int | None = None, seed: int = 0) -> None:
    """Simulates m rows, which start `stride` elements apart, and compares."""
    weights, biases = tensors(c, seed)
    k, n = c.widths[0], c.widths[-1]
    memory = np.random.default_rng(seed + 1).standard_normal((m, stride or k)).astype(np.float16)
    x, y = memory[:, :k], np.full((m, n), np.nan, np.float16)
    mlp_kernel(c).simulate(x, *c.operands(weights, biases), y)
    want = x
    for w, b, act in zip(weights, biases, c.activations, strict=True):
        sums = want.astype(np.float64) @ w.astype(np.float64).T + (0 if b is None else b.astype(np.float64))
        want = (formulas or FORMULAS)[act](sums).astype(np.float16)
    assert y.shape == want.shape
    if m:  # a sum in fp32 may round the other way, which the next layers see
        assert np.abs(y.astype(np.float64) - want).max() <= 2**-9 * max(np.abs(want).max(), 0.1)


def config(widths: tuple[int, ...], **options: Any) -> MlpConfig:
    depth = len(widths) - 1
    given = {"rows": 16, "warps": 2, "chunk": 32, "stages": 3} | options
    acts = given.pop("acts", ("relu",) * (depth - 1) + (None,))
    biases = given.pop("biases", (True,) * depth)
    return MlpConfig(widths, acts, biases, **given)


@pytest.mark.parametrize("width", [16, 17, 24, 31, 32, 40, 64, 96, 100, 128, 200, 256])
def test_hidden_widths(width: int) -> None:
    run(config((width,) * 3), 18)
    run(config((20, width, 7)), 18)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 15, 16, 33, 129, 257, 300])
def test_widths_of_input_and_result(width: int) -> None:
    run(config((width, 32, 16)), 17)
    run(config((16, 32, width)), 17)
    run(config((width, 48)), 17)


@pytest.mark.parametrize("m", [0, 1, 7, 15, 16, 17, 31, 32, 33, 64, 65, 100])
def test_rows(m: int) -> None:
    run(config((24, 32, 32, 10)), m)
    run(config((24, 32, 32, 10), rows=32), m)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(("chunk", "stages"), [(64, 2), (32, 3), (16, 6), (32, 9)])
def test_layers_of_one_form(depth: int, chunk: int, stages: int) -> None:
    """More layers than stages and fewer; tiles of several layers and of a part of one."""
    run(config((48,) * (depth + 1), chunk=chunk, stages=stages), 20)


def test_every_layer_has_a_form_of_its_own() -> None:
    acts = ("gelu", "tanh", "sigmoid", "silu", "gelu_tanh", None, "relu")
    run(config((20, 48, 48, 48, 16, 80, 80, 5), acts=acts, biases=(True, False, True, True, False, False, True)), 35)
    run(config((32,) * 8, acts=acts, biases=(False, True, True, False, False, True, True), stages=5), 35)


@pytest.mark.parametrize("across", [2, 4])
def test_warps_divide_columns(across: int) -> None:
    """Results pass through shared memory: any depth, form, rows."""
    for widths in ((64, 64), (64,) * 5, (20, 100, 40, 40, 40, 9), (300, 48, 200, 300), (7, 256, 256, 33)):
        run(config(widths, across=across, columns=128), 37)
        run(config(widths, across=across, columns=128, rows=32, warps=1, stages=2), 37)
    run(config((40, 40, 40, 40), across=across, chunk=16, stages=6, warps=1, acts=("tanh", "gelu", None)), 70)


@pytest.mark.parametrize("resident", [None, 32])
@pytest.mark.parametrize("columns", [16, 64])
def test_wide_sides_are_cut(resident: int | None, columns: int) -> None:
    run(config((100, 48, 150), resident=resident, columns=columns), 35)
    run(config((100, 48, 48, 48, 150), resident=resident, columns=columns, chunk=16, stages=5), 35)


@pytest.mark.parametrize(("k", "stride", "align"), [(32, 40, 16), (32, 36, 8), (32, 34, 4), (32, 33, 2), (30, 32, 4)])
def test_rows_at_any_stride(k: int, stride: int, align: int) -> None:
    run(config((k, 32, 8), align=(align, 16)), 20, stride=stride)
    run(config((k, 32, 8), align=(align, 16), resident=16), 20, stride=stride)


def test_a_function_of_registers() -> None:
    """One that is infinite at 0, where rows of weights are missing that fill up a tile."""

    def act(x: Any) -> Any:
        return gr.rsqrt(gr.abs(x))

    run(
        config((20, 33, 20, 6), acts=(act, act, None)),
        20,
        {trace(act): lambda x: 1 / np.sqrt(np.abs(x)), None: lambda x: x},
    )


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_selected(seed: int) -> None:
    r = random.Random(seed)
    widths = tuple(r.choice([r.randint(1, 70), 16, 32, 48, 64, 200]) for _ in range(r.randint(2, 6)))
    acts = tuple(r.choice(["relu", "tanh", None]) for _ in widths[1:])
    biases = tuple(r.random() < 0.7 for _ in widths[1:])
    rows = r.choice([100, 3000, 6000, 10000, 20000])  # what it is selected for
    c = select_mlp(rows, widths, acts, biases, device=replace(PORTABLE, shared_bytes=163 * 1024))
    assert c is not None
    run(c, r.randint(1, 40), seed=seed)


@pytest.mark.parametrize("width", [40, 128, 200, 256])
@pytest.mark.parametrize("shared", [64, 227])
def test_what_is_selected_fits_into_shared_memory(width: int, shared: int) -> None:
    for rows in (1, 3000, 6000, 10**6):
        for ends in ((700, 900), (20, 5)):
            widths = (ends[0], width, ends[1])
            c = select_mlp(
                rows, widths, ("relu",) * 2, (True,) * 2, device=replace(PORTABLE, shared_bytes=shared * 1024)
            )
            assert c is not None
            shared_of = mlp_kernel(c).lowered("sm_90a").shared_bytes
            assert shared_of <= shared * 1024


def test_a_product_is_no_perceptron() -> None:
    assert select_mlp(10, (700, 900), ("relu",), (True,)) is None


def test_it_is_held_to_its_formula() -> None:
    kernel = mlp_kernel(config((24, 32, 32, 10), acts=("relu", "tanh", None)))
    assert kernel.check(M=20).ok

    def something_else(X: Any, W0: Any, W1: Any, W2: Any) -> Any:
        return X @ W0[0].T @ W1[0].T @ W2[0].T

    error, *_ = kernel.with_promise(something_else).check(M=20).errors
    assert error.code == "CHECK_PROMISE"


def test_a_function_is_part_of_the_formula() -> None:
    """The whole kernel is checked with one, too; another one is another formula."""

    def act(factor: float) -> Any:
        return lambda x: gr.max(x, 0) * gr.max(x, 0) * factor

    kernel, other = (mlp_kernel(config((24, 32, 10), acts=(act(f), "relu"))) for f in (0.5, 0.75))
    assert kernel.check(M=20).ok
    assert other.promise is not None
    wrong = kernel.with_promise(other.promise.means)
    assert {e.code for e in wrong.check(M=20).errors} == {"CHECK_PROMISE"}


def test_columns_that_fill_up_a_tile_are_zeros() -> None:
    """Where a layer's results are infinite, too: 0 * infinity of the columns behind the last one was everywhere."""
    kernel = mlp_kernel(config((16, 20, 20, 8), acts=("relu", "sigmoid", None)))
    x, y = np.full((2, 16), 200, np.float16), np.zeros((2, 8), np.float16)
    weights = [np.full(s, v, np.float16) for s, v in (((20, 16), 200), ((20, 20), -1), ((8, 20), 1))]
    biases = [np.zeros(n, np.float16) for n in (20, 20, 8)]
    given: dict[str, list[Any]] = {}
    for i, r in enumerate(runs_of(config((16, 20, 20, 8), acts=("relu", "sigmoid", None)))):
        at = slice(r.first, r.first + r.layers)
        given |= {f"W{i}": weights[at]} | ({f"b{i}": biases[at]} if r.bias else {})
    kernel.simulate(X=x, Y=y, **given)
    assert (y == 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (16,), "activations": (), "biases": ()}, "len(widths) does not fit"),
        ({"widths": (16, 300, 16)}, "widths[1] does not fit"),
        ({"widths": (16, 200, 16), "rows": 32}, "widths[1] does not fit"),
        ({"widths": (16, 0, 16)}, "widths[1] does not fit"),
        ({"activations": ("relu",)}, "len(activations) does not fit"),
        ({"biases": (True,)}, "len(biases) does not fit"),
        ({"rows": 24}, "rows does not fit"),
        ({"chunk": 8}, "chunk does not fit"),
        ({"stages": 1}, "stages does not fit"),
        ({"dtype": "fp32"}, "dtype does not fit"),
        ({"widths": (600, 600), "activations": (None,), "biases": (True,)}, "one layer that is wide on both sides"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"widths": (16, 32, 16), "activations": ("relu", None), "biases": (True, True)} | options
    with pytest.raises(gr.VerifyError, match="KERNEL_ARGUMENT") as e:
        mlp_kernel(MlpConfig(**given))
    assert f"mlp_kernel: {message}" in str(e.value)
