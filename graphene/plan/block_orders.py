"""How tiles of a product for Hopper come to blocks: one each, several in turn, or by two blocks of a cluster.

The library has the same ways (`graphene.kernels.gemm.sm90`), and a model of their times that was fitted to an H200
(`graphene.select.sm90_time`). A plan leaves a tile to each block unless that model expects another way to be faster by
a tenth: most plans were measured so.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphene.kernels.gemm.problem import GemmProblem, GemmTile
from graphene.kernels.tma import clusters_at_once
from graphene.plan.decisions import refuse_pin
from graphene.plan.product_tiles import ProductTile, size_of
from graphene.select import sm90_time
from graphene.select.model import LAUNCH_US
from graphene.select.tiles import up

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.plan.decisions import Decisions
    from graphene.plan.form import ProductForm
    from graphene.select.device import Device

__all__ = ["ALONE", "ALONG_K", "ALONG_ROWS", "TURNS", "BlockOrder", "BlockWay", "choose", "grouped", "share_bytes"]

ALONE, ALONG_K, ALONG_ROWS = "none", "2 along k", "2 along rows"
A_TILE, PERSISTENT, TURNS = "a tile", "persistent", "persistent, in turns"
GROUP = 8  # rows of tiles that go together; all tiles of a row, where there are few columns of tiles
GAIN = 1.1  # by which another way must be faster than a tile for each block
# A block starts, its first stages come, and its result is stored while nothing is multiplied: what planned kernels took
# longer than persistent ones of the library with the same tile, on an H200 (4, 4 and 9 rounds: 1.6, 1.3 and 2.0 us).
ROUND_US = 1.6
ROWS, COLUMNS = (64, 128), (64, 128, 192, 256)
STAGES = (12, 10, 9, 8, 7, 6, 5, 4, 3, 2)  # of equal times, the most
STEP = 64
NOT_BOTH = "blocks of a cluster compute a tile"

Times = dict[ProductTile, "str | tuple[float, str]"]


@dataclass(frozen=True)
class BlockWay:
    """The blocks of a cluster that work together, and what a block computes."""

    cluster: str = ALONE
    blocks: str = A_TILE


@dataclass(frozen=True)
class BlockOrder(BlockWay):
    """A way, and how many rows of tiles go together where a block goes on to further tiles."""

    group: int = GROUP

    @property
    def alone(self) -> bool:
        """Whether each block computes one tile on its own."""
        return self.cluster == ALONE and not self.persistent

    @property
    def persistent(self) -> bool:
        """Whether a block goes on to further tiles."""
        return self.blocks != A_TILE

    @property
    def turns(self) -> bool:
        """Whether two warpgroups have a tile each, and one multiplies while the other stores."""
        return self.blocks == TURNS


WAYS = (BlockWay(), BlockWay(ALONE, PERSISTENT), BlockWay(ALONE, TURNS), BlockWay(ALONG_K), BlockWay(ALONG_ROWS))


def share_bytes(tile: ProductTile) -> int:
    """Shared memory for the sums of the other block that sums a part of k."""
    return tile.m * tile.n * 4


def why_not(form: ProductForm) -> str:
    """Why only a tile for each block is planned; empty if there are other ways."""
    if len(form.dots) != 1 or form.gather is not None:
        return "several products, and windows, are planned with a tile for each block"
    return ""


def problem(form: ProductForm, sizes: dict[str, int]) -> GemmProblem:
    """The product as the library's model sees it."""
    m, n, k = (size_of(a, sizes) for a in (form.rows, form.columns, form.k))
    read = any(len(v.axes) == 2 for v in form.beside())
    return GemmProblem(m, n, k, None, str(form.dtype), "TN", residual=read, out=str(form.output.dtype))


def _library(tile: ProductTile, way: BlockWay) -> GemmTile:
    across = {ALONE: (1, 1, 1), ALONG_K: (1, 1, 2), ALONG_ROWS: (2, 1, 1)}[way.cluster]
    return GemmTile((tile.m, tile.n, tile.k), (tile.m // 16, 1), 2, GROUP, kernel="gemm_sm90", cluster=across,
                    turns=way.blocks == TURNS)  # fmt: skip


def _refused(way: BlockWay, tile: ProductTile, p: GemmProblem, device: Device) -> str:
    """Why a way is nothing for a tile; empty if it is something."""
    rows, columns = up(p.m, tile.m), up(p.n, tile.n)
    if way.blocks == TURNS and tile.m > ROWS[0]:
        return "a tile of one warpgroup has 64 rows"
    if way.blocks != A_TILE and rows * columns <= device.sm_count:
        return "every tile has a multiprocessor of its own"
    if way.cluster == ALONE:
        return ""
    clusters = rows * columns if way.cluster == ALONG_K else up(rows, 2) * columns
    if clusters > (most := clusters_at_once(device.sm_count, 2)):
        return f"{clusters} clusters of blocks, of which {most} run at once"
    if way.cluster == ALONG_K and up(p.k, STEP) < 2:
        return "k of one step"
    return "one row of tiles" if way.cluster == ALONG_ROWS and rows < 2 else ""


def _times(way: BlockWay, p: GemmProblem, device: Device, fits: Callable[[ProductTile, BlockWay], str]) -> Times:
    """Expected times of every tile in a way, by the library's model, or why there is none."""
    found: Times = {}
    for m, n in itertools.product(ROWS, COLUMNS):
        cost: tuple[float, str] | None = None
        for stages in STAGES:
            tile = ProductTile(m, n, STEP, stages, (m // 16, 1))
            if why := _refused(way, tile, p, device) or fits(tile, way):
                found[tile] = why
                continue
            if cost is None:
                us, bound = sm90_time.product_us(_library(tile, way), p, device)
                rounds = up(up(p.m, m) * up(p.n, n), device.sm_count)
                us += ROUND_US * rounds if way == BlockWay() and rounds > 1 else 0.0
                cost = us - sm90_time.LAUNCH_US + LAUNCH_US, bound.split("bound by ")[-1]
            found[tile] = cost
    return found


def choose(
    d: Decisions, form: ProductForm, sizes: dict[str, int], device: Device, fits: Callable[[ProductTile, BlockWay], str]
) -> tuple[BlockOrder, Times]:
    """The way of least expected time, and the times of its tiles. Raises SelectError PLAN_PIN.

    ``fits``: why a tile cannot be used in a way; empty if it can. Where each block has a tile, the times are none.
    """
    if only := why_not(form):
        d.take("cluster", {ALONE: 0.0, ALONG_K: only, ALONG_ROWS: only}, lambda _: only)
        d.take("blocks", {A_TILE: 0.0, PERSISTENT: only, TURNS: only}, lambda _: only)
        return BlockOrder(), {}
    p = problem(form, sizes)
    pinned = {path: d.pins[path] for path in ("tile.m", "tile.n", "stages") if path in d.pins}
    times = {way: _times(way, p, device, fits) for way in WAYS}
    least: dict[BlockWay, float | str] = {}
    for way, found in times.items():
        own = {} if way == BlockWay() else pinned  # a tile for each block has further tiles
        kept = {t: c for t, c in found.items() if all(t.values()[path] == v for path, v in own.items())}
        costs = [c[0] for c in kept.values() if not isinstance(c, str)]
        why = next((c for c in reversed(kept.values()) if isinstance(c, str)), "other tiles")  # of the fewest stages
        least[way] = min(costs) if costs else math.inf if way == BlockWay() else why
    base = least[BlockWay()]
    assert not isinstance(base, str)
    least[BlockWay()] = (base - LAUNCH_US) / GAIN + LAUNCH_US
    by = f"by the library's model; {base:.1f} us with a tile for each block, of which other ways are to save a tenth"
    said = {
        ALONE: "blocks load and sum on their own", ALONG_K: "two blocks sum half of k each, and one adds up both",
        ALONG_ROWS: "two blocks, one below the other, load half of the columns each for both",
        A_TILE: "as many blocks as tiles", PERSISTENT: "as many blocks as multiprocessors go through the tiles",
        TURNS: "as many blocks as multiprocessors go through the tiles; a warpgroup stores while the other multiplies",
    }  # fmt: skip
    known = d.pins.get("blocks") in (A_TILE, PERSISTENT, TURNS)
    clusters: dict[Any, float | str] = {}
    for name in (ALONE, ALONG_K, ALONG_ROWS):
        of = [c for w, c in least.items() if w.cluster == name and (not known or d.pins["blocks"] == w.blocks)]
        clusters[name] = min((c for c in of if not isinstance(c, str)), default=str(of[0]) if of else NOT_BOTH)
    if known and all(isinstance(c, str) for c in clusters.values()):
        refuse_pin("blocks", d.pins["blocks"], *(f"cluster {n}: {c}" for n, c in clusters.items()))
    cluster = d.take("cluster", clusters, lambda v: f"{said[v]}; {by}", "us")
    ways = {n: least.get(BlockWay(cluster, n), NOT_BOTH) for n in (A_TILE, PERSISTENT, TURNS)}
    blocks = d.take("blocks", ways, lambda v: f"{said[v]}; {by}", "us")
    return BlockOrder(cluster, blocks), times[BlockWay(cluster, blocks)]


def grouped(d: Decisions, order: BlockOrder, tile: ProductTile, form: ProductForm, sizes: dict[str, int]) -> BlockOrder:
    """The way with the number of rows of tiles that go together, where a block goes on to further tiles."""
    if not order.persistent:
        return order
    few = up(size_of(form.columns, sizes), tile.n) <= sm90_time.FEW_COLUMNS
    said = "rows of tiles that go together, and share what the L2 cache holds"
    return replace(order, group=d.put("blocks.group", 1 if few else GROUP, said))
