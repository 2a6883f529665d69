"""What runs CPU tensors: the simulator as long as that is quick, and a warning that says so where it was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cpu_cases import quiet, r, simulated  # noqa: E402, F401

from graphene import ops  # noqa: E402


def _gradient(f: Callable[..., Any], *args: Any, **named: Any) -> Callable[[], Any]:
    wanted = [a.requires_grad_() for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    y = f(*args, **named)
    return lambda: torch.autograd.grad(y, wanted, torch.ones_like(y), retain_graph=True)


def _packed(sequences: int, heads: int, dim: int) -> tuple[Any, ...]:
    x, starts = r(sequences, heads, dim), torch.arange(sequences + 1, dtype=torch.int32)
    return x, x, x, starts, starts, 1, 1


def _gated(x: Any) -> Callable[[], Any]:
    return partial(ops.gated, x, x, "gelu")


def _mlp(x: Any, *weights: Any) -> Callable[[], Any]:
    return partial(ops.fused_mlp, x, weights)


def _lstm(x: Any, w: Any) -> Callable[[], Any]:
    return partial(ops.lstm_cell, x, x, x, w, w)


def _attention(q: Any, k: Any) -> Callable[[], Any]:
    return partial(ops.attention, q, k, k)


# Few multiply-adds and elements, and very many tiles, blocks or steps.
ODD: dict[str, Callable[[], Callable[[], Any]]] = {
    "matmul of many": lambda: partial(ops.matmul, r(60000, 1, 4), r(60000, 4, 1)),
    "matmul wide": lambda: partial(ops.matmul, r(1, 1), r(1, 262144)),
    "matmul tall": lambda: partial(ops.matmul, r(262144, 1), r(1, 1)),
    "matmul deep": lambda: partial(ops.matmul, r(1, 262144), r(262144, 1), activation="gelu"),
    "matmul of rows": lambda: partial(ops.matmul, r(4, 8000, 4).transpose(0, 1)[:, :3], r(4, 1)),
    "matmul into out": lambda: partial(ops.matmul, r(8000, 1, 4), r(4, 4), out=r(8000, 2, 4)[:, :1]),
    "softmax of columns": lambda: partial(ops.softmax, r(1024, 127, 2), 1),
    "softmax of short columns": lambda: partial(ops.softmax, r(16, 16383), 0),
    "softmax of rows": lambda: partial(ops.softmax, r(8, 32767), 1),
    "norm of narrow rows": lambda: partial(ops.layer_norm, r(262144, 1), 1),
    "norm of a row": lambda: partial(ops.rms_norm, r(1, 262143), 262143),
    "norm's gradient, rows": lambda: _gradient(ops.layer_norm, r(32768, 8), [8], r(8)),
    "norm's gradient, a row": lambda: _gradient(ops.rms_norm, r(1, 262144), [262144], r(262144)),
    "gated": lambda: _gated(r(60000, 4)[:, :3]),
    "attention of heads": lambda: _attention(r(1, 1, 30000, 8), r(1, 1, 30000, 8)),
    "attention of a batch": lambda: _attention(r(1000, 1, 1, 256), r(1000, 1, 1, 256)),
    "attention of keys": lambda: _attention(r(1, 1, 1, 8), r(1, 32000, 1, 8)),
    "attention's gradient": lambda: _gradient(ops.attention, *(r(500, 1, 1, 256) for _ in range(3))),
    "packed attention": lambda: partial(ops.attention_varlen, *_packed(200, 8, 256)),
    "mlp of rows": lambda: _mlp(r(131072, 1), r(1, 1), r(1, 1)),
    "mlp deep": lambda: _mlp(r(1, 262144), r(1, 262144)),
    "cell of rows": lambda: _lstm(r(60000, 1), r(4, 1)),
    "cell deep": lambda: partial(ops.rnn_cell, r(1, 200000), r(1, 1), r(1, 200000), r(1, 1)),
}


@pytest.mark.parametrize("name", ODD)
def test_no_call_is_simulated_for_long(name: str) -> None:
    """The slowest of these took 20 seconds where multiply-adds and elements were all that counted."""
    call = ODD[name]()
    call()  # builds kernels
    start = time.process_time()
    call()
    assert time.process_time() - start < 1.5  # a quarter of a second where nothing else runs


def test_what_is_small_is_simulated() -> None:
    x, w, q = r(64, 64), r(8, 16), r(2, 33, 2, 32)
    assert simulated(ops.matmul, x, x)
    assert simulated(ops.matmul, r(128, 8, 16), r(16, 8))  # rows of one product
    assert not simulated(ops.matmul, r(512, 8, 16), r(512, 16, 8))
    assert simulated(ops.matmul, r(64, 8, 16), r(64, 16, 8))
    assert simulated(ops.softmax, r(64, 512), 0)
    assert simulated(ops.softmax, r(512, 512), 1)
    assert simulated(ops.layer_norm, r(512, 512), 512)
    assert simulated(ops.gated, r(512, 512))
    assert simulated(ops.attention, q, q, q)
    assert simulated(ops.attention_varlen, *_packed(30, 2, 64))
    assert simulated(ops.rnn_cell, r(64, 32), r(64, 16), r(16, 32), r(16, 16))
    assert "the simulator runs" in ops.explain(ops.fused_mlp, r(64, 16), [w, w.mT.contiguous()])


SAYS = """
import sys, warnings
import torch
from graphene import ops
warnings.simplefilter("always")
h = lambda *s: torch.randn(*s).half().requires_grad_()
def show(message, category, filename, lineno, *rest):
    print(filename.replace(__file__, "here"), lineno, category.__name__, message)
warnings.showwarning = show
x, e, w = h(8, 8), h(8, 8), h(8)
ops.layer_norm(x, [8], residual=e, return_sum=True)  # line 11
ops.layer_norm(h(600, 600), [600])
ops.layer_norm(x, [8])
ops.layer_norm(h(700, 600), [600])
ops.layer_norm(x.float().double(), [8])
y = ops.matmul(x, x, None, "relu")  # line 16
torch.nn.Sequential(torch.nn.Identity())(
    ops.matmul(h(300, 300), x.new_ones(300, 300))
)
y.sum().backward()
ops.attention(*[h(1, 4, 2, 8)] * 3)  # line 21
ops.matmul(h(2, 2).double(), h(2, 2).double())
with torch.no_grad():
    ops.fused_mlp(x, [x, x])
    ops.fused_mlp(h(600, 600), [h(600, 600)])
    ops.matmul(x, x, out=h(8, 8).detach())
"""


def test_a_warning_says_once_for_each_way_what_runs_and_where_it_was_called(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SAYS)
    env = os.environ | {"PYTHONPATH": str(Path(ops.__file__).parents[2])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, env=env)
    said = [line.split(" CpuWarning ") for line in done.stdout.splitlines()]
    simulator, pytorch = "run by the simulator", "run by PyTorch's operators (too large for the simulator)"
    assert said == [
        ["here 11", f"graphene.ops.layer_norm on CPU tensors: {simulator}"],
        ["here 12", f"graphene.ops.layer_norm on CPU tensors: {pytorch}"],
        ["here 16", f"graphene.ops.matmul on CPU tensors: {simulator}"],
        ["here 18", f"graphene.ops.matmul on CPU tensors: {pytorch}"],
        ["here 20", f"the gradient of graphene.ops.matmul on CPU tensors: {simulator}"],
        ["here 21", f"graphene.ops.attention on CPU tensors: {simulator}"],
        ["here 24", f"graphene.ops.fused_mlp on CPU tensors: {simulator}"],
        ["here 25", f"graphene.ops.fused_mlp on CPU tensors: {pytorch}"],
    ]
