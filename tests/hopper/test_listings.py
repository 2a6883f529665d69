"""The kernels that the language was drawn up with: they record, print, read back and keep every rule."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

import hopper_listings
import pytest

import graphene as gr
from graphene import _core

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("golden")


def reads_back(kernel: gr.Kernel) -> None:
    again = gr.parse(str(kernel))
    assert again == kernel
    assert str(again) == str(kernel)
    assert gr.Kernel.from_json(kernel.to_json()) == kernel


@pytest.mark.parametrize("name", ["tma_copy", "gemm_sm90", "flash_fwd_sm90"])
def test_a_listing_prints_and_reads_back(name: str) -> None:
    kernel = getattr(hopper_listings, name)()
    path = GOLDEN / f"{name}.gir"
    if os.environ.get("GRAPHENE_UPDATE_GOLDEN") == "1":
        path.write_text(str(kernel))
    assert str(kernel) == path.read_text()
    reads_back(kernel)
    _core.verify(kernel.ir)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemm_sm90", {"BN": 128}),
        ("gemm_sm90", {"BN": 192, "dtype": gr.bf16}),
        ("flash_fwd_sm90", {"D": 64, "WG": 3, "causal": False}),
    ],
)
def test_its_variants_keep_the_rules(name: str, options: dict[str, Any]) -> None:
    kernel = getattr(hopper_listings, name)(**options)
    reads_back(kernel)
    _core.verify(kernel.ir)


def test_the_page_is_one_program() -> None:
    names: dict[str, Any] = {"__name__": "hopper"}
    path = ROOT / "docs/hopper.md"
    page = path.read_text()
    for block in re.finditer(r"```python\n(.*?)```", page, re.DOTALL):
        line = page[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(path), "exec"), names)
    for name in ("tma_copy", "gemm_one_consumer", "gemm_roles", "gemm_clusters"):
        kernel = names[name]()
        reads_back(kernel)
        _core.verify(kernel.ir)
    assert str(names["tma_copy"]()) == str(hopper_listings.tma_copy())


def test_every_synchronisation_of_the_product_is_listed() -> None:
    ops = [s.text.split("(")[0] for s in hopper_listings.gemm_sm90(BN=128).syncs()]
    assert {op: ops.count(op) for op in sorted(set(ops))} == {
        "arrive": 3,
        "barrier": 6,
        "commit": 3,
        "fence": 3,
        "setmaxnreg": 2,
        "wait": 5,
        "wait_phase": 2,
    }


def test_the_example_refuses_buffers_that_would_be_overwritten() -> None:
    path = Path(__file__).parents[2] / "examples" / "12_gemm_sm90.py"
    with pytest.raises(ValueError, match="2 buffers do not divide the 3 pieces"):
        runpy.run_path(str(path))["gemm_sm90"](BN=192, buffers=2)
