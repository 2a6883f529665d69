"""Padded batches packed inside encoders: the same states, nothing to see from outside or to hooks inside."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import networks  # noqa: E402
from surroundings import ALL, HALF, by_definition, everywhere, states  # noqa: E402, F401
from transformers import BertModel, PreTrainedModel  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene.integrations.transformers import _measure, _modules, _packing  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")


def test_packing_keeps_masks_of_any_form(calls) -> None:
    """Padding behind the tokens and between them."""
    ids = networks.batch()["input_ids"]
    for mask in (
        [[1] * 11, [1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0], [1] + [0] * 8 + [1] * 2],
        [[1] * 4 + [0] * 7, [1] + [0] * 10, [1] * 11],
    ):
        seen = torch.tensor(mask)
        inputs = {"input_ids": ids, "attention_mask": seen}
        model = networks.network("bert", "eager")
        want = states(model, inputs)
        calls.clear()
        got = states(everywhere(model), inputs)
        assert calls["attention_varlen"] == 2
        torch.testing.assert_close(got[seen.bool()], want[seen.bool()], rtol=1e-4, atol=1e-5)
        assert not got[~seen.bool()].any()


@pytest.mark.parametrize(
    "mask", [[[0] * 9 + [1] * 2, [1] * 11, [0] + [1] * 10], [[1] * 4 + [0] * 7, [0] * 11, [1] * 11]]
)
def test_position_0_is_eagers_whatever_stands_there(mask, calls) -> None:
    """Heads of classifiers read it, of padding on the left, too."""
    inputs = {"input_ids": networks.batch()["input_ids"], "attention_mask": torch.tensor(mask)}
    model = networks.network("bert", "eager")
    there = [row for row, m in enumerate(mask) if any(m)]  # of no token eager makes the mean of all keys
    with torch.no_grad():
        want = model(**inputs).pooler_output
        got = everywhere(model)(**inputs).pooler_output
    assert "attention_varlen" not in calls
    torch.testing.assert_close(got[there], want[there], rtol=1e-4, atol=1e-5)


class Pooled(PreTrainedModel):
    """A head that reads positions of an encoder's result, whether they are padding or not."""

    def __init__(self, config, read) -> None:
        super().__init__(config)
        self.bert, self.read = BertModel(config, add_pooling_layer=False), read
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        return (self.read(self.bert(input_ids, attention_mask=attention_mask)[0], attention_mask),)


READ = {
    "first": (lambda x, mask: x[:, 0], True),
    "each": (lambda x, mask: x * 2, True),
    "mean of tokens": (lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), True),
    "last": (lambda x, mask: x[:, -1], False),
    "mean": (lambda x, mask: x.mean(1), False),
    "scores of positions": (lambda x, mask: x.sum(-1), False),
    "next to it": (lambda x, mask: x.roll(1, 1), False),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", READ)
def test_a_head_that_reads_padding_gets_eagers(name, training, calls) -> None:
    read, packs = READ[name]
    torch.manual_seed(0)
    quiet = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    model = Pooled(networks.config("bert", **quiet), read).train(training)
    inputs = networks.batch([11, 4, 7])
    with torch.no_grad():
        want = model(**inputs)[0]
        everywhere(model)
        assert all(m.training is training for m in model.modules())
        calls.clear()
        got = model(**inputs)[0]
    rows = [r for r in integration.accelerated(model).rows if "padded" in r.where]
    assert [r.now for r in rows] == ["packed inside" if packs else "left"]
    assert ("attention_varlen" in calls) is packs
    if not packs:
        assert rows[0].why == "Pooled reads padded positions for its result"
    seen = inputs["attention_mask"].bool() if name == "each" else ...
    torch.testing.assert_close(got[seen], want[seen], rtol=1e-4, atol=1e-5)


def test_a_head_that_cannot_be_tried_gets_eagers() -> None:
    def fails(x, mask):
        raise KeyError("more inputs")

    model = everywhere(Pooled(networks.config("bert"), fails))
    why = [r.why for r in integration.accelerated(model).rows if "padded" in r.where]
    assert why == ["Pooled was not tried on padded positions: KeyError"]
    hooked = Pooled(networks.config("bert"), lambda x, mask: x)
    hooked.register_forward_hook(lambda m, a, out: (out[0].mean(1),))
    why = [r.why for r in integration.accelerated(everywhere(hooked)).rows if "padded" in r.where]
    assert why == ["Pooled has hooks: whether it reads padded positions was not tried"]


def test_packing_waits_for_a_gain(calls, monkeypatch) -> None:
    model = integration.accelerate(networks.network("bert", "graphene"), show=False)
    monkeypatch.setattr(_measure, "possible", lambda device: True)  # as on a GPU
    states(model, networks.batch([11, 4, 7]))
    assert "attention_varlen" not in calls  # 11 rows saved
    monkeypatch.setattr(_packing, "SAVED_ROWS", 11)
    states(model, networks.batch([11, 4, 7]))
    assert calls["attention_varlen"] == 2
    calls.clear()
    states(model, networks.batch([11, 10, 10]))
    states(model, networks.batch())
    assert "attention_varlen" not in calls


def test_packing_does_not_show(calls) -> None:
    """Where states or attentions inside are asked for, batches stay as they are; and pack=False."""
    inputs = networks.batch([11, 4, 7])
    model = networks.network("bert", "eager")
    with torch.no_grad():
        want = model(**inputs, output_hidden_states=True)
    everywhere(model)
    with torch.no_grad():
        got = model(**inputs, output_hidden_states=True)
    assert "attention_varlen" not in calls
    seen = inputs["attention_mask"].bool()
    assert len(got.hidden_states) == len(want.hidden_states)
    for a, b in zip(got.hidden_states, want.hidden_states, strict=True):
        torch.testing.assert_close(a[seen], b[seen], rtol=1e-4, atol=1e-5)
    states(everywhere(model, pack=False), inputs)
    assert "attention_varlen" not in calls


def hooks(model, steer):
    """Everything that sees a module inside an encoder called: what registers it, and what undoes that."""
    layer = model.encoder.layer[0]

    def replaced():
        before = layer.forward
        layer.forward = lambda *a, **k: steer(layer, a, before(*a, **k))
        return lambda: layer.__dict__.pop("forward")

    def globally():
        def only(module, args, out):
            return steer(module, args, out) if module is layer else None

        return torch.nn.modules.module.register_module_forward_hook(only).remove

    def before():
        return model.encoder.layer[1].register_forward_pre_hook(lambda m, a: (steer(m, a, a[0]), *a[1:])).remove

    return {"hook": lambda: layer.register_forward_hook(steer).remove, "pre-hook": before, "global": globally,
            "replaced": replaced}  # fmt: skip


@pytest.mark.parametrize("kind", ["hook", "pre-hook", "global", "replaced"])
def test_hooks_inside_see_the_batch(kind, calls) -> None:
    """One that steers each sequence at its first token gets them where they are; without it, packed again."""
    shapes = []

    def steer(module, args, out):
        shapes.append(tuple(out.shape))
        out = out.clone()
        out[:, 0] += 5
        return out

    inputs = networks.batch([11, 4, 7])
    seen = inputs["attention_mask"].bool()
    plain, model = networks.network("bert", "eager"), everywhere(networks.network("bert", "eager"))
    hooks(plain, steer)[kind]()
    want = states(plain, inputs)[seen]
    if kind == "global":
        torch.nn.modules.module._global_forward_hooks.clear()
    undo = hooks(model, steer)[kind]()
    torch.testing.assert_close(states(model, inputs)[seen], want, rtol=1e-4, atol=1e-5)
    assert shapes == [(3, 11, 32)] * 2
    assert "attention_varlen" not in calls
    undo()
    states(model, inputs)
    assert calls["attention_varlen"] == 2


def test_hooks_on_the_way_back_see_the_batch(calls) -> None:
    model = everywhere(networks.network("bert", "eager"))
    shapes = []
    model.encoder.layer[1].output.dense.register_full_backward_hook(lambda m, i, o: shapes.append(tuple(o[0].shape)))
    model(**networks.batch([11, 4, 7])).last_hidden_state.sum().backward()
    assert shapes == [(3, 11, 32)]
    assert "attention_varlen" not in calls


def test_asking_for_states_once_does_not_end_packing(calls) -> None:
    """transformers leaves hooks behind that sleep."""
    model = everywhere(networks.network("bert", "eager"))
    inputs = networks.batch([11, 4, 7])
    with torch.no_grad():
        model(**inputs, output_hidden_states=True)
    assert "attention_varlen" not in calls
    states(model, inputs)
    assert calls["attention_varlen"] == 2


def test_what_is_not_packed() -> None:
    known = lambda m: _modules.kind_of(m) is not None  # noqa: E731
    why = {}
    for name in ALL:
        model = networks.network(name)
        why[name] = [w for m in model.modules() if (w := _packing.why_not(m, known)) != ""]
    assert all(why[n] == [None] * (2 if n == "albert" else 1) for n in networks.ENCODERS)  # a group of layers is one
    for name in networks.ENCODERS:  # but only the outermost one packs
        rows = integration.accelerated(integration.accelerate(networks.network(name), show=False)).rows
        assert [r.count for r in rows if "padded" in r.where] == [1]
    assert not any(why[n] for n in networks.DECODERS)
    decoder = networks.network("bert", is_decoder=True).encoder
    assert _packing.why_not(decoder, known) == "it is a decoder"
    chunked = networks.network("bert", chunk_size_feed_forward=2).encoder
    assert _packing.why_not(chunked, known) == "chunk_size_feed_forward is set"
    model = networks.network("bert").encoder
    model.layer[0].output.mix = torch.nn.Conv1d(1, 1, 3)
    assert _packing.why_not(model, known) == "Conv1d may look at more than one row"
