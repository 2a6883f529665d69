"""Steps of recurrent networks in one kernel against several of cuBLAS and PyTorch, as the paper's Figure 12.

    python benchmarks/lstm_bench.py [--json out.json] [--repeats 100] [--no-compile]

The paper's cell is relu(x W + h U + b); the cell with four gates is torch.nn.LSTMCell. All run alternately in one
process on random data, each in a CUDA graph, the L2 cache filled with other data before each launch; medians of times
between two events. Every result is compared with float64.
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

import graphene as gr
from graphene import ops

# Rows, units, inputs and states each.
CELLS = ((2048, 2048, 1024), (4096, 4096, 1024), (512, 4096, 1024), (128, 4096, 1024))
LSTM = ((64, 512, 512), (256, 1024, 1024), (1024, 1024, 1024), (2048, 1024, 1024))  # batch, inputs, hidden units


def errors(calls: dict[str, Callable[[], Any]], want: Any) -> dict[str, float]:
    """Of each call's result, or first result, relative to `want`."""

    def one(y: Any) -> float:
        y = y[0] if isinstance(y, tuple) else y
        return float((y.double() - want).norm() / want.norm())

    return {n: one(f()) for n, f in calls.items()}


def paper(M: int, N: int, K: int, compiled: bool) -> tuple[dict[str, Callable[[], Any]], Any]:
    """The ways to compute the paper's cell, and what it is."""
    x, h, b = (torch.randn(*s, device="cuda").half() for s in ((M, K), (M, K), (N,)))
    w, u = ((torch.randn(N, K, device="cuda") / K**0.5).half() for _ in range(2))
    xh, wu = torch.cat([x, h], 1), torch.cat([w, u], 1)

    def five() -> Any:
        s = torch.mm(x, w.t()) + torch.mm(h, u.t())
        return torch.relu(s + b)

    def three() -> Any:
        return torch.relu_(torch.addmm(torch.mm(x, w.t()), h, u.t()).add_(b))

    calls: dict[str, Callable[[], Any]] = {
        "graphene": lambda: ops.rnn_cell(x, h, w, u, b, None, "relu"),
        "five kernels": five,
        "addmm, add, relu": three,
        "cuBLASLt on [x,h] concatenated before": lambda: torch._addmm_activation(b, xh, wu.t()),
        "cuBLASLt, concatenating": lambda: torch._addmm_activation(b, torch.cat([x, h], 1), wu.t()),
    }
    if compiled:
        calls["torch.compile"] = torch.compile(five, dynamic=False)
    return calls, torch.relu(x.double() @ w.double().T + h.double() @ u.double().T + b.double())


def lstm(M: int, inputs: int, hidden: int, compiled: bool) -> tuple[dict[str, Callable[[], Any]], Any]:
    """The ways to step an LSTM, and its next h."""
    ours, cell = (f(inputs, hidden, device="cuda", dtype=torch.float16) for f in (gr.nn.LSTMCell, torch.nn.LSTMCell))
    cell.load_state_dict(ours.state_dict())
    x, h, c = (torch.randn(M, n, device="cuda").half() for n in (inputs, hidden, hidden))
    exact = torch.nn.LSTMCell(inputs, hidden, device="cuda", dtype=torch.float64)
    exact.load_state_dict({n: p.double() for n, p in cell.state_dict().items()})
    calls: dict[str, Callable[[], Any]] = {
        "graphene": lambda: ours(x, (h, c)),
        "torch.nn.LSTMCell": lambda: cell(x, (h, c)),
    }
    if compiled:
        fused = torch.compile(cell, dynamic=False)
        calls["torch.compile"] = lambda: fused(x, (h, c))
    return calls, exact(x.double(), (h.double(), c.double()))[0]


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    if not has_device():
        return 2
    rows: list[dict[str, Any]] = []
    for table, sizes, make in (("relu(x W + h U + b)", CELLS, paper), ("LSTM cell", LSTM, lstm)):
        for case in sizes:
            torch._dynamo.reset()
            with torch.no_grad():
                calls, want = make(*case, not args.no_compile)
                wrong = errors(calls, want)
                times = measure({n: captured(f) for n, f in calls.items()}, args.repeats)
            name, base = "x".join(map(str, case)), list(times.values())[1]
            if not wrong["graphene"] < 1.5 * list(wrong.values())[1] + 1e-4:
                raise RuntimeError(f"{table}, {name}: wrong by {wrong['graphene']}")
            for peer, us in times.items():
                figures = {"us": us, "error": wrong[peer], "speedup": base / us}
                rows.append({"table": table, "case": name, "peer": peer, **figures})
            said = ", ".join(f"{peer} {us:.1f} us" for peer, us in times.items())
            print(f"{table}, {name}: {said}; {base / times['graphene']:.2f}x", flush=True)
    write(args.json, {"benchmark": "lstm", "dtype": "float16", "repeats": args.repeats, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
