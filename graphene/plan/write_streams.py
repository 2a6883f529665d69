"""The Python text of a kernel of attention's form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.plan.text import IN_RANGE, Lines, body, exact, reduced
from graphene.plan.write_products import COPIES, WORDS

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.form import Statistic
    from graphene.plan.graph import Axis, Value
    from graphene.plan.streams import StreamForm

__all__ = ["write"]


class StreamWriter:
    """Writes one kernel. Its arguments are called Q, K, V and O inside; outside they have the graph's names."""

    def __init__(self, f: StreamForm, d: Decisions, title: str, name: str) -> None:
        self.f, self.d, self.title, self.name, self.w = f, d, title, name, Lines()
        self.axes = [*f.batch, f.rows, f.stream, f.depth, f.columns]
        self.var = {f.q.number: "q", f.k.number: "k", f.v.number: "v"}
        self.var |= {x.number: f"w{i}" for i, x in enumerate(f.factors())}
        self.stats = {x.value.number: f"s{i}" for i, x in enumerate(f.statistics)}

    def array(self, v: Value) -> str:
        """An input as an array, with a dimension of one element for each batch axis that it lacks."""
        stored = v.more["stored"]
        if all(a in stored for a in self.f.batch) or not any(a in stored for a in self.f.batch):
            return v.name
        places = ", ".join(":" if a in stored else "None" for a in self.f.batch)
        return f"{v.name}[{places}]"

    def functions(self) -> None:
        f, w = self.f, self.w
        if f.left.op != "input":
            taken = {f.q.number: "x", **{x.number: self.var[x.number] for x in f.factors()}}
            with w.block(f"def query({', '.join(taken.values())}):"):
                w(f'"""What is multiplied, of elements of {", ".join(v.name for v in (f.q, *f.factors()))}."""')
            w.lines += body(f.left, taken)
            w()
            w()
        for x in f.statistics:
            if x.value.args[0].op != "input":
                with w.block(f"def element_{self.stats[x.value.number]}(x):"):
                    w(f'"""What is reduced ({x.value.op}), of an element of {self.of(x).name}."""')
                w.lines += body(x.value.args[0], {self.of(x).number: "x"})
                w()
                w()
        with w.block(f"def score({', '.join(['x', *self.stats.values()])}):"):
            w('"""What is computed of the product of a row and a column."""')
        w.lines += body(f.score, {f.first.number: "x", **self.stats})
        w()
        w()
        known = {f.second.number: "x"}
        if f.total is not None:
            known[f.total.number] = "total"
        with w.block(f"def result({', '.join(known.values())}):"):
            w('"""An element of the result, in fp32."""')
        w.lines += body(f.output.value, known)
        w()
        w()
        names = ", ".join(v.name for v in f.inputs())
        with w.block(f"def means({names}):"):
            w('"""The kernel\'s promise, which kernel.check() holds it to: NumPy on whole arrays."""')
            if any(x.value.op in ("max", "min") for x in f.statistics):
                w("import numpy as np")
                w()
            along = f.k.more["stored"][-1] is f.depth
            texts = []
            for x in f.statistics:
                text = self.array(self.of(x)) + ("" if x.side == "left" or along else ".swapaxes(-1, -2)")
                name = self.stats[x.value.number]
                text = text if x.value.args[0].op == "input" else f"element_{name}({text})"
                w(f"{name} = {reduced(text, x.value.op)}")
                texts.append(name if x.side == "left" else f"{name}.swapaxes(-1, -2)")
            left = self.array(f.q)
            if f.left.op != "input":
                left = f"query({', '.join([left, *(x.name for x in f.factors())])})"
                left = left if exact(f.left) else f'gr.rounded("queries", {left})'
            product = f"{left} @ {self.array(f.k)}{'.swapaxes(-1, -2)' if along else ''}"
            w(f"x = score({', '.join([product, *texts])})")
            w("p = gr.exp(x - x.max(-1, keepdims=True))" if f.top is not None else "p = x")
            by = ", by=None" if f.top is not None else ""
            text = f'gr.rounded("weights", p{by}) @ {self.array(f.v)}'
            more = ", p.sum(-1, keepdims=True)" if f.total is not None else ""
            w(f'return {{"{f.output.name}": result({text}{more})}}')
        w()
        w()

    def of(self, x: Statistic) -> Value:
        """The input that a statistic is of."""
        return self.f.q if x.side == "left" else self.f.k

    def member(self, var: str, stored: tuple[Axis, ...]) -> str:
        before = [a for a in stored if a in self.f.batch]
        if not before:
            return var
        return f"{var}[{', '.join([f'b_{a.name}' for a in before] + [':'] * (len(stored) - len(before)))}]"

    def write(self) -> str:
        """The whole source."""
        f, w, t = self.f, self.w, self.f.tile
        w.beginning(self.title, f.left, f.output.value)
        w(
            f"BM, BN, WARPS = {t.m}, {t.n}, {t.warps[0]}",
            f"least expected time: {f.expected_us:.1f} us, bound: {f.bound}",
        )
        w(f"STAGES, AHEAD = {t.stages}, {f.ahead}", "one barrier a step")
        w("WM = BM // WARPS", "rows of a warp, which has them whole")
        if f.top is None:
            w(IN_RANGE, self.d.made["p.range"].why)
        w()
        w()
        self.functions()
        sizes = ", ".join(f"{a.symbol}={a.size}" for a in dict.fromkeys(self.axes) if a.size is not None)
        with w.block(f"def {self.name}({sizes}):"):
            w(f'"""The kernel. Its arguments are {", ".join([*(v.name for v in f.inputs()), f.output.name])}."""')
            from graphene.plan.products import MATRIX_ATOMS

            w(f'mma = gr.atom("{MATRIX_ATOMS[str(f.dtype)]}")')
            for a in dict.fromkeys(self.axes):
                if a.size is None:
                    fact = ", multiple_of=8" if f.k.more["stored"][-1] is a else ""
                    w(f'{a.symbol} = gr.sym("{a.symbol}"{fact})')
            more = "" if f.top is not None else ", arguments=IN_RANGE"
            with w.block(f'with gr.Kernel("{self.name}", means=means{more}) as kernel:'):
                self.kernel()
            w("return kernel")
        return w.text()

    def kernel(self) -> None:
        f, w, t = self.f, self.w, self.f.tile
        d, e, s = (a.symbol for a in (f.depth, f.columns, f.stream))
        kind = f"gr.{f.dtype}"
        for v in f.inputs():
            sizes = ", ".join(a.symbol for a in v.more["stored"])
            align = f.shared["sK"].copy_bytes if v is f.k else 16  # depth and columns are multiples of 16
            w(f'{self.var[v.number]} = gr.input("{v.name}", [{sizes}], {kind}, align_bytes={align})')
        sizes = ", ".join(a.symbol for a in f.output.axes)
        w(f'o = gr.output("{f.output.name}", [{sizes}], {kind}, align_bytes={f.store_bytes})')
        grid = [f"gr.ceil_div({f.rows.symbol}, BM)"] + ([" * ".join(a.symbol for a in f.batch)] if f.batch else [])
        w(f"blocks, threads = gr.blocks({', '.join(grid)}), gr.threads(32 * WARPS)")
        w("bm, z = blocks.indices()" if f.batch else "(bm,) = blocks.indices()")
        rest = "z"
        for i, a in enumerate(reversed(f.batch)):
            w(f"b_{a.name} = {rest}" if i == len(f.batch) - 1 else f"b_{a.name} = {rest} % {a.symbol}")
            rest = f"({rest} // {a.symbol})"
        w("warps = threads.tile(32)")
        w("wm, _ = warps.indices()")
        w("warp = warps[wm]", "this thread's own warp")
        w.overlapped(self.d)
        w()
        along = f.k.more["stored"][-1] is f.depth
        w(f"tile_q = {self.member('q', f.q.more['stored'])}.tile([BM, None])[bm, 0]")
        cut = ".tile([BN, None])[:, 0]" if along else ".tile([None, BN])[0, :]"
        w(f"tiles_k = {self.member('k', f.k.more['stored'])}{cut}")
        w(f"tiles_v = {self.member('v', f.v.more['stored'])}.tile([BN, None])[:, 0]")
        for name in ("sQ", "sK", "sV"):
            self.alloc(name)
        w(f'queries = gr.fragment("queries", [WM, {d}], {kind}, mma.a, on=warp)')
        w('scores = gr.fragment("scores", [WM, BN], gr.fp32, mma.c, on=warp)')
        w(f'weights = gr.fragment("weights", [WM, BN], {kind}, mma.a, on=warp)', "the owners of scores: nothing moves")
        w(f'keys = gr.fragment("keys", [BN, 16], {kind}, mma.b, on=warp)')
        w(f'values = gr.fragment("values", [{e}, 16], {kind}, mma.b, on=warp)')
        w(f'sums = gr.fragment("sums", [WM, {e}], gr.fp32, mma.c, on=warp)')
        for x in f.statistics:
            name, size, tv = self.stats[x.value.number], *(("WM", "mma.a") if x.side == "left" else ("BN", "mma.b"))
            w(f'e{name} = gr.fragment("e{name}", [{size}, 16], gr.fp32, {tv}, on=warp)')
            w(f'p{name}, {name} = e{name}.reduced(1, "p{name}", lanes=True), e{name}.reduced(1, "{name}")')
            if x.side == "right":
                w(f'c{name} = scores.reduced(0, "c{name}")', f"{self.of(x).name}'s rows are columns of scores")
        if f.total is not None:
            w('lanes, total = scores.reduced(1, "lanes", lanes=True), scores.reduced(1, "total")')
        if f.top is not None:
            w('top, now, shrink = (scores.reduced(1, n) for n in ("top", "now", "shrink"))')
        w()
        with w.block("def copy(k):"):
            w('"""Starts the copies of step k; past the last step they are zeros."""')
            w(f'gr.move(sK[k % STAGES], tiles_k[k], on=threads, atom="{COPIES[f.shared["sK"].copy_bytes]}")')
            w('gr.move(sV[k % STAGES], tiles_v[k], on=threads, atom="cp.async.cg.16")')
            w('gr.commit("cp.async.cg.16")')
        w()
        w('gr.move(sQ, tile_q, on=threads, atom="cp.async.cg.16")', "waited for with the first step")
        w("gr.init(sums, 0)")
        if f.total is not None:
            w("gr.init(lanes, 0)")
        if f.top is not None:
            w("gr.init(top, -gr.inf)")
        with w.block("for k in range(AHEAD):"):
            w("copy(k)")
        self.once(d)
        with w.block(f'for k in gr.loop("k", gr.ceil_div({s}, BN)):'):
            self.step(d, e, s, along)
        self.store(t, e)

    def once(self, d: str) -> None:
        """What is computed of queries alone, before the loop."""
        f, w = self.f, self.w
        own = f.on("left")
        computed = f.left.op != "input"
        if not own and not computed:
            return
        w('gr.wait("cp.async.cg.16", pending=AHEAD - 1)')
        w("gr.barrier()", f"{f.q.name}'s rows have come")
        for x in f.factors():
            name = f"v{self.var[x.number]}"
            w(f'{name} = queries.reduced(0, "{name}", gr.{x.more["dtype"]})')
            e = x.more["dtype"].bits // 8
            w(f'gr.move({name}, {self.var[x.number]}.reshape(0, [1, {d}]), atom="ld.global.{WORDS[2 * e]}")')
        self.start(own)
        with w.block(f"for j in range({d} // 16):"):
            w("part = queries.tile([None, 16])[0, j]")
            w('gr.move(part, sQ.tile([WM, 16])[wm, j], atom="ldmatrix.x4")')
            self.accumulate(own, "part")
        self.meet(own)
        if computed:
            names = ", ".join(["queries", *(f"v{self.var[x.number]}" for x in f.factors())])
            w(f"queries[:] = query({names})", "computed once, rounded once, kept in registers")

    def start(self, statistics: list[Statistic]) -> None:
        for x in statistics:
            first = {"max": "-gr.inf", "min": "gr.inf"}.get(x.value.op, "0")
            self.w(f"gr.init(p{self.stats[x.value.number]}, {first})")

    def accumulate(self, statistics: list[Statistic], part: str) -> None:
        """Adds a slice of elements to statistics."""
        for x in statistics:
            name, op = self.stats[x.value.number], x.value.op
            self.w(f"e{name}[:] = {part if x.value.args[0].op == 'input' else f'element_{name}({part})'}")
            op = "add" if op in ("sum", "mean") else op
            self.w(f'gr.reduce("{op}", p{name}, e{name}, axis=1, accumulate=True)')

    def meet(self, statistics: list[Statistic]) -> None:
        """Lanes exchange their parts of statistics."""
        for x in statistics:
            name, op = self.stats[x.value.number], x.value.op
            self.w(f'gr.reduce("{"add" if op in ("sum", "mean") else op}", {name}, p{name}, axis=1)')
            if op == "mean":
                self.w(f"{name}[:] = {name} * (1 / {self.f.depth.symbol})")
            if x.side == "right":
                self.w(f"gr.move(c{name}, {name}.T)")

    def alloc(self, name: str) -> None:
        f, s = self.f, self.f.shared[name]
        stages = "stages=STAGES, " if s.stages else ""
        swizzle = f"swizzle=gr.{s.swizzle!r}, " if s.swizzle is not None else ""
        over = f", over=[{', '.join(f.over[name])}]" if f.over[name] else ""
        shape = f"[{s.shape[0]}, {s.shape[1]}]"
        self.w(f'{name} = gr.alloc("{name}", {shape}, gr.{f.dtype}, gr.SH, {stages}{swizzle}at={f.at[name]}{over})',
               self.d.made[f"{name}.swizzle"].why)  # fmt: skip

    def step(self, d: str, e: str, s: str, along: bool) -> None:
        f, w = self.f, self.w
        w('gr.wait("cp.async.cg.16", pending=AHEAD - 1)')
        w("gr.barrier()", "step k has come, and every warp has read what the next copy overwrites")
        w("copy(k + AHEAD)")
        w("gr.init(scores, 0)")
        self.start(f.on("right"))
        with w.block(f"for j in range({d} // 16):"):
            if f.left.op == "input":
                w('gr.move(queries.tile([None, 16])[0, j], sQ.tile([WM, 16])[wm, j], atom="ldmatrix.x4")')
            part = "sK[k % STAGES].tile([BN, 16])[0, j]" if along else "sK[k % STAGES].tile([16, BN])[j, 0].T"
            w(f'gr.move(keys, {part}, atom="ldmatrix.x4{"" if along else ".trans"}")')
            self.accumulate(f.on("right"), "keys")
            w("gr.matmul(scores, queries.tile([None, 16])[0, j], keys.T, atom=mma)")
        self.meet(f.on("right"))
        start = "-gr.inf" if f.top is not None else "0"
        whole = f.stream.size is not None and f.stream.size % f.tile.n == 0
        w("_, column = scores.coords()")
        inside = f"gr.where(k * BN + column < {s}, {self.scored()}, {start})"
        w(
            f"scores[:] = {inside}",
            "nothing lies outside at the plan's own size" if whole else "the last step may reach past the end",
        )
        if f.top is not None:
            w('gr.reduce("max", now, scores, axis=1)')
            w("now[:] = gr.max(top, now)")
            w("shrink[:] = gr.exp(top - now)", "what sums so far are multiplied by, since the maximum has grown")
            w("top[:] = now")
            w("sums[:] = sums * shrink")
            if f.total is not None:
                w("lanes[:] = lanes * shrink")
            w("scores[:] = gr.exp(scores - top)")
        if f.total is not None:
            w('gr.reduce("add", lanes, scores, axis=1, accumulate=True)')
        w("weights[:] = scores")
        with w.block("for j in range(BN // 16):"):
            w(f'gr.move(values, sV[k % STAGES].tile([16, {e}])[j, 0].T, atom="ldmatrix.x4.trans")')
            w("gr.matmul(sums, weights.tile([None, 16])[0, j], values.T, atom=mma)")

    def scored(self) -> str:
        """The score of what stands in registers."""
        names = [("c" if x.side == "right" else "") + self.stats[x.value.number] for x in self.f.statistics]
        return f"score({', '.join(['scores', *names])})"

    def store(self, t: object, e: str) -> None:
        f, w = self.f, self.w
        del t
        if f.total is not None:
            w('gr.reduce("add", total, lanes, axis=1)')
        w(f'out = gr.fragment("out", [WM, {e}], gr.{f.output.dtype}, mma.c, on=warp)')
        w(f"out[:] = result(sums{', total' if f.total is not None else ''})")
        w('gr.wait("cp.async.cg.16", pending=0)')
        w("gr.barrier()", "the stages are free")
        self.alloc("sResult")
        w(f'gr.move(sResult.tile([WM, {e}])[wm, 0], out, atom="st.shared.b32")')
        w("gr.barrier()")
        word = WORDS[f.store_bytes]
        to = f"{self.member('o', f.output.axes)}.tile([BM, None])[bm, 0]"
        w(f'gr.move({to}, sResult, on=threads, atom=("ld.shared.{word}", "st.global.{word}"))', "whole lines")


def write(f: StreamForm, d: Decisions, title: str, name: str) -> str:
    """The source of a kernel that a plan decided."""
    return StreamWriter(f, d, title, name).write()
