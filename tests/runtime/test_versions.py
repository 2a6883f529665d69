"""Autograd is told of what kernels write: versions are raised, leaves that require grad refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import graphene as gr

torch = pytest.importorskip("torch", reason="torch is not installed")


def copy_kernel(name: str = "copy") -> gr.Kernel:
    with gr.Kernel(name) as kernel:
        x, y = gr.input("X", [32], gr.fp32), gr.output("Y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[t])
        gr.move(y[t], r)
    return kernel


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_gradient_needed_is_known_to_be_gone(device: str) -> None:
    kernel, x = copy_kernel(), torch.ones(32, device=device)
    for _ in range(3):  # the first call, and those that are remembered
        w = torch.full((32,), 0.5, device=device, requires_grad=True)
        y = w.exp()
        version = y._version
        kernel(x, y)
        assert y._version == version + 1
        assert x._version == 0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        y = w.exp()
        kernel(x, y.detach())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_leaves_that_require_grad_are_refused(device: str) -> None:
    kernel, x = copy_kernel(), torch.ones(32, device=device)
    leaf = torch.zeros(32, device=device, requires_grad=True)
    kernel(x, torch.zeros(32, device=device))
    for given in (leaf, leaf.view(32), torch.nn.Parameter(torch.zeros(32, device=device))):
        version = given._version
        with pytest.raises(gr.LaunchError) as e:
            kernel(x, given)
        assert str(e.value) == (
            "copy: argument 'Y' is written, and is a leaf of autograd's graph that requires grad, or a view of one; "
            "nothing was launched   [LAUNCH_READONLY]\n"
            "  fix: call the kernel under torch.no_grad(), or pass Y.detach()"
        )
        assert not given.any()
        assert given._version == version
        with torch.no_grad():
            kernel(x, given)
        assert given.all()
        assert given._version == version + 1
        given.data.zero_()
    kernel(leaf, torch.zeros(32, device=device))  # what is read may be any tensor


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_without_versions(device: str) -> None:
    kernel, x = copy_kernel(), torch.ones(32, device=device)
    with torch.inference_mode():
        y = torch.zeros(32, device=device)
        kernel(x, y)
    assert y.all()
    kernel(2 * x, y)
    assert (y == 2).all()


def test_out_of_an_operator() -> None:
    from graphene import ops

    a, w = torch.ones(16, 16, dtype=torch.float16), torch.ones(16, 16, dtype=torch.float16, requires_grad=True)
    y = w.exp()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.CpuWarning)
        ops.matmul(a, a, out=y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_pytorch_is_asked_without_python(monkeypatch: Any) -> None:
    """A launch's time on the host is counted."""
    monkeypatch.setattr(torch.autograd.graph, "increment_version", None)
    y = torch.ones(32)
    copy_kernel()(torch.ones(32), y)
    assert y._version == 1


def test_simulating_with_options_is_a_launch_too() -> None:
    kernel, w = copy_kernel(), torch.ones(32, requires_grad=True)
    y: Any = w.exp()
    kernel.simulate(torch.ones(32), y)
    assert y._version == 1
    kernel.check(torch.ones(32), w)  # writes nothing of its arguments
    assert w._version == 0
