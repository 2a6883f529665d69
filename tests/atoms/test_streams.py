"""Kernels of a stream that wait for each other by themselves: the instructions, the manifest, the simulator."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import graphene as gr
from graphene import _core


def copied(waits: bool = True, starts: bool = True) -> gr.Kernel:
    n = gr.sym("n")
    with gr.Kernel("copied") as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.output("y", [n], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 64)).indices(), gr.threads(64).indices()
        if waits:
            gr.wait_kernels()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x.tile([64])[b][t])
        gr.move(y.tile([64])[b][t], r)
        if starts:
            gr.start_kernels()
    return kernel


def test_the_text_reads_back() -> None:
    kernel = copied()
    assert [s.text for s in kernel.syncs()] == ["wait_kernels()", "start_kernels()"]
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89"])
def test_before_sm_90_there_is_nothing_to_wait_for(arch: str) -> None:
    source = copied().cuda_source(arch)
    assert "griddepcontrol" not in source
    assert "// the kernels before this one have ended" in source


def test_both_instructions_stand_where_they_were_written() -> None:
    source = copied().cuda_source("sm_90a")
    body = source[source.index("__global__") :]
    order = [m[0] for m in re.finditer(r"griddepcontrol\.\w+|ld\.global|st\.global", body)]
    assert order == ["griddepcontrol.wait", "ld.global", "st.global", "griddepcontrol.launch_dependents"]
    assert 'asm volatile("griddepcontrol.wait;" ::: "memory");' in body


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_they_compile(arch: str) -> None:
    assert copied().compile(arch).cubin


@pytest.mark.parametrize(("waits", "starts"), [(False, False), (False, True), (True, False)])
def test_the_manifest_says_whether_a_kernel_waits_itself(waits: bool, starts: bool) -> None:
    manifest = _core.lower(copied(waits, starts).ir, "sm_90a").manifest()
    assert json.loads(manifest.to_json()).get("waits_itself", False) == waits
    again = _core.LaunchManifest.from_json(manifest.to_json())
    assert again.to_json() == manifest.to_json()


def test_the_simulator_runs_them_and_misses_a_wait_that_is_left_out() -> None:
    kernel, x = copied(), np.arange(100, dtype=np.float32)
    y = np.zeros(100, np.float32)
    kernel(x, y)
    assert np.array_equal(x, y)
    assert kernel.check().ok
    wait, start = kernel.syncs()
    kernel.simulate(x, y, skip=[start.id])  # the next kernel waits for the end of this one, whenever it starts
    with pytest.raises(gr.SimulationError) as caught:
        kernel.simulate(x, y, skip=[wait.id])
    assert caught.value.code == "SIM_RACE"
    assert re.sub(r"test_streams\.py:\d+", "FILE:N", str(caught.value)) == (
        "FILE:N: global memory that kernels before this one may still write or read   [SIM_RACE]\n"
        "  argument: x\n"
        "  left out: wait_kernels()\n"
        "  fix: wait for them first: gr.wait_kernels()"
    )
