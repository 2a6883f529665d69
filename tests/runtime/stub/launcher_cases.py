"""What a call passes to the driver, seen through a stub of it. test_launcher.py runs this file in a process whose
$GRAPHENE_CUDA_DRIVER names the stub: the driver is loaded once a process."""

from __future__ import annotations

import json
import math
import struct
import sys
import threading
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stub_cuda
from hypothesis import given, settings
from hypothesis import strategies as st

import graphene as gr
from graphene import _core

TYPES = {"i8": "signed char", "i32": "int", "i64": "long long", "fp16": "unsigned short", "bf16": "unsigned short",
         "fp32": "float", "fp64": "double"}  # fmt: skip


def source_of(manifest: _core.LaunchManifest, tag: int, body: str) -> str:
    """A kernel with the parameters the manifest says; `p` is its first tensor as floats."""
    m = json.loads(manifest.to_json())
    tensors = [a for a in m["args"] if a["kind"] == "tensor"]
    params = [f"List<{a['list_count']}> t{i}" if a["list_count"] else f"void* t{i}" for i, a in enumerate(tensors)]
    params += [f"{TYPES[a['dtype']]} s_{a['name']}" for a in m["args"] if a["kind"] == "scalar"]
    params += [f"{TYPES['i' + str(s['bits'])]} n_{s['name']}" for s in m["symbols"] if s["is_param"]]
    first = "t0.p[0]" if tensors[0]["list_count"] else "t0"
    return (
        "template <int n> struct List { void* p[n]; };\n"
        f'extern "C" __global__ void {m["entry"]}({", ".join(params)}) {{\n'
        f"  float* p = (float*){first};\n  {body}\n  p[0] = {tag};\n}}\n"
    )


CODES = {"fp16": (2, 16), "fp32": (2, 32), "bf16": (4, 16), "i32": (0, 32)}
CUDA = 2


def tensor(
    dtype: str,
    *shape: int,
    at: int = 0x10000,
    strides: tuple[int, ...] | None = None,
    device: tuple[int, int] = (CUDA, 0),
) -> Any:
    """A CUDA tensor at an address nobody reads."""
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
    return stub_cuda.Tensor(at, shape, strides, CODES[dtype], device)


class Kernel(_core.Launcher):
    """A launcher of a manifest, which counts its hooks."""

    tags = 0

    def __init__(self, manifest: _core.LaunchManifest, body: str = "") -> None:
        super().__init__()
        Kernel.tags += 1
        self.manifest, self.tag, self.body = manifest, Kernel.tags, body
        self.prepared: list[tuple[int, str]] = []
        self.asked: list[str] = []
        self.hosted: list[tuple[tuple, dict]] = []

    def _manifest(self, arch: str) -> _core.LaunchManifest:
        self.asked.append(arch)
        return self.manifest

    def _prepare(self, device_index: int, arch: str) -> _core.Binary:
        self.prepared.append((device_index, arch))
        entry = self.manifest.entry
        source = source_of(self.manifest, self.tag, self.body)
        return _core.compile_source(source, entry, arch, self.manifest.kernel_name)

    def _call_host(self, *args: Any, **named: Any) -> None:
        self.hosted.append((args, named))


@pytest.fixture(autouse=True)
def stub():
    stub_cuda.take_launches()
    stub_cuda.take_log()
    stub_cuda.set_current(0xC0)
    stub_cuda.set_stream(0, 0)
    stub_cuda.set_stream(1, 0)
    stub_cuda.set_capturing(None)
    stub_cuda.param_sizes()
    yield stub_cuda
    for call in ("cuLaunchKernel", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuCtxSetCurrent"):
        stub_cuda.fail(call, 0)


@pytest.fixture
def gemm(make) -> Kernel:
    return Kernel(make(
        kernel="gemm", symbols=["M", make.symbol("N", bits=32), make.symbol("K", is_param=False)],
        A=make.tensor("fp16", "M K", "K 1", align=16), alpha=make.scalar("fp32"), B=make.tensor("fp16", "K N", "N 1"),
        C=make.tensor("fp32", "M N", "N 1", "readwrite", align=16), n=make.scalar("i8"),
        grid=["(M + 127) // 128", "(N + 63) // 64", 3], threads=256, shared=1024,
    ))  # fmt: skip


def operands(m: int = 256, n: int = 64, k: int = 32) -> list[Any]:
    return [
        tensor("fp16", m, k, at=0x10000),
        1.5,
        tensor("fp16", k, n, at=0x20002),
        tensor("fp32", m, n, at=0x40000),
        -2,
    ]


def one(launches: list[dict[str, Any]]) -> dict[str, Any]:
    assert len(launches) == 1
    return launches[0]


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
    for n, attributes in ((1024, []), (20000, ["8=80000"]), (15000, []), (30000, ["8=120000"])):
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


# Capture


def test_first_call_during_capture_is_refused_before_compiling(gemm: Kernel) -> None:
    stub_cuda.set_stream(0, 0x5)
    stub_cuda.set_capturing(0x5)
    with pytest.raises(gr.LaunchError) as e:
        gemm(*operands())
    assert str(e.value) == (
        "gemm: the kernel would have to be compiled and loaded while its stream is being captured; nothing was launched"
        "   [LAUNCH_CAPTURE]\n"
        "  fix: call the kernel once, or kernel.load(0), before the capture starts"
    )
    assert gemm.prepared == []
    gemm.load()
    gemm(*operands())  # captured
    gemm(*operands(512))  # another form of a loaded kernel
    assert [x["stream"] for x in stub_cuda.take_launches()] == [5, 5]


def test_load_by_device(gemm: Kernel) -> None:
    gemm.load(1)
    assert gemm.prepared == [(1, "sm_90a")]
    with pytest.raises(gr.LaunchError) as e:
        gemm.load(7)
    assert e.value.code == "LAUNCH_DRIVER"


# Errors of the driver and of hooks


@pytest.mark.parametrize(
    ("call", "code", "want", "text"),
    [
        ("cuModuleLoadData", 209, "LAUNCH_DRIVER", "cuModuleLoadData failed with CUDA_ERROR_NO_BINARY_FOR_GPU"),
        ("cuModuleGetFunction", 1, "LAUNCH_DRIVER", "cuModuleGetFunction failed with CUDA_ERROR_INVALID_VALUE"),
        ("cuLaunchKernel", 700, "LAUNCH_DRIVER", "the launch failed with CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("cuLaunchKernel", 900, "LAUNCH_CAPTURE", "the launch failed with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    ],
)
def test_driver_errors(gemm: Kernel, call: str, code: int, want: str, text: str) -> None:
    for _ in range(2):
        stub_cuda.fail(call, code)
        with pytest.raises(gr.LaunchError) as e:
            gemm(*operands())
        assert e.value.code == want
        assert str(e.value).startswith(f"gemm: {text}; nothing was launched")
        assert "\n  driver: the stub was told to fail" in str(e.value)
    stub_cuda.fail(call, 0)
    gemm(*operands())
    assert len(stub_cuda.take_launches()) == 1


def test_errors_of_hooks_come_through(make) -> None:
    class Broken(Kernel):
        def _prepare(self, device_index: int, arch: str) -> Any:
            if self.fail:
                raise gr.CompileError("no")
            return None

    k = Broken(make(A=make.tensor("fp32", "4", "1", "write")))
    k.fail = True
    with pytest.raises(gr.CompileError, match="no"):
        k(tensor("fp32", 4))
    k.fail = False
    with pytest.raises(gr.LaunchError, match="the hook _prepare returned something else than a Binary") as e:
        k(tensor("fp32", 4))
    assert (e.value.code, "got:  None" in str(e.value)) == ("LAUNCH_MANIFEST", True)
    with pytest.raises(NotImplementedError, match=r"_manifest\(self, arch\)"):
        _core.Launcher()(tensor("fp32", 4))
    with pytest.raises(NotImplementedError, match="_call_host"):
        _core.Launcher()(np.zeros(4))


def test_cubin_and_manifest_of_different_kernels(make, gemm: Kernel) -> None:
    """Parameters of other sizes or another order would be read as garbage."""

    class Mixed(Kernel):
        def _prepare(self, device_index: int, arch: str) -> _core.Binary:
            source = f'extern "C" __global__ void gemm({self.params}) {{}}'
            return _core.compile_source(source, "gemm", arch)

    k = Mixed(gemm.manifest)
    for params, got in (
        ("void* a, void* b, void* c, float x, signed char n, int N, long long M", "8, 8, 8, 4, 1, 4, 8"),
        ("void* a, void* b, void* c, float x, signed char n, long long M", "8, 8, 8, 4, 1, 8"),
    ):
        k.params = params
        with pytest.raises(gr.LaunchError) as e:
            k(*operands())
        assert str(e.value) == (
            "gemm: the compiled kernel takes other parameters than its manifest says; nothing was launched"
            "   [LAUNCH_MANIFEST]\n"
            f"  want: 8, 8, 8, 4, 1, 8, 4 bytes\n  got:  {got} bytes\n"
            "  fix: use the cubin and the manifest of one compilation: tensors come first, then scalars, then symbols"
        )
    assert [x for x in stub_cuda.take_log() if x.startswith("cuModule")] == []


# Calls on the host


def test_arrays_on_the_host_go_to_the_hook_as_they_came(gemm: Kernel) -> None:
    x = np.zeros((4, 4), np.float16)
    gemm(x, 1, x, C=x, n=[x])
    gemm()
    host = tensor("fp16", 4, 4, device=(1, 0))
    gemm(host, host)
    assert gemm.hosted[0][0][0] is x
    assert gemm.hosted[0][1] == {"C": x, "n": [x]} or gemm.hosted[0][1]["C"] is x
    assert gemm.hosted[1] == ((), {})
    assert gemm.hosted[2] == ((host, host), {})
    assert (gemm.asked, stub_cuda.take_launches()) == ([], [])
    gemm(*operands())  # ... and stays possible after a launch
    gemm(host, 1, host, host, 1)
    assert len(gemm.hosted) == 4
    assert len(stub_cuda.take_launches()) == 1


# Tensors of other libraries


class CudaArray:
    """What CuPy and Numba publish."""

    def __init__(
        self, shape: tuple[int, ...], typestr: str, at: int, stream: int | None = None, device: int = 0, strides=None
    ):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (at, False), "version": 3, "strides": strides, "stream": stream,
        }  # fmt: skip
        self.device = SimpleNamespace(id=device)


def test_cuda_array_interface(make) -> None:
    k = Kernel(
        make(kernel="cai", A=make.tensor("fp16", "n 4", "4 1"), B=make.tensor("bf16", "n", "1", "write"), symbols=["n"])
    )
    stub_cuda.param_sizes(8, 8, 8)
    k(CudaArray((3, 4), "<f2", 0x1000), CudaArray((3,), "<u2", 0x2000, stream=7))
    got = one(stub_cuda.take_launches())
    assert b"".join(got["params"]) == struct.pack("<3Q", 0x1000, 0x2000, 3)
    assert got["stream"] == 7
    with pytest.raises(gr.LaunchError, match="ready on different streams") as e:
        k(CudaArray((3, 4), "<f2", 0x1000, stream=5), CudaArray((3,), "<u2", 0x2000, stream=7))
    assert e.value.code == "LAUNCH_STREAM"
    k(CudaArray((3, 4), "<f2", 0x1000, stream=5), CudaArray((3,), "<u2", 0x2000, stream=7), stream=9)
    assert one(stub_cuda.take_launches())["stream"] == 9
    with pytest.raises(gr.LaunchError, match="on another device"):
        k(CudaArray((3, 4), "<f2", 0x1000), CudaArray((3,), "<u2", 0x2000, device=1))
    with pytest.raises(gr.LaunchError, match="wrong strides"):
        k(CudaArray((3, 4), "<f2", 0x1000, strides=(2, 6)), CudaArray((3,), "<u2", 0x2000))


def test_mixed_libraries_use_the_stream_of_the_one_that_has_a_current_one(make) -> None:
    k = Kernel(
        make(kernel="mixed", A=make.tensor("fp16", "n", "1"), B=make.tensor("fp16", "n", "1", "write"), symbols=["n"])
    )
    stub_cuda.set_stream(0, 0x31)
    k(CudaArray((4,), "<f2", 0x1000), tensor("fp16", 4, at=0x2000))
    assert one(stub_cuda.take_launches())["stream"] == 0x31


def test_older_torch_is_read_by_attributes(make, monkeypatch: pytest.MonkeyPatch) -> None:
    class OldTensor:
        dtype = "torch.bfloat16"
        shape = (2, 4)
        device = SimpleNamespace(type="cuda", index=0)

        def stride(self) -> tuple[int, int]:
            return (4, 1)

        def data_ptr(self) -> int:
            return 0x4000

    current = SimpleNamespace(current_stream=lambda d: SimpleNamespace(cuda_stream=0x40 + d))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=current))
    k = Kernel(make(kernel="old", A=make.tensor("bf16", "n 4", "4 1", "write"), symbols=["n"]))
    stub_cuda.param_sizes(8, 8)
    k(OldTensor())
    got = one(stub_cuda.take_launches())
    assert (b"".join(got["params"]), got["stream"]) == (struct.pack("<2Q", 0x4000, 2), 0x40)


# The type itself


def test_vectorcall_of_a_subclass_and_an_overridden_call(make) -> None:
    class Loud(Kernel):
        def __call__(self, *args: Any, **named: Any) -> str:
            super().__call__(*args, **named)
            return "called"

    k = Loud(make(A=make.tensor("fp32", "4", "1", "write")))
    assert k(tensor("fp32", 4)) == "called"
    assert len(stub_cuda.take_launches()) == 1
    assert list(map(k, [tensor("fp32", 4)] * 2)) == ["called"] * 2


def test_launchers_can_be_collected(make) -> None:
    import gc
    import weakref

    k = Kernel(make(A=make.tensor("fp32", "4", "1", "write")))
    k(tensor("fp32", 4))
    k.itself = k
    gone = weakref.ref(k)
    del k
    gc.collect()
    assert gone() is None


def test_no_reference_is_lost(gemm: Kernel) -> None:
    args = operands()
    before = [sys.getrefcount(a) for a in args]
    for _ in range(50):
        gemm(*args)
        gemm(*args[:4], n=args[4], stream=0)
        with pytest.raises(gr.LaunchError):
            gemm(*args[:3], tensor("fp16", 256, 64, at=0x40000), args[4])
    assert [sys.getrefcount(a) for a in args] == before


def test_threads(gemm: Kernel) -> None:
    """First calls race to compile; all of them launch."""
    errors = []

    def work() -> None:
        try:
            for m in (128, 256, 384):
                gemm(*operands(m))
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert len(stub_cuda.take_launches()) == 12


def test_driver_info() -> None:
    info = _core.driver_info()
    assert info["version"] == "13.0"
    assert info["path"] == stub_cuda.__file__
    assert info["devices"][1] == {"name": "Stub 1", "arch": "sm_90a", "sm_count": 132, "shared_bytes": 232448}
