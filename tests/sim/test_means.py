"""What cannot be decided exactly is compared in float64: generic specs with a meaning, exp, division and the like."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from promises import gemm, line_of

import graphene as gr

LOG2E = 1.4426950408889634


def line(function: Any, marker: str) -> str:
    """Where this file's statement with the marker comment stands."""
    with open(__file__, encoding="utf-8") as f:
        n = next(i for i, text in enumerate(f, 1) if text.rstrip().endswith(f"# {marker}"))
    assert n > function.__code__.co_firstlineno
    return f"test_means.py:{n}"


def small_gemm(fault: str = "", means: str = "MatMul") -> gr.Kernel:
    """C += A @ B, one element a thread; the root is generic and says what it means."""
    with gr.Kernel("small_gemm") as kernel:
        a, b = gr.input("A", [8, 16], gr.fp32), gr.input("B", [16, 4], gr.fp32)
        c = gr.inout("C", [8, 4], gr.fp32)
        blocks, threads = gr.blocks(1), gr.threads(32)
        with gr.spec(c, [a, b], on=(blocks, threads), means=means):  # product
            (t,) = threads.indices()
            with gr.loop("k", 15 if fault else 16) as k:
                gr.matmul(c[t // 4, t % 4], a[t // 4, k], b[k, t % 4])
    return kernel


def test_a_generic_spec_means_a_built_in_one() -> None:
    result = small_gemm().check()
    assert result.ok, str(result)
    assert result.promises == 1
    assert small_gemm(means="").check().promises == 0
    (error,) = small_gemm("the last k is missing").check().errors
    assert (error.code, error.where) == ("CHECK_PROMISE", line(small_gemm, "product"))
    assert error.details[2] == "got: the sum over k from 0 to 14 of 16"
    (error,) = small_gemm(means="MatMul(accumulate=false)").check().errors
    assert error.code == "CHECK_PROMISE"


def test_a_meaning_of_other_shapes() -> None:
    (error,) = small_gemm(means="Move").check().errors
    assert error.code == "CHECK_MEANS"
    assert error.message == "operands that do not have the shapes of what the spec means"
    with pytest.raises(gr.SimulationError, match="a meaning that cannot be read") as caught:
        small_gemm(means="MatMul(accumulate").check()
    assert caught.value.code == "CHECK_MEANS"


@gr.reference
def softmax_of_rows(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def softmax(fault: str = "", means: Any = softmax_of_rows) -> gr.Kernel:
    """Y = softmax(X) over rows of 8, one row a thread."""
    with gr.Kernel("softmax") as kernel:
        x, y = gr.input("X", [32, 8], gr.fp32), gr.output("Y", [32, 8], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.alloc("r", [8], gr.fp32, gr.RF)
        m, s, scale = (gr.alloc(n, [], gr.fp32, gr.RF) for n in ("m", "s", "scale"))
        with gr.spec(y, [x], on=warp, means=means):  # softmax
            gr.init(scale, LOG2E if fault != "a rounded constant" else 1.44)
            gr.init(m, -gr.inf)
            gr.init(s, 0)
            for i in range(8):
                gr.move(r[i], x[t, i])
                gr.binary("max", m, m, r[i])
            for i in range(8):
                gr.binary("sub", r[i], r[i], m)
                gr.binary("mul", r[i], r[i], scale)
                gr.unary("exp2", r[i], r[i])
                if not (fault == "one term is missing" and i == 5):
                    gr.binary("add", s, s, r[i])
            gr.unary("rcp", s, s)
            for i in range(8):
                gr.binary("mul", r[i], r[i], s)
                gr.move(y[t, i], r[i])
    return kernel


def test_a_function_of_arrays_is_a_meaning() -> None:
    for seed in range(3):
        result = softmax().check(seed=seed)
        assert result.ok, str(result)
        assert result.promises == 1


@pytest.mark.parametrize("fault", ["one term is missing", "a rounded constant"])
def test_what_differs_from_the_function_is_found(fault: str) -> None:
    (error,) = softmax(fault).check().errors
    assert (error.code, error.where) == ("CHECK_PROMISE", line(softmax, "softmax"))
    assert error.details[0].endswith("of 256 elements")
    assert [d.split(":")[0] for d in error.details[2:4]] == ["want", "got"]


def test_the_name_survives_the_text() -> None:
    kernel = gr.parse(str(softmax()))
    assert 'means="softmax_of_rows"' in str(kernel)
    assert kernel == softmax(means="softmax_of_rows")
    assert kernel.check().promises == 1
    assert gr.Kernel.from_json(kernel.to_json()).check().ok
    assert not gr.parse(str(softmax("one term is missing"))).check().ok


def test_in_another_process_the_function_must_be_registered() -> None:
    program = "import sys, graphene as gr; print(gr.parse(sys.stdin.read()).check())"
    done = subprocess.run(
        [sys.executable, "-c", program], input=str(softmax()), capture_output=True, text=True, check=True
    )
    assert "a meaning that cannot be evaluated   [CHECK_MEANS]" in done.stdout
    assert "means: softmax_of_rows" in done.stdout
    assert "no reference has this name; there are: none" in done.stdout


def raises(x: np.ndarray) -> np.ndarray:
    raise RuntimeError("no")


def transposed(x: np.ndarray) -> np.ndarray:
    return x.T


def two(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x, x


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (raises, "it raised RuntimeError: no"),
        (transposed, "want: an output of shape (32, 8), got: (8, 32)"),
        (two, "want: 1 outputs, got: 2"),
    ],
)
def test_functions_that_do_not_fit(function: Any, text: str) -> None:
    (error,) = softmax(means=function).check().errors
    assert error.code == "CHECK_MEANS"
    assert error.details[1] == text
    with pytest.raises(ValueError, match="a reference needs a name"):
        gr.reference(lambda x: x)


@gr.reference
def sum_and_difference(x: np.ndarray, y: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x + y * scale, x - y


@pytest.mark.parametrize("wrong", [False, True])
def test_several_outputs(wrong: bool) -> None:
    with gr.Kernel("several") as kernel:
        x, y = gr.input("X", [32], gr.fp32), gr.input("Y", [32], gr.fp32)
        s, d = gr.output("S", [32], gr.fp32), gr.output("D", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r, q, two_, out = (gr.alloc(n, [], gr.fp32, gr.RF) for n in ("r", "q", "two", "out"))
        gr.init(two_, 2)
        with gr.spec([s, d], [x, y, 2.0], on=warp, means=sum_and_difference):
            gr.move(r, x[t])
            gr.move(q, y[t])
            gr.ternary("fma", out, q, two_, r)
            gr.move(s[t], out)
            gr.binary("sub" if not wrong else "add", out, r, q)
            gr.move(d[t], out)
    result = kernel.check()
    assert result.ok != wrong, str(result)
    if wrong:
        assert "D[0]" in result.errors[0].details[1]


def by_hand(op: str, fault: bool = False) -> gr.Kernel:
    """exp or a division, decomposed into what the hardware has."""
    with gr.Kernel("by_hand") as kernel:
        x, z = gr.input("X", [32], gr.fp32), gr.input("Z", [32], gr.fp32)
        y = gr.output("Y", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r, q = gr.alloc("r", [], gr.fp32, gr.RF), gr.alloc("q", [], gr.fp32, gr.RF)
        with gr.unary("exp", y, x, on=warp) if op == "exp" else gr.binary("div", y, x, z, on=warp):  # by hand
            gr.move(r, x[t])
            if op == "exp":
                gr.init(q, LOG2E if not fault else 1.45)
            else:
                gr.move(q, z[t])
                if not fault:
                    gr.unary("rcp", q, q)
            gr.binary("mul", r, r, q)
            if op == "exp":
                gr.unary("exp2", r, r)
            gr.move(y[t], r)
    return kernel


@pytest.mark.parametrize("op", ["exp", "div"])
def test_specs_that_are_not_algebraic_are_compared_in_float64(op: str) -> None:
    result = by_hand(op).check()
    assert result.ok, str(result)
    assert result.promises == 1
    (error,) = by_hand(op, fault=True).check().errors
    assert (error.code, error.where) == ("CHECK_PROMISE", line(by_hand, "by hand"))


@gr.reference
def exp_of_exp(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.exp(x)))


@pytest.mark.parametrize("fault", [False, True])
def test_what_an_inner_spec_may_be_off_is_not_the_outer_ones_fault(fault: bool) -> None:
    """The inner exp is as exact as its fp16 output asks for, which is far too coarse for the fp32 output outside."""
    with gr.Kernel("nested") as kernel:
        x, y = gr.input("X", [32], gr.fp32), gr.output("Y", [32], gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r, q, s = (gr.alloc(n, [], gr.fp32, gr.RF) for n in ("r", "q", "s"))
        h = gr.alloc("h", [], gr.fp16, gr.RF)
        with gr.spec(y, [x], on=warp, means=exp_of_exp):  # outer
            gr.move(r, x[t])
            with gr.unary("exp", h, r):
                gr.init(s, 1.4423828125)  # log2(e) as a half
                gr.binary("mul", q, r, s)
                gr.unary("exp2", q, q)
                gr.unary("cast", h, q)
            gr.unary("cast", r, h)
            gr.init(s, LOG2E if not fault else 1.4423828125)
            gr.binary("mul", q, r, s)
            gr.unary("exp2", q, q)
            gr.move(y[t], q)
    result = kernel.check()
    assert result.ok != fault, str(result)
    if fault:
        assert [e.where for e in result.errors] == [
            line(test_what_an_inner_spec_may_be_off_is_not_the_outer_ones_fault, "outer")
        ]
    else:
        assert result.promises == 1 + 32


def test_large_products_are_checked_against_random_vectors() -> None:
    """More products than are computed one by one; a failing row is then computed exactly, for its words."""
    size = {"M": 256, "N": 256, "K": 512}
    result = gemm().check(**size)
    assert result.ok, str(result)
    (error,) = gemm("the last k-tile is missing").check(**size).errors
    assert error.where == f"promises.py:{line_of('root')}"
    assert "got: the sum over k from 0 to 503 of 512" in error.details
    (error,) = gemm("the k-tile multiplies twice").check(**size).errors
    assert error.where == f"promises.py:{line_of('k tile')}"


@pytest.mark.parametrize("changes", [False, True])
def test_an_operand_that_others_change_meanwhile(changes: bool) -> None:
    """Two warps multiply side by side; each overwrites what the other one still reads: nothing of its own frame."""
    with gr.Kernel("meanwhile") as kernel:
        a, b = gr.input("A", [2, 32], gr.fp32), gr.inout("B", [2, 32], gr.fp32)
        gr.blocks(1)
        threads = gr.threads(64)
        (w, lane) = itertools.chain.from_iterable(
            x if isinstance(x, tuple) else (x,) for x in threads.tile(32).indices()
        )
        warp = threads.tile(32)[w]
        s = gr.alloc("s", [2, 32], gr.fp32, gr.SH)
        r, q = gr.alloc("r", [], gr.fp32, gr.RF), gr.alloc("q", [], gr.fp32, gr.RF)
        gr.move(r, a[w, lane])
        gr.move(s[w, lane], r)
        gr.barrier()
        with gr.matmul(b[w, :], s[w, :], a[w, :], on=warp):  # meanwhile
            gr.move(r, s[w, lane])
            gr.barrier()
            if changes:
                gr.init(s[1 - w, lane], 2)
            gr.barrier()
            gr.move(q, s[w, lane])
            gr.matmul(b[w, lane], r, a[w, lane])
    result = kernel.check()
    assert result.ok != changes, str(result)
    if changes:
        assert {e.code for e in result.errors} == {"CHECK_OPERAND_CHANGED"}
        assert result.errors[0].where == line(test_an_operand_that_others_change_meanwhile, "meanwhile")
        assert result.errors[0].details[0].startswith("element: s[")
