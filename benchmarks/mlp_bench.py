"""Perceptrons in one kernel against one cuBLASLt call a layer, as the paper's Figure 11.

    python benchmarks/mlp_bench.py [--json out.json] [--repeats 60] [--no-compile]

All run alternately in one process on random data, each in a CUDA graph, the L2 cache filled with other data before each
launch; medians of times between two events. Every result is compared with float64, each layer's rounded to fp16.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import has_device, write
from timing import captured, measure

from graphene import ops

# Table, widths by depth, rows.
LAYERS = (1, 2, 4, 8, 12, 16, 20)
ROWS = (128, 1024, 4096, 8192, 16384, 65536)
OTHERS = (
    ("784-256-128-10, 65536 rows", (784, 256, 128, 10), 65536),
    ("64 wide, 20 layers, 65536 rows", (64,) * 21, 65536),
    ("256 wide, 10 layers, 4096 rows", (256,) * 11, 4096),
    ("256 wide, 10 layers, 65536 rows", (256,) * 11, 65536),
    ("32-64-64-64-3, 262144 rows", (32, 64, 64, 64, 3), 262144),
)


def size(widths: tuple[int, ...], M: int, compiled: bool, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds and errors of each peer. Raises RuntimeError where ours is wrong."""
    torch._dynamo.reset()
    depth = len(widths) - 1
    weights, biases = [], []
    for i in range(depth):
        k, n = widths[i : i + 2]
        weights.append((torch.randn(n, k, device="cuda") * (2 / k) ** 0.5).half())
        biases.append((torch.randn(n, device="cuda") * 0.1).half())
    x = torch.randn(M, widths[0], device="cuda").half()

    def exact() -> Any:
        h = x
        for w, b in zip(weights, biases, strict=True):
            h = torch.relu(h.double() @ w.double().T + b.double()).half()
        return h.double()

    def lt() -> Any:
        h = x
        for w, b in zip(weights, biases, strict=True):
            h = torch._addmm_activation(b, h, w.t())  # cuBLASLt with bias and relu in its epilogue
        return h

    def eager() -> Any:
        h = x
        for w, b in zip(weights, biases, strict=True):
            h = torch.nn.functional.linear(h, w, b).relu_()
        return h

    calls: dict[str, Callable[[], Any]] = {
        "graphene": lambda: ops.fused_mlp(x, weights, biases, "relu", "relu"),
        "cuBLASLt a layer": lt,
        "torch eager": eager,
    }
    if compiled:
        calls["torch.compile"] = torch.compile(eager, dynamic=False)
    want, out = exact(), {}
    with torch.no_grad():
        errors = {n: float((f().double() - want).norm() / want.norm()) for n, f in calls.items()}
        times = measure({n: captured(f) for n, f in calls.items()}, repeats)
    if not errors["graphene"] < 1.5 * errors["cuBLASLt a layer"] + 1e-4:
        raise RuntimeError(f"{M} rows through {widths}: wrong by {errors['graphene']}")
    for n, us in times.items():
        out[n] = {"us": us, "error": errors[n]}
    return out


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    if not has_device():
        return 2
    cases = [("128 wide, 20 layers", f"{M} rows", (128,) * 21, M) for M in ROWS]
    cases += [("128 wide, 16384 rows", f"{n} layers", (128,) * (n + 1), 16384) for n in LAYERS]
    cases += [("other widths", name, widths, M) for name, widths, M in OTHERS]
    rows: list[dict[str, Any]] = []
    for table, case, widths, M in cases:
        compiled = not args.no_compile and table != "other widths"
        found = size(widths, M, compiled, args.repeats)
        base = found["cuBLASLt a layer"]["us"]
        for peer, figures in found.items():
            rows.append({"table": table, "case": case, "peer": peer, **figures, "speedup": base / figures["us"]})
        said = ", ".join(f"{peer} {f['us']:.1f} us" for peer, f in found.items())
        print(f"{table}, {case}: {said}; {rows[-len(found)]['speedup']:.2f}x", flush=True)
    write(args.json, {"benchmark": "mlp", "dtype": "float16", "repeats": args.repeats, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
