"""Models whose own code reads masks, learns them, or finds its attention elsewhere: each was wrong or crashed once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import architectures  # noqa: E402
import networks  # noqa: E402
from transformers import AutoModel, StaticCache  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene import ops  # noqa: E402
from graphene.errors import LaunchError  # noqa: E402

VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONV = {"subsampling_conv_channels": 16, "num_mel_bins": 8}


def both(kind, settings):
    made = []
    for how in ("eager", "graphene"):
        torch.manual_seed(0)
        config = CONFIG_MAPPING[kind](**settings)
        made.append(AutoModel.from_config(config, attn_implementation=how).eval())
    return made


# The router of NllbMoe and Doge's choice of keys read the mask; Granite's sinks and DeepseekV4's compressed keys have
# no "sdpa"; DeepseekV32 chooses keys by their numbers.
@pytest.mark.parametrize(
    "name",
    ["nllb-moe", "doge", "granite_swa", "deepseek_v4", "deepseek_v32", "gemma3_text"],
)
def test_an_architecture_is_right(name) -> None:
    (case,) = architectures.of_configurations([name])
    verdict = architectures.judge(case)
    assert (verdict.kind, verdict.why) == ("right", "")
    assert {"forward", "gradients", "set", "copy", "set back", "accelerate", "restore"} <= {*verdict.errors}


def test_a_decoder_that_does_not_say_so_does_not_see_the_future() -> None:
    """NllbMoe's modules say that they are not causal; its masks do."""
    _, model = both("nllb-moe", architectures.shrink(CONFIG_MAPPING["nllb-moe"]()).to_diff_dict())
    ids = networks.batch()["input_ids"]
    other = ids.clone()
    other[:, 7:] = 3
    with torch.no_grad():
        got, want = (model(input_ids=ids, decoder_input_ids=d).last_hidden_state for d in (ids, other))
    torch.testing.assert_close(got[:, :5], want[:, :5])


def test_an_attention_that_says_it_is_causal_and_is_not() -> None:
    """BridgeTower's modules say that they are causal, and have masks of another number of queries than their own."""
    sizes = VISION | {"hidden_size": 64}
    text = sizes | {"vocab_size": 99, "max_position_embeddings": 64}
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "patch_size": 4, "image_size": 16}
    models = both("bridgetower", sizes | {"text_config": text, "vision_config": vision})
    torch.manual_seed(1)
    inputs = {"input_ids": torch.randint(5, 99, (2, 6)), "pixel_values": torch.randn(2, 3, 16, 16)}
    with torch.no_grad():
        want, got = (m(**inputs) for m in models)
    torch.testing.assert_close(got.image_features, want.image_features, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(got.text_features, want.text_features, rtol=1e-4, atol=2e-5)


def test_a_pooling_that_reads_the_mask() -> None:
    """Siglip2's, of padded patches."""
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    torch.manual_seed(0)
    inputs = {"pixel_values": torch.randn(2, 16, 48), "spatial_shapes": torch.tensor([[4, 4], [2, 4]])}
    inputs["pixel_attention_mask"] = (torch.arange(16)[None] < torch.tensor([[16], [8]])).long()
    outs = []
    for how in ("eager", "graphene"):
        torch.manual_seed(0)
        config = Siglip2VisionConfig(**VISION, patch_size=4, num_patches=16)
        model = Siglip2VisionModel._from_config(config, attn_implementation=how).eval()
        with torch.no_grad():
            outs.append(model(**inputs).pooler_output)
    torch.testing.assert_close(*outs, rtol=1e-4, atol=2e-5)


def test_a_convolution_that_reads_the_mask() -> None:
    """LASR's encoder zeroes what the mask hides from every query."""
    from transformers import LasrEncoder, LasrEncoderConfig

    torch.manual_seed(0)
    inputs = {"input_features": torch.randn(2, 64, 8), "attention_mask": torch.arange(64)[None] < torch.tensor([[64], [33]])}  # fmt: skip  # noqa: E501
    outs = []
    for how in ("eager", "graphene"):
        torch.manual_seed(0)
        model = LasrEncoder._from_config(LasrEncoderConfig(**VISION, **CONV), attn_implementation=how).eval()
        with torch.no_grad():
            outs.append(model(**inputs).last_hidden_state)
    torch.testing.assert_close(outs[1][0], outs[0][0], rtol=1e-4, atol=2e-5)


def test_a_learned_bias_gets_its_gradient() -> None:
    """Swin adds one to the scores, as a mask of four dimensions."""
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4}
    models = both("swin", sizes)
    x = torch.randn(2, 3, 16, 16)
    found = []
    for model in models:
        model(x).last_hidden_state.square().mean().backward()
        found.append({n: p.grad for n, p in model.named_parameters()})
    biases = [n for n in found[0] if "relative_position_bias" in n]
    assert biases
    for name in biases:
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-3, atol=1e-6)


def test_sinks_with_weights_and_values_of_another_width() -> None:
    """MiMoV2 has both, and was refused where it was called."""
    q, k, v = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 8)
    sinks = torch.randn(4)
    module = torch.nn.Identity()
    got, weights = integration.attention(module, q, k, v, None, s_aux=sinks)
    assert weights is None
    again, weights = integration.attention(module, q, k, v, None, s_aux=sinks, output_attentions=True)
    torch.testing.assert_close(got, again)
    wide = torch.cat([v, torch.zeros_like(v)], -1)
    torch.testing.assert_close(got, integration.attention(module, q, k, wide, None, s_aux=sinks)[0][..., :8])
    torch.testing.assert_close(weights @ v.repeat_interleave(2, 1), got.transpose(1, 2))
    dropped, _ = integration.attention(module, q, k, v, None, s_aux=sinks, softcap=5.0, dropout=0.5)
    assert dropped.isfinite().all()


def test_one_batch_of_keys_for_several_of_queries() -> None:
    q, k = torch.randn(3, 2, 4, 16), torch.randn(1, 2, 6, 16)
    got, _ = integration.attention(torch.nn.Identity(), q, k, k, None, is_causal=False)
    want = torch.nn.functional.scaled_dot_product_attention(q, k.expand(3, -1, -1, -1), k.expand(3, -1, -1, -1))
    torch.testing.assert_close(got.transpose(1, 2), want)


def test_keys_that_a_model_chooses() -> None:
    q = torch.randn(1, 2, 3, 16)
    chosen = torch.tensor([[[0, -1], [0, 1], [0, 2]]])
    got, _ = integration.attention(torch.nn.Identity(), q, q, q, None, indices=chosen, is_causal=False)
    seen = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, seen)
    torch.testing.assert_close(got.transpose(1, 2), want)


def test_a_position_bias_of_a_static_cache() -> None:
    """Inkling's is as wide as the cache; what nobody sees yet is cut from keys, and from it."""
    outs = []
    for model in both("inkling_text", architectures.shrink(CONFIG_MAPPING["inkling_text"]()).to_diff_dict()):
        cache = StaticCache(config=model.config, max_cache_len=16)
        with torch.no_grad():
            outs.append(model(networks.batch()["input_ids"], past_key_values=cache).last_hidden_state)
    torch.testing.assert_close(*outs, rtol=1e-4, atol=2e-5)


def test_what_is_told_reaches_the_stacks(monkeypatch) -> None:
    """T5's encoder and decoder read copies of its configuration."""
    calls = []
    original = ops.attention

    def counted(*args, **named):
        calls.append(args)
        return original(*args, **named)

    model, _ = both("t5", {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 99})
    monkeypatch.setattr(ops, "attention", counted)
    ids = networks.batch()["input_ids"]
    for how, count in (("graphene", 6), ("eager", 0)):
        model.set_attn_implementation(how)
        calls.clear()
        with torch.no_grad():
            model(input_ids=ids, decoder_input_ids=ids)
        assert len(calls) == count


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("sam_vision_model", "SamVisionLayer takes its attention from SAM_VISION_ATTENTION_CLASSES, which has eager, "),
        ("sam_hq_vision_model", "SamHQVisionLayer takes its attention from SAM_HQ_VISION_ATTENTION_CLASSES"),
        ("minimax_m3_vl_text", "attentions that it does not know by name what they see by block_indices"),
    ],
)  # fmt: skip
def test_a_model_with_names_of_its_own_is_refused_where_it_is_made(kind, why) -> None:
    config = architectures.shrink(CONFIG_MAPPING[kind]())
    with pytest.raises(LaunchError, match=why) as error:
        AutoModel.from_config(config, attn_implementation="graphene")
    assert error.value.code == "OP_ARGUMENT"
    model = AutoModel.from_config(config, attn_implementation="eager")
    integration.accelerate(model, only_faster=False, show=False)
    assert model.config._attn_implementation == "eager"
    with pytest.raises(LaunchError, match=why):
        model.set_attn_implementation("graphene")
    assert model.config._attn_implementation == "eager"


def test_layers_that_are_compiled_take_masks_made_before() -> None:
    inputs = networks.batch([11, 4, 7])
    seen = inputs["attention_mask"].bool()
    outs = []
    for how in ("eager", "graphene"):
        model = networks.network("llama", how)
        if how == "graphene":
            for layer in model.layers:
                layer.compile(backend="aot_eager")
        with torch.no_grad():
            outs.append(model(**inputs).last_hidden_state[seen])
    torch.testing.assert_close(*outs, rtol=1e-4, atol=2e-5)
