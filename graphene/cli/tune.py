"""`python -m graphene tune`: ranks configurations of a matrix product, and measures them where there is a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence


def tune_gemm(sizes: Sequence[str], dtype: str, order: str, measure: bool, count: int, arch: str | None) -> int:
    """Prints the short list for every MxNxK; with `measure`, tunes and stores the winners. Returns the status."""
    import graphene as gr
    from graphene import _core, tune
    from graphene.tune.gemm import GEMM, GemmProblem

    try:
        device = tune.of_arch(_core.architecture(arch)) if arch else tune.current_device()
    except gr.GrapheneError as e:
        if measure or arch:
            print(e, file=sys.stderr)
            return 1
        device = tune.of_arch("sm_90a")
    for text in sizes:
        if (found := re.fullmatch(r"([1-9]\d{0,9})x([1-9]\d{0,9})x([1-9]\d{0,9})", text)) is None:
            print(f"{text}: sizes are MxNxK, positive and below 10^10, as in 4096x4096x1024", file=sys.stderr)
            return 2
        m, n, k = (int(x) for x in found.groups())
        size = {"fp16": 2, "bf16": 2, "fp32": 4, "i8": 1}[dtype]
        lines = (k if order[0] == "T" else m, n if order[1] == "T" else k, n)
        align = tuple(max(a for a in (16, 8, 4, 2, 1) if x * size % a == 0) for x in lines)
        problem = GemmProblem(m, n, k, dtype=dtype, order=order, align=(align[0], align[1], align[2]))
        try:
            print(tune.tune(GEMM, problem, device, count) if measure else tune.rank(GEMM, problem, device, count))
        except gr.GrapheneError as e:
            print(e, file=sys.stderr)
            return 1
        print()
    return 0
