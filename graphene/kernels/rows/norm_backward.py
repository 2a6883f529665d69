"""Gradients of layer normalisation and of its root-mean-square form.

There are three kernels. One goes by rows, for the input's gradient. One goes by columns: each of its blocks adds up the
gradients of factor and addend over a part of the rows. ``reduction_kernel`` adds these parts. All orders are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core
from graphene.kernels.access import vector_access
from graphene.kernels.arguments import FLOATS, MOST_BLOCKS_YZ, choice, element, flags, instance, size, vectors
from graphene.kernels.rows.block import Rows, declare_rows
from graphene.kernels.rows.norm import SENSIBLE, NormConfig, exact_mean, from_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels.rows.block import Part

__all__ = [
    "NormColumnsConfig",
    "layernorm_backward_kernel",
    "norm_columns_kernel",
    "rmsnorm_backward_kernel",
]


def layernorm_backward_kernel(config: NormConfig) -> gr.Kernel:
    """DX for Y = N * gamma + beta, where N = (H - mean) * rstd, H = X + R; with G = dY * gamma and means over each row:

    dX = rstd * (G - mean(G) - N * mean(G * N)), plus dS, the gradient of H itself, if the configuration writes sums.
    Arguments: X (M, width), R (M, width), dY (M, width), gamma (width,), dS (M, width), dX (M, width), mean (M,),
    rest (M,), rstd (M,), eps. The configuration decides on some of them: R with residual, gamma with gamma, dS with
    write_sum, eps if it is not built in, rest with fp32. H is added up in fp32 and never rounded, as in the
    normalisation. The statistics are written in fp32, for ``norm_columns_kernel``. The mean of rows of fp32 needs more
    digits than fp32 has, so it is the sum of mean and rest.
    """
    return _backward("layernorm_backward", config, centred=True)


def rmsnorm_backward_kernel(config: NormConfig) -> gr.Kernel:
    """DX for Y = N * gamma, where N = (X + R) * rstd: dX = rstd * (G - N * mean(G * N)), with G = dY * gamma.

    The arguments are those of ``layernorm_backward_kernel``, without mean.
    """
    return _backward("rmsnorm_backward", config, centred=False)


def _gradient(c: NormConfig, centred: bool) -> Callable[..., dict[str, Any]]:
    """The meaning: the gradient of the input, and the statistics of rows."""

    def gradient(X: Any, dY: Any, R: Any = None, gamma: Any = None, dS: Any = None, eps: Any = c.eps) -> dict[str, Any]:
        import numpy as np

        h = X if R is None else X + R
        mean, distance = from_mean(h, exact_mean(c.dtype))
        d = distance if centred else h
        rstd = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
        n, g = d * rstd, dY if gamma is None else dY * gamma
        inner = g - n * (g * n).mean(-1, keepdims=True)
        if centred:
            inner = inner - g.mean(-1, keepdims=True)
        dX = rstd * inner if dS is None else rstd * inner + dS
        return {"dX": dX, "rstd": rstd[:, 0], **({"mean": mean[:, 0]} if centred else {})}

    return gradient


def _statistics_read(dX: Any, rstd: Any, mean: Any, rest: Any) -> dict[str, Any]:
    """The mean of rows of fp32 is the sum of two numbers; the second is NaN where the first is infinite."""
    import numpy as np

    return {"dX": dX, "rstd": rstd, "mean": np.where(np.isfinite(mean), mean + rest, mean)}


def _backward(name: str, c: NormConfig, centred: bool) -> gr.Kernel:
    instance(f"{name}_kernel", "config", c, NormConfig)
    if c.tile.dense:
        _core.fail(
            "KERNEL_ARGUMENT",
            f"{name}_kernel: tile.dense does not fit",
            ["want: 0, the gradients' rows begin with whole vectors", f"got: {c.tile.dense}"],
            "take the configuration of select_norm_backward",
        )
    tile, scale = c.tile, 1 / c.tile.width
    affine = c.affine_dtype or c.dtype
    read = _statistics_read if centred and exact_mean(c.dtype) else None
    with gr.Kernel(name, means=_gradient(c, centred), read=read, arguments=SENSIBLE) as kernel:
        M = gr.sym("M", max=2**31 - 1)
        names = ("X", "R", "dY") if c.residual else ("X", "dY")
        matrices = [declare_rows(gr.input, n, M, tile, c.dtype) for n in names]
        align = tile.vector * affine.bits // 8
        gamma = gr.input("gamma", [tile.width], affine, align_bytes=align) if c.gamma else None
        dS = declare_rows(gr.input, "dS", M, tile, c.dtype) if c.write_sum else None
        dX = declare_rows(gr.output, "dX", M, tile, c.dtype)
        means = gr.output("mean", [M], gr.fp32) if centred else None
        rests = gr.output("rest", [M], gr.fp32) if centred and exact_mean(c.dtype) else None
        rstds = gr.output("rstd", [M], gr.fp32)
        eps = gr.param("eps", gr.fp32) if c.eps is None else c.eps
        rows = Rows(tile, M)
        *terms, dy = rows.keep(*matrices)
        mean, rest, rstd, of_g, of_gn = (rows.per_row(n) for n in ("mean", "rest", "rstd", "of_g", "of_gn"))

        def h(part: Part) -> Any:
            x, *r = (part.take(t) for t in terms)
            return x + r[0] if r else x

        def distance(part: Part) -> Any:
            if not centred:
                return h(part)
            return h(part) - mean if rests is None else h(part) - mean - rest

        def inside(part: Part) -> Any:  # what lies past the end was read as zeros
            return part.inside(distance(part)) if centred else distance(part)

        def g(part: Part) -> Any:
            return part.take(dy) * part.column(gamma) if gamma is not None else part.take(dy)

        if means is not None:
            mean[:] = rows.reduce("add", h) * scale
            rows.store(means, mean)
        if rests is not None:
            rest[:] = rows.reduce("add", lambda part: part.inside(h(part) - mean)) * scale
            rows.store(rests, rest)
        rstd[:] = gr.rsqrt(rows.sum_of_squares(inside) * scale + eps)
        rows.store(rstds, rstd)
        if centred:
            of_g[:] = rows.reduce("add", g) * scale
        of_gn[:] = rows.reduce("add", lambda part: g(part) * (distance(part) * rstd)) * scale
        for part in rows.parts():
            inner = g(part) - of_g if centred else g(part)
            value = (inner - distance(part) * rstd * of_gn) * rstd
            part.store(dX, value if dS is None else value + part.load(dS))
    return kernel


@dataclass(frozen=True)
class NormColumnsConfig:
    """The wanted gradients of columns, and the block that adds them up.

    `dtype`: the type of X, R and dY. `centred`: whether it belongs to a layer normalisation, which has a mean. `beta`:
    whether the addend's gradient is wanted, too. `residual`: whether X + R was normalised. A block has 32 threads side
    by side, each with `vector` neighbouring columns, and `rows` such rows of threads. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    dtype: gr.DType = gr.fp16
    centred: bool = True
    beta: bool = True
    residual: bool = False
    vector: int = 2
    rows: int = 16

    def __post_init__(self) -> None:
        size("NormColumnsConfig", "rows", self.rows, most=32)
        choice("NormColumnsConfig", "vector", self.vector, (1, 2, 4, 8))
        element("NormColumnsConfig", "dtype", self.dtype, FLOATS)
        for flag in ("centred", "beta", "residual"):
            flags("NormColumnsConfig", flag, (getattr(self, flag),), 1)
        vectors("NormColumnsConfig", "vector", self.vector, self.dtype)


def norm_columns_kernel(config: NormColumnsConfig) -> gr.Kernel:
    """Sums over rows of dY * N and of dY in S parts, part s of blocks s, s + S, ... of rows; N = (X + R - mean) * rstd.

    Arguments: X (M, N), R (M, N), dY (M, N), mean (M,), rest (M,), rstd (M,), dgamma (S, N), dbeta (S, N), where mean
    and those after it are fp32. The configuration decides on some of them: R with residual, mean if it is centred, rest
    (the error that rounding left in the mean) if it is centred and of fp32, dbeta with beta. ``reduction_kernel`` over
    columns adds the parts up.
    """
    instance("norm_columns_kernel", "config", config, NormColumnsConfig)
    c = config
    wide = 32 * c.vector

    def columns(X: Any, dY: Any, rstd: Any, R: Any = None, mean: Any = None, rest: Any = None) -> dict[str, Any]:
        d = X if R is None else X + R
        for of_row in (mean, rest):
            d = d if of_row is None else d - of_row[:, None]
        sums = {"dgamma": d * rstd[:, None] * dY, "dbeta": dY}
        return {n: x.sum(0) for n, x in sums.items() if n == "dgamma" or c.beta}

    def parts_added(dgamma: Any, dbeta: Any = None) -> dict[str, Any]:
        return {n: x.sum(0) for n, x in (("dgamma", dgamma), ("dbeta", dbeta)) if x is not None}

    with gr.Kernel("norm_columns", means=columns, read=parts_added) as kernel:
        M, N = gr.sym("M", max=2**31 - 1), gr.sym("N", multiple_of=c.vector, max=2**31 - 1)
        S = gr.sym("S", min=1, max=MOST_BLOCKS_YZ)

        def matrix(name: str) -> gr.Tensor:
            layout = gr.Layout((M, N), (gr.sym(f"ld{name}", multiple_of=c.vector), 1))
            return gr.input(name, layout, c.dtype, align_bytes=c.vector * c.dtype.bits // 8)

        matrices = [matrix(n) for n in (("X", "R", "dY") if c.residual else ("X", "dY"))]
        row_major = gr.Layout((M, 1), (1, 0))
        names = ["mean"] * c.centred + ["rest"] * (c.centred and exact_mean(c.dtype)) + ["rstd"]
        stats = [gr.input(n, [M], gr.fp32).reshape(0, row_major) for n in names]
        outs = [gr.output(n, gr.row_major(S, N), gr.fp32) for n in ["dgamma"] + (["dbeta"] if c.beta else [])]
        blocks, threads = gr.blocks(gr.ceil_div(N, wide), S), gr.threads(32 * c.rows)
        b, s = blocks.indices()
        tv = gr.tv(gr.Layout((32, c.rows), (c.vector * c.rows, 1)), gr.Layout(c.vector, c.rows))
        pieces = [gr.fragment(m.name.lower(), [c.rows, wide], c.dtype, tv, on=threads) for m in matrices]
        sums = [gr.fragment(n, [c.rows, wide], gr.fp32, tv, on=threads) for n in ("g", "b")[: len(outs)]]
        of_row = [sums[0].reduced(1, n) for n in names]
        for total in sums:
            gr.init(total, 0)
        load = vector_access("ld.global.nc", c.vector, c.dtype)
        for p in gr.loop("part", gr.ceil_div(M, c.rows), start=s, step=S, unroll=4):
            for piece, m in zip(pieces, matrices, strict=True):
                gr.move(piece, m.tile([c.rows, wide])[p, b], atom=load)
            for r, stat in zip(of_row, stats, strict=True):
                gr.move(r, stat.tile([c.rows, None])[p, 0], atom=gr.atom("ld.global.nc.b32"))
            x, dy = pieces[0] + pieces[1] if c.residual else pieces[0], pieces[-1]
            for mean in of_row[:-1]:
                x = x - mean
            sums[0][:] = gr.fma(x * of_row[-1], dy, sums[0])
            if c.beta:
                sums[1][:] = sums[1] + dy
        for out, total in zip(outs, sums, strict=True):
            result = total.reduced(0, "result")
            gr.reduce("add", result, total, axis=0)
            gr.move(out.tile([1, wide])[s, b], result, atom=gr.atom("st.global.b32"))
    return kernel
