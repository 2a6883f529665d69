"""The matrix product of graphene.kernels as a tunable: tiles, warps, stages, parts of K, padded copies."""

from __future__ import annotations

import functools
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.errors import GrapheneError
from graphene.kernels.arguments import size
from graphene.kernels.gemm.launches import gemm_launches
from graphene.kernels.gemm.pad import PADDED_MOST
from graphene.kernels.gemm.problem import TYPES, GemmConfig, GemmProblem, GemmTile, check_product
from graphene.select import records
from graphene.select.device import of_arch
from graphene.select.gemm_estimate import (
    BYTES_PER_US,
    LAUNCH_US,
    PART_US,
    SLOWER,
    TILES,
    copies_spill,
    estimate_us,
    splits,
)
from graphene.select.matmul import shape_class
from graphene.select.measure import from_record, tune
from graphene.select.model import MatmulShape, Tile, estimate, impossible, judge
from graphene.select.trial_gemm import Run, arguments, reference, verify
from graphene.select.tunable import Tunable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphene.select.device import Device

__all__ = ["GEMM", "GemmProblem", "GemmTile", "gemm_key", "select_gemm", "with_record"]


def as_tile(c: GemmTile) -> Tile:
    """The same as the model of time sees it."""
    (bm, bn, bk), (down, across) = c.tile, c.warps
    return Tile(bm, bn, bk, bm // down, bn // across, c.stages, c.split_k)


@functools.lru_cache(64)
def _shape(p: GemmProblem) -> MatmulShape:
    item = TYPES[p.dtype].bits // 8
    rate = {1: 2.0, 2: 1.0, 4: 0.5}[item]
    return MatmulShape(p.m, p.n, p.k, p.batch or 1, item, 4 if p.dtype == "i8" else item, 32 // item, rate)


def _pads(p: GemmProblem) -> list[tuple[bool, bool]]:
    narrow = (p.align[0] < 16, p.align[1] < 16)
    return [(False, False), narrow] if p.workspaces and any(narrow) else [(False, False)]


def _candidates(p: GemmProblem, device: Device) -> Iterator[GemmTile]:
    shape = _shape(p)
    line = 128 // shape.element_bytes
    for bm in (128, 256, 192, 64, 96, 32):  # of equals the first is taken
        for bn in (128, 256, 192, 64, 96, 32):
            blocks = -(-p.m // bm) * -(-p.n // bn) * shape.batch
            parts = splits(p.m, p.n, p.k, shape.batch, bm, bn, line, device.sm_count) if p.workspaces else [1]
            parts = [s for s in parts if s == 1 or blocks * s <= 2 * device.sm_count]
            group = 8 if min(p.m // bm, p.n // bn) >= 16 else 1
            for warps in ((2, 2), (2, 4), (4, 2), (1, 4), (4, 1)):
                if bm % (16 * warps[0]) or bn % (16 * warps[1]) or bm // warps[0] > 128 or bn // warps[1] > 128:
                    continue
                for bk in (line, line // 2):
                    for stages in (3, 4, 2, 5):
                        for pad in _pads(p):
                            for split in parts:
                                yield GemmTile((bm, bn, bk), warps, stages, group, pad, split)


def _predict(c: GemmTile, p: GemmProblem, device: Device) -> tuple[float, str] | str:
    shape, tile = _shape(p), as_tile(c)
    if (reason := judge(tile, shape, device)) is not None:
        return reason
    if (parts := c.split_k * shape.batch) > 65535:
        return f"{parts} parts of products, of which a grid has 65535"
    worst = min(16 if padded else a for padded, a in zip(c.pad, p.align[:2], strict=True))
    if worst < 4 and tile.bm * tile.bn > 64 * 64:
        return f"lines of {worst} bytes pass through registers, which leave no room for {tile.bm}x{tile.bn} sums"
    if worst >= 4 and copies_spill(tile.bm, tile.bn, tile.bk * shape.element_bytes, c.warps, worst):
        return f"copies of {worst} bytes take so many registers that sums would spill"
    e = estimate(tile, shape, device)
    us = e.us * SLOWER[worst]
    for padded, lines in zip(c.pad, (p.m, p.n), strict=True):
        if padded:
            us += 1.7 + shape.batch * lines * p.k * shape.element_bytes * 2 / BYTES_PER_US
    if c.split_k > 1:
        us += c.split_k * PART_US + shape.batch * p.m * p.n * (8 * c.split_k + 2) / BYTES_PER_US
    waves = f"{e.waves:.2f} waves of {e.blocks_per_sm} blocks an SM"
    return us, f"{waves}, tensor cores {e.busy:.0%} busy, bound by {e.bound}"


def _unusable(c: GemmTile, p: GemmProblem, device: Device) -> str | None:
    if (reason := impossible(as_tile(c), _shape(p), device)) is None:
        gemm_launches(c.config(p))  # what has no kernel is refused here, with a code
    return reason


def _estimated(p: GemmProblem, device: Device) -> GemmTile:
    """What select_gemm takes without a record."""
    c = select_gemm(
        p.m, p.n, p.k, batch=p.batch, dtype=p.dtype, order=p.order, align=p.align, bias=p.bias, residual=p.residual,
        activation=p.activation, sms=device.sm_count, shared_bytes=device.shared_bytes, workspaces=p.workspaces,
    )  # fmt: skip
    return GemmTile(c.tile, c.warps, c.stages, c.group, c.pad, c.split_k)


def gemm_key(p: GemmProblem) -> tuple[str, str]:
    """The dtype and shape class of a product: sizes to the nearest power of two or half above, order, alignment."""
    m, n, k, batch = (shape_class(x) for x in (p.m, p.n, p.k, p.batch or 1))
    align = "x".join(map(str, p.align))
    work = "" if p.workspaces else " no workspaces"
    return p.dtype, f"{batch} of {m}x{n}x{k} {p.order} align {align}{work}"


def with_record(
    estimated: GemmConfig,
    sizes: tuple[int, int, int],
    batch: int | None,
    workspaces: bool,
    device: str,
    sms: int,
    shared_bytes: int,
) -> GemmConfig:
    """The configuration of the record of a product's shape class on a device, else ``estimated``.

    A record is of a class of sizes, not of these: where the model expects it to take a tenth longer than ``estimated``
    (a last wave with few blocks, say), that is taken. fp16 and bf16 are equally fast: either takes the other's record.
    With ``GRAPHENE_TUNE=1`` a class without a record is tuned. Where that fails, and where a record is no configuration
    of a kernel, it warns once and ``estimated`` is taken.
    """
    c = estimated
    problem = GemmProblem(*sizes, batch, c.dtype, c.order, c.align, workspaces=workspaces)
    dtype, shape = gemm_key(problem)
    alike = ("fp16", "bf16") if dtype in ("fp16", "bf16") else (dtype,)
    found = {d: records.find(device, GEMM.name, GEMM.version, d, shape) for d in alike}
    record = found[dtype] or next(filter(None, found.values()), None)
    if record is None and os.environ.get("GRAPHENE_TUNE") != "1":
        return c
    where = replace(of_arch("sm_90a"), name=device, sm_count=sms, shared_bytes=shared_bytes)
    tile: GemmTile | None
    if record is None:
        try:
            tile = tune(GEMM, problem).best
        except Exception as e:
            code = "" if isinstance(e, GrapheneError) else "   [TUNE_FAILED]"
            records.warn_once(f"{problem} could not be tuned: {e}{code}")
            return c
    elif (tile := from_record(GEMM, problem, where, record)) is None:
        return c
    expected = _predict(tile, problem, where)
    other = _predict(GemmTile(c.tile, c.warps, c.stages, c.group, c.pad, c.split_k), problem, where)
    if isinstance(expected, str) or (not isinstance(other, str) and expected[0] > 1.1 * other[0]):
        return c
    return replace(c, **asdict(tile))


GEMM: Tunable[GemmProblem, GemmTile] = Tunable(
    "gemm",
    GemmTile,
    _candidates,
    _predict,
    lambda config, p: Run(config.config(p), p),
    arguments,
    gemm_key,
    version=1,
    verify=verify,
    incumbent=_estimated,
    reference=reference,
    unusable=_unusable,
    alike=lambda c: (c.tile[:2], c.pad, c.split_k),
)


def _group(tiles_m: int, tiles_n: int) -> int:
    """Rows of tiles that go together: worth while in large grids, unless many of the last group's would be missing."""
    return 8 if min(tiles_m, tiles_n) >= 16 and (tiles_m % 8 == 0 or tiles_m >= 64) else 1


def select_gemm(
    M: int,
    N: int,
    K: int,
    *,
    batch: int | None = None,
    dtype: str = "fp16",
    out: str | None = None,
    order: str = "TN",
    align: tuple[int, int, int] = (16, 16, 16),
    bias: bool = False,
    residual: bool = False,
    alpha: bool = False,
    beta: bool = False,
    activation: str | Callable[[Any], Any] | None = None,
    sms: int = 132,
    shared_bytes: int = 227 * 1024,
    workspaces: bool = True,
    device: str | None = None,
) -> GemmConfig:
    """The configuration that was measured, or is estimated, to be the fastest for one product of these sizes.

    ``batch``: None for one product of plain matrices. ``sms``, ``shared_bytes``: of the device, the latter of a block.
    ``workspaces``: whether configurations that need them may be taken (split-K, padded copies). ``device``: the name of
    a GPU, such as "NVIDIA H200", whose tuning records come before the estimate (docs/tuning.md). The other arguments
    are GemmConfig's. Sizes may be 0. Raises VerifyError KERNEL_ARGUMENT.
    """
    align = check_product("select_gemm", dtype, out, order, align, activation)  # type: ignore[assignment]
    M, N, K = (size("select_gemm", n, x, least=0) for n, x in (("M", M), ("N", N), ("K", K)))
    batch = None if batch is None else size("select_gemm", "batch", batch, least=0)
    sms, shared_bytes = size("select_gemm", "sms", sms), size("select_gemm", "shared_bytes", shared_bytes)
    if device is not None and not isinstance(device, str):
        _core.fail("KERNEL_ARGUMENT", "select_gemm: device does not fit",
                   ['want: the name of a GPU, such as "NVIDIA H200", or None', f"got: {device!r}"])  # fmt: skip
    item = TYPES[dtype].bits // 8
    count = 1 if batch is None else batch
    k_tile = 128 // item

    def padding_us(rows: int) -> float:
        return LAUNCH_US / 2 + count * rows * K * item * 2 / BYTES_PER_US

    lengths = K if order[0] == "T" else M, K if order[1] == "N" else N

    def straddling(pad: tuple[bool, bool]) -> bool:
        return any(n * item % 128 and not p for n, p in zip(lengths, pad, strict=True))

    def candidates() -> Any:
        narrow = (align[0] < 16, align[1] < 16)
        may_pad = workspaces and any(narrow) and max(M, N, K) <= PADDED_MOST
        for pad in ((False, False), narrow) if may_pad else ((False, False),):
            worst = min(16 if p else a for p, a in zip(pad, align, strict=False))
            before = sum(padding_us(n) for n, p in zip((M, N), pad, strict=True) if p)
            for tile in TILES:
                held = worst < 4  # tiles pass through registers
                ks, stages = k_tile // 2 if held and tile.rows > 32 else k_tile, tile.stages
                if (tile.rows + tile.columns) * ks * item * stages > shared_bytes:
                    continue
                if item == 4 and (tile.rows > 128 or tile.columns == 192):
                    continue  # slower than 128x256, as measured
                if copies_spill(tile.rows, tile.columns, ks * item, tile.warps, worst):
                    continue
                if held and tile.rows * tile.columns > 64 * 64:
                    continue  # they leave no room for more accumulators
                for split in splits(M, N, K, count, tile.rows, tile.columns, k_tile, sms) if workspaces else (1,):
                    slower = SLOWER[worst] * tile.straddling if worst == 16 and straddling(pad) else SLOWER[worst]
                    us = before + estimate_us(tile, M, N, K, count, sms, split, slower)
                    yield us, tile, ks, stages, pad, split

    best = min(candidates(), key=lambda c: c[0], default=None)
    if best is None:
        _core.fail("KERNEL_ARGUMENT", "select_gemm: shared_bytes does not fit",
                   ["want: room for the stages of one of the tiles", f"got: {shared_bytes}"],
                   "pass what a block of the device may have")  # fmt: skip
    _, tile, ks, stages, pad, split = best
    estimated = GemmConfig(
        tile=(tile.rows, tile.columns, ks),
        stages=stages,
        warps=tile.warps,
        group=_group(-(-M // tile.rows), -(-N // tile.columns)),
        order=order,
        dtype=dtype,
        out=out,
        align=align,
        pad=pad,
        batched=batch is not None,
        bias=bias,
        residual=residual,
        alpha=alpha,
        beta=beta,
        activation=activation,
        split_k=split,
    )
    if device is None:
        return estimated
    return with_record(estimated, (M, N, K), batch, workspaces, device, sms, shared_bytes)
