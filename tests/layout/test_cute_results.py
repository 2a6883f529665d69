"""Results that CuTe's documentation and its Python model state, as literals."""

import pytest

import graphene as gr


@pytest.mark.parametrize(
    ("layout", "want"),
    [
        ("(2,(1,6)):(1,(6,2))", "12:1"),
        ("1:0", "1:0"),
        ("1:1", "1:0"),
        ("(2,4):(1,2)", "8:1"),
        ("(2,4,6):(1,2,8)", "48:1"),
        ("(2,4,6):(1,6,2)", "(2,4,6):(1,6,2)"),
        ("(2,1,6):(1,7,2)", "12:1"),
        ("(2,1,6):(4,7,8)", "12:4"),
        ("(2,(4,6)):(1,(2,8))", "48:1"),
        ("(2,4):(4,1)", "(2,4):(4,1)"),
        ("(2,4,6):(24,6,1)", "(2,4,6):(24,6,1)"),
        ("(2,1,3):(2,4,4)", "6:2"),
        ("((2,2),(2,2)):((1,4),(8,32))", "(2,4,2):(1,4,32)"),
    ],
)
def test_coalesce(layout, want):
    assert str(gr.coalesce(layout)) == want


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        ("(6,2):(8,2)", "(4,3):(3,1)", "((2,2),3):((24,2),8)"),
        ("20:2", "(5,4):(4,1)", "(5,4):(8,2)"),
        ("(10,2):(16,4)", "(5,4):(1,5)", "(5,(2,2)):(16,(80,4))"),
        ("(3,6,2,8):(1000,100,10,1)", "16:9", "(2,2,4):(300,10,1)"),
        ("4:2", "4:1", "4:2"),
        ("4:0", "4:1", "4:0"),
        ("4:1", "4:0", "4:0"),
        ("1:0", "4:1", "4:0"),
        ("4:2", "2:2", "2:4"),
        ("12:2", "(4,3):(3,1)", "(4,3):(6,2)"),
        ("12:1", "(2,3):(2,4)", "(2,3):(2,4)"),
        ("(4,3):(1,4)", "6:2", "6:2"),
        ("(4,3):(1,4)", "(6,2):(2,1)", "(6,2):(2,1)"),
        ("(4,3):(3,1)", "(4,3):(1,4)", "(4,3):(3,1)"),
        ("(4,3):(3,1)", "12:1", "(4,3):(3,1)"),
        ("(4,3):(3,1)", "6:2", "(2,3):(6,1)"),
        ("(4,3):(3,1)", "(6,2):(2,1)", "((2,3),2):((6,1),3)"),
        ("((2,2,2),(2,2,2)):((1,16,4),(8,2,32))", "8:4", "(4,2):(4,2)"),
        ("(2,2):(2,1)", "(2,2):(2,1)", "(2,2):(1,2)"),
        ("(4,8,2):(2,8,1)", "(2,2,2):(1,8,2)", "(2,2,2):(2,16,4)"),
    ],
)
def test_composition(left, right, want):
    assert str(gr.composition(left, right)) == want


def test_composition_by_mode():
    a = gr.Layout((12, (4, 8)), (59, (13, 1)))
    assert str(gr.composition(a, ("3:4", "8:2"))) == "(3,(2,4)):(236,(26,1))"
    assert str(gr.composition(a, (3, 8))) == "(3,(4,2)):(59,(13,1))"
    assert str(gr.composition(a, (None, 8))) == "(12,(4,2)):(59,(13,1))"
    assert str(gr.composition(a, (3,))) == "(3):(59)"


@pytest.mark.parametrize(
    ("layout", "cotarget", "want"),
    [
        ("4:1", 24, "6:4"),
        ("6:4", 24, "4:1"),
        ("(4,6):(1,4)", 24, "1:0"),
        ("4:2", 24, "(2,3):(1,8)"),
        ("(2,4):(1,6)", 24, "3:2"),
        ("(2,2):(1,6)", 24, "(3,2):(2,12)"),
        ("4:0", 24, "24:1"),
        ("1:0", 24, "24:1"),
        ("(2,4,8):(8,1,64)", 512, "(2,4):(4,16)"),
        ("((2,2),(2,2)):((1,4),(8,32))", 128, "(2,2,2):(2,16,64)"),
        ("(2,(3,4)):(3,(1,6))", 24, "1:0"),
        ("(4,6):(1,6)", 36, "1:0"),
        ("4:1", (4, 8), "8:4"),
        ("4:1", 18, "5:4"),
        ("4:1", None, "1:0"),
        ("4:2", None, "2:1"),
    ],
)
def test_complement(layout, cotarget, want):
    assert str(gr.complement(layout, cotarget)) == want


@pytest.mark.parametrize(
    ("layout", "right", "left"),
    [
        ("1:0", "1:0", "1:0"),
        ("(1,1):(0,0)", "1:0", "1:0"),
        ("4:1", "4:1", "4:1"),
        ("4:2", "1:0", "(2,4):(0,1)"),
        ("(8,4):(1,8)", "32:1", "32:1"),
        ("(8,4):(4,1)", "(4,8):(8,1)", "(4,8):(8,1)"),
        ("(2,4,6):(4,1,8)", "(4,2,6):(2,1,8)", "(4,2,6):(2,1,8)"),
        ("(4,2):(1,16)", "4:1", "(16,2):(1,4)"),
    ],
)
def test_inverses(layout, right, left):
    assert str(gr.right_inverse(layout)) == right
    assert str(gr.left_inverse(layout)) == left


@pytest.mark.parametrize(
    ("layout", "right", "left"),
    [
        ("(3,7):(0,0)", "1:0", "1:0"),
        ("4:0", "1:0", "1:0"),
        ("(2,4):(0,2)", "1:0", "(2,4):(0,2)"),
        ("(4,2):(1,0)", "4:1", "4:1"),
    ],
)
def test_inverses_of_a_broadcast(layout, right, left):
    assert str(gr.right_inverse(layout)) == right
    assert str(gr.left_inverse(layout)) == left


def test_divides():
    assert str(gr.logical_divide("(4,2,3):(2,1,8)", "4:2")) == "((2,2),(2,3)):((4,1),(2,8))"
    a, tiler = gr.Layout((9, (4, 8)), (59, (13, 1))), ("3:3", "(2,4):(1,8)")
    assert str(gr.logical_divide(a, tiler)) == "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"
    assert str(gr.zipped_divide(a, tiler)) == "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"
    assert str(gr.tiled_divide(a, tiler)) == "((3,(2,4)),3,(2,2)):((177,(13,2)),59,(26,1))"
    assert gr.zipped_divide(a, tiler)[0] == gr.composition(a, tiler)
    assert str(gr.zipped_divide("(8,6):(6,1)", (4, None))) == "((4,1),(2,6)):((6,0),(24,1))"
    assert str(gr.zipped_divide("16:1", 4)) == "(4,4):(1,4)"
    assert str(gr.tiled_divide("16:1", "4:2")) == "(4,2,2):(2,1,8)"


def test_products():
    assert str(gr.logical_product("(2,2):(4,1)", "6:1")) == "((2,2),(2,3)):((4,1),(2,8))"
    assert str(gr.logical_product("(2,2):(4,1)", "(4,2):(2,1)")) == "((2,2),(4,2)):((4,1),(8,2))"
    assert str(gr.blocked_product("(2,5):(5,1)", "(3,4):(1,3)")) == "((2,3),(5,4)):((5,10),(1,30))"
    assert str(gr.raked_product("(2,5):(5,1)", "(3,4):(1,3)")) == "((3,2),(4,5)):((10,5),(30,1))"
    assert str(gr.blocked_product("(3,4):(4,1)", "(2,5):(1,2)")) == "((3,2),(4,5)):((4,12),(1,24))"
    assert str(gr.raked_product("(3,4):(4,1)", "(2,5):(1,2)")) == "((2,3),(5,4)):((12,4),(24,1))"
    assert str(gr.logical_product("(2,5):(5,1)", ("3:5", "4:6"))) == "((2,3),(5,4)):((5,10),(1,30))"
    assert str(gr.zipped_product("(2,5):(5,1)", ("3:5", "4:6"))) == "((2,5),(3,4)):((5,1),(10,30))"
    assert str(gr.tiled_product("(2,5):(5,1)", ("3:5", "4:6"))) == "((2,5),3,4):((5,1),10,30)"


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        ("8:1", "4:-2", "4:-2"),
        ("(4,3):(3,1)", "4:-1", "4:-3"),
        ("(4,3):(3,1)", "3:-4", "3:-1"),
        ("(4,3):(3,1)", "(2,3):(-2,-4)", "(2,3):(-6,-1)"),
        ("(4,3):(3,1)", "(4,3):(1,-4)", "(4,3):(3,-1)"),
        ("(4,3):(3,1)", "(2,2):(1,-1)", "(2,2):(3,-3)"),
        ("(4,3):(-3,1)", "12:-1", "(4,3):(3,-1)"),
        ("(4,8):(-1,4)", "(8,4):(-4,1)", "(8,4):(-4,-1)"),
        ("(4,3):(3,1)", "1:-4", "1:-1"),
    ],
)
def test_negative_strides_on_the_right(left, right, want):
    assert str(gr.composition(left, right)) == want


def test_a_product_over_a_reversed_tiler():
    assert str(gr.logical_product("4:1", "3:-1")) == "(4,3):(1,-4)"
    assert str(gr.raked_product("4:1", "3:-1")) == "((3,4)):((-4,1))"


def test_none_in_tilers():
    a = gr.Layout((8, (4, 2)), (8, (1, 4)))
    assert gr.composition(a, None) == gr.logical_divide(a, None) == gr.logical_product(a, None) == a
    assert str(gr.zipped_divide(a, None)) == "(1,(8,(4,2))):(0,(8,(1,4)))"
    assert str(gr.tiled_divide(a, None)) == "(1,8,(4,2)):(0,8,(1,4))"
    assert str(gr.logical_divide(a, (None, 4))) == "(8,(4,2)):(8,(1,4))"
    assert str(gr.zipped_divide(a, (None, 4))) == "((1,4),(8,2)):((0,1),(8,4))"
    assert str(gr.tiled_divide(a, (2, None))) == "((2,1),4,(4,2)):((8,0),16,(1,4))"
    assert str(gr.zipped_product("(2,5):(5,1)", (None, "4:6"))) == "((1,5),(2,4)):((0,1),(5,30))"


def test_tuples_in_tilers():
    a = gr.Layout((8, (4, 6)), (24, (6, 1)))
    assert str(gr.logical_divide(a, (2, (None, 3)))) == "((2,4),(4,(3,2))):((24,48),(6,(1,3)))"
    assert str(gr.zipped_divide(a, (2, (None, 3)))) == "((2,(1,3)),(4,(4,2))):((24,(0,1)),(48,(6,3)))"
    assert str(gr.composition(a, (2, (4, "3:2")))) == "(2,(4,3)):(24,(6,2))"


def test_profiles():
    a = gr.Layout((2, (1, 6), (3, (2, 2))), (1, (6, 2), (0, (5, 10))))
    assert str(gr.coalesce(a)) == "(12,3,4):(1,0,5)"
    assert str(gr.coalesce(a, (1, 1))) == "(2,6,(3,(2,2))):(1,2,(0,(5,10)))"
    assert str(gr.coalesce(a, (1, 1, 1))) == "(2,6,(3,4)):(1,2,(0,5))"
    assert str(gr.coalesce(a, (1, (1, 1), (1, None)))) == "(2,(1,6),(3,4)):(1,(0,2),(0,5))"
    assert gr.coalesce(a, 1) == gr.coalesce(a, None) == gr.coalesce(a)
    assert str(gr.filter(a)) == "(12,4):(1,5)"
    assert str(gr.filter(a, (1, 1, 1))) == "(2,6,4):(1,2,5)"
    assert str(gr.filter(a, (1, 1, (1, 1)))) == "(2,6,(1,4)):(1,2,(0,5))"
    assert gr.coalesce(a, a) == gr.coalesce(a, a.shape)


def test_indices_of_tuples():
    assert gr.idx2crd((3, 5), (4, (2, 4))) == (3, (1, 2))
    assert gr.idx2crd((3, (1, 2)), (4, (2, 4))) == (3, (1, 2))
    assert gr.idx2crd((5, 5), ((2, 3), (2, 4))) == ((1, 2), (1, 2))
    assert gr.idx2crd(22, (4, (2, 4)), (8, (1, 2))) == (2, (0, 3))
    assert gr.idx2crd((16, 6), (4, (2, 4)), (8, (1, 2))) == (2, (0, 3))
    assert gr.idx2crd(4, (4, 3, 1), (0, 2, 7)) == (0, 2, 0)
    assert gr.idx2crd(-3, 4, -1) == 3


def test_filter():
    assert str(gr.filter("(2,(3,4),1):(1,(0,2),7)")) == "8:1"
    assert str(gr.filter("(3,7):(0,0)")) == "1:0"


def test_paper_figure_3_offsets():
    """The four 4x8 matrices of the paper's Fig. 3 (D with the strides that its arithmetic needs)."""
    a, b = gr.Layout((4, 8), (8, 1)), gr.Layout((4, 8), (1, 4))
    c, d = gr.Layout((4, (2, 4)), (2, (1, 8))), gr.Layout(((2, 2), (2, 4)), ((1, 4), (2, 8)))
    assert [a(1, j) for j in range(8)] == [8, 9, 10, 11, 12, 13, 14, 15]
    assert [b(1, j) for j in range(8)] == [1, 5, 9, 13, 17, 21, 25, 29]
    assert [c(1, j) for j in range(8)] == [2, 3, 10, 11, 18, 19, 26, 27]
    assert [d(1, j) for j in range(8)] == [1, 3, 9, 11, 17, 19, 25, 27]
    assert [d(i, 0) for i in range(4)] == [0, 1, 4, 5]


def test_quad_pair_of_volta():
    """Threads 0-3 and 16-19 of a warp: the quad-pair of mma.m8n8k4."""
    warp = gr.Layout(32)
    pairs = gr.zipped_divide(warp, gr.Layout((4, 2), (1, 16)))
    assert str(pairs) == "((4,2),4):((1,16),4)"
    assert [pairs[0](i) + pairs[1](1) for i in range(8)] == [4, 5, 6, 7, 20, 21, 22, 23]
