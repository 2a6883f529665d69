"""The canonical layouts of matrices in shared memory: which one a view has, and that no other says the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

import graphene as gr
from graphene import _core

SPANS = {"128-byte": (128, 3, 1), "64-byte": (64, 2, 2), "32-byte": (32, 1, 3), "unswizzled": (16, 0, 0)}


def place(name: str, esize: int, leading: int, stride: int, x: int, k: int) -> int:
    """Byte of element (x, k) before the swizzle, as PTX ISA draws the canonical layouts."""
    which, major = name.rsplit(" ", 1)
    span, bits, _ = SPANS[which]
    chunk = 16 // esize
    if major == "K-major":
        inner = k * esize if bits else k // chunk * leading + k % chunk * esize
        return x % 8 * span + x // 8 * stride + inner
    line = span // esize
    if bits:
        return x % line * esize + x // line * leading + k % 8 * span + k // 8 * stride
    return x % chunk * esize + x // chunk * stride + k % 8 * 16 + k // 8 * leading


def form(view: gr.Tensor, esize: int, swizzle: gr.Swizzle) -> dict[str, Any] | None:
    level = view.levels[-1]
    return _core.matrix_form(level[0], level[1], esize, swizzle)


def holds(found: dict[str, Any], view: gr.Tensor, esize: int) -> bool:
    level = view.levels[-1]
    return all(
        esize * int(level(x, k)) == place(found["name"], esize, found["leading_bytes"], found["stride_bytes"], x, k)
        for x in range(int(level[0].size))
        for k in range(int(level[1].size))
    )


def test_the_views_of_a_product_and_of_attention() -> None:
    sw = gr.swizzle(64, gr.fp16)
    with gr.Kernel("k"):
        gr.blocks(1)
        gr.threads(384)
        a = gr.alloc("a", [128, 64], gr.fp16, gr.SH, stages=4, swizzle=sw)
        b = gr.alloc("b", [256, 64], gr.fp16, gr.SH, swizzle=sw)
        panels = gr.alloc("v", gr.Layout((128, (64, 2)), (64, (1, 8192))), gr.fp16, gr.SH, stages=2, swizzle=sw)
        cores = gr.alloc("n", gr.Layout(((8, 16), (8, 2)), ((8, 64), (1, 1024))), gr.fp16, gr.SH)
        wide = gr.alloc("w", [64, 256], gr.fp16, gr.SH, swizzle=gr.swizzle(256, gr.fp16))
        narrow = gr.alloc("s", [128, 32], gr.fp16, gr.SH, swizzle=gr.swizzle(32, gr.fp16))
        views = {
            "a": (a[3].tile([64, None])[1, 0].tile([None, 16])[0, 3], sw, ("128-byte K-major", 16, 1024)),
            "b": (b.tile([None, 16])[0, 1], sw, ("128-byte K-major", 16, 1024)),
            "v": (panels[1].tile([16, None])[2, 0].T, sw, ("128-byte MN-major", 16384, 1024)),
            "k": (panels[0].tile([None, 16])[0, 5], sw, ("128-byte K-major", 16, 1024)),
            "n": (cores.tile([64, None])[0, 0], gr.Swizzle(0, 4, 3), ("unswizzled K-major", 2048, 128)),
            "s": (narrow.tile([64, 16])[0, 1], gr.swizzle(32, gr.fp16), ("64-byte K-major", 16, 512)),
            "w": (wide.tile([16, None])[0, 0].T, gr.swizzle(256, gr.fp16), None),
        }
        for name, (view, swizzle, want) in views.items():
            got = form(view, 2, swizzle)
            assert (got and (got["name"], got["leading_bytes"], got["stride_bytes"])) == want, name
            assert got is None or holds(got, view, 2), name
        assert form(views["a"][0], 2, sw)["bits"] == 0x4000004000010000


@pytest.mark.parametrize("dtype", [gr.fp16, gr.tf32, gr.fp8e4m3])
@pytest.mark.parametrize("which", SPANS)
@pytest.mark.parametrize("major", ["K-major", "MN-major"])
def test_a_layout_built_from_a_form_is_found_and_a_changed_one_is_not(dtype: Any, which: str, major: str) -> None:
    """Against brute force over all elements; distances that the form leaves open are drawn."""
    draw = random.Random(f"{dtype}{which}{major}")
    span, bits, code = SPANS[which]
    esize = dtype.bits // 8
    chunk, line = 16 // esize, span // esize
    swizzle = gr.Swizzle(bits, 4 - (esize.bit_length() - 1), 3) if bits else gr.Swizzle(0, 4, 3)
    for _ in range(3):
        lead, step = (16 * draw.randrange(64, 512) // esize for _ in range(2))
        if major == "K-major":
            rows = gr.Layout((8, 4), (line, step))
            columns = gr.Layout(line, 1) if bits else gr.Layout((chunk, 2), (1, lead))
        elif bits:
            rows, columns = gr.Layout((line, 2), (1, lead)), gr.Layout((8, 2), (line, step))
        else:
            rows, columns = gr.Layout((chunk, 4), (1, step)), gr.Layout((8, 2), (chunk, lead))
        found = _core.matrix_form(rows, columns, esize, swizzle)
        assert found is not None
        assert found["name"] == f"{which} {major}"
        assert found["bits"] >> 62 == code
        for x in range(rows.size):
            for k in range(columns.size):
                at = place(found["name"], esize, found["leading_bytes"], found["stride_bytes"], x, k)
                assert esize * (rows(x) + columns(k)) == at
        moved = gr.Layout((8, 4), (line + chunk, step)) if major == "K-major" else gr.Layout((8, 2), (line + 1, step))
        wrong = (moved, columns) if major == "K-major" else (rows, moved)
        assert _core.matrix_form(*wrong, esize, swizzle) is None
        assert _core.matrix_form(rows, columns, esize, gr.Swizzle(2, 2, 2)) is None
