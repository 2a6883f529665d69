"""Makes a model of Hugging Face's transformers faster in two lines: attention first, then the parts around it.

python examples/10_hugging_face.py     a small BERT on the CPU, by the simulator; on a GPU, BERT base

Weights are random, so nothing is downloaded. The example needs torch and transformers 5.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from transformers import AutoModel, BertConfig

import graphene.integrations.transformers as integration


def states(model: Any, batch: dict[str, Any]) -> Any:
    with torch.inference_mode():
        return model(**batch).last_hidden_state


def milliseconds(model: Any, batch: dict[str, Any]) -> float:
    states(model, batch)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        states(model, batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / 20


def main() -> None:
    gpu = torch.cuda.is_available()
    device, length = ("cuda", 384) if gpu else ("cpu", 12)
    config = BertConfig() if gpu else BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                 intermediate_size=64, vocab_size=1000)  # fmt: skip
    torch.manual_seed(0)
    lengths = torch.randint(length // 8, length + 1, (32 if gpu else 3,))
    batch = {"input_ids": torch.randint(5, 1000, (len(lengths), length), device=device)}
    batch["attention_mask"] = (torch.arange(length) < lengths[:, None]).long().to(device)
    seen = batch["attention_mask"].bool()

    model = AutoModel.from_config(config, attn_implementation="eager").half().to(device).eval()
    exact = states(model.float(), batch)[seen]
    eager = states(model.half(), batch)[seen]

    model.set_attn_implementation("graphene")  # or from_pretrained(..., attn_implementation="graphene")
    ours = states(model, batch)[seen]
    integration.accelerate(model, only_faster=gpu)  # on a CPU everything is replaced, to see it run
    fast = states(model, batch)[seen]

    for name, got in (("eager", eager), ("attention", ours), ("accelerated", fast)):
        print(f"{name:12} error against fp32: {((got.float() - exact).norm() / exact.norm()).item():.1e}")
    if gpu:
        took = milliseconds(model, batch)
        integration.restore(model).set_attn_implementation("sdpa")
        print(f"{int(seen.sum())} of {seen.numel()} tokens: {took:.2f} ms, sdpa {milliseconds(model, batch):.2f} ms")
    integration.restore(model)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # CpuWarning: CPU tensors run on the simulator
    main()
