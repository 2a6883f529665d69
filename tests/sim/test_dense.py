"""Elements of 6 bits, sixteen in three words: unpacked, packed, and converted as each element by itself."""

from __future__ import annotations

import numpy as np
import pytest

import graphene as gr

TYPES = (gr.fp6e2m3, gr.fp6e3m2)


def joined(numbers: np.ndarray) -> np.ndarray:
    """Rows of numbers of 6 bits as rows of words, the first number lowest."""
    bits = numbers[..., None] >> np.arange(6) & 1
    words = bits.reshape(len(numbers), -1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
    return words.sum(-1).astype(np.uint32)


def unpacked(dtype: gr.DType, count: int) -> gr.Kernel:
    """Rows of `count` elements without gaps: as they are in fp16, and as they are packed again."""
    words = count * 6 // 32
    with gr.Kernel("unpacked") as kernel:
        rows = gr.sym("rows")
        x, again = gr.input("x", [rows, words], gr.u32), gr.output("again", [rows, words], gr.u32)
        y = gr.output("y", [rows, count], gr.fp16, align_bytes=16)
        (b,), (t,) = gr.blocks(gr.ceil_div(rows, 32)).indices(), gr.threads(32).indices()
        with gr.if_(b * 32 + t < rows):
            r = gr.unpack_fp6([gr.load(x[b * 32 + t, i]) for i in range(words)], dtype)
            half = gr.alloc("half", [count], gr.fp16, gr.RF)
            half[:] = r
            for i in range(0, count, 8):
                gr.move(y[b * 32 + t, :].tile([8])[i // 8], half.tile([8])[i // 8])
            for i in range(0, words, 3):
                part = gr.pack_fp6(r.tile([16])[i // 3] if count > 16 else r)
                for j in range(3):
                    again[b * 32 + t, i + j] = part[j]
    return kernel


def values(dtype: gr.DType) -> np.ndarray:
    """What the 64 numbers of 6 bits are: a sign, then an exponent and a fraction."""
    fraction, bias = (3, 1) if dtype == gr.fp6e2m3 else (2, 3)
    n = np.arange(64)
    exponent, rest = n >> fraction & (31 >> fraction), n & ((1 << fraction) - 1)
    small, usual = rest * 2.0 ** (1 - bias - fraction), ((1 << fraction) + rest) * 2.0 ** (exponent - bias - fraction)
    return np.where(n & 32, -1.0, 1.0) * np.where(exponent == 0, small, usual)


@pytest.mark.parametrize("count", [16, 32, 64])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_in_every_place(dtype: gr.DType, count: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 64, (70, count))
    numbers[:64] = (np.arange(64)[:, None] + np.arange(count) * 7) % 64
    x = joined(numbers)
    again, y = np.zeros_like(x), np.zeros(numbers.shape, np.float16)
    unpacked(dtype, count)(x, again, y)
    assert (y == values(dtype)[numbers]).all()
    assert (again == x).all()


def test_both_compile_for_all_gpus() -> None:
    text = unpacked(gr.fp6e2m3, 32).cuda_source("sm_80")
    assert text.count("__byte_perm") + text.count("prmt") >= 4


def test_what_they_refuse() -> None:
    with gr.Kernel("k"):
        x = gr.input("x", [4], gr.u32)
        gr.blocks(1)
        gr.threads(1)
        words, bytes_ = gr.let("w", 0, gr.u32, [3]), gr.let("b", 0, gr.fp6e2m3, [8])
        for call in (
            lambda: gr.unpack_fp6(words, gr.fp8e4m3),
            lambda: gr.unpack_fp6(gr.let("four", 0, gr.u32, [4]), gr.fp6e2m3),
            lambda: gr.unpack_fp6(x, gr.fp6e3m2),
            lambda: gr.unpack_fp6(gr.let("i", 0, gr.i32, [3]), gr.fp6e3m2),
            lambda: gr.unpack_fp6([], gr.fp6e3m2),
            lambda: gr.unpack_fp6([words, words[0]], gr.fp6e3m2),
            lambda: gr.pack_fp6(bytes_),
            lambda: gr.pack_fp6(words),
        ):
            with pytest.raises(gr.LayoutError) as e:
                call()
            assert e.value.code == "POINTWISE_TYPE"
        with pytest.raises(TypeError, match="takes registers"):
            gr.pack_fp6(3)  # type: ignore[arg-type]
