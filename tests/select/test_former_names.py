"""Names that moved can still be imported from where they were."""

from __future__ import annotations

import importlib

import pytest

import graphene as gr
from graphene import kernels, select

CHOICES = (
    "run_elementwise", "select_backward", "select_backward_saving", "select_elementwise", "select_forward",
    "select_gemm", "select_norm", "select_norm_backward", "select_norm_columns", "select_reduction", "select_short",
    "select_softmax", "select_softmax_columns", "select_transpose",
)  # fmt: skip
TUNING = (
    "Device", "Estimate", "MatmulShape", "Measured", "Rejected", "Runnable", "Selection", "Tile", "Timer", "Tunable",
    "Tuning", "choose", "current_device", "estimate", "judge", "matmul_tiles", "of_arch", "rank", "thesis_block_tiles",
    "thesis_warp_tiles", "tune",
)  # fmt: skip


def test_choices_of_kernels_and_all_of_tune() -> None:
    assert all(getattr(kernels, n) is getattr(select, n) for n in CHOICES)
    assert all(getattr(gr.tune, n) is getattr(select, n) for n in TUNING)  # type: ignore[attr-defined]
    assert importlib.import_module("graphene.tune.gemm").GEMM is importlib.import_module("graphene.select.gemm").GEMM
    assert importlib.import_module("graphene.tune.rows").ROWS is importlib.import_module("graphene.select.rows").ROWS


def test_a_name_that_never_was_is_none() -> None:
    for name in ("select_nothing", "choose_gemm"):
        with pytest.raises(AttributeError, match=name):
            getattr(kernels, name)
