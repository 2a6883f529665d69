"""Some of the mistakes that were planted in decoding, pages, attention's gradients and products for Hopper are told."""

from __future__ import annotations

import pytest
from further_mistakes import BUILD, MISTAKES
from product_mistakes import Mistake, told


@pytest.mark.parametrize("mistake", MISTAKES[1::19], ids=str)
def test_a_planted_mistake_is_told(mistake: Mistake) -> None:
    assert told(mistake, BUILD)


@pytest.mark.parametrize(
    ("kernel", "after"),
    [
        ("paged", "entry = gr.max(entry, 0)"),  # pages that do not exist
        ("f90 packed", "- (hi - 1) * c.BN + 1"),  # what lies behind a packed sequence is not a number
        ("f90 packed", "at * each + each - 1 <="),  # a packed sequence that ends one row before a tile
        ("transpose", "gr.min(gr.ceil_div(M, T), 5)"),  # more tiles than usual
        ("lines", "gr.where(old == old, old, 0)"),  # of several tensors one alone is not a number
    ],
)
def test_what_was_silent_is_told(kernel: str, after: str) -> None:
    (mistake,) = (m for m in MISTAKES if m.kernel == kernel and after in m.after)
    assert told(mistake, BUILD)
