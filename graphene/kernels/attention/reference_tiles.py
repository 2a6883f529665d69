"""Meanings of the gradients' kernels for sm_90a: numbers of rows, and the work space that passes dS on, in tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.kernels.attention.reference import LOG2E, gradients, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphene.kernels.attention.problem import Attention

TILE = 64  # queries of a tile


def tiled(LSE: Any, delta: Any) -> Any:
    """The numbers of rows, tile by tile: -LSE in units of log2(e), which is -inf without keys or queries; delta."""
    import numpy as np

    *front, sq = LSE.shape
    tiles = -(-sq // TILE)
    rows = np.zeros_like(LSE, shape=(*front, 2, tiles * TILE))
    rows[..., 0, :] = -np.inf
    rows[..., 0, :sq] = np.where(np.isinf(LSE), -np.inf, LSE * -LOG2E)
    rows[..., 1, :sq] = delta
    return rows.reshape(*front, 2, tiles, TILE).swapaxes(-2, -3).reshape(*front, tiles, 2 * TILE)


def plain(rows: Any, sq: int) -> tuple[Any, Any]:
    """The inverse: LSE, which is inf where there are no keys, and delta."""
    *front, tiles, _ = rows.shape
    numbers = rows.reshape(*front, tiles, 2, TILE).swapaxes(-2, -3).reshape(*front, 2, tiles * TILE)
    return numbers[..., 0, :sq] / -LOG2E, numbers[..., 1, :sq]


def tiled_rows(delta: Any, LSE: Any) -> Any:
    """The numbers of rows."""
    return tiled(LSE, delta)


def untiled(saved: Any) -> Any:
    """Saved gradients of scores (heads, tiles, keys, queries of a tile) as (heads, queries, keys)."""
    heads, tiles, keys, _ = saved.shape
    return saved.swapaxes(2, 3).reshape(heads, tiles * TILE, keys)


def heads_of(a: Attention, given: dict[str, Any]) -> Iterator[tuple[slice, int, int]]:
    """The heads of keys of a work space: the queries' heads in it, the sequence, and the number there."""
    batch, _, heads, _ = given["K"].shape
    first = int(given["first"])
    for pair in range(first, min(first + given["saved"].shape[0] // a.group, batch * heads)):
        at = (pair - first) * a.group
        yield slice(at, at + a.group), pair // heads, pair % heads


def known(given: dict[str, Any], sq: int) -> Any:
    """Which scores (queries, keys) are read: all of the tiles of 64 queries and 64 keys that no end of the window rules
    out. If the window is not empty, these are the tiles of which some score is seen.
    """
    import numpy as np

    sk, left, right = given["K"].shape[1], given.get("left"), given.get("right")
    tiles = -(-sq // TILE), given["saved"].shape[2] // TILE
    query, key = (np.arange(n) * TILE for n in tiles)
    last_query, last_key = (np.minimum(x + TILE, n) - 1 for x, n in ((query, sq), (key, sk)))
    some = np.broadcast_to(key < sk, tiles)
    if right is not None:
        some = some & (key <= last_query[:, None] + (sk - sq + int(right)))
    if left is not None:
        some = some & (last_key >= query[:, None] + (sk - sq - int(left)))
    return some.repeat(TILE, 0).repeat(TILE, 1)


def read_scores(a: Attention, **given: Any) -> dict[str, Any]:
    """The results of the kernel of the keys, as they are read: dS with zeros behind the last key."""
    import numpy as np

    ds, sq = untiled(given["saved"]), given["Q"].shape[1]
    out, some = np.zeros_like(ds), known(given, sq)
    for at, *_ in heads_of(a, given):
        out[at] = np.where(some, ds[at], 0)
    return {"dK": given["dK"], "dV": given["dV"], "dS": out[:, :sq]}


def tiled_gradient(a: Attention, **given: Any) -> dict[str, Any]:
    """The gradients dK, dV and dS of the heads of the work space; those of other heads keep their values."""
    import numpy as np

    dK, dV = given["dK"].copy(), given["dV"].copy()
    sq, sk = (given[n].shape[1] for n in "QK")
    LSE, delta = plain(given["rows"], sq)
    dS = np.zeros_like(given["saved"], shape=(given["saved"].shape[0], sq, given["saved"].shape[2]))
    made = list(gradients(a, None, "dS", **{**given, "LSE": LSE, "delta": delta}))
    for at, b, h in heads_of(a, given):
        _, _, dk, dv, ds = made[b]
        dK[b, :, h], dV[b, :, h] = dk[:, h], dv[:, h]
        dS[at, :, :sk] = ds[h * a.group : (h + 1) * a.group]
    return {"dK": dK, "dV": dV, "dS": dS}


def tiled_product(a: Attention, **given: Any) -> dict[str, Any]:
    """The gradient dQ of the heads of the work space; that of other heads keeps its values."""
    import numpy as np

    dQ, ds, sq = given["dQ"].copy(), untiled(given["saved"]), given["dQ"].shape[1]
    some = known(given, sq)
    for at, b, h in heads_of(a, given):
        keys = given["K"][b, :, h]
        own = np.where(some, ds[at], 0)[:, :sq, : len(keys)]
        dQ[b, :, h * a.group : (h + 1) * a.group] = np.einsum("gqk,kd->qgd", own, keys) * given["scale"]
    return {"dQ": dQ}


def sizes(a: Attention, s: dict[str, int]) -> None:
    """A work space for some of the heads, or for one more than there are behind the first one."""
    heads = s["batch"] * s["kv_heads"]
    s["first"] = s["first"] % heads
    s["saved_heads"] = a.group * (1 + s["saved_heads"] % (heads - s["first"] + 1))


def prepare(given: Any) -> None:
    """Gradients of scores that are not seen: zeros where they are read, and any values elsewhere."""
    import numpy as np

    sq, sk = given["dQ"].shape[1], given["K"].shape[1]
    ds, some = untiled(given["saved"]), known(given, sq)
    seen = np.zeros_like(some)
    seen[:sq, :sk] = visible(sq, sk, given.get("left"), given.get("right"))
    out = np.where(seen, ds, np.where(some, ds.dtype.type(0), ds.dtype.type(np.nan)))
    given["saved"][...] = out.reshape(*ds.shape[:1], -1, TILE, ds.shape[2]).swapaxes(2, 3)
