"""Timelines: every event of a block, copies in flight until the wait that covers them, and the picture of it."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import numpy as np
from kernels import transpose
from pipelines import gemm, ring, ring_arguments

import graphene as gr
from graphene.viz import Trace, TraceEvent, draw_timeline

SVG = "{http://www.w3.org/2000/svg}"


def traced(kernel: gr.Kernel, *args: np.ndarray, seed: int = 0) -> Trace:
    trace = kernel.simulate(*args, seed=seed, trace=True).trace
    assert trace is not None
    return trace


def of_kind(trace: Trace, kind: str) -> list[TraceEvent]:
    return [e for e in trace.events if e.kind == kind]


def test_copies_are_in_flight_until_the_wait_that_covers_them() -> None:
    stages, rows = 3, 7
    trace = traced(ring(stages), *ring_arguments(rows))
    flights, waits, commits = (of_kind(trace, k) for k in ("in flight", "wait", "commit"))
    assert len(flights) == rows
    assert len(commits) == stages - 1 + rows
    assert all(e.landed and e.domain == "cp_async" and e.count == 1 for e in flights)
    # wait i leaves one of the groups 0 .. i + 1 pending: group i has landed.
    assert [e.end for e in flights] == [e.end for e in waits]
    loads = [e for e in trace.events if e.atom == "ld.shared.v2.b32"]
    for flight, load in zip(flights, loads, strict=True):
        assert flight.end <= load.start
    assert flights[1].start < flights[0].end  # they overlap


def test_copies_that_nothing_waits_for_stay_in_flight() -> None:
    kernel = gemm(bm=64, bn=64)
    (last,) = [s.id for s in kernel.syncs()][-1:]
    args = [np.ones((64, 64), np.float16), np.ones((64, 64), np.float16), np.zeros((64, 64), np.float32)]
    stats = kernel.simulate(*args, skip=[last], trace=True)
    assert stats.trace is not None
    assert any(not e.landed for e in of_kind(stats.trace, "in flight"))
    assert 'stroke-dasharray="3,2"' in draw_timeline(stats.trace)
    assert all(e.landed for e in of_kind(traced(kernel, *args), "in flight"))


def test_barriers_bring_warps_together() -> None:
    x, y = np.zeros((64, 32), np.float32), np.zeros((32, 64), np.float32)
    for seed in range(4):
        trace = traced(transpose(), x, y, seed=seed)
        assert trace.warps == 8  # of one of the two blocks
        barriers = of_kind(trace, "barrier")
        assert sorted(e.warp for e in barriers) == list(range(8))
        assert len({e.end for e in barriers}) == 1
        assert all(e.where.startswith("kernels.py:") and e.text == "barrier()" for e in barriers)
        for warp in range(8):  # events of a warp follow each other without a gap
            mine = sorted((e for e in trace.events if e.warp == warp), key=lambda e: e.start)
            assert mine[0].start == 0
            assert all(a.end == b.start for a, b in itertools.pairwise(mine))


def test_a_leaf_in_a_row_is_one_event() -> None:
    with gr.Kernel("loop") as kernel:
        d = gr.output("D", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        with gr.loop("i", 100):
            gr.init(d[t], 3)
    (event,) = traced(kernel, np.zeros(32, np.float32)).events
    assert (event.kind, event.spec, event.count, event.start, event.end) == ("leaf", "Init", 100, 0, 100)


def test_the_picture_has_a_bar_for_every_event() -> None:
    trace = traced(ring(3), *ring_arguments(5))
    root = ET.fromstring(draw_timeline(trace))
    bars = root.findall(f"{SVG}g")
    assert len(bars) == len(trace.events)
    titles = [str(g.findtext(f"{SVG}title")) for g in bars]
    assert any(t.startswith("1 cp_async copies in flight\nwarp 0, steps 0 to 5\npipelines.py:") for t in titles)
    assert trace._repr_svg_() == draw_timeline(trace)
    assert str(trace).splitlines()[1].startswith("warp 0  0-1  cp.async.ca.8  pipelines.py:")


def test_the_legend_names_every_colour() -> None:
    trace = traced(ring(3), *ring_arguments(5))
    root = ET.fromstring(draw_timeline(trace))
    used = {r.get("fill") for g in root.findall(f"{SVG}g") for r in g.findall(f"{SVG}rect")}
    below = [r for r in root.findall(f"{SVG}rect") if r.get("width") == "12"]
    words = [str(t.text) for t in root.findall(f"{SVG}text")][-len(below) :]
    named = dict(zip((r.get("fill") for r in below), words, strict=True))
    assert used == set(named)
    assert {"barrier", "wait", "commit", "in flight"} <= set(words)
    line = next(e.where for e in trace.events if e.atom == "cp.async.ca.8").rpartition(":")[2]
    assert f"cp.async.ca.8, line {line}" in words
    bottom = max(float(str(r.get("y"))) + 10 for r in below)
    assert bottom <= float(str(root.get("height")))


def test_no_trace_unless_asked_for() -> None:
    assert ring().simulate(*ring_arguments()).trace is None
