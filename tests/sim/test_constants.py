"""Constants: the simulator's bits and the C literal's meaning are one number, and no type takes a number it lacks."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import graphene as gr

INTEGERS = {
    f"{sign}{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) if sign == "i" else (0, 2**n - 1)
    for sign in "iu"
    for n in (8, 16, 32, 64)
}


def numpy_type(dtype: str) -> Any:
    return np.dtype(dtype.replace("i", "int").replace("u", "uint"))


def lines(error: object) -> str:
    return re.sub(r"test_constants.py:\d+", "FILE:N", str(error))


def set_to(dtype: str, value: Any, how: str = "init") -> gr.Kernel:
    t = getattr(gr, dtype)
    with gr.Kernel("constant") as kernel:
        y = gr.output("y", [1], t)
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [], t, gr.RF)
        if how == "init":
            gr.init(r, value)
        else:
            r[:] = value
        gr.move(y[0], r)
    return kernel


def literal(kernel: gr.Kernel) -> str:
    """The constant that the kernel's text assigns to r."""
    (text,) = re.findall(r"^ *r\w* = ([^;\n]*);", kernel.cuda_source("sm_90a"), re.MULTILINE)
    return str(text)


def meaning(text: str) -> int:
    """What C makes of a sum of integer literals, none of which may be wider than its suffix says."""
    for digits, suffix in re.findall(r"(\d+)([UuLl]*)", text):
        assert int(digits) < 2 ** {"": 31, "LL": 63, "u": 32, "ULL": 64}[suffix]
    return int(eval(re.sub(r"[UuLl]", "", text)))


def simulated(kernel: gr.Kernel, t: Any) -> Any:
    y = np.zeros(1, t)
    kernel.simulate(y)
    return y[0]


LIMITS = [
    (t, v)
    for t, (lo, hi) in INTEGERS.items()
    for v in sorted({lo, lo + 1, -1, 0, 1, hi - 1, hi, 2**53 + 1, 2**63})
    if lo <= v <= hi and (v < 2**63 or int(float(v)) == v)
]


@pytest.mark.parametrize("how", ["init", "assign"])
@pytest.mark.parametrize(("dtype", "value"), LIMITS)
def test_limits_of_integers(dtype: str, value: int, how: str) -> None:
    kernel = set_to(dtype, value, how)
    assert gr.parse(str(kernel)) == kernel
    assert int(simulated(kernel, numpy_type(dtype))) == value
    assert meaning(literal(kernel)) == value


def test_operands_at_the_limits() -> None:
    with gr.Kernel("constant") as kernel:
        y = gr.output("y", [1], gr.i64)
        gr.blocks(1)
        gr.threads(1)
        r = gr.alloc("r", [], gr.i64, gr.RF)
        gr.init(r, 2**53 + 1)
        gr.binary("sub", r, r, 2**62 + 1)
        r[:] = r + (2**63 - 1)
        gr.move(y[0], r)
    assert gr.parse(str(kernel)) == kernel
    assert simulated(kernel, np.int64) == 2**53 + 1 - (2**62 + 1) + 2**63 - 1
    source = kernel.cuda_source("sm_90a")
    assert f"{2**62 + 1}LL" in source
    assert f"{2**63 - 1}LL" in source


@pytest.mark.parametrize(
    ("dtype", "value", "bits"),
    [
        ("fp16", 65520.0, 0x7C00),
        ("fp16", math.nan, 0x7FFF),
        ("bf16", 1e39, 0x7F80),
        ("fp8e4m3", 1000.0, 0x7E),
        ("fp8e4m3", 2.0**-9, 1),
        ("fp8e5m2", -math.inf, 0xFB),
        ("fp8e5m2", math.nan, 0x7F),
    ],
)
def test_small_floats(dtype: str, value: float, bits: int) -> None:
    kernel = set_to(dtype, value)
    t = np.uint8 if dtype.startswith("fp8") else np.float16 if dtype == "fp16" else np.uint16
    assert simulated(kernel, t).view(f"u{np.dtype(t).itemsize}") == bits
    assert int(literal(kernel), 16) == bits


def refused(kernel: gr.Kernel) -> str:
    with pytest.raises(gr.SelectError) as simulation:
        kernel.simulate(np.zeros(1, np.int32))
    with pytest.raises(gr.SelectError) as source:
        kernel.cuda_source("sm_90a")
    assert lines(simulation.value) == lines(source.value)
    return lines(source.value)


@pytest.mark.parametrize("how", ["init", "assign"])
@pytest.mark.parametrize(
    ("dtype", "value", "want", "got"),
    [
        ("u32", -1, "an integer from 0 to 4294967295", "-1"),
        ("u8", 300, "an integer from 0 to 255", "300"),
        ("i8", -129, "an integer from -128 to 127", "-129"),
        ("u16", 2**16, "an integer from 0 to 65535", "65536"),
        ("i32", 2**31, "an integer from -2147483648 to 2147483647", "2147483648"),
        ("i32", 0.5, "an integer from -2147483648 to 2147483647", "0.5"),
        ("i32", math.inf, "an integer from -2147483648 to 2147483647", "inf"),
        ("i32", math.nan, "an integer from -2147483648 to 2147483647", "nan"),
        ("u32", 2**53 + 1, "an integer from 0 to 4294967295", "9007199254740993"),
        ("i64", 2**63, "an integer from -9223372036854775808 to 9223372036854775807", "9223372036854775808"),
        ("u64", 2**64, "an integer from 0 to 18446744073709551615", "18446744073709551616"),
        ("u64", -(2**62) - 1, "an integer from 0 to 18446744073709551615", "-4611686018427387905"),
        ("pred", 2, "0 or 1", "2"),
    ],
)
def test_what_a_type_does_not_have(dtype: str, value: Any, want: str, got: str, how: str) -> None:
    t = getattr(gr, dtype)
    with gr.Kernel("constant") as kernel:
        y = gr.output("y", [1], gr.i32)
        gr.blocks(1)
        gr.threads(1)
        gr.init(y[0], 1)
        r = gr.alloc("r", [], t, gr.RF)
        if how == "init":
            gr.init(r, value)
        else:
            r[:] = value
    text = refused(kernel)
    assert f"a constant that {dtype} does not have   [CONSTANT_RANGE]\n" in text
    assert f"  value: want {want}, got {got}\n  fix: " in text


def test_the_whole_message() -> None:
    assert refused(set_to("u32", -1)) == (
        "FILE:N: a constant that u32 does not have   [CONSTANT_RANGE]\n"
        "    %4:[].u32.RF <- Init<<<#2:[1].block, [].thread>>>()\n"
        "  value: want an integer from 0 to 4294967295, got -1\n"
        "  fix: write a constant that the type has, or compute in a type that has this one"
    )


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (lambda r: r.__setitem__(slice(None), r + (2**32 + 3)), "b: want an integer from -2147483648"),
        (lambda r: r.__setitem__(slice(None), gr.where(r < 5, 2**31, r)), "got 2147483648"),
        (lambda r: r.__setitem__(slice(None), gr.where(r < 2**31, 1, r)), "got 2147483648"),
        (lambda r: gr.binary("add", r, r, 0.5), "got 0.5"),
        (lambda r: gr.binary("add", r, r, gr.inf), "got inf"),
    ],
)
def test_operands_that_a_type_does_not_have(record: Any, detail: str) -> None:
    with gr.Kernel("constant") as kernel:
        y = gr.output("y", [1], gr.i32)
        gr.blocks(1)
        gr.threads(1)
        gr.init(y[0], 1)
        r = gr.alloc("r", [], gr.i32, gr.RF)
        record(r)
    text = refused(kernel)
    assert "a constant that i32 does not have   [CONSTANT_RANGE]" in text
    assert detail in text


def partial(dtype: str, fill: float) -> gr.Kernel:
    t = getattr(gr, dtype)
    with gr.Kernel("partial") as kernel:
        n = gr.sym("n", max=4)
        x, y = gr.input("x", [n], t), gr.output("y", [4], t)
        gr.blocks(1)
        (lane,) = gr.threads(4).indices()
        r = gr.alloc("r", [], t, gr.RF)
        gr.move(r, x.tile([4])[0][lane], fill=fill)
        gr.move(y[lane], r)
    return kernel


@pytest.mark.parametrize(("dtype", "fill"), [("i32", 1 - 2**31), ("u8", 255), ("i64", 2**63 - 1), ("u32", 2**32 - 1)])
def test_fills_at_the_limits(dtype: str, fill: int) -> None:
    kernel = partial(dtype, fill)
    assert gr.parse(str(kernel)) == kernel
    y = np.zeros(4, numpy_type(dtype))
    kernel.simulate(np.ones(2, y.dtype), y)
    assert y.tolist() == [1, 1, fill, fill]
    # "r = outside;" of its own, or the second choice of "r = (inside ? x[lane] : outside);".
    (text,) = re.findall(r"^ *r\w* = (?:.* : )?([^;?\n]*?)\)?;", kernel.cuda_source("sm_90a"), re.MULTILINE)
    assert meaning(text) == fill


@pytest.mark.parametrize(("dtype", "fill"), [("u32", -1), ("i32", 0.5), ("u8", 256), ("i32", gr.inf)])
def test_fills_that_a_type_does_not_have(dtype: str, fill: float) -> None:
    with pytest.raises(gr.SelectError, match=rf"a constant that {dtype} does not have   \[CONSTANT_RANGE\]"):
        partial(dtype, fill).cuda_source("sm_90a")


def test_constants_of_text_and_json() -> None:
    text = str(set_to("u8", 7))
    assert text.count("value=7.0") == 1
    assert meaning(literal(gr.parse(text.replace("value=7.0", "value=255")))) == 255
    with pytest.raises(gr.SelectError, match="value: want an integer from 0 to 255, got 256"):
        gr.parse(text.replace("value=7.0", "value=256")).cuda_source("sm_90a")
    half = gr.parse(str(set_to("fp16", 5)).replace("value=5.0", "value=5"))
    assert simulated(half, np.float16) == 5
    assert literal(half) == "0x4500"


@pytest.mark.parametrize("value", [2**64 + 1, -(2**63) - 1, 10**400])
def test_integers_past_64_bits(value: int) -> None:
    with gr.Kernel("constant"):
        r = gr.alloc("r", [], gr.u64, gr.RF)
        for record in (lambda: gr.init(r, value), lambda: r.__setitem__(slice(None), value)):
            with pytest.raises(gr.SelectError) as e:
                record()
            assert lines(e.value) == (
                "FILE:N: an integer constant that neither 64 bits with a sign nor a 64-bit float hold   "
                "[CONSTANT_RANGE]\n"
                "  want: from -9223372036854775808 to 9223372036854775807, or an integer that a 64-bit float equals\n"
                f"  got: {value:#x}\n"
                "  fix: pass it to the kernel as a parameter, gr.param, or compute it from smaller constants"
            )


@pytest.mark.parametrize("dtype", ["fp32", "i32", "fp16", "u8"])
def test_a_cast_to_its_own_type_is_nothing(dtype: str) -> None:
    t = getattr(gr, dtype)

    def text(cast: Any) -> str:
        with gr.Kernel("cast") as kernel:
            gr.blocks(1)
            gr.threads(1)
            r, s = gr.alloc("r", [2], t, gr.RF), gr.alloc("s", [2], t, gr.RF)
            s[:] = cast(r)
            s[:] = cast(cast(r)) + r
        return str(kernel)

    assert text(lambda x: gr.cast(x, t)) == text(lambda x: x)
    assert simulated(set_to("i32", gr.cast(3, gr.i32), "assign"), np.int32) == 3


@pytest.mark.parametrize("number", [np.float16(0.1), np.float32(2), np.int64(3), np.uint8(7), np.bool_(True)])
def test_a_numpy_scalar_is_the_number_that_it_is(number: Any) -> None:
    with gr.Kernel("k") as k:
        x = gr.inout("x", [8], gr.fp32)
        gr.blocks(1)
        (i,) = gr.threads(8).indices()
        r = gr.load(x[i])
        r[:] = gr.where(r < 4, gr.fma(r, number, number) + gr.max(number, r) - gr.div(r, number), number)
        r[:] = r + gr.let("c", number, gr.fp32)
        gr.move(x[i], r)
    a = np.arange(8, dtype=np.float32)
    n = np.float32(number)
    want = np.where(a < 4, a * n + n + np.maximum(a, n) - a / n, n) + n
    k(a)
    np.testing.assert_allclose(a, want, rtol=1e-6)
    assert gr.exp(np.float32(1)) == math.e
    assert gr.where(np.bool_(False), 1, 2) == 2
    assert gr.logical_and(np.bool_(True), np.bool_(False)) is False


@pytest.mark.parametrize(
    ("function", "args", "want"),
    [
        (gr.div, (1.0, 0.0), math.inf), (gr.div, (-1, 0), -math.inf), (gr.div, (0, 0), math.nan),
        (gr.div, (10**400, 10**399), 10.0), (gr.fmod, (math.inf, 1), math.nan), (gr.fmod, (1, 0.0), math.nan),
        (gr.fmod, (-7.5, 2), -1.5), (gr.pow, (0, -1), math.inf), (gr.pow, (-8.0, 0.5), math.nan),
        (gr.pow, (10.0, 400), math.inf), (gr.pow, (3, 1 << 40), math.inf), (gr.pow, (3, 5), 243),
    ],
)  # fmt: skip
def test_functions_of_two_numbers_follow_ieee_where_python_raises(function: Any, args: Any, want: float) -> None:
    np.testing.assert_equal(function(*args), want)


@pytest.mark.parametrize("function", [gr.div, gr.fmod, gr.pow])
def test_integers_that_no_float_holds(function: Any) -> None:
    for args in ((10**400, 0.5), (0.5, 10**400), (10**400, math.nan)):
        with pytest.raises(gr.GrapheneError) as raised:
            function(*args)
        assert raised.value.code == "CONSTANT_RANGE"
    for wrong in (1j, "x", None):
        with pytest.raises(TypeError, match="an operand must be registers, an expression or a number"):
            function(2.0, wrong)
    with pytest.raises(TypeError, match="an operand must be registers or a number, got a symbolic integer"):
        function(gr.sym("N"), 2)
