"""Transformer networks of Hugging Face: eager, sdpa, compiled, Graphene's attention alone, accelerated, both.

    python benchmarks/hf_bench.py [--json out.json] [--tables full forward] [--networks bert vit] [--no-compile]

Random weights, fp16 (training: bf16); `benchmarks/hf_networks.py` has the configurations. All ways run alternately in
one process. Tables:

- full, padded: a forward pass of the paper's networks, batch 32, length 384, and padded batches of mean length 207.
- forward: one of other architectures, among them the prefill of language models.
- generation: milliseconds a token of `generate()`, 512 tokens before and 128 new ones, batch 1 and 16; "static" is
  sdpa with a static cache, whose steps transformers compiles.
- training: forward, backward and AdamW's step.

Times are medians between two events around a whole pass. What each computes is compared with fp32 in the same run, at
the positions that are no padding. "both" is an accelerated network under torch.compile.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import has_device, write
from hf_networks import GENERATE, HEADS, NETWORKS, PAPER, TRAIN, form

import graphene.integrations.transformers as integration

TABLES = ("full", "padded", "forward", "generation", "training")
NEW_TOKENS, PROMPT = 128, 512


def peers(model: Any, compiled: bool) -> dict[str, Any]:
    """The network in every form, fp16 on the GPU."""
    found = {"eager": form(model, "eager"), "sdpa": form(model, "sdpa")}
    if compiled:
        found["compiled"] = torch.compile(form(model, "sdpa"))
    found["graphene"] = form(model, "graphene")
    found["accelerated"] = integration.accelerate(form(model, "sdpa"))
    if compiled:
        found["both"] = torch.compile(integration.accelerate(form(model, "sdpa"), show=False))
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


def told(case: str, table: str, times: dict[str, float]) -> None:
    """Prints a row of a table: the times, and the best of ours against the best of PyTorch's."""
    ours = {p: t for p, t in times.items() if p in ("graphene", "accelerated", "both")}
    others = {p: t for p, t in times.items() if p not in ours}
    best, other = min(ours, key=lambda p: ours[p]), min(others, key=lambda p: others[p])
    said = ", ".join(f"{p} {t:.2f}" for p, t in times.items())
    print(f"{case:16} {table:10} {said} ms; {best} is {others[other] / ours[best]:.2f}x {other}", flush=True)


def forward(name: str, tables: list[str], rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """The rows of one network. Raises RuntimeError where a result is wrong."""
    network = NETWORKS[name]
    model = network.model(device="cuda")
    forms = peers(model, compiled)
    exact = model.cuda()
    rows = []
    for table in tables:
        inputs, seen = network.given(torch.float16, padded=table == "padded")
        wide = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
        with torch.inference_mode():
            want = exact(**wide).last_hidden_state[seen].cpu()
            errors = {}
            for peer, net in forms.items():
                got = net(**inputs).last_hidden_state[seen].float().cpu()
                errors[peer] = ((got - want).norm() / want.norm()).item()
                if not errors[peer] <= 1.5 * errors["eager"]:
                    raise RuntimeError(f"{name} {table}: {peer} is wrong by {errors[peer]}, eager by {errors['eager']}")
            times = alternately({p: lambda f=f, i=inputs: f(**i) for p, f in forms.items()}, rounds)
        length = seen.sum().item() / network.batch if torch.is_tensor(seen) else None
        rows += [{"table": table, "case": name, "peer": p, "ms": ms, "error": errors[p], "mean_length": length}
                 for p, ms in times.items()]  # fmt: skip
        told(name, table, times)
    return rows


def generation(name: str, batch: int, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """Milliseconds a token of greedy decoding; tokens must be alike wherever eager's choice is clear."""
    network = NETWORKS[name]
    base = network.model(HEADS["generation"], "cuda").half()
    ids = torch.randint(5, 1000, (batch, PROMPT), generator=torch.Generator().manual_seed(1)).cuda()
    forms = {"sdpa": form(base, "sdpa"), "accelerated": integration.accelerate(form(base, "sdpa"))}
    if compiled:
        forms["static"] = form(base, "sdpa")
    ask = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    ways = {p: lambda f=f, m=({"cache_implementation": "static"} if p == "static" else {}): f.generate(ids, **ask, **m)
            for p, f in forms.items()}  # fmt: skip
    times: dict[str, list[float]] = {p: [] for p in ways}
    tokens = {p: run() for p, run in ways.items()}
    agree = {p: (t == tokens["sdpa"])[:, PROMPT:].float().cumprod(1).mean().item() for p, t in tokens.items()}
    for _ in range(max(2, rounds // 10)):
        for p, run in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times[p].append((time.perf_counter() - begin) * 1e3 / NEW_TOKENS)
    found = {p: statistics.median(t) for p, t in times.items()}
    case = f"{name} batch {batch}"
    told(case, "generation", found)
    return [{"table": "generation", "case": case, "peer": p, "ms": ms, "tokens_s": batch * 1e3 / ms, "agree": agree[p]}
            for p, ms in found.items()]  # fmt: skip


def training(name: str, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """Milliseconds of a step in bf16, and the losses after the same steps."""
    network = NETWORKS[name]
    quiet = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0} if name == "bert" else {}
    base = network.model(HEADS[name], "cuda", **quiet).train()
    ids = network.given(torch.bfloat16)[0]["input_ids"]
    forms = {"sdpa": form(base, "sdpa", torch.bfloat16)}
    forms["accelerated"] = integration.accelerate(form(base, "sdpa", torch.bfloat16))
    calls: dict[str, Any] = dict(forms)
    if compiled:
        forms["compiled"] = form(base, "sdpa", torch.bfloat16)
        forms["both"] = integration.accelerate(form(base, "sdpa", torch.bfloat16), show=False)
        calls |= {p: torch.compile(forms[p]) for p in ("compiled", "both")}
    losses: dict[str, list[Any]] = {p: [] for p in forms}

    def step(peer: str, optimizer: Any) -> None:
        loss = calls[peer](input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[peer].append(loss.detach())

    optimizers = {p: torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True) for p, m in forms.items()}
    times = alternately({p: lambda p=p: step(p, optimizers[p]) for p in forms}, rounds)
    told(name, "training", times)
    return [{"table": "training", "case": name, "peer": p, "ms": ms, "loss": float(losses[p][-1])}
            for p, ms in times.items()]  # fmt: skip


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["full", "padded"])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, help="those of the tables by default")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    if not has_device():
        return 2
    rows: list[dict[str, Any]] = []
    failed = []

    def keep(call: Callable[[], list[dict[str, Any]]], what: str) -> None:
        try:
            rows.extend(call())
        except Exception as error:  # the others are measured all the same
            failed.append(what)
            print(f"{what} failed: {error}", file=sys.stderr, flush=True)
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
        write(args.json, {"benchmark": "hf", "batch": 32, "length": 384, "rows": rows})

    compiled = not args.no_compile
    both = [t for t in args.tables if t in ("full", "padded")]
    for name in args.networks or NETWORKS:
        if name in PAPER or name in ("gpt2", "llama"):
            tables = both if name in PAPER or args.networks else []
        else:
            tables = ["forward"] if "forward" in args.tables else []
        if tables:
            keep(lambda n=name, t=tables: forward(n, t, args.rounds, compiled), name)
        if "generation" in args.tables and name in GENERATE:
            for batch in (1, 16):
                keep(lambda n=name, b=batch: generation(n, b, args.rounds, compiled), f"{name} generation")
        if "training" in args.tables and name in TRAIN:
            keep(lambda n=name: training(n, args.rounds, compiled), f"{name} training")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
