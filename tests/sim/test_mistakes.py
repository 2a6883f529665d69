"""Mistakes that were planted by hand are told by ``check()``, and the kernels without them raise no alarm."""

from __future__ import annotations

from collections.abc import Callable

import mistakes
import pytest

import graphene as gr

PLANTED = [(f, wrong) for f, every in mistakes.MISTAKES.items() for wrong in every]


@pytest.mark.parametrize("kernel", mistakes.MISTAKES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_that_keeps_its_promise_raises_no_alarm(kernel: Callable[..., gr.Kernel], seed: int) -> None:
    result = kernel().check(seed=seed)
    assert result, str(result)
    assert result.worst is not None
    assert result.worst.error <= 1


@pytest.mark.parametrize(("kernel", "wrong"), PLANTED, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_a_mistake_is_told(kernel: Callable[..., gr.Kernel], wrong: str) -> None:
    result = kernel(wrong).check()
    assert not result, f"{kernel.__name__}: {wrong}"
    assert result.errors[0].code in ("CHECK_PROMISE", "SIM_OUTPUT_UNWRITTEN"), str(result)


def test_there_are_many_kinds_of_mistakes() -> None:
    assert len(PLANTED) >= 35
