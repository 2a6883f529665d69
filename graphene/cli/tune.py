"""`python -m graphene tune`: ranks configurations of products, norms and softmax, and measures them on a GPU."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def tune_sizes(
    sizes: Sequence[str],
    dtype: str,
    order: str,
    measure: bool,
    count: int,
    arch: str | None,
    like: str | None = None,
    seconds: float = math.inf,
    terms: Mapping[str, Any] | None = None,
) -> int:
    """Prints the short list of every size; with `measure`, tunes and stores the winners. Returns the status.

    ``like``: also the problems of the package's records for the device of that name, but for those that have a record
    of your own; the others go on where one fails. ``seconds``: no problem is begun later than so long after the start.
    ``terms``: of products, bias, residual and activation.
    """
    import graphene as gr
    from graphene import _core, select

    end = time.monotonic() + seconds
    try:
        device = select.of_arch(_core.architecture(arch)) if arch else select.current_device()
    except gr.GrapheneError as e:
        if measure or arch:
            print(e, file=sys.stderr)
            return 1
        device = select.of_arch("sm_90a")
    todo = []
    for text in sizes:
        try:
            found = _problem(text, dtype, order, terms or {})
        except gr.GrapheneError as e:  # of the terms
            print(e, file=sys.stderr)
            return 2
        if found is None:
            wanted = "sizes are MxNxK, positive and below 10^10, as in 4096x4096x1024, or of rows kind:MxN"
            print(f"{text}: {wanted}, as in layernorm:8192x4096 (rmsnorm, softmax), not of i8", file=sys.stderr)
            return 2
        todo.append(found)
    if like is not None:
        found_like = recorded_problems(like)
        if not found_like:
            print(f"the package has no records for {like!r}; it has some for {', '.join(shipped())}", file=sys.stderr)
            return 2
        todo += [(t, p) for t, p in found_like if not has_own_record(t, p, device.name)]
    status = 0
    for i, (tunable, problem) in enumerate(todo):
        if time.monotonic() > end:
            print(f"the time is over: {len(todo) - i} of {len(todo)} problems are left")
            break
        try:
            print((select.tune if measure else select.rank)(tunable, problem, device, count))
        except gr.GrapheneError as e:
            print(e, file=sys.stderr)
            status = 1
            if like is None:
                break
        print(flush=True)
    return status


def shipped() -> list[str]:
    """The devices for which the package has records."""
    from graphene.select import records

    return sorted(json.loads(path.read_text())["device"] for path in records.SHIPPED.glob("*.json"))


def has_own_record(tunable: Any, problem: Any, device: str) -> bool:
    """Whether the class of a problem has a record of your own."""
    from graphene.select import records

    folder = records.own_folder()
    key = (tunable.name, tunable.version, *tunable.key(problem))
    return folder is not None and key in records.read(records.file_of(folder, device), device)


def recorded_problems(device: str) -> list[tuple[Any, Any]]:
    """The tunables and the problems for which the package's records of a device were measured."""
    from graphene.select import records

    found = []
    for (kernel, version, *key), record in records.read(records.file_of(records.SHIPPED, device), device).items():
        for tunable, problem in _recorded(kernel, str(record.get("problem")), key[1]):
            if tunable.version == version and tunable.key(problem) == tuple(key):
                found.append((tunable, problem))
    return found


def _recorded(kernel: str, problem: str, shape: str) -> Iterator[tuple[Any, Any]]:
    """What the texts of a record say: the sizes of the problem, and the alignment of its class."""
    from graphene import _core
    from graphene.kernels.epilogues import ACTIVATIONS
    from graphene.select.gemm import GEMM, GemmProblem
    from graphene.select.rows import ROWS, RowProblem

    sizes = re.fullmatch(r"(?:(\d+) of )?(\d+)x(\d+)x(\d+) (\w\w) (\w+)(?: (fp8\w+))?( promoted)?( \w+)?", problem)
    aligned = re.search(r" align (\d+)x(\d+)x(\d+)( no workspaces)?(?: with ([a-z_, A-Z]+))?$", shape)
    if kernel == "gemm" and sizes is not None and aligned is not None:
        batch = None if sizes[1] is None else int(sizes[1])
        m, n, k = (int(sizes[i]) for i in (2, 3, 4))
        order, dtype, b_dtype, promoted = sizes.groups()[4:8]
        terms = (aligned[5] or "").split(", ")
        activation = next((t for t in terms if t in ACTIVATIONS), None)
        a, b, c = (int(x) for x in aligned.groups()[:3])
        yield GEMM, GemmProblem(m, n, k, batch, dtype, order, (a, b, c), b_dtype=b_dtype, promote=promoted is not None,
                                activation=activation, residual="residual" in terms, beta="C" in terms,
                                workspaces=aligned[4] is None)  # fmt: skip
    rows = re.fullmatch(r"(\w+) (\d+)x(\d+) (\w+)", problem)
    vectors = re.search(r" vectors of (\d+)(?: dense (\d+))?$", shape)
    if kernel == "rows" and rows is not None and vectors is not None:
        item = _core.dtype(rows[4]).bits // 8
        align, dense = (int(x or 0) * item for x in vectors.groups())
        yield ROWS, RowProblem(rows[1], int(rows[2]), int(rows[3]), rows[4], align, dense)


def _problem(text: str, dtype: str, order: str, terms: Mapping[str, Any]) -> tuple[Any, Any] | None:
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
    return GEMM, GemmProblem(m, n, k, dtype=dtype, order=order, align=(aligns[0], aligns[1], aligns[2]), **terms)
