"""Symbolic sizes and strides: an answer holds for every value the facts allow, else the missing fact is named."""

import itertools
import pickle

import pytest

import graphene as gr
from graphene import _core

M, N = gr.sym("M N")
K = gr.sym("K", multiple_of=8)
S = gr.sym("S", min=1)  # a stride
P = gr.sym("P", min=16, max=20)
VALUES = {"M": [0, 1, 2, 3, 5], "N": [0, 1, 2, 7], "K": [0, 8, 16], "S": [1, 3], "P": [16, 17, 20]}


def value(t, env):
    return tuple(value(m, env) for m in t) if isinstance(t, tuple) else _core.sym_evaluate(t, env)


def at(layout, env):
    return gr.Layout(value(layout.shape, env), value(layout.stride, env))


def flat(t):
    return [x for m in t for x in flat(m)] if isinstance(t, tuple) else [t]


def table(layout):
    modes = [[i * d for i in range(s)] for s, d in zip(flat(layout.shape), flat(layout.stride), strict=True)]
    return [sum(c) for c in itertools.product(*reversed(modes))]


def extended(layout, i):
    modes = list(zip(flat(layout.shape), flat(layout.stride), strict=True))
    total = 0
    for s, d in modes[:-1]:
        total += i % s * d
        i //= s
    return total + i * modes[-1][1]


def environments(*layouts):
    names = sorted(
        {v for x in layouts for e in flat(x.shape) + flat(x.stride) for v in map(str, _core.sym_free_vars(e))}
    )
    for values in itertools.product(*[VALUES[n] for n in names]):
        yield dict(zip(names, values, strict=True))


SYMBOLIC = [
    gr.row_major(M, N),
    gr.col_major(M, N),
    gr.row_major(M, K),
    gr.Layout((M, (4, N)), (4, (1, 4 * M))),
    gr.Layout((M, N), (S * N, S)),
    gr.Layout((8, M), (1, 8)),
    gr.Layout((4, M, 2), (2, 8, 1)),
    gr.Layout((K // 8, 8), (8, 1)),
    gr.Layout((2, P), (P, 1)),
]


@pytest.mark.parametrize("layout", SYMBOLIC, ids=str)
def test_values_of_a_symbolic_layout(layout):
    for env in environments(layout):
        fixed = at(layout, env)
        assert value(layout.size, env) == fixed.size
        if fixed.size:
            assert value(layout.cosize, env) == max(table(fixed)) + 1
            assert table(at(gr.coalesce(layout), env)) == table(fixed)
            assert set(table(at(gr.filter(layout), env))) == set(table(fixed))
    i, j = gr.sym("i j")
    offset = layout(i)
    for env in environments(layout):
        fixed = at(layout, env)
        for k in range(fixed.size):
            assert value(offset, {**env, "i": k}) == fixed(k)
            assert value(layout.coord(i), {**env, "i": k}) == fixed.coord(k)
    if layout.rank == 2:
        offset = layout(i, j)
        for env in environments(layout):
            fixed = at(layout, env)
            for a, b in itertools.product(range(fixed[0].size), range(fixed[1].size)):
                assert value(offset, {**env, "i": a, "j": b}) == fixed(a, b)


COMPOSITIONS = [
    (gr.row_major(M, N), gr.Layout((N, M), (M, 1))),
    (gr.Layout((M, N), (S * N, S)), gr.Layout((M, N))),
    (gr.Layout((8, M), (M, 1)), gr.Layout((2, 4), (4, 1))),
    (gr.Layout((8, M), (M, 1)), gr.Layout((2, 4, M), (4, 1, 8))),
    (gr.Layout((8, M), (M, 1)), gr.Layout(M, 8)),
    (gr.Layout((8, M), (M, 1)), gr.Layout((8, M))),
    (gr.row_major(K, M), gr.Layout((8, K // 8))),
    (gr.row_major(K, M), gr.Layout((8, K // 8), (K // 8, 1))),
    (gr.row_major(M, K), gr.Layout((8, K // 8), (M, 8 * M))),
    (gr.row_major(P, 3), gr.Layout((2, 4), (4, 1))),
    (gr.Layout(M, 3), gr.Layout((4, gr.ceil_div(M, 4)))),
    (gr.Layout((M, N), (N, 1)), gr.Layout((M, 1), (1, 0))),
]


@pytest.mark.parametrize(("a", "b"), COMPOSITIONS, ids=str)
def test_composition(a, b):
    out = gr.composition(a, b)
    for env in environments(a, b):
        left, right = at(a, env), at(b, env)
        if left.size and right.size:
            assert table(at(out, env)) == [extended(left, i) for i in table(right)]


@pytest.mark.parametrize("layout", [x for x in SYMBOLIC if x != gr.Layout((M, N), (S * N, S))], ids=str)
def test_inverses_and_complement(layout):
    right, left = gr.right_inverse(layout), gr.left_inverse(layout)
    rest = gr.complement(layout, 4 * layout.cosize)
    for env in environments(layout):
        fixed = at(layout, env)
        if not fixed.size:
            continue
        assert [extended(fixed, i) for i in table(at(right, env))] == list(range(fixed.size))
        assert [extended(at(left, env), i) for i in table(fixed)] == list(range(fixed.size))
        both = gr.make_layout(fixed, at(rest, env))
        assert sorted(table(both)) == list(range(4 * fixed.cosize))
    assert gr.is_injective(layout)


def test_a_symbolic_stride_is_inverted_as_far_as_the_facts_go():
    strided = gr.Layout((M, N), (S * N, S))
    assert str(gr.right_inverse(strided)) == "1:0"
    inverse = gr.left_inverse(strided)
    for env in environments(strided):
        fixed = at(strided, env)
        if fixed.size:
            assert [extended(at(inverse, env), i) for i in table(fixed)] == list(range(fixed.size))


@pytest.mark.parametrize("layout", [gr.row_major(M, N), gr.col_major(M, K), gr.Layout((M, N), (S * N, S))], ids=str)
@pytest.mark.parametrize("tiler", [(4, 8), (None, 3), (gr.Layout((2, 2), (1, 4)), None), (2,)], ids=str)
def test_divides_over_approximate(layout, tiler):
    zipped = gr.zipped_divide(layout, tiler)
    logical = gr.logical_divide(layout, tiler)
    for env in environments(layout):
        fixed = at(layout, env)
        if fixed.size:
            want = gr.zipped_divide(fixed, tiler)
            assert [m.size for m in at(zipped, env)[1]] == [m.size for m in want[1]]
            assert table(at(zipped, env)) == table(want)
            assert table(at(logical, env)) == table(gr.logical_divide(fixed, tiler))


def test_products():
    tile = gr.composition(gr.row_major(8, 8), gr.Layout((8, 8)))
    out = gr.blocked_product(tile, gr.row_major(M, N))
    raked = gr.raked_product(tile, gr.row_major(M, N))
    for env in environments(gr.row_major(M, N)):
        if env["M"] and env["N"]:
            want = gr.row_major(env["M"], env["N"])
            assert table(at(out, env)) == table(gr.blocked_product(tile, want))
            assert table(at(raked, env)) == table(gr.raked_product(tile, want))


def test_partial_tiles_of_the_text():
    assert str(gr.zipped_divide(gr.row_major(M, K), (128, 32))) == (
        "((128,32),((M + 127)//128,(K + 24)//32)):((K,1),(K*128,32))"
    )
    assert str(gr.zipped_divide(gr.row_major(M, K), (128, 8))[1]) == "((M + 127)//128,K//8):(K*128,8)"


def test_swizzles_of_symbolic_offsets():
    i = gr.sym("i", max=4095)
    for swizzle in (gr.Swizzle(3, 3, 3), gr.Swizzle(2, 0, -4), gr.Swizzle(0, 3, 3)):
        offset = swizzle(i)
        assert [value(offset, {"i": k}) for k in range(0, 4096, 7)] == [swizzle(k) for k in range(0, 4096, 7)]


def test_coordinates_are_checked_as_far_as_the_facts_go():
    layout = gr.row_major(M, K)
    assert str(layout(M - 1, 0)) == str(layout.stride[0] * (M - 1))
    for bad in [lambda: layout(M, 0), lambda: layout(-1, 0), lambda: layout(0, K + 1), lambda: gr.Layout(P)(20)]:
        with pytest.raises(gr.LayoutError, match="LAYOUT_BOUNDS"):
            bad()


def test_functions_are_equal_only_where_that_is_proven():
    assert gr.equal_as_functions(gr.Layout((M, 4), (1, M)), gr.Layout(4 * M))
    assert gr.equal_as_functions(gr.Layout((M, N), (N, 1)), gr.Layout((M, 1, N), (N, 5, 1)))
    assert not gr.equal_as_functions(gr.row_major(M, N), gr.col_major(M, N))


MISSING = [
    (
        lambda: gr.composition(gr.row_major(M, N), gr.Layout(4)),
        "composition needs 4 <= M or 4 % M == 0, which the facts of the symbols leave open",
        'gr.sym("M", min=4)',
    ),
    (
        lambda: gr.composition(gr.row_major(M, N), gr.Layout(4, 2)),
        "composition needs 7 <= M or M % 2 == 0, which the facts of the symbols leave open",
        'gr.sym("M", multiple_of=2)',
    ),
    (
        lambda: gr.is_injective(gr.Layout((M, N), (1, N))),
        "is_injective needs M <= N, which the facts of the symbols leave open",
        "declare facts of M, N from which it follows (min, max, multiple_of of gr.sym)",
    ),
    (
        lambda: gr.complement(gr.Layout((4, 2), (1, M)), 64),
        "complement needs 1 <= M, which the facts of the symbols leave open",
        'gr.sym("M", min=1)',
    ),
    (
        lambda: gr.complement(gr.Layout((4, 2), (1, S)), 64),
        "complement needs 4 <= S, which the facts of the symbols leave open",
        'gr.sym("S", min=4)',
    ),
    (
        lambda: gr.left_inverse(gr.Layout((2, 2), (2, P))),
        "left_inverse needs P % 2 == 0, which the facts of the symbols leave open",
        'gr.sym("P", multiple_of=2)',
    ),
    (
        lambda: gr.logical_divide(gr.Layout(64), gr.Layout((2, 2), (1, P))),
        "logical_divide needs P % 2 == 0, which the facts of the symbols leave open",
        'gr.sym("P", multiple_of=2)',
    ),
]


@pytest.mark.parametrize(("call", "message", "fix"), MISSING)
def test_missing_facts_are_named(call, message, fix):
    with pytest.raises(gr.LayoutError) as e:
        call()
    assert e.value.code == "LAYOUT_FACT"
    assert e.value.diagnostics[0]["message"] == message
    assert e.value.diagnostics[0]["fix"] == fix


def test_the_whole_text():
    with pytest.raises(gr.LayoutError) as e:
        gr.composition(gr.row_major(M, N), gr.Layout(4, 2))
    assert str(e.value) == (
        "composition needs 7 <= M or M % 2 == 0, which the facts of the symbols leave open   [LAYOUT_FACT]\n"
        "  left:  (M,N):(N,1)\n"
        "  right: 4:2\n"
        '  fix: gr.sym("M", multiple_of=2)'
    )


def test_a_refuted_condition_is_not_a_missing_fact():
    with pytest.raises(gr.LayoutError) as e:
        gr.composition(gr.Layout((8, M), (M, 1)), gr.Layout(M, 3))
    assert e.value.code == "LAYOUT_DIVISIBILITY"


def test_vectors_of_symbolic_layouts():
    assert _core.max_vector(gr.row_major(M, K), 1) == 8
    assert _core.max_vector(gr.row_major(M, N), 1) == 1
    assert _core.max_vector(gr.Layout((M, 64), (S, 1)), 1) == 1
    assert _core.max_vector(gr.Layout((M, 64), (4 * S, 1)), 1) == 4
    assert _core.max_vector(gr.ComposedLayout(gr.Swizzle(3, 3, 3), 0, gr.row_major(M, 64)), 1) == 8
    assert _core.max_common_vector(gr.row_major(M, K), gr.row_major(M, K)) >= 8


def test_symbolic_layouts_are_values():
    layout = gr.Layout((M, (4, N)), (4, (1, 4 * M)))
    assert str(layout) == "(M,(4,N)):(4,(1,M*4))"
    assert layout.graphene_str == "[M,(4,N):4,(1,M*4)]"
    assert not layout.is_static
    assert layout == gr.Layout((M, (4, N)), (4, (1, M * 4)))
    assert hash(layout) == hash(gr.Layout((M, (4, N)), (4, (1, M * 4))))
    assert layout != gr.Layout((M, (4, N)), (4, (1, 4 * N)))
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(layout)


@pytest.mark.parametrize(
    ("layout", "without"),
    [
        ("(4,()):(1,())", "4:1"),
        ("((2,()),(3,((),()))):((5,()),(1,((),())))", "(2,3):(5,1)"),
        ("((2,3),((),())):((5,1),((),()))", "(2,3):(5,1)"),
        ("((),(4,1)):((),(1,7))", "(4,1):(1,7)"),
    ],
)
def test_past_the_end_an_index_goes_on_in_the_last_mode_that_is_not_empty(layout, without):
    assert gr.Layout(layout)(M) == gr.Layout(without)(M)
    assert flat(gr.idx2crd(M, gr.Layout(layout).shape)) == flat(gr.idx2crd(M, gr.Layout(without).shape))
