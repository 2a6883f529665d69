"""How matrix instructions round, measured: products a step, guard bits, rounding mode.

python benchmarks/mma_rounding.py --save DIR [name ...]     # on a GPU, with torch: runs the instructions
python benchmarks/mma_rounding.py --load DIR [name ...]     # anywhere: finds the rules

Every `mma` entry runs on operands that tell rounding rules apart: wide ranges of exponents, sums that cancel, subnormal
numbers. Each rule is then computed here, in exact arithmetic, and compared bit by bit; the table names the rules that
agree everywhere, or how often the best one does. What this prints for an architecture is what belongs into the
`numerics` of its entries.

A rule "aligned g=16 +2 rz" says: 16 products at a time are added to the running sum, all aligned to the largest of them
(exponents of the operands added, not those of the products), with 2 bits kept below its 24th, cut off there; the sum is
then rounded to the accumulator toward zero. "exact" keeps every bit until that last rounding.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "atoms"))
import conformance

import graphene as gr

TILES = 48  # of each kind of operands
CHECKED = 800  # results a rule is computed for
KINDS = ("wide", "cancelling", "one", "tiny")
# Significant bits, smallest normal exponent.
FORMATS = {"fp16": (11, -14), "bf16": (8, -126), "tf32": (11, -126), "fp32": (24, -126), "fp64": (53, -1022)}


def rounded(x: Fraction, dtype: str, mode: str) -> float:
    """To the format; "rn": to nearest even, "rz": toward zero."""
    if x == 0:
        return 0.0
    bits, smallest = FORMATS[dtype]
    sign, x = (-1.0, -x) if x < 0 else (1.0, x)
    unit = Fraction(2) ** (max(exponent(x), smallest) - bits + 1)
    q, r = divmod(x, unit)
    if mode == "rn" and (r * 2 > unit or (r * 2 == unit and q % 2)):
        q += 1
    return sign * float(q * unit)


def exponent(x: Fraction) -> int:
    """Of the leading bit of a positive number."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def cut(x: Fraction, unit: Fraction) -> Fraction:
    q = abs(x) // unit * unit
    return -q if x < 0 else q


@dataclass(frozen=True)
class Rule:
    """How one element d = c + sum of a[i] * b[i] is computed."""

    form: (
        str  # aligned, exact, chain (a group's products one after the other in fp32, then their sum to the running one)
    )
    group: int = 0
    guard: int = 0
    mode: str = "rn"

    def __str__(self) -> str:
        guard = f" +{self.guard}" if self.form == "aligned" else ""
        return f"{self.form} g={self.group}{guard} {self.mode}"

    def __call__(self, a: Any, b: Any, c: float, source: str, out: str) -> float:
        products = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
        smallest = FORMATS[source][1]
        tops = [
            max(exponent(abs(Fraction(float(x)))), smallest) + max(exponent(abs(Fraction(float(y)))), smallest)
            if x and y
            else -(10**6)
            for x, y in zip(a, b, strict=True)
        ]
        total = c
        for i in range(0, len(products), self.group):
            total = self.step(products[i : i + self.group], tops[i : i + self.group], total, out)
        return rounded(Fraction(total), out, self.mode)

    def step(self, products: list[Fraction], tops: list[int], c: float, out: str) -> float:
        start = Fraction(c)
        if self.form == "exact":
            return rounded(start + sum(products), out, self.mode)
        if self.form == "chain":
            part = 0.0
            for p in products:
                part = rounded(Fraction(part) + p, "fp32", self.mode)
            return rounded(start + Fraction(part), "fp32", self.mode)
        top = max(*tops, exponent(abs(start)) if start else -(10**6))
        if top == -(10**6):
            return c
        unit = Fraction(2) ** (max(top, -126) - 23 - self.guard)
        return rounded(cut(start, unit) + sum(cut(p, unit) for p in products), out, self.mode)


def rules(k: int) -> list[Rule]:
    groups = [g for g in (1, 2, 4, 8, 16) if g <= k]
    out = [Rule("exact", g, 0, mode) for g in groups for mode in ("rn", "rz")]
    out += [Rule("chain", g, 0, mode) for g in groups for mode in ("rn", "rz")]
    return out + [Rule("aligned", g, guard, mode) for g in groups[1:] for guard in range(5) for mode in ("rz", "rn")]


def quantised(x: Any, dtype: str) -> Any:
    if dtype == "fp16":
        return x.astype(np.float16).astype(np.float64)
    if dtype == "fp64":
        return x
    kept = {"bf16": 0xFFFF0000, "tf32": 0xFFFFE000, "fp32": 0xFFFFFFFF}[dtype]
    return (x.astype(np.float32).view(np.uint32) & np.uint32(kept)).view(np.float32).astype(np.float64)


def operands(rng: np.random.Generator, dtype: str, c_type: str, shape: Any, kind: str) -> tuple[Any, Any, Any]:
    """A, B and C."""
    reach = {"fp16": 5, "bf16": 12, "tf32": 12, "fp64": 25}[dtype]

    def numbers(size: Any, centre: int, spread: int, of: str) -> Any:
        mantissa = rng.integers(0, 1 << (FORMATS[of][0] - 1), size) / (1 << (FORMATS[of][0] - 1)) + 1
        x = np.ldexp(mantissa, rng.integers(centre - spread, centre + spread + 1, size)) * rng.choice([-1, 1], size)
        return np.where(rng.random(size) < 0.1, 0.0, x)

    m, n, k = shape
    if kind == "tiny":  # subnormal operands, and products below the accumulator's ulp
        low = FORMATS[dtype][1] + 2 if dtype == "fp16" else -62
        a, b = numbers((TILES, m, k), low, 3, dtype), numbers((TILES, n, k), 0 if dtype == "fp16" else -62, 3, dtype)
        return a, b, numbers((TILES, m, n), -14 if dtype == "fp16" else -124, 2, c_type)
    a, b = numbers((TILES, m, k), 0, reach, dtype), numbers((TILES, n, k), 0, reach, dtype)
    c = numbers((TILES, m, n), 0, 2 * reach if c_type != "fp16" else reach, c_type)
    if kind == "cancelling":  # half of the products are the others' negatives, nearly
        a[..., k // 2 :] = -a[..., : k // 2]
        b[..., k // 2 :] = b[..., : k // 2]
        a[..., -1] *= 1 + 2.0 ** -(FORMATS[dtype][0] - 1) * (np.abs(a[..., -1]) > 1)
    if kind == "one":  # probes: 1 plus products just below its ulp
        a = np.ldexp(rng.choice([-1, 1, 1, 1], a.shape), -rng.integers(10, 15, a.shape)).astype(np.float64)
        b = np.ldexp(np.ones(b.shape), -rng.integers(10, 15, b.shape))
        c = np.ones(c.shape)
    return a, b, c


def run(case: Any, a: Any, b: Any, c: Any, torch: Any) -> Any:
    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32} | {
        "fp32": torch.float32,
        "fp64": torch.float64,
    }
    dtypes = [kinds[t.dtype.name] for t in case.kernel.ir.args]
    d = np.empty(c.shape)
    for i in range(TILES):
        x = [torch.from_numpy(v[i]).to(t).cuda() for v, t in zip((a, b, c), dtypes, strict=False)]
        y = torch.zeros(c.shape[1:], dtype=dtypes[3], device="cuda")
        case.kernel(*x, y)
        d[i] = y.double().cpu().numpy()
    return d


def types(atom: gr.Atom) -> tuple[str, str]:
    return str(atom.operands["a"].dtypes[0]), str(atom.operands["d"].dtypes[0])


def measure(atom: gr.Atom, folder: Path, torch: Any) -> None:
    case = conformance.matrix_multiplies(atom)
    (m, k), (n, _) = case.shapes[0], case.shapes[1]
    rng = np.random.default_rng(1)
    for kind in KINDS:
        source, out = types(atom)
        a, b, c = operands(rng, source, out, (m, n, k), kind)
        a, b, c = quantised(a, source), quantised(b, source), quantised(c, out)
        np.savez_compressed(folder / f"{atom.name}-{kind}.npz", a=a, b=b, c=c, d=run(case, a, b, c, torch))


def explain(atom: gr.Atom, folder: Path) -> str:
    """The rules that give every result, or the best ones."""
    source, out = types(atom)
    score: dict[Rule, int] = {}
    rng = np.random.default_rng(2)
    count = 0
    for kind in KINDS:
        data = np.load(folder / f"{atom.name}-{kind}.npz")
        a, b, c, d = (data[x] for x in "abcd")
        finite = np.argwhere(np.isfinite(d))
        chosen = finite[rng.permutation(len(finite))[: CHECKED // len(KINDS)]]
        count += len(chosen)
        for rule in rules(a.shape[2]):
            good = sum(rule(a[t, x], b[t, y], float(c[t, x, y]), source, out) == d[t, x, y] for t, x, y in chosen)
            score[rule] = score.get(rule, 0) + good
    best = sorted(score, key=lambda r: -score[r])
    exact = [str(r) for r in best if score[r] == count]
    return "; ".join(exact) or "none; best: " + ", ".join(f"{r} {score[r]}/{count}" for r in best[:3])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", type=Path)
    what.add_argument("--load", type=Path)
    args = parser.parse_args()
    torch: Any = None
    if args.save:
        torch = importlib.import_module("torch")
        args.save.mkdir(parents=True, exist_ok=True)
        print(torch.cuda.get_device_name(), "capability", torch.cuda.get_device_capability())
    for atom in gr.atoms().values():
        is_float = atom.kind == "MatMul" and atom.thread_count > 1 and atom.operands["a"].dtypes[0] in FORMATS
        chosen = not args.names or atom.name in args.names
        if is_float and chosen and atom.arch.startswith("sm_") and not atom.name.endswith("/mul"):
            if args.save:
                measure(atom, args.save, torch)
            else:
                print(f"{atom.name:28} {explain(atom, args.load)}", flush=True)


if __name__ == "__main__":
    main()
