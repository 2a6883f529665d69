"""Attention's kernels where keys are shared, tiles listed, sequences packed: what they promise, and that it is held."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import (
    Attention,
    BackwardConfig,
    Extra,
    ForwardConfig,
    ProductConfig,
    attention_combine_kernel,
    attention_delta_kernel,
    attention_forward_kernel,
    attention_keys_gradient_kernel,
    attention_queries_gradient_kernel,
    attention_queries_product_kernel,
    attention_tiles_kernel,
)


def f16(*shape: int) -> Any:
    return np.ones(shape, np.float16)  # a check takes floats of its own


def f32(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def copied(args: Any) -> list[Any]:
    return [np.copy(x) if isinstance(x, np.ndarray) else x for x in args]


def held(kernel: gr.Kernel, meaning: str, *args: Any) -> None:
    assert f'means="{meaning}' in str(kernel)
    result = kernel.check(*copied(args))
    assert result.ok, result.errors[0]
    assert result.promises > 0


def broken(kernel: gr.Kernel, change: tuple[str, str], *args: Any) -> None:
    """The kernel whose text is changed breaks its promise."""
    text = str(kernel)
    assert change[0] in text
    assert "CHECK_PROMISE" in [e.code for e in gr.parse(text.replace(*change)).check(*copied(args)).errors]


WINDOWED = Attention(16, left=True, right=True, group=3)
SEQUENCES = [((0, 5, 40), (0, 33, 50)), ((3, 3, 20), (0, 0, 40)), ((0, 0, 0), (2, 20, 20))]


@pytest.mark.parametrize(("a", "bounds"), [(WINDOWED, [20, 1]), (Attention(16, group=2), []),
                         (Attention(16, mask=Extra(rows=False), bias=Extra(gr.fp16, rows=False)), [])])  # fmt: skip
@pytest.mark.parametrize("splits", [1, 3])
def test_parts(a: Attention, bounds: list[int], splits: int) -> None:
    sq, sk = 9, 70
    kernel = attention_forward_kernel(ForwardConfig(a, 16, 16, 1, packed=True, split=True))
    extras = [np.random.default_rng(0).integers(0, 2, (1, a.group, 1, sk), np.uint8), f16(1, a.group, 1, sk)]
    args = [f16(1, sq, a.group, 16), f16(1, sk, 1, 16), f16(1, sk, 1, 16), *extras[: 2 * (a.mask is not None)],
            f32(splits, 1, 1, sq * a.group, 16), f32(splits, 1, 1, sq * a.group), 0.3, *bounds]  # fmt: skip
    held(kernel, "attention_parts_16_16", *args)


@pytest.mark.parametrize("a", [WINDOWED, Attention(16, group=2)])
def test_heads_as_rows(a: Attention) -> None:
    kernel = attention_forward_kernel(ForwardConfig(a, 16, 16, 1, packed=True, lse=True))
    bounds = [20, 1] if a.left else []
    args = [f16(1, 9, a.group, 16), f16(1, 40, 1, 16), f16(1, 40, 1, 16), f16(1, 9, a.group, 16), f32(1, a.group, 9)]
    held(kernel, "attention_lse", *args, 0.3, *bounds)


@pytest.mark.parametrize("lse", [False, True])
def test_parts_put_together(lse: bool) -> None:
    kernel = attention_combine_kernel(Attention(40, group=2), lse)
    args = [f32(3, 1, 1, 10, 40), f32(3, 1, 1, 10), f16(1, 5, 2, 40), *([f32(1, 2, 5)] if lse else [])]
    held(kernel, "attention_combine", *args)


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("varlen", [False, True])
def test_delta(lse: bool, varlen: bool) -> None:
    front, a = (() if varlen else (1,)), Attention(40, varlen=varlen)
    rows = [f32(*front, 2, 40) for _ in range(1 + lse)]
    held(attention_delta_kernel(a, lse), "attention_delta", f16(*front, 40, 2, 40), f16(*front, 40, 2, 40), *rows)


@pytest.mark.parametrize(("starts_q", "starts_k"), SEQUENCES)
@pytest.mark.parametrize(("first", "heads"), [(0, 4), (1, 2), (3, 1)])
@pytest.mark.parametrize("a", [Attention(16, varlen=True), Attention(16, left=True, right=True, group=2, varlen=True)])
def test_packed_sequences_with_a_work_space(a: Attention, starts_q: Any, starts_k: Any, first: int, heads: int) -> None:
    """Of some of the heads of two sequences."""
    starts, bounds = [np.array(s, np.int32) for s in (starts_q, starts_k)], [12, 3] if a.left else []
    q, k, rows = f16(45, 2 * a.group, 16), f16(53, 2, 16), f32(2 * a.group, 45)
    saved = f16(heads, a.group, 4, 128, 32)
    keys = attention_keys_gradient_kernel(BackwardConfig(a, 32, 32, 2, 3, saves=True, paired=True))
    held(keys, "attention_packed_keys_gradient_saving", q, rows, rows, q, k, k, *starts, saved, k, k, 0.3, 0.2,
         *bounds, first, 50)  # fmt: skip
    product = attention_queries_product_kernel(ProductConfig(a, 16, 2))
    held(product, "attention_packed_queries_product", k, saved, *starts, q, 0.2, *bounds, first, 40)


MASKED = Attention(16, left=True, right=True, mask=Extra())


def mask_of(sq: int, sk: int) -> Any:
    """Tiles that are seen whole, in part, not at all."""
    mask = np.random.default_rng(0).integers(0, 2, (1, 1, sq, sk), np.uint8)
    mask[..., :34], mask[..., 48:64] = 1, 0
    return mask


@pytest.mark.parametrize("BN", [16, 32, 48])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("bounds", [[], [60, 60], [10, 0]])
def test_tiles(BN: int, rows: bool, bounds: list[int]) -> None:
    a = Attention(16, left=bool(bounds), right=bool(bounds), mask=Extra(rows=rows))
    for sk in (96, 70, 40):
        mask = mask_of(40, sk) if rows else np.broadcast_to(mask_of(1, sk), (1, 1, 40 if bounds else 1, sk))
        lists = np.zeros((1, 1, -(-mask.shape[2] // 32), -(-sk // BN) + 2), np.int32)
        held(attention_tiles_kernel(a, 32, BN), f"attention_tiles_32_{BN}", mask, lists, *bounds)


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("bias", [None, Extra(gr.fp16)])
def test_listed_tiles(lse: bool, bias: Extra | None) -> None:
    a = dataclasses.replace(MASKED, bias=bias)
    mask, lists = mask_of(40, 70), np.zeros((1, 1, 2, 5 + 2), np.int32)
    attention_tiles_kernel(MASKED, 32, 16).simulate(mask, lists, 60, 20)
    q, k, extras = f16(1, 40, 1, 16), f16(1, 70, 1, 16), [f16(1, 1, 40, 70)] if bias else []
    kernel = attention_forward_kernel(ForwardConfig(a, 32, 16, 2, lse=lse, listed=True))
    args = [q, k, k, mask, *extras, lists, q, *([f32(1, 1, 40)] if lse else []), 0.3, 60, 20]
    held(kernel, "attention_listed_32_16", *args)


@pytest.mark.parametrize(("starts_q", "starts_k"), SEQUENCES)
@pytest.mark.parametrize("a", [Attention(16, varlen=True), Attention(16, left=True, right=True, group=2, varlen=True)])
def test_packed_sequences(a: Attention, starts_q: tuple[int, ...], starts_k: tuple[int, ...]) -> None:
    """With rows before the first sequence and behind the last."""
    starts, bounds = [np.array(s, np.int32) for s in (starts_q, starts_k)], [12, 3] if a.left else []
    q, k, rows = f16(45, a.group, 16), f16(53, 1, 16), f32(a.group, 45)
    forward = attention_forward_kernel(ForwardConfig(a, 32, 16, 2, lse=True))
    held(forward, "attention_packed_lse", q, k, k, *starts, q, rows, 0.3, *bounds, 40)
    c, given = BackwardConfig(a, 32, 16, 2), [q, rows, rows, q, k, k, *starts]
    queries, keys = attention_queries_gradient_kernel(c), attention_keys_gradient_kernel(c)
    held(queries, "attention_packed_queries_gradient", *given, q, 0.3, 0.2, *bounds, 40)
    held(keys, "attention_packed_keys_gradient", *given, k, k, 0.3, 0.2, *bounds, 50)


def decayed(score: Any, query: Any, key: Any) -> Any:
    return score - 0.1 * abs(query - key)


@pytest.mark.parametrize("form", [{}, {"packed": True}, {"packed": True, "split": True}], ids=str)
@pytest.mark.parametrize("capped", [False, True])
def test_a_function_of_scores(form: dict[str, bool], capped: bool) -> None:
    a = Attention(16, group=2, right=True, softcap=capped, score=decayed, score_means=decayed)
    kernel = attention_forward_kernel(ForwardConfig(a, 32, 16, 2, lse=True, **form))
    made = [f32(3, 1, 1, 80, 16), f32(3, 1, 1, 80)] if "split" in form else [f16(1, 40, 2, 16), f32(1, 2, 40)]
    args = [f16(1, 40, 2, 16), f16(1, 50, 1, 16), f16(1, 50, 1, 16), *made, 0.3, *([2.0] if capped else []), 0]
    held(kernel, "attention_parts_32_16_decayed" if "split" in form else "attention_lse_decayed", *args)
    broken(kernel, ("0.1", "0.2"), *args)


def test_a_function_of_scores_has_values_alone() -> None:
    a = Attention(16, score=lambda s, query, key: s + key - query)
    kernel = attention_forward_kernel(ForwardConfig(a, 32, 16, 2))
    assert "means=" not in str(kernel).splitlines()[0]
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 1, 16)).astype(np.float16) for n in (20, 33, 33))
    out = np.zeros_like(q)
    kernel.simulate(q, k, v, out, 0.25 * np.log2(np.e))
    s = np.einsum("qd,kd->qk", q[0, :, 0].astype(float), k[0, :, 0]) / 4 + np.arange(33)[None]
    p = np.exp(s - s.max(1, keepdims=True))
    np.testing.assert_allclose(out[0, :, 0], p / p.sum(1, keepdims=True) @ v[0, :, 0], atol=3e-3)
    for make in (
        lambda: BackwardConfig(a),
        lambda: attention_forward_kernel(ForwardConfig(Attention(16, score=print))),
    ):
        with pytest.raises((gr.VerifyError, TypeError)) as e:
            make()
        assert "KERNEL_ARGUMENT" in str(e.value)
