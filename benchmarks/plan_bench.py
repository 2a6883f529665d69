"""Planned kernels beside the library's, PyTorch's operators and its compiler, in one run.

    python benchmarks/plan_bench.py [--json out.json] [--only fused,product] [--repeats 9] [--seconds 600]
                                    [--build sm_90a]

Every way takes its turns in a CUDA graph of several calls, on random operands in rotation that the L2 cache does not
hold; the figure is the median. Each result of the same run is compared with the graph in float32. `expected` is the
planner's own figure less a launch, so that the model can be held to the clock. "planned" is the plan as it is chosen;
other names of plans say what was pinned. --seconds begins no case after that time, and --build plans, writes and
compiles every kernel for an architecture, which needs no GPU, and prints registers, spills and shared memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from figures import Deadline, arguments, has_device, write
from plan_cases import TABLES, Case, Operands, Ready
from timing import in_graphs

import graphene as gr
from graphene import plan
from graphene.select.model import LAUNCH_US

L2_BYTES = 120_000_000  # twice what the cache of an H200 holds
MOST_ERROR = 2e-2  # of the largest element
PLANNED_FOR = "sm_90a"
TILE = ("tile", "tile.m", "tile.n", "loop.k", "stages", "warps", "threads")


def planned(case: Case, arch: str) -> dict[str, plan.Plan | str]:
    """The case's plans, or why there is none."""
    out: dict[str, plan.Plan | str] = {}
    for name, pin in case.plans.items():
        own = {p: v for p, v in pin.items() if p != "instruction" or arch == "sm_90a"}
        try:
            out[name] = case.graph.plan(arch, pin=own, **case.sizes)
        except gr.SelectError as e:
            out[name] = str(e).splitlines()[0]
    return out


def build(case: Case, arch: str) -> list[dict[str, Any]]:
    """What the compiler says of the case's kernels."""
    rows = []
    for name, p in planned(case, arch).items():
        row: dict[str, Any] = {"case": case.name, "peer": name}
        if isinstance(p, str):
            row["failure"] = p
        else:
            made = [x.kernel.compile(arch) for x in p.launches()]
            row |= {"registers": made[0].registers, "spill_bytes": sum(x.spill_bytes for x in made)}
            row["expected_us"] = round(p.expected_us, 2)
            row["tile"] = {path: d.value for path, d in p.decisions.items() if path in TILE}
        rows.append(row)
    return rows


def result(case: Case, p: plan.Plan) -> torch.Tensor:
    """A place for a result."""
    (out,) = case.graph.outputs
    shape = [a.size or case.sizes[a.name] for a in out.axes]
    return torch.full(shape, float("nan"), device="cuda", dtype={"fp32": torch.float32}.get(str(out.dtype), torch.half))


def ways(case: Case, sets: Sequence[Operands]) -> tuple[dict[str, list[Callable[[], Any]]], list[dict[str, Any]]]:
    """The calls of each way, one for each set of operands; and rows of ways that there are not."""
    calls: dict[str, list[Callable[[], Any]]] = {}
    failed: list[dict[str, Any]] = []
    plans = planned(case, PLANNED_FOR)
    with ThreadPoolExecutor() as pool:
        made = {
            n: [pool.submit(x.kernel.compile, PLANNED_FOR) for x in p.launches()]
            for n, p in plans.items() if not isinstance(p, str)
        }  # fmt: skip
    for name, p in plans.items():
        if isinstance(p, str):
            failed.append({"case": case.name, "peer": name, "failure": p})
            continue
        for future in made[name]:
            future.result()
        order, y = [v.name for v in p.kernel_inputs()], result(case, p)

        def one(x: Operands, kernel: Any = p, order: Any = order, y: Any = y) -> Callable[[], Any]:
            def run() -> Any:
                kernel(*(x[n] for n in order), y)
                return y

            return run

        calls[name] = [one(x) for x in sets]
    others: dict[str, Ready] = {**case.library, **case.alone}
    others["PyTorch"] = lambda x, _: lambda: case.eager(x)
    if case.compiled:
        torch._dynamo.reset()
        for name, mode in (("torch.compile", None), ("max-autotune", "max-autotune-no-cudagraphs")):
            compiled = torch.compile(case.eager, mode=mode, dynamic=False)
            others[name] = lambda x, _, compiled=compiled: lambda: compiled(x)
    for name, ready in others.items():
        try:
            results: Operands = {}
            calls[name] = [ready(x, results) for x in sets]
        except Exception as e:  # a device without the library's instructions; the others are still measured
            failed.append({"case": case.name, "peer": name, "failure": f"{type(e).__name__}: {e}"[:300]})
    return calls, failed


def measured(case: Case, repeats: int) -> list[dict[str, Any]]:
    """A row for each way."""
    first = case.operands()
    moved = sum(x.nbytes for x in first.values())
    sets = [first, *(case.operands() for _ in range(min(40, L2_BYTES // moved)))]
    want = case.eager({n: x.float() for n, x in first.items()})
    calls, rows = ways(case, sets)
    errors = {}
    for name, of in list(calls.items()):
        try:
            got = of[0]()
            torch.cuda.synchronize()
            if name in case.alone:
                continue
        except Exception as e:
            rows.append({"case": case.name, "peer": name, "failure": f"{type(e).__name__}: {e}"[:300]})
            del calls[name]
            continue
        errors[name] = float((got.float() - want).abs().max() / want.abs().max())
        if not errors[name] < MOST_ERROR:
            rows.append({"case": case.name, "peer": name, "failure": f"wrong by {errors[name]:.1e}"})
            del calls[name]
    count = max(len(sets), 12)
    plans = {n: p for n, p in planned(case, PLANNED_FOR).items() if not isinstance(p, str)}
    for name, us in in_graphs(calls, count, repeats).items():
        row = {"case": case.name, "peer": name, "us": us, "error": errors.get(name)}
        if name in plans:
            row["expected_us"] = plans[name].expected_us - LAUNCH_US
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each row."""
    for r in rows:
        if "failure" in r:
            text = r["failure"]
        elif "us" in r:
            text = f"{r['us']:9.2f} us"
            text += f", error {r['error']:.1e}" if r["error"] is not None else ""
            text += f", expected {r['expected_us']:.2f} us" if "expected_us" in r else ""
        else:
            text = f"{r['registers']} registers, {r['spill_bytes']} bytes spilled, expected {r['expected_us']} us; "
            text += " ".join(f"{path} {value}" for path, value in r["tile"].items())
        print(f"{r['case']:40} {r['peer']:24} {text}", flush=True)


def more(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark alone."""
    parser.add_argument("--build", metavar="ARCH", help="compile the planned kernels, without a GPU")


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    args = arguments(__doc__, tuple(TABLES), 9, more)
    if args.build is None and not has_device():
        return 2
    figures: dict[str, Any] = {"benchmark": "plan", "rows": []}
    deadline = Deadline(args.seconds)
    for table, cases in TABLES.items():
        if table not in args.only:
            continue
        for case in cases():
            if deadline.over():
                print(f"{case.name} and what follows: no time left")
                write(args.json, figures)
                return 0
            with torch.no_grad():
                found = build(case, args.build) if args.build is not None else measured(case, args.repeats)
            figures["rows"] += [{"table": table, **r} for r in found]
            show(found)
            write(args.json, figures)
            if args.build is None:
                torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
