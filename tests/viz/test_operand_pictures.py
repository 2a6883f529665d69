"""The pictures of how sums become an operand are what the code gives. Run as a script, this writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import graphene as gr

DOCS = Path(__file__).parents[2] / "docs"


def pictures() -> dict[str, str]:
    """A warp's sums as two accumulators of an instruction, and the same 16 columns as its left operand."""
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel("fragments"):
        gr.blocks(1)
        warp = gr.threads(32)
        sums = gr.fragment("S", [16, 16], gr.fp32, mma.c, on=warp)
        operand = gr.fragment("P", [16, 16], gr.fp16, mma.a, on=warp)
        return {"accumulator": gr.svg(sums), "left_operand": gr.svg(operand)}


def test_pictures_are_current() -> None:
    for name, text in pictures().items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text() == text + "\n"


@pytest.mark.parametrize("page", ["attention.md", "fused.md"])
def test_every_picture_is_shown(page: str) -> None:
    assert set(pictures()) <= set(re.findall(r"pictures/(\w+)\.svg", (DOCS / page).read_text()))


def test_what_the_attention_page_says_of_lane_0() -> None:
    mma = gr.atom("mma.m16n8k16.f32.f16")
    of_scores = {(mma.c.tv(0, r) % 16, mma.c.tv(0, r) // 16 + 8 * tile) for tile in range(2) for r in range(4)}
    of_weights = {(mma.a.tv(0, r) % 16, mma.a.tv(0, r) // 16) for r in range(8)}
    assert of_scores == of_weights == {(row, column) for row in (0, 8) for column in (0, 1, 8, 9)}


def test_who_holds_a_sum_holds_the_operand() -> None:
    """What the pages say of the two pictures: the same lane, and pairs of registers, hold the same elements."""
    mma = gr.atom("mma.m16n8k16.f32.f16")
    c, a = mma.c.tv, mma.a.tv  # (lane, register) -> element, m first
    for lane in range(32):
        sums = {(c(lane, r) % 16, c(lane, r) // 16 + 8 * tile) for tile in range(2) for r in range(4)}
        assert sums == {(a(lane, r) % 16, a(lane, r) // 16) for r in range(8)}


if __name__ == "__main__":
    for name, text in pictures().items():
        (DOCS / "pictures" / f"{name}.svg").write_text(text + "\n")
