"""Matching: which entry implements a leaf, what its operands are bound to, and what is said when none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphene as gr
from graphene import _core

MMA = gr.atom("mma.m16n8k16.f32.f16")


def leaves(build: Callable[[], Any], arch: str = "sm_80") -> list[dict[str, Any]]:
    with gr.Kernel("k") as kernel:
        build()
    return _core.match_kernel(kernel.ir, arch)


def only(build: Callable[[], Any], arch: str = "sm_80") -> dict[str, Any]:
    (leaf,) = leaves(build, arch)
    return leaf


def refused(build: Callable[[], Any], arch: str = "sm_80") -> str:
    """The message, from the code's line on, without the Python location."""
    with pytest.raises(gr.SelectError) as e:
        leaves(build, arch)
    return str(e.value).split(": ", 1)[1]


def reg(name: str, shape: Any, dtype: str) -> gr.Tensor:
    return gr.alloc(name, shape, getattr(gr, dtype), gr.RF)


# The paper's Table 2, by its shapes.
def test_table_2_scalar_and_vector_moves() -> None:
    def build() -> None:
        g32 = gr.input("g32", [1], gr.fp32)
        g16 = gr.input("g16", [8], gr.fp16, align_bytes=16)
        gr.move(reg("a", [1], "fp32")[0], g32[0])
        gr.move(reg("b", [8], "fp16"), g16)
        gr.move(gr.alloc("s", [4], gr.fp32, gr.SH), reg("c", [4], "fp32"))

    assert [m["atom"] for m in leaves(build)] == ["ld.global.b32/b32", "ld.global.v4.b32/b16", "st.shared.v4.b32/b32"]


def test_table_2_arithmetic() -> None:
    def build() -> None:
        h, p, f = reg("h", [3], "fp16"), reg("p", [3, 2], "fp16"), reg("f", [3], "fp32")
        gr.binary("mul", h[0], h[1], h[2])
        gr.binary("add", p[0, :], p[1, :], p[2, :])
        gr.matmul(h[0], h[1], h[2])
        gr.matmul(p[0, :], p[1, :], p[2, :])
        gr.matmul(f[0], f[1], f[2])

    assert [m["atom"] for m in leaves(build)] == [
        "mul.rn.f16",
        "add.rn.f16x2",
        "fma.rn.f16",
        "fma.rn.f16x2",
        "fma.rn.f32",
    ]


def test_table_2_matrix_multiply() -> None:
    def build() -> None:
        warp = gr.threads(32)
        a = reg("a", [2, 4], "fp16").tile([1, 2])
        b = reg("b", [4, 1], "fp16").tile([2, 1])
        c = reg("c", [2, 2], "fp32").tile([1, 2])
        gr.matmul(c, a, b, on=warp)

    leaf = only(build)
    assert leaf["atom"] == "mma.m16n8k16.f32.f16"
    # Row-major registers [2,4] as [2,2].[1,2]: value v = l + 2 i + 4 j is register 4 i + 2 j + l.
    assert leaf["in"][0]["registers"] == [4 * i + 2 * j + k for j in range(2) for i in range(2) for k in range(2)]
    assert leaf["in"][1]["registers"] == [0, 1, 2, 3]
    assert leaf["out"][0]["registers"] == [0, 1, 2, 3]


@pytest.mark.parametrize("order", ["row.col", "row.row", "col.col", "col.row"])
def test_table_2_matrix_multiply_of_quad_pairs(order: str) -> None:
    """Its row has A and B the wrong way round: row.col reads a row of A and a column of B."""
    a_order, b_order = order.split(".")

    def build() -> None:
        quad_pairs = gr.threads(32).tile([gr.Layout((4, 2), (1, 16))])
        a = reg("a", [1, 4] if a_order == "row" else [4, 1], "fp16")
        b = reg("b", [4, 1] if b_order == "col" else [1, 4], "fp16")
        gr.matmul(reg("c", [2, 4], "fp32"), a, b, on=quad_pairs)

    leaf = only(build, "sm_70")
    assert leaf["atom"] == f"mma.m8n8k4.{order}.f32"
    # Row-major registers [2,4]: value v is column v % 2 + 2 (v / 4) of row v / 2 % 2.
    assert leaf["out"][0]["registers"] == [v // 2 % 2 * 4 + v % 2 + 2 * (v // 4) for v in range(8)]


def test_table_1_has_entries_for_every_kind_of_leaf() -> None:
    kinds = {a.kind for a in gr.atoms().values() if a.runs_on("sm_80")}
    table = {"Move", "MatMul", "UnaryPointwise", "BinaryPointwise", "Reduction", "Shfl", "Init"}  # Allocate declares
    assert kinds == table | {"TernaryPointwise", "Sync"}


@pytest.mark.parametrize(
    "dtype", ["fp16", "bf16", "fp32", "i32", "fp64", "i8", "u8", "i16", "i64", "tf32", "fp8e4m3", "pred"]
)
@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_every_width_has_one_load_and_one_store(dtype: str, count: int) -> None:
    bits = getattr(gr, dtype).bits * count
    if bits > 128:
        return

    def build() -> None:
        g = gr.inout("g", [count], getattr(gr, dtype), align_bytes=16)
        s = gr.alloc("s", [count], getattr(gr, dtype), gr.SH)
        r = reg("r", [count], dtype)
        for memory in (g, s):
            gr.move(r, memory)
            gr.move(memory, r)

    text = {8: "b8", 16: "b16", 32: "b32", 64: "v2.b32", 128: "v4.b32"}[bits]
    if getattr(gr, dtype).bits == 64:
        text = {64: "b64", 128: "v2.b64"}[bits]
    assert [m["atom"].split("/")[0] for m in leaves(build)] == [
        f"{op}.{text}" for op in ("ld.global", "st.global", "ld.shared", "st.shared")
    ]


def test_an_attribute_reaches_what_is_not_the_default() -> None:
    def build() -> None:
        g = gr.input("g", [4], gr.fp32, align_bytes=16)
        r = reg("r", [4], "fp32")
        gr.move(r, g, cache="nc")
        gr.move(r, g, atom="ld.global.nc.v4.b32")
        x = reg("x", [2], "fp32")
        gr.unary("exp2", x[0], x[1])
        gr.unary("exp2", x[0], x[1], ftz=True)
        gr.unary("exp2", x[0], x[1], accuracy="full")
        gr.matmul(x[0], x[1], x[1], accumulate=False)

    assert [m["atom"].split("/")[0] for m in leaves(build)] == [
        "ld.global.nc.v4.b32",
        "ld.global.nc.v4.b32",
        "ex2.approx.f32",
        "ex2.approx.ftz.f32",
        "ex2.full.f32",
        "fma.rn.f32",
    ]


def test_immediates_take_the_type_of_the_other_operands() -> None:
    def build() -> None:
        ts = gr.threads(32)
        x, h, i = reg("x", [2], "fp32"), reg("h", [2], "fp16"), reg("i", [2], "i32")
        gr.binary("max", x[0], x[1], 0.0)
        gr.binary("max", h[0], h[1], 0.0)
        (t,) = ts.indices()
        gr.binary("add", i[0], i[1], t * 2)

    a, b, c = leaves(build)
    assert (a["atom"], a["in"][1]["immediate"], a["in"][1]["dtype"]) == ("max.f32", 0.0, "fp32")
    assert (b["atom"], b["in"][1]["dtype"]) == ("max.f16", "fp16")
    assert (c["atom"], c["in"][1]["expression"]) == ("add.s32", "@t*2")


def test_unknown_alignment_is_left_to_the_launch() -> None:
    n = gr.sym("N")

    def build() -> None:
        g = gr.input("g", gr.row_major(4, n, 8), gr.fp16)
        (t,) = gr.threads(4).indices()
        gr.move(reg("r", [8], "fp16"), g[t, 0, :])

    with gr.Kernel("k") as kernel:
        build()
    (leaf,) = _core.match_kernel(kernel.ir, "sm_80")
    assert [(f[1], f[2]) for f in leaf["facts"]] == [(16, "1")]
    assert leaf["facts"][0][3] == "align(src) % 16 == 0 of ld.global.v4.b32/b16"


def test_a_stride_known_at_launch_only_becomes_a_condition_on_it() -> None:
    k = gr.sym("K")

    def build() -> None:
        g = gr.input("g", gr.row_major(4, k), gr.fp16, align_bytes=16)
        (t,) = gr.threads(4).indices()
        gr.move(reg("r", [8], "fp16"), g.tile([1, 8])[t, 0])

    (fact,) = only(build)["facts"]
    assert fact[2] == "K%8 == 0"


def test_the_example_of_the_design() -> None:
    """A Move that only differs in type says so first, with the way out."""

    def build() -> None:
        gr.blocks(1)
        warp = gr.threads(32)
        src = gr.alloc("src", [1, 8], gr.fp32, gr.SH)
        dst = reg("dst", [2, 4], "fp16")
        gr.move(dst.tile([1, 2]), src, on=warp)

    assert refused(build) == (
        "no atomic spec implements this on sm_80   [NO_ATOM]\n"
        "    %5:[2,2].[1,2].fp16.RF <- Move<<<#1:[1].block, #2:[32].thread>>>(%3:[1,8].fp32.SH)\n"
        "  nearest: ldmatrix.x4  src dtype: want a 16-bit type, got fp32\n"
        "           ldmatrix.x1  dst shape: want [1,1].[1,2], got [2,2].[1,2]; "
        "src dtype: want a 16-bit type, got fp32\n"
        "           ldmatrix.x2  dst shape: want [2,1].[1,2], got [2,2].[1,2]; "
        "src dtype: want a 16-bit type, got fp32\n"
        "  fix: copy %3 to fp16 first, or enter this Move by `with`, and write it as smaller specs inside"
    )


def test_a_fragment_is_moved_by_an_atom_that_is_named() -> None:
    def build() -> None:
        gr.blocks(1)
        a = gr.fragment("a", [16, 16], gr.fp16, gr.atom("mma.m16n8k16.f32.f16").a, on=gr.threads(32))
        gr.move(a, gr.input("x", [16, 16], gr.fp16))

    assert refused(build).endswith(
        "fix: name the atom that moves one thread's elements, by which the tile is taken apart: atom=gr.atom(...); "
        "or enter this Move by `with`, and write it as smaller specs inside"
    )


def test_the_wrong_threads_are_named() -> None:
    def build() -> None:
        gr.blocks(1)
        ts = gr.threads(64)
        r = reg("r", [2], "fp16")
        gr.binary("add", r[0], r[0], r[1], on=ts)

    text = refused(build)
    assert "add.rn.f16" in text
    assert "threads: want [1].thread, got [64].thread" in text


def test_a_missing_architecture_is_named() -> None:
    def build() -> None:
        r = reg("r", [2], "bf16")
        gr.matmul(r[0], r[1], r[1])

    text = refused(build, "sm_75")
    assert "nearest: fma.rn.bf16  arch: want sm_80+, got sm_75\n" in text


def test_misaligned_vectors_are_refuted_or_unprovable() -> None:
    def refuted() -> None:
        s = gr.alloc("s", [12], gr.fp16, gr.SH)
        gr.move(reg("r", [8], "fp16"), s[4:12])

    assert refused(refuted) == (
        "ld.shared.v4.b32/b16 needs align(src) % 16 == 0   [ATOM_FACT]\n"
        "    %2:[8].fp16.RF <- Move<<<#4:[1].block, [].thread>>>(%3:[8].fp16.SH)\n"
        "  which does not hold: offset 4 of s does not divide by 8 elements (16 bytes)\n"
        "  fix: use a narrower access"
    )

    def unprovable() -> None:
        s = gr.alloc("s", [32, 12], gr.fp16, gr.SH)
        (t,) = gr.threads(32).indices()
        gr.move(reg("r", [8], "fp16"), s[t, 0:8])

    assert "which cannot be proven: offset @t*12 of s is a multiple of 4, want a multiple of 8 (16 bytes)" in refused(
        unprovable
    )


def test_a_swizzle_that_cuts_a_vector_is_refused() -> None:
    def build() -> None:
        s = gr.alloc("s", [64, 64], gr.fp16, gr.SH, swizzle=gr.Swizzle(3, 2, 3))
        (t,) = gr.threads(32).indices()
        gr.move(reg("r", [8], "fp16"), s.tile([1, 8])[t, 0])

    text = refused(build)
    assert "the swizzle Sw<3,2,3> of s keeps 4 elements together, the access takes 8" in text


def test_registers_indexed_by_a_rolled_loop_name_it() -> None:
    def build() -> None:
        r = reg("r", [8], "fp32")
        with gr.loop("i", 8) as i:
            gr.binary("add", r[i], r[i], 1.0)

    text = refused(build)
    assert "add.rn.f32: d: registers are indexed by i, which is not a constant   [ATOM_REGISTER]" in text
    assert "fix: unroll the loop over i (a Python range, or unroll=0)" in text


def test_another_warps_part_of_a_fragment_is_refused() -> None:
    def build() -> None:
        gr.blocks(1)
        ws = gr.threads(64).tile(32)
        w = ws.indices()[0]
        acc = gr.fragment("acc", [32, 8], gr.fp32, MMA.c, on=ws.reshape(0, gr.Layout((2, 1))))
        a = gr.fragment("a", [16, 16], gr.fp16, MMA.a, on=ws[w])
        b = gr.fragment("b", [8, 16], gr.fp16, MMA.b, on=ws[w])
        gr.matmul(acc[0, 0][0, 0], a[0, 0], b[0, 0].T, on=ws[w])

    assert "[ATOM_REGISTER]" in refused(build)


def test_an_unknown_atom_and_an_unknown_attribute() -> None:
    def unknown_atom() -> None:
        r = reg("r", [2], "fp32")
        gr.move(r[0], r[1], atom="ldmatrx.x4")

    def unknown_attribute() -> None:
        r = reg("r", [2], "fp32")
        gr.move(r[0], r[1], cash="nc")

    assert refused(unknown_atom).startswith(
        "no atomic spec is called `ldmatrx.x4`   [ATOM_UNKNOWN]\n  similar: ldmatrix.x4"
    )
    assert refused(unknown_attribute) == (
        "Move has no attribute `cash`   [ATOM_ATTR]\n  known: cache, bulk, evict, prefetch, combine, atomic, fill"
    )


def test_barriers_by_scope() -> None:
    def build() -> None:
        ts = gr.threads(256)
        ws = ts.tile(32)
        w = ws.indices()[0]
        quads = ts.tile(4)
        q = quads.indices()[0]
        groups = ts.tile(128)
        g = groups.indices()[0]
        gr.barrier()
        gr.barrier(on=ts)
        gr.barrier(on=ws[w])
        gr.barrier(on=groups[g])
        gr.barrier(on=quads[q])

    assert [(m["atom"], m["attrs"].get("mask"), m["attrs"].get("threads")) for m in leaves(build)] == [
        ("bar.sync", None, None),
        ("bar.sync", None, None),
        ("bar.warp.sync", "4294967295", None),
        ("bar.sync/warps", None, "128"),
        ("bar.warp.sync", "15", None),
    ]
