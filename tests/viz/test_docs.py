"""The pictures and the table of docs/layouts.md are what the code gives. Run as a script, this writes the pictures."""

import re
from pathlib import Path

import graphene as gr

DOCS = Path(__file__).parents[2] / "docs"


def pictures():
    a = gr.tensor("A", gr.Layout((4, 8), (1, 4)), gr.fp32)
    return {
        "layout": gr.svg("(4,(2,4)):(2,(1,8))"),
        "swizzle": gr.svg(gr.Swizzle(3, 3, 3)),
        "tiling": gr.svg(a.tile([gr.Layout(2, 2), gr.Layout((2, 2), (1, 4))])),
        "groups": gr.svg(gr.threads(32).tile(8).reshape(0, gr.row_major(2, 2))),
        "tv": gr.svg(gr.tv("(4,8):(32,1)", "(2,2):(16,8)"), tile="m16,n8"),
    }


def test_pictures_are_current():
    for name, text in pictures().items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text() == text + "\n"


def test_every_picture_is_shown():
    page = (DOCS / "layouts.md").read_text()
    assert sorted(re.findall(r"pictures/(\w+)\.svg", page)) == sorted(pictures())


def test_the_table_of_swizzles():
    page = (DOCS / "layouts.md").read_text()
    rows = re.search(r"\| elements of a row \|(.*)\|\n.*\n\| swizzle \|(.*)\|", page)
    for row, want in zip(rows[1].split("|"), rows[2].split("|"), strict=True):
        s = gr.swizzle(int(row), gr.fp16)
        assert want.strip(" `") == (f"<{s.bits},{s.base},{s.shift}>" if s.bits else "none")


def test_the_error_on_the_page():
    m, n = gr.sym("M N")
    try:
        gr.composition(gr.row_major(m, n), gr.Layout(4, 2))
    except gr.LayoutError as e:
        text = str(e)
    assert text in (DOCS / "layouts.md").read_text()


if __name__ == "__main__":
    for name, text in pictures().items():
        (DOCS / "pictures" / f"{name}.svg").write_text(text + "\n")
