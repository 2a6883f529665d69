"""On the GPU against float64: random widths, rows that begin anywhere or lie apart, extreme values; as operators."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ops = pytest.importorskip("graphene.ops")

pytestmark = pytest.mark.gpu

TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 4e-6}
F = torch.nn.functional


def matrix(r: random.Random, rows: int, width: int, dtype: Any, values: str) -> Any:
    """Rows side by side, apart, or beginning off the alignment of the allocation."""
    pad, offset = r.choice([(0, 0), (0, 0), (0, 1), (1, 0), (3, 2), (8, 0)])
    g = torch.Generator(device="cuda").manual_seed(r.randrange(2**31))
    base = torch.randn(rows * (width + pad) + offset, generator=g, device="cuda")
    if values == "far":
        base = base * (1e-2 if dtype == torch.float32 else 30) + 1e4
    x = base.to(dtype)[offset:].view(rows, width + pad)[:, :width]
    for _ in range(3 if values == "not finite" else 0):
        x[r.randrange(rows), r.randrange(width)] = r.choice([float("inf"), -float("inf"), float("nan")])
    if values == "not finite":
        x[r.randrange(rows)] = -float("inf")
    if values == "outlier":
        x[:, r.choice([0, width - 1, r.randrange(width)])] = 3e4
    if values == "equal":
        x[:] = x[:, :1]
    return x


def close(got: Any, want: Any, peer: Any, dtype: str, floor: float = 1e-3) -> None:
    """As near as the type allows, or as PyTorch's own comes; not a number where the reference is none."""
    assert torch.equal(torch.isnan(got), torch.isnan(want))
    bad = torch.isnan(want) | torch.isnan(peer)
    want, got, peer = (t.double().masked_fill(bad, 0) for t in (want, got, peer))
    scale = want.abs() + want.square().mean(-1, keepdim=True).sqrt() + floor
    worst, theirs = (((t - want).abs() / scale).nan_to_num(posinf=0).max().item() for t in (got, peer))
    assert worst <= max(TOLERANCE[dtype], 1.5 * theirs), (worst, theirs)


def rms_norm(h: Any, w: Any) -> Any:
    """By the formula: of rows that are not finite PyTorch's kernels make one thing or another."""
    y = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5)
    return y if w is None else y * w


@pytest.mark.parametrize("seed", range(90))
def test_rows(seed: int) -> None:
    r = random.Random(seed)
    width = r.choice([r.randint(1, 300), r.randint(256, 5000), 8 * r.randint(1, 1000), r.randint(5000, 65536)])
    rows = min(r.choice([1, r.randint(2, 9), r.randint(1, 5000)]), max(1, 2**22 // width))
    name = r.choice(list(TOLERANCE))
    dtype, kind = getattr(torch, name), r.choice(["layer_norm", "rms_norm", "softmax"])
    values = r.choice(["normal", "normal", "far", "not finite", "outlier", "equal"])
    x = matrix(r, rows, width, dtype, values)
    if kind == "softmax":
        close(ops.softmax(x, -1), torch.softmax(x.double(), -1), torch.softmax(x, -1), name, 1e-30)
        return
    w, b = ((torch.randn(width, device="cuda").to(dtype) if r.random() < 0.7 else None) for _ in range(2))
    residual = matrix(r, rows, width, dtype, "normal") if r.random() < 0.4 else None
    h = x.double() if residual is None else x.double() + residual.double()
    peer = h.to(dtype) if dtype == torch.float32 else h.float()
    wide = [None if t is None else t.double() for t in (w, b)]
    theirs = [None if t is None else t.to(peer.dtype) for t in (w, b)]
    if kind == "layer_norm":
        got = ops.layer_norm(x, (width,), w, b, 1e-5, residual=residual)
        close(got, F.layer_norm(h, (width,), *wide, 1e-5), F.layer_norm(peer, (width,), *theirs, 1e-5), name)
    else:
        got = ops.rms_norm(x, (width,), w, 1e-5, residual=residual)
        close(got, rms_norm(h, wide[0]), F.rms_norm(peer, (width,), theirs[0], 1e-5), name)
