"""From Python to a cubin: building, verifying and printing the paper's Fig. 8 kernel, and NVRTC's part.

    python benchmarks/jit_bench.py [--json out.json] [--arch sm_90a]

Medians over one process, which has built another kernel before (the registry of instructions is read once). No GPU is
needed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

os.environ["GRAPHENE_CACHE"] = "0"

from figures import simple_gemm, write

from graphene import _core


def main() -> int:
    """Prints the figures in milliseconds; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    build = simple_gemm()
    _core.lower(build(256, 256, 256).ir, args.arch)
    samples: dict[str, list[float]] = {
        k: [] for k in ("build_ms", "verify_and_lower_ms", "print_ms", "to_text_ms", "nvrtc_ms")
    }
    for repeat in range(args.repeats):
        n = 1024 + 128 * repeat  # a kernel not seen before
        times = [time.perf_counter()]
        kernel = build(n, n, n)
        times.append(time.perf_counter())
        program = _core.lower(kernel.ir, args.arch)
        times.append(time.perf_counter())
        source = program.cuda_source()
        times.append(time.perf_counter())
        _core.compile_source(source, program.entry, args.arch)
        times.append(time.perf_counter())
        steps = [(b - a) * 1e3 for a, b in pairwise(times)]
        for name, value in zip(("build_ms", "verify_and_lower_ms", "print_ms", "nvrtc_ms"), steps, strict=True):
            samples[name].append(value)
        samples["to_text_ms"].append(sum(steps[:3]))
    result: dict[str, object] = {"benchmark": "jit", "arch": args.arch, "repeats": args.repeats}
    result |= {name: statistics.median(values) for name, values in samples.items()}
    result["first_nvrtc_ms"] = samples["nvrtc_ms"][0]
    print(json.dumps(result, indent=2))
    write(args.json, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
