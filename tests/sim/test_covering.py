"""The calls that a check chooses run every statement of a kernel, as far as sizes and data can bring it about."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

import graphene as gr
from graphene.judge.calls import CallPlan
from graphene.judge.covering import DataCovering
from graphene.judge.data import draw
from graphene.judge.numbers import Numbers, turns_of
from graphene.judge.rare import Rare
from graphene.judge.signature import Signature
from graphene.judge.work import Work
from graphene.kernels import GemmConfig, ReductionConfig, gemm_launches, gemm_sm80, reduction_kernel
from graphene.kernels.recurrent import CellConfig, recurrent_cell

TILE = 32


def lengths(barriers: bool = True) -> gr.Kernel:
    """Rows of packed sequences, added to a tile that is loaded while the one before it is used."""

    def means(X: Any, starts: Any) -> Any:
        y = np.zeros_like(X)
        for first, end in itertools.pairwise(starts):
            y[first:end] = X[first:end] + X[first:end]
        return y

    def prepare(args: Any, rng: Any) -> None:
        args["starts"][:] = np.sort(rng.integers(0, len(args["X"]) + 1, len(args["starts"])))
        args["starts"][[0, -1]] = 0, len(args["X"])

    n, batch = gr.sym("n batch")
    with gr.Kernel("lengths", means=means, arguments=prepare) as kernel:
        x = gr.input("X", [n], gr.fp32)
        starts = gr.input("starts", [batch + 1], gr.i32)
        y = gr.output("Y", [n], gr.fp32)
        blocks, threads = gr.blocks(batch), gr.threads(2 * TILE)
        (b,), (t,) = blocks.indices(), threads.indices()
        with gr.spec(y, [x, starts], on=(blocks, threads)):
            first, end = (gr.index(starts[b + i], 0, 2**31 - 1) for i in (0, 1))
            rows = gr.max(end - first, 0)
            mine = [v.window(first, rows).tile([TILE]) for v in (x, y)]
            stage = gr.alloc("stage", [TILE], gr.fp32, gr.SH, stages=2)
            for tile in gr.loop("tile", gr.ceil_div(rows, TILE)):
                r = gr.alloc("r", [1], gr.fp32, gr.RF)
                with gr.if_(t < TILE):
                    gr.move(r[0], mine[0][tile][t])
                    gr.move(stage[tile % 2][t], r[0])
                if barriers:
                    gr.barrier()
                with gr.if_(t >= TILE):
                    gr.move(r[0], stage[tile % 2][t - TILE])
                    r[:] = r + r
                    gr.move(mine[1][tile][t - TILE], r[0])
    return kernel


def test_what_the_length_of_a_window_is_divided_by_are_numbers_of_the_whole() -> None:
    """The loop goes over the lines of A, whose length is divided; those of B, of K elements, are read as far."""
    kernel = gemm_sm80(32, 32, 16, 3, warps=(2, 2), order="TN", dtype=gr.fp32, padded=(True, False), align=(16, 4, 8))
    assert Numbers.of(Signature.of(kernel)).divisors["K"] == {16}


def test_what_lengths_of_data_are_divided_by_are_numbers_of_the_tensor_that_they_lie_in() -> None:
    """The tile divides end - first, which come from data; X has n rows."""
    assert Numbers.of(Signature.of(lengths())).divisors["n"] == {TILE}
    result = lengths().check()
    assert result.ok, str(result)
    assert not [u for u in result.uncovered if "no thread" in u]
    assert not lengths(barriers=False).check().ok


def test_what_no_call_reached_is_said() -> None:
    """Of 20 rows no sequence has two tiles: that a loop ran once at most is said."""
    result = lengths().check(n=20)
    assert result.ok
    assert [u for u in result.uncovered if "no thread repeated for(tile=0;" in u]
    assert "not covered" in str(result)


def test_data_are_drawn_for_every_part_that_calls_of_some_size_reached() -> None:
    """A part that one base alone reaches gets every value, and every pair of values, that the cheap one gets."""
    covering = DataCovering({"kind": "abc", "x": (1, 2)}, [("common", 1.0), ("rare", 50.0)], np.random.default_rng(0))
    chosen = set()
    while (found := covering.next()) is not None:
        base, values = found
        chosen.add((base, values["kind"], values["x"]))
    assert {c[1:] for c in chosen if c[0] == 1} == set(itertools.product("abc", (1, 2)))
    assert covering.next() is None
    assert DataCovering({"kind": "abc"}, [("dear", 9.0)], np.random.default_rng(0)).next(5.0) is None


def test_calls_whose_data_led_somewhere_are_made_again_with_uneven_rows() -> None:
    """Place 3 is reached by a large factor alone; the largest one shows most. After 14 calls others have their turn."""
    rare = Rare(frozenset({1, 2}), ["normal", "uneven", "large"], {"scale": 6e8})
    rare.count({"": "normal", "scale": 1.0}, frozenset({1, 2}))
    assert rare.next() is None
    rare.count({"": "spike", "scale": 7e4}, frozenset({1, 3}))
    for _ in range(13):
        again = rare.next()
        assert again is not None
        assert again["scale"] == 6e8
        assert again[""] in ("uneven", "large")
        rare.count(again, frozenset({3}))
    assert rare.next() is None
    bases = [(frozenset({1}), 1.0), (frozenset({1, 2}), 1.0), (frozenset({4}), 1e9)]
    covering = DataCovering({"": ("uneven",)}, bases, np.random.default_rng(0))
    chosen = [covering.spread({"": "uneven"}, 1e6) for _ in range(2)]
    assert chosen == [(1, {"": "uneven"})] * 2  # what it reached is wanted anew, and the dear one costs too much


def test_maxima_over_rows_grow_from_either_end() -> None:
    rng = np.random.default_rng(0)
    sizes = {kind: np.abs(draw(kind, (40, 8), rng)).max(1) for kind in ("rising", "falling")}
    assert sizes["rising"][-1] > 4 * sizes["rising"][0]
    assert sizes["falling"][0] > 4 * sizes["falling"][-1]


def test_of_equal_worth_and_cost_a_call_with_more_results_shows_data() -> None:
    """A tile is computed whole, however much of it is stored: 1 of 32 elements shows less of what is rounded."""
    plan = CallPlan(lengths())
    some, more = (replace(plan.usual(), sizes={"n": n, "batch": 1}) for n in (1, 31))
    covering = plan.data_covering([(some, [0], 1.0), (more, [0], 1.0)])
    chosen = [covering.next() for _ in range(10)]
    assert all(c is not None and c[0] == 1 for c in chosen)


def test_a_loop_that_only_long_lines_repeat_is_repeated() -> None:
    """Five tiles are ahead: of the usual sizes, up to five tiles, none goes round the loop twice."""
    kernel = recurrent_cell(CellConfig(gates=1, tile=(16, 16, 32), stages=6, warps=(1, 1)))
    result = kernel.check()
    assert result.ok, str(result)
    assert not [u for u in result.uncovered if "no thread" in u]


def test_the_work_of_a_call_is_told_by_blocks_and_turns() -> None:
    kernel = recurrent_cell(CellConfig(gates=1, tile=(16, 16, 32), stages=2, warps=(1, 1)))
    work = Work(Signature.of(kernel).data)
    assert work.known
    one = {"M": 16, "N": 16, "I": 32, "J": 32}
    assert work({**one, "M": 1, "N": 8}) == work(one)  # whole tiles
    assert work({**one, "M": 17, "N": 24}) == 4 * work(one)
    assert 1.1 * work(one) < work({**one, "J": 64}) == work({**one, "I": 64}) < 2 * work(one)
    assert not Work(Signature.of(lengths()).data).known  # data say how often the loop goes round


def test_code_that_the_text_says_is_never_reached_is_not_missed() -> None:
    """A loop of no turns: nothing in it could be judged."""

    def means(X: Any) -> Any:
        return X

    with gr.Kernel("copied", means=means) as kernel:
        n = gr.sym("n")
        x, y = gr.input("X", [n], gr.fp32), gr.output("Y", [n], gr.fp32)
        blocks, threads = gr.blocks(gr.ceil_div(n, TILE)), gr.threads(TILE)
        (b,), (t,) = blocks.indices(), threads.indices()
        with gr.spec(y, [x], on=(blocks, threads)):
            r = gr.alloc("r", [], gr.fp32, gr.RF)
            gr.move(r, x.tile([TILE])[b][t])
            for _ in gr.loop("never", 0):
                gr.init(r, 0)
            gr.move(y.tile([TILE])[b][t], r)
    result = kernel.check()
    assert result.ok, str(result)
    assert not [u for u in result.uncovered if "no thread" in u]


def test_numbers_of_long_tiles_count() -> None:
    """A row of a thousand elements a turn: calls have rows of less than one, and of several turns."""
    plan = CallPlan(reduction_kernel(ReductionConfig(1, "add", gr.fp32, threads=256, vector=4)))
    assert {1024} <= plan.numbers.divisors["N"]
    assert max(plan.domains["N"]) > 2048


def test_large_tiles_leave_room_for_several_calls() -> None:
    """Two tiles and a part of each size of such a product alone would take all the time."""
    config = GemmConfig((128, 256, 32), 3, (2, 4), 8, dtype="fp32", batched=True)
    result = gemm_launches(config)[0].kernel.check()
    assert result.ok, str(result)
    assert len(result.calls) >= 8


def test_a_ring_with_a_phase_goes_round_twice() -> None:
    """A stage is used three times in some call: its phase has both parities, and the first one again."""
    stages = 6
    with gr.Kernel("through_a_ring", means=lambda X: X) as kernel:
        n = gr.sym("n", multiple_of=4)
        load, store = gr.atom("tma.load"), gr.atom("tma.store")
        x = gr.input("X", gr.row_major(8, n), gr.fp32, align_bytes=16)
        y = gr.output("Y", gr.row_major(8, n), gr.fp32, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        s = gr.alloc("s", [8, TILE], gr.fp32, gr.SH, stages=stages, swizzle=gr.swizzle(TILE, gr.fp32))
        full = gr.mbarrier("full", stages, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            get = gr.ring("get", stages)
            for k in gr.loop("k", gr.ceil_div(n, TILE)):
                i = get.index
                full[i].arrive(expect=[s[i]])
                gr.move(s[i], x.tile([8, TILE])[0, k], atom=load, done=full[i])
                full[i].wait(get.phase)
                gr.move(y.tile([8, TILE])[0, k], s[i], atom=store)
                gr.commit(store)
                gr.wait(store, pending=0)
                get.advance()
    assert {t.least for t in Numbers.of(Signature.of(kernel)).turns} == {2, 2 * stages + 1}
    result = kernel.check()
    assert result.ok, str(result)
    lengths_of_calls = [int(call.partition("n=")[2].partition(",")[0]) for call in result.calls]
    assert max(lengths_of_calls) > 2 * stages * TILE


def test_a_loop_within_a_loop_goes_round_again_in_a_later_turn_of_it() -> None:
    """Of scalars that are set once the value counts."""
    inner = {"stmt": "for", "var": "k", "start": 0, "stop": "(K + 7)//8", "step": 1, "body": []}
    body = [
        {"stmt": "scalar", "var": "tiles", "value": "(M + 63)//64"},
        {"stmt": "for", "var": "i", "start": "@b", "stop": "tiles", "step": 1, "body": [inner]},
    ]
    (both,) = (t for t in turns_of(body) if t.names >= {"M", "K"})
    assert both.repeats({"M": 200, "K": 20})
    assert not both.repeats({"M": 200, "K": 8})
    assert not both.repeats({"M": 64, "K": 20})
