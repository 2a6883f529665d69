"""The Python text of a kernel of products for Hopper, as `graphene.plan.warpgroups` decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.plan.products import shared_name
from graphene.plan.warpgroups import GROUP_ROWS, PIECE, WarpgroupTiled
from graphene.plan.write_products import WORDS, Writer

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions

__all__ = ["write"]


class WarpgroupWriter(Writer):
    """Writes one kernel."""

    t: WarpgroupTiled

    def _variable(self, name: str) -> str:
        own = "load store stsm wgmma narrow groups producer consumers put get free full empty c i mine piece row column"
        return f"{name}_in" if name in own.split() else super()._variable(name)

    def constants(self) -> None:
        """Sizes of tiles."""
        t, w, tile = self.t, self.w, self.t.tile
        least = f"least expected time: {t.expected_us:.1f} us, bound: {t.bound}"
        w(f"BM, BN, BK = {tile.m}, {tile.n}, {tile.k}", least)
        w(f"STAGES = {tile.stages}", "of a ring that TMA fills")
        w(f"CONSUMERS = {t.consumers}", f"warpgroups that multiply {GROUP_ROWS} rows each")

    def atoms(self) -> None:
        """The instructions."""
        w, kind = self.w, self.t.mma.rsplit(".", 1)[1]
        w('load, store, stsm = gr.atom("tma.load"), gr.atom("tma.store"), gr.atom("stmatrix.x4")')
        w(f'wgmma, narrow = gr.atom("{self.t.mma}"), gr.atom("wgmma.m64n{PIECE}k16.f32.{kind}")')

    def recorded(self) -> None:
        """What is recorded."""
        self.arguments()
        self.launch()
        self.memory()
        self.produce()
        self.consume()

    def launch(self) -> None:
        f, w = self.form, self.w
        w(f"blocks = gr.blocks(gr.ceil_div({f.rows.symbol}, BM), gr.ceil_div({f.columns.symbol}, BN))")
        w("bm, bn = blocks.indices()")
        w("groups = gr.threads(128 * (1 + CONSUMERS)).tile(128)")
        w("producer, consumers = groups[0], groups[1 : 1 + CONSUMERS]")

    def memory(self) -> None:
        w, t, d = self.w, self.t, self.d.made
        w()
        for name, s in t.shared.items():
            result = name == "sResult"
            dtype = self.form.output.dtype if result else self.form.dtype
            stages = "" if result else "stages=STAGES, "
            shape = f"[{s.shape[0]}, {s.shape[1]}]"
            more = f"{stages}swizzle=gr.{s.swizzle!r}, at={t.at[name]}"
            w(f'{name} = gr.alloc("{name}", {shape}, gr.{dtype}, gr.SH, {more})', d[f"{name}.swizzle"].why)
        w(f'full = gr.mbarrier("full", STAGES, arrivals={self.full_arrivals()})', "a stage has its bytes")
        w('empty = gr.mbarrier("empty", STAGES, arrivals=CONSUMERS)', "its readers are done")
        w("gr.barrier()", "the mbarriers are initialised")
        w.overlapped(self.d)
        w()

    def full_arrivals(self) -> str:
        """Arrivals that fill a stage."""
        return "1"

    def produce(self) -> None:
        """The warpgroup that starts copies."""
        w = self.w
        with w.block("with gr.only(producer):"):
            if self.t.consumers > 1:  # one leaves every thread the most that it can have
                w(f"gr.setmaxnreg({self.t.registers[0]})")
            with w.block("with gr.only(producer.elect()):"):
                w('put = gr.ring("put", STAGES, phase=1)', "1: the ring starts empty")
                self.copies_of_tile()
        w()

    def copies_of_tile(self) -> None:
        """The copies of all steps of a tile."""
        f, w = self.form, self.w
        names = [shared_name(s) for s in f.staged]
        with w.block(f'for k in gr.loop("k", gr.ceil_div({f.k.symbol}, BK)):'):
            w("i = put.index")
            w("empty[i].wait(put.phase)")
            w(f"full[i].arrive(expect=[{', '.join(f'{n}[i]' for n in names)}])")
            for s in f.staged:
                size, at = ("BM", "bm") if s.side == "left" else ("BN", "bn")
                box = f"{self.var[s.value.number]}.tile([{size}, BK])[{at}, k]"
                w(f"gr.move({shared_name(s)}[i], {box}, atom=load, done=full[i])")
            w("put.advance()")

    def consume(self) -> None:
        """The warpgroups that multiply and store."""
        f, w = self.form, self.w
        with w.block("with gr.only(consumers):"):
            if self.t.consumers > 1:
                w(f"gr.setmaxnreg({self.t.registers[1]})")
            w("c, _ = consumers.indices()")
            w("mine = consumers[c]", "this thread's own warpgroup")
            w('get, free = gr.ring("get", STAGES), gr.ring("free", STAGES)')
            for d in f.dots:
                name = self.dots[d.value.number]
                w(f'{name} = gr.fragment("{name}", [{GROUP_ROWS}, BN], gr.fp32, wgmma.c, on=mine)')
            self.multiply()
            w("gr.wait(wgmma, pending=0)")
            w()
            self.store()

    def multiply(self) -> None:
        """The products of all steps of a tile."""
        f, w = self.form, self.w
        with w.block(f'for k in gr.loop("k", gr.ceil_div({f.k.symbol}, BK)):'):
            w("full[get.index].wait(get.phase)")
            w("gr.fence(wgmma)")
            for d in f.dots:
                a, b = shared_name(f.at(d.left, "left")), shared_name(f.at(d.right, "right"))
                x = f"{a}[get.index].tile([{GROUP_ROWS}, None])[c, 0]"
                name = self.dots[d.value.number]
                w(f"gr.matmul({name}, {x}, {b}[get.index].T, on=mine, atom=wgmma, accumulate=k > 0)")
            w("gr.commit(wgmma)")
            w("get.advance()")
            w("gr.wait(wgmma, pending=1)", "the step before has read its stage")
            with w.block("with gr.if_(k > 0):"):
                with w.block("with gr.only(mine.elect()):"):
                    w("empty[free.index].arrive()")
                w("free.advance()")

    def store(self) -> None:
        f, w = self.form, self.w
        dtype = f.output.dtype
        w(f'out = gr.fragment("out", [{GROUP_ROWS}, {PIECE}], gr.{dtype}, narrow.c, on=mine)')
        for v in f.beside():
            name, stored = f"g{v.name}", v.more["stored"]
            if len(stored) == 2:
                w(f'{name} = gr.fragment("{name}", [{GROUP_ROWS}, {PIECE}], gr.{v.more["dtype"]}, narrow.c, on=mine)')
            else:
                w(f'{name} = out.reduced({int(stored == (f.rows,))}, "{name}", gr.{v.more["dtype"]})')
        w(f"piece = sResult.tile([{GROUP_ROWS}, None])[c, 0]")
        w("row = CONSUMERS * bm + c")
        with w.block(f"for j in range(BN // {PIECE}):"):
            w(f"column = bn * (BN // {PIECE}) + j")
            for v in f.beside():
                x, stored, e = self.var[v.number], v.more["stored"], v.more["dtype"].bits // 8
                if stored == (f.rows,):
                    view, word = f"{x}.tile([{GROUP_ROWS}])[row].reshape(0, [{GROUP_ROWS}, 1])", WORDS[e]
                elif stored == (f.columns,):
                    view, word = f"{x}.tile([{PIECE}])[column].reshape(0, [1, {PIECE}])", WORDS[2 * e]
                else:
                    view, word = f"{x}.tile([{GROUP_ROWS}, {PIECE}])[row, column]", WORDS[2 * e]
                w(f'gr.move(g{v.name}, {view}, atom="ld.global.{word}")')
            w(f"out[:] = result({self.result_arguments('result')})")
            self.store_piece()
        self.stored()

    def store_piece(self) -> None:
        """Stores a piece of the result by TMA."""
        w = self.w
        w("gr.wait(store, pending=0)", "the store before has read the piece")
        w("gr.barrier(on=mine)")
        w("gr.move(piece, out, atom=stsm)")
        w('gr.fence("async.shared")', "what threads stored becomes visible to TMA")
        w("gr.barrier(on=mine)")
        with w.block("with gr.only(mine.elect()):"):
            w(f"gr.move({self.out}.tile([{GROUP_ROWS}, {PIECE}])[row, column], piece, atom=store)")
            w("gr.commit(store)")

    def stored(self) -> None:
        """Waits for the last store."""
        self.w("gr.wait(store, pending=0)")

    def result_arguments(self, function: str) -> str:
        return ", ".join(
            f"{self.dots[n]}.tile([None, {PIECE}])[0, j]" if n in self.dots else f"g{self.value(n).name}"
            for n in self.takes[function]
        )


def write(t: WarpgroupTiled, d: Decisions, title: str, name: str) -> str:
    """The source of a kernel that a plan decided."""
    return WarpgroupWriter(t, d, title, name).write()
