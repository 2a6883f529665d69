"""Archives of the cache: what one machine compiled serves another, and no archive can do more than that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import graphene as gr
from graphene import _core


def build(tag: int = 0, arch: str = "sm_80"):
    return _core.compile_source(f'extern "C" __global__ void k(int* x) {{ x[threadIdx.x] = {tag}; }}', "k", arch)


INDEX = "graphene-cache.json"
Files = dict[str, bytes]


def unpack(archive: Path) -> Files:
    with zipfile.ZipFile(archive) as z:
        return {n: z.read(n) for n in z.namelist()}


def pack(archive: Path, files: Files, *more: tuple[str, bytes]) -> None:
    with zipfile.ZipFile(archive, "w") as z:
        for name, data in [*files.items(), *more]:
            z.writestr(name, data)


@pytest.fixture(scope="module")
def exported() -> list[bytes]:
    return []


@pytest.fixture
def archive(tmp_path: Path, exported: list[bytes]) -> Path:
    """Two entries, which are in the cache too; compiled once for all tests."""
    path = tmp_path / "a.zip"
    if exported:
        path.write_bytes(exported[0])
        assert gr.import_cache(path).added == 2
        return path
    build(1)
    build(2, "sm_90a")
    assert gr.export_cache(path) == 2
    exported.append(path.read_bytes())
    return path


def reference(files: Files) -> str:
    """The entry of the first kernel."""
    return next(n for n in files if n.endswith("/kernel.cubin")).partition("/")[0]


def test_warms_another_cache_once(archive: Path, cache_dir: Path, tmp_path: Path) -> None:
    want = build(1).cubin
    _core.cache_clear()
    assert gr.import_cache(archive) == gr.Imported(2, 0)
    assert gr.import_cache(archive) == gr.Imported(0, 2)
    again = build(1)
    assert again.from_cache
    assert again.cubin == want
    assert build(2, "sm_90a").from_cache
    gr.export_cache(tmp_path / "b.zip")
    assert (tmp_path / "b.zip").read_bytes() == archive.read_bytes()


def test_serves_a_process_that_finds_no_nvrtc(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _core.cache_clear()
    code = (
        "from graphene import _core\n"
        "import sys\n"
        "source = 'extern \"C\" __global__ void k(int* x) { x[threadIdx.x] = %s; }' % sys.argv[1]\n"
        "print(_core.compile_source(source, 'k', 'sm_80').from_cache)\n"
        "assert 'libnvrtc' not in open('/proc/self/maps').read()\n"
    )
    monkeypatch.setenv("GRAPHENE_NVRTC", "/nowhere/libnvrtc.so")

    def run(tag: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, tag], capture_output=True, text=True, check=False)

    assert "COMPILE_NVRTC" in run("1").stderr
    gr.import_cache(archive)
    assert run("1").stdout == "True\n"
    assert "COMPILE_NVRTC" in run("3").stderr


def test_architectures_are_chosen(archive: Path, tmp_path: Path) -> None:
    assert gr.export_cache(tmp_path / "b.zip", ["sm_90a"]) == 1
    _core.cache_clear()
    gr.import_cache(tmp_path / "b.zip")
    assert build(2, "sm_90a").from_cache
    assert not build(1).from_cache
    with pytest.raises(gr.CompileError, match="the cache holds nothing for sm_75") as e:
        gr.export_cache(tmp_path / "c.zip", ["sm_90a", "sm_75"])
    assert e.value.code == "CACHE_ARCHIVE"
    assert not (tmp_path / "c.zip").exists()


def test_a_damaged_entry_is_not_exported(archive: Path, cache_dir: Path, tmp_path: Path) -> None:
    cubin = next((cache_dir / "graphene-v1" / "entries").glob("*/*/kernel.cubin"))
    cubin.write_bytes(cubin.read_bytes()[:-1])
    assert gr.export_cache(tmp_path / "b.zip") == 1


def flip(data: bytes, at: float) -> bytes:
    i = int(at * (len(data) - 1))
    return data[:i] + bytes([data[i] ^ 0x10]) + data[i + 1 :]


@pytest.mark.parametrize("at", [i / 20 for i in range(21)])
def test_no_flipped_bit_gets_in(archive: Path, cache_dir: Path, at: float) -> None:
    """Either the archive is refused as a whole, or what the bit belongs to does not matter to the entries."""
    good = {k: _core.cache_read(k) for k in _core.cache_keys()}
    archive.write_bytes(flip(archive.read_bytes(), at))
    _core.cache_clear()
    refused = None
    try:
        gr.import_cache(archive)
    except gr.CompileError as e:
        refused = e.code
    assert refused in (None, "CACHE_ARCHIVE")
    assert {k: _core.cache_read(k) for k in _core.cache_keys()} == ({} if refused else good)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_cut_archive_is_refused(archive: Path, share: float) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data[: int(share * len(data))])
    _core.cache_clear()
    with pytest.raises(gr.CompileError, match=r"a\.zip cannot be imported; nothing was") as e:
        gr.import_cache(archive)
    assert e.value.code == "CACHE_ARCHIVE"
    assert _core.cache_keys() == []


def index_of(files: Files) -> dict:
    return json.loads(files[INDEX])


def renamed(files: Files, key: str, new: str) -> Files:
    """The archive with one entry under another key, consistent in itself."""
    index = index_of(files)
    index["entries"][new] = index["entries"].pop(key)
    out = {n.replace(key, new): d for n, d in files.items()}
    return out | {INDEX: json.dumps(index).encode()}


def with_file(files: Files, name: str, data: bytes) -> Files:
    """The archive with one file of its first entry replaced or added, its checksum true."""
    key, index = reference(files), index_of(files)
    index["entries"][key][name] = _core.sha256(data)
    return files | {f"{key}/{name}": data, INDEX: json.dumps(index).encode()}


def without(files: Files, suffix: str) -> Files:
    return {n: d for n, d in files.items() if not n.endswith(suffix)}


HOSTILE: dict[str, tuple[Callable[[Files], Files], str]] = {
    "no table of contents": (lambda f: without(f, INDEX), "it is not an archive of Graphene's cache"),
    "a table of another program": (lambda f: f | {INDEX: b'{"format": "x"}'}, "is not that of an archive"),
    "a table that is not an object": (lambda f: f | {INDEX: b"[1]"}, "is not that of an archive"),
    "a table that is nested without end": (lambda f: f | {INDEX: b"[" * 4000}, "it is damaged"),
    "a later schema": (
        lambda f: f | {INDEX: json.dumps(index_of(f) | {"schema": 2}).encode()},
        "its schema is 2, this version reads 1",
    ),
    "entries that are a list": (
        lambda f: f | {INDEX: json.dumps(index_of(f) | {"entries": [1]}).encode()}, "lists no entries",
    ),
    "a key that climbs": (lambda f: renamed(f, reference(f), "../../escaped"), "is not the key of an entry"),
    "a key with a folder": (lambda f: renamed(f, reference(f), "v1/ab"), "is not the key of an entry"),
    "a file that climbs": (lambda f: with_file(f, "../../../escaped", b"x"), "it has other files than"),
    "a file of another name": (
        lambda f: with_file(without(f, "log.txt"), "meta.json", b"x"), "'.*/log.txt' is missing",
    ),
    "another kernel's key": (
        lambda f: renamed(f, reference(f), "0" * 64 + "-" + "0" * 16), "are not those of its key",
    ),
    "another kernel's source": (lambda f: with_file(f, "kernel.cu", b"int x;"), "are not those of its key"),
    "a cubin that is none": (lambda f: with_file(f, "kernel.cubin", b"\x7fELFnonsense"), "has no kernel 'k'"),
    "an empty cubin": (lambda f: with_file(f, "kernel.cubin", b""), "info.json is malformed"),
    "information that is none": (lambda f: with_file(f, "info.json", b"[]"), "info.json is malformed"),
    "a missing file": (lambda f: without(f, "/kernel.ptx"), "is missing"),
    "a file changed": (lambda f: f | {reference(f) + "/log.txt": b"other"}, "the checksum of .* is wrong"),
    "a file more": (lambda f: f | {"../escaped": b"x"}, r"'\.\./escaped' is not in its table of contents"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_foreign_archive_is_refused_as_a_whole(archive: Path, tmp_path: Path, case: str) -> None:
    change, says = HOSTILE[case]
    pack(archive, change(unpack(archive)))
    _core.cache_clear()
    before = sorted(p for p in tmp_path.rglob("*") if "nvrtc" not in p.parts)
    with pytest.raises(gr.CompileError, match=says) as e:
        gr.import_cache(archive)
    assert e.value.code == "CACHE_ARCHIVE"
    assert _core.cache_keys() == []
    assert sorted(p for p in tmp_path.rglob("*") if "nvrtc" not in p.parts) == before


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_refused(archive: Path) -> None:
    files = unpack(archive)
    pack(archive, files, (reference(files) + "/log.txt", b"second"))
    with pytest.raises(gr.CompileError, match="or twice in the archive"):
        gr.import_cache(archive)


def test_a_bomb_is_refused_by_what_it_says(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = unpack(archive)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            z.writestr(name, data if not name.endswith("log.txt") else b" " * (3 << 20))
    monkeypatch.setattr("graphene.archive._MOST_FILE_BYTES", 2 << 20)
    with pytest.raises(gr.CompileError, match="is larger than 2 MiB"):
        gr.import_cache(archive)
    pack(archive, files)
    monkeypatch.setenv("GRAPHENE_CACHE_LIMIT", "1K")
    with pytest.raises(gr.CompileError, match="more than the cache may: nothing was imported") as e:
        gr.import_cache(archive)
    assert "fix: raise GRAPHENE_CACHE_LIMIT" in str(e.value)


def test_places_that_cannot_be_used(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gr.CompileError, match="No such file or directory"):
        gr.import_cache(tmp_path / "absent.zip")
    with pytest.raises(gr.CompileError, match="cannot be written") as e:
        gr.export_cache(archive / "b.zip")
    assert e.value.code == "CACHE_ARCHIVE"
    os.mkfifo(tmp_path / "pipe")  # a device such as /dev/stdout would be replaced, too
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(gr.CompileError, match="there is something that is not a regular file"):
            gr.export_cache(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    monkeypatch.setenv("GRAPHENE_CACHE", "0")
    with pytest.raises(gr.CompileError, match="the cache cannot be written") as e:
        gr.import_cache(archive)
    assert "the cache is off" in str(e.value)


@pytest.mark.parametrize(
    "call", [lambda: gr.import_cache(None), lambda: gr.export_cache(3), lambda: gr.export_cache("x.zip", 3)]
)
def test_what_is_no_path_and_no_architecture(call: Callable[[], object]) -> None:
    with pytest.raises(gr.CompileError, match=r"this is not the path|these are not architectures") as e:
        call()
    assert e.value.code == "CACHE_ARCHIVE"


@pytest.mark.parametrize("archs", [None, ["sm_80"]])
def test_an_archive_of_nothing_is_an_error(
    archs: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(gr.CompileError, match="the cache holds nothing") as e:
        gr.export_cache(tmp_path / "c.zip", archs)
    assert e.value.code == "CACHE_ARCHIVE"
    monkeypatch.setenv("GRAPHENE_CACHE", "0")
    with pytest.raises(gr.CompileError, match="the cache is off"):
        gr.export_cache(tmp_path / "c.zip", archs)
    assert list(tmp_path.glob("*.zip")) == []


def test_a_failed_export_leaves_the_old_archive(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = archive.read_bytes()
    build(3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(gr.CompileError, match="No space left on device"):
        gr.export_cache(archive)
    assert archive.read_bytes() == old
    assert [p.name for p in archive.parent.iterdir() if p.name.startswith(".")] == []


def test_commands(archive: Path, cache_dir: Path, tmp_path: Path) -> None:
    def run(*args: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "graphene", "cache", *args], capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    file = str(tmp_path / "b.zip")
    assert run("export", file, "--arch", "sm_80") == f"1 entry in {file}\n"
    shutil.rmtree(cache_dir / "graphene-v1" / "entries")
    assert run("import", file).startswith(f"added 1 entry\n{cache_dir}: 1 entry, ")
    assert "added 0 entries, 1 were there" in run("import", file)
    assert "[CACHE_ARCHIVE]" in run("import", __file__, status=1)
    assert "[CACHE_ARCHIVE]" in run("export", file, "--arch", "sm_75", status=1)


@pytest.mark.parametrize("method", [12, 14])
def test_what_is_compressed_in_another_way_is_damage(archive: Path, method: int) -> None:
    """LZMA's and bzip2's own errors are not others than zlib's."""
    data = bytearray(archive.read_bytes())
    for mark, at in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        place = data.find(mark)
        while place >= 0:
            data[place + at] = method
            place = data.find(mark, place + 4)
    archive.write_bytes(data)
    with pytest.raises(gr.CompileError, match="CACHE_ARCHIVE"):
        gr.import_cache(archive)


def test_a_table_of_contents_is_no_larger_than_its_files_ask_for(tmp_path: Path) -> None:
    """A few kilobytes of zip would else become gigabytes of Python's lists."""
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        index = '{"format": "graphene cache", "schema": 1, "entries": {}, "x": [%s[]]}' % ("[]," * 100_000)
        z.writestr("graphene-cache.json", index)
    with pytest.raises(gr.CompileError, match="larger than a list of its 0 files"):
        gr.import_cache(path)


def test_archives_of_many_names_are_read_in_linear_time(tmp_path: Path) -> None:
    path, key = tmp_path / "many.zip", "a" * 64 + "-" + "b" * 16
    names = [f"n{i}" for i in range(20_000)]
    index = {"format": "graphene cache", "schema": 1, "entries": {key: {n: "0" * 64 for n in names}}}
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("graphene-cache.json", json.dumps(index))
        for n in names:
            z.writestr(f"{key}/{n}", b"")
    began = time.monotonic()
    with pytest.raises(gr.CompileError, match="the checksum of"):
        gr.import_cache(path)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("path", ["a\0b", "\ud800", 5, b"\xff\0"])
def test_paths_that_no_file_has(path: object) -> None:
    for work in (gr.import_cache, gr.export_cache):
        with pytest.raises(gr.CompileError, match="CACHE_ARCHIVE"):
            work(path)
    for work in (gr.load_precompiled, lambda p: gr.precompile({}, p, ["sm_80"])):
        with pytest.raises(gr.CompileError, match="PRECOMPILED"):
            work(path)


def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(gr.CompileError, match="it is not a regular file"):
        gr.import_cache(tmp_path / "pipe")
    os.mkfifo(tmp_path / "kernels.json")
    with pytest.raises(gr.CompileError, match="it is not a regular file"):
        gr.load_precompiled(tmp_path)
