"""Swizzles: the formula, that they permute, and that they remove the bank conflicts they promise to remove."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphene as gr

swizzles = st.integers(0, 4).flatmap(
    lambda bits: st.builds(
        lambda base, shift, sign: gr.Swizzle(bits, base, sign * (bits + shift)),
        st.integers(0, 4),
        st.integers(0, 3),
        st.sampled_from([1, -1]),
    )
)


@given(swizzles)
def test_a_swizzle_xors_the_bits_it_names_and_permutes_each_period(swizzle):
    bits, base, shift = swizzle.bits, swizzle.base, swizzle.shift
    mask = ((1 << bits) - 1) << (base + max(shift, 0))
    out = [swizzle(i) for i in range(swizzle.period)]
    for i, o in enumerate(out):
        taken = i & mask
        assert o == i ^ (taken >> shift if shift >= 0 else taken << -shift)
        assert swizzle(o) == i  # its own inverse
        assert swizzle(i + 3 * swizzle.period) == o + 3 * swizzle.period
    assert sorted(out) == list(range(swizzle.period))


@given(swizzles)
def test_text_and_equality(swizzle):
    assert gr.Swizzle(str(swizzle)) == swizzle
    assert eval(repr(swizzle), {"Swizzle": gr.Swizzle}) == swizzle
    assert swizzle != gr.Swizzle(swizzle.bits, swizzle.base + 1, swizzle.shift)
    assert hash(gr.Swizzle(str(swizzle))) == hash(swizzle)


def conflicts(row_elems, bits, swizzle):
    """Most 16-byte reads that meet in one group of four banks, over every access of eight rows at one column."""
    chunk = 128 // bits
    worst = 1
    for first in (0, 8, 16, 56):
        for column in range(row_elems // chunk):
            groups = [swizzle((first + r) * row_elems + column * chunk) * bits // 128 % 8 for r in range(8)]
            worst = max(worst, max(groups.count(g) for g in groups))
    return worst


@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("chunks", [*range(1, 41), 48, 64, 96, 128, 256])
def test_rows_are_free_of_bank_conflicts(chunks, bits):
    row = chunks * 128 // bits
    swizzle = gr.swizzle(row, bits)
    assert conflicts(row, bits, swizzle) == 1
    # It changes nothing inside of a chunk, and no element leaves its row where rows are powers of two.
    chunk = 128 // bits
    assert all(swizzle(i) == swizzle(i // chunk * chunk) + i % chunk for i in range(0, 4 * row, 3))
    if swizzle.bits:
        assert conflicts(row, bits, gr.Swizzle(0, 0, 0)) == 2**swizzle.bits
        assert conflicts(row, bits, gr.Swizzle(swizzle.bits - 1, swizzle.base, swizzle.shift)) > 1


@pytest.mark.parametrize(
    ("row", "want"),
    [(64, (3, 3, 3)), (32, (2, 3, 3)), (16, (1, 3, 3)), (128, (3, 3, 4)), (256, (3, 3, 5)), (8, (0, 3, 3))],
)
def test_the_known_ones_for_fp16(row, want):
    assert gr.swizzle(row, 16) == gr.Swizzle(*want)


def test_element_types_are_taken_by_their_bits():
    class Half:
        bits = 16

    assert gr.swizzle(64, Half) == gr.swizzle(64, 16) == gr.Swizzle(3, 3, 3)
    assert gr.swizzle(64, 8) == gr.Swizzle(2, 4, 3)
    assert gr.swizzle(32, 32) == gr.Swizzle(3, 2, 3)


@given(swizzles, st.integers(0, 64))
def test_composed_layouts(swizzle, offset):
    layout = gr.Layout(((2, 4), 8), ((4, 8), 32))
    composed = gr.ComposedLayout(swizzle, offset, layout)
    assert composed.shape == layout.shape
    assert composed.size == layout.size
    for i in range(0, layout.size, 5):
        want = swizzle(offset + layout(i))
        coord = layout.coord(i)
        assert composed(i) == composed(coord) == composed(*coord) == want
        assert composed.coord(i) == coord
    inner = gr.composition(composed, gr.Layout((4, 4), (2, 16)))
    assert [inner(i) for i in range(16)] == [composed(gr.Layout((4, 4), (2, 16))(i)) for i in range(16)]
    assert composed[1](3) == swizzle(offset + 96)


def test_composition_with_a_swizzle():
    c = gr.composition(gr.Swizzle(3, 3, 3), gr.Layout((8, 64), (64, 1)))
    assert str(c) == "Sw<3,3,3> o 0 o (8,64):(64,1)"
    assert c(3, 9) == (3 * 64 + 9) ^ (3 << 3)
    assert c == gr.composition(gr.Swizzle(3, 3, 3), "(8,64):(64,1)")
    assert c != gr.composition(gr.Swizzle(2, 3, 3), "(8,64):(64,1)")
    assert repr(c) == 'ComposedLayout(Swizzle(3, 3, 3), 0, Layout("(8,64):(64,1)"))'
    for a, b in [("8:1", c), (gr.Swizzle(1, 0, 1), gr.Swizzle(1, 0, 1)), (c, gr.Swizzle(1, 0, 1))]:
        with pytest.raises(gr.LayoutError, match="a swizzle can only be the outer function"):
            gr.composition(a, b)


# Modes that nest, perhaps with holes, so that each offset has one index.
INJECTIVE = ["(8,64):(64,1)", "(4,4):(8,1)", "12:1", "(12,64):(64,1)", "((2,4),3):((4,8),100)", "5:3", "1:0"]


@given(swizzles, st.integers(0, 200), st.sampled_from(INJECTIVE))
def test_a_left_inverse_undoes_a_swizzled_layout(swizzle, offset, text):
    layout = gr.ComposedLayout(swizzle, offset, gr.Layout(text))
    inverse = gr.left_inverse(layout)
    assert inverse == gr.InverseLayout(gr.left_inverse(text), -offset, swizzle)
    assert [inverse(layout(i)) for i in range(layout.size)] == list(range(layout.size))
    identity = gr.composition(inverse, layout)
    assert identity.shape == layout.shape
    assert [identity(i) for i in range(layout.size)] == list(range(layout.size))
    assert pickle.loads(pickle.dumps(inverse)) == inverse


@given(swizzles, st.integers(-40, 40), st.sampled_from([*INJECTIVE, "(4,2):(1,0)", "24:1", "(2,40):(40,1)"]))
def test_a_right_inverse_leads_to_each_of_the_first_offsets(swizzle, offset, text):
    layout = gr.ComposedLayout(swizzle, offset, gr.Layout(text))
    inverse = gr.right_inverse(layout)
    size = min(inverse.size, 300)
    assert [layout(inverse(i)) for i in range(size)] == list(range(size))
    if offset == 0 and gr.right_inverse(text).size % swizzle.period == 0:
        assert inverse.size == gr.right_inverse(text).size


def test_inverses_of_swizzles_and_of_sizes_that_are_symbols():
    swizzle = gr.Swizzle(3, 3, 3)
    assert gr.left_inverse(swizzle) == gr.right_inverse(swizzle) == swizzle
    inverse = gr.composition("64:1", gr.Swizzle(1, 0, 2))
    assert gr.left_inverse(inverse) == gr.right_inverse(inverse) == gr.composition(gr.Swizzle(1, 0, 2), "64:1")
    assert str(inverse) == "64:1 o 0 o Sw<1,0,2>"
    assert repr(inverse) == 'InverseLayout(Layout("64:1"), 0, Swizzle(1, 0, 2))'
    assert [inverse(i) for i in range(8)] == [0, 1, 2, 3, 5, 4, 7, 6]
    rows = gr.sym("R", min=1, multiple_of=8)
    tile = gr.composition(swizzle, gr.row_major(rows, 64))
    both = gr.right_inverse(tile)
    assert str(both.size) == str(rows * 64)
    assert both(200) == gr.left_inverse(tile)(200) == 3 + rows * (200 % 64 ^ (3 << 3))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda c: gr.left_inverse(c)(512), "LAYOUT_BOUNDS"),
        (lambda c: gr.left_inverse(c)(-1), "LAYOUT_BOUNDS"),
        (lambda c: gr.coalesce(gr.left_inverse(c)), "LAYOUT_COMPOSE"),
        (lambda c: gr.composition(gr.left_inverse(c), "8:1"), "LAYOUT_COMPOSE"),
        (lambda c: gr.composition(c, gr.left_inverse(c)), "LAYOUT_COMPOSE"),
        (lambda c: gr.composition(gr.left_inverse(c), gr.composition(gr.Swizzle(2, 3, 3), "8:1")), "LAYOUT_COMPOSE"),
        (lambda c: gr.composition(gr.left_inverse(c), gr.ComposedLayout(c.swizzle, 8, c.layout)), "LAYOUT_COMPOSE"),
        (lambda c: gr.left_inverse(gr.composition(c.swizzle, "(4,2):(1,1)")), "LAYOUT_INJECTIVE"),
    ],
)
def test_what_an_inverse_refuses(call, code):
    with pytest.raises(gr.LayoutError) as caught:
        call(gr.composition(gr.Swizzle(3, 3, 3), "(8,64):(64,1)"))
    assert caught.value.code == code
