"""Selection of the kernel and the tile for a problem: rules that admit tiles, a model that ranks them, a tuner that
measures them, records that keep them.

The ``select_*`` functions return the configuration of a kernel of `graphene.kernels` for a problem and a device.
``rank(tunable, problem, device)`` returns a short list and says why each other candidate is not on it. ``tune``
measures the short list on the GPU and stores the winner. ``choose`` takes the record of the problem's shape class, else
the model's best, and so compiles one kernel. ``matmul_tiles`` ranks tiles for a matrix product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene import _lazily

if TYPE_CHECKING:
    from graphene.select.attention import (
        select_backward,
        select_backward_saving,
        select_decode,
        select_forward,
        select_forward_sm90,
        select_short,
    )
    from graphene.select.device import Device, current_device, of_arch
    from graphene.select.elements import select_elementwise, select_reduction, select_transpose
    from graphene.select.elementwise_run import run_elementwise
    from graphene.select.gemm import select_gemm
    from graphene.select.matmul import matmul_tiles
    from graphene.select.measure import Measured, Timer, Tuning, choose, tune
    from graphene.select.mlp import select_mlp
    from graphene.select.model import Estimate, estimate
    from graphene.select.recurrent import select_cell
    from graphene.select.rows import (
        select_norm,
        select_norm_backward,
        select_norm_columns,
        select_softmax,
        select_softmax_columns,
    )
    from graphene.select.tiles import MatmulShape, Tile, judge, thesis_block_tiles, thesis_warp_tiles
    from graphene.select.tunable import Rejected, Runnable, Selection, Tunable, rank

__all__ = [
    "Device",
    "Estimate",
    "MatmulShape",
    "Measured",
    "Rejected",
    "Runnable",
    "Selection",
    "Tile",
    "Timer",
    "Tunable",
    "Tuning",
    "choose",
    "current_device",
    "estimate",
    "judge",
    "matmul_tiles",
    "of_arch",
    "rank",
    "run_elementwise",
    "select_backward",
    "select_backward_saving",
    "select_cell",
    "select_decode",
    "select_elementwise",
    "select_forward",
    "select_forward_sm90",
    "select_gemm",
    "select_mlp",
    "select_norm",
    "select_norm_backward",
    "select_norm_columns",
    "select_reduction",
    "select_short",
    "select_softmax",
    "select_softmax_columns",
    "select_transpose",
    "thesis_block_tiles",
    "thesis_warp_tiles",
    "tune",
]


def __getattr__(name: str) -> Any:
    return _lazily.attribute(__name__, name)


def __dir__() -> list[str]:
    return list(__all__)
