"""Products of warpgroups: the text they print, what the assembler makes of it, and layouts that no descriptor says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hopper_listings import gemm_one_consumer, gemm_sm90

import graphene as gr


@pytest.mark.parametrize("dtype", [gr.fp16, gr.tf32, gr.fp8e4m3, gr.i8], ids=str)
def test_one_consumer_compiles_without_spills(dtype: Any) -> None:
    done = gemm_one_consumer(dtype=dtype, bk=1024 // dtype.bits).compile("sm_90a")
    assert done.spill_bytes == 0
    assert done.registers <= 168


@pytest.mark.parametrize(("dtype", "held"), [(gr.fp16, np.float16), (gr.tf32, np.float32), (gr.i8, np.int8)], ids=str)
def test_one_consumer_computes_the_product(dtype: Any, held: Any) -> None:
    """Whole numbers, whose sums every type holds; the last tiles are parts in all three dimensions."""
    draw = np.random.default_rng(0)
    a, b = (draw.integers(-3, 4, (rows, 160)).astype(held) for rows in (130, 136))
    total = np.int32 if dtype is gr.i8 else np.float32
    c = np.full((130, 136), 77, total)
    gemm_one_consumer(bm=64, bn=128, dtype=dtype, bk=1024 // dtype.bits).simulate(a, b, c, arch="sm_90a")
    assert (c == a.astype(np.int64) @ b.astype(np.int64).T).all()


def test_the_specialised_product_compiles_without_spills_or_serialised_products() -> None:
    kernel = gemm_sm90()
    done = kernel.compile("sm_90a")  # remarks that wgmma is serialised, or setmaxnreg ignored, are errors
    assert (done.registers, done.spill_bytes) == (168, 0)
    text = kernel.cuda_source("sm_90a")
    assert "__cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)" in text
    assert text.count("setmaxnreg.dec.sync.aligned.u32 40;") == 1
    assert text.count("setmaxnreg.inc.sync.aligned.u32 232;") == 1
    assert '".multicast::cluster"' not in text
    assert re.search(r'multicast::cluster .*?"h"\(\(u16\)3\)', text, re.DOTALL)
    for block in (0, 1):
        assert text.count(f"mapa.shared::cluster.u32 r, %0, {block};") == 2  # in the loop, and behind it


def test_a_role_computes_what_it_needs() -> None:
    """Registers that all roles share would hold what one of them uses, also where it has gone down to 40 of them."""
    text = gemm_sm90().cuda_source("sm_90a")
    head, roles = text.split("barrier.cluster", 1)
    assert "(M + 255) / 256" not in head
    assert roles.count("(M + 255) / 256") == 2


def waits(text: str) -> list[int]:
    """Of each wait for products, in order: how many registers it is over for."""
    found = re.findall(r"wgmma\.wait_group\.sync\.aligned \d+;\"(.*?): \"memory\"", text, re.DOTALL)
    return [len(re.findall('"[+=][fr]"', x)) for x in found]


def test_a_wait_names_the_registers_that_are_free_behind_it() -> None:
    """Of 128 accumulators those that no younger group uses: none with one group pending, all at the end."""
    assert waits(gemm_sm90().cuda_source("sm_90a")) == [0, 128]
    assert waits(gemm_one_consumer().cuda_source("sm_90a")) == [128]


def kept_by_products(text: str) -> set[str]:
    """Fragments whose sums stay in registers of the PTX text from product to product."""
    return set(re.findall(r'asm volatile\("\.reg \.b32 gr_(\w+)_<\d+>;"\);', text))


def test_the_compiler_need_not_follow_sums_from_product_to_product() -> None:
    """Products of 128 sums had 128 operands each, which took NVRTC a third of the time."""
    text = gemm_sm90().cuda_source("sm_90a")
    assert kept_by_products(text) == {"acc"}
    assert '"+f"(acc' not in text
    copied = re.findall(r"mov\.b32 %(\d+), gr_acc_(\d+);", text)
    assert copied == [(str(i), str(i)) for i in range(128)]  # by the wait behind which others read them


@pytest.mark.parametrize(
    ("before", "accumulate", "between", "kept"),
    [
        ("nothing", False, "nothing", True),
        ("zero", False, "nothing", True),  # the first product forgets it
        ("zero", True, "nothing", False),
        ("nothing", False, "scale", False),
        ("nothing", False, "read", True),
        ("nothing", False, "scale in a branch", False),
    ],
)
def test_products_keep_sums_that_they_alone_write(before: str, accumulate: bool, between: str, kept: bool) -> None:
    wgmma = gr.atom("wgmma.m64n8k16.f32.f16")
    with gr.Kernel("sums") as kernel:
        c = gr.output("c", [2, 64, 8], gr.fp32)
        turns = gr.param("turns", gr.i32)
        gr.blocks(1)
        threads = gr.threads(128)
        a, b = (gr.alloc(x, [n, 16], gr.fp16, gr.SH, swizzle=gr.swizzle(16, gr.fp16)) for x, n in (("a", 64), ("b", 8)))
        acc = gr.fragment("acc", [64, 8], gr.fp32, wgmma.c, on=threads)
        if before == "zero":
            acc[:] = 0.0
        for more in (accumulate, True):
            gr.fence(wgmma)
            gr.matmul(acc, a, b.T, on=threads, atom=wgmma, accumulate=more)
            gr.commit(wgmma)
            gr.wait(wgmma, pending=0)
            if not more or accumulate:
                if between == "scale":
                    acc[:] = acc * 2
                elif between == "scale in a branch":
                    with gr.if_(turns > 1):
                        acc[:] = acc * 2
                elif between == "read":
                    gr.move(c[0, :, :], acc, on=threads, atom=gr.atom("st.global.v2.b32"))
        gr.move(c[1, :, :], acc, on=threads, atom=gr.atom("st.global.v2.b32"))
    assert kept_by_products(kernel.cuda_source("sm_90a")) == ({"acc"} if kept else set())


def product(
    a_layout: Any,
    b_layout: Any,
    dtype: Any = gr.fp16,
    a_view: Any = lambda a: a,
    transposed: bool = True,
    **swizzle: Any,
) -> str:
    depth = 256 // dtype.bits
    kind = {"fp16": "f16", "tf32": "tf32"}[dtype.name]
    wgmma = gr.atom(f"wgmma.m64n64k{depth}.f32.{kind}")
    with gr.Kernel("product") as kernel:
        gr.blocks(1)
        threads = gr.threads(128)
        a = a_view(gr.alloc("a", a_layout, dtype, gr.SH, **swizzle))
        b = gr.alloc("b", b_layout, dtype, gr.SH, **swizzle)
        acc = gr.fragment("acc", [64, 64], gr.fp32, wgmma.c, on=threads)
        gr.fence(wgmma)
        gr.matmul(acc, a, b.T if transposed else b, on=threads, atom=wgmma, accumulate=False)
        gr.commit(wgmma)
        gr.wait(wgmma, pending=0)
    return kernel.cuda_source("sm_90a")


def descriptors(text: str) -> list[tuple[str, str, str]]:
    """Of each matrix the high and the low word, and where the stage begins that it lies in."""
    return re.findall(r"gr_matrix\((0x[0-9a-f]+)u, (0x[0-9a-f]+)u, &(\w+\[?\w*\]?)", text)


def test_descriptors_follow_from_the_layouts() -> None:
    wide = product([64, 16], [64, 16], swizzle=gr.swizzle(16, gr.fp16))
    assert descriptors(wide) == [("0xc0000010", "0x10000", x) for x in ("a[0]", "b[0]")]  # lines of 32 bytes
    both = product([64, 64], [64, 64], transposed=False, swizzle=gr.swizzle(64, gr.fp16))  # B's lines run along n
    slices = [((0x10000, 32 * i, "a[0]"), (0, 2048 * i, "b[0]")) for i in range(4)]
    want = [("0x40000040", hex(form + at_bytes // 16), x) for s in slices for form, at_bytes, x in s]
    assert descriptors(both) == want
    assert both.count("p, 1, 1, 0, 1;}") == 4  # A K-major, B MN-major


def test_descriptors_in_clusters_leave_out_the_blocks_rank() -> None:
    """An H200 gave NaN where it was added to the distance of an MN-major matrix's panels, which others do not have."""
    text = gemm_sm90().cuda_source("sm_90a")
    assert "low + (gr_shared(p) >> 4 & 0x3fff)" in text


def test_a_matrix_that_no_descriptor_addresses_is_refused_with_those_that_are() -> None:
    with pytest.raises(gr.VerifyError) as e:
        product([64, 16], [64, 16])  # neither swizzled nor cut into core matrices
    text = str(e.value)
    assert "[LOWER_FORM]" in text
    for want in (
        "128-byte K-major: [(8,8),16:(64,SBO),1] by Sw<3,3,3>",
        "unswizzled K-major: [(8,8),(8,2):(8,SBO),(1,LBO)]",
        "64-byte MN-major: [(32,2),(8,2):(1,LBO),(32,SBO)] by Sw<2,3,3>",
    ):
        assert want in text
    with pytest.raises(gr.VerifyError, match="LOWER_FORM") as e:
        product([64, 8], [64, 8], gr.tf32)
    assert "MN-major" not in str(e.value)  # these types have none
    with pytest.raises(gr.VerifyError, match="starts where") as e:
        product([128, 16], [64, 16], a_view=lambda a: a.window(4, 64), swizzle=gr.swizzle(16, gr.fp16))
    assert "LOWER_FORM" in str(e.value)
