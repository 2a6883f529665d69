"""Lists of tensors, scalars of every type, rings: what kernels are given, and keep count of."""

import numpy as np
import pytest

import graphene as gr


def gather(n):
    """Y[l] = sum over i < l of W[i], the list indexed at run time."""
    with gr.Kernel("gather") as kernel:
        W = gr.inputs("W", n, [8], gr.fp32)
        s = gr.param("s", gr.fp32)
        Y = gr.output("Y", [n, 8], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(8).indices()
        acc, x = gr.alloc("acc", [], gr.fp32, gr.RF), gr.alloc("x", [], gr.fp32, gr.RF)
        gr.init(acc, 0)
        for i in gr.loop("i", n):
            gr.move(x, W[i][t])
            acc[:] = acc + x * s
            gr.move(Y[i, t], acc)
        gr.move(x, W[n - 1][t])
    return kernel


def test_a_list_indexed_at_run_time():
    kernel = gather(3)
    assert gr.parse(str(kernel)) == kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel
    w = [np.full(8, 10.0**i, np.float32) for i in range(3)]
    y = np.zeros((3, 8), np.float32)
    kernel.simulate(w, 0.5, y)
    np.testing.assert_array_equal(y[:, 3], [0.5, 5.5, 55.5])
    assert kernel.check().ok
    source = kernel.cuda_source("sm_80")
    assert "const __grid_constant__ gr_list<const float, 3> W" in source
    assert "W.at[i]" in source
    assert kernel.compile("sm_80").cubin


def test_arguments_come_in_declaration_order_and_by_name():
    kernel = gather(2)
    w, y = [np.ones(8, np.float32)] * 2, np.zeros((2, 8), np.float32)
    kernel.simulate(Y=y, s=2.0, W=w)
    np.testing.assert_array_equal(y[:, 0], [2, 4])
    with pytest.raises(gr.LaunchError, match="LAUNCH"):
        kernel.simulate(w[:1], 2.0, y)
    with pytest.raises(gr.LaunchError, match=r"W\[1\]"):
        kernel.simulate([w[0], np.ones(7, np.float32)], 2.0, y)


def test_a_list_is_no_tensor():
    with gr.Kernel("k"):
        W = gr.inputs("W", 2, [8, 8], gr.fp32)
        for wrong in (lambda: W.tile([4]), lambda: W.T, lambda: W.reshape(0, [2]), lambda: W[:]):
            with pytest.raises(gr.LayoutError) as e:
                wrong()
            assert "choose one of them: W[i]" in str(e.value)
            assert "[INPUTS_INDEX]" in str(e.value)
        with pytest.raises(gr.LayoutError, match="TENSOR_INDEX"):
            W[2]
        with pytest.raises(ValueError, match="at least one tensor"):
            gr.inputs("V", 0, [8], gr.fp32)


@pytest.mark.parametrize("dtype", [gr.fp16, gr.bf16, gr.fp32, gr.fp64])
def test_floating_point_scalars(dtype):
    with gr.Kernel("k") as kernel:
        a, n, b = gr.param("a", dtype), gr.param("n", gr.i32), gr.param("b", gr.fp32)
        Y = gr.output("Y", [1], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        y = gr.alloc("y", [], gr.fp32, gr.RF)
        y[:] = a * 2 + b * n
        gr.move(Y[0], y)
    assert gr.parse(str(kernel)) == kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel
    y = np.zeros(1, np.float32)
    kernel.simulate(1.5, 3, 0.25, y)
    assert y[0] == 3.75
    assert kernel.compile("sm_80").cubin


def test_a_scalar_is_not_written():
    with gr.Kernel("k") as kernel:
        a = gr.param("a", gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        gr.init(a, 1)
    with pytest.raises(gr.VerifyError, match="VERIFY_READ_ONLY"):
        kernel.lowered("sm_80")


def test_a_ring_counts_stages_and_rounds():
    with gr.Kernel("k") as kernel:
        Y = gr.output("Y", [7, 2], gr.i32)
        gr.blocks(1)
        gr.threads(1)
        ring = gr.ring("ring", 3, phase=1)
        for i in gr.loop("i", 7):
            for j, value in enumerate((ring.index, ring.phase)):
                r = gr.alloc(f"r{j}", [], gr.i32, gr.RF)
                r[:] = value
                gr.move(Y[i, j], r)
            ring.advance()
    y = np.zeros((7, 2), np.int32)
    kernel.simulate(y)
    np.testing.assert_array_equal(y[:, 0], np.arange(7) % 3)
    np.testing.assert_array_equal(y[:, 1], 1 ^ (np.arange(7) // 3 & 1))


def test_a_phase_that_nobody_asks_for_costs_nothing():
    with gr.Kernel("k") as kernel:
        Y = gr.output("Y", [4], gr.fp32)
        gr.blocks(1)
        gr.threads(1)
        ring = gr.ring("ring", 2)
        gr.init(Y[ring.index], 1)
        ring.advance()
        for i in range(1, 4):
            gr.init(Y[i], 1)
    assert "phase" not in str(kernel)


def test_rings_that_make_no_sense():
    with gr.Kernel("k"):
        with pytest.raises(gr.VerifyError, match="RING_STAGES"):
            gr.ring("r", 0)
        with pytest.raises(gr.VerifyError, match="RING_STAGES"):
            gr.ring("r", 2, phase=2)


@pytest.mark.parametrize(("atom", "code"), [("cp.async.cg.17", "ATOM_UNKNOWN"), ("ld.global.b32", "NO_ATOM")])
def test_nothing_to_commit(atom, code):
    with gr.Kernel("k") as kernel:
        gr.blocks(1)
        gr.threads(1)
        gr.commit(atom)
    with pytest.raises(gr.SelectError, match=code):
        kernel.lowered("sm_80")


def packed(D=8):
    """Y[b] = the sum of the rows of packed sequence b: row numbers live in data (cu_seqlens), as in variable-length
    attention."""
    total, batch = gr.sym("total"), gr.sym("batch", max=65535)
    with gr.Kernel("packed") as kernel:
        X = gr.input("X", gr.row_major(total, D), gr.fp32)
        starts = gr.input("starts", gr.Layout(batch + 1), gr.i32)
        Y = gr.output("Y", gr.row_major(batch, D), gr.fp32)
        (b,), (t,) = gr.blocks(batch).indices(), gr.threads(D).indices()
        start = gr.index(starts[b], 0, 2**31 - 2)
        size = gr.index(starts[b + 1], 0, 2**31 - 2) - start
        rows = X.window(start, gr.max(size, 0))
        acc, x = gr.alloc("acc", [], gr.fp32, gr.RF), gr.alloc("x", [], gr.fp32, gr.RF)
        gr.init(acc, 0)
        for i in gr.loop("i", gr.max(size, 0)):
            gr.move(x, rows[i, t])
            acc[:] = acc + x
        gr.move(Y[b, t], acc)
    return kernel


def test_indices_that_live_in_data():
    kernel = packed()
    assert gr.parse(str(kernel)) == kernel
    assert gr.Kernel.from_json(kernel.to_json()) == kernel
    x = np.random.default_rng(0).integers(-9, 9, (10, 8)).astype(np.float32)
    starts, y = np.array([0, 3, 3, 10], np.int32), np.zeros((3, 8), np.float32)
    kernel.simulate(x, starts, y)
    np.testing.assert_array_equal(y, [x[0:3].sum(0), x[3:3].sum(0), x[3:10].sum(0)])
    assert kernel.compile("sm_80").cubin


def test_data_that_breaks_its_facts_is_an_error():
    starts = np.array([0, -1], np.int32)
    with pytest.raises(gr.SimulationError, match="SIM_FACT") as e:
        packed().simulate(np.zeros((4, 8), np.float32), starts, np.zeros((1, 8), np.float32))
    assert "got: -1" in str(e.value)
    assert "test_arguments.py:" in str(e.value)


def test_only_one_integer_is_an_index():
    with gr.Kernel("k"):
        F, J = gr.input("F", [4], gr.fp32), gr.input("J", [4], gr.i32)
        gr.blocks(1)
        gr.threads(1)
        for wrong in (F[0], J):
            with pytest.raises(gr.LayoutError, match="TENSOR_TYPE"):
                gr.index(wrong, 0, 4)
