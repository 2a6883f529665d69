"""Pictures of kernels: one row a statement, nested as the statements are; and of traces."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np

import graphene as gr

NS = {"s": "http://www.w3.org/2000/svg"}


def staged() -> gr.Kernel:
    cp = gr.atom("cp.async.cg.16")
    with gr.Kernel("staged") as kernel:
        x, y = gr.input("x", [4, 256], gr.fp32, align_bytes=16), gr.inout("y", [4, 256], gr.fp32, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        s, r = gr.alloc("s", [256], gr.fp32, gr.SH), gr.alloc("r", [4], gr.fp32, gr.RF)
        with gr.loop("k", 4) as k:
            gr.move(s.tile([4])[t], x[k, :].tile([4])[t], atom=cp)
            gr.commit(cp)
            gr.wait(cp, pending=0)
            gr.barrier()
            gr.move(r, s.tile([4])[63 - t])
            r[:] = r * 2
            with gr.if_(k < 3):
                gr.move(y[k, :].tile([4])[63 - t], r)
            gr.barrier()
    return kernel


def boxes(svg: str) -> list[tuple[str, tuple[float, float, float, float], str]]:
    """Text, place and colour of each statement."""
    out = []
    for g in ET.fromstring(svg).findall("s:g", NS):
        rect, text = g.find("s:rect", NS), g.find("s:text", NS)
        assert rect is not None
        assert text is not None
        x, y, w, h = (float(rect.get(k, "")) for k in ("x", "y", "width", "height"))
        out.append((text.text or "", (x, y, x + w, y + h), rect.get("fill", "")))
    return out


def test_statements_stand_in_their_boxes() -> None:
    found = boxes(gr.svg(staged()))
    texts = [t for t, _, _ in found]
    assert texts[0].startswith("for(k=0; k < 4")
    assert "s <- Move, cp.async.cg.16 (x)" in texts
    assert texts.count("barrier()") == 2
    assert "r <- Spec (r)" in texts  # whose statements are its own affair
    assert not any("BinaryPointwise" in t for t in texts)
    loop = found[0][1]
    assert all(loop[0] < b[0] and loop[1] < b[1] and b[2] < loop[2] and b[3] < loop[3] for _, b, _ in found[1:])
    branch = next(b for t, b, _ in found if t.startswith("if("))
    store = next(b for t, b, _ in found if t.startswith("y <- Move"))
    assert branch[0] < store[0]
    assert store[3] < branch[3]
    colour = {t: c for t, _, c in found}
    assert colour["barrier()"] == colour['commit("cp.async.cg.16")'] != colour["r <- Move (s)"]
    assert colour["s <- Move, cp.async.cg.16 (x)"] != colour["r <- Move (s)"]


def test_a_trace_is_drawn_as_its_timeline() -> None:
    x = np.zeros((4, 256), np.float32)
    stats = staged().simulate(x, x.copy(), trace=True)
    assert stats.trace is not None
    assert gr.svg(stats.trace) == stats.trace.timeline()
    assert len(repr(stats)) < 200
    assert repr(stats.trace).startswith("<Trace of staged: 2 warps")


def test_results_are_shown_in_a_line() -> None:
    kernel = staged()
    assert repr(kernel.check()).startswith("<CheckResult: ok: 1 call")
    assert repr(kernel.report()).startswith("<Report of staged for sm_80: 4 accesses, 1 of 1 blocks>")
    wrong = kernel.check().__class__(
        errors=(), promises=0, lane_ops=0, sizes={}, blocks=1, arch="", uncovered=("a", "b")
    )
    assert repr(wrong).endswith("and 2 lines more>")


def test_rows_name_what_the_kernel_names() -> None:
    """A parameter by its name, and a remainder as one: "%3" is no tensor there."""
    with gr.Kernel("ringed") as kernel:
        y, eps = gr.output("y", [32], gr.fp32), gr.param("eps", gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r, at = gr.alloc("r", [], gr.fp32, gr.RF), gr.scalar("at", 0, max=2)
        with gr.loop("k", 4):
            gr.binary("max", r, eps, 0.0)
            at.set((at.value + 1) % 3)
        gr.move(y[t], r)
    texts = [t for t, _, _ in boxes(gr.svg(kernel))]
    assert "at = (at + 1)%3" in texts
    assert "r <- BinaryPointwise max (eps, 0.0)" in texts
    assert gr.viz.draw_kernel(str(kernel)) == gr.svg(kernel)  # a text is read first
