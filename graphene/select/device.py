"""What the tile model must know of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from graphene import _core
from graphene.kernels.arguments import number, size

__all__ = ["Device", "current_device", "of_arch", "require_cuda", "the_device"]


@dataclass(frozen=True)
class Device:
    """A GPU as the model sees it.

    ``flops_per_clock``: of one multiprocessor's tensor cores with 16-bit operands and fp32 sums, as ``mma.sync``
    reaches it. ``l2_bytes``, ``dram_bytes``: per clock and multiprocessor when all of them read. ``shared_bytes``: what
    one block may have. Sources: NVIDIA's architecture whitepapers; for sm_90, where ``mma.sync`` does not reach the
    peak of ``wgmma``, and for the H200's bandwidths, measured. Raises VerifyError KERNEL_ARGUMENT.
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

    @property
    def family(self) -> str:
        """The architecture without its suffix: ``sm_90``."""
        return self.arch.rstrip("abcdefghijklmnopqrstuvwxyz")


_KNOWN = {
    d.arch: d
    for d in (
        Device("NVIDIA V100", "sm_70", 80, 96 << 10, 1024, 27, 7.0, 1.5),
        Device("NVIDIA GeForce RTX 2080 Ti", "sm_75", 68, 64 << 10, 512, 20, 5.6, 1.6),
        Device("NVIDIA A100", "sm_80", 108, 163 << 10, 2048, 32, 10.0, 1.41),
        Device("NVIDIA GeForce RTX 3090", "sm_86", 82, 99 << 10, 512, 20, 6.7, 1.7),
        Device("NVIDIA L40S", "sm_89", 142, 99 << 10, 1024, 22, 2.6, 2.3),
        Device("NVIDIA H200", "sm_90a", 132, 227 << 10, 2245, 52, 18.0, 1.75),
        Device("NVIDIA B200", "sm_100a", 148, 227 << 10, 2048, 26, 27.0, 1.85),
        Device("NVIDIA GeForce RTX 5090", "sm_120a", 170, 99 << 10, 1024, 22, 4.4, 2.4),
    )
}


def of_arch(arch: str) -> Device:
    """A typical device of an architecture.

    Raises SelectError TUNE_NO_CANDIDATE for one that is not known, VerifyError KERNEL_ARGUMENT for anything but text.
    """
    if not isinstance(arch, str):
        _core.fail("KERNEL_ARGUMENT", "of_arch: arch does not fit",
                   ['want: an architecture, such as "sm_90a"', f"got: {arch!r}"])  # fmt: skip
    family = arch.rstrip("abcdefghijklmnopqrstuvwxyz")
    for known in _KNOWN.values():
        if known.family == family:
            return replace(known, arch=arch)
    below = [d for d in _KNOWN.values() if family.startswith("sm_") and d.family[:-1] == family[:-1]]
    if not below:
        _core.fail("TUNE_NO_CANDIDATE", f"the tile model knows no device of {arch}",
                   [f"known: {', '.join(d.family for d in _KNOWN.values())}"],
                   "pass a graphene.select.Device that describes it")  # fmt: skip
    return replace(below[0], arch=arch)


def current_device(index: int = 0) -> Device:
    """The CUDA device of an index, with its architecture's rates. Raises LaunchError where there is none."""
    devices = _core.driver_info()["devices"]
    if not 0 <= index < len(devices):
        _core.fail("LAUNCH_DRIVER", f"there is no CUDA device {index}", [f"devices: {len(devices)}"],
                   "name another one")  # fmt: skip
    found = devices[index]
    return replace(of_arch(found["arch"]), name=found["name"], sm_count=found["sm_count"],
                   shared_bytes=found["shared_bytes"])  # fmt: skip


def the_device(function: str, device: Device | str | int, index: bool = True) -> Device:
    """What a function was given to mean a device: one, an architecture, or (`index`) the index of a CUDA device.

    Raises VerifyError KERNEL_ARGUMENT for anything else, SelectError TUNE_NO_CANDIDATE and LaunchError LAUNCH_DRIVER
    for what is not known or not there.
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
    """The module torch. Raises LaunchError OP_TORCH where it is not installed, LAUNCH_DRIVER where it has no device."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError as e:
        _core.fail("OP_TORCH", f"{what} needs PyTorch", [f"why: {e}"], "pip install torch, or rank without measuring")
    if not torch.cuda.is_available():
        _core.fail("LAUNCH_DRIVER", f"{what} needs a CUDA device, and PyTorch has none",
                   [f"torch: {torch.__version__}"],
                   "measure on a machine with a GPU, or rank without measuring")  # fmt: skip
    return torch
