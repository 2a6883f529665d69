"""Launching, against a stub of the CUDA driver; and what happens where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("c++")
    headers = Path(sysconfig.get_path("include"))
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("the stub needs a C++ compiler and Python's headers")
    out = tmp_path_factory.mktemp("stub") / "stub_cuda.so"
    source = HERE / "stub" / "stub_cuda.cpp"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{headers}"]
    subprocess.run([compiler, *flags, source, "-o", out], check=True)
    return out


def environment(stub: Path | None, **more: str) -> dict[str, str]:
    env = os.environ | more
    if stub:
        env["PYTHONPATH"] += os.pathsep + os.pathsep.join([str(stub.parent), str(HERE / "stub")])
        env["GRAPHENE_CUDA_DRIVER"] = str(stub)
    return env


def test_launcher_cases_with_the_stub(stub_library: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "launching",
        "-rf",
        "-x",
    ]
    cases = [str(HERE / "stub" / name) for name in ("launch_cases.py", "launcher_cases.py", "operator_cases.py")]
    command += [*cases, f"--rootdir={HERE.parents[1]}"]
    done = subprocess.run(
        command, env=environment(stub_library), cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def run(code: str, stub: Path | None = None, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(stub, **env),
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SHOW = """
import graphene as gr
from graphene import _core
try:
    print(_core.driver_info())
except gr.LaunchError as e:
    print(e)
"""


def test_no_driver() -> None:
    text = run(SHOW, GRAPHENE_CUDA_DRIVER="/nowhere/libcuda.so.1")
    assert text.startswith("the CUDA driver cannot be loaded   [LAUNCH_NO_DRIVER]\n  loader: /nowhere/libcuda.so.1: ")
    assert "fix: install the NVIDIA driver (a container needs --gpus all), or pass CPU tensors or NumPy arrays" in text


def test_driver_that_does_not_initialise(stub_library: Path) -> None:
    text = run(SHOW, stub_library, STUB_CUDA_INIT="100")
    assert text.startswith("the CUDA driver does not work   [LAUNCH_NO_DRIVER]\n  cuInit: CUDA_ERROR_NO_DEVICE\n")


def test_library_that_is_no_driver() -> None:
    code = "import graphene._core as c; print(c.__file__)"
    text = run(SHOW, GRAPHENE_CUDA_DRIVER=run(code).strip())
    assert text.startswith("the CUDA driver lacks a function   [LAUNCH_NO_DRIVER]")
