"""The Python text of a kernel of products for Hopper, as `graphene.plan.warpgroups` decides it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from graphene.plan.block_orders import ALONE, ALONG_K, ALONG_ROWS
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
        own = (
            "load store stsm wgmma narrow groups producer consumers put get free full empty c i mine piece row column "
            "block cluster rank turn steps down across pairs workers tile place share come half other"
        )
        return f"{name}_in" if name in own.split() else super()._variable(name)

    def constants(self) -> None:
        """Sizes of tiles."""
        t, w, tile = self.t, self.w, self.t.tile
        least = f"least expected time: {t.expected_us:.1f} us, bound: {t.bound}"
        w(f"BM, BN, BK = {tile.m}, {tile.n}, {tile.k}", least)
        w(f"STAGES = {tile.stages}", "of a ring that TMA fills")
        tile_of = ", of a tile of their own" if t.order.turns else ""
        w(f"CONSUMERS = {t.consumers}", f"warpgroups that multiply {GROUP_ROWS} rows each{tile_of}")

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

    @property
    def cluster(self) -> str:
        """The blocks that work together."""
        return self.t.order.cluster

    def launch(self) -> None:
        f, w, order = self.form, self.w, self.t.order
        down, across = f"gr.ceil_div({f.rows.symbol}, BM)", f"gr.ceil_div({f.columns.symbol}, BN)"
        if order.alone:
            w(f"blocks = gr.blocks({down}, {across})")
            w("bm, bn = blocks.indices()")
        elif order.persistent:
            self.tiles_in_turn(down, across)
        else:
            w(f"down, across = {down}, {across}", "tiles")
            if self.cluster == ALONG_ROWS:
                w("pairs = gr.ceil_div(down, 2)", "of tiles, one below the other")
            of = "pairs" if self.cluster == ALONG_ROWS else "down"
            w(f"blocks = gr.blocks(2 * {of} * across, cluster=2)", self.d.made["cluster"].why)
            w("block, rank = blocks.indices()")
            w("cluster = blocks[block]")
            if self.cluster == ALONG_ROWS:
                w("bm, bn = 2 * (block % gr.max(1, pairs)) + rank, block // gr.max(1, pairs)")
            else:
                w("bm, bn = block % gr.max(1, down), block // gr.max(1, down)")
                w(f"steps = gr.ceil_div(gr.ceil_div({f.k.symbol}, BK), 2)", "of this block")
        w("groups = gr.threads(128 * (1 + CONSUMERS)).tile(128)")
        w("producer, consumers = groups[0], groups[1 : 1 + CONSUMERS]")

    def tiles_in_turn(self, down: str, across: str) -> None:
        """Blocks that go through tiles, in an order in which neighbours share rows and columns in the L2 cache."""
        w, group = self.w, self.t.order.group
        w(f"down, across = {down}, {across}", "tiles")
        if self.t.order.turns:
            w(f"steps = gr.ceil_div({self.form.k.symbol}, BK)", "of a tile")
        w("workers = gr.min(gr.sm_count(), down * across)", self.d.made["blocks"].why)
        w("(block,) = gr.blocks(workers).indices()")
        w()
        with w.block("def place(tile):"):
            w(f'"""Row and column of a tile: {group} row{"s" * (group > 1)} of tiles together."""')
            if group == 1:
                w("return tile // gr.max(1, across), tile % gr.max(1, across)")
                return
            w(f"of_group = gr.max({group}, {group} * across)")
            w(f"first = gr.min(tile // of_group * {group}, down)")
            w(f"many = gr.max(1, gr.min({group}, down - first))")
            w("return first + tile % of_group % many, gr.min(tile % of_group // many, across)")
        w()

    def every_tile(self, turns: bool = False) -> Any:
        """The loop over the tiles of a block, if it has several; or over every second one."""
        if not self.t.order.persistent:
            return nullcontext()
        first, step = ("block + c * workers", "gr.max(1, 2 * workers)") if turns else ("block", "workers")
        return self.w.block(f'for tile in gr.loop("tile", down * across, start={first}, step={step}):')

    def find(self) -> None:
        """Where the tile of a turn is."""
        if self.t.order.persistent:
            self.w("bm, bn = place(tile)")

    def memory(self) -> None:
        w, t, d = self.w, self.t, self.d.made
        w()
        for name, s in t.shared.items():
            if name == "share":
                self.share()
                continue
            result = name == "sResult"
            dtype = self.form.output.dtype if result else self.form.dtype
            stages = "" if result else "stages=STAGES, "
            shape = f"[{s.shape[0]}, {s.shape[1]}]"
            more = f"{stages}swizzle=gr.{s.swizzle!r}, at={t.at[name]}"
            w(f'{name} = gr.alloc("{name}", {shape}, gr.{dtype}, gr.SH, {more})', d[f"{name}.swizzle"].why)
        w(f'full = gr.mbarrier("full", STAGES, arrivals={self.full_arrivals()})', "a stage has its bytes")
        readers = "2 * CONSUMERS" if self.cluster == ALONG_ROWS else "1" if self.t.order.turns else "CONSUMERS"
        w(f'empty = gr.mbarrier("empty", STAGES, arrivals={readers})', "its readers are done")
        if self.t.order.turns:
            w('turn = gr.named_barrier("turn", stages=2, threads=256)', "whose turn it is to multiply")
        w("gr.barrier()" if self.cluster == ALONE else "gr.barrier(on=cluster)", "the mbarriers are initialised")
        w.overlapped(self.d)
        w()

    def share(self) -> None:
        """The place for the sums of the other block, as `graphene.kernels.gemm` has it: without bank conflicts."""
        w = self.w
        w("half = gr.Layout(((8, 2, 4), (2, 4, BN // 8)), ((8, 256, 64), (1, 2, 512)))", "pairs, by threads")
        w(f'share = gr.alloc("share", half, gr.fp32, gr.SH, stages=CONSUMERS, at={self.t.at["share"]})')
        w('come = gr.mbarrier("come", CONSUMERS, arrivals=1)', "the sums of the other block are there")

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
                with self.every_tile():
                    self.find()
                    self.copies_of_tile()
        w()

    def copies_of_tile(self) -> None:
        """The copies of all steps of a tile."""
        f, w = self.form, self.w
        names = [shared_name(s) for s in f.staged]
        with w.block(f'for k in gr.loop("k", {self.steps()}):'):
            w("i = put.index")
            w("empty[i].wait(put.phase)")
            w(f"full[i].arrive(expect=[{', '.join(f'{n}[i]' for n in names)}])")
            step = "rank * steps + k" if self.cluster == ALONG_K else "k"
            for s in f.staged:
                size, at = ("BM", "bm") if s.side == "left" else ("BN", "bn")
                to, more = f"{shared_name(s)}[i]", ""
                if self.cluster == ALONG_ROWS and s.side == "right":  # each of both loads a half for both
                    size, at, to, more = (
                        "BN // 2",
                        "2 * bn + rank",
                        f"{to}.tile([BN // 2, None])[rank, 0]",
                        ", to=cluster",
                    )
                box = f"{self.var[s.value.number]}.tile([{size}, BK])[{at}, {step}]"
                w(f"gr.move({to}, {box}, atom=load, done=full[i]{more})")
            w("put.advance()")

    def steps(self) -> str:
        """The steps of k of a block."""
        return "steps" if self.cluster == ALONG_K or self.t.order.turns else f"gr.ceil_div({self.form.k.symbol}, BK)"

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
            if not self.t.order.alone:
                self.declare_result()
            turns = self.t.order.turns
            if turns:
                self.over("c * steps")
                with w.block("with gr.if_(c == 1):"):
                    w("turn[0].arrive()", "the first tile is that of the first warpgroup")
            with self.every_tile(turns):
                self.find()
                if turns:
                    w("turn[c].sync()")
                self.multiply()
                if turns:
                    w("turn[1 - c].arrive()")
                w("gr.wait(wgmma, pending=0)")
                if self.t.order.persistent:
                    self.release()
                if turns:
                    self.over("steps")
                w()
                if self.cluster == ALONG_K:
                    self.join()
                elif not self.t.order.alone:
                    self.pieces()
                else:
                    self.store()
            if not self.t.order.alone and self.cluster != ALONG_K:
                self.stored()
        if self.cluster == ALONG_ROWS:  # along k, the block that the other one writes to waits for that
            w("gr.barrier(on=cluster)", "nobody leaves while the other block may still arrive here")

    def over(self, steps: str) -> None:
        """Goes over the stages of a tile that is the other warpgroup's."""
        for ring in ("get", "free"):
            self.w(f"{ring}.advance({steps})")

    def release(self) -> None:
        """Gives the stage back that was read longest ago."""
        w, at = self.w, "at=cluster" if self.cluster == ALONG_ROWS else ""
        with w.block("with gr.only(mine.elect()):"):
            w(f"empty[free.index].arrive({at})")
        w("free.advance()")

    def join(self) -> None:
        """One block stores its sums to the other's shared memory, which adds them up and stores the result."""
        w, name = self.w, self.dots[self.form.dots[0].value.number]
        with w.block("with gr.if_(rank == 1):"):
            with w.block(f"for j in range(BN // {PIECE}):"):
                source, to = (f"{x}.tile([None, {PIECE}])[0, j]" for x in (name, "share[c].of(0)"))
                w(f'gr.move({to}, {source}, on=mine, atom="st.shared::cluster.v2.b32")')
            w("gr.barrier(on=mine)", "all have stored")
            with w.block("with gr.only(mine.elect()):"):
                w("come[c].arrive(at=cluster[0], release=True)")
        with w.block("with gr.if_(rank == 0):"):
            w("come[c].wait(0, acquire=True)")
            with w.block("for j in range(BN // 16):"):
                w('gr.move(other, share[c].tile([None, 16])[0, j], on=mine, atom="ld.shared.v2.b32")')
                part = f"{name}.tile([None, 16])[0, j]"
                w(f"part = {part}")
                w("part[:] = part + other")
            self.pieces()
            self.stored()

    def multiply(self) -> None:
        """The products of all steps of a tile."""
        f, w = self.form, self.w
        with w.block(f'for k in gr.loop("k", {self.steps()}):'):
            w("full[get.index].wait(get.phase)")
            w("gr.fence(wgmma)")
            for d in f.dots:
                a, b = shared_name(f.at(d.left, "left")), shared_name(f.at(d.right, "right"))
                x = f"{a}[get.index]" + ("" if self.t.order.turns else f".tile([{GROUP_ROWS}, None])[c, 0]")
                name = self.dots[d.value.number]
                w(f"gr.matmul({name}, {x}, {b}[get.index].T, on=mine, atom=wgmma, accumulate=k > 0)")
            w("gr.commit(wgmma)")
            w("get.advance()")
            w("gr.wait(wgmma, pending=1)", "the step before has read its stage")
            with w.block("with gr.if_(k > 0):"):
                self.release()

    def store(self) -> None:
        self.declare_result()
        self.pieces()
        self.stored()

    def declare_result(self) -> None:
        """Declares the registers of a piece of the result."""
        f, w = self.form, self.w
        dtype = f.output.dtype
        w(f'out = gr.fragment("out", [{GROUP_ROWS}, {PIECE}], gr.{dtype}, narrow.c, on=mine)')
        for v in f.beside():
            name, stored = f"g{v.name}", v.more["stored"]
            if len(stored) == 2:
                w(f'{name} = gr.fragment("{name}", [{GROUP_ROWS}, {PIECE}], gr.{v.more["dtype"]}, narrow.c, on=mine)')
            else:
                w(f'{name} = out.reduced({int(stored == (f.rows,))}, "{name}", gr.{v.more["dtype"]})')
        if self.cluster == ALONG_K:
            w(f'other = gr.fragment("other", [{GROUP_ROWS}, 16], gr.fp32, gr.atom("{self.narrowest()}").c, on=mine)')
        w(f"piece = sResult.tile([{GROUP_ROWS}, None])[c, 0]")

    def narrowest(self) -> str:
        """The instruction of 16 columns, by whose registers sums are added up."""
        return f"wgmma.m64n16k16.f32.{self.t.mma.rsplit('.', 1)[1]}"

    def pieces(self) -> None:
        """Computes the result piece by piece, and starts its stores."""
        f, w = self.form, self.w
        w("row = bm" if self.t.order.turns else "row = CONSUMERS * bm + c")
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
