"""Kernels that work row by row (normalisations, softmax) as a tunable: a row's threads, and where it is kept."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene import dtypes
from graphene.errors import VerifyError
from graphene.kernels.arguments import FLOATS, align, choice, element, flags, size
from graphene.kernels.rows.cross_entropy import (
    CrossEntropyConfig,
    cross_entropy_backward_kernel,
    cross_entropy_kernel,
)
from graphene.kernels.rows.groupnorm import GroupNormConfig, groupnorm_kernel
from graphene.kernels.rows.layernorm import layernorm_kernel
from graphene.kernels.rows.norm import NormConfig
from graphene.kernels.rows.norm_backward import NormColumnsConfig
from graphene.kernels.rows.problem import KINDS, RowProblem
from graphene.kernels.rows.rmsnorm import rmsnorm_kernel
from graphene.kernels.rows.softmax import (
    SoftmaxColumnsConfig,
    SoftmaxConfig,
    log_softmax_columns_kernel,
    log_softmax_kernel,
    softmax_kernel,
)
from graphene.kernels.rows.tile import RowTile
from graphene.report import occupancy
from graphene.select.device import named
from graphene.select.matmul import shape_class
from graphene.select.measure import best_known
from graphene.select.row_tiles import select_tile
from graphene.select.trial_rows import arguments, reference, verify
from graphene.select.tunable import Tunable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphene.kernel import Kernel
    from graphene.select.device import Device

__all__ = [
    "ROWS",
    "RowProblem",
    "choose",
    "estimate",
    "select_cross_entropy",
    "select_groupnorm",
    "select_norm",
    "select_norm_backward",
    "select_norm_columns",
    "select_softmax",
    "select_softmax_columns",
    "usual_cross_entropies",
    "usual_groupnorms",
    "usual_log_softmaxes",
]

IN_FLIGHT_BYTES = 32 << 10  # loads of a multiprocessor that keep its share of memory busy
LONG_BITS = 40 << 13  # 40 KiB: for longer rows, the loss has other threads than its gradient
BLOCK_US, VECTOR_US = 1.5, 0.1  # time of a block, and for each vector of a thread


def _candidates(p: RowProblem, device: Device) -> Iterator[RowTile]:
    vector = p.dense or p.vector
    narrow = [t for t in (1, 2, 4, 8, 16) if t * vector >= p.width // 4]
    for threads in (
        *narrow,
        128,
        256,
        64,
        512,
        320,
        32,
        96,
        160,
        192,
        384,
        640,
        768,
        1024,
    ):  # among equal ones the first is taken
        for keep, rows, evict, unroll in (
            *(("registers", r, e, 4) for r in (1, 2, 4, 8, 16, 32) for e in ("default", "no_allocate")),
            *(("shared", 1, e, u) for e in ("default", "evict_last") for u in (4, 2, 8)),
            ("memory", 1, "default", 4), ("memory", 1, "default", 8),
        ):  # fmt: skip
            try:
                yield RowTile(p.width, threads, rows, vector, keep, evict, unroll=unroll, dense=p.dense)
            except VerifyError:
                continue  # not a tile, for example a block with a part of a warp


def _predict(t: RowTile, p: RowProblem, device: Device) -> tuple[float, str] | str:
    if t.width != p.width or t.dense != p.dense or (p.dense or p.vector) % t.vector:
        return f"a tile for rows of {t.width} elements in vectors of {t.vector}"
    if t.threads > 32 and t.threads * t.vector >= 2 * t.width:
        return f"{t.threads} threads for {t.width // t.vector} vectors: half of them would have none"
    each = math.ceil(t.part / (t.threads * t.vector)) * t.vector  # elements of a thread
    registers = 28 + each * (2 if t.keep == "registers" else 1)
    if registers > 255:
        return f"about {registers} registers a thread, at most 255: it would spill"
    shared = p.row_bytes if t.keep == "shared" else 0
    if shared + 1024 > device.shared_bytes:
        return f"a row of {p.row_bytes} bytes does not fit into {device.shared_bytes} bytes of shared memory"
    threads = t.threads * t.rows
    found = occupancy(device.arch, threads, shared + 128, registers)
    resident = found.blocks_per_sm if found is not None else 1
    if resident == 0:
        return f"{threads} threads of about {registers} registers are more than a multiprocessor has"
    blocks = math.ceil(p.rows / t.rows)
    held = t.rows * p.row_bytes if t.keep != "memory" else t.threads * 64
    waves = blocks / (device.sm_count * resident)
    busy = min(1.0, resident * held / IN_FLIGHT_BYTES)
    traffic = p.rows * p.row_bytes * (2 if t.keep != "memory" else 2.6)  # the L2 cache has a part of what is read again
    us = traffic / (device.dram_bytes * device.sm_count * device.clock_ghz * 1e3 * busy)
    vectors = math.ceil(t.width / (t.threads * t.vector))
    us = max(us, math.ceil(waves) * (BLOCK_US + VECTOR_US * vectors)) + 2.0
    return us, f"{waves:.2f} waves of {resident} blocks an SM, {busy:.0%} of what keeps memory busy is on its way"


def _config(t: RowTile, p: RowProblem) -> NormConfig | SoftmaxConfig:
    dtype = getattr(dtypes, p.dtype)
    return SoftmaxConfig(t, dtype) if p.kind == "softmax" else NormConfig(t, dtype, beta=p.kind == "layernorm")


def _build(t: RowTile, p: RowProblem) -> Kernel:
    config = _config(t, p)
    if isinstance(config, SoftmaxConfig):
        return softmax_kernel(config)
    return layernorm_kernel(config) if p.kind == "layernorm" else rmsnorm_kernel(config)


def _unusable(t: RowTile, p: RowProblem, device: Device) -> str | None:
    verdict = _predict(t, p, device)
    _config(t, p)  # refuses a configuration that no kernel takes, with a code
    return verdict if isinstance(verdict, str) else None


def _key(p: RowProblem) -> tuple[str, str]:
    """The dtype and shape class: the number of rows to the nearest power of two or half above, the exact width."""
    dense = f" dense {p.dense}" if p.dense else ""
    return p.dtype, f"{p.kind} {shape_class(p.rows)}x{p.width} vectors of {p.vector}{dense}"


def _text(t: RowTile) -> str:
    evict = f", {t.evict}" if t.evict != "default" else ""
    rows = f"{t.rows} rows of " if t.rows > 1 else ""
    loops = f", {t.unroll} parts at once" if t.keep != "registers" else ""
    return f"{rows}{t.threads} threads, vectors of {t.vector}, kept in {t.keep}{evict}{loops}"


def estimate(p: RowProblem, device: Device) -> RowTile:
    """The tile that is taken without a record."""
    dtype, columns = getattr(dtypes, p.dtype), KINDS[::-1].index(p.kind)
    return select_tile(p.rows, p.width, dtype, 1, columns, p.align_bytes, device.shared_bytes, p.dense_bytes)


def choose(p: RowProblem, device: Device) -> RowTile:
    """The tile of the record of a problem's shape class on a device, else the estimated one (`best_known`)."""
    return best_known(ROWS, p, device, lambda: estimate(p, device))


ROWS: Tunable[RowProblem, RowTile] = Tunable(
    "rows",
    RowTile,
    _candidates,
    _predict,
    _build,
    arguments,
    _key,
    version=2,
    verify=verify,
    text=_text,
    alike=lambda t: (t.keep, t.rows, t.threads),
    incumbent=estimate,
    reference=reference,
    unusable=_unusable,
)


def _room(device: str, shared_bytes: int) -> Device:
    """The device of this name, with `shared_bytes` of shared memory for a block."""
    return replace(named(device), shared_bytes=shared_bytes)


def select_norm(
    rows: int,
    width: int,
    dtype: gr.DType = gr.fp16,
    *,
    align_bytes: int = 16,
    dense_bytes: int = 0,
    shared_bytes: int = 99 * 1024,
    device: str | None = None,
    kind: str = "layernorm",
    **options: Any,
) -> NormConfig:
    """The configuration for `rows` rows of `width` elements.

    `align_bytes`: divides addresses, and row strides in bytes. `dense_bytes`: divides addresses, if rows have no gaps
    between them; else 0. `shared_bytes`: the most shared memory of a block. `device`: the device's model, whose tuning
    records are looked up for a "layernorm" with gamma and beta or an "rmsnorm" with gamma (`kind`). `options`: further
    fields of NormConfig. Raises VerifyError KERNEL_ARGUMENT.
    """
    for flag in ("gamma", "beta", "residual"):
        flags("select_norm", flag, (options.get(flag, False),), 1)
    choice("select_norm", "kind", kind, ("layernorm", "rmsnorm"))
    tensors = 2 if options.get("residual") else 1
    columns = options.get("gamma", True) + options.get("beta", True)
    tile = select_tile(rows, width, dtype, tensors, columns, align_bytes, shared_bytes, dense_bytes)
    if tile.dense and kind == "rmsnorm" and columns == 2:  # registers would not hold the next round's vectors of both
        tile = replace(tile, unroll=1)
    plain = {"layernorm": (True, True), "rmsnorm": (True, False)}.get(kind)
    if device is not None and tensors == 1 and (options.get("gamma", True), options.get("beta", True)) == plain:
        problem = RowProblem(kind, rows, width, str(dtype), align_bytes, dense_bytes)
        tile = best_known(ROWS, problem, _room(device, shared_bytes), lambda: tile)
    return NormConfig(tile, dtype, **options)


def select_groupnorm(
    samples: int,
    groups: int,
    channels: int,
    elements: int,
    dtype: gr.DType = gr.fp16,
    *,
    align_bytes: int = 16,
    shared_bytes: int = 99 * 1024,
    **options: Any,
) -> GroupNormConfig:
    """The configuration for `samples` samples of `groups` groups of `channels` channels of `elements` elements each.

    `align_bytes`: divides addresses, and the strides of samples in bytes. `shared_bytes`: the most shared memory of a
    block. `options`: further fields of GroupNormConfig. A group has a block of its own, and vectors lie within a
    channel. The tile was measured for long rows. Raises VerifyError KERNEL_ARGUMENT.
    """
    name = "select_groupnorm"
    for what, value in (("groups", groups), ("channels", channels), ("elements", elements)):
        size(name, what, value)
    size(name, "samples", samples, least=0)
    element(name, "dtype", dtype, FLOATS)
    align(name, "align_bytes", align_bytes, dtype.bits // 8)
    within = math.gcd(align_bytes, elements * dtype.bits // 8, 16)
    tile = select_tile(samples * groups, channels * elements, dtype, 1, 0, within, shared_bytes)
    if tile.rows > 1:
        tile = replace(tile, rows=1, each=1, threads=1 if tile.width == 1 else max(32, tile.threads))
    return GroupNormConfig(tile, groups, channels, dtype, **options)


def usual_groupnorms() -> Iterator[tuple[str, str, Callable[[], Kernel]]]:
    """Function, problem and maker of kernels, for problems of usual models, and for odd ones."""
    sizes = ((2, 32, 10, 256), (8, 32, 4, 64), (4, 8, 3, 49), (64, 1, 64, 1), (1, 2, 5, 3000))
    for (samples, groups, channels, elements), name in itertools.product(sizes, FLOATS):
        dtype = getattr(dtypes, name)
        for affine in (True, False):
            config = select_groupnorm(samples, groups, channels, elements, dtype, gamma=affine, beta=affine)
            problem = f"{samples}x{groups}x{channels}x{elements} {name} {'with factors and addends' * affine}"
            yield "groupnorm", problem.rstrip(), functools.partial(groupnorm_kernel, config)


def select_softmax(
    rows: int,
    width: int,
    dtype: gr.DType = gr.fp16,
    *,
    align_bytes: int = 16,
    dense_bytes: int = 0,
    shared_bytes: int = 99 * 1024,
    device: str | None = None,
) -> SoftmaxConfig:
    """The configuration for `rows` rows of `width` elements, also of ``log_softmax_kernel``.

    The arguments are those of ``select_norm``.
    """
    tile = select_tile(rows, width, dtype, 1, 0, align_bytes, shared_bytes, dense_bytes)
    if device is not None:
        problem = RowProblem("softmax", rows, width, str(dtype), align_bytes, dense_bytes)
        tile = best_known(ROWS, problem, _room(device, shared_bytes), lambda: tile)
    return SoftmaxConfig(tile, dtype)


def usual_log_softmaxes() -> Iterator[tuple[str, str, Callable[[], Kernel]]]:
    """Function, problem and maker of kernels, for vocabularies of usual models, and for odd sizes."""
    sizes = ((4, 7), (65536, 64), (1024, 1001), (8, 32000), (4096, 50257), (2, 131072))
    for (rows, width), name in itertools.product(sizes, FLOATS):
        dtype = getattr(dtypes, name)
        align_bytes = 16 if width % 8 == 0 else dtype.bits // 8
        config = select_softmax(rows, width, dtype, align_bytes=align_bytes, dense_bytes=16 if width % 8 else 0)
        yield "log_softmax", f"{rows}x{width} {name}", functools.partial(log_softmax_kernel, config)
        if width <= 1001:
            beside = select_softmax_columns(rows, width, dtype, align_bytes=align_bytes)
            of_columns = functools.partial(log_softmax_columns_kernel, beside)
            yield "log_softmax_columns", f"{rows}x{width} {name}", of_columns


def select_cross_entropy(
    rows: int,
    classes: int,
    dtype: gr.DType = gr.fp16,
    *,
    smoothing: bool = False,
    z: bool = False,
    align_bytes: int = 16,
    dense_bytes: int = 0,
    shared_bytes: int = 99 * 1024,
    gradient: bool = False,
) -> CrossEntropyConfig:
    """The configuration for `rows` rows of `classes` logits, of the loss or of its gradient.

    The other arguments are those of ``select_tile`` and of CrossEntropyConfig. Raises VerifyError KERNEL_ARGUMENT.
    """
    tile = select_tile(rows, classes, dtype, 1, 0, align_bytes, shared_bytes, dense_bytes)
    if tile.keep == "shared":  # each logit is read once, so that nothing has to be kept
        tile = replace(tile, keep="memory", evict="default")
    if tile.keep == "memory" and not tile.dense and classes * dtype.bits > LONG_BITS:
        threads, unroll = (1024, 2) if gradient else (512, 8)  # measured on an H200 (benchmarks/serving_bench.py)
        tile = replace(tile, threads=threads, unroll=unroll)
    return CrossEntropyConfig(tile, dtype, smoothing, z)


def usual_cross_entropies() -> Iterator[tuple[str, str, Callable[[], Kernel]]]:
    """Function, problem and maker of kernels, for vocabularies of usual models, and for odd sizes."""
    sizes = ((16, 10), (1024, 1001), (4096, 32000), (4096, 50257), (4096, 128256))
    kernels = (("cross_entropy", cross_entropy_kernel), ("cross_entropy_backward", cross_entropy_backward_kernel))
    for (rows, classes), name, more in itertools.product(sizes, FLOATS, (False, True)):
        dtype = getattr(dtypes, name)
        align_bytes = 16 if classes % 8 == 0 else dtype.bits // 8 * (2 - classes % 2)
        dense = 0 if classes % 8 == 0 else 16
        for function, build in kernels:
            config = select_cross_entropy(
                rows, classes, dtype, smoothing=more, z=more, align_bytes=align_bytes, dense_bytes=dense,
                gradient=build is cross_entropy_backward_kernel,
            )  # fmt: skip
            problem = f"{rows}x{classes} {name}{', smoothed, with z' * more}"
            yield function, problem, functools.partial(build, config)


def select_softmax_columns(
    rows: int, columns: int, dtype: gr.DType = gr.fp16, *, align_bytes: int = 16, batch: int = 1
) -> SoftmaxColumnsConfig:
    """The configuration for `batch` matrices of columns of `rows` elements.

    `align_bytes`: divides addresses and strides. A column belongs to one thread unless there are too few columns to
    keep the GPU busy. Threads have several columns only if there are many: an H200, on which this was measured, needs
    some 4096 warps. Raises VerifyError KERNEL_ARGUMENT.
    """
    name = "select_softmax_columns"
    for what, value in (("rows", rows), ("columns", columns), ("batch", batch)):
        size(name, what, value, least=0)
    element(name, "dtype", dtype, FLOATS)
    align(name, "align_bytes", align_bytes, dtype.bits // 8)
    fits = math.gcd(columns * dtype.bits // 8, align_bytes) // (dtype.bits // 8)
    warps = batch * columns // 32
    vector = next((v for v, enough in ((4, 65536), (2, 8192)) if warps >= enough and fits % v == 0), 1)
    strips = batch * math.ceil(columns / (32 * vector))
    few = 1 << max(math.ceil(4096 / max(strips, 1)) - 1, 0).bit_length()
    return SoftmaxColumnsConfig(dtype, vector=vector, rows=min(16, few, 1 << (max(rows, 1).bit_length() - 1)))


def select_norm_backward(
    rows: int,
    width: int,
    dtype: gr.DType = gr.fp16,
    *,
    align_bytes: int = 16,
    shared_bytes: int = 99 * 1024,
    **options: Any,
) -> NormConfig:
    """The configuration of a gradient. Arguments as in ``select_norm``; `options`: gamma, residual, write_sum, eps."""
    for flag in ("gamma", "residual"):
        flags("select_norm_backward", flag, (options.get(flag, False),), 1)
    tensors = 3 if options.get("residual") else 2  # with the gradient of the result
    columns = int(options.get("gamma", True))
    tile = select_tile(rows, width, dtype, tensors, columns, align_bytes, shared_bytes, gradient=True)
    return NormConfig(tile, dtype, beta=False, **options)


def select_norm_columns(
    rows: int, columns: int, dtype: gr.DType = gr.fp16, *, align_bytes: int = 16, **options: Any
) -> tuple[NormColumnsConfig, int]:
    """The configuration, and the number S of parts of the rows.

    `align_bytes`: divides addresses and row strides in bytes. `options`: further fields.
    """
    for what, value in (("rows", rows), ("columns", columns)):
        size("select_norm_columns", what, value, least=0)
    element("select_norm_columns", "dtype", dtype, FLOATS)
    align("select_norm_columns", "align_bytes", align_bytes, dtype.bits // 8)
    vector = min(2, math.gcd(columns * dtype.bits // 8, align_bytes) // (dtype.bits // 8))
    config = NormColumnsConfig(dtype, vector=vector, rows=16 if rows > 64 else 4, **options)
    strips = math.ceil(max(columns, 1) / (32 * vector))
    return config, max(1, min(math.ceil(rows / (4 * config.rows)), math.ceil(512 / strips)))
