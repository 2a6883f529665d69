"""Elements of 4 bits: two in a byte, moved by whole bytes, converted by words, in memory and in registers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import graphene as gr
from graphene import _core

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
NUMBERS = {
    "u4": np.arange(16.0),
    "i4": np.concatenate([np.arange(8.0), np.arange(-8.0, 0)]),
    "fp4e2m1": np.concatenate([E2M1, -E2M1]),
}
THREADS = 32


def unpacked(x: Any) -> Any:
    """The codes of an array's elements, the low half of a byte first."""
    return np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1)


def expand(of: str, to: str, values: int) -> gr.Kernel:
    """y = x for a matrix of narrow numbers, `values` a thread."""
    narrow, wide = getattr(gr, of), getattr(gr, to)
    with gr.Kernel("expand", means=lambda x: x) as kernel:
        rows, K = gr.sym("N"), gr.sym("K", multiple_of=values)
        x = gr.input("x", [rows, K], narrow, align_bytes=values // 2)
        y = gr.output("y", [rows, K], wide, align_bytes=min(16, values * wide.bits // 8))
        row, column = gr.blocks(rows, gr.ceil_div(K, values * THREADS)).indices()
        (t,) = gr.threads(THREADS).indices()
        with gr.if_(column * THREADS + t < K // values):
            r = gr.load(x[row, :].tile([values])[column * THREADS + t])
            z = gr.alloc("z", [values], wide, gr.RF)
            z[:] = r
            own, step = y[row, :].tile([values])[column * THREADS + t], min(values, 128 // wide.bits)
            for i in range(values // step):
                gr.move(own.tile([step])[i], z.tile([step])[i])
    return kernel


@pytest.mark.parametrize("to", ["fp16", "fp32"])
@pytest.mark.parametrize("values", [2, 4, 8, 32])
@pytest.mark.parametrize("of", list(NUMBERS))
def test_narrow_numbers_are_read_exactly(of: str, to: str, values: int) -> None:
    kernel = expand(of, to, values)
    assert gr.parse(str(kernel)) == kernel == gr.Kernel.from_json(kernel.to_json())
    x = np.random.default_rng(0).integers(0, 256, (3, 48), np.uint8)
    y = np.zeros((3, 96), np.float16 if to == "fp16" else np.float32)
    kernel(x, y)
    np.testing.assert_array_equal(y, NUMBERS[of][unpacked(x)])
    source = kernel.cuda_source("sm_90a")
    assert ("prmt" in source) == (values >= 8 and to == "fp16")


@pytest.mark.parametrize("of", list(NUMBERS))
def test_a_check_knows_the_numbers(of: str) -> None:
    assert expand(of, "fp16", 8).check().ok


def quantized(to: str, swapped: bool = False) -> gr.Kernel:
    """y = x of another type, eight numbers a thread, through shared memory."""
    narrow, of = getattr(gr, to), gr.fp32 if to.startswith("fp") else gr.i32

    def meaning(x: Any) -> Any:
        return x if to.startswith("fp") else ((x.astype(np.int64) + 8 * (to == "i4")) & 15) - 8 * (to == "i4")

    with gr.Kernel("quantized", means=meaning) as kernel:
        x = gr.input("x", [256], of, align_bytes=16)
        y = gr.output("y", [256], narrow, align_bytes=4)
        gr.blocks(1)
        (t,) = gr.threads(THREADS).indices()
        wide, z = gr.alloc("wide", [8], of, gr.RF), gr.alloc("z", [8], narrow, gr.RF)
        for i in range(2):
            gr.move(wide.tile([4])[i], x.tile([4])[2 * t + i])
        for i in range(8):
            z[i] = gr.cast(wide[i ^ 1 if swapped else i], narrow)
        shared = gr.alloc("shared", [256], narrow, gr.SH)
        gr.move(shared.tile([8])[t], z)
        gr.barrier()
        r = gr.load(shared.tile([8])[31 - t])
        gr.move(y.tile([8])[31 - t], r)
    return kernel


@pytest.mark.parametrize("to", list(NUMBERS))
def test_numbers_are_narrowed_and_stored(to: str) -> None:
    kernel = quantized(to)
    y = np.zeros(128, np.uint8)
    if to == "fp4e2m1":
        x = np.linspace(-7, 7, 256).astype(np.float32)
        x[:6] = [0.25, 0.75, 1.25, 1.75, 2.5, 5.0]  # halfway: to the even code
        want = NUMBERS[to][np.abs(np.clip(x, -6, 6)[:, None] - NUMBERS[to]).argmin(1)]
        want[:6] = [0, 1, 1, 2, 2, 4]
    else:
        x = np.arange(-128, 128, dtype=np.int32)
        want = NUMBERS[to][x & 15]
    kernel(x, y)
    np.testing.assert_array_equal(NUMBERS[to][unpacked(y)], want)
    assert kernel.check().ok
    assert not quantized(to, swapped=True).check().ok


def test_words_and_their_eight_elements_are_the_same_bits() -> None:
    with gr.Kernel("words") as kernel:
        x, y = gr.input("x", [32], gr.u32), gr.output("y", [256], gr.i4, align_bytes=4)
        z = gr.output("z", [32], gr.u32)
        gr.blocks(1)
        (t,) = gr.threads(THREADS).indices()
        eight = gr.bitcast(gr.load(x[t]), gr.i4)
        gr.move(y.tile([8])[t], eight)
        gr.move(z[t], gr.bitcast(eight, gr.u32))
    x = np.random.default_rng(0).integers(0, 2**32, 32, np.uint32)
    y, z = np.zeros(128, np.uint8), np.zeros(32, np.uint32)
    kernel(x, y, z)
    np.testing.assert_array_equal(y, x.view(np.uint8))
    np.testing.assert_array_equal(z, x)


def test_asynchronous_copies_take_whole_words() -> None:
    with gr.Kernel("asynchronous", means=lambda x: x) as kernel:
        K = gr.sym("K", multiple_of=8)
        x, y = gr.input("x", [8, K], gr.u4, align_bytes=4), gr.output("y", [8, K], gr.fp16, align_bytes=16)
        gr.blocks(1)
        threads = gr.threads(THREADS)
        (t,) = threads.indices()
        tile = gr.alloc("tile", [8, 64], gr.u4, gr.SH)
        with gr.loop("c", gr.ceil_div(K, 64)) as c:
            gr.move(tile, x.tile([8, 64])[0, c], on=threads, atom="cp.async.ca.4")
            gr.commit("cp.async.ca.4")
            gr.wait("cp.async.ca.4", 0)
            gr.barrier()
            for half in range(2):
                row, part = t // 4, t % 4 * 2 + half
                z = gr.alloc(f"z{half}", [8], gr.fp16, gr.RF)
                z[:] = gr.load(tile.tile([1, 8])[row, part][0, :])
                with gr.if_(c * 64 + part * 8 < K):
                    gr.move(y[row, :].tile([8])[c * 8 + part], z)
            gr.barrier()
    x, y = np.random.default_rng(0).integers(0, 256, (8, 44), np.uint8), np.zeros((8, 88), np.float16)
    kernel(x, y)
    np.testing.assert_array_equal(y, unpacked(x))


def kernel_of(size: Any, body: Any) -> gr.Kernel:
    with gr.Kernel("wrong") as kernel:
        x, y = gr.input("x", size, gr.u4), gr.output("y", [64], gr.i32)
        gr.blocks(1)
        (t,) = gr.threads(THREADS).indices()
        body(x, y, t)
    return kernel


@pytest.mark.parametrize("size", [[63], [gr.sym("n")], gr.Layout((8, 8), (1, 9))], ids=str)
def test_lines_of_half_bytes_are_refused(size: Any) -> None:
    with pytest.raises(gr.LayoutError, match="elements of 4 bits that do not fill bytes") as e:
        kernel_of(size, lambda x, y, t: None)
    assert e.value.code == "TENSOR_TYPE"


def test_half_a_byte_is_not_moved() -> None:
    with pytest.raises(gr.SelectError, match=r"threads access whole bytes: move two by two .* t\.tile\(\[2\]\)\[i\]"):
        kernel_of([64], lambda x, y, t: gr.move(y[t], gr.cast(gr.load(x[t]), gr.i32))).lowered("sm_90a")
    with pytest.raises(gr.GrapheneError, match=r"offset 1 of x does not divide by 2 elements \(1 byte\)") as e:
        kernel_of([64], lambda x, y, t: gr.move(y[t], gr.cast(gr.load(x[1:3])[0], gr.i32))).lowered("sm_90a")
    assert e.value.code == "ATOM_FACT"


def test_a_number_of_four_bits_is_no_argument() -> None:
    with gr.Kernel("wrong"), pytest.raises(gr.LayoutError, match="a scalar argument takes at least a byte"):
        gr.param("p", gr.i4)


def test_two_threads_that_write_one_byte_race() -> None:
    def body(x: Any, y: Any, t: Any) -> None:
        shared = gr.alloc("shared", [64], gr.u4, gr.SH)
        gr.move(shared.tile([2])[t // 2], gr.load(x.tile([2])[t]))
        gr.barrier()
        r = gr.load(shared.tile([2])[t])
        gr.move(y[t], gr.cast(r[0], gr.i32))

    with pytest.raises(gr.SimulationError):
        kernel_of([64], body)(np.arange(32, dtype=np.uint8), np.zeros(64, np.int32))


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (np.zeros((2, 17), np.uint8), "K = 34"),
        (np.zeros((2, 32), np.int8), "wrong dtype"),
        (np.zeros(64, np.uint8), "rank"),
    ],
)
def test_arrays_of_bytes_are_what_a_kernel_takes(x: Any, told: str) -> None:
    with pytest.raises(gr.LaunchError, match=told):
        expand("u4", "fp16", 8)(x, np.zeros((2, 64), np.float16))


def read_one_row(shape: list[int], of: gr.DType = gr.i4) -> gr.Kernel:
    """y = the eight elements of x, a tensor of which at most one mode has several."""
    with gr.Kernel("read_one_row") as kernel:
        x, y = gr.input("x", shape, of, align_bytes=4), gr.output("y", [8], gr.fp32, align_bytes=16)
        gr.blocks(1)
        gr.threads(1)
        wide = gr.alloc("wide", [8], gr.fp32, gr.RF)
        wide[:] = gr.load(x[tuple(slice(None) if n == 8 else 0 for n in shape)])
        for i in range(2):
            gr.move(y.tile([4])[i], wide.tile([4])[i])
    return kernel


@pytest.mark.parametrize("shape", [[8], [8, 1], [1, 8], [1, 8, 1]], ids=str)
def test_a_mode_of_one_element_is_passed_as_one_byte_high(shape: list[int]) -> None:
    x, y = np.array([0x21, 0x43, 0x65, 0x87], np.uint8), np.zeros(8, np.float32)
    read_one_row(shape)(x.reshape([4 if n == 8 else n for n in shape]), y)
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5, 6, 7, -8])


def test_a_call_with_unpacked_elements_is_told_to_pack_them() -> None:
    kernel, y = read_one_row([1, 8]), np.zeros(8, np.float32)
    with pytest.raises(gr.LaunchError) as e:
        kernel(np.zeros((1, 8), np.uint8), y)
    assert str(e.value) == (
        "read_one_row: argument 'x' has the wrong shape; nothing was launched   [LAUNCH_SHAPE]\n"
        "  want: [1,4]\n"
        "  got:  [1,8]\n"
        "  a byte holds two elements of i4: bytes are counted along the mode of stride 1\n"
        "  fix: pack two elements of i4 into each byte, the first one in its low bits, and pass the array of bytes"
    )
    with pytest.raises(gr.LaunchError) as e:
        kernel(np.zeros(8, np.uint8), y)
    assert "want: rank 2, shape [1,4]\n" in str(e.value)
    assert "a byte holds two elements of i4" in str(e.value)
    with pytest.raises(gr.LaunchError) as e:
        kernel(np.zeros((1, 8), np.float16), y)
    assert "want: u8, two elements of i4 a byte\n" in str(e.value)
    assert "astype" not in str(e.value)


def test_a_size_that_was_read_from_bytes_says_so() -> None:
    x, y = np.zeros((3, 96), np.uint8), np.zeros((3, 96), np.float16)
    with pytest.raises(gr.LaunchError, match=r"K = 192 \(dimension 1 of 'x', two elements of u4 a byte\)"):
        expand("u4", "fp16", 8)(x, y)


def test_a_manifest_says_which_elements_share_bytes() -> None:
    kernel = read_one_row([1, 8])
    manifest = json.loads(kernel.lowered("sm_90a").manifest_json())
    assert manifest["args"][0]["packed"] == "i4"
    assert "packed" not in manifest["args"][1]
    for wrong in ("fp16", "x", 4):
        manifest["args"][0]["packed"] = wrong
        with pytest.raises(gr.GrapheneError) as e:
            _core.LaunchManifest.from_json(json.dumps(manifest))
        assert e.value.code == "LAUNCH_MANIFEST"
