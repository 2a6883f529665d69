"""Products that one thread computes, by instructions of one's own; scalar arguments of every type."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import graphene as gr


@functools.cache
def dot() -> gr.Atom:
    """dp4a, which is defined when a test first asks for it: tests of all entries do not meet it."""
    (entry,) = gr.define_atom(
        name="test.dp4a.matmul",
        kind="MatMul",
        arch="sm_70+",
        out=[{"name": "d", "pattern": "[1,1].i32.RF", "tile": "m1,n1", "access": "update"}],
        in_=[
            {"name": "a", "pattern": "[1,4].i8.RF", "tile": "m1,k4"},
            {"name": "b", "pattern": "[4,1].i8.RF", "tile": "k4,n1"},
        ],
        ptx="dp4a.s32.s32 $d, $a, $b, $d;",
        is_default=False,
        doc="Adds the products of four bytes.",
        source="PTX ISA, integer arithmetic: dp4a",
    )
    return entry


def dots(initialised: bool = True) -> gr.Kernel:
    with gr.Kernel("dots", means=lambda x, w: 5 + (x * w).sum(1)) as kernel:
        x, w = (gr.input(n, [40, 4], gr.i8, align_bytes=4) for n in "xw")
        y = gr.output("y", [40], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(40).indices()
        a, b = gr.load(x[t, :]), gr.load(w[t, :])
        total = gr.alloc("total", [1], gr.i32, gr.RF)
        if initialised:
            gr.init(total, 5)
        tiles = (r.reshape(0, gr.row_major(*s)) for r, s in ((total, (1, 1)), (a, (1, 4)), (b, (4, 1))))
        gr.matmul(*tiles, atom=dot())
        gr.move(y[t], total[0])
    return kernel


def test_one_thread_multiplies_a_row_by_a_column() -> None:
    kernel = dots()
    x = np.random.default_rng(0).integers(-128, 128, (40, 4)).astype(np.int8)
    w, y = x[::-1].copy(), np.zeros(40, np.int32)
    kernel(x, w, y)
    assert np.array_equal(y, 5 + (x.astype(np.int32) * w).sum(1))
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())
    assert "dp4a.s32.s32 %0, %1, %2, %0;" in kernel.cuda_source("sm_80")
    assert kernel.check().ok, kernel.check()


def test_an_accumulator_that_was_never_written() -> None:
    x = np.zeros((40, 4), np.int8)
    with pytest.raises(gr.SimulationError) as caught:
        dots(initialised=False)(x, x, np.zeros(40, np.int32))
    assert caught.value.code == "SIM_UNDEFINED"


def told(dtype: gr.DType, value: float) -> float:
    with gr.Kernel("told") as kernel:
        p, y = gr.param("p", dtype), gr.output("y", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        r = gr.let("r", 0.0, gr.fp32)
        r[...] = p
        gr.move(y[0], r)
    assert kernel.cuda_source("sm_90a")
    y = np.zeros(1, np.float32)
    kernel(value, y)
    return float(y[0])


@pytest.mark.parametrize(("dtype", "given", "want"), [
    ("fp8e4m3", 448, 448), ("fp8e4m3", -1.07, -1.125), ("fp8e4m3", 2.0**-9, 2.0**-9), ("fp8e5m2", 57344, 57344),
    ("fp8e5m2", 1.2, 1.25), ("fp16", 0.1, 0.0999755859375), ("i8", -128, -128), ("u64", 3, 3),
])  # fmt: skip
def test_scalars(dtype: str, given: float, want: float) -> None:
    assert told(getattr(gr, dtype), given) == want


@pytest.mark.parametrize(("dtype", "given"), [("fp8e4m3", 480), ("fp8e4m3", np.inf), ("fp8e5m2", 1e5), ("u8", 256)])
def test_scalars_that_a_type_does_not_have(dtype: str, given: float) -> None:
    with pytest.raises(gr.LaunchError) as caught:
        told(getattr(gr, dtype), given)
    assert caught.value.code == "LAUNCH_SCALAR"
