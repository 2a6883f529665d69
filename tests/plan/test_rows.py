"""Planned kernels of rows: softmax, norms, log-sum-exp and pointwise functions in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import plan


def softmax(width: int = 200, dtype: Any = gr.fp16) -> plan.Graph:
    m, n = plan.axes(m="M", n=width)
    with plan.graph("softmax") as g:
        x = g.input("X", [m, n], dtype)
        g.output("Y", plan.softmax(x, n), [m, n], dtype)
    return g


def layernorm(width: int = 1000) -> plan.Graph:
    m, n = plan.axes(m="M", n=width)
    with plan.graph("layernorm") as g:
        x = g.input("X", [m, n], gr.bf16)
        gamma, beta = (g.input(name, [n], gr.bf16) for name in ("gamma", "beta"))
        centred = x - plan.mean(x, n)
        variance = plan.mean(centred * centred, n)
        g.output("Y", centred * plan.rsqrt(variance + 1e-5) * gamma + beta, [m, n], gr.bf16)
    return g


def logsumexp() -> plan.Graph:
    m, n = plan.axes(m="M", n=1040)
    with plan.graph("lse") as g:
        x, scale = g.input("X", [m, n], gr.fp32), g.input("S", [m], gr.fp32)
        g.output("L", plan.logsumexp(x * scale, n), [m], gr.fp32)
    return g


def pointwise() -> plan.Graph:
    m, n = plan.axes(m=33, n=63)
    with plan.graph("pointwise") as g:
        x = g.input("X", [m, n], gr.fp16)
        g.output("Y", plan.where(x < 0, plan.gelu(x), plan.maximum(x, 0.5) + x), [m, n], gr.fp16)
        g.output("Z", x * 2, [m, n], gr.fp32)
    return g


def extremes() -> plan.Graph:
    """A row of seven elements; its least one is a result."""
    m, n = plan.axes(m=5, n=7)
    with plan.graph("extremes") as g:
        x = g.input("x", [m, n], gr.fp32)
        g.output("y", plan.exp(x - plan.max(x, n)), [m, n], gr.fp32)
        g.output("z", plan.min(x, n), [m], gr.fp32)
    return g


@pytest.mark.parametrize("make", [softmax, layernorm, logsumexp, pointwise, extremes], ids=lambda f: f.__name__)
def test_planned_rows_keep_their_promise(make: Any) -> None:
    g = make()
    p = g.plan("sm_80", **({"m": 1000} if g.axes()[0].size is None else {}))
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert max(map(len, p.source().splitlines())) <= 120
    assert plan.Plan.from_json(p.json()).source() == p.source()


def test_elements_that_are_needed_again_are_kept() -> None:
    text = softmax().plan("sm_80", m=64).source()
    assert text.count("gr.exp(") == 1
    assert "e0[:] = element_s1(rX, s0)" in text
    assert "result_Y(e0, s1)" in text


def test_quotients_by_a_statistic_may_be_products() -> None:
    """They are, unless that is pinned: on an H200 a softmax of 8192 x 1024 took 9.2 us rather than 10.5."""
    usual, pinned = (softmax().plan("sm_80", m=64, pin=pin) for pin in ({}, {"rewrite.reciprocals": False}))
    assert usual.decisions["rewrite.reciprocals"].value is True
    assert "return e0 * gr.rcp(s1)" in usual.source()
    assert "return e0 / s1" in pinned.source()
    assert usual.check().ok
    assert pinned.check().ok


def test_rows_compute_their_graph() -> None:
    p, x = softmax(width=72).plan("sm_80", m=64), np.random.default_rng(0).standard_normal((7, 72)).astype(np.float16)
    y = np.zeros_like(x)
    p(x, y)
    assert np.abs(y - p.graph.evaluate({"X": x})["Y"]).max() < 1e-3


def test_threads_of_a_row_are_decided() -> None:
    p = softmax(width=4096).plan("sm_80", m=4096)
    assert p.decisions["threads"].value % 32 == 0
    assert p.decisions["rows"].value == 1
    assert softmax(width=64).plan("sm_80", m=4096).decisions["rows"].value > 1
    pinned = softmax(width=256).plan("sm_80", m=64, pin={"threads": 128, "vector": 2})
    assert "THREADS, ROWS = 128, 1" in pinned.source()
    assert pinned.check().ok
    for pin, message in (
        ({"threads": 48}, "threads cannot be pinned to 48"),
        ({"vector": 16}, "vector cannot be pinned to 16"),
        ({"threads": 1}, "threads cannot be pinned to 1"),
        ({"tile.m": 16}, "tile.m cannot be pinned to 16"),
    ):
        with pytest.raises(gr.SelectError) as e:
            softmax(width=256).plan("sm_80", m=64, pin=pin)
        assert e.value.code == "PLAN_PIN"
        assert str(e.value).startswith(message)


@pytest.mark.parametrize(
    ("width", "build", "message"),
    [
        (10**5, lambda g, x, m, n: plan.softmax(x, n), "nothing is left for threads"),
        (64, lambda g, x, m, n: x / plan.sum(x, m), "a reduction along m; rows lie along n"),
        (64, lambda g, x, m, n: x + g.input("R", [n, m], gr.fp16), "R is stored in another order"),
        (64, lambda g, x, m, n: x.round(gr.fp16) + 1, "a value that is rounded before it is computed with"),
    ],
)
def test_graphs_of_rows_that_no_plan_computes(width: int, build: Any, message: str) -> None:
    m, n = plan.axes(m=64, n=width)
    with plan.graph("wrong") as g:
        g.output("Y", build(g, g.input("X", [m, n], gr.fp16), m, n), [m, n], gr.fp16)
    with pytest.raises(gr.SelectError) as e:
        g.plan("sm_80")
    assert e.value.code == "PLAN_NONE"
    assert message in str(e.value)
