"""graphene.ops under torch.export: kept and read again, with symbolic sizes; compiled ahead of time by AOTInductor.

Compiling ahead of time takes a C++ compiler ten seconds, so that is done where there is a GPU, or on a CPU by
``python -m tests.ops.test_export``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphene import ops  # noqa: E402
from tests.ops.cpu_cases import quiet, r  # noqa: E402

__all__ = ["quiet"]
ROOT = Path(__file__).parents[2]


class Layer(torch.nn.Module):
    """A decoder layer of most operators. Its input is (batch, 8 tokens, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = (torch.nn.Parameter(1 + r(32) / 8) for _ in range(2))
        self.qkv = torch.nn.Parameter(r(64, 32) / 8)
        self.up, self.gate = (torch.nn.Parameter(r(48, 32) / 8) for _ in range(2))
        self.down = torch.nn.Parameter(r(32, 48) / 8)

    def forward(self, x: Any, padding: Any) -> tuple[Any, Any]:
        qkv = ops.matmul(ops.rms_norm(x, (32,), self.norm), self.qkv.T).unflatten(-1, (4, 16))
        q, k, v = qkv.split((2, 1, 1), dim=2)
        x = x + ops.attention(q, k, v, causal=True, mask=padding).flatten(2)
        y = ops.layer_norm(x, (32,), self.scale, None)
        h = ops.gated(ops.matmul(y, self.gate.T), ops.matmul(y, self.up.T), "silu")
        out = ops.matmul(h, self.down.T, residual=x)
        return out, ops.softmax(out, -1)


def inputs(batch: int, device: str = "cpu") -> tuple[Any, Any]:
    padding = torch.arange(8) < 8 - torch.arange(batch)[:, None] % 5
    return r(batch, 8, 32).to(device), padding.to(device)


def exported(device: str = "cpu", layer: Any = None) -> tuple[Any, Any]:
    layer = (layer or Layer()).to(device).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        return layer, torch.export.export(layer, inputs(3, device), dynamic_shapes=({0: batch}, {0: batch}))


def agree(got: Callable[..., Any], layer: Any, device: str = "cpu") -> None:
    """With batches that were not there when the graph was made."""
    for batch in (1, 3, 7):
        args = inputs(batch, device)
        with torch.no_grad():
            torch.testing.assert_close(got(*args), layer(*args), rtol=0, atol=0)


def test_a_saved_program_holds_the_operators_and_gives_the_same_bits(tmp_path: Path) -> None:
    layer, program = exported()
    torch.export.save(program, tmp_path / "layer.pt2")
    read = torch.export.load(tmp_path / "layer.pt2")
    called = {str(n.target) for n in read.graph.nodes if "graphene" in str(n.target)}
    assert called == {
        f"graphene.{n}_forward.default" for n in ("matmul", "rms_norm", "layer_norm", "gated", "softmax", "attention")
    }
    agree(read.module(), layer)


class Plain(torch.nn.Module):
    """Of PyTorch's operators alone: where its package crashes, ours tells nothing of these operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(r(32, 32) / 8)

    def forward(self, x: Any, padding: Any) -> tuple[Any, Any]:
        y = torch.softmax(x @ self.weight, -1)
        return y, y * padding[..., None]


def ahead_of_time(folder: Path, device: str, layer: Any) -> None:
    layer, program = exported(device, layer)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "layer.pt2"))
    print("packaged", flush=True)
    loaded = torch._inductor.aoti_load_package(package)
    print("loaded", flush=True)
    agree(loaded, layer, device)


def in_a_process(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A crash ends that process alone, after a trace of the functions of C++."""
    crash = folder / "backtrace.so"
    subprocess.run(
        ["g++", "-std=c++20", "-shared", "-fPIC", "-o", crash, ROOT / "tests/native/backtrace.cpp"], check=True
    )
    env = os.environ | {"LD_PRELOAD": str(crash), "TORCHINDUCTOR_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.ops.test_export", *args]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_compiled_ahead_of_time(tmp_path: Path) -> None:
    done = in_a_process(tmp_path, "--device", "cuda")
    if done.returncode < 0 and in_a_process(tmp_path, "--device", "cuda", "--plain").returncode < 0:
        pytest.skip("AOTInductor crashes here with PyTorch's operators alone, too")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_crash_says_where(tmp_path: Path) -> None:
    done = in_a_process(tmp_path, "--crash")
    assert done.returncode == -11
    assert "signal 11, address" in done.stderr
    assert "libffi" in done.stderr


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plain", action="store_true", help="by PyTorch's operators alone")
    parser.add_argument("--crash", action="store_true", help="on purpose")
    options = parser.parse_args()
    if options.crash:
        ctypes.string_at(0)
    warnings.simplefilter("ignore", ops.CpuWarning)
    with tempfile.TemporaryDirectory() as made:
        ahead_of_time(Path(made), options.device, Plain() if options.plain else Layer())
    print("compiled ahead of time, with the same bits")
