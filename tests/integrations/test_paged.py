"""generate_batch(), whose keys lie in pages: the tokens are those of generate() of each sequence by itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import networks  # noqa: E402
from transformers import AutoModelForCausalLM, GPTJConfig, GptOssConfig  # noqa: E402
from transformers.generation import ContinuousBatchingConfig, GenerationConfig  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene.errors import LaunchError  # noqa: E402
from graphene.integrations.transformers import _attention, _paged  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::graphene.ops.CpuWarning")

PROMPTS = [[5, 6, 7, 8, 9], [10, 11, 12], [20, 7] * 9]
NEW = 10


def network(name):
    if name != "gpt_oss":
        window = {"mistral": {"sliding_window": 16}, "gemma2": {"sliding_window": 16}}.get(name, {})
        return networks.network(name, "eager", causal_lm=True, **window)
    sizes = networks.LLAMA_LIKE | dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(GptOssConfig(**sizes), attn_implementation="eager").eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def together(model):
    """The new tokens of each prompt."""
    ask = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    pages = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64, block_size=32)
    made = model.generate_batch(
        PROMPTS, generation_config=ask, continuous_batching_config=pages, progress_bar=False, warmup=False
    )
    return [made[k].generated_tokens for k in sorted(made, key=lambda k: int(k.split("_")[-1]))]


def alone(model):
    ask = dict(max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
    return [model.generate(torch.tensor([p]), **ask)[0, len(p) :].tolist() for p in PROMPTS]


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_same_tokens(name, kernel, monkeypatch) -> None:
    """Windows, soft caps and sinks; where no kernel takes the heads, by PyTorch's operators, without waiting."""
    calls = []
    varlen = _attention.ops.attention_varlen
    monkeypatch.setattr(_attention.ops, "attention_varlen", lambda *a, **k: (calls.append(0), varlen(*a, **k))[1])
    want = alone(network(name))
    model = integration.accelerate(network(name), only_faster=False, show=False)
    if not kernel:
        monkeypatch.setattr(_attention, "kernel", lambda query: "none")
    assert together(model) == want
    assert bool(calls) == kernel
    assert model.config._attn_implementation == "graphene"
    assert alone(model) == want
    integration.restore(model)
    assert model.config._attn_implementation == "eager"


def test_own_keys() -> None:
    """Two sequences of three and one queries, the last of which are at their last keys, and places behind them."""
    starts_q, starts_k = torch.tensor([0, 3, 4, 4]), torch.tensor([0, 4, 6, 6])
    seen = _paged.own_keys(starts_q, starts_k, 5, 8, None)[0, 0]
    want = ["11000000", "11100000", "11110000", "00001100", "00000000"]
    assert seen.int().tolist() == [list(map(int, row)) for row in want]
    windowed = _paged.own_keys(starts_q, starts_k, 5, 8, 2)[0, 0]
    want = ["11000000", "01100000", "00110000", "00001100", "00000000"]
    assert windowed.int().tolist() == [list(map(int, row)) for row in want]


def test_other_calls_are_refused() -> None:
    model = network("llama")
    model.set_attn_implementation("paged|graphene")
    with pytest.raises(LaunchError, match="takes what generate_batch makes") as error:
        model(**networks.batch())
    assert error.value.code == "OP_ARGUMENT"
    with pytest.raises(LaunchError, match="takes no attn_implementation"):
        other().set_attn_implementation("paged|graphene")


def other():
    """A model that computes attention in its own code."""
    return AutoModelForCausalLM.from_config(GPTJConfig(vocab_size=99, n_embd=32, n_layer=1, n_head=2, rotary_dim=8))
