"""Planned convolutions: they compute their graph as PyTorch does, keep their promise, and say what they do not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import plan

SIZES: dict[str, dict[str, Any]] = {
    "padded": {},
    "strided": {"stride": 2, "columns_last": True, "images": "N"},
    "odd": {"side": 9, "channels": 48, "columns": 40, "padding": 0, "places": 2, "stride": 3, "residual": False},
    "points": {"places": 1, "padding": 0},
    "wide": {"places": 5, "padding": 2, "channels": 16, "dtype": gr.bf16},
}


def convolution(
    images: Any = 3, side: int = 10, channels: int = 64, columns: int = 64, places: int = 3, stride: int = 1,
    padding: int = 1, columns_last: bool = False, residual: bool = True, dtype: Any = gr.fp16,
) -> plan.Graph:  # fmt: skip
    """Sides differ by two, so that one is not taken for the other."""
    counts = [(size + 2 * padding - places) // stride + 1 for size in (side, side + 2)]
    n, h, w, c = plan.axes(n=images, h=side, w=side + 2, c=channels)
    p, q, r, s, k = plan.axes(p=counts[0], q=counts[1], r=places, s=places, k=columns)
    with plan.graph("convolution") as g:
        x = g.input("X", [n, h, w, c], dtype)
        weights = g.input("F", [r, s, c, k] if columns_last else [k, r, s, c], dtype)
        rows = plan.window(x, h, p, r, stride=stride, padding=padding)
        y = plan.dot(plan.window(rows, w, q, s, stride=stride, padding=padding), weights, [r, s, c])
        y = y + g.input("bias", [k], dtype)
        if residual:
            y = y + g.input("residual", [n, p, q, k], dtype)
        g.output("Y", plan.relu(y), [n, p, q, k], dtype)
    return g


def planned(name: str, **pins: Any) -> plan.Plan:
    g = convolution(**SIZES[name])
    return g.plan("sm_80", pin=pins, **({"n": 3} if "images" in SIZES[name] else {}))


@pytest.mark.parametrize("name", SIZES)
def test_planned_convolutions_keep_their_promise(name: str) -> None:
    p = planned(name)
    found = p.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert max(map(len, p.source().splitlines())) <= 120
    assert plan.Plan.from_json(p.json()).source() == p.source()


@pytest.mark.parametrize("name", ["padded", "strided", "odd"])
def test_planned_convolutions_compute_what_torch_does(name: str) -> None:
    """On the simulator, at the graph's own sizes; the graph's meaning in float64 is PyTorch's to the last bits."""
    torch = pytest.importorskip("torch")
    p, rng = planned(name), np.random.default_rng(0)
    own = SIZES[name]
    arrays = {v.name: rng.standard_normal([a.size or 3 for a in v.more["stored"]]).astype(np.float16)
              for v in p.graph.inputs}  # fmt: skip
    weights = arrays["F"].transpose(3, 2, 0, 1) if own.get("columns_last") else arrays["F"].transpose(0, 3, 1, 2)
    want = torch.nn.functional.conv2d(
        torch.from_numpy(arrays["X"].transpose(0, 3, 1, 2)).double(), torch.from_numpy(weights).double(),
        torch.from_numpy(arrays["bias"]).double(), own.get("stride", 1), own.get("padding", 1),
    ).numpy().transpose(0, 2, 3, 1)  # fmt: skip
    want = np.maximum(want + arrays.get("residual", 0), 0)
    meant = p.graph.evaluate(arrays)["Y"]
    assert np.abs(meant - want).max() <= 1e-12 * np.abs(want).max()
    got = np.full(want.shape, np.nan, np.float16)
    p(*(arrays[v.name] for v in p.kernel_inputs()), got)
    assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()


def test_signals_and_volumes_are_convolved_too() -> None:
    n, length, c, p, r, k = plan.axes(n=2, length=20, c=32, p=10, r=4, k=32)
    with plan.graph("signal") as g:
        x, f = g.input("X", [n, length, c], gr.fp16), g.input("F", [k, r, c], gr.fp16)
        g.output("Y", plan.dot(plan.window(x, length, p, r, stride=2, padding=1), f, [r, c]), [n, p, k], gr.fp16)
    found = g.plan("sm_80").check()
    assert found.ok, str(found)
    n, d, h, w, c = plan.axes(n=1, d=5, h=6, w=7, c=16)
    z, p, q, t, r, s, k = plan.axes(z=5, p=6, q=7, t=3, r=3, s=3, k=16)
    with plan.graph("volume") as g:
        x, f = g.input("X", [n, d, h, w, c], gr.fp16), g.input("F", [k, t, r, s, c], gr.fp16)
        for along, to, over in ((d, z, t), (h, p, r), (w, q, s)):
            x = plan.window(x, along, to, over, padding=1)
        g.output("Y", plan.dot(x, f, [t, r, s, c]), [n, z, p, q, k], gr.fp16)
    found = g.plan("sm_80").check()
    assert found.ok, str(found)


def test_pins_of_a_convolution_hold_or_are_refused() -> None:
    p = planned("padded", **{"tile.m": 32, "tile.n": 32, "loop.k": 32, "stages": 2, "warps": "1x2"})
    assert p.check().ok
    with pytest.raises(gr.SelectError, match="128 channels of a step do not divide 64"):
        planned("padded", **{"loop.k": 128})
    with pytest.raises(gr.SelectError, match="are not the same for each of 256 threads"):
        planned("padded", **{"tile.m": 16, "loop.k": 32, "warps": "1x8", "tile.n": 128})


def test_windows_are_checked_where_they_are_written() -> None:
    n, h, w, p, r = plan.axes(n=2, h=8, w=8, p=8, r=3)
    x = plan.graph("g").input("X", [n, h], gr.fp16)
    unknown, long = plan.axes(u="U", long=11)
    for call, message in (
        (lambda: plan.window(x, w, p, r), "windows of an axis that the value does not have"),
        (lambda: plan.window(x, h, p, r, stride=0), "the stride of windows is an integer from 1 on"),
        (lambda: plan.window(x, h, p, r, padding=-1), "the padding of windows is an integer from 0 on"),
        (lambda: plan.window(x, h, n, r), "windows need two new axes"),
        (lambda: plan.window(x, h, unknown, r), "windows are of axes with known sizes"),
        (lambda: plan.window(x, h, p, r), "axis p does not count the windows of h=8"),
        (lambda: plan.window(x, h, p, r, padding=3), "windows of 3 places with a padding of 3 at each end: some would"),
        (lambda: plan.window(x, h, p, long, padding=1), "windows of 11 places are longer than h=8 with a padding of 1"),
        (lambda: plan.dot(x, x, [h, w]), "a product along an axis that one of the operands lacks"),
        (lambda: plan.dot(x, x, []), "a product along an axis that one of the operands lacks"),
    ):
        with pytest.raises(gr.VerifyError) as e:
            call()
        assert e.value.code == "PLAN_GRAPH"
        assert str(e.value).startswith(message)
    with pytest.raises(gr.VerifyError) as e:
        plan.window(x, h, p, r, stride=2, padding=1)
    assert str(e.value).splitlines()[1:] == [
        "  want: (8 + 2 * 1 - 3) // 2 + 1 = 4",
        "  got: 8",
        "  fix: plan.axes(p=4)",
    ]


def total(x: plan.Value, axes: Any) -> plan.Value:
    for a in axes:
        x = plan.sum(x, a)
    return x


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g, x, f, s, of: plan.dot(of(x * 2), f, s), "a convolution is a product of windows of an input"),
        (lambda g, x, f, s, of: plan.dot(of(x), f, s) + plan.dot(of(x), f, s[:2]), "a convolution is the only product"),
        (lambda g, x, f, s, of: plan.dot(of(x), f, s[1:]), "a convolution sums over the places of windows"),
        (lambda g, x, f, s, of: plan.dot(of(x), f, s) * total(f, s), "a reduction beside a convolution"),
        (lambda g, x, f, s, of: plan.sum(of(x), s[2]), "a convolution is the only product of its graph"),
    ],
)
def test_graphs_that_no_plan_computes(build: Any, message: str) -> None:
    n, h, w, c, p, q, r, s, k = plan.axes(n=1, h=6, w=6, c=16, p=6, q=6, r=3, s=3, k=16)
    with plan.graph("wrong") as g:
        x, f = g.input("X", [n, h, w, c], gr.fp16), g.input("F", [k, r, s, c], gr.fp16)
        y = build(g, x, f, [r, s, c], lambda x: plan.window(plan.window(x, h, p, r, padding=1), w, q, s, padding=1))
        g.output("Y", y, sorted(y.axes, key=lambda a: [n, p, q, r, s, k, h, w, c].index(a)), gr.fp16)
    with pytest.raises(gr.SelectError) as e:
        g.plan("sm_80")
    assert e.value.code == "PLAN_NONE"
    assert message in str(e.value)


def test_what_is_stored_otherwise_is_refused() -> None:
    n, h, w, c, p, q, r, s, k = plan.axes(n=1, h=6, w=6, c=24, p=6, q=6, r=3, s=3, k=16)

    def graph(x_axes: Any, f_axes: Any, y_axes: Any) -> plan.Graph:
        with plan.graph("g") as g:
            x, f = g.input("X", x_axes, gr.fp16), g.input("F", f_axes, gr.fp16)
            x = plan.window(plan.window(x, h, p, r, padding=1), w, q, s, padding=1)
            g.output("Y", plan.dot(x, f, [r, s, c]), y_axes, gr.fp16)
        return g

    nhwc, krsc, npqk = [n, h, w, c], [k, r, s, c], [n, p, q, k]
    for g, message in (
        (graph([n, c, h, w], krsc, npqk), "input X of windows is stored in another order"),
        (graph(nhwc, [k, c, r, s], npqk), "input F holds weights in another order"),
        (graph(nhwc, krsc, [n, k, p, q]), "output Y is stored in another order"),
        (graph(nhwc, krsc, npqk), "c=24 channels"),
    ):
        with pytest.raises(gr.SelectError) as e:
            g.plan("sm_80")
        assert e.value.code == "PLAN_NONE"
        assert message in str(e.value)


def test_a_product_along_several_axes_needs_windows() -> None:
    m, k, j, n = plan.axes(m=16, k=16, j=4, n=16)
    with plan.graph("g") as g:
        x, w = g.input("X", [m, j, k], gr.fp16), g.input("W", [n, j, k], gr.fp16)
        g.output("Y", plan.dot(x, w, [j, k]), [m, n], gr.fp16)
    assert g.evaluate({"X": np.ones((16, 4, 16)), "W": np.ones((16, 4, 16))})["Y"].max() == 64
    with pytest.raises(gr.SelectError, match="a product along several axes in a kernel of other products"):
        g.plan("sm_80")


@pytest.mark.parametrize(
    ("channels", "columns", "stride", "pins"),
    [(64, 64, 1, {"tile.m": 64, "tile.n": 64, "stages": 3}), (128, 72, 2, {"tile.m": 128, "stages": 4}),
     (64, 128, 1, {"tile.m": 128, "stages": 2})],
)  # fmt: skip
def test_a_warpgroup_gathers_windows_for_wgmma(channels: int, columns: int, stride: int, pins: dict[str, Any]) -> None:
    side = (11 + 2 - 3) // stride + 1
    n, h, w, c = plan.axes(n="N", h=11, w=11, c=channels)
    p, q, r, s, k = plan.axes(p=side, q=side, r=3, s=3, k=columns)
    with plan.graph("convolution") as g:
        x, weights = g.input("X", [n, h, w, c], gr.fp16), g.input("F", [k, r, s, c], gr.fp16)
        seen = plan.window(plan.window(x, h, p, r, stride=stride, padding=1), w, q, s, stride=stride, padding=1)
        y = plan.dot(seen, weights, [r, s, c]) + g.input("bias", [k], gr.fp16)
        g.output("Y", plan.relu(y + g.input("steps", [n, p, q, k], gr.fp16)), [n, p, q, k], gr.fp16)
    made = g.plan("sm_90a", n=4, pin={**pins, "instruction": "wgmma"})
    found = made.check()
    assert found.ok, str(found)
    assert found.conflicts == 0
    assert "cp.async" in made.decisions["sX.copy"].value
    assert plan.Plan.from_json(made.json()).source() == made.source()
    assert max(map(len, made.source().splitlines())) <= 120


@pytest.mark.parametrize(("side", "channels", "rows"), [(56, 64, 192), (28, 128, 192), (14, 256, 64), (14, 512, 128)])
def test_the_tile_of_windows_is_the_one_that_was_faster(side: int, channels: int, rows: int) -> None:
    """On an H200, with 32 images: by mma.sync 28.5, 26.4, 29.1 and 102 us, by wgmma 29.9, 22.5, 20.2 and 56.3 with 128
    rows, and 26.6, 16.3, 19.5 and 59.3 with 192; the third 16.1 with 64 rows and 256 columns.
    """
    n, h, w, c = plan.axes(n=32, h=side, w=side, c=channels)
    p, q, r, s, k = plan.axes(p=side, q=side, r=3, s=3, k=channels)
    with plan.graph("convolution") as g:
        x, weights = g.input("X", [n, h, w, c], gr.fp16), g.input("F", [k, r, s, c], gr.fp16)
        seen = plan.window(plan.window(x, h, p, r, padding=1), w, q, s, padding=1)
        g.output("Y", plan.dot(seen, weights, [r, s, c]), [n, p, q, k], gr.fp16)
    made = g.plan("sm_90a").decisions
    assert (made["instruction"].value, made["tile.m"].value) == ("wgmma", rows)


def test_windows_that_wgmma_does_not_take() -> None:
    n, h, c = plan.axes(n="N", h=16, c=32)
    p, r, k = plan.axes(p=14, r=3, k=64)
    with plan.graph("signal") as g:
        x, weights = g.input("X", [n, h, c], gr.fp16), g.input("F", [k, r, c], gr.fp16)
        g.output("Y", plan.dot(plan.window(x, h, p, r), weights, [r, c]), [n, p, k], gr.fp16)
    with pytest.raises(gr.SelectError, match="steps take 64") as error:
        g.plan("sm_90a", n=4, pin={"instruction": "wgmma"})
    assert error.value.code == "PLAN_PIN"
