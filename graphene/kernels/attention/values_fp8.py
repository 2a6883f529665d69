"""Values of fp8 as attention's kernel for sm_90a reads them: lines along the keys, 16 keys in an order of their own."""

from __future__ import annotations

from dataclasses import dataclass

import graphene as gr
from graphene.kernels.access import vector_access
from graphene.kernels.arguments import MOST_BLOCKS_YZ, element, instance, size
from graphene.kernels.attention.problem import KEYS_OF_VALUES, MOST
from graphene.kernels.attention.reference_fp8 import transposed

__all__ = ["ValuesConfig", "attention_values_kernel"]

TILE = 128  # keys of a block


@dataclass(frozen=True)
class ValuesConfig:
    """The type of the values, and whether a head has at most 64 elements. Raises VerifyError KERNEL_ARGUMENT."""

    dtype: gr.DType = gr.fp8e4m3
    columns: int = 64

    def __post_init__(self) -> None:
        element("ValuesConfig", "dtype", self.dtype, ("fp8e4m3", "fp8e5m2"))
        size("ValuesConfig", "columns", self.columns, least=64, multiple_of=64, most=128)


def attention_values_kernel(config: ValuesConfig) -> gr.Kernel:
    """VT[b, h, d, n] = V[b, key(n), h, d], where key(n) changes the order of 16 keys as fp8 attention multiplies them.

    V is (batch, keys, heads, D) with any strides that are multiples of 16, and D is a multiple of 16. VT is
    (batch, heads, D, keys), where keys are filled up to a multiple of 16 by zeros.
    """
    instance("attention_values_kernel", "config", config, ValuesConfig)
    columns, line = config.columns, KEYS_OF_VALUES
    with gr.Kernel("attention_values", means=lambda V: {"VT": transposed(V)}) as kernel:
        batch, heads = gr.sym("batch", max=MOST_BLOCKS_YZ), gr.sym("heads", max=MOST_BLOCKS_YZ)
        keys, D = gr.sym("keys", max=MOST), gr.sym("D", multiple_of=16, max=256)
        strides = gr.sym("Vb Vs Vh", multiple_of=16)
        V = gr.input("V", gr.Layout((batch, keys, heads, D), (*strides, 1)), config.dtype, align_bytes=16)
        VT = gr.output(
            "VT", gr.row_major(batch, heads, D, gr.ceil_div(keys, line) * line), config.dtype, align_bytes=16
        )
        parts = gr.ceil_div(D, columns)
        blocks, threads = gr.blocks(gr.ceil_div(keys, TILE), heads * parts, batch), gr.threads(columns * 4)
        (n, z, b), (t,) = blocks.indices(), threads.indices()
        h, part = z // gr.max(parts, 1), z % gr.max(parts, 1)
        # A chunk of a row lies where three bits of row // 16 put it, so that 8 x 16 rows of a column are apart.
        s = gr.alloc(
            "s", [TILE, columns], config.dtype, gr.SH, swizzle=gr.Swizzle(3, 4, (columns * 16).bit_length() - 5)
        )
        gr.start_kernels()  # attention's blocks may start as soon as there is room
        gr.wait_kernels()
        through = tuple(vector_access(kind, 16, config.dtype) for kind in ("ld.global", "st.shared"))
        gr.move(s, V[b, :, h, :].tile([TILE, columns])[n, part], on=threads, atom=through)
        gr.barrier()
        out = VT[b, h, :, :].tile([columns, TILE])[part, n].tile([1, line])
        store = vector_access("st.global", line, config.dtype)
        r = gr.alloc("r", [line], config.dtype, gr.RF)
        for step in range(2):  # a thread has 16 keys of a column
            chunk, column = t % 8, t // 8 + step * (columns // 2)
            for i in range(line):
                key = i // 2 % 2 * 8 + i // 4 * 2 + i % 2
                gr.move(r[i], s[chunk * line + key, column])
                with gr.if_(n * TILE + chunk * line + key >= keys):
                    gr.init(r[i], 0)
            gr.move(out[column, chunk][0, :], r, atom=store)
    return kernel
