"""Attention of few queries for sm_90a, of keys in a row or in pages: values against fp64, promises, registers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.kernels import (
    Attention,
    DecodeConfig,
    Extra,
    attention_combine_kernel,
    attention_decode_kernel,
    attention_paged_kernel,
)
from graphene.kernels.attention.reference import forward

LOG2E = math.log2(math.e)
CONFIGS = {
    "one block": DecodeConfig(Attention(64, group=2), 8, 32, 2, 2),
    "causal": DecodeConfig(Attention(40, group=4, right=True), 16, 64, 2, 3, cluster=2),
    "window": DecodeConfig(Attention(80, group=7, left=True, right=True, alike=True), 32, 32, 1, 2, cluster=4),
    "cluster": DecodeConfig(Attention(128, group=4, alike=True), 8, 64, 4, 2, cluster=8),
    "capped": DecodeConfig(Attention(32, softcap=True, scaled=True), 8, 32, 1, 2, cluster=3),
    "parts": DecodeConfig(Attention(96, group=2), 8, 32, 2, 2, cluster=2, split=True),
}
SIZES = [(1, 300), (3, 130), (5, 3)]
EXTRAS = replace(CONFIGS["one block"], what=Attention(32, mask=Extra(rows=False), bias=Extra(gr.fp16, rows=False)))


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float16)


def run(kernel: gr.Kernel, c: DecodeConfig, given: dict[str, Any]) -> None:
    """Simulates a kernel, with the one that puts parts together, and compares with fp64."""
    a, q = c.what, given["Q"]
    (b, sq, h, d), splits = q.shape, 3
    out, lse = np.full_like(q, np.nan), np.full((b, h, sq), np.nan, np.float32)
    tensors = [given[n] for n in ("Q", "K", "V", "table", "lengths", "M", "B") if n in given]
    numbers = [given[n] for n in ("scale_log2", "cap_log2", "left", "right") if n in given]
    if c.split:
        parts = [np.full((splits, b, h // a.group, sq * a.group, *x), np.nan, np.float32) for x in ((d,), (), ())]
        kernel.simulate(*tensors, *parts, *numbers)
        attention_combine_kernel(Attention(d, group=a.group), True).simulate(*parts, out, lse)
    else:
        kernel.simulate(*tensors, out, lse, *numbers)
    with np.errstate(divide="ignore"):
        want = forward(a, True, **{n: t.astype(float) if n in "QKVB" else t for n, t in given.items()})
    for got, exact in ((out, want["O"]), (lse, want["LSE"])):
        assert np.array_equal(np.isfinite(got), np.isfinite(exact))
        finite = np.isfinite(exact)
        np.testing.assert_allclose(got[finite].astype(float), exact[finite], atol=4e-3, rtol=4e-3)


def numbers_of(a: Attention) -> dict[str, float]:
    made = {"scale_log2": a.D**-0.5 * LOG2E * (-1 if a.scaled else 1)}
    made |= {"cap_log2": 0.5 * LOG2E} if a.softcap else {}
    return made | ({"left": 30} if a.left else {}) | ({"right": 0} if a.right else {})


@pytest.mark.parametrize(("name", "sq", "sk"), [(n, *s) for n, s in zip(CONFIGS, 2 * SIZES, strict=True)])
def test_values(name: str, sq: int, sk: int) -> None:
    c = replace(CONFIGS[name], lse=not CONFIGS[name].split)
    a = c.what
    q, k, v = normal(2, sq, 2 * a.group, a.D), normal(2, sk, 2, a.D), -normal(2, sk, 2, a.D)
    run(attention_decode_kernel(c), c, {"Q": q, "K": k, "V": v, **numbers_of(a)})


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("low", [-1e9, -2.3e38])
def test_rows_of_one_huge_bias(cluster: int, split: bool, low: float) -> None:
    """Beside which no score has digits: the mean of what a mask leaves, however the keys are shared."""
    what = Attention(32, mask=Extra(rows=False), bias=Extra(gr.fp32, rows=False))
    kernel = attention_decode_kernel(DecodeConfig(what, 8, 32, 2, 2, cluster=cluster, split=split, lse=not split))
    q, k, v = normal(1, 2, 1, 32), normal(1, 200, 1, 32), -normal(1, 200, 1, 32)
    mask, bias = np.zeros((1, 1, 1, 200), np.uint8), np.full((1, 1, 1, 200), low, np.float32)
    mask[..., :150:3] = 1
    out, lse = np.full_like(q, np.nan), np.full((1, 1, 2), np.nan, np.float32)
    parts = [np.full((3, 1, 1, 2, *x), np.nan, np.float32) for x in ((32,), (), ())] if split else [out, lse]
    kernel.simulate(q, k, v, mask, bias, *parts, 0.3)
    if split:
        attention_combine_kernel(Attention(32), True).simulate(*parts, out, lse)
    mean = np.broadcast_to(v[:, :150:3].astype(float).mean(1, keepdims=True), out.shape)
    np.testing.assert_allclose(out.astype(float), mean, atol=1e-3)
    np.testing.assert_allclose(lse, low, rtol=1e-6)


@pytest.mark.parametrize(("name", "page"), [("causal", 48), ("window", 16), ("cluster", 256), ("parts", 24)])
def test_pages(name: str, page: int) -> None:
    """In any order; behind a sequence's last key there is no number, and behind its last page no page."""
    c = replace(CONFIGS[name], page=page, lse=not CONFIGS[name].split)
    a, lengths = c.what, np.array([300, 0, 3, 2 * page], np.int32)
    most = -(-int(lengths.max()) // page)
    q = normal(4, 3, 2 * a.group, a.D)
    k, v = normal(4 * most + 1, page, 2, a.D), -normal(4 * most + 1, page, 2, a.D)
    table = np.random.default_rng(0).permutation(4 * most + 1)[: 4 * most].reshape(4, most).astype(np.int32)
    for row, n in zip(table, lengths, strict=True):
        row[-(-n // page) :] = -1
        if n % page:
            last = row[n // page]
            k[last, n % page :] = v[last, n % page :] = np.nan
    given = {"Q": q, "K": k, "V": v, "table": table, "lengths": lengths, **numbers_of(a)}
    run(attention_paged_kernel(c), c, given)


def test_a_page_that_does_not_exist_holds_zeros_and_a_length_ends_with_the_table() -> None:
    c = DecodeConfig(Attention(32), 8, 32, 1, 2, page=16)
    q, k, out = np.zeros((1, 1, 1, 32), np.float16), normal(2, 16, 1, 32), normal(1, 1, 1, 32)
    kernel, lengths = attention_paged_kernel(c), np.array([99], np.int32)
    kernel.simulate(q, k, k, np.array([[1, 2]], np.int32), np.array([-4], np.int32), out, 1.0)
    assert not out.any()
    for page in (2, 99, -1, -(2**31)):
        kernel.simulate(q, k, k, np.array([[1, page]], np.int32), lengths, out, 1.0)
    np.testing.assert_allclose(out[0, 0, 0], k[1, :, 0].astype(float).sum(0) / 32, atol=1e-3)


def test_promise_with_a_mask_and_a_bias() -> None:
    """Other promises are held where mutants are judged."""
    assert attention_decode_kernel(replace(EXTRAS, split=True, cluster=2)).check().ok


@pytest.mark.parametrize("depth", [64, 128, 256])
def test_nothing_is_spilled(depth: int) -> None:
    """Two blocks fit on a multiprocessor, but for the widest heads."""
    c = DecodeConfig(Attention(depth, group=4, right=True, alike=True), stages=3, cluster=2)
    for kernel in (attention_decode_kernel(c), attention_paged_kernel(replace(c, page=16))):
        made = kernel.compile("sm_90a")
        assert made.spill_bytes == 0
        assert made.registers <= (168 if depth <= 128 else 255)


@pytest.mark.parametrize(
    "named",
    [{"BM": 12}, {"BN": 48, "WARPS": 2}, {"stages": 1}, {"cluster": 9}, {"page": 12}, {"stages": 100}, {"lse": "x"}],
)
def test_refusals(named: dict[str, Any]) -> None:
    with pytest.raises(gr.VerifyError) as e:
        DecodeConfig(Attention(32), **named)
    assert e.value.code == "KERNEL_ARGUMENT"


def test_pages_have_a_kernel_of_their_own() -> None:
    for build, c in (
        (attention_decode_kernel, DecodeConfig(Attention(32), page=16)),
        (attention_paged_kernel, DecodeConfig(Attention(32))),
    ):
        with pytest.raises(gr.VerifyError, match=r"KERNEL_ARGUMENT(.|\n)*fix: take attention_"):
            build(c)
        for wrong in (None, Attention(32)):
            with pytest.raises(gr.VerifyError) as e:
                build(wrong)  # type: ignore[arg-type]
            assert e.value.code == "KERNEL_ARGUMENT"
    with pytest.raises(gr.VerifyError):
        DecodeConfig(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("c", [
    DecodeConfig(Attention(128), 8, 64, 4, 6), DecodeConfig(Attention(64), 64, 64, 1, 4, page=16),
    DecodeConfig(Attention(16), 32, 128, 8, 2, cluster=2),
], ids=str)  # fmt: skip
def test_shared_memory_is_what_a_configuration_says(c: DecodeConfig) -> None:
    kernel = (attention_decode_kernel if c.page is None else attention_paged_kernel)(c)
    used = kernel.lowered("sm_90a").shared_bytes
    assert used <= c.shared_bytes <= used + 2048
