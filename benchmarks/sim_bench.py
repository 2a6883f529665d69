"""Simulator speed on one core with every access checked.

    python benchmarks/sim_bench.py [--json out.json] [--size 256] [--k 1024] [--repeat 5]

Paper Fig. 8: a lane operation is one thread executing one atomic spec, here a multiply-add with three loads and a
store. Tensor cores: multiply-adds of mma.m16n8k16 on registers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from figures import simple_gemm, write

import graphene as gr


def tensor_core(steps: int) -> gr.Kernel:
    """Four warps, 32x32 accumulators each: `steps` times eight mma.m16n8k16."""
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel("tensor_core") as kernel:
        d = gr.output("D", [64, 64], gr.fp32, align_bytes=16)
        gr.blocks(1)
        warps = gr.threads(128).tile(32).reshape(0, gr.Layout((2, 2)))
        (wm, wn), _ = warps.indices()
        a = gr.fragment("a", [32, 16], gr.fp16, mma.a, on=warps[wm, wn])
        b = gr.fragment("b", [32, 16], gr.fp16, mma.b, on=warps[wm, wn])
        acc = gr.fragment("acc", [64, 64], gr.fp32, mma.c, on=warps)
        gr.init(acc, 0)
        gr.init(a, 1)
        gr.init(b, 2)
        with gr.loop("i", steps):
            gr.matmul(acc[wm, wn], a, b.T, atom=mma)
        gr.move(d, acc, atom=gr.atom("st.global.b32"))
    return kernel


def best_of(repeat: int, run: Callable[[], object]) -> tuple[float, float]:
    """Least and median processor seconds."""
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds), sorted(seconds)[len(seconds) // 2]


def fig8(size: int, k: int, repeat: int) -> dict[str, float]:
    """Every thread and step: three loads, a multiply-add, a store."""
    kernel = simple_gemm()(size, size, k)
    rng = np.random.default_rng(0)
    a, b, c = (
        np.asfortranarray(rng.standard_normal(shape).astype(np.float16))
        for shape in ((size, k), (k, size), (size, size))
    )
    stats = kernel.simulate(a, b, c)
    best, median = best_of(repeat, lambda: kernel.simulate(a, b, c))
    return {
        "m": size, "n": size, "k": k, "lane_ops_per_second": stats.lane_ops / best,
        "checked_accesses_per_second": stats.accesses / best, "cpu_seconds": best, "median_cpu_seconds": median,
        "target_lane_ops_per_second": 200e6,
    }  # fmt: skip


def mma(repeat: int, steps: int = 2000) -> dict[str, float]:
    """mma.m16n8k16 on registers."""
    kernel = tensor_core(steps)
    d = np.zeros((64, 64), np.float32)
    best, median = best_of(repeat, lambda: kernel.simulate(d))
    return {
        "fma_per_second": 64 * 64 * 16 * steps / best, "cpu_seconds": best, "median_cpu_seconds": median,
        "target_fma_per_second": 1e9,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--size", type=int, default=256, help="M and N of Fig. 8, multiples of 128")
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    figures = {"benchmark": "sim", "fig8": fig8(args.size, args.k, args.repeat), "mma": mma(args.repeat)}
    print(json.dumps(figures, indent=1))
    write(args.json, figures)


if __name__ == "__main__":
    main()
