"""Kernels and devices as operators see them: names of element types, the largest sizes, a device's resources."""

from __future__ import annotations

import functools
from typing import Any

from graphene import dtypes
from graphene.launch_views import Size
from graphene.ops.core.plans import gpu
from graphene.select.device import Device, named, of_arch

DTYPES = {t.array_name: t.name for t in (dtypes.fp16, dtypes.bf16, dtypes.fp32, dtypes.fp64)}
MATMUL_DTYPES = tuple(t.array_name for t in (dtypes.fp16, dtypes.bf16))
ROW_DTYPES = tuple(t.array_name for t in (dtypes.fp16, dtypes.bf16, dtypes.fp32))
MOST = 2**31 - 1  # the most elements of a row that kernels can count
TOO_WIDE = "no kernel for rows of 2^31 elements and more"


class KernelCalls:
    """The kernels that are launched, in order, with the names of their arguments, or numbers.

    ``workspaces``: type and sizes, by name, of further memory that they need. The suffix ".T" of a name exchanges its
    last two dimensions; ".C" takes as many columns as the result has.
    """

    def __init__(
        self,
        kernels: list[tuple[Any, list[str | float]]],
        workspaces: dict[str, tuple[str, list[Size]]] | None = None,
    ) -> None:
        self.kernels, self.workspaces = kernels, workspaces or {}


@functools.cache
def target_device(name: str) -> Device:
    """The device that tensors lie on, as selection sees it; of a CPU what the simulator lowers for."""
    if name == "cpu":
        return of_arch("sm_80")
    place = gpu(name)
    return named(place.model).of_size(place.sms, place.shared_bytes)


def model_name(name: str) -> str | None:
    """The name under which tuning records of the device are kept; None for a CPU, which has none."""
    return None if name == "cpu" else gpu(name).model


@functools.cache
def memory_bytes(name: str) -> int:
    """All memory of a device, in whole GiB; a CPU counts as a large device."""
    return 1 << 40 if name == "cpu" else gpu(name).memory_gib << 30
