"""What Python and NumPy ask of registers as if their numbers were known."""

import math
import re

import numpy as np
import pytest

import graphene as gr
from graphene import elsewhere


def recorded(body):
    """Calls `body` with a register of each thread, in a kernel that stores what it returns."""
    with gr.Kernel("asked") as kernel:
        x, y = gr.input("x", [64], gr.fp32), gr.output("y", [64], gr.fp32)
        (t,) = gr.threads(64).indices()
        gr.move(y.tile([1])[t], body(gr.load(x.tile([1])[t])))
    return kernel


ANSWERED = {
    "round": (round, np.round),
    "floor": (math.floor, np.floor),
    "ceil": (lambda r: math.ceil(r * 2), lambda x: np.ceil(x * 2)),
    "trunc": (math.trunc, np.trunc),
    "a NumPy number before it": (lambda r: np.float32(2) * r - np.int32(1), lambda x: 2 * x - 1),
    "an array of one number": (lambda r: np.array(3.0) / (r + 10), lambda x: 3 / (x + 10)),
    "compared with one": (lambda r: gr.where(np.float32(0) < r, r, 0), lambda x: np.where(x > 0, x, 0)),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_registers_answer(name):
    body, on_arrays = ANSWERED[name]
    x, y = np.linspace(-4, 4, 64).astype(np.float32), np.zeros(64, np.float32)
    recorded(body)(x, y)
    np.testing.assert_allclose(y, on_arrays(x).astype(np.float32), rtol=1e-5)


@pytest.mark.parametrize(
    ("ask", "message", "fix"),
    [
        (math.exp, "the numbers in registers are known only when the kernel runs", "such as gr.exp for math.exp"),
        (lambda r: math.sqrt(r + 1), "the numbers in registers", "write Graphene's function instead of Python's"),
        (float, "the numbers in registers", "gr.let(name, x, dtype) converts"),
        (int, "the numbers in registers", "gr.index reads an integer"),
        (complex, "the numbers in registers", "Graphene's function"),
        (lambda r: [1, 2][r], "the numbers in registers", "gr.index reads an integer that is an index or a bound"),
        (lambda r: f"{r:.2f}", "the numbers in registers", "gr.print shows them"),
        (lambda r: round(r, 2), "registers are rounded to integers", "gr.round(x * 100) / 100"),
        (np.exp, "NumPy's exp takes no registers", "write gr.exp"),
        (lambda r: np.maximum(r, 0), "NumPy's maximum takes no registers", "write gr.max"),
        (lambda r: np.ones(2) * r, "NumPy's multiply takes no registers", "an array is an argument of the kernel"),
        (np.sum, "NumPy's add takes no registers", "an array is an argument of the kernel"),
    ],
)
def test_what_is_refused(ask, message, fix):
    with pytest.raises(gr.LayoutError) as e:
        recorded(ask)
    assert e.value.code == "POINTWISE_TYPE"
    assert message in e.value.diagnostics[0]["message"]
    assert fix in e.value.diagnostics[0]["fix"]


def test_names_are_written_without_a_form():
    shown = []
    recorded(lambda r: (shown.append(f"{r}"), r)[1])
    assert shown[0].endswith(":[1].fp32.RF")


def test_names_of_other_languages_lead_to_ours():
    """Advice names what exists, for names that do not; other names, and those that tools ask for, get none."""
    for words, known in ((elsewhere._WORDS, gr), (elsewhere._OF_TENSORS, gr.tensor("x", [4], gr.fp32))):
        for name, word in words.items():
            assert not hasattr(known, name), name
            for ours in re.findall(r"gr\.(\w+)", word):
                assert hasattr(gr, ours), (name, ours)
    with pytest.raises(AttributeError, match=r"no attribute 'syncthreads'; write gr\.barrier\(\)$"):
        gr.syncthreads  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'float32'; a type has a short name: gr\.fp16"):
        gr.float32  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nothing_like_it'$"):
        gr.nothing_like_it  # noqa: B018
    with pytest.raises(AttributeError, match=r"'Tensor' has no attribute 'astype'; write gr\.cast\(x, dtype\)"):
        gr.tensor("x", [4], gr.fp32).astype(gr.fp16)
    assert not hasattr(gr.tensor("x", [4], gr.fp32), "no_such_thing")


def kernel_of(body):
    """A kernel of 64 threads; `body` gets them, the thread's number, and registers of one element."""
    with gr.Kernel("asked") as kernel:
        x, y = gr.input("x", [64], gr.fp32), gr.output("y", [64], gr.fp32)
        block = gr.threads(64)
        (t,) = block.indices()
        gr.move(y.tile([1])[t], body(block, gr.load(x.tile([1])[t])))
    return kernel


def _halved(block, r):
    turns = gr.let("turns", 0.0, gr.fp32)
    with gr.while_(lambda: r > 1, bound=100):
        r *= 0.5
        turns += 1
    return turns


def _clipped(block, r):
    with gr.if_(r > 8):
        r[:] = 8.0
    return r


def _nearest(block, r):
    """The place of the number that is nearest to 10.2: of an expression, and of a coordinate."""
    _, place = gr.allarg("max", -abs(r - 10.2), block.indices()[0], on=block)
    return gr.cast(place, gr.fp32)


@pytest.mark.parametrize(
    ("body", "on_arrays"),
    [
        (lambda block, r: gr.scan("add", r, on=block), np.cumsum),
        (_halved, lambda x: np.ceil(np.log2(np.maximum(x, 1)))),
        (_clipped, lambda x: np.minimum(x, 8)),
        (_nearest, lambda x: np.full(64, 10)),
    ],
)
def test_registers_of_one_element_are_one_register(body, on_arrays):
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel_of(body)(x, y)
    np.testing.assert_allclose(y, on_arrays(x))


def test_what_is_no_bound_and_no_value():
    def looped(block, r):
        for _ in gr.loop("i", r):
            pass

    with pytest.raises(gr.LayoutError, match="a loop counts to an integer, not to a value of data") as e:
        kernel_of(looped)
    assert e.value.code == "TENSOR_TYPE"
    assert "gr.index(x, min=0, max=...)" in str(e.value)

    def nothing(block, r):
        r[:] = gr.allreduce("add", r, on=block)

    with pytest.raises(gr.LayoutError, match="an assignment of nothing") as e:
        kernel_of(nothing)
    assert e.value.code == "POINTWISE_TYPE"
    assert "gr.atomic(..., fetch=True)" in str(e.value)
