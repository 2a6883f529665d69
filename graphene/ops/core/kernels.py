"""What operators know of kernels and devices: names of element types, the largest sizes, what a device has."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from graphene import _core
from graphene.ops.core.plans import gpu
from graphene.select.device import Device, named, of_arch

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
MATMUL_DTYPES = ("float16", "bfloat16")
ROW_DTYPES = ("float16", "bfloat16", "float32")
MOST = 2**31 - 1  # elements of a row that kernels count
TOO_WIDE = "no kernel for rows of 2^31 elements and more"

Size: TypeAlias = "tuple[str | int, int]"  # "batch", "m", "n", "k" or a number; rounded up to a multiple


@dataclass
class Launches:
    """What is launched, in order: kernels with the names of their arguments, or numbers.

    ``workspaces``: by name, what they need besides: type and sizes. A name's suffix ".T" exchanges its last two
    dimensions, ".C" takes as many columns as the result has.
    """

    kernels: list[tuple[Any, list[str | float]]]
    workspaces: dict[str, tuple[str, list[Size]]] = field(default_factory=dict)


@functools.cache
def device(name: str) -> tuple[int, int, str | None]:
    """Multiprocessors, bytes of shared memory a block may have, the model; of a CPU what the simulator lowers for."""
    if name == "cpu":
        return 108, _core.shared_limit_bytes("sm_80"), None
    place = gpu(name)
    return place.sms, place.shared_bytes, place.model


@functools.cache
def target_device(name: str) -> Device:
    """The device that tensors lie on, as selection sees it; of a CPU what the simulator lowers for."""
    sms, shared_bytes, model = device(name)
    return (of_arch("sm_80") if model is None else named(model)).of_size(sms, shared_bytes)


@functools.cache
def memory_bytes(name: str) -> int:
    """All memory of a device, in whole GiB; of a CPU as much as a large one has."""
    return 1 << 40 if name == "cpu" else gpu(name).memory_gib << 30
