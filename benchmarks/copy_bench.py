"""What symbolic sizes cost: a vector copy of 1 GiB, compiled once for every size, against torch.Tensor.copy_.

    python benchmarks/copy_bench.py [--json out.json] [--gib 1]

Both run alternately in one process; medians of launches between two events; the result is compared bit by bit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch
from figures import has_device, write

import graphene as gr


def vector_copy(threads: int = 256, vectors: int = 8) -> gr.Kernel:
    """Y = X for any (M, N) fp16 row-major, N % 8 == 0: 16 bytes a thread and step, rows and columns symbolic."""
    M, N = gr.sym("M", max=2**31 - 1), gr.sym("N", multiple_of=8, max=2**31 - 1)
    with gr.Kernel("vector_copy") as kernel:
        X = gr.input("X", gr.row_major(M, N), gr.fp16, align_bytes=16)
        Y = gr.output("Y", gr.row_major(M, N), gr.fp16, align_bytes=16)
        width = threads * vectors * 8
        (bn, bm), (_,) = gr.blocks(gr.ceil_div(N, width), M).indices(), (t := gr.threads(threads)).indices()
        tile = [1, width]
        ld, st = gr.atom("ld.global.v4.b32"), gr.atom("st.global.v4.b32")
        gr.move(Y.tile(tile)[bm, bn], X.tile(tile)[bm, bn], on=t, atom=(ld, st))
    return kernel


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    if not has_device():
        return 2
    columns = 16384
    rows = int(args.gib * 2**30) // (2 * columns)
    x = torch.randn(rows, columns, device="cuda").half()
    y, z = torch.empty_like(x), torch.empty_like(x)
    kernel = vector_copy()
    ways = {"graphene": lambda: kernel(x, y), "torch": lambda: z.copy_(x)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeats + 3):
        for name, run in ways.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    if not (torch.equal(x, y) and torch.equal(x, z)):
        raise RuntimeError("the copies differ")
    gbps = {name: 2 * x.numel() * 2 / statistics.median(t[3:]) / 1e6 for name, t in times.items()}
    figures = {
        "benchmark": "copy", "rows": rows, "columns": columns,
        "graphene_gb_per_s": gbps["graphene"], "torch_gb_per_s": gbps["torch"],
        "ratio": gbps["graphene"] / gbps["torch"], "repeats": args.repeats,
    }  # fmt: skip
    for name, value in figures.items():
        print(f"{name:32} {value}")
    write(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
