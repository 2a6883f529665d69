"""Sizes that no device has, and nests that no text can hold, are refused where they are written: by the builder, by the
text and by JSON alike. Behind these refusals every size in bytes fits the integers it is kept in."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr

BIG = 2**20
HUGE = (2**31, 2**32 + 4, 2**61, 2**62, 2**63 - 1)
MMA = "mma.m16n8k16.f32.f16"


def kernel(body: Callable[[gr.ThreadTensor], Any]) -> gr.Kernel:
    with gr.Kernel("k") as k:
        gr.blocks(1)
        body(gr.threads(32))
    return k


def refused(make: Callable[[], Any]) -> gr.GrapheneError:
    with pytest.raises(gr.GrapheneError) as e:
        make()
    return e.value


@pytest.mark.parametrize("memory", [gr.RF, gr.SH], ids=str)
@pytest.mark.parametrize("n", HUGE)
@pytest.mark.parametrize("how", ["size", "stride", "stages", "product"])
def test_own_tensors(memory: gr.Memory, n: int, how: str) -> None:
    layout, stages = {
        "size": ([n], None),
        "stride": (gr.Layout((2,), (n,)), None),
        "stages": ([n // 2**20 + 1], 2**20),
        "product": ([n, n], None),
    }[how]
    e = refused(lambda: kernel(lambda _: gr.alloc("s", layout, gr.fp32, memory, stages=stages)))
    if how == "product" and n > 2**31:  # the strides of the list of sizes leave 64 bits before there is a tensor
        assert e.code == "SYM_OVERFLOW"
        return
    assert e.code == "TENSOR_SIZE"
    assert str(e).startswith("test_limits.py:")


def test_the_message() -> None:
    e = refused(lambda: kernel(lambda _: gr.alloc("s", [BIG], gr.fp32, gr.SH, stages=3)))
    assert re.sub(r":\d+: ", ":N: ", str(e)) == (
        "test_limits.py:N: a tensor that no device can hold   [TENSOR_SIZE]\n"
        "  tensor: s\n  want: at most 1048576 bytes\n  got: [1048576].fp32.SH, 3 stages\n"
        "  fix: use smaller tiles or fewer stages"
    )


@pytest.mark.parametrize("n", [2**47, 2**61, 2**62, 2**63 - 1])
def test_arguments(n: int) -> None:
    assert refused(lambda: kernel(lambda _: gr.input("x", [n], gr.fp32))).code == "TENSOR_SIZE"


@pytest.mark.parametrize("stride", [-(2**48), -(2**62), -(2**63)])
def test_arguments_that_run_backwards(stride: int) -> None:
    e = refused(lambda: kernel(lambda _: gr.input("x", gr.Layout((4, 32), (1, stride)), gr.fp32)))
    assert e.code == "TENSOR_SIZE"


def test_the_largest_are_accepted() -> None:
    def body(_: gr.ThreadTensor) -> None:
        gr.input("x", [2**46], gr.fp32)
        gr.inputs("xs", 1024, [4], gr.fp32)
        gr.alloc("s", [2**18], gr.fp32, gr.SH)
        gr.alloc("r", [2**14], gr.fp64, gr.RF)

    k = kernel(body)
    assert gr.parse(str(k)) == k


@pytest.mark.parametrize(
    ("shape", "stages"), [([2**40, 2**40], None), ([2**31, 8], None), ([16, 8], 2**30), ([2**20, 8], None)]
)
def test_fragments(shape: list[int], stages: int | None) -> None:
    c = gr.atom(MMA).c
    e = refused(lambda: kernel(lambda t: gr.fragment("f", shape, gr.fp32, c, on=t, stages=stages)))
    assert e.code == "TENSOR_SIZE"


def test_a_tv_layout_that_reaches_far() -> None:
    tv = gr.Layout(((32,), (2,)), ((1,), (2**40,)))
    e = refused(lambda: kernel(lambda t: gr.fragment("f", [64], gr.fp32, tv, on=t)))
    assert e.code in ("TENSOR_SIZE", "LAYOUT_TV")


def texts() -> list[tuple[str, str]]:
    """Texts of a kernel, each with a number to be replaced by a large one."""

    def body(t: gr.ThreadTensor) -> None:
        gr.input("x", [77], gr.fp32)
        gr.alloc("s", [78], gr.fp32, gr.SH)
        gr.alloc("r", [79], gr.fp32, gr.RF)

    k = kernel(body)
    return [(str(k), n) for n in ("77", "78", "79")] + [(k.to_json(), n) for n in ("77", "78", "79")]


@pytest.mark.parametrize("n", HUGE[2:])
@pytest.mark.parametrize("at", range(6))
def test_text_and_json(at: int, n: int) -> None:
    text, number = texts()[at]
    read = gr.Kernel.from_json if text.startswith("{") else gr.parse
    e = refused(lambda: read(text.replace(number, str(n))))
    assert e.code == "TENSOR_SIZE", str(e)


@pytest.mark.parametrize("n", [0, -1])
def test_stages(n: int) -> None:
    c = gr.atom(MMA).c
    assert refused(lambda: kernel(lambda _: gr.alloc("s", [4], gr.fp32, gr.SH, stages=n))).code == "TENSOR_TYPE"
    e = refused(lambda: kernel(lambda t: gr.fragment("f", [16, 8], gr.fp32, c, on=t, stages=n)))
    assert e.code == "TENSOR_TYPE"
    assert refused(lambda: kernel(lambda _: gr.ring("q", n))).code == "RING_STAGES"


def test_lists() -> None:
    e = refused(lambda: kernel(lambda _: gr.inputs("xs", 1025, [4], gr.fp32)))
    assert e.code == "TENSOR_SIZE"
    assert "want: at most 1024\n  got: 1025" in str(e)


def test_a_barrier_is_for_threads() -> None:
    with gr.Kernel("k"):
        grid = gr.blocks(4)
        gr.threads(32)
        e = refused(lambda: gr.barrier(on=grid))
    assert e.code == "SPEC_GROUP"
    assert str(e).startswith("test_limits.py:")
    k = kernel(lambda t: gr.barrier(on=t))
    text = str(k).replace("barrier(#2)", "barrier(#1)")
    assert text != str(k)
    assert refused(lambda: gr.parse(text)).code == "SPEC_GROUP"
    json = k.to_json().replace('"of":2', '"of":1')
    assert json != k.to_json()
    assert refused(lambda: gr.Kernel.from_json(json)).code == "SPEC_GROUP"


OPENERS: list[Callable[[Any, int], Any]] = [
    lambda t, _: gr.if_(t < 3),
    lambda _, i: gr.loop(f"i{i}", 2),
    lambda t, i: gr.loop(f"i{i}", 2) if i % 2 else gr.if_(t < 3),
]


@pytest.mark.parametrize("opener", OPENERS)
def test_what_can_be_nested_can_be_read_back(opener: Callable[[Any, int], Any]) -> None:
    def nested(depth: int) -> gr.Kernel:
        with gr.Kernel("k") as k:
            (t,) = gr.threads(32).indices()
            f = gr.alloc("f", [], gr.fp32, gr.RF)
            with contextlib.ExitStack() as stack:
                for i in range(depth):
                    stack.enter_context(opener(t, i))
                gr.init(f, 0)
        return k

    k = nested(400)
    assert gr.parse(str(k)) == k
    assert gr.Kernel.from_json(k.to_json()) == k
    assert refused(lambda: nested(401)).code == "IR_DEPTH"


def test_a_decomposition_counts_as_blocks() -> None:
    """A collective leaf opens loops of its own: they are refused where the text could not hold them."""

    def nested(depth: int) -> gr.Kernel:
        with gr.Kernel("k") as k:
            (t,) = gr.threads(32).indices()
            r = gr.alloc("r", [2, 2], gr.fp32, gr.RF)
            with contextlib.ExitStack() as stack:
                for _ in range(depth):
                    stack.enter_context(gr.if_(t < 3))
                r[:] = r + 1.0
        return k

    def outcome(depth: int) -> str | None:
        try:
            k = nested(depth)
        except gr.VerifyError as e:
            return e.code
        assert gr.parse(str(k)) == k
        return None

    outcomes = [outcome(depth) for depth in range(390, 401)]
    assert outcomes == sorted(outcomes, key=bool)
    assert set(outcomes) == {None, "IR_DEPTH"}


def test_an_expression_may_be_deeper_than_pythons_stack_and_not_than_the_cores() -> None:
    def chain(operations: int) -> gr.Kernel:
        with gr.Kernel("k") as k:
            x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            sums: Any = gr.load(x[t])
            for _ in range(operations):
                sums = sums + 1
            gr.move(y[t], sums)
        return k

    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    chain(2048)(x, y)
    assert (y == x + 2048).all()
    assert refused(lambda: chain(2049)).code == "IR_DEPTH"
    assert refused(lambda: chain(40_000)).code == "IR_DEPTH"
