"""Gradients of norms against PyTorch's in float64, for tests on CPU tensors and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphene import ops

F = torch.nn.functional


def norm_gradients_agree(r: Callable[..., Any], shape: tuple[int, ...], dtype: Any) -> None:
    """Of every combination of weight, bias, residual and sum; ``r(*shape, dtype=, grad=)`` makes random tensors."""
    g = {"dtype": dtype, "grad": True}
    near = {"rtol": 4e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {"rtol": 6e-3, "atol": 6e-3}
    n = shape[-1:]
    x, e, w, b = r(*shape, **g), r(*shape, **g), r(*n, **g), r(*n, **g)
    up, up_total = r(*shape, dtype=dtype), r(*shape, dtype=dtype)
    calls: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (lambda x, w, b: ops.layer_norm(x, n, w, b), lambda x, w, b: F.layer_norm(x, n, w, b), (x, w, b)),
        (lambda x, w: ops.rms_norm(x, n, w, 1e-6), lambda x, w: F.rms_norm(x, n, w, 1e-6), (x, w)),
        (lambda x, w: ops.rms_norm(x, n, w, 1e-6, weight_offset=1.0),
         lambda x, w: F.rms_norm(x, n, w + 1, 1e-6), (x, w)),
        (lambda x: ops.layer_norm(x, n), lambda x: F.layer_norm(x, n), (x,)),
        (lambda x, e, w, b: ops.layer_norm(x, n, w, b, residual=e, return_sum=True),
         lambda x, e, w, b: (F.layer_norm(x + e, n, w, b), x + e), (x, e, w, b)),
        (lambda x, e, w: ops.rms_norm(x, n, w, 1e-6, residual=e, return_sum=True),
         lambda x, e, w: (F.rms_norm(x + e, n, w, 1e-6), x + e), (x, e, w)),
    ]  # fmt: skip
    for ours, theirs, args in calls:
        wide = [t.detach().double().requires_grad_() for t in args]
        y, z = ours(*args), theirs(*wide)
        two = isinstance(y, tuple)
        got = torch.autograd.grad(y, args, (up, up_total) if two else up)
        ref = torch.autograd.grad(z, wide, (up.double(), up_total.double()) if two else up.double())
        for p, q in zip(got, ref, strict=True):
            assert p.dtype == dtype
            torch.testing.assert_close(p.double(), q, **near)
    of_b = torch.autograd.grad(ops.layer_norm(x, n, w, b).sum(), b)[0]  # its gradient is broadcast
    assert (of_b == x.numel() // n[0]).all()
