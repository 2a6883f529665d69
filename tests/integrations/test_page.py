"""docs/huggingface.md and the notebook run; the page's figures are the recorded ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import graphene

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/huggingface.md"


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    (tmp_path / "page.py").write_text(code)
    env = os.environ | {"PYTHONPATH": str(Path(graphene.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "page.py")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "BertOutput: LayerNorm(a + b)" in done.stdout


PEERS = ("eager", "sdpa", "compiled", "graphene", "accelerated")


def test_its_figures_are_the_recorded_ones() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/hf_h200.json").read_text())["rows"]
    ms = {(r["case"], r["table"], r["peer"]): r["ms"] for r in recorded}
    want = {}
    for name, table in {(n, t) for n, t, _ in ms}:
        t = {p: ms[name, table, p] for p in PEERS if (name, table, p) in ms}
        cells = [f"{t[p]:.2f}" if p in t else "-" for p in PEERS]
        want[name, table] = [*cells, *(f"{t[p] / t['accelerated']:.2f}" for p in ("eager", "sdpa"))]
        assert t["accelerated"] < t["sdpa"]
    lines = re.findall(r"^\| ([\w-]+), (full|padded) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {(n, t): cells.split(" | ") for n, t, cells in lines} == want


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install 'graphene-ir[test]' brings it")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(Path(graphene.__file__).parents[1]))
    notebook = nbformat.read(ROOT / "examples/hugging_face.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where).execute()
    printed = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
    assert "the same tokens: True" in printed
    assert "padded rows are zero: True" in printed
    assert "bit by bit as before: True" in printed
