"""What tests of the integration share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads wait for each other longer than these networks take."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def calls(monkeypatch):
    """How often each operator is called."""
    from graphene import ops

    count = {}

    def counted(name, f):
        def call(*args, **named):
            kind = f"{name}+residual" if named.get("residual") is not None else name
            count[kind] = count.get(kind, 0) + 1
            return f(*args, **named)

        return call

    for name in ("attention", "attention_varlen", "layer_norm", "rms_norm", "matmul", "gated", "rotary"):
        monkeypatch.setattr(ops, name, counted(name, getattr(ops, name)))
    return count
