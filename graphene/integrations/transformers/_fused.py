"""Functions that rewritten methods call: several modules of a network as one operator, if that is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from transformers.pytorch_utils import Conv1D, apply_chunking_to_forward

from graphene import ops as _ops
from graphene.nn._hooks import altered

ops: Any = _ops

HALF = (torch.float16, torch.bfloat16)
BORDERS = (16, 1024)  # numbers of rows: below, between and above them a part has a way of its own

_is_compiling = torch.compiler.is_compiling


@dataclass
class Rules:
    """The choice of a way. ``everything``: Graphene's operators whenever they take the arguments, on CPU tensors too.

    ``measured``: (kind, sizes...) -> the ways for few, for more and for many rows.
    """

    everything: bool = False
    measured: dict[tuple[Any, ...], tuple[str, ...]] = field(default_factory=dict)

    def way(self, key: tuple[Any, ...], rows: int) -> str:
        """One of "graphene", "torch", "joined", "epilogue" (PyTorch's product with the activation in it), "two"."""
        if self.everything:
            return "graphene"
        ways = self.measured.get(key)
        if ways is None:
            return UNMEASURED[key[0]]
        return ways[(rows >= BORDERS[0]) + (rows >= BORDERS[1])]


# On an H200, fp16: see docs/huggingface.md.
UNMEASURED = {
    "norm": "graphene",
    "add_norm": "graphene",
    "linear_act": "torch",
    "gated": "torch",
    "linears": "torch",
    "act_mul": "torch",
    "rotary": "graphene",
}


def epsilon(norm: Any) -> float:
    """The norm's epsilon, under any of its names."""
    eps = getattr(norm, "variance_epsilon", None)
    return float(norm.eps if eps is None else eps)


@dataclass
class Joined:
    """Linear layers whose parameters are parts of one weight and one bias, which share every change."""

    key: tuple[Any, ...]
    weight: Any  # None once a parameter has left
    bias: Any
    columns: list[int]
    modules: tuple[Any, ...]
    parameters: list[tuple[Any, Any, int]]  # (module, name, address); 0 for a bias that is none, where others have one

    def serves(self, modules: tuple[Any, ...]) -> bool:
        """Whether these are the layers that were joined: one of them may have been replaced, by an adapter for one."""
        return len(modules) == len(self.modules) and all(a is b for a, b in zip(modules, self.modules, strict=True))

    def holds(self) -> bool:
        """Whether the parameters still lie there; if not, the memory is released."""
        if self.weight is None:
            return False
        try:
            for module, name, address in self.parameters:
                parameter = module._parameters.get(name)  # the way of attributes takes ten times as long
                parameter = getattr(module, name) if parameter is None else parameter
                if (0 if parameter is None else parameter.data_ptr()) != address:
                    break
            else:
                return True
        except RuntimeError:  # torch.func passes tensors without an address; the layers' own stay where they are
            return False
        self.weight = self.bias = None
        return False

    def part(self) -> None:
        """Gives every parameter memory of its own again."""
        for module, name, address in self.parameters:
            parameter = getattr(module, name)
            if parameter is not None and parameter.data_ptr() == address:
                parameter.data = parameter.data.clone()


def join(modules: tuple[Any, ...], key: tuple[Any, ...]) -> Joined | None:
    """Moves the parameters of linear layers next to each other. A bias that some have is 0 for the others.

    None if they differ in more than their outputs, or if there is no memory to hold them twice meanwhile.
    """
    weights, biases = [m.weight for m in modules], [m.bias for m in modules]
    if any(type(m) is not torch.nn.Linear or "forward" in m.__dict__ for m in modules):
        return None
    given = [b for b in biases if b is not None]
    if len({id(p) for p in (*weights, *given)}) != len(weights) + len(given):
        return None
    first = weights[0]
    if any(p.dtype != first.dtype or p.device != first.device or p.is_meta for p in (*weights, *given)):
        return None
    if any(type(p.data) is not torch.Tensor for p in (*weights, *given)):  # e.g. spread over devices, quantized
        return None
    try:
        made = {"weight": torch.cat([w.detach() for w in weights])}
        if given:
            zeros = [first.new_zeros(w.shape[0]) if b is None else b for w, b in zip(weights, biases, strict=True)]
            made["bias"] = torch.cat([b.detach() for b in zeros])
    except torch.OutOfMemoryError:  # both are there for a moment
        return None
    columns, parameters, start = [w.shape[0] for w in weights], [], 0
    for module, rows in zip(modules, columns, strict=True):
        for name, whole in made.items():
            parameter = getattr(module, name)
            if parameter is not None:
                parameter.data = whole[start : start + rows]
            parameters.append((module, name, 0 if parameter is None else parameter.data_ptr()))
        start += rows
    return Joined(key, made["weight"], made.get("bias"), columns, modules, parameters)


class Helpers:
    """The functions by which rewritten methods call their modules."""

    def __init__(self, rules: Rules, norms: dict[type, str], activations: Callable[[Any], str | None]) -> None:
        self.rules = rules
        self.norms = norms  # class -> "layer" or "rms"
        self.activation = activations
        self.joined: dict[int, Joined] = {}  # by the id of the first of the linear layers

    def takes(self, x: Any, *others: Any) -> bool:
        """Whether tensors may go to an operator: one half precision, no autocast, no torch.jit.trace, on a GPU."""
        dtype = x.dtype
        if dtype not in HALF or not (x.is_cuda or self.rules.everything):
            return False
        if any(o is not None and o.dtype != dtype for o in others):
            return False
        return not torch.is_autocast_enabled(x.device.type) and not torch.jit.is_tracing()

    @property
    def left_to_the_compiler(self) -> bool:
        """Whether torch.compile reads the call, which makes one kernel of what is computed element by element."""
        return _is_compiling() and not self.rules.everything

    def norm(self, norm: Any, x: Any) -> Any:
        """The result of a norm by itself; None if the module must be called."""
        kind = self.norms.get(type(norm))  # none where its class changed since, by a parametrization for one
        weight, bias = norm.weight, getattr(norm, "bias", None)
        if kind is None or self.left_to_the_compiler or not self.takes(x, weight, bias):
            return None
        width = x.shape[-1]
        if kind == "rms1" and torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            return None
        if self.rules.way(("norm", width), x.numel() // width) != "graphene":
            return None
        if kind == "layer":
            return ops.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)
        return ops.rms_norm(x, (width,), weight, epsilon(norm), weight_offset=OFFSETS[kind])

    def add_norm(self, norm: Any, a: Any, b: Any) -> Any:
        """``norm(a + b)``."""
        if not self.adds(norm, a, b):
            return norm(a + b)
        if self.norms[type(norm)] == "layer":
            return ops.layer_norm(a, norm.normalized_shape, norm.weight, norm.bias, norm.eps, residual=b)
        offset = OFFSETS[self.norms[type(norm)]]
        return ops.rms_norm(a, a.shape[-1:], norm.weight, epsilon(norm), residual=b, weight_offset=offset)

    def add_norm_sum(self, norm: Any, a: Any, b: Any) -> tuple[Any, Any]:
        """``a + b`` and its norm."""
        if not self.adds(norm, a, b):
            total = a + b
            return total, norm(total)
        if self.norms[type(norm)] == "layer":
            normed, total = ops.layer_norm(
                a, norm.normalized_shape, norm.weight, norm.bias, norm.eps, residual=b, return_sum=True
            )
        else:
            offset = OFFSETS[self.norms[type(norm)]]
            normed, total = ops.rms_norm(
                a, a.shape[-1:], norm.weight, epsilon(norm), residual=b, return_sum=True, weight_offset=offset
            )
        return total, normed

    def adds(self, norm: Any, a: Any, b: Any) -> bool:
        """Whether the sum and its norm are one operator."""
        if type(norm) not in self.norms or altered(norm) or a.shape != b.shape or self.left_to_the_compiler:
            return False
        wants = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad or norm.weight.requires_grad)
        if self.norms[type(norm)] == "rms1" and wants:
            return False
        if not self.takes(a, b, norm.weight, getattr(norm, "bias", None)):
            return False
        width = a.shape[-1]
        return self.rules.way(("add_norm", width), a.numel() // width) == "graphene"

    def linear_act(self, linear: Any, act: Any, x: Any) -> Any:
        """``act(linear(x))``."""
        if type(linear) not in LINEAR or altered(linear, act):
            return act(linear(x))
        weight, bias = linear.weight, linear.bias
        name = self.activation(act)
        wants_gradient = torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad)
        if name is None or not self.takes(x, weight, bias) or (wants_gradient and not self.rules.everything):
            return act(linear(x))
        turned = weight.t() if type(linear) is torch.nn.Linear else weight
        width = x.shape[-1]
        way = self.rules.way(("linear_act", width, turned.shape[1], name), x.numel() // width)
        if way == "graphene":
            return ops.matmul(x, turned, bias, name)
        if way == "two":
            return ops.gated(linear(x), None, name)
        if way == "epilogue" and bias is not None:
            y = epilogue(x.reshape(-1, width), turned, bias, name)
            return y.view(*x.shape[:-1], y.shape[-1])
        return act(linear(x))

    def linears(self, modules: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        """``m(x)`` for linear layers, by one product if their weights lie one after the other."""
        joined = self.joined.get(id(modules[0]))
        if joined is None or torch.compiler.is_compiling() or altered(*modules):
            return tuple(m(x) for m in modules)
        if not joined.serves(modules) or not joined.holds():
            return tuple(m(x) for m in modules)
        weight, bias = joined.weight, joined.bias
        wants_gradient = torch.is_grad_enabled() and (modules[0].weight.requires_grad or x.requires_grad)
        if wants_gradient or not self.takes(x, weight):
            return tuple(m(x) for m in modules)
        width = x.shape[-1]
        if self.rules.way(joined.key, x.numel() // width) == "torch":
            return tuple(m(x) for m in modules)
        parts: tuple[Any, ...] = F.linear(x, weight, bias).split(joined.columns, -1)
        return parts

    def moved(self, module: Any) -> None:
        """Forgets joined weights that their layers have left, for example by ``module.to(...)``."""
        for layer in module.children():
            joined = self.joined.get(id(layer))
            if joined is not None:
                joined.holds()

    @staticmethod
    def chunked(f: Any, size: int, dim: int, *tensors: Any) -> Any:
        """``apply_chunking_to_forward`` of transformers."""
        return apply_chunking_to_forward(f, size, dim, *tensors) if size else f(*tensors)

    def gated(self, gate: Any, act: Any, up: Any, x: Any) -> Any:
        """``act(gate(x)) * up(x)``."""
        name = self.activation(act)
        if name is None or altered(act) or not self.takes(x) or self.left_to_the_compiler:
            return act(gate(x)) * up(x)
        a, b = self.linears((gate, up), x)
        width = a.shape[-1]
        if not self.takes(a, b) or self.rules.way(("gated", width, name), a.numel() // width) != "graphene":
            return act(a) * b
        return ops.gated(a, b, name)

    def act_mul(self, act: Any, a: Any, b: Any) -> Any:
        """``act(a) * b``."""
        name = self.activation(act)
        if name is None or altered(act) or not torch.is_tensor(a) or not torch.is_tensor(b) or a.shape != b.shape:
            return act(a) * b
        if not self.takes(a, b) or self.left_to_the_compiler:
            return act(a) * b
        width = a.shape[-1]
        way = self.rules.way(("act_mul", name), a.numel() // width)
        return ops.gated(a, b, name) if way == "graphene" else act(a) * b

    def rotary(
        self, function: Any, pairs: str, heads_at: int, norms: Any, extra: Any, named: Any, q: Any, k: Any, cos: Any,
        sin: Any,
    ) -> Any:  # fmt: skip
        """``function(q_norm(q), k_norm(k), cos, sin)``, which turns pairs of elements; norms may be left out.

        ``norms``: the norms of q and k, and for each whether the model normalises before it exchanges dimensions 1, 2.
        """
        fits = self.turns(heads_at, q, k, cos, sin)
        together = fits and norms is not None and self.normalises(norms, q, k)
        if norms is not None and not together:
            q, k = (
                n(x.transpose(1, 2)).transpose(1, 2) if moved else n(x)
                for n, moved, x in zip(norms[:2], norms[2], (q, k), strict=True)
            )
        seq = q.shape[3 - heads_at] if fits else 0
        if not fits or self.rules.way(("rotary", q.shape[-1], pairs, together), q.shape[0] * seq) != "graphene":
            if together:
                q, k = (
                    n(x.transpose(1, 2)).transpose(1, 2) if moved else n(x)
                    for n, moved, x in zip(norms[:2], norms[2], (q, k), strict=True)
                )
            return function(q, k, cos, sin, *extra, **named)
        if heads_at == 1:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        more: tuple[Any, ...] = (None, None, 0.0, 0.0)
        if together:
            kind = self.norms[type(norms[0])]
            more = (norms[0].weight, norms[1].weight, epsilon(norms[0]), OFFSETS[kind])
        made = ops.rotary(q, k, cos, sin, *more, pairs == "neighbours")
        return tuple(x.transpose(1, 2) for x in made) if heads_at == 1 else made

    def turns(self, heads_at: int, q: Any, k: Any, cos: Any, sin: Any) -> bool:
        """Whether the operator takes q, k, cos and sin."""
        if self.left_to_the_compiler or not all(map(torch.is_tensor, (q, k, cos, sin))):
            return False
        if q.dim() != 4 or k.dim() != 4 or cos.dim() != 3 or not self.takes(q, k):
            return False
        if cos.dtype != sin.dtype or cos.dtype not in (q.dtype, torch.float32) or cos.device != q.device:
            return False
        if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
            return False
        seq = 3 - heads_at
        fits = cos.shape == sin.shape and cos.shape[1:] == (q.shape[seq], q.shape[3])
        fits = fits and cos.shape[0] in (1, q.shape[0]) and q.shape[0] == k.shape[0]
        return bool(fits and q.shape[seq] == k.shape[seq] and q.shape[3] == k.shape[3])

    def normalises(self, norms: Any, q: Any, k: Any) -> bool:
        """Whether the operator takes the norms of q and k. With a gradient, they have operators of their own."""
        a, b = norms[:2]
        kind = self.norms.get(type(a))
        if kind not in OFFSETS or self.norms.get(type(b)) != kind or altered(a, b) or epsilon(a) != epsilon(b):
            return False
        if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, a.weight, b.weight)):
            return False
        return self.takes(q, a.weight, b.weight) and a.weight.shape == b.weight.shape == q.shape[-1:]


OFFSETS = {"rms": 0.0, "rms1": 1.0}  # what is added to the weight, by the kind of a norm


def epilogue(x: Any, turned: Any, bias: Any, name: str) -> Any:
    """PyTorch's product with an activation in it: x (M, K) @ turned (K, N); name "gelu_tanh" or "relu"."""
    return torch._addmm_activation(bias, x, turned, use_gelu=name == "gelu_tanh")


LINEAR = (torch.nn.Linear, Conv1D)

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
