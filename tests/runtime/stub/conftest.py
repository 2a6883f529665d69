"""A quiet stub for every case, and the kernel most of them call."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import stub_cuda
from launching import Kernel


@pytest.fixture(autouse=True)
def stub() -> Iterator[ModuleType]:
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
