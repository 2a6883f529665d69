"""GPUs as the tile model sees them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphene import _core
from graphene.errors import LaunchError
from graphene.kernels.arguments import number, size

if TYPE_CHECKING:
    from graphene._core import DeviceDescription

__all__ = ["H200", "Device", "current_device", "named", "of_arch", "require_cuda", "the_device"]


@dataclass(frozen=True, eq=False, repr=False)  # those below are ready when a first call reads this file
class Device:
    """A GPU as the model sees it.

    ``flops_per_clock``: the speed of one multiprocessor's tensor cores with 16-bit operands and fp32 sums, by
    ``mma.sync``. ``l2_bytes``, ``dram_bytes``: bytes per clock and multiprocessor when all of them read.
    ``shared_bytes``: the most shared memory of one block. The numbers come from NVIDIA's architecture whitepapers. For
    sm_90, where ``mma.sync`` does not reach the peak of ``wgmma``, and for the H200's bandwidths, they were measured.
    Raises VerifyError KERNEL_ARGUMENT.
    """

    name: str
    arch: str
    sm_count: int
    shared_bytes: int
    flops_per_clock: float
    l2_bytes: float
    dram_bytes: float
    clock_ghz: float
    registers: int = 65536
    max_threads: int = 1024

    def __post_init__(self) -> None:
        for name in ("name", "arch"):
            if not isinstance(value := getattr(self, name), str):
                _core.fail("KERNEL_ARGUMENT", f"Device: {name} does not fit", ["want: a text", f"got: {value!r}"])
        for name in ("sm_count", "registers", "max_threads"):
            size("Device", name, getattr(self, name))
        size("Device", "shared_bytes", self.shared_bytes, least=0)
        for name in ("flops_per_clock", "l2_bytes", "dram_bytes", "clock_ghz"):
            number("Device", name, getattr(self, name), positive=True)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"Device({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @property
    def tensor_rate(self) -> float:
        """Products and sums of one multiprocessor's tensor cores in a nanosecond, with 16-bit operands."""
        return self.flops_per_clock * self.clock_ghz

    @property
    def memory_rate(self) -> float:
        """Bytes that all of the device's memory moves in a nanosecond."""
        return self.dram_bytes * self.sm_count * self.clock_ghz

    def of_size(self, sm_count: int, shared_bytes: int) -> Device:
        """A device with the same memory and kind of multiprocessors, but another number of them and shared memory."""
        if sm_count == self.sm_count:
            return replace(self, shared_bytes=shared_bytes)
        share = self.dram_bytes * self.sm_count / sm_count
        return replace(self, sm_count=sm_count, shared_bytes=shared_bytes, dram_bytes=share)

    @property
    def family(self) -> str:
        """The architecture without its suffix: ``sm_90``."""
        return _family(self.arch)


def _family(arch: str) -> str:
    return arch.rstrip("abcdefghijklmnopqrstuvwxyz")


def _typical(
    name: str, arch: str, sm_count: int, flops: float, l2_bytes: float, dram_bytes: float, clock_ghz: float
) -> Device:
    """A device of which a block has as much shared memory as its architecture allows."""
    return Device(name, arch, sm_count, _core.shared_limit_bytes(arch), flops, l2_bytes, dram_bytes, clock_ghz)


H200 = _typical("NVIDIA H200", "sm_90a", 132, 2245, 52, 18.0, 1.75)
PORTABLE = replace(H200, name="a GPU", arch="sm_90")  # kernels for it run on other architectures, too
_KNOWN = (  # the first device of an architecture is its typical one
    _typical("NVIDIA V100", "sm_70", 80, 1024, 27, 7.0, 1.5),
    _typical("NVIDIA GeForce RTX 2080 Ti", "sm_75", 68, 512, 20, 5.6, 1.6),
    _typical("NVIDIA A100", "sm_80", 108, 2048, 32, 10.0, 1.41),
    _typical("NVIDIA GeForce RTX 3090", "sm_86", 82, 512, 20, 6.7, 1.7),
    _typical("NVIDIA L40S", "sm_89", 142, 1024, 22, 2.6, 2.3),
    H200,
    _typical("NVIDIA H100 PCIe", "sm_90a", 114, 2245, 52, 9.6, 1.55),
    _typical("NVIDIA H100", "sm_90a", 132, 2245, 52, 12.2, 1.75),
    _typical("NVIDIA B200", "sm_100a", 148, 2048, 26, 27.0, 1.85),
    _typical("NVIDIA GeForce RTX 5090", "sm_120a", 170, 1024, 22, 4.4, 2.4),
)
SUSTAINED = 0.88  # kept share of the highest clock that a driver names, as for the H200 of the table
REACHED = 0.85  # share of the memory's bandwidth that kernels reach, as for the H200 of the table


def architectures() -> list[str]:
    """Those whose typical devices are known, with the suffixes that their own instructions need: "sm_90a"."""
    return list(dict.fromkeys(d.arch for d in _KNOWN))


def of_arch(arch: str) -> Device:
    """A typical device of an architecture.

    Raises SelectError TUNE_NO_CANDIDATE for an unknown architecture, VerifyError KERNEL_ARGUMENT for anything but text.
    """
    if not isinstance(arch, str):
        _core.fail("KERNEL_ARGUMENT", "of_arch: arch does not fit",
                   ['want: an architecture, such as "sm_90a"', f"got: {arch!r}"])  # fmt: skip
    family = _family(arch)
    for known in _KNOWN:
        if known.family == family:
            return replace(known, arch=arch)
    below = [d for d in _KNOWN if family.startswith("sm_") and d.family[:-1] == family[:-1]]
    if not below:
        _core.fail("TUNE_NO_CANDIDATE", f"the tile model knows no device of {arch}",
                   [f"known: {', '.join(architectures())}"],
                   "pass a graphene.select.Device that describes it")  # fmt: skip
    return replace(below[0], arch=arch)


@functools.lru_cache(64)
def named(name: str) -> Device:
    """The device of this name, as drivers and PyTorch write it: "NVIDIA A100-SXM4-80GB".

    It is the device of the table whose name begins the given one; else the CUDA device of this machine with that name,
    as the driver describes it; else a device with the rates of an H200, on which kernels are measured, but without the
    instructions that only its architecture has ("sm_90", not "sm_90a").
    """
    if (known := _known(name)) is not None:
        return replace(known, name=name)
    try:
        found = [d for d in _core.driver_info()["devices"] if d["name"] == name]
    except LaunchError:  # a machine without a driver
        found = []
    return _described(found[0]) if found else replace(PORTABLE, name=name)


def _known(name: str) -> Device | None:
    return next((d for d in _KNOWN if name.startswith(d.name)), None)


def _described(found: DeviceDescription) -> Device:
    """A device from the driver's description: with the table's rates if the name is known, else by its clocks."""
    own = {"name": found["name"], "sm_count": found["sm_count"], "shared_bytes": found["shared_bytes"]}
    if (known := _known(found["name"])) is not None:
        return replace(known, **own)  # type: ignore[arg-type]
    device = replace(of_arch(found["arch"]), **own)  # type: ignore[arg-type]
    if found["clock_khz"] > 0:
        device = replace(device, clock_ghz=SUSTAINED * found["clock_khz"] / 1e6)
    bandwidth = 2 * found["memory_clock_khz"] * 1e3 * found["memory_bus_bits"] / 8  # two transfers a clock
    if bandwidth > 0:
        a_clock = device.sm_count * device.clock_ghz * 1e9
        device = replace(device, dram_bytes=REACHED * bandwidth / a_clock)
    return device


def current_device(index: int = 0) -> Device:
    """The CUDA device of an index, as the driver describes it. Raises LaunchError if there is none."""
    devices = _core.driver_info()["devices"]
    if not 0 <= index < len(devices):
        _core.fail("LAUNCH_DRIVER", f"there is no CUDA device {index}", [f"devices: {len(devices)}"],
                   "name another one")  # fmt: skip
    return _described(devices[index])


def the_device(function: str, device: Device | str | int, index: bool = True) -> Device:
    """The device that an argument means: a Device, an architecture, or (`index`) the index of a CUDA device.

    Raises VerifyError KERNEL_ARGUMENT for anything else, SelectError TUNE_NO_CANDIDATE for an unknown architecture, and
    LaunchError LAUNCH_DRIVER for an index without a device.
    """
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return of_arch(device)
    if isinstance(device, bool) or not isinstance(device, int) or not index:
        want = "want: a graphene.select.Device or an architecture" + ", or the index of a CUDA device" * index
        _core.fail("KERNEL_ARGUMENT", f"{function}: device does not fit", [want, f"got: {device!r}"])
    return current_device(device)


def require_cuda(what: str) -> Any:
    """The module torch. Raises LaunchError OP_TORCH if it is not installed, LAUNCH_DRIVER if it has no device."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError as e:
        _core.fail("OP_TORCH", f"{what} needs PyTorch", [f"why: {e}"], "pip install torch, or rank without measuring")
    if not torch.cuda.is_available():
        _core.fail("LAUNCH_DRIVER", f"{what} needs a CUDA device, and PyTorch has none",
                   [f"torch: {torch.__version__}"],
                   "measure on a machine with a GPU, or rank without measuring")  # fmt: skip
    return torch
