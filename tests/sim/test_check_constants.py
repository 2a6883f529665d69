"""Promises with constants: held to the number that the type holds, exactly, integers of 64 bits and below 0 too."""

from __future__ import annotations

from typing import Any

import pytest

import graphene as gr

Value = int | float

NUMBERS: list[tuple[str, Value, Value]] = [
    ("i8", -1, -2),
    ("i32", -1, -2),
    ("i32", 7, 6),
    ("u32", 2**32 - 1, 2**32 - 2),
    ("i64", -5, -6),
    ("i64", 2**53 + 1, 2**53),
    ("i64", 2**60 + 1, 2**60),
    ("i64", -(2**63), -(2**63) + 1),
    ("i64", 2**31 - 1 + 3, 3),  # equal in the field in which floats are compared
    ("u64", 2**63 - 1, 2**62),
    ("fp16", 2.1, 2.0),
    ("fp32", 2.1, 2.25),
    ("fp64", 2.1, 2.25),
    ("fp32", -0.7, 0.7),
]


def started(t: gr.DType, value: Value, made: Value) -> gr.Kernel:
    with gr.Kernel("started") as kernel:
        y = gr.output("y", [32], t)
        gr.blocks(1)
        (i,) = gr.threads(32).indices()
        with gr.init(y, value):
            r = gr.alloc("r", [], t, gr.RF)
            gr.init(r, made)
            gr.move(y[i], r)
    return kernel


def filled(t: gr.DType, value: Value, made: Value) -> gr.Kernel:
    with gr.Kernel("filled") as kernel:
        x, y = gr.input("x", [20], t), gr.output("y", [32], t)
        gr.blocks(1)
        (i,) = gr.threads(32).indices()
        part = x.tile([32])[0]
        with gr.move(y, part, fill=value):
            r = gr.alloc("r", [], t, gr.RF)
            gr.move(r, part[i], fill=made)
            gr.move(y[i], r)
    return kernel


@pytest.mark.parametrize("build", [started, filled])
@pytest.mark.parametrize(("dtype", "right", "wrong"), NUMBERS)
def test_the_number_itself_and_no_other(build: Any, dtype: str, right: Value, wrong: Value) -> None:
    t = getattr(gr, dtype)
    assert build(t, right, right).check().ok
    result = build(t, right, wrong).check()
    assert [e.code for e in result.errors] == ["CHECK_PROMISE"]
    if not isinstance(right, float) and dtype != "u32":
        assert f"want: {right}\n" in str(result.errors[0]) + "\n"


@pytest.mark.parametrize(("right", "wrong"), [(2.1, 2.25), (0.1, -0.1)])
def test_a_constant_operand(right: float, wrong: float) -> None:
    def build(made: float) -> gr.Kernel:
        with gr.Kernel("added") as kernel:
            x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
            gr.blocks(1)
            (i,) = gr.threads(32).indices()
            with gr.binary("add", y, x, right):
                r = gr.alloc("r", [], gr.fp32, gr.RF)
                gr.move(r, x[i])
                r[:] = r + made
                gr.move(y[i], r)
        return kernel

    assert build(right).check().ok
    assert not build(wrong).check().ok
