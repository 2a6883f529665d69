"""Archives of compiled kernels: the disk cache of one machine, for another one.

An archive is a zip file: ``graphene-cache.json`` lists every entry's files with their SHA-256, and the files follow. A
stranger may have written it, so nothing in it becomes a path, and nothing is stored before all of it is checked.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import re
import secrets
import stat
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from graphene import _core

__all__ = ["Imported", "export_cache", "import_cache"]

_INDEX = "graphene-cache.json"
_FORMAT = "graphene cache"
_SCHEMA = 1
_MOST_FILE_BYTES = 1 << 28  # the size of one file in an archive
_MOST_FILES = 1 << 18
_MOST_INDEX_BYTES = 512  # for each file, in the table of contents: a small archive may hold gigabytes of JSON
_KEY = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")


class Imported(NamedTuple):
    """What an import did: entries that were ``added`` to the cache, and those that were ``present`` already."""

    added: int
    present: int


def _unreadable(path: Path, why: str) -> NoReturn:
    _core.fail("CACHE_ARCHIVE", f"{path} cannot be imported; nothing was", [f"why:  {why}"],
               "export it again: python -m graphene cache export FILE")  # fmt: skip


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or none of it, also when several processes write it. Raises OSError.

    A link at that path is replaced; the file that it leads to is left alone. A device or a pipe is neither replaced nor
    written to.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("there is something that is not a regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    # The temporary file has a short name of its own, since the file's name may have the greatest possible length.
    name = path.parent / f".graphene-{secrets.token_hex(8)}"
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink(missing_ok=True)
        raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """A file's bytes. Raises OSError for a file that is larger, or not a regular one (reading a pipe would block)."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as f:
        status = os.fstat(f.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        if status.st_size > most_bytes:
            raise OSError(f"it is larger than {most_bytes >> 20} MiB")
        return f.read(most_bytes)


def _path(path: Any) -> Path:
    try:
        if b"\0" not in os.fsencode(path):
            return Path(os.fsdecode(path))
    except (TypeError, UnicodeError):
        pass
    _core.fail("CACHE_ARCHIVE", "this is not the path of an archive", [f"got: {path!a}"], "name a file")


def _digest(data: bytes) -> str:
    return _core.sha256(data)


def export_cache(path: str | os.PathLike[str], archs: Iterable[str] | None = None) -> int:
    """Writes the disk cache's entries to the archive ``path``, replacing it; returns how many there are.

    ``archs`` chooses entries by architecture, such as ``["sm_90a"]``. An archive without entries is an error, and so is
    an architecture without entries. The archive is written whole or not at all. Raises CompileError CACHE_ARCHIVE if it
    cannot be written.
    """
    path = _path(path)
    given = [] if archs is None else [archs] if isinstance(archs, str) or not isinstance(archs, Iterable) else [*archs]
    if not all(isinstance(a, str) for a in given):
        _core.fail("CACHE_ARCHIVE", "these are not architectures", [f"got: {archs!r}"], 'pass a list: ["sm_90a"]')
    wanted = None if archs is None else set(given)
    entries: dict[str, dict[str, bytes]] = {}
    found: set[str] = set()
    for key in _core.cache_keys():
        files = _core.cache_read(key) if _KEY.fullmatch(key) else None
        if files is None or _core.why_not_cacheable(key, files):  # not an entry
            continue
        arch = json.loads(files.get("info.json") or files["plan.json"])["arch"]
        if wanted is None or arch in wanted:
            entries[key] = files
            found.add(arch)
    if (lacking := sorted((wanted or set()) - found)) or not entries:
        what, fix = f"nothing for {', '.join(lacking)}" if lacking else "nothing", next(iter(lacking), "sm_90a")
        why, fix = f"holds {what}", f"compile for it first: python -m graphene compile KERNEL --arch {fix}"
        if _core.cache_dir() is None:
            why, fix = "is off", "set GRAPHENE_CACHE_DIR, and GRAPHENE_CACHE to something else than 0"
        _core.fail("CACHE_ARCHIVE", f"the cache {why}; {path} was not written", [], fix)
    index = {
        "format": _FORMAT,
        "schema": _SCHEMA,
        "entries": {k: {name: _digest(data) for name, data in sorted(f.items())} for k, f in entries.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent) as work:
            with zipfile.ZipFile(work, "w", zipfile.ZIP_DEFLATED) as z:

                def add(name: str, data: bytes) -> None:
                    item = zipfile.ZipInfo(name)  # a fixed date: equal caches make equal archives
                    item.compress_type = zipfile.ZIP_DEFLATED
                    z.writestr(item, data)

                add(_INDEX, json.dumps(index, indent=1, sort_keys=True).encode())
                for key, files in entries.items():
                    for name, data in sorted(files.items()):
                        add(f"{key}/{name}", data)
            work.seek(0)
            write_atomically(path, work.read())
    except OSError as e:
        _core.fail("CACHE_ARCHIVE", f"{path} cannot be written", [f"why:  {e.strerror or e}"], "choose another place")
    return len(entries)


def _index_of(z: zipfile.ZipFile, path: Path) -> dict[str, dict[str, str]]:
    """The archive's table of contents, which names every file in it and no other."""
    infos = z.infolist()
    names = [i.filename for i in infos]
    if _INDEX not in names:
        _unreadable(path, f"it has no {_INDEX}: it is not an archive of Graphene's cache")
    if large := [i.filename for i in infos if i.file_size > _MOST_FILE_BYTES]:
        _unreadable(path, f"{large[0]!r} is larger than {_MOST_FILE_BYTES >> 20} MiB")
    if len(infos) > _MOST_FILES:
        _unreadable(path, f"it holds more than {_MOST_FILES} files")
    total, limit = sum(i.file_size for i in infos), _core.cache_stats()["limit_bytes"]
    if total > limit:
        _core.fail("CACHE_ARCHIVE", f"{path} holds {total} bytes, more than the cache may: nothing was imported",
                   [f"limit: {limit} bytes"], "raise GRAPHENE_CACHE_LIMIT")  # fmt: skip
    if z.getinfo(_INDEX).file_size > _MOST_INDEX_BYTES * (len(infos) + 8):
        _unreadable(path, f"{_INDEX} is larger than a list of its {len(infos) - 1} files")
    index: Any = json.loads(z.read(_INDEX))
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        _unreadable(path, f"{_INDEX} is not that of an archive of Graphene's cache")
    if index.get("schema") != _SCHEMA:
        _unreadable(path, f"its schema is {index.get('schema')!r}, this version reads {_SCHEMA}")
    entries: Any = index.get("entries")
    if not isinstance(entries, dict) or not all(
        isinstance(f, dict) and all(isinstance(x, str) for x in f.values()) for f in entries.values()
    ):
        _unreadable(path, f"{_INDEX} lists no entries")
    if bad := [k for k in entries if not _KEY.fullmatch(k)]:
        _unreadable(path, f"{bad[0]!r} is not the key of an entry")
    listed = {_INDEX, *(f"{key}/{name}" for key, files in entries.items() for name in files)}
    if surplus := [n for n, times in Counter(names).items() if n not in listed or times > 1]:
        _unreadable(path, f"{surplus[0]!r} is not in its table of contents, or twice in the archive")
    if missing := sorted(listed - set(names)):
        _unreadable(path, f"{missing[0]!r} is missing")
    return entries


def import_cache(path: str | os.PathLike[str]) -> Imported:
    """Adds the entries of an archive that ``export_cache`` wrote to the disk cache.

    Before anything is stored, the import checks every checksum, and that each entry is the kernel that its key names.
    Entries are stored one by one, each whole. A kernel of the cache is used where its source, options and architecture
    are asked for and the machine has the NVRTC that compiled it, or none. Import only archives that you trust: nothing
    checks what a cubin does. Raises CompileError CACHE_ARCHIVE for an archive that is damaged or foreign, or when the
    cache is off.
    """
    path = _path(path)
    checked: dict[str, dict[str, bytes]] = {}
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block
            _unreadable(path, "it is not a regular file")
        with zipfile.ZipFile(path) as z:
            for key, sums in _index_of(z, path).items():
                files = {name: z.read(f"{key}/{name}") for name in sums}
                if wrong := [n for n, data in files.items() if _digest(data) != sums[n]]:
                    _unreadable(path, f"the checksum of '{key}/{wrong[0]}' is wrong")
                if why := _core.why_not_cacheable(key, files):
                    _unreadable(path, f"the entry {key} is none: {why}")
                checked[key] = files
    except OSError as e:
        _unreadable(path, str(e.strerror or e))
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError, RecursionError,
            KeyError, TypeError, IndexError, OverflowError, MemoryError, struct.error) as e:  # fmt: skip
        if isinstance(e, NotImplementedError):
            _unreadable(path, "it is compressed in an unknown way")
        _unreadable(path, f"it is damaged: {e}")
    added = sum(_core.cache_write(key, files) for key, files in checked.items())
    return Imported(added, len(checked) - added)
