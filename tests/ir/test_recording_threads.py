"""Kernels are recorded, lowered and compiled in several threads at once, also when they are the process's first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import graphene

CODE = """
import faulthandler, sys, threading
from concurrent.futures import ThreadPoolExecutor
import graphene as gr
faulthandler.dump_traceback_later(40, exit=True)
sys.setswitchinterval(1e-6)
together = threading.Barrier(4)

def build(n):
    together.wait()
    with gr.Kernel("doubled") as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.output("y", [n], gr.fp32)
        (b,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x.tile([32])[b][t])
        r[:] = r * 2.0
        gr.move(y.tile([32])[b][t], r)
    return str(kernel), kernel.cuda_source("sm_80")

with ThreadPoolExecutor(4) as pool:
    texts = list(pool.map(build, (100, 101, 102, 103)))
sys.setswitchinterval(0.005)
together = threading.Barrier(1)
print(texts == [build(n) for n in (100, 101, 102, 103)])
"""


def test_first_kernels_in_four_threads() -> None:
    env = os.environ | {"PYTHONPATH": str(Path(graphene.__file__).parents[1])}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False)
        assert done.stdout == "True\n", done.stderr
