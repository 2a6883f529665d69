"""gr.define_atom: an instruction added from Python passes the checks of the built-in ones and is then matched."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import graphene as gr
from graphene import _core

COUNTER = itertools.count()


def fields(**changes: Any) -> dict[str, Any]:
    """A valid entry of its own name: prmt as a pair swap."""
    base: dict[str, Any] = {
        "name": f"test.swap{next(COUNTER)}.b16x2",
        "kind": "UnaryPointwise",
        "arch": "sm_70+",
        "out": [{"name": "d", "pattern": "[2].i16.RF", "tile": "e2", "access": "write"}],
        "in_": [{"name": "s", "pattern": "[2].i16.RF", "tile": "e2"}],
        "attrs": {"op": ["neg"]},
        "ptx": "prmt.b32 $d, $s, 0, 0x1032;",
        "is_default": False,
        "doc": "Swaps two halves.",
        "source": "PTX ISA, prmt",
    }
    return base | changes


def refused(**changes: Any) -> str:
    count = len(gr.atoms())
    with pytest.raises(gr.SelectError) as e:
        gr.define_atom(**fields(name="test.bad", **changes))
    assert len(gr.atoms()) == count
    return str(e.value)


def test_a_user_adds_an_instruction_without_rebuilding() -> None:
    (swap,) = gr.define_atom(**fields())
    assert gr.atoms()[swap.name].ptx == "prmt.b32 $d, $s, 0, 0x1032;"
    assert swap.operands["d"].registers == ("r", 2, 1)
    with gr.Kernel("k") as kernel:
        r = gr.alloc("r", [2, 2], gr.i16, gr.RF)
        gr.unary("neg", r[0, :], r[1, :], atom=swap)
    (leaf,) = _core.match_kernel(kernel.ir, "sm_80")
    assert leaf["atom"] == swap.name
    assert leaf["in"][0]["registers"] == [2, 3]


def test_families_multiply_and_substitute() -> None:
    n = next(COUNTER)
    out = gr.define_atom(
        **fields(
            name=f"test.fam{n}.x${{N}}/${{T}}",
            out=[{"name": "d", "pattern": "[${N}].${T}.RF", "tile": "e${N}", "access": "write"}],
            in_=[{"name": "s", "pattern": "[${N}].${T}.RF", "tile": "e${N}"}],
            ptx="op.${32/N} {$d}, {$s};",
            family=[(["N"], [["2"], ["4"]]), (["T"], [["i16"], ["u16"]])],
        )
    )
    assert [(a.name, a.ptx) for a in out] == [
        (f"test.fam{n}.x2/i16", "op.16 {$d}, {$s};"),
        (f"test.fam{n}.x2/u16", "op.16 {$d}, {$s};"),
        (f"test.fam{n}.x4/i16", "op.8 {$d}, {$s};"),
        (f"test.fam{n}.x4/u16", "op.8 {$d}, {$s};"),
    ]
    assert len(gr.atom(f"test.fam{n}.x2")) == 2  # type: ignore[arg-type]


def operand(**changes: Any) -> list[dict[str, Any]]:
    return [{"name": "d", "pattern": "[2].i16.RF", "tile": "e2", "access": "write"} | changes]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc": ""}, "test.bad: no doc   [ATOM_DEFINITION]"),
        ({"source": ""}, "test.bad: no source   [ATOM_DEFINITION]"),
        ({"cxx": "x"}, "test.bad: exactly one of ptx and cxx must be given   [ATOM_DEFINITION]"),
        ({"ptx": ""}, "test.bad: exactly one of ptx and cxx must be given   [ATOM_DEFINITION]"),
        ({"arch": "sm_8x"}, 'test.bad: architecture "sm_8x"   [ATOM_DEFINITION]'),
        ({"kind": "Sort"}, "no kind is called `Sort`   [ATOM_DEFINITION]"),
        ({"attrs": {}}, "test.bad: UnaryPointwise needs the attribute `op`   [ATOM_DEFINITION]"),
        ({"attrs": {"op": ["sort"]}}, "test.bad: UnaryPointwise has no operation `sort`   [ATOM_DEFINITION]"),
        ({"attrs": {"op": ["neg"], "x": ["1"]}}, "test.bad: UnaryPointwise has no attribute `x`   [ATOM_DEFINITION]"),
        (
            {"ptx": "op $d, $s, $q;"},
            "test.bad: the text names `q`, which is neither an operand nor an attribute   [ATOM_TEXT]",
        ),
        ({"ptx": "op $d;"}, "test.bad: the text never names operand `s`   [ATOM_TEXT]"),
        ({"ptx": "op $d, $s[1];"}, "test.bad: $s[1] of 1 registers   [ATOM_TEXT]"),
        (
            {"out": operand(pattern="[4].i16.RF", tile="e4")},
            "test.bad: axis `e` is 4 and 2 long   [ATOM_DEFINITION]",
        ),
        (
            {"out": operand(pattern="[4].i16.RF", tile="f4")},
            "test.bad: $d is 2 registers: write {$d} or name one   [ATOM_TEXT]",
        ),
        (
            {"out": operand(tv="1:0;2:2")},
            "test.bad: operand `d`: the TV layout reaches element 2 of a tile of 2   [ATOM_TV]",
        ),
        (
            {"out": operand(tv="1:0;2:0")},
            "test.bad: operand `d`: no thread holds element 1 of the tile   [ATOM_TV]",
        ),
        (
            {"out": operand(tv="2:1;2:0")},
            "test.bad: operand `d`: the TV layout has 2 threads, the collective 1   [ATOM_TV]",
        ),
        (
            {"out": operand(tv="1:0;4:1")},
            "test.bad: operand `d`: the TV layout has 4 values, the pattern 2   [ATOM_TV]",
        ),
        (
            {"out": operand(tv="1:0")},
            'test.bad: operand `d`: expected `;` at character 3 of "1:0"   [ATOM_SYNTAX]',
        ),
        (
            {"out": operand(pattern="[2.i16.RF")},
            'test.bad: operand `d`: expected `]` at character 2 of "[2.i16.RF"   [ATOM_SYNTAX]',
        ),
        (
            {"out": operand(pattern="[2].i17.RF")},
            'test.bad: operand `d`: `i17` is not a scalar type at character 7 of "[2].i17.RF"   [ATOM_SYNTAX]',
        ),
        (
            {"out": operand(pattern="[2:2].i16.RF")},
            'test.bad: operand `d`: the pattern\'s strides do not number the values 0 to 1: "[2:2].i16.RF"'
            "   [ATOM_DEFINITION]",
        ),
        (
            {"out": operand(pattern="[2].i16.SH")},
            'test.bad: operand `d`: memory needs strides ("_": any): "[2].i16.SH"   [ATOM_DEFINITION]',
        ),
        (
            {"out": operand(reg="r/3")},
            "test.bad: operand `d`: 2 values of 16 bits do not fill registers of 32 bits, 3 each   [ATOM_DEFINITION]",
        ),
        (
            {"out": operand(pattern="[1000000000,1000000000,1000000000].i16.RF")},
            "test.bad: operand `d`: more than 1048576 elements at character 33 of "
            '"[1000000000,1000000000,1000000000].i16.RF"   [ATOM_SYNTAX]',
        ),
        (
            {"threads": "[4096,4096]"},
            'test.bad: threads: more than 1048576 elements at character 10 of "[4096,4096]"   [ATOM_SYNTAX]',
        ),
        ({"out": operand(access="read")}, "test.bad: output `d` is only read   [ATOM_DEFINITION]"),
        ({"name": "ldmatrix.x4"}, "ldmatrix.x4 is defined already   [ATOM_DEFINITION]"),
        (
            {"threads": "[32]", "converge": 16},
            "test.bad: converge is 16 for a collective of 32 threads   [ATOM_DEFINITION]",
        ),
        ({"converge": 7}, "test.bad: converge is 7 for a collective of one thread   [ATOM_DEFINITION]"),
        ({"converge": 2048}, "test.bad: converge is 2048 for a collective of one thread   [ATOM_DEFINITION]"),
        ({"threads": "[32:0]"}, 'test.bad: threads "[32:0]" name thread 0 twice   [ATOM_DEFINITION]'),
        ({"done": "zz"}, 'test.bad: done is "zz"   [ATOM_DEFINITION]'),
        ({"done": "group:"}, 'test.bad: done is "group:"   [ATOM_DEFINITION]'),
        (
            {"done": "group:mine"},
            'test.bad: nothing waits for `mine`, where done is "group:mine"   [ATOM_DEFINITION]',
        ),
        ({"ptx": 'op $d, "$s";'}, 'test.bad: `"` at character 7 of the PTX text   [ATOM_TEXT]'),
        ({"ptx": "op $d, \\$s;"}, "test.bad: `\\` at character 7 of the PTX text   [ATOM_TEXT]"),
        ({"ptx": "op $d,\n$s;"}, "test.bad: a newline at character 6 of the PTX text   [ATOM_TEXT]"),
        ({"ptx": "op $d, $s"}, "test.bad: the PTX text does not end with `;`   [ATOM_TEXT]"),
        ({"name": "a\nb"}, 'an atomic spec cannot be called "a?b": it has a newline   [ATOM_DEFINITION]'),
        ({"name": "a b"}, 'an atomic spec cannot be called "a b": it has ` `   [ATOM_DEFINITION]'),
        ({"name": "a,b"}, 'an atomic spec cannot be called "a,b": it has `,`   [ATOM_DEFINITION]'),
        ({"name": 'a"b'}, 'an atomic spec cannot be called "a"b": it has `"`   [ATOM_DEFINITION]'),
        (
            {"name": "1a"},
            'an atomic spec cannot be called "1a": its first character is not a letter   [ATOM_DEFINITION]',
        ),
        ({"name": "a/"}, 'an atomic spec cannot be called "a/": nothing follows `/`   [ATOM_DEFINITION]'),
        ({"name": "a/b/c"}, 'an atomic spec cannot be called "a/b/c": it has more than one `/`   [ATOM_DEFINITION]'),
        ({"arch": "sm_999+"}, 'test.bad: architecture "sm_999+"   [ATOM_DEFINITION]'),
        ({"arch": "gfxzz"}, 'test.bad: architecture "gfxzz"   [ATOM_DEFINITION]'),
        ({"arch": "sm_80a"}, 'test.bad: architecture "sm_80a"   [ATOM_DEFINITION]'),
        (
            {"attrs": {"op": ["neg"], "size": ["1"]}},
            "test.bad: UnaryPointwise has no attribute `size`   [ATOM_DEFINITION]",
        ),
        ({"attrs": {"op": ["neg"], "ftz": ["maybe"]}}, 'test.bad: attribute `ftz` accepts "maybe"   [ATOM_DEFINITION]'),
        ({"attrs": {"op": ["neg"], "round": ["a b"]}}, 'test.bad: attribute `round` accepts "a b"   [ATOM_DEFINITION]'),
        (
            {"attrs": {"op": ["neg"], "round": ["*const"]}},
            'test.bad: attribute `round` accepts "*const"   [ATOM_DEFINITION]',
        ),
        ({"out": operand(name="s")}, "test.bad: two operands are called `s`   [ATOM_DEFINITION]"),
        ({"out": operand(name="d d")}, 'test.bad: an operand cannot be called "d d"   [ATOM_DEFINITION]'),
        ({"out": operand(until="zz")}, 'test.bad: operand `d`: until is "zz"   [ATOM_DEFINITION]'),
        ({"numerics": [{"round": "up"}]}, 'test.bad: numerics: round is "up"   [ATOM_DEFINITION]'),
        ({"numerics": [{"group": -1}]}, "test.bad: numerics: a negative number   [ATOM_DEFINITION]"),
        ({"numerics": [{"arch": "sm_1"}]}, 'test.bad: numerics: architecture "sm_1"   [ATOM_DEFINITION]'),
    ],
)
def test_definitions_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    count = len(gr.atoms())
    with pytest.raises(gr.SelectError) as e:
        gr.define_atom(**fields(**({"name": "test.bad"} | changes)))
    assert str(e.value).split("\n")[0] == message
    assert len(gr.atoms()) == count


def test_a_default_that_matches_what_another_one_matches_is_refused() -> None:
    text = refused(
        kind="BinaryPointwise",
        out=[{"name": "d", "pattern": "[].fp32.RF", "access": "write"}],
        in_=[{"name": "a", "pattern": "[].fp32.RF"}, {"name": "b", "pattern": "[].fp32.RF"}],
        attrs={"op": ["add"]},
        ptx="add.f32 $d, $a, $b;",
        is_default=True,
    )
    assert text == (
        "test.bad and add.rn.f32 would both match one leaf   [ATOM_OVERLAP]\n"
        "  both are defaults of BinaryPointwise\n"
        "  fix: set is_default=False: it is then reached by atom= or an attribute"
    )


def test_unknown_fields_are_type_errors() -> None:
    with pytest.raises(TypeError, match=r"test\.bad: no field is called `ptz`"):
        gr.define_atom(**fields(name="test.bad", ptz=""))
    with pytest.raises(TypeError, match=r"an operand of test\.bad: no field is called `patern`"):
        gr.define_atom(**fields(name="test.bad", out=operand(patern="")))
    for changes, text in (
        ({"out": 3}, "test.bad: `out` cannot be 3; want a list of dicts"),
        ({"attrs": 3}, "test.bad: `attrs` cannot be 3; want a dict"),
        ({"attrs": {"op": "neg"}}, "test.bad: attrs: `op` cannot be 'neg'; want a list of strings"),
        ({"converge": "32"}, "test.bad: `converge` cannot be '32'; want an integer"),
        ({"is_default": "no"}, "test.bad: `is_default` cannot be 'no'; want True or False"),
        ({"is_default": 1}, "test.bad: `is_default` cannot be 1; want True or False"),
        ({"ptx": None}, "test.bad: `ptx` cannot be None; want a string"),
        ({"dune": "now"}, "test.bad: no field is called `dune`; known: name, kind, arch, threads, converge, out, in_, "
         "aux, attrs, guard, ptx, cxx, helper, done, is_default, numerics, family, doc, source"),
    ):  # fmt: skip
        with pytest.raises(TypeError) as e:
            gr.define_atom(**fields(**({"name": "test.bad"} | changes)))
        assert str(e.value) == text


def test_a_name_that_leaves_a_choice() -> None:
    """Entries that are not defaults may overlap; a family's name must then not leave the choice open."""
    number = next(COUNTER)
    rows = [["X"], [["one"], ["two"]]]
    gr.define_atom(**fields(name=f"test.choice{number}/${{X}}", family=[rows]))
    with gr.Kernel("k") as kernel:
        r = gr.alloc("r", [2, 2], gr.i16, gr.RF)
        gr.unary("neg", r[0, :], r[1, :], atom=f"test.choice{number}")
    with pytest.raises(gr.SelectError) as e:
        _core.match_kernel(kernel.ir, "sm_80")
    text = str(e.value)
    assert "several atomic specs implement this on sm_80   [AMBIGUOUS_ATOM]" in text
    assert text.endswith(
        f"  matches: test.choice{number}/one\n  matches: test.choice{number}/two\n  fix: name one with atom="
    )
