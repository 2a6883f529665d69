"""Places of shared allocations that are given (`at=`), and windows that begin before the tensor."""

import re

import numpy as np
import pytest

import graphene as gr


def arena(a_at: int | None, b_at: int | None, over: bool, c_at: int | None = None) -> gr.Kernel:
    with gr.Kernel("arena") as kernel:
        y = gr.output("y", [64], gr.fp32)
        gr.blocks(1)
        (t,) = gr.threads(64).indices()
        r = gr.alloc("r", [], gr.fp32, gr.RF)
        a = gr.alloc("a", [64], gr.fp32, gr.SH, at=a_at)
        b = gr.alloc("b", [64], gr.fp32, gr.SH, at=b_at, over=[a] if over else None)
        c = gr.alloc("c", [64], gr.fp32, gr.SH, at=c_at)
        gr.init(a[t], 1)
        gr.init(c[t], 3)
        gr.barrier()
        gr.move(r, a[63 - t])
        gr.barrier()
        gr.init(b[t], 2)
        q = gr.alloc("q", [], gr.fp32, gr.RF)
        gr.move(q, c[t])
        r[:] = r + q
        gr.move(q, b[t])
        r[:] = r + q
        gr.move(y[t], r)
    return kernel


def test_offsets_are_those_that_are_given() -> None:
    kernel = arena(512, 0, over=False, c_at=256)
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())
    assert "at=512" in str(kernel)
    assert kernel != arena(512, 256, over=False, c_at=0)
    assert kernel.report().shared_bytes == 768
    y = np.zeros(64, np.float32)
    kernel(y)
    assert (y == 6).all()
    offsets = dict(re.findall(r"(\w+) = \(float\*\)\(shared \+ (\d+)\)", kernel.cuda_source("sm_80")))
    assert not offsets or offsets == {"a": "512", "b": "0", "c": "256"}


def test_what_has_no_place_lies_behind_what_has_one() -> None:
    assert arena(128, None, over=False).report().shared_bytes == 128 + 3 * 256
    assert arena(128, None, over=True).report().shared_bytes == 128 + 2 * 256  # b lies over a


def test_bytes_are_shared_only_where_it_is_said() -> None:
    shared = arena(0, 128, over=True, c_at=384)
    assert shared.report().shared_bytes == 640
    y = np.zeros(64, np.float32)
    shared(y)
    assert (y == 6).all()
    with pytest.raises(gr.VerifyError) as e:
        arena(0, 128, over=False, c_at=384).report()
    text = str(e.value)
    assert e.value.code == "LOWER_OVER"
    assert "allocations that share bytes without saying so" in text
    assert "a: bytes 0 to 255" in text
    assert "b: bytes 128 to 383" in text
    assert "fix: name a in over= of b" in text
    with pytest.raises(gr.VerifyError) as e:
        arena(8, None, over=False).report()
    assert "want: a multiple of 16 bytes" in str(e.value)
    assert e.value.code == "LOWER_OVER"


@pytest.mark.parametrize(("memory", "at"), [(gr.RF, 0), (gr.SH, -16)])
def test_a_place_is_one_of_shared_memory(memory: gr.Memory, at: int) -> None:
    with gr.Kernel("k"), pytest.raises(gr.LayoutError) as e:
        gr.alloc("a", [4], gr.fp32, memory, at=at)
    assert e.value.code == "TENSOR_TYPE"
    assert f"got: {at}" in str(e.value)


def gather(rows: int, columns: int, vector: bool, fill: float = 0.0) -> gr.Kernel:
    """A 3x3 neighbourhood of every pixel of an image (rows, columns, 8): windows that begin at -1."""
    P, Q = 4, 4
    with gr.Kernel("gather") as kernel:
        x = gr.input("x", [rows, columns, 8], gr.fp16, align_bytes=16)
        y = gr.output("y", [9, rows, columns, 8], gr.fp16, align_bytes=16)
        bq, bp = gr.blocks(gr.ceil_div(columns, Q), gr.ceil_div(rows, P)).indices()
        threads = gr.threads(32)
        s = gr.alloc("s", [P, Q, 8], gr.fp16, gr.SH)
        copy = gr.atom("cp.async.cg.16")
        with gr.loop("r", 3) as r, gr.loop("c", 3) as c:
            view = x.window(bp * P + r - 1, P).permute(1, 0, 2).window(bq * Q + c - 1, Q).permute(1, 0, 2)
            if vector:
                gr.move(s, view, on=threads, atom=copy)
                gr.commit(copy)
                gr.wait(copy, pending=0)
            else:
                gr.move(s, view, on=threads, atom=("ld.global.b16", "st.shared.b16"), fill=fill)
            gr.barrier()
            out = y.tile([1, P, Q, 8])[r * 3 + c, bp, bq, 0][0, :, :, :]
            gr.move(out, s, on=threads, atom=("ld.shared.v4.b32", "st.global.v4.b32"))
            gr.barrier()
    return kernel


@pytest.mark.parametrize(("vector", "fill"), [(True, 0.0), (False, 7.0)])
def test_windows_may_begin_before_the_tensor(vector: bool, fill: float) -> None:
    rows, columns = 6, 5
    kernel = gather(rows, columns, vector, fill)
    assert gr.parse(str(kernel)) == kernel
    x = np.random.default_rng(0).standard_normal((rows, columns, 8)).astype(np.float16)
    y = np.zeros((9, rows, columns, 8), np.float16)
    kernel(x, y)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)), constant_values=fill)
    want = np.stack([padded[r : r + rows, c : c + columns] for r in range(3) for c in range(3)])
    assert np.array_equal(y, want)
    condition = next(
        line for line in kernel.cuda_source("sm_80").splitlines() if " + c < 5" in line or " + c < 6" in line
    )
    assert "0 < " in condition


def test_a_vector_that_the_start_cuts_is_refused() -> None:
    with gr.Kernel("k") as kernel:
        x, y = gr.input("x", [64], gr.fp16, align_bytes=16), gr.output("y", [64], gr.fp16, align_bytes=16)
        (b,), (t,) = gr.blocks(1).indices(), gr.threads(8).indices()
        r = gr.alloc("r", [8], gr.fp16, gr.RF)
        gr.move(r, x.window(b * 8 - 4, 64).tile([8])[t], atom="ld.global.v4.b32")
        gr.move(y.tile([8])[t], r, atom="st.global.v4.b32")
    with pytest.raises(gr.GrapheneError) as e:
        kernel.cuda_source("sm_80")
    assert e.value.code in ("LOWER_VECTOR_EDGE", "ATOM_FACT")
