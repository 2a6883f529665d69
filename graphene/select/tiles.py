"""Tile sizes of a matrix product on tensor cores, and the rules that admit them.

The rules are those of V. Khandelwal, *Performance Analysis of Tiling for Automatic Code Generation for GPU Tensor Cores
using MLIR* (thesis, Indian Institute of Science, 2021), equations 5.1 to 5.3 and section 5.3. They know the size of an
element and of shared memory; ``judge`` adds registers, stages, the instruction's shape and the problem's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from graphene import _core
from graphene.kernels.arguments import instance, number, size, sizes
from graphene.select.device import Device, the_device

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MatmulShape",
    "Tile",
    "impossible",
    "judge",
    "thesis_block_tiles",
    "thesis_warp_tiles",
    "tiles_for",
    "up",
]

WARP = 32
REGISTERS = 255  # the most registers of a thread
SIZES = (16, 32, 64, 128, 256, 512)


def thesis_block_tiles(element_bytes: int, shared_kib: int) -> list[tuple[int, int, int]]:
    """Block tiles (Tm, Tn, Tk) that equations 5.1 to 5.3 admit, the best first: powers of two, 16 to 512.

    5.1: Tm = Tn. 5.2: Tm, Tn >= 2 Tk. 5.3: (Tm Tk + Tn Tk) * element_bytes <= shared memory. "The larger the tile, the
    better" (section 4.2) ranks by the shared memory used, and equal tiles by Tk, which makes fewer steps, each closer
    to the bound of 5.2. ``thesis_block_tiles(2, 48)[0] == (128, 128, 64)``. Raises VerifyError KERNEL_ARGUMENT.
    """
    element_bytes = size("thesis_block_tiles", "element_bytes", element_bytes)
    shared_kib = size("thesis_block_tiles", "shared_kib", shared_kib)
    tiles = [(t, t, k) for t in SIZES for k in SIZES
             if t >= 2 * k and 2 * t * k * element_bytes <= shared_kib * 1024]  # fmt: skip
    return sorted(tiles, key=lambda x: (-x[0] * x[2], -x[2]))


def thesis_warp_tiles(block: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Warp tiles (Wm, Wn, Wk) that section 5.3 admits for a block tile, the largest first.

    Each extent is at most half the block's and at least 16; (Tm / Wm) (Tn / Wn) * 32 threads are at most 1024. Raises
    VerifyError KERNEL_ARGUMENT.
    """
    tm, tn, tk = sizes("thesis_warp_tiles", "block", block, 3)
    halves = [[s for s in SIZES if 2 * s <= t] for t in (tm, tn, tk)]
    tiles = [
        (wm, wn, wk)
        for wm, wn, wk in product(halves[0], halves[1], halves[2])
        if (tm // wm) * (tn // wn) * WARP <= 1024
    ]
    return sorted(tiles, key=lambda w: (-w[0] * w[1], -w[2], abs(w[0] - w[1])))


@dataclass(frozen=True)
class MatmulShape:
    """``batch`` products (M, K) @ (K, N) of elements of ``element_bytes``, summed in fp32, stored in ``out_bytes``.

    ``k_step``: how much of K one matrix instruction takes; ``rate``: its speed relative to 16-bit operands. Raises
    VerifyError KERNEL_ARGUMENT.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    element_bytes: int = 2
    out_bytes: int = 2
    k_step: int = 16
    rate: float = 1.0

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            size("MatmulShape", name, getattr(self, name), least=0)
        for name in ("element_bytes", "out_bytes", "k_step"):
            size("MatmulShape", name, getattr(self, name))
        number("MatmulShape", "rate", self.rate, positive=True)


@dataclass(frozen=True, order=True)
class Tile:
    """Sizes of one configuration: a block's tile, a warp's, stages of shared memory, parts of K.

    Raises VerifyError KERNEL_ARGUMENT for anything but a size, and if warps' tiles do not make up the block's.
    """

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int
    split_k: int = 1

    def __post_init__(self) -> None:
        values = self.bm, self.bn, self.bk, self.wm, self.wn, self.stages, self.split_k
        if any(type(v) is not int or v < 1 for v in values):  # asked first, because there are many tiles
            for name, value in zip(("bm", "bn", "bk", "wm", "wn", "stages", "split_k"), values, strict=True):
                size("Tile", name, value)
        if self.bm % self.wm or self.bn % self.wn:
            want = "want: tiles of warps that divide the block's"
            got = f"got: {self.bm}x{self.bn} by {self.wm}x{self.wn}"
            _core.fail("KERNEL_ARGUMENT", "Tile: warps' tiles do not make up the block's", [want, got])

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return (self.bm // self.wm) * (self.bn // self.wn)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP

    def shared_bytes(self, shape: MatmulShape) -> int:
        """Shared memory of a block: the stages, whose memory the output tile takes afterwards."""
        staged = self.stages * (self.bm + self.bn) * self.bk * shape.element_bytes
        return max(staged, self.bm * self.bn * shape.out_bytes)

    def _registers(self, shape: MatmulShape, fragments: int) -> int:
        each = (self.wm + self.wn) * shape.k_step * shape.element_bytes // (4 * WARP)
        return self.wm * self.wn // WARP + fragments * each + 52

    def registers(self, shape: MatmulShape) -> int:
        """About the registers of a thread: accumulators, fragments twice, addresses and loops.

        The number is at most 255. If a thread needs more, compilers load the second fragments later.
        """
        return min(self._registers(shape, 2), REGISTERS)

    def least_registers(self, shape: MatmulShape) -> int:
        """About the registers without which a thread spills: as `registers`, with fragments once."""
        return self._registers(shape, 1)

    def __str__(self) -> str:
        split = f" /{self.split_k}" if self.split_k > 1 else ""
        return f"{self.bm}x{self.bn}x{self.bk} by {self.wm}x{self.wn}, {self.stages} stages{split}"


def up(a: int, b: int) -> int:
    """A quotient, rounded up."""
    return -(-a // b)


def tiles_for(shape: MatmulShape, device: Device) -> Iterator[Tile]:
    """Every tile that is looked at: powers of two, two to five stages, K whole or, for few tiles, in parts."""
    ks = (32, 64) if shape.element_bytes > 1 else (64, 128)
    if shape.element_bytes > 2:
        ks = (16, 32)
    for bm, bn, bk in product((32, 64, 128, 256), (32, 64, 128, 256), ks):
        blocks = up(shape.m, bm) * up(shape.n, bn) * shape.batch
        splits = [
            s for s in (1, 2, 4, 8, 16) if s == 1 or (blocks * s <= 2 * device.sm_count and shape.k >= 2 * s * bk)
        ]
        for wm, wn, stages, split in product((16, 32, 64), (16, 32, 64, 128), (2, 3, 4, 5), splits):
            if wm <= bm and wn <= bn:
                yield Tile(bm, bn, bk, wm, wn, stages, split)


def impossible(tile: Tile, shape: MatmulShape, device: Device) -> str | None:
    """Why a tile cannot be used on a device, for a product of any sizes, in words; None if it can be."""
    if tile.threads > device.max_threads:
        return f"{tile.threads} threads, at most {device.max_threads}"
    if (need := tile.shared_bytes(shape)) > device.shared_bytes:
        return f"{need} bytes of shared memory, at most {device.shared_bytes}"
    if (need := tile.least_registers(shape)) > REGISTERS:
        return f"about {need} registers a thread, at most {REGISTERS}: it would spill"
    if (need := up(tile.registers(shape), 8) * 8 * tile.threads) > device.registers:
        return f"about {need} registers a block, at most {device.registers}"
    if tile.bk < shape.k_step or tile.bk % shape.k_step:
        return f"k step {tile.bk} is not a multiple of the instruction's {shape.k_step}"
    return None


def checked(function: str, tile: Tile, shape: MatmulShape, device: Device | str) -> Device:
    """The device. Raises VerifyError KERNEL_ARGUMENT unless all arguments have the right classes."""
    instance(function, "tile", tile, Tile)
    instance(function, "shape", shape, MatmulShape)
    return the_device(function, device, index=False)


def judge(tile: Tile, shape: MatmulShape, device: Device | str) -> str | None:
    """Why a tile cannot be used or is not worth a try, in words; None if it is worth one.

    ``device``: a Device or an architecture. Raises VerifyError KERNEL_ARGUMENT.
    """
    device = checked("judge", tile, shape, device)
    if tile.warps < 4 and tile.bm * tile.bn > 64 * 64:
        return f"{tile.warps} warps leave tensor cores idle: a multiprocessor has four"
    if (reason := impossible(tile, shape, device)) is not None:
        return reason
    for name, covered, extent in (("rows", tile.bm, shape.m), ("columns", tile.bn, shape.n)):
        if covered >= 2 * extent and covered > 32:
            return f"{covered} {name} of which {covered - extent} are always outside"
    if tile.stages > 2 and tile.stages > up(shape.k, tile.bk * tile.split_k) + 1:
        return f"{tile.stages} stages, but {up(shape.k, tile.bk * tile.split_k)} steps"
    return None
