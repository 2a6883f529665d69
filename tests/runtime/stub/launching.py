"""What the cases against the stub share, a plugin of the pytest that runs them: launchers, tensors, fixtures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import stub_cuda

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
    params += [f"const __grid_constant__ Map m{i}" for i in range(len(m.get("maps", ())))]
    first = "t0.p[0]" if tensors[0]["list_count"] else "t0"
    return (
        "template <int n> struct List { void* p[n]; };\nstruct alignas(64) Map { long long w[16]; };\n"
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
    for call in (
        "cuTensorMapEncodeTiled",
        "cuLaunchKernel",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
        "cuCtxSetCurrent",
    ):
        stub_cuda.fail(call, 0)


@pytest.fixture
def gemm(make) -> Kernel:
    return Kernel(make(
        kernel="gemm", symbols=["M", make.symbol("N", bits=32), make.symbol("K", is_param=False)],
        A=make.tensor("fp16", "M K", "K 1", align=16), alpha=make.scalar("fp32"), B=make.tensor("fp16", "K N", "N 1"),
        C=make.tensor("fp32", "M N", "N 1", "readwrite", align=16), n=make.scalar("i8"),
        grid=["(M + 127) // 128", "(N + 63) // 64", 3], threads=256, shared=1024,
    ))  # fmt: skip
