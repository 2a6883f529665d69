"""Transposition through swizzled shared memory: vectors of rows in, vectors of columns out, no bank conflicts."""

from __future__ import annotations

from dataclasses import dataclass

import graphene as gr
from graphene.kernels.access import vector_access
from graphene.kernels.arguments import MOST_BLOCKS_YZ, choice, element, instance

__all__ = ["TransposeConfig", "transpose_kernel"]

TYPES = ("fp16", "bf16", "i16", "u16", "fp32", "tf32", "i32", "u32", "i8", "u8", "fp8e4m3", "fp8e5m2")


@dataclass(frozen=True)
class TransposeConfig:
    """The type, of 1, 2 or 4 bytes, and how many neighbours one instruction reads of X and writes of Y.

    `load` divides N and the strides of X, `store` divides M and the strides of Y, in elements. Raises VerifyError
    KERNEL_ARGUMENT.
    """

    dtype: gr.DType = gr.fp16
    load: int = 8
    store: int = 8

    def __post_init__(self) -> None:
        element("TransposeConfig", "dtype", self.dtype, TYPES)
        fit = tuple(1 << i for i in range((128 // self.dtype.bits).bit_length()))
        choice("TransposeConfig", "load", self.load, fit)
        choice("TransposeConfig", "store", self.store, fit)


def transpose_kernel(config: TransposeConfig) -> gr.Kernel:
    """Y[b, n, m] = X[b, m, n]: X (B, M, N), Y (B, N, M), contiguous along the last dimension. Any sizes."""
    instance("transpose_kernel", "config", config, TransposeConfig)
    c = config
    elem_bytes = c.dtype.bits // 8
    V = 16 // elem_bytes  # elements of 16 bytes
    T = 8 * V  # a tile's rows are 8 such chunks, its columns too
    with gr.Kernel("transpose", means=lambda X: {"Y": X.swapaxes(1, 2)}) as kernel:
        B, M, N = gr.sym("B", max=MOST_BLOCKS_YZ), gr.sym("M", multiple_of=c.store), gr.sym("N", multiple_of=c.load)
        (ldX, bsX), (ldY, bsY) = gr.sym("ldX bsX", multiple_of=c.load), gr.sym("ldY bsY", multiple_of=c.store)
        X = gr.input("X", gr.Layout((B, M, N), (bsX, ldX, 1)), c.dtype, align_bytes=c.load * elem_bytes)
        Y = gr.output("Y", gr.Layout((B, N, M), (bsY, ldY, 1)), c.dtype, align_bytes=c.store * elem_bytes)
        blocks, threads = gr.blocks(gr.ceil_div(N, T), gr.ceil_div(M, T), B), gr.threads(T * 4)
        (bn, bm, b), (t,) = blocks.indices(), threads.indices()
        # Chunk j of row m lies at j ^ (m / V % 8): both a row's chunks and one column of every V-th row are 8 places.
        bits = V.bit_length() - 1
        s = gr.alloc("s", [T, T], c.dtype, gr.SH, swizzle=gr.Swizzle(3, bits, 3 + bits))
        through = tuple(vector_access(kind, c.load, c.dtype) for kind in ("ld.global.nc", "st.shared"))
        gr.move(s, X[b, :, :].tile([T, T])[bm, bn], on=threads, atom=through)
        gr.barrier()
        out = Y[b, :, :].tile([T, T])[bn, bm].tile([1, c.store])
        store = vector_access("st.global", c.store, c.dtype)
        r = gr.alloc("r", [V // c.store, c.store], c.dtype, gr.RF)
        for step in range(2):  # 8 * T vectors of a column, 4 * T threads
            chunk, column = t % 8, t // 8 + step * (T // 2)
            for i in range(V):
                gr.move(r[i // c.store, i % c.store], s[chunk * V + i, column])
            for i in range(V // c.store):
                gr.move(out[column, chunk * (V // c.store) + i][0, :], r[i, :], atom=store)
    return kernel
