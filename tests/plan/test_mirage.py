"""Mirage's graphs: built under its names, written as its JSON, read, evaluated and planned."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import plan
from graphene.plan import mirage


def rms_linear(grid: int = 4, loop: int = 4) -> mirage.KernelGraph:
    """Mirage's own example: the norm is divided out behind the product."""
    graph = mirage.new_kernel_graph()
    X, W = graph.new_input((16, 128)), graph.new_input((128, 96))
    tb = mirage.new_threadblock_graph((grid, 1, 1), (128, 1, 1), loop, 64)
    x, w = tb.new_input(X, (-1, -1, -1), 1), tb.new_input(W, (1, -1, -1), 0)
    product = tb.forloop_accum(tb.matmul(x, w))
    tb.new_output(tb.div(product, tb.forloop_accum(x, "rms")), (1, -1, -1))
    graph.mark_output(graph.customized([X, W], tb)[0])
    return graph


def gated(grid: int, loop: int, apart: bool) -> mirage.KernelGraph:
    """Two products of one input; with `apart` the gate is multiplied by an operator of the kernel graph."""
    graph = mirage.new_kernel_graph()
    X, W, V = (graph.new_input(s) for s in ((16, 64), (64, 64), (64, 64)))
    tb = mirage.new_threadblock_graph((grid, 1, 1), (128, 1, 1), loop)
    x = tb.new_input(X, (-1,), 1)
    w, v = (tb.new_input(t, (1,), 0) for t in (W, V))
    gate, up = (tb.forloop_accum(tb.matmul(x, t)) for t in (w, v))
    if apart:
        tb.new_output(tb.silu(gate), (1,))
        tb.new_output(up, (1,))
        graph.mark_output(graph.mul(*graph.customized([X, W, V], tb)))
    else:
        tb.new_output(tb.mul(tb.silu(gate), up), (1,))
        graph.mark_output(graph.customized([X, W, V], tb)[0])
    return graph


def lora(loop: int) -> mirage.KernelGraph:
    graph = mirage.new_kernel_graph()
    X, W, A, B = (graph.new_input(s) for s in ((16, 64), (64, 96), (64, 16), (16, 96)))
    tb = mirage.new_threadblock_graph((2, 1, 1), (128, 1, 1), loop)
    x, w, a = tb.new_input(X, (-1,), 1), tb.new_input(W, (1,), 0), tb.new_input(A, (-1,), 0)
    b = tb.new_input(B, (1,), -1)
    tb.new_output(tb.forloop_accum(tb.add(tb.matmul(x, w), tb.matmul(tb.matmul(x, a), b))), (1,))
    graph.mark_output(graph.customized([X, W, A, B], tb)[0])
    return graph


def attention(split: int) -> mirage.KernelGraph:
    """Two kernels: parts of the keys side by side, then their sums. Mirage's takes exp without a maximum."""
    graph = mirage.new_kernel_graph()
    Q, K, V = graph.new_input((2, 8, 16)), graph.new_input((2, 16, 64)), graph.new_input((2, 64, 16))
    tb = mirage.new_threadblock_graph((2, split, 1), (128, 1, 1), 2)
    q, k, v = tb.new_input(Q, (0, -1)), tb.new_input(K, (0, 2), 2), tb.new_input(V, (0, 1), 1)
    e = tb.exp(tb.matmul(q, k))
    tb.new_output(tb.forloop_accum(tb.matmul(e, v)), (0, 2))
    tb.new_output(tb.forloop_accum(e, "sum"), (0, 2))
    total, sums = graph.customized([Q, K, V], tb)
    last = mirage.new_threadblock_graph((2, 1, 1), (128, 1, 1), 1, 16)
    t, s = last.new_input(total, (0,), -1), last.new_input(sums, (0,), -1)
    last.new_output(last.div(last.forloop_accum(t, "sum_todimx"), last.forloop_accum(s, "sum")), (0,))
    graph.mark_output(graph.customized([total, sums], last)[0])
    return graph


def test_one_tensor_cut_in_different_ways_is_one_tensor() -> None:
    """The sum that is divided by comes from scores of its own, whose keys no grid cuts."""
    graph = mirage.new_kernel_graph()
    Q, K, V = graph.new_input((2, 16, 16)), graph.new_input((2, 16, 64)), graph.new_input((2, 64, 16))
    tb = mirage.new_threadblock_graph((2, 4, 1), (128, 1, 1), 2)
    q, k, v = tb.new_input(Q, (0, -1)), tb.new_input(K, (0, 2), 2), tb.new_input(V, (0, 1), 1)
    tb.new_output(tb.forloop_accum(tb.matmul(tb.exp(tb.matmul(q, k)), v)), (0, 2))
    (parts,) = graph.customized([Q, K, V], tb)
    last = mirage.new_threadblock_graph((2, 1, 1), (128, 1, 1), 1, 16)
    last.new_output(last.forloop_accum(last.new_input(parts, (0,), -1), "sum_todimx"), (0,))
    total = graph.reduction(graph.exp(graph.matmul(Q, K)), 2)
    graph.mark_output(graph.div(graph.customized([parts], last)[0], total))
    g, rng = graph.graph(), np.random.default_rng(0)
    assert [v.name for v in g.inputs] == ["X0", "X1", "X2"]
    arrays = [0.3 * rng.standard_normal(s) for s in ((2, 16, 16), (2, 16, 64), (2, 64, 16))]
    got = g.evaluate({f"X{i}": x for i, x in enumerate(arrays)})["O0"]
    assert np.allclose(got, reference("attention", *arrays), rtol=1e-11)
    assert g.plan("sm_80").decisions["p.range"].value == "as given"


def reference(name: str, *x: Any) -> Any:
    if name == "rms_linear":
        return (x[0] / np.sqrt((x[0] ** 2).mean(1, keepdims=True))) @ x[1]
    if name == "gated":
        d = x[0] @ x[1]
        return d / (1 + np.exp(-d)) * (x[0] @ x[2])
    if name == "lora":
        return x[0] @ x[1] + x[0] @ x[2] @ x[3]
    e = np.exp(x[0] @ x[1])
    return e @ x[2] / e.sum(-1, keepdims=True)


GRAPHS = [
    *(("rms_linear", rms_linear(g, n)) for g, n in ((4, 4), (3, 1), (96, 128))),
    *(("gated", gated(g, n, apart)) for g, n, apart in ((4, 2, False), (8, 1, True))),
    *(("lora", lora(n)) for n in (1, 4)),
    *(("attention", attention(n)) for n in (1, 4)),
]


@pytest.mark.parametrize(("name", "graph"), GRAPHS)
def test_graphs_mean_what_mirage_means(name: str, graph: mirage.KernelGraph) -> None:
    g, rng = graph.graph(), np.random.default_rng(0)
    sizes = [
        t["dim"][: t["num_dims"]] for o in graph.operators if o["op_type"] == "kn_input_op" for t in o["output_tensors"]
    ]
    arrays = [0.3 * rng.standard_normal(s) for s in sizes]
    got = g.evaluate({f"X{i}": x for i, x in enumerate(arrays)})["O0"]
    want = reference(name, *arrays)
    assert np.allclose(got.reshape(want.shape), want, rtol=1e-11)


@pytest.mark.parametrize(("name", "graph"), [x for x in GRAPHS if x[0] != "attention"][:1] + GRAPHS[3:4] + GRAPHS[6:7])
def test_graphs_are_planned_and_run(name: str, graph: mirage.KernelGraph) -> None:
    p = graph.plan("sm_80")
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    axes = {a.name: a.size for a in p.graph.axes()}
    assert all(len(v.axes) <= 2 for v in p.graph.inputs), axes  # digits have become whole axes again


def test_schedules_do_not_matter_to_the_planner() -> None:
    texts = {json.dumps(rms_linear(g, n).graph().to_json()) for g, n in itertools.product((1, 2, 8), (1, 4))}
    assert len(texts) == 1


def test_files_are_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "two-graphs.json"
    file.write_text(json.dumps([rms_linear(2, 2).to_json(), rms_linear(4, 1).to_json(), attention(2).to_json()]))
    graphs = mirage.load(file)
    assert [g.name for g in graphs] == ["two_graphs_0", "two_graphs_1", "two_graphs_2"]
    best = mirage.cheapest(graphs, "sm_80")
    assert isinstance(best, plan.Plan)
    assert best.graph in graphs
    chain = mirage.new_kernel_graph()
    A, B, C = (chain.new_input(s) for s in ((16, 64), (64, 256), (256, 32)))
    chain.mark_output(chain.matmul(chain.matmul(A, B), C))
    with pytest.raises(gr.SelectError, match="none of 1 graphs has a plan"):
        mirage.cheapest([chain.graph()])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o[2].update(op_type="kn_sort_op"), "an operator that is not read: kn_sort_op"),
        (
            lambda o: o[2]["bgraph"]["operators"][2].update(op_type="tb_sort_op"),
            "an operator that is not read: tb_sort_op",
        ),
        (lambda o: o[0]["output_tensors"][0].update(data_type=7), "a type of elements that is not known"),
        (lambda o: o[2]["bgraph"]["grid_dim"].update(x=5), "dimensions that are cut in ways that do not divide"),
        (lambda o: o[2].pop("bgraph"), "JSON that does not describe a graph of Mirage"),
        (lambda o: o.pop(), "a graph without outputs"),
    ],
)
def test_json_that_is_not_read(change: Any, message: str) -> None:
    data = rms_linear().to_json()
    change(data)
    with pytest.raises(gr.VerifyError) as e:
        mirage.read(data)
    assert e.value.code == "PLAN_GRAPH"
    assert str(e.value).startswith(message)


def test_graphs_that_mirage_would_not_build() -> None:
    graph = mirage.new_kernel_graph()
    X, W = graph.new_input((16, 64)), graph.new_input((32, 64))
    tb = mirage.new_threadblock_graph((4, 1, 1), (128, 1, 1), 3)
    for call in (
        lambda: graph.matmul(X, W), lambda: graph.add(X, W), lambda: tb.new_input(X, (-1,), 1),
        lambda: graph.new_input((4, 4), strides=(1, 4)), lambda: graph.customized([X], tb),
        lambda: graph.reduction(X, 2),
        lambda: graph.new_input((4, 4), gr.i8), lambda: graph.rms_norm(X, (16,)),
    ):  # fmt: skip
        with pytest.raises(gr.VerifyError, match="PLAN_GRAPH"):
            call()
