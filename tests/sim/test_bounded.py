"""Numbers that know their error: every operation in fp32 stays inside of the bound, and the bound is not far above."""

import numpy as np
import pytest

import graphene as gr
from graphene.judge import formats
from graphene.judge.bounded import Bounded, bounded, rounding_unit
from graphene.judge.verdict import compare, expect, hold, judge_outputs, unit_of
from graphene.kernels import ReductionConfig, reduction_kernel

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 40)).astype(np.float32)
Y = (np.abs(RNG.standard_normal((6, 40))) + 0.5).astype(np.float32)

# What an author may write, with plain NumPy: evaluated in fp32, in float64, and on numbers that know their error.
FORMULAS = {
    "arithmetic": lambda x, y: (x + y) * x - x / y,
    "reversed": lambda x, y: 1 - (2 / y) * 3,
    "powers": lambda x, y: x**2 + x**3 + y**0.5 + y**-1 + y**2.5,
    "roots": lambda x, y: np.sqrt(y) + 1 / np.sqrt(y * y + 1e-5),
    "exponentials": lambda x, y: np.exp(x) + np.exp2(y) + np.expm1(x),
    "logarithms": lambda x, y: np.log(y) + np.log2(y) + np.log1p(np.abs(x)),
    "sigmoid": lambda x, y: 1 / (1 + np.exp(-x)),
    "tanh": lambda x, y: np.tanh(x) + gr.tanh(x, accuracy="full") + np.sin(x) * np.cos(x),
    "erf": lambda x, y: x / 2 * (1 + gr.erf(x / 2**0.5)),
    "extremes": lambda x, y: np.maximum(x, y) + np.minimum(x, 0) + gr.max(x, 0) + gr.min(x, y, 1),
    "chosen": lambda x, y: np.where(x < y, x * y, 0) + gr.where(x < 0, 0, x) + np.clip(x, -1, 1),
    "truths": lambda x, y: np.where((x < y) & ~(x > 1) | (y == 3), x * 3, y / 3),
    "sums": lambda x, y: x.sum(-1) + np.sum(y, axis=1) + x.mean(1) + (x * y).sum(axis=-1),
    "spread": lambda x, y: x.var(1) + np.std(y, axis=1),
    "softmax": lambda x, y: (p := np.exp(x - x.max(-1, keepdims=True))) / p.sum(-1, keepdims=True),
    "products": lambda x, y: x @ y.T + np.matmul(x, y.swapaxes(-1, -2)) + np.dot(x, y.T),
    "einsum": lambda x, y: np.einsum("ij,kj->ik", x, y) + np.einsum("ij, kj -> ik", x * 2, y) * 0.5,
    "three": lambda x, y: np.einsum("ij,kj,lj->ikl", x, y, x),
    "ellipsis": lambda x, y: np.einsum("...j,j...->...", x, y.T),
    "implicit": lambda x, y: np.einsum("ij,kj", x, y),
    "tensordot": lambda x, y: np.tensordot(x, y, (1, 1)) + np.inner(x, y),
    "cumulative": lambda x, y: np.cumsum(x, axis=1) + y.cumsum(1),
    "shapes": lambda x, y: np.concatenate([x.reshape(3, 80), np.stack([y[:3], y[3:]], 1).reshape(3, 80)]).T[None, ::2],
    "taken": lambda x, y: np.take(x, [3, 1], axis=1) * y[:, [0, 2]] + x[..., 5:7] - y[:, None, 4:6][:, 0],
    "repeated": lambda x, y: np.repeat(x, 2, axis=0)[::2] + np.tile(y, (1, 2))[:, 40:],
    "halves": lambda x, y: np.concatenate(np.split(x, 2, axis=1)[::-1], axis=1) + np.flip(y, 1) + np.roll(x, 3, 1),
    "triangles": lambda x, y: np.tril(x) + np.triu(y) + np.pad(x, ((0, 0), (1, 0)))[:, :40],
    "sorted": lambda x, y: np.sort(x, axis=1) + np.sort(y),
    "norm": lambda x, y: (d := x - x.mean(-1, keepdims=True)) / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * y[0],
    "outer": lambda x, y: np.outer(x[0], y[0]) + x[0][:, np.newaxis] * y[1],
    "logaddexp": lambda x, y: np.logaddexp(x, y) + np.logaddexp(y, y),
}


def assigned(x: object, y: object) -> object:
    out = np.zeros_like(x)
    out[:, ::2] = x[:, ::2] * y[:, 1::2]
    out[0] = 3
    out[1:3, 5] += y[1:3, 7]
    return out


FORMULAS["assigned"] = assigned


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_in_fp32_stays_within_the_bound(name: str) -> None:
    f = FORMULAS[name]
    with np.errstate(all="ignore"):
        exact, narrow = f(X.astype(np.float64), Y.astype(np.float64)), f(X, Y)
    got = f(Bounded(X), Bounded(Y))
    assert isinstance(got, Bounded)
    assert got.shape == exact.shape
    np.testing.assert_allclose(got.v, exact, rtol=1e-12, atol=1e-13)
    assert narrow.dtype == np.float32
    assert (np.abs(narrow - exact) <= got.e).all()
    assert (got.e <= 2.0**-24 * 6000 * (1 + np.abs(exact))).all()  # and it says something


def test_errors_grow_with_what_they_came_from() -> None:
    x = Bounded([1.0, -2.0], 0.01)
    for got, want in (((x * 3).e, [0.03, 0.03]), ((x * x).e, [0.0201, 0.0401]), (np.exp(x).e[0], 0.0274),
                      ((1 / x).e, [0.0101, 0.00251]), (np.sqrt(x * x).e, [0.0101, 0.0101]), (x.sum().e, 0.02),
                      ((x @ x).e, 0.0602), (x.max().e, 0.01), (gr.erf(x).e[0], 0.0042)):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=0.02)


def test_what_is_exact_stays_so() -> None:
    x = bounded(np.arange(12.0).reshape(3, 4))
    for y in (x + 1, x * 3, x.sum(), x @ x.T, x.max(0), x / 2, np.einsum("ij,ij->i", x, x), np.where(x > 3, x, 0)):
        assert not y.e.any()
    assert (x / 3).e[0, 1] > 0


def test_a_comparison_that_errors_may_turn_counts_both_sides() -> None:
    x = Bounded([0.0, 1.0], 0.125)
    got = np.where(x > 0, 5.0, 1.0)
    assert got.v.tolist() == [1, 5]
    assert got.e.tolist() == [4, 0]
    assert np.where(~(x > 0) | (x > 4), 1.0, 5.0).e.tolist() == [4, 0]
    assert gr.where(x > 0, x, 0).e.tolist() == [0.125, 0.125]


def test_no_number_is_as_numpy_says() -> None:
    x = bounded(np.array([np.inf, 1.0, np.nan]))
    assert np.isnan(x.max().v)
    assert gr.max(x, 2).v.tolist() == [np.inf, 2, 2]
    assert np.isnan((x - x).v[0])
    assert (x * 0 + 1).e[1] == 0


def test_what_would_lose_the_errors_is_refused() -> None:
    x = Bounded([1.0], 0.1)
    for lost in (lambda: np.asarray(x), lambda: np.linalg.norm(x), lambda: np.arcsinh(x), lambda: float(x),
                 lambda: np.add.at(x, 0, 1)):  # fmt: skip
        with pytest.raises(gr.SimulationError) as e:
            lost()
        assert e.value.code == "CHECK_MEANS"
    with pytest.raises(gr.SimulationError, match="asarray of numbers that know their error"):
        np.zeros(1)[0:1] = x


TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2", "fp32": "float32"}


@pytest.mark.parametrize("name", TORCH)
def test_types_round_as_pytorch_does(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    f = formats.format_of(name)
    x = RNG.standard_normal(4000) * 2.0 ** RNG.integers(-20, 8, 4000)
    x = np.concatenate([x, [0.0, -0.0, f.absolute, 3 * f.absolute, 1 + f.relative, 1 + 3 * f.relative, np.nan]])
    want = torch.from_numpy(x).to(torch.float32).to(getattr(torch, TORCH[name]))
    x32 = x.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(formats.nearest(x32, name), want.double().numpy())
    bits = formats.encode(x32, name)
    np.testing.assert_array_equal(formats.decode(bits, name), want.double().numpy())
    if name in ("bf16", "fp8e4m3", "fp8e5m2"):
        kind = torch.int16 if name == "bf16" else torch.int8
        number = ~np.isnan(x)
        np.testing.assert_array_equal(bits.view(kind and ("i2" if name == "bf16" else "i1"))[number],
                                      want.view(kind).numpy()[number])  # fmt: skip


def test_tf32_keeps_eleven_digits() -> None:
    assert formats.nearest(1 + 0.99 * 2.0**-11, "tf32") == 1
    assert formats.nearest(1 + 2.0**-11 + 2.0**-20, "tf32") == 1 + 2.0**-10


def test_a_rounding_point_rounds_the_value_and_the_ends() -> None:
    from graphene.promise import Judged, judged, narrowed

    x = Bounded([1 + 2.0**-12, 1 + 2.0**-11], [0.0, 2.0**-20])
    got = narrowed(x, gr.fp16)
    assert got.v.tolist() == [1, 1]
    assert got.e.tolist() == [0, 2.0**-10]  # one end rounds up
    with judged(Judged({"P": "fp16", "acc": "fp32"})) as kernel:
        assert gr.rounded("P", x).v.tolist() == [1, 1]
        assert gr.rounded("acc", x) is x
        assert gr.rounded("P", x, by=2.0**12).v.tolist() == [1, 1]
        assert gr.rounded("P", x, by=None).e[0] == 2.0**-11 * x.v[0] + 2.0**-25
        assert kernel.stated == {"P"}
    assert gr.rounded("P", x) is x
    assert gr.cast(np.array([1 + 2.0**-12, -2.5]), gr.i8).tolist() == [1, -2]


def test_an_approximation_is_a_formula_and_its_error() -> None:
    @gr.approximately(lambda x: x * x, absolute=2.0**-10, relative=lambda x: np.abs(x))
    def squared(x: object) -> object:
        return ("registers", x)

    assert squared(3.0) == ("registers", 3.0)
    assert squared(np.array([3.0])).tolist() == [9]
    assert squared(bounded([3.0])).e.tolist() == [2.0**-10 + 27]
    again = gr.approximately(np.tanh, absolute=0.5)
    assert again(bounded([0.0])).e[0] >= 0.5


def test_functions_of_registers_compute_arrays() -> None:
    x = np.array([0.25, 4.0])
    for f, want in ((gr.exp2, np.exp2(x)), (gr.rsqrt, [2, 0.5]), (gr.rcp, [4, 0.25]), (gr.sqrt, [0.5, 2]),
                    (gr.log2, [-2, 2]), (gr.floor, [0, 4]), (gr.abs, x), (gr.exp, np.exp(x)), (gr.log, np.log(x)),
                    (lambda t: gr.fma(t, 2, 1), [1.5, 9]), (lambda t: gr.where(gr.logical_not(t > 1), t, 0), [0.25, 0]),
                    (lambda t: gr.where(gr.logical_and(t > 0, gr.logical_or(t > 1, t < 0.1)), 1, 0), [0, 1]),
                    (lambda t: gr.max(t, 1), [1, 4]), (lambda t: gr.min(np.nan, t), x)):  # fmt: skip
        np.testing.assert_allclose(f(x), want)
        np.testing.assert_allclose(bounded(f(bounded(x))).v, want)


def test_of_two_nearest_numbers_tf32_takes_the_larger_one() -> None:
    """As cvt.rna does, which kernels convert by; the other types take the even one."""
    half = 1 + 2.0**-11
    assert formats.nearest([half, -half], "tf32").tolist() == [1 + 2.0**-10, -1 - 2.0**-10]
    assert formats.nearest([half, -half], "fp16").tolist() == [1, -1]
    with gr.Kernel("k") as k:
        x, y = gr.input("x", [1], gr.fp32), gr.output("y", [1], gr.fp32)
        gr.blocks(1), gr.threads(1)
        r, t = (gr.alloc(n, [1], d, gr.RF) for n, d in (("r", gr.fp32), ("t", gr.tf32)))
        gr.move(r, x)
        t[:] = gr.cast(r, gr.tf32)
        r[:] = gr.cast(t, gr.fp32)
        gr.move(y, r)
    out = np.zeros(1, np.float32)
    k.simulate(np.array([half], np.float32), out)
    assert out[0] == 1 + 2.0**-10


def test_sums_in_fp16_lose_what_lies_below_its_smallest_number() -> None:
    x = Bounded(np.array([2.0**-20]))
    with rounding_unit(2.0**-11, 2.0**-25):
        assert (x * (x + 1)).e[0] >= 2.0**-25
        assert (x + 1).e[0] >= 2.0**-11
        assert (x + x).e[0] == 0
    assert (x * (x + 1)).e[0] < 2.0**-40


def test_products_of_subnormal_numbers_are_cut_as_those_of_normal_ones() -> None:
    """Matrix instructions align them by the exponent of the smallest normal number; zeros add nothing."""
    x, y = Bounded(np.array([[2.0**-20, 0.0]])), Bounded(np.full((2, 1), 1.5))
    cut = [lambda: x @ y, lambda: np.einsum("ik,kj->ij", x, y), lambda: np.tensordot(x, y, 1)]
    for product in cut:
        fine = product().e.item()
        with rounding_unit(2.0**-24, 2.0**-120, 2.0**-14):
            assert product().e.item() == pytest.approx(64 * fine)
            assert (x * 2**6 @ y).e.item() == pytest.approx(64 * fine)
            assert (0 * x @ y).e.item() < 2.0**-100


@pytest.mark.parametrize("dtype", [gr.fp16, gr.fp8e4m3, gr.bf16])
def test_the_smallest_normal_number_is_that_of_the_types_that_are_multiplied(dtype: gr.DType) -> None:
    with gr.Kernel("k", means=lambda x: x) as k:
        x, y = gr.input("x", [1], dtype), gr.output("y", [1], dtype)
        gr.blocks(1), gr.threads(1)
        r = gr.alloc("r", [1], dtype, gr.RF)
        gr.move(r, x)
        gr.move(y, r)
    least = {"fp16": 2.0**-14, "fp8e4m3": 2.0**-6}.get(dtype.name, 0.0)
    assert unit_of(k, k.promise) == (2.0**-24, 2.0**-120, least)


def test_what_is_read_of_infinite_parts_may_be_too_large_to_be_written() -> None:
    """A result of fp16 beyond its largest number, as it is for outputs that are compared directly."""
    kernel = reduction_kernel(ReductionConfig(threads=32, vector=1))
    x = np.full((2, 64), -2000, np.float16)
    x[1] = 1
    assert not hold(kernel, {"X": x, "Y": np.zeros((2, 1), np.float16)})
    wanted = expect(kernel, {"X": x.astype(float), "Y": np.zeros((2, 1))})
    for wrong in (np.inf, -65504.0):
        found, _, _ = judge_outputs(kernel, wanted, {"X": x}, {"Y": np.array([[wrong], [64.0]])})
        assert [b.element for b in found] == [(0,)]


def test_a_number_is_surely_not_infinite() -> None:
    """A choice by such a comparison has the error of what is chosen."""
    x = Bounded(np.array([1.0, -2.0, np.inf, -np.inf]), np.full(4, 0.25))
    assert np.array_equal(np.where(x == -np.inf, 0.0, x).e, [0.25, 0.25, 0.25, 0])
    assert np.array_equal(np.where(x < np.inf, x, 7.0).e, [0.25, 0.25, 0, 0.25])
    assert np.array_equal(np.maximum(x, np.array([-np.inf, np.inf, 0, 0])).e, [0.25, 0, 0.25, 0])


def test_of_a_quotient_by_a_zero_that_may_be_none_nothing_is_known() -> None:
    zero, sure = Bounded(np.zeros(2), 1e-9), bounded(np.zeros(2))
    for x in (1 / zero, zero / zero, sure / zero, np.exp(-(1 / np.sqrt(zero))), (sure * (1 / zero)).sum(keepdims=True)):
        assert (x.e >= 1e300).all()
    assert not np.isnan((1 / sure).v).any()
    assert (1 / sure).e.max() < 1e290, "it is infinite, surely"
    assert (sure / sure).e.max() < 1e290
    assert (bounded(np.array([np.nan])) / zero[:1]).e.max() < 1e290, "no number stays none"


def test_of_an_infinity_times_what_may_be_zero_nothing_is_known() -> None:
    small = 1 / (1 + np.exp(bounded(np.array([100.0, -1.0]))))  # in fp32 the first is zero, and zero times inf NaN
    product = small * np.array([np.inf, np.inf])
    assert np.isinf(product.values).all()
    assert product.error[0] == 1e300
    assert product.error[1] < 1e300
    assert (bounded(np.zeros(1)) * 1.0).error == 0


def test_what_is_read_may_be_anything_where_nothing_is_known() -> None:
    with gr.Kernel("k", means=lambda x: {"y": 1 / (x - x.mean())}, read=lambda y: {"y": y * 1.0}) as kernel:
        x, y = gr.input("x", [3], gr.fp32), gr.output("y", [3], gr.fp32)
        gr.blocks(1), gr.threads(1)
        r = gr.alloc("r", [3], gr.fp32, gr.RF)
        gr.move(r, x)
        gr.move(y, r)
    args = {"x": np.full(3, 0.1, np.float32)}
    for value in (1e9, -np.inf, np.nan):
        outputs = {"y": np.full(3, value)}
        broken, _, _ = judge_outputs(kernel, expect(kernel, args), args, outputs)
        assert not broken


def test_a_quotient_is_exact_by_powers_of_two_alone() -> None:
    x = bounded(np.array([21.0]))
    assert (x / 4).error == 0
    assert 0 < (x / 7).error < 4e-6  # 21 * (1 / 7) in fp32 need not be 3
    row = np.full(30522, 3.0, np.float32)
    mean = np.float32(row.sum(dtype=np.float32) * np.float32(1 / 30522))
    assert abs(bounded(row.astype(np.float64)).mean().values - mean) <= bounded(row.astype(np.float64)).mean().error


def test_a_mean_of_whole_numbers_may_be_taken_of_distances() -> None:
    row = np.zeros(1001, np.float32)
    row[0] = 7  # a mean near zero, and distances from the first element that are not
    moved = np.float32(row[0]) + np.float32((row - row[0]).sum(dtype=np.float32) * np.float32(1 / 1001))
    mean = bounded(row.astype(np.float64)).mean()
    assert moved != np.float32(mean.values)
    assert mean.error >= 2.0**-24 * np.abs(row).mean()


def test_a_sum_of_exponentials_of_minus_infinity_is_zero_without_error() -> None:
    low = bounded(np.array([-np.inf, -np.inf]))
    for total in (np.exp(low).sum(keepdims=True), np.exp2(low).sum(keepdims=True)):
        assert total.v[0] == 0
        assert total.e[0] == 0


def test_an_error_is_told_in_units_of_an_interval_without_an_end() -> None:
    wrong, off, *_ = compare(np.array([7.0]), Bounded(np.array([2.0]), 1e50), "fp16")
    assert not wrong[0]
    assert off[0] <= 1


def test_what_rounds_to_the_nearest_number_is_not_off() -> None:
    x = np.array([0.1, 1 / 3, 70000.0, 1e-9, np.nan, -np.inf])
    exact = Bounded(x, np.zeros(len(x)))
    with np.errstate(over="ignore"):
        wrong, off, *_ = compare(x.astype(np.float16).astype(float), exact, "fp16")
    assert not wrong.any()
    assert not off.any()
    # 1 + 0.6 units of the last place rounds to 1 + 1: what was computed need not be further off than 0.1 units.
    unit = 2.0**-10
    wrong, off, *_ = compare([1.0, 1 + unit], Bounded(np.full(2, 1 + 0.6 * unit), np.full(2, unit / 2)), "fp16")
    assert not wrong.any()
    np.testing.assert_allclose(off, [0.2, 0.0], atol=1e-9)


def test_an_index_of_an_extreme_is_as_far_off_as_errors_may_move_it() -> None:
    v = np.array([[1.0, 5.0, 4.9, 0.0, 4.95], [3.0, 2.0, 1.0, 0.0, -np.inf]])
    near = np.argmax(bounded(Bounded(v, np.full_like(v, 0.1))), axis=-1)
    assert (near.v == [1, 0]).all()
    assert (near.e == [3, 0]).all()  # the last element may be the largest of the first row
    for apart in (np.argmax(Bounded(v, np.full_like(v, 0.01)), axis=1), Bounded(v, np.zeros_like(v)).argmax(1)):
        assert isinstance(apart, np.ndarray)
        assert (apart == [1, 0]).all()
    least = np.argmin(Bounded(-v[0], np.full(5, 0.1)))
    assert (least.v, least.e) == (1, 3)
