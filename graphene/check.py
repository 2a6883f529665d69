"""Specs are promises: what ``kernel.check()`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from graphene import _core, references
from graphene.simulate import Sync, check_seed, check_sizes, syncs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphene.kernel import Kernel

__all__ = ["CheckError", "CheckResult", "Mutant", "check", "mutants"]


@dataclass(frozen=True)
class CheckError:
    """A hazard, or a spec whose decomposition does not do what the spec says.

    ``code``: SIM_* or CHECK_*. ``where``: Python ``file:line`` of the statement. ``ir``: its IR text, and that of the
    other side of a race. ``text``: everything, as an exception would print it.
    """

    code: str
    message: str
    where: str
    ir: tuple[str, ...]
    details: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class CheckResult:
    """The outcome of ``kernel.check()``.

    ``errors``: hazards if there are any; else the innermost specs that break their promise. ``promises``: how many
    instances of specs were held to their promise. ``sizes``: of the kernel's symbols. ``blocks``: how many ran.
    ``worst_error``: largest difference from float64 of a MatMul over the whole grid, in units of its tolerance
    (k + 2) * epsilon * sum |a * b|; None where there is none to compare.
    """

    errors: tuple[CheckError, ...]
    promises: int
    lane_ops: int
    sizes: dict[str, int]
    blocks: int
    arch: str
    worst_error: float | None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.errors

    def __str__(self) -> str:
        if self.errors:
            return "\n".join(e.text for e in self.errors)
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"ok: {self.promises} promises kept in {self.blocks} blocks" + (f" with {sizes}" if sizes else "")


class Mutant(NamedTuple):
    """A kernel with one synchronisation statement weakened, and the hazard that is then found.

    ``change``: "left out", or "one more group in flight" of a wait. ``hazard``: SIM_*, None where none is found: at
    these sizes the statement is redundant.
    """

    sync: Sync
    change: str
    hazard: str | None

    def __str__(self) -> str:
        return f"{self.sync.where}: {self.sync.text} {self.change}: {self.hazard or 'no hazard'}"


def mutants(
    kernel: Kernel, args: tuple[object, ...], arch: str | None, seed: int, sizes: dict[str, int]
) -> list[Mutant]:
    """Looks for hazards without each synchronisation statement in turn, and with each wait covering a group less."""
    check_seed(seed)
    check_sizes(sizes)
    program = kernel.lowered(arch)
    if args:
        sizes = {**_core.argument_sizes(program, args), **sizes}

    def hazard(skip: Sequence[int] = (), relax: Sequence[int] = ()) -> str | None:
        problems = _core.check(program, sizes, seed, skip=skip, relax=relax, hazards_alone=True)[0]
        return problems[0][0] if problems else None

    out = []
    for sync in syncs(kernel):
        out.append(Mutant(sync, "left out", hazard(skip=[sync.id])))
        if sync.text.startswith("wait("):
            out.append(Mutant(sync, "one more group in flight", hazard(relax=[sync.id])))
    return out


def check(kernel: Kernel, args: tuple[object, ...], arch: str | None, seed: int, sizes: dict[str, int]) -> CheckResult:
    """Runs a kernel on random arguments, with every access checked; then once more over a prime field, where what
    each decomposed spec promises (``after == F(before)``) holds exactly or is wrong.

    ``args``: a call, which gives the sizes; its integers, numbers and elements, are used, its floats are not.
    ``sizes``: of the kernel's symbols; two tiles and a ragged part by default. With both, arrays give sizes alone.
    Raises SimulationError SIM_ARGUMENT for sizes that the symbols' facts exclude; VerifyError and SelectError as
    lowering does.
    """
    check_seed(seed)
    check_sizes(sizes)
    program = kernel.lowered(arch)
    call = () if sizes else args
    if args:
        sizes = {**_core.argument_sizes(program, args), **sizes}
    problems, promises, lane_ops, _, used, blocks, worst = _core.check(
        program, sizes, seed, references.evaluate, args=call
    )
    errors = tuple(CheckError(p[0], p[1], p[2], tuple(p[3]), tuple(p[4]), p[5]) for p in problems)
    return CheckResult(errors, promises, lane_ops, used, blocks, program.arch, worst if worst >= 0 else None)
