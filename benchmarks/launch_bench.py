"""Host time of one kernel launch: ours, a bare cuLaunchKernel from C, a torch operator, Triton and CuPy, in one run.

    python benchmarks/launch_bench.py [--json out.json]

Needs a CUDA device, torch and g++ (a small C helper is compiled for the bare launches). Every peer launches an addition
of two vectors of 4096 floats on torch's current stream. A sample is the time of a batch of launches without waiting for
them, divided by their number; peers take turns, so that all of them see the same machine. The figure is the median.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import has_device, write

from graphene import _core

N = 4096
BATCH = 400  # launches in a sample: fewer than the driver queues

SOURCE = """
extern "C" __global__ void add(const float* a, const float* b, float* c, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""

HELPER = r"""
#include <dlfcn.h>
#include <stdint.h>
typedef unsigned U;
typedef int (*Launch)(void*, U, U, U, U, U, U, U, void*, void**, void**);
static Launch launch;
static void* function;
extern "C" int prepare(const void* cubin, const char* name) {
  void* lib = dlopen("libcuda.so.1", RTLD_NOW);
  auto load = (int (*)(void**, const void*))dlsym(lib, "cuModuleLoadData");
  auto find = (int (*)(void**, void*, const char*))dlsym(lib, "cuModuleGetFunction");
  launch = (Launch)dlsym(lib, "cuLaunchKernel");
  void* module;
  int r = load(&module, cubin);
  return r ? r : find(&function, module, name);
}
extern "C" int run(int times, unsigned grid, void* stream, uint64_t a, uint64_t b, uint64_t c, long long n) {
  void* params[] = {&a, &b, &c, &n};
  int r = 0;
  for (int i = 0; i < times; i++) r |= launch(function, grid, 1, 1, 256, 1, 1, 0, stream, params, 0);
  return r;
}
"""


def manifest() -> _core.LaunchManifest:
    def tensor(name: str, access: str) -> dict[str, Any]:
        return {"name": name, "kind": "tensor", "dtype": "fp32", "dims": [["n", 1]], "flat": [], "access": access,
                "align_bytes": 16, "list_count": 0}  # fmt: skip

    n = {"name": "n", "min": 0, "max": 2**63 - 1, "multiple_of": 1, "from": "shape", "is_param": True, "bits": 64}
    text = {
        "schema": 1, "kernel": "add", "entry": "add",
        "args": [tensor("a", "read"), tensor("b", "read"), tensor("c", "write")],
        "symbols": [n], "facts": [], "grid": ["(n + 255) // 256", 1, 1], "cluster": [1, 1, 1], "block_threads": 256,
        "dynamic_shared_bytes": 0,
    }  # fmt: skip
    return _core.LaunchManifest.from_json(json.dumps(text))


class Add(_core.Launcher):
    """The addition as a launcher."""

    def __init__(self) -> None:
        super().__init__()
        self.manifest = manifest()

    def _manifest(self, arch: str) -> _core.LaunchManifest:
        return self.manifest

    def _prepare(self, device_index: int, arch: str) -> _core.Binary:
        return _core.compile_source(SOURCE, "add", arch)


def bare(folder: Path, a: Any, b: Any, c: Any) -> Callable[[int], None]:
    """`launches(count)` from C: nothing but cuLaunchKernel, its parameters on the stack."""
    (folder / "helper.cpp").write_text(HELPER)
    library = folder / "helper.so"
    compiler = shutil.which("g++") or "c++"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, folder / "helper.cpp", "-ldl"], check=True)
    helper = ctypes.CDLL(str(library))
    arch = _core.driver_info()["devices"][a.device.index]["arch"]
    result = helper.prepare(_core.compile_source(SOURCE, "add", arch).cubin, b"add")
    if result != 0:
        raise RuntimeError(f"the driver refused the cubin: error {result}")
    pointers = [ctypes.c_uint64(t.data_ptr()) for t in (a, b, c)]

    def launches(count: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if helper.run(count, (N + 255) // 256, stream, *pointers, ctypes.c_longlong(N)) != 0:
            raise RuntimeError("a launch failed")

    return launches


def peers(folder: Path, a: Any, b: Any, c: Any) -> dict[str, Callable[[int], None]]:
    """Everything that is installed, by name."""
    ours, add = Add(), torch.add

    def graphene_launches(count: int) -> None:
        for _ in range(count):
            ours(a, b, c)

    def torch_launches(count: int) -> None:
        for _ in range(count):
            add(a, b, out=c)

    out = {
        "bare cuLaunchKernel from C": bare(folder, a, b, c),
        "graphene": graphene_launches,
        "torch.add": torch_launches,
    }
    try:
        import triton
        import triton.language as tl
    except ImportError:
        pass
    else:

        @triton.jit
        def add_kernel(a_ptr, b_ptr, c_ptr, n, block: tl.constexpr):  # type: ignore[no-untyped-def]
            i = tl.program_id(0) * block + tl.arange(0, block)
            tl.store(c_ptr + i, tl.load(a_ptr + i, mask=i < n) + tl.load(b_ptr + i, mask=i < n), mask=i < n)

        launch = add_kernel[((N + 255) // 256,)]

        def triton_launches(count: int) -> None:
            for _ in range(count):
                launch(a, b, c, N, block=256)

        out["Triton"] = triton_launches
    try:
        import cupy
    except ImportError:
        pass
    else:
        raw = cupy.RawKernel(SOURCE, "add")
        arrays = [cupy.from_dlpack(t) for t in (a, b, c)]
        grid, block, arguments = ((N + 255) // 256,), (256,), (*arrays, N)

        def cupy_launches(count: int) -> None:
            for _ in range(count):
                raw(grid, block, arguments)

        out["CuPy RawKernel"] = cupy_launches
    return out


def measure(functions: dict[str, Callable[[int], None]], repeats: int) -> dict[str, float]:
    """Median microseconds of one launch for each peer."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for launches in functions.values():
        launches(BATCH)
    for _ in range(repeats):
        for name, launches in functions.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            launches(BATCH)
            samples[name].append((time.perf_counter() - start) / BATCH * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(s) for name, s in samples.items()}


def main() -> int:
    """Prints the table; with --json also writes it. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=50, help="samples of every peer")
    args = parser.parse_args()
    if not has_device():
        return 2
    a, b = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    c = torch.empty_like(a)
    with tempfile.TemporaryDirectory() as folder:
        functions = peers(Path(folder), a, b, c)
        for name, launches in functions.items():
            c.zero_()
            launches(1)
            torch.cuda.synchronize()
            if not torch.equal(c, a + b):
                raise RuntimeError(f"{name} computed something else")
        figures = measure(functions, args.repeats)
    floor = figures["bare cuLaunchKernel from C"]
    for name, us in figures.items():
        print(f"{name:28} {us:7.2f} us   {us / floor:5.2f} x bare")
    write(args.json, {"benchmark": "launch", "batch": BATCH, "repeats": args.repeats, "us_per_launch": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
