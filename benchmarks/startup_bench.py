"""What a fresh process pays: `import graphene`, its first kernel (paper Fig. 8) built and lowered, a cubin from disk.

    python benchmarks/startup_bench.py [--json out.json]

Each sample is a new process; the figure is the median. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import write

import graphene

CHILD = """
import json, sys, time
start = time.perf_counter()
import graphene
imported = time.perf_counter()
from graphene import _core
source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2.0f; }'
begin = time.perf_counter()
binary = _core.compile_source(source, "k", "sm_90a")
end = time.perf_counter()
import graphene as gr
def simple_gemm(M=1024, N=1024, K=1024):
    with gr.Kernel("simple_gemm") as kernel:
        A = gr.input("A", gr.col_major(M, K), gr.fp16)
        B = gr.input("B", gr.col_major(K, N), gr.fp16)
        C = gr.inout("C", gr.col_major(M, N), gr.fp16)
        blocks, threads = gr.blocks(M // 128, N // 128), gr.threads(16, 16)
        with gr.spec(C, [A, B], on=(blocks, threads)):
            bm, bn = blocks.indices()
            tm, tn = threads.indices()
            with gr.loop("k", K) as k, gr.loop("m", 8) as m, gr.loop("n", 8) as n:
                a = A.tile([128, None])[bm, 0].tile([8, None])[tm, 0][m, k]
                b = B.tile([None, 128])[0, bn].tile([None, 8])[0, tn][k, n]
                c = C.tile([128, 128])[bm, bn].tile([8, 8])[tm, tn][m, n]
                gr.matmul(c, a, b, on=(blocks.scalar(), threads.scalar()))
    return kernel
clock = [time.perf_counter()]
kernel = simple_gemm()
clock.append(time.perf_counter())
kernel.cuda_source("sm_90a")
clock.append(time.perf_counter())
print(json.dumps({
    "build_ms": (clock[1] - clock[0]) * 1e3, "lower_ms": (clock[2] - clock[1]) * 1e3,
    "import_ms": (imported - start) * 1e3, "cubin_ms": (end - begin) * 1e3, "cached": binary.from_cache,
    "nvrtc_ms": binary.compile_ms, "heavy": [m for m in ("torch", "numpy") if m in sys.modules],
}))
"""


def sample(cache: str) -> dict[str, object]:
    """One new process."""
    root = str(Path(graphene.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = os.environ | {"GRAPHENE_CACHE_DIR": cache, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=15, help="processes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        first = sample(cache)
        rest = [sample(cache) for _ in range(args.repeats)]
    if first["cached"] or not all(r["cached"] for r in rest):
        raise RuntimeError("the cache did not do what it is for")
    result = {
        "benchmark": "startup",
        "import_ms": statistics.median(float(str(r["import_ms"])) for r in rest),
        "fig8_built_ms": statistics.median(float(str(r["build_ms"])) for r in rest),
        "fig8_lowered_ms": statistics.median(float(str(r["lower_ms"])) for r in rest),
        "cubin_from_disk_ms": statistics.median(float(str(r["cubin_ms"])) for r in rest),
        "first_process_ms": first["cubin_ms"],
        "nvrtc_ms": first["nvrtc_ms"],
        "imported_with_it": rest[0]["heavy"],
    }
    for name, value in result.items():
        print(f"{name:20} {format(value, '.2f') if isinstance(value, float) else value}")
    write(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
