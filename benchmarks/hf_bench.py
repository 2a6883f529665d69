"""Transformer networks of Hugging Face: eager, sdpa, compiled, Graphene's attention alone, and accelerated.

    python benchmarks/hf_bench.py [--json out.json] [--networks bert albert] [--no-compile] [--rounds 30]

Base size, fp16, random weights, batch 32, length 384, inference: full batches, and padded ones whose lengths are 48 to
384 (mean 207). All run alternately in one process; medians of times between two events around a whole forward. What
each computes is compared with fp32 in the same run, at the positions that are no padding.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import has_device, write
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import graphene.integrations.transformers as integration

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "roberta": ("roberta", {"vocab_size": 50265, "max_position_embeddings": 514}),
    "distilroberta": ("roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "num_hidden_layers": 6}),
    "xlm-roberta": ("xlm-roberta", {"vocab_size": 250002, "max_position_embeddings": 514}),
    "albert": ("albert", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "gpt2": ("gpt2", {}),
    "llama": ("llama", {"hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4,
                        "intermediate_size": 2048, "num_hidden_layers": 12}),
}  # fmt: skip
PAPER = ("bert", "roberta", "distilroberta", "xlm-roberta", "albert")


def network(name: str) -> Any:
    """The network in fp32 on the CPU, with random weights."""
    kind, settings = NETWORKS[name]
    torch.manual_seed(0)
    return AutoModel.from_config(CONFIG_MAPPING[kind](**settings), attn_implementation="eager").eval()


def peers(model: Any, compiled: bool) -> dict[str, Any]:
    """The network in every form, fp16 on the GPU."""

    def form(attention: str) -> Any:
        new = copy.deepcopy(model).half().cuda()
        new.set_attn_implementation(attention)
        return new

    found = {"eager": form("eager"), "sdpa": form("sdpa")}
    if compiled:
        found["compiled"] = torch.compile(form("sdpa"))
    found["graphene"] = form("graphene")
    found["accelerated"] = integration.accelerate(form("sdpa"))
    return found


def alternately(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of each."""
    for run in ways.values():
        for _ in range(3):
            run()
    spans: dict[str, list[tuple[Any, Any]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            spans[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in spans.items()}


def measure(name: str, batch: int, length: int, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """The rows of one network. Raises RuntimeError where a result is wrong."""
    model = network(name)
    forms = peers(model, compiled)
    exact = model.cuda()
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(length // 8, length + 1, (batch,), generator=generator)
    ids = torch.randint(5, 1000, (batch, length), generator=generator).cuda()
    rows = []
    more = {"use_cache": False} if name in ("gpt2", "llama") else {}
    for case in ("full", "padded"):
        mask = torch.ones_like(ids)
        if case == "padded":
            mask = (torch.arange(length)[None] < lengths[:, None]).long().cuda()
        inputs = {"input_ids": ids, "attention_mask": mask, **more}
        seen = mask.bool()
        with torch.inference_mode():
            want = exact(**inputs).last_hidden_state[seen]
            errors = {}
            for peer, form in forms.items():
                got = form(**inputs).last_hidden_state[seen].float()
                errors[peer] = ((got - want).norm() / want.norm()).item()
                if not errors[peer] <= 1.5 * errors["eager"]:
                    raise RuntimeError(f"{name} {case}: {peer} is wrong by {errors[peer]}, eager by {errors['eager']}")
            times = alternately({p: lambda f=f, i=inputs: f(**i) for p, f in forms.items()}, rounds)
        for peer, ms in times.items():
            rows.append({"table": case, "case": name, "peer": peer, "ms": ms, "error": errors[peer],
                         "mean_length": mask.sum().item() / batch})  # fmt: skip
        said = ", ".join(f"{p} {t:.2f}" for p, t in times.items())
        gain = times["eager"] / times["accelerated"], times["sdpa"] / times["accelerated"]
        print(f"{name:14} {case:7} {said} ms; accelerated {gain[0]:.2f}x eager, {gain[1]:.2f}x sdpa", flush=True)
    return rows


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=PAPER)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    if not has_device():
        return 2
    rows: list[dict[str, Any]] = []
    for name in args.networks:
        rows += measure(name, args.batch, args.length, args.rounds, not args.no_compile)
        write(args.json, {"benchmark": "hf", "batch": args.batch, "length": args.length, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
