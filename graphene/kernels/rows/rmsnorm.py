"""Normalisation by the root of a row's mean square. Each element is read once if a row fits on the chip."""

from __future__ import annotations

import graphene as gr
from graphene.kernels.arguments import instance
from graphene.kernels.rows.block import Rows
from graphene.kernels.rows.norm import SENSIBLE, NormArguments, NormConfig, promise

__all__ = ["rmsnorm_kernel"]


def rmsnorm_kernel(config: NormConfig) -> gr.Kernel:
    """Y = H * rsqrt(mean(H^2) + eps) * gamma over the rows of H = X + R; fp32 inside, rounded once.

    The arguments are those of ``layernorm_kernel``; beta is added if the configuration has it.
    """
    instance("rmsnorm_kernel", "config", config, NormConfig)
    with gr.Kernel("rmsnorm", means=promise(config, centred=False), arguments=SENSIBLE) as kernel:
        a = NormArguments(config)
        rows = Rows(config.tile, a.M)
        h = a.keep(rows)
        rstd = rows.per_row("rstd")
        rstd[:] = gr.rsqrt(rows.sum_of_squares(h) * (1 / config.tile.width) + a.eps)
        for part in a.last(rows):
            value = h(part)
            a.store(part, value, value * rstd)
    return kernel
