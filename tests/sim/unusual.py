"""Correct kernels of unusual forms: odd layouts of threads, tickets, rings with roles, aliased memory, loops that data
end, clusters. No alarm may be raised. Run as a program, the file checks all, with three seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import graphene as gr

KERNELS: dict[str, Callable[[], gr.Kernel]] = {}


def unusual(function: Callable[[], gr.Kernel]) -> Callable[[], gr.Kernel]:
    KERNELS[function.__name__.replace("_", " ")] = function
    return function


@unusual
def tickets() -> gr.Kernel:
    """Blocks take rows by a counter in memory, and pass each ticket on in shared memory; late ones find no row left."""

    def begin(given: Any, rng: Any) -> None:
        given["counter"][...] = 0

    with gr.Kernel(
        "tickets", means=lambda X: {"Y": X.sum(1), "counter": None}, arguments=gr.Arguments(begin)
    ) as kernel:
        m, n = gr.sym("M N", max=2**20)
        x, y, counter = gr.input("X", [m, n], gr.fp32), gr.output("Y", [m], gr.fp32), gr.inout("counter", [1], gr.i32)
        gr.blocks(3)
        threads = gr.threads(64)
        (t,) = threads.indices()
        ticket = gr.alloc("ticket", [1], gr.i32, gr.SH)
        for _ in gr.loop("turn", m):
            with gr.if_(t == 0):
                ticket[0] = gr.atomic("add", counter[0], 1, fetch=True)
            gr.barrier()
            row = gr.index(ticket[0], min=0, max=2**24)
            total = gr.let("total", 0.0, gr.fp32)
            with gr.if_(row < m):
                for k in gr.loop("k", gr.ceil_div(n, 64)):
                    total += gr.load(x[row, :].tile([64])[k][t])
            gr.allreduce("add", total, on=threads)
            with gr.if_((t == 0) & (row < m)):
                y[row] = total
            gr.barrier()  # all have read the ticket before the next one is written
    return kernel


@unusual
def threads_in_gray_code() -> gr.Kernel:
    """Threads take elements in the order of a Gray code, and columns of threads lie across rows of data."""
    with gr.Kernel("gray", means=lambda X: X[:, ::-1]) as kernel:
        m = gr.sym("M")
        x, y = gr.input("X", [m, 64], gr.fp16), gr.output("Y", [m, 64], gr.fp16)
        (b,) = gr.blocks(gr.ceil_div(m, 2)).indices()
        i, j, k = gr.threads(128).reshape(0, gr.Layout((2, 8, 8), (1, 16, 2))).indices()
        c = j * 8 + k
        code = c ^ c // 2
        row = b * 2 + i
        with gr.if_(row < m):
            y[row, 63 - code] = gr.load(x[row, code])
    return kernel


@unusual
def a_loader_warp_in_the_middle() -> gr.Kernel:
    """Warp 1 of 3 copies lines by cp.async to a ring; the others read them the other way round; named barriers."""
    stages = 3
    cp = gr.atom("cp.async.ca.8")
    with gr.Kernel("middle", means=lambda X: 2 * X) as kernel:
        m = gr.sym("M", min=1, max=4096)
        x, y = gr.input("X", [m, 128], gr.fp16, align_bytes=8), gr.output("Y", [m, 128], gr.fp16, align_bytes=8)
        gr.blocks(1)
        warps = gr.threads(96).tile(32)
        w, lane = warps.indices()
        s = gr.alloc("s", [128], gr.fp16, gr.SH, stages=stages)
        full = gr.named_barrier("full", stages=stages, threads=96)
        free = gr.named_barrier("free", stages=stages, threads=96)
        with gr.if_(w == 1):
            put = gr.ring("put", stages)
            for k in gr.loop("k", m):
                with gr.if_(k >= stages):
                    free[put.index].sync()
                gr.move(s[put.index].tile([4])[lane], x[k, :].tile([4])[lane], atom=cp)
                gr.commit(cp)
                gr.wait(cp, pending=0)
                full[put.index].arrive()
                put.advance()
        with gr.else_():
            get = gr.ring("get", stages)
            half = w // 2
            for k in gr.loop("line", m):
                full[get.index].sync()
                r = gr.load(s[get.index].tile([2])[63 - (half * 32 + lane)])
                with gr.if_(k + stages < m):
                    free[get.index].arrive()
                r[:] = r + r
                gr.move(y[k, :].tile([2])[63 - (half * 32 + lane)], r)
                get.advance()
    return kernel


@unusual
def sums_over_the_stage() -> gr.Kernel:
    """The bytes of a tile of fp16 hold sums of fp32 once all have read it, and integers behind those."""
    with gr.Kernel("over", means=lambda X: X.sum(1)) as kernel:
        m = gr.sym("M")
        x, y = gr.input("X", [m, 64], gr.fp16), gr.output("Y", [m], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(m, 32)).indices(), gr.threads(128).indices()
        tile = gr.alloc("tile", [32, 64], gr.fp16, gr.SH)
        sums = gr.alloc("sums", [32, 4], gr.fp32, gr.SH, over=[tile])
        for i in range(16):
            tile[i * 2 + t // 64, t % 64] = gr.load(x.tile([32, 64])[b, 0][i * 2 + t // 64, t % 64])
        gr.barrier()
        own = gr.let("own", 0.0, gr.fp32)
        for i in range(16):
            own += gr.load(tile[t % 32, t // 32 * 16 + (i + t) % 16])
        gr.barrier()
        sums[t % 32, t // 32] = own
        gr.barrier()
        with gr.if_(t < 32):
            total = gr.let("total", 0.0, gr.fp32)
            for i in range(4):
                total += gr.load(sums[t, i])
            gr.move(y.tile([32])[b][t], total)
    return kernel


@unusual
def a_matrix_of_few_numbers() -> gr.Kernel:
    """Compressed rows by a vector: a warp a row, whose ends are data; what they point to is data, too."""

    def arrange(given: Any, rng: Any) -> None:
        rows, n = given["ends"], len(given["values"])
        rows[...] = np.sort(rng.integers(0, n + 1, len(rows)))
        given["places"][...] = rng.integers(0, len(given["x"]), n)

    def means(ends: Any, places: Any, values: Any, x: Any) -> Any:
        products = values * x[places]
        out = np.zeros_like(values, shape=len(ends) - 1)
        for i in range(len(ends) - 1):
            if ends[i + 1] > ends[i]:
                out[i] = products[ends[i] : ends[i + 1]].sum()
        return out

    finite = gr.Arguments(arrange, kinds=("normal", "positive", "whole", "large", "tiny"))
    with gr.Kernel("sparse", means=means, arguments=finite) as kernel:
        m, n, k = gr.sym("M"), gr.sym("N", min=1), gr.sym("K", min=1)
        ends, places = gr.input("ends", [m + 1], gr.i32), gr.input("places", [n], gr.i32)
        values, x = gr.input("values", [n], gr.fp32), gr.input("x", [k], gr.fp32)
        y = gr.output("y", [m], gr.fp32)
        (b,), warps = gr.blocks(gr.ceil_div(m, 2)).indices(), gr.threads(64).tile(32)
        w, lane = warps.indices()
        row = b * 2 + w
        with gr.if_(row < m):
            first, last = (gr.index(ends[row + i], min=0, max=2**31 - 1) for i in (0, 1))
            total = gr.let("total", 0.0, gr.fp32)
            for i in gr.loop("i", last, start=first + lane, step=32):
                total += gr.load(values[i]) * gr.load(x[gr.index(places[i], min=0, max=2**31 - 1)])
            gr.allreduce("add", total, on=warps[w])
            with gr.if_(lane == 0):
                y[row] = total
    return kernel


@unusual
def steps_of_a_stencil() -> gr.Kernel:
    """Any number of steps in two arrays of shared memory, which change places; 96 threads, a ring of elements."""

    def means(X: Any, steps: Any) -> Any:
        for _ in range(int(steps)):
            X = (np.roll(X, 1, 1) + np.roll(X, -1, 1)) * 0.5
        return X

    finite = gr.Arguments(values={"steps": (0, 1, 2, 5)}, kinds=("normal", "whole", "rising", "spike"))
    with gr.Kernel("steps", means=means, arguments=finite) as kernel:
        m, steps = gr.sym("M"), gr.param("steps", gr.u32)
        x, y = gr.input("X", [m, 96], gr.fp32), gr.output("Y", [m, 96], gr.fp32)
        (b,), (t,) = gr.blocks(m).indices(), gr.threads(96).indices()
        s = gr.alloc("s", [2, 96], gr.fp32, gr.SH)
        s[0, t] = gr.load(x[b, t])
        gr.barrier()
        now = gr.scalar("now", 0, max=1)
        for _ in gr.loop("step", steps):
            s[1 - now.value, t] = (gr.load(s[now.value, (t + 95) % 96]) + gr.load(s[now.value, (t + 1) % 96])) * 0.5
            gr.barrier()
            now.set(1 - now.value)
        y[b, t] = gr.load(s[now.value, t])
    return kernel


@unusual
def roots_by_bisection() -> gr.Kernel:
    """The largest integer whose square is no larger: each thread's loop ends when its own interval is empty."""
    with gr.Kernel("roots", means=lambda X: np.floor(np.sqrt(X.astype(np.float64))).astype(np.int64),
                   arguments=gr.Arguments(lambda given, rng: np.copyto(given["X"], rng.integers(0, 2**30,
                                          given["X"].shape)))) as kernel:  # fmt: skip
        n = gr.sym("N")
        x, y = gr.input("X", [n], gr.u32), gr.output("Y", [n], gr.u32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 64)).indices(), gr.threads(64).indices()
        r = gr.load(x.tile([64])[b][t])
        low, high = gr.let("low", 0, gr.u32), gr.let("high", 1 << 15, gr.u32)
        with gr.while_(lambda: high - low > 1, bound=20):
            middle = gr.let("middle", (low + high) // 2)
            fits = gr.let("fits", gr.where(middle * middle <= r, 1, 0), gr.i32)
            low[...] = gr.where(fits > 0, middle, low)
            high[...] = gr.where(fits > 0, high, middle)
        gr.move(y.tile([64])[b][t], low)
    return kernel


@unusual
def a_storing_warpgroup() -> gr.Kernel:
    """C = A B^T by wgmma with three roles: the last warpgroup loads, the first multiplies, the second stores."""
    stages, bm, bn, bk = 2, 64, 64, 64
    load, store, wgmma = gr.atom("tma.load"), gr.atom("tma.store"), gr.atom("wgmma.m64n64k16.f32.f16")
    with gr.Kernel("three_roles", means=lambda A, B: A @ B.T) as kernel:
        m, n, k = (gr.sym(s, multiple_of=8, min=8, max=2**20) for s in "MNK")
        a, b = gr.input("A", [m, k], gr.fp16, align_bytes=16), gr.input("B", [n, k], gr.fp16, align_bytes=16)
        c = gr.output("C", [m, n], gr.fp16, align_bytes=16)
        tiles = gr.ceil_div(m, bm) * gr.ceil_div(n, bn)
        (first,) = gr.blocks(gr.max(1, gr.min(gr.sm_count(), gr.min(tiles, 2**30)))).indices()
        groups = gr.threads(384).tile(128)
        lines = gr.swizzle(bk, gr.fp16)
        sa = gr.alloc("sA", [bm, bk], gr.fp16, gr.SH, stages=stages, swizzle=lines)
        sb = gr.alloc("sB", [bn, bk], gr.fp16, gr.SH, stages=stages, swizzle=lines)
        sc = gr.alloc("sC", [bm, bn], gr.fp16, gr.SH, swizzle=lines)
        full, empty = (gr.mbarrier(x, stages, arrivals=1) for x in ("full", "empty"))
        come, gone = (gr.named_barrier(x, stages=1, threads=256) for x in ("come", "gone"))
        gr.barrier()
        workers, across = gr.max(1, gr.min(gr.sm_count(), gr.min(tiles, 2**30))), gr.ceil_div(n, bn)

        def each(name: str) -> Any:
            for at in gr.loop(name, gr.min(tiles, 2**30), start=first, step=workers):
                yield at // gr.max(across, 1), at % gr.max(across, 1)

        with gr.only(groups[2]), gr.only(groups[2].elect()):
            put = gr.ring("put", stages, phase=1)
            for i, j in each("load"):
                ga, gb = a.tile([bm, bk])[i, :], b.tile([bn, bk])[j, :]
                for step in gr.loop("k", gr.ceil_div(k, bk)):
                    empty[put.index].wait(put.phase)
                    full[put.index].arrive(expect=[sa[put.index], sb[put.index]])
                    gr.move(sb[put.index], gb[step], atom=load, done=full[put.index])
                    gr.move(sa[put.index], ga[step], atom=load, done=full[put.index])
                    put.advance()
        with gr.only(groups[0]):
            mine, get = groups[0], gr.ring("get", stages)
            acc = gr.fragment("acc", [bm, bn], gr.fp32, wgmma.c, on=mine)
            out = gr.fragment("out", [bm, bn], gr.fp16, wgmma.c, on=mine)
            for _ in each("multiply"):
                gr.init(acc, 0)
                for _ in gr.loop("k", gr.ceil_div(k, bk)):
                    full[get.index].wait(get.phase)
                    gr.fence(wgmma)
                    gr.matmul(acc, sa[get.index], sb[get.index].T, on=mine, atom=wgmma)
                    gr.commit(wgmma)
                    gr.wait(wgmma, pending=0)
                    with gr.only(mine.elect()):
                        empty[get.index].arrive()
                    get.advance()
                out[:] = acc
                gone[0].sync()  # the tile before has left
                gr.move(sc, out, on=mine, atom=gr.atom("stmatrix.x4"))
                gr.fence("async.shared")
                come[0].arrive()
        with gr.only(groups[1]):
            gone[0].arrive()
            for i, j in each("store"):
                come[0].sync()
                with gr.only(groups[1].elect()):
                    gr.move(c.tile([bm, bn])[i, j], sc, atom=store)
                    gr.commit(store)
                    gr.wait(store, pending=0)
                gr.barrier(on=groups[1])
                gone[0].arrive()
    return kernel


@unusual
def a_ring_of_blocks() -> gr.Kernel:
    """Each of four blocks of a cluster hands its tile to the next one's shared memory, twice."""
    with gr.Kernel("handed_on", means=lambda X: np.concatenate([X[:, 2:], X[:, :2]], 1)) as kernel:
        m = gr.sym("M")
        x, y = gr.input("X", [m, 4, 64], gr.fp32), gr.output("Y", [m, 4, 64], gr.fp32)
        clusters = gr.blocks(4 * m, cluster=4)
        row, rank = clusters.indices()
        cluster = clusters[row]
        (t,) = gr.threads(64).indices()
        s = gr.alloc("s", [3, 64], gr.fp32, gr.SH)
        s[0, t] = gr.load(x[row, rank, t])
        gr.barrier(on=cluster)
        for hop in range(2):
            r = gr.load(s[hop, t])
            s[hop + 1, t].of((rank + 3) % 4)[...] = r
            gr.barrier(on=cluster)
        y[row, rank, t] = gr.load(s[2, t])
    return kernel


@unusual
def compacted_rows() -> gr.Kernel:
    """The positive elements of a row in order, and -1 behind them; votes of warps, and a scan over the warps."""

    def means(X: Any) -> Any:
        out = np.full_like(X, -1)
        for row, x in zip(out, X, strict=True):
            kept = x[x > 0]
            row[: len(kept)] = kept
        return out

    with gr.Kernel("compacted", means=means) as kernel:
        m = gr.sym("M")
        x, y = gr.input("X", [m, 96], gr.i32), gr.output("Y", [m, 96], gr.i32)
        (row,), threads = gr.blocks(m).indices(), gr.threads(96)
        (t,) = threads.indices()
        warps = threads.tile(32)
        w, lane = warps.indices()
        counts = gr.alloc("counts", [3], gr.i32, gr.SH)
        r = gr.load(x[row, t])
        votes = gr.ballot(r > 0, on=warps[w])
        below = gr.let("below", gr.cast(gr.popc(votes & ((1 << gr.cast(lane, gr.u32)) - 1)), gr.i32))
        with gr.if_(lane == 0):
            counts[w] = gr.cast(gr.popc(votes), gr.i32)
        gr.barrier()
        total = gr.let("total", 0, gr.i32)
        for i in range(3):
            count = gr.load(counts[i])
            with gr.if_(w > i):
                below += count
            total += count
        with gr.if_(r > 0):
            y[row, gr.index(below, min=0, max=95)] = r
        with gr.if_(total <= gr.cast(t, gr.i32)):
            y[row, t] = -1
    return kernel


if __name__ == "__main__":
    bad = 0
    for name, make in KERNELS.items():
        for seed in range(3):
            result = make().check(seed=seed)
            print(name, seed, f"{result.seconds:.2f} s", str(result).replace("\n", "; "))
            bad += not result.ok
    sys.exit(bad)
