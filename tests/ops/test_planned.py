"""The operator that runs a plan's kernel: graphene.compile puts it into graphs."""

from __future__ import annotations

from typing import Any

import pytest

import graphene as gr
from graphene import plan

torch = pytest.importorskip("torch")

from graphene.ops.planned import PLANNED  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")


def text(rows: Any = "M") -> str:
    """The plan of a normalised product, with a bias and a function behind it."""
    m, k, n = plan.axes(m=rows, k=32, n=48)
    with plan.graph("norm_linear") as g:
        x, w = g.input("X", [m, k], gr.bf16), g.input("W", [n, k], gr.bf16)
        b = g.input("B", [n], gr.fp32)
        r = plan.rsqrt(plan.mean(x * x, k) + 1e-5)
        g.output("O", plan.silu(plan.dot(x * r, w, k) + b), [m, n], gr.bf16)
    return g.plan("sm_80", **({"m": 16} if rows == "M" else {})).json()


def lora() -> str:
    """A plan with a product of a product, and a residual."""
    m, k, n, r = plan.axes(m="M", k=32, n=48, r=16)
    with plan.graph("lora") as g:
        x, w = g.input("X", [m, k], gr.fp16), g.input("W", [k, n], gr.fp16)
        a, b = g.input("A", [k, r], gr.fp16), g.input("B", [r, n], gr.fp16)
        base = plan.dot(x, w, k) + g.input("R", [m, n], gr.fp16)
        g.output("O", base + plan.dot(plan.dot(x, a, k).round(gr.fp16), b, r), [m, n], gr.fp32)
    return g.plan("sm_80", m=16).json()


def made(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(*shape).to(dtype) / 4


def arguments(rows: int = 10) -> tuple[Any, ...]:
    return made(rows, 32), [made(48, 32), made(48, dtype=torch.float32)], [text()]


def loras(rows: int = 10) -> tuple[Any, ...]:
    half = torch.float16
    return (
        made(rows, 32, dtype=half),
        [made(*s, dtype=half) for s in ((32, 48), (32, 16), (16, 48), (rows, 48))],
        [lora()],
    )


OPCHECK = {"planned": lambda: [arguments(), loras()]}


def right(first: Any, rest: list[Any], plans: list[str]) -> None:
    x, w, b = (t.double() for t in (first, *rest))
    want = torch.nn.functional.silu(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) @ w.T + b)
    for way in (PLANNED.forward, torch.ops.graphene.planned_reference):
        got = way(first, rest, plans)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), want, rtol=8e-3, atol=4e-3)


def test_results_are_right() -> None:
    right(*arguments())
    right(*arguments(1))
    assert PLANNED.forward(*arguments(0)).shape == (0, 48)
    first, rest, plans = arguments(16)
    right(first, rest, [text(16)])
    right(first.T.contiguous().T, [rest[0].T.contiguous().T, rest[1][::1]], plans)  # other strides are copied


def test_a_product_of_a_product() -> None:
    first, rest, plans = loras()
    x, w, a, b, r = (t.double() for t in (first, *rest))
    want = x @ w + r + (x @ a) @ b
    for way in (PLANNED.forward, torch.ops.graphene.planned_reference):
        torch.testing.assert_close(way(first, rest, plans).double(), want, rtol=1e-2, atol=1e-2)


def test_wrong_arguments() -> None:
    x, rest, plans = arguments()
    for wrong, code in (
        ((x[:, 1:], rest, plans), "OP_SHAPE"), ((x[0], rest, plans), "OP_SHAPE"),
        ((x.float(), rest, plans), "OP_DTYPE"),
        ((x, rest[1:], plans), "OP_ARGUMENT"), ((x, rest, []), "OP_ARGUMENT"), ((x, rest, ["{}"]), "PLAN_GRAPH"),
        ((x, rest, ["x"]), "PLAN_GRAPH"), ((x, rest, ['{"graph": 3}']), "PLAN_GRAPH"),
    ):  # fmt: skip
        with pytest.raises(gr.GrapheneError) as error:
            PLANNED.forward(*wrong)
        assert error.value.code == code


def test_a_convolution_is_refused() -> None:
    n, h, c, p, r, k = plan.axes(n=2, h=8, c=16, p=8, r=3, k=16)
    with plan.graph("signal") as g:
        x, f = g.input("X", [n, h, c], gr.fp16), g.input("F", [k, r, c], gr.fp16)
        g.output("Y", plan.dot(plan.window(x, h, p, r, padding=1), f, [r, c]), [n, p, k], gr.fp16)
    x, f = made(2, 8, 16, dtype=torch.float16), made(16, 3, 16, dtype=torch.float16)
    with pytest.raises(gr.VerifyError, match="a result has an axis that no input has") as error:
        PLANNED.forward(x, [f], [g.plan("sm_80").json()])
    assert error.value.code == "PLAN_GRAPH"


def test_flops_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counted:
        PLANNED.forward(*arguments())
    assert counted.get_total_flops() == 2 * 10 * 32 * 48
