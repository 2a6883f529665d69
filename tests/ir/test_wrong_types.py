"""Arguments of the wrong Python type are refused where they are passed, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphene as gr


def recorded(body: Callable[[gr.Tensor, gr.Tensor], Any]) -> None:
    with gr.Kernel("k"):
        x, r = gr.inout("x", [4], gr.fp32), gr.alloc("r", [4], gr.fp32, gr.RF)
        body(x, r)


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (lambda x, r: gr.move(r[0], x[0], atom=3), TypeError, "atom= takes an atom, a family, a name or a list"),
        (lambda x, r: gr.move(r[0], x[0], atom=gr.fp16), TypeError, "atom= takes an atom, a family, a name or a list"),
        (
            lambda x, r: gr.matmul(r[0], r[0], r[0], atom=3.5),
            TypeError,
            "atom= takes an atom, a family, a name or a list",
        ),
        (
            lambda x, r: gr.fragment("f", [16, 8], gr.fp32, 3, on=r),
            TypeError,
            "tv= takes an operand of an atom such as",
        ),
        (lambda x, r: gr.move(r[0], x[0], fill="a"), TypeError, "fill= takes a number, got 'a'"),
        (lambda x, r: gr.swizzle(64, "fp16"), TypeError, "a dtype, or a number of bits, is needed, got 'fp16'"),
        (lambda x, r: gr.swizzle("a", gr.fp16), TypeError, "a row has an integer number of elements, got 'a'"),
        (lambda x, r: gr.abs("a"), TypeError, "abs: an operand must be registers, an expression or a number, got str"),
        (
            lambda x, r: gr.inputs("W", "a", [4], gr.fp32),
            TypeError,
            "inputs needs an integer number of tensors, got n='a'",
        ),
        (lambda x, r: gr.init(r, None), TypeError, "value= takes a number, got None"),
        (lambda x, r: gr.atom(3), TypeError, "an atom's name is a string such as 'ldmatrix.x4', got 3"),
        (lambda x, r: gr.wait(gr.fp16, 0), TypeError, "an atom, a family or its name is needed, got gr.fp16"),
        (lambda x, r: gr.commit(3), TypeError, "an atom, a family or its name is needed, got 3"),
        (lambda x, r: gr.move(r[0], x[0], on=3), TypeError, "on= must be a thread tensor, got 3"),
        (lambda x, r: gr.cast(r, "fp16"), TypeError, "a dtype must be one of"),
        (lambda x, r: gr.wait("cp.async.cg.16", None), TypeError, "pending must be an integer, got None"),
        (lambda x, r: gr.alloc("s", [4], "fp32", gr.SH), gr.LayoutError, "a dtype must be one of"),
        (lambda x, r: x[1.5], gr.LayoutError, "want an int or an IntExpr, got float"),
    ],
)
def test_recording(body: Callable[..., Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        recorded(body)


def test_seeds() -> None:
    with gr.Kernel("k") as kernel:
        x, r = gr.inout("x", [4], gr.fp32), gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[0])
        gr.move(x[0], r)
    for read in (gr.parse, gr.Kernel.from_json):
        with pytest.raises(TypeError, match="a kernel is read from text, got 3"):
            read(3)  # type: ignore[arg-type]
    for ask in (kernel.check, kernel.mutants, kernel.report):
        for size in ("a", 1.5, True, None):
            with pytest.raises(TypeError, match="the size M must be an integer, got "):
                ask(M=size)  # type: ignore[operator]
    for name in ("skip", "relax"):
        with pytest.raises(TypeError, match=f"{name}= takes a list of ids from kernel.syncs.., got 3"):
            kernel.simulate(np.zeros(4, np.float32), **{name: 3})
    for seed in (-1, 1.5, 2**64):
        with pytest.raises(ValueError, match="seed must be an integer, 0 or more"):
            kernel.simulate(np.zeros(4, np.float32), seed=seed)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seed must be an integer, 0 or more"):
            kernel.check(seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", ["coords", "valid"])
@pytest.mark.parametrize("memory", [gr.RF, gr.SH], ids=str)
def test_only_fragments_have_coordinates(ask: str, memory: gr.Memory) -> None:
    with gr.Kernel("k"):
        r = gr.alloc("r", [4], gr.fp32, memory)
        with pytest.raises(gr.LayoutError) as e:
            getattr(r, ask)()
    assert str(e.value) == (
        "only the elements of a fragment have coordinates of their own, one for each thread   [TENSOR_VALUES]\n"
        f"  got: [4].fp32.{memory.name} of r\n"
        "  fix: ask the fragment that gr.fragment returned"
    )
