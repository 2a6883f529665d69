"""As causes.py: errors that only calls on a GPU end with. They run where PyTorch finds one."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from causes_running import doubled

import graphene as gr


def launch_device(right: bool) -> None:
    """All tensors of a call are on one device."""
    torch = __import__("torch")
    x = torch.ones(16, device="cuda" if right else "cpu")
    doubled()(x, torch.empty(16, device="cuda"))


def launch_grid(right: bool) -> None:
    """A grid has at most 65,535 blocks along its second and third dimension."""
    torch = __import__("torch")
    n = gr.sym("n")
    with gr.Kernel("k") as kernel:
        y = gr.output("y", [n], gr.fp32)
        gr.threads(1)
        blocks = gr.blocks(n, 1) if right else gr.blocks(1, n)
        y[blocks.indices()[0 if right else 1]] = 1
    kernel(torch.empty(70_000, device="cuda"))


def launch_capture(right: bool) -> None:
    """A kernel is compiled and loaded by its first call, or by load, before its stream is captured."""
    torch = __import__("torch")
    x, kernel = torch.ones(16, device="cuda"), doubled()
    if right:
        kernel.load(0)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        kernel(x, torch.empty_like(x))


def launch_driver(right: bool) -> None:
    """Devices are numbered from 0."""
    doubled().load(0 if right else 99)


def launch_fork(right: bool) -> None:
    """A child uses CUDA where it is spawned, and not where it is forked from a process that has used it."""
    doubled().load(0)
    way = multiprocessing.get_context("spawn" if right else "fork")
    with ProcessPoolExecutor(1, way) as pool:
        pool.submit(launch_driver, right=True).result()
