"""The choice of a block for rotary embeddings."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import graphene as gr
from graphene.kernels.arguments import align, size
from graphene.kernels.rotary import RotaryConfig, rotary_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphene import Kernel

__all__ = ["select_rotary", "usual_rotaries"]

MANY = 1 << 10  # tokens; from these on a thread works on several heads, for which it reads cosines and sines once


def select_rotary(
    tokens: int,
    heads: tuple[int, int],
    width: int,
    dtype: gr.DType = gr.fp16,
    *,
    pairs: str = "halves",
    angle_dtype: gr.DType | None = None,
    norm: bool = False,
    align_bytes: int = 16,
) -> RotaryConfig:
    """The configuration for `heads` heads of queries and of keys of `width` elements, for `tokens` tokens.

    `align_bytes`: divides addresses and strides in bytes, also of cosines and sines. The other options are those of
    RotaryConfig. Raises VerifyError KERNEL_ARGUMENT.
    """
    size("select_rotary", "tokens", tokens, least=0)
    size("select_rotary", "width", width, multiple_of=2)
    align("select_rotary", "align_bytes", align_bytes, dtype.bits // 8)
    angle = angle_dtype or dtype
    vector = math.gcd(width // 2 if pairs == "halves" else width, align_bytes * 8 // dtype.bits, 8)
    vector = (
        math.gcd(vector, 16 * 8 // angle.bits) if pairs == "halves" else max(2, math.gcd(vector, 128 // angle.bits))
    )
    common = math.gcd(*heads)
    each = math.gcd(common, 4) if tokens >= MANY else 1
    return RotaryConfig(heads, width, pairs, dtype, angle, norm, vector, each)


def usual_rotaries() -> Iterator[tuple[str, str, Callable[[], Kernel]]]:
    """Function, problem and maker of kernels, for problems of usual models, and for odd ones."""
    for tokens, heads, width, norm in ((4096, (16, 8), 128, True), (1, (32, 8), 64, False), (300, (6, 3), 80, False),
                                       (5000, (4, 1), 256, True), (70, (2, 2), 20, True)):  # fmt: skip
        for dtype, pairs in ((gr.fp16, "halves"), (gr.bf16, "neighbours")):
            config = select_rotary(tokens, heads, width, dtype, pairs=pairs, norm=norm)
            problem = f"{tokens} tokens, {heads[0]} and {heads[1]} heads of {width}, {dtype}, {pairs}{', norm' * norm}"
            yield "rotary", problem, functools.partial(rotary_kernel, config)
