"""Mistakes planted by hand in attention, perceptrons and recurrent cells are told by ``check()``: some of them here.

``python tests/mutation/test_planted.py`` tries all, and the kernels without them, and prints those that pass in
silence: 6 minutes of one core.
"""

from __future__ import annotations

import sys

import pytest
from attention_mistakes import KERNELS, MISTAKES, Mistake, mistaken

import graphene as gr


def told(mistake: Mistake) -> str:
    """How a mistake is told; "" if it is not."""
    try:
        kernel = mistaken(mistake)
    except gr.GrapheneError as e:
        return f"refused: {e}"
    return "; ".join(f"{e.code}: {e.message}" for e in kernel.check().errors)


@pytest.mark.parametrize("mistake", MISTAKES[2::24], ids=lambda m: m.name)
def test_mistakes_are_told(mistake: Mistake) -> None:
    assert told(mistake), mistake


@pytest.mark.parametrize(
    ("instead", "kernel"),
    [
        ("(shift + rows - 2 - self.left, BN)", "forward, window"),
        ("(shift + rows - 2 - self.left, BN)", "queries, window"),
        ("(shift + keys - 2 - self.right, BM)", "keys"),
        ("(shift + keys - 2 - self.right, BM)", "keys, window"),
        ("gr.max(self.left, 0)", "forward, window"),  # a window that begins behind the query
        ("gr.min(splits, 64), start=lane", "combine"),  # more parts than a number that stands in the text
    ],
)
def test_a_mistake_at_an_end_is_told(instead: str, kernel: str) -> None:
    (mistake,) = (m for m in MISTAKES if instead in m.instead)
    assert told(mistake._replace(kernel=kernel)), mistake


@pytest.mark.parametrize("name", list(KERNELS)[::15])
def test_kernels_without_mistakes_are_right(name: str) -> None:
    result = KERNELS[name]().check()
    assert result.ok, str(result)


def test_every_kind_of_kernel_has_mistakes() -> None:
    assert {m.kernel for m in MISTAKES} == set(KERNELS)
    assert len(MISTAKES) >= 230


if __name__ == "__main__":
    silent, alarms = [], []
    for i, m in enumerate(MISTAKES):
        how = told(m)
        print(f"{i + 1}/{len(MISTAKES)}", m.name, "->", how.partition("\n")[0] or "SILENT", flush=True)
        silent += [] if how else [m.name]
    for name, make in KERNELS.items():
        result = make().check()
        print(name, result, flush=True)
        alarms += [] if result.ok else [name]
    sys.exit(f"silent: {silent}; false alarms: {alarms}" if silent or alarms else 0)
