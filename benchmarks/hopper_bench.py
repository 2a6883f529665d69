"""What sm_90a gives kernels that are written by hand in the printer's style: attention, rounding of wgmma, barriers.

    python benchmarks/hopper_bench.py [--json out.json] [--repeats 20]

Products run beside cuBLAS, in CUDA graphs of several calls on operands that do not fit into the L2 cache together;
the first and the last 256 rows are compared with fp64. Attention runs beside cuDNN and FlashAttention-2, alternately,
on random data with a cold cache; results are compared with fp32 in the same run. Results of wgmma are compared bit by
bit with the rule of `by_hand/rounding_sm90.py`.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from by_hand import barriers_sm90, gemm_sm90, rounding_sm90
from by_hand.attention_sm90 import Attention
from by_hand.cuda import Kernel, TensorMap
from figures import has_device, write
from fmha_bench import sdpa
from timing import in_graphs, measure
from torch.nn.attention import SDPBackend

# Batch, seq, heads, D, causal.
CASES = (
    (32, 384, 16, 64, False), (64, 384, 12, 64, False), (2, 4096, 16, 64, False), (2, 4608, 16, 64, False),
    (2, 4096, 16, 64, True), (2, 4096, 16, 128, False), (2, 4096, 16, 128, True), (1, 16384, 16, 128, True),
)  # fmt: skip
WAYS = {
    "two consumers": {}, "two, lazy": {"lazy": 8}, "two, lazy, no turns": {"lazy": 8, "turns": False},
    "three, lazy": {"lazy": 8, "consumers": 3, "stages": 3},
    "three, lazy, no turns": {"lazy": 8, "consumers": 3, "stages": 3, "turns": False},
}  # fmt: skip
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32,
          "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # fmt: skip


# M, N, K.
PRODUCTS = (
    *((n, n, n) for n in (8192, 6144, 4096, 3072, 2048, 1536, 1024)), (5376, 5376, 2048), (5120, 5120, 2048),
    (4096, 14336, 4096), (4096, 4096, 14336), (2048, 8192, 8192), (8192, 1024, 4096), (512, 4096, 4096),
    (256, 8192, 8192), (128, 4096, 4096), (64, 8192, 8192), (16, 4096, 4096),
)  # fmt: skip
L2_BYTES = 50 << 20
# Of examples/12_gemm_sm90.py.
KERNELS = {
    "128x128x64, 6 stages, ping-pong": {}, "64x128x64, 7 stages, ping-pong": {"BM": 64, "STAGES": 7},
    "128x192x64, 4 stages, ping-pong": {"BN": 192, "STAGES": 4},
    "128x192x64, 4 stages, ping-pong, clusters share B": {"BN": 192, "STAGES": 4, "share": True},
    "128x128x64, 6 stages": {"turns": False, "buffers": 2},
    "128x256x64, 4 stages": {"BN": 256, "STAGES": 4, "turns": False, "buffers": 2},
}  # fmt: skip


def example() -> Any:
    """The function of the example that makes the kernel."""
    path = Path(__file__).resolve().parents[1] / "examples" / "12_gemm_sm90.py"
    spec = importlib.util.spec_from_file_location("gemm_sm90_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.gemm_sm90


def product(c: gemm_sm90.Gemm, kernel: Kernel, a: Any, b: Any, out: Any) -> Any:
    """A call of out = a @ b.T."""
    (m, k), n = a.shape, len(b)
    operands = (b, a, out) if c.transposed else (a, b, out)
    maps = [TensorMap(t, (t.shape[1], t.shape[0]), (t.shape[1] * 2,), box)
            for t, box in zip(operands, c.boxes, strict=True)]  # fmt: skip
    most = torch.cuda.get_device_properties(0).multi_processor_count // c.cluster
    sizes = (n, m, k) if c.transposed else (m, n, k)
    blocks = min(most, c.tiles(m, n)) * c.cluster
    return kernel.launcher(blocks, c.threads, [*maps, *map(ctypes.c_int, sizes)], early=c.early)


def products(rounds: int) -> list[dict[str, Any]]:
    rows, kernels, make = [], {}, example()
    recorded = {f"in the IR: {name}": make(**options) for name, options in KERNELS.items()}
    for m, n, k in PRODUCTS:
        flops, sets = 2 * m * n * k, max(1, min(8, L2_BYTES * 2 // (2 * (m * k + n * k + m * n)) + 1))
        data = [(*(torch.randn(x, k, device="cuda").half() for x in (m, n)),
                 torch.empty(m, n, device="cuda", dtype=torch.float16)) for _ in range(sets)]  # fmt: skip
        count = max(2, min(40, int(1.5e-3 / (flops / 6e14 + 3e-6))))
        ways: dict[str, Any] = {"cuBLAS": [functools.partial(torch.mm, a, b.T, out=c) for a, b, c in data]}
        a, b, out = data[0]
        ends = torch.cat([torch.arange(min(m, 256)), torch.arange(max(m - 256, 0), m)]).cuda()
        want = a[ends].double() @ b.double().T
        for c in gemm_sm90.tried(m, n, k):
            kernels[c] = kernels.get(c) or Kernel(c.source(), c.shared_bytes)
            ways[f"by hand: {c}"] = [product(c, kernels[c], *d) for d in data]
        for name, kernel in recorded.items():
            ways[name] = [functools.partial(kernel, *d) for d in data]
        for name in list(ways)[1:]:
            out.fill_(math.nan)
            ways[name][0]()
            # An instruction of 16 k cuts the running sum, which stays below 6 sqrt(k), to fp32.
            bound = 2**-11 * 1.01 * want.abs() + k / 16 * 2**-23 * 6 * math.sqrt(k)
            assert ((out[ends].double() - want).abs() <= bound).all(), (name, m, n, k)
        medians = in_graphs(ways, count, rounds)
        case = f"{m} x {n} x {k}"
        for name, us in sorted(medians.items(), key=lambda x: x[1]):
            row = {"us": us, "tflops": flops / us / 1e6, "of cuBLAS": medians["cuBLAS"] / us}
            rows.append({"table": "products", "case": case, "peer": name, **row})
            print(f"{case:20} {name:60} {us:8.1f} us {row['tflops']:6.0f} TFLOP/s {row['of cuBLAS']:.3f}", flush=True)
    for kind in ("by hand", "in the IR"):
        best = [max(r["of cuBLAS"] for r in rows if r["case"] == case and r["peer"].startswith(kind))
                for case in dict.fromkeys(r["case"] for r in rows)]  # fmt: skip
        print(
            f"products {kind}: the best are {statistics.geometric_mean(best):.3f} of cuBLAS, at least {min(best):.3f}"
        )
    return rows


def by_hand(c: Attention, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """A call, and where its result is."""
    batch, seq, heads, d = q.shape
    o = torch.full_like(q, math.nan)
    strides = (d * 2, heads * d * 2, seq * heads * d * 2)
    boxes = {"Q": c.BM, "K": c.BN, "V": c.BN, "O": 64}
    maps = [
        TensorMap(t, (d, heads, seq, batch), strides, (64, 1, rows, 1))
        for t, rows in zip((q, k, v, o), boxes.values(), strict=True)
    ]
    kernel = Kernel(c.source(), c.places()["end"])
    blocks = min(torch.cuda.get_device_properties(0).multi_processor_count, seq // c.BM * heads * batch)
    scale = ctypes.c_float(math.log2(math.e) / math.sqrt(d))
    return kernel.launcher(blocks, c.threads, [*maps, *map(ctypes.c_int, (batch, heads, seq)), scale]), o


def attention(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for batch, seq, heads, d, causal in CASES:
        q, k, v = (torch.randn(batch, seq, heads, d, device="cuda").half() for _ in range(3))
        first = [t[:1, :, :1] for t in (q, k, v)]
        want = sdpa(SDPBackend.MATH, *(t.float() for t in first), is_causal=causal).transpose(1, 2)
        ways: dict[str, Any] = {
            "cuDNN": functools.partial(sdpa, SDPBackend.CUDNN_ATTENTION, q, k, v, is_causal=causal),
            "FlashAttention-2": functools.partial(sdpa, SDPBackend.FLASH_ATTENTION, q, k, v, is_causal=causal),
        }
        for name, options in WAYS.items():
            c = Attention(d, causal=causal, **options)
            if seq % c.BM or seq % c.BN or c.places()["end"] > 232448:
                continue
            ways[name], o = by_hand(c, q, k, v)
            ways[name]()
            assert ((o[:1, :, :1] - want).norm() / want.norm()).item() < 1e-3, name
        case = f"b{batch} h{heads} s{seq} d{d}{' causal' if causal else ''}"
        flops = 4 * batch * heads * seq * seq * d / (2 if causal else 1)
        for name, us in measure(ways, repeats).items():
            rows.append({"table": "attention", "case": case, "peer": name, "tflops": flops / us / 1e6, "us": us})
            print(f"{case:26} {name:24} {us:8.1f} us {flops / us / 1e6:6.0f} TFLOP/s", flush=True)
    return rows


def rounding(tiles: int = 24, compared: int = 200) -> list[dict[str, Any]]:
    rows = []
    for p in rounding_sm90.PRODUCTS:
        right = same = total = 0
        samples: list[list[Any]] = []  # a, b, c, result
        for kind in rounding_sm90.KINDS:
            a, b, c = rounding_sm90.operands(p, kind, tiles)
            given = [torch.from_numpy(x).to(DTYPES[t]).cuda() for x, t in ((a, p.a), (b, p.b), (c, p.d))]
            got = []
            for in_registers in (False, True):
                d = torch.full_like(given[2], math.nan)
                Kernel(p.source(in_registers)).launcher(tiles, 128, [*given, d])()
                got.append(d.double().cpu().numpy())
            same += int((got[0].view("u8") == got[1].view("u8")).all())
            x, y, z = (t.double().cpu().numpy() for t in given)
            for t, i, j in rounding_sm90.results(compared, got[0], seed=2):
                right += int(rounding_sm90.rule(p, x[t, i], y[t, j], z[t, i, j]) == got[0][t, i, j])
                total += 1
                if total % compared < 2:
                    samples.append([x[t, i].tolist(), y[t, j].tolist(), z[t, i, j].item(), got[0][t, i, j].item()])
        row = {"right": right, "of": total, "kinds": len(rounding_sm90.KINDS), "A from registers alike": same}
        rows.append({"table": "rounding", "case": str(p), "types": [p.d, p.a, p.b], **row, "samples": samples})
        print(f"{p!s:24} {right} of {total} results have the rule's bits", flush=True)
    return rows


def barriers() -> list[dict[str, Any]]:
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")
    rows = []
    kernel = Kernel(barriers_sm90.one_arrival())
    for place in range(4):
        for lead in (0, 3):
            for delay in (0, 1000, 20000):
                bad.zero_()
                kernel.launcher(132, 256, [bad, *map(ctypes.c_int, (400, delay, lead, place))])()
                case = f"one arrival, warp {lead} ahead by {delay} ns at {place}"
                rows.append({"table": "barriers", "case": case, "wrong": int(bad)})
    x = (torch.arange(64 * 128, device="cuda") // 128).to(torch.int32).repeat_interleave(32).reshape(-1, 32)
    box = TensorMap(x.view(torch.float16), (64, 64 * 128), (128,), (64, 128))
    bad.zero_()
    Kernel(barriers_sm90.PLAIN_ARRIVAL, 17408).launcher(132, 256, [box, bad, ctypes.c_int(100_000)])()
    rows.append({"table": "barriers", "case": "plain arrivals before a multicast", "wrong": int(bad)})
    print(f"barriers: {sum(r['wrong'] for r in rows)} wrong results in {len(rows)} trials")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    if not has_device():
        return 2
    rows = [*barriers(), *rounding(), *products(max(5, args.repeats // 2)), *attention(args.repeats)]
    write(args.json, {"benchmark": "hopper", "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
