"""The happens-before engine against a dense reference: one clock per thread and the full history of every element."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    out = tmp_path_factory.mktemp("native") / "happens_before_fuzz"
    sources = [
        "csrc/base/diag.cpp",
        "csrc/sim/budget.cpp",
        "csrc/sim/clocks.cpp",
        "csrc/sim/shadow.cpp",
        "csrc/sim/shadow_atomic.cpp",
        "tests/native/happens_before_fuzz.cpp",
    ]
    command = [
        compiler,
        "-std=c++20",
        "-O2",
        "-I",
        str(ROOT / "csrc"),
        *(str(ROOT / s) for s in sources),
        "-o",
        str(out),
    ]
    subprocess.run(command, check=True)
    return out


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equal_to_the_dense_reference_on_random_traces(fuzzer: Path, seed: int) -> None:
    run = subprocess.run([str(fuzzer), "15000", str(seed)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    counts = dict(zip(run.stdout.split()[::2], map(int, run.stdout.split()[1::2]), strict=True))
    assert counts["traces"] == 15000
    assert counts["mismatches"] == 0
    assert counts["races"] > 50_000  # the traces do race
