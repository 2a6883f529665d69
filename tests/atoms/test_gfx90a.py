"""AMD gfx90a: maps of the matrix instructions, waves of 64 lanes in the simulator, HIP C++ that a compiler takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import conformance
import numpy as np
import pytest

import graphene as gr

ARCH = "gfx90a"
CASES = list(conformance.cases([a for a in gr.atoms().values() if a.arch == ARCH and a.thread_count == 1]))
MFMA = [a.name for a in gr.atoms().values() if a.name.startswith("mfma")]


def accumulator(name: str, lane: int, x: int) -> tuple[int, ...]:
    """Row, column (and block) of accumulator x, as the manual's register maps say."""
    if "16x16" in name:
        return lane // 16 * 4 + x, lane % 16
    row, column = x % 16 // 4 * 8 + x % 4 + lane // 32 * 4, lane % 32
    return (row, column, x // 16) if "x1f32" in name else (row, column)


@pytest.mark.parametrize("name", MFMA)
def test_the_maps_are_those_of_the_manual(name: str) -> None:
    atom = gr.atom(name)
    assert (atom.arch, atom.thread_count) == (ARCH, 64)
    a, b, d = (atom.operands[o] for o in "abd")
    rows = 16 if "16x16" in name else 32
    for lane in range(64):
        for x in range(d.values):
            where = accumulator(name, lane, x)
            stride = (1, rows, rows * rows)
            assert d.tv(lane, x) == sum(i * s for i, s in zip(where, stride, strict=False))
        for v in range(a.values):
            if "x1f32" in name:  # one k; the halves of the wave are the blocks
                assert a.tv(lane, v) == b.tv(lane, v) == lane % 32 + 32 * (lane // 32)
            else:
                assert a.tv(lane, v) == b.tv(lane, v) == lane % rows + rows * (lane // rows * 4 + v)


def product(name: str, waves: int = 1, steps: int = 2) -> gr.Kernel:
    """C += A @ B.T by fragments; each wave has rows of its own."""
    mfma = gr.atom(name)
    (m, k), n = mfma.operands["a"].extents, mfma.operands["b"].extents[0]
    with gr.Kernel("product") as kernel:
        A = gr.input("A", [m * waves, k * steps], gr.fp16)
        B = gr.input("B", [n, k * steps], gr.fp16)
        C = gr.inout("C", [m * waves, n], gr.fp32)
        gr.blocks(1)
        threads = gr.threads(64 * waves)
        group = threads.tile(64)
        w, _ = group.indices()
        s = gr.alloc("s", [n, k * steps], gr.fp16, gr.SH)
        a = gr.fragment("a", [m, k], gr.fp16, mfma.a, on=group[w])
        b = gr.fragment("b", [n, k], gr.fp16, mfma.b, on=group[w])
        c = gr.fragment("c", [m, n], gr.fp32, mfma.c, on=group[w])
        gr.move(s, B, on=threads, atom=("global_load.b32", "ds_write.b32"))
        gr.barrier()
        gr.move(c, C.tile([m, None])[w, 0], atom="global_load.b32")
        with gr.loop("i", steps) as i:
            gr.move(a, A.tile([m, k])[w, i], atom="global_load.b64")
            gr.move(b, s.tile([n, k])[0, i], atom="ds_read.b64")
            gr.matmul(c, a, b.T, atom=mfma)
        gr.move(C.tile([m, None])[w, 0], c, atom="global_store.b32")
    return kernel


@pytest.mark.parametrize("name", [n for n in MFMA if "f16" in n])
@pytest.mark.parametrize("waves", [1, 3])
@pytest.mark.parametrize("seed", [0, 5])
def test_waves_of_64_lanes_multiply(name: str, waves: int, seed: int) -> None:
    kernel = product(name, waves)
    shapes = [tuple(t.shape) for t in kernel.ir.args]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in shapes[:2])
    c = rng.integers(-4, 5, shapes[2]).astype(np.float32)
    want = a.astype(np.float32) @ b.astype(np.float32).T + c
    stats = kernel.simulate(a, b, c, seed=seed)
    assert stats.arch == ARCH  # the only one that has the instruction
    np.testing.assert_array_equal(c, want)


def test_a_part_of_a_wave_cannot_multiply() -> None:
    mfma = gr.atom("mfma.f32.32x32x1f32")
    with gr.Kernel("half") as kernel:
        gr.blocks(1)
        wave = gr.threads(64)
        (lane,) = wave.indices()
        a, b = (gr.alloc(x, [], gr.fp32, gr.RF) for x in "ab")
        c = gr.alloc("c", [32], gr.fp32, gr.RF)
        for t in (a, b, *(c[i] for i in range(32))):
            gr.init(t, 0)
        with gr.if_(lane < 32):
            gr.matmul(c, a, b, on=wave, atom=mfma)
    with pytest.raises(gr.GrapheneError, match="VERIFY_COLLECTIVE_DIVERGENT"):
        kernel.simulate()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_other_entries_simulate_and_compile(case: conformance.Case, tmp_path: Path) -> None:
    args = [(t.dtype.name, tuple(t.shape)) for t in case.kernel.ir.args]
    numpy = {"u8": np.uint8, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
    xs = [np.arange(np.prod(s)).reshape(s).astype(numpy[d]) for d, s in args]
    outs = xs[len(case.inputs) :]
    for y in outs:
        y[:] = 7
    case.kernel.simulate(*xs, arch=ARCH)
    for atom, y in zip(case.entries, outs, strict=True):
        x = xs[: len(case.inputs)]
        value = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
        op = atom.attrs.get("op", ("",))[0]
        want = 3 if atom.kind == "Init" else x[0] * x[1] + x[2] if atom.kind == "MatMul" else x[0]
        np.testing.assert_array_equal(y, value[op](*x) if op else want)
    if clang() is not None:
        compiled(case.kernel.cuda_source(ARCH), tmp_path)


def test_entries_of_one_vendor_do_not_run_on_the_other() -> None:
    assert not any(a.runs_on(ARCH) for a in gr.atoms().values() if a.arch.startswith("sm_"))
    with pytest.raises(gr.SelectError, match="want gfx90a, got sm_90a"):
        product(MFMA[1]).lowered("sm_90a")


# What hipcc and hiprtc declare before they read a kernel.
HIP = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
struct gr_index { unsigned x, y, z; };
extern const __device__ __attribute__((weak)) gr_index threadIdx, blockIdx;
static __device__ __forceinline__ void __syncthreads() { __builtin_amdgcn_s_barrier(); }
"""


def clang() -> str | None:
    installed = sorted(str(p) for p in Path("/usr/lib").glob("llvm*/bin/clang"))
    return shutil.which("clang") or (installed[-1] if installed else None)


def compiled(source: str, tmp_path: Path) -> str:
    """The assembly."""
    assert "asm" not in source
    (tmp_path / "hip.h").write_text(HIP)
    (tmp_path / "k.hip").write_text(source)
    command = [clang(), "-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", f"--offload-arch={ARCH}"]
    options = ["-std=c++17", "-O2", "-Werror", "-include", "hip.h", "-S", "-o", "-", "k.hip"]
    done = subprocess.run([*map(str, command), *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


with_clang = pytest.mark.skipif(clang() is None, reason="clang is not installed")


@with_clang
@pytest.mark.parametrize("name", [n for n in MFMA if "f16" in n])
def test_a_compiler_takes_the_hip_source(name: str, tmp_path: Path) -> None:
    assembly = compiled(product(name, waves=2).cuda_source(ARCH), tmp_path)
    assert f"v_mfma_f32_{name.split('.')[-1]}" in assembly
    assert "; ScratchSize: 0" in assembly  # accumulators stay in registers
