"""The parts of accelerate: what modules are, and how methods are rewritten."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

from graphene.integrations.transformers import _modules, _rewrite  # noqa: E402


def test_norms_are_known_by_what_they_compute() -> None:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    class HalfRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states):
            return super().forward(hidden_states) / 2

    kinds = [
        _modules.norm_of(c(32))
        for c in (LlamaRMSNorm, Gemma2RMSNorm, HalfRMSNorm, torch.nn.LayerNorm, torch.nn.RMSNorm)
    ]
    assert kinds == ["rms", None, None, "layer", None if torch.nn.RMSNorm(32).eps is None else "rms"]
    assert _modules.norm_of(torch.nn.LayerNorm((4, 8))) is None
    assert _modules.norm_of(torch.nn.LayerNorm(8, elementwise_affine=False)) is None


def test_activations_are_known_by_what_they_compute() -> None:
    from transformers.activations import ACT2FN

    names = {
        n: _modules.activation_of(ACT2FN[n]) for n in ("gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "relu", "tanh")
    }
    assert names == {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
                     "relu": "relu", "tanh": "tanh"}  # fmt: skip
    assert [_modules.activation_of(ACT2FN[n]) for n in ("quick_gelu", "relu6", "mish", "leaky_relu")] == [None] * 4
    assert _modules.activation_of(torch.nn.Dropout()) is None


class Sample(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.fc, self.up, self.third = (torch.nn.Linear(8, 8) for _ in range(3))
        self.act = torch.nn.SiLU()

    def sum_is_used_later(self, x, y):
        s = x + y
        r = s
        n = self.norm(s)
        return r * n

    def sum_in_a_branch(self, x, y, flag=None):
        x = x + y
        if flag is not None:
            x = x * 2
        r = x
        x = self.norm(x)
        return r + x

    def activation_kept_apart(self, x):
        y = self.fc(x)
        z = self.act(y)
        return y + z

    def other_inputs(self, x, y):
        return self.act(self.fc(x)) * self.up(y)

    def nested(self, x, y):
        return self.act(self.fc(self.norm(x + self.up(y)))) * self.up(x)

    def several(self, x):
        a = self.fc(x).view(1, 3, 8)
        b = self.up(x).transpose(0, 1)
        return a @ b

    def several_perhaps(self, x, y=None):
        a = self.fc(x)
        b = self.up(x) if y is None else x
        c = self.third(x)
        return a + b + c

    def several_of_another(self, x):
        a = self.fc(x)
        x = self.up(x)
        b = self.third(x)
        return a + b

    def in_a_loop(self, x):
        for _ in range(2):
            x = self.norm(x + x)
        return x


@pytest.mark.parametrize(
    ("method", "found", "more"),
    [("sum_is_used_later", ["add_norm"], [()]), ("sum_in_a_branch", ["add_norm"], [(), (1,)]),
     ("activation_kept_apart", [], None), ("other_inputs", ["linear_act"], [()]),
     ("nested", ["add_norm", "linear_act"], [()]), ("in_a_loop", ["add_norm"], None),
     ("several", ["linears"], None), ("several_of_another", ["linears"], None),
     ("several_perhaps", [], None)],
)  # fmt: skip
def test_rewriting(method, found, more) -> None:
    """A rewritten method gives what the method gives, and calls helpers where the patterns are."""
    module = Sample()
    kinds = {n: _modules.kind_of(m) for n, m in module.named_children()}
    got = _rewrite.rewrite(getattr(Sample, method), kinds)
    assert sorted(s.kind for s in (got.sites if got else ())) == found
    if got is None:
        return

    class Helpers:
        called = 0

        def count(self, value):
            Helpers.called += 1
            return value

        def add_norm(self, norm, a, b):
            return self.count(norm(a + b))

        def add_norm_sum(self, norm, a, b):
            return self.count((a + b, norm(a + b)))

        def linear_act(self, linear, act, x):
            return self.count(act(linear(x)))

        def linears(self, modules, x):
            assert len(modules) == 2
            return self.count([m(x) for m in modules])

    new = got.make(Helpers())
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    for extra in more or [None]:
        args = (x,) if more is None else (x, y, *extra)
        Helpers.called = 0
        assert torch.equal(new(module, *args), getattr(module, method)(*args))
        assert Helpers.called == (0 if extra == (1,) else 2 if method in ("nested", "in_a_loop") else 1)
