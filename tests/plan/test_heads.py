"""Heads: losses and indices of a product's rows, without the product, on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import plan

SMALL = {"tile.m": 64, "tile.n": 64, "stages": 2, "parts": 2}


def head(m: Any = "M", k: int = 4096, v: int = 128256) -> plan.Graph:
    m, k, v = plan.axes(m=m, k=k, v=v)
    with plan.graph("head") as g:
        h, w = g.input("H", [m, k], gr.fp16), g.input("W", [v, k], gr.fp16)
        label = g.input("label", [m], gr.i32)
        z = plan.dot(h, w, k)
        g.output("loss", plan.logsumexp(z, v) - plan.at(z, v, label), [m], gr.fp32)
        g.output("best", plan.argmax(z, v), [m], gr.i32)
    return g


def smoothed() -> plan.Graph:
    """Every kind of statistic and of input: scores with a bias and a cap, two indices, weights of rows."""
    m, k, v = plan.axes(m="M", k=72, v=150)
    with plan.graph("smoothed") as g:
        h, w = g.input("full", [m, k], gr.bf16), g.input("W", [v, k], gr.bf16)
        bias, scale = g.input("bias", [v], gr.fp16), g.input("scale", [m], gr.fp32)
        label, other, weight = g.input("i", [m], gr.i32), g.input("other", [m], gr.i32), g.input("weight", [m], gr.fp32)
        z = plan.tanh((plan.dot(h, w, k) * scale + bias) / 8) * 8
        lse = plan.logsumexp(z, v)
        g.output("loss", ((lse - plan.at(z, v, label)) * 0.9 + (lse - plan.mean(z, v)) * 0.1) * weight, [m], gr.fp32)
        g.output("margin", plan.max(z, v) - plan.at(z, v, other), [m], gr.fp16)
    return g


def across(m: Any, k: int, v: int) -> plan.Graph:
    """Weights that do not lie along the sum, which wgmma of planned kernels does not take."""
    m, k, v = plan.axes(m=m, k=k, v=v)
    with plan.graph("across") as g:
        z = plan.dot(g.input("H", [m, k], gr.fp16), g.input("W", [k, v], gr.fp16), k)
        g.output("best", plan.argmax(z, v), [m], gr.i32)
    return g


def arrays_of(g: plan.Graph, **sizes: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made = {}
    for v in g.inputs:
        shape = [sizes.get(a.symbol, a.size) for a in v.more["stored"]]
        if str(v.more["dtype"]) == "i32":
            made[v.name] = rng.integers(0, 64, shape).astype(np.int32)
        else:
            made[v.name] = rng.standard_normal(shape).astype({"fp32": np.float32}.get(str(v.more["dtype"]), np.float16))
    return made


def run(g: plan.Graph, p: plan.Plan, arrays: dict[str, Any], rows: int) -> dict[str, Any]:
    """What a call on the simulator gives."""
    types = {"fp32": np.float32, "fp16": np.float16, "i32": np.int32}
    out = {o.name: np.full([rows], -7, types[str(o.dtype)]) for o in g.outputs}
    p(*(arrays[v.name] for v in p.kernel_inputs()), *out.values())
    return out


@pytest.mark.parametrize(("graph", "pins"), [(lambda: head("M", 72, 150), SMALL), (smoothed, SMALL),
                                             (lambda: head("M", 136, 200), {**SMALL, "tile.m": 128})])  # fmt: skip
def test_both_kernels_keep_the_promise(graph: Any, pins: dict[str, Any]) -> None:
    p = graph().plan("sm_90a", m=200, pin=pins)
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert plan.Plan.from_json(p.json()).source() == p.source()
    assert max(map(len, p.source().splitlines())) <= 120
    assert "<svg" in p.svg()


@pytest.mark.parametrize(("graph", "arch"), [(lambda: head("M", 72, 150), "sm_80"), (smoothed, "sm_80"),
                                             (lambda: across("M", 64, 100), "sm_90a")])  # fmt: skip
def test_warps_keep_the_promise_too(graph: Any, arch: str) -> None:
    p = graph().plan(arch, m=40)
    assert "mma.sync" in p.source() or "mma.m16n8k16" in p.source()
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert plan.Plan.from_json(p.json()).source() == p.source()
    assert max(map(len, p.source().splitlines())) <= 120
    assert sum(x.kernel.compile(arch).spill_bytes for x in graph().plan(arch, m=4096).launches()) == 0


def test_rows_parts_and_blocks_that_tiles_do_not_divide() -> None:
    """Three parts of four tiles of columns, and as many blocks as there are tiles of rows and parts, less two."""
    g = head("M", 64, 230)
    p = g.plan("sm_90a", m=200, pin={**SMALL, "parts": 3})
    arrays = arrays_of(g, M=150)
    arrays["W"][130] = arrays["W"][7]  # equal scores, of which the first is taken
    arrays["W"][7] *= 4
    arrays["W"][130] = arrays["W"][7]
    arrays["label"][:4] = [-1, 230, 255, 229]  # no columns, the third one in the last tile; and the last column
    got, want = run(g, p, arrays, 150), g.evaluate(arrays)
    assert np.isnan(got["loss"][:3]).all()
    assert np.isnan(want["loss"][:3]).all()
    assert np.abs(got["loss"] - want["loss"])[3:].max() < 1e-3
    assert (got["best"] == want["best"]).all()
    assert (got["best"] == 7).sum() > 20
    assert 130 not in got["best"]


@pytest.mark.parametrize(("arch", "pins"), [("sm_90a", SMALL), ("sm_80", {})])
def test_scores_without_a_largest_one(arch: str, pins: dict[str, Any]) -> None:
    g = head("M", 64, 100)
    p = g.plan(arch, m=64, pin=pins)
    arrays = arrays_of(g, M=3)
    arrays["H"][:], arrays["W"][:] = 1, -np.inf
    got = run(g, p, arrays, 3)
    assert (got["best"] == 0).all()
    assert (g.evaluate(arrays)["best"] == 0).all()


def test_tiles_and_parts_for_a_vocabulary() -> None:
    p = head().plan("sm_90a", m=4096)
    d = p.decisions
    assert d["tile.m"].value == 128
    assert d["workers"].value == 128
    assert d["tile.n"].value == 256
    assert d["parts"].value == 4  # 6857 us on an H200; 501 parts, with which multiprocessors end together, 7051
    assert abs(p.expected_us - 6857) < 0.05 * 6857
    assert d["workspace.bytes"].value < 1e6  # logits of 16 bits take 1050 MB
    few = head().plan("sm_90a", m=16)
    assert few.bound == "memory"
    assert few.decisions["tile.m"].value == 64


@pytest.mark.parametrize(
    ("why", "result"),
    [
        ("are inputs", lambda z, v, x: plan.max(plan.dot(z.args[0] * 2, z.args[1], z.more["axis"]), v)),
        ("want: logsumexp", lambda z, v, x: plan.min(z, v)),
        ("other scores", lambda z, v, x: plan.max(z, v) + plan.max(z * 2, v)),
        ("computed with", lambda z, v, x: plan.argmax(z, v) + 1),
        ("beside a row's statistics", lambda z, v, x: plan.max(z, v) * x),
        ("another maximum", lambda z, v, x: plan.sum(plan.exp(z - plan.max(z * 2, v)), v)),
    ],
)
def test_what_no_head_computes(why: str, result: Any) -> None:
    m, k, v = plan.axes(m=64, k=64, v=64)
    with plan.graph("g") as g:
        h, w = g.input("H", [m, k], gr.fp16), g.input("W", [v, k], gr.fp16)
        g.output("o", result(plan.dot(h, w, k), v, g.input("x", [m], gr.fp16)), [m], gr.fp32)
    with pytest.raises(gr.SelectError, match=why) as error:
        g.plan("sm_90a")
    assert error.value.code == "PLAN_NONE"


def test_what_is_refused_elsewhere() -> None:
    p = head("M", 64, 100).plan("sm_90a", m=64)
    with pytest.raises(gr.VerifyError, match="two kernels") as error:
        p.kernel()
    assert error.value.code == "PLAN_GRAPH"
    with pytest.raises(gr.VerifyError, match="inputs, then outputs"):
        p(np.zeros(3))
    m, n = plan.axes(m=64, n=64)
    with plan.graph("g") as g:
        g.output("o", plan.argmax(g.input("X", [m, n], gr.fp16), n), [m], gr.i32)
    with pytest.raises(gr.SelectError, match="something else than a product's rows"):
        g.plan("sm_90a")
    with plan.graph("g") as g:
        x, i = g.input("X", [m, n], gr.fp16), g.input("i", [m], gr.fp32)
    with pytest.raises(gr.VerifyError, match=r"an input of gr\.i32"):
        plan.at(x, n, i)


def test_other_plans_have_launches_too() -> None:
    m, k, n = plan.axes(m=16, k=64, n=64)
    with plan.graph("g") as g:
        g.output("o", plan.dot(g.input("x", [m, k], gr.fp16), g.input("w", [k, n], gr.fp16), k), [m, n], gr.fp16)
    ((_, names),) = g.plan("sm_80").launches()
    assert names == ("x", "w", "o")
