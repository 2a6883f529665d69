"""Pictures say what the layouts say: well-formed SVG, one cell an element, colours and boundaries by owner."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene import plan, viz

NS = {"s": "http://www.w3.org/2000/svg"}


def cells(svg):
    """(lines, fill, title) of every cell in drawing order."""
    root = ET.fromstring(svg)
    out = []
    for g in root.findall("s:g", NS):
        rect = g.find("s:rect", NS)
        out.append(([t.text for t in g.findall("s:text", NS)], rect.get("fill"), g.find("s:title", NS).text))
    return out


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_every_offset_stands_in_its_cell(modes):
    layout = gr.Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))
    drawn = cells(gr.svg(layout))
    rows = layout[0].size if layout.rank > 1 else 1
    assert len(drawn) == layout.size
    for i, (lines, fill, _) in enumerate(drawn):
        r, c = divmod(i, layout.size // rows)
        assert lines == [str(layout(r + rows * c))]
        assert re.fullmatch("#[0-9a-f]{6}", fill)
    by_offset = {lines[0]: fill for lines, fill, _ in drawn}
    assert all(by_offset[lines[0]] == fill for lines, fill, _ in drawn)


def test_thread_value_layouts_name_the_holder():
    tv = gr.tv("(4,8):(32,1)", "(2,2,2):(16,8,128)")
    drawn = cells(gr.svg(tv, tile="m16,k16"))
    assert len(drawn) == 256
    fills = {}
    for i, (lines, fill, title) in enumerate(drawn):
        m, k = divmod(i, 16)
        thread, value = int(lines[0][1:]), int(lines[1][1:])
        assert tv(thread, value) == m + 16 * k
        assert title == f"element {m + 16 * k}: T{thread} V{value}"
        assert fills.setdefault(thread, fill) == fill
    assert len(set(fills.values())) == 32  # every thread has its own colour
    assert gr.svg(tv, tile=(16, 16)).count("<g>") == 256


def test_replicated_and_missing_elements():
    drawn = cells(gr.svg(gr.tv("(8,4):(8,0)", "4:1"), tile="c8,r8"))
    assert drawn[0][0] == ["T0+3", "V0"]
    assert drawn[0][2] == "element 0: T0 V0, T8 V0, T16 V0, T24 V0"
    assert drawn[7 * 8][0] == []
    assert drawn[7 * 8][2] == "held by no thread"


def test_swizzle_shows_where_chunks_land():
    drawn = cells(gr.svg(gr.Swizzle(3, 3, 3)))
    assert [[int(drawn[8 * r + c][0][0]) for c in range(8)] for r in range(8)] == [
        [c ^ r for c in range(8)] for r in range(8)
    ]
    composed = gr.composition(gr.Swizzle(2, 2, 3), gr.row_major(8, 32))
    drawn = cells(gr.svg(composed))
    assert [lines[0] for lines, _, _ in drawn] == [str(composed(r, c)) for r in range(8) for c in range(32)]
    fill_of = {}
    for lines, fill, _ in drawn:  # a colour is a group of banks
        assert fill_of.setdefault(int(lines[0]) // 4 % 8, fill) == fill
    assert len(set(fill_of.values())) == 8


def test_tiles_of_the_paper_keep_their_place():
    """Fig. 4 D: tiles that are not contiguous in either dimension, on the column-major matrix they tile."""
    levels = [gr.Layout((2, 2), (1, 8)), gr.Layout((2, (2, 2)), (2, (4, 16)))]
    drawn = cells(viz.draw_tiling(gr.Layout((4, 8), (1, 4)), levels))
    tile = {int(lines[0]): int(re.search(r"tile (\d+)", title)[1]) for lines, _, title in drawn}
    assert [lines[0] for lines, _, _ in drawn[:8]] == ["0", "4", "8", "12", "16", "20", "24", "28"]
    assert [o for o in sorted(tile) if tile[o] == 0] == [0, 2, 4, 6, 16, 18, 20, 22]
    assert [o for o in sorted(tile) if tile[o] == 3] == [9, 11, 13, 15, 25, 27, 29, 31]
    fills = {lines[0]: fill for lines, fill, _ in drawn}
    assert len(set(fills.values())) == 4
    part = cells(viz.draw_tiling(gr.Layout((4, 8), (1, 4)), [gr.Layout(2), gr.Layout(2, 4)], 8))
    assert [lines[0] for lines, fill, _ in part if fill != "#f4f5f7"] == ["8", "12", "9", "13"]


def test_thread_groups():
    """Fig. 5: a warp as 2 x 2 groups of eight threads; Fig. 6: Volta's quad-pairs."""
    groups = cells(viz.draw_levels([gr.Layout((2, 2), (16, 8)), gr.Layout(8)]))
    assert [int(lines[0]) for lines, _, _ in groups] == list(range(32))
    assert len({fill for _, fill, _ in groups}) == 4
    pairs = cells(viz.draw_levels([gr.Layout(4, 4), gr.Layout("[(4,2):(1,16)]")], text=lambda t: f"T{t}"))
    assert [lines[0] for lines, _, _ in pairs[:8]] == ["T0", "T1", "T2", "T3", "T16", "T17", "T18", "T19"]
    assert len({fill for _, fill, _ in pairs[:8]}) == 1


def boundary_paths(svg):
    return {p.get("stroke-width"): p.get("d") for p in ET.fromstring(svg).findall("s:path", NS)}


def test_boundaries_separate_groups():
    def cell(r, c):
        return viz.Cell(str(c), group=(c // 4, c // 2))

    paths = boundary_paths(viz.draw_grid(2, 8, cell))
    assert paths["2.2"].count("M") == 1  # between columns 3 and 4
    assert paths["1.2"].count("M") == 2  # between 1 and 2, 5 and 6
    assert set(boundary_paths(viz.draw_grid(2, 8, lambda r, c: viz.Cell("")))) == {"0.7"}


def test_large_pictures_are_cut_and_say_so():
    svg = gr.svg(gr.row_major(100, 200))
    assert len(cells(svg)) == 64 * 128
    assert "the first 64 x 128 of 100 x 200" in svg
    assert gr.row_major(100, 200)._repr_svg_() is None


def test_text_is_escaped_and_written(tmp_path):
    svg = viz.draw_grid(1, 1, lambda r, c: viz.Cell("a<b&c", title="<&>"), title="[2:1].fp16.RF<mma.c>")
    assert "".join(ET.fromstring(svg).itertext()).count("<") == 3
    path = tmp_path / "layout.svg"
    text = gr.svg("(4,8):(8,1)", path)
    assert path.read_text() == text + "\n"
    ET.fromstring(path.read_text())


def test_notebooks():
    for obj in [gr.Layout((4, 8)), gr.Swizzle(2, 3, 3), gr.composition(gr.Swizzle(1, 0, 1), gr.Layout((2, 2)))]:
        assert obj._repr_svg_() == gr.svg(obj)
    assert gr.Layout((gr.sym("M"), 4))._repr_svg_() is None
    assert gr.Layout((0, 4))._repr_svg_() is None


def test_colours_are_light_and_distinct():
    colours = [viz.shade(i) for i in range(24)] + [viz.ramp(i / 7) for i in range(8)]
    assert len(set(colours)) == 32
    for c in colours:
        red, green, blue = (int(c[i : i + 2], 16) for i in (1, 3, 5))
        assert 0.3 * red + 0.59 * green + 0.11 * blue > 170  # black text stays legible


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gr.svg(gr.Layout((gr.sym("M"), 4))), "a picture needs plain integers, got (M,4):(1,M)"),
        (lambda: gr.svg(gr.Layout((4, 0))), "a picture shows 1 to 65536 elements, (4,0):(1,4) has 0"),
        (lambda: gr.svg(gr.Layout(1 << 20)), "a picture shows 1 to 65536 elements, 1048576:1 has 1048576"),
        (lambda: gr.svg(gr.tv(4, 2), tile="16"), 'a tile is given as in "m16,k16" or (16, 16), got "16"'),
        (lambda: gr.svg(gr.Swizzle(10, 0, 10)), "a picture shows at most 65536 chunks, Sw<10,0,10> permutes 1048576"),
    ],
)
def test_what_cannot_be_drawn(call, message):
    with pytest.raises(gr.LayoutError) as e:
        call()
    assert e.value.code == "LAYOUT_PICTURE"
    assert e.value.diagnostics[0]["message"] == message
    with pytest.raises(gr.LayoutError, match=r"nothing draws this list   \[LAYOUT_PICTURE\]") as e:
        gr.svg([1, 2])
    assert "gr.svg takes a layout, a swizzle" in str(e.value)


def test_what_draws_itself_is_drawn(tmp_path):
    """What a thread did, with lines that an error ended, and plans."""
    with gr.Kernel("twice") as kernel:
        x, y = gr.input("x", [64], gr.fp32), gr.output("y", [64], gr.fp32)
        (t,) = gr.threads(64).indices()
        gr.move(y.tile([1])[t], gr.load(x.tile([1])[t]) * 2 < 3)
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    steps = kernel.steps(x, y, thread=3)
    text = gr.svg(steps, tmp_path / "steps.svg")
    assert ET.fromstring(text).tag.endswith("svg")
    assert (tmp_path / "steps.svg").read_text() == text + "\n"
    for step in steps:
        assert step.where.rsplit("/", 1)[-1] in text
    assert "&lt;" in text  # the operation of a comparison
    assert gr.svg(kernel.watch("y", x, y)).count("<rect") == 33  # the ground, and every other row of 64
    m, k, n = plan.axes(m=16, k=64, n=64)
    with plan.graph("product") as g:
        a, b = g.input("A", [m, k], gr.fp16), g.input("B", [k, n], gr.fp16)
        g.output("C", plan.dot(a, b, k), [m, n], gr.fp16)
    made = g.plan("sm_90a")
    assert gr.svg(made) == made.svg()


def test_tensors_are_drawn_where_their_elements_are():
    """Fig. 4: A and its tilings, as they stand in the paper."""
    a = gr.tensor("A", gr.Layout((4, 8), (1, 4)), gr.fp32)
    assert [lines[0] for lines, _, _ in cells(gr.svg(a))[:3]] == ["0", "4", "8"]
    d = a.tile([gr.Layout(2, 2), gr.Layout((2, 2), (1, 4))])
    want = viz.draw_tiling(gr.Layout((4, 8), (1, 4)), d.levels, title=str(d))
    assert gr.svg(d) == d._repr_svg_() == want
    assert cells(gr.svg(d, of=a)) == cells(gr.svg(d, of=gr.Layout((4, 8), (1, 4)))) == cells(want)
    part = gr.svg(a.tile([2, 4])[1, 0])
    assert [lines[0] for lines, _, _ in cells(part)] == ["2", "6", "10", "14", "3", "7", "11", "15"]


def test_thread_tensors():
    warp = gr.threads(32)
    groups = warp.tile(8).reshape(0, gr.row_major(2, 2))
    drawn = cells(groups._repr_svg_())
    assert [lines[0] for lines, _, _ in drawn] == [f"T{i}" for i in range(32)]
    assert "[2,2:16,8].[8].thread" in gr.svg(groups)
    pairs = cells(gr.svg(warp.tile([gr.Layout((4, 2), (1, 16))])))
    assert [lines[0] for lines, _, _ in pairs[:8]] == ["T0", "T1", "T2", "T3", "T16", "T17", "T18", "T19"]


def test_operands_of_atomic_specs_and_fragments():
    mma = gr.atom("mma.m16n8k16.f32.f16")
    drawn = cells(gr.svg(mma.operands["a"]))
    assert len(drawn) == 256
    assert drawn[1][0] == ["T0", "V1"]
    with gr.Kernel("k"):
        warps = gr.threads(64).tile(32)
        acc = gr.fragment("acc", [32, 8], gr.fp32, mma.c, on=warps.reshape(0, gr.Layout((2, 1))))
        held = cells(gr.svg(acc))
    assert len(held) == 256
    assert {lines[0] for lines, _, _ in held[:128]} == {f"T{i}" for i in range(32)}
    assert {lines[0] for lines, _, _ in held[128:]} == {f"T{i}" for i in range(32, 64)}


def test_atoms_without_a_picture_are_refused_not_broken():
    """Of products that differ only in how many columns they have, the narrowest and a widest."""
    one = {re.sub(r"n\d+k", "k", atom.name): atom for atom in reversed(list(gr.atoms().values()))}
    for atom in (*one.values(), gr.atom("wgmma.m64n256k16.f32.f16")):
        for operand in getattr(atom, "operands", {}).values():
            text = operand._repr_svg_()
            assert text is None or ET.fromstring(text) is not None


def test_a_part_of_a_fragment_is_drawn_alone():
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel("k"):
        warps = gr.threads(64).tile(32)
        w, _ = warps.indices()
        acc = gr.fragment("acc", [32, 8], gr.fp32, mma.c, on=warps.reshape(0, gr.Layout((2, 1))))
        mine, second = cells(gr.svg(acc[w, 0])), cells(gr.svg(acc[1, 0]))
        staged = gr.fragment("f", [16, 8], gr.fp32, mma.c, on=warps[w], stages=2)
        last = cells(gr.svg(staged[1]))
    assert [mine[0][0], mine[-1][0]] == [["T0", "V0"], ["T31", "V3"]]
    assert [second[0][0], second[-1][0]] == [["T32", "V0"], ["T63", "V3"]]
    assert [last[0][0], last[-1][0]] == [["T0", "V4"], ["T31", "V7"]]
    assert {len(mine), len(second), len(last)} == {128}


def test_stages_and_blocks():
    with gr.Kernel("k"):
        ring = gr.alloc("ring", [2, 4], gr.fp16, gr.SH, stages=3)
    assert [lines[0] for lines, _, _ in cells(gr.svg(ring))][-1] == str(ring.levels[0](2) + 7)
    assert len(cells(gr.svg(ring))) == 24
    assert [lines[0] for lines, _, _ in cells(gr.svg(gr.blocks(2, 2)))] == ["B0", "B2", "B1", "B3"]


def test_kernels_show_their_text():
    with gr.Kernel("k") as kernel:
        assert kernel._repr_html_() == "&lt;graphene.Kernel k&gt;"
        gr.input("x", [4], gr.fp32)
    page = ET.fromstring(kernel._repr_html_())
    assert (page.tag, page.text) == ("pre", str(kernel))
