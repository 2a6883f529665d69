"""Speed of a matrix product over block tiles and over warp tiles, with the bank conflicts that the simulator counts.

    python benchmarks/tiles_bench.py [--json out.json] [--size 8192] [--count] [--counts counted.json]

The two experiments of V. Khandelwal's thesis (sections 4.2 and 4.3; there on a GeForce RTX 2080 Ti, with padded
shared memory): block tiles of eight warps, then warp tiles of the block tile 128x128x64. Every tile twice: with
shared memory as it lies, and swizzled. Conflicts are of the whole product: wavefronts beyond the
least possible. --count counts only and needs no GPU; --counts takes what such a run wrote.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from figures import write

import graphene as gr
from graphene import select

BLOCKS = (
    (32, 32, 64), (64, 64, 32), (64, 64, 64), (64, 128, 32), (64, 128, 64), (64, 256, 32), (128, 64, 64),
    (128, 128, 32), (128, 128, 64), (128, 256, 32), (256, 128, 32), (256, 64, 32),
)  # fmt: skip
WARPS = ((16, 64), (32, 32), (64, 16), (32, 64), (64, 32), (64, 64), (32, 128), (128, 32))
STAGES = 3


def product(block: tuple[int, int, int], warp: tuple[int, int], swizzled: bool) -> gr.Kernel:
    """C = A @ B.T of halves, summed in fp32: sizes that the tiles divide, three stages, no epilogue."""
    (BM, BN, BK), (WM, WN) = block, warp
    M, N, K = gr.sym("M", multiple_of=BM), gr.sym("N", multiple_of=BN), gr.sym("K", multiple_of=BK)
    mma, ldsm, cp = gr.atom("mma.m16n8k16.f32.f16"), gr.atom("ldmatrix.x4"), gr.atom("cp.async.cg.16")
    swizzle = gr.swizzle(BK, gr.fp16) if swizzled else None
    with gr.Kernel("product") as kernel:
        A = gr.input("A", [M, K], gr.fp16, align_bytes=16)
        B = gr.input("B", [N, K], gr.fp16, align_bytes=16)
        C = gr.output("C", [M, N], gr.fp16, align_bytes=16)
        down, across = BM // WM, BN // WN
        blocks, threads = gr.blocks(M // BM, N // BN), gr.threads(32 * down * across)
        warps = threads.tile(32).reshape(0, gr.Layout((down, across)))
        (bm, bn), ((wm, wn), _) = blocks.indices(), warps.indices()
        gA, gB = A.tile([BM, None])[bm, 0], B.tile([BN, None])[bn, 0]
        kA, kB = gA.tile([None, BK])[0, :], gB.tile([None, BK])[0, :]
        sA = gr.alloc("sA", [BM, BK], gr.fp16, gr.SH, stages=STAGES, swizzle=swizzle)
        sB = gr.alloc("sB", [BN, BK], gr.fp16, gr.SH, stages=STAGES, swizzle=swizzle)
        ra = gr.fragment("ra", [WM, 16], gr.fp16, mma.a, on=warps[wm, wn], stages=2)
        rb = gr.fragment("rb", [WN, 16], gr.fp16, mma.b, on=warps[wm, wn], stages=2)
        acc = gr.fragment("acc", [BM, BN], gr.fp32, mma.c, on=warps)
        rd, wr = gr.ring("rd", STAGES), gr.ring("wr", STAGES)

        def load(k: Any) -> None:
            gr.move(sA[wr.index], kA[k], on=threads, atom=cp)
            gr.move(sB[wr.index], kB[k], on=threads, atom=cp)
            gr.commit(cp)
            wr.advance()

        def fragments(j: int) -> None:
            gr.move(ra[j % 2], sA[rd.index].tile([WM, 16])[wm, j], atom=ldsm)
            gr.move(rb[j % 2], sB[rd.index].tile([WN, 16])[wn, j], atom=ldsm)

        gr.init(acc, 0)
        for k in range(STAGES - 1):
            load(k)
        with gr.loop("k", K // BK) as k:
            gr.wait(cp, pending=STAGES - 2)
            gr.barrier()
            load(k + STAGES - 1)
            fragments(0)
            for j in range(BK // 16):
                if j + 1 < BK // 16:
                    fragments(j + 1)
                gr.matmul(acc[wm, wn], ra[j % 2], rb[j % 2].T, atom=mma)
            rd.advance()
        gr.wait(cp, pending=0)
        c = gr.fragment("c", [BM, BN], gr.fp16, mma.c, on=warps)
        c[:] = acc
        gr.move(C.tile([BM, BN])[bm, bn], c, atom=gr.atom("st.global.b32"))
    return kernel


def conflicts(kernel: gr.Kernel, block: tuple[int, int, int], size: int) -> int:
    """Of the product of `size` cubed: a block's, counted over two numbers of steps, times blocks and steps."""
    counted = [kernel.report(M=block[0], N=block[1], K=block[2] * steps).conflicts for steps in (2, 3)]
    each = counted[1] - counted[0]
    blocks = (size // block[0]) * (size // block[1])
    return blocks * (counted[0] + each * (size // block[2] - 2))


def cases() -> list[tuple[str, tuple[int, int, int], tuple[int, int]]]:
    """Experiment, block tile, warp tile."""
    out = []
    for bm, bn, bk in BLOCKS:  # eight warps, but for the smallest
        warp = (bm // 2, max(bn // 4, 16)) if bn >= bm else (max(bm // 4, 16), bn // 2)
        out.append(("block tiles", (bm, bn, bk), warp))
    return out + [("warp tiles of 128x128x64", (128, 128, 64), w) for w in WARPS]


def compiles(kernel: gr.Kernel, arch: str) -> bool:
    """Whether it does; the binary is kept."""
    try:
        kernel.compile(arch)
    except gr.GrapheneError:
        return False
    return True


class Speed:
    """Measures kernels on random halves of one size, and that they compute what PyTorch does."""

    def __init__(self, size: int) -> None:
        import torch

        self.torch, self.size = torch, size
        self.a, self.b = (torch.randn(size, size, device="cuda").half() for _ in range(2))
        self.c = torch.empty_like(self.a)
        self.want = self.a @ self.b.T

    def __call__(self, kernel: gr.Kernel) -> float:
        """TFLOP/s, of the median of seven launches."""
        kernel(self.a, self.b, self.c)
        if (error := float((self.c - self.want).abs().max())) > 2.0:
            raise RuntimeError(f"{kernel.name} is off by {error}")
        return self.tflops(lambda: kernel(self.a, self.b, self.c))

    def tflops(self, launch: Any) -> float:
        """TFLOP/s of anything that computes the product."""
        times = []
        for _ in range(9):
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launch()
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)))
        return 2 * self.size**3 / statistics.median(times[2:]) / 1e9


def main() -> int:
    """Prints one line a tile; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--size", type=int, default=8192, help="of M, N and K")
    parser.add_argument("--count", action="store_true", help="count conflicts, measure nothing")
    parser.add_argument("--counts", type=Path, help="what --count --json wrote, instead of counting again")
    args = parser.parse_args()
    counted = {}
    if args.counts is not None:
        data = json.loads(args.counts.read_text())
        if data["size"] == args.size:
            counted = {(r["block"], r["warp"], r["swizzled"]): r["conflicts"] for r in data["rows"]}
    speed = None
    if not args.count:
        try:
            import torch
        except ImportError:
            torch = None
        if torch is None or not torch.cuda.is_available():
            print("no CUDA device or no torch: use --count", file=sys.stderr)
            return 2
        speed = Speed(args.size)
    device = select.of_arch("sm_90a") if speed is None else select.current_device()
    rows: list[dict[str, Any]] = []
    kernels = {(b, w, s): product(b, w, s) for _, b, w in cases() for s in (False, True)}
    if speed is not None:
        with ThreadPoolExecutor() as pool:  # compiled in parallel; what does not compile says so below
            list(pool.map(lambda k: compiles(k, device.arch), kernels.values()))
    for experiment, block, warp in cases():
        for swizzled in (False, True):
            kernel = kernels[block, warp, swizzled]
            tile = select.Tile(*block, *warp, STAGES)
            shape = select.MatmulShape(args.size, args.size, args.size)
            row: dict[str, Any] = {
                "experiment": experiment,
                "block": "x".join(map(str, block)),
                "warp": "x".join(map(str, warp)),
                "swizzled": swizzled,
                "threads": tile.threads,
            }
            known = counted.get((row["block"], row["warp"], swizzled))
            row["conflicts"] = conflicts(kernel, block, args.size) if known is None else known
            if (reason := select.judge(tile, shape, device)) is None:
                row["expected_tflops"] = round(2 * args.size**3 / select.estimate(tile, shape, device).us / 1e6, 1)
            else:
                row["rejected"] = reason
            if speed is not None:
                try:
                    binary = kernel.compile(device.arch)
                    row |= {"registers": binary.registers, "spill_bytes": binary.spill_bytes}
                    row["tflops"] = round(speed(kernel), 1)
                except Exception as e:
                    row["failure"] = str(e).splitlines()[0]
            rows.append(row)
            print("  ".join(f"{k}={v}" for k, v in row.items() if k != "experiment"), flush=True)
    figures: dict[str, Any] = {"benchmark": "tiles", "size": args.size, "stages": STAGES, "rows": rows}
    if speed is not None:
        figures["torch_tflops"] = round(speed.tflops(lambda: speed.torch.matmul(speed.a, speed.b.T)), 1)
    write(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
