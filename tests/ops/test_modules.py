"""graphene.nn: modules that look alike and compute something else, and states that do not fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pruning = pytest.importorskip("torch.nn.utils.prune", reason="torch is not installed")

import graphene as gr  # noqa: E402
from graphene import ops  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        yield


def sequential(act: Any = None) -> Any:
    return nn.Sequential(nn.Linear(16, 32), act or nn.ReLU(), nn.Linear(32, 4)).half()


class QuickGELU(nn.GELU):
    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(1.702 * x)


class Scale(nn.Identity):
    def forward(self, x: Any) -> Any:
        return x * 3


class Doubled(nn.Linear):
    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


class Sum(nn.Sequential):
    def forward(self, x: Any) -> Any:
        return super().forward(x) + 1


class Noise(nn.Dropout):
    def forward(self, x: Any) -> Any:
        return x + 1


def prune(s: Any) -> None:
    pruning.l1_unstructured(s[0], "weight", 0.5)


def patch(s: Any) -> None:
    linear = s[0]
    linear.forward = lambda x: nn.functional.linear(x, linear.weight * 2, linear.bias)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "pruned": prune,
    "weight_norm": lambda s: nn.utils.weight_norm(s[0]),
    "parametrized": lambda s: nn.utils.parametrizations.weight_norm(s[0]),
    "hook": lambda s: s[1].register_forward_hook(lambda m, i, o: o * 2),
    "hook before": lambda s: s[2].register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
    "hook of gradients": lambda s: s[1].register_full_backward_hook(lambda m, i, o: None),
    "patched": patch,
}


@pytest.mark.parametrize("change", CHANGES)
def test_modules_that_have_changed_run_themselves(change: str) -> None:
    """Before: refused. Afterwards: their own results, after a step of an optimizer, too."""
    s = sequential()
    fused = gr.nn.FusedMLP(s)
    CHANGES[change](s)
    with pytest.raises(gr.LaunchError) as e:
        gr.nn.FusedMLP(s)
    assert e.value.code == "OP_ARGUMENT"
    x = torch.randn(8, 16).half()
    optimizer = torch.optim.SGD(fused.parameters(), 1.0)
    for _ in range(3):
        y = fused(x)
        assert torch.equal(y, s(x))
        optimizer.zero_grad()
        y.float().pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sequential(QuickGELU()), "neither Linear nor one activation"),
        (lambda: sequential(Scale()), "neither Linear nor one activation"),
        (lambda: sequential(Noise()), "neither Linear nor one activation"),
        (lambda: nn.Sequential(Doubled(16, 4)), "neither Linear nor one activation"),
        (lambda: Sum(nn.Linear(16, 4)), "a subclass of Sequential"),
    ],
)
def test_subclasses_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(gr.LaunchError, match=f"FusedMLP: {message}|FusedMLP: a module that is {message}") as e:
        gr.nn.FusedMLP(make())
    assert e.value.code == "OP_ARGUMENT"


def test_hooks_of_what_is_given_and_of_everything() -> None:
    s = sequential()
    handle = s.register_forward_hook(lambda m, i, o: o + 1)
    with pytest.raises(gr.LaunchError, match="FusedMLP: a module with hooks"):
        gr.nn.FusedMLP(s)
    handle.remove()
    fused, x, seen = gr.nn.FusedMLP(s), torch.randn(8, 16).half(), []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: seen.append(type(m).__name__))
    try:
        fused(x)
    finally:
        handle.remove()
    assert seen == ["Linear", "ReLU", "Linear", "FusedMLP"]
    fused.register_forward_hook(lambda m, i, o: seen.append("called"))  # its own are PyTorch's to call
    assert "fused_mlp" in ops.explain(ops.fused_mlp, x, [m.weight for m in s[::2]], [m.bias for m in s[::2]])
    fused(x)
    assert seen[4:] == ["called"]


def test_weights_that_are_no_parameters() -> None:
    """As torch.func.functional_call puts them there, or an attribute by hand."""
    s, x = sequential(), torch.randn(8, 16).half()
    fused = gr.nn.FusedMLP(s)
    other = {n: p * 2 for n, p in s.state_dict().items()}
    got = torch.func.functional_call(fused, other, (x,))
    assert (got - torch.func.functional_call(s, other, (x,))).abs().max() <= 4e-3 * got.abs().max()
    weight = s[0].weight.detach() * 2
    del s[0].weight
    s[0].weight = weight
    assert (fused(x) - s(x)).abs().max() <= 4e-3 * s(x).abs().max()


def test_a_pruned_cell_is_pruned() -> None:
    cell = gr.nn.LSTMCell(8, 16, dtype=torch.float16)
    pruning.l1_unstructured(cell, "weight_hh", 0.5)
    x, h = torch.randn(3, 8).half(), torch.randn(3, 16).half()
    with torch.no_grad():
        cell.weight_hh_orig.add_(1)
        for got, ref in zip(cell(x, (h, h)), nn.LSTMCell.forward(cell, x, (h, h)), strict=True):
            assert (got - ref).abs().max() <= 4e-3


X, H = torch.zeros(3, 8).half(), torch.zeros(3, 16).half()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((X, (H, None)), "OP_ARGUMENT", "argument 'hx[1]' is not a torch.Tensor"),
        (([1, 2],), "OP_ARGUMENT", "argument 'input' is not a torch.Tensor"),
        (([1, 2], (H, H)), "OP_ARGUMENT", "argument 'input' is not a torch.Tensor"),
        ((X[0], (H[:1], H[:1])), "OP_SHAPE", "argument 'hx[0]' has other dimensions than the input"),
        ((X[:1], (H[0], H[0])), "OP_SHAPE", "argument 'hx[0]' has other dimensions than the input"),
        ((X[:1], (H[:1], H[0])), "OP_SHAPE", "argument 'hx[1]' has other dimensions than the input"),
        ((X[None],), "OP_SHAPE", "argument 'input' is neither a row nor a matrix"),
    ],
)
def test_what_cells_refuse(args: Any, code: str, message: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        gr.nn.LSTMCell(8, 16, dtype=torch.float16)(*args)
    assert e.value.code == code
    assert f"LSTMCell: {message}" in str(e.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X[:1], H[0]), "argument 'hx' has other dimensions than the input"),
        ((X[0], H[:1]), "argument 'hx' has other dimensions than the input"),
        ((X, (H, H)), "argument 'hx' is not a torch.Tensor"),
    ],
)
def test_what_simple_cells_refuse(args: Any, message: str) -> None:
    with pytest.raises(gr.LaunchError) as e:
        gr.nn.RNNCell(8, 16, dtype=torch.float16)(*args)
    assert f"RNNCell: {message}" in str(e.value)
