"""The Python text of a kernel of attention's form for Hopper, as `graphene.plan.stream_warpgroups` decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.plan.stream_warpgroups import GROUP_ROWS, LOG2E, READERS, WarpgroupStream
from graphene.plan.text import IN_RANGE, body, literal
from graphene.plan.write_products import WORDS
from graphene.plan.write_streams import StreamWriter

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis, Value

__all__ = ["write"]


class WarpgroupStreamWriter(StreamWriter):
    """Writes one kernel."""

    f: WarpgroupStream

    # Functions

    def functions(self) -> None:
        f, w = self.f, self.w
        for i, v in enumerate(f.how.rows):
            self.function(f"row_{i}", v, "What is computed once of a row.")
        for i, v in enumerate(f.how.columns):
            self.function(f"column_{i}", v, f"What is computed once of a line of {f.k.name}.")
        if f.how.element is not f.first:
            names = {f.first.number: "x", **self.once_names()}
            with w.block(f"def element({', '.join(names.values())}):"):
                w('"""What is computed of each product."""')
            w.lines += body(f.how.element, names)
            w()
            w()
        if f.how.factor is not None and f.how.factor.axes:
            self.function("factor", f.how.factor, "What the exponents of a row are multiplied by.")
        super().functions()

    def function(self, name: str, v: Value, doc: str) -> None:
        """A function of the statistics of a row, or of a key."""
        w, taken = self.w, self.taken(v)
        with w.block(f"def {name}({', '.join(taken.values())}):"):
            w(f'"""{doc}"""')
        w.lines += body(v, taken)
        w()
        w()

    def taken(self, v: Value) -> dict[int, str]:
        """The statistics that a value is computed of."""
        inside = {x.number for x in v.walk()}
        return {n: name for n, name in self.stats.items() if n in inside}

    def once_names(self) -> dict[int, str]:
        """Names of what is computed once of rows, and of keys."""
        f = self.f
        rows = {v.number: f"r{i}" for i, v in enumerate(f.how.rows)}
        return rows | {v.number: f"c{i}" for i, v in enumerate(f.how.columns)}

    # The kernel

    def write(self) -> str:
        """The whole source."""
        f, w, t = self.f, self.w, self.f.tile
        w.beginning(self.title, f.left, f.output.value)
        w(f"CONSUMERS, BN = {f.consumers}, {t.n}", f"least expected time: {f.expected_us:.1f} us, bound: {f.bound}")
        w(f"BM = {GROUP_ROWS} * CONSUMERS", "rows of a block, 64 for each warpgroup that multiplies")
        w(f"STAGES, QUERIES = {t.stages}, {f.queries}", "of rings that TMA fills")
        w(f"WORKERS = {f.workers}", self.d.made["workers"].why)
        if f.top is None:
            w(IN_RANGE, self.d.made["p.range"].why)
        elif f.how.factor is None or not f.how.factor.axes:
            value = "1" if f.how.factor is None else self.number(f.how.factor)
            w(f"FACTOR = {value} * {LOG2E}", "exponents are powers of 2")
        w()
        w()
        self.functions()
        sizes = "".join(f"{a.symbol}={a.size}, " for a in dict.fromkeys(self.axes) if a.size is not None)
        with w.block(f"def {self.name}({sizes}workers=WORKERS):"):
            w(f'"""The kernel. Its arguments are {", ".join([*(v.name for v in f.inputs()), f.output.name])}."""')
            kind = "bf16" if str(f.dtype) == "bf16" else "f16"
            e = f.columns.symbol
            w('load, store, stsm = gr.atom("tma.load"), gr.atom("tma.store"), gr.atom("stmatrix.x4")')
            w(f'qk, pv = gr.atom(f"wgmma.m64n{{BN}}k16.f32.{kind}"), gr.atom(f"wgmma.m64n{{{e}}}k16.f32.{kind}")')
            for a in dict.fromkeys(self.axes):
                if a.size is None:
                    fact = ", min=1" if a is f.stream else ""  # of no elements there is no maximum to begin with
                    w(f'{a.symbol} = gr.sym("{a.symbol}"{fact})')
            more = "" if f.top is not None else ", arguments=IN_RANGE"
            with w.block(f'with gr.Kernel("{self.name}", means=means{more}) as kernel:'):
                self.kernel()
            w("return kernel")
        return w.text()

    @staticmethod
    def number(v: Value) -> str:
        """A value without axes."""
        return body(v, {})[-1].strip().removeprefix("return ") if v.op != "number" else literal(v.more["value"])

    def kernel(self) -> None:
        f, w = self.f, self.w
        kind = f"gr.{f.dtype}"
        for v in f.inputs():
            sizes = ", ".join(a.symbol for a in v.more["stored"])
            dtype = f"gr.{v.more['dtype']}"
            w(f'{self.var[v.number]} = gr.input("{v.name}", [{sizes}], {dtype}, align_bytes=16)')
        sizes = ", ".join(a.symbol for a in f.output.axes)
        w(f'o = gr.output("{f.output.name}", [{sizes}], {kind}, align_bytes=16)')
        w(f"row_tiles, steps = gr.ceil_div({f.rows.symbol}, BM), gr.ceil_div({f.stream.symbol}, BN)")
        batch = " * ".join(a.symbol for a in f.batch)
        w(f"tiles = row_tiles * ({batch})" if f.batch else "tiles = row_tiles")
        w("(block,) = gr.blocks(gr.max(1, gr.min(workers, tiles))).indices()")
        w("threads = gr.threads(128 * (1 + CONSUMERS))")
        w("groups = threads.tile(128)")
        w("producer, consumers = groups[0], groups[1 : 1 + CONSUMERS]")
        w()
        self.memory()
        w("gr.barrier()", "the mbarriers are initialised")
        w.overlapped(self.d)
        w()
        self.place()
        self.produce()
        self.consume()

    def memory(self) -> None:
        f, w = self.f, self.w
        for name, s in f.shared.items():
            stages = {"sQ": "stages=QUERIES, ", "sResult": ""}.get(name, "stages=STAGES, ")
            if s.swizzle is None:
                i = int(name[2:])
                w(f'{name} = gr.alloc("{name}", [1, BN], gr.fp32, gr.SH, {stages}at={f.at[name]})',
                  f"column_{i} of each line of {f.k.name}")  # fmt: skip
                continue
            rows = "BM" if name in ("sQ", "sResult") else "BN"
            wide = (f.columns if name in ("sV", "sResult") else f.depth).symbol
            w(f'{name} = gr.alloc("{name}", gr.panels({rows}, {wide}, gr.{f.dtype}), gr.{f.dtype}, gr.SH, '
              f"{stages}swizzle=gr.{s.swizzle!r}, at={f.at[name]})", self.d.made[f"{name}.swizzle"].why)  # fmt: skip
        readers = f"{4 if self.reads_queries else 1} * CONSUMERS"
        w(f'fullQ, emptyQ = gr.mbarrier("fullQ", QUERIES, arrivals=1), '
          f'gr.mbarrier("emptyQ", QUERIES, arrivals={readers})')  # fmt: skip
        readers = f"{4 if f.how.columns else 1} * CONSUMERS"
        w(f'fullK, emptyK = gr.mbarrier("fullK", STAGES, arrivals=1), '
          f'gr.mbarrier("emptyK", STAGES, arrivals={readers})')  # fmt: skip
        w('fullV, emptyV = gr.mbarrier("fullV", STAGES, arrivals=1), '
          'gr.mbarrier("emptyV", STAGES, arrivals=CONSUMERS)')  # fmt: skip
        if f.how.columns:
            w(f'ready = gr.mbarrier("ready", STAGES, arrivals={READERS})', "what is computed of keys is there")
        if f.turns:
            w('turn = gr.named_barrier("turn", stages=CONSUMERS, threads=256)', "warpgroups multiply in turns")

    @property
    def reads_queries(self) -> bool:
        """Whether threads read queries, and not instructions alone."""
        return self.f.left.op != "input" or bool(self.f.on("left"))

    def place(self) -> None:
        """The function that says which tile of rows, and of which member of the batch, a tile is."""
        f, w = self.f, self.w
        with w.block("def place(tile):"):
            names = ", ".join(["bm", *(f"b_{a.name}" for a in f.batch)])
            w('"""The tile of rows and the member of the batch that a tile is: neighbours share keys."""')
            w("bm, z = tile % row_tiles, tile // row_tiles" if f.batch else "bm = tile")
            rest = "z"
            for i, a in enumerate(reversed(f.batch)):
                w(f"b_{a.name} = {rest}" if i == len(f.batch) - 1 else f"b_{a.name} = {rest} % {a.symbol}")
                rest = f"({rest} // {a.symbol})"
            w(f"return {names}" if f.batch else "return bm")
        w()

    def tile_loop(self) -> str:
        return 'for tile in gr.loop("tile", tiles, start=block, step=workers):'

    def placed(self) -> None:
        names = ", ".join(["bm", *(f"b_{a.name}" for a in self.f.batch)])
        self.w(f"{names} = place(tile)")

    def whole(self, var: str, stored: tuple[Axis, ...]) -> str:
        """A member of the batch."""
        return self.member(var, stored)

    def produce(self) -> None:
        """The thread that starts copies, and the warps that compute statistics of keys."""
        f, w = self.f, self.w
        d, e = f.depth.symbol, f.columns.symbol
        with w.block("with gr.only(producer):"):
            if f.registers is not None:
                w(f"gr.setmaxnreg({f.registers[0]})")
            with w.block("with gr.only(threads[0:32].elect()):"):
                w('put_q = gr.ring("put_q", QUERIES, phase=1)', "1: the ring starts empty")
                w('put_k, put_v = gr.ring("put_k", STAGES, phase=1), gr.ring("put_v", STAGES, phase=1)')
                with w.block(self.tile_loop()):
                    self.placed()
                    self.copy("Q", "put_q", f"{self.whole('q', f.q.more['stored'])}.tile([BM, {d}])[bm, 0]")
                    with w.block('for i in gr.loop("i", steps):'):
                        self.copy("K", "put_k", f"{self.whole('k', f.k.more['stored'])}.tile([BN, {d}])[i, 0]")
                        self.copy("V", "put_v", f"{self.whole('v', f.v.more['stored'])}.tile([BN, {e}])[i, 0]")
            if f.how.columns:
                self.keys()
        w()

    def copy(self, name: str, ring: str, box: str) -> None:
        w = self.w
        w(f"empty{name}[{ring}.index].wait({ring}.phase)")
        w(f"full{name}[{ring}.index].arrive(expect=[s{name}[{ring}.index]])")
        w(f"gr.move(s{name}[{ring}.index], {box}, atom=load, done=full{name}[{ring}.index])")
        w(f"{ring}.advance()")

    def keys(self) -> None:
        """Two warps of the producer's group read each tile of keys, and hand over what is computed of its lines."""
        f, w, d = self.f, self.w, self.f.depth.symbol
        own = f.on("right")
        with w.block(f"with gr.only(threads[{READERS}:{2 * READERS}]):"):
            w(f"(t,) = threads[{READERS}:{2 * READERS}].indices()")
            w('seen = gr.ring("seen", STAGES)')
            w(f'part = gr.alloc("part", [8], gr.{f.dtype}, gr.RF)')
            w('one = gr.alloc("one", [], gr.fp32, gr.RF)')
            for x in own:
                name = self.stats[x.value.number]
                w(f'e{name}, {name} = gr.alloc("e{name}", [8], gr.fp32, gr.RF), gr.alloc("{name}", [], gr.fp32, gr.RF)')
            with w.block(self.tile_loop()), w.block('for i in gr.loop("i", steps):'):
                w("fullK[seen.index].wait(seen.phase)")
                w("lines = sK[seen.index].tile([1, 8])")
                with w.block(f"for r in range(BN // {READERS}):"):
                    for x in own:
                        start = {"max": "-gr.inf", "min": "gr.inf"}.get(x.value.op, "0")
                        w(f"gr.init({self.stats[x.value.number]}, {start})")
                    with w.block(f"for j in range({d} // 8):"):
                        w(f'gr.move(part, lines[r * {READERS} + t, j][0, :], atom="ld.shared.v4.b32")')
                        for x in own:
                            name, op = self.stats[x.value.number], x.value.op
                            w(f"e{name}[:] = {'part' if x.value.args[0].op == 'input' else f'element_{name}(part)'}")
                            op = "add" if op in ("sum", "mean") else op
                            w(f'gr.reduce("{op}", {name}, e{name}, axis=0, accumulate=True)')
                    for x in own:
                        if x.value.op == "mean":
                            name = self.stats[x.value.number]
                            w(f"{name}[:] = {name} * (1 / {d})")
                    for i, v in enumerate(f.how.columns):
                        w(f"one[:] = column_{i}({', '.join(self.taken(v).values())})")
                        w(f"gr.move(sc{i}[seen.index][0, r * {READERS} + t], one)")
                w('gr.fence("async.shared")', "these reads come before the copy of a later step")
                w("ready[seen.index].arrive()")
                w("seen.advance()")

    # Warpgroups that multiply

    def consume(self) -> None:
        f, w = self.f, self.w
        with w.block("with gr.only(consumers):"):
            if f.registers is not None:
                w(f"gr.setmaxnreg({f.registers[1]})")
            self.declare()
            self.parts()
            with w.block(self.tile_loop()):
                self.placed()
                w("fullQ[get_q.index].wait(get_q.phase)")
                self.rows()
                w("gr.init(sums, 0)")
                if f.total is not None:
                    w("gr.init(lanes, 0)")
                w("fullK[get_k.index].wait(get_k.phase)")
                w("gr.fence(qk)")
                w("multiply_scores()")
                w("gr.wait(qk, pending=0)")
                w("change(0)")
                self.first()
                w("weights[:] = scores", "the owners of one are those of the other: nothing moves")
                with w.block('for i in gr.loop("i", steps, start=1):'):
                    self.next_step()
                if f.left.op == "input":
                    self.release("Q", "get_q", by_warps=self.reads_queries, fence=self.reads_queries)
                w("gr.fence(pv)")
                w("multiply_values()")
                self.store()
            w("gr.wait(store, pending=0)")

    def declare(self) -> None:
        """Registers."""
        f, w = self.f, self.w
        d, e = f.depth.symbol, f.columns.symbol
        kind = f"gr.{f.dtype}"
        w("c, _ = consumers.indices()")
        w("mine = consumers[c]", "this thread's own warpgroup")
        w("warps = mine.tile(32)")
        w("warp = warps[warps.indices()[0]]")
        w('get_q, get_k, get_v = gr.ring("get_q", QUERIES), gr.ring("get_k", STAGES), gr.ring("get_v", STAGES)')
        w(f'scores = gr.fragment("scores", [{GROUP_ROWS}, BN], gr.fp32, qk.c, on=mine)')
        w(f'weights = gr.fragment("weights", [{GROUP_ROWS}, BN], {kind}, pv.a, on=mine)')
        w(f'sums = gr.fragment("sums", [{GROUP_ROWS}, {e}], gr.fp32, pv.c, on=mine)')
        w(f'out = gr.fragment("out", [{GROUP_ROWS}, {e}], {kind}, pv.c, on=mine)')
        if f.left.op != "input":
            w(f'queries = gr.fragment("queries", [{GROUP_ROWS}, {d}], {kind}, qk.a, on=mine)')
        elif f.on("left"):
            w(f'slice_ = gr.fragment("slice_", [{GROUP_ROWS}, 16], {kind}, qk.a, on=mine)')
        for x in f.on("left"):
            name = self.stats[x.value.number]
            w(f'e{name} = gr.fragment("e{name}", [{GROUP_ROWS}, 16], gr.fp32, qk.a, on=mine)')
            w(f'p{name}, {name} = e{name}.reduced(1, "p{name}", lanes=True), e{name}.reduced(1, "{name}")')
        rows = [f"r{i}" for i, _ in enumerate(f.how.rows)]
        if f.top is not None:
            rows += ["top", "now", "shrink", *(["power"] if self.by_rows else [])]
        for name in rows:
            w(f'{name} = scores.reduced(1, "{name}")')
        if f.total is not None:
            w('lanes, total = scores.reduced(1, "lanes", lanes=True), scores.reduced(1, "total")')
        if f.lazy:
            w('most = gr.alloc("most", [], gr.fp32, gr.RF)')
            w('over, grows = gr.alloc("over", [], gr.i32, gr.RF), gr.alloc("grows", [], gr.i32, gr.RF)')
        if f.how.columns:
            kind = "bf16" if str(f.dtype) == "bf16" else "f16"
            w(f'narrow = gr.fragment("narrow", [{GROUP_ROWS}, 16], gr.fp32, '
              f'gr.atom("wgmma.m64n16k16.f32.{kind}").c, on=mine)')  # fmt: skip
            for i, _ in enumerate(f.how.columns):
                w(f'c{i} = narrow.reduced(0, "c{i}")')
        if f.turns:
            with w.block("with gr.if_(c == CONSUMERS - 1):"):
                w("turn[0].arrive()", "the first one begins")
        w()

    @property
    def by_rows(self) -> bool:
        """Whether rows have a factor of their own."""
        return self.f.how.factor is not None and bool(self.f.how.factor.axes)

    @property
    def power(self) -> str:
        """What exponents are multiplied by."""
        return "power" if self.by_rows else "FACTOR"

    def parts(self) -> None:
        """Functions for what occurs twice."""
        f, w = self.f, self.w
        with w.block("def multiply_scores():"):
            a = "queries" if f.left.op != "input" else f"sQ[get_q.index].tile([{GROUP_ROWS}, None])[c, 0]"
            w(f"gr.matmul(scores, {a}, sK[get_k.index].T, on=mine, atom=qk, accumulate=False)")
            w("gr.commit(qk)")
        w()
        with w.block("def multiply_values():"):
            w("fullV[get_v.index].wait(get_v.phase)")
            w("gr.matmul(sums, weights, sV[get_v.index], on=mine, atom=pv)")
            w("gr.commit(pv)")
        w()
        with w.block("def change(i):"):
            w('"""Scores of step i, of products; then the place of the keys is free."""')
            if f.how.columns:
                w("ready[get_k.index].wait(get_k.phase)")
                with w.block("for j in range(BN // 16):"):
                    for n, _ in enumerate(f.how.columns):
                        w(f'gr.move(c{n}, sc{n}[get_k.index].tile([1, 16])[0, j], atom="ld.shared.v2.b32")')
                    w("piece = scores.tile([None, 16])[0, j]")
                    w(f"piece[:] = element({', '.join(['piece', *self.once_names().values()])})")
            self.release("K", "get_k", by_warps=bool(f.how.columns))
            if not f.how.columns and f.how.element is not f.first:
                w(f"scores[:] = element({', '.join(['scores', *self.once_names().values()])})")
            if f.stream.size is None or f.stream.size % f.tile.n:
                with w.block("with gr.if_(i == steps - 1):", "the last step may reach past the end"):
                    w("_, column = scores.coords()")
                    outside = "-gr.inf" if f.top is not None else "0"
                    w(f"scores[:] = gr.where(i * BN + column < {f.stream.symbol}, scores, {outside})")
        w()

    def release(self, name: str, ring: str, by_warps: bool = False, fence: bool = False) -> None:
        """Gives a place back. Where threads read it, each warp speaks for its own."""
        w = self.w
        if fence:
            w('gr.fence("async.shared")', "these reads come before the next copy")
        if by_warps:
            w("gr.barrier(on=warp)")
        with w.block(f"with gr.only({'warp' if by_warps else 'mine'}.elect()):"):
            w(f"empty{name}[{ring}.index].arrive()")
        w(f"{ring}.advance()")

    def rows(self) -> None:
        """What is computed of queries, once a tile."""
        f, w, d = self.f, self.w, self.f.depth.symbol
        own, computed = f.on("left"), f.left.op != "input"
        if own or computed:
            self.start(own)
            with w.block(f"for j in range({d} // 16):"):
                part = "queries.tile([None, 16])[0, j]" if computed else "slice_"
                if computed and own:
                    w(f"part = {part}")
                    part = "part"
                w(f'gr.move({part}, sQ[get_q.index].tile([{GROUP_ROWS}, 16])[c, j], atom="ldmatrix.x4")')
                self.accumulate(own, part)
            self.meet(own)
        if computed:
            self.release("Q", "get_q", by_warps=True, fence=True)
            for x in f.factors():
                name = f"v{self.var[x.number]}"
                w(f'{name} = queries.reduced(0, "{name}", gr.{x.more["dtype"]})')
                e = x.more["dtype"].bits // 8
                w(f'gr.move({name}, {self.var[x.number]}.reshape(0, [1, {d}]), atom="ld.global.{WORDS[2 * e]}")')
            names = ", ".join(["queries", *(f"v{self.var[x.number]}" for x in f.factors())])
            w(f"queries[:] = query({names})", "computed once, rounded once, kept in registers")
        for i, v in enumerate(f.how.rows):
            w(f"r{i}[:] = row_{i}({', '.join(self.taken(v).values())})")
        if self.by_rows:
            assert f.how.factor is not None
            w(f"power[:] = factor({', '.join(self.taken(f.how.factor).values())}) * {LOG2E}", "powers of 2")

    def first(self) -> None:
        """Weights of the first step."""
        f, w = self.f, self.w
        if f.top is not None:
            w('gr.reduce("max", top, scores, axis=1)')
            w(f"scores[:] = gr.exp2((scores - top) * {self.power}, ftz=True)")
        if f.total is not None:
            w('gr.reduce("add", lanes, scores, axis=1, accumulate=True)')

    def next_step(self) -> None:
        """Scores of a step beside the values of the step before; exponentials beside the others' products."""
        f, w = self.f, self.w
        w("fullK[get_k.index].wait(get_k.phase)")
        if f.turns:
            w("turn[c].sync()")
        w("gr.fence(qk)")
        w("multiply_scores()")
        w("multiply_values()")
        if f.turns:
            w("turn[(c + 1) % CONSUMERS].arrive()")
        w("gr.wait(qk, pending=1)", "the scores are there, the sums are not")
        w("change(i)")
        if f.top is not None:
            w('gr.reduce("max", now, scores, axis=1)')
            if f.lazy:
                w(f"shrink[:] = (now - top) * {self.power}")
                w('gr.reduce("max", most, shrink.values, axis=0)')
                w("over[:] = gr.where(most > 8, 1, 0)", "sums stay below 2^8 times what they would be")
                w('gr.reduce("max", grows, over, axis=0, on=warp)', "a warp branches as one")
                with w.block("with gr.if_(gr.index(grows, 0, 1) > 0):"):
                    self.grown()
            else:
                self.grown()
            w(f"scores[:] = gr.exp2((scores - top) * {self.power}, ftz=True)")
        if f.total is not None:
            w('gr.reduce("add", lanes, scores, axis=1, accumulate=True)')
        w("gr.wait(pv, pending=0)")
        self.release("V", "get_v")
        if f.lazy:
            with w.block("with gr.if_(gr.index(grows, 0, 1) > 0):"):
                w("sums[:] = sums * shrink")
        elif f.top is not None:
            w("sums[:] = sums * shrink")
        w("weights[:] = scores")

    def grown(self) -> None:
        """The maximum so far, and what sums relative to the one before shrink by."""
        w = self.w
        w("now[:] = gr.max(top, now)")
        w(f"shrink[:] = gr.exp2((top - now) * {self.power}, ftz=True)")
        w("top[:] = now")
        if self.f.total is not None:
            w("lanes[:] = lanes * shrink")

    def store(self, t: object = None, e: str = "") -> None:
        f, w, e = self.f, self.w, self.f.columns.symbol
        del t
        if f.total is not None:
            w('gr.reduce("add", total, lanes, axis=1)')
        w("gr.wait(pv, pending=0)")
        self.release("V", "get_v")
        w(f"out[:] = result(sums{', total' if f.total is not None else ''})")
        w(f"own = sResult.tile([{GROUP_ROWS}, None])[c, 0]")
        w("gr.wait(store, pending=0)", "the tile before has left")
        w("gr.barrier(on=mine)")
        w("gr.move(own, out, atom=stsm)")
        w('gr.fence("async.shared")', "what threads stored becomes visible to TMA")
        w("gr.barrier(on=mine)")
        with w.block("with gr.only(mine.elect()):"):
            to = f"{self.member('o', f.output.axes)}.tile([{GROUP_ROWS}, {e}])[CONSUMERS * bm + c, 0]"
            w(f"gr.move({to}, own, atom=store)")
            w("gr.commit(store)")


def write(f: WarpgroupStream, d: Decisions, title: str, name: str) -> str:
    """The source of a kernel that a plan decided."""
    return WarpgroupStreamWriter(f, d, title, name).write()
