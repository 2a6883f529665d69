"""The Python text of a head whose products are computed by ``mma.sync``: each warp keeps statistics of its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.plan.write_heads import HeadText
from graphene.plan.write_products import WORDS

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.heads import HeadWarps

__all__ = ["write"]

NARROW = 8  # columns of a warp's tile of which something is looked for at once


class HeadMmaWriter(HeadText):
    """Writes both kernels."""

    def count_parts(self) -> None:
        """Counts the parts: as many as warps along all tiles of columns."""
        self.w(f"parts = -(-{self.form.columns.symbol} // BN) * WARPS[1]", "the columns of each warp of a tile")

    def store(self) -> None:
        """Statistics of the warp's columns of each row."""
        f, w, kinds = self.form, self.w, self.t.kinds
        v = f.columns.symbol
        w()
        w('gr.wait("cp.async.cg.16", pending=0)', "copies past the end still write shared memory")
        w('out = gr.fragment("out", [WM, WN], gr.fp32, mma.c, on=warp)')
        self.beside()
        (d,) = f.dots
        dot = self.dots[d.value.number]
        w(f"out[:] = score({self.result_arguments('score')})" if "score" in self.takes else f"out[:] = {dot}")
        w("part, first = bn * WARPS[1] + wn, bn * BN + wn * WN")
        w("_, column = out.coords()")
        looked = bool(self.indices) or "best" in kinds
        if looked:
            w(f'piece = gr.fragment("piece", [WM, {NARROW}], gr.fp32, mma.c, on=warp)')
            w("_, place = piece.coords()")
        for x in self.indices:
            own = f"own_{x.name}"
            w(f'g{x.name}, {own} = out.reduced(1, "g{x.name}", gr.i32), out.reduced(1, "{own}")')
            view = f"{self.var[x.number]}.tile([BM])[bm].reshape(0, [BM, 1]).tile([WM, 1])[wm, 0]"
            w(f'gr.move(g{x.name}, {view}, atom="ld.global.{WORDS[4]}")')
            w(f"g{x.name}[:] = gr.where(g{x.name} < {v}, g{x.name}, -1)", "none of what lies behind the last column")
            w(f"gr.init({own}, NAN)")
            with w.block(f"for j in range(WN // {NARROW}):"):
                w(f"same = first + j * {NARROW} + place == g{x.name}")
                w(f"piece[:] = gr.where(same, out.tile([None, {NARROW}])[0, j], NAN)")
                w(f'gr.reduce("max", {own}, piece, axis=1, accumulate=True)', "a number, where there is one")
        if "added" in kinds:
            w(f"out[:] = gr.where(first + column < {v}, out, 0)")
            w('added = out.reduced(1, "added")')
            w('gr.reduce("add", added, out, axis=1)')
        if "top" in kinds:
            w(f"out[:] = gr.where(first + column < {v}, out, -gr.inf)")
            w('top = out.reduced(1, "top")')
            w('gr.reduce("max", top, out, axis=1)')
        if "best" in kinds:
            w(f'places = gr.fragment("places", [WM, {NARROW}], gr.i32, mma.c, on=warp)')
            w('largest = out.reduced(1, "largest", gr.i32)')
            w(f"gr.init(largest, {v})")
            with w.block(f"for j in range(WN // {NARROW}):"):
                w(f"places[:] = first + j * {NARROW} + place")
                w(f"places[:] = gr.where(out.tile([None, {NARROW}])[0, j] == top, places, {v})")
                w('gr.reduce("min", largest, places, axis=1, accumulate=True)')
            w("largest[:] = gr.where(top == -gr.inf, 0, largest)")
        if "total" in kinds:
            w('base, total = out.reduced(1, "base"), out.reduced(1, "total")')
            w("base[:] = gr.where(top == -gr.inf, 0, top)")
            w("out[:] = gr.exp2((out - base) * LOG2E, ftz=True)")
            w('gr.reduce("add", total, out, axis=1)')
        for kind, name in self.work.items():
            view = f"{name}[part, :].tile([BM])[bm].reshape(0, [BM, 1]).tile([WM, 1])[wm, 0]"
            w(f'gr.move({view}, {kind}, atom="st.global.b32")')


def write(t: HeadWarps, d: Decisions, title: str, name: str) -> str:
    """The source of both kernels that a plan decided."""
    return HeadMmaWriter(t, d, title, name).write()
