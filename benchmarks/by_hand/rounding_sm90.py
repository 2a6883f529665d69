"""How wgmma rounds on sm_90a: one product a block, C from memory, and the rule that gives every bit.

The rule, found on an H200 (`python -m benchmarks hopper` compares it again):

- f16, bf16 and tf32 into f32: all products of the instruction and C in one step, aligned to the largest (the exponents
  of the operands added), 2 bits kept below its 24th, the rest cut off; the sum is cut to fp32, as by `mma` of sm_90.
- f16 into f16: the same step, the sum rounded once to nearest even.
- fp8 into f32: the same step with 13 bits kept below the leading one of the largest; the sum is cut to 14 bits.
- fp8 into f16: the same aligned sum, rounded once to nearest even, not cut before.

A from registers gives the bits of A from shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

# Significant bits, least normal exponent.
FORMATS = {
    "f16": (11, -14),
    "bf16": (8, -126),
    "tf32": (11, -126),
    "f32": (24, -126),
    "e4m3": (4, -6),
    "e5m2": (3, -14),
}
REACH = {"f16": 5, "bf16": 12, "tf32": 12, "e4m3": 4, "e5m2": 7}  # of exponents in "wide" operands
KINDS = ("wide", "cancelling", "one", "tiny", "no C")


@dataclass(frozen=True)
class Product:
    """wgmma m64n8: `d` += `a` x `b`."""

    d: str
    a: str
    b: str

    @property
    def k(self) -> int:
        return 32 if self.a.startswith("e") else 8 if self.a == "tf32" else 16

    def __str__(self) -> str:
        return f"m64n8k{self.k}.{self.d}.{self.a}.{self.b}"

    def source(self, a_in_registers: bool) -> str:
        """A (tile, 64, 32 bytes), B (tile, 8, 32 bytes), C and D (tile, 64, 8)."""
        n = 4 if self.d == "f32" else 2
        number, register, constraint = ("float", "float", "f") if self.d == "f32" else ("u16", "u32", "r")
        d = ", ".join(f"d{i}" for i in range(n))
        majors = {True: ", 0", False: ", 0, 0"}[a_in_registers] if self.k == 16 else ""
        left = "{" + ", ".join(f"%{n + i}" for i in range(4)) + "}" if a_in_registers else f"%{n}"
        right = f"%{n + (4 if a_in_registers else 1)}"
        given = ", ".join(f'"r"(a{i})' for i in range(4)) if a_in_registers else '"l"(K_MAJOR | (pa & 0x3ffff) >> 4)'
        kept = ", ".join(f'"+{constraint}"(d{i})' for i in range(n))
        if self.d == "f32":
            places = [f"{('row', 'row8')[i // 2]} * 8 + column + {i % 2}" for i in range(4)]
            load = " ".join(f"d{i} = C[{p}];" for i, p in enumerate(places))
            store = " ".join(f"D[{p}] = d{i};" for i, p in enumerate(places))
        else:
            load = " ".join(f"d{i} = *(const u32*)(C + {r} * 8 + column);" for i, r in enumerate(("row", "row8")))
            store = " ".join(f"*(u32*)(D + {r} * 8 + column) = d{i};" for i, r in enumerate(("row", "row8")))
        rows = [f"{r} * 32 + {16 * h} + 4 * (t % 4)" for h in (0, 1) for r in ("row", "row8")]
        registers = " ".join(f"const u32 a{i} = *(const u32*)(A + {r}); (void)a{i};" for i, r in enumerate(rows))
        product = 'asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.'
        product += f"{self} {{{', '.join(f'%{i}' for i in range(n))}}}, {left}, {right}, p, 1, 1{majors};}}"
        product += f'" : {kept} : {given}, "l"(K_MAJOR | (pb & 0x3ffff) >> 4) : "memory");'
        return f"""
using u8 = unsigned char; using u16 = unsigned short; using u32 = unsigned int; using u64 = unsigned long long;
#define K_MAJOR ((u64)16 << 32 | (u64)8 << 16)  // 8 x 16 bytes side by side along k, 256 bytes between groups of rows
extern "C" __global__ void __launch_bounds__(128, 1) k(const u8* A, const u8* B, const {number}* C, {number}* D) {{
__shared__ __align__(1024) u8 sa[2048], sb[256];
const int t = threadIdx.x; A += blockIdx.x * 2048; B += blockIdx.x * 256; C += blockIdx.x * 512; D += blockIdx.x * 512;
for (int i = t; i < 2048; i += 128) sa[i / 256 * 256 + i % 32 / 16 * 128 + i / 32 % 8 * 16 + i % 16] = A[i];
for (int i = t; i < 256; i += 128) sb[i % 32 / 16 * 128 + i / 32 * 16 + i % 16] = B[i];
const int row = t / 32 * 16 + t % 32 / 4, row8 = row + 8, column = 2 * (t % 4);
{register} {d}; {load} {registers}
asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads();
const u32 pa = (u32)__cvta_generic_to_shared(sa), pb = (u32)__cvta_generic_to_shared(sb); (void)pa;
asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
{product}
asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
asm volatile("wgmma.wait_group.sync.aligned 0;" : {kept} :: "memory");
{store} }}
"""


PRODUCTS = (
    *(Product("f32", t, t) for t in ("f16", "bf16", "tf32")), Product("f16", "f16", "f16"),
    *(Product(d, a, b) for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
)  # fmt: skip


def operands(p: Product, kind: str, tiles: int, seed: int = 1) -> tuple[Any, Any, Any]:
    """A (tiles, 64, k), B (tiles, 8, k), C (tiles, 64, 8) in float64, which tell rounding rules apart."""
    rng = np.random.default_rng(seed)

    def numbers(shape: tuple[int, ...], centre: int, spread: int, of: str) -> Any:
        last = 1 << (FORMATS[of][0] - 1)
        x = np.ldexp(rng.integers(0, last, shape) / last + 1, rng.integers(centre - spread, centre + spread + 1, shape))
        return np.where(rng.random(shape) < 0.1, 0.0, x * rng.choice([-1, 1], shape))

    shapes = ((tiles, 64, p.k), (tiles, 8, p.k), (tiles, 64, 8))
    wide = p.a in ("bf16", "tf32")
    if kind == "tiny":
        low, other, c = (-62, -62, -124) if wide else (FORMATS[p.a][1] + 2, 0, -14)
        return numbers(shapes[0], low, 3, p.a), numbers(shapes[1], other, 3, p.b), numbers(shapes[2], c, 2, p.d)
    a, b = numbers(shapes[0], 0, REACH[p.a], p.a), numbers(shapes[1], 0, REACH[p.b], p.b)
    c = numbers(shapes[2], 0, 2 * min(REACH[p.a], 8) if p.d == "f32" else 5, p.d)
    if kind == "cancelling":
        a[..., p.k // 2 :], b[..., p.k // 2 :] = -a[..., : p.k // 2], b[..., : p.k // 2]
    if kind == "one":
        low, high = (10, 15) if p.k <= 16 else (2, 6)
        a = np.ldexp(rng.choice([-1.0, 1, 1, 1], shapes[0]), -rng.integers(low, high, shapes[0]))
        b, c = np.ldexp(1.0, -rng.integers(low, high, shapes[1])), np.ones(shapes[2])
    if kind == "no C":
        c = np.zeros(shapes[2])
    return a, b, c


def exponent(x: Fraction) -> int:
    """Of the leading bit of a number that is not 0."""
    e = abs(x).numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= abs(x) else e - 1


def cut(x: Fraction, unit: Fraction) -> Fraction:
    q = abs(x) // unit * unit
    return -q if x < 0 else q


def nearest(x: Fraction, unit: Fraction) -> Fraction:
    """To nearest, ties to even: Python's own rounding of fractions."""
    return round(x / unit) * unit


def rule(p: Product, a: Any, b: Any, c: float) -> float:
    """One element of the result."""
    fractions = [(Fraction(float(x)), Fraction(float(y))) for x, y in zip(a, b, strict=True) if x and y]
    least = FORMATS[p.a][1], FORMATS[p.b][1]
    tops = [sum(max(exponent(z), low) for z, low in zip(xy, least, strict=True)) for xy in fractions]
    start = Fraction(float(c))
    tops += [exponent(start)] if start else []
    if not tops:
        return float(c)
    fp8 = p.k == 32
    unit = Fraction(2) ** (max(*tops, -126) - (13 if fp8 else 25))
    total = cut(start, unit) + sum((cut(x * y, unit) for x, y in fractions), Fraction(0))
    if not total:
        return 0.0
    bits, low = FORMATS[p.d]
    if p.d == "f16":
        return float(nearest(total, Fraction(2) ** (max(exponent(total), low) - bits + 1)))
    return float(cut(total, Fraction(2) ** (max(exponent(total), low) - (13 if fp8 else 23))))


def results(count: int, got: Any, seed: int) -> Iterator[tuple[int, int, int]]:
    """Places of some of the finite results."""
    finite = np.argwhere(np.isfinite(got))
    chosen = finite[np.random.default_rng(seed).permutation(len(finite))[:count]]
    return ((int(t), int(x), int(y)) for t, x, y in chosen)
