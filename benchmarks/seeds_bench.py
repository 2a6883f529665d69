"""False alarms: every kernel of the library and the examples, unchanged and so correct, simulated under many schedules.

    python benchmarks/seeds_bench.py [--json out.json] [--seeds 1000] [--jobs 2]

A seed shuffles blocks and warps. A correct kernel must raise no alarm under any, and give the same bits under all.
"""

from __future__ import annotations

import argparse
import copy
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from figures import write

import graphene as gr

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/mutation"))
from cases import CASES


def bits(arguments: Any) -> list[bytes]:
    """Of every array, lists of arrays included."""
    if isinstance(arguments, (list, tuple)):
        return [b for a in arguments for b in bits(a)]
    return [arguments.tobytes()] if isinstance(arguments, np.ndarray) else []


def alarms(name: str, seeds: range) -> list[str]:
    """What went wrong, by seed: the case's calls, each from the same arguments under every schedule."""
    case, found = CASES[name](), []
    for make in case.calls:
        arguments = make()
        first = copy.deepcopy(arguments)
        case.kernel.simulate(*first)
        for seed in seeds:
            again = copy.deepcopy(arguments)
            try:
                case.kernel.simulate(*again, seed=seed)
            except gr.SimulationError as e:
                found.append(f"seed {seed}: {e}")
                continue
            if bits(again) != bits(first):
                found.append(f"seed {seed}: other bits")
    return found


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status: 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    total: dict[str, int] = {}
    with ProcessPoolExecutor(args.jobs) as pool:
        chunks = [range(s, min(s + 25, args.seeds + 1)) for s in range(1, args.seeds + 1, 25)]
        for name in CASES:
            found = [a for part in pool.map(partial(alarms, name), chunks) for a in part]
            total[name] = len(found)
            print(f"{name:36} {args.seeds} seeds, {len(found)} alarms", *found[:3], sep="\n  ")
    write(args.json, {"benchmark": "seeds", "seeds": args.seeds, "alarms": total})
    return 1 if any(total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
