"""What a check may hold in memory is bounded and said by a code; Ctrl-C is answered, whatever it does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import graphene as gr

MIB = 1 << 20


def naive(k: int = 1024, promised: bool = True) -> gr.Kernel:
    """c = a @ b, an element a thread, which says at every level what it computes."""
    with gr.Kernel("naive", means=(lambda a, b: a @ b) if promised else None) as kernel:
        m = gr.sym("m")
        a, b = gr.input("a", [m, k], gr.fp32), gr.input("b", [k, 64], gr.fp32)
        c = gr.output("c", [m, 64], gr.fp32)
        blocks, threads = gr.blocks(gr.ceil_div(m, 4)), gr.threads(4, 64)
        (i,), (t, n) = blocks.indices(), threads.indices()
        with gr.if_(i * 4 + t < m):
            r, x, y = (gr.alloc(name, [], gr.fp32, gr.RF) for name in "rxy")
            mine, row, column = c[i * 4 + t, n], a[i * 4 + t, :], b[:, n]
            with gr.spec(mine, [row, column]):
                gr.init(r, 0)
                with gr.loop("k", k) as j:
                    gr.move(x, row[j])
                    gr.move(y, column[j])
                    gr.matmul(r, x, y)
                gr.move(mine, r)
    return kernel


def endless() -> gr.Kernel:
    """One block that adds for minutes."""
    with gr.Kernel("endless") as kernel:
        c = gr.output("c", [64], gr.fp32)
        (t,) = gr.threads(64).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.init(r, 0)
        with gr.loop("k", 1 << 40):
            gr.binary("add", r, r, 1)
        gr.move(c[t], r)
    return kernel


def refused(words: str, run: Any) -> gr.SimulationError:
    with pytest.raises(gr.SimulationError) as e:
        run()
    (d,) = e.value.diagnostics
    assert d["code"] == "SIM_MEMORY"
    assert words in str(e.value)
    assert any(x.startswith("want: at most ") for x in d["details"])
    assert "memory_bytes=" in d["fix"]
    return e.value


def test_the_simulator_holds_what_it_may() -> None:
    kernel = naive(64)
    a, b, c = np.ones((4096, 64), np.float32), np.ones((64, 64), np.float32), np.zeros((4096, 64), np.float32)
    e = refused(
        "the call needs more memory than its simulation may hold", lambda: kernel.simulate(a, b, c, memory_bytes=MIB)
    )
    assert "got: " in str(e)
    kernel.simulate(a[:4], b, c[:4], memory_bytes=MIB)
    assert (c[:4] == 64).all()


def test_exact_arithmetic_of_one_block_holds_what_it_may() -> None:
    """Every thread's spec names two rows of 2048 elements: what it saw of each is kept until it ends."""
    kernel = naive(2048, promised=False)
    e = refused("may hold", lambda: kernel.check(m=4, memory_bytes=12 * MIB))
    (d,) = e.diagnostics
    assert d["file"].endswith("test_memory.py")
    assert "Spec" in d["ir"][0] or "Move" in d["ir"][0]
    assert kernel.check(m=4).ok
    result = naive(2048).check(m=4, memory_bytes=12 * MIB)  # its output is held to what it promises itself
    assert result.ok, str(result)
    assert result.promises == 0
    assert any("what decomposed specs promise was not looked at" in u for u in result.uncovered), result.uncovered


def test_the_judge_holds_what_it_may() -> None:
    def means(a: Any, b: Any) -> Any:
        return (a[:, :, None] * b[None, :, :]).sum(1)  # a number for each product

    kernel = naive(256).with_promise(means)
    assert kernel.check(m=4).ok
    a, b, c = np.ones((100, 256), np.float32), np.ones((256, 64), np.float32), np.ones((100, 64), np.float32)
    said = "np.multiply in the kernel's meaning needs more memory"
    refused(said, lambda: kernel.check(a, b, c, memory_bytes=32 * MIB))
    wide = np.tile(a, (40, 1)), b, np.tile(c, (40, 1))
    refused("the call's arguments need", lambda: kernel.check(*wide, memory_bytes=32 * MIB))
    result = kernel.check(m=100, memory_bytes=32 * MIB)  # some blocks, without what the kernel promises
    assert result.blocks < 25
    assert any(said in u for u in result.uncovered), result.uncovered


def test_calls_that_check_chooses_are_smaller_where_less_may_be_held() -> None:
    def means(a: Any, b: Any) -> Any:
        np.add(a[:, :, None, None], b[None, :, :, None] * np.ones(8))
        return a @ b

    result = naive(64).with_promise(means).check(memory_bytes=20 * MIB)
    assert result.ok, str(result)
    assert any(u.startswith("calls that need more memory: ") for u in result.uncovered), result.uncovered


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, 2**62, "1"])
def test_no_number_of_bytes(bad: Any) -> None:
    kernel = naive(16)
    for run in (kernel.check, lambda **named: kernel.simulate(np.ones(1), **named)):
        with pytest.raises(ValueError, match="memory_bytes must be a number of bytes"):
            run(memory_bytes=bad)


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import graphene as gr
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control had it ignored
sys.path.insert(0, FOLDER)
from test_memory import endless, naive

def interrupt():
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

def slow(a, b):
    print("judged", flush=True)
    for _ in range(1000):
        x = gr.erf(a[:, :, None] * b[None, :, :])
        np.einsum("ik,kj->ij", a, b)
    return a @ b

PREPARE
threading.Timer(WAIT, interrupt).start()
try:
    WORK
    sys.exit("it was not interrupted")
except KeyboardInterrupt:
    took = time.monotonic() - sent
assert took < 0.5, took
"""
LONG = {
    "a block": ("k, c = endless(), np.ones(64, np.float32)", "k.simulate(c)"),
    "a block of a check": ("k = naive(20_000, False)", "k.check(m=4)"),
    "the meaning": ("k = naive(512).with_promise(slow)", "k.check(m=256)"),
}


@pytest.mark.parametrize("work", LONG)
def test_ctrl_c_is_answered(work: str) -> None:
    prepare, run = LONG[work]
    code = INTERRUPTED.replace("FOLDER", repr(str(__file__).rpartition("/")[0])).replace("PREPARE", prepare)
    code = code.replace("WORK", run).replace("WAIT", "1.5" if work == "the meaning" else "0.7")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "judged" in done.stdout or work != "the meaning"
