"""The pictures of docs/attention.md are what the code gives. Run as a script, this writes them."""

from __future__ import annotations

import re
from pathlib import Path

import graphene as gr

DOCS = Path(__file__).parents[2] / "docs"


def pictures() -> dict[str, str]:
    """Scores as the first product leaves them, weights as the second takes them."""
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel("attention"):
        gr.blocks(1)
        warp = gr.threads(32)
        scores = gr.fragment("S", [16, 16], gr.fp32, mma.c, on=warp)
        weights = gr.fragment("P", [16, 16], gr.fp16, mma.a, on=warp)
        return {"attention_scores": gr.svg(scores), "attention_weights": gr.svg(weights)}


def test_pictures_are_current() -> None:
    for name, text in pictures().items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text() == text + "\n"


def test_every_picture_is_shown() -> None:
    page = (DOCS / "attention.md").read_text()
    assert sorted(re.findall(r"pictures/(\w+)\.svg", page)) == sorted(pictures())


def test_what_the_page_says_of_lane_0() -> None:
    mma = gr.atom("mma.m16n8k16.f32.f16")
    of_scores = {(mma.c.tv(0, r) % 16, mma.c.tv(0, r) // 16 + 8 * tile) for tile in range(2) for r in range(4)}
    of_weights = {(mma.a.tv(0, r) % 16, mma.a.tv(0, r) // 16) for r in range(8)}
    assert of_scores == of_weights == {(row, column) for row in (0, 8) for column in (0, 1, 8, 9)}


if __name__ == "__main__":
    for name, text in pictures().items():
        (DOCS / "pictures" / f"{name}.svg").write_text(text + "\n")
