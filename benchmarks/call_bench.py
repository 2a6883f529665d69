"""Host time of a call without a GPU: launches, operators, PyTorch's dispatcher, on a driver that launches nothing.

    python benchmarks/call_bench.py [--against FOLDER] [--json out.json] [--rounds 5] [--repeats 100]

Needs g++, torch and NVRTC. The driver is the tests' stub, whose launches only count, so that what remains is the way
of a call: reading the arguments, finding what is remembered of their form, launching. `--against` names another
checkout with a built package: both are measured in turns, a process each, so that they see the same machine. A sample
is the time of a batch of calls divided by their number; the figure is the median of all samples, in nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import write

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "tests" / "runtime" / "stub" / "stub_cuda.cpp"
BATCH = 400  # calls in a sample


def manifest(name: str, access: dict[str, str], scalars: tuple[str, ...] = ()) -> str:
    """Of a kernel on tensors (M, 64) of fp16 with a row stride of their own, in the order of `access`."""
    tensors = [{"name": n, "kind": "tensor", "dtype": "fp16", "dims": [["M", f"ld{n}"], [64, 1]], "flat": [],
                "access": a, "align_bytes": 16, "list_count": 0} for n, a in access.items()]  # fmt: skip
    symbols = [{"name": n, "min": 0, "max": 2**63 - 1, "multiple_of": 1, "from": "shape", "is_param": True, "bits": 64}
               for n in ("M", *(f"ld{n}" for n in access))]  # fmt: skip
    numbers = [{"name": n, "kind": "scalar", "dtype": "fp32"} for n in scalars]
    return json.dumps({
        "schema": 1, "kernel": name, "entry": name, "args": [*tensors, *numbers], "symbols": symbols, "facts": [],
        "grid": ["M", 1, 1], "cluster": [1, 1, 1], "block_threads": 128, "dynamic_shared_bytes": 0,
    })  # fmt: skip


def cases() -> dict[str, Callable[[int], None]]:
    """What is measured, by name: `calls(count)`."""
    import stub_cuda
    import torch

    from graphene import _core

    class Kernel(_core.Launcher):
        def __init__(self, name: str, access: dict[str, str], scalars: tuple[str, ...] = ()) -> None:
            super().__init__()
            self.name, self.tensors, self.scalars = name, access, scalars

        def _manifest(self, arch: str) -> _core.LaunchManifest:
            return _core.LaunchManifest.from_json(manifest(self.name, self.tensors, self.scalars))

        def _prepare(self, device_index: int, arch: str) -> _core.Binary:
            params = [f"void* p{n}" for n in self.tensors] + [f"float s{n}" for n in self.scalars]
            params += ["long long nM", *(f"long long ld{n}" for n in self.tensors)]
            body = f"*(char*)p{next(iter(self.tensors))} = 1;"
            source = f'extern "C" __global__ void {self.name}({", ".join(params)}) {{ {body} }}'
            return _core.compile_source(source, self.name, arch)

    def tensor(at: int, rows: int = 128) -> Any:
        return stub_cuda.Tensor(at, (rows, 64), (64, 1), (2, 16), (2, 0))

    class Parameter:
        pass

    half = torch.float16
    x, y, z, out = (tensor(0x100000 * (i + 1)) for i in range(4))
    made = tensor(0x900000)

    def empty(shape: Any, strides: Any, dtype: Any, device: Any = None) -> Any:
        return made

    # Types called without arguments say no: PyTorch's state is the dispatcher's case, below.
    _core.set_torch({
        "tensor": stub_cuda.Tensor, "parameter": Parameter, "grad_enabled": bool, "dispatch_modes": int,
        "function_modes": int, "function_mode_at": None, "device_mode": None, "tracing_state": bool, "autocast": bool,
        "requires_grad": None, "forward_ad": {"_current_level": -1}, "empty_strided": empty,
        "empty_strided_cuda": empty, "dtypes": {half: 5}, "ask_python": True,
    })  # fmt: skip

    rw = {"A": "read", "B": "read", "C": "write"}
    add, scaled = Kernel("add", rw), Kernel("scaled", rw, ("f", "g"))
    small, large = [tensor(0x100000 * (i + 5), 64) for i in range(3)], [x, y, z]

    def whole(i: int) -> tuple[int, Any]:
        return i, ((((i if i < 2 else 0, 0),), (0,)), (((i if i < 2 else 0, 1),), (1,)))

    def configure(a: Any, b: Any, *rest: Any) -> Any:
        if len(rest) == 1:  # into `out`
            return _core.Recipe([], 0, [(add, [whole(0), whole(1), (2, whole(0)[1])])])
        # A result is numbered on from the tensors, of which there are two.
        return _core.Recipe([("fp16", [[(0, 0)], [(0, 1)]])], 1, [(add, [whole(0), whole(1), (2, whole(0)[1])])])

    ab: list[tuple[str, str, list[str], int]] = [("a", "Tensor", [], 1), ("b", "Tensor", [], 1)]
    numbers = [("alpha", "float", [], 0), ("mode", "str?", ["up", "down"], 0), ("flag", "bool", [], 0)]
    fresh = _core.Operator("fresh", [*ab, *numbers], 1, configure)
    into = _core.Operator("into", [*ab, ("out", "Tensor(a!)", [], 1)], 0, configure)
    boxed = _core.Operator("boxed", [*ab, *numbers], 1, configure)
    library = torch.library.Library("graphene_bench", "DEF")
    schema = "(Tensor a, Tensor b, float alpha=1.0, str? mode=None, bool flag=False) -> Tensor"
    library.define("boxed" + schema)
    library.define("own" + schema)
    missing = boxed.register("graphene_bench", "boxed", "own", "CPU")
    if missing:
        raise RuntimeError(f"this PyTorch lacks {missing}")
    dispatched = torch.ops.graphene_bench.boxed.default
    u, v = torch.ones(128, 64, dtype=half), torch.ones(128, 64, dtype=half)

    def of(function: Callable[..., Any], *args: Any, **named: Any) -> Callable[[int], None]:
        def calls(count: int) -> None:
            for _ in range(count):
                function(*args, **named)

        return calls

    def in_turns(count: int) -> None:
        for _ in range(count // 2):
            add(*large)
            add(*small)

    found = {
        "launch": of(add, x, y, z), "launch, by name": of(add, A=x, B=y, C=z), "launch, two forms": in_turns,
        "launch, two numbers": of(scaled, x, y, z, 1.5, 2.5), "operator": of(fresh, x, y, 1.0, "up", False),
        "operator, out=": of(into, x, y, out), "dispatcher": of(dispatched, u, v, 1.0, "up", False),
    }  # fmt: skip
    assert fresh(x, y, 1.0, "up", False) is made
    assert into(x, y, out) is None
    stub_cuda.quick(True)
    found["_keep"] = lambda count: library and None  # a library that is collected takes its operators with it
    return found


def measure(repeats: int) -> dict[str, list[float]]:
    """Nanoseconds of a call, a sample each."""
    functions = cases()
    keep = functions.pop("_keep")
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for calls in functions.values():
        calls(BATCH)
    for _ in range(repeats):
        for name, calls in functions.items():
            start = time.perf_counter()
            calls(BATCH)
            samples[name].append((time.perf_counter() - start) / BATCH * 1e9)
    keep(0)
    return samples


def samples_of(package: Path, stub: Path, work: Path, repeats: int) -> dict[str, list[float]]:
    """The same in a process that imports graphene from `package`."""
    paths = os.pathsep.join([str(package), str(stub.parent), str(ROOT / "benchmarks")])
    env = os.environ | {
        "GRAPHENE_CUDA_DRIVER": str(stub), "GRAPHENE_CACHE_DIR": str(work / "cache"), "PYTHONPATH": paths,
        "PYTHONSAFEPATH": "1",
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__)), "--worker", "--repeats", str(repeats)]
    done = subprocess.run(command, env=env, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    result: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    """Prints the table; with --json also writes it. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, with its package built")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each package")
    parser.add_argument("--repeats", type=int, default=100, help="samples of every case in a process")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure(args.repeats)))
        return 0
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        print("call needs a C++ compiler", file=sys.stderr)
        return 2
    packages = {"this": ROOT} | ({"against": args.against.resolve()} if args.against else {})
    all_samples: dict[str, dict[str, list[float]]] = {p: {} for p in packages}
    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder) / "stub_cuda.so"
        headers = sysconfig.get_path("include")
        flags = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-I{headers}"]
        subprocess.run([compiler, *flags, str(STUB), "-o", str(stub)], check=True)
        for _ in range(args.rounds):
            for name, package in packages.items():
                for case, samples in samples_of(package, stub, Path(folder), args.repeats).items():
                    all_samples[name].setdefault(case, []).extend(samples)
    figures = {p: {case: statistics.median(s) for case, s in found.items()} for p, found in all_samples.items()}
    for case, ns in figures["this"].items():
        other = figures.get("against", {}).get(case)
        print(f"{case:22} {ns:7.0f} ns" + (f"   before {other:7.0f} ns   {ns / other:5.2f} x" if other else ""))
    write(args.json, {"benchmark": "call", "batch": BATCH, "rounds": args.rounds, "repeats": args.repeats,
                      "ns_per_call": figures["this"], "against": figures.get("against")})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
