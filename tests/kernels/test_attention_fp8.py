"""attention_sm90 with fp8: values against fp64, the order of values, its promise, no spills, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene.errors import VerifyError
from graphene.judge.formats import nearest
from graphene.kernels import BackwardConfig, ForwardConfig
from graphene.kernels.attention.problem import Attention, Extra
from graphene.kernels.attention.reference_fp8 import forward_fp8, in_sequence, order, transposed
from graphene.kernels.attention.sm90 import ForwardSm90, attention_forward_sm90
from graphene.kernels.attention.values_fp8 import ValuesConfig, attention_values_kernel
from graphene.select.attention_fp8 import select_forward_fp8

torch = pytest.importorskip("torch", reason="NumPy has no type of fp8: calls take PyTorch's tensors")

E4, E5 = gr.fp8e4m3, gr.fp8e5m2
TYPES = {E4: torch.float8_e4m3fn, E5: torch.float8_e5m2}
PLAIN = Attention(32, fp8=(E4, E4, E4))
SMALL = ForwardSm90(PLAIN, 32, 1, 2, queries=1)
ONE = replace(SMALL, persistent=False, copier=False)
CONFIGS = {
    "one consumer": SMALL,
    "two consumers, LSE": replace(SMALL, consumers=2, queries=2, lse=True),
    "three consumers": replace(SMALL, consumers=3, queries=2),
    "uneven tiles": replace(SMALL, consumers=3, queries=2, uneven=True),
    "causal, grouped heads, three types": replace(
        SMALL, what=Attention(48, gr.bf16, right=True, group=2, fp8=(E5, E4, E5)), lse=True
    ),
    "a window, a block for each tile": replace(ONE, what=replace(PLAIN, left=True, right=True)),
    "sums that always shrink": replace(SMALL, lazy=False),
    "a cap": replace(ONE, what=replace(PLAIN, softcap=True), lse=True),
    "a scale that is not positive": replace(ONE, what=replace(PLAIN, scaled=True), lse=True),
    "sinks": replace(SMALL, what=replace(PLAIN, sinks=True), lse=True),
    "a mask of keys": replace(ONE, what=replace(PLAIN, mask=Extra(rows=False)), bits=True),
}


def call(c: ForwardSm90, batch: int, sq: int, sk: int, kv_heads: int = 2) -> None:
    """Compares a call with the meaning in fp64. A weight is rounded to 4 bits, and a row's errors cancel in part."""
    a, rng = c.what, np.random.default_rng(sq + sk)
    assert a.fp8 is not None
    heads = kv_heads * a.group
    shapes = zip((sq, sk, sk), (heads, kv_heads, kv_heads), a.fp8, strict=True)
    given = [torch.tensor(rng.standard_normal((batch, s, n, a.D))).to(TYPES[t]) for s, n, t in shapes]
    wide: dict[str, Any] = {n: t.double().numpy() for n, t in zip("QKV", given, strict=True)}
    wide["V"] = transposed(wide["V"])
    given[2] = torch.from_numpy(transposed(given[2].view(torch.uint8).numpy())).view(given[2].dtype)
    more: dict[str, Any] = {}
    for n, count in (("scale_q", heads), ("scale_k", kv_heads), ("scale_v", kv_heads)):
        more[n] = (rng.random((batch, count)) + 0.5).astype(np.float32)
    masks: dict[str, Any] = {}
    if a.mask is not None:
        from graphene.kernels.attention import reference
        from graphene.kernels.attention.key_tiles import list_elems

        M = (rng.random((batch, heads, 1, sk)) < 0.7).astype(np.uint8)
        T = np.zeros((batch, heads, 1, list_elems(sk, c.BN, c.bits)), np.int32)
        masks = {"M": M, "T": reference.tiles(a, c.BM, c.BN, c.bits, M, T)}
    sinks = {"sinks": rng.standard_normal(heads).astype(np.float32)} if a.sinks else {}
    options = ("cap_log2", 3.0, a.softcap), ("left", 20, a.left), ("right", 3, a.right)
    numbers = {"scale_log2": -0.3 if a.scaled else 0.3, **{n: v for n, v, there in options if there}}
    made_of = torch.float16 if a.dtype == gr.fp16 else torch.bfloat16
    outs = [torch.full((batch, sq, heads, a.D), float("nan"), dtype=made_of)] + [
        torch.full((batch, heads, sq), float("nan"))
    ] * c.lse
    exact = {n: x.astype(np.float64) for n, x in {**more, **sinks}.items()}
    with np.errstate(divide="ignore"):
        want = forward_fp8(a, c.lse, **wide, **exact, **masks, **numbers, O=outs[0].double().numpy())
    attention_forward_sm90(c)(*given, *more.values(), *masks.values(), *sinks.values(), *outs, *numbers.values())
    got, there = outs[0].double().numpy(), want["O"]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - there) < 0.03 * np.linalg.norm(there)
    assert np.abs(got - there).max() < 0.03 * np.abs(wide["V"]).max() * 1.5
    if c.lse:
        np.testing.assert_allclose(outs[1].numpy(), want["LSE"], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_values(name: str) -> None:
    c = CONFIGS[name]
    call(c, 1, c.BM + 5, 3 * c.BN + 7)
    call(c, 2, 2 * c.BM, c.BN)
    if not c.what.right:
        call(c, 1, 3, 16 * 5 + 1)
    if c.uneven:
        call(c, 1, 7 * 64 + 3, c.BN)


def test_weights_are_rounded_once_to_four_bits() -> None:
    """With the weights rounded as the promise says, 2^6 times larger, what remains is the instruction's 14 bits."""
    rng, sk, d = np.random.default_rng(0), 32, 32
    q, k, v = (torch.tensor(rng.standard_normal((1, s, 1, d))).to(torch.float8_e4m3fn) for s in (64, sk, sk))
    s = (q.double()[0, :, 0] @ k.double()[0, :, 0].T).numpy() * 0.3
    p = np.exp2(s - s.max(1, keepdims=True))
    want = nearest(p * 64, E4) / 64 @ v.double()[0, :, 0].numpy() / p.sum(1, keepdims=True)
    lines = torch.from_numpy(transposed(v.view(torch.uint8).numpy())).view(v.dtype)
    one, out = np.ones((1, 1), np.float32), np.zeros((1, 64, 1, d), np.float16)
    attention_forward_sm90(SMALL)(q, k, lines, one, one, one, torch.from_numpy(out), 0.3)
    off = np.abs(out[0, :, 0] - want)
    assert np.median(off) < 5e-4  # a weight at a border of two numbers may go to either
    assert np.linalg.norm(off) < 5e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("shape", [(2, 130, 3, 64), (1, 37, 2, 128), (2, 128, 1, 80), (1, 200, 2, 32), (1, 5, 1, 256)])
def test_values_are_brought_into_order(shape: tuple[int, ...]) -> None:
    V = np.random.default_rng(0).integers(0, 100, shape).astype(np.uint8)
    want = transposed(V)
    for columns in (64, 128):
        got = np.full(want.shape, 7, np.uint8)
        attention_values_kernel(ValuesConfig(E5, columns))(V, got)
        assert np.array_equal(got, want)
    assert np.array_equal(in_sequence(want, shape[1]), V)


def test_the_order_is_that_of_the_accumulators() -> None:
    """A thread has keys 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 of scores, which are four neighbours of the operand."""
    assert order().reshape(4, 4).tolist() == [[2 * c, 2 * c + 1, 2 * c + 8, 2 * c + 9] for c in range(4)]


@pytest.mark.parametrize("name", ["one consumer", "causal, grouped heads, three types"])
def test_its_promise_is_held(name: str) -> None:
    assert attention_forward_sm90(CONFIGS[name]).check().ok


@pytest.mark.parametrize("dtype", [E4, E5])
def test_the_promise_of_values_is_held(dtype: gr.DType) -> None:
    kernel = attention_values_kernel(ValuesConfig(dtype))
    assert kernel.check().ok
    assert kernel.compile("sm_90a").spill_bytes == 0


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("D", [64, 128, 256])
def test_what_is_chosen_does_not_spill(D: int, right: bool, lse: bool) -> None:
    for sizes in ((32, 16, 384, 384), (1, 4, 500, 500)):
        c = select_forward_fp8(Attention(D, gr.bf16, right=right, fp8=(E4, E4, E4)), *sizes, lse=lse)
        assert attention_forward_sm90(c).compile("sm_90a").spill_bytes == 0, c


def test_refusals() -> None:
    for wrong, what in (
        ({"apart": False}, "apart does not fit fp8"),
        ({"lse": True, "training": True}, "training does not fit fp8"),
        ({"q_in_registers": True}, "q_in_registers does not fit fp8"),
        ({"BN": 48}, "BN"),
        ({"what": replace(PLAIN, varlen=True), "persistent": False}, "packed sequences do not fit fp8"),
    ):
        with pytest.raises(VerifyError, match=what):
            replace(SMALL, **wrong)
    for other in (ForwardConfig, BackwardConfig):
        with pytest.raises(VerifyError, match="fp8 does not fit"):
            other(PLAIN)
    with pytest.raises(VerifyError, match="fp8 of K"):
        replace(PLAIN, fp8=(E4, gr.fp16, E4))
    with pytest.raises(VerifyError, match="D"):
        replace(PLAIN, D=40)
    with pytest.raises(VerifyError, match="dtype"):
        ValuesConfig(gr.fp16)
