"""The times that gr.compile and plans expect, held to those that benchmarks measured on an H200."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

import pytest

import graphene as gr
from graphene import plan

pytest.importorskip("torch")

from graphene.integrations.torch_compile.expected import PLANNED_US, KernelTimes, library_us
from graphene.select.device import H200
from graphene.select.model import LAUNCH_US

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def test_expected_times_are_those_of_an_h200() -> None:
    """Of 66 products of cuBLAS, one of which (a single row by 1024 x 1024) is slower than any larger one beside it."""
    found = json.loads((RESULTS / "compile_h200.json").read_text())["model"]
    times, errors = KernelTimes(H200), []
    for r in found["products"]:
        m, k, n = r["m"], r["k"], r["n"]
        errors.append(math.log(library_us(m, k, n, 2 * (m * k + k * n + m * n), H200) / r["us"]))
    assert len(errors) == 66
    assert abs(statistics.median(errors)) < 0.02
    assert statistics.mean(map(abs, errors)) < 0.06
    assert sum(abs(e) > 0.2 for e in errors) == 1
    for r in found["copies"]:
        assert times.moving_us(r["moved_bytes"]) == pytest.approx(r["us"], rel=0.12)


def test_expected_times_of_plans_are_those_of_an_h200() -> None:
    """Of plain and fused products, as their tiles were then: the file has the time of each pinned tile."""
    found = json.loads((RESULTS / "plan_h200.json").read_text())["rows"]
    m, k, n = plan.axes(m=gr.sym("M"), k=4096, n=6144)
    with plan.graph("rms_linear") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        g.output("O", plan.dot(x * plan.rsqrt(plan.mean(x * x, k) + 1e-5), w, k), [m, n], gr.fp16)
    checked = 0
    for r in found:
        pins = re.fullmatch(r"planned (\d+)x(\d+), (\d) stages", r["peer"])
        if not r["case"].startswith("RMSNorm") or pins is None:
            continue
        columns, step, stages = map(int, pins.groups())
        pin = {"tile.m": 16, "tile.n": columns, "loop.k": step, "stages": stages, "warps": f"1x{columns // 16}"}
        us = g.plan("sm_90a", m=16, pin=pin).expected_us - LAUNCH_US + PLANNED_US
        assert us == pytest.approx(r["us"], rel=0.15)
        checked += 1
    assert checked == 13
