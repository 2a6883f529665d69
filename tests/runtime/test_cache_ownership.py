"""The cache touches nothing that is not its own, and believes nothing that somebody else may have written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from graphene import _core

OWN = "graphene-v1"


SOURCE = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] = %d; }'


def build(tag: int = 0) -> _core.Binary:
    return _core.compile_source(SOURCE % tag, "k", "sm_80")


def entry(cache_dir: Path) -> Path:
    return next((cache_dir / OWN / "entries").glob("*/*"))


def old(path: Path) -> None:
    then = time.time() - 7200
    os.utime(path, (then, then), follow_symlinks=False)


def foreign_tree(root: Path) -> dict[Path, str]:
    """Somebody's files where a cache might keep its own."""
    key = "a" * 64 + "-" + "b" * 16
    names = ["tmp/thesis.txt", "tmp/1-2-3", "nvrtc/notes.json", f"v1/aa/{key}/kernel.cubin", "v1/ab/cd/x", "tune/x.txt"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for path in [*root.rglob("*")]:
        old(path)
    return {root / n: n for n in names}


def test_what_others_keep_in_the_folder_stays(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = foreign_tree(cache_dir)
    build(0)
    monkeypatch.setenv("GRAPHENE_CACHE_LIMIT", "1")  # everything of the cache's own goes
    build(1)
    _core.cache_clear()
    assert {p: p.read_text() for p in files} == files


def test_a_folder_of_the_same_name_is_not_taken(cache_dir: Path) -> None:
    shutil.rmtree(cache_dir / OWN, ignore_errors=True)
    files = foreign_tree(cache_dir / OWN)
    with pytest.warns(RuntimeWarning, match=r"graphene-v1 holds files but no GRAPHENE_CACHE: it is not Graphene's"):
        assert not build().from_cache
    assert _core.cache_clear() == 0
    assert {p: p.read_text() for p in files} == files
    assert not (cache_dir / OWN / "GRAPHENE_CACHE").exists()


def test_files_among_its_own_stay(cache_dir: Path) -> None:
    build()
    files = {
        cache_dir / OWN / "tmp" / "thesis.txt": "a",
        cache_dir / OWN / "nvrtc" / "notes.txt": "b",
        cache_dir / OWN / "entries" / "zz" / "x": "c",
        entry(cache_dir) / "thesis.txt": "d",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        old(path)
    _core.cache_clear()
    assert {p: p.read_text() for p in files} == files


@pytest.mark.parametrize("place", ["", "entries", "tmp", "nvrtc", "entries/aa"])
def test_links_are_not_followed(cache_dir: Path, tmp_path: Path, place: str) -> None:
    build()
    elsewhere = tmp_path / "elsewhere"
    files = foreign_tree(elsewhere / ("aa" if place == "entries/aa" else ""))
    key = "aa" + "0" * 62 + "-" + "0" * 16
    (elsewhere / key).mkdir()
    for name in ("meta.json", "kernel.cubin"):
        (elsewhere / key / name).write_text("precious")
        files[elsewhere / key / name] = "precious"
    link = cache_dir / OWN / place
    if link.is_dir():
        link.rename(tmp_path / "moved")
    link.symlink_to(elsewhere, target_is_directory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build(1)
        _core.cache_clear()
    assert {p: p.read_text() for p in files} == files


def test_a_file_that_is_a_link_is_damage(cache_dir: Path, tmp_path: Path) -> None:
    good = build()
    target = tmp_path / "target"
    cubin = entry(cache_dir) / "kernel.cubin"
    shutil.move(cubin, target)
    cubin.symlink_to(target)
    again = build()
    assert not again.from_cache
    assert again.cubin == good.cubin == target.read_bytes()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with open(path, "r+b") as f:
        f.truncate(1 << 40)


def meta(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        m = path.parent / "meta.json"
        m.write_text(json.dumps(json.loads(m.read_text()) | changes))

    return change


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a pipe": fifo,
    "a huge file": sparse,
    "a pipe for meta.json": lambda p: fifo(p.parent / "meta.json"),
    "a huge meta.json": lambda p: sparse(p.parent / "meta.json"),
    "a schema of another type": meta(schema="1"),
    "a key of another type": meta(key=["k"]),
    "files of another type": meta(files=[1]),
    "sums of another type": meta(files={"kernel.cubin": 5}),
    "a file elsewhere": meta(files={"../../../../x": "0" * 64}),
    "meta.json of another type": lambda p: (p.parent / "meta.json").write_text("[1]") and None,
    "meta.json too deep": lambda p: (p.parent / "meta.json").write_text("[" * 500_000) and None,
    "meta.json not of UTF-8": lambda p: (p.parent / "meta.json").write_bytes(b'{"schema": "\xff\xfe"}') and None,
    "a cubin only root may read": lambda p: p.chmod(0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_built_again(cache_dir: Path, damage: str) -> None:
    good = build()
    DAMAGE[damage](entry(cache_dir) / "kernel.cubin")
    again = build()
    assert again.cubin == good.cubin
    assert build().from_cache


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("place", ["", OWN])
def test_what_another_user_owns_is_not_trusted(cache_dir: Path, place: str) -> None:
    build()
    os.chown(cache_dir / place, 12345, -1)
    with pytest.warns(RuntimeWarning, match=r"not cached: .* belongs to another user \(12345\)"):
        assert not build().from_cache
    assert _core.cache_stats()["writable"] is False
    assert _core.cache_clear() == 0
    assert entry(cache_dir).is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_entry_of_another_user_is_not_read(cache_dir: Path) -> None:
    build()
    os.chown(entry(cache_dir) / "kernel.cubin", 12345, -1)
    with pytest.warns(RuntimeWarning, match="the damaged cache entry .* cannot be removed"):
        assert not build().from_cache


@pytest.mark.parametrize("place", ["", OWN])
def test_what_everybody_can_write_is_not_trusted(cache_dir: Path, place: str) -> None:
    build()
    (cache_dir / place).chmod(0o777)
    with pytest.warns(RuntimeWarning, match="not cached: .* can be written to by everybody; set GRAPHENE_CACHE_DIR"):
        assert not build().from_cache
    assert entry(cache_dir).is_dir()


def test_a_sticky_folder_as_tmp_is_may_hold_the_cache(cache_dir: Path) -> None:
    cache_dir.mkdir(exist_ok=True)
    cache_dir.chmod(0o1777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build()
        assert build().from_cache


def test_nobody_else_can_write_to_it_whatever_the_mask(cache_dir: Path) -> None:
    before = os.umask(0)
    try:
        build()
    finally:
        os.umask(before)
    assert build().from_cache
    assert [p for p in [cache_dir, *cache_dir.rglob("*")] if p.stat().st_mode & 0o022] == []


def test_clearing_beside_stores_loses_no_store(cache_dir: Path) -> None:
    """A store that is under way while the cache is cleared is neither torn nor said to have failed."""
    code = f"""
from graphene import _core
import sys
for i in range(8):
    _core.compile_source({SOURCE!r} % (i + int(sys.argv[1])), "k", "sm_80")
"""
    build()
    workers = [subprocess.Popen([sys.executable, "-W", "error", "-c", code, str(100 * n)]) for n in range(2)]
    while any(w.poll() is None for w in workers):
        _core.cache_clear()
        time.sleep(0.001)
    assert [w.returncode for w in workers] == [0, 0]
    assert not list((cache_dir / OWN / "tmp").iterdir())


def test_a_full_disk_costs_a_warning(cache_dir: Path) -> None:
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
from graphene import _core
assert _core.compile_source({SOURCE!r} % 0, "k", "sm_80").registers > 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "compiled kernels are not cached: cannot write to" in done.stderr
    assert "File too large" in done.stderr
    assert not list((cache_dir / OWN / "tmp").iterdir())


def test_folders_of_any_bytes(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe caf\xe9"
    code = f"""
import warnings
warnings.simplefilter("error")
from graphene import _core
from graphene.cli import main
build = lambda: _core.compile_source({SOURCE!r} % 0, "k", "sm_80").from_cache
assert [build(), build()] == [False, True]
print(ascii(_core.cache_stats()["dir"]), _core.nvrtc_for("sm_80")["version"])
assert main(["cache"]) == 0 and main(["doctor"]) == 0
"""
    env = os.environ | {"GRAPHENE_CACHE_DIR": os.fsdecode(folder), "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\\udcff" in done.stdout
