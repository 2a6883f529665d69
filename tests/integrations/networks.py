"""Small networks of transformers' architectures, from configurations, with random weights."""

from __future__ import annotations

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

BERT_LIKE = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                 max_position_embeddings=64)  # fmt: skip
LLAMA_LIKE = BERT_LIKE | dict(num_key_value_heads=1, tie_word_embeddings=False)
GPT_LIKE = dict(vocab_size=99, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=2, bos_token_id=1)

ENCODERS = {
    "bert": ("bert", BERT_LIKE),
    "roberta": ("roberta", BERT_LIKE),
    "distilroberta": ("roberta", BERT_LIKE | dict(num_hidden_layers=1)),
    "xlm-roberta": ("xlm-roberta", BERT_LIKE),
    "distilbert": ("distilbert", dict(vocab_size=99, dim=32, n_layers=2, n_heads=2, hidden_dim=64)),
    "albert": ("albert", BERT_LIKE | dict(embedding_size=16)),
}
DECODERS = {
    "gpt2": ("gpt2", GPT_LIKE),
    "llama": ("llama", LLAMA_LIKE),
    "mistral": ("mistral", LLAMA_LIKE | dict(sliding_window=5)),
    "opt": (
        "opt",
        dict(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=64,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        ),
    ),
    "gemma2": ("gemma2", LLAMA_LIKE | dict(head_dim=16, sliding_window=5)),
}

T5_LIKE = dict(vocab_size=99, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0)
BART_LIKE = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                 decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=128,
                 pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
                 forced_eos_token_id=None)  # fmt: skip
GEMMA_PART = LLAMA_LIKE | dict(head_dim=16, sliding_window=16, query_pre_attn_scalar=16)
ENCODER_DECODERS = {
    "t5gemma": ("t5gemma", dict(encoder=GEMMA_PART, decoder=GEMMA_PART, vocab_size=99, pad_token_id=0,
                                bos_token_id=1)),
    "t5": ("t5", T5_LIKE),
    "bart": ("bart", BART_LIKE),
    "whisper": ("whisper", BART_LIKE | dict(num_mel_bins=8, max_source_positions=30, max_target_positions=64,
                                            suppress_tokens=None, begin_suppress_tokens=None)),
}  # fmt: skip


def config(name, **more):
    kind, settings = (ENCODERS | DECODERS | ENCODER_DECODERS)[name]
    return CONFIG_MAPPING[kind](**(settings | more))


def network(name, attn="graphene", dtype=torch.float32, causal_lm=False, device="cpu", **more):
    """The network with weights that depend on its name and configuration alone; an encoder-decoder's with its head."""
    torch.manual_seed(0)
    make = AutoModelForCausalLM if causal_lm else AutoModel
    if name in ENCODER_DECODERS:
        make = AutoModelForSpeechSeq2Seq if name == "whisper" else AutoModelForSeq2SeqLM
    model = make.from_config(config(name, **more), attn_implementation=attn)
    with torch.no_grad():  # norms that are not the identity
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.1)
    return model.to(device=device, dtype=dtype).eval()


def batch(lengths=None, rows=3, length=11, side="right", device="cpu"):
    """input_ids, and attention_mask where lengths are given."""
    ids = torch.randint(5, 99, (rows, length), generator=torch.Generator().manual_seed(1)).to(device)
    if lengths is None:
        return {"input_ids": ids}
    at = torch.arange(length).expand(len(lengths), length)
    size = torch.tensor(lengths)[:, None]
    seen = at < size if side == "right" else at >= length - size
    return {"input_ids": ids[: len(lengths)], "attention_mask": seen.long().to(device)}


def each_alone(model, inputs):
    """The last states of sequences that end in padding, each by a call of its own, one after another.

    Eager's mask in fp64 is the least fp64, an infinity in its softmax in fp32: padding that a window hides from all
    keys becomes NaN, and NaN times a weight of zero what other positions attend to.
    """
    lengths = inputs["attention_mask"].sum(-1).tolist()
    with torch.no_grad():
        rows = [model(input_ids=ids[None, :n]) for ids, n in zip(inputs["input_ids"], lengths, strict=True)]
    return torch.cat([row.last_hidden_state[0] for row in rows])


def sounds(seed=0, device="cpu"):
    """input_features of two sounds."""
    features = torch.randn(2, 8, 60, generator=torch.Generator().manual_seed(seed))
    return {"input_features": features.to(device)}
