"""The choice of how a block holds rows, by their sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphene.kernels.arguments import FLOATS, align, element, size
from graphene.kernels.rows.tile import RowTile

if TYPE_CHECKING:
    import graphene as gr

__all__ = ["select_tile"]


def select_tile(
    rows: int,
    width: int,
    dtype: gr.DType,
    tensors: int = 1,
    columns: int = 0,
    align_bytes: int = 16,
    shared_bytes: int = 99 * 1024,
    dense_bytes: int = 0,
    gradient: bool = False,
) -> RowTile:
    """The tile for `rows` rows of `width` elements in `tensors` matrices, with `columns` vectors of factors or addends.

    `align_bytes`: divides addresses and row strides in bytes. `shared_bytes`: the most shared memory of a block.
    `dense_bytes`: divides addresses, if no matrix has gaps between rows; else 0. `gradient`: whether the kernel
    computes a gradient, whose threads need more registers. The bounds are measured (benchmarks/norms_bench.py, H200).
    Raises VerifyError KERNEL_ARGUMENT.
    """
    size("select_tile", "rows", rows, least=0)
    size("select_tile", "width", width)
    element("select_tile", "dtype", dtype, FLOATS)
    elem_bytes = dtype.bits // 8
    align("select_tile", "align_bytes", align_bytes, elem_bytes)
    if dense_bytes != 0:
        align("select_tile", "dense_bytes", dense_bytes, elem_bytes)
    size("select_tile", "shared_bytes", shared_bytes, least=0)
    vector = math.gcd(width * elem_bytes, align_bytes, 16) // elem_bytes
    dense = math.gcd(dense_bytes, 16) // elem_bytes if dense_bytes else 0
    if dense > vector and width >= 256:
        return _dense_tile(rows, width, elem_bytes, tensors, columns, dense, shared_bytes)
    vectors = width // vector
    row_kib = width * elem_bytes / 1024
    large = rows * row_kib > 64 * 1024  # more than the L2 cache holds
    if vectors <= 32:
        threads = 1 << (vectors - 1).bit_length()
        few = 1 << max(rows - 1, 0).bit_length()
        return RowTile(width, threads, max(32 // threads, min(128 // threads, few)), vector)
    kib = tensors * row_kib
    if kib <= 6:
        runs = max(1, (16 if row_kib <= 2 else 32) // tensors // (vector * elem_bytes))  # vectors of a thread
        each = 2 if tensors == 1 and row_kib <= 2 and columns == 0 else 1
        once = "no_allocate" if columns and row_kib <= 2 else "default"
        threads = _whole_warps(math.ceil(vectors / runs))
        return RowTile(width, min(1024, threads), each, vector, evict=once, each=each)
    if 1024 * kib > shared_bytes - 1024:
        return RowTile(width, 512, 1, vector, "memory", unroll=8)
    if kib <= 8 and not large:
        threads, unroll = 128, 4 if columns > 1 else 2
    elif kib <= 12:
        threads, unroll = 256, 2
    elif kib <= 24:
        threads, unroll = 256, 4 if columns > 1 or kib > 16 else 2
    elif kib <= (96 if columns > 1 else 40):
        threads, unroll = 512, 8
    else:
        threads, unroll = 1024, 4 if columns > 1 and tensors == 1 else 2
    least, most = (672, 768) if gradient and threads == 1024 else (0, 1024)  # two of these have 40 registers a thread
    evict = "evict_last" if large else "default"
    return RowTile(width, _fitting(vectors, threads, unroll, least, most), 1, vector, "shared", evict, unroll=unroll)


def _dense_tile(
    rows: int, width: int, elem_bytes: int, tensors: int, columns: int, vector: int, shared_bytes: int
) -> RowTile:
    """The tile for rows that begin anywhere, in vectors of 16 bytes or of the addresses' alignment."""
    kib, vectors = tensors * width * elem_bytes / 1024, width // vector
    if kib <= 2.5:
        return RowTile(width, max(32, min(64, _whole_warps(vectors // 2))), 1, vector, dense=vector)
    if kib <= 10:
        return RowTile(width, _fitting(vectors, 128 if columns else 256), 1, vector, dense=vector)
    if 1024 * kib > shared_bytes - 1024 - 32 * tensors:
        return RowTile(width, 512 if columns > 1 else 1024, 1, vector, "memory", dense=vector)
    threads, unroll = 512, 2 if columns else 4
    if columns and kib <= 80:
        threads = 256 if kib <= 24 else 384
    elif columns > 1:
        threads = 768
    evict = "evict_last" if rows * width * elem_bytes > 64 << 20 else "default"
    return RowTile(width, _fitting(vectors, threads, unroll), 1, vector, "shared", evict, unroll=unroll, dense=vector)


def _whole_warps(threads: int) -> int:
    return math.ceil(threads / 32) * 32


def _fitting(vectors: int, threads: int, unroll: int = 1, least: int = 0, most: int = 1024) -> int:
    """A number of threads near `threads`, whole warps, within the limits.

    In the last of `unroll` rounds over a row few of them lack a vector.
    """
    near = range(max(least, _whole_warps(math.ceil(threads * 0.6))), min(most, threads * 4 // 3) + 1, 32)

    def cost(t: int) -> tuple[int, bool, int]:
        rounds = math.ceil(vectors / t)
        return rounds * t, rounds % unroll != 0, abs(t - threads)

    return min(near, key=cost)
