"""generate() of an accelerated model by recorded steps. Without a GPU, a tape of operators is the recording."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import networks  # noqa: E402
import tape  # noqa: E402
from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteriaList  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene.integrations.transformers import _generate, _measure, _steps  # noqa: E402

ASK = dict(max_new_tokens=18, do_sample=False, pad_token_id=0, eos_token_id=None)


@pytest.fixture
def recording(monkeypatch):
    """Steps are recorded on this machine, too."""
    monkeypatch.setattr(_measure, "possible", lambda device: True)
    monkeypatch.setattr(_measure, "choose", lambda *args: {})
    monkeypatch.setattr(_steps, "GraphOfLaunches", tape.Recorded)
    tape.Recorded.made = []
    return tape.Recorded.made


def pair(name, **more):
    """The network, and the same accelerated."""
    plain = networks.network(name, "eager", causal_lm=True, **more)
    return plain, integration.accelerate(networks.network(name, "eager", causal_lm=True, **more), show=False)


WINDOW = {"mistral": {"sliding_window": 16}, "gemma2": {"sliding_window": 16}}


@pytest.mark.parametrize(
    ("name", "lengths"),
    [("llama", None), ("mistral", None), ("gpt2", [11, 4, 7]), ("gemma2", [11, 4, 7])],
)
def test_same_tokens(name, lengths, recording) -> None:
    """Also in a second call, which finds its steps recorded, and with other inputs."""
    plain, model = pair(name, **WINDOW.get(name, {}))
    for seed in (0, 1):
        inputs = networks.batch(lengths, side="left")
        inputs["input_ids"] = (inputs["input_ids"] + 7 * seed) % 99
        want = plain.generate(**inputs, **ASK)
        got = model.generate(**inputs, **ASK)
        assert torch.equal(got, want), seed
    assert sum(r.replays for r in recording) >= 25
    current = integration.accelerated(model).decoding[0].steps.current  # of steps that differ by their tokens alone
    assert (current is None) == (name in WINDOW)
    assert len(recording) == (2 if name in WINDOW else 1)  # windows that are not full, and full ones


def test_sampling_and_longer_caches(recording) -> None:
    plain, model = pair("llama")
    inputs = networks.batch()
    for new in (17, 60):
        torch.manual_seed(3)
        want = plain.generate(**inputs, **(ASK | dict(do_sample=True, max_new_tokens=new, top_k=10)))
        torch.manual_seed(3)
        got = model.generate(**inputs, **(ASK | dict(do_sample=True, max_new_tokens=new, top_k=10)))
        assert torch.equal(got, want), new
    assert len(recording) == 2  # for 64 positions and for 128


@pytest.mark.parametrize(
    ("name", "window"), [("llama", None), ("mistral", 40), ("mistral", 80), ("gemma2", 100), ("t5", None)]
)
def test_a_search_that_goes_on_past_its_cache(name, window, recording) -> None:
    """A caller's own bound replaces generate()'s: the cache grows, where a write past its end would be an assert."""
    plain, model = pair(name, **({} if window is None else {"sliding_window": window, "max_position_embeddings": 256}))
    own = StoppingCriteriaList([MaxLengthCriteria(190)])
    for new in (18, 30):
        ask = ASK | dict(max_new_tokens=new, stopping_criteria=own)
        want = plain.generate(**networks.batch(), **ask)
        got = model.generate(**networks.batch(), **ask)
        assert torch.equal(got, want)
    assert integration.accelerated(model).decoding[0].steps.length == 256
    assert len(recording) >= 3


@pytest.mark.parametrize(
    ("name", "lengths", "ask"),
    [("gemma2", [11, 4, 7], dict(num_beams=3)), ("llama", None, dict(do_sample=True, num_return_sequences=2)),
     ("t5", [11, 4, 7], dict(num_beams=3, num_return_sequences=2)), ("bart", [11, 4, 7], {}), ("whisper", None, {}),
     ("t5gemma", [11, 4, 7], {}), ("t5gemma", [11, 4, 7], dict(num_beams=3))],
)  # fmt: skip
def test_several_sequences_and_encoders(name, lengths, ask, recording) -> None:
    """Beams, several samples of a prompt, decoders that read an encoder's states: other states in the second call."""
    plain, model = pair(name, **WINDOW.get(name, {}))
    with torch.no_grad():
        for m in (plain, model):
            for p in m.parameters():  # so that what is attended to matters
                if p.dim() == 2:
                    p.mul_(3)
    found = []
    for seed in (0, 1):
        inputs = networks.sounds(seed) if name == "whisper" else networks.batch(lengths, side="left")
        if seed and name != "whisper":
            inputs["input_ids"] = (inputs["input_ids"] + 7) % 99
            if lengths and name in networks.ENCODER_DECODERS:
                inputs["attention_mask"] = inputs["attention_mask"].flip(0)
        made = []
        for m in (plain, model):
            torch.manual_seed(3)
            made.append(m.generate(**inputs, **(ASK | ask)))
        assert torch.equal(*made), seed
        found.append(made[0])
    assert name == "whisper" or not torch.equal(*found)
    orders = 1 if "num_beams" in ask else 0
    assert len(recording) == orders + (2 if name in WINDOW or name == "t5gemma" else 1)
    assert integration.accelerated(model).decoding[0].refused is None
    assert sum(r.replays for r in recording) >= 25 * (1 + orders)


@pytest.mark.parametrize(
    "other",
    [dict(use_cache=False, max_new_tokens=16), dict(max_new_tokens=5, num_beams=2),
     dict(return_dict_in_generate=True, max_new_tokens=16), dict(max_new_tokens=5, disable_compile=True)],
    ids=str,
)  # fmt: skip
def test_what_is_left_to_transformers(other, recording) -> None:
    plain, model = pair("llama")
    torch.manual_seed(3)
    want = plain.generate(**networks.batch(), **(ASK | other))
    torch.manual_seed(3)
    got = model.generate(**networks.batch(), **(ASK | other))
    assert torch.equal(getattr(got, "sequences", got), getattr(want, "sequences", want))
    assert not recording


def test_hooks_see_every_step(recording) -> None:
    _, model = pair("llama")
    seen = []
    model.model.layers[0].register_forward_hook(lambda *args: seen.append(0))
    model.generate(**networks.batch(), **ASK)
    assert len(seen) == 18
    assert not recording


def test_changed_weights(recording) -> None:
    """Values of parameters may change; with other parameters steps are recorded again."""
    plain, model = pair("llama")
    model.generate(**networks.batch(), **ASK)
    with torch.no_grad():
        for m in (plain, model):
            m.model.layers[0].mlp.up_proj.weight.mul_(-1)
    assert torch.equal(model.generate(**networks.batch(), **ASK), plain.generate(**networks.batch(), **ASK))
    assert len(recording) == 1
    for m in (plain, model):
        m.lm_head.weight = torch.nn.Parameter(m.lm_head.weight.detach().flip(0))
    assert torch.equal(model.generate(**networks.batch(), **ASK), plain.generate(**networks.batch(), **ASK))
    assert len(recording) == 2


def test_a_step_that_depends_on_what_python_counts(recording) -> None:
    """A recording that repeats a number gives other results than the model, and is given up; tokens stay right."""
    plain, model = pair("llama")

    class Counts(torch.nn.Module):
        def __init__(self, inner) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, x):
            self.calls += 1
            return self.inner(x) + 0.1 * (self.calls % 5)

    for m in (plain, model):
        m.model.norm = Counts(m.model.norm)

    model.generate(**networks.batch(), **ASK)
    decoding = integration.accelerated(model).decoding[0]
    assert "differed from one that was not" in decoding.refused
    assert decoding.steps is None
    assert decoding.refused in str(integration.accelerated(model))


def test_a_step_that_cannot_be_recorded(recording, monkeypatch) -> None:
    _, model = pair("llama")

    def refuse(run):
        run()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(_steps, "GraphOfLaunches", refuse)
    model.generate(**networks.batch(), **ASK)
    refused = integration.accelerated(model).decoding[0].refused
    assert refused == "a step cannot be recorded: operation not permitted when stream is capturing"


def test_restored_and_said(recording) -> None:
    plain, model = pair("llama")
    assert "LlamaForCausalLM: generate()" in str(integration.accelerated(model))
    model.generate(**networks.batch(), **ASK)
    decoding = integration.accelerated(model).decoding[0]
    assert decoding.steps is not None
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is type(plain)
        assert torch.equal(other.generate(**networks.batch(), **ASK), plain.generate(**networks.batch(), **ASK))
    assert len(recording) == 1
    integration.restore(model)
    assert decoding.steps is None
    assert type(model) is type(plain)


def test_not_without_a_gpu() -> None:
    model = integration.accelerate(networks.network("llama", "eager", causal_lm=True), show=False)
    assert "it is not on one GPU" in str(integration.accelerated(model))
    assert _generate.unfit(model) == "it is not on one GPU"
