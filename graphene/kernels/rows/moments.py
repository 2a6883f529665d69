"""Mean and variance of rows, with few passes and meetings of warps, and without loss of digits."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.rows.block import First, Part, typical

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphene.kernels.rows.block import Rows

__all__ = ["moments"]


def moments(rows: Rows, value: Callable[[Part], Any], exact: bool) -> tuple[Callable[[Any], Any], gr.Tensor]:
    """The distance of a value from its row's mean, and the mean of its square.

    Distances and their squares are added up from a number near the mean, so a mean far from zero costs no digits. That
    number is an element: the median of three neighbours of the row or, in a long row, of each warp's part. If it lies d
    standard deviations from the mean, rounding errors of the variance are 1 + d^2 times larger. One element far from
    all others costs nothing, wherever it is. If two of the three lie far away, up to log2 N of 24 bits are lost when N
    elements are added up. Warps meet once.

    `exact`: the distance has as many digits as the value, which fp32 needs. Then the number is the mean, from a pass of
    its own unless every pass reads memory.
    """
    base, mean, square = (rows.per_row(n) for n in ("base", "mean", "square"))
    t = rows.tile

    def distance(x: Any) -> Any:
        return x - base - mean if exact else x - mean

    if t.keep == "registers" or t.threads == 1 or (exact and t.keep == "shared"):
        if exact or t.keep != "registers":  # elements past the end were read as zeros
            base[:] = rows.reduce("add", value) * (1 / t.width)
        else:
            first = First(rows)
            first.v[:] = value(first)
            for row in range(t.each):
                base.values[row] = first.typical(row)
        _sum_both(rows, mean, square, lambda part: part.inside(value(part) - base))
        mean[:] = mean * (1 / t.width)
        square[:] = gr.fma(-mean, mean, square * (1 / t.width))  # the product is not rounded: no inf - inf
    else:
        _by_warps(rows, value, base, mean, square)
    if not exact:
        mean[:] = mean + base
    return distance, square


def _by_warps(rows: Rows, value: Callable[[Part], Any], base: gr.Tensor, mean: gr.Tensor, square: gr.Tensor) -> None:
    """Rows' means minus `base`, and variances; each warp adds up distances from a mean of its own."""
    t = rows.tile
    (thread,) = rows.threads.indices()
    warp = rows.threads.tile(32)[thread // 32]
    shift, total, more = (gr.alloc(n, [], gr.fp32, gr.RF) for n in ("shift", "total", "more"))
    gr.init(total, 0)
    gr.init(more, 0)
    if t.parts > 1:
        wide = t.threads * t.vector
        start = rows.fragment("start", t.rows, gr.fp32, wide)
        start[:] = value(Part(rows, 0, wide))
        _first(rows, shift, start, warp)
    for part in rows.parts():
        part.v[:] = value(part)
        if t.parts == 1 and part.v is rows.v:
            _first(rows, shift, rows.v, warp)
        part.v[:] = part.inside(part.v - shift)
        for _, x in rows.values(part):
            total[:] = total + x
            gr.matmul(more, x, x)
    for sums in (total, more):
        gr.allreduce("add", sums, on=warp)
    met = gr.alloc("partial", [3, t.rows, t.threads // 32], gr.fp32, gr.SH)
    row, place = thread // t.threads, thread % t.threads // 32
    for k, x in enumerate((shift, total, more)):
        gr.move(met[k, row, place], x)
    gr.barrier()
    gr.move(base.values[0], met[0, row, 0])
    meet = _meet_each if t.threads <= 128 else _meet_lanes
    meet(rows, base.values[0], mean.values[0], square.values[0], met[:, row, :])


def _meet_each(rows: Rows, base: gr.Tensor, mean: gr.Tensor, square: gr.Tensor, met: gr.Tensor) -> None:
    """The mean minus `base`, from the warps' sums, all of which every thread reads."""
    N, warps = rows.tile.width, rows.tile.threads // 32
    shifts, totals, squares, n, rcp = (gr.alloc(x, [warps], gr.fp32, gr.RF) for x in ("s", "t", "q", "n", "rcp"))
    for k, x in enumerate((shifts, totals, squares)):
        for w in range(warps):
            gr.move(x[w], met[k, w])
    gr.init(mean, 0)
    for w in range(warps):
        n[w] = _count(rows, operator.itemgetter(w))
        rcp[w] = _count(rows, operator.itemgetter(w), _rcp)
        squares[w] = gr.fma(-totals[w] * rcp[w], totals[w], squares[w])
        shifts[w] = shifts[w] - base + totals[w] * rcp[w]
        mean[:] = gr.fma(shifts[w], n[w] * (1 / N), mean)
    gr.init(square, 0)
    for w in range(warps):
        shifts[w] = shifts[w] - mean
        square[:] = square + (squares[w] + shifts[w] * shifts[w] * n[w]) * (1 / N)


def _meet_lanes(rows: Rows, base: gr.Tensor, mean: gr.Tensor, square: gr.Tensor, met: gr.Tensor) -> None:
    """The same by the lanes of each warp, where a lane reads the sums of one warp."""
    N, warps = rows.tile.width, rows.tile.threads // 32
    (thread,) = rows.threads.indices()
    warp, lane = rows.threads.tile(32)[thread // 32], thread % 32
    shift, total, squares, n, rcp = (gr.alloc(x, [], gr.fp32, gr.RF) for x in ("s", "t", "q", "n", "rcp"))
    for x in (shift, total, squares):
        gr.init(x, 0)
    with gr.if_(lane < warps) if warps < 32 else contextlib.nullcontext():
        for k, x in enumerate((shift, total, squares)):
            gr.move(x, met[k, lane])

    def of_lane(counts: list[float]) -> Any:  # a few warps differ from the others
        value: Any = 0.0
        for w in reversed([w for w in range(warps) if w == 0 or counts[w] != counts[w - 1]]):
            last = max(v for v in range(w, warps) if counts[v] == counts[w])
            value = gr.where(lane <= last, counts[w], value)
        return value

    n[:], rcp[:] = _count(rows, of_lane), _count(rows, of_lane, _rcp)
    squares[:] = gr.fma(-total * rcp, total, squares)
    shift[:] = shift - base + total * rcp
    mean[:] = shift * n * (1 / N)
    gr.allreduce("add", mean, on=warp)
    shift[:] = shift - mean
    square[:] = (squares + shift * shift * n) * (1 / N)
    gr.allreduce("add", square, on=warp)


def _sum_both(rows: Rows, sums: gr.Tensor, squares: gr.Tensor, value: Callable[[Part], Any]) -> None:
    """Values and their squares, added up along rows with one meeting of warps."""
    t, below = rows.tile, rows.tile.rows // rows.tile.each
    thread = gr.Layout((t.threads, below), (2 * t.rows, 1))
    tv = gr.tv(thread, gr.Layout((t.each, 2), (below, t.rows)))
    lanes = gr.fragment("both", [2 * t.rows, t.threads], gr.fp32, tv, on=rows.threads)
    gr.init(lanes, 0)
    for part in rows.parts():
        part.v[:] = value(part)
        for e, x in rows.values(part):
            lanes.values[e] = lanes.values[e] + x
            gr.matmul(lanes.values[t.each + e], x, x)
    total = lanes.reduced(1, "total")
    gr.reduce("add", total, lanes, axis=1)
    for e in range(t.each):
        gr.move(sums.values[e], total.values[e])
        gr.move(squares.values[e], total.values[t.each + e])


def _first(rows: Rows, shift: gr.Tensor, start: gr.Tensor, warp: Any) -> None:
    """A typical element of the first lane's first vector, or of the first three lanes' shorter ones."""
    vector = rows.tile.vector
    own = gr.alloc("own", [], gr.fp32, gr.RF)
    own[:] = typical([start.values[i] for i in range(vector)])
    if vector >= 3:
        gr.shfl(shift, own, "idx", 0, on=warp)
        return
    of_lanes = gr.alloc("of_lanes", [3], gr.fp32, gr.RF)
    for lane in range(3):
        gr.shfl(of_lanes[lane], own, "idx", lane, on=warp)
    shift[:] = typical([of_lanes[lane] for lane in range(3)])


def _count(rows: Rows, of: Callable[[list[float]], Any], f: Callable[[int], float] = float) -> Any:
    """f(the number of elements of a warp), for all warps of a row; a dense row has one vector more or less."""
    t = rows.tile
    if not t.dense:
        return of([f(n) for n in _counts(rows, t.width)])
    most, least = ([f(n) for n in _counts(rows, t.body - v)] for v in (0, t.vector))
    return gr.where(rows.body == t.body, of(most), of(least))


def _counts(rows: Rows, body: int) -> list[int]:
    t, strip = rows.tile, 32 * rows.tile.vector
    full, rest = divmod(body, t.threads * t.vector)
    counts = [full * strip + min(max(rest - w * strip, 0), strip) for w in range(t.threads // 32)]
    counts[0] += t.width - body
    return counts


def _rcp(n: int) -> float:
    return 1 / n if n else 0.0
