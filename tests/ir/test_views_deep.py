"""Chains of views on hierarchical and multi-level tensors, against brute force over every coordinate."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import graphene as gr


def mode_sizes(level):
    return [level[i].size for i in range(level.rank)]


def level_coords(level):
    return [c[::-1] for c in itertools.product(*(range(s) for s in reversed(mode_sizes(level))))]


def at(level, coord):
    return sum(level[i](c) for i, c in enumerate(coord))


def table(t):
    """{coordinates, one tuple per level: offset}"""
    return {
        cs: t.offset + sum(at(level, c) for level, c in zip(t.levels, cs, strict=True))
        for cs in itertools.product(*(level_coords(level) for level in t.levels))
    }


@st.composite
def modes(draw, stride):
    """A mode of up to three submodes, compact from `stride` on, in a random order of strides."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    order = draw(st.permutations(range(len(sizes))))
    strides = [0] * len(sizes)
    for i in order:
        strides[i], stride = stride, stride * sizes[i]
    if len(sizes) == 1:
        return sizes[0], strides[0], stride
    return tuple(sizes), tuple(strides), stride


@st.composite
def hierarchical(draw):
    shape, strides, stride = [], [], 1
    for _ in range(draw(st.integers(1, 2))):
        s, d, stride = draw(modes(stride))
        shape.append(s)
        strides.append(d)
    return gr.Layout(tuple(shape), tuple(strides))


@given(hierarchical(), st.data())
def test_tiles_of_hierarchical_modes(layout, data):
    """rest(r) + tile(e) is the element that composition names: neighbours in the mode's own order."""
    t = gr.tensor("A", layout, gr.fp32)
    tiles = [data.draw(st.sampled_from([None, 1, 2, 3, 4, 6, 8])) for _ in range(layout.rank)]
    sizes = [layout[i].size for i in range(layout.rank)]
    try:
        v = t.tile(tiles)
    except gr.LayoutError:
        # A size that does not divide a hierarchical mode, or cuts across its submodes. Plain modes take every size.
        assert any(not isinstance(layout.shape[i], int) for i in range(layout.rank))
        return
    if v.bounds:
        return  # partial tiles have tests of their own
    each = [n if s is None else s for n, s in zip(sizes, tiles, strict=True)]
    for (r, e), offset in table(v).items():
        want = sum(layout[i](a * s + b) for i, (a, s, b) in enumerate(zip(r, each, e, strict=True)))
        assert offset == want


@given(st.data())
def test_chains_of_views_keep_their_elements(data):
    """tile, index, T and reshape in any order: what is left is what NumPy says."""
    rows, columns = data.draw(st.sampled_from([(8, 12), (16, 4), (6, 6)]))
    layout = gr.row_major(rows, columns) if data.draw(st.booleans()) else gr.col_major(rows, columns)
    t = gr.tensor("A", layout, gr.fp32)
    array = np.array([[layout(i, j) for j in range(columns)] for i in range(rows)])
    for _ in range(data.draw(st.integers(1, 4))):
        step = data.draw(st.sampled_from(["tile", "T", "slice"]))
        if step == "T":
            t, array = t.T, array.T
        elif step == "slice":
            a = data.draw(st.integers(0, array.shape[0] - 1))
            b = data.draw(st.integers(a + 1, array.shape[0]))
            t, array = t[a:b, :], array[a:b]
        else:
            sizes = [data.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0])) for n in array.shape]
            tile = [data.draw(st.integers(0, n // s - 1)) for n, s in zip(array.shape, sizes, strict=True)]
            t = t.tile(sizes)[tuple(tile)]
            array = array[tuple(slice(i * s, (i + 1) * s) for i, s in zip(tile, sizes, strict=True))]
        assert t.bounds == []
        assert t.shape == array.shape
        assert {c[0]: o for c, o in table(t).items()} == dict(np.ndenumerate(array))


class A16x16:
    tv = gr.Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
    tile = "m16,k16"
    label = "mma.a"


@given(st.data())
def test_views_of_fragments(data):
    """Tiles, indices and transposes of a fragment name the logical elements that NumPy slicing of the tile names."""
    rows, columns = data.draw(st.sampled_from([(64, 32), (16, 64), (32, 16)]))
    stages = data.draw(st.sampled_from([None, 3]))
    array = np.arange(rows * columns).reshape(columns, rows).T  # element number, column-major
    with gr.Kernel("k"):
        warp = gr.threads(32)
        t = gr.fragment("f", [rows, columns], gr.fp16, A16x16, on=warp, stages=stages)
        if stages:
            stage = data.draw(st.integers(0, stages - 1))
            t, array = t[stage], array + stage * rows * columns
        for _ in range(data.draw(st.integers(0, 3))):
            if data.draw(st.booleans()):
                t, array = t.T, array.T
                continue
            sizes = [
                data.draw(st.sampled_from([None, *(d for d in (1, 2, 4, 8, 16, 32) if n % d == 0)])) for n in t.shape
            ]
            each = [n if s is None else s for n, s in zip(array.shape, sizes, strict=True)]
            tile = [data.draw(st.integers(0, n // s - 1)) for n, s in zip(array.shape, each, strict=True)]
            t = t.tile(sizes)[tuple(tile)]
            array = array[tuple(slice(i * s, (i + 1) * s) for i, s in zip(tile, each, strict=True))]
            assert t.shape == array.shape
        got = {}
        for cs, offset in table(t).items():
            logical = [0] * 2
            for level, c in zip(t.levels, cs, strict=True):
                logical = [x * n + y for x, n, y in zip(logical, mode_sizes(level), c, strict=True)]
            got[tuple(logical)] = offset
        assert got == dict(np.ndenumerate(array))


@given(st.data())
def test_windows_are_exact(data):
    n, width = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 4))
    start, size = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 20))
    w = gr.tensor("A", [n, width], gr.fp16).window(start, size)
    inside = set()
    for (c,), offset in table(w).items():
        assert offset == (start + c[0]) * width + c[1]
        if all(b + at(levels[0], c) < extent for b, levels, extent in w.bounds):
            inside.add(start + c[0])
    assert inside == set(range(start, min(start + size, n)))
