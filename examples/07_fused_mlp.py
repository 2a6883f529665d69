"""A perceptron in one kernel: activations stay in registers from the first layer to the last. This needs no GPU.

docs/fused.md says how an accumulator becomes the next layer's operand. On a GPU the same kernel is
``graphene.ops.fused_mlp(x, weights, biases)``, or ``graphene.nn.FusedMLP(sequential)``.
"""

from __future__ import annotations

import numpy as np

from graphene.kernels.mlp import MlpConfig, mlp_kernel

WIDTHS = (20, 64, 64, 64, 10)  # the input's width, then that of each layer's result


def reference(x: np.ndarray, weights: list[np.ndarray], biases: list[np.ndarray]) -> np.ndarray:
    """The same with sums in float64 and each layer's result rounded to fp16, as if each layer were a kernel."""
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        sums = x.astype(np.float64) @ w.astype(np.float64).T + b
        x = (np.maximum(sums, 0) if i < len(weights) - 1 else sums).astype(np.float16)
    return x


def main() -> None:
    config = MlpConfig(
        WIDTHS, activations=("relu", "relu", "relu", None), biases=(True,) * 4,
        rows=16,  # rows of a warp
        warps=2,
        chunk=32, stages=3,  # weights arrive as tiles of 32 columns, three of them at a time
    )  # fmt: skip
    kernel = mlp_kernel(config)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, WIDTHS[0])).astype(np.float16)
    pairs = zip(WIDTHS[1:], WIDTHS, strict=False)
    weights = [(rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float16) for n, k in pairs]
    biases = [rng.standard_normal(n).astype(np.float16) for n in WIDTHS[1:]]
    y = np.zeros((100, WIDTHS[-1]), np.float16)
    # There is a list for each run of layers of one form: the first, the two of 64 by 64, the last.
    kernel(x, weights[:1], biases[:1], weights[1:3], biases[1:3], weights[3:], biases[3:], y)
    want = reference(x, weights, biases)
    print("largest error:", np.abs(y.astype(np.float64) - want).max(), "of", np.abs(want).max())

    print(kernel.check(M=40))  # checks its products, its copies, and the whole kernel against the formula


if __name__ == "__main__":
    main()
