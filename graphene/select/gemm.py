"""The choice of a matrix product's tile, and the candidates that a tuning tries."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.kernels.arguments import MOST_BLOCKS_YZ, size
from graphene.kernels.epilogues import ACTIVATIONS
from graphene.kernels.gemm.pad import PADDED_MOST
from graphene.kernels.gemm.problem import FP8, TYPES, GemmConfig, GemmProblem, GemmTile, check_product
from graphene.kernels.gemm.whole import gemm_launches
from graphene.select import model, sm90_time
from graphene.select.avoided import slower
from graphene.select.device import PORTABLE, Device, named
from graphene.select.matmul import shape_class
from graphene.select.measure import best_known
from graphene.select.model import SLOWER, TILES, copies_spill, splits
from graphene.select.tiles import MatmulShape, Tile, impossible, judge, up
from graphene.select.trial_gemm import TrialRun, arguments, reference, verify
from graphene.select.tunable import Tunable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["GEMM", "GemmProblem", "GemmTile", "choose", "estimate", "gemm_key", "select_gemm"]


# The time of gemm_sm80 by bits of the operands, relative to that of its measured tiles, of 16 bits: at 4096^3, H200.
BY_MMA = {8: 0.6, 16: 1.0, 32: 2.6}


def as_tile(c: GemmTile) -> Tile:
    """The problem as the model of time sees it."""
    (bm, bn, bk), (down, across) = c.tile, c.warps
    return Tile(bm, bn, bk, bm // down, bn // across, c.stages, c.split_k)


@functools.lru_cache(64)
def _shape(p: GemmProblem) -> MatmulShape:
    item = TYPES[p.dtype].bits // 8
    rate = {1: 2.0, 2: 1.0, 4: 0.5}[item]
    return MatmulShape(p.m, p.n, p.k, p.batch or 1, item, 4 if p.dtype == "i8" else item, 32 // item, rate)


def _scaled_integers(p: GemmProblem) -> bool:
    """Whether operands are integers with scales, which fewer kernels take than those without."""
    return p.scales is not None and p.dtype not in FP8


def _pads(p: GemmProblem) -> list[tuple[bool, bool]]:
    narrow = (p.align[0] < 16, p.align[1] < 16)
    return [(False, False), narrow] if p.workspaces and any(narrow) else [(False, False)]


def _candidates(p: GemmProblem, device: Device) -> Iterator[GemmTile]:
    for t in sm90_time.candidates(p, device):
        for pad, split in _variants(p, t, device):
            c = _staged(t, pad, split, p, device)
            yield c
            if (other := sm90_time.with_terms_in_stages(c, p, device)) is not None:
                yield other
    if sm90_time.alone(p):
        return
    shape = _shape(p)
    line = 128 // shape.element_bytes
    for bm in (128, 256, 192, 64, 96, 32):  # among equal ones the first is taken
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


def _variants(p: GemmProblem, t: GemmTile, device: Device) -> Iterator[tuple[tuple[bool, bool], int]]:
    """Padded copies and parts of k with which a tile of gemm_sm90 may compute a problem."""
    bm, bn, bk = t.tile
    count = 1 if p.batch is None else p.batch
    parts = [1]
    wide = t.warps[1] > 1 and bm > 128  # their sums leave no registers for the addresses of parts
    if p.workspaces and max(t.cluster) == 1 and not wide and 2 * up(p.m, bm) * up(p.n, bn) * count <= device.sm_count:
        parts = splits(p.m, p.n, p.k, count, bm, bn, bk, device.sm_count)
    pads = [*_pads(p)]
    if p.workspaces and (of := sm90_time.straddling(p)) not in pads:
        pads.append(of)  # whole lines of the caches
    for pad in pads if max(p.m, p.n, p.k) <= PADDED_MOST else [(False, False)]:
        if all(a == 16 or padded for a, padded in zip(p.align[:2], pad, strict=True)):
            yield from ((pad, split) for split in parts)


def _around_us(p: GemmProblem, pad: tuple[bool, bool], split_k: int, device: Device) -> float:
    """The time of kernels that copy operands to longer lines, and of the one that adds parts, without its launch."""
    count, item = 1 if p.batch is None else p.batch, TYPES[p.dtype].bits // 8
    copied = [count * n * p.k for n, padded in zip((p.m, p.n), pad, strict=True) if padded]
    us = model.padding_us(copied, item, device)
    return us if split_k == 1 else us + model.parts_us(count * p.m * p.n, split_k, device)


def _predict(c: GemmTile, p: GemmProblem, device: Device) -> tuple[float, str] | str:
    if (parts := c.split_k * (p.batch or 1)) > MOST_BLOCKS_YZ:
        return f"{parts} parts of products, of which a grid has {MOST_BLOCKS_YZ}"
    if c.kernel == "gemm_sm90":
        if (reason := sm90_time.refused(c, p, device)) is not None:
            return reason
        us, remark = sm90_time.product_us(c, p, device)
        return us + _around_us(p, c.pad, 1, device) + sm90_time.split_us(p, c.split_k, device), remark
    if sm90_time.alone(p):
        return f"{c.kernel} has no product of {p.dtype}" + " with scales" * (p.scales is not None)
    shape, tile = _shape(p), as_tile(c)
    if (reason := judge(tile, shape, device)) is not None:
        return reason
    worst = min(16 if padded else a for padded, a in zip(c.pad, p.align[:2], strict=True))
    if worst < 4 and tile.bm * tile.bn > 64 * 64:
        return f"lines of {worst} bytes pass through registers, which leave no room for {tile.bm}x{tile.bn} sums"
    if worst >= 4 and copies_spill(tile.bm, tile.bn, tile.bk * shape.element_bytes, c.warps, worst):
        return f"copies of {worst} bytes take so many registers that sums would spill"
    e = model.estimate(tile, shape, device)
    waves = f"{e.waves:.2f} waves of {e.blocks_per_sm} blocks an SM"
    around_us = _around_us(p, c.pad, c.split_k, device)
    return e.us * SLOWER[worst] + around_us, f"{waves}, tensor cores {e.busy:.0%} busy, bound by {e.bound}"


def _fitted(c: GemmTile, p: GemmProblem, device: Device) -> GemmTile:
    """A record's tile, whose stages leave room for what a problem with terms keeps beside them."""
    if c.kernel != "gemm_sm90" or sm90_time.impossible(replace(c, stages=2), p, device) is not None:
        return c
    return replace(c, stages=min(c.stages, sm90_time.staged(c, p, device).stages))


def _unusable(c: GemmTile, p: GemmProblem, device: Device) -> str | None:
    c, new = _fitted(c, p, device), c.kernel == "gemm_sm90"
    if sm90_time.alone(p) and not new:
        return f"{c.kernel} has no product of {p.dtype}"
    reason = sm90_time.impossible(c, p, device) if new else impossible(as_tile(c), _shape(p), device)
    if reason is None:
        gemm_launches(p, c)  # refuses a configuration without a kernel, with a code
    return reason


def gemm_key(p: GemmProblem) -> tuple[str, str]:
    """The dtype and shape class of a product: sizes to the nearest power of two or half above, order, alignment.

    Products with an activation, a residual or C itself have classes of their own, since their results take longer.
    """
    m, n, k, batch = (shape_class(x) for x in (p.m, p.n, p.k, p.batch or 1))
    align = "x".join(map(str, p.align))
    work = "" if p.workspaces else " no workspaces"
    kind = " ".join([p.dtype, *filter(None, (p.b_dtype, "promoted" * p.promote, "scaled" * _scaled_integers(p)))])
    activation = "a function" if callable(p.activation) or p.epilogue is not None else p.activation
    terms = ", ".join(filter(None, (activation, "residual" * p.residual, "C" * p.beta)))
    return kind, f"{batch} of {m}x{n}x{k} {p.order} align {align}{work}" + f" with {terms}" * bool(terms)


def _group(tiles_m: int, tiles_n: int) -> int:
    """Rows of tiles that go together: useful in large grids, unless the last group would lack many rows."""
    return 8 if min(tiles_m, tiles_n) >= 16 and (tiles_m % 8 == 0 or tiles_m >= 64) else 1


def estimate(p: GemmProblem, device: Device) -> GemmTile:
    """The tile that is expected to be the fastest, by the models of `gemm_sm80` and, where there is wgmma, `gemm_sm90`.

    Raises VerifyError KERNEL_ARGUMENT if none of them fits into the shared memory of a block.
    """
    best = None if sm90_time.alone(p) else min(_expected(p, device), key=lambda c: c[0], default=None)
    new = min(_expected_by_wgmma(p, device), key=lambda c: c[0], default=None)
    old_us = 0.0 if best is None else best[0] * BY_MMA[TYPES[p.dtype].bits]
    if new is not None and (best is None or new[0] <= max(old_us, 1.3 * sm90_time.memory_us(p, device))):
        best = new
    if best is None and sm90_time.alone(p) and not sm90_time.serves(p, device):
        _core.fail("KERNEL_ARGUMENT", f"select_gemm: no kernel for this product of {p.dtype}",
                   ["want: order TN on sm_90a", f"got: order {p.order} on {device.arch}"],
                   "name a Hopper card, and copy operands to lines along k")  # fmt: skip
    if best is None:
        _core.fail("KERNEL_ARGUMENT", "select_gemm: shared_bytes does not fit",
                   ["want: room for the stages of one of the tiles", f"got: {device.shared_bytes}"],
                   "pass what a block of the device may have")  # fmt: skip
    return best[1]()


def _expected_by_wgmma(p: GemmProblem, device: Device) -> Iterator[tuple[float, Callable[[], GemmTile]]]:
    """Expected microseconds of tiles of gemm_sm90, which are made when they are taken."""
    for t in sm90_time.candidates(p, device):
        for pad, split in _variants(p, t, device):
            us, _ = sm90_time.product_us(t, p, device, split, pad)
            us += _around_us(p, pad, 1, device) + sm90_time.split_us(p, split, device)
            yield us * slower(p, t, pad, split), functools.partial(_staged, t, pad, split, p, device)


def _staged(t: GemmTile, pad: tuple[bool, bool], split: int, p: GemmProblem, device: Device) -> GemmTile:
    return sm90_time.staged(sm90_time.grouped(replace(t, pad=pad, split_k=split), p), p, device)


def _expected(p: GemmProblem, device: Device) -> Iterator[tuple[float, Callable[[], GemmTile]]]:
    """Expected microseconds of the measured tiles of gemm_sm80 (`graphene.select.model`), made when they are taken."""
    item, count = TYPES[p.dtype].bits // 8, 1 if p.batch is None else p.batch
    k_tile = 128 // item
    lengths = p.k if p.order[0] == "T" else p.m, p.k if p.order[1] == "N" else p.n

    def straddling(pad: tuple[bool, bool]) -> bool:
        return any(n * item % 128 and not padded for n, padded in zip(lengths, pad, strict=True))

    def tile(t: model.MeasuredTile, ks: int, pad: tuple[bool, bool], split: int) -> GemmTile:
        group = _group(-(-p.m // t.rows), -(-p.n // t.columns))
        return GemmTile((t.rows, t.columns, ks), t.warps, t.stages, group, pad, split)

    pads = _pads(p) if max(p.m, p.n, p.k) <= PADDED_MOST else [(False, False)]
    for pad in pads:
        worst = min(16 if padded else a for padded, a in zip(pad, p.align, strict=False))
        before = _around_us(p, pad, 1, device)
        for t in TILES:
            held = worst < 4  # tiles pass through registers
            ks = k_tile // 2 if held and t.rows > 32 else k_tile
            if (t.rows + t.columns) * ks * item * t.stages > device.shared_bytes:
                continue
            if item == 4 and (t.rows > 128 or t.columns == 192):
                continue  # slower than 128x256, as measured
            if copies_spill(t.rows, t.columns, ks * item, t.warps, worst):
                continue
            if held and t.rows * t.columns > 64 * 64:
                continue  # they leave no room for more accumulators
            slower = SLOWER[worst] * t.straddling if worst == 16 and straddling(pad) else SLOWER[worst]
            parts = splits(p.m, p.n, p.k, count, t.rows, t.columns, k_tile, device.sm_count)
            for split in parts if p.workspaces else (1,):
                us = before + model.measured_us(t, p.m, p.n, p.k, count, split, slower, device)
                if split > 1:
                    us += model.SPLIT_US + model.parts_us(count * p.m * p.n, split, device)
                yield us, functools.partial(tile, t, ks, pad, split)


def choose(p: GemmProblem, device: Device) -> GemmTile:
    """The tile of the record of a product's shape class on a device, else the estimated one (`best_known`).

    Without a record of the product with its terms, the record with another activation is taken, or else that of the
    product without terms. A tile that is known to spill (`graphene.select.avoided`) is passed over.
    """
    alone = replace(p, activation=None, epilogue=None, residual=False, beta=False) if _scaled_integers(p) else p.plain
    of = p if _scaled_integers(p) else alone
    alike = [replace(p, activation=name) for name in _other_activations(p)]
    expected = functools.cache(lambda: estimate(p, device))
    known = _fitted(best_known(GEMM, p, device, expected, of, (*alike, alone)), p, device)
    return expected() if slower(p, known, known.pad, known.split_k) > 1 else known


def _other_activations(p: GemmProblem) -> list[str | None]:
    """Activations with which a product with terms takes about as long; None if it has terms beside them."""
    terms = p.residual or p.beta
    if p.epilogue is not None or not (terms or p.activation):
        return []
    return [name for name in ACTIVATIONS if name != p.activation and (name is not None or terms)]


def _suits(c: GemmTile, estimated: GemmTile, p: GemmProblem, device: Device) -> bool:
    """Whether the model expects a record's tile, which serves a class of sizes, to serve these sizes.

    It does not if the tile takes a tenth longer than the estimated one, for example for a last wave with few blocks.
    For gemm_sm90, whose model is closer, a fiftieth is enough.
    """
    expected, other = _predict(_fitted(c, p, device), p, device), _predict(estimated, p, device)
    within = 1.02 if c.kernel == "gemm_sm90" else 1.1
    return not isinstance(expected, str) and (isinstance(other, str) or expected[0] <= within * other[0])


GEMM: Tunable[GemmProblem, GemmTile] = Tunable(
    "gemm",
    GemmTile,
    _candidates,
    _predict,
    lambda config, p: TrialRun(config.config(p), p),
    arguments,
    gemm_key,
    version=1,
    verify=verify,
    incumbent=lambda p, device: estimate(p, device),
    reference=reference,
    unusable=_unusable,
    suits=_suits,
    alike=lambda c: (c.kernel, c.tile[:2], c.pad, c.split_k, c.terms_in_stages),
)


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
    sms: int | None = None,
    shared_bytes: int | None = None,
    workspaces: bool = True,
    device: str | None = None,
    b_dtype: str | None = None,
    scales: str | None = None,
    promote: bool = False,
) -> GemmConfig:
    """The configuration that was measured, or is estimated, to be the fastest for one product of these sizes.

    ``batch``: None for one product of plain matrices. ``sms``, ``shared_bytes``: multiprocessors and the most shared
    memory of a block, if not the device's own. ``workspaces``: whether configurations that need workspaces may be taken
    (split-K, padded copies). ``device``: the name of a GPU, such as "NVIDIA H200", whose tuning records come before the
    estimate (docs/tuning.md), and whose own instructions may be used. Without it the kernels run on any architecture
    from sm_80 up. The other arguments are those of GemmConfig. Sizes may be 0. Raises VerifyError KERNEL_ARGUMENT.
    """
    align = check_product("select_gemm", dtype, out, order, align, activation)  # type: ignore[assignment]
    M, N, K = (size("select_gemm", n, x, least=0) for n, x in (("M", M), ("N", N), ("K", K)))
    batch = None if batch is None else size("select_gemm", "batch", batch, least=0)
    if device is not None and not isinstance(device, str):
        _core.fail("KERNEL_ARGUMENT", "select_gemm: device does not fit",
                   ['want: the name of a GPU, such as "NVIDIA H200", or None', f"got: {device!r}"])  # fmt: skip
    p = GemmProblem(M, N, K, batch, dtype, order, align, bias, residual, activation, workspaces, out, alpha, beta,
                    b_dtype=b_dtype, scales=scales, promote=promote)  # fmt: skip
    where = PORTABLE if device is None else named(device)
    sms = where.sm_count if sms is None else size("select_gemm", "sms", sms)
    shared_bytes = where.shared_bytes if shared_bytes is None else size("select_gemm", "shared_bytes", shared_bytes)
    where = where.of_size(sms, shared_bytes)
    return (estimate(p, where) if device is None else choose(p, where)).config(p)
