"""The happens-before engine against a dense reference: one clock per thread and the full history of every element."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both programs; what they share is compiled once, as one file."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("native")
    shared = [
        "base/diag",
        *(f"sim/{s}" for s in ("budget", "clocks", "phases", "shadow", "shadow_atomic", "shadow_bulk")),
    ]
    together = folder / "shared.cpp"
    together.write_text("".join(f'#include "{name}.cpp"\n' for name in shared))
    command = [compiler, "-std=c++20", "-O2", "-I", str(ROOT / "csrc")]
    subprocess.run([*command, "-c", str(together), "-o", str(folder / "shared.o")], check=True)
    for name in ("happens_before_fuzz", "barrier_rules"):
        source = ROOT / "tests" / "native" / f"{name}.cpp"
        subprocess.run([*command, str(source), str(folder / "shared.o"), "-o", str(folder / name)], check=True)
    return folder


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equal_to_the_dense_reference_on_random_traces(programs: Path, seed: int) -> None:
    run = subprocess.run(
        [str(programs / "happens_before_fuzz"), "15000", str(seed)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout
    counts = dict(zip(run.stdout.split()[::2], map(int, run.stdout.split()[1::2]), strict=True))
    assert counts["traces"] == 15000
    assert counts["mismatches"] == 0
    assert counts["races"] > 50_000  # the traces do race


def test_rules_of_mbarriers_report_every_mistake_in_any_order_of_threads(programs: Path) -> None:
    run = subprocess.run([str(programs / "barrier_rules"), "300"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    protocol, *mistakes = run.stdout.splitlines()
    assert protocol.endswith("clean: 300")
    assert len(mistakes) == 12
