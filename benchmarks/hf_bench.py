"""Transformer networks of Hugging Face: eager, sdpa, compiled, Graphene's attention alone, accelerated, both.

    python benchmarks/hf_bench.py [--json out.json] [--tables full forward] [--networks bert vit] [--no-compile]
                                  [--peers eager sdpa accelerated] [--layers 4] [--seconds 90]

Random weights, fp16 (training: bf16); `benchmarks/hf_networks.py` has the configurations. All ways run alternately in
one process. Tables:

- full, padded: a forward pass of the paper's networks, batch 32, length 384, and padded batches of mean length 207.
- forward: one of other architectures, among them the prefill of language models; ragged: those that read tokens, on
  padded batches; one: one sequence of 128 tokens, one image or one sound; fp32: the same as forward in fp32.
- generation: milliseconds a token of `generate()`, 512 tokens before and 128 new ones, batch 1 and 16; "static" is
  sdpa with a static cache, whose steps transformers compiles.
- training: forward, backward and AdamW's step.

Times are medians between two events around a whole pass, each after the device's cache was written over. What each
computes is compared with fp32 in the same run, at the positions of tokens. "both" is an accelerated network
under torch.compile. --layers cuts the networks, of which --seconds begins none after that time: the first that did not
fit is named. A network that fails is named, too; the others go on, in another process where the device takes no more
calls. Rows of forward passes have "parts", the milliseconds of sdpa's and of the accelerated network's
operators; rows of generation have the launches of a recorded step, and how long they take.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from figures import Deadline, has_device, write
from hf_networks import GENERATE, HEADS, NETWORKS, PAPER, TRAIN, Network, form

import graphene.integrations.transformers as integration
from graphene.errors import LaunchError
from graphene.integrations.transformers._left import measured

TABLES = ("full", "padded", "forward", "ragged", "one", "fp32", "generation", "training")
PEERS = ("eager", "sdpa", "compiled", "graphene", "accelerated", "both")
PASSES = ("forward", "ragged", "one", "fp32")
NEW_TOKENS, PROMPT = 128, 512
CACHE_BYTES = 2**27  # more than the device's cache has
NAMED = 14  # as many operators, or kernels, are named in "parts"
LEAST_ERROR = 1e-5  # in fp32, where eager is what the others are compared with


def peers(model: Any, asked: list[str], dtype: Any = torch.float16) -> dict[str, Any]:
    """The network in every form that is asked for, on the GPU."""
    makes: dict[str, Callable[[], Any]] = {
        "eager": lambda: form(model, "eager", dtype),
        "sdpa": lambda: form(model, "sdpa", dtype),
        "compiled": lambda: torch.compile(form(model, "sdpa", dtype)),
        "graphene": lambda: form(model, "graphene", dtype),
        "accelerated": lambda: integration.accelerate(form(model, "sdpa", dtype)),
        "both": lambda: torch.compile(integration.accelerate(form(model, "sdpa", dtype), show=False)),
    }
    found = {}
    for name, make in makes.items():
        if name in asked:
            with contextlib.suppress(LaunchError):  # a network that computes attention in its own code
                found[name] = make()
    return found


def alternately(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of each."""
    for run in ways.values():
        for _ in range(3):
            run()
    spans: dict[str, list[tuple[Any, Any]]] = {name: [] for name in ways}
    cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(rounds):
        for name, run in ways.items():
            cache.zero_()
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


def forward(network: Network, name: str, tables: list[str], rounds: int, asked: list[str]) -> list[dict[str, Any]]:
    """The rows of one network. Raises RuntimeError where a result is wrong."""
    exact = network.model(device="cuda")
    rows: list[dict[str, Any]] = []
    forms: dict[str, Any] = {}
    made_of = None
    for table in tables:
        dtype = torch.float32 if table == "fp32" else torch.float16
        if made_of is not dtype:
            forms, made_of = peers(exact, asked, dtype), dtype
        sized = network.alone() if table == "one" else network
        inputs, seen = sized.given(dtype, padded=table in ("padded", "ragged"))
        wide = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
        with torch.inference_mode():
            want = exact(**wide).last_hidden_state[seen].cpu()
            errors = {}
            for peer, net in forms.items():
                got = net(**inputs).last_hidden_state[seen].float().cpu()
                errors[peer] = ((got - want).norm() / want.norm()).item()
                if not errors[peer] <= max(1.5 * errors["eager"], LEAST_ERROR):
                    raise RuntimeError(f"{name} {table}: {peer} is wrong by {errors[peer]}, eager by {errors['eager']}")
            times = alternately({p: lambda f=f, i=inputs: f(**i) for p, f in forms.items()}, rounds)
        length = seen.sum().item() / sized.batch if torch.is_tensor(seen) else None
        for peer, ms in times.items():
            row = {"table": table, "case": name, "peer": peer, "ms": ms, "error": errors[peer], "mean_length": length}
            if peer in ("sdpa", "accelerated"):
                row["parts"] = {n: round(t, 3) for n, t in measured(forms[peer], inputs).most_common(NAMED)}
            rows.append(row)
        told(name, table, times)
    return rows


def steps_of(model: Any) -> dict[str, Any]:
    """The launches of a recorded step of a model that has generated, their milliseconds, and all of them together."""
    decoding = integration.accelerated(model).decoding
    if not decoding or decoding[0].steps is None:
        return {"refused": decoding[0].refused if decoding else "there is nothing to record"}
    step = next(s for s in decoding[0].steps.known.values() if s is not None)
    decoding[0].steps.reset()  # each replay writes at the next position: the cache is full, and has nothing behind it
    times = alternately({"step": step.recorded.replay}, 20)
    with torch.profiler.profile() as seen:
        step.recorded.replay()
        torch.cuda.synchronize()
    each: Counter[str] = Counter()
    launches = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    for e in launches:
        each[e.name] += e.device_time / 1e3
    return {"step_ms": times["step"], "launches": len(launches), "parts": dict(each.most_common(NAMED))}


def generation(network: Network, name: str, batch: int, rounds: int, asked: list[str]) -> list[dict[str, Any]]:
    """Milliseconds a token of greedy decoding; tokens must be alike wherever eager's choice is clear."""
    base = network.model(HEADS["generation"], "cuda").half()
    ids = torch.randint(5, 1000, (batch, PROMPT), generator=torch.Generator().manual_seed(1)).cuda()
    forms = {"sdpa": form(base, "sdpa"), "accelerated": integration.accelerate(form(base, "sdpa"))}
    if "compiled" in asked:
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
    steps = steps_of(forms["accelerated"])
    return [{"table": "generation", "case": case, "peer": p, "ms": ms, "tokens_s": batch * 1e3 / ms, "agree": agree[p],
             **(steps if p == "accelerated" else {})} for p, ms in found.items()]  # fmt: skip


def training(network: Network, name: str, rounds: int, asked: list[str]) -> list[dict[str, Any]]:
    """Milliseconds of a step in bf16, and the losses after the same steps."""
    quiet = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0} if name == "bert" else {}
    base = network.model(HEADS[name], "cuda", **quiet).train()
    ids = network.given(torch.bfloat16)[0]["input_ids"]
    forms = {"sdpa": form(base, "sdpa", torch.bfloat16)}
    forms["accelerated"] = integration.accelerate(form(base, "sdpa", torch.bfloat16))
    calls: dict[str, Any] = dict(forms)
    if "compiled" in asked:
        forms["compiled"] = form(base, "sdpa", torch.bfloat16)
    if "both" in asked:
        forms["both"] = integration.accelerate(form(base, "sdpa", torch.bfloat16), show=False)
    calls |= {p: torch.compile(forms[p]) for p in ("compiled", "both") if p in forms}
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


def asked(names: list[str] | None, tables: list[str]) -> Iterator[tuple[str, str, Any]]:
    """What is measured, in order: a network, a table or "forward" for several, and the tables or a batch."""
    for name in names or NETWORKS:
        usual = name in PAPER or name in ("gpt2", "llama")
        own = [t for t in tables if t in (("full", "padded") if usual else PASSES)]
        if NETWORKS[name].inputs != "ids":
            own = [t for t in own if t != "ragged"]
        if own:
            yield name, "forward", own
    for name in names or NETWORKS:
        if "generation" in tables and name in GENERATE:
            yield name, "generation", 1
            yield name, "generation", 16
        if "training" in tables and name in TRAIN:
            yield name, "training", None


def usable() -> bool:
    """Whether the device takes calls of this process: it takes none after an assert in a kernel."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception:
        return False
    return True


def go_on(args: argparse.Namespace, start: int, seconds: float) -> int:
    """Measures what is asked for from number ``start`` on in a process of its own. Returns its exit status."""
    given = sys.argv[1:]
    more = ["--start", str(start)] + (["--seconds", str(seconds)] if seconds < float("inf") else [])
    return subprocess.run([sys.executable, __file__, *given, *more], check=False).returncode


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["full", "padded"])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, help="those of the tables by default")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--layers", type=int, help="cut the networks to this number of layers")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no network after that time")
    parser.add_argument("--start", type=int, default=0, help="networks to leave out; their rows in --json are kept")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="some of the ways")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    if not {"eager", "accelerated"} <= set(args.peers):
        parser.error("--peers: the others are compared with eager and accelerated, which must be among them")
    if not has_device():
        return 2
    kept = args.json is not None and args.start and args.json.exists()
    rows: list[dict[str, Any]] = json.loads(args.json.read_text())["rows"] if kept else []
    failed, deadline = [], Deadline(args.seconds)
    ways = [p for p in PEERS if p in args.peers and not (args.no_compile and p in ("compiled", "both"))]

    def keep() -> None:
        write(args.json, {"benchmark": "hf", "batch": 32, "length": 384, "layers": args.layers, "rows": rows})

    for at, (name, kind, more) in enumerate(asked(args.networks, args.tables)):
        if at < args.start:
            continue
        if deadline.over():
            print(f"no time for {name} {kind} and what follows")
            break
        network = NETWORKS[name].cut(args.layers)
        try:
            if kind == "forward":
                rows += forward(network, name, more, args.rounds, ways)
            elif kind == "generation":
                rows += generation(network, name, more, args.rounds, ways)
            else:
                rows += training(network, name, args.rounds, ways)
        except Exception as error:  # the others are measured all the same
            failed.append(name)
            print(f"{name} {kind} failed: {error}", file=sys.stderr, flush=True)
        gc.collect()
        torch.compiler.reset()
        keep()
        if not usable():
            go_on(args, at + 1, deadline.left_s)
            if args.json is not None:
                rows = json.loads(args.json.read_text())["rows"]
                keep()
            return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
