"""Finds functions that compute a rotary position embedding, by what they compute on random values."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

import torch

from graphene.ops.rotary import other


class Turn(NamedTuple):
    """How a function f(q, k, cos, sin) turns pairs of elements: "halves" or "neighbours".

    ``heads_at``: the dimension of the heads in q and k of four dimensions, 1 or 2; the other one is the sequence.
    """

    pairs: str
    heads_at: int


def turn_of(function: Any, extra: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> Turn | None:
    """What a function of q, k, cos, sin and further constants computes; None if it is something else."""
    if not isinstance(function, FunctionType) or not 4 <= function.__code__.co_argcount <= 8:
        return None
    try:
        return _turn_of(function, extra, named)
    except TypeError:  # constants without a hash
        return None


@functools.cache
def _turn_of(function: Any, extra: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> Turn | None:
    found = [t for t in _turns() if all(_computes(function, t, extra, named, sizes) for sizes in _SIZES)]
    return found[0] if len(found) == 1 else None


_SIZES = ((2, 5, 3, 1, 8), (1, 4, 6, 2, 12), (3, 1, 2, 2, 16))  # batch, sequence, heads of q and k, their width


def _turns() -> Iterator[Turn]:
    for pairs in ("halves", "neighbours"):
        for heads_at in (1, 2):
            yield Turn(pairs, heads_at)


def _computes(function: Any, turn: Turn, extra: Any, named: Any, sizes: tuple[int, ...]) -> bool:
    batch, seq, q_heads, k_heads, width = sizes
    generator = torch.Generator().manual_seed(width)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    cos, sin = random(batch, seq, width), random(batch, seq, width)
    given = [random(batch, seq, heads, width) for heads in (q_heads, k_heads)]
    want = [x * cos.unsqueeze(2) + other(x, turn.pairs == "neighbours") * sin.unsqueeze(2) for x in given]
    if turn.heads_at == 1:
        given, want = ([x.transpose(1, 2) for x in both] for both in (given, want))
    try:
        with torch.no_grad():
            got = function(*(x.clone() for x in given), cos.clone(), sin.clone(), *extra, **dict(named))
    except Exception:  # any function may have four arguments
        return False
    if not isinstance(got, tuple) or len(got) != 2 or not all(isinstance(x, torch.Tensor) for x in got):
        return False
    return all(
        g.shape == w.shape and torch.allclose(g, w, rtol=1e-4, atol=1e-5) for g, w in zip(got, want, strict=True)
    )
