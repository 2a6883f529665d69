"""Kernels that are launched one after the other, and the check of their common result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from graphene import _core
from graphene.check import MEMORY_BYTES, CheckError, CheckResult, known, of_hazard, of_nothing, of_promise, worst_of
from graphene.kernel import Kernel
from graphene.simulate import check_memory, check_seed, check_sizes

if TYPE_CHECKING:
    from graphene.judge.sequence import SequenceRunner
    from graphene.promise import Arguments

CALLS: tuple[int, ...] = ()  # the greatest numbers of calls for sizes and for data; empty: the usual ones

__all__ = ["Launch", "Launches", "check_launches"]

Shape: TypeAlias = "tuple[str | int, ...]"
Workspaces: TypeAlias = "Callable[[dict[str, int]], Mapping[str, tuple[Sequence[int], str]]]"


class Launch(NamedTuple):
    """A kernel and its arguments, in order.

    An argument is the name of a tensor or number of the sequence; "X.T", which is X with its last two modes exchanged;
    "X.C", which is as many columns of X as C has; (name, function), which is the function's result on the array; or a
    number.
    """

    kernel: Kernel
    arguments: tuple[Any, ...]


class Launches(list[Launch]):
    """A list of launches that brings arguments for ``check_launches``, under the same names."""

    def __init__(
        self,
        launches: Iterable[Launch],
        means: Callable[..., Any] | None = None,
        shapes: Mapping[str, Shape] | None = None,
        workspaces: Workspaces | None = None,
        arguments: Callable[..., None] | Arguments | None = None,
    ) -> None:
        super().__init__(launches)
        self.means, self.shapes, self.workspaces, self.arguments = means, dict(shapes or {}), workspaces, arguments


def check_launches(
    launches: Iterable[Launch | tuple[Kernel, Sequence[Any]] | Kernel],
    arrays: Mapping[str, Any] | None = None,
    *,
    means: Callable[..., Any] | None = None,
    shapes: Mapping[str, Shape] | None = None,
    workspaces: Workspaces | None = None,
    arguments: Callable[..., None] | Arguments | None = None,
    arch: str | None = None,
    seed: int = 0,
    memory_bytes: int = MEMORY_BYTES,
    **sizes: int,
) -> CheckResult:
    """Runs kernels in order on one set of arrays, and holds each to its promise and the results to the common one.

    ``launches``: kernels with the names of their arguments (``Launch``), as ``gemm_launches`` returns them. A kernel
    without them names its arguments itself. ``means``: what all compute together, a NumPy function of names like a
    kernel's meaning, which returns a dict of results; without it only each kernel is held to its promise, given what
    the kernels before it left. ``arrays``: one call, by name, which runs on copies. Without them sizes, data and
    scalars are chosen from the texts of all kernels, in the way of ``kernel.check()``. ``shapes``: shapes of tensors in
    names of sizes, where several kernels name one size differently. ``workspaces``: a function of the sizes that
    returns (shape, type) by name for memory that the caller of the launches allocates. Memory that no kernel has
    written yet is NaN, or numbers that are not valid indices. ``arguments``: makes sensible arguments, as for
    ``gr.Kernel``, but by the sequence's names; by default each kernel's own function does so. A list that is a
    ``Launches`` brings these. ``sizes``: sizes of every call. ``memory_bytes``: how much memory this may allocate;
    calls that need more are left out.

    Raises VerifyError KERNEL_ARGUMENT for wrong launches, SimulationError SIM_ARGUMENT for sizes that symbols' facts
    exclude, CHECK_MEANS for a meaning that does not fit. A call that a launch refuses is an error of the result.
    """
    from graphene.judge.memory import limited
    from graphene.judge.sequence import Sequence as Together
    from graphene.judge.sequence import SequencePlan, SequenceRunner

    check_seed(seed)
    check_sizes(sizes)
    check_memory(memory_bytes)
    began = time.perf_counter()
    said: dict[str, Any] = {"means": means, "shapes": shapes, "workspaces": workspaces, "arguments": arguments}
    said = {n: x if x is not None else getattr(launches, n, None) for n, x in said.items()}
    together = Together([_launch(x) for x in launches], **said)
    runner = SequenceRunner(together, arch, seed, SequencePlan(together, seed, known(together, sizes)))
    with limited(memory_bytes):
        if arrays is not None:
            runner.one(*together.of_arrays(arrays))
        else:
            runner.all(*CALLS)
    return _result(runner, began)


def _launch(given: Any) -> Launch:
    from graphene.judge.signature import Signature

    if isinstance(given, Kernel):
        return Launch(given, tuple(a.name for a in Signature.of(given).arguments))
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Kernel)):
        _core.fail("KERNEL_ARGUMENT", "check_launches: this is not a launch", ["want: (kernel, names of its arguments)",
                   f"got: {given!r}"])  # fmt: skip
    kernel, names = given
    want = Signature.of(kernel).arguments
    if len(names) != len(want):
        _core.fail("KERNEL_ARGUMENT", f"check_launches: {kernel.name} takes other arguments",
                   [f"want: {', '.join(a.name for a in want)}", f"got: {', '.join(map(str, names))}"])  # fmt: skip
    return Launch(kernel, tuple(names))


def _result(runner: SequenceRunner, began: float) -> CheckResult:
    together, outcome = runner.together, runner.outcome
    failed = outcome.failed
    errors: list[CheckError] = []
    if failed is not None:
        at = None if failed.launch is None else failed.launch + 1
        kernel: Any = together if at is None else together.launches[at - 1].kernel
        errors = (
            of_hazard(failed.hazard, failed.call) if failed.hazard is not None else [of_promise(kernel, failed, [])]
        )
        if at is not None:
            place = f"in launch {at} of {len(together.launches)}, {kernel.name}"
            errors = [replace(e, details=(*e.details, place), text=f"{e.text}\n  {place}") for e in errors]
    errors = errors or of_nothing(together, outcome)  # type: ignore[arg-type]
    promised = together.whole or any(x.kernel.promise is not None for x in together.launches)
    return CheckResult(
        errors=tuple(errors),
        promises=0,
        lane_ops=sum(r.lane_ops for r in outcome.runs),
        sizes={},
        blocks=0,
        arch=together.launches[0].kernel.lowered(runner.arch).arch if together.launches else "",
        calls=tuple(str(r.call) for r in outcome.runs),
        worst=worst_of(outcome) if promised else None,
        uncovered=tuple(outcome.uncovered()) if not errors else (),
        seconds=time.perf_counter() - began,
    )
