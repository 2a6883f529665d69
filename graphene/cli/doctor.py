"""`python -m graphene doctor`: what is present, what is missing, and how to get it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

PROBE = 'extern "C" __global__ void doctor(float* x) { x[threadIdx.x] += 1.0f; }\n'


@dataclass
class Finding:
    """One line of the report. `status`: "ok"; "note": something optional is absent; "missing": something needed is."""

    status: str
    what: str
    text: str
    fix: str = ""


def _of_error(status: str, what: str, e: Exception) -> Finding:
    """A GrapheneError's first diagnostic as a finding; of any other exception, its text."""
    diagnostics: list[dict[str, Any]] = getattr(e, "diagnostics", [])
    if not diagnostics:
        return Finding(status, what, f"{type(e).__name__}: {e}")
    d = diagnostics[0]
    return Finding(status, what, "\n".join([d["message"], *d["details"]]), d["fix"])


def check_package() -> list[Finding]:
    """Versions, the extension module, and GraphQL's package of the same name."""
    out = [Finding("ok", "Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")]
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # Read as a file: the package may not be importable.
    spec = importlib.util.spec_from_file_location("_graphene_conflict", os.path.join(folder, "_conflict.py"))
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except ImportError as e:
            out.append(Finding("missing", "package", str(e), "keep one of the two packages in this environment"))
    try:
        core: Any = importlib.import_module("graphene._core")
        version = getattr(importlib.import_module("graphene"), "__version__", "of another package")
        out.append(Finding("ok", "Graphene", f"{version}, {core.__file__}"))
    except ImportError as e:
        out.append(
            Finding("missing", "Graphene", f"the extension module cannot be loaded: {e}", "reinstall graphene-ir")
        )
    return out


def check_nvrtc() -> list[Finding]:
    """Every NVRTC found, and whether it compiles."""
    from graphene import _core

    libraries = _core.nvrtc_libraries()
    out = [
        Finding("ok", "NVRTC", f"{x['version']} ({x['why']}): {x['archs'][0]} to {x['archs'][-1]}, {x['path']}")
        for x in libraries
    ]
    try:
        arch = next((a for x in libraries for a in ("sm_90a", "sm_80", "sm_75") if a[:5] in x["archs"]), "sm_80")
        b = _core.compile_source(PROBE, "doctor", arch)
        how = f"from the cache; NVRTC took {b.compile_ms:.0f} ms" if b.from_cache else f"in {b.compile_ms:.0f} ms"
        out.append(Finding("ok", "compiling", f"a kernel for {arch} {how}"))
    except Exception as e:
        out.append(_of_error("missing", "compiling", e))
    return out


def check_driver() -> list[Finding]:
    """The CUDA driver and its devices. Without one kernels run on the simulator."""
    from graphene import _core

    try:
        info = _core.driver_info()
    except Exception as e:
        # A driver that does not work is a fault; without a driver this is a machine without a GPU.
        broken = "cannot be loaded" not in str(e)
        return [_of_error("missing" if broken else "note", "driver", e)]
    out = [Finding("ok", "driver", f"CUDA {info['version']}, {info['path']}")]
    for i, d in enumerate(info["devices"]):
        text = f"{d['name']}, {d['arch']}, {d['sm_count']} multiprocessors, {d['shared_bytes']} shared bytes a block"
        out.append(Finding("ok", f"device {i}", text))
    if not info["devices"]:
        out.append(
            Finding("note", "devices", "none", "make a GPU visible (CUDA_VISIBLE_DEVICES), or use the simulator")
        )
    return out


def check_torch() -> list[Finding]:
    """PyTorch and how its tensors are read."""
    if importlib.util.find_spec("torch") is None:
        return [Finding("note", "torch", "not installed", "pip install torch, to run on CUDA tensors")]
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as e:
        return [Finding("missing", "torch", f"installed, but importing it failed: {e}", "reinstall torch")]
    cuda = torch.version.cuda
    text = f"{torch.__version__}, " + (f"CUDA {cuda}" if cuda else "a build without CUDA")
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return [Finding("ok", "torch", f"{text}; tensors are read through the DLPack exchange API")]
    return [Finding("note", "torch", f"{text}; tensors are read by their attributes, which is slower",
                    "torch 2.10 or newer")]  # fmt: skip


def check_cache() -> list[Finding]:
    """The disk cache. A file is written there, because permissions alone do not show that this works."""
    from graphene import _core
    from graphene.cli.cache import describe

    folder = _core.cache_stats()["dir"]
    fix = "set GRAPHENE_CACHE_DIR to a writable directory; until then every process compiles anew"
    if folder is None:
        return [Finding("note", "cache", describe(), fix)]
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(1 << 16))
    except OSError as e:
        return [Finding("note", "cache", f"{folder}: nothing can be written there: {e.strerror}", fix)]
    return [Finding("ok", "cache", describe())]


def findings() -> list[Finding]:
    """All findings in order; a check that raises an error is a finding, too."""
    checks: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("package", check_package), ("NVRTC", check_nvrtc), ("driver", check_driver), ("torch", check_torch),
        ("cache", check_cache),
    ]  # fmt: skip
    out: list[Finding] = []
    for what, check in checks:
        try:
            out += check()
        except Exception as e:
            out.append(_of_error("missing", what, e))
    return out


def report(as_json: bool = False) -> int:
    """Prints the findings. Returns 1 if something needed is missing, else 0."""
    found = findings()
    missing = sum(f.status == "missing" for f in found)
    if as_json:
        print(json.dumps({"ok": missing == 0, "findings": [asdict(f) for f in found]}, indent=1))
        return 1 if missing else 0
    for f in found:
        first, *rest = f.text.splitlines() or [""]
        print(f"{f.status:8} {f.what:10} {first}")
        for line in rest + ([f"fix: {f.fix}"] if f.fix and f.status != "ok" else []):
            print(" " * 20 + line)
    print("all that is needed is there" if missing == 0 else f"{missing} missing: see the fixes above", file=sys.stdout)
    return 1 if missing else 0
