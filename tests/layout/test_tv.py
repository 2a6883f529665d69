"""Thread-value layouts: range, cover, replication, inverse, quotient; and the widest vectors of a layout."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene import _core

MMA_A = gr.tv("(4,8):(32,1)", "(2,2,2):(16,8,128)")  # m16,k16
MMA_B = gr.tv("(4,8):(16,1)", "(2,2):(8,64)")  # n8,k16
MMA_C = gr.tv("(4,8):(32,1)", "(2,2):(16,8)")  # m16,n8
LDMATRIX_X4 = gr.tv("32:2", "(2,4):(1,64)")  # registers of ldmatrix.x4: c8,r8,q4
LDMATRIX_X4_ROWS = gr.tv("32:8", "8:1")  # and the row each lane points at
ALL = [MMA_A, MMA_B, MMA_C, LDMATRIX_X4, LDMATRIX_X4_ROWS]


def strategy(draw):
    modes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=3))
    return gr.Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))


@st.composite
def tvs(draw):
    return gr.tv(strategy(draw), strategy(draw))


@given(tvs(), st.integers(0, 3))
@settings(deadline=None)
def test_the_table_inverts_the_layout(tv, extra):
    elements = tv.cosize + extra
    table = _core.TvTable(tv, elements)
    assert (table.threads, table.values) == (tv[0].size, tv[1].size)
    held = {e: [] for e in range(elements)}
    for t, v in itertools.product(range(table.threads), range(table.values)):
        held[tv(t, v)].append((t, v))
    assert [table.holders(e) for e in range(elements)] == list(held.values())
    counts = {len(h) for h in held.values()}
    assert table.first_hole == next((e for e, h in held.items() if not h), None)
    assert table.replication == (counts.pop() if len(counts) == 1 else None)
    assert table.repeats_within_thread == any(len({t for t, _ in h}) < len(h) for h in held.values())
    if table.first_hole is None:
        table.require_cover()


def test_the_atoms_hold_each_element_once():
    for tv in ALL:
        table = _core.TvTable(tv, tv.size)
        assert table.replication == 1
        table.require_cover()
    broadcast = _core.TvTable(gr.tv("(8,4):(8,0)", "8:1"), 64)  # rows given by 8 of 32 lanes
    assert broadcast.replication == 4
    assert broadcast.holders(9) == [(1, 1), (9, 1), (17, 1), (25, 1)]


@given(tvs(), st.integers(1, 5), st.data())
@settings(deadline=None)
def test_quotient(d, copies, data):
    """F o D^-1 for a fragment F that holds images of the atom's tile under random one-to-one maps."""
    atom = _core.TvTable(d, d.cosize)
    n = atom.elements
    group = data.draw(st.integers(0, copies - 1))
    stride = data.draw(st.integers(1, 3))
    f = gr.tv(
        gr.Layout((d[0].size, 2), (1, 0)) if d[0].stride == 0 else d[0],
        gr.make_layout(d[1], gr.Layout(copies, n)),
    )
    f = gr.Layout(f.shape, scaled(f.stride, stride))
    if f[0].size != d[0].size:
        return
    fragment = _core.TvTable(f, f.cosize)
    values = [v + group * atom.values for v in range(atom.values)]
    q = _core.tv_quotient(fragment, values, atom)
    assert len(q) == n
    for t, v in itertools.product(range(atom.threads), range(atom.values)):
        assert q[d(t, v)] == f(t, values[v]) == d(t, v) * stride + group * n * stride
    held = {d(t, v) for t, v in itertools.product(range(atom.threads), range(atom.values))}
    assert all((q[e] == -1) == (e not in held) for e in range(n))


def scaled(t, by):
    return t * by if isinstance(t, int) else tuple(scaled(m, by) for m in t)


def test_ldmatrix_fills_the_a_operand():
    """One ldmatrix.x4 loads mma's A fragment: its tile's rows are eight consecutive k of one m."""
    q = _core.tv_quotient(_core.TvTable(MMA_A, 256), list(range(8)), _core.TvTable(LDMATRIX_X4, 256))
    offset, layout = _core.layout_from_table(q)
    assert (offset, str(layout)) == (0, "(8,16,2):(16,1,128)")  # c8 -> k, r8 x 2 -> m, the rest -> k
    for lane in range(32):
        row = [q[LDMATRIX_X4_ROWS(lane, i)] for i in range(8)]
        m, k = row[0] % 16, row[0] // 16
        assert row == [m + 16 * (k + i) for i in range(8)]
        assert (m, k) == (lane % 16, lane // 16 * 8)


def test_quotient_of_the_second_warp_and_group():
    """Two warps side by side in m, two n8 blocks of values each."""
    f = gr.tv("((4,8),2):((64,1),16)", "((2,2),2):((32,8),256)")  # m32,n16
    d = _core.TvTable(MMA_C, 128)
    q = _core.tv_quotient(_core.TvTable(f, 512), [4, 5, 6, 7], d, 32)
    assert q == [16 + m + 32 * (8 + n) for n in range(8) for m in range(16)]


def test_quotients_that_do_not_exist():
    a, d = _core.TvTable(MMA_A, 256), _core.TvTable(LDMATRIX_X4, 256)
    broadcast = _core.TvTable(gr.tv("32:0", "1:0"), 1)
    for call, message in [
        (lambda: _core.tv_quotient(a, [0], d), "the atom takes 8 values a thread, got a group of 1"),
        (
            lambda: _core.tv_quotient(a, [0, 1, 2, 3, 4, 5, 6, 8], d),
            "value 8 of a fragment with 8 values a thread",
        ),
        (
            lambda: _core.tv_quotient(a, list(range(8)), d, 1),
            "the atom takes 32 threads from thread 1 of a fragment on 32",
        ),
        (
            lambda: _core.tv_quotient(a, [0], broadcast),
            "element 0 of the atom's tile would be elements 0 and 32 of the fragment (thread 1, value 0)",
        ),
    ]:
        with pytest.raises(gr.LayoutError) as e:
            call()
        assert e.value.code == "LAYOUT_TV"
        assert e.value.diagnostics[0]["message"] == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: _core.TvTable(MMA_A, 255, "operand a"),
            "operand a: thread 31, value 7 is element 255, outside of the 255 elements of the tile",
        ),
        (
            lambda: _core.TvTable(gr.tv("32:1", "2:-1"), 64),
            "TV layout: thread 0, value 1 is element -1, outside of the 64 elements of the tile",
        ),
        (
            lambda: _core.TvTable(gr.tv("32:2", "1:0"), 64).require_cover(),
            "TV layout: no thread holds element 1 of the 64 elements of the tile",
        ),
        (
            lambda: _core.TvTable(gr.Layout(32), 32),
            "TV layout must have two modes (threads, values) of plain integers, got 32:1",
        ),
    ],
)
def test_tv_layouts_that_do_not_fit(call, message):
    with pytest.raises(gr.LayoutError) as e:
        call()
    assert e.value.code == "LAYOUT_TV"
    assert e.value.diagnostics[0]["message"] == message


def test_tv_equality_is_that_of_the_functions():
    assert _core.tv_equal(MMA_C, gr.tv("(2,2,8):(32,64,1)", "(2,2):(16,8)"))
    assert not _core.tv_equal(MMA_C, gr.tv("(4,8):(32,1)", "(2,2):(8,16)"))
    assert not _core.tv_equal(gr.tv("4:1", "8:4"), gr.tv("8:1", "4:8"))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-5, 20)), min_size=1, max_size=4), st.integers(0, 9))
@settings(deadline=None)
def test_a_table_becomes_the_layout_it_came_from(modes, offset):
    layout = gr.Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))
    found = _core.layout_from_table([offset + layout(i) for i in range(layout.size)])
    assert found == (offset, gr.coalesce(layout))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_a_table_is_a_layout_exactly_or_not_at_all(values):
    found = _core.layout_from_table(values)
    if found is not None:
        assert [found[0] + found[1](i) for i in range(found[1].size)] == values
    else:
        assert not is_layout([v - values[0] for v in values])


def is_layout(f):
    """By brute force over the factorings of the size: the strides follow from the values."""
    n = len(f)
    return n == 1 or any(
        n % s == 0
        and all(f[i] == i % s * f[1] + f[i // s * s] for i in range(n))
        and all(f[i] == i * f[1] for i in range(s))
        and is_layout(f[::s])
        for s in range(2, n + 1)
    )


@st.composite
def vector_layouts(draw):
    shape = [draw(st.sampled_from([1, 2, 3, 4, 6, 8])) for _ in range(draw(st.integers(1, 3)))]
    order = draw(st.permutations(range(len(shape))))
    stride, at = [0] * len(shape), draw(st.sampled_from([1, 1, 1, 2]))
    for i in order:
        stride[i] = at
        at = at * shape[i] * draw(st.sampled_from([1, 1, 2])) + draw(st.sampled_from([0, 0, 0, 1]))
    return gr.Layout(tuple(shape), tuple(stride))


def vectors(layout, mode):
    """All V that the law of max_vector allows, by brute force."""
    shape = [m.size for m in layout]
    good = []
    for v in range(1, shape[mode] + 1):
        ranges = [range(0, s, v) if i == mode else range(s) for i, s in enumerate(shape)]
        ok = shape[mode] % v == 0
        for c in itertools.product(*ranges) if ok else []:
            at = [layout(*[x + k if i == mode else x for i, x in enumerate(c)]) for k in range(v)]
            ok = ok and at == list(range(at[0], at[0] + v)) and at[0] % v == 0
        if ok:
            good.append(v)
    return good


@given(vector_layouts(), st.data())
@settings(deadline=None, max_examples=200)
def test_max_vector(layout, data):
    mode = data.draw(st.integers(0, layout.rank - 1))
    assert _core.max_vector(layout, mode) == max(vectors(layout, mode))


@given(st.sampled_from([(8, 64), (16, 32), (4, 128)]), st.integers(0, 3), st.sampled_from([0, 4, 8]))
def test_max_vector_under_a_swizzle(shape, base, offset):
    c = gr.ComposedLayout(gr.Swizzle(2, base, 3), offset, gr.row_major(*shape))
    v = _core.max_vector(c, 1)
    assert v == math.gcd(2**base, offset)
    assert v in vectors(c, 1)


@given(vector_layouts(), vector_layouts())
@settings(deadline=None)
def test_max_common_vector(a, b):
    n = _core.max_common_vector(a, b)
    r = gr.right_inverse(b)

    def common(i):
        return i < r.size and r(i) < a.size and a(r(i)) == i

    assert n >= 1
    assert n == 1 or all(common(i) for i in range(n))
    assert not common(n) or n == 0


def test_max_common_vector_of_known_layouts():
    assert _core.max_common_vector("(8,8):(8,1)", "(8,8):(8,1)") == 64
    assert _core.max_common_vector("(8,8):(8,1)", "(8,8):(16,1)") == 8
    assert _core.max_common_vector("(8,8):(8,1)", "(8,8):(1,8)") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: _core.TvTable(gr.tv(gr.Layout(4, 2**62), 2), 8),
        lambda: gr.is_injective(gr.Layout((4, 4), (2**61, -(2**61)))),
        lambda: _core.layout_from_table([-(2**63), 2**63 - 1]),
    ],
)
def test_offsets_past_64_bits_are_errors(call):
    with pytest.raises(gr.LayoutError) as e:
        call()
    assert e.value.code == "SYM_OVERFLOW"


def test_large_and_empty_thread_value_layouts():
    with pytest.raises(gr.LayoutError, match="TV layout is too large to be tabulated"):
        _core.TvTable(gr.make_layout(gr.Layout(2**40, 0), gr.Layout(0)), 8)
    assert _core.TvTable(gr.make_layout(0, 4), 8).first_hole == 0
