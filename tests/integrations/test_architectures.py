"""Architectures beyond the ones that the integration was written for give the states of eager."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="pip install 'graphene-ir[transformers]' brings it")

import attention_reference  # noqa: E402
import networks  # noqa: E402
from transformers import AutoModel  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

import graphene.integrations.transformers as integration  # noqa: E402
from graphene import ops  # noqa: E402

B = networks.BERT_LIKE | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
L = B | {"num_key_value_heads": 1}
SEQ2SEQ = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # fmt: skip
ARCHITECTURES = {
    "electra": B | {"embedding_size": 16},
    "modernbert": B | {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
    "nomic_bert": B,
    "esm": B | {"position_embedding_type": "absolute"},
    "layoutlm": B,
    "qwen3": L | {"head_dim": 16},
    "gemma3_text": L | {"head_dim": 16, "sliding_window": 5},
    "phi3": L,
    "opt": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64,
            "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    "gpt_neox": B,
    "starcoder2": L | {"sliding_window": 5},
    "mixtral": L | {"num_local_experts": 2},
    "olmo2": L,
    "llama4_text": L | {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 64, "attention_chunk_size": 4},
    "bart": {"vocab_size": 99, "max_position_embeddings": 64, **SEQ2SEQ},
    "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
            "image_size": 16, "patch_size": 4},
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_states_are_those_of_eager(name, monkeypatch) -> None:
    monkeypatch.setattr(ops, "attention", attention_reference.attention)
    monkeypatch.setattr(ops, "attention_varlen", attention_reference.attention_varlen)
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIG_MAPPING[name](**ARCHITECTURES[name]), attn_implementation="eager").eval()
    for side in ("full", "right", "left"):
        inputs = networks.batch() if side == "full" else networks.batch([11, 4, 7], side=side)
        seen = inputs.get("attention_mask", torch.ones(3, 11)).bool()
        if name == "vit":
            inputs, seen = {"pixel_values": torch.randn(3, 3, 16, 16)}, torch.ones(3, 17).bool()
        if name == "bart":
            inputs, seen = inputs | {"decoder_input_ids": inputs["input_ids"]}, torch.ones(3, 11).bool()

        def states(inputs=inputs, seen=seen):
            with torch.no_grad():
                return model(**inputs).last_hidden_state[seen]

        want = states()
        model.set_attn_implementation("graphene")
        assert model.config._attn_implementation == "graphene"
        torch.testing.assert_close(states(), want, rtol=1e-4, atol=2e-5)
        integration.accelerate(model, only_faster=False, show=False)
        torch.testing.assert_close(states(), want, rtol=1e-4, atol=2e-5)
        integration.restore(model).set_attn_implementation("eager")
        assert torch.equal(states(), want)


def test_rotations_of_each_position_are_not_packed() -> None:
    """They come as a tuple of tensors, a row for each position of the padded batch."""
    config = CONFIG_MAPPING["esm"](
        vocab_size=33, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        position_embedding_type="rotary", pad_token_id=1, mask_token_id=32, max_position_embeddings=128,
    )  # fmt: skip
    model = AutoModel.from_config(config).eval()
    ids, there = torch.randint(4, 30, (3, 12)), torch.ones(3, 12, dtype=torch.int64)
    there[1, 6:] = there[2, 3:] = 0
    with torch.no_grad():
        want = model(ids, attention_mask=there).last_hidden_state
        integration.accelerate(model, only_faster=False, show=False)
        got = model(ids, attention_mask=there).last_hidden_state
    rows = there.bool()
    torch.testing.assert_close(got[rows], want[rows], rtol=1e-3, atol=1e-3)
