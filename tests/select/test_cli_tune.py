"""`python -m graphene tune`, and the code of docs/tuning.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import graphene as gr
from graphene import select
from graphene.cli import main
from graphene.cli.tune import recorded_problems
from graphene.select import records
from graphene.select.device import named
from graphene.select.gemm import GEMM, GemmProblem

ROOT = Path(__file__).parents[2]


def test_ranks_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    assert main(["tune", "1023x1025x1027", "64x64x64", "--arch", "sm_80", "--count", "3"]) == 0
    text = capsys.readouterr().out
    assert "gemm, 1023x1025x1027 TN fp16, on NVIDIA A100: 3 of " in text
    assert "AB padded" in text
    assert "rejected, " in text
    assert main(["tune", "64x64"]) == 2
    assert "sizes are MxNxK" in capsys.readouterr().err
    assert main(["tune", "0x64x64"]) == 2
    assert "sizes are MxNxK" in capsys.readouterr().err
    for arch in ("sm_20", "sm_99"):
        assert main(["tune", "64x64x64", "--arch", arch]) == 1
        assert "[ARCH_UNKNOWN]" in capsys.readouterr().err
    assert main(["tune", "64x64x64", "--arch", "gfx90a"]) == 1
    assert "[TUNE_NO_CANDIDATE]" in capsys.readouterr().err


def test_every_record_of_the_package_can_be_tuned_again_on_another_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_records: Any
) -> None:
    shipped = records.read(records.file_of(records.SHIPPED, "NVIDIA H200"), "NVIDIA H200")
    todo = recorded_problems("NVIDIA H200")
    assert {(t.name, *t.key(p)) for t, p in todo} == {(kernel, *key) for kernel, _, *key in shipped}

    def tune(tunable: Any, problem: Any, device: select.Device, count: int) -> str:
        row = {"kernel": tunable.name, "version": tunable.version, "config": {}}
        dtype, shape = tunable.key(problem)
        records.store(device.name, row | {"dtype": dtype, "shape": shape})
        return f"tuned {problem} on {device.name}"

    monkeypatch.setattr(select, "tune", tune)
    monkeypatch.setattr(select, "current_device", lambda: named("NVIDIA H100 80GB HBM3"))
    again = ["tune", "--like", "NVIDIA H200", "--measure"]
    assert main([*again, "--seconds=-1"]) == 0
    assert f"{len(todo)} of {len(todo)} problems are left" in capsys.readouterr().out
    assert main(again) == 0
    said = capsys.readouterr().out
    assert said.count("tuned ") == len(todo)
    assert "tuned 8192x8192x8192 TN fp16 on NVIDIA H100 80GB HBM3" in said
    assert main([*again, "64x64x64"]) == 0  # the others have records now
    assert capsys.readouterr().out.count("tuned ") == 1

    def fails(*given: Any) -> str:
        raise gr.LaunchError("it does not launch   [LAUNCH_DRIVER]")

    monkeypatch.setattr(select, "tune", fails)
    monkeypatch.setattr(select, "current_device", lambda: named("NVIDIA A100-SXM4-80GB"))
    assert main(again) == 1
    assert capsys.readouterr().err.count("[LAUNCH_DRIVER]") == len(todo)


def test_problems_with_terms_are_ranked_and_found_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terms = ["--bias", "--activation", "gelu", "--residual"]
    assert main(["tune", "512x512x512", "--arch", "sm_90a", "--count", "1", *terms]) == 0
    assert "512x512x512 TN fp16 gelu" in capsys.readouterr().out
    assert main(["tune", "512x512x512", "--activation", "dance"]) == 2
    assert "[KERNEL_ARGUMENT]" in capsys.readouterr().err
    monkeypatch.setattr(records, "SHIPPED", tmp_path)
    given = [GemmProblem(64, 64, 64, activation="gelu_tanh"), GemmProblem(8, 8, 8, 2, residual=True, beta=True),
             GemmProblem(64, 64, 64, dtype="fp8e4m3", b_dtype="fp8e5m2", promote=True, activation="silu")]  # fmt: skip
    for p in given:
        dtype, shape = GEMM.key(p)
        row = {"kernel": "gemm", "version": GEMM.version, "dtype": dtype, "shape": shape, "problem": str(p)}
        records.store("my GPU", row | {"config": {}}, tmp_path)
    records.store("my GPU", row | {"shape": "1 of 64x64x64 TN align 16x16x16 with a function", "config": {}}, tmp_path)
    assert {str(p): p for _, p in recorded_problems("my GPU")} == {str(p): p for p in given}


def test_a_device_without_records_is_told_which_have_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--like", "NVIDIA H20", "--arch", "sm_90a"]) == 2
    assert "no records for 'NVIDIA H20'; it has some for NVIDIA H100 80GB HBM3, NVIDIA H200" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["tune"])
    assert "name a size, or a device by --like" in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_a_list_has_at_least_one_entry(capsys: pytest.CaptureFixture[str], count: str) -> None:
    with pytest.raises(SystemExit) as e:
        main(["tune", "64x64x64", f"--count={count}"])
    assert e.value.code == 2
    assert f"at least 1 is wanted, got {count}" in capsys.readouterr().err


def test_measuring_needs_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(index: int = 0) -> select.Device:
        raise gr.LaunchError("there is no GPU   [LAUNCH_NO_DRIVER]")

    monkeypatch.setattr(select, "current_device", none)
    assert main(["tune", "64x64x64", "--measure"]) == 1
    assert "[LAUNCH_NO_DRIVER]" in capsys.readouterr().err


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/tuning.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "tuning.md", "exec"), {})
    assert "rejected, " in capsys.readouterr().out
