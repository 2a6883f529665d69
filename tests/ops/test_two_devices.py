"""graphene.ops on a device that is not the current one, and on several at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphene import ops  # noqa: E402
from graphene.errors import GrapheneError  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="one device"),
]
F = torch.nn.functional


def r(*shape: int, device: int) -> Any:
    generator = torch.Generator(device=f"cuda:{device}").manual_seed(sum(shape))
    return torch.randn(*shape, device=f"cuda:{device}", dtype=torch.float16, generator=generator)


OPERATORS: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "matmul": (
        lambda d: ops.matmul(r(200, 136, device=d), r(136, 264, device=d), activation="relu"),
        lambda d: F.relu(r(200, 136, device=d).float() @ r(136, 264, device=d).float()),
    ),
    "odd matmul": (
        lambda d: ops.matmul(r(201, 137, device=d), r(137, 263, device=d)),
        lambda d: r(201, 137, device=d).float() @ r(137, 263, device=d).float(),
    ),
    "layer_norm": (
        lambda d: ops.layer_norm(r(64, 1024, device=d), (1024,)),
        lambda d: F.layer_norm(r(64, 1024, device=d).float(), (1024,)),
    ),
    "rms_norm": (
        lambda d: ops.rms_norm(r(64, 16384, device=d), (16384,)),
        lambda d: F.rms_norm(r(64, 16384, device=d).float(), (16384,)),
    ),
    "softmax": (
        lambda d: ops.softmax(r(64, 33000, device=d), -1),
        lambda d: F.softmax(r(64, 33000, device=d).float(), -1),
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_runs_where_its_tensors_are(name: str) -> None:
    """Code, workspace, result and stream belong to the tensors' device, whichever is current."""
    ours, theirs = OPERATORS[name]
    torch.cuda.set_device(0)
    for d in (1, 0, 1, 0):
        y = ours(d)
        assert y.device == torch.device("cuda", d)
        assert torch.cuda.current_device() == 0
        torch.testing.assert_close(y.float(), theirs(d), rtol=2e-3, atol=2e-2)


def test_gradients_run_where_their_tensors_are() -> None:
    torch.cuda.set_device(0)
    x, w = r(64, 72, device=1).requires_grad_(), r(72, 40, device=1).requires_grad_()
    t = r(64, 40, device=1).float()
    (ops.layer_norm(ops.matmul(x, w, activation="gelu"), (40,)).float() * t).sum().backward()
    x32, w32 = (t.detach().float().requires_grad_() for t in (x, w))
    (F.layer_norm(F.gelu(x32 @ w32), (40,)) * t).sum().backward()
    for got, ref in ((x.grad, x32.grad), (w.grad, w32.grad)):
        scale = ref.abs().max()
        torch.testing.assert_close(got.float() / scale, ref / scale, rtol=0, atol=1e-2)


def test_streams_of_the_other_device_are_obeyed() -> None:
    torch.cuda.set_device(0)
    side = torch.cuda.Stream(device=1)
    with torch.cuda.stream(side):  # makes device 1 the current one, and its stream
        a = r(512, 512, device=1)
        for _ in range(20):
            a = ops.softmax(ops.matmul(a, a), -1)
    side.synchronize()
    assert torch.isfinite(a).all()
    assert a.float().sum(-1).sub(1).abs().max() < 0.05
    assert torch.cuda.current_device() == 0


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(GrapheneError, match="device"):
        ops.matmul(r(64, 64, device=0), r(64, 64, device=1))
    with pytest.raises(GrapheneError, match="device"):
        ops.layer_norm(r(64, 64, device=0), (64,), torch.ones(64, device="cuda:1", dtype=torch.float16))
