"""Row kernels as a tunable: every width has tiles that fit and compute what they should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphene import tune
from graphene.tune.rows import ROWS, RowProblem

PROBLEMS = st.builds(
    RowProblem,
    st.sampled_from(["layernorm", "rmsnorm", "softmax"]),
    st.integers(1, 100000),
    st.integers(1, 65536),
    st.sampled_from(["fp16", "bf16", "fp32"]),
    st.sampled_from([16, 8, 4]),
)


@settings(max_examples=30, deadline=None)
@given(PROBLEMS, st.sampled_from(["sm_80", "sm_86", "sm_90a"]))
def test_every_width_has_a_tile(p: RowProblem, arch: str) -> None:
    device = tune.of_arch(arch)
    for tile, us, _ in tune.rank(ROWS, p, device, 4).short_list:
        assert us > 0
        assert tile.width == p.width
        assert p.width % tile.vector == 0
        assert tile.keep != "shared" or p.row_bytes < device.shared_bytes
        assert ROWS.from_json(ROWS.to_json(tile)) == tile


@pytest.mark.parametrize(
    "p", [RowProblem("layernorm", 3, 72), RowProblem("softmax", 5, 33), RowProblem("rmsnorm", 2, 2056)], ids=str
)
def test_what_is_chosen_is_right(p: RowProblem) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((p.rows, p.width)).astype(np.float16)
    g, b = (rng.standard_normal(p.width).astype(np.float16) for _ in range(2))
    y, wide = np.zeros_like(x), x.astype(np.float64)
    kernel = ROWS.build(tune.rank(ROWS, p, tune.of_arch("sm_90a"), 1).best, p)
    if p.kind == "softmax":
        kernel(x, y)
        want = np.exp(wide - wide.max(1, keepdims=True))
        want /= want.sum(1, keepdims=True)
    elif p.kind == "rmsnorm":
        kernel(x, g, y, 1e-5)
        want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * g
    else:
        kernel(x, g, b, y, 1e-5)
        want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * g + b
    assert np.abs(y - want).max() < 4e-3 * np.abs(want).max()
