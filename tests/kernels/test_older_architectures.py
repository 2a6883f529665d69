"""Kernels without newer instructions are compiled for Volta and Turing; those that have some say which one it is."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import graphene as gr
from graphene import _core
from graphene.kernels import (
    NormConfig,
    RowTile,
    SoftmaxColumnsConfig,
    TransposeConfig,
    elementwise_kernel,
    gemm_pad,
    gemm_reduce,
    gemm_sm70,
    layernorm_backward_kernel,
    layernorm_kernel,
    norm_columns_kernel,
    reduction_kernel,
    rmsnorm_backward_kernel,
    rmsnorm_kernel,
    softmax_columns_kernel,
    softmax_kernel,
    transpose_kernel,
)
from graphene.select import (
    select_elementwise,
    select_norm,
    select_norm_backward,
    select_norm_columns,
    select_reduction,
    select_softmax,
)

KERNELS: dict[str, Callable[[], gr.Kernel]] = {
    "gemm_sm70": gemm_sm70,
    "gemm_sm70 of fp32 sums": lambda: gemm_sm70(order="NT", out=gr.fp32),
    "gemm_reduce": lambda: gemm_reduce(lambda x, b: x + b, bias=True),
    "gemm_pad": gemm_pad,
    "layernorm": lambda: layernorm_kernel(select_norm(64, 768)),
    "layernorm of dense rows": lambda: layernorm_kernel(select_norm(64, 1023, align_bytes=2, dense_bytes=16)),
    "layernorm of memory": lambda: layernorm_kernel(NormConfig(RowTile(65536, 512, 1, 8, "memory"))),
    "layernorm of fp32": lambda: layernorm_kernel(select_norm(64, 768, gr.fp32)),
    "layernorm backward": lambda: layernorm_backward_kernel(select_norm_backward(64, 768)),
    "rmsnorm": lambda: rmsnorm_kernel(select_norm(64, 768, beta=False)),
    "rmsnorm backward": lambda: rmsnorm_backward_kernel(select_norm_backward(64, 768)),
    "columns of a norm": lambda: norm_columns_kernel(select_norm_columns(64, 768)[0]),
    "softmax": lambda: softmax_kernel(select_softmax(64, 768)),
    "softmax of columns": lambda: softmax_columns_kernel(SoftmaxColumnsConfig()),
    "reduction of rows": lambda: reduction_kernel(select_reduction(64, 768, 1)),
    "reduction of columns": lambda: reduction_kernel(select_reduction(64, 768, 0)),
    "elementwise": lambda: elementwise_kernel(
        lambda x, y: gr.max(x + y, 0), select_elementwise(768, [gr.fp16, gr.fp32], gr.fp16)
    ),
    "transpose": lambda: transpose_kernel(TransposeConfig()),
}


def has_compiler(arch: str) -> bool:
    try:
        _core.nvrtc_for(arch)
    except gr.CompileError:
        return False
    return True


@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name: str, arch: str) -> None:
    kernel = KERNELS[name]()
    assert kernel.cuda_source(arch)
    if has_compiler(arch):
        assert kernel.compile(arch).cubin[:4] == b"\x7fELF"


def test_pairs_are_rounded_alike_on_every_architecture() -> None:
    """Below sm_80 two instructions make a pair."""
    kernel = elementwise_kernel(lambda x: x, select_elementwise(2048, [gr.fp32], gr.fp16))
    x = np.random.default_rng(0).standard_normal((1, 1, 2048)).astype(np.float32)
    x[0, 0, :6] = [65519.0, 65520.0, 2.0**-24, 2.0**-25, np.inf, np.nan]
    for arch, text in (("sm_70", "cvt.rn.f16.f32"), ("sm_75", "cvt.rn.f16.f32"), ("sm_80", "cvt.rn.f16x2.f32")):
        got = np.zeros((1, 1, 2048), np.float16)
        kernel.simulate(x, got, arch=arch)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, x.astype(np.float16))
        assert text in kernel.cuda_source(arch)


def test_what_needs_a_newer_architecture_says_so() -> None:
    for kernel, atom in (
        (softmax_kernel(select_softmax(64, 768, gr.bf16)), "cvt.rn.bf16x2.f32"),
        (softmax_kernel(select_softmax(64, 8192)), "cp.async.cg.16"),
    ):
        with pytest.raises(gr.SelectError, match=r"NO_ATOM") as e:
            kernel.cuda_source("sm_75")
        assert atom in str(e.value)
        assert "want sm_80+, got sm_75" in str(e.value)


def test_a_kernel_for_another_architecture_is_one_mistake() -> None:
    """Not one for each of the statements that show it."""
    with gr.Kernel("copied") as kernel:
        x, y = (io(n, gr.row_major(8, 64), gr.fp16, align_bytes=16) for io, n in ((gr.input, "x"), (gr.output, "y")))
        gr.blocks(1)
        warp = gr.threads(32)
        s = gr.alloc("s", [8, 64], gr.fp16, gr.SH)
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[s])
            gr.move(s, x, atom=gr.atom("tma.load"), done=full[0])
            full[0].wait(0)
            gr.move(y, s, atom=gr.atom("tma.store"))
            gr.commit(gr.atom("tma.store"))
            gr.wait(gr.atom("tma.store"), pending=0)
    assert kernel.cuda_source("sm_90a")
    with pytest.raises(gr.SelectError, match="7 statements need another architecture than sm_80") as e:
        kernel.cuda_source("sm_80")
    assert [d["code"] for d in e.value.diagnostics] == ["NO_ATOM"]
    text = re.sub(r"test_older_architectures\.py:\d+", "FILE", str(e.value))
    assert "\n  tma.load/b16: want sm_90+, got sm_80, at FILE\n" in text
    assert text.endswith("\n  fix: compile for an architecture that has them")
