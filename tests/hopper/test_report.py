"""What kernel.report() says of agents: bytes, flops and phases, counted by hand."""

from __future__ import annotations

from hopper_listings import tma_copy
from test_unfinished import page

STEPS = 3


def test_a_copy_that_two_blocks_receive_counts_once() -> None:
    report = page()["gemm_clusters"](STAGES=2).report(M=250, N=128, K=64 * STEPS)
    rows = {(a.what, a.source, a.target): a for a in report.agents}
    a, b, c = rows["load", "A", "sA"], rows["load", "B", "sB"], rows["product", "sA, sB", "acc"]
    assert len(report.agents) in (3, 4)  # the first product and those that add to it may be two statements
    assert (a.count, a.blocks, a.bytes) == (2 * STEPS, 1, 250 * 64 * STEPS * 2)  # six rows are outside
    assert (b.count, b.blocks, b.bytes) == (2 * STEPS, 2, 128 * 64 * STEPS * 2)
    assert report.flops == 2 * 256 * 128 * 64 * STEPS
    assert c.atom == "wgmma.m64n128k16.f32.f16"
    instructions = sum(x.count for x in report.agents if x.what == "product")
    assert instructions == 2 * 2 * 4 * STEPS  # blocks, consumers, k of 16
    assert sum(x.bytes for x in report.agents if x.what == "product") == instructions * (64 + 128) * 16 * 2
    assert (report.loaded_bytes, report.stored_bytes) == (a.bytes + b.bytes, 0)
    barriers = [(x.name, x.named, x.stages, x.arrivals, x.phases) for x in report.barriers]
    assert barriers == [("full", False, 2, 1, 2 * STEPS), ("empty", False, 2, 4, 2 * STEPS)]
    assert {r.buffer for r in report.rows} == {"C"}  # no agent's access is a thread's
    text = str(report)
    assert f"several blocks receive {b.bytes} of the loaded ones, which count once" in text
    assert f"{report.flops / report.loaded_bytes:.0f} for each byte loaded" in text
    assert "<td>B -&gt; sB</td>" in report._repr_html_()


def test_stores_count_what_is_inside() -> None:
    report = tma_copy(BM=16).report(M=40, N=72)
    assert report.loaded_bytes == report.stored_bytes == 40 * 72 * 2
    assert report.rows == ()
    assert "TMA loads 5760 bytes and stores 5760" in str(report)
