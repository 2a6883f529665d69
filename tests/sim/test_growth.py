"""A process that checks one kernel after the other does not grow: what a check makes goes with it."""

from __future__ import annotations

import gc
import weakref

import numpy as np

import graphene as gr
from graphene import _core
from graphene.judge.signature import Signature
from graphene.kernels import (
    Attention,
    GemmConfig,
    NormConfig,
    RowTile,
    attention_forward_kernel,
    gemm_launches,
    layernorm_kernel,
)
from graphene.select import select_forward
from graphene.testing.library import library


def test_calls_of_other_sizes_leave_no_expressions_behind() -> None:
    """What sizes make of a kernel's expressions is of use to their calls alone."""
    kernel = gemm_launches(GemmConfig((32, 32, 32), 2, bias=True))[0].kernel

    def call(M: int, N: int, K: int) -> None:
        a, b, c = (np.ones(s, np.float16) for s in ((M, K), (N, K), (M, N)))
        kernel.simulate(a, b.T, np.ones(N, np.float16), c)

    call(33, 40, 72)
    nodes, _ = _core.sym_kept()
    for n in range(1, 20):
        call(33 + n, 40 + 8 * n, 72 + 8 * n)
    assert _core.sym_kept()[0] - nodes <= 20


def test_a_check_leaves_few_expressions_behind() -> None:
    kernel = attention_forward_kernel(select_forward(Attention(64, gr.fp16, right=True)))
    kernel.lowered("sm_90a")
    nodes, _ = _core.sym_kept()
    assert kernel.check(arch="sm_90a").ok
    assert _core.sym_kept()[0] - nodes < 2000


def test_proofs_leave_no_expressions_behind() -> None:
    """This kernel's lowering looks at 40,000 expressions on the way to its proofs."""
    nodes, _ = _core.sym_kept()
    config = select_forward(Attention(96, gr.fp16, left=True, right=True), lse=True)
    attention_forward_kernel(config).lowered("sm_90a")
    assert _core.sym_kept()[0] - nodes < 25_000


def test_signatures_of_the_last_kernels_alone_are_kept() -> None:
    """They hold a kernel's JSON and its trees, whether the kernel lives on or not."""
    kernels = [layernorm_kernel(NormConfig(RowTile(64 + 8 * i, 32, 8, 1), gamma=True)) for i in range(12)]
    kept = [weakref.ref(Signature.of(kernel)) for kernel in kernels]
    assert Signature.of(kernels[-1]) is kept[-1]()
    gc.collect()
    assert [s() is not None for s in kept] == [False] * 4 + [True] * 8


def test_the_library_builds_a_kernel_when_it_is_asked_for() -> None:
    found = library(every=12, name="groupnorm")
    assert len(found) == 3
    gc.collect()
    names = {str(e.build()) for e in found}
    assert len(names) == 3
    assert not any(isinstance(v, gr.Kernel) for e in found for v in vars(e).values())
