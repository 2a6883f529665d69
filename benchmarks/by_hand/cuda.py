"""Compiles CUDA C++ with the package's NVRTC and launches it through the driver, with tensor maps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphene import _core

_SWIZZLE_128B, _PROMOTE_128B, _FP16 = 3, 2, 6
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((x, ctypes.c_uint) for x in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes")),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class Kernel:
    """One function `k`, for sm_90a. ``registers``, ``spill_bytes``: per thread."""

    def __init__(self, source: str, shared_bytes: int = 0) -> None:
        binary = _core.compile_source(source, "k", "sm_90a", "by_hand")
        self.registers, self.spill_bytes, self._shared_bytes = binary.registers, binary.spill_bytes, shared_bytes
        self._cubin = binary.cubin
        self._function: ctypes.c_void_p | None = None

    def _load(self) -> ctypes.c_void_p:
        self._driver = ctypes.CDLL("libcuda.so.1")
        torch.zeros(1, device="cuda")  # a context
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        check(self._driver.cuModuleLoadData(ctypes.byref(module), self._cubin), "cuModuleLoadData")
        check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, b"k"), "cuModuleGetFunction")
        if self._shared_bytes:
            max_dynamic_shared = 8
            check(
                self._driver.cuFuncSetAttribute(function, max_dynamic_shared, self._shared_bytes), "cuFuncSetAttribute"
            )
        return function

    def launcher(self, blocks: int, threads: int, args: Sequence[Any], early: bool = False) -> Callable[[], None]:
        """A call without arguments. `args`: ctypes values, tensors, tensor maps; they are kept alive.

        `early`: the kernel waits for those before it by itself (programmatic stream serialization).
        """
        self._function = self._function or self._load()
        values = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args]
        places = [a.address if isinstance(a, TensorMap) else ctypes.addressof(a) for a in values]
        array, function = (ctypes.c_void_p * len(places))(*places), self._function

        attribute = (ctypes.c_uint32 * 18)(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
        sizes = (blocks, 1, 1, threads, 1, 1, self._shared_bytes)

        def launch(keep: Any = (args, values)) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            config = _Config(*sizes, stream, ctypes.cast(attribute, ctypes.c_void_p), int(early))
            check(self._driver.cuLaunchKernelEx(ctypes.byref(config), function, array, None), "cuLaunchKernelEx")

        return launch


class TensorMap:
    """Boxes of an fp16 tensor. `sizes`, `box`: innermost first; `strides`: bytes; lines of 128 bytes are swizzled."""

    def __init__(self, tensor: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> None:
        swizzle = _SWIZZLE_128B if box[0] * 2 == 128 else 0
        n = len(sizes)
        self._storage, self._tensor = (ctypes.c_uint64 * 24)(), tensor
        self.address = (ctypes.addressof(self._storage) + 63) // 64 * 64
        status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.address), _FP16, n, ctypes.c_void_p(tensor.data_ptr()), (ctypes.c_uint64 * n)(*sizes),
            (ctypes.c_uint64 * (n - 1))(*strides), (ctypes.c_uint32 * n)(*box), (ctypes.c_uint32 * n)(*[1] * n),
            0, swizzle, _PROMOTE_128B, 0,
        )  # fmt: skip
        check(status, "cuTensorMapEncodeTiled")


def check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what} failed: CUDA error {status}")
