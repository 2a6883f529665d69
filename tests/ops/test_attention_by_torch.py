"""Attention's gradients where PyTorch's operators compute them: accuracy, second ones, compiled training steps."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphene import ops  # noqa: E402
from tests.ops.cpu_cases import quiet, r  # noqa: E402

__all__ = ["quiet"]

F = torch.nn.functional


def sdpa(q: Any, k: Any, v: Any, **named: Any) -> Any:
    return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), **named).transpose(1, 2)


def gradients(f: Any, given: Any, g: Any, dtype: Any = None) -> Any:
    args = [t.detach().to(dtype or t.dtype).requires_grad_() for t in given]
    return torch.autograd.grad(f(*args), args, g.to(dtype or g.dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_probabilities_close_to_one_cost_no_digits(dtype: Any) -> None:
    """Scores of 200: a row's sum of p * dp from the rounded result would leave an error five times as large."""
    q, k, v, g = (r(1, 24, 2, 12, dtype=dtype) for _ in range(4))
    scores = (q.double().transpose(1, 2) @ k.double().permute(0, 2, 3, 1)).abs().amax() / 12**0.5
    q = (q.double() * (200 / scores)).to(dtype)
    assert "PyTorch's operators" in ops.explain(ops.attention, q, k, v)
    want = gradients(sdpa, (q, k, v), g, torch.float64)
    got = gradients(ops.attention, (q, k, v), g)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = gradients(sdpa, (q, k, v), g)
    for a, b, ref in zip(got, theirs, want, strict=True):
        ours, their = ((x.double() - ref).norm() / ref.norm() for x in (a, b))
        assert ours <= 1.5 * their + 1e-7, (ours, their)


def test_one_certain_key_has_a_gradient_of_nothing() -> None:
    """Where a probability rounds to one and the others to zero, nothing is left of the scores' gradient."""
    q, k, v, g = (r(1, n, 1, 8, dtype=torch.float32) for n in (4, 6, 6, 4))
    k[:, 2] = 60 * q.mean(1).sign()
    q = k[:, 2:3].sign() * (1 + r(1, 4, 1, 8, dtype=torch.float32).abs())
    dq, dk, _ = gradients(ops.attention, (q, k, v), g)
    assert not dq.any()
    assert not dk.any()


def test_gradients_of_gradients() -> None:
    q, k, v = (r(1, n, h, 3, dtype=torch.float64, grad=True) for n, h in ((2, 2), (3, 1), (3, 1)))
    mask = torch.tensor([[True, False, True]])

    def both(q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, mask=mask, softcap=3.0, scale=0.4, return_lse=True)

    # The LSE is fp32: only the result is fine enough for finite differences.
    assert torch.autograd.gradgradcheck(lambda *t: both(*t)[0], (q, k, v))
    # The LSE's, by what PyTorch has of it.
    names = [t for t in (q, k, v)]

    def theirs(q: Any, k: Any, v: Any) -> Any:
        s = 3 * torch.tanh(q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * 0.4 / 3)
        s = s.masked_fill(~mask[:, None, None], -torch.inf)
        return (s.softmax(3) @ v.transpose(1, 2)).transpose(1, 2), s.logsumexp(3)

    def second(f: Any) -> Any:
        y, lse = f(q, k, v)
        first = torch.autograd.grad((y * y).sum() + (lse * lse).sum(), names, create_graph=True)
        return torch.autograd.grad(sum((t * t).sum() for t in first), names)

    for a, b in zip(second(both), second(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_of_gradients_of_packed_sequences_and_through_a_kernel() -> None:
    """The first ones by a kernel, the second ones by PyTorch's operators."""
    q, k, v = (r(7, h, 16) for h in (2, 1, 1))
    cu = torch.tensor([0, 3, 7], dtype=torch.int32)

    def packed(q: Any, k: Any, v: Any) -> Any:
        return ops.attention_varlen(q, k, v, cu, cu, 4, 4, causal=True)

    def apart(q: Any, k: Any, v: Any) -> Any:
        parts = [[t[None, a:b] for t in (q, k.expand_as(q), v.expand_as(q))] for a, b in ((0, 3), (3, 7))]
        return torch.cat([sdpa(*x, is_causal=True)[0] for x in parts])

    def second(f: Any, dtype: Any) -> Any:
        args = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        first = torch.autograd.grad(f(*args).square().sum(), args, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in first), args)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = second(apart, torch.float64)
    for a, b in zip(second(packed, q.dtype), want, strict=True):
        assert (a.double() - b).norm() < 1e-2 * b.norm()


def test_functional_transformations_of_gradients() -> None:
    q, k, v = (r(1, 3, 1, 4, dtype=torch.float64) for _ in range(3))

    def hessian(f: Any) -> Any:
        return torch.func.grad(lambda x: torch.func.grad(lambda y: f(y, k, v).square().sum())(x).square().sum())(q)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = hessian(sdpa)
    torch.testing.assert_close(hessian(ops.attention), want)


def test_parts_of_gradients_have_none() -> None:
    import graphene as gr

    delta = torch.ops.graphene.attention_delta(r(1, 2, 1, 8, grad=True), r(1, 2, 1, 8).float(), None)
    with pytest.raises(gr.LaunchError) as e:
        delta.sum().backward()
    assert str(e.value).endswith(
        "attention_delta: there is no gradient through this operator   [OP_ARGUMENT]\n"
        "  why: it is a part of the gradient of graphene.ops.attention, for calls that are not differentiated\n"
        "  fix: differentiate graphene.ops.attention, or what PyTorch has of it"
    )


def test_a_compiled_training_step() -> None:
    """As a model calls it: heads first, transposed. That strides are as compiled code takes them test_opcheck says."""
    dim, dtype = 12, torch.float32
    x, w = r(2, 6, 2 * dim, dtype=dtype), r(2 * dim, 6 * dim, dtype=dtype, grad=True)

    def step(x: Any, w: Any) -> Any:
        q, k, v = (x @ w).view(2, x.shape[1], 3, 2, dim).transpose(1, 3).unbind(2)
        y = ops.attention(*(t.transpose(1, 2) for t in (q, k, v)), causal=True)
        return y.reshape(2, -1, 2 * dim).square().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (6, 5):
        given = x[:, :n]
        want = torch.autograd.grad(step(given, w), w)[0]
        got = torch.autograd.grad(compiled(given, w), w)[0]
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)
