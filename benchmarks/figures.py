"""What every benchmark shares: where it ran, written beside its figures, and the examples' kernels."""

from __future__ import annotations

import argparse
import json
import math
import platform
import runpy
import sys
import time
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import graphene as gr
from graphene import _core

ROOT = Path(__file__).parents[1]


def simple_gemm() -> Callable[[int, int, int], gr.Kernel]:
    """The paper's Fig. 8 as examples/03 builds it."""
    build: Callable[[int, int, int], gr.Kernel] = runpy.run_path(str(ROOT / "examples/03_simple_gemm.py"))[
        "simple_gemm"
    ]
    return build


def processor() -> str:
    """The CPU's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def has_device() -> bool:
    """Whether torch sees a CUDA device; says that there is nothing to measure where it does not."""
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure", file=sys.stderr)
        return False
    return True


class Deadline:
    """The time that a benchmark was given by ``--seconds``, from now on."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds until then; negative behind it."""
        return self._ends - time.monotonic()

    def over(self, need_s: float = 0) -> bool:
        """Whether less is left than what comes next needs."""
        return self.left_s < need_s


def arguments(
    description: str | None,
    names: Collection[str],
    repeats: int = 20,
    more: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> argparse.Namespace:
    """The command line of a benchmark of several problems: --json, --repeats, --seconds and --only, a set of `names`.

    A name that there is none of ends the process, and tells those that there are. ``more`` adds what only one has.
    """

    def some(text: str) -> set[str]:
        if unknown := sorted(set(text.split(",")) - set(names)):
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(names)}")
        return set(text.split(","))

    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", type=some, default=set(names), help="some of " + ",".join(names))
    parser.add_argument("--repeats", type=int, default=repeats, help="samples of every way")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no problem after that time")
    more(parser)
    return parser.parse_args()


def machine() -> dict[str, object]:
    """Processor, GPUs, and the versions that a figure depends on."""
    out: dict[str, object] = {"processor": processor(), "python": platform.python_version()}
    try:
        info = _core.driver_info()
        out["cuda_driver"] = info["version"]
        out["gpus"] = [d["name"] for d in info["devices"]]
    except gr.LaunchError:
        out["gpus"] = []
    for package in ("graphene-ir", "numpy", "torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc"):
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "graphene-ir":  # built in place
                out[package] = gr.__version__
    return out


def write(path: Path | None, figures: Mapping[str, Any]) -> None:
    """The figures with the benchmark's command line and machine(), as JSON; nothing without a path."""
    if path is None:
        return
    command = " ".join(["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]])
    path.write_text(json.dumps({"command": command, "machine": machine(), **figures}, indent=1) + "\n")
