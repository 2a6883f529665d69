"""Functions of a register as activations: what one computes decides, not which object it is; compiled graphs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.kernels import GemmConfig  # noqa: E402
from graphene.kernels.traced import Traced, trace  # noqa: E402
from graphene.ops.fused_mlp import FUSED_MLP  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.CpuWarning)
        torch.manual_seed(1)
        torch._dynamo.reset()
        yield


X = torch.randn(6, 16).half()
WEIGHTS = [torch.randn(24, 16).half() / 4, torch.randn(8, 24).half() / 5]


def scaled(factor: float) -> Any:
    """Of X and WEIGHTS, with a factor behind the relu."""
    hidden = (torch.relu(X.double() @ WEIGHTS[0].double().T) * factor).half()
    return (hidden.double() @ WEIGHTS[1].double().T).half()


def close(got: Any, ref: Any) -> None:
    assert (got.double() - ref.double()).abs().max() <= 2**-9 * ref.double().abs().max()


class Scaled:
    """A function with a state."""

    factor = 1.0

    def __call__(self, x: Any) -> Any:
        return gr.max(x, 0) * self.factor


def test_a_function_that_changes_is_another_one() -> None:
    """Its closure, or its state: what it computes now is what a call computes."""
    state, factor = Scaled(), 1.0

    def closure(x: Any) -> Any:
        return gr.max(x, 0) * factor

    for factor in (1.0, 3.0, 1.0, -2.0):
        state.factor = factor
        for function in (state, closure, lambda x, f=factor: gr.max(x, 0) * f):
            for _ in range(2):
                close(ops.fused_mlp(X, WEIGHTS, None, function), scaled(factor))
            close(ops.fused_mlp(X, WEIGHTS, None, [function]), scaled(factor))


def test_equal_functions_share_a_kernel() -> None:
    ops.fused_mlp(X, WEIGHTS, None, lambda x: gr.max(x, 0) * 7)
    calls = FUSED_MLP.core.configured
    for _ in range(5):
        ops.fused_mlp(X, WEIGHTS, None, lambda x: gr.max(x, 0) * 7)
    assert FUSED_MLP.core.configured == calls


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: 2,
        lambda x: gr.where((x > 0) & (x <= 3), x, 0.1 * x),
        lambda x: gr.max(x, -0.0) - gr.min(x, 0.5),
        lambda x: gr.fma(x, x, gr.exp2(x, ftz=True)) / (1 + gr.abs(x)),
        lambda x: gr.cast(gr.cast(x, gr.fp16), gr.fp32) * gr.rcp(2 + gr.tanh(x)),
        lambda x: gr.erf(x) + gr.sin(x) - gr.floor(x) * gr.sqrt(gr.abs(x)),
    ],
)
def test_a_function_survives_its_text(function: Callable[[Any], Any]) -> None:
    """Its steps give the expression, again; and of arrays the same numbers as of registers."""
    traced = trace(function)
    assert trace(Traced(traced.text)) == traced
    assert trace(traced.__call__) == traced
    weights = [torch.eye(16).half(), torch.eye(16).half()]
    got = ops.fused_mlp(X, weights, None, function, function)
    if traced.has_formula:
        want = torch.from_numpy(traced.on_arrays(X.double().numpy())).half()
        want = torch.from_numpy(traced.on_arrays(want.double().numpy()))
        assert (got.double() - want).abs().max() <= 2e-3 * want.abs().max()
    else:
        assert ".fp16" in traced.text


def test_what_tells_functions_apart() -> None:
    texts = [trace(f).text for f in (lambda x: x * 0.0, lambda x: x * -0.0, lambda x: x * 0, lambda x: x * 1e-40)]
    assert len(set(texts)) == 4
    assert trace(lambda x: gr.max(x, 0)).text == '["x",0,["max",0,1]]'
    assert repr(trace(lambda x: gr.max(x, -gr.inf))(1.0)) == "max(1.0, -inf)"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (torch.relu, "TypeError: relu()"),
        (lambda x, y: x + y, "missing 1 required positional argument: 'y'"),
        (lambda x: (x, x), "TypeError: it returned tuple, not registers or a number"),
        (lambda x: x * torch.ones(1), "TypeError: mul: an operand must be registers, an expression or a number"),
        (lambda x: x + gr.tensor("t", gr.Layout(1), gr.fp32, gr.RF), "which is not its argument"),
    ],
)
def test_what_is_no_function_of_a_register(function: Any, why: str) -> None:
    with pytest.raises(gr.LaunchError, match="fused_mlp: an activation is not a function of one register") as e:
        ops.fused_mlp(X, WEIGHTS, None, function)
    assert e.value.code == "OP_ARGUMENT"
    assert why in str(e.value)


@pytest.mark.parametrize(
    "text", ["[", "[]", '["y"]', '["x",["max",0,1]]', '["x",["power",0,0]]', '["x",["cast.no",0]]']
)
def test_an_operator_takes_no_text_that_says_nothing(text: str) -> None:
    with pytest.raises(gr.LaunchError, match="no activation is called") as e:
        torch.ops.graphene.fused_mlp_forward(X, WEIGHTS, [], [False] * 2, [text, "none"])
    assert e.value.code == "OP_ARGUMENT"


def test_a_product_is_kept_by_what_its_activation_computes() -> None:
    state = Scaled()
    first = GemmConfig(activation=state)
    assert first == GemmConfig(activation=lambda x: gr.max(x, 0) * 1.0)
    state.factor = 2.0
    assert GemmConfig(activation=state) != first


# Compiled graphs.


def graphs() -> tuple[list[str], Callable[..., Any]]:
    """A backend of torch.compile that notes which operators its graphs call."""
    called: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        called.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    return called, backend


def test_compiled_graphs_hold_the_fused_operator() -> None:
    called, backend = graphs()
    torch.compile(lambda x: ops.fused_mlp(x, WEIGHTS), backend=backend, fullgraph=True)(X)
    assert called == ["graphene.fused_mlp_forward.default"]
    called.clear()
    net = gr.nn.FusedMLP(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).half()
    assert torch.equal(torch.compile(net, backend=backend, fullgraph=True)(X), net(X))
    assert called == ["graphene.fused_mlp.default"]


def test_compiled_functions_of_registers_change_too() -> None:
    """What one computes is found by Python, beside the graph."""
    _, backend = graphs()
    state = Scaled()
    compiled = torch.compile(lambda x, f: ops.fused_mlp(x, WEIGHTS, None, lambda v: gr.max(v, 0) * f), backend=backend)
    other = torch.compile(lambda x: ops.fused_mlp(x, WEIGHTS, None, state), backend=backend)
    for factor in (1.0, 3.0, 2.0, 1.0):
        state.factor = factor
        close(compiled(X, factor), scaled(factor))
        close(other(X), scaled(factor))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="what a function of registers computes is found by"):
        torch.compile(lambda x: ops.fused_mlp(x, WEIGHTS, None, state), backend=backend, fullgraph=True)(X)


def test_the_functions_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs/fused.md").read_text()
    [code] = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "lambda" in b]
    made: dict[str, Any] = {}
    exec(code, made)
    x, (w, v) = made["x"].double(), made["weights"]
    hidden = nn.functional.leaky_relu(x @ w.double().T, made["slope"]).half()
    close(made["y"], hidden.double() @ v.double().T)
    hidden = torch.relu(x @ w.double().T).square().half()
    close(made["z"], torch.exp2(hidden.double() @ v.double().T))
    made["slope"] = 0.2
    hidden = nn.functional.leaky_relu(x @ w.double().T, 0.2).half()
    exec(next(line for line in code.splitlines() if line.startswith("y =")), made)
    close(made["y"], hidden.double() @ v.double().T)


def test_shapes_without_data() -> None:
    """Tensors on the device meta: as the other operators."""
    x, weights = X.to("meta"), [w.to("meta") for w in WEIGHTS]
    y = ops.fused_mlp(x, weights)
    assert (y.shape, y.dtype, y.device.type) == ((6, 8), torch.float16, "meta")
    with torch.device("meta"):
        net = gr.nn.FusedMLP(nn.Linear(16, 8))
        assert net(torch.randn(3, 16)).shape == (3, 8)
        with torch.no_grad():
            assert net(torch.randn(3, 16)).shape == (3, 8)
