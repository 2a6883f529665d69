"""A step of an LSTM in one kernel: one sum for both products, gates and states in its epilogue. This needs no GPU.

On a GPU the same kernel is ``graphene.ops.lstm_cell``, or ``graphene.nn.LSTMCell`` with torch.nn.LSTMCell's parameters.
"""

from __future__ import annotations

import numpy as np

from graphene.kernels.recurrent import CellConfig, recurrent_cell

BATCH, INPUTS, HIDDEN = 40, 24, 32


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def reference(x: np.ndarray, h: np.ndarray, c: np.ndarray, *parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The formula, in float64."""
    x, h, c, w, u, b_x, b_h = (t.astype(np.float64) for t in (x, h, c, *parameters))
    i, f, g, o = np.split(x @ w.T + b_x + h @ u.T + b_h, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def main() -> None:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 2).astype(np.float16)

    # Four gates: a block's tile is 32 rows by 16 hidden units, which are 64 columns of the products.
    kernel = recurrent_cell(CellConfig(gates=4, biases=2, tile=(32, 16, 32), warps=(2, 1)))
    weights = normal(4 * HIDDEN, INPUTS), normal(4 * HIDDEN, HIDDEN)  # in the order of torch.nn.LSTMCell
    biases = normal(4 * HIDDEN), normal(4 * HIDDEN)
    h, c = np.zeros((2, BATCH, HIDDEN), np.float16)
    for step in range(3):
        x, h_new, c_new = normal(BATCH, INPUTS), np.zeros_like(h), np.zeros_like(c)
        kernel(x, h, c, *weights, *biases, h_new, c_new)
        want = reference(x, h, c, *weights, *biases)
        errors = [np.abs(got - exact).max() for got, exact in zip((h_new, c_new), want, strict=True)]
        print(f"step {step}: largest errors of h and c: {errors[0]:.1e}, {errors[1]:.1e}")
        h, c = h_new, c_new
    print(kernel.check(M=17, N=24, I=24, J=24))


if __name__ == "__main__":
    main()
