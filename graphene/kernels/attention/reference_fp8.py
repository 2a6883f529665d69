"""The meanings of attention with fp8: of the forward pass, and of the kernel that brings values into its order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.attention.reference import LOG2E, changed, normalized, of_heads
from graphene.kernels.gemm.result import of_fp8

if TYPE_CHECKING:
    from graphene.kernels.attention.problem import Attention


KEYS_OF_VALUES = 16  # keys in an order of their own
UP_FP8 = 6  # weights are 2^6 times larger


def order() -> Any:
    """Which of 16 keys stands at a place of transposed values, in pairs: of the first eight, of the others, in turn."""
    import numpy as np

    return np.array([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])


def transposed(V: Any) -> Any:
    """Values (batch, keys, kv_heads, D) as (batch, kv_heads, D, keys), 16 keys in ``order``; zeros fill the last 16."""
    import numpy as np

    b, keys, heads, d = V.shape
    made = np.zeros_like(V, shape=(b, heads, d, -(-keys // KEYS_OF_VALUES), KEYS_OF_VALUES))
    made.reshape(b, heads, d, -1)[..., :keys] = V.transpose(0, 2, 3, 1)
    return made[..., order()].reshape(b, heads, d, -1)


def in_sequence(V: Any, keys: int) -> Any:
    """The inverse, (batch, keys, kv_heads, D)."""
    import numpy as np

    b, heads, d, n = V.shape
    made = V.reshape(b, heads, d, n // KEYS_OF_VALUES, KEYS_OF_VALUES)[..., np.argsort(order())]
    return made.reshape(b, heads, d, n)[..., :keys].transpose(0, 3, 1, 2)


def forward_fp8(a: Attention, lse: bool, training: bool = False, **given: Any) -> dict[str, Any]:
    """What ``forward`` computes of numbers times the scales of their heads. Values are ``transposed``.

    Weights are rounded to e4m3, 2^6 times larger, relative to the maximum of the keys so far.
    """
    import numpy as np

    Q, K = given["Q"], given["K"]
    batch, sq, heads, _ = Q.shape
    V = in_sequence(given["V"], K.shape[1])
    O, LSE = np.zeros_like(given["O"]), np.zeros_like(Q, shape=(batch, heads, sq))
    for i in range(batch):
        q, k, v = Q[i].swapaxes(0, 1), of_heads(K[i], heads).transpose(1, 2, 0), of_heads(V[i], heads).swapaxes(0, 1)
        of_keys, of_values = (np.repeat(given[n][i], a.group)[:, None, None] for n in ("scale_k", "scale_v"))
        s = of_fp8(q, k, False) * (given["scale_log2"] * (given["scale_q"][i][:, None, None] * of_keys))
        x = changed(a, s, i, given)[0]
        if a.sinks:  # a column more
            x = np.concatenate([x, np.broadcast_to(given["sinks"][:, None, None] * LOG2E, (*x.shape[:2], 1))], 2)
        p, total, log2_sum = normalized(x, 2)
        LSE[i] = log2_sum * math.log(2)
        p = gr.rounded("P", p[..., : K.shape[1]] * 2.0**UP_FP8, by=None)
        O[i] = (of_fp8(p, v, False) * of_values / (total * 2.0**UP_FP8)).swapaxes(0, 1)
    return {"O": O, "LSE": LSE} if lse else {"O": O}
