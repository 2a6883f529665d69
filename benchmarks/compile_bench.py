"""`gr.compile` beside `torch.compile` on layers of Llama, Qwen3 and BERT, and the times that it expects, measured.

    python benchmarks/compile_bench.py [--json out.json] [--only "llama-8b decode",bert] [--repeats 41] [--seconds 600]
                                       [--measured] [--build sm_90a]

A case is some layers of a model, in bf16, with random weights: one token for each sequence beside a cache ("decode"),
or whole sequences. Both ways are captured in CUDA graphs and take turns with a cold L2 cache; results of the same run
are compared with PyTorch's, operator by operator. The regions that were looked at stand in the JSON. --measured adds
`gr.compile(mode="max-autotune")`, which decides by times that it measures.

`model` holds what `gr.compile` expects of other kernels to the clock, in CUDA graphs on operands in rotation: cuBLAS'
products, copies, and a kernel without work; the figures that `graphene.integrations.torch_compile.expected` needs.

--build compiles a case's planned regions for an architecture and runs nothing, which needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from figures import Deadline, arguments, has_device, write
from timing import captured, in_graphs, measure

import graphene as gr
from graphene.integrations.torch_compile.expected import KERNEL_US, KernelTimes, library_us
from graphene.select.device import current_device

DTYPE = torch.bfloat16
L2_BYTES = 120_000_000


@dataclass(frozen=True)
class Layers:
    """A number of layers of a model. ``decode``: one new token beside a cache of `tokens`, else all tokens at once."""

    kind: str
    count: int
    batch: int
    tokens: int
    decode: bool
    settings: dict[str, Any] = field(default_factory=dict, hash=False)


_LLAMA_8B = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
_LLAMA_1B = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
             "head_dim": 64}  # fmt: skip
_QWEN3 = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072,
          "head_dim": 128}  # fmt: skip
CASES = {
    "llama-8b decode": Layers("llama", 2, 1, 1024, True, _LLAMA_8B),
    "llama-8b decode 16": Layers("llama", 2, 16, 512, True, _LLAMA_8B),
    "llama-1b decode": Layers("llama", 2, 1, 1024, True, _LLAMA_1B),
    "qwen3-0.6b decode": Layers("qwen3", 4, 1, 1024, True, _QWEN3),
    "bert 1x32": Layers("bert", 6, 1, 32, False),
    "llama-1b 512": Layers("llama", 2, 1, 512, False, _LLAMA_1B),
    "qwen3-0.6b 512": Layers("qwen3", 4, 1, 512, False, _QWEN3),
    "bert 32x384": Layers("bert", 2, 32, 384, False),
}  # fmt: skip


class FixedCache:
    """Keys and values of a fixed length, of which the last token is written."""

    def __init__(self, layers: int, batch: int, heads: int, length: int, dim: int, device: str) -> None:
        shape = (batch, heads, length, dim)
        self.keys = [torch.randn(shape, device=device).to(DTYPE) for _ in range(layers)]
        self.values = [torch.randn(shape, device=device).to(DTYPE) for _ in range(layers)]
        self.at = torch.tensor([length - 1], device=device)

    def update(self, k: Any, v: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """What transformers' layers call: the new keys and values of a layer, and then all of them."""
        self.keys[layer_idx].index_copy_(2, self.at, k)
        self.values[layer_idx].index_copy_(2, self.at, v)
        return self.keys[layer_idx], self.values[layer_idx]


class Stack(torch.nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: list[Any], rope: Any, cache: FixedCache | None) -> None:
        super().__init__()
        self.layers, self.rope, self.cache = torch.nn.ModuleList(layers), rope, cache

    def forward(self, x: Any) -> Any:
        """The last layer's result."""
        more = {} if self.rope is None else {"position_embeddings": self.rope, "past_key_values": self.cache}
        for layer in self.layers:
            x = layer(x, **more)
            x = x[0] if isinstance(x, tuple) else x
        return x


def made(of: Layers, device: str = "cuda") -> tuple[Stack, torch.Tensor]:
    """The layers with random weights, and their input."""
    rotary: Any = None
    if of.kind == "llama":
        from transformers import LlamaConfig as Config
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer as Layer
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding as rotary  # noqa: N813
    elif of.kind == "qwen3":
        from transformers import Qwen3Config as Config
        from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer as Layer
        from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding as rotary  # noqa: N813
    else:
        from transformers import BertConfig as Config
        from transformers.models.bert.modeling_bert import BertLayer as Layer
    torch.manual_seed(0)
    config = Config(**of.settings)
    config._attn_implementation = "sdpa"
    with torch.device(device):
        layers = [Layer(config, i).to(DTYPE).eval() for i in range(of.count)]
    x = torch.randn(of.batch, 1 if of.decode else of.tokens, config.hidden_size, device=device).to(DTYPE)
    rope = cache = None
    if rotary is not None:
        places = torch.arange(of.tokens, device=device)[None]
        rope = rotary(config).to(device)(x, places[:, -1:] if of.decode else places)
        if of.decode:
            heads, dim = config.num_key_value_heads, getattr(config, "head_dim", None)
            dim = dim or config.hidden_size // config.num_attention_heads
            cache = FixedCache(of.count, of.batch, heads, of.tokens, dim, device)
    return Stack(layers, rope, cache).eval(), x


def ways(model: Stack, x: torch.Tensor, measures: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The compiled ways of a model and their plans; each has run once, as have the numbers of its first call."""
    found = {"torch.compile": torch.compile(model, dynamic=False), "gr.compile": gr.compile(model, dynamic=False)}
    if measures:
        found["gr.compile, measured"] = gr.compile(model, dynamic=False, mode="max-autotune-no-cudagraphs")
    return found, {n: f.plans for n, f in found.items() if hasattr(f, "plans")}


def one(name: str, repeats: int, measures: bool) -> list[dict[str, Any]]:
    """The rows of a case."""
    torch._dynamo.reset()
    model, x = made(CASES[name])
    want = model(x).float()
    rows: list[dict[str, Any]] = []
    calls, (found, plans) = {}, ways(model, x, measures)
    for way, f in found.items():
        begun = time.perf_counter()
        error = float((f(x).float() - want).abs().max() / want.abs().max())
        row = {"case": name, "peer": way, "error": error, "compile_s": time.perf_counter() - begun}
        if way in plans:
            row["planned"] = sum(r.planned for r in plans[way])
            row["regions"] = str(plans[way]).splitlines()
        rows.append(row)
        calls[way] = captured(lambda f=f: f(x))
    us = measure(calls, repeats)
    bound = 2 * rows[0]["error"] + 1e-2
    for row in rows:
        row["us"] = us[row["peer"]]
        row["times_torch_compile"] = us["torch.compile"] / row["us"]
        if not row["error"] < bound:
            row["failure"] = f"wrong by {row['error']:.1e}, torch.compile by {rows[0]['error']:.1e}"
    return rows


def model_of_time(seconds: float) -> dict[str, Any]:
    """Library products, copies and a kernel without work, beside what is expected of them."""
    device, deadline = current_device(), Deadline(seconds)
    tiny = torch.zeros(1, device="cuda")
    empty = in_graphs({"add": [lambda: tiny.add_(1.0)]}, 200, 7)["add"]
    out: dict[str, Any] = {"kernel_us": empty, "expected_kernel_us": KERNEL_US, "products": [], "copies": []}
    pairs = ((1024, 1024), (1024, 3072), (2048, 2048), (2048, 8192), (8192, 2048), (4096, 4096), (4096, 14336),
             (14336, 4096), (768, 768), (768, 3072), (3072, 768))  # fmt: skip
    for m in (1, 16, 64, 512, 4096, 12288):
        for k, n in pairs:
            if deadline.over():
                return out
            moved = 2 * (m * k + k * n + m * n)
            sets = [
                (torch.randn(m, k, device="cuda").to(DTYPE), torch.randn(n, k, device="cuda").to(DTYPE).T)
                for _ in range(min(40, L2_BYTES // moved + 1))
            ]
            y = torch.empty(m, n, device="cuda", dtype=DTYPE)
            calls = [lambda a=a, b=b, y=y: torch.mm(a, b, out=y) for a, b in sets]
            us = in_graphs({"mm": calls}, max(12, len(sets)), 5)["mm"]
            expected = library_us(m, k, n, moved, device)
            out["products"].append({"m": m, "k": k, "n": n, "us": us, "expected_us": expected})
    for size in (2**14, 2**17, 2**20, 2**22, 2**24, 2**26):
        data = [torch.randn(size // 2, device="cuda").to(DTYPE) for _ in range(3)]
        to = [torch.empty_like(a) for a in data]
        us = in_graphs({"copy": [lambda a=a, b=b: b.copy_(a) for a, b in zip(data, to, strict=True)]}, 30, 5)["copy"]
        out["copies"].append({"moved_bytes": 2 * size, "us": us,
                              "expected_us": KernelTimes(device).moving_us(2 * size)})  # fmt: skip
    return out


def show_model(found: dict[str, Any]) -> None:
    """What was found, by the rows of products."""
    print(f"a kernel without work: {found['kernel_us']:.2f} us, expected {found['expected_kernel_us']:.2f}")
    for m in dict.fromkeys(r["m"] for r in found["products"]):
        of = [r["us"] / r["expected_us"] for r in found["products"] if r["m"] == m]
        middle = statistics.median(of)
        print(f"products of {m} rows: {min(of):.2f} to {max(of):.2f} of what is expected, median {middle:.2f}")
    for r in found["copies"]:
        print(f"copies of {r['moved_bytes']} bytes: {r['us']:.2f} us, expected {r['expected_us']:.2f}")


def build(name: str, arch: str) -> list[dict[str, Any]]:
    """The regions that would be planned on an architecture, their kernels compiled; nothing is run on a GPU."""
    from torch._inductor.compile_fx import compile_fx

    from graphene.integrations.torch_compile import Backend

    torch._dynamo.reset()
    model, x = made(CASES[name], "cpu")
    backend = Backend(device=arch)

    def inner(gm: Any, inputs: Any, **_: Any) -> Any:
        backend.visit(gm.graph)
        gm.recompile()
        return lambda *args: gm.forward(*args)

    def looked_at(graph: Any, inputs: Any) -> Any:
        return compile_fx(graph, inputs, inner_compile=inner)

    torch.compile(model, backend=looked_at, dynamic=False)(x)
    rows: list[dict[str, Any]] = []
    texts = [str(region) for region in backend.plans]
    for i, region in enumerate(backend.plans):
        if texts[i] in texts[:i]:
            continue
        row: dict[str, Any] = {"case": name, "peer": region.name, "region": texts[i], "count": texts.count(texts[i])}
        if region.planned and region.plan is not None:
            found = region.plan.kernel().compile(arch)
            row |= {"registers": found.registers, "spill_bytes": found.spill_bytes}
        rows.append(row)
    return rows


def said(row: dict[str, Any]) -> str:
    """What a row says."""
    if "failure" in row:
        return str(row["failure"])
    if "region" not in row:
        same = "; no region is planned, so both graphs are the same" if row.get("planned") == 0 else ""
        return f"{row['us']:.1f} us, {row['times_torch_compile']:.3f} x torch.compile{same}"
    spilled = f"; {row['registers']} registers, {row['spill_bytes']} bytes spilled" if "registers" in row else ""
    return f"{row['count']} x {row['region']}{spilled}"


def more(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark alone."""
    parser.add_argument("--measured", action="store_true", help='also gr.compile(mode="max-autotune")')
    parser.add_argument("--build", metavar="ARCH", help="compile the planned regions, without a GPU")


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    args = arguments(__doc__, (*CASES, "model"), 41, more)
    if args.build is None and not has_device():
        return 2
    figures: dict[str, Any] = {"benchmark": "compile", "rows": []}
    deadline = Deadline(args.seconds)
    for name in (*CASES, "model"):
        left = deadline.left_s
        if name not in args.only or (name == "model" and args.build is not None):
            continue
        if left < 0:
            print(f"{name} and what follows: no time left")
            break
        with torch.no_grad():
            if name == "model":
                figures["model"] = model_of_time(left)
                show_model(figures["model"])
            else:
                try:
                    rows = build(name, args.build) if args.build else one(name, args.repeats, args.measured)
                except Exception as e:  # the others are still measured
                    rows = [{"case": name, "peer": "gr.compile", "failure": f"{type(e).__name__}: {e}"[:300]}]
                figures["rows"] += rows
                for r in rows:
                    print(f"{name:20} {r['peer']:22} {said(r)}", flush=True)
        write(args.json, figures)
        if args.build is None:
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
