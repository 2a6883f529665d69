"""attention_gradient_sm90 and what goes before and after it: values, promises, synchronisation, no spills, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graphene.errors import VerifyError
from graphene.kernels.attention import reference, reference_sums
from graphene.kernels.attention.backward_sm90 import GradientSm90, attention_gradient_sm90
from graphene.kernels.attention.problem import Attention
from graphene.kernels.attention.sums import attention_rows_kernel, attention_sums_kernel
from graphene.select.attention import select_backward_sm90
from graphene.select.device import of_arch

CAUSAL = Attention(64, right=True)
CONFIGS = {
    "one block": GradientSm90(Attention(64), keys=2, stages=3),
    "causal": GradientSm90(CAUSAL),
    "parts": GradientSm90(Attention(128), parts=2),
    "causal parts": GradientSm90(CAUSAL, keys=2, stages=3, parts=3),
    "grouped heads": GradientSm90(Attention(72, right=True, group=2)),
    "grouped heads in parts": GradientSm90(replace(CAUSAL, group=2), parts=4),
}


def call(c: GradientSm90, sq: int, sk: int, right: int = 0, batch: int = 1, kv_heads: int = 1) -> None:
    """Compares the gradients with their meaning in fp64."""
    a, rng = c.what, np.random.default_rng(sq + sk)
    heads, scale = kv_heads * a.group, a.D**-0.5
    shapes = {"G": (sq, heads), "Q": (sq, heads), "K": (sk, kv_heads), "V": (sk, kv_heads)}
    given: dict[str, Any] = {n: rng.standard_normal((batch, *s, a.D)).astype(np.float16) for n, s in shapes.items()}
    wide: dict[str, Any] = {n: x.astype(np.float64) for n, x in given.items()}
    numbers = {"scale_log2": scale / math.log(2), "scale": scale, **({"right": right} if a.right else {})}
    with np.errstate(divide="ignore", invalid="ignore"):  # rows that see no key
        made = reference.forward(a, True, **wide, **numbers)
        made["delta"] = reference.delta(wide["G"], made["O"])
        passed = {**wide, **numbers, "LSE": made["LSE"], "delta": made["delta"]}
        want = {**reference.keys_gradient(a, None, **passed), **reference.queries_gradient(a, **passed)}
    tiles = -(-sq // 64)
    rows = np.full((batch, heads, tiles, 128), np.nan, np.float32)
    sums = np.full((batch, heads, c.parts * tiles, c.depth // 4, 256), np.nan, np.float32)
    got = {n: np.full(x.shape, np.nan, np.float16) for n, x in want.items()}
    attention_rows_kernel(a)(*(made[n].astype(np.float32, order="C") for n in ("delta", "LSE")), rows)
    G, Q, K, V = given.values()
    attention_gradient_sm90(c)(G, rows, Q, K, V, got["dK"], got["dV"], sums, *numbers.values())
    attention_sums_kernel(a, c.parts)(sums, got["dQ"], scale)
    for n, x in want.items():
        np.testing.assert_allclose(got[n], x, rtol=3e-3, atol=3e-3, err_msg=n)


@pytest.mark.parametrize("name", CONFIGS)
def test_values(name: str) -> None:
    call(CONFIGS[name], 150, 200)
    call(CONFIGS[name], 70, 129, right=-3)  # rows that see no key


def test_many_steps() -> None:
    call(CONFIGS["causal"], 400, 300, batch=2, kv_heads=2)
    call(CONFIGS["causal parts"], 600, 800)  # a part that begins beyond the diagonal


def test_order_of_rows() -> None:
    dq = np.random.default_rng(0).standard_normal((2, 70, 3, 72))
    assert np.array_equal(reference_sums.out_of_tiles(reference_sums.in_tiles(dq), 70, 72), dq)


def test_promises_are_held() -> None:
    assert attention_gradient_sm90(CONFIGS["causal"]).check().ok
    assert attention_rows_kernel(Attention(64)).check().ok
    assert attention_sums_kernel(Attention(72)).check().ok


def test_equal_calls_give_equal_bits() -> None:
    c = CONFIGS["parts"]
    rng = np.random.default_rng(0)
    G, Q, K, V = rng.standard_normal((4, 1, 256, 1, 128)).astype(np.float16)
    rows = rng.standard_normal((1, 1, 4, 128)).astype(np.float32) - 8
    made = []
    for seed in range(2):
        dK, dV, sums = np.zeros_like(K), np.zeros_like(V), np.zeros((1, 1, 8, 32, 256), np.float32)
        attention_gradient_sm90(c).simulate(G, rows, Q, K, V, dK, dV, sums, 0.1, 0.1, seed=seed)
        made.append([dK, dV, sums])
    assert all(np.array_equal(*pair) for pair in zip(*made, strict=True))


def test_refusals() -> None:
    with pytest.raises(VerifyError, match="no kernel of this problem"):
        GradientSm90(Attention(64, softcap=True))
    with pytest.raises(VerifyError, match="do not fit into shared memory"):
        GradientSm90(Attention(128), stages=3)
    with pytest.raises(VerifyError, match="keys"):
        GradientSm90(Attention(64), keys=0)
    with pytest.raises(VerifyError, match="what"):
        GradientSm90(None)  # type: ignore[arg-type]


def test_choice() -> None:
    """Heads that fill the device have a block each; the keys of few heads are cut into parts."""
    blocks = {(512, 384): 1, (32, 4096): 4, (16, 4096): 8, (64, 2048): 2, (1, 1): 1}
    for (heads, keys), want in blocks.items():
        for depth in (64, 128):
            c = select_backward_sm90(Attention(depth, right=True), 1, keys, heads)
            assert c is not None
            assert c.parts == want
    assert select_backward_sm90(Attention(64, softcap=True), 1, 64, 8) is None
    assert select_backward_sm90(Attention(192), 1, 64, 8) is None
    assert select_backward_sm90(Attention(64), 1, 64, 8, device=of_arch("sm_80")) is None


@pytest.mark.parametrize("c", [CONFIGS["one block"], CONFIGS["causal"]], ids=["one block", "causal"])
def test_no_spills(c: GradientSm90) -> None:
    assert attention_gradient_sm90(c).compile("sm_90a").spill_bytes == 0
