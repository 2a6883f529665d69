"""The happens-before engine against a dense reference: one clock per thread and the full history of every element."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def compiled(name: str, sources: list[str], folder: Path) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = [
        *(f"csrc/sim/{s}.cpp" for s in ("budget", "clocks", *sources)),
        "csrc/base/diag.cpp",
        f"tests/native/{name}.cpp",
    ]
    command = [compiler, "-std=c++20", "-O2", "-I", "csrc", *sources, "-o", str(folder / name)]
    subprocess.run(command, check=True, cwd=ROOT)
    return folder / name


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("happens_before_fuzz", ["shadow", "shadow_atomic"], tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equal_to_the_dense_reference_on_random_traces(fuzzer: Path, seed: int) -> None:
    run = subprocess.run([str(fuzzer), "15000", str(seed)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    counts = dict(zip(run.stdout.split()[::2], map(int, run.stdout.split()[1::2]), strict=True))
    assert counts["traces"] == 15000
    assert counts["mismatches"] == 0
    assert counts["races"] > 50_000  # the traces do race


def test_rules_of_mbarriers_report_every_mistake_in_any_order_of_threads(tmp_path: Path) -> None:
    rules = compiled("barrier_rules", ["phases", "shadow", "shadow_atomic", "shadow_bulk"], tmp_path)
    run = subprocess.run([str(rules), "300"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    protocol, *mistakes = run.stdout.splitlines()
    assert protocol.endswith("clean: 300")
    assert len(mistakes) == 12
