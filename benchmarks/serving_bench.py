"""Operators of language models beside their peers: weights of few bits, experts, losses, rotary embeddings.

    python -m benchmarks serving [--json [FILE]] [--only int4,entropy] [--variants] [--seconds 90]

Medians of calls captured in CUDA graphs, in turns, with a cold cache; every result is compared with PyTorch's, of the
gradients the first rows. `copied` is the time in which `copy_` moves as many bytes: of int4 and fp8 those that are
read, half of them in and half out; of the others the logits or heads, once. --variants measures configurations beside
the chosen one, too, so that selection can be set from the figures.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from figures import Deadline, arguments, has_device, write
from timing import captured, measure

import graphene as gr
from graphene import ops
from graphene.kernels.gemm.grouped import GroupedConfig, grouped_kernel
from graphene.kernels.gemm.weights import WeightsConfig, weights_kernel
from graphene.kernels.rows.cross_entropy import (
    CrossEntropyConfig,
    cross_entropy_backward_kernel,
    cross_entropy_kernel,
)
from graphene.kernels.rows.softmax import SoftmaxConfig, log_softmax_kernel
from graphene.kernels.rows.tile import RowTile
from graphene.ops.cross_entropy import GRADIENT
from graphene.select.device import current_device

Ways = dict[str, Callable[[], Any]]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
GROUPS = ("balanced", "random", "skewed")  # how tokens are shared out among experts
LEFT_OUT = -100  # a target that no row has
DEVICE = "cuda"
# What is measured, the targets first: tokens, columns and k; tokens, k, columns and experts; rows and classes; rows,
# their width and type; sequences, tokens, heads, heads of keys, their width.
PRODUCTS = ((16, 4096, 4096), (1, 8192, 8192), (1, 4096, 4096), (1, 28672, 8192), (64, 4096, 4096))
EXPERTS = ((65536, 2048, 2048, 64), (8192, 4096, 14336, 8), (16384, 2048, 1536, 128), (1024, 2048, 1536, 128))
LOGITS = ((4096, 128256), (8192, 32000))
ROWS = ((4096, 32000, "fp16"), (4096, 128256, "bf16"), (4096, 50257, "fp16"), (65536, 64, "fp16"), (8192, 1024, "fp32"))
HEADS = ((2, 4096, 32, 8, 128), (16, 1, 32, 8, 128), (1, 8192, 32, 8, 64))


@dataclass(frozen=True)
class Problem:
    """What is measured: the ways, what they compute, and how far from it they may be, in parts of the largest number.

    ``other``: the ways that compute something else, as `copied`. ``rows``: of results, how many are compared.
    """

    size: str
    ways: Ways
    want: Callable[[], torch.Tensor]
    other: frozenset[str] = field(default=frozenset({"copied"}))
    tolerance: float = 2e-2
    rows: int | None = None


def copied(read_bytes: int) -> Callable[[], Any]:
    """A copy that moves this number of bytes, half in and half out."""
    source = torch.empty(read_bytes // 2, dtype=torch.int8, device=DEVICE)
    return copy_of(source)


def copy_of(x: torch.Tensor) -> Callable[[], Any]:
    """A copy of a tensor."""
    target = torch.empty_like(x)
    return lambda: target.copy_(x)


def normal(*shape: int, dtype: torch.dtype = torch.half) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def launched(kernel: gr.Kernel, tensors: Iterable[Any], result: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call of a kernel, which writes a result."""
    arguments_ = tuple(tensors)

    def call() -> torch.Tensor:
        kernel(*arguments_)
        return result

    return call


# Configurations beside the chosen ones, by a short name


# Tiles of 16 rows of a warp, warps, stages, blocks that share k, stages on their way to registers.
SHAPES = (
    (2, (1, 8), 3, 1, 0), (2, (1, 8), 4, 1, 0), (2, (1, 4), 4, 1, 0), (1, (4, 2), 4, 2, 0), (2, (4, 2), 4, 2, 0),
    (2, (1, 8), 4, 1, 4), (2, (1, 8), 3, 1, 4), (2, (1, 8), 2, 1, 3), (2, (1, 16), 2, 1, 2), (1, (2, 8), 4, 1, 2),
    (1, (1, 16), 3, 1, 2), (1, (1, 8), 4, 1, 4), (4, (1, 8), 3, 1, 2), (4, (1, 8), 2, 2, 2), (2, (1, 4), 4, 1, 4),
    (2, (1, 4), 4, 2, 4), (2, (2, 4), 4, 1, 2), (2, (2, 4), 4, 2, 2), (1, (4, 2), 4, 2, 4),
)  # fmt: skip


def weights_configs(m: int, bits: int) -> dict[str, WeightsConfig]:
    """For products of few bits: a block's rows and depth, its stages, and the blocks that share k."""
    eights = -(-m // 8)
    common: dict[str, Any] = {"bits": bits, "group": 128 if bits == 4 else 64}
    common["tokens"] = next((t for t in (1, 2, 4) if t >= eights), 8)
    found = {}
    for tiles, warps, stages, cluster, ahead in SHAPES:
        with suppress(gr.GrapheneError):  # too much memory
            config = WeightsConfig(
                **common, tiles=tiles, warps=warps, stages=stages, cluster=cluster, ahead=min(ahead, 16 // bits)
            )
            name = f"{tiles}x{warps[0]} tiles, {warps[1]} deep, {stages} stages, cluster {cluster}"
            found[name + f", {config.ahead} ahead" * bool(ahead)] = config
    return found


@functools.cache
def weights_kernels(m: int, bits: int) -> dict[str, gr.Kernel]:
    """Kernels of these configurations, compiled side by side."""
    kernels = {name: weights_kernel(config) for name, config in weights_configs(m, bits).items()}
    if torch.cuda.is_available():
        arch = current_device().arch
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda kernel: kernel.compile(arch), kernels.values()))
    return kernels


def row_tiles(width: int, item_bytes: int, kept: bool) -> dict[str, RowTile]:
    """For long rows: threads, and parts at once; `kept`: also rows that stay in shared memory."""
    vector, found = 16 // item_bytes, {}
    for threads, unroll in itertools.product((256, 512, 1024), (2, 4, 8)):
        found[f"{threads} threads, {unroll} at once"] = RowTile(width, threads, 1, vector, "memory", unroll=unroll)
        if kept and width * item_bytes < 220 << 10:
            tile = RowTile(width, threads, 1, vector, "shared", unroll=unroll)
            found[f"{threads} threads, {unroll} at once, kept"] = tile
            found[f"{threads} threads, {unroll} at once, kept, last"] = replace(tile, evict="evict_last")
    return found


def grouped_configs() -> dict[str, GroupedConfig]:
    """For products of groups: tiles of both kernels, and of one of them the rows of tiles side by side."""
    found = {}
    for kernel, tile, warps, stages, panel in (
        ("gemm_sm80", (128, 128, 32), (2, 2), 4, 8), ("gemm_sm80", (32, 128, 32), (1, 4), 4, 8),
        ("gemm_sm90", (128, 256, 64), (8, 1), 4, 1), ("gemm_sm90", (128, 256, 64), (8, 1), 4, 4),
        ("gemm_sm90", (128, 256, 64), (8, 1), 4, 8), ("gemm_sm90", (128, 256, 64), (8, 1), 4, 16),
        ("gemm_sm90", (128, 192, 64), (8, 1), 4, 8), ("gemm_sm90", (128, 128, 64), (8, 1), 6, 8),
        ("gemm_sm90", (64, 256, 64), (4, 1), 4, 8),
    ):  # fmt: skip
        with suppress(gr.GrapheneError):
            found[f"{kernel} {'x'.join(map(str, tile))}, {stages} stages, panels of {panel}"] = GroupedConfig(
                tile=tile, warps=warps, stages=stages, kernel=kernel, panel=panel
            )
    return found


# Problems


def linear(theirs: Any, variants: bool, fp8: bool) -> Iterator[Problem]:
    """Few tokens times weights of 4 bits in groups of 128, or of fp8 with scales of columns."""
    for m, n, k in PRODUCTS:
        x = normal(m, k)
        if fp8:
            numbers, scale = normal(n, k).to(torch.float8_e4m3fn), (normal(n).abs() + 0.5) / 64
            wide = numbers.half() * scale[:, None]
        else:
            numbers = torch.randint(0, 16, (n, k), device=DEVICE)
            scale = (normal(k // 128, n).abs() + 0.5) / 64
            wide = ((numbers.half() - 8).reshape(n, -1, 128) * scale.T[..., None]).reshape(n, k)
        weight = ops.pack_weights(numbers)
        ways: Ways = {
            "graphene": lambda x=x, w=weight, s=scale: ops.quantized_linear(x, w, s),
            "cublas_fp16": lambda x=x, w=wide: x @ w.T,
            "copied": copied(weight.nbytes + scale.nbytes + x.nbytes),
        }
        if theirs is not None and not fp8:
            shifts = torch.arange(0, 32, 4, device=DEVICE)
            words = (numbers.T.reshape(-1, 8, n) << shifts[None, :, None]).sum(1).to(torch.int32).contiguous()
            ways["triton"] = lambda x=x, w=words, s=scale: theirs.int4_linear(x, w, s)
        if variants:
            y, lines = normal(m, n), scale if scale.dim() == 2 else scale.expand(k // 64, n)
            for name, kernel in weights_kernels(m, 8 if fp8 else 4).items():
                ways[name] = launched(kernel, (x, weight, lines, y), y)
        yield Problem(f"{m}x{n}x{k}", ways, lambda x=x, w=wide: x.float() @ w.float().T)


def shared_out(tokens: int, groups: int, kind: str) -> torch.Tensor:
    """Where groups of tokens end."""
    if kind == "balanced":
        sizes = torch.full((groups,), tokens // groups, device=DEVICE)
        sizes[-1] += tokens - int(sizes.sum())
    else:
        weights = torch.softmax(torch.randn(groups, device=DEVICE) * (1.5 if kind == "skewed" else 0), 0)
        sizes = torch.bincount(torch.multinomial(weights, tokens, True), minlength=groups)
    return sizes.cumsum(0).to(torch.int32)


def grouped(theirs: Any, variants: bool) -> Iterator[Problem]:
    """Tokens of experts, beside one product of as many multiply-adds."""
    for (t, k, n, groups), kind in itertools.product(EXPERTS, GROUPS):
        a, b, offsets = normal(t, k), normal(groups, k, n) / 64, shared_out(t, groups, kind)
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
        if variants:
            y = normal(t, n)
            for name, config in grouped_configs().items():
                ways[name] = launched(grouped_kernel(config), (a, b, offsets, y), y)
        yield Problem(f"{t}x{n}x{k} of {groups}, {kind}", ways, loop, frozenset({"one_product"}), 3e-2)


def entropy(_: Any, variants: bool) -> Iterator[Problem]:
    """The loss of logits, and then its gradient."""
    functional = torch.nn.functional
    for (rows, classes), (name, dtype) in itertools.product(LOGITS, DTYPES.items()):
        x, target = normal(rows, classes, dtype=dtype), torch.randint(0, classes, (rows,), device=DEVICE)
        loss, lse, g = (torch.rand(rows, device=DEVICE) for _ in range(3))
        tiles = row_tiles(classes, dtype.itemsize, kept=False) if variants else {}
        forward: Ways = {
            "graphene": lambda x=x, t=target: ops.cross_entropy(x, t, reduction="none"),
            "torch": lambda x=x, t=target: functional.cross_entropy(x.float(), t, reduction="none"),
            "copied": copy_of(x),
        }
        for text, tile in tiles.items():
            kernel = cross_entropy_kernel(CrossEntropyConfig(tile, getattr(gr, name)))
            forward[text] = launched(kernel, (x, target, loss, lse, LEFT_OUT), loss)

        def want(x=x, target=target) -> torch.Tensor:
            parts = zip(x.split(256), target.split(256), strict=True)  # in fp32, which has no room for all of them
            return torch.cat([functional.cross_entropy(a.float(), b, reduction="none") for a, b in parts])

        yield Problem(f"{rows}x{classes} {name}", forward, want, tolerance=2e-3)

        y = torch.empty_like(x)
        lse = torch.cat([part.float().logsumexp(-1) for part in x.split(256)])
        back: Ways = {
            "graphene": lambda x=x, t=target, s=lse, g=g: GRADIENT(g, x, t, s, LEFT_OUT, 0.0, 0.0),
            "copied": copy_of(x),
        }
        for text, tile in tiles.items():
            kernel = cross_entropy_backward_kernel(CrossEntropyConfig(tile, getattr(gr, name)))
            back[text] = launched(kernel, (x, target, lse, g, y, LEFT_OUT), y)

        def gradient(x=x, target=target, g=g) -> torch.Tensor:
            p = torch.softmax(x[:64].float(), -1)
            p.scatter_add_(1, target[:64, None], torch.full_like(p[:, :1], -1))
            return p * g[:64, None]

        yield Problem(f"{rows}x{classes} {name}, gradient", back, gradient, rows=64)

        def both(loss, x=x, target=target, g=g) -> torch.Tensor:
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad((loss(leaf, target, reduction="none") * g).sum(), leaf)[0]

        def eager(x, target, **options: Any) -> torch.Tensor:
            return functional.cross_entropy(x.float(), target, **options)

        trained: Ways = {
            "graphene": lambda f=both: f(ops.cross_entropy),
            "torch": lambda f=both, eager=eager: f(eager),
            "copied": copy_of(x),
        }
        yield Problem(f"{rows}x{classes} {name}, with its gradient", trained, gradient, rows=64)


def log_softmax(_: Any, variants: bool) -> Iterator[Problem]:
    """The logarithm of the softmax of rows."""
    for rows, width, name in ROWS:
        x = normal(rows, width, dtype=DTYPES[name])
        ways: Ways = {
            "graphene": lambda x=x: ops.log_softmax(x, -1),
            "torch": lambda x=x: torch.log_softmax(x, -1),
            "copied": copy_of(x),
        }
        if variants and width >= 4096 and width % 8 == 0:
            y = torch.empty_like(x)
            for text, tile in row_tiles(width, x.element_size(), kept=True).items():
                ways[text] = launched(log_softmax_kernel(SoftmaxConfig(tile, getattr(gr, name))), (x, y), y)
        yield Problem(f"{rows}x{width} {name}", ways, lambda x=x: torch.log_softmax(x[:256].float(), -1), rows=256)


def rotary(*_: Any) -> Iterator[Problem]:
    """Queries and fewer keys, by the angles of fp16."""
    for batch, tokens, heads, of_keys, width in HEADS:
        q, k = normal(batch, tokens, heads, width), normal(batch, tokens, of_keys, width)
        angles = torch.randn(1, tokens, width // 2, device=DEVICE).repeat(1, 1, 2)
        cos, sin, to = angles.cos().half(), angles.sin().half(), (torch.empty_like(q), torch.empty_like(k))

        def eager(x=q, c=cos[:, :, None], s=sin[:, :, None]) -> torch.Tensor:
            a, b = x.chunk(2, -1)
            return x * c + torch.cat([-b, a], -1) * s

        def both(f=eager, q=q, k=k) -> torch.Tensor:
            f(k)
            return f(q)

        ways: Ways = {
            "graphene": lambda q=q, k=k, c=cos, s=sin: ops.rotary(q, k, c, s)[0],
            "torch": both,
            "copied": lambda q=q, k=k, to=to: (to[0].copy_(q), to[1].copy_(k)),
        }
        yield Problem(f"{batch}x{tokens}x({heads}+{of_keys})x{width} fp16", ways, eager)


def problems(theirs: Any, variants: bool = False) -> dict[str, Callable[[], Iterator[Problem]]]:
    """By name: what yields the problems. The targets of each come first."""
    return {
        "int4": lambda: linear(theirs, variants, fp8=False), "entropy": lambda: entropy(theirs, variants),
        "grouped": lambda: grouped(theirs, variants), "log_softmax": lambda: log_softmax(theirs, variants),
        "rotary": lambda: rotary(theirs), "fp8": lambda: linear(theirs, variants, fp8=True),
    }  # fmt: skip


def one(problem: Problem, repeats: int) -> dict[str, Any]:
    """The times of a problem's ways, and why others have none. Raises RuntimeError where Graphene's result is wrong."""
    want, good, failed = problem.want().float(), {}, {}
    most = float(want.abs().max())
    for name, call in problem.ways.items():
        try:
            got = call()
            if name not in problem.other:
                error = float((got[: problem.rows].float() - want).abs().max()) / most
                if not error <= problem.tolerance:  # or NaN
                    raise RuntimeError(f"another result than PyTorch's, by {error:.1e} of its largest number")
            good[name] = captured(call)
        except Exception as e:
            if name == "graphene":
                raise
            failed[name] = f"{type(e).__name__}: {e}"[:200]
    times = measure(good, repeats)
    found: dict[str, Any] = {
        "us": times,
        "speed": {n: t / times["graphene"] for n, t in times.items() if n != "graphene"},
    }
    return found | ({"failed": failed} if failed else {})


def main() -> int:
    """Prints a line of JSON a problem; with --json also writes them all. Returns the exit status."""
    args = arguments(
        __doc__, tuple(problems(None)),
        more=lambda p: p.add_argument("--variants", action="store_true", help="also other configurations"),
    )  # fmt: skip
    if not has_device():
        return 2
    try:
        import serving_triton as theirs
    except ImportError:
        theirs = None
    deadline = Deadline(args.seconds)
    figures: dict[str, Any] = {"benchmark": "serving", "problems": {}}
    for name, make in problems(theirs, args.variants).items():
        if name not in args.only:
            continue
        if deadline.over():
            figures.setdefault("left_out", []).append(name)
            continue
        for problem in make():
            what = f"{name} {problem.size}"
            try:
                found = one(problem, args.repeats)
            except Exception as e:  # the others are still measured
                found = {"error": f"{type(e).__name__}: {e}"[:300]}
            figures["problems"][what] = found
            torch.cuda.empty_cache()
            print(json.dumps({what: found}), flush=True)
            write(args.json, figures)  # at once: a run may be ended
            if deadline.over():
                figures.setdefault("left_out", []).append(f"{name} after {problem.size}")
                break
    write(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
