"""The choice of a tile for products with weights of 4 or 8 bits."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.errors import GrapheneError
from graphene.kernels.arguments import size
from graphene.kernels.gemm.weights import TOKENS, WeightsConfig, weights_kernel
from graphene.select.device import H200, Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphene import Kernel

__all__ = ["select_weights", "usual_weights"]

SHARED_OF_SM = 228 * 1024  # of which blocks share what they do not use
BESIDE = 1.5  # the time of a block's start and end, in stages


def select_weights(
    M: int,
    N: int,
    K: int,
    dtype: gr.DType = gr.fp16,
    *,
    bits: int = 4,
    group: int = 128,
    zeros: bool = False,
    bias: bool = False,
    device: Device = H200,
) -> WeightsConfig:
    """The configuration for X (M,K) and weights (N,K) of 4 or 8 bits.

    A block has up to 64 activations. Of the ways to share out rows and k among warps and blocks it takes the one whose
    blocks go through the fewest stages, one after the other on a multiprocessor: an estimate, which has not been
    measured. Clusters need sm_90. Raises VerifyError KERNEL_ARGUMENT.
    """
    for name, value in (("M", M), ("N", N), ("K", K)):
        size("select_weights", name, value, least=0)
    eights = max(-(-M // TOKENS), 1)
    tokens = next((t for t in (1, 2, 4) if t >= eights), 8)
    common: dict[str, Any] = {"dtype": dtype, "bits": bits, "group": group, "zeros": zeros, "bias": bias}
    clusters = (1, 2, 4, 8) if device.family >= "sm_90" and device.family.startswith("sm_9") else (1,)
    most = min(SHARED_OF_SM, device.shared_bytes)
    best: tuple[float, WeightsConfig] | None = None
    few: tuple[tuple[int, tuple[int, int]], ...] = ((2, (2, 4)), (2, (4, 2)), (2, (1, 8)), (1, (1, 8)))
    for tiles, warps in few if tokens < 8 else few[1:2]:
        for stages in (4, 3, 2):
            try:
                plain = WeightsConfig(**common, tokens=tokens, tiles=tiles, warps=warps, stages=stages)
            except GrapheneError:  # too much memory
                continue
            if plain.shared_bytes <= most:
                break
        else:
            continue
        at_once = max(min(SHARED_OF_SM // plain.shared_bytes, 2), 1) * device.sm_count
        blocks = -(-N // plain.rows) * -(-eights // tokens)
        for cluster in clusters:
            each = -(-K // (plain.depth * cluster))
            waves = -(-blocks * cluster // at_once)
            # A stage of the rows of many warps is larger, and activations are read again for each block of rows.
            read = plain.rows * bits / 8 + TOKENS * tokens * 2
            time = waves * (each + BESIDE) * read * plain.depth
            if best is None or time < best[0]:
                best = time, replace(plain, cluster=cluster)
    return WeightsConfig(**common, tiles=1, warps=(1, 2), stages=2) if best is None else best[1]


def usual_weights() -> Iterator[tuple[str, str, Callable[[], Kernel]]]:
    """Function, problem and maker of kernels, for problems of usual models, and for odd ones."""
    for M, N, K in ((1, 8192, 8192), (16, 4096, 4096), (100, 11008, 4096), (3, 80, 320)):
        for dtype, bits, group, zeros in ((gr.fp16, 4, 128, False), (gr.bf16, 4, 64, True), (gr.bf16, 8, 64, False)):
            config = select_weights(M, N, K, dtype, bits=bits, group=group, zeros=zeros)
            kind = f"{bits} bits, groups of {group}{', zero points' * zeros}"
            yield "weights", f"{M}x{N}x{K} {dtype}, {kind}", functools.partial(weights_kernel, config)
