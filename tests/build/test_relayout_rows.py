"""A statistic of an operand's rows beside the columns of accumulators: fragments that hold copies are exchanged."""

import numpy as np
import pytest

import graphene as gr


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rows_of_b_become_columns_of_c(dtype: str) -> None:
    """The lanes of a row of B hold copies; lanes of C need other rows: lanes exchange registers, not memory."""
    mma = gr.atom(f"mma.m16n8k16.f32.{'f16' if dtype == 'fp16' else 'bf16'}")
    with gr.Kernel("columns") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [16, 32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (lane,) = warp.indices()
        b = gr.fragment("b", [32, 16], getattr(gr, dtype), mma.b, on=warp)
        c = gr.fragment("c", [16, 32], gr.fp32, mma.c, on=warp)
        row, column = b.reduced(1, "row", gr.fp32), c.reduced(0, "column")
        for i in range(4):
            gr.move(row.values[i], x[lane // 4 + 8 * i])
        gr.init(c, 1)
        gr.move(column, row.T)
        c[:] = c * column
        gr.move(y, c, atom="st.global.v2.b32")
    x, y = np.random.default_rng(0).standard_normal(32).astype(np.float32), np.zeros((16, 32), np.float32)
    kernel(x, y)
    assert np.array_equal(y, np.broadcast_to(x, (16, 32)))
    assert "shfl.sync.idx" in kernel.cuda_source("sm_80")
    assert kernel.report().shared_bytes == 0
