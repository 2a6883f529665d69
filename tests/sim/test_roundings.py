"""Where values become narrower than fp32 and are then computed with: found from what the values went through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import Attention, ForwardConfig, attention_forward_kernel, gemm_sm80

NUMPY = {gr.fp16: np.float16, gr.fp32: np.float32, gr.bf16: np.uint16}


def chain(body: Callable[..., None], dtype: gr.DType = gr.fp32, out: gr.DType = gr.fp32) -> gr.Kernel:
    """One warp: ``body(x, y, t, threads)`` makes registers y of x, by lane t."""
    with gr.Kernel("chain") as kernel:
        a, b = gr.input("A", [32], dtype), gr.output("B", [32], out)
        gr.blocks(1)
        threads = gr.threads(32)
        (t,) = threads.indices()
        x, y = gr.alloc("x", [], dtype, gr.RF), gr.alloc("y", [], out, gr.RF)
        gr.move(x, a[t])
        body(x, y, t, threads)
        gr.move(b[t], y)
    return kernel


def found(kernel: gr.Kernel, *args: np.ndarray) -> set[tuple[str, str, str]]:
    points = kernel.simulate(*args, roundings=True).roundings
    assert points is not None
    return {(p.tensor, p.source, p.type) for p in points}


def of_chain(
    body: Callable[..., None], dtype: gr.DType = gr.fp32, out: gr.DType = gr.fp32
) -> set[tuple[str, str, str]]:
    x = np.arange(32, dtype=np.float32).astype(NUMPY[dtype])
    return found(chain(body, dtype, out), x, np.zeros(32, NUMPY[out]))


def register(name: str, dtype: gr.DType) -> gr.Tensor:
    return gr.alloc(name, [], dtype, gr.RF)


def test_a_value_that_is_narrowed_and_computed_with_is_found_with_its_line() -> None:
    def body(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        p = register("p", gr.fp16)
        p[:] = x
        y[:] = gr.cast(p, gr.fp32) * 3

    kernel = chain(body)
    (point,) = kernel.simulate(np.ones(32, np.float32), np.ones(32, np.float32), roundings=True).roundings or ()
    assert (point.tensor, point.source, point.type) == ("p", "fp32", "fp16")
    line = body.__code__.co_firstlineno + 2
    assert point.where == f"test_roundings.py:{line}"
    assert kernel.simulate(np.ones(32, np.float32), np.ones(32, np.float32)).roundings is None


def test_a_result_may_be_narrow() -> None:
    def body(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        y[:] = x * 3

    assert of_chain(body, out=gr.fp16) == set()


def test_narrowing_before_the_epilogue_is_found_but_not_before_what_selects() -> None:
    def add(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        c = register("c", gr.fp16)
        c[:] = x
        y[:] = c + 1

    def relu(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        c = register("c", gr.fp16)
        c[:] = x
        y[:] = -gr.max(c, 0)

    assert of_chain(add, out=gr.fp16) == {("c", "fp32", "fp16")}
    assert of_chain(relu, out=gr.fp16) == set()


def test_what_was_never_wider_is_not_narrowed() -> None:
    def body(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        wide, again = register("wide", gr.fp32), register("again", gr.fp16)
        wide[:] = x
        again[:] = gr.max(wide, 0)
        y[:] = gr.cast(again, gr.fp32) * 3

    assert of_chain(body, dtype=gr.fp16) == set()
    assert of_chain(body, dtype=gr.bf16) == {("again", "fp32", "fp16")}  # fp16 does not hold every bf16


def test_a_second_rounding_reads_the_first() -> None:
    def body(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        h, w = register("h", gr.fp16), register("w", gr.fp32)
        h[:] = x
        w[:] = h
        y[:] = w

    assert of_chain(body, out=gr.bf16) == {("h", "fp32", "fp16")}
    assert of_chain(body, out=gr.fp16) == set()


def test_narrow_arithmetic_narrows() -> None:
    def body(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        s = register("s", gr.fp16)
        gr.binary("add", s, x, x)
        gr.binary("mul", y, s, s)

    assert of_chain(body, dtype=gr.fp16, out=gr.fp16) == {("s", "fp16", "fp16")}


@pytest.mark.parametrize("way", ["shared memory", "an exchange", "a branch", "a loop"])
def test_moves_carry_what_a_value_went_through(way: str) -> None:
    def body(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        p, q = register("p", gr.fp16), register("q", gr.fp16)
        p[:] = x
        gr.init(q, 0)
        if way == "shared memory":
            s = gr.alloc("s", [32], gr.fp16, gr.SH)
            gr.move(s[t], p)
            gr.barrier()
            gr.move(q, s[31 - t])
        elif way == "an exchange":
            gr.shfl(q, p, "bfly", 1, on=threads)
        elif way == "a branch":
            with gr.if_(t < 5):
                gr.move(q, p)
        else:
            with gr.loop("i", 3) as _:
                gr.move(q, p)
        y[:] = gr.cast(q, gr.fp32) * 3

    assert of_chain(body) == {("p", "fp32", "fp16")}


def test_memory_used_again_holds_what_was_stored_last() -> None:
    """A stage of shared memory takes C of before, which is read, and the result, which is not."""

    def body(x: gr.Tensor, y: gr.Tensor, t: gr.Expr, threads: gr.ThreadTensor) -> None:
        c, r, s = register("c", gr.fp16), register("r", gr.fp16), gr.alloc("s", [32], gr.fp16, gr.SH)
        c[:] = 2
        gr.move(s[t], c)
        gr.move(c, s[t])
        r[:] = x + gr.cast(c, gr.fp32)
        gr.move(s[t], r)
        gr.move(y, s[t])

    assert of_chain(body, out=gr.fp16) == set()


@pytest.mark.parametrize("accumulator", [gr.fp16, gr.fp32])
def test_accumulators_of_fp16_are_found(accumulator: gr.DType) -> None:
    mma = gr.atom(f"mma.m16n8k16.{'f16' if accumulator == gr.fp16 else 'f32'}.f16")
    with gr.Kernel("twice") as kernel:
        d = gr.output("D", [16, 8], accumulator)
        gr.blocks(1)
        warp = gr.threads(32)
        ra, rb = (gr.fragment(n, [r, 16], gr.fp16, x, on=warp) for n, r, x in (("a", 16, mma.a), ("b", 8, mma.b)))
        acc = gr.fragment("acc", [16, 8], accumulator, mma.c, on=warp)
        ra[:], rb[:], acc[:] = 1, 1, 0
        with gr.loop("k", 2):
            gr.matmul(acc, ra, rb.T, on=warp)
        atom = gr.atom(f"st.global.{'b32' if accumulator == gr.fp16 else 'v2.b32'}")
        gr.move(d, acc, atom=atom, on=warp)
    want = {("acc", "fp16", "fp16")} if accumulator == gr.fp16 else set()
    out = np.zeros((16, 8), NUMPY[accumulator])
    assert found(kernel, out) == want
    assert (out == 32).all()


def test_atomic_sums_in_fp16_are_found() -> None:
    def kernel(combine: str, dtype: gr.DType) -> gr.Kernel:
        with gr.Kernel("sums") as k:
            a, s = gr.input("A", [32], gr.fp32), gr.inout("S", [1], dtype)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            x, h = register("x", gr.fp32), register("h", dtype)
            gr.move(x, a[t])
            h[:] = x
            gr.move(s[0], h, combine=combine, atomic="relaxed.gpu")
        return k

    a = np.ones(32, np.float32)
    assert found(kernel("add", gr.fp16), a, np.zeros(1, np.float16)) == {("S", "fp16", "fp16"), ("h", "fp32", "fp16")}
    assert found(kernel("add", gr.fp32), a, np.zeros(1, np.float32)) == set()


def test_kernels_of_the_library_round_where_they_say() -> None:
    def normal(*shape: int, dtype: type = np.float16) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(shape).astype(dtype)

    q, k, v = normal(1, 35, 2, 32), normal(1, 70, 2, 32), normal(1, 70, 2, 32)
    attention = attention_forward_kernel(ForwardConfig(Attention(32, right=True), 32, 16, 2))
    assert found(attention, q, k, v, np.full_like(q, np.nan), 0.18, 0) == {("P", "fp32", "fp16")}
    a, b, bias, c = normal(40, 72), normal(48, 72), normal(48), np.zeros((40, 48), np.float16)
    assert found(gemm_sm80(BM=32, BN=64, STAGES=2), a, b, bias, c) == set()
    single = [x.astype(np.float32) for x in (a, b, bias, c)]
    tf32 = gemm_sm80(BM=32, BN=64, BK=16, STAGES=2, dtype=gr.fp32, out=gr.fp32)
    assert found(tf32, *single) == {("tA", "fp32", "tf32"), ("tB", "fp32", "tf32")}
