"""How matrix instructions round, against rational arithmetic: every step of the entry's numerics, to the last bit."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import graphene as gr

NUMPY = {gr.fp16: np.float16, gr.fp32: np.float32}


def product(mma: gr.Atom, accumulator: gr.DType) -> gr.Kernel:
    """D = C + A @ B.T of one instruction."""
    with gr.Kernel("product") as kernel:
        a = gr.input("A", [16, 16], gr.fp16, align_bytes=16)
        b = gr.input("B", [8, 16], gr.fp16, align_bytes=16)
        c = gr.input("C", [16, 8], accumulator, align_bytes=16)
        d = gr.output("D", [16, 8], accumulator, align_bytes=16)
        gr.blocks(1)
        warp = gr.threads(32)
        ra = gr.fragment("ra", [16, 16], gr.fp16, mma.a, on=warp)
        rb = gr.fragment("rb", [8, 16], gr.fp16, mma.b, on=warp)
        acc = gr.fragment("acc", [16, 8], accumulator, mma.c, on=warp)
        for register, memory in ((ra, a), (rb, b), (acc, c)):
            gr.move(register, memory, atom=gr.atom("ld.global.b32"))
        gr.matmul(acc, ra, rb.T, atom=mma)
        gr.move(d, acc, atom=gr.atom("st.global.b32"))
    return kernel


def exponent(x: float) -> int:
    """Of an operand, as the multiplier sees it: subnormals have that of the smallest normal half."""
    return max(math.frexp(x)[1] - 1, -14)


def to_float(x: Fraction, truncate: bool) -> float:
    near = np.float32(float(x))  # at most 53 bits: the double is exact
    if truncate and abs(Fraction(float(near))) > abs(x):
        near = np.nextafter(near, np.float32(0))
    return float(near)


def to_half(x: Fraction) -> float:
    near = np.float16(float(x)) if abs(x) < 65520 else np.float16(math.copysign(math.inf, x))
    if not np.isfinite(near):
        return float(near)
    around = [np.nextafter(near, np.float16(s)) for s in (-np.inf, np.inf)] + [near]
    finite = [v for v in around if np.isfinite(v)]
    return float(min(finite, key=lambda v: (abs(Fraction(float(v)) - x), int(v.view(np.uint16)) & 1)))


def step(c: float, pairs: list[tuple[float, float]], numerics: dict[str, Any], half: bool) -> float:
    """c plus some products, in one rounding step. A sum that overflowed before stays infinite."""
    if math.isinf(c):
        return c
    exact = Fraction(c) + sum(Fraction(x) * Fraction(y) for x, y in pairs)
    if numerics["guard_bits"] < 0:
        return to_half(exact) if half else to_float(exact, False)
    terms = [(exponent(x) + exponent(y), Fraction(x) * Fraction(y)) for x, y in pairs if x != 0 and y != 0]
    if c != 0:
        terms.append((math.frexp(c)[1] - 1, Fraction(c)))
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(max(e for e, _ in terms), -126) - 23 - numerics["guard_bits"])
    total = sum((math.trunc(v / unit) for _, v in terms), start=0) * unit
    return to_half(total) if half else to_float(total, numerics["round"] == "rz")


def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray, numerics: dict[str, Any]) -> np.ndarray:
    d = np.zeros_like(c)
    for i in range(16):
        for j in range(8):
            x = float(c[i, j])
            for k in range(0, 16, numerics["group"]):
                pairs = [(float(a[i, z]), float(b[j, z])) for z in range(k, k + numerics["group"])]
                x = step(x, pairs, numerics, c.dtype == np.float16)
            d[i, j] = x
    return d


def wide(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Halves of every magnitude, subnormals and zeros among them."""
    bits = rng.integers(0, 1 << 16, shape).astype(np.uint16)
    x = np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).astype(np.uint16).view(np.float16)
    return np.where(rng.integers(0, 5, shape) == 0, np.float16(0), x)


def near(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Halves whose products differ by less than a sum keeps."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(np.float16)


def numerics_of(atom: gr.Atom, arch: str) -> dict[str, Any]:
    for n in atom.numerics:
        pattern = n["arch"]
        fits = int(arch[3:]) >= int(pattern[3:-1]) if pattern.endswith("+") else pattern == arch
        if fits:
            return dict(n)
    raise AssertionError(f"{atom.name} has no numerics on {arch}")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("accumulator", [gr.fp32, gr.fp16])
@pytest.mark.parametrize("draw", [wide, near])
def test_every_bit(arch: str, accumulator: gr.DType, draw: Any) -> None:
    mma = gr.atoms()[f"mma.m16n8k16.{'f32' if accumulator == gr.fp32 else 'f16'}.f16"]
    kernel = product(mma, accumulator)
    rng = np.random.default_rng(7)
    for _ in range(3):
        a, b = draw(rng, 16, 16), draw(rng, 8, 16)
        c = draw(rng, 16, 8).astype(NUMPY[accumulator])
        c[0] = 0
        a[1] = 0
        d = np.zeros_like(c)
        kernel.simulate(a, b, c, d, arch=arch)
        with np.errstate(over="ignore"):
            want = reference(a, b, c, numerics_of(mma, arch))
        assert np.array_equal(d, want), np.argwhere(d != want)


@pytest.mark.parametrize("accumulator", [gr.fp32, gr.fp16])
def test_infinities_nans_and_the_signs_of_zeros(accumulator: gr.DType) -> None:
    mma = gr.atoms()[f"mma.m16n8k16.{'f32' if accumulator == gr.fp32 else 'f16'}.f16"]
    kernel = product(mma, accumulator)
    a, b = np.full((16, 16), -0.0, np.float16), np.ones((8, 16), np.float16)
    c = np.full((16, 8), -0.0, NUMPY[accumulator])
    a[1, 3] = np.inf
    a[2, 3] = np.nan
    a[3, 3], a[3, 4] = np.inf, -np.inf
    a[4, 0] = 0.0
    c[5] = 0.0
    c[6] = np.inf
    d = np.zeros_like(c)
    kernel.simulate(a, b, c, d, arch="sm_90")
    assert (np.signbit(d[0]) & (d[0] == 0)).all()  # all terms are -0
    assert (d[1] == np.inf).all()
    assert np.isnan(d[2]).all()
    assert np.isnan(d[3]).all()
    for row in (4, 5):
        assert (~np.signbit(d[row]) & (d[row] == 0)).all()
    assert (d[6] == np.inf).all()
