"""Recorded forward passes of an accelerated model. Without a GPU, a tape of operators is the recording."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import networks  # noqa: E402
import tape  # noqa: E402
from surroundings import by_definition, everywhere, states  # noqa: E402, F401
from transformers import BertModel, PreTrainedModel  # noqa: E402
from transformers.cache_utils import DynamicCache  # noqa: E402
from transformers.models.bert.modeling_bert import BertOutput  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene.integrations.transformers import _measure, _packing, _passes, _steps  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")


@pytest.fixture
def recording(monkeypatch):
    """Passes are recorded on this machine, too."""
    monkeypatch.setattr(_measure, "possible", lambda device: True)
    monkeypatch.setattr(_measure, "choose", lambda *args: {})
    monkeypatch.setattr(_steps, "GraphOfLaunches", tape.Recorded)
    monkeypatch.setattr(_passes, "quicker", lambda *args: True)
    tape.Recorded.made = []
    return tape.Recorded.made


def passes(model):
    (found,) = integration.accelerated(model).passes
    return found


def row(model):
    return next((r.now, r.why) for r in integration.accelerated(model).rows if "forward passes" in r.where)


def given(seed, lengths=None, **more):
    inputs = networks.batch(lengths, **more)
    return inputs | {"input_ids": 5 + (inputs["input_ids"] + 7 * seed) % 90}


@pytest.mark.parametrize("name", ["bert", "distilbert", "albert", "llama", "opt", "mistral"])
@pytest.mark.parametrize("lengths", [None, [11, 4, 7]])
def test_the_same_results(name, lengths, recording) -> None:
    """Of other tokens each time, in tensors of their own."""
    plain, model = networks.network(name, "eager"), everywhere(networks.network(name, "eager"))
    before = []
    for seed in range(5):
        inputs = given(seed, lengths)
        want, got = states(plain, inputs), states(model, inputs)
        seen = ... if lengths is None else inputs["attention_mask"].bool()
        torch.testing.assert_close(got[seen], want[seen], rtol=1e-4, atol=1e-5)
        before.append((got, got.clone()))
    assert all(torch.equal(a, b) for a, b in before)
    if name != "mistral":  # whose cache of windows is not copied
        assert [r.replays for r in recording] == [4]
        assert row(model)[0] == "recorded"


def test_a_form_is_its_shapes_its_arguments_and_its_padding(recording, monkeypatch) -> None:
    model = everywhere(networks.network("bert", "eager"))
    plain = networks.network("bert", "eager")
    forms = [dict(), dict(rows=2), dict(lengths=[11, 11, 11]), dict(lengths=[11, 4, 7])]
    with torch.no_grad():
        model(**given(0), output_hidden_states=True)  # transformers leaves hooks in place, from now on
    for turn in range(4):
        for form in forms:
            inputs = given(turn, **form)
            torch.testing.assert_close(
                states(model, inputs), states(plain, inputs) * seen(inputs), rtol=1e-4, atol=1e-5
            )
    assert len(recording) == len(passes(model).known) == len(forms)
    with torch.no_grad():
        for _ in range(3):
            hidden = model(**given(0), output_hidden_states=True).hidden_states
            assert len(hidden) == 3
            assert len(model(**given(0), return_dict=False)) == 2
    assert len(recording) == len(forms) + 2
    monkeypatch.setattr(_passes, "FORMS", 2)
    for _ in range(3):
        states(model, given(1, rows=1))
    assert len(passes(model).known) == len(forms) + 2  # one more, and the one that was used longest ago is gone


def seen(inputs):
    return inputs["attention_mask"][..., None] if "attention_mask" in inputs else 1


def test_padding_that_differs_within_a_form(recording, monkeypatch) -> None:
    """A recorded pass is right for other lengths, as far as its bounds reach, and for other places of padding."""
    monkeypatch.setattr(_packing, "SAVED_ROWS", 4)
    plain = networks.network("bert", "eager")
    model = integration.accelerate(networks.network("bert", "graphene"), show=False)
    for lengths in ([11, 4, 7], [4, 11, 7], [7, 7, 11], [11, 3, 9], [11, 2, 2], [1, 1, 11], [5, 5, 5]):
        inputs = given(sum(lengths), lengths)
        torch.testing.assert_close(states(model, inputs), states(plain, inputs) * seen(inputs), rtol=1e-4, atol=1e-5)
    assert [r.replays for r in recording] == [6]


def test_bounds_hold_and_waste_little() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        batch, length = (int(torch.randint(1, n, (), generator=draw)) for n in (40, 700))
        each = torch.randint(1, length + 1, (batch, 1), generator=draw)
        mask = (torch.arange(length)[None] < each).long()
        found, total = _passes.padding_of(mask), int(mask.sum())
        assert total <= found.rows <= min(max(total + 63, 17 * total // 16 + 1), mask.numel())
        assert int(each.max()) <= found.longest <= length
        assert found.full == (total == mask.numel())
        assert found.first


class Own(PreTrainedModel):
    """A model around BERT that does something more in each pass."""

    def __init__(self, config, more) -> None:
        super().__init__(config)
        self.bert, self.more = BertModel(config, add_pooling_layer=False), more
        self.register_buffer("count", torch.zeros(()))
        self.kept, self.calls = {"numbers": [0]}, 0
        self.post_init()

    def forward(self, input_ids, attention_mask=None, past_key_values=None):
        return self.more(self, self.bert(input_ids, attention_mask=attention_mask)[0])


def counts(model, x):
    model.calls += 1
    return (x * model.calls,)


def appends(model, x):
    model.kept["numbers"].append(0)
    return (x * len(model.kept["numbers"]),)


def cached(model, x):
    cache = DynamicCache()
    cache.update(x[:, None], x[:, None], 0)
    return x, cache


class Something:
    pass


REFUSED = {
    "a number": (lambda m, x: (x * x.max().item(),), "it reads numbers from the device"),
    "a branch": (lambda m, x: (x if x.sum() > 1e9 else -x,), "it reads numbers from the device"),
    "a choice": (lambda m, x: (x[x > 0],), "it reads numbers from the device"),
    "random": (lambda m, x: (x + torch.rand_like(x),), "it draws random numbers"),
    "a buffer": (lambda m, x: (x * m.count.add_(1),), "it writes to tensors that it keeps, or to its inputs"),
    "an attribute": (counts, "its modules change in each pass"),
    "a dictionary": (appends, "its modules change in each pass"),
    "an object": (lambda m, x: (x, Something()), "its results hold a Something"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_recorded(kind, recording) -> None:
    more, why = REFUSED[kind]
    torch.manual_seed(0)
    plain = Own(networks.config("bert"), more).eval()
    model = everywhere(copy.deepcopy(plain))
    model.count.zero_()  # packing was tried
    model.kept, model.calls = copy.deepcopy(plain.kept), 0
    for seed in range(6):
        inputs = given(seed)
        found = []
        for m in (plain, model):
            torch.manual_seed(seed)
            with torch.no_grad():
                found.append(m(**inputs)[0])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not any(r.replays for r in recording)
    assert list(passes(model).refused.values()) == [why]


def test_a_cache_that_a_pass_makes_is_the_callers(recording) -> None:
    model = everywhere(Own(networks.config("bert"), cached).eval())
    plain = copy.deepcopy(integration.restore(copy.deepcopy(model)))
    held = []
    for seed in range(4):
        with torch.no_grad():
            x, cache = model(**given(seed))
            want = plain(**given(seed))[1]
        torch.testing.assert_close(cache.layers[0].keys, want.layers[0].keys, rtol=1e-4, atol=1e-5)
        cache.update(x[:, None], x[:, None], 0)
        assert cache.get_seq_length() == 22
        held.append(cache)
    assert [c.get_seq_length() for c in held] == [22] * 4
    assert [r.replays for r in recording] == [3]


class Doubled(BertOutput):
    def forward(self, hidden_states, input_tensor):
        return 2 * super().forward(hidden_states, input_tensor)


CHANGES = {
    "weights in place": lambda m: m.encoder.layer[0].output.dense.weight.mul_(3),
    "another tensor": lambda m: setattr(
        m.encoder.layer[0].output.dense.weight, "data", 2 * m.encoder.layer[0].output.dense.weight.data
    ),
    "another parameter": lambda m: setattr(
        m.encoder.layer[0].output.dense,
        "bias",
        torch.nn.Parameter(torch.ones_like(m.encoder.layer[0].output.dense.bias)),
    ),
    "fewer layers": lambda m: setattr(m.encoder, "layer", m.encoder.layer[:1]),
    "a layer less": lambda m: m.encoder.layer.__delitem__(1),
    "an attribute": lambda m: setattr(m.encoder.layer[0].output.LayerNorm, "eps", 0.5),
    "another module": lambda m: setattr(m.encoder.layer[0].output, "dense", torch.nn.Linear(64, 32)),
    "a hook": lambda m: m.encoder.layer[0].output.dense.register_forward_hook(lambda m, a, out: 2 * out),
    "its own forward": lambda m: setattr(m.encoder.layer[0].output, "forward", lambda x, y: x[..., :32] + y),
    "precision": lambda m: m.double(),
    "another class": lambda m: setattr(m.encoder.layer[0].output, "__class__", Doubled),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_recorded_model_are_seen(change, recording) -> None:
    plain, model = networks.network("bert", "eager"), everywhere(networks.network("bert", "eager"))
    for seed in range(4):
        states(model, given(seed))
    assert [r.replays for r in recording] == [3]
    for m in (plain, model):
        torch.manual_seed(5)
        with torch.no_grad():
            CHANGES[change](m)
    for seed in range(4):
        torch.testing.assert_close(states(model, given(seed)), states(plain, given(seed)), rtol=1e-4, atol=1e-5)
    assert (recording[0].replays == 7) == (change == "weights in place")


def test_a_model_that_changes_often_is_left(recording) -> None:
    model = everywhere(networks.network("bert", "eager"))
    for turn in range(12):
        for seed in range(3):
            states(model, given(seed))
        model.config.some_number = turn
    assert row(model) == ("left", "its modules change between passes")
    assert len(recording) == _passes.CHANGES + 1


def test_a_wrong_recording_is_noticed(recording, monkeypatch) -> None:
    """In the pass that records, and in the next one."""
    plain = networks.network("bert", "eager")
    for wrong_at in (1, 2):
        model = everywhere(networks.network("bert", "eager"))

        class Wrong(tape.Recorded):
            def replay(self, wrong_at=wrong_at) -> None:
                super().replay()
                if self.replays >= wrong_at:
                    self.result.last_hidden_state[0, 0] += 0.1

        monkeypatch.setattr(_steps, "GraphOfLaunches", Wrong)
        for seed in range(5):
            torch.testing.assert_close(states(model, given(seed)), states(plain, given(seed)), rtol=1e-4, atol=1e-5)
        said = "a recorded pass gave other results than one that was not recorded"
        assert list(passes(model).refused.values()) == [said]
        for rows in (1, 2, 4):
            for seed in range(3):
                states(model, given(seed, rows=rows))
        assert row(model) == ("left", said)


def test_what_takes_as_long_is_not_recorded(recording, monkeypatch) -> None:
    monkeypatch.setattr(_passes, "quicker", lambda *args: False)
    model = everywhere(networks.network("bert", "eager"))
    for rows in range(1, 7):
        for seed in range(3):
            states(model, given(seed, rows=rows))
    assert set(passes(model).refused.values()) == {_passes.SLOWER}
    assert row(model)[0] == "recorded"  # another form may be faster


def test_what_sees_more_than_results_runs_the_model(recording) -> None:
    """Gradients, training, autocast, a global hook, modes, a cache, a call inside of which states are collected."""
    model = everywhere(networks.network("bert", "eager"))
    for seed in range(3):
        states(model, given(seed))
    (recorded,), before = recording, 2
    assert recorded.replays == before
    assert model(**given(0)).last_hidden_state.requires_grad
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(**given(0))
    with torch.no_grad(), tape.Tape():
        model(**given(0))
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, a, out: seen.append(type(m).__name__))
    states(model, given(0))
    handle.remove()
    assert "BertSelfAttention" in seen
    model.train()
    states(model, given(0))
    model.eval()
    with torch.no_grad():
        model(input_ids=given(0)["input_ids"], past_key_values=DynamicCache())
    assert recorded.replays == before
    states(model, given(0))
    assert recorded.replays == before + 1


def test_positional_arguments_are_those_by_name(recording) -> None:
    model, plain = everywhere(networks.network("bert", "eager")), networks.network("bert", "eager")
    inputs = given(0, [11, 4, 7])
    with torch.no_grad():
        for _ in range(4):
            got = model(inputs["input_ids"], inputs["attention_mask"])[0]
        want = plain(**inputs)[0]
        torch.testing.assert_close(got, want * seen(inputs), rtol=1e-4, atol=1e-5)
        with pytest.raises(TypeError, match="multiple values"):
            model(inputs["input_ids"], input_ids=inputs["input_ids"])
    assert [r.replays for r in recording] == [3]


def test_two_threads(recording) -> None:
    """While one replays, the other runs the model: inputs and results of a recorded pass are one call's."""
    plain, model = networks.network("bert", "eager"), everywhere(networks.network("bert", "eager"))
    for seed in range(3):
        states(model, given(seed))
    wants = [states(plain, given(seed)) for seed in range(6)]
    wrong = []

    def work(first):
        for turn in range(12):
            seed = (first + turn) % 6
            if not torch.allclose(states(model, given(seed)), wants[seed], rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_nothing_is_left_of_a_model_that_is_gone(recording) -> None:
    model = everywhere(networks.network("bert", "eager"))
    for seed in range(4):
        states(model, given(seed))
    weight, held = weakref.ref(model.encoder.layer[0].output.dense.weight), weakref.ref(passes(model))
    assert held().known
    del model
    gc.collect()
    assert weight() is None
    assert held() is None


def test_copies_pickles_and_restore(recording) -> None:
    model = everywhere(networks.network("bert", "eager"))
    for seed in range(4):
        want = states(model, given(seed))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is BertModel
        torch.testing.assert_close(states(other, given(3)), want, rtol=1e-4, atol=1e-5)
    held = passes(model)
    integration.restore(model)
    assert type(model) is BertModel
    assert not held.known
    torch.testing.assert_close(states(model, given(3)), want, rtol=1e-4, atol=1e-5)
    assert [r.replays for r in recording] == [3]


def test_it_can_be_left_out(recording) -> None:
    model = everywhere(networks.network("bert", "eager"), record=False)
    for seed in range(4):
        states(model, given(seed))
    assert not recording
    assert not integration.accelerated(model).passes


def test_models_inside_of_another_module(recording) -> None:
    inner = networks.network("bert", "eager")
    model = everywhere(torch.nn.ModuleDict({"text": inner, "other": torch.nn.Linear(2, 2)}))
    plain = networks.network("bert", "eager")
    for seed in range(4):
        torch.testing.assert_close(states(inner, given(seed)), states(plain, given(seed)), rtol=1e-4, atol=1e-5)
    assert [r.replays for r in recording] == [3]
    assert row(model)[0] == "recorded"
    hooked = networks.network("bert", "eager")
    hooked.forward = hooked.forward
    assert row(everywhere(hooked)) == ("left", "something else replaced its forward")


def test_a_model_of_two_calls_is_recorded_once(recording) -> None:
    """By the first, whose class it has; a model around it is left."""
    inner, plain = networks.network("bert", "eager"), networks.network("bert", "eager")
    for wrapper in [torch.nn.ModuleList([inner]) for _ in range(2)]:
        everywhere(wrapper)
    outer = Own(inner.config, lambda m, x: (2 * x,)).eval()
    outer.bert = inner
    everywhere(outer)
    for seed in range(4):
        with torch.no_grad():
            torch.testing.assert_close(outer(**given(seed))[0], 2 * states(plain, given(seed)), rtol=1e-4, atol=1e-5)
    assert [r.replays for r in recording] == [3]
    for model in (outer, inner):
        integration.restore(model)


def test_without_a_gpu_nothing_is_recorded() -> None:
    model = everywhere(networks.network("bert", "eager"))
    assert row(model) == ("left", "it is not on one GPU")


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [(1.0, 1.0, True), (1.0, 1.00001, True), (1.0, 1.1, False), (float("nan"), float("nan"), True),
     (float("nan"), 1.0, False), (1.0, float("nan"), False), (float("inf"), float("inf"), True),
     (float("inf"), -float("inf"), False), (0.0, 1e-3, False)],
)  # fmt: skip
def test_likeness(want, got, same) -> None:
    """One element of many is enough."""
    a, b = torch.ones(1000), torch.ones(1000)
    a[7], b[7] = want, got
    assert _passes.alike({"x": (a, [3])}, {"x": (b, [3])}, 1) is same
    assert not _passes.alike(a, a.double(), 1)
    assert not _passes.alike(a, b[:999], 1)
    assert not _passes.alike((a,), [a], 1)
    assert not _passes.alike({"x": 1}, {"y": 1}, 1)
    assert _passes.alike(torch.zeros(3), torch.zeros(3), 1)
    assert not _passes.alike(torch.zeros(3), torch.full((3,), 1e-9), 1)
