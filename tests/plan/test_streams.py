"""Planned kernels of attention's form: a product whose elements are an operand of another one, tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import plan


def attention() -> plan.Graph:
    """Sizes of rows and of the stream are known at a launch."""
    b, q, s, d, e = plan.axes(b=2, q="SQ", s="SK", d=32, e=32)
    with plan.graph("attention") as g:
        Q, K = g.input("Q", [b, q, d], gr.fp16), g.input("K", [b, s, d], gr.fp16)
        V = g.input("V", [b, s, e], gr.fp16)
        g.output("O", plan.dot(plan.softmax(plan.dot(Q, K, d) * 0.125, s), V, s), [b, q, e], gr.fp16)
    return g


def grouped() -> plan.Graph:
    """Keys that heads share; a stream that no tile divides; another width of values."""
    h, j, q, s, d, e = plan.axes(h=2, j=2, q=20, s=72, d=32, e=48)
    with plan.graph("grouped") as g:
        Q, K = g.input("Q", [h, j, q, d], gr.bf16), g.input("K", [h, s, d], gr.bf16)
        V = g.input("V", [h, s, e], gr.bf16)
        g.output("O", plan.dot(plan.softmax(plan.dot(Q, K, d) * 0.2, s), V, s), [h, j, q, e], gr.bf16)
    return g


def exponentials() -> plan.Graph:
    """Mirage's attention: keys lie across, and no maximum is subtracted."""
    b, q, s, d, e = plan.axes(b=2, q=16, s=64, d=32, e=32)
    with plan.graph("exponentials") as g:
        Q, K = g.input("Q", [b, q, d], gr.fp16), g.input("K", [b, d, s], gr.fp16)
        V = g.input("V", [b, s, e], gr.fp16)
        p = plan.exp(plan.dot(Q, K, d) * 0.1)
        g.output("O", plan.dot(p, V, s) / plan.sum(p, s), [b, q, e], gr.fp16)
    return g


def normalised() -> plan.Graph:
    """Queries and keys are divided by their root mean squares, queries times a vector; heads share keys."""
    h, j, q, s, d, e = plan.axes(h=2, j=2, q=20, s=72, d=32, e=32)
    with plan.graph("normalised") as g:
        Q, K = g.input("Q", [h, j, q, d], gr.fp16), g.input("K", [h, s, d], gr.fp16)
        V, gamma = g.input("V", [h, s, e], gr.fp16), g.input("gamma", [d], gr.fp16)
        queries, keys = (t * plan.rsqrt(plan.mean(t * t, d) + 1e-6) for t in (Q, K))
        weights = plan.softmax(plan.dot(queries * gamma, keys, d) * 0.2, s)
        g.output("O", plan.dot(weights, V, s), [h, j, q, e], gr.fp16)
    return g


def largest() -> plan.Graph:
    """Keys lie across, statistics are of inputs as they are, and nothing divides by a sum."""
    q, s, d, e = plan.axes(q=16, s=64, d=32, e=32)
    with plan.graph("largest") as g:
        Q, K, V = (g.input(n, a, gr.fp16) for n, a in (("Q", [q, d]), ("K", [d, s]), ("V", [s, e])))
        score = plan.dot(Q, K, d) / (plan.max(plan.abs(Q), d) + plan.max(plan.abs(K), d) + plan.abs(plan.sum(K, d)) + 8)
        g.output("O", plan.dot(plan.sigmoid(score), V, s), [q, e], gr.fp16)
    return g


SMALL = "16x32 by 1 warps, 2 stages"
GRAPHS = {"attention": (attention, {"q": 64, "s": 64}), "grouped": (grouped, {}), "exponentials": (exponentials, {}),
          "normalised": (normalised, {}), "largest": (largest, {})}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_planned_streams_keep_their_promise(name: str) -> None:
    make, sizes = GRAPHS[name]
    p = make().plan("sm_80", pin={"tile": SMALL}, **sizes)
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert max(map(len, p.source().splitlines())) <= 120
    assert plan.Plan.from_json(p.json()).source() == p.source()
    assert (
        ("rewrite.running_maximum" in p.decisions)
        == (name not in ("exponentials", "largest"))
        == ("p.range" not in p.decisions)
    )


@pytest.mark.parametrize("make", [exponentials, normalised, largest])
def test_planned_streams_compute_their_graph(make: Any) -> None:
    p = make().plan("sm_80")
    rng = np.random.default_rng(0)
    sizes = {v.name: [a.size for a in v.more["stored"]] for v in p.graph.inputs}
    arrays = {n: rng.standard_normal(x).astype(np.float16) for n, x in sizes.items()}
    got = np.zeros([a.size or 0 for a in p.graph.outputs[0].axes], np.float16)
    p(*arrays.values(), got)
    want = p.graph.evaluate(arrays)["O"]
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def test_pins_of_streams() -> None:
    assert grouped().plan("sm_80", pin={"tile": SMALL}).decisions["tile"].pinned
    for pin in ({"tile": "24x32"}, {"slots.ahead": 7}, {"sV.at": 3}):
        with pytest.raises(gr.SelectError) as e:
            grouped().plan("sm_80", pin=pin)
        assert e.value.code == "PLAN_PIN"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda Q, K, V, d, s: plan.dot(plan.exp(plan.dot(Q, plan.exp(K), d)), V, s),
            "the second operand is an input",
        ),
        (
            lambda Q, K, V, d, s: plan.dot(plan.exp(plan.dot(Q, K, d) / plan.sum(plan.dot(Q, K, d), s)), V, s),
            "statistics of a product",
        ),
        (
            lambda Q, K, V, d, s: plan.dot(plan.exp(plan.dot(Q, K, d)), V, s) * plan.sum(Q, d),
            "sum between the products, or behind them",
        ),
        (
            lambda Q, K, V, d, s: plan.dot(plan.exp(plan.dot(Q * plan.exp(K), K, d)), V, s),
            "the first operand is an expression of an input and",
        ),
        (
            lambda Q, K, V, d, s: plan.dot(plan.dot(Q, K, d) - plan.max(plan.dot(Q, K, d), s), V, s),
            "a maximum is followed along a stream",
        ),
    ],
)
def test_streams_that_no_plan_computes(build: Any, message: str) -> None:
    q, s, d, e = plan.axes(q=16, s=64, d=32, e=32)
    with plan.graph("wrong") as g:
        Q, K, V = (g.input(n, a, gr.fp16) for n, a in (("Q", [q, d]), ("K", [s, d]), ("V", [s, e])))
        g.output("O", build(Q, K, V, d, s), [q, e], gr.fp16)
    with pytest.raises(gr.SelectError) as e2:
        g.plan("sm_80")
    assert e2.value.code == "PLAN_NONE"
    assert message in str(e2.value)
