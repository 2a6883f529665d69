"""The Python text of a kernel of products: ordinary source on public names, with the plan's reasons as comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.plan.form import Dot, StagedInput
from graphene.plan.meaning import Meaning
from graphene.plan.product_tiles import SLICE, columns_of, later_tiles
from graphene.plan.products import Shared, Tiled, shared_name

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis, Value

__all__ = ["write"]

COPIES = {16: "cp.async.cg.16", 8: "cp.async.ca.8", 4: "cp.async.ca.4"}
WORDS = {16: "v4.b32", 8: "v2.b32", 4: "b32", 2: "b16"}


class Writer(Meaning):
    """Writes one kernel."""

    # The kernel

    def write(self) -> str:
        """The whole source."""
        w = self.w
        w.beginning(self.title, self.form.result, *(x.left for x in self.form.dots),
                    *(x.right for x in self.form.dots), *(s.value for s in self.form.statistics))  # fmt: skip
        self.constants()
        w()
        w()
        self.functions()
        self.means()
        self.kernel()
        return w.text()

    def constants(self) -> None:
        """Sizes of tiles."""
        t, w, tile = self.t, self.w, self.t.tile
        least = f"least expected time: {t.expected_us:.1f} us, bound: {t.bound}"
        w(f"BM, BN, BK = {tile.m}, {tile.n}, {tile.k}", least)
        w(f"STAGES, AHEAD = {tile.stages}, {t.ahead}", self.d.made["slots.barriers"].why)
        w(f"WARPS = {tile.warps}")
        w("WM, WN = BM // WARPS[0], BN // WARPS[1]", "rows and columns of a warp")

    def sizes(self) -> str:
        """Sizes that the kernel is made for, as parameters."""
        return ", ".join(f"{a.symbol}={a.size}" for a in self.form_axes() if a.size is not None)

    def kernel(self) -> None:
        """The function that returns the kernel."""
        f, w = self.form, self.w
        with w.block(f"def {self.name}({self.sizes()}):"):
            w(f'"""The kernel. Its arguments are {", ".join(v.name for v in self.inputs)} and {self.out_name}."""')
            self.atoms()
            for a in self.form_axes():
                if a.size is None:
                    lines = [v for v in (*self.inputs,) if v.more["stored"][-1] is a] + (
                        [f.output] if f.output.axes[-1] is a else []
                    )
                    fact = ", multiple_of=8" if lines else ""
                    w(f'{a.symbol} = gr.sym("{a.symbol}"{fact})')
            with w.block(f'with gr.Kernel("{self.name}", means=means) as kernel:'):
                self.recorded()
            w("return kernel")

    def atoms(self) -> None:
        """The instructions."""
        self.w(f'mma = gr.atom("{self.t.mma}")')

    def recorded(self) -> None:
        """What is recorded."""
        self.arguments()
        self.launch()
        self.w.overlapped(self.d)
        self.tiles()
        self.memory()
        self.fragments()
        self.copies()
        self.loop()
        self.store()

    def arguments(self) -> None:
        w = self.w
        tensors = [("input", v.name, self.var[v.number], v.more["stored"], v.more["dtype"]) for v in self.inputs]
        tensors.append(("output", self.out_name, self.out, self.form.output.axes, self.form.output.dtype))
        for declare, name, variable, axes, dtype in tensors:
            last, e = axes[-1], dtype.bits // 8
            from graphene.plan.product_tiles import vector_bytes

            align = vector_bytes(last, e)
            sizes = ", ".join(a.symbol for a in axes)
            w(f'{variable} = gr.{declare}("{name}", [{sizes}], gr.{dtype}, align_bytes={align})')

    def launch(self) -> None:
        f, w = self.form, self.w
        grid = [f"gr.ceil_div({f.rows.symbol}, BM)", f"gr.ceil_div({f.columns.symbol}, BN)"]
        if f.batch:
            grid.append(" * ".join(a.symbol for a in f.batch))
        w(f"blocks = gr.blocks({', '.join(grid)})")
        w("threads = gr.threads(32 * WARPS[0] * WARPS[1])")
        w(f"bm, bn{', z' if f.batch else ''} = blocks.indices()")
        if len(f.batch) == 1:
            w(f"b_{f.batch[0].name} = z")
        elif f.batch:
            rest = "z"
            for a in reversed(f.batch):
                w(f"b_{a.name} = {rest} % {a.symbol}" if a is not f.batch[0] else f"b_{a.name} = {rest}")
                rest = f"({rest} // {a.symbol})" if rest == "z" else f"({rest[1:-1]} // {a.symbol})"
        w("warps = threads.tile(32).reshape(0, gr.Layout(WARPS))")
        w("(wm, wn), _ = warps.indices()")
        w("warp = warps[wm, wn]", "this thread's own warp")
        w()

    def in_batch(self, variable: str, stored: tuple[Axis, ...]) -> str:
        """A tensor's matrix of the block's member of the batch."""
        before = [a for a in stored if a in self.form.batch]
        if not before:
            return variable
        rest = [":"] * (len(stored) - len(before))
        return f"{variable}[{', '.join([f'b_{a.name}' for a in before] + rest)}]"

    def column_tile(self, across: Axis) -> str:
        """The size of a tile along the columns of a right operand."""
        return "BN" if across is self.form.columns else str(columns_of(self.form, across, self.t.tile))

    def tiles(self) -> None:
        """Views of the block's tiles, one for each step of k."""
        f, w = self.form, self.w
        for s in f.staged:
            size, at = (
                ("BM", "bm")
                if s.side == "left"
                else (self.column_tile(s.across), "bn" if s.across is f.columns else "0")
            )
            x = self.in_batch(self.var[s.value.number], s.value.more["stored"])
            if s.along_k(f.k):
                w(f"k{s.name}{s.side[0]} = {x}.tile([{size}, None])[{at}, 0].tile([None, BK])[0, :]")
            else:
                w(f"k{s.name}{s.side[0]} = {x}.tile([None, {size}])[0, {at}].tile([BK, None])[:, 0]")

    def shape(self, s: Shared) -> str:
        named = {self.t.tile.m: "BM", self.t.tile.n: "BN", self.t.tile.k: "BK"}
        del named
        return f"[{s.shape[0]}, {s.shape[1]}]"

    def memory(self) -> None:
        """Tensors in shared memory, at the places of the plan."""
        w, t, d = self.w, self.t, self.d.made
        w()
        for name, s in t.shared.items():
            if name == "sResult":
                continue
            dtype = self.form.dtype
            stages = "stages=STAGES, " if s.stages else ""
            swizzle = f"swizzle=gr.{s.swizzle!r}, " if s.swizzle is not None else ""
            why = d[f"{name}.swizzle"].why
            over = f", over=[{', '.join(t.over[name])}]" if t.over[name] else ""
            w(
                f'{name} = gr.alloc("{name}", {self.shape(s)}, gr.{dtype}, gr.SH, {stages}{swizzle}'
                f"at={t.at[name]}{over})",
                why,
            )

    def fragments(self) -> None:
        f, w = self.form, self.w
        w()
        for s in f.staged:
            rows, tv = ("WM", "mma.a") if s.side == "left" else (self.warp_columns(s.across), "mma.b")
            w(f'{self.loaded(s)} = gr.fragment("{self.loaded(s)}", [{rows}, {SLICE}], gr.{f.dtype}, {tv}, on=warp)')
        for dot in f.dots:
            for side, v in (("left", dot.left), ("right", dot.right)):
                name = self.operands.get(v.number)
                if name and f'{name} = gr.fragment("{name}"' not in "\n".join(w.lines):
                    rows, tv = ("WM", "mma.a") if side == "left" else (self.warp_columns(dot.columns), "mma.b")
                    w(
                        f'{name} = gr.fragment("{name}", [{rows}, {SLICE}], gr.{f.dtype}, {tv}, on=warp)',
                        "computed, rounded once",
                    )
        for v, side in self.vectors_along_k():
            like = self.loaded(next(s for s in f.inputs(side)))
            name = self.vector_name(v, side)
            w(f"{name} = [", f"elements of {v.name}, one for each column of each slice")
            w(f'    {like}.reduced(0, f"{name}{{j}}", gr.{v.more["dtype"]}) for j in range(BK // {SLICE})')
            w("]")
        for dot in (*f.dots, *f.later):
            name = self.dots[dot.value.number]
            w(f'{name} = gr.fragment("{name}", [WM, {self.warp_columns(dot.columns)}], gr.fp32, mma.c, on=warp)')
        for stat in f.statistics:
            name = self.stats[stat.value.number]
            like = self.loaded(f.inputs(stat.side)[0])
            if stat.value.number in self.t.squares:
                w(f'b{name} = gr.fragment("b{name}", [WM, {SLICE}], gr.{f.dtype}, mma.b, on=warp)')
                w(f'm{name} = gr.fragment("m{name}", [WM, WM], gr.fp32, mma.c, on=warp)', "on its diagonal: squares")
                w(f'{name} = {like}.reduced(1, "{name}", gr.fp32)')
                continue
            rows, tv = ("WM", "mma.a") if stat.side == "left" else ("WN", "mma.b")
            w(f'e{name} = gr.fragment("e{name}", [{rows}, {SLICE}], gr.fp32, {tv}, on=warp)')
            w(f'p{name} = {like}.reduced(1, "p{name}", gr.fp32, lanes=True)', "each lane's part of the statistic")
            w(
                f'{name} = {like}.reduced(1, "{name}", gr.fp32)',
                "same owners as the rows of the sums" if stat.side == "left" else "",
            )
        w()

    def vectors_along_k(self) -> list[tuple[Value, str]]:
        """Inputs that are vectors along k, with the sides that read them."""
        f = self.form
        found: list[tuple[Value, str]] = []
        expressions = [(v, side) for d in f.dots for side, v in (("left", d.left), ("right", d.right))]
        expressions += [(s.value.args[0], s.side) for s in f.statistics]
        for e, side in expressions:
            for v in e.walk():
                if v.op == "input" and v.more["stored"] == (f.k,) and not any(v is x and side == y for x, y in found):
                    found.append((v, side))
        return found

    def vector_name(self, v: Value, side: str) -> str:
        return f"v{v.name}{side[0]}"

    def warp_columns(self, across: Axis) -> str:
        return "WN" if across is self.form.columns else self.column_tile(across)

    def loaded(self, s: StagedInput) -> str:
        return f"r{s.name}{s.side[0]}"

    def copies(self) -> None:
        f, w = self.form, self.w
        if self.t.spread:
            self.parts_of_copies()
            return
        with w.block("def copy(k):"):
            w('"""Starts the copies of step k; past the last step they are zeros."""')
            for s in f.staged:
                shared = self.t.shared[shared_name(s)]
                w(
                    f"gr.move({shared.name}[k % STAGES], k{s.name}{s.side[0]}[k], on=threads, "
                    f'atom="{COPIES[shared.copy_bytes]}")'
                )
            w('gr.commit("cp.async.cg.16")')
        w()

    def parts_of_copies(self) -> None:
        """Copies of a step in as many parts as it has slices."""
        f, w = self.form, self.w
        with w.block("def copy_part(k, j):"):
            w('"""Starts the copies of part j of step k; past the last step they are zeros."""')
            for s in f.staged:
                shared = self.t.shared[shared_name(s)]
                cut = f"tile([{shared.shape[0]} // (BK // {SLICE}), None])[j, 0]"
                w(f"gr.move({shared.name}[k % STAGES].{cut}, k{s.name}{s.side[0]}[k].{cut}, on=threads, "
                  f'atom="{COPIES[shared.copy_bytes]}")')  # fmt: skip
        w()
        with w.block("def copy(k):"):
            w('"""Starts all copies of step k."""')
            with w.block(f"for j in range(BK // {SLICE}):"):
                w("copy_part(k, j)")
            w('gr.commit("cp.async.cg.16")')
        w()

    def part(self, s: StagedInput) -> str:
        """The slice j of a stage that a warp reads."""
        if s.side == "left":
            rows, at = "WM", "wm"
        else:
            rows, at = self.warp_columns(s.across), "wn" if s.across is self.form.columns else "0"
        x = f"{shared_name(s)}[k % STAGES]"
        return (
            f"{x}.tile([{rows}, {SLICE}])[{at}, j]"
            if s.along_k(self.form.k)
            else f"{x}.tile([{SLICE}, {rows}])[j, {at}].T"
        )

    def loop(self) -> None:
        f, t, w = self.form, self.t, self.w
        for x in (*f.dots, *f.later):
            w(f"gr.init({self.dots[x.value.number]}, 0)")
        start = {"sum": "0", "mean": "0", "max": "-gr.inf", "min": "gr.inf"}
        for s in f.statistics:
            part = "m" if s.value.number in t.squares else "p"
            w(f"gr.init({part}{self.stats[s.value.number]}, {start[s.value.op]})")
        for later in later_tiles(f, t.tile):
            dot: Dot = later.dot
            name, v = f"s{dot.right.name}", dot.right
            variable = self.in_batch(self.var[v.number], v.more["stored"])
            along = v.more["stored"][-1] is dot.value.more["axis"]
            cut = f"{variable}.tile([BN, None])[bn, 0]" if along else f"{variable}.tile([None, BN])[0, bn]"
            w(
                f'gr.move({name}, {cut}, on=threads, atom="{COPIES[t.shared[name].copy_bytes]}")',
                "waited for with the first step",
            )
        if t.ahead:
            with w.block("for k in range(AHEAD):"):
                w("copy(k)")
        with w.block(f'for k in gr.loop("k", gr.ceil_div({f.k.symbol}, BK)):'):
            self.factors()
            if t.ahead:
                w('gr.wait("cp.async.cg.16", pending=AHEAD - 1)')
                w("gr.barrier()", "step k has come, and every warp has read what the next copy overwrites")
                if not t.spread:
                    w("copy(k + AHEAD)")
            else:
                w("gr.barrier()", "every warp has read the step before")
                w("copy(k)")
                w('gr.wait("cp.async.cg.16", pending=0)')
                w("gr.barrier()", "every thread's copies have come")
            with w.block(f"for j in range(BK // {SLICE}):"):
                if t.spread:
                    w("copy_part(k + AHEAD, j)", self.d.made["copies.when"].why)
                self.slice()
            if t.spread:
                w('gr.commit("cp.async.cg.16")')
        self.after_loop()

    def factors(self) -> None:
        """Loads vectors along k for all slices of a step: their time passes while the step's copies are waited for."""
        vectors = self.vectors_along_k()
        if not vectors:
            return
        with self.w.block(f"for j in range(BK // {SLICE}):"):
            for v, side in vectors:
                e = v.more["dtype"].bits // 8
                line = f"{self.var[v.number]}.tile([BK])[k].reshape(0, [1, BK]).tile([1, {SLICE}])[0, j]"
                self.w(f'gr.move({self.vector_name(v, side)}[j], {line}, atom="ld.global.{WORDS[2 * e]}")')

    def slice(self) -> None:
        """The products of one slice of k."""
        f, w = self.form, self.w
        for side in ("left", "right"):
            for s in f.inputs(side):
                load = "ldmatrix.x4" if s.along_k(f.k) else "ldmatrix.x4.trans"
                w(f'gr.move({self.loaded(s)}, {self.part(s)}, atom="{load}")')
            done = set()
            for dot in f.dots:
                v = dot.left if side == "left" else dot.right
                name = self.operands.get(v.number)
                if name and name not in done:
                    done.add(name)
                    args = ", ".join(self.register(n, side) for n in self.takes[f"operand_{name}"])
                    w(f"{name}[:] = operand_{name}({args})")
            for stat in f.statistics:
                if stat.side == side:
                    self.statistic(stat.value, side)
        for dot in f.dots:
            a = self.operands.get(dot.left.number) or self.loaded(f.at(dot.left, "left"))
            b = self.operands.get(dot.right.number) or self.loaded(f.at(dot.right, "right"))
            w(f"gr.matmul({self.dots[dot.value.number]}, {a}, {b}.T, atom=mma)")

    def register(self, number: int, side: str) -> str:
        """The fragment that holds an input of an operand's expression."""
        v = self.value(number)
        if v.more["stored"] == (self.form.k,):
            return f"{self.vector_name(v, side)}[j]"
        return self.loaded(self.form.at(v, side))

    def statistic(self, v: Value, side: str) -> None:
        w, name = self.w, self.stats[v.number]
        x = v.args[0]
        if v.number in self.t.squares:
            s = self.form.at(x.args[0], "left")
            w(f'gr.move(b{name}, {self.part(s)}, atom="ldmatrix.x4")')
            w(f"gr.matmul(m{name}, {self.loaded(s)}, b{name}.T, atom=mma)")
            return
        if x.op == "input":
            w(f"e{name}[:] = {self.loaded(self.form.at(x, side))}")
        else:
            args = ", ".join(self.register(n, side) for n in self.takes[f"element_{name}"])
            w(f"e{name}[:] = element_{name}({args})")
        op = "add" if v.op in ("sum", "mean") else v.op
        w(f'gr.reduce("{op}", p{name}, e{name}, axis=1, accumulate=True)')

    def after_loop(self) -> None:
        f, w = self.form, self.w
        for s in f.statistics:
            name = self.stats[s.value.number]
            op = "add" if s.value.op in ("sum", "mean") else s.value.op
            if s.value.number in self.t.squares:
                w(f"row, column = m{name}.coords()")
                w(f"m{name}[:] = gr.where(row == column, m{name}, 0)")
                w(f'gr.reduce("add", {name}, m{name}, axis=1)')
                continue
            w(f'gr.reduce("{op}", {name}, p{name}, axis=1)')
            if s.side == "right":
                like = self.dots[next(d for d in f.dots if d.columns is f.columns).value.number]
                w(f'c{name} = {like}.reduced(0, "c{name}")')
                w(f"gr.move(c{name}, {name}.T)", "rows of the right operand become columns of the sums")
        for d in f.later:
            number, v = self.dots[d.value.number], d.before
            axis = d.value.more["axis"]
            name = f"r{number}"
            w(
                f'{name} = gr.fragment("{name}", [WM, {axis.size}], gr.{f.dtype}, mma.a, on=warp)',
                "sums become an operand in registers",
            )
            value = self.dots.get(v.number) or f"rounded_{number}({self.result_arguments(f'rounded_{number}')})"
            w(f"{name}[:] = {value}")
            w(f'q{number} = gr.fragment("q{number}", [WN, {SLICE}], gr.{f.dtype}, mma.b, on=warp)')
            along = d.right.more["stored"][-1] is axis
            with w.block(f"for j in range({axis.size // SLICE}):"):
                part = (
                    f"s{d.right.name}.tile([WN, {SLICE}])[wn, j]"
                    if along
                    else f"s{d.right.name}.tile([{SLICE}, WN])[j, wn].T"
                )
                w(f'gr.move(q{number}, {part}, atom="ldmatrix.x4{"" if along else ".trans"}")')
                w(f"gr.matmul({number}, {name}.tile([None, {SLICE}])[0, j], q{number}.T, atom=mma)")

    def result_arguments(self, function: str) -> str:
        """A function's arguments in registers."""
        texts = []
        for n in self.takes[function]:
            if n in self.dots:
                texts.append(self.dots[n])
            elif n in self.stats:
                s = next(s for s in self.form.statistics if s.value.number == n)
                name = self.stats[n] if s.side == "left" else f"c{self.stats[n]}"
                texts.append(f"{name} * (1 / {self.form.k.symbol})" if s.value.op == "mean" else name)
            else:
                texts.append(f"g{self.value(n).name}")
        return ", ".join(texts)

    def beside(self) -> None:
        """Loads what the result is computed from beside the products."""
        f, w = self.form, self.w
        for v in f.beside():
            name, stored, e = f"g{v.name}", v.more["stored"], v.more["dtype"].bits // 8
            x = self.var[v.number]
            if stored == (f.columns,):
                w(f'{name} = out.reduced(0, "{name}", gr.{v.more["dtype"]})')
                view = f"{x}.tile([BN])[bn].reshape(0, [1, BN]).tile([1, WN])[0, wn]"
                w(f'gr.move({name}, {view}, atom="ld.global.{WORDS[min(2 * e, 16)]}")')
            elif stored == (f.rows,):
                w(f'{name} = out.reduced(1, "{name}", gr.{v.more["dtype"]})')
                view = f"{x}.tile([BM])[bm].reshape(0, [BM, 1]).tile([WM, 1])[wm, 0]"
                w(f'gr.move({name}, {view}, atom="ld.global.{WORDS[e]}")')
            else:
                w(f'{name} = gr.fragment("{name}", [WM, WN], gr.{v.more["dtype"]}, mma.c, on=warp)')
                w(
                    f"gr.move({name}, {x}.tile([BM, BN])[bm, bn].tile([WM, WN])[wm, wn], "
                    f'atom="ld.global.{WORDS[2 * e]}")'
                )

    def store(self) -> None:
        f, t, w = self.form, self.t, self.w
        e = f.output.dtype.bits // 8
        w()
        w(f'out = gr.fragment("out", [WM, WN], gr.{f.output.dtype}, mma.c, on=warp)')
        self.beside()
        w(f"out[:] = result({self.result_arguments('result')})")
        to = f"{self.in_batch(self.out, f.output.axes)}.tile([BM, BN])[bm, bn]"
        if not t.through_shared:
            w('gr.wait("cp.async.cg.16", pending=0)', "copies past the end still write shared memory")
            w(f'gr.move({to}.tile([WM, WN])[wm, wn], out, atom="st.global.{WORDS[2 * e]}")')
            return
        s = t.shared["sResult"]
        w('gr.wait("cp.async.cg.16", pending=0)')
        w("gr.barrier()", "the stages are free")
        swizzle = f"swizzle=gr.{s.swizzle!r}, " if s.swizzle is not None else ""
        over = f", over=[{', '.join(t.over['sResult'])}]" if t.over["sResult"] else ""
        w(f'sResult = gr.alloc("sResult", [BM, BN], gr.{f.output.dtype}, gr.SH, {swizzle}at={t.at["sResult"]}{over})',
          self.d.made["sResult.swizzle"].why)  # fmt: skip
        w(f'gr.move(sResult.tile([WM, WN])[wm, wn], out, atom="st.shared.{WORDS[2 * e]}")')
        w("gr.barrier()")
        words = WORDS[t.store_bytes]
        w(f'gr.move({to}, sResult, on=threads, atom=("ld.shared.{words}", "st.global.{words}"))', "whole lines")


def write(t: Tiled, d: Decisions, title: str, name: str) -> str:
    """The source of a kernel that a plan decided."""
    return Writer(t, d, title, name).write()
