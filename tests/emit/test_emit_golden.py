"""Generated text: golden files, the paper's index expressions as functions, and NVRTC's opinion.

`GRAPHENE_UPDATE_GOLDEN=1 python -m pytest tests/emit` writes tests/golden/*.cu anew; review the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import c_text
import numpy as np
import pytest
from emit_kernels import ALL, ARCHS, fig1d, fig8, tensor_core_tile

import graphene as gr
from graphene import _core

GOLDEN = Path(__file__).parent.parent / "golden"


def source_of(kernel: gr.Kernel, arch: str) -> str:
    return _core.lower(kernel.ir, arch).cuda_source()


@pytest.mark.parametrize("name", ALL)
def test_golden(name: str) -> None:
    text = source_of(ALL[name](), ARCHS[name])
    path = GOLDEN / f"{name}.cu"
    if os.environ.get("GRAPHENE_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"differs from {path}: see the head of {__file__} for how to write it anew"


@pytest.mark.parametrize("name", ALL)
def test_the_text_does_not_depend_on_what_was_built_before(name: str) -> None:
    first = source_of(ALL[name](), ARCHS[name])
    source_of(fig8(256, 256, 64), "sm_80")
    assert source_of(ALL[name](), ARCHS[name]) == first


def test_fig8_offsets_are_the_papers() -> None:
    text = source_of(fig8(), "sm_80")
    axes = np.ix_(
        np.arange(8), np.arange(8), np.arange(16), np.arange(16), [0, 1, 511, 1023], np.arange(8), np.arange(8)
    )
    bid_m, bid_n, tid_m, tid_n, k, m, n = axes
    env = c_text.environment(
        text,
        {"blockIdx_x": bid_m, "blockIdx_y": bid_n, "threadIdx_x": tid_m + 16 * tid_n, "k": k, "m": m, "n": n},
    )
    paper = {
        "A": bid_m * 128 + (tid_m * 8 + (m + k * 1024)),
        "B": bid_n * 131072 + (tid_n * 8192 + (k + n * 1024)),
        "C": (bid_m * 128 + bid_n * 131072) + ((tid_m * 8 + tid_n * 8192) + (m + n * 1024)),
    }
    for buffer, want in paper.items():
        (index,) = c_text.indices(text, buffer)
        got = c_text.evaluate(index, env)
        assert np.array_equal(*np.broadcast_arrays(got, want)), buffer


def test_fig8_reads_like_the_papers() -> None:
    text = source_of(fig8(), "sm_80")
    statement = re.search(r"C\[.*\] = __hfma\(A\[.*\], B\[.*\], C\[.*\]\);", text)
    assert statement is not None
    assert text.count("#pragma unroll 1\n") == 3
    assert "blockIdx.x / " not in text  # a grid of rank 2 needs no division


def test_fig1c_address_is_the_papers() -> None:
    text = source_of(fig1d(), "sm_80")
    _, after = text.split("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];")
    operand = after.split(");")[0]
    (index,) = c_text.indices(operand, "smem")
    tid = np.arange(32)
    got = c_text.evaluate(index, c_text.environment(text, {"threadIdx_x": tid, "blockIdx_x": 0}))
    thr_grp_m, thr_grp_n, grp_local_idx = (tid // 16) % 2, (tid // 8) % 2, tid % 8
    assert np.array_equal(got, thr_grp_m * 128 + thr_grp_n * 8 + grp_local_idx * 16)
    outputs = re.findall(r'"=r"\(([^)]*)\)', operand)
    assert len(set(outputs)) == len(outputs) == 4  # two halves a register, nothing packed around it


COMPILED = [(n, a) for n in ALL for a in ("sm_75", "sm_80", "sm_90a") if int(a[3:5]) >= int(ARCHS[n][3:5])]


@pytest.mark.parametrize(("name", "arch"), COMPILED)
def test_nvrtc_takes_it(name: str, arch: str) -> None:
    program = _core.lower(ALL[name]().ir, arch)
    binary = _core.compile_source(program.cuda_source(), program.entry, arch)
    assert binary.spill_bytes == 0
    assert binary.local_bytes == 0  # register arrays are registers
    assert "warning" not in binary.log


def test_swizzled_addresses_are_the_layouts() -> None:
    text = source_of(tensor_core_tile(), "sm_80")
    layout = gr.composition(gr.swizzle(32, gr.fp16), gr.row_major(64, 32))
    found = re.findall(r"ldmatrix.*\n(?:.*=r.*\n)+.*gr_shared\(&sA\[(.*)\]\)", text)
    assert len(found) == 4  # two slices of k, two times 16 rows
    tid = np.arange(128)
    env = c_text.environment(text, {"threadIdx_x": tid, "blockIdx_x": 0, "K": 64, "N": 64, "M": 64, "m": 0, "n": 0})
    for i, index in enumerate(found):
        got = c_text.evaluate(index, env)
        for t in tid:
            row, column = (t // 32 % 2) * 32 + (i % 2) * 16 + t % 16, (i // 2) * 16 + t % 32 // 16 * 8
            assert got[t] == layout(int(row), int(column)), (i, t)
