"""kernel.report(): bank conflicts and sectors counted by hand, why accesses are narrow, occupancy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bank_conflicts import PATTERNS, counts
from kernels import fig8, transpose
from pipelines import gemm

import graphene as gr
from graphene.report import Report, occupancy

# One request each: (conflicts, wavefronts) of loads. Banks are 4 bytes wide, 32 of them.
LOADS = {
    "ld4_unit": (0, 1),
    "ld4_broadcast": (0, 1),
    "ld4_stride2": (1, 2),
    "ld4_stride3": (0, 1),
    "ld4_stride32": (31, 32),
    "ld4_stride33": (0, 1),
    "ld8_unit": (0, 2),
    "ld8_stride2": (2, 4),
    "ld8_stride16": (30, 32),
    "ld8_broadcast": (0, 2),
    "ld16_unit": (0, 4),
    "ld16_stride2": (4, 8),
    "ld16_stride8": (28, 32),
    "ld16_broadcast": (0, 4),
    "ldmatrix_plain": (28, 32),  # rows of 128 bytes: eight of them start at bank 0
    "ldmatrix_padded": (0, 4),
    "ldmatrix_swizzled": (0, 4),
}
STORES = {
    "st4_unit": (0, 1),
    "st4_stride2": (1, 2),
    "st4_stride32": (31, 32),
    "st8_stride2": (2, 4),
    "st16_unit": (0, 4),
}


@pytest.mark.parametrize("name", sorted(LOADS))
def test_bank_conflicts_of_loads(name: str) -> None:
    got = counts(PATTERNS[name](1))
    assert (got["conflicts_load"], got["wavefronts_load"]) == LOADS[name]


@pytest.mark.parametrize("name", sorted(STORES))
def test_bank_conflicts_of_stores(name: str) -> None:
    got = counts(PATTERNS[name](1))
    assert (got["conflicts_store"], got["wavefronts_store"]) == STORES[name]


def test_ways_and_rounds() -> None:
    (row,) = [r for r in PATTERNS["ld4_stride2"](5).report().rows if r.memory == "SH" and r.op == "load"]
    assert (row.requests, row.wavefronts, row.conflicts, row.ways, row.lanes) == (5, 10, 5, 2, 160)
    assert row.efficiency == 0.5
    assert row.where.startswith("bank_conflicts.py:")


def test_a_transpose_needs_its_swizzle() -> None:
    assert transpose().report().conflicts == 4 * 32 * 31
    assert transpose(swizzled=True).report().conflicts == 0


def global_load(values: int, stride: int) -> Report:
    """Lane t loads `values` fp32 from element t * stride on."""
    with gr.Kernel("loads") as kernel:
        a = gr.input("A", [32 * stride], gr.fp32, align_bytes=16)
        out = gr.output("out", [32, values], gr.fp32, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [values], gr.fp32, gr.RF)
        gr.move(r, a.tile([stride])[t].tile([values])[0])
        gr.move(out[t, :], r)
    return kernel.report()


@pytest.mark.parametrize(
    ("values", "stride", "sectors", "ideal"),
    [(1, 1, 4, 4), (1, 2, 8, 4), (1, 8, 32, 4), (4, 4, 16, 16), (4, 8, 32, 16), (2, 2, 8, 8)],
)
def test_sectors_of_global_loads(values: int, stride: int, sectors: int, ideal: int) -> None:
    row = global_load(values, stride).rows[0]
    assert (row.op, row.buffer, row.vector_bytes) == ("load", "A", 4 * values)
    assert (row.requests, row.sectors, row.ideal_sectors) == (1, sectors, ideal)


def test_a_pipelined_gemm_has_no_conflicts_and_wide_copies() -> None:
    report = gemm(bm=64, bn=64).report(M=64, N=64, K=64)
    assert report.conflicts == 0
    assert {r.op for r in report.rows} == {"copy to", "copy from", "load", "store"}
    assert all(r.vector_bytes == 16 and not r.limits for r in report.rows if r.buffer in ("A", "B", "sA", "sB"))
    assert all(r.sectors == r.ideal_sectors for r in report.rows if r.op == "copy from")


def test_updates_in_memory_load_and_store() -> None:
    report = fig8(128, 128, 2).report()
    assert [(r.op, r.buffer) for r in report.rows] == [("load", "A"), ("load", "B"), ("load", "C"), ("store", "C")]
    assert {x.what for x in report.rows[0].limits} == {"atom", "alignment"}


def test_a_large_grid_runs_in_parts() -> None:
    report = transpose().report(M=32 * 20, N=32 * 10)
    assert (report.blocks, report.grid_blocks) == (9, 200)
    whole = transpose().report(M=32 * 20, N=32 * 10, all_blocks=True)
    assert (whole.blocks, whole.rows[0].requests) == (200, 200 * 8)


def limits(**how: object) -> dict[str, str]:
    """What limits a copy of rows of halves, one vector a thread."""
    kind = str(how.pop("kind"))
    with gr.Kernel("narrow") as kernel:
        n = gr.sym("N", multiple_of=int(str(how.get("multiple_of", 8))), min=64, max=4096)
        align = int(str(how.get("align", 16)))
        a = gr.input("A", gr.row_major(32, n), gr.fp16, align_bytes=align)
        out = gr.output("out", [32, 64], gr.fp16, align_bytes=16)
        (b,) = gr.blocks(64).indices()
        (t,) = gr.threads(32).indices()
        wide = int(str(how.get("values", 8)))
        r = gr.alloc("r", [wide], gr.fp16, gr.RF)
        source = a.tile([1, wide])[t, b if kind == "bounds" else 0]
        if kind == "swizzle":
            s = gr.alloc("s", [32, 64], gr.fp16, gr.SH, swizzle=gr.Swizzle(3, 2, 4))
            gr.move(r, s.tile([1, wide])[t, 0].reshape(0, [wide]))
        elif kind == "contiguity":
            for i in range(wide):
                gr.move(r[i], a.T.tile([wide, 1])[0, t][i, 0])
        else:
            atom = how.get("atom")
            gr.move(r, source.reshape(0, [wide]), atom=gr.atom(str(atom)) if atom else None)
        gr.move(out.tile([1, wide])[t, 0].reshape(0, [wide]), r)
    row = kernel.report().rows[0]
    assert row.vector_bytes < 16
    return {x.what: x.text for x in row.limits}


def test_why_an_access_is_narrow() -> None:
    assert limits(kind="tile", values=4) == {
        "tile": "the leaf moves 4 elements a thread: tile by 8 along the mode of stride 1"
    }
    assert limits(kind="atom", values=4, atom="ld.global.v2.b32") == {
        "atom": "ld.global.v2.b32/b16 takes 8 bytes, and it was chosen by name"
    }
    assert limits(kind="alignment", values=2, multiple_of=2, align=4) == {
        "tile": "the leaf moves 2 elements a thread: tile by 8 along the mode of stride 1",
        "alignment": "argument A is declared aligned to 4 bytes: declare align_bytes=16",
    }
    assert limits(kind="swizzle", values=4)["swizzle"] == (
        "the swizzle keeps 8 bytes together: use gr.swizzle(row, dtype)"
    )
    assert limits(kind="bounds", values=2, multiple_of=2)["bounds"] == (
        "the end N may cut a vector: it is proven a multiple of 2 elements only (multiple_of=), or copy by an atom "
        "that takes partial vectors"
    )


def test_the_report_reads_as_a_table() -> None:
    report = transpose().report()
    lines = str(report).splitlines()
    assert lines[0] == "transpose on sm_80 with M=64, N=64"
    assert lines[3] == "4 of 4 blocks ran"
    assert lines[5].split() == ["where", "op", "buffer", "atom", "bytes", "requests", "conflicts", "sectors"]
    assert len(lines) == 6 + 4  # the unrolled statements of a line are taken together
    assert "3968 (32-way)" in lines[8]
    assert len(report.rows) == 16
    html = report._repr_html_()
    assert html.count("<tr") == 5
    assert "3968 (32-way)" in html
    assert report.why_narrow().splitlines()[:2] == [
        report.lines[0].where + ": load of A, 4 bytes a thread",
        "  tile: the leaf moves 1 element a thread: tile by 4 along the mode of stride 1",
    ]


@pytest.mark.parametrize(
    ("arch", "threads", "shared", "registers", "blocks", "by"),
    [
        ("sm_80", 256, 0, 32, 8, ("threads", "registers")),
        ("sm_80", 256, 0, 33, 6, ("registers",)),
        ("sm_80", 256, 48 * 1024, 128, 2, ("registers",)),
        ("sm_80", 128, 48 * 1024, 32, 3, ("shared",)),
        ("sm_90a", 128, 227 * 1024, 168, 1, ("shared",)),
        ("sm_86", 32, 0, 16, 16, ("blocks",)),
        ("sm_75", 1024, 0, 64, 1, ("threads", "registers")),
        ("sm_90", 256, 1024, None, 8, ("threads",)),
    ],
)
def test_occupancy(
    arch: str, threads: int, shared: int, registers: int | None, blocks: int, by: tuple[str, ...]
) -> None:
    got = occupancy(arch, threads, shared, registers)
    assert got is not None
    assert (got.blocks_per_sm, got.limited_by) == (blocks, by)
    assert got.warps_per_sm == blocks * threads // 32


def test_an_unknown_architecture_has_no_occupancy() -> None:
    assert occupancy("gfx90a", 256, 0, 32) is None


def test_registers_are_the_compilers() -> None:
    kernel = transpose()
    report = kernel.report()
    try:
        binary = kernel.compile("sm_80")
    except gr.CompileError:
        assert report.registers is None
        return
    assert (report.registers, report.spill_bytes) == (binary.registers, binary.spill_bytes)
    assert report.occupancy is not None
    assert report.occupancy.limits["registers"] > 0


def gathered() -> gr.Kernel:
    """Y[t] = X[rows[t] * step], where the rows are data and the step is a number of the call."""
    with gr.Kernel("gathered") as kernel:
        x, rows = gr.input("x", [2048], gr.fp32), gr.input("rows", [32], gr.i32)
        y = gr.output("y", [32], gr.fp32)
        step = gr.param("step", gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[gr.min(gr.max(gr.index(rows[t], 0, 31) * step, 0), 2047)])
        gr.move(y[t], r)
    return kernel


def test_the_integers_of_a_call_are_taken_as_they_are() -> None:
    def sectors(*call: Any) -> int:
        return next(r.sectors for r in gathered().report(*call).rows if r.buffer == "x")

    x, y = np.zeros(2048, np.float32), np.full(32, np.nan, np.float32)
    along, one = np.arange(32, dtype=np.int32), np.full(32, 7, np.int32)
    assert sectors() == 1  # without data: the smallest row of all
    assert [sectors(x, along, y, step) for step in (1, 2, 8, 64)] == [4, 8, 32, 32]
    assert sectors(x, one, y, 3) == 1
    assert np.isnan(y).all()  # a copy ran
    with pytest.raises(gr.SimulationError, match="SIM_FACT"):
        gathered().report(x, along + 1, y, 1)
