"""Matrix products against cuBLAS (PyTorch) and a plain Triton loop, in one run.

    python benchmarks/gemm_bench.py [--json out.json] [--only square,odd,...] [--no-triton]

For every product the peers take turns, each with a cold L2 cache and on random data; the figure is the median. What
each of them computed in this run is compared with float64 (large products: with fp32). Products that need several
launches (padded copies of odd operands, split-K) are timed from the first to the last.

`constants`: the tile of the 4096 cubed product with its sizes known when it was compiled, beside the same kernel with
symbols: what symbolic sizes cost.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import has_device, write

import graphene as gr
from graphene.kernels import GemmConfig, gemm_launches, gemm_workspaces
from graphene.kernels.gemm.launches import argument
from graphene.select import select_gemm

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = ("square", "shapes", "skinny", "odd", "orders", "epilogues", "types", "constants")


def torch_types() -> dict[str, Any]:
    """By our names."""
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i8": torch.int8, "i32": torch.int32}


class Product:
    """Random operands of one product, laid out as a configuration says, and its reference."""

    def __init__(self, c: GemmConfig, M: int, N: int, K: int) -> None:
        import torch

        self.torch, self.size, self.flops = torch, (M, N, K), 2 * M * N * K
        t = torch_types()

        def matrix(rows: int, columns: int, row_major: bool) -> Any:
            shape = (rows, columns) if row_major else (columns, rows)
            if c.dtype == "i8":
                x = torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
            else:
                x = torch.randn(shape, device="cuda").to(t[c.dtype])
            return x if row_major else x.T

        out = t[c.out_dtype]
        self.a, self.b = matrix(M, K, c.order[0] == "T"), matrix(K, N, c.order[1] == "T")
        self.c = torch.empty(M, N, device="cuda", dtype=out)
        self.bias, self.residual = (torch.randn(s, device="cuda").to(out) for s in ((N,), (M, N)))
        wide = torch.float64 if c.dtype == "i8" or self.flops < 1e10 else torch.float32
        exact, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
        x = self.a.to(wide) @ self.b.to(wide)
        torch.backends.cuda.matmul.allow_tf32 = exact
        x = x + self.bias.to(wide) if c.bias else x
        if c.activation is not None:
            x = self.activation(c)(x)
        self.want = x + self.residual.to(wide) if c.residual else x

    def activation(self, c: GemmConfig) -> Callable[[Any], Any]:
        """PyTorch's function of the same name."""
        f = self.torch.nn.functional
        return {"relu": f.relu, "gelu": f.gelu, "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"), "silu": f.silu}[
            str(c.activation)
        ]

    def error(self, got: Any) -> float:
        """Largest difference, as a share of the largest element."""
        return float((got.to(self.want.dtype) - self.want).abs().max() / self.want.abs().max())

    def ours(self, c: GemmConfig) -> Callable[[], Any]:
        """Launches of a configuration, workspaces and all."""
        arguments = {"A": self.a, "B": self.b, "bias": self.bias, "residual": self.residual, "C": self.c}
        for name, (shape, dtype) in gemm_workspaces(c, *self.size).items():
            arguments[name] = self.torch.empty(shape, device="cuda", dtype=torch_types()[dtype])
        N = self.size[1]
        launches = [(kernel, [argument(arguments, n, N) for n in names]) for kernel, names in gemm_launches(c)]

        def go() -> Any:
            for kernel, x in launches:
                kernel(*x)
            return self.c

        return go

    def by(self, kernel: Callable[[Any, Any, Any], Any]) -> Callable[[], Any]:
        """What takes a, b and the result."""

        def go() -> Any:
            kernel(self.a, self.b, self.c)
            return self.c

        return go

    def cublas(self, c: GemmConfig) -> Callable[[], Any] | None:
        """PyTorch's product; an epilogue by cuBLASLt where there is one, else by operators after it."""
        torch = self.torch
        if c.dtype == "i8":
            return lambda: torch._int_mm(self.a, self.b)
        if c.bias and c.activation in ("relu", "gelu_tanh") and not c.residual:
            fused = torch._addmm_activation
            return lambda: fused(self.bias, self.a, self.b, use_gelu=c.activation == "gelu_tanh")

        def go() -> Any:
            x = torch.addmm(self.bias, self.a, self.b) if c.bias else self.a @ self.b
            x = self.activation(c)(x) if c.activation is not None else x
            return x + self.residual if c.residual else x

        return go


def triton_product() -> Callable[[Any, Any, Any], None]:
    """A plain loop over k with tl.dot, row-major C, 128x256x64 in eight warps and three stages."""
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

    def go(a: Any, b: Any, c: Any) -> None:
        (M, K), N = a.shape, b.shape[1]
        small = M * N < 2048 * 2048
        BM, BN = (64, 64) if small else (128, 256)
        grid = (triton.cdiv(M, BM) * triton.cdiv(N, BN),)
        kernel[grid](
            a, b, c, M, N, K, *a.stride(), *b.stride(), c.stride(0), BM, BN, 64,
            num_warps=4 if small else 8, num_stages=3,
        )  # fmt: skip

    return go


def take_turns(peers: dict[str, Callable[[], Any]], rounds: int = 15) -> dict[str, float]:
    """Median microseconds of each, between events, with a cold L2 cache."""
    import torch

    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[Any]] = {name: [] for name in peers}
    for i in range(rounds + 2):
        for name, go in peers.items():
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            go()
            end.record()
            if i >= 2:
                times[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3 for name, pairs in times.items()}


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

    device = torch.cuda.get_device_name()  # its tuning records come before the estimate, as for graphene.ops

    def plain(*sizes: tuple[int, int, int], **options: Any) -> list[tuple[str, GemmConfig, tuple[int, int, int]]]:
        return [("x".join(map(str, s)), select_gemm(*s, device=device, **options), s) for s in sizes]

    def named(size: tuple[int, int, int], **kinds: dict[str, Any]) -> list[Any]:
        return [
            (name.replace("_", " "), select_gemm(*size, device=device, **options), size)
            for name, options in kinds.items()
        ]

    big = (4096, 4096, 4096)
    act = {name: {"bias": True, "activation": name} for name in ("relu", "gelu", "gelu_tanh", "silu")}
    return {
        "square": lambda: plain(*[(n, n, n) for n in (512, 1024, 2048, 3072, 4096, 6144, 8192)]),
        "shapes": lambda: plain((5376, 5376, 2048), (5120, 5120, 2048), (12288, 3072, 768), (512, 4096, 4096)),
        "skinny": lambda: plain((1, 4096, 4096), (16, 4096, 4096), (128, 4096, 4096), (64, 8192, 8192),
                                (256, 1024, 8192), (64, 64, 65536), (8192, 8192, 64)),
        "odd": lambda: [
            (f"{name} {order}", c, size)
            for order in ("TN", "TT")
            for name, c, size in plain(
                (1023, 1025, 1027), (257, 4099, 1031), (2047, 2049, 2051), align=(2, 2, 2), order=order
            )
        ],
        "orders": lambda: named(big, **{o: {"order": o} for o in ("TN", "NN", "NT", "TT")}),
        "epilogues": lambda: named(
            (5376, 5376, 2048), bias={"bias": True}, **act, gelu_and_residual={**act["gelu"], "residual": True}
        ),
        "types": lambda: named(big, bf16={"dtype": "bf16"}, tf32={"dtype": "fp32"}, i8={"dtype": "i8"}),
        "constants": lambda: plain(big),
    }[table]()  # fmt: skip


def compile_all(tables: list[str]) -> None:
    """Compiles what will be measured, in parallel."""
    import torch

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    arch += "a" if arch == "sm_90" else ""
    configs = dict.fromkeys(c for table in tables for _, c, _ in cases(table))
    kernels = dict.fromkeys(launch.kernel for c in configs for launch in gemm_launches(c))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda kernel: kernel.compile(arch), kernels))


def measure(table: str, with_triton: bool) -> list[dict[str, Any]]:
    """The rows of a table."""
    rows = []
    triton = triton_product() if with_triton else None
    for case, c, size in cases(table):
        p = Product(c, *size)
        peers: dict[str, Callable[[], Any]] = {"graphene": p.ours(c)}
        if table == "constants":
            kernel = constant(replace(c, group=1), *size)
            peers = {"symbols": p.ours(replace(c, group=1)), "constants": p.by(kernel)}
        elif (go := p.cublas(c)) is not None:
            peers["cuBLAS"] = go
        if triton is not None and table in ("square", "odd"):
            peers["Triton"] = p.by(triton)
        errors = {name: p.error(go()) for name, go in peers.items()}
        for name, us in take_turns(peers).items():
            tflops = p.flops / us * 1e-6
            row = {"table": table, "case": case, "peer": name, "tflops": tflops, "error": errors[name]}
            rows.append({**row, "microseconds": us})
            print(f"{table:10} {case:20} {name:10} {us:9.1f} us {tflops:7.1f} TFLOP/s  error {errors[name]:.0e}")
        print(f"{'':10} {c.tile} {c.stages} stages, {c.warps} warps, split {c.split_k}, pad {c.pad}", flush=True)
    return rows


def main() -> int:
    """Prints the figures; with --json also writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", default=",".join(TABLES), help="tables, of " + ",".join(TABLES))
    parser.add_argument("--no-triton", action="store_true")
    args = parser.parse_args()
    import torch

    if not has_device():
        return 2
    if importlib.util.find_spec("triton") is None:
        print("no Triton: measured without it")
        args.no_triton = True
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    tables = args.only.split(",")
    compile_all(tables)
    rows = [r for table in tables for r in measure(table, not args.no_triton)]
    write(args.json, {"benchmark": "gemm", "rows": rows})
    return 1 if any(r["error"] > 2e-2 for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
