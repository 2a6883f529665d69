"""The picture of docs/model_layers.md is what the code gives. Run as a script, this writes it."""

from pathlib import Path

import graphene as gr

PICTURE = Path(__file__).parents[2] / "docs/pictures/packed_weights.svg"


def picture() -> str:
    return gr.svg(gr.atom("mma.m16n8k16.f32.f16").a, tile="m16,k16") + "\n"


def test_the_picture_is_current() -> None:
    assert PICTURE.read_text() == picture()


if __name__ == "__main__":
    PICTURE.write_text(picture())
