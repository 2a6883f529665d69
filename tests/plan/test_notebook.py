"""The notebook on planning runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphene as gr

ROOT = Path(__file__).parents[2]


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install 'graphene-ir[test]' brings it")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(Path(gr.__file__).parents[1]))
    notebook = nbformat.read(ROOT / "examples/planner.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
    assert [o for o in outputs if "image/svg+xml" in o.get("data", {})]
    printed = "".join(o.get("text", "") for o in outputs)
    for said in ("near the graph's meaning: True", "kept: True   bank conflicts: 0", "[PLAN_PIN]", "def rms_linear("):
        assert said in printed
