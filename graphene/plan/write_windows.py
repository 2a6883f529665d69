"""The Python text of a convolution: a kernel of products whose copies gather the windows that its rows see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene.plan.product_tiles import vector_bytes
from graphene.plan.products import shared_name
from graphene.plan.write_products import COPIES, Writer

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis, Value
    from graphene.plan.windows import WindowedTiled

__all__ = ["write"]


class WindowWriter(Writer):
    """Writes one convolution."""

    def __init__(self, t: WindowedTiled, d: Decisions, title: str, name: str) -> None:
        self.of = t.of
        self.given = {v.name: v for v in t.inputs()}  # the graph's inputs, as they are stored
        super().__init__(t, d, title, name)

    def form_axes(self) -> list[Axis]:
        """The axes of the graph, and not those of the product that it stands for."""
        return self.of.axes()

    def _variable(self, name: str) -> str:
        own = ("t", "i", "row", "vector", "pixel", "seen", self.of.pixels.symbol, self.of.window.symbol)
        return f"{name}_in" if name in own or name.startswith("i_") else super()._variable(name)

    def rows(self) -> list[Axis]:
        """The axes of the result's pixels."""
        return [*self.of.images, *(w.more["to"] for w in self.of.windows)]

    # The promise

    def means(self) -> None:
        """A sum over the places of a window, each a product of matrices."""
        w, of = self.w, self.of
        x, weights = of.x.name, of.weights.name
        over = [v.more["over"] for v in of.windows]
        first = self.given[weights].more["stored"][0] is not over[0]
        places = ", ".join(f"i_{a.name}" for a in over)
        with w.block(f"def means({', '.join(v.name for v in self.inputs)}):"):
            w('"""The kernel\'s promise, which kernel.check() holds it to: NumPy on whole arrays."""')
            w("import numpy as np")
            w()
            around = ["(0, 0)"] * len(of.images) + [f"({v.more['padding']}, {v.more['padding']})" for v in of.windows]
            w(f"padded = np.pad({x}, ({', '.join([*around, '(0, 0)'])}))")
            cut = [":"] * len(of.images)
            for i, v in enumerate(of.windows):
                step, at = v.more["stride"], len(of.images) + i
                size = f"{weights}.shape[{i + first}]"
                name = f"i_{v.more['over'].name}"
                end = f"end_{v.more['over'].name}"
                w(f"{end} = padded.shape[{at}] - {size} + 1", "behind the place where the last window begins")
                cut.append(f"{name} : {name} + {end}" + (f" : {step}" if step > 1 else ""))
            slice_ = f"{weights}[:, {places}].swapaxes(-1, -2)" if first else f"{weights}[{places}]"
            w(f"{self.dots[self.form.dots[0].value.number]} = sum(")
            w(f"    padded[{', '.join(cut)}] @ {slice_}")
            for i, v in enumerate(of.windows):
                w(f"    for i_{v.more['over'].name} in range({weights}.shape[{i + first}])")
            w(")")
            w(f'return {{"{self.out_name}": result({self.known_arguments("result")})}}')
        w()
        w()

    # The kernel

    def arguments(self) -> None:
        """Tensors as they are stored, and as the product's matrices."""
        w, of = self.w, self.of
        tensors = [("input", v.name, self.var[v.number], self.given[v.name].more["stored"], v.more["dtype"])
                   for v in self.inputs]  # fmt: skip
        tensors.append(("output", self.out_name, self.out, of.output.axes, of.output.dtype))
        for declare, name, variable, axes, dtype in tensors:
            align = vector_bytes(axes[-1], dtype.bits // 8)
            sizes = ", ".join(a.symbol for a in axes)
            w(f'{variable} = gr.{declare}("{name}", [{sizes}], gr.{dtype}, align_bytes={align})')
        for flat, some in ((of.pixels, self.rows()), (of.window, self.summed())):
            w(f"{flat.symbol} = {' * '.join(a.symbol for a in some)}")
        for v in self.inputs:
            if v.name != of.x.name and len(self.given[v.name].axes) > 2:
                self.var[v.number] = self.matrix(self.var[v.number], self.given[v.name].more["stored"], v)
        self.out = self.matrix(self.out, of.output.axes, None)

    def summed(self) -> list[Axis]:
        """The axes that the product sums over."""
        return [*(v.more["over"] for v in self.of.windows), self.of.channels]

    def matrix(self, variable: str, stored: tuple[Axis, ...], v: Value | None) -> str:
        """A view with two modes of a tensor whose elements lie one after the other."""
        first, last = self.form.output.axes if v is None else v.more["stored"]
        back = ", ".join(str(i) for i in reversed(range(len(stored))))
        name = f"{variable}_rows"
        self.w(f"{name} = {variable}.permute({back}).reshape(0, gr.Layout(({last.symbol}, {first.symbol}))).T",
               f"a matrix over {first.name} and {last.name}")  # fmt: skip
        return name

    def tiles(self) -> None:
        """Views of the weights' tiles, and the thread's number, which says what it gathers."""
        f, w = self.form, self.w
        (s,) = f.inputs("right")
        x = self.var[s.value.number]
        w(f"k{s.name}r = {x}.tile([BN, None])[bn, 0].tile([None, BK])[0, :]" if s.along_k(f.k)
          else f"k{s.name}r = {x}.tile([None, BN])[0, bn].tile([BK, None])[:, 0]")  # fmt: skip
        w("(t,) = threads.indices()")

    def copies(self) -> None:
        """The copies of a step: rows of pixels, gathered, and the weights."""
        f, w, of = self.form, self.w, self.of
        (left,), (right,) = f.inputs("left"), f.inputs("right")
        channels, x = of.channels, self.var[left.value.number]
        steps = f"({channels.symbol} // BK)"
        with w.block("def copy(k):"):
            w('"""Starts the copies of step k: channels of one place of all windows. What no pixel sees is zero."""')
            inner, lines = steps, []
            for v in reversed(of.windows):
                over = v.more["over"]
                lines.append(f"i_{over.name} = k // {inner}" + (f" % {over.symbol}" if v is not of.windows[0] else ""))
                inner = f"({over.symbol} * {inner[1:-1]})"
            for line in reversed(lines):
                w(line)
            threads = "32 * WARPS[0] * WARPS[1]"
            with w.block(f"for i in range(BM * BK // 8 // ({threads})):"):
                w(f"row, vector = (i * {threads} + t) // (BK // 8), t % (BK // 8)", "16 bytes of a row each")
                w("pixel = bm * BM + row")
                rows = self.rows()
                for i, a in enumerate(rows):
                    rest = " * ".join(b.symbol for b in rows[i + 1 :])
                    divided = f"pixel // ({rest})" if len(rows) - i > 2 else f"pixel // {rest}" if rest else "pixel"
                    w(f"i_{a.name} = {divided}" + (f" % {a.symbol}" if i else ""))
                left_modes = len(of.images) + len(of.windows)
                w(f"seen = {self.one(x, f'i_{of.images[0].name}', left_modes)}", "zeros past the last image")
                for a in of.images[1:]:
                    left_modes -= 1
                    w(f"seen = {self.one('seen', f'i_{a.name}', left_modes)}")
                for v in of.windows:
                    left_modes -= 1
                    stride, padding = v.more["stride"], v.more["padding"]
                    at = f"i_{v.more['to'].name}" + (f" * {stride}" if stride > 1 else "")
                    at += f" + i_{v.more['over'].name}" + (f" - {padding}" if padding else "")
                    w(f"seen = {self.one('seen', at, left_modes)}")
                shared = self.t.shared[shared_name(left)]
                w(f"part = seen.tile([8])[k % {steps} * (BK // 8) + vector].reshape(0, [1, 8])")
                w(f'gr.move({shared.name}[k % STAGES].tile([1, 8])[row, vector], part, atom="{COPIES[16]}")')
            shared = self.t.shared[shared_name(right)]
            w(f"gr.move({shared.name}[k % STAGES], k{right.name}r[k], on=threads, "
              f'atom="{COPIES[shared.copy_bytes]}")')  # fmt: skip
            w('gr.commit("cp.async.cg.16")')
        w()

    @staticmethod
    def one(variable: str, at: str, modes: int) -> str:
        """A view of one index of the first mode, which may lie outside; `modes` others follow."""
        return f"{variable}.window({at}, 1)[{', '.join(['0'] + [':'] * modes)}]"


def write(t: WindowedTiled, d: Decisions, title: str, name: str) -> str:
    """The source of a convolution that a plan decided."""
    return WindowWriter(t, d, title, name).write()
