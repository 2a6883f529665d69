"""The Python text of a kernel that works row by row."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from graphene.plan.graph import ACTIVATIONS
from graphene.plan.text import IN_RANGE, Lines, body, reduced
from graphene.plan.write_products import WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Value
    from graphene.plan.rows import RowForm

__all__ = ["write"]

START = {"sum": "0", "mean": "0", "max": "-gr.inf", "min": "gr.inf"}


class RowWriter:
    """Writes one kernel."""

    def __init__(self, f: RowForm, d: Decisions, title: str, name: str) -> None:
        self.f, self.d, self.title, self.name, self.w = f, d, title, name, Lines()
        names = [v.name for v in f.inputs_]
        mark = "_" if any(re.fullmatch(r"[a-z]+\d+", n) for n in names) else ""
        self.stats = {v.number: f"s{i}{mark}" for i, v in enumerate(f.reductions)}
        self.kept = {v.number: f"e{i}{mark}" for i, v in enumerate(f.kept)}
        taken = {*self.stats.values(), *self.kept.values(), *ACTIVATIONS, "gr"}
        lower = [n.lower() for n in names]
        self.parameter = {}
        for v in f.inputs_:
            small = v.name.lower()
            plain = lower.count(small) == 1 and small not in taken and not keyword.iskeyword(small)
            self.parameter[v.number] = small if plain else v.name
        locals_ = "THREADS ROWS VECTOR RUNS blocks threads kernel row v b means"
        own = {*locals_.split(), f.rows.symbol, f.width.symbol}
        self.var = {n: f"{n}_in" if n in own or re.fullmatch(r"[a-z]\d+_?|[rgo][A-Z_].*", n) else n
                    for n in [*names, *(o.name for o in f.outputs)]}  # fmt: skip
        self.takes: dict[str, list[int]] = {}

    def function(self, name: str, v: Value, stop: Mapping[int, str], doc: str) -> None:
        """A function of elements and of statistics of their row."""
        found: dict[int, str] = {}

        def visit(x: Value) -> None:
            if x.number in found:
                return
            if x.number in stop:
                found[x.number] = stop[x.number]
            elif x.op == "input":
                found[x.number] = self.parameter[x.number]
            else:
                for a in x.args:
                    visit(a)

        visit(v)
        self.takes[name] = list(found)
        with self.w.block(f"def {name}({', '.join(found.values())}):"):
            self.w(f'"""{doc}"""')
        self.w.lines += body(v, found)
        self.w()
        self.w()

    def functions(self) -> None:
        known: dict[int, str] = {}
        for v in self.f.reductions:
            name, e = self.stats[v.number], v.args[0]
            if e.op != "input" and f"element_{name}" not in self.takes and e.number not in known:
                self.function(f"element_{name}", e, known, f"What is reduced ({v.op}), of an element.")
            known[v.number] = name
            if e.number in self.kept:
                known[e.number] = self.kept[e.number]
        for o in self.f.outputs:
            self.function(f"result_{o.name}", o.value, known, f"An element of {o.name}, in fp32.")

    def input(self, number: int) -> Value:
        return next(v for v in self.f.inputs_ if v.number == number)

    def arguments(self, function: str, arrays: bool) -> str:
        """A function's arguments, as arrays or in registers."""
        texts = []
        for n in self.takes[function]:
            if n in self.stats or n in self.kept:
                texts.append(self.stats.get(n) or self.kept[n])
                continue
            v = self.input(n)
            if not arrays:
                texts.append(f"r{v.name}")
            else:
                texts.append(f"{v.name}[:, None]" if v.more["stored"] == (self.f.rows,) else v.name)
        return ", ".join(texts)

    def means(self) -> None:
        f, w = self.f, self.w
        with w.block(f"def means({', '.join(v.name for v in f.inputs_)}):"):
            w('"""The kernel\'s promise, which kernel.check() holds it to: NumPy on whole arrays."""')
            if any(v.op in ("max", "min") for v in f.reductions):
                w("import numpy as np")
                w()
            for v in f.reductions:
                if line := self.element(v, True):
                    w(line)
                w(f"{self.stats[v.number]} = {reduced(self.reduced(v), v.op)}")
            results = []
            for o in f.outputs:
                text = f"result_{o.name}({self.arguments(f'result_{o.name}', True)})"
                results.append(f'"{o.name}": {text}{"[:, 0]" if o.axes == (f.rows,) else ""}')
            w(f"return {{{', '.join(results)}}}")
        w()
        w()

    def element(self, v: Value, arrays: bool) -> str:
        """The line that computes the elements of a reduction which are kept; empty where nothing is."""
        e, name = v.args[0], self.stats[v.number]
        if e.number not in self.kept or f"element_{name}" not in self.takes:
            return ""
        return f"{self.kept[e.number]} = element_{name}({self.arguments(f'element_{name}', arrays)})"

    def reduced(self, v: Value) -> str:
        """What a reduction takes, as an array."""
        e, name = v.args[0], self.stats[v.number]
        if e.op == "input":
            return f"{e.name}[:, None]" if e.more["stored"] == (self.f.rows,) else e.name
        if e.number in self.kept:
            return self.kept[e.number]
        return f"element_{name}({self.arguments(f'element_{name}', True)})"

    def write(self) -> str:
        """The whole source."""
        f, w, d = self.f, self.w, self.d.made
        w.beginning(self.title, *(o.value for o in f.outputs))
        w(f"THREADS, ROWS = {f.threads}, {f.block_rows}", f"{d['threads'].why.split(';')[0]}, {d['rows'].why}")
        w(f"VECTOR = {f.vector}", d["vector"].why)
        if "p.range" in d:
            w(IN_RANGE, d["p.range"].why)
        w()
        w()
        self.functions()
        self.means()
        sizes = ", ".join(f"{a.symbol}={a.size}" for a in (f.rows, f.width) if a.size is not None)
        with w.block(f"def {self.name}({sizes}):"):
            names = ", ".join([*(v.name for v in f.inputs_), *(o.name for o in f.outputs)])
            w(f'"""The kernel. Its arguments are {names}."""')
            if f.rows.size is None:
                w(f'{f.rows.symbol} = gr.sym("{f.rows.symbol}")')
            more = ", arguments=IN_RANGE" if "p.range" in d else ""
            with w.block(f'with gr.Kernel("{self.name}", means=means{more}) as kernel:'):
                self.kernel()
            w("return kernel")
        return w.text()

    def kernel(self) -> None:
        f, w = self.f, self.w
        for declare, name, axes, dtype in [("input", v.name, v.more["stored"], v.more["dtype"]) for v in f.inputs_] + [
            ("output", o.name, o.axes, o.dtype) for o in f.outputs
        ]:
            align = dtype.bits // 8 * (f.vector if f.width in axes else 1)
            sizes = ", ".join(a.symbol for a in axes)
            w(f'{self.var[name]} = gr.{declare}("{name}", [{sizes}], gr.{dtype}, align_bytes={align})')
        w(f"(b,) = gr.blocks(gr.ceil_div({f.rows.symbol}, ROWS)).indices()")
        w("threads = gr.threads(THREADS * ROWS)")
        w.overlapped(self.d)
        n = f.width.symbol
        w(f"RUNS = gr.ceil_div({n}, THREADS * VECTOR)", "vectors of a row that a thread has")
        w()
        with w.block("def row(name, dtype, rows=ROWS):"):
            w('"""Registers for the rows of a block: threads side by side along a row, vector by vector."""')
            w("thread = gr.Layout((THREADS, ROWS), (VECTOR * rows, 1 if rows > 1 else 0))")
            w("value = gr.Layout((VECTOR, RUNS), (rows, THREADS * VECTOR * rows))")
            w(f"return gr.fragment(name, [rows, {n}], dtype, gr.tv(thread, value), on=threads)")
        w()
        w('v = row("v", gr.fp32)')
        for x in f.inputs_:
            self.load(x)
        for v in f.reductions:
            self.reduction(v)
        for o in f.outputs:
            self.store(o)

    def load(self, x: Value) -> None:
        f, w = self.f, self.w
        e, stored, var = x.more["dtype"].bits // 8, x.more["stored"], self.var[x.name]
        kind = f"gr.{x.more['dtype']}"
        if stored == (f.rows,):
            w(f'r{x.name} = v.reduced(1, "r{x.name}", {kind})')
            column = f"{var}.reshape(0, gr.Layout(({f.rows.symbol}, 1), (1, 0)))"
            w(f'gr.move(r{x.name}, {column}.tile([ROWS, None])[b, 0], atom="ld.global.{WORDS[e]}")')
            return
        word = WORDS[f.vector * e]
        if stored == (f.width,):
            w(f'r{x.name} = row("r{x.name}", {kind}, rows=1)', "the same for every row")
            w(f'gr.move(r{x.name}, {var}.reshape(0, [1, {f.width.symbol}]), atom="{self.d.through()}.{word}")')
        else:
            w(f'r{x.name} = row("r{x.name}", {kind})')
            w(f'gr.move(r{x.name}, {var}.tile([ROWS, None])[b, 0], atom="{self.d.through()}.{word}")')

    def reduction(self, v: Value) -> None:
        f, w = self.f, self.w
        name, e = self.stats[v.number], v.args[0]
        op = "add" if v.op in ("sum", "mean") else v.op
        w(f'{name} = v.reduced(1, "{name}")')
        if e.op == "input":
            text = f"r{e.name}"
        elif f"element_{name}" in self.takes:
            text = f"element_{name}({self.arguments(f'element_{name}', False)})"
        else:
            text = self.kept[e.number]
        if e.number in self.kept and f"element_{name}" in self.takes:
            w(f'{self.kept[e.number]} = row("{self.kept[e.number]}", gr.fp32)', "kept, because it is needed again")
            w(f"{self.kept[e.number]}[:] = {text}")
            text = self.kept[e.number]
        if f.whole:
            w(f"v[:] = {text}")
        else:
            w(f"v[:] = gr.where(v.valid(), {text}, {START[v.op]})", "threads at the end hold elements past the row")
        w(f'gr.reduce("{op}", {name}, v, axis=1)')
        if v.op == "mean":
            w(f"{name}[:] = {name} * (1 / {f.width.symbol})")

    def store(self, o: object) -> None:
        f, w = self.f, self.w
        name, axes, dtype = o.name, o.axes, o.dtype  # type: ignore[attr-defined]
        value = f"result_{name}({self.arguments(f'result_{name}', False)})"
        e, to = dtype.bits // 8, self.var[name]
        if axes == (f.rows,):
            w(f'o{name} = v.reduced(1, "o{name}", gr.{dtype})')
            w(f"o{name}[:] = {value}")
            column = f"{to}.reshape(0, gr.Layout(({f.rows.symbol}, 1), (1, 0)))"
            w(f'gr.move({column}.tile([ROWS, None])[b, 0], o{name}, atom="st.global.{WORDS[e]}")')
            return
        w(f'o{name} = row("o{name}", gr.{dtype})')
        w(f"o{name}[:] = {value}")
        w(f'gr.move({to}.tile([ROWS, None])[b, 0], o{name}, atom="st.global.{WORDS[f.vector * e]}")')


def write(f: RowForm, d: Decisions, title: str, name: str) -> str:
    """The source of a kernel that a plan decided."""
    return RowWriter(f, d, title, name).write()
