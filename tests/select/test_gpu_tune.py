"""On a GPU: tuning finds a configuration that computes the product; precompiled kernels launch without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import graphene as gr
from graphene import select
from graphene.kernels.gemm.whole import run_gemm
from graphene.select import records, select_gemm
from graphene.select.gemm import GEMM, GemmProblem
from graphene.select.rows import ROWS, RowProblem

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_tuned_products_are_right_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_TUNE_DIR", str(tmp_path))
    records.forget()
    p = GemmProblem(511, 512, 513, order="TT", align=(2, 16, 16))
    tuning = select.tune(GEMM, p, count=3, rounds=2, progress=False)
    assert not [m.failure for m in tuning.measured if m.failure]
    device = select.current_device()
    config = select_gemm(511, 512, 513, order="TT", align=(2, 16, 16), device=device.name, sms=device.sm_count)
    a, b = torch.randn(511, 513, device="cuda").half(), torch.randn(513, 512, device="cuda").half()
    c = torch.empty(511, 512, device="cuda").half()
    run_gemm(config, a, b, c)
    assert torch.allclose(c, a @ b, atol=0.1, rtol=1e-2)
    records.forget()


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm", "softmax"])
def test_rows_are_tuned_and_right(kind: str) -> None:
    tuning = select.tune(ROWS, RowProblem(kind, 1000, 1024), count=4, rounds=2, progress=False, keep=False)
    assert not [m.failure for m in tuning.measured if m.failure]


CODE = """
import sys, torch
import graphene as gr
kernel = gr.load_precompiled(sys.argv[1])["gemm_sm80"]
a = torch.randn(257, 128, device="cuda").half()
bias, c = torch.randn(264, device="cuda").half(), torch.empty(257, 264, device="cuda").half()
b = torch.randn(264, 128, device="cuda").half()
kernel(a, b, bias, c)
want = torch.relu((a @ b.T).float() + bias.float())
assert (c.float() - want).abs().max() < 0.1, (c - want).abs().max()
print("ok")
"""


def test_precompiled_kernels_launch_without_nvrtc(tmp_path: Path) -> None:
    from graphene.kernels import gemm_sm80

    arch = select.current_device().arch
    gr.precompile({"gemm_sm80": gemm_sm80(64, 64, 32, 3, warps=(2, 2))}, tmp_path / "k", [arch])
    env = os.environ | {"GRAPHENE_NVRTC": "/nowhere/libnvrtc.so", "GRAPHENE_CACHE": "0"}
    env["PYTHONPATH"] = str(Path(gr.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "k")], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "ok\n", done.stderr
