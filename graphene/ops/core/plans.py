"""Plans on disk: the launches of an operator for a configuration, so that a new process neither selects nor builds.

A plan says which kernels run in which order on which views, with the launch manifest and the cubin of each, which the
cache of kernels keeps (docs/runtime.md). It is found under a request that states everything on which the choice
depends. The kernel itself is made only when somebody asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graphene import _core
from graphene.errors import GrapheneError
from graphene.kernel import Kernel
from graphene.ops.core.torch import torch
from graphene.precompiled import Compiled
from graphene.select.device import named, of_arch
from graphene.select.records import stamp as stamp_of_records

_FORMAT = "graphene plan"
_SCHEMA = 1
_FILES = (".py", ".json")
_BUILD_ID = struct.pack("<III4s", 4, 20, 3, b"GNU\0")  # what precedes its 20 bytes in an ELF file's notes
_GIB = 1 << 30
_NAMED_MEMORY_GIB = {"NVIDIA H200": 139, "NVIDIA A100": 79}  # memory of the devices that `of_arch` names
TRIES = 4  # other tiles for a product that the compiler spills
_described = threading.local()
_launchers: dict[tuple[str, str, str], Planned] = {}


class Gpu(NamedTuple):
    """A device as the choice of kernels knows it. ``memory_gib`` is a whole number."""

    arch: str
    model: str
    sms: int
    shared_bytes: int
    memory_gib: int


@functools.cache
def gpu(name: str) -> Gpu:
    """The tensors' device, for "cuda:0", or a typical device of an architecture, for "sm_90a"."""
    if not name.startswith("cuda"):
        d = of_arch(name)
        return Gpu(d.arch, d.name, d.sm_count, d.shared_bytes, _NAMED_MEMORY_GIB.get(d.name, 16))
    with _core.Stage("ask the device"):
        p = torch.cuda.get_device_properties(name)
        arch = f"sm_{p.major}{p.minor}" + ("a" if p.major >= 9 else "")
        shared = getattr(p, "shared_memory_per_block_optin", 99 * 1024)
        return Gpu(arch, p.name, p.multi_processor_count, shared, p.total_memory // _GIB)


class Planned(Compiled):
    """A kernel of a plan. It is launched from its manifest and cubin, and made only when it is asked for."""

    def __init__(self, manifest: _core.LaunchManifest, binary: _core.Binary, make: Callable[[], Kernel]) -> None:
        super().__init__(manifest.kernel_name)
        self._of, self._cubin, self._make = manifest, binary, make

    def _made(self) -> Kernel:
        return self._make()

    def binary(self, arch: str) -> _core.Binary:
        """The cubin; for another architecture than the plan's it is compiled."""
        return self._cubin if arch == self._cubin.arch else self.kernel.compile(arch)

    def _manifest(self, arch: str, /) -> _core.LaunchManifest:
        return self._of if arch == self._cubin.arch else self.kernel.lowered(arch).manifest()

    def __repr__(self) -> str:
        return f"<graphene kernel {self.name}, planned for {self._cubin.arch}>"

    def __getattr__(self, name: str) -> Any:
        """The other attributes of a kernel: its text, checks, reports."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __str__(self) -> str:
        return str(self.kernel)


def forget() -> None:
    """Forgets which launchers the plans have, as a new process that has found none."""
    _launchers.clear()


@contextlib.contextmanager
def described() -> Iterator[None]:
    """A context in which nothing is compiled, because calls are only described."""
    before = getattr(_described, "on", False)
    _described.on = True
    try:
        yield
    finally:
        _described.on = before


def recipe(
    operator: str, configure: Callable[..., Any], given: Sequence[Any], tensors: Sequence[int], device: str
) -> Any:
    """The recipe of a configuration for a GPU: from a plan, else from ``configure(*given)``, then kept as a plan.

    ``tensors``: which of the arguments are tensors, or may be. Compiles all kernels of the recipe, in threads.
    """
    _record(operator, given)
    if device == "cpu" or not _is_ours(configure) or os.environ.get("GRAPHENE_PLANS") == "0":
        with _core.Stage("choose"):
            return configure(*given)
    with _core.Stage("look up the plan"):
        place = gpu(device)
        request = _request(operator, given, place)

        def choose() -> Any:
            with _core.Stage("choose"):
                return configure(*given)

        def make() -> Any:
            return without_spills(choose(), choose, place.arch)

        if (found := _load(request, place.arch, _ranks(given, tensors), make)) is not None:
            _asked.planned = True
            return found
    if os.environ.get("GRAPHENE_START_COMPILER") == "1" and not getattr(_described, "on", False):
        _core.nvrtc_start(place.arch)  # it starts while a kernel is chosen and built
    made = choose()
    if made.launches_kernels and not getattr(_described, "on", False):
        made = without_spills(made, choose, place.arch)
        return keep(made, _ranks(given, tensors), request, place, lambda: _request(operator, given, place))
    return made


class _Asked(threading.local):
    """State of a thread: whether the last recipe came from a plan."""

    planned = False


_asked = _Asked()


@contextlib.contextmanager
def asked() -> Iterator[_Asked]:
    """Yields an object that says whether the recipe that is made within came from a plan."""
    _asked.planned = False
    yield _asked


def _record(operator: str, given: Sequence[Any]) -> None:
    """Writes the call to the file that GRAPHENE_RECORD_CALLS names, for `python -m graphene warm`."""
    file = os.environ.get("GRAPHENE_RECORD_CALLS")
    if not file:
        return
    line = json.dumps({"operator": operator, "arguments": [_to_record(x) for x in given]}) + "\n"
    try:
        # Lines are short and appended at once, since several processes may write the file.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        with os.fdopen(handle, "wb", buffering=0) as f:
            f.write(line.encode())
    except OSError as e:
        warnings.warn(f"calls are not recorded in {file}: {e.strerror or e}", RuntimeWarning, stacklevel=2)


def _to_record(x: Any) -> Any:
    if hasattr(x, "strides"):
        return {"tensor": [x.shape, x.strides, x.dtype, x.align]}
    return [_to_record(y) for y in x] if isinstance(x, (list, tuple)) else x


def from_record(x: Any, tensor: Callable[..., Any]) -> Any:
    """An argument that was recorded; ``tensor`` makes one from its shape, strides, dtype, device and alignment.

    Raises KeyError, TypeError, ValueError for anything else.
    """
    if isinstance(x, dict):
        shape, strides, dtype, align = x["tensor"]
        numbers = [*shape, *strides, align]
        if len(shape) != len(strides) or not all(type(n) is int for n in numbers) or not isinstance(dtype, str):
            raise ValueError(f"no tensor: {x}")
        return tensor(tuple(shape), tuple(strides), dtype, "", align)
    if isinstance(x, list):
        made = [from_record(y, tensor) for y in x]
        return made if any(isinstance(y, dict) for y in x) else tuple(made)
    return x


def keep(made: Any, ranks: list[int | None], request: str | None, place: Gpu, again: Callable[[], str | None]) -> Any:
    """Compiles a recipe's kernels in threads and keeps the recipe as a plan; returns the recipe to use.

    That is the plan's, if there is one. A kernel then has one launcher, whether the plan of its form was found or made,
    and a form that is first met while a CUDA graph is captured finds the kernel loaded that another form has loaded.
    ``again``: gives the request now. If it changed meanwhile, for example by tuning, the choice may have come from
    either state, and no plan is kept.
    """
    launches = made.launches
    kernels = [launch.kernel for launch in launches]
    if not all(isinstance(k, Kernel) for k in kernels):
        return made
    binaries = compiled(kernels, place.arch)
    if request is None or not all(b.key for b in binaries):
        return made
    with _core.Stage("store the plan"):
        rows = [{"cubin": b.key, "manifest": json.loads(x.kernel.lowered(place.arch).manifest().to_json()),
                 "arguments": [_to_json(a) for a in x.arguments]}
                for b, x in zip(binaries, launches, strict=True)]  # fmt: skip
        plan = {"format": _FORMAT, "schema": _SCHEMA, "request": request, "arch": place.arch, "outputs": made.outputs,
                "returned": made.returned, "launches": rows}  # fmt: skip
        text = json.dumps(plan)
        if again() == request:
            _core.plan_store(request, place.arch, text)
        try:
            return _recipe(json.loads(text), ranks, lambda: made)
        except _WrongError:  # the cache has lost a cubin meanwhile
            return made


def without_spills(made: Any, again: Callable[[], Any], arch: str) -> Any:
    """The recipe, or the one that is chosen ``again`` as long as the compiler in use spills a product's tile."""
    for _ in range(TRIES):
        kernels = [launch.kernel for launch in made.launches]
        if not all(isinstance(k, Kernel) for k in kernels):
            break
        spilling = [k for k, b in zip(kernels, compiled(kernels, arch), strict=True) if b.spill_bytes]
        if not spilling:
            break
        from graphene.select.avoided import avoid  # late: few compilers spill anything

        if not any([avoid(k) for k in spilling]):  # a list: all of them are remembered
            break
        made = again()
    return made


def compiled(kernels: Sequence[Kernel], arch: str) -> list[_core.Binary]:
    """The kernels compiled for an architecture, several at a time. Raises what compiling one of them raises."""
    different = list({id(k): k for k in kernels}.values())
    errors: list[BaseException] = []

    def work(kernel: Kernel) -> None:
        try:
            kernel.compile(arch)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in different[1:]]
    for t in threads:
        t.start()
    try:
        different[0].compile(arch)  # in this thread, which answers Ctrl-C
        for t in threads:
            t.join()
    except BaseException:
        if threads:
            _core.cancel_compilations()
        raise
    if errors:
        raise errors[0]
    return [k.compile(arch) for k in kernels]


# The request: everything on which the choice of a recipe depends.


def _is_ours(configure: Callable[..., Any]) -> bool:
    """Whether the function is in this package; another function may change without notice."""
    return str(getattr(configure, "__module__", "")).startswith("graphene.")


def _request(operator: str, given: Sequence[Any], place: Gpu) -> str | None:
    """Everything on which the choice depends, as a text; None if that cannot be known."""
    if (stamp := package_stamp()) is None:
        return None
    return json.dumps(
        {
            "package": stamp,
            "operator": operator,
            "arguments": [_described_argument(x) for x in given],
            "device": place,
            "rates": repr(named(place.model)),
            "records": stamp_of_records(place.model),
            "tune": os.environ.get("GRAPHENE_TUNE", ""),
            "options": _core.default_compile_options(),
        },
        sort_keys=True,
    )


def _described_argument(x: Any) -> Any:
    if hasattr(x, "strides"):  # a tensor; the request describes the device once, elsewhere
        return {"shape": x.shape, "strides": x.strides, "dtype": x.dtype, "align": x.align}
    if isinstance(x, (list, tuple)):
        return [_described_argument(y) for y in x]
    return x.hex() if isinstance(x, float) else x


def _process_start_ns() -> int:
    """When this process began, by the clock of files' times; the present time if the system does not say."""
    now = time.time_ns()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot_ns = int(fields[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
        return now - max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns, 0)
    except (OSError, ValueError, IndexError, AttributeError):
        return now


def _package_files(folder: str) -> list[str]:
    """The package's files by their names in it: those of which ``files_state`` tells."""
    out: list[str] = []
    waiting = [""]
    while waiting:
        at = waiting.pop()
        with os.scandir(f"{folder}/{at}") as entries:
            for e in entries:
                if e.name.endswith(_FILES):
                    out.append(at + e.name)
                elif "." not in e.name and e.name != "__pycache__" and e.is_dir(follow_symlinks=False):
                    waiting.append(f"{at}{e.name}/")
    return sorted(out)


def _hash(file: str) -> str:
    with open(file, "rb", buffering=0) as f:
        return hashlib.sha256(f.read()).hexdigest()


def _hash_of_library(file: str) -> str:
    """The hash that the linker wrote into a library's first page, its build ID; without one, that of all its bytes."""
    with open(file, "rb", buffering=0) as f:
        page = f.read(4096)
    at = page.find(_BUILD_ID)
    return page[at : at + len(_BUILD_ID) + 20].hex() if at >= 0 else _hash(file)


@functools.cache
def package_stamp() -> str | None:
    """A hash of this package's files. None if one of them was changed while this process ran.

    The hash is remembered in the cache by the files' sizes and times, so that they are read once.
    """
    folder = str(Path(__file__).parents[2])
    try:
        found, newest_ns = _core.files_state(folder, _FILES)
        core = os.stat(_core.__file__)
        if not found or max(newest_ns, core.st_mtime_ns, core.st_ctime_ns) > _process_start_ns():
            return None
        state = f"{found} {core.st_size} {core.st_mtime_ns} {core.st_ctime_ns} {core.st_ino}"
        name = _core.sha256(f"package {folder}".encode())[:32]
        try:
            known = json.loads(_core.memo_load(name) or b"{}")
        except (ValueError, RecursionError):  # it is damaged, and is written anew
            known = None
        if isinstance(known, dict) and known.get("state") == state and isinstance(known.get("stamp"), str):
            return str(known["stamp"])
        hashes = [(n, _hash(f"{folder}/{n}")) for n in _package_files(folder)]
        hashes.append((os.path.basename(_core.__file__), _hash_of_library(_core.__file__)))
    except (OSError, ValueError):
        return None
    stamp = _core.sha256(repr(hashes).encode())
    _core.memo_store(name, json.dumps({"state": state, "stamp": stamp}).encode())
    return stamp


# Plans as JSON, and back.


class _WrongError(Exception):
    """The contents of a plan are not those of any plan."""


def _to_json(argument: Any) -> Any:
    return {"float": argument.hex()} if isinstance(argument, float) else argument


def _need(condition: bool) -> None:
    if not condition:
        raise _WrongError


def _is_count(x: Any, below: float = 2**63) -> bool:
    return type(x) is int and 0 <= x < below


class _PlanReader:
    """Reads a plan's outputs and arguments; `ranks` are those of the tensors with views, None for absent ones."""

    def __init__(self, ranks: list[int | None]) -> None:
        self.ranks = ranks

    def extents(self, rows: Any) -> list[tuple[int, ...]]:
        """Numbers, and extents of tensors."""
        for row in rows:
            _need(type(row) is list and 2 <= len(row) <= 3 and all(type(x) is int for x in row))
            _need(row[0] == -1 or self.has(row[0], row[1]))
            _need(row[1] >= 0 and (len(row) == 2 or row[2] >= 1))
        return [tuple(row) for row in rows]

    def has(self, tensor: Any, dim: Any) -> bool:
        """Whether a tensor is present and has the dimension."""
        return _is_count(tensor, len(self.ranks)) and _is_count(dim, self.ranks[tensor] or 0)

    def view(self, data: Any) -> Any:
        """An argument that is a tensor."""
        source, dims = data
        _need(_is_count(source, len(self.ranks)) and self.ranks[source] is not None)
        out = []
        for extents, own in dims:
            _need(all(self.has(source, d) for d in own))
            out.append((self.extents(extents), list(own)))
        return source, out

    def argument(self, data: Any, spec: Any) -> Any:
        """An argument of a kernel, which the manifest describes by `spec`."""
        if spec["kind"] == "scalar":
            if isinstance(data, dict):
                return float.fromhex(data["float"])
            _need(isinstance(data, int))
            return data
        if spec["list_count"] == 0:
            return self.view(data)
        _need(len(data) == spec["list_count"])
        return [self.view(v) for v in data]


def _ranks(given: Sequence[Any], tensors: Sequence[int]) -> list[int | None]:
    """The ranks of a call's tensors, those of lists in their order; None for an absent one."""
    out: list[int | None] = []
    for i in tensors:
        x = given[i]
        many = isinstance(x, (list, tuple)) and not hasattr(x, "strides")
        out += [None if t is None else len(t.shape) for t in (x if many else (x,))]
    return out


def _load(request: str | None, arch: str, ranks: list[int | None], configure: Callable[[], Any]) -> Any:
    """The recipe of a plan; None if there is no plan that can be used. A wrong plan is removed."""
    stored = None if request is None else _core.plan_load(request, arch)
    if stored is None:
        return None
    try:
        plan = json.loads(stored.text)
        _need(plan["format"] == _FORMAT and plan["schema"] == _SCHEMA and plan["request"] == request)
        _need(plan["arch"] == arch)
        return _recipe(plan, ranks, configure)
    except (_WrongError, GrapheneError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError,
            RecursionError):  # fmt: skip
        _core.cache_discard(stored.key)
        return None


def _recipe(plan: dict[str, Any], ranks: list[int | None], configure: Callable[[], Any]) -> Any:
    @functools.cache
    def kernels() -> list[Kernel]:
        of = [launch.kernel for launch in configure().launches]
        return [k.kernel if isinstance(k, Planned) else k for k in of]

    outputs = []
    inputs = _PlanReader(ranks)
    for dtype, dims in plan["outputs"]:
        outputs.append((dtype, [inputs.extents(d) for d in dims]))
    reader = _PlanReader([*inputs.ranks, *(len(dims) for _, dims in outputs)])
    returned, launches = plan["returned"], []
    _need(_is_count(returned, len(outputs) + 1) and len(plan["launches"]) > 0)

    def made(i: int) -> Kernel:
        return kernels()[i]

    for i, row in enumerate(plan["launches"]):
        specs = row["manifest"]["args"]
        _need(len(specs) == len(row["arguments"]))
        arguments = [reader.argument(a, s) for a, s in zip(row["arguments"], specs, strict=True)]
        launches.append((_launcher(row, plan["arch"], functools.partial(made, i)), arguments))
    return _core.Recipe(outputs, returned, launches)


def _launcher(row: dict[str, Any], arch: str, make: Callable[[], Kernel]) -> Planned:
    """One launcher for all plans of a kernel, so that it is loaded once."""
    text = json.dumps(row["manifest"], sort_keys=True)
    key = (row["cubin"], arch, text)
    if key not in _launchers:
        manifest = _core.LaunchManifest.from_json(text)
        binary = _core.cached_binary(row["cubin"], manifest.entry, arch)
        _need(binary is not None)
        assert binary is not None
        _launchers[key] = Planned(manifest, binary, make)
    return _launchers[key]
