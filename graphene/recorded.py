"""How code that runs, judges and measures a kernel knows it: protocols, of which `graphene.Kernel` has the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from graphene._core import Statement, StatementTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphene._core import Binary, KernelIR, Program
    from graphene.promise import Promise

__all__ = ["Launched", "Recorded", "Statement", "StatementTensor", "every"]


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


def every(statements: Sequence[Statement]) -> Iterator[Statement]:
    """Statements and those within them, in textual order."""
    for s in statements:
        yield s
        yield from every((*s.body, *s.otherwise))
