"""The measurement of plans: which are tried, which is taken, and what becomes of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

import graphene as gr
from graphene import plan

torch = pytest.importorskip("torch")


def product() -> plan.Graph:
    m, k, n = plan.axes(m="M", k=64, n=32)
    with plan.graph("product") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        g.output("O", plan.relu(plan.dot(x, w, k)), [m, n], gr.fp16)
    return g


def in_turn(*us: float) -> Any:
    """A timer that runs nothing, with a time for each call."""
    left = iter(us)
    return lambda launch: next(left)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator stands for a device")
def test_the_fastest_plan_is_taken() -> None:
    found = plan.measure(product(), "sm_80", count=3, rounds=1, timer=in_turn(3.0, 1.0, 2.0), m=16)
    assert [us for _, us in found.rows] == [1.0, 2.0, 3.0]
    assert found.best is found.rows[0][0]
    assert [sum(d.pinned for d in p.decisions.values()) for p, _ in found.rows] == [1, 1, 0]
    assert len({p.source() for p, _ in found.rows}) == 3
    assert len(str(found).splitlines()) == 3
    assert str(found).splitlines()[-1].endswith("as expected best")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator stands for a device")
def test_a_plan_with_other_results_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    right = plan.Plan.source

    def source(p: plan.Plan) -> str:  # the pinned plan forgets relu
        wrong = p.decisions["stages"].pinned
        return right(p).replace("    return relu(d0)", "    return d0") if wrong else right(p)

    monkeypatch.setattr(plan.Plan, "source", source)
    g = product()
    pins = {path: d.value for path, d in g.plan("sm_80", m=16).decisions.items() if path != "stages"}
    keep = {path: pins[path] for path in ("tile.m", "tile.n", "loop.k", "warps", "copies.when")}
    found = plan.measure(g, "sm_80", keep, count=2, rounds=1, timer=in_turn(3.0, 1.0), m=16)
    assert found.rows[0][1] == 3.0
    assert "from those of the expected best" in str(found.rows[1][1])
    assert not found.best.decisions["stages"].pinned


@pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator stands for a device")
def test_rewrites_are_measured_too() -> None:
    m, n = plan.axes(m=8, n=32)
    with plan.graph("shares") as g:
        x = g.input("X", [m, n], gr.fp16)
        g.output("Y", plan.softmax(x, n), [m, n], gr.fp16)
    times = {True: 1.0, False: 2.0}
    found = plan.measure(g, "sm_80", {"threads": 4, "rows": 8}, rounds=1, timer=in_turn(*times.values()))
    assert {p.decisions["rewrite.reciprocals"].value for p, _ in found.rows} == {True, False}
