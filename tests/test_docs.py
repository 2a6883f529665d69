"""Generated pages are up to date, links resolve, and the notebook runs."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphene

ROOT = Path(__file__).parents[1]
ENV = os.environ | {"PYTHONPATH": str(Path(graphene.__file__).parents[1])}


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools/generate_docs.py"), "--check"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + "run: python tools/generate_docs.py"


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_files_named_exist(page: Path) -> None:
    text = page.read_text()
    links = [m for m in re.findall(r"\]\(([^)#]+)", text) if "://" not in m]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", ["README.md", "docs/simulator.md", "docs/memory_bound.md"])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    """Its blocks are one program. (docs/language.md and docs/add_an_instruction.md have tests of their own.)"""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    with_torch = importlib.util.find_spec("torch") is not None
    code = "\n".join(b for b in blocks if with_torch or "import torch" not in b)
    (tmp_path / "page.py").write_text(code)
    command = [sys.executable, str(tmp_path / "page.py")]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if page == "docs/simulator.md":
        assert "left out: SIM_RACE" in done.stdout


def test_notebook(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install 'graphene-ir[test]' brings it")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(ROOT / "examples/tour.ipynb", as_version=4)
    os.environ["PYTHONPATH"] = ENV["PYTHONPATH"]
    where = {"metadata": {"path": str(tmp_path)}}  # not the checkout: there `graphene` may have no extension module
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    printed = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
    assert "[SIM_RACE]" in printed
