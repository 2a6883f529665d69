"""Views against brute force: the elements of a view are those NumPy slicing of an index array gives."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphene as gr


def coords(layout):
    """All coordinates of a layout, one colexicographic index per mode, first mode fastest."""
    sizes = [layout[i].size for i in range(layout.rank)]
    return [c[::-1] for c in itertools.product(*(range(s) for s in reversed(sizes)))]


def offset(layout, coord):
    return sum(layout[i](c) for i, c in enumerate(coord))


def elements(t):
    """{(coordinate per level): offset} of every element."""
    out = {}
    for cs in itertools.product(*(coords(level) for level in t.levels)):
        out[cs] = t.offset + sum(offset(level, c) for level, c in zip(t.levels, cs, strict=True))
    return out


def inside(t):
    """The coordinates that the bounds call inside."""
    out = set()
    for cs in itertools.product(*(coords(level) for level in t.levels)):
        position = [
            base + sum(offset(level, c) for level, c in zip(levels, cs, strict=True)) for base, levels, _ in t.bounds
        ]
        if all(p < extent for p, (_, _, extent) in zip(position, t.bounds, strict=True)):
            out.add(cs)
    return out


def index_array(layout, shape):
    """Element offsets of a tensor of this logical shape, as an array."""
    a = np.zeros(shape, np.int64)
    for c in itertools.product(*(range(s) for s in shape)):
        a[c] = layout(*c)
    return a


@st.composite
def tensors(draw, ranks=(1, 2, 3), divisible=True):
    rank = draw(st.sampled_from(ranks))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(rank))
    tiles = []
    for s in shape:
        options = [d for d in range(1, s + 1) if s % d == 0] if divisible else list(range(1, s + 3))
        tiles.append(draw(st.sampled_from([None, *options])))
    order = draw(st.permutations(range(rank)))
    pad = draw(st.integers(0, 3))
    stride, at = [0] * rank, 1
    for d in order:
        stride[d], at = at, at * (shape[d] + pad)
    return shape, stride, tiles


@given(tensors())
def test_tiles_are_numpy_slices(case):
    shape, stride, tiles = case
    layout = gr.Layout(tuple(shape), tuple(stride))
    array = index_array(layout, shape)
    t = gr.tensor("A", layout, gr.fp32).tile(tiles)
    assert t.bounds == []
    sizes = [s if e is None else e for s, e in zip(shape, tiles, strict=True)]
    for (tile, element), got in elements(t).items():
        want = array[tuple(r * s + e for r, s, e in zip(tile, sizes, element, strict=True))]
        assert got == want
    for tile in coords(t.levels[0]):
        part = t[tile]
        want = array[tuple(slice(r * s, (r + 1) * s) for r, s in zip(tile, sizes, strict=True))]
        assert [v for _, v in sorted(elements(part).items(), key=lambda kv: kv[0][0][::-1])] == want.ravel("F").tolist()


@given(tensors(divisible=False))
def test_partial_tiles_have_exact_bounds(case):
    shape, stride, tiles = case
    t = gr.tensor("A", gr.Layout(tuple(shape), tuple(stride)), gr.fp32).tile(tiles)
    sizes = [s if e is None else e for s, e in zip(shape, tiles, strict=True)]
    assert t.levels[0].size == np.prod([-(-n // s) for n, s in zip(shape, sizes, strict=True)])
    want = {
        (tile, element)
        for tile, element in elements(t)
        if all(r * s + e < n for r, s, e, n in zip(tile, sizes, element, shape, strict=True))
    }
    assert inside(t) == want
    assert (t.bounds == []) == all(n % s == 0 for n, s in zip(shape, sizes, strict=True))
    for tile in coords(t.levels[0]):  # indexing keeps them exact
        assert inside(t[tile]) == {(e,) for r, e in want if r == tile}


@given(tensors(divisible=False), st.data())
def test_tiles_of_partial_tiles_stay_exact(case, data):
    shape, stride, tiles = case
    sizes = [s if e is None else e for s, e in zip(shape, tiles, strict=True)]
    again = [data.draw(st.sampled_from([None, *range(1, s + 2)])) for s in sizes]
    inner = [s if e is None else e for s, e in zip(sizes, again, strict=True)]
    t = gr.tensor("A", gr.Layout(tuple(shape), tuple(stride)), gr.fp32).tile(tiles)
    for tile in coords(t.levels[0]):
        v = t[tile].tile(again)
        want = set()
        for r, e in elements(v):
            local = [a * s + b for a, s, b in zip(r, inner, e, strict=True)]
            fits = all(p < s for p, s in zip(local, sizes, strict=True))
            if fits and all(q * s + p < n for q, s, p, n in zip(tile, sizes, local, shape, strict=True)):
                want.add((r, e))
        assert inside(v) == want


def test_an_index_past_the_end_is_an_empty_tile():
    t = gr.tensor("A", [64, 64], gr.fp16).tile([16, 64])
    v = t[4, 0]  # there are four: 0 to 3
    assert inside(v) == set()
    assert len(inside(t[3, 0])) == 16 * 64
    nested = gr.tensor("A", [100], gr.fp16).tile([32])[1].tile([16])[2]  # tile 2 of two, though element 64 exists
    assert inside(nested) == set()


def test_an_unknown_index_is_bounded_on_both_sides():
    n = gr.sym("n", min=-4, max=9)
    v = gr.tensor("A", [8, 4], gr.fp16)[n, :]
    assert [str(b[2]) for b in v.bounds] == ["1", "8"]
    assert [str(b[0]) for b in v.bounds] == ["-n", "n"]
    assert gr.tensor("A", [8, 4], gr.fp16)[gr.sym("m", min=0, max=7), :].bounds == []


def test_proven_divisibility_adds_no_bound():
    m = gr.sym("M", multiple_of=128)
    t = gr.tensor("A", gr.row_major(m, 64), gr.fp16)
    assert t.tile([128, None]).bounds == []
    assert t.tile([64, 32]).bounds == []
    assert str(t.tile([128, None])) == "[M//128,1:8192,0].[128,64:64,1].fp16.GL"
    partial = t.tile([256, None])
    assert len(partial.bounds) == 1
    assert partial[0, 0].bounds == [(0, partial[0, 0].bounds[0][1], m)]


@given(tensors(ranks=(2,)))
def test_transposes_and_permutes(case):
    shape, stride, tiles = case
    t = gr.tensor("A", gr.Layout(tuple(shape), tuple(stride)), gr.fp32).tile(tiles)
    assert elements(t.T) == {tuple(c[::-1] for c in cs): v for cs, v in elements(t).items()}
    assert str(t.permute(1, 0)) == str(t.T)
    assert str(t.T.T) == str(t)


@given(tensors(ranks=(2, 3)), st.data())
def test_slices(case, data):
    shape, stride, _ = case
    layout = gr.Layout(tuple(shape), tuple(stride))
    array = index_array(layout, shape)
    index = []
    for s in shape:
        kind = data.draw(st.sampled_from(["at", "slice", "all", "from", "to"]))
        a = data.draw(st.integers(0, s - 1))
        b = data.draw(st.integers(a + 1, s))
        kinds = {"at": a, "slice": slice(a, b), "all": slice(None), "from": slice(a, None), "to": slice(None, b)}
        index.append(kinds[kind])
    v = gr.tensor("A", layout, gr.fp32)[tuple(index)]
    want = array[tuple(index)]
    got = [x for _, x in sorted(elements(v).items(), key=lambda kv: kv[0][0][::-1] if kv[0] else ())]
    assert got == want.ravel("F").tolist()


def test_reshape_is_composition():
    t = gr.tensor("A", gr.Layout((4, 8), (1, 4)), gr.fp32).tile([2, 4])
    for shape in ([4], gr.Layout(4), gr.row_major(2, 2), [1, 4], gr.Layout(((2, 2), 1))):
        level = t.reshape(0, shape).levels[0]
        layout = shape if isinstance(shape, gr.Layout) else gr.Layout(tuple(shape))
        assert level.rank == layout.rank
        assert [level(i) for i in range(4)] == [t.levels[0](layout(i)) for i in range(4)]
    assert str(t.reshape(0, gr.Layout(4))) == "[(2,2):(2,16)].[2,4:1,4].fp32.GL"
    assert str(gr.tensor("b", [128], gr.fp16).reshape(0, [1, 128])) == "[1,128:1,1].fp16.GL"


def test_windows():
    start, size = gr.sym("start"), gr.sym("size")
    n = gr.sym("n")
    w = gr.tensor("A", gr.row_major(n, 64), gr.fp16).window(start, size)
    assert str(w) == "[size,64:64,1].fp16.GL"
    assert str(w.offset) == "start*64"
    assert [(str(b), str(e)) for b, _, e in w.bounds] == [("start", "n")]
    fixed = gr.tensor("A", [10, 2], gr.fp16).window(3, 4)
    assert fixed.bounds == []
    assert fixed.offset == 6


# The paper's figures, as text.


def test_figure_3():
    shown = {
        "%A:[4,8:1,4].fp32.GL": gr.tensor("A", gr.Layout((4, 8), (1, 4)), gr.fp32),
        "%B:[4,8:8,1].fp32.GL": gr.tensor("B", [4, 8], gr.fp32),
        "%C:[4,(2,4):2,(1,8)].fp32.GL": gr.tensor("C", gr.Layout((4, (2, 4)), (2, (1, 8))), gr.fp32),
        "%D:[(2,2),(2,4):(1,4),(2,8)].fp32.GL": gr.tensor("D", gr.Layout(((2, 2), (2, 4)), ((1, 4), (2, 8))), gr.fp32),
    }
    for text, t in shown.items():
        assert str(t) == text
    a, b, c, d = shown.values()
    assert (a[0, 3].offset, b[0, 3].offset, c[0, 3].offset, d[0, 3].offset) == (12, 3, 9, 10)
    assert c[0, (1, 1)].offset == 9
    assert d[(0, 0), (1, 1)].offset == 10


def test_figure_4():
    a = gr.tensor("A", gr.Layout((4, 8), (1, 4)), gr.fp32)
    b, c, d = (
        a.tile([2, 4]),
        a.tile([gr.Layout(2, 2), gr.Layout(4, 1)]),
        a.tile([gr.Layout(2, 2), gr.Layout((2, 2), (1, 4))]),
    )
    assert str(b) == "[2,2:2,16].[2,4:1,4].fp32.GL"
    assert str(c) == "[2,2:1,16].[2,4:2,4].fp32.GL"
    assert str(d) == "[2,2:1,8].[2,(2,2):2,(4,16)].fp32.GL"

    def tile(t, i, j):
        part = t[i, j]
        return [[part[m, n].offset for n in range(4)] for m in range(2)]

    assert tile(b, 0, 0) == [[0, 4, 8, 12], [1, 5, 9, 13]]
    assert tile(b, 1, 1) == [[18, 22, 26, 30], [19, 23, 27, 31]]
    assert tile(c, 0, 0) == [[0, 4, 8, 12], [2, 6, 10, 14]]
    assert tile(c, 1, 1) == [[17, 21, 25, 29], [19, 23, 27, 31]]
    assert tile(d, 0, 0) == [[0, 4, 16, 20], [2, 6, 18, 22]]
    assert tile(d, 1, 1) == [[9, 13, 25, 29], [11, 15, 27, 31]]


def test_tile_sizes_count_the_elements_of_the_outermost_level():
    t = gr.tensor("A", gr.Layout((8, 8), (1, 8)), gr.fp32).tile([2, 4])
    assert str(t.tile([2, 1])) == "[2,2:4,32].[2,1:2,32].[2,4:1,8].fp32.GL"


# Fragments.


class C16x8:
    """The accumulator of mma.m16n8k16, as an atom's operand looks."""

    tv = gr.Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
    tile = "m16,n8"
    label = "mma.c"


class A16x16:
    tv = gr.Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
    tile = "m16,k16"
    label = "mma.a"


@pytest.fixture
def warps():
    with gr.Kernel("k"):
        warps = gr.threads(256).tile(32).reshape(0, gr.Layout((2, 4)))
        (wm, wn), _ = warps.indices()
        yield warps, warps[wm, wn], wm, wn


def test_fragments_print_warps_registers_atom(warps):
    group, warp, wm, wn = warps
    acc = gr.fragment("acc", [128, 128], gr.fp32, C16x8, on=group)
    assert str(acc).split(":", 1)[1] == "[2,4:64,4096].[4,4:16,1024].[16,8:1,128].fp32.RF<mma.c>"
    assert str(acc[wm, wn]).split(":", 1)[1] == "[4,4:16,1024].[16,8:1,128].fp32.RF<mma.c>"
    assert str(acc[wm, wn].offset) == str(wm * 64 + wn * 4096)
    assert acc.shape == (128, 128)
    assert str(acc.values).split(":", 1)[1] == "[64].fp32.RF"
    ra = gr.fragment("ra", [64, 16], gr.fp16, A16x16, on=warp, stages=2)
    assert str(ra).split(":", 1)[1] == "[2:1024].[4,1:16,1024].[16,16:1,64].fp16.RF<mma.a>"
    assert ra[1].values.offset == 32


def test_fragment_tiles_count_logical_elements(warps):
    _, warp, _, _ = warps
    q = gr.fragment("q", [64, 128], gr.fp16, A16x16, on=warp)
    tiled = q.tile([None, 16])
    assert str(tiled).split(":", 1)[1] == "[1,8:0,1024].[4,1:16,1024].[16,16:1,64].fp16.RF<mma.a>"
    assert str(tiled[0, 3]).split(":", 1)[1] == "[4,1:16,1024].[16,16:1,64].fp16.RF<mma.a>"
    assert tiled[0, 3].offset == 3 * 1024
    for sizes in ([16, 16], [32, 64], [8, 2], [64, 128], [None, 8]):
        t = q.tile(sizes)
        dims = [n if s is None else s for n, s in zip((64, 128), sizes, strict=True)]
        for tile in coords(t.levels[0]):
            want = {
                (r * dims[0] + i) + (c * dims[1] + j) * 64
                for r, c in [tile]
                for i in range(dims[0])
                for j in range(dims[1])
            }
            assert set(elements(t[tile]).values()) == want


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda t: t.tile([2]),
            "one tile size per dimension is needed   [TENSOR_TILE]\n"
            "  tensor: [4,8:1,4].fp32.GL\n  want: 2 sizes\n  got: 1\n  fix: None keeps a dimension whole",
        ),
        (
            lambda t: t.tile([0, 1]),
            "a tile size must be positive, got 0   [TENSOR_TILE]\n  tensor: [4,8:1,4].fp32.GL\n  mode: 0",
        ),
        (
            lambda t: t.tile([gr.Layout(2, 0), 1]),
            "the tile 2:0 names an element twice   [TENSOR_TILE]\n  tensor: [4,8:1,4].fp32.GL\n  mode: 0",
        ),
        (
            lambda t: t[0],
            "one index per mode of the outermost level is needed   [TENSOR_INDEX]\n"
            "  tensor: [4,8:1,4].fp32.GL\n  want: 2\n  got: 1\n  fix: ':' keeps a mode",
        ),
        (
            lambda t: t[4, 0],
            "an index past the end   [TENSOR_INDEX]\n  tensor: [4,8:1,4].fp32.GL\n  mode 0: want 0 to 3\n  got: 4\n"
            "  fix: index one that there is, or leave out the threads that have none: gr.if_(...)",
        ),
        (
            lambda t: t[0, -1],
            "a negative index   [TENSOR_INDEX]\n  tensor: [4,8:1,4].fp32.GL\n  mode 1: want 0 to 7\n  got: -1\n"
            "  fix: indices count from 0; they do not wrap around",
        ),
        (
            lambda t: t[0:5, 0],
            "a slice that is not proven inside   [TENSOR_INDEX]\n  tensor: [4,8:1,4].fp32.GL\n"
            "  mode 0: want 0 <= start < stop <= 4\n  got: 0:5\n"
            "  fix: use .window(start, size) for a part whose bounds are known at run time",
        ),
        (
            lambda t: t.permute(0, 0),
            "an order names every mode once   [TENSOR_RANK]\n  tensor: [4,8:1,4].fp32.GL\n"
            "  fix: permute(1, 0) swaps two modes",
        ),
        (
            lambda t: t[0, :].T,
            ".T swaps the two modes of every level   [TENSOR_RANK]\n  tensor: [8:4].fp32.GL\n"
            "  want: levels of rank 2\n  got: [8]\n  fix: use .permute() for other ranks",
        ),
        (
            lambda t: t.reshape(0, [4]),
            "a reshape keeps the number of elements   [TENSOR_RESHAPE]\n  tensor: [4,8:1,4].fp32.GL\n"
            "  level 0: 32\n  got: [4] of 4\n  fix: choose sizes whose product is 32",
        ),
        (
            lambda t: t.reshape(1, [4]),
            "no such level   [TENSOR_RESHAPE]\n  tensor: [4,8:1,4].fp32.GL\n  want: 0 to 0\n  got: 1",
        ),
        (
            lambda t: t.values,
            "only a fragment has values of its own   [TENSOR_VALUES]\n  tensor: [4,8:1,4].fp32.GL",
        ),
        (
            lambda t: t[0, 0][0],
            "a scalar has no index   [TENSOR_INDEX]\n  tensor: [].fp32.GL",
        ),
    ],
)
def test_errors(make, text):
    t = gr.tensor("A", gr.Layout((4, 8), (1, 4)), gr.fp32)
    with pytest.raises(gr.LayoutError) as e:
        make(t)
    assert str(e.value) == text


def test_a_hierarchical_mode_must_divide():
    t = gr.tensor("C", gr.Layout((4, (2, 4)), (2, (1, 8))), gr.fp32)
    assert str(t.tile([2, 2])) == "[2,4:4,8].[2,2:2,1].fp32.GL"
    with pytest.raises(gr.LayoutError) as e:
        t.tile([2, 3])
    assert str(e.value).splitlines() == [
        "the tile 3:1 does not divide the hierarchical mode (2,4):(1,8) of 8 elements   [TENSOR_TILE]",
        "  tensor: [4,(2,4):2,(1,8)].fp32.GL",
        "  mode: 1",
    ]


def test_windows_that_cannot_be():
    rows, n = gr.tensor("A", [64, 8], gr.fp32, gr.SH), gr.sym("n", min=-1)
    with pytest.raises(gr.LayoutError) as e:
        rows.window(n, 3)
    assert str(e.value).splitlines() == [
        "the start must be known to be non-negative, except in global memory   [TENSOR_WINDOW]",
        "  tensor: [64,8:8,1].fp32.SH",
        "  start: n",
        "  size: 3",
        "  fix: give the symbols their facts (min=0)",
    ]
    with pytest.raises(gr.LayoutError) as e:
        gr.tensor("A", gr.Layout(((2, 4), 3), ((1, 2), 8)), gr.fp32).window(0, 3)
    assert str(e.value).splitlines() == [
        "a window needs a plain outermost mode in memory or private registers   [TENSOR_WINDOW]",
        "  tensor: [(2,4),3:(1,2),8].fp32.GL",
    ]
