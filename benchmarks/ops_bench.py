"""Host time of one call of graphene.ops, the result's allocation included, against a bare cuLaunchKernel and PyTorch's.

    python benchmarks/ops_bench.py [--json out.json] [--repeats 50]

Needs a CUDA device, torch and g++ (for the bare launches). Small tensors, so that the GPU is done before the host; a
sample is the time of a batch of calls without waiting for them, divided by their number; peers take turns, so that all
of them see the same machine. The figure is the median. `torch.ops.graphene.*` is the same operator through PyTorch's
dispatcher.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import has_device, write
from launch_bench import N, bare, measure

from graphene import ops

BARE = "bare cuLaunchKernel from C"


def batches(function: Callable[..., Any], *args: Any, **named: Any) -> Callable[[int], None]:
    """`calls(count)` makes `count` calls and drops their results."""

    def calls(count: int) -> None:
        for _ in range(count):
            function(*args, **named)

    return calls


def peers(folder: Path) -> dict[str, Callable[[int], None]]:
    """Everything that is measured, by name."""
    f, ns = torch.nn.functional, torch.ops.graphene
    a, b = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    half = {"device": "cuda", "dtype": torch.float16}
    x, w, bias = torch.randn(64, 64, **half), torch.randn(64, 64, **half), torch.randn(64, **half)
    rows, weight = torch.randn(64, 1024, **half), torch.randn(1024, **half)
    out = torch.empty_like(x)
    return {
        BARE: bare(folder, a, b, torch.empty_like(a)),
        "torch.add": batches(torch.add, a, b),
        "torch.matmul": batches(torch.matmul, x, w),
        "graphene.ops.matmul": batches(ops.matmul, x, w),
        "graphene.ops.matmul out=": batches(ops.matmul, x, w, out=out),
        "torch linear": batches(f.linear, x, w, bias),
        "graphene.ops.matmul bias relu": batches(ops.matmul, x, w, bias, "relu"),
        "torch.ops.graphene.matmul": batches(ns.matmul.default, x, w),
        "torch.ops.graphene.matmul_forward": batches(ns.matmul_forward.default, x, w),
        "torch layer_norm": batches(f.layer_norm, rows, (1024,), weight, weight),
        "graphene.ops.layer_norm": batches(ops.layer_norm, rows, (1024,), weight, weight),
        "torch rms_norm": batches(f.rms_norm, rows, (1024,), weight),
        "graphene.ops.rms_norm": batches(ops.rms_norm, rows, (1024,), weight),
        "torch softmax": batches(f.softmax, rows, -1),
        "graphene.ops.softmax": batches(ops.softmax, rows, -1),
    }


def main() -> int:
    """Prints the table; with --json also writes it. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=50, help="samples of every peer")
    args = parser.parse_args()
    if not has_device():
        return 2
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(peers(Path(folder)), args.repeats)
    for name, us in figures.items():
        print(f"{name:36} {us:7.2f} us   {us / figures[BARE]:5.2f} x bare")
    write(args.json, {"benchmark": "ops", "repeats": args.repeats, "us_per_call": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
