"""The parts of accelerate: what modules are, and how methods are rewritten."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

from graphene.integrations.transformers import _modules, _rewrite, _turns  # noqa: E402


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
    assert kinds == ["rms", "rms1", None, "layer", None if torch.nn.RMSNorm(32).eps is None else "rms"]
    assert _modules.norm_of(torch.nn.LayerNorm((4, 8))) is None
    assert _modules.norm_of(torch.nn.LayerNorm(8, elementwise_affine=False)) is None


class Flagged(torch.nn.Module):
    """A norm under another name, whose formula depends on a flag."""

    def __init__(self, one):
        super().__init__()
        self.weight, self.eps, self.one = torch.nn.Parameter(torch.zeros(16)), 1e-5, one

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (16,), self.weight + self.one, self.eps)


def test_norms_of_one_class_may_differ() -> None:
    assert [_modules.norm_of(Flagged(one)) for one in (True, False)] == ["rms1", "rms"]


def halves(q, k, cos, sin, heads_at=1):
    cos, sin = cos.unsqueeze(heads_at), sin.unsqueeze(heads_at)

    def other(x):
        return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)

    return (q * cos) + other(q) * sin, k * cos + other(k) * sin


def negated(q, k, cos, sin):
    return halves(q, k, cos, -sin)


def keys_alone(q, k, cos, sin):
    return q, halves(q, k, cos, sin)[1]


def test_rotary_embeddings_are_known_by_what_they_compute() -> None:
    from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as neighbours
    from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as half_of_the_angles
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as of_llama

    found = [tuple(_turns.turn_of(f, (), ())) for f in (halves, of_llama, neighbours)]
    assert found == [("halves", 1), ("halves", 1), ("neighbours", 1)]
    assert _turns.turn_of(halves, (2,), ()) == _turns.turn_of(halves, (), (("heads_at", 2),)) == ("halves", 2)
    others = (negated, keys_alone, half_of_the_angles, torch.addcmul, print, None)
    assert [_turns.turn_of(f, (), ()) for f in others] == [None] * 6
    assert _turns.turn_of(halves, ([],), ()) is None


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
        self.third_norm, self.other = torch.nn.LayerNorm(2), torch.nn.LayerNorm(2)
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

    def turned(self, x, y, flag=None):
        q = self.third_norm(self.fc(x).view(3, 1, 4, 2)).transpose(1, 2)
        k = self.other(self.up(x).view(3, 1, 4, 2).transpose(1, 2))
        cos, sin = y.view(3, 4, 2)[:, :1], y.view(3, 4, 2)[:, 1:2]
        if flag is not None:
            sin = sin * 2
        q, k = halves(q, k, cos, sin)
        return q + k

    def turned_without_norms(self, x, y):
        q = self.third_norm(self.fc(x).view(3, 1, 4, 2)).transpose(1, 2)
        k = self.up(x).view(3, 1, 4, 2).transpose(1, 2)
        q = q * 2
        cos, sin = y.view(3, 4, 2)[:, :1], y.view(3, 4, 2)[:, 1:2]
        q, k = halves(q, k, cos, sin, heads_at=1)
        return q + k

    def another_function(self, x, y):
        halves = negated
        q = k = x.view(3, 4, 1, 2)
        cos = sin = y.view(3, 4, 2)[:, :1]
        q, k = halves(q, k, cos, sin)
        return q + k

    def any_gate(self, x, y):
        a, b = x.chunk(2, dim=-1)
        return self.act(a + 1) * b, b * self.act(a)

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
     ("several_perhaps", [], None), ("turned", ["linears", "rotary"], [(), (1,)]),
     ("turned_without_norms", ["linears", "rotary"], [()]), ("another_function", [], None),
     ("any_gate", ["act_mul", "act_mul"], [()])],
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

        def act_mul(self, act, a, b):
            return self.count(act(a) * b)

        def rotary(self, function, pairs, heads_at, norms, extra, named, *args):
            assert (pairs, heads_at, norms is None) == ("halves", 1, method == "turned_without_norms")
            if norms is not None:
                assert norms[2] == (True, False)
                args = [norms[0](args[0].transpose(1, 2)).transpose(1, 2), norms[1](args[1]), *args[2:]]
            return self.count(function(*args, *extra, **named))

    new = got.make(Helpers())
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    for extra in more or [None]:
        args = (x,) if more is None else (x, y, *extra)
        Helpers.called = 0
        for one, other in zip(new(module, *args), getattr(module, method)(*args), strict=True):
            assert torch.equal(one, other)
        once = len(found) == 1 and method != "in_a_loop"
        assert Helpers.called == (0 if (extra, method) == ((1,), "sum_in_a_branch") else 1 if once else 2)


def test_measurements_are_kept(monkeypatch) -> None:
    """For another process; not if they are damaged, or the memory did not suffice for all of them."""
    from graphene.integrations.transformers import _measure

    memos, made = {}, []
    times = {n: {"torch": 2.0 * n, "graphene": 1.5} for n in _measure.ROWS}
    monkeypatch.setattr(_measure._core, "memo_load", memos.get)
    monkeypatch.setattr(_measure._core, "memo_store", memos.__setitem__)
    monkeypatch.setattr(_measure.plans, "package_stamp", lambda: "stamp")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H")
    monkeypatch.setattr(_measure, "_choose", lambda *args: made.append(args) or times)
    ask = (("norm", 32), torch.float16, torch.device("cuda:0"), "rms")
    assert [_measure.choose(*ask) for _ in range(2)] == [times, times]
    assert len(made) == 1
    for damaged in (b"[", b"[]", b'[[1, {"graphene": 1}], [128, {}], [8192, {}]]', b"3", b""):
        memos.update(dict.fromkeys(memos, damaged))
        assert _measure.choose(*ask) == times
    assert len(made) == 6
    times.pop(1)
    _measure.choose(("norm", 64), *ask[1:])
    assert len(memos) == 1
    assert _measure._memo(*ask[:2], torch.device("cpu"), "rms") is None


def test_what_is_left_to_pytorch(capsys) -> None:
    """Shares of a forward pass; on a CPU by the host's clock."""
    import networks

    import graphene.integrations.transformers as integration
    from graphene.integrations.transformers import _left

    model = integration.accelerate(networks.network("llama", "eager", torch.float16), only_faster=False, show=False)
    inputs, size = _left.usual_inputs(model)
    assert size == "8 x 62 tokens"
    assert inputs["use_cache"] is False
    times = _left.measured(model, networks.batch())
    assert {"graphene.rotary_forward", "graphene.rms_norm_forward", "mm", "embedding"} <= set(times)
    text = integration.accelerated(model).left_to_pytorch(**networks.batch())
    assert text.startswith("its other") or "Graphene " in text
    words = _left.in_words(_left.Counter({"graphene.gated_forward": 50.0, "mm": 30.0, "cat": 19.9, "add": 0.1}))
    assert words == "Graphene 50%, PyTorch's products 30%, its other operators 20% (cat 20%)"
    assert "a forward pass" not in str(integration.accelerated(model))
    image = networks.CONFIG_MAPPING["vit"](hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32)
    pixels = _left.usual_inputs(networks.AutoModel.from_config(image))
    assert pixels is not None
    assert pixels[1] == "8 images of 32 x 32"
    assert _left.usual_inputs(torch.nn.Linear(1, 1)) is None


def test_the_device_waits_again_after_the_host_did(monkeypatch) -> None:
    """A number that the host reads leaves the device idle: times would be those of launches from then on."""
    from graphene.integrations.transformers import _left

    at, waits = [0.0], []
    monkeypatch.setattr(_left.time, "perf_counter", lambda: at[0])
    monkeypatch.setattr(torch.cuda, "_sleep", waits.append)
    times = _left.Times(on_gpu=True)
    monkeypatch.setattr(times, "now", lambda: at[0])
    run = torch.ops.aten.add.Tensor
    slow = dict(func=run, types=(), args=(torch.ones(1), torch.ones(1)))
    times.__torch_dispatch__(**slow)
    assert not waits

    class Waits:
        is_view, _schema = False, run._schema

        def __call__(self, *args):
            at[0] += 0.02
            return run(*args)

    times.__torch_dispatch__(**(slow | {"func": Waits()}))
    assert waits == [_left.AHEAD]
    assert len(times.spans) == 2
