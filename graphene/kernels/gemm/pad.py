"""Copies of a product's operands before it, with lines of multiples of 16 bytes, filled up with zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphene as gr
from graphene.kernels.arguments import choice, element, flags
from graphene.kernels.gemm.operand import access, matrix
from graphene.kernels.gemm.problem import RESULTS

if TYPE_CHECKING:
    from graphene.dtypes import DType

__all__ = ["PADDED_MOST", "gemm_pad"]

PADDED_MOST = 2**30  # the most lines, and elements of a line, that are padded, because coordinates have 32 bits


def gemm_pad(names: str = "AB", dtype: DType = gr.fp16, batched: bool = False) -> gr.Kernel:
    """Copies matrices to lines that are multiples of 16 bytes (or more) long, filled up with zeros.

    `names` is "A", "B" or "AB". Each matrix has an input (lines,length) with any line stride and an output
    (lines,padded), in the order A, A_padded, B, B_padded; if batched, (batch,lines,length) and so on. A product of odd
    sizes is faster on such copies than on operands whose lines begin anywhere: the copy reads these once, but the
    product would read them many times. Raises VerifyError KERNEL_ARGUMENT.
    """
    choice("gemm_pad", "names", names, ("A", "B", "AB"))
    element("gemm_pad", "dtype", dtype, tuple(RESULTS))
    flags("gemm_pad", "batched", (batched,), 1)
    chunk = 128 // dtype.bits
    batch = [gr.sym("batch")] if batched else []

    def padded(A: Any = None, A_padded: Any = None, B: Any = None, B_padded: Any = None) -> dict[str, Any]:
        pairs = {"A": (A, A_padded), "B": (B, B_padded)}
        return {f"{n}_padded": filled_up(pairs[n][0], pairs[n][1].shape[-1]) for n in names}

    def wide_enough(s: dict[str, int]) -> None:
        for n in names:
            s[f"padded_{n}"] = max(s[f"padded_{n}"], -(-s[f"length_{n}"] // chunk) * chunk)

    lengths = (1, 5, 127, 128, 131, 511, 515)  # about pieces of lines and whole ones of a block
    sensible = gr.Arguments(sizes=wide_enough, values={f"length_{n}": lengths for n in names})
    with gr.Kernel("gemm_pad", means=padded, arguments=sensible) as kernel:
        pairs = []
        for name in names:
            lines, length = (gr.sym(f"{n}_{name}", max=PADDED_MOST) for n in ("lines", "length"))
            padded = gr.sym(f"padded_{name}", multiple_of=chunk, max=PADDED_MOST)
            pairs.append(
                (
                    matrix(gr.input, name, (lines, length), batch, dtype, dtype.bits // 8),
                    matrix(gr.output, f"{name}_padded", (lines, padded), batch, dtype, 16),
                )
            )
        shapes = [y.shape[-2:] for _, y in pairs]
        width, steps = 64 // dtype.bits, 4  # of 8 bytes, which lanes side by side store at once
        across, down = (gr.max(*(gr.ceil_div(s[i], n) for s in shapes)) for i, n in ((1, 32 * width * steps), (0, 8)))
        across = gr.max(across, 1)
        blocks = gr.blocks(across * down, len(pairs) * (batch[0] if batched else 1))  # along lines first
        threads = gr.threads(32, 8)
        gr.start_kernels()  # the product's blocks may start as soon as there is room
        gr.wait_kernels()  # the kernel before this one may still read the copies of a product before
        (block, z), (tx, ty) = blocks.indices(), threads.indices()
        row, column = block // across * 8 + ty, block % across * 32 * steps + tx
        r = gr.alloc("r", [steps, width], dtype, gr.RF)
        for i, (x, y) in enumerate(pairs):
            x, y = (t[z // len(pairs), :, :] if batched else t for t in (x, y))
            with gr.if_((z % len(pairs) == i) & (row < y.shape[0])):
                for j in range(steps):  # all of them on their way before the first is stored
                    source = x.tile([1, width])[row, column + 32 * j][0, :]
                    gr.move(r[j, :], source, atom=access("ld.global", dtype.bits // 8))
                for j in range(steps):
                    gr.move(y.tile([1, width])[row, column + 32 * j][0, :], r[j, :], atom=access("st.global", 8))
    return kernel


def filled_up(x: Any, width: int) -> Any:
    """Lines of a width, zero behind what they hold."""
    import numpy as np

    x = x[..., :width]
    return np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, width - x.shape[-1])])
