"""Captures, errors, calls on the host, tensors of other libraries, the type itself, seen through a stub of the driver.

test_launcher.py runs this file in a process whose $GRAPHENE_CUDA_DRIVER names the stub; a process loads one driver.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stub_cuda
from launching import Kernel, one, operands, tensor

import graphene as gr
from graphene import _core

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
    assert info["devices"][1] == {
        "name": "Stub 1", "arch": "sm_90a", "sm_count": 132, "shared_bytes": 232448, "clock_khz": 1980000,
        "memory_clock_khz": 3201000, "memory_bus_bits": 6144,
    }  # fmt: skip


# Kernels of the language


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_built_kernel_is_launched_with_what_its_code_takes(symbolic: bool) -> None:
    """Fig. 8 of the paper: pointers, then the sizes that its text takes, in that order."""
    m, n, k = 256, 128, 64
    sizes = [gr.sym(name, multiple_of=64, max=1 << 20) for name in "MNK"] if symbolic else (m, n, k)
    with gr.Kernel("simple_gemm") as kernel:
        M, N, K = sizes
        A = gr.input("A", gr.col_major(M, K), gr.fp16)
        B = gr.input("B", gr.col_major(K, N), gr.fp16)
        C = gr.inout("C", gr.col_major(M, N), gr.fp16)
        blocks, threads = gr.blocks(M // 64, N // 64), gr.threads(8, 8)
        with gr.spec(C, [A, B], on=(blocks, threads)):
            (bm, bn), (tm, tn) = blocks.indices(), threads.indices()
            with gr.loop("k", K) as kk, gr.loop("m", 8) as i, gr.loop("n", 8) as j:
                a = A.tile([64, None])[bm, 0].tile([8, None])[tm, 0][i, kk]
                b = B.tile([None, 64])[0, bn].tile([None, 8])[0, tn][kk, j]
                c = C.tile([64, 64])[bm, bn].tile([8, 8])[tm, tn][i, j]
                gr.matmul(c, a, b, on=(blocks.scalar(), threads.scalar()))
    shapes = {"A": (m, k, 0x10000), "B": (k, n, 0x40000), "C": (m, n, 0x80000)}
    args = {x: tensor("fp16", r, c, at=at, strides=(1, r)) for x, (r, c, at) in shapes.items()}
    bits = [s["bits"] for s in json.loads(kernel.lowered("sm_90a").manifest().to_json())["symbols"]]
    assert len(bits) == (3 if symbolic else 0)
    stub_cuda.param_sizes(8, 8, 8, *(b // 8 for b in bits))
    for _ in range(2):
        kernel(**args)
        got = one(stub_cuda.take_launches())
        assert (got["grid"], got["block"]) == ((4, 2, 1), (64, 1, 1))
        values = [int.from_bytes(p, "little") for p in got["params"]]
        assert values[:3] == [0x10000, 0x40000, 0x80000]
        assert sorted(values[3:]) == (sorted((m, n, k)) if symbolic else [])
    assert kernel.misses == 1
    with pytest.raises(gr.LaunchError, match="argument 'B' has the wrong shape"):
        kernel(args["A"], args["A"], args["C"])
    kernel(*(np.zeros((r, c), np.float16, order="F") for r, c, _ in shapes.values()))  # the simulator
    assert stub_cuda.take_launches() == []
