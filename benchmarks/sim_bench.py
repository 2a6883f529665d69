"""Simulator speed on paper Fig. 8 with every access checked, on one core; prints one JSON line.

A lane operation is one thread executing one atomic spec: here a multiply-add with three loads and a store.

usage: python benchmarks/sim_bench.py [--size 256] [--k 1024] [--repeat 5]
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import numpy as np

import graphene as gr


def simple_gemm(m: int, n: int, k: int) -> gr.Kernel:
    with gr.Kernel("simple_gemm") as kernel:
        a = gr.input("A", gr.col_major(m, k), gr.fp16)
        b = gr.input("B", gr.col_major(k, n), gr.fp16)
        c = gr.inout("C", gr.col_major(m, n), gr.fp16)
        blocks, threads = gr.blocks(m // 128, n // 128), gr.threads(16, 16)
        with gr.spec(c, [a, b], on=(blocks, threads)):
            bm, bn = blocks.indices()
            tm, tn = threads.indices()
            with gr.loop("k", k) as kk, gr.loop("m", 8) as i, gr.loop("n", 8) as j:
                x = a.tile([128, None])[bm, 0].tile([8, None])[tm, 0][i, kk]
                y = b.tile([None, 128])[0, bn].tile([None, 8])[0, tn][kk, j]
                z = c.tile([128, 128])[bm, bn].tile([8, 8])[tm, tn][i, j]
                gr.matmul(z, x, y, on=(blocks.scalar(), threads.scalar()))
    return kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="M and N, multiples of 128")
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    kernel = simple_gemm(args.size, args.size, args.k)
    rng = np.random.default_rng(0)
    a, b, c = (
        np.asfortranarray(rng.standard_normal(shape).astype(np.float16))
        for shape in ((args.size, args.k), (args.k, args.size), (args.size, args.size))
    )
    seconds = []
    for _ in range(args.repeat):
        start = time.process_time()
        stats = kernel.simulate(a, b, c)
        seconds.append(time.process_time() - start)
    best = min(seconds)
    print(
        json.dumps(
            {
                "benchmark": "sim_fig8",
                "m": args.size,
                "n": args.size,
                "k": args.k,
                "lane_ops_per_second": stats.lane_ops / best,
                "checked_accesses_per_second": stats.accesses / best,
                "cpu_seconds": best,
                "median_cpu_seconds": sorted(seconds)[len(seconds) // 2],
                "machine": platform.processor() or platform.machine(),
                "target_lane_ops_per_second": 200e6,
            }
        )
    )


if __name__ == "__main__":
    main()
