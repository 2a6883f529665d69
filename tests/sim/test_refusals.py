"""What the simulator refuses to start, and findings that no other test provokes, with the text of each."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import graphene as gr


def lines(error: object) -> str:
    return re.sub(r"test_refusals.py:\d+", "FILE:N", str(error))


def copy(n: Any) -> gr.Kernel:
    with gr.Kernel("copy") as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.output("y", [n], gr.fp32)
        (b,) = gr.blocks(gr.ceil_div(n, 32)).indices()
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x.tile([32])[b][t])
        gr.move(y.tile([32])[b][t], r)
    return kernel


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (
            {"n": 12},
            "the size n=12 breaks the symbol's facts   [SIM_ARGUMENT]\n"
            "  want: from 0 to 9223372036854775807, a multiple of 8",
        ),
        (
            {"m": 8},
            "the kernel has no size m   [SIM_ARGUMENT]\n  sizes: n\n  fix: leave it out, or name one of these",
        ),
        *(
            (
                {"n": n},
                "the arguments are too large to check   [SIM_MEMORY]\n"
                f"  x: {n} elements of 4 bytes\n  y: {n} elements of 4 bytes\n"
                "  want: at most 1073741824 bytes in all\n  fix: pass smaller sizes, or a larger memory_bytes=",
            )
            for n in (2**31, 2**35)
        ),
        (
            {"n": 2**62},
            "a grid that no device launches   [SIM_ARGUMENT]\n  want: 0 to 2147483647 blocks along dimension 0\n"
            "  got: (n + 24)//32 = 144115188075855872\n  fix: pass other sizes",
        ),
    ],
)
def test_sizes_of_a_check(sizes: dict[str, int], text: str) -> None:
    with pytest.raises(gr.SimulationError) as e:
        copy(gr.sym("n", multiple_of=8)).check(**sizes)
    assert lines(e.value) == text


def test_a_loop_that_does_not_advance() -> None:
    """The facts of a scalar are promises; one that is broken at run time is told before the loop could hang."""
    with gr.Kernel("endless") as kernel:
        n = gr.param("n", gr.i32)
        x = gr.output("x", [1], gr.i32)
        r = gr.alloc("r", [], gr.i32, gr.RF)
        gr.init(r, 0)
        step = gr.scalar("step", 1, min=1, max=9)
        step.set(n)
        with gr.loop("i", 3, step=step.value):
            gr.init(r, 1)
        gr.move(x[0], r)
    x = np.zeros(1, np.int32)
    kernel(2, x)
    assert x[0] == 1
    with pytest.raises(gr.SimulationError) as e:
        kernel(0, x)
    assert lines(e.value) == (
        "FILE:N: a value of the scalar step breaks its facts   [SIM_FACT]\n    step = n\n  want: 1 to 9\n  got: 0\n"
        "  in: thread 0 (warp 0, lane 0) of block (0)\n"
        "  fix: assign values that keep them, or declare other facts: gr.scalar(..., min=, max=, multiple_of=)"
    )


def test_an_instruction_that_cannot_be_interpreted() -> None:
    """An entry added by a user may pair operands in a way that its kind gives no meaning to."""
    half = {"pattern": "[2].fp32.RF", "tv": "32:1;2:0", "tile": "e32"}
    (odd,) = gr.define_atom(
        name="test.together", kind="UnaryPointwise", arch="sm_70+", threads="[32]", converge=32, attrs={"op": ["neg"]},
        out=[{"name": "d", "access": "write", **half}], in_=[{"name": "s", **half}],
        ptx="neg.f32 $d[0], $s[0];", is_default=False, doc="One for all.", source="none",
    )  # fmt: skip
    with gr.Kernel("k") as kernel:
        x = gr.output("x", [32], gr.fp32)
        warp = gr.threads(32)
        (t,) = warp.indices()
        r = gr.alloc("r", [2], gr.fp32, gr.RF)
        gr.init(r, 0)
        gr.unary("neg", r, r, on=warp, atom=odd)
        gr.move(x[t], r[0])
    with pytest.raises(gr.SimulationError) as e:
        kernel(np.zeros(32, np.float32))
    assert lines(e.value).startswith("FILE:N: the simulator does not run test.together   [SIM_UNSUPPORTED]\n  ")


def lossy(far: float) -> gr.Kernel:
    """c = a @ b in fp16, after a detour over a number far away."""
    with gr.Kernel("lossy", means=lambda a, b: a @ b) as kernel:
        a, b = gr.input("a", [64, 1], gr.fp16), gr.input("b", [1, 8], gr.fp16)
        c = gr.output("c", [64, 8], gr.fp16)
        blocks, threads = gr.blocks(2), gr.threads(32)
        (i,), (t,) = blocks.indices(), threads.indices()
        x, y, z, offset = (gr.alloc(n, [], gr.fp16, gr.RF) for n in ("x", "y", "z", "offset"))
        with gr.matmul(c, a, b, on=(blocks, threads), accumulate=False):
            gr.init(offset, far)
            gr.move(x, a[i * 32 + t, 0])
            with gr.loop("n", 8) as n:
                gr.move(z, offset)
                gr.move(y, b[0, n])
                gr.matmul(z, x, y)
                gr.binary("sub", z, z, offset)
                gr.move(c[i * 32 + t, n], z)
    return kernel


def test_rounding_beyond_the_bound() -> None:
    """Exact over the field, where 1000 + x - 1000 is x; far from it in halves. So is x itself, kept in a half."""
    for far in (0, 1000):
        error = lossy(far).check().errors[0]
        assert error.code == "CHECK_PROMISE"
        said = ("lossy does not compute what it promises", "lossy rounds on the way where its meaning does not")
        assert any(s in str(error) for s in said)
    assert "wrong: c[" in str(lossy(1000).check())


def test_arrays_that_are_not_in_the_host_s_memory() -> None:
    class OnDevice:
        def __init__(self, address: int) -> None:
            self.__cuda_array_interface__ = {"shape": (32,), "typestr": "<f4", "data": (address, False), "version": 3}

    with pytest.raises(gr.SimulationError) as e:
        copy(32).simulate(OnDevice(0x1000), OnDevice(0x2000))
    assert lines(e.value) == (
        "argument 'x' is not in the host's memory   [SIM_ARGUMENT]\n  got: a tensor on cuda:0\n"
        "  fix: pass tensor.cpu(), or call the kernel to launch it"
    )
