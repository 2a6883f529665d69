"""Kernels that come compiled with the package: those that usual calls of operators launch.

The folder ``graphene/compiled`` has a zip file for each of them. Its name is the hash of all that the compiler was
given: source, name, architecture and options. A kernel whose text has changed since then is not found, and is compiled.
"""

from __future__ import annotations

import os
from pathlib import Path

from graphene import _core
from graphene.errors import GrapheneError

FOLDER = Path(__file__).parent / "compiled"
_FILES = ("kernel.cubin", "kernel.ptx", "log.txt", "info.json")  # the source is that of the kernel which is looked up
_REQUEST_DIGITS = 64  # of a key of the disk cache: they name the request, and those behind them the compiler


def _numbers(version: str) -> list[int]:
    return [int(x) for x in version.split(".")]


def offer(source: str, entry: str, arch: str) -> None:
    """Copies a kernel that came with the package to the disk cache, if the cache does not have it.

    It is copied where the NVRTC in use is at least as new as the one that compiled it, since a driver may not load what
    a newer one has made, and where there is no NVRTC. Nothing is copied with GRAPHENE_SHIPPED=0 or without a cache.
    """
    if os.environ.get("GRAPHENE_SHIPPED") == "0" or not FOLDER.is_dir():
        return
    key = _core.cubin_key(source, entry, arch)
    file = FOLDER / f"{key[:_REQUEST_DIGITS]}.zip"
    if not file.exists() or _core.cache_dir() is None or _core.is_cached(source, entry, arch):
        return
    import json
    import zipfile
    import zlib

    with _core.Stage("copy a compiled kernel"):
        try:
            with zipfile.ZipFile(file) as z:
                files = {name: z.read(name) for name in _FILES}
            if len(key) == _REQUEST_DIGITS:  # there is no NVRTC, and whichever compiled it serves
                key += "-" + 16 * "0"
            elif _numbers(_core.nvrtc_for(arch)["version"]) < _numbers(str(json.loads(files["info.json"])["nvrtc"])):
                return
            _core.cache_write(key, files | {"kernel.cu": source.encode()})
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError, GrapheneError):
            return  # it is damaged, or the cache cannot be written: NVRTC compiles the kernel


def pack(files: dict[str, bytes], file: Path) -> None:
    """Writes an entry of the disk cache as ``offer`` reads it. Equal entries make equal files."""
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name in _FILES:
            item = zipfile.ZipInfo(name)  # a fixed date
            item.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(item, files[name], compresslevel=9)
