"""Argument checks, on NumPy arrays: what is refused, by which name, with which fix. The launcher runs the same code."""

from __future__ import annotations

import array
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene import _core


def f16(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)


def refused(call, *args, **named) -> gr.LaunchError:
    with pytest.raises(gr.LaunchError) as e:
        call(*args, **named)
    for d in e.value.diagnostics:
        assert d["message"].endswith("; nothing was launched"), d
    return e.value


@pytest.fixture
def gemm(make):
    return make(
        kernel="gemm", symbols=["M", make.symbol("N", max=4096), make.symbol("K", multiple_of=8)],
        A=make.tensor("fp16", "M K", "K 1", align=16), B=make.tensor("fp16", "K N", "1 K", align=16),
        C=make.tensor("fp32", "M N", "N 1", "write", align=16), alpha=make.scalar("fp32"),
        grid=["(M + 127) // 128", "(N + 63) // 64", 1], threads=256, shared="K * 4",
    )  # fmt: skip


def operands(m: int, n: int, k: int):
    return f16(m, k), f16(n, k).T, np.zeros((m, n), np.float32)


def test_symbols_grid_and_shared_memory_come_from_the_shapes(gemm, check) -> None:
    got = check(gemm, *operands(257, 65, 24), 1.0)
    assert got == {
        "symbols": {"M": 257, "N": 65, "K": 24}, "grid": (3, 2, 1), "dynamic_shared_bytes": 96, "flat": [False] * 3,
    }  # fmt: skip
    assert check(gemm, *operands(0, 5, 8), alpha=2)["grid"] == (0, 1, 1)


@settings(max_examples=200)
@given(st.data())
def test_a_call_passes_exactly_when_shape_and_strides_are_the_declared_ones(data) -> None:
    """Brute force: a tensor of any shape and strides against [M,8]:[8,1] with M shared by a second argument."""
    manifest = _core.LaunchManifest.from_json(PAIR)
    shape = data.draw(st.tuples(st.integers(0, 3), st.sampled_from([1, 7, 8, 9])))
    strides = data.draw(st.tuples(st.sampled_from([1, 8, 9, 16]), st.sampled_from([1, 2, 8])))
    rows = data.draw(st.integers(0, 3))
    base = np.zeros(200, np.int32)
    a = np.lib.stride_tricks.as_strided(base, shape, [4 * s for s in strides])
    y = np.zeros(rows, np.int32)
    good_shape = shape == (rows, 8)
    good_strides = rows == 0 or (strides[1] == 1 and (strides[0] == 8 or rows == 1))
    if good_shape and good_strides:
        assert _core.check_call(manifest, (a, y))["symbols"] == {"M": rows}
    else:
        code = refused(_core.check_call, manifest, (a, y)).code
        assert code == ("LAUNCH_STRIDE" if good_shape else "LAUNCH_SHAPE")


def _pair() -> str:
    t = {"kind": "tensor", "dtype": "i32", "access": "read", "flat": [], "align_bytes": 1, "list_count": 0}
    m = {"name": "M", "min": 0, "max": 2**63 - 1, "multiple_of": 1, "from": "shape", "is_param": True, "bits": 64}
    a, y = {"name": "A", "dims": [["M", 8], [8, 1]]}, {"name": "y", "dims": [["M", 1]]}
    return json.dumps({
        "schema": 1, "kernel": "k", "entry": "k", "args": [t | a, t | y], "symbols": [m], "facts": [],
        "grid": [1, 1, 1], "cluster": [1, 1, 1], "block_threads": 32, "dynamic_shared_bytes": 0,
    })  # fmt: skip


PAIR = _pair()


def test_wrong_shape_says_where_the_symbol_was_read(gemm, check) -> None:
    a, b, c = operands(130, 64, 64)
    e = refused(check, gemm, a, b, c[:128], 1.0)
    assert str(e) == (
        "gemm: argument 'C' has the wrong shape; nothing was launched   [LAUNCH_SHAPE]\n"
        "  want: [M,N] = [130,64]\n"
        "  got:  [128,64]\n"
        "  M = 130 (dimension 0 of 'A')\n"
        "  fix: pass a tensor of the declared shape"
    )


def test_every_problem_of_a_call_is_in_one_error(gemm, check) -> None:
    a, b, c = operands(16, 16, 20)
    c.flags.writeable = False
    e = refused(check, gemm, a.astype(np.float32), b, c.reshape(4, 4, 16), "x")
    assert [d["code"] for d in e.diagnostics] == [
        "LAUNCH_TYPE", "LAUNCH_DTYPE", "LAUNCH_SHAPE", "LAUNCH_READONLY", "LAUNCH_FACT",
    ]  # fmt: skip
    assert "K = 20 (dimension 1 of 'A') is not a multiple of 8" in str(e)


def test_wrong_dtype(gemm, check) -> None:
    a, b, c = operands(8, 8, 8)
    e = refused(check, gemm, a, b, c.astype(np.float64), 1.0)
    assert str(e).splitlines()[:3] == [
        "gemm: argument 'C' has the wrong dtype; nothing was launched   [LAUNCH_DTYPE]",
        "  want: fp32",
        "  got:  float64",
    ]
    for bad, name in ((np.int16, "int16"), (np.uint16, "uint16"), (np.complex64, "complex64"), (np.bool_, "bool")):
        assert f"got:  {name}" in str(refused(check, gemm, a.astype(bad), b, c, 1.0))


def test_the_way_out_is_in_the_callers_own_library(gemm, check) -> None:
    """NumPy's functions for arrays, torch's for what looks like a tensor of torch."""

    class Torch:
        def __init__(self, array: np.ndarray, dtype: str) -> None:
            self.shape, self._array, self.dtype = array.shape, array, dtype
            self.device = type("Device", (), {"type": "cpu", "index": None})()

        def stride(self) -> tuple[int, ...]:
            return tuple(s // self._array.itemsize for s in self._array.strides)

        def data_ptr(self) -> int:
            return self._array.ctypes.data

    a, b, c = operands(16, 16, 16)

    def fixes(*args: object) -> str:
        (fix,) = [line for line in str(refused(check, gemm, *args, 1.0)).splitlines() if line.startswith("  fix: ")]
        return fix.removeprefix("  fix: pass ")

    wide = f16(16, 32)[:, :16]
    assert fixes(wide, b, c) == "np.ascontiguousarray(A); or declare the strides as symbols"
    assert fixes(Torch(wide, "torch.float16"), b, c) == "A.contiguous(); or declare the strides as symbols"
    assert (
        fixes(a, b, c.astype(np.float64))
        == "C.astype(np.float32), and copy the result back into C; or build the kernel for this dtype"
    )
    assert fixes(a.astype(np.float32), b, c) == "A.astype(np.float16); or build the kernel for this dtype"
    double = Torch(c.astype(np.float64), "torch.float64")
    assert (
        fixes(a, b, double)
        == "C.to(torch.float32), and copy the result back into C; or build the kernel for this dtype"
    )
    assert fixes(a.astype(object), b, c) == "an array of a numeric dtype, such as A.astype(np.float32)"
    assert fixes(a.astype(">f2"), b, c) == "A.astype(A.dtype.newbyteorder('='))"


def test_masked_arrays_are_refused(gemm, check) -> None:
    """Their memory under the mask is not data."""
    a, b, c = operands(16, 16, 16)
    for args in ((np.ma.masked_array(a, mask=a > 0), b, c), (a, b, np.ma.masked_array(c))):
        e = refused(check, gemm, *args, 1.0)
        name = "A" if args[0] is not a else "C"
        assert str(e) == (
            f"gemm: argument '{name}' is a masked array, and kernels know no masks; nothing was launched   "
            "[LAUNCH_TYPE]\n"
            f"  got:  {type(args[0] if name == 'A' else args[2]).__module__}.MaskedArray\n"
            f"  fix: pass {name}.data, the numbers without the mask; of what is only read, {name}.filled(0)"
        )


def test_wrong_strides_say_how_to_get_the_right_ones(gemm, check) -> None:
    a, _, c = operands(16, 16, 16)
    e = refused(check, gemm, np.asfortranarray(f16(16, 24)), f16(16, 24).T, c, 1.0)
    assert "argument 'A' has the wrong strides" in str(e)
    assert "  want: [K,1] = [24,1]\n  got:  [1,16]" in str(e)
    assert "fix: pass np.ascontiguousarray(A); or declare the strides as symbols" in str(e)
    e = refused(check, gemm, a, f16(16, 16), c, 1.0)
    assert "argument 'B' has the wrong strides" in str(e)
    assert "fix: the kernel takes it column-major: pass np.asfortranarray(B); or" in str(e)


def test_strides_of_one_element_and_of_nothing_do_not_matter(make, check) -> None:
    m = make(A=make.tensor("fp16", "1 64", "64 1"), symbols=[])
    strided = np.lib.stride_tricks.as_strided
    assert check(m, strided(f16(64), (1, 64), (2, 2)))
    m = make(A=make.tensor("fp16", "N 64", "64 1"), symbols=["N"])
    assert check(m, strided(f16(64), (0, 64), (6, 10)))["symbols"] == {"N": 0}


def test_stride_symbols(make, check) -> None:
    """A leading dimension as a symbol; a dimension of one element cannot tell it, another argument can."""
    m = make(A=make.tensor("fp16", "M N", "ld 1"), B=make.tensor("fp16", "K N", "ld 1"),
             symbols=["M", "N", "K", make.symbol("ld", multiple_of=8, min=3)])  # fmt: skip
    wide = f16(9, 32)
    assert check(m, wide[:, :20], wide[2:4, :20])["symbols"] == {"M": 9, "N": 20, "K": 2, "ld": 32}
    one = np.lib.stride_tricks.as_strided(f16(64), (1, 20), (14, 2))
    assert check(m, one, wide[:, :20])["symbols"]["ld"] == 32
    assert check(m, one, one)["symbols"]["ld"] == 8  # any value that the facts allow
    e = refused(check, m, wide[:, :20], f16(9, 40)[:, :20])
    assert "  want: [ld,1] = [32,1]\n  got:  [40,1]\n  ld = 32 (stride of dimension 0 of 'A')" in str(e)


def test_extents_that_are_linear_in_a_symbol_are_solved(make, check) -> None:
    m = make(A=make.tensor("fp16", "2*n+1", "1"), symbols=["n"], grid=["n", 1, 1])
    assert check(m, f16(9))["grid"] == (4, 1, 1)
    e = refused(check, m, f16(8))
    assert e.code == "LAUNCH_SHAPE"
    assert "no integer n gives dimension 0" in str(e)


def test_symbol_that_nothing_decides(make, check) -> None:
    m = make(A=make.tensor("fp16", "n*n", "1"), symbols=["n"])
    e = refused(check, m, f16(9))
    assert str(e).startswith("k: no argument's shape or strides decide 'n'; nothing was launched   [LAUNCH_SYMBOL]")


def test_facts(make, check) -> None:
    m = make(
        A=make.tensor("fp16", "M N", "N 1"), symbols=["M", make.symbol("N", min=2, max=100, bits=32)],
        facts=[("N % 8 == 0", "ld.global.v4 of A", "gemm.py:41")],
    )  # fmt: skip
    assert check(m, f16(3, 16))
    e = refused(check, m, f16(3, 12))
    assert str(e) == (
        "k: the arguments break a fact the kernel was built on: ld.global.v4 of A; nothing was launched"
        "   [LAUNCH_FACT]\n"
        "  want: N%8 == 0\n"
        "  needed at: gemm.py:41\n"
        "  N = 12 (dimension 1 of 'A')\n"
        "  fix: pass sizes for which it holds, or build the kernel without the wider access"
    )
    assert "N = 1 (dimension 1 of 'A') is out of its bounds" in str(refused(check, m, f16(3, 1)))
    e = refused(check, m, f16(3, 104))
    assert "  want: 2 <= N <= 100" in str(e)


def test_size_beyond_a_32_bit_parameter(make, check) -> None:
    m = make(A=make.tensor("i8", "n", "0"), symbols=[make.symbol("n", bits=32)])
    big = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (2**31,), (0,))
    assert "does not fit the kernel's 32-bit parameter" in str(refused(check, m, big))
    assert check(m, big[:-1])["symbols"]["n"] == 2**31 - 1


def test_alignment(make, check) -> None:
    m = make(A=make.tensor("fp16", "4", "1", align=16))
    base = np.zeros(64, np.uint8)
    start = -base.ctypes.data % 16
    for offset in (0, 2, 8, 16):
        a = base[start + offset : start + offset + 8].view(np.float16)
        if offset % 16 == 0:
            check(m, a)
        else:
            e = refused(check, m, a)
            assert e.code == "LAUNCH_ALIGN"
            assert f"want: an address that is a multiple of 16 bytes\n  got:  one that is {offset} beyond" in str(e)
            assert "fix: pass a copy (A.copy()), or slice at a multiple of 8 elements" in str(e)


def test_hierarchical_layouts_take_one_dimension_a_leaf(make, check) -> None:
    leaves = ("4 2 8", "2 1 8")
    m = make(A=make.tensor("fp16", flat=leaves))
    good = np.lib.stride_tricks.as_strided(f16(64), (4, 2, 8), (4, 2, 16))
    assert check(m, good)["flat"] == [True]
    e = refused(check, m, f16(8, 8))
    assert "want: rank 3, shape [4,2,8]\n  got:  rank 2, shape [8,8]" in str(e)
    both = make(A=make.tensor("fp16", "8 8", "1 8", flat=("2 4 8", "1 2 8")))
    assert check(both, f16(8, 8).T)["flat"] == [False]
    assert check(both, f16(8, 4, 2).T)["flat"] == [True]
    assert "want: rank 2 or 3, shape [8,8]" in str(refused(check, both, f16(64)))


def test_rank_zero(make, check) -> None:
    m = make(x=make.tensor("fp32", access="readwrite"))
    assert check(m, np.array(1.0, np.float32))
    assert "want: rank 0, shape []\n  got:  rank 1, shape [1]" in str(refused(check, m, np.ones(1, np.float32)))


def test_a_scalar_is_no_tensor_of_another_rank(make, check) -> None:
    """A layout without a flat form does not have the empty one: reading element 63 of one number would follow."""
    m = make(A=make.tensor("fp32", "64", "1"), symbols=[])
    e = refused(check, m, np.zeros((), np.float32))
    assert "argument 'A' has the wrong rank" in str(e)
    assert "  want: rank 1, shape [64]\n  got:  rank 0, shape []" in str(e)
    assert e.code == "LAUNCH_SHAPE"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (((1,), {}), "k: misses 'B', 'n'"),
        (((1, 2, 3, 4), {}), "k: takes 3 arguments, got 4"),
        (((1, 2), {"A": 3, "n": 1}), "k: got argument 'A' twice"),
        (((1, 2, 3), {"x": 1}), "k: has no argument 'x'"),
    ],
)
def test_arity(make, check, call, message: str) -> None:
    m = make(A=make.tensor("fp16", "4", "1"), B=make.tensor("fp16", "4", "1"), n=make.scalar("i32"))
    e = refused(check, m, *call[0], **call[1])
    assert e.code == "LAUNCH_ARITY"
    assert str(e).splitlines()[0] == f"{message}; nothing was launched   [LAUNCH_ARITY]"
    assert "  signature: k(A, B, n)" in str(e)


@pytest.mark.parametrize("bad", [None, "text", 3, 2.5, object(), {}, b""], ids=lambda bad: type(bad).__name__)
def test_not_a_tensor(make, check, bad) -> None:
    m = make(A=make.tensor("fp16", "4", "1"))
    e = refused(check, m, bad)
    assert e.code in ("LAUNCH_TYPE", "LAUNCH_DTYPE", "LAUNCH_SHAPE")
    assert "argument 'A'" in str(e)


def test_lists(make, check) -> None:
    m = make(X=make.tensor("fp16", "n 4", "4 1", count=3), symbols=["n"], Y=make.tensor("fp16", "n", "1", "write"))
    assert check(m, [f16(2, 4)] * 3, f16(2))["symbols"] == {"n": 2}
    assert "argument 'X[1]' has the wrong shape" in str(refused(check, m, (f16(2, 4), f16(3, 4), f16(2, 4)), f16(2)))
    assert "argument 'X' has the wrong number of tensors" in str(refused(check, m, [f16(2, 4)] * 2, f16(2)))
    assert "argument 'X' is not a list of tensors" in str(refused(check, m, f16(3, 2, 4), f16(2)))


def test_overlap_of_a_written_argument(make, check) -> None:
    m = make(A=make.tensor("fp16", "8", "1"), B=make.tensor("fp16", "8", "1", "write"), C=make.tensor("fp16", "8", "1"))
    x = f16(40)
    assert check(m, x[:8], x[8:16], x[4:12][:8] * 1)
    assert check(m, x[:8], x[16:24], x[:8])  # both only read
    e = refused(check, m, x[:8], x[7:15], x[20:28])
    assert str(e) == (
        "k: arguments 'A' and 'B' share memory, and the kernel writes 'B'; nothing was launched   [LAUNCH_OVERLAP]\n"
        "  fix: pass a copy, or build the kernel with one gr.inout tensor in place of the two"
    )


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_overlap_is_exact(data) -> None:
    """Against the sets of bytes: two strided views of one buffer, of different element sizes."""
    dtypes = {"i8": np.int8, "i16": np.int16, "i32": np.int32}
    base = np.zeros(4096, np.uint8)
    args, views, byte_sets = [], [], []
    for name, access in (("A", "read"), ("B", "write")):
        dtype = data.draw(st.sampled_from(sorted(dtypes)))
        size = np.dtype(dtypes[dtype]).itemsize
        shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
        strides = [data.draw(st.integers(-20, 20)) for _ in shape]
        offset = 2048 + data.draw(st.integers(0, 30)) * size
        view = np.lib.stride_tricks.as_strided(
            base[offset : offset + size].view(dtypes[dtype]), shape, [s * size for s in strides]
        )
        dims = [[n, s] for n, s in zip(shape, strides, strict=True)]
        args.append({"name": name, "kind": "tensor", "dtype": dtype, "access": access, "dims": dims, "flat": [],
                     "align_bytes": 1, "list_count": 0})  # fmt: skip
        views.append(view)
        starts = [offset + int(np.dot(i, strides)) * size for i in np.ndindex(*shape)]
        byte_sets.append({s + b for s in starts for b in range(size)})
    text = json.loads(PAIR) | {"args": args, "symbols": []}
    manifest = _core.LaunchManifest.from_json(json.dumps(text))
    if byte_sets[0] & byte_sets[1]:
        assert refused(_core.check_call, manifest, tuple(views)).code == "LAUNCH_OVERLAP"
    else:
        _core.check_call(manifest, tuple(views))


def test_interleaved_views_do_not_overlap(make, check) -> None:
    """Column blocks of one matrix: their spans overlap, their elements do not."""
    m = make(A=make.tensor("fp16", "M 32", "64 1"), B=make.tensor("fp16", "M 32", "64 1", "write"), symbols=["M"])
    x = f16(1000, 64)
    assert check(m, x[:, :32], x[:, 32:])
    assert refused(check, m, x[:, :32], x[:, 31:63]).code == "LAUNCH_OVERLAP"


def test_read_only_array_may_be_read_not_written(make, check) -> None:
    x = f16(4)
    x.flags.writeable = False
    assert check(make(A=make.tensor("fp16", "4", "1")), x)
    e = refused(check, make(A=make.tensor("fp16", "4", "1", "readwrite")), x)
    assert str(e).startswith(
        "k: argument 'A' is written by the kernel but read-only; nothing was launched   [LAUNCH_READONLY]"
    )


# Scalars


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("i8", [-128, 127, True, np.int64(5)], [128, -129, 1.0, 2**70, "1", None]),
        ("u8", [0, 255], [-1, 256]),
        ("i32", [-(2**31), 2**31 - 1], [2**31, -(2**31) - 1]),
        ("u64", [0, 2**64 - 1], [-1, 2**64]),
        ("i64", [-(2**63), 2**63 - 1], [2**63, -(2**63) - 1]),
        ("pred", [True, False, 0, 1], [2, 0.5]),
        ("fp16", [0.1, 65504, -65519.9, float("inf"), float("nan"), np.float32(2)], [65520.0, 1e9, "1"]),
        ("bf16", [1e38, 3], [3.4e38 * 1.1]),
        ("fp32", [3.4028234e38, 2**100, 10**30], [1e39, 10**40, 10**400, 1j]),
        ("fp64", [1e308, 2**64], [10**400]),
    ],
)
def test_scalar_ranges(make, check, dtype: str, good: list, bad: list) -> None:
    m = make(x=make.scalar(dtype))
    for v in good:
        check(m, v)
    for v in bad:
        assert refused(check, m, v).code in ("LAUNCH_SCALAR", "LAUNCH_TYPE"), v


def test_scalars_in_sizes(make, check) -> None:
    m = make(A=make.tensor("fp16", "n*2", "1"), n=make.scalar("i32"), grid=["n", 1, 1], shared="n*16")
    got = check(m, f16(8), 4)
    assert (got["grid"], got["dynamic_shared_bytes"]) == ((4, 1, 1), 64)
    assert refused(check, m, f16(8), 5).code == "LAUNCH_SHAPE"


# Limits of a launch


def test_limits(make, check) -> None:
    m = make(A=make.tensor("i8", "n", "0"), symbols=["n"], grid=[1, "n", 1])
    view = np.lib.stride_tricks.as_strided
    assert check(m, view(np.zeros(1, np.int8), (65535,), (0,)))
    e = refused(check, m, view(np.zeros(1, np.int8), (65536,), (0,)))
    assert e.code == "LAUNCH_GRID"
    assert "k: the grid is too large in y" in str(e)
    assert "  want: at most 65535 blocks\n  got:  n = 65536" in str(e)
    assert "too many threads in a block" in str(refused(check, make(threads=1025, x=make.scalar("i32")), 1))
    assert "too much shared memory" in str(refused(check, make(shared=300_000, x=make.scalar("i32")), 1))


# Where tensors come from


def test_buffers_and_raw_bits(make, check) -> None:
    assert check(make(A=make.tensor("fp32", "3", "1")), array.array("f", [1, 2, 3]))
    assert check(make(A=make.tensor("u8", "3", "1")), bytearray(3))
    assert refused(check, make(A=make.tensor("u8", "3", "1", "write")), b"abc").code == "LAUNCH_READONLY"
    bf16 = make(A=make.tensor("bf16", "3", "1"))
    assert check(bf16, np.zeros(3, np.uint16))  # NumPy has no bfloat16: its bits
    assert check(make(A=make.tensor("fp8e4m3", "3", "1")), np.zeros(3, np.uint8))
    assert refused(check, bf16, np.zeros(3, np.int16)).code == "LAUNCH_DTYPE"
    assert refused(check, make(A=make.tensor("fp16", "3", "1")), np.zeros(3, np.uint16)).code == "LAUNCH_DTYPE"
    assert refused(check, make(A=make.tensor("bf16", "3", "1")), np.zeros(3, np.float16)).code == "LAUNCH_DTYPE"


def test_ml_dtypes(make, check) -> None:
    ml = pytest.importorskip("ml_dtypes")
    assert check(make(A=make.tensor("bf16", "3", "1")), np.zeros(3, ml.bfloat16))
    assert check(make(A=make.tensor("fp8e4m3", "3", "1")), np.zeros(3, ml.float8_e4m3fn))
    assert check(make(A=make.tensor("fp8e5m2", "3", "1")), np.zeros(3, ml.float8_e5m2))
    assert (
        refused(check, make(A=make.tensor("fp8e5m2", "3", "1")), np.zeros(3, ml.float8_e4m3fn)).code == "LAUNCH_DTYPE"
    )


def test_bytes_in_the_wrong_order_and_odd_strides(make, check) -> None:
    m = make(A=make.tensor("fp16", "3", "1"))
    assert "bytes in big-endian order" in str(refused(check, m, np.zeros(3, ">f2")))
    field = np.zeros(3, [("a", "u1"), ("b", "<f2")])["b"]
    assert "strides that are not whole elements" in str(refused(check, m, field))
    assert refused(check, m, np.zeros(3, object)).code == "LAUNCH_DTYPE"


class Exports:
    """Exports another array by DLPack alone."""

    def __init__(self, inner: np.ndarray, versions: bool = True) -> None:
        self.inner, self.versions = inner, versions

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inner.__dlpack_device__()

    def __dlpack__(self, **kw):
        assert "stream" not in kw
        if not self.versions and kw:
            raise TypeError("unexpected keyword")
        return self.inner.__dlpack__(**kw)


@pytest.mark.parametrize("versions", [True, False])
def test_dlpack_capsules(make, check, versions: bool) -> None:
    m = make(A=make.tensor("fp32", "3 4", "8 1", "readwrite"))
    assert check(m, Exports(np.zeros((3, 8), np.float32)[:, :4], versions))
    assert refused(check, m, Exports(np.zeros((3, 4), np.float32), versions)).code == "LAUNCH_STRIDE"


class Raises:
    @property
    def __array_interface__(self):
        raise RuntimeError("the array is gone\nand more")


class Lies:
    __array_interface__ = {"shape": (3,), "typestr": "<f2", "data": "no", "version": 3}  # noqa: RUF012


def test_objects_that_fail_to_describe_themselves(make, check) -> None:
    m = make(A=make.tensor("fp16", "3", "1"))
    e = refused(check, m, Raises())
    assert e.code == "LAUNCH_TYPE"
    assert "its library says: the array is gone\n" in str(e)
    assert refused(check, m, Lies()).code == "LAUNCH_TYPE"


def test_null_with_elements(make, check) -> None:
    class Null:
        __array_interface__ = {"shape": (3,), "typestr": "<f2", "data": (0, False), "version": 3}  # noqa: RUF012

    e = refused(check, make(A=make.tensor("fp16", "3", "1")), Null())
    assert (
        str(e).splitlines()[0]
        == "k: argument 'A' has elements but a null address; nothing was launched   [LAUNCH_NULL]"
    )


# Manifests


def test_manifest_round_trip(make, gemm) -> None:
    text = gemm.to_json()
    assert _core.LaunchManifest.from_json(text).to_json() == text
    assert gemm.arguments == ["A", "B", "C", "alpha"]
    assert json.loads(text)["grid"][0] == "(M + 127)//128"


def test_damaged_manifests_are_refused(make) -> None:
    """Every field removed or of another type: an error with a code, or a manifest; never a crash."""
    text = make.text(
        A=make.tensor("fp16", "M 4", "4 1", flat=("M 2 2", "4 2 1")), n=make.scalar("i32"), symbols=["M"],
        facts=[("M > 2", "why", "")], grid=["M", 1, 1],
    )  # fmt: skip
    good = json.loads(text)

    def places(node, path=()):
        yield path
        for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            yield from places(value, (*path, key))

    junk = [None, -1, 2**70, 1.5, "M M", "Q", "", [], {}, [[1]], True, "\ud800"]
    for path in places(good):
        for value in [*junk, ...]:
            damaged = json.loads(text)
            if not path:
                damaged = value if value is not ... else {}
            else:
                node = damaged
                for key in path[:-1]:
                    node = node[key]
                if value is ...:
                    del node[path[-1]]
                else:
                    node[path[-1]] = value
            try:
                _core.LaunchManifest.from_json(json.dumps(damaged))
            except gr.GrapheneError as e:
                assert e.code is not None and re.match("LAUNCH_MANIFEST|SYM_", e.code), (path, value)  # noqa: PT017,PT018
    for n in range(0, len(text), 7):
        with pytest.raises(gr.LaunchError, match="LAUNCH_MANIFEST"):
            _core.LaunchManifest.from_json(text[:n])
