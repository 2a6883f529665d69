"""`python -m graphene tune`: ranks configurations of products, norms and softmax, and measures them on a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any


def tune_sizes(sizes: Sequence[str], dtype: str, order: str, measure: bool, count: int, arch: str | None) -> int:
    """Prints the short list of every size; with `measure`, tunes and stores the winners. Returns the status."""
    import graphene as gr
    from graphene import _core, select

    try:
        device = select.of_arch(_core.architecture(arch)) if arch else select.current_device()
    except gr.GrapheneError as e:
        if measure or arch:
            print(e, file=sys.stderr)
            return 1
        device = select.of_arch("sm_90a")
    for text in sizes:
        if (found := _problem(text, dtype, order)) is None:
            wanted = "sizes are MxNxK, positive and below 10^10, as in 4096x4096x1024, or of rows kind:MxN"
            print(f"{text}: {wanted}, as in layernorm:8192x4096 (rmsnorm, softmax), not of i8", file=sys.stderr)
            return 2
        try:
            print(select.tune(*found, device, count) if measure else select.rank(*found, device, count))
        except gr.GrapheneError as e:
            print(e, file=sys.stderr)
            return 1
        print()
    return 0


def _problem(text: str, dtype: str, order: str) -> tuple[Any, Any] | None:
    """The tunable and the problem of a size on the command line."""
    from graphene import _core
    from graphene.select.gemm import GEMM, GemmProblem
    from graphene.select.rows import ROWS, RowProblem

    size = _core.dtype(dtype).bits // 8
    if (found := re.fullmatch(r"(layernorm|rmsnorm|softmax):([1-9]\d{0,9})x([1-9]\d{0,9})", text)) is not None:
        rows, width = int(found[2]), int(found[3])
        align = max(a for a in (16, 8, 4, 2, 1) if width * size % a == 0)
        return None if dtype == "i8" else (ROWS, RowProblem(found[1], rows, width, dtype, align, 16))
    if (found := re.fullmatch(r"([1-9]\d{0,9})x([1-9]\d{0,9})x([1-9]\d{0,9})", text)) is None:
        return None
    m, n, k = (int(x) for x in found.groups())
    lines = (k if order[0] == "T" else m, n if order[1] == "T" else k, n)
    aligns = [max(a for a in (16, 8, 4, 2, 1) if x * size % a == 0) for x in lines]
    return GEMM, GemmProblem(m, n, k, dtype=dtype, order=order, align=(aligns[0], aligns[1], aligns[2]))
