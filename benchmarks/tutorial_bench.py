"""Speed of the tutorial's six kernels, of the library's, and of torch.matmul (cuBLAS), in one run.

    python benchmarks/tutorial_bench.py [--json out.json] [--size 4096]

The kernels are those of docs/tutorial.md: its Python blocks are executed, then every step is measured on random halves
and compared with torch.matmul. Figures are TFLOP/s of the median launch.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

from figures import ROOT, write
from tiles_bench import Speed

STEPS = ("naive", "shared", "vectorised", "tensor_cores", "pipelined", "swizzled")


def steps() -> dict[str, Any]:
    """The factories of the page, by name; its runs on the simulator are left out."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    page = (ROOT / "docs/tutorial.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        definitions = block.partition("\nreport = ")[0].partition("\na, b, c = ")[0]
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(definitions, "tutorial.md", "exec"), names)
    return {name: names[name] for name in STEPS}


def main() -> int:
    """Prints TFLOP/s; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--size", type=int, default=4096, help="of M, N and K")
    args = parser.parse_args()
    try:
        speed = Speed(args.size)
    except (ImportError, RuntimeError, AssertionError) as e:
        print(f"no CUDA device or no torch: {e}", file=sys.stderr)
        return 2
    tflops = {}
    for name, build in steps().items():
        tflops[name] = speed(build())
        print(f"{name:14} {tflops[name]:8.2f} TFLOP/s", flush=True)
    from graphene.kernels import gemm_sm80
    from graphene.kernels.epilogues import linear

    library = gemm_sm80(256, 128, 64, 3, linear(), warps=(4, 2), bias=False)
    tflops["gemm_sm80"] = speed(library)
    tflops["torch"] = speed.tflops(lambda: speed.torch.matmul(speed.a, speed.b.T))
    for name in ("gemm_sm80", "torch"):
        print(f"{name:14} {tflops[name]:8.2f} TFLOP/s")
    write(args.json, {"benchmark": "tutorial", "size": args.size, "tflops": tflops})
    return 0


if __name__ == "__main__":
    sys.exit(main())
