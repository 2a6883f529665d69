"""Eight kernels that people write every day, beside the same in Triton and in PyTorch.

    python benchmarks/everyday_bench.py [--json out.json] [--only rotary,top_k] [--seconds 60]

The kernels are those of examples/14_everyday.py and benchmarks/everyday_triton.py. Medians of calls captured in CUDA
graphs, in turns, with a cold cache; every result is compared with PyTorch's. The first call of each is timed with empty
caches of compiled kernels.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import Deadline, arguments, has_device, write
from timing import captured, measure

HERE = Path(__file__).resolve().parent


def problems(ours: dict[str, Any], theirs: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    """By name: what makes the arguments, and then a call of each way with what it returns."""

    @functools.cache
    def g() -> torch.Generator:
        return torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=g()).to(dtype)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, device="cuda", dtype=dtype)

    def integers(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device="cuda", generator=g(), dtype=torch.int64).to(torch.int32)

    def rotary() -> dict[str, Any]:
        x, angles = normal(4096, 32, 128, dtype=torch.half), normal(4096, 64)
        cos, sin, y, kernel = angles.cos(), angles.sin(), empty(4096, 32, 128, dtype=torch.half), ours["rotary"](64)

        def eager() -> torch.Tensor:
            a, b = x.float().chunk(2, -1)
            c, s = cos[:, None], sin[:, None]
            return torch.cat([a * c - b * s, b * c + a * s], -1).half()

        return {"graphene": lambda: (kernel(x, y, cos, sin), y)[1], "triton": lambda: theirs.rotary(x, cos, sin),
                "torch": eager}  # fmt: skip

    def histogram() -> dict[str, Any]:
        x, counts, kernel = integers(256, 2**24), empty(256, dtype=torch.int32), ours["histogram"](per=16)
        return {"graphene": lambda: (counts.zero_(), kernel(x, counts), counts)[2],
                "triton": lambda: theirs.histogram(x),
                "torch": lambda: torch.histc(x.float(), 256, 0, 255).int()}  # fmt: skip

    def row_scan() -> dict[str, Any]:
        x, y, kernel = integers(8, 4096, 4096).float(), empty(4096, 4096), ours["row_scan"]()
        return {"graphene": lambda: (kernel(x, y), y)[1], "triton": lambda: theirs.row_scan(x),
                "torch": lambda: x.cumsum(1)}  # fmt: skip

    def int4_product() -> dict[str, Any]:
        n, k, group = 8192, 8192, 128
        x, y = normal(1, k, dtype=torch.half), empty(1, n, dtype=torch.half)
        w = torch.randint(-(2**31), 2**31, (n, k // 8), device="cuda", generator=g(), dtype=torch.int64).to(torch.int32)
        scales, kernel = normal(n, k // group, dtype=torch.half) / 64, ours["int4_product"](1, group)
        shifts = torch.arange(0, 32, 4, device="cuda")
        q = ((w[..., None] >> shifts) & 15).reshape(n, k // group, group).half() - 8
        wide = (q * scales[..., None]).reshape(n, k)
        return {"graphene": lambda: (kernel(x, y, w.view(torch.uint32), scales), y)[1],
                "triton": lambda: theirs.int4_product(x, w, scales), "torch": lambda: x @ wide.T}  # fmt: skip

    def convolution() -> dict[str, Any]:
        x, w, y, kernel = normal(64, 512, 512), normal(64, 3, 3), empty(64, 512, 512), ours["convolution"]()
        return {"graphene": lambda: (kernel(x, y, w), y)[1], "triton": lambda: theirs.convolution(x, w),
                "torch": lambda: torch.conv2d(x[None], w[:, None], padding=1, groups=64)[0]}  # fmt: skip

    def cross_entropy() -> dict[str, Any]:
        x, target, loss, kernel = normal(4096, 32768), integers(32768, 4096), empty(4096), ours["cross_entropy"]()
        return {"graphene": lambda: (kernel(x, target, loss), loss)[1],
                "triton": lambda: theirs.cross_entropy(x, target),
                "torch": lambda: torch.nn.functional.cross_entropy(x, target.long(), reduction="none")}  # fmt: skip

    def top_k() -> dict[str, Any]:
        x, values, columns = normal(8192, 1024), empty(8192, 8), empty(8192, 8, dtype=torch.int32)
        kernel = ours["top_k"]()
        return {"graphene": lambda: (kernel(x, values, columns), values)[1], "triton": lambda: theirs.top_k(x)[0],
                "torch": lambda: x.topk(8)[0]}  # fmt: skip

    def transpose() -> dict[str, Any]:
        x, y = normal(16, 2048, 2048, dtype=torch.half), empty(16, 2048, 2048, dtype=torch.half)
        kernel = ours["transpose"]()
        return {"graphene": lambda: (kernel(x, y), y)[1], "triton": lambda: theirs.transpose(x),
                "torch": lambda: x.transpose(1, 2).contiguous()}  # fmt: skip

    return {"int4_product": int4_product, "cross_entropy": cross_entropy, "rotary": rotary, "histogram": histogram,
            "row_scan": row_scan, "top_k": top_k, "transpose": transpose, "convolution": convolution}  # fmt: skip


def agree(got: torch.Tensor, want: torch.Tensor) -> bool:
    tolerance = 2e-2 if got.dtype == torch.half else 1e-3
    return bool(torch.allclose(got.double(), want.double(), rtol=tolerance, atol=tolerance))


def one(ways: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The times of one kernel's ways, and the first call's; raises RuntimeError where a result is wrong."""
    first, results = {}, {}
    for way, call in ways.items():
        torch.cuda.synchronize()
        began = time.perf_counter()
        results[way] = call().clone()
        torch.cuda.synchronize()
        first[way] = 1e3 * (time.perf_counter() - began)
    wrong = [way for way, got in results.items() if not agree(got, results["torch"])]
    if wrong:
        raise RuntimeError(f"other results than PyTorch's: {wrong}")
    times = measure({way: captured(call) for way, call in ways.items()}, repeats)
    ratio = times["triton"] / times["graphene"] if "triton" in times else None
    return {"us": times, "first_call_ms": first, "speed_of_triton": ratio}


def main() -> int:
    """Prints a line of JSON a kernel; with --json also writes them all. Returns the exit status."""
    args = arguments(__doc__, tuple(problems({}, None)))
    if not has_device():
        return 2
    ours = runpy.run_path(str(HERE.parent / "examples/14_everyday.py"))
    try:
        import everyday_triton as theirs
    except ImportError:
        theirs = None
    figures: dict[str, Any] = {"benchmark": "everyday", "kernels": {}}
    deadline = Deadline(args.seconds)
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"GRAPHENE_CACHE_DIR": empty, "TRITON_CACHE_DIR": empty}
        for name, make in problems(ours, theirs).items():
            if name not in args.only:
                continue
            if deadline.over():
                figures.setdefault("left_out", []).append(name)
                continue
            try:
                ways = make()
                if theirs is None:
                    del ways["triton"]
                figures["kernels"][name] = one(ways, args.repeats)
            except Exception as e:  # the others are still measured
                figures["kernels"][name] = {"error": f"{type(e).__name__}: {e}"[:300]}
            torch.cuda.empty_cache()
            print(json.dumps({name: figures["kernels"][name]}), flush=True)
    write(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
