"""As causes.py: errors of runs on the simulator, and of calls."""

from __future__ import annotations

import numpy as np
from causes import begin

import graphene as gr


def run(kernel: gr.Kernel, threads: int = 32) -> None:
    """Runs a kernel that `begin` began."""
    kernel(np.arange(threads, dtype=np.float32), np.zeros(threads, np.float32))


def sim_race(right: bool) -> None:
    """Between what one thread stores and another one loads stands a barrier."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin(64)
        s = gr.alloc("s", [64], gr.fp32, gr.SH)
        s[t] = gr.load(x[t])
        if right:
            gr.barrier()
        y[t] = gr.load(s[63 - t])
    run(kernel, 64)


def sim_write_conflict(right: bool) -> None:
    """Threads of one instruction write different values to one place."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.load(x[t])
        y[t] = r
        with gr.if_(t == 0) if right else gr.if_(t >= 0):
            y[0] = r
    run(kernel)


def sim_out_of_bounds(right: bool) -> None:
    """The last thread has no neighbour."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.let("r", 0, gr.fp32)
        with gr.if_(t < 31) if right else gr.if_(t >= 0):
            gr.move(r, x[t + 1])
        y[t] = r
    run(kernel)


def sim_undefined(right: bool) -> None:
    """Registers hold nothing until they are written."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        total = gr.alloc("total", [], gr.fp32, gr.RF)
        if right:
            gr.init(total, 0)
        total += gr.load(x[t])
        y[t] = total
    run(kernel)


def sim_output_unwritten(right: bool) -> None:
    """Every element of an output is written; gr.inout is for tensors of which a part is."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        with gr.if_(t >= 0) if right else gr.if_(t < 16):
            y[t] = gr.load(x[t])
    run(kernel)


def sim_assert(right: bool) -> None:
    """A condition that the kernel asserts."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.load(x[t])
        gr.assert_(r <= (31 if right else 30), r)  # noqa: PT009
        y[t] = r
    run(kernel)


def sim_endless_loop(right: bool) -> None:
    """The condition of a loop ends it before its bound."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.load(x[t])
        with gr.while_(lambda: r > 0, bound=64):
            r -= 1 if right else 0
        y[t] = r
    run(kernel)


def sim_fact(right: bool) -> None:
    """An index that data give keeps its facts."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin(dtype=gr.i32)
        y[t] = gr.load(x[gr.index(x[t], min=0, max=31)])
    kernel(np.full(32, 31 if right else 32, np.int32), np.zeros(32, np.int32))


def doubled() -> gr.Kernel:
    """A kernel to be called: y = 2 x, with a number of elements that 8 divides."""
    n = gr.sym("n", multiple_of=8)
    with gr.Kernel("doubled") as kernel:
        x, y = gr.input("x", [n], gr.fp32), gr.output("y", [n], gr.fp32)
        (b,), (t,) = gr.blocks(n // 8).indices(), gr.threads(8).indices()
        y[b * 8 + t] = 2 * gr.load(x[b * 8 + t])
    return kernel


def launch_arity(right: bool) -> None:
    """A call has all arguments."""
    x, y = np.ones(16, np.float32), np.zeros(16, np.float32)
    doubled()(*(x, y)[: 2 if right else 1])


def launch_type(right: bool) -> None:
    """A list is not a tensor."""
    doubled()(np.ones(16, np.float32) if right else [1.0] * 16, np.zeros(16, np.float32))


def launch_dtype(right: bool) -> None:
    """NumPy's numbers are doubles if nothing else is said."""
    doubled()(np.ones(16, np.float32 if right else np.float64), np.zeros(16, np.float32))


def launch_shape(right: bool) -> None:
    """Both tensors have n elements."""
    doubled()(np.ones(16, np.float32), np.zeros(16 if right else 24, np.float32))


def launch_stride(right: bool) -> None:
    """Every second element is not a dense row."""
    x = np.ones(32, np.float32)[::2]
    doubled()(x.copy() if right else x, np.zeros(16, np.float32))


def launch_fact(right: bool) -> None:
    """The kernel is built for multiples of 8."""
    n = 16 if right else 12
    doubled()(np.ones(n, np.float32), np.zeros(n, np.float32))


def launch_readonly(right: bool) -> None:
    """An output is writable."""
    y = np.zeros(16, np.float32)
    y.flags.writeable = right
    doubled()(np.ones(16, np.float32), y)


def launch_overlap(right: bool) -> None:
    """What is written shares no memory with another argument."""
    x = np.ones(16, np.float32)
    doubled()(x.copy() if right else x, x)


def launch_scalar(right: bool) -> None:
    """An i32 holds less than 2^31."""
    with gr.Kernel("k") as kernel:
        n = gr.param("n", gr.i32)
        _, y, t = begin()
        y[t] = n % 2
    kernel(2**31 - 1 if right else 2**31, np.zeros(32, np.float32), np.zeros(32, np.float32))


def sim_unfinished_copy(right: bool) -> None:
    """A bulk store reads shared memory until its group has been waited for."""
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [32], gr.fp32, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        s[t] = 1
        gr.fence("async.shared")
        gr.barrier()
        with gr.only(warp.elect()):
            gr.move(y, s, atom="bulk.store")
            gr.commit("bulk.store")
            if right:
                gr.wait("bulk.store", 0)
    kernel.simulate(np.zeros(32, np.float32), arch="sm_90a")


def sim_deadlock(right: bool) -> None:
    """A phase ends when all arrivals have come that the barrier is declared with."""
    with gr.Kernel("k") as kernel:
        _, y, t = begin()
        full = gr.mbarrier("full", 1, arrivals=32 if right else 33)
        gr.barrier()
        full[0].arrive()
        full[0].wait(0)
        y[t] = 1
    kernel.simulate(np.zeros(32, np.float32), np.zeros(32, np.float32), arch="sm_90a")


def sim_proxy(right: bool) -> None:
    """What threads stored is seen by asynchronous copies behind a proxy fence."""
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [32], gr.fp32, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        s = gr.alloc("s", [32], gr.fp32, gr.SH)
        s[t] = 1
        if right:
            gr.fence("async.shared")
        gr.barrier()
        with gr.only(warp.elect()):
            gr.move(y, s, atom="bulk.store")
            gr.commit("bulk.store")
            gr.wait("bulk.store", 0)
    kernel.simulate(np.zeros(32, np.float32), arch="sm_90a")


def launch_align(right: bool) -> None:
    """Vectors of 16 bytes begin at a multiple of 16 bytes."""
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [128], gr.fp32, align_bytes=16), gr.output("y", [128], gr.fp32, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        gr.move(y.tile([4])[t], gr.load(x.tile([4])[t]))
    memory = np.zeros(300, np.float32)
    first = -memory.ctypes.data // 4 % 4  # of the elements at multiples of 16 bytes
    kernel(memory[first + (0 if right else 1) :][:128], memory[first + 132 :][:128])
