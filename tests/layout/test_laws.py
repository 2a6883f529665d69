"""Every operation of the algebra obeys its law at every coordinate of generated hierarchical layouts."""

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import graphene as gr

settings.register_profile("layout", max_examples=120, deadline=None)
settings.load_profile("layout")


def flat(t):
    return [t] if isinstance(t, int) else [x for m in t for x in flat(m)]


def attempt(f, *args):
    """The result, or None and the code of the error."""
    try:
        return f(*args), None
    except gr.LayoutError as e:
        return None, e.code


UNDEFINED = ("LAYOUT_DIVISIBILITY", "LAYOUT_COMPOSE")


def table(layout):
    """All offsets in colexicographic order, from shape and stride alone."""
    modes = [[i * d for i in range(s)] for s, d in zip(flat(layout.shape), flat(layout.stride), strict=True)]
    return [sum(c) for c in itertools.product(*reversed(modes))]


def extended(layout, i):
    """The function past its size: it goes on along the last mode."""
    modes = list(zip(flat(layout.shape), flat(layout.stride), strict=True))
    total = 0
    for s, d in modes[:-1]:
        total += i % s * d
        i //= s
    return total + i * modes[-1][1]


def group(draw, shape, stride, depth=2):
    """Random hierarchy over flat modes."""
    n = len(shape)
    if n == 1 and draw(st.booleans()):
        return shape[0], stride[0]
    out, i = [], 0
    while i < n:
        k = draw(st.integers(1, n - i))
        if k > 1 and depth > 0 and k < n:
            out.append(group(draw, shape[i : i + k], stride[i : i + k], depth - 1))
        else:
            k = 1
            out.append((shape[i], stride[i]))
        i += k
    return tuple(o[0] for o in out), tuple(o[1] for o in out)


@st.composite
def layouts(draw, max_modes=4, max_leaf=6, strides=(0, 40)):
    shape = draw(st.lists(st.integers(1, max_leaf), min_size=1, max_size=max_modes))
    stride = [draw(st.integers(*strides)) for _ in shape]
    return gr.Layout(*group(draw, shape, stride))


@st.composite
def nested_layouts(draw, divisible=True):
    """Modes in any order, each beginning past the extent of those below: injective, with holes."""
    shape = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4, 5]), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    stride, at = [0] * len(shape), 1
    for i in order:
        at *= draw(st.sampled_from([1, 1, 2, 3]))
        if not divisible:
            at += draw(st.integers(0, 2))
        stride[i] = at
        at *= shape[i]
    return gr.Layout(*group(draw, shape, stride))


any_layouts = st.one_of(layouts(), nested_layouts(), nested_layouts(divisible=False))


@given(any_layouts)
def test_a_call_is_the_sum_over_leaves_and_coord_inverts_the_index(layout):
    want = table(layout)
    assert layout.size == len(want)
    assert layout.cosize == max(want) + 1
    for i, offset in enumerate(want):
        coord = layout.coord(i)
        assert layout(i) == offset
        assert layout(coord) == offset
        assert gr.crd2idx(coord, layout.shape) == i
        assert gr.crd2idx(coord, layout.shape, layout.stride) == offset
        assert gr.idx2crd(i, layout.shape) == coord


@given(layouts(max_modes=3))
def test_a_coordinate_may_stop_at_any_level(layout):
    for index in itertools.product(*[range(m.size) for m in layout]):
        want = sum(m(i) for m, i in zip(layout, index, strict=True))
        assert layout(index) == want
        mixed = tuple(m.coord(i) if k % 2 else i for k, (m, i) in enumerate(zip(layout, index, strict=True)))
        assert (layout(*mixed) if isinstance(layout.shape, tuple) else layout(mixed[0])) == want


@given(any_layouts)
def test_coalesce_keeps_the_function_with_the_fewest_modes(layout):
    out = gr.coalesce(layout)
    assert table(out) == table(layout)
    assert out.depth <= 1
    modes = list(zip(flat(out.shape), flat(out.stride), strict=True))
    assert out.size == 1 or all(s > 1 for s, _ in modes)
    assert all(s0 * d0 != d1 for (s0, d0), (_, d1) in itertools.pairwise(modes))
    assert gr.coalesce(out) == out


@given(any_layouts)
def test_filter_keeps_the_set_of_offsets(layout):
    out = gr.filter(layout)
    assert set(table(out)) == set(table(layout))
    if out.size > 1:
        assert all(s > 1 and d != 0 for s, d in zip(flat(out.shape), flat(out.stride), strict=True))


@given(any_layouts, any_layouts)
@settings(max_examples=500)
def test_composition_is_the_function_of_the_function_or_an_error(a, b):
    out, code = attempt(gr.composition, a, b)
    if code:
        assert code in UNDEFINED
        assert code == "LAYOUT_DIVISIBILITY" or not additive(a, b)  # offsets are not sums over the leaves of b
        return
    assert table(out) == [extended(a, i) for i in table(b)]
    assert compatible(b.shape, out.shape)


def additive(a, b):
    modes = list(zip(flat(b.shape), flat(b.stride), strict=True))
    return all(
        extended(a, sum(i * d for i, (_, d) in zip(c, modes, strict=True)))
        == sum(extended(a, i * d) for i, (_, d) in zip(c, modes, strict=True))
        for c in itertools.product(*[range(s) for s, _ in modes])
    )


def compatible(shape, refined):
    if isinstance(shape, int):
        return shape == math.prod(flat(refined))
    return (
        isinstance(refined, tuple)
        and len(shape) == len(refined)
        and all(compatible(*p) for p in zip(shape, refined, strict=True))
    )


@given(nested_layouts(), st.data())
def test_composition_with_a_reshape_always_exists(a, data):
    """a o b for b a compact layout over factors of a's own modes, in any order."""
    factors = [p for s in flat(a.shape) for p in ([2, 2] if s == 4 else [s])]
    below = [math.prod(factors[:i]) for i in range(len(factors))]
    order = data.draw(st.permutations(range(len(factors))))
    b = gr.Layout(tuple(factors[i] for i in order), tuple(below[i] for i in order))
    out = gr.composition(a, b)
    assert table(out) == [a(i) for i in table(b)]


@given(nested_layouts(divisible=False), st.integers(1, 200))
def test_complement_is_disjoint_ordered_and_reaches_the_cotarget(layout, cotarget):
    rest = gr.complement(layout, cotarget)
    offsets = table(rest)
    assert all(x < y for x, y in itertools.pairwise(offsets))
    assert set(offsets) & set(table(layout)) == {0}
    both = gr.make_layout(layout, rest)
    assert gr.is_injective(both)
    assert len(set(table(both))) == both.size
    extent = max([s * d for s, d in zip(flat(layout.shape), flat(layout.stride), strict=True) if s > 1], default=1)
    assert rest.cosize - 1 + extent >= cotarget


@given(nested_layouts(), st.integers(1, 200))
def test_complement_leaves_no_hole_where_strides_divide(layout, cotarget):
    both = gr.make_layout(layout, gr.complement(layout, cotarget))
    assert sorted(table(both)) == list(range(both.cosize))
    step = gr.filter(layout).cosize
    assert both.size < cotarget + 2 * step * math.prod(flat(layout.shape))


@given(any_layouts)
def test_right_inverse(layout):
    inverse = gr.right_inverse(layout)
    assert [layout(i) for i in table(inverse)] == list(range(inverse.size))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_a_compact_layout_is_inverted_both_ways(shape, data):
    order = data.draw(st.permutations(range(len(shape))))
    stride = [math.prod(shape[j] for j in order[: order.index(i)]) for i in range(len(shape))]
    layout = gr.Layout(*group(data.draw, shape, stride))
    inverse = gr.right_inverse(layout)
    assert inverse.size == layout.size
    assert gr.equal_as_functions(inverse, gr.left_inverse(layout))
    assert gr.equal_as_functions(gr.composition(layout, inverse), gr.Layout(layout.size))


@given(nested_layouts())
def test_left_inverse(layout):
    inverse = gr.left_inverse(layout)
    assert [extended(inverse, x) for x in table(layout)] == list(range(layout.size))


@given(any_layouts)
def test_left_inverse_is_right_or_an_error(layout):
    inverse, code = attempt(gr.left_inverse, layout)
    if code:
        assert code in ("LAYOUT_INJECTIVE", "LAYOUT_DIVISIBILITY")
        return
    indices = [extended(inverse, x) for x in table(layout)]
    assert [extended(layout, i) for i in indices] == table(layout)
    assert indices == list(range(layout.size)) or not gr.is_injective(layout)


@given(any_layouts)
def test_is_injective_agrees_with_enumeration(layout):
    offsets = table(layout)
    assert gr.is_injective(layout) == (len(set(offsets)) == len(offsets))


@given(layouts(max_modes=3, max_leaf=3, strides=(-3, 3)))
def test_is_injective_with_negative_strides(layout):
    offsets = table(layout)
    assert gr.is_injective(layout) == (len(set(offsets)) == len(offsets))
    assert layout.cosize == max(offsets) + 1


small = layouts(max_modes=3, max_leaf=3, strides=(0, 4))


@given(small, small)
@settings(max_examples=400)
def test_equal_as_functions_agrees_with_enumeration(a, b):
    assert gr.equal_as_functions(a, b) == (table(a) == table(b))
    assert gr.equal_as_functions(a, gr.coalesce(a))


@given(nested_layouts(), nested_layouts())
@settings(max_examples=200)
def test_divide_partitions_the_layout(layout, tile):
    out, code = attempt(gr.logical_divide, layout, tile)
    if code:
        assert code in UNDEFINED
        return
    rest = gr.complement(tile, layout.size)
    assert out.rank == 2
    assert gr.equal_as_functions(out[0], gr.composition(layout, tile))
    index = [i + j for j in table(rest) for i in table(tile)]
    assert table(out) == [extended(layout, i) for i in index]
    assert sorted(index)[: layout.size] == list(range(layout.size))  # every element, in one tile


def test_a_tile_may_hold_an_element_many_times():
    assert gr.logical_divide("12:1", "(4,3):(0,1)") == gr.Layout(((4, 3), 4), ((0, 1), 3))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 5))
def test_a_tile_that_does_not_divide_rounds_the_count_up(size, tile, stride):
    out = gr.logical_divide(gr.Layout(size, stride), tile)
    assert out == gr.Layout((tile, -(-size // tile)), (stride, tile * stride if -(-size // tile) > 1 else 0))


@given(st.tuples(*[st.sampled_from([4, 6, 8, 12])] * 3), st.data())
def test_by_mode_divides_agree(shape, data):
    layout = gr.row_major(*shape)
    tiler = tuple(data.draw(st.sampled_from([None, 1, 2, 4, 5])) for _ in range(data.draw(st.integers(1, 3))))
    logical = gr.logical_divide(layout, tiler)
    zipped = gr.zipped_divide(layout, tiler)
    tiled = gr.tiled_divide(layout, tiler)
    n = len(tiler)
    for i, mode in enumerate(layout):
        entry = tiler[i] if i < n else None
        assert logical[i] == (mode if entry is None else gr.logical_divide(mode, entry))
        if i >= n:
            assert zipped[1][i] == mode
        else:
            assert zipped[0][i] == (gr.Layout(1, 0) if entry is None else logical[i][0])
            assert zipped[1][i] == (mode if entry is None else logical[i][1])
    assert tiled[0] == zipped[0]
    assert list(tiled)[1:] == list(zipped[1])


@given(nested_layouts(), nested_layouts())
@settings(max_examples=200)
def test_product_repeats_the_block_disjointly(block, tiler):
    out, code = attempt(gr.logical_product, block, tiler)
    if code:
        assert code in UNDEFINED
        return
    assert out[0] == block
    assert compatible(tiler.shape, out[1].shape)
    starts = gr.complement(block, block.size * tiler.cosize)
    assert table(out[1]) == [extended(starts, i) for i in table(tiler)]
    assert gr.is_injective(out)


@given(nested_layouts(), st.integers(1, 8), st.integers(1, 8))
def test_rank_sensitive_products(block, m, n):
    tiler = gr.row_major(m, n)
    assume(math.prod(flat(block.shape)) <= 64)
    blocked, code = attempt(gr.blocked_product, block, tiler)
    if code:
        assert code in UNDEFINED
        return
    raked = gr.raked_product(block, tiler)
    assert blocked.rank == raked.rank == max(block.rank, 2)
    for i in range(blocked.rank):
        inner = block[i] if i < block.rank else gr.Layout(1, 0)
        outer_size = (m, n)[i] if i < 2 else 1
        assert blocked[i][0] == raked[i][1] == inner
        assert blocked[i][1] == raked[i][0]
        assert blocked[i][1].size == outer_size
    assert gr.is_injective(blocked)
    assert len(set(table(blocked))) == block.size * m * n


@given(any_layouts, any_layouts)
def test_make_layout_concatenates(a, b):
    both = gr.tv(a, b)
    assert both == gr.make_layout(a, b)
    assert both[0] == a
    assert both[1] == b
    assert table(both) == [x + y for y in table(b) for x in table(a)]


@pytest.mark.parametrize("shape", [(4,), (4, 8), (2, (3, 4), 5), ((2, 2), (2, 2))])
def test_major_orders(shape):
    col, row = gr.col_major(*shape), gr.row_major(*shape)
    assert table(col) == list(range(col.size))
    assert sorted(table(row)) == list(range(row.size))
    last = flat(row.shape)
    assert flat(row.stride) == [math.prod(last[i + 1 :]) for i in range(len(last))]
    assert gr.Layout(shape) == (col if len(shape) > 1 else gr.make_layout(col))
