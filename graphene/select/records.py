"""Tuning records: which configuration was fastest, by device, kernel, version, dtype and shape class.

The package's records lie in ``graphene/select/recorded``, your own in the cache's folder ``tune`` (or
``$GRAPHENE_TUNE_DIR``), in one JSON file for each device. Your own come first. A file is read when its device is first
asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.archive import read_regular, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["find", "forget", "own_folder", "stamp", "store", "warn_once"]

_FORMAT = "graphene tuning records"
_SCHEMA = 1
_MOST_BYTES = 1 << 26  # the largest file of records
_KEY = ("kernel", "version", "dtype", "shape")
SHIPPED = Path(__file__).parent / "recorded"

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")

Key = tuple[str, int, str, str]
_loaded: dict[tuple[Path, str], dict[Key, dict[str, Any]]] = {}
_stamped: dict[tuple[Path, str], tuple[str, bytes | None]] = {}  # hashes of files in use; bytes not parsed yet
_told: set[str] = set()
_UNUSABLE: dict[Key, dict[str, Any]] = {}  # stands for a file that cannot be used


def own_folder() -> Path | None:
    """Where your own records are kept; None if the cache is off and ``GRAPHENE_TUNE_DIR`` is not set."""
    if own := os.environ.get("GRAPHENE_TUNE_DIR"):
        return Path(own)
    cache = _core.cache_dir()
    return None if cache is None else Path(cache) / "tune"


def file_of(folder: Path, device: str) -> Path:
    """The file of a device's records: its name's letters a to z and digits, with "_" for what stands between them."""
    words = "".join(c if c in _LETTERS else " " for c in device.lower()).split()
    return folder / ("_".join(words) + ".json")


def read(path: Path, device: str, content: bytes | None = None) -> dict[Key, dict[str, Any]]:
    """A file's records by key. A damaged file gives a warning, and no records."""
    try:
        content = read_regular(path, _MOST_BYTES) if content is None else content
        data: Any = json.loads(content, parse_constant=_no_number)
    except FileNotFoundError:
        return {}
    except OSError as e:
        return _not_used(path, e.strerror or str(e))
    except (ValueError, RecursionError):
        return _not_used(path, "the file is not JSON")
    want = {"format": _FORMAT, "schema": _SCHEMA, "device": device}
    if not isinstance(data, dict) or {n: data.get(n) for n in want} != want:
        return _not_used(path, f"the file is not {_FORMAT} of schema {_SCHEMA} for {device}")
    if not isinstance(data.get("records"), list):
        return _not_used(path, "the file has no list of records")
    rows: dict[Any, dict[str, Any]] = {}
    for i, r in enumerate(data["records"]):
        key = tuple(r.get(n) for n in _KEY) if isinstance(r, dict) else ()
        if [type(x) for x in key] != [str, int, str, str] or not isinstance(r.get("config"), dict):
            return _not_used(path, f"record {i} has no {', '.join(_KEY)} and config")
        rows[key] = r
    return rows


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _not_used(path: Path, why: str) -> dict[Key, dict[str, Any]]:
    warn_once(f"the tuning records in {path} are not used: {why}   [TUNE_FAILED]")
    return _UNUSABLE


def warn_once(text: str) -> None:
    """Warns, unless the same warning was given since files were last read."""
    if text not in _told:
        _told.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _records(folder: Path, device: str) -> dict[Key, dict[str, Any]]:
    key = (folder, device)
    if key not in _loaded:
        _stamp(folder, device)
        found, content = _stamped[key]
        _loaded[key] = read(file_of(folder, device), device, content)
        _stamped[key] = found, None
    return _loaded[key]


def _stamp(folder: Path, device: str) -> str:
    """The hash of the file from which records are or will be taken; "" without a file."""
    key = (folder, device)
    if key not in _stamped:
        try:
            content = read_regular(file_of(folder, device), _MOST_BYTES)
            _stamped[key] = _core.sha256(content), content
        except FileNotFoundError:
            _stamped[key] = "", None
        except OSError as e:
            _stamped[key] = str(e), None  # `read` will warn
    return _stamped[key][0]


def stamp(device: str) -> str:
    """Identifies your own records for a device, on which a choice depends; "" if there are none.

    It describes the records that this process uses, whatever others have written since it read the file.
    """
    folder = own_folder()
    return "" if folder is None else _stamp(folder, device)


def find(device: str, kernel: str, version: int, dtype: str, shape: str) -> dict[str, Any] | None:
    """The record of a key, your own before the package's; None without one. Damaged files only warn."""
    for folder in filter(None, (own_folder(), SHIPPED)):
        if (row := _records(folder, device).get((kernel, version, dtype, shape))) is not None:
            return row
    return None


def forget() -> None:
    """Forgets the files' contents, which are read again when they are needed."""
    _loaded.clear()
    _stamped.clear()
    _told.clear()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The lock file is locked, never written: an existing file keeps its contents, and a link is not followed.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path.with_suffix(".lock"), flags, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def store(device: str, record: dict[str, Any], folder: Path | None = None) -> Path:
    """Adds a record to a device's file, or replaces the record of its key; returns the file. A file that cannot be used
    is kept beside it as ``.bad``.

    ``record``: kernel, version, dtype, shape, config and any other fields. Other processes may write the file at the
    same time. Raises SelectError TUNE_FAILED if it cannot be written.
    """
    place = folder or own_folder()
    if place is None:
        _core.fail("TUNE_FAILED", "the tuning record cannot be kept: the cache is off", [],
                   "set GRAPHENE_TUNE_DIR to a writable directory")  # fmt: skip
    path = file_of(place, device)
    _told.clear()
    try:
        with _locked(path):
            rows = dict(found := read(path, device))
            if found is _UNUSABLE:  # it may belong to somebody, or be worth repairing
                os.replace(path, path.with_name(f"{path.name}.{secrets.token_hex(4)}.bad"))
            rows[record["kernel"], record["version"], record["dtype"], record["shape"]] = record
            lines = ",\n".join(" " + json.dumps(rows[key], sort_keys=True) for key in sorted(rows))
            head = json.dumps({"format": _FORMAT, "schema": _SCHEMA, "device": device})[:-1]
            write_atomically(path, f'{head}, "records": [\n{lines}\n]}}\n'.encode())
    except OSError as e:
        _core.fail("TUNE_FAILED", f"the tuning record cannot be written to {path}", [f"why:  {e.strerror or e}"],
                   "set GRAPHENE_TUNE_DIR to a writable directory")  # fmt: skip
    _loaded.pop((place, device), None)
    _stamped.pop((place, device), None)
    return path
