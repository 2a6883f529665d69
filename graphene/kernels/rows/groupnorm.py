"""Group normalisation: mean and variance of neighbouring channels of a sample; a factor and an addend for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import FLOATS, element, flags, instance, size, vectors
from graphene.kernels.rows.block import Part, Rows
from graphene.kernels.rows.moments import moments
from graphene.kernels.rows.norm import exact_mean, from_mean
from graphene.kernels.rows.tile import RowTile

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupNormConfig", "groupnorm_kernel"]


@dataclass(frozen=True)
class GroupNormConfig:
    """A group normalisation, and the tile that it works on.

    `tile`: that of a group, whose width is that of `channels` channels of equal size. It has one row a block and is not
    dense, and its vectors divide the size of a channel. `groups`: the number of groups of a sample. `gamma`, `beta`:
    whether there is a factor, an addend for each channel. Raises VerifyError KERNEL_ARGUMENT.
    """

    tile: RowTile
    groups: int
    channels: int
    dtype: gr.DType = gr.fp16
    gamma: bool = True
    beta: bool = True

    def __post_init__(self) -> None:
        name = "GroupNormConfig"
        instance(name, "tile", self.tile, RowTile)
        size(name, "groups", self.groups)
        size(name, "channels", self.channels)
        size(name, "tile.rows", self.tile.rows, most=1)
        size(name, "tile.dense", self.tile.dense, least=0, most=0)
        size(name, "tile.width", self.tile.width, multiple_of=self.channels * self.tile.vector)
        element(name, "dtype", self.dtype, FLOATS)
        for flag in ("gamma", "beta"):
            flags(name, flag, (getattr(self, flag),), 1)
        vectors(name, "tile.vector", self.tile.vector, self.dtype)


class Groups(Rows):
    """The group of one block, in a kernel whose grid has a block for each group of each sample."""

    def __init__(self, config: GroupNormConfig, samples: Any) -> None:
        super().__init__(config.tile, samples * config.groups)
        self.config = config
        self.sample, self.group = self.block // config.groups, self.block % config.groups

    def of(self, x: gr.Tensor) -> gr.Tensor:
        """The block's group of a matrix (samples, elements)."""
        return x.tile([1, self.tile.width])[self.sample, self.group]

    def channel(self, x: gr.Tensor, part: Part) -> gr.Tensor:
        """For a part's columns, elements of a vector (groups * channels,): one for each vector of registers."""
        c, t = self.config, self.tile
        (thread,) = self.threads.indices()
        own = self.fragment("c", 1, x.dtype)
        one = gr.alloc("one", [], x.dtype, gr.RF)
        for i in range(0, own.values.size, t.vector):
            column = part.index * t.part + i * t.threads + thread * t.vector
            with gr.if_(column < t.width):
                gr.move(one, x[self.group * c.channels + column // (t.width // c.channels)])
            for k in range(t.vector):
                gr.move(own.values[i + k], one)
        return own


def _promise(c: GroupNormConfig) -> Callable[..., dict[str, Any]]:
    def normalised(X: Any, gamma: Any = None, beta: Any = None, eps: Any = 0.0) -> dict[str, Any]:
        import numpy as np

        h = X.reshape(len(X), c.groups, c.tile.width)
        d = from_mean(h, exact_mean(c.dtype))[1]
        y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
        y = y.reshape(len(X), c.groups * c.channels, c.tile.width // c.channels)
        if gamma is not None:
            y = y * gamma[:, None]
        if beta is not None:
            y = y + beta[:, None]
        return {"Y": y.reshape(X.shape)}

    return normalised


def groupnorm_kernel(config: GroupNormConfig) -> gr.Kernel:
    """Y = (X - mean) * rsqrt(var + eps) * gamma + beta with mean and var of a group; fp32 inside, rounded once.

    The arguments, as far as the configuration has them, are X (B, groups * width), gamma (groups * channels,), beta
    (groups * channels,), Y (B, groups * width), eps. A sample's channels lie one after the other; samples may have any
    stride that the vectors divide. B is any.
    """
    instance("groupnorm_kernel", "config", config, GroupNormConfig)
    c, t = config, config.tile
    sensible = gr.Arguments(values={"eps": (1e-5, 1e-12, 0.5, 0.0)})
    with gr.Kernel("groupnorm", means=_promise(c), arguments=sensible) as kernel:
        B = gr.sym("B", max=(2**31 - 1) // c.groups)
        elements, align = c.groups * t.width, t.vector * c.dtype.bits // 8
        stride = gr.sym("ldX", multiple_of=t.vector, min=0, max=2**31 - 1)
        X = gr.input("X", gr.Layout((B, elements), (stride, 1)), c.dtype, align_bytes=align)
        gamma, beta = (
            gr.input(name, [c.groups * c.channels], c.dtype) if wanted else None
            for name, wanted in (("gamma", c.gamma), ("beta", c.beta))
        )
        Y = gr.output("Y", gr.row_major(B, elements), c.dtype, align_bytes=align)
        eps = gr.param("eps", gr.fp32)
        rows = Groups(c, B)
        (x,) = rows.keep(X)
        rstd = rows.per_row("rstd")
        distance, square = moments(rows, lambda part: part.take(x), exact=exact_mean(c.dtype))
        rstd[:] = gr.rsqrt(square + eps)
        for part in rows.parts():
            y = distance(part.take(x)) * rstd
            if gamma is not None:
                y = y * rows.channel(gamma, part)
            if beta is not None:
                y = y + rows.channel(beta, part)
            part.store(Y, y)
    return kernel
