"""Stages of a first call: each one's own time, in nested order, printed on demand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import graphene as gr
from graphene import _core, timings


def doubled() -> gr.Kernel:
    with gr.Kernel("doubled") as kernel:
        x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[t])
        r[:] = r + r
        gr.move(y[t], r)
    return kernel


def test_stages_of_a_kernel() -> None:
    with timings.recorded() as stages:
        kernel = doubled()
        kernel.cuda_source("sm_90a")
        x, y = np.ones(32, np.float32), np.zeros(32, np.float32)
        kernel(x, y)
    names = [s.name for s in stages]
    assert names[:3] == ["build", "lower", "print"]
    assert all(s.ms > 0 for s in stages)
    assert {s.name: s.calls for s in stages}["build"] == 1


def test_a_stage_does_not_count_what_is_within() -> None:
    with timings.recorded() as stages:
        with _core.Stage("outer"):
            time.sleep(0.01)
            with _core.Stage("inner"):
                time.sleep(0.05)
        with _core.Stage("outer"):
            pass
    times = {s.name: s for s in stages}
    assert times["inner"].ms >= 50
    assert 10 <= times["outer"].ms < 50
    assert times["outer"].calls == 2


def test_a_stage_ends_with_an_error_and_belongs_to_its_thread() -> None:
    def other() -> None:
        with _core.Stage("theirs"):
            time.sleep(0.02)

    def ours() -> None:
        with _core.Stage("ours"):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            raise ValueError("stop")

    with timings.recorded() as stages:
        with pytest.raises(ValueError, match="stop"):
            ours()
        with _core.Stage("after"):
            pass
    times = {s.name: s.ms for s in stages}
    assert times["ours"] >= 20  # what another thread does is not within
    assert times["theirs"] >= 20
    assert times["after"] < 20


def test_nothing_is_timed_unless_asked() -> None:
    with timings.recorded() as stages:
        pass
    _core.time_stages(False)
    with _core.Stage("silent"):
        pass
    assert stages == timings.stages() == []


def test_the_table_is_printed_at_the_end_of_the_process() -> None:
    code = "import graphene as gr\nwith gr.Kernel('k') as k: gr.blocks(1)\nk.cuda_source('sm_90a')"
    paths = str(Path(gr.__file__).parents[1])
    for value, shown in (("1", True), ("0", False)):
        env = os.environ | {"GRAPHENE_TIMINGS": value, "PYTHONPATH": paths}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert ("graphene: time by stage" in done.stderr and "lower" in done.stderr) == shown, done.stderr
        assert done.stdout == ""
