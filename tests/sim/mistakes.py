"""Small kernels with a promise, and mistakes planted in them by hand: every one changes a result of some call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import graphene as gr

LOG2_E = math.log2(math.e)


def affine(wrong: str = "", dtype: gr.DType = gr.fp16) -> gr.Kernel:
    """Y = alpha * X + beta * R, by tiles of 64; R counts for nothing where beta is 0."""

    def means(X: Any, R: Any, alpha: float, beta: float) -> Any:
        return alpha * X + beta * R if beta != 0 else alpha * X

    with gr.Kernel("affine", means=means) as kernel:
        n = gr.sym("N")
        x, r, y = gr.input("X", [n], dtype), gr.input("R", [n], dtype), gr.output("Y", [n], dtype)
        alpha, beta = gr.param("alpha", gr.fp32), gr.param("beta", gr.fp32)
        count = n // 64 if wrong == "a floor for a ceiling" else gr.ceil_div(n, 64)
        blocks, threads = gr.blocks(count), gr.threads(64)
        (b,), (t,) = blocks.indices(), threads.indices()
        v, u, s = (gr.alloc(k, [], dtype, gr.RF) for k in "vus")
        acc = gr.alloc("acc", [], gr.fp32, gr.RF)
        gr.move(v, x.tile([64])[b][t])
        gr.move(u, r.tile([64])[b][t])
        a, c, vv = alpha, beta, v
        if wrong == "a scalar for another":
            a, c = beta, alpha
        elif wrong == "a scalar forgotten":
            a = 1
        elif wrong == "a sign":
            c = beta * -1.0
        if wrong == "an operation rounds":
            s[:] = v * a
            vv, a = s, 1
        if wrong == "through a narrower type":
            narrow = gr.alloc("narrow", [], gr.bf16, gr.RF)
            narrow[:] = gr.cast(v, gr.bf16)
            vv = gr.cast(narrow, gr.fp32)
        if wrong == "zero times what is there":
            acc[:] = vv * a + u * c
        else:
            acc[:] = gr.where(beta == 0, vv * a, vv * a + u * c)
        if wrong == "six units in the last place":
            acc[:] = acc * 1.003
        elif wrong == "half a unit more":
            acc[:] = acc * (1 + 2.0**-12)
        gr.move(s, acc) if dtype == gr.fp32 else s.__setitem__(slice(None), gr.cast(acc, dtype))
        gr.move(y.tile([64])[b][t], s)
    return kernel


def softmax(X: Any) -> Any:
    p = np.exp(X - X.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def rows(wrong: str = "") -> gr.Kernel:
    """Softmax of rows, a row to a thread."""
    with gr.Kernel("rows", means=softmax) as kernel:
        m, n = gr.sym("M"), gr.sym("N", min=1)
        line = gr.sym("line")
        x, y = gr.input("X", gr.Layout((m, n), (line, 1)), gr.fp16), gr.output("Y", [m, n], gr.fp32)
        blocks, threads = gr.blocks(gr.ceil_div(m, 32)), gr.threads(32)
        (b,), (t,) = blocks.indices(), threads.indices()
        most, total = (gr.alloc(k, [], gr.fp32, gr.RF) for k in ("most", "total"))
        v, out = gr.alloc("v", [], gr.fp16, gr.RF), gr.alloc("out", [], gr.fp32, gr.RF)
        gr.init(most, 0 if wrong == "a maximum that begins with zero" else -3.0e38)
        gr.init(total, 1 if wrong == "a sum that begins with one" else 0)
        xs, ys = x.tile([32, None])[b, 0], y.tile([32, None])[b, 0]
        factor = 1.0 if wrong == "log2 e forgotten" else LOG2_E
        end = n - 1 if wrong == "the last column forgotten" else n
        if wrong == "the first 32 columns":
            end = gr.min(n, 32)

        def power() -> Any:
            if wrong == "not shifted":
                return gr.exp2(v * factor)
            if wrong == "large products subtracted":
                return gr.exp2(v * factor - most * factor)
            return gr.exp2((v - most) * factor)

        with gr.loop("i", end) as i:
            gr.move(v, xs[t, i])
            most[:] = gr.max(most, v)
        with gr.loop("j", n - 1 if wrong == "a bound by one" else n) as j:
            gr.move(v, xs[t, j])
            total[:] = total + power()
        with gr.loop("k", n) as k:
            gr.move(v, xs[t, k])
            out[:] = power() if wrong == "not divided" else power() / total
            gr.move(ys[t, k], out)
    return kernel


def product(wrong: str = "", sums: gr.DType = gr.fp32, stated: gr.DType | None = None) -> gr.Kernel:
    """C = relu(A @ B.T + bias) of a batch, an element to a thread, by steps of 8 in k."""

    def means(A: Any, B: Any, bias: Any) -> Any:
        return gr.max(A @ B.swapaxes(-1, -2) + bias, 0)

    with gr.Kernel("product", means=means, sums=stated) as kernel:
        z, m, n, k = gr.sym("Z M N K")
        a, b = gr.input("A", [z, m, k], gr.fp16), gr.input("B", [z, n, k], gr.fp16)
        bias, c = gr.input("bias", [n], gr.fp16), gr.output("C", [z, m, n], gr.fp16)
        blocks, threads = gr.blocks(gr.ceil_div(m, 8), gr.ceil_div(n, 8), z), gr.threads(8, 8)
        (bm, bn, bz), (tm, tn) = blocks.indices(), threads.indices()
        acc, v = gr.alloc("acc", [], sums, gr.RF), gr.alloc("v", [], gr.fp16, gr.RF)
        x, y = gr.alloc("x", [], gr.fp16, gr.RF), gr.alloc("y", [], gr.fp16, gr.RF)
        gr.init(acc, 0)
        of_a = a[bz, :, :].tile([8, None])[bm, 0][tm, :]
        of_b = b[0 if wrong == "the first of a batch" else bz, :, :].tile([8, None])[bn, 0][tn, :]
        steps = k // 8 if wrong == "whole steps alone" else gr.ceil_div(k, 8)
        first = 1 if wrong == "a loop that starts late" else 0
        with gr.loop("s", steps, start=first) as s, gr.loop("i", 7 if wrong == "seven of eight" else 8) as i:
            gr.move(x, of_a.tile([8])[s][i])
            gr.move(y, of_b.tile([8])[0 if wrong == "the first step again" else s][i])
            acc[:] = acc + gr.cast(x, sums) * gr.cast(x if wrong == "an operand for another" else y, sums)
        gr.move(v, bias.tile([8])[bm if wrong == "an index for another" else bn][tn])
        value: Any = gr.max(acc + v, 0)
        if wrong == "relu before the bias":
            value = gr.max(acc, 0) + v
        elif wrong == "minimum for maximum":
            value = gr.min(acc + v, 0)
        elif wrong == "a bias forgotten":
            value = gr.max(acc, 0)
        elif wrong == "a bias twice":
            value = gr.max(acc + v + v, 0)
        v[:] = gr.cast(value, gr.fp16)
        to = c[bz, :, :].tile([8, 8])[bm, bn]
        gr.move(to[tn, tm] if wrong == "transposed" else to[tm, tn], v)
    return kernel


def window(wrong: str = "") -> gr.Kernel:
    """Y[i, j] = X[i, j] where j <= i + N - M + right, else 0."""

    def means(X: Any, right: int) -> Any:
        m, n = X.shape
        return np.where(np.arange(n) <= np.arange(m)[:, None] + n - m + right, X, 0)

    with gr.Kernel("window", means=means) as kernel:
        m, n = gr.sym("M N")
        x, y = gr.input("X", [m, n], gr.fp32), gr.output("Y", [m, n], gr.fp32)
        right = gr.param("right", gr.i32)
        blocks, threads = gr.blocks(gr.ceil_div(m, 16), gr.ceil_div(n, 32)), gr.threads(32)
        (bm, bn), (t,) = blocks.indices(), threads.indices()
        v = gr.alloc("v", [], gr.fp32, gr.RF)
        shift = 0 if wrong == "not from the end" else n - m
        with gr.loop("i", 16) as i:
            row, column = bm * 16 + i, bn * 32 + t
            gr.move(v, x.tile([16, 32])[bm, bn][i, t])
            last = row + shift + right
            seen = column < last if wrong == "less for at most" else column <= last
            if wrong == "an edge by a tile":  # a tile that is seen whole is not looked at: its last row sees most
                seen = (bn * 32 + 31 <= bm * 16 + 15 + shift + right) | (column <= last)
            v[:] = gr.where(seen, v, 0)
            gr.move(y.tile([16, 32])[bm, bn][i, t], v)
    return kernel


def parts(wrong: str = "", count: int = 2) -> gr.Kernel:
    """W[s] holds part s of the sums of rows of X; the columns are divided into ``count`` runs of tiles of 16."""
    with gr.Kernel("parts", means=lambda X: {"W": X.sum(1)}, read=lambda W: {"W": W.sum(0)}) as kernel:
        m, n = gr.sym("M N")
        x, w = gr.input("X", [m, n], gr.fp32), gr.output("W", [count, m], gr.fp32)
        blocks, threads = gr.blocks(gr.ceil_div(m, 32), count), gr.threads(32)
        (b, s), (t,) = blocks.indices(), threads.indices()
        v, acc = (gr.alloc(k, [], gr.fp32, gr.RF) for k in ("v", "acc"))
        gr.init(acc, 0)
        tiles = gr.ceil_div(n, 16)
        each = tiles // count if wrong == "a floor of parts" else gr.ceil_div(tiles, count)
        row = x.tile([32, None])[b, 0][t, :]
        with gr.loop("k", gr.min(each, tiles - s * each)) as k, gr.loop("i", 16) as i:
            gr.move(v, row.tile([16])[s * each + k][i])
            acc[:] = acc + v
        if wrong == "a function of a part":
            acc[:] = gr.max(acc, 0)
        gr.move(w.tile([count, 32])[0, b][s, t], acc)
    return kernel


def gather(wrong: str = "") -> gr.Kernel:
    """Y[i] = X[index[i]]."""
    with gr.Kernel("gather", means=lambda X, index: X[index]) as kernel:
        x, y = gr.input("X", [40], gr.fp32), gr.output("Y", [32], gr.fp32)
        at = gr.input("index", [32], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r, v = gr.alloc("r", [], gr.i32, gr.RF), gr.alloc("v", [], gr.fp32, gr.RF)
        gr.move(r, at[t])
        i = gr.index(r, min=0, max=39)
        gr.move(v, x[gr.min(i + 1, 39) if wrong == "the next one" else i])
        gr.move(y[t], v)
    return kernel


def quantised(wrong: str = "") -> gr.Kernel:
    """Y = X * scale in 8 bits, rounded toward zero, from -128 to 127."""

    def means(X: Any, scale: float) -> Any:
        return gr.cast(np.clip(X * scale, -128, 127), gr.i8)

    arguments = gr.Arguments(values={"scale": (1.0, 4.0, 0.5)}, kinds=("normal", "large", "whole"))
    with gr.Kernel("quantised", means=means, arguments=arguments) as kernel:
        n = gr.sym("N")
        x, y, scale = gr.input("X", [n], gr.fp32), gr.output("Y", [n], gr.i8), gr.param("scale", gr.fp32)
        blocks, threads = gr.blocks(gr.ceil_div(n, 32)), gr.threads(32)
        (b,), (t,) = blocks.indices(), threads.indices()
        v, i, o = gr.alloc("v", [], gr.fp32, gr.RF), gr.alloc("i", [], gr.i32, gr.RF), gr.alloc("o", [], gr.i8, gr.RF)
        gr.move(v, x.tile([32])[b][t])
        value: Any = v * scale
        if wrong != "not saturated":
            value = gr.max(gr.min(value, 127), -127 if wrong == "a constant by one" else -128)
        i[:] = gr.cast(gr.floor(value) if wrong == "toward minus infinity" else value, gr.i32)
        o[:] = gr.cast(i, gr.i8)
        gr.move(y.tile([32])[b][t], o)
    return kernel


MISTAKES = {
    affine: ("a floor for a ceiling", "a scalar for another", "a scalar forgotten", "a sign", "an operation rounds",
             "through a narrower type", "zero times what is there", "six units in the last place", "half a unit more"),
    rows: ("a maximum that begins with zero", "a sum that begins with one", "log2 e forgotten", "not shifted",
           "the last column forgotten", "the first 32 columns", "large products subtracted", "a bound by one",
           "not divided"),
    product: ("the first of a batch", "whole steps alone", "a loop that starts late", "the first step again",
              "seven of eight", "an operand for another", "an index for another", "relu before the bias",
              "minimum for maximum", "a bias forgotten", "a bias twice", "transposed"),
    window: ("not from the end", "less for at most", "an edge by a tile"),
    parts: ("a floor of parts", "a function of a part"),
    gather: ("the next one",),
    quantised: ("not saturated", "a constant by one", "toward minus infinity"),
}  # fmt: skip
