"""Attention against cuDNN's, FlashAttention-2, memory-efficient and unfused attention, all through torch.

    python benchmarks/fmha_bench.py [--json out.json] [--only forward] [--repeats 20]

Forward passes run in CUDA graphs, gradients eagerly; all run alternately in one process on random data, the L2 cache
filled with other data before each launch; medians of times between two events; a call's host time is that of many,
which nobody waits for, divided by their number. Operations are those of all scores
(half of them where causal) of both products, two and a half times as many for gradients. Results are compared with
float64 in the same run, on the first heads.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
from figures import has_device, write
from launch_bench import N, bare
from launch_bench import measure as measure_host
from ops_bench import batches
from timing import captured, measure
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphene import ops

BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION, "unfused": SDPBackend.MATH,
}  # fmt: skip
# Batch, queries and keys, heads, head size, causal.
FORWARD = (
    (32, 384, 16, 64, False), (64, 128, 12, 64, False), (128, 512, 12, 64, False), (2, 4096, 16, 64, False),
    (2, 4096, 16, 64, True), (2, 4096, 16, 128, False), (2, 4096, 16, 128, True), (1, 16384, 16, 128, True),
    (2, 2048, 16, 80, False), (2, 2048, 16, 96, True), (2, 2048, 16, 256, False), (8, 1024, 16, 64, True),
    (2, 2000, 16, 72, False), (2, 1023, 12, 128, True),
)  # fmt: skip
BACKWARD = (
    (32, 384, 16, 64, False), (2, 4096, 16, 64, False), (2, 4096, 16, 64, True), (2, 4096, 16, 128, False),
    (2, 4096, 16, 128, True),
)  # fmt: skip
# Batch, keys, heads, heads of keys, head size: one query each.
DECODE = (
    (1, 4096, 32, 8, 128), (16, 4096, 32, 8, 128), (64, 1024, 32, 8, 128), (32, 512, 16, 16, 64),
    (1, 131072, 32, 8, 128), (4, 8192, 64, 8, 128),
)  # fmt: skip
# The same in pages: batch, keys, heads, heads of keys, head size, keys of a page.
PAGES = (
    (1, 4096, 32, 8, 128, 16), (1, 4096, 32, 8, 128, 256), (16, 4096, 32, 8, 128, 16), (16, 4096, 32, 8, 128, 256),
)  # fmt: skip


def tensors(b: int, s: int, h: int, d: int, n: int = 3) -> list[Any]:
    """Random fp16 tensors (batch, seq, heads, dim)."""
    return [torch.randn(b, s, h, d, device="cuda").half() for _ in range(n)]


def sdpa(backend: SDPBackend, q: Any, k: Any, v: Any, **named: Any) -> Any:
    """torch's, of (batch, heads, seq, dim) views."""
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), **named)


def check(got: Any, q: Any, k: Any, v: Any, causal: bool = False, mask: Any = None) -> None:
    """Raises RuntimeError unless the first batch's first and last heads are right."""
    for h, kh in ((0, 0), (q.shape[2] - 1, k.shape[2] - 1)):
        s = q[0, :1024, h].double() @ k[0, :, kh].double().T * q.shape[3] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        if mask is not None:
            s = s.masked_fill(~mask[0], -torch.inf)
        want = torch.softmax(s, 1) @ v[0, :, kh].double()
        error = ((got[0, :1024, h].double() - want).norm() / want.norm()).item()
        if not error < 1e-3:
            raise RuntimeError(f"attention of {tuple(q.shape)} is wrong by {error}")


def rows(table: str, case: str, times: dict[str, float], operations: float = 0) -> list[dict[str, Any]]:
    """What is kept of a case, printed too."""
    made: list[dict[str, Any]] = []
    for peer, us in times.items():
        made.append({"table": table, "case": case, "peer": peer, "us": us})
        if operations:
            made[-1]["tflops"] = operations / us / 1e6
    texts = (f"{r['peer']} {r['us']:.1f} us" + (f" ({r['tflops']:.0f} TFLOP/s)" if operations else "") for r in made)
    print(f"{table:9} {case:28} {', '.join(texts)}", flush=True)
    return made


def forward(repeats: int) -> list[dict[str, Any]]:
    """Plain and causal attention."""
    made = []
    for b, s, h, d, causal in FORWARD:
        q, k, v = tensors(b, s, h, d)
        check(ops.attention(q, k, v, causal=causal), q, k, v, causal)
        ways = {"graphene": captured(lambda q=q, k=k, v=v, c=causal: ops.attention(q, k, v, causal=c))}
        for name, backend in BACKENDS.items():
            if name != "unfused" or s < 1024:
                ways[name] = captured(functools.partial(sdpa, backend, q, k, v, is_causal=causal))
        case = f"b{b} h{h} s{s} d{d}" + (" causal" if causal else "")
        made += rows("forward", case, measure(ways, repeats), 4 * b * h * s * s * d / (2 if causal else 1))
    return made


def masked(repeats: int) -> list[dict[str, Any]]:
    """Lengths 48 to 384 in a padded batch, and packed."""
    b, s, h, d = 32, 384, 16, 64
    lengths = torch.randint(48, 385, (b,), generator=torch.Generator().manual_seed(1))
    q, k, v = tensors(b, s, h, d)
    mask = torch.arange(s, device="cuda")[None] < lengths.cuda()[:, None]
    check(ops.attention(q, k, v, mask=mask), q, k, v, mask=mask[:, None])
    full = mask[:, None, None].expand(b, 1, s, s)
    ways = {"graphene": captured(lambda: ops.attention(q, k, v, mask=mask))}
    for name, backend in BACKENDS.items():
        if name != "FlashAttention-2":
            ways[name] = captured(functools.partial(sdpa, backend, q, k, v, attn_mask=full))
    made = rows("masked", f"b{b} h{h} s48...{s} d{d} padded", measure(ways, repeats))
    starts = torch.tensor([0, *lengths.cumsum(0)], dtype=torch.int32, device="cuda")
    x, y, z = (torch.randn(int(starts[-1]), h, d, device="cuda").half() for _ in range(3))
    out = ops.attention_varlen(x, y, z, starts, starts, s, s)
    n = int(lengths[0])
    check(out[None, :n], x[None, :n], y[None, :n], z[None, :n])
    ways = {"graphene": captured(lambda: ops.attention_varlen(x, y, z, starts, starts, s, s))}
    return made + rows("masked", f"b{b} h{h} s48...{s} d{d} packed", measure(ways, repeats))


def decode(repeats: int) -> list[dict[str, Any]]:
    """One query of each sequence."""
    made = []
    for b, s, h, hk, d in DECODE:
        q, (k, v) = tensors(b, 1, h, d, 1)[0], tensors(b, s, hk, d, 2)
        check(ops.attention(q, k, v), q, k, v)
        ways = {"graphene": captured(lambda q=q, k=k, v=v: ops.attention(q, k, v))}
        for name in ("cuDNN", "FlashAttention-2"):
            ways[name] = captured(functools.partial(sdpa, BACKENDS[name], q, k, v, enable_gqa=True))
        made += rows("decode", f"b{b} h{h}/{hk} keys {s} d{d}", measure(ways, repeats))
    return made


def pages(repeats: int) -> list[dict[str, Any]]:
    """One query of each sequence, with keys and values in pages and one after the other."""
    made = []
    for b, s, h, hk, d, page in PAGES:
        q, (k, v) = tensors(b, 1, h, d, 1)[0], tensors(b, s, hk, d, 2)
        place = torch.randperm(b * s // page, device="cuda")
        kp, vp = (torch.empty_like(t.view(-1, page, hk, d)) for t in (k, v))
        for t, whole in ((kp, k), (vp, v)):
            t[place] = whole.view(-1, page, hk, d)
        lengths = torch.full((b,), s, dtype=torch.int32, device="cuda")
        args = (q, kp, vp, place.view(b, -1).int(), lengths)
        check(ops.attention_paged(*args), q, k, v)
        ways = {
            "paged": captured(functools.partial(ops.attention_paged, *args)),
            "graphene": captured(functools.partial(ops.attention, q, k, v)),
        }
        made += rows("pages", f"b{b} h{h}/{hk} keys {s} d{d} page {page}", measure(ways, repeats))
    return made


def backward(repeats: int) -> list[dict[str, Any]]:
    """Gradients alone, through autograd."""
    made = []
    for b, s, h, d, causal in BACKWARD:
        g, *inputs = tensors(b, s, h, d, 4)
        inputs = [t.requires_grad_() for t in inputs]
        heads_first = g.transpose(1, 2)
        out = ops.attention(*inputs, causal=causal)
        ways = {"graphene": functools.partial(torch.autograd.grad, out, inputs, g, retain_graph=True)}
        for name in ("cuDNN", "FlashAttention-2", "memory-efficient"):
            peer = sdpa(BACKENDS[name], *inputs, is_causal=causal)
            ways[name] = functools.partial(torch.autograd.grad, peer, inputs, heads_first, retain_graph=True)
        for ours, theirs in zip(ways["graphene"](), ways["FlashAttention-2"](), strict=True):
            error = ((ours - theirs).float().norm() / theirs.float().norm()).item()
            if not error < 2e-3:
                raise RuntimeError(f"the gradient of attention of {tuple(g.shape)} is wrong by {error}")
        case = f"b{b} h{h} s{s} d{d}" + (" causal" if causal else "")
        made += rows("backward", case, measure(ways, repeats), 10 * b * h * s * s * d / (2 if causal else 1))
    return made


def host(repeats: int) -> list[dict[str, Any]]:
    """The time of a call until it returns, on a small problem, beside a launch from C and nothing else."""
    q, k, v = tensors(1, 64, 2, 64)
    starts = torch.tensor([0, 64], dtype=torch.int32, device="cuda")
    one, (keys, values) = tensors(1, 1, 32, 128, 1)[0], tensors(1, 4096, 8, 128, 2)
    a, b, c = (torch.randn(N, device="cuda") for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "graphene": batches(ops.attention, q, k, v),
            "graphene, packed": batches(ops.attention_varlen, q[0], k[0], v[0], starts, starts, 64, 64),
            "graphene, decode": batches(ops.attention, one, keys, values),
            "torch": batches(functional.scaled_dot_product_attention, q, k, v),
            "bare cuLaunchKernel from C": bare(Path(folder), a, b, c),
        }
        return rows("host", "one call", measure_host(ways, 2 * repeats))


TABLES = {"forward": forward, "masked": masked, "decode": decode, "pages": pages, "backward": backward, "host": host}


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", choices=TABLES, nargs="+", default=list(TABLES))
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    if not has_device():
        return 2
    torch.manual_seed(0)
    made = [row for name in args.only for row in TABLES[name](args.repeats)]
    write(args.json, {"benchmark": "fmha", "rows": made})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
