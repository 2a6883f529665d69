"""Builds the whole core under AddressSanitizer and UndefinedBehaviorSanitizer and runs the C++ fuzzers for a while.

``python tests/native/fuzz.py --seconds 60`` is what continuous integration runs; a night is ``--seconds 36000
--seed 1000000 --optimize 1``. Each run of a fuzzer has a seed of its own, counted from --seed: what was found once is
found again. A finding ends it with status 1, the report, and the command that repeats it. Needs cmake, ninja, a C++
compiler and the nlohmann-json wheel: ``pip install '.[test]'``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = sorted(str(p) for p in (ROOT / "tests" / "native" / "kernels").glob("*.gir"))
SEEDS = sorted(str(p) for p in (ROOT / "tests" / "golden").glob("*.gir"))
# Of each fuzzer, arguments of a run that takes some seconds; SEED is replaced.
FUZZERS = [
    ("layout_fuzz", ["1500", "SEED"]),
    ("sym_fuzz", ["3000", "SEED"]),
    ("happens_before_fuzz", ["1500", "SEED"]),
    ("ir_text_fuzz", ["text", "500", "SEED", *SEEDS]),
    ("ir_text_fuzz", ["json", "500", "SEED", *SEEDS]),
    ("kernel_fuzz", ["100", "SEED", *KERNELS]),
]
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build(folder: Path, optimize: str) -> Path:
    """Configures and builds; the folder of the fuzzers."""
    options = [
        "-DCMAKE_BUILD_TYPE=None",
        f"-DCMAKE_CXX_FLAGS=-O{optimize}",
        "-DGRAPHENE_BINDINGS=OFF",
        "-DGRAPHENE_NATIVE_TESTS=ON",
        "-DGRAPHENE_SANITIZE=address,undefined",
        "-DCMAKE_UNITY_BUILD=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--parallel"], check=True, stdout=subprocess.DEVNULL)
    return folder / "tests" / "native"


def run(program: Path, arguments: list[str]) -> str:
    """What is wrong; empty if nothing is."""
    command = [str(program), *arguments]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, check=False)
    if done.returncode == 0:
        return ""
    said = (done.stdout[-6000:] + b"\n" + done.stderr[-6000:]).decode(errors="replace")
    return f"{shlex.join(command)}\nended with {done.returncode}\n{said}"


def fuzz(programs: Path, seconds: float, seed: int, workers: int) -> int:
    """Rounds of every fuzzer, `workers` at a time, until the time is over and each has run; the exit status."""
    end = time.monotonic() + seconds
    runs: Counter[str] = Counter()
    with ThreadPoolExecutor(workers) as pool:
        pending: set[Future[str]] = set()
        number = 0
        while pending or number < len(FUZZERS) or time.monotonic() < end:
            while len(pending) < workers and (number < len(FUZZERS) or time.monotonic() < end):
                name, arguments = FUZZERS[number % len(FUZZERS)]
                this = str(seed + number // len(FUZZERS))
                pending.add(pool.submit(run, programs / name, [this if a == "SEED" else a for a in arguments]))
                runs[name] += 1
                number += 1
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for finding in filter(None, (f.result() for f in done)):
                print(finding)
                return 1
    print(f"{seconds:.0f} s of fuzzing, nothing found; runs:", ", ".join(f"{n} {c}" for n, c in sorted(runs.items())))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to fuzz, the build apart")
    parser.add_argument("--seed", type=int, default=1, help="of the first run of each fuzzer")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "sanitized", help="where to build")
    parser.add_argument("--optimize", default="0", help="the compiler's -O: 0 builds fastest, 1 and 2 fuzz faster")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many run at a time; 0: only build")
    args = parser.parse_args()
    programs = build(args.build, args.optimize)
    sys.exit(fuzz(programs, args.seconds, args.seed, args.jobs) if args.jobs > 0 else 0)
