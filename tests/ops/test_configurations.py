"""Which kernel a call gets after others of its class: sizes that one kernel takes and another refuses, and sizes beyond
what kernels count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cpu_cases import quiet, r  # noqa: E402, F401

from graphene import ops  # noqa: E402
from graphene.ops.core.define import Defined  # noqa: E402
from graphene.ops.softmax import SOFTMAX  # noqa: E402


@pytest.mark.parametrize(
    ("make", "dim"),
    [(lambda n: r(4, n, 1), 1), (lambda n: r(n, 1, 1), 0), (lambda n: r(n, 1), 0), (lambda n: r(n, 1), -2),
     (lambda n: r(4, n, 1, 5)[..., :1], 1), (lambda n: r(4, n), 1), (lambda n: r(n), 0), (lambda n: r(2, n, 3), 1),
     (lambda n: r(2, 4, n)[:, ::2], -1)],
)  # fmt: skip
def test_softmaxes_of_neighbouring_sizes(make: Callable[[int], Any], dim: int) -> None:
    for n in (33, 35, 33, 38, 37):
        x = make(n)
        assert "simulator runs" in ops.explain(ops.softmax, x, dim)
        torch.testing.assert_close(ops.softmax(x, dim).float(), torch.softmax(x.float(), dim), rtol=2e-3, atol=1e-4)


def test_a_kernel_that_refuses_is_replaced_on_cpu() -> None:
    """However coarse the classes are: the extent of the rows is not known here, and each gets a kernel of its own."""
    definition = SOFTMAX.definition
    op = Defined(dataclasses.replace(definition, exact={}, name="softmax_of_coarse_classes"))
    for n in (33, 35, 33, 38):
        x = r(4, n)
        assert "simulator runs" in op.explain(x, 1, None)
        torch.testing.assert_close(op(x, 1, None).float(), torch.softmax(x.float(), 1), rtol=2e-3, atol=1e-4)
    assert op.core.configured == 3


@pytest.mark.parametrize("size", [(2, 2**31), (2**31,), (2**31, 2), (2, 2**31 + 1)])
def test_more_than_kernels_count_is_pytorchs(size: tuple[int, ...]) -> None:
    try:
        x = torch.empty(size, dtype=torch.float16)  # no page of it is touched
    except RuntimeError:
        pytest.skip("so much memory is not promised")
    calls = [(ops.softmax, x, -1), (ops.softmax, x, 0), (ops.gated, x, x)]
    calls += [(f, x, x.shape[-1]) for f in (ops.layer_norm, ops.rms_norm)]
    for f, *args in calls:
        said = ops.explain(f, *args)
        assert "PyTorch's operators (" in said.splitlines()[0]
        assert "copied" not in said
        assert "no kernel for rows of 2^31 elements and more" in said or "[LAUNCH_FACT]" in said


def test_the_default_of_eps_is_the_functions() -> None:
    """It depends on the dtype: the registered operator has none, rather than another one."""
    x = r(4, 16)
    with pytest.raises(RuntimeError, match="eps"):
        torch.ops.graphene.rms_norm(x, [16], None)
    y = torch.ops.graphene.rms_norm(x / 1000, [16], None, 2.0**-23)
    assert torch.equal(y, ops.rms_norm(x / 1000, 16))
