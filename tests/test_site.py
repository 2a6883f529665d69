"""The documentation site builds without a warning: links and anchors lead somewhere, every page is in the index."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphene

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install 'graphene-ir[docs]' brings it")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_reference_needs_no_pytorch() -> None:
    """`pip install '.[docs]'` brings none, and the names on the pages are the same with it and without."""
    names = (
        "import sys; sys.path.insert(0, 'tools'); from api_pages import api_pages; print(sorted(api_pages().items()))"
    )
    without = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    said = [
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        for code in (without + names, names)
    ]
    assert [s.returncode for s in said] == [0, 0], said[0].stderr
    assert said[0].stdout == said[1].stdout
    assert "::: graphene.ops.matmul" in said[0].stdout


def test_every_public_name_has_its_entry(site: Path) -> None:
    pages = "".join(p.read_text() for p in (site / "api").rglob("index.html"))
    shown = set(re.findall(r'id="graphene\.([\w.]+)"', pages))
    assert set(graphene.__all__) <= shown
    assert {"kernels.gemm_sm80", "ops.matmul", "nn.FusedMLP", "select.rank", "check.CheckResult"} <= shown


def test_the_table_of_instructions_is_filtered(site: Path) -> None:
    page = (site / "atoms/index.html").read_text()
    assert 'class="gr-table" data-choose="kind,arch"' in page
    assert "assets/filter.js" in page
    heads = re.findall(r"<th>(\w+)</th>", page)
    assert heads[:6] == ["family", "kind", "does", "arch", "threads", "operands"]


def test_the_search_finds_the_pages(site: Path) -> None:
    index = (site / "search/search_index.json").read_text()
    for word in ("bank conflicts", "SIM_RACE", "graphene.ops.matmul", "rounding point"):
        assert word in index, word
