"""A multi-layer perceptron in one kernel: activations stay on the chip from the first layer to the last.

Every warp owns some rows. The accumulators of a layer, activated and rounded, become the left operand of the next one.
The thread that holds an element of C also holds that element of A, so nothing crosses lanes. Only weights move, through
a ring of tiles in shared memory, fed by asynchronous copies that run ahead across the borders of layers.

If there are few rows, or many columns, several warps share the rows and divide the columns (`across`). Then a layer's
result passes through shared memory, and the next layer's barrier for the weights makes it visible to all warps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import graphene as gr
from graphene import _core
from graphene.kernels.arguments import choice, size, small_weights
from graphene.kernels.epilogues import activation
from graphene.kernels.gemm.operand import COPIES, MATRIX_ATOMS, access, matrix
from graphene.kernels.reference_activations import activated
from graphene.kernels.traced import as_data

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MlpConfig", "mlp_kernel"]

Activation: TypeAlias = "str | Callable[[Any], Any] | None"
CP = "cp.async.cg.16"  # commit and wait may name any of the copies


@dataclass(frozen=True)
class MlpConfig:
    """Y = X after X <- act_l(X @ W[l].T + bias[l]) for every layer l, X rounded to the type of the weights each time.

    ``widths``: the input's width and that of each layer's result; those between are at most 256. ``activations``: one
    for each layer, of epilogues.ACTIVATIONS or functions of a register, which are kept as expressions
    (`graphene/kernels/traced.py`). ``biases``: whether each layer has a bias.

    ``rows``: rows of a warp, 16 or 32. ``warps``: how many warps divide a block's rows; ``across``: how many divide its
    columns; a warp holds 4096 / rows columns at most. ``chunk``: columns of a tile of weights; ``stages``: how many
    tiles there are. ``columns``: columns of the last layer's result that are computed at once, if it is wider.
    ``resident``: the greatest width of X that is brought at once, by default as much as fits; a wider X arrives in
    pieces. ``align``: bytes that divide the addresses and line starts of X and of Y.
    """

    widths: tuple[int, ...]
    activations: tuple[Activation, ...]
    biases: tuple[bool, ...]
    dtype: str = "fp16"
    rows: int = 32
    warps: int = 4
    chunk: int = 64
    stages: int = 4
    columns: int = 128
    resident: int | None = None
    align: tuple[int, int] = (16, 16)
    across: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "activations", tuple(map(as_data, self.activations)))

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.widths) - 1

    def operands(self, weights: list[Any], biases: list[Any]) -> list[Any]:
        """The kernel's arguments between X and Y, of what belongs to each layer; a layer's bias may be None."""
        out = []
        for r in runs_of(self):
            of_run = slice(r.first, r.first + r.layers)
            out += [weights[of_run], *([biases[of_run]] if r.bias else [])]
        return out

    @property
    def widest(self) -> int:
        """Columns that the warps of the same rows hold at once."""
        return min(4096 // self.rows * self.across, 256)

    @property
    def streams(self) -> bool:
        """Whether X arrives in pieces beside the weights of the first layer."""
        return self.widths[0] > (self.resident or self.widest)

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.rows * self.warps

    @property
    def shared_bytes(self) -> tuple[int, int]:
        """Shared memory of a block: for results between layers, and for each stage."""
        runs = runs_of(self)
        lines = [lines_of(self, r) for r in runs]
        kept = [up(r.k) for r in runs if not r.streamed] + [n for r, n in zip(runs, lines, strict=True) if not r.cut]
        stage = 2 * (self.chunk * (max(lines) + self.block_rows * self.streams) + max(lines))
        return (4 * self.block_rows * max(kept) if self.across > 1 else 0), stage


def up(n: int, multiple: int = 16) -> int:
    """The next multiple."""
    return -(-n // multiple) * multiple


def lines_of(c: MlpConfig, r: LayerRun) -> int:
    """Rows of a tile of weights: the columns that a pass computes, shared by warps."""
    return c.columns if r.cut else up(r.n, 16 * c.across)


@dataclass
class LayerRun:
    """Consecutive layers of one form: ``times`` passes over tiles of weights, each of ``chunks`` tiles.

    ``first``: the first layer. ``streamed``: the run is one layer, and X arrives with the weights, a chunk in each
    pass. ``cut``: the run is one layer, too, but a pass computes only some of its columns.
    """

    first: int
    times: int
    chunks: int
    k: int
    n: int
    bias: bool
    act: Activation
    streamed: bool = False
    cut: bool = False
    weights: Any = None
    vectors: Any = None

    @property
    def layers(self) -> int:
        """The number of layers."""
        return 1 if self.streamed or self.cut else self.times


def runs_of(c: MlpConfig) -> list[LayerRun]:
    """The layers of a configuration, in order."""

    def form(i: int) -> tuple[Any, ...]:
        k, n = c.widths[i : i + 2]
        wide = i == 0 and c.streams, i == c.depth - 1 and up(n) > c.columns
        return (k, n, c.biases[i], c.activations[i], *wide, i if any(wide) else -1)

    runs = []
    for (k, n, bias, act, streamed, cut, _), group in groupby(range(c.depth), form):
        layers = list(group)
        if k != n and len(layers) > 1:  # consecutive layers of one form are square
            raise AssertionError(layers)
        chunks = -(-up(k) // c.chunk)
        times = chunks if streamed else -(-up(n) // c.columns) if cut else len(layers)
        runs.append(LayerRun(layers[0], times, 1 if streamed else chunks, k, n, bias, act, streamed, cut))
    return runs


def vector_bytes(width: int, align: int = 16) -> int:
    """The widest copy, in bytes, that divides a line of 16-bit elements."""
    while 2 * width % align:
        align //= 2
    return align


def atoms_of(align: int, kinds: tuple[str, str] = ("ld.global", "st.shared")) -> Any:
    """The atom, or the pair through registers, that copies that many bytes to shared memory."""
    return gr.atom(COPIES[align]) if align in COPIES else tuple(access(k, align) for k in kinds)


def check_config(c: MlpConfig) -> None:
    """Raises VerifyError KERNEL_ARGUMENT."""
    name = "mlp_kernel"
    choice(name, "dtype", c.dtype, ("fp16", "bf16"))
    size(name, "rows", c.rows, multiple_of=16, most=32)
    size(name, "len(widths)", len(c.widths), least=2)
    size(name, "len(activations)", len(c.activations), least=c.depth, most=c.depth)
    size(name, "len(biases)", len(c.biases), least=c.depth, most=c.depth)
    for i, n in enumerate(c.widths):
        between = 0 < i < c.depth
        size(name, f"widths[{i}]", n, most=c.widest if between else None)
    size(name, "warps", c.warps, most=32)
    size(name, "chunk", c.chunk, multiple_of=16)
    size(name, "stages", c.stages, least=2)
    size(name, "across", c.across, most=16)
    size(name, "columns", c.columns, multiple_of=16 * c.across, most=c.widest)
    if c.depth == 1 and c.streams and up(c.widths[1]) > c.columns:
        _core.fail(
            "KERNEL_ARGUMENT", "mlp_kernel: one layer that is wide on both sides is a product",
            [f"want: a width of at most {c.columns} or more layers", f"got: {c.widths}"], "use gemm_sm80",
        )  # fmt: skip


def meaning(c: MlpConfig, X: Any, **given: Any) -> Any:
    """The meaning of a configuration, on arrays: layer by layer, where each result except the last is rounded."""
    for i, r in enumerate(runs_of(c)):
        for layer in range(r.layers):
            y = X @ given[f"W{i}"][layer].T
            y = activated(r.act, y + given[f"b{i}"][layer] if r.bias else y)
            held = f"{'y' if c.across > 1 else 'x'}{lines_of(c, r)}"  # the tensor that holds a result as an operand
            X = gr.rounded(held, y) if r.first + layer + 1 < c.depth else y
    return X


class _Block:
    """The tensors of a block of the kernel, and its steps."""

    def __init__(self, c: MlpConfig, runs: list[LayerRun], X: Any, bm: Any, threads: Any) -> None:
        self.c, self.runs, self.threads = c, runs, threads
        self.dtype = dtype = getattr(gr, c.dtype)
        self.mma = gr.atom(MATRIX_ATOMS[c.dtype][0])
        self.lines = [lines_of(c, r) for r in runs]
        self.chunk = chunk = c.chunk
        self.warps = threads.tile(32).reshape(0, gr.Layout((c.warps, c.across)))
        self.at, _ = self.warps.indices()  # this warp's place among rows and columns
        widest, swizzle = max(self.lines), gr.swizzle(chunk, dtype)
        self.weights = gr.alloc("sW", [widest, chunk], dtype, gr.SH, stages=c.stages, swizzle=swizzle)
        self.bias: Any = None
        if any(r.bias and not r.streamed for r in runs):
            self.bias = gr.alloc("sB", [1, widest], dtype, gr.SH, stages=c.stages)
        self.X, self.bm = X, bm
        self.input: Any = None
        if runs[0].streamed:
            self.input = gr.alloc("sX", [c.block_rows, chunk], dtype, gr.SH, stages=c.stages, swizzle=swizzle)
        self.rd, self.wr = gr.ring("rd", c.stages), gr.ring("wr", c.stages)
        self.tiles = [[(i, t, j) for t in range(r.times) for j in range(r.chunks)] for i, r in enumerate(runs)]
        self.pieces = [32 if n // c.across % 32 == 0 else 16 for n in self.lines]  # columns in registers at once

        def held(name: str, sizes: set[int], of: Any, tv: Any, stages: int | None = None) -> dict[int, Any]:
            if stages:  # one warp's operands; the others belong to all warps
                on, rows = self.warps[self.at], {"a": c.rows}
                made = {n: [rows.get(name, n), 16] for n in sizes}
                return {n: gr.fragment(f"{name}{n}", s, of, tv, on=on, stages=stages) for n, s in made.items()}
            return {n: gr.fragment(f"{name}{n}", [c.block_rows, n], of, tv, on=self.warps) for n in sizes}

        kept = {up(r.k) for r in runs if not r.streamed} | {
            n for r, n in zip(runs, self.lines, strict=True) if not r.cut
        }
        results = {n for r, n in zip(runs, self.lines, strict=True) if c.across > 1 or r.cut}
        self.x = held("x", set() if c.across > 1 else kept, dtype, self.mma.a)
        self.y = held("y", results, dtype, self.mma.c)
        self.between: Any = None  # results on their way to the warps of the same rows
        if c.across > 1:
            swizzle = gr.swizzle(max(kept), dtype)
            self.between = gr.alloc("sA", [c.block_rows, max(kept)], dtype, gr.SH, stages=2, swizzle=swizzle)
            self.read = gr.ring("read", 2)
        self.acc = held("acc", set(self.lines), gr.fp32, self.mma.c)
        self.a = held("a", {16} if runs[0].streamed or c.across > 1 else set(), dtype, self.mma.a, 2)
        self.b = held("b", set(self.pieces), dtype, self.mma.b, 2)

    def steps(self, i: int, j: int) -> int:
        """How many times 16 columns the tile j of a pass of run i has."""
        left = up(self.runs[i].k) - j * self.chunk
        return (self.chunk if self.runs[i].streamed else min(self.chunk, left)) // 16

    def load(self, i: int, t: Any, j: int) -> None:
        """Starts the copies of tile j of pass t of run i, and of the bias or X that come with it."""
        r, n, stage, whole = self.runs[i], self.lines[i], self.wr.index, self.runs[i].streamed or self.runs[i].cut
        part = [n, 16 * self.steps(i, j)]
        source = r.weights[0 if whole else t].tile([n, self.chunk])[t if r.cut else 0, t if r.streamed else j]
        to = self.weights[stage].tile(part)[0, 0]
        gr.move(to, source.tile(part)[0, 0], on=self.threads, atom=atoms_of(vector_bytes(r.k)))
        if r.bias and j == 0 and not r.streamed:
            b = r.vectors[0 if whole else t].tile([n])[t if r.cut else 0].reshape(0, [1, n])
            gr.move(self.bias[stage].tile([1, n])[0, 0], b, on=self.threads, atom=atoms_of(vector_bytes(r.n)))
        if r.streamed:
            x = self.X.tile([self.c.block_rows, self.chunk])[self.bm, t]
            gr.move(self.input[stage], x, on=self.threads, atom=atoms_of(vector_bytes(r.k, self.c.align[0])))

    def started(self) -> None:
        """Closes the group of copies of a tile, which may be empty."""
        gr.commit(CP)
        self.wr.advance()

    def load_ahead(self, i: int, t: Any, j: int) -> None:
        """The tile that comes `stages` - 1 after tile j of pass t of run i, in the same run or in a later one."""
        r, later = self.runs[i], [tile for run in self.tiles[i + 1 :] for tile in run]
        passes, tile = divmod(j + self.c.stages - 1, r.chunks)
        left = r.times - passes  # the passes whose tile is in their own run
        if left > 0:
            with gr.if_(t < left):
                self.load(i, t + passes, tile)
        for e in range(max(-left, 0), passes):
            if (n := e * r.chunks + tile) < len(later):
                with gr.if_(t == left + e):
                    self.load(*later[n])
        if later or r.times > 1 or j < r.chunks - 1:  # else no copy is left to wait for
            self.started()

    def arrive(self, i: int, t: Any, j: int) -> None:
        """Waits for tile j of pass t of run i, and starts the copy into the stage that the tile before it left."""
        gr.wait(CP, pending=self.c.stages - 2)
        gr.barrier()
        self.load_ahead(i, t, j)

    def weights_of(self, i: int, t: Any) -> Any:
        """[lines, columns] of pass t of run i in global memory, as wide as the left operand."""
        r = self.runs[i]
        if r.streamed:
            return r.weights[0].tile([self.lines[i], None])[0, 0]
        return r.weights[0 if r.cut else t].tile([self.lines[i], up(r.k)])[t if r.cut else 0, 0]

    def begin(self, i: int) -> Any:
        """The accumulators of a pass of run i: the bias."""
        r, n = self.runs[i], self.lines[i]
        acc = self.acc[n]
        if not r.bias:
            gr.init(acc, 0)
            return acc
        bias = acc.reduced(0, f"bias{i}", self.dtype)
        if r.streamed:  # its first tile has not arrived yet
            wide = access("ld.global", min(vector_bytes(r.n), 4))
            gr.move(bias, r.vectors[0].tile([n])[0].reshape(0, [1, n]), atom=wide)
        else:
            gr.move(bias, self.bias[self.rd.index].tile([1, n])[0, 0], atom=access("ld.shared", 4))
        acc[:] = bias
        return acc

    def multiply(self, i: int, j: int, acc: Any, x: Any) -> None:
        """Adds x times the tile j of a pass, and releases the tile. x: registers, or the stages of X."""
        n, steps, ldsm = self.lines[i], self.steps(i, j), gr.atom("ldmatrix.x4")
        width, (row, column) = self.pieces[i], self.at
        b, of_warp, before = self.b[width], n // self.c.across, j * self.chunk // 16
        weights = self.weights[self.rd.index].tile([of_warp, 16])
        pieces = [(s, p) for s in range(steps) for p in range(of_warp // width)]
        column = column if self.c.across > 1 else 0
        shared = None if self.between is None else self.between[self.read.index]
        if self.runs[i].streamed:
            shared, before = self.input[self.rd.index], 0

        def fetch(at: int) -> None:
            s, p = pieces[at]
            if p == 0 and shared is not None:
                gr.move(self.a[16][s % 2], shared.tile([self.c.rows, 16])[row, before + s], atom=ldsm)
            gr.move(b[at % 2], weights[column, s].tile([width, None])[p, 0], atom=ldsm)

        fetch(0)
        mine = acc[self.at]
        for at, (s, p) in enumerate(pieces):
            if at + 1 < len(pieces):
                fetch(at + 1)
            a = x[self.at].tile([None, 16])[0, before + s] if shared is None else self.a[16][s % 2]
            gr.matmul(mine.tile([None, width])[0, p], a, b[at % 2].T, atom=self.mma)
        self.rd.advance()

    def whole(self, i: int, t: Any, x: Any) -> Any:
        """A pass of a run, from its first tile to its last. Returns the accumulators."""
        self.arrive(i, t, 0)
        acc = self.begin(i)
        x = x if self.between is None else self.left(i)
        with gr.matmul(acc, x, self.weights_of(i, t).T):  # the promise: acc += x @ W.T
            for j in range(self.runs[i].chunks):
                if j:
                    self.arrive(i, t, j)
                self.multiply(i, j, acc, x)
        return acc

    def streamed(self, i: int, x: Any) -> Any:
        """A run whose left operand arrives with the weights. Returns the accumulators."""
        acc = self.begin(i)
        with gr.matmul(acc, x, self.weights_of(i, 0).T):
            for t in gr.loop(f"t{i}", self.runs[i].times):
                self.arrive(i, t, 0)
                self.multiply(i, 0, acc, x)
        return acc

    def start(self, gX: Any) -> Any:
        """Brings the first tiles, and X unless it comes with them. Returns the first layer's left operand."""
        k, align = self.c.widths[0], vector_bytes(self.c.widths[0], self.c.align[0])
        tiles = [tile for run in self.tiles for tile in run]
        if self.between is not None and not self.c.streams:
            x = gX.tile([None, up(k)])[0, 0]
            gr.move(self.left(0), x, on=self.threads, atom=atoms_of(align))
        for n in range(self.c.stages - 1):
            if n < len(tiles):
                self.load(*tiles[n])
            self.started()
        if self.c.streams:
            return gX
        if self.between is not None:
            return None
        gr.move(self.x[up(k)], gX.tile([None, up(k)])[0, 0], atom=access("ld.global", min(align, 4)))
        return self.x[up(k)]

    def left(self, i: int) -> Any:
        """The left operand of run i in shared memory."""
        return self.between[self.read.index].tile([self.c.block_rows, up(self.runs[i].k)])[0, 0]

    def hand_on(self, i: int, acc: Any) -> Any:
        """Activates and rounds a layer's sums to the next layer's left operand, in registers or in shared memory."""
        n = self.lines[i]
        if self.between is None:
            self.finish(i, acc, self.x[n])
            return self.x[n]
        self.finish(i, acc, self.y[n])
        to = self.between[(self.read.index + 1) % 2].tile([self.c.block_rows, n])[0, 0]
        gr.move(to, self.y[n], atom="st.shared.b32")
        self.read.advance()
        return self.y[n]

    def finish(self, i: int, acc: Any, to: Any) -> None:
        """The activation, rounded."""
        y, r = activation(self.runs[i].act)(acc), self.runs[i]
        if r.n % 16 and not r.cut:  # in columns that only fill up a tile, f(0) or 0 * infinity may be NaN
            _, column = acc.coords()
            y = gr.where(column < self.runs[i].n, y, 0)
        to[:] = y


def mlp_kernel(c: MlpConfig) -> gr.Kernel:
    """A perceptron with any number of rows: see MlpConfig. fp32 accumulation.

    The arguments of the kernel are X (M,widths[0]); then for each run of layers of one form (`runs_of` says which) a
    list of their weights (n,k) and, if they have biases, a list of these (n,), row-major and 16-byte aligned; and
    Y (M,widths[-1]). The lines of X and Y have any stride.

    Raises VerifyError KERNEL_ARGUMENT.
    """
    check_config(c)
    runs, dtype = runs_of(c), getattr(gr, c.dtype)
    M, align = gr.sym("M"), [vector_bytes(c.widths[i], a) for i, a in ((0, c.align[0]), (-1, c.align[1]))]
    with gr.Kernel("fused_mlp", functools.partial(meaning, c), arguments=small_weights) as kernel:
        X = matrix(gr.input, "X", (M, c.widths[0]), [], dtype, align[0])
        for i, r in enumerate(runs):
            r.weights = gr.inputs(f"W{i}", r.layers, gr.row_major(r.n, r.k), dtype, align_bytes=16)
            r.vectors = gr.inputs(f"b{i}", r.layers, gr.Layout(r.n), dtype, align_bytes=16) if r.bias else None
        Y = matrix(gr.output, "Y", (M, c.widths[-1]), [], dtype, align[1])
        blocks, threads = gr.blocks(gr.ceil_div(M, c.block_rows)), gr.threads(32 * c.warps * c.across)
        meant_ins = [X, *(l[k] for r in runs for l in (r.weights, r.vectors) if l is not None for k in range(r.layers))]
        (bm,) = blocks.indices()
        block = _Block(c, runs, X, bm, threads)
        gX, gY = (t.tile([c.block_rows, None])[bm, 0] for t in (X, Y))

        with gr.spec(Y, meant_ins, on=(blocks, threads)):
            x, store = block.start(gX), access("st.global", min(align[1], 4))
            for i, r in enumerate(runs):
                n, acc = block.lines[i], None
                for t in gr.loop(f"t{i}", r.times) if r.times > 1 and not r.streamed else range(1):
                    acc = block.streamed(i, gX) if r.streamed else block.whole(i, t, x)
                    if r.cut:
                        block.finish(i, acc, block.y[n])
                        gr.move(gY.tile([None, n])[0, t], block.y[n], atom=store)
                    else:
                        y = block.hand_on(i, acc)
                x = x if r.cut else y
            if not runs[-1].cut:
                gr.move(gY.tile([None, n])[0, 0], x, atom=store)
    return kernel
