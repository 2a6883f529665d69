"""Some of the mistakes planted by hand in products and kernels of rows; ``product_mistakes.py`` tries all of them."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from product_mistakes import BUILD, MISTAKES, Mistake, path_of, told

import graphene as gr
from graphene import kernels
from graphene.judge.verdict import hold


@pytest.mark.parametrize("mistake", MISTAKES[3::7], ids=str)
def test_a_planted_mistake_is_told(mistake: Mistake) -> None:
    assert told(mistake)


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if "of fp32" in m.kernel and "norm" in m.kernel], ids=str)
def test_digits_of_a_mean_are_told(mistake: Mistake) -> None:
    """Rows of fp32 far from zero, whose elements differ little, show what the mean's second number is for."""
    assert told(mistake)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("excess[:] = (added - total) - part", "excess[:] = (added - total) - part"),
        ("            part[:] = part - excess * more\n", ""),
        ("excess[:] = (added - total) - part", "excess[:] = 0 * part"),
    ],
)
def test_what_rounding_takes_from_long_columns_is_told(before: str, after: str) -> None:
    """Every part of a column is less than half a digit of the sum so far; no check chooses columns as long as that."""

    def build(_: object) -> gr.Kernel:
        module = importlib.import_module("graphene.kernels.rows.softmax")
        kernel: gr.Kernel = module.softmax_columns_kernel(module.SoftmaxColumnsConfig(gr.fp32, rows=4))
        return kernel

    kernel = Mistake("rows.softmax", before, after, "columns").build({"columns": build})
    x = np.full((1, 1281, 2), -18.8, np.float32)  # eight powers of it are a little less than 2^-24
    x[:, :4] = 0
    broken = hold(kernel, {"X": x, "Y": np.zeros_like(x)})
    assert bool(broken) == (before != after)


@pytest.mark.parametrize("kernel", ["transpose", "softmax", "layernorm, dense", "gemm_reduce", "product of fp32"])
def test_without_a_mistake_there_is_no_alarm(kernel: str) -> None:
    result = BUILD[kernel](kernels).check()
    assert result.ok, str(result)


def test_mistakes_are_planted_in_every_file_and_kernel() -> None:
    assert len(MISTAKES) >= 160
    assert {m.kernel for m in MISTAKES} == set(BUILD)
    for m in MISTAKES:
        assert path_of(m.file).read_text().count(m.before) == 1, str(m)
