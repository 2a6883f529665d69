"""Rows and columns of a cluster that is seen as two by two blocks: copies to them, arrivals at them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import graphene as gr
from graphene import _core


def shared_rows(way: str) -> gr.Kernel:
    """y[block] is what the blocks of its row (or column) have loaded together: one half each, to both."""
    with gr.Kernel("shared_rows") as kernel:
        x = gr.input("x", [2, 2, 64], gr.fp16, align_bytes=16)  # row, half, elements
        y = gr.output("y", [4, 2, 64], gr.fp16, align_bytes=16)
        blocks, warp = gr.blocks(4, cluster=4), gr.threads(32)
        c, rank = blocks.indices()
        square = blocks[c].reshape(0, [2, 2])
        i, j = square.indices()
        mine, which, half = (square[i, :], i, j) if way == "row" else (square[:, j], j, i)
        s = gr.alloc("s", [2, 64], gr.fp16, gr.SH)
        full, done = gr.mbarrier("full", 1, arrivals=1), gr.mbarrier("done", 1, arrivals=2)
        gr.barrier(on=blocks[c])
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s])
            gr.move(s[half, :], x[which, half, :], atom="tma.load", done=full[0], to=mine)
            full[0].wait(0)
            gr.move(y[rank, :, :], s, atom="tma.store")
            gr.commit("tma.store")
            gr.wait("tma.store", pending=0)
            done[0].arrive(at=mine)
            done[0].wait(0)
        gr.barrier(on=blocks[c])
    return kernel


@pytest.mark.parametrize("way", ["row", "column"])
def test_a_part_of_a_cluster_receives(way: str) -> None:
    kernel = shared_rows(way)
    x = np.arange(256, dtype=np.float16).reshape(2, 2, 64)
    y = np.zeros((4, 2, 64), np.float16)
    for seed in range(3):
        kernel.simulate(x, y, seed=seed)
        for block in range(4):
            assert (y[block] == x[block % 2 if way == "row" else block // 2]).all()
    assert gr.parse(str(kernel)) == kernel
    assert kernel.compile("sm_90a").spill_bytes == 0


@pytest.mark.parametrize(("way", "mask"), [("row", 0b101), ("column", 0b11)])
def test_the_text_names_these_blocks_alone(way: str, mask: int) -> None:
    text = shared_rows(way).cuda_source("sm_90a")
    assert len(re.findall(rf'"h"\(\(u16\)\({mask} << .*?\)\)', text)) == 1
    assert text.count("mbarrier.arrive.shared::cluster.b64") == 2


def test_one_block_of_a_cluster_is_named_by_its_number() -> None:
    with gr.Kernel("k") as kernel:
        blocks = gr.blocks(4, cluster=4)
        gr.threads(32)
        c, _ = blocks.indices()
        done = gr.mbarrier("done", 1, arrivals=128)
        gr.barrier(on=blocks[c])
        done[0].arrive(at=blocks[c][2])
        gr.barrier(on=blocks[c])
    text = kernel.cuda_source("sm_90a")
    assert re.findall(r"mapa.shared::cluster.u32 r, %0, (\S+);", text) == ["2"]


@pytest.mark.parametrize("least", [0, 1])
def test_grids_of_several_dimensions_that_are_known_at_a_launch(least: int) -> None:
    """Block indices are the coordinates of clusters: no division, whatever is known of the sizes."""
    M, N = gr.sym("M", min=least), gr.sym("N", min=least)
    for size in (
        [2 * gr.ceil_div(M, 64), gr.ceil_div(N, 8)],
        [4 * gr.ceil_div(M, 64), gr.ceil_div(N, 8), 3],
        [4, N, M],
    ):
        with gr.Kernel("k") as kernel:
            gr.input("x", [M, N], gr.fp32)
            blocks = gr.blocks(*size, cluster=2)
            gr.threads(32)
            outer, inner = blocks.indices()
            cluster = blocks[outer]
            full = gr.mbarrier("full", 1, 64)
            s = gr.alloc("s", [32], gr.fp32, gr.SH)
            gr.barrier(on=cluster)
            with gr.if_(outer[1] < 2):
                full[0].arrive(at=cluster)
                gr.barrier(on=cluster)
            s.of(1 - inner[0])
        _core.verify(kernel.ir)
        assert " = blockIdx.y;" in kernel.cuda_source("sm_90a")
