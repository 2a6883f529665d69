"""Timelines of agents: what copies, products and phases take by the stated rules, and a lane for everything."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.viz import Trace

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
STAGES, STEPS = 2, 5


@functools.cache
def page() -> dict[str, Any]:
    text, names = (ROOT / "docs/hopper.md").read_text(), {"__name__": "hopper"}
    for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile("\n" * text[: block.start(1)].count("\n") + block[1], "hopper.md", "exec"), names)
    return names


def traced(kernel: gr.Kernel, m: int, n: int, k: int, dtype: Any = np.float32) -> Trace:
    a, b, c = np.ones((m, k), np.float16), np.ones((n, k), np.float16), np.zeros((m, n), dtype)
    trace = kernel.simulate(a, b, c, trace=True).trace
    assert (c == k).all()
    assert trace is not None
    return trace


@functools.cache
def roles() -> Trace:
    return traced(page()["gemm_roles"](STAGES=STAGES), 128, 128, 64 * STEPS)


def labels(svg: str) -> list[str]:
    texts = ET.fromstring(svg).findall(f"{SVG}text")
    return [
        "".join(t.itertext()).removeprefix(t.findtext(f"{SVG}title") or "") for t in texts if t.get("font-size") == "11"
    ]


def test_copies_and_products_follow_the_rules() -> None:
    events = roles().events
    copies, products = ([e for e in events if e.kind == kind] for kind in ("copy", "product"))
    assert len(copies) == 2 * STEPS
    assert sum(e.flops for e in products) == 2 * 128 * 128 * 64 * STEPS
    for work, length in ((copies, lambda e: e.bytes // 128), (products, lambda e: e.flops // 2 // 2048)):
        for e in work:
            assert e.until - e.begin == length(e)
            assert e.start < e.begin
        assert all(a.until <= b.begin for a, b in itertools.pairwise(sorted(work, key=lambda e: e.begin)))
    assert min(e.begin - e.start for e in copies) == 501  # an instruction, and 500 steps
    assert {e.writes for e in copies} == {(f"s{x}[{i}]",) for x in "AB" for i in range(STAGES)}
    assert {e.reads for e in products} == {(f"sA[{i}]", f"sB[{i}]") for i in range(STAGES)}


def test_a_wait_ends_behind_the_phase_that_it_waits_for() -> None:
    events = roles().events
    over = {(e.barrier, e.phase): e.end for e in events if e.kind == "phase"}
    assert {b for b, _ in over} == {f"{x}[{i}]" for x in ("full", "empty") for i in range(STAGES)}
    waits = [e for e in events if e.kind == "wait" and e.barrier]
    assert len([e for e in waits if e.warp == 4]) == STEPS
    for e in waits:
        # The producer finds the phase before the first one over.
        assert e.end == max(e.start + 1, over.get((e.barrier, e.phase), 0) + 1)
    last = max(e.until for e in events if e.kind == "product" and e.warp < 8)
    (done,) = (e.end for e in events if e.kind == "wait" and e.domain == "wgmma" and e.warp == 4 and e.end > last)
    assert done == last + 1


def test_no_stage_is_filled_while_it_is_read() -> None:
    for i in range(STAGES):
        fills = sorted((e.start, e.end) for e in roles().events if f"sA[{i}]" in e.writes)
        reads = sorted((e.begin, e.until) for e in roles().events if f"sA[{i}]" in e.reads)
        turns = sorted([(*x, "fill") for x in fills] + [(*x, "read") for x in reads])
        kinds = [k for k, _ in itertools.groupby(t[2] for t in turns)]
        assert kinds == ["fill", "read"] * (len(kinds) // 2)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(turns) if a[2] != b[2])


def test_the_picture_has_a_lane_for_each_role_agent_and_stage() -> None:
    svg = roles().timeline()
    stages = [f"sA, sB [{i}]" for i in range(STAGES)]
    assert labels(svg) == ["producer", "consumer 0", "consumer 1", "TMA loads", "tensor cores", *stages]
    titles = [t.text or "" for t in ET.fromstring(svg).iter(f"{SVG}title")]
    assert sum(": filled with 32768 bytes" in t for t in titles) == STEPS
    assert sum(": read by consumer 1" in t for t in titles) == STEPS
    assert sum("is over: the stage is free" in t for t in titles) == STEPS
    assert any(re.search(r"^issues tma\.load\nsteps \d+ to \d+\nhopper\.md:\d+\n%\d+", t) for t in titles)
    rights = [float(r.get("x", 0)) + float(r.get("width", 0)) for r in ET.fromstring(svg).iter(f"{SVG}rect")
              if r.get("x") and "%" not in r.get("width", "")]  # fmt: skip
    assert max(rights) <= 1100
    assert roles()._repr_svg_() == svg


def test_a_part_of_a_picture(tmp_path: Path) -> None:
    whole, part = roles().timeline(), roles().timeline(tmp_path / "part.svg", steps=(0, 600), width=500)
    assert part + "\n" == (tmp_path / "part.svg").read_text()
    assert labels(part) == labels(whole)
    assert len(part) < len(whole)
    with pytest.raises(ValueError, match="block=1: the trace has 1 blocks"):
        roles().timeline(block=1)


def test_turns_and_stores() -> None:
    spec = importlib.util.spec_from_file_location("gemm_sm90_example", ROOT / "examples/12_gemm_sm90.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trace = traced(module.gemm_sm90(BM=64, BN=64, STAGES=3), 512, 64, 128, np.float16)  # two tiles for each of 4 blocks
    svg = trace.timeline()
    assert [x for x in labels(svg) if "stage" not in x] == [
        "producer", "consumer 0", "consumer 1", "turn", "TMA loads", "tensor cores", "TMA stores",
        "sA, sB [0]", "sA, sB [1]", "sA, sB [2]", "sC[0], consumer 0", "sC[0], consumer 1",
    ]  # fmt: skip
    turns = re.findall(r"the turn of (consumer \d)\nsteps (\d+) to (\d+)", svg)
    assert [t[0] for t in turns] == ["consumer 0", "consumer 1"]
    assert int(turns[0][2]) <= int(turns[1][1])
    for e in (e for e in trace.events if e.kind == "wait" and e.domain.startswith("bulk")):
        read = [
            c.until
            for c in trace.events
            if c.kind == "copy" and not c.barrier and c.warp == e.warp and c.start < e.start
        ]
        assert e.end == max([e.start + 1, *(r + 1 for r in read)])


def test_both_blocks_of_a_cluster() -> None:
    trace = traced(page()["gemm_clusters"](STAGES=2), 256, 128, 128)
    assert trace.warps == 24
    copies = [e for e in trace.events if e.kind == "copy"]
    assert len(copies) == 2 * 2 * 3  # steps, blocks, and of each A's tile and both halves of B's
    other = [e for e in copies if e.warp // 12 != e.block]
    assert len(other) == 4
    for block in (0, 1):
        svg = trace.timeline(block=block)
        assert labels(svg) == ["producer", "consumer 0", "consumer 1", "TMA loads", "tensor cores",
                               "sA, sB [0]", "sA, sB [1]"]  # fmt: skip
        assert f"block {block} of a cluster of 2" in svg
        assert svg.count("another block") == 2
