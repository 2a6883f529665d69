"""What kernels promise, against PyTorch in float64: a meaning may not repeat its kernel's mistake."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import kernels
from graphene.judge.signature import Signature
from graphene.kernels import NormColumnsConfig, NormConfig, ReductionConfig, RowTile, SoftmaxColumnsConfig
from graphene.kernels.epilogues import ACTIVATIONS, activation, linear, sigmoid_tanh
from graphene.promise import call

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)


def means(kernel: gr.Kernel, **arguments: Any) -> dict[str, Any]:
    """What the outputs should be; shapes of outputs that are not given are those of NaN."""
    assert kernel.promise is not None
    missing = {a.name for a in Signature.of(kernel).arguments if a.name not in arguments and a.role != "output"}
    assert not missing
    result = call(kernel.promise.means, arguments, kernel.name)
    return result if isinstance(result, dict) else {Signature.of(kernel).outputs[0].name: result}


def close(got: Any, want: Any) -> None:
    want = want.detach().numpy() if hasattr(want, "detach") else want
    assert np.shape(got) == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def t(x: np.ndarray) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x))


TORCH = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str | None) -> None:
    x = np.concatenate([normal(100) * 3, [0.0, -40, 40, np.inf, -np.inf, np.nan] if name in (None, "relu") else [0.0]])
    close(ACTIVATIONS[name](x), TORCH[name](t(x)))
    assert name != "gelu" or ACTIVATIONS[name](np.array([-np.inf])) == 0  # as the kernels make it; PyTorch's is NaN
    close(activation(name, bits=16)(x), TORCH[name](t(x)))


def test_the_gated_activation() -> None:
    x, y = normal(2, 50) * 3
    close(sigmoid_tanh(x, y), torch.sigmoid(t(x)) * torch.tanh(t(y)))


M, N, K, BATCH = 9, 12, 20, 3


@pytest.mark.parametrize("build", [kernels.gemm_sm80, kernels.gemm_sm70])
@pytest.mark.parametrize(("batched", "as_kn"), list(itertools.product((False, True), repeat=2)))
def test_products(build: Any, batched: bool, as_kn: bool) -> None:
    front = (BATCH,) if batched else ()
    a, b = normal(*front, M, K), normal(*front, N, K)
    bias, residual, c = normal(N), normal(*front, M, N), normal(*front, M, N)
    order = {"order": "TT" if as_kn else "TN", "b_as_kn": as_kn, "batched": batched, "align": (8, 8, 8)}
    given = b.swapaxes(-1, -2) if as_kn else b
    product = t(a) @ t(b).transpose(-1, -2)

    full = build(
        32, 32, 32, epilogue=linear("gelu", True, True), warps=(2, 2), residual=True, alpha=True, beta=True, **order
    )
    scaled = lambda beta, old: torch.nn.functional.gelu(0.5 * product + beta * old + t(bias)) + t(residual)  # noqa: E731
    terms = {"bias": bias, "residual": residual}
    close(means(full, A=a, B=given, C=c, alpha=0.5, beta=-2.0, **terms)["C"], scaled(-2.0, t(c)))
    nan = np.full_like(c, np.nan)
    close(means(full, A=a, B=given, C=nan, alpha=0.5, beta=0.0, **terms)["C"], scaled(0, torch.zeros_like(t(c))))

    plain = build(32, 32, 32, epilogue=None, warps=(2, 2), out=gr.fp32, **order)
    close(means(plain, A=a, B=given, C=nan)["C"], product)
    default = build(32, 32, 32, warps=(2, 2), **order)
    close(means(default, A=a, B=given, bias=bias, C=nan)["C"], torch.relu(product + t(bias)))
    parts = build(32, 32, 32, warps=(2, 2), split_k=True, **order)
    close(means(parts, A=a, B=given, W=np.full((4, *c.shape), np.nan))["C"], product)
    assert parts.promise is not None
    assert parts.promise.read is not None
    w = normal(4, *c.shape)
    close(parts.promise.read(w)["C"], t(w).sum(0))


def test_longer_lines() -> None:
    a, b = normal(M, K), normal(K, N)
    longer_a, longer_b = np.pad(a, [(0, 0), (0, 4)]), np.pad(b, [(0, 0), (0, 12)], constant_values=np.nan)
    kernel = kernels.gemm_sm80(
        32, 32, 32, 2, None, warps=(2, 2), order="TT", b_as_kn=True, padded=(True, True), out=gr.fp32
    )
    close(means(kernel, A=longer_a, B=longer_b, C=np.zeros((M, N)))["C"], t(a) @ t(b))


def test_helpers_of_products() -> None:
    a = normal(2, M, K)
    got = means(kernels.gemm_pad("A", batched=True), A=a, A_padded=np.zeros((2, M, K + 4)))
    close(got["A_padded"], torch.nn.functional.pad(t(a), (0, 4)))
    w, bias, residual, c = normal(5, 2, M, N + 2), normal(N), normal(2, M, N), normal(2, M, N)
    kernel = kernels.gemm_reduce(
        linear("silu", True, True), batched=True, bias=True, residual=True, alpha=True, beta=True, align=4
    )
    got = means(kernel, W=w, bias=bias, residual=residual, C=c, alpha=2.0, beta=0.5)
    x = 2 * t(w)[..., :N].sum(0) + 0.5 * t(c) + t(bias)
    close(got["C"], torch.nn.functional.silu(x) + t(residual))


WIDTH = 24
TILE = RowTile(WIDTH, 4, 8, 4)


def norms(rms: bool) -> tuple[Any, Any, Any]:
    """The kernel's builder, that of its gradient, and PyTorch's function of h, gamma, beta, eps."""
    if rms:

        def function(h: Any, gamma: Any, beta: Any, eps: float) -> Any:
            return torch.nn.functional.rms_norm(h, (WIDTH,), gamma, eps) + (0 if beta is None else beta)

        return kernels.rmsnorm_kernel, kernels.rmsnorm_backward_kernel, function
    return (
        kernels.layernorm_kernel, kernels.layernorm_backward_kernel,
        lambda h, gamma, beta, eps: torch.nn.functional.layer_norm(h, (WIDTH,), gamma, beta, eps),
    )  # fmt: skip


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("all_terms", [False, True])
def test_normalisations(rms: bool, all_terms: bool) -> None:
    build, _, function = norms(rms)
    x, r, gamma, beta = normal(M, WIDTH), normal(M, WIDTH), normal(WIDTH), normal(WIDTH)
    on = dict.fromkeys(("gamma", "beta", "residual", "write_sum"), all_terms)
    if all_terms:
        got = means(build(NormConfig(TILE, **on)), X=x, R=r, gamma=gamma, beta=beta, eps=0.1)
        close(got["S"], t(x) + t(r))
        close(got["Y"], function(t(x) + t(r), t(gamma), t(beta), 0.1))
    else:
        got = means(build(NormConfig(TILE, eps=0.1, **on)), X=x)
        close(got["Y"], function(t(x), None, None, 0.1))
        assert set(got) == {"Y"}


def test_the_small_layernorm() -> None:
    x, gamma, beta = normal(3, 1000), normal(1000), normal(1000)
    want = torch.nn.functional.layer_norm(t(x), (1000,), t(gamma), t(beta), 1e-5)
    close(means(kernels.layernorm(1000), X=x, gamma=gamma, beta=beta)["Y"], want)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", [gr.fp16, gr.fp32], ids=str)
def test_gradients_of_normalisations(rms: bool, dtype: gr.DType) -> None:
    _, build, function = norms(rms)
    x, r, dy, ds = (normal(M, WIDTH) for _ in range(4))
    gamma, beta = (t(normal(WIDTH)).requires_grad_() for _ in range(2))
    h = (t(x) + t(r)).requires_grad_()
    y = function(h, gamma, beta, 0.1)
    (y * t(dy)).sum().backward()
    kernel = build(NormConfig(TILE, dtype, residual=True, write_sum=True))
    got = means(kernel, X=x, R=r, dY=dy, gamma=gamma.detach().numpy(), dS=ds, eps=0.1)
    close(got["dX"], h.grad + t(ds))
    mean = h.detach().mean(-1)
    var = h.detach().square().mean(-1) if rms else h.detach().var(-1, correction=0)
    close(got["rstd"], torch.rsqrt(var + 0.1))
    if not rms:
        close(got["mean"], mean)
    assert set(got) == {"dX", "rstd"} | (set() if rms else {"mean"})

    columns = kernels.norm_columns_kernel(NormColumnsConfig(dtype, centred=not rms, residual=True))
    rest = {} if rms else {"mean": mean.numpy() - 0.25}
    rest |= {"rest": np.full(M, 0.25)} if dtype == gr.fp32 and not rms else {}
    rest = rest if dtype == gr.fp32 or rms else {"mean": mean.numpy()}
    got = means(columns, X=x, R=r, dY=dy, rstd=got["rstd"], **rest)
    close(got["dgamma"], gamma.grad)
    close(got["dbeta"], beta.grad)
    assert columns.promise is not None
    assert columns.promise.read is not None
    parts = normal(2, 4, WIDTH)
    read = columns.promise.read(*parts)
    close(read["dgamma"], t(parts[0]).sum(0))
    close(read["dbeta"], t(parts[1]).sum(0))


def test_the_mean_of_rows_of_fp32_is_two_numbers() -> None:
    kernel = kernels.layernorm_backward_kernel(NormConfig(TILE, gr.fp32))
    assert kernel.promise is not None
    assert kernel.promise.read is not None
    mean, rest = np.array([3, np.inf]), np.array([4, np.nan])
    assert kernel.promise.read(1, 2, mean, rest)["mean"].tolist() == [7, np.inf]


def test_softmax() -> None:
    x = normal(7, WIDTH)
    x[1, 3] = np.inf
    x[2, 5] = np.nan
    x[3] = -np.inf
    x[4, :3] = -np.inf
    with np.errstate(invalid="ignore"):
        close(means(kernels.softmax_kernel(kernels.SoftmaxConfig(TILE)), X=x)["Y"], torch.softmax(t(x), -1))
        columns = kernels.softmax_columns_kernel(SoftmaxColumnsConfig())
        x = np.stack([x, x[::-1] * 2])
        close(means(columns, X=x)["Y"], torch.softmax(t(x), 1))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["add", "max", "min"])
def test_reductions(axis: int, op: str) -> None:
    x = normal(7, 10)
    x[2, 3] = np.nan
    function = {"add": torch.sum, "max": torch.amax, "min": torch.amin}[op]
    kernel = kernels.reduction_kernel(ReductionConfig(axis, op, threads=32, scale=True))
    close(means(kernel, X=x, scale=0.25)["Y"], function(t(x), axis) * 0.25)
    assert kernel.promise is not None
    assert kernel.promise.read is not None
    close(kernel.promise.read(x)["Y"], function(t(x), axis))
    assert (means(kernel, X=np.zeros((0, 10) if axis == 0 else (10, 0)), scale=1.0)["Y"] == kernel_start(op)).all()
    integers = kernels.reduction_kernel(ReductionConfig(axis, op, gr.i32, threads=32, vector=4))
    large = RNG.integers(-(2**31), 2**31, (7, 10))
    close(means(integers, X=large)["Y"], function(t(large), axis).to(torch.int32))


def kernel_start(op: str) -> float:
    return {"add": 0.0, "max": -np.inf, "min": np.inf}[op]


def test_transposition_and_pointwise_functions() -> None:
    x, y = normal(2, 3, 5), normal(2, 3)
    close(means(kernels.transpose_kernel(kernels.TransposeConfig()), X=x)["Y"], t(x).transpose(1, 2))
    config = kernels.ElementwiseConfig((gr.fp16, gr.fp16), gr.fp16, (False, True), 32, 4, 1)
    kernel = kernels.elementwise_kernel(lambda a, b: gr.where(a < b, gr.exp2(a), b), config)
    want = torch.where(t(x) < t(y)[..., None], torch.exp2(t(x)), t(y)[..., None])
    close(means(kernel, x0=x, x1=y, out=np.zeros((2, 3, 5)))["out"], want)
    seven = kernels.elementwise_kernel(lambda a: 7, kernels.ElementwiseConfig((gr.fp16,), gr.fp16, (True,), 32, 4, 1))
    close(means(seven, x0=y, out=np.zeros((2, 3, 5)))["out"], torch.full((2, 3, 5), 7.0))
