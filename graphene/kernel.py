"""The kernel: recorded by running Python once under ``with gr.Kernel(name) as kernel:``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphene import _core

if TYPE_CHECKING:
    from types import TracebackType

    from graphene._core import KernelIR

__all__ = ["Kernel"]


class Kernel:
    """A kernel: specs over data tensors and thread tensors.

    ``with gr.Kernel("name") as kernel:`` records what is called inside. Afterwards the kernel cannot be changed.
    Raises VerifyError KERNEL_NESTED inside another kernel, KERNEL_NAME unless the name is an identifier.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._builder: _core.Builder | None = None
        self._closed: KernelIR | None = None

    def __enter__(self) -> Kernel:
        if self._builder is not None or self._closed is not None:
            raise RuntimeError(f"the kernel {self._name} is recorded already")
        self._builder = _core.Builder(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        builder, self._builder = self._builder, None
        if builder is None:
            return
        if kind is not None:
            builder.abandon()
            return
        try:
            self._closed = builder.close()
        finally:
            builder.abandon()

    @property
    def name(self) -> str:
        """The kernel's name, an identifier; also the function's in the generated code."""
        return self._name

    @property
    def ir(self) -> KernelIR:
        """The recorded kernel as the C++ core holds it. Raises RuntimeError before the recording has ended."""
        if self._closed is None:
            raise RuntimeError(f"the kernel {self._name} has not been recorded: leave its `with` block first")
        return self._closed
