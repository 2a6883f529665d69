"""Products planned for Hopper: wgmma and TMA as values of a plan's decisions, on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import plan
from graphene.plan.product_time import least_us

WGMMA = {"instruction": "wgmma"}


def chain(k: int = 136, n: int = 72, **more: Any) -> plan.Graph:
    """A product with every kind of input beside it; neither k nor n is whole tiles."""
    m, k, n = plan.axes(m="M", k=k, n=n)
    with plan.graph("chain") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [n, k], gr.fp16)
        b, r, s = g.input("B", [n], gr.fp32), g.input("R", [m, n], gr.fp16), g.input("S", [m], gr.fp32)
        g.output("O", plan.gelu(plan.dot(x, w, k) * s + b) + r, [m, n], gr.fp16)
    return g


def swiglu() -> plan.Graph:
    m, k, f = plan.axes(m=130, k=64, f=64)
    with plan.graph("swiglu") as g:
        x = g.input("X", [m, k], gr.bf16)
        w1, w2 = g.input("W1", [f, k], gr.bf16), g.input("W2", [f, k], gr.bf16)
        g.output("H", plan.silu(plan.dot(x, w1, k)) * plan.dot(x, w2, k), [m, f], gr.bf16)
    return g


def run(g: plan.Graph, p: plan.Plan, **sizes: int) -> float:
    """The largest error of a call on the simulator, relative to the largest element."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    types = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    args = {}
    for v in g.inputs:
        shape = [sizes.get(a.symbol, a.size) for a in v.more["stored"]]
        args[v.name] = (torch.randn(shape) / (8 if v.name[0] == "W" else 1)).to(types[str(v.more["dtype"])])
    (o,) = g.outputs
    out = torch.full([sizes.get(a.symbol, a.size) for a in o.axes], float("nan")).to(types[str(o.dtype)])
    p(*args.values(), out)
    want = g.evaluate({n: x.double().numpy() for n, x in args.items()})[o.name]
    return float(np.abs(out.double().numpy() - want).max() / np.abs(want).max())


def test_a_chain_behind_a_product() -> None:
    g = chain()
    p = g.plan("sm_90a", m=200, pin=WGMMA)
    assert run(g, p, M=72) < 1e-3
    assert p.decisions["sX.copy"].value == "TMA"
    assert p.kernel().report(M=72).conflicts == 0
    again = plan.Plan.from_json(p.json())
    assert again.source() == p.source()


def test_two_products_and_two_warpgroups() -> None:
    g = swiglu()
    p = g.plan("sm_90a", pin={**WGMMA, "tile.m": 128, "stages": 2})
    assert run(g, p) < 8e-3
    assert "gr.setmaxnreg(232)" in p.source()  # 384 threads share the registers


def test_it_is_taken_where_it_is_expected_to_be_faster() -> None:
    """On an H200, products of 64, 512 and 4096 rows were; few rows leave most of the instruction's 64 rows empty."""
    for rows in (64, 512, 4096):
        p = chain(4096, 4096).plan("sm_90a", m=rows)
        assert p.decisions["instruction"].value == "wgmma"
    assert "mma.sync: no tile takes less than" in p.why("instruction")  # the search for one was left out
    other = chain(4096, 4096).plan("sm_90a", m=4096, pin={"instruction": "mma.sync"})
    assert other.expected_us > p.expected_us
    assert chain(4096, 4096).plan("sm_90a", m=16).decisions["instruction"].value == "mma.sync"
    assert "instruction" not in chain().plan("sm_80", m=4096).decisions


def test_no_tile_of_mma_takes_less_than_what_leaves_the_search_out() -> None:
    for rows in (16, 300, 4096):
        p = chain().plan("sm_80", m=rows)
        form = p._of.form
        assert p.expected_us >= least_us(form, p.sizes, p.device)


@pytest.mark.parametrize(
    ("why", "graph"),
    [
        ("nothing is computed of them", lambda m, k, n, x, w: plan.dot(x * 2 + 1, w, k)),
        ("nothing is computed of them", lambda m, k, n, x, w: plan.dot(x, w, k) * plan.mean(x, k)),
        ("pairs of 16 bits", None),
    ],
)
def test_why_not(why: str, graph: Any) -> None:
    m, k, n = plan.axes(m=64, k=64, n=64)
    with plan.graph("g") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [n, k], gr.fp16)
        value = plan.dot(x, w, k) if graph is None else graph(m, k, n, x, w)
        g.output("O", value, [m, n], gr.fp32 if graph is None else gr.fp16)
    with pytest.raises(gr.SelectError, match=why) as error:
        g.plan("sm_90a", pin=WGMMA)
    assert error.value.code == "PLAN_PIN"
    with pytest.raises(gr.SelectError, match=r"sums a thread|bytes of shared memory"):
        chain().plan("sm_90a", m=64, pin={**WGMMA, "tile.n": 256, "tile.m": 128, "stages": 6})


def test_three_warpgroups_share_a_tile() -> None:
    g = swiglu()
    with pytest.raises(gr.SelectError, match=r"sums a thread|bytes of shared memory"):
        g.plan("sm_90a", pin={**WGMMA, "tile.m": 192, "tile.n": 128, "stages": 2})
    p = g.plan("sm_90a", pin={**WGMMA, "tile.m": 192, "tile.n": 64, "stages": 2})
    assert run(g, p) < 8e-3
    assert "gr.setmaxnreg(160)" in p.source()  # 512 threads share the registers


@pytest.mark.parametrize("instruction", ["mma.sync", "wgmma"])
def test_a_start_beside_the_end_of_the_kernel_before(instruction: str) -> None:
    g, pin = chain(), {"instruction": instruction, "launch.overlap": True}
    p = g.plan("sm_90a", m=72, pin=pin)
    assert "gr.wait_kernels()" in p.source()
    assert p.check().ok
    assert plan.Plan.from_json(p.json()).source() == p.source()
    with pytest.raises(gr.SelectError) as error:
        g.plan("sm_80", m=72, pin={"launch.overlap": True})
    assert error.value.code == "PLAN_PIN"


def test_rows_that_start_early_are_read_coherently() -> None:
    r, w = plan.axes(r=64, w=256)
    with plan.graph("rows") as g:
        g.output("Y", plan.softmax(g.input("X", [r, w], gr.fp16), w), [r, w], gr.fp16)
    assert "ld.global.nc" in g.plan("sm_90a").source()
    p = g.plan("sm_90a", pin={"launch.overlap": True})
    assert "ld.global.nc" not in p.source()
    assert p.check().ok
    assert p.kernel().compile("sm_90a").spill_bytes == 0
