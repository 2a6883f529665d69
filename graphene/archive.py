"""Archives of compiled kernels: the disk cache of one machine, for another one.

An archive is a zip file: ``graphene-cache.json`` lists every entry's files with their SHA-256, the files follow. It is
read as what a stranger may have written: nothing in it becomes a path, nothing is stored before all of it is checked.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from graphene import _core

__all__ = ["Imported", "export_cache", "import_cache"]

_INDEX = "graphene-cache.json"
_FORMAT = "graphene cache"
_SCHEMA = 1
_MOST_FILE_BYTES = 1 << 28  # of one file in an archive
_KEY = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}")


class Imported(NamedTuple):
    """What an import did: entries that were ``added`` to the cache, and those that were ``present`` already."""

    added: int
    present: int


def _unreadable(path: Path, why: str) -> NoReturn:
    _core.fail("CACHE_ARCHIVE", f"{path} cannot be imported; nothing was", [f"why:  {why}"],
               "export it again: python -m graphene cache export FILE")  # fmt: skip


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or none of it, also when several processes write it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _path(path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        _core.fail("CACHE_ARCHIVE", "this is no path of an archive", [f"got: {path!r}"], "name a file")


def _digest(data: bytes) -> str:
    return _core.sha256(data)


def export_cache(path: str | os.PathLike[str], archs: Iterable[str] | None = None) -> int:
    """Writes the disk cache's entries to the archive ``path``, replacing it; returns how many there are.

    ``archs``: only those for these architectures, such as ``["sm_90a"]``. An archive of nothing is an error, and so is
    an architecture that has no entry. The archive is written whole or not at all. Raises CompileError CACHE_ARCHIVE
    when it cannot be.
    """
    path = _path(path)
    if archs is not None and not isinstance(archs, Iterable):
        _core.fail("CACHE_ARCHIVE", "these are no architectures", [f"got: {archs!r}"], 'pass a list: ["sm_90a"]')
    wanted = None if archs is None else {archs} if isinstance(archs, str) else set(archs)
    entries: dict[str, dict[str, bytes]] = {}
    found: set[str] = set()
    for key in _core.cache_keys():
        files = _core.cache_read(key) if _KEY.fullmatch(key) else None
        if files is None:
            continue
        arch = json.loads(files["info.json"])["arch"]
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
    index: Any = json.loads(z.read(_INDEX))
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        _unreadable(path, f"{_INDEX} is not that of an archive of Graphene's cache")
    if index.get("schema") != _SCHEMA:
        _unreadable(path, f"its schema is {index.get('schema')!r}, this version reads {_SCHEMA}")
    entries: Any = index.get("entries")
    if not isinstance(entries, dict) or not all(isinstance(f, dict) for f in entries.values()):
        _unreadable(path, f"{_INDEX} lists no entries")
    if bad := [k for k in entries if not _KEY.fullmatch(k)]:
        _unreadable(path, f"{bad[0]!r} is not the key of an entry")
    listed = {_INDEX, *(f"{key}/{name}" for key, files in entries.items() for name in files)}
    if surplus := [n for n in names if n not in listed or names.count(n) > 1]:
        _unreadable(path, f"{surplus[0]!r} is not in its table of contents, or twice in the archive")
    if missing := sorted(listed - set(names)):
        _unreadable(path, f"{missing[0]!r} is missing")
    total, limit = sum(i.file_size for i in infos), _core.cache_stats()["limit_bytes"]
    if total > limit:
        _core.fail("CACHE_ARCHIVE", f"{path} holds {total} bytes, more than the cache may: nothing was imported",
                   [f"limit: {limit} bytes"], "raise GRAPHENE_CACHE_LIMIT")  # fmt: skip
    return entries


def import_cache(path: str | os.PathLike[str]) -> Imported:
    """Adds the entries of an archive that ``export_cache`` wrote to the disk cache.

    Every checksum, and that each entry is the kernel its key says, is checked before anything is stored; entries are
    stored one by one, each whole. A kernel of the cache is used where its source, options and architecture are asked
    for and the NVRTC is the one that compiled it, or none is there. Import what you trust: cubins run as they are.
    Raises CompileError CACHE_ARCHIVE for an archive that is damaged or foreign, or when the cache is off.
    """
    path = _path(path)
    checked: dict[str, dict[str, bytes]] = {}
    try:
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
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, RecursionError, KeyError) as e:
        if isinstance(e, NotImplementedError):
            _unreadable(path, "it is compressed in an unknown way")
        _unreadable(path, f"it is damaged: {e}")
    added = sum(_core.cache_write(key, files) for key, files in checked.items())
    return Imported(added, len(checked) - added)
