"""Pointwise expressions on registers against NumPy: random trees, layouts, types; then every way to get them wrong."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphene as gr

MMA = "mma.m16n8k16.f32.f16"
NP = {"fp16": np.float16, "fp32": np.float32}


def run(build, inputs, shape, dtype=np.float32):
    out = np.full(shape, np.nan, dtype)
    kernel = build()
    assert gr.parse(str(kernel)) == kernel
    kernel.simulate(*inputs, out)
    return out


def accumulators(name, shape, dtype, on):
    return gr.fragment(name, shape, dtype, gr.atom(MMA).c, on=on)


def load(fragment, source):
    """Element by element, so that no instruction's vectors get in the way."""
    gr.move(fragment, source, atom="ld.global.b32" if fragment.dtype == gr.fp32 else "ld.global.b16")


OPS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": None,
    "min": None,
    "where": None,
    "neg": None,
}


@st.composite
def trees(draw, depth=0):
    kind = draw(st.sampled_from(["tensor", "row", "column", "number"] + (["op"] * 6 if depth < 3 else [])))
    if kind == "op":
        op = draw(st.sampled_from(sorted(OPS)))
        return (op, draw(trees(depth=depth + 1)), draw(trees(depth=depth + 1)))
    if kind == "number":
        return draw(st.sampled_from([0.0, 1.0, -2.5, 0.125]))
    return kind


def evaluate(tree, leaves, np_mode):
    if isinstance(tree, float):
        return np.float32(tree) if np_mode else tree
    if isinstance(tree, str):
        return leaves[tree]
    op, a, b = tree
    x, y = evaluate(a, leaves, np_mode), evaluate(b, leaves, np_mode)
    if op in ("add", "sub", "mul"):
        return OPS[op](x, y)
    if op == "neg":
        return -x
    if op == "where":
        condition = x > y
        return (np.where if np_mode else gr.where)(condition, x, y)
    if np_mode:
        return (np.maximum if op == "max" else np.minimum)(x, y)
    return (gr.max if op == "max" else gr.min)(x, y)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), st.sampled_from(["fp16", "fp32"]), st.sampled_from(["fp16", "fp32"]), st.integers(0, 2**32 - 1))
def test_random_expressions_equal_numpy(tree, operand, result, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 5, (32, 16)).astype(NP[operand])
    row = rng.integers(-4, 5, (1, 16)).astype(np.float16)
    column = rng.integers(-4, 5, (32, 1)).astype(np.float32)

    def build():
        with gr.Kernel("k") as kernel:
            X = gr.input("X", [32, 16], getattr(gr, operand))
            R, C = gr.input("R", [1, 16], gr.fp16), gr.input("C", [32, 1], gr.fp32)
            Y = gr.output("Y", [32, 16], getattr(gr, result))
            gr.blocks(1)
            warps = gr.threads(64).tile(32).reshape(0, gr.Layout((2, 1)))
            fx = accumulators("fx", [32, 16], X.dtype, warps)
            fr, fc = fx.reduced(0, "fr", gr.fp16), fx.reduced(1, "fc", gr.fp32)
            fy = accumulators("fy", [32, 16], Y.dtype, warps)
            for f, t in ((fx, X), (fr, R), (fc, C)):
                load(f, t)
            fy[:] = evaluate(tree, {"tensor": fx, "row": fr, "column": fc}, False)
            gr.move(Y, fy, atom="st.global.b16" if result == "fp16" else "st.global.b32")
        return kernel

    got = run(build, (x, row, column), (32, 16), NP[result])
    leaves = {"tensor": x.astype(np.float32), "row": row.astype(np.float32), "column": column}
    with np.errstate(all="ignore"):
        want = np.broadcast_to(np.asarray(evaluate(tree, leaves, True), np.float32), (32, 16)).astype(NP[result])
    np.testing.assert_array_equal(got, want)


def test_each_subexpression_is_evaluated_once_at_its_own_shape():
    with gr.Kernel("k") as kernel:
        on = gr.threads(32)
        acc = accumulators("acc", [16, 64], gr.fp32, on)
        m = acc.reduced(1, "m")
        gr.init(acc, 1)
        gr.init(m, 2)
        twice = gr.exp2(m)
        acc[:] = acc * twice + twice
    source = kernel.cuda_source("sm_80")
    assert source.count("ex2.approx") == 2  # a row of each of the thread's two
    assert source.count("__fmul_rn") == source.count("__fadd_rn") == 32  # no implicit fma


def test_the_store_converts_two_neighbours_at_once():
    with gr.Kernel("k") as kernel:
        on = gr.threads(32)
        acc, half = (accumulators(n, [16, 8], t, on) for n, t in (("acc", gr.fp32), ("half", gr.fp16)))
        gr.init(acc, 1)
        half[:] = acc
    assert kernel.cuda_source("sm_80").count("cvt.rn.f16x2.f32") == 2


def test_a_number_has_the_type_of_what_it_is_compared_with():
    """Not that of the result, a truth value."""
    with gr.Kernel("k") as kernel:
        acc = accumulators("acc", [16, 8], gr.fp32, gr.threads(32))
        gr.init(acc, 1)
        acc[:] = gr.where(acc == -gr.inf, 2, acc)
        acc[:] = gr.where(acc > 3, 0, acc)
    source = kernel.cuda_source("sm_80")
    assert "acc0 == __int_as_float(0xff800000)" in source
    assert "acc0 > 3.0f" in source


def test_the_accumulator_is_the_next_operand_without_an_exchange():
    """P.V of attention: C layout to A layout of the same atom, same owners (FlashAttention-2, section 3)."""
    x = np.arange(16 * 16, dtype=np.float32).reshape(16, 16)

    def build():
        with gr.Kernel("k") as kernel:
            X, Y = gr.input("X", [16, 16], gr.fp32), gr.output("Y", [16, 16], gr.fp16)
            on = gr.threads(32)
            c = accumulators("c", [16, 16], gr.fp32, on)
            a = gr.fragment("a", [16, 16], gr.fp16, gr.atom(MMA).a, on=on)
            load(c, X)
            a[:] = c
            gr.move(Y, a, atom="st.global.b32")
        return kernel

    np.testing.assert_array_equal(run(build, (x,), (16, 16), np.float16), x.astype(np.float16))
    assert "shfl" not in build().cuda_source("sm_80")


def test_reading_other_registers_of_the_destination_goes_through_a_copy():
    x = np.arange(32 * 8, dtype=np.float32).reshape(32, 8)

    def build():
        with gr.Kernel("k") as kernel:
            X, Y = gr.input("X", [32, 8], gr.fp32), gr.output("Y", [32, 8], gr.fp32)
            on = gr.threads(32)
            r = gr.alloc("r", [8], gr.fp32, gr.RF)
            (t,) = on.indices()
            for i in range(8):
                gr.move(r[i], X[t, i])
            r[0:4] = r[1:5] + 0.0  # overlaps itself
            for i in range(8):
                gr.move(Y[t, i], r[i])
        return kernel

    want = x.copy()
    want[:, 0:4] = x[:, 1:5]
    np.testing.assert_array_equal(run(build, (x,), (32, 8)), want)


def test_coordinates_and_validity_of_own_elements():
    """A striped TV layout reaches past the end of the row: what is outside is neither read nor written."""
    n = 100
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)

    def build():
        striped = gr.tv(gr.Layout(32, 4), gr.Layout((4, 1), (1, 128)))
        with gr.Kernel("k") as kernel:
            X, Y = gr.input("X", [n], gr.fp32, align_bytes=16), gr.output("Y", [n], gr.fp32, align_bytes=16)
            on = gr.threads(32)
            f = gr.fragment("f", [n], gr.fp32, striped, on=on)
            gr.move(f, X, atom="ld.global.v4.b32")
            (i,) = f.coords()
            f[:] = gr.where(f.valid(), f, 7.0)
            f[:] = gr.where(i < 50, f, -f)
            gr.move(Y, f, atom="st.global.v4.b32")
        return kernel

    np.testing.assert_array_equal(run(build, (x,), n), np.where(np.arange(n) < 50, x, -x))


def test_a_whole_fragment_is_valid_everywhere():
    with gr.Kernel("k"):
        acc = accumulators("acc", [16, 8], gr.fp32, gr.threads(32))
        assert acc.valid() is True


def refused(code, expression):
    with gr.Kernel("k"):
        on = gr.threads(32)
        acc = accumulators("acc", [16, 16], gr.fp32, on)
        half = gr.fragment("half", [16, 16], gr.fp16, gr.tv(gr.Layout(32, 8), gr.Layout(8, 1)), on=on)
        row, shared = acc.reduced(1, "row"), gr.alloc("shared", [16, 16], gr.fp32, gr.SH)
        private = gr.alloc("private", [8], gr.fp32, gr.RF)
        with pytest.raises(gr.LayoutError) as e:
            acc[:] = expression(acc, half, row, shared, private)
    assert f"[{code}]" in str(e.value)
    return str(e.value)


def test_refusals():
    text = refused("POINTWISE_OWNER", lambda acc, half, row, shared, private: acc + half)
    assert "test_pointwise.py:" in text
    assert "does not cross threads" in text
    assert "operand: [16,16].fp16.RF<tv> of half" in text
    refused("POINTWISE_TYPE", lambda acc, half, row, shared, private: acc + shared)
    refused("POINTWISE_TYPE", lambda acc, half, row, shared, private: gr.where(acc, acc, 0))
    refused("POINTWISE_TYPE", lambda acc, half, row, shared, private: (acc > 0) + acc)
    refused("POINTWISE_SHAPE", lambda acc, half, row, shared, private: acc + private)
    refused("POINTWISE_SHAPE", lambda acc, half, row, shared, private: gr.where(row.coords()[0] > 1, acc, 0))


def test_what_python_must_not_do_with_an_expression():
    with gr.Kernel("k"):
        acc = accumulators("acc", [16, 8], gr.fp32, gr.threads(32))
        with pytest.raises(gr.LayoutError) as e:
            bool(acc > 0)
        assert str(e.value).split(": ", 1)[1] == (
            "an expression on registers has no truth value in Python   [SYM_RUNTIME_BOOL]\n  got: gt(acc, 0)\n"
            "  fix: use gr.where to choose elements, or `with gr.if_(...):` to branch"
        )
        with pytest.raises(gr.LayoutError, match="an expression on registers has no truth value"):
            assert acc == acc
        for question in (lambda: bool(acc), lambda: not acc, lambda: acc and 1):
            with pytest.raises(gr.LayoutError) as e:
                question()
            assert str(e.value).split(": ", 1)[1] == (
                "a tensor has no truth value in Python   [SYM_RUNTIME_BOOL]\n"
                f"  got: {acc}\n"
                "  fix: use gr.where to choose elements, `with gr.if_(x != 0):` to branch, or `is None` to ask whether "
                "there is a tensor"
            )
        with pytest.raises(TypeError, match="an operand must be registers"):
            acc + "1"  # type: ignore[operator]
        gr.init(acc, 0)


@pytest.mark.parametrize("name", ["exp2", "log2", "sqrt", "rsqrt", "rcp"])
def test_flushing_is_asked_for(name):
    """It is one instruction; without it the compiler scales around subnormal numbers."""
    instruction = {"exp2": "ex2", "log2": "lg2"}.get(name, name)

    def source(**options):
        with gr.Kernel("k") as kernel:
            gr.blocks(1)
            (t,) = gr.threads(32).indices()
            x = gr.input("x", [32], gr.fp32)
            y = gr.output("y", [32], gr.fp32)
            r = gr.alloc("r", [1], gr.fp32, gr.RF)
            gr.move(r[0], x[t])
            r[:] = getattr(gr, name)(r, **options)
            gr.move(y[t], r[0])
        return kernel.cuda_source("sm_80")

    assert f'"{instruction}.approx.f32 ' in source()
    assert f'"{instruction}.approx.ftz.f32 ' in source(ftz=True)


def part_by_part(group):
    with gr.Kernel("k") as kernel:
        x = gr.input("x", [64, 32], gr.fp32, align_bytes=8)
        y = gr.output("y", [64, 32], gr.fp32, align_bytes=8)
        gr.blocks(1)
        warps = gr.threads(128).tile(32).reshape(0, gr.Layout((2, 2)))
        (wm, wn), _ = warps.indices()
        whole = accumulators("whole", [64, 32], gr.fp32, warps)
        load(whole, x)
        own = accumulators("own", [16, 16], gr.fp32, group(warps, wm, wn))
        for i in range(2):
            own[:] = whole[wm, wn].tile([16, None])[i, 0] * 2
            gr.move(y.tile([32, 16])[wm, wn].tile([16, None])[i, 0], own, atom="st.global.v2.b32")
    return kernel


def test_a_warp_combines_its_part_of_a_larger_fragment_with_its_own():
    x = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    y = np.zeros_like(x)
    part_by_part(lambda warps, wm, wn: warps[wm, wn]).simulate(x, y)
    np.testing.assert_array_equal(y, 2 * x)
    with pytest.raises(gr.LayoutError, match="POINTWISE_OWNER"):
        part_by_part(lambda warps, wm, wn: warps[0, 0])
