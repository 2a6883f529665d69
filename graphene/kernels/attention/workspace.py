"""The work space in which one of attention's gradient kernels leaves the scores' gradients for another."""

from __future__ import annotations

from typing import Any

import graphene as gr
from graphene.kernels.arguments import MOST_BLOCKS_YZ
from graphene.kernels.attention.problem import MOST, Attention

PANEL, ROWS = 32, 128  # queries that are saved together; the work space has a multiple of ROWS queries and keys
TOGETHER = 32  # heads whose blocks of equal length follow one another


def saved_scores(a: Attention, kind: Any = gr.inout) -> gr.Tensor:
    """The work space of scores' gradients: (heads of keys, group, panels of ``PANEL`` queries, keys, queries).

    Within a panel queries lie in the order of registers: query x + 2 c + 8 y, with x < 2 and c, y < 4, at
    x + 2 y + 8 c. Queries and keys are rounded up to ``ROWS``.
    """
    heads, panels = gr.sym("saved_heads", max=MOST_BLOCKS_YZ), gr.sym("panels", max=MOST)
    keys = gr.sym("keys", multiple_of=ROWS)
    layout = gr.row_major(heads, a.group, panels, keys, PANEL)
    made: gr.Tensor = kind("saved", layout, a.dtype, align_bytes=16)
    return made


def saving_blocks(tiles: Any, heads: Any, a: Attention) -> Any:
    """The grid of a kernel with a work space: tiles of the heads in it."""
    if a.right and not a.left:  # the longest tiles first, for as many heads as share the cache
        return gr.blocks(gr.min(heads, TOGETHER), tiles, gr.ceil_div(heads, TOGETHER))
    return gr.blocks(tiles, heads)


def saving_place(blocks: Any, a: Attention) -> tuple[Any, Any]:
    """The tile and the head of a block of that grid; the last group may have more heads than there are."""
    if a.right and not a.left:
        head, tile, group = blocks.indices()
        return tile, group * TOGETHER + head
    tile, head = blocks.indices()
    return tile, head
