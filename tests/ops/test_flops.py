"""What PyTorch's counter of operations says of operators: as much as of PyTorch's own that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cpu_cases import F, quiet, r  # noqa: E402, F401
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from graphene import ops  # noqa: E402


def flops(call: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def with_gradient(f: Callable[..., Any], *args: Any, **named: Any) -> Callable[[], None]:
    return lambda: f(*(a.detach().requires_grad_() for a in args), **named).sum().backward()


def plain_attention(q: Any, k: Any, v: Any, **named: Any) -> Any:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    s = (q @ k.mT).softmax(-1)
    return s @ v


@pytest.mark.parametrize("wide", [False, True])  # on the simulator, and not
def test_as_many_as_of_pytorchs_own(wide: bool) -> None:
    n = 4 if wide else 1
    a, b, x = r(2, 20, 40 * n), r(40 * n, 24), r(5, 16 * n)
    assert flops(lambda: ops.matmul(a, b)) == flops(lambda: a @ b) == 2 * 2 * 20 * 40 * n * 24
    assert flops(lambda: ops.matmul(a, b, r(24), "gelu", r(2, 20, 24))) == flops(lambda: a @ b)
    assert flops(lambda: ops.matmul(a, b, out=torch.empty(2, 20, 24).half())) == flops(lambda: a @ b)
    assert flops(lambda: ops.matmul(a[0, 0], b)) == flops(lambda: a[0, 0] @ b)
    assert flops(with_gradient(ops.matmul, a, b)) == flops(with_gradient(torch.matmul, a, b))
    again = flops(lambda: a @ b)  # what the activation took is computed again
    assert flops(with_gradient(ops.matmul, a, b, activation="silu")) == flops(with_gradient(torch.matmul, a, b)) + again
    weights = [r(32, 16 * n), r(32, 32), r(8, 32)]
    assert flops(lambda: ops.fused_mlp(x, weights)) == 2 * 5 * sum(w.numel() for w in weights)
    w, u, h = r(32, 16 * n), r(32, 8), r(5, 8)
    assert flops(lambda: ops.lstm_cell(x, h, h, w, u)) == flops(lambda: (F.linear(x, w), F.linear(h, u)))
    assert flops(lambda: ops.rnn_cell(x, h, w, u)) == flops(lambda: (F.linear(x, w), F.linear(h, u)))
    q, k = r(2, 33 * n, 4, 16), r(2, 20, 4, 16)
    one = flops(lambda: plain_attention(q, k, k))
    assert flops(lambda: ops.attention(q, k, k)) == one == 4 * q.numel() * 20
    assert flops(lambda: ops.attention(q, k[:, :, :2], k[:, :, :2], causal=True, return_lse=True)) == one
    assert flops(with_gradient(ops.attention, q, k, k)) == one + 5 * one // 2


def test_packed_sequences_count_their_own_scores() -> None:
    q, k = r(12, 2, 16), r(9, 2, 16)
    starts = [torch.tensor(s, dtype=torch.int32) for s in ([0, 5, 5, 12], [0, 2, 6, 9])]
    scores = (5 * 2 + 0 * 4 + 7 * 3) * 2 * 16
    call = lambda q, k, v: ops.attention_varlen(q, k, v, *starts, 7, 4)  # noqa: E731
    assert flops(lambda: call(q, k, k)) == 4 * scores
    assert flops(with_gradient(call, q, k, k)) == 4 * scores + 10 * scores
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:  # which have no values to count by
        fake = [mode.from_tensor(t) for t in (q, k, *starts)]
        assert flops(lambda: ops.attention_varlen(fake[0], fake[1], fake[1], *fake[2:], 7, 4)) == 4 * 3 * 7 * 4 * 2 * 16


def test_on_fake_tensors() -> None:
    with torch._subclasses.FakeTensorMode():
        a, b = torch.empty(1 << 20, 64).half(), torch.empty(64, 128).half()
        assert flops(lambda: ops.matmul(a, b)) == 2 * (1 << 20) * 64 * 128
