"""All kernels that selection returns over a grid of usual problems, and their check.

`python -m graphene check --library` prints what is wrong and writes the outcome: of each kernel the function and the
problem that it was made for first, and what ``check()`` found. ``--journal``, ``--resume``, ``--part``, ``--minutes``
are for runs that may be ended (``graphene.testing.jobs``).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import pkgutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import graphene as gr
from graphene import kernels as k
from graphene import select
from graphene.errors import GrapheneError
from graphene.kernels.epilogues import ACTIVATIONS
from graphene.kernels.mlp import mlp_kernel
from graphene.kernels.mlp_sm90 import MlpSm90Config, mlp_sm90
from graphene.kernels.recurrent import recurrent_cell
from graphene.kernels.recurrent_sm90 import CellSm90Config, cell_sm90
from graphene.select.mlp import select_mlp
from graphene.select.recurrent import select_cell
from graphene.testing.jobs import Options, judge_all, read_journals

__all__ = ["GRID", "Entry", "check_all", "commit", "library", "report", "write"]

FLOATS = (gr.fp16, gr.bf16, gr.fp32)
SIZES = ((1, 4096, 4096), (16, 11008, 4096), (100, 70, 1000), (512, 512, 512), (2048, 768, 768), (4096, 4096, 4096),
         (8192, 28672, 8192), (257, 1001, 513))  # fmt: skip
WIDTHS = (1, 7, 64, 100, 512, 1000, 1001, 1024, 3072, 4096, 8192, 30522, 131072)
HEADS = (32, 64, 80, 128, 256)
GRID = (
    "products of 8 sizes, plain, batched, with bias, residual, alpha and beta and each activation, in every order, of "
    "fp16, bf16, fp32 and i8, of lines aligned to 16, 8, 4 and 2 bytes; normalisations, softmax and their gradients of "
    "13 widths, 4 to 65536 rows, three types; group norms; reductions, transpositions and gated functions of some "
    "shapes; attention of 5 head sizes with each option, forward, short, gradients; perceptrons; recurrent cells"
)


@dataclass(frozen=True)
class Entry:
    """A kernel: the function that makes it, the problem, how it is built, the architecture it was chosen for (None:
    any). It is built when it is asked for, because all of them together take more than a gigabyte.
    """

    function: str
    problem: str
    build: Callable[[], gr.Kernel]
    arch: str | None = None


def _products() -> Iterator[tuple[str, Any]]:
    options: list[dict[str, Any]] = [
        {}, {"bias": True, "activation": "gelu"}, {"residual": True, "bias": True}, {"alpha": True, "beta": True},
        {"batch": 12}, {"batch": 3, "bias": True, "activation": "silu", "residual": True},
    ]  # fmt: skip
    for (M, N, K), more in itertools.product(SIZES, options):
        for dtype, order in itertools.product(("fp16", "bf16", "fp32"), ("TN", "TT", "NN", "NT")):
            align = 2 if dtype != "fp32" else 4
            lengths = (K if order[0] == "T" else M, K if order[1] == "N" else N, N)
            bytes_of = tuple(max(w for w in (align, 4, 8, 16) if n * align % w == 0) for n in lengths)
            yield f"{M}x{N}x{K} {dtype} {order} {more}", {"dtype": dtype, "order": order, "align": bytes_of, **more}
    for activation in ACTIVATIONS:
        yield f"512x512x512 fp16 {activation}", {"activation": activation}
    for out in ("fp32", "i32", "fp16"):
        yield f"512x512x512 i8 to {out}", {"dtype": "i8", "out": out}


def _launched(config: k.GemmConfig, number: int, of: int) -> gr.Kernel:
    launches = k.gemm_launches(config)
    assert len(launches) == of, config
    return launches[number].kernel


def _gemms() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for problem, options in _products():
        M, N, K = map(int, problem.split()[0].split("x"))
        config = select.select_gemm(M, N, K, **options)
        launches = any(config.pad) + 1 + (config.split_k > 1)  # copies, products, sums
        for i in range(launches):
            yield "gemm_launches", problem, partial(_launched, config, i, launches)


def _rows() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for width, rows, dtype in itertools.product(WIDTHS, (4, 1024, 65536), FLOATS):
        item = dtype.bits // 8
        align = next(w for w in (16, 8, 4, 2) if width * item % w == 0 or w == item)
        problem = f"{rows}x{width} {dtype}"
        given: dict[str, Any] = {"align_bytes": align, "dense_bytes": 16 if align < 16 else 0}
        for kind, build in (("layernorm", k.layernorm_kernel), ("rmsnorm", k.rmsnorm_kernel)):
            plain: dict[str, Any] = {"gamma": True, "beta": kind == "layernorm"}
            for more in (plain, {"gamma": True, "beta": False, "residual": True, "write_sum": True}):
                config = select.select_norm(rows, width, dtype, kind=kind, **given, **more)
                yield kind, f"{problem} {more}", partial(build, config)
        softmax = select.select_softmax(rows, width, dtype, **given)
        yield "softmax", problem, partial(k.softmax_kernel, softmax)
        if width > 30522:
            continue
        for build in (k.layernorm_backward_kernel, k.rmsnorm_backward_kernel):
            backward = select.select_norm_backward(rows, width, dtype, align_bytes=align, write_sum=rows == 4)
            yield build.__name__, problem, partial(build, backward)
        columns, _ = select.select_norm_columns(rows, width, dtype, align_bytes=align)
        yield "norm_columns", problem, partial(k.norm_columns_kernel, columns)
        of_columns = select.select_softmax_columns(rows, width, dtype, align_bytes=align)
        yield "softmax_columns", problem, partial(k.softmax_columns_kernel, of_columns)
        for axis, op in itertools.product((0, 1), ("add", "max")):
            reduction = select.select_reduction(rows, width, axis, op, dtype, align_bytes=align, scale=op == "add")
            yield "reduction", f"{problem} {op} {axis}", partial(k.reduction_kernel, reduction)


def _times(act: Callable[[Any], Any], gate: Any, up: Any) -> Any:
    return act(gate) * up


def _elements() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for dtype, (M, N) in itertools.product(
        (gr.fp16, gr.fp32, gr.i8, gr.bf16), ((64, 64), (100, 30), (7, 1001), (4096, 4095))
    ):
        transpose = select.select_transpose(M, N, dtype)
        yield "transpose", f"{M}x{N} {dtype}", partial(k.transpose_kernel, transpose)
    for name, act in ACTIVATIONS.items():
        for columns, dtype in itertools.product((100, 4096, 11008), FLOATS[:2]):
            gated = select.select_elementwise(columns, (dtype, dtype), dtype)
            both = partial(_times, act)
            problem = f"gated {name} of {columns} {dtype}"
            yield "elementwise", problem, partial(k.elementwise_kernel, both, gated)


def _attention() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    options: list[dict[str, Any]] = [
        {}, {"right": True}, {"left": True, "right": True}, {"softcap": True}, {"right": True, "group": 4},
        {"mask": k.Extra()}, {"bias": k.Extra(gr.fp16)}, {"varlen": True, "right": True},
    ]  # fmt: skip
    for head, more, dtype in itertools.product(HEADS, options, FLOATS[:2]):
        if dtype == gr.bf16 and (more or head != 128):
            continue
        a = k.Attention(head, dtype, **more)
        problem = f"head {head} {dtype} {more}"
        for lse, training in ((False, False), (True, False), (True, True)):
            forward = select.select_forward(a, lse=lse, training=training)
            even = select.select_forward(a, lse=lse, training=training, keys=4096)
            results = "training" if training else f"lse={lse}"
            if even != forward:
                yield "attention_forward", f"{problem} {results} even", partial(k.attention_forward_kernel, even)
            yield "attention_forward", f"{problem} {results}", partial(k.attention_forward_kernel, forward)
        if "varlen" not in more:
            short, _ = select.select_short(a, 1, 1, 4096, 8)
            yield "attention_short", problem, partial(k.attention_forward_kernel, short)
            yield "attention_combine", problem, partial(k.attention_combine_kernel, a)
        yield "attention_delta", problem, partial(k.attention_delta_kernel, a)
        keys, queries = select.select_backward(a)
        yield "attention_keys_gradient", problem, partial(k.attention_keys_gradient_kernel, keys)
        yield "attention_queries_gradient", problem, partial(k.attention_queries_gradient_kernel, queries)
        saving = select.select_backward_saving(a)
        if saving is not None:
            yield (
                "attention_keys_gradient",
                f"{problem} saving",
                partial(k.attention_keys_gradient_kernel, saving[0]),
            )
            yield "attention_queries_product", problem, partial(k.attention_queries_product_kernel, saving[1])


def _networks() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    for rows, widths, dtype in itertools.product(
        (16, 4096, 65536), ((64, 64, 64, 64), (128,) * 5, (100, 128, 10), (784, 256, 256, 10)), ("fp16", "bf16")
    ):
        layers = len(widths) - 1
        aligned = tuple(16 if w % 8 == 0 else 4 for w in (min(widths, key=lambda w: w % 8 == 0), widths[-1]))
        mlp = select_mlp(rows, widths, ("relu",) * layers, (True,) * layers, dtype=dtype, align=aligned)  # type: ignore[arg-type]
        if mlp is not None:
            build: Any = mlp_sm90 if isinstance(mlp, MlpSm90Config) else mlp_kernel
            yield build.__name__, f"{rows} rows {widths} {dtype}", partial(build, mlp)
    for M, N, gates, biases in itertools.product((16, 256, 4096), (128, 1024), (1, 4), (1, 2)):
        act = None if gates == 4 else "tanh"
        cell = select_cell(M, N, gates=gates, activation=act, biases=biases)
        step: Any = cell_sm90 if isinstance(cell, CellSm90Config) else recurrent_cell
        yield step.__name__, f"{M}x{N} {gates} gates {biases}", partial(step, cell)


def _usual() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """What modules of graphene.select name themselves: their functions ``usual_*``."""
    for found in pkgutil.iter_modules(select.__path__, f"{select.__name__}."):
        for name, function in vars(importlib.import_module(found.name)).items():
            if name.startswith("usual_"):
                yield from function()


def library(every: int = 1, name: str = "") -> list[Entry]:
    """The distinct kernels of the grid, of functions whose names begin with `name`, or of every `every`-th problem.

    Raises ValueError if no function has such a name.
    """
    found: dict[bytes, Entry] = {}
    grid = itertools.chain(_gemms(), _rows(), _elements(), _attention(), _networks(), _usual())
    chosen = [row for row in grid if row[0].startswith(name)]
    if not chosen:
        raise ValueError(f"the grid has no function whose name begins with {name!r}")
    for function, problem, build in itertools.islice(chosen, 0, None, every):
        with contextlib.suppress(GrapheneError):  # a problem that the function refuses
            text = str(build())
            # By default attention and perceptrons are selected for the shared memory of an H200.
            arch = "sm_90a" if function.startswith(("attention", "mlp")) else None
            found.setdefault(hashlib.sha256(text.encode()).digest(), Entry(function, problem, build, arch))
    return list(found.values())


_SAID = {"function", "problem", "calls", "worst", "error", "uncovered", "seconds"}


def _checked(e: Entry) -> dict[str, Any]:
    """What was found of a kernel; ``error`` is empty if it keeps its promise, ``worst`` in units of the bound."""
    began = time.perf_counter()
    out: dict[str, Any] = {"function": e.function, "problem": e.problem}
    try:
        r = e.build().check(arch=e.arch)
        out |= {"calls": len(r.calls), "worst": r.worst_error or 0.0, "error": "" if r.ok else str(r)}
        out |= {"uncovered": r.uncovered}
    except GrapheneError as x:
        out |= {"calls": 0, "worst": 0.0, "error": str(x), "uncovered": ()}
    return {**out, "seconds": round(time.perf_counter() - began, 2)}


def check_all(entries: list[Entry], head: dict[str, Any], options: Options) -> tuple[list[dict[str, Any]], bool]:
    """The outcomes so far of kernels that are checked in processes, and whether they are all."""
    head = {"commit": commit(), **head}
    return judge_all(lambda i: _checked(entries[i]), len(entries), head, options, _wrong)


def _wrong(row: dict[str, Any]) -> bool:
    return bool(row.get("error") or "failed" in row)


def write(file: str, head: dict[str, Any], found: Iterable[dict[str, Any]], of: str | None = None) -> None:
    """Writes an outcome: commit (``of``, or this one), date, what was judged, and a line for each of what was found."""
    head = {"commit": of or commit(), "date": datetime.now(UTC).date().isoformat(), **head}
    lines = ",\n".join(map(json.dumps, found))
    Path(file).write_text(json.dumps(head)[:-1] + f', "found": [\n{lines}\n]}}\n')


def commit() -> str:
    """The commit of this checkout, or the version of the package."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return gr.__version__


def report(
    every: int, options: Options, file: str | None = None, journals: list[Path] | None = None, name: str = ""
) -> int:
    """Checks the library, prints what is wrong, writes the outcome as JSON; the exit status.

    ``journals``: of runs that were made, of which the outcome is written instead. ``name``: of `library`.
    """
    head: dict[str, Any]
    if journals is None:
        head = {"every": every, **({"function": name} if name else {})}
        found, whole = check_all(library(every, name), head, options)
        of = None
    else:
        head, found = read_journals(journals)
        if not (head.keys() >= {"commit", "every", "count"} and all("failed" in o or o.keys() >= _SAID for o in found)):
            raise ValueError(f"{', '.join(map(str, journals))}: not of a check of the library")
        of, every = head["commit"], head["every"]
        whole = len(found) == head["count"]
    wrong = [o for o in found if _wrong(o)]
    for o in wrong:
        print(
            f"{o['function']}, {o['problem']}:\n{o['error']}" if "error" in o else f"kernel {o['index']}: {o['failed']}"
        )
    judged = [o for o in found if "failed" not in o]
    seconds = [o["seconds"] for o in judged]
    calls = sum(o["calls"] for o in judged)
    partly = sum(any("no thread" in u for u in o["uncovered"]) for o in judged)
    print(f"{len(found) - len(wrong)} of {len(found)} kernels keep their promise; {calls} calls, "
          f"{sum(seconds) / max(len(seconds), 1):.2f} s a kernel, {max(seconds, default=0.0):.1f} s at most"
          f"{f'; {partly} with parts that no call reached' * bool(partly)}"
          f"{'' if whole else '; this is a part'}")  # fmt: skip
    if file is not None:
        write(file, {"grid": GRID, "every": every, "kernels": len(found), "wrong": len(wrong)}, found, of)
    return 1 if wrong else 0
