"""Matrix products against cuBLAS, cuBLASLt's epilogues, torch._scaled_mm and a plain Triton loop, in one run.

    python benchmarks/gemm_bench.py [--json out.json] [--only usual,odd,...] [--no-triton]

For every product the peers take turns, each in a CUDA graph of several calls, on random operands in rotation that do
not fit into the L2 cache together; the figure is the median. What each of them computed in this run is compared with
float64 (large products: with fp32). Products that need several launches (padded copies of odd operands, split-K) are
timed with all of them. At the end of a table stands how many times cuBLAS' speed ours is: the mean and the least.

`constants`: a tile of gemm_sm80 for the 4096 cubed product with its sizes known when it was compiled, beside the same
kernel with symbols: what symbolic sizes cost.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import has_device, write
from timing import in_graphs

import graphene as gr
from graphene.kernels import GemmConfig, gemm_launches, gemm_workspaces
from graphene.kernels.gemm.whole import argument
from graphene.select import select_gemm

if TYPE_CHECKING:
    from collections.abc import Callable

USUAL = (  # M, N, K
    *((n, n, n) for n in (8192, 6144, 4096, 3072, 2048, 1536, 1024)), (5376, 5376, 2048), (5120, 5120, 2048),
    (4096, 14336, 4096), (4096, 4096, 14336), (2048, 8192, 8192), (8192, 1024, 4096), (512, 4096, 4096),
    (256, 8192, 8192), (128, 4096, 4096), (64, 8192, 8192), (16, 4096, 4096),
)  # fmt: skip
EPILOGUES = ((5376, 5376, 2048), (4096, 4096, 4096), (12288, 3072, 768))
TABLES = (
    "usual", "usual bf16", "usual TT", "square", "other", "odd", "orders",
    *(f"epilogues {'x'.join(map(str, size))}" for size in EPILOGUES), "types", "fp8", "fp8 of tensors", "fp8 promoted",
    "constants",
)  # fmt: skip
BYTES = (*((n, n, n) for n in (8192, 4096, 2048, 1024)), (5120, 5120, 2048), (512, 4096, 4096), (16, 4096, 4096))
L2_BYTES = 60_000_000
TRITON_TILES = (  # rows, columns, k, warps, stages
    (128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4),
    (16, 64, 128, 4, 5),
)  # fmt: skip
FP8 = "fp8e4m3"
Calls = list["Callable[[], Any]"]


def torch_types() -> dict[str, Any]:
    """By our names."""
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i8": torch.int8, "i32": torch.int32,
            FP8: torch.float8_e4m3fn}  # fmt: skip


class Product:
    """Random operands of one product, laid out as a configuration says, in several sets, and the first one's result."""

    def __init__(self, c: GemmConfig, M: int, N: int, K: int) -> None:
        import torch

        self.torch, self.config, self.size, self.flops = torch, c, (M, N, K), 2 * M * N * K
        t, out = torch_types(), torch_types()[c.out_dtype]
        scaled = (M, N) if c.scales == "rows" else (1, 1)
        item = t[c.dtype].itemsize
        moved = (M + N) * K * item + M * N * out.itemsize * (1 + c.residual)

        def matrix(rows: int, columns: int, row_major: bool) -> Any:
            shape = (rows, columns) if row_major else (columns, rows)
            if c.dtype == "i8":
                x = torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
            else:
                x = torch.randn(shape, device="cuda").to(t[c.dtype])
            return x if row_major else x.T

        self.sets = [
            {
                "A": matrix(M, K, c.order[0] == "T"), "B": matrix(K, N, c.order[1] == "T"),
                "C": torch.empty(M, N, device="cuda", dtype=out),
                "bias": torch.randn(N, device="cuda").to(out), "residual": torch.randn(M, N, device="cuda").to(out),
                "scale_a": torch.rand(scaled[0], device="cuda") + 0.5,
                "scale_b": torch.rand(scaled[1], device="cuda") + 0.5,
            }
            for _ in range(max(1, min(8, 2 * L2_BYTES // moved + 1)))
        ]  # fmt: skip
        self.want = self.result()

    def result(self) -> Any:
        """What the configuration computes of the first set, by PyTorch in fp64 (large products: in fp32)."""
        torch, c = self.torch, self.config
        wide = torch.float64 if c.dtype == "i8" or self.flops < 1e10 else torch.float32
        exact, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
        first = self.sets[0]
        x = first["A"].to(wide) @ first["B"].to(wide)
        torch.backends.cuda.matmul.allow_tf32 = exact
        x = x * first["scale_a"][:, None] * first["scale_b"] if c.scales else x
        x = x + first["bias"].to(wide) if c.bias else x
        x = self.activation(c)(x) if c.activation is not None else x
        return x + first["residual"].to(wide) if c.residual else x

    def activation(self, c: GemmConfig) -> Callable[[Any], Any]:
        """PyTorch's function of the name that a configuration has."""
        f = self.torch.nn.functional
        return {"relu": f.relu, "gelu": f.gelu, "gelu_tanh": partial(f.gelu, approximate="tanh"), "silu": f.silu}[
            str(c.activation)
        ]

    def error(self, got: Any) -> float:
        """Largest difference, as a share of the largest element."""
        return float((got.to(self.want.dtype) - self.want).abs().max() / self.want.abs().max())

    def ours(self, only: int | None = None) -> Calls:
        """Launches of the configuration, workspaces and all; with ``only`` that one of several, after all of them."""
        c, N = self.config, self.size[1]

        def call(tensors: dict[str, Any]) -> Callable[[], Any]:
            for name, (shape, dtype) in gemm_workspaces(c, *self.size).items():
                tensors[name] = self.torch.empty(shape, device="cuda", dtype=torch_types()[dtype])
            launches = [(kernel, [argument(tensors, n, N) for n in names]) for kernel, names in gemm_launches(c)]
            if only is not None:
                for kernel, x in launches:  # so that the copies and sums which it reads are there
                    kernel(*x)
                launches = launches[only : only + 1]

            def go() -> Any:
                for kernel, x in launches:
                    kernel(*x)
                return tensors["C"]

            return go

        return [call(dict(s)) for s in self.sets]

    def by(self, kernel: Callable[[Any, Any, Any], Any]) -> Calls:
        """What takes a, b and the result."""

        def call(a: Any, b: Any, c: Any) -> Any:
            kernel(a, b, c)
            return c

        return [partial(call, s["A"], s["B"], s["C"]) for s in self.sets]

    def cublas(self) -> tuple[str, Calls]:
        """PyTorch's product and its name; an epilogue by cuBLASLt where there is one, else by operators after it."""
        torch, c = self.torch, self.config
        if c.dtype == "i8":
            return "cuBLAS", [partial(torch._int_mm, s["A"], s["B"]) for s in self.sets]
        if c.dtype == FP8:
            scaled = partial(torch._scaled_mm, out_dtype=torch_types()[c.out_dtype], use_fast_accum=not c.promote)
            shapes = ((-1, 1), (1, -1)) if c.scales == "rows" else ((), ())
            return "torch._scaled_mm", [
                partial(scaled, s["A"], s["B"], s["scale_a"].view(shapes[0]), s["scale_b"].view(shapes[1]))
                for s in self.sets
            ]
        if not (c.bias or c.activation or c.residual):
            return "cuBLAS", [partial(torch.mm, s["A"], s["B"], out=s["C"]) for s in self.sets]
        if c.bias and c.activation is None and not c.residual:
            return "cuBLASLt", [partial(torch.addmm, s["bias"], s["A"], s["B"]) for s in self.sets]
        if c.bias and c.activation in ("relu", "gelu_tanh") and not c.residual:
            fused = partial(torch._addmm_activation, use_gelu=c.activation == "gelu_tanh")
            return "cuBLASLt", [partial(fused, s["bias"], s["A"], s["B"]) for s in self.sets]

        def go(s: dict[str, Any]) -> Any:
            x = torch.addmm(s["bias"], s["A"], s["B"]) if c.bias else s["A"] @ s["B"]
            x = self.activation(c)(x) if c.activation is not None else x
            return x + s["residual"] if c.residual else x

        return "cuBLAS and operators", [partial(go, s) for s in self.sets]


def triton_product() -> Callable[[Any, Any, Any], None]:
    """A plain loop over k with tl.dot, row-major C; of six tiles the one that was fastest when it was first called."""
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(A, B, C, M, N, K, sam, sak, sbk, sbn, scm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
        pid, tiles_n = tl.program_id(0), tl.cdiv(N, BN)
        first = pid // (8 * tiles_n) * 8
        rows = min(tl.cdiv(M, BM) - first, 8)
        bm, bn = first + pid % (8 * tiles_n) % rows, pid % (8 * tiles_n) // rows
        m, n, k = bm * BM + tl.arange(0, BM), bn * BN + tl.arange(0, BN), tl.arange(0, BK)
        a = A + (m % M)[:, None] * sam + k[None, :] * sak
        b = B + k[:, None] * sbk + (n % N)[None, :] * sbn
        acc = tl.zeros((BM, BN), tl.float32)
        for i in range(tl.cdiv(K, BK)):
            x = tl.load(a, mask=k[None, :] < K - i * BK, other=0.0)
            y = tl.load(b, mask=k[:, None] < K - i * BK, other=0.0)
            acc = tl.dot(x, y, acc)
            a += BK * sak
            b += BK * sbk
        out = C + m[:, None] * scm + n[None, :]
        tl.store(out, acc.to(C.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))

    def launch(tile: tuple[int, ...], a: Any, b: Any, c: Any) -> None:
        (M, K), N, (BM, BN, BK, warps, stages) = a.shape, b.shape[1], tile
        kernel[(triton.cdiv(M, BM) * triton.cdiv(N, BN),)](
            a, b, c, M, N, K, *a.stride(), *b.stride(), c.stride(0), BM, BN, BK, num_warps=warps, num_stages=stages
        )

    def seconds(tile: tuple[int, ...], *operands: Any) -> float:
        import torch

        try:
            launch(tile, *operands)
        except Exception:  # it does not fit the device
            return math.inf
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(3):
            launch(tile, *operands)
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    chosen: dict[Any, tuple[int, ...]] = {}

    def go(a: Any, b: Any, c: Any) -> None:
        key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype)
        if key not in chosen:
            chosen[key] = min(TRITON_TILES, key=lambda tile: seconds(tile, a, b, c))
        launch(chosen[key], a, b, c)

    return go


def constant(c: GemmConfig, M: int, N: int, K: int) -> gr.Kernel:
    """A configuration's kernel of order TN with numbers for its symbols: the same text but for them."""
    ((kernel, _),) = gemm_launches(c)
    lines = [line for line in str(kernel).splitlines() if not line.startswith("symbol ")]
    text = "\n".join(lines) + "\n"
    for name, value in {"M": M, "N": N, "K": K, "ld_A": K, "ld_B": K, "ld_C": N}.items():
        text = re.sub(rf"(?<![\w\"@%.]){name}(?![\w\"])", str(value), text)
    return gr.parse(text)


def cases(table: str) -> list[tuple[str, GemmConfig, tuple[int, int, int]]]:
    """Name, configuration, size."""
    import torch

    chosen = partial(select_gemm, device=torch.cuda.get_device_name())  # as for graphene.ops

    def plain(*sizes: tuple[int, int, int], **options: Any) -> list[tuple[str, GemmConfig, tuple[int, int, int]]]:
        return [("x".join(map(str, s)), chosen(*s, align=aligned(s, **options), **options), s) for s in sizes]

    def aligned(size: tuple[int, int, int], order: str = "TN", dtype: str = "fp16", **_: Any) -> tuple[int, int, int]:
        item = torch_types()[dtype].itemsize
        M, N, K = size
        lines = K if order[0] == "T" else M, K if order[1] == "N" else N, N
        a, b, c = (next(w for w in (16, 8, 4, 2, 1) if n * item % w == 0) for n in lines)
        return a, b, c

    def named(size: tuple[int, int, int], **kinds: dict[str, Any]) -> list[Any]:
        return [(name.replace("_", " "), chosen(*size, **options), size) for name, options in kinds.items()]

    def fused(size: tuple[int, int, int]) -> list[Any]:
        act = {name: {"bias": True, "activation": name} for name in ("relu", "gelu", "gelu_tanh", "silu")}
        return named(size, plain={}, bias={"bias": True}, **act, silu_and_residual={**act["silu"], "residual": True})

    big = (4096, 4096, 4096)
    makers: dict[str, Callable[[], list[Any]]] = {
        "usual": lambda: plain(*USUAL),
        "usual bf16": lambda: plain(*USUAL, dtype="bf16"),
        "usual TT": lambda: plain(*USUAL, order="TT"),
        "square": lambda: plain(*[(n, n, n) for n in (512, 2048, 4096, 8192)]),
        "other": lambda: plain((12288, 3072, 768), (1, 4096, 4096), (32, 8192, 8192), (256, 1024, 8192),
                               (64, 64, 65536), (8192, 8192, 64), (384, 11008, 4096), (2000, 3000, 5000)),
        "odd": lambda: [
            (f"{name} {order}", c, size)
            for order in ("TN", "TT")
            for name, c, size in plain((1000, 1000, 1000), (1023, 1025, 1027), (257, 4099, 1031), (4097, 4097, 4097),
                                       order=order)
        ],
        "orders": lambda: named(big, **{o: {"order": o} for o in ("TN", "NN", "NT", "TT")}),
        **{f"epilogues {'x'.join(map(str, size))}": partial(fused, size) for size in EPILOGUES},
        "types": lambda: named(big, bf16={"dtype": "bf16"}, tf32={"dtype": "fp32"}, i8={"dtype": "i8"}),
        "fp8": lambda: plain(*BYTES, dtype=FP8, out="bf16", scales="rows"),
        "fp8 of tensors": lambda: plain(*BYTES, dtype=FP8, out="bf16", scales="tensor"),
        "fp8 promoted": lambda: plain(*BYTES, dtype=FP8, out="bf16", scales="rows", promote=True),
        "constants": lambda: [("4096x4096x4096", select_gemm(*big), big)],
    }  # fmt: skip
    return makers[table]()


def compile_all(tables: list[str]) -> None:
    """Compiles what will be measured, in parallel."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    configs = dict.fromkeys(c for table in tables for _, c, _ in cases(table))
    kernels = dict.fromkeys(launch.kernel for c in configs for launch in gemm_launches(c))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda kernel: kernel.compile(arch), kernels))


def measure(table: str, with_triton: bool, rounds: int) -> list[dict[str, Any]]:
    """The rows of a table."""
    rows: list[dict[str, Any]] = []
    triton = triton_product() if with_triton else None
    ratios = []
    for case, c, size in cases(table):
        p = Product(c, *size)
        peers: dict[str, Calls] = {"graphene": p.ours()}
        if table == "constants":
            plain = replace(c, group=1)
            p.config = plain
            peers = {"symbols": p.ours(), "constants": p.by(constant(plain, *size))}
        else:
            name, calls = p.cublas()
            peers[name] = calls
        if triton is not None and table in ("usual", "square", "odd"):
            peers["Triton"] = p.by(triton)
        errors = {name: p.error(calls[0]()) for name, calls in peers.items()}
        count = max(2, min(40, int(1.5e-3 / (p.flops / 6e14 + 3e-6))))
        times = in_graphs(peers, count, rounds)
        for name, us in times.items():
            tflops = p.flops / us * 1e-6
            row = {"table": table, "case": case, "peer": name, "tflops": tflops, "error": errors[name]}
            rows.append({**row, "microseconds": us})
            print(f"{table:10} {case:20} {name:20} {us:9.1f} us {tflops:7.1f} TFLOP/s  error {errors[name]:.0e}")
        against = [(name, us) for name, us in times.items() if name.startswith(("cuBLAS", "torch"))]
        ratios += [us / times["graphene"] for _, us in against]
        print(
            f"{'':10} {c.how}" + "".join(f": {us / times['graphene']:.3f} x {name}" for name, us in against), flush=True
        )
    if ratios:
        mean, of = statistics.geometric_mean(ratios), "torch._scaled_mm" if table.startswith("fp8") else "cuBLAS"
        print(f"{table:10} {mean:.3f} x {of} in the geometric mean of {len(ratios)}, {min(ratios):.3f} at least\n")
    return rows


def main() -> int:
    """Prints the figures; with --json also writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", help="tables, of " + ", ".join(TABLES))
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each peer")
    args = parser.parse_args()
    tables = args.only.split(",") if args.only else list(TABLES)
    if unknown := [t for t in tables if t not in TABLES]:
        parser.error(f"no table is called {', '.join(unknown)}")
    import torch

    if not has_device():
        return 2
    if importlib.util.find_spec("triton") is None:
        print("no Triton: measured without it")
        args.no_triton = True
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    compile_all(tables)
    rows: list[dict[str, Any]] = []
    for table in tables:
        rows += measure(table, not args.no_triton, args.rounds)
        write(args.json, {"benchmark": "gemm", "rows": rows})  # after each table, so that a run cut short keeps them
    return 1 if any(r["error"] > 2e-2 for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
