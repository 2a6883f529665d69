"""Some of the mistakes planted by hand in products and kernels of rows; ``product_mistakes.py`` tries all of them."""

from __future__ import annotations

import pytest
from product_mistakes import BUILD, MISTAKES, Mistake, path_of, told

from graphene import kernels


@pytest.mark.parametrize("mistake", MISTAKES[3::7], ids=str)
def test_a_planted_mistake_is_told(mistake: Mistake) -> None:
    assert told(mistake)


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if "of fp32" in m.kernel and "norm" in m.kernel], ids=str)
def test_digits_of_a_mean_are_told(mistake: Mistake) -> None:
    """Rows of fp32 far from zero, whose elements differ little, show what the mean's second number is for."""
    assert told(mistake)


@pytest.mark.parametrize("kernel", ["transpose", "softmax", "layernorm, dense", "gemm_reduce", "product of fp32"])
def test_without_a_mistake_there_is_no_alarm(kernel: str) -> None:
    result = BUILD[kernel](kernels).check()
    assert result.ok, str(result)


def test_mistakes_are_planted_in_every_file_and_kernel() -> None:
    assert len(MISTAKES) >= 160
    assert {m.kernel for m in MISTAKES} == set(BUILD)
    for m in MISTAKES:
        assert path_of(m.file).read_text().count(m.before) == 1, str(m)
