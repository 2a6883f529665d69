"""What a module of a network is, found by what it computes rather than by its name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from graphene.integrations.transformers._fused import ACTIVATIONS, LINEAR, epsilon

_norms: dict[Any, str | None] = {}
_activations: dict[Any, str | None] = {}


def kind_of(module: Any) -> str | None:
    """One of "norm", "linear", "activation", or None."""
    if type(module) in LINEAR:
        return "linear"
    if norm_of(module) is not None:
        return "norm"
    return None if activation_of(module) is None else "activation"


def norm_of(module: Any) -> str | None:
    """Its kind for a norm over the last dimension with a weight, else None.

    "layer", "rms", or "rms1": that by the root mean square whose factors are 1 + weight.
    """
    cls = getattr(module, "_graphene_original", type(module))
    if cls is torch.nn.LayerNorm:
        return "layer" if len(module.normalized_shape) == 1 and module.weight is not None else None
    if list(module._parameters) != ["weight"] or module._modules or module.weight is None or module._buffers:
        return None
    if module.weight.dim() != 1 or module.weight.is_meta or not isinstance(_eps(module), float):
        return None
    plain = {n: v for n, v in vars(module).items() if isinstance(v, (bool, str)) and n != "training"}
    key = (cls, tuple(sorted(plain.items())))
    if key not in _norms:
        _norms[key] = _rms_norm(module)
    return _norms[key]


def _eps(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _rms_norm(module: Any) -> str | None:
    """The module's formula among ours: tried on random values, with a random weight."""
    generator = torch.Generator().manual_seed(0)
    weight = module.weight
    try:
        module.weight = torch.nn.Parameter(torch.randn(weight.shape, generator=generator))
        x = torch.randn(5, weight.shape[0], generator=generator)
        with torch.no_grad():
            got = module(x)
            for kind, offset in (("rms", 0.0), ("rms1", 1.0)):
                want = F.rms_norm(x, weight.shape, module.weight + offset, epsilon(module))
                if got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-5):
                    return kind
        return None
    except Exception:  # any module may have a weight and an epsilon
        return None
    finally:
        module.weight = weight


def activation_of(module: Any) -> str | None:
    """The name by which operators know an activation, else None."""
    if not isinstance(module, torch.nn.Module):
        return None
    cls = type(module)
    if cls.__module__ not in ("transformers.activations", "torch.nn.modules.activation"):
        return None
    key = (cls, module.extra_repr())
    if key not in _activations:
        _activations[key] = None if any(True for _ in module.parameters()) else _activation(module)
    return _activations[key]


def _activation(module: Any) -> str | None:
    x = torch.linspace(-8, 8, 257, dtype=torch.float64)
    try:
        with torch.no_grad():
            y = module(x)
    except Exception:  # it takes something else
        return None
    same = (name for name, f in ACTIVATIONS.items() if y.shape == x.shape and torch.allclose(y, f(x), 1e-6, 1e-6))
    return next(same, None)
