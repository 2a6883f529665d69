"""From Python to a cubin: building, verifying and printing the paper's Fig. 8 kernel, and NVRTC's part.

    python benchmarks/jit_bench.py [--json out.json] [--arch sm_90a]

Medians over one process, which has built another kernel before (the registry of instructions is read once). No GPU is
needed. Then a product on tensor cores, from Python to a cubin that no cache holds: the library's GEMM in three tiles,
and, where Triton and a GPU are there, a product of the same tiles in Triton.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

os.environ["GRAPHENE_CACHE"] = "0"

from figures import simple_gemm, write

from graphene import _core

TILES = ((128, 128, 32), (128, 64, 32), (64, 64, 64))


def ours(arch: str) -> list[float]:
    """Milliseconds from Python to a cubin for each of the tiles, of the product alone, as Triton's is."""
    from graphene.kernels import gemm_sm80

    out = []
    for bm, bn, bk in TILES:
        start = time.perf_counter()
        gemm_sm80(bm, bn, bk, 3, warps=(2, 2), bias=False, epilogue=lambda x: x).compile(arch)
        out.append((time.perf_counter() - start) * 1e3)
    return out


def of_triton() -> list[float]:
    """The same for Triton's plain loop, by its first call with each of the tiles. Raises ImportError without Triton."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
        m = tl.program_id(0) * BM + tl.arange(0, BM)
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for i in range(0, K, BK):
            x = tl.load(a + m[:, None] * K + (i + k)[None, :], mask=(m[:, None] < M) & ((i + k)[None, :] < K), other=0)
            y = tl.load(b + n[None, :] * K + (i + k)[:, None], mask=(n[None, :] < N) & ((i + k)[:, None] < K), other=0)
            acc += tl.dot(x, y)
        tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.float16), mask=(m[:, None] < M) & (n[None, :] < N))

    a, b = (torch.randn(256, 256, device="cuda").half() for _ in range(2))
    c = torch.empty_like(a)
    out = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        for bm, bn, bk in ((32, 32, 32), *TILES):  # the first starts Triton, as NVRTC has been started before
            torch.cuda.synchronize()
            start = time.perf_counter()
            product[256 // bm, 256 // bn](a, b, c, 256, 256, 256, BM=bm, BN=bn, BK=bk, num_stages=3)
            torch.cuda.synchronize()
            out.append((time.perf_counter() - start) * 1e3)
    return out[1:]


def products(arch: str) -> list[dict[str, object]]:
    """One row a tile and peer."""
    rows: list[dict[str, object]] = []
    peers = {"graphene": lambda: ours(arch), "Triton": of_triton}
    for peer, measure in peers.items():
        try:
            times = measure()
        except Exception as e:
            if peer == "graphene":
                raise
            print(f"no {peer}: {type(e).__name__}")
            continue
        for tile, ms in zip(TILES, times, strict=True):
            case = "x".join(map(str, tile))
            rows.append({"table": "matrix product, from Python to a cubin", "case": case, "peer": peer, "ms": ms})
            print(f"product {case:11} {peer:9} {ms:7.0f} ms")
    return rows


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
    result["rows"] = products(args.arch)
    write(args.json, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
