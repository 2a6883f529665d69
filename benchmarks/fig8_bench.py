"""The paper's Fig. 8 on a GPU: its error against float64, and its time.

    python benchmarks/fig8_bench.py [--json out.json] [--size 1024]

The kernel is the paper's lesson, not a fast product: one scalar fp16 multiply-add per thread and step. The time is the
median of launches between two events.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch
from figures import has_device, simple_gemm, write


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--size", type=int, default=1024, help="M, N and K, a multiple of 128")
    parser.add_argument("--repeats", type=int, default=50)
    args = parser.parse_args()
    if not has_device():
        return 2
    n = args.size
    kernel = simple_gemm()(n, n, n)
    torch.manual_seed(0)
    a, b, c = (torch.randn(n, n, device="cuda").half().t() for _ in range(3))  # column-major, as the paper's are
    want = c.double() + a.double() @ b.double()
    out = c.t().clone().t()
    kernel(a, b, out)
    error = ((out.double() - want).norm() / want.norm()).item()
    # Each of the K roundings to fp16 is off by at most 2^-11 of a partial sum; errors add up like a random walk.
    bound = 2.0**-11 * n**0.5
    if not error < bound:
        raise RuntimeError(f"relative error {error:.2e}, want less than {bound:.2e}")
    times = []
    for _ in range(args.repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        kernel(a, b, out)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    figures = {
        "benchmark": "fig8", "m": n, "n": n, "k": n, "relative_error_against_float64": error, "error_bound": bound,
        "kernel_ms": statistics.median(times), "repeats": args.repeats,
    }  # fmt: skip
    for name, value in figures.items():
        print(f"{name:32} {value}")
    write(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
