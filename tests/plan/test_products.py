"""Planned kernels of products: they compute their graph, keep their promise, have no conflict, and respect pins."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planned_graphs import GRAPHS, SMALL, rms_linear

import graphene as gr
from graphene import plan

GOLDEN = Path(__file__).parents[1] / "golden" / "rms_linear.py.txt"


def planned(name: str, **pins: Any) -> plan.Plan:
    make, sizes, own = GRAPHS[name]
    return make().plan("sm_80", pin={**own, **pins}, **sizes)


@pytest.mark.parametrize("name", GRAPHS)
def test_planned_kernels_keep_their_promise(name: str) -> None:
    p = planned(name)
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    text = p.source()
    assert max(map(len, text.splitlines())) <= 120
    imports = {line.strip() for line in text.splitlines() if "import" in line}
    known = ("import graphene as gr", "import numpy as np")
    assert all(x in known or x.startswith("from graphene.kernels.epilogues import ") for x in imports)
    assert "graphene.plan " not in text.replace("Written by graphene.plan,", "")


@pytest.mark.parametrize("name", ["lora", "scores"])
def test_planned_kernels_compute_the_graph(name: str) -> None:
    """On the simulator, beside NumPy on the graph that nobody rewrote."""
    p, rng = planned(name), np.random.default_rng(0)
    arrays = {
        v.name: rng.standard_normal([a.size for a in v.more["stored"]]).astype(np.float16) for v in p.graph.inputs
    }
    (out,) = p.graph.outputs
    got = np.zeros([a.size or 0 for a in out.axes], np.float16)
    p(*arrays.values(), got)
    want = p.graph.evaluate(arrays)[out.name]
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def test_the_source_is_golden_and_stands_alone(tmp_path: Path) -> None:
    p = rms_linear().plan("sm_80", m=16, pin=SMALL)
    text = p.source()
    if os.environ.get("GRAPHENE_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    file = tmp_path / "mine.py"
    p.save(file)
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    assert names["rms_linear"](K=128, N=64) == p.kernel(K=128, N=64)
    report = p.kernel(K=128, N=64).report(M=16)
    assert all("rms_linear_" in str(row) or row.wavefronts == 0 for row in report.rows) or report.conflicts == 0


def test_decisions_have_reasons_costs_and_alternatives() -> None:
    p = rms_linear().plan("sm_80", m=16)
    assert p.decisions["slots.barriers"].value == 1
    assert p.decisions["slots.ahead"].value == p.decisions["stages"].value - 1
    for path, d in p.decisions.items():
        assert d.why, path
        assert d.path == path
    text = p.why("tile.n")
    assert text.startswith(f"tile.n = {p.decisions['tile.n'].value}: columns of a block")
    assert " us" in text.splitlines()[1]
    assert "rewrite.scale_past_dot" in str(p)
    assert f"expected {p.expected_us:.1f} us, bound: memory" in str(p)
    with pytest.raises(gr.VerifyError, match="PLAN_GRAPH"):
        p.why("tile.z")


def test_plans_go_to_json_and_back() -> None:
    p = planned("gemm_chain")
    again = plan.Plan.from_json(p.json())
    assert again.source() == p.source()
    assert all(d.pinned for d in again.decisions.values())
    data = json.loads(p.json())
    assert data["decisions"]["tile.m"]["value"] == 32
    data["decisions"]["memory.bytes"]["value"] = 1
    with pytest.raises(gr.SelectError, match=r"memory\.bytes cannot be pinned to 1"):
        plan.Plan.from_json(data)
    for wrong in ("{", "{}", '{"version": 1, "decisions": {}, "graph": {"name": "a;b"}, "arch": "sm_80", "sizes": {}}'):
        with pytest.raises(gr.VerifyError, match="PLAN_GRAPH"):
            plan.Plan.from_json(wrong)


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ({"tile.m": 24}, "tile.m cannot be pinned to 24"),
        ({"stages": 0}, "stages cannot be pinned to 0"),
        ({"warps": "3x3"}, "warps cannot be pinned to '3x3'"),
        ({"tile.m": 256, "tile.n": 256, "warps": "1x4"}, "no tile with tile.m = 256, tile.n = 256, warps = 1x4"),
        ({"sX.swizzle": "Sw<1,2,3>"}, "sX.swizzle cannot be pinned to 'Sw<1,2,3>'"),
        ({"slots.barriers": 0}, "slots.barriers cannot be pinned to 0"),
        ({"slots.ahead": 3, "stages": 3}, "slots.ahead cannot be pinned to 3"),
        ({"sX.at": 64}, "sX.at cannot be pinned to 64"),
        ({"sX.load": "ldmatrix.x2"}, "sX.load cannot be pinned to 'ldmatrix.x2'"),
        ({"tile.z": 3}, "tile.z cannot be pinned to 3"),
    ],
)
def test_pins_that_cannot_hold_are_refused(pin: dict[str, Any], message: str) -> None:
    with pytest.raises(gr.SelectError) as e:
        rms_linear().plan("sm_80", m=16, pin=pin)
    assert e.value.code == "PLAN_PIN"
    assert str(e.value).startswith(message)


@pytest.mark.parametrize("name", ["swiglu", "lora", "narrow"])
def test_copies_may_start_between_the_products_of_slices(name: str) -> None:
    p = planned(name, **{"copies.when": "between slices"})
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert "copy_part(k + AHEAD, j)" in p.source()
    assert planned(name).decisions["copies.when"].value == "at once"
    assert "SIM_RACE" in str(mutated(p, ahead=p._of.ahead + 1).check())


def test_copies_that_slices_do_not_divide_start_at_once() -> None:
    with pytest.raises(gr.SelectError, match="4 parts of 32 lines of A are not the same for each of 128 threads"):
        planned("gemm_chain", **{"copies.when": "between slices"})
    with pytest.raises(gr.SelectError, match="copies are waited for in their own step"):
        planned("transposed", **{"copies.when": "between slices"})


def test_tiles_of_three_warps_are_planned_where_they_are_pinned() -> None:
    """48 columns of a tile make 128 blocks of 6144, one for nearly each multiprocessor of an H200."""
    pin = {"tile.m": 16, "tile.n": 48, "loop.k": 128, "stages": 6, "warps": "1x3"}
    p = rms_linear().plan("sm_80", m=16, pin=pin)
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert plan.Plan.from_json(p.json()).source() == p.source()
    assert rms_linear().plan("sm_80", m=16).decisions["warps"].value == "1x4"


def test_a_tile_whose_addresses_would_spill_is_refused() -> None:
    """64 x 128 x 128 by two warps keeps 128 sums beside 48 copies; ptxas spilled 64 bytes of such a plan."""
    m, k, n = plan.axes(m=512, k=4096, n=4096)
    with plan.graph("product") as g:
        a, b = g.input("A", [m, k], gr.fp16), g.input("B", [n, k], gr.fp16)
        g.output("C", plan.dot(a, b, k), [m, n], gr.fp16)
    pin = {"tile.m": 64, "tile.n": 128, "loop.k": 128, "stages": 2, "warps": "1x2", "instruction": "mma.sync"}
    with pytest.raises(gr.SelectError, match="48 copies of a thread in a step beside 128 sums"):
        g.plan("sm_90a", pin=pin)
    assert g.plan("sm_90a").kernel().compile("sm_90a").spill_bytes == 0


def test_pins_that_hold_are_taken() -> None:
    p = planned("rms_linear", **{"tile.n": 64, "stages": 2, "sX.swizzle": "none"})
    assert {d.path for d in p.decisions.values() if d.pinned} == {"tile.n", "stages", "sX.swizzle"}
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts > 0  # the swizzle was there for a reason


def test_all_alternatives_of_the_schedule_compute_the_same() -> None:
    rng, bits = np.random.default_rng(0), set()
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((16, 160), (160, 64)))
    for stages in (1, 2, 4):
        p = planned("rms_linear", **{**SMALL, "stages": stages})
        slots = p.decisions["slots.barriers"].value, p.decisions["slots.ahead"].value
        assert slots == (2 if stages == 1 else 1, stages - 1)
        o = np.zeros((16, 64), np.float16)
        p.kernel(K=160, N=64)(x, w, o)
        bits.add(o.tobytes())
    assert len(bits) == 1


def test_no_barrier_and_no_wait_is_redundant() -> None:
    """The mutants of the emitted kernel that leave out a barrier or a wait are all told from it, at some size."""
    p = planned("rms_linear", **SMALL)
    kernel = p.kernel(K=160, N=64)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((16, 160), (160, 64)))
    for sync in kernel.syncs():
        if sync.op not in ("barrier", "wait"):
            continue
        o = np.zeros((16, 64), np.float16)
        with pytest.raises(gr.SimulationError):
            kernel.simulate(x, w, o, skip=[sync.id])


def mutated(p: plan.Plan, **changes: Any) -> plan.Plan:
    """The plan with other values behind its decisions, as if an algorithm had been wrong."""
    p._of = dataclasses.replace(p._of, **changes)
    return p


REFUSED: dict[str, Any] = {  # before anything runs
    "a tensor over another": lambda p: mutated(p, at={**p._of.at, "sX": 0, "sW": 1024}),
    "the result over nothing": lambda p: mutated(p, over={n: [] for n in p._of.over}),
    "a place that is not aligned": lambda p: mutated(p, at={**p._of.at, "sW": 8}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mutated_places_are_refused(name: str) -> None:
    with pytest.raises(gr.VerifyError, match="LOWER_OVER"):
        REFUSED[name](planned("rms_linear", **SMALL)).check()


CAUGHT: dict[str, Any] = {  # by the simulator
    "a step too far ahead": lambda p: mutated(p, ahead=p._of.ahead + 1),
    "a step less in shared memory": lambda p: mutated(p, tile=dataclasses.replace(p._of.tile, stages=2)),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_mutated_schedules_are_caught(name: str) -> None:
    found = CAUGHT[name](planned("rms_linear", **SMALL)).check()
    assert not found.ok
    assert "SIM_RACE" in str(found)


def test_mutated_meanings_are_caught() -> None:
    """A rewrite that loses a factor: the promise is no longer the graph's."""
    p, other = planned("rms_linear", **SMALL), planned("rms_linear", **SMALL)
    (out,) = p._of.form.output.value.args[:1]
    p._of.form.output = dataclasses.replace(p._of.form.output, value=out)
    p._of.form.statistics.clear()
    assert p._distance({"M": 16, "K": 64, "N": 64}) > 0.01
    assert other._distance({"M": 16, "K": 64, "N": 64}) < 1e-12


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, m, k, n, x, w: plan.dot(plan.exp(x * plan.sum(x, k)), w, k), "a statistic inside of an operand"),
        (
            lambda g, m, k, n, x, w: plan.dot(x, w, k) / plan.sum(plan.dot(x, w, k), n),
            "a reduction along n behind products along k",
        ),
        (
            lambda g, m, k, n, x, w: plan.dot(x, w, k) * plan.max(plan.exp(x), k),
            "what lies behind the end would change",
        ),
        (
            lambda g, m, k, n, x, w: plan.dot(x, w, k).round(gr.fp16) + 1,
            "a value that is rounded before it is computed",
        ),
        (lambda g, m, k, n, x, w: plan.dot(x, w, k) + plan.dot(x, g.input("V", [k, n], gr.bf16), k), "one type"),
    ],
)
def test_graphs_that_no_plan_computes(build: Any, message: str) -> None:
    m, k, n = plan.axes(m=16, k=40, n=32)
    with plan.graph("wrong") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        g.output("O", build(g, m, k, n, x, w), [m, n], gr.fp16)
    with pytest.raises(gr.SelectError) as e:
        g.plan("sm_80")
    assert e.value.code == "PLAN_NONE"
    assert message in str(e.value)


def test_graphs_that_are_none() -> None:
    m, k = plan.axes(m=16, k=40)
    for call, message in (
        (lambda: plan.axes(m=0), "the size of an axis is positive"),
        (lambda: plan.axes(**{"for": 3}), "an axis needs a name that Python takes"),
        (lambda: plan.graph("gr"), "a graph needs a name that Python takes"),
        (lambda: plan.sum(plan.graph("g").input("X", [m], gr.fp16), k), "a reduction along an axis"),
        (lambda: plan.graph("g").output("X", 1.0, [m], gr.fp16), "the axes of output X"),
        (lambda: bool(plan.graph("g").input("X", [m], gr.fp16)), "a value of a graph has no truth value"),
        (lambda: plan.graph("g").plan(), "a graph without outputs"),
        (lambda: rms_linear().plan("sm_80"), "the size of axis m is known at a launch only"),
        (lambda: rms_linear().plan("sm_80", m=16, z=3), "a size of an axis that is none of the graph's"),
    ):
        with pytest.raises(gr.VerifyError) as e:
            call()
        assert e.value.code == "PLAN_GRAPH"
        assert str(e.value).startswith(message)
    with pytest.raises(gr.SelectError, match="planned for sm_80 and later"):
        rms_linear().plan("sm_75", m=16)


def test_plans_for_hopper_may_have_more_shared_memory_than_an_a100() -> None:
    """Without an architecture, such a kernel is checked for the one that has room for it."""
    m, k, n = plan.axes(m=gr.sym("M"), k=4096, n=14336)
    with plan.graph("gated") as g:
        x = g.input("X", [m, k], gr.bf16)
        v, w = g.input("V", [n, k], gr.bf16), g.input("W", [n, k], gr.bf16)
        g.output("H", plan.silu(plan.dot(x, v, k)) * plan.dot(x, w, k), [m, n], gr.bf16)
    pins = {"instruction": "mma.sync", "tile.n": 64, "loop.k": 256, "stages": 3, "warps": "1x4"}
    p = g.plan("sm_90a", m=1, pin=pins)
    assert p.decisions["memory.bytes"].value > 166912
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0


def test_an_operand_of_two_products_is_computed_once_of_factors_that_a_step_loads_early() -> None:
    m, k, n = plan.axes(m=gr.sym("M"), k=256, n=64)
    with plan.graph("gated") as g:
        x, f = g.input("X", [m, k], gr.bf16), g.input("F", [k], gr.bf16)
        v, w = g.input("V", [n, k], gr.bf16), g.input("W", [n, k], gr.bf16)
        h = x * plan.rsqrt(plan.mean(x * x, k) + 1e-5) * f
        g.output("H", plan.silu(plan.dot(h, v, k)) * plan.dot(h, w, k), [m, n], gr.bf16)
    p = g.plan("sm_90a", m=1)
    text = p.source()
    assert text.count("def operand_") == 1
    loop = text.index('gr.loop("k"')
    assert loop < text.index("gr.move(vFl[j]", loop) < text.index("gr.wait(", loop)
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0


def test_sums_of_squares_may_be_a_diagonal_of_products() -> None:
    p = rms_linear(k=640, n=128).plan("sm_80", m=16, pin={"s0.how": "products", "warps": "1x4"})
    assert "gr.matmul(ms0, rXl, bs0.T, atom=mma)" in p.source()
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert plan.Plan.from_json(p.json()).source() == p.source()
