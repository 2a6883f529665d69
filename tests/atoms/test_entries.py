"""Every entry of the registry: its data makes sense, and its text compiles for the architectures that have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
import pytest
from conformance import of_agents

import graphene as gr
from graphene import _core

BUILT_IN = list(gr.atoms().values())  # when tests are collected: before any defines its own
WIDE = ("wgmma.m64n8k", "wgmma.m64n72k", "wgmma.m64n256k")  # of 32 widths three stand for all
NAMES = [a.name for a in BUILT_IN if a.done != "group:wgmma" or a.name.startswith(WIDE)]


@pytest.mark.parametrize("name", NAMES)
def test_the_tv_layouts_stay_in_the_tile_and_cover_it(name: str) -> None:
    atom = gr.atoms()[name]
    for o in atom.operands.values():
        size = 1
        for e in o.extents:
            size *= e
        thread, value = o.tv[0], o.tv[1]
        assert thread.size == atom.thread_count
        assert value.size == o.values
        lanes = {thread(t) for t in range(thread.size)}
        held = {lane + value(v) for v in range(value.size) for lane in lanes}
        assert held == set(range(size)), o


@pytest.mark.parametrize("name", NAMES)
def test_a_written_element_is_written_by_one_thread(name: str) -> None:
    """Two threads that write one element would race with themselves."""
    atom = gr.atoms()[name]
    for output in atom.outputs:
        o = atom.operands[output]
        if atom.kind == "Reduction":  # every lane gets the result in its own registers
            assert o.memories == ["RF"]
            continue
        thread = o.tv[0]  # lanes whose address the instruction ignores repeat those before
        repeats = isinstance(thread.stride, tuple) and thread.stride[-1] == 0
        lanes = atom.thread_count // (thread.shape[-1] if repeats else 1)
        owners = [o.tv[0](t) + o.tv[1](v) for t in range(lanes) for v in range(o.values)]
        assert len(owners) == len(set(owners)), o


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_does_and_where_that_is_defined(name: str) -> None:
    atom = gr.atoms()[name]
    assert atom.doc.endswith(".")
    assert atom.doc[0].isupper()
    assert "$" not in atom.doc
    assert any(manual in atom.source for manual in ("PTX ISA", "CUDA C++", "AMD Instinct"))
    assert bool(atom.ptx) != bool(atom.cxx)
    assert atom.name.startswith(atom.family)


@pytest.mark.parametrize("name", NAMES)
def test_registers_and_vectors_have_the_width_of_the_instruction(name: str) -> None:
    """Bits of the registers in the text equal bits of the values; a vector access is as wide as its alignment."""
    atom = gr.atoms()[name]
    for o in atom.operands.values():
        bits = {harness.BITS[x] for x in o.dtypes}
        assert len(bits) == 1, "the types of one pattern have one width"
        constraint, per, count = o.registers
        if count:
            width = {"h": 16, "r": 32, "f": 32, "l": 64, "d": 64}[constraint]
            assert per * bits.pop() == width or (per, constraint, o.dtypes[0]) == (2, "h", "fp4e2m1")  # a byte
            assert per * count == o.values
        elif o.align_bytes and atom.thread_count == 1 and o.via == "natural" and not of_agents(atom):
            assert o.align_bytes * 8 == o.values * bits.pop()


def test_the_names_of_the_paper_and_the_listings_are_there() -> None:
    for name in ("ldmatrix.x4", "ldmatrix.x4.trans", "mma.m16n8k16.f32.f16", "bar.sync"):
        assert gr.atom(name).name == name
    for name in ("ld.global.v4.b32", "st.shared.v4.b32", "ld.global.b32", "st.shared.b32", "shfl.sync.bfly.b32"):
        family = gr.atom(name)
        assert isinstance(family, gr.AtomFamily)
        assert len(family) > 1
        assert family.name == name


# PTX ISA, matrix fragments, as the manual writes them: (groupID, threadID_in_group, i) -> (row, column) of A, of B
# (k, n)
# and of C.
Fragment = Callable[[int, int, int], tuple[int, int]]
C_16X8: Fragment = lambda g, t, i: ((g if i < 2 else g + 8), t * 2 + (i & 1))  # noqa: E731
MANUAL: dict[str, tuple[Fragment, Fragment, Fragment]] = {
    "mma.m16n8k16.f32.f16": (
        lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
        lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
        C_16X8,
    ),
    "mma.m16n8k8.f32.f16": (
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
        lambda g, t, i: (t * 2 + i, g),
        C_16X8,
    ),
    "mma.m16n8k4.f32.tf32": (
        lambda g, t, i: (g if i == 0 else g + 8, t),
        lambda g, t, i: (t, g),
        C_16X8,
    ),
    "mma.m16n8k8.f32.tf32": (
        lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
        lambda g, t, i: (t if i == 0 else t + 4, g),
        C_16X8,
    ),
    "mma.m8n8k4.f64.f64": (
        lambda g, t, i: (g, t),
        lambda g, t, i: (t, g),
        lambda g, t, i: (g, t * 2 + i),
    ),
    "mma.m16n8k4.f64.f64": (
        lambda g, t, i: (g if i == 0 else g + 8, t),
        lambda g, t, i: (t, g),
        C_16X8,
    ),
    "mma.m16n8k8.f64.f64": (
        lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
        lambda g, t, i: (t if i == 0 else t + 4, g),
        C_16X8,
    ),
    "mma.m16n8k16.f64.f64": (
        lambda g, t, i: (g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t),
        lambda g, t, i: (i * 4 + t, g),
        C_16X8,
    ),
    "mma.m16n8k16.s32.s8": (
        lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
        lambda g, t, i: (t * 4 + (i & 3), g),
        C_16X8,
    ),
    "mma.m16n8k32.s32.u8": (
        lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
        lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
        C_16X8,
    ),
}


@pytest.mark.parametrize("name", MANUAL)
def test_matrix_fragments_are_those_of_the_manual(name: str) -> None:
    atom = gr.atom(name)
    a, b, c = MANUAL[name]
    for lane in range(32):
        g, t = lane >> 2, lane % 4
        for o, f in (("a", a), ("b", lambda g, t, i: b(g, t, i)[::-1]), ("d", c)):
            operand = atom.operands[o]
            for i in range(operand.values):
                row, col = f(g, t, i)
                assert operand.tv(lane, i) == row + operand.extents[0] * col, (o, lane, i)


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("accumulator", ["f32", "f16"])
def test_quad_pair_fragments_are_those_of_the_manual(order: str, accumulator: str) -> None:
    """Ranks 0 to 3 are lanes below 16, ranks 4 to 7 those 16 above."""
    atom = gr.atom(f"mma.m8n8k4.{order}.{order}.{accumulator}")
    for rank in range(8):
        low, high = rank % 4, rank >= 4
        for i in range(4):
            by_lane, by_value = (low + 4 * high, i), (i + 4 * high, low)
            row, k = by_lane if order == "row" else by_value
            assert atom.a.tv(rank, i) == row + 8 * k
            n, k = by_lane if order == "col" else by_value
            assert atom.b.tv(rank, i) == n + 8 * k
        for i in range(8):
            row, col = low + 4 * high, i
            if accumulator == "f32":
                row = (low & 1) + (i & 2) + 4 * high
                col = (i & 4) + (low & 2) + (i & 1)
            assert atom.c.tv(rank, i) == row + 8 * col


@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_is_that_of_the_manual(count: int) -> None:
    """Lane t gets elements 2t and 2t+1 of each matrix in row order; with .trans of the transposed matrix."""
    plain, trans = gr.atom(f"ldmatrix.x{count}"), gr.atom(f"ldmatrix.x{count}.trans")
    for lane in range(32):
        for q in range(count):
            for i in range(2):
                row, col = lane // 4, lane % 4 * 2 + i
                assert plain.dst.tv(lane, q * 2 + i) == 64 * q + 8 * row + col
                assert trans.dst.tv(lane, q * 2 + i) == 64 * q + 8 * col + row
        for col in range(8):
            assert plain.src.tv(lane, col) == lane % (8 * count) * 8 + col


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("stmatrix")])
def test_stmatrix_is_ldmatrix_the_other_way_round(name: str) -> None:
    store, load = gr.atoms()[name], gr.atoms()["ld" + name[2:]]
    for own, other in (("src", "dst"), ("dst", "src")):
        a, b = store.operands[own], load.operands[other]
        assert (a.pattern, a.axes, a.extents, str(a.tv)) == (b.pattern, b.axes, b.extents, str(b.tv))


# One compilation for each architecture, of what is new on it; everything again on the newest.
ARCHS = ["sm_70", "sm_72", "sm_75", "sm_80", "sm_89", "sm_90a"]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_texts_compile(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path))
    if not harness.has_compiler(arch):
        pytest.skip("no NVRTC for it")
    older = [o for o in ARCHS[: ARCHS.index(arch)] if harness.has_compiler(o)]
    last = arch == ARCHS[-1]
    batch = [
        a for a in BUILT_IN if a.name in NAMES and a.runs_on(arch) and (last or not any(a.runs_on(o) for o in older))
    ]
    text, names = harness.source(batch)
    binary = _core.compile_source(text, next(iter(names.values())), arch)
    assert binary.cubin[:4] == b"\x7fELF"


def test_each_entry_runs_on_an_architecture_that_is_compiled() -> None:
    compiled = [*ARCHS, "gfx90a"]  # the last in test_gfx90a.py
    assert [a.name for a in BUILT_IN if not any(a.runs_on(x) for x in compiled)] == []


def test_no_two_entries_match_one_leaf() -> None:
    _core.check_atoms()
