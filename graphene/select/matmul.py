"""The tile model as a tunable: tiles of a matrix product, for any kernel that takes such tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.kernels.arguments import choice, function, size
from graphene.select.device import Device, the_device
from graphene.select.model import estimate
from graphene.select.tiles import MatmulShape, Tile, judge, tiles_for
from graphene.select.tunable import Selection, Tunable, rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.select.tunable import Runnable

__all__ = ["matmul_tiles", "predict_tile", "shape_class", "tile_kind"]


def predict_tile(tile: Tile, shape: MatmulShape, device: Device) -> tuple[float, str] | str:
    """Expected microseconds and what limits them, or why the tile does not serve this product."""
    if (reason := judge(tile, shape, device)) is not None:
        return reason
    e = estimate(tile, shape, device)
    waves = f"{e.waves:.2f} waves of {e.blocks_per_sm} blocks an SM"
    return e.us, f"{waves}, tensor cores {e.busy:.0%} busy, bound by {e.bound}"


def tile_kind(tile: Tile) -> object:
    """The common part of tiles that differ only in stages and warps."""
    return tile.bm, tile.bn, tile.split_k


def shape_class(size: int) -> int:
    """The representative of a size: the nearest power of two or three quarters of one, so that neighbours share it."""
    if size <= 1:
        return 1
    power = 1 << (size.bit_length() - 1)
    return min((power, power * 3 // 2, 2 * power), key=lambda x: abs(x - size))


def _no_kernel(tile: Tile, shape: MatmulShape) -> Runnable:
    raise TypeError("tiles alone are not a kernel: rank them, or use a kernel's own tunable")


_TILES: Tunable[MatmulShape, Tile] = Tunable(
    "tiles", Tile, tiles_for, predict_tile, _no_kernel, lambda shape: (), lambda shape: ("", ""),
)  # fmt: skip


def matmul_tiles(
    m: int,
    n: int,
    k: int,
    device: Device | str = "sm_90a",
    batch: int = 1,
    element_bytes: int = 2,
    count: int = 8,
    only: Callable[[Tile], bool] = lambda tile: True,
) -> Selection[Tile]:
    """A ranked list of tiles for ``batch`` products (m, k) @ (k, n), and why each other candidate was rejected.

    ``device``: a Device or an architecture. ``only``: the tiles that are looked at. Raises VerifyError KERNEL_ARGUMENT,
    SelectError TUNE_NO_CANDIDATE.
    """
    n_ = "matmul_tiles"
    m, n, k, batch = (size(n_, a, x) for a, x in (("m", m), ("n", n), ("k", k), ("batch", batch)))
    choice(n_, "element_bytes", element_bytes, (1, 2, 4, 8))
    function(n_, "only", only, ["tile"], "of a tile, such as lambda tile: tile.stages > 2")
    where = the_device(n_, device, index=False)
    rates = {1: 2.0, 2: 1.0, 4: 0.5, 8: 0.03}
    shape = MatmulShape(m, n, k, batch, element_bytes, 2, 32 // element_bytes, rates.get(element_bytes, 1.0))
    chosen = Tunable(
        f"{m}x{n}x{k}", Tile, lambda s, d: filter(only, tiles_for(s, d)), _TILES.predict, _TILES.build,
        _TILES.arguments, _TILES.key, alike=tile_kind,
    )  # fmt: skip
    return rank(chosen, shape, where, count)
