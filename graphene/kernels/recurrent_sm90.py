"""A step of a recurrent network for Hopper: both products of a tile go into the accumulators of one warpgroup.

The structure is that of a product with a producer and consumers that take turns. To the consumers the tiles of k are
one sequence: the producer brings those of X and W, then those of H and U. With four gates (LSTM) a stage has the rows
of all gates of some hidden units one below the other, so a thread holds all gates of its units.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import choice, size, small_weights
from graphene.kernels.epilogues import activation, sigmoid, sigmoid_tanh
from graphene.kernels.gemm.frame import MOST_IN_BOXES
from graphene.kernels.gemm.operand import access, matrix
from graphene.kernels.recurrent import meaning, two_products
from graphene.kernels.tma import MOST_TILES, wgmma
from graphene.kernels.traced import as_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CellSm90Config", "cell_sm90"]

REGISTERS = {True: (24, 240), False: (40, 232)}  # of a thread of the producer and of two consumers, if biases are early
EARLY = 32  # registers of biases that are brought before the products
BK = 64  # k of a tile: 128 bytes, a line of the swizzle's pattern


@dataclass(frozen=True)
class CellSm90Config:
    """The problem is that of CellConfig: `gates`, `activation`, `biases`, `dtype`.

    ``tile``: rows and hidden units of a tile; its columns, `gates` times the units, are 64, 128 or 256. ``consumers``:
    warpgroups that multiply. ``turns``: two consumers compute a tile each, and one stores while the other multiplies;
    else they divide the rows of a tile. ``stages``: tiles of k in shared memory. ``group``: rows of tiles that run side
    by side. X, H, W, U and all tensors with hidden units along their lines have addresses and line starts that are
    multiples of 16 bytes; with four gates the number of units is a multiple of the tile's.
    """

    gates: int = 1
    activation: str | Callable[[Any], Any] | None = "relu"
    biases: int = 1
    dtype: str = "fp16"
    tile: tuple[int, int] = (128, 128)
    stages: int = 5
    consumers: int = 2
    turns: bool = True
    group: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", as_data(self.activation))

    @property
    def columns(self) -> int:
        """Columns of a tile of the product."""
        return self.gates * self.tile[1]

    @property
    def rows(self) -> int:
        """Rows of a consumer."""
        return self.tile[0] if self.turns else self.tile[0] // self.consumers

    @property
    def width(self) -> int:
        """Columns of a piece of the result, which has 64 rows."""
        return self.tile[1] if self.gates == 4 else 64

    @property
    def part(self) -> int:
        """Columns of a piece that are computed at once, so that registers hold what four gates need."""
        return 16 if self.gates == 4 else 64

    @property
    def early(self) -> bool:
        """Whether registers hold the biases beside the sums, so that they are brought before the products."""
        return self.biases * self.columns // 8 <= EARLY

    @property
    def pieces(self) -> int:
        """Pieces of a consumer's result."""
        return self.rows // 64 * self.tile[1] // self.width

    @property
    def buffers(self) -> int:
        """How many of them lie in shared memory at once."""
        return min(self.pieces, 2)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, barriers included."""
        results = self.consumers * 64 * self.width * self.buffers * (3 if self.gates == 4 else 1)
        return 2 * (self.stages * BK * (self.tile[0] + self.columns) + results) + 1024


def check_config(c: CellSm90Config) -> None:
    """Raises VerifyError KERNEL_ARGUMENT."""
    name = "cell_sm90"
    choice(name, "gates", c.gates, (1, 4))
    choice(name, "dtype", c.dtype, ("fp16", "bf16"))
    size(name, "biases", c.biases + 1, most=3)
    size(name, "consumers", c.consumers, most=2)
    choice(name, "turns, with one consumer,", c.turns, (True, False) if c.consumers == 2 else (False,))
    size(name, "tile[0]", c.tile[0], multiple_of=64 * (1 if c.turns else c.consumers), most=256)
    size(name, "gates * tile[1]", c.columns, multiple_of=64, most=256)
    size(name, "rows of a consumer", c.rows, most=128)
    size(name, "rows of a consumer * gates * tile[1]", c.rows * c.columns, most=64 * 256)
    size(name, "stages", c.stages, least=2)
    size(name, "group", c.group)


def both_products(x: Any, h: Any, *weights: Any) -> Any:
    """The meaning of the loop over k, for each gate."""
    gates = len(weights) // 2
    sums = [two_products(0, x, h, w, u) for w, u in zip(weights[:gates], weights[gates:], strict=True)]
    return tuple(sums) if gates > 1 else sums[0]


class _Cell:
    """The tensors of a kernel, and the steps of its roles."""

    def __init__(self, c: CellSm90Config, given: dict[str, Any], biases: list[Any], sizes: tuple[Any, ...]) -> None:
        self.c, self.given, self.biases, (self.tiles, *self.steps) = c, given, biases, sizes
        self.dtype = getattr(gr, c.dtype)

        def tiles(name: str, rows: int, columns: int, stages: int) -> Any:
            swizzle = gr.swizzle(columns, self.dtype)
            return gr.alloc(name, [rows, columns], self.dtype, gr.SH, stages=stages, swizzle=swizzle)

        self.left, self.right = tiles("sX", c.tile[0], BK, c.stages), tiles("sW", c.columns, BK, c.stages)
        kinds = ("H_new", "C_new", "C") if c.gates == 4 else ("H_new",)
        self.pieces = {kind: tiles(f"s{kind}", 64 * c.consumers, c.width, c.buffers) for kind in kinds}
        self.full = gr.mbarrier("full", c.stages, arrivals=1)
        self.empty = gr.mbarrier("empty", c.stages, arrivals=1 if c.turns else c.consumers)
        self.state: Any = gr.mbarrier("state", c.consumers, arrivals=1) if c.gates == 4 else None
        self.turn: Any = gr.named_barrier("turn", stages=2, threads=256) if c.turns else None

    def gates_of(self, name: str, n: Any) -> list[Any]:
        """The rows of each gate of a tile's units, of a matrix of weights."""
        rows = self.given[name].tile([self.c.tile[1], None])
        return [rows[g * self.tiles + n, 0] for g in range(self.c.gates)]

    def bring(self, m: Any, n: Any, put: Any) -> None:
        """The producer: of a tile the operands of the first product, then those of the second."""
        c, load = self.c, gr.atom("tma.load")
        for x, w, count in zip("XH", "WU", self.steps, strict=True):
            left = self.given[x].tile([c.tile[0], BK])[m, :]
            right = [gate.tile([None, BK])[0, :] for gate in self.gates_of(w, n)]
            for k in gr.loop(f"k{x}", count):
                i = put.index
                self.empty[i].wait(put.phase)
                self.full[i].arrive(expect=[self.left[i], self.right[i]])
                gr.move(self.left[i], left[k], atom=load, done=self.full[i])
                for g, gate in enumerate(right):
                    to = self.right[i].tile([c.tile[1], None])[g, 0] if c.gates > 1 else self.right[i]
                    gr.move(to, gate[k], atom=load, done=self.full[i])
                put.advance()


class _CellConsumer:
    """What a consumer, the warpgroup of the executing thread, holds in registers, and its steps."""

    def __init__(self, cell: _Cell, consumers: Any) -> None:
        self.cell, self.c = cell, cell.c
        c = cell.c
        self.w: Any = consumers.indices()[0] if c.consumers > 1 else 0
        self.mine = mine = consumers[self.w] if c.consumers > 1 else consumers
        self.wgmma = wgmma(cell.dtype, c.columns)
        narrow = wgmma(cell.dtype, c.part).c
        self.acc = gr.fragment("acc", [c.rows, c.columns], gr.fp32, self.wgmma.c, on=mine)
        self.out = gr.fragment("out", [64, c.part], cell.dtype, narrow, on=mine)
        if c.gates == 4:
            self.old = gr.fragment("old", [64, c.part], cell.dtype, narrow, on=mine)
            self.state = gr.fragment("state", [64, c.part], gr.fp32, narrow, on=mine)
        parts = c.tile[1] // c.part
        names = [[[f"bias{i}{g}{p}" for g in range(c.gates)] for i in range(c.biases)] for p in range(parts)]
        self.vectors = [[[self.out.reduced(0, n) for n in of] for of in part] for part in names]
        self.get, self.free = gr.ring("get", c.stages), gr.ring("free", c.stages)
        self.round = gr.ring("round", 1)  # of the tile of C

    def pass_over(self, steps: Any) -> None:
        """The stages of a tile that is the other consumer's."""
        self.get.advance(steps)
        self.free.advance(steps)

    def release(self) -> None:
        """The oldest stage that is not free yet has been read."""
        with gr.only(self.mine.elect()):
            self.cell.empty[self.free.index].arrive()
        self.free.advance()

    def multiply(self, m: Any, n: Any) -> None:
        """Both products of a tile."""
        c, cell, acc = self.c, self.cell, self.acc
        row = m if c.turns or c.consumers == 1 else 2 * m + self.w
        left = [cell.given[x].tile([c.rows, None])[row, 0] for x in "XH"]
        right = [gate for w in "WU" for gate in cell.gates_of(w, n)]
        gates = [acc.tile([None, c.tile[1]])[0, g] for g in range(c.gates)] if c.gates > 1 else acc
        with gr.spec(gates, [*left, *right], on=self.mine, means=both_products):
            if c.turns:
                cell.turn[self.w].sync()
            for k in gr.loop("k", cell.steps[0] + cell.steps[1]):
                a = cell.left[self.get.index]
                a = a.tile([c.rows, None])[self.w, 0] if c.rows < c.tile[0] else a
                cell.full[self.get.index].wait(self.get.phase)
                gr.fence(self.wgmma)
                b = cell.right[self.get.index].T
                gr.matmul(acc, a, b, on=self.mine, atom=self.wgmma, accumulate=k > 0)
                gr.commit(self.wgmma)
                self.get.advance()
                gr.wait(self.wgmma, pending=1)  # the step before has read its stage
                with gr.if_(k > 0):
                    self.release()
            if c.turns:
                cell.turn[1 - self.w].arrive()
            gr.wait(self.wgmma, pending=0)
            self.release()

    def place(self, m: Any, half: int) -> Any:
        """Which 64 rows of the whole the half is."""
        c = self.c
        first = m * (c.tile[0] // 64) + (self.w * (c.rows // 64) if c.rows < c.tile[0] else 0)
        return first + half

    def bring_states(self, m: Any, n: Any) -> None:
        """Starts the copies of a tile of C, which is needed behind the products."""
        c, cell, load = self.c, self.cell, gr.atom("tma.load")
        pieces = [cell.pieces["C"][half].tile([64, None])[self.w, 0] for half in range(c.pieces)]
        with gr.only(self.mine.elect()):
            cell.state[self.w].arrive(expect=pieces)
            for half, piece in enumerate(pieces):
                tile = cell.given["C"].tile([64, c.width])[self.place(m, half), n]
                gr.move(piece, tile, atom=load, done=cell.state[self.w])

    def fetch(self, n: Any, parts: Iterable[int]) -> None:
        """Brings biases of a tile to registers, in parts as they will be added."""
        c, tiles = self.c, self.cell.tiles
        for p in parts:
            for b, vectors in zip(self.cell.biases, self.vectors[p], strict=True):
                for g, v in enumerate(vectors):
                    of_tile = b.tile([c.tile[1]])[g * tiles + n].reshape(0, [1, c.tile[1]])
                    gr.move(v, of_tile.tile([None, c.part])[0, p], atom=access("ld.global", 4))

    def values(self, sums: list[Any], part: int, old: Any) -> dict[str, Any]:
        """The results from the sums of each gate; `part`: of the columns; `old`: that of C in shared memory."""
        x = [sum((of[g] for of in self.vectors[part]), y) for g, y in enumerate(sums)]
        if self.c.gates == 1:
            return {"H_new": activation(self.c.activation)(x[0])}
        gr.move(self.old, old, atom="ld.shared.b32")
        self.state[:] = sigmoid(x[1]) * self.old + sigmoid_tanh(x[0], x[2])
        return {"H_new": sigmoid_tanh(x[3], self.state), "C_new": self.state}

    def finish(self, m: Any, n: Any) -> None:
        """The results of a tile, in pieces of 64 rows: to shared memory, and from there by boxes."""
        c, cell, across, store = self.c, self.cell, self.c.tile[1] // self.c.width, gr.atom("tma.store")
        if c.gates == 4:
            cell.state[self.w].wait(self.round.phase)
            self.round.advance()
        for at in range(c.pieces):
            (half, j), parts = divmod(at, across), c.width // c.part
            row, column = self.place(m, half), n * across + j
            pieces = {k: p[at % c.buffers].tile([64, None])[self.w, 0] for k, p in cell.pieces.items()}
            even = at or c.pieces % c.buffers == 0
            gr.wait(store, pending=c.buffers - 1 if even else 0)  # the stores from these pieces have read them
            gr.barrier(on=self.mine)
            for i in range(parts):
                sums = [self.acc.tile([64, c.part])[half, (j + g) * parts + i] for g in range(c.gates)]
                if not c.early:
                    self.fetch(n, [j * parts + i])
                at_part = {k: p.tile([None, c.part])[0, i] for k, p in pieces.items()}
                for name, value in self.values(sums, j * parts + i, at_part.get("C")).items():
                    self.out[:] = value
                    gr.move(at_part[name], self.out, atom=gr.atom("stmatrix.x4"))
            gr.fence("async.shared")  # what threads stored becomes visible to the copies
            gr.barrier(on=self.mine)
            with gr.only(self.mine.elect()):
                for name in [k for k in pieces if k != "C"]:
                    gr.move(cell.given[name].tile([64, c.width])[row, column], pieces[name], atom=store)
                gr.commit(store)


def cell_sm90(c: CellSm90Config) -> gr.Kernel:
    """A step of any batch M, any input size I and any number N of hidden units: see CellSm90Config. fp32 accumulation.

    The arguments are those of `recurrent_cell`: X (M,I), H (M,J), with four gates C (M,N); then W (gates*N,I),
    U (gates*N,J), and the biases (gates*N,), if any; then H_new (M,N) and with four gates also C_new.

    Raises VerifyError KERNEL_ARGUMENT.
    """
    check_config(c)
    (BM, BN), G, most = c.tile, c.gates, MOST_IN_BOXES
    dtype = getattr(gr, c.dtype)
    M, N = gr.sym("M", min=1, max=most), gr.sym("N", multiple_of=BN if G == 4 else 8, min=8, max=most)
    I, J = (gr.sym(x, multiple_of=8, min=8, max=most) for x in "IJ")
    means = functools.partial(meaning, c)
    with gr.Kernel("lstm_sm90" if G == 4 else "rnn_sm90", means, arguments=small_weights) as kernel:

        def matrices(declare: Any, **shapes: Any) -> dict[str, Any]:
            return {name: matrix(declare, name, shape, [], dtype, 16) for name, shape in shapes.items()}

        given = matrices(gr.input, X=(M, I), H=(M, J), **({"C": (M, N)} if G == 4 else {}), W=(G * N, I), U=(G * N, J))
        biases = [gr.input(f"b{i}", gr.Layout(G * N), dtype, align_bytes=16) for i in range(c.biases)]
        given |= matrices(gr.output, H_new=(M, N), **({"C_new": (M, N)} if G == 4 else {}))
        tm, tn = gr.ceil_div(M, BM), gr.ceil_div(N, BN)
        tiles = gr.min(tm * tn, MOST_TILES)  # more tiles are results of 4 TB: the bound tells that 32 bits count them
        workers = gr.max(1, gr.min(gr.sm_count(), tiles))
        (b,) = gr.blocks(workers).indices()
        groups = gr.threads(128 * (1 + c.consumers)).tile(128)
        steps = [gr.ceil_div(I, BK), gr.ceil_div(J, BK)]
        cell = _Cell(c, given, biases, (tn, *steps))
        gr.barrier()  # the barriers are initialised
        gr.start_kernels()  # the next kernel's blocks may start as soon as there is room
        gr.wait_kernels()

        def place(t: Any) -> tuple[Any, Any]:
            # `group` rows of tiles side by side share their operands in the L2 cache. Minima and maxima change nothing:
            # they tell that 32 bits are enough, and that there is no quotient of negative numbers.
            first = gr.min(t // (c.group * tn) * c.group, tm)
            many = gr.max(1, gr.min(c.group, tm - first))
            return first + t % (c.group * tn) % many, gr.min(t % (c.group * tn) // many, tn)

        with gr.only(groups[0]):
            if c.consumers > 1:
                gr.setmaxnreg(REGISTERS[c.early][0])
            with gr.only(groups[0].elect()):
                put = gr.ring("put", c.stages, phase=1)  # 1: the ring starts empty
                for t in gr.loop("tile", tiles, start=b, step=workers):
                    cell.bring(*place(t), put)

        consumers = groups[1:3] if c.consumers > 1 else groups[1]
        with gr.only(consumers):
            if c.consumers > 1:
                gr.setmaxnreg(REGISTERS[c.early][1])
            me = _CellConsumer(cell, consumers)
            if c.turns:
                me.pass_over(me.w * (steps[0] + steps[1]))
                with gr.if_(me.w == 1):
                    cell.turn[0].arrive()
            first, step = (b + me.w * workers, 2 * workers) if c.turns else (b, workers)
            for t in gr.loop("tile", tiles, start=first, step=step):
                m, n = place(t)
                if G == 4:
                    me.bring_states(m, n)
                if c.early:
                    me.fetch(n, range(c.tile[1] // c.part))
                me.multiply(m, n)
                if c.turns:
                    me.pass_over(steps[0] + steps[1])
                me.finish(m, n)
            gr.wait(gr.atom("tma.store"), pending=0)
    return kernel
