"""The disk cache: what is damaged is rebuilt, what two processes write is whole, what cannot be written only warns."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphene import _core


def source(tag: int = 0) -> str:
    return f'extern "C" __global__ void k(int* x) {{ x[threadIdx.x] = {tag}; }}'


def build(tag: int = 0, **kw):
    return _core.compile_source(source(tag), "k", "sm_80", **kw)


def entries(cache_dir: Path) -> list[Path]:
    return sorted((cache_dir / "graphene-v1" / "entries").glob("*/*"))


@given(st.binary(max_size=300))
def test_sha256_is_sha256(data: bytes) -> None:
    assert _core.sha256(data) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("n", [0, 55, 56, 57, 63, 64, 65, 119, 120, 128, 100_000])
def test_sha256_at_block_edges(n: int) -> None:
    assert _core.sha256(b"a" * n) == hashlib.sha256(b"a" * n).hexdigest()


def test_second_time_comes_from_disk_with_the_same_content() -> None:
    a, b = build(), build()
    assert (a.from_cache, b.from_cache) == (False, True)
    for field in ("cubin", "ptx", "log", "registers", "spill_bytes", "shared_bytes", "local_bytes", "nvrtc_version"):
        assert getattr(a, field) == getattr(b, field), field
    assert b.compile_ms == a.compile_ms


def test_every_input_is_in_the_key() -> None:
    build()
    assert _core.is_cached(source(), "k", "sm_80")
    assert not _core.is_cached(source() + " ", "k", "sm_80")
    assert not _core.is_cached(source(), "j", "sm_80")
    assert not _core.is_cached(source(), "k", "sm_86")
    assert not _core.is_cached(source(), "k", "sm_80", [*_core.default_compile_options(), "-G"])
    assert not _core.is_cached(source(), "k", "sm_80", [])
    build(options=["-default-device", "--fmad=true"])
    assert not _core.is_cached(source(), "k", "sm_80", ["-default-device--fmad=true"])


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.ptx", "log.txt", "info.json", "meta.json", "kernel.cu"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove"])
def test_damaged_entry_is_rebuilt(cache_dir: Path, name: str, damage: str) -> None:
    good = build()
    file = entries(cache_dir)[0] / name
    content = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        if damage == "flip":
            content[len(content) // 2] ^= 0x40
        file.write_bytes({"flip": bytes(content), "cut": bytes(content[:-1]), "empty": b""}[damage])
    again = build()
    assert not again.from_cache
    assert again.cubin == good.cubin
    assert build().from_cache


def test_damaged_memory_of_the_library_is_not_believed(cache_dir: Path) -> None:
    code = "from graphene import _core; print(_core.nvrtc_for('sm_80')['version'])"
    version = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    files = list((cache_dir / "graphene-v1" / "nvrtc").iterdir())
    assert files
    for text in ("", "{}", "[1]", '{"stamp": 1}', "nonsense"):
        for f in files:
            f.write_text(text)
        got = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert got == version


def test_bounded_oldest_first(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(0)
    size = _core.cache_stats()["bytes"]
    monkeypatch.setenv("GRAPHENE_CACHE_LIMIT", str(size * 5))
    for tag in range(1, 4):
        build(tag)
    for age, tag in ((400, 0), (300, 1), (200, 2), (100, 3)):
        for e in entries(cache_dir):
            if source(tag) == (e / "kernel.cu").read_text():
                then = time.time() - age
                os.utime(e / "meta.json", (then, then))
    assert build(0).from_cache  # used: the youngest now
    build(4)
    build(5)
    kept = {(e / "kernel.cu").read_text() for e in entries(cache_dir)}
    assert source(0) in kept
    assert source(5) in kept
    assert source(1) not in kept
    stats = _core.cache_stats()
    assert stats["bytes"] <= stats["limit_bytes"] == size * 5


def test_limit_that_is_no_size_warns_and_uses_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, want in (("1K", 1024), ("3MiB", 3 << 20), ("2GB", 2 << 30), ("77", 77)):
        monkeypatch.setenv("GRAPHENE_CACHE_LIMIT", text)
        assert _core.cache_stats()["limit_bytes"] == want
    for text in ("-1", "lots", "1X", "99999999999G"):
        monkeypatch.setenv("GRAPHENE_CACHE_LIMIT", text)
        with pytest.warns(RuntimeWarning, match=f"GRAPHENE_CACHE_LIMIT='{text}' is not a size such as 500M; using 1G"):
            assert _core.cache_stats()["limit_bytes"] == 1 << 30


def test_unwritable_directory_only_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="compiled kernels are not cached: cannot write to .*Not a directory"):
        assert not build().from_cache
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once a process
        assert not build().from_cache
    assert _core.cache_stats()["writable"] is False


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no file system is known that nobody may write to")
@pytest.mark.parametrize("inner", ["cache", "cache/of/mine"])
def test_the_reason_is_that_of_making_the_folder(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", f"/sys/kernel/graphene_{inner}")
    why = r"\((Operation not permitted|Permission denied|Read-only file system)\)"
    with pytest.warns(RuntimeWarning, match=rf"cannot write to /sys/kernel/graphene_{inner} {why}"):
        assert not build().from_cache


def test_read_only_directory_is_still_read(cache_dir: Path) -> None:
    build()
    for path in [cache_dir, *cache_dir.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert build().from_cache
    finally:
        for path in [cache_dir, *cache_dir.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_switched_off(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> None:
    monkeypatch.setenv("GRAPHENE_CACHE", "0")
    build()
    assert not build().from_cache
    assert not entries(cache_dir)
    assert _core.cache_stats()["dir"] is None


def test_default_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRAPHENE_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/someone")
    assert _core.cache_stats()["dir"] == "/home/someone/.cache/graphene"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _core.cache_stats()["dir"] == str(tmp_path / "xdg" / "graphene")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    assert _core.cache_stats()["dir"] is None


def test_clear_counts_and_empties(cache_dir: Path) -> None:
    build(1)
    build(2)
    assert _core.cache_stats()["entries"] == 2
    assert _core.cache_clear() == 2
    assert _core.cache_stats()["entries"] == 0
    assert not build(1).from_cache


WORKER = """
import sys, time
from graphene import _core
go = float(sys.argv[1])
time.sleep(max(0.0, go - time.time()))
for tag in range(4):
    s = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] = %d; }' % tag
    b = _core.compile_source(s, "k", "sm_80")
    assert b.cubin[:4] == b"\\x7fELF" and b.registers > 0
"""


def test_many_processes_write_the_same_entries(cache_dir: Path) -> None:
    build(0)
    go = str(time.time() + 0.6)
    workers = [subprocess.Popen([sys.executable, "-W", "error", "-c", WORKER, go]) for _ in range(4)]
    assert [w.wait(60) for w in workers] == [0] * 4
    assert _core.cache_stats()["entries"] == 4
    assert not list((cache_dir / "graphene-v1" / "tmp").iterdir())
    assert all(build(tag).from_cache for tag in range(4))
