"""Meanings of kernels that pass scores' gradients on in a work space of panels (`workspace.py`).

A work space has some of the heads of keys of all sequences, from the head `first` on. A tile of ``ROWS`` queries and
some keys is read if one of its queries sees one of its keys by place; zeros lie there after the last key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.kernels.attention.reference import gradients, outside, places, visible
from graphene.kernels.attention.workspace import PANEL, ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphene.kernels.attention.problem import Attention


def ordered(panels: Any) -> Any:
    """Saved gradients of scores (heads, group, panels, keys, queries of a panel) as (heads, group, queries, keys)."""
    heads, group, count, keys, _ = panels.shape
    parts = panels.reshape(heads, group, count, keys, 4, 4, 2)  # queries of a panel: c, y, x
    return parts.transpose(0, 1, 2, 5, 4, 6, 3).reshape(heads, group, count * PANEL, keys)


def in_panels(ds: Any) -> Any:
    """The inverse of `ordered`."""
    heads, group, queries, keys = ds.shape
    parts = ds.reshape(heads, group, queries // PANEL, 4, 4, 2, keys)
    return parts.transpose(0, 1, 2, 6, 4, 3, 5).reshape(heads, group, queries // PANEL, keys, PANEL)


def heads_of(given: dict[str, Any]) -> Iterator[tuple[int, int, int, Any, Any]]:
    """The heads of a work space: their numbers in it, their sequences, their numbers there, and their places."""
    first, heads = int(given["first"]), given["K"].shape[-2]
    at = places(given["K"], given.get("starts_q"), given.get("starts_k"))
    for pair in range(first, min(first + given["saved"].shape[0], len(at) * heads)):
        i, h = divmod(pair, heads)
        yield pair - first, i, h, *at[i][:2]


def tiles(tile: int, given: dict[str, Any]) -> Iterator[tuple[int, tuple[slice, slice], Any, Any]]:
    """For each head of a work space its number, its queries and keys, which scores are read, and which are seen."""
    import numpy as np

    for n, _, _, q, k in heads_of(given):
        sq, sk = given["Q" if "Q" in given else "dQ"][q].shape[0], given["K"][k].shape[0]
        whole = -(-sq // ROWS) * ROWS, -(-sk // tile) * tile
        seen = np.zeros(whole, bool)
        seen[:sq, :sk] = visible(sq, sk, given.get("left"), given.get("right"))
        some = seen.reshape(whole[0] // ROWS, ROWS, whole[1] // tile, tile).any((1, 3))
        yield n, (slice(sq), slice(whole[1])), some.repeat(ROWS, 0).repeat(tile, 1)[:sq], seen[:sq]


def read(tile: int, **given: Any) -> Any:
    """The gradients of scores (heads, group, queries, keys) as they are read in tiles of keys; zeros for the rest."""
    import numpy as np

    ds = ordered(given["saved"])
    out = np.zeros_like(ds)
    for n, (q, k), known, _ in tiles(tile, given):
        out[n, :, q, k] = np.where(known, ds[n, :, q, k], 0)
    return out


def saved_results(tile: int, **given: Any) -> dict[str, Any]:
    """The gradients of scores that a kernel saves, as another kernel reads them."""
    return {"dK": given["dK"], "dV": given["dV"], "dS": read(tile, **given)}


def saving_gradient(a: Attention, passed: str | None, **given: Any) -> dict[str, Any]:
    """The gradients dK, dV and dS of the heads of the work space; those of other heads keep their values."""
    import numpy as np

    dK, dV, dS = given["dK"].copy(), given["dV"].copy(), np.zeros_like(ordered(given["saved"]))
    made = list(gradients(a, passed, **given))
    for n, i, h, _, k in heads_of(given):
        _, _, dk, dv, ds = made[i]
        dK[(*k, h)], dV[(*k, h)] = dk[:, h], dv[:, h]
        dS[n, :, : ds.shape[1], : ds.shape[2]] = ds[h * a.group : (h + 1) * a.group]
        if a.varlen and i == len(made) - 1:
            rest = outside([k[0] for (_, k), *_ in made], len(dK))
            dK[rest, h] = dV[rest, h] = 0
    return {"dK": dK, "dV": dV, "dS": dS}


def product(a: Attention, tile: int, **given: Any) -> dict[str, Any]:
    """The gradient dQ of the heads of the work space; that of other heads keeps its values."""
    import numpy as np

    dQ, ds, g = given["dQ"].copy(), read(tile, **given), a.group
    at = places(dQ, given.get("starts_q"), given.get("starts_k"))
    for n, i, h, q, k in heads_of(given):
        keys, heads = given["K"][(*k, h)], slice(h * g, (h + 1) * g)
        own = ds[n, :, : dQ[q].shape[0], : len(keys)]
        dQ[(*q, heads)] = np.einsum("gqk,kd->qgd", own, keys) * given["scale"]
        if a.varlen and i == len(at) - 1:
            dQ[outside([q[0] for q, *_ in at], len(dQ)), heads] = 0
    return {"dQ": dQ}


def sizes(s: dict[str, int]) -> None:
    """A work space for some of the heads, or for one more than there are behind the first one.

    It is as large as any sequence needs it; windows are not empty.
    """
    heads = s["batch"] * s["kv_heads"]
    s["first"] = s["first"] % heads
    s["saved_heads"] = 1 + s["saved_heads"] % (heads - s["first"] + 1)
    s["panels"], s["keys"] = -(-s["sq"] // ROWS) * ROWS // PANEL, -(-s["sk"] // ROWS) * ROWS
    if "left" in s and "right" in s:
        s["right"] = max(s["right"], -s["left"])


def prepare(tile: int, given: Any) -> None:
    """Gradients of scores that are not seen: zeros where they are read, and any values elsewhere."""
    import numpy as np

    ds = ordered(given["saved"])
    out = np.full_like(ds, np.nan)
    for n, (q, k), known, seen in tiles(tile, given):
        out[n, :, q, k] = np.where(known, np.where(seen, ds[n, :, q, k], 0), np.nan)
    given["saved"][...] = in_panels(out)
