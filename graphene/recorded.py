"""The protocols by which the code that runs, judges and measures a kernel knows it; `graphene.Kernel` has the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from graphene._core import Binary, KernelIR, Program
    from graphene.promise import Promise

__all__ = ["Launched", "Recorded"]


class Recorded(Protocol):
    """A recorded kernel: its name, its IR and its promise. It can be lowered and compiled for an architecture."""

    @property
    def name(self) -> str:
        """An identifier."""
        ...

    @property
    def ir(self) -> KernelIR:
        """The kernel as the C++ core holds it."""
        ...

    @property
    def promise(self) -> Promise | None:
        """Its promise, or None."""
        ...

    def to_json(self, indent: int = -1, locations: bool = False) -> str:
        """The kernel as JSON."""
        ...

    def lowered(self, arch: str | None = None) -> Program:
        """The kernel lowered for an architecture; None means the usual one."""
        ...

    def compile(self, arch: str) -> Binary:
        """The cubin, with its registers and memory."""
        ...


class Launched(Protocol):
    """A kernel and its arguments, in order; `graphene.Launch` is one."""

    @property
    def kernel(self) -> Recorded:
        """The kernel that is launched."""
        ...

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Names, functions of named arrays, numbers."""
        ...
