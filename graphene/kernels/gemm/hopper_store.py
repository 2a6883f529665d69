"""The way of a product's sums to C on Hopper: rounded a few columns at a time, and copied by TMA where C allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import graphene as gr
from graphene.kernels.epilogues import pointwise
from graphene.kernels.gemm.operand import access
from graphene.kernels.gemm.result import add_scaled, copy_lines
from graphene.kernels.gemm.sm90_tile import PIECE
from graphene.kernels.tma import LINE_BYTES
from graphene.kernels.traced import trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels.gemm.result import Result
    from graphene.kernels.gemm.sm90_tile import Hopper

__all__ = ["Place", "Store"]

SHORT = 3  # with at most this many operations an element, a whole piece may be computed at once


class Store:
    """The way of the sums to C: a piece of columns at a time, through shared memory if elements have 16 bits."""

    def __init__(self, h: Hopper, result: Result) -> None:
        self.h, self.result, self.dtype = h, result, result.dtype
        if h.in_pieces:  # a consumer's piece has whole lines of C
            lines, line = (h.width, h.rows) if h.swapped else (h.rows, h.width)
            whole = line % PIECE != 0
            shape = [h.consumers * lines, line] if whole else gr.panels(h.consumers * lines, line, self.dtype)
            swizzle = None if whole else gr.swizzle(PIECE, self.dtype)
            names = ["sC", "sC2"][: 1 + h.more_pieces]
            self.shared = [gr.alloc(n, shape, self.dtype, gr.SH, stages=h.buffers, swizzle=swizzle) for n in names]
            self.lines = lines
        self.fetches = h.by_boxes and bool(h.fetched or h.kept)
        self.kept = {}
        for name, (dtype, n) in h.kept.items():
            line = LINE_BYTES * 8 // dtype.bits  # a box in shared memory begins with one
            layout = gr.Layout((h.consumers, n), (-(-n // line) * line, 1))
            self.kept[name] = gr.alloc(f"s{name.title().replace('_', '')}", layout, dtype, gr.SH)
        if self.fetches:
            self.come = gr.mbarrier("come", h.consumers * self.ahead, arrivals=1)

    @property
    def ahead(self) -> int:
        """Pieces that are fetched before the sums are complete: as many as have buffers."""
        return self.h.buffers if self.h.fetched else 1

    @property
    def at_once(self) -> int:
        """How many 8 x 8 matrices a warp stores at once: two cover its 16 rows and 8 columns, four 16 columns."""
        return 4 if self.step % 16 == 0 else 2

    def declare(self, mine: Any, w: Any) -> None:
        """Declares the registers of a consumer."""
        h, r = self.h, self.result
        self.mine, self.w = mine, w
        if h.product.epilogue is None:
            return
        # Beside sums that fill the registers there is room for a few columns of terms and of results under way.
        few = h.loaded or r.vectors or len(r.scales) > 1 or operations(h.product.epilogue) > SHORT
        self.step = (16 if h.width % 16 == 0 else 8) if few else h.width
        tv = h.atom_of(self.step).c
        self.out = gr.fragment("out", [64, self.step], self.dtype, tv, on=mine)
        of = 1 if h.swapped else 0
        self.biases = [self.out.reduced(of, f"rbias{i or ''}", self.dtype) for i in range(len(r.vectors))]
        self.declare_scales()
        self.held = {n: gr.fragment(f"r{n}", [64, self.step], self.dtype, tv, on=mine) for n in h.loaded}
        if self.fetches:
            self.once = not h.fetched or self.ahead == h.columns // h.width  # a place has one piece of a tile
            self.rounds = [gr.ring(f"round{i or ''}", 1) for i in range(1 if self.once else self.ahead)]

    def declare_scales(self) -> None:
        """Declares the registers of scales: their product, or those of all rows and of a step of columns."""
        h, p = self.h, self.h.product.problem
        self.scales_of_rows, self.factors = [], []
        if h.product.splits or p.scales is None:
            return
        if p.scales == "tensor":
            each = [gr.alloc(n, [1], gr.fp32, gr.RF) for n in ("rScaleA", "rScaleB")]
            for to, source in zip(each, self.result.scales, strict=True):
                gr.move(to, source, atom=access("ld.global", 4))
            each[0][:] = each[0] * each[1]
            self.factors = [each[0][0]]
            return
        rows = "scale_b" if h.swapped else "scale_a"
        self.scales_of_rows = [self.out.reduced(1, f"r{rows}{m or ''}", gr.fp32) for m in range(h.rows // 64)]
        self.scale_of_columns = self.out.reduced(0, "rscale_a" if h.swapped else "rscale_b", gr.fp32)

    def at(self, part: Any, z: Any, row: Any, column: Any) -> Place:
        """The consumer's tile of the result and its terms."""
        h = self.h
        place, sizes = ((column, row), [h.columns, h.rows]) if h.swapped else ((row, column), [h.rows, h.columns])
        r = self.result.tile(part, z, place, sizes)
        scales = [self.turned(v) for v in r.scales] if h.product.problem.scales == "rows" else []
        return Place({n: self.turned(t) for n, t in r.matrices.items()}, [self.turned(v) for v in r.vectors], scales)

    def begin(self, tile: Place, pieces: list[int]) -> None:
        """Starts copying what the epilogue of a tile with these numbers of pieces needs first, before the products."""
        if self.fetches:
            with gr.only(self.mine.elect()):
                for i, j in enumerate(pieces[: self.ahead]):
                    self.fetch(tile, i, j)

    def fetch(self, tile: Place, i: int, j: int) -> None:
        """Copies what the epilogue reads of piece `j`, the block's `i`-th. The first comes to the result's place."""
        h, come, load = self.h, self.come[self.w * self.ahead + i % self.ahead], gr.atom("tma.load")
        copies = []
        if h.fetched:
            gr.wait(gr.atom("tma.store"), pending=0)  # the stores from these places have read them
            for name, place in self.places(i).items():
                copies.append((self.turned(place), self.turned(tile.piece(name, h.width, j))))
        if i == 0:
            for name, held in self.kept.items():
                vector = tile.scales["ab".index(name[-1])] if name != "bias" else tile.vectors[0]
                of = (slice(None), 0) if name == "scale_a" else (0, slice(None))
                copies.append((held[self.w, :], self.turned(vector)[of]))
        come.arrive(expect=[to for to, _ in copies])
        for to, source in copies:
            gr.move(to, source, atom=load, done=come)

    def places(self, i: int) -> dict[str, Any]:
        """Where a block's `i`-th pieces of the fetched matrices are in shared memory, [rows, columns] of the sums."""
        places = [s[i % self.h.buffers] for s in self.shared]
        return {n: self.mine_of(s) for n, s in zip(self.h.fetched, places, strict=True)}

    def store(self, acc: Any, tile: Place, pieces: list[int], stages: Any = None) -> None:
        """Stores pieces of a consumer's sums. ``stages``: the way of a loaded matrix through them (`Stages`)."""
        h = self.h
        pair = 1 if h.swapped else 2  # neighbours that a lane holds
        width_bytes = min(pair * self.dtype.bits // 8, self.result.align_bytes)
        store = access("st.global", width_bytes)
        if h.product.epilogue is None:
            self.store_sums(acc, tile, pieces, store)
            return
        if h.in_pieces:
            store = gr.atom(f"stmatrix.x{self.at_once}" + ".trans" * h.swapped)
        for i, j in enumerate(pieces):
            if self.fetches and (i == 0 or h.fetched):
                ring = self.rounds[0 if self.once else i % self.ahead]
                self.come[self.w * self.ahead + i % self.ahead].wait(ring.phase)
                if not self.once or j == pieces[-1] or not h.fetched:
                    ring.advance()
            if i == 0:
                self.load_scales_of_rows(tile)
            come = {n: stages.take() for n in h.in_stages}  # one, or none
            to = self.opened(i, len(pieces)) if h.in_pieces else tile.piece("C", h.width, j)
            for n in range(h.width // self.step):
                self.load_biases(tile, j * (h.width // self.step) + n, width_bytes, first=i == n == 0)
                for m in range(h.rows // 64):  # rows of an instruction: so few results are under way at once
                    self.load_terms(tile, come, i, j, n, m, width_bytes)
                    self.round(acc.tile([64, self.step])[m, j * (h.width // self.step) + n], m)
                    gr.move(to.tile([64, self.step])[m, n], self.out, on=self.mine, atom=store)
            if h.in_pieces:
                self.close(tile.piece("C", h.width, j), to)
            if h.in_stages:
                stages.give()  # all threads have read it, since there was a barrier in `close`
            if self.fetches and h.fetched and i + self.ahead < len(pieces):
                with gr.only(self.mine.elect()):
                    self.fetch(tile, i + self.ahead, pieces[i + self.ahead])

    def store_sums(self, acc: Any, tile: Place, pieces: list[int], store: Any) -> None:
        """Stores sums without an epilogue, all of them or pieces."""
        h = self.h
        if len(pieces) * h.width == h.columns:
            gr.move(tile.matrices["C"], acc, on=self.mine, atom=store)
            return
        for j in pieces:
            of = acc.tile([None, h.width])[0, j]
            gr.move(tile.piece("C", h.width, j), of, on=self.mine, atom=store)

    def load_biases(self, tile: Place, at: int, width_bytes: int, first: bool) -> None:
        """Loads the biases of a step of columns, or with `swapped` of each instruction's rows, for the first one."""
        h = self.h
        for held, v in zip(self.biases, tile.vectors, strict=True):
            if "bias" in self.kept:
                row = self.kept["bias"].tile([1, None])[self.w, 0]
                v, load = self.turned(row), access("ld.shared", width_bytes)
            else:
                load = access("ld.global", width_bytes)
            if not h.swapped:
                gr.move(held, v.tile([None, self.step])[0, at], on=self.mine, atom=load)
            elif first and h.rows == 64:
                gr.move(held, v, on=self.mine, atom=load)

        if self.scales_of_rows:
            v, load = self.scale("a" if h.swapped else "b", tile)
            gr.move(self.scale_of_columns, v.tile([None, self.step])[0, at], on=self.mine, atom=load)

    def load_scales_of_rows(self, tile: Place) -> None:
        """Loads the scales of all rows of the sums."""
        for m, held in enumerate(self.scales_of_rows):
            v, load = self.scale("b" if self.h.swapped else "a", tile)
            gr.move(held, v.tile([64, None])[m, 0], on=self.mine, atom=load)

    def scale(self, name: str, tile: Place) -> tuple[Any, Any]:
        """The scales of A or B as a vector along the rows or columns of the sums, and how they are loaded."""
        kept = self.kept.get(f"scale_{name}")
        if kept is None:
            return tile.scales["ab".index(name)], access("ld.global", 4)
        row = kept.tile([1, None])[self.w, 0]  # along the columns of C
        return (row.T if (name == "a") != self.h.swapped else row), access("ld.shared", 4)

    def load_terms(self, tile: Place, come: dict[str, Any], i: int, j: int, n: int, m: int, width_bytes: int) -> None:
        """Loads step `n` of piece `j`, the block's `i`-th, of what the epilogue reads. ``come``: what is in stages."""
        h = self.h
        memory = {} if h.by_boxes else {name: tile.piece(name, h.width, j) for name in h.loaded}
        places = come or memory or (self.places(i) if h.fetched else {})
        load = access("ld.global", width_bytes)
        if h.by_boxes:
            load = gr.atom(f"ldmatrix.x{self.at_once}" + ".trans" * h.swapped)
        for name, held in self.held.items():
            gr.move(held, places[name].tile([64, self.step])[m, n], on=self.mine, atom=load)

    def round(self, x: Any, m: int) -> None:
        """Computes the results of a step of columns from the sums of rows `m` and the terms, and rounds them."""
        r = self.result
        x = gr.cast(x, gr.fp32) if x.dtype == gr.i32 != self.dtype else x
        for factor in [self.scales_of_rows[m], self.scale_of_columns] if self.scales_of_rows else self.factors:
            x = x * factor
        x = x * r.scalars["alpha"] if "alpha" in r.scalars else x
        x = add_scaled(x, self.held["C"], r.scalars["beta"]) if "beta" in r.scalars else x
        residual = [self.held["residual"]] if "residual" in self.held else []
        epilogue = self.h.product.epilogue
        assert epilogue is not None  # sums without one are stored unchanged
        self.out[:] = pointwise(epilogue, x, *self.biases, *residual)

    def turned(self, t: Any) -> Any:
        """A tile of the sums as C has it, or the other way round."""
        return t.T if self.h.swapped else t

    def mine_of(self, pieces: Any) -> Any:
        """The consumer's piece."""
        return self.turned(pieces.tile([self.lines, None])[self.w, 0])

    def opened(self, i: int, pieces: int) -> Any:
        """The shared memory of the `i`-th of some pieces, [rows, columns] of the sums, once one before has left it."""
        if self.h.by_boxes and not self.h.fetched:  # else `fetch` has waited
            # The stores that have begun since the newest one from this buffer may still be under way.
            behind = (pieces - 1 - i) % self.h.buffers + i  # of the last piece of the tile before, and of this one
            gr.wait(gr.atom("tma.store"), pending=min(self.h.buffers - 1, behind))
        if not (self.h.by_boxes and self.h.fetched):
            gr.barrier(on=self.mine)
        return self.mine_of(self.shared[0][i % self.h.buffers])

    def close(self, to: Any, held: Any) -> None:
        """Stores a piece by TMA, or by the threads if lines of C begin anywhere."""
        store = gr.atom("tma.store")
        to, held = self.turned(to), self.turned(held)
        if self.h.by_boxes:
            gr.fence("async.shared")  # what threads stored becomes visible to the copy
            gr.barrier(on=self.mine)
            with gr.only(self.mine.elect()):
                gr.move(to, held, atom=store)
                gr.commit(store)
        else:
            gr.barrier(on=self.mine)
            width = self.result.align_bytes
            few = 2 if self.h.held > 160 else 0  # beside more sums there is room for a few
            copy_lines(to, held, self.mine, width, (access("ld.shared", width), access("st.global", width)), few)

    def end(self) -> None:
        """Waits until nothing in shared memory is needed any more."""
        if self.h.by_boxes:
            gr.wait(gr.atom("tma.store"), pending=0)


def operations(epilogue: Callable[..., Any]) -> int:
    """How many operations the epilogue applies to one register. Its parameters are not counted."""
    try:
        steps = trace(epilogue).steps
    except TypeError:
        return SHORT + 1
    return sum(isinstance(step, list) for step in steps)


class Place(NamedTuple):
    """A consumer's tile of the matrices, [rows, columns] of the sums, of the biases, and of the scales of A and B."""

    matrices: dict[str, Any]
    vectors: list[Any]
    scales: list[Any]

    def piece(self, name: str, width: int, j: int) -> Any:
        """The columns of a piece."""
        return self.matrices[name].tile([None, width])[0, j]
