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
