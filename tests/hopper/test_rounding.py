"""How products of a warpgroup round, against the rule whose bits an H200 gave for all of its 12,000 results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import rounding_sm90 as measured

import graphene as gr

TYPES = {"f16": gr.fp16, "bf16": gr.bf16, "tf32": gr.tf32, "e4m3": gr.fp8e4m3, "e5m2": gr.fp8e5m2, "f32": gr.fp32}

HELD = {"f32": np.float32, "f16": np.float16}


def product(p: measured.Product) -> gr.Kernel:
    """D = C + A @ B.T of one instruction, C and D in its own order of elements."""
    types = p.a if p.a == p.b else f"{p.a}.{p.b}"
    wgmma = gr.atom(f"wgmma.m64n8k{p.k}.{p.d}.{types}")
    with gr.Kernel("product") as kernel:
        a = gr.input("A", [64, p.k], TYPES[p.a], align_bytes=16)
        b = gr.input("B", [8, p.k], TYPES[p.b], align_bytes=16)
        c = gr.input("C", [64, 8], TYPES[p.d], align_bytes=16)
        d = gr.output("D", [64, 8], TYPES[p.d], align_bytes=16)
        gr.blocks(1)
        group = gr.threads(128)
        sa, sb = (
            gr.alloc(name, [rows, p.k], TYPES[of], gr.SH, swizzle=gr.swizzle(p.k, TYPES[of]))
            for name, rows, of in (("sA", 64, p.a), ("sB", 8, p.b))
        )
        full = gr.mbarrier("full", 1, arrivals=1)
        acc = gr.fragment("acc", [64, 8], TYPES[p.d], wgmma.c, on=group)
        gr.barrier()
        with gr.only(group.elect()):
            full[0].arrive(expect=[sa, sb])
            gr.move(sa, a, atom="tma.load", done=full[0])
            gr.move(sb, b, atom="tma.load", done=full[0])
        gr.move(acc, c, atom=gr.atom("ld.global.v2.b32" if p.d == "f32" else "ld.global.b32"))
        full[0].wait(0)
        gr.fence(wgmma)
        gr.matmul(acc, sa, sb.T, on=group, atom=wgmma)
        gr.commit(wgmma)
        gr.wait(wgmma, pending=0)
        gr.move(d, acc, atom=gr.atom("st.global.v2.b32" if p.d == "f32" else "st.global.b32"))
    return kernel


def stored(x: Any, dtype: str) -> Any:
    """Numbers that the type has, as an array of it."""
    if dtype in ("f16", "f32", "tf32"):
        return x.astype(np.float16 if dtype == "f16" else np.float32)
    import torch

    kinds = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    return torch.from_numpy(x).to(kinds[dtype])


@pytest.mark.parametrize("p", measured.PRODUCTS, ids=str)
def test_every_bit(p: measured.Product) -> None:
    torch = pytest.importorskip("torch")
    kernel = product(p)
    for kind in measured.KINDS:
        a, b, c = (x[0] for x in measured.operands(p, kind, 1))
        given = stored(a, p.a), stored(b, p.b), stored(c, p.d)
        a, b, c = (torch.as_tensor(x).double().numpy() for x in given)  # some are not numbers of the type
        d = np.zeros((64, 8), HELD[p.d])
        kernel.simulate(*given, d)
        for _, i, j in measured.results(40, d[None], 1):
            assert float(d[i, j]) == measured.rule(p, a[i], b[j], c[i, j]), (kind, i, j)


def test_recorded_results() -> None:
    """Some of a card's own results, eight to a product: row and column i belong to number i."""
    pytest.importorskip("torch")
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "hopper_h200.json"
    rows = [r for r in json.loads(file.read_text())["rows"] if r["table"] == "rounding"]
    compared = 0
    for r in rows:
        p = measured.Product(*r["types"])
        kernel = product(p)
        for first in range(0, len(r["samples"]), 8):
            samples = r["samples"][first : first + 8]
            a, b, c = np.zeros((64, p.k)), np.zeros((8, p.k)), np.zeros((64, 8))
            for i, (x, y, z, _) in enumerate(samples):
                a[i], b[i], c[i, i] = x, y, z
            d = np.zeros((64, 8), HELD[p.d])
            kernel.simulate(stored(a, p.a), stored(b, p.b), stored(c, p.d), d)
            assert [float(d[i, i]) for i in range(len(samples))] == [s[3] for s in samples], r["case"]
            compared += len(samples)
    assert compared == 120
