"""Invalid input is a LayoutError that says why, word for word; wrong Python types are TypeErrors."""

import signal
import time

import pytest

import graphene as gr

L = gr.Layout((4, (2, 4)), (2, (1, 8)))

CASES = [
    (lambda: gr.Layout((2, 3), (1,)), "LAYOUT_CONGRUENT", "shape and stride must have the same hierarchy"),
    (lambda: gr.Layout(4, (1,)), "LAYOUT_CONGRUENT", "shape and stride must have the same hierarchy"),
    (lambda: gr.Layout((2, -3)), "LAYOUT_SIZE", "a layout's sizes must not be negative, got -3"),
    (lambda: L(32), "LAYOUT_BOUNDS", "coordinate 32 is outside of (4,(2,4)) (size 32)"),
    (lambda: L(-1), "LAYOUT_BOUNDS", "coordinate -1 is outside of (4,(2,4)) (size 32)"),
    (lambda: L(0, 8), "LAYOUT_BOUNDS", "coordinate 8 is outside of (2,4) (size 8)"),
    (lambda: L(0, (2, 0)), "LAYOUT_BOUNDS", "coordinate 2 is outside of 2 (size 2)"),
    (lambda: L(0, 1, 2), "LAYOUT_COORD", "coordinate (0,1,2) does not fit the shape (4,(2,4))"),
    (lambda: L((0, 1), 2), "LAYOUT_COORD", "coordinate (0,1) does not fit the shape 4"),
    (lambda: L(), "LAYOUT_COORD", "coordinate () does not fit the shape (4,(2,4))"),
    (lambda: L.coord(32), "LAYOUT_BOUNDS", "coordinate 32 is outside of (4,(2,4)) (size 32)"),
    (lambda: gr.Layout(0)(0), "LAYOUT_BOUNDS", "coordinate 0 is outside of 0 (size 0)"),
    (lambda: L[2], "LAYOUT_RANK", "mode 2 of a layout of rank 2"),
    (lambda: L[-3], "LAYOUT_RANK", "mode -3 of a layout of rank 2"),
    (lambda: gr.crd2idx((0, 9), (4, 8)), "LAYOUT_BOUNDS", "coordinate 9 is outside of 8 (size 8)"),
    (lambda: gr.idx2crd(32, (4, 8)), "LAYOUT_BOUNDS", "coordinate 32 is outside of (4,8) (size 32)"),
    (
        lambda: gr.composition("(6,2):(8,2)", "4:4"),
        "LAYOUT_DIVISIBILITY",
        "composition: the stride 4 and the size 6 do not divide each other",
    ),
    (
        lambda: gr.composition("(4,3):(3,1)", "6:1"),
        "LAYOUT_DIVISIBILITY",
        "composition: the size 6 is not a multiple of the 4 steps that fit in mode 4:3",
    ),
    (
        lambda: gr.composition("(4,3):(3,1)", "(2,2):(3,3)"),
        "LAYOUT_COMPOSE",
        "the composition is not a layout: the modes of the right operand carry into each other inside of mode 4:3 of "
        "the left one",
    ),
    (
        lambda: gr.composition("(4,3):(3,1)", "(3,2):(4,-1)"),
        "LAYOUT_COMPOSE",
        "the composition is not a layout: strides of both signs on the right borrow from several modes of the left "
        "operand",
    ),
    (
        lambda: gr.complement("(2,2):(1,1)", 8),
        "LAYOUT_INJECTIVE",
        "complement needs modes that nest: 2:1 starts inside of 2:1",
    ),
    (
        lambda: gr.complement("(3,2):(2,3)", 8),
        "LAYOUT_INJECTIVE",
        "complement needs modes that nest: 2:3 starts inside of 3:2",
    ),
    (lambda: gr.complement("4:-1", 8), "LAYOUT_INJECTIVE", "complement needs positive strides, got -1"),
    (
        lambda: gr.left_inverse("(4,2):(1,1)"),
        "LAYOUT_INJECTIVE",
        "left_inverse needs modes that nest: 2:1 starts inside of 4:1",
    ),
    (
        lambda: gr.left_inverse("(2,2):(2,5)"),
        "LAYOUT_DIVISIBILITY",
        "left_inverse: the stride 5 is not a multiple of 2",
    ),
    (
        lambda: gr.logical_divide("12:1", "(2,2):(1,3)"),
        "LAYOUT_DIVISIBILITY",
        "logical_divide: copies of the tile cannot cover the layout: its stride 3 is not a multiple of 2",
    ),
    (lambda: gr.zipped_divide("4:1", (2, 2)), "LAYOUT_RANK", "zipped_divide: 2 tiler entries for a layout of rank 1"),
    (lambda: gr.logical_divide(L, (2, 2, 2)), "LAYOUT_RANK", "logical_divide: 3 tiler entries for a layout of rank 2"),
    (
        lambda: gr.logical_divide(L, (2, (2, 2, 2))),
        "LAYOUT_RANK",
        "logical_divide: 3 tiler entries for a layout of rank 2",
    ),
    (
        lambda: gr.coalesce(L, (1, 1, 1)),
        "LAYOUT_RANK",
        "coalesce: the profile (1,1,1) has more modes than the layout of rank 2",
    ),
    (
        lambda: gr.filter(L, (1, (1, 1, 1))),
        "LAYOUT_RANK",
        "filter: the profile (1,1,1) has more modes than the layout of rank 2",
    ),
    (lambda: gr.idx2crd((3, 8), (4, 8)), "LAYOUT_BOUNDS", "coordinate 8 is outside of 8 (size 8)"),
    (lambda: gr.idx2crd((3, 1), 32), "LAYOUT_COORD", "coordinate (3,1) does not fit the shape 32"),
    (lambda: gr.idx2crd((1, 1), (4, 8, 2)), "LAYOUT_COORD", "coordinate (1,1) does not fit the shape (4,8,2)"),
    (lambda: gr.idx2crd((1, 1), 32, 1), "LAYOUT_COORD", "coordinate (1,1) does not fit the shape 32"),
    (
        lambda: gr.idx2crd(32, (4, 8), (8, 1)),
        "LAYOUT_BOUNDS",
        "offset 32 is none of the layout's, which are from 0 to 31",
    ),
    (
        lambda: gr.idx2crd((-7, 2), (4, 8), (-2, 1)),
        "LAYOUT_BOUNDS",
        "offset -7 is none of the layout's, which are from -6 to 0",
    ),
    (lambda: gr.idx2crd(3, (4, 8), (1, 2, 3)), "LAYOUT_CONGRUENT", "shape and stride must have the same hierarchy"),
    (lambda: gr.is_injective((2,) * 30), None, None),
    (
        lambda: gr.is_injective(gr.Layout((8192, 8192), (2, 3))),
        "LAYOUT_LIMIT",
        "is_injective would have to enumerate more than 2^24 elements",
    ),
    (
        lambda: gr.Swizzle(3, 3, 2),
        "LAYOUT_SWIZZLE",
        "Swizzle(3, 3, 2): |shift| must be at least bits, or the bits read are themselves changed",
    ),
    (lambda: gr.Swizzle(-1, 0, 3), "LAYOUT_SWIZZLE", "Swizzle(-1, 0, 3): bits and base must not be negative"),
    (lambda: gr.Swizzle(3, 50, 20), "LAYOUT_SWIZZLE", "Swizzle(3, 50, 20): the bits lie outside of a 64-bit offset"),
    (lambda: gr.Swizzle(1, 0, 1)(-2), "LAYOUT_BOUNDS", "Sw<1,0,1> of the negative offset -2"),
    (
        lambda: gr.swizzle(20, 16),
        "LAYOUT_SWIZZLE",
        "swizzle: a row must be a whole number of 16-byte chunks, got 20 elements of 16 bits",
    ),
    (lambda: gr.swizzle(64, 12), "LAYOUT_SWIZZLE", "swizzle: elements of 12 bits do not divide a 16-byte chunk"),
    (lambda: gr.Layout((2**40, 2**40)).size, "SYM_OVERFLOW", None),
    (lambda: gr.Layout(2**70), "SYM_OVERFLOW", None),
]


@pytest.mark.parametrize(("call", "code", "message"), CASES)
def test_errors(call, code, message):
    if code is None:
        call()
        return
    with pytest.raises(gr.LayoutError) as e:
        call()
    assert e.value.code == code
    if message is not None:
        assert e.value.diagnostics[0]["message"] == message


def test_the_whole_text():
    with pytest.raises(gr.LayoutError) as e:
        gr.composition("(6,2):(8,2)", "4:4")
    assert str(e.value) == (
        "composition: the stride 4 and the size 6 do not divide each other   [LAYOUT_DIVISIBILITY]\n"
        "  left:  (6,2):(8,2)\n"
        "  right: 4:4"
    )
    with pytest.raises(gr.LayoutError) as e:
        L(0, (5, 0))
    assert str(e.value) == (
        "coordinate 5 is outside of 2 (size 2)   [LAYOUT_BOUNDS]\n  coordinate: (0,(5,0)) in (4,(2,4))"
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: gr.Layout(1.5),
        lambda: gr.Layout(None),
        lambda: gr.Layout((2, "3")),
        lambda: L(1.0),
        lambda: gr.logical_divide(L, (2, (2, 1.5))),
        lambda: gr.coalesce(L, (1, "x")),
        lambda: gr.idx2crd((0, None), (4, 8)),
        lambda: gr.coalesce(object()),
        lambda: gr.swizzle(64, "fp16"),
        lambda: gr.Swizzle(1, 2),
    ],
)
def test_wrong_types(call):
    with pytest.raises((TypeError, ValueError)):
        call()


def test_deep_and_recursive_tuples():
    deep = 1
    for _ in range(100_000):
        deep = (deep,)
    with pytest.raises(gr.LayoutError, match="LAYOUT_LIMIT"):
        gr.Layout(deep)
    loop = []
    loop.append(loop)
    with pytest.raises(gr.LayoutError, match="LAYOUT_LIMIT"):
        gr.Layout(loop)


def test_layouts_are_values():
    assert len(L) == 2
    assert [str(m) for m in L] == ["4:2", "(2,4):(1,8)"]
    assert L[-1] == L[1]
    assert gr.Layout((4, (2, 4))) != L
    assert L != "(4,(2,4)):(2,(1,8))"
    assert {L: 1}[gr.Layout(str(L))] == 1
    with pytest.raises(AttributeError):
        L.shape = 3
    assert (L.rank, L.depth, L.size, L.cosize, L.is_static) == (2, 2, 32, 32, True)
    empty = gr.Layout((4, 0))
    assert (empty.size, empty.cosize) == (0, 0)
    assert gr.coalesce(empty).size == 0


@pytest.mark.parametrize("function", [gr.coalesce, gr.complement, gr.filter, gr.is_injective, gr.make_layout])
def test_a_swizzled_layout_has_no_shapes_and_strides_of_its_own(function):
    with pytest.raises(gr.LayoutError) as e:
        function(gr.composition(gr.Swizzle(1, 0, 2), gr.Layout((4, 4), (4, 1))))
    assert str(e.value).splitlines() == [
        "shapes and strides are wanted, and a swizzle stands before these   [LAYOUT_COMPOSE]",
        "  got: Sw<1,0,2> o 0 o (4,4):(4,1)",
        "  fix: take its .layout, and compose the swizzle with the result",
    ]


def test_layouts_of_many_elements_are_judged_quickly() -> None:
    begun = time.monotonic()
    assert gr.is_injective(gr.Layout((4095, 4095), (4096, 4097)))
    assert not gr.is_injective(gr.Layout((4096, 4096), (4095, 4094)))
    assert not gr.is_injective(gr.Layout((2,) * 24, tuple(2**i + i for i in range(24))))
    assert time.monotonic() - begun < 3  # a quarter of a second where nothing else runs


def test_ctrl_c_ends_a_question_about_offsets_that_lie_far_apart() -> None:
    layout = gr.Layout((4095, 4095), (2**30 * 4095, 2**30 * 4096 + 1))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            gr.is_injective(layout)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun < 1.5  # the whole question takes a second and more
