"""Swizzles: the formula, that they permute, and that they remove the bank conflicts they promise to remove."""

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
    for a, b in [("8:1", gr.Swizzle(1, 0, 1)), ("8:1", c), (gr.Swizzle(1, 0, 1), gr.Swizzle(1, 0, 1))]:
        with pytest.raises(gr.LayoutError, match="a swizzle can only be the outer function"):
            gr.composition(a, b)
