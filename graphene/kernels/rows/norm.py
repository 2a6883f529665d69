"""Configuration and arguments of layer normalisation and of its root-mean-square form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import FLOATS, element, flags, instance, number, vectors
from graphene.kernels.rows.block import Part, Rows, declare_rows
from graphene.kernels.rows.tile import RowTile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SENSIBLE", "NormArguments", "NormConfig", "exact_mean", "from_mean", "promise"]


@dataclass(frozen=True)
class NormConfig:
    """A normalisation, and the tile that it works on.

    `dtype`: the type of X, R, Y, S and, unless `affine_dtype` says otherwise, of gamma and beta. `gamma`, `beta`:
    whether there is a factor, an addend for each column. `residual`: X + R is normalised. `write_sum`: S = X + R is
    stored, too. `eps`: a number that is built into the kernel; None makes it an argument. `shift`: the factors are
    gamma plus the last argument. Raises VerifyError KERNEL_ARGUMENT for types other than fp16, bf16 and fp32, and for
    vectors of more than 16 bytes.
    """

    tile: RowTile
    dtype: gr.DType = gr.fp16
    gamma: bool = True
    beta: bool = True
    residual: bool = False
    write_sum: bool = False
    eps: float | None = None
    affine_dtype: gr.DType | None = None
    shift: bool = False

    def __post_init__(self) -> None:
        name = "NormConfig"
        instance(name, "tile", self.tile, RowTile)
        element(name, "dtype", self.dtype, FLOATS)
        for flag in ("gamma", "beta", "residual", "write_sum", "shift"):
            flags(name, flag, (getattr(self, flag),), 1)
        if self.eps is not None:
            number(name, "eps", self.eps)
        if self.affine_dtype is not None:
            element(name, "affine_dtype", self.affine_dtype, FLOATS)
        affine = (self.affine_dtype or self.dtype,) if self.gamma or self.beta else ()
        vectors(name, "tile.vector", self.tile.vector, self.dtype, *affine)


def exact_mean(dtype: gr.DType) -> bool:
    """Whether a row's mean rounded to fp32 has fewer digits than the elements."""
    return dtype == gr.fp32


def from_mean(h: Any, exact: bool) -> tuple[Any, Any]:
    """Rows' means in a meaning, and the distances from them.

    `exact`: the mean is the sum of two numbers, the second of which is as exact as distances are. So what the first is
    off by costs no distance a digit.
    """
    import numpy as np

    mean = h.mean(-1, keepdims=True)
    if not exact:
        return mean, h - mean
    near = getattr(mean, "values", mean)
    distance = h - near
    rest = np.where(np.isfinite(near), distance.mean(-1, keepdims=True), 0)
    return near + rest, distance - rest


def promise(c: NormConfig, centred: bool) -> Callable[..., dict[str, Any]]:
    """The meaning of a normalisation."""

    def normalised(
        X: Any, R: Any = None, gamma: Any = None, beta: Any = None, eps: Any = c.eps, shift: Any = 0.0
    ) -> dict[str, Any]:
        import numpy as np

        h = X if R is None else X + R
        d = from_mean(h, exact_mean(c.dtype))[1] if centred else h
        y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
        if gamma is not None:
            y = y * (gamma + shift)
        if beta is not None:
            y = y + beta
        return {"Y": y, "S": h} if c.write_sum else {"Y": y}

    return normalised


# Sensible arguments of a normalisation.
SENSIBLE = gr.Arguments(values={"eps": (1e-5, 1e-12, 0.5, 0.0), "shift": (1.0, 0.0)})


class NormArguments:
    """The arguments, in this order, as far as the configuration has them: X, R, gamma, beta, Y, S, eps, shift."""

    def __init__(self, c: NormConfig) -> None:
        width, vector = c.tile.width, c.tile.vector
        affine = c.affine_dtype or c.dtype
        self.M = M = gr.sym("M", max=2**31 - 1)

        def matrix(declare: Callable[..., gr.Tensor], name: str) -> gr.Tensor:
            return declare_rows(declare, name, M, c.tile, c.dtype)

        def column(name: str, wanted: bool) -> gr.Tensor | None:
            return gr.input(name, [width], affine, align_bytes=vector * affine.bits // 8) if wanted else None

        self.X = matrix(gr.input, "X")
        self.R = matrix(gr.input, "R") if c.residual else None
        self.gamma, self.beta = column("gamma", c.gamma), column("beta", c.beta)
        self.Y = matrix(gr.output, "Y")
        self.S = matrix(gr.output, "S") if c.write_sum else None
        self.eps = gr.param("eps", gr.fp32) if c.eps is None else c.eps
        self.shift = gr.param("shift", gr.fp32) if c.shift else None

    def keep(self, rows: Rows) -> Callable[[Part], Any]:
        """Reads the rows of X and R. The returned function gives a part of the rows that are normalised."""
        kept = rows.keep(*(t for t in (self.X, self.R) if t is not None))

        def h(part: Part) -> Any:
            x, *r = (part.take(t) for t in kept)
            return x + r[0] if r else x

        return h

    def last(self, rows: Rows) -> Iterator[Part]:
        """The parts of the rows, for the pass that reads gamma and beta."""
        for _ in rows.shifts(self.gamma is not None or self.beta is not None):
            yield from rows.parts()

    def store(self, part: Part, h: Any, normal: Any) -> None:
        """Y = normal * gamma + beta; S = h."""
        if self.S is not None:
            part.store(self.S, h)
        factors: Any = None if self.gamma is None else part.column(self.gamma)
        if factors is not None and self.shift is not None:
            factors = factors + self.shift
        if factors is not None and self.beta is not None:
            normal = gr.fma(normal, factors, part.column(self.beta))
        elif factors is not None:
            normal = normal * factors
        elif self.beta is not None:
            normal = normal + part.column(self.beta)
        part.store(self.Y, normal)
