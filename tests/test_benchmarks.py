"""`python -m benchmarks`: every benchmark is found, keeps its figures with the machine, and can be drawn."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import graphene

ROOT = Path(__file__).parents[1]


def run(*args: str, status: int = 0) -> str:
    """The command from the checkout, with the package that is tested before it on the path."""
    paths = os.pathsep.join([str(Path(graphene.__file__).parents[1]), str(ROOT)])
    env = os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "benchmarks", *args]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def plots() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_plots", ROOT / "benchmarks/plots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_benchmark_ends_at_its_time() -> None:
    """Seven benchmarks kept --seconds, each by a clock of its own."""
    spec = importlib.util.spec_from_file_location("benchmark_figures", ROOT / "benchmarks/figures.py")
    assert spec is not None
    assert spec.loader is not None
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    assert not figures.Deadline(float("inf")).over(1e9)
    assert figures.Deadline(100).left_s > 90
    assert not figures.Deadline(100).over(50)
    assert figures.Deadline(100).over(200)
    assert figures.Deadline(-1).over()


def test_every_benchmark_is_found() -> None:
    names = {p.stem.removesuffix("_bench") for p in ROOT.glob("benchmarks/*_bench.py")}
    assert {"gemm", "norms", "launch", "jit", "tiles", "tutorial"} <= names
    choices = re.search(r"\{([\w,]+)\}", run("--help"))
    assert choices is not None
    assert set(choices[1].split(",")) == names
    assert "usage" in run(status=2)
    run("dance", status=2)
    assert "--arch" in run("jit", "--help")
    if importlib.util.find_spec("torch") is None:
        assert "launch needs a package that is not installed: torch" in run("launch", status=2)


@pytest.mark.parametrize(
    ("name", "one"), [("serving", "grouped"), ("everyday", "top_k"), ("plan", "convolution"), ("compile", "model")]
)
def test_a_problem_that_there_is_not_is_refused(name: str, one: str) -> None:
    pytest.importorskip("torch")
    text = run(name, "--only", f"{one},dance", status=2)
    assert "no dance; there are " in text
    assert one in text.partition("there are")[2]
    assert "some of " in run(name, "--help")


def test_help_needs_no_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # which the program pytest, unlike python -m pytest, does not do
    main = importlib.import_module("benchmarks.__main__").main
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "serving_bench", raising=False)
    monkeypatch.setattr(sys, "argv", [])
    assert main(["serving", "--help"]) == 0
    told = capsys.readouterr()
    assert "[--only int4,entropy]" in told.out
    assert "serving needs a package that is not installed: torch" in told.err
    assert main(["serving"]) == 2


def test_the_problems_of_serving_compute_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, on the simulator: each way's result is PyTorch's, of every configuration that --variants measures."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    serving = importlib.import_module("serving_bench")
    small = {
        "PRODUCTS": ((3, 80, 384),), "EXPERTS": ((150, 64, 72, 3),), "LOGITS": ((66, 1032),), "DEVICE": "cpu",
        "ROWS": ((5, 4104, "fp16"),), "HEADS": ((1, 3, 4, 2, 32),), "captured": lambda call: call,
        "measure": lambda ways, repeats: dict.fromkeys(ways, 1.0),
    }  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(serving, name, value)
    found = {name: list(make()) for name, make in serving.problems(None, variants=True).items()}
    assert {name: len(made) for name, made in found.items()} == {
        "int4": 1, "entropy": 9, "grouped": 3, "log_softmax": 1, "rotary": 1, "fp8": 1,
    }  # fmt: skip
    for name, made in found.items():
        for problem in made:
            figures = serving.one(problem, 1)
            others = {w for w in figures.get("failed", {}) if w != "torch_grouped_mm_bf16"}
            assert not others, (name, problem.size, figures)
            assert set(problem.ways) - {"torch_grouped_mm_bf16"} <= set(figures["us"]), (name, problem.size)
    wrong = found["int4"][0]
    wrong.ways["graphene"] = lambda call=wrong.ways["graphene"]: call() * 2
    with pytest.raises(RuntimeError, match="another result than PyTorch's"):
        serving.one(wrong, 1)


def test_planned_kernels_are_built_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "plan.json"
    run("plan", "--build", "sm_90a", "--only", "convolution,perceptron", "--json", str(file))
    rows = json.loads(file.read_text())["rows"]
    assert {r["table"] for r in rows} == {"convolution", "perceptron"}
    assert all(r["spill_bytes"] == 0 and r["expected_us"] > 0 for r in rows)
    assert "no time left" in run("plan", "--build", "sm_90a", "--only", "rows", "--seconds", "0")


def test_planned_regions_of_a_model_are_built_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    file = tmp_path / "compile.json"
    run("compile", "--build", "sm_90a", "--only", "qwen3-0.6b decode", "--json", str(file))
    rows = json.loads(file.read_text())["rows"]
    assert any(r["region"].startswith("planned  linear2_silu_mul") for r in rows), rows
    assert not [r for r in rows if "failure" in r or r.get("spill_bytes")]


def test_figures_are_kept_with_the_machine_and_drawn(tmp_path: Path) -> None:
    file, picture = tmp_path / "jit.json", tmp_path / "jit.png"
    has = importlib.util.find_spec("matplotlib") is not None
    text = run("jit", "--json", str(file), "--plot", str(picture), "--repeats", "1", status=0 if has else 1)
    figures = json.loads(file.read_text())
    assert figures["benchmark"] == "jit"
    assert figures["nvrtc_ms"] > 0
    assert {"processor", "python", "gpus", "numpy"} <= set(figures["machine"])
    if has:
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert "pip install matplotlib" in text


def test_variants_of_attention_are_right_on_the_simulator(tmp_path: Path) -> None:
    """All kernels of one table, launched with small tensors as the benchmark launches them."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    file = tmp_path / "variants.json"
    assert "left out: nothing" in run("fmha_variants", "--try", "--only", "gradient", "--json", str(file))
    rows = json.loads(file.read_text())["rows"]
    assert {"rows", "keys", "keys, turns", "product 4, 4 stages, persistent"} <= {r["peer"] for r in rows}
    assert all(r["error"] < 2e-3 and r["registers"] > 0 for r in rows)
    assert "left out: gradient" in run("fmha_variants", "--try", "--only", "gradient", "--seconds", "1")
    assert "no dance; there are packed" in run("fmha_variants", "--only", "dance", status=2)


def test_what_is_recorded_can_be_drawn(plots: Any) -> None:
    drawn = {p.stem: plots.charts(json.loads(p.read_text())) for p in (ROOT / "benchmarks/results").glob("*.json")}
    for name in ("launch_h200", "jit_h200", "copy_h200"):
        assert drawn[name], name
    (launch,) = drawn["launch_h200"]
    assert launch.unit == "us"
    assert "graphene" in launch.bars


def test_rows_become_groups_of_bars(plots: Any) -> None:
    rows = [
        {"case": "4096^3", "peer": "graphene", "tflops": 430.0},
        {"case": "4096^3", "peer": "cuBLAS", "tflops": 640.0},
        {"case": "1023", "peer": "graphene", "tflops": 120.0},
        {"case": "1023", "peer": "cuBLAS", "failure": "none"},
    ]
    (chart,) = plots.charts({"benchmark": "gemm", "rows": rows})
    assert chart.unit == "TFLOP/s"
    assert chart.bars == {"4096^3": {"graphene": 430.0, "cuBLAS": 640.0}, "1023": {"graphene": 120.0}}


# The benchmark's way on small sizes: the simulator computes, and nothing is timed.
ON_CPU = """
import sys
import torch
def on_cpu(of):
    return lambda *a, **k: of(*a, **{n: x for n, x in k.items() if n != "device"})
for n in ("empty", "rand", "randn"):
    setattr(torch, n, on_cpu(getattr(torch, n)))
torch.cuda.get_device_name = lambda: "NVIDIA H200"
import gemm_tiles_bench as b
b.has_device, b.compiled, b.L2_BYTES = lambda: True, lambda kernels, arch: {}, 1000
b.in_graphs = lambda calls, count, rounds: {n: [c() for c in of] and 1.0 for n, of in calls.items()}
b.FUSED, b.SHAPES, b.ODD, b.CHAINS = ((136, 144, 72),), (((96, 72, 640), "TN"),), ((33, 35, 67),), (1, 4)
sys.exit(b.main())
"""


def test_tiles_of_products_are_right_and_compared(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = ROOT / "benchmarks/gemm_tiles_bench.py"
    paths = os.pathsep.join([str(Path(graphene.__file__).parents[1]), str(file.parent)])
    command = [sys.executable, "-c", ON_CPU, "--count", "2"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for way in ("plain: cuBLAS", "silu + residual: chosen", "A by shared, 4 rows", "gemm_pad alone"):
        assert f"1.00 us  {way}\n" in done.stdout
    assert not re.search("wrong|spilled", done.stdout)
    listed = run("gemm_tiles", "--list", "--only", "instructions,copies", "--count", "1")
    assert "instructions 12288x3072x768 zeros" in listed
    assert run("gemm_tiles", "--only", "dance", status=2).endswith("epilogues, instructions, shapes, copies\n")
