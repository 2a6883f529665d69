"""Perceptrons and recurrent cells on a GPU: any sizes against float64, beside PyTorch's errors; compiled, captured."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402

pytestmark = pytest.mark.gpu
nn, F = torch.nn, torch.nn.functional
ACTIVATIONS = {None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}


def r(*shape: int, dtype: Any = torch.float16, scale: float = 1.0) -> Any:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def perceptron(widths: list[int], dtype: Any) -> tuple[list[Any], list[Any]]:
    weights = [r(n, k, dtype=dtype, scale=1.4 / k**0.5) for n, k in zip(widths[1:], widths, strict=False)]
    return weights, [r(n, dtype=dtype, scale=0.3) for n in widths[1:]]


def layer_by_layer(x: Any, weights: Any, biases: Any, acts: list[Any], wide: bool) -> Any:
    """Rounded to the dtype after each layer; `wide`: in float64 and never rounded.

    A reference that is rounded as often would be met exactly by most rows, and missed by those where one sum lies near
    the middle of two numbers: chance would decide who is closer to it.
    """
    for w, b, a in zip(weights, biases, acts, strict=True):
        t = [x, w, b] if not wide else [None if y is None else y.double() for y in (x, w, b)]
        x = ACTIVATIONS[a](F.linear(*t))
    return x


def error(y: Any, ref: Any) -> float:
    return float((y.double() - ref.double()).norm())


def as_exact_as_torch(got: Any, torchs: Any, ref: Any) -> None:
    assert got.shape == ref.shape
    assert error(got, ref) <= 1.5 * error(torchs, ref) + 1e-4 * float(ref.double().norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("m", [1, 100, 4096, 8192, 16384, 65536])
def test_twenty_layers(m: int, dtype: Any) -> None:
    """Layers amplify errors along few directions, so those of few rows say little: several networks are summed up."""
    ours, torchs, size = 0.0, 0.0, 0.0
    for _ in range(max(2, 64 // m)):
        weights, biases = perceptron([128] * 21, dtype)
        x, acts = r(m, 128, dtype=dtype), ["relu"] * 20
        ref = layer_by_layer(x, weights, biases, acts, True)
        ours += error(ops.fused_mlp(x, weights, biases, "relu", "relu"), ref) ** 2
        torchs += error(layer_by_layer(x, weights, biases, acts, False), ref) ** 2
        size += float(ref.norm()) ** 2
    assert ours**0.5 <= 1.5 * torchs**0.5 + 1e-4 * size**0.5


@pytest.mark.parametrize("seed", range(40))
def test_perceptrons_of_any_form(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice([torch.float16, torch.bfloat16])
    hidden = rng.choice([16, 24, 33, 64, 100, 128, 129, 192, 256])
    widths = [rng.choice([hidden, rng.randint(1, 900)])]
    widths += [rng.choice([hidden] * 4 + [rng.randint(1, 256)]) for _ in range(rng.randint(0, 7))]
    widths += [rng.choice([hidden, rng.randint(1, 700)])]
    weights, biases = perceptron(widths, dtype)
    biases = [None if rng.random() < 0.2 else b for b in biases]
    acts = [rng.choice(list(ACTIVATIONS)) for _ in weights]
    x = r(rng.choice([1, 17, 1000, 4000, 9000, 20000]), widths[0] + rng.choice([0, 0, 8, 3]), dtype=dtype)[
        :, : widths[0]
    ]
    got = ops.fused_mlp(x, weights, biases, acts[:-1], acts[-1])
    ref = layer_by_layer(x, weights, biases, acts, True)
    as_exact_as_torch(got, layer_by_layer(x, weights, biases, acts, False), ref)
    assert torch.equal(got, ops.fused_mlp(x, weights, biases, acts[:-1], acts[-1]))


@pytest.mark.parametrize("seed", range(30))
def test_cells_of_any_size(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice([torch.float16, torch.bfloat16])
    batch, size, hidden = (rng.choice([rng.randint(1, 40), 64 * rng.randint(1, 12), 2048]) for _ in range(3))
    for ours, theirs in ((gr.nn.LSTMCell, nn.LSTMCell), (gr.nn.RNNCell, nn.RNNCell)):
        bias = rng.random() < 0.8
        cell, same = (f(size, hidden, bias, device="cuda", dtype=dtype) for f in (ours, theirs))
        same.load_state_dict(cell.state_dict())
        exact = theirs(size, hidden, bias, device="cuda", dtype=torch.float64)
        exact.load_state_dict({n: p.double() for n, p in cell.state_dict().items()})
        x, h, c = (r(batch, n, dtype=dtype) for n in (size, hidden, hidden))
        hx, wide = ((h, c), (h.double(), c.double())) if theirs is nn.LSTMCell else (h, h.double())
        with torch.no_grad():
            got, beside, ref = cell(x, hx), same(x, hx), exact(x.double(), wide)
        for t in zip(*([y] if torch.is_tensor(y) else y for y in (got, beside, ref)), strict=True):
            as_exact_as_torch(*t)


def test_the_papers_cell() -> None:
    x, h, w, u, b = r(2048, 1024), r(2048, 1024), r(2048, 1024, scale=0.03), r(2048, 1024, scale=0.03), r(2048)
    ref = (x.double() @ w.double().T + h.double() @ u.double().T + b.double()).relu()
    as_exact_as_torch(ops.rnn_cell(x, h, w, u, b, None, "relu"), (x @ w.T + h @ u.T + b).relu(), ref)


def test_gradients_compiled_and_captured() -> None:
    net = gr.nn.FusedMLP.of_widths([40, 64, 64, 8], nn.SiLU, device="cuda", dtype=torch.float16)
    cell = gr.nn.LSTMCell(8, 24, device="cuda", dtype=torch.float16)

    def step(x: Any, h: Any, c: Any) -> Any:
        h, c = cell(net(x), (h, c))
        return h * 2 + c

    args = r(100, 40), r(100, 24), r(100, 24)
    eager = step(*args)
    eager.sum().backward()
    grads = [p.grad.clone() for p in [*net.parameters(), *cell.parameters()]]
    net.zero_grad(), cell.zero_grad()
    compiled = torch.compile(step, fullgraph=True)
    got = compiled(*args)
    got.sum().backward()
    assert (got - eager).abs().max() <= 2e-3
    for p, g in zip([*net.parameters(), *cell.parameters()], grads, strict=True):
        assert (p.grad - g).norm() <= 2e-2 * g.norm() + 1e-3
    with torch.no_grad():
        step(*args)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step(*args)
        for t in args:
            t.normal_()
        graph.replay()
        assert torch.equal(out, step(*args))
