"""docs/huggingface.md and the notebook run; what the page says of the recorded figures is true."""

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


def test_no_recorded_network_is_slower_than_sdpa() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/hf_h200.json").read_text())["rows"]
    ms = {(r["case"], r["table"], r["peer"]): r["ms"] for r in recorded}
    rows = {(case, table) for case, table, _ in ms}
    assert len(rows) >= 14
    for row in rows:
        assert ms[(*row, "accelerated")] < ms[(*row, "sdpa")], row


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
