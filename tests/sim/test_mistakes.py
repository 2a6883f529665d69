"""Mistakes that were planted by hand are told by ``check()``, and the kernels without them raise no alarm."""

from __future__ import annotations

from collections.abc import Callable

import mistakes
import numpy as np
import pytest
import unusual
import users

import graphene as gr

PLANTED = [(f, wrong) for f, every in mistakes.MISTAKES.items() for wrong in every]


@pytest.mark.parametrize("name", list(users.KERNELS)[::3])
def test_a_kernel_of_a_user_raises_no_alarm(name: str) -> None:
    """Some of them; `python tests/sim/users.py` checks all."""
    result = users.KERNELS[name]().check()
    assert result, str(result)


@pytest.mark.parametrize("name", [n for n in unusual.KERNELS if n != "a storing warpgroup"][::2])
def test_a_kernel_of_unusual_form_raises_no_alarm(name: str) -> None:
    """Some of them; `python tests/sim/unusual.py` checks all."""
    result = unusual.KERNELS[name]().check()
    assert result, str(result)


def test_users_have_kernels_of_many_kinds() -> None:
    assert len(users.KERNELS) >= 25


@pytest.mark.parametrize("kernel", mistakes.MISTAKES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_that_keeps_its_promise_raises_no_alarm(kernel: Callable[..., gr.Kernel], seed: int) -> None:
    result = kernel().check(seed=seed)
    assert result, str(result)
    assert result.worst is not None
    assert result.worst.error <= 1


@pytest.mark.parametrize(("kernel", "wrong"), PLANTED, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_a_mistake_is_told(kernel: Callable[..., gr.Kernel], wrong: str) -> None:
    result = kernel(wrong).check()
    assert not result, f"{kernel.__name__}: {wrong}"
    assert result.errors[0].code in ("CHECK_PROMISE", "SIM_OUTPUT_UNWRITTEN"), str(result)


def test_there_are_many_kinds_of_mistakes() -> None:
    assert len(PLANTED) >= 35


def test_integers_of_a_call_are_taken_as_they_are() -> None:
    kernel = mistakes.gather()
    x, y, at = np.arange(40, dtype=np.float32), np.zeros(32, np.float32), np.full(32, 40, np.int32)
    (error,) = kernel.check(x, y, at).errors
    assert error.code == "SIM_FACT"
    assert error.details[:2] == ("want: 0 to 39", "got: 40")
    assert error.details[-1].startswith("in the call: ")
    at[:] = 39
    assert kernel.check(x, y, at)
    assert not y.any()  # it runs on copies


def test_what_no_call_reached_is_said() -> None:
    with gr.Kernel("guarded", means=lambda X: X) as kernel:
        x, y = gr.input("X", [32], gr.fp32), gr.output("Y", [32], gr.fp32)
        far = gr.param("far", gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        v = gr.alloc("v", [], gr.fp32, gr.RF)
        gr.move(v, x[t])
        with gr.if_(far > 100000):
            gr.init(v, 0)
        gr.move(y[t], v)
    result = kernel.check()
    assert result
    (said,) = [u for u in result.uncovered if "no thread" in u]
    assert "no thread executed %" in said
    assert "Init" in said


def test_a_meaning_that_does_not_fit_is_told() -> None:
    for means, text in (
        (lambda X: X[99], "the meaning of gather raised IndexError: index 99 is out of bounds"),
        (lambda X: X, "the meaning of gather gives 'Y' another shape"),
        (lambda Q: Q, "the meaning of gather wants 'Q', which the kernel does not have"),
        (lambda X, index: {"Z": X[index]}, "the meaning of gather must name every output"),
    ):
        with pytest.raises(gr.SimulationError) as e:
            mistakes.gather().with_promise(means).check()
        assert str(e.value).startswith(text)
        assert e.value.code == "CHECK_MEANS"


def test_a_meaning_of_two_outputs_names_them() -> None:
    with gr.Kernel("both", means=lambda x: (x, -x)) as kernel:
        x, y, z = gr.input("x", [32], gr.fp32), gr.output("y", [32], gr.fp32), gr.output("z", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r = gr.load(x[t])
        y[t], z[t] = r, -r
    with pytest.raises(gr.SimulationError) as e:
        kernel.check()
    assert str(e.value) == (
        "the meaning of both does not say what each output is   [CHECK_MEANS]\n  want: a dict of y, z\n  got: tuple\n"
        '  fix: return {"y": ..., "z": ...}'
    )
    assert kernel.with_promise(lambda x: {"y": x, "z": -x}).check().ok
