"""The networks of the benchmark of transformers' models: configurations of usual sizes, with random weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

PAPER = ("bert", "roberta", "distilroberta", "xlm-roberta", "albert")
LONG = {"max_position_embeddings": 514}


@dataclass(frozen=True)
class Network:
    """A network and the size of its inputs. ``part``: "encoder" takes that part alone; ``inputs``: "ids", or else."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    batch: int = 32
    length: int = 384
    part: str = "whole"
    inputs: str = "ids"
    cached: bool = False  # whether it is told to keep no cache

    def cut(self, layers: int | None) -> Network:
        """The network with at most this number of layers."""
        name = LAYERS.get(self.kind, "num_hidden_layers")
        if layers is None or layers >= getattr(self.config(), name):
            return self
        return replace(self, settings=self.settings | {name: layers})

    def alone(self) -> Network:
        """The network on one image or sound, or on one sequence of 128 tokens."""
        return replace(self, batch=1, length=128)

    def config(self, **more: Any) -> Any:
        """Its configuration."""
        return CONFIG_MAPPING[self.kind](**(self.settings | more))

    def model(self, head: Any = AutoModel, device: str = "cpu", **more: Any) -> Any:
        """The network in fp32, with random weights."""
        torch.manual_seed(0)
        with torch.device(device):
            made = head.from_config(self.config(**more), attn_implementation="eager").eval()
        return made.get_encoder() if self.part == "encoder" else made

    def given(self, dtype: Any, padded: bool = False) -> tuple[dict[str, Any], Any]:
        """Inputs on the GPU, and which positions of the result are no padding."""
        generator = torch.Generator().manual_seed(1)
        more: dict[str, Any] = {"use_cache": False} if self.cached else {}
        if self.inputs == "pixels":
            x = torch.randn(self.batch, 3, 224, 224, generator=generator).cuda().to(dtype)
            return {"pixel_values": x, **more}, ...
        if self.inputs == "sound":
            x = torch.randn(self.batch, 80, 3000, generator=generator).cuda().to(dtype)
            return {"input_features": x, **more}, ...
        lengths = torch.randint(self.length // 8, self.length + 1, (self.batch,), generator=generator)
        ids = torch.randint(5, 1000, (self.batch, self.length), generator=generator).cuda()
        mask = torch.ones_like(ids)
        if padded:
            mask = (torch.arange(self.length)[None] < lengths[:, None]).long().cuda()
        return {"input_ids": ids, "attention_mask": mask, **more}, mask.bool()


# The setting of the number of layers, where it has another name.
LAYERS = {"gpt2": "n_layer", "t5": "num_layers", "whisper": "encoder_layers", "bart": "encoder_layers",
          "distilbert": "n_layers"}  # fmt: skip

_LLAMA = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
          "num_hidden_layers": 16, "vocab_size": 128256, "head_dim": 64}  # fmt: skip
_QWEN3 = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072,
          "num_hidden_layers": 28, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True}  # fmt: skip
_GEMMA3 = {"hidden_size": 1152, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 6912,
           "num_hidden_layers": 26, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512}  # fmt: skip

NETWORKS: dict[str, Network] = {
    "bert": Network("bert"),
    "roberta": Network("roberta", LONG | {"vocab_size": 50265}),
    "distilroberta": Network("roberta", LONG | {"vocab_size": 50265, "num_hidden_layers": 6}),
    "xlm-roberta": Network("xlm-roberta", LONG | {"vocab_size": 250002}),
    "albert": Network("albert", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "gpt2": Network("gpt2", cached=True),
    "llama": Network("llama", {"hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4,
                               "intermediate_size": 2048, "num_hidden_layers": 12}, cached=True),
    "bert-large": Network("bert", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                                   "intermediate_size": 4096}, 16, 512),
    "modernbert": Network("modernbert"),
    "qwen3-0.6b": Network("qwen3", _QWEN3, 4, 2048, cached=True),
    "llama-1b": Network("llama", _LLAMA, 4, 2048, cached=True),
    "gemma3-1b": Network("gemma3_text", _GEMMA3, 4, 2048, cached=True),
    "mistral": Network("mistral", {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
                                   "intermediate_size": 7168, "num_hidden_layers": 12}, 2, 4096, cached=True),
    "phi": Network("phi", {"hidden_size": 2048, "num_attention_heads": 32, "intermediate_size": 8192,
                           "num_hidden_layers": 24}, 4, 2048, cached=True),
    "opt": Network("opt", {"hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072, "num_hidden_layers": 12},
                   4, 2048, cached=True),
    "t5-encoder": Network("t5", {"d_model": 768, "d_ff": 3072, "num_heads": 12, "num_layers": 12,
                                 "num_decoder_layers": 1}, part="encoder"),
    "whisper-encoder": Network("whisper", {"d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12,
                                           "encoder_ffn_dim": 3072, "decoder_layers": 1},
                               8, part="encoder", inputs="sound"),
    "vit": Network("vit", {}, 64, inputs="pixels"),
    "dinov2": Network("dinov2", {}, 64, inputs="pixels"),
    "siglip": Network("siglip_vision_model", {"image_size": 224}, 64, inputs="pixels"),
    "bart-encoder": Network("bart", {"encoder_layers": 12, "decoder_layers": 1}, 16, 512, part="encoder"),
    "clip": Network("clip_vision_model", {}, 64, inputs="pixels"),
    "deit": Network("deit", {}, 64, inputs="pixels"),
    "electra": Network("electra", {"hidden_size": 768, "embedding_size": 768, "num_attention_heads": 12,
                                   "intermediate_size": 3072}, 32, 256),
    "distilbert": Network("distilbert", {}, 32, 256),
    "phi3": Network("phi3", {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 32,
                             "intermediate_size": 5632, "num_hidden_layers": 24, "pad_token_id": 0},
                    4, 2048, cached=True),
    "gpt-neox": Network("gpt_neox", {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192,
                                     "num_hidden_layers": 24}, 4, 2048, cached=True),
    "olmo2": Network("olmo2", {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192,
                               "num_hidden_layers": 16}, 4, 2048, cached=True),
    "gemma2": Network("gemma2", {"hidden_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 4,
                                 "head_dim": 256, "intermediate_size": 9216, "num_hidden_layers": 26}, 4, 2048,
                      cached=True),
    "starcoder2": Network("starcoder2", {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
                                         "intermediate_size": 8192, "num_hidden_layers": 24}, 4, 2048, cached=True),
}  # fmt: skip

GENERATE = ("qwen3-0.6b", "llama-1b")
TRAIN = ("bert", "llama")


def form(model: Any, attention: str, dtype: Any = torch.float16) -> Any:
    """A copy on the GPU, in a narrow type, with this attention."""
    new = copy.deepcopy(model).to("cuda", dtype)
    new.set_attn_implementation(attention)
    return new


HEADS = {"generation": AutoModelForCausalLM, "bert": AutoModelForMaskedLM, "llama": AutoModelForCausalLM}
