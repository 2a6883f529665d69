"""Models whose attention is not transformers' interface are refused, and every module's configuration counts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import attention_reference  # noqa: E402
import networks  # noqa: E402
import test_architectures  # noqa: E402
from transformers import AutoModel, BloomModel  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_MAPPING  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.errors import LaunchError  # noqa: E402
from graphene.integrations.transformers import _interface, _masks  # noqa: E402

B, GPT = networks.BERT_LIKE, networks.GPT_LIKE
LAYERS = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
          "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99}  # fmt: skip
WITHOUT = {
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2, "vocab_size": 99},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 2, "ffn_dim": 64, "vocab_size": 99},
    "gpt_neox_japanese": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 99},
    "led": LAYERS | {"attention_window": 8},
    "longformer": B | {"attention_window": 8},
    "mpnet": B,
    "megatron-bert": B,
    "roformer": B,
    "rembert": B,
    "ibert": B,
    "convbert": B,
    "big_bird": B,
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 99},
    "tapas": B,
    "nystromformer": B,
    "falcon": B,
    "gptj": GPT | {"rotary_dim": 16},
    "gpt_neo": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 99,
                "attention_types": [[["global", "local"], 1]], "window_size": 5},
    "deberta-v2": B,
    # These have both kinds of attention.
    "bigbird_pegasus": LAYERS | {"attention_type": "original_full"},
    "longt5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 99},
}  # fmt: skip


def made(name, how):
    torch.manual_seed(0)
    return AutoModel.from_config(CONFIG_MAPPING[name](**WITHOUT[name]), attn_implementation=how).eval()


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_the_interface_is_refused_and_accelerated_without(name) -> None:
    with pytest.raises(LaunchError, match='takes no attn_implementation="graphene"') as error:
        made(name, "graphene")
    assert error.value.code == "OP_ARGUMENT"
    model = made(name, "eager")
    ids = networks.batch([11, 4, 7])
    if model.config.is_encoder_decoder:
        ids["decoder_input_ids"] = ids["input_ids"]
    with torch.no_grad():
        want = model(**ids)[0]
        integration.accelerate(model, only_faster=False, show=False)
        assert model.config._attn_implementation == "eager"
        torch.testing.assert_close(model(**ids)[0], want, rtol=1e-4, atol=1e-5)
    rows = [r for r in integration.accelerated(model).rows if r.where.endswith(": attention")]
    assert [r.now for r in rows] == ["left"]
    assert rows[0].count >= 1
    assert rows[0].why.startswith("it has no attention interface: ")


def test_loading_is_refused_too(tmp_path) -> None:
    made("bloom", "eager").save_pretrained(tmp_path)
    with pytest.raises(LaunchError) as error:
        AutoModel.from_pretrained(tmp_path, attn_implementation="graphene")
    assert str(error.value) == (
        'BloomModel takes no attn_implementation="graphene"   [OP_ARGUMENT]\n'
        "  because:  BloomAttention asks for no attention function\n"
        '  fix: load it with attn_implementation="eager"; '
        "graphene.integrations.transformers.accelerate(model) then leaves its attention and takes the rest"
    )


class MyBloom(BloomModel):
    """Defined in a file that says nothing about attention."""


def test_what_is_derived_from_a_model_is_like_it() -> None:
    assert _interface.own_attention(MyBloom) == _interface.own_attention(BloomModel) == "BloomAttention"
    with pytest.raises(LaunchError, match="MyBloom takes no"):
        MyBloom._from_config(CONFIG_MAPPING["bloom"](**WITHOUT["bloom"]), attn_implementation="graphene")


def test_models_with_the_interface_are_taken() -> None:
    names = {kind for kind, _ in (networks.ENCODERS | networks.DECODERS).values()} | {*test_architectures.ARCHITECTURES}
    for name in names | {"gpt_oss", "whisper", "clip", "t5", "layoutlm", "splinter", "paligemma"}:
        assert _interface.own_attention(MODEL_MAPPING[CONFIG_MAPPING[name]]) is None, name


def composed(tmp_path):
    """An encoder and a decoder of which each keeps a configuration that its layers do not read."""
    for part in ("encoder", "decoder"):
        networks.network("bert", "eager").save_pretrained(tmp_path / part)
    torch.manual_seed(1)
    made = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(tmp_path / "encoder", tmp_path / "decoder")
    assert made.encoder.config is not made.encoder.encoder.layer[0].attention.self.config
    return made.eval()


@pytest.mark.parametrize("rows", [1, 2])
def test_every_attention_reads_its_own_configuration(rows, tmp_path, monkeypatch) -> None:
    calls = []

    def counted(*args, **named):
        calls.append(args)
        return attention_reference.attention(*args, **named)

    monkeypatch.setattr(ops, "attention", counted)
    monkeypatch.setattr(_masks, "dropped", set())  # no kernels are loaded for later
    monkeypatch.setattr(ops, "attention_varlen", attention_reference.attention_varlen)
    inputs = networks.batch([4, 7][:rows])
    inputs["decoder_input_ids"] = inputs["input_ids"][:, :5]
    model = composed(tmp_path)
    with torch.no_grad():
        want = model(**inputs).logits
        integration.accelerate(model, only_faster=False, pack=False, show=False)
        torch.testing.assert_close(model(**inputs).logits, want, rtol=1e-4, atol=2e-5)
        assert len(calls) == 6  # two layers of the encoder, two of the decoder with two each
        integration.restore(model)
        assert torch.equal(model(**inputs).logits, want)
    assert {m.config._attn_implementation for m in model.modules() if hasattr(m, "is_causal")} == {"sdpa"}


def test_an_implementation_that_would_not_reach_all_modules_is_refused(tmp_path) -> None:
    """transformers sets it for the masks alone, which attention of another kind then adds to its scores."""
    model = composed(tmp_path)
    with pytest.raises(LaunchError) as error:
        model.set_attn_implementation("graphene")
    assert str(error.value) == (
        "EncoderDecoderModel's attn_implementation does not reach all of its modules   [OP_ARGUMENT]\n"
        "  module:  encoder.encoder.layer.0.attention.self, whose configuration is another object than its model's\n"
        "  fix: graphene.integrations.transformers.accelerate(model) sets each module's own"
    )
    assert model.encoder.config._attn_implementation == "sdpa"
