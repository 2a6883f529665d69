"""Gradients of graphene.ops on CPU tensors: against PyTorch's in fp64, where numbers are large too."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cpu_cases import ACTIVATIONS, F, ns, quiet, r  # noqa: E402, F401
from norm_gradients import norm_gradients_agree  # noqa: E402

from graphene import ops  # noqa: E402
from graphene.ops.norms import layer_gradients  # noqa: E402

D = torch.float64


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_matmul(activation: str | None) -> None:
    g = {"dtype": D, "grad": True}
    args = (r(2, 3, 4, **g), r(4, 5, **g), r(5, **g), r(2, 3, 5, **g))
    assert torch.autograd.gradcheck(lambda a, b, c, e: ops.matmul(a, b, c, activation, e), args)
    assert torch.autograd.gradgradcheck(lambda a, b: ops.matmul(a, b, None, activation), (r(3, 4, **g), r(4, 2, **g)))


def test_gradients_of_vectors_batches_norms() -> None:
    g = {"dtype": D, "grad": True}
    check = torch.autograd.gradcheck
    for sa, sb in (((4,), (2, 4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5))):
        assert check(lambda a, b: ops.matmul(a, b, None, "silu"), (r(*sa, **g), r(*sb, **g)))
    x, e, w, b = r(2, 3, 4, **g), r(2, 3, 4, **g), r(3, 4, **g), r(3, 4, **g)
    assert check(lambda x, w, b, e: ops.layer_norm(x, (3, 4), w, b, residual=e, return_sum=True), (x, w, b, e))
    assert check(lambda x, w, e: ops.rms_norm(x, (3, 4), w, 1e-6, residual=e, return_sum=True), (x, w, e))
    assert check(lambda x: ops.layer_norm(x, (4,)), (x,))
    assert check(lambda x, w: ops.rms_norm(x, (3, 4), w), (x, w))
    assert check(lambda x: ops.softmax(x, 1), (x,))


@pytest.mark.parametrize("activation", [x for x in ACTIVATIONS if x])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_where_sums_are_large(activation: str, dtype: Any) -> None:
    """What the activation took is not rounded: a sum past float16's 65504 has slopes, and a bias may bring it back."""
    sums = torch.tensor([0.0, 1, -1, 3, -8, 60000, -60000, 65504, -65504, 66000, -66000, 1e5, -1e5, 5e6, -5e6])
    if dtype == torch.bfloat16:
        sums = torch.cat([sums, torch.tensor([1e18, -1e18, 1e20, -1e20, 1e37, -1e37])])
    scale = 2.0 ** (sums.abs().clamp(min=1).log2().ceil() // 2)
    for shift in (0.0, -60000.0):
        a = torch.stack([sums / scale, torch.ones_like(sums)], 1).to(dtype).requires_grad_()
        b = torch.stack([scale, torch.zeros_like(sums)], 0).to(dtype).requires_grad_()
        bias = torch.full((len(sums),), shift, dtype=dtype, requires_grad=True)
        up = torch.eye(len(sums)).to(dtype)  # looks at a[i] @ b[:, i]
        args = (a, b, bias)
        got = torch.autograd.grad(ops.matmul(a, b, bias, activation), args, up)
        wide = [t.detach().double().requires_grad_() for t in args]
        z = (wide[0] @ wide[1] + wide[2]).clamp(-1e4, 1e4)  # PyTorch's own formulas overflow, and are flat beyond
        z = z + (wide[0] @ wide[1] + wide[2] - z).detach()
        slope = torch.autograd.grad(ACTIVATIONS[activation](z.clamp(-1e4, 1e4)).sum(), z)[0].to(dtype).double()
        dz = up.double() * torch.where(z > 1e4, 1 if activation not in ("tanh", "sigmoid") else 0,
                                       torch.where(z < -1e4, 0, slope))  # fmt: skip
        near = {"rtol": 4e-3 if dtype == torch.float16 else 2e-2, "atol": 1e-5}
        for p, q in zip(got, (dz @ wide[1].T, wide[0].T @ dz, dz.sum(0)), strict=True):
            assert p.isfinite().all()
            torch.testing.assert_close(p.double(), q, **near)


def test_gradients_of_broadcast_operands_are_summed_unrounded() -> None:
    """A part of the sum may lie past float16's largest number though the sum does not."""
    a = torch.full((4, 1, 8), 200.0).half() * torch.tensor([1, -1, 1, -1]).view(4, 1, 1)
    b = torch.ones(8, 3).half().requires_grad_()
    up = torch.full((4, 1, 3), 400.0).half()
    up[3] = 399
    (got,) = torch.autograd.grad(ops.matmul(a, b), b, up)
    assert (got == 200).all()
    a, b = r(2, 1, 3, 4, dtype=D, grad=True), r(5, 4, 2, dtype=D, grad=True)
    assert torch.autograd.gradcheck(lambda a, b: ops.matmul(a, b), (a, b))


def test_gradients_take_sums_with_a_residual_unrounded() -> None:
    """Near 256 float16 lies 1/4 apart, which is more than the residual adds."""
    x, e = (256 + r(4, 64, dtype=torch.float32) / 8).half(), (r(4, 64, dtype=torch.float32) / 16).half()
    g, w = r(4, 64), r(64)
    for mine, theirs in ((ops.layer_norm, F.layer_norm), (ops.rms_norm, F.rms_norm)):
        for both in (False, True):
            leaves = [t.clone().requires_grad_() for t in (x, e, w)]
            y = mine(leaves[0], (64,), leaves[2], residual=leaves[1], return_sum=both)
            got = torch.autograd.grad(y, leaves, (g, g) if both else g)
            wide = [t.double().requires_grad_() for t in (x, e, w)]
            total = wide[0] + wide[1]
            y = theirs(total, (64,), wide[2])
            ref = torch.autograd.grad((y, total) if both else y, wide, (g.double(), g.double()) if both else g.double())
            for p, q in zip(got, ref, strict=True):
                torch.testing.assert_close(p.double(), q, rtol=4e-3, atol=4e-3)
    large = torch.full((2, 64), 60000.0).half()
    leaf = (large * torch.linspace(0.5, 1, 64).half()).requires_grad_()  # the sum is past float16's largest number
    (got,) = torch.autograd.grad(ops.layer_norm(leaf, 64, residual=large), leaf, g[:2] * 1000)
    assert got.isfinite().all()


@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 40), (5, 33), (70, 8), (1, 16), (16,)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_of_norms_by_kernels(shape: tuple[int, ...], dtype: Any) -> None:
    norm_gradients_agree(r, shape, dtype)


def test_gradients_of_norms_run_kernels() -> None:
    args = (r(6, 64), None, r(6, 64), [64], r(64), None, 1e-5, True)
    said = layer_gradients.defined.explain(*args)
    assert said.count("\n  kernel ") == 4
    torch.library.opcheck(ns.layer_norm_backward.default, args)
    torch.library.opcheck(
        ns.rms_norm_backward.default, (r(6, 64), r(6, 64), r(6, 64), [64], None, r(6, 64), 1e-5, False)
    )


def every_operator() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Functions of tensors that want gradients, in fp64."""
    g = {"dtype": D, "grad": True}
    heads = (r(1, 4, 2, 4, **g), r(1, 4, 2, 4, **g), r(1, 4, 2, 4, **g))
    starts = torch.tensor([0, 1, 4], dtype=torch.int32)
    return {
        "matmul": (lambda a, b, c: ops.matmul(a, b, c, "gelu"), (r(3, 4, **g), r(4, 2, **g), r(2, **g))),
        "gated": (lambda a, b: ops.gated(a, b, "silu"), (r(2, 3, **g), r(2, 3, **g))),
        "layer_norm": (lambda x, w: ops.layer_norm(x, (4,), w, residual=x, return_sum=True), (r(3, 4, **g), r(4, **g))),
        "rms_norm": (lambda x, w: ops.rms_norm(x, (4,), w), (r(3, 4, **g), r(4, **g))),
        "softmax": (lambda x: ops.softmax(x, -1), (r(3, 4, **g),)),
        "attention": (lambda *t: ops.attention(*t, causal=True, softcap=3.0), heads),
        "attention_varlen": (
            lambda *t: ops.attention_varlen(*(x[0] for x in t), starts, starts, 3, 3),
            heads,
        ),
        "fused_mlp": (lambda x, *w: ops.fused_mlp(x, w, None, "tanh"), (r(3, 4, **g), r(5, 4, **g), r(2, 5, **g))),
        "rnn_cell": (ops.rnn_cell, (r(2, 3, **g), r(2, 4, **g), r(4, 3, **g), r(4, 4, **g))),
        "lstm_cell": (ops.lstm_cell, (r(2, 3, **g), r(2, 2, **g), r(2, 2, **g), r(8, 3, **g), r(8, 2, **g))),
    }


@pytest.mark.parametrize("name", every_operator())
def test_where_no_gradient_arrives_none_leaves(name: str) -> None:
    """gradcheck's test of undefined gradients included; second derivatives are right."""
    f, args = every_operator()[name]
    assert torch.autograd.gradcheck(f, args)
    made = f(*args)
    made = made if isinstance(made, tuple) else (made,)
    sum(torch._C._functions.UndefinedGrad()(t).sum() for t in made).backward()
    assert all(t.grad is None or not t.grad.any() for t in args)
    assert torch.autograd.gradgradcheck(f, args)


@pytest.mark.parametrize("name", every_operator())
def test_gradients_by_transformation(name: str) -> None:
    """torch.func's, as autograd's."""
    f, args = every_operator()[name]

    def total(*t: Any) -> Any:
        made = f(*t)
        return sum(x.pow(2).sum() for x in (made if isinstance(made, tuple) else (made,)))

    wanted = torch.autograd.grad(total(*args), args)
    got = torch.func.grad(total, tuple(range(len(args))))(*(t.detach() for t in args))
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x, y)
    with pytest.raises(Exception, match=r"jvp|forward"):
        torch.func.jvp(total, tuple(args), tuple(args))


def test_second_derivatives_of_half_precision() -> None:
    """Kernels compute the first; the second is PyTorch's, or refused: never a sum without one of its terms."""
    for name, (f, args) in every_operator().items():
        if name.startswith("attention"):
            continue
        narrow = [t.detach().half().requires_grad_() for t in args]
        wide = [t.detach().double().requires_grad_() for t in narrow]
        seconds = []
        for given in (narrow, wide):
            made = f(*given)
            total = sum(t.double().pow(2).sum() for t in (made if isinstance(made, tuple) else (made,)))
            firsts = torch.autograd.grad(total, given, create_graph=True)
            seconds.append(torch.autograd.grad(sum(g.double().pow(2).sum() for g in firsts), given))
        for x, y in zip(*seconds, strict=True):
            assert (x.double() - y).norm() <= 2e-2 * y.norm(), name


def test_a_mean_far_from_zero_costs_fp32_no_digits() -> None:
    """By kernels, and by PyTorch's operators where their turn comes: as exact as the forward pass."""
    n = (1000,)
    x, g = (r(8, 1000, dtype=torch.float32) + 1e4).requires_grad_(), r(8, 1000, dtype=torch.float32)
    w = r(1000, dtype=torch.float32, grad=True)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    ref = torch.autograd.grad(F.layer_norm(wide[0], n, wide[1]), wide, g.double())
    for twice in (False, True):  # which PyTorch's operators differentiate
        got = torch.autograd.grad(ops.layer_norm(x, n, w), (x, w), g, create_graph=twice)
        for p, q in zip(got, ref, strict=True):
            torch.testing.assert_close(p.double(), q, rtol=0, atol=1e-5)
