"""The choice of a tile for products with weights of 4 or 8 bits."""

from __future__ import annotations

import functools
import math
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

__all__ = ["estimated_us", "select_weights", "usual_weights"]

SHARED_OF_SM = 228 * 1024  # bytes of shared memory of a multiprocessor, for all of its blocks
RESERVED_BYTES = 1024  # of shared memory, beside what a block asks for
REGISTERS_OF_SM, REGISTERS = 65536, 128  # of a multiprocessor; about as many as a thread has
THREADS_OF_SM = 2048
# Tiles of 16 rows of a warp, warps along rows and k, and the most stages. The first is the usual one.
SHAPES = (
    (2, (1, 4), 4), (2, (1, 8), 4), (1, (2, 4), 4), (2, (2, 4), 3), (1, (4, 2), 4), (2, (4, 2), 4), (1, (4, 1), 6),
)  # fmt: skip
# The estimate is fitted to 224 figures of an H200 (int4 and fp8; 1, 16 and 64 tokens). Its error is 12%, as the root of
# the mean square. The first numbers are microseconds: of a launch, of a block's beginning, of each block of a cluster,
# and of the end for each 1000 sums of the block's warps.
LAUNCH_US, BLOCK_US, CLUSTER_US, SUMS_US = 3.1, 2.4, 1.1, 3.9
LATENCY_US = 1.4  # from the start of a copy to its arrival
ISSUED = 0.63  # the share of a scheduler's cycles in which it issues an instruction
OF_STAGE, OF_WORD, OF_PRODUCT = 105, 8.5, 0.8  # instructions of a warp for a stage, a word of weights and a product
OF_ACTIVATIONS = 0.4  # the time of a byte from the L2 cache, relative to that of a byte from memory
REACHED = 1.08  # the share of Device.dram_bytes that is reached


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

    A block has up to 64 activations. Of the ways to share out rows and k among warps and blocks it takes the one that
    ``estimated_us`` says to be the fastest. Clusters need sm_90. Raises VerifyError KERNEL_ARGUMENT.
    """
    for name, value in (("M", M), ("N", N), ("K", K)):
        size("select_weights", name, value, least=0)
    eights = max(-(-M // TOKENS), 1)
    tokens = next((t for t in (1, 2, 4) if t >= eights), 8)
    common: dict[str, Any] = {"dtype": dtype, "bits": bits, "group": group, "zeros": zeros, "bias": bias}
    clusters = (1, 2, 4) if device.family >= "sm_90" and device.family.startswith("sm_9") else (1,)
    most = min(SHARED_OF_SM, device.shared_bytes)
    best: tuple[float, WeightsConfig] | None = None
    for tiles, warps, stages in SHAPES:
        for fewer in range(stages - 1):
            try:
                plain = WeightsConfig(**common, tokens=tokens, tiles=tiles, warps=warps, stages=stages - fewer)
            except GrapheneError:  # too much memory
                continue
            if plain.shared_bytes > most:
                continue
            for cluster in clusters:
                us = estimated_us(plain, cluster, M, N, K, device)
                if best is None or us < best[0]:
                    whole = N % plain.rows == 0 and K % plain.depth == 0 and K > 0
                    best = us, replace(plain, cluster=cluster, whole=whole)
            break
    return WeightsConfig(**common, tiles=1, warps=(1, 2), stages=2) if best is None else best[1]


def estimated_us(c: WeightsConfig, cluster: int, M: int, N: int, K: int, device: Device) -> float:
    """The microseconds of a product on a configuration, with `cluster` blocks in a cluster: an estimate for choosing.

    What counts is the multiprocessor with the most blocks. Each of them takes as long as its instructions or its bytes,
    whichever is longer. Together they take at least as long as the number of copies that may be on their way allows.
    """
    threads = 32 * c.warps[0] * c.warps[1]
    at_once = min(
        SHARED_OF_SM // (c.shared_bytes + RESERVED_BYTES), REGISTERS_OF_SM // (REGISTERS * threads),
        THREADS_OF_SM // threads,
    )  # fmt: skip
    blocks = -(-max(N, 1) // c.rows) * -(-max(M, 1) // (TOKENS * c.tokens)) * cluster
    each = -(-blocks // device.sm_count)  # blocks of the fullest multiprocessor
    together = max(min(each, at_once), 1)
    stages = math.ceil(math.ceil(K / c.depth) / cluster)
    weights, activations = c.rows * c.depth * c.bits / 8, TOKENS * c.tokens * c.depth * 2
    clock = device.clock_ghz * 1e3  # cycles in a microsecond
    instructions = OF_STAGE + OF_WORD * c.tiles * 2 * c.words + OF_PRODUCT * TOKENS * c.tiles * c.tokens
    issue_us = stages * c.warps[0] * c.warps[1] * instructions / (4 * ISSUED * clock)
    bytes_a_us = device.dram_bytes * REACHED * clock
    memory_us = stages * (weights + OF_ACTIVATIONS * activations) / bytes_a_us
    copies_us = LATENCY_US * stages * each / (together * (c.stages - 1))
    end_us = SUMS_US * c.tokens * c.warps[1] * c.rows / 1e3
    cluster_us = CLUSTER_US * cluster if cluster > 1 else 0
    rounds = -(-each // together)
    return LAUNCH_US + BLOCK_US * rounds + max(each * max(issue_us, memory_us), copies_us) + cluster_us + end_us


def usual_weights() -> Iterator[tuple[str, str, Callable[[], Kernel]]]:
    """Function, problem and maker of kernels, for problems of usual models, and for odd ones."""
    for M, N, K in ((1, 8192, 8192), (16, 4096, 4096), (100, 11008, 4096), (3, 80, 320)):
        for dtype, bits, group, zeros in ((gr.fp16, 4, 128, False), (gr.bf16, 4, 64, True), (gr.bf16, 8, 64, False)):
            config = select_weights(M, N, K, dtype, bits=bits, group=group, zeros=zeros)
            kind = f"{bits} bits, groups of {group}{', zero points' * zeros}"
            yield "weights", f"{M}x{N}x{K} {dtype}, {kind}", functools.partial(weights_kernel, config)
