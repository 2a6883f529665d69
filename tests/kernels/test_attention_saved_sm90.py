"""attention_keys_gradient_sm90 and attention_queries_product_sm90: values, promises, no spills, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from graphene.errors import VerifyError
from graphene.kernels.attention import reference
from graphene.kernels.attention.keys_sm90 import KeysSm90, attention_keys_gradient_sm90
from graphene.kernels.attention.problem import Attention
from graphene.kernels.attention.product_sm90 import ProductSm90, attention_queries_product_sm90
from graphene.kernels.attention.sums import attention_rows_kernel
from graphene.select.attention import select_saving_sm90
from graphene.select.device import H200, of_arch

CAUSAL = Attention(64, right=True)
CONFIGS = {
    "two stages of keys": (KeysSm90(Attention(64), 2), ProductSm90(Attention(64), 2)),
    "causal": (KeysSm90(CAUSAL, stages=2), ProductSm90(CAUSAL, 3, 2)),
    "operands held, turns": (KeysSm90(CAUSAL, held=2, turns=True), ProductSm90(CAUSAL)),
    "a block for each tile": (KeysSm90(CAUSAL, 2), ProductSm90(CAUSAL, 2, persistent=False)),
    "by shared memory": (KeysSm90(Attention(128), direct=False), ProductSm90(Attention(128), 1)),
    "window": (KeysSm90(Attention(64, left=True, right=True)), ProductSm90(Attention(64, left=True, right=True), 3)),
    "left end": (KeysSm90(Attention(40, left=True)), ProductSm90(Attention(40, left=True), 1)),
    "grouped heads": (KeysSm90(Attention(72, right=True, group=2)), ProductSm90(Attention(72, right=True, group=2), 2)),
}


def call(
    c: tuple[KeysSm90, ProductSm90], sq: int, sk: int, left: int = 40, right: int = 0, batch: int = 1, kv_heads: int = 1
) -> None:
    """Compares the gradients with their meaning in fp64. The work space has half of the heads."""
    keys, product = c
    a, rng = keys.what, np.random.default_rng(sq + sk)
    heads, scale = kv_heads * a.group, a.D**-0.5
    shapes = {"G": (sq, heads), "Q": (sq, heads), "K": (sk, kv_heads), "V": (sk, kv_heads)}
    given: dict[str, Any] = {n: rng.standard_normal((batch, *s, a.D)).astype(np.float16) for n, s in shapes.items()}
    wide: dict[str, Any] = {n: x.astype(np.float64) for n, x in given.items()}
    window = ({"left": left} if a.left else {}) | ({"right": right} if a.right else {})
    numbers = {"scale_log2": scale / math.log(2), "scale": scale, **window}
    with np.errstate(divide="ignore", invalid="ignore"):  # rows that see no key
        made = reference.forward(a, True, **wide, **numbers)
        made["delta"] = reference.delta(wide["G"], made["O"])
        passed = {**wide, **numbers, "LSE": made["LSE"], "delta": made["delta"]}
        want = {**reference.keys_gradient(a, None, **passed), **reference.queries_gradient(a, **passed)}
    tiles = -(-sq // 64)
    rows = np.full((batch, heads, tiles, 128), np.nan, np.float32)
    got = {n: np.full(x.shape, np.nan, np.float16) for n, x in want.items()}
    attention_rows_kernel(a)(*(made[n].astype(np.float32, order="C") for n in ("delta", "LSE")), rows)
    G, Q, K, V = given.values()
    pairs = batch * kv_heads
    each = max(1, pairs // 2)
    for first in range(0, pairs, each):
        saved = np.full((min(each, pairs - first) * a.group, tiles, -(-sk // 128) * 128, 64), np.nan, np.float16)
        attention_keys_gradient_sm90(keys)(
            G, rows, Q, K, V, saved, got["dK"], got["dV"], *numbers.values(), first
        )  # fmt: skip
        attention_queries_product_sm90(product)(K, saved, got["dQ"], scale, *window.values(), first)
    for n, x in want.items():
        np.testing.assert_allclose(got[n], x, rtol=3e-3, atol=3e-3, err_msg=n)


@pytest.mark.parametrize("name", CONFIGS)
def test_values(name: str) -> None:
    call(CONFIGS[name], 150, 200)
    call(CONFIGS[name], 70, 129, right=-3)  # rows that see no key


def test_shares_of_heads() -> None:
    call(CONFIGS["causal"], 300, 260, batch=2, kv_heads=2)


def test_promises_are_held() -> None:
    what = Attention(16, right=True)
    assert attention_keys_gradient_sm90(KeysSm90(what, stages=2)).check().ok
    assert attention_queries_product_sm90(ProductSm90(what, 2, 2)).check().ok


def test_refusals() -> None:
    for config in (KeysSm90, ProductSm90):
        with pytest.raises(VerifyError, match="no kernel of this problem"):
            config(Attention(64, varlen=True))
        with pytest.raises(VerifyError, match="do not fit into shared memory"):
            config(Attention(128), stages=9)
        with pytest.raises(VerifyError, match="head size"):
            config(Attention(192))
        with pytest.raises(VerifyError, match="what"):
            config(None)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="held"):
        KeysSm90(CAUSAL, held=3)


def test_choice() -> None:
    """Operands in registers for heads of 64, where there is room for them, and turns in long sequences; as many
    consumers as divide the queries.
    """
    for depth, sq, keys, stages, held, turns, consumers in (
        (64, 384, 2, 4, 2, False, 3),
        (64, 4096, 2, 4, 2, True, 4),
        (128, 100, 1, 3, 0, True, 2),
    ):
        found = select_saving_sm90(Attention(depth, right=True), sq, 4096)
        assert found is not None
        k, p = found
        assert (k.keys, k.stages, k.held, k.turns) == (keys, stages, held, turns)
        assert (k.direct, p.consumers) == (depth == 64, consumers)
    for what, device in ((Attention(64, softcap=True), H200), (Attention(192), H200), (CAUSAL, of_arch("sm_80"))):
        assert select_saving_sm90(what, 64, 64, device=device) is None


def test_no_spills() -> None:
    for turns in (False, True):
        keys = KeysSm90(CAUSAL, 2, 4, held=2, turns=turns)
        assert attention_keys_gradient_sm90(keys).compile("sm_90a").spill_bytes == 0
    assert attention_queries_product_sm90(ProductSm90(Attention(128))).compile("sm_90a").spill_bytes == 0
