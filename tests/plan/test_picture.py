"""The picture of a plan."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from planned_graphs import GRAPHS, SMALL

import graphene as gr
from graphene import plan

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for e in root.iter(f"{SVG}rect"):
        assert float(e.get("x", 0)) + float(e.attrib["width"]) <= width
        assert float(e.get("y", 0)) + float(e.attrib["height"]) <= height
    return [e.text or "" for e in root.iter(f"{SVG}text")]


def test_a_picture_shows_graph_memory_and_decisions(tmp_path: Path) -> None:
    make, sizes, _ = GRAPHS["lora"]
    p = make().plan("sm_80", pin=SMALL, **sizes)
    shown = texts(p.svg(tmp_path / "plan.svg"))
    assert (tmp_path / "plan.svg").read_text() == p.svg() == p._repr_svg_()
    assert {"X [m, k]", "dot along k [m, r]", "dot along r [m, n]", "O [m, n]", *p.decisions} <= set(shown)
    assert [s for s in shown if s.startswith("sResult")]
    assert f"{p.decisions['tile.n'].value} (pinned): {p.decisions['tile.n'].why}" in shown


def test_tensors_that_are_alive_together_share_no_bytes() -> None:
    for name in ("lora", "swiglu"):
        make, sizes, own = GRAPHS[name]
        p = make().plan("sm_80", pin=own, **sizes)
        assert {n for n, *_ in p.places()} == set(p._of.shared)
        for (_, a, n, s, e), (_, b, k, t, f) in itertools.combinations(p.places(), 2):
            assert e <= t or f <= s or a + n <= b or b + k <= a


def test_rows_have_no_shared_memory_to_draw() -> None:
    m, n = plan.axes(m=64, n=64)
    with plan.graph("doubled") as g:
        g.output("Y", g.input("X", [m, n], gr.fp16) * 2, [m, n], gr.fp16)
    assert not [s for s in texts(g.plan("sm_80").svg()) if "shared memory" in s]
