"""What one lane alone does not show: barriers, contended atomics, conversions of every number; simulator and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import conformance
import numpy as np
import pytest
import reference

import graphene as gr

BUILT_IN = [a for a in gr.atoms().values() if a.arch.startswith("sm_")]
ATOMICS = [a for a in BUILT_IN if "combine" in a.attrs and not conformance.of_agents(a)
           and a.attrs["combine"][0] not in ("exchange", "cas")]  # fmt: skip  # whose result depends on the order
CASTS = [a for a in BUILT_IN if a.kind == "UnaryPointwise" and a.attrs.get("op", ("",))[0] == "cast"]
ARCHS = ["sm_80", "sm_90a", "sm_89", "sm_75", "sm_72", "sm_70"]


def arch_of(atom: gr.Atom) -> str:
    return next(a for a in ARCHS if atom.runs_on(a))


def on_device(kernel: gr.Kernel, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays, after the kernel has run on the device."""
    torch = pytest.importorskip("torch")
    names = {"bf16": torch.bfloat16, "fp8e4m3": torch.float8_e4m3fn, "fp8e5m2": torch.float8_e5m2, "pred": torch.bool}
    tensors = []
    for a, arg in zip(arrays, kernel.ir.args, strict=True):
        raw = torch.from_numpy(a.view(f"i{a.itemsize}").copy())
        t = arg.dtype.name
        tensors.append(raw.view(names[t] if t in names else getattr(torch, a.dtype.name)).cuda())
    kernel(*tensors)
    torch.cuda.synchronize()
    return [
        t.cpu().view(getattr(torch, f"int{8 * a.itemsize}")).numpy().view(a.dtype)
        for t, a in zip(tensors, arrays, strict=True)
    ]


def check_device(atom: gr.Atom | None, kernel: gr.Kernel, arrays: list[np.ndarray], want: list[np.ndarray]) -> None:
    torch = pytest.importorskip("torch")
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if atom is not None and not (atom.runs_on(arch) or atom.runs_on(arch + "a")):
        pytest.skip("the device lacks it")
    for arg, got, y in zip(kernel.ir.args, on_device(kernel, arrays), want, strict=True):
        g, w = (reference.decode(arg.dtype.name, a) for a in (got, y))
        wrong = reference.off(arg.dtype.name, g, w, 0)
        assert not wrong.any(), (arg.name, np.argwhere(wrong)[:3], g[wrong][:3], w[wrong][:3])


# ---- atomics that all lanes of all blocks contend for


def contention(atom: gr.Atom, blocks: int) -> tuple[gr.Kernel, list[np.ndarray], np.ndarray]:
    """A kernel, its arguments before, and what y is afterwards, in any order: sums are of small whole numbers."""
    kernel = conformance.contended(atom, blocks).kernel
    (x, y), dtype = kernel.ir.args, kernel.ir.args[0].dtype.name
    rng, combine = np.random.default_rng(0), atom.attrs["combine"][0]
    top = 2 if dtype == "bf16" else 5  # sums of bf16 below 256
    shapes = [tuple(x.shape), tuple(y.shape)]
    numbers = [rng.integers(0, top, s) for s in shapes]
    if combine != "add" and dtype not in reference.FORMATS:
        info = np.iinfo(reference.STORED[dtype])
        numbers = [rng.integers(info.min, info.max, s, info.dtype, endpoint=True) for s in shapes]
    raw = [reference.encode(dtype, n) for n in numbers]
    values, want = (reference.decode(dtype, r) for r in raw)
    rows = values.reshape(blocks, 8, 4, -1)  # lane t goes to row t % 4
    parts = [rows[b, i] for b in range(blocks) for i in range(8)]
    with np.errstate(over="ignore"):
        if shapes[1][0] == 4:
            for part in parts:
                want = reference.EXACT[combine](want, part)
        else:
            own = want.reshape(blocks, 4, -1)
            for i in range(8):
                own = reference.EXACT[combine](own, rows[:, i])
            want = own.reshape(shapes[1])
    return kernel, raw, reference.encode(dtype, want)


@pytest.mark.parametrize("atom", ATOMICS, ids=lambda a: a.name)
def test_every_update_of_a_contended_element_counts(atom: gr.Atom) -> None:
    kernel, (x, y), want = contention(atom, blocks=2)
    kernel.simulate(x, y, arch=arch_of(atom), seed=1)
    assert np.array_equal(y, want)


@pytest.mark.gpu
@pytest.mark.parametrize("atom", ATOMICS, ids=lambda a: a.name)
def test_contended_elements_on_the_device(atom: gr.Atom) -> None:
    kernel, (x, y), want = contention(atom, blocks=2 if "16" in atom.name else 300)
    check_device(atom, kernel, [x, y], [x, want])


# ---- conversions of every number


def numbers_of(dtype: str, rows: int) -> np.ndarray:
    """Every number of up to 16 bits; of larger types random bits, moderate numbers, and what is next to a boundary."""
    stored = np.dtype(reference.STORED[dtype])
    if dtype == "pred":
        return np.resize(np.array([False, True]), rows)
    if stored.itemsize <= 2:
        bits = 8 * stored.itemsize
        return np.resize(np.arange(2**bits, dtype=np.uint32).astype(f"u{stored.itemsize}"), rows).view(stored)
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (rows, stored.itemsize), np.uint8).view(stored).ravel()
    if stored.kind != "f":
        info = np.iinfo(stored)
        near = [
            (info.max >> i) + d for i in range(info.bits - 1) for d in (-1, 0, 1) if (info.max >> i) + d <= info.max
        ]
        raw[: len(near)] = near
        return raw
    moderate = rng.standard_normal(rows) * 2.0 ** rng.integers(-30, 70, rows)
    halves = np.arange(rows) / 2 - 20  # ties, for integers
    kinds = np.arange(rows) % 4
    return np.where(kinds < 2, raw, np.where(kinds == 2, moderate, halves).astype(stored)).astype(stored)


def conversion(atom: gr.Atom, blocks: int) -> tuple[gr.Kernel, np.ndarray, np.ndarray]:
    """A kernel, the numbers of each lane of the blocks, and room for the results; bytes where two numbers share one."""
    kernel = conformance.pointwise([atom], atom.name, blocks=blocks).kernel
    x, y = kernel.ir.args
    rows, values = reference.stored_shape(x.dtype.name, tuple(x.shape))
    xs = np.stack([np.roll(numbers_of(x.dtype.name, rows), 977 * i) for i in range(values)], 1)
    return kernel, xs, np.zeros(reference.stored_shape(y.dtype.name, tuple(y.shape)), reference.STORED[y.dtype.name])


@pytest.mark.parametrize("atom", CASTS, ids=lambda a: a.name)
def test_simulated_conversions_of_every_byte(atom: gr.Atom) -> None:
    """What the device is compared with; bits that a type does not have are none of its numbers."""
    kernel, xs, ys = conversion(atom, blocks=8)
    x, y = (a.dtype.name for a in kernel.ir.args)
    with np.errstate(all="ignore"):
        kernel.simulate(xs, ys, arch=arch_of(atom))
        want, _ = reference.pointwise(atom, [xs], [x], y)
    assert not reference.off(y, reference.decode(y, ys), want, 0).any()


@pytest.mark.gpu
@pytest.mark.parametrize("atom", CASTS, ids=lambda a: a.name)
def test_conversions_of_every_number_on_the_device(atom: gr.Atom) -> None:
    kernel, xs, ys = conversion(atom, blocks=2048)
    before = [xs.copy(), ys.copy()]
    with np.errstate(all="ignore"):
        kernel.simulate(xs, ys, arch=arch_of(atom))
    check_device(atom, kernel, before, [xs, ys])


# ---- barriers


def rounds(sync: str, threads: int, count: int = 40) -> tuple[gr.Kernel, Callable[[np.ndarray], np.ndarray]]:
    """Every round each thread adds its partner's number, through shared memory: a barrier that fails shows."""
    group = {"block": threads, "warps": 64, "warp": 32}[sync]
    with gr.Kernel("rounds") as kernel:
        x, y = gr.input("x", [3, threads], gr.i32), gr.output("y", [3, threads], gr.i32)
        grid, block = gr.blocks(3), gr.threads(threads)
        (b,), (t,) = grid.indices(), block.indices()
        on = None if sync == "block" else block.tile(group)[t // group]
        v, w = gr.alloc("v", [], gr.i32, gr.RF), gr.alloc("w", [], gr.i32, gr.RF)
        s = gr.alloc("s", [threads], gr.i32, gr.SH)
        gr.move(v, x[b, t])
        with gr.loop("i", count) as _:
            gr.move(s[t], v)
            gr.barrier(on=on)
            gr.move(w, s[t // group * group + (group - 1 - t % group)])
            gr.binary("mul", v, v, 3)
            gr.binary("add", v, v, w)
            gr.barrier(on=on)
        gr.move(y[b, t], v)

    def want(numbers: np.ndarray) -> np.ndarray:
        n = numbers.astype(np.uint32).reshape(3, -1, group)
        for _ in range(count):
            n = n * np.uint32(3) + n[..., ::-1]
        return n.reshape(3, threads).view(np.int32)

    return kernel, want


def copies(stages: int, count: int = 12) -> tuple[gr.Kernel, Callable[[np.ndarray], np.ndarray]]:
    """A ring of asynchronous copies: every thread sums what another one has copied, `stages` - 1 groups in flight."""
    load = gr.atom("cp.async.ca.4/b32")
    with gr.Kernel("copies") as kernel:
        x, y = gr.input("x", [count, 64], gr.i32, align_bytes=16), gr.output("y", [64], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        s = gr.alloc("s", [stages, 64], gr.i32, gr.SH, align_bytes=16)
        v, w = gr.alloc("v", [], gr.i32, gr.RF), gr.alloc("w", [], gr.i32, gr.RF)
        gr.init(v, 0)
        for i in range(count + stages - 1):
            if i < count:
                gr.move(s[i % stages, t], x[i, t], atom=load)
            gr.commit(load)
            if i >= stages - 1:
                gr.wait(load, pending=stages - 1)
                gr.barrier()
                gr.move(w, s[(i - stages + 1) % stages, 63 - t])
                gr.binary("mul", v, v, 3)
                gr.binary("add", v, v, w)
                gr.barrier()
        gr.wait(load, pending=0)
        gr.move(y[t], v)

    def want(numbers: np.ndarray) -> np.ndarray:
        n = np.zeros(64, np.uint32)
        for row in numbers.astype(np.uint32):
            n = n * np.uint32(3) + row[::-1]
        return n.view(np.int32)

    return kernel, want


SYNCS: dict[str, Callable[[], tuple[gr.Kernel, Any]]] = {
    "bar.sync": lambda: rounds("block", 256),
    "bar.sync/warps": lambda: rounds("warps", 256),
    "bar.warp.sync": lambda: rounds("warp", 128),
    "cp.async, 1 stage": lambda: copies(1),
    "cp.async, 3 stages": lambda: copies(3),
}


def synchronised(name: str) -> tuple[gr.Kernel, np.ndarray, np.ndarray]:
    kernel, want = SYNCS[name]()
    shape = tuple(kernel.ir.args[0].shape)
    x = np.random.default_rng(0).integers(-(2**31), 2**31, shape).astype(np.int32)
    return kernel, x, want(x)


@pytest.mark.parametrize("name", SYNCS)
def test_synchronised_threads_see_each_others_numbers(name: str) -> None:
    kernel, x, want = synchronised(name)
    y = np.zeros_like(want)
    kernel.simulate(x, y, seed=2)
    assert np.array_equal(y, want)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SYNCS)
def test_synchronised_threads_on_the_device(name: str) -> None:
    kernel, x, want = synchronised(name)
    check_device(None, kernel, [x, np.zeros_like(want)], [x, want])
