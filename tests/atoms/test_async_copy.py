"""cp.async: which entry a copy and a wait are, hints that change no value, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import _core

HERE = Path(__file__).name


def copied(atom: str, dtype: gr.ScalarType = gr.fp16, values: int = 8, **attrs: Any) -> gr.Kernel:
    with gr.Kernel("copy") as kernel:
        x = gr.input("x", [32, values], dtype, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.alloc("s", [32, values], dtype, gr.SH)
        gr.move(s[t, :], x[t, :], atom=atom, **attrs)
    return kernel


def synchronised(op: str, atom: str = "cp.async.cg.16", **attrs: Any) -> gr.Kernel:
    with gr.Kernel("sync") as kernel:
        gr.blocks(1)
        gr.threads(32)
        _core.record_sync(op, None, atom, attrs)
    return kernel


def instruction(kernel: gr.Kernel, arch: str = "sm_80") -> str:
    (text,) = re.findall(r'asm volatile\("(.*?)"', kernel.cuda_source(arch))
    return str(text)


def message(kernel: gr.Kernel, arch: str = "sm_80") -> str:
    with pytest.raises(gr.GrapheneError) as caught:
        _core.lower(kernel.ir, arch)
    return re.sub(rf"{re.escape(HERE)}:\d+", "FILE:N", str(caught.value))


@pytest.mark.parametrize(
    ("atom", "dtype", "values"),
    [
        ("cp.async.cg.16", gr.fp16, 8),
        ("cp.async.ca.16", gr.fp32, 4),
        ("cp.async.ca.8", gr.bf16, 4),
        ("cp.async.ca.8", gr.i8, 8),
        ("cp.async.ca.4", gr.fp16, 2),
    ],
)
def test_a_family_is_narrowed_by_the_element_type(atom: str, dtype: gr.ScalarType, values: int) -> None:
    _, _, cache, size = atom.split(".")
    want = f"cp.async.{cache}.shared.global [%0], [%1], {size};"
    assert instruction(copied(atom, dtype, values)) == want


def test_it_is_not_taken_unless_named() -> None:
    assert "NO_ATOM" in message(copied(""))


@pytest.mark.parametrize(
    ("hints", "want"),
    [
        ({"prefetch": "128B"}, "cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"),
        (
            {"evict": "evict_first", "prefetch": "64B"},
            "{.reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0; "
            "cp.async.cg.shared.global.L2::cache_hint.L2::64B [%0], [%1], 16, p;}",
        ),
    ],
)
def test_hints_print_and_compile(hints: dict[str, str], want: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path))
    kernel = copied("cp.async.cg.16", **hints)
    assert re.sub(r'"\s*"', "", kernel.cuda_source("sm_80")).count(want) == 1
    assert kernel.compile("sm_80").cubin


def test_commits_and_waits_are_entries_too() -> None:
    assert instruction(synchronised("commit")) == "cp.async.commit_group;"
    assert instruction(synchronised("wait", pending=3)) == "cp.async.wait_group 3;"
    assert instruction(synchronised("wait")) == "cp.async.wait_all;"


def test_what_is_refused() -> None:
    assert message(copied("cp.async.cg.16"), "sm_75").splitlines()[2:] == [
        "  nearest: cp.async.cg.16/b16  arch: want sm_80+, got sm_75",
        "  fix: compile for an architecture that has it; for sm_75 enter this Move by `with`, and write it as smaller "
        "specs inside",
    ]
    assert message(copied("cp.async.cg.16", fill=-gr.inf)).splitlines()[2:] == [
        "  nearest: cp.async.cg.16/b16  fill: want 0 (it writes zeros for what is outside), got -inf",
        "  fix: copy with fill=0 and mask the elements outside when they are used (gr.where), "
        "or copy through registers, which "
        "take any fill: atom=(a load, a store)",
    ]
    assert message(synchronised("wait", pending=-1)) == (
        "FILE:N: pending: want a constant, 0 or more, got -1   [ATOM_ATTR]\n"
        "    wait(cp.async.cg.16, pending=-1)\n"
        "  fix: unroll the loop that changes it, or wait for more"
    )
    assert message(synchronised("commit", count=2)) == (
        "FILE:N: no atomic spec implements commit of cp_async with count=2 on sm_80   [NO_ATOM]\n"
        "    commit(cp.async.cg.16, count=2)"
    )
    assert "cp.async.commit_group needs sm_80+, got sm_75" in message(synchronised("commit"), "sm_75")


def test_the_way_out_for_another_fill_works() -> None:
    """A copy through registers fills what is outside with any number."""
    rows = gr.sym("rows")
    with gr.Kernel("filled") as kernel:
        x = gr.input("x", gr.row_major(rows, 64), gr.fp16, align_bytes=16)
        y = gr.output("y", [16, 64], gr.fp16, align_bytes=16)
        gr.blocks(1)
        threads = gr.threads(32)
        s = gr.alloc("s", [16, 64], gr.fp16, gr.SH)
        through = (gr.atom("ld.global.nc.v4.b32"), gr.atom("st.shared.v4.b32"))
        gr.move(s, x.tile([16, None])[0, 0], on=threads, atom=through, fill=-gr.inf)
        gr.barrier()
        gr.move(y, s, on=threads, atom=(gr.atom("ld.shared.v4.b32"), gr.atom("st.global.v4.b32")))
    got = np.zeros((16, 64), np.float16)
    kernel(np.ones((5, 64), np.float16), got)
    assert (got[:5] == 1).all()
    assert (got[5:] == -np.inf).all()
    assert kernel.compile("sm_80").cubin
