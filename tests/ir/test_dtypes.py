"""What a scalar type is called: the one table, held to NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import graphene as gr
from graphene import _core, dtypes

TYPES = [t for n in dtypes.__all__ if isinstance(t := getattr(dtypes, n), gr.DType)]
IN_BYTES = {gr.i4, gr.u4, gr.fp4e2m1, gr.fp6e2m3, gr.fp6e3m2}  # held in arrays of bytes


@pytest.mark.parametrize("t", TYPES, ids=str)
def test_arrays_of_a_type_have_its_name_and_size(t: gr.DType) -> None:
    assert _core.dtype(t.name) == t
    if t.in_numpy:
        assert np.dtype(t.array_name).itemsize * 8 == max(t.bits, 8)
    torch = pytest.importorskip("torch")
    if hasattr(torch, t.array_name):
        assert dtypes.torch_type(t) is dtypes.torch_type(t.name) is getattr(torch, t.array_name)
        assert dtypes.torch_type(t).itemsize * 8 == max(t.bits, 8)


def test_a_name_of_arrays_leads_back() -> None:
    assert {t for t in TYPES if _core.dtype_of_array(t.array_name) != t} == {
        gr.tf32,
        *IN_BYTES,
    }  # tf32 is stored as fp32
    assert _core.dtype_of_array("float32") == gr.fp32
    assert _core.dtype_of_array("complex64") is None
    assert _core.dtype_of_array("") is None
    assert _core.dtype("mbar").array_name == ""


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90", "sm_100"])
def test_an_architecture_has_one_row(arch: str) -> None:
    row = _core.find_architecture(arch)
    assert row is not None
    assert row.name == arch
    assert row.shared_bytes == _core.shared_limit_bytes(arch) <= row.sm_shared_bytes
    assert _core.find_architecture(arch + "x") is None


def test_an_exact_architecture_has_the_row_of_its_number() -> None:
    assert _core.find_architecture("sm_90a") == _core.find_architecture("sm_90") != _core.find_architecture("sm_100a")
