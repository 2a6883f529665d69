"""As causes.py: errors of simulations, calls and operators."""

from __future__ import annotations

import numpy as np
from causes import begin
from causes_running import doubled

import graphene as gr


def check_means(right: bool) -> None:
    """The function that says what one's own instruction computes returns arrays of the outputs' types."""
    with gr.Kernel("k") as kernel:
        x, y, t = begin()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.ptx("neg.f32 %0, %1;", r, gr.load(x[t]), means=lambda a: -a if right else 1.0)
        y[t] = r
    kernel(np.ones(32, np.float32), np.zeros(32, np.float32))


def sim_argument(right: bool) -> None:
    """A check knows the kernel's sizes by their names."""
    doubled().check(**{"n" if right else "N": 8})


def sim_memory(right: bool) -> None:
    """The judge makes data for a call, of which there must be room."""
    doubled().check(memory_bytes=2**30 if right else 2**10)


def launch_storage(right: bool) -> None:
    """A tensor of a call has memory."""
    torch = __import__("torch")
    x = torch.zeros(8, device="cpu" if right else "meta")
    doubled()(x, torch.zeros(8))


def op_dtype(right: bool) -> None:
    """Operators take operands of one type."""
    torch = __import__("torch")
    a = torch.zeros(8, 8, dtype=torch.float16)
    gr.ops.matmul(a, a if right else a.float())


def op_shape(right: bool) -> None:
    """The shapes of a product fit together."""
    torch = __import__("torch")
    a = torch.zeros(8, 8, dtype=torch.float16)
    gr.ops.matmul(a, a if right else a[:4])


def op_argument(right: bool) -> None:
    """An activation is one that the operator has."""
    torch = __import__("torch")
    a = torch.zeros(8, 8, dtype=torch.float16)
    gr.ops.matmul(a, a, activation="relu" if right else "softplus")


def op_out(right: bool) -> None:
    """A result is not written over an argument."""
    torch = __import__("torch")
    a = torch.zeros(8, 8, dtype=torch.float16)
    gr.ops.matmul(a, a, out=torch.zeros_like(a) if right else a)


def op_device(right: bool) -> None:
    """An operator's arguments are on one device."""
    torch = __import__("torch")
    a = torch.zeros(8, 8, dtype=torch.float16)
    gr.ops.matmul(a, a if right else a.to("meta"))
