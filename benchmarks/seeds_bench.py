"""False alarms: every kernel of the library, correct as it is, simulated under many schedules.

    python benchmarks/seeds_bench.py [--json out.json] [--seeds 1000] [--jobs 2]

A seed shuffles blocks and warps. A correct kernel must raise no alarm under any, and give the same bits under all.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from figures import write

import graphene as gr
from graphene.kernels import flash_fwd, fused_mlp, gemm_sm80, layernorm


def problem(name: str) -> tuple[gr.Kernel, list[object], np.ndarray, tuple[float, ...]]:
    """A kernel, inputs of several ragged blocks, the output, scalars."""
    rng = np.random.default_rng(0)

    def f16(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float16)

    if name == "gemm_sm80":
        return gemm_sm80(64, 64, 32, 3), [f16(65, 232), f16(72, 232), f16(72)], np.zeros((65, 72), np.float16), ()
    if name == "flash_fwd":
        q, k, v = f16(1, 70, 2, 64), f16(1, 100, 1, 64), f16(1, 100, 1, 64)
        return flash_fwd(64, 64, 32, 4), [q, k, v], np.zeros_like(q), (0.18,)
    if name == "layernorm":
        return layernorm(1000), [f16(3, 1000), f16(1000), f16(1000)], np.zeros((3, 1000), np.float16), ()
    weights, bias = [f16(128, 128) for _ in range(3)], [f16(128) for _ in range(3)]
    return fused_mlp(), [f16(130, 128), weights, bias], np.zeros((130, 128), np.float16), ()


def alarms(name: str, seeds: range) -> list[str]:
    """What went wrong, by seed."""
    kernel, inputs, out, scalars = problem(name)
    kernel.simulate(*inputs, out, *scalars)
    found = []
    for seed in seeds:
        again = np.zeros_like(out)
        try:
            kernel.simulate(*inputs, again, *scalars, seed=seed)
        except gr.SimulationError as e:
            found.append(f"seed {seed}: {e}")
            continue
        if not np.array_equal(again.view(np.uint16), out.view(np.uint16)):
            found.append(f"seed {seed}: other bits")
    return found


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status: 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    names = ["gemm_sm80", "flash_fwd", "layernorm", "fused_mlp"]
    total: dict[str, int] = {}
    with ProcessPoolExecutor(args.jobs) as pool:
        chunks = [range(s, min(s + 25, args.seeds + 1)) for s in range(1, args.seeds + 1, 25)]
        for name in names:
            found = [a for part in pool.map(partial(alarms, name), chunks) for a in part]
            total[name] = len(found)
            print(f"{name:12} {args.seeds} seeds, {len(found)} alarms", *found[:3], sep="\n  ")
    write(args.json, {"benchmark": "seeds", "seeds": args.seeds, "alarms": total})
    return 1 if any(total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
