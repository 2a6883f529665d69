"""A short list of measured tiles of a product, and how long one takes with each: waves of blocks, split-K."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SPLITS", "TILES", "MeasuredTile", "copies_spill", "estimate_us", "splits"]


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
