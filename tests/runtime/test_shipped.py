"""Kernels that come compiled with the package: when one is taken, when NVRTC compiles instead, and what is shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import graphene as gr
from graphene import _core, shipped, timings

ARCH = "sm_80"


def kernel(name: str = "shipped") -> Any:
    """A kernel that no process has compiled yet."""
    with gr.Kernel(name) as k:
        gr.blocks(1)
        gr.threads(32)
    return k


@pytest.fixture
def folder(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped kernels with one, which the cache does not have."""
    monkeypatch.setenv("GRAPHENE_SHIPPED", "0")
    made = kernel().compile(ARCH)
    files = _core.cache_read(made.key)
    assert files is not None
    _core.cache_clear()
    out = tmp_path / "compiled"
    out.mkdir()
    shipped.pack(files, out / f"{made.key[:64]}.zip")
    monkeypatch.setattr(shipped, "FOLDER", out)
    monkeypatch.setenv("GRAPHENE_SHIPPED", "1")
    return out


def compiled(name: str = "shipped") -> tuple[Any, bool]:
    """The kernel's binary, and whether NVRTC was needed."""
    with timings.recorded() as stages:
        binary = kernel(name).compile(ARCH)
    return binary, "NVRTC" in {s.name for s in stages}


def test_a_shipped_kernel_is_taken_without_nvrtc_and_is_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, by_nvrtc = compiled()
    assert binary.from_cache
    assert not by_nvrtc
    assert (binary.key, len(_core.cache_keys())) == (_core.cache_keys()[0], 1)
    monkeypatch.setenv("GRAPHENE_SHIPPED", "0")
    assert compiled()[0].from_cache  # it is in the cache now
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "other"))
    own, by_nvrtc = compiled()
    assert by_nvrtc
    for field in ("cubin", "ptx", "registers", "spill_bytes", "shared_bytes", "entry", "arch"):
        assert getattr(binary, field) == getattr(own, field), field
    assert binary.log.startswith(own.log[:100])  # it says how long the compilation took
    assert gr.export_cache(tmp_path / "a.zip") == 1


def test_another_text_is_compiled(folder: Path) -> None:
    assert compiled("other")[1]
    assert not compiled()[1]


def test_nothing_is_taken_where_that_is_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_SHIPPED", "0")
    assert compiled()[1]
    _core.cache_clear()
    monkeypatch.setenv("GRAPHENE_SHIPPED", "1")
    monkeypatch.setenv("GRAPHENE_CACHE", "0")
    assert compiled()[1]


def repacked(file: Path, **changed: bytes) -> None:
    with zipfile.ZipFile(file) as z:
        files = {name: z.read(name) for name in z.namelist()}
    file.unlink()
    shipped.pack(files | {name.replace("_", "."): data for name, data in changed.items()}, file)


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "newer", "not json", "no version"])
def test_a_file_that_does_not_serve_costs_a_compilation(folder: Path, damage: str) -> None:
    [file] = folder.iterdir()
    with zipfile.ZipFile(file) as z:
        info = json.loads(z.read("info.json"))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "foreign":
        repacked(file, kernel_cubin=b"not a cubin")
    elif damage == "newer":  # a driver may not load what it compiled
        repacked(file, info_json=json.dumps(info | {"nvrtc": "99.0"}).encode())
    elif damage == "not json":
        repacked(file, info_json=b"{")
    else:
        repacked(file, info_json=json.dumps(info | {"nvrtc": None}).encode())
    binary, by_nvrtc = compiled()
    assert by_nvrtc
    assert binary.cubin != b"not a cubin"


def test_a_shipped_kernel_serves_where_there_is_no_nvrtc(folder: Path, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
import graphene as gr
from graphene import _core, shipped
shipped.FOLDER = Path({str(folder)!r})
with gr.Kernel("shipped") as k:
    gr.blocks(1)
    gr.threads(32)
print(k.compile("{ARCH}").from_cache)
"""
    env = os.environ | {"GRAPHENE_NVRTC": str(tmp_path / "missing.so"), "GRAPHENE_CACHE_DIR": str(tmp_path / "new"),
                        "PYTHONPATH": str(Path(gr.__file__).parents[1])}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True"], done.stderr


def test_what_is_shipped_are_kernels_without_spills() -> None:
    files = sorted((Path(gr.__file__).parent / "compiled").glob("*.zip"))
    for file in files:
        with zipfile.ZipFile(file) as z:
            assert z.testzip() is None
            info, cubin = json.loads(z.read("info.json")), z.read("kernel.cubin")
        assert len(file.stem) == 64
        assert cubin.startswith(b"\x7fELF")
        assert info["entry"].encode() in cubin
        assert (info["arch"], info["spill_bytes"]) == ("sm_90a", 0), info["entry"]


def test_usual_calls_are_calls() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from graphene.ops.core import warm

    calls = warm.usual()
    assert len(calls) == len(set(calls)) > 50
    for text in calls:
        assert warm.spelled(text).text == text
