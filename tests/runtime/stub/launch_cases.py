"""What a call passes to the driver, seen through a stub of the driver.

test_launcher.py runs this file in a process whose $GRAPHENE_CUDA_DRIVER names the stub; a process loads one driver.
"""

from __future__ import annotations

import json
import math
import os
import struct
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import stub_cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import CODES, CUDA, Kernel, one, operands, tensor

import graphene as gr
from graphene import _core


def test_parameters_grid_and_stream(gemm: Kernel) -> None:
    """Pointers in declaration order, then scalars, then symbols of their width; K is not a parameter."""
    stub_cuda.param_sizes(8, 8, 8, 4, 1, 8, 4)
    stub_cuda.set_stream(0, 0x55)
    for round_ in range(3):  # the first call checks, the others are remembered
        assert gemm(*operands(300, 65, 32)) is None
        got = one(stub_cuda.take_launches())
        assert b"".join(got["params"]) == struct.pack("<QQQfbqi", 0x10000, 0x20002, 0x40000, 1.5, -2, 300, 65), round_
        assert (got["grid"], got["block"], got["shared"]) == ((3, 2, 3), (256, 1, 1), 1024)
        assert (got["stream"], got["context"], got["cluster"]) == (0x55, 0xC0, (1, 1, 1))
    assert (gemm.calls, gemm.misses) == (3, 1)
    assert (gemm.asked, gemm.prepared) == (["sm_90a"], [(0, "sm_90a")])


def test_addresses_and_scalars_are_of_this_call(gemm: Kernel) -> None:
    stub_cuda.param_sizes(8, 8, 8, 4, 1, 8, 4)
    gemm(*operands())
    stub_cuda.take_launches()
    a, _, b, c, _ = operands()
    gemm(tensor("fp16", 256, 32, at=0x90000), 2.5, b, c, 7)
    got = one(stub_cuda.take_launches())
    assert b"".join(got["params"]) == struct.pack("<QQQfbqi", 0x90000, 0x20002, 0x40000, 2.5, 7, 256, 64)
    gemm(a, 3, b, c, n=127)
    assert one(stub_cuda.take_launches())["params"][3:5] == [struct.pack("<f", 3.0), b"\x7f"]
    assert gemm.misses == 1


def test_every_change_of_form_is_checked_again(gemm: Kernel) -> None:
    """Sizes, strides, dtype, device, alignment: nothing of a remembered call may be used for another form."""
    stub_cuda.param_sizes(8, 8, 8, 4, 1, 8, 4)
    base = operands()
    gemm(*base)
    stub_cuda.take_launches()
    changes = {
        "shape": (0, tensor("fp16", 255, 32)),
        "rank": (0, tensor("fp16", 256, 32, 1)),
        "dtype": (0, tensor("bf16", 256, 32)),
        "width": (0, tensor("fp32", 256, 32)),
        "strides": (0, tensor("fp16", 256, 32, strides=(64, 1))),
        "alignment": (0, tensor("fp16", 256, 32, at=0x10008)),
        "null": (0, tensor("fp16", 256, 32, at=0)),
        "device": (2, tensor("fp16", 32, 64, at=0x20000, device=(CUDA, 1))),
        "host": (2, tensor("fp16", 32, 64, at=0x20000, device=(1, 0))),
        "overlap": (0, tensor("fp16", 256, 32, at=0x40000)),
        "overlap at the end": (3, tensor("fp32", 256, 64, at=0x10000 - 256 * 64 * 4 + 16)),
        "storage": (0, tensor("fp16", 256, 32, device=(99, 0))),
        "scalar": (4, 128),
        "scalar type": (4, 1.0),
        "no number": (1, "x"),
        "no tensor": (0, None),
    }
    codes = {}
    for what, (at, value) in changes.items():
        args = [*base[:at], value, *base[at + 1 :]]
        with pytest.raises(gr.LaunchError) as e:
            gemm(*args)
        codes[what] = e.value.code
        assert "nothing was launched" in str(e.value)
        assert stub_cuda.take_launches() == [], what
    assert codes == {
        "shape": "LAUNCH_SHAPE", "rank": "LAUNCH_SHAPE", "dtype": "LAUNCH_DTYPE", "width": "LAUNCH_DTYPE",
        "strides": "LAUNCH_STRIDE", "alignment": "LAUNCH_ALIGN", "null": "LAUNCH_STORAGE", "device": "LAUNCH_DEVICE",
        "host": "LAUNCH_DEVICE", "overlap": "LAUNCH_OVERLAP", "overlap at the end": "LAUNCH_OVERLAP",
        "storage": "LAUNCH_STORAGE", "scalar": "LAUNCH_SCALAR", "scalar type": "LAUNCH_SCALAR",
        "no number": "LAUNCH_TYPE", "no tensor": "LAUNCH_TYPE",
    }  # fmt: skip
    gemm(*base)
    assert one(stub_cuda.take_launches())["grid"] == (2, 1, 3)


def test_many_forms_are_remembered(gemm: Kernel) -> None:
    sizes = [128 * i for i in range(1, 13)]
    for _ in range(3):
        for m in sizes:
            args = operands(m)
            args[2] = tensor("fp16", 32, 64, at=0x8000000)
            args[3] = tensor("fp32", m, 64, at=0x9000000)
            gemm(*args)
            assert one(stub_cuda.take_launches())["grid"][0] == m // 128
    assert gemm.misses == len(sizes)


def test_names(gemm: Kernel) -> None:
    a, alpha, b, c, n = operands()
    gemm(a, alpha, b, c, n)
    want = one(stub_cuda.take_launches())
    gemm(C=c, n=n, B=b, A=a, alpha=alpha)
    gemm(a, alpha, n=n, C=c, B=b)
    gemm(*[a], **{"alp" + "ha": alpha, "B": b, "C": c, "n": n})
    assert stub_cuda.take_launches() == [want] * 3
    assert gemm.misses == 1
    for args, named, text in (
        ((a, alpha, b, c), {}, "gemm: misses 'n'"),
        ((a, alpha, b, c, n, n), {}, "gemm: takes 5 arguments, got 6"),
        ((a, alpha, b, c, n), {"A": a}, "gemm: got argument 'A' twice"),
        ((a, alpha, b, c), {"m": n}, "gemm: has no argument 'm'"),
    ):
        with pytest.raises(gr.LaunchError, match=text) as e:
            gemm(*args, **named)
        assert e.value.code == "LAUNCH_ARITY"
    assert stub_cuda.take_launches() == []


def test_streams(gemm: Kernel) -> None:
    class Standard:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 0x77)

    for stream, want in (
        (0x66, 0x66), (SimpleNamespace(cuda_stream=0x67), 0x67), (SimpleNamespace(ptr=0x68), 0x68), (Standard(), 0x77),
        (None, 0), (0, 0), (2**63 + 5, 2**63 + 5),
    ):  # fmt: skip
        for _ in range(2):
            gemm(*operands(), stream=stream)
            assert one(stub_cuda.take_launches())["stream"] == want
    for bad in ("s", 1.5, True, object(), SimpleNamespace(ptr="x"), -(2**70)):
        with pytest.raises(gr.LaunchError, match="stream= is not a CUDA stream") as e:
            gemm(*operands(), stream=bad)
        assert e.value.code == "LAUNCH_STREAM"
    assert stub_cuda.take_launches() == []


def test_context_of_the_tensors_is_used_and_the_old_one_comes_back(gemm: Kernel) -> None:
    on1 = [
        stub_cuda.Tensor(0x1000 * (i + 1) * 16, x[0], x[1], CODES[x[2]], (CUDA, 1)) if isinstance(x, tuple) else x
        for i, x in enumerate(
            [((256, 32), (32, 1), "fp16"), 1.5, ((32, 64), (64, 1), "fp16"), ((256, 64), (64, 1), "fp32"), -2]
        )
    ]
    stub_cuda.set_stream(1, 0x99)
    for current in (0xC0, 0xC1, 0xABC):
        stub_cuda.set_current(current)
        gemm(*on1)
        got = one(stub_cuda.take_launches())
        assert (got["context"], got["stream"]) == (0xC1, 0x99)
        assert stub_cuda.current() == current
    stub_cuda.set_current(0)
    gemm(*operands())
    assert one(stub_cuda.take_launches())["context"] == 0xC0
    assert gemm.prepared == [(1, "sm_90a"), (0, "sm_90a")]
    assert gemm.asked == ["sm_90a"]


def test_module_is_loaded_eagerly_and_once(make) -> None:
    k = Kernel(make(kernel="once", A=make.tensor("fp32", "n", "1", "write"), symbols=["n"]))
    for n in (4, 5, 6):
        k(tensor("fp32", n))
    log = stub_cuda.take_log()
    assert [x for x in log if not x.startswith("cuDevice")] == [
        "cuModuleLoadData in 192",
        "cuModuleGetFunction once",
        "cuFuncLoad",
    ]
    twin = Kernel(k.manifest)
    twin.tag = k.tag
    twin(tensor("fp32", 4))
    assert stub_cuda.take_log() == []
    assert len({x["function"] for x in stub_cuda.take_launches()}) == 1


def test_large_shared_memory_is_asked_for(make) -> None:
    m = make(kernel="big", A=make.tensor("fp32", "n", "1", "write"), symbols=["n"], shared="n * 4")
    k = Kernel(m, body="__shared__ float s[256]; s[threadIdx.x] = p[1]; p[2] = s[threadIdx.x ^ 1];")
    for n, attributes in ((1024, []), (20000, ["8=80000", "9=100"]), (15000, []), (30000, ["8=120000"])):
        k(tensor("fp32", n))
        assert [x.split()[1] for x in stub_cuda.take_log() if x.startswith("cuFuncSet")] == attributes
        assert one(stub_cuda.take_launches())["shared"] == 4 * n
    with pytest.raises(gr.LaunchError, match="too much shared memory") as e:
        k(tensor("fp32", 232448 // 4))
    assert "got:  232448 dynamic and 1024 static" in str(e.value)
    with pytest.raises(gr.LaunchError, match="too much shared memory"):
        k(tensor("fp32", 232448 // 4 + 1))
    assert stub_cuda.take_launches() == []


def test_clusters(make) -> None:
    k = Kernel(
        make(
            kernel="clustered",
            A=make.tensor("fp32", "n", "1", "write"),
            symbols=["n"],
            cluster=(2, 1, 1),
            grid=[8, 1, 1],
        )
    )
    k(tensor("fp32", 4))
    got = one(stub_cuda.take_launches())
    assert (got["cluster"], got["grid"], got["block"]) == ((2, 1, 1), (8, 1, 1), (32, 1, 1))
    assert not got["early"]


def test_a_grid_of_whole_clusters(make) -> None:
    a = make.tensor("fp32", "n", "1", "write")
    k = Kernel(make(kernel="odd", A=a, symbols=["n"], cluster=(2, 1, 1), grid=["n", 1, 1]))
    with pytest.raises(gr.LaunchError, match="the grid is not a whole number of clusters") as e:
        k(tensor("fp32", 3))
    assert "want: a multiple of 2 blocks" in str(e.value)


@pytest.fixture
def mapped(make) -> Kernel:
    """Rows and columns of x by a map of boxes of 8 rows of 64, swizzled; y is not mapped."""
    x = (0, [["N", 1], ["M", "S"]], [64, 8], 128)
    return Kernel(make(
        kernel="mapped", symbols=["M", "N", "S"], maps=[x], x=make.tensor("fp16", "M N", "S 1", align=16),
        y=make.tensor("fp32", "M", "1", "write"), grid=["(M + 7) // 8", 1, 1],
    ))  # fmt: skip


def test_maps_are_encoded_once_an_address(mapped: Kernel) -> None:
    stub_cuda.param_sizes(8, 8, 8, 8, 8, 128)
    y = tensor("fp32", 100, at=0x900000)
    for round_ in range(2):
        for at in (0x10000, 0x20000, 0x30000, 0x40000):
            mapped(tensor("fp16", 100, 72, at=at, strides=(80, 1)), y)
            got = one(stub_cuda.take_launches())["params"]
            assert struct.unpack("<QQqqq", b"".join(got[:5])) == (at, 0x900000, 100, 72, 80)
            assert got[5] == struct.pack("<QQ", at, 2) + bytes(112), round_
    encoded = [x for x in stub_cuda.take_log() if x.startswith("cuTensorMapEncodeTiled")]
    assert encoded == ["cuTensorMapEncodeTiled 72 100 by 160 box 64 8 swizzle 3 of 6"] * 4
    mapped(tensor("fp16", 1, 72, at=0x50000, strides=(3, 1)), tensor("fp32", 1, at=0x900000))
    assert [x for x in stub_cuda.take_log() if "Map" in x] == [
        "cuTensorMapEncodeTiled 72 1 by 144 box 64 8 swizzle 3 of 6"  # the stride of one row says nothing
    ]


def test_what_no_map_describes(mapped: Kernel) -> None:
    y = tensor("fp32", 100, at=0x900000)
    cases = [
        (tensor("fp16", 100, 72, strides=(77, 1)), "got:  154 bytes"),
        (tensor("fp16", 100, 0, strides=(80, 1)), "got:  none along N"),
    ]
    for x, says in cases:
        with pytest.raises(gr.LaunchError, match="no tensor map describes argument 'x'") as e:
            mapped(x, y)
        assert e.value.code == "LAUNCH_MAP"
        assert says in str(e.value)
    mapped(tensor("fp16", 0, 72), tensor("fp32", 0))  # nothing to do, nothing to describe
    assert stub_cuda.take_launches() == []
    stub_cuda.fail("cuTensorMapEncodeTiled", 1)
    with pytest.raises(gr.LaunchError, match="cuTensorMapEncodeTiled") as e:
        mapped(tensor("fp16", 100, 72), y)
    assert e.value.code == "LAUNCH_MAP"
    assert "extents: 72, 100; strides in bytes: 144; box: 64, 8; swizzle: 128 bytes" in str(e.value)


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
@pytest.mark.parametrize("waits", [None, False, True])
def test_only_what_waits_itself_starts_before_the_kernels_ahead_have_ended(make, waits, cluster) -> None:
    a = make.tensor("fp32", "n", "1", "write")
    k = Kernel(make(kernel="late", A=a, symbols=["n"], cluster=cluster, grid=[8, 1, 1], waits_itself=waits))
    for _ in range(2):
        k(tensor("fp32", 4))
        got = one(stub_cuda.take_launches())
        assert (got["early"], got["cluster"], got["grid"]) == (waits is True, cluster, (8, 1, 1))


def test_lists_of_tensors(make) -> None:
    k = Kernel(
        make(
            kernel="lists",
            X=make.tensor("fp16", "n", "1", count=3),
            y=make.tensor("fp16", "n", "1", "write"),
            symbols=["n"],
        )
    )
    stub_cuda.param_sizes(24, 8, 8)
    xs = [tensor("fp16", 4, at=0x1000 * (i + 1)) for i in range(3)]
    for listed in (xs, tuple(xs), xs):
        k(listed, tensor("fp16", 4, at=0x9000))
        got = one(stub_cuda.take_launches())
        assert b"".join(got["params"]) == struct.pack("<5Q", 0x1000, 0x2000, 0x3000, 0x9000, 4)
    assert k.misses == 1
    with pytest.raises(gr.LaunchError, match=r"'X\[1\]' and 'y' share memory"):
        k(xs, tensor("fp16", 4, at=0x2000))


def test_long_lists_are_remembered(make) -> None:
    """More tensors and parameters than a call has room for without an allocation."""
    names = [f"s{i}" for i in range(70)]
    scalars = {n: make.scalar("i32") for n in names}
    k = Kernel(make(
        kernel="many", X=make.tensor("fp16", "n", "1", count=50), y=make.tensor("fp16", "n", "1", "write"),
        symbols=["n"], **scalars,
    ))  # fmt: skip
    stub_cuda.param_sizes(400, 8, *[4] * 70, 8)
    for round_ in range(3):
        at = [0x1000 * (i + 1) + 0x100_0000 * round_ for i in range(50)]
        numbers = range(70) if round_ < 2 else range(1, 71)
        k(
            [tensor("fp16", 4, at=a) for a in at],
            tensor("fp16", 4, at=0x90000),
            **dict(zip(names, numbers, strict=True)),
        )
        got = b"".join(one(stub_cuda.take_launches())["params"])
        assert got == struct.pack("<51Q70iQ", *at, 0x90000, *numbers, 4)
        # Numbers after the first 64 make a form of their own, although no size depends on them.
        assert k.misses == (1 if round_ < 2 else 2)


def test_negated_views_are_refused_by_every_path(make) -> None:
    """is_neg is asked of each tensor of each call: its answer is not a part of what the exchange table says."""

    class Tensor(stub_cuda.Tensor):
        negated = False

        def is_neg(self) -> bool:
            return self.negated

    k = Kernel(make(kernel="negated", A=make.tensor("fp32", "n", "1", "write"), symbols=["n"]))
    stub_cuda.param_sizes(8, 8)
    t = Tensor(0x1000, (4,), (1,), CODES["fp32"], (CUDA, 0))
    for _ in range(2):
        k(t)
        one(stub_cuda.take_launches())
    Tensor.negated = True
    with pytest.raises(gr.LaunchError, match="argument 'A' is negated lazily"):
        k(t)
    assert stub_cuda.take_launches() == []


def test_nothing_to_do_launches_nothing(make) -> None:
    k = Kernel(make(kernel="empty", A=make.tensor("fp32", "n", "1", "write"), symbols=["n"], grid=["n", 1, 1]))
    for _ in range(2):
        k(tensor("fp32", 0, at=0))
    assert stub_cuda.take_launches() == []
    assert k.prepared == []
    k(tensor("fp32", 2))
    assert one(stub_cuda.take_launches())["grid"] == (2, 1, 1)


def test_interleaved_views_are_launched(make) -> None:
    k = Kernel(
        make(
            kernel="halves",
            A=make.tensor("fp16", "M 32", "64 1"),
            B=make.tensor("fp16", "M 32", "64 1", "write"),
            symbols=["M"],
        )
    )
    for _ in range(3):
        k(tensor("fp16", 100, 32, at=0x1000, strides=(64, 1)), tensor("fp16", 100, 32, at=0x1040, strides=(64, 1)))
    assert len(stub_cuda.take_launches()) == 3
    assert k.misses == 1  # spans that overlap are looked at again, and nothing else
    with pytest.raises(gr.LaunchError, match="share memory"):
        k(tensor("fp16", 100, 32, at=0x1000, strides=(64, 1)), tensor("fp16", 100, 32, at=0x103E, strides=(64, 1)))


def test_scalars_that_decide_sizes_are_part_of_the_form(make) -> None:
    k = Kernel(
        make(
            kernel="scalars",
            n=make.scalar("i32"),
            A=make.tensor("fp32", "m", "1", "write"),
            f=make.scalar("fp16"),
            symbols=["m"],
            grid=["n", 1, 1],
        )
    )
    stub_cuda.param_sizes(8, 4, 2, 8)
    for n, f, bits in ((3, 1.0, 0x3C00), (4, 2.0, 0x4000), (3, -0.5, 0xB800), (3, 65504, 0x7BFF), (3, 6e-8, 0x0001)):
        k(n, tensor("fp32", 8), f)
        got = one(stub_cuda.take_launches())
        assert got["grid"] == (n, 1, 1)
        assert got["params"][1:3] == [struct.pack("<i", n), struct.pack("<H", bits)]
    assert k.misses == 2


def bf16_bits(x: float) -> int | None:
    """The nearest bfloat16 by exact comparison with every candidate near it; None: it would be infinite."""
    if math.isinf(x) or x == 0 or math.isnan(x):
        return None if math.isnan(x) else struct.unpack("<I", struct.pack("<f", x))[0] >> 16
    magnitude = Fraction(abs(x))
    low, high = 0, 0x7F80
    while low + 1 < high:  # the largest that is not above
        mid = (low + high) // 2
        below = Fraction(struct.unpack("<f", struct.pack("<I", mid << 16))[0]) <= magnitude
        low, high = (mid, high) if below else (low, mid)
    values = [
        Fraction(struct.unpack("<f", struct.pack("<I", b << 16))[0]) if b < 0x7F80 else Fraction(2) ** 128
        for b in (low, low + 1)
    ]
    left, right = magnitude - values[0], values[1] - magnitude
    bits = low if left < right or (left == right and low % 2 == 0) else low + 1
    return None if bits >= 0x7F80 else bits | (0x8000 if x < 0 else 0)


@settings(max_examples=400, deadline=None)
@given(
    st.floats(allow_nan=False)
    | st.floats(-70000, 70000)
    | st.floats(-1e-4, 1e-4)
    | st.floats(width=16, allow_nan=False)
    | st.builds(lambda m, e: m * 2.0**e, st.integers(-(2**14), 2**14), st.integers(-160, 120))
)
def test_scalars_round_once_to_nearest_even(x: float) -> None:
    """Bits of fp16 and fp32 equal NumPy's conversion from double; of bf16, an exact search."""
    with np.errstate(over="ignore"):
        half, single = np.float16(x), np.float32(x)
    want = {
        "fp16": None if np.isinf(half) and not math.isinf(x) else int(half.view(np.uint16)),
        "bf16": bf16_bits(x),
        "fp32": None if np.isinf(single) and not math.isinf(x) else int(single.view(np.uint32)),
        "fp64": int(np.float64(x).view(np.uint64)),
    }
    stub_cuda.param_sizes(8, 8)
    for dtype, bits in want.items():
        k = ROUNDERS[dtype]
        if bits is None:
            with pytest.raises(gr.LaunchError) as e:
                k(tensor("fp32", 1), x)
            assert e.value.code == "LAUNCH_SCALAR"
        else:
            k(tensor("fp32", 1), x)
            assert struct.unpack("<Q", one(stub_cuda.take_launches())["params"][1])[0] == bits, (dtype, x)


def rounder(dtype: str) -> Kernel:
    arg = {
        "name": "A",
        "kind": "tensor",
        "dtype": "fp32",
        "dims": [[1, 1]],
        "flat": [],
        "access": "read",
        "align_bytes": 1,
        "list_count": 0,
    }
    text = {
        "schema": 1,
        "kernel": "round",
        "entry": "round_kernel",
        "args": [arg, {"name": "x", "kind": "scalar", "dtype": dtype}],
        "symbols": [],
        "facts": [],
        "grid": [1, 1, 1],
        "cluster": [1, 1, 1],
        "block_threads": 1,
        "dynamic_shared_bytes": 0,
    }
    return Kernel(_core.LaunchManifest.from_json(json.dumps(text)))


ROUNDERS = {dtype: rounder(dtype) for dtype in ("fp16", "bf16", "fp32", "fp64")}


def test_sm_count(make) -> None:
    s = make.symbol("sm_count", **{"from": "sm_count"}, is_param=False)
    k = Kernel(
        make(
            kernel="persistent",
            A=make.tensor("fp32", "n", "1", "write"),
            symbols=["n", s],
            grid=["min(n, sm_count)", 1, 1],
        )
    )
    for n, want in ((5, 5), (1000, 132)):
        k(tensor("fp32", n))
        assert one(stub_cuda.take_launches())["grid"] == (want, 1, 1)


def test_a_forked_child_is_told_that_cuda_stays_behind(gemm: Kernel) -> None:
    stub_cuda.param_sizes(8, 8, 8, 4, 1, 8, 4)
    gemm(*operands())
    for work in (lambda: gemm(*operands()), lambda: gemm(*operands(9, 9, 32)), _core.driver_info):
        child = os.fork()
        if child == 0:
            try:
                work()
            except gr.LaunchError as e:
                os._exit(7 if e.code == "LAUNCH_FORK" and "spawn" in str(e) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    gemm(*operands())
    stub_cuda.take_launches()
