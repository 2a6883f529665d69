"""Optional arguments: a kernel has a form for each set of arguments that a call gives."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import graphene as gr


def scaled(forgets: bool = False) -> gr.Forms:
    """y = x * scale + bias, both optional; `forgets`: the form without a scale adds no bias."""

    def means(x: Any, bias: Any = None, scale: Any = None) -> Any:
        y = x if scale is None else x * scale
        return y if bias is None else y + bias

    @gr.forms
    def scaled() -> gr.Kernel:
        n = gr.sym("n")
        with gr.Kernel("scaled", means=means) as kernel:
            x, bias = gr.input("x", [n], gr.fp32), gr.input("bias", [n], gr.fp32, optional=True)
            scale = gr.param("scale", gr.fp32, optional=True)
            y = gr.output("y", [n], gr.fp32)
            (b,), (t,) = gr.blocks(gr.ceil_div(n, 32)).indices(), gr.threads(32).indices()
            r = gr.let("r", gr.load(x.tile([32])[b][t]))
            if scale is not None:
                r *= scale
            if bias is not None and not (forgets and scale is None):
                r += gr.load(bias.tile([32])[b][t])
            gr.move(y.tile([32])[b][t], r)
        return kernel

    return scaled


def test_a_call_runs_the_form_of_what_it_gives() -> None:
    kernel = scaled()
    assert (kernel.name, kernel.optional) == ("scaled", ("bias", "scale"))
    x, y = np.arange(40, dtype=np.float32), np.zeros(40, np.float32)
    for args, named, want in [
        ((x, x, 2.0, y), {}, 3), ((x, None, 2.0, y), {}, 2), ((x, None, None, y), {}, 1),
        ((x, x), {"y": y}, 2), ((x,), {"y": y, "scale": 3.0}, 3), ((), {"x": x, "y": y, "bias": None}, 1),
    ]:  # fmt: skip
        y[:] = 0
        kernel(*args, **named)
        np.testing.assert_array_equal(y, want * x)
        y[:] = 0
        kernel.simulate(*args, **named)
        np.testing.assert_array_equal(y, want * x)


def test_what_is_left_out_is_no_part_of_a_form() -> None:
    kernel = scaled()
    alone, both = kernel.form().cuda_source("sm_80"), kernel.form("bias", "scale").cuda_source("sm_80")
    assert "bias" not in alone and "scale," not in alone and "bias" in both  # noqa: PT018
    assert kernel.form("bias") is kernel.form("bias")
    assert len(list(kernel.kernels())) == 4


def test_a_check_judges_every_form() -> None:
    found = scaled().check(n=40)
    assert found and found.ok and len(found) == 4  # noqa: PT018
    wrong = scaled(forgets=True).check(n=40)
    assert not wrong
    assert [set(given) for given, r in wrong.items() if not r.ok] == [{"bias"}]
    assert repr(wrong).splitlines()[0].startswith("with none: <CheckResult: ok")


def test_a_mandatory_argument_is_one() -> None:
    x = np.zeros(8, np.float32)
    with pytest.raises(gr.LaunchError, match="argument 'x' is not a tensor"):
        scaled()(None, x, 2.0, x)
    with pytest.raises(gr.LaunchError, match="takes 4 arguments, got 5"):
        scaled()(x, x, 2.0, x, x)
    with pytest.raises(gr.VerifyError, match="has no optional argument 'x'"):
        scaled().form("x")
    with pytest.raises(gr.SimulationError, match="no size m"):
        scaled().check(m=3)


def test_wrong_recordings_are_refused() -> None:
    with pytest.raises(gr.VerifyError, match="of a kernel that has one form") as e, gr.Kernel("k"):
        gr.input("x", [8], gr.fp32, optional=True)
    assert e.value.code == "KERNEL_SCOPE"
    with pytest.raises(gr.VerifyError, match=r"returns the kernel that it records[^$]*got: int") as e:
        gr.forms(lambda: 3)  # type: ignore[arg-type, return-value]
    assert e.value.code == "KERNEL_ARGUMENT"
    deep: tuple[object, ...] = ()
    for _ in range(5000):  # what has no representation, since that takes too deep a stack
        deep = (deep,)
    for wrong, name in ((3, "int"), (None, "NoneType"), (deep, "tuple")):
        with pytest.raises(gr.VerifyError, match=rf"takes a function that records a kernel[^$]*got: {name}") as e:
            gr.forms(wrong)  # type: ignore[arg-type]
        assert e.value.code == "KERNEL_ARGUMENT"

    def plain(count: int) -> gr.Kernel:
        with gr.Kernel("plain") as kernel:
            y = gr.output("y", [8], gr.fp32)
            for i in range(count):
                gr.param(f"p{i}", gr.fp32, optional=True)
            gr.init(y[gr.threads(8).indices()[0]], 0)
        return kernel

    with pytest.raises(gr.VerifyError, match="no optional argument") as e:
        gr.forms(lambda: plain(0))
    assert e.value.code == "KERNEL_ARGUMENT"
    with pytest.raises(gr.VerifyError, match="6 optional arguments"):
        gr.forms(lambda: plain(6))


def test_a_check_of_a_call_judges_the_form_that_it_runs() -> None:
    x = np.arange(40, dtype=np.float32)
    checked = scaled().check(x, x, None, np.zeros_like(x))
    assert checked.ok
    assert list(checked) == [frozenset({"bias"})]
    assert not scaled(forgets=True).check(x, x, None, np.zeros_like(x)).ok


def test_what_a_form_has_is_named() -> None:
    with pytest.raises(AttributeError) as e:
        scaled().cuda_source("sm_90a")
    assert str(e.value) == (
        "scaled has optional arguments, and each form has its own cuda_source: "
        "take one, kernel.form('bias', 'scale').cuda_source"
    )
    assert "cuda" not in repr(scaled())
    assert not hasattr(scaled(), "anything_else")


@gr.forms
def shifted() -> gr.Kernel:
    with gr.Kernel("shifted") as kernel:
        x, more = gr.inout("x", [32], gr.fp32), gr.param("more", gr.fp32, optional=True)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        gr.move(x[t], gr.load(x[t]) + (1 if more is None else more))
    return kernel


def test_a_decorated_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(shifted)) is shifted
    assert copy.copy(shifted) is shifted


def test_what_records_no_kernel_is_refused() -> None:
    for record, text in (
        (shifted.form(), "takes a function that records a kernel, not the kernel"),
        (shifted, "takes a function that records a kernel, not the kernel"),
        (lambda n: shifted.form(), "needed: n"),
    ):
        with pytest.raises(gr.VerifyError, match=text) as e:
            gr.forms(record)
        assert e.value.code == "KERNEL_ARGUMENT"
