"""Layer normalisation: a row's mean, its variance, the result. Each element is read once if a row fits on the chip."""

from __future__ import annotations

import graphene as gr
from graphene.kernels.arguments import instance, number, size
from graphene.kernels.rows.block import Rows
from graphene.kernels.rows.moments import moments
from graphene.kernels.rows.norm import SENSIBLE, NormArguments, NormConfig, exact_mean, promise
from graphene.kernels.rows.tile import RowTile

__all__ = ["layernorm", "layernorm_kernel"]


def layernorm_kernel(config: NormConfig) -> gr.Kernel:
    """Y = (H - mean) * rsqrt(var + eps) * gamma + beta over the rows of H = X + R; fp32 inside, rounded once.

    The arguments, as far as the configuration has them, are X (M, width), R (M, width), gamma (width,), beta (width,),
    Y (M, width), S (M, width), eps. M is any; rows may have any stride that the vectors divide.
    """
    instance("layernorm_kernel", "config", config, NormConfig)
    with gr.Kernel("layernorm", means=promise(config, centred=True), arguments=SENSIBLE) as kernel:
        a = NormArguments(config)
        rows = Rows(config.tile, a.M)
        h = a.keep(rows)
        rstd = rows.per_row("rstd")
        distance, square = moments(rows, h, exact=exact_mean(config.dtype))
        rstd[:] = gr.rsqrt(square + a.eps)
        for part in a.last(rows):
            value = h(part)
            a.store(part, value, distance(value) * rstd)
    return kernel


def layernorm(N: int = 1000, THREADS: int = 128, eps: float = 1e-5) -> gr.Kernel:
    """Y = (X - mean) * rsqrt(var + eps) * gamma + beta over rows: X, Y (M,N), gamma, beta (N,) fp16; fp32 inside.

    Each row has one block of THREADS threads. The row stays in registers, about N / THREADS of fp32 for each thread.
    N % 8 == 0, THREADS % 32 == 0. Raises VerifyError KERNEL_ARGUMENT.
    """
    size("layernorm", "N", N, multiple_of=8)
    size("layernorm", "THREADS", THREADS, multiple_of=32, most=1024)
    number("layernorm", "eps", eps)
    return layernorm_kernel(NormConfig(RowTile(N, THREADS), eps=eps))
