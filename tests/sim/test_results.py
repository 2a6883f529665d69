"""What the simulator computes, against NumPy: equal bits where the result is defined."""

from __future__ import annotations

from fractions import Fraction

import kernels
import numpy as np
import pytest

import graphene as gr

RNG = np.random.default_rng(0)


def halves(*shape: int) -> np.ndarray:
    return np.asfortranarray(RNG.standard_normal(shape).astype(np.float16))


def test_fig8_rounds_once_a_step() -> None:
    m, n, k = 128, 256, 24
    a, b, c = halves(m, k), halves(k, n), halves(m, n)
    want = c.astype(np.float64)
    for i in range(k):  # exact in double, then one rounding to fp16
        want = (want + a[:, i : i + 1].astype(np.float64) * b[i : i + 1].astype(np.float64)).astype(np.float16)
        want = want.astype(np.float64)
    stats = kernels.fig8(m, n, k).simulate(a, b, c)
    assert np.array_equal(c.view(np.uint16), want.astype(np.float16).view(np.uint16))
    assert stats.lane_ops == m * n * k
    assert stats.accesses == 4 * m * n * k
    assert stats.arch == "sm_80"


def pointwise(dtype: gr.DType, out: gr.DType, inputs: int, build: str, op: str, **attrs: object) -> gr.Kernel:
    """D[i] = op(A[i], ...), one element a thread."""
    with gr.Kernel("pointwise") as kernel:
        n = gr.sym("N", multiple_of=32)
        ins = [gr.input(f"A{i}", [n], dtype) for i in range(inputs)]
        d = gr.output("D", [n], out)
        (b,) = gr.blocks(n // 32).indices()
        (t,) = gr.threads(32).indices()
        regs = [gr.alloc(f"r{i}", [], dtype, gr.RF) for i in range(inputs)]
        r = gr.alloc("r", [], out, gr.RF)
        for x, y in zip(regs, ins, strict=True):
            gr.move(x, y.tile([32])[b][t])
        getattr(gr, build)(op, r, *regs, **attrs)
        gr.move(d.tile([32])[b][t], r)
    return kernel


def every_half() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def canonical(x: np.ndarray) -> np.ndarray:
    """NaNs of arithmetic are the hardware's canonical one."""
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.view(np.uint16))


@pytest.mark.parametrize("op", ["add", "sub", "mul", "max", "min"])
def test_half_arithmetic_on_every_bit_pattern(op: str) -> None:
    x = every_half()
    y = RNG.permutation(x)
    d = np.empty_like(x)
    pointwise(gr.fp16, gr.fp16, 2, "binary", op).simulate(x, y, d)
    with np.errstate(all="ignore"):
        want = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.fmax, "min": np.fmin}[op](x, y)
    got = canonical(d)
    equal = got == canonical(want.astype(np.float16))
    if op in ("max", "min"):  # NumPy leaves the sign of a zero open
        equal |= (d == 0) & (want == 0)
    assert equal.all()


def exact_fma(x: np.float16, y: np.float16, z: np.float16) -> int:
    """Bits of x * y + z rounded once, in rationals."""
    value = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    near = np.float16(float(value)) if abs(value) < 65500 else np.float16(np.inf if value > 0 else -np.inf)
    candidates = [near, np.nextafter(near, np.float16(np.inf)), np.nextafter(near, np.float16(-np.inf))]
    finite = [c for c in candidates if np.isfinite(c)]
    best = min(finite, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.uint16)) & 1))
    if abs(value) >= Fraction(65520):
        return int(np.float16(np.inf if value > 0 else -np.inf).view(np.uint16))
    return int(best.view(np.uint16)) if value != 0 else 0


def test_half_fma_rounds_once() -> None:
    n = 20000
    x = RNG.integers(0, 1 << 16, n - n % 32).astype(np.uint16).view(np.float16)
    y = RNG.integers(0, 1 << 16, x.size).astype(np.uint16).view(np.float16)
    # Sums that nearly cancel, or that end close to a tie: where rounding twice goes wrong.
    with np.errstate(all="ignore"):
        cancels = -(x.astype(np.float64) * y).astype(np.float16)
    z = np.where(RNG.integers(0, 2, x.size) == 0, cancels, RNG.permutation(x))
    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    x, y, z = (np.where(finite, v, np.float16(1)) for v in (x, y, z))
    d = np.empty_like(x)
    pointwise(gr.fp16, gr.fp16, 3, "ternary", "fma").simulate(x, y, z, d)
    for i in range(x.size):
        want = exact_fma(x[i], y[i], z[i])
        got = int(d[i].view(np.uint16))
        assert got == want or (want == 0 and got & 0x7FFF == 0), (x[i], y[i], z[i], hex(got), hex(want))


def test_float_to_half_rounds_to_nearest_even() -> None:
    x = RNG.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x[:64] = every_half()[:64].astype(np.float32) * np.float32(1 + 2**-11)  # ties and subnormals
    d = np.empty(x.shape, np.float16)
    pointwise(gr.fp32, gr.fp16, 1, "unary", "cast").simulate(x, d)
    with np.errstate(all="ignore"):
        assert np.array_equal(d.view(np.uint16), canonical(x.astype(np.float16)))


def test_half_to_float_is_exact() -> None:
    d = np.empty(1 << 16, np.float32)
    pointwise(gr.fp16, gr.fp32, 1, "unary", "cast").simulate(every_half(), d)
    want = every_half().astype(np.float32)
    assert np.array_equal(np.isnan(d), np.isnan(want))
    assert np.array_equal(d[~np.isnan(d)], want[~np.isnan(want)])


def test_float_to_bfloat_rounds_to_nearest_even() -> None:
    x = RNG.integers(0, 1 << 32, 1 << 14, dtype=np.uint64).astype(np.uint32)
    x = np.where((x & 0x7FFFFFFF) > 0x7F800000, 0x3F808000, x).astype(np.uint32)
    d = np.empty(x.shape, np.uint16)
    pointwise(gr.fp32, gr.bf16, 1, "unary", "cast").simulate(x.view(np.float32), d)
    want = (x.astype(np.uint64) + 0x7FFF + ((x >> 16) & 1)) >> 16
    assert np.array_equal(d, want.astype(np.uint16))


@pytest.mark.parametrize(("dtype", "bits"), [(gr.i32, 32), (gr.u32, 32), (gr.i64, 64)])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "max", "min", "and", "or", "xor"])
def test_integers_wrap(dtype: gr.DType, bits: int, op: str) -> None:
    np_type = {"i32": np.int32, "u32": np.uint32, "i64": np.int64}[str(dtype.name)]
    x, y = (RNG.integers(0, 1 << 63, 256, dtype=np.uint64).astype(np.uint64) * 2 + 1 for _ in range(2))
    x, y = x.astype(np_type), y.astype(np_type)
    d = np.empty_like(x)
    pointwise(dtype, dtype, 2, "binary", op).simulate(x, y, d)
    f = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[op]
    with np.errstate(all="ignore"):
        assert np.array_equal(d, f(x, y))


def test_float_to_integer_truncates_and_saturates() -> None:
    x = np.array([0.5, -0.5, 1.99, -1.99, 3e9, -3e9, np.nan, np.inf] * 4, np.float32)
    d = np.empty(x.shape, np.int32)
    pointwise(gr.fp32, gr.i32, 1, "unary", "cast").simulate(x, d)
    assert d[:8].tolist() == [0, 0, 1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1]


@pytest.mark.parametrize(
    ("dtype", "np_type", "width"),
    [(d, t, w) for d, t, e in ((gr.i8, np.int8, 1), (gr.fp16, np.float16, 2), (gr.fp32, np.float32, 4))
     for w in (1, 2, 4, 8, 16) if w * e <= 16],
)  # fmt: skip
@pytest.mark.parametrize("through_shared", [False, True])
def test_vector_copies_of_every_width(dtype: gr.DType, np_type: type, width: int, through_shared: bool) -> None:
    x = RNG.integers(-100, 100, 64 * width * 3).astype(np_type)
    y = np.zeros_like(x)
    kernels.vector_copy(dtype, width, through_shared=through_shared).simulate(x, y)
    assert np.array_equal(x, y)


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_transpose_through_shared_memory(swizzled: bool, seed: int) -> None:
    x = RNG.standard_normal((96, 64)).astype(np.float32)
    y = np.zeros((64, 96), np.float32)
    kernels.transpose(swizzled).simulate(x, y, seed=seed)
    assert np.array_equal(x.T, y)


def shuffle(mode: str, width: int, arg: int) -> gr.Kernel:
    with gr.Kernel("shuffle") as kernel:
        a, d = gr.input("A", [64], gr.i32), gr.output("D", [64], gr.i32)
        gr.blocks(1)
        threads = gr.threads(64)
        (t,) = threads.indices()
        r, q = gr.alloc("r", [], gr.i32, gr.RF), gr.alloc("q", [], gr.i32, gr.RF)
        gr.move(r, a[t])
        gr.shfl(q, r, mode, arg, on=threads.tile(width)[t // width])
        gr.move(d[t], q)
    return kernel


@pytest.mark.parametrize("width", [32, 16, 8, 4])
@pytest.mark.parametrize(("mode", "arg"), [("bfly", 1), ("bfly", 2), ("up", 1), ("down", 3), ("idx", 2)])
def test_shuffles(mode: str, arg: int, width: int) -> None:
    x = np.arange(64, dtype=np.int32)
    d = np.zeros_like(x)
    shuffle(mode, width, arg).simulate(x, d)
    lane, first = x % width, x - x % width
    source = {"bfly": lane ^ arg, "up": lane - arg, "down": lane + arg, "idx": np.full(64, arg % width)}[mode]
    assert np.array_equal(d, first + np.where((source >= 0) & (source < width), source, lane))


def test_mma_on_exactly_summable_inputs() -> None:
    a, b = (RNG.integers(-8, 8, s).astype(np.float16) for s in ((16, 16), (8, 16)))
    d = np.zeros((16, 8), np.float32)
    kernels.mma_tile().simulate(a, b, d)
    assert np.array_equal(d, a.astype(np.float32) @ b.T.astype(np.float32))


def test_mma_keeps_two_bits_below_the_largest_term_on_sm_90() -> None:
    """One step of 16 products: aligned to the largest, 2 bits below its last bit kept, the rest cut off."""
    for exponent, kept in ((-23, True), (-24, True), (-25, True), (-26, False)):
        a, b = np.zeros((16, 16), np.float16), np.zeros((8, 16), np.float16)
        a[0, 0], b[0, 0] = 1, 1
        a[0, 1:5], b[0, 1:5] = 2.0**-13, 2.0 ** (exponent + 13)  # four times 2^exponent
        d = np.zeros((16, 8), np.float32)
        kernels.mma_tile().simulate(a, b, d, arch="sm_90")
        assert d[0, 0] == (np.float32(1 + 4 * 2.0**exponent) if kept else 1), exponent


def test_arguments_are_checked_as_a_launch_checks_them() -> None:
    kernel = kernels.transpose()
    x = np.zeros((64, 32), np.float32)
    with pytest.raises(gr.LaunchError):
        kernel.simulate(x, np.zeros((64, 32), np.float32))
    with pytest.raises(gr.LaunchError):
        kernel.simulate(x.astype(np.float64), np.zeros((32, 64), np.float32))
    with pytest.raises(gr.LaunchError):
        kernel.simulate(x)


def test_arguments_by_name_and_call() -> None:
    kernel = kernels.transpose()
    x, y = np.arange(1024, dtype=np.float32).reshape(32, 32), np.zeros((32, 32), np.float32)
    kernel.simulate(B=y, A=x)
    assert np.array_equal(x.T, y)


def test_a_register_read_by_nobody_may_stay_undefined() -> None:
    with gr.Kernel("unused") as kernel:
        d = gr.output("D", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r, q = gr.alloc("r", [], gr.fp32, gr.RF), gr.alloc("q", [], gr.fp32, gr.RF)
        gr.move(q, r)
        gr.init(r, 2)
        gr.move(d[t], r)
    d = np.zeros(32, np.float32)
    kernel.simulate(d)
    assert (d == 2).all()


def test_loops_whose_bounds_differ_between_lanes() -> None:
    with gr.Kernel("triangle") as kernel:
        a, d = gr.input("A", [1], gr.fp32), gr.inout("D", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        with gr.loop("i", t):
            gr.matmul(d[t], a[0], a[0])
    d = np.zeros(32, np.float32)
    kernel.simulate(np.ones(1, np.float32), d)
    assert np.array_equal(d, np.arange(32))
