"""What docs/limits.md says is not supported is an error, and a user's words lead to a place in docs/changes.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphene as gr

DOCS = Path(__file__).parents[1] / "docs"
Body = Callable[[Any, Any, Any], Any]


def broken(r: Any, i: Any, t: Any) -> None:
    for _ in gr.loop("k", 4):
        break


# The first words of a row of the page, an attempt, and the code or the words of its error.
ATTEMPTS: list[tuple[str, Body, str]] = [
    ("`break`, `continue`", broken, "LOOP_BREAK"),
    ("a loop without a bound", lambda r, i, t: gr.while_(lambda: r > 0, None).__enter__(), "want an int"),  # type: ignore[arg-type]
    ("`/` on integers in registers", lambda r, i, t: gr.let("q", i / 3), "POINTWISE_TYPE"),
    ("`/` on integers in registers", lambda r, i, t: gr.let("q", i**i), "NO_ATOM"),
    (
        "registers that are indexed by a value known only at run time",
        lambda r, i, t: gr.let("q", wide()[t]),
        "ATOM_REGISTER",
    ),
    ("more than 64 bits in an index", lambda r, i, t: gr.loop("k", 2**70).__enter__(), "SYM_OVERFLOW"),
]


def wide() -> gr.Tensor:
    return gr.alloc("wide", [64], gr.fp32, gr.RF)


@pytest.mark.parametrize(("row", "attempt", "said"), ATTEMPTS)
def test_a_limit_is_one(row: str, attempt: Body, said: str) -> None:
    assert f"\n| {row}" in (DOCS / "limits.md").read_text()
    with pytest.raises((gr.GrapheneError, TypeError), match=said):  # noqa: PT012
        with gr.Kernel("k") as kernel:
            x, y, threads = gr.input("x", [64], gr.fp32), gr.inout("y", [64], gr.i32), gr.threads(64)
            (t,) = threads.indices()
            attempt(gr.load(x[t]), gr.load(y[t]), t)
        kernel.lowered("sm_90a")


# Changes in the words of somebody who does not know the names of this project, and the place.
TASKS = {
    "I need a new pytorch operator, e.g. log_softmax": "one file of `graphene/ops`",
    "my GPU is not in the table of devices": "graphene/select/device.py",
    "support another activation function, such as mish": "graphene/kernels/epilogues.py",
    "the wording of an error message is unclear": "csrc/base/codes.def",
    "the generated CUDA reads badly": "csrc/emit",
    "attention for head size 512": "graphene/kernels/attention/problem.py",
    "a new PTX instruction": "csrc/atoms/entries",
    "the simulator misses a race (hazard)": "csrc/sim",
    "the command line lacks a command": "graphene/cli",
    "make softmax accept a scale": "graphene/ops",
    "support fp8 residuals in products": "graphene/kernels/gemm/result.py",
    "a new GPU with 160 SMs": "graphene/select/device.py",
    "a new Hugging Face architecture's rotary form": "graphene/integrations/transformers/_turns.py",
    "print bf16 differently in the IR": "csrc/base/scalars.cpp",
    "a new error message": "csrc/base/codes.def",
    "a new benchmark row": "a file of `benchmarks`",
    "a check that kernels do not write their inputs": "csrc/verify",
    "a new CLI command": "graphene/cli",
    "NVRTC is not found, or wants another option": "csrc/runtime/nvrtc_search.cpp",
    "the launch refuses my tensor with a weird stride": "csrc/runtime/args.cpp",
    "let matmul take int8 inputs and give bf16": "graphene/kernels/gemm/problem.py",
    "layer norm uses too many threads for short rows": "graphene/select",
    "the kernel cache fills up my disk": "csrc/runtime/cache.cpp",
    "gradient of softmax is slow, write a kernel for it": "graphene/ops",
    "a swizzle with bank conflicts is chosen": "csrc/plan",
    "warn when a kernel spills registers": "csrc/runtime/compile.cpp",
    "the planner should fuse two more operators": "graphene/plan",
    "first call takes too long: ship the kernel compiled": "graphene/compiled/usual_calls.txt",
    "CuPy streams and jax arrays as arguments": "csrc/bind/tensor_reader.cpp",
    "x % 8 stays in the index of the generated code": "csrc/sym",
    "a transposed load from shared memory is not matched": "csrc/build",
}


def stems(text: str) -> set[str]:
    return {w[:6] for w in re.findall(r"[a-z]{3,}", text.lower())} - {
        "the",
        "and",
        "for",
        "not",
        "that",
        "such",
        "want",
    }


@pytest.mark.parametrize("task", TASKS)
def test_the_place_of_a_change_is_found(task: str) -> None:
    """The rows that share most words with the task hold its place, among the first three."""
    lines = (DOCS / "changes.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| I want")]
    asked = stems(task)
    best = sorted(rows, key=lambda row: -len(asked & stems(row.split("|")[1])) - len(asked & stems(row)) / 100)[:3]
    assert any(TASKS[task] in row for row in best), "\n".join(best)
