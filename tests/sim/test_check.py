"""kernel.check(): every planted fault is reported at the level that is wrong, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hazards import race_across_warps
from kernels import fig8, transpose
from promises import (
    FAULTS,
    PIPELINE_FAULTS,
    gemm,
    line_of,
    operand_changes,
    pipelined,
    quads_by_hand,
    writes_beside,
)

import graphene as gr


@pytest.mark.parametrize("seed", range(6))
def test_a_correct_kernel_raises_no_alarm(seed: int) -> None:
    assert gemm().check(seed=seed)
    result = gemm().check(seed=seed, M=32, N=32, K=16)
    assert result.ok, str(result)
    assert result.promises == 4 * 2 * 4 + 1  # blocks, k-tiles, specs in a k-tile; the root
    assert result.sizes == {"M": 32, "N": 32, "K": 16}


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fault_is_reported_at_its_level(fault: str, seed: int) -> None:
    result = gemm(fault).check(seed=seed, M=32, N=32, K=32)
    assert not result.ok
    assert [e.code for e in result.errors] == ["CHECK_PROMISE"], str(result)
    assert result.errors[0].where == f"promises.py:{line_of(FAULTS[fault])}", str(result)


def copied(means: Any = None, arguments: Any = None) -> gr.Kernel:
    with gr.Kernel("copied", means=means, arguments=arguments) as kernel:
        x, y = gr.input("x", [32], gr.i32), gr.output("y", [32], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(32).indices()
        gr.move(y[t], gr.load(x[t]))
    return kernel


@pytest.mark.parametrize("means", [None, lambda x: {"y": None}], ids=["no promise", "a promise of nothing"])
def test_it_is_said_where_no_result_was_compared(means: Any) -> None:
    result = copied(means).check()
    assert result.ok
    assert result.worst is None
    assert ", but no result was compared with a promise" in str(result)
    assert "compared" not in str(copied(lambda x: {"y": x}).check())


def test_integers_are_drawn_from_given_values() -> None:
    """A promise about these values alone is kept."""
    few = gr.Arguments(values={"x": (3, 5)})
    assert copied(lambda x: {"y": np.where((x == 3) | (x == 5), x, -1)}, few).check().ok
    assert not copied(lambda x: {"y": np.where((x == 3) | (x == 5), x, -1)}).check().ok


def test_kinds_of_data_that_there_are_not() -> None:
    with pytest.raises(gr.errors.GrapheneError) as e:
        copied(lambda x: {"y": x}, gr.Arguments(kinds=("Large",))).check()
    assert str(e.value).splitlines() == [
        "copied: no kind of data is called 'Large'   [KERNEL_ARGUMENT]",
        "  known: normal, positive, rising, falling, constant, whole, tiny, large, spike, cold, peak, pit, uneven,"
        " infinite, undefined",
        "  fix: pass some of them as gr.Arguments(kinds=...)",
    ]
    with pytest.raises(gr.errors.GrapheneError, match="its promise covers no kind of data"):
        copied(lambda x: {"y": x}, gr.Arguments(kinds=())).check()


def test_hazards_come_first() -> None:
    kernel, _ = race_across_warps(False)
    result = kernel.check()
    assert [e.code for e in result.errors] == ["SIM_RACE"]


def test_sizes_cover_two_tiles_and_follow_the_facts() -> None:
    assert transpose().check().sizes == {"M": 96, "N": 96}
    assert transpose().check(M=32, N=96).sizes == {"M": 32, "N": 96}
    with pytest.raises(gr.SimulationError, match="breaks the symbol's facts"):
        transpose().check(M=33)
    with pytest.raises(gr.SimulationError, match="has no size Q"):
        transpose().check(Q=1)


def test_fig8_passes() -> None:
    result = fig8(256, 256, 8).check()
    assert result.ok
    assert result.blocks == 4


def test_what_is_not_an_output_must_not_be_written() -> None:
    assert writes_beside(True).check().ok
    (error,) = writes_beside(False).check().errors
    assert (error.code, error.where) == ("CHECK_FRAME", f"promises.py:{line_of('frame')}")
    assert error.details[0] == "written: other[0]"


def test_an_operand_must_not_change() -> None:
    assert operand_changes(True).check().ok
    (error,) = operand_changes(False).check().errors
    assert (error.code, error.where) == ("CHECK_FRAME", f"promises.py:{line_of('product')}")
    assert error.details[0] == "written: s[0]"


def test_undeclared_registers_are_matched_by_value() -> None:
    for seed in range(4):
        result = quads_by_hand().check(seed=seed)
        assert result.ok, str(result)
        assert result.promises == 2
    (error,) = quads_by_hand("one half read twice").check().errors
    assert (error.code, error.where) == ("CHECK_PROMISE", f"promises.py:{line_of('spread')}")
    assert error.details[0] == "32 elements of what is promised are in no register, the first: number 8"
    (error,) = quads_by_hand("another order the second time").check().errors
    assert (error.code, error.where) == ("CHECK_DISTRIBUTION", f"promises.py:{line_of('spread')}")


def test_the_text_of_a_broken_promise() -> None:
    result = gemm("the inner product leaves out the last k").check(M=16, N=16, K=16)
    line, outer, root = line_of("inner"), line_of("k tile"), line_of("root")
    assert str(result) == (
        f"promises.py:{line}: the decomposition does not do what the spec says   [CHECK_PROMISE]\n"
        "    %14:[16,16:N,1].fp32.GL <- MatMul<<<[].block, #5:[64].thread>>>"
        "(%6:[16,8:8,1].fp32.SH, %7:[8,16:16,1].fp32.SH)\n"
        "  wrong: 256 of 256 elements\n"
        "  the first: [0, 0], C[0, 0]\n"
        "  got: the sum over k from 0 to 6 of 8\n"
        f"  in: block (0, 0), threads 0 to 63, inside promises.py:{outer}, promises.py:{root}\n"
        "  fix: look at the statements inside it"
    )


def test_numerics_are_held_to_a_derived_bound() -> None:
    kernel = fig8(128, 128, 16)
    assert kernel.check().worst is None  # nothing is promised

    def means(A: Any, B: Any, C: Any) -> Any:  # a sum that begins with C, in fp16
        return np.concatenate([C[:, :, None], A[:, None, :] * B.T], axis=2).sum(2)

    result = kernel.with_promise(means, sums=gr.fp16).check()
    assert result.worst is not None
    assert 0 < result.worst_error <= 1
    (error,) = kernel.with_promise(means).check().errors
    assert error.code == "CHECK_PROMISE"


def test_loading_ahead_of_the_promise_is_legal() -> None:
    for seed in range(6):
        result = pipelined().check(seed=seed, K=40)
        assert result.ok, str(result)
        assert result.promises == 5 * 3


@pytest.mark.parametrize("fault", sorted(PIPELINE_FAULTS))
def test_a_fault_of_a_pipeline_is_reported_at_its_level(fault: str) -> None:
    errors = pipelined(fault).check(K=40).errors
    assert {e.where for e in errors} == {f"promises.py:{line_of(PIPELINE_FAULTS[fault])}"}, [e.text for e in errors]


def test_strides_that_are_not_given_keep_elements_apart() -> None:
    with gr.Kernel("k") as kernel:
        m, n, b, outer, line = gr.sym("m"), gr.sym("n"), gr.sym("b"), gr.sym("outer"), gr.sym("line", multiple_of=4)
        x = gr.input("x", gr.Layout((b, m, n), (outer, line, 1)), gr.fp32)
        y = gr.output("y", gr.Layout((m, n), (1, line)), gr.fp32)
        (i, j) = gr.blocks(m, n).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        gr.move(r, x[0, i, j])
        gr.move(y[i, j], r)
    assert kernel.check().sizes == {"b": 3, "m": 3, "n": 3, "outer": 11, "line": 4}
    assert kernel.check(n=6).sizes == {"b": 3, "m": 3, "n": 6, "outer": 22, "line": 8}
    assert kernel.check(n=6).ok
    assert kernel.check(m=6, n=2).sizes["line"] == 8  # y has its 6 rows in a line
    assert kernel.check(line=12).sizes["line"] == 12


def gather(reads: str = "rows", adds: str = "more") -> gr.Kernel:
    """Y[i] = x[rows[i]] + more, for rows up to `limit`."""

    def meaning(x: Any, rows: Any, more: Any, limit: Any) -> Any:
        import numpy as np

        return np.where(rows < limit, x[np.minimum(rows.astype(int), 99)] + more, 0)

    meaning.__name__ = "gather"
    with gr.Kernel("gather") as kernel:
        n = gr.sym("n")
        x, rows = gr.input("x", [100], gr.fp32), gr.input("rows", gr.Layout(n), gr.i32)
        y = gr.output("y", gr.Layout(n), gr.fp32)
        more, limit = gr.param("more", gr.i32), gr.param("limit", gr.i32)
        blocks, threads = gr.blocks(n), gr.threads(1)
        (i,) = blocks.indices()
        with gr.spec(y, [x, rows, more, limit], on=(blocks, threads), means=meaning):
            r, row = gr.alloc("r", [], gr.fp32, gr.RF), gr.index(rows[i], 0, 99)
            gr.move(r, x[row if reads == "rows" else i])
            k = more if adds == "more" else 1
            r[:] = gr.where(gr.max(limit - row, 0) > 0, r + k, 0)
            gr.move(y[i], r)
    return kernel


def test_integers_of_a_call_are_used() -> None:
    """Random ones, 0 and 1 in arrays and the least that a number may be, would not tell these faults."""
    call = np.zeros(100, np.float32), np.array([0, 99, 7, 60], np.int32), np.zeros(4, np.float32), 5, 50
    assert gather().check(*call).ok
    for fault in ({"reads": "i"}, {"adds": "1"}):
        assert [e.code for e in gather(**fault).check(*call).errors] == ["CHECK_PROMISE"]
    assert gather(adds="1").check(n=4).ok
    assert gather(adds="1").check(*call, n=3).ok
