"""Random kernels survive both forms: gr.parse(str(k)) == k, Kernel.from_json(k.to_json()) == k."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr

DTYPES = [gr.fp16, gr.bf16, gr.fp32, gr.i32, gr.u8]
OPS = ["add", "sub", "mul", "div", "max", "min"]
NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0, 1e-5, 2.0]))


class Program:
    """Draws statements; what the language refuses is not recorded and simply left out."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.symbols = [gr.sym("M", multiple_of=8, max=65536), gr.sym("N", min=1), gr.sym("K")]
        self.ints: list[Any] = [0, 1, 2, *self.symbols]
        self.tensors: list[gr.Tensor] = []
        self.shared: list[gr.Tensor] = []
        self.groups: list[gr.ThreadTensor] = []
        self.scalars: list[gr.Scalar] = []
        self.count = 0

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def pick(self, items: list[Any]) -> Any:
        return items[self.draw(st.integers(0, len(items) - 1))]

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def int_expr(self, depth: int = 0) -> Any:
        if depth > 2 or self.draw(st.booleans()):
            return self.pick(self.ints) if self.draw(st.booleans()) else self.draw(st.integers(-9, 200))
        a, b = self.int_expr(depth + 1), self.int_expr(depth + 1)
        op = self.draw(st.integers(0, 6))
        c = self.draw(st.sampled_from([1, 2, 3, 8, 32, 128]))
        return [a + b, a - b, a * b, a // c, a % c, gr.min(a, b), gr.max(a, c)][op]

    def condition(self) -> Any:
        a, b = self.int_expr(), self.int_expr()
        return [a < b, a == b, a <= b, a != b][self.draw(st.integers(0, 3))]

    def size(self, static: bool) -> Any:
        if not static and self.draw(st.integers(0, 3)) == 0:
            return self.pick(self.symbols)
        return self.draw(st.sampled_from([1, 2, 4, 8, 12, 16, 64, 100]))

    def layout(self, static: bool) -> Any:
        kind = self.draw(st.integers(0, 4))
        sizes = [self.size(static) for _ in range(self.draw(st.integers(1, 3)))]
        if kind == 0:
            return gr.row_major(*sizes)
        if kind == 1:
            return gr.col_major(*sizes)
        if kind == 2:
            return gr.Layout((4, (2, 4)), (2, (1, 8)))
        if kind == 3:
            return gr.Layout(((2, 2), 8), ((1, 16), 2))
        return sizes

    def tiler(self, rank: int) -> Any:
        entries = [
            None,
            *(self.draw(st.sampled_from([1, 2, 4, 8, 128])) for _ in range(3)),
            gr.Layout(2, 2),
            gr.Layout((2, 2), (1, 4)),
        ]
        return [self.pick(entries) for _ in range(rank)]

    def index(self, rank: int) -> Any:
        def one() -> Any:
            kind = self.draw(st.integers(0, 5))
            if kind == 0:
                return slice(None)
            if kind == 1:
                return slice(0, self.draw(st.integers(1, 4)))
            return self.int_expr()

        return tuple(one() for _ in range(rank))

    def declare(self) -> None:
        for role in (gr.input, gr.inout, gr.output):
            align = self.draw(st.sampled_from([None, 4, 16]))
            self.tensors.append(role(self.name("A"), self.layout(False), self.pick(DTYPES), align))
        self.ints.append(gr.param("p", self.pick([gr.i32, gr.u8, gr.i64])))
        grid = [4, 8, gr.ceil_div(self.symbols[1], 128)]
        blocks = gr.blocks(*(self.pick(grid) for _ in range(self.draw(st.integers(1, 3)))))
        threads = gr.threads(*self.pick([(256,), (16, 16), (32, 4)]))
        self.groups += [blocks, threads]

    def block(self, depth: int) -> None:
        marks = len(self.ints), len(self.tensors), len(self.shared), len(self.groups), len(self.scalars)
        for _ in range(self.draw(st.integers(1, 5))):
            try:
                self.statement(depth)
            except (gr.GrapheneError, TypeError):
                continue
        for items, mark in zip((self.ints, self.tensors, self.shared, self.groups, self.scalars), marks, strict=True):
            del items[mark:]

    def statement(self, depth: int) -> None:
        steps: list[Any] = [*[self.view] * 3, self.alloc, self.threads, *[self.leaf] * 2, self.scalar, self.sync]
        if depth < 3:
            steps += [self.loop, self.branch, self.only, self.spec]
        step = self.pick(steps)
        if step in (self.loop, self.branch, self.only, self.spec):
            step(depth)
        else:
            step()

    def view(self) -> None:
        t = self.pick(self.tensors)
        rank = t.levels[0].rank if t.levels else 1
        kind = self.draw(st.integers(0, 7))
        if kind <= 2:
            t = t.tile(self.tiler(rank))
        elif kind <= 4:
            t = t[self.index(rank)]
        elif kind == 5:
            t = t.T if self.draw(st.booleans()) else t.permute(*self.draw(st.permutations(range(rank))))
        elif kind == 6:
            t = t.reshape(
                0, self.pick([gr.row_major(2, 2), gr.col_major(4, 2), gr.Layout(8), [8], [16, 4], gr.Layout(((2, 2),))])
            )
        else:
            t = t.window(self.int_expr(), self.int_expr())
        self.tensors.append(t)

    def alloc(self) -> None:
        stages = self.pick([None, 2, 3])
        if self.draw(st.booleans()):
            swizzle = self.pick([None, gr.Swizzle(3, 3, 3), gr.Swizzle(2, 3, 3)])
            over = self.pick([None, [self.pick(self.shared)]]) if self.shared else None
            align = self.pick([None, 128])
            t = gr.alloc(self.name("s"), self.layout(True), self.pick(DTYPES), gr.SH, stages, swizzle, over, align)
            self.shared.append(t)
        elif self.draw(st.booleans()):
            layout = self.pick([[], [4], [2, 4], self.layout(True)])
            t = gr.alloc(self.name("r"), layout, self.pick(DTYPES), gr.RF, stages)
        else:
            group, n = self.groups[1], self.groups[1].size
            if self.draw(st.booleans()) and group.levels[0].rank == 1:
                warps = group.tile(32)
                group, n = warps[warps.indices()[0]], 32
                self.groups.append(group)
            tv = gr.tv(gr.Layout((4, n // 4), (n // 4, 1)), gr.Layout((2, 2), (n, 2 * n)))
            shape = self.pick([[4 * n], [n, 4]])
            t = gr.fragment(self.name("f"), shape, self.pick(DTYPES), tv, group, stages)
        self.tensors.append(t)

    def threads(self) -> None:
        g = self.pick(self.groups)
        kind = self.draw(st.integers(0, 4))
        if kind == 0:
            g = g.tile(self.pick([32, [16, 2], gr.Layout((4, 2), (1, 16))]))
        elif kind == 1:
            g = g.reshape(0, self.pick([gr.row_major(2, 2), gr.col_major(4, 2)]))
        elif kind == 2:
            g = g[self.pick([0, 1, slice(0, 2)])]
        elif kind == 3:
            g = g.scalar()
        else:
            for level in g.indices():
                self.ints += list(level) if isinstance(level, tuple) else [level]
            return
        self.groups.append(g)

    def leaf(self) -> None:
        out, a, b = (self.pick(self.tensors) for _ in range(3))
        threads = [g for g in self.groups if g.unit == "thread"]
        on = self.pick([None, None, self.pick(threads)])
        kind = self.draw(st.integers(0, 6))
        if kind == 0:
            gr.move(out, a, on=on, fill=self.draw(NUMBERS))
        elif kind == 1:
            gr.matmul(out, a, b, on=on, accumulate=self.draw(st.booleans()))
        elif kind == 2:
            gr.binary(self.pick(OPS), out, a, self.pick([b, self.draw(NUMBERS), self.int_expr()]), on=on)
        elif kind == 3:
            gr.unary(self.pick(["cast", "neg", "exp2"]), out, a, on=on)
        elif kind == 4:
            gr.init(out, self.draw(NUMBERS), on=on)
        elif kind == 5:
            gr.reduce("max", out, a, axis=self.draw(st.integers(0, 1)), accumulate=self.draw(st.booleans()), on=on)
        else:
            gr.shfl(out, a, "bfly", self.int_expr(), on=on)

    def scalar(self) -> None:
        if self.scalars and self.draw(st.booleans()):
            self.pick(self.scalars).set(self.int_expr())
            return
        low, high, multiple = self.pick([None, -4]), self.pick([None, 1000]), self.pick([1, 4])
        s = gr.scalar(self.name("x"), self.int_expr(), low, high, multiple)
        self.scalars.append(s)
        self.ints.append(s.value)

    def sync(self) -> None:
        if self.draw(st.booleans()):
            gr.exit_if(self.condition())
        else:
            gr.barrier(self.pick([None, self.pick([g for g in self.groups if g.unit == "thread"])]))

    def loop(self, depth: int) -> None:
        start, step = self.pick([0, 0, self.int_expr()]), self.pick([1, 1, 2, self.symbols[1]])
        with gr.loop(self.pick(["k", self.name("i")]), self.int_expr(), start, step, self.pick([0, 1, 4])) as k:
            self.ints.append(k)
            self.block(depth + 1)
            self.ints.pop()

    def branch(self, depth: int) -> None:
        with gr.if_(self.condition()):
            self.block(depth + 1)
        if self.draw(st.booleans()):
            with gr.else_():
                self.block(depth + 1)

    def only(self, depth: int) -> None:
        group = self.pick([g for g in self.groups if g.unit == "thread"])
        with gr.only(group.elect() if self.draw(st.booleans()) else group):
            self.block(depth + 1)

    def spec(self, depth: int) -> None:
        means = self.pick(["", 'x "quoted"\n\\ text', "softmax é"])
        with gr.spec(self.pick(self.tensors), [self.pick(self.tensors), self.int_expr()], means=means):
            self.block(depth + 1)


def build(data: st.DataObject) -> gr.Kernel:
    with gr.Kernel("program") as kernel:
        p = Program(data)
        p.declare()
        p.block(0)
    return kernel


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_kernels_survive_text_and_json(data: st.DataObject) -> None:
    kernel = build(data)
    text = str(kernel)
    again = gr.parse(text)
    assert again == kernel, text
    assert str(again) == text
    document = kernel.to_json(locations=True)
    read = gr.Kernel.from_json(document)
    assert read == kernel, text
    assert str(read) == text
    assert read.to_json(locations=True) == document
