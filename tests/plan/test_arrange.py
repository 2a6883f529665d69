"""Each algorithm of csrc/plan against brute force, and against what must not be given to it."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene.arrange import (
    Alive,
    TileAccess,
    arrange,
    choose,
    fewest_barriers,
    fragments,
    matrices,
    pack,
    vectors,
)

INF = math.inf


# The least sum of costs


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_choose_is_the_least_of_all_combinations(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 5))
    sizes = [data.draw(st.integers(1, 3)) for _ in range(n)]
    scopes = data.draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1, max_size=3), max_size=6))
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    costs = []
    for scope in (sorted(s) for s in scopes):
        table = {c: rng.choice([0, 1, 2, 5, INF]) for c in itertools.product(*(range(sizes[v]) for v in scope))}
        costs.append((scope, table))

    def total(values: tuple[int, ...]) -> float:
        return sum(table[tuple(values[v] for v in scope)] for scope, table in costs)

    every = {v: total(v) for v in itertools.product(*map(range, sizes))}
    functions = [(scope, lambda *c, table=table: table[c]) for scope, table in costs]
    domains = {v: range(s) for v, s in enumerate(sizes)}
    if min(every.values()) == INF:
        with pytest.raises(gr.SelectError) as e:
            choose(domains, functions)
        assert e.value.code == "PLAN_NONE"
        return
    got = choose(domains, functions)
    assert got.cost == min(every.values()) == every[tuple(got.values[v] for v in range(n))]
    for v in range(n):
        for value, cost in got.alternatives[v]:
            assert cost == min(c for x, c in every.items() if x[v] == value)


def test_pins_are_checked_by_the_same_solver() -> None:
    domains = {"a": [1, 2, 4], "b": [1, 2, 4], "c": "xy"}
    costs = [(("a", "b"), lambda a, b: INF if a * b > 4 else 10 - a - 2 * b), (("a", "c"), lambda a, c: a * (c == "x"))]
    assert choose(domains, costs).values == {"a": 1, "b": 4, "c": "y"}
    assert choose(domains, costs, pin={"a": 4}).values == {"a": 4, "b": 1, "c": "y"}
    with pytest.raises(gr.SelectError) as e:
        choose(domains, costs, pin={"a": 4, "b": 2})
    assert str(e.value).splitlines()[0] == "pinned values leave no combination   [PLAN_PIN]"
    with pytest.raises(gr.SelectError) as e:
        choose(domains, costs, pin={"a": 3})
    assert str(e.value).splitlines() == ["a cannot be pinned to 3   [PLAN_PIN]", "  want: one of [1, 2, 4]"]
    with pytest.raises(gr.VerifyError) as e:
        choose(domains, [(("a", "d"), lambda a, d: 0)])
    assert e.value.code == "PLAN_GRAPH"


def test_tables_that_grow_too_large_are_refused() -> None:
    names = range(12)
    with pytest.raises(gr.VerifyError) as e:
        choose(
            dict.fromkeys(names, range(4)), [((i, j), lambda a, b: a ^ b) for i in names for j in range(i)], None, 1000
        )
    assert e.value.code == "PLAN_LIMIT"


# Barriers


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(*[st.integers(0, n - 1)] * 2, st.integers(0, 1), st.integers(0, 2)), max_size=7),
        )
    )
)
def test_slots_are_the_fewest(problem: tuple[int, list[tuple[int, int, int, int]]]) -> None:
    n, edges = problem

    def holds(barriers: int, slot: tuple[int, ...]) -> bool:
        return all(slot[v] + barriers * d >= slot[u] + w for u, v, w, d in edges)

    def possible(barriers: int) -> bool:  # slots of a least schedule differ by the weights and by distances' barriers
        reach = len(edges) + 2 * barriers * n
        return any(holds(barriers, (0, *rest)) for rest in itertools.product(range(-reach, reach + 1), repeat=n - 1))

    graph = np.full((n, n), -INF)  # the weights of paths within an iteration
    for u, v, w, d in edges:
        if d == 0:
            graph[u, v] = max(graph[u, v], w)
    for k in range(n):
        for _ in range(2):
            graph = np.maximum(graph, graph[:, k, None] + graph[None, k, :])
    if max(graph.diagonal()) > 0:  # a cycle within an iteration
        with pytest.raises(gr.VerifyError, match="PLAN_GRAPH"):
            fewest_barriers(range(n), edges)
        return
    got = fewest_barriers(range(n), edges)
    slot = tuple(got.slot[v] for v in range(n))
    assert holds(got.barriers, slot)
    assert min(slot) == 0
    if n <= 3 and len(edges) <= 5:
        assert got.barriers == 0 or not possible(got.barriers - 1)


@pytest.mark.parametrize(("stages", "barriers", "ahead"), [(1, 2, 0), (2, 1, 1), (3, 1, 2), (4, 1, 3)])
def test_the_loop_of_a_product(stages: int, barriers: int, ahead: int) -> None:
    """S stages run S - 1 ahead behind one barrier, the hand-written schedule; one stage needs two barriers."""
    edges = [("copy", "dot", 1, 0), ("dot", "copy", 1, stages)]
    got = fewest_barriers(["copy", "dot"], edges, early=["copy"])
    assert (got.barriers, got.ahead("copy", "dot")) == (barriers, ahead)


def test_attention_whose_weights_pass_through_shared_memory() -> None:
    def loop(stages: int, buffers: int) -> int:
        edges = [("K", "qk", 1, 0), ("V", "pv", 1, 0), ("qk", "K", 1, stages), ("pv", "V", 1, stages),
                 ("qk", "qk", 0, 1), ("pv", "pv", 0, 1), ("qk", "pv", 1 if buffers else 0, 0)]  # fmt: skip
        if buffers:
            edges.append(("pv", "qk", 1, buffers))
        return fewest_barriers(["K", "V", "qk", "pv"], edges, early=["K", "V"]).barriers

    assert [loop(2, 0), loop(2, 1), loop(2, 2)] == [1, 2, 1]


def test_straight_code_counts_the_longest_path() -> None:
    got = fewest_barriers("abcd", [("a", "b", 1, 0), ("b", "d", 1, 0), ("a", "c", 0, 0), ("c", "d", 1, 0)])
    assert got.barriers == 0
    assert got.slot == {"a": 0, "b": 1, "c": 0, "d": 2}


# Shared memory


def least(objects: list[tuple[int, int, int, int]]) -> int:
    best = INF
    for order in itertools.permutations(range(len(objects))):
        at: dict[int, int] = {}
        for i in order:
            size, align, first, end = objects[i]
            busy = [(at[j], at[j] + objects[j][0]) for j in at if objects[j][2] < end and first < objects[j][3]]
            starts = sorted({0} | {-(-b // align) * align for _, b in busy})
            at[i] = next(s for s in starts if all(s + size <= a or b <= s for a, b in busy))
        best = min(best, max(at[i] + objects[i][0] for i in at))
    return int(best)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 4]), st.integers(0, 5), st.integers(1, 4)),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_packing_is_least(given_objects: list[tuple[int, int, int, int]]) -> None:
    objects = [(b, a, f, f + n) for b, a, f, n in given_objects]
    alive = {i: Alive(b, f, e, a) for i, (b, a, f, e) in enumerate(objects)}
    got = pack(alive)
    for i, j in itertools.combinations(alive, 2):
        x, y = alive[i], alive[j]
        together = x.first < y.end and y.first < x.end
        apart = got.at[i] + x.bytes <= got.at[j] or got.at[j] + y.bytes <= got.at[i]
        assert apart or not together
    assert all(got.at[i] % x.align == 0 and got.at[i] + x.bytes <= got.bytes for i, x in alive.items())
    assert got.optimal
    assert got.bytes == least(objects) >= got.bound
    assert got.bound == max(sum(b for b, _, f, e in objects if f <= t < e) for t in range(9))


def test_packing_says_when_it_gave_up() -> None:
    rng = random.Random(5)
    first = [rng.randrange(9) for _ in range(24)]
    many = {i: Alive(rng.choice([3, 5, 7, 11, 13]), f, f + 1 + rng.randrange(5), 1) for i, f in enumerate(first)}
    hurried = pack(many, most_nodes=3)
    assert hurried.bytes >= hurried.bound
    assert hurried.optimal == (hurried.bytes == hurried.bound)


# Swizzles


def test_the_search_finds_the_closed_form_for_matrices() -> None:
    for columns in (8, 16, 24, 32, 40, 48, 64, 72, 96, 128, 160, 192, 256):
        got = arrange(64, columns, gr.fp16, [matrices(64, columns, gr.fp16), vectors(64, columns, gr.fp16)])[0]
        usual = gr.swizzle(columns, gr.fp16)
        assert got.conflicts == 0
        assert got.row_elems == columns
        if got.swizzle is not None:
            assert got.swizzle == usual, columns


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([8, 16, 32]), st.integers(1, 6), st.sampled_from([8, 16, 32]), st.integers(0, 2**32))
def test_the_arrangement_is_the_best_of_all(rows: int, chunks: int, bits: int, seed: int) -> None:
    """All xors and paddings, counted by hand: 32 banks of 4 bytes."""
    rng, elems = random.Random(seed), 128 // bits
    columns = chunks * elems
    spots = [(r, c * elems) for r in range(rows) for c in range(chunks)]
    requests = tuple(tuple((lane, *rng.choice(spots)) for lane in range(8)) for _ in range(4))
    got = arrange(rows, columns, bits, [TileAccess(elems, requests)], most_padding=3)

    def conflicts(swizzle: tuple[int, int, int], row_elems: int) -> int:
        total = 0
        for request in requests:
            banks: dict[int, set[int]] = {}
            for _, r, c in request:
                at = r * row_elems + c
                at ^= (at >> (swizzle[1] + swizzle[2]) & (1 << swizzle[0]) - 1) << swizzle[1]
                for word in range(at * bits // 32, (at + elems) * bits // 32):
                    banks.setdefault(word % 32, set()).add(word)
            total += max(map(len, banks.values())) - 1
        return total

    base = elems.bit_length() - 1
    every = [conflicts((0, 0, 0), columns + pad * elems) for pad in range(4)]
    size = rows * columns
    line = (1024 // bits).bit_length() - 1  # elements of 128 bytes
    for low, b, s in itertools.product(range(base, line), (1, 2, 3), range(1, 20)):
        if b <= min(s, line - low) and 1 << (low + s + b) <= size and size % (1 << (low + b)) == 0:
            every.append(conflicts((b, low, s), columns))
    assert got[0].conflicts == min(every)
    assert [(a.conflicts, a.bytes) for a in got] == sorted((a.conflicts, a.bytes) for a in got)
    for a in got:
        s = a.swizzle
        assert a.conflicts == conflicts((s.bits, s.base, s.shift) if s else (0, 0, 0), a.row_elems)


def test_accumulators_and_copies_together() -> None:
    mma = gr.atom("mma.m16n8k16.f32.f16")
    stores = fragments(64, 64, mma.c.tv, (16, 8), 2, name="accumulators")
    got = arrange(64, 64, gr.fp16, [stores, vectors(64, 64, gr.fp16)])
    assert got[0].conflicts == 0
    assert got[0].swizzle == gr.swizzle(64, gr.fp16)
    assert next(a for a in got if a.swizzle is None and a.row_elems == 64).conflicts > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arrange(8, 12, gr.fp16, [TileAccess(8, (((0, 0, 8),),))]), "vectors that the end of a row cuts"),
        (lambda: arrange(8, 16, gr.fp16, [TileAccess(8, (((0, 9, 8),),))]), "an access that is none of the tile's"),
        (lambda: arrange(0, 16, gr.fp16, []), "sizes of tiles are positive"),
        (lambda: pack({"a": Alive(0, 0, 1)}), "an object needs bytes and an alignment"),
        (lambda: pack({"a": Alive(4, 2, 2)}), "an object that is never alive"),
        (lambda: fewest_barriers("aa", []), "operations of a schedule have different names"),
        (lambda: fewest_barriers("a", [("a", "b", 1, 0)]), "a dependence of an operation that does not exist"),
        (lambda: fewest_barriers("a", [("a", "a", 1, 0)]), "an operation that must come before itself"),
        (lambda: fewest_barriers("a", [("a", "a", -1, 0)]), "weights and distances of dependences count from 0"),
        (lambda: fewest_barriers("", []), "a schedule of no operations"),
    ],
)  # fmt: skip
def test_what_cannot_be_arranged(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(gr.VerifyError) as e:
        call()
    assert e.value.code == "PLAN_GRAPH"
    assert str(e.value).startswith(message)


# Counting one access


def test_an_access_is_counted_as_the_report_counts_it() -> None:
    """A column of 32 rows of 64 halves, two at a time: 32 words of one bank without a swizzle."""
    tv = gr.tv(gr.Layout(32, 1), gr.Layout(2, 32))
    plain = gr.count_access([32, 64], tv, gr.fp16)
    assert (plain.requests, plain.bytes, plain.vector_bytes) == (1, 128, 4)
    assert (plain.wavefronts, plain.conflicts, plain.ways, plain.sectors, plain.ideal_sectors) == (32, 31, 32, 32, 4)
    assert gr.count_access([32, 64], tv, gr.fp16, gr.swizzle(64, gr.fp16)).wavefronts == 4
    rows = gr.tv(gr.Layout((8, 4), (256, 1)), gr.Layout(8, 32))
    assert gr.count_access("[32,64:64,1]", rows, 16).sectors == 16

    for swizzle in (None, gr.swizzle(64, gr.fp16)):
        with gr.Kernel("column") as kernel:
            y = gr.output("y", [32, 2], gr.fp16, align_bytes=4)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            s = gr.alloc("s", [32, 64], gr.fp16, gr.SH, swizzle=swizzle)
            gr.init(s[t, 0], 1)
            gr.init(s[t, 1], 2)
            r = gr.alloc("r", [2], gr.fp16, gr.RF)
            gr.move(r, s.tile([1, 2])[t, 0][0, :], atom="ld.shared.b32")
            gr.move(y[t, :], r, atom="st.global.b32")
        row = next(r for r in kernel.report().rows if r.atom.startswith("ld.shared"))
        mine = gr.count_access([32, 64], tv, gr.fp16, swizzle)
        assert (row.wavefronts, row.conflicts, row.ways) == (mine.wavefronts, mine.conflicts, mine.ways)


def test_accesses_that_cannot_be_counted() -> None:
    tv = gr.tv(gr.Layout(4), gr.Layout(1))
    for call, code in (
        (lambda: gr.count_access([2, 1], tv, gr.fp16), "LAYOUT_TV"),
        (lambda: gr.count_access(gr.Layout(gr.sym("n")), tv, gr.fp16), "LAYOUT_FACT"),
        (lambda: gr.count_access([4], tv, 4), "LAYOUT_SIZE"),
        (lambda: gr.count_access(gr.Layout(4, -1), tv, 16), "LAYOUT_BOUNDS"),
    ):
        with pytest.raises(gr.LayoutError) as e:
            call()
        assert e.value.code == code
    with pytest.raises(TypeError, match="a layout and a thread-value layout are needed"):
        gr.count_access(3, tv, 16)
