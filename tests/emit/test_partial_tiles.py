"""What the generated text reads of partial tiles, evaluated: neither an element too many nor one too few."""

from __future__ import annotations

import re

import c_text
import numpy as np
import pytest
from emit_kernels import async_copy, ragged_fragment, sync

import graphene as gr


def test_a_copy_reads_the_bytes_that_are_inside() -> None:
    text = async_copy().cuda_source("sm_80")
    found = re.search(r'"r"\((\S+) && (.*) \? (.*) : 0\)', text)
    assert found is not None
    (address,) = c_text.indices(text, "A")
    tid = np.arange(128)
    for M, K, bm, k in [(16, 64, 0, 0), (5, 61, 0, 0), (37, 200, 2, 3), (37, 200, 1, 1), (33, 129, 2, 2), (1, 1, 0, 0)]:
        given = {"threadIdx_x": tid, "blockIdx_x": bm, "k": k, "M": M, "K": K, "pitch": 256, "gr_min": np.minimum}
        env = c_text.environment(text, given)
        row_in, column_in, number = (c_text.evaluate(part, env) for part in found.groups())
        got = np.where(row_in & column_in, number, 0)
        row, column = bm * 16 + tid // 8, k * 64 + tid % 8 * 8
        want = np.where(row < M, np.clip(K - column, 0, 8) * 2, 0)
        assert np.array_equal(got, want), (M, K)
        assert np.array_equal(c_text.evaluate(address, env), row * 256 + column)


def test_a_copy_that_is_all_in_or_all_out_counts_nothing() -> None:
    text = async_copy(multiple_of=8).cuda_source("sm_80")
    assert re.search(r'"r"\(\S+ && .* \? 16 : 0\)', text)
    assert "gr_min" not in text


def test_no_predicate_where_the_facts_prove_the_bounds() -> None:
    text = async_copy(multiple_of=64).cuda_source("sm_80")
    assert "[%0], [%1], 16;" in text
    assert "?" not in text
    assert re.findall(r"if \((.*)\)", text) == ["t < 16"]


def test_what_a_loop_does_not_change_is_decided_before_it() -> None:
    before, loop = async_copy().cuda_source("sm_80").split("#pragma unroll 1")
    assert "const bool A_in = (i64)bm * 16 + t / 8 < M;" in before
    assert " < M" not in loop


def test_lanes_outside_read_the_fill_row_together() -> None:
    text = ragged_fragment().cuda_source("sm_75")
    (condition, index) = re.findall(r'"r"\((.*) \? gr_shared\(&s\[(.*)\]\) : gr_shared\(outside\)\)', text)[0]
    tid = np.arange(32)
    env = c_text.environment(text, {"threadIdx_x": tid, "blockIdx_x": 0})
    inside = c_text.evaluate(condition, env)
    assert np.array_equal(inside, tid % 16 < 4)
    assert (c_text.evaluate(index, env)[inside] < 20 * 16).all()
    assert text.count("ldmatrix.sync") == 2
    assert not re.search(r"if [^\n]*\n[^\n]*ldmatrix", text)  # all lanes execute it
    assert text.index("outside[1] = 0u") < text.index("__syncthreads") < text.index("ldmatrix.sync")
    assert re.search(r"u8 gr_smem\[656\]", text)  # 20 rows of 32 bytes, and one of 16


def test_the_simulator_reads_the_fill_too() -> None:
    x = np.arange(320, dtype=np.float16).reshape(20, 16)
    y = np.ones((32, 16), np.float16)
    ragged_fragment()(x, y)
    assert np.array_equal(y, np.pad(x, ((0, 12), (0, 0))))


def test_the_rows_of_different_fills_are_different() -> None:
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        warp = gr.threads(32)
        (lane,) = warp.indices()
        s = gr.alloc("s", [20, 16], gr.fp16, gr.SH)
        r = gr.alloc("r", [2, 4], gr.fp16, gr.RF)
        for fill in (0.0, 1.0, 0.0):
            tile = s.tile([16, 16])[1, 0].tile([1, 8])[lane // 2, lane % 2]
            gr.move(r.tile([1, 2]), tile, on=warp, fill=fill)
    text = kernel.cuda_source("sm_80")
    assert "outside[0] = 0u; outside[1] = 0u;" in text
    assert f"[0] = {0x3C003C003C003C00}u;" in text
    assert text.count("u64* const outside") == 2


def padded_copy(dtype: gr.ScalarType, copy: str, values: int) -> gr.Kernel:
    """Y = X padded with zeros to whole tiles of 16 by 64, through shared memory."""
    M, K = gr.sym("M"), gr.sym("K", max=1 << 20)
    pitch = gr.sym("pitch", multiple_of=16, max=1 << 20)
    with gr.Kernel("padded_copy") as kernel:
        X = gr.input("X", gr.Layout((M, K), (pitch, 1)), dtype, align_bytes=16)
        Y = gr.output("Y", gr.row_major(gr.ceil_div(M, 16) * 16, gr.ceil_div(K, 64) * 64), dtype, align_bytes=16)
        blocks, threads = gr.blocks(gr.ceil_div(M, 16), gr.ceil_div(K, 64)), gr.threads(128)
        bm, bk = blocks.indices()
        (t,) = threads.indices()
        s = gr.alloc("s", [16, 64], dtype, gr.SH)
        r = gr.alloc("r", [8], dtype, gr.RF)
        gr.move(s, X.tile([16, 64])[bm, bk], on=threads, atom=copy)
        sync("commit", gr.atom(copy))
        sync("wait", gr.atom(copy))
        gr.barrier()
        out = Y.tile([16, 64])[bm, bk]
        for i in range(8):
            gr.move(r[i], s[t // 8, t % 8 * 8 + i])
            gr.move(out[t // 8, t % 8 * 8 + i], r[i])
    assert values * dtype.bits // 8 == int(copy.split(".")[-1])
    return kernel


SHAPES = [(1, 1, 16), (16, 64, 64), (5, 61, 64), (37, 131, 144), (33, 64, 80), (2, 129, 192)]
COPIES = [(gr.fp16, "cp.async.cg.16", 8), (gr.fp32, "cp.async.ca.8", 2), (gr.i8, "cp.async.ca.16", 16)]


@pytest.mark.parametrize(("dtype", "copy", "values"), COPIES, ids=lambda x: str(x))
def test_cut_rows_are_padded_with_zeros(dtype: gr.ScalarType, copy: str, values: int) -> None:
    kernel = padded_copy(dtype, copy, values)
    kind = {"fp16": np.float16, "fp32": np.float32, "i8": np.int8}[dtype.name]
    for m, k, pitch in SHAPES:
        whole = np.random.default_rng(0).integers(1, 100, (m, pitch)).astype(kind)
        want = np.zeros((-(-m // 16) * 16, -(-k // 64) * 64), kind)
        want[:m, :k] = whole[:, :k]
        got = np.full_like(want, 7)
        kernel(whole[:, :k], got)
        assert np.array_equal(got, want), (m, k)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "copy", "values"), COPIES, ids=lambda x: str(x))
def test_the_device_pads_them_too(dtype: gr.ScalarType, copy: str, values: int) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    kernel = padded_copy(dtype, copy, values)
    kind = {"fp16": torch.float16, "fp32": torch.float32, "i8": torch.int8}[dtype.name]
    for m, k, pitch in SHAPES:
        whole = torch.randint(1, 100, (m, pitch)).to(kind).cuda()
        want = torch.zeros(-(-m // 16) * 16, -(-k // 64) * 64, dtype=kind, device="cuda")
        want[:m, :k] = whole[:, :k]
        got = torch.full_like(want, 7)
        kernel(whole[:, :k], got)
        assert torch.equal(got, want), (m, k)


@pytest.mark.gpu
def test_the_device_reads_the_fill_row() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    x = torch.randn(20, 16).half().cuda()
    y = torch.ones(32, 16, dtype=torch.float16, device="cuda")
    ragged_fragment()(x, y)
    assert torch.equal(y[:20], x)
    assert not y[20:].any()
