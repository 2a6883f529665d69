"""The table of docs/attention.md that says which kernel of attention takes which option, made from the refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import graphene as gr
from graphene.errors import VerifyError
from graphene.kernels import BackwardConfig, ForwardConfig
from graphene.kernels.attention.backward_sm90 import GradientSm90
from graphene.kernels.attention.keys_sm90 import KeysSm90
from graphene.kernels.attention.problem import Attention, Extra
from graphene.kernels.attention.sm90 import ForwardSm90

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
PLAIN = Attention(64)
SMALL: dict[str, Any] = {"BN": 32, "consumers": 1, "queries": 1, "apart": False, "persistent": False, "copier": False}
KERNELS: dict[str, Callable[[Attention], Any]] = {
    "forward, `wgmma`": lambda a: ForwardSm90(a, **SMALL),
    "forward for a gradient, `wgmma`": lambda a: ForwardSm90(a, **SMALL, lse=True, training=True),
    "gradients, `wgmma`": KeysSm90,
    "gradients by sums, `wgmma`": lambda a: GradientSm90(a, 1, 2),
    "forward, `mma.sync`": lambda a: ForwardConfig(a, 32, 16, 2),
    "gradients, `mma.sync`": lambda a: BackwardConfig(a, 32, 16, 2),
}
OPTIONS: dict[str, Attention] = {
    "bf16": replace(PLAIN, dtype=gr.bf16),
    "heads of 8 elements": replace(PLAIN, D=8),
    "heads of 256 elements": replace(PLAIN, D=256),
    "grouped heads": replace(PLAIN, group=4),
    "causal": replace(PLAIN, right=True),
    "a window with a left end": replace(PLAIN, left=True, right=True),
    "a mask of keys": replace(PLAIN, mask=Extra(rows=False)),
    "a mask of queries and keys": replace(PLAIN, mask=Extra()),
    "a bias": replace(PLAIN, bias=Extra(gr.fp16)),
    "a soft cap": replace(PLAIN, softcap=True),
    "a scale that is not positive": replace(PLAIN, scaled=True),
    "packed sequences": replace(PLAIN, varlen=True),
    "a function of scores": replace(PLAIN, score=lambda s, query, key: s),
    "sinks": replace(PLAIN, sinks=True),
}


def taken(make: Callable[[Attention], Any], what: Attention) -> str:
    """What a cell of the table says."""
    try:
        make(what)
    except VerifyError:
        return "-"
    return "yes"


def table() -> str:
    """The whole table."""
    rows = [["option", *KERNELS]]
    rows += [[name, *(taken(make, what) for make in KERNELS.values())] for name, what in OPTIONS.items()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def test_the_page_says_what_kernels_take() -> None:
    assert table() in PAGE.read_text(), table()
