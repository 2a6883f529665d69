"""Tile sizes: the rules that admit them, a model that ranks them, a tuner that measures them, records that keep them.

``rank(tunable, problem, device)`` returns a short list and says of every other candidate why it is not on it;
``tune`` measures the short list on the GPU and stores the winner; ``choose`` takes the record of the problem's shape
class, else the model's best, and so compiles one kernel. ``matmul_tiles`` ranks tiles for a matrix product.
"""

from __future__ import annotations

from graphene.tune.autotune import Measured, Timer, Tuning, choose, tune
from graphene.tune.device import Device, current_device, of_arch
from graphene.tune.matmul import matmul_tiles
from graphene.tune.tiles import Estimate, MatmulShape, Tile, estimate, judge, thesis_block_tiles, thesis_warp_tiles
from graphene.tune.tunable import Rejected, Runnable, Selection, Tunable, rank

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
    "thesis_block_tiles",
    "thesis_warp_tiles",
    "tune",
]
