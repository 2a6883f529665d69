"""The texts of the paper's listings and of one kernel with every construct; what Python records prints as they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import graphene as gr

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TEXTS = sorted(p.name for p in GOLDEN.glob("*.gir"))
Golden = Callable[[str, str], None]


def same(a: gr.Kernel, b: gr.Kernel) -> None:
    assert a == b
    assert str(a) == str(b)
    assert a.to_json() == b.to_json()


@pytest.mark.parametrize("name", TEXTS)
def test_golden_texts_are_canonical(name: str) -> None:
    text = (GOLDEN / name).read_text()
    kernel = gr.parse(text)
    assert str(kernel) == text
    same(gr.parse(str(kernel)), kernel)
    same(gr.Kernel.from_json(kernel.to_json()), kernel)
    same(gr.Kernel.from_json(kernel.to_json(indent=2)), kernel)


def simple_gemm() -> gr.Kernel:
    """Paper Fig. 8."""
    with gr.Kernel("simple_gemm") as kernel:
        A = gr.input("A", gr.col_major(1024, 1024), gr.fp16)
        B = gr.input("B", gr.col_major(1024, 1024), gr.fp16)
        C = gr.inout("C", gr.col_major(1024, 1024), gr.fp16)
        blocks, threads = gr.blocks(8, 8), gr.threads(16, 16)
        with gr.spec(C, [A, B], on=(blocks, threads)):
            bid_m, bid_n = blocks.indices()
            tid_m, tid_n = threads.indices()
            with gr.loop("k", 1024) as k, gr.loop("m", 8) as m, gr.loop("n", 8) as n:
                a, b, c = A.tile([128, None]), B.tile([None, 128]), C.tile([128, 128])
                a, b, c = a[bid_m, 0], b[0, bid_n], c[bid_m, bid_n]
                a, b, c = a.tile([8, None]), b.tile([None, 8]), c.tile([8, 8])
                a, b, c = a[tid_m, 0], b[0, tid_n], c[tid_m, tid_n]
                a, b, c = a[m, k], b[k, n], c[m, n]
                gr.matmul(c, a, b, on=(blocks.scalar(), threads.scalar()))
    return kernel


def fig1d() -> gr.Kernel:
    """Paper Fig. 1d: Move of a 16x16 tile by ldmatrix."""
    with gr.Kernel("fig1d") as kernel:
        src = gr.alloc("src", [16, 16], gr.fp16, gr.SH)
        dst = gr.alloc("dst", [2, 4], gr.fp16, gr.RF)
        block, warp = gr.blocks(1), gr.threads(32)
        with gr.move(dst, src, on=(block, warp)):
            (thr_grp_m, thr_grp_n), grp_local_idx = warp.tile(8).reshape(0, gr.row_major(2, 2)).indices()
            row = src.tile([8, 8])[thr_grp_m, thr_grp_n].tile([1, 8])[grp_local_idx, 0]
            gr.move(dst.tile([1, 2]), row, on=(block, warp))
    return kernel


def test_figure_8_as_python_records_it(golden: Golden) -> None:
    kernel = simple_gemm()
    golden("fig8.gir", str(kernel))
    same(gr.parse(str(kernel)), kernel)


def test_figure_1d_as_python_records_it(golden: Golden) -> None:
    kernel = fig1d()
    golden("fig1d.gir", str(kernel))
    same(gr.parse(str(kernel)), kernel)


def test_the_papers_own_notation_parses() -> None:
    """Strides, brackets around one tile size and parentheses around coordinates may be left out."""
    text = """
        kernel "simple_gemm" format=1
        // omit strides where they are row-major, of blocks and threads too
        %1:[1024,1024:1,1024].fp16.GL = input "A"
        %2:[1024,1024:1,1024].fp16.GL = input "B"
        %3:[1024,1024:1,1024].fp16.GL = inout "C"
        #4:[8,8].block
        #5:[16, 16].thread
        %3 <- Spec<<<#4, #5>>>(%1, %2) {
          @bid_m, @bid_n = #4.indices()
          @tid_m, @tid_n = #5.indices()
          for(k=0; k < 1024; k += 1) {
            for(m=0; m < 8; m += 1) {
              for(n=0; n < 8; n += 1) {
                %6:[8, 1].[128, 1024].fp16.GL = %1.tile([128, _])
                %7 = %2.tile([_, 128])
                %8:[8, 8].[128, 128].fp16.GL = %3.tile([128, 128])
                // Assign tiles to blocks
                %9:[128, 1024].fp16.GL = %6[@bid_m, 0]
                %10:[1024, 128].fp16.GL = %7[0, @bid_n]
                %11:[128, 128].fp16.GL = %8[@bid_m, @bid_n]
                // Tile for threads
                %12:[16, 1].[8, 1024].fp16.GL = %9.tile([8, _])
                %13:[1, 16].[1024, 8].fp16.GL = %10.tile([_, 8])
                %14:[16, 16].[8, 8].fp16.GL = %11.tile([8, 8])
                // Assign tiles to threads
                %15:[8, 1024].fp16.GL = %12[@tid_m, 0]
                %16:[1024, 8].fp16.GL = %13[0, @tid_n]
                %17:[8, 8].fp16.GL = %14[@tid_m, @tid_n]
                // Access scalars
                %18:[].fp16.GL = %15[m, k]
                %19:[].fp16.GL = %16[k, n]
                %20:[].fp16.GL = %17[m, n]
                #21:[].block = #4.scalar()
                #22:[].thread = #5.scalar()
                %20 <- MatMul<<<#21, #22>>>(%18, %19)
        }}}}
    """
    same(gr.parse(text), simple_gemm())


def test_kernels_that_differ_anywhere_are_not_equal() -> None:
    """Every statement of the text with every construct counts: dropping or changing one makes another kernel."""
    text = (GOLDEN / "every.gir").read_text()
    kernel = gr.parse(text)
    changes = [
        ("every_construct", "other"),
        ("max=65536", "max=65528"),
        ("min=1 max=64", "min=2 max=64"),
        ("align=16\n%2", "align=32\n%2"),
        ('inout "odd"', 'input "odd"'),
        ("stages=8", "stages=8, align=32"),
        ("Sw<2,3,3>", "Sw<2,3,4>"),
        ("over=(%15, %13)", "over=(%15)"),
        ('name="own"', 'name="mine"'),
        ("RF<mma.m16n8k16.f32.f16.c> <-", "RF<tv> <-"),
        ("unroll=4", "unroll=2"),
        ("unroll=full", "unroll=2"),
        ("N == 8", "N == 16"),
        ("pending=2", "pending=1"),
        ("async.shared", "async"),
        ("value=-inf", "value=inf"),
        ("value=0.1", "value=0.10000000000000002"),
        ("1e-05", "1.0000000000000002e-05"),
        ("nan)", "inf)"),
        ("-0.0", "0.0"),
        ("bits=expr(32)", "bits=32"),
        ("fill=2.0", "fill=2"),
        ("accumulate=true, ", ""),
        ("collective ", ""),
        ('means="softmax', 'means="Softmax'),
        (".elect()", ""),
        ("heads + 1", "heads + 2"),
        ("  commit(", "  fence("),
        ("rd = (rd + 1)%3", "rd = rd"),
        ("scalar rd max=2", "scalar rd max=3"),
    ]
    for old, new in changes:
        assert old in text, old
        changed = text.replace(old, new) if old.startswith("RF<") else text.replace(old, new, 1)
        if old.startswith("RF<"):
            changed = changed.replace("RF<mma.m16n8k16.f32.f16.c> =", "RF<tv> =")
        other = gr.parse(changed)
        assert other != kernel, old
        assert str(other) != text, old
        assert other.to_json() != kernel.to_json(), old


def test_json_has_the_structure_by_name() -> None:
    doc = json.loads(simple_gemm().to_json())
    assert doc["graphene_ir"] == 1
    assert doc["name"] == "simple_gemm"
    assert [a["role"] for a in doc["args"]] == ["input", "input", "inout"]
    assert doc["grid"] == {"id": 4, "levels": [{"shape": [8, 8], "stride": [1, 8]}]}
    root = doc["body"][0]
    assert (root["stmt"], root["kind"], root["outs"]) == ("spec", "Spec", [3])
    loop = root["body"][2]
    assert (loop["stmt"], loop["var"], loop["start"], loop["stop"], loop["step"]) == ("for", "k", 0, 1024, 1)
    leaf = loop["body"][0]["body"][0]["body"][-1]
    assert leaf["kind"] == "MatMul"
    assert leaf["ins"] == [{"tensor": 18}, {"tensor": 19}]
    assert leaf["attrs"] == {"accumulate": True}


def test_locations_are_optional_and_do_not_count() -> None:
    kernel = simple_gemm()
    assert '"loc"' not in kernel.to_json()
    text = kernel.to_json(locations=True)
    assert "test_golden.py" in text
    assert gr.Kernel.from_json(text) == kernel
    assert gr.Kernel.from_json(text).to_json(locations=True) == text


def test_a_kernel_equals_only_kernels() -> None:
    kernel = fig1d()
    assert kernel == kernel
    assert kernel != str(kernel)
    assert hash(kernel) == hash(gr.parse(str(kernel)))
    assert kernel != simple_gemm()
