"""The Python text of a convolution: a kernel of products whose copies gather the windows that its rows see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphene.plan.product_tiles import vector_bytes
from graphene.plan.products import shared_name
from graphene.plan.warpgroups import GROUP_ROWS, PIECE
from graphene.plan.windows import WindowedWarpgroups
from graphene.plan.write_products import COPIES, WORDS, Writer
from graphene.plan.write_warpgroups import WarpgroupWriter

if TYPE_CHECKING:
    from graphene.plan.decisions import Decisions
    from graphene.plan.graph import Axis, Value
    from graphene.plan.windows import WindowedTiled

__all__ = ["write"]


class WindowWriter(Writer):
    """Writes one convolution."""

    def __init__(self, t: Any, d: Decisions, title: str, name: str) -> None:
        self.of = t.of
        self.given = {v.name: v for v in t.inputs()}  # the graph's inputs, as they are stored
        super().__init__(t, d, title, name)

    def form_axes(self) -> list[Axis]:
        """The axes of the graph, and not those of the product that it stands for."""
        found: list[Axis] = self.of.axes()
        return found

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
        f, w = self.form, self.w
        (right,) = f.inputs("right")
        with w.block("def copy(k):"):
            w('"""Starts the copies of step k: channels of one place of all windows. What no pixel sees is zero."""')
            self.gather("32 * WARPS[0] * WARPS[1]", "k % STAGES")
            shared = self.t.shared[shared_name(right)]
            w(f"gr.move({shared.name}[k % STAGES], k{right.name}r[k], on=threads, "
              f'atom="{COPIES[shared.copy_bytes]}")')  # fmt: skip
            w('gr.commit("cp.async.cg.16")')
        w()

    def gather(self, threads: str, stage: str) -> None:
        """Starts the copies of a step's windows, by the threads of which `t` is one, to a stage."""
        w, of = self.w, self.of
        (left,) = self.form.inputs("left")
        channels, x = of.channels, self.var[left.value.number]
        steps = f"({channels.symbol} // BK)"
        inner, lines = steps, []
        for v in reversed(of.windows):
            over = v.more["over"]
            lines.append(f"i_{over.name} = k // {inner}" + (f" % {over.symbol}" if v is not of.windows[0] else ""))
            inner = f"({over.symbol} * {inner[1:-1]})"
        for line in reversed(lines):
            w(line)
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
            w(f'gr.move({shared.name}[{stage}].tile([1, 8])[row, vector], part, atom="{COPIES[16]}")')

    @staticmethod
    def one(variable: str, at: str, modes: int) -> str:
        """A view of one index of the first mode, which may lie outside; `modes` others follow."""
        return f"{variable}.window({at}, 1)[{', '.join(['0'] + [':'] * modes)}]"


class WindowWarpgroupWriter(WindowWriter, WarpgroupWriter):
    """Writes one convolution for Hopper: all threads of a warpgroup gather windows, and one copies weights by TMA."""

    t: Any

    def _variable(self, name: str) -> str:
        return f"{name}_in" if name in ("steps", "told", "LAG") else super()._variable(name)

    def constants(self) -> None:
        super().constants()
        self.w("LAG = STAGES - 2", "steps under way: a stage is free when the products of the next step began")

    def full_arrivals(self) -> str:
        return "129"

    def produce(self) -> None:
        """The warpgroup that starts copies."""
        f, w = self.form, self.w
        (right,) = f.inputs("right")
        with w.block("with gr.only(producer):"):
            if self.t.consumers > 1:
                w(f"gr.setmaxnreg({self.t.registers[0]})")
            w("(t,) = producer.indices()")
            w('put, told = gr.ring("put", STAGES, phase=1), gr.ring("told", STAGES)', "1: the ring starts empty")
            w(f"steps = gr.ceil_div({f.k.symbol}, BK)")
            with w.block('for k in gr.loop("k", steps):'):
                w("empty[put.index].wait(put.phase)")
                with w.block("with gr.only(producer.elect()):"):
                    name = shared_name(right)
                    w(f"full[put.index].arrive(expect=[{name}[put.index]])")
                    box = f"{self.var[right.value.number]}.tile([BN, BK])[bn, k]"
                    w(f"gr.move({name}[put.index], {box}, atom=load, done=full[put.index])")
                self.gather("128", "put.index")
                w(f'gr.commit("{COPIES[16]}")')
                w("put.advance()")
                w(f'gr.wait("{COPIES[16]}", pending=LAG)')
                with w.block("with gr.if_(k >= LAG):"):
                    self.tell()
            w(f'gr.wait("{COPIES[16]}", pending=0)')
            with w.block('for _ in gr.loop("last", gr.min(steps, LAG)):'):
                self.tell()
        w()

    def store_piece(self) -> None:
        """Stores a piece of the result by whole lines: rows of pixels are no box of TMA."""
        w, out = self.w, self.t.form.output
        w("gr.barrier(on=mine)", "all have read the piece before")
        w("gr.move(piece, out, atom=stsm)")
        w("gr.barrier(on=mine)")
        words = WORDS[vector_bytes(out.axes[-1], 2)]
        to = f"{self.out}.tile([{GROUP_ROWS}, {PIECE}])[row, column]"
        w(f'gr.move({to}, piece, on=mine, atom=("ld.shared.{words}", "st.global.{words}"))')

    def stored(self) -> None:
        """Nothing is waited for."""

    def atoms(self) -> None:
        w, kind = self.w, self.t.mma.rsplit(".", 1)[1]
        w('load, stsm = gr.atom("tma.load"), gr.atom("stmatrix.x4")')
        w(f'wgmma, narrow = gr.atom("{self.t.mma}"), gr.atom("wgmma.m64n{PIECE}k16.f32.{kind}")')

    def tell(self) -> None:
        """Hands a stage over whose copies have come."""
        w = self.w
        w('gr.fence("async.shared")', "what threads copied becomes visible to the products")
        w("full[told.index].arrive()")
        w("told.advance()")


def write(t: WindowedTiled | WindowedWarpgroups, d: Decisions, title: str, name: str) -> str:
    """The source of a convolution that a plan decided."""
    if isinstance(t, WindowedWarpgroups):
        return WindowWarpgroupWriter(t, d, title, name).write()
    return WindowWriter(t, d, title, name).write()
