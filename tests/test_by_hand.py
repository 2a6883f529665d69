"""Kernels by hand for sm_90a compile without spills; the rule of wgmma gives the bits that a card gave."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from graphene import _core

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def compiled(source: str) -> Any:
    try:
        return _core.compile_source(source, "k", "sm_90a", "by_hand")
    except Exception as e:
        if getattr(e, "code", "") in ("COMPILE_ARCH", "COMPILE_NVRTC"):
            pytest.skip("no NVRTC for sm_90a")
        raise


@pytest.mark.parametrize("options", [{"D": 128, "lazy": 8}, {"D": 64, "causal": True}, {"D": 64, "consumers": 3}])
def test_attention_fits_its_registers(options: dict[str, Any]) -> None:
    c = import_module("by_hand.attention_sm90").Attention(**options)
    assert c.places()["end"] <= 232448
    assert compiled(c.source()).spill_bytes == 0


def test_products_fit_their_registers() -> None:
    gemm = import_module("by_hand.gemm_sm90")
    tried = dict.fromkeys(c for m in (8192, 1024, 128, 16) for c in gemm.tried(m, 4096, 4096))
    assert all(c.shared_bytes <= gemm.SHARED_BYTES for c in tried)
    for c in list(tried)[::6]:
        assert compiled(c.source()).spill_bytes == 0, c


def test_probes_compile() -> None:
    barriers = import_module("by_hand.barriers_sm90")
    for source in (barriers.one_arrival(), barriers.PLAIN_ARRIVAL):
        assert compiled(source).spill_bytes == 0


def test_the_rule_of_wgmma_gives_measured_bits() -> None:
    rounding = import_module("by_hand.rounding_sm90")
    [file] = sorted((BENCHMARKS / "results").glob("hopper_h200.json"))
    rows = [r for r in json.loads(file.read_text())["rows"] if r["table"] == "rounding"]
    assert {r["case"] for r in rows} == {str(p) for p in rounding.PRODUCTS}
    for r in rows:
        assert r["right"] == r["of"] > 0
        assert r["A from registers alike"] == r["kinds"]
        assert r["samples"]
        for a, b, c, result in r["samples"]:
            assert rounding.rule(rounding.Product(*r["types"]), a, b, c) == result, r["case"]
