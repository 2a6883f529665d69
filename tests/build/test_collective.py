"""Collective leaves against brute force: each value that a thread holds moves from or to where its element lives."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import _core

MMA = gr.atom("mma.m16n8k16.f32.f16")


class Fragment:
    """Who holds what, written down independently: warps (gm, gn), registers (rm, rn), the atom's tile."""

    def __init__(self, shape: tuple[int, int], operand: gr.AtomOperand, warps: tuple[int, int] = (1, 1)) -> None:
        self.operand, self.warps, self.shape = operand, warps, shape
        self.tile = operand.extents
        self.regs = [s // (t * w) for s, t, w in zip(shape, self.tile, warps, strict=True)]
        self.values = operand.values * self.regs[0] * self.regs[1]

    def coord(self, thread: int, register: int) -> tuple[int, int]:
        lane, warp = thread % 32, thread // 32
        value, q = register % self.operand.values, register // self.operand.values
        e = self.operand.tv(lane, value)
        at = (e % self.tile[0], e // self.tile[0])
        reg = (q % self.regs[0], q // self.regs[0])
        w = (warp % self.warps[0], warp // self.warps[0])
        return tuple(at[d] + self.tile[d] * (reg[d] + self.regs[d] * w[d]) for d in range(2))  # type: ignore[return-value]


def accesses(kernel: gr.Kernel, atom: str) -> list[dict[str, Any]]:
    found = [m for m in _core.match_kernel(kernel.ir, "sm_80") if m["atom"].split("/")[0] == atom]
    assert found, f"no leaf of {atom}"
    return found


def moved(match: dict[str, Any], thread: int) -> list[tuple[int, int]]:
    """(register, memory offset) of every value that one thread moves; other threads may give the addresses."""
    atom = gr.atoms()[match["atom"]]
    reg, mem = (
        (match["out"][0], match["in"][0]) if "registers" in match["out"][0] else (match["in"][0], match["out"][0])
    )
    names = [atom.outputs[0], next(n for n in atom.operands if n not in atom.outputs)]
    reg_name, mem_name = names if "registers" in match["out"][0] else names[::-1]
    held, seen = atom.operands[reg_name], atom.operands[mem_name]
    count = atom.thread_count
    base = thread - thread % count
    where = {seen.tv(t, j): (t, j) for t in reversed(range(count)) for j in range(seen.values)}
    pairs = []
    for v, register in enumerate(reg["registers"]):
        t, j = where[held.tv(thread % count, v)]
        pairs.append((register, mem["addresses"][base + t][j]))
    return pairs


def check_fragment(
    kernel: gr.Kernel, atom: str, fragment: Fragment, memory: Any, threads: int, origin: Any = lambda _: (0, 0)
) -> None:
    """Every register of every thread is moved once, from or to where its element lives."""
    matches = accesses(kernel, atom)
    for thread in range(threads):
        done = {}
        for m in matches:
            for register, address in moved(m, thread):
                assert register not in done
                done[register] = address
        assert sorted(done) == list(range(fragment.values))
        for register, address in done.items():
            at = fragment.coord(thread, register)
            row, col = (a + o for a, o in zip(at, origin(thread), strict=True))
            assert address == memory(row, col), (thread, register, at)


LAYOUTS = {
    "row": lambda m, n: gr.row_major(m, n),
    "padded": lambda m, n: gr.Layout((m, n), (n + 8, 1)),
    "blocked": lambda m, n: gr.Layout((m, (8, n // 8)), (8, (1, 8 * m))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("atom", ["ldmatrix.x1", "ldmatrix.x2", "ldmatrix.x4"])
@pytest.mark.parametrize(
    ("operand", "shape"), [("a", (16, 16)), ("a", (64, 16)), ("a", (16, 64)), ("b", (32, 16)), ("b", (16, 32))]
)
def test_loads_of_matrices_into_fragments(operand: str, shape: tuple[int, int], atom: str, layout: str) -> None:
    tv = getattr(MMA, operand)
    memory = LAYOUTS[layout](*shape)
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        src = gr.alloc("src", memory, gr.fp16, gr.SH)
        r = gr.fragment("r", list(shape), gr.fp16, tv, on=warp)
        gr.move(r, src, atom=atom)
    check_fragment(kernel, atom, Fragment(shape, tv), memory, 32)


@pytest.mark.parametrize("atom", ["ldmatrix.x1.trans", "ldmatrix.x2.trans", "ldmatrix.x4.trans"])
@pytest.mark.parametrize(("operand", "shape"), [("a", (16, 16)), ("a", (32, 32)), ("b", (64, 16)), ("b", (16, 32))])
def test_transposing_loads_of_matrices(operand: str, shape: tuple[int, int], atom: str) -> None:
    """A tile stored the other way round is passed as .T; the atom must be the transposing one."""
    tv = getattr(MMA, operand)
    stored = gr.row_major(shape[1], shape[0])
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        src = gr.alloc("src", stored, gr.fp16, gr.SH)
        r = gr.fragment("r", list(shape), gr.fp16, tv, on=warp)
        gr.move(r, src.T, atom=atom)
    check_fragment(kernel, atom, Fragment(shape, tv), lambda m, n: stored(n, m), 32)


def warps_of(threads: Any, warps: tuple[int, int]) -> Any:
    return threads.tile(32).reshape(0, gr.Layout(warps))


@pytest.mark.parametrize("warps", [(1, 1), (2, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("stages", [None, 3])
def test_each_warp_loads_its_own_part_of_a_stage(warps: tuple[int, int], stages: int | None) -> None:
    """As in a GEMM: the warp's tile is found by its coordinates, the fragment has stages of its own."""
    count = warps[0] * warps[1]
    memory = gr.row_major(32 * warps[0], 32)
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        ws = warps_of(gr.threads(32 * count), warps)
        (wm, wn), _ = ws.indices()
        src = gr.alloc("src", memory, gr.fp16, gr.SH, stages=stages)
        r = gr.fragment("r", [32, 16], gr.fp16, MMA.a, on=ws[wm, wn], stages=2)
        tile = (src if stages is None else src[stages - 1]).tile([32, 16])
        gr.move(r[1], tile[wm, 1], atom="ldmatrix.x4")
    offset = 0 if stages is None else (stages - 1) * 32 * warps[0] * 32
    fragment = Fragment((32, 16), MMA.a)
    for m in accesses(kernel, "ldmatrix.x4"):
        for thread in range(32 * count):
            for register, address in moved(m, thread):
                row, col = fragment.coord(thread % 32, register - 16)
                warp_row = thread // 32 % warps[0]
                assert address == offset + memory(32 * warp_row + row, 16 + col)


@pytest.mark.parametrize(
    ("atom", "dtype"), [("st.shared.v2.b32", "fp32"), ("st.shared.b32", "fp32"), ("st.shared.b32", "fp16")]
)
@pytest.mark.parametrize("warps", [(1, 1), (2, 2), (2, 4)])
def test_accumulators_go_to_shared_memory(atom: str, dtype: str, warps: tuple[int, int]) -> None:
    shape = (32 * warps[0], 16 * warps[1])
    memory = gr.row_major(*shape)
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        ws = warps_of(gr.threads(32 * warps[0] * warps[1]), warps)
        acc = gr.fragment("acc", list(shape), getattr(gr, dtype), MMA.c, on=ws)
        dst = gr.alloc("dst", memory, getattr(gr, dtype), gr.SH)
        gr.move(dst, acc, atom=atom)
    check_fragment(kernel, atom, Fragment(shape, MMA.c, warps), memory, 32 * warps[0] * warps[1])


@pytest.mark.parametrize("load", [True, False])
def test_the_own_part_of_an_accumulator_moves_to_its_own_tile(load: bool) -> None:
    """acc[wm, wn] with the memory tile [wm, wn] of a larger tensor: global memory, both directions."""
    warps, shape = (2, 2), (64, 32)
    memory = gr.row_major(*shape)
    with gr.Kernel("k") as kernel:
        g = gr.inout("g", memory, gr.fp32, align_bytes=16)
        gr.blocks(1)
        ws = warps_of(gr.threads(128), warps)
        (wm, wn), _ = ws.indices()
        acc = gr.fragment("acc", list(shape), gr.fp32, MMA.c, on=ws)
        part, tile = acc[wm, wn], g.tile([32, 16])[wm, wn]
        if load:
            gr.move(part, tile, atom="ld.global.v2.b32")
        else:
            gr.move(tile, part, atom="st.global.v2.b32")
    atom = "ld.global.v2.b32" if load else "st.global.v2.b32"
    check_fragment(kernel, atom, Fragment(shape, MMA.c, warps), memory, 128)


@pytest.mark.parametrize("threads", [32, 96, 128, 256])
@pytest.mark.parametrize("shape", [(64, 32), (16, 64), (8, 8), (1, 256)])
def test_a_block_copies_a_tile_vector_by_vector(threads: int, shape: tuple[int, int]) -> None:
    """Each element is read once and written once to the same place; neighbours go to neighbouring threads."""
    memory = gr.Layout(shape, (shape[1] + 8, 1))
    with gr.Kernel("k") as kernel:
        g = gr.input("g", gr.row_major(*shape), gr.fp16, align_bytes=16)
        gr.blocks(1)
        ts = gr.threads(threads)
        s = gr.alloc("s", memory, gr.fp16, gr.SH)
        gr.move(s, g, on=ts, atom=("ld.global.v4.b32", "st.shared.v4.b32"))
    vectors = shape[0] * shape[1] // 8
    loads, stores = accesses(kernel, "ld.global.v4.b32"), accesses(kernel, "st.shared.v4.b32")
    assert len(loads) == len(stores) == -(-vectors // threads)
    moves = {}
    for i, (ld, st) in enumerate(zip(loads, stores, strict=True)):
        assert ld["out"][0]["registers"] == st["in"][0]["registers"]
        for t in range(threads):
            if i * threads + t < vectors:
                for a, b in zip(ld["in"][0]["addresses"][t], st["out"][0]["addresses"][t], strict=True):
                    assert a not in moves
                    moves[a] = b
                assert ld["in"][0]["addresses"][t][0] == 8 * (i * threads + t)
    assert moves == {gr.row_major(*shape)(m, n): memory(m, n) for m, n in product(range(shape[0]), range(shape[1]))}


@pytest.mark.parametrize(("m", "n", "k"), [(16, 8, 16), (32, 16, 16), (64, 32, 16), (16, 16, 64)])
def test_a_matmul_over_fragments_multiplies_every_pair_once(m: int, n: int, k: int) -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        a = gr.fragment("a", [m, k], gr.fp16, MMA.a, on=warp)
        b = gr.fragment("b", [n, k], gr.fp16, MMA.b, on=warp)
        c = gr.fragment("c", [m, n], gr.fp32, MMA.c, on=warp)
        gr.matmul(c, a, b.T, atom=MMA)
    fa, fb, fc = Fragment((m, k), MMA.a), Fragment((n, k), MMA.b), Fragment((m, n), MMA.c)
    products = set()
    for leaf in accesses(kernel, MMA.name):
        rc, (ra, rb) = leaf["out"][0]["registers"], (x["registers"] for x in leaf["in"])
        tile_c, tile_a, tile_b = fc.coord(0, rc[0]), fa.coord(0, ra[0]), fb.coord(0, rb[0])
        assert (tile_c[0], tile_c[1], tile_a[1]) == (tile_a[0], tile_b[0], tile_b[1])
        products.add((tile_c[0], tile_c[1], tile_a[1]))
        for lane in range(32):  # every register is the atom's element at this tile
            for frag, regs, operand, tile in (
                (fa, ra, MMA.a, tile_a),
                (fb, rb, MMA.b, tile_b),
                (fc, rc, MMA.c, tile_c),
            ):
                for v, r in enumerate(regs):
                    e = operand.tv(lane, v)
                    want = (tile[0] + e % operand.extents[0], tile[1] + e // operand.extents[0])
                    assert frag.coord(lane, r) == want
    assert products == set(product(range(0, m, 16), range(0, n, 8), range(0, k, 16)))


def test_an_init_sets_every_register_once() -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        ws = warps_of(gr.threads(128), (2, 2))
        (wm, wn), _ = ws.indices()
        acc = gr.fragment("acc", [64, 32], gr.fp32, MMA.c, on=ws)
        gr.init(acc, 0)
        gr.init(acc[wm, wn], 1)
        r = gr.alloc("r", [2, 3], gr.fp32, gr.RF)
        gr.init(r, 2)
    regs: dict[tuple[str, str], list[int]] = {}
    for leaf in accesses(kernel, "init"):
        regs.setdefault((leaf["out"][0]["buffer"], leaf["attrs"]["value"]), []).extend(leaf["out"][0]["registers"])
    assert {key: sorted(r) for key, r in regs.items()} == {
        ("acc", "0"): list(range(16)),
        ("acc", "1"): list(range(16)),
        ("r", "2"): list(range(6)),
    }


def test_private_registers_move_vector_by_vector() -> None:
    with gr.Kernel("k") as kernel:
        g = gr.input("g", gr.row_major(32, 4, 8), gr.fp16, align_bytes=16)
        gr.blocks(1)
        ts = gr.threads(32)
        (t,) = ts.indices()
        r = gr.alloc("r", [4, 8], gr.fp16, gr.RF)
        gr.move(r, g[t, :, :], atom="ld.global.v2.b32")
    done = {}
    for leaf in accesses(kernel, "ld.global.v2.b32"):
        for register, address in zip(leaf["out"][0]["registers"], leaf["in"][0]["addresses"][3], strict=True):
            done[register] = address
    assert done == {i: 96 + i for i in range(32)}


def refused(build: Any) -> str:
    def run() -> None:
        with gr.Kernel("k"):
            gr.blocks(1)
            build()

    with pytest.raises(gr.SelectError) as e:
        run()
    return str(e.value).split(": ", 1)[1]


def test_a_wrong_way_round_load_names_the_first_element_that_is_not_contiguous() -> None:
    def build() -> None:
        warp = gr.threads(32)
        src = gr.alloc("src", [16, 16], gr.fp16, gr.SH)
        r = gr.fragment("r", [16, 16], gr.fp16, MMA.a, on=warp)
        gr.move(r, src, atom="ldmatrix.x4.trans")

    assert refused(build) == (
        "what ldmatrix.x4.trans accesses as one vector is not contiguous   [COLLECTIVE_VECTOR]\n"
        "    %4:[1,1].[16,16].fp16.RF<mma.m16n8k16.f32.f16.a> <- "
        "Move<<<#1:[1].block, #2:[32].thread>>>(%3:[16,16].fp16.SH)\n"
        "  vector: 8 elements along dimension 0\n"
        "  element 1: 16 elements after element 0, in [16,16:16,1].fp16.SH\n"
        "  fix: choose a narrower atom, its transposing form, or pass the memory tile as .T"
    )


def test_registers_that_are_not_neighbours_in_memory_are_named() -> None:
    def build() -> None:
        warp = gr.threads(32)
        dst = gr.alloc("dst", [16, 8], gr.fp32, gr.SH)
        r = gr.fragment("r", [16, 8], gr.fp32, MMA.c, on=warp)
        gr.move(dst, r, atom="st.shared.v4.b32")

    text = refused(build)
    assert "what st.shared.v4.b32/b32 accesses as one vector is not contiguous   [COLLECTIVE_VECTOR]" in text
    assert "  vector: 4 elements from (0,0) of thread 0\n  element 2: (8,0)\n" in text


def test_shapes_that_differ_are_refused() -> None:
    def build() -> None:
        warp = gr.threads(32)
        src = gr.alloc("src", [32, 16], gr.fp16, gr.SH)
        r = gr.fragment("r", [16, 16], gr.fp16, MMA.a, on=warp)
        gr.move(r, src, atom="ldmatrix.x4")

    text = refused(build)
    assert "fragment and memory tile differ in shape   [COLLECTIVE_SHAPE]" in text
    assert "  fragment: [16,16]\n  memory: [32,16].fp16.SH\n" in text


def test_an_atom_of_another_kind_is_refused() -> None:
    def build() -> None:
        warp = gr.threads(32)
        src = gr.alloc("src", [16, 16], gr.fp16, gr.SH)
        r = gr.fragment("r", [16, 16], gr.fp16, MMA.a, on=warp)
        gr.move(r, src, atom="st.shared.b32")

    text = refused(build)
    assert "st.shared.b32 does not implement this Move   [COLLECTIVE_ATOM]" in text
    assert text.endswith(
        "  want: Move from a 16-bit type in RF to a 16-bit type in SH\n  got: Move of fp16 from SH to RF\n"
        "  fix: name one that does, or two that go through registers: atom=(load, store)"
    )


def test_an_operand_the_wrong_way_round_is_refused() -> None:
    def build() -> None:
        warp = gr.threads(32)
        a = gr.fragment("a", [16, 16], gr.fp16, MMA.a, on=warp)
        b = gr.fragment("b", [32, 16], gr.fp16, MMA.b, on=warp)
        c = gr.fragment("c", [16, 32], gr.fp32, MMA.c, on=warp)
        gr.matmul(c, a, b, atom=MMA)

    text = refused(build)
    assert "the shapes of a MatMul do not fit together   [COLLECTIVE_SHAPE]" in text
    assert "  got: out [16,32], a [16,16], b [32,16]\n  fix: an operand stored the other way is passed as .T" in text


def test_a_leaf_that_fits_stays_a_leaf() -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        a = gr.fragment("a", [16, 16], gr.fp16, MMA.a, on=warp)
        b = gr.fragment("b", [8, 16], gr.fp16, MMA.b, on=warp)
        c = gr.fragment("c", [16, 8], gr.fp32, MMA.c, on=warp)
        gr.matmul(c[0, 0], a[0, 0], b[0, 0].T, atom=MMA)
    assert len(_core.match_kernel(kernel.ir, "sm_80")) == 1


def test_a_fragment_is_not_indexed_by_a_counter() -> None:
    def build() -> None:
        warp = gr.threads(32)
        a = gr.fragment("a", [32, 16], gr.fp16, MMA.a, on=warp)
        s = gr.alloc("s", [32, 16], gr.fp16, gr.SH)
        with gr.loop("i", 2) as i:
            gr.move(a.tile([16, None])[i, 0], s.tile([16, None])[i, 0], atom="ldmatrix.x4")

    text = refused(build)
    assert (
        "the place of the view in its fragment is not a constant of the executing group   [COLLECTIVE_FRAGMENT]" in text
    )
    assert text.endswith(
        "  offset: i*16\n  fragment: [16,16].fp16.RF<mma.m16n8k16.f32.f16.a> on [32].thread\n"
        "  fix: index the fragment by its group's own coordinates and by constants (a Python range)"
    )


def test_a_fragment_is_not_moved_by_other_threads() -> None:
    def build() -> None:
        warps = gr.threads(64).tile(32)
        a = gr.fragment("a", [16, 16], gr.fp16, MMA.a, on=warps[0])
        s = gr.alloc("s", [16, 16], gr.fp16, gr.SH)
        with gr.only(warps[1]):
            gr.move(a, s, on=warps[1], atom="ldmatrix.x4")

    text = refused(build)
    assert "the fragment is held by other threads   [COLLECTIVE_FRAGMENT]" in text
    assert text.endswith("  fragment: [32].thread\n  on: [32].thread\n  fix: leave out on=")


def copied(tv, shape=(16, 32), atom=("ld.global.v2.b32", "st.shared.v2.b32"), threads=32):
    with gr.Kernel("k") as kernel:
        X, Y = gr.input("X", list(shape), gr.fp16, align_bytes=16), gr.output("Y", list(shape), gr.fp16, align_bytes=16)
        gr.blocks(1)
        on = gr.threads(threads)
        s = gr.alloc("s", list(shape), gr.fp16, gr.SH)
        gr.move(s, X, on=on, atom=atom, tv=tv)
        gr.barrier()
        gr.move(Y, s, on=on, atom=("ld.shared.v4.b32", "st.global.v4.b32"))
    return kernel


# A thread a half row; two threads a row, vectors dealt in turns; every warp's lane a column strip of four rows.
@pytest.mark.parametrize(
    "tv",
    [
        gr.tv(gr.Layout((16, 2), (1, 256)), gr.Layout((4, 4), (16, 64))),
        gr.tv(gr.Layout((2, 16), (64, 1)), gr.Layout((4, 4), (16, 128))),
        gr.tv(gr.Layout((8, 4), (64, 1)), gr.Layout((4, 4), (16, 4))),
    ],
)
def test_tv_says_who_moves_what(tv):
    kernel = copied(tv)
    assert gr.parse(str(kernel)) == kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel
    x = np.arange(512, dtype=np.float16).reshape(16, 32)
    y = np.zeros_like(x)
    kernel.simulate(x, y)
    np.testing.assert_array_equal(x, y)
    assert kernel.check().ok


def test_a_tv_layout_that_does_not_fit_a_copy():
    right = gr.tv(gr.Layout((16, 2), (1, 256)), gr.Layout((4, 4), (16, 64)))
    for wrong, why in (
        (gr.tv(gr.Layout(16), gr.Layout(32, 16)), "another number of threads"),
        (gr.tv(gr.Layout((16, 2), (1, 256)), gr.Layout((4, 4), (64, 16))), "not contiguous"),
        (gr.tv(gr.Layout((16, 2), (1, 512)), gr.Layout((4, 4), (16, 64))), "past the tile's last element"),
        (gr.tv(gr.Layout((16, 2), (1, 256)), gr.Layout(3, 16)), "not whole vectors of 4"),
    ):
        with pytest.raises(gr.SelectError, match=why):
            copied(wrong)
    with pytest.raises(gr.SelectError, match="between memories"), gr.Kernel("k"):
        gr.move(gr.alloc("a", [], gr.fp16, gr.RF), gr.alloc("b", [], gr.fp16, gr.RF), tv=right)
