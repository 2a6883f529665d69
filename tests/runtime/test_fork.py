"""Forked children work whatever the other threads of their parent did; what CUDA cannot do there is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUILDING = """
import os, signal, sys, threading
import graphene as gr
from graphene import _core

def build(n):
    with gr.Kernel("k") as kernel:
        x = gr.inout("x", [n * 64], gr.fp32)
        (b,), (t,) = gr.blocks(n).indices(), gr.threads(64).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[b * 64 + t])
        gr.move(x[b * 64 + t], r)
    return kernel.cuda_source("sm_80")

stop = False
def work(first):
    n = first
    while not stop:
        n += 3
        M = gr.sym(f"s{n}", min=1, max=n)
        [(M * i + n) // (i + 2) % 7 for i in range(40)]
        build(n)

build(2)
threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(3)]
for t in threads:
    t.start()
hung = 0
for i in range(FORKS):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            build(100_000 + i)
            _core.cache_stats(), gr.Layout(8, 2)
            os._exit(0)
        except BaseException as e:
            print(repr(e), flush=True)
            os._exit(1)
    hung += os.waitpid(child, 0)[1] != 0
stop = True
for t in threads:
    t.join()
sys.exit(hung)
"""


def test_a_child_builds_kernels_while_threads_of_its_parent_did() -> None:
    code = BUILDING.replace("FORKS", "60")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.returncode} children hung or failed\n{done.stdout}{done.stderr}"


COMPILING = """
import os, signal, sys, threading, time
import graphene as gr
from graphene import _core

SLOW = SOURCE
quick = 'extern "C" __global__ void k(int* x) { *x = %d; }'
_core.compile_source(quick % 0, "k", "sm_80")
done = []
t = threading.Thread(target=lambda: done.append(_core.compile_source(SLOW, "slow", "sm_80")))
t.start()
time.sleep(0.5)
def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            work()
        except gr.GrapheneError as e:
            os._exit(7 if e.code == "COMPILE_FORK" else 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
compiles = lambda: _core.compile_source(quick % 1, "k", "sm_80")
cached = lambda: _core.compile_source(quick % 0, "k", "sm_80")
assert not done
print(child(compiles), child(cached))
_core.cancel_compilations()
t.join()
while child(compiles) == 7:  # until NVRTC has let go of what was given up
    time.sleep(0.05)
print(child(compiles))
"""

# NVRTC takes seconds for it. An expression: the text itself is too long for a command line.
SLOW = """(
    'extern "C" __global__ void slow(float* x) { float a[64]; for (int i = 0; i < 64; ++i) a[i] = x[i]; '
    + " ".join(
        f"a[{i % 64}] += sinf(a[{i * 7 % 64}]) * cosf(a[{i * 11 % 64}]) + powf(a[{i % 61}], {i}.5f);"
        for i in range(6000)
    )
    + " for (int i = 0; i < 64; ++i) x[i] = a[i]; }"
)"""


def test_a_fork_while_nvrtc_compiles_is_said_in_the_child() -> None:
    code = COMPILING.replace("SOURCE", SLOW)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["7", "0", "0"], done.stdout + done.stderr[-2000:]


IMPORTING = """
import importlib.abc, os, signal, sys, threading, time
import numpy as np
import graphene as gr

begun, forked = threading.Event(), threading.Event()
os.register_at_fork(after_in_parent=forked.set)
class Slowly(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        elsewhere = threading.current_thread() is not threading.main_thread()
        if elsewhere and name.startswith("OF.") and not begun.is_set():
            begun.set()
            forked.wait(3)  # for which a fork waits that is right

with gr.Kernel("scale", means=lambda x, y: {"y": x * 2}) as k:
    x, y = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32)
    blocks, threads = gr.blocks(1), gr.threads(32)
    (t,) = threads.indices()
    r = gr.alloc("r", [], gr.fp32, gr.RF)
    gr.move(r, x[t])
    gr.move(y[t], r * 2)
sys.meta_path.insert(0, Slowly())
t = threading.Thread(target=k.check)
t.start()
assert begun.wait(60)
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    os._exit(0 if k.check().ok else 3)
t.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("package", ["graphene", "numpy"])
def test_a_child_imports_what_a_thread_of_its_parent_was_importing(package: str) -> None:
    code = IMPORTING.replace("OF.", f"{package}.")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
