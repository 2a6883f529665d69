"""Layer normalisation, its root-mean-square form and softmax against torch, torch.compile and a plain copy.

    python benchmarks/norms_bench.py [--json out.json] [--dtype float16] [--sizes 8192x768 12288x1024] [--no-compile]

All run alternately in one process on random data, the L2 cache filled with other data before each launch; medians of
times between two events. Bytes are those of a copy: what is read once and written once. Each result is compared with
float64 in the same run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import has_device, write
from timing import measure
from torch.nn import functional

import graphene as gr
from graphene import _core
from graphene.kernels import layernorm_kernel, rmsnorm_kernel, softmax_kernel
from graphene.select import select_norm, select_softmax

SIZES = ("8192x768", "12288x1024", "8192x4096", "4096x8192", "32768x4096", "8192x32768")
TYPES = {"float16": gr.fp16, "bfloat16": gr.bf16, "float32": gr.fp32}
EPS = 1e-5


def torch_functions() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """What torch calls them, of (x, gamma, beta)."""
    return {
        "layernorm": lambda x, g, b: functional.layer_norm(x, x.shape[-1:], g, b, EPS),
        "rmsnorm": lambda x, g, b: functional.rms_norm(x, x.shape[-1:], g, EPS),
        "softmax": lambda x, g, b: torch.softmax(x, -1),
    }


def graphene_functions(M: int, N: int, dtype: gr.DType) -> dict[str, tuple[gr.Kernel, Callable[..., None]]]:
    """The kernels, and how they are called with (x, gamma, beta, y)."""
    shared = int(_core.driver_info()["devices"][torch.cuda.current_device()]["shared_bytes"])
    where = {"dense_bytes": 16, "shared_bytes": shared, "device": torch.cuda.get_device_name()}
    ln = layernorm_kernel(select_norm(M, N, dtype, **where))
    rms = rmsnorm_kernel(select_norm(M, N, dtype, kind="rmsnorm", beta=False, **where))
    sm = softmax_kernel(select_softmax(M, N, dtype, **where))
    return {
        "layernorm": (ln, lambda x, g, b, y: ln(x, g, b, y, EPS)),
        "rmsnorm": (rms, lambda x, g, b, y: rms(x, g, y, EPS)),
        "softmax": (sm, lambda x, g, b, y: sm(x, y)),
    }


def size(M: int, N: int, dtype: str, compiled: bool, repeats: int) -> list[dict[str, Any]]:
    """The rows of one size. Raises RuntimeError where a result is wrong."""
    torch._dynamo.reset()  # past its limit of recompilations it would run eagerly
    x = torch.randn(M, N, device="cuda").to(getattr(torch, dtype))
    g, b = (torch.randn(N, device="cuda").to(x.dtype) for _ in range(2))
    y, z = torch.full_like(x, float("nan")), torch.empty_like(x)
    ways: dict[str, Callable[[], Any]] = {"copy_": lambda: z.copy_(x)}
    if compiled:
        torch._dynamo.reset()  # else it stops compiling after eight sizes
    for name, (_, call) in graphene_functions(M, N, TYPES[dtype]).items():
        eager = torch_functions()[name]
        check(name, lambda call=call: call(x, g, b, y), y, eager, x, g, b)
        ways[f"{name} graphene"] = lambda call=call: call(x, g, b, y)
        ways[f"{name} torch"] = lambda eager=eager: eager(x, g, b)
        if compiled:
            fused = torch.compile(eager, dynamic=False)
            ways[f"{name} torch.compile"] = lambda fused=fused: fused(x, g, b)
    times = measure(ways, repeats)
    rows = []
    for way, us in times.items():
        table, _, peer = way.partition(" ")
        row = {"case": f"{M}x{N}", "peer": peer or table, "tb_per_s": 2 * x.numel() * x.element_size() / us / 1e6}
        for t in [table] if peer else torch_functions():  # the copy stands beside each of them
            rows.append({"table": t, **row, "us": us, "of_copy": times["copy_"] / us})
    return rows


def check(name: str, run: Callable[[], Any], y: Any, eager: Any, x: Any, g: Any, b: Any) -> None:
    """Raises RuntimeError unless the first and the last rows are right and everything is written."""
    y.fill_(float("nan"))
    run()
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-5}[x.dtype]
    for part in (slice(0, 256), slice(-256, None)):
        want = eager(x[part].double(), g.double(), b.double())
        error = ((y[part].double() - want).norm() / want.norm()).item()
        if not error < tolerance:
            raise RuntimeError(f"{name} of {tuple(x.shape)} is wrong by {error}")
    if torch.isnan(y).any():
        raise RuntimeError(f"{name} of {tuple(x.shape)} leaves elements unwritten")


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--dtype", choices=TYPES, default="float16")
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    if not has_device():
        return 2
    rows: list[dict[str, Any]] = []
    for text in args.sizes:
        M, N = map(int, text.split("x"))
        found = size(M, N, args.dtype, not args.no_compile, args.repeats)
        rows += found
        print(f"{text}: copy_ {found[0]['us']:.1f} us, {found[0]['tb_per_s']:.2f} TB/s; of it:")
        for name in torch_functions():
            shares = [f"{r['peer']} {r['of_copy']:.3f}" for r in found if r["table"] == name][1:]
            print(f"    {name:10} {', '.join(shares)}", flush=True)
    write(args.json, {"benchmark": "norms", "dtype": args.dtype, "repeats": args.repeats, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
