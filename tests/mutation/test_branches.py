"""Every branch of the builders' Python is taken by a kernel that is judged: options matter as much as sizes.

Of an ``if`` its body and its ``else`` count.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import attention_cases  # noqa: F401  (they register themselves)
import pytest
from attention_mistakes import KERNELS
from cases import CASES
from further_mistakes import BUILD as FURTHER
from hopper_mistakes import BUILD as HOPPER
from product_mistakes import BUILD

import graphene as gr
from graphene import kernels as k
from graphene.kernels import Attention, NormConfig, RowTile
from graphene.kernels.attention.problem import Extra
from graphene.kernels.attention.sm90 import ForwardSm90, attention_forward_sm90
from graphene.kernels.attention.values_fp8 import ValuesConfig, attention_values_kernel
from graphene.kernels.gemm.weights import WeightsConfig, weights_kernel
from graphene.kernels.mlp_sm90 import MlpSm90Config, mlp_sm90
from graphene.kernels.recurrent_sm90 import CellSm90Config, cell_sm90

FOLDER = Path(k.__file__).parent
# Kernels with options that neither a case nor a mistake has.
MORE: dict[str, Any] = {
    "layernorm of fp32": lambda: k.layernorm_kernel(NormConfig(RowTile(100, 32, 1, 4), gr.fp32)),
    "layernorm, only an addend": lambda: k.layernorm_kernel(NormConfig(RowTile(100, 32, 1, 4), gamma=False)),
    "layernorm, dense in shared memory": lambda: k.layernorm_kernel(
        NormConfig(RowTile(521, 32, 1, 2, "shared", dense=4))
    ),
    "softmax of single elements in shared memory": lambda: k.softmax_kernel(
        k.SoftmaxConfig(RowTile(301, 32, 1, 1, "shared"), out_dtype=gr.fp32)
    ),
    "softmax of whole parts": lambda: k.softmax_kernel(k.SoftmaxConfig(RowTile(512, 32, 1, 8, "shared"))),
    "layernorm's gradient of fp32": lambda: k.layernorm_backward_kernel(NormConfig(RowTile(100, 32, 1, 4), gr.fp32)),
    "product with integers, in bf16": lambda: weights_kernel(
        WeightsConfig(gr.bf16, tiles=1, warps=(1, 1), stages=2, zeros=True)
    ),
    "product of fp32 along rows": lambda: k.gemm_sm80(
        32, 32, 16, 2, None, warps=(2, 2), order="NT", dtype=gr.fp32, align=(4, 4, 4)
    ),
    "product of i8 along rows": lambda: k.gemm_sm80(64, 64, 64, 2, None, warps=(2, 2), order="NT", dtype=gr.i8),
    "product of quad-pairs along rows": lambda: k.gemm_sm70(32, 32, 32, warps=(2, 2), order="NT"),
    "perceptron for Hopper, a wide input, a ragged result": lambda: mlp_sm90(
        MlpSm90Config((784, 256, 128, 10), ("relu",) * 3, (True,) * 3, rows=64, stages=5, turns=False, align=(16, 4))
    ),
    "cell for Hopper, biases that are brought behind the products": lambda: cell_sm90(
        CellSm90Config(tile=(128, 256), biases=2, stages=3, turns=False)
    ),
    "attention for Hopper, three consumers, uneven tiles": lambda: attention_forward_sm90(
        ForwardSm90(Attention(16), 16, 3, 2, uneven=True)
    ),
    "attention for Hopper, a block for each packed tile": lambda: attention_forward_sm90(
        ForwardSm90(Attention(16, varlen=True), 16, 1, 2, 1, False, lse=True, persistent=False, q_in_registers=True)
    ),
    "attention for Hopper, two consumers that copy": lambda: attention_forward_sm90(
        ForwardSm90(Attention(16), 16, 2, 2, 1, False, persistent=False, copier=False)
    ),
    "attention for Hopper, biases": lambda: attention_forward_sm90(
        ForwardSm90(Attention(16, bias=Extra(gr.fp16)), 16, 1, 2, 1, lse=True, training=True)
    ),
    "attention for Hopper, a mask that differs between queries": lambda: attention_forward_sm90(
        ForwardSm90(Attention(16, mask=Extra()), 16, 1, 2, 1)
    ),
    "attention for Hopper, fp8": lambda: attention_forward_sm90(
        ForwardSm90(Attention(32, fp8=(gr.fp8e4m3, gr.fp8e5m2, gr.fp8e4m3)), 32, 1, 2, 1, lse=True)
    ),
    "values of fp8 attention": lambda: attention_values_kernel(ValuesConfig()),
    **{n: functools.partial(FURTHER[n], k) for n in ("f90 order", "f90 bits", "f90 list", "f90 sinks")},
    "product for Hopper, k cut over three blocks": lambda: k.gemm_sm90(64, 96, None, 3, cluster=(1, 1, 3)),
    "maxima of integers": lambda: k.reduction_kernel(k.ReductionConfig(1, "max", gr.i32, threads=32, vector=4)),
}
# Checks of arguments and what launches kernels build none.
ELSEWHERE = {"gemm/whole.py", "arguments.py", "traced.py"}
NOT_BUILDERS = ("check", "__post_init__", "_refuse", "activation", "pointwise", "__getattr__")
REFUSES = ("_core.fail", "self._refuse", "refuse", "raise", "return Refusal")


def taken() -> set[tuple[str, int]]:
    """Files and lines that run while all kernels that are judged are built."""
    lines: set[tuple[str, int]] = set()
    folder = f"{FOLDER}/"

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and not frame.f_code.co_filename.startswith(folder):
            return None
        lines.add((frame.f_code.co_filename.removeprefix(folder), frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for make in CASES.values():
            make()
        for build in (*BUILD.values(), *HOPPER.values()):
            build(k)
        for make in (*MORE.values(), *KERNELS.values()):
            make()
    finally:
        sys.settrace(before)
    return lines


def branches(path: Path) -> Iterator[tuple[int, int, str]]:
    """Of each `if` in a builder: its line, where a branch begins, and the condition under which it is taken."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef) or function.name.startswith(NOT_BUILDERS):
            continue
        for n in ast.walk(function):
            if isinstance(n, ast.If):
                test = ast.unparse(n.test)
                refuses = ast.unparse(n.body[-1]).startswith(REFUSES)
                if not refuses:
                    yield n.lineno, n.body[0].lineno, test
                if n.orelse:
                    yield n.lineno, n.orelse[0].lineno, f"not: {test}"


def test_every_branch_is_taken_by_a_judged_kernel() -> None:
    lines = taken()
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*.py")}
    missing = {
        (name, test)
        for name in files.keys() - ELSEWHERE
        for at, first, test in branches(files[name])
        if (name, at) in lines and (name, first) not in lines
    }
    assert missing == set(), "no judged kernel takes these: add a case, or a kernel to MORE"


@pytest.mark.parametrize("name", MORE)
def test_their_kernels_keep_their_promise(name: str) -> None:
    result = MORE[name]().check()
    assert result.ok, str(result)
