"""Every entry through the whole path: kernel, lowering, printing, NVRTC; on a GPU beside the simulator, bit for bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import conformance
import harness
import numpy as np
import pytest
import reference
from conformance import Case
from harness import plain

import graphene as gr

# When tests are collected: before any defines its own. Those of gfx90a are in test_gfx90a.py.
BUILT_IN = [a for a in gr.atoms().values() if a.arch.startswith("sm_")]
CASES = list(conformance.cases(BUILT_IN))
ARCHS = ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_70", "sm_72"]


def arch_of(case: Case) -> str:
    return next(a for a in ARCHS if all(x.runs_on(a) for x in case.entries))


def test_every_entry_is_in_a_case() -> None:
    covered = [a.name for c in CASES for a in c.entries]
    others = [a for a in BUILT_IN if a.kind == "Sync" or conformance.of_agents(a)]
    assert sorted(covered) == sorted(a.name for a in BUILT_IN if a not in others)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_lowers_and_prints(case: Case) -> None:
    """The generated text holds each entry's instruction."""
    text = case.kernel.cuda_source(arch_of(case))
    for atom in case.entries:
        words = plain(atom.ptx or atom.cxx).replace("{", " ").replace("$", " ").split()
        assert any(w in text for w in words)


@pytest.mark.parametrize("case", CASES[::7], ids=str)
def test_it_compiles(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seventh of them through NVRTC; every instruction's own text is compiled in test_entries.py."""
    monkeypatch.setenv("GRAPHENE_CACHE_DIR", str(tmp_path))
    if not harness.has_compiler(arch_of(case)):
        pytest.skip("no NVRTC for it")
    binary = case.kernel.compile(arch_of(case))
    assert binary.spill_bytes == 0


def small_case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


@pytest.mark.parametrize("accumulator", ["f32", "f16"])
def test_a_simulated_matrix_multiply_is_numpys(accumulator: str) -> None:
    case = small_case(f"mma.m16n8k16.{accumulator}.f16")
    rng = np.random.default_rng(0)
    dtype = np.float32 if accumulator == "f32" else np.float16
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in case.shapes[:2])
    c = rng.integers(-4, 5, case.shapes[2]).astype(dtype)
    y = np.zeros(case.shapes[3], dtype)
    case.kernel(a, b, c, y)
    np.testing.assert_array_equal(y, a.astype(np.float64) @ b.astype(np.float64).T + c)


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_sums_wrap_or_saturate(saturate: bool) -> None:
    case = conformance.matrix_multiplies(gr.atom("mma.m16n8k32.s32.u8"), saturate=saturate)
    a, b = np.full((16, 32), 255, np.uint8), np.full((8, 32), 255, np.uint8)
    c = np.full((16, 8), 2**31 - 100, np.int32)
    y = np.zeros_like(c)
    case.kernel(a, b, c, y)
    total = 2**31 - 100 + 32 * 255 * 255
    assert (y == (2**31 - 1 if saturate else total - 2**32)).all()
    assert (".satfinite" in case.kernel.cuda_source("sm_80")) == saturate


MATRICES = [a.name for a in BUILT_IN if a.family.startswith(("ldmatrix", "stmatrix"))]


@pytest.mark.parametrize("atom", MATRICES)
def test_simulated_matrix_loads_move_every_element(atom: str) -> None:
    case = small_case(atom)
    dtype = np.int8 if ".b8" in atom else np.float32 if ".b32" in atom else np.float16
    x = np.random.default_rng(0).permutation(np.arange(-128, 128)).astype(dtype)
    x = np.resize(x, (16, 32 // x.itemsize))
    y = np.zeros_like(x)
    case.kernel.simulate(x, y, arch=arch_of(case))
    np.testing.assert_array_equal(y, x.T if ".trans" in atom else x)


# Every entry in the simulator: reference.py says what it computes.


def signature(case: Case) -> tuple[list[tuple[str, tuple[int, ...]]], int]:
    """(dtype, shape) of every argument, and how many are inputs."""
    args = case.kernel.ir.args
    return [(t.dtype.name, tuple(t.shape)) for t in args], sum(t.name.startswith("x") for t in args)


def combines(case: Case) -> bool:
    return "combine" in case.entries[0].attrs


def sample(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], case: Case) -> np.ndarray:
    """Raw numbers: small whole ones where sums must be exact, else wide ones with all that is special, too."""
    stored = np.dtype(reference.STORED[dtype])
    if dtype in ("i4", "u4"):
        return rng.integers(0, 256, (*shape[:-1], shape[-1] // 2), np.uint8)
    if dtype == "pred" or case.small:
        return reference.encode(dtype, rng.integers(0, 2 if dtype == "pred" else 5, shape))
    if dtype not in reference.FORMATS:
        info = np.iinfo(stored)
        x = rng.integers(info.min, info.max, shape, stored, endpoint=True)
        x.flat[:3] = [info.min, info.max, 0]
        return x
    x = rng.standard_normal(shape) * 4
    if converts(case):
        f = reference.FORMATS[dtype]
        x *= 2.0 ** rng.integers(max(f.smallest, -40), min(2 ** (f.exponent - 1), 70), shape)
        top, least = f.largest, math.ldexp(1, f.smallest)
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, top, -top, least, 0.5, 1.5, 2.5]
        x.flat[: len(special)] = special
    return reference.encode(dtype, x)


def converts(case: Case) -> bool:
    return case.entries[0].attrs.get("op", ("",))[0] == "cast"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_computes_what_its_definition_says(case: Case) -> None:
    args, inputs = signature(case)
    rng = np.random.default_rng(1)
    xs = [sample(rng, d, s, case) for d, s in args[:inputs]]
    if {"sqrt", "rsqrt", "log", "log2", "pow"} & {a.attrs.get("op", ("",))[0] for a in case.entries}:
        xs[0] = reference.encode(args[0][0], np.abs(reference.decode(args[0][0], xs[0])))
    ys = [np.zeros_like(reference.encode(d, np.zeros(s))) for d, s in args[inputs:]]
    if combines(case):
        ys[0] = sample(rng, *args[1], case)
    old = ys[0].copy()
    case.kernel.simulate(*xs, *ys, arch=arch_of(case))
    types = [d for d, _ in args]
    entries = case.entries * (len(ys) if combines(case) else 1)
    for i, (atom, y, out) in enumerate(zip(entries, ys, types[inputs:], strict=True)):
        got, ulps = reference.decode(out, y), 0.0
        numbers = [reference.decode(d, x) for d, x in zip(types, xs, strict=False)]
        if combines(case) and i == 1:
            want = reference.decode(out, old)
        elif combines(case) and atom.attrs["combine"][0] in ("exchange", "cas"):
            even = np.arange(len(got))[:, None] % 2 == 0
            want = np.where(even | (atom.attrs["combine"][0] == "exchange"), numbers[0], reference.decode(out, old))
        elif combines(case):
            want = reference.EXACT[atom.attrs["combine"][0]](reference.decode(out, old), numbers[0])
            want = reference.rounded(out, want) if out in reference.FORMATS else want
        elif atom.kind == "Reduction" and atom.attrs["op"][0] in reference.VOTES:
            want = reference.VOTES[atom.attrs["op"][0]](numbers[0])
        elif atom.kind == "Reduction":
            want = np.full_like(got, reference.EXACT[atom.attrs["op"][0]].reduce(numbers[0].ravel()))
        elif atom.kind == "Init":
            want = np.full_like(got, 3)
        elif atom.kind == "Shfl":
            want = reference.exchanged(atom, numbers[0])
        elif atom.kind == "Move":
            want = numbers[0].T if ".trans" in atom.name else numbers[0]
        elif atom.thread_count > 1:
            want = reference.products(atom, *numbers, steps=2)
        else:
            want, ulps = reference.pointwise(atom, xs, types[:inputs], out)
        wrong = reference.off(out, got, want, ulps)
        assert not wrong.any(), (
            atom.name,
            [n[wrong] for n in numbers if n.shape == got.shape],
            got[wrong],
            want[wrong],
        )


# On a GPU.

TORCH = reference.STORED | {"bf16": "bfloat16", "fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2"}
BITS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def random(torch: Any, dtype: str, shape: tuple[int, ...], small: bool) -> Any:
    """Half of the numbers have random bits, the others moderate values."""
    t, shape = getattr(torch, TORCH[dtype]), reference.stored_shape(dtype, shape)
    if dtype == "pred":
        return torch.randint(0, 2, shape).bool()
    if small:
        return torch.randint(-4, 5, shape).to(t)
    raw = torch.randint(0, 256, (*shape, t.itemsize), dtype=torch.uint8).view(t).reshape(shape)
    if not t.is_floating_point:
        return raw
    values = (torch.randn(shape, dtype=torch.float64) * 4).to(t)
    mixed = torch.where(torch.rand(shape) < 0.5, raw.to(torch.float64), values.to(torch.float64))
    for i, special in enumerate([float("nan"), float("inf"), -float("inf"), -0.0]):
        mixed[i, i % shape[1]] = special
    return mixed.to(t)


def agree(torch: Any, atom: gr.Atom, want: Any, got: Any) -> Any:
    """Equal bits; any two NaNs; within the entry's stated tolerance."""
    same = want.view(getattr(torch, BITS[want.itemsize])) == got.view(getattr(torch, BITS[got.itemsize]))
    if not want.dtype.is_floating_point:
        return same
    w, g = want.to(torch.float64), got.to(torch.float64)
    same |= w.isnan() & g.isnan()
    ulps = max((n["ulps"] for n in atom.numerics), default=0.0)
    if not ulps:
        return same
    # Functions with zeros inside their range are as exact as their values near 1.
    scale = w.abs().clamp(min=1.0 if ulps > 4 else 0.0)
    tiny = float(torch.finfo(want.dtype).tiny)  # subnormal results may become zero
    return same | ((w - g).abs() <= ulps * float(torch.finfo(want.dtype).eps) * scale + tiny)


def tensors(torch: Any, case: Case) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs, as the simulator and the device take them."""
    args, inputs = signature(case)
    if any(d not in TORCH for d, _ in args):
        pytest.skip("torch lacks one of the types")
    torch.manual_seed(0)
    ins = [random(torch, d, s, case.small) for d, s in args[:inputs]]
    outs = [torch.zeros(reference.stored_shape(d, s), dtype=getattr(torch, TORCH[d])) for d, s in args[inputs:]]
    if combines(case):
        outs[0] = random(torch, *args[1], case.small)
    return ins, outs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulator_takes_the_devices_tensors(case: Case) -> None:
    ins, outs = tensors(pytest.importorskip("torch"), case)
    case.kernel.simulate(*ins, *outs, arch=arch_of(case))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_device_computes_the_simulators_bits(case: Case) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    device_arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if any(not a.arch.endswith("+") and a.arch.rstrip("af") != device_arch for a in case.entries):
        pytest.skip("the device lacks it")
    host, outs = tensors(torch, case)
    device = [t.cuda() for t in (*host, *outs)]
    case.kernel.simulate(*host, *outs, arch=arch_of(case))
    case.kernel(*device)
    torch.cuda.synchronize()
    entries = case.entries * (len(outs) if combines(case) else 1)
    for atom, want, got in zip(entries, outs, device[len(host) :], strict=True):
        same = agree(torch, atom, want, got.cpu())
        if atom.attrs.get("op", ("",))[0] in ("sin", "cos"):  # the fast ones make no sense far from zero
            same |= ~(host[0].to(torch.float64).abs() < 32)
        if not bool(same.all()):
            at = tuple((~same).nonzero()[0].tolist())
            shown = [h[at[0]].tolist() for h in host]
            pytest.fail(f"{atom.name}: inputs {shown}, simulator {want[at].item()!r}, device {got[at].item()!r}")


def tolerance(atom: gr.Atom, arch: int) -> float:
    """Ulps that an entry allows on an architecture; 0: equal bits are promised."""
    for n in atom.numerics:
        pattern = str(n["arch"])
        number = int(pattern[3:].rstrip("+"))
        if number == arch or (pattern.endswith("+") and number < arch):
            return float(n["ulps"])
    return 0.0


PRODUCTS = [a.name for a in BUILT_IN if a.name.startswith("mma.") and not a.name.endswith("/mul")]


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [0, 6])
@pytest.mark.parametrize("name", PRODUCTS)
def test_sums_that_round_have_the_simulators_bits(name: str, spread: int) -> None:
    """Random numbers of 2 * spread + 1 binades: most sums are cut off or rounded.

    Entries whose rule was not measured state a tolerance, which counts for each step and is relative to the sum of
    the magnitudes.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    major, minor = torch.cuda.get_device_capability()
    if not gr.atom(name).runs_on(f"sm_{major}{minor}"):
        pytest.skip("the device lacks it")
    case = conformance.matrix_multiplies(gr.atom(name), steps=4, scale=2)
    args, _ = signature(case)
    torch.manual_seed(spread)
    tensors = []
    for dtype, shape in args:
        t = getattr(torch, TORCH[dtype])
        x = torch.randn(shape, dtype=torch.float64) * 2.0 ** torch.randint(-spread, spread + 1, shape)
        tensors.append(x.to(t) if t.is_floating_point else torch.randint(-128 if t.is_signed else 0, 128, shape).to(t))
    device = [t.cuda() for t in tensors]
    case.kernel.simulate(*tensors, arch=f"sm_{major}{minor}")
    case.kernel(*device)
    want, got = tensors[3], device[3].cpu()
    bits = getattr(torch, BITS[want.itemsize])
    same = want.view(bits) == got.view(bits)
    if ulps := tolerance(gr.atom(name), 10 * major + minor):
        a, b = (t.to(torch.float64).abs() for t in tensors[:2])
        scale = a @ b.T + tensors[2].to(torch.float64).abs()
        error = (want.to(torch.float64) - got.to(torch.float64)).abs()
        same |= error <= 4 * ulps * float(torch.finfo(want.dtype).eps) * scale
    assert bool(same.all()), f"{(~same).sum().item()} of {same.numel()} differ"
