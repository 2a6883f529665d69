"""kernel.watch and kernel.steps: what registers and memory held, after which statement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphene as gr


def summed(barrier: bool = True) -> gr.Kernel:
    """Each thread adds its own number to its neighbour's, which shared memory hands over."""
    with gr.Kernel("summed") as kernel:
        x, y = gr.input("x", [2, 64], gr.i32), gr.output("y", [2, 64], gr.i32)
        (b,), (t,) = gr.blocks(2).indices(), gr.threads(64).indices()
        s = gr.alloc("s", [64], gr.i32, gr.SH)
        own, other = gr.load(x[b, t], name="own"), gr.alloc("other", [2], gr.i32, gr.RF)
        s[t] = own
        if barrier:
            gr.barrier()
        gr.move(other[1], s[(t + 1) % 64])
        own += other[1]
        y[b, t] = own
    return kernel


X = np.arange(128, dtype=np.int32).reshape(2, 64)


def test_a_register_is_watched() -> None:
    y = np.zeros_like(X)
    found = summed().watch("own", X, y, block=1, thread=5)
    assert found.values == [69, 139]
    assert y[1, 5] == 139
    assert found.error is None
    assert {(w.block, w.thread, w.place) for w in found} == {(1, 5, "own")}
    assert all("test_watched.py" in w.where for w in found)
    assert "block 1 thread 5  own = 139" in repr(found)
    assert found[0].step < found[1].step


def test_places_in_memory_are_watched() -> None:
    y = np.zeros_like(X)
    shared = summed().watch("s", X, y, block=0)
    assert len(shared) == 64
    assert shared[3].value == 3
    assert "s" in shared[3].place
    assert "3" in shared[3].place
    stored = summed().watch("y", X, y)
    assert len(stored) == 128
    few = summed().watch("y", X, y, limit=30)
    assert (len(few), few.left_out) == (30, 98)
    assert repr(few).endswith("... and 108 more")


def test_the_values_before_a_hazard_are_kept() -> None:
    found = summed(barrier=False).watch("other", X, np.zeros_like(X))
    assert found.error is not None
    assert found.error.code in ("SIM_RACE", "SIM_UNDEFINED")
    assert repr(found).splitlines()[-1].startswith(f"ended by {found.error.code}")


def test_steps_go_both_ways() -> None:
    steps = summed().steps(X, np.zeros_like(X), thread=2)
    assert next(list(s.wrote) for s in steps) == ["own"]
    written = [p for s in steps for p in s.wrote]
    assert written.index("other[1]") > 0
    assert steps.held(0) == {"own": 2}
    assert steps.held()["own"] == 5
    assert steps[len(steps) - 1].wrote == {written[-1]: 5}
    assert len(repr(steps).splitlines()) == len(steps)


def test_a_register_that_was_never_written() -> None:
    with gr.Kernel("copied") as kernel:
        y = gr.output("y", [32], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        r, s = gr.alloc("r", [], gr.fp32, gr.RF), gr.alloc("s", [], gr.fp32, gr.RF)
        gr.move(s, r)
        gr.move(y[t], s)
    found = kernel.watch("s", np.zeros(32, np.float32), thread=0)
    assert found.values == [None]
    assert "never written" in repr(found)


def test_atomics_and_fragments_are_watched() -> None:
    with gr.Kernel("counted") as kernel:
        y = gr.inout("y", [1], gr.i32)
        gr.blocks(1)
        gr.threads(32)
        gr.atomic("add", y[0], 2, fetch=True)
    found = kernel.watch("y", np.zeros(1, np.int32))
    assert found.values == [64] * 32  # of one instruction, when it is done


def test_a_limit_of_nothing() -> None:
    with pytest.raises(ValueError, match="limit"):
        summed().watch("own", X, np.zeros_like(X), limit=0)


@pytest.mark.parametrize(
    ("given", "last"),
    [({"block": -1}, 1), ({"thread": True}, 63), ({"thread": 64}, 63), ({"block": 2}, 1), ({"block": "0"}, 1)],
)
def test_a_block_or_thread_that_is_not_there(given: dict[str, Any], last: int) -> None:
    ((name, value),) = given.items()
    for ask in (summed().steps, lambda *args, **named: summed().watch("own", *args, **named)):
        with pytest.raises(gr.SimulationError) as e:
            ask(X, np.zeros_like(X), **given)
        assert str(e.value) == (
            f"summed has no {name} {value!r}   [SIM_ARGUMENT]\n  want: 0 to {last}, or None for all\n"
            f"  fix: leave {name}= out, or name one of these"
        )


def test_a_block_of_a_grid_of_symbols() -> None:
    n = gr.sym("N", min=1)
    with gr.Kernel("counted") as kernel:
        y = gr.output("y", [n], gr.i32)
        (b,), _ = gr.blocks(n).indices(), gr.threads(1)
        y[b] = gr.let("r", b, gr.i32)
    for args, named in (((np.zeros(3, np.int32),), {}), ((), {"y": np.zeros(3, np.int32)})):
        assert kernel.watch("r", *args, block=2, **named).values == [2]
        with pytest.raises(gr.SimulationError, match=r"counted has no block 3   \[SIM_ARGUMENT\]\n  want: 0 to 2"):
            kernel.watch("r", *args, block=3, **named)


def test_an_unknown_name() -> None:
    with pytest.raises(gr.SimulationError) as e:
        summed().watch("oun", X, np.zeros_like(X))
    assert str(e.value) == (
        "no register and no tensor of summed is called 'oun'   [SIM_ARGUMENT]\n  there are: own\n"
        "  fix: name one of these"
    )
