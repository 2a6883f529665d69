"""What a kernel of products computes, as Python text: functions of elements, and its promise on whole arrays."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING

from graphene.plan.form import ProductForm
from graphene.plan.graph import ACTIVATIONS
from graphene.plan.products import Tiled
from graphene.plan.text import Lines, body, exact, reduced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis, Value

__all__ = ["Meaning"]


class Meaning:
    """The names of a kernel's values, the functions that it shares with its promise, and the promise."""

    def __init__(self, t: Tiled, d: Decisions, title: str, name: str) -> None:
        self.t, self.d, self.title, self.name = t, d, title, name
        self.form: ProductForm = t.form
        self.w = Lines()
        f = self.form
        self.inputs = self._inputs()
        names = [v.name for v in self.inputs]
        mark = "_" if any(re.fullmatch(r"[a-z]+\d+", n) for n in names) else ""
        self.var = {v.number: self._variable(v.name) for v in self.inputs}
        self.out = self._variable(f.output.name)
        self.dots = {d.value.number: f"d{i}{mark}" for i, d in enumerate([*f.dots, *f.later])}
        self.stats = self._statistics(mark)
        lower = [n.lower() for n in names]
        own = {*self.dots.values(), *self.stats.values(), *ACTIVATIONS, "gr"}
        self.parameter = {}
        for v in self.inputs:
            small = v.name.lower()
            plain = lower.count(small) == 1 and small not in own and not keyword.iskeyword(small)
            self.parameter[v.number] = small if plain else v.name
        self.mark = mark
        self.operands = self._computed()

    def _inputs(self) -> list[Value]:
        """What the kernel reads, in the order of the graph."""
        found = [v for v in self.form.output.value.walk() if v.op == "input"]
        return sorted(found, key=lambda v: v.number)

    def _statistics(self, mark: str) -> dict[int, str]:
        """Names of statistics by their number."""
        return {s.value.number: f"s{i}{mark}" for i, s in enumerate(self.form.statistics)}

    def _variable(self, name: str) -> str:
        """The kernel's variable for an argument: its name, unless the kernel has another use for that."""
        own = "gr np blocks threads warp warps kernel copy k j out mma BM BN BK STAGES AHEAD WARPS WM WN bm bn wm wn z"
        used = {*own.split(), "result", "means", "row", "column"}
        used |= {a.symbol for a in self.form_axes()} | {s for s in self.t.shared}
        generated = re.fullmatch(r"[a-z]{1,2}\d+_?|[bgkrsv][A-Z_].*", name)
        return f"{name}_in" if name in used or generated else name

    def form_axes(self) -> list[Axis]:
        """Axes whose sizes the kernel names."""
        found: dict[int, Axis] = {}
        for v in self.form.output.value.walk():
            for a in v.axes:
                found[a.number] = a
        return [found[n] for n in sorted(found)]

    def _computed(self) -> dict[int, str]:
        """Operands that are expressions, by their number: the names of their fragments."""
        found: dict[int, str] = {}
        for d in self.form.dots:
            for side, v in (("a", d.left), ("b", d.right)):
                if v.op != "input" and v.number not in found:
                    found[v.number] = f"{side}{len(found)}{self.mark}"
        return found

    # Functions of the kernel and of its meaning

    def parameters(self, v: Value, stop: Mapping[int, str]) -> list[tuple[int, str]]:
        """What an expression is a function of: values by number, with the names of the parameters."""
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
        return list(found.items())

    def function(self, name: str, v: Value, stop: Mapping[int, str], doc: str) -> list[int]:
        """A function of registers or arrays; returns the values that it takes."""
        taken = self.parameters(v, stop)
        w = self.w
        with w.block(f"def {name}({', '.join(n for _, n in taken)}):"):
            w(f'"""{doc}"""')
        w.lines += body(v, dict(taken))
        w()
        w()
        return [n for n, _ in taken]

    def functions(self) -> None:
        """The expressions of operands, statistics and the result, each one function."""
        f = self.form
        self.takes: dict[str, list[int]] = {}
        for d in f.dots:
            for v in (d.left, d.right):
                if v.number in self.operands:
                    name = f"operand_{self.operands[v.number]}"
                    if name not in self.takes:
                        self.takes[name] = self.function(name, v, {}, "What is multiplied, of elements of its inputs.")
        for s in f.statistics:
            if s.value.args[0].op != "input":
                name = f"element_{self.stats[s.value.number]}"
                self.takes[name] = self.function(
                    name, s.value.args[0], {}, f"What is reduced ({s.value.op}), of an element."
                )
        known = {**self.dots, **self.stats}
        for d in f.later:
            v = d.before
            if v.number not in known:
                name = f"rounded_{self.dots[d.value.number]}"
                self.takes[name] = self.function(name, v, known, "What is rounded and multiplied again.")
        self.takes["result"] = self.function("result", f.result, known, "An element of the result, in fp32.")

    # The meaning

    def array(self, v: Value, side: str) -> str:
        """An input as an array with the axes (batch, rows or columns, k)."""
        name, stored = v.name, v.more["stored"]
        if len(stored) - len([a for a in stored if a in self.form.batch]) == 1:
            return name
        return name if stored[-1] is self.form.k else f"{name}.swapaxes(-1, -2)"

    def means(self) -> None:
        """What the kernel computes, on arrays."""
        f, w = self.form, self.w
        with w.block(f"def means({', '.join(v.name for v in self.inputs)}):"):
            w('"""The kernel\'s promise, which kernel.check() holds it to: NumPy on whole arrays."""')
            if any(x.value.op in ("max", "min") for x in f.statistics):
                w("import numpy as np")
                w()
            made: set[str] = set()
            for d in f.dots:
                texts = []
                for side, v in (("left", d.left), ("right", d.right)):
                    if v.number in self.operands:
                        name = self.operands[v.number]
                        if name not in made:
                            args = ", ".join(self.array(self.value(n), side) for n in self.takes[f"operand_{name}"])
                            text = f"operand_{name}({args})"
                            w(f"{name} = {text}" if exact(v) else f'{name} = gr.rounded("{name}", {text})')
                            made.add(name)
                        texts.append(name)
                    else:
                        texts.append(self.array(v, side))
                right = texts[1]
                right = (
                    right.removesuffix(".swapaxes(-1, -2)")
                    if right.endswith(".swapaxes(-1, -2)")
                    else f"{right}.swapaxes(-1, -2)"
                )
                w(f"{self.dots[d.value.number]} = {texts[0]} @ {right}")
            for s in f.statistics:
                name, v = self.stats[s.value.number], s.value.args[0]
                if v.op == "input":
                    text = self.array(v, s.side)
                else:
                    args = ", ".join(self.array(self.value(n), s.side) for n in self.takes[f"element_{name}"])
                    text = f"element_{name}({args})"
                turned = "" if s.side == "left" else ".swapaxes(-1, -2)"
                w(f"{name} = {reduced(text, s.value.op)}{turned}")
            for d in f.later:
                number, v = self.dots[d.value.number], d.before
                text = self.dots.get(v.number) or f"rounded_{number}({self.known_arguments(f'rounded_{number}')})"
                second = d.right.name
                if d.right.more["stored"][-1] is d.value.more["axis"]:
                    second += ".swapaxes(-1, -2)"
                w(f'{number} = gr.rounded("r{number}", {text}) @ {second}')
            w(f'return {{"{self.out_name}": result({self.known_arguments("result")})}}')
        w()
        w()

    @property
    def out_name(self) -> str:
        """The name of the result."""
        return self.form.output.name

    def value(self, number: int) -> Value:
        """An input by its number."""
        return next(v for v in self.inputs if v.number == number)

    def known_arguments(self, function: str) -> str:
        """A function's arguments as arrays, from products, statistics and inputs beside them."""
        texts = []
        for n in self.takes[function]:
            if n in self.dots or n in self.stats:
                texts.append(self.dots.get(n) or self.stats[n])
            else:
                v = self.value(n)
                rows_only = v.more["stored"] == (self.form.rows,)
                texts.append(f"{v.name}[:, None]" if rows_only else v.name)
        return ", ".join(texts)
