"""Every entry of the registry: its data makes sense, and its text compiles for the architectures that have it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import graphene as gr
from graphene import _core

sys.path.insert(0, str(Path(__file__).parent))
import harness

BUILT_IN = list(gr.atoms().values())  # when tests are collected: before any defines its own
NAMES = [a.name for a in BUILT_IN]


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
        lanes = [thread(t) for t in range(thread.size)]
        held = {lane + value(v) for v in range(value.size) for lane in lanes}
        assert held == set(range(size)), o


@pytest.mark.parametrize("name", NAMES)
def test_a_written_element_is_written_by_one_thread(name: str) -> None:
    """Two threads that write one element would race with themselves."""
    atom = gr.atoms()[name]
    for output in atom.outputs:
        o = atom.operands[output]
        owners = [o.tv[0](t) + o.tv[1](v) for t in range(atom.thread_count) for v in range(o.values)]
        assert len(owners) == len(set(owners)), o


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_does_and_where_that_is_defined(name: str) -> None:
    atom = gr.atoms()[name]
    assert atom.doc.endswith(".")
    assert atom.doc[0].isupper()
    assert "$" not in atom.doc
    assert "PTX ISA" in atom.source or "CUDA C++" in atom.source
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
            assert per * bits.pop() == width
            assert per * count == o.values
        elif o.align_bytes and atom.thread_count == 1:
            assert o.align_bytes * 8 == o.values * bits.pop()


def test_the_names_of_the_paper_and_the_listings_are_there() -> None:
    for name in ("ldmatrix.x4", "ldmatrix.x4.trans", "mma.m16n8k16.f32.f16", "bar.sync"):
        assert gr.atom(name).name == name
    for name in ("ld.global.v4.b32", "st.shared.v4.b32", "ld.global.b32", "st.shared.b32", "shfl.sync.bfly.b32"):
        family = gr.atom(name)
        assert isinstance(family, gr.AtomFamily)
        assert len(family) > 1
        assert family.name == name


def lane_fragment(i: int, lane: int, regs: int) -> tuple[int, int]:
    """PTX ISA 9.7.14.5.8: row and column of element i of the multiplicand A of m16n8k16 (regs 8), of C (regs 4)."""
    group, member = lane // 4, lane % 4
    if regs == 8:
        row = group if i < 2 or 4 <= i < 6 else group + 8
        return row, member * 2 + (i & 1) + (0 if i < 4 else 8)
    return (group if i < 2 else group + 8), member * 2 + (i & 1)


def test_mma_fragments_are_those_of_the_manual() -> None:
    mma = gr.atom("mma.m16n8k16.f32.f16")
    for lane in range(32):
        for i in range(8):
            row, col = lane_fragment(i, lane, 8)
            assert mma.a.tv(lane, i) == row + 16 * col
        for i in range(4):
            row, col = lane_fragment(i, lane, 4)
            assert mma.c.tv(lane, i) == row + 16 * col
            k = lane % 4 * 2 + (i & 1) + (0 if i < 2 else 8)  # B: row k, column lane / 4
            assert mma.b.tv(lane, i) == lane // 4 + 8 * k


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


# One compilation for each architecture, of what is new on it; everything again on the newest.
ARCHS = ["sm_75", "sm_80", "sm_89", "sm_90a"]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_texts_compile(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path))
    older = ARCHS[: ARCHS.index(arch)]
    last = arch == ARCHS[-1]
    batch = [a for a in BUILT_IN if a.runs_on(arch) and (last or not any(a.runs_on(o) for o in older))]
    text, names = harness.source(batch)
    binary = _core.compile_source(text, next(iter(names.values())), arch)
    assert binary.cubin[:4] == b"\x7fELF"


def test_each_entry_runs_on_an_architecture_that_is_compiled() -> None:
    assert [a.name for a in BUILT_IN if not any(a.runs_on(x) for x in ARCHS)] == []
