"""Which tile of gemm_sm90 is the fastest: of epilogues, of shapes whose rounds are hard to fill; what copies cost.

    python benchmarks/gemm_tiles_bench.py [--json out.json] [--only epilogues,shapes,...] [--seconds 90] [--list]

Every table has groups of ways that take turns, each in a CUDA graph of several calls on random operands in rotation;
the figure is the median. What a way computed in this run is compared with PyTorch. A way that spills, does not
launch, or is wrong is left out, with the reason.

- epilogues: of three products all epilogues beside the plain product and cuBLASLt, by the tile that is chosen and by
  those of the model's short list. "zeros": the same on zero operands, which need little power, so that the clock is
  not slowed: what an epilogue costs there is time, what it costs only on random operands is power.
- instructions: a product with an epilogue of a number of operations of each element, and on zero operands.
- shapes: of products with few tiles, those of the short list and more ways to cut k, beside cuBLAS.
- copies: the copy of odd operands to longer lines, by other ways of its bytes; alone, and as a part of a product.

--list prints the groups and their ways, and needs no GPU. --seconds begins no group after that time.
"""

from __future__ import annotations

import argparse
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from figures import Deadline, arguments, has_device, write
from gemm_bench import Product
from timing import in_graphs

import graphene as gr
from graphene import select
from graphene.kernels import GemmConfig, gemm_launches
from graphene.kernels.gemm.operand import access, matrix
from graphene.kernels.gemm.pad import PADDED_MOST
from graphene.select import select_gemm, sm90_time
from graphene.select.device import H200
from graphene.select.gemm import GEMM, GemmProblem, GemmTile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Size = tuple[int, int, int]
EPILOGUES: dict[str, dict[str, Any]] = {
    "plain": {}, "bias": {"bias": True}, "relu": {"bias": True, "activation": "relu"},
    "gelu": {"bias": True, "activation": "gelu"}, "gelu_tanh": {"bias": True, "activation": "gelu_tanh"},
    "silu": {"bias": True, "activation": "silu"},
    "silu + residual": {"bias": True, "activation": "silu", "residual": True},
}  # fmt: skip
BY_TILE = ("plain", "gelu", "silu + residual")
FUSED: tuple[Size, ...] = ((12288, 3072, 768), (4096, 4096, 4096), (5376, 5376, 2048))
SHAPES: tuple[tuple[Size, str], ...] = (
    ((768, 768, 8192), "TN"), ((200, 6144, 4096), "TN"), ((128, 8872, 9792), "NN"), ((64, 64, 65536), "TN"),
    ((256, 8192, 8192), "TN"), ((64, 8192, 8192), "TT"), ((1000, 1000, 1000), "TN"), ((256, 1024, 8192), "TN"),
    ((384, 11008, 4096), "TN"), ((32, 8192, 8192), "TN"),
)  # fmt: skip
ODD: tuple[Size, ...] = ((1023, 1025, 1027), (257, 4099, 1031), (4097, 4097, 4097))
CHAINS = (1, 2, 4, 6, 8, 12, 16, 24)
CUTS, PARTS = (2, 3, 4, 6, 8), (2, 3, 4, 5, 6, 7, 8, 12)
FORMS = (  # rows, columns, warps: tiles whose k may be cut
    (128, 256, (8, 1)), (128, 192, (8, 1)), (128, 144, (8, 1)), (128, 128, (8, 1)), (128, 96, (8, 1)),
    (64, 256, (4, 1)), (64, 128, (4, 1)), (64, 64, (4, 1)), (256, 64, (1, 4)), (208, 64, (1, 4)), (128, 64, (1, 4)),
    (112, 64, (1, 4)), (64, 64, (1, 4)), (32, 64, (1, 4)), (208, 128, (1, 8)), (112, 128, (1, 8)),
)  # fmt: skip
COPIES: dict[str, dict[str, Any]] = {
    "vectors of 8": {"wide": 8}, "vectors of 16": {"wide": 16}, "vectors of 4": {"wide": 4},
    "vectors of 8, 32 steps": {"wide": 8, "steps": 32}, "elements": {"wide": 2},
    "elements, 8 steps": {"wide": 2, "steps": 8},
    "shared": {"shared": True}, "shared, 32 steps": {"shared": True, "steps": 32},
    "shared, vectors of 8": {"shared": True, "wide": 8}, "shared, 4 rows": {"shared": True, "rows": 4},
}  # fmt: skip


@dataclass
class Group:
    """Ways of one problem that take turns: configurations by name; ``peers``: whether PyTorch takes part, too."""

    table: str
    case: str
    size: Size
    ways: dict[str, GemmConfig]
    peers: bool = True
    zeros: bool = False


def problem(size: Size, order: str = "TN", **terms: Any) -> GemmProblem:
    """Of contiguous operands: their lines decide the alignment."""
    M, N, K = size
    lengths = (K if order[0] == "T" else M, K if order[1] == "N" else N, N)
    a, b, c = (math.gcd(2 * n, 16) for n in lengths)
    return GemmProblem(M, N, K, order=order, align=(a, b, c), **terms)


def chosen(p: GemmProblem, device: str) -> GemmConfig:
    """What an operator would take on a device."""
    return select_gemm(p.m, p.n, p.k, order=p.order, align=p.align, bias=p.bias, residual=p.residual,
                       activation=p.activation, device=device)  # fmt: skip


def by_tile(p: GemmProblem, count: int) -> dict[str, GemmConfig]:
    """The model's short list."""
    return {str(tile): tile.config(p) for tile, _, _ in select.rank(GEMM, p, H200, count).short_list}


def further(p: GemmProblem) -> Iterator[GemmTile]:
    """Ways to cut k that the model does not try: more blocks of a cluster, and parts that fill several rounds."""
    sms = H200.sm_count
    for bm, bn, warps in FORMS:
        if bm >= 2 * p.m or bn >= 2 * p.n:
            continue
        tiles = -(-p.m // bm) * -(-p.n // bn)
        tile = GemmTile((bm, bn, 64), warps, 2, 8 if warps[1] == 1 else 1, kernel="gemm_sm90")
        found = [replace(tile, cluster=(1, 1, n)) for n in CUTS if 0.6 * sms <= tiles * n <= sms]
        for n in PARTS:
            rounds = -(-tiles * n // sms)
            if rounds <= 3 and tiles * n >= 0.75 * rounds * sms and p.k >= 4 * n * 64:
                found.append(replace(tile, split_k=n))
        for t in found:
            if sm90_time.refused(t, p, H200) is None:
                most = sm90_time.staged(t, p, H200)
                if most.stages >= 4:  # fewer leave tensor cores idle
                    yield most


def chain(n: int) -> Callable[[Any], Any]:
    """An activation of n operations, one after the other."""

    def activation(x: Any) -> Any:
        for _ in range(n):
            x = gr.fma(x, 0.75, 0.25)
        return x

    return activation


def copy_kernel(wide: int = 16, steps: int = 16, rows: int = 8, shared: bool = False) -> gr.Kernel:
    """As gemm_pad for one matrix of fp16: lines (lines,length) to (lines,padded), filled up with zeros.

    A warp copies `steps` elements a lane of a line; `rows` lines are a block's. It stores `wide` bytes a lane at once.
    With `shared` lanes side by side load elements side by side, and meet in shared memory.
    """
    segment, vector = 32 * steps, wide // 2
    with gr.Kernel("copy_lines") as kernel:
        lines, length = gr.sym("lines", max=PADDED_MOST), gr.sym("length", max=PADDED_MOST)
        padded = gr.sym("padded", multiple_of=8, max=PADDED_MOST)
        x, y = (matrix(kind, n, (lines, width), [], gr.fp16, align)
                for kind, n, width, align in ((gr.input, "X", length, 2), (gr.output, "Y", padded, 16)))  # fmt: skip
        across = gr.max(gr.ceil_div(padded, segment), 1)
        (block,), (tx, ty) = gr.blocks(across * gr.ceil_div(lines, rows)).indices(), gr.threads(32, rows).indices()
        row, part, narrow = block // across * rows + ty, block % across, 1 if shared else vector
        n = steps // narrow
        r = gr.alloc("r", [n, narrow], gr.fp16, gr.RF)
        with gr.if_(row < lines):
            for j in range(n):  # all of them on their way before the first is stored
                source = x.tile([1, narrow])[row, part * (segment // narrow) + tx + 32 * j][0, :]
                gr.move(r[j, :], source, atom=access("ld.global", 2))
        if shared:
            s, v = gr.alloc("s", [rows, segment], gr.fp16, gr.SH), gr.alloc("v", [1, vector], gr.fp16, gr.RF)
            for j in range(n):
                gr.move(s.tile([1, 1])[ty, tx + 32 * j][0, :], r[j, :], atom=access("st.shared", 2))
            gr.barrier()
        with gr.if_(row < lines):
            for j in range(steps // vector):
                if shared:
                    gr.move(v[0, :], s.tile([1, vector])[ty, tx + 32 * j][0, :], atom=access("ld.shared", wide))
                to = y.tile([1, vector])[row, part * (segment // vector) + tx + 32 * j][0, :]
                gr.move(to, v[0, :] if shared else r[j, :], atom=access("st.global", wide))
    return kernel


def groups(table: str, device: str, count: int) -> Iterator[Group]:
    """The groups of a table of products."""
    if table == "epilogues":
        for size in FUSED:
            ways = {f"{n}: chosen": chosen(problem(size, **terms), device) for n, terms in EPILOGUES.items()}
            yield Group(table, name(size), size, ways)
            yield Group(table, f"{name(size)} zeros", size, ways, peers=False, zeros=True)
            for n in BY_TILE:
                p = problem(size, **EPILOGUES[n])
                yield Group(table, f"{name(size)} {n}", size, {"chosen": chosen(p, device), **by_tile(p, count)})
    elif table == "instructions":
        plain = chosen(problem(FUSED[0]), device)
        ways = {str(n): replace(plain, activation=chain(n)) for n in CHAINS}
        for zeros in (False, True):
            yield Group(table, name(FUSED[0]) + " zeros" * zeros, FUSED[0], ways, peers=False, zeros=zeros)
    elif table == "shapes":
        for size, order in SHAPES:
            p = problem(size, order)
            ways = {"chosen": chosen(p, device), **by_tile(p, count)}
            yield Group(table, f"{name(size)} {order}", size, ways | {str(t): t.config(p) for t in further(p)})


def name(size: Size) -> str:
    """As a case is called."""
    return "x".join(map(str, size))


def compiled(kernels: list[gr.Kernel], arch: str) -> dict[gr.Kernel, str]:
    """Compiles kernels in parallel; why some cannot be measured."""

    def one(kernel: gr.Kernel) -> str:
        try:
            spilled = kernel.compile(arch).spill_bytes
        except gr.GrapheneError as e:
            return str(e).splitlines()[0]
        return f"{spilled} bytes spilled" if spilled else ""

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return {k: why for k, why in zip(kernels, pool.map(one, kernels), strict=True) if why}


def wanted(product: Product, chained: int) -> Any:
    """The result by PyTorch; of an activation that is a chain of this number of operations, if any."""
    if not chained:
        return product.result()
    config, product.config = product.config, replace(product.config, activation=None)
    x, product.config = product.result(), config
    for _ in range(chained):
        x = x * 0.75 + 0.25
    return x


def measured(g: Group, rounds: int) -> list[dict[str, Any]]:
    """The rows of a group, the fastest first."""
    most = max(g.ways.values(), key=lambda c: c.residual + c.bias)
    product = Product(replace(most, activation=None), *g.size)
    for s in product.sets if g.zeros else ():
        s["A"].zero_(), s["B"].zero_()
    kernels = dict.fromkeys(x.kernel for c in g.ways.values() for x in gemm_launches(c))
    refused = compiled(list(kernels), "sm_90a")
    calls, left_out = {}, {}
    for way, c in g.ways.items():
        product.config = c
        if why := [refused[x.kernel] for x in gemm_launches(c) if x.kernel in refused]:
            left_out[way] = why[0]
            continue
        calls[way] = product.ours()
        product.sets[0]["C"].fill_(math.nan)
        got = calls[way][0]()
        want = wanted(product, int(way) if g.table == "instructions" else 0)
        error = float((got - want).abs().max() / want.abs().max().clamp(min=1))
        if not error < 2e-3:
            left_out[way] = f"wrong by {error:.0e}"
            del calls[way]
    if g.peers:
        for way in [w for w in calls if w.endswith("chosen")]:
            product.config = g.ways[way]
            peer, of = product.cublas()
            calls[f"{way.removesuffix('chosen')}{peer}"] = of
    count = max(2, min(40, int(1.5e-3 / (product.flops / 6e14 + 3e-6))))
    times = in_graphs(calls, count, rounds)
    rows = [{"table": g.table, "case": g.case, "peer": way, "microseconds": us} for way, us in times.items()]
    return rows + [{"table": g.table, "case": g.case, "peer": way, "failure": why} for way, why in left_out.items()]


def copies(size: Size, rounds: int) -> list[dict[str, Any]]:
    """Rows of the copy of A of an odd product, and of the product's own launches alone and together."""
    import torch

    (M, _, K), case = size, name(size)
    padded = -(-K // 64) * 64
    sets = [(torch.randn(M, K, device="cuda").half(), torch.empty(M, padded, device="cuda", dtype=torch.float16))
            for _ in range(max(1, min(8, 120_000_000 // (4 * M * K) + 1)))]  # fmt: skip
    kernels = {way: copy_kernel(**options) for way, options in COPIES.items()}
    compiled(list(kernels.values()), "sm_90a")
    ways: dict[str, list[Callable[[], Any]]] = {}
    for way, kernel in kernels.items():
        ways[f"A by {way}"] = [partial(kernel, *s) for s in sets]
        sets[0][1].fill_(math.nan)
        ways[f"A by {way}"][0]()
        want = torch.nn.functional.pad(sets[0][0], (0, padded - K))
        if not torch.equal(sets[0][1], want):
            raise RuntimeError(f"{way} copies other values")
    ways["A by PyTorch"] = [partial(y[:, :K].copy_, x) for x, y in sets]
    c = chosen(problem(size), torch.cuda.get_device_name())
    product = Product(c, *size)
    ways["product"] = product.ours()
    for i, launch in enumerate(gemm_launches(c)):
        ways[f"{launch.kernel.name} alone"] = product.ours(only=i)
    ways["cuBLAS"] = product.cublas()[1]
    times = in_graphs(ways, max(2, min(40, int(1.5e-3 / (product.flops / 6e14 + 3e-6)))), rounds)
    return [{"table": "copies", "case": case, "peer": way, "microseconds": us} for way, us in times.items()]


def show(rows: list[dict[str, Any]]) -> None:
    """Prints a group, the fastest first."""
    for r in sorted(rows, key=lambda r: r.get("microseconds", math.inf)):
        figure = f"{r['microseconds']:9.2f} us" if "microseconds" in r else f"{'':12} {r['failure']}"
        print(f"{r['table']:12} {r['case']:34} {figure}  {r['peer']}", flush=True)


def main() -> int:
    """Prints the figures; with --json also writes them. Returns the exit status."""

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--count", type=int, default=8, help="length of the model's short lists")
        parser.add_argument("--list", action="store_true", help="print the ways, and measure nothing")

    args = arguments(__doc__, ("epilogues", "instructions", "shapes", "copies"), 9, more)
    tables = [t for t in ("epilogues", "instructions", "shapes") if t in args.only]
    if args.list:
        for g in (g for t in tables for g in groups(t, "NVIDIA H200", args.count)):
            print(f"{g.table} {g.case}", *(f"  {way}: {c.how}" for way, c in g.ways.items()), sep="\n")
        print(*(f"copies {name(size)}: {', '.join(COPIES)}" for size in ODD if "copies" in args.only), sep="\n")
        return 0
    import torch

    if not has_device():
        return 2
    torch.manual_seed(0)
    device, rows, deadline = torch.cuda.get_device_name(), [], Deadline(args.seconds)
    work = [partial(measured, g, args.repeats) for t in tables for g in groups(t, device, args.count)]
    work += [partial(copies, size, args.repeats) for size in ODD if "copies" in args.only]
    for i, one in enumerate(work):
        if deadline.over():
            print(f"the time is over: {len(work) - i} of {len(work)} groups are left")
            break
        found = one()
        show(found)
        rows += found
        write(args.json, {"benchmark": "gemm_tiles", "rows": rows})
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
