"""Some of the mistakes that were planted in decoding, pages, attention's gradients and products for Hopper are told."""

from __future__ import annotations

from typing import Any

import planned_mistakes
import pytest
from attention_mistakes import MISTAKES as ATTENTION_MISTAKES
from further_mistakes import BUILD, MISTAKES
from hopper_mistakes import BUILD as HOPPER_BUILD
from hopper_mistakes import MISTAKES as HOPPER_MISTAKES
from product_mistakes import BUILD as PRODUCT_BUILD
from product_mistakes import MISTAKES as PRODUCT_MISTAKES
from product_mistakes import Mistake, path_of, told

import graphene as gr


def test_every_line_that_a_mistake_changes_stands_once() -> None:
    planted = [*MISTAKES, *HOPPER_MISTAKES, *PRODUCT_MISTAKES]
    assert [str(m) for m in planted if path_of(m.file).read_text().count(m.before) != 1] == []
    assert [m.name for m in ATTENTION_MISTAKES if m.text not in path_of(m.file).read_text()] == []


@pytest.mark.parametrize("build", [BUILD, HOPPER_BUILD, PRODUCT_BUILD], ids=["further", "hopper", "product"])
def test_every_kernel_that_gets_mistakes_is_built_without_them(build: dict[str, Any]) -> None:
    for make in build.values():
        assert make(gr.kernels)  # type: ignore[attr-defined]


@pytest.mark.parametrize("mistake", MISTAKES[1::38], ids=str)
def test_a_planted_mistake_is_told(mistake: Mistake) -> None:
    assert told(mistake, BUILD)


@pytest.mark.parametrize(
    ("kernel", "after"),
    [
        ("paged", "entry = gr.max(entry, 0)"),  # pages that do not exist
        ("decode", "self.top < -1e5"),  # all scores of a row are far below zero
        ("f90 packed", "- (hi - 1) * c.BN + 1"),  # what lies behind a packed sequence is not a number
        ("f90 packed", "at * each + each - 1 <="),  # a packed sequence that ends one row before a tile
        ("transpose", "gr.min(gr.ceil_div(M, T), 5)"),  # more tiles than usual
        ("groups", "// BM + of.B.shape[0]"),  # each group has one row more than whole tiles
        ("entropy", "gr.if_(t >= 0)"),  # targets past the last class
        ("lines", "gr.where(old == old, old, 0)"),  # of several tensors one alone is not a number
        ("softmax in parts", "-65000"),  # rows next to fp16's least number
        ("gelu16", "* 1.05"),  # the last power of a function that is small where 1 + erf(x) has lost its digits
        ("f90 packed", "self.batch > 2 * LANES"),  # more sequences than lanes count
        (
            "softmax",
            "most * math.log2(math.e), ftz=True)",
        ),  # numbers beside which products lose the digits of distances
        ("entropy", "_power(base.values[e] - whole)"),  # all of a thread's share is -inf, and the rest far below zero
        ("gemm_reduce", "gr.min(z, 4)"),  # more blocks than usual
        ("decode", "gr.min(self.bm, 2)"),  # more clusters than usual
        (
            "linear, gelu",
            "x + rest[0]",
        ),  # the order of residual and activation, which meanings once shared with kernels
        ("linear, relu", "return gr.max(x, 0)"),  # not-a-number becomes 0
        ("perceptron of silu", '"silu": sigmoid'),  # the table of activations
        ("keys80", "1.4462950408889634"),  # a constant
        ("paged", "gr.max(gr.index(self.lengths[self.b], *INTEGERS), 0)"),  # more keys than the table has places for
        ("training80", "self.best[:] = top"),  # one probability is next to 1, whose rounding cancels
        ("training80", "total + (largest - rounded)"),
        ("training80", "+ 0 * (largest - rounded)"),
        ("values of fp8", "key = i % 2 * 8 + i // 2"),  # the order of keys
        ("k90", "self.done.value > 1"),  # blocks that stand in the text but not in the grid have no second tile
    ],
)
def test_what_was_silent_is_told(kernel: str, after: str) -> None:
    (mistake,) = (m for m in MISTAKES if m.kernel == kernel and after in m.after)
    assert told(mistake, BUILD)


@pytest.mark.parametrize("after", ["gr.init(top, 0)", "gr.init(ps0, 1e-3)"])
def test_mistakes_in_a_planned_kernel_are_told(after: str) -> None:
    """In the first, all of a row's scores are far below zero, which one tensor alone must bring about."""
    (mistake,) = (m for m in planned_mistakes.MISTAKES if m.after == after)
    assert planned_mistakes.told(mistake)
