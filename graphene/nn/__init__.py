"""Modules of PyTorch on Graphene's kernels: parameters, state dicts and results are torch.nn's, with fewer launches.

    net = graphene.nn.FusedMLP(model.net)      # from an nn.Sequential, whose parameters it shares
    cell = graphene.nn.LSTMCell(128, 256, device="cuda", dtype=torch.float16)

They can be trained, compiled and captured by CUDA graphs, like their operators in `graphene.ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

from graphene import _core
from graphene.nn._hooks import unlike
from graphene.ops import fused_mlp, lstm_cell, rnn_cell
from graphene.ops.core.checks import check_tensors
from graphene.ops.core.torch import Tensor, fail, torch

__all__ = ["FusedMLP", "LSTMCell", "RNNCell"]


_nn = torch.nn
_NAMES = {_nn.ReLU: "relu", _nn.SiLU: "silu", _nn.Tanh: "tanh", _nn.Sigmoid: "sigmoid"}
_NOTHING = (_nn.Identity, _nn.Dropout)


def _activation(module: Any) -> str | None:
    """The name of the activation that a module computes, or None if it has no name."""
    if type(module) is _nn.GELU:
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return _NAMES.get(type(module))


def _refuse(module: Any, why: str, fix: str) -> NoReturn:
    _core.fail("OP_ARGUMENT", f"FusedMLP: {why}", [f"got:  {module!r}"], fix)


class _Misfit(NamedTuple):
    module: Any
    why: str
    fix: str


class _Layers(NamedTuple):
    weights: list[Tensor]
    biases: list[Tensor]
    activations: list[str | None]


class FusedMLP(torch.nn.Sequential):  # type: ignore[misc]
    """torch.nn.Sequential of Linear layers and activations, computed by one kernel (`graphene.ops.fused_mlp`).

    ``FusedMLP(sequential)`` or ``FusedMLP(Linear(8, 64), ReLU(), Linear(64, 1))`` keeps the modules and does not copy
    them, so parameters are shared and the state dict has the sequential's keys. Activations are ReLU, GELU (both
    forms), SiLU, Tanh and Sigmoid, at most one after each layer. Dropout does nothing in eval(). If it drops, the
    modules run one after the other. They also do so if a module has changed since: by hooks (pruning, the older
    weight_norm), by a parametrization, by a forward of its own, by a place in the list that does not fit.

    x is (..., in), the result (..., out). Raises LaunchError OP_ARGUMENT for other modules, such as subclasses, whose
    forward is unknown, and for modules with hooks, which would not be called.
    """

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], torch.nn.Sequential):
            [given] = modules
            if type(given) not in (torch.nn.Sequential, FusedMLP):
                _refuse(given, "a subclass of Sequential", "pass its modules, if its forward calls one after the other")
            if (why := unlike(given)) is not None:
                _refuse(given, why, "pass its modules, or take that away")
            modules = tuple(given)
        super().__init__(*modules)
        if isinstance(found := self._layers(), _Misfit):
            _refuse(*found)

    @classmethod
    def of_widths(
        cls,
        widths: Sequence[int],
        activation: Any = None,
        out_activation: Any = None,
        bias: bool = True,
        **factory: Any,
    ) -> FusedMLP:
        """Layers of these widths, input first, with a module of `activation` (default ReLU) after all but the last.

        ``activation``, ``out_activation``: classes of modules, such as torch.nn.GELU; ``factory``: device and dtype.
        """
        modules: list[Any] = []
        for i, (n, m) in enumerate(pairwise(widths)):
            modules.append(torch.nn.Linear(n, m, bias=bias, **factory))
            act = (activation or torch.nn.ReLU) if i < len(widths) - 2 else out_activation
            modules += [] if act is None else [act()]
        return cls(*modules)

    def _layers(self) -> _Layers | _Misfit:
        """The modules in their present state, or one that does not fit."""
        weights, biases, activations = layers = _Layers([], [], [])
        for module in self._modules.values():
            if (why := unlike(module)) is not None:
                return _Misfit(module, why, "take that away, or keep the Sequential")
            kind = type(module)
            if kind is _nn.Linear:
                weight, bias = map(module._parameters.get, ("weight", "bias"))  # quicker than attributes
                weights.append(module.weight if weight is None else weight)
                biases.append(module.bias if bias is None else bias)
                activations.append(None)
            elif kind in _NOTHING:
                continue
            elif (name := _activation(module)) is not None and weights and activations[-1] is None:
                activations[-1] = name
            else:
                return _Misfit(module, "a module that is neither Linear nor one activation behind it",
                               "pass Linear, ReLU, GELU, SiLU, Tanh, Sigmoid")  # fmt: skip
        return layers if weights else _Misfit(self, "there is no Linear", "pass at least one")

    def forward(self, input: Tensor) -> Tensor:
        """The last layer's result."""
        found = self._layers()
        if isinstance(found, _Misfit) or any(type(m) is torch.nn.Dropout and m.training and m.p > 0 for m in self):
            return super().forward(input)
        weights, biases, activations = found
        return fused_mlp(input, weights, biases, activations[:-1], activations[-1])


def _states(name: str, input: Any, states: dict[str, Any]) -> list[Tensor]:
    """Input and states as matrices. Raises OP_ARGUMENT, OP_SHAPE."""
    check_tensors(name, {"input": input, **states})
    if input.dim() not in (1, 2):
        fail("OP_SHAPE", f"{name}: argument 'input' is neither a row nor a matrix",
             ["want: 1 or 2 dimensions", f"got:  {input.dim()}"], "pass (batch, size) or (size,)")  # fmt: skip
    for what, t in states.items():
        if t.dim() != input.dim():
            fail("OP_SHAPE", f"{name}: argument '{what}' has other dimensions than the input",
                 [f"want: {input.dim()} of them", f"got:  {t.dim()}"],
                 "pass a state for each row of the input")  # fmt: skip
    return [t.unsqueeze(0) if t.dim() == 1 else t for t in (input, *states.values())]


def _zeros(name: str, input: Any, size: int) -> Tensor:
    check_tensors(name, {"input": input})
    return input.new_zeros(*input.shape[:-1], size)


class LSTMCell(torch.nn.LSTMCell):  # type: ignore[misc]
    """torch.nn.LSTMCell with its step in one kernel, and the same arguments, parameters, state dict and results.

    input is (batch, in) or (in,), states are (batch, hidden) or (hidden,). A kernel computes fp16 and bf16, PyTorch's
    operators other dtypes.
    """

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """(h, c) of the next step; `hx` is (h, c) of this one, by default zeros."""
        if hx is None:
            hx = (_zeros("LSTMCell", input, self.hidden_size),) * 2
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            got = f"{len(hx)} of them" if isinstance(hx, (tuple, list)) else type(hx).__name__
            fail("OP_ARGUMENT", "LSTMCell: argument 'hx' is not a pair", ["want: (h, c)", f"got:  {got}"],
                 "pass both states, or none")  # fmt: skip
        x, h, c = _states("LSTMCell", input, {"hx[0]": hx[0], "hx[1]": hx[1]})
        h_new, c_new = lstm_cell(x, h, c, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return (h_new[0], c_new[0]) if input.dim() == 1 else (h_new, c_new)


class RNNCell(torch.nn.RNNCell):  # type: ignore[misc]
    """torch.nn.RNNCell, the paper's cell, in one kernel, with the same arguments, parameters, state dict and results.

    input is (batch, in) or (in,), the state is (batch, hidden) or (hidden,). A kernel computes fp16 and bf16, PyTorch's
    operators other dtypes.
    """

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state; `hx` is this one, by default zeros."""
        if hx is None:
            hx = _zeros("RNNCell", input, self.hidden_size)
        x, h = _states("RNNCell", input, {"hx": hx})
        new = rnn_cell(x, h, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, self.nonlinearity)
        return new[0] if input.dim() == 1 else new
