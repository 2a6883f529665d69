"""Meanings of the kernels around ``attention_gradient_sm90``, which adds gradients of queries up in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.kernels.attention.reference import gradients
from graphene.kernels.attention.reference_tiles import TILE, plain

if TYPE_CHECKING:
    from graphene.kernels.attention.problem import Attention


def in_tiles(dq: Any) -> Any:
    """Gradients of queries (batch, sq, heads, D) as they are summed up: (batch, heads, tiles, D / 4, 256).

    D is rounded up to a multiple of 64. A tile has groups of 8 columns, and within a group rows of 8 elements. Row
    x + 8 y + 16 z with x < 8 and y < 2 is at x + 8 z + 32 y: the order of the matrix instructions' registers.
    """
    import numpy as np

    b, sq, heads, d = dq.shape
    tiles, depth = -(-sq // TILE), -(-d // 64) * 64
    whole = np.zeros_like(dq, shape=(b, tiles * TILE, heads, depth))
    whole[:, :sq, :, :d] = dq
    parts = whole.reshape(b, tiles, 4, 2, 8, heads, depth // 8, 8)  # z, y, x
    return parts.transpose(0, 5, 1, 6, 3, 2, 4, 7).reshape(b, heads, tiles, depth // 4, 256)


def out_of_tiles(sums: Any, sq: int, d: int) -> Any:
    """The inverse of `in_tiles`."""
    b, heads, tiles, lines, _ = sums.shape
    parts = sums.reshape(b, heads, tiles, lines // 2, 2, 4, 8, 8).transpose(0, 2, 5, 4, 6, 1, 3, 7)
    return parts.reshape(b, tiles * TILE, heads, lines * 4)[:, :sq, :, :d]


def sums_gradient(a: Attention, **given: Any) -> dict[str, Any]:
    """The gradients dK, dV, and the gradient of queries without the scale, in tiles."""
    import numpy as np

    dK, dV, dQ = (np.zeros_like(given[n]) for n in "KVQ")
    LSE, delta = plain(given["rows"], given["Q"].shape[1])
    ones = {**given, "LSE": LSE, "delta": delta, "scale": 1.0}
    for (q, k), dq, dk, dv, _ in gradients(a, None, "dS", **ones):
        dQ[q] = dq
        dK[k], dV[k] = dk * given["scale"], dv
    return {"dK": dK, "dV": dV, "sums": in_tiles(dQ)}


def whole_sums(parts: int, sums: Any) -> Any:
    """The parts of sums (batch, heads, parts x tiles, D / 4, 256) together."""
    b, heads, tiles, *rest = sums.shape
    return sums.reshape(b, heads, parts, tiles // parts, *rest).sum(2)


def read_sums(parts: int, **given: Any) -> dict[str, Any]:
    """The results of the kernel that sums up, as they are read."""
    return {"dK": given["dK"], "dV": given["dV"], "sums": whole_sums(parts, given["sums"])}


def rounded_sums(parts: int, sums: Any, dQ: Any, scale: Any) -> Any:
    """The gradient of queries."""
    return out_of_tiles(whole_sums(parts, sums), *dQ.shape[1::2]) * scale
