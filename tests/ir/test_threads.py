"""Thread tensors: coordinates against brute force over every thread."""

import contextlib
import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import graphene as gr


def evaluate(e, **values):
    """Value of an index expression by Python itself: the text is Python's."""
    text = str(e).replace("bid.", "bid_")
    return eval(text, {"__builtins__": {"min": min, "max": max}}, values)


def flat(coords):
    for c in coords:
        if isinstance(c, tuple):
            yield from c
        else:
            yield c


def brute(t):
    """{coordinates: linear index} from the levels."""
    modes = [level[i] if level.rank > 1 else level for level in t.levels for i in range(level.rank)]
    out = {}
    for cs in itertools.product(*(range(m.size) for m in modes)):
        out[cs] = sum(m(c) for m, c in zip(modes, cs, strict=True))
    return out


def check_indices(t, n):
    index = list(flat(t.indices()))
    table = brute(t)
    for cs, tid in table.items():
        assert tuple(evaluate(e, tid=tid) for e in index) == cs
    assert len(set(table.values())) == n


@st.composite
def tilings(draw):
    n = draw(st.sampled_from([1, 6, 32, 36, 64, 96, 256]))
    t = gr.threads(n)
    for _ in range(draw(st.integers(0, 3))):
        level = t.levels[-1]
        sizes = []
        for i in range(level.rank):
            size = level[i].size if level.rank > 1 else level.size
            sizes.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0])))
        t = t.tile(sizes)
        if draw(st.booleans()):
            size = t.levels[0].size
            a = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
            order = gr.row_major(a, size // a) if draw(st.booleans()) else gr.Layout((a, size // a))
            with contextlib.suppress(gr.LayoutError):  # a shape that cuts across the level's modes
                t = t.reshape(0, order)
    return t, n


@given(tilings())
def test_indices_name_every_thread_once(case):
    check_indices(*case)


def test_strided_tiles():
    quads = gr.threads(32).tile([gr.Layout((4, 2), (1, 16))])
    assert str(quads) == "[4:4].[(4,2):(1,16)].thread"
    check_indices_hierarchical = list(flat(quads.indices()))
    for tid in range(32):
        pair, lane = (evaluate(e, tid=tid) for e in check_indices_hierarchical)
        assert pair == tid // 4 % 4
        assert lane == tid % 4 + 4 * (tid // 16 % 2)


def test_figure_5_and_6():
    warp = gr.threads(32)
    groups = warp.tile(8)
    groups2d = groups.reshape(0, gr.row_major(2, 2))
    assert (str(warp), str(groups), str(groups2d)) == ("[32].thread", "[4:8].[8].thread", "[2,2:16,8].[8].thread")
    (m, n), lane = groups2d.indices()
    for tid in range(32):
        assert [evaluate(e, tid=tid) for e in (m, n, lane)] == [tid // 16 % 2, tid // 8 % 2, tid % 8]
    assert str(groups2d.scalar()) == "[].thread"


def test_grids_of_rank_3_need_no_division():
    assert [str(i) for i in gr.blocks(8, 8).indices()] == ["bid.x", "bid.y"]
    m, n, b = gr.sym("M N b", min=1)
    assert [str(i) for i in gr.blocks(m, n, b).indices()] == ["bid.x", "bid.y", "bid.z"]
    assert [str(i) for i in gr.blocks(8, 1).indices()] == ["bid.x", "0"]
    grid = gr.blocks(4, 6).tile([2, 3])
    index = list(flat(grid.indices()))
    for x, y in itertools.product(range(4), range(6)):
        assert [evaluate(e, bid_x=x, bid_y=y) for e in index] == [x // 2, y // 3, x % 2, y % 3]
    flat4 = list(gr.blocks(2, 3, 2, 2).indices())
    for x in range(24):
        assert [evaluate(e, bid_x=x) for e in flat4] == [x % 2, x // 2 % 3, x // 6 % 2, x // 12]


def test_own_coordinates_are_my_group_and_constants_a_subset():
    warps = gr.threads(256).tile(32).reshape(0, gr.Layout((2, 4)))
    (wm, wn), _ = warps.indices()
    mine = warps[wm, wn]
    assert (str(mine), mine.subset) == ("[32].thread", False)
    for tid in range(256):
        assert evaluate(mine.offset, tid=tid) == tid // 32 * 32
    assert [str(i) for i in mine.indices()] == ["tid%32"]
    first = warps[0, 1]
    assert (str(first), first.subset, first.offset) == ("[32].thread", True, 64)
    row = warps[wm, :]
    assert (str(row), row.subset) == ("[4:64].[32].thread", False)


def test_slices_are_subsets_with_coordinates_of_their_own():
    groups = gr.threads(384).tile(128)
    consumers = groups[1:3]
    assert (str(consumers), consumers.offset, consumers.subset) == ("[2:128].[128].thread", 128, True)
    c, lane = consumers.indices()
    for tid in range(128, 384):
        assert (evaluate(c, tid=tid), evaluate(lane, tid=tid)) == (tid // 128 - 1, tid % 128)
    mine = consumers[c]
    assert mine.subset
    for tid in range(128, 384):
        assert evaluate(mine.offset, tid=tid) == tid // 128 * 128
    assert (groups[1:].size, groups[:2].size, groups[:].subset) == (256, 256, False)


@given(st.integers(2, 8), st.integers(2, 8), st.integers(1, 40))
def test_what_is_not_injective_is_refused(a, b, stride):
    assume(a * b <= 64)
    t = gr.threads(960)
    try:
        v = t.tile([gr.Layout((a, b), (1, stride))])
        index = list(flat(v.indices()))
    except gr.LayoutError:
        return  # refused: the law below is about what is accepted
    for cs, tid in brute_hierarchical(v).items():
        assert tuple(evaluate(e, tid=tid) for e in index) == cs


def brute_hierarchical(t):
    out = {}
    for cs in itertools.product(*(range(level.size) for level in t.levels)):
        out[cs] = sum(level(c) for level, c in zip(t.levels, cs, strict=True))
    return out


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: gr.threads(32).reshape(0, gr.Layout(32, 0)).indices(),
            "coordinates cannot be derived from the linear index   [THREAD_NOT_INJECTIVE]\n"
            "  threads: [32:0].thread\n  want: positive strides\n  got: a mode 32:0\n"
            "  fix: tile or reshape the threads so that every member has one coordinate",
        ),
        (
            lambda: gr.threads(32).tile(5),
            "threads must be tiled evenly   [THREAD_TILE]\n  threads: [32].thread\n  mode 0: 32 by 5\n"
            "  fix: choose a tile size that divides the number of threads",
        ),
        (
            lambda: gr.threads(16, 16).tile(4),
            "one tile size per mode of the innermost level is needed   [THREAD_TILE]\n"
            "  threads: [16,16:1,16].thread\n  want: 2 sizes\n  got: 1",
        ),
        (
            lambda: gr.threads(2048),
            "a block has at most 1024 threads   [THREAD_SHAPE]\n  got: 2048\n  fix: use more blocks",
        ),
        (
            lambda: gr.threads(gr.sym("T")),
            "the number of threads of a block must be constant   [THREAD_SHAPE]\n  got: T\n"
            "  fix: give threads() integers; only blocks() may depend on symbols",
        ),
        (
            lambda: gr.threads(64).tile(32)[2],
            "a thread index out of range   [THREAD_INDEX]\n"
            "  threads: [2:32].[32].thread\n  mode 0: want 0 to 1\n  got: 2",
        ),
        (
            lambda: gr.threads(64).tile(32)[gr.threads(64).tile(16).indices()[0]],
            "threads are indexed by their own coordinates or by uniform values   [THREAD_INDEX]\n"
            "  threads: [2:32].[32].thread\n  mode 0: want tid//32\n  got: tid//16\n"
            "  fix: index by what .indices() of this very tensor returned",
        ),
        (
            lambda: gr.threads(64).reshape(0, [8]),
            "a reshape keeps the number of members   [THREAD_RESHAPE]\n"
            "  threads: [64].thread\n  level 0: 64\n  got: [8] of 8\n  fix: choose sizes whose product is 64",
        ),
        (
            lambda: gr.blocks(0),
            "the number of blocks must be positive   [THREAD_SHAPE]\n  got: 0",
        ),
    ],
)
def test_errors(make, text):
    with pytest.raises(gr.LayoutError) as e:
        make()
    assert str(e.value) == text
