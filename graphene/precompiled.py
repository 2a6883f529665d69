"""Kernels compiled ahead of time: cubins and launch manifests in a folder, launched where there is no compiler.

The folder holds ``kernels.json`` and the files that it lists with their SHA-256: for every kernel its IR, and for every
architecture a cubin and a manifest. ``python -m graphene compile`` writes it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from graphene import _core
from graphene.archive import read_regular, write_atomically
from graphene.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene._core import Binary, LaunchManifest

__all__ = ["Precompiled", "load_precompiled", "precompile", "runs_on"]

_INDEX = "kernels.json"
_FORMAT = "graphene kernels"
_SCHEMA = 1
_MOST_FILE_BYTES = 1 << 28
_MOST_INDEX_BYTES = 1 << 26
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")


def runs_on(compiled_for: str, arch: str) -> bool:
    """Whether a cubin for one architecture runs on a device of another: one of the same generation, and not older.

    Cubins with a suffix (``"sm_90a"``) run on exactly that architecture. Source: CUDA C++ programming guide, binary
    compatibility.
    """
    built, device = _ARCH.fullmatch(compiled_for), _ARCH.fullmatch(arch)
    if built is None or device is None:
        return False
    if built[3] == "a":
        return compiled_for == arch
    return built[1] == device[1] and int(built[2]) <= int(device[2])


def _fail(message: str, details: list[str], fix: str) -> NoReturn:
    _core.fail("PRECOMPILED", message, details, fix)


def _folder(folder: Any, who: str) -> Path:
    if not isinstance(folder, str | os.PathLike):
        _fail(f"{who} wants a folder", [f"got:  {type(folder).__name__}"], 'pass its path: "kernels"')
    try:
        if b"\0" not in os.fsencode(folder):
            return Path(os.fsdecode(folder))
    except (TypeError, UnicodeError):
        pass
    _fail(f"{who} wants a folder", [f"got:  {folder!a}"], "no file has such a name")


def _archs(archs: Any) -> list[str]:
    given = [archs] if isinstance(archs, str) else list(archs) if isinstance(archs, Iterable) else [archs]
    if not all(isinstance(a, str) for a in given):
        _fail("precompile wants architectures", [f"got:  {archs!r}"], 'pass a list of names: ["sm_80", "sm_90a"]')
    return list(dict.fromkeys(given))


def precompile(
    kernels: Mapping[str, Kernel],
    folder: str | os.PathLike[str],
    archs: Iterable[str],
    progress: Callable[[str], object] = lambda text: None,
) -> list[Path]:
    """Compiles every kernel for every architecture and writes them to ``folder``; returns the files written.

    ``kernels``: by the names that ``load_precompiled`` will give them. ``archs``: such as ``["sm_80", "sm_90a"]``.
    Files of other names in the folder stay. Kernels are compiled in parallel, and nothing is written unless all of them
    compile. ``progress`` is called with a line of text for each. Every file is written whole or not at all, the table
    of contents last. Raises CompileError PRECOMPILED for names that cannot be file names and folders that cannot be
    written, and what ``Kernel.compile`` raises.
    """
    folder, wanted = _folder(folder, "precompile"), _archs(archs)
    if not isinstance(kernels, Mapping) or not all(isinstance(k, Kernel) for k in kernels.values()):
        _fail("precompile wants kernels by name", [f"got:  {type(kernels).__name__}"], 'pass {"name": kernel}')
    if bad := [n for n in kernels if not isinstance(n, str) or not _NAME.fullmatch(n)]:
        _fail(f"{bad[0]!r} cannot name a precompiled kernel", [], "use letters, digits, '_', '-' and '.'")
    if not kernels or not wanted:
        _fail("nothing to compile", [], "name at least one kernel and one architecture, such as sm_80")
    jobs = [(name, kernel, arch) for name, kernel in kernels.items() for arch in wanted]
    for _, kernel, arch in jobs:
        kernel.lowered(arch)  # errors of a kernel come before any compiler runs
    index = _read_index(folder) if (folder / _INDEX).exists() else {}
    files: dict[str, bytes] = {}

    def build(job: tuple[str, Kernel, str]) -> str:
        name, kernel, arch = job
        binary = kernel.compile(arch)
        spilled = f", {binary.spill_bytes} bytes spilled" if binary.spill_bytes else ""
        return f"{name} for {arch}: {binary.registers} registers{spilled}, {len(binary.cubin)} bytes"

    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        for line in pool.map(build, jobs):
            progress(line)  # from this thread, because lines of several threads would mix
    except BaseException:  # a Ctrl-C, too, must not wait for the other compilations
        pool.shutdown(wait=False, cancel_futures=True)
        _core.cancel_compilations()
        raise
    pool.shutdown()
    for name, kernel in kernels.items():
        files[f"{name}.json"] = kernel.to_json(indent=1).encode()
        row: dict[str, Any] = {"ir": _reference(f"{name}.json", files), "archs": {}}
        for arch in wanted:
            binary = kernel.compile(arch)
            cubin, manifest = f"{name}.{arch}.cubin", f"{name}.{arch}.manifest.json"
            files[cubin] = binary.cubin
            files[manifest] = kernel.lowered(arch).manifest().to_json(indent=1).encode()
            row["archs"][arch] = {
                "cubin": _reference(cubin, files),
                "manifest": _reference(manifest, files),
                "nvrtc": binary.nvrtc_version,
            }
        index[name] = row
    text = json.dumps({"format": _FORMAT, "schema": _SCHEMA, "kernels": index}, indent=1, sort_keys=True) + "\n"
    files[_INDEX] = text.encode()
    try:
        for name, data in files.items():
            write_atomically(folder / name, data)
    except OSError as e:
        _fail(f"{folder} cannot be written", [f"why:  {e.strerror or e}"], "choose another folder")
    return [folder / name for name in files]


def _reference(name: str, files: Mapping[str, bytes]) -> dict[str, str]:
    return {"file": name, "sha256": _core.sha256(files[name])}


def _damaged(folder: Path, why: str) -> NoReturn:
    _fail(f"{folder} does not hold precompiled kernels that can be used", [f"why:  {why}"],
          "write it again: python -m graphene compile KERNEL --arch ARCH -o FOLDER")  # fmt: skip


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        data: Any = json.loads(read_regular(folder / _INDEX, _MOST_INDEX_BYTES))
    except OSError as e:
        _damaged(folder, f"{_INDEX}: {e.strerror or e}")
    except (ValueError, RecursionError) as e:
        _damaged(folder, f"{_INDEX} is damaged: {e}")
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        _damaged(folder, f"{_INDEX} is not a list of precompiled kernels")
    if data.get("schema") != _SCHEMA:
        _damaged(folder, f"its schema is {data.get('schema')!r}, this version reads {_SCHEMA}")
    kernels: Any = data.get("kernels")
    try:
        for name, row in kernels.items():
            if not _NAME.fullmatch(name) or not all(_ARCH.fullmatch(a) for a in row["archs"]):
                _damaged(folder, f"{_INDEX} is malformed at {name!r}")
            for reference in (row["ir"], *(r[k] for r in row["archs"].values() for k in ("cubin", "manifest"))):
                # A file lies beside the table, and nowhere else.
                if not _NAME.fullmatch(reference["file"]) or not isinstance(reference["sha256"], str):
                    _damaged(folder, f"{reference['file']!r} is not a file of it")
    except (AttributeError, KeyError, TypeError):
        _damaged(folder, f"{_INDEX} is malformed")
    return dict(kernels)


class Compiled(_core.Launcher):
    """A kernel whose manifest and cubin are at hand. The kernel itself is made when it is asked for.

    A subclass defines ``_made``, which makes it, ``binary`` and ``_manifest``.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._kernel: Kernel | None = None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._name

    @property
    def kernel(self) -> Kernel:
        """The kernel itself: to print, simulate, check, or compile for another architecture."""
        if self._kernel is None:
            self._kernel = self._made()
        return self._kernel

    def _made(self) -> Kernel:
        raise NotImplementedError

    def binary(self, arch: str) -> Binary:
        """The cubin that runs on a device of ``arch``."""
        raise NotImplementedError

    # Hooks of the launcher.

    def _prepare(self, device_index: int, arch: str, /) -> Binary:
        return self.binary(arch)

    def _call_host(self, *args: object, **named: object) -> None:
        self.kernel(*args, **named)


class Precompiled(Compiled):
    """A kernel compiled ahead of time, called as the kernel was: ``kernel(*args, stream=None, **named)``.

    CUDA tensors need only the driver. NumPy arrays and CPU tensors go through the simulator. ``load(device)`` loads the
    kernel before its first call. ``load_precompiled`` makes these kernels; their files are read when they are needed.
    """

    def __init__(self, folder: Path, name: str, row: dict[str, Any]) -> None:
        super().__init__(name)
        self._folder, self._row = folder, row

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures it was compiled for."""
        return tuple(self._row["archs"])

    def _made(self) -> Kernel:
        return Kernel.from_json(self._text(self._row["ir"]))

    def binary(self, arch: str) -> Binary:
        """The cubin that runs on a device of ``arch``. Raises CompileError PRECOMPILED_ARCH when none does."""
        compiled_for = self._choose(arch)
        manifest = self._manifest(arch)
        return _core.Binary(self._read(self._row["archs"][compiled_for]["cubin"]), manifest.entry, compiled_for)

    def __repr__(self) -> str:
        return f"<graphene.Precompiled {self._name} for {', '.join(self.archs)}>"

    def _choose(self, arch: str) -> str:
        fitting = [a for a in self.archs if a == arch] or sorted(a for a in self.archs if runs_on(a, arch))
        if not fitting:
            _core.fail("PRECOMPILED_ARCH", f"{self._name} was not compiled for {arch}",
                       [f"compiled for: {', '.join(self.archs)}", f"in: {self._folder}"],
                       f"add --arch {arch} where it is compiled; or call .kernel, which compiles here")  # fmt: skip
        return fitting[-1]

    def _read(self, reference: dict[str, str]) -> bytes:
        file = self._folder / reference["file"]
        try:
            data = read_regular(file, _MOST_FILE_BYTES)
        except OSError as e:
            _damaged(self._folder, f"{file.name}: {e.strerror or e}")
        if _core.sha256(data) != reference["sha256"]:
            _damaged(self._folder, f"the checksum of {file.name} is wrong")
        return data

    def _text(self, reference: dict[str, str]) -> str:
        try:
            return self._read(reference).decode()
        except UnicodeDecodeError as e:
            _damaged(self._folder, f"{reference['file']} is not text: {e.reason}")

    def _manifest(self, arch: str, /) -> LaunchManifest:
        row = self._row["archs"][self._choose(arch)]
        return _core.LaunchManifest.from_json(self._text(row["manifest"]))


class _Kernels(dict[str, Precompiled]):
    """Kernels by name. The error for a name that the folder does not have lists the names that it has."""

    def __init__(self, folder: Path) -> None:
        super().__init__((name, Precompiled(folder, name, row)) for name, row in _read_index(folder).items())
        self._folder = folder

    def __missing__(self, name: object) -> NoReturn:
        _fail(f"{self._folder} holds no kernel {name!r}", [f"it holds: {', '.join(sorted(self)) or 'none'}"],
              "use one of these names, or compile it there: python -m graphene compile")  # fmt: skip


def load_precompiled(folder: str | os.PathLike[str]) -> dict[str, Precompiled]:
    """The kernels that ``precompile`` or ``python -m graphene compile`` wrote to a folder, by name.

    No compiler is needed to call them. Raises CompileError PRECOMPILED when the folder's table of contents is missing,
    damaged or of another schema. A file with a wrong checksum raises it when the file is first needed, and the table
    when it is asked for a name that the folder does not have.
    """
    return _Kernels(_folder(folder, "load_precompiled").absolute())
