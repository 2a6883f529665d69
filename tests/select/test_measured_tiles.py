"""What docs/tuning.md says of the tiles measured on an H200 is what their results show."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from graphene import select

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/tiles_h200.json").read_text())
ROWS: list[dict[str, Any]] = RESULTS["rows"]
SWIZZLED = [r for r in ROWS if r["swizzled"]]
DOCS = " ".join((ROOT / "docs/tuning.md").read_text().split())


def said(pattern: str) -> list[float]:
    """The numbers of a sentence."""
    found = re.search(pattern, DOCS)
    assert found is not None, pattern
    return [float(x) for x in found.groups()]


def expected(r: dict[str, Any]) -> float:
    size = RESULTS["size"]
    shape, h200 = select.MatmulShape(size, size, size), select.of_arch("sm_90a")
    tile = select.Tile(*map(int, f"{r['block']}x{r['warp']}".split("x")), RESULTS["stages"])
    assert select.judge(tile, shape, h200) is None, f"{tile} was measured"
    return 2 * size**3 / select.estimate(tile, shape, h200).us / 1e6


def rank_correlation(a: list[float], b: list[float]) -> float:
    ranks = [[sum(y < x for y in v) + sum(y == x for y in v) / 2 for x in v] for v in (a, b)]
    return float(np.corrcoef(ranks)[0, 1])


def test_every_measured_tile_fits_and_the_file_keeps_what_the_model_expects() -> None:
    for r in ROWS:
        assert r["spill_bytes"] == 0
        assert abs(r["expected_tflops"] - expected(r)) < 0.1


def test_how_far_off_the_model_is() -> None:
    off = [expected(r) / r["tflops"] - 1 for r in SWIZZLED]
    assert len(off) == 20
    (rms,) = said(r"in the root mean square `estimate` is (\d+)% off")
    assert round(100 * math.sqrt(sum(x * x for x in off) / len(off))) == rms
    below, above = said(r"from (\d+)% below it to (\d+)% above")
    assert [round(-100 * min(off)), round(100 * max(off))] == [below, above]
    worst = max(SWIZZLED, key=lambda r: expected(r) / r["tflops"])
    assert worst["block"] == "256x128x32"
    assert [round(expected(worst)), round(worst["tflops"])] == said(r"(\d+) TFLOP/s expected, (\d+) measured")


def test_what_conflicts_cost_and_how_the_model_ranks() -> None:
    plain = {(r["experiment"], r["block"], r["warp"]): r for r in ROWS if not r["swizzled"]}
    times = [r["tflops"] / plain[r["experiment"], r["block"], r["warp"]]["tflops"] for r in SWIZZLED]
    assert [round(min(times), 1), round(max(times), 1)] == said(r"every tile is ([\d.]+) to ([\d.]+) times as fast")
    blocks = [r for r in plain.values() if r["experiment"] == "block tiles"]
    conflicts = rank_correlation([-r["conflicts"] for r in blocks], [r["tflops"] for r in blocks])
    assert round(conflicts, 2) == said(r"\(rank correlation ([\d.]+)\)")[0]
    ranked = []
    for experiment in ("block tiles", "warp tiles of 128x128x64"):
        rows = [r for r in SWIZZLED if r["experiment"] == experiment]
        ranked.append(round(rank_correlation([expected(r) for r in rows], [r["tflops"] for r in rows]), 2))
    assert ranked == said(r"the model ranks block tiles with ([\d.]+), warp tiles with ([\d.]+)\.")
