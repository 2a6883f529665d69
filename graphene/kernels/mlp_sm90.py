"""A multi-layer perceptron in one kernel for Hopper: `wgmma` takes a layer's result from the registers that hold it.

A producer brings the tiles of weights through a ring of stages. Each consumer, a warpgroup, owns 64 or 128 rows and all
columns of them. Its accumulators, activated and rounded, are the left operand of the next layer. Consumers take turns:
while one multiplies, the other activates and rounds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import choice, size, small_weights
from graphene.kernels.epilogues import activation
from graphene.kernels.gemm.frame import MOST_IN_BOXES
from graphene.kernels.gemm.operand import access, matrix
from graphene.kernels.mlp import CP, Activation, atoms_of, up, vector_bytes
from graphene.kernels.reference_activations import activated
from graphene.kernels.tma import wgmma
from graphene.kernels.traced import as_data

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MlpSm90Config", "mlp_sm90"]

CHUNK = 64  # columns of a tile of weights: 128 bytes, a line of the swizzle's pattern
HELD = 64 * 256  # elements of a layer's result that a consumer's registers hold
REGISTERS = {2: (40, 232), 3: (32, 160)}  # of a thread of the producer and of a consumer, by the number of consumers
WIDE_REGISTERS = (24, 240)  # of layers of more than 128 columns, where two consumers hold most, and layers are few
DEEPEST = 26  # layers, whose weights, X and Y have a tensor map each
UNROLLED = 4  # tiles of the input's columns up to which they are not a loop


@dataclass(frozen=True)
class MlpSm90Config:
    """Y = X after X <- act_l(X @ W[l].T + bias[l]) for every layer l, as MlpConfig says, for Hopper.

    ``widths``: the input's width and that of each layer's result, multiples of 8 except for the last; all but the first
    are at most 256. ``rows``: rows of a consumer, 64 or 128; ``consumers``: how many a block has; ``stages``: tiles of
    64 columns of weights; ``inputs``: tiles of 64 columns of X; ``turns``: whether consumers take turns. ``align``:
    bytes that divide the addresses and line starts of X, which is 16, and of Y.
    """

    widths: tuple[int, ...]
    activations: tuple[Activation, ...]
    biases: tuple[bool, ...]
    dtype: str = "fp16"
    rows: int = 128
    consumers: int = 2
    stages: int = 8
    inputs: int = 2
    turns: bool = True
    align: tuple[int, int] = (16, 16)

    def __post_init__(self) -> None:
        object.__setattr__(self, "activations", tuple(map(as_data, self.activations)))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.widths) - 1

    def operands(self, weights: list[Any], biases: list[Any]) -> list[Any]:
        """The kernel's arguments between X and Y, of what belongs to each layer; a layer's bias may be None."""
        return [*weights, *(biases[r.first : r.first + r.layers] for r in runs_of(self) if r.bias)]

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.rows * self.consumers

    @property
    def boxes(self) -> bool:
        """Whether the result is stored by boxes, else by threads."""
        return self.align[1] == 16 and self.widths[-1] % CHUNK == 0

    @property
    def buffers(self) -> int:
        """How many pieces of the result, 64 rows and columns of each consumer, lie in shared memory at once."""
        return self.boxes * (1 if max(self.widths[1:]) > 128 else 2)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, barriers included."""
        weights = 2 * CHUNK * max(map(up, self.widths[1:])) * self.stages
        ends = 2 * CHUNK * (self.block_rows * self.inputs + 64 * self.consumers * self.buffers)
        biases = 2 * self.depth * max(map(up, self.widths[1:])) * any(self.biases)
        return weights + ends + biases + 1024


@dataclass
class LayerRunSm90:
    """Consecutive layers of one form: `layers` of them, the first of which is `first`."""

    first: int
    layers: int
    k: int
    n: int
    bias: bool
    act: Activation

    @property
    def chunks(self) -> int:
        """Tiles of a layer's weights."""
        return -(-self.k // CHUNK)

    @property
    def lines(self) -> int:
        """Rows of such a tile."""
        return up(self.n)


def runs_of(c: MlpSm90Config) -> list[LayerRunSm90]:
    """The layers in order. The first one, which reads the input, and the last, which stores, are by themselves."""

    def form(i: int) -> tuple[Any, ...]:
        end = i in (0, c.depth - 1)
        return (*c.widths[i : i + 2], c.biases[i], c.activations[i], i if end else -1)

    runs = []
    for (k, n, bias, act, _), group in groupby(range(c.depth), form):
        layers = list(group)
        runs.append(LayerRunSm90(layers[0], len(layers), k, n, bias, act))
    return runs


def check_config(c: MlpSm90Config) -> None:
    """Raises VerifyError KERNEL_ARGUMENT."""
    name = "mlp_sm90"
    choice(name, "dtype", c.dtype, ("fp16", "bf16"))
    choice(name, "rows", c.rows, (64, 128))
    choice(name, "align[0]", c.align[0], (16,))
    size(name, "len(widths)", len(c.widths), least=2, most=DEEPEST + 1)
    size(name, "len(activations)", len(c.activations), least=c.depth, most=c.depth)
    size(name, "len(biases)", len(c.biases), least=c.depth, most=c.depth)
    for i, n in enumerate(c.widths):
        most = HELD // c.rows if i else None  # of its sums, a consumer holds as many in registers
        size(name, f"widths[{i}]", n, multiple_of=8 if i < c.depth else 1, most=most)
    size(name, "consumers", c.consumers, most=3)
    size(name, "rows * consumers", c.block_rows, most=256)  # of a box
    size(name, "stages", c.stages, least=2)
    size(name, "inputs", c.inputs, least=2 if c.widths[0] > CHUNK else 1)  # one is released when the next is there
    choice(name, "turns, with one consumer,", c.turns, (True, False) if c.consumers > 1 else (False,))
    if c.turns:  # a consumer keeps a layer's tiles until the next one has had its turn
        chunks = max(-(-n // CHUNK) for n in c.widths[1:])
        size(name, "stages, if consumers take turns,", c.stages, least=chunks)


def meaning(c: MlpSm90Config, X: Any, **given: Any) -> Any:
    """The meaning of a configuration, on arrays: layer by layer, where each result except the last is rounded."""
    for r in runs_of(c):
        for i in range(r.layers):
            y = X @ given[f"W{r.first + i}"].T
            y = activated(r.act, y + given[f"b{r.first}"][i] if r.bias else y)
            X = gr.rounded(f"x{r.lines}", y) if r.first + i + 1 < c.depth else y
    return X


class _Shared:
    """What a block has in shared memory, and the barriers that say what is there."""

    def __init__(self, c: MlpSm90Config, runs: list[LayerRunSm90]) -> None:
        self.c, self.dtype = c, getattr(gr, c.dtype)
        self.widest = max(r.lines for r in runs)
        lines = gr.swizzle(CHUNK, self.dtype)

        def tiles(name: str, rows: int, stages: int) -> Any:
            return gr.alloc(name, [rows, CHUNK], self.dtype, gr.SH, stages=stages, swizzle=lines)

        self.w, self.x = tiles("sW", self.widest, c.stages), tiles("sX", c.block_rows, c.inputs)
        self.y: Any = tiles("sY", 64 * c.consumers, c.buffers) if c.boxes else None
        self.full, self.full_x = gr.mbarrier("full", c.stages, arrivals=1), gr.mbarrier("full_x", c.inputs, arrivals=1)
        self.empty = gr.mbarrier("empty", c.stages, arrivals=c.consumers)
        self.empty_x = gr.mbarrier("empty_x", c.inputs, arrivals=c.consumers)
        self.turn = gr.named_barrier("turn", stages=c.consumers, threads=256) if c.turns else None
        self.biases: Any = gr.alloc("sB", [c.depth, self.widest], self.dtype, gr.SH) if any(c.biases) else None
        self.biased: Any = gr.mbarrier("biased", 1, arrivals=32) if any(c.biases) else None

    def number(self, threads: Any) -> None:
        """Writes the numbers of the consumers, which they read where they store: addresses of their rows of Y would
        take registers from the sums of all layers.
        """
        (t,) = threads.indices()
        self.numbers: Any = gr.alloc("numbers", [self.c.consumers], gr.i32, gr.SH)
        number = gr.alloc("number", [], gr.i32, gr.RF)
        with gr.if_(t < self.c.consumers):
            number[...] = t
            gr.move(self.numbers[t], number)

    def bring_biases(self, runs: list[LayerRunSm90], biases: dict[int, Any], warp: Any) -> None:
        """A warp copies all biases, which stay. They are there when its threads have arrived."""
        for r in (r for r in runs if r.bias):
            copy = atoms_of(vector_bytes(r.n))
            for i in gr.loop(f"b{r.first}", r.layers) if r.layers > 1 else range(1):
                bias = biases[r.first][i].tile([r.lines])[0].reshape(0, [1, r.lines])
                gr.move(self.biases.tile([1, r.lines])[r.first + i, 0], bias, on=warp, atom=copy)
        gr.commit(CP)
        gr.wait(CP, pending=0)
        self.biased[0].arrive()

    def weights(self, stage: Any, r: LayerRunSm90) -> Any:
        """The tile of weights of this run in a stage."""
        return self.w[stage] if r.lines == self.widest else self.w[stage].tile([r.lines, None])[0, 0]


class _LayerConsumer:
    """What a consumer, the warpgroup of the executing thread, holds in registers, and its steps."""

    def __init__(self, c: MlpSm90Config, runs: list[LayerRunSm90], consumers: Any, shared: _Shared) -> None:
        self.c, self.shared = c, shared
        self.w: Any = consumers.indices()[0] if c.consumers > 1 else 0
        self.mine = mine = consumers[self.w] if c.consumers > 1 else consumers
        self.halves = c.rows // 64
        sizes = {r.lines for r in runs}
        self.wgmma = {n: wgmma(shared.dtype, n) for n in sizes | {CHUNK}}
        self.wgmma |= {n: wgmma(shared.dtype, n) for n in map(self.together, sizes)}
        self.any = self.wgmma[CHUNK]  # waits and fences may name any of them
        self.acc = {n: gr.fragment(f"acc{n}", [c.rows, n], gr.fp32, self.wgmma[n].c, on=mine) for n in sizes}
        between = {r.lines for r in runs if r.first + r.layers < c.depth}
        self.x = {n: gr.fragment(f"x{n}", [c.rows, n], shared.dtype, self.wgmma[n].a, on=mine) for n in between}
        wide = self.together(runs[-1].lines)
        self.out = gr.fragment("out", [64, wide], shared.dtype, self.wgmma[wide].c, on=mine)
        biased = {r.lines for r in runs if r.bias}
        self.vector = {n: self.piece(n).reduced(0, f"bias{n}") for n in biased}
        self.get, self.free = gr.ring("get", c.stages), gr.ring("free", c.stages)
        self.get_x, self.free_x = gr.ring("get_x", c.inputs), gr.ring("free_x", c.inputs)

    def together(self, lines: int) -> int:
        """How many columns of a layer are activated at once: biases of more would take registers from sums."""
        return lines if lines % CHUNK else CHUNK

    def piece(self, lines: int) -> Any:
        """The form of as many columns as are activated at once."""
        n = self.together(lines)
        return gr.fragment(f"piece{lines}", [64, n], self.shared.dtype, self.wgmma[n].c, on=self.mine)

    def release(self, inputs: bool) -> None:
        """The oldest stage that is not free yet has been read; with `inputs` that of X, too."""
        with gr.only(self.mine.elect()):
            self.shared.empty[self.free.index].arrive()
            if inputs:
                self.shared.empty_x[self.free_x.index].arrive()
        self.free.advance()
        if inputs:
            self.free_x.advance()

    @property
    def number(self) -> Any:
        """Which consumer this is, read from shared memory."""
        return gr.index(self.shared.numbers[self.w], 0, self.c.consumers - 1) if self.c.consumers > 1 else 0

    def part(self, r: LayerRunSm90, half: int) -> Any:
        """The accumulators of 64 rows."""
        return self.acc[r.lines].tile([64, None])[half, 0]

    def multiply(self, r: LayerRunSm90, j: Any, inputs: bool, more: bool) -> None:
        """Starts the products by the next tile of weights, number j of its layer: a group for each 64 rows."""
        s, wide = self.shared, min(CHUNK, up(r.k))
        if inputs:
            s.full_x[self.get_x.index].wait(self.get_x.phase)
        else:
            wide = min(CHUNK, up(r.k) - j * CHUNK)
        s.full[self.get.index].wait(self.get.phase)
        weights = s.weights(self.get.index, r)
        step = wide if inputs or (up(r.k) % wide == 0 and j * CHUNK % wide == 0) else 16
        for half in range(self.halves):
            for i in range(wide // step):
                if inputs:
                    left = s.x[self.get_x.index].tile([64, step])[self.w * self.halves + half, i]
                else:
                    left = self.x[up(r.k)].tile([64, step])[half, j * CHUNK // step + i]
                right = weights.tile([None, step])[0, i].T
                atom, accumulate = self.wgmma[r.lines], more or i > 0
                gr.matmul(self.part(r, half), left, right, on=self.mine, atom=atom, accumulate=accumulate)
            gr.commit(self.any)
        self.get.advance()
        if inputs:
            self.get_x.advance()

    def layer(self, r: LayerRunSm90) -> Iterator[int]:
        """Multiplies; yields each half when its accumulators are there."""
        inputs, s = r.first == 0, self.shared
        turns = s.turn if not inputs or r.chunks <= min(self.c.inputs, self.c.stages) else None
        if turns is not None:
            turns[self.w].sync()
        if inputs and r.chunks > UNROLLED:
            gr.init(self.acc[r.lines], 0)  # a product that adds from the second step on would keep the registers alive
            for k in gr.loop("k", r.chunks):
                gr.fence(self.any)
                self.multiply(r, k, inputs, True)
                gr.wait(self.any, pending=self.halves)  # the step before has read its stage
                with gr.if_(k > 0):
                    self.release(inputs)
        else:
            gr.fence(self.any)
            for j in range(r.chunks):
                self.multiply(r, j, inputs, j > 0)
                if turns is not None and j == r.chunks - 1:
                    turns[(self.w + 1) % self.c.consumers].arrive()
                if j:
                    gr.wait(self.any, pending=self.halves)
                    self.release(inputs)
        for half in range(self.halves):
            gr.wait(self.any, pending=self.halves - 1 - half)
            if half == self.halves - 1:
                self.release(inputs)
            yield half

    def fetch(self, r: LayerRunSm90, layer: Any, piece: int) -> None:
        """Brings a piece of a layer's bias to registers."""
        wide = self.together(r.lines)
        bias = self.shared.biases.tile([1, wide])[layer, piece]
        gr.move(self.vector[r.lines], bias, atom="ld.shared.b32")

    def activated(self, r: LayerRunSm90, layer: Any, half: int, piece: int) -> Any:
        """The activation of the sums of 64 rows, a piece of their columns."""
        wide = self.together(r.lines)
        x: Any = self.part(r, half).tile([None, wide])[0, piece]
        if r.bias:
            self.fetch(r, layer, piece)
            x = x + self.vector[r.lines]
        return activation(r.act)(x)

    def hand_on(self, r: LayerRunSm90, layer: Any, half: int) -> None:
        """Activates and rounds the sums of 64 rows to the next layer's left operand."""
        wide = self.together(r.lines)
        for j in range(r.lines // wide):
            y = self.activated(r, layer, half, j)
            if r.n % 16:  # in columns that only fill up a tile, f(0) or 0 * infinity may be NaN
                _, column = self.part(r, half).tile([None, wide])[0, j].coords()
                y = gr.where(column < r.n - j * wide, y, 0)
            self.x[r.lines].tile([64, wide])[half, j][:] = y

    def store(self, r: LayerRunSm90, half: int, Y: Any, row: Any) -> None:
        """Activates, rounds and stores 64 rows of the result: `row` counts them."""
        wide, buffers = self.together(r.lines), self.c.buffers
        by_threads = access("st.global", min(vector_bytes(r.n, self.c.align[1]), 4))
        pieces, box, stmatrix = r.lines // wide, gr.atom("tma.store"), gr.atom("stmatrix.x4")
        for j in range(pieces):
            self.out[:] = self.activated(r, r.first, half, j)
            to = Y.tile([64, wide])[row, j]
            if not self.c.boxes:
                gr.move(to, self.out, atom=by_threads)
                continue
            at = half * pieces + j
            piece = self.shared.y[at % buffers].tile([64, None])[self.w, 0]
            even = at or self.halves * pieces % buffers == 0
            gr.wait(box, pending=buffers - 1 if even else 0)  # the store from this piece has read it
            gr.barrier(on=self.mine)
            gr.move(piece, self.out, atom=stmatrix)
            gr.fence("async.shared")  # what threads stored becomes visible to the copy
            gr.barrier(on=self.mine)
            with gr.only(self.mine.elect()):
                gr.move(to, piece, atom=box)
                gr.commit(box)


def mlp_sm90(c: MlpSm90Config) -> gr.Kernel:
    """A perceptron with any number of rows: see MlpSm90Config. fp32 accumulation.

    The arguments of the kernel are X (M,widths[0]); the weights of every layer, (n,k); for each run of layers of one
    form that has biases (`runs_of` says which) a list of these (n,), row-major and 16-byte aligned; and
    Y (M,widths[-1]). The lines of X and Y have any stride, that of X a multiple of 16 bytes.

    Raises VerifyError KERNEL_ARGUMENT.
    """
    check_config(c)
    runs, dtype, load = runs_of(c), getattr(gr, c.dtype), gr.atom("tma.load")
    M = gr.sym("M", min=1, max=MOST_IN_BOXES)  # a box is never empty
    with gr.Kernel("mlp_sm90", functools.partial(meaning, c), arguments=small_weights) as kernel:
        X = matrix(gr.input, "X", (M, c.widths[0]), [], dtype, c.align[0])
        shapes = [gr.row_major(n, k) for k, n in zip(c.widths, c.widths[1:], strict=False)]
        weights = [gr.input(f"W{i}", s, dtype, align_bytes=16) for i, s in enumerate(shapes)]
        biases = {
            r.first: gr.inputs(f"b{r.first}", r.layers, gr.Layout(r.n), dtype, align_bytes=16) for r in runs if r.bias
        }
        Y = matrix(gr.output, "Y", (M, c.widths[-1]), [], dtype, vector_bytes(c.widths[-1], c.align[1]))
        tiles = gr.ceil_div(M, c.block_rows)
        workers = gr.max(1, gr.min(gr.sm_count(), tiles))
        (b,) = gr.blocks(workers).indices()
        threads = gr.threads(128 * (1 + c.consumers))
        groups = threads.tile(128)
        s = _Shared(c, runs)
        if c.consumers > 1:
            s.number(threads)
        wide = c.consumers == 2 and s.widest > 128
        registers = WIDE_REGISTERS if wide else REGISTERS.get(c.consumers, (0, 0))
        gr.barrier()  # the barriers are initialised

        with gr.only(groups[0]):
            if c.consumers > 1:
                gr.setmaxnreg(registers[0])
            with gr.only(groups[0].elect()):
                put, put_x = gr.ring("put", c.stages, phase=1), gr.ring("put_x", c.inputs, phase=1)  # 1: both are empty

                def bring(r: LayerRunSm90, layer: int, t: Any, j: Any) -> None:
                    if layer == 0:
                        i = put_x.index
                        s.empty_x[i].wait(put_x.phase)
                        s.full_x[i].arrive(expect=[s.x[i]])
                        gr.move(s.x[i], X.tile([c.block_rows, CHUNK])[t, j], atom=load, done=s.full_x[i])
                        put_x.advance()
                    i = put.index
                    to = s.weights(i, r)
                    s.empty[i].wait(put.phase)
                    s.full[i].arrive(expect=[to])
                    gr.move(to, weights[layer].tile([r.lines, CHUNK])[0, j], atom=load, done=s.full[i])
                    put.advance()

                for t in gr.loop("tile", tiles, start=b, step=workers):
                    for r in runs:
                        for layer in range(r.first, r.first + r.layers):
                            loop = layer == 0 and r.chunks > UNROLLED
                            for j in gr.loop("k", r.chunks) if loop else range(r.chunks):
                                bring(r, layer, t, j)

            if s.biased is not None:
                warp = groups[0].tile(32)[1]
                with gr.only(warp):
                    s.bring_biases(runs, biases, warp)

        consumers = groups[1 : 1 + c.consumers] if c.consumers > 1 else groups[1]
        with gr.only(consumers):
            if c.consumers > 1:
                gr.setmaxnreg(registers[1])
            me = _LayerConsumer(c, runs, consumers, s)
            if s.biased is not None:
                s.biased[0].wait(0)
            if s.turn is not None:
                with gr.if_(me.w == c.consumers - 1):
                    s.turn[0].arrive()
            # Counted from 0 for each role: a number of both would lie in memory while consumers use all registers.
            for done in gr.loop("tile", tiles - b, step=workers):
                t = b + done
                for r in runs:
                    last = r is runs[-1]
                    for i in gr.loop(f"layer{r.first}", r.layers) if r.layers > 1 else range(1):
                        for half in me.layer(r):
                            if last:
                                me.store(r, half, Y, (t * c.consumers + me.number) * me.halves + half)
                            else:
                                me.hand_on(r, r.first + i, half)
            if c.boxes:
                gr.wait(gr.atom("tma.store"), pending=0)
    return kernel
