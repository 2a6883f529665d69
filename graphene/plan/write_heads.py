"""The Python text of a head: a kernel of products that keeps statistics of rows, and one that puts parts together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.plan.heads import HEAD_PIECE
from graphene.plan.warpgroups import GROUP_ROWS
from graphene.plan.write_products import WORDS, Writer
from graphene.plan.write_warpgroups import WarpgroupWriter

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis, Value
    from graphene.plan.heads import HeadTiled, RowStatistic
    from graphene.plan.text import Lines

__all__ = ["write"]

ELEMENT = '''def element(x, index):
    """The element of each row at an index; not a number where that lies outside."""
    import numpy as np

    index = np.asarray(index, np.int64)
    inside = (index >= 0) & (index < x.shape[1])
    return np.where(inside, np.take_along_axis(x, np.where(inside, index, 0)[:, None], 1)[:, 0], NAN)


'''


class HeadText(Writer):
    """What both kernels of a head have in common, whatever multiplies; `more`: parameters of kernels beside sizes."""

    t: Any
    more: tuple[str, ...] = ()

    def __init__(self, t: Any, d: Decisions, title: str, name: str) -> None:
        super().__init__(t, d, title, name)
        self.outs = {o.name: self._variable(o.name) for o in t.outputs}
        self.indices = list({k.index.number: k.index for k in t.kept if k.kind == "own"}.values())
        taken = {*self.var.values(), *self.outs.values()}
        self.work: dict[str, str] = {}  # workspaces by the statistic that they hold
        for kind in self.statistics():
            name = f"{kind}_of_parts"
            while name in taken:
                name += "_"
            self.work[kind] = name

    def _inputs(self) -> list[Value]:
        found: list[Value] = self.t.inputs()
        return found

    def _statistics(self, mark: str) -> dict[int, str]:
        del mark
        names = {"top": "top", "total": "total", "added": "added", "best": "largest"}
        return {k.value.number: names.get(k.kind) or f"own_{k.index.name}" for k in self.t.kept}

    def _variable(self, name: str) -> str:
        own = "piece places now shrink hits some found free part parts score element usual tile row x top total"
        own += " item items row_tiles workers WORKERS added largest launches columns column place LOG2E NAN PARTS"
        own += " base power p block w lane ROWS"
        return f"{name}_in" if name in own.split() else super()._variable(name)

    def form_axes(self) -> list[Axis]:
        found = {a.number: a for o in self.t.outputs for v in o.value.walk() for a in v.axes}
        return [found[n] for n in sorted(found)]

    def statistics(self) -> list[str]:
        """Names of what a part keeps of a row."""
        order = {"top": "top", "total": "total", "added": "added", "best": "largest"}
        return [n for k, n in order.items() if k in self.t.kinds] + [f"own_{v.name}" for v in self.indices]

    def kept(self, kind: str) -> list[RowStatistic]:
        return [k for k in self.t.kept if k.kind == kind]

    # The source

    def write(self) -> str:
        w = self.w
        w.beginning(self.title, self.t.score, *(o.value for o in self.t.outputs))
        self.constants()
        if "total" in self.t.kinds:
            w("LOG2E = 1.4426950408889634")
        if self.indices:
            w('NAN = float("nan")', "of a row whose own element has not been seen")
        w()
        w()
        self.functions()
        self.means()
        if self.indices:
            self.usual()
        self.kernel()
        w()
        w()
        self.merge()
        w()
        w()
        self.launches()
        return w.text()

    def functions(self) -> None:
        self.takes = {}
        if self.t.score.op != "dot":
            self.takes["score"] = self.function("score", self.t.score, self.dots, "An element of the scores, in fp32.")
        for o in self.t.outputs:
            if o.value.number in self.stats and self.kept_of(o.value).kind == "best":
                continue
            name = f"result_{o.name}"
            self.takes[name] = self.function(name, o.value, self.stats, f"An element of {o.name}, in fp32.")
        if self.indices:
            self.w.lines += ELEMENT.rstrip("\n").split("\n")
            self.w()
            self.w()

    def kept_of(self, v: Value) -> RowStatistic:
        found: RowStatistic = next(k for k in self.t.kept if k.value is v)
        return found

    def means(self) -> None:
        w, kinds = self.w, self.t.kinds
        with w.block(f"def means({', '.join(v.name for v in self.inputs)}):"):
            w('"""The promise of both kernels together, which plan.check() holds them to: NumPy on whole arrays."""')
            if kinds & {"top", "best"}:
                w("import numpy as np")
                w()
            (d,) = self.form.dots
            dot, left, right = self.dots[d.value.number], self.array(d.left, "left"), self.array(d.right, "right")
            w(f"{dot} = {left} @ {right}.swapaxes(-1, -2)")
            w(f"x = score({self.known_arguments('score')})" if "score" in self.takes else f"x = {dot}")
            if "top" in kinds:
                w("top = np.nanmax(x, -1)")
            if "total" in kinds:
                w("total = gr.exp(x - top[:, None]).sum(-1)")
            if "added" in kinds:
                w("added = x.sum(-1)")
            if "best" in kinds:
                w("largest = np.argmax(np.where(x == x, x, -gr.inf), -1)")
            for v in self.indices:
                w(f"own_{v.name} = element(x, {v.name})")
            results = []
            for o in self.t.outputs:
                function = f"result_{o.name}"
                text = f"{function}({self.merged_arguments(function)})" if function in self.takes else "largest"
                results.append(f'"{o.name}": {text}')
            w(f"return {{{', '.join(results)}}}")
        w()
        w()

    def merged_arguments(self, function: str, kernel: bool = False) -> str:
        """A result's arguments: statistics of rows, and inputs over the rows."""
        texts = []
        for n in self.takes[function]:
            if n not in self.stats:
                v = self.value(n)
                texts.append(f"gr.load({self.var[n]}[row])" if kernel else v.name)
            elif next(k for k in self.t.kept if k.value.number == n).value.op == "mean":
                columns = self.form.columns.symbol if kernel else "x.shape[1]"
                texts.append(f"added * (1 / {columns})" if kernel else f"added / {columns}")
            else:
                texts.append(self.stats[n])
        return ", ".join(texts)

    def usual(self) -> None:
        """What a check fills indices with."""
        w, (s,) = self.w, self.form.inputs("right")
        with w.block("def usual(args, rng):"):
            w('"""For a check: columns as indices, and numbers outside of them."""')
            for v in self.indices:
                w(f'args["{v.name}"][...] = rng.integers(-1, args["{s.name}"].shape[0] + 1, args["{v.name}"].shape)')
        w()
        w()

    # The kernel of parts

    def sizes(self) -> str:
        known = [f"{a.symbol}={a.size}" for a in self.form_axes() if a.size is not None]
        return ", ".join([*known, *(f"{n}={n.upper()}" for n in self.more)])

    def names(self) -> list[str]:
        """Arguments of the first kernel that are read."""
        return [v.name for v in self.first_inputs()]

    def first_inputs(self) -> list[Value]:
        read = {x.number for x in self.t.score.walk()} | {v.number for v in self.indices}
        return [v for v in self.inputs if v.number in read]

    def kernel(self) -> None:
        w = self.w
        with w.block(f"def {self.name}({self.sizes()}):"):
            w('"""The kernel that computes products, and keeps statistics of a row for each part of the columns."""')
            self.atoms()
            self.symbols()
            self.count_parts()
            with w.block(f'with gr.Kernel("{self.name}") as kernel:'):
                self.recorded()
            w("return kernel")

    def count_parts(self) -> None:
        """Says how many parts there are, where that follows from sizes."""

    def symbols(self) -> None:
        for a in self.form_axes():
            if a.size is None:
                self.w(f'{a.symbol} = gr.sym("{a.symbol}")')

    def arguments(self) -> None:
        from graphene.plan.product_tiles import vector_bytes

        w, rows = self.w, self.form.rows
        for v in self.first_inputs():
            stored, dtype = v.more["stored"], v.more["dtype"]
            align = vector_bytes(stored[-1], dtype.bits // 8) if stored != (rows,) else dtype.bits // 8
            sizes = ", ".join(a.symbol for a in stored)
            w(f'{self.var[v.number]} = gr.input("{v.name}", [{sizes}], gr.{dtype}, align_bytes={align})')
        self.workspaces("output")

    def workspaces(self, declare: str) -> None:
        for kind, name in self.work.items():
            dtype = "i32" if kind == "largest" else "fp32"
            self.w(f'{name} = gr.{declare}("{name}", [parts, {self.form.rows.symbol}], gr.{dtype})')

    # The kernel that puts parts together

    def merge(self) -> None:
        w, f, t, kinds = self.w, self.form, self.t, self.t.kinds
        rows, v = f.rows.symbol, f.columns.symbol
        with w.block(f"def {self.name}_merge({self.sizes()}):"):
            w('"""The kernel that puts the statistics of parts together, always in one order: a warp for each row."""')
            w("ROWS = 8", "of a block: neighbours, whose statistics lie in one sector")
            self.symbols()
            self.count_parts()
            with w.block(f'with gr.Kernel("{self.name}_merge") as kernel:'):
                self.workspaces("input")
                for x in self.merge_inputs():
                    w(f'{self.var[x.number]} = gr.input("{x.name}", [{rows}], gr.{x.more["dtype"]})')
                for o in t.outputs:
                    w(f'{self.outs[o.name]} = gr.output("{o.name}", [{rows}], gr.{o.dtype})')
                w(f"blocks, warps = gr.blocks(gr.ceil_div({rows}, ROWS)), gr.threads(32 * ROWS).tile(32)")
                w("(block,), (w, lane) = blocks.indices(), warps.indices()")
                w("row, warp = block * ROWS + w, warps[w]")
                w("gr.wait_kernels()", "the kernel before this one writes the parts")
                with w.block(f"with gr.if_(row < {rows}):"):
                    self.merged(kinds, v)
            w("return kernel")

    def merge_inputs(self) -> list[Value]:
        """Inputs of results beside statistics."""
        taken = {n for name, of in self.takes.items() if name != "score" for n in of}
        return [v for v in self.inputs if v.number in taken]

    def merged(self, kinds: set[str], v: str) -> None:
        w, t = self.w, self.t
        floats = [n for n in self.statistics() if n != "largest"]
        for n in floats:
            start = "-gr.inf" if n == "top" else "NAN" if n.startswith("own_") else "0"
            w(f'{n} = gr.let("{n}", {start}, gr.fp32)')
        if "best" in kinds:
            w(f'largest = gr.let("largest", {v}, gr.i32)')
        with w.block('for p in gr.loop("p", parts, start=lane, step=32):'):
            if "top" in kinds:
                w(f"x = gr.load({self.work['top']}[p, row])")
            if "best" in kinds:
                w(f"place = gr.load({self.work['largest']}[p, row])")
                w("largest[...] = gr.where(x > top, place, gr.where(x == top, gr.min(place, largest), largest))")
            if "top" in kinds:
                w("top[...] = gr.max(top, x)")
            if "added" in kinds:
                w(f"added[...] = added + gr.load({self.work['added']}[p, row])")
            for n in floats:
                if n.startswith("own_"):
                    w(f"{n}[...] = gr.max({n}, gr.load({self.work[n]}[p, row]))", "a number, where there is one")
        if "best" in kinds:
            w('gr.allarg("max", top, largest, on=warp)', "of equals, the least index")
        elif "top" in kinds:
            w('gr.allreduce("max", top, on=warp)')
        for n in floats:
            if n == "added" or n.startswith("own_"):
                w(f'gr.allreduce("{"add" if n == "added" else "max"}", {n}, on=warp)')
        if "total" in kinds:
            w('base = gr.let("base", gr.where(top == -gr.inf, 0, top))')
            with w.block('for p in gr.loop("q", parts, start=lane, step=32):'):
                tops, totals = self.work["top"], self.work["total"]
                w(f"power = gr.exp2((gr.load({tops}[p, row]) - base) * LOG2E, ftz=True)")
                w(f"total[...] = total + gr.load({totals}[p, row]) * power")
            w('gr.allreduce("add", total, on=warp)')
        with w.block("with gr.if_(lane == 0):"):
            for o in t.outputs:
                function = f"result_{o.name}"
                value = f"{function}({self.merged_arguments(function, True)})" if function in self.takes else "largest"
                w(f"{self.outs[o.name]}[row] = {value}")

    def launches(self) -> None:
        """The function that gives both kernels with their arguments."""
        w, t = self.w, self.t
        sizes = [a.symbol for a in self.form_axes() if a.size is not None]
        passed = ", ".join([*sizes, *self.more])
        first = [*self.names(), *self.work.values()]
        second = [*self.work.values(), *(v.name for v in self.merge_inputs()), *(o.name for o in t.outputs)]
        with w.block(f"def launches({self.sizes()}):"):
            w('"""Both kernels in their order, with the names of their arguments, and the workspaces between them."""')
            self.count_parts()
            rows = self.form.rows
            one = f'["{rows.symbol}"]' if rows.size is None else ""
            count = f"sizes{one}" if one else rows.symbol
            w()
            with w.block("def workspaces(sizes):"):
                w("return {")
                for k, n in self.work.items():
                    w(f'    "{n}": ((parts, {count}), "{"i32" if k == "largest" else "fp32"}"),')
                w("}")
            w()
            shapes = {v.name: v.more["stored"] for v in self.inputs} | {o.name: o.axes for o in t.outputs}
            w("shapes = {")
            for n, of in shapes.items():
                inside = ", ".join(f'"{a.symbol}"' if a.size is None else a.symbol for a in of)
                w(f'    "{n}": ({inside}{"," if len(of) == 1 else ""}),')
            w("}")
            quoted = [", ".join(f'"{n}"' for n in names) for names in (first, second)]
            for name, arguments in zip(("first", "second"), quoted, strict=True):
                w(f"{name} = ({arguments})")
            w(f"one = gr.Launch({self.name}({passed}), first)")
            w(f"two = gr.Launch({self.name}_merge({passed}), second)")
            usual = ", arguments=usual" if self.indices else ""
            w(f"return gr.Launches([one, two], means=means, shapes=shapes, workspaces=workspaces{usual})")


class HeadWriter(HeadText, WarpgroupWriter):
    """Writes a head whose products are computed by warpgroups."""

    more = ("parts", "workers")

    def constants(self) -> None:
        super().constants()
        self.w(f"PARTS = {self.t.parts}", self.d.made["parts"].why)
        self.w(f"WORKERS = {self.t.workers}", self.d.made["workers"].why)

    def atoms(self) -> None:
        w, kind = self.w, self.t.mma.rsplit(".", 1)[1]
        w(f'load, wgmma = gr.atom("tma.load"), gr.atom("{self.t.mma}")')
        w(f'narrow = gr.atom("wgmma.m64n{HEAD_PIECE}k16.f32.{kind}")', "whose sums are a piece of a tile's")

    def launch(self) -> None:
        f, w = self.form, self.w
        w(f"row_tiles = gr.ceil_div({f.rows.symbol}, BM)")
        w("(block,) = gr.blocks(workers).indices()")
        w("groups = gr.threads(128 * (1 + CONSUMERS)).tile(128)")
        w("producer, consumers = groups[0], groups[1 : 1 + CONSUMERS]")

    def items(self) -> Lines:
        """The loop of a block over its tiles of rows and parts of columns."""
        w = self.w
        w('for item in gr.loop("item", row_tiles * parts, start=block, step=workers):')
        with w:
            w("bm, part = item % row_tiles, item // row_tiles", "neighbours share a part")
        return w

    def tiles_of_part(self) -> str:
        """The loop over the tiles of a part."""
        return f'for bn in gr.loop("bn", gr.ceil_div({self.form.columns.symbol}, BN), start=part, step=parts):'

    def produce(self) -> None:
        w = self.w
        with w.block("with gr.only(producer):"):
            if self.t.consumers > 1:
                w(f"gr.setmaxnreg({self.t.registers[0]})")
            with w.block("with gr.only(producer.elect()):"):
                w('put = gr.ring("put", STAGES, phase=1)', "1: the ring starts empty")
                with self.items(), w.block(self.tiles_of_part()):
                    self.copies_of_tile()
        w()

    def consume(self) -> None:
        w = self.w
        with w.block("with gr.only(consumers):"):
            if self.t.consumers > 1:
                w(f"gr.setmaxnreg({self.t.registers[1]})")
            w("c, _ = consumers.indices()")
            w("mine = consumers[c]", "this thread's own warpgroup")
            w('get, free = gr.ring("get", STAGES), gr.ring("free", STAGES)')
            dot = self.declare()
            with self.items():
                self.begin()
                with w.block(self.tiles_of_part()):
                    self.multiply()
                    w("gr.wait(wgmma, pending=0)")
                    with w.block("with gr.only(mine.elect()):"):
                        w("empty[free.index].arrive()")
                    w("free.advance()")
                    self.tile_of_scores(dot)
                self.finish()

    def declare(self) -> str:
        """Registers: sums, a piece of them, statistics."""
        f, w, kinds = self.form, self.w, self.t.kinds
        (d,) = f.dots
        dot = self.dots[d.value.number]
        w(f'{dot} = gr.fragment("{dot}", [{GROUP_ROWS}, BN], gr.fp32, wgmma.c, on=mine)')
        w(f'piece = gr.fragment("piece", [{GROUP_ROWS}, {HEAD_PIECE}], gr.fp32, narrow.c, on=mine)')
        for v in f.beside():
            w(f'g{v.name} = piece.reduced({int(v.more["stored"] == (f.rows,))}, "g{v.name}", gr.{v.more["dtype"]})')
        for v in self.indices:
            w(f'g{v.name} = {dot}.reduced(1, "g{v.name}", gr.i32)')
        for name in self.statistics():
            dtype = ", gr.i32" if name == "largest" else ""
            alike = [name, *({"top": ["now"], "largest": ["found"]}.get(name, []))]
            lanes = "" if name == "top" else ", lanes=True"
            for n in alike:
                w(f'{n} = {dot}.reduced(1, "{n}"{dtype}{lanes})', "each lane's part" if lanes and n == name else "")
            if name != "top":
                w(f'row_{name} = {dot}.reduced(1, "row_{name}"{dtype})')
        if "total" in kinds:
            w(f'base, shrink = {dot}.reduced(1, "base"), {dot}.reduced(1, "shrink")')
        if "best" in kinds:
            w(f'places = gr.fragment("places", [{GROUP_ROWS}, {HEAD_PIECE}], gr.i32, narrow.c, on=mine)')
        if self.indices or "best" in kinds:
            w(f'hits, some = {dot}.reduced(1, "hits", gr.i32), gr.alloc("some", [], gr.i32, gr.RF)')
        w(f"_, column = {dot}.coords()")
        w("_, place = piece.coords()")
        return dot

    def begin(self) -> None:
        """Nothing has been seen of rows."""
        w = self.w
        w("row = CONSUMERS * bm + c")
        for v in (*(x for x in self.form.beside() if x.more["stored"] == (self.form.rows,)), *self.indices):
            self.load_rows(v)
        for name in self.statistics():
            start = "NAN" if name.startswith("own_") else "-gr.inf" if name == "top" else "0"
            w(f"gr.init({name}, {start})")

    def load_rows(self, v: Value) -> None:
        view = f"{self.var[v.number]}.tile([{GROUP_ROWS}])[row].reshape(0, [{GROUP_ROWS}, 1])"
        self.w(f'gr.move(g{v.name}, {view}, atom="ld.global.{WORDS[v.more["dtype"].bits // 8]}")')

    def any_row(self, condition: str) -> str:
        """Writes what says whether a condition holds for a row of a thread; returns the condition of a branch."""
        w = self.w
        w(f"hits[:] = gr.where({condition}, 1, 0)")
        w("gr.init(some, 0)")
        w('gr.reduce("max", some, hits.values, axis=0, accumulate=True)')
        return "with gr.if_(gr.index(some, 0, 1) > 0):"

    def tile_of_scores(self, dot: str) -> None:
        """What is kept of a tile."""
        f, w, kinds = self.form, self.w, self.t.kinds
        v, part = f.columns.symbol, f"{dot}.tile([None, {HEAD_PIECE}])[0, j]"
        pieces = f"for j in range(BN // {HEAD_PIECE}):"
        if "score" in self.takes:
            with w.block(pieces):
                w(f"part_of = {part}")
                for x in f.beside():
                    if x.more["stored"] == (f.columns,):
                        at = f"bn * (BN // {HEAD_PIECE}) + j"
                        view = f"{self.var[x.number]}.tile([{HEAD_PIECE}])[{at}].reshape(0, [1, {HEAD_PIECE}])"
                        w(f'gr.move(g{x.name}, {view}, atom="ld.global.{WORDS[x.more["dtype"].bits // 4]}")')
                args = ", ".join("part_of" if n in self.dots else f"g{self.value(n).name}" for n in self.takes["score"])
                w(f"part_of[:] = score({args})")
        if "added" in kinds:
            with w.block(f"with gr.if_(bn * BN + BN > {v}):"):
                w(f"{dot}[:] = gr.where(bn * BN + column < {v}, {dot}, 0)")
            w(f'gr.reduce("add", added, {dot}, axis=1, accumulate=True)')
        for x in self.indices:
            w(f"g{x.name}[:] = gr.where(g{x.name} < {v}, g{x.name}, -1)", "none of what lies behind the last column")
            with w.block(self.any_row(f"(g{x.name} >= bn * BN) & (g{x.name} < bn * BN + BN)"), "few tiles have one"):
                with w.block(pieces):
                    w(f"piece[:] = gr.where(bn * BN + j * {HEAD_PIECE} + place == g{x.name}, {part}, NAN)")
                    w(f'gr.reduce("max", own_{x.name}, piece, axis=1, accumulate=True)', "a number, where there is one")
        if "top" in kinds:
            with w.block(f"with gr.if_(bn * BN + BN > {v}):"):
                w(f"{dot}[:] = gr.where(bn * BN + column < {v}, {dot}, -gr.inf)")
            w(f'gr.reduce("max", now, {dot}, axis=1)')
            w("now[:] = gr.max(top, now)")
        if "best" in kinds:
            with w.block(self.any_row("now > top"), "the maximum seldom grows"):
                w(f"gr.init(found, {v})")
                with w.block(pieces):
                    w(f"places[:] = bn * BN + j * {HEAD_PIECE} + place")
                    w(f"places[:] = gr.where({part} == now, places, {v})")
                    w('gr.reduce("min", found, places, axis=1, accumulate=True)')
                w("largest[:] = gr.where(now > top, found, largest)")
        if "total" in kinds:
            w("base[:] = gr.where(now == -gr.inf, 0, now)")
            w("shrink[:] = gr.exp2((top - base) * LOG2E, ftz=True)", "since the maximum has grown")
            w("total[:] = total * shrink")
            w(f"{dot}[:] = gr.exp2(({dot} - base) * LOG2E, ftz=True)")
            w(f'gr.reduce("add", total, {dot}, axis=1, accumulate=True)')
        if "top" in kinds:
            w("top[:] = now")

    def finish(self) -> None:
        """Lanes exchange what they have, and the part's statistics are stored."""
        w = self.w
        for kind, name in self.work.items():
            held = kind
            if kind != "top":
                held = f"row_{kind}"
                op = "add" if kind in ("total", "added") else "min" if kind == "largest" else "max"
                if op == "max":
                    w(f"gr.init({held}, NAN)")
                more = ", accumulate=True" if op == "max" else ""
                w(f'gr.reduce("{op}", {held}, {kind}, axis=1{more})')
            view = f"{name}[part, :].tile([{GROUP_ROWS}])[row].reshape(0, [{GROUP_ROWS}, 1])"
            w(f'gr.move({view}, {held}, atom="st.global.b32")')


def write(t: HeadTiled, d: Decisions, title: str, name: str) -> str:
    """The source of both kernels that a plan decided."""
    return HeadWriter(t, d, title, name).write()
