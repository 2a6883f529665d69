"""Copies by tensor maps: the box of a tile, its map, its text; tiles that are not boxes are refused by dimension."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hopper_listings import tma_copy

import graphene as gr

LOAD = "tma.load"


def one_copy(
    layout: gr.Layout,
    cut: Callable[[gr.Tensor], gr.Tensor],
    shared: Any,
    swizzle: gr.Swizzle | None = None,
    dtype: Any = gr.fp16,
    view: Callable[[gr.Tensor], gr.Tensor] = lambda s: s,
) -> gr.Kernel:
    with gr.Kernel("one") as kernel:
        x = gr.input("x", layout, dtype, align_bytes=16)
        y = gr.output("y", gr.Layout(1), gr.fp32)
        gr.blocks(1)
        warp = gr.threads(32)
        more = {} if swizzle is None else {"swizzle": swizzle}
        s = gr.alloc("s", shared, dtype, gr.SH, **more)
        full = gr.mbarrier("full", 1, arrivals=1)
        gr.barrier()
        with gr.only(warp.elect()):
            full[0].arrive(expect=[view(s)])
            gr.move(view(s), cut(x), atom=LOAD, done=full[0])
            full[0].wait(0)
            r = gr.alloc("r", [1], gr.fp32, gr.RF)
            gr.init(r[0], 0)
            gr.move(y[0], r[0])
    return kernel


def maps(kernel: gr.Kernel) -> list[dict[str, Any]]:
    return json.loads(kernel.lowered("sm_90a").manifest().to_json()).get("maps", [])


def test_the_copy_is_text_that_compiles(golden: Callable[[str, str], None]) -> None:
    kernel = tma_copy()
    golden("tma_copy.cu", kernel.cuda_source("sm_90a"))
    done = kernel.compile("sm_90a")
    assert done.spill_bytes == 0
    assert [(m["arg"], m["dims"], m["box"], m["swizzle"]) for m in maps(kernel)] == [
        (0, [["N", 1], ["M", "N"]], [64, 64], 128),
        (1, [["N", 1], ["M", "N"]], [64, 64], 128),
    ]


SW = gr.swizzle(64, gr.fp16)
M, N = gr.sym("M"), gr.sym("N", multiple_of=8)


@pytest.mark.parametrize(
    ("layout", "cut", "shared", "swizzle", "box", "coordinates"),
    [
        (gr.row_major(M, N), lambda x: x.tile([8, 64])[3, 2], [8, 64], SW, [64, 8], ["128", "24"]),
        (gr.col_major(M, 64), lambda x: x.T.tile([16, 64])[1, 2], [16, 64], SW, [64, 16], ["128", "16"]),
        (gr.row_major(4, M, 3, 64), lambda x: x[1, :, 2, :].tile([32, None])[5, 0], [32, 64], SW,
         [64, 32, 1, 1], ["0", "160", "2", "1"]),
        (gr.Layout(M), lambda x: x.tile([256])[7], [256], None, [256], ["1792"]),
        (gr.row_major(8, 8, 8, 8, 64), lambda x: x.tile([2, 2, 2, 2, 64])[1, 2, 3, 0, 0], [2, 2, 2, 2, 64], None,
         [64, 2, 2, 2, 2], ["0", "0", "6", "4", "2"]),
    ],
)  # fmt: skip
def test_boxes_of_one_to_five_dimensions(
    layout: Any, cut: Any, shared: Any, swizzle: Any, box: list[int], coordinates: list[str]
) -> None:
    row = gr.row_major(*shared) if len(shared) > 1 else gr.Layout(*shared)
    kernel = one_copy(layout, cut, row, swizzle)
    (m,) = maps(kernel)
    assert m["box"] == box
    text = kernel.cuda_source("sm_90a")
    assert f"cp.async.bulk.tensor.{len(box)}d.shared::cluster.global" in text
    printed = text[text.index("cp.async.bulk.tensor") :]
    for c in coordinates:
        assert f'"r"({c})' in printed
    kernel.compile("sm_90a")


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (lambda: one_copy(gr.row_major(M, N), lambda x: x.tile([8, 128])[0, 0], [8, 128], gr.swizzle(128, gr.fp16)),
         "want: Sw<b,3,3> with b from 1 to 3"),
        (lambda: one_copy(gr.row_major(M, N), lambda x: x.tile([8, 64])[0, 0], gr.Layout((8, 64), (72, 1))),
         "got: element 72"),
        (lambda: one_copy(gr.row_major(M, N), lambda x: x.tile([8, 64])[0, 0].T, gr.row_major(64, 8)),
         "the fastest dimension of the box is another one in shared memory"),
        (lambda: one_copy(gr.row_major(M, N), lambda x: x.tile([8, 4])[0, 0], [8, 4]), "want a multiple of 8 elements"),
        (lambda: one_copy(gr.row_major(M, N), lambda x: x.window(0, 12).tile([8, 64])[1, 0], [8, 64], SW),
         "a tile that ends inside of the tensor"),
        (lambda: one_copy(gr.row_major(M, N), lambda x: x.tile([4, 64])[0, 0], [8, 64], SW,
                          view=lambda s: s.tile([4, None])[1, 0]), "want: a multiple of 1024 bytes"),
    ],
)  # fmt: skip
def test_tiles_that_are_no_boxes(kernel: Callable[[], gr.Kernel], says: str) -> None:
    with pytest.raises(gr.VerifyError) as e:
        kernel().lowered("sm_90a")
    assert "[LOWER_BOX]" in str(e.value)
    assert says in str(e.value)


def test_a_kernel_has_as_many_maps_as_its_parameters_hold() -> None:
    def build(count: int) -> gr.Kernel:
        with gr.Kernel("k") as kernel:
            given = [gr.input(f"x{i}", gr.row_major(8, 64), gr.fp16) for i in range(count)]
            gr.blocks(1)
            warp = gr.threads(32)
            s = gr.alloc("s", [8, 64], gr.fp16, gr.SH)
            full = gr.mbarrier("full", 1, arrivals=1)
            gr.barrier()
            with gr.only(warp.elect()):
                for x in given:
                    gr.move(s, x, atom=LOAD, done=full[0])
        return kernel

    assert len(maps(build(28))) == 28
    with pytest.raises(gr.VerifyError, match="LOWER_BOX") as e:
        build(29).lowered("sm_90a")
    assert "a kernel has at most 28 tensor maps" in str(e.value)


def test_a_copy_without_its_barrier_and_a_barrier_without_its_copy() -> None:
    def build(atom: str, done: bool) -> gr.Kernel:
        with gr.Kernel("k") as kernel:
            x = gr.input("x", gr.row_major(8, 64), gr.fp16, align_bytes=16)
            gr.blocks(1)
            warp = gr.threads(32)
            s = gr.alloc("s", [8, 64], gr.fp16, gr.SH)
            full = gr.mbarrier("full", 1, arrivals=1)
            gr.barrier()
            with gr.only(warp.elect()):
                a, b = (s, x) if atom == LOAD else (s.tile([1, 8])[0, 0], x.tile([1, 8])[0, 0])
                gr.move(a, b, atom=atom, done=full[0] if done else None)
        return kernel

    for atom, done in ((LOAD, False), ("cp.async.cg.16", True)):
        with pytest.raises((gr.VerifyError, gr.SelectError), match="VERIFY_BARRIER"):
            build(atom, done).lowered("sm_90a")
