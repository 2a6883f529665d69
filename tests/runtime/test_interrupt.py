"""Ctrl-C while NVRTC compiles: answered within half a second, and the process ends soon, too."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_fork import SLOW

CODE = """
import os, signal, sys, threading, time
import graphene as gr
from graphene import _core

SLOW = SOURCE
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control had it ignored
handler, mask = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
_core.compile_source('extern "C" __global__ void k(int* x) { *x = 0; }', "k", "sm_80")

def interrupt():
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

threading.Timer(0.7, interrupt).start()
try:
    WORK
    sys.exit("it was not interrupted")
except KeyboardInterrupt:
    took = time.monotonic() - sent
assert took < 0.5, took
assert signal.getsignal(signal.SIGINT) is handler
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
b = _core.compile_source('extern "C" __global__ void k(int* x) { *x = 1; }', "k", "sm_80")
assert b.registers > 0 and not b.from_cache
print("ended", time.time())
"""

PRECOMPILE = """
class Slow(gr.Kernel):
    def lowered(self, arch=None): return None
    def compile(self, arch): return _core.compile_source(SLOW + "//" + self.name, "slow", "sm_80")
gr.precompile({n: Slow(n) for n in "abcd"}, "folder", ["sm_80"])
"""


@pytest.mark.parametrize("work", ['_core.compile_source(SLOW, "slow", "sm_80")', PRECOMPILE], ids=["one", "several"])
def test_ctrl_c_is_answered(work: str, tmp_path: Path) -> None:
    indented = "\n    ".join(work.strip().splitlines())
    code = CODE.replace("SOURCE", SLOW).replace("WORK", indented)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert time.time() - float(done.stdout.split()[-1]) < 5
    assert not list(tmp_path.glob("folder/*"))


def test_what_is_cancelled_beside_another_is_said() -> None:
    code = f"""
import threading, time
import graphene as gr
from graphene import _core
seen = []
def work():
    try:
        _core.compile_source({SLOW}, "slow", "sm_80")
    except gr.CompileError as e:
        seen.append(e.code)
t = threading.Thread(target=work)
t.start()
time.sleep(0.7)
_core.cancel_compilations()
t.join()
assert seen == ["COMPILE_CANCELLED"], seen
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_the_end_of_the_process_ends_daemon_threads_at_work() -> None:
    """It must not abort the process: taking Python's lock back ends such a thread, wherever it is."""
    code = """
import threading, time
import graphene as gr
with gr.Kernel("k") as kernel:
    x, y = gr.input("x", [64], gr.fp32), gr.output("y", [64], gr.fp32)
    gr.blocks(1)
    (t,) = gr.threads(64).indices()
    r = gr.alloc("r", [], gr.fp32, gr.RF)
    gr.move(r, x[t])
    gr.move(y[63 - t], r)
def check():
    while True:
        kernel.check()
for _ in range(3):
    threading.Thread(target=check, daemon=True).start()
time.sleep(0.5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
