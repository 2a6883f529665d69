"""Any pointwise function of tensors that broadcast against each other, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import _core
from graphene.expressions import Expression
from graphene.kernels.access import vector_access
from graphene.kernels.arguments import MOST_BLOCKS_YZ, choice, element, flags, instance, size, vectors
from graphene.kernels.arguments import function as check_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ElementwiseConfig", "elementwise_kernel"]

_TYPES = ("fp16", "bf16", "fp32", "tf32", "fp8e4m3", "fp8e5m2", "i8", "u8", "i16", "u16", "i32", "u32")


@dataclass(frozen=True)
class ElementwiseConfig:
    """The operands' types, and the block.

    `dtypes`: the inputs' types. `spread`: for each input, whether it has one value for the whole last dimension. A
    block has `rows` rows of `threads` threads side by side along the last dimension, each with `vectors` vectors of
    `vector` neighbouring elements. Raises VerifyError KERNEL_ARGUMENT.
    """

    dtypes: tuple[gr.DType, ...]
    out_dtype: gr.DType
    spread: tuple[bool, ...]
    threads: int = 128
    rows: int = 1
    vector: int = 8
    vectors: int = 2

    def __post_init__(self) -> None:
        name = "ElementwiseConfig"
        check_types(name, self.dtypes, self.out_dtype)
        flags(name, "spread", self.spread, len(self.dtypes))
        size(name, "threads", self.threads, most=1024)
        size(name, "rows", self.rows, most=1024)
        size(name, "threads * rows", self.threads * self.rows, multiple_of=32, most=1024)
        choice(name, "vector", self.vector, (1, 2, 4, 8, 16))
        whole = [t for t, spread in zip(self.dtypes, self.spread, strict=True) if not spread]
        vectors(name, "vector", self.vector, *whole, self.out_dtype)
        size(name, "vectors", self.vectors, most=16)


def check_types(name: str, dtypes: Any, out_dtype: gr.DType) -> None:
    if not isinstance(dtypes, (tuple, list)):
        want = "want: the inputs' types, such as (gr.fp16, gr.fp16)"
        _core.fail("KERNEL_ARGUMENT", f"{name}: dtypes are not a tuple", [want, f"got: {dtypes!r}"])
    for i, dtype in enumerate(dtypes):
        element(name, f"dtypes[{i}]", dtype, _TYPES)
    element(name, "out_dtype", out_dtype, _TYPES)


def elementwise_kernel(function: Callable[..., Any], config: ElementwiseConfig) -> gr.Kernel:
    """Out = function(x0, x1, ...), element by element, rounded once.

    `function` takes registers and returns a pointwise expression, such as ``lambda x, y: gr.max(x + y, 0)``; 8- and
    16-bit floats are computed in fp32. The arguments are x0, x1, ... of shape (B, M, N), contiguous along the last
    dimension, or (B, M) if spread along it; then out (B, M, N), contiguous. A stride of 0 repeats an input along B or
    M. Raises VerifyError KERNEL_ARGUMENT, also for a function that does not take the inputs or returns no expression.
    """
    name = "elementwise_kernel"
    instance(name, "config", config, ElementwiseConfig)
    given = [f"x{i}" for i in range(len(config.dtypes))]
    of = "of the inputs, such as lambda x, y: gr.max(x + y, 0)"
    check_function(name, "function", function, given, of)
    c = config
    part = c.threads * c.vector * c.vectors

    def broadcast(out: Any, **xs: Any) -> dict[str, Any]:
        import numpy as np

        given = (xs[f"x{i}"] for i in range(len(c.dtypes)))
        value = function(*(x[..., None] if spread else x for x, spread in zip(given, c.spread, strict=True)))
        return {"out": np.broadcast_to(value, out.shape)}

    with gr.Kernel("elementwise", means=broadcast) as kernel:
        B, M = gr.sym("B", max=MOST_BLOCKS_YZ), gr.sym("M", max=2**31 - 1)
        N = gr.sym("N", multiple_of=c.vector, max=2**31 - 1)
        xs = [_input(c, i, (B, M, N)) for i in range(len(c.dtypes))]
        out = gr.output("out", gr.row_major(B, M, N), c.out_dtype, align_bytes=c.vector * c.out_dtype.bits // 8)
        across = gr.ceil_div(N, part)
        blocks = gr.blocks(gr.ceil_div(M, c.rows) * across, B)
        threads = gr.threads(c.threads * c.rows)
        i, b = blocks.indices()
        at = (i // across, i % across)  # a tile of rows, a tile of columns
        thread = gr.Layout((c.threads, c.rows), (c.vector * c.rows, 1))
        tv = gr.tv(thread, gr.Layout((c.vector, c.vectors), (c.rows, c.threads * c.vector * c.rows)))
        y = gr.fragment("y", [c.rows, part], c.out_dtype, tv, on=threads)
        held = []
        for x, spread in zip(xs, c.spread, strict=True):
            if spread:
                r = y.reduced(1, "x", x.dtype)
                column = x[b, :].reshape(0, gr.Layout((M, 1), (1, 0)))
                gr.move(r, column.tile([c.rows, 1])[at[0], 0], atom=vector_access("ld.global.nc", 1, x.dtype))
            else:
                r = gr.fragment("x", [c.rows, part], x.dtype, tv, on=threads)
                gr.move(r, x[b, :, :].tile([c.rows, part])[at], atom=vector_access("ld.global.nc", c.vector, x.dtype))
            held.append(r)
        value = function(*held)
        if isinstance(value, bool) or not isinstance(value, (gr.Tensor, Expression, int, float)):
            want = "want: an expression of the inputs, or a number"
            _core.fail("KERNEL_ARGUMENT", f"{name}: the function gives something else", [want, f"got: {value!r}"])
        y[:] = value
        gr.move(out[b, :, :].tile([c.rows, part])[at], y, atom=vector_access("st.global", c.vector, c.out_dtype))
    return kernel


def _input(c: ElementwiseConfig, i: int, shape: tuple[Any, Any, Any]) -> gr.Tensor:
    name, width = f"x{i}", 1 if c.spread[i] else c.vector
    strides = gr.sym(f"{name}_B {name}_M", multiple_of=width)
    layout = gr.Layout(shape[:2], strides) if c.spread[i] else gr.Layout(shape, (*strides, 1))
    return gr.input(name, layout, c.dtypes[i], align_bytes=width * c.dtypes[i].bits // 8)
