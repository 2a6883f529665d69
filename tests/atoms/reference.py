"""What every entry computes, from its definition, written apart from the simulator.

Arrays hold raw bits where NumPy lacks the type: `decode` makes doubles of them, `rounded` the nearest numbers of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

import graphene as gr

STORED = {"fp16": "float16", "fp32": "float32", "tf32": "float32", "fp64": "float64", "pred": "bool"}
STORED |= {"bf16": "uint16", "fp8e4m3": "uint8", "fp8e5m2": "uint8"}
STORED |= dict.fromkeys(("i4", "u4", "fp4e2m1", "fp6e2m3", "fp6e3m2"), "uint8")
STORED |= {f"{s}{n}": f"{'u' * (s == 'u')}int{n}" for s in "iu" for n in (8, 16, 32, 64)}


class Format(NamedTuple):
    """Bits of the significand and of the exponent; the largest number."""

    digits: int
    exponent: int
    largest: float

    @property
    def smallest(self) -> int:
        """Exponent of the smallest number."""
        return 2 - 2 ** (self.exponent - 1) - (self.digits - 1)


FORMATS = {
    "fp16": Format(11, 5, 65504.0),
    "bf16": Format(8, 8, float.fromhex("0x1.fep127")),
    "tf32": Format(11, 8, float.fromhex("0x1.ffcp127")),
    "fp32": Format(24, 8, float.fromhex("0x1.fffffep127")),
    "fp64": Format(53, 11, float.fromhex("0x1.fffffffffffffp1023")),
    "fp8e4m3": Format(4, 4, 448.0),
    "fp8e5m2": Format(3, 5, 57344.0),
    "fp6e2m3": Format(4, 2, 7.5),
    "fp6e3m2": Format(3, 3, 28.0),
    "fp4e2m1": Format(2, 2, 6.0),
}
PACKED = ("i4", "u4", "fp4e2m1")  # two in a byte, the first in its low bits
FINITE = ("fp4e", "fp6e")  # without infinity and NaN: their largest number stands for both


def stored_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the array that holds such a tensor: of bytes, where two elements share one."""
    return (*shape[:-1], shape[-1] // 2) if dtype in PACKED else shape


def decode(dtype: str, raw: np.ndarray) -> np.ndarray:
    """Doubles, or integers as they are."""
    if dtype in PACKED:
        raw = np.stack([raw & 15, raw >> 4], -1).reshape(*raw.shape[:-1], -1)
    if dtype in ("i4", "u4"):
        return raw.astype(np.int64) - 16 * (raw > 7) if dtype == "i4" else raw.astype(np.int64)
    if dtype.startswith(FINITE):
        f = FORMATS[dtype]
        e, m = raw >> (f.digits - 1) & (2**f.exponent - 1), raw & (2 ** (f.digits - 1) - 1)
        x = np.ldexp(np.where(e > 0, m + 2.0 ** (f.digits - 1), m), f.smallest + np.maximum(e, 1).astype(np.int64) - 1)
        return np.where(raw >> (f.digits + f.exponent - 1) & 1, -x, x)
    if dtype == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype.startswith("fp8"):
        f = FORMATS[dtype]
        m = (raw & (2 ** (f.digits - 1) - 1)).astype(np.float64)
        e = (raw >> (f.digits - 1) & (2**f.exponent - 1)).astype(np.int64)
        x = np.where(
            e == 0, np.ldexp(m, f.smallest), np.ldexp(m + 2 ** (f.digits - 1), f.smallest + np.maximum(e, 1) - 1)
        )
        top = e == 2**f.exponent - 1
        if dtype == "fp8e4m3":
            x = np.where(top & (m == 7), np.nan, x)
        else:
            x = np.where(top, np.where(m == 0, np.inf, np.nan), x)
        return np.where(raw >> 7 != 0, -x, x)
    return raw.astype(np.float64) if raw.dtype.kind == "f" else raw


def rounded(dtype: str, x: Any, how: str = "rn") -> np.ndarray:
    """The numbers of a type next to x (floats, or exact fractions): to nearest even, "rz" toward zero, "rna" away."""
    f, out = FORMATS[dtype], []
    saturates = dtype.startswith(("fp8", *FINITE)) or how == "rz"
    for v in np.asarray(x, object).ravel():
        if dtype.startswith(FINITE) and v != v:
            out.append(f.largest)
            continue
        if not isinstance(v, Fraction) and not math.isfinite(v):
            out.append(
                math.copysign(f.largest, v) if dtype.startswith(("fp8", *FINITE)) and math.isinf(v) else float(v)
            )
            continue
        exact = abs(Fraction(v))
        negative = v < 0 or (v == 0 and not isinstance(v, Fraction) and math.copysign(1, v) < 0)
        e = exact.numerator.bit_length() - exact.denominator.bit_length()
        if exact < Fraction(2) ** e:
            e -= 1
        quantum = Fraction(2) ** max(e - (f.digits - 1), f.smallest)
        n = exact / quantum
        whole = round(n) if how == "rn" else math.floor(n + Fraction(1, 2)) if how == "rna" else math.floor(n)
        y = whole * quantum
        value = float(y) if y <= Fraction(f.largest) else f.largest if saturates else math.inf
        out.append(-value if negative else value)
    return np.array(out, np.float64).reshape(np.shape(x))


def encode(dtype: str, x: np.ndarray) -> np.ndarray:
    """The stored form of numbers, rounded to nearest even."""
    if dtype in ("i4", "u4"):
        return _joined(np.asarray(x).astype(np.int64).astype(np.uint8) & 15)
    if dtype not in FORMATS:
        return np.asarray(x).astype(STORED[dtype])
    y = rounded(dtype, np.asarray(x, np.float64))
    if dtype == "bf16":
        return (y.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.startswith(("fp8", *FINITE)):
        codes = np.arange(16 if dtype in PACKED else 64 if dtype.startswith("fp6e") else 256, dtype=np.uint8)
        table = decode(dtype, _joined(codes) if dtype in PACKED else codes)
        match = (table == y[..., None]) & (np.signbit(table) == np.signbit(y)[..., None])
        match |= np.isnan(table) & np.isnan(y)[..., None]
        found = match.argmax(-1).astype(np.uint8)
        return _joined(found) if dtype in PACKED else found
    return y.astype(STORED[dtype])


def _joined(codes: np.ndarray) -> np.ndarray:
    return codes[..., ::2] | codes[..., 1::2] << 4


def _fma(*operands: np.ndarray) -> np.ndarray:
    """x * y + z exactly, as fractions; finite numbers."""
    return np.frompyfunc(lambda x, y, z: Fraction(x) * Fraction(y) + Fraction(z), 3, 1)(
        *(o.astype(object) for o in operands)
    )


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.frompyfunc(lambda a, b: Fraction(a) / Fraction(b) if b else math.copysign(math.inf, a), 2, 1)(
        x.astype(object), y.astype(object)
    )


def _bitwise(one: Callable[..., int]) -> Callable[..., np.ndarray]:
    """A function of Python's integers without a sign, and of the number of bits, of arrays."""

    def apply(*xs: np.ndarray) -> np.ndarray:
        bits = 8 * xs[0].itemsize
        rows = zip(*(x.view(f"u{x.itemsize}").ravel().tolist() for x in xs), strict=True)
        y = np.array([one(bits, *row) % 2**bits for row in rows], f"u{xs[0].itemsize}")
        return y.view(xs[0].dtype).reshape(xs[0].shape)

    return apply


def _permuted(_: int, x: int, y: int, selector: int) -> int:
    given = (x | y << 32).to_bytes(8, "little")
    nibbles = [selector >> (4 * i) & 15 for i in range(4)]
    return int.from_bytes(bytes(given[n & 7] if n < 8 else 255 * (given[n & 7] >> 7) for n in nibbles), "little")


TABLE = 0xE4  # of lop3: y where z is set, else x


def _by_table(bits: int, x: int, y: int, z: int) -> int:
    places = (4 * (x >> i & 1) + 2 * (y >> i & 1) + (z >> i & 1) for i in range(bits))
    return sum((TABLE >> place & 1) << i for i, place in enumerate(places))


def _dot(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Sums of products of the bytes of words."""
    byte = np.dtype(x.dtype.kind + "1")
    parts = (x.view(byte).reshape(*x.shape, 4).astype(np.int64), y.view(byte).reshape(*y.shape, 4).astype(np.int64))
    return ((parts[0] * parts[1]).sum(-1) + z.astype(np.int64)).astype(x.dtype)


def _upper_half(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ((x.astype(object) * y.astype(object)) >> (8 * x.itemsize)).astype(x.dtype)


INTEGERS: dict[str, Callable[..., Any]] = {
    "popc": _bitwise(lambda bits, x: x.bit_count()), "clz": _bitwise(lambda bits, x: bits - x.bit_length()),
    "ffs": _bitwise(lambda bits, x: (x & -x).bit_length()),
    "brev": _bitwise(lambda bits, x: int(f"{x:0{bits}b}"[::-1], 2)), "prmt": _bitwise(_permuted), "dp4a": _dot,
    "lop3": _bitwise(_by_table),
    "mulhi": _upper_half, "floordiv": np.floor_divide, "mod": np.remainder,
}  # fmt: skip
# Of the 32 lanes of a warp, a bit each.
VOTES: dict[str, Callable[..., Any]] = {
    "ballot": lambda x: np.full(x.shape, sum(int(v) << i for i, v in enumerate(x.ravel())), np.uint32),
    "match": lambda x: np.array([[sum(int(v == w) << i for i, w in enumerate(x.flat))] for v in x.flat], np.uint32),
}  # fmt: skip
EXACT: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "max": np.fmax, "min": np.fmin, "neg": np.negative, "abs": np.abs, "floor": np.floor,
    "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "where": np.where, "fma": _fma, "sqrt": np.sqrt,
    "div": _quotient, "rcp": lambda x: _quotient(np.ones_like(x), x), "not": np.invert,
    "fmod": np.fmod, **INTEGERS,
}  # fmt: skip
# Rounded from the true value, as near as a double tells it.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "erf": np.vectorize(math.erf), "rsqrt": lambda x: 1 / np.sqrt(x),
    "pow": np.power,
}  # fmt: skip


def _integers(x: np.ndarray, of: str, dtype: str) -> np.ndarray:
    """Floats cut to integers: too large ones are the largest; NaN is 0, of 64 bits on a side the top bit alone."""
    info = np.iinfo(STORED[dtype])
    wide = of == "fp64" or info.bits == 64
    nan = info.min if wide and info.min else 2**63 if wide and info.bits == 64 else 2**31 if wide else 0

    def one(v: float) -> int:
        return (
            nan
            if math.isnan(v)
            else min(max(int(v) if math.isfinite(v) else int(math.copysign(2**70, v)), info.min), info.max)
        )

    return np.array([one(float(v)) for v in x.ravel()], object).astype(STORED[dtype]).reshape(x.shape)


def _shifted(op: str, x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """PTX shl, shr: all bits are out where the amount, without a sign, is the width or more."""
    bits = 8 * x.itemsize

    def one(v: int, by: int) -> int:
        by = min(by % 2**bits, bits)
        return (v << by if op == "shl" else v >> by) % 2**bits

    y = np.array([one(int(v), int(by)) for v, by in zip(x.ravel(), n.ravel(), strict=True)], f"uint{bits}")
    return y.view(x.dtype).reshape(x.shape)


def pointwise(atom: gr.Atom, xs: list[np.ndarray], types: list[str], out: str) -> tuple[np.ndarray, float]:
    """The results of an entry of one thread, decoded, and how many units in the last place they may be off.

    ``xs``: raw operands of these types, an accumulator last.
    """
    values = [decode(t, x) for t, x in zip(types, xs, strict=True)]
    op = "fma" if atom.kind == "MatMul" and len(xs) == 3 else "mul" if atom.kind == "MatMul" else atom.attrs["op"][0]
    if op == "cast":
        (x,) = values
        how = "rna" if out == "tf32" and types[0] != "tf32" else "rz" if atom.attrs.get("round") == ("rz",) else "rn"
        if out == "pred":
            return x != 0, 0
        if out in FORMATS:
            if types[0] not in FORMATS:
                x = np.frompyfunc(lambda v: Fraction(int(v)), 1, 1)(x.astype(object))
            return rounded(out, x, how), 0
        if out in PACKED:
            return decode(out, encode(out, x)), 0
        return (x.astype(STORED[out]) if types[0] not in FORMATS else _integers(x, types[0], out)), 0
    if op == "bitcast":
        raw = np.ascontiguousarray(xs[0]).view(STORED[out]).reshape(len(xs[0]), -1)
        return decode(out, raw), 0
    if op in ("shl", "shr"):
        return _shifted(op, *values), 0
    with np.errstate(all="ignore"):
        if op in FUNCTIONS:
            y = FUNCTIONS[op](*values)
            return rounded(out, y), 2 if out == "fp64" else 1
        y = values[0] * values[1] + values[2] if op == "fma" and out not in FORMATS else EXACT[op](*values)
    return (rounded(out, y), 0) if out in FORMATS else (y, 0)


def exchanged(atom: gr.Atom, x: np.ndarray) -> np.ndarray:
    """A shuffle by 1 within groups of the entry's width, by rows."""
    width, mode = atom.thread_count, atom.attrs["mode"][0]
    lane = np.arange(32)
    rank = lane % width
    source = {"idx": np.full(32, 1 % width), "bfly": rank ^ 1, "up": rank - 1, "down": rank + 1}[mode]
    source = np.where((source < 0) | (source >= width), rank, source)
    return x[lane - rank + source]


def products(atom: gr.Atom, a: np.ndarray, b: np.ndarray, c: np.ndarray, steps: int) -> np.ndarray:
    """C plus the products of all steps, of whole numbers; the last step's alone where the entry does not add."""
    a, b = (x.astype(np.float64) for x in (a, b))
    if "accumulate" not in atom.attrs:
        return c + a @ b.T
    k = a.shape[1] // steps
    return a[:, -k:] @ b[:, -k:].T


def off(dtype: str, got: np.ndarray, want: np.ndarray, ulps: float) -> np.ndarray:
    """Where results differ: in bits, of numbers that are not NaN, or by more than so many units in the last place."""
    if dtype not in FORMATS:
        return got != want
    f = FORMATS[dtype]
    with np.errstate(all="ignore"):
        same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
        if ulps:
            exponent = np.frexp(np.where(np.isfinite(want), want, 1))[1] - 1
            same |= np.abs(got - want) <= ulps * np.ldexp(1.0, np.maximum(exponent - f.digits + 1, f.smallest))
    return ~same
