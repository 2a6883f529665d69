"""Shared-memory access patterns: bank conflicts as kernel.report() counts them, and time a request on the GPU.

Under Nsight Compute the same kernels give l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld and .._op_st:

    ncu --csv --metrics ... python benchmarks/bank_conflicts.py --once

usage: python benchmarks/bank_conflicts.py [--once] [--count]
Prints one JSON line a pattern; --once launches each a single time with one round; --count launches nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import graphene as gr

Index = Callable[[Any], Any]


def shared_load(name: str, at: Index, values: int, rounds: int, elements: int = 4096) -> gr.Kernel:
    """One warp loads vectors of `values` fp32 at element `at(lane)` of shared memory, `rounds` times."""
    with gr.Kernel(name) as kernel:
        out = gr.output("out", [32, values], gr.fp32, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.alloc("s", [elements], gr.fp32, gr.SH)
        r = gr.alloc("r", [values], gr.fp32, gr.RF)
        with gr.loop("fill", elements // 32) as i:
            gr.init(s[i * 32 + t], 1)
        gr.barrier()
        with gr.loop("round", rounds):
            gr.move(r, s.tile([values])[at(t)])
        gr.move(out[t, :], r)
    return kernel


def shared_store(name: str, at: Index, values: int, rounds: int, elements: int = 4096) -> gr.Kernel:
    """One warp stores vectors of `values` fp32, which it then reads back from where they stand."""
    with gr.Kernel(name) as kernel:
        out = gr.output("out", [32, values], gr.fp32, align_bytes=16)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        s = gr.alloc("s", [elements], gr.fp32, gr.SH)
        r = gr.alloc("r", [values], gr.fp32, gr.RF)
        for v in range(values):
            gr.init(r[v], v)
        with gr.loop("round", rounds):
            gr.move(s.tile([values])[at(t)], r)
        gr.move(r, s.tile([values])[at(t)])
        gr.move(out[t, :], r)
    return kernel


def matrices(name: str, rounds: int, pitch: int = 64, swizzled: bool = False) -> gr.Kernel:
    """One warp loads the 16x16 corner of a tile of halves whose rows are `pitch` elements apart, by ldmatrix.x4."""
    mma = gr.atom("mma.m16n8k16.f32.f16")
    with gr.Kernel(name) as kernel:
        out = gr.output("out", [16, 16], gr.fp16, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        (t,) = warp.indices()
        layout = gr.Layout((16, 64), (pitch, 1))
        s = gr.alloc("s", layout, gr.fp16, gr.SH, swizzle=gr.swizzle(64, gr.fp16) if swizzled else None)
        r = gr.fragment("r", [16, 16], gr.fp16, mma.a, on=warp)
        for i in range(32):
            gr.init(s[i // 2, i % 2 * 32 + t], 1)
        gr.barrier()
        with gr.loop("round", rounds):
            gr.move(r, s.tile([16, 16])[0, 0], atom=gr.atom("ldmatrix.x4"))
        gr.move(out, r, atom=gr.atom("st.global.b32"))
    return kernel


PATTERNS: dict[str, Callable[[int], gr.Kernel]] = {
    "ld4_unit": lambda n: shared_load("ld4_unit", lambda t: t, 1, n),
    "ld4_broadcast": lambda n: shared_load("ld4_broadcast", lambda t: t * 0, 1, n),
    "ld4_stride2": lambda n: shared_load("ld4_stride2", lambda t: t * 2, 1, n),
    "ld4_stride3": lambda n: shared_load("ld4_stride3", lambda t: t * 3, 1, n),
    "ld4_stride32": lambda n: shared_load("ld4_stride32", lambda t: t * 32, 1, n),
    "ld4_stride33": lambda n: shared_load("ld4_stride33", lambda t: t * 33, 1, n),
    "ld8_unit": lambda n: shared_load("ld8_unit", lambda t: t, 2, n),
    "ld8_stride2": lambda n: shared_load("ld8_stride2", lambda t: t * 2, 2, n),
    "ld8_stride16": lambda n: shared_load("ld8_stride16", lambda t: t * 16, 2, n),
    "ld8_broadcast": lambda n: shared_load("ld8_broadcast", lambda t: t * 0, 2, n),
    "ld8_halves_equal": lambda n: shared_load("ld8_halves_equal", lambda t: t % 16, 2, n),
    "ld16_unit": lambda n: shared_load("ld16_unit", lambda t: t, 4, n),
    "ld16_stride2": lambda n: shared_load("ld16_stride2", lambda t: t * 2, 4, n),
    "ld16_stride8": lambda n: shared_load("ld16_stride8", lambda t: t * 8, 4, n),
    "ld16_broadcast": lambda n: shared_load("ld16_broadcast", lambda t: t * 0, 4, n),
    "ld16_pairs_equal": lambda n: shared_load("ld16_pairs_equal", lambda t: t // 2, 4, n),
    "st4_unit": lambda n: shared_store("st4_unit", lambda t: t, 1, n),
    "st4_stride2": lambda n: shared_store("st4_stride2", lambda t: t * 2, 1, n),
    "st4_stride32": lambda n: shared_store("st4_stride32", lambda t: t * 32, 1, n),
    "st8_stride2": lambda n: shared_store("st8_stride2", lambda t: t * 2, 2, n),
    "st16_unit": lambda n: shared_store("st16_unit", lambda t: t, 4, n),
    "st16_stride2": lambda n: shared_store("st16_stride2", lambda t: t * 2, 4, n),
    "ldmatrix_plain": lambda n: matrices("ldmatrix_plain", n),
    "ldmatrix_padded": lambda n: matrices("ldmatrix_padded", n, pitch=72),
    "ldmatrix_swizzled": lambda n: matrices("ldmatrix_swizzled", n, swizzled=True),
}


def counts(kernel: gr.Kernel) -> dict[str, int]:
    """Of shared memory: bank conflicts and wavefronts of all loads and of all stores."""
    rows = [r for r in kernel.report().rows if r.memory == "SH"]
    return {
        f"{what}_{op}": sum(getattr(r, what) for r in rows if r.op == op)
        for op in ("load", "store")
        for what in ("conflicts", "wavefronts")
    }


def launch(kernel: gr.Kernel, repeat: int) -> float:
    """Microseconds a launch."""
    import torch

    halves = kernel.name.startswith("ldmatrix")
    values = int(kernel.name[2:4].rstrip("_")) // 4 if not halves else 0
    shape = (16, 16) if halves else (32, values)
    out = torch.zeros(shape, device="cuda", dtype=torch.float16 if halves else torch.float32)
    kernel(out)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeat):
        kernel(out)
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / max(repeat, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--once", action="store_true", help="one launch of one round each, for a profiler")
    parser.add_argument("--count", action="store_true", help="launch nothing")
    args = parser.parse_args()
    rounds = 20000
    for name, build in PATTERNS.items():
        row: dict[str, object] = {"benchmark": "bank_conflicts", "pattern": name, **counts(build(1))}
        if args.once:
            launch(build(1), 0)
        elif not args.count:
            row["ns_per_round"] = (launch(build(2 * rounds), 3) - launch(build(rounds), 3)) * 1e3 / rounds
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
