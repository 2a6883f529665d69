"""Products planned for Hopper whose blocks go through tiles, take turns, or work together as clusters of two."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import graphene as gr
from graphene import plan
from tests.plan.test_warpgroups import chain, run, swiglu

WAYS: dict[str, dict[str, Any]] = {
    "persistent": {"blocks": "persistent", "tile.m": 64},
    "two warpgroups": {"blocks": "persistent", "tile.m": 128},
    "turns": {"blocks": "persistent, in turns"},
    "along k": {"cluster": "2 along k", "tile.m": 64},
    "both along k": {"cluster": "2 along k", "tile.m": 128},
    "along rows": {"cluster": "2 along rows", "tile.m": 64},
}


def planned(way: str, n: int = 72) -> plan.Plan:
    """A product with every kind of input beside it; where blocks go on, there must be many tiles.

    A block has 4 steps of k for 3 stages, and so has each of two that cut k.
    """
    k = 7 * 64 + 8 if "k" in way else 200
    many = 8 * 72 if "blocks" in WAYS[way] else 1
    pin = {"instruction": "wgmma", "tile.n": 64, "stages": 3, **WAYS[way]}
    return chain(k, n).plan("sm_90a", m=200 * many, pin=pin)


@pytest.mark.parametrize("way", WAYS)
def test_values_and_promises(way: str) -> None:
    p = planned(way)
    assert run(p.graph, p, M=136) < 1e-3  # three rows of tiles: the last cluster has one
    found = p.check()
    assert found.ok, found
    assert found.conflicts == 0
    assert plan.Plan.from_json(p.json()).source() == p.source()


@pytest.mark.parametrize("way", WAYS)
def test_no_registers_spill_and_no_product_is_serialised(way: str) -> None:
    binary = planned(way).kernel().compile("sm_90a")
    assert binary.spill_bytes == 0
    assert "serialized" not in binary.log


MISTAKES = [
    ("persistent", "step=workers", "step=workers + 1"),
    ("persistent", "return tile // gr.max(1, across)", "return gr.min(tile // gr.max(1, across), down - 2)"),
    ("persistent", "accumulate=k > 0", "accumulate=True"),
    ("persistent", 'gr.wait(wgmma, pending=0)', "pass"),
    ("two warpgroups", "arrivals=CONSUMERS", "arrivals=1"),
    ("turns", "get.advance(c * steps)", "pass"),
    ("turns", "            free.advance(steps)\n", ""),
    ("turns", "                get.advance(steps)\n", ""),
    ("turns", "block + c * workers", "block"),
    ("turns", "turn[1 - c].arrive()", "turn[c].arrive()"),
    ("along k", "come[c].wait(0, acquire=True)", "pass"),
    ("along k", "gr.barrier(on=mine)  # all have stored", "pass"),
    ("along k", "rank * steps + k", "k"),
    ("along k", "part[:] = part + other", "part[:] = other"),
    ("along k", "steps = gr.ceil_div(gr.ceil_div(K, BK), 2)", "steps = 3"),
    ("along k", "share[c].of(0)", "share[c].of(1)"),
    ("along k", "arrive(at=cluster[0], release=True)", "arrive(at=cluster[0])"),
    ("along k", "gr.barrier(on=cluster)  # the mbar", "gr.barrier()  # the mbar"),
    ("along rows", "arrivals=2 * CONSUMERS", "arrivals=CONSUMERS"),
    ("along rows", "arrive(at=cluster)", "arrive()"),
    ("along rows", "2 * bn + rank, k", "2 * bn, k"),
    ("along rows", "done=full[i], to=cluster", "done=full[i]"),
    ("along rows", "gr.barrier(on=cluster)  # nobody", "gr.barrier()  # nobody"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "before", "after"), MISTAKES, ids=str)
def test_a_mistake_in_the_text_is_told(way: str, before: str, after: str) -> None:
    p = planned(way)
    text, module = p.source(), {}
    assert before in text
    fixed, free = p._of.small_sizes(p.sizes)
    try:
        exec(compile(text.replace(before, after, 1), "planted", "exec"), module)
        result = module[p.graph.name](**fixed).check(**free)
    except gr.GrapheneError:
        return
    assert not result.ok


@pytest.mark.parametrize(
    ("m", "n", "k", "cluster", "blocks"),
    [
        (64, 4096, 4096, "2 along k", "a tile"),  # a tile for each block took 15.1 us on an H200, and this 11.6
        (1000, 1000, 1000, "2 along rows", "a tile"),  # 9.1 and 7.8
        (12288, 3072, 768, "none", "persistent, in turns"),  # 112.4 and 95.2
        (512, 2048, 2048, "none", "a tile"),
        (4096, 4096, 4096, "none", "a tile"),
        (200, 6144, 4096, "none", "a tile"),
    ],
)
def test_what_is_chosen_follows_the_model_of_the_library(m: int, n: int, k: int, cluster: str, blocks: str) -> None:
    rows, inner, columns = plan.axes(m=m, k=k, n=n)
    with plan.graph("product") as g:
        a, b = g.input("A", [rows, inner], gr.fp16), g.input("B", [columns, inner], gr.fp16)
        g.output("C", plan.dot(a, b, inner), [rows, columns], gr.fp16)
    p = g.plan("sm_90a")
    assert [p.decisions[path].value for path in ("cluster", "blocks")] == [cluster, blocks]
    assert "with a tile for each block, of which other ways are to save a tenth" in p.why("cluster")


@pytest.mark.parametrize(
    ("pin", "why"),
    [
        ({"blocks": "persistent, in turns", "tile.m": 128}, "a tile of one warpgroup has 64 rows"),
        ({"blocks": "always"}, "it is none of the values"),
        ({"blocks": "persistent", "cluster": "2 along k"}, "blocks of a cluster compute a tile"),
        ({"cluster": "2 along k"}, "clusters of blocks, of which 66 run at once"),
    ],
    ids=str,
)
def test_a_pin_that_cannot_hold_says_why(pin: dict[str, Any], why: str) -> None:
    with pytest.raises(gr.SelectError, match=why) as error:
        chain(768, 3072).plan("sm_90a", m=12288, pin={"instruction": "wgmma", **pin})
    assert error.value.code == "PLAN_PIN"


def test_several_products_have_a_tile_for_each_block() -> None:
    p = swiglu().plan("sm_90a", pin={"instruction": "wgmma", "stages": 2})
    assert p.decisions["blocks"].value == "a tile"
    assert "several products" in p.why("cluster")


def test_threads_may_plan_one_graph_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes the source to the same file of the cache, which is there as a whole or not at all."""
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path))
    together = threading.Barrier(8)

    def one(_: int) -> str:
        p = chain().plan("sm_90a", m=72, pin={"instruction": "wgmma"})
        together.wait()
        return str(p.kernel().name)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(8))) == {"chain"}
    assert [x.suffix for x in (tmp_path / "planned").iterdir() if x.is_file()] == [".py"]
