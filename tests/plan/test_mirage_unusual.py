"""Legal but unusual graphs of Mirage: right values, and a plan or a coded refusal."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from mirage_blocks import run

import graphene as gr
from graphene import plan
from graphene.plan import mirage


def divisors(n: int) -> list[int]:
    return [d for d in (1, 2, 3, 4, 6, 8) if n % d == 0]


def one_row(tokens: int = 1) -> mirage.KernelGraph:
    """A batch of one, whose dimension of one element is the rows of the products."""
    graph = mirage.new_kernel_graph()
    X, W, bias = graph.new_input((tokens, 128)), graph.new_input((128, 96)), graph.new_input((1, 96))
    tb = mirage.new_threadblock_graph((6, 1, 1), (128, 1, 1), 4)
    x, w, b = tb.new_input(X, (-1,), 1), tb.new_input(W, (1,), 0), tb.new_input(bias, (1,))
    norm = tb.div(tb.forloop_accum(tb.matmul(x, w)), tb.forloop_accum(x, "rms"))
    tb.new_output(tb.add(tb.gelu(norm), b), (1,))
    graph.mark_output(graph.customized([X, W, bias], tb)[0])
    return graph


def one_query() -> mirage.KernelGraph:
    """Attention of one query, with keys that two axes of the grid cut."""
    graph = mirage.new_kernel_graph()
    Q, K, V = graph.new_input((3, 1, 32)), graph.new_input((3, 32, 64)), graph.new_input((3, 64, 16))
    tb = mirage.new_threadblock_graph((3, 2, 2), (128, 1, 1), 4)
    q, k, v = tb.new_input(Q, (0, -1)), tb.new_input(K, (0, 2, 2), 2), tb.new_input(V, (0, 1, 1), 1)
    e = tb.exp(tb.matmul(q, k))
    tb.new_output(tb.forloop_accum(tb.matmul(e, v)), (0, 2, 2))
    tb.new_output(tb.forloop_accum(e, "sum"), (0, 2, 2))
    total, sums = graph.customized([Q, K, V], tb)
    last = mirage.new_threadblock_graph((3, 1, 1), (128, 1, 1), 1, 16)
    t, s = last.new_input(total, (0,)), last.new_input(sums, (0,))
    last.new_output(last.div(last.forloop_accum(t, "sum_todimx"), last.forloop_accum(s, "sum")), (0,))
    graph.mark_output(graph.customized([total, sums], last)[0])
    return graph


def softmax() -> mirage.KernelGraph:
    """Rows without a product; the sum is over a reading of its own, cut by a loop."""
    graph = mirage.new_kernel_graph()
    X = graph.new_input((24, 96))
    tb = mirage.new_threadblock_graph((3, 1, 1), (128, 1, 1), 4)
    tb.new_output(tb.forloop_accum(tb.exp(tb.new_input(X, (0,), 1)), "sum"), (0,))
    graph.mark_output(graph.div(graph.exp(X), graph.customized([X], tb)[0]))
    return graph


def kernels_alone() -> mirage.KernelGraph:
    """Operators on whole tensors alone, of bf16; an operand that is computed without rounding."""
    graph = mirage.new_kernel_graph()
    X, W, V = (graph.new_input(s, mirage.bfloat16) for s in ((16, 48), (48, 64), (48, 64)))
    x = graph.relu(X)
    graph.mark_output(graph.mul(graph.silu(graph.matmul(x, W)), graph.matmul(x, V)))
    return graph


def reversed_grid() -> mirage.KernelGraph:
    """Rows on the last axis of the grid, columns on the second, and what stands behind the accumulators."""
    graph = mirage.new_kernel_graph()
    X, W = graph.new_input((32, 64)), graph.new_input((64, 96))
    tb = mirage.new_threadblock_graph((1, 4, 2), (128, 1, 1), 8)
    x, w = tb.new_input(X, (-1, -1, 0), 1), tb.new_input(W, (-1, 1, -1), 0)
    y = tb.forloop_accum(tb.matmul(x, w))
    tb.new_output(tb.div(tb.sqrt(tb.square(y)), tb.forloop_accum(tb.exp(x), "mean")), (-1, 1, 0))
    graph.mark_output(graph.customized([X, W], tb)[0])
    return graph


UNUSUAL: dict[str, Any] = {"one row": one_row, "one query": one_query, "softmax": softmax,
                           "kernels alone": kernels_alone, "reversed grid": reversed_grid}  # fmt: skip


def values(graph: mirage.KernelGraph, seed: int = 0) -> tuple[plan.Graph, Any, Any]:
    """The graph, what it evaluates to, and what its blocks compute."""
    operators, rng = graph.to_json(), np.random.default_rng(seed)
    sizes = [t["dim"][: t["num_dims"]] for o in operators if o["op_type"] == "kn_input_op" for t in o["output_tensors"]]
    arrays = [0.3 * rng.standard_normal(s) for s in sizes]
    g = graph.graph()
    return g, g.evaluate({f"X{i}": x for i, x in enumerate(arrays)}), run(operators, arrays)


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_graphs_are_planned(name: str) -> None:
    g, got, want = values(UNUSUAL[name]())
    assert np.allclose(got["O0"].reshape(want[0].shape), want[0], rtol=1e-9)
    found = g.plan("sm_80").check()
    assert found.ok, str(found)


def drawn(seed: int) -> mirage.KernelGraph:
    """A product, or two in a row, with random maps, loops and operators."""
    r, graph = random.Random(seed), mirage.new_kernel_graph()
    m, k, n = r.choice([1, 8, 16, 32]), *(r.choice([16, 24, 48, 64, 96]) for _ in range(2))
    X, W = graph.new_input((m, k)), graph.new_input((k, n))
    down, across, turned = r.choice(divisors(m)), r.choice(divisors(n)), r.random() < 0.5

    def along(x: int, y: int) -> tuple[int, int]:
        return (y, x) if turned else (x, y)

    tb = mirage.new_threadblock_graph((*along(down, across), 1), (128, 1, 1), r.choice(divisors(k)))
    x, w = tb.new_input(X, along(0, -1), 1), tb.new_input(W, along(-1, 1), 0)
    y = tb.forloop_accum(tb.matmul(getattr(tb, r.choice(["relu", "square", "silu"]))(x) if r.random() < 0.4 else x, w))
    if r.random() < 0.5:
        y = tb.div(y, tb.forloop_accum(x, r.choice(["rms", "mean", "sum"])))
    y = getattr(tb, r.choice(["exp", "silu", "gelu", "relu", "square"]))(y) if r.random() < 0.5 else y
    tb.new_output(y, along(0, 1))
    (z,) = graph.customized([X, W], tb)
    if r.random() < 0.3:
        V = graph.new_input((n, 32))
        second = mirage.new_threadblock_graph((r.choice(divisors(32)), 1, 1), (128, 1, 1), r.choice(divisors(n)))
        a, b = second.new_input(z, (-1,), 1), second.new_input(V, (1,), 0)
        second.new_output(second.forloop_accum(second.matmul(a, b)), (1,))
        (z,) = graph.customized([z, V], second)
    graph.mark_output(z)
    return graph


def test_random_graphs_mean_what_their_blocks_compute() -> None:
    planned, codes = 0, set()
    for seed in range(60):
        try:
            g, got, want = values(drawn(seed), seed)
        except gr.VerifyError as e:
            codes.add(e.code)
            continue
        assert np.allclose(got["O0"].reshape(want[0].shape), want[0], rtol=1e-8, atol=1e-11), seed
        try:
            g.plan("sm_80")
        except gr.SelectError as e:
            codes.add(e.code)
        else:
            planned += 1
    assert codes <= {"PLAN_GRAPH", "PLAN_NONE"}
    assert planned > 40


def test_cuts_that_do_not_divide_each_other_are_refused() -> None:
    graph = mirage.new_kernel_graph()
    X, W, V = graph.new_input((16, 48)), graph.new_input((48, 24)), graph.new_input((24, 32))
    tb = mirage.new_threadblock_graph((3, 1, 1), (128, 1, 1), 1)
    tb.new_output(tb.forloop_accum(tb.matmul(tb.new_input(X, (-1,)), tb.new_input(W, (1,)))), (1,))
    (z,) = graph.customized([X, W], tb)
    last = mirage.new_threadblock_graph((1, 1, 1), (128, 1, 1), 4)
    last.new_output(last.forloop_accum(last.matmul(last.new_input(z, (-1,), 1), last.new_input(V, (-1,), 0))), (-1,))
    graph.mark_output(graph.customized([z, V], last)[0])
    with pytest.raises(gr.VerifyError, match="cut in ways that do not divide each other") as error:
        graph.graph()
    assert error.value.code == "PLAN_GRAPH"
