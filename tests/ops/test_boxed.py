"""The C++ kernels behind PyTorch's dispatcher, on CPU tensors against a stub of the CUDA driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import graphene

pytest.importorskip("torch", reason="torch is not installed")
HERE = Path(__file__).parent
STUB = HERE.parent / "runtime" / "stub"


def test_boxed_cases_with_the_stub(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    headers = Path(sysconfig.get_path("include"))
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("the stub needs a C++ compiler and Python's headers")
    library = tmp_path / "stub_cuda.so"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{headers}"]
    subprocess.run([compiler, *flags, STUB / "stub_cuda.cpp", "-o", library], check=True)
    paths = [
        str(Path(graphene.__file__).parents[1]),
        str(tmp_path),
        str(STUB),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    env = os.environ | {
        "GRAPHENE_CUDA_DRIVER": str(library), "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1",
        "GRAPHENE_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "launching"]
    command += ["-rf", "-x", str(STUB / "boxed_cases.py"), f"--rootdir={HERE.parents[1]}"]
    done = subprocess.run(command, env=env, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
