"""How many bytes a kernel spills, where older assemblers than the one that the tests are held to spill some."""

from __future__ import annotations

import graphene as gr


def spilled(kernel: gr.Kernel, arch: str, before_13_5: int = 0) -> int:
    """Bytes per thread that are more than NVRTC before 13.5 is known to spill, or than none with a newer one."""
    binary = kernel.compile(arch)
    older = tuple(map(int, binary.nvrtc_version.split("."))) < (13, 5)
    return max(0, binary.spill_bytes - (before_13_5 if older else 0))
