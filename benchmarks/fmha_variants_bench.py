"""Variants of attention's kernels for sm_90a beside the chosen ones: tiles, consumers, who copies.

    python -m benchmarks fmha_variants [--json out.json] [--only packed,padded,forward,gradient] [--seconds 120]
    python -m benchmarks fmha_variants --compile    # no GPU: registers and spills of every variant
    python -m benchmarks fmha_variants --try        # no GPU: small problems on the simulator

A selection that is to change takes its figures from here. Kernels are launched by themselves, in CUDA graphs, all of a
case alternately in one process, on random data, the L2 cache filled with other data before each launch; times are
medians. Beside them stand the operator, with what else it launches, and cuDNN's through torch. Every result is compared
with float64, the first and the last head of the first sequence. Problems that --seconds leaves no time for are left
out, and the last line says which.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from figures import Deadline, has_device, write
from timing import captured, measure
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import graphene as gr
from graphene import ops
from graphene.kernels.attention.forward import ForwardConfig, attention_forward_kernel
from graphene.kernels.attention.key_tiles import attention_tiles_kernel, list_elems
from graphene.kernels.attention.keys_sm90 import KeysSm90, attention_keys_gradient_sm90
from graphene.kernels.attention.problem import LOG2E, Attention, Extra
from graphene.kernels.attention.product_sm90 import ProductSm90, attention_queries_product_sm90
from graphene.kernels.attention.sm90 import ForwardSm90, attention_forward_sm90
from graphene.kernels.attention.sums import attention_rows_kernel

HEAD = 64  # elements of a head, unless a case says otherwise
LEAST_SECONDS = 6  # for a problem
REFERENCE_ROWS = 1024
Way = Callable[[], Any]
Variants = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Batch, queries and keys, heads, elements of a head."""

    b: int
    s: int
    h: int = 16
    d: int = HEAD

    def __str__(self) -> str:
        return f"b{self.b} h{self.h} s{self.s} d{self.d}"


def small_blocks(what: Attention) -> Variants:
    """A block for each tile: with a warp that copies, and without one."""
    made = {}
    for consumers, keys, stages in (
        (1, 48, 2),
        (1, 64, 2),
        (1, 80, 2),
        (1, 96, 2),
        (1, 128, 2),
        (2, 64, 3),
    ):
        one = ForwardSm90(what, keys, consumers, stages, queries=1, apart=False, persistent=False)
        if (consumers, keys) == (1, 64):
            made[f"block {consumers}x{keys} stages {stages}"] = one
        made[f"block {consumers}x{keys} stages {stages}, own copies"] = replace(one, copier=False)
    return made


def persistent(what: Attention) -> Variants:
    """Two and three consumers, uneven tiles, other stages and widths."""
    if what.D > HEAD:
        return {"two": ForwardSm90(what, 128, 2, 2)}
    two = ForwardSm90(what, 128, 2, 3)
    made: Variants = {
        "two": two,
        "three": (three := replace(two, consumers=3)),
        "two, no turns": replace(two, turns=False),
    }
    if not three.differ:
        made["uneven"] = replace(three, uneven=True)
    return made


def of_packed() -> Variants:
    what = Attention(HEAD, varlen=True, alike=True)
    made = small_blocks(what)
    made |= {f"{n}, ordered": replace(c, longest_first=True) for n, c in made.items() if c.BN <= 80 and not c.copier}
    return {**made, "mma.sync": ForwardConfig(what, 64, 64, 4, q_in_registers=False)}


def of_padded() -> Variants:
    what = Attention(HEAD, mask=Extra(gr.u8, False, 2), alike=True)
    made = small_blocks(what)
    for n, c in [(n, c) for n, c in made.items() if c.BN <= 80 and c.consumers == 1 and not c.copier]:
        made |= {f"{n}, ordered": replace(c, longest_first=True), f"{n}, bits": replace(c, bits=True)}
        made[f"{n}, bits, ordered"] = replace(c, bits=True, longest_first=True)
    made |= {f"persistent {c}x{n}": ForwardSm90(what, n, c, 3) for c, n in ((2, 64), (3, 64), (3, 96), (2, 128))}
    return {**made, "mma.sync": ForwardConfig(what, 128, 64, 4, listed=True)}


def list_of(config: Any) -> tuple[Attention, int, int, bool]:
    """The kernel that makes its list of tiles."""
    return config.what, config.BM, config.BN, getattr(config, "bits", False)


def of_keys(causal: bool) -> Variants:
    first = KeysSm90(Attention(HEAD, right=causal, alike=True), 1, 4, held=2)
    two = replace(first, keys=2)
    return {
        "keys": first, "keys, turns": replace(first, turns=True), "keys, 2 tiles": two,
        "keys, 2 tiles, turns": replace(two, turns=True), "keys, 2 tiles, 3 stages": replace(two, stages=3),
        "keys, 2 tiles, 3 stages, turns": replace(two, stages=3, turns=True),
    }  # fmt: skip


def of_products(causal: bool) -> Variants:
    first = ProductSm90(Attention(HEAD, right=causal, alike=True), 4, 4, persistent=False)
    made = {f"product {c}, {s} stages": replace(first, consumers=c, stages=s) for c, s in ((4, 4), (2, 4))}
    return made | {f"{n}, persistent": replace(c, persistent=True) for n, c in made.items()}


FORWARD = (
    (Sizes(32, 384), False), (Sizes(2, 4096), False), (Sizes(8, 1024), True), (Sizes(64, 128, 12), False),
    (Sizes(2, 4096), True), (Sizes(128, 512, 12), False), (Sizes(4, 256), False), (Sizes(4, 512), True),
)  # fmt: skip


def of_forward(sizes: Sizes, causal: bool) -> Variants:
    what = Attention(sizes.d, right=causal, alike=True)
    return {**persistent(what), **(small_blocks(what) if sizes.d <= HEAD else {})}


class Built:
    """Kernels, compiled by several threads, with their registers and spills."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor()
        self.made: dict[Any, Future[Any]] = {}

    def start(self, config: Any) -> Future[Any]:
        if config not in self.made:
            self.made[config] = self.pool.submit(_build, config)
        return self.made[config]

    def kernel(self, config: Any) -> Any:
        return self.start(config).result()[0]

    def numbers(self, config: Any) -> dict[str, int]:
        _, binary = self.start(config).result()
        return {"registers": binary.registers, "spill_bytes": binary.spill_bytes}


MAKERS: dict[type, Callable[..., gr.Kernel]] = {
    ForwardSm90: attention_forward_sm90, ForwardConfig: attention_forward_kernel, Attention: attention_rows_kernel,
    KeysSm90: attention_keys_gradient_sm90, ProductSm90: attention_queries_product_sm90,
}  # fmt: skip


def _build(config: Any) -> tuple[gr.Kernel, Any]:
    kernel = attention_tiles_kernel(*config) if isinstance(config, tuple) else MAKERS[type(config)](config)
    return kernel, kernel.compile("sm_90a")


class Case:
    """Collects the ways of a problem, and measures them."""

    def __init__(self, table: str, case: str, built: Built, device: str, repeats: int) -> None:
        self.table, self.case, self.built, self.device, self.repeats = table, case, built, device, repeats
        self.ways: dict[str, Way] = {}
        self.more: dict[str, dict[str, Any]] = {}

    def add(self, name: str, run: Way, check: Callable[[], float] | None, config: Any = None) -> None:
        """A way; `check`: its error after a call. A wrong one is not measured."""
        try:
            run()
        except gr.LaunchError as e:
            self.more[name] = {"failure": str(e).partition("\n")[0]}
            return
        error = 0.0 if check is None else check()
        self.more[name] = {"error": error} | ({} if config is None else self.built.numbers(config))
        if error < 2e-3:
            self.ways[name] = run if self.device == "cpu" else captured(run)
        else:
            self.more[name]["failure"] = f"wrong by {error:.1e}"

    def rows(self, operations: float = 0) -> list[dict[str, Any]]:
        """What is kept of it, printed too, the fastest first."""
        times = {} if self.device == "cpu" else measure(self.ways, self.repeats)
        made = []
        for name in sorted(self.more, key=lambda n: times.get(n, float("inf"))):
            row = {"table": self.table, "case": self.case, "peer": name, **self.more[name]}
            if name in times:
                row["us"] = times[name]
            if operations and times.get(name):
                row["tflops"] = operations / times[name] / 1e6
            made.append(row)
            us = f"{row['us']:8.1f} us" if "us" in row else ""
            print(f"{self.table:9} {self.case:28} {name:48} {us:11}  {row.get('failure', '')}", flush=True)
        return made


def tensors(sizes: Sizes, device: str, n: int = 3) -> list[Any]:
    return [torch.randn(sizes.b, sizes.s, sizes.h, sizes.d, device=device).half() for _ in range(n)]


def cudnn(q: Any, k: Any, v: Any, **named: Any) -> Any:
    """torch's by cuDNN, of (batch, heads, seq, dim) views; on a CPU any."""
    wide = [t.transpose(1, 2) for t in (q, k, v)]
    if not q.is_cuda:
        return functional.scaled_dot_product_attention(*(t.float() for t in wide), **named).to(q.dtype)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return functional.scaled_dot_product_attention(*wide, **named)


def exact(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """In fp64 the first rows of the first and the last head, (rows, 2, dim), of one sequence (seq, heads, dim)."""
    made = []
    for h in (0, q.shape[1] - 1):
        s = q[:REFERENCE_ROWS, h].double() @ k[:, h].double().T * q.shape[2] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        made.append(torch.softmax(s, 1) @ v[:, h].double())
    return torch.stack(made, 1)


def off(got: Any, want: Any) -> float:
    """The relative error of what `exact` gives."""
    got = got[: want.shape[0]][:, [0, -1]].double()
    return float((got - want).norm() / want.norm())


def lengths_of(small: bool) -> Any:
    least, most, count = (40, 80, 2) if small else (48, 385, 32)
    return torch.randint(least, most, (count,), generator=torch.Generator().manual_seed(1))


def packed(built: Built, device: str, repeats: int, small: bool) -> Iterator[dict[str, Any]]:
    """Lengths in any order, and the longest first, which is what a sorted batch would give."""
    for order in ("", ", longest first"):
        lengths = lengths_of(small)
        lengths = lengths.sort(descending=True).values if order else lengths
        most, n, first = (80 if small else 384), int(lengths.sum()), int(lengths[0])
        starts = torch.tensor([0, *lengths.cumsum(0)], dtype=torch.int32, device=device)
        q, k, v = (torch.randn(n, 2 if small else 16, HEAD, device=device).half() for _ in range(3))
        want = exact(q[:first], k[:first], v[:first])
        case = Case("packed", f"s48...384 d{HEAD}{order}", built, device, repeats)
        for name, config in of_packed().items():
            out = torch.zeros_like(q)
            args = (q, k, v, starts, starts, out, HEAD**-0.5 * LOG2E, most)
            case.add(name, functools.partial(built.kernel(config), *args), lambda o=out, w=want: off(o, w), config)
        whole = functools.partial(ops.attention_varlen, q, k, v, starts, starts, most, most)
        case.add("ops.attention_varlen", whole, None)
        yield from case.rows()


def padded(built: Built, device: str, repeats: int, small: bool) -> Iterator[dict[str, Any]]:
    """A mask of keys: attention alone, the list of tiles alone, and both."""
    lengths = lengths_of(small)
    sizes = Sizes(len(lengths), 96, 2) if small else Sizes(32, 384)
    q, k, v = tensors(sizes, device)
    mask = torch.arange(sizes.s, device=device)[None] < lengths.to(device)[:, None]
    numbers = mask.view(torch.uint8)[:, None, None, :]
    n = int(lengths[0])
    want, out = exact(q[0], k[0, :n], v[0, :n]), torch.zeros_like(q)
    case = Case("padded", f"s48...384 d{HEAD}", built, device, repeats)
    for name, config in of_padded().items():
        lists = built.kernel(list_of(config))
        entries = list_elems(sizes.s, config.BN, list_of(config)[3])
        T = torch.zeros(sizes.b, 1, 1, entries, dtype=torch.int32, device=device)
        of_heads = (t.expand(-1, sizes.h, -1, -1) for t in (numbers, T))
        make = functools.partial(lists, numbers, T)
        run = functools.partial(built.kernel(config), q, k, v, *of_heads, out, HEAD**-0.5 * LOG2E)

        def both(make: Way = make, run: Way = run) -> None:
            make()
            run()

        case.add(f"{name}, with the list", both, lambda: off(out[0], want), config)
        case.add(name, run, None, config)
        if name == "mma.sync" or name.endswith("1x64 stages 2, own copies, bits"):
            case.add("the list" if name == "mma.sync" else "the list with bits", make, None)
    case.add("ops.attention", lambda: ops.attention(q, k, v, mask=mask), None)
    yield from case.rows()


def forward(built: Built, device: str, repeats: int, small: bool, index: int) -> Iterator[dict[str, Any]]:
    sizes, causal = FORWARD[index]
    case = Case("forward", f"{sizes}{' causal' if causal else ''}", built, device, repeats)
    variants = of_forward(sizes, causal)
    sizes = Sizes(1, 140, 1, sizes.d) if small else sizes
    q, k, v = tensors(sizes, device)
    want = exact(q[0], k[0], v[0], causal)
    for name, config in variants.items():
        out = torch.zeros_like(q)
        args = (q, k, v, out, sizes.d**-0.5 * LOG2E, *([0] if causal else []))
        case.add(name, functools.partial(built.kernel(config), *args), lambda o=out: off(o[0], want), config)
    case.add("ops.attention", lambda: ops.attention(q, k, v, causal=causal), None)
    case.add("cuDNN", lambda: cudnn(q, k, v, is_causal=causal), None)
    yield from case.rows(4 * sizes.b * sizes.h * sizes.s**2 * sizes.d / (2 if causal else 1))


def gradient(built: Built, device: str, repeats: int, small: bool, causal: bool = False) -> Iterator[dict[str, Any]]:
    """The kernels of the gradient one by one, and all of it."""
    sizes = Sizes(1, 128, 1) if small else Sizes(2, 4096)
    g, *given = tensors(sizes, device, 4)
    inputs = [t.requires_grad_() for t in given]
    ours, theirs = ops.attention(*inputs, causal=causal), cudnn(*inputs, is_causal=causal)
    grads = [functools.partial(torch.autograd.grad, y, inputs, dy, retain_graph=True)
             for y, dy in ((ours, g), (theirs, g.transpose(1, 2)))]  # fmt: skip
    want = grads[1]()
    q, k, v = (t.detach() for t in inputs)
    out, lse = ops.attention(q, k, v, causal=causal, return_lse=True)
    delta = (out.float() * g.float()).sum(-1).transpose(1, 2).contiguous()
    tiles = -(-sizes.s // 64)
    rows = torch.zeros(sizes.b, sizes.h, tiles, 128, device=device)
    saved = torch.zeros(sizes.b * sizes.h, tiles, -(-sizes.s // 128) * 128, 64, dtype=torch.float16, device=device)
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))

    def error(*pairs: tuple[Any, Any]) -> float:
        return max(float((x.double() - y.double()).norm() / y.double().norm()) for x, y in pairs)

    title = f"{sizes}{' causal' if causal else ''}"
    case = Case("gradient", title, built, device, repeats)
    what, scale, right = Attention(HEAD), HEAD**-0.5, [0] if causal else []
    case.add("rows", functools.partial(built.kernel(what), delta, lse, rows), None, what)
    for name, config in of_keys(causal).items():
        run = functools.partial(built.kernel(config), g, rows, q, k, v, saved, dk, dv, scale * LOG2E, scale, *right, 0)
        case.add(name, run, lambda: error((dk, want[1]), (dv, want[2])), config)
    for name, config in of_products(causal).items():
        run = functools.partial(built.kernel(config), k, saved, dq, scale, *right, 0)
        case.add(name, run, lambda: error((dq, want[0])), config)
    yield from case.rows()
    if device != "cpu":  # autograd runs eagerly
        times = measure({"ops.attention": grads[0], "cuDNN": grads[1]}, repeats)
        yield from ({"table": "gradient", "case": f"{title} all", "peer": n, "us": t} for n, t in times.items())


def configs(table: str) -> list[Any]:
    """All that a table launches."""
    if table == "packed":
        return list(of_packed().values())
    if table == "padded":
        made = list(of_padded().values())
        return [*made, *dict.fromkeys(map(list_of, made))]
    if table == "gradient":
        made = [c for causal in (False, True) for c in (*of_keys(causal).values(), *of_products(causal).values())]
        return [Attention(HEAD), *made]
    return [c for at in FORWARD for c in of_forward(*at).values()]


TABLES = ("packed", "padded", "forward", "gradient")


def problems(names: set[str]) -> Iterator[tuple[str, Callable[..., Iterator[dict[str, Any]]]]]:
    """Those of some tables, in the order in which they are measured."""
    for name in TABLES:
        if name in names and name == "forward":
            yield from ((f"forward {i}", functools.partial(forward, index=i)) for i in range(len(FORWARD)))
        elif name in names:
            yield name, {"packed": packed, "padded": padded, "gradient": gradient}[name]
            if name == "gradient":
                yield "gradient, causal", functools.partial(gradient, causal=True)


def main() -> int:
    """Prints the figures; with --json also writes them, after each problem. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", default=",".join(TABLES), help="some of " + ",".join(TABLES))
    parser.add_argument("--repeats", type=int, default=9, help="samples of every way")
    parser.add_argument("--seconds", type=float, default=120, help="no problem begins later than shortly before")
    parser.add_argument("--compile", action="store_true", help="only compile, and print registers and spills")
    parser.add_argument("--try", dest="small", action="store_true", help="small problems on the simulator")
    args = parser.parse_args()
    deadline = Deadline(args.seconds)
    names = set(args.only.split(","))
    if unknown := names - set(TABLES):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if not (args.compile or args.small or has_device()):
        return 2
    built = Built()
    all_of = list(dict.fromkeys(c for t in TABLES if t in names for c in configs(t)))
    for config in all_of:
        built.start(config)
    if args.compile:
        for config in all_of:
            n = built.numbers(config)
            print(f"{n['registers']:4} registers {n['spill_bytes']:5} bytes spilled  {config}", flush=True)
        return 0
    torch.manual_seed(0)
    made: list[dict[str, Any]] = []
    skipped = []
    for name, run in problems(names):
        if deadline.over(LEAST_SECONDS):
            skipped.append(name)
            continue
        made += run(built, "cpu" if args.small else "cuda", args.repeats, args.small)
        with contextlib.redirect_stdout(None):
            write(args.json, {"benchmark": "fmha_variants", "rows": made})
    print("left out:", ", ".join(skipped) or "nothing")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
