"""On the GPU against float64: random shapes, types and strides; outputs start as NaN."""

from __future__ import annotations

import random

import pytest

import graphene as gr
from graphene.kernels import (
    elementwise_kernel,
    layernorm_backward_kernel,
    layernorm_kernel,
    norm_columns_kernel,
    reduction_kernel,
    rmsnorm_backward_kernel,
    rmsnorm_kernel,
    softmax_columns_kernel,
    softmax_kernel,
    transpose_kernel,
)
from graphene.select import (
    select_elementwise,
    select_norm,
    select_norm_columns,
    select_reduction,
    select_softmax,
    select_softmax_columns,
    select_transpose,
)

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

TYPES = {"float16": gr.fp16, "bfloat16": gr.bf16, "float32": gr.fp32}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5}
FORWARD = {"layernorm": layernorm_kernel, "rmsnorm": rmsnorm_kernel}
BACKWARD = {"layernorm": layernorm_backward_kernel, "rmsnorm": rmsnorm_backward_kernel}


def shape(seed: int) -> tuple[int, int]:
    r = random.Random(seed)
    width = r.choice(
        [
            r.randint(1, 64),
            r.randint(65, 1100),
            8 * r.randint(1, 1000),
            r.randint(1000, 9000),
            8 * r.randint(1000, 8192),
        ]
    )
    return r.choice([1, 2, r.randint(1, 50), r.randint(1, max(1, 2**21 // width))]), width


def nans(*sizes: int, dtype: str = "float32"):
    return torch.full(sizes, float("nan"), dtype=getattr(torch, dtype), device="cuda")


def normal(seed: int, *sizes: int, dtype: str = "float32"):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*sizes, generator=g, device="cuda").to(getattr(torch, dtype))


def close(got, want, dtype: str) -> None:
    assert not torch.isnan(got).any()
    error = (got.double() - want).norm() / want.norm().clamp(min=1e-30)
    worst = ((got.double() - want).abs() / (want.abs() + want.abs().mean() + 1e-30)).max() if want.numel() else 0
    assert error < TOLERANCE[dtype] / 2
    assert worst < 4 * TOLERANCE[dtype]


def normalise(name, h, gamma, beta):
    if name == "layernorm":
        return torch.nn.functional.layer_norm(h, h.shape[-1:], gamma, beta, 1e-5)
    return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5) * gamma


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_normalisations(name, dtype, seed):
    M, N = shape(seed)
    residual, beta = seed % 3 == 0, name == "layernorm"
    shared = 227 * 1024 if torch.cuda.get_device_capability()[0] == 9 else 99 * 1024
    config = select_norm(
        M, N, TYPES[dtype], residual=residual, write_sum=residual, beta=beta, shared_bytes=[shared, 48 * 1024][seed % 2]
    )
    x, r = normal(seed, M, N, dtype=dtype), normal(seed + 100, M, N, dtype=dtype)
    g, b = normal(seed + 200, N, dtype=dtype), normal(seed + 300, N, dtype=dtype)
    y, s = nans(M, N, dtype=dtype), nans(M, N, dtype=dtype)
    FORWARD[name](config)(x, *([r] if residual else []), g, *([b] if beta else []), y, *([s] if residual else []), 1e-5)
    h = x.double() + r.double() if residual else x.double()
    close(y, normalise(name, h, g.double(), b.double()), dtype)
    if residual:
        close(s, h, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(12))
def test_softmax(dtype, seed):
    M, N = shape(seed)
    x, y = normal(seed, M, N, dtype=dtype) * 3, nans(M, N, dtype=dtype)
    softmax_kernel(select_softmax(M, N, TYPES[dtype]))(x, y)
    close(y, torch.softmax(x.double(), 1), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(6))
def test_softmax_of_columns(dtype, seed):
    M, N = shape(seed)
    x, y = normal(seed, 2, M, N, dtype=dtype) * 3, nans(2, M, N, dtype=dtype)
    softmax_columns_kernel(select_softmax_columns(M, N, TYPES[dtype]))(x, y)
    close(y, torch.softmax(x.double(), 1), dtype)


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(6))
def test_gradients(name, dtype, seed):
    M, N = shape(seed)
    centred = name == "layernorm"
    x, dy = normal(seed, M, N, dtype=dtype), normal(seed + 1, M, N, dtype=dtype)
    g, b = (normal(seed + i, N, dtype=dtype) for i in (2, 3))
    leaves = [t.double().requires_grad_() for t in (x, g, b)]
    normalise(name, *leaves).backward(dy.double())
    dx, rstd = nans(M, N, dtype=dtype), nans(M)
    mean = [nans(M) for _ in range(centred * (2 if dtype == "float32" else 1))]  # fp32 with what rounding took
    config = select_norm(M, N, TYPES[dtype], residual=True)
    config = type(config)(config.tile, TYPES[dtype])
    BACKWARD[name](config)(x, dy, g, dx, *mean, rstd, 1e-5)
    if N > 2:  # of two elements a normalised row is +-1, whatever they are
        close(dx, leaves[0].grad, dtype)
    columns, S = select_norm_columns(M, N, TYPES[dtype], centred=centred, beta=centred)
    parts = [nans(S, N) for _ in range(1 + centred)]
    norm_columns_kernel(columns)(x, dy, *mean, rstd, *parts)
    for part, leaf in zip(parts, leaves[1:], strict=False):
        out = nans(1, N)
        reduction_kernel(select_reduction(S, N, 0, dtype=gr.fp32))(part, out)
        assert (out[0].double() - leaf.grad).norm() <= 1e-4 * leaf.grad.norm() + 1e-4 * M**0.5


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["add", "max", "min"])
@pytest.mark.parametrize("seed", range(6))
def test_reductions(axis, op, seed):
    M, N = shape(seed)
    x = normal(seed, M, N, dtype="float16")
    out = nans(M, 1) if axis else nans(1, N)
    reduction_kernel(select_reduction(M, N, axis, op, out_dtype=gr.fp32))(x, out)
    want = {"add": torch.sum, "max": torch.amax, "min": torch.amin}[op](x.double(), axis, keepdim=True)
    assert (out.double() - want).abs().max() <= (1e-5 * (M + N) if op == "add" else 0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("seed", range(6))
def test_transposition(dtype, seed):
    M, N = shape(seed)
    x, y = normal(seed, 2, M, N, dtype=dtype), nans(2, N, M, dtype=dtype)
    transpose_kernel(select_transpose(M, N, TYPES[dtype]))(x, y)
    assert torch.equal(y, x.mT)


@pytest.mark.parametrize("seed", range(6))
def test_pointwise_functions(seed):
    M, N = shape(seed)
    x, y = normal(seed, 2, M, N, dtype="bfloat16"), normal(seed + 1, 2, M)
    out = nans(2, M, N)
    config = select_elementwise(N, (gr.bf16, gr.fp32), gr.fp32, (False, True))
    elementwise_kernel(lambda x, y: gr.max(x, 0) * y + 1, config)(x, y, out)
    want = x.double().clamp(min=0) * y.double()[..., None] + 1
    assert torch.allclose(out.double(), want, rtol=1e-6, atol=1e-6)


def test_nothing_to_do():
    x, y = nans(0, 64, dtype="float16"), nans(0, 64, dtype="float16")
    softmax_kernel(select_softmax(0, 64))(x, y)
    layernorm_kernel(select_norm(0, 64))(x, nans(64, dtype="float16"), nans(64, dtype="float16"), y, 1e-5)
    out = nans(1, 64, dtype="float16")
    reduction_kernel(select_reduction(0, 64, 0))(x, out)
    assert not out.any()


def test_rows_that_lie_apart():
    wide = normal(0, 50, 512, dtype="float16")
    x, y = wide[:, 64:464], nans(50, 400, dtype="float16")
    softmax_kernel(select_softmax(50, 400))(x, y)
    close(y, torch.softmax(x.double(), 1), "float16")


def test_the_same_bits_every_time():
    x, dy = normal(0, 5000, 130, dtype="float16"), normal(1, 5000, 130, dtype="float16")
    mean, rstd = normal(2, 5000), normal(3, 5000)
    config, S = select_norm_columns(5000, 130)
    first = None
    for _ in range(5):
        parts = nans(2, S, 130)
        norm_columns_kernel(config)(x, dy, mean, rstd, *parts)
        first = parts if first is None else first
        assert torch.equal(parts, first)
