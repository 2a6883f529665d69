"""The tutorial: its notebook runs, prints and draws what the page shows, and its figures are the recorded ones."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import graphene

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/tutorial.md").read_text()


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_it_prints_and_draws_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of a text block is part of what the block before printed; pictures are its values, byte by byte."""
    nbclient = pytest.importorskip("nbclient", reason="pip install 'graphene-ir[test]' brings it")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(Path(graphene.__file__).parents[1]))
    notebook = nbformat.read(ROOT / "examples/tutorial.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    ran = [c for c in notebook.cells if c.cell_type == "code"]
    shown = re.findall(r"```python\n.*?```\n(.*?)(?=```python\n|\Z)", PAGE, re.DOTALL)
    assert len(ran) == len(shown)
    drawn = 0
    for cell, after in zip(ran, shown, strict=True):
        printed = words("".join(o.get("text", "") for o in cell.outputs))
        for block in re.findall(r"```text\n(.*?)```", after, re.DOTALL):
            missing = [line for line in words(block) if not any(line in p for p in printed)]
            assert not missing, "\n".join(printed)
        pictures = [o["data"]["image/svg+xml"] for o in cell.outputs if "image/svg+xml" in o.get("data", {})]
        files = [ROOT / "docs" / f for f in re.findall(r"!\[.*?\]\((.*?)\)", after)]
        for picture, file in zip(pictures, files, strict=True):
            drawn += 1
            if os.environ.get("GRAPHENE_UPDATE_GOLDEN") == "1":
                file.write_text(picture.strip() + "\n")
            assert file.read_text() == picture.strip() + "\n", "run with GRAPHENE_UPDATE_GOLDEN=1"
    assert drawn == 6


def test_its_figures_are_the_recorded_ones() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/tutorial_h200.json").read_text())
    figures = dict(re.findall(r"^\| (?:\[|`)?([\w.]+)(?:\]\(.*?\)|`)? \|.*\| ([\d.]+) TFLOP/s \|$", PAGE, re.MULTILINE))
    names = {"graphene.kernels": "gemm_sm80", "cuBLAS": "torch"}
    assert {names.get(k, k): float(v) for k, v in figures.items()} == {
        k: float(f"{v:.3g}") for k, v in recorded["tflops"].items()
    }
