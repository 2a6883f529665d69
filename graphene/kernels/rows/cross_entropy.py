"""Cross-entropy of rows of logits and its gradient: the logits are read once, and nothing of their size is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import FLOATS, element, flags, instance, vectors
from graphene.kernels.rows.block import Rows, declare_rows
from graphene.kernels.rows.tile import RowTile

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CrossEntropyConfig", "cross_entropy_backward_kernel", "cross_entropy_kernel"]


@dataclass(frozen=True)
class CrossEntropyConfig:
    """The tile, the type of the logits, and whether the loss has a smoothed part and a part of z.

    `smoothing`: a part of the target's weight is spread over all classes. `z`: the loss has a multiple of the square of
    log(sum(exp(x))). Both factors are arguments. Raises VerifyError KERNEL_ARGUMENT.
    """

    tile: RowTile
    dtype: gr.DType = gr.fp16
    smoothing: bool = False
    z: bool = False

    def __post_init__(self) -> None:
        instance("CrossEntropyConfig", "tile", self.tile, RowTile)
        element("CrossEntropyConfig", "dtype", self.dtype, FLOATS)
        for flag in ("smoothing", "z"):
            flags("CrossEntropyConfig", flag, (getattr(self, flag),), 1)
        vectors("CrossEntropyConfig", "tile.vector", self.tile.vector, self.dtype)


def _log_sum(x: Any) -> Any:
    """log(sum(exp(x))) of each row."""
    import numpy as np

    most = x.max(1, initial=-np.inf)
    most = np.where(most == -np.inf, 0, most)
    return np.log(np.exp(x - most[:, None]).sum(1)) + most


def _loss(X: Any, target: Any, ignored: Any, smoothing: Any = None, z: Any = None) -> dict[str, Any]:
    """The promise of ``cross_entropy_kernel``."""
    import numpy as np

    classes = X.shape[1]
    target = np.asarray(target, np.int64)
    inside = (target >= 0) & (target < classes)
    lse = _log_sum(X)
    own = np.take_along_axis(X, np.where(inside, target, 0)[:, None], 1)[:, 0]
    loss = lse - own
    if smoothing is not None:
        loss = loss * (1 - smoothing) + (lse - X.sum(1) / classes) * smoothing
    if z is not None:
        loss = loss + lse * lse * z
    loss = np.where(target == ignored, 0, np.where(inside, loss, np.nan))
    return {"loss": loss, "lse": np.where((target == ignored) | inside, lse, np.nan)}


def _gradient(
    X: Any, target: Any, lse: Any, g: Any, ignored: Any, smoothing: Any = None, z: Any = None
) -> dict[str, Any]:
    """The promise of ``cross_entropy_backward_kernel``."""
    import numpy as np

    target = np.asarray(target, np.int64)[:, None]
    g, lse = g[:, None], lse[:, None]
    dX = np.exp(X - lse) * (g if z is None else g * (1 + 2 * z * lse))
    if smoothing is not None:
        dX = dX - g * smoothing / X.shape[1]
    of_target = dX - (g if smoothing is None else g * (1 - smoothing))
    dX = np.where(np.arange(X.shape[1]) == target, of_target, dX)
    return {"dX": np.where(target == ignored, 0, dX)}


def _targets(args: Any, rng: Any) -> None:
    """For a check: classes as targets, ignored ones, and numbers outside the classes; and the logits' logarithms."""
    import numpy as np

    x = np.asarray(args["X"], np.float64)
    rows, classes = x.shape
    ignored = int(args["ignored"])  # and numbers whose lower half is that of the ignored one
    others = rng.choice([-1, classes, -(2**40), 2**40, ignored, ignored - 2**32, ignored + 2**32], rows)
    args["target"][...] = np.where(rng.random(rows) < 0.3, others, (np.arange(rows) * 7 + 3) % classes)
    if "lse" in args and "g" in args:
        with np.errstate(all="ignore"):
            args["lse"][...] = _log_sum(x)


SENSIBLE = gr.Arguments(_targets, values={"ignored": (-100, 3), "smoothing": (0.1, 0.0, 0.5), "z": (1e-4, 0.0, 0.25)})


def _power(distance: Any) -> Any:
    return gr.exp2(distance * math.log2(math.e), ftz=True)


class _Targets:
    """What a kernel knows of its rows' targets, for each row of which the executing thread holds a part."""

    def __init__(self, c: CrossEntropyConfig, rows: Rows, X: gr.Tensor, target: gr.Tensor, ignored: Any) -> None:
        t = c.tile
        (tid,) = rows.threads.indices()
        below = t.rows // t.each
        self.first, self.X, self.width = tid % t.threads == 0, X, t.width
        self.local = [tid // t.threads + below * e for e in range(t.each)]
        self.row = [rows.block * t.rows + i for i in self.local]
        self.block, self.rows = rows.block, t.rows
        self.M = X.shape[0]
        self.target = [self.of(target, e) for e in range(t.each)]
        self.ignored = [r == ignored for r in self.target]

    def of(self, x: gr.Tensor, e: int) -> gr.Tensor:
        """An element (M,) of the thread's row number e; 0 past the last row."""
        return gr.load(x.tile([self.rows])[self.block][self.local[e]])

    def own(self, e: int) -> gr.Tensor:
        """The logit of the target; NaN if the target is no class."""
        own, t = gr.let(f"own{e}", math.nan, gr.fp32), self.target[e]
        with gr.if_(self.row[e] < self.M), gr.if_((t >= 0) & (t < self.width)):
            own[...] = gr.load(self.X[self.row[e], gr.index(t, min=0, max=self.width - 1)])
        return own

    def firsts(self) -> Iterator[int]:
        """Each row, in a branch of its first thread."""
        for e in range(len(self.row)):
            with gr.if_(self.first), gr.if_(self.row[e] < self.M):
                yield e


def cross_entropy_kernel(config: CrossEntropyConfig) -> gr.Kernel:
    """Loss = (1 - smoothing) * (lse - x[target]) + smoothing * (lse - mean(x)) + z * lse^2, lse = log(sum(exp(x))).

    The arguments are X (M, width), target (M,) of i64, loss (M,) and lse (M,) of fp32, smoothing and z if the
    configuration has them, and ignored. Rows are read once: each thread keeps the maximum of what it has seen, and the
    sum of powers relative to it (online softmax). The loss is 0 where the target is `ignored`; where it is no class,
    loss and lse are NaN.
    """
    instance("cross_entropy_kernel", "config", config, CrossEntropyConfig)
    c, tile = config, config.tile
    with gr.Kernel("cross_entropy", means=_loss, arguments=SENSIBLE) as kernel:
        M = gr.sym("M", max=2**31 - 1)
        X = declare_rows(gr.input, "X", M, tile, c.dtype)
        target = gr.input("target", [M], gr.i64)
        loss, lses = gr.output("loss", [M], gr.fp32), gr.output("lse", [M], gr.fp32)
        smoothing = gr.param("smoothing", gr.fp32) if c.smoothing else None
        z = gr.param("z", gr.fp32) if c.z else None
        ignored = gr.param("ignored", gr.i64)
        rows = Rows(tile, M)
        (x,) = rows.keep(X)
        most, more, base, total, added = (
            rows.v.reduced(1, n, lanes=True) for n in ("most", "more", "base", "total", "added")
        )
        row_most, row_total, row_added = (rows.per_row(n) for n in ("row_most", "row_total", "row_added"))
        gr.init(most, -gr.inf)
        gr.init(total, 0)
        gr.init(added, 0)
        for part in rows.parts():
            if c.smoothing:
                part.v[:] = part.inside(part.take(x))
                gr.reduce("add", added, part.v, axis=1, accumulate=True)
            part.v[:] = part.inside(part.take(x), -gr.inf)
            more[:] = most
            gr.reduce("max", more, part.v, axis=1, accumulate=True)
            base[:] = gr.where(more == -gr.inf, 0, more)
            total[:] = total * _power(most - base)
            for e, v in rows.values(part):
                total.values[e][...] = total.values[e] + _power(v - base.values[e])
            most[:] = more
        gr.reduce("max", row_most, most, axis=1)
        for e in range(tile.each):
            whole = gr.let(f"whole{e}", gr.where(row_most.values[e] == -gr.inf, 0, row_most.values[e]))
            total.values[e][...] = total.values[e] * _power(most.values[e] - whole)
        gr.reduce("add", row_total, total, axis=1)
        if c.smoothing:
            gr.reduce("add", row_added, added, axis=1)
        targets = _Targets(c, rows, X, target, ignored)
        for e in targets.firsts():
            own = targets.own(e)
            lse = gr.let(f"lse{e}", gr.log(row_total.values[e], accuracy="full") + row_most.values[e])
            value = lse - own
            if smoothing is not None:
                value = value * (1 - smoothing) + (lse - row_added.values[e] * (1 / tile.width)) * smoothing
            value = value if z is None else value + lse * lse * z
            loss[targets.row[e]] = gr.where(targets.ignored[e], 0, value)
            lses[targets.row[e]] = gr.where(targets.ignored[e], lse, gr.where(own == own, lse, own))
    return kernel


def cross_entropy_backward_kernel(config: CrossEntropyConfig) -> gr.Kernel:
    """DX = g * ((1 + 2 z lse) * exp(X - lse) - smoothing / width - (1 - smoothing) * [column = target]).

    The arguments are X (M, width), target (M,) of i64, lse (M,) and g (M,) of fp32, dX (M, width), smoothing and z if
    the configuration has them, and ignored. Rows whose target is `ignored` are 0. X is read once; the target's element
    is written again behind a barrier.
    """
    instance("cross_entropy_backward_kernel", "config", config, CrossEntropyConfig)
    c, tile = config, config.tile
    with gr.Kernel("cross_entropy_backward", means=_gradient, arguments=SENSIBLE) as kernel:
        M = gr.sym("M", max=2**31 - 1)
        X = declare_rows(gr.input, "X", M, tile, c.dtype)
        target, lses = gr.input("target", [M], gr.i64), gr.input("lse", [M], gr.fp32)
        g = gr.input("g", [M], gr.fp32)
        dX = declare_rows(gr.output, "dX", M, tile, c.dtype)
        smoothing = gr.param("smoothing", gr.fp32) if c.smoothing else None
        z = gr.param("z", gr.fp32) if c.z else None
        ignored = gr.param("ignored", gr.i64)
        rows = Rows(tile, M)
        targets = _Targets(c, rows, X, target, ignored)
        (x,) = rows.keep(X)
        lse = [targets.of(lses, e) for e in range(tile.each)]
        weight = [gr.let(f"weight{e}", gr.where(targets.ignored[e], 0, targets.of(g, e))) for e in range(tile.each)]
        factor = [w if z is None else gr.let("factor", w * (1 + 2 * z * r)) for w, r in zip(weight, lse, strict=True)]
        spread = [None if smoothing is None else gr.let("spread", w * smoothing * (1 / tile.width)) for w in weight]

        skipped = [gr.let("skipped", gr.where(i, 1, 0), gr.i32) for i in targets.ignored]

        def value(v: Any, e: int) -> Any:
            p = _power(v - lse[e]) * factor[e]
            return gr.where(skipped[e] != 0, 0, p if smoothing is None else p - spread[e])

        for part in rows.parts():
            part.v[:] = part.take(x)
            for e, v in rows.values(part):
                v[...] = value(v, e)
            part.store(dX, part.v)
        gr.barrier()
        for e in targets.firsts():
            own = targets.own(e)
            last = value(own, e) - (weight[e] if smoothing is None else weight[e] * (1 - smoothing))
            t = targets.target[e]
            with gr.if_((t >= 0) & (t < tile.width)):
                dX[targets.row[e], gr.index(t, min=0, max=tile.width - 1)] = gr.where(targets.ignored[e], 0, last)
    return kernel
