"""What is chosen for the usual problems on an H200 stays what it was: tiles change on purpose, with figures.

Products of 16-bit elements, and of i8 and tf32 along k, are gemm_sm90's where the device is known to be an H200.
"estimated" ones are for any architecture, and so gemm_sm80's.

After a change that is meant to alter choices: GRAPHENE_UPDATE_GOLDEN=1 pytest tests/select/test_choices.py, and read
the diff.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import graphene as gr
from graphene import kernels as k
from graphene import select
from graphene.kernels.gemm.problem import GemmProblem
from graphene.select import gemm, select_cell, select_mlp
from graphene.select.device import named, of_arch

GOLDEN = Path(__file__).with_name("choices_h200.json")
H200 = "NVIDIA H200"
SIZES = (
    *((n, n, n) for n in (64, 256, 512, 1000, 1024, 2048, 3072, 4096, 6144, 8192, 16384)),
    *product((1, 16, 128, 512, 4096, 16384), (768, 4096, 11008), (768, 4096, 14336)),
    (32768, 50257, 768), (257, 1001, 513), (100, 70, 1000), (0, 512, 512), (512, 512, 0), (64, 64, 65536),
)  # fmt: skip
WIDTHS = (1, 7, 64, 100, 768, 1001, 1024, 4096, 5120, 8192, 30522, 131072)


def aligned(elems: int, item: int) -> int:
    """The widest vector that lines of a length begin with, bytes."""
    return next(w for w in (16, 8, 4, 2, 1) if elems * item % w == 0)


def short(config: Any) -> str:
    """A product's configuration without what the problem says of it."""
    tile, warps, pad = ("x".join(str(int(x)) for x in of) for of in (config.tile, config.warps, config.pad))
    new = f" by wgmma{' in turns' * config.turns}, clusters {config.cluster}" if config.kernel == "gemm_sm90" else ""
    return f"{tile} warps {warps} stages {config.stages} group {config.group} pad {pad} split {config.split_k}{new}"


def values(config: Any) -> str:
    """The values of a configuration's fields, without those that say what is computed."""
    left_out = ("width", "dtype", "out_dtype", "what", "gamma", "beta", "residual", "write_sum", "even")
    return " ".join(str(v) for n, v in vars(config).items() if n not in left_out)


def products() -> Iterator[tuple[str, str]]:
    """Products by records of the H200, and by the estimate alone."""
    for M, N, K in SIZES:
        for dtype, order in (("fp16", "TN"), ("bf16", "TT"), ("fp16", "NT"), ("fp32", "TN"), ("i8", "TN")):
            item = {"fp32": 4, "i8": 1}.get(dtype, 2)
            lengths = (K if order[0] == "T" else M, K if order[1] == "N" else N, N)
            a, b = (aligned(n, item) for n in lengths[:2])
            align = (a, b, aligned(N, 4 if dtype == "i8" else item))
            options: dict[str, Any] = {"dtype": dtype, "order": order, "align": align}
            for device in (H200, None):
                config = select.select_gemm(M, N, K, device=device, **options)
                yield f"{M}x{N}x{K} {dtype} {order} {device or 'estimated'}", short(config)
    for (M, N, K), batch in product(((64, 64, 64), (384, 384, 64), (1024, 128, 1024), (100, 77, 50)), (1, 12, 384)):
        align = (aligned(K, 2), aligned(K, 2), aligned(N, 2))
        for device in (H200, None):
            config = select.select_gemm(M, N, K, batch=batch, align=align, device=device)
            yield f"{batch} of {M}x{N}x{K} {device or 'estimated'}", short(config)
    for arch, sms, shared in (("A100", 108, 163), ("RTX 4090", 128, 99), ("V100", 80, 96)):
        for M, N, K in SIZES[:11]:
            config = select.select_gemm(
                M, N, K, align=(8, 8, 8), sms=sms, shared_bytes=shared << 10, workspaces=M != 512
            )
            yield f"{M}x{N}x{K} {arch}", short(config)


def rows() -> Iterator[tuple[str, str]]:
    """Normalisations, softmax, their gradients, reductions."""
    for width, count, dtype in product(WIDTHS, (1, 512, 65536), (gr.fp16, gr.fp32)):
        item = dtype.bits // 8
        of = f"{count}x{width} {dtype}"
        align = max(aligned(width, item), item)
        given: dict[str, Any] = {"align_bytes": align, "dense_bytes": 16 if align < 16 else 0}
        for device in (H200, None):
            name = f"{of} {device or 'estimated'}"
            tile = given | {"device": device, "shared_bytes": 227 << 10}
            yield f"layernorm {name}", values(select.select_norm(count, width, dtype, **tile).tile)
            rms = select.select_norm(count, width, dtype, kind="rmsnorm", gamma=True, beta=False, **tile)
            yield f"rmsnorm {name}", values(rms.tile)
            yield f"softmax {name}", values(select.select_softmax(count, width, dtype, **tile).tile)
        residual = select.select_norm(count, width, dtype, residual=True, write_sum=True, **given)
        yield f"layernorm of sums {of}", values(residual.tile)
        yield f"gradient {of}", values(select.select_norm_backward(count, width, dtype, align_bytes=align).tile)
        for axis in (0, 1):
            yield (
                f"sums {axis} {of}",
                values(select.select_reduction(count, width, axis, dtype=dtype, align_bytes=align)),
            )
        yield f"columns {of}", values(select.select_softmax_columns(count, width, dtype, align_bytes=align))
        columns, parts = select.select_norm_columns(count, width, dtype, align_bytes=align)
        yield f"norm_columns {of}", f"{values(columns)}, {parts} parts"
    for width in WIDTHS:
        align = aligned(width, 2)
        yield (
            f"elementwise {width}",
            values(select.select_elementwise(width, (gr.fp16,) * 2, gr.fp16, align_bytes=align)),
        )
        yield f"transpose {width}", values(select.select_transpose(512, width, align_bytes=align))


def attention() -> Iterator[tuple[str, str]]:
    """Tiles of attention by head size and what is computed."""

    for depth, options in product((32, 64, 80, 128, 192, 256), ({}, {"right": True}, {"softcap": True})):
        a, of = k.Attention(depth, **options), f"attention {depth} {options}"
        for shared in (227, 163, 99):
            card = replace(of_arch("sm_90a"), shared_bytes=shared << 10)
            yield f"{of} {shared} KiB", values(select.select_forward(a, device=card))
            yield (
                f"{of} gradients {shared} KiB",
                "; ".join(map(values, select.select_backward(a, device=card))),
            )
            saving = select.select_backward_saving(a, device=card)
            yield f"{of} saving {shared} KiB", "none" if saving is None else "; ".join(map(values, saving))
        yield f"{of} packed", values(select.select_forward(a, longest=384))
        for batch, queries, keys, heads in ((1, 1, 4096, 8), (64, 1, 512, 32), (8, 4, 16384, 2)):
            config, splits = select.select_short(a, batch, queries, keys, heads)
            yield f"{of} short {batch}x{queries}x{keys}x{heads}", f"{values(config)}, {splits} parts"
            decode, parts = select.select_decode(a, batch, queries, keys, heads)
            yield f"{of} decode {batch}x{queries}x{keys}x{heads}", f"{values(decode)}, {parts} parts"


def layers() -> Iterator[tuple[str, str]]:
    """Perceptrons and recurrent cells."""
    for count, widths in product((64, 4096, 65536), ((32, 64, 16), (128, 128, 128, 10), (768, 256, 256), (512, 512))):
        depth = len(widths) - 1
        chosen = select_mlp(count, widths, ("relu",) * depth, (True,) * depth)
        yield f"mlp {count} {widths}", "none" if chosen is None else values(chosen)
    for count, hidden, gates in product((1, 64, 1024, 16384), (128, 1024, 4096), (1, 4)):
        yield f"cell {count}x{hidden} {gates}", values(select_cell(count, hidden, gates=gates))


@pytest.mark.parametrize("what", [products, rows, attention, layers])
def test_choices_for_an_h200_are_what_they_were(what: Any, own_records: Any) -> None:
    chosen = dict(what())
    kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("GRAPHENE_UPDATE_GOLDEN"):
        kept[what.__name__] = chosen
        GOLDEN.write_text(json.dumps(kept, indent=0) + "\n")
    assert kept[what.__name__] == chosen


def test_nothing_is_estimated_for_sizes_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the model was asked")

    monkeypatch.setattr(gemm, "estimate", refuse)
    h200 = named(H200)
    assert gemm.choose(GemmProblem(4096, 4096, 4096), h200).kernel == "gemm_sm90"
    with pytest.raises(AssertionError, match="the model was asked"):
        gemm.choose(GemmProblem(4096, 4096, 4000), h200)
