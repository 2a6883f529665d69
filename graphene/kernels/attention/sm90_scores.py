"""What attention's forward kernel for sm_90a does to single scores: caps, biases, masks, windows, lists of tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.access import vector_access
from graphene.kernels.attention.problem import MOST
from graphene.kernels.tma import wgmma

if TYPE_CHECKING:
    from graphene.kernels.attention.key_tiles import KeyBits
    from graphene.kernels.attention.problem import Attention, Extra, Scores, Seen
    from graphene.kernels.attention.rings import Notes
    from graphene.kernels.attention.sm90_config import ForwardSm90

__all__ = ["ScoresOfTiles"]


class ScoresOfTiles:
    """The scores `S` of a consumer's 64 queries and a tile of keys, between the product and the exponentials."""

    c: ForwardSm90
    a: Attention
    S: gr.Tensor
    M: gr.Tensor | None
    B: gr.Tensor | None
    T: gr.Tensor
    plain: Scores
    seen: Seen
    notes: Notes
    bits: KeyBits | None
    allowed: list[gr.Tensor]
    mine: Any
    warp: Any
    w: Any
    m_tile: Any
    h: Any
    b: Any

    def change(self, tile: Any, n: Any) -> None:
        """Scores of tile n from products, one by one: scale, cap, the function of scores and their places, bias."""
        a = self.a
        if a.prescaled:
            self.S[:] = self.plain.capped(self.S)
        if a.score is not None or self.B is not None:
            m, h, b = self.whereabouts(tile)
            n = self.number(n, m, h, b)
            row, col = self.S.coords()
            row = self.unit(m) * 64 + row
            self.plain.changed(self.S, row + (self.seen.sk - self.seen.sq), n * self.c.BN + col)
            self.apply("bias", a.bias, self.B, n, (m, h, b))

    def hide(self, tile: Any, n: Any, outside: Any) -> None:
        """Rules out the scores that a query does not see, if tile n is `outside` of those that are seen whole."""
        with gr.if_(outside):
            row, col = self.S.coords()
            if self.c.differ:
                row = self.unit(self.m_tile) * 64 + row
            if self.bits is not None:
                self.bits.hide(self.S)
                return
            if self.M is not None:
                n = self.masked(tile, n)
            self.S[:] = gr.where(self.seen.of(row, n * self.c.BN + col), self.S, -gr.inf)

    def bring_mask(self, tile: Any, n: Any, outside: Any) -> None:
        """Loads a mask of keys, all of it at once and ahead of the products, if the tile is not seen whole."""
        if not (self.allowed or self.bits) or self.M is None or self.a.mask is None:
            return
        with gr.if_(outside):
            at = self.whereabouts(tile)
            n, view = self.number(n, *at), self.M[at[2], at[1], :, :].tile([1, 16])[0, :]
            if self.bits is not None:
                self.bits.bring(self.listed(*at), n)
            atom = vector_access("ld.global", self.a.mask.vector, gr.u8)
            for j, part in enumerate(self.allowed):
                gr.move(part, view[n * len(self.allowed) + j], atom=atom)

    def masked(self, tile: Any, n: Any) -> Any:
        """Lets the mask rule out scores of the tile of an entry; its number."""
        n = self.number(n, *(at := self.whereabouts(tile)))
        if not self.allowed:
            self.apply("mask", self.a.mask, self.M, n, at)
        for j, x in enumerate(self.allowed):
            part = self.S.tile([None, 16])[0, j]
            part[:] = gr.where(x != 0, part, -gr.inf)
        return n

    def unit(self, m: Any) -> Any:
        """The number of the consumer's rows, 64 at a time."""
        return (m if self.c.uneven else m * self.c.consumers) + self.w

    def whereabouts(self, tile: Any) -> tuple[Any, ...]:
        """The tile of queries, the head and the member of the batch that a tile of the block is."""
        return tuple(self.notes.read(tile, "m", "h", "b")) if self.notes.used else (self.m_tile, self.h, self.b)

    def apply(self, name: str, e: Extra | None, tensor: gr.Tensor | None, n: Any, where: tuple[Any, ...]) -> None:
        """Adds a bias to the scores of tile n or lets a mask rule them out."""
        if e is None or tensor is None:
            return
        m, h, b = where
        view = tensor[b, h, :, :].tile([64 if e.rows else 1, 16])[self.unit(m) if e.rows else 0, :]
        x = gr.fragment(name, [64, 16], e.dtype, wgmma(self.a.dtype, 16).c, on=self.mine)
        x = x if e.rows else x.reduced(0, f"{name}_keys", e.dtype)
        self.plain.add(self.S, self.c.BN, e, x, lambda j: view[n * (self.c.BN // 16) + j], "ld.global", self.warp)

    def listed(self, m: Any, h: Any, b: Any) -> Any:
        """The list of the tiles of keys that queries m see."""
        return self.T[b, h, m if self.c.differ else 0, :]

    def number(self, entry: Any, m: Any, h: Any, b: Any) -> Any:
        """The tile of keys that an entry names."""
        return entry if self.M is None else gr.index(self.listed(m, h, b)[entry + 2], 0, MOST // self.c.BN)
