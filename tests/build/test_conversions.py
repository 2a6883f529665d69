"""Assignments between types of registers: what is converted, by which steps, and what has to be written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr

CODES = np.arange(256, dtype=np.uint8)


def decoded(codes: Any, exponent_bits: int, bias: int, finite: bool) -> Any:
    """The numbers that 8-bit floats are, by their definition (OCP 8-bit floating point, E4M3 and E5M2)."""
    mantissa_bits = 7 - exponent_bits
    values = []
    for code in codes.tolist():
        sign, exponent = -1.0 if code & 0x80 else 1.0, (code & 0x7F) >> mantissa_bits
        mantissa = code & ((1 << mantissa_bits) - 1)
        top = exponent == (1 << exponent_bits) - 1
        if top and (mantissa == (1 << mantissa_bits) - 1 if finite else mantissa != 0):
            values.append(np.nan)
        elif top and not finite:
            values.append(sign * np.inf)
        elif exponent == 0:
            values.append(sign * mantissa * 2.0 ** (1 - bias - mantissa_bits))
        else:
            values.append(sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias))
    return np.array(values, np.float32)


E4M3 = decoded(CODES, 4, 7, finite=True)
E5M2 = decoded(CODES, 5, 15, finite=False)
FP8 = {"fp8e4m3": E4M3, "fp8e5m2": E5M2}


def assigned(source: str, target: str, values: int = 1, double: bool = False) -> gr.Kernel:
    """y = x, or y = x + x, of 256 numbers, `values` per thread: alone or as neighbours of one register."""
    s, t = getattr(gr, source), getattr(gr, target)
    with gr.Kernel("assigned") as kernel:
        x, y = gr.input("x", [256], s), gr.output("y", [256], t)
        gr.blocks(1)
        (i,) = gr.threads(256 // values).indices()
        a, b = gr.alloc("a", [values], s, gr.RF), gr.alloc("b", [values], t, gr.RF)
        for j in range(values):
            gr.move(a[j], x[i * values + j])
        b[:] = a + a if double else a
        for j in range(values):
            gr.move(y[i * values + j], b[j])
    return kernel


@pytest.mark.parametrize("values", [1, 2])
@pytest.mark.parametrize("source", list(FP8))
def test_8_bit_floats_are_read_exactly(source: str, values: int) -> None:
    y = np.zeros(256, np.float32)
    kernel = assigned(source, "fp32", values)
    kernel(CODES, y)
    assert np.array_equal(y, FP8[source], equal_nan=True)
    half = np.zeros(256, np.float16)
    assigned(source, "fp16", values)(CODES, half)
    assert np.array_equal(half, FP8[source].astype(np.float16), equal_nan=True)
    bits = np.zeros(256, np.uint16)
    assigned(source, "bf16", values)(CODES, bits)
    known = ~np.isnan(FP8[source])
    assert np.array_equal(bits[known], (FP8[source].view(np.uint32) >> 16).astype(np.uint16)[known])
    kernel.compile("sm_89")


@pytest.mark.parametrize("values", [1, 2])
@pytest.mark.parametrize("target", list(FP8))
def test_8_bit_floats_are_written_to_the_nearest(target: str, values: int) -> None:
    x = np.random.default_rng(3).standard_normal(256).astype(np.float32) * np.exp2(np.arange(256) % 24 - 12)
    x = x.astype(np.float32)
    table = FP8[target][np.isfinite(FP8[target])]
    got = np.zeros(256, np.uint8)
    kernel = assigned("fp32", target, values)
    kernel(x, got)
    rounded = FP8[target][got]
    most = table.max()
    nearest = np.abs(table[None, :] - np.clip(x, -most, most)[:, None]).min(1)
    assert np.array_equal(np.abs(rounded - np.clip(x, -most, most)), nearest)
    kernel.compile("sm_90a")


@pytest.mark.parametrize("values", [1, 2])
def test_8_bit_floats_are_computed_with_in_fp32(values: int) -> None:
    got = np.zeros(256, np.uint8)
    assigned("fp8e4m3", "fp8e4m3", values, double=True)(CODES, got)
    want = np.clip(2 * E4M3, -448, 448)
    assert np.array_equal(E4M3[got], want, equal_nan=True)


FLOATS = ["fp8e4m3", "fp8e5m2", "fp16", "bf16", "fp32"]


@pytest.mark.parametrize("values", [1, 2])
@pytest.mark.parametrize("source", [*FLOATS, "i8", "u8", "i16"])
@pytest.mark.parametrize("target", [*FLOATS, "fp64"])
def test_what_fp32_holds_exactly_is_converted_to_every_float(source: str, target: str, values: int) -> None:
    assert assigned(source, target, values).cuda_source("sm_90a")


@pytest.mark.parametrize(
    ("source", "target"), [("fp64", "bf16"), ("fp64", "fp8e4m3"), ("i32", "bf16"), ("i64", "fp8e5m2"), ("fp32", "i8")]
)
def test_two_roundings_are_not_made_silently(source: str, target: str) -> None:
    with pytest.raises(gr.SelectError) as e:
        assigned(source, target).cuda_source("sm_90a")
    assert e.value.code == "NO_ATOM"


def test_registers_have_no_matrix_product() -> None:
    with gr.Kernel("k"):
        r = gr.alloc("r", [4], gr.fp32, gr.RF)
        for x, y in ((r, r), (2, r), (r + 1, r)):
            with pytest.raises(gr.LayoutError, match="registers have no operator @") as e:
                x @ y
            assert e.value.code == "POINTWISE_TYPE"


OF_INTEGERS: dict[str, Any] = {
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "<<": lambda x, y: x << y,
    ">>": lambda x, y: x >> y,
    "^": lambda x, y: x ^ y,
    "popc": lambda x, y: gr.popc(x),
}


@pytest.mark.parametrize("symbol", list(OF_INTEGERS))
def test_operations_on_integers_refuse_floats(symbol: str) -> None:
    with gr.Kernel("k"):
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [4], gr.fp32, gr.RF)
        for x, y in ((r, r), (r, 2), (r + 1, r)):
            with pytest.raises(gr.LayoutError, match="an operation on integers, of floats") as e:
                r[:] = OF_INTEGERS[symbol](x, y)
            assert e.value.code == "POINTWISE_TYPE"
            assert "fix: write " in str(e.value)


@pytest.mark.parametrize("dtype", ["i8", "i32", "u32", "i64"])
def test_integers_in_registers_are_not_divided(dtype: str) -> None:
    with gr.Kernel("k"):
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [4], getattr(gr, dtype), gr.RF)
        with pytest.raises(gr.LayoutError, match="a division of integers in registers") as e:
            r[:] = r / 2
        assert e.value.code == "POINTWISE_TYPE"


INTEGER_OPERATIONS: dict[str, tuple[Any, Any]] = {
    "+": (lambda x, y: x + y, lambda x, y: x + y),
    "-": (lambda x, y: x - y, lambda x, y: x - y),
    "*": (lambda x, y: x * y, lambda x, y: x * y),
    "max": (gr.max, np.maximum),
    "min": (gr.min, np.minimum),
    "where": (lambda x, y: gr.where(x < y, x, y - x), lambda x, y: np.where(x < y, x, y - x)),
    "&": (lambda x, y: x & y, lambda x, y: x & y),
    "|": (lambda x, y: x | y, lambda x, y: x | y),
    "^": (lambda x, y: x ^ y, lambda x, y: x ^ y),
    "~": (lambda x, y: ~x, lambda x, y: ~x),
    "//": (lambda x, y: x // y, np.floor_divide),
    "%": (lambda x, y: x % y, np.remainder),
    "// 8": (lambda x, y: x // 8, lambda x, y: x // 8),
    "% 8": (lambda x, y: x % 8, lambda x, y: x % 8),
    "// -3": (lambda x, y: x // -3, lambda x, y: x // -3),
    "8 //": (lambda x, y: 8 // x, lambda x, y: np.floor_divide(8, x, dtype=x.dtype)),
    "<< 3": (lambda x, y: x << 3, lambda x, y: x << 3),
    ">> 3": (lambda x, y: x >> 3, lambda x, y: x >> 3),
    "** 3": (lambda x, y: x**3, lambda x, y: x**3),
}


@pytest.mark.parametrize("name", list(INTEGER_OPERATIONS))
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_negative_integers_are_numpys(dtype: str, name: str) -> None:
    """Arithmetic wraps, as NumPy's does."""
    t, numpy_type = getattr(gr, dtype), np.int32 if dtype == "i32" else np.int64
    ours, theirs = INTEGER_OPERATIONS[name]
    with gr.Kernel("k") as kernel:
        x, y, z = gr.input("x", [64], t), gr.input("y", [64], t), gr.output("z", [64], t)
        gr.blocks(1)
        (i,) = gr.threads(64).indices()
        a, b = gr.alloc("a", [], t, gr.RF), gr.alloc("b", [], t, gr.RF)
        gr.move(a, x[i])
        gr.move(b, y[i])
        a[:] = ours(a, b)
        gr.move(z[i], a)
    rng = np.random.default_rng(1)
    extremes = np.array([np.iinfo(numpy_type).min, np.iinfo(numpy_type).max, -1, 0, 1, -7], numpy_type)
    u, v = (rng.choice(np.concatenate([extremes, rng.integers(-99, 99, 9).astype(numpy_type)]), 64) for _ in range(2))
    got = np.zeros(64, numpy_type)
    kernel(u, v, got)
    with np.errstate(over="ignore"):
        assert np.array_equal(got, theirs(u, v))
