"""Layers that language models spend their time in: weights of 4 bits, a mixture of experts. This needs no GPU.

Each kernel is called on the simulator, compared with NumPy in fp64, and held to its promise by ``check()``.
"""

from __future__ import annotations

import numpy as np

from graphene.kernels.gemm.grouped import GroupedConfig, grouped_kernel
from graphene.kernels.gemm.weights import WeightsConfig, unpacked, weights_kernel

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


# A linear layer whose weights are integers of 4 bits less 8, with a scale for each group of 128 along k.
tokens, n, k, group = 3, 48, 256, 128
weight = rng.integers(-(2**31), 2**31, (n // 16, k // 64, 128)).astype(np.int32)  # packed: any bits are weights
x, scale, y = normal(tokens, k), normal(k // group, n), np.zeros((tokens, n), np.float16)
kernel = weights_kernel(WeightsConfig(tiles=1, warps=(1, 2), stages=2))
kernel(X=x, weight=weight, scale=scale, Y=y)
matrix = (unpacked(weight, 4) - 8.0) * np.repeat(scale.astype(np.float64), group, axis=0).T
print(f"4 bits: error {error(y, x @ matrix.T):.1e}; {kernel.check()}")

# Rows of a matrix, sorted by expert; the experts' rows end where `offsets`, a tensor on the device, says.
rows, offsets = 70, np.array([0, 33, 37, 60], np.int32)  # the first expert has none, the last rows have no expert
a, experts, c = normal(rows, 40), normal(len(offsets), 40, 24), np.zeros((rows, 24), np.float16)
kernel = grouped_kernel(GroupedConfig(tile=(32, 32, 32), warps=(2, 1), stages=2))
kernel(a, experts, offsets, c)
want, begin = np.zeros((rows, 24)), 0
for expert, end in enumerate(offsets):
    want[begin:end] = a[begin:end].astype(np.float64) @ experts[expert].astype(np.float64)
    begin = end
print(f"experts: error {error(c, want):.1e}; {kernel.check()}")

# The same in persistent blocks of Hopper, whose consumers multiply by wgmma while a producer copies by TMA.
kernel = grouped_kernel(GroupedConfig(tile=(64, 32, 64), warps=(4, 1), stages=2, kernel="gemm_sm90"))
kernel(a, experts, offsets, c)
print(f"experts on Hopper: error {error(c, want):.1e}; wgmma in its source: {'wgmma' in kernel.cuda_source('sm_90a')}")
