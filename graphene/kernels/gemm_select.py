"""Which configuration to take for a product: a short list of tiles, waves of blocks, split-K, padded copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphene import _core
from graphene.kernels._arguments import size
from graphene.kernels.gemm import TYPES, GemmConfig, check_product
from graphene.kernels.gemm_helpers import PADDED_MOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["SPLITS", "TILES", "MeasuredTile", "estimate_us", "select_gemm", "splits"]


@dataclass(frozen=True)
class MeasuredTile:
    """A tile with 128 bytes of k a stage, and what it was measured to take on an H200, 16-bit operands.

    ``blocks_per_sm``: how many run beside each other. ``ns_alone``, ``ns_beside``: for each k, of a block that has an
    SM for itself, of one that shares it, times the share. ``us_once``: before and after the loop over k.
    """

    rows: int
    columns: int
    stages: int
    warps: tuple[int, int]
    blocks_per_sm: int
    ns_alone: float
    ns_beside: float
    us_once: float

    @property
    def straddling(self) -> float:
        """How many times the time it takes where lines begin in the middle of the caches' lines, of 128 bytes."""
        return 1.6 if min(self.rows, self.columns) <= 64 else 1.15


TILES = (
    MeasuredTile(256, 128, 3, (4, 2), 1, 16.0, 16.0, 3.2),
    MeasuredTile(128, 256, 3, (2, 4), 1, 16.4, 16.4, 3.4),
    MeasuredTile(192, 128, 3, (4, 2), 1, 13.1, 13.1, 3.0),
    MeasuredTile(128, 192, 3, (2, 4), 1, 13.5, 13.5, 3.0),
    MeasuredTile(96, 192, 3, (2, 4), 1, 11.5, 11.5, 2.8),
    MeasuredTile(192, 96, 3, (4, 2), 1, 12.1, 12.1, 2.8),
    MeasuredTile(128, 128, 3, (2, 2), 2, 9.9, 9.2, 2.6),
    MeasuredTile(96, 96, 4, (2, 3), 2, 7.7, 6.3, 2.4),
    MeasuredTile(128, 64, 3, (2, 2), 2, 7.4, 5.4, 2.2),
    MeasuredTile(64, 128, 3, (2, 2), 2, 7.5, 5.5, 2.2),
    MeasuredTile(64, 64, 4, (2, 2), 3, 5.2, 3.5, 2.0),
    MeasuredTile(64, 64, 3, (2, 2), 4, 5.5, 3.5, 2.0),
    MeasuredTile(32, 64, 4, (2, 2), 5, 4.6, 2.3, 2.0),
)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
LAUNCH_US = 3.5
SLOWER = {16: 1.0, 8: 1.35, 4: 1.55, 2: 4.0, 1: 8.0}  # copies of so many bytes, through registers below 4
SPLIT_US = 2.7  # of the kernel that adds up parts
PART_US = 0.05  # of one more part there: its latency
BYTES_PER_US = 2.5e6  # of a kernel that reads and writes workspaces


def estimate_us(tile: MeasuredTile, M: int, N: int, K: int, batch: int, sms: int, split_k: int, slower: float) -> float:
    """About how long a product takes with a tile, in microseconds."""
    blocks = -(-M // tile.rows) * -(-N // tile.columns) * batch * split_k
    k = -(-K // split_k)
    a_wave = sms * tile.blocks_per_sm
    full, rest = divmod(blocks, a_wave)
    us = LAUNCH_US + full * (tile.us_once + k * tile.ns_beside * tile.blocks_per_sm * 1e-3 * slower)
    beside = -(-rest // sms)
    if beside:
        us += tile.us_once + k * max(tile.ns_alone, beside * tile.ns_beside) * 1e-3 * slower
    if split_k > 1:
        us += SPLIT_US + split_k * PART_US + batch * M * N * (8 * split_k + 2) / BYTES_PER_US
    return us


def copies_spill(rows: int, columns: int, line_bytes: int, warps: tuple[int, int], narrowest: int) -> bool:
    """Whether a thread makes so many copies of `narrowest` bytes beside its sums that it has too few registers.

    Each copy has an address and a predicate. Of those compiled for sm_90a, 72 sums spill beside 36 copies, but 64 do
    not beside 48, nor 128 beside 32.
    """
    threads = 32 * warps[0] * warps[1]
    return rows * columns >= 72 * threads and (rows + columns) * line_bytes >= 36 * narrowest * threads


def splits(M: int, N: int, K: int, batch: int, rows: int, columns: int, k_tile: int, sms: int) -> list[int]:
    """In how many parts k may be summed: of four steps each, up to 16, more where there are too few blocks."""
    blocks = -(-M // rows) * -(-N // columns) * batch
    most = max(1, min(K // (4 * k_tile), 65535 // max(batch, 1)))
    return [s for s in SPLITS if s <= most and (s <= 16 or blocks * s <= 2 * sms)]


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
    from graphene.tune.gemm import with_record  # it is built on this module

    return with_record(estimated, (M, N, K), batch, workspaces, device, sms, shared_bytes)
