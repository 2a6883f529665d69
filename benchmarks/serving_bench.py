"""Operators of language models, beside their peers: weights of few bits, mixtures of experts, losses.

    python benchmarks/serving_bench.py [--json out.json] [--only int4,fp8]

Medians of calls captured in CUDA graphs, in turns, with a cold cache; every result is compared with PyTorch's. `copied`
is the time in which `copy_` reads and writes as many bytes as the call reads: half of them are read, half written.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from figures import arguments, has_device, write
from timing import captured, measure

from graphene import ops

Ways = dict[str, Callable[[], Any]]


def copied(read_bytes: int) -> Callable[[], Any]:
    """A copy that moves so many bytes, half in and half out."""
    source = torch.empty(read_bytes // 2, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def normal(*shape: int, dtype: torch.dtype = torch.half) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def linear(theirs: Any, fp8: bool) -> Iterator[tuple[str, Ways]]:
    """Few tokens times weights of 4 bits in groups of 128, or of fp8 with scales of columns."""
    for m, n, k in ((16, 4096, 4096), (1, 8192, 8192), (1, 4096, 4096), (1, 28672, 8192), (64, 4096, 4096)):
        x, plain = normal(m, k), normal(n, k) / 64
        if fp8:
            numbers, scale = normal(n, k).to(torch.float8_e4m3fn), (normal(n).abs() + 0.5) / 64
            wide = numbers.half() * scale[:, None]
        else:
            numbers = torch.randint(0, 16, (n, k), device="cuda")
            scale = (normal(k // 128, n).abs() + 0.5) / 64
            wide = ((numbers.half() - 8).reshape(n, -1, 128) * scale.T[..., None]).reshape(n, k)
        weight = ops.pack_weights(numbers)
        read = weight.nbytes + scale.nbytes + x.nbytes
        ways: Ways = {
            "graphene": lambda x=x, w=weight, s=scale: ops.quantized_linear(x, w, s),
            "cublas_fp16": lambda x=x, w=wide: x @ w.T,
            "copied": copied(read),
        }
        if theirs is not None and not fp8:
            shifts = torch.arange(0, 32, 4, device="cuda")
            words = (numbers.T.reshape(-1, 8, n) << shifts[None, :, None]).sum(1).to(torch.int32).contiguous()
            ways["triton"] = lambda x=x, w=words, s=scale: theirs.int4_linear(x, w, s)
        del plain
        yield f"{m}x{n}x{k}", ways


def grouped(theirs: Any) -> Iterator[tuple[str, Ways]]:
    """Tokens of experts: groups of random sizes, beside one product of as many multiply-adds."""
    for t, k, n, groups in ((65536, 2048, 2048, 64), (8192, 4096, 14336, 8), (16384, 2048, 1536, 128)):
        a, b = normal(t, k), normal(groups, k, n) / 64
        chosen = torch.randint(0, groups, (t,), device="cuda")
        offsets = torch.bincount(chosen, minlength=groups).cumsum(0).to(torch.int32)
        bounds = [0, *offsets.tolist()]

        def loop(a=a, b=b, ends=bounds) -> torch.Tensor:
            return torch.cat([a[i:j] @ b[e] for e, (i, j) in enumerate(itertools.pairwise(ends))])

        ways: Ways = {
            "graphene": lambda a=a, b=b, o=offsets: ops.grouped_matmul(a, b, o),
            "torch_loop": loop,
            "one_product": lambda a=a, b=b: a @ b[0],
        }
        if hasattr(torch, "_grouped_mm"):
            bf = a.bfloat16(), b.bfloat16()
            ways["torch_grouped_mm_bf16"] = lambda bf=bf, o=offsets: torch._grouped_mm(*bf, offs=o)
        if theirs is not None:
            ways["triton"] = lambda a=a, b=b, o=offsets: theirs.grouped(a, b, o)
        yield f"{t}x{n}x{k} of {groups}", ways


def entropy(_: Any) -> Iterator[tuple[str, Ways]]:
    """The loss of logits, forward and with its gradient; `copied` copies the logits once."""
    for rows, classes in ((4096, 128256), (8192, 32000)):
        x, target = normal(rows, classes, dtype=torch.bfloat16), torch.randint(0, classes, (rows,), device="cuda")
        copy = torch.empty_like(x)

        def both(loss, x=x) -> torch.Tensor:
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(loss(leaf), leaf)[0]

        def eager(x, target=target) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(x.float(), target)

        def ours(x, target=target) -> torch.Tensor:
            return ops.cross_entropy(x, target)

        size = f"{rows}x{classes} bf16"
        copied_once = lambda x=x, copy=copy: copy.copy_(x)  # noqa: E731
        yield size, {"graphene": lambda f=ours, x=x: f(x), "torch": lambda f=eager, x=x: f(x), "copied": copied_once}
        yield (
            f"{size}, with its gradient",
            {"graphene": lambda f=ours, b=both: b(f), "torch": lambda f=eager, b=both: b(f), "copied": copied_once},
        )


def problems(theirs: Any) -> dict[str, Callable[[], Iterator[tuple[str, Ways]]]]:
    """By name: what yields the problems, each with its ways."""
    return {"int4": lambda: linear(theirs, fp8=False), "fp8": lambda: linear(theirs, fp8=True),
            "grouped": lambda: grouped(theirs), "entropy": lambda: entropy(theirs)}  # fmt: skip


def one(ways: Ways, repeats: int) -> dict[str, Any]:
    """The times of a problem's ways. Raises RuntimeError where a result is wrong."""
    got, want, *_ = (call() for call in ways.values())
    if not torch.allclose(got.double(), want.double(), rtol=2e-2, atol=2e-2 * float(want.double().abs().max())):
        raise RuntimeError("another result than PyTorch's")
    times = measure({way: captured(call) for way, call in ways.items()}, repeats)
    return {"us": times, "speed": {n: t / times["graphene"] for n, t in times.items() if n != "graphene"}}


def main() -> int:
    """Prints a line of JSON a problem; with --json also writes them all. Returns the exit status."""
    args = arguments(__doc__, tuple(problems(None)))
    if not has_device():
        return 2
    try:
        import serving_triton as theirs
    except ImportError:
        theirs = None
    figures: dict[str, Any] = {"benchmark": "serving", "problems": {}}
    for name, make in problems(theirs).items():
        if name not in args.only:
            continue
        for size, ways in make():
            try:
                found = one(ways, args.repeats)
            except Exception as e:  # the others are still measured
                found = {"error": f"{type(e).__name__}: {e}"[:300]}
            figures["problems"][f"{name} {size}"] = found
            torch.cuda.empty_cache()
            print(json.dumps({f"{name} {size}": found}), flush=True)
    write(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
