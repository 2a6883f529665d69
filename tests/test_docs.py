"""Generated pages are up to date, links resolve, and the notebook runs."""

import ast
import importlib
import importlib.util
import inspect
import json
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


def test_the_readme_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert [p.name for p in (ROOT / "docs").glob("*.md") if f"](docs/{p.name})" not in text] == []


NAMED = re.compile(r"`((?:csrc|graphene|tests|docs|examples|benchmarks|tools)/[\w./*-]*)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_and_folders_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    assert [name for name in NAMED.findall(text) if not list(ROOT.glob(name))] == []
    alone = {name for name in re.findall(r"`(\w+\.(?:py|cpp|h))`", text) if not next(ROOT.glob(f"**/{name}"), None)}
    assert alone <= {"mine.py", "model.py"}


def test_the_table_of_operators_has_each_with_its_arguments() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    ops = importlib.import_module("graphene.ops")
    page = (ROOT / "docs/operators.md").read_text()
    for name in set(ops.__all__) - {"CpuWarning", "explain"}:
        said = re.search(rf"`{name}\((.*?)\)`", page)
        assert said is not None, f"docs/operators.md lacks a line for {name}"
        arguments = [a.split("=")[0] for a in said[1].split(", ") if a != "*"]
        if "..." not in arguments:
            assert arguments == list(inspect.signature(getattr(ops, name)).parameters), name


def blocks_of(page: str) -> tuple[list[str], list[str]]:
    """A page's blocks of code: those of its program, and lines quoted from kernels, all of which these have."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    quoted = [b for b in blocks if all(line in KERNELS for line in code_lines(b))]
    return [b for b in blocks if b not in quoted], quoted


def code_lines(text: str) -> set[str]:
    """Without comments and indentation."""
    return {line for t in text.splitlines() if (line := re.sub(r"\s*#.*", "", t).strip())}


KERNELS = {line for f in (ROOT / "graphene/kernels").rglob("*.py") for line in code_lines(f.read_text())}
PROGRAMS = ["README.md", "docs/simulator.md", "docs/memory_bound.md", "docs/attention.md", "docs/fused.md",
            "docs/operators.md", "docs/planner.md", "docs/everyday.md", "docs/model_layers.md", "docs/index.md",
            "docs/tuning.md"]  # fmt: skip


def without_torch(blocks: list[str]) -> list[str]:
    """The blocks that need neither torch nor what others compute with it, and the imports of the others."""
    lost, kept = {"torch", "ops"}, []
    for block in blocks:
        tree = ast.parse(block)
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
        imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
        imported = {(a.asname or a.name).split(".")[0] for i in imports for a in i.names}
        makes = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        makes |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
        if lost & ({n.id for n in names if isinstance(n.ctx, ast.Load)} | imported) or "ops." in block:
            kept += [text for i in imports if not re.search(r"\b(torch|ops)\b", text := ast.unparse(i))]
            lost |= makes
        else:
            kept.append(block)
            lost -= makes
    return kept


def test_without_torch_a_page_keeps_what_does_not_need_it() -> None:
    blocks = ["import torch\nimport numpy as np\nx = torch.zeros(3)", "y = x + 1", "z = np.zeros(3)", "print(y, z)"]
    assert without_torch(blocks) == ["import numpy as np", "z = np.zeros(3)"]
    assert without_torch(["a = 1", "from graphene import ops", "b = ops.softmax(a)", "print(a)"]) == [
        "a = 1",
        "print(a)",
    ]


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    """Its blocks are one program, or quoted. (docs/language.md, add_an_instruction.md and huggingface.md have tests of
    their own.)"""
    blocks, quoted = blocks_of(page)
    assert len(quoted) == {"docs/attention.md": 4, "docs/fused.md": 1}.get(page, 0)
    with_torch = importlib.util.find_spec("torch") is not None
    (tmp_path / "page.py").write_text("\n".join(blocks if with_torch else without_torch(blocks)))
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


def test_tables_of_figures_are_those_of_the_files() -> None:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = "<!-- figures lstm_h200: LSTM cell / torch.nn.LSTMCell -->\nold\n<!-- end -->\n"
    once = tables.filled(page)
    assert "old" not in once
    assert tables.filled(once) == once
    rows = json.loads((ROOT / "benchmarks/results/lstm_h200.json").read_text())["rows"]
    us = {r["peer"]: r["us"] for r in rows if (r["table"], r["case"]) == ("LSTM cell", "64x512x512")}
    line = next(x for x in once.splitlines() if x.startswith("| 64x512x512 |"))
    assert line.split(" | ")[1] == f"{us['graphene']:.1f}"
    assert line.endswith(f" {us['torch.nn.LSTMCell'] / us['graphene']:.2f} x |")
    for wrong in ("LSTM / torch.nn.LSTMCell", "LSTM cell / cuDNN", "LSTM cell / torch.compile of=ours"):
        with pytest.raises(KeyError):
            tables.filled(f"<!-- figures lstm_h200: {wrong} -->\n<!-- end -->\n")
