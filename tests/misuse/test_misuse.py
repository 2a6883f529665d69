"""What is used in another order, from another thread or in another way than it is meant to: coded errors, no crash."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from finished import finished, refused

import graphene as gr

UNRECORDED: dict[str, Callable[[gr.Kernel], object]] = {
    "str": str, "json": lambda k: k.to_json(), "ir": lambda k: k.ir, "lowered": lambda k: k.lowered(),
    "source": lambda k: k.cuda_source("sm_80"), "compile": lambda k: k.compile("sm_80"), "call": lambda k: k(),
    "simulate": lambda k: k.simulate(), "check": lambda k: k.check(), "report": lambda k: k.report(),
    "syncs": lambda k: k.syncs(), "mutants": lambda k: k.mutants(), "pickle": pickle.dumps, "copy": copy.copy,
}  # fmt: skip


@pytest.mark.parametrize("use", UNRECORDED)
def test_a_kernel_that_is_not_recorded(use: str) -> None:
    kernel = gr.Kernel("k")
    refused("KERNEL_UNRECORDED", lambda: UNRECORDED[use](kernel))
    assert "k" in repr(kernel) + kernel._repr_html_()
    assert kernel != gr.Kernel("k")
    assert kernel == kernel
    with kernel:
        refused("KERNEL_UNRECORDED", lambda: UNRECORDED[use](kernel))


def test_entering_and_leaving_in_another_order() -> None:
    k = finished()
    refused("KERNEL_CLOSED", k.__enter__)
    refused("KERNEL_CLOSED", lambda: k.__exit__(None, None, None))
    refused("KERNEL_CLOSED", lambda: gr.Kernel("new").__exit__(None, None, None))
    with gr.Kernel("outer") as outer:
        refused("KERNEL_NESTED", outer.__enter__)
        refused("KERNEL_NESTED", gr.Kernel("inner").__enter__)
    for block in (gr.if_(1), gr.loop("i", 4), gr.else_()):
        refused("KERNEL_CLOSED", lambda block=block: block.__exit__(None, None, None))
        refused("KERNEL_NONE", block.__enter__)


def test_blocks_left_twice_leave_nothing_else() -> None:
    with gr.Kernel("k") as k:
        gr.threads(32)
        x = gr.inout("x", [32], gr.fp32)
        loop = gr.loop("i", 4)
        with gr.loop("j", 4):
            with loop:
                pass
            refused("KERNEL_CLOSED", lambda: loop.__exit__(None, None, None))
            gr.init(x, 1.0)
    assert "\n  %2 <- Init" in str(k)  # inside the outer loop


def test_warnings_are_errors() -> None:
    """Nothing that is used as it is meant to be warns."""
    code = """
import graphene as gr, numpy as np
from graphene.kernels import gemm_sm80
from graphene.cli import main
k = gemm_sm80()
k.cuda_source("sm_80"), k.compile("sm_80"), str(k.report(M=32, N=32, K=32))
with gr.Kernel("fill") as fill:
    y = gr.output("y", [64], gr.fp32)
    (t,) = gr.threads(64).indices()
    gr.init(y[t], 1.0)
fill(np.zeros(64, np.float32))
assert k.check(M=40, N=24, K=32).ok
gr.svg(gr.atom("mma.m16n8k16.f32.f16").c)
assert main(["cache"]) == 0 and main(["tune", "64x64x64", "--arch", "sm_80"]) == 0
assert main(["compile", "gemm_sm80", "--arch", "sm_80"]) == 0
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_functions_of_numbers_are_ieee_754s() -> None:
    """Where Python's own raise, infinity and NaN, as the instructions give."""
    inf, nan = math.inf, math.nan
    cases = [
        *((gr.exp, 1e9, inf), (gr.exp2, 1e9, inf), (gr.log, 0, -inf), (gr.log2, -1, nan), (gr.sqrt, -1.0, nan)),
        *((gr.rsqrt, 0.0, inf), (gr.rcp, 0, inf), (gr.floor, inf, inf), (gr.trunc, nan, nan), (gr.sin, inf, nan)),
    ]
    for function, x, want in cases:
        assert repr(float(function(x))) == repr(want), (function.__name__, x)
    refused("CONSTANT_RANGE", lambda: gr.exp(10**400))


def test_the_command_with_no_place_to_write_to(tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m graphene cache'
    for redirection, status in ((">&-", 0), ("> /dev/full", 1)):
        done = subprocess.run(f"{command} {redirection}", shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
    name = os.fsencode(tmp_path) + b"/\xff.gir"
    done = subprocess.run(
        [sys.executable, "-m", "graphene", "compile", name, "--arch", "sm_80"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
