"""Every public function, with every argument of a wrong type in turn: what is refused is refused in Python's words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import graphene as gr

WRONG: list[Any] = [
    None,
    3,
    -1,
    "x",
    1.5,
    object(),
    [],
    [3],
    (None,),
    {},
    2**70,
    True,
    b"x",
    gr.fp32,
    math.nan,
]
# What Python or pybind11 say of code that did not look at its arguments.
NOT_WORDS = (
    "incompatible function arguments",
    "incompatible constructor arguments",
    "Unable to cast",
    "Invoked with",
    "cannot be interpreted",
    "not supported between",
    "object is not iterable",
    "has no attribute",
    "unexpected keyword",
    "not subscriptable",
    "bad operand",
    "has no len",
)
MMA = "mma.m16n8k16.f32.f16"


class Scene:
    """What a kernel has, for arguments that are right."""

    def __init__(self) -> None:
        self.x = gr.input("x", [64], gr.fp32)
        self.y = gr.output("y", [64], gr.fp32)
        self.blocks = gr.blocks(1)
        self.threads = gr.threads(64)
        (self.t,) = self.threads.indices()
        self.r = gr.alloc("r", [], gr.fp32, gr.RF)
        self.s = gr.alloc("s", [64], gr.fp32, gr.SH)
        self.warp = self.threads.tile(32)[self.t // 32]


L = gr.Layout((4, 8), (1, 4))
Call = Callable[[Scene], tuple[Callable[..., Any], tuple[Any, ...]]]
CALLS: dict[str, Call] = {
    "alloc": lambda c: (gr.alloc, ("q", [4], gr.fp32, gr.SH, 2, None, None, 16)),
    "allreduce": lambda c: (gr.allreduce, ("add", c.r, c.threads)),
    "barrier": lambda c: (gr.barrier, (c.threads,)),
    "binary": lambda c: (gr.binary, ("add", c.r, c.r, c.r, None, None)),
    "blocked_product": lambda c: (gr.blocked_product, (L, L)),
    "cast": lambda c: (gr.cast, (c.r, gr.fp16)),
    "ceil_div": lambda c: (gr.ceil_div, (4, 2)),
    "coalesce": lambda c: (gr.coalesce, (L,)),
    "commit": lambda c: (gr.commit, ("cp.async.cg.16",)),
    "complement": lambda c: (gr.complement, (L, 64)),
    "composition": lambda c: (gr.composition, (L, L)),
    "crd2idx": lambda c: (gr.crd2idx, ((1, 1), (4, 8))),
    "exit_if": lambda c: (gr.exit_if, (c.t < 0,)),
    "fma": lambda c: (gr.fma, (c.r, c.r, c.r)),
    "fragment": lambda c: (gr.fragment, ("f", [16, 8], gr.fp32, gr.Layout((32, 4)), c.warp, 1)),
    "idx2crd": lambda c: (gr.idx2crd, (3, (4, 8))),
    "if_": lambda c: (gr.if_, (c.t < 3,)),
    "index": lambda c: (gr.index, (c.r, 0, 4, 1)),
    "init": lambda c: (gr.init, (c.r, 0.0)),
    "input": lambda c: (gr.input, ("z", [4], gr.fp32, 16)),
    "inputs": lambda c: (gr.inputs, ("zs", 3, [4], gr.fp32, 16)),
    "Layout": lambda c: (gr.Layout, ((4, 8), (1, 4))),
    "logical_divide": lambda c: (gr.logical_divide, (L, gr.Layout(2))),
    "loop": lambda c: (gr.loop, ("i", 4, 0, 1, 1)),
    "matmul": lambda c: (gr.matmul, (c.r, c.r, c.r, None, None, True)),
    "max": lambda c: (gr.max, (1, 2)),
    "min": lambda c: (gr.min, (1, 2)),
    "move": lambda c: (gr.move, (c.r, c.x[0], None, None, None, 0.0)),
    "only": lambda c: (gr.only, (c.threads,)),
    "param": lambda c: (gr.param, ("p", gr.i32)),
    "parse": lambda c: (gr.parse, ("x",)),
    "from_json": lambda c: (gr.Kernel.from_json, ("x",)),
    "reduce": lambda c: (gr.reduce, ("add", c.r, c.r, 0)),
    "ring": lambda c: (gr.ring, ("q", 3, 0)),
    "scalar": lambda c: (gr.scalar, ("sc", 0, 0, 4, 1)),
    "Scalar.set": lambda c: (gr.scalar("sc", 0).set, (1,)),
    "shfl": lambda c: (gr.shfl, (c.r, c.r, "bfly", 1)),
    "spec": lambda c: (gr.spec, (c.y, [c.x], None, "")),
    "swizzle": lambda c: (gr.swizzle, (L, gr.Swizzle(1, 1, 1))),
    "Swizzle": lambda c: (gr.Swizzle, (3, 4, 3)),
    "sym": lambda c: (lambda n, m, a, b: gr.sym(n, multiple_of=m, min=a, max=b), ("n", 1, 0, 9)),
    "tensor": lambda c: (gr.tensor, ("q", [4], gr.fp32, gr.GL)),
    "ternary": lambda c: (gr.ternary, ("fma", c.r, c.r, c.r, c.r)),
    "tv": lambda c: (gr.tv, (gr.Layout(32), gr.Layout(2))),
    "unary": lambda c: (gr.unary, ("neg", c.r, c.r)),
    "wait": lambda c: (gr.wait, ("cp.async.cg.16", 0)),
    "where": lambda c: (gr.where, (c.t < 3, c.r, c.r)),
    "Tensor.tile": lambda c: (c.x.tile, ([4],)),
    "Tensor.[]": lambda c: (c.x.__getitem__, (0,)),
    "Tensor.[]=": lambda c: (c.s.__setitem__, (slice(None), 1.0)),
    "Tensor.permute": lambda c: (c.x.permute, (0,)),
    "Tensor.reshape": lambda c: (c.x.reshape, (0, [8, 8])),
    "Tensor.window": lambda c: (c.x.window, (0, 4)),
    "Tensor.reduced": lambda c: (c.x.reduced, (1, "q", gr.fp32, False)),
    "ThreadTensor.tile": lambda c: (c.threads.tile, (32,)),
    "ThreadTensor.reshape": lambda c: (c.threads.reshape, (0, [8, 8])),
    "ThreadTensor.[]": lambda c: (c.threads.__getitem__, (0,)),
    "ThreadTensor.indices": lambda c: (c.threads.indices, (["a"],)),
    "Layout.()": lambda c: (L, (3,)),
    "Layout.[]": lambda c: (L.__getitem__, (0,)),
    "Swizzle.()": lambda c: (gr.Swizzle(1, 1, 1), (3,)),
}


def refusal(name: str, at: int, wrong: object) -> Exception | None:
    try:
        with gr.Kernel("k"):
            f, args = CALLS[name](Scene())
            result = f(*args[:at], wrong, *args[at + 1 :])
            if hasattr(result, "__enter__"):
                with result:
                    pass
    except Exception as e:
        return e
    return None


def count(name: str) -> int:
    with gr.Kernel("k"):
        return len(CALLS[name](Scene())[1])


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types(name: str) -> None:
    for at in range(count(name)):
        for wrong in WRONG:
            e = refusal(name, at, wrong)
            what = f"{name}, argument {at}: {wrong!r}: {type(e).__name__}: {e}"
            if isinstance(e, gr.GrapheneError):
                assert e.code is not None, what
                assert not isinstance(e, gr.InternalError), what
            elif e is not None:
                assert isinstance(e, (TypeError, ValueError)), what
                assert not any(w in str(e) for w in NOT_WORDS), what


@pytest.mark.parametrize("wrong", [None, "x", 1.5, [], 2**70], ids=repr)
def test_wrong_sizes(wrong: Any) -> None:
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [n], gr.fp32)
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.init(r, 0)
        gr.move(y[0], r)
    calls: list[Callable[[], Any]] = [lambda: kernel.check(n=wrong), lambda: kernel.report(n=wrong)]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match="the size n must"):
            call()
