"""A step of a recurrent network in one kernel: both products are summed into one accumulator, nothing is concatenated.

The simple cell is the paper's, ``act(x W + h U + b)``. The cell with four gates (LSTM) has four accumulators side by
side: a thread holds the same elements of each, so it owns all gates of its hidden units and updates c and h in
registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as product_of
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels._arguments import choice, size
from graphene.kernels.epilogues import activation, sigmoid, tanh
from graphene.kernels.gemm_operand import COPIES, MATRIX_ATOMS, access, matrix
from graphene.kernels.gemm_result import Result

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CellConfig", "recurrent_cell", "select_cell"]

CP = "cp.async.cg.16"  # which of the copies is named does not matter to commit and wait


@dataclass(frozen=True)
class CellConfig:
    """``gates`` 1: Y = act(X @ W.T + H @ U.T + biases). 4: torch.nn.LSTMCell, rows of W and U in its order i, f, g, o.

    ``tile``: rows, hidden units and k of a block's tiles; ``warps``: (rows, units) it is divided by. ``biases``: how
    many there are. ``align``: bytes that divide the addresses and line starts of X, H, W, U and of what has hidden
    units along its lines.
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


def copies(align: int) -> Any:
    """What copies so many bytes to shared memory: asynchronously, or through registers."""
    return gr.atom(COPIES[align]) if align in COPIES else (access("ld.global", align), access("st.shared", align))


def two_products(acc: Any, x: Any, h: Any, w: Any, u: Any) -> Any:
    """The meaning of the loop over k."""
    return acc + x @ w.T + h @ u.T


def two_products_of_gates(*t: Any) -> Any:
    """The same for each of four gates."""
    acc, (x, h), w, u = t[:4], t[4:6], t[6:10], t[10:]
    return tuple(two_products(acc[g], x, h, w[g], u[g]) for g in range(4))


TWO_PRODUCTS = {1: two_products, 4: two_products_of_gates}


def lstm(i: Any, f: Any, g: Any, o: Any, c: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The next c of a unit; and what its next h is of that."""
    return sigmoid(f) * c + sigmoid(i) * tanh(g), lambda c_new: sigmoid(o) * tanh(c_new)


def recurrent_cell(c: CellConfig) -> gr.Kernel:
    """A step of any batch M, any input size I and any number N of hidden units: see CellConfig. fp32 accumulation.

    The arguments of the kernel: X (M,I), H (M,J), with four gates C (M,N), then W (gates*N,I), U (gates*N,J), the
    biases (gates*N,) as there are, then the results: H_new (M,N), with four gates also C_new. J is N in a network; the
    paper's cell is free to take another.

    Raises VerifyError KERNEL_ARGUMENT.
    """
    name, G = "recurrent_cell", c.gates
    choice(name, "gates", str(G), ("1", "4"))
    choice(name, "dtype", c.dtype, ("fp16", "bf16"))
    (BM, BN, BK), S, (wr_, wc_) = c.tile, c.stages, c.warps
    size(name, "tile[0]", BM, multiple_of=16 * wr_)
    size(name, "tile[1]", BN, multiple_of=16 * wc_)
    size(name, "tile[2]", BK, multiple_of=32)
    size(name, "stages", S, least=2)
    size(name, "biases", c.biases + 1, most=3)
    dtype, mma, ldsm = (
        gr.fp16 if c.dtype == "fp16" else gr.bf16,
        gr.atom(MATRIX_ATOMS[c.dtype][0]),
        gr.atom("ldmatrix.x4"),
    )
    WM, WN, KB = BM // wr_, BN // wc_, BK // 16
    vector = [a // 2 for a in c.align]
    M, N = gr.sym("M"), gr.sym("N", multiple_of=vector[4])
    I, J = gr.sym("I", multiple_of=max(vector[0], vector[2])), gr.sym("J", multiple_of=max(vector[1], vector[3]))

    with gr.Kernel("lstm_cell" if G == 4 else "rnn_cell") as kernel:
        X, H = (
            matrix(gr.input, "X", (M, I), [], dtype, c.align[0]),
            matrix(gr.input, "H", (M, J), [], dtype, c.align[1]),
        )
        C = matrix(gr.input, "C", (M, N), [], dtype, c.align[4]) if G == 4 else None
        W = matrix(gr.input, "W", (G * N, I), [], dtype, c.align[2])
        U = matrix(gr.input, "U", (G * N, J), [], dtype, c.align[3])
        biases = [gr.input(f"b{i}", gr.Layout(G * N), dtype, align_bytes=c.align[4]) for i in range(c.biases)]
        result = Result((M, N), [], [], dtype, c.align[4], set()) if G == 1 else None
        out = [matrix(gr.output, n, (M, N), [], dtype, c.align[4]) for n in ("H_new", "C_new")] if G == 4 else []
        tiles_m, tiles_n = gr.ceil_div(M, BM), gr.ceil_div(N, BN)
        grid = (c.group * tiles_n, gr.ceil_div(tiles_m, c.group)) if c.group > 1 else (tiles_m, tiles_n)
        blocks, threads = gr.blocks(*grid), gr.threads(32 * wr_ * wc_)
        my = threads.tile(32).reshape(0, gr.Layout(c.warps))
        (x, y), ((wm, wn), _) = blocks.indices(), my.indices()
        bm, bn = (y * c.group + x % c.group, x // c.group) if c.group > 1 else (x, y)
        if c.group > 1:
            gr.exit_if(bm >= tiles_m)
        warp = my[wm, wn]
        if result:
            result.tile(0, 0, (bm, bn), [BM, BN])

        gX, gH = (t.tile([BM, None])[bm, 0] for t in (X, H))
        gW, gU = ([t.window(g * N, N).tile([BN, None])[bn, 0] for g in range(G)] for t in (W, U))  # of each gate
        sX = gr.alloc("sX", [BM, BK], dtype, gr.SH, stages=S, swizzle=gr.swizzle(BK, dtype))
        sW = gr.alloc("sW", [G * BN, BK], dtype, gr.SH, stages=S, swizzle=gr.swizzle(BK, dtype))
        ra = gr.fragment("ra", [WM, 16], dtype, mma.a, on=warp, stages=2)
        rb = [gr.fragment(f"rb{g}", [WN, 16], dtype, mma.b, on=warp, stages=2) for g in range(G)]
        acc = [gr.fragment(f"acc{g}", [BM, BN], gr.fp32, mma.c, on=my) for g in range(G)]
        rd, wr = gr.ring("rd", S), gr.ring("wr", S)
        steps = [gr.ceil_div(t.shape[1], BK) for t in (gX, gH)]

        def copy(part: int, k: Any) -> None:
            left, right = (gX, gW) if part == 0 else (gH, gU)
            gr.move(sX[wr.index], left.tile([None, BK])[0, k], on=threads, atom=copies(c.align[part]))
            for g in range(G):
                to = sW[wr.index].tile([BN, None])[g, 0]
                gr.move(to, right[g].tile([None, BK])[0, k], on=threads, atom=copies(c.align[2 + part]))

        def started() -> None:
            gr.commit(CP)
            wr.advance()

        def fragments(j: int) -> None:
            gr.move(ra[j % 2], sX[rd.index].tile([WM, 16])[wm, j], atom=ldsm)
            for g in range(G):
                gr.move(rb[g][j % 2], sW[rd.index].tile([BN, None])[g, 0].tile([WN, 16])[wn, j], atom=ldsm)

        def next_stage() -> None:
            gr.wait(CP, pending=S - 2)
            gr.barrier()

        def multiply(tiles: Any, part: int, ahead: Any) -> None:  # so many tiles; brings those from `ahead` on
            for k in gr.loop(f"k{part}", tiles):
                copy(part, k + ahead)
                started()
                for j in range(KB):
                    if j == KB - 1:
                        rd.advance()
                        next_stage()
                    fragments((j + 1) % KB)
                    for g in range(G):
                        gr.matmul(acc[g][wm, wn], ra[j % 2], rb[g][j % 2].T, atom=mma)

        for k in range(S - 1):
            with gr.if_(k < steps[0]):
                copy(0, k)
            with gr.else_():
                copy(1, k - steps[0])
            started()
        for g in range(G):  # the sums begin with the biases
            gr.init(acc[g], 0)
            for i, b in enumerate(biases):
                r = acc[g].reduced(0, f"bias{i}{g}", dtype)
                tile = b.window(g * N, N).tile([BN])[bn].reshape(0, [1, BN])
                gr.move(r, tile, atom=access("ld.global", min(c.align[4], 4)))
                acc[g][:] = acc[g] + r
        next_stage()
        fragments(0)
        before = gr.max(steps[0] - (S - 1), 0)  # tiles during which more of X is brought; then H is
        with gr.spec(acc, [*acc, gX, gH, *gW, *gU], on=threads, means=TWO_PRODUCTS[G]):
            multiply(before, 0, S - 1)
            multiply(sum(steps) - before, 1, before + S - 1 - steps[0])  # past its last tile: zeros
        if result:
            gr.wait(CP, pending=0)
            gr.barrier()
            result.store(acc[0], activation(c.activation), mma.c, my, threads, over=[sX, sW])
            return kernel
        wide = min(c.align[4], 4)
        width = 16 if WN % 16 == 0 else 8
        old, new = (gr.fragment(n, [16, width], dtype, mma.c, on=warp) for n in ("old", "new"))
        cell = gr.fragment("cell", [16, width], gr.fp32, mma.c, on=warp)
        tiles = [t.tile([BM, BN])[bm, bn].tile([WM, WN])[wm, wn].tile([16, width]) for t in (C, *out)]
        for i, j in product_of(range(WM // 16), range(WN // width)):
            at = [t[i, j] for t in tiles]
            gr.move(old, at[0], atom=access("ld.global", wide))
            gate = [t[wm, wn].tile([16, width])[i, j] for t in acc]
            c_new, h_of = lstm(gate[0], gate[1], gate[2], gate[3], old)
            cell[:] = c_new
            new[:] = h_of(cell)
            gr.move(at[1], new, atom=access("st.global", wide))
            new[:] = cell
            gr.move(at[2], new, atom=access("st.global", wide))
    return kernel


def select_cell(
    M: int,
    N: int,
    K: int,
    *,
    gates: int = 1,
    activation: str | Callable[[Any], Any] | None = "relu",
    biases: int = 1,
    dtype: str = "fp16",
    align: tuple[int, int, int, int, int] = (16, 16, 16, 16, 16),
    sms: int = 132,
    shared_bytes: int = 227 * 1024,
    simulated: bool = False,
) -> CellConfig:
    """The configuration that was measured to be fast for M rows, N hidden units and K columns of X and H together.

    ``sms``, ``shared_bytes``: of the device, the latter of a block. ``simulated``: what the simulator has least to do
    for. The other arguments are CellConfig's.
    """

    def config(tile: tuple[int, int, int], stages: int, warps: tuple[int, int], group: int = 1) -> CellConfig:
        m, n, k = tile
        fits = max(2, min(stages, (shared_bytes - 1024) // ((m + n) * k * 2)))
        units = (m, n // gates, k)
        return CellConfig(gates, activation, biases, dtype, units, fits, warps, group, align)

    if simulated:
        return config((32, 32 if gates == 1 else 64, 32), 2, (2, 1))
    columns = N * gates
    for m, n, warps in ((128, 128, (2, 2)), (64, 128, (2, 2)), (64, 64, (2, 1)), (32, 64, (2, 1))):
        if -(-M // m) * -(-columns // n) >= sms // 2 or (m, n) == (32, 64):
            break
    group = 8 if -(-M // m) >= 16 and -(-columns // n) >= 16 else 1
    return config((m, n, 64), 3 if m == 128 else 4, warps, group)
