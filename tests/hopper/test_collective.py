"""Tiles decomposed for a warpgroup's instructions, and for copies of boxes."""

from __future__ import annotations

import numpy as np
import pytest

import graphene as gr


def warpgroup_fragment(name: str, rows: int, cols: int, on: gr.ThreadTensor) -> gr.Tensor:
    """As accumulators of wgmma lie: 16 rows a warp."""
    tv = gr.tv(gr.Layout((4, 8, 4), (2 * rows, 1, 16)), gr.Layout((2, 2, cols // 8), (rows, 8, 8 * rows)))
    return gr.fragment(name, [rows, cols], gr.fp16, tv, on=on)


def test_stmatrix_of_a_fragment_that_a_warpgroup_holds() -> None:
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [64, 32], gr.fp16)
        gr.blocks(1)
        wgs = gr.threads(256).tile(128)
        s = gr.alloc("s", [64, 32], gr.fp16, gr.SH, swizzle=gr.swizzle(32, gr.fp16))
        with gr.only(wgs[1]):
            f = warpgroup_fragment("f", 64, 32, wgs[1])
            row, col = f.coords()
            f[:] = gr.cast(row * 32 + col, gr.fp16)
            gr.move(s, f, atom="stmatrix.x4")
            gr.barrier(on=wgs[1])
            gr.move(y, s, on=wgs[1], atom=("ld.shared.b16", "st.global.b16"))
    assert "tile([32])" in str(kernel)  # of the warpgroup: four warps
    assert "[4:32].[32].thread" in str(kernel)
    y = np.zeros((64, 32), np.float16)
    kernel.simulate(y, arch="sm_90a")
    assert np.array_equal(y, np.arange(2048).reshape(64, 32))
    assert gr.parse(str(kernel)) == kernel


@pytest.mark.parametrize("accumulate", [True, False])
def test_what_is_said_of_old_values_is_for_the_first_products(accumulate: bool) -> None:
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel("k") as kernel:
        a, b = gr.input("a", [16, 48], gr.fp16), gr.input("b", [8, 48], gr.fp16)
        y = gr.output("y", [16, 8], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        fa = gr.fragment("fa", [16, 48], gr.fp16, mma.a, on=warp)
        fb = gr.fragment("fb", [8, 48], gr.fp16, mma.b, on=warp)
        acc = gr.fragment("acc", [16, 8], gr.fp32, mma.c, on=warp)
        gr.move(fa, a, atom="ld.global.b32")
        gr.move(fb, b, atom="ld.global.b32")
        gr.init(acc, 5)
        gr.matmul(acc, fa, fb.T, atom=mma, accumulate=accumulate)
        gr.move(y, acc, atom="st.global.b32")
    x = np.random.default_rng(0).integers(-3, 4, (24, 48)).astype(np.float16)
    y = np.zeros((16, 8), np.float32)
    kernel.simulate(x[:16], x[16:], y)
    assert np.array_equal(y, x[:16].astype(np.float32) @ x[16:].T.astype(np.float32) + (5 if accumulate else 0))


def test_a_condition_is_for_the_first_products_too() -> None:
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        fa = gr.fragment("fa", [16, 48], gr.fp16, mma.a, on=warp)
        fb = gr.fragment("fb", [8, 48], gr.fp16, mma.b, on=warp)
        acc = gr.fragment("acc", [16, 8], gr.fp32, mma.c, on=warp)
        for k in gr.loop("step", 4):
            gr.matmul(acc, fa, fb.T, atom=mma, accumulate=k > 0)
    lines = [line.strip() for line in str(kernel).splitlines() if "MatMul" in line or "for(" in line]
    assert lines == [
        "for(step=0; step < 4; step += 1) {",
        '%5 <- MatMul<<<#1, #2>>>(%3, %6, accumulate=0 < step) atom="mma.m16n8k16.f32.f16" collective {',
        '%9 <- MatMul<<<#1, #2>>>(%7, %8, accumulate=0 < step) atom="mma.m16n8k16.f32.f16"',
        "for(k=0; k < 2; k += 1) unroll=full {",
        '%12 <- MatMul<<<#1, #2>>>(%10, %11) atom="mma.m16n8k16.f32.f16"',
    ]


@pytest.mark.parametrize(
    ("layout", "swizzle", "boxes"),
    [
        ([64, 64], 64, 1),
        (gr.panels(64, 128, gr.fp16), 64, 2),
        (gr.panels(64, 192, gr.fp16), 64, 3),
        (gr.panels(64, 96, gr.fp16), 32, 3),
        ([8, 256], None, 1),
    ],
    ids=str,
)
def test_a_tile_is_cut_into_boxes(layout: object, swizzle: int | None, boxes: int) -> None:
    """Where its rows are longer than a line of the swizzle, panel by panel; all complete on one barrier."""
    with gr.Kernel("k") as kernel:
        s = gr.alloc("s", layout, gr.fp16, gr.SH, swizzle=None if swizzle is None else gr.swizzle(swizzle, gr.fp16))
        rows, cols = (int(n) for n in s.shape)
        x = gr.input("x", gr.row_major(rows, cols), gr.fp16, align_bytes=16)
        y = gr.output("y", gr.row_major(rows, cols), gr.fp16, align_bytes=16)
        gr.blocks(1)
        threads = gr.threads(32)
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(threads.elect()):
            full[0].arrive(expect=[s])
            gr.move(s, x, atom="tma.load", done=full[0])
            full[0].wait(0)
            gr.move(y, s, atom="tma.store")
            gr.commit("tma.store")
            gr.wait("tma.store", pending=0)
    text = str(kernel)
    assert text.count(f"box < {boxes};") == (boxes > 1)
    assert text.count(" done=%") == (2 if boxes > 1 else 1)  # of the leaf too
    x_ = np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float16)
    y_ = np.zeros_like(x_)
    kernel.simulate(x_, y_)
    assert np.array_equal(x_, y_)
    assert gr.parse(text) == kernel
