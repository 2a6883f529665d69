"""Attention's form planned for Hopper: wgmma, copies by TMA and statistics of keys beside the products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import plan

WGMMA = {"instruction": "wgmma"}
TWO = "128x64 by 2 warpgroups, 2 stages"
THREE = "192x64 by 3 warpgroups, 2 stages"
ONE = "64x64 by 1 warpgroups, 2 stages"


def attention() -> plan.Graph:
    """Sizes of rows and of the stream are known at a launch."""
    b, q, s, d, e = plan.axes(b=2, q="SQ", s="SK", d=64, e=64)
    with plan.graph("attention") as g:
        Q, K, V = (g.input(n, a, gr.fp16) for n, a in (("Q", [b, q, d]), ("K", [b, s, d]), ("V", [b, s, e])))
        g.output("O", plan.dot(plan.softmax(plan.dot(Q, K, d) * 0.125, s), V, s), [b, q, e], gr.fp16)
    return g


def normalised(gamma: bool = True) -> plan.Graph:
    """Queries and keys are divided by their root mean squares; heads share keys; another width of values."""
    h, j, q, s, d, e = plan.axes(h=2, j=2, q=140, s=200, d=64, e=96)
    with plan.graph("normalised") as g:
        Q, K = g.input("Q", [h, j, q, d], gr.bf16), g.input("K", [h, s, d], gr.bf16)
        V = g.input("V", [h, s, e], gr.bf16)
        queries, keys = (t * plan.rsqrt(plan.mean(t * t, d) + 1e-6) for t in (Q, K))
        queries = queries * g.input("gamma", [d], gr.bf16) if gamma else queries
        weights = plan.softmax(plan.dot(queries, keys, d) * 0.2, s)
        g.output("O", plan.dot(weights, V, s), [h, j, q, e], gr.bf16)
    return g


def weighted() -> plan.Graph:
    """Queries and keys are normalised, each with weights of its own, as in Qwen3."""
    h, j, q, s, d, e = plan.axes(h=1, j=2, q=70, s=100, d=32, e=32)
    with plan.graph("weighted") as g:
        Q, K = g.input("Q", [h, j, q, d], gr.fp16), g.input("K", [h, s, d], gr.fp16)
        V, wq, wk = g.input("V", [h, s, e], gr.fp16), g.input("wq", [d], gr.fp16), g.input("wk", [d], gr.fp16)
        queries, keys = (t * plan.rsqrt(plan.mean(t * t, d) + 1e-6) * w for t, w in ((Q, wq), (K, wk)))
        weights = plan.softmax(plan.dot(queries, keys, d) * 0.2, s)
        g.output("O", plan.dot(weights, V, s), [h, j, q, e], gr.fp16)
    return g


def gates() -> plan.Graph:
    """No maximum, a score that is no product of factors, statistics of both sides, and no sum of weights."""
    q, s, d, e = plan.axes(q=70, s=150, d=32, e=32)
    with plan.graph("gates") as g:
        Q, K, V = (g.input(n, a, gr.fp16) for n, a in (("Q", [q, d]), ("K", [s, d]), ("V", [s, e])))
        score = plan.dot(Q, K, d) / (plan.max(plan.abs(Q), d) + plan.max(plan.abs(K), d) + plan.abs(plan.sum(K, d)) + 8)
        g.output("O", plan.dot(plan.sigmoid(score), V, s), [q, e], gr.fp16)
    return g


def unnormalised() -> plan.Graph:
    """Weights relative to the very maximum are asked for: nothing divides by their sum."""
    q, s, d, e = plan.axes(q=70, s=150, d=32, e=32)
    with plan.graph("unnormalised") as g:
        Q, K, V = (g.input(n, a, gr.fp16) for n, a in (("Q", [q, d]), ("K", [s, d]), ("V", [s, e])))
        x = plan.dot(Q, K, d) * 0.3
        g.output("O", plan.dot(plan.exp(x - plan.max(x, s)), V, s), [q, e], gr.fp16)
    return g


GRAPHS: dict[str, tuple[Any, dict[str, int], str]] = {
    "attention": (attention, {"q": 300, "s": 300}, TWO),
    "normalised": (normalised, {}, TWO),
    "normalised, three": (lambda: normalised(False), {}, THREE),
    "weighted": (weighted, {}, ONE),
    "gates": (gates, {}, ONE),
    "unnormalised": (unnormalised, {}, ONE),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_planned_streams_keep_their_promise(name: str) -> None:
    make, sizes, tile = GRAPHS[name]
    p = make().plan("sm_90a", pin={**WGMMA, "tile": tile}, **sizes)
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert max(map(len, p.source().splitlines())) <= 120
    assert plan.Plan.from_json(p.json()).source() == p.source()


@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "attention"])
def test_planned_streams_compute_their_graph(name: str) -> None:
    """With fewer blocks than tiles, so that rings go on from tile to tile."""
    torch = pytest.importorskip("torch")
    make, _, tile = GRAPHS[name]
    p = make().plan("sm_90a", pin={**WGMMA, "tile": tile})
    torch.manual_seed(0)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[str(p.graph.outputs[0].dtype)]
    arrays = {v.name: torch.randn([a.size or 0 for a in v.more["stored"]]).to(dtype) for v in p.graph.inputs}
    got = torch.zeros([a.size or 0 for a in p.graph.outputs[0].axes], dtype=dtype)
    p.kernel(workers=2)(*arrays.values(), got)
    want = p.graph.evaluate({n: x.double().numpy() for n, x in arrays.items()})["O"]
    assert np.abs(got.double().numpy() - want).max() <= (3e-3 if dtype == torch.float16 else 2e-2) * np.abs(want).max()


def test_factors_of_rows_and_keys_are_computed_once() -> None:
    """A key's factor is multiplied into scores, a row's into exponents."""
    text = normalised().plan("sm_90a", pin={**WGMMA, "tile": TWO}).source()
    assert "return x * c0" in text
    assert "power[:] = factor(s0)" in text
    text = gates().plan("sm_90a", pin=WGMMA).source()
    assert "def row_0(s0):" in text
    assert "sc1" in text


def test_weights_of_keys_are_multiplied_into_queries() -> None:
    for arch, pin in (("sm_90a", WGMMA), ("sm_80", {})):
        p = weighted().plan(arch, pin=pin)
        assert p.decisions["rewrite.factors_of_keys"].value
        assert "return x * w0 * w1" in p.source()
    assert p.check().ok


def test_sums_shrink_late_only_where_results_are_quotients() -> None:
    """Beside factors of keys it was faster on an H200, and slower without them."""
    assert normalised().plan("sm_90a", pin=WGMMA).decisions["rewrite.shrink_late"].value
    p = attention().plan("sm_90a", q=64, s=64, pin=WGMMA)
    assert not p.decisions["rewrite.shrink_late"].value
    other = attention().plan("sm_90a", q=64, s=64, pin={**WGMMA, "rewrite.shrink_late": True})
    assert other.check().ok
    assert not unnormalised().plan("sm_90a", pin=WGMMA).decisions["rewrite.shrink_late"].value
    with pytest.raises(gr.SelectError, match="weights themselves are asked for"):
        unnormalised().plan("sm_90a", pin={**WGMMA, "rewrite.shrink_late": True})


def test_it_is_taken_where_it_is_expected_to_be_faster() -> None:
    assert attention().plan("sm_90a", q=8192, s=1024).decisions["instruction"].value == "wgmma"
    assert "instruction" not in attention().plan("sm_80", q=1024, s=1024).decisions
    few = attention().plan("sm_90a", q=16, s=1024)
    assert few.decisions["instruction"].value == "mma.sync"  # three quarters of an instruction's rows would be empty


def test_pins_that_cannot_hold() -> None:
    with pytest.raises(gr.SelectError, match=r"bytes of shared memory|registers a thread") as error:
        normalised().plan("sm_90a", pin={**WGMMA, "tile": "192x128 by 3 warpgroups, 4 stages"})
    assert error.value.code == "PLAN_PIN"
    with pytest.raises(gr.SelectError, match="a single warpgroup"):
        attention().plan("sm_90a", q=64, s=64, pin={**WGMMA, "tile": ONE, "turns": True})
    q, s, d, e = plan.axes(q=64, s=64, d=32, e=32)
    with plan.graph("across") as g:
        Q, K, V = (g.input(n, a, gr.fp16) for n, a in (("Q", [q, d]), ("K", [d, s]), ("V", [s, e])))
        g.output("O", plan.dot(plan.softmax(plan.dot(Q, K, d), s), V, s), [q, e], gr.fp16)
    with pytest.raises(gr.SelectError, match="K does not lie along d") as error:
        g.plan("sm_90a", pin=WGMMA)
    assert error.value.code == "PLAN_PIN"


MISTAKES = {
    "a place of keys given back by one warp for all": (
        "gr.barrier(on=warp)\n                with gr.only(warp.elect()):\n                    emptyK",
        "with gr.only(warp.elect()):\n                    emptyK",
    ),
    "no fence behind reads of keys": ('gr.fence("async.shared")  # these reads come before the copy', "pass  #"),
    "products that are not waited for": ("gr.wait(pv, pending=0)\n", "\n"),
    "what is computed of keys is not waited for": ("ready[get_k.index].wait(get_k.phase)", "pass"),
    "a factor that is left out": ("return x * c0", "return x"),
    "sums that do not shrink": ("sums[:] = sums * shrink", "pass"),
    "places that lie over each other": None,
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mutated_plans_are_caught(mistake: str, tmp_path: Any) -> None:
    import importlib.util

    pin = {**WGMMA, "tile": TWO, "rewrite.shrink_late": False}
    p = normalised(False).plan("sm_90a", pin=pin)
    text = p.source()
    change = MISTAKES[mistake]
    if change is None:
        assert p.decisions["sV.at"].value != 0
        with pytest.raises(gr.SelectError):
            normalised(False).plan("sm_90a", pin={**pin, "sV.at": 0, "sK.at": 0})
        return
    before, after = change
    assert before in text, text
    path = tmp_path / "mutated.py"
    path.write_text(text.replace(before, after))
    spec = importlib.util.spec_from_file_location("mutated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fixed, free = p._of.small_sizes({})
    try:
        found = module.normalised(**fixed).check(**free)
    except gr.GrapheneError:
        return
    assert not found.ok, str(found)


def test_a_coordinate_that_is_at_most_one_is_an_integer() -> None:
    """Of two batches, the number of a tile's is printed as a comparison, which no register takes."""
    b, h, q, s, d, e = plan.axes(b=2, h=3, q=1024, s=1024, d=64, e=64)
    with plan.graph("two_batches") as g:
        Q, K, V = (g.input(n, a, gr.fp16) for n, a in (("Q", [b, h, q, d]), ("K", [b, h, s, d]), ("V", [b, h, s, e])))
        g.output("O", plan.dot(plan.softmax(plan.dot(Q, K, d) * 0.125, s), V, s), [b, h, q, e], gr.fp16)
    p = g.plan("sm_90a", pin={**WGMMA, "tile": TWO})
    assert p.kernel().compile("sm_90a").spill_bytes == 0
