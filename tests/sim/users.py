"""Correct kernels as users write them: each says what it computes, none uses the library's helpers.

Integers, eight-bit floats, odd shapes, several outputs, atomics, scans, windows, gathers: no alarm may be raised. Run
as a program, the file checks all, with three seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import graphene as gr

KERNELS: dict[str, Callable[[], gr.Kernel]] = {}


def user(function: Callable[[], gr.Kernel]) -> Callable[[], gr.Kernel]:
    KERNELS[function.__name__.strip("_").replace("_", " ")] = function
    return function


def reg(name: str, dtype: gr.DType = gr.fp32, *shape: int) -> gr.Tensor:
    return gr.alloc(name, list(shape), dtype, gr.RF)


def pointwise(name: str, f: Callable[..., Any], types: tuple[gr.DType, ...], out: gr.DType, **how: Any) -> gr.Kernel:
    """Y = f(X0, X1, ...), with f of registers and of arrays; `means` where arrays need another one."""
    means = how.pop("means", None) or (lambda **xs: f(*(xs[f"X{i}"] for i in range(len(types)))))
    with gr.Kernel(name, means=means, **how) as kernel:
        n = gr.sym("N")
        xs = [gr.input(f"X{i}", [n], t) for i, t in enumerate(types)]
        y = gr.output("Y", [n], out)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 96)).indices(), gr.threads(96).indices()
        held = [reg(f"x{i}", d) for i, d in enumerate(types)]
        for r, x in zip(held, xs, strict=True):
            gr.move(r, x.tile([96])[b][t])
        v = reg("v", out)
        v[:] = f(*held)
        gr.move(y.tile([96])[b][t], v)
    return kernel


@user
def axpy() -> gr.Kernel:
    with gr.Kernel("axpy", means=lambda X, Y, a: a * X + Y) as kernel:
        n = gr.sym("N")
        x, y, a = gr.input("X", [n], gr.fp32), gr.inout("Y", [n], gr.fp32), gr.param("a", gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 64)).indices(), gr.threads(64).indices()
        r, s = reg("r"), reg("s")
        gr.move(r, x.tile([64])[b][t])
        gr.move(s, y.tile([64])[b][t])
        s[:] = gr.fma(r, a, s)
        gr.move(y.tile([64])[b][t], s)
    return kernel


@user
def clamped_integers() -> gr.Kernel:
    return pointwise("clamped", lambda x, y: gr.min(gr.max(x - y, -3), 4), (gr.i32, gr.i32), gr.i32)


@user
def integers_that_wrap() -> gr.Kernel:
    def means(X0: Any, X1: Any) -> Any:
        return ((X0 * 2654435761) + X1) % 2**32

    return pointwise("hashed", lambda x, y: x * 2654435761 + y, (gr.u32, gr.u32), gr.u32, means=means)


@user
def a_polynomial() -> gr.Kernel:
    def f(x: Any) -> Any:
        return (((0.25 * x - 1.5) * x + 0.125) * x + 2.0) * x - 3.0

    return pointwise("polynomial", f, (gr.fp32,), gr.fp32)


@user
def softplus() -> gr.Kernel:
    def f(x: Any) -> Any:
        return gr.where(x > 15, x, gr.log(1 + gr.exp(gr.min(x, 15.0))))

    def means(X0: Any) -> Any:
        small = np.fmin(X0, 15.0)
        return np.where(X0 > 15, X0, np.log(1 + np.exp(small)))

    return pointwise("softplus", f, (gr.fp32,), gr.fp32, means=means)


@user
def gelu_by_erf() -> gr.Kernel:
    return pointwise("gelu", lambda x: 0.5 * x * (1 + gr.erf(x * 0.7071067811865476)), (gr.fp16,), gr.fp16)


@user
def doubles() -> gr.Kernel:
    return pointwise("doubles", lambda x, y: x * x + y / (1 + x * x), (gr.fp64, gr.fp64), gr.fp64)


@user
def three_of_bf16() -> gr.Kernel:
    return pointwise("three", lambda x, y, z: x + y - z, (gr.bf16, gr.bf16, gr.bf16), gr.bf16)


@user
def chosen_by_bytes() -> gr.Kernel:
    return pointwise("chosen", lambda m, x: gr.where(m != 0, x, 0.0), (gr.u8, gr.fp16), gr.fp16,
                     means=lambda X0, X1: np.where(X0 != 0, X1, 0.0))  # fmt: skip


@user
def from_eight_bits() -> gr.Kernel:
    return pointwise("from8", lambda x: x * 0.375, (gr.fp8e4m3,), gr.fp16)


@user
def to_eight_bits() -> gr.Kernel:
    return pointwise("to8", lambda x: x * 0.375, (gr.fp16,), gr.fp8e5m2)


@user
def lines_of_any_stride() -> gr.Kernel:
    """Y = relu(X), of odd shapes and wide lines."""
    with gr.Kernel("lines", means=lambda X: np.where(X < 0, 0, X)) as kernel:
        m, n, ld = gr.sym("M N ld")
        x, y = gr.input("X", gr.Layout((m, n), (ld, 1)), gr.fp16), gr.output("Y", [m, n], gr.fp16)
        blocks, threads = gr.blocks(gr.ceil_div(n, 16), gr.ceil_div(m, 4)), gr.threads(16, 4)
        (bn, bm), (tn, tm) = blocks.indices(), threads.indices()
        r = reg("r", gr.fp16)
        gr.move(r, x.tile([4, 16])[bm, bn][tm, tn])
        r[:] = gr.where(r < 0, 0, r)
        gr.move(y.tile([4, 16])[bm, bn][tm, tn], r)
    return kernel


@user
def an_outer_product() -> gr.Kernel:
    with gr.Kernel("outer", means=lambda A, B: A[:, None] * B[None]) as kernel:
        m, n = gr.sym("M N")
        a, b, c = gr.input("A", [m], gr.fp16), gr.input("B", [n], gr.fp16), gr.output("C", [m, n], gr.fp32)
        (bm, bn), (t,) = gr.blocks(m, gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        x, y, z = reg("x", gr.fp16), reg("y", gr.fp16), reg("z")
        gr.move(x, a[bm])
        gr.move(y, b.tile([32])[bn][t])
        z[:] = x * y
        gr.move(c[bm, :].tile([32])[bn][t], z)
    return kernel


@user
def a_convolution() -> gr.Kernel:
    """Y[i] = sum of w[j] X[i + j - 1], zeros at the ends."""

    def means(X: Any, w: Any) -> Any:
        zero = np.zeros_like(X[:1])
        padded = np.concatenate([zero, X, zero])
        return w[0] * padded[:-2] + w[1] * padded[1:-1] + w[2] * padded[2:]

    finite = gr.Arguments(kinds=("normal", "positive", "rising", "whole", "large", "spike"))
    with gr.Kernel("convolution", means=means, arguments=finite) as kernel:
        n = gr.sym("N", min=1)
        x, w, y = gr.input("X", [n], gr.fp32), gr.input("w", [3], gr.fp32), gr.output("Y", [n], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        i, acc, v, u = b * 32 + t, reg("acc"), reg("v"), reg("u")
        gr.init(acc, 0)
        with gr.if_(i < n):
            for j in range(3):
                with gr.if_((i + j >= 1) & (i + j <= n)):
                    gr.move(v, x[i + j - 1])
                    gr.move(u, w[j])
                    acc[:] = gr.fma(u, v, acc)
            gr.move(y[i], acc)
    return kernel


@user
def pooling_by_two() -> gr.Kernel:
    """The larger of two neighbours; of an odd last one itself."""

    def means(X: Any) -> Any:
        right = np.concatenate([X[:, 1:], X[:, -1:]], axis=1)
        return gr.max(X[:, ::2], right[:, ::2])

    with gr.Kernel("pooling", means=means) as kernel:
        m, n = gr.sym("M"), gr.sym("N", min=1)
        x, y = gr.input("X", [m, n], gr.fp16), gr.output("Y", [m, gr.ceil_div(n, 2)], gr.fp16)
        (b, row), (t,) = gr.blocks(gr.ceil_div(n, 64), m).indices(), gr.threads(32).indices()
        v, u, i = reg("v", gr.fp16), reg("u", gr.fp16), b * 32 + t
        with gr.if_(i < gr.ceil_div(n, 2)):
            gr.move(v, x[row, 2 * i])
            with gr.if_(2 * i + 1 < n):
                gr.move(u, x[row, 2 * i + 1])
                v[:] = gr.max(v, u)
            gr.move(y[row, i], v)
    return kernel


@user
def batched_transposition() -> gr.Kernel:
    with gr.Kernel("turned", means=lambda X: X.transpose(0, 2, 1)) as kernel:
        z, m, n = gr.sym("Z M N")
        x, y = gr.input("X", [z, m, n], gr.fp32), gr.output("Y", [z, n, m], gr.fp32)
        s = gr.alloc("s", gr.Layout((16, 16), (17, 1)), gr.fp32, gr.SH)
        blocks = gr.blocks(gr.ceil_div(n, 16), gr.ceil_div(m, 16), z)
        (bn, bm, bz), (tx, ty) = blocks.indices(), gr.threads(16, 16).indices()
        r = reg("r")
        gr.move(r, x[bz, :, :].tile([16, 16])[bm, bn][ty, tx])
        gr.move(s[ty, tx], r)
        gr.barrier()
        gr.move(r, s[tx, ty])
        gr.move(y[bz, :, :].tile([16, 16])[bn, bm][ty, tx], r)
    return kernel


def of_rows(name: str, means: Any, outs: int, types: tuple[gr.DType, ...] = (gr.fp32,), **how: Any) -> Any:
    """A decorator: a warp a row; the function gets loops over a row's elements and stores."""

    def made(body: Callable[..., Any]) -> gr.Kernel:
        with gr.Kernel(name, means=means, **how) as kernel:
            m, n = gr.sym("M"), gr.sym("N", min=1)
            xs = [gr.input(f"X{i}", [m, n], t) for i, t in enumerate(types)]
            ys = [gr.output(f"Y{i}", [m], gr.fp32) for i in range(outs)]
            (row,), warp = gr.blocks(m).indices(), gr.threads(32)
            (t,) = warp.indices()
            held = [reg(f"x{i}", d) for i, d in enumerate(types)]

            def each(label: str, do: Callable[..., None]) -> None:
                with gr.loop(label, gr.ceil_div(n, 32)) as k, gr.if_(k * 32 + t < n):
                    for r, x in zip(held, xs, strict=True):
                        gr.move(r, x[row, k * 32 + t])
                    do(*held)

            results = body(each, n, lambda op, r: gr.allreduce(op, r, on=warp))
            with gr.if_(t == 0):
                for y, r in zip(ys, results, strict=True):
                    gr.move(y[row], r)
        return kernel

    return made


@user
def a_sum_of_rows() -> gr.Kernel:
    @of_rows("sum", lambda X0: X0.sum(1), 1)
    def kernel(each: Any, n: Any, meet: Any) -> Any:
        acc = reg("acc")
        gr.init(acc, 0)

        def add(x: Any) -> None:
            acc[:] = acc + x

        each("i", add)
        meet("add", acc)
        return [acc]

    return kernel


@user
def mean_and_variance() -> gr.Kernel:
    def means(X0: Any) -> Any:
        d = X0 - X0.mean(1, keepdims=True)
        return {"Y0": X0.mean(1), "Y1": (d * d).mean(1)}

    @of_rows("moments", means, 2)
    def kernel(each: Any, n: Any, meet: Any) -> Any:
        count, mean, square = reg("count"), reg("mean"), reg("square")
        for r in (count, mean, square):
            gr.init(r, 0)

        def add(x: Any) -> None:
            mean[:] = mean + x
            count[:] = count + 1

        def further(x: Any) -> None:
            square[:] = gr.fma(x - mean, x - mean, square)

        each("i", add)
        meet("add", mean)
        meet("add", count)
        mean[:] = mean / count
        each("j", further)
        meet("add", square)
        square[:] = square / count
        return [mean, square]

    return kernel


@user
def log_of_a_sum_of_exponentials() -> gr.Kernel:
    def means(X0: Any) -> Any:
        top = X0.max(1, keepdims=True)
        return (np.log(np.exp(X0 - top).sum(1, keepdims=True)) + top)[:, 0]

    finite = gr.Arguments(kinds=("normal", "rising", "falling", "constant", "large", "cold", "peak", "pit"))

    @of_rows("lse", means, 1, arguments=finite)
    def kernel(each: Any, n: Any, meet: Any) -> Any:
        top, total = reg("top"), reg("total")
        gr.init(top, -gr.inf)
        gr.init(total, 0)

        def most(x: Any) -> None:
            top[:] = gr.max(top, x)

        def add(x: Any) -> None:
            total[:] = total + gr.exp(x - top)

        each("i", most)
        meet("max", top)
        each("j", add)
        meet("add", total)
        total[:] = gr.log(total) + top
        return [total]

    return kernel


@user
def cosines_of_rows() -> gr.Kernel:
    def means(X0: Any, X1: Any) -> Any:
        return (X0 * X1).sum(1) / np.sqrt((X0 * X0).sum(1) * (X1 * X1).sum(1) + 1e-6)

    finite = gr.Arguments(kinds=("normal", "positive", "rising", "constant", "whole", "large", "spike"))

    @of_rows("cosine", means, 1, (gr.fp16, gr.fp16), arguments=finite)
    def kernel(each: Any, n: Any, meet: Any) -> Any:
        xy, xx, yy = reg("xy"), reg("xx"), reg("yy")
        for r in (xy, xx, yy):
            gr.init(r, 0)

        def add(x: Any, y: Any) -> None:
            xy[:] = gr.fma(x, y, xy)
            xx[:] = gr.fma(x, x, xx)
            yy[:] = gr.fma(y, y, yy)

        each("i", add)
        for r in (xy, xx, yy):
            meet("add", r)
        xy[:] = xy * gr.rsqrt(gr.fma(xx, yy, 1e-6))
        return [xy]

    return kernel


@user
def distances_of_rows() -> gr.Kernel:
    @of_rows("distance", lambda X0, X1: np.abs(X0 - X1).sum(1), 1, (gr.bf16, gr.fp32))
    def kernel(each: Any, n: Any, meet: Any) -> Any:
        acc = reg("acc")
        gr.init(acc, 0)

        def add(x: Any, y: Any) -> None:
            acc[:] = acc + gr.abs(x - y)

        each("i", add)
        meet("add", acc)
        return [acc]

    return kernel


@user
def the_largest_and_its_place() -> gr.Kernel:
    """The largest element of a row and the first place where it stands, a row to a thread."""
    finite = gr.Arguments(kinds=("normal", "rising", "falling", "constant", "whole", "spike", "pit"))

    def means(X: Any) -> Any:
        return {"V": X.max(1), "I": X.argmax(1)}

    with gr.Kernel("largest", means=means, arguments=finite) as kernel:
        m, n = gr.sym("M"), gr.sym("N", min=1)
        x, v, i = gr.input("X", [m, n], gr.fp16), gr.output("V", [m], gr.fp16), gr.output("I", [m], gr.i32)
        (b,), (t,) = gr.blocks(gr.ceil_div(m, 32)).indices(), gr.threads(32).indices()
        best, new, at = reg("best", gr.fp16), reg("new", gr.fp16), reg("at", gr.i32)
        count = reg("count", gr.i32)
        with gr.if_(b * 32 + t < m):
            gr.move(best, x[b * 32 + t, 0])
            gr.init(at, 0)
            gr.init(count, 0)
            with gr.loop("k", n, start=1) as k:
                gr.move(new, x[b * 32 + t, k])
                count[:] = count + 1
                at[:] = gr.where(new > best, count, at)
                best[:] = gr.max(best, new)
            gr.move(v[b * 32 + t], best)
            gr.move(i[b * 32 + t], at)
    return kernel


@user
def the_two_largest() -> gr.Kernel:
    def means(X: Any) -> Any:
        return np.sort(X, axis=1)[:, ::-1][:, :2]

    finite = gr.Arguments(kinds=("normal", "rising", "falling", "constant", "whole", "spike"))
    with gr.Kernel("two", means=means, arguments=finite) as kernel:
        m, n = gr.sym("M"), gr.sym("N", min=2)
        x, y = gr.input("X", [m, n], gr.fp32), gr.output("Y", [m, 2], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(m, 32)).indices(), gr.threads(32).indices()
        first, second, new = reg("first"), reg("second"), reg("new")
        gr.init(first, -gr.inf)
        gr.init(second, -gr.inf)
        with gr.if_(b * 32 + t < m):
            with gr.loop("k", n) as k:
                gr.move(new, x[b * 32 + t, k])
                second[:] = gr.max(second, gr.min(first, new))
                first[:] = gr.max(first, new)
            gr.move(y[b * 32 + t, 0], first)
            gr.move(y[b * 32 + t, 1], second)
    return kernel


@user
def running_sums() -> gr.Kernel:
    """A warp scans a row of 32 by exchanges."""
    finite = gr.Arguments(kinds=("normal", "positive", "whole", "tiny", "large"))
    with gr.Kernel("scan", means=lambda X: X.cumsum(1), arguments=finite) as kernel:
        m = gr.sym("M")
        x, y = gr.input("X", [m, 32], gr.fp32), gr.output("Y", [m, 32], gr.fp32)
        (b,), warp = gr.blocks(m).indices(), gr.threads(32)
        (t,) = warp.indices()
        r, other = reg("r"), reg("other")
        gr.move(r, x[b, t])
        for step in (1, 2, 4, 8, 16):
            gr.shfl(other, r, "up", step, on=warp)
            with gr.if_(t >= step):
                r[:] = r + other
        gr.move(y[b, t], r)
    return kernel


@user
def a_histogram() -> gr.Kernel:
    """By shared memory first: a block's counts, then the device's."""

    def means(X: Any, counts: Any) -> Any:
        return counts + np.bincount(X.ravel(), minlength=8)

    with gr.Kernel("histogram", means=means) as kernel:
        n = gr.sym("N")
        x, counts = gr.input("X", [n], gr.i32), gr.inout("counts", [8], gr.i32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 64)).indices(), gr.threads(64).indices()
        s, one, v = gr.alloc("s", [8], gr.i32, gr.SH), reg("one", gr.i32), reg("v", gr.i32)
        gr.init(one, 0)
        with gr.if_(t < 8):
            gr.move(s[t], one)
        gr.barrier()
        gr.init(one, 1)
        with gr.if_(b * 64 + t < n):
            gr.move(s[gr.index(x[b * 64 + t], min=0, max=7)], one, combine="add", atomic="relaxed.cta")
        gr.barrier()
        with gr.if_(t < 8):
            gr.move(v, s[t])
            gr.move(counts[t], v, combine="add", atomic="relaxed.gpu")
    return kernel


@user
def a_sum_by_atomics() -> gr.Kernel:
    """In any order: the bound covers it."""
    with gr.Kernel("total", means=lambda X, total: total + (X * X).sum()) as kernel:
        n = gr.sym("N")
        x, total = gr.input("X", [n], gr.fp16), gr.inout("total", [1], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 64)).indices(), gr.threads(64).indices()
        r, v = reg("r", gr.fp16), reg("v")
        with gr.if_(b * 64 + t < n):
            gr.move(r, x[b * 64 + t])
            v[:] = r * r
            gr.move(total[0], v, combine="add", atomic="relaxed.gpu")
    return kernel


@user
def rows_of_a_table() -> gr.Kernel:
    with gr.Kernel("embedding", means=lambda table, index: table[index] * 8.0) as kernel:
        n = gr.sym("N")
        table, index = gr.input("table", [20, 48], gr.bf16), gr.input("index", [n], gr.i32)
        y = gr.output("Y", [n, 48], gr.bf16)
        (b,), (t,) = gr.blocks(n).indices(), gr.threads(48).indices()
        r = reg("r", gr.bf16)
        gr.move(r, table[gr.index(index[b], min=0, max=19), t])
        r[:] = r * 8.0
        gr.move(y[b, t], r)
    return kernel


@user
def a_matrix_by_a_vector() -> gr.Kernel:
    with gr.Kernel("matvec", means=lambda A, x: A @ x) as kernel:
        m, k = gr.sym("M"), gr.sym("K", min=1)
        a, x, y = gr.input("A", [m, k], gr.fp16), gr.input("x", [k], gr.fp16), gr.output("y", [m], gr.fp16)
        (b,), warps = gr.blocks(gr.ceil_div(m, 4)).indices(), gr.threads(128)
        w, lane = warps.tile(32).indices()
        u, v, acc, out = reg("u", gr.fp16), reg("v", gr.fp16), reg("acc"), reg("out", gr.fp16)
        row = b * 4 + w
        gr.init(acc, 0)
        with gr.loop("i", gr.ceil_div(k, 32)) as i, gr.if_((i * 32 + lane < k) & (row < m)):
            gr.move(u, a[row, i * 32 + lane])
            gr.move(v, x[i * 32 + lane])
            acc[:] = gr.fma(u, v, acc)
        gr.allreduce("add", acc, on=warps.tile(32)[w])
        with gr.if_((lane == 0) & (row < m)):
            out[:] = acc
            gr.move(y[row], out)
    return kernel


@user
def small_matrices() -> gr.Kernel:
    """C = A @ B of 4 x 4, one to a thread."""
    with gr.Kernel("small", means=lambda A, B: A @ B) as kernel:
        n = gr.sym("N")
        a, b, c = (f(x, [n, 4, 4], gr.fp32) for f, x in ((gr.input, "A"), (gr.input, "B"), (gr.output, "C")))
        (block,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        x, y, acc = reg("x"), reg("y"), reg("acc")
        at = block * 32 + t
        with gr.if_(at < n):
            for i in range(4):
                for j in range(4):
                    gr.init(acc, 0)
                    for k in range(4):
                        gr.move(x, a[at, i, k])
                        gr.move(y, b[at, k, j])
                        acc[:] = gr.fma(x, y, acc)
                    gr.move(c[at, i, j], acc)
    return kernel


@user
def a_product_of_bytes() -> gr.Kernel:
    with gr.Kernel("bytes", means=lambda A, B: (A * B).sum(1)) as kernel:
        m, n = gr.sym("M N")
        a, b, y = gr.input("A", [m, n], gr.i8), gr.input("B", [m, n], gr.i8), gr.output("Y", [m], gr.i32)
        (block,), (t,) = gr.blocks(gr.ceil_div(m, 32)).indices(), gr.threads(32).indices()
        u, v, acc = reg("u", gr.i8), reg("v", gr.i8), reg("acc", gr.i32)
        gr.init(acc, 0)
        with gr.if_(block * 32 + t < m):
            with gr.loop("k", n) as k:
                gr.move(u, a[block * 32 + t, k])
                gr.move(v, b[block * 32 + t, k])
                acc[:] = acc + gr.cast(u, gr.i32) * gr.cast(v, gr.i32)
            gr.move(y[block * 32 + t], acc)
    return kernel


@user
def rotated_pairs() -> gr.Kernel:
    """Rotary embedding of neighbouring elements."""

    def means(X: Any, c: Any, s: Any) -> Any:
        even, odd = X[:, ::2], X[:, 1::2]
        return np.stack([even * c - odd * s, even * s + odd * c], axis=-1).reshape(X.shape)

    with gr.Kernel("rotary", means=means) as kernel:
        m = gr.sym("M")
        x, y = gr.input("X", [m, 64], gr.fp16), gr.output("Y", [m, 64], gr.fp16)
        c, s = gr.input("c", [m, 32], gr.fp32), gr.input("s", [m, 32], gr.fp32)
        (b,), (t,) = gr.blocks(m).indices(), gr.threads(32).indices()
        p, q, u, v, out = reg("p", gr.fp16), reg("q", gr.fp16), reg("u"), reg("v"), reg("out", gr.fp16)
        gr.move(p, x[b, 2 * t])
        gr.move(q, x[b, 2 * t + 1])
        gr.move(u, c[b, t])
        gr.move(v, s[b, t])
        out[:] = p * u - q * v
        gr.move(y[b, 2 * t], out)
        out[:] = p * v + q * u
        gr.move(y[b, 2 * t + 1], out)
    return kernel


@user
def twice_as_large() -> gr.Kernel:
    """Each element four times: of an image twice as high and wide."""
    with gr.Kernel("upsampled", means=lambda X: X.repeat(2, 0).repeat(2, 1)) as kernel:
        m, n = gr.sym("M N")
        x, y = gr.input("X", [m, n], gr.u8), gr.output("Y", [m * 2, n * 2], gr.u8)
        (bn, row), (t,) = gr.blocks(gr.ceil_div(n * 2, 32), m * 2).indices(), gr.threads(32).indices()
        r = reg("r", gr.u8)
        with gr.if_(bn * 32 + t < n * 2):
            gr.move(r, x[row // 2, (bn * 32 + t) // 2])
            gr.move(y[row, bn * 32 + t], r)
    return kernel


if __name__ == "__main__":
    alarms = [f"{name}: {result}" for name, make in KERNELS.items() for seed in range(3)
              if not (result := make().check(seed=seed))]  # fmt: skip
    print(f"{len(alarms)} alarms on {len(KERNELS)} kernels", *alarms, sep="\n")
    sys.exit(bool(alarms))
