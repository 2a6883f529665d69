"""A step of a recurrent network in one kernel: both products go into one accumulator, and nothing is concatenated.

The simple cell is the paper's, ``act(x W + h U + b)``. The cell with four gates (LSTM) has four accumulators side by
side. A thread holds the same elements of each, so it owns all gates of its hidden units and updates c and h in
registers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels import reference_activations as reference
from graphene.kernels.arguments import choice, size, small_weights
from graphene.kernels.epilogues import activation, sigmoid, sigmoid_tanh
from graphene.kernels.gemm.operand import COPIES, MATRIX_ATOMS, access, matrix
from graphene.kernels.gemm.result import Result, copy_lines
from graphene.kernels.traced import as_data

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CellConfig", "recurrent_cell"]

CP = "cp.async.cg.16"  # commit and wait may name any of the copies


@dataclass(frozen=True)
class CellConfig:
    """``gates`` 1: Y = act(X @ W.T + H @ U.T + biases). 4: torch.nn.LSTMCell, rows of W and U in its order i, f, g, o.

    ``tile``: rows, hidden units and k of a block's tiles; ``warps``: how many warps divide its (rows, units).
    ``biases``: their number. ``align``: bytes that divide the addresses and line starts of X, H, W, U and of tensors
    with hidden units along their lines.
    """

    gates: int = 1
    activation: str | Callable[[Any], Any] | None = "relu"
    biases: int = 1
    dtype: str = "fp16"
    tile: tuple[int, int, int] = (128, 128, 64)
    stages: int = 3
    warps: tuple[int, int] = (2, 2)
    group: int = 1
    align: tuple[int, int, int, int, int] = (16, 16, 16, 16, 16)

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", as_data(self.activation))


def copies(align: int) -> Any:
    """The atom, or the pair through registers, that copies that many bytes to shared memory."""
    return gr.atom(COPIES[align]) if align in COPIES else (access("ld.global", align), access("st.shared", align))


def two_products(acc: Any, x: Any, h: Any, w: Any, u: Any) -> Any:
    """The meaning of the loop over k."""
    return acc + x @ w.T + h @ u.T


def two_products_of_gates(*t: Any) -> Any:
    """The same for each of four gates."""
    acc, (x, h), w, u = t[:4], t[4:6], t[6:10], t[10:]
    return tuple(two_products(acc[g], x, h, w[g], u[g]) for g in range(4))


TWO_PRODUCTS = {1: two_products, 4: two_products_of_gates}


def meaning(c: Any, X: Any, H: Any, W: Any, U: Any, C: Any = None, b0: Any = 0, b1: Any = 0) -> dict[str, Any]:
    """The meaning of a configuration, of any kernel's, on arrays."""
    x = X @ W.T + H @ U.T + b0 + b1
    if c.gates == 1:
        return {"H_new": reference.activated(c.activation, x)}
    units = C.shape[1]
    i, f, g, o = (x[:, k * units : (k + 1) * units] for k in range(4))
    C = reference.sigmoid(f) * C + reference.sigmoid_tanh(i, g)
    return {"H_new": reference.sigmoid_tanh(o, C), "C_new": C}


class _Products:
    """X @ W.T + H @ U.T of a block, for each gate: the tiles of the second product follow those of the first."""

    def __init__(
        self, c: CellConfig, left: list[Any], right: list[list[Any]], threads: Any, states: Any = None
    ) -> None:
        (BM, BN, BK), G, (rows, columns) = c.tile, c.gates, c.warps
        dtype, self.mma = getattr(gr, c.dtype), gr.atom(MATRIX_ATOMS[c.dtype][0])
        self.c, self.left, self.right, self.threads = c, left, right, threads
        self.warps = threads.tile(32).reshape(0, gr.Layout(c.warps))
        self.at, _ = self.warps.indices()
        warp, self.part = self.warps[self.at], (BM // rows, BN // columns)
        swizzle = gr.swizzle(BK, dtype)
        self.shared = [
            gr.alloc("sX", [BM, BK], dtype, gr.SH, stages=c.stages, swizzle=swizzle),
            gr.alloc("sW", [G * BN, BK], dtype, gr.SH, stages=c.stages, swizzle=swizzle),
        ]
        self.states, self.lines = states, gr.swizzle(BN, dtype)  # the tile of C, and the swizzle of tiles of its form
        if states is not None:
            self.shared_state = gr.alloc("sC", [BM, BN], dtype, gr.SH, swizzle=self.lines)
        self.a = gr.fragment("a", [self.part[0], 16], dtype, self.mma.a, on=warp, stages=2)
        self.b = [gr.fragment(f"b{g}", [self.part[1], 16], dtype, self.mma.b, on=warp, stages=2) for g in range(G)]
        self.acc = [gr.fragment(f"acc{g}", [BM, BN], gr.fp32, self.mma.c, on=self.warps) for g in range(G)]
        self.rd, self.wr = gr.ring("rd", c.stages), gr.ring("wr", c.stages)
        self.steps = [gr.ceil_div(t.shape[1], BK) for t in left]

    def copy(self, part: int, k: Any) -> None:
        """Starts the copies of tile k of the first product or the second; past the last tile there are zeros."""
        _, BN, BK = self.c.tile
        (sX, sW), stage = self.shared, self.wr.index
        left = self.left[part].tile([None, BK])[0, k]
        gr.move(sX[stage], left, on=self.threads, atom=copies(self.c.align[part]))
        for g, right in enumerate(self.right[part]):
            to, tile = sW[stage].tile([BN, None])[g, 0], right.tile([None, BK])[0, k]
            gr.move(to, tile, on=self.threads, atom=copies(self.c.align[2 + part]))

    def started(self) -> None:
        """Closes the group of copies of a tile."""
        gr.commit(CP)
        self.wr.advance()

    def arrive(self) -> None:
        """Waits for the tile that is read next. The tile before it has been read then."""
        gr.wait(CP, pending=self.c.stages - 2)
        gr.barrier()

    def fragments(self, j: int) -> None:
        """Slice j of the tile that is read, to registers."""
        (sX, sW), stage, (m, n), (wm, wn) = self.shared, self.rd.index, self.part, self.at
        gr.move(self.a[j % 2], sX[stage].tile([m, 16])[wm, j], atom="ldmatrix.x4")
        for g, b in enumerate(self.b):
            gate = sW[stage].tile([self.c.tile[1], None])[g, 0]
            gr.move(b[j % 2], gate.tile([n, 16])[wn, j], atom="ldmatrix.x4")

    def begin(self) -> None:
        """Starts the first copies, with four gates also that of C, for which the first wait waits, too."""
        if self.states is not None:
            gr.move(self.shared_state, self.states, on=self.threads, atom=copies(self.c.align[4]))
        for k in range(self.c.stages - 1):
            of_first: Any = k < self.steps[0]
            if of_first is True:
                self.copy(0, k)
            else:
                with gr.if_(of_first):
                    self.copy(0, k)
                with gr.else_():
                    self.copy(1, k - self.steps[0])
            self.started()

    def multiply(self, tiles: Any, part: int, ahead: Any) -> None:
        """Adds the products of all `tiles` while the tiles of `part` from `ahead` on are copied."""
        slices = self.c.tile[2] // 16
        for k in gr.loop(f"k{part}", tiles):
            for j in range(slices):  # a Python loop: unrolled
                if j == slices - 1:
                    self.rd.advance()
                    self.arrive()
                self.fragments((j + 1) % slices)
                for acc, b in zip(self.acc, self.b, strict=True):
                    gr.matmul(acc[self.at], self.a[j % 2], b[j % 2].T, atom=self.mma)
                if j == 0:  # after products that are under way, not before them
                    self.copy(part, k + ahead)
                    self.started()

    def add(self) -> None:
        """The accumulator of each gate: X @ W.T + H @ U.T."""
        for acc in self.acc:
            gr.init(acc, 0)
        self.arrive()
        self.fragments(0)
        ahead = self.c.stages - 1
        before = gr.max(self.steps[0] - ahead, 0)  # the number of tiles during which X is copied; then H is
        operands = [*self.acc, *self.left, *self.right[0], *self.right[1]]
        with gr.spec(self.acc, operands, on=self.threads, means=TWO_PRODUCTS[self.c.gates]):
            self.multiply(before, 0, ahead)
            self.multiply(self.steps[0] + self.steps[1] - before, 1, before + ahead - self.steps[0])

    def update(self, results: list[Any], biases: list[list[Any]]) -> None:
        """The next states from the gates, in tiles of H_new and C_new, which meet in the memory of the products.

        biases: each has one row for each gate.
        """
        (BM, BN, _), (m, n), dtype, width, align = self.c.tile, self.part, self.a.dtype, 16, self.c.align[4]
        owner = self.warps[self.at] if self.c.warps != (1, 1) else self.warps  # a single warp is the whole block
        old, new = (gr.fragment(x, [16, width], dtype, self.mma.c, on=owner) for x in ("old", "new"))
        cell = gr.fragment("cell", [16, width], gr.fp32, self.mma.c, on=owner)
        vectors = [[old.reduced(0, f"bias{i}{g}", dtype) for g in range(4)] for i in range(len(biases))]
        gr.wait(CP, pending=0)
        gr.barrier()
        shared = gr.alloc("sN", [BM, BN], dtype, gr.SH, stages=2, swizzle=self.lines, over=self.shared)
        for column, row in product(range(n // width), range(m // 16)):
            for b, r in ((b, r) for bs, rs in zip(biases, vectors, strict=True) for b, r in zip(bs, rs, strict=True)):
                if row == 0:
                    mine = b.tile([1, n])[0, self.at[1]].tile([1, width])[0, column]
                    gr.move(r, mine, atom=access("ld.global", min(align, 4)))
            before, h, after = (
                t.tile([m, n])[self.at].tile([16, width])[row, column]
                for t in (self.shared_state, shared[0], shared[1])
            )
            gr.move(old, before, atom="ld.shared.b32")
            sums = [acc[self.at].tile([16, width])[row, column] for acc in self.acc]
            i, f, g, o = (sum((r[gate] for r in vectors), x) for gate, x in enumerate(sums))
            cell[:] = sigmoid(f) * old + sigmoid_tanh(i, g)
            new[:] = sigmoid_tanh(o, cell)
            gr.move(h, new, atom="st.shared.b32")
            new[:] = cell
            gr.move(after, new, atom="st.shared.b32")
        gr.barrier()
        for to, tile in zip(results, (shared[0], shared[1]), strict=True):
            copy_lines(to, tile, self.threads, align, (access("ld.shared", align), access("st.global", align)))


def recurrent_cell(c: CellConfig) -> gr.Kernel:
    """A step of any batch M, any input size I and any number N of hidden units: see CellConfig. fp32 accumulation.

    The arguments of the kernel are X (M,I), H (M,J), with four gates C (M,N); then W (gates*N,I), U (gates*N,J), and
    the biases (gates*N,), if any; then the results, H_new (M,N) and with four gates also C_new. J is N in a network;
    the paper's cell may take another.

    Raises VerifyError KERNEL_ARGUMENT.
    """
    name, G, (BM, BN, BK) = "recurrent_cell", c.gates, c.tile
    choice(name, "gates", str(G), ("1", "4"))
    choice(name, "dtype", c.dtype, ("fp16", "bf16"))
    size(name, "tile[0]", BM, multiple_of=16 * c.warps[0])
    size(name, "tile[1]", BN, multiple_of=16 * c.warps[1])
    size(name, "tile[2]", BK, multiple_of=32)
    size(name, "stages", c.stages, least=2)
    size(name, "biases", c.biases + 1, most=3)
    dtype = getattr(gr, c.dtype)
    ax, ah, aw, au, an = (a // 2 for a in c.align)
    M, N = gr.sym("M"), gr.sym("N", multiple_of=an)
    I, J = gr.sym("I", multiple_of=max(ax, aw), min=1), gr.sym("J", multiple_of=max(ah, au))

    means = functools.partial(meaning, c)
    with gr.Kernel("lstm_cell" if G == 4 else "rnn_cell", means, arguments=small_weights) as kernel:
        states = [("X", I, c.align[0]), ("H", J, c.align[1]), *([("C", N, c.align[4])] if G == 4 else [])]
        inputs = [matrix(gr.input, x, (M, n), [], dtype, a) for x, n, a in states]
        weights = [
            matrix(gr.input, x, (G * N, n), [], dtype, a) for x, n, a in (("W", I, c.align[2]), ("U", J, c.align[3]))
        ]
        biases = [gr.input(f"b{i}", gr.Layout(G * N), dtype, align_bytes=c.align[4]) for i in range(c.biases)]
        result = Result((M, N), [], [], dtype, c.align[4], set(), "H_new") if G == 1 else None
        out = [matrix(gr.output, n, (M, N), [], dtype, c.align[4]) for n in ("H_new", "C_new")] if G == 4 else []
        tiles_m, tiles_n = gr.ceil_div(M, BM), gr.ceil_div(N, BN)
        grid = (c.group * tiles_n, gr.ceil_div(tiles_m, c.group)) if c.group > 1 else (tiles_m, tiles_n)
        blocks, threads = gr.blocks(*grid), gr.threads(32 * c.warps[0] * c.warps[1])
        x, y = blocks.indices()
        bm, bn = (y * c.group + x % c.group, x // c.group) if c.group > 1 else (x, y)
        made = [result.matrices["C"]] if result else out
        with gr.spec(made, [*inputs, *weights, *biases], on=(blocks, threads)):
            if c.group > 1:
                gr.exit_if(bm >= tiles_m)
            left = [t.tile([BM, None])[bm, 0] for t in inputs[:2]]
            right = [[t.window(g * N, N).tile([BN, None])[bn, 0] for g in range(G)] for t in weights]  # of each gate
            states = [t.tile([BM, BN])[bm, bn] for t in (*inputs[2:], *out)]
            products = _Products(c, left, right, threads, *states[:1])
            products.begin()
            products.add()
            if result:
                result.vectors = biases
                result = result.tile(0, 0, (bm, bn), [BM, BN])
                gr.wait(CP, pending=0)
                gr.barrier()
                act, p = activation(c.activation), products
                result.store(p.acc[0], lambda x, *b: act(sum(b, x)), p.mma.c, p.warps, threads, over=p.shared)
            else:
                rows = [[b.window(g * N, N).tile([BN])[bn].reshape(0, [1, BN]) for g in range(G)] for b in biases]
                products.update(states[1:], rows)
    return kernel
