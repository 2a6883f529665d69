"""The choice of a tile for products of groups."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import graphene as gr
from graphene.kernels.arguments import size
from graphene.kernels.gemm.grouped import MOST_GROUPS, GroupedConfig, grouped_kernel
from graphene.select.sm90_time import has_wgmma

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphene import Kernel
    from graphene.select.device import Device

__all__ = ["select_grouped", "usual_grouped"]


def select_grouped(
    M: int,
    N: int,
    groups: int,
    dtype: gr.DType = gr.fp16,
    *,
    along_k: bool = False,
    b_as_nk: bool = False,
    align: tuple[int, int, int] = (16, 16, 16),
    device: Device | None = None,
) -> GroupedConfig:
    """The configuration for results of M rows, of all groups together unless they lie along k, and N columns.

    Tiles have no more rows than a group has in the mean, down to 32, of gemm_sm90 64. `align` is as in GroupedConfig.
    `device`: the one that it is for; by default any. On an H200 gemm_sm90 on 128 x 256 took 0.56 to 0.88 of the time of
    gemm_sm80 for 128 and more rows of a group, and as long on 64 x 256 for 8, where a product only waits for B. Raises
    VerifyError KERNEL_ARGUMENT.
    """
    for name, value in (("M", M), ("N", N), ("groups", groups)):
        size("select_grouped", name, value, least=0)
    rows = M if along_k else -(-M // max(groups, 1))
    if device is not None and has_wgmma(device) and fits_wgmma(M, N, groups, along_k, align):
        BM, BN = 64 if rows <= 64 else 128, next((n for n in (64, 128) if n >= N), 256)
        warps, stages = (BM // 16, 1), 4 if BN == 256 else 6
        return GroupedConfig(dtype, along_k, b_as_nk, align, (BM, BN, 64), warps, stages, "gemm_sm90")
    BM = next((n for n in (32, 64) if rows <= n), 128)
    BN = 64 if N <= 64 else 128
    warps = (1, 4) if BM == 32 and BN == 128 else (2, 2)
    return GroupedConfig(dtype, along_k, b_as_nk, align, (BM, BN, 32), warps, 4)


def fits_wgmma(M: int, N: int, groups: int, along_k: bool, align: tuple[int, int, int]) -> bool:
    """Whether gemm_sm90 computes groups of rows: lines of 16 bytes, and no more groups than its tables have."""
    return not along_k and M > 0 and N > 0 and min(align[:2]) == 16 and groups <= MOST_GROUPS - 2


def usual_grouped() -> Iterator[tuple[str, str, Callable[[], Kernel]]]:
    """Function, problem and maker of kernels, for layers of usual mixtures of experts, and for odd ones."""
    for M, N, groups in ((8192, 14336, 8), (65536, 2048, 64), (64, 1536, 128), (100, 40, 3)):
        kinds: tuple[tuple[gr.DType, dict[str, bool]], ...]
        kinds = ((gr.fp16, {}), (gr.bf16, {"b_as_nk": True}), (gr.fp16, {"along_k": True}))
        for dtype, options in kinds:
            config = select_grouped(M, N, groups, dtype, **options)  # type: ignore[arg-type]
            problem = f"{M}x{N} of {groups} groups {dtype} {options or ''}"
            yield "grouped", problem.rstrip(), functools.partial(grouped_kernel, config)
