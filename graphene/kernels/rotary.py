"""Rotary position embedding of queries and keys in one pass, after the norm of each if they have one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import choice, element, flags, instance, size

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RotaryConfig", "rotary_kernel"]


@dataclass(frozen=True)
class RotaryConfig:
    """What is rotated, and the block.

    `heads`: how many heads the queries have, and the keys. `width`: elements of a head. `pairs`: "halves" turns
    elements i and i + width / 2 together, "neighbours" elements 2 i and 2 i + 1. `dtype`: of queries, keys, factors and
    results. `angle_dtype`: of the cosines and sines. `norm`: whether each head is first divided by its root mean square
    and multiplied by factors, to which an addend is added. `vector`: elements that a thread reads at once. `each`:
    heads that a thread works on, which divides both numbers of heads. `threads`: of a block. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    heads: tuple[int, int]
    width: int
    pairs: str = "halves"
    dtype: gr.DType = gr.fp16
    angle_dtype: gr.DType = gr.fp16
    norm: bool = False
    vector: int = 8
    each: int = 1
    threads: int = 128

    def __post_init__(self) -> None:
        name = "RotaryConfig"
        choice(name, "pairs", self.pairs, ("halves", "neighbours"))
        for i in range(2):
            size(name, f"heads[{i}]", self.heads[i], multiple_of=self.each, most=4096)
        size(name, "each", self.each, most=16)
        choice(name, "vector", self.vector, (1, 2, 4, 8))
        halves = self.pairs == "halves"
        size(name, "width", self.width, multiple_of=self.vector * 2 if halves else max(self.vector, 2), most=1024)
        element(name, "dtype", self.dtype, ("fp16", "bf16"))
        element(name, "angle_dtype", self.angle_dtype, ("fp16", "bf16", "fp32"))
        flags(name, "norm", (self.norm,), 1)
        size(name, "threads", self.threads, multiple_of=32, most=1024)
        if self.pairs == "neighbours":
            choice(name, "vector, of neighbours,", self.vector, (2, 4, 8))

    @property
    def parts(self) -> int:
        """The parts of a head that turn together: both halves, or the whole of it."""
        return 2 if self.pairs == "halves" else 1

    @property
    def vectors(self) -> int:
        """The vectors of a part."""
        return self.width // (self.parts * self.vector)

    @property
    def lanes(self) -> int:
        """The lanes of a head, a power of two, at most a warp."""
        return min(32, 1 << (self.vectors - 1).bit_length())

    @property
    def steps(self) -> int:
        """How many vectors of each part a lane has, `lanes` vectors apart."""
        return -(-self.vectors // self.lanes)

    @property
    def places(self) -> list[tuple[int, int]]:
        """The (step, part) of each vector that a thread has of a head."""
        return [(step, part) for step in range(self.steps) for part in range(self.parts)]


def _promise(c: RotaryConfig) -> Callable[..., dict[str, Any]]:
    def turned(x: Any, cos: Any, sin: Any, factors: Any, addend: Any, eps: Any) -> Any:
        import numpy as np

        if factors is not None:
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (factors + addend)
        half = c.width // 2
        pairs = x.reshape(*x.shape[:-1], *((2, half) if c.pairs == "halves" else (half, 2)))
        axis = -2 if c.pairs == "halves" else -1
        a, b = (np.take(pairs, i, axis) for i in range(2))
        other = np.stack([-b, a], axis).reshape(x.shape)
        return x * cos[:, :, None] + other * sin[:, :, None]

    def both(
        Q: Any, K: Any, cos: Any, sin: Any, q_factors: Any = None, k_factors: Any = None, addend: Any = 0.0,
        eps: Any = 0.0,
    ) -> dict[str, Any]:  # fmt: skip
        return {n: turned(x, cos, sin, f, addend, eps) for n, x, f in (("YQ", Q, q_factors), ("YK", K, k_factors))}

    return both


def rotary_kernel(config: RotaryConfig) -> gr.Kernel:
    """Y = H * cos + other(H) * sin for queries and keys; fp32 inside, rounded once.

    other(H) has -H of the second of each pair in the place of the first, and H of the first in that of the second. H is
    X, with `norm` X * rsqrt(mean(X^2) + eps) * (factors + addend). Arguments: Q (batch, seq, heads[0], width) and K
    (batch, seq, heads[1], width) in any strides that vectors divide, cos and sin (batch, seq, width), with a norm
    q_factors and k_factors (width,), then YQ and YK of the shapes of Q and K, dense, and with a norm addend and eps.
    """
    instance("rotary_kernel", "config", config, RotaryConfig)
    c, V = config, config.vector
    sensible = gr.Arguments(values={"eps": (1e-5, 1e-12, 0.5, 0.0), "addend": (0.0, 1.0)})
    with gr.Kernel("rotary", means=_promise(c), arguments=sensible) as kernel:
        B, S = gr.sym("B", max=65535), gr.sym("S", max=2**31 - 1)

        def align(dtype: gr.DType) -> int:
            return min(16, V * dtype.bits // 8)

        def heads(name: str, count: int) -> gr.Tensor:
            strides = gr.sym(f"{name}_B {name}_S {name}_H", multiple_of=V)
            return gr.input(name, gr.Layout((B, S, count, c.width), (*strides, 1)), c.dtype, align_bytes=align(c.dtype))

        def angles(name: str) -> gr.Tensor:
            strides = gr.sym(f"{name}_B {name}_S", multiple_of=V)
            layout = gr.Layout((B, S, c.width), (*strides, 1))
            return gr.input(name, layout, c.angle_dtype, align_bytes=align(c.angle_dtype))

        X = [heads("Q", c.heads[0]), heads("K", c.heads[1])]
        turns = [angles("cos"), angles("sin")]
        factors = [
            gr.input(f"{n}_factors", [c.width], c.dtype, align_bytes=align(c.dtype)) if c.norm else None for n in "qk"
        ]
        Y = [
            gr.output(f"Y{n}", gr.row_major(B, S, count, c.width), c.dtype, align_bytes=align(c.dtype))
            for n, count in zip("QK", c.heads, strict=True)
        ]
        addend, eps = (gr.param(n, gr.fp32) if c.norm else None for n in ("addend", "eps"))
        threads = gr.threads(c.threads)
        groups, rows = threads.tile(c.lanes), c.threads // c.lanes
        tasks = [n // c.each for n in c.heads]
        tile, task, b = gr.blocks(gr.ceil_div(S, rows), tasks[0] + tasks[1], B).indices()
        group, lane = groups.indices()
        at = tile * rows + group
        mine = [lane + (step * c.lanes + part * c.vectors) for step, part in c.places]  # the thread's vectors
        cos, sin = (
            [_read(f"{n}{i}", t[b, :, :], at, vector, c) for i, vector in enumerate(mine)]
            for n, t in zip(("cos", "sin"), turns, strict=True)
        )
        for i in range(2):
            first = task - tasks[0] if i else task
            with gr.if_(task >= tasks[0]) if i else gr.if_(task < tasks[0]):
                of = [first * c.each + h for h in range(c.each)]
                held = [
                    [_read(f"x{i}{h}{j}", X[i][b, :, head, :], at, vector, c) for j, vector in enumerate(mine)]
                    for h, head in enumerate(of)
                ]
                scale = [_factors(factors[i], addend, vector, c, f"f{i}{j}") for j, vector in enumerate(mine)]
                for head, x in zip(of, held, strict=True):
                    h = x if eps is None else _normal(x, scale, eps, groups[group], lane, c)
                    y = _turned(h, cos, sin, c)
                    out = Y[i][b, :, head, :].tile([1, V])
                    for step in range(c.steps):
                        with gr.if_((at < S) * (lane < c.vectors - step * c.lanes)):
                            for vector, value in list(zip(mine, y, strict=True))[step * c.parts :][: c.parts]:
                                gr.move(out[at, vector][0, :], value)
    return kernel


def _read(name: str, x: gr.Tensor, row: Any, vector: Any, c: RotaryConfig) -> gr.Tensor:
    """A vector of a row, zeros where there is none."""
    r = gr.alloc(name, [c.vector], x.dtype, gr.RF)
    gr.move(r, x.tile([1, c.vector])[row, vector][0, :])
    return r


def _factors(x: gr.Tensor | None, addend: Any, vector: Any, c: RotaryConfig, name: str) -> gr.Tensor | None:
    if x is None:
        return None
    r, f = gr.alloc(name, [c.vector], x.dtype, gr.RF), gr.alloc(f"{name}_", [c.vector], gr.fp32, gr.RF)
    gr.move(r, x.tile([c.vector])[vector])
    f[:] = r + addend
    return f


def _normal(x: list[gr.Tensor], scale: list[Any], eps: Any, group: Any, lane: Any, c: RotaryConfig) -> list[gr.Tensor]:
    """The head x that a group holds as x * rsqrt(mean(x^2) + eps) * scale."""
    total, own = gr.alloc("total", [], gr.fp32, gr.RF), gr.alloc("own", [], gr.fp32, gr.RF)
    square = gr.alloc("square", [c.vector], gr.fp32, gr.RF)
    gr.init(total, 0)
    for (step, _), v in zip(c.places, x, strict=True):
        square[:] = v * v
        gr.reduce("add", own, square, axis=0)
        left = c.vectors - step * c.lanes
        # Lanes beyond a part have read some of the next one.
        total[...] = total + (own if left >= c.lanes else gr.where(lane < left, own, 0))
    if c.lanes > 1:
        gr.allreduce("add", total, on=group)
    total[...] = gr.rsqrt(total * (1 / c.width) + eps)
    made = []
    for i, (v, f) in enumerate(zip(x, scale, strict=True)):
        h = gr.alloc(f"h{i}", [c.vector], gr.fp32, gr.RF)
        h[:] = v * total * f
        made.append(h)
    return made


def _turned(h: list[gr.Tensor], cos: list[gr.Tensor], sin: list[gr.Tensor], c: RotaryConfig) -> list[gr.Tensor]:
    y = [gr.alloc(f"y{i}", [c.vector], c.dtype, gr.RF) for i in range(len(h))]
    for v in range(0, len(h), c.parts):
        if c.pairs == "halves":
            y[v][:] = h[v] * cos[v] - h[v + 1] * sin[v]
            y[v + 1][:] = h[v + 1] * cos[v + 1] + h[v] * sin[v + 1]
            continue
        for i in range(0, c.vector, 2):
            y[v][i] = h[v][i] * cos[v][i] - h[v][i + 1] * sin[v][i]
            y[v][i + 1] = h[v][i + 1] * cos[v][i + 1] + h[v][i] * sin[v][i + 1]
    return y
